//! Sessions: leases with a record of their own, and what they leave behind when they end.
//!
//! A session's id is made of where in the log it was opened and is never given out twice, so that a client
//! whose session is over cannot come back as somebody else. Every connection that takes it over counts its
//! generation up; requests of earlier ones are refused.

use std::collections::BTreeSet;

use bytes::Bytes;
use tidelock_model::{
    KeyValue, LeaseId, PutLease, PutOp, PutValue, Refusal, Revision, SessionAnswer, ZnodeError, ZnodeLife, znode_path,
};

use crate::State;
use crate::apply::Effects;
use crate::change::Revising;
use crate::znodes::draft::Draft;
use crate::znodes::quota::Figures;
use crate::znodes::record::{FROM_THE_START, Session, Side, Znode};
use crate::znodes::{acl, paths, quota};

/// The first byte of every session's id.
const ID_TOP: i64 = 1 << 56;
/// Bits for the place within an entry: as many as an entry may hold commands.
const PLACE_BITS: u32 = tidelock_model::limits::BATCH_COMMANDS_MAX.ilog2();

/// Late is allowed, early never: the lease lives as long as the session at least (L1).
fn ttl_s(timeout_ms: u32) -> u32 {
    timeout_ms.div_ceil(1000).max(1)
}

impl State {
    /// The session's own record, if it is one and not over.
    pub(super) fn session(&self, id: LeaseId) -> Option<Session> {
        let item = self.keyspace.get(&paths::session_key(id))?;
        (item.record.meta().lease == id).then(|| Session::read(item.record.value()))
    }

    /// Whether a lease is the session of one of ZooKeeper's clients.
    pub(crate) fn is_znode_session(&self, id: LeaseId) -> bool {
        id.0 & !(ID_TOP - 1) == ID_TOP && self.session(id).is_some()
    }

    /// Whether requests of this connection are taken.
    pub(super) fn check_session(&self, id: LeaseId, generation: u64) -> Result<(), ZnodeError> {
        match self.session(id) {
            None => Err(ZnodeError::SessionExpired),
            Some(session) if session.generation != generation => Err(ZnodeError::SessionMoved),
            Some(_) => Ok(()),
        }
    }

    pub(super) fn open_session(&mut self, timeout_ms: u32, effects: &mut Effects) -> Result<SessionAnswer, Refusal> {
        let place = effects.applied.len() as u64;
        let id = LeaseId(ID_TOP | (self.applied.0 << PLACE_BITS | place) as i64 & (ID_TOP - 1));
        // Refused if a client of etcd chose this very id for a lease: the next try gets another.
        self.grant_lease(id, ttl_s(timeout_ms), effects)?;
        let session = Session { timeout_ms, generation: 1 };
        let mut revising = Revising::new(self, &mut effects.events);
        self.plant(&mut revising);
        self.put_session(&mut revising, id, session);
        revising.finish(self);
        Ok(SessionAnswer { session: id, timeout_ms, generation: session.generation })
    }

    /// The session's time begins anew with what was asked for now, longer or shorter. An end that was proposed for
    /// the time before has no effect any more.
    pub(super) fn attach_session(
        &mut self,
        id: LeaseId,
        timeout_ms: u32,
        effects: &mut Effects,
    ) -> Result<SessionAnswer, Refusal> {
        if tidelock_model::planted!(ClosedSessionLetIn) && self.session(id).is_none() {
            self.grant_lease(id, 4, effects)?;
            let mut revising = Revising::new(self, &mut effects.events);
            self.put_session(&mut revising, id, Session { timeout_ms: 4_000, generation: 0 });
            revising.finish(self);
        }
        let before = self.session(id).ok_or(Refusal::LeaseNotFound)?;
        let timeout_ms = if timeout_ms == 0 { before.timeout_ms } else { timeout_ms };
        let session = Session { timeout_ms, generation: before.generation + 1 };
        self.renew_lease_for(id, ttl_s(timeout_ms), effects);
        let mut revising = Revising::new(self, &mut effects.events);
        self.put_session(&mut revising, id, session);
        revising.finish(self);
        Ok(SessionAnswer { session: id, timeout_ms: session.timeout_ms, generation: session.generation })
    }

    pub(super) fn close_session(&mut self, id: LeaseId, effects: &mut Effects) -> Result<(), Refusal> {
        if self.session(id).is_none() {
            return Err(Refusal::LeaseNotFound);
        }
        self.end_leases(&[id], effects);
        Ok(())
    }

    fn put_session(&mut self, revising: &mut Revising<'_>, id: LeaseId, session: Session) {
        let (key, value) = (paths::session_key(id), PutValue::Set(session.write()));
        self.put_key(revising, PutOp { key, value, lease: PutLease::Set(id), want_previous: false });
    }

    /// Sets up the root and what ZooKeeper keeps about itself, before the first session. They do not count as
    /// children that were created: the first number a sequential znode gets is zero all the same.
    fn plant(&mut self, revising: &mut Revising<'_>) {
        let mut draft = Draft::new(self);
        if draft.node(paths::ROOT).is_some() {
            return;
        }
        let znode = Znode {
            created: FROM_THE_START,
            modified: FROM_THE_START,
            version: 1,
            owner: LeaseId::NONE,
            life: ZnodeLife::Persistent,
            created_ms: 0,
            modified_ms: 0,
            data_length: 0,
        };
        for path in [paths::ROOT, paths::SYSTEM, paths::QUOTA] {
            draft.put(path, znode, Some(Bytes::new()));
        }
        let text = self.config_text(draft.revision);
        let data_length = u32::try_from(text.len()).unwrap_or_default();
        draft.put(paths::CONFIG, Znode { data_length, ..znode }, Some(text));
        // Everybody may see who the members are. ZooKeeper sets this list without counting it.
        let config = Side { acl: Some(vec![acl::world(acl::READ)]), acl_version: -1, ..Side::of_new(FROM_THE_START) };
        draft.put_side(paths::CONFIG, config);
        let changes = draft.finish();
        self.make_changes(changes, revising);
    }

    /// Tidies up behind znodes that went with their leases, at the same revision: what hung on them goes, and
    /// their parents learn of it. Other keys are none of its business.
    pub(crate) fn settle_after(&mut self, gone: &[KeyValue], at: Revision, revising: &mut Revising<'_>) {
        let mut parents = BTreeSet::new();
        let znodes = || gone.iter().filter_map(|item| Some((znode_path(&item.key)?, Znode::read(&item.record))));
        for (path, _) in znodes() {
            self.delete_key(revising, &paths::side_key(&path));
            self.delete_key(revising, &paths::reapable_key(&path));
            if let Some(of) = quota::path_of_stats(&path) {
                self.put_figures(revising, of, None);
            }
            parents.insert(paths::parent_of(&path).to_owned());
        }
        self.take_off_quotas(znodes().map(|(path, znode)| (path, Figures::of_one(&znode))), revising);
        for parent in parents {
            if let Some(znode) = self.znode(&parent) {
                let side = Side { children_modified: at, ..self.znode_side(&parent, &znode) };
                self.put_side(revising, &parent, &side);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Machine;
    use crate::znodes::testing::{Client, create, create_ephemeral, set, set_acl};
    use tidelock_model::{Answer, Command, ZnodeCommand, ZnodeEvent, ZnodeRequest};

    /// Watches are made of these: what the model reads out of our keys must be what was done to them, and
    /// what is kept beside a znode must concern nobody.
    #[test]
    fn every_change_is_told_as_what_it_was() {
        let mut machine = Machine::new();
        let mut told = |command: Command| {
            let effects = machine.commands(vec![command]);
            let events: Vec<_> = effects.events.iter().filter_map(ZnodeEvent::of).collect();
            (events, effects.applied[0].outcome.result.clone().unwrap())
        };
        let (events, Answer::Session(answer)) = told(Command::Znode(ZnodeCommand::OpenSession { timeout_ms: 9 }))
        else {
            panic!("not a session");
        };
        let session = answer.session;
        let created = |path: &str| ZnodeEvent::Created(path.to_owned());
        let mut expected = ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"].map(created).to_vec();
        expected.push(ZnodeEvent::SessionTaken { session, generation: 1 });
        assert_eq!(events, expected);

        let client = Client::of(answer);
        let mut one = |op| told(client.requests(vec![ZnodeRequest::One(op)])).0;
        assert_eq!(one(create("/p")), [created("/p")]);
        assert_eq!(one(create_ephemeral("/p/é")), [created("/p/é")], "the parent's own data did not change");
        assert_eq!(one(set("/p", "", -1)), [ZnodeEvent::DataChanged("/p".into())]);
        assert_eq!(one(set_acl("/p", crate::znodes::testing::open_acl(), -1)), []);

        let (events, _) = told(Command::Znode(ZnodeCommand::AttachSession { session, timeout_ms: 0 }));
        assert_eq!(events, [ZnodeEvent::SessionTaken { session, generation: 2 }]);
        let (events, _) = told(Command::Znode(ZnodeCommand::CloseSession { session }));
        assert_eq!(events, [ZnodeEvent::Deleted("/p/é".into()), ZnodeEvent::SessionEnded(session)]);
    }
}
