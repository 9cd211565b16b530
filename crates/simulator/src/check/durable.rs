//! R2: what was acknowledged is there, and nothing is there that nobody asked for.
//!
//! - every acknowledged write is in the ledger, at its revision;
//! - at the end of a run that was healed, some node that runs has reached every acknowledged revision
//!   (that it has the same content there is `agreement.rs`'s, that reads show it `linearizable.rs`'s);
//! - every revision of the ledger was made by a request that was answered or may have happened, or by
//!   the end of leases.

use super::carry_out::{carried_out, wrote};
use super::healed::running_at_the_end;
use super::{Findings, Prepared};
use crate::history::{Answer, Content, Op, Told};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let mut acknowledged = 0;
    for (index, operation) in prepared.history.operations.iter().enumerate() {
        let Told::Answer(answer) = &operation.result else { continue };
        if !wrote(&answer.content) {
            continue;
        }
        acknowledged = acknowledged.max(answer.revision);
        let done = carried_out(&operation.request, &answer.content);
        if !done.iter().all(|(op, content)| is_in_the_ledger(prepared, answer, op, content)) {
            let name = prepared.name(index);
            findings.add("R2", format_args!("an acknowledged write is not in the ledger: {name}"));
        }
    }
    check_last_reached(prepared, acknowledged, findings);
    check_nothing_is_invented(prepared, findings);
}

fn is_in_the_ledger(prepared: &Prepared<'_>, answer: &Answer, op: &Op, content: &Content) -> bool {
    let changes = prepared.replay.changes_at(answer.revision);
    match (op, content) {
        (Op::Put { value, .. }, _) => {
            changes.iter().any(|change| change.became.as_ref().is_some_and(|kv| kv.value == *value))
        }
        (Op::Delete { .. }, Content::Delete { previous }) => {
            previous.iter().all(|kv| changes.iter().any(|change| change.became.is_none() && change.key == kv.key))
        }
        _ => true,
    }
}

fn check_last_reached(prepared: &Prepared<'_>, acknowledged: i64, findings: &mut Findings) {
    if prepared.history.bounds.healed.is_none() {
        return;
    }
    let running = running_at_the_end(prepared.history);
    let reached = running.values().flatten().map(|state| state.revision).max();
    if let Some(reached) = reached.filter(|reached| *reached < acknowledged) {
        findings.add(
            "R2",
            format_args!("revision {acknowledged} was acknowledged, but no node is beyond {reached} at the end"),
        );
    }
}

fn check_nothing_is_invented(prepared: &Prepared<'_>, findings: &mut Findings) {
    for (revision, changes) in &prepared.history.ledger.changes {
        // What is done to the tree and to native records is judged elsewhere.
        let ledger = &prepared.history.ledger;
        let is_elsewhere = ledger.tree.contains_key(revision) || ledger.native.contains_key(revision);
        let is_judged_there = changes.is_empty() && is_elsewhere;
        if is_judged_there || prepared.claims.of(*revision).is_some() {
            continue;
        }
        let value = changes.iter().find_map(|change| change.became.as_ref()).map(|kv| kv.value.as_str());
        match value.and_then(|value| prepared.claims.writer(value)) {
            Some(writer) => {
                let name = prepared.name(writer);
                findings.add("R2", format_args!("revision {revision}, {changes:?}, is not what was answered: {name}"));
            }
            None => findings.add("R2", format_args!("nobody asked for revision {revision}: {changes:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, kv, put_op, run};
    use crate::history::{Change, History, Observation, Request, Told};
    use tidelock_model::Revision;

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "durable")
    }

    fn legal() -> Maker {
        let mut maker = Maker::new();
        maker.put(1, "a", "1");
        maker.txn(1, vec![], vec![put_op("b", "2"), put_op("c", "3")], vec![]);
        maker.delete(2, "a", Some("c"));
        maker
    }

    #[test]
    fn acknowledged_writes_in_the_ledger_pass() {
        let mut maker = legal();
        maker.heal();
        maker.put(1, "d", "4");
        assert_eq!(violations(&maker.done()), [] as [&str; 0]);
    }

    /// H2: acknowledged before it was on disk, then the power went.
    #[test]
    fn an_acknowledged_write_that_is_not_in_the_ledger_is_caught() {
        for revision in 2..=4 {
            let mut history = legal().done();
            history.ledger.changes.remove(&revision);
            assert!(violations(&history).contains(&"R2"), "{revision}");
        }
        let mut history = legal().done();
        history.ledger.changes.get_mut(&3).unwrap().pop();
        assert_eq!(violations(&history), ["R2"]);
    }

    /// The ledger remembers what the nodes forgot: they are compared at the end.
    #[test]
    fn a_cluster_that_ends_behind_what_it_acknowledged_is_caught() {
        let mut maker = legal();
        maker.heal();
        let mut history = maker.done();
        assert_eq!(violations(&history), [] as [&str; 0]);
        for (_, observation) in &mut history.observations {
            if let Observation::Applied { revision, .. } = observation {
                *revision = Revision(revision.0.min(3));
            }
        }
        assert_eq!(violations(&history), ["R2"]);
    }

    #[test]
    fn a_revision_that_nobody_asked_for_is_caught() {
        let mut history = legal().done();
        history.ledger.changes.insert(5, vec![Change { key: "x".into(), became: Some(kv("x", "9", 5, 5, 1)) }]);
        assert_eq!(violations(&history), ["R2"]);
        let mut history = legal().done();
        history.ledger.changes.insert(5, vec![Change { key: "c".into(), became: None }]);
        assert_eq!(violations(&history), ["R2"]);
    }

    /// A client that was told "certainly not" tries again elsewhere; then it must not have happened.
    #[test]
    fn a_refused_write_that_happened_is_caught() {
        let mut maker = legal();
        let refused = maker.put(1, "x", "9");
        let mut history = maker.done();
        history.operations[refused].result = Told::Refused("no leader".into());
        assert_eq!(violations(&history), ["R2"]);
    }

    #[test]
    fn writes_of_unknown_outcome_may_be_in_the_ledger_or_not() {
        let mut maker = legal();
        let happened = maker.put(1, "x", "9");
        maker.unanswered(happened);
        maker.never_happened(2, Request::Op(put_op("x", "10")));
        assert_eq!(violations(&maker.done()), [] as [&str; 0]);
    }
}
