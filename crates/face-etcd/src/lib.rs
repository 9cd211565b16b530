//! The etcd v3 face: etcd's gRPC services over a [`Coordinator`].
//!
//! | etcd says                 | we say                                                              |
//! |---------------------------|---------------------------------------------------------------------|
//! | key                       | `Key` in `Space::User`; no other space can be reached from here      |
//! | revision                  | `Revision`                                                          |
//! | range_end                 | the end of a `KeyRange` (see `key_range`)                           |
//! | serializable              | `Consistency::Local`                                                |
//! | Put, DeleteRange, Txn     | `Command::Write(Op)`: one request, one log entry                    |
//! | a Txn without writes      | `Query::Txn`                                                        |
//! | Compact                   | `Command::Compact`                                                  |
//! | lease, TTL                | `LeaseId`, `ttl_s`; keepalives do not enter the log                 |
//! | watch stream              | `Subscription`; its watch ids are the client's names for `WatcherId` |
//! | progress notification     | `WatchNotice::Progress`                                             |
//! | member, peerURLs          | `Member`, `peer_addresses` (`host:port`)                            |
//! | alarm                     | `Alarm`; a full disk tells NOSPACE by itself (`Status::disk_full`)   |
//! | lock, election            | keys in a `line`, as etcd's own clients make them                   |
//! | user, role, permission    | `Auth`; what a request needs is in `model::access`                   |
//! | token, CN of a certificate| `Caller` (see `callers`)                                             |
//! | Defragment                | nothing to do                                                       |
//!
//! Wire types end in the first function of each request: `*_to_command`, `*_to_query`, `*_to_op` and
//! their `*_to_response` are pure and public, for the simulator. `error_map` holds every error; sockets
//! are in `client-port` alone. A call: its listener, `http2_service`, `unary`, and the service's own file; Watch streams take
//! `watch` instead of `unary`, other streams and the gateway `door`. Answers follow etcd 3.7.

mod call_counts;
mod callers;
mod client_body;
mod config;
mod door;
mod error_map;
mod gateway;
mod hash;
mod header;
mod health;
mod http2_service;
mod key_range;
mod leader_watch;
mod paging;
mod rarely;
mod reply_stream;
mod services;
mod snapshot;
mod told;
mod unary;

pub mod alarm;
pub mod auth;
pub mod cluster;
pub mod downgrade;
pub mod election;
pub mod kv;
pub mod lease;
pub mod line;
mod line_order;
pub mod lock;
pub mod maintenance;
pub mod range_stream;
pub mod txn;
pub mod watch_stream;

mod watch;

#[cfg(test)]
mod plumbing_tests;
#[cfg(test)]
mod recipe_tests;
#[cfg(test)]
mod test_double;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{HeaderMap, HeaderValue};
use tidelock_coordinator::Coordinator;
use tidelock_etcd_api::etcdserverpb::auth_server::AuthServer;
use tidelock_etcd_api::etcdserverpb::cluster_server::ClusterServer;
use tidelock_etcd_api::etcdserverpb::kv_server::KvServer;
use tidelock_etcd_api::etcdserverpb::lease_server::LeaseServer;
use tidelock_etcd_api::etcdserverpb::maintenance_server::MaintenanceServer;
use tidelock_etcd_api::healthpb::health_server::HealthServer;
use tidelock_etcd_api::v3electionpb::election_server::ElectionServer;
use tidelock_etcd_api::v3lockpb::lock_server::LockServer;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::{Code, Status};

pub use call_counts::{CALL_BOUNDS_MS, CallCounts, CallKind, CallReading, MethodReading};
pub use config::{FaceConfig, Limits, MESSAGE_OVERHEAD_BYTES, MetricsText, PROGRESS_INTERVAL_MIN};
pub use error_map::{FaceError, transfer_error};
pub use header::{Headers, wire_number, wire_revision};
pub use http2_service::serve;
pub use tidelock_client_port::{BCRYPT_COST, ClientName, JwtKeys, TOKEN_TTL, TokenKind};

use call_counts::Counting;
use leader_watch::requires_leader;
use services::Services;

/// All services behind one door: hand it to [`serve`], or mount it beside other HTTP services. Cloning
/// is cheap; every clone is the same face.
#[derive(Clone)]
pub struct EtcdFace(Arc<Shared>);

struct Shared {
    services: Arc<Services>,
    counts: Arc<CallCounts>,
    kv: KvServer<Services>,
    lease: LeaseServer<Services>,
    cluster: ClusterServer<Services>,
    maintenance: MaintenanceServer<Services>,
    auth: AuthServer<Services>,
    lock: LockServer<Services>,
    election: ElectionServer<Services>,
    health: HealthServer<Services>,
}

impl EtcdFace {
    /// A face over `coordinator`, which must know its cluster and node id by now.
    #[must_use]
    pub fn new(coordinator: Arc<dyn Coordinator>, config: FaceConfig) -> EtcdFace {
        let message_bytes = config.limits.message_bytes();
        let counts = CallCounts::new(config.time_calls);
        let services = Arc::new(Services::new(coordinator, config));
        // Answers are not limited: clients expect listings of any size to be sent.
        EtcdFace(Arc::new(Shared {
            kv: KvServer::from_arc(Arc::clone(&services)).max_decoding_message_size(message_bytes),
            lease: LeaseServer::from_arc(Arc::clone(&services)).max_decoding_message_size(message_bytes),
            cluster: ClusterServer::from_arc(Arc::clone(&services)).max_decoding_message_size(message_bytes),
            maintenance: MaintenanceServer::from_arc(Arc::clone(&services)).max_decoding_message_size(message_bytes),
            auth: AuthServer::from_arc(Arc::clone(&services)).max_decoding_message_size(message_bytes),
            lock: LockServer::from_arc(Arc::clone(&services)).max_decoding_message_size(message_bytes),
            election: ElectionServer::from_arc(Arc::clone(&services)).max_decoding_message_size(message_bytes),
            health: HealthServer::from_arc(Arc::clone(&services)).max_decoding_message_size(message_bytes),
            counts,
            services,
        }))
    }

    /// How it was configured.
    #[must_use]
    pub fn config(&self) -> &FaceConfig {
        &self.0.services.config
    }

    /// What was counted of its calls.
    #[must_use]
    pub fn counts(&self) -> Arc<CallCounts> {
        Arc::clone(&self.0.counts)
    }

    /// Ends all streams with "server stopped", now and from now on. [`serve`] does it when it shuts down.
    pub fn stop_streams(&self) {
        self.0.services.stop_streams();
    }

    fn leader_is_missing(&self, headers: &HeaderMap) -> bool {
        requires_leader(headers) && !self.has_leader()
    }

    fn has_leader(&self) -> bool {
        self.0.services.coordinator.status().leader.is_some()
    }

    fn services(&self) -> &Services {
        &self.0.services
    }

    fn call_counts(&self) -> &CallCounts {
        &self.0.counts
    }
}

impl Service<http::Request<Body>> for EtcdFace {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answering {
        let shared = &*self.0;
        let counting = shared.counts.begin(request.uri().path());
        let request = match &counting {
            Some(counting) => counting.requested(request),
            None => request,
        };
        if self.leader_is_missing(request.headers()) {
            return Answering::refused(FaceError::NoLeader.into(), counting);
        }
        let service = request.uri().path().split('/').nth(1);
        let answering = match service {
            Some("etcdserverpb.KV") => shared.kv.clone().call(request),
            Some("etcdserverpb.Lease") => shared.lease.clone().call(request),
            Some("etcdserverpb.Watch") if request.uri().path() == watch::PATH => {
                let services = Arc::clone(&shared.services);
                Box::pin(async move { Ok(watch::serve(services, request).await) })
            }
            Some("etcdserverpb.Cluster") => shared.cluster.clone().call(request),
            Some("etcdserverpb.Maintenance") => shared.maintenance.clone().call(request),
            Some("etcdserverpb.Auth") => shared.auth.clone().call(request),
            Some("v3lockpb.Lock") => shared.lock.clone().call(request),
            Some("v3electionpb.Election") => shared.election.clone().call(request),
            Some("grpc.health.v1.Health") => shared.health.clone().call(request),
            // Clients probe for services and go on without them if told so.
            _ => return Answering::refused(Status::unimplemented("unknown service"), counting),
        };
        Answering { answering, counting }
    }
}

/// An answer being made.
pub struct Answering {
    answering: BoxFuture<http::Response<Body>, Infallible>,
    counting: Option<Counting>,
}

impl Answering {
    fn refused(status: Status, counting: Option<Counting>) -> Answering {
        Answering { answering: Box::pin(std::future::ready(Ok(status.into_http()))), counting }
    }
}

impl Future for Answering {
    type Output = Result<http::Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = match ready!(self.answering.as_mut().poll(cx)) {
            Ok(response) => response,
            Err(never) => match never {},
        };
        rename_oversized(response.headers_mut());
        Poll::Ready(Ok(match self.counting.take() {
            Some(counting) => counting.answered(response),
            None => response,
        }))
    }
}

/// A message too large to be read is "out of range" with our gRPC library and "resource exhausted" with
/// etcd's. Clients take the former for a compacted revision, so it must not get out.
fn rename_oversized(headers: &mut HeaderMap) {
    const OVERSIZED: &[u8] = b"Error,%20decoded%20message%20length%20too%20large";
    let is = |headers: &HeaderMap, code: Code| {
        headers.get(Status::GRPC_STATUS).is_some_and(|value| value == (code as i32).to_string().as_str())
    };
    let message = headers.get(Status::GRPC_MESSAGE);
    if message.is_some_and(|text| text.as_bytes().starts_with(OVERSIZED)) && is(headers, Code::OutOfRange) {
        headers.insert(Status::GRPC_STATUS, HeaderValue::from(Code::ResourceExhausted as i32));
    }
}
