//! Tests of `txn`.

use proptest::prelude::*;
use tidelock_etcd_api::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest};
use tidelock_model::{KeyValue, LeaseId, RangeAnswer, Record, RecordMeta, Space};

use super::*;

fn op(request: WireOp) -> RequestOp {
    RequestOp { request: Some(request) }
}
fn put(key: &str) -> RequestOp {
    op(WireOp::RequestPut(PutRequest { key: key.to_owned().into(), ..Default::default() }))
}
fn delete(key: &str, range_end: &str) -> RequestOp {
    let (key, range_end) = (key.to_owned().into(), range_end.to_owned().into());
    op(WireOp::RequestDeleteRange(DeleteRangeRequest { key, range_end, ..Default::default() }))
}
fn range(key: &str, serializable: bool) -> RequestOp {
    op(WireOp::RequestRange(RangeRequest { key: key.to_owned().into(), serializable, ..Default::default() }))
}
fn txn(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> TxnRequest {
    TxnRequest { compare: vec![], success, failure }
}
fn nested(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
    op(WireOp::RequestTxn(txn(success, failure)))
}
fn check(request: TxnRequest) -> Result<(), FaceError> {
    txn_to_op(request, &Limits::default()).map(drop)
}

/// One revision holds one version of a key: a transaction that changes it twice has no meaning. Each
/// line is a transaction's branch and whether etcd takes it.
#[test]
fn a_branch_that_changes_a_key_twice_is_refused() {
    let refused = Err(FaceError::DuplicateKey);
    let cases = [
        (vec![put("a"), put("b")], Ok(())),
        (vec![put("a"), put("a")], refused),
        (vec![put("a"), delete("a", "")], refused),
        (vec![delete("a", ""), put("a")], refused),
        (vec![put("b"), delete("a", "c")], refused),
        (vec![put("c"), delete("a", "c")], Ok(())),
        (vec![put("a\0"), delete("a", "")], Ok(())),
        (vec![put("z"), delete("a", "\0")], refused),
        (vec![delete("a", "c"), delete("b", "d")], Ok(())),
        (vec![put("b"), delete("c", "a")], Ok(())),
        // Nested: both branches of one transaction may share a key, two transactions may not.
        (vec![nested(vec![put("a")], vec![put("a")])], Ok(())),
        (vec![nested(vec![put("a")], vec![]), nested(vec![put("a")], vec![])], refused),
        (vec![nested(vec![put("a")], vec![]), nested(vec![], vec![put("a")])], refused),
        (vec![put("a"), nested(vec![put("a")], vec![])], refused),
        (vec![put("a"), nested(vec![], vec![delete("a", "")])], refused),
        (vec![delete("a", "c"), nested(vec![], vec![put("b")])], refused),
        (vec![nested(vec![put("a"), put("a")], vec![])], refused),
    ];
    for (ops, expected) in cases {
        assert_eq!(check(txn(ops.clone(), vec![])), expected, "{ops:?}");
        assert_eq!(check(txn(vec![], ops.clone())), expected, "as failure: {ops:?}");
    }
    assert_eq!(check(txn(vec![put("a")], vec![put("a")])), Ok(()), "branches exclude each other");
}

/// Everybody shares the log: the size of a transaction is bounded, nesting included.
#[test]
fn operations_beyond_the_budget_are_refused() {
    let puts = |count: usize| (0..count).map(|n| put(&format!("{n}"))).collect::<Vec<_>>();
    assert_eq!(check(txn(puts(128), vec![])), Ok(()));
    assert_eq!(check(txn(puts(129), vec![])), Err(FaceError::TooManyOps));
    assert_eq!(check(txn(vec![], puts(129))), Err(FaceError::TooManyOps));
    // One operation outside leaves 127 for the transaction inside.
    assert_eq!(check(txn(vec![nested(puts(127), vec![])], vec![])), Ok(()));
    assert_eq!(check(txn(vec![nested(puts(128), vec![])], vec![])), Err(FaceError::TooManyOps));
    let compares =
        TxnRequest { compare: vec![WireCompare { key: "k".into(), ..Default::default() }; 129], ..txn(vec![], vec![]) };
    assert_eq!(check(compares), Err(FaceError::TooManyOps));
}

/// The log refuses deeper nesting; clients must hear it from us, not find their write vanished.
#[test]
fn nesting_deeper_than_the_log_takes_is_refused_at_the_door() {
    let deep = |levels: usize| {
        (1..levels).fold(txn(vec![], vec![]), |inner, _| txn(vec![op(WireOp::RequestTxn(inner))], vec![]))
    };
    assert_eq!(check(deep(TXN_DEPTH_MAX)), Ok(()));
    assert_eq!(check(deep(TXN_DEPTH_MAX + 1)), Err(FaceError::TooManyOps));
}

#[test]
fn mistakes_are_reported_in_the_order_clients_know() {
    let empty = RequestOp { request: None };
    assert_eq!(check(txn(vec![empty.clone()], vec![])), Err(FaceError::KeyNotFound));
    assert_eq!(check(txn(vec![put("")], vec![])), Err(FaceError::EmptyKey));
    // The compare comes first, then success, then failure; duplicates are only looked for in the end.
    let compare = vec![WireCompare::default()];
    assert_eq!(check(TxnRequest { compare, ..txn(vec![empty.clone()], vec![]) }), Err(FaceError::EmptyKey));
    assert_eq!(check(txn(vec![put("a"), put("a")], vec![empty])), Err(FaceError::KeyNotFound));
}

#[test]
fn a_compare_without_its_value_compares_with_zero() {
    let compare = |target: WireTarget, union: Option<TargetUnion>| {
        let compare = WireCompare { key: "k".into(), target: target.into(), target_union: union, ..Default::default() };
        convert_compare(compare).unwrap().target
    };
    assert_eq!(compare(WireTarget::Mod, Some(TargetUnion::ModRevision(5))), CompareTarget::Modified(5));
    assert_eq!(compare(WireTarget::Mod, Some(TargetUnion::Version(5))), CompareTarget::Modified(0));
    assert_eq!(compare(WireTarget::Lease, None), CompareTarget::Lease(0));
    let unknown = WireCompare { key: "k".into(), target: 9, ..Default::default() };
    assert_eq!(convert_compare(unknown), Err(FaceError::InvalidCompare));
}

/// R3: a transaction is answered from local state only if every read in it allows that.
#[test]
fn one_linearizable_read_makes_the_transaction_linearizable() {
    assert!(is_serializable(&txn(vec![range("a", true)], vec![range("b", true)])));
    assert!(!is_serializable(&txn(vec![range("a", true)], vec![range("b", false)])));
    assert!(!is_serializable(&txn(vec![range("a", true), nested(vec![range("a", true)], vec![])], vec![])));
    assert!(!is_serializable(&txn(vec![], vec![])));
}

fn item() -> KeyValue {
    let meta = RecordMeta { created: Revision(2), modified: Revision(2), version: 1, lease: LeaseId::NONE, sub: 0 };
    KeyValue { key: Key::new(Space::User, b"k"), record: Record::new(meta, b"v") }
}

/// Kubernetes reads the revision of its own writes out of the answers inside the transaction.
#[test]
fn answers_inside_tell_the_revision_before_the_first_change_and_after_it() {
    let found = || OpAnswer::Range(RangeAnswer { items: vec![item()], count: 1, more: false });
    let nothing_deleted = OpAnswer::Delete { deleted: 0, previous: vec![] };
    let inner = OpAnswer::Txn { succeeded: false, answers: vec![OpAnswer::PUT_DONE] };
    let answers = vec![found(), nothing_deleted, inner, found()];
    let answer = OpAnswer::Txn { succeeded: true, answers };
    let response = txn_to_response(&answer, Revision(9), ResponseHeader { revision: 9, ..Default::default() }).unwrap();
    assert!(response.succeeded);
    let revisions: Vec<Option<i64>> = response
        .responses
        .iter()
        .map(|response| match response.response.as_ref().unwrap() {
            WireAnswer::ResponseRange(range) => range.header.map(|header| header.revision),
            WireAnswer::ResponsePut(put) => put.header.map(|header| header.revision),
            WireAnswer::ResponseDeleteRange(delete) => delete.header.map(|header| header.revision),
            WireAnswer::ResponseTxn(txn) => txn.header.map(|header| header.revision),
        })
        .collect();
    assert_eq!(revisions, [Some(8), Some(8), Some(0), Some(9)]);
}

#[test]
fn a_transaction_that_changed_nothing_tells_one_revision() {
    let answer = OpAnswer::Txn { succeeded: true, answers: vec![OpAnswer::Range(RangeAnswer::default())] };
    let response = txn_to_response(&answer, Revision(9), ResponseHeader::default()).unwrap();
    let Some(WireAnswer::ResponseRange(range)) = &response.responses[0].response else { panic!("not a range") };
    assert_eq!(range.header.unwrap().revision, 9);
}

proptest! {
    /// The merged ranges must say the same as looking through all of them one by one.
    #[test]
    fn merged_deletes_contain_what_the_deletes_contain(
        ranges in proptest::collection::vec((0u8..30, 0u8..30), 0..12),
        probe in 0u8..30,
    ) {
        let keys: Vec<Key> = (0..30).map(|n| Key::new(Space::User, &[n])).collect();
        let mut merged = Deletes::default();
        for (start, end) in &ranges {
            merged.insert(&keys[usize::from(*start)], &keys[usize::from(*end)]);
        }
        let expected = ranges.iter().any(|(start, end)| (*start..*end).contains(&probe));
        prop_assert_eq!(merged.contains(&keys[usize::from(probe)]), expected);
    }
}

/// Alone a negative revision means "now"; in a transaction etcd calls it compacted, and nothing is written.
#[test]
fn a_negative_revision_inside_a_transaction_is_one_that_is_gone() {
    let at = |revision| {
        let request = RangeRequest { key: "k".into(), revision, ..Default::default() };
        let op = txn_to_op(txn(vec![op(WireOp::RequestRange(request))], vec![]), &Limits::default()).unwrap();
        let Op::Txn(txn) = op else { panic!("not a transaction") };
        let Op::Range(range) = &txn.success[0] else { panic!("not a range") };
        range.at
    };
    assert_eq!((at(0), at(7), at(-1)), (None, Some(Revision(7)), Some(Revision(0))));
}
