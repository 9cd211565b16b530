//! Calls with one message each way, straight from the connection: no body, no map of headers, no task of its own.
//!
//! Whatever is not plainly such a call (another encoding, a message that is too large, several of them) is left to
//! the general way through `door`, which says what is wrong with it.
//!
//! Answers that may be long take turns ([`Turn`]), those of one connection among themselves: a client that takes its
//! listings slowly, or not at all, has few of them made, and its small calls never wait for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue};
use prost::Message;
use tidelock_client_port::{PREFIX_BYTES, framed, time_given};
use tidelock_etcd_api::etcdserverpb::auth_server::Auth;
use tidelock_etcd_api::etcdserverpb::cluster_server::Cluster;
use tidelock_etcd_api::etcdserverpb::kv_server::Kv;
use tidelock_etcd_api::etcdserverpb::lease_server::Lease;
use tidelock_etcd_api::etcdserverpb::maintenance_server::Maintenance;
use tidelock_etcd_api::etcdserverpb::request_op::Request as Operation;
use tidelock_etcd_api::etcdserverpb::{
    DeleteRangeRequest, LeaseTimeToLiveRequest, RangeRequest, RangeResponse, TxnRequest,
};
use tidelock_etcd_api::healthpb::health_server::Health;
use tidelock_etcd_api::v3electionpb::election_server::Election;
use tidelock_etcd_api::v3lockpb::lock_server::Lock;
use tidelock_http2::RequestHead;
use tidelock_http2::serve::{Answering, Refusal, Reply};
use tokio::sync::OwnedSemaphorePermit;
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
/// An answer up to this size is short whatever was asked: a hundred of them wait for a client before the connection makes
/// no more.
const SHORT_ANSWER_BYTES: usize = 256 * 1024;

/// [`FaceError::TooManyRequests`], ready to be sent.
const TOO_MANY_REQUESTS: Refusal = Refusal { status: "8", message: "etcdserver: too many requests" };

/// Calls that are answered when somebody else has done something, which may be never.
const WAITING: [&[u8]; 2] = [b"/v3lockpb.Lock/Lock", b"/v3electionpb.Election/Campaign"];

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
    /// Whether it may have to.
    pub(crate) may_wait: bool,
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

/// Those whose answer may be long say when (`if`).
macro_rules! methods {
    ($($service:ident at $name:literal: {
        $($method:ident at $path:literal $(if $may_be_long:expr)?),* $(,)?
    })*) => {
        Methods(HashMap::from([$($((
            concat!("/", $name, "/", $path).as_bytes(),
            (|call| call.answer(|connection, request| async move {
                let turn = Turn::NONE $(.or_if($may_be_long(request.get_ref()), &connection).await)?;
                let answer = $service::$method(connection.services(), request).await?;
                Ok(turn.until_taken(framed(answer.get_ref())))
            })) as Run,
        )),*),*]))
    };
}

/// The turn of an answer that may be long, if it needs one: there are `http2_service::LONG_ANSWERS_MAX` at a time. Taken
/// before the answer is looked for, so that no change is made and its outcome held back.
struct Turn(Option<OwnedSemaphorePermit>);

impl Turn {
    const NONE: Turn = Turn(None);

    async fn or_if(self, may_be_long: bool, connection: &ClientConnection) -> Turn {
        // Nobody closes it.
        if may_be_long { Turn(Arc::clone(&connection.long_answers).acquire_owned().await.ok()) } else { self }
    }

    /// An answer that is there. If it is long, its turn lasts until the client has taken it or given it up.
    fn until_taken(self, answer: Bytes) -> Bytes {
        if self.0.is_none() || answer.len() <= SHORT_ANSWER_BYTES {
            return answer;
        }
        Bytes::from_owner(InTurn { answer, _turn: self })
    }
}

/// A long answer on its way.
struct InTurn {
    answer: Bytes,
    _turn: Turn,
}

impl AsRef<[u8]> for InTurn {
    fn as_ref(&self) -> &[u8] {
        &self.answer
    }
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
            let answer = connection.services().answer_range(request).await?;
            // What was found is the store's: only written down it takes memory of its own.
            let turn = Turn::NONE.or_if(is_long(&answer), &connection).await;
            return Ok(turn.until_taken(framed(&answer)));
        }
        let turn = Turn::NONE.or_if(true, &connection).await;
        // Dropped when its client gives up, and with it the task.
        let mut task = JoinSet::new();
        task.spawn(async move { Ok(framed(&connection.services().answer_range(request).await?)) });
        match task.join_next().await {
            Some(Ok(answer)) => answer.map(|answer| turn.until_taken(answer)),
            Some(Err(_)) | None => Err(Status::internal("the call broke off")),
        }
    })
}

/// Whether the answer to a range is small enough to be made in between.
fn is_short(request: &RangeRequest) -> bool {
    request.range_end.is_empty() || request.count_only || (1..=SHORT_RANGE_KEYS).contains(&request.limit)
}

/// Whether few keys came to much all the same.
fn is_long(answer: &RangeResponse) -> bool {
    answer.kvs.iter().map(|item| item.key.len() + item.value.len()).sum::<usize>() > SHORT_ANSWER_BYTES
}

/// Whether a deletion tells of what may be many keys.
fn tells_of_many(request: &DeleteRangeRequest) -> bool {
    request.prev_kv && !request.range_end.is_empty()
}

/// Whether any operation of a transaction, nested ones included, may have a long answer.
fn has_long_part(request: &TxnRequest) -> bool {
    request.success.iter().chain(&request.failure).any(|operation| match &operation.request {
        Some(Operation::RequestRange(range)) => !is_short(range),
        Some(Operation::RequestDeleteRange(delete)) => tells_of_many(delete),
        Some(Operation::RequestTxn(nested)) => has_long_part(nested),
        Some(Operation::RequestPut(_)) | None => false,
    })
}

fn asks_for_keys(request: &LeaseTimeToLiveRequest) -> bool {
    request.keys
}

fn always<Q>(_: &Q) -> bool {
    true
}

impl Methods {
    pub(crate) fn all() -> Methods {
        let mut methods = methods! {
            Kv at "etcdserverpb.KV": {
                delete_range at "DeleteRange" if tells_of_many, txn at "Txn" if has_long_part, compact at "Compact",
            }
            Lease at "etcdserverpb.Lease": {
                lease_grant at "LeaseGrant", lease_revoke at "LeaseRevoke",
                lease_time_to_live at "LeaseTimeToLive" if asks_for_keys, lease_leases at "LeaseLeases" if always,
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
                user_list at "UserList" if always, user_delete at "UserDelete", user_change_password at "UserChangePassword",
                user_grant_role at "UserGrantRole", user_revoke_role at "UserRevokeRole", role_add at "RoleAdd",
                role_get at "RoleGet" if always, role_list at "RoleList" if always, role_delete at "RoleDelete",
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
        let may_wait = WAITING.contains(&&head.path[..]);
        Some(CallHead { run, method, headers, requires_leader, patience, may_wait })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use futures_util::FutureExt;
    use tidelock_etcd_api::etcdserverpb::{
        AuthRoleGetRequest, AuthRoleListRequest, AuthUserListRequest, LeaseLeasesRequest, PutRequest, RequestOp,
    };
    use tidelock_model::{Key, KeyValue, LeaseId, Record, RecordMeta, Space};
    use tokio::sync::Semaphore;

    use super::*;
    use crate::door::Door;
    use crate::http2_service::LONG_ANSWERS_MAX;
    use crate::plumbing_tests::DEADLINE;
    use crate::test_double::{Double, REVISION};
    use crate::{EtcdFace, FaceConfig};

    fn connection(double: &Arc<Double>, turns: usize) -> Arc<ClientConnection> {
        let double: Arc<Double> = Arc::clone(double);
        Arc::new(ClientConnection {
            door: Door::new(EtcdFace::new(double, FaceConfig::default())),
            methods: Arc::new(Methods::all()),
            name: None,
            long_answers: Arc::new(Semaphore::new(turns)),
        })
    }

    fn ask(connection: &Arc<ClientConnection>, path: &str, request: &impl Message) -> Answering<Reply<ClientBody>> {
        let method = connection.counts().number_of(path).unwrap();
        let ticket = Ticket { connection: Arc::clone(connection), method, began: None, ended: false };
        let message = request.encode_to_vec().into();
        connection.methods.0[path.as_bytes()](Call { ticket, metadata: MetadataMap::new(), message, patience: None })
    }

    async fn message(answering: Answering<Reply<ClientBody>>) -> Bytes {
        match tokio::time::timeout(DEADLINE, answering).await.expect("an answer") {
            Reply::Message(message) => message,
            Reply::Refused(_) | Reply::Other(_) => panic!("it was refused"),
        }
    }

    /// A key `k000` with so large a value.
    fn hold(double: &Double, bytes: usize) {
        let meta = RecordMeta { created: REVISION, modified: REVISION, version: 1, lease: LeaseId::NONE, sub: 0 };
        let record = Record::new(meta, &vec![b'v'; bytes]);
        *double.line.lock().unwrap() = vec![KeyValue { key: Key::new(Space::User, b"k000"), record }];
    }

    fn get() -> RangeRequest {
        RangeRequest { key: "k000".into(), ..Default::default() }
    }

    fn list() -> RangeRequest {
        RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() }
    }

    fn txn(operations: Vec<Operation>) -> TxnRequest {
        let success = operations.into_iter().map(|operation| RequestOp { request: Some(operation) }).collect();
        TxnRequest { success, ..Default::default() }
    }

    const RANGE: &str = "/etcdserverpb.KV/Range";

    /// A client that takes its listings slowly, or never, has few of them made; what is short goes through meanwhile.
    #[tokio::test]
    async fn long_answers_take_turns_until_they_are_taken_and_short_ones_do_not_wait() {
        let double = Double::new();
        let connection = connection(&double, LONG_ANSWERS_MAX);
        for long in [list(), get()] {
            hold(&double, 2 * SHORT_ANSWER_BYTES);
            let mut answers = Vec::new();
            for _ in 0..LONG_ANSWERS_MAX {
                answers.push(message(ask(&connection, RANGE, &long)).await);
            }
            let mut waiting = ask(&connection, RANGE, &long);
            assert!((&mut waiting).now_or_never().is_none());
            hold(&double, 10);
            message(ask(&connection, RANGE, &get())).await;
            message(ask(&connection, "/etcdserverpb.KV/Put", &PutRequest { key: "k".into(), ..Default::default() }))
                .await;
            let taken = answers.pop().unwrap();
            assert!(taken.len() > 2 * SHORT_ANSWER_BYTES);
            drop(taken);
            message(waiting).await;
        }
        // What turns out to be short does not keep its turn.
        hold(&double, 10);
        let mut answers = Vec::new();
        for _ in 0..3 * LONG_ANSWERS_MAX {
            answers.push(message(ask(&connection, RANGE, &list())).await);
        }
    }

    /// Listings are not the only answers without a bound. A change waits before it is made: its outcome is never held back.
    #[tokio::test]
    async fn whatever_may_have_a_long_answer_takes_a_turn_before_anything_is_done() {
        let double = Double::new();
        let connection = connection(&double, 0);
        let waits = |path: &str, request: &dyn Fn() -> Answering<Reply<ClientBody>>| {
            assert!(request().now_or_never().is_none(), "{path} did not wait");
        };
        let delete = DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: true };
        let put = Operation::RequestPut(PutRequest { key: "k".into(), ..Default::default() });
        let long = txn(vec![put.clone(), Operation::RequestRange(list())]);
        let keys = LeaseTimeToLiveRequest { id: 1, keys: true };
        waits("DeleteRange", &|| ask(&connection, "/etcdserverpb.KV/DeleteRange", &delete));
        waits("Txn", &|| ask(&connection, "/etcdserverpb.KV/Txn", &long));
        waits("LeaseTimeToLive", &|| ask(&connection, "/etcdserverpb.Lease/LeaseTimeToLive", &keys));
        waits("LeaseLeases", &|| ask(&connection, "/etcdserverpb.Lease/LeaseLeases", &LeaseLeasesRequest {}));
        waits("UserList", &|| ask(&connection, "/etcdserverpb.Auth/UserList", &AuthUserListRequest {}));
        waits("RoleList", &|| ask(&connection, "/etcdserverpb.Auth/RoleList", &AuthRoleListRequest {}));
        waits("RoleGet", &|| ask(&connection, "/etcdserverpb.Auth/RoleGet", &AuthRoleGetRequest::default()));
        assert_eq!(double.proposals.all(), []);
        assert_eq!(double.renewals_under_way.load(Ordering::SeqCst), 0);
        // Locks are transactions of this kind.
        let short = txn(vec![put, Operation::RequestRange(get())]);
        assert!(ask(&connection, "/etcdserverpb.KV/Txn", &short).now_or_never().is_some());
        let delete = DeleteRangeRequest { prev_kv: false, ..delete };
        assert!(ask(&connection, "/etcdserverpb.KV/DeleteRange", &delete).now_or_never().is_some());
        assert_eq!(double.proposals.all().len(), 2);
    }

    /// A long part counts wherever it stands, and only that.
    #[test]
    fn a_transaction_is_long_if_any_part_of_it_is() {
        let get_few = RangeRequest { limit: SHORT_RANGE_KEYS, ..list() };
        let delete = DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: true };
        let short = [
            Operation::RequestPut(PutRequest::default()),
            Operation::RequestRange(get()),
            Operation::RequestRange(get_few),
            Operation::RequestRange(RangeRequest { count_only: true, ..list() }),
            Operation::RequestDeleteRange(DeleteRangeRequest { prev_kv: false, ..delete.clone() }),
            Operation::RequestDeleteRange(DeleteRangeRequest { range_end: Bytes::new(), ..delete.clone() }),
        ];
        assert!(!has_long_part(&txn(short.to_vec())));
        assert!(!has_long_part(&txn(vec![Operation::RequestTxn(txn(short.to_vec()))])));
        for long in [Operation::RequestRange(list()), Operation::RequestDeleteRange(delete)] {
            let request = txn([&short[..], &[long]].concat());
            assert!(has_long_part(&request));
            assert!(has_long_part(&txn(vec![Operation::RequestTxn(request.clone())])));
            assert!(has_long_part(&TxnRequest { failure: request.success, ..Default::default() }));
        }
    }

    /// A path that is spelled wrongly would have every waiting lock hold on to a read of the connection.
    #[test]
    fn calls_that_wait_are_calls_there_are() {
        assert!(WAITING.iter().all(|path| Methods::all().0.contains_key(path)));
    }
}
