//! What the journal keeps and the consensus engine works on, free of either's own types.

use bytes::Bytes;

use crate::{LogIndex, NodeId, Term};

/// One entry of the replicated log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogEntry {
    /// Its position.
    pub index: LogIndex,
    /// The term of the leader that appended it.
    pub term: Term,
    /// What `payload` is; the consensus engine's own numbering.
    pub kind: u8,
    /// The content: a [`crate::Batch`], or empty.
    pub payload: Bytes,
    /// Beside the content: the [`crate::MemberChange`] of a membership entry, otherwise empty.
    pub context: Bytes,
}

/// What a node must remember to keep its word to its peers: the promise not to vote twice in a term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The latest term seen.
    pub term: Term,
    /// Who got this node's vote in it; zero is nobody.
    pub vote: NodeId,
    /// The last index known to be agreed on. May lag behind; never ahead.
    pub commit: LogIndex,
}
