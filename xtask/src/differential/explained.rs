//! The differences that are meant or etcd's own, each as narrow as it can be put, with the reason.
//!
//! A rule makes the two answers alike where its reason holds and leaves everything else as it is. It is tried only
//! when the answers differ, and counted when it made them equal. What a rule lets pass must be in
//! `docs/compatibility/etcd.md`, under "Differences from etcd", or be a fault of etcd's that is told here.

use tidelock_etcd_api::etcdserverpb::range_request::{SortOrder, SortTarget};
use tidelock_etcd_api::etcdserverpb::request_op::Request;
use tidelock_etcd_api::etcdserverpb::response_op::Response;
use tidelock_etcd_api::etcdserverpb::{RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse};
use tidelock_etcd_api::mvccpb::KeyValue;
use tonic::Code;

use super::call::{Answer, Call, Reply};

/// The longest life of a lease that we keep to the second.
const TTL_KEPT_MAX: i64 = u32::MAX as i64;
/// Seconds that the rest of a lease's life may differ by: the two were granted or renewed one after the other.
const TTL_SLACK: u64 = 2;

/// A difference with a reason.
pub(super) struct Rule {
    /// What it is about.
    pub(super) name: &'static str,
    /// Why it is no bug of ours.
    pub(super) reason: &'static str,
    /// Makes the answers (ours, theirs) alike as far as the reason goes.
    apply: fn(&Call, &mut Answer, &mut Answer),
}

/// Named by the code that finds it, since it is about no call.
pub(super) const UNASKED_PREVIOUS: &str = "watch: previous values that nobody asked for";
/// The same.
pub(super) const CANCELLED_TWICE: &str = "watch: cancelled by compaction, then by the client";

/// All of them.
pub(super) const RULES: [Rule; 20] = [
    Rule {
        name: "lease: what is left of its life",
        reason: "the two were granted a moment apart; up to two seconds",
        apply: time_left,
    },
    Rule {
        name: "lease: a life of more than 2^32 - 1 seconds",
        reason: "meant: it is cut there, after 136 years",
        apply: long_life,
    },
    Rule {
        name: "range: leases where only keys are asked for",
        reason: "meant: told, as by every etcd before 3.7, which leaves them out",
        apply: leases_of_keys_only,
    },
    Rule {
        name: "range: keys with equal sort values",
        reason: "etcd sorts with an algorithm that is not stable; ours come in key order",
        apply: equal_sort_values,
    },
    Rule {
        name: "range: a sort target without an order, and a limit",
        reason: "meant: etcd cuts before it sorts",
        apply: cut_before_sorted,
    },
    Rule {
        name: "range stream: a sort target without an order",
        reason: "meant: refused like other orders; etcd sorts within each part",
        apply: stream_without_order,
    },
    Rule {
        name: "txn: a compare with an unknown target or result",
        reason: "meant: refused; etcd takes it for some known one",
        apply: unknown_compare,
    },
    Rule { name: "txn: nested deeper than 16", reason: "meant: refused", apply: nested_too_deep },
    Rule {
        name: "downgrade: a version that etcd could go back to",
        reason: "meant: no target is accepted",
        apply: downgrade_target,
    },
    Rule {
        name: "txn: nested reads under the alarm CORRUPT",
        reason: "meant: reads are answered; etcd takes a nested transaction for a write",
        apply: nested_reads_when_corrupt,
    },
    Rule {
        name: "hash: of the keys at a negative revision",
        reason: "meant: taken for now; etcd hashes nothing and gives the number back",
        apply: hash_at_negative_revision,
    },
    Rule {
        name: "hash: of the keys at the revision that was compacted",
        reason: "etcd gives what it noted while compacting, and so the revision compacted before",
        apply: hash_at_compacted_revision,
    },
    Rule {
        name: "alarms: told to who may not write",
        reason: "meant: rights come first; etcd tells everybody of the alarm",
        apply: alarm_before_rights,
    },
    Rule {
        name: "range: one that ends before it begins, by a user",
        reason: "it holds nothing; with us it needs what nobody has, with etcd that depends on its tree of permissions",
        apply: empty_range_of_a_user,
    },
    Rule {
        name: "role: permissions for the same key",
        reason: "etcd sorts them by key alone, with an algorithm that is not stable",
        apply: permissions_of_a_key,
    },
    Rule {
        name: "status: blanks in the text of an alarm",
        reason: "the library of etcd 3.7 changes them from build to build; ours are those before",
        apply: blanks_in_status,
    },
    Rule {
        name: "user: without a name, asked about by nobody",
        reason: "meant: who has not come in is told so; etcd takes them for the user of that name, and finds none",
        apply: nobody_asks_about_nobody,
    },
    Rule {
        name: "election: keys made by one transaction",
        reason: "etcd sorts by that revision alone, with an algorithm that is not stable; ours come in key order",
        apply: leaders_of_a_revision,
    },
    Rule { name: UNASKED_PREVIOUS, reason: "etcd 3.7 fills them into events that watchers share", apply: |_, _, _| () },
    Rule {
        name: CANCELLED_TWICE,
        reason: "etcd keeps the id until the client cancels it too, and confirms that; with us it is gone at once",
        apply: |_, _, _| (),
    },
];

/// Each rule, for what was asked.
pub(super) fn rules(call: &Call) -> impl Iterator<Item = (&'static str, impl FnOnce(&mut Answer, &mut Answer))> {
    RULES
        .iter()
        .map(move |rule| (rule.name, move |ours: &mut Answer, theirs: &mut Answer| (rule.apply)(call, ours, theirs)))
}

fn replies<'a>(ours: &'a mut Answer, theirs: &'a mut Answer) -> Option<(&'a mut Reply, &'a mut Reply)> {
    match (ours, theirs) {
        (Answer::Reply(ours), Answer::Reply(theirs)) => Some((&mut **ours, &mut **theirs)),
        _ => None,
    }
}

fn nobody_asks_about_nobody(call: &Call, ours: &mut Answer, theirs: &mut Answer) {
    if matches!(call, Call::UserGet(asked) if asked.name.is_empty())
        && matches!(ours, Answer::Refused(Code::InvalidArgument, text) if text == "etcdserver: user name is empty")
        && matches!(theirs, Answer::Refused(Code::FailedPrecondition, _))
    {
        ours.clone_from(theirs);
    }
}

fn leaders_of_a_revision(_: &Call, ours: &mut Answer, theirs: &mut Answer) {
    let (ours, theirs) = match replies(ours, theirs) {
        Some((Reply::Leader(ours), Reply::Leader(theirs)) | (Reply::Observe(ours), Reply::Observe(theirs))) => {
            (&mut ours.kv, &mut theirs.kv)
        }
        _ => return,
    };
    if let (Some(our), Some(their)) = (ours.as_ref(), theirs.as_ref())
        && our.create_revision == their.create_revision
        && our.key < their.key
    {
        ours.clone_from(theirs);
    }
}

fn time_left(_: &Call, ours: &mut Answer, theirs: &mut Answer) {
    if let Some((Reply::LeaseTimeToLive(ours), Reply::LeaseTimeToLive(theirs))) = replies(ours, theirs)
        && ours.ttl > 0
        && theirs.ttl > 0
        && ours.ttl.abs_diff(theirs.ttl) <= TTL_SLACK
    {
        ours.ttl = theirs.ttl;
    }
}

fn long_life(call: &Call, ours: &mut Answer, theirs: &mut Answer) {
    let cut = |ours: &mut i64, theirs: &mut i64| {
        // What is left of it runs from there.
        if *theirs > TTL_KEPT_MAX && *ours <= TTL_KEPT_MAX {
            *theirs = *ours;
        }
    };
    match (call, replies(ours, theirs)) {
        (_, Some((Reply::LeaseGrant(ours), Reply::LeaseGrant(theirs)))) => cut(&mut ours.ttl, &mut theirs.ttl),
        (_, Some((Reply::LeaseTimeToLive(ours), Reply::LeaseTimeToLive(theirs))))
            if theirs.granted_ttl > TTL_KEPT_MAX && ours.granted_ttl == TTL_KEPT_MAX =>
        {
            theirs.granted_ttl = ours.granted_ttl;
            theirs.ttl = ours.ttl;
        }
        (_, Some((Reply::KeepAlive(ours), Reply::KeepAlive(theirs)))) if ours.len() == theirs.len() => {
            for (ours, theirs) in ours.iter_mut().zip(theirs) {
                if ours.ttl == TTL_KEPT_MAX {
                    cut(&mut ours.ttl, &mut theirs.ttl);
                }
            }
        }
        _ => {}
    }
}

/// Calls `change` for each range in a call together with both answers to it.
fn each_range(
    call: &Call,
    ours: &mut Answer,
    theirs: &mut Answer,
    change: fn(&RangeRequest, &mut RangeResponse, &mut RangeResponse),
) {
    match (call, replies(ours, theirs)) {
        (Call::Range(request), Some((Reply::Range(ours), Reply::Range(theirs)))) => change(request, ours, theirs),
        (Call::RangeStream(request), Some((Reply::RangeStream(ours), Reply::RangeStream(theirs)))) => {
            change(request, ours, theirs);
        }
        (Call::Txn(request), Some((Reply::Txn(ours), Reply::Txn(theirs)))) => {
            each_in_txn(request, ours, theirs, change);
        }
        _ => {}
    }
}

fn each_in_txn(
    request: &TxnRequest,
    ours: &mut TxnResponse,
    theirs: &mut TxnResponse,
    change: fn(&RangeRequest, &mut RangeResponse, &mut RangeResponse),
) {
    let branch = if ours.succeeded { &request.success } else { &request.failure };
    for ((op, ours), theirs) in branch.iter().zip(&mut ours.responses).zip(&mut theirs.responses) {
        match (&op.request, &mut ours.response, &mut theirs.response) {
            (
                Some(Request::RequestRange(op)),
                Some(Response::ResponseRange(ours)),
                Some(Response::ResponseRange(theirs)),
            ) => {
                change(op, ours, theirs);
            }
            (Some(Request::RequestTxn(op)), Some(Response::ResponseTxn(ours)), Some(Response::ResponseTxn(theirs))) => {
                each_in_txn(op, ours, theirs, change);
            }
            _ => {}
        }
    }
}

/// What an item is sorted by, as bytes that are equal if and only if it is.
fn sort_value(target: SortTarget, item: &KeyValue) -> Vec<u8> {
    match target {
        SortTarget::Key => item.key.to_vec(),
        SortTarget::Version => item.version.to_be_bytes().to_vec(),
        SortTarget::Create => item.create_revision.to_be_bytes().to_vec(),
        SortTarget::Mod => item.mod_revision.to_be_bytes().to_vec(),
        SortTarget::Value => item.value.to_vec(),
    }
}

fn leases_of_keys_only(call: &Call, ours: &mut Answer, theirs: &mut Answer) {
    each_range(call, ours, theirs, |request, ours, theirs| {
        // Where it has to read the values to sort by them, etcd 3.7 has the leases too, and tells them.
        let left_out = request.keys_only && request.sort_target != i32::from(SortTarget::Value);
        if left_out && theirs.kvs.iter().all(|item| item.lease == 0) {
            ours.kvs.iter_mut().for_each(|item| item.lease = 0);
        }
    });
}

fn equal_sort_values(call: &Call, ours: &mut Answer, theirs: &mut Answer) {
    each_range(call, ours, theirs, |request, ours, theirs| {
        let Ok(target) = SortTarget::try_from(request.sort_target) else { return };
        if target == SortTarget::Key {
            return;
        }
        // Values are not in an answer of keys only: then the keys alone can be compared, as a set.
        let hidden = request.keys_only && target == SortTarget::Value;
        let value = |item: &KeyValue| if hidden { Vec::new() } else { sort_value(target, item) };
        let values = |response: &RangeResponse| response.kvs.iter().map(value).collect::<Vec<_>>();
        if values(ours) != values(theirs) {
            return;
        }
        // Both sides have the same values in the same order: within one value the keys may stand as they like.
        let mut places: Vec<Vec<u8>> = values(ours);
        places.dedup();
        let place = |item: &KeyValue| places.iter().position(|place| *place == value(item));
        let in_order = |items: &mut Vec<KeyValue>| items.sort_by_key(|item| (place(item), item.key.clone()));
        in_order(&mut ours.kvs);
        in_order(&mut theirs.kvs);
        // Where the limit cut through equal ones, the two may have kept different ones.
        let cut = ours.more && theirs.more;
        if let Some(last) = ours.kvs.last().map(value).filter(|_| cut) {
            ours.kvs.retain(|item| value(item) != last);
            theirs.kvs.retain(|item| value(item) != last);
        }
    });
}

fn cut_before_sorted(call: &Call, ours: &mut Answer, theirs: &mut Answer) {
    each_range(call, ours, theirs, |request, ours, theirs| {
        let unordered = request.sort_order == i32::from(SortOrder::None) && request.sort_target != 0;
        if unordered && request.limit > 0 && ours.more == theirs.more && ours.kvs.len() == theirs.kvs.len() {
            ours.kvs.clone_from(&theirs.kvs);
        }
    });
}

fn refused_by_us(ours: &Answer, code: Code, words: &str) -> bool {
    matches!(ours, Answer::Refused(ours, said) if *ours == code && said == words)
}

fn stream_without_order(call: &Call, ours: &mut Answer, theirs: &mut Answer) {
    let Call::RangeStream(request) = call else { return };
    let unordered = request.sort_order == i32::from(SortOrder::None) && request.sort_target != 0;
    if unordered && refused_by_us(ours, Code::Unimplemented, "RangeStream does not support custom sort orders") {
        ours.clone_from(theirs);
    }
}

fn unknown_compare(call: &Call, ours: &mut Answer, theirs: &mut Answer) {
    let Call::Txn(request) = call else { return };
    let unknown =
        request.compare.iter().any(|compare| !(0..4).contains(&compare.result) || !(0..5).contains(&compare.target));
    if unknown && refused_by_us(ours, Code::InvalidArgument, "etcdserver: invalid compare in txn request") {
        ours.clone_from(theirs);
    }
}

fn depth(ops: &[RequestOp]) -> usize {
    let nested = |op: &RequestOp| match &op.request {
        Some(Request::RequestTxn(txn)) => 1 + depth(&txn.success).max(depth(&txn.failure)),
        _ => 0,
    };
    ops.iter().map(nested).max().unwrap_or(0)
}

fn nested_too_deep(call: &Call, ours: &mut Answer, theirs: &mut Answer) {
    let Call::Txn(request) = call else { return };
    let deep = depth(&request.success).max(depth(&request.failure)) >= 16;
    if deep && refused_by_us(ours, Code::InvalidArgument, "etcdserver: too many operations in txn request") {
        ours.clone_from(theirs);
    }
}

fn only_reads(ops: &[RequestOp]) -> bool {
    ops.iter().all(|op| match &op.request {
        Some(Request::RequestTxn(txn)) => only_reads(&txn.success) && only_reads(&txn.failure),
        Some(Request::RequestRange(_)) => true,
        _ => false,
    })
}

fn nested_reads_when_corrupt(call: &Call, ours: &mut Answer, theirs: &mut Answer) {
    let Call::Txn(request) = call else { return };
    let nested = depth(&request.success).max(depth(&request.failure)) > 0;
    let corrupt = matches!(&*theirs, Answer::Refused(Code::DataLoss, said) if said == "etcdserver: corrupt cluster");
    if nested && corrupt && only_reads(&request.success) && only_reads(&request.failure) {
        theirs.clone_from(ours);
    }
}

fn hash_at_negative_revision(call: &Call, ours: &mut Answer, theirs: &mut Answer) {
    let Call::HashKv(request) = call else { return };
    if let Some((Reply::HashKv(ours), Reply::HashKv(theirs))) = replies(ours, theirs)
        && request.revision < 0
        && theirs.hash_revision == request.revision
    {
        theirs.hash_revision = ours.hash_revision;
    }
}

fn hash_at_compacted_revision(call: &Call, ours: &mut Answer, theirs: &mut Answer) {
    let Call::HashKv(request) = call else { return };
    // The note stays when the revision itself is gone.
    if let Answer::Reply(reply) = &*theirs
        && let Reply::HashKv(noted) = &**reply
        && noted.hash_revision == request.revision
        && matches!(ours, Answer::Refused(_, text) if text.contains("compacted"))
    {
        *theirs = ours.clone();
        return;
    }
    if let Some((Reply::HashKv(ours), Reply::HashKv(theirs))) = replies(ours, theirs)
        && ours.compact_revision == request.revision
        && theirs.compact_revision < request.revision
    {
        theirs.compact_revision = ours.compact_revision;
    }
}

fn alarm_before_rights(_: &Call, ours: &mut Answer, theirs: &mut Answer) {
    let about_rights = |answer: &Answer| {
        matches!(answer, Answer::Refused(_, text) if ["permission denied", "user name is empty", "invalid auth token"]
            .iter()
            .any(|words| text.ends_with(words)))
    };
    let about_alarms = |answer: &Answer| {
        matches!(answer, Answer::Refused(_, text) if ["database space exceeded", "corrupt cluster"]
            .iter()
            .any(|words| text.ends_with(words)))
    };
    if about_rights(ours) && about_alarms(theirs) {
        *theirs = ours.clone();
    }
}

fn empty_range_of_a_user(call: &Call, ours: &mut Answer, theirs: &mut Answer) {
    let (key, end) = match call {
        Call::Range(request) | Call::RangeStream(request) => (&request.key, &request.range_end),
        Call::DeleteRange(request) => (&request.key, &request.range_end),
        _ => return,
    };
    let denied = matches!(ours, Answer::Refused(_, text) if text.ends_with("permission denied"));
    if denied && !end.is_empty() && **end != *b"\0" && end <= key && matches!(theirs, Answer::Reply(_)) {
        *theirs = ours.clone();
    }
}

fn permissions_of_a_key(_: &Call, ours: &mut Answer, theirs: &mut Answer) {
    if let Some((Reply::RoleGet(ours), Reply::RoleGet(theirs))) = replies(ours, theirs)
        && theirs.perm.is_sorted_by(|one, next| one.key <= next.key)
    {
        for perm in [&mut ours.perm, &mut theirs.perm] {
            perm.sort_by(|one, other| (&one.key, &one.range_end).cmp(&(&other.key, &other.range_end)));
        }
    }
}

fn blanks_in_status(_: &Call, ours: &mut Answer, theirs: &mut Answer) {
    if let Some((Reply::Status(ours), Reply::Status(theirs))) = replies(ours, theirs) {
        let single = |text: &mut String| *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        ours.errors.iter_mut().chain(&mut theirs.errors).for_each(single);
    }
}

fn downgrade_target(call: &Call, ours: &mut Answer, theirs: &mut Answer) {
    let refused = refused_by_us(ours, Code::InvalidArgument, "etcdserver: invalid downgrade target version");
    if matches!(call, Call::Downgrade(_)) && refused {
        ours.clone_from(theirs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differences::Hits;
    use tidelock_etcd_api::etcdserverpb::ResponseHeader;

    fn answer(keys: &[(&str, i64)], more: bool) -> Answer {
        let item = |(key, version): &(&str, i64)| KeyValue {
            key: key.to_string().into(),
            version: *version,
            ..KeyValue::default()
        };
        let kvs = keys.iter().map(item).collect();
        Answer::Reply(Box::new(Reply::Range(RangeResponse { header: None::<ResponseHeader>, kvs, more, count: 9 })))
    }

    fn by_version(limit: i64) -> Call {
        let sort_target = SortTarget::Version.into();
        Call::Range(RangeRequest {
            sort_target,
            sort_order: SortOrder::Ascend.into(),
            limit,
            ..RangeRequest::default()
        })
    }

    /// Too wide a rule would let a wrong order pass.
    #[test]
    fn only_equal_sort_values_may_change_places() {
        let explains = |one: &[(&str, i64)], other: &[(&str, i64)]| {
            Hits::default().explain((&answer(one, false), &answer(other, false)), rules(&by_version(0)))
        };
        assert!(explains(&[("a", 1), ("b", 1), ("c", 2)], &[("b", 1), ("a", 1), ("c", 2)]));
        assert!(!explains(&[("a", 1), ("c", 2)], &[("c", 2), ("a", 1)]));
        assert!(!explains(&[("a", 1), ("b", 1)], &[("a", 1), ("c", 1)]));
    }

    #[test]
    fn a_limit_may_cut_through_equal_sort_values_only() {
        let explains = |one: &[(&str, i64)], other: &[(&str, i64)]| {
            Hits::default().explain((&answer(one, true), &answer(other, true)), rules(&by_version(2)))
        };
        assert!(explains(&[("a", 1), ("b", 2)], &[("a", 1), ("c", 2)]));
        assert!(!explains(&[("a", 1), ("b", 2)], &[("c", 1), ("b", 2)]));
    }
}
