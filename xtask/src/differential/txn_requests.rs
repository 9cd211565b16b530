//! Random transactions, nested ones and malformed ones among them.
//!
//! Two kinds are kept out on purpose, because our answer to them is a meant difference and etcd's would write, so
//! that the two stores would differ from then on: a delete from a key on beside a put, and an unknown compare in
//! a transaction that writes. The second is sent in transactions that only read.

use tidelock_etcd_api::etcdserverpb::compare::TargetUnion;
use tidelock_etcd_api::etcdserverpb::request_op::Request;
use tidelock_etcd_api::etcdserverpb::{Compare, RangeRequest, RequestOp, TxnRequest};

use super::keys::{key, one_in, range_end, value};
use super::kv_requests::{delete, put, range};
use super::world::World;
use crate::random::Random;

/// How deep transactions are nested in ordinary ones.
const DEPTH: u64 = 3;
/// One more than a transaction may have.
const TOO_MANY: usize = 129;
/// Deeper than we take.
const TOO_DEEP: usize = 20;

/// What operations a transaction is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ops {
    Reads,
    Any,
}

/// A transaction.
pub(super) fn txn(random: &mut Random, world: &World) -> TxnRequest {
    match random.below(400) {
        0 => TxnRequest { compare: (0..TOO_MANY).map(|_| compare(random, world)).collect(), ..TxnRequest::default() },
        1 => TxnRequest { success: branch(random, world, DEPTH, Ops::Any, TOO_MANY), ..TxnRequest::default() },
        2 => too_deep(random, world),
        3..8 => with_unknown_compare(random, world),
        _ => {
            let ops = if one_in(random, 3) { Ops::Reads } else { Ops::Any };
            nested(random, world, DEPTH, ops)
        }
    }
}

fn nested(random: &mut Random, world: &World, depth: u64, ops: Ops) -> TxnRequest {
    let compares = random.below(4);
    let count = |random: &mut Random| random.below(5) as usize;
    TxnRequest {
        compare: (0..compares).map(|_| compare(random, world)).collect(),
        success: {
            let count = count(random);
            branch(random, world, depth, ops, count)
        },
        failure: {
            let count = count(random);
            branch(random, world, depth, ops, count)
        },
    }
}

fn branch(random: &mut Random, world: &World, depth: u64, ops: Ops, count: usize) -> Vec<RequestOp> {
    (0..count).map(|_| RequestOp { request: op(random, world, depth, ops) }).collect()
}

fn op(random: &mut Random, world: &World, depth: u64, ops: Ops) -> Option<Request> {
    if one_in(random, 300) {
        return None;
    }
    let kind = if ops == Ops::Reads { random.below(8) } else { random.below(20) };
    Some(match kind {
        0..7 => Request::RequestRange(range_within(random, world)),
        7 if depth > 0 => Request::RequestTxn(nested(random, world, depth - 1, ops)),
        7 => Request::RequestRange(range_within(random, world)),
        8..16 => Request::RequestPut(put(random, world)),
        16 | 17 if depth > 0 => Request::RequestTxn(nested(random, world, depth - 1, ops)),
        _ => {
            let mut delete = delete(random);
            if delete.range_end == "\0" {
                delete.range_end.clear();
            }
            Request::RequestDeleteRange(delete)
        }
    })
}

/// Until something was compacted etcd takes -1 for "now", and afterwards for a revision that is gone.
fn range_within(random: &mut Random, world: &World) -> RangeRequest {
    let mut request = range(random, world);
    if world.compacted == 0 {
        request.revision = request.revision.max(0);
    }
    request
}

fn compare(random: &mut Random, world: &World) -> Compare {
    let key = key(random);
    let range_end = if one_in(random, 4) { range_end(random, &key) } else { bytes::Bytes::new() };
    let target = random.below(5) as i32;
    let number = world.number_to_compare(random);
    // Mostly the value belongs to the target; sometimes to another, or there is none.
    let union = if one_in(random, 20) { random.below(6) as i32 } else { target };
    let target_union = match union {
        0 => Some(TargetUnion::Version(number)),
        1 => Some(TargetUnion::CreateRevision(number)),
        2 => Some(TargetUnion::ModRevision(number)),
        3 => Some(TargetUnion::Value(value(random))),
        4 => Some(TargetUnion::Lease(world.lease(random))),
        _ => None,
    };
    Compare { result: random.below(4) as i32, target, key, target_union, range_end }
}

fn with_unknown_compare(random: &mut Random, world: &World) -> TxnRequest {
    let mut request = nested(random, world, 0, Ops::Reads);
    let mut unknown = compare(random, world);
    if one_in(random, 2) {
        unknown.target = 17;
    } else {
        unknown.result = -3;
    }
    request.compare.push(unknown);
    request
}

fn too_deep(random: &mut Random, world: &World) -> TxnRequest {
    let mut request = nested(random, world, 0, Ops::Reads);
    for _ in 0..TOO_DEEP {
        request = TxnRequest {
            success: vec![RequestOp { request: Some(Request::RequestTxn(request)) }],
            ..TxnRequest::default()
        };
    }
    request
}
