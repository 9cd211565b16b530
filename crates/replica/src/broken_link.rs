//! A broken link to the leader is a hint, not a proof (decision 0018).
//!
//! When a leader's process dies its connections end at once, long before silence would tell. Whoever is told
//! [`crate::Input::PeerGone`] about its leader gives it up and, in turn with the other voters, asks whether they
//! would elect it. The others agree only if they have given the leader up too, or have not heard from it for an
//! election timeout: so a hint that is wrong, because only this node's link broke, changes nothing but that
//! this node is without a leader until it hears from it again.
//!
//! What holds: at most [`ASK_MAX`] questions follow from a hint, and a node whose hints turn out wrong heeds fewer
//! and fewer ([`BrokenLink::heeds`]). Not here: how a dead link is noticed (`node/peers`), the questions (`consensus`).

use tidelock_model::{MemberRole, NodeId, Term};

use crate::consensus::Asked;
use crate::replica::Replica;

/// How often a node asks to be elected because of one hint. After that its timer is as good.
const ASK_MAX: u32 = 3;
/// The longest time for which hints are not heeded any more, in election timeouts.
const DEAF_ELECTIONS_MAX: u64 = 64;

/// What follows from the last hint.
#[derive(Debug, Default)]
pub(crate) struct BrokenLink {
    asking: Option<Asking>,
    /// Until this tick further hints are not heeded.
    deaf_until: u64,
    /// For how long they are not after the next one.
    deaf_ticks: u64,
    /// The term of the last hint that was heeded.
    term: Term,
}

#[derive(Clone, Copy, Debug)]
struct Asking {
    /// Over once this term is.
    term: Term,
    /// When to ask next.
    next: u64,
    /// Ticks between two questions: everybody else has a turn meanwhile.
    every: u64,
    left: u32,
}

impl BrokenLink {
    /// Whether to act on a hint now. In one term each makes the next wait twice as long: the leader it was about
    /// came back, so the link is to blame. Another term means that the last one was right, or is forgotten.
    fn heeds(&mut self, tick: u64, term: Term, election: u64) -> bool {
        let most = election * DEAF_ELECTIONS_MAX;
        if self.term != term || tick >= self.deaf_until + most {
            (self.term, self.deaf_until, self.deaf_ticks) = (term, 0, election);
        }
        if tick < self.deaf_until {
            return false;
        }
        self.deaf_until = tick + self.deaf_ticks;
        self.deaf_ticks = (self.deaf_ticks * 2).min(most);
        true
    }
}

impl Replica {
    /// A peer's process is gone, as far as can be seen from here.
    pub(crate) fn peer_gone(&mut self, peer: NodeId) {
        let (term, tick) = (self.consensus.term(), self.tick);
        if self.consensus.leader() != Some(peer) || self.consensus.is_leader() {
            return;
        }
        let voters = self.members.by_id.values().filter(|member| member.role == MemberRole::Voter && member.id != peer);
        let others: Vec<NodeId> = voters.map(|member| member.id).collect();
        let Some(place) = others.iter().position(|id| *id == self.settings.node) else { return };
        if !self.broken_link.heeds(tick, term, self.consensus.election_ticks()) {
            return;
        }
        // A tick may be just about to come: whoever is not first waits for more than one.
        let (place, every) = (place as u64, others.len() as u64);
        let next = if place == 0 { tick } else { tick + place + 1 };
        self.broken_link.asking = Some(Asking { term, next, every, left: ASK_MAX });
        self.consensus.forget_leader();
        self.heed_question();
        self.follow_hint();
    }

    /// Asks to be elected if a hint says so and it is this node's turn.
    pub(crate) fn follow_hint(&mut self) {
        let Some(asking) = self.broken_link.asking else { return };
        if asking.left == 0 || asking.term != self.consensus.term() || self.consensus.leader().is_some() {
            self.broken_link.asking = None;
        } else if self.tick >= asking.next {
            let next = self.tick + asking.every;
            self.broken_link.asking = Some(Asking { next, left: asking.left - 1, ..asking });
            self.consensus.seek_election();
        }
    }

    /// If somebody asked to be elected, and was answered: whom this node agreed to is given time for it. Who has less
    /// of the log than this node cannot win, so this node need not wait its turn.
    pub(crate) fn heed_question(&mut self) {
        let Some(asked) = self.consensus.take_asked() else { return };
        let Some(asking) = &mut self.broken_link.asking else { return };
        asking.next = match asked {
            Asked::Agreed => asking.next.max(self.tick + 1 + asking.every),
            Asked::HasLess => self.tick,
        };
        self.follow_hint();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELECTION: u64 = 10;

    /// A link that breaks again and again while its leader lives must not take this node's clients the leader
    /// each time.
    #[test]
    fn hints_that_turn_out_wrong_are_heeded_less_and_less() {
        let mut hints = BrokenLink::default();
        let heeded = (0..100_000).filter(|tick| hints.heeds(*tick, Term(7), ELECTION)).count();
        assert!((100_000 / 640..200).contains(&heeded), "{heeded}");
        let mut early = BrokenLink::default();
        let first: Vec<u64> = (0..80).filter(|tick| early.heeds(*tick, Term(7), ELECTION)).collect();
        assert_eq!(first, [0, 10, 30, 70]);
    }

    /// After a real fail-over, or a long quiet time, the next hint counts at once.
    #[test]
    fn a_hint_in_another_term_or_after_a_long_time_counts_at_once() {
        let mut hints = BrokenLink::default();
        for tick in 0..75 {
            hints.heeds(tick, Term(7), ELECTION);
        }
        assert!(!hints.heeds(76, Term(7), ELECTION));
        assert!(hints.heeds(76, Term(8), ELECTION));
        assert!(!hints.heeds(77, Term(8), ELECTION));
        assert!(hints.heeds(77 + 2_000, Term(8), ELECTION) && !hints.heeds(77 + 2_009, Term(8), ELECTION));
        assert!(hints.heeds(77 + 2_010, Term(8), ELECTION));
    }
}
