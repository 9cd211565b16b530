//! What members say to each other beside the engine's own messages: forwarded proposals, calls about
//! leases, changes of members, digests. One frame carries one of these.

use bytes::Bytes;
use tidelock_model::limits::COMMAND_BYTES_MAX;
use tidelock_model::{
    DecodeError, LeaseId, LeaseInfo, LogIndex, Member, MemberChange, NodeId, Reader, Wire, put_bytes, put_varint,
};

use crate::effects::{LeaseCall, LeaseReply, MemberRefusal, Renewal, RenewalReply, Token};
use crate::renewals::{put_leases, read_leases};

/// Most items in one frame; the sender splits, the receiver refuses.
pub(crate) const ITEMS_MAX: usize = 4096;
/// What a frame with a message of the engine begins with. The engine's side writes it itself: appends are large.
pub(crate) const ENGINE_TAG: u8 = 1;
const TEXT_BYTES_MAX: usize = 4096;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PeerMessage {
    /// The consensus engine's.
    Raft(Bytes),
    /// Proposals for the leader, each encoded.
    Forward(Vec<Bytes>),
    LeaseCalls(Vec<LeaseCall>),
    LeaseReplies(Vec<LeaseReply>),
    ChangeMembers {
        token: Token,
        change: MemberChange,
    },
    MembersChanged {
        token: Token,
        result: Result<Vec<Member>, MemberRefusal>,
    },
    Transfer {
        token: Token,
        to: NodeId,
    },
    Transferred {
        token: Token,
        result: Result<(), MemberRefusal>,
    },
    Digest {
        index: LogIndex,
        digest: u128,
    },
    Space {
        full: bool,
    },
    Renewal(Renewal),
    Renewed(RenewalReply),
}

impl PeerMessage {
    /// Whether a frame is an engine message that appends entries.
    pub(crate) fn is_append(frame: &[u8]) -> bool {
        frame.first() == Some(&ENGINE_TAG) && crate::consensus::is_append(&frame[1..])
    }

    pub(crate) fn to_frame(&self) -> Bytes {
        let mut out = Vec::new();
        match self {
            PeerMessage::Raft(message) => {
                out.push(ENGINE_TAG);
                out.extend_from_slice(message);
            }
            PeerMessage::Forward(proposals) => {
                out.push(2);
                put_list(&mut out, proposals, |out, proposal| put_bytes(out, proposal));
            }
            PeerMessage::LeaseCalls(calls) => {
                out.push(3);
                put_list(&mut out, calls, |out, call| {
                    put_varint(out, call.token);
                    call.id.encode(out);
                    out.push(u8::from(call.renew));
                });
            }
            PeerMessage::LeaseReplies(replies) => {
                out.push(4);
                put_list(&mut out, replies, |out, reply| {
                    put_varint(out, reply.token);
                    out.push(u8::from(reply.info.is_some()));
                    if let Some(info) = reply.info {
                        info.id.encode(out);
                        put_varint(out, u64::from(info.granted_ttl_s));
                        put_varint(out, info.remaining_ms);
                    }
                });
            }
            PeerMessage::ChangeMembers { token, change } => {
                out.push(5);
                put_varint(&mut out, *token);
                change.encode(&mut out);
            }
            PeerMessage::MembersChanged { token, result } => {
                out.push(6);
                put_varint(&mut out, *token);
                match result {
                    Ok(members) => {
                        out.push(0);
                        put_list(&mut out, members, |out, member| member.encode(out));
                    }
                    Err(refusal) => put_refusal(&mut out, refusal),
                }
            }
            PeerMessage::Transfer { token, to } => {
                out.push(7);
                put_varint(&mut out, *token);
                to.encode(&mut out);
            }
            PeerMessage::Transferred { token, result } => {
                out.push(8);
                put_varint(&mut out, *token);
                match result {
                    Ok(()) => out.push(0),
                    Err(refusal) => put_refusal(&mut out, refusal),
                }
            }
            PeerMessage::Digest { index, digest } => {
                out.push(9);
                index.encode(&mut out);
                out.extend_from_slice(&digest.to_le_bytes());
            }
            PeerMessage::Space { full } => out.extend_from_slice(&[10, u8::from(*full)]),
            PeerMessage::Renewal(renewal) => {
                out.push(11);
                put_varint(&mut out, renewal.token);
                put_leases(&mut out, &renewal.leases);
            }
            PeerMessage::Renewed(reply) => {
                out.push(12);
                put_varint(&mut out, reply.token);
                put_leases(&mut out, &reply.gone);
                put_leases(&mut out, &reply.ending);
            }
        }
        out.into()
    }

    pub(crate) fn from_frame(frame: Bytes) -> Result<PeerMessage, DecodeError> {
        if frame.first() == Some(&ENGINE_TAG) {
            return Ok(PeerMessage::Raft(frame.slice(1..)));
        }
        let mut input = Reader::new(frame);
        let message = match input.byte()? {
            2 => PeerMessage::Forward(list(&mut input, |input| input.bytes(COMMAND_BYTES_MAX))?),
            3 => PeerMessage::LeaseCalls(list(&mut input, |input| {
                Ok(LeaseCall { token: input.varint()?, id: LeaseId::decode(input)?, renew: input.flag()? })
            })?),
            4 => PeerMessage::LeaseReplies(list(&mut input, lease_reply)?),
            5 => PeerMessage::ChangeMembers { token: input.varint()?, change: MemberChange::decode(&mut input)? },
            6 => {
                let token = input.varint()?;
                let result = match refusal(&mut input)? {
                    None => Ok(list(&mut input, Member::decode)?),
                    Some(refusal) => Err(refusal),
                };
                PeerMessage::MembersChanged { token, result }
            }
            7 => PeerMessage::Transfer { token: input.varint()?, to: NodeId::decode(&mut input)? },
            8 => PeerMessage::Transferred { token: input.varint()?, result: refusal(&mut input)?.map_or(Ok(()), Err) },
            9 => {
                let index = LogIndex::decode(&mut input)?;
                let mut digest = [0; 16];
                for byte in &mut digest {
                    *byte = input.byte()?;
                }
                PeerMessage::Digest { index, digest: u128::from_le_bytes(digest) }
            }
            10 => PeerMessage::Space { full: input.flag()? },
            11 => PeerMessage::Renewal(Renewal { token: input.varint()?, leases: read_leases(&mut input)? }),
            12 => PeerMessage::Renewed(RenewalReply {
                token: input.varint()?,
                gone: read_leases(&mut input)?,
                ending: read_leases(&mut input)?,
            }),
            tag => return Err(DecodeError::UnknownTag { what: "peer message", tag }),
        };
        input.finish()?;
        Ok(message)
    }
}

fn put_list<T>(out: &mut Vec<u8>, items: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    put_varint(out, items.len() as u64);
    items.iter().for_each(|item| put(out, item));
}

fn list<T>(input: &mut Reader, read: impl Fn(&mut Reader) -> Result<T, DecodeError>) -> Result<Vec<T>, DecodeError> {
    let count = input.count("the number of items", ITEMS_MAX)?;
    (0..count).map(|_| read(input)).collect()
}

fn lease_reply(input: &mut Reader) -> Result<LeaseReply, DecodeError> {
    let token = input.varint()?;
    let info = match input.flag()? {
        true => Some(LeaseInfo {
            id: LeaseId::decode(input)?,
            granted_ttl_s: input.varint32()?,
            remaining_ms: input.varint()?,
        }),
        false => None,
    };
    Ok(LeaseReply { token, info })
}

fn put_refusal(out: &mut Vec<u8>, refusal: &MemberRefusal) {
    match refusal {
        MemberRefusal::Exists(id) => put_tagged(out, 1, *id),
        MemberRefusal::AddressTaken(address) => {
            out.push(2);
            put_bytes(out, address.as_bytes());
        }
        MemberRefusal::NotFound(id) => put_tagged(out, 3, *id),
        MemberRefusal::WrongRole(id) => put_tagged(out, 4, *id),
        MemberRefusal::LearnerBehind { id, behind } => {
            put_tagged(out, 5, *id);
            put_varint(out, *behind);
        }
        MemberRefusal::WouldLoseQuorum => out.push(6),
        MemberRefusal::Busy => out.push(7),
        MemberRefusal::TimedOut => out.push(8),
        MemberRefusal::HandingOver => out.push(9),
    }
}

fn put_tagged(out: &mut Vec<u8>, tag: u8, id: NodeId) {
    out.push(tag);
    id.encode(out);
}

fn refusal(input: &mut Reader) -> Result<Option<MemberRefusal>, DecodeError> {
    Ok(Some(match input.byte()? {
        0 => return Ok(None),
        1 => MemberRefusal::Exists(NodeId::decode(input)?),
        2 => MemberRefusal::AddressTaken(input.text(TEXT_BYTES_MAX)?),
        3 => MemberRefusal::NotFound(NodeId::decode(input)?),
        4 => MemberRefusal::WrongRole(NodeId::decode(input)?),
        5 => MemberRefusal::LearnerBehind { id: NodeId::decode(input)?, behind: input.varint()? },
        6 => MemberRefusal::WouldLoseQuorum,
        7 => MemberRefusal::Busy,
        8 => MemberRefusal::TimedOut,
        9 => MemberRefusal::HandingOver,
        tag => return Err(DecodeError::UnknownTag { what: "refusal", tag }),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_kind_of_message_survives_the_round_trip() {
        let info = Some(LeaseInfo { id: LeaseId(-7), granted_ttl_s: 5, remaining_ms: 4999 });
        let refusals = [
            MemberRefusal::Exists(NodeId(1)),
            MemberRefusal::AddressTaken("a:1".into()),
            MemberRefusal::NotFound(NodeId(2)),
            MemberRefusal::WrongRole(NodeId(3)),
            MemberRefusal::LearnerBehind { id: NodeId(4), behind: 9 },
            MemberRefusal::WouldLoseQuorum,
            MemberRefusal::Busy,
            MemberRefusal::TimedOut,
            MemberRefusal::HandingOver,
        ];
        let mut messages = vec![
            PeerMessage::Raft(Bytes::from_static(b"raft")),
            PeerMessage::Forward(vec![Bytes::from_static(b"one"), Bytes::new()]),
            PeerMessage::LeaseCalls(vec![LeaseCall { token: 1, id: LeaseId(2), renew: true }]),
            PeerMessage::LeaseReplies(vec![LeaseReply { token: 1, info }, LeaseReply { token: 2, info: None }]),
            PeerMessage::ChangeMembers { token: 5, change: MemberChange::Promote(NodeId(8)) },
            PeerMessage::MembersChanged { token: 5, result: Ok(vec![]) },
            PeerMessage::Transfer { token: 1, to: NodeId(2) },
            PeerMessage::Transferred { token: 1, result: Ok(()) },
            PeerMessage::Digest { index: LogIndex(3), digest: u128::MAX - 1 },
            PeerMessage::Space { full: true },
            PeerMessage::Renewal(Renewal { token: 9, leases: vec![LeaseId(i64::MIN), LeaseId(-1), LeaseId(i64::MAX)] }),
            PeerMessage::Renewed(RenewalReply { token: 9, gone: vec![LeaseId(3)], ending: vec![] }),
        ];
        messages
            .extend(refusals.into_iter().map(|refusal| PeerMessage::Transferred { token: 1, result: Err(refusal) }));
        for message in messages {
            assert_eq!(PeerMessage::from_frame(message.to_frame()), Ok(message));
        }
    }

    proptest! {
        #[test]
        fn noise_from_a_peer_is_refused_or_read(noise in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = PeerMessage::from_frame(noise.into());
        }
    }
}
