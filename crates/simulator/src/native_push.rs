//! What the native face of a node does beside answering: one subscription on all native records, read as notices, that
//! follows sessions, too. From it the node's clients hear what is theirs. Everything it is told is written down.
//!
//! It is opened anew from the present where the past was compacted, or where sessions ended and nobody can tell which:
//! then clients that waited at this node have to ask, and the log of what was told begins anew.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tidelock_coordinator::{Coordinator, Subscription};
use tidelock_model::{
    Caller, EndedSessions, KeyRange, NativeNotice, NodeId, Revision, Space, WatchClosed, WatchNotice, WatchRequest,
    WatcherId,
};

use crate::client::Recorder;
use crate::doors::{Doors, within};
use crate::executor::Spawner;
use crate::history::NativePush;

/// The one watcher of the subscription.
const WATCHER: WatcherId = WatcherId(1);

/// Has a node that just started listen: begins a log and fills it until the node ends.
pub(crate) fn start(
    doors: &Doors,
    node: NodeId,
    coordinator: Arc<dyn Coordinator>,
    recorder: &Recorder,
    spawner: &Spawner,
) {
    let began = recorder.stamp();
    let push = recorder.with(|history| {
        history.native_pushes.push(NativePush::new(node, began));
        history.native_pushes.len() - 1
    });
    let Some(room) = doors.open_native(node, push) else { return };
    let (doors, again, recorder) = (doors.clone(), spawner.clone(), recorder.clone());
    spawner.spawn(async move {
        let ended = within(&Rc::clone(&room), take(coordinator.clone(), &recorder, push)).await;
        let stamp = recorder.stamp();
        recorder.with(|history| history.native_pushes[push].closed = Some(stamp));
        // Whoever fell so far behind that the past is gone begins anew; a node that ends does not.
        if matches!(ended, Ok(true)) && !room.is_broken() {
            start(&doors, node, coordinator, &recorder, &again);
        }
    });
}

/// Takes what comes; whether the subscription ended while the node goes on.
async fn take(coordinator: Arc<dyn Coordinator>, recorder: &Recorder, push: usize) -> bool {
    let subscription = coordinator.subscribe();
    subscription.follow_sessions();
    subscription.open(WatchRequest {
        id: WATCHER,
        range: KeyRange::all_of(Space::Lock),
        from: None,
        want_previous: true,
        caller: Caller::Internal,
    });
    loop {
        let notice = match std::future::poll_fn(|cx| poll_either(&*subscription, cx)).await {
            Heard::Notice(notice) => notice,
            Heard::Ended(EndedSessions { missed: true, .. }) => return true,
            Heard::Ended(EndedSessions { sessions, .. }) => {
                let stamp = recorder.stamp();
                let ended = sessions.into_iter().map(|session| (stamp, session));
                recorder.with(|history| history.native_pushes[push].ended.extend(ended));
                continue;
            }
        };
        match notice {
            None => return false,
            Some(WatchNotice::Opened { revision: Revision(revision), .. }) => {
                let stamp = recorder.stamp();
                recorder.with(|history| history.native_pushes[push].opened = Some((stamp, revision)));
            }
            Some(WatchNotice::Events { events, .. }) => {
                let stamp = recorder.stamp();
                let notices = events
                    .iter()
                    .filter_map(|event| Some((stamp, event.record.meta().modified.0, NativeNotice::of(event)?)));
                recorder.with(|history| history.native_pushes[push].notices.extend(notices));
            }
            Some(WatchNotice::Progress { .. }) => {}
            Some(WatchNotice::Closed { why, .. }) => return matches!(why, WatchClosed::Compacted { .. }),
        }
    }
}

/// What a subscription tells.
enum Heard {
    Notice(Option<WatchNotice>),
    Ended(EndedSessions),
}

/// What happened is older than who ended with it.
fn poll_either(subscription: &dyn Subscription, cx: &mut Context<'_>) -> Poll<Heard> {
    match subscription.poll_next(cx) {
        Poll::Ready(notice) => Poll::Ready(Heard::Notice(notice)),
        Poll::Pending => subscription.poll_ended(cx).map(Heard::Ended),
    }
}
