//! What became of a command.

use crate::codec::{DecodeError, Reader, Wire, put_varint};
use crate::limits::{TXN_DEPTH_MAX, ZNODE_REQUESTS_MAX};
use crate::{
    AuthRefusal, KeyValue, LeaseId, LogIndex, NativeAnswer, NativeError, Record, Revision, SessionAnswer, ZnodeOutcome,
};

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
    /// To [`crate::Command::SetAlarm`].
    AlarmSet {
        /// Whether the alarm was raised before.
        was_raised: bool,
    },
    /// To [`crate::ZnodeCommand::Requests`]: one for each, in order.
    Znodes(Vec<ZnodeOutcome>),
    /// To [`crate::ZnodeCommand::OpenSession`] and [`crate::ZnodeCommand::AttachSession`].
    Session(SessionAnswer),
    /// To [`crate::Command::Native`].
    Native(NativeAnswer),
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
    /// A raised alarm says that space is short, and the command could take more.
    #[error("an alarm says that space is short; delete keys, compact, then lower the alarm")]
    NoSpace,
    /// A raised alarm says that the data cannot be trusted.
    #[error("an alarm says that the data cannot be trusted; restore it, then lower the alarm")]
    Corrupt,
    /// The caller may not do that, or a change of users and roles makes no sense.
    #[error(transparent)]
    Auth(#[from] AuthRefusal),
    /// What a native session asked for cannot be.
    #[error(transparent)]
    Native(#[from] NativeError),
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

/// Every reason a command is called invalid for. The encoding stores the position, so that the text
/// is the same static string after a restart; append only.
const INVALID_REASONS: [&str; 10] = [
    "it is malformed",
    "the key is empty",
    "the value is too large",
    "a lease needs an id that is not zero",
    "its transactions are nested too deep",
    "a read must not write",
    "its proposer's term is over",
    "it was carried out already",
    "the key is too long",
    "too many alarms are raised",
];

impl Refusal {
    /// A put to the empty key, which is only a range bound.
    pub const EMPTY_KEY: Refusal = Refusal::Invalid { why: INVALID_REASONS[1] };
    /// A value over [`crate::limits::VALUE_BYTES_MAX`].
    pub const VALUE_TOO_LARGE: Refusal = Refusal::Invalid { why: INVALID_REASONS[2] };
    /// A lease with the id that means "no lease".
    pub const LEASE_ID_ZERO: Refusal = Refusal::Invalid { why: INVALID_REASONS[3] };
    /// Transactions nested beyond [`TXN_DEPTH_MAX`].
    pub const NESTED_TOO_DEEP: Refusal = Refusal::Invalid { why: INVALID_REASONS[4] };
    /// A writing transaction where only reads are taken.
    pub const READ_MUST_NOT_WRITE: Refusal = Refusal::Invalid { why: INVALID_REASONS[5] };
    /// An expiry proposed in an earlier term than it was committed in.
    pub const TERM_IS_OVER: Refusal = Refusal::Invalid { why: INVALID_REASONS[6] };
    /// A second copy of a proposal; its origin was answered when the first was carried out.
    pub const CARRIED_OUT_ALREADY: Refusal = Refusal::Invalid { why: INVALID_REASONS[7] };
    /// A key over [`crate::limits::KEY_BYTES_MAX`].
    pub const KEY_TOO_LONG: Refusal = Refusal::Invalid { why: INVALID_REASONS[8] };
    /// An alarm beyond [`crate::limits::ALARMS_MAX`].
    pub const TOO_MANY_ALARMS: Refusal = Refusal::Invalid { why: INVALID_REASONS[9] };
}

fn put_items(out: &mut Vec<u8>, items: &[KeyValue]) {
    put_varint(out, items.len() as u64);
    items.iter().for_each(|item| item.encode(out));
}

/// Reads a list whose length the input itself bounds: every element takes at least a byte.
fn list<T: Wire>(input: &mut Reader) -> Result<Vec<T>, DecodeError> {
    let count = input.count("the number of items", usize::MAX)?;
    let mut items = Vec::new();
    for _ in 0..count {
        items.push(T::decode(input)?);
    }
    Ok(items)
}

impl Wire for Outcome {
    fn encode(&self, out: &mut Vec<u8>) {
        self.revision.encode(out);
        self.index.encode(out);
        match &self.result {
            Ok(answer) => {
                out.push(1);
                answer.encode(out);
            }
            Err(refusal) => {
                out.push(0);
                refusal.encode(out);
            }
        }
    }
    fn decode(input: &mut Reader) -> Result<Outcome, DecodeError> {
        let revision = Revision::decode(input)?;
        let index = LogIndex::decode(input)?;
        let result = if input.flag()? { Ok(Answer::decode(input)?) } else { Err(Refusal::decode(input)?) };
        Ok(Outcome { revision, index, result })
    }
}

impl Wire for Answer {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Answer::Done => out.push(1),
            Answer::Op(answer) => {
                out.push(2);
                answer.encode(out);
            }
            Answer::LeaseGranted { id, ttl_s } => {
                out.push(3);
                id.encode(out);
                put_varint(out, u64::from(*ttl_s));
            }
            Answer::AlarmSet { was_raised } => {
                out.push(4);
                out.push(u8::from(*was_raised));
            }
            Answer::Znodes(outcomes) => {
                out.push(5);
                put_varint(out, outcomes.len() as u64);
                outcomes.iter().for_each(|outcome| outcome.encode(out));
            }
            Answer::Session(answer) => {
                out.push(6);
                answer.encode(out);
            }
            Answer::Native(answer) => {
                out.push(7);
                answer.encode(out);
            }
        }
    }
    fn decode(input: &mut Reader) -> Result<Answer, DecodeError> {
        Ok(match input.byte()? {
            1 => Answer::Done,
            2 => Answer::Op(OpAnswer::decode(input)?),
            3 => Answer::LeaseGranted { id: LeaseId::decode(input)?, ttl_s: input.varint32()? },
            4 => Answer::AlarmSet { was_raised: input.flag()? },
            5 => {
                let count = input.count("the number of outcomes", ZNODE_REQUESTS_MAX)?;
                Answer::Znodes((0..count).map(|_| ZnodeOutcome::decode(input)).collect::<Result<_, _>>()?)
            }
            6 => Answer::Session(SessionAnswer::decode(input)?),
            7 => Answer::Native(NativeAnswer::decode(input)?),
            tag => return Err(DecodeError::UnknownTag { what: "answer", tag }),
        })
    }
}

impl Wire for OpAnswer {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            OpAnswer::Put { previous } => {
                out.push(1);
                previous.encode(out);
            }
            OpAnswer::Delete { deleted, previous } => {
                out.push(2);
                put_varint(out, *deleted);
                put_items(out, previous);
            }
            OpAnswer::Range(answer) => {
                out.push(3);
                answer.encode(out);
            }
            OpAnswer::Txn { succeeded, answers } => {
                out.push(4);
                out.push(u8::from(*succeeded));
                put_varint(out, answers.len() as u64);
                answers.iter().for_each(|answer| answer.encode(out));
            }
        }
    }
    fn decode(input: &mut Reader) -> Result<OpAnswer, DecodeError> {
        Ok(match input.byte()? {
            1 => OpAnswer::Put { previous: Option::decode(input)? },
            2 => OpAnswer::Delete { deleted: input.varint()?, previous: list(input)? },
            3 => OpAnswer::Range(RangeAnswer::decode(input)?),
            4 => {
                let succeeded = input.flag()?;
                let answers = input.nested(TXN_DEPTH_MAX, list)?;
                OpAnswer::Txn { succeeded, answers }
            }
            tag => return Err(DecodeError::UnknownTag { what: "operation answer", tag }),
        })
    }
}

impl Wire for RangeAnswer {
    fn encode(&self, out: &mut Vec<u8>) {
        put_items(out, &self.items);
        put_varint(out, self.count);
        out.push(u8::from(self.more));
    }
    fn decode(input: &mut Reader) -> Result<RangeAnswer, DecodeError> {
        Ok(RangeAnswer { items: list(input)?, count: input.varint()?, more: input.flag()? })
    }
}

impl Wire for Refusal {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Refusal::KeyNotFound => out.push(1),
            Refusal::LeaseNotFound => out.push(2),
            Refusal::LeaseExists => out.push(3),
            Refusal::Compacted { asked, oldest } => {
                out.push(4);
                asked.encode(out);
                oldest.encode(out);
            }
            Refusal::FutureRevision { asked, now } => {
                out.push(5);
                asked.encode(out);
                now.encode(out);
            }
            Refusal::Invalid { why } => {
                let reason = INVALID_REASONS.iter().position(|reason| reason == why).unwrap_or(0);
                out.push(6);
                put_varint(out, reason as u64);
            }
            Refusal::NoSpace => out.push(7),
            Refusal::Corrupt => out.push(8),
            Refusal::Auth(refusal) => {
                out.push(9);
                refusal.encode(out);
            }
            Refusal::Native(error) => {
                out.push(10);
                error.encode(out);
            }
        }
    }
    fn decode(input: &mut Reader) -> Result<Refusal, DecodeError> {
        Ok(match input.byte()? {
            1 => Refusal::KeyNotFound,
            2 => Refusal::LeaseNotFound,
            3 => Refusal::LeaseExists,
            4 => Refusal::Compacted { asked: Revision::decode(input)?, oldest: Revision::decode(input)? },
            5 => Refusal::FutureRevision { asked: Revision::decode(input)?, now: Revision::decode(input)? },
            6 => {
                let reason = input.byte()?;
                let why = INVALID_REASONS.get(usize::from(reason)).copied();
                Refusal::Invalid { why: why.ok_or(DecodeError::UnknownTag { what: "reason", tag: reason })? }
            }
            7 => Refusal::NoSpace,
            8 => Refusal::Corrupt,
            9 => Refusal::Auth(AuthRefusal::decode(input)?),
            10 => Refusal::Native(NativeError::decode(input)?),
            tag => return Err(DecodeError::UnknownTag { what: "refusal", tag }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Key, RecordMeta, Space};

    /// A remembered outcome travels in snapshots: a retry must get the same answer on a node that was
    /// restored from one as on a node that saw the request (H25).
    #[test]
    fn an_outcome_survives_the_round_trip() {
        let meta = RecordMeta { created: Revision(2), modified: Revision(9), version: 3, lease: LeaseId(-4), sub: 1 };
        let item = KeyValue { key: Key::new(Space::User, b"k"), record: Record::new(meta, b"value") };
        let range = RangeAnswer { items: vec![item.clone()], count: 7, more: true };
        let answers = vec![
            OpAnswer::Put { previous: Some(item.clone()) },
            OpAnswer::Delete { deleted: 1, previous: vec![item] },
            OpAnswer::Range(range),
            OpAnswer::Txn { succeeded: false, answers: vec![OpAnswer::PUT_DONE] },
        ];
        let results = [
            Ok(Answer::Done),
            Ok(Answer::Op(OpAnswer::Txn { succeeded: true, answers })),
            Ok(Answer::LeaseGranted { id: LeaseId(5), ttl_s: 60 }),
            Err(Refusal::KeyNotFound),
            Err(Refusal::LeaseNotFound),
            Err(Refusal::LeaseExists),
            Err(Refusal::Compacted { asked: Revision(1), oldest: Revision(2) }),
            Err(Refusal::FutureRevision { asked: Revision(3), now: Revision(2) }),
            Err(Refusal::TERM_IS_OVER),
            Ok(Answer::AlarmSet { was_raised: true }),
            Err(Refusal::NoSpace),
            Err(Refusal::Corrupt),
            Err(Refusal::Auth(AuthRefusal::NoUser)),
            Err(Refusal::Auth(AuthRefusal::TooMany)),
            Err(Refusal::TOO_MANY_ALARMS),
        ];
        for result in results {
            let outcome = Outcome { revision: Revision(11), index: LogIndex(12), result };
            assert_eq!(Outcome::from_bytes(outcome.to_bytes().into()), Ok(outcome));
        }
    }
}
