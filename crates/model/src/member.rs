//! Who is in the cluster.

use std::collections::BTreeMap;

use crate::NodeId;
use crate::codec::{DecodeError, Reader, Wire, put_bytes, put_varint};
use crate::limits::{MEMBER_TEXT_BYTES_MAX, MEMBER_URLS_MAX};

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: NodeId,
    /// Its name; empty until the member started for the first time.
    pub name: String,
    /// Where its peers reach it, `host:port`.
    pub peer_addresses: Vec<String>,
    /// Where clients reach it, as URLs; empty until the member started for the first time.
    pub client_urls: Vec<String>,
    /// Voter or learner.
    pub role: MemberRole,
    /// What it is to ZooKeeper's clients; nothing as long as it does not serve them.
    pub zookeeper: Option<ZookeeperServer>,
}

/// What `server.N` of `/zookeeper/config` says of a member, beside its peer address and its part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZookeeperServer {
    /// The N. Zero asks for any that is free; no member has it.
    pub number: u64,
    /// Where a ZooKeeper would elect leaders. It is told and not opened.
    pub election_port: u16,
    /// Where clients are served, `host:port`; empty if that cannot be told.
    pub client_address: String,
}

/// Whether a member counts towards the majority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberRole {
    /// Votes and counts.
    Voter,
    /// Receives the log, does not count yet.
    Learner,
}

/// A change of who is in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// Add a learner or a voter.
    Add(Member),
    /// Make a learner a voter.
    Promote(NodeId),
    /// Remove a member for good; its id is never used again.
    Remove(NodeId),
    /// Give a member other peer addresses.
    Readdress {
        /// Which.
        id: NodeId,
        /// The new addresses.
        peer_addresses: Vec<String>,
        /// The part it has and keeps; filled in by the leader, whatever it was asked for.
        role: MemberRole,
    },
    /// Several at once, by joint consensus: add these members and remove those.
    Replace {
        /// New members, and present ones that get another part.
        add: Vec<Member>,
        /// Members to remove.
        remove: Vec<NodeId>,
    },
    /// A change to be made only if nobody changed the members meanwhile. The leader judges that when it is asked;
    /// the change in it is what comes into the log.
    IfStill {
        /// Who the members were, with their addresses and parts; what else is known of them does not count.
        members: Vec<Member>,
        /// What to do.
        change: Box<MemberChange>,
    },
}

impl MemberChange {
    /// The change without its condition.
    #[must_use]
    pub fn unconditional(&self) -> &MemberChange {
        match self {
            MemberChange::IfStill { change, .. } => change.unconditional(),
            change => change,
        }
    }
}

/// All members by id, and the ids that were removed and must not come back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Present.
    pub by_id: BTreeMap<NodeId, Member>,
    /// Removed; kept small: 8 bytes each.
    pub removed: Vec<NodeId>,
}

impl Members {
    /// Carries out `change`. What cannot be (a member that exists or was removed is added, an unknown
    /// one changed) is skipped: the log decides the same everywhere, and refusing is the door's task.
    pub fn apply(&mut self, change: &MemberChange) {
        match change {
            MemberChange::Add(member) => self.add(member),
            MemberChange::Promote(id) => {
                if let Some(member) = self.by_id.get_mut(id) {
                    member.role = MemberRole::Voter;
                }
            }
            MemberChange::Remove(id) => self.remove(*id),
            MemberChange::Readdress { id, peer_addresses, .. } => {
                if let Some(member) = self.by_id.get_mut(id) {
                    member.peer_addresses.clone_from(peer_addresses);
                }
            }
            MemberChange::Replace { add, remove } => {
                for member in add {
                    self.add(member);
                    self.by_id.entry(member.id).and_modify(|known| known.role = member.role);
                }
                remove.iter().for_each(|id| self.remove(*id));
            }
            // Whether the condition holds was judged before.
            MemberChange::IfStill { change, .. } => self.apply(change),
        }
    }

    /// Whether these are the members, in their parts and at their addresses.
    #[must_use]
    pub fn are_still(&self, members: &[Member]) -> bool {
        let is_same =
            |one: &Member, other: &Member| one.role == other.role && one.peer_addresses == other.peer_addresses;
        let is_there = |member: &Member| self.by_id.get(&member.id).is_some_and(|known| is_same(known, member));
        members.len() == self.by_id.len() && members.iter().all(is_there)
    }

    /// Takes over the name and client addresses a member published.
    pub fn publish(&mut self, published: &Member) {
        let zookeeper = self.numbered(published);
        if let Some(member) = self.by_id.get_mut(&published.id) {
            member.name.clone_from(&published.name);
            member.client_urls.clone_from(&published.client_urls);
            member.zookeeper = zookeeper;
        }
    }

    /// What a member is to ZooKeeper's clients, with a number that is no other member's: the one it asks for, else
    /// the one it has, else the smallest that is free.
    fn numbered(&self, asking: &Member) -> Option<ZookeeperServer> {
        let asked = asking.zookeeper.as_ref()?;
        let others = self.by_id.values().filter(|member| member.id != asking.id);
        let taken: Vec<u64> = others.filter_map(|member| Some(member.zookeeper.as_ref()?.number)).collect();
        let has = self.by_id.get(&asking.id).and_then(|member| member.zookeeper.as_ref());
        let is_free = |number: &u64| *number != 0 && !taken.contains(number);
        let wished = [asked.number, has.map_or(0, |has| has.number)].into_iter().find(is_free);
        let number = wished.or_else(|| (1..).find(is_free)).unwrap_or_default();
        Some(ZookeeperServer { number, ..asked.clone() })
    }

    fn add(&mut self, member: &Member) {
        if self.removed.contains(&member.id) {
            return;
        }
        let zookeeper = self.numbered(member);
        self.by_id.entry(member.id).or_insert_with(|| Member { zookeeper, ..member.clone() });
    }

    fn remove(&mut self, id: NodeId) {
        if self.by_id.remove(&id).is_some() {
            self.removed.push(id);
        }
    }
}

fn put_texts(out: &mut Vec<u8>, texts: &[String]) {
    put_varint(out, texts.len() as u64);
    for text in texts {
        put_bytes(out, text.as_bytes());
    }
}

fn texts(input: &mut Reader) -> Result<Vec<String>, DecodeError> {
    let count = input.count("the number of addresses", MEMBER_URLS_MAX)?;
    (0..count).map(|_| input.text(MEMBER_TEXT_BYTES_MAX)).collect()
}

impl Wire for Member {
    fn encode(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        put_bytes(out, self.name.as_bytes());
        put_texts(out, &self.peer_addresses);
        put_texts(out, &self.client_urls);
        match &self.zookeeper {
            None => out.push(self.role as u8),
            Some(server) => {
                out.push(self.role as u8 | SERVES_ZOOKEEPER);
                put_varint(out, server.number);
                put_varint(out, u64::from(server.election_port));
                put_bytes(out, server.client_address.as_bytes());
            }
        }
    }
    fn decode(input: &mut Reader) -> Result<Member, DecodeError> {
        let id = NodeId::decode(input)?;
        let name = input.text(MEMBER_TEXT_BYTES_MAX)?;
        let (peer_addresses, client_urls) = (texts(input)?, texts(input)?);
        let parts = input.byte()?;
        let role = match parts & !SERVES_ZOOKEEPER {
            0 => MemberRole::Voter,
            1 => MemberRole::Learner,
            tag => return Err(DecodeError::UnknownTag { what: "member role", tag }),
        };
        let zookeeper = (parts & SERVES_ZOOKEEPER != 0).then(|| server(input)).transpose()?;
        Ok(Member { id, name, peer_addresses, client_urls, role, zookeeper })
    }
}

/// More members than any cluster has.
const MEMBERS_MAX: usize = 1024;

/// Added to the byte of a member's part if the three fields of [`ZookeeperServer`] follow.
const SERVES_ZOOKEEPER: u8 = 2;

fn server(input: &mut Reader) -> Result<ZookeeperServer, DecodeError> {
    let number = input.varint()?;
    // A larger one, which nobody writes, reads as none.
    let election_port = u16::try_from(input.varint32()?).unwrap_or_default();
    Ok(ZookeeperServer { number, election_port, client_address: input.text(MEMBER_TEXT_BYTES_MAX)? })
}

fn role(input: &mut Reader) -> Result<MemberRole, DecodeError> {
    Ok(if input.flag()? { MemberRole::Learner } else { MemberRole::Voter })
}

impl Wire for MemberChange {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            MemberChange::Add(member) => {
                out.push(1);
                member.encode(out);
            }
            MemberChange::Promote(id) => {
                out.push(2);
                id.encode(out);
            }
            MemberChange::Remove(id) => {
                out.push(3);
                id.encode(out);
            }
            MemberChange::Readdress { id, peer_addresses, role } => {
                out.push(4);
                id.encode(out);
                put_texts(out, peer_addresses);
                out.push(*role as u8);
            }
            MemberChange::Replace { add, remove } => {
                out.push(5);
                put_varint(out, add.len() as u64);
                add.iter().for_each(|member| member.encode(out));
                put_varint(out, remove.len() as u64);
                remove.iter().for_each(|id| id.encode(out));
            }
            MemberChange::IfStill { members, change } => {
                out.push(6);
                put_varint(out, members.len() as u64);
                members.iter().for_each(|member| member.encode(out));
                change.encode(out);
            }
        }
    }
    fn decode(input: &mut Reader) -> Result<MemberChange, DecodeError> {
        /// More members than any cluster has; bounds what a malformed change can make us read.
        const CHANGES_MAX: usize = 64;
        Ok(match input.byte()? {
            1 => MemberChange::Add(Member::decode(input)?),
            2 => MemberChange::Promote(NodeId::decode(input)?),
            3 => MemberChange::Remove(NodeId::decode(input)?),
            4 => MemberChange::Readdress {
                id: NodeId::decode(input)?,
                peer_addresses: texts(input)?,
                role: role(input)?,
            },
            5 => {
                let count = input.count("the number of members", CHANGES_MAX)?;
                let add = (0..count).map(|_| Member::decode(input)).collect::<Result<_, _>>()?;
                let count = input.count("the number of members", CHANGES_MAX)?;
                let remove = (0..count).map(|_| NodeId::decode(input)).collect::<Result<_, _>>()?;
                MemberChange::Replace { add, remove }
            }
            6 => {
                let count = input.count("the number of members", MEMBERS_MAX)?;
                let members = (0..count).map(|_| Member::decode(input)).collect::<Result<_, _>>()?;
                let change = Box::new(input.nested(2, MemberChange::decode)?);
                MemberChange::IfStill { members, change }
            }
            tag => return Err(DecodeError::UnknownTag { what: "member change", tag }),
        })
    }
}

impl Wire for Members {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.by_id.len() as u64);
        self.by_id.values().for_each(|member| member.encode(out));
        put_varint(out, self.removed.len() as u64);
        self.removed.iter().for_each(|id| id.encode(out));
    }
    fn decode(input: &mut Reader) -> Result<Members, DecodeError> {
        let count = input.count("the number of members", MEMBERS_MAX)?;
        let mut by_id = BTreeMap::new();
        for _ in 0..count {
            let member = Member::decode(input)?;
            by_id.insert(member.id, member);
        }
        let count = input.count("the number of removed members", 1 << 20)?;
        let removed = (0..count).map(|_| NodeId::decode(input)).collect::<Result<_, _>>()?;
        Ok(Members { by_id, removed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, number: u64) -> Member {
        Member {
            id: NodeId(id),
            name: format!("n{id}"),
            peer_addresses: vec![format!("h{id}:2888")],
            client_urls: vec![],
            role: MemberRole::Voter,
            zookeeper: Some(ZookeeperServer { number, election_port: 3888, client_address: format!("h{id}:2181") }),
        }
    }

    fn numbers(members: &Members) -> Vec<u64> {
        members.by_id.values().map(|member| member.zookeeper.as_ref().map_or(0, |server| server.number)).collect()
    }

    /// Two lines with one number are read as one server: clients would never find the other.
    #[test]
    fn no_two_members_get_the_same_number_and_none_loses_the_one_it_has() {
        let mut members = Members::default();
        for id in 1..=4 {
            members.apply(&MemberChange::Add(Member { zookeeper: None, ..member(id, 0) }));
        }
        members.publish(&member(1, 2));
        members.publish(&member(2, 0));
        members.publish(&member(3, 2));
        members.publish(&member(4, u64::MAX));
        assert_eq!(numbers(&members), [2, 1, 3, u64::MAX]);
        members.publish(&member(3, 0));
        members.publish(&member(1, 7));
        assert_eq!(numbers(&members), [7, 1, 3, u64::MAX]);
        members.apply(&MemberChange::Add(member(5, 1)));
        assert_eq!(numbers(&members), [7, 1, 3, u64::MAX, 2]);
    }

    /// Logs and snapshots of before must be read, and both kinds of members in them told apart.
    #[test]
    fn members_are_read_as_they_were_written() {
        for (serves, role) in [
            (true, MemberRole::Voter),
            (true, MemberRole::Learner),
            (false, MemberRole::Voter),
            (false, MemberRole::Learner),
        ] {
            let mut member = Member { role, ..member(9, 300) };
            if !serves {
                member.zookeeper = None;
            }
            assert_eq!(Member::from_bytes(member.to_bytes().into()), Ok(member));
        }
        let mut bytes = Member { zookeeper: None, ..member(9, 300) }.to_bytes();
        *bytes.last_mut().unwrap() = 4;
        assert!(Member::from_bytes(bytes.into()).is_err());
    }

    /// A change for members that are not those any more must not be taken for one that was asked for now.
    #[test]
    fn members_are_told_from_what_they_were_before() {
        let mut members = Members::default();
        let list = [member(1, 1), member(2, 2)];
        list.iter().for_each(|member| members.apply(&MemberChange::Add(member.clone())));
        assert!(members.are_still(&list.clone().map(|member| Member { zookeeper: None, ..member })));
        assert!(!members.are_still(&list[..1]) && !members.are_still(&[member(1, 1), member(3, 2)]));
        members.apply(&MemberChange::Replace {
            add: vec![Member { role: MemberRole::Learner, ..member(2, 2) }],
            remove: vec![],
        });
        assert!(!members.are_still(&list));
        let change = Box::new(MemberChange::Remove(NodeId(2)));
        let conditional = MemberChange::IfStill { members: list.to_vec(), change };
        assert_eq!(conditional.unconditional(), &MemberChange::Remove(NodeId(2)));
        assert_eq!(MemberChange::from_bytes(conditional.to_bytes().into()), Ok(conditional));
    }

    /// One change of several members may give a present one another part.
    #[test]
    fn replacing_changes_the_part_of_a_member_that_is_there_and_nothing_else() {
        let mut members = Members::default();
        members.apply(&MemberChange::Add(member(1, 4)));
        let add = vec![Member { role: MemberRole::Learner, name: "other".into(), ..member(1, 9) }, member(2, 0)];
        members.apply(&MemberChange::Replace { add, remove: vec![] });
        let one = &members.by_id[&NodeId(1)];
        assert_eq!((one.role, one.name.as_str()), (MemberRole::Learner, "n1"));
        assert_eq!(numbers(&members), [4, 1]);
    }
}
