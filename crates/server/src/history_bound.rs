//! Keeping history from growing without end.
//!
//! Nobody who only takes locks, or speaks ZooKeeper's protocol, can say that old versions are not needed any more: each
//! stays until the store is full and refuses everything. So the leader forgets the older half of what is kept,
//! whenever that is more revisions than allowed, or the store has used half of its quota; then what is younger than a
//! second stays, for readers and watchers that were away for a moment, until the quota is nearly used up.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use tidelock_coordinator::{Coordinator, Role};
use tidelock_model::Revision;

use crate::auto_compaction;
use crate::quota::Quota;

/// How often it is looked at: as often as the quota is, half of which must not be used up between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How many looks make the second that is kept.
const LOOKS_KEPT: usize = 10;
/// How long until the next look when history could not be forgotten: something else has to change first.
const PAUSE: Duration = Duration::from_secs(1);
/// What is kept of a store that is filling up by what it holds now: enough for a watcher that was away for a moment.
const KEPT_MIN: u64 = 1_000;

/// What may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HistoryBound {
    pub(crate) revisions_max: NonZeroU64,
    pub(crate) quota: Quota,
}

impl HistoryBound {
    /// Where to forget to, if it is too much. `young` is the newest revision of a second ago.
    fn target(&self, compacted: Revision, newest: Revision, young: Revision, data_bytes: u64) -> Option<Revision> {
        let kept = newest.0.saturating_sub(compacted.0);
        let half = Revision(newest.0 - kept / 2);
        if kept > self.revisions_max.get() {
            return Some(half);
        }
        let Quota::Bytes(quota) = self.quota else { return None };
        if kept <= KEPT_MIN || data_bytes <= quota / 2 {
            return None;
        }
        let is_nearly_full = data_bytes > quota / 4 * 3;
        let to = if is_nearly_full { half } else { half.min(young) };
        (to > compacted).then_some(to)
    }
}

/// Forgets for as long as it is polled.
pub(crate) async fn run(coordinator: Arc<dyn Coordinator>, bound: HistoryBound) {
    let mut looks = tokio::time::interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut seen = VecDeque::with_capacity(LOOKS_KEPT + 1);
    loop {
        looks.tick().await;
        let status = coordinator.status();
        seen.push_back(status.revision);
        if seen.len() > LOOKS_KEPT {
            seen.pop_front();
        }
        let target = bound.target(status.compacted, status.revision, seen[0], status.data_bytes);
        let Some(to) = target.filter(|_| status.role == Role::Leader) else { continue };
        if auto_compaction::forget(&*coordinator, to).await {
            tracing::debug!(revision = %to, "forgot older history");
            // Until it is swept it counts as held: the next look would forget more than is needed.
            coordinator.wait_until_swept().await;
        } else {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(quota: Quota) -> HistoryBound {
        HistoryBound { revisions_max: NonZeroU64::new(10_000).unwrap(), quota }
    }

    /// Half is kept, so that nobody who is a moment behind is told that it is too late.
    #[test]
    fn the_older_half_goes_when_there_are_too_many_revisions() {
        let target =
            |newest| bound(Quota::Unlimited).target(Revision(500), Revision(newest), Revision(newest), u64::MAX);
        assert_eq!(target(10_500), None);
        assert_eq!(target(10_501), Some(Revision(5_501)));
    }

    /// A store whose quota is used up refuses everything, and nobody who only takes locks could make room.
    #[test]
    fn the_older_half_goes_when_the_quota_is_half_used() {
        let target =
            |newest, bytes| bound(Quota::Bytes(1_000)).target(Revision(1), Revision(newest), Revision(newest), bytes);
        assert_eq!(target(5_001, 500), None);
        assert_eq!(target(5_001, 501), Some(Revision(2_501)));
        assert_eq!(target(900, 501), None, "what is there now fills it: forgetting more would make no room");
    }

    /// A store may be more than half full of what it holds now. Who was away for a moment finds what it missed all the same.
    #[test]
    fn what_is_younger_than_a_second_stays_until_the_quota_is_nearly_used() {
        let target =
            |young, bytes| bound(Quota::Bytes(1_000)).target(Revision(1), Revision(5_001), Revision(young), bytes);
        assert_eq!(target(2_000, 750), Some(Revision(2_000)));
        assert_eq!(target(1, 750), None, "all there is is young");
        assert_eq!(target(2_000, 751), Some(Revision(2_501)));
    }
}
