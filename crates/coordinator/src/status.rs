//! What a node can tell about itself without asking anyone.

use tidelock_model::{ClusterId, LogIndex, NodeId, Revision, Term};

/// A node's part in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Leads.
    Leader,
    /// Follows.
    Follower,
    /// Seeks election.
    Candidate,
    /// Receives the log, does not vote.
    Learner,
}

/// A node's view of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The cluster.
    pub cluster: ClusterId,
    /// This node.
    pub node: NodeId,
    /// Its part.
    pub role: Role,
    /// The leader it knows.
    pub leader: Option<NodeId>,
    /// The current term.
    pub term: Term,
    /// Last index known to be agreed on.
    pub committed: LogIndex,
    /// Last index carried out here.
    pub applied: LogIndex,
    /// Whether this node has, since it started, carried out all that was agreed on before: only then it has again all
    /// that it had shown in its life before, for it does not write down how much that was.
    pub regained: bool,
    /// The store's revision here.
    pub revision: Revision,
    /// Oldest revision that can be read.
    pub compacted: Revision,
    /// Digest of the live state at `applied`; equal on all nodes at the same index (R5).
    pub digest: u128,
    /// Live keys.
    pub keys: u64,
    /// Live leases.
    pub leases: u64,
    /// Open watchers on this node.
    pub watchers: u64,
    /// Bytes of keys and values held, history included.
    pub data_bytes: u64,
    /// Bytes of journal and snapshots on disk.
    pub disk_bytes: u64,
    /// Whether the disk is full: growing writes are refused.
    pub disk_full: bool,
    /// Proposals waiting for an outcome at this node.
    pub proposals_waiting: u64,
    /// Times this node saw the leader change since it started.
    pub leader_changes: u64,
    /// Proposals that came in here and failed since the node started.
    pub proposals_failed: u64,
    /// The other members, as far as this node knows; complete on the leader.
    pub peers: Vec<PeerStatus>,
}

/// What is known of another member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Which.
    pub node: NodeId,
    /// Whether a link to it is up.
    pub connected: bool,
    /// On the leader: the last index it is known to hold.
    pub matched: Option<LogIndex>,
}

impl Status {
    /// Whether this node can serve: it knows a leader, has once asked it for all that was agreed on, and has caught up
    /// with what it knows is agreed since. A node that has not applied anything has just joined and was not sent the state yet.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        /// As many entries as a healthy node may be behind at a busy moment.
        const LAG_MAX: u64 = 5_000;
        self.leader.is_some()
            && self.regained
            && self.applied.0 > 0
            && self.committed.0.saturating_sub(self.applied.0) <= LAG_MAX
    }
}
