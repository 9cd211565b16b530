//! Leases: grant, revoke, keep alive, time to live, list.
//!
//! A keepalive for a lease that does not exist is answered with a TTL of zero and a question about one
//! with -1: clients rely on both being answers, not errors.

use std::pin::Pin;
use std::sync::Arc;

use futures_core::Stream;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use tidelock_coordinator::{Consistency, Coordinator};
use tidelock_etcd_api::etcdserverpb::lease_server::Lease;
use tidelock_etcd_api::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse, ResponseHeader,
};
use tidelock_model::{Answer, Caller, Command, Key, LeaseId, LeaseInfo, Need, Query, QueryAnswer, Space};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

use crate::config::Limits;
use crate::error_map::FaceError;
use crate::header::Headers;
use crate::kv::MISMATCH;
use crate::leader_watch::requires_leader;
use crate::reply_stream::ReplyStream;
use crate::services::{Services, StreamEnd};

/// Longest time to live a client may ask for, in seconds: what etcd takes.
const TTL_MAX_S: i64 = 9_000_000_000;

/// Renewals under way on one stream; more wait unread in the connection.
const RENEWALS_IN_FLIGHT: usize = 256;

/// Answers waiting on one stream for the connection to take them.
const REPLIES_QUEUED: usize = 16;

/// Tries to find an unused lease id. Ids are random 63-bit numbers: one is enough, two are luck.
const ID_TRIES: usize = 8;

/// A grant as a command. `chosen` is the id to use if the client leaves it to us.
pub fn grant_to_command(request: LeaseGrantRequest, chosen: LeaseId, limits: &Limits) -> Result<Command, FaceError> {
    if request.ttl > TTL_MAX_S {
        return Err(FaceError::LeaseTtlTooLarge);
    }
    let id = if request.id == 0 { chosen } else { LeaseId(request.id) };
    // Below the minimum, zero and negative ones included: raised. Beyond 32 bits (136 years): cut there.
    let ttl_s = u32::try_from(request.ttl.max(0)).unwrap_or(u32::MAX).max(limits.lease_ttl_min_s);
    Ok(Command::LeaseGrant { id, ttl_s })
}

/// What a grant answered, on the wire.
pub fn grant_to_response(answer: &Answer, header: ResponseHeader) -> Result<LeaseGrantResponse, FaceError> {
    let Answer::LeaseGranted { id, ttl_s } = answer else { return Err(MISMATCH) };
    Ok(LeaseGrantResponse { header: Some(header), id: id.0, ttl: i64::from(*ttl_s), error: String::new() })
}

/// A revocation as a command.
pub fn revoke_to_command(request: LeaseRevokeRequest) -> Result<Command, FaceError> {
    // Zero too, which no lease has: who may not ask is told that first.
    Ok(Command::LeaseRevoke { id: LeaseId(request.id) })
}

/// What a renewal answered, on the wire.
#[must_use]
pub fn keep_alive_to_response(id: i64, lease: Option<LeaseInfo>, header: ResponseHeader) -> LeaseKeepAliveResponse {
    let ttl = lease.map_or(0, |lease| i64::from(lease.granted_ttl_s));
    LeaseKeepAliveResponse { header: Some(header), id, ttl }
}

/// What is known of a lease, on the wire, without its keys. Whole seconds left, rounded down.
#[must_use]
pub fn time_to_live_to_response(id: i64, lease: Option<LeaseInfo>, header: ResponseHeader) -> LeaseTimeToLiveResponse {
    let header = Some(header);
    match lease {
        Some(lease) => LeaseTimeToLiveResponse {
            header,
            id,
            ttl: i64::try_from(lease.remaining_ms / 1000).unwrap_or(i64::MAX),
            granted_ttl: i64::from(lease.granted_ttl_s),
            keys: Vec::new(),
        },
        None => LeaseTimeToLiveResponse { header, id, ttl: -1, granted_ttl: 0, keys: Vec::new() },
    }
}

/// A random lease id, positive as clients expect.
pub(crate) fn random_id() -> LeaseId {
    LeaseId(rand::random_range(1..=i64::MAX))
}

#[tonic::async_trait]
impl Lease for Services {
    async fn lease_grant(&self, request: Request<LeaseGrantRequest>) -> Result<Response<LeaseGrantResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        // As etcd: who may not ask is told that before what is wrong with the request.
        self.coordinator.auth().check(&caller, &Need::User).map_err(FaceError::from)?;
        let request = request.into_inner();
        let tries = if request.id == 0 { ID_TRIES } else { 1 };
        let mut result = Err(FaceError::LeaseExists);
        for _ in 0..tries {
            result = self.propose(&caller, grant_to_command(request, random_id(), &self.config.limits)?).await;
            if result != Err(FaceError::LeaseExists) {
                break;
            }
        }
        let (revision, answer) = result?;
        Ok(Response::new(grant_to_response(&answer, self.headers.at(revision))?))
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let (revision, _) = self.propose(&caller, revoke_to_command(request.into_inner())?).await?;
        Ok(Response::new(LeaseRevokeResponse { header: Some(self.headers.at(revision)) }))
    }

    type LeaseKeepAliveStream = Pin<Box<dyn Stream<Item = Result<LeaseKeepAliveResponse, Status>> + Send>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        self.refuse_on_learner()?;
        let required = requires_leader(request.metadata().as_ref());
        let caller = self.caller(&request)?;
        let renewals = Renewals { caller, coordinator: Arc::clone(&self.coordinator), headers: self.headers.clone() };
        let (replies, stream) = mpsc::channel(REPLIES_QUEUED);
        tokio::spawn(renewals.run(request.into_inner(), replies, self.stream_end(required)));
        Ok(Response::new(Box::pin(ReplyStream(stream))))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let LeaseTimeToLiveRequest { id, keys } = request.into_inner();
        let lease = self.coordinator.lease_info(caller.clone(), LeaseId(id)).await.map_err(FaceError::from)?;
        if lease.is_none() || !keys {
            return Ok(Response::new(time_to_live_to_response(id, lease, self.headers.now())));
        }
        let answer = self.read(&caller, Query::LeaseKeys(LeaseId(id)), Consistency::Linearizable).await?;
        let QueryAnswer::LeaseKeys { revision, keys } = answer else { return Err(MISMATCH.into()) };
        // The lease may have ended between the two questions: then it is gone, whatever the first said.
        let lease = lease.filter(|_| keys.is_some());
        let mut response = time_to_live_to_response(id, lease, self.headers.at(revision));
        // What a session of another protocol owns is not etcd's to tell.
        let is_users = |key: &&Key| key.space_byte() == Some(Space::User as u8);
        let keys = keys.unwrap_or_default();
        response.keys = keys.iter().filter(is_users).map(|key| bytes::Bytes::copy_from_slice(key.name())).collect();
        Ok(Response::new(response))
    }

    async fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        let answer = self.read(&caller, Query::Leases, Consistency::Local).await?;
        let QueryAnswer::Leases { revision, ids } = answer else { return Err(MISMATCH.into()) };
        let leases = ids.into_iter().map(|id| LeaseStatus { id: id.0 }).collect();
        Ok(Response::new(LeaseLeasesResponse { header: Some(self.headers.at(revision)), leases }))
    }
}

/// One keepalive stream: renewals run side by side, answers leave in the order of the requests.
struct Renewals {
    caller: Caller,
    coordinator: Arc<dyn Coordinator>,
    headers: Headers,
}

impl Renewals {
    async fn run(
        self,
        mut requests: Streaming<LeaseKeepAliveRequest>,
        replies: mpsc::Sender<Result<LeaseKeepAliveResponse, Status>>,
        mut end: StreamEnd,
    ) {
        let mut under_way = FuturesOrdered::new();
        let mut reading = true;
        while reading || !under_way.is_empty() {
            let reply = tokio::select! {
                Some(reply) = under_way.next(), if !under_way.is_empty() => reply,
                request = requests.message(), if reading && under_way.len() < RENEWALS_IN_FLIGHT => {
                    match request {
                        Ok(Some(request)) => under_way.push_back(self.renew(request.id)),
                        // The client has no more to ask; what it asked is still answered.
                        Ok(None) => reading = false,
                        Err(_gone) => return,
                    }
                    continue;
                }
                why = &mut end => Err(why),
                () = replies.closed() => return,
            };
            let last = reply.is_err();
            if replies.send(reply.map_err(Status::from)).await.is_err() || last {
                return;
            }
        }
    }

    fn renew(&self, id: i64) -> impl Future<Output = Result<LeaseKeepAliveResponse, FaceError>> + Send + use<> {
        let coordinator = Arc::clone(&self.coordinator);
        // Made before the renewal: a lease revoked at revision 3 must not be seen alive at revision 4.
        let header = self.headers.now();
        let caller = self.caller.as_of(&coordinator.auth());
        async move { Ok(keep_alive_to_response(id, coordinator.keep_alive(caller, LeaseId(id)).await?, header)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(ttl: i64, id: i64) -> Result<(i64, u32), FaceError> {
        match grant_to_command(LeaseGrantRequest { ttl, id }, LeaseId(77), &Limits::default())? {
            Command::LeaseGrant { id, ttl_s } => Ok((id.0, ttl_s)),
            other => panic!("not a grant: {other:?}"),
        }
    }

    /// A lease shorter than an election would run out at every change of leader.
    #[test]
    fn times_to_live_are_raised_to_the_minimum_and_cut_at_the_maximum() {
        assert_eq!(granted(10, 5), Ok((5, 10)));
        assert_eq!(granted(1, 5), Ok((5, 2)));
        assert_eq!(granted(-1, 5), Ok((5, 2)));
        assert_eq!(granted(9_000_000_000, 5), Ok((5, u32::MAX)));
        assert_eq!(granted(9_000_000_001, 5), Err(FaceError::LeaseTtlTooLarge));
        assert_eq!(granted(10, 0), Ok((77, 10)));
        assert_eq!(granted(10, -4), Ok((-4, 10)));
    }

    #[test]
    fn ids_we_choose_are_positive() {
        assert!((0..1000).all(|_| random_id().0 > 0));
    }

    /// L4: clients learn the end of their lease from these two numbers.
    #[test]
    fn a_missing_lease_is_an_answer_not_an_error() {
        assert_eq!(keep_alive_to_response(5, None, ResponseHeader::default()).ttl, 0);
        let gone = time_to_live_to_response(5, None, ResponseHeader::default());
        assert_eq!((gone.id, gone.ttl, gone.granted_ttl), (5, -1, 0));
    }

    #[test]
    fn time_left_is_told_in_whole_seconds_rounded_down() {
        let lease = Some(LeaseInfo { id: LeaseId(5), granted_ttl_s: 10, remaining_ms: 9_999 });
        assert_eq!(time_to_live_to_response(5, lease, ResponseHeader::default()).ttl, 9);
        assert_eq!(keep_alive_to_response(5, lease, ResponseHeader::default()).ttl, 10);
    }
}
