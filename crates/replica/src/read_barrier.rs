//! Linearizable reads on any node: "does the leader still lead, and what had it agreed on by then?",
//! asked once for all reads that wait (ReadIndex).
//!
//! A read waits for a round that began after it arrived, and then until this node carried out what
//! the round names. Rounds are few and shared. A round that gets no answer is asked again under a new
//! context, never the same (H7): the waiting reads take whichever answer comes.
//!
//! Calls about leases wait here too, on the leader: an answer must mean that this leader was still
//! leading when it was given (L4).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tidelock_model::{LogIndex, NodeId};

use crate::consensus::{ReadContext, ReadContexts};
use crate::effects::{LeaseCall, Renewal, Token};

/// Rounds under way. One would make a read wait for the round before it; many would ask the cluster
/// about every single read.
const ROUNDS_MAX: usize = 2;
/// Ticks without an answer before a round is asked again.
const RETRY_TICKS: u64 = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    Read(Token),
    Lease { from: NodeId, call: LeaseCall },
    Renewal { from: NodeId, renewal: Arc<Renewal> },
}

struct Round {
    waiters: Vec<(Waiter, u64)>,
    asked: u64,
}

pub(crate) struct ReadBarrier {
    contexts: ReadContexts,
    waiting: Vec<(Waiter, u64)>,
    rounds: BTreeMap<u64, Round>,
    round_of: BTreeMap<ReadContext, u64>,
    rounds_begun: u64,
    confirmed: VecDeque<(LogIndex, Vec<(Waiter, u64)>)>,
    timeout_ticks: u64,
}

impl ReadBarrier {
    pub(crate) fn new(contexts: ReadContexts, timeout_ticks: u64) -> ReadBarrier {
        ReadBarrier {
            contexts,
            waiting: Vec::new(),
            rounds: BTreeMap::new(),
            round_of: BTreeMap::new(),
            rounds_begun: 0,
            confirmed: VecDeque::new(),
            timeout_ticks,
        }
    }

    pub(crate) fn add(&mut self, waiter: Waiter, tick: u64) {
        self.waiting.push((waiter, tick));
    }

    /// Begins a round for everything that waits, if there is room for one.
    pub(crate) fn begin(&mut self, tick: u64) -> Option<ReadContext> {
        if self.waiting.is_empty() || self.rounds.len() >= ROUNDS_MAX {
            return None;
        }
        self.rounds_begun += 1;
        let waiters = std::mem::take(&mut self.waiting);
        self.rounds.insert(self.rounds_begun, Round { waiters, asked: tick });
        Some(self.ask(self.rounds_begun))
    }

    fn ask(&mut self, round: u64) -> ReadContext {
        let context = self.contexts.draw();
        let clash = self.round_of.insert(context, round);
        let reused = tidelock_model::planted!(ReadContextReused);
        assert!(clash.is_none() || reused, "a read context is never used twice");
        context
    }

    /// Contexts under which rounds without an answer are asked again. `at_once`: the leader changed,
    /// so nobody will answer the earlier ones.
    pub(crate) fn retry(&mut self, tick: u64, at_once: bool) -> Vec<ReadContext> {
        let overdue = |round: &Round| at_once || tick.saturating_sub(round.asked) >= RETRY_TICKS;
        let due: Vec<u64> = self.rounds.iter().filter(|(_, round)| overdue(round)).map(|(id, _)| *id).collect();
        for id in &due {
            if let Some(round) = self.rounds.get_mut(id) {
                round.asked = tick;
            }
        }
        due.into_iter().map(|id| self.ask(id)).collect()
    }

    /// A round was confirmed: its readers may go on once `index` is carried out here.
    pub(crate) fn confirm(&mut self, context: ReadContext, index: LogIndex) {
        let Some(round) = self.round_of.get(&context).copied() else { return };
        self.round_of.retain(|_, id| *id != round);
        if let Some(round) = self.rounds.remove(&round) {
            self.confirmed.push_back((index, round.waiters));
        }
    }

    /// Those who wait for nothing beyond `handed_out`. Handing them on behind the entries up to there
    /// makes them wait until those are carried out.
    pub(crate) fn release(&mut self, handed_out: LogIndex) -> Vec<Waiter> {
        let mut released = Vec::new();
        self.confirmed.retain_mut(|(index, waiters)| {
            let ready = *index <= handed_out || tidelock_model::planted!(ReadBeforeApply);
            if ready {
                released.extend(waiters.drain(..).map(|(waiter, _)| waiter));
            }
            !ready
        });
        released
    }

    /// Once a tick: gives up who waited too long.
    pub(crate) fn tick(&mut self, tick: u64) -> Vec<Waiter> {
        let timeout = self.timeout_ticks;
        let mut given_up = Vec::new();
        let mut keep = |(waiter, since): &(Waiter, u64)| {
            let keep = tick.saturating_sub(*since) <= timeout;
            if !keep {
                given_up.push(waiter.clone());
            }
            keep
        };
        self.waiting.retain(&mut keep);
        self.rounds.values_mut().for_each(|round| round.waiters.retain(&mut keep));
        self.confirmed.iter_mut().for_each(|(_, waiters)| waiters.retain(&mut keep));
        self.confirmed.retain(|(_, waiters)| !waiters.is_empty());
        let empty: Vec<u64> = self.rounds.iter().filter(|(_, r)| r.waiters.is_empty()).map(|(id, _)| *id).collect();
        for id in empty {
            self.rounds.remove(&id);
            self.round_of.retain(|_, round| *round != id);
        }
        given_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn barrier() -> ReadBarrier {
        ReadBarrier::new(ReadContexts::new(NodeId(1), 7), 50)
    }

    /// H7: a second question under the first one's name would let a deposed leader answer with what
    /// it heard before it was deposed.
    #[test]
    fn h7_a_retried_round_has_a_context_of_its_own() {
        let mut barrier = barrier();
        barrier.add(Waiter::Read(1), 0);
        let first = barrier.begin(0).unwrap();
        let again = barrier.retry(RETRY_TICKS, false);
        assert_eq!(again.len(), 1);
        assert_ne!(again[0], first);
        assert!(barrier.retry(RETRY_TICKS, false).is_empty(), "it was asked just now");
        barrier.confirm(again[0], LogIndex(5));
        barrier.confirm(first, LogIndex(6));
        assert_eq!(barrier.release(LogIndex(5)), [Waiter::Read(1)], "answered once");
        assert!(barrier.release(LogIndex(9)).is_empty());
    }

    /// R3: a round says what was agreed on when it began, not later: a read may only use one that
    /// began after the read did.
    #[test]
    fn r3_a_read_never_joins_a_round_that_began_before_it() {
        let mut barrier = barrier();
        barrier.add(Waiter::Read(1), 0);
        let first = barrier.begin(0).unwrap();
        barrier.add(Waiter::Read(2), 0);
        barrier.confirm(first, LogIndex(3));
        assert_eq!(barrier.release(LogIndex(3)), [Waiter::Read(1)]);
        let second = barrier.begin(0).unwrap();
        barrier.confirm(second, LogIndex(4));
        assert!(barrier.release(LogIndex(3)).is_empty(), "not before entry 4 is handed out");
        assert_eq!(barrier.release(LogIndex(4)), [Waiter::Read(2)]);
    }

    #[test]
    fn reads_that_get_no_majority_are_given_up_in_time() {
        let mut barrier = barrier();
        barrier.add(Waiter::Read(1), 0);
        let context = barrier.begin(0).unwrap();
        barrier.add(Waiter::Read(2), 10);
        assert_eq!(barrier.tick(51), [Waiter::Read(1)]);
        assert_eq!(barrier.tick(61), [Waiter::Read(2)]);
        barrier.confirm(context, LogIndex(1));
        assert!(barrier.release(LogIndex(9)).is_empty());
    }

    /// A node that cannot catch up must not keep its readers for ever.
    #[test]
    fn reads_confirmed_at_an_index_that_never_arrives_are_given_up_in_time() {
        let mut barrier = barrier();
        barrier.add(Waiter::Read(1), 0);
        let context = barrier.begin(0).unwrap();
        barrier.confirm(context, LogIndex(1_000));
        assert!(barrier.tick(50).is_empty());
        assert_eq!(barrier.tick(51), [Waiter::Read(1)]);
    }
}
