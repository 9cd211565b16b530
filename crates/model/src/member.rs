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
    /// Several at once, by joint consensus: add these voters and remove those members.
    Replace {
        /// New voters.
        add: Vec<Member>,
        /// Members to remove.
        remove: Vec<NodeId>,
    },
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
                add.iter().for_each(|member| self.add(member));
                remove.iter().for_each(|id| self.remove(*id));
            }
        }
    }

    /// Takes over the name and client addresses a member published.
    pub fn publish(&mut self, published: &Member) {
        if let Some(member) = self.by_id.get_mut(&published.id) {
            member.name.clone_from(&published.name);
            member.client_urls.clone_from(&published.client_urls);
        }
    }

    fn add(&mut self, member: &Member) {
        if !self.removed.contains(&member.id) {
            self.by_id.entry(member.id).or_insert_with(|| member.clone());
        }
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
        out.push(self.role as u8);
    }
    fn decode(input: &mut Reader) -> Result<Member, DecodeError> {
        Ok(Member {
            id: NodeId::decode(input)?,
            name: input.text(MEMBER_TEXT_BYTES_MAX)?,
            peer_addresses: texts(input)?,
            client_urls: texts(input)?,
            role: role(input)?,
        })
    }
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
        let count = input.count("the number of members", 1024)?;
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
