//! Calls with one message each way, straight from the connection: no body, no map of headers, no task of its own.
//!
//! Whatever is not plainly such a call (another encoding, a message that is too large, several of them) is left to
//! the general way through `door`, which says what is wrong with it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{Extensions, HeaderMap, HeaderName, HeaderValue};
use prost::Message;
use tidelock_etcd_api::etcdserverpb::RangeRequest;
use tidelock_etcd_api::etcdserverpb::auth_server::Auth;
use tidelock_etcd_api::etcdserverpb::cluster_server::Cluster;
use tidelock_etcd_api::etcdserverpb::kv_server::Kv;
use tidelock_etcd_api::etcdserverpb::lease_server::Lease;
use tidelock_etcd_api::etcdserverpb::maintenance_server::Maintenance;
use tidelock_etcd_api::healthpb::health_server::Health;
use tidelock_etcd_api::v3electionpb::election_server::Election;
use tidelock_etcd_api::v3lockpb::lock_server::Lock;
use tidelock_http2::RequestHead;
use tidelock_http2::serve::Answering;
use tokio::task::JoinSet;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

use crate::door::time_given;
use crate::listener::ClientName;
use crate::services::Services;

/// A flag and a length stand before every message.
pub(crate) const PREFIX_BYTES: usize = 5;

/// Keys that are read and written down without others having a turn in between.
const SHORT_RANGE_KEYS: i64 = 16;

/// Fields that every call has and no service asks for.
const UNREAD: [&[u8]; 7] = [
    b"content-type",
    b"te",
    b"user-agent",
    b"grpc-accept-encoding",
    b"grpc-encoding",
    b"accept-encoding",
    b"grpc-timeout",
];

/// Carries one call out: its metadata, its message, and the framed answer.
pub(crate) type Run = fn(Arc<Services>, Asked) -> Answering<Result<Bytes, Status>>;

/// A call.
pub(crate) struct Asked {
    metadata: MetadataMap,
    extensions: Extensions,
    message: Bytes,
}

impl Asked {
    pub(crate) fn new(head: &RequestHead, client: Option<&ClientName>, message: Bytes) -> Asked {
        let mut headers = HeaderMap::new();
        for field in head.fields.iter().filter(|field| !UNREAD.contains(&&field.name[..])) {
            // Both were looked at when the head was read; what the library takes amiss nobody here asks for.
            if let (Ok(name), Ok(value)) =
                (HeaderName::from_bytes(&field.name), HeaderValue::from_maybe_shared(field.value.clone()))
            {
                headers.append(name, value);
            }
        }
        let mut extensions = Extensions::new();
        if let Some(client) = client {
            extensions.insert(client.clone());
        }
        Asked { metadata: MetadataMap::from_headers(headers), extensions, message }
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.metadata.as_ref()
    }

    fn read<Q: Message + Default>(self) -> Result<Request<Q>, Status> {
        let message = Q::decode(self.message).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Request::from_parts(self.metadata, self.extensions, message))
    }
}

/// A message with what stands before it.
fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + length);
    out.put_u8(0);
    out.put_u32(length as u32);
    message.encode_raw(&mut out);
    out.freeze()
}

/// The methods there are, by path.
pub(crate) struct Methods(HashMap<&'static [u8], Run>);

macro_rules! methods {
    ($($service:ident at $name:literal: { $($method:ident at $path:literal),* $(,)? })*) => {
        Methods(HashMap::from([$($((
            concat!("/", $name, "/", $path).as_bytes(),
            (|services, asked| Box::pin(async move {
                let answer = $service::$method(&*services, asked.read()?).await?;
                Ok(framed(answer.get_ref()))
            })) as Run,
        )),*),*]))
    };
}

/// A range that may be long is read and written down by a task of its own: other calls on the connection go on.
fn range(services: Arc<Services>, asked: Asked) -> Answering<Result<Bytes, Status>> {
    let request = match asked.read::<RangeRequest>() {
        Ok(request) => request,
        Err(status) => return Box::pin(std::future::ready(Err(status))),
    };
    let is_short = is_short(request.get_ref());
    let answering = async move {
        let answer = services.range(request).await?;
        Ok(framed(answer.get_ref()))
    };
    if is_short {
        return Box::pin(answering);
    }
    let mut task = JoinSet::new();
    task.spawn(answering);
    // Dropped when its client gives up, and with it the task.
    Box::pin(async move {
        match task.join_next().await {
            Some(Ok(answer)) => answer,
            Some(Err(_)) | None => Err(Status::internal("the call broke off")),
        }
    })
}

/// Whether the answer to a range is small enough to be made in between.
fn is_short(request: &RangeRequest) -> bool {
    request.range_end.is_empty() || request.count_only || (1..=SHORT_RANGE_KEYS).contains(&request.limit)
}

impl Methods {
    pub(crate) fn all() -> Methods {
        let mut methods = methods! {
            Kv at "etcdserverpb.KV": {
                put at "Put", delete_range at "DeleteRange", txn at "Txn", compact at "Compact",
            }
            Lease at "etcdserverpb.Lease": {
                lease_grant at "LeaseGrant", lease_revoke at "LeaseRevoke",
                lease_time_to_live at "LeaseTimeToLive", lease_leases at "LeaseLeases",
            }
            Cluster at "etcdserverpb.Cluster": {
                member_add at "MemberAdd", member_remove at "MemberRemove", member_update at "MemberUpdate",
                member_list at "MemberList", member_promote at "MemberPromote",
            }
            Maintenance at "etcdserverpb.Maintenance": {
                alarm at "Alarm", status at "Status", defragment at "Defragment", hash at "Hash",
                hash_kv at "HashKV", move_leader at "MoveLeader", downgrade at "Downgrade",
            }
            Auth at "etcdserverpb.Auth": {
                auth_enable at "AuthEnable", auth_disable at "AuthDisable", auth_status at "AuthStatus",
                authenticate at "Authenticate", user_add at "UserAdd", user_get at "UserGet",
                user_list at "UserList", user_delete at "UserDelete", user_change_password at "UserChangePassword",
                user_grant_role at "UserGrantRole", user_revoke_role at "UserRevokeRole", role_add at "RoleAdd",
                role_get at "RoleGet", role_list at "RoleList", role_delete at "RoleDelete",
                role_grant_permission at "RoleGrantPermission", role_revoke_permission at "RoleRevokePermission",
            }
            Lock at "v3lockpb.Lock": { lock at "Lock", unlock at "Unlock" }
            Election at "v3electionpb.Election": {
                campaign at "Campaign", proclaim at "Proclaim", leader at "Leader", resign at "Resign",
            }
            Health at "grpc.health.v1.Health": { check at "Check" }
        };
        methods.0.insert(b"/etcdserverpb.KV/Range", range);
        methods
    }

    /// How a call is carried out; nothing if it is none with one message each way, or says something that only the
    /// general way understands.
    pub(crate) fn find(&self, head: &RequestHead) -> Option<Run> {
        let plain = head.get("grpc-encoding").is_none_or(|encoding| encoding == "identity");
        let is_call = head.method == "POST"
            && head
                .get("content-type")
                .is_some_and(|kind| kind == "application/grpc" || kind == "application/grpc+proto");
        let run = self.0.get(&head.path[..])?;
        (plain && is_call).then_some(*run)
    }
}

/// The one message in a body; nothing if it is not just that.
pub(crate) fn one_message(mut body: Bytes, bytes_max: usize) -> Option<Bytes> {
    let [flag, length @ ..] = *body.first_chunk::<PREFIX_BYTES>()?;
    let length = u32::from_be_bytes(length) as usize;
    let message = body.split_off(PREFIX_BYTES);
    (flag == 0 && length == message.len() && length <= bytes_max).then_some(message)
}

/// How long the client waits.
pub(crate) fn patience(head: &RequestHead) -> Option<Duration> {
    time_given(head.get("grpc-timeout").map(|value| &value[..])?)
}
