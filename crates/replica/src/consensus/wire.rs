//! Byte forms of the library's messages and states, in our own codec: its protobuf 2 parser never
//! sees bytes from a network or a disk (RUSTSEC-2024-0437).

use bytes::Bytes;
use raft::eraftpb::{ConfState, Entry, EntryType, HardState as RaftHardState, Message, MessageType};
use tidelock_model::limits::COMMAND_BYTES_MAX;
use tidelock_model::{DecodeError, HardState, LogEntry, LogIndex, NodeId, Reader, Term, put_bytes, put_varint};

const VERSION: u8 = 1;
/// More entries than a correct leader puts into one message.
const ENTRIES_MAX: usize = 1 << 20;
/// More voters than any cluster has.
const VOTERS_MAX: usize = 1024;
/// A read context or the word "transfer"; nothing longer travels there.
const CONTEXT_BYTES_MAX: usize = 256;
/// A log entry: some thousand commands packed together.
const ENTRY_BYTES_MAX: usize = 2 * COMMAND_BYTES_MAX;

/// A message after `head`, which whoever sends it wants before it.
pub(super) fn encode_message(head: &[u8], message: &Message) -> Vec<u8> {
    let size: usize = message.entries.iter().map(|entry| entry.data.len() + entry.context.len() + 24).sum();
    let mut out = Vec::with_capacity(head.len() + size + 96);
    out.extend_from_slice(head);
    out.push(VERSION);
    out.push(message.get_msg_type() as u8);
    let numbers = [
        message.to,
        message.from,
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.request_snapshot,
        message.reject_hint,
        message.priority as u64,
    ];
    numbers.iter().for_each(|number| put_varint(&mut out, *number));
    out.push(u8::from(message.reject));
    put_bytes(&mut out, &message.context);
    put_varint(&mut out, message.entries.len() as u64);
    message.entries.iter().for_each(|entry| encode_entry(entry, &mut out));
    if message.get_msg_type() == MessageType::MsgSnapshot {
        let metadata = message.get_snapshot().get_metadata();
        put_varint(&mut out, metadata.index);
        put_varint(&mut out, metadata.term);
        put_bytes(&mut out, &encode_voters(metadata.get_conf_state()));
    }
    out
}

pub(super) fn decode_message(bytes: Bytes) -> Result<Message, DecodeError> {
    let mut input = Reader::new(bytes);
    let version = input.byte()?;
    if version != VERSION {
        return Err(DecodeError::UnknownTag { what: "message version", tag: version });
    }
    let mut message = Message::default();
    message.set_msg_type(message_type(input.byte()?)?);
    message.to = input.varint()?;
    message.from = input.varint()?;
    message.term = input.varint()?;
    message.log_term = input.varint()?;
    message.index = input.varint()?;
    message.commit = input.varint()?;
    message.commit_term = input.varint()?;
    message.request_snapshot = input.varint()?;
    message.reject_hint = input.varint()?;
    message.priority = input.varint()? as i64;
    message.reject = input.flag()?;
    message.context = input.bytes(CONTEXT_BYTES_MAX)?;
    let count = input.count("the number of entries", ENTRIES_MAX)?;
    let entries = (0..count).map(|_| decode_entry(&mut input)).collect::<Result<Vec<_>, _>>()?;
    message.set_entries(entries.into());
    if message.get_msg_type() == MessageType::MsgSnapshot {
        let metadata = message.mut_snapshot().mut_metadata();
        metadata.index = input.varint()?;
        metadata.term = input.varint()?;
        let voters = input.bytes(VOTERS_MAX * 10)?;
        metadata.set_conf_state(decode_voters(&voters)?);
    }
    input.finish()?;
    Ok(message)
}

/// The types a peer may send. Local ones, proposals (which the library would take as its own) and wishes for a transfer
/// (which a follower would pass on and panic; only leaders are told here, by themselves) are refused here.
pub(super) fn message_type(tag: u8) -> Result<MessageType, DecodeError> {
    use MessageType::{
        MsgAppend, MsgAppendResponse, MsgHeartbeat, MsgHeartbeatResponse, MsgReadIndex, MsgReadIndexResp,
        MsgRequestPreVote, MsgRequestPreVoteResponse, MsgRequestVote, MsgRequestVoteResponse, MsgSnapshot,
        MsgTimeoutNow,
    };
    let allowed = [
        MsgAppend,
        MsgAppendResponse,
        MsgRequestVote,
        MsgRequestVoteResponse,
        MsgSnapshot,
        MsgHeartbeat,
        MsgHeartbeatResponse,
        MsgTimeoutNow,
        MsgReadIndex,
        MsgReadIndexResp,
        MsgRequestPreVote,
        MsgRequestPreVoteResponse,
    ];
    let found = allowed.into_iter().find(|kind| *kind as u8 == tag);
    found.ok_or(DecodeError::UnknownTag { what: "message type", tag })
}

fn encode_entry(entry: &Entry, out: &mut Vec<u8>) {
    out.push(entry.get_entry_type() as u8);
    put_varint(out, entry.term);
    put_varint(out, entry.index);
    put_bytes(out, &entry.data);
    put_bytes(out, &entry.context);
}

fn decode_entry(input: &mut Reader) -> Result<Entry, DecodeError> {
    let mut entry = Entry::default();
    entry.set_entry_type(entry_type(input.byte()?)?);
    entry.term = input.varint()?;
    entry.index = input.varint()?;
    entry.data = input.bytes(ENTRY_BYTES_MAX)?;
    entry.context = input.bytes(ENTRY_BYTES_MAX)?;
    Ok(entry)
}

fn entry_type(tag: u8) -> Result<EntryType, DecodeError> {
    match tag {
        0 => Ok(EntryType::EntryNormal),
        2 => Ok(EntryType::EntryConfChangeV2),
        tag => Err(DecodeError::UnknownTag { what: "entry type", tag }),
    }
}

pub(super) fn entry_from(entry: &Entry) -> LogEntry {
    LogEntry {
        index: LogIndex(entry.index),
        term: Term(entry.term),
        kind: entry.get_entry_type() as u8,
        payload: entry.data.clone(),
        context: entry.context.clone(),
    }
}

pub(super) fn entry_to(entry: LogEntry) -> Result<Entry, DecodeError> {
    let mut out = Entry::default();
    out.set_entry_type(entry_type(entry.kind)?);
    out.index = entry.index.0;
    out.term = entry.term.0;
    out.data = entry.payload;
    out.context = entry.context;
    Ok(out)
}

pub(super) fn hard_state_from(state: &RaftHardState) -> HardState {
    HardState { term: Term(state.term), vote: NodeId(state.vote), commit: LogIndex(state.commit) }
}

pub(super) fn hard_state_to(state: HardState) -> RaftHardState {
    let mut out = RaftHardState::default();
    out.term = state.term.0;
    out.vote = state.vote.0;
    out.commit = state.commit.0;
    out
}

pub(super) fn encode_voters(voters: &ConfState) -> Vec<u8> {
    let mut out = vec![VERSION];
    for ids in [&voters.voters, &voters.learners, &voters.voters_outgoing, &voters.learners_next] {
        put_varint(&mut out, ids.len() as u64);
        ids.iter().for_each(|id| put_varint(&mut out, *id));
    }
    out.push(u8::from(voters.auto_leave));
    out
}

pub(super) fn decode_voters(bytes: &Bytes) -> Result<ConfState, DecodeError> {
    let mut input = Reader::new(bytes.clone());
    let version = input.byte()?;
    if version != VERSION {
        return Err(DecodeError::UnknownTag { what: "voters version", tag: version });
    }
    let mut ids = || -> Result<Vec<u64>, DecodeError> {
        let count = input.count("the number of voters", VOTERS_MAX)?;
        (0..count).map(|_| input.varint()).collect()
    };
    let mut voters = ConfState::default();
    voters.voters = ids()?;
    voters.learners = ids()?;
    voters.voters_outgoing = ids()?;
    voters.learners_next = ids()?;
    voters.auto_leave = input.flag()?;
    input.finish()?;
    Ok(voters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message() -> impl Strategy<Value = Message> {
        let entry =
            (any::<u64>(), any::<u64>(), proptest::collection::vec(any::<u8>(), 0..40)).prop_map(|(t, i, d)| {
                let mut entry = Entry::default();
                entry.term = t;
                entry.index = i;
                entry.data = d.into();
                entry
            });
        let kinds = [3u8, 4, 5, 6, 7, 8, 9, 14, 15, 16, 17, 18];
        (
            proptest::sample::select(kinds.to_vec()),
            any::<[u64; 6]>(),
            any::<bool>(),
            proptest::collection::vec(entry, 0..4),
        )
            .prop_map(|(kind, numbers, reject, entries)| {
                let mut message = Message::default();
                message.set_msg_type(message_type(kind).unwrap());
                [message.to, message.from, message.term, message.log_term, message.index, message.commit] = numbers;
                message.reject = reject;
                message.priority = -3;
                message.context = Bytes::from_static(b"context");
                message.set_entries(entries.into());
                if kind == 7 {
                    let metadata = message.mut_snapshot().mut_metadata();
                    metadata.index = 9;
                    metadata.set_conf_state(ConfState::from((vec![1, 2, 3], vec![4])));
                }
                message
            })
    }

    proptest! {
        #[test]
        fn a_message_survives_the_round_trip(message in message()) {
            prop_assert_eq!(decode_message(encode_message(&[], &message).into()), Ok(message));
        }

        #[test]
        fn a_damaged_message_is_refused_or_read(message in message(), at: usize, bit in 0..8u8) {
            let mut bytes = encode_message(&[], &message);
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            let _ = decode_message(bytes.into());
        }
    }

    /// A proposal or a local signal from the network would be taken as this node's own, and a wish for a transfer stop a
    /// follower.
    #[test]
    fn local_messages_and_proposals_are_refused_from_the_network() {
        for kind in [0u8, 1, 2, 10, 11, 12, 13, 19] {
            assert!(message_type(kind).is_err(), "type {kind}");
        }
    }
}
