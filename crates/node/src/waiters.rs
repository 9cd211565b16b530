//! Callers that wait for an answer, by number. Sharded, because every request enters and leaves here
//! from different threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::oneshot;

const SHARDS: usize = 16;

/// By numbers that are ours: nobody outside can choose them so that they collide.
type Shard<T> = HashMap<u64, oneshot::Sender<T>, RandomState>;

/// Callers waiting for a `T`.
pub(crate) struct Waiters<T> {
    shards: [Mutex<Shard<T>>; SHARDS],
    next: AtomicU64,
    waiting: AtomicUsize,
}

impl<T> Waiters<T> {
    pub(crate) fn new() -> Waiters<T> {
        Waiters::numbered_from(1)
    }

    /// For callers whose numbers go to other nodes and come back: they must not begin where an earlier life of this
    /// node began, or an answer meant for that one is taken for an answer to somebody else's question.
    pub(crate) fn numbered_from(first: u64) -> Waiters<T> {
        Waiters {
            shards: std::array::from_fn(|_| Mutex::default()),
            next: AtomicU64::new(first),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Adds a caller; numbers count up from the first and are never used twice. `Err`: `max` wait already.
    pub(crate) fn add(&self, max: usize) -> Result<(u64, oneshot::Receiver<T>), usize> {
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        if waiting >= max {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(waiting);
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.shard(number).lock().insert(number, sender);
        Ok((number, receiver))
    }

    /// Answers a caller. One that went away, or was answered before, is passed over.
    pub(crate) fn answer(&self, number: u64, answer: T) {
        if let Some(sender) = self.remove(number) {
            let _ = sender.send(answer);
        }
    }

    /// Forgets a caller.
    pub(crate) fn remove(&self, number: u64) -> Option<oneshot::Sender<T>> {
        let sender = self.shard(number).lock().remove(&number);
        if sender.is_some() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        sender
    }

    /// Drops all callers; each notices that nobody will answer.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let dropped = std::mem::take(&mut *shard.lock()).len();
            self.waiting.fetch_sub(dropped, Ordering::Relaxed);
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn shard(&self, number: u64) -> &Mutex<Shard<T>> {
        &self.shards[number as usize % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer that was on its way when the node went down must find nobody when it is back.
    #[test]
    fn numbers_of_two_lives_have_nothing_in_common() {
        let (one, other) = (Waiters::<u32>::numbered_from(0x5eed << 40), Waiters::<u32>::numbered_from(u64::MAX - 3));
        let numbers = |waiters: &Waiters<u32>| (0..10).map(|_| waiters.add(99).unwrap().0).collect::<Vec<_>>();
        let (one, other) = (numbers(&one), numbers(&other));
        assert!(one.iter().all(|number| !other.contains(number)));
    }

    #[test]
    fn the_limit_counts_only_callers_that_still_wait() {
        let waiters = Waiters::<u32>::new();
        let (first, mut receiver) = waiters.add(1).unwrap();
        assert_eq!(waiters.add(1).unwrap_err(), 1);
        waiters.answer(first, 7);
        assert_eq!(receiver.try_recv(), Ok(7));
        waiters.answer(first, 8);
        assert!(waiters.add(1).is_ok());
        waiters.clear();
        assert_eq!(waiters.waiting(), 0);
    }
}
