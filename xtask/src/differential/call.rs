//! Every call of the etcd API as a value, and its answer as a value that can be compared.
//!
//! What cannot be the same on two servers is masked here and nowhere else: cluster and member ids, terms, sizes,
//! hashes, addresses and versions, each to "set" or "not set". Revisions, counts, order, codes and words stay.

use tidelock_etcd_api::etcdserverpb::auth_client::AuthClient;
use tidelock_etcd_api::etcdserverpb::cluster_client::ClusterClient;
use tidelock_etcd_api::etcdserverpb::kv_client::KvClient;
use tidelock_etcd_api::etcdserverpb::lease_client::LeaseClient;
use tidelock_etcd_api::etcdserverpb::maintenance_client::MaintenanceClient;
use tidelock_etcd_api::etcdserverpb::*;
use tidelock_etcd_api::v3electionpb::election_client::ElectionClient;
use tidelock_etcd_api::v3electionpb::*;
use tidelock_etcd_api::v3lockpb::lock_client::LockClient;
use tidelock_etcd_api::v3lockpb::*;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// Most parts of a streamed answer that are read before it counts as endless.
const PARTS_MAX: usize = 10_000;

/// Something that carries a response header.
trait Headed {
    fn header_mut(&mut self) -> &mut Option<ResponseHeader>;
}

/// One connection to one server, with a client for each service.
#[derive(Clone)]
pub(super) struct Connection {
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    cluster: ClusterClient<Channel>,
    maintenance: MaintenanceClient<Channel>,
    lock: LockClient<Channel>,
    election: ElectionClient<Channel>,
    auth: AuthClient<Channel>,
}

impl Connection {
    pub(super) fn new(channel: &Channel) -> Connection {
        Connection {
            kv: KvClient::new(channel.clone()),
            lease: LeaseClient::new(channel.clone()),
            cluster: ClusterClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel.clone()),
            lock: LockClient::new(channel.clone()),
            election: ElectionClient::new(channel.clone()),
            auth: AuthClient::new(channel.clone()),
        }
    }
}

macro_rules! calls {
    ($($name:ident($request:ty) -> $reply:ty = $client:ident.$method:ident;)*) => {
        /// A request.
        #[derive(Clone, Debug, PartialEq)]
        pub(super) enum Call {
            $($name($request),)*
            /// RangeStream; its parts are put together.
            RangeStream(RangeRequest),
            /// These renewals on one stream.
            KeepAlive(Vec<i64>),
            /// The first that Observe tells; asked only where there is a leader.
            Observe(LeaderRequest),
        }

        /// What a request was answered with.
        #[derive(Clone, Debug, PartialEq)]
        pub(super) enum Reply {
            $($name($reply),)*
            RangeStream(RangeResponse),
            KeepAlive(Vec<LeaseKeepAliveResponse>),
            Observe(LeaderResponse),
        }

        $(impl Headed for $reply {
            fn header_mut(&mut self) -> &mut Option<ResponseHeader> {
                &mut self.header
            }
        })*

        impl Call {
            /// The name of the call, as etcd's API spells it.
            pub(super) fn name(&self) -> &'static str {
                match self {
                    $(Call::$name(_) => stringify!($name),)*
                    Call::RangeStream(_) => "RangeStream",
                    Call::KeepAlive(_) => "LeaseKeepAlive",
                    Call::Observe(_) => "Observe",
                }
            }
        }

        impl Connection {
            async fn ask(&mut self, call: Call, token: Option<&str>) -> Result<Reply, Status> {
                match call {
                    $(Call::$name(request) => {
                        let answer = self.$client.$method(with_token(request, token)).await?;
                        Ok(Reply::$name(answer.into_inner()))
                    })*
                    Call::RangeStream(request) => self.range_stream(request, token).await,
                    Call::KeepAlive(ids) => self.keep_alive(ids, token).await,
                    Call::Observe(request) => {
                        let mut stream = self.election.observe(with_token(request, token)).await?.into_inner();
                        let first = stream.message().await?;
                        first.map(Reply::Observe).ok_or_else(|| Status::unknown("the stream ended at once"))
                    }
                }
            }
        }

        impl Reply {
            fn headers_mut(&mut self) -> Vec<&mut ResponseHeader> {
                match self {
                    $(Reply::$name(reply) => reply.header_mut().iter_mut().collect(),)*
                    Reply::RangeStream(reply) => reply.header.iter_mut().collect(),
                    Reply::KeepAlive(replies) => replies.iter_mut().filter_map(|reply| reply.header.as_mut()).collect(),
                    Reply::Observe(reply) => reply.header.iter_mut().collect(),
                }
            }
        }
    };
}

calls! {
    Range(RangeRequest) -> RangeResponse = kv.range;
    Put(PutRequest) -> PutResponse = kv.put;
    DeleteRange(DeleteRangeRequest) -> DeleteRangeResponse = kv.delete_range;
    Txn(TxnRequest) -> TxnResponse = kv.txn;
    Compact(CompactionRequest) -> CompactionResponse = kv.compact;
    LeaseGrant(LeaseGrantRequest) -> LeaseGrantResponse = lease.lease_grant;
    LeaseRevoke(LeaseRevokeRequest) -> LeaseRevokeResponse = lease.lease_revoke;
    LeaseTimeToLive(LeaseTimeToLiveRequest) -> LeaseTimeToLiveResponse = lease.lease_time_to_live;
    LeaseLeases(LeaseLeasesRequest) -> LeaseLeasesResponse = lease.lease_leases;
    MemberAdd(MemberAddRequest) -> MemberAddResponse = cluster.member_add;
    MemberRemove(MemberRemoveRequest) -> MemberRemoveResponse = cluster.member_remove;
    MemberUpdate(MemberUpdateRequest) -> MemberUpdateResponse = cluster.member_update;
    MemberPromote(MemberPromoteRequest) -> MemberPromoteResponse = cluster.member_promote;
    MemberList(MemberListRequest) -> MemberListResponse = cluster.member_list;
    Alarm(AlarmRequest) -> AlarmResponse = maintenance.alarm;
    Status(StatusRequest) -> StatusResponse = maintenance.status;
    Defragment(DefragmentRequest) -> DefragmentResponse = maintenance.defragment;
    Hash(HashRequest) -> HashResponse = maintenance.hash;
    HashKv(HashKvRequest) -> HashKvResponse = maintenance.hash_kv;
    MoveLeader(MoveLeaderRequest) -> MoveLeaderResponse = maintenance.move_leader;
    Downgrade(DowngradeRequest) -> DowngradeResponse = maintenance.downgrade;
    Lock(LockRequest) -> LockResponse = lock.lock;
    Unlock(UnlockRequest) -> UnlockResponse = lock.unlock;
    Campaign(CampaignRequest) -> CampaignResponse = election.campaign;
    Proclaim(ProclaimRequest) -> ProclaimResponse = election.proclaim;
    Leader(LeaderRequest) -> LeaderResponse = election.leader;
    Resign(ResignRequest) -> ResignResponse = election.resign;
    AuthEnable(AuthEnableRequest) -> AuthEnableResponse = auth.auth_enable;
    AuthDisable(AuthDisableRequest) -> AuthDisableResponse = auth.auth_disable;
    AuthStatus(AuthStatusRequest) -> AuthStatusResponse = auth.auth_status;
    Authenticate(AuthenticateRequest) -> AuthenticateResponse = auth.authenticate;
    UserAdd(AuthUserAddRequest) -> AuthUserAddResponse = auth.user_add;
    UserGet(AuthUserGetRequest) -> AuthUserGetResponse = auth.user_get;
    UserList(AuthUserListRequest) -> AuthUserListResponse = auth.user_list;
    UserDelete(AuthUserDeleteRequest) -> AuthUserDeleteResponse = auth.user_delete;
    UserChangePassword(AuthUserChangePasswordRequest) -> AuthUserChangePasswordResponse = auth.user_change_password;
    UserGrantRole(AuthUserGrantRoleRequest) -> AuthUserGrantRoleResponse = auth.user_grant_role;
    UserRevokeRole(AuthUserRevokeRoleRequest) -> AuthUserRevokeRoleResponse = auth.user_revoke_role;
    RoleAdd(AuthRoleAddRequest) -> AuthRoleAddResponse = auth.role_add;
    RoleGet(AuthRoleGetRequest) -> AuthRoleGetResponse = auth.role_get;
    RoleList(AuthRoleListRequest) -> AuthRoleListResponse = auth.role_list;
    RoleDelete(AuthRoleDeleteRequest) -> AuthRoleDeleteResponse = auth.role_delete;
    RoleGrantPermission(AuthRoleGrantPermissionRequest) -> AuthRoleGrantPermissionResponse = auth.role_grant_permission;
    RoleRevokePermission(AuthRoleRevokePermissionRequest) -> AuthRoleRevokePermissionResponse = auth.role_revoke_permission;
}

/// What came back.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// An answer.
    Reply(Box<Reply>),
    /// An error: its code and its words.
    Refused(Code, String),
}

impl Answer {
    /// The store's revision that the answer tells, if it tells one.
    pub(super) fn revision(&self) -> Option<i64> {
        let Answer::Reply(reply) = self else { return None };
        reply.clone().headers_mut().iter().map(|header| header.revision).max()
    }

    /// In a few words, for counting kinds.
    pub(super) fn kind(&self) -> String {
        match self {
            Answer::Reply(_) => "an answer".to_string(),
            Answer::Refused(code, words) => format!("{code:?}: {words}"),
        }
    }
}

impl Call {
    /// Whether the call changes nothing, so that several may be under way at once.
    pub(super) fn only_reads(&self) -> bool {
        matches!(
            self,
            Call::Range(_)
                | Call::RangeStream(_)
                | Call::LeaseTimeToLive(_)
                | Call::LeaseLeases(_)
                | Call::MemberList(_)
                | Call::Status(_)
                | Call::HashKv(_)
                | Call::Leader(_)
        )
    }

    /// Whether the member that is asked answers from what it has, which may be old.
    pub(super) fn is_local(&self) -> bool {
        match self {
            Call::Range(request) | Call::RangeStream(request) => request.serializable,
            Call::Put(_) | Call::DeleteRange(_) | Call::Compact(_) | Call::LeaseGrant(_) | Call::LeaseRevoke(_) => {
                false
            }
            _ => true,
        }
    }
}

impl Connection {
    /// Sends one request and masks the answer; the token that it gave, if it gave one.
    pub(super) async fn send(&self, call: Call, token: Option<&str>) -> (Answer, Option<String>) {
        // Boxed: an enum of all calls makes one large future.
        match Box::pin(self.clone().ask(call, token)).await {
            Ok(mut reply) => {
                let given = match &reply {
                    Reply::Authenticate(reply) => Some(reply.token.clone()),
                    _ => None,
                };
                mask(&mut reply);
                (Answer::Reply(Box::new(reply)), given)
            }
            Err(status) => (Answer::Refused(status.code(), status.message().to_string()), None),
        }
    }

    async fn range_stream(&mut self, request: RangeRequest, token: Option<&str>) -> Result<Reply, Status> {
        let mut stream = self.kv.range_stream(with_token(request, token)).await?.into_inner();
        let mut whole = RangeResponse::default();
        for _ in 0..PARTS_MAX {
            let Some(part) = stream.message().await? else { return Ok(Reply::RangeStream(whole)) };
            let part = part.range_response.unwrap_or_default();
            whole.kvs.extend(part.kvs);
            whole.more |= part.more;
            whole.count += part.count;
            whole.header = part.header.or(whole.header);
        }
        Err(Status::unknown("the stream does not end"))
    }

    async fn keep_alive(&mut self, ids: Vec<i64>, token: Option<&str>) -> Result<Reply, Status> {
        let requests: Vec<_> = ids.into_iter().map(|id| LeaseKeepAliveRequest { id }).collect();
        let mut replies = Vec::with_capacity(requests.len());
        let requests = with_token(futures_util::stream::iter(requests), token);
        let mut stream = self.lease.lease_keep_alive(requests).await?.into_inner();
        while let Some(reply) = stream.message().await? {
            replies.push(reply);
        }
        Ok(Reply::KeepAlive(replies))
    }
}

/// The request with the token that says who asks.
pub(super) fn with_token<T>(request: T, token: Option<&str>) -> Request<T> {
    let mut request = Request::new(request);
    if let Some(token) = token.and_then(|token| token.parse().ok()) {
        request.metadata_mut().insert("token", token);
    }
    request
}

/// Ids and terms become 1 where they are set: that they are set is compared, what they are is not.
pub(super) fn mask_header(header: &mut ResponseHeader) {
    header.cluster_id = header.cluster_id.min(1);
    header.member_id = header.member_id.min(1);
    header.raft_term = header.raft_term.min(1);
}

fn mask(reply: &mut Reply) {
    reply.headers_mut().into_iter().for_each(mask_header);
    match reply {
        Reply::MemberAdd(reply) => mask_members(&mut reply.members),
        Reply::MemberRemove(reply) => mask_members(&mut reply.members),
        Reply::MemberUpdate(reply) => mask_members(&mut reply.members),
        Reply::MemberPromote(reply) => mask_members(&mut reply.members),
        Reply::MemberList(reply) => mask_members(&mut reply.members),
        Reply::Status(reply) => mask_status(reply),
        Reply::Hash(reply) => reply.hash = 0,
        Reply::HashKv(reply) => reply.hash = 0,
        Reply::Authenticate(reply) => reply.token = if reply.token.is_empty() { "" } else { "masked" }.to_string(),
        Reply::Downgrade(reply) => reply.version = String::new(),
        // These come out of hash maps in etcd: in any order.
        Reply::Alarm(reply) => reply.alarms.sort_by_key(|alarm| (alarm.member_id, alarm.alarm)),
        Reply::LeaseTimeToLive(reply) => reply.keys.sort(),
        Reply::LeaseLeases(reply) => reply.leases.sort_by_key(|lease| lease.id),
        _ => {}
    }
}

fn mask_members(members: &mut [Member]) {
    for member in &mut *members {
        member.id = member.id.min(1);
        member.peer_ur_ls.iter_mut().chain(&mut member.client_ur_ls).for_each(|url| *url = "masked".to_string());
    }
    members.sort_by(|one, other| one.name.cmp(&other.name));
}

fn mask_status(status: &mut StatusResponse) {
    let set = |number: &mut i64| *number = (*number).min(1);
    set(&mut status.db_size);
    set(&mut status.db_size_in_use);
    set(&mut status.db_size_quota);
    let set = |number: &mut u64| *number = (*number).min(1);
    set(&mut status.leader);
    set(&mut status.raft_index);
    set(&mut status.raft_term);
    set(&mut status.raft_applied_index);
    // The texts of alarms, blanks aside.
    status.errors.sort_by_key(|text| text.split_whitespace().map(str::to_string).collect::<Vec<_>>());
    status.version = status.version.split('.').take(2).collect::<Vec<_>>().join(".");
    status.storage_version = status.storage_version.split('.').take(2).collect::<Vec<_>>().join(".");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mask that hid revisions would hide every bug there is; one that showed ids would cry at each answer.
    #[test]
    fn ids_are_masked_and_revisions_are_not() {
        let header = |member_id, revision| ResponseHeader { cluster_id: 7, member_id, revision, raft_term: 9 };
        let masked = |header| {
            let mut reply = Reply::Put(PutResponse { header: Some(header), prev_kv: None });
            mask(&mut reply);
            reply
        };
        assert_eq!(masked(header(5, 3)), masked(header(6, 3)));
        assert_ne!(masked(header(5, 3)), masked(header(5, 4)));
        assert_ne!(masked(header(5, 3)), masked(header(0, 3)), "an id that is missing is seen");
    }
}
