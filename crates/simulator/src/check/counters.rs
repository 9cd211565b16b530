//! R3: keys under `counter/` hold `n#unique`, and a change makes n one more. Every acknowledged increment
//! counts once; one of unknown outcome may count. So the last n, and every n read, lies between what had
//! been acknowledged and what had been tried. The first n is 0 (made, not counted) or 1.
//!
//! Looks at no revision, so it does not depend on what `linearizable.rs` depends on.

use std::collections::BTreeMap;

use super::carry_out::{carried_out, is_serializable, operations};
use super::leases::answered;
use super::replay::Version;
use super::{Findings, Prepared};
use crate::history::{Content, Op, Told};

const PREFIX: &str = "counter/";

/// What the history has about one counter: places in the order of everything.
#[derive(Default)]
struct Counter {
    /// When each increment that may have happened was asked for.
    tried: Vec<u64>,
    /// When each increment that did was acknowledged.
    acknowledged: Vec<u64>,
    /// Each read: asked, answered, n, which request, whether it had to be fresh.
    reads: Vec<(u64, u64, i64, usize, bool)>,
}

fn number(value: &str) -> Option<i64> {
    value.split('#').next()?.parse().ok()
}

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let mut counters = counters(prepared);
    for (key, versions) in prepared.replay.with_prefix(PREFIX) {
        if let Some(last) = check_ledger(key, versions, findings) {
            let counter = counters.entry(key).or_default();
            check_counts(prepared, key, last, counter, findings);
        }
    }
}

fn counters<'a>(prepared: &Prepared<'a>) -> BTreeMap<&'a str, Counter> {
    let mut counters: BTreeMap<&str, Counter> = BTreeMap::new();
    for (index, operation) in prepared.history.operations.iter().enumerate() {
        if matches!(operation.result, Told::Unknown(_)) {
            for op in operations(&operation.request) {
                if let Some(key) = incremented(op) {
                    counters.entry(key).or_default().tried.push(operation.called.order);
                }
            }
        }
        let Some((content, returned)) = answered(operation) else { continue };
        let fresh = !is_serializable(&operation.request);
        for (op, content) in carried_out(&operation.request, content) {
            if let Some(key) = incremented(op) {
                let counter = counters.entry(key).or_default();
                counter.tried.push(operation.called.order);
                counter.acknowledged.push(returned.order);
            }
            if let (Op::Get { at: 0, .. }, Content::Get { found, .. }) = (op, content) {
                for kv in found.iter().filter(|kv| kv.key.starts_with(PREFIX)) {
                    let read = (operation.called.order, returned.order, number(&kv.value).unwrap_or(-1), index, fresh);
                    counters.entry(&kv.key).or_default().reads.push(read);
                }
            }
        }
    }
    counters
}

fn incremented(op: &Op) -> Option<&str> {
    match op {
        Op::Put { key, value, .. } if key.starts_with(PREFIX) && number(value) != Some(0) => Some(key),
        _ => None,
    }
}

/// The last number of a counter; `None` for one that is not to be judged.
fn check_ledger(key: &str, versions: &[Version<'_>], findings: &mut Findings) -> Option<i64> {
    let mut last = None;
    for version in versions {
        let kv = version.became?;
        let Some(n) = number(&kv.value) else {
            findings.add("R3", format_args!("{key:?} holds {:?}, which is no count", kv.value));
            return None;
        };
        let follows = last.map_or(n == 0 || n == 1, |last| n == last + 1);
        if !follows {
            findings.add("R3", format_args!("{key:?} went from {last:?} to {n} at revision {}", version.revision));
        }
        last = Some(n);
    }
    last
}

fn check_counts(prepared: &Prepared<'_>, key: &str, last: i64, counter: &mut Counter, findings: &mut Findings) {
    let Counter { tried, acknowledged, reads } = counter;
    tried.sort_unstable();
    acknowledged.sort_unstable();
    if last < acknowledged.len() as i64 || last > tried.len() as i64 {
        let (acknowledged, tried) = (acknowledged.len(), tried.len());
        findings.add("R3", format_args!("{key:?} ends at {last}; {acknowledged} acknowledged, {tried} tried"));
    }
    for (called, returned, n, index, fresh) in reads {
        let least = if *fresh { acknowledged.partition_point(|order| order < called) } else { 0 };
        let most = tried.partition_point(|order| *order < *returned);
        if *n < least as i64 || *n > most as i64 {
            let name = prepared.name(*index);
            findings.add("R3", format_args!("{key:?} must be between {least} and {most}: {name}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, answer_mut, run};
    use crate::history::{Content, History, Told};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "counters")
    }

    fn legal() -> History {
        let mut maker = Maker::new();
        maker.put(1, "counter/1", "0#a");
        maker.put(1, "counter/1", "1#b");
        let lost = maker.put(2, "counter/1", "2#c");
        maker.unanswered(lost);
        maker.put(1, "counter/1", "3#d");
        maker.get(1, "counter/1", None, false);
        maker.done()
    }

    fn reading(n: &str) -> History {
        let mut history = legal();
        let Content::Get { found, .. } = &mut answer_mut(&mut history, 4).content else { panic!() };
        found[0].value = n.into();
        history
    }

    #[test]
    fn a_counter_that_counts_passes() {
        assert_eq!(violations(&legal()), [] as [&str; 0]);
        assert_eq!(violations(&reading("2#c")), [] as [&str; 0]);
    }

    #[test]
    fn a_read_outside_of_what_was_counted_is_caught() {
        assert_eq!(violations(&reading("1#b")), ["R3"]);
        assert_eq!(violations(&reading("4#x")), ["R3"]);
    }

    #[test]
    fn an_increment_that_counts_twice_or_not_is_caught() {
        let mut history = legal();
        history.operations[2].result = Told::Refused("no leader".into());
        assert_eq!(violations(&history)[0], "R3");
        let mut history = legal();
        history.ledger.changes.remove(&5);
        history.ledger.changes.remove(&4);
        assert_eq!(violations(&history), ["R3"]);
    }

    #[test]
    fn a_counter_that_jumps_is_caught() {
        let mut maker = Maker::new();
        maker.put(1, "counter/1", "1#a");
        maker.put(1, "counter/1", "3#b");
        assert!(violations(&maker.done()).contains(&"R3"));
    }
}
