//! What the admin API says, as JSON. The server ([`crate::admin`]) and our own commands
//! ([`crate::admin_client`]) share these types, so they cannot drift apart.
//!
//! Ids and digests are hex strings: JSON numbers lose bits above 2^53 in most readers. Counters and
//! revisions are numbers; they stay far below that.

use serde::{Deserialize, Serialize};
use tidelock_coordinator::{MemberError, Role, Status};
use tidelock_model::{ClusterId, Member, MemberRole, NodeId};

/// `GET /v1/status`: what a node knows of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StatusReport {
    pub(crate) version: String,
    pub(crate) name: String,
    pub(crate) cluster: String,
    pub(crate) node: String,
    pub(crate) role: String,
    pub(crate) leader: Option<String>,
    pub(crate) ready: bool,
    pub(crate) term: u64,
    pub(crate) committed: u64,
    pub(crate) applied: u64,
    /// Entries known to be agreed on but not carried out here yet.
    pub(crate) lag: u64,
    pub(crate) revision: u64,
    pub(crate) compacted: u64,
    pub(crate) digest: String,
    pub(crate) keys: u64,
    pub(crate) leases: u64,
    pub(crate) watchers: u64,
    pub(crate) data_bytes: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) disk_full: bool,
    pub(crate) proposals_waiting: u64,
    pub(crate) proposals_failed: u64,
    pub(crate) leader_changes: u64,
    pub(crate) peers: Vec<PeerReport>,
}

/// What a node knows of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PeerReport {
    pub(crate) node: String,
    pub(crate) connected: bool,
    pub(crate) matched: Option<u64>,
}

/// `GET /v1/members`, and the answer to every change of members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberList {
    pub(crate) cluster: String,
    pub(crate) members: Vec<MemberReport>,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberReport {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) peer_addresses: Vec<String>,
    pub(crate) client_urls: Vec<String>,
    pub(crate) role: String,
    /// Whether the answering node believes this member leads.
    #[serde(default)]
    pub(crate) leader: bool,
}

/// `POST /v1/members`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AddMember {
    pub(crate) peer_address: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Learners are the safe way in: they catch up before their vote counts.
    #[serde(default = "yes")]
    pub(crate) learner: bool,
}

fn yes() -> bool {
    true
}

/// The answer to `POST /v1/members`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberAdded {
    pub(crate) id: String,
    pub(crate) cluster: String,
    pub(crate) members: Vec<MemberReport>,
}

/// `POST /v1/leadership`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TransferLeadership {
    pub(crate) to: String,
}

/// Every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ErrorReport {
    pub(crate) error: String,
    pub(crate) hint: String,
    /// For programs: one word per thing to do next.
    #[serde(default)]
    pub(crate) code: String,
}

impl StatusReport {
    pub(crate) fn new(name: &str, status: &Status) -> StatusReport {
        StatusReport {
            version: env!("CARGO_PKG_VERSION").into(),
            name: name.into(),
            cluster: hex(status.cluster.0),
            node: hex(status.node.0),
            role: role_text(status.role).into(),
            leader: status.leader.map(|leader| hex(leader.0)),
            ready: status.is_ready(),
            term: status.term.0,
            committed: status.committed.0,
            applied: status.applied.0,
            lag: status.committed.0.saturating_sub(status.applied.0),
            revision: status.revision.0,
            compacted: status.compacted.0,
            digest: format!("{:032x}", status.digest),
            keys: status.keys,
            leases: status.leases,
            watchers: status.watchers,
            data_bytes: status.data_bytes,
            disk_bytes: status.disk_bytes,
            disk_full: status.disk_full,
            proposals_waiting: status.proposals_waiting,
            proposals_failed: status.proposals_failed,
            leader_changes: status.leader_changes,
            peers: status
                .peers
                .iter()
                .map(|peer| PeerReport {
                    node: hex(peer.node.0),
                    connected: peer.connected,
                    matched: peer.matched.map(|index| index.0),
                })
                .collect(),
        }
    }
}

impl MemberReport {
    pub(crate) fn new(member: &Member, leader: Option<NodeId>) -> MemberReport {
        MemberReport {
            id: hex(member.id.0),
            name: member.name.clone(),
            peer_addresses: member.peer_addresses.clone(),
            client_urls: member.client_urls.clone(),
            role: match member.role {
                MemberRole::Voter => "voter".into(),
                MemberRole::Learner => "learner".into(),
            },
            leader: leader == Some(member.id),
        }
    }

    /// The member this report is about, for a node that is about to join it.
    pub(crate) fn to_member(&self) -> Option<Member> {
        Some(Member {
            id: NodeId(parse_hex(&self.id)?),
            name: self.name.clone(),
            peer_addresses: self.peer_addresses.clone(),
            client_urls: self.client_urls.clone(),
            role: if self.role == "learner" { MemberRole::Learner } else { MemberRole::Voter },
            // What it is to ZooKeeper's clients it will learn from the log, as everybody does.
            zookeeper: None,
        })
    }

    /// Whether a node ever ran as this member: the first thing a node does is publish its URLs.
    pub(crate) fn ever_started(&self) -> bool {
        !self.client_urls.is_empty()
    }
}

impl MemberList {
    pub(crate) fn new(cluster: ClusterId, members: &[Member], leader: Option<NodeId>) -> MemberList {
        MemberList {
            cluster: hex(cluster.0),
            members: members.iter().map(|member| MemberReport::new(member, leader)).collect(),
        }
    }
}

/// The word for an error that programs go by, and what a person should do.
pub(crate) fn member_error_advice(error: &MemberError) -> (&'static str, &'static str) {
    match error {
        MemberError::Exists(_) => ("exists", "list the members; use a new id"),
        MemberError::AddressTaken(_) => {
            ("address-taken", "list the members; remove the one that has the address first, or use another address")
        }
        MemberError::NotFound(_) => ("not-found", "list the members and use an id from there"),
        MemberError::WrongRole(_) => {
            ("wrong-role", "list the members; only learners are promoted, and only voters can lead")
        }
        MemberError::LearnerBehind { .. } => ("learner-behind", "wait until it has caught up, then promote it again"),
        MemberError::WouldLoseQuorum => ("would-lose-quorum", "bring the members that are down back first"),
        MemberError::Denied(_) => ("denied", "come in as a user with the role root"),
        MemberError::Busy => ("busy", "wait a moment, then retry"),
        MemberError::OutcomeUnknown { .. } => ("outcome-unknown", "list the members before retrying"),
        MemberError::Stopping => ("stopping", "list the members at another one before retrying"),
    }
}

/// An id as the admin API writes it.
pub(crate) fn hex(id: u64) -> String {
    format!("{id:x}")
}

/// An id as people may write it; never zero, which is nobody's.
pub(crate) fn parse_hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).ok().filter(|id| *id != 0)
}

fn role_text(role: Role) -> &'static str {
    match role {
        Role::Leader => "leader",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Learner => "learner",
    }
}
