//! H9, K1, K2, K4: a lock has one holder, and what it guards is written by the holder alone.
//!
//! Keys under `lock/<n>/` are the line for lock `<n>`; the oldest one is the holder's, and the revision it was
//! created at is its token. `guarded/<n>` holds `<token>#<unique>`. From the ledger, revision by revision:
//!
//! - a write came when its holder's key was there (H9), was the oldest one (K2), and its lease had not ended (H9);
//! - tokens never go back, so the writes of two holders do not mix (K1).
//!
//! And whoever looks at a line, linearizably, is told as first who was first at that revision (K2), under a lease
//! that had not ended (H9). The stated limit holds here as everywhere (K6): nothing is said about what a client
//! does elsewhere while it believes to hold a lock.

use std::collections::BTreeMap;

use super::carry_out::carried_out;
use super::{Findings, Prepared};
use crate::history::{Answer, Content, Kv, Op, Told};

const GUARDED: &str = "guarded/";
const LINES: &str = "lock/";

/// The token a guarded value was written with.
fn token_of(value: &str) -> i64 {
    value.split('#').next().and_then(|token| token.parse().ok()).unwrap_or(0)
}

fn oldest<'a>(line: impl IntoIterator<Item = &'a Kv>) -> Option<&'a Kv> {
    line.into_iter().min_by_key(|kv| kv.created)
}

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let mut highest: BTreeMap<&str, i64> = BTreeMap::new();
    for (revision, changes) in &prepared.history.ledger.changes {
        for change in changes {
            let (Some(lock), Some(kv)) = (change.key.strip_prefix(GUARDED), &change.became) else { continue };
            let token = token_of(&kv.value);
            let highest = highest.entry(lock).or_insert(token);
            if token < *highest {
                let before = *highest;
                findings.add(
                    "K1",
                    format_args!("lock {lock}: revision {revision} was written with {token}, after {before}"),
                );
            }
            *highest = token.max(*highest);
            check_held(prepared, lock, token, *revision, findings);
        }
    }
    for (index, operation) in prepared.history.operations.iter().enumerate() {
        let Told::Answer(Answer { revision, content, .. }) = &operation.result else { continue };
        for (op, content) in carried_out(&operation.request, content) {
            if let (Op::Get { key, end: Some(end), at: 0, serializable: false }, Content::Get { found, .. }) =
                (op, content)
                && key.starts_with(LINES)
            {
                check_look(prepared, index, (key.as_str(), end.as_str()), oldest(found), *revision, findings);
            }
        }
    }
}

/// Whether whoever wrote at a revision held the lock right before.
fn check_held(prepared: &Prepared<'_>, lock: &str, token: i64, revision: i64, findings: &mut Findings) {
    let (first, end) = (format!("{LINES}{lock}/"), format!("{LINES}{lock}0"));
    let line = prepared.replay.range(&first, Some(&end), revision - 1);
    let first = oldest(line.iter().copied());
    match line.iter().find(|kv| kv.created == token) {
        None => findings.add(
            "H9",
            format_args!("lock {lock}: {revision} was written with {token}, whose place was gone; first was {first:?}"),
        ),
        Some(own) if first.is_some_and(|first| first.created != token) => findings
            .add("K2", format_args!("lock {lock}: {revision} was written by {own:?}, and {first:?} held the lock")),
        Some(own) if is_over(prepared, own, revision - 1) => {
            findings.add("H9", format_args!("lock {lock}: {revision} was written by {own:?}, whose lease was over"));
        }
        Some(_) => {}
    }
}

/// Whether the lease that owns a key had ended by a revision.
fn is_over(prepared: &Prepared<'_>, kv: &Kv, revision: i64) -> bool {
    let ended = prepared.leases.get(&kv.lease).and_then(|lease| lease.ended);
    ended.is_some_and(|(_, ended)| ended <= revision)
}

fn check_look(
    prepared: &Prepared<'_>,
    index: usize,
    (key, end): (&str, &str),
    told: Option<&Kv>,
    revision: i64,
    findings: &mut Findings,
) {
    let name = prepared.name(index);
    let really = oldest(prepared.replay.range(key, Some(end), revision));
    if told.map(|kv| (&kv.key, kv.created)) != really.map(|kv| (&kv.key, kv.created)) {
        findings.add("K2", format_args!("first in line at {revision} was {really:?}: {name}"));
    }
    if let Some(told) = told.filter(|told| is_over(prepared, told, revision)) {
        findings.add("H9", format_args!("lease {} was over, and was told to be first: {name}", told.lease));
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, answer_mut, damaged, get_op, put_op, run};
    use crate::history::{Compare, Content, History, Observation};
    use tidelock_model::Revision;

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "locks")
    }

    fn guarded_write(maker: &mut Maker, client: u32, place: &str, token: i64, value: &str) {
        let compares = vec![Compare::ModifiedAt(place.into(), token)];
        let then = vec![put_op("guarded/0", &format!("{token}#{value}"))];
        maker.txn(client, compares, then, vec![get_op(place, None, 0)]);
    }

    /// Two clients in line; the first holds the lock and writes.
    fn held() -> Maker {
        let mut maker = Maker::new();
        maker.grant(1, 7, 9);
        maker.put_leased(1, "lock/0/7", "a", 7); // 2
        maker.grant(2, 8, 9);
        maker.put_leased(2, "lock/0/8", "b", 8); // 3
        maker.get(1, "lock/0/", Some("lock/00"), false);
        guarded_write(&mut maker, 1, "lock/0/7", 2, "x"); // 4
        maker
    }

    /// The first lets go, and the second writes.
    fn handed_over() -> Maker {
        let mut maker = held();
        maker.delete(1, "lock/0/7", None); // 5
        // Too late: the condition does not hold, and nothing is written.
        guarded_write(&mut maker, 1, "lock/0/7", 2, "late");
        maker.get(2, "lock/0/", Some("lock/00"), false);
        guarded_write(&mut maker, 2, "lock/0/8", 3, "y"); // 6
        maker
    }

    #[test]
    fn a_lock_that_is_handed_over_passes() {
        assert_eq!(violations(&handed_over().done()), [] as [&str; 0]);
        let mut maker = handed_over();
        maker.wait(10_000_000);
        maker.expire(&[8]);
        maker.get(1, "lock/0/", Some("lock/00"), false);
        assert_eq!(violations(&maker.done()), [] as [&str; 0]);
    }

    /// A holder that slept through the end of its lease must not change what the lock guards.
    #[test]
    fn a_write_of_one_who_lost_the_lock_is_caught() {
        let mut maker = held();
        maker.wait(10_000_000);
        maker.expire(&[7]);
        maker.put(1, "guarded/0", "2#z");
        assert_eq!(violations(&maker.done()), ["H9"]);
        let mut maker = handed_over();
        maker.put(1, "guarded/0", "2#z");
        assert_eq!(violations(&maker.done()), ["K1", "H9"]);
    }

    #[test]
    fn a_write_of_one_who_waits_is_caught() {
        let mut maker = held();
        maker.put(2, "guarded/0", "3#z");
        assert_eq!(violations(&maker.done()), ["K2"]);
    }

    /// The key outlives its lease: then a dead client holds the lock.
    #[test]
    fn a_lock_held_under_a_lease_that_ended_is_caught() {
        let mut maker = held();
        maker.observe(Observation::LeaseEnded { lease: 7, revision: Revision(4) });
        guarded_write(&mut maker, 1, "lock/0/7", 2, "z");
        maker.get(1, "lock/0/", Some("lock/00"), false);
        assert_eq!(violations(&maker.done()), ["H9", "H9"]);
    }

    /// The other client believes to hold the lock, too.
    #[test]
    fn a_look_that_names_another_as_first_is_caught() {
        let history = damaged(held().done(), |history| {
            let Content::Get { found, .. } = &mut answer_mut(history, 4).content else { panic!() };
            found.remove(0);
        });
        assert_eq!(violations(&history), ["K2"]);
    }
}
