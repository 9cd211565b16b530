//! What became of a command.

use crate::{KeyValue, LeaseId, LogIndex, Record, Revision};

/// The verdict on one command: decided in `apply`, the same on every replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The store's revision right after the command.
    pub revision: Revision,
    /// Where in the log it was decided.
    pub index: LogIndex,
    /// The answer, or why nothing was done.
    pub result: Result<Answer, Refusal>,
}

/// What a command that was carried out answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing beyond success.
    Done,
    /// To [`crate::Command::Write`].
    Op(OpAnswer),
    /// To [`crate::Command::LeaseGrant`].
    LeaseGranted {
        /// The lease.
        id: LeaseId,
        /// Its time to live in seconds.
        ttl_s: u32,
    },
}

/// What one operation answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpAnswer {
    /// To a put: what the key was before, if asked for.
    Put {
        /// The version replaced.
        previous: Option<KeyValue>,
    },
    /// To a delete.
    Delete {
        /// How many keys were deleted.
        deleted: u64,
        /// What they were, if asked for.
        previous: Vec<KeyValue>,
    },
    /// To a read.
    Range(RangeAnswer),
    /// To a transaction.
    Txn {
        /// Whether the compares held.
        succeeded: bool,
        /// One answer per operation of the branch taken.
        answers: Vec<OpAnswer>,
    },
}

/// What a range read found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeAnswer {
    /// The items, in the order asked for.
    pub items: Vec<KeyValue>,
    /// How many keys the range holds, whatever limit and bounds said.
    pub count: u64,
    /// Whether the limit cut the items short.
    pub more: bool,
}

/// Why a command was not carried out. It left no trace: no revision was consumed (R1).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Keep-value or keep-lease on a key that does not exist.
    #[error("the key does not exist")]
    KeyNotFound,
    /// The lease does not exist (any more).
    #[error("the lease does not exist")]
    LeaseNotFound,
    /// The lease id is taken.
    #[error("the lease exists already")]
    LeaseExists,
    /// The revision asked for was forgotten.
    #[error("revision {asked} was compacted; the oldest held is {oldest}")]
    Compacted {
        /// The revision asked for.
        asked: Revision,
        /// The oldest revision still readable.
        oldest: Revision,
    },
    /// The revision asked for does not exist yet.
    #[error("revision {asked} is in the future; now is {now}")]
    FutureRevision {
        /// The revision asked for.
        asked: Revision,
        /// The store's revision.
        now: Revision,
    },
    /// A command that no face may send; it reached the log all the same and was ignored.
    #[error("the command is invalid: {why}")]
    Invalid {
        /// What is wrong.
        why: &'static str,
    },
}

impl OpAnswer {
    /// A put's answer that tells nothing.
    pub const PUT_DONE: OpAnswer = OpAnswer::Put { previous: None };

    /// The version a put replaced, if it was asked for.
    #[must_use]
    pub fn previous_record(&self) -> Option<&Record> {
        match self {
            OpAnswer::Put { previous: Some(previous) } => Some(&previous.record),
            _ => None,
        }
    }
}
