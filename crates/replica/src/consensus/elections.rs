//! Elections beyond the engine's own timers: when a node would seek one, what it does about a leader it knows to
//! be gone, and whom it answers late.
//!
//! None of this can make two leaders: votes and terms are the engine's, and reads ask a majority who leads. It
//! only decides *when* a node asks and whether it is willing, which is a matter of how long writes wait
//! (decision 0018). Who is asked while it hears from a leader says nothing, so one node alone deposes nobody.

use raft::StateRole;
use raft::eraftpb::{Message, MessageType};

use super::Consensus;

/// For so many ticks a request for a pre-vote that came while the leader still seemed to be there is kept. Members
/// notice a dead leader within milliseconds of each other, and count their silence from ticks of their own.
const HELD_TICKS: u32 = 2;

/// For so many ticks a node that asks because of a hint does not agree to somebody else whose turn comes later: if
/// two agreed to each other, both would be candidates, and neither elected before the next timeout.
const INSIST_TICKS: u32 = 2;

/// A request for a pre-vote that was not answered yet.
pub(super) struct Held {
    request: Message,
    ticks: u32,
}

/// Somebody asked to be elected while there was no leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// This node agreed.
    Agreed,
    /// It has less of the log than this node, and was refused.
    HasLess,
}

impl Consensus {
    /// Ticks of silence after which a leader counts as gone.
    #[must_use]
    pub fn election_ticks(&self) -> u64 {
        self.raw.raft.election_timeout() as u64
    }

    /// Gives up the leader: from now on this node is willing to vote for another, until it hears from the leader
    /// again. Whoever asked for a pre-vote a moment ago is answered now.
    pub fn forget_leader(&mut self) {
        if self.raw.raft.state == StateRole::Follower {
            self.raw.raft.leader_id = raft::INVALID_ID;
            self.answer_held();
        }
    }

    /// Asks the other voters, once, whether they would elect this node.
    pub fn seek_election(&mut self) {
        if self.introduced && self.raw.raft.promotable() {
            self.insists = INSIST_TICKS;
            self.campaign();
        }
    }

    /// Whether this node must not seek election before its disk is done with what it has. The library panics if it does
    /// behind a snapshot that is not in place yet, and if it elects itself on the spot while its log is on its way to the
    /// disk. Where others vote, the requests for their votes wait behind the log.
    pub(super) fn must_wait_for_disk(&self) -> bool {
        let raft = &self.raw.raft;
        let log = &raft.raft_log;
        let installs = log.unstable_snapshot().is_none() && log.applied() + 1 < log.first_index();
        let is_alone = raft.promotable() && raft.prs().conf().voters().ids().iter().all(|id| id == raft.id);
        installs || is_alone && !self.log_is_durable()
    }

    /// Whether nothing of the log is on its way to the disk.
    pub(super) fn log_is_durable(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        self.unsynced_log.is_none()
            && log.unstable_snapshot().is_none()
            && log.unstable_entries().is_empty()
            && log.persisted == log.last_index()
    }

    /// What became of the last request for a pre-vote since this was last asked.
    pub(crate) fn take_asked(&mut self) -> Option<Asked> {
        self.asked.take()
    }

    /// Gives a message to the engine, now or, if it asks for a pre-vote too early, a little later.
    pub(super) fn step_or_hold(&mut self, message: Message) {
        let asks = message.get_msg_type() == MessageType::MsgRequestPreVote && message.entries.is_empty();
        if asks && (self.hears_a_leader() || self.comes_later(&message)) {
            self.held = Some(Held { request: message, ticks: 0 });
            return;
        }
        if asks {
            self.note_request(&message);
        }
        self.step_library(message);
        self.fix_election_timeout();
    }

    fn note_request(&mut self, request: &Message) {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader && request.term > raft.term {
            let enough = raft.raft_log.is_up_to_date(request.index, request.log_term);
            self.asked = Some(if enough { Asked::Agreed } else { Asked::HasLess });
        }
    }

    /// Whether this node asks itself, and whoever asked it is to wait for that: it has a higher id and no more of the log.
    fn comes_later(&self, request: &Message) -> bool {
        let raft = &self.raw.raft;
        let (last_term, last) = (raft.raft_log.last_term(), raft.raft_log.last_index());
        self.insists > 0
            && raft.state == StateRole::PreCandidate
            && request.from > raft.id
            && (request.log_term, request.index) <= (last_term, last)
    }

    /// Once a tick: what was asked too early is answered when it no longer is, or forgotten.
    pub(super) fn tick_held(&mut self) {
        self.insists = self.insists.saturating_sub(1);
        let Some(held) = &mut self.held else { return };
        held.ticks += 1;
        if held.ticks > HELD_TICKS {
            self.held = None;
        } else if !self.hears_a_leader() {
            self.answer_held();
        }
    }

    fn answer_held(&mut self) {
        if let Some(held) = self.held.take() {
            // To the engine it is a message that took a little longer.
            self.step_or_hold(held.request);
        }
    }

    /// Whether another leader was heard of within the election timeout: then no vote is given to anybody.
    fn hears_a_leader(&self) -> bool {
        let raft = &self.raw.raft;
        raft.state == StateRole::Follower
            && raft.leader_id != raft::INVALID_ID
            && raft.election_elapsed < raft.election_timeout()
    }

    /// Overwrites what the library drew. Voters take turns within half an election timeout after it: each term has
    /// an order of its own, so that two of them seldom ask at the same moment and none always comes first.
    pub(super) fn fix_election_timeout(&mut self) {
        let raft = &mut self.raw.raft;
        // The library draws when the term or its part changes; mostly there is nothing to do.
        if self.fixed != Some((raft.term, raft.randomized_election_timeout())) {
            let timeout = turn(raft, self.seed);
            raft.set_randomized_election_timeout(timeout);
            self.fixed = Some((raft.term, timeout));
        }
    }

    /// The voters changed, and with them whose turn is when.
    pub(super) fn voters_changed(&mut self) {
        self.fixed = None;
    }
}

/// Ticks of silence after which this node asks to be elected.
fn turn(raft: &raft::Raft<super::LogStore>, seed: u64) -> usize {
    let base = raft.election_timeout() as u64;
    let spread = (base / 2).max(1);
    let voters = raft.prs().conf().voters();
    let (mut count, mut before) = (0, 0);
    for id in voters.ids().iter() {
        count += 1;
        before += u64::from(id < raft.id);
    }
    let count: u64 = std::cmp::max(count, 1);
    let place = (before + hash([raft.term, 0, 0])) % count;
    let jitter = hash([seed, raft.id, raft.term]) % (spread / count).max(1);
    (base + place * spread / count + jitter) as usize
}

fn hash(numbers: [u64; 3]) -> u64 {
    let mut bytes = [0; 24];
    for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    // Halved, so that a place can be added to it.
    xxhash_rust::xxh3::xxh3_64(&bytes) >> 1
}
