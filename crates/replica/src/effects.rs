//! What goes into a replica and what it wants done. Plain data: whoever runs the replica (the node's
//! threads, or a simulator) performs the effects and reports back.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use tidelock_model::{LeaseId, LeaseInfo, LogIndex, LogTime, Member, MemberChange, Members, NodeId, Term};

use crate::consensus::{Fetch, Ready, Role, SnapshotWanted};

/// Names a caller that waits for something; chosen by whoever runs the replica.
pub type Token = u64;

/// Something agreed on, to be carried out in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Committed {
    /// An entry without content: a new leader's first.
    Nothing {
        /// Its index.
        index: LogIndex,
        /// Its term.
        term: Term,
    },
    /// Commands.
    Batch {
        /// Its index.
        index: LogIndex,
        /// Its term.
        term: Term,
        /// An encoded [`tidelock_model::Batch`].
        bytes: Bytes,
    },
    /// A change of members.
    Membership {
        /// Its index.
        index: LogIndex,
        /// Its term.
        term: Term,
        /// The change; `None` ends a joint configuration.
        change: Option<MemberChange>,
        /// Who votes from here on, for snapshots.
        voters: Bytes,
    },
}

impl Committed {
    /// Its index.
    #[must_use]
    pub fn index(&self) -> LogIndex {
        match self {
            Committed::Nothing { index, .. } | Committed::Batch { index, .. } | Committed::Membership { index, .. } => {
                *index
            }
        }
    }

    /// Its term.
    #[must_use]
    pub fn term(&self) -> Term {
        match self {
            Committed::Nothing { term, .. } | Committed::Batch { term, .. } | Committed::Membership { term, .. } => {
                *term
            }
        }
    }
}

/// A wish of a client at this node.
#[derive(Debug)]
pub enum Call {
    /// Put an encoded [`tidelock_model::Proposal`] through the log. `number` is its origin's.
    Propose {
        /// The proposal's number at this node.
        number: u64,
        /// The encoded proposal.
        bytes: Bytes,
    },
    /// Tell when this node's state holds everything acknowledged before now.
    Read(Token),
    /// Look at a lease on the leader, and renew it if asked to.
    Lease(LeaseCall),
    /// Renew many leases on the leader.
    Renew(Renewal),
    /// Change the members.
    ChangeMembers {
        /// Who waits.
        token: Token,
        /// The change.
        change: MemberChange,
    },
    /// Hand leadership over.
    Transfer {
        /// Who waits.
        token: Token,
        /// To whom.
        to: NodeId,
    },
}

/// A question about a lease, for the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseCall {
    /// Who waits.
    pub token: Token,
    /// Which lease.
    pub id: LeaseId,
    /// Whether to renew it.
    pub renew: bool,
}

/// A wish to renew many leases, for the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Who waits.
    pub token: Token,
    /// Which leases, ascending; no more than [`crate::RENEWALS_MAX`].
    pub leases: Vec<LeaseId>,
}

/// The answer to a [`Renewal`]: all leases that are not named were renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewalReply {
    /// Who waits.
    pub token: Token,
    /// Those that do not exist (any more), ascending.
    pub gone: Vec<LeaseId>,
    /// Those whose end was proposed and is not decided, ascending: neither renewed nor over.
    pub ending: Vec<LeaseId>,
}

/// An answer about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseReply {
    /// Who waits.
    pub token: Token,
    /// The lease; `None` if there is none.
    pub info: Option<LeaseInfo>,
}

/// What happened, told to a replica.
pub enum Input {
    /// A client wants something.
    Call(Call),
    /// A frame from a peer.
    Frame {
        /// From whom.
        from: NodeId,
        /// Its content.
        bytes: Bytes,
    },
    /// One heartbeat interval passed.
    Tick {
        /// The wall clock, to stamp entries with.
        now: LogTime,
    },
    /// A [`Ready`] of this number, and all before it, is durable.
    Persisted {
        /// Which.
        number: u64,
    },
    /// Entries up to `index` were carried out.
    Applied {
        /// Up to where.
        index: LogIndex,
        /// Numbers of this node's proposals among them. As they are given out one after the other, these are few.
        done: Vec<RangeInclusive<u64>>,
    },
    /// The lease clock of this leader wants leases to end: an encoded proposal.
    Expire {
        /// The term the clock believes it leads in.
        term: Term,
        /// An encoded [`tidelock_model::Proposal`].
        bytes: Bytes,
    },
    /// Answers of the lease clock to a follower's calls.
    LeaseReplies {
        /// Whose calls.
        to: NodeId,
        /// The answers.
        replies: Vec<LeaseReply>,
    },
    /// The lease clock's answer to a batch of renewals.
    Renewed {
        /// Whose batch.
        to: NodeId,
        /// The answer.
        reply: RenewalReply,
    },
    /// The state's digest after `index`, to be compared with the other members'.
    Digest {
        /// After which index.
        index: LogIndex,
        /// The digest.
        digest: u128,
    },
    /// The journal read entries back.
    Fetched {
        /// What was asked for.
        fetch: Fetch,
        /// The entries; none if it failed.
        entries: Vec<tidelock_model::LogEntry>,
    },
    /// The journal now starts at this entry.
    Trimmed {
        /// Its first entry.
        first_index: LogIndex,
    },
    /// A snapshot of this node's state is durable.
    SnapshotTaken {
        /// Its index.
        index: LogIndex,
        /// The term of that entry.
        term: Term,
        /// Who votes as of it.
        voters: Bytes,
    },
    /// A snapshot was delivered to a follower, or could not be.
    SnapshotSent {
        /// To whom.
        to: NodeId,
        /// Whether it arrived.
        delivered: bool,
    },
    /// A snapshot from the leader was received whole; this is the message that came with it.
    SnapshotReceived {
        /// From whom.
        from: NodeId,
        /// The message.
        message: Bytes,
    },
    /// The state was replaced by the snapshot of a [`Task::Install`].
    Installed {
        /// Its index.
        index: LogIndex,
        /// The members as of it.
        members: Members,
    },
    /// Whether this node's disk is full, told about once a second.
    Space {
        /// Whether it is.
        full: bool,
    },
    /// Messages to this peer are being lost.
    LinkDown {
        /// Which.
        peer: NodeId,
    },
    /// The connection from this peer ended, and it takes no new one: its process is gone, as far as can be seen from
    /// here. Said at most once for each time there was a connection.
    PeerGone {
        /// Which.
        peer: NodeId,
    },
    /// Every other founder has taken note of this node's disk. A founder that holds nothing yet makes no
    /// promise before this (H21).
    Introduced,
    /// This node is about to stop: hand leadership over if it leads.
    StepDown,
}

/// Something for the thread that owns the state, to be done in order.
#[derive(Debug)]
pub enum Task {
    /// Carry these out.
    Apply(Vec<Committed>),
    /// Tell these readers that the state is fresh enough.
    ReadsReady(Vec<Token>),
    /// Answer these calls about leases; this node leads and everything agreed before was applied.
    LeaseCalls {
        /// Who asked; this node itself or a follower.
        from: NodeId,
        /// What.
        calls: Vec<LeaseCall>,
    },
    /// Renew these leases; as above.
    Renew {
        /// Who asked; this node itself or a follower.
        from: NodeId,
        /// What.
        renewal: Arc<Renewal>,
    },
    /// This node began to lead in that term, or stopped leading.
    Leading(Option<Term>),
    /// Replace the state with the snapshot received for this index.
    Install {
        /// Its index.
        index: LogIndex,
        /// Its term.
        term: Term,
    },
}

/// Why a caller gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// No answer in time; a write may or may not have happened.
    TimedOut,
    /// No leader in time; nothing was sent anywhere.
    NoLeader,
}

/// An answer to a waiting caller.
#[derive(Debug)]
pub enum Reply {
    /// A proposal of this number failed.
    ProposalFailed {
        /// Its number.
        number: u64,
        /// Why.
        why: CallFailure,
    },
    /// A read failed.
    ReadFailed {
        /// Who waits.
        token: Token,
        /// Why.
        why: CallFailure,
    },
    /// A call about a lease got no answer in time.
    LeaseFailed {
        /// Who waits.
        token: Token,
    },
    /// A lease call answered by the leader.
    Lease(LeaseReply),
    /// A batch of renewals got no answer in time.
    RenewalFailed {
        /// Who waits.
        token: Token,
    },
    /// A batch of renewals answered by the leader.
    Renewed(RenewalReply),
    /// A change of members was carried out or refused.
    Members {
        /// Who waits.
        token: Token,
        /// The members after it, or why not.
        result: Result<Vec<Member>, MemberRefusal>,
    },
    /// A transfer succeeded or did not.
    Transferred {
        /// Who waits.
        token: Token,
        /// Whether the other leads now.
        result: Result<(), MemberRefusal>,
    },
}

/// Why members or leadership did not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberRefusal {
    /// The member exists, or its id was used before.
    Exists(NodeId),
    /// A peer address is another member's.
    AddressTaken(String),
    /// No such member.
    NotFound(NodeId),
    /// Not a learner, or not a voter.
    WrongRole(NodeId),
    /// The learner has to catch up first.
    LearnerBehind {
        /// Which.
        id: NodeId,
        /// By how many entries.
        behind: u64,
    },
    /// No healthy majority would be left.
    WouldLoseQuorum,
    /// Another change is under way.
    Busy,
    /// The leader itself is to be removed and hands leadership over first: ask the next one. Between members
    /// only; callers never see it.
    HandingOver,
    /// No leader, or no answer, in time.
    TimedOut,
}

/// Why a node must stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fatal {
    /// It was removed from the cluster.
    #[error("this node was removed from the cluster")]
    Removed,
    /// Its peers knew it with another disk.
    #[error(
        "this member was known to its peers with another disk, and what it had promised them is lost with that; \
         remove the member and let it join as a new one"
    )]
    LostDisk,
    /// Its log is shorter than what it acknowledged.
    #[error("{0}; remove its data directory and add it again as a new member")]
    LostLog(crate::consensus::PeerFault),
    /// A majority of the members computed another state from the same log.
    #[error(
        "the state after entry {index} differs from that of a majority of the members; \
         remove this node's data directory and add it again as a new member"
    )]
    Diverged {
        /// After which entry.
        index: LogIndex,
    },
}

/// Where the node stands, for status and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its part.
    pub role: Role,
    /// The leader it knows.
    pub leader: Option<NodeId>,
    /// The term.
    pub term: Term,
    /// Last index agreed on.
    pub committed: LogIndex,
    /// Times the leader changed since the start.
    pub leader_changes: u64,
    /// Whether the leader's disk is full: what makes the store grow will be refused.
    pub leader_full: bool,
    /// On the leader: the last index each other member holds, and whether it was heard of lately.
    pub progress: Vec<(NodeId, LogIndex, bool)>,
}

/// What a replica wants done, in this order: `frames`, `persist` (then its `send_after`), `tasks`,
/// `replies`, the rest.
#[derive(Default)]
pub struct Effects {
    /// Frames to send now.
    pub frames: Vec<(NodeId, Bytes)>,
    /// Things to make durable, in order. Only the parts about the disk are filled.
    pub persist: Vec<Ready>,
    /// For the state's owner, in order.
    pub tasks: Vec<Task>,
    /// For waiting callers.
    pub replies: Vec<Reply>,
    /// Followers that need a snapshot.
    pub snapshots: Vec<SnapshotWanted>,
    /// Entries to read back from the journal.
    pub fetches: Vec<Fetch>,
    /// A follower needs a snapshot and there is none recent enough: take one.
    pub take_snapshot: bool,
    /// The members changed: whom to talk to, where.
    pub members: Option<Vec<Member>>,
    /// The links to these peers carried something malformed and should be closed.
    pub faults: Vec<(NodeId, crate::consensus::PeerFault)>,
    /// The node must stop.
    pub fatal: Option<Fatal>,
}
