//! A history's words as etcd's messages, and back. Pure.
//!
//! Text that is not UTF-8 is kept readable instead of being refused: a checker that finds it says so.

use bytes::Bytes;
use tidelock_etcd_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use tidelock_etcd_api::etcdserverpb::request_op::Request as WireOp;
use tidelock_etcd_api::etcdserverpb::response_op::Response as WireAnswer;
use tidelock_etcd_api::etcdserverpb::{
    Compare as WireCompare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest,
    RangeResponse, RequestOp, ResponseHeader, TxnRequest, TxnResponse,
};
use tidelock_etcd_api::mvccpb::event::EventType;
use tidelock_etcd_api::mvccpb::{Event, KeyValue};
use tidelock_model::{Fencing, Name};

use crate::history::{Answer, Compare, Content, Kv, Op, WatchEvent};

pub(super) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

pub(super) fn range_end(end: Option<&str>) -> Bytes {
    end.map_or_else(Bytes::new, bytes)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(super) fn put(key: &str, value: &str, lease: i64) -> PutRequest {
    PutRequest { key: bytes(key), value: bytes(value), lease, prev_kv: true, ..Default::default() }
}

pub(super) fn delete(key: &str, end: Option<&str>) -> DeleteRangeRequest {
    DeleteRangeRequest { key: bytes(key), range_end: range_end(end), prev_kv: true }
}

pub(super) fn range(key: &str, end: Option<&str>, at: i64, serializable: bool) -> RangeRequest {
    RangeRequest { key: bytes(key), range_end: range_end(end), revision: at, serializable, ..Default::default() }
}

pub(super) fn txn(compares: &[Compare], then: &[Op], otherwise: &[Op]) -> TxnRequest {
    TxnRequest {
        compare: compares.iter().filter_map(compare).collect(),
        success: then.iter().map(op).collect(),
        failure: otherwise.iter().map(op).collect(),
    }
}

fn op(op: &Op) -> RequestOp {
    let request = match op {
        Op::Put { key, value, lease } => WireOp::RequestPut(put(key, value, *lease)),
        Op::Delete { key, end } => WireOp::RequestDeleteRange(delete(key, end.as_deref())),
        Op::Get { key, end, at, serializable } => WireOp::RequestRange(range(key, end.as_deref(), *at, *serializable)),
    };
    RequestOp { request: Some(request) }
}

/// `None`: etcd has no words for it.
fn compare(compare: &Compare) -> Option<WireCompare> {
    let (key, target, expected) = match compare {
        Compare::ValueIs(key, value) => (key, CompareTarget::Value, TargetUnion::Value(bytes(value))),
        Compare::ModifiedAt(key, revision) => (key, CompareTarget::Mod, TargetUnion::ModRevision(*revision)),
        Compare::VersionIs(key, version) => (key, CompareTarget::Version, TargetUnion::Version(*version)),
        Compare::Admits(..) | Compare::Holds { .. } => return None,
    };
    Some(WireCompare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: bytes(key),
        range_end: Bytes::new(),
        target_union: Some(expected),
    })
}

/// The conditions of a transaction that show a token to a native fence.
pub(super) fn admissions(compares: &[Compare]) -> impl Iterator<Item = tidelock_model::Compare> {
    compares.iter().filter_map(|compare| match compare {
        Compare::Admits(fence, token) => {
            let fence = Name::new(fence).ok()?;
            Some(tidelock_model::Compare::admits(&Fencing { fence, token: *token }))
        }
        _ => None,
    })
}

pub(super) fn answer(header: Option<ResponseHeader>, content: Content) -> Answer {
    let header = header.unwrap_or_default();
    Answer { revision: header.revision, term: header.raft_term, content }
}

pub(super) fn put_content(response: &PutResponse) -> Content {
    Content::Put { previous: response.prev_kv.as_ref().map(kv) }
}

pub(super) fn delete_content(response: &DeleteRangeResponse) -> Content {
    Content::Delete { previous: response.prev_kvs.iter().map(kv).collect() }
}

pub(super) fn range_content(response: &RangeResponse) -> Content {
    Content::Get { found: response.kvs.iter().map(kv).collect(), count: response.count }
}

/// `None`: an answer to something that was not asked.
pub(super) fn txn_content(response: &TxnResponse) -> Option<Content> {
    let answers = response.responses.iter().map(|answer| match answer.response.as_ref()? {
        WireAnswer::ResponsePut(put) => Some(put_content(put)),
        WireAnswer::ResponseDeleteRange(delete) => Some(delete_content(delete)),
        WireAnswer::ResponseRange(range) => Some(range_content(range)),
        WireAnswer::ResponseTxn(_) => None,
    });
    Some(Content::Txn { succeeded: response.succeeded, answers: answers.collect::<Option<_>>()? })
}

fn kv(item: &KeyValue) -> Kv {
    Kv {
        key: text(&item.key),
        value: text(&item.value),
        created: item.create_revision,
        modified: item.mod_revision,
        version: item.version,
        lease: item.lease,
    }
}

pub(super) fn event(event: &Event) -> WatchEvent {
    WatchEvent {
        kv: kv(&event.kv.clone().unwrap_or_default()),
        deleted: event.r#type == i32::from(EventType::Delete),
        previous: event.prev_kv.as_ref().map(kv),
    }
}
