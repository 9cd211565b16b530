//! What no correct peer says, turned away before the library sees it (H26).
//!
//! The library trusts its peers. It counts on from their numbers, follows them beyond the end of its log and sends on
//! what they said, and where that does not fit it panics, which ends the process. So one frame of a faulty peer could
//! stop whoever received it; and if what it did was stored first, stop it again after each start.
//!
//! Refused is what no correct peer says, whatever it holds and however late it is heard: a peer that is behind, or was
//! deposed, or sends from a log that begins with a snapshot must be understood. Where the library ignores a message, so
//! does this. Each refusal stands for a panic, or for a promise that could not be kept.
//!
//! Not here: types of messages that no peer sends at all (`wire`). And lies that fit: a peer that claims to hold what it
//! does not is believed. Raft cannot do without.

use std::collections::BTreeSet;

use raft::StateRole;
use raft::eraftpb::{ConfState, Message, MessageType};
use tidelock_model::LogIndex;

use super::{Consensus, ReadContext};

/// The largest term or index that counts. No cluster comes near it by counting; above it sums would overflow, and a
/// term that was taken over once is stored, and would stop the node at each election after each start.
const NUMBER_MAX: u64 = 1 << 62;
const BEYOND_COUNTING: &str = "a number that nobody can have counted to";

/// Why a message from a peer was not taken. It counts as lost; what matters is said again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerFault {
    /// It does not decode.
    #[error("malformed message: {0}")]
    Malformed(#[from] tidelock_model::DecodeError),
    /// It decodes but a correct peer would not send it.
    #[error("{0}")]
    Improper(&'static str),
    /// It shows that this node lost what it had acknowledged; going on would break the cluster's word.
    #[error("a peer knows entries up to {known} to be stored here, but the log ends at {last}: this node lost data")]
    LostLog {
        /// What the peer knows.
        known: LogIndex,
        /// What there is.
        last: LogIndex,
    },
}

type Checked = Result<(), PeerFault>;

fn refuse_if(improper: bool, why: &'static str) -> Checked {
    if improper { Err(PeerFault::Improper(why)) } else { Ok(()) }
}

impl Consensus {
    /// Whether a correct peer may have said this to this node.
    pub(super) fn check(&self, message: &Message) -> Checked {
        refuse_if(message.to != self.raw.raft.id, "a message for another node")?;
        refuse_if(message.from == self.raw.raft.id, "a message in this node's own name")?;
        check_numbers(message)?;
        match message.get_msg_type() {
            MessageType::MsgAppend => check_entries(message),
            MessageType::MsgAppendResponse => self.check_acknowledgement(message),
            MessageType::MsgHeartbeat => self.check_heartbeat(message),
            MessageType::MsgSnapshot => self.check_snapshot(message),
            MessageType::MsgRequestVoteResponse => self.check_vote(message),
            MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => check_read(message),
            _ => Ok(()),
        }
    }

    /// Whether the library does what a leader's message says: it is not of an earlier term, and not of the one in which
    /// this node leads.
    fn heeds(&self, message: &Message) -> bool {
        let term = self.raw.raft.term;
        message.term > term || message.term == term && !self.is_leader()
    }

    /// A leader learns what is held from answers in its own term, and those only name what it sent.
    fn check_acknowledgement(&self, message: &Message) -> Checked {
        let counts = self.is_leader() && message.term == self.raw.raft.term && !message.reject;
        let beyond = message.index > self.raw.raft.raft_log.last_index();
        refuse_if(counts && beyond, "an acknowledgement of what was never sent")
    }

    /// A heartbeat says no more to be agreed on than its receiver acknowledged in the same term.
    fn check_heartbeat(&self, message: &Message) -> Checked {
        let last = self.raw.raft.raft_log.last_index();
        match self.heeds(message) && message.commit > last {
            true => Err(PeerFault::LostLog { known: LogIndex(message.commit), last: LogIndex(last) }),
            false => Ok(()),
        }
    }

    fn check_snapshot(&self, message: &Message) -> Checked {
        let metadata = message.get_snapshot().get_metadata();
        refuse_if(metadata.index == 0 || metadata.term == 0, "a snapshot of nothing")?;
        refuse_if(metadata.index > NUMBER_MAX, BEYOND_COUNTING)?;
        refuse_if(metadata.term > message.term, "a snapshot of a later term than its sender's")?;
        refuse_if(!are_voters(metadata.get_conf_state()), "a snapshot with voters no cluster can have")?;
        // One that is older is ignored, and a later one replaces the log.
        let log = &self.raw.raft.raft_log;
        let contradicts = metadata.index == log.committed && !log.match_term(metadata.index, metadata.term);
        refuse_if(self.heeds(message) && contradicts, "a snapshot that contradicts what is agreed on")
    }

    /// The request for a vote leaves when all before it is durable, on which the library insists of whoever is elected.
    fn check_vote(&self, message: &Message) -> Checked {
        let seeks = self.raw.raft.state == StateRole::Candidate && message.term == self.raw.raft.term;
        refuse_if(seeks && !self.log_is_durable(), "a vote that was not asked for yet")
    }
}

fn check_numbers(message: &Message) -> Checked {
    let numbers =
        [message.term, message.log_term, message.index, message.commit, message.commit_term, message.reject_hint];
    refuse_if(numbers.iter().any(|number| *number > NUMBER_MAX), BEYOND_COUNTING)?;
    // To the library a message without a term is this node's own. Only this one is sent without, and must be: a
    // follower that is asked passes it on and panics over a term.
    let has_none = message.get_msg_type() == MessageType::MsgReadIndex;
    refuse_if(has_none && message.term != 0, "a read request with a term")?;
    refuse_if(!has_none && message.term == 0, "a message without a term")?;
    // Not in use here. Over a low priority, a node that never was in any term panics.
    refuse_if(message.priority != 0, "a candidate with a priority")?;
    refuse_if(message.request_snapshot != 0, "a demand for a snapshot")
}

/// Entries follow each other and what is before them, in terms that never go down and end with the leader's.
fn check_entries(message: &Message) -> Checked {
    // Beyond its end the library takes any log to be of term 0; only what is before the first entry is.
    refuse_if(message.log_term == 0 && message.index != 0, "entries after an entry of no term")?;
    let (mut index, mut term) = (message.index, message.log_term.max(1));
    for entry in &message.entries {
        refuse_if(entry.index != index + 1, "entries out of order")?;
        refuse_if(entry.term < term, "entries whose terms go down")?;
        (index, term) = (entry.index, entry.term);
    }
    refuse_if(term > message.term, "entries of a later term than their leader's")
}

/// A leader puts the context into its heartbeats: one that followers refuse as too long would depose it.
fn check_read(message: &Message) -> Checked {
    let is_one = message.entries.len() == 1 && message.entries[0].data.len() == ReadContext::BYTES;
    refuse_if(!is_one, "a read request without its context")
}

/// Whether these can be the voters of a cluster, by the rules the library asserts.
fn are_voters(state: &ConfState) -> bool {
    let set = |ids: &[u64]| ids.iter().copied().collect::<BTreeSet<u64>>();
    let lists = [&state.voters, &state.learners, &state.voters_outgoing, &state.learners_next];
    let [voters, learners, outgoing, next] = lists.map(|ids| set(ids));
    let is_joint = !outgoing.is_empty();
    lists.iter().all(|ids| !ids.contains(&0))
        && !voters.is_empty()
        && learners.is_disjoint(&voters)
        && learners.is_disjoint(&outgoing)
        // Who is to learn when the joint change is over votes until then, and only for the old voters.
        && next.is_subset(&outgoing)
        && next.is_disjoint(&voters)
        && (is_joint || !state.auto_leave)
}
