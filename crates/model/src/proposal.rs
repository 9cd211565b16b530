//! What a log entry holds: a time stamp and one or more commands with their origins.
//!
//! ```text
//! entry    = version:1 (currently 1)  at:varint  count:varint  proposal*
//! proposal = length:varint  node:varint  boot:varint  number:varint  flags:1  request?  caller?  command
//! flags    = bit 0: there is a request id; bits 1 and 2: the caller is 0 the node, 1 unknown, 2 a user
//! ```

use bytes::Bytes;

use crate::codec::{DecodeError, Reader, Wire, put_bytes, put_varint};
use crate::limits::{AUTH_NAME_BYTES_MAX, BATCH_COMMANDS_MAX, COMMAND_BYTES_MAX};
use crate::{Caller, Command, LogTime, NodeId};

/// Which node a proposal came in at, and its number there. The origin may send a proposal again when
/// a leader is lost; `apply` carries it out once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The node.
    pub node: NodeId,
    /// Random number drawn when the node started, so that numbers of an earlier life do not collide.
    pub boot: u64,
    /// Counts up from 1 within one boot.
    pub number: u64,
}

/// A client's own name for a request, so that a retry gets the first answer and has no second effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId {
    /// The client or session.
    pub client: u64,
    /// The request; a client never reuses one.
    pub number: u64,
}

/// A command on its way into the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Where it came in.
    pub origin: Origin,
    /// The client's id for it, if it gave one.
    pub request: Option<RequestId>,
    /// On whose behalf.
    pub caller: Caller,
    /// What to do.
    pub command: Command,
}

impl Wire for Proposal {
    fn encode(&self, out: &mut Vec<u8>) {
        self.origin.node.encode(out);
        put_varint(out, self.origin.boot);
        put_varint(out, self.origin.number);
        let caller = match &self.caller {
            Caller::Internal => 0,
            Caller::Anonymous => 1,
            Caller::User { .. } => 2,
        };
        out.push(u8::from(self.request.is_some()) | caller << 1);
        if let Some(request) = self.request {
            put_varint(out, request.client);
            put_varint(out, request.number);
        }
        if let Caller::User { name, auth_revision } = &self.caller {
            put_bytes(out, name.as_bytes());
            put_varint(out, *auth_revision);
        }
        self.command.encode(out);
    }
    fn decode(input: &mut Reader) -> Result<Proposal, DecodeError> {
        let origin = Origin { node: NodeId::decode(input)?, boot: input.varint()?, number: input.varint()? };
        let flags = input.byte()?;
        let request = match flags & 1 {
            1 => Some(RequestId { client: input.varint()?, number: input.varint()? }),
            _ => None,
        };
        let caller = match flags >> 1 {
            0 => Caller::Internal,
            1 => Caller::Anonymous,
            2 => Caller::User { name: input.text(AUTH_NAME_BYTES_MAX)?.into(), auth_revision: input.varint()? },
            _ => return Err(DecodeError::UnknownTag { what: "proposal flags", tag: flags }),
        };
        Ok(Proposal { origin, request, caller, command: Command::decode(input)? })
    }
}

/// The payload of a log entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Stamped by the leader.
    pub at: LogTime,
    /// In order.
    pub proposals: Vec<Proposal>,
}

const VERSION: u8 = 1;

impl Batch {
    /// The bytes of an entry whose proposals are encoded already: the leader packs what it was given
    /// without reading it.
    #[must_use]
    pub fn pack(at: LogTime, proposals: &[Bytes]) -> Vec<u8> {
        let size = proposals.iter().map(|proposal| proposal.len() + 4).sum::<usize>();
        let mut out = Vec::with_capacity(size + 16);
        out.push(VERSION);
        at.encode(&mut out);
        put_varint(&mut out, proposals.len() as u64);
        for proposal in proposals {
            put_varint(&mut out, proposal.len() as u64);
            out.extend_from_slice(proposal);
        }
        out
    }

    /// How many proposals an entry holds, without reading them.
    pub fn count_of(bytes: &Bytes) -> Result<usize, DecodeError> {
        Ok(Batch::decode_head(&mut Reader::new(bytes.clone()))?.1)
    }

    fn decode_head(input: &mut Reader) -> Result<(LogTime, usize), DecodeError> {
        let version = input.byte()?;
        if version != VERSION {
            return Err(DecodeError::UnknownTag { what: "entry version", tag: version });
        }
        Ok((LogTime::decode(input)?, input.count("the number of commands", BATCH_COMMANDS_MAX)?))
    }
}

impl Wire for Batch {
    fn encode(&self, out: &mut Vec<u8>) {
        let proposals: Vec<Bytes> = self.proposals.iter().map(|proposal| proposal.to_bytes().into()).collect();
        out.extend_from_slice(&Batch::pack(self.at, &proposals));
    }
    fn decode(input: &mut Reader) -> Result<Batch, DecodeError> {
        let (at, count) = Batch::decode_head(input)?;
        let proposals = input.items(count, |input| Proposal::from_bytes(input.bytes(COMMAND_BYTES_MAX)?))?;
        Ok(Batch { at, proposals })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::*;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Key> {
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(|name| Key::new(Space::User, &name))
    }
    fn range() -> impl Strategy<Value = KeyRange> {
        (key(), key()).prop_map(|(start, end)| KeyRange { start, end })
    }
    fn value() -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(any::<u8>(), 0..64).prop_map(Bytes::from)
    }
    fn leaf_op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (key(), proptest::option::of(value()), proptest::option::of(any::<i64>()), any::<bool>()).prop_map(
                |(key, value, lease, want_previous)| Op::Put(PutOp {
                    key,
                    value: value.map_or(PutValue::Keep, PutValue::Set),
                    lease: lease.map_or(PutLease::Keep, |id| PutLease::Set(LeaseId(id))),
                    want_previous,
                })
            ),
            (range(), any::<bool>()).prop_map(|(range, want_previous)| Op::Delete(DeleteOp { range, want_previous })),
            (range(), proptest::option::of(any::<u64>()), any::<u64>()).prop_map(|(range, at, limit)| {
                let sort = Some(Sort { by: SortBy::Value, descending: limit % 2 == 0 });
                Op::Range(RangeOp { at: at.map(Revision), limit, sort, ..RangeOp::all(range) })
            }),
        ]
    }
    fn op() -> impl Strategy<Value = Op> {
        leaf_op().prop_recursive(3, 16, 4, |inner| {
            let compare = (range(), value()).prop_map(|(range, v)| Compare {
                range,
                result: CompareResult::Less,
                target: CompareTarget::Value(v),
            });
            let ops = proptest::collection::vec(inner, 0..4);
            (proptest::collection::vec(compare, 0..3), ops.clone(), ops)
                .prop_map(|(compares, success, failure)| Op::Txn(Box::new(Txn { compares, success, failure })))
        })
    }
    fn proposal() -> impl Strategy<Value = Proposal> {
        (op(), any::<u64>(), proptest::option::of(any::<(u64, u64)>())).prop_map(|(op, number, request)| Proposal {
            origin: Origin { node: NodeId(3), boot: u64::MAX, number },
            request: request.map(|(client, number)| RequestId { client, number }),
            caller: match number % 3 {
                0 => Caller::Internal,
                1 => Caller::Anonymous,
                _ => Caller::User { name: "someone".into(), auth_revision: number },
            },
            command: Command::Write(op),
        })
    }

    proptest! {
        #[test]
        fn an_entry_survives_the_round_trip(proposals in proptest::collection::vec(proposal(), 0..5), at: u64) {
            let batch = Batch { at: LogTime(at), proposals };
            prop_assert_eq!(Batch::from_bytes(batch.to_bytes().into()), Ok(batch));
        }

        /// Z1: bytes from a damaged disk or a hostile peer are refused, never a panic.
        #[test]
        fn a_damaged_entry_is_refused_or_read(proposals in proptest::collection::vec(proposal(), 1..4), at: usize, bit in 0..8) {
            let mut bytes = Batch { at: LogTime(1), proposals }.to_bytes();
            let at = at % bytes.len();
            bytes[at] ^= 1u8 << bit;
            let _ = Batch::from_bytes(bytes.into());
        }

        #[test]
        fn noise_is_refused_or_read(noise in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Batch::from_bytes(noise.into());
        }
    }

    /// Pinned bytes: a change to the format must be a new version, or old journals become unreadable.
    #[test]
    fn version_1_bytes_stay_readable() {
        let put = PutOp {
            key: Key::new(Space::User, b"k"),
            value: PutValue::Set(Bytes::from_static(b"v")),
            lease: PutLease::Set(LeaseId::NONE),
            want_previous: false,
        };
        let batch = Batch {
            at: LogTime(5),
            proposals: vec![Proposal {
                origin: Origin { node: NodeId(1), boot: 2, number: 3 },
                request: None,
                caller: Caller::Internal,
                command: Command::Write(Op::Put(put)),
            }],
        };
        let bytes = [1, 5, 1, 13, 1, 2, 3, 0, 1, 1, 0, 2, 0x10, b'k', 1, b'v', 0];
        assert_eq!(batch.to_bytes(), bytes);
        assert_eq!(Batch::from_bytes(Bytes::copy_from_slice(&bytes)), Ok(batch));
    }

    #[test]
    fn nesting_beyond_the_limit_is_refused() {
        let mut op = Op::Txn(Box::default());
        for _ in 0..limits::TXN_DEPTH_MAX {
            op = Op::Txn(Box::new(Txn { success: vec![op], ..Txn::default() }));
        }
        assert_eq!(Op::from_bytes(op.to_bytes().into()), Err(DecodeError::TooLarge { what: "nesting" }));
    }
}
