//! Runs futures in one thread, in an order that depends on nothing but what they do.
//!
//! What holds:
//! - Tasks that are ready are polled in the order they were spawned in. A task that is woken while others
//!   are polled gets its turn in the next round, whoever woke it.
//! - Time is a number that stands still until the world moves it on ([`Clock::advance_to`]); nothing in
//!   here looks at a real clock.
//!
//! What it refuses: a task that wakes itself for ever. A run of polls at one moment has a bound, beyond
//! which the run fails instead of hanging.
//!
//! Who moves time, and what else happens at a moment, is the world's business.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::history::Micros;

/// Polls in one call of [`Executor::run_ready`]. A run has a few dozen tasks, and each is polled a few
/// times at one moment.
const POLLS_MAX: usize = 1_000_000;

/// Names a task; a later one has a larger name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId(u64);

/// Tasks that were woken. Shared with wakers, which may be sent to other threads as far as the compiler
/// knows, hence the lock.
type Ready = Arc<Mutex<BTreeSet<TaskId>>>;

fn lock(ready: &Ready) -> MutexGuard<'_, BTreeSet<TaskId>> {
    ready.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Waking {
    id: TaskId,
    ready: Ready,
}

impl Wake for Waking {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        lock(&self.ready).insert(self.id);
    }
}

type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

struct Task {
    future: TaskFuture,
    waker: Waker,
}

/// Spawns tasks from within tasks; they start in the next round.
#[derive(Clone, Default)]
pub struct Spawner(Rc<Spawned>);

#[derive(Default)]
struct Spawned {
    next: Cell<u64>,
    waiting: RefCell<Vec<(TaskId, TaskFuture)>>,
}

impl Spawner {
    /// Has `future` run.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) -> TaskId {
        let id = TaskId(self.0.next.get());
        self.0.next.set(id.0 + 1);
        self.0.waiting.borrow_mut().push((id, Box::pin(future)));
        id
    }
}

/// All tasks of a run.
#[derive(Default)]
pub struct Executor {
    tasks: BTreeMap<TaskId, Task>,
    ready: Ready,
    spawner: Spawner,
}

impl Executor {
    /// Without tasks.
    #[must_use]
    pub fn new() -> Executor {
        Executor::default()
    }

    /// What tasks spawn others with.
    #[must_use]
    pub fn spawner(&self) -> Spawner {
        self.spawner.clone()
    }

    /// Has `future` run, from the next [`Executor::run_ready`] on.
    pub fn spawn(&mut self, future: impl Future<Output = ()> + 'static) -> TaskId {
        self.spawner.spawn(future)
    }

    /// Polls whatever is ready until nothing is. Gives the number of polls.
    ///
    /// # Panics
    /// When there is no end to it.
    pub fn run_ready(&mut self) -> usize {
        let mut polls = 0;
        loop {
            self.admit();
            let round = std::mem::take(&mut *lock(&self.ready));
            if round.is_empty() {
                return polls;
            }
            for id in round {
                let Some(task) = self.tasks.get_mut(&id) else { continue };
                polls += 1;
                assert!(polls <= POLLS_MAX, "{id:?} and others wake each other for ever");
                let mut context = Context::from_waker(&task.waker);
                if task.future.as_mut().poll(&mut context).is_ready() {
                    self.tasks.remove(&id);
                }
            }
        }
    }

    fn admit(&mut self) {
        let spawned = std::mem::take(&mut *self.spawner.0.waiting.borrow_mut());
        for (id, future) in spawned {
            let waker = Waker::from(Arc::new(Waking { id, ready: self.ready.clone() }));
            self.tasks.insert(id, Task { future, waker });
            lock(&self.ready).insert(id);
        }
    }

    /// Whether a task came to its end or was cancelled.
    #[must_use]
    pub fn is_done(&self, id: TaskId) -> bool {
        let waiting = self.spawner.0.waiting.borrow().iter().any(|(waiting, _)| *waiting == id);
        !waiting && !self.tasks.contains_key(&id)
    }

    /// Drops a task where it stands.
    pub fn cancel(&mut self, id: TaskId) {
        self.admit();
        self.tasks.remove(&id);
    }

    /// Tasks that have not come to their end.
    #[must_use]
    pub fn live(&self) -> usize {
        self.tasks.len() + self.spawner.0.waiting.borrow().len()
    }
}

/// Virtual time, and those who wait for it. Clones are the same clock. It may be handed to what could run in
/// threads, as far as the compiler knows, hence the lock.
#[derive(Clone, Default)]
pub struct Clock(Arc<Timers>);

#[derive(Default)]
struct Timers {
    now: AtomicU64,
    sequence: AtomicU64,
    waiting: Mutex<BTreeMap<(Micros, u64), Waker>>,
}

impl Timers {
    fn waiting(&self) -> MutexGuard<'_, BTreeMap<(Micros, u64), Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock {
    /// A clock at zero.
    #[must_use]
    pub fn new() -> Clock {
        Clock::default()
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Micros {
        self.0.now.load(Ordering::Relaxed)
    }

    /// Waits so long. At least a microsecond, so that nobody can wait in a loop without time passing.
    #[must_use]
    pub fn sleep(&self, time: Micros) -> Sleep {
        let sequence = self.0.sequence.fetch_add(1, Ordering::Relaxed);
        Sleep { clock: self.clone(), due: (self.now() + time.max(1), sequence) }
    }

    /// What `call` gives, unless it takes longer than `time`: then it is dropped where it stands.
    pub async fn within<T>(&self, time: Micros, call: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            given = call => Some(given),
            () = self.sleep(time) => None,
        }
    }

    /// When the next one who waits is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Micros> {
        self.0.waiting().first_key_value().map(|((due, _), _)| *due)
    }

    /// Moves time on and wakes those who are due by then, earliest first, and those of one moment in the
    /// order in which they began to wait. Time that is past already stays.
    pub fn advance_to(&self, time: Micros) {
        self.0.now.fetch_max(time, Ordering::Relaxed);
        loop {
            let mut waiting = self.0.waiting();
            let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= self.now()) else { return };
            let waker = first.remove();
            // Not while the timers are locked: waking may drop a sleep.
            drop(waiting);
            waker.wake();
        }
    }
}

/// Waits for a time; made by [`Clock::sleep`].
pub struct Sleep {
    clock: Clock,
    due: (Micros, u64),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.clock.now() >= self.due.0 {
            return Poll::Ready(());
        }
        self.clock.0.waiting().insert(self.due, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.clock.0.waiting().remove(&self.due);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Log = Rc<RefCell<Vec<String>>>;

    fn note(log: &Log, what: impl Into<String>) {
        log.borrow_mut().push(what.into());
    }

    /// Runs until nobody waits any more.
    fn run(executor: &mut Executor, clock: &Clock) {
        loop {
            executor.run_ready();
            let Some(due) = clock.next_due() else { return };
            clock.advance_to(due);
        }
    }

    /// A replay that polls in another order is another run: the seed of a bug would not show it again.
    #[test]
    fn ready_tasks_run_in_the_order_they_were_spawned_in_whoever_was_woken_first() {
        let mut executor = Executor::new();
        let log = Log::default();
        let gates: Vec<_> = (0..3).map(|_| Rc::new(tokio::sync::Notify::new())).collect();
        for (number, gate) in gates.iter().cloned().enumerate() {
            let log = log.clone();
            executor.spawn(async move {
                gate.notified().await;
                note(&log, format!("task {number}"));
            });
        }
        assert_eq!(executor.run_ready(), 3);
        [2, 0, 1].iter().for_each(|gate: &usize| gates[*gate].notify_one());
        executor.run_ready();
        assert_eq!(*log.borrow(), ["task 0", "task 1", "task 2"]);
        assert_eq!(executor.live(), 0);
    }

    /// A task that wakes an earlier one must not have it run in the middle of the round, or the order
    /// would depend on who wakes whom.
    #[test]
    fn a_task_woken_during_a_round_runs_in_the_next() {
        let mut executor = Executor::new();
        let log = Log::default();
        let gate = Rc::new(tokio::sync::Notify::new());
        let (first, waiting) = (log.clone(), gate.clone());
        executor.spawn(async move {
            waiting.notified().await;
            note(&first, "woken");
        });
        let second = log.clone();
        executor.spawn(async move {
            gate.notify_one();
            note(&second, "waker");
        });
        let third = log.clone();
        executor.spawn(async move { note(&third, "other") });
        executor.run_ready();
        assert_eq!(*log.borrow(), ["waker", "other", "woken"]);
    }

    /// Time in a run is what makes leases and elections happen: it must pass in order and exactly.
    #[test]
    fn sleepers_wake_at_their_time_in_order() {
        let (mut executor, clock, log) = (Executor::new(), Clock::new(), Log::default());
        for (name, time) in [("late", 30), ("early", 10), ("middle", 20), ("also early", 10)] {
            let (clock, log) = (clock.clone(), log.clone());
            executor.spawn(async move {
                clock.sleep(time).await;
                note(&log, format!("{name} at {}", clock.now()));
            });
        }
        run(&mut executor, &clock);
        assert_eq!(*log.borrow(), ["early at 10", "also early at 10", "middle at 20", "late at 30"]);
        assert_eq!(clock.next_due(), None);
    }

    /// A timer of a call that was given up must not keep the run going.
    #[test]
    fn a_dropped_sleep_leaves_no_timer() {
        let (mut executor, clock, log) = (Executor::new(), Clock::new(), Log::default());
        let (inner, told) = (clock.clone(), log.clone());
        executor.spawn(async move {
            let answer = inner.within(5, inner.sleep(100)).await;
            note(&told, format!("{answer:?} at {}", inner.now()));
            let answer = inner.within(100, inner.sleep(5)).await;
            note(&told, format!("{answer:?} at {}", inner.now()));
        });
        run(&mut executor, &clock);
        assert_eq!(*log.borrow(), ["None at 5", "Some(()) at 10"]);
    }

    /// A cancelled task must neither run again nor count as one that has to be waited for.
    #[test]
    fn a_cancelled_task_is_dropped_and_done() {
        let mut executor = Executor::new();
        let id = executor.spawn(std::future::pending());
        assert!(!executor.is_done(id));
        executor.run_ready();
        assert_eq!((executor.is_done(id), executor.live()), (false, 1));
        executor.cancel(id);
        assert_eq!((executor.is_done(id), executor.live()), (true, 0));
    }

    /// A busy loop must be an error with a name, not a run that never ends.
    #[test]
    #[should_panic(expected = "wake each other for ever")]
    fn a_task_that_never_stops_waking_itself_fails_the_run() {
        let mut executor = Executor::new();
        executor.spawn(async {
            loop {
                tokio::task::yield_now().await;
            }
        });
        executor.run_ready();
    }

    /// Workloads spawn tasks of their own; they must run without the world's help.
    #[test]
    fn a_task_spawned_by_a_task_runs_at_the_same_moment() {
        let mut executor = Executor::new();
        let (log, spawner) = (Log::default(), executor.spawner());
        let told = log.clone();
        executor.spawn(async move {
            let inner = told.clone();
            spawner.spawn(async move { note(&inner, "child") });
            note(&told, "parent");
        });
        executor.run_ready();
        assert_eq!(*log.borrow(), ["parent", "child"]);
    }
}
