//! Appends whose entries do not follow what they claim to follow.
//!
//! The library adds entries to an append for the same follower that was not sent yet. If that one has no entries it does
//! not look where they belong: once a follower has refused or acknowledged something in between, it is elsewhere. Whoever
//! is sent such an append turns it away, as it must (`improper`), and catches up a heartbeat later.

use raft::eraftpb::{Message, MessageType};

use super::Consensus;

impl Consensus {
    /// Says truly what the entries of an append follow. `false`: that is not known any more, and it is not to be sent.
    pub(super) fn mend(&self, message: &mut Message) -> bool {
        let is_append = message.get_msg_type() == MessageType::MsgAppend;
        let Some(first) = message.entries.first().map(|entry| entry.index).filter(|_| is_append) else { return true };
        if first == message.index + 1 {
            return true;
        }
        // Who does not lead in that term any more may hold another log by now.
        let raft = &self.raw.raft;
        let before = first - 1;
        let leads = self.is_leader() && message.term == raft.term;
        let Some(term) = raft.raft_log.term(before).ok().filter(|term| leads && *term > 0) else { return false };
        (message.index, message.log_term) = (before, term);
        true
    }
}
