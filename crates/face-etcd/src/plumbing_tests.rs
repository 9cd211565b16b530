//! Real connections to a face over a coordinator of canned answers: dispatch, limits, streams, shutdown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_core::Stream;
use tidelock_coordinator::{WatchNotice, WatcherId};
use tidelock_etcd_api::etcdserverpb::kv_client::KvClient;
use tidelock_etcd_api::etcdserverpb::lease_client::LeaseClient;
use tidelock_etcd_api::etcdserverpb::maintenance_client::MaintenanceClient;
use tidelock_etcd_api::etcdserverpb::watch_client::WatchClient;
use tidelock_etcd_api::etcdserverpb::watch_request::RequestUnion;
use tidelock_etcd_api::etcdserverpb::{
    LeaseKeepAliveRequest, PutRequest, RangeRequest, StatusRequest, WatchCreateRequest, WatchRequest, WatchResponse,
};
use tidelock_model::{Command, Event, Key, LeaseId, Op, Record, RecordMeta, Revision, Space};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use crate::error_map::FaceError;
use crate::test_double::{Double, REVISION};
use crate::{EtcdFace, FaceConfig, Limits, serve};

/// Far longer than anything here takes.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) struct Served {
    pub(crate) double: Arc<Double>,
    pub(crate) channel: Channel,
    pub(crate) stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

pub(crate) async fn served(config: FaceConfig) -> Served {
    let double = Double::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let face = EtcdFace::new(double.clone(), config);
    let (stop, stopped) = oneshot::channel();
    let serving = tokio::spawn(async move { serve(listener, face, None, async { drop(stopped.await) }).await });
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    Served { double, channel, stop, serving }
}

/// Waits for `condition`, or fails when it takes too long.
pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

fn requests<T: Send + 'static>() -> (mpsc::Sender<T>, impl Stream<Item = T> + Send + 'static) {
    let (sender, receiver) = mpsc::channel(512);
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|request| (request, receiver))
    });
    (sender, stream)
}

fn create() -> WatchRequest {
    let create = WatchCreateRequest { key: "k".into(), ..Default::default() };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

fn event_of(bytes: usize) -> WatchNotice {
    let meta = RecordMeta { created: REVISION, modified: REVISION, version: 1, lease: LeaseId::NONE, sub: 0 };
    let record = Record::new(meta, &vec![b'v'; bytes]);
    let event = Event { key: Key::new(Space::User, b"k"), record, previous: None };
    WatchNotice::Events { id: WatcherId(0), revision: Revision(8), events: vec![event].into() }
}

async fn next(stream: &mut Streaming<WatchResponse>) -> WatchResponse {
    timeout(DEADLINE, stream.message()).await.expect("no response").unwrap().expect("the stream ended")
}

/// The header is how clients know which cluster, member, revision and term answered.
#[tokio::test]
async fn a_put_is_one_command_and_its_header_is_complete() {
    let served = served(FaceConfig::default()).await;
    let put = PutRequest { key: "k".into(), value: "v".into(), ..Default::default() };
    let response = KvClient::new(served.channel).put(put).await.unwrap().into_inner();
    let header = response.header.unwrap();
    assert_eq!((header.cluster_id, header.member_id, header.revision, header.raft_term), (1, 2, 7, 3));
    assert!(matches!(&served.double.proposals.all()[..], [Command::Write(Op::Put(put))] if put.key.name() == b"k"));
}

#[tokio::test]
async fn mistakes_reach_the_client_with_code_and_text() {
    let served = served(FaceConfig::default()).await;
    let status = KvClient::new(served.channel).put(PutRequest::default()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "etcdserver: key is not provided"));
    assert_eq!(served.double.proposals.all(), []);
}

/// Clients probe for services when they connect and carry on if it is "unimplemented"; anything else, such as
/// an HTTP error, makes them give up.
#[tokio::test]
async fn unknown_services_and_methods_are_unimplemented() {
    let served = served(FaceConfig::default()).await;
    let mut grpc = tonic::client::Grpc::new(served.channel.clone());
    for path in ["/etcdserverpb.Auth/AuthFoo", "/etcdserverpb.KV/RangeBackwards", "/v3lockpb.Lock/TryLock", "/x"] {
        grpc.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<StatusRequest, StatusRequest>::default();
        let path = http::uri::PathAndQuery::from_static(path);
        let status = grpc.unary(Request::new(StatusRequest {}), path.clone(), codec).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{path}");
    }
}

/// Clients take "out of range" for a compacted revision: a request too large to read must not look so.
#[tokio::test]
async fn a_message_too_large_to_read_exhausts_resources() {
    let limits = Limits { request_bytes: 1000, ..Limits::default() };
    let served = served(FaceConfig { limits, ..FaceConfig::default() }).await;
    let mut client = KvClient::new(served.channel);
    let put = |bytes: usize| PutRequest { key: "k".into(), value: vec![0; bytes].into(), ..Default::default() };
    let status = client.put(put(2000)).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "etcdserver: request is too large"));
    let status = client.put(put(600 * 1024)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
}

/// Clients back off and try again when they are told so in etcd's words, whoever says it: the node, which would have to
/// be asked, or the connection, which refuses more cheaply. Afterwards the same connection serves as before.
#[tokio::test]
async fn a_put_that_would_be_refused_anyway_is_refused_unread_in_the_same_words() {
    let served = served(FaceConfig::default()).await;
    let mut client = KvClient::new(served.channel);
    let put = || PutRequest { key: "k".into(), ..Default::default() };
    served.double.is_overloaded.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        let refused = client.put(put()).await.unwrap_err();
        let expected = Status::from(FaceError::TooManyRequests);
        assert_eq!((refused.code(), refused.message()), (expected.code(), expected.message()));
    }
    assert_eq!(served.double.proposals.all(), []);
    served.double.is_overloaded.store(false, Ordering::SeqCst);
    client.put(put()).await.unwrap();
}

/// A client that requires a leader wants to be sent on to a member that has one, at once.
#[tokio::test]
async fn calls_that_require_a_leader_fail_without_one_and_others_do_not() {
    let served = served(FaceConfig::default()).await;
    served.double.has_leader.store(false, Ordering::SeqCst);
    let mut client = KvClient::new(served.channel.clone());
    let mut request = Request::new(RangeRequest { key: "k".into(), serializable: true, ..Default::default() });
    request.metadata_mut().insert("hasleader", "true".parse().unwrap());
    let status = client.range(request).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "etcdserver: no leader"));
    let request = RangeRequest { key: "k".into(), serializable: true, ..Default::default() };
    assert!(client.range(request).await.is_ok());
    let status = MaintenanceClient::new(served.channel).status(StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.leader, status.errors), (0, vec!["etcdserver: no leader".to_owned()]));
    assert!(status.db_size > 0);
}

/// A learner may be far behind: clients are sent away, except for what may be stale or is about itself.
#[tokio::test]
async fn a_learner_answers_serializable_reads_and_its_status_and_nothing_else() {
    let served = served(FaceConfig::default()).await;
    served.double.is_learner.store(true, Ordering::SeqCst);
    let mut client = KvClient::new(served.channel.clone());
    let put = || PutRequest { key: "k".into(), ..Default::default() };
    // The face asks about its standing only now and then.
    let refused = async {
        loop {
            match client.put(put()).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(status) => return status,
            }
        }
    };
    let status = timeout(DEADLINE, refused).await.expect("a learner takes writes");
    let expected = (Code::FailedPrecondition, "etcdserver: rpc not supported for learner");
    assert_eq!((status.code(), status.message()), expected);
    let range = |serializable| RangeRequest { key: "k".into(), serializable, ..Default::default() };
    assert!(client.range(range(true)).await.is_ok());
    assert_eq!(client.range(range(false)).await.unwrap_err().message(), expected.1);
    let (_sender, stream) = requests();
    let watch = WatchClient::new(served.channel.clone()).watch(stream).await;
    assert_eq!(watch.unwrap_err().message(), expected.1);
    let status = MaintenanceClient::new(served.channel).status(StatusRequest {}).await.unwrap().into_inner();
    assert!(status.is_learner);
}

#[tokio::test]
async fn a_watch_stream_is_told_of_creation_then_events_then_cancellation() {
    let served = served(FaceConfig::default()).await;
    let (sender, stream) = requests();
    sender.send(create()).await.unwrap();
    let mut responses = WatchClient::new(served.channel).watch(stream).await.unwrap().into_inner();
    let created = next(&mut responses).await;
    assert!(created.created && created.header.unwrap().revision == 7);
    served.double.notices.send(event_of(3)).await.unwrap();
    let events = next(&mut responses).await;
    assert_eq!((events.watch_id, events.events.len(), events.header.unwrap().revision), (0, 1, 8));
    let cancel = RequestUnion::CancelRequest(Default::default());
    sender.send(WatchRequest { request_union: Some(cancel) }).await.unwrap();
    assert!(next(&mut responses).await.canceled);
}

/// A watcher that was made and then forgotten by a client that is gone would be served for ever.
#[tokio::test]
async fn the_subscription_is_dropped_when_the_client_goes_away() {
    let served = served(FaceConfig::default()).await;
    let (sender, stream) = requests();
    sender.send(create()).await.unwrap();
    let mut responses = WatchClient::new(served.channel.clone()).watch(stream).await.unwrap().into_inner();
    next(&mut responses).await;
    assert_eq!(served.double.subscriptions.load(Ordering::SeqCst), 1);
    drop((responses, sender));
    let double = served.double.clone();
    eventually("the subscription is still there", || double.subscriptions.load(Ordering::SeqCst) == 0).await;
}

/// One client that does not read must not make the node hold its events: what it does not take stays
/// below, where a slow watcher costs nothing.
#[tokio::test]
async fn a_client_that_does_not_read_stops_the_taking_of_notices() {
    const NOTICE_BYTES: usize = 256 * 1024;
    // Far above what the connection's windows and the queue hold together, far below a leak.
    const TAKEN_MAX: usize = 100;
    let served = served(FaceConfig::default()).await;
    let (sender, stream) = requests();
    sender.send(create()).await.unwrap();
    let mut responses = WatchClient::new(served.channel.clone()).watch(stream).await.unwrap().into_inner();
    next(&mut responses).await;
    let mut taken = 0;
    while timeout(Duration::from_secs(1), served.double.notices.send(event_of(NOTICE_BYTES))).await.is_ok() {
        taken += 1;
        assert!(taken < TAKEN_MAX, "{taken} notices were taken for a client that reads none");
    }
    // And when it reads again it gets every one of them.
    for _ in 0..taken {
        assert_eq!(next(&mut responses).await.events.len(), 1);
    }
}

#[tokio::test]
async fn a_watch_stream_that_requires_a_leader_ends_when_there_is_none_for_long() {
    let grace = Duration::from_millis(60);
    let served = served(FaceConfig { leader_grace: grace, ..FaceConfig::default() }).await;
    let (sender, stream) = requests();
    sender.send(create()).await.unwrap();
    let mut request = Request::new(stream);
    request.metadata_mut().insert("hasleader", "true".parse().unwrap());
    let mut responses = WatchClient::new(served.channel.clone()).watch(request).await.unwrap().into_inner();
    next(&mut responses).await;
    served.double.has_leader.store(false, Ordering::SeqCst);
    let status = timeout(DEADLINE, responses.message()).await.expect("the stream goes on").unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "etcdserver: no leader"));
}

/// Clients match keepalive answers to their questions by order as well as by id.
#[tokio::test]
async fn keepalives_are_answered_in_order_and_a_missing_lease_with_zero() {
    let served = served(FaceConfig::default()).await;
    let (sender, stream) = requests();
    for id in 1..=20 {
        sender.send(LeaseKeepAliveRequest { id }).await.unwrap();
    }
    drop(sender);
    let mut responses = LeaseClient::new(served.channel).lease_keep_alive(stream).await.unwrap().into_inner();
    for id in 1..=20 {
        let response = timeout(DEADLINE, responses.message()).await.unwrap().unwrap().unwrap();
        assert_eq!((response.id, response.ttl), (id, if id % 2 == 1 { 10 } else { 0 }));
        assert_eq!(response.header.unwrap().revision, 7);
    }
    assert!(timeout(DEADLINE, responses.message()).await.unwrap().unwrap().is_none(), "all is answered");
}

/// While there is no leader renewals wait; a client that keeps asking must not pile them up.
#[tokio::test]
async fn renewals_under_way_on_one_stream_are_bounded() {
    let served = served(FaceConfig::default()).await;
    served.double.renewals_allowed.forget_permits(usize::MAX);
    let (sender, stream) = requests();
    let asking = tokio::spawn(async move {
        for _ in 0..400 {
            sender.send(LeaseKeepAliveRequest { id: 1 }).await.unwrap();
        }
        sender
    });
    let mut responses = LeaseClient::new(served.channel.clone()).lease_keep_alive(stream).await.unwrap().into_inner();
    let sender = asking.await.unwrap();
    let double = served.double.clone();
    eventually("256 renewals are under way", || double.renewals_under_way.load(Ordering::SeqCst) == 256).await;
    double.renewals_allowed.add_permits(1000);
    for _ in 0..400 {
        assert!(double.renewals_under_way.load(Ordering::SeqCst) <= 256);
        assert_eq!(timeout(DEADLINE, responses.message()).await.unwrap().unwrap().unwrap().ttl, 10);
    }
    drop(sender);
}

/// A watch stream never ends by itself: stopping must end it, or the process would hang on its clients.
#[tokio::test]
async fn stopping_ends_the_streams_and_then_the_listener() {
    let served = served(FaceConfig::default()).await;
    let (sender, stream) = requests();
    sender.send(create()).await.unwrap();
    let mut responses = WatchClient::new(served.channel.clone()).watch(stream).await.unwrap().into_inner();
    next(&mut responses).await;
    served.stop.send(()).unwrap();
    let status = timeout(DEADLINE, responses.message()).await.expect("the stream goes on").unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "etcdserver: server stopped"));
    timeout(DEADLINE, served.serving).await.expect("still serving").unwrap();
}
