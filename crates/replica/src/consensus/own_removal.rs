//! A node carries out its own removal only once somebody else has told it that this is agreed on (M1).
//!
//! A node that was removed stops, and nobody can ask it any more. If it found out by itself, since it led when the
//! entry was agreed on, the others may not know: they go on counting it among the voters, and with one more of them
//! lost nobody can ever lead again. Whoever tells it has written down that it is so (`agrees_on_membership`).
//!
//! Until then the entry and all behind it are held back. The node goes on as what it is: leading, it tells the others
//! with its next message; they carry the removal out and refuse it from then on, which it hears, and stops. No
//! longer leading, it votes, and its votes tell what it knows to be agreed on.

use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use tidelock_model::{MemberChange, Reader, Wire};

use super::Consensus;
use super::changes::conf_change;

#[derive(Default)]
pub(super) struct OwnRemoval {
    /// Up to where others said that entries are agreed on.
    told: u64,
    /// Agreed on, and not handed out: this node's removal, and what came after it.
    pub(super) held_back: Vec<Entry>,
}

impl OwnRemoval {
    pub(super) fn note(&mut self, message: &Message) {
        // Answers tell it, too, but perhaps before it is on their sender's disk.
        if matches!(message.get_msg_type(), MessageType::MsgAppend | MessageType::MsgHeartbeat) {
            self.told = self.told.max(message.commit);
        }
    }
}

impl Consensus {
    /// Whether an entry that is agreed on must wait until somebody else says so.
    pub(super) fn waits_to_be_told(&self, entry: &Entry) -> bool {
        entry.get_entry_type() != EntryType::EntryNormal
            && entry.index > self.own_removal.told
            && self.removes_this_node(entry)
    }

    fn removes_this_node(&self, entry: &Entry) -> bool {
        let (me, voters) = (self.raw.raft.id, self.raw.store().voters());
        if entry.context.is_empty() {
            // The end of a joint change: whoever voted only for its sake is out.
            let stays = voters.voters.contains(&me) || voters.learners_next.contains(&me);
            return voters.voters_outgoing.contains(&me) && !stays;
        }
        let Ok(change) = MemberChange::decode(&mut Reader::new(entry.context.clone())) else { return false };
        let removed = match change.unconditional() {
            MemberChange::Remove(id) => id.0 == me,
            MemberChange::Replace { remove, .. } => remove.iter().any(|id| id.0 == me),
            _ => false,
        };
        // In a joint change it votes on until that ends.
        removed && conf_change(&change).enter_joint().is_none()
    }
}
