//! Who has something to do: the calls of a connection that were woken, and what was read of requests.
//!
//! Calls are answered by other threads, often many at a time. Each of them is noted here, and the connection's task is
//! woken for the first of them only: it takes them all when it comes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

/// What a connection's task has to look at.
#[derive(Debug, Default)]
pub(super) struct Ready(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    /// Places of calls, each once.
    places: Vec<usize>,
    /// Streams, and how many bytes of their requests were read.
    reads: Vec<(u32, usize)>,
    task: Option<Waker>,
    /// The task is at it, or was woken: it will look here again.
    awake: bool,
}

impl Noted {
    /// The task, if it has to be woken. To be called when something was noted.
    fn wakes(&mut self) -> Option<Waker> {
        if std::mem::replace(&mut self.awake, true) { None } else { self.task.clone() }
    }
}

impl Ready {
    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task begins to look: takes what was noted. `places` must be empty.
    pub(super) fn begin(&self, places: &mut Vec<usize>, cx: &Context<'_>) {
        let mut noted = self.lock();
        noted.awake = true;
        if !noted.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            noted.task = Some(cx.waker().clone());
        }
        std::mem::swap(&mut noted.places, places);
    }

    /// The task is through: what was read meanwhile, and whether it must come again by itself.
    pub(super) fn end(&self, reads: &mut Vec<(u32, usize)>) -> bool {
        let mut noted = self.lock();
        std::mem::swap(&mut noted.reads, reads);
        noted.awake = !noted.places.is_empty();
        noted.awake
    }

    /// Something of a request was read.
    pub(super) fn note_read(&self, stream: u32, bytes: usize) {
        let mut noted = self.lock();
        noted.reads.push((stream, bytes));
        let task = noted.wakes();
        drop(noted);
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// Wakes the call at one place. Kept with the place, for all calls that come to it: one that is woken for a call
/// before it looks in vain.
#[derive(Debug)]
pub(super) struct Bell {
    ready: Arc<Ready>,
    place: usize,
    rung: AtomicBool,
}

impl Bell {
    pub(super) fn new(ready: &Arc<Ready>, place: usize) -> Arc<Bell> {
        Arc::new(Bell { ready: Arc::clone(ready), place, rung: AtomicBool::new(false) })
    }

    /// Rings. Whether nobody did since the call was looked at.
    pub(super) fn ring(&self) -> bool {
        !self.rung.swap(true, Ordering::AcqRel)
    }

    /// The call is looked at now: from here on it can be woken again.
    pub(super) fn answer(&self) {
        self.rung.store(false, Ordering::Release);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Bell>) {
        if !self.ring() {
            return;
        }
        let mut noted = self.ready.lock();
        noted.places.push(self.place);
        let task = noted.wakes();
        drop(noted);
        if let Some(task) = task {
            task.wake();
        }
    }
}
