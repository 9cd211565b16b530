//! A face's subscription on a running node: takes from the hub's queue, and re-reads history for
//! watchers that lag, on the face's own time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tidelock_coordinator::{Answering, Subscription, WatchNotice, WatchRequest, WatcherId};
use tidelock_model::WatchClosed;
use tidelock_replica::watch_hub::{Lag, SubscriberId, WatchControl, WatchQueue};
use tokio::sync::Notify;

use crate::shared::{ApplyTask, Shared};

/// Changes looked at under one hold of the lock while re-reading: a part of what fits into the queue.
const PAGE_PART: usize = 4;

pub(crate) struct NodeSubscription {
    shared: Arc<Shared>,
    id: SubscriberId,
    queue: Arc<WatchQueue>,
    filled: Arc<Notify>,
    /// The watcher being re-read for, and how far; one at a time.
    rereading: Mutex<Option<(WatcherId, Lag)>>,
}

impl NodeSubscription {
    pub(crate) fn new(shared: Arc<Shared>) -> NodeSubscription {
        let id = shared.next_subscriber.fetch_add(1, Ordering::Relaxed);
        let filled = Arc::new(Notify::new());
        let wake = filled.clone();
        let queue = Arc::new(WatchQueue::new(shared.limits.watch_queue, move || wake.notify_one()));
        let subscription = NodeSubscription { shared, id, queue: queue.clone(), filled, rereading: Mutex::new(None) };
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
        (!page.events.is_empty()).then_some(WatchNotice::Events { id, revision, events: page.events })
    }

    fn is_rereading(&self) -> bool {
        self.rereading.lock().is_some()
    }

    async fn next_notice(&self) -> Option<WatchNotice> {
        let mut stopped = self.shared.stopped.subscribe();
        loop {
            if self.shared.is_stopped() {
                return None;
            }
            // What was queued for other watchers goes first: it is older than what is read now.
            if let Some(notice) = self.queue.take() {
                return Some(notice);
            }
            if let Some(notice) = self.reread() {
                return Some(notice);
            }
            if self.is_rereading() {
                tokio::task::yield_now().await;
                continue;
            }
            tokio::select! {
                biased;
                () = self.filled.notified() => {}
                _ = stopped.changed() => {}
            }
        }
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

    fn next(&self) -> Answering<'_, Option<WatchNotice>> {
        Box::pin(self.next_notice())
    }
}

impl Drop for NodeSubscription {
    fn drop(&mut self) {
        self.control(WatchControl::Unsubscribe { subscriber: self.id });
    }
}
