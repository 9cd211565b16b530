//! What can be asked of the replicated state. One client request is one [`Command`], decided in
//! `state::apply`; a face that would need to read first and write then needs a new variant here.

use bytes::Bytes;

use crate::codec::{DecodeError, Reader, Wire, put_bytes, put_varint};
use crate::limits::{TXN_DEPTH_MAX, TXN_OPS_MAX, VALUE_BYTES_MAX};
use crate::{
    Alarm, AuthCommand, Fencing, Key, KeyRange, Kind, LeaseId, LogIndex, Member, NativeCommand, Revision, Term,
    ZnodeCommand, native_keys,
};

/// A change to the replicated state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A put, a delete, or a transaction of several.
    Write(Op),
    /// Forget history up to and including `revision`, except what is visible at it.
    Compact {
        /// The oldest revision that stays readable.
        revision: Revision,
    },
    /// Create a lease.
    LeaseGrant {
        /// The id, chosen by the client or by the node that took the request; never zero.
        id: LeaseId,
        /// Time to live in seconds.
        ttl_s: u32,
    },
    /// End a lease and delete what it owns.
    LeaseRevoke {
        /// Which.
        id: LeaseId,
    },
    /// Sent by the leader alone: end leases that were not renewed in time. Each is judged again when
    /// applied, so that an expiry decided by a deposed leader, or meant for an earlier lease of the
    /// same id, has no effect.
    LeaseExpire {
        /// The proposer's term; must equal the entry's own.
        term: Term,
        /// Which, at most some thousands at a time.
        leases: Vec<LeaseExpiry>,
    },
    /// A member tells its name and client addresses.
    PublishMember(Member),
    /// Raise or lower an alarm.
    SetAlarm {
        /// Which.
        alarm: Alarm,
        /// Whether it shall be raised from now on.
        raised: bool,
    },
    /// Change users and roles.
    Auth(AuthCommand),
    /// Change sessions or znodes.
    Znode(ZnodeCommand),
    /// Change native sessions or what they hold.
    Native(NativeCommand),
}

/// One lease to end, if it is still the one that was meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseExpiry {
    /// Which.
    pub id: LeaseId,
    /// The log index at which that lease was granted: its incarnation.
    pub granted_at: LogIndex,
}

/// One operation on keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Set a key.
    Put(PutOp),
    /// Delete keys.
    Delete(DeleteOp),
    /// Read keys, inside a transaction.
    Range(RangeOp),
    /// If all compares hold do `success`, else `failure`.
    Txn(Box<Txn>),
}

/// Set a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutOp {
    /// Which.
    pub key: Key,
    /// To what.
    pub value: PutValue,
    /// Who shall own it.
    pub lease: PutLease,
    /// Whether to answer with what it was before.
    pub want_previous: bool,
}

/// The value a put stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutValue {
    /// This one.
    Set(Bytes),
    /// The one the key has; refused if it has none.
    Keep,
}

/// The lease a put leaves a key with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutLease {
    /// This one, or none.
    Set(LeaseId),
    /// The one the key has; refused if the key does not exist.
    Keep,
}

/// Delete keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteOp {
    /// Which.
    pub range: KeyRange,
    /// Whether to answer with what they were.
    pub want_previous: bool,
}

/// Read keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeOp {
    /// Which.
    pub range: KeyRange,
    /// As of which revision; `None` is now.
    pub at: Option<Revision>,
    /// At most this many items; zero is all.
    pub limit: u64,
    /// In which order; `None` is by key, ascending.
    pub sort: Option<Sort>,
    /// Only versions within these bounds.
    pub bounds: RevisionBounds,
    /// How much of each item is wanted.
    pub projection: Projection,
}

impl RangeOp {
    /// All of `range`, now.
    #[must_use]
    pub fn all(range: KeyRange) -> RangeOp {
        RangeOp {
            range,
            at: None,
            limit: 0,
            sort: None,
            bounds: RevisionBounds::default(),
            projection: Projection::Full,
        }
    }
}

/// Bounds on a version's revisions; zero is unbounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RevisionBounds {
    /// Modified at or after.
    pub modified_min: u64,
    /// Modified at or before.
    pub modified_max: u64,
    /// Created at or after.
    pub created_min: u64,
    /// Created at or before.
    pub created_max: u64,
}

impl RevisionBounds {
    /// Whether anything is bounded at all.
    #[must_use]
    pub fn is_unbounded(&self) -> bool {
        *self == RevisionBounds::default()
    }
}

/// An order for range answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort {
    /// By what.
    pub by: SortBy,
    /// Largest first.
    pub descending: bool,
}

/// What to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortBy {
    /// Key.
    Key,
    /// Version.
    Version,
    /// Create revision.
    Created,
    /// Modification revision.
    Modified,
    /// Value.
    Value,
}

/// How much of each item a range answer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// Everything.
    Full,
    /// Everything but the value.
    KeysOnly,
    /// Only how many there are.
    CountOnly,
}

/// If all `compares` hold do `success`, else `failure`, at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// The conditions.
    pub compares: Vec<Compare>,
    /// Done if they hold.
    pub success: Vec<Op>,
    /// Done if not.
    pub failure: Vec<Op>,
}

/// A condition that must hold for every key in a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// Which keys. A single key that does not exist compares as version, revisions and lease zero,
    /// and its value compares as unequal to everything.
    pub range: KeyRange,
    /// Actual `result` expected.
    pub result: CompareResult,
    /// What is compared, with what.
    pub target: CompareTarget,
}

impl Compare {
    /// Whether a fence lets a token through, and lets nothing older through once it did.
    #[must_use]
    pub fn admits(fencing: &Fencing) -> Compare {
        let range = KeyRange::single(native_keys::head(Kind::Fence, &fencing.fence));
        Compare { range, result: CompareResult::Equal, target: CompareTarget::Admits(fencing.token) }
    }
}

/// How the actual relates to the expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareResult {
    /// Equal.
    Equal,
    /// Greater.
    Greater,
    /// Less.
    Less,
    /// Not equal.
    NotEqual,
}

/// What a compare looks at, with the expected value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompareTarget {
    /// The version.
    Version(i64),
    /// The create revision.
    Created(i64),
    /// The modification revision.
    Modified(i64),
    /// The value.
    Value(Bytes),
    /// The lease.
    Lease(i64),
    /// The key is a fence ([`crate::native_keys::head`]), and holds if it lets this token through; the `result` is
    /// not asked. If the transaction's conditions hold, the fence lets nothing older through from then on (K4).
    Admits(u64),
}

impl Op {
    /// Whether this can change anything at all: a transaction of reads alone need not be logged.
    #[must_use]
    pub fn writes(&self) -> bool {
        match self {
            Op::Put(_) | Op::Delete(_) => true,
            Op::Range(_) => false,
            Op::Txn(txn) => txn.admits() || txn.success.iter().chain(&txn.failure).any(Op::writes),
        }
    }

    /// Whether this can make the store larger. What only frees space is let through when space is short.
    #[must_use]
    pub fn grows(&self) -> bool {
        match self {
            Op::Put(_) => true,
            Op::Delete(_) | Op::Range(_) => false,
            Op::Txn(txn) => txn.admits() || txn.success.iter().chain(&txn.failure).any(Op::grows),
        }
    }
}

impl Txn {
    /// Whether it has a token to show: a fence that lets it through remembers it.
    fn admits(&self) -> bool {
        self.compares.iter().any(|compare| matches!(compare.target, CompareTarget::Admits(_)))
    }
}

impl Command {
    /// Whether this can make the store larger (see [`Op::grows`]).
    #[must_use]
    pub fn grows(&self) -> bool {
        match self {
            Command::Write(op) => op.grows(),
            Command::LeaseGrant { .. } => true,
            Command::Znode(command) => command.grows(),
            Command::Native(command) => command.grows(),
            Command::Compact { .. }
            | Command::LeaseRevoke { .. }
            | Command::LeaseExpire { .. }
            | Command::PublishMember(_)
            | Command::SetAlarm { .. }
            | Command::Auth(_) => false,
        }
    }

    /// Whether this is how a cluster is looked after: taken also where too much else waits, since it may be what helps.
    #[must_use]
    pub fn is_upkeep(&self) -> bool {
        match self {
            Command::Compact { .. } | Command::PublishMember(_) | Command::SetAlarm { .. } | Command::Auth(_) => true,
            Command::Write(_)
            | Command::LeaseGrant { .. }
            | Command::LeaseRevoke { .. }
            | Command::LeaseExpire { .. }
            | Command::Znode(_)
            | Command::Native(_) => false,
        }
    }
}

impl Wire for Command {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Command::Write(op) => {
                out.push(1);
                op.encode(out);
            }
            Command::Compact { revision } => {
                out.push(2);
                revision.encode(out);
            }
            Command::LeaseGrant { id, ttl_s } => {
                out.push(3);
                id.encode(out);
                put_varint(out, u64::from(*ttl_s));
            }
            Command::LeaseRevoke { id } => {
                out.push(4);
                id.encode(out);
            }
            Command::LeaseExpire { term, leases } => {
                out.push(5);
                term.encode(out);
                put_varint(out, leases.len() as u64);
                for lease in leases {
                    lease.id.encode(out);
                    lease.granted_at.encode(out);
                }
            }
            Command::PublishMember(member) => {
                out.push(6);
                member.encode(out);
            }
            Command::SetAlarm { alarm, raised } => {
                out.push(7);
                alarm.encode(out);
                out.push(u8::from(*raised));
            }
            Command::Auth(command) => {
                out.push(8);
                command.encode(out);
            }
            Command::Znode(command) => {
                out.push(9);
                command.encode(out);
            }
            Command::Native(command) => {
                out.push(10);
                command.encode(out);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<Command, DecodeError> {
        Ok(match input.byte()? {
            1 => Command::Write(Op::decode(input)?),
            2 => Command::Compact { revision: Revision::decode(input)? },
            3 => Command::LeaseGrant { id: LeaseId::decode(input)?, ttl_s: input.varint32()? },
            4 => Command::LeaseRevoke { id: LeaseId::decode(input)? },
            5 => {
                let term = Term::decode(input)?;
                let count = input.count("the number of leases", 1 << 20)?;
                let one = |input: &mut Reader| {
                    Ok(LeaseExpiry { id: LeaseId::decode(input)?, granted_at: LogIndex::decode(input)? })
                };
                let leases = (0..count).map(|_| one(input)).collect::<Result<_, DecodeError>>()?;
                Command::LeaseExpire { term, leases }
            }
            6 => Command::PublishMember(Member::decode(input)?),
            7 => Command::SetAlarm { alarm: Alarm::decode(input)?, raised: input.flag()? },
            8 => Command::Auth(AuthCommand::decode(input)?),
            9 => Command::Znode(ZnodeCommand::decode(input)?),
            10 => Command::Native(NativeCommand::decode(input)?),
            tag => return Err(DecodeError::UnknownTag { what: "command", tag }),
        })
    }
}

impl Wire for Op {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Op::Put(put) => {
                out.push(1);
                put.encode(out);
            }
            Op::Delete(delete) => {
                out.push(2);
                delete.range.encode(out);
                out.push(u8::from(delete.want_previous));
            }
            Op::Range(range) => {
                out.push(3);
                range.encode(out);
            }
            Op::Txn(txn) => {
                out.push(4);
                txn.encode(out);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<Op, DecodeError> {
        Ok(match input.byte()? {
            1 => Op::Put(PutOp::decode(input)?),
            2 => Op::Delete(DeleteOp { range: KeyRange::decode(input)?, want_previous: input.flag()? }),
            3 => Op::Range(RangeOp::decode(input)?),
            4 => Op::Txn(Box::new(input.nested(TXN_DEPTH_MAX, Txn::decode)?)),
            tag => return Err(DecodeError::UnknownTag { what: "operation", tag }),
        })
    }
}

impl Wire for PutOp {
    fn encode(&self, out: &mut Vec<u8>) {
        // Bit 0: keep value, bit 1: keep lease, bit 2: previous wanted.
        let flags = u8::from(self.value == PutValue::Keep)
            | u8::from(self.lease == PutLease::Keep) << 1
            | u8::from(self.want_previous) << 2;
        out.push(flags);
        self.key.encode(out);
        if let PutValue::Set(value) = &self.value {
            put_bytes(out, value);
        }
        if let PutLease::Set(lease) = self.lease {
            lease.encode(out);
        }
    }

    fn decode(input: &mut Reader) -> Result<PutOp, DecodeError> {
        let flags = input.byte()?;
        if flags > 7 {
            return Err(DecodeError::UnknownTag { what: "put flags", tag: flags });
        }
        let key = Key::decode(input)?;
        let value = if flags & 1 != 0 { PutValue::Keep } else { PutValue::Set(input.bytes(VALUE_BYTES_MAX)?) };
        let lease = if flags & 2 != 0 { PutLease::Keep } else { PutLease::Set(LeaseId::decode(input)?) };
        Ok(PutOp { key, value, lease, want_previous: flags & 4 != 0 })
    }
}

impl Wire for RangeOp {
    fn encode(&self, out: &mut Vec<u8>) {
        self.range.encode(out);
        self.at.encode(out);
        put_varint(out, self.limit);
        out.push(match self.sort {
            None => 0,
            Some(sort) => 1 + ((sort.by as u8) << 1) + u8::from(sort.descending),
        });
        let bounds = &self.bounds;
        for bound in [bounds.modified_min, bounds.modified_max, bounds.created_min, bounds.created_max] {
            put_varint(out, bound);
        }
        out.push(self.projection as u8);
    }

    fn decode(input: &mut Reader) -> Result<RangeOp, DecodeError> {
        let range = KeyRange::decode(input)?;
        let at = Option::decode(input)?;
        let limit = input.varint()?;
        let sort = match input.byte()? {
            0 => None,
            tag => {
                let by = match (tag - 1) >> 1 {
                    0 => SortBy::Key,
                    1 => SortBy::Version,
                    2 => SortBy::Created,
                    3 => SortBy::Modified,
                    4 => SortBy::Value,
                    _ => return Err(DecodeError::UnknownTag { what: "sort order", tag }),
                };
                Some(Sort { by, descending: (tag - 1) & 1 == 1 })
            }
        };
        let bounds = RevisionBounds {
            modified_min: input.varint()?,
            modified_max: input.varint()?,
            created_min: input.varint()?,
            created_max: input.varint()?,
        };
        let projection = match input.byte()? {
            0 => Projection::Full,
            1 => Projection::KeysOnly,
            2 => Projection::CountOnly,
            tag => return Err(DecodeError::UnknownTag { what: "projection", tag }),
        };
        Ok(RangeOp { range, at, limit, sort, bounds, projection })
    }
}

impl Wire for Txn {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.compares.len() as u64);
        for compare in &self.compares {
            compare.encode(out);
        }
        for ops in [&self.success, &self.failure] {
            put_varint(out, ops.len() as u64);
            for op in ops {
                op.encode(out);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<Txn, DecodeError> {
        fn list<T: Wire>(input: &mut Reader) -> Result<Vec<T>, DecodeError> {
            let count = input.count("the number of operations", TXN_OPS_MAX)?;
            (0..count).map(|_| T::decode(input)).collect()
        }
        Ok(Txn { compares: list(input)?, success: list(input)?, failure: list(input)? })
    }
}

impl Wire for Compare {
    fn encode(&self, out: &mut Vec<u8>) {
        self.range.encode(out);
        out.push(self.result as u8);
        let (tag, number) = match &self.target {
            CompareTarget::Version(n) => (0, *n),
            CompareTarget::Created(n) => (1, *n),
            CompareTarget::Modified(n) => (2, *n),
            CompareTarget::Lease(n) => (3, *n),
            CompareTarget::Value(value) => {
                out.push(4);
                return put_bytes(out, value);
            }
            CompareTarget::Admits(token) => {
                out.push(5);
                return put_varint(out, *token);
            }
        };
        out.push(tag);
        put_varint(out, number as u64);
    }

    fn decode(input: &mut Reader) -> Result<Compare, DecodeError> {
        let range = KeyRange::decode(input)?;
        let result = match input.byte()? {
            0 => CompareResult::Equal,
            1 => CompareResult::Greater,
            2 => CompareResult::Less,
            3 => CompareResult::NotEqual,
            tag => return Err(DecodeError::UnknownTag { what: "comparison", tag }),
        };
        let target = match input.byte()? {
            0 => CompareTarget::Version(input.varint()? as i64),
            1 => CompareTarget::Created(input.varint()? as i64),
            2 => CompareTarget::Modified(input.varint()? as i64),
            3 => CompareTarget::Lease(input.varint()? as i64),
            4 => CompareTarget::Value(input.bytes(VALUE_BYTES_MAX)?),
            5 => CompareTarget::Admits(input.varint()?),
            tag => return Err(DecodeError::UnknownTag { what: "compare target", tag }),
        };
        Ok(Compare { range, result, target })
    }
}
