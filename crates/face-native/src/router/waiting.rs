//! Who waits for one place of a queue and has no stream: woken when something happens to that very place, and by
//! nothing else (L8). However many wait for one name, a release wakes the one that it lets in.

use std::sync::Arc;

use tidelock_model::Kind;
use tokio::sync::Notify;

use super::{Map, Router};

/// A place: a hash of kind and name, and its number.
type Place = (u64, u64);

/// Those who wait, by what they wait for. More than one only if a request is asked again while its first reply is held
/// back.
#[derive(Default)]
pub(super) struct Waiting(Map<Place, Vec<Arc<Notify>>>);

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn wake(&self, place: Place) {
        self.0.get(&place).into_iter().flatten().for_each(|waiter| waiter.notify_one());
    }

    /// Has everybody look again.
    pub(super) fn wake_all(&self) {
        self.0.values().flatten().for_each(|waiter| waiter.notify_one());
    }
}

/// Somebody who waits, until it is dropped.
pub(crate) struct Waiter<'a> {
    router: &'a Router,
    place: Place,
    woken: Arc<Notify>,
}

impl Router {
    /// Has somebody woken from now on whenever something happens to a place.
    pub(crate) fn wait_at(&self, kind: Kind, name: &str, number: u64) -> Waiter<'_> {
        let (place, woken) = ((self.name_hash(kind, name), number), Arc::new(Notify::new()));
        self.lock().waiting.0.entry(place).or_default().push(Arc::clone(&woken));
        Waiter { router: self, place, woken }
    }
}

impl Waiter<'_> {
    /// Waits until something happened since the last time, or the node stops: whether it goes on.
    pub(crate) async fn happened(&self) -> bool {
        if !self.router.lock().stopped {
            self.woken.notified().await;
        }
        !self.router.lock().stopped
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut table = self.router.lock();
        if let Some(waiters) = table.waiting.0.get_mut(&self.place) {
            waiters.retain(|waiter| !Arc::ptr_eq(waiter, &self.woken));
            if waiters.is_empty() {
                table.waiting.0.remove(&self.place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_double::{Double, grant};
    use crate::{FaceConfig, NativeFace};
    use futures_util::FutureExt;
    use std::time::Duration;

    /// L8: a thousand replies that are held back for one lock must not all look again with every release.
    #[tokio::test]
    async fn l8_a_grant_wakes_who_waits_for_that_place_and_nobody_else() {
        let double = Arc::new(Double::default());
        let face = NativeFace::new(double.clone(), FaceConfig::default());
        let router = &face.services().router;
        // Everybody looks again when events begin to be followed.
        drop(router.table_once_open().await);
        let waiters: Vec<Waiter<'_>> = (1..=1000).map(|place| router.wait_at(Kind::Lock, "n", place)).collect();
        let others = [router.wait_at(Kind::Semaphore, "n", 500), router.wait_at(Kind::Lock, "m", 500)];
        double.happen(grant("n", 7, 500, 2000));
        let woken = tokio::time::timeout(Duration::from_secs(20), waiters[499].happened()).await;
        assert!(woken.expect("woken in time"), "the node goes on");
        let is_woken = |waiter: &Waiter<'_>| waiter.woken.notified().now_or_never().is_some();
        assert_eq!(waiters.iter().chain(&others).filter(|waiter| is_woken(waiter)).count(), 0);
        drop((waiters, others));
        assert!(router.lock().waiting.is_empty(), "who waits no more is forgotten");
    }

    /// Who looked before events are followed is not told what happened in between. Were it not woken to look again, it
    /// would wait until its time is over and give back a lock that it holds.
    #[tokio::test]
    async fn who_waits_looks_again_when_events_are_followed() {
        let face = NativeFace::new(Arc::new(Double::default()), FaceConfig::default());
        let router = &face.services().router;
        let waiter = router.wait_at(Kind::Lock, "n", 1);
        assert_eq!(router.routed(), 0, "not followed yet");
        let woken = tokio::time::timeout(Duration::from_secs(20), waiter.happened()).await;
        assert!(woken.expect("woken in time"), "the node goes on");
        assert!(router.routed() > 0);
    }

    /// A node that stops must not keep anybody waiting for an answer that will not come.
    #[tokio::test]
    async fn who_waits_is_told_when_the_node_stops() {
        let face = NativeFace::new(Arc::new(Double::default()), FaceConfig::default());
        let router = &face.services().router;
        let waiter = router.wait_at(Kind::Lock, "n", 1);
        let (goes_on, ()) = tokio::join!(waiter.happened(), async { router.stop() });
        assert!(!goes_on);
    }
}
