//! Forgetting old revisions by itself, when and as far as etcd would.
//!
//! - Periodic: after the retention, and then once per retention but at least every hour, what was the newest
//!   revision a retention ago is compacted to. The revision is noted ten times per interval, on every member,
//!   so that a new leader knows how far to go.
//! - Revision: every five minutes all but the newest N revisions are compacted.
//!
//! Only the leader proposes. What to do is decided in [`Compactor`], which is told the time; [`run`] has the
//! clock. A compaction that fails is logged and tried again at the next look.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tidelock_coordinator::{Coordinator, Role};
use tidelock_model::{Caller, Command, Refusal, Revision};

use crate::etcd_mode::duration;

/// However long the retention, history is cut at least this often.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// Looks per interval.
const LOOKS_PER_INTERVAL: u32 = 10;
/// How often history is cut by count.
const REVISION_INTERVAL: Duration = Duration::from_secs(300);
/// Shortest retention: below this the looks would be closer together than a proposal takes.
const RETENTION_MIN: Duration = Duration::from_millis(100);
/// Longest retention; its notes are bounded by it: ten per hour.
const RETENTION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// What to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retention {
    /// Everything of this last while.
    Period(Duration),
    /// This many revisions.
    Revisions(u64),
}

impl Retention {
    /// From the two settings; `None`: nothing is compacted by itself.
    pub(crate) fn parse(mode: Option<&str>, retention: Option<&str>) -> Result<Option<Retention>, String> {
        let mode = mode.unwrap_or("periodic");
        let retention = retention.unwrap_or("0");
        let number = retention.parse::<u64>().ok();
        match (mode, number) {
            ("periodic" | "revision", Some(0)) => Ok(None),
            ("periodic", Some(hours)) => Retention::period(Duration::from_secs(hours.saturating_mul(3600))).map(Some),
            ("periodic", None) => match duration::parse(retention)? {
                Duration::ZERO => Ok(None),
                period => Retention::period(period).map(Some),
            },
            ("revision", Some(count)) => Ok(Some(Retention::Revisions(count))),
            ("revision", None) => Err(format!("{retention:?} is not a number of revisions")),
            _ => Err(format!("the mode {mode:?} is neither periodic nor revision")),
        }
    }

    fn period(period: Duration) -> Result<Retention, String> {
        if (RETENTION_MIN..=RETENTION_MAX).contains(&period) {
            Ok(Retention::Period(period))
        } else {
            Err(format!("{period:?} is not between {RETENTION_MIN:?} and a year"))
        }
    }
}

/// When to compact, and to where. Time is whatever `now` says.
#[derive(Debug)]
pub(crate) struct Compactor {
    retention: Retention,
    /// Periodic: the newest revision at each look, oldest first, at most a retention's worth.
    notes: VecDeque<Revision>,
    /// When the last compaction was made, or when this began.
    last: Duration,
    /// How long to wait from there: the whole retention the first time.
    wait: Duration,
    /// Where the last one went.
    done: Revision,
}

impl Compactor {
    pub(crate) fn new(retention: Retention, now: Duration) -> Compactor {
        let wait = match retention {
            Retention::Period(period) => period,
            Retention::Revisions(_) => REVISION_INTERVAL,
        };
        Compactor { retention, notes: VecDeque::new(), last: now, wait, done: Revision(0) }
    }

    /// How long to wait between two looks.
    pub(crate) fn look_every(&self) -> Duration {
        match self.retention {
            Retention::Period(period) => period.min(INTERVAL_MAX) / LOOKS_PER_INTERVAL,
            Retention::Revisions(_) => REVISION_INTERVAL,
        }
    }

    /// One look, with the newest revision: where to compact to, if this member shall do it now.
    pub(crate) fn look(&mut self, now: Duration, newest: Revision, leads: bool) -> Option<Revision> {
        let target = match self.retention {
            Retention::Period(period) => {
                let oldest = self.notes.front().copied().unwrap_or(Revision(0));
                self.notes.push_back(newest);
                let kept = (period.as_nanos() / self.look_every().as_nanos().max(1)) as usize;
                while self.notes.len() > kept {
                    self.notes.pop_front();
                }
                oldest
            }
            Retention::Revisions(count) => Revision(newest.0.saturating_sub(count)),
        };
        // Looks come a moment early or late; half of one must not cost a whole.
        let due = leads && now.saturating_sub(self.last) + self.look_every() / 2 >= self.wait;
        (due && target.0 > 0 && target != self.done).then_some(target)
    }

    /// The compaction was made, or somebody else had made it already.
    pub(crate) fn compacted(&mut self, now: Duration, to: Revision) {
        self.done = to;
        self.last = now;
        self.wait = match self.retention {
            Retention::Period(period) => period.min(INTERVAL_MAX),
            Retention::Revisions(_) => REVISION_INTERVAL,
        };
    }
}

/// Compacts for as long as it is polled.
pub(crate) async fn run(coordinator: Arc<dyn Coordinator>, retention: Retention) {
    let began = tokio::time::Instant::now();
    let mut compactor = Compactor::new(retention, Duration::ZERO);
    let mut looks = tokio::time::interval(compactor.look_every());
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let now = began.elapsed();
        let status = coordinator.status();
        let target = compactor.look(now, status.revision, status.role == Role::Leader);
        let Some(to) = target else { continue };
        if forget(&*coordinator, to).await {
            tracing::info!(revision = %to, "compacted by itself");
            compactor.compacted(now, to);
        }
    }
}

/// Forgets all before `to`: whether it is forgotten now, by this or before. If not, the log says why.
pub(crate) async fn forget(coordinator: &dyn Coordinator, to: Revision) -> bool {
    let compacting = coordinator.propose(Caller::Internal, Command::Compact { revision: to }, None);
    match compacting.await.map(|outcome| outcome.result) {
        Ok(Ok(_) | Err(Refusal::Compacted { .. })) => return true,
        Ok(Err(refusal)) => tracing::warn!(revision = %to, %refusal, "not compacted; trying again later"),
        Err(error) => tracing::warn!(revision = %to, %error, "not compacted; trying again later"),
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn parsed(mode: &str, retention: &str) -> Option<Retention> {
        Retention::parse(Some(mode), Some(retention)).unwrap()
    }

    /// A bare number is hours in one mode and revisions in the other; mistaking them loses history.
    #[test]
    fn retentions_mean_what_etcd_means_by_them() {
        assert_eq!(parsed("periodic", "1"), Some(Retention::Period(60 * MINUTE)));
        assert_eq!(parsed("periodic", "10m"), Some(Retention::Period(10 * MINUTE)));
        assert_eq!(parsed("periodic", "1h30m"), Some(Retention::Period(90 * MINUTE)));
        assert_eq!(parsed("revision", "1000"), Some(Retention::Revisions(1000)));
        for off in [parsed("periodic", "0"), parsed("revision", "0"), parsed("periodic", "0s")] {
            assert_eq!(off, None);
        }
        assert_eq!(Retention::parse(None, None), Ok(None));
        for (mode, retention) in [("revision", "10m"), ("hourly", "1"), ("periodic", "soon"), ("periodic", "1ns")] {
            assert!(Retention::parse(Some(mode), Some(retention)).is_err(), "{mode} {retention}");
        }
    }

    /// Plays `minutes` of one write per second and gives when it compacted, in minutes, and to where.
    fn play(retention: Retention, minutes: u32, leads: impl Fn(u32) -> bool) -> Vec<(u32, u64)> {
        let mut compactor = Compactor::new(retention, Duration::ZERO);
        let step = compactor.look_every();
        let mut made = Vec::new();
        let mut now = Duration::ZERO;
        while now <= MINUTE * minutes {
            let minute = (now.as_secs() / 60) as u32;
            if let Some(to) = compactor.look(now, Revision(1 + now.as_secs()), leads(minute)) {
                made.push((minute, to.0));
                compactor.compacted(now, to);
            }
            now += step;
        }
        made
    }

    /// Whoever set ten minutes relies on ten minutes of history, at any moment: never less is kept.
    #[test]
    fn a_short_period_is_kept_in_full_and_cut_once_per_period() {
        let made = play(Retention::Period(10 * MINUTE), 41, |_| true);
        assert_eq!(made, [(10, 1), (20, 601), (30, 1201), (40, 1801)]);
    }

    /// A long period waits for its whole length once, then history is cut every hour.
    #[test]
    fn a_long_period_is_cut_every_hour_after_the_first_wait() {
        let made = play(Retention::Period(5 * 60 * MINUTE), 8 * 60, |_| true);
        assert_eq!(made, [(300, 1), (360, 3601), (420, 7201), (480, 10801)]);
    }

    /// Only one member compacts; one that starts to lead knows how far, because it took notes before.
    #[test]
    fn only_the_leader_compacts_and_a_new_one_goes_on_where_the_period_says() {
        assert_eq!(play(Retention::Period(10 * MINUTE), 60, |_| false), []);
        let made = play(Retention::Period(10 * MINUTE), 47, |minute| minute >= 35);
        assert_eq!(made, [(35, 1501), (45, 2101)]);
    }

    /// By count: every five minutes, the newest N stay.
    #[test]
    fn by_revision_the_newest_stay() {
        let made = play(Retention::Revisions(100), 16, |_| true);
        assert_eq!(made, [(5, 201), (10, 501), (15, 801)]);
        assert_eq!(play(Retention::Revisions(100_000), 16, |_| true), []);
    }

    /// A store at rest must not fill the log with compactions.
    #[test]
    fn nothing_is_compacted_twice() {
        let mut compactor = Compactor::new(Retention::Revisions(10), Duration::ZERO);
        assert_eq!(compactor.look(MINUTE, Revision(50), true), None);
        assert_eq!(compactor.look(5 * MINUTE, Revision(50), true), Some(Revision(40)));
        // Not made: it is asked for again.
        assert_eq!(compactor.look(10 * MINUTE, Revision(50), true), Some(Revision(40)));
        compactor.compacted(10 * MINUTE, Revision(40));
        assert_eq!(compactor.look(15 * MINUTE, Revision(50), true), None);
    }
}
