//! Callers that wait for an answer, by number. Sharded, because every request enters and leaves here
//! from different threads.
//!
//! What they handed over counts until it is answered, even if they went away meanwhile: it is still worked on, and who
//! asks and leaves, again and again, must not get more into the queues than who waits.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::oneshot;

const SHARDS: usize = 16;

/// By numbers that are ours: nobody outside can choose them so that they collide.
type Shard<T> = HashMap<u64, Waiter<T>, RandomState>;

struct Waiter<T> {
    caller: oneshot::Sender<T>,
    /// Of what it handed over.
    bytes: usize,
}

/// How many may wait, and how many bytes of what they handed over.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    pub(crate) waiting: usize,
    pub(crate) bytes: usize,
}

/// Callers waiting for a `T`.
pub(crate) struct Waiters<T> {
    shards: [Mutex<Shard<T>>; SHARDS],
    next: AtomicU64,
    waiting: AtomicUsize,
    bytes: AtomicUsize,
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
            bytes: AtomicUsize::new(0),
        }
    }

    /// A number for a caller; they count up from the first and are never used twice.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether there is room for one more, if nobody takes it first.
    pub(crate) fn have(&self, room: Room) -> bool {
        self.waiting() < room.waiting && self.bytes.load(Ordering::Relaxed) <= room.bytes
    }

    /// Adds a caller who hands nothing over. `Err`: `max` wait already.
    pub(crate) fn add(&self, max: usize) -> Result<(u64, oneshot::Receiver<T>), usize> {
        let number = self.number();
        Ok((number, self.add_with(number, 0, Room { waiting: max, bytes: 0 })?))
    }

    /// Adds a caller who hands so many bytes over. `Err`, with how many wait: there is no room. The last to find some may
    /// have more than is left.
    pub(crate) fn add_with(&self, number: u64, bytes: usize, room: Room) -> Result<oneshot::Receiver<T>, usize> {
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if waiting >= room.waiting || before > room.bytes {
            self.left(1, bytes);
            return Err(waiting);
        }
        let (caller, receiver) = oneshot::channel();
        self.shard(number).lock().insert(number, Waiter { caller, bytes });
        Ok(receiver)
    }

    fn left(&self, callers: usize, bytes: usize) {
        self.waiting.fetch_sub(callers, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Answers a caller. One that went away, or was answered before, is passed over.
    pub(crate) fn answer(&self, number: u64, answer: T) {
        if let Some(sender) = self.remove(number) {
            let _ = sender.send(answer);
        }
    }

    /// Forgets a caller.
    pub(crate) fn remove(&self, number: u64) -> Option<oneshot::Sender<T>> {
        let Waiter { caller, bytes } = self.shard(number).lock().remove(&number)?;
        self.left(1, bytes);
        Some(caller)
    }

    /// Drops all callers; each notices that nobody will answer.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let dropped = std::mem::take(&mut *shard.lock());
            self.left(dropped.len(), dropped.values().map(|waiter| waiter.bytes).sum());
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

    /// Who hands something over and goes away at once, again and again, fills no more than its share of the queues.
    #[test]
    fn what_was_handed_over_counts_until_it_is_answered_whoever_still_waits() {
        let (waiters, room) = (Waiters::<u32>::new(), Room { waiting: 9, bytes: 100 });
        drop(waiters.add_with(1, 60, room).unwrap());
        drop(waiters.add_with(2, 60, room).unwrap());
        assert_eq!(waiters.add_with(3, 1, room).unwrap_err(), 2);
        waiters.answer(1, 7);
        drop(waiters.add_with(4, 1, room).unwrap());
        waiters.clear();
        assert_eq!((waiters.waiting(), waiters.bytes.load(Ordering::Relaxed)), (0, 0));
    }
}
