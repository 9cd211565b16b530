//! A queue into a worker. Many put in, one takes everything at once: one lock and at most one wake-up
//! per batch on either side, which is what keeps a busy node from spending its time on waking.
//!
//! A worker has a thread of its own, which waits for items and for time. While that thread sleeps, whoever puts
//! something in may give the worker its turn himself: a request that comes alone then crosses a node
//! without waking anybody, and waking is most of what such a request costs. [`Inbox::push_and_run`] and
//! [`Inbox::offer`] do that; only for workers whose turns never wait.
//!
//! What holds: one at a time runs the worker (`Content::runs`), and whoever does looks into the inbox once more,
//! under its lock, before he leaves. So an item put in while somebody runs needs no wake-up.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::clock::{Clock, Moment, Turn};

/// Turns in a row that somebody else's thread gives a worker, which then has its own woken: who came with one
/// request is not to be kept for those of all others.
const TURNS_ELSEWHERE_MAX: usize = 4;
/// A turn elsewhere that wants the next one sooner than the worker's thread looks again, by less than this, wakes nobody:
/// so much lies between a turn and the sleep after it, and every lone request woke the thread for some microseconds.
const SOONER_MIN: Duration = Duration::from_millis(1);

/// Whoever works on what an inbox holds.
pub(crate) trait Worker<T>: Send {
    /// Takes one turn with what has arrived; `items` is empty afterwards.
    fn take_turn(&mut self, items: &mut Vec<T>, now: Moment) -> Turn;
}

/// The worker, and the clock it is told.
struct Seat<T> {
    worker: Box<dyn Worker<T>>,
    clock: Clock,
    /// Taken out of the inbox; kept for its memory.
    items: Vec<T>,
}

struct Content<T> {
    items: Vec<T>,
    /// Somebody runs the worker.
    runs: bool,
    /// The worker's thread sleeps, until then at the latest, and was not woken.
    sleeps_until: Option<Instant>,
    /// The thread is to run the worker, whatever it waits for.
    due: bool,
    /// The worker said that it ended, or whoever ran it panicked.
    ended: Option<Ended>,
    closed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    Done,
    Panicked,
}

/// A queue into one worker.
pub(crate) struct Inbox<T> {
    content: Mutex<Content<T>>,
    filled: Condvar,
    /// Empty until a thread serves the worker, and in a simulator for ever.
    seat: OnceLock<Mutex<Option<Seat<T>>>>,
}

/// Why an item was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full { waiting: usize },
    Closed,
}

impl<T> Inbox<T> {
    pub(crate) fn new() -> Inbox<T> {
        let content =
            Content { items: Vec::new(), runs: false, sleeps_until: None, due: false, ended: None, closed: false };
        Inbox { content: Mutex::new(content), filled: Condvar::new(), seat: OnceLock::new() }
    }

    /// Puts an item in, unless `max` or more wait; with `here`, gives the worker its turn if its thread sleeps.
    pub(crate) fn offer(&self, item: T, max: usize, here: bool) -> Result<(), Refused> {
        let content = self.put(item, max)?;
        if here {
            self.run_or_wake(content);
        } else {
            self.wake(content);
        }
        Ok(())
    }

    fn put(&self, item: T, max: usize) -> Result<MutexGuard<'_, Content<T>>, Refused> {
        let mut content = self.content.lock();
        if content.closed {
            return Err(Refused::Closed);
        }
        if content.items.len() >= max {
            return Err(Refused::Full { waiting: content.items.len() });
        }
        content.items.push(item);
        Ok(content)
    }

    /// Puts items in whose number is bounded by what they answer: reports of work that was handed out.
    pub(crate) fn push_all(&self, items: impl IntoIterator<Item = T>) {
        self.wake(self.put_all(items));
    }

    /// Puts in one such item.
    pub(crate) fn push(&self, item: T) {
        self.push_all([item]);
    }

    /// Puts such items in, and gives the worker its turn here if its thread sleeps.
    pub(crate) fn push_and_run(&self, items: impl IntoIterator<Item = T>) {
        self.run_or_wake(self.put_all(items));
    }

    fn put_all(&self, items: impl IntoIterator<Item = T>) -> MutexGuard<'_, Content<T>> {
        let mut content = self.content.lock();
        if !content.closed {
            content.items.extend(items);
        }
        content
    }

    fn wake(&self, mut content: MutexGuard<'_, Content<T>>) {
        // Who runs the worker looks again, and so does a thread that does not sleep.
        let wake = !content.runs && !content.items.is_empty() && content.sleeps_until.take().is_some();
        drop(content);
        if wake {
            self.filled.notify_one();
        }
    }

    fn run_or_wake(&self, mut content: MutexGuard<'_, Content<T>>) {
        let idle = !content.runs && content.sleeps_until.is_some() && content.ended.is_none();
        let free = idle && !content.closed && !content.items.is_empty();
        let seat = self.seat.get().filter(|_| free);
        let Some(seat) = seat else { return self.wake(content) };
        content.runs = true;
        drop(content);
        let mut leaving = Leaving { inbox: self, next: None };
        if let Some(seat) = seat.lock().as_mut() {
            leaving.next = self.run(seat);
        }
    }

    /// Gives the worker turns until nothing is left, or some were given. When it wants its next one.
    fn run(&self, seat: &mut Seat<T>) -> Option<Turn> {
        let mut next = None;
        for _ in 0..TURNS_ELSEWHERE_MAX {
            std::mem::swap(&mut self.content.lock().items, &mut seat.items);
            if seat.items.is_empty() {
                break;
            }
            let turn = seat.worker.take_turn(&mut seat.items, seat.clock.now());
            next = Some(turn);
            if turn == Turn::Ended {
                break;
            }
        }
        next
    }

    /// Lets `worker` work on what is put in, on this thread and on those of who puts it in, until the inbox is closed
    /// or the worker ends.
    pub(crate) fn serve(&self, worker: Box<dyn Worker<T>>, clock: Clock) {
        let seat = self.seat.get_or_init(|| Mutex::new(None));
        *seat.lock() = Some(Seat { worker, clock, items: Vec::new() });
        let mut wait = Duration::ZERO;
        while self.may_run(wait) {
            let turn = {
                let mut seat = seat.lock();
                let seat = seat.as_mut().expect("only this function takes the worker away");
                std::mem::swap(&mut self.content.lock().items, &mut seat.items);
                seat.worker.take_turn(&mut seat.items, seat.clock.now())
            };
            match turn {
                Turn::WaitAtMost(at_most) => wait = at_most,
                Turn::Ended => break,
            }
        }
        // The worker holds what the inbox is part of; without this neither would ever be freed.
        *seat.lock() = None;
    }

    /// Waits until this thread is to run the worker: something is there, or `wait` is over. `false`: it has ended.
    fn may_run(&self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        let mut content = self.content.lock();
        content.runs = false;
        loop {
            assert!(content.ended != Some(Ended::Panicked), "the worker panicked on another thread");
            let has_ended = content.ended.is_some() || (content.closed && content.items.is_empty());
            let due = content.due || Instant::now() >= until;
            if !content.runs && (has_ended || due || !content.items.is_empty()) {
                content.sleeps_until = None;
                content.due = false;
                content.runs = true;
                return !has_ended;
            }
            content.sleeps_until = Some(until);
            match due {
                // Somebody else runs it now, and wakes this thread when he leaves.
                true => self.filled.wait(&mut content),
                false => drop(self.filled.wait_until(&mut content, until)),
            }
        }
    }

    /// Takes everything there is into `out` (which is empty). `false`: closed, and nothing is left.
    pub(crate) fn take(&self, out: &mut Vec<T>) -> bool {
        let mut content = self.content.lock();
        std::mem::swap(&mut content.items, out);
        !content.closed || !out.is_empty()
    }

    /// How many items wait.
    pub(crate) fn len(&self) -> usize {
        self.content.lock().items.len()
    }

    /// Takes nothing more; what is inside is still handed out.
    pub(crate) fn close(&self) {
        self.content.lock().closed = true;
        self.filled.notify_one();
    }
}

/// Somebody else's thread that has run the worker: gives it back, also when it panicked.
struct Leaving<'a, T> {
    inbox: &'a Inbox<T>,
    next: Option<Turn>,
}

impl<T> Drop for Leaving<'_, T> {
    fn drop(&mut self) {
        let mut content = self.inbox.content.lock();
        content.runs = false;
        if std::thread::panicking() {
            content.ended = Some(Ended::Panicked);
        } else if self.next == Some(Turn::Ended) {
            content.ended = Some(Ended::Done);
        }
        let Some(until) = content.sleeps_until else { return };
        let now = Instant::now();
        let sooner = matches!(self.next, Some(Turn::WaitAtMost(wait)) if now + wait + SOONER_MIN <= until);
        content.due = sooner || until <= now;
        let wanted = content.due || content.closed || content.ended.is_some() || !content.items.is_empty();
        if wanted {
            content.sleeps_until = None;
            drop(content);
            self.inbox.filled.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::ThreadId;

    use super::*;

    #[test]
    fn a_full_inbox_refuses_and_a_closed_one_hands_out_what_it_has() {
        let inbox = Inbox::new();
        assert_eq!(inbox.offer(1, 2, false), Ok(()));
        assert_eq!(inbox.offer(2, 2, false), Ok(()));
        assert_eq!(inbox.offer(3, 2, false), Err(Refused::Full { waiting: 2 }));
        inbox.close();
        assert_eq!(inbox.offer(4, 9, false), Err(Refused::Closed));
        let mut out = Vec::new();
        assert!(inbox.take(&mut out));
        assert_eq!(out, [1, 2]);
        out.clear();
        assert!(!inbox.take(&mut out));
    }

    /// Notes what it is given, and on which thread.
    struct Notes {
        seen: Arc<Mutex<Vec<(u32, ThreadId)>>>,
        at_once: Arc<AtomicUsize>,
        wait: Duration,
    }

    impl Worker<u32> for Notes {
        fn take_turn(&mut self, items: &mut Vec<u32>, _now: Moment) -> Turn {
            assert_eq!(self.at_once.fetch_add(1, Ordering::SeqCst), 0, "two run the worker at once");
            let here = std::thread::current().id();
            self.seen.lock().extend(items.drain(..).map(|item| (item, here)));
            self.at_once.fetch_sub(1, Ordering::SeqCst);
            Turn::WaitAtMost(self.wait)
        }
    }

    type Seen = Arc<Mutex<Vec<(u32, ThreadId)>>>;

    fn served(wait: Duration) -> (Arc<Inbox<u32>>, Seen, std::thread::JoinHandle<()>) {
        let (inbox, seen) = (Arc::new(Inbox::new()), Seen::default());
        let worker = Notes { seen: seen.clone(), at_once: Arc::default(), wait };
        let serving = inbox.clone();
        let thread = std::thread::spawn(move || serving.serve(Box::new(worker), Clock::start()));
        (inbox, seen, thread)
    }

    fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !condition() {
            assert!(Instant::now() < deadline, "waited in vain until {what}");
            std::thread::yield_now();
        }
    }

    fn asleep<T>(inbox: &Inbox<T>) -> bool {
        let content = inbox.content.lock();
        !content.runs && content.sleeps_until.is_some()
    }

    /// The reason for all this: a lone request must not pay for waking a thread that does what it could do itself.
    #[test]
    fn while_its_thread_sleeps_the_worker_runs_where_something_is_put_in() {
        let (inbox, seen, thread) = served(Duration::from_secs(60));
        wait_until("the thread sleeps", || asleep(&inbox));
        inbox.push_and_run([1, 2]);
        let here = std::thread::current().id();
        assert_eq!(*seen.lock(), [(1, here), (2, here)]);
        inbox.push(3);
        wait_until("the thread took its turn", || seen.lock().len() == 3);
        assert_ne!(seen.lock()[2].1, here);
        inbox.close();
        thread.join().unwrap();
    }

    /// An item that stayed behind would be a request that is answered a heartbeat late, or a promise kept too late.
    #[test]
    fn whoever_puts_in_and_however_nothing_is_left_behind() {
        let (inbox, seen, thread) = served(Duration::from_secs(3600));
        std::thread::scope(|scope| {
            for pusher in 0..4 {
                let inbox = &inbox;
                scope.spawn(move || {
                    for number in 0..20_000u32 {
                        match (number + pusher) % 3 {
                            0 => inbox.push(pusher << 16 | number),
                            1 => inbox.push_and_run([pusher << 16 | number]),
                            _ => inbox.offer(pusher << 16 | number, usize::MAX, true).unwrap(),
                        }
                    }
                });
            }
        });
        wait_until("everything was worked on", || seen.lock().len() == 80_000);
        for pusher in 0..4 {
            let of = seen.lock().iter().map(|(item, _)| *item).filter(|item| item >> 16 == pusher).collect::<Vec<_>>();
            assert!(of.is_sorted(), "in the order it was put in");
        }
        inbox.close();
        thread.join().unwrap();
    }

    /// A worker that has more to do at once must not wait until its thread would have looked again anyway.
    #[test]
    fn a_turn_elsewhere_that_wants_another_soon_wakes_the_thread() {
        struct Counts(Arc<AtomicUsize>);
        impl Worker<u32> for Counts {
            fn take_turn(&mut self, items: &mut Vec<u32>, _now: Moment) -> Turn {
                self.0.fetch_add(1, Ordering::SeqCst);
                let soon = !items.is_empty();
                items.clear();
                Turn::WaitAtMost(if soon { Duration::ZERO } else { Duration::from_secs(3600) })
            }
        }
        let (inbox, turns) = (Arc::new(Inbox::new()), Arc::new(AtomicUsize::new(0)));
        let (serving, counts) = (inbox.clone(), Counts(turns.clone()));
        let thread = std::thread::spawn(move || serving.serve(Box::new(counts), Clock::start()));
        wait_until("the thread sleeps", || asleep(&inbox));
        inbox.push_and_run([1]);
        wait_until("the thread went on", || turns.load(Ordering::SeqCst) >= 3);
        inbox.close();
        thread.join().unwrap();
    }

    /// Every lone request did, by the microseconds that the thread had taken from its last turn to its sleep.
    #[test]
    fn a_turn_elsewhere_that_wants_another_when_the_thread_looks_anyway_wakes_nobody() {
        struct Ticks {
            next: Instant,
            turns: Arc<AtomicUsize>,
        }
        impl Worker<u32> for Ticks {
            fn take_turn(&mut self, items: &mut Vec<u32>, _now: Moment) -> Turn {
                let wait = self.next - Instant::now();
                // The thread's own turn takes longer than the one that is given elsewhere.
                let took = Instant::now();
                while items.is_empty() && took.elapsed() < SOONER_MIN / 10 {
                    std::hint::spin_loop();
                }
                items.clear();
                self.turns.fetch_add(1, Ordering::SeqCst);
                Turn::WaitAtMost(wait)
            }
        }
        let (inbox, turns) = (Arc::new(Inbox::new()), Arc::new(AtomicUsize::new(0)));
        let ticks = Ticks { next: Instant::now() + Duration::from_secs(3600), turns: turns.clone() };
        let serving = inbox.clone();
        let thread = std::thread::spawn(move || serving.serve(Box::new(ticks), Clock::start()));
        let woke = (0..100).filter(|_| {
            wait_until("the thread sleeps", || asleep(&inbox));
            let before = turns.load(Ordering::SeqCst);
            inbox.push_and_run([1]);
            !asleep(&inbox) || turns.load(Ordering::SeqCst) != before + 1
        });
        // A thread that loses its processor for longer than that before it sleeps is rightly woken.
        let woke = woke.count();
        assert!(woke < 50, "{woke} of 100 woke the thread");
        inbox.close();
        thread.join().unwrap();
    }

    /// The node must stop when a worker breaks, whoever ran it.
    #[test]
    fn a_panic_elsewhere_is_one_of_the_thread() {
        struct Breaks;
        impl Worker<u32> for Breaks {
            fn take_turn(&mut self, items: &mut Vec<u32>, _now: Moment) -> Turn {
                assert!(items.is_empty(), "broken");
                Turn::WaitAtMost(Duration::from_secs(3600))
            }
        }
        let inbox = Arc::new(Inbox::new());
        let serving = inbox.clone();
        let thread = std::thread::spawn(move || serving.serve(Box::new(Breaks), Clock::start()));
        wait_until("the thread sleeps", || asleep(&inbox));
        let elsewhere = inbox.clone();
        assert!(std::thread::spawn(move || elsewhere.push_and_run([1])).join().is_err());
        assert!(thread.join().is_err());
    }
}
