//! etcd requests as tests spell them, and channels that survive the node they lead to.

use std::time::Duration;

use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::etcdserverpb::kv_client::KvClient;
use tidelock_etcd_api::etcdserverpb::lease_client::LeaseClient;
use tidelock_etcd_api::etcdserverpb::watch_client::WatchClient;
use tonic::transport::Channel;

/// A little longer than a node waits itself, so that its own verdict arrives first.
const CALL_TIMEOUT: Duration = Duration::from_secs(8);
/// Listings at the end of a test may be long.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// A channel that connects when it is used, and again after its node was away.
pub fn channel(url: &str) -> Channel {
    Channel::from_shared(url.to_owned()).unwrap().timeout(CALL_TIMEOUT).connect_lazy()
}

pub fn kv(url: &str) -> KvClient<Channel> {
    KvClient::new(channel(url)).max_decoding_message_size(ANSWER_BYTES_MAX)
}

pub fn leases(url: &str) -> LeaseClient<Channel> {
    LeaseClient::new(channel(url))
}

pub fn watches(url: &str) -> WatchClient<Channel> {
    WatchClient::new(channel(url)).max_decoding_message_size(ANSWER_BYTES_MAX)
}

pub fn put(key: impl Into<String>, value: impl Into<Vec<u8>>) -> pb::PutRequest {
    pb::PutRequest { key: key.into().into(), value: value.into().into(), ..Default::default() }
}

pub fn get(key: impl Into<String>) -> pb::RangeRequest {
    pb::RangeRequest { key: key.into().into(), ..Default::default() }
}

/// Every key that begins with `prefix`, which must end in `/`.
pub fn get_all(prefix: &str) -> pb::RangeRequest {
    pb::RangeRequest { range_end: prefix_end(prefix).into(), ..get(prefix) }
}

pub fn delete_all(prefix: &str) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest { key: prefix.to_owned().into(), range_end: prefix_end(prefix).into(), ..Default::default() }
}

/// Where the keys under `prefix` end: `0` is the character after `/`.
pub fn prefix_end(prefix: &str) -> String {
    format!("{}0", prefix.strip_suffix('/').expect("prefixes end in a slash"))
}

pub fn put_op(put: pb::PutRequest) -> pb::RequestOp {
    pb::RequestOp { request: Some(pb::request_op::Request::RequestPut(put)) }
}

/// All of these at one revision.
pub fn put_together(puts: impl IntoIterator<Item = pb::PutRequest>) -> pb::TxnRequest {
    pb::TxnRequest { success: puts.into_iter().map(put_op).collect(), ..Default::default() }
}

pub fn watch_from(prefix: &str, revision: i64) -> pb::WatchRequest {
    let create = pb::WatchCreateRequest {
        key: prefix.to_owned().into(),
        range_end: prefix_end(prefix).into(),
        start_revision: revision,
        ..Default::default()
    };
    pb::WatchRequest { request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)) }
}
