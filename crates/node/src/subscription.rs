//! A face's subscription on a running node: takes from the hub's queue, and re-reads history for
//! watchers that lag, on the face's own time.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tidelock_coordinator::{EndedSessions, Subscription, WatchNotice, WatchRequest, WatcherId};
use tidelock_model::WatchClosed;
use tidelock_replica::watch_hub::{Lag, SubscriberId, WatchControl, WatchQueue};

use crate::shared::{ApplyTask, Shared};

/// Changes looked at under one hold of the lock while re-reading: a part of what fits into the queue.
const PAGE_PART: usize = 4;

pub(crate) struct NodeSubscription {
    shared: Arc<Shared>,
    id: SubscriberId,
    queue: Arc<WatchQueue>,
    /// Wakes the task that takes from the queue too; nothing before it was first asked, or after the node stopped.
    stopped: Mutex<Option<Stopped>>,
    /// The watcher being re-read for, and how far; one at a time.
    rereading: Mutex<Option<(WatcherId, Lag)>>,
}

/// Resolves when the node stops.
type Stopped = Pin<Box<dyn Future<Output = ()> + Send>>;

impl NodeSubscription {
    pub(crate) fn new(shared: Arc<Shared>) -> NodeSubscription {
        let id = shared.next_subscriber.fetch_add(1, Ordering::Relaxed);
        let queue = Arc::new(WatchQueue::new(shared.limits.watch_queue));
        let (stopped, rereading) = (Mutex::new(None), Mutex::new(None));
        let subscription = NodeSubscription { shared, id, queue: queue.clone(), stopped, rereading };
        subscription.control(WatchControl::Subscribe { subscriber: id, queue });
        subscription
    }

    fn control(&self, control: WatchControl) {
        self.shared.apply.push(ApplyTask::Watch(control));
    }

    /// Re-reads one page for a lagging watcher. Gives events to tell, if the page had any.
    fn reread(&self) -> Option<WatchNotice> {
        let mut rereading = self.rereading.lock();
        let (id, mut lag) = rereading.take().or_else(|| self.queue.take_lagging())?;
        let state = self.shared.state.read();
        let changes = (self.shared.limits.watch_queue.events / PAGE_PART).max(1);
        let page = match state.events_page(&lag.range, lag.next, changes, lag.want_previous) {
            Ok(page) => page,
            Err(_) => {
                let why = WatchClosed::Compacted { compacted: state.compacted() };
                if !tidelock_model::planted!(CompactedWatchStaysSilent) {
                    self.control(WatchControl::Close { subscriber: self.id, watcher: id, why });
                }
                return None;
            }
        };
        let revision = state.revision();
        drop(state);
        lag.next = page.next;
        if page.next > revision {
            // Caught up with what there was; the hub closes the rest of the gap.
            self.control(WatchControl::TakeBack { subscriber: self.id, watcher: id, next: page.next });
        } else {
            *rereading = Some((id, lag));
        }
        (!page.events.is_empty()).then_some(WatchNotice::Events { id, revision, events: page.events.into() })
    }

    fn wake_when_stopped(&self, cx: &mut Context<'_>) {
        let mut stopped = self.stopped.lock();
        let waiting = stopped.get_or_insert_with(|| {
            let mut stopped = self.shared.stopped.subscribe();
            Box::pin(async move { drop(stopped.wait_for(Option::is_some).await) })
        });
        if waiting.as_mut().poll(cx).is_ready() {
            *stopped = None;
        }
    }

    fn is_rereading(&self) -> bool {
        self.rereading.lock().is_some()
    }
}

impl Subscription for NodeSubscription {
    fn open(&self, request: WatchRequest) {
        self.control(WatchControl::Open { subscriber: self.id, request });
    }

    fn close(&self, id: WatcherId) {
        let why = WatchClosed::Requested;
        self.control(WatchControl::Close { subscriber: self.id, watcher: id, why });
    }

    fn request_progress(&self) {
        self.control(WatchControl::Progress { subscriber: self.id });
    }

    fn follow_sessions(&self) {
        self.control(WatchControl::FollowSessions { subscriber: self.id });
    }

    fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<EndedSessions> {
        if self.queue.is_taken_by(cx.waker()) {
            self.wake_when_stopped(cx);
        }
        self.queue.take_ended().map_or(Poll::Pending, Poll::Ready)
    }

    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<WatchNotice>> {
        // First of all: what comes from now on wakes the task, and what came before is found below.
        if self.queue.is_taken_by(cx.waker()) {
            self.wake_when_stopped(cx);
        }
        // What was queued for other watchers goes first: it is older than what is read now.
        if let Some(notice) = self.queue.take() {
            return Poll::Ready(Some(notice));
        }
        if self.shared.is_stopped() {
            return Poll::Ready(None);
        }
        if let Some(notice) = self.reread() {
            return Poll::Ready(Some(notice));
        }
        if self.is_rereading() {
            // There is more to read; others have a turn before.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Drop for NodeSubscription {
    fn drop(&mut self) {
        self.control(WatchControl::Unsubscribe { subscriber: self.id });
    }
}
