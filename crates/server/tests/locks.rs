//! Locks and elections that the server waits for, over a real cluster: who gets them, when, and who must
//! not (H9, K1).

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use support::requests::{channel, get_all, kv, leases};
use support::{Cluster, PATIENCE, within};
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::v3electionpb as elections;
use tidelock_etcd_api::v3electionpb::election_client::ElectionClient;
use tidelock_etcd_api::v3lockpb::lock_client::LockClient;
use tidelock_etcd_api::v3lockpb::{LockRequest, LockResponse, UnlockRequest};
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Longer than any test: these leases do not expire.
const LONG_S: i64 = 600;
/// The shortest there is.
const SHORT_S: i64 = 1;

async fn grant(url: &str, ttl: i64) -> i64 {
    let granted = leases(url).lease_grant(pb::LeaseGrantRequest { ttl, id: 0 }).await;
    granted.unwrap().into_inner().id
}

/// A client whose calls may wait as long as a test does.
fn patient(url: &str) -> Channel {
    Channel::from_shared(url.to_owned()).unwrap().timeout(PATIENCE).connect_lazy()
}

/// Waits for the lock in the background.
fn lock(url: &str, lease: i64) -> JoinHandle<Result<LockResponse, Status>> {
    let mut client = LockClient::new(patient(url));
    let request = LockRequest { name: "jobs".into(), lease };
    tokio::spawn(async move { client.lock(request).await.map(tonic::Response::into_inner) })
}

async fn unlock(url: &str, held: &LockResponse) {
    LockClient::new(channel(url)).unlock(UnlockRequest { key: held.key.clone() }).await.unwrap();
}

/// The keys under `prefix`.
async fn keys(url: &str, prefix: &str) -> Vec<pb::RangeResponse> {
    vec![kv(url).range(get_all(prefix)).await.unwrap().into_inner()]
}

/// Waits until so many stand in the line of the lock.
async fn wait_for_line(url: &str, length: usize) {
    let waiting = async {
        while keys(url, "jobs/").await[0].kvs.len() != length {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(&format!("a line of {length}"), waiting).await;
}

async fn told(waiting: JoinHandle<Result<LockResponse, Status>>) -> Result<LockResponse, Status> {
    within("word about the lock", waiting).await.unwrap()
}

/// K1: one holder at a time, first come first served, whichever nodes they ask.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_handed_over_in_the_order_of_asking_across_nodes() {
    let cluster = Cluster::start(3);
    let urls: Vec<String> = cluster.nodes.iter().map(support::Process::client_url).collect();
    let mut waiting = Vec::new();
    for (at, url) in urls.iter().enumerate() {
        let lease = grant(url, LONG_S).await;
        waiting.push(lock(url, lease));
        wait_for_line(&urls[0], at + 1).await;
    }
    let mut last_revision = 0;
    for (at, next) in waiting.into_iter().enumerate() {
        let held = told(next).await.unwrap();
        let line = keys(&urls[at], "jobs/").await.remove(0);
        let first = line.kvs.iter().min_by_key(|kv| kv.create_revision).unwrap();
        assert_eq!((&first.key, line.kvs.len()), (&held.key, 3 - at), "the holder is the first in line");
        let revision = held.header.unwrap().revision;
        assert!(revision > last_revision, "a later hold has a greater revision");
        last_revision = revision;
        unlock(&urls[(at + 1) % 3], &held).await;
    }
}

/// Locking twice under one lease is one hold: a client that repeats a call whose answer got lost must not
/// wait for itself.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_lease_takes_the_same_lock_again_at_once() {
    let cluster = Cluster::start(1);
    let url = cluster.nodes[0].client_url();
    let lease = grant(&url, LONG_S).await;
    let first = told(lock(&url, lease)).await.unwrap();
    assert_eq!(told(lock(&url, lease)).await.unwrap().key, first.key);
    assert_eq!(first.key, format!("jobs/{lease:x}"));
    // Without a lease the server grants one, and the key is its.
    unlock(&url, &first).await;
    let held = told(lock(&url, 0)).await.unwrap();
    let line = keys(&url, "jobs/").await.remove(0);
    assert_eq!(held.key, format!("jobs/{:x}", line.kvs[0].lease));
}

/// H9: whoever waits under a lease that runs out has lost its place. Telling it that it holds the lock, as
/// etcd once did, lets two work at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn h9_a_waiter_whose_lease_expires_gets_an_error_and_the_next_one_gets_the_lock() {
    let cluster = Cluster::start(1);
    let url = cluster.nodes[0].client_url();
    let holder = told(lock(&url, grant(&url, LONG_S).await)).await.unwrap();
    let waiter = lock(&url, grant(&url, SHORT_S).await);
    wait_for_line(&url, 2).await;
    let last = lock(&url, grant(&url, LONG_S).await);
    let status = told(waiter).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unknown, "mutex: session is expired"));
    wait_for_line(&url, 2).await;
    assert!(!last.is_finished(), "the lock is still held");
    unlock(&url, &holder).await;
    told(last).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_lease_expires_loses_the_lock_to_the_waiter() {
    let cluster = Cluster::start(3);
    let urls: Vec<String> = cluster.nodes.iter().map(support::Process::client_url).collect();
    let holder = told(lock(&urls[0], grant(&urls[0], SHORT_S).await)).await.unwrap();
    let next = told(lock(&urls[1], grant(&urls[1], LONG_S).await)).await.unwrap();
    assert_ne!(next.key, holder.key);
    let line = keys(&urls[2], "jobs/").await.remove(0);
    assert_eq!(line.kvs.iter().map(|kv| kv.key.clone()).collect::<Vec<_>>(), [next.key]);
}

/// A client that gave up would hold the lock without knowing, for as long as its lease lives.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_gives_up_leaves_the_line() {
    let cluster = Cluster::start(1);
    let url = cluster.nodes[0].client_url();
    let holder = told(lock(&url, grant(&url, LONG_S).await)).await.unwrap();
    let waiter = lock(&url, grant(&url, LONG_S).await);
    wait_for_line(&url, 2).await;
    waiter.abort();
    wait_for_line(&url, 1).await;
    unlock(&url, &holder).await;
    wait_for_line(&url, 0).await;
    let unknown = lock(&url, 12345);
    let status = told(unknown).await.unwrap_err();
    assert_eq!(status.message(), "etcdserver: requested lease not found");
}

/// The leader of the cluster dies while someone waits: the wait goes on, it does not fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_survives_the_loss_of_the_leader() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_leader();
    let url = cluster.nodes[(leader + 1) % 3].client_url();
    let holder = told(lock(&url, grant(&url, LONG_S).await)).await.unwrap();
    let waiter = lock(&url, grant(&url, LONG_S).await);
    wait_for_line(&url, 2).await;
    cluster.nodes[leader].kill();
    cluster.wait_for_leader();
    unlock(&url, &holder).await;
    told(waiter).await.unwrap();
}

fn campaign(lease: i64, value: &str) -> elections::CampaignRequest {
    elections::CampaignRequest { name: "boss".into(), lease, value: value.to_owned().into() }
}

type Leaders = tonic::Streaming<elections::LeaderResponse>;

async fn next_leader(leaders: &mut Leaders) -> (Vec<u8>, Vec<u8>) {
    let leader = within("a leader", leaders.message()).await.unwrap().expect("the stream goes on");
    let kv = leader.kv.unwrap();
    (kv.key.to_vec(), kv.value.to_vec())
}

/// Observers are told every leader and every word of it, in order; a deposed leader can neither speak nor
/// depose any more.
#[tokio::test(flavor = "multi_thread")]
async fn an_election_is_observed_from_the_first_leader_to_the_next() {
    let cluster = Cluster::start(3);
    let urls: Vec<String> = cluster.nodes.iter().map(support::Process::client_url).collect();
    let mut client = ElectionClient::new(patient(&urls[0]));
    let who = || elections::LeaderRequest { name: "boss".into() };
    let status = client.leader(who()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unknown, "election: no leader"));
    let mut observer = ElectionClient::new(Channel::from_shared(urls[2].clone()).unwrap().connect_lazy());
    let mut leaders = observer.observe(who()).await.unwrap().into_inner();

    let [one, two] = [grant(&urls[0], LONG_S).await, grant(&urls[1], LONG_S).await];
    let first = client.campaign(campaign(one, "one")).await.unwrap().into_inner().leader.unwrap();
    assert_eq!((first.key.clone(), first.lease), (format!("boss/{one:x}").into(), one));
    assert_eq!(next_leader(&mut leaders).await, (first.key.to_vec(), b"one".to_vec()));
    let mut other = ElectionClient::new(patient(&urls[1]));
    let second = tokio::spawn(async move { other.campaign(campaign(two, "two")).await });

    let proclaim =
        |value: &str| elections::ProclaimRequest { leader: Some(first.clone()), value: value.to_owned().into() };
    client.proclaim(proclaim("still one")).await.unwrap();
    assert_eq!(next_leader(&mut leaders).await, (first.key.to_vec(), b"still one".to_vec()));
    let led = client.leader(who()).await.unwrap().into_inner().kv.unwrap();
    assert_eq!(&led.value[..], b"still one");
    // Campaigning again keeps the place and changes the value.
    let again = client.campaign(campaign(one, "one again")).await.unwrap().into_inner().leader.unwrap();
    assert_eq!(again.rev, first.rev);
    assert_eq!(next_leader(&mut leaders).await.1, b"one again");
    assert!(!second.is_finished());

    let resign = elections::ResignRequest { leader: Some(first.clone()) };
    client.resign(resign.clone()).await.unwrap();
    let second = within("the second leader", second).await.unwrap().unwrap().into_inner().leader.unwrap();
    assert_eq!(next_leader(&mut leaders).await, (second.key.to_vec(), b"two".to_vec()));
    let status = client.proclaim(proclaim("no more")).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unknown, "election: not leader"));
    client.resign(resign).await.unwrap();
    assert_eq!(client.leader(who()).await.unwrap().into_inner().kv.unwrap().key, second.key);
    let status = client.resign(elections::ResignRequest { leader: None }).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unknown, "\"leader\" field must be provided"));
}

/// H9, for elections: a candidate whose lease ran out while it waited must not believe that it leads.
#[tokio::test(flavor = "multi_thread")]
async fn h9_a_candidate_whose_lease_expires_is_not_elected() {
    let cluster = Cluster::start(1);
    let url = cluster.nodes[0].client_url();
    let mut client = ElectionClient::new(patient(&url));
    client.campaign(campaign(grant(&url, LONG_S).await, "one")).await.unwrap();
    let status = client.campaign(campaign(grant(&url, SHORT_S).await, "two")).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unknown, "election: not leader"));
}
