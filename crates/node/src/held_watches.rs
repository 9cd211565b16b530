//! Watches of a node that just started: until all that was agreed on before is carried out here, "from now on" would be a
//! moment that clients have seen the end of, and they would be told again what they know (H14).
//!
//! Held back are watches of clients' keys from now on, and what their subscriptions ask for after them. A watch that names
//! its revision misses and repeats nothing whenever it begins. Those who watch znodes say themselves what they have seen.

use tidelock_model::Space;
use tidelock_replica::watch_hub::{SubscriberId, WatchControl};

/// What waits, in order.
#[derive(Default)]
pub(crate) struct HeldWatches(Vec<WatchControl>);

impl HeldWatches {
    /// Holds `control` back if it must wait; otherwise gives it back.
    pub(crate) fn pass(&mut self, control: WatchControl) -> Option<WatchControl> {
        let subscriber = subscriber_of(&control);
        let is_gone = matches!(control, WatchControl::Unsubscribe { .. });
        if is_gone {
            self.0.retain(|held| subscriber_of(held) != subscriber);
        }
        let is_behind = self.0.iter().any(|held| subscriber_of(held) == subscriber);
        if is_behind || begins_now(&control) {
            self.0.push(control);
            return None;
        }
        Some(control)
    }

    /// Whether anybody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All that waited.
    pub(crate) fn release(&mut self) -> Vec<WatchControl> {
        std::mem::take(&mut self.0)
    }
}

fn begins_now(control: &WatchControl) -> bool {
    let WatchControl::Open { request, .. } = control else { return false };
    request.from.is_none() && request.range.start.space_byte() == Some(Space::User as u8)
}

fn subscriber_of(control: &WatchControl) -> SubscriberId {
    match control {
        WatchControl::Subscribe { subscriber, .. }
        | WatchControl::Unsubscribe { subscriber }
        | WatchControl::Open { subscriber, .. }
        | WatchControl::Close { subscriber, .. }
        | WatchControl::FollowSessions { subscriber }
        | WatchControl::Progress { subscriber }
        | WatchControl::TakeBack { subscriber, .. } => *subscriber,
    }
}

#[cfg(test)]
mod tests {
    use tidelock_model::{Caller, KeyRange, Revision, WatchClosed, WatchRequest, WatcherId};

    use super::*;

    fn open(subscriber: SubscriberId, space: Space, from: Option<Revision>) -> WatchControl {
        let request = WatchRequest {
            id: WatcherId(1),
            range: KeyRange::all_of(space),
            from,
            want_previous: false,
            caller: Caller::Internal,
        };
        WatchControl::Open { subscriber, request }
    }

    /// Who asks for keys from now on waits, and so does what it asks for next; nobody else does.
    #[test]
    fn what_begins_now_waits_with_all_that_follows_it() {
        let mut held = HeldWatches::default();
        assert!(held.pass(open(1, Space::User, None)).is_none());
        let close = WatchControl::Close { subscriber: 1, watcher: WatcherId(1), why: WatchClosed::Requested };
        assert!(held.pass(close).is_none(), "it closes what is not open yet");
        assert!(held.pass(open(1, Space::User, Some(Revision(5)))).is_none(), "in order");
        for other in [open(2, Space::User, Some(Revision(5))), open(3, Space::Tree, None), open(4, Space::Lock, None)] {
            assert!(held.pass(other).is_some());
        }
        assert!(held.pass(open(5, Space::User, None)).is_none());
        assert!(held.pass(WatchControl::Unsubscribe { subscriber: 5 }).is_some());
        let released: Vec<SubscriberId> = held.release().iter().map(subscriber_of).collect();
        assert_eq!((released, held.is_empty()), (vec![1, 1, 1], true), "who is gone waits no more");
    }
}
