//! Keeping history from growing without end.
//!
//! Nobody who only takes locks, or speaks ZooKeeper's protocol, can say that old versions are not needed any more: each
//! stays until the store is full and refuses everything. So the leader forgets the older half of what is kept,
//! whenever that is more revisions than allowed, or the store has used half of its quota.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use tidelock_coordinator::{Coordinator, Role};
use tidelock_model::Revision;

use crate::auto_compaction;
use crate::quota::Quota;

/// How often it is looked at: as often as the quota is, half of which must not be used up between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// What is kept of a store that is filling up by what it holds now: enough for a watcher that was away for a moment.
const KEPT_MIN: u64 = 1_000;

/// What may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HistoryBound {
    pub(crate) revisions_max: NonZeroU64,
    pub(crate) quota: Quota,
}

impl HistoryBound {
    /// Where to forget to, if it is too much.
    fn target(&self, compacted: Revision, newest: Revision, data_bytes: u64) -> Option<Revision> {
        let kept = newest.0.saturating_sub(compacted.0);
        let is_half_full = matches!(self.quota, Quota::Bytes(bytes) if data_bytes > bytes / 2);
        let is_too_much = kept > self.revisions_max.get() || (is_half_full && kept > KEPT_MIN);
        is_too_much.then(|| Revision(newest.0 - kept / 2))
    }
}

/// Forgets for as long as it is polled.
pub(crate) async fn run(coordinator: Arc<dyn Coordinator>, bound: HistoryBound) {
    let mut looks = tokio::time::interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let status = coordinator.status();
        let target = bound.target(status.compacted, status.revision, status.data_bytes);
        let Some(to) = target.filter(|_| status.role == Role::Leader) else { continue };
        if auto_compaction::forget(&*coordinator, to).await {
            tracing::debug!(revision = %to, "forgot the older half of history");
            // Until it is swept it counts as held: the next look would forget more than is needed.
            coordinator.wait_until_swept().await;
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
        let target = |newest| bound(Quota::Unlimited).target(Revision(500), Revision(newest), u64::MAX);
        assert_eq!(target(10_500), None);
        assert_eq!(target(10_501), Some(Revision(5_501)));
    }

    /// A store whose quota is used up refuses everything, and nobody who only takes locks could make room.
    #[test]
    fn the_older_half_goes_when_the_quota_is_half_used() {
        let target = |newest, bytes| bound(Quota::Bytes(1_000)).target(Revision(1), Revision(newest), bytes);
        assert_eq!(target(5_001, 500), None);
        assert_eq!(target(5_001, 501), Some(Revision(2_501)));
        assert_eq!(target(900, 501), None, "what is there now fills it: forgetting more would make no room");
    }
}
