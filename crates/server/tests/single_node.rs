//! A single node, end to end: the real binary, real sockets, our generated etcd client and our own
//! commands.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use futures_util::stream;
use serde_json::Value;
use support::{Cluster, http, wait_for, within};
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::mvccpb;

fn put(key: &str, value: &str) -> pb::PutRequest {
    pb::PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() }
}

fn get(key: &str) -> pb::RangeRequest {
    pb::RangeRequest { key: key.to_owned().into(), ..Default::default() }
}

fn watch_create(create: pb::WatchCreateRequest) -> pb::WatchRequest {
    pb::WatchRequest { request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)) }
}

/// The first minute of every user: what was put is there, with the versions etcd clients build on.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_put_is_read_back_with_its_versions() {
    let cluster = Cluster::start(1);
    let mut kv = cluster.nodes[0].kv().await;
    let first = within("put", kv.put(put("k", "1"))).await.unwrap().into_inner().header.unwrap();
    let second = within("put", kv.put(put("k", "2"))).await.unwrap().into_inner().header.unwrap();
    assert_eq!(second.revision, first.revision + 1);

    let answer = within("get", kv.range(get("k"))).await.unwrap().into_inner();
    let item = &answer.kvs[0];
    assert_eq!((item.value.as_ref(), item.version), (&b"2"[..], 2));
    assert_eq!((item.create_revision, item.mod_revision), (first.revision, second.revision));

    let old = pb::RangeRequest { revision: first.revision, ..get("k") };
    let answer = within("get", kv.range(old)).await.unwrap().into_inner();
    assert_eq!(answer.kvs[0].value.as_ref(), b"1");
    assert_eq!(answer.header.unwrap().revision, second.revision);
}

/// Locks and elections of etcd clients are transactions; if both branches could run, or none, two
/// holders would be possible.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_takes_exactly_one_branch() {
    let cluster = Cluster::start(1);
    let take = || pb::TxnRequest {
        compare: vec![pb::Compare {
            key: "lock".into(),
            target: pb::compare::CompareTarget::Create.into(),
            result: pb::compare::CompareResult::Equal.into(),
            target_union: Some(pb::compare::TargetUnion::CreateRevision(0)),
            ..Default::default()
        }],
        success: vec![pb::RequestOp { request: Some(pb::request_op::Request::RequestPut(put("lock", "me"))) }],
        failure: vec![pb::RequestOp { request: Some(pb::request_op::Request::RequestRange(get("lock"))) }],
    };
    let mut kv = cluster.nodes[0].kv().await;
    let first = within("txn", kv.txn(take())).await.unwrap().into_inner();
    let second = within("txn", kv.txn(take())).await.unwrap().into_inner();
    assert!(first.succeeded && !second.succeeded);
    let Some(pb::response_op::Response::ResponseRange(range)) = &second.responses[0].response else {
        panic!("not a range: {second:?}");
    };
    assert_eq!(range.kvs[0].value.as_ref(), b"me");
}

/// W1, W4: a watcher that begins in the past sees history and then the present, in order, without a gap.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_sees_history_then_the_present_in_order() {
    let cluster = Cluster::start(1);
    let mut kv = cluster.nodes[0].kv().await;
    let first = within("put", kv.put(put("w/1", "a"))).await.unwrap().into_inner().header.unwrap().revision;
    within("put", kv.put(put("w/2", "b"))).await.unwrap();

    let create = pb::WatchCreateRequest {
        key: "w/".into(),
        range_end: "w0".into(),
        start_revision: first,
        ..Default::default()
    };
    let requests = stream::iter([watch_create(create)]);
    // Never ending, so that our half of the stream stays open.
    let requests = futures_util::StreamExt::chain(requests, stream::pending());
    let mut watches = cluster.nodes[0].watches().await;
    let mut answers = within("watch", watches.watch(requests)).await.unwrap().into_inner();

    let mut seen = Vec::new();
    let mut sent_live = false;
    while seen.len() < 3 {
        let answer = within("a watch answer", answers.message()).await.unwrap().expect("the stream goes on");
        assert!(!answer.canceled, "{answer:?}");
        for event in &answer.events {
            let item = event.kv.as_ref().unwrap();
            assert_eq!(event.r#type, i32::from(mvccpb::event::EventType::Put));
            seen.push((item.key.to_vec(), item.mod_revision));
        }
        if seen.len() == 2 && !sent_live {
            sent_live = true;
            within("put", kv.put(put("w/3", "c"))).await.unwrap();
        }
    }
    let expected: Vec<(Vec<u8>, i64)> =
        [b"w/1", b"w/2", b"w/3"].iter().zip(first..).map(|(key, revision)| (key.to_vec(), revision)).collect();
    assert_eq!(seen, expected);
}

/// L1: keys of a dead client go away by themselves, and not before their time.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_lease_live_as_long_as_it_and_no_longer() {
    let cluster = Cluster::start(1);
    let mut leases = cluster.nodes[0].leases().await;
    let mut kv = cluster.nodes[0].kv().await;
    let granted =
        within("grant", leases.lease_grant(pb::LeaseGrantRequest { ttl: 2, id: 0 })).await.unwrap().into_inner();
    let granted_at = std::time::Instant::now();
    assert!(granted.id > 0 && granted.ttl >= 2);
    within("put", kv.put(pb::PutRequest { lease: granted.id, ..put("up", "yes") })).await.unwrap();
    loop {
        let there = !within("get", kv.range(get("up"))).await.unwrap().into_inner().kvs.is_empty();
        if !there {
            break;
        }
        assert!(granted_at.elapsed() < support::PATIENCE, "the lease never ended");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(granted_at.elapsed().as_secs_f64() > granted.ttl as f64 - 0.5, "ended after {:?}", granted_at.elapsed());

    let second =
        within("grant", leases.lease_grant(pb::LeaseGrantRequest { ttl: 600, id: 0 })).await.unwrap().into_inner().id;
    within("put", kv.put(pb::PutRequest { lease: second, ..put("up", "yes") })).await.unwrap();
    within("revoke", leases.lease_revoke(pb::LeaseRevokeRequest { id: second })).await.unwrap();
    assert!(within("get", kv.range(get("up"))).await.unwrap().into_inner().kvs.is_empty());
}

/// The promise of a durable store: what was acknowledged survives a power cut.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_a_kill() {
    let mut cluster = Cluster::start(1);
    let mut kv = cluster.nodes[0].kv().await;
    for number in 0..50 {
        within("put", kv.put(put(&format!("k/{number}"), "v"))).await.unwrap();
    }
    let before = within("get", kv.range(get("k/49"))).await.unwrap().into_inner().header.unwrap().revision;
    cluster.nodes[0].kill();
    cluster.nodes[0].start();
    cluster.nodes[0].wait_until_ready();
    let mut kv = cluster.nodes[0].kv().await;
    let all = pb::RangeRequest { range_end: "k0".into(), count_only: true, ..get("k/") };
    let answer = within("get", kv.range(all)).await.unwrap().into_inner();
    assert_eq!((answer.count, answer.header.unwrap().revision), (50, before));
}

/// Our own commands against a real node, with the JSON that scripts read.
#[test]
fn the_commands_do_what_they_say() {
    let cluster = Cluster::start(1);
    let json = |arguments: &[&str]| -> Value { serde_json::from_str(&cluster.run(arguments)).unwrap() };

    cluster.run(&["put", "a/1", "one"]);
    cluster.run(&["put", "a/2", "two"]);
    assert_eq!(cluster.run(&["get", "a/1"]), "a/1\none\n");
    assert_eq!(cluster.run(&["get", "a/2", "--value-only"]), "two\n");
    assert_eq!(cluster.run(&["get", "--prefix", "a/", "--count-only"]), "2\n");
    assert_eq!(cluster.run(&["get", "--prefix", "a/", "--keys-only", "--limit", "1"]), "a/1\n");
    let answer = json(&["get", "--prefix", "a/", "--output", "json"]);
    assert_eq!((&answer["count"], &answer["items"][1]["value"]), (&2.into(), &"two".into()));

    let revision = answer["items"][0]["mod_revision"].as_i64().unwrap();
    let guard = format!("mod(a/1) = {revision}");
    let txn = ["txn", "--if", &guard, "--then", "put a/1 changed", "--else", "get a/1", "--output", "json"];
    assert_eq!(json(&txn)["succeeded"], true);
    let again = json(&txn);
    assert_eq!(again["succeeded"], false);
    assert_eq!(again["answers"][0]["get"]["items"][0]["value"], "changed");

    let from = revision.to_string();
    let watched = cluster.run(&["watch", "--prefix", "a/", "--rev", &from, "--events", "3", "--output", "json"]);
    let changes: Vec<Value> = watched.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        changes.iter().map(|change| change["item"]["value"].as_str().unwrap()).collect::<Vec<_>>(),
        ["one", "two", "changed"]
    );

    let lease = json(&["lease", "grant", "600", "--output", "json"])["id"].as_str().unwrap().to_owned();
    cluster.run(&["put", "a/3", "three", "--lease", &lease]);
    assert_eq!(json(&["lease", "ttl", &lease, "--keys", "--output", "json"])["keys"][0]["key"], "a/3");
    assert!(cluster.run(&["lease", "list"]).contains(&lease));
    cluster.run(&["lease", "keep-alive", &lease, "--once"]);
    cluster.run(&["lease", "revoke", &lease]);
    assert_eq!(json(&["del", "--prefix", "a/", "--output", "json"])["deleted"], 2);
}

/// Load balancers and people act on these answers.
#[test]
fn health_metrics_and_status_tell_about_a_node_that_is_well() {
    let cluster = Cluster::start(1);
    let node = &cluster.nodes[0];
    cluster.run(&["put", "k", "v"]);
    assert!(node.admin_get("/health").unwrap().contains("\"health\":\"true\""));
    assert!(node.admin_get("/livez").is_some());
    let metrics = node.admin_get("/metrics").unwrap();
    assert!(metrics.contains("tidelock_is_leader 1\n") && metrics.contains("tidelock_keys 1\n"), "{metrics}");
    let status: Value = serde_json::from_str(&cluster.run(&["status", "--output", "json"])).unwrap();
    assert_eq!((&status["nodes"][0]["role"], &status["diverged"]), (&"leader".into(), &false.into()));

    // The node tells its name and URLs to the cluster by itself, shortly after it started.
    wait_for("the member to be published", || {
        let members: Value = serde_json::from_str(&cluster.run(&["member", "list", "--output", "json"])).unwrap();
        (members["members"][0]["client_urls"][0] == node.client_url().as_str()).then_some(())
    });
    assert!(node.log().contains("ready to serve client requests"));
}

/// Wrong requests at the admin address are answered with what to do, and change nothing.
#[test]
fn wrong_admin_requests_are_refused_with_a_hint() {
    let cluster = Cluster::start(1);
    let port = cluster.nodes[0].admin_port;
    for (method, path, body, expected) in [
        ("POST", "/v1/members", "{", 400),
        ("POST", "/v1/members", "{\"peer_address\":\"nowhere\"}", 400),
        ("DELETE", "/v1/members/zz", "", 400),
        ("DELETE", "/v1/members/1234", "", 404),
        ("POST", "/v1/leadership", "{\"to\":\"0\"}", 400),
        ("GET", "/v2", "", 404),
    ] {
        let (status, answer) = http(port, method, path, body).unwrap();
        assert_eq!(status, expected, "{method} {path}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert!(!answer["hint"].as_str().unwrap().is_empty(), "{method} {path}: {answer}");
    }
    let members: Value = serde_json::from_str(&cluster.run(&["member", "list", "--output", "json"])).unwrap();
    assert_eq!(members["members"].as_array().unwrap().len(), 1);
}

/// Supervisors stop nodes with SIGTERM; a node that then exits with an error, or hangs, is restarted or
/// killed for no reason.
#[test]
fn a_polite_stop_ends_with_exit_code_0_and_keeps_the_data() {
    let mut cluster = Cluster::start(1);
    cluster.run(&["put", "k", "v"]);
    assert_eq!(cluster.nodes[0].terminate().code(), Some(0));
    cluster.nodes[0].start();
    cluster.nodes[0].wait_until_ready();
    assert_eq!(cluster.run(&["get", "k", "--value-only"]), "v\n");
}
