//! Every call, how it is made, and what it needs.

use std::future::Future;
use std::pin::Pin;

use tidelock_etcd_api::authpb;
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::etcdserverpb::auth_client::AuthClient;
use tidelock_etcd_api::etcdserverpb::cluster_client::ClusterClient;
use tidelock_etcd_api::etcdserverpb::kv_client::KvClient;
use tidelock_etcd_api::etcdserverpb::lease_client::LeaseClient;
use tidelock_etcd_api::etcdserverpb::maintenance_client::MaintenanceClient;
use tidelock_etcd_api::etcdserverpb::watch_client::WatchClient;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::model::{CALLERS, Caller, OWNED_INSIDE, OWNED_OUTSIDE, Range, Verdict};

type Running<'a> = Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;
type Token<'a> = Option<&'a str>;

/// Lease ids: of what they own, and the first of those made to be revoked.
const LEASE_INSIDE: i64 = 1001;
const LEASE_OUTSIDE: i64 = 1002;
const LEASE_EMPTY: i64 = 1003;
const REVOKABLE: i64 = 2000;

/// A call about one key.
pub(crate) struct SingleCall {
    pub(crate) name: &'static str,
    reads: bool,
    /// Keys that must be writable besides.
    also_writes: Option<&'static str>,
    pub(crate) run: for<'a> fn(&'a Client, Token<'a>, &'static str) -> Running<'a>,
}

impl SingleCall {
    pub(crate) fn verdict(&self, caller: &Caller, key: &'static str) -> Verdict {
        let also = self.also_writes.is_none_or(|key| caller.may_write((key, "")));
        caller.verdict(caller.may_write((key, "")) && (!self.reads || caller.may_read((key, ""))) && also)
    }
}

/// A call about a range.
pub(crate) struct RangeCall {
    pub(crate) name: &'static str,
    reads: bool,
    writes: bool,
    pub(crate) run: for<'a> fn(&'a Client, Token<'a>, Range) -> Running<'a>,
}

impl RangeCall {
    pub(crate) fn verdict(&self, caller: &Caller, range: Range) -> Verdict {
        caller.verdict((!self.reads || caller.may_read(range)) && (!self.writes || caller.may_write(range)))
    }
}

/// A call about something else.
pub(crate) struct PlainCall {
    pub(crate) name: &'static str,
    pub(crate) verdict: fn(&Caller) -> Verdict,
    pub(crate) run: for<'a> fn(&'a Client, Token<'a>, &'a Caller) -> Running<'a>,
}

pub(crate) struct Client {
    kv: KvClient<Channel>,
    watch: WatchClient<Channel>,
    lease: LeaseClient<Channel>,
    cluster: ClusterClient<Channel>,
    maintenance: MaintenanceClient<Channel>,
    auth: AuthClient<Channel>,
}

fn with<T>(token: Token<'_>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("token", token.parse().unwrap());
    }
    request
}

fn judged<T>(result: Result<T, Status>) -> Verdict {
    match result {
        Err(status) if status.code() == Code::PermissionDenied => Verdict::Denied,
        Err(status) if status.message() == "etcdserver: user name is empty" => Verdict::NoUser,
        Err(status) if status.code() == Code::Unauthenticated => panic!("a token does not count: {status:?}"),
        Err(status) if status.code() == Code::Unimplemented => panic!("not served: {status:?}"),
        _ => Verdict::Allowed,
    }
}

fn range_request((key, end): Range) -> pb::RangeRequest {
    pb::RangeRequest { key: key.into(), range_end: end.into(), ..Default::default() }
}
fn delete_request((key, end): Range) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest { key: key.into(), range_end: end.into(), ..Default::default() }
}
fn put_request(key: &'static str) -> pb::PutRequest {
    pb::PutRequest { key: key.into(), value: "v".into(), ..Default::default() }
}
fn op(request: pb::request_op::Request) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}
fn range_op(range: Range) -> pb::RequestOp {
    op(pb::request_op::Request::RequestRange(range_request(range)))
}
fn delete_op(range: Range, prev_kv: bool) -> pb::RequestOp {
    op(pb::request_op::Request::RequestDeleteRange(pb::DeleteRangeRequest { prev_kv, ..delete_request(range) }))
}
fn put_op(put: pb::PutRequest) -> pb::RequestOp {
    op(pb::request_op::Request::RequestPut(put))
}
fn then(op: pb::RequestOp) -> pb::TxnRequest {
    pb::TxnRequest { success: vec![op], ..Default::default() }
}
/// In the branch that is not taken: what is not done needs permission all the same.
fn otherwise(op: pb::RequestOp) -> pb::TxnRequest {
    pb::TxnRequest { failure: vec![op], ..Default::default() }
}
fn nested(inner: pb::RequestOp) -> pb::TxnRequest {
    let deeper = op(pb::request_op::Request::RequestTxn(otherwise(inner)));
    then(op(pb::request_op::Request::RequestTxn(then(deeper))))
}

macro_rules! call {
    ($client:ident . $service:ident . $method:ident ( $token:ident, $message:expr )) => {
        Box::pin(async move { judged($client.$service.clone().$method(with($token, $message)).await) })
    };
}

pub(crate) const SINGLE_CALLS: &[SingleCall] = &[
    SingleCall { name: "put", reads: false, also_writes: None, run: |c, t, key| call!(c.kv.put(t, put_request(key))) },
    SingleCall {
        name: "put that tells the previous value",
        reads: true,
        also_writes: None,
        run: |c, t, key| call!(c.kv.put(t, pb::PutRequest { prev_kv: true, ..put_request(key) })),
    },
    SingleCall {
        name: "put on an empty lease",
        reads: false,
        also_writes: None,
        run: |c, t, key| call!(c.kv.put(t, pb::PutRequest { lease: LEASE_EMPTY + 1_000_000, ..put_request(key) })),
    },
    SingleCall {
        name: "put in the other branch on a lease that owns an inner key",
        reads: false,
        also_writes: Some(OWNED_INSIDE),
        run: |c, t, key| {
            call!(c.kv.txn(t, otherwise(put_op(pb::PutRequest { lease: LEASE_INSIDE, ..put_request(key) }))))
        },
    },
    SingleCall {
        name: "put in a transaction",
        reads: false,
        also_writes: None,
        run: |c, t, key| call!(c.kv.txn(t, then(put_op(put_request(key))))),
    },
    SingleCall {
        name: "put in the other branch",
        reads: false,
        also_writes: None,
        run: |c, t, key| call!(c.kv.txn(t, otherwise(put_op(put_request(key))))),
    },
    SingleCall {
        name: "put three levels deep",
        reads: false,
        also_writes: None,
        run: |c, t, key| call!(c.kv.txn(t, nested(put_op(put_request(key))))),
    },
    SingleCall {
        name: "put in the other branch that tells the previous value",
        reads: true,
        also_writes: None,
        run: |c, t, key| call!(c.kv.txn(t, otherwise(put_op(pb::PutRequest { prev_kv: true, ..put_request(key) })))),
    },
    SingleCall {
        name: "put in the other branch on a lease that owns an outer key",
        reads: false,
        also_writes: Some(OWNED_OUTSIDE),
        run: |c, t, key| {
            call!(c.kv.txn(t, otherwise(put_op(pb::PutRequest { lease: LEASE_OUTSIDE, ..put_request(key) }))))
        },
    },
];

pub(crate) const RANGE_CALLS: &[RangeCall] = &[
    RangeCall { name: "range", reads: true, writes: false, run: |c, t, r| call!(c.kv.range(t, range_request(r))) },
    RangeCall {
        name: "serializable range",
        reads: true,
        writes: false,
        run: |c, t, r| call!(c.kv.range(t, pb::RangeRequest { serializable: true, ..range_request(r) })),
    },
    RangeCall {
        name: "count",
        reads: true,
        writes: false,
        run: |c, t, r| call!(c.kv.range(t, pb::RangeRequest { count_only: true, ..range_request(r) })),
    },
    RangeCall {
        name: "range stream",
        reads: true,
        writes: false,
        run: |c, t, r| {
            Box::pin(async move {
                let stream = match c.kv.clone().range_stream(with(t, range_request(r))).await {
                    Ok(stream) => stream,
                    Err(status) => return judged::<()>(Err(status)),
                };
                judged(stream.into_inner().message().await)
            })
        },
    },
    RangeCall { name: "watch", reads: true, writes: false, run: |c, t, r| Box::pin(c.watch(t, r)) },
    RangeCall {
        name: "compare",
        reads: true,
        writes: false,
        run: |c, t, (key, end)| {
            let compare = pb::Compare { key: key.into(), range_end: end.into(), ..Default::default() };
            call!(c.kv.txn(t, pb::TxnRequest { compare: vec![compare], ..Default::default() }))
        },
    },
    RangeCall {
        name: "range in a transaction",
        reads: true,
        writes: false,
        run: |c, t, r| call!(c.kv.txn(t, then(range_op(r)))),
    },
    RangeCall {
        name: "range in the other branch",
        reads: true,
        writes: false,
        run: |c, t, r| call!(c.kv.txn(t, otherwise(range_op(r)))),
    },
    RangeCall {
        name: "range three levels deep",
        reads: true,
        writes: false,
        run: |c, t, r| call!(c.kv.txn(t, nested(range_op(r)))),
    },
    RangeCall {
        name: "delete",
        reads: false,
        writes: true,
        run: |c, t, r| call!(c.kv.delete_range(t, delete_request(r))),
    },
    RangeCall {
        name: "delete that tells what was there",
        reads: true,
        writes: true,
        run: |c, t, r| call!(c.kv.delete_range(t, pb::DeleteRangeRequest { prev_kv: true, ..delete_request(r) })),
    },
    RangeCall {
        name: "delete in a transaction",
        reads: false,
        writes: true,
        run: |c, t, r| call!(c.kv.txn(t, then(delete_op(r, false)))),
    },
    RangeCall {
        name: "delete in the other branch that tells what was there",
        reads: true,
        writes: true,
        run: |c, t, r| call!(c.kv.txn(t, otherwise(delete_op(r, true)))),
    },
    RangeCall {
        name: "delete three levels deep",
        reads: false,
        writes: true,
        run: |c, t, r| call!(c.kv.txn(t, nested(delete_op(r, false)))),
    },
];

fn revoke_verdict(caller: &Caller, key: &'static str) -> Verdict {
    caller.verdict(caller.may_write((key, "")))
}
fn look_verdict(caller: &Caller, key: &'static str) -> Verdict {
    caller.verdict(caller.may_read((key, "")))
}
fn revokable(caller: &Caller, outside: bool) -> i64 {
    let place = CALLERS.iter().position(|other| other.name == caller.name).unwrap();
    REVOKABLE + 2 * place as i64 + i64::from(outside)
}
fn time_to_live(id: i64) -> pb::LeaseTimeToLiveRequest {
    pb::LeaseTimeToLiveRequest { id, keys: true }
}

pub(crate) const PLAIN_CALLS: &[PlainCall] = &[
    PlainCall {
        name: "revoke a lease that owns an inner key",
        verdict: |caller| revoke_verdict(caller, OWNED_INSIDE),
        run: |c, t, who| call!(c.lease.lease_revoke(t, pb::LeaseRevokeRequest { id: revokable(who, false) })),
    },
    PlainCall {
        name: "revoke a lease that owns an outer key",
        verdict: |caller| revoke_verdict(caller, OWNED_OUTSIDE),
        run: |c, t, who| call!(c.lease.lease_revoke(t, pb::LeaseRevokeRequest { id: revokable(who, true) })),
    },
    PlainCall {
        name: "look at the keys of a lease that owns an inner key",
        verdict: |caller| look_verdict(caller, OWNED_INSIDE),
        run: |c, t, _| call!(c.lease.lease_time_to_live(t, time_to_live(LEASE_INSIDE))),
    },
    PlainCall {
        name: "look at the keys of a lease that owns an outer key",
        verdict: |caller| look_verdict(caller, OWNED_OUTSIDE),
        run: |c, t, _| call!(c.lease.lease_time_to_live(t, time_to_live(LEASE_OUTSIDE))),
    },
    PlainCall {
        name: "grant a lease",
        verdict: Caller::as_user,
        run: |c, t, _| call!(c.lease.lease_grant(t, pb::LeaseGrantRequest { ttl: 60, id: 0 })),
    },
    PlainCall {
        name: "list leases",
        // It tells of everybody's leases, and so needs what looking at each of them needs.
        verdict: |caller| caller.verdict(caller.may_read((OWNED_INSIDE, "")) && caller.may_read((OWNED_OUTSIDE, ""))),
        run: |c, t, _| call!(c.lease.lease_leases(t, pb::LeaseLeasesRequest {})),
    },
    PlainCall {
        name: "renew a lease that is not there",
        verdict: Caller::as_user,
        run: |c, t, _| Box::pin(c.renew(t, LEASE_EMPTY)),
    },
    PlainCall {
        name: "renew a lease that owns an inner key",
        verdict: |caller| revoke_verdict(caller, OWNED_INSIDE),
        run: |c, t, _| Box::pin(c.renew(t, LEASE_INSIDE)),
    },
    PlainCall {
        name: "renew a lease that owns an outer key",
        verdict: |caller| revoke_verdict(caller, OWNED_OUTSIDE),
        run: |c, t, _| Box::pin(c.renew(t, LEASE_OUTSIDE)),
    },
    PlainCall {
        name: "list members",
        verdict: Caller::as_user,
        run: |c, t, _| call!(c.cluster.member_list(t, pb::MemberListRequest { linearizable: false })),
    },
    PlainCall {
        name: "compact",
        verdict: Caller::as_admin,
        run: |c, t, _| call!(c.kv.compact(t, pb::CompactionRequest { revision: 1, physical: false })),
    },
    PlainCall {
        name: "remove a member",
        verdict: Caller::as_admin,
        run: |c, t, _| call!(c.cluster.member_remove(t, pb::MemberRemoveRequest { id: 7 })),
    },
    PlainCall {
        name: "list alarms",
        verdict: Caller::as_user,
        run: |c, t, _| call!(c.maintenance.alarm(t, pb::AlarmRequest::default())),
    },
    PlainCall {
        name: "lower an alarm",
        verdict: Caller::as_admin,
        run: |c, t, _| {
            let action = pb::alarm_request::AlarmAction::Deactivate.into();
            let alarm = pb::AlarmRequest { action, member_id: 77, alarm: pb::AlarmType::Nospace.into() };
            call!(c.maintenance.alarm(t, alarm))
        },
    },
    PlainCall {
        name: "status",
        verdict: Caller::as_user,
        run: |c, t, _| call!(c.maintenance.status(t, pb::StatusRequest {})),
    },
    PlainCall {
        name: "defragment",
        verdict: Caller::as_admin,
        run: |c, t, _| call!(c.maintenance.defragment(t, pb::DefragmentRequest {})),
    },
    PlainCall {
        name: "hash",
        verdict: Caller::as_admin,
        run: |c, t, _| call!(c.maintenance.hash(t, pb::HashRequest {})),
    },
    PlainCall {
        name: "hash of the keys",
        verdict: Caller::as_admin,
        run: |c, t, _| call!(c.maintenance.hash_kv(t, pb::HashKvRequest { revision: 0 })),
    },
    PlainCall { name: "snapshot", verdict: Caller::as_admin, run: |c, t, _| Box::pin(c.snapshot(t)) },
    PlainCall {
        name: "move the leader",
        verdict: Caller::as_admin,
        run: |c, t, _| call!(c.maintenance.move_leader(t, pb::MoveLeaderRequest { target_id: 7 })),
    },
    PlainCall {
        name: "ask whether auth is on",
        verdict: |_| Verdict::Allowed,
        run: |c, t, _| call!(c.auth.auth_status(t, pb::AuthStatusRequest {})),
    },
    PlainCall {
        name: "look at oneself",
        verdict: Caller::as_user,
        run: |c, t, who| call!(c.auth.user_get(t, pb::AuthUserGetRequest { name: who.name.into() })),
    },
    PlainCall {
        name: "look at root",
        verdict: Caller::as_admin,
        run: |c, t, _| call!(c.auth.user_get(t, pb::AuthUserGetRequest { name: "root".into() })),
    },
    PlainCall {
        name: "look at one's role",
        verdict: |caller| caller.verdict(!caller.grants.is_empty() || caller.name == "root"),
        run: |c, t, who| call!(c.auth.role_get(t, pb::AuthRoleGetRequest { role: who.name.into() })),
    },
    PlainCall {
        name: "look at another's role",
        verdict: Caller::as_admin,
        run: |c, t, _| call!(c.auth.role_get(t, pb::AuthRoleGetRequest { role: "spare".into() })),
    },
    PlainCall {
        name: "list users",
        verdict: Caller::as_admin,
        run: |c, t, _| call!(c.auth.user_list(t, pb::AuthUserListRequest {})),
    },
    PlainCall {
        name: "list roles",
        verdict: Caller::as_admin,
        run: |c, t, _| call!(c.auth.role_list(t, pb::AuthRoleListRequest {})),
    },
    PlainCall {
        name: "add a user that exists",
        verdict: Caller::as_admin,
        run: |c, t, _| call!(c.auth.user_add(t, pb::AuthUserAddRequest { name: "root".into(), ..Default::default() })),
    },
    PlainCall {
        name: "delete a user that does not exist",
        verdict: Caller::as_admin,
        run: |c, t, _| call!(c.auth.user_delete(t, pb::AuthUserDeleteRequest { name: "none".into() })),
    },
    PlainCall {
        name: "change the password of nobody",
        verdict: Caller::as_admin,
        run: |c, t, _| {
            let change = pb::AuthUserChangePasswordRequest { name: "none".into(), ..Default::default() };
            call!(c.auth.user_change_password(t, change))
        },
    },
    PlainCall {
        name: "grant a role that does not exist",
        verdict: Caller::as_admin,
        run: |c, t, who| {
            let grant = pb::AuthUserGrantRoleRequest { user: who.name.into(), role: "none".into() };
            call!(c.auth.user_grant_role(t, grant))
        },
    },
    PlainCall {
        name: "revoke a role that does not exist",
        verdict: Caller::as_admin,
        run: |c, t, who| {
            let revoke = pb::AuthUserRevokeRoleRequest { name: who.name.into(), role: "none".into() };
            call!(c.auth.user_revoke_role(t, revoke))
        },
    },
    PlainCall {
        name: "add a role that exists",
        verdict: Caller::as_admin,
        run: |c, t, _| call!(c.auth.role_add(t, pb::AuthRoleAddRequest { name: "spare".into() })),
    },
    PlainCall {
        name: "delete a role that does not exist",
        verdict: Caller::as_admin,
        run: |c, t, _| call!(c.auth.role_delete(t, pb::AuthRoleDeleteRequest { role: "none".into() })),
    },
    PlainCall {
        name: "grant a permission to a role that does not exist",
        verdict: Caller::as_admin,
        run: |c, t, _| {
            let perm = Some(authpb::Permission { key: "k".into(), ..Default::default() });
            call!(c.auth.role_grant_permission(t, pb::AuthRoleGrantPermissionRequest { name: "none".into(), perm }))
        },
    },
    PlainCall {
        name: "revoke a permission that was not granted",
        verdict: Caller::as_admin,
        run: |c, t, _| {
            let revoke =
                pb::AuthRoleRevokePermissionRequest { role: "spare".into(), key: "k".into(), ..Default::default() };
            call!(c.auth.role_revoke_permission(t, revoke))
        },
    },
];

impl Client {
    pub(crate) async fn connect(url: &str) -> Client {
        let channel = Channel::from_shared(url.to_owned()).unwrap().connect().await.unwrap();
        Client {
            kv: KvClient::new(channel.clone()),
            watch: WatchClient::new(channel.clone()),
            lease: LeaseClient::new(channel.clone()),
            cluster: ClusterClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel.clone()),
            auth: AuthClient::new(channel),
        }
    }

    /// Makes users and roles, one role each, and turns checks on.
    pub(crate) async fn found(&self) {
        let mut auth = self.auth.clone();
        for Caller { name, grants } in CALLERS.iter().filter(|caller| caller.is_known()) {
            let (name, password) = (String::from(*name), String::from(*name));
            auth.user_add(pb::AuthUserAddRequest { name: name.clone(), password, ..Default::default() }).await.unwrap();
            if grants.is_empty() && name != "root" {
                continue;
            }
            auth.role_add(pb::AuthRoleAddRequest { name: name.clone() }).await.unwrap();
            for (read, write, key, end) in *grants {
                let perm_type = match (read, write) {
                    (true, false) => authpb::permission::Type::Read,
                    (false, true) => authpb::permission::Type::Write,
                    _ => authpb::permission::Type::Readwrite,
                };
                let perm =
                    authpb::Permission { perm_type: perm_type.into(), key: (*key).into(), range_end: (*end).into() };
                let grant = pb::AuthRoleGrantPermissionRequest { name: name.clone(), perm: Some(perm) };
                auth.role_grant_permission(grant).await.unwrap();
            }
            let grant = pb::AuthUserGrantRoleRequest { user: name.clone(), role: name };
            auth.user_grant_role(grant).await.unwrap();
        }
        auth.role_add(pb::AuthRoleAddRequest { name: "spare".into() }).await.unwrap();
        auth.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
    }

    pub(crate) async fn come_in(&self, name: &str) -> String {
        let request = pb::AuthenticateRequest { name: name.into(), password: name.into() };
        self.auth.clone().authenticate(request).await.unwrap().into_inner().token
    }

    /// The keys and leases that the cases are about, as root makes them.
    pub(crate) async fn fill(&self, root: &str) {
        let (mut kv, mut lease, token) = (self.kv.clone(), self.lease.clone(), Some(root));
        let mut owned = vec![(LEASE_INSIDE, OWNED_INSIDE), (LEASE_OUTSIDE, OWNED_OUTSIDE)];
        for caller in CALLERS {
            owned.push((revokable(caller, false), OWNED_INSIDE));
            owned.push((revokable(caller, true), OWNED_OUTSIDE));
        }
        for (place, (id, key)) in owned.iter().enumerate() {
            drop(lease.lease_revoke(with(token, pb::LeaseRevokeRequest { id: *id })).await);
            lease.lease_grant(with(token, pb::LeaseGrantRequest { ttl: 3600, id: *id })).await.unwrap();
            // A key has one lease: each gets one of its own right behind the name that the model knows.
            let key = if place < 2 { (*key).to_owned() } else { format!("{key}/{place}") };
            let put = pb::PutRequest { key: key.into(), lease: *id, ..Default::default() };
            kv.put(with(token, put)).await.unwrap();
        }
    }

    pub(crate) async fn alarm(&self, root: &str, action: pb::alarm_request::AlarmAction) {
        let alarm = pb::AlarmRequest { action: action.into(), member_id: 1, alarm: pb::AlarmType::Nospace.into() };
        self.maintenance.clone().alarm(with(Some(root), alarm)).await.unwrap();
    }

    async fn watch(&self, token: Token<'_>, (key, end): Range) -> Verdict {
        let create = pb::WatchCreateRequest { key: key.into(), range_end: end.into(), ..Default::default() };
        let union = Some(pb::watch_request::RequestUnion::CreateRequest(create));
        let requests = futures_util::stream::iter([pb::WatchRequest { request_union: union }]);
        let mut stream = self.watch.clone().watch(with(token, requests)).await.unwrap().into_inner();
        let first = stream.message().await.unwrap().unwrap();
        match (first.canceled, first.cancel_reason) {
            (false, _) => Verdict::Allowed,
            (true, reason) if reason.contains("permission denied") => Verdict::Denied,
            (true, reason) if reason.contains("user name is empty") => Verdict::NoUser,
            (true, reason) => panic!("cancelled for another reason: {reason}"),
        }
    }

    async fn renew(&self, token: Token<'_>, id: i64) -> Verdict {
        let requests = futures_util::stream::iter([pb::LeaseKeepAliveRequest { id }]);
        match self.lease.clone().lease_keep_alive(with(token, requests)).await {
            Ok(stream) => judged(stream.into_inner().message().await),
            Err(status) => judged::<()>(Err(status)),
        }
    }

    async fn snapshot(&self, token: Token<'_>) -> Verdict {
        match self.maintenance.clone().snapshot(with(token, pb::SnapshotRequest {})).await {
            Ok(stream) => judged(stream.into_inner().message().await),
            Err(status) => judged::<()>(Err(status)),
        }
    }
}
