//! `/zookeeper/config`: who the members are, for ZooKeeper's clients.
//!
//! One line for each member that serves them, ascending by number, and the version:
//!
//! ```text
//! server.1=host:peerPort:electionPort:participant;clientHost:clientPort
//! version=1f
//! ```
//!
//! It is written where members change, from the members alone, so that it is the same everywhere and moves at the
//! revision it tells as its version. As long as no member serves such clients it is empty. Whoever may write it
//! can put something else there; the next change of members puts it right.

use bytes::Bytes;
use tidelock_model::{Event, Member, MemberRole, Revision};

use crate::State;
use crate::znodes::draft::Draft;
use crate::znodes::paths;
use crate::znodes::record::{Znode, data_length};

impl State {
    /// What it is to hold if it is written at this revision.
    pub(super) fn config_text(&self, at: Revision) -> Bytes {
        let lines = self.server_lines();
        if lines.is_empty() { Bytes::new() } else { Bytes::from(format!("{lines}version={:x}", at.0)) }
    }

    fn server_lines(&self) -> String {
        let mut servers: Vec<(u64, String)> = self.members.by_id.values().filter_map(server_line).collect();
        servers.sort_unstable();
        servers.into_iter().map(|(_, line)| line).collect()
    }

    /// Brings it up to date, if it is there and says something else about the members.
    pub(crate) fn refresh_config(&mut self, events: &mut Vec<Event>) {
        let Some(item) = paths::node_key(paths::CONFIG).and_then(|key| self.keyspace.get(&key)) else { return };
        let (znode, held) = (Znode::read(&item.record), Znode::read_data(&item.record).unwrap_or_default());
        let lines_end = held.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if held[..lines_end] == *self.server_lines().as_bytes() {
            return;
        }
        let mut draft = Draft::new(self);
        let text = self.config_text(draft.revision);
        // So many members would have to be added that the log could not hold them.
        let Ok(data_length) = data_length(Some(&text)) else { return };
        let (modified, modified_ms) = (draft.revision, draft.now_ms());
        let znode = Znode { modified, version: znode.version + 1, modified_ms, data_length, ..znode };
        draft.put(paths::CONFIG, znode, Some(text));
        let changes = draft.finish();
        self.carry_out_changes(changes, events);
    }
}

fn server_line(member: &Member) -> Option<(u64, String)> {
    let server = member.zookeeper.as_ref()?;
    let part = match member.role {
        MemberRole::Voter => "participant",
        MemberRole::Learner => "observer",
    };
    let (number, election, client) = (server.number, server.election_port, &server.client_address);
    let peer = member.peer_addresses.first().map_or("", String::as_str);
    let clients = if client.is_empty() { String::new() } else { format!(";{client}") };
    Some((number, format!("server.{number}={peer}:{election}:{part}{clients}\n")))
}

#[cfg(test)]
mod tests {
    use tidelock_model::{
        Command, LogIndex, Member, MemberChange, MemberRole, NodeId, ZnodeEvent, ZnodeFound, ZnodeQuery, ZnodeRead,
        ZookeeperServer,
    };

    use crate::testing::Machine;

    fn member(id: u64) -> Member {
        let zookeeper =
            Some(ZookeeperServer { number: id, election_port: 3888, client_address: format!("10.0.0.{id}:2181") });
        Member {
            id: NodeId(id),
            name: format!("server.{id}"),
            peer_addresses: vec![format!("h{id}:2888")],
            client_urls: vec![],
            role: MemberRole::Voter,
            zookeeper,
        }
    }

    fn config(machine: &Machine) -> (String, i32, u64) {
        let query = ZnodeQuery { identities: vec![], reads: vec![ZnodeRead::Data("/zookeeper/config".into())] };
        match machine.state.read_znodes(&query).pop() {
            Some(Ok(ZnodeFound::Data { data: Some(data), stat })) => {
                (String::from_utf8(data.to_vec()).unwrap(), stat.version, stat.modified.0)
            }
            other => panic!("{other:?}"),
        }
    }

    fn line(id: u64, part: &str) -> String {
        format!("server.{id}=h{id}:2888:3888:{part};10.0.0.{id}:2181\n")
    }

    /// Clients that follow the members by watching this znode must see every change of them, once, with the text
    /// that ZooKeeper would show, and the version that a reconfig must name.
    #[test]
    fn it_changes_with_the_members_and_tells_who_watches() {
        let mut machine = Machine::new();
        let unserved = |id| Member { zookeeper: None, ..member(id) };
        machine.state.bootstrap_members(vec![unserved(1), unserved(2)]);
        machine.command(Command::PublishMember(member(2))).result.unwrap();
        assert_eq!(machine.state.revision().0, 1, "without sessions, no revision is taken");
        machine.open_session();
        let at = machine.state.revision().0;
        // Nobody has changed it yet, so it shows no zxid, as all that is there from the start.
        assert_eq!(config(&machine), (format!("{}version={at:x}", line(2, "participant")), 0, 0));

        let told = machine.commands(vec![Command::PublishMember(member(1))]).events;
        assert_eq!(
            told.iter().filter_map(ZnodeEvent::of).collect::<Vec<_>>(),
            [ZnodeEvent::DataChanged("/zookeeper/config".into())]
        );
        let both = line(1, "participant") + &line(2, "participant");
        assert_eq!(config(&machine), (format!("{both}version={:x}", at + 1), 1, at + 1));
        let told = machine.commands(vec![Command::PublishMember(member(1))]).events;
        assert_eq!((told.len(), machine.state.revision().0), (0, at + 1), "nothing new is nothing told");

        let next = LogIndex(machine.state.applied().0 + 1);
        let learner = Member { role: MemberRole::Learner, name: String::new(), ..member(30) };
        let effects = machine.state.apply_membership(next, &MemberChange::Add(learner));
        assert_eq!(effects.events.len(), 1);
        assert_eq!(config(&machine).0, format!("{both}{}version={:x}", line(30, "observer"), at + 2));
        machine.state.apply_membership(next.next(), &MemberChange::Promote(NodeId(30)));
        assert_eq!(config(&machine).0, format!("{both}{}version={:x}", line(30, "participant"), at + 3));
        machine.state.apply_membership(next.next().next(), &MemberChange::Remove(NodeId(30)));
        assert_eq!(config(&machine), (format!("{both}version={:x}", at + 4), 4, at + 4));
    }
}
