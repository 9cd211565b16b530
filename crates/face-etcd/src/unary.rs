//! Calls with one message each way, straight from the connection: no body, no map of headers, no task of its own.
//!
//! Whatever is not plainly such a call (another encoding, a message that is too large, several of them) is left to
//! the general way through `door`, which says what is wrong with it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue};
use prost::Message;
use tidelock_client_port::{PREFIX_BYTES, framed, time_given};
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
use tidelock_http2::serve::{Answering, Refusal, Reply};
use tokio::task::JoinSet;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};

use crate::call_counts::CallCounts;
use crate::client_body::ClientBody;
use crate::error_map::FaceError;
use crate::http2_service::ClientConnection;
use crate::leader_watch::requires_leader;

/// Keys that are read and written down without others having a turn in between.
const SHORT_RANGE_KEYS: i64 = 16;

/// [`FaceError::TooManyRequests`], ready to be sent.
const TOO_MANY_REQUESTS: Refusal = Refusal { status: "8", message: "etcdserver: too many requests" };

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

/// Carries one call out.
type Run = fn(Call) -> Answering<Reply<ClientBody>>;

/// What a head says of its call: found out once, since the same head comes with many calls.
pub(crate) struct CallHead {
    run: Run,
    /// The number it is counted under.
    method: usize,
    /// What services may ask for.
    headers: HeaderMap,
    requires_leader: bool,
    /// How long the client waits.
    patience: Option<Duration>,
}

impl CallHead {
    /// Begins a call.
    pub(crate) fn call(&self, connection: &Arc<ClientConnection>, message: Bytes) -> Answering<Reply<ClientBody>> {
        let began = connection.counts().start(self.method, PREFIX_BYTES + message.len());
        let ticket = Ticket { connection: Arc::clone(connection), method: self.method, began, ended: false };
        if self.requires_leader && !connection.has_leader() {
            let refused = ticket.ended(Err(FaceError::NoLeader.into()));
            return Box::pin(std::future::ready(refused));
        }
        let metadata = MetadataMap::from_headers(self.headers.clone());
        (self.run)(Call { ticket, metadata, message, patience: self.patience })
    }
}

/// A call under way, which is counted: dropped before it ended, it was cancelled.
struct Ticket {
    connection: Arc<ClientConnection>,
    method: usize,
    began: Option<Instant>,
    ended: bool,
}

impl Ticket {
    fn ended(mut self, result: Result<Bytes, Status>) -> Reply<ClientBody> {
        self.ended = true;
        let counts = self.connection.counts();
        match result {
            Ok(message) => {
                counts.end(self.method, self.began, Code::Ok, message.len());
                Reply::Message(message)
            }
            Err(status) => {
                counts.end(self.method, self.began, status.code(), 0);
                Reply::Other(status.into_http())
            }
        }
    }

    fn refused(mut self) -> Reply<ClientBody> {
        self.ended = true;
        self.connection.counts().end(self.method, self.began, Code::ResourceExhausted, 0);
        Reply::Refused(TOO_MANY_REQUESTS)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.ended {
            self.connection.counts().end(self.method, self.began, Code::Cancelled, 0);
        }
    }
}

/// A call.
struct Call {
    ticket: Ticket,
    metadata: MetadataMap,
    message: Bytes,
    patience: Option<Duration>,
}

impl Call {
    /// Reads the message and has it answered by `work`, which gets the connection and the request.
    fn answer<Q, F>(self, work: impl FnOnce(Arc<ClientConnection>, Request<Q>) -> F) -> Answering<Reply<ClientBody>>
    where
        Q: Message + Default,
        F: Future<Output = Result<Bytes, Status>> + Send + 'static,
    {
        let Call { ticket, metadata, message, patience } = self;
        let message = match Q::decode(message) {
            Ok(message) => message,
            Err(error) => return Box::pin(std::future::ready(ticket.ended(Err(Status::internal(error.to_string()))))),
        };
        let mut extensions = Extensions::new();
        if let Some(client) = &ticket.connection.name {
            extensions.insert(client.clone());
        }
        let work = work(Arc::clone(&ticket.connection), Request::from_parts(metadata, extensions, message));
        match patience {
            None => Box::pin(async move { ticket.ended(work.await) }),
            Some(patience) => Box::pin(async move {
                match tokio::time::timeout(patience, work).await {
                    Ok(result) => ticket.ended(result),
                    // Counted as given up, as when the client says so itself.
                    Err(_elapsed) => Reply::Other(Status::deadline_exceeded("context deadline exceeded").into_http()),
                }
            }),
        }
    }
}

/// The fields of a head that services may ask for.
fn headers(head: &RequestHead) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for field in head.fields.iter().filter(|field| !UNREAD.contains(&&field.name[..])) {
        // Both were looked at when the head was read; what the library takes amiss nobody here asks for.
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(&field.name), HeaderValue::from_maybe_shared(field.value.clone()))
        {
            headers.append(name, value);
        }
    }
    headers
}

/// The methods there are, by path.
pub(crate) struct Methods(HashMap<&'static [u8], Run>);

macro_rules! methods {
    ($($service:ident at $name:literal: { $($method:ident at $path:literal),* $(,)? })*) => {
        Methods(HashMap::from([$($((
            concat!("/", $name, "/", $path).as_bytes(),
            (|call| call.answer(|connection, request| async move {
                let answer = $service::$method(connection.services(), request).await?;
                Ok(framed(answer.get_ref()))
            })) as Run,
        )),*),*]))
    };
}

/// A put. Refused before it is read where it would be refused anyway: a node that is asked for several times what it can
/// do spends most of its time on refusals.
fn put(call: Call) -> Answering<Reply<ClientBody>> {
    if call.ticket.connection.services().coordinator.is_overloaded() {
        return Box::pin(std::future::ready(call.ticket.refused()));
    }
    call.answer(|connection, request| async move { Ok(framed(&connection.services().answer_put(request).await?)) })
}

/// A range. One that may be long is read and written down by a task of its own: other calls on the connection go on.
fn range(call: Call) -> Answering<Reply<ClientBody>> {
    call.answer(|connection, request: Request<RangeRequest>| async move {
        if is_short(request.get_ref()) {
            return Ok(framed(&connection.services().answer_range(request).await?));
        }
        // Held until the connection takes the answer. Nobody closes it.
        let waiting = Arc::clone(&connection);
        let _turn = waiting.long_ranges.acquire().await;
        // Dropped when its client gives up, and with it the task.
        let mut task = JoinSet::new();
        task.spawn(async move { Ok(framed(&connection.services().answer_range(request).await?)) });
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
                delete_range at "DeleteRange", txn at "Txn", compact at "Compact",
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
        methods.0.insert(b"/etcdserverpb.KV/Put", put);
        methods
    }

    /// What a head says of its call; nothing if it is none with one message each way, or says something that only the
    /// general way understands.
    pub(crate) fn find(&self, head: &RequestHead, counts: &CallCounts) -> Option<CallHead> {
        let plain = head.get("grpc-encoding").is_none_or(|encoding| encoding == "identity");
        let is_call = head.method == "POST"
            && head
                .get("content-type")
                .is_some_and(|kind| kind == "application/grpc" || kind == "application/grpc+proto");
        let run = *self.0.get(&head.path[..]).filter(|_| plain && is_call)?;
        let method = counts.number_of(std::str::from_utf8(&head.path).ok()?)?;
        let headers = headers(head);
        let requires_leader = requires_leader(&headers);
        let patience = head.get("grpc-timeout").and_then(|text| time_given(text));
        Some(CallHead { run, method, headers, requires_leader, patience })
    }
}
