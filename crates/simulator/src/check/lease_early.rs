//! L1: a lease that nobody revoked does not end before its time to live has passed since it was granted
//! or last renewed.
//!
//! A grant or renewal that was answered took effect after it was asked for, so the time counts at least
//! from the asking; it is measured on the leader's clock, which may run fast by as much as the run's
//! faults allow, but not jump. Whatever the leader, and whoever follows it, each must wait that long.

use super::leases::{Lease, SECOND, answered, had_no_effect};
use super::prepared::At;
use super::{Findings, Prepared};
use crate::history::{Content, Micros, Request, Stamp};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let drift = prepared.history.bounds.clock_drift_permille;
    for (id, lease) in &prepared.leases {
        let Some((ended, _)) = lease.ended else { continue };
        if lease.revokes.iter().any(|revoke| revoke.called.order < ended.order && !had_no_effect(revoke)) {
            continue;
        }
        let Some((since, ttl)) = last_renewed(lease, ended) else { continue };
        let least = ttl * SECOND * 1_000 / (1_000 + drift);
        let lasted = ended.at.saturating_sub(since.at);
        if lasted < least {
            findings.add(
                "L1",
                format_args!(
                    "lease {id} of {ttl} s, renewed at {}, ended at {}, {} ms too early",
                    At(since),
                    At(ended),
                    (least - lasted).div_ceil(1_000)
                ),
            );
        }
    }
}

/// When the last grant or renewal was asked for that was answered, and the time to live in seconds.
fn last_renewed(lease: &Lease<'_>, ended: Stamp) -> Option<(Stamp, Micros)> {
    let kept = |content: &Content| matches!(content, Content::Granted | Content::KeptAlive { ttl_s: Some(_) });
    let renewals = lease.grants.iter().chain(&lease.renewals);
    let effective = renewals.filter(|operation| answered(operation).is_some_and(|(content, _)| kept(content)));
    let since = effective.map(|operation| operation.called).filter(|called| called.order < ended.order).max()?;
    let asked = lease.grants.iter().find_map(|grant| match grant.request {
        Request::Grant { ttl_s, .. } => Some(ttl_s),
        _ => None,
    });
    let ttl = lease.granted.map(|(_, ttl_s)| ttl_s).or(asked)?;
    Some((since, Micros::try_from(ttl).ok()?))
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, run};
    use crate::history::History;

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "lease_early")
    }

    /// Granted for 2 s, renewed once, ended so long after the renewal was asked for.
    fn ended_after(micros: u64) -> Maker {
        let mut maker = Maker::new();
        maker.grant(1, 7, 2);
        maker.wait(1_500_000);
        let renewal = maker.keep_alive(1, 7);
        let asked = maker.history.operations[renewal].called.at;
        maker.wait_until(asked + micros);
        maker.expire(&[7]);
        maker
    }

    #[test]
    fn a_lease_that_lasts_its_time_passes() {
        assert_eq!(violations(&ended_after(2_000_000).done()), [] as [&str; 0]);
        assert_eq!(violations(&ended_after(9_000_000).done()), [] as [&str; 0]);
    }

    /// H8: the lock holder renewed in time and lost its lock all the same.
    #[test]
    fn a_lease_that_ends_early_is_caught() {
        assert_eq!(violations(&ended_after(1_999_999).done()), ["L1"]);
    }

    #[test]
    fn a_clock_that_runs_fast_may_end_it_so_much_earlier_and_no_more() {
        for (micros, caught) in [(1_904_762, 0), (1_904_000, 1)] {
            let mut history = ended_after(micros).done();
            history.bounds.clock_drift_permille = 50;
            assert_eq!(violations(&history).len(), caught, "{micros}");
        }
    }

    /// A renewal without an answer may never have arrived, so it promises nothing.
    #[test]
    fn only_answered_renewals_count() {
        let mut maker = ended_after(1_000_000);
        maker.unanswered(1);
        assert_eq!(violations(&maker.done()), [] as [&str; 0]);
    }

    #[test]
    fn a_revoked_lease_may_end_at_once() {
        let mut maker = Maker::new();
        maker.grant(1, 7, 2);
        let revoke = maker.revoke(1, 7);
        let mut history = maker.done();
        assert_eq!(violations(&history), [] as [&str; 0]);
        // But not before the revocation was asked for.
        let last = history.observations.iter().map(|(stamp, _)| stamp.order).max().unwrap();
        history.operations[revoke].called.order = last + 100;
        assert_eq!(violations(&history), ["L1"]);
    }
}
