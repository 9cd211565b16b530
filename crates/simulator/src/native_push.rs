//! What the native face of a node will do beside answering: one subscription on all native records, read as notices,
//! from which the node's clients hear what is theirs. Everything it is told is written down.
//!
//! It is opened again where it left off, or where the past was compacted, from the present: then clients that waited
//! at this node have to ask, and the log of what was told begins anew.

use std::rc::Rc;
use std::sync::Arc;

use tidelock_coordinator::Coordinator;
use tidelock_model::{
    Caller, KeyRange, NativeNotice, NodeId, Revision, Space, WatchClosed, WatchNotice, WatchRequest, WatcherId,
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
    let push = recorder.with(|history| {
        history.native_pushes.push(NativePush { node, opened: None, notices: Vec::new(), closed: None });
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
    subscription.open(WatchRequest {
        id: WATCHER,
        range: KeyRange::all_of(Space::Lock),
        from: None,
        want_previous: true,
        caller: Caller::Internal,
    });
    loop {
        match subscription.next().await {
            None => return false,
            Some(WatchNotice::Opened { revision: Revision(revision), .. }) => {
                recorder.with(|history| history.native_pushes[push].opened = Some(revision));
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
