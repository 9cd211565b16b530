//! What a follower does not say twice.
//!
//! After every agreement a leader tells its followers how far it goes, with an append that has no entries. The library
//! answers it with what the leader was told before: up to here the logs are the same. At a few requests a second that
//! is a message, and a leader woken for nothing, for each follower and each of them.
//!
//! What must still be said is what may have been lost. A leader that misses an answer asks again with its next
//! heartbeat, by an append that brings nothing new; that one is always answered.

use raft::eraftpb::{Message, MessageType};

use super::Consensus;

/// Whom a follower told last that their logs are the same, in which term, and up to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acknowledged {
    leader: u64,
    term: u64,
    index: u64,
}

impl Acknowledged {
    fn by(answer: &Message) -> Option<Acknowledged> {
        let is_one = answer.get_msg_type() == MessageType::MsgAppendResponse && !answer.reject;
        is_one.then_some(Acknowledged { leader: answer.to, term: answer.term, index: answer.index })
    }
}

impl Consensus {
    /// Gives a message to the library, and takes back an answer that would only repeat the last one.
    pub(super) fn step_library(&mut self, message: Message) {
        let has_no_entries = message.get_msg_type() == MessageType::MsgAppend && message.entries.is_empty();
        let known = self.raw.raft.raft_log.committed;
        let sent = self.raw.raft.msgs.len();
        // What the library refuses here (a response of who is not a member any more) is weather.
        let _ = self.raw.step(message);
        let raft = &mut self.raw.raft;
        let Some(answer) = raft.msgs.get(sent).and_then(Acknowledged::by) else { return };
        let tells_how_far = has_no_entries && raft.raft_log.committed > known;
        if tells_how_far && self.acknowledged == Some(answer) {
            raft.msgs.truncate(sent);
        }
        self.acknowledged = Some(answer);
    }
}
