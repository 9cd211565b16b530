//! Why a call got no answer: one variant per thing the caller can do next.

use std::time::Duration;

use tidelock_model::{AuthRefusal, NodeId, Refusal};

/// Why a proposal got no outcome. A refusal by the state machine is an outcome, not an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Nothing was written: there is no leader to take it. Retry, here or elsewhere.
    #[error("no leader is known")]
    NoLeader,
    /// The entry may still be carried out. Only an idempotent request may be retried.
    #[error("no answer within {waited:?}; the write may or may not have happened")]
    OutcomeUnknown {
        /// How long was waited.
        waited: Duration,
    },
    /// Too much is waiting already. Nothing was written; back off, then retry.
    #[error("{waiting} proposals are already waiting; back off and retry")]
    Overloaded {
        /// How many.
        waiting: usize,
    },
    /// The command is larger than the log takes. Nothing was written; send less.
    #[error("the command has {bytes} bytes, {max} are allowed")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The caller may not do that. Nothing was written.
    #[error(transparent)]
    Denied(#[from] AuthRefusal),
    /// The disk is full. Nothing was written; deletes and compaction still work, and writes will
    /// again once there is space.
    #[error("the disk of node {node:x} is full; free space or delete keys, then retry")]
    NoSpace {
        /// Whose disk.
        node: NodeId,
    },
    /// This node is stopping. Nothing was written; go to another.
    #[error("the node is shutting down")]
    Stopping,
    /// This node stopped while the write was under way, which may still be carried out. Only an idempotent
    /// request may be retried.
    #[error("the node stopped before there was an answer; the write may or may not have happened")]
    Interrupted,
}

/// Why a read got no answer. Reads change nothing, so all of them may be retried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The read itself is wrong for the store's revisions; retrying will not help.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There is no leader to confirm freshness with.
    #[error("no leader is known")]
    NoLeader,
    /// A majority did not confirm in time.
    #[error("a majority did not confirm within {waited:?}")]
    Timeout {
        /// How long was waited.
        waited: Duration,
    },
    /// Too many reads are waiting; back off.
    #[error("{waiting} reads are already waiting; back off and retry")]
    Overloaded {
        /// How many.
        waiting: usize,
    },
    /// This node is stopping; the change may or may not have been made. List the members at another.
    #[error("the node is shutting down; list the members at another before retrying")]
    Stopping,
}

/// Why a change of members or leadership was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// The member to add exists already, or its id was used before.
    #[error("member {0:x} exists already or was removed; ids are never reused")]
    Exists(NodeId),
    /// A peer address is already another member's.
    #[error("peer address {0} belongs to another member")]
    AddressTaken(String),
    /// There is no such member.
    #[error("member {0:x} does not exist")]
    NotFound(NodeId),
    /// The member to promote is not a learner, or the target of a transfer is not a voter.
    #[error("member {0:x} has the wrong role for that")]
    WrongRole(NodeId),
    /// The learner is too far behind to be promoted; try again when it caught up.
    #[error("learner {id:x} is {behind} entries behind; promote it once it caught up")]
    LearnerBehind {
        /// Which.
        id: NodeId,
        /// How far.
        behind: u64,
    },
    /// Fewer healthy members than a majority would be left. Nothing was changed.
    #[error("the change would leave the cluster without a healthy majority")]
    WouldLoseQuorum,
    /// Another change is under way; retry when it is done.
    #[error("another change of members is under way")]
    Busy,
    /// The caller may not do that. Nothing was changed.
    #[error(transparent)]
    Denied(#[from] AuthRefusal),
    /// Only the leader can do that and this node does not know one, or lost it meanwhile; the change
    /// may or may not have been made. List the members before retrying.
    #[error("no answer from a leader within {waited:?}; list the members before retrying")]
    OutcomeUnknown {
        /// How long was waited.
        waited: Duration,
    },
    /// This node is stopping; the change may or may not have been made. List the members at another.
    #[error("the node is shutting down; list the members at another before retrying")]
    Stopping,
}
