//! Streams, locks, elections, health and alarms over real connections, with a coordinator of canned answers.
//! What the real one answers is tested with real nodes, in the server crate.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidelock_coordinator::{WatchNotice, WatcherId};
use tidelock_etcd_api::etcdserverpb::kv_client::KvClient;
use tidelock_etcd_api::etcdserverpb::maintenance_client::MaintenanceClient;
use tidelock_etcd_api::etcdserverpb::{HashKvRequest, RangeRequest, RangeResponse};
use tidelock_etcd_api::healthpb::HealthCheckRequest;
use tidelock_etcd_api::healthpb::health_client::HealthClient;
use tidelock_etcd_api::v3electionpb::LeaderRequest;
use tidelock_etcd_api::v3electionpb::election_client::ElectionClient;
use tidelock_etcd_api::v3lockpb::LockRequest;
use tidelock_etcd_api::v3lockpb::lock_client::LockClient;
use tidelock_model::{
    Answer, Command, Compare, CompareTarget, Event, KeyValue, Op, OpAnswer, RangeAnswer, Record, Refusal, Revision,
};
use tokio::time::timeout;
use tonic::{Code, Request, Status};

use crate::FaceConfig;
use crate::plumbing_tests::{DEADLINE, Served, eventually, served};
use crate::test_double::{Double, REVISION, item};

fn listing() -> RangeRequest {
    RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() }
}

/// All parts of a streamed range, and how it ended.
async fn parts(served: &Served, request: RangeRequest) -> (Vec<RangeResponse>, Result<(), Status>) {
    let mut parts = Vec::new();
    let mut stream = match KvClient::new(served.channel.clone()).range_stream(request).await {
        Ok(stream) => stream.into_inner(),
        Err(status) => return (parts, Err(status)),
    };
    loop {
        match timeout(DEADLINE, stream.message()).await.expect("no part") {
            Ok(Some(part)) => parts.push(part.range_response.expect("every part has content")),
            Ok(None) => return (parts, Ok(())),
            Err(status) => return (parts, Err(status)),
        }
    }
}

/// Clients that merge the parts must get what Range answers, and those that do not can trust the end.
#[tokio::test]
async fn a_streamed_range_comes_in_growing_parts_and_the_last_tells_the_rest() {
    let served = served(FaceConfig::default()).await;
    served.double.keys.store(100, Ordering::SeqCst);
    let (got, end) = parts(&served, listing()).await;
    end.unwrap();
    assert_eq!(got.iter().map(|part| part.kvs.len()).collect::<Vec<_>>(), [10, 20, 40, 30]);
    let names: Vec<_> = got.iter().flat_map(|part| &part.kvs).map(|kv| kv.key.clone()).collect();
    assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "once each, by key");
    let (last, others) = got.split_last().unwrap();
    assert!(others.iter().all(|part| part.header.is_none() && part.count == 0 && !part.more));
    assert_eq!((last.header.unwrap().revision, last.count, last.more), (7, 100, false));
}

#[tokio::test]
async fn a_limited_stream_ends_at_the_limit_and_counts_what_it_left_out() {
    let served = served(FaceConfig::default()).await;
    served.double.keys.store(100, Ordering::SeqCst);
    let (got, end) = parts(&served, RangeRequest { limit: 12, keys_only: true, ..listing() }).await;
    end.unwrap();
    assert_eq!(got.iter().map(|part| part.kvs.len()).collect::<Vec<_>>(), [10, 2]);
    assert!(got.iter().flat_map(|part| &part.kvs).all(|kv| kv.value.is_empty() && kv.mod_revision == 7));
    assert_eq!((got[1].count, got[1].more), (100, true));
    let (got, end) = parts(&served, RangeRequest { limit: 100, ..listing() }).await;
    end.unwrap();
    assert_eq!(got.last().map(|part| (part.count, part.more)), Some((100, false)));
    let (got, end) = parts(&served, RangeRequest { count_only: true, ..listing() }).await;
    end.unwrap();
    assert_eq!((got.len(), got[0].count, got[0].kvs.len(), got[0].header.unwrap().revision), (1, 100, 0, 7));
    let (got, end) = parts(&served, RangeRequest { key: "z".into(), range_end: "zz".into(), ..listing() }).await;
    end.unwrap();
    assert_eq!((got.len(), got[0].count, got[0].header.is_some()), (1, 0, true));
}

/// A listing with a hole in it is worse than none: the client must learn that its revision is gone.
#[tokio::test]
async fn a_stream_overtaken_by_compaction_says_so_instead_of_ending() {
    let served = served(FaceConfig::default()).await;
    served.double.keys.store(5000, Ordering::SeqCst);
    served.double.pages_allowed.store(2, Ordering::SeqCst);
    let (got, end) = parts(&served, listing()).await;
    let status = end.unwrap_err();
    assert_eq!(status.message(), "etcdserver: mvcc: required revision has been compacted");
    assert_eq!(status.code(), Code::OutOfRange);
    assert!(!got.is_empty() && got.iter().all(|part| part.header.is_none()));
    let hashed = MaintenanceClient::new(served.channel).hash_kv(HashKvRequest { revision: 0 }).await;
    assert_eq!(hashed.unwrap_err().code(), Code::OutOfRange);
}

/// What someone who enters a line at revision 7 is told, if the one created at `first` holds it.
fn entered(first: u64) -> Result<Answer, Refusal> {
    let holder = RangeAnswer { items: vec![item("l/1", Revision(first))], count: 2, more: false };
    let answers = vec![OpAnswer::PUT_DONE, OpAnswer::Range(holder)];
    Ok(Answer::Op(OpAnswer::Txn { succeeded: true, answers }))
}

/// What a look at the line shows: one's own place, and some of those that stand there.
fn look(own: Option<KeyValue>) -> OpAnswer {
    let items: Vec<KeyValue> = own.into_iter().collect();
    let range = OpAnswer::Range(RangeAnswer { count: items.len() as u64, items, more: false });
    OpAnswer::Txn { succeeded: true, answers: vec![range.clone(), range] }
}

/// A waiter at revision 7 behind a holder.
fn two_in_line(double: &Double) {
    double.outcomes.lock().unwrap().push_back(entered(3));
    double.line.lock().unwrap().extend([item("l/1", Revision(3)), item("l/2a", REVISION)]);
}

fn deleted(name: &str) -> WatchNotice {
    let event = Event { key: item(name, REVISION).key, record: Record::tombstone(Revision(8), 0), previous: None };
    WatchNotice::Events { id: WatcherId(0), revision: Revision(8), events: vec![event].into() }
}

/// Whether the last command takes exactly the place away that was created at revision 7.
fn has_left(double: &Double) -> bool {
    match double.proposals.all().last() {
        Some(Command::Write(Op::Txn(txn))) => {
            matches!(&txn.compares[..], [Compare { target: CompareTarget::Created(7), .. }])
                && matches!(&txn.success[..], [Op::Delete(_)])
        }
        _ => false,
    }
}

fn lock(lease: i64) -> LockRequest {
    LockRequest { name: "l".into(), lease }
}

#[tokio::test]
async fn a_free_lock_takes_one_command() {
    let served = served(FaceConfig::default()).await;
    served.double.outcomes.lock().unwrap().push_back(entered(REVISION.0));
    let held = LockClient::new(served.channel).lock(lock(0x2a)).await.unwrap().into_inner();
    assert_eq!((&held.key[..], held.header.unwrap().revision), (&b"l/2a"[..], 7));
    assert_eq!(served.double.proposals.all().len(), 1);
}

#[tokio::test]
async fn a_waiter_gets_the_lock_when_the_one_before_it_is_gone() {
    let served = served(FaceConfig::default()).await;
    two_in_line(&served.double);
    served.double.looks.lock().unwrap().push_back(look(Some(item("l/2a", REVISION))));
    let mut client = LockClient::new(served.channel.clone());
    let waiting = tokio::spawn(async move { client.lock(lock(0x2a)).await });
    let double = served.double.clone();
    eventually("nobody waits", || double.subscriptions.load(Ordering::SeqCst) == 1).await;
    assert!(!waiting.is_finished());
    double.notices.send(deleted("l/1")).await.unwrap();
    assert_eq!(&timeout(DEADLINE, waiting).await.unwrap().unwrap().unwrap().into_inner().key[..], b"l/2a");
    eventually("a watcher was left behind", || double.subscriptions.load(Ordering::SeqCst) == 0).await;
}

/// H9: a waiter whose lease ran out must be told so, never that it holds the lock.
#[tokio::test]
async fn h9_a_waiter_whose_own_key_is_gone_gets_an_error_and_not_the_lock() {
    for own in [None, Some(item("l/2a", Revision(9)))] {
        let served = served(FaceConfig::default()).await;
        two_in_line(&served.double);
        served.double.looks.lock().unwrap().push_back(look(own));
        let mut client = LockClient::new(served.channel.clone());
        let waiting = tokio::spawn(async move { client.lock(lock(0x2a)).await });
        served.double.notices.send(deleted("l/2a")).await.unwrap();
        let status = timeout(DEADLINE, waiting).await.unwrap().unwrap().unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unknown, "mutex: session is expired"));
    }
}

/// A client that went away will never unlock: its place must not become the lock's holder.
#[tokio::test]
async fn a_waiter_that_goes_away_leaves_the_line() {
    let served = served(FaceConfig::default()).await;
    two_in_line(&served.double);
    let mut client = LockClient::new(served.channel.clone());
    let mut request = Request::new(lock(0x2a));
    request.set_timeout(Duration::from_millis(200));
    client.lock(request).await.unwrap_err();
    let double = served.double.clone();
    eventually("the place is still taken", || has_left(&double)).await;
}

#[tokio::test]
async fn a_lock_under_a_lease_that_does_not_exist_is_refused_in_etcds_words() {
    let served = served(FaceConfig::default()).await;
    served.double.outcomes.lock().unwrap().push_back(Err(Refusal::LeaseNotFound));
    let status = LockClient::new(served.channel).lock(lock(5)).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unknown, "etcdserver: requested lease not found"));
}

/// Probes of load balancers ask this, and take anything else for a dead server.
#[tokio::test]
async fn the_server_as_a_whole_is_serving_and_other_names_are_unknown() {
    let served = served(FaceConfig::default()).await;
    let mut client = HealthClient::new(served.channel);
    let named = |service: &str| HealthCheckRequest { service: service.to_owned() };
    assert_eq!(client.check(named("")).await.unwrap().into_inner().status, 1);
    let status = client.check(named("etcdserverpb.KV")).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "unknown service"));
    let mut watch = client.watch(named("x")).await.unwrap().into_inner();
    assert_eq!(timeout(DEADLINE, watch.message()).await.unwrap().unwrap().unwrap().status, 3);
    let mut watch = client.watch(named("")).await.unwrap().into_inner();
    assert_eq!(timeout(DEADLINE, watch.message()).await.unwrap().unwrap().unwrap().status, 1);
    served.stop.send(()).unwrap();
    let end = timeout(DEADLINE, watch.message()).await.unwrap().unwrap_err();
    assert_eq!(end.message(), "etcdserver: server stopped");
}

/// A learner may be far behind, and has no say: whoever asks it must be sent on.
#[tokio::test]
async fn a_learner_refuses_streams_locks_elections_and_health() {
    let served = served(FaceConfig::default()).await;
    served.double.is_learner.store(true, Ordering::SeqCst);
    let range = RangeRequest { serializable: true, ..listing() };
    let refused = || async {
        let channel = || served.channel.clone();
        [
            KvClient::new(channel()).range_stream(range.clone()).await.err(),
            LockClient::new(channel()).lock(lock(1)).await.err(),
            ElectionClient::new(channel()).leader(LeaderRequest::default()).await.err(),
            ElectionClient::new(channel()).observe(LeaderRequest::default()).await.err(),
            HealthClient::new(channel()).check(HealthCheckRequest::default()).await.err(),
            MaintenanceClient::new(channel()).hash_kv(HashKvRequest { revision: 0 }).await.err(),
        ]
    };
    let all = || async {
        let is_told = |status: &Option<Status>| {
            status.as_ref().is_some_and(|status| status.message() == "etcdserver: rpc not supported for learner")
        };
        refused().await.iter().all(is_told)
    };
    let waiting = async {
        while !all().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, waiting).await.expect("something is answered by a learner");
}
