//! Looks at an encoded message of the engine without handing it to the engine.

use bytes::Bytes;
use raft::eraftpb::MessageType;

use super::{ReadContext, wire};
use crate::glance::ReadRound;

/// Whether an encoded message appends entries.
pub(crate) fn is_append(message: &[u8]) -> bool {
    message.get(1) == Some(&(MessageType::MsgAppend as u8))
}

/// The round an encoded message asks the leader for, if it does.
pub(crate) fn read_round(message: &[u8]) -> Option<ReadRound> {
    if message.get(1) != Some(&(MessageType::MsgReadIndex as u8)) {
        return None;
    }
    let message = wire::decode_message(Bytes::copy_from_slice(message)).ok()?;
    let ReadContext { node, boot, counter } = ReadContext::from_bytes(&message.entries.first()?.data)?;
    Some(ReadRound { node, boot, counter })
}

/// One line about an encoded message.
pub(crate) fn describe(message: Bytes) -> String {
    match wire::decode_message(message) {
        Ok(message) => format!(
            "{:?} term {} index {} (term {}) commit {} entries {}{}",
            message.get_msg_type(),
            message.term,
            message.index,
            message.log_term,
            message.commit,
            message.entries.len(),
            if message.reject { " rejected" } else { "" },
        ),
        Err(error) => format!("malformed: {error}"),
    }
}
