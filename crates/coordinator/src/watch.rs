//! Watching: ordered, unique, gapless, resumable, bookmarkable (W1-W9).

use std::task::{Context, Poll};

pub use tidelock_model::{EndedSessions, WatchClosed, WatchNotice, WatchRequest, WatcherId};

use crate::Answering;

/// A bounded queue of notices for any number of watchers. One task takes from it; the other calls
/// may come from anywhere. Dropping the last handle closes all its watchers.
pub trait Subscription: Send + Sync {
    /// Opens a watcher. [`WatchNotice::Opened`] follows, then its events.
    fn open(&self, request: WatchRequest);

    /// Closes a watcher; [`WatchNotice::Closed`] follows if it was open.
    fn close(&self, id: WatcherId);

    /// Asks for one [`WatchNotice::Progress`] as soon as no watcher of the subscription is behind.
    fn request_progress(&self);

    /// From now on [`Subscription::poll_ended`] tells which native sessions end at this node. Without it none is told.
    fn follow_sessions(&self) {}

    /// The sessions that ended since this was last asked, once there is one: told with the entry that ended it. The task is
    /// woken as by [`Subscription::poll_next`].
    fn poll_ended(&self, _: &mut Context<'_>) -> Poll<EndedSessions> {
        Poll::Pending
    }

    /// The next notice; `None` when the node is stopping. If there is none yet, the task of `cx` is woken when there may
    /// be one, or when the node stops: the task that asked last, and no other.
    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<WatchNotice>>;

    /// The same, to be awaited. Nothing is lost if it is dropped before it is done.
    fn next(&self) -> Answering<'_, Option<WatchNotice>> {
        Box::pin(std::future::poll_fn(move |cx| self.poll_next(cx)))
    }
}
