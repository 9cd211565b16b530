//! L2: once the faults are over, a lease that is not renewed ends within its time to live, two election
//! timeouts and a second.
//!
//! The time is counted from the last of these: the faults ended, somebody's attempt to renew it was over,
//! whatever came of it, a new leader took over (which starts the time to live again). Clocks may run slow
//! by as much as the faults allow.

use super::leases::{Lease, SECOND};
use super::prepared::At;
use super::{Findings, Prepared};
use crate::history::{Micros, Observation, Stamp};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let bounds = &prepared.history.bounds;
    let (Some(healed), Some(run_ended)) = (bounds.healed, bounds.ended) else { return };
    let slow = 1_000_u64.saturating_sub(bounds.clock_drift_permille).max(1);
    let leads: Vec<Stamp> = prepared
        .history
        .observations
        .iter()
        .filter(|(_, observation)| matches!(observation, Observation::Leads { .. }))
        .map(|(stamp, _)| *stamp)
        .collect();
    for (id, lease) in &prepared.leases {
        let Some((granted, ttl_s)) = lease.granted else { continue };
        let until = lease.ended.map_or(run_ended, |(stamp, _)| stamp);
        let Some(renewed) = last_attempt(lease, until) else { continue };
        let led = leads.iter().filter(|stamp| stamp.order < until.order).max().map_or(0, |stamp| stamp.at);
        let since = healed.at.max(granted.at).max(renewed).max(led);
        let ttl = Micros::try_from(ttl_s).unwrap_or(0) * SECOND * 1_000 / slow;
        let bound = ttl + 2 * bounds.election + SECOND;
        if until.at > since + bound {
            let over = (until.at - since - bound) / 1_000;
            let (until, what) = (At(until), if lease.ended.is_some() { "ended" } else { "had not ended" });
            findings.add(
                "L2",
                format_args!("lease {id} of {ttl_s} s {what} at {until}, {over} ms beyond its bound since {since} us"),
            );
        }
    }
}

/// When the last attempt at renewing before `until` was over, whatever came of it; 0 if there was none.
/// `None`: one was still under way then, so nothing can be said.
fn last_attempt(lease: &Lease<'_>, until: Stamp) -> Option<Micros> {
    let attempts = lease.renewals.iter().filter(|renewal| renewal.called.order < until.order);
    let ends: Option<Vec<Micros>> = attempts.map(|renewal| renewal.returned.map(|returned| returned.at)).collect();
    ends.map(|ends| ends.into_iter().max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, run};
    use crate::history::{History, Observation};
    use tidelock_model::{NodeId, Term};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "lease_late")
    }

    /// A lease of 2 s, healed at once, then so many seconds, then its end if `ends`. Elections take 1 s.
    fn lasting(seconds: u64, ends: bool) -> Maker {
        let mut maker = Maker::new();
        maker.grant(1, 7, 2);
        maker.heal();
        maker.wait(seconds * 1_000_000);
        if ends {
            maker.expire(&[7]);
        }
        maker.wait(1_000);
        maker
    }

    #[test]
    fn a_lease_that_ends_within_its_bound_passes() {
        assert_eq!(violations(&lasting(4, true).done()), [] as [&str; 0]);
        assert_eq!(violations(&lasting(4, false).done()), [] as [&str; 0]);
    }

    /// A lock whose holder died is never free again.
    #[test]
    fn a_lease_that_ends_late_or_never_is_caught() {
        assert_eq!(violations(&lasting(6, true).done()), ["L2"]);
        assert_eq!(violations(&lasting(6, false).done()), ["L2"]);
        let mut faulty = lasting(6, false).done();
        faulty.bounds.healed = None;
        assert_eq!(violations(&faulty), [] as [&str; 0]);
    }

    #[test]
    fn renewals_and_new_leaders_start_the_time_again() {
        let mut maker = lasting(4, false);
        maker.keep_alive(1, 7);
        maker.wait(4_000_000);
        maker.expire(&[7]);
        assert_eq!(violations(&maker.done()), [] as [&str; 0]);
        let mut maker = lasting(4, false);
        maker.observe(Observation::Leads { node: NodeId(2), term: Term(9) });
        maker.wait(4_000_000);
        maker.expire(&[7]);
        assert_eq!(violations(&maker.done()), [] as [&str; 0]);
    }
}
