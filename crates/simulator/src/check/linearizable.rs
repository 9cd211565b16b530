//! R1, R3, R4: there is one order of everything, and it is the order of revisions.
//!
//! Every answer carries the store's revision, which places its request: a write made that revision, a
//! read saw it. So there is no order to search for, only to check, in O(n log n):
//! - a write's answer follows from the model at the revision before, a read's from the model at its own;
//! - the ledger has for a write's revision exactly what the write had to change (R4);
//! - no two writes made one revision (R1), and what changed nothing made none;
//! - what was answered before a request was made is not behind it in the order (R3);
//! - a write whose outcome nobody was told is where the ledger has it, whole, and not before it was asked.
//!
//! Reads that are content with any state are `stale_read.rs`'s.

use super::carry_out::{Expected, carry_out, is_serializable, wrote};
use super::claims::Claim;
use super::{Findings, Prepared};
use crate::history::{Answer, Operation, Request, Told};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    for (index, operation) in prepared.history.operations.iter().enumerate() {
        if let Told::Answer(answer) = &operation.result
            && !is_serializable(&operation.request)
        {
            check_answer(prepared, index, answer, findings);
            check_real_time(prepared, index, operation, answer, findings);
        }
    }
    for (revision, first, second) in &prepared.claims.shared {
        let (first, second) = (prepared.name(*first), prepared.name(*second));
        findings.add("R1", format_args!("two writes were told that they made revision {revision}: {first}; {second}"));
    }
    for revision in prepared.history.ledger.changes.keys() {
        if let Some(Claim::Unknown(index)) = prepared.claims.of(*revision) {
            check_unknown(prepared, *index, *revision, findings);
        }
    }
}

fn check_answer(prepared: &Prepared<'_>, index: usize, answer: &Answer, findings: &mut Findings) {
    let (operation, revision) = (&prepared.history.operations[index], answer.revision);
    let writes = wrote(&answer.content);
    let before = if writes { revision - 1 } else { revision };
    let Some(expected) = carry_out(&prepared.replay, &operation.request, before, revision) else {
        if matches!(operation.request, Request::Revoke { lease } if !prepared.replay.owned_by(lease, revision).is_empty())
        {
            let name = prepared.name(index);
            findings.add("R3", format_args!("the lease still owns keys at the revision of its revocation: {name}"));
        }
        return;
    };
    let invariant = if matches!(operation.request, Request::Txn { .. }) { "R4" } else { "R3" };
    if !expected.seen.is(&answer.content) {
        let (name, seen) = (prepared.name(index), &expected.seen);
        findings.add(invariant, format_args!("{name}; at revision {before} the answer would have been {seen:?}"));
    } else if writes {
        check_changes(prepared, index, revision, &expected, invariant, findings);
    }
}

fn check_changes(
    prepared: &Prepared<'_>,
    index: usize,
    revision: i64,
    expected: &Expected<'_>,
    invariant: &'static str,
    findings: &mut Findings,
) {
    let changes = prepared.replay.changes_at(revision);
    if !expected.changes_are(changes) {
        let (name, expected) = (prepared.name(index), &expected.changes);
        findings.add(
            invariant,
            format_args!("revision {revision} changed {changes:?}, but by its request {expected:?}: {name}"),
        );
    }
}

fn check_real_time(
    prepared: &Prepared<'_>,
    index: usize,
    operation: &Operation,
    answer: &Answer,
    findings: &mut Findings,
) {
    // Keep-alives tell no revision.
    if answer.revision == 0 {
        return;
    }
    let told = prepared.told.before(operation.called);
    let least = if wrote(&answer.content) { told + 1 } else { told };
    if answer.revision < least {
        let name = prepared.name(index);
        findings.add("R3", format_args!("revision {told} had been told before this was asked: {name}"));
    }
}

fn check_unknown(prepared: &Prepared<'_>, index: usize, revision: i64, findings: &mut Findings) {
    let operation = &prepared.history.operations[index];
    let seen = prepared.seen.before(operation.called);
    if revision <= seen {
        let name = prepared.name(index);
        findings.add("R3", format_args!("revision {revision} existed before the request that made it: {name}"));
    }
    if let Some(expected) = carry_out(&prepared.replay, &operation.request, revision - 1, revision) {
        check_changes(prepared, index, revision, &expected, "R4", findings);
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, answer_mut, damaged, get_op, put_op, run};
    use crate::history::{Change, Compare, Content, History, Op, Request, Told};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "linearizable")
    }

    fn legal() -> History {
        let mut maker = Maker::new();
        maker.put(1, "a", "1"); // revision 2
        maker.put(2, "b", "2");
        maker.get(1, "a", Some("z"), false);
        maker.delete(2, "a", None);
        maker.delete(2, "a", None); // deletes nothing
        maker.txn(
            1,
            vec![Compare::ModifiedAt("b".into(), 3)],
            vec![put_op("b", "3"), put_op("c", "4"), get_op("b", None, 0)],
            vec![],
        ); // revision 5
        maker.txn(2, vec![Compare::ModifiedAt("b".into(), 3)], vec![put_op("b", "5")], vec![get_op("b", None, 0)]);
        maker.ask(1, Request::Op(get_op("a", None, 2)));
        maker.done()
    }

    #[test]
    fn a_legal_history_passes() {
        assert_eq!(violations(&legal()), [] as [&str; 0]);
    }

    /// The classic: a read that shows what was overwritten, at whatever revision it claims.
    #[test]
    fn a_read_that_shows_another_state_than_its_revision_is_caught() {
        let caught = damaged(legal(), |history| answer_mut(history, 2).revision = 2);
        assert!(!violations(&caught).is_empty());
        let caught = damaged(legal(), |history| {
            let Content::Get { found, .. } = &mut answer_mut(history, 2).content else { panic!() };
            found[0].value = "other".into();
        });
        assert_eq!(violations(&caught), ["R3"]);
        let caught = damaged(legal(), |history| {
            let Content::Get { count, .. } = &mut answer_mut(history, 2).content else { panic!() };
            *count = 7;
        });
        assert_eq!(violations(&caught), ["R3"]);
    }

    /// A read of the past must show the past.
    #[test]
    fn a_read_at_an_old_revision_that_shows_another_is_caught() {
        let caught = damaged(legal(), |history| {
            answer_mut(history, 7).content = Content::Get { found: vec![], count: 0 };
        });
        assert_eq!(violations(&caught), ["R3"]);
    }

    #[test]
    fn a_wrong_previous_value_is_caught() {
        let caught = damaged(legal(), |history| {
            let Content::Delete { previous } = &mut answer_mut(history, 3).content else { panic!() };
            previous[0].version = 7;
        });
        assert_eq!(violations(&caught), ["R3"]);
    }

    /// Two lock takers that both won: the compare of the second did not hold.
    #[test]
    fn a_transaction_that_took_the_wrong_branch_is_caught() {
        let caught = damaged(legal(), |history| {
            let answer = answer_mut(history, 6);
            answer.content = Content::Txn { succeeded: true, answers: vec![Content::Put { previous: None }] };
            answer.revision = 6;
            let became = Some(crate::check::testing::kv("b", "5", 3, 6, 3));
            history.ledger.changes.insert(6, vec![Change { key: "b".into(), became }]);
        });
        assert_eq!(violations(&caught)[0], "R4");
    }

    /// R4: half a transaction is worse than none.
    #[test]
    fn a_transaction_that_is_only_half_in_the_ledger_is_caught() {
        let caught = damaged(legal(), |history| drop(history.ledger.changes.get_mut(&5).unwrap().pop()));
        assert!(violations(&caught).contains(&"R4"));
        let caught = damaged(legal(), |history| {
            let extra = Change { key: "x".into(), became: None };
            history.ledger.changes.get_mut(&5).unwrap().push(extra);
        });
        assert!(violations(&caught).contains(&"R4"));
    }

    #[test]
    fn two_writes_that_share_a_revision_are_caught() {
        let caught = damaged(legal(), |history| {
            let mut second = history.operations[0].clone();
            second.request = Request::Op(put_op("a", "other"));
            history.operations.push(second);
        });
        assert!(violations(&caught).contains(&"R1"));
    }

    /// A write that is placed before one that was acknowledged when it began: real time is broken.
    #[test]
    fn an_order_against_real_time_is_caught() {
        let caught = damaged(legal(), |history| {
            // The delete that changed nothing claims to have happened before the key existed.
            answer_mut(history, 4).revision = 1;
        });
        assert_eq!(violations(&caught), ["R3"]);
    }

    #[test]
    fn a_write_without_an_answer_may_have_happened_or_not() {
        let mut maker = Maker::new();
        let happened = maker.put(1, "a", "1");
        maker.unanswered(happened);
        maker.never_happened(2, Request::Op(put_op("a", "2")));
        maker.get(1, "a", None, false);
        assert_eq!(violations(&maker.done()), [] as [&str; 0]);
    }

    /// A write that shows up before it was asked for was made up by somebody.
    #[test]
    fn a_write_without_an_answer_that_was_there_before_it_was_asked_is_caught() {
        let mut maker = Maker::new();
        let lost = maker.put(1, "a", "1");
        maker.unanswered(lost);
        maker.get(2, "a", None, false);
        let mut history = maker.done();
        assert_eq!(violations(&history), [] as [&str; 0]);
        let moved = history.operations[1].returned.unwrap();
        history.operations[0].called.order = moved.order + 1;
        assert_eq!(violations(&history), ["R3"]);
    }

    /// R4 holds for those whose client gave up as well.
    #[test]
    fn half_a_transaction_without_an_answer_is_caught() {
        let mut maker = Maker::new();
        let lost = maker.txn(1, vec![], vec![put_op("a", "1"), put_op("b", "2")], vec![]);
        maker.unanswered(lost);
        let mut history = maker.done();
        assert_eq!(violations(&history), [] as [&str; 0]);
        history.ledger.changes.get_mut(&2).unwrap().pop();
        assert_eq!(violations(&history), ["R4"]);
    }

    /// A revocation that leaves keys behind has not happened at its revision.
    #[test]
    fn a_revocation_that_leaves_keys_is_caught() {
        let mut maker = Maker::new();
        maker.grant(1, 7, 5);
        maker.put_leased(1, "a", "1", 7);
        let revoke = maker.revoke(1, 7);
        let mut history = maker.done();
        assert_eq!(violations(&history), [] as [&str; 0]);
        answer_mut(&mut history, revoke).revision = 2;
        assert_eq!(violations(&history), ["R3"]);
    }

    /// Refused requests and plain reads of nothing take no revision and disturb nothing.
    #[test]
    fn refused_requests_are_not_judged() {
        let mut maker = Maker::new();
        maker.put(1, "a", "1");
        let refused = maker.never_happened(2, Request::Op(Op::Put { key: "a".into(), value: "2".into(), lease: 9 }));
        let mut history = maker.done();
        history.operations[refused].result = Told::Error("etcdserver: requested lease not found".into());
        assert_eq!(violations(&history), [] as [&str; 0]);
    }
}
