//! Who is before whom in a line, followed once for all who wait in it at this node.
//!
//! Keys of a line are named after leases, so their order says nothing about who came first; finding out takes a look
//! at all of them. Here the line is read once and then kept up by its events, so that a key that goes wakes at most
//! those who wait for it: whoever is first now, and whoever lost its place. That costs the same however many wait.
//!
//! What is told is a hint with one half that is certain: as of some revision nobody was before a place. Since new keys
//! only ever come behind, that stays so; whether the place itself is still there, whoever is woken must ask.
//!
//! Bounds: a line is followed as long as somebody at this node waits in it, and holds one entry for each of its keys.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tidelock_coordinator::{Consistency, Coordinator, WatchNotice};
use tidelock_model::{
    Caller, Event, EventKind, Key, KeyRange, OpAnswer, Projection, Query, QueryAnswer, RangeOp, Revision,
};
use tokio::sync::oneshot;

use crate::error_map::FaceError;
use crate::kv::MISMATCH;
use crate::line::watch_keys;

/// The lines that somebody at this node waits in.
#[derive(Default)]
pub(crate) struct FollowedLines {
    all: Mutex<BTreeMap<KeyRange, Weak<FollowedLine>>>,
}

impl FollowedLines {
    /// Follows the line of these keys, together with everybody who does already.
    pub(crate) fn follow(self: &Arc<Self>, keys: &KeyRange, coordinator: &Arc<dyn Coordinator>) -> Arc<FollowedLine> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(followed) = all.get(keys).and_then(Weak::upgrade) {
            return followed;
        }
        let order = Arc::new(Mutex::new(Order::default()));
        let following = follow(Arc::clone(&order), keys.clone(), Arc::clone(coordinator));
        let task = tokio::spawn(following).abort_handle();
        let followed = Arc::new(FollowedLine { order, keys: keys.clone(), lines: Arc::clone(self), task });
        all.insert(keys.clone(), Arc::downgrade(&followed));
        followed
    }
}

/// A line that is being followed until the last who asked for it is gone.
pub(crate) struct FollowedLine {
    order: Arc<Mutex<Order>>,
    keys: KeyRange,
    lines: Arc<FollowedLines>,
    task: tokio::task::AbortHandle,
}

impl Drop for FollowedLine {
    fn drop(&mut self) {
        self.task.abort();
        let mut all = self.lines.all.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody may follow it anew already.
        if all.get(&self.keys).is_some_and(|followed| followed.strong_count() == 0) {
            all.remove(&self.keys);
        }
    }
}

impl FollowedLine {
    /// Waits until nobody is before the place that was created then, or that place itself is gone.
    pub(crate) async fn until_first(&self, key: &Key, created: Revision) -> Result<(), FaceError> {
        let woken = lock(&self.order).wait(key, created)?;
        match woken {
            None => Ok(()),
            // The one who follows is gone, which it never is before all who wait unless the node stops.
            Some(woken) => woken.await.map_err(|_| FaceError::Stopped),
        }
    }
}

fn lock(order: &Mutex<Order>) -> MutexGuard<'_, Order> {
    order.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the line and keeps up with it until the node stops, or until nobody wants to know any more.
async fn follow(order: Arc<Mutex<Order>>, keys: KeyRange, coordinator: Arc<dyn Coordinator>) {
    loop {
        let all = RangeOp { projection: Projection::KeysOnly, ..RangeOp::all(keys.clone()) };
        // What this node has is enough: whoever is woken asks the others.
        let answer = coordinator.read(Caller::Internal, Query::Range(all), Consistency::Local).await;
        let since = match answer.map_err(FaceError::from).and_then(|answer| lock(&order).restart(answer)) {
            Ok(since) => since,
            Err(error) => return lock(&order).stop(error),
        };
        let subscription = watch_keys(&*coordinator, &Caller::Internal, [keys.clone()].into_iter(), since);
        loop {
            match subscription.next().await {
                Some(WatchNotice::Events { revision, events, .. }) => lock(&order).take(revision, &events),
                // Compacted away before it was told: only looking can tell.
                Some(WatchNotice::Closed { .. }) => break,
                Some(WatchNotice::Opened { .. } | WatchNotice::Progress { .. }) => {}
                None => return lock(&order).stop(FaceError::Stopped),
            }
        }
    }
}

/// The keys of a line in the order in which they came. Without IO.
#[derive(Default)]
struct Order {
    /// Up to here everything is known; nothing before the line was read.
    known: Option<Revision>,
    created: BTreeMap<Key, Revision>,
    places: BTreeSet<(Revision, Key)>,
    /// Who waits, by place.
    waiting: BTreeMap<(Revision, Key), Vec<oneshot::Sender<()>>>,
    /// Nobody follows any more.
    stopped: Option<FaceError>,
}

impl Order {
    /// Nothing: there is nothing to wait for.
    fn wait(&mut self, key: &Key, created: Revision) -> Result<Option<oneshot::Receiver<()>>, FaceError> {
        if let Some(error) = self.stopped {
            return Err(error);
        }
        let place = (created, key.clone());
        if self.is_decided(&place) {
            return Ok(None);
        }
        let (wake, woken) = oneshot::channel();
        let waiting = self.waiting.entry(place).or_default();
        waiting.retain(|other| !other.is_closed());
        waiting.push(wake);
        Ok(Some(woken))
    }

    /// Whether nobody is before a place any more, or it is gone.
    fn is_decided(&self, place: &(Revision, Key)) -> bool {
        let is_first = self.places.first().is_none_or(|(first, _)| *first >= place.0);
        self.known.is_some_and(|known| known >= place.0) && (is_first || !self.places.contains(place))
    }

    /// Begins anew with all of the line. Gives the revision that this was at.
    fn restart(&mut self, answer: QueryAnswer) -> Result<Revision, FaceError> {
        let QueryAnswer::Op { revision, answer: OpAnswer::Range(found) } = answer else { return Err(MISMATCH) };
        let place = |item: &tidelock_model::KeyValue| (item.record.meta().created, item.key.clone());
        self.places = found.items.iter().map(place).collect();
        self.created = self.places.iter().map(|(created, key)| (key.clone(), *created)).collect();
        self.known = Some(revision);
        let places: Vec<(Revision, Key)> = self.waiting.keys().cloned().collect();
        places.iter().filter(|place| self.is_decided(place)).cloned().collect::<Vec<_>>().iter().for_each(|place| {
            self.wake(place);
        });
        Ok(revision)
    }

    /// Takes in what happened up to `revision`.
    fn take(&mut self, revision: Revision, events: &[Event]) {
        for event in events {
            let created = match event.kind() {
                EventKind::Delete => None,
                _ => Some(event.record.meta().created),
            };
            self.set(&event.key, created);
        }
        self.known = self.known.max(Some(revision));
        // Whoever is first now; behind it nobody is, and before it nobody waits.
        let first = self.places.first().map_or(revision, |(first, _)| *first);
        while let Some((place, _)) = self.waiting.first_key_value()
            && place.0 <= first
            && self.known.is_some_and(|known| known >= place.0)
        {
            let place = place.clone();
            self.wake(&place);
        }
    }

    /// Puts a key where it was created, or takes it away.
    fn set(&mut self, key: &Key, created: Option<Revision>) {
        let before = match created {
            Some(created) => self.created.insert(key.clone(), created),
            None => self.created.remove(key),
        };
        if let Some(before) = before.filter(|before| Some(*before) != created) {
            let place = (before, key.clone());
            self.places.remove(&place);
            self.wake(&place);
        }
        if let Some(created) = created {
            self.places.insert((created, key.clone()));
        }
    }

    fn wake(&mut self, place: &(Revision, Key)) {
        for waiting in self.waiting.remove(place).unwrap_or_default() {
            // It may have gone away meanwhile.
            let _ = waiting.send(());
        }
    }

    fn stop(&mut self, error: FaceError) {
        self.stopped = Some(error);
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_double::item;
    use tidelock_model::{RangeAnswer, Record};

    fn range(items: &[(&str, u64)]) -> QueryAnswer {
        let items: Vec<_> = items.iter().map(|(name, created)| item(name, Revision(*created))).collect();
        let answer = OpAnswer::Range(RangeAnswer { count: items.len() as u64, items, more: false });
        QueryAnswer::Op { revision: Revision(20), answer }
    }

    fn key(name: &str) -> Key {
        item(name, Revision(1)).key
    }

    fn deleted(name: &str) -> Event {
        Event { key: key(name), record: Record::tombstone(Revision(30), 0), previous: None }
    }

    fn is_woken(woken: &mut Option<oneshot::Receiver<()>>) -> bool {
        woken.as_mut().is_none_or(|woken| woken.try_recv().is_ok())
    }

    /// A thousand who wait must not all wake because one unlocks: only who is next has anything to do.
    #[test]
    fn a_key_that_goes_wakes_whoever_is_first_now_and_nobody_else() {
        let mut order = Order::default();
        order.restart(range(&[("l/9", 3), ("l/5", 4), ("l/1", 5), ("l/7", 6)])).unwrap();
        assert!(order.wait(&key("l/9"), Revision(3)).unwrap().is_none(), "the first does not wait");
        let [mut second, mut third, mut fourth] =
            [("l/5", 4), ("l/1", 5), ("l/7", 6)].map(|(name, at)| order.wait(&key(name), Revision(at)).unwrap());
        order.take(Revision(30), &[deleted("l/1")]);
        assert_eq!([&mut second, &mut third, &mut fourth].map(is_woken), [false, true, false], "its place is gone");
        order.take(Revision(31), &[deleted("l/9")]);
        assert_eq!([&mut second, &mut fourth].map(is_woken), [true, false]);
        order.take(Revision(32), &[deleted("l/5")]);
        assert!(is_woken(&mut fourth));
        assert!(order.waiting.is_empty());
    }

    /// A node that has not heard of those before a place yet must not take it for the first.
    #[test]
    fn nobody_is_first_before_the_line_is_known_up_to_its_place() {
        let mut order = Order::default();
        let mut early = order.wait(&key("l/5"), Revision(25)).unwrap();
        order.restart(range(&[("l/9", 3)])).unwrap();
        assert!(!is_woken(&mut early), "known up to 20");
        order.take(Revision(21), &[deleted("l/9")]);
        assert!(!is_woken(&mut early), "somebody may be in between");
        let entered = |name: &str, at| {
            let found = item(name, Revision(at));
            Event { key: found.key, record: found.record, previous: None }
        };
        order.take(Revision(24), &[entered("l/8", 24)]);
        order.take(Revision(25), &[entered("l/5", 25)]);
        assert!(!is_woken(&mut early), "one was");
        order.take(Revision(26), &[deleted("l/8")]);
        assert!(is_woken(&mut early));
    }

    /// Who asks after the node began to stop would otherwise wait for ever.
    #[test]
    fn a_line_that_nobody_follows_any_more_is_not_waited_in() {
        let mut order = Order::default();
        let mut waiting = order.wait(&key("l/5"), Revision(4)).unwrap().unwrap();
        order.stop(FaceError::Stopped);
        assert!(waiting.try_recv().is_err());
        assert_eq!(order.wait(&key("l/5"), Revision(4)).err(), Some(FaceError::Stopped));
    }
}
