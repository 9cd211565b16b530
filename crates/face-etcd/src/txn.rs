//! Transactions: their checks, in and out.
//!
//! A transaction may have as many compares, and as many operations in either branch, as the limit says;
//! one nested in it may have what the outer one left over. Within a branch no key may be put twice or
//! both put and deleted, nested transactions included; the two branches of one transaction exclude each
//! other and may share keys. Deleting a key twice is harmless and allowed.

use std::collections::{BTreeMap, BTreeSet};

use tidelock_etcd_api::etcdserverpb::compare::{CompareResult as WireResult, CompareTarget as WireTarget, TargetUnion};
use tidelock_etcd_api::etcdserverpb::request_op::Request as WireOp;
use tidelock_etcd_api::etcdserverpb::response_op::Response as WireAnswer;
use tidelock_etcd_api::etcdserverpb::{
    Compare as WireCompare, DeleteRangeResponse, PutResponse, RangeRequest, RequestOp, ResponseHeader, ResponseOp,
    TxnRequest, TxnResponse,
};
use tidelock_model::limits::TXN_DEPTH_MAX;
use tidelock_model::{Compare, CompareResult, CompareTarget, Key, KeyRange, Op, OpAnswer, RangeOp, Revision, Txn};

use crate::config::Limits;
use crate::error_map::FaceError;
use crate::header::{wire_number, wire_revision};
use crate::key_range::{key_range, wire_item, wire_items};
use crate::kv::{MISMATCH, delete_to_op, found_to_response, put_to_op, range_to_op};

/// A transaction as an operation, checked.
pub fn txn_to_op(request: TxnRequest, limits: &Limits) -> Result<Op, FaceError> {
    let txn = convert(request, limits.txn_ops, 1)?;
    // After the counts are known to be small, so that this cannot be made to take long.
    check_branch(&txn.success)?;
    check_branch(&txn.failure)?;
    Ok(Op::Txn(Box::new(txn)))
}

/// Whether a transaction may be answered from this node's own state: it only reads, and every read says
/// so. One that reads nothing at all makes no such statement.
#[must_use]
pub fn is_serializable(request: &TxnRequest) -> bool {
    let mut ops = request.success.iter().chain(&request.failure).peekable();
    ops.peek().is_some() && ops.all(|op| matches!(&op.request, Some(WireOp::RequestRange(range)) if range.serializable))
}

/// Converts and checks in etcd's order, so that a request with several mistakes gets the same error.
fn convert(request: TxnRequest, budget: usize, depth: usize) -> Result<Txn, FaceError> {
    let ops = request.compare.len().max(request.success.len()).max(request.failure.len());
    if ops > budget || depth > TXN_DEPTH_MAX {
        return Err(FaceError::TooManyOps);
    }
    let branch = |ops_in: Vec<RequestOp>| {
        ops_in.into_iter().map(|op| convert_op(op, budget - ops, depth)).collect::<Result<Vec<_>, _>>()
    };
    Ok(Txn {
        compares: request.compare.into_iter().map(convert_compare).collect::<Result<_, _>>()?,
        success: branch(request.success)?,
        failure: branch(request.failure)?,
    })
}

fn convert_op(op: RequestOp, budget: usize, depth: usize) -> Result<Op, FaceError> {
    match op.request {
        Some(WireOp::RequestRange(range)) => Ok(Op::Range(range_in_txn(&range)?)),
        Some(WireOp::RequestPut(put)) => Ok(Op::Put(put_to_op(put)?)),
        Some(WireOp::RequestDeleteRange(delete)) => Ok(Op::Delete(delete_to_op(&delete)?)),
        Some(WireOp::RequestTxn(txn)) => Ok(Op::Txn(Box::new(convert(txn, budget, depth + 1)?))),
        // etcd's own word for an operation that is none.
        None => Err(FaceError::KeyNotFound),
    }
}

/// Within a transaction a negative revision is one that is gone; alone it means "now". Refused only if it comes
/// to be read, so it is left to the store.
fn range_in_txn(request: &RangeRequest) -> Result<RangeOp, FaceError> {
    let op = range_to_op(request)?;
    Ok(if request.revision < 0 { RangeOp { at: Some(Revision(0)), ..op } } else { op })
}

fn convert_compare(compare: WireCompare) -> Result<Compare, FaceError> {
    let range = key_range(&compare.key, &compare.range_end)?;
    let result = match WireResult::try_from(compare.result).map_err(|_| FaceError::InvalidCompare)? {
        WireResult::Equal => CompareResult::Equal,
        WireResult::Greater => CompareResult::Greater,
        WireResult::Less => CompareResult::Less,
        WireResult::NotEqual => CompareResult::NotEqual,
    };
    // The target decides; a value given for another target counts as not given, that is, zero.
    let target = WireTarget::try_from(compare.target).map_err(|_| FaceError::InvalidCompare)?;
    let target = match (target, compare.target_union) {
        (WireTarget::Version, Some(TargetUnion::Version(version))) => CompareTarget::Version(version),
        (WireTarget::Version, _) => CompareTarget::Version(0),
        (WireTarget::Create, Some(TargetUnion::CreateRevision(revision))) => CompareTarget::Created(revision),
        (WireTarget::Create, _) => CompareTarget::Created(0),
        (WireTarget::Mod, Some(TargetUnion::ModRevision(revision))) => CompareTarget::Modified(revision),
        (WireTarget::Mod, _) => CompareTarget::Modified(0),
        (WireTarget::Value, Some(TargetUnion::Value(value))) => CompareTarget::Value(value),
        (WireTarget::Value, _) => CompareTarget::Value(bytes::Bytes::new()),
        (WireTarget::Lease, Some(TargetUnion::Lease(lease))) => CompareTarget::Lease(lease),
        (WireTarget::Lease, _) => CompareTarget::Lease(0),
    };
    Ok(Compare { range, result, target })
}

/// What a branch puts and deletes.
#[derive(Default)]
struct Changes<'a> {
    puts: BTreeSet<&'a Key>,
    deletes: Deletes<'a>,
}

/// Deleted ranges, merged: start to end. Looking one key up takes logarithmic time however many
/// overlapping deletes a hostile transaction holds.
#[derive(Default)]
struct Deletes<'a>(BTreeMap<&'a Key, &'a Key>);

impl<'a> Deletes<'a> {
    fn insert(&mut self, start: &'a Key, end: &'a Key) {
        if start >= end {
            return;
        }
        let (mut start, mut end) = (start, end);
        // Swallow every range that touches the new one, from the last that starts within it backwards.
        while let Some((other_start, other_end)) = self.0.range::<Key, _>(..=end).next_back().map(|(s, e)| (*s, *e)) {
            if other_end < start {
                break;
            }
            self.0.remove(other_start);
            start = start.min(other_start);
            end = end.max(other_end);
        }
        self.0.insert(start, end);
    }

    fn add_all(&mut self, other: Deletes<'a>) {
        other.0.into_iter().for_each(|(start, end)| self.insert(start, end));
    }

    fn contains(&self, key: &Key) -> bool {
        self.0.range::<Key, _>(..=key).next_back().is_some_and(|(_, end)| key < *end)
    }
}

impl<'a> Changes<'a> {
    fn put(&mut self, key: &'a Key) -> Result<(), FaceError> {
        if self.deletes.contains(key) || !self.puts.insert(key) { Err(FaceError::DuplicateKey) } else { Ok(()) }
    }
}

/// Refuses a branch that would change a key twice; tells what it changes.
fn check_branch(ops: &[Op]) -> Result<Changes<'_>, FaceError> {
    let mut changes = Changes::default();
    for op in ops {
        if let Op::Delete(delete) = op {
            let KeyRange { start, end } = &delete.range;
            changes.deletes.insert(start, end);
        }
    }
    for op in ops {
        if let Op::Txn(txn) = op {
            let then = check_branch(&txn.success)?;
            let otherwise = check_branch(&txn.failure)?;
            for key in &then.puts {
                changes.put(key)?;
            }
            // Only one of the two happens: what both put is put once.
            for key in otherwise.puts.difference(&then.puts) {
                changes.put(key)?;
            }
            changes.deletes.add_all(then.deletes);
            changes.deletes.add_all(otherwise.deletes);
        }
    }
    for op in ops {
        if let Op::Put(put) = op {
            changes.put(&put.key)?;
        }
    }
    Ok(changes)
}

/// What a transaction answered, on the wire. `revision` is the store's after it.
pub fn txn_to_response(
    answer: &OpAnswer,
    revision: Revision,
    header: ResponseHeader,
) -> Result<TxnResponse, FaceError> {
    let OpAnswer::Txn { succeeded, answers } = answer else { return Err(MISMATCH) };
    let before = if changes_something(answer) { Revision(revision.0.saturating_sub(1)) } else { revision };
    let mut progress = Progress { now: before, after: revision };
    let responses = answers.iter().map(|answer| progress.answer(answer)).collect();
    Ok(TxnResponse { header: Some(header), succeeded: *succeeded, responses })
}

fn changes_something(answer: &OpAnswer) -> bool {
    match answer {
        OpAnswer::Put { .. } => true,
        OpAnswer::Delete { deleted, .. } => *deleted > 0,
        OpAnswer::Range(_) => false,
        OpAnswer::Txn { answers, .. } => answers.iter().any(changes_something),
    }
}

/// Headers inside a transaction hold only a revision: the one before it until the first change, the
/// one after it from then on.
struct Progress {
    now: Revision,
    after: Revision,
}

impl Progress {
    fn answer(&mut self, answer: &OpAnswer) -> ResponseOp {
        if !matches!(answer, OpAnswer::Txn { .. }) && changes_something(answer) {
            self.now = self.after;
        }
        let header = ResponseHeader { revision: wire_revision(self.now), ..Default::default() };
        let response = match answer {
            OpAnswer::Put { previous } => WireAnswer::ResponsePut(PutResponse {
                header: Some(header),
                prev_kv: previous.as_ref().map(|item| wire_item(&item.key, &item.record)),
            }),
            OpAnswer::Delete { deleted, previous } => WireAnswer::ResponseDeleteRange(DeleteRangeResponse {
                header: Some(header),
                deleted: wire_number(*deleted),
                prev_kvs: wire_items(previous),
            }),
            OpAnswer::Range(found) => WireAnswer::ResponseRange(found_to_response(found, header)),
            OpAnswer::Txn { succeeded, answers } => WireAnswer::ResponseTxn(TxnResponse {
                // Empty, but there: a nested transaction's header tells nothing.
                header: Some(ResponseHeader::default()),
                succeeded: *succeeded,
                responses: answers.iter().map(|answer| self.answer(answer)).collect(),
            }),
        };
        ResponseOp { response: Some(response) }
    }
}

#[cfg(test)]
#[path = "txn_tests.rs"]
mod tests;
