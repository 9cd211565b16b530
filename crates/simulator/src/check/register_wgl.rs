//! R3, without revisions: for every key under `reg/` there is an order of its requests that agrees
//! with real time and explains every answer (the search of Wing, Gong and Lowe). It would still hold if
//! the store told no revisions, so it does not depend on what `linearizable.rs` depends on.
//!
//! A request on several keys happens at one moment for each of them, so what it did to one key can be
//! judged by itself: of ranges and transactions only the part is looked at that concerns the register. A
//! key that was ever put on a lease is left out: it may vanish without a request. A request of unknown
//! outcome happens at any later time, or never.
//!
//! What keeps the search short:
//! - values are unique and every write tells what was before it, so as long as somebody who saw the
//!   present value is still to be placed, nothing else can change it;
//! - a read that fits now is placed now: it changes nothing for the others;
//! - a request of unknown outcome whose value nobody ever needs is left out, and so is a lost compare
//!   that tells no value: leaving out never makes a legal history illegal.
//!
//! At most the first [`REQUESTS_MAX`] requests of a key are judged; those that overlap the cut count as
//! unknown. Giving up after [`STEPS_MAX`] steps is a violation: "not found out" must not pass for "fine".

mod requests;
mod search;

use std::collections::{BTreeMap, BTreeSet};

use self::requests::{Values, step};
use self::search::{Search, Verdict};
use super::carry_out::{is_serializable, operations};
use super::replay::contains;
use super::{Findings, Prepared};
use crate::history::{Op, Operation, Told};

const PREFIX: &str = "reg/";

/// Requests of one key that are judged.
const REQUESTS_MAX: usize = 500;
/// Steps after which the search gives up: some hundred times what a legal history takes.
const STEPS_MAX: u64 = 200_000;

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    for (key, indices) in registers(&prepared.history.operations) {
        check_key(prepared, key, &indices, findings);
    }
}

/// The registers, each with the requests that touch it, in the order of asking.
fn registers(operations_of_run: &[Operation]) -> BTreeMap<&str, Vec<usize>> {
    let mut registers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut leased: BTreeSet<&str> = BTreeSet::new();
    for op in operations_of_run.iter().flat_map(|operation| operations(&operation.request)) {
        if let Op::Put { key, lease, .. } = op
            && key.starts_with(PREFIX)
        {
            registers.entry(key).or_default();
            if *lease != 0 {
                leased.insert(key);
            }
        }
    }
    registers.retain(|key, _| !leased.contains(key));
    for (index, operation) in operations_of_run.iter().enumerate() {
        // What one node has need not be the latest.
        if is_serializable(&operation.request) {
            continue;
        }
        for op in operations(&operation.request) {
            let (Op::Put { key, .. } | Op::Delete { key, .. } | Op::Get { key, .. }) = op;
            match op {
                Op::Delete { end: Some(end), .. } | Op::Get { end: Some(end), .. } => {
                    let within = registers.iter_mut().filter(|(register, _)| contains(key, Some(end), register));
                    within.for_each(|(_, indices)| indices.push(index));
                }
                _ => {
                    if let Some(indices) = registers.get_mut(key.as_str()) {
                        indices.push(index);
                    }
                }
            }
        }
    }
    registers.values_mut().for_each(Vec::dedup);
    registers
}

fn check_key(prepared: &Prepared<'_>, key: &str, indices: &[usize], findings: &mut Findings) {
    let mut judged: Vec<(usize, &Operation)> =
        indices.iter().map(|index| (*index, &prepared.history.operations[*index])).collect();
    judged.sort_by_key(|(_, operation)| operation.called.order);
    let cut = judged.get(REQUESTS_MAX).map_or(u64::MAX, |(_, operation)| operation.called.order);
    judged.truncate(REQUESTS_MAX);
    let mut values = Values::new(key, judged.iter().map(|(_, operation)| *operation));
    let steps = judged.iter().filter_map(|(index, operation)| {
        let known = matches!(operation.result, Told::Answer(_))
            && operation.returned.is_some_and(|returned| returned.order < cut);
        step(*index, operation, known, &mut values)
    });
    let mut search = Search::new(steps.collect());
    match search.run(STEPS_MAX) {
        Verdict::Legal => {}
        Verdict::GaveUp => {
            findings.add(
                "R3",
                format_args!("gave up on {key:?}: no order found in {STEPS_MAX} steps, nor that there is none"),
            );
        }
        Verdict::Illegal { placed, state, next } => {
            let value = values.name(state);
            let next = next.map(|index| prepared.name(index).to_string()).unwrap_or_default();
            findings.add(
                "R3",
                format_args!("no order of the requests on {key:?} explains the answers; after {placed} it is {value:?}, and then: {next}"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::testing::{Maker, answer_mut, delete_op, get_op, kv, put_op, run, stamp};
    use crate::history::{Answer, Compare, Content, History, Kv, Request};
    use tidelock_model::NodeId;

    const KEY: &str = "reg/1";

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "register_wgl")
    }

    fn item(value: &str) -> Option<Kv> {
        (!value.is_empty()).then(|| kv(KEY, value, 0, 0, 0))
    }

    /// A request from one moment to another; an empty value is an absent key.
    fn told(from: u64, to: u64, request: Request, content: Content) -> Operation {
        let result = Told::Answer(Answer { revision: 0, term: 1, content });
        let (called, returned) = (stamp(from), Some(stamp(to)));
        Operation { client: from as u32, node: NodeId(1), called, returned, asker: None, request, result }
    }

    fn put(from: u64, to: u64, value: &str, previous: &str) -> Operation {
        told(from, to, Request::Op(put_op(KEY, value)), Content::Put { previous: item(previous) })
    }

    fn get(from: u64, to: u64, value: &str) -> Operation {
        let found: Vec<Kv> = item(value).into_iter().collect();
        told(from, to, Request::Op(get_op(KEY, None, 0)), Content::Get { count: found.len() as i64, found })
    }

    fn unknown(from: u64, value: &str) -> Operation {
        Operation { result: Told::Unknown("timeout".into()), ..put(from, from + 1, value, "") }
    }

    fn swap(from: u64, to: u64, expected: &str, value: &str, succeeded: bool) -> Operation {
        let request = Request::Txn {
            compares: vec![Compare::ValueIs(KEY.into(), expected.into())],
            then: vec![put_op(KEY, value)],
            otherwise: vec![],
        };
        let answers = if succeeded { vec![Content::Put { previous: item(expected) }] } else { vec![] };
        told(from, to, request, Content::Txn { succeeded, answers })
    }

    fn of(operations: Vec<Operation>) -> Vec<&'static str> {
        violations(&History { operations, ..History::default() })
    }

    #[test]
    fn requests_that_overlap_may_happen_in_either_order() {
        assert_eq!(of(vec![put(1, 2, "a", ""), put(3, 8, "b", "a"), get(4, 5, "a"), get(6, 7, "b")]), [] as [&str; 0]);
        assert_eq!(of(vec![put(1, 9, "a", "b"), put(2, 8, "b", ""), get(3, 7, "a")]), [] as [&str; 0]);
        assert_eq!(
            of(vec![put(1, 2, "a", ""), swap(3, 6, "a", "b", true), swap(4, 5, "a", "c", false)]),
            [] as [&str; 0]
        );
    }

    /// The stale read, seen without any revision.
    #[test]
    fn a_read_of_what_was_overwritten_is_caught() {
        assert_eq!(of(vec![put(1, 2, "a", ""), put(3, 4, "b", "a"), get(5, 6, "a")]), ["R3"]);
        assert_eq!(of(vec![put(1, 2, "a", ""), put(3, 8, "b", "a"), get(4, 5, "b"), get(6, 7, "a")]), ["R3"]);
        assert_eq!(of(vec![put(1, 2, "a", ""), get(3, 4, "")]), ["R3"]);
    }

    /// The lost update.
    #[test]
    fn two_swaps_of_the_same_value_that_both_won_are_caught() {
        assert_eq!(of(vec![put(1, 2, "a", ""), swap(3, 6, "a", "b", true), swap(4, 5, "a", "c", true)]), ["R3"]);
    }

    #[test]
    fn a_value_that_nobody_wrote_is_caught() {
        assert_eq!(of(vec![put(1, 2, "a", ""), get(3, 4, "x")]), ["R3"]);
    }

    #[test]
    fn a_write_of_unknown_outcome_happens_late_once_or_never() {
        let lost = || vec![put(1, 2, "a", ""), unknown(3, "b"), get(5, 6, "a")];
        assert_eq!(of(lost()), [] as [&str; 0]);
        let late = |more: Vec<Operation>| of(lost().into_iter().chain(more).collect());
        assert_eq!(late(vec![get(7, 8, "b")]), [] as [&str; 0]);
        assert_eq!(late(vec![get(7, 8, "b"), get(9, 10, "a")]), ["R3"]);
        assert_eq!(of(vec![put(1, 2, "a", ""), get(3, 4, "b"), unknown(5, "b")]), ["R3"]);
    }

    /// The revision a swap compares is known by the value that was read with it.
    #[test]
    fn swaps_that_compare_revisions_are_judged_by_the_value_read_there() {
        let mut maker = Maker::new();
        maker.put(1, KEY, "a");
        maker.get(1, KEY, None, false);
        let swap = |value: &str| Request::Txn {
            compares: vec![Compare::ModifiedAt(KEY.into(), 2)],
            then: vec![put_op(KEY, value)],
            otherwise: vec![get_op(KEY, None, 0)],
        };
        maker.ask(1, swap("b"));
        let second = maker.ask(2, swap("c"));
        let mut history = maker.done();
        assert_eq!(violations(&history), [] as [&str; 0]);
        let previous = history.ledger.changes[&3][0].became.clone();
        let won = Content::Txn { succeeded: true, answers: vec![Content::Put { previous }] };
        answer_mut(&mut history, second).content = won;
        assert_eq!(violations(&history), ["R3"]);
    }

    /// Ranges and transactions over several keys change registers too.
    #[test]
    fn what_a_wider_request_does_to_a_register_counts() {
        let mut maker = Maker::new();
        maker.put(1, KEY, "a");
        let read = maker.get(1, "reg/", Some("reg0"), false);
        maker.delete(1, "reg/", Some("reg0"));
        maker.get(1, KEY, None, false);
        let both = vec![get_op(KEY, None, 0), put_op("other", "b"), put_op(KEY, "c"), get_op(KEY, None, 0)];
        maker.txn(2, vec![Compare::VersionIs("other".into(), 0)], both, vec![]);
        let last = maker.get(1, KEY, None, false);
        let history = maker.done();
        assert_eq!(violations(&history), [] as [&str; 0]);
        for (index, value) in [(read, "c"), (last, "a")] {
            let mut history = history.clone();
            let Content::Get { found, .. } = &mut answer_mut(&mut history, index).content else { panic!() };
            found[0].value = value.into();
            assert_eq!(violations(&history), ["R3"]);
        }
    }

    /// What may vanish without a request cannot be judged, and must not be judged wrongly.
    #[test]
    fn a_key_that_was_on_a_lease_is_left_out() {
        let mut maker = Maker::new();
        maker.grant(1, 7, 2);
        maker.put_leased(1, KEY, "a", 7);
        maker.wait(5_000_000);
        maker.expire(&[7]);
        maker.get(1, KEY, None, false);
        assert_eq!(violations(&maker.done()), [] as [&str; 0]);
    }

    /// A delete of unknown outcome, many times over: all look the same, so one stands for all.
    #[test]
    fn deletes_of_unknown_outcome_do_not_make_the_search_long() {
        let mut operations = vec![put(1, 2, "v0", "")];
        for n in 1..200_u64 {
            let lost =
                told(n * 10, n * 10 + 1, Request::Op(delete_op(KEY, None)), Content::Delete { previous: vec![] });
            operations.push(Operation { result: Told::Unknown("timeout".into()), ..lost });
            // Every third time it did happen.
            let before = if n % 3 == 0 { String::new() } else { format!("v{}", n - 1) };
            operations.push(put(n * 10 + 2, n * 10 + 3, &format!("v{n}"), &before));
        }
        assert_eq!(of(operations.clone()), [] as [&str; 0]);
        operations.push(get(5_000, 5_001, "v3"));
        assert_eq!(of(operations), ["R3"]);
    }

    /// Long runs are cut; what overlaps the cut must not be held against anybody.
    #[test]
    fn requests_beyond_the_cut_are_not_missed() {
        let mut operations = vec![put(1, 2, "v0", "")];
        for n in 1..REQUESTS_MAX as u64 + 50 {
            operations.push(put(n * 10, n * 10 + 1, &format!("v{n}"), &format!("v{}", n - 1)));
        }
        let last = REQUESTS_MAX as u64 * 10;
        operations.push(get(last - 15, last + 5, &format!("v{REQUESTS_MAX}")));
        assert_eq!(of(operations.clone()), [] as [&str; 0]);
        operations.push(get(55, 56, "v3"));
        assert_eq!(of(operations), ["R3"]);
    }

    /// Eight clients that all overlap, with unknown outcomes in between: found out, not given up.
    #[test]
    fn many_clients_at_once_are_judged_within_the_budget() {
        let mut operations = Vec::new();
        let mut previous = String::new();
        for round in 0..60_u64 {
            for n in 0..8 {
                let value = format!("{round}/{n}");
                operations.push(put(round * 100 + n, round * 100 + 99 - n, &value, &previous));
                operations.push(unknown(round * 100 + 10 + n, &format!("u{round}/{n}")));
                previous = value;
            }
        }
        let all = operations.clone();
        assert_eq!(of(all), [] as [&str; 0]);
        operations.truncate(200);
        operations.push(get(100_000, 100_001, "0/0"));
        assert_eq!(of(operations), ["R3"]);
    }
}
