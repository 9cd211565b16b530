//! The queue between the hub and the one task that serves a subscription.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use tidelock_model::{EndedSessions, KeyRange, LeaseId, Revision, WatchNotice, WatcherId};

/// Most ended sessions that wait in one subscription: more than end while a node stands still for seconds. Who has more to
/// hear of is told that it missed some.
const ENDED_MAX: usize = 1 << 20;

/// What may wait in one subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Events.
    pub events: usize,
    /// Bytes of keys and values. They are shared with the store, so a slow reader keeps at most this much
    /// alive.
    pub bytes: usize,
}

impl Default for QueueLimits {
    fn default() -> QueueLimits {
        QueueLimits { events: 4096, bytes: 4 << 20 }
    }
}

/// What a lagging watcher still has to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lag {
    /// From which revision on.
    pub next: Revision,
    /// Of which keys.
    pub range: KeyRange,
    /// With the versions replaced.
    pub want_previous: bool,
}

#[derive(Default)]
struct Content {
    notices: VecDeque<WatchNotice>,
    events: usize,
    bytes: usize,
    lagging: BTreeMap<WatcherId, Lag>,
    ended: EndedSessions,
    /// The task that takes from the queue. Known from one notice to the next, and kept here, with what is looked at anyway:
    /// when hundreds are woken, each further place in memory is what it costs.
    taker: Option<Waker>,
}

/// Notices on their way to one subscription, in order, and the watchers that lag behind.
pub struct WatchQueue {
    content: Mutex<Content>,
    limits: QueueLimits,
}

fn weight(notice: &WatchNotice) -> (usize, usize) {
    match notice {
        WatchNotice::Events { events, .. } => {
            let bytes = events.iter().map(|event| event.key.as_stored().len() + event.record.value().len()).sum();
            (events.len(), bytes)
        }
        _ => (0, 0),
    }
}

impl WatchQueue {
    /// An empty queue.
    #[must_use]
    pub fn new(limits: QueueLimits) -> WatchQueue {
        WatchQueue { content: Mutex::default(), limits }
    }

    /// Has this task woken from now on when there is something to take. Whether another was before.
    pub fn is_taken_by(&self, task: &Waker) -> bool {
        let mut content = self.lock();
        let is_new = !content.taker.as_ref().is_some_and(|taker| taker.will_wake(task));
        if is_new {
            content.taker = Some(task.clone());
        }
        is_new
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        // Nothing panics while holding it; if something did, the content is still whole.
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn limits(&self) -> QueueLimits {
        self.limits
    }

    pub(super) fn wake(&self) {
        // Not under the lock: the task may come at once.
        let taker = self.lock().taker.clone();
        if let Some(taker) = taker {
            taker.wake();
        }
    }

    /// Queues events unless there is no room. An empty queue takes any one notice, however large.
    pub(super) fn offer(&self, notice: WatchNotice) -> bool {
        let (events, bytes) = weight(&notice);
        let mut content = self.lock();
        let fits = content.events + events <= self.limits.events && content.bytes + bytes <= self.limits.bytes;
        if content.events > 0 && !fits {
            return false;
        }
        content.events += events;
        content.bytes += bytes;
        content.notices.push_back(notice);
        true
    }

    /// Queues what is not an event; those are as many as there are watchers and requests.
    pub(super) fn push(&self, notice: WatchNotice) {
        self.lock().notices.push_back(notice);
    }

    pub(super) fn end_session(&self, session: LeaseId) {
        let mut content = self.lock();
        if content.ended.sessions.len() >= ENDED_MAX {
            content.ended = EndedSessions { sessions: Vec::new(), missed: true };
        }
        let is_lost = tidelock_model::planted!(EndsToldWhenIdle) && !content.notices.is_empty();
        if !content.ended.missed && !is_lost {
            content.ended.sessions.push(session);
        }
    }

    /// Sessions may have ended that nobody tells of.
    pub(super) fn miss_ended(&self) {
        self.lock().ended = EndedSessions { sessions: Vec::new(), missed: true };
    }

    /// The sessions that ended since this was last asked, if any.
    pub fn take_ended(&self) -> Option<EndedSessions> {
        let mut content = self.lock();
        let is_news = content.ended.missed || !content.ended.sessions.is_empty();
        is_news.then(|| std::mem::take(&mut content.ended))
    }

    pub(super) fn lag(&self, id: WatcherId, lag: Lag) {
        self.lock().lagging.insert(id, lag);
    }

    pub(super) fn caught_up(&self, id: WatcherId) {
        self.lock().lagging.remove(&id);
    }

    /// The next notice, if any.
    pub fn take(&self) -> Option<WatchNotice> {
        let mut content = self.lock();
        let notice = content.notices.pop_front()?;
        let (events, bytes) = weight(&notice);
        content.events -= events;
        content.bytes -= bytes;
        Some(notice)
    }

    /// A lagging watcher to re-read for, if any, once no notice waits: what was queued is older than what
    /// would be read, and a watcher's first notice says that it exists. It is taken out: the one who
    /// re-reads says how far it came by asking the hub to take the watcher back.
    pub fn take_lagging(&self) -> Option<(WatcherId, Lag)> {
        let mut content = self.lock();
        if content.notices.is_empty() { content.lagging.pop_first() } else { None }
    }
}

impl fmt::Debug for WatchQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let content = self.lock();
        write!(f, "WatchQueue({} notices, {} lagging)", content.notices.len(), content.lagging.len())
    }
}
