//! How much there is of everything, and who is there: what operators ask for.
//!
//! Numbers are counted or kept up with every change, so asking takes the logarithm of the number of znodes at most.
//! Lists are told in pages.

use tidelock_model::{
    KeyValue, LeaseId, Revision, SessionFound, SessionsPage, Space, ZNODE_KEY, ZnodeTotals, znode_path,
};

use crate::State;
use crate::znodes::paths;
use crate::znodes::record::{Session, Znode};

/// What cannot be counted in the order of keys. Kept with the sum over what lives (`digest`), which changes with
/// exactly the same keys and is checked against the keys by the tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZnodeSum {
    ephemerals: u64,
    bytes: u64,
    /// Children of [`paths::QUOTA`]: every change asks whether there are any.
    pub(super) quotas: u64,
}

impl ZnodeSum {
    pub(crate) fn add(&mut self, item: &KeyValue) {
        if let Some(share) = share_of(item) {
            self.ephemerals = self.ephemerals.wrapping_add(share.ephemerals);
            self.bytes = self.bytes.wrapping_add(share.bytes);
            self.quotas = self.quotas.wrapping_add(share.quotas);
        }
    }

    pub(crate) fn subtract(&mut self, item: &KeyValue) {
        if let Some(share) = share_of(item) {
            self.ephemerals = self.ephemerals.wrapping_sub(share.ephemerals);
            self.bytes = self.bytes.wrapping_sub(share.bytes);
            self.quotas = self.quotas.wrapping_sub(share.quotas);
        }
    }
}

/// What a znode adds to the sums; nothing for other keys.
fn share_of(item: &KeyValue) -> Option<ZnodeSum> {
    if item.key.space_byte() != Some(Space::Tree as u8) || item.key.name().first() != Some(&ZNODE_KEY) {
        return None;
    }
    let znode = Znode::read(&item.record);
    // The path is as long as the name without its first byte; the root's is one byte, too.
    let path_bytes = (item.key.name().len() as u64 - 1).max(1);
    Some(ZnodeSum {
        ephemerals: u64::from(znode.owner.is_some()),
        bytes: path_bytes + u64::from(znode.data_length),
        quotas: u64::from(paths::is_child_of_quota(&item.key)),
    })
}

impl State {
    pub(super) fn znode_totals(&self) -> ZnodeTotals {
        let count = |range| self.keyspace.count(&range, Revision(u64::MAX)) as u64;
        let ZnodeSum { ephemerals, bytes, quotas: _ } = self.live_sum.znodes;
        ZnodeTotals { znodes: count(paths::node_keys()), ephemerals, bytes, sessions: count(paths::session_keys()) }
    }

    pub(super) fn sessions_page(&self, page: &SessionsPage) -> Vec<SessionFound> {
        let mut paths_left = page.paths_max as usize;
        let start = paths::session_key(LeaseId(page.after.0.saturating_add(1)));
        let end = paths::session_keys().end;
        let sessions = self.keyspace.live_from(&start).take_while(|item| item.key < end);
        let found = sessions.take(page.sessions_max as usize).filter_map(|item| {
            let session = paths::session_of(&item.key)?;
            let mut ephemerals = self.lease_keys(session).filter_map(znode_path);
            let shown: Vec<String> = ephemerals.by_ref().take(paths_left).collect();
            paths_left -= shown.len();
            let has_more = ephemerals.next().is_some();
            let timeout_ms = Session::read(item.record.value()).timeout_ms;
            Some(SessionFound { session, timeout_ms, ephemerals: shown, has_more })
        });
        found.collect()
    }
}

#[cfg(test)]
mod tests {
    use tidelock_model::{LeaseId, SessionFound, SessionsPage, ZnodeFound, ZnodeRead, ZnodeTotals};

    use crate::testing::Machine;
    use crate::znodes::testing::{Client, create, create_ephemeral, delete, set};

    fn totals(machine: &Machine, client: &Client) -> ZnodeTotals {
        match machine.look(client, ZnodeRead::Totals) {
            Ok(ZnodeFound::Totals(totals)) => totals,
            other => panic!("{other:?}"),
        }
    }

    fn sessions(machine: &Machine, client: &Client, after: LeaseId, most: (u32, u32)) -> Vec<SessionFound> {
        let page = SessionsPage { after, sessions_max: most.0, paths_max: most.1 };
        match machine.look(client, ZnodeRead::Sessions(page)) {
            Ok(ZnodeFound::Sessions(found)) => found,
            other => panic!("{other:?}"),
        }
    }

    /// Alerts are built on these numbers: each must go down as well as up, also when a session takes its znodes along.
    #[test]
    fn totals_follow_every_change() {
        let mut machine = Machine::new();
        let (one, other) = (machine.open_session(), machine.open_session());
        let planted = totals(&machine, &one);
        assert_eq!((planted.znodes, planted.ephemerals, planted.sessions), (4, 0, 2));
        assert_eq!(planted.bytes, ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"].concat().len() as u64);
        machine.one(&one, create("/p")).unwrap();
        machine.one(&other, create_ephemeral("/p/e")).unwrap();
        let more = totals(&machine, &one);
        let grown = ["/p", "data", "/p/e", "data"].concat().len() as u64;
        let expected = ZnodeTotals { znodes: 6, ephemerals: 1, bytes: planted.bytes + grown, sessions: 2 };
        assert_eq!(more, expected);
        machine.one(&one, set("/p", "12345678", -1)).unwrap();
        assert_eq!(totals(&machine, &one).bytes, more.bytes + 4);
        machine.close_session(other.session).unwrap();
        machine.one(&one, delete("/p")).unwrap();
        assert_eq!(totals(&machine, &one), ZnodeTotals { sessions: 1, ..planted });
    }

    /// A list of everybody must come in pieces, and say where something was left out.
    #[test]
    fn sessions_are_listed_in_pages() {
        let mut machine = Machine::new();
        let clients: Vec<Client> = (0..3).map(|_| machine.open_session()).collect();
        for (client, names) in clients.iter().zip([&["/a", "/b", "/c"][..], &[], &["/d"]]) {
            for name in names {
                machine.one(client, create_ephemeral(name)).unwrap();
            }
        }
        let first = sessions(&machine, &clients[0], LeaseId::NONE, (2, 2));
        assert_eq!(first.len(), 2);
        assert_eq!((first[0].session, first[0].timeout_ms, first[0].has_more), (clients[0].session, 4000, true));
        assert_eq!((first[0].ephemerals.as_slice(), first[1].ephemerals.len()), (&["/a".into(), "/b".into()][..], 0));
        let rest = sessions(&machine, &clients[0], first[1].session, (2, 2));
        assert_eq!(rest.len(), 1);
        assert_eq!((rest[0].ephemerals.as_slice(), rest[0].has_more), (&["/d".into()][..], false));
    }
}
