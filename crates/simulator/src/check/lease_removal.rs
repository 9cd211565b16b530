//! L3, S1: when a lease ends, everything it owns vanishes, at one revision, exactly that, once. Nothing
//! of it is left at the revision its end was seen at, and nothing is put on it later.

use std::collections::{BTreeMap, BTreeSet};

use super::claims::Claim;
use super::{Findings, Prepared};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    for (id, lease) in &prepared.leases {
        let Some((_, revision)) = lease.ended else { continue };
        let left = prepared.replay.owned_by(*id, revision);
        if !left.is_empty() {
            findings.add("S1", format_args!("lease {id} had ended at revision {revision} and still owned {left:?}"));
        }
        if let Some(later) = prepared.replay.last_attached(*id).filter(|later| *later > revision) {
            let changes = prepared.replay.changes_at(later);
            findings.add(
                "S1",
                format_args!("lease {id} had ended at revision {revision}, and {later} put a key on it: {changes:?}"),
            );
        }
    }
    check_removals(prepared, findings);
}

fn check_removals(prepared: &Prepared<'_>, findings: &mut Findings) {
    let mut ends: BTreeMap<i64, i64> = BTreeMap::new();
    for (revision, changes) in &prepared.history.ledger.changes {
        match prepared.claims.of(*revision) {
            Some(Claim::LeasesEnded(leases)) => {
                for lease in leases {
                    if let Some(first) = ends.insert(*lease, *revision) {
                        findings.add("L3", format_args!("what lease {lease} owned went at {first} and at {revision}"));
                    }
                }
            }
            Some(_) => {}
            // Nobody asked for it. If it took keys of leases, it took too few, too many, or too early.
            None => {
                let owners = changes.iter().filter(|change| change.became.is_none());
                let owners = owners.filter_map(|change| prepared.replay.get(&change.key, revision - 1));
                let leases: BTreeSet<i64> = owners.map(|kv| kv.lease).filter(|lease| *lease != 0).collect();
                if !leases.is_empty() {
                    let owned: Vec<_> =
                        leases.iter().flat_map(|lease| prepared.replay.owned_by(*lease, revision - 1)).collect();
                    findings.add(
                        "L3",
                        format_args!(
                            "revision {revision} deleted {changes:?} unasked; leases {leases:?} owned {owned:?} then"
                        ),
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, kv, run};
    use crate::history::{Change, History, Observation};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "lease_removal")
    }

    fn owning() -> Maker {
        let mut maker = Maker::new();
        maker.grant(1, 7, 2);
        maker.put_leased(1, "a", "1", 7); // 2
        maker.put_leased(1, "b", "2", 7); // 3
        maker.put(1, "c", "3"); // 4
        maker.wait(9_000_000);
        maker
    }

    #[test]
    fn a_lease_that_takes_all_it_owns_and_nothing_else_passes() {
        let mut maker = owning();
        maker.expire(&[7]); // 5
        assert_eq!(violations(&maker.done()), [] as [&str; 0]);
        let mut maker = owning();
        maker.revoke(1, 7);
        assert_eq!(violations(&maker.done()), [] as [&str; 0]);
    }

    /// A key that was taken over by someone without a lease is not the lease's any more.
    #[test]
    fn keys_that_were_deleted_or_taken_over_before_pass() {
        let mut maker = owning();
        maker.put(2, "a", "4");
        maker.delete(2, "b", None);
        maker.expire(&[7]);
        assert_eq!(violations(&maker.done()), [] as [&str; 0]);
    }

    /// H11: a session is over and its lock still there.
    #[test]
    fn a_key_that_is_left_behind_is_caught() {
        let mut maker = owning();
        maker.expire(&[7]);
        let mut history = maker.done();
        history.ledger.changes.get_mut(&5).unwrap().pop();
        let found = violations(&history);
        assert!(found.contains(&"S1") && found.contains(&"L3"), "{found:?}");
    }

    /// Two revisions, and a watcher sees half a session.
    #[test]
    fn a_removal_in_two_steps_is_caught() {
        let mut maker = owning();
        maker.expire(&[7]);
        let mut history = maker.done();
        let second = history.ledger.changes.get_mut(&5).unwrap().split_off(1);
        history.ledger.changes.insert(6, second);
        for (_, observation) in &mut history.observations {
            if let Observation::LeaseEnded { revision, .. } = observation {
                revision.0 = 6;
            }
        }
        assert_eq!(violations(&history), ["L3"]);
    }

    #[test]
    fn a_removal_that_takes_other_keys_with_it_is_caught() {
        let mut maker = owning();
        maker.expire(&[7]);
        let mut history = maker.done();
        history.ledger.changes.get_mut(&5).unwrap().push(Change { key: "c".into(), became: None });
        assert_eq!(violations(&history), ["L3"]);
    }

    /// H11: an ephemeral key is deleted while its session lives.
    #[test]
    fn a_removal_without_the_lease_ending_is_caught() {
        let mut maker = owning();
        maker.expire(&[7]);
        let mut history = maker.done();
        history.observations.retain(|(_, observation)| !matches!(observation, Observation::LeaseEnded { .. }));
        assert_eq!(violations(&history), ["L3"]);
    }

    #[test]
    fn a_key_put_on_a_lease_that_is_over_is_caught() {
        let mut maker = owning();
        maker.expire(&[7]);
        let mut history = maker.done();
        let became = crate::history::Kv { lease: 7, ..kv("d", "9", 6, 6, 1) };
        history.ledger.changes.insert(6, vec![Change { key: "d".into(), became: Some(became) }]);
        let found = violations(&history);
        assert!(found.contains(&"S1"), "{found:?}");
    }
}
