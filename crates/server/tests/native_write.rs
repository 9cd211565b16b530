//! Writes into the cluster's own keys under the token of a lock, at real nodes: who lost the lock writes nothing, and
//! clients of etcd see what the new holder wrote.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use support::requests::{get, kv, put};
use support::{Cluster, http, within};

/// "ledger" and "draft", as JSON has bytes.
const LEDGER: &str = "bGVkZ2Vy";
const DRAFT: &str = "ZHJhZnQ=";

fn post(port: u16, path: &str, body: &Value) -> (u16, Value) {
    let (status, text) = http(port, "POST", path, &body.to_string()).expect("an answer");
    (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path}: {text}")))
}

fn open(port: u16, ttl_ms: u32) -> String {
    let (status, answer) = post(port, "/v1/native/open", &json!({ "ttlMs": ttl_ms }));
    assert_eq!(status, 200, "{answer}");
    answer["session"].as_str().unwrap().to_owned()
}

/// Takes the lock, waiting for it if need be: its token.
fn acquire(port: u16, session: &str) -> String {
    let body = json!({ "session": session, "number": 1, "name": "ledger" });
    let (status, answer) = post(port, "/v1/lock/acquire?wait_ms=60000", &body);
    assert_eq!(status, 200, "{answer}");
    answer["answer"]["place"]["token"].as_str().unwrap().to_owned()
}

fn write(session: &str, number: u64, kind: &str, token: &str, value: &str) -> Value {
    json!({
        "session": session,
        "number": number,
        "guards": [{ "kind": kind, "name": "ledger", "token": token }],
        "puts": [{ "key": LEDGER, "value": value }],
        "deletes": [DRAFT],
    })
}

async fn value(cluster: &Cluster, key: &str) -> Option<Vec<u8>> {
    let answer = within("a read", kv(&cluster.nodes[0].client_url()).range(get(key))).await.unwrap().into_inner();
    answer.kvs.first().map(|found| found.value.to_vec())
}

/// K3, K4, K6: a holder that was paused past its time wakes up and writes. Whichever way it shows its token, nothing
/// of its write may be there: neither the put nor the delete.
#[tokio::test]
async fn a_paused_holder_writes_nothing_after_the_next_one_wrote() {
    let (cluster, ports) = Cluster::start_native(1);
    let port = ports[0];
    within("a put", kv(&cluster.nodes[0].client_url()).put(put("draft", "1"))).await.unwrap();
    // Its client is not heard of again until its session is over.
    let paused = open(port, 1_000);
    let old = acquire(port, &paused);
    let next = open(port, 60_000);
    let new = acquire(port, &next);
    let (status, answer) = post(port, "/v1/keys/write", &write(&next, 3, "LOCK", &new, "bmV3"));
    assert_eq!((status, answer["answer"]["done"].is_object()), (200, true), "{answer}");
    assert_eq!(value(&cluster, "draft").await, None);
    within("a put", kv(&cluster.nodes[0].client_url()).put(put("draft", "2"))).await.unwrap();
    let (status, answer) = post(port, "/v1/keys/write", &write(&next, 4, "FENCE", &new, "bmV3"));
    assert_eq!(status, 200, "{answer}");
    within("a put", kv(&cluster.nodes[0].client_url()).put(put("draft", "3"))).await.unwrap();
    let helper = open(port, 60_000);
    for (session, number, kind, code) in
        [(&paused, 2, "LOCK", "UNKNOWN_SESSION"), (&helper, 1, "LOCK", "STALE_TOKEN"), (&helper, 2, "FENCE", "FENCED")]
    {
        let (status, answer) = post(port, "/v1/keys/write", &write(session, number, kind, &old, "b2xk"));
        let told = (status, answer["code"].as_str(), answer["family"].as_str());
        assert_eq!(told, (409, Some(code), Some("LOST")), "{answer}");
    }
    let (_, answer) = post(port, "/v1/keys/write", &write(&helper, 3, "LOCK", &new, "b2xk"));
    assert_eq!(answer["code"], "NOT_HOLDER", "{answer}");
    assert_eq!(value(&cluster, "ledger").await.as_deref(), Some(&b"new"[..]));
    assert_eq!(value(&cluster, "draft").await.as_deref(), Some(&b"3"[..]));
}

/// H25: a write whose answer was lost is asked again at another node, after somebody else changed the key. It must get
/// its first answer and must not put the old value back.
#[tokio::test]
async fn a_write_that_is_asked_again_at_another_node_happens_once() {
    let (cluster, ports) = Cluster::start_native(3);
    let session = open(ports[0], 60_000);
    let token = acquire(ports[0], &session);
    let body = write(&session, 3, "LOCK", &token, "Zmlyc3Q=");
    let (status, first) = post(ports[0], "/v1/keys/write", &body);
    assert_eq!(status, 200, "{first}");
    within("a put", kv(&cluster.nodes[0].client_url()).put(put("ledger", "second"))).await.unwrap();
    for port in &ports {
        let (status, again) = post(*port, "/v1/keys/write", &body);
        assert_eq!((status, &again["answer"]), (200, &first["answer"]), "{again}");
        assert_eq!(again["header"]["revision"], first["header"]["revision"]);
    }
    assert_eq!(value(&cluster, "ledger").await.as_deref(), Some(&b"second"[..]));
}

/// What a client gets wrong is told in words, and costs nobody anything.
#[test]
fn a_write_that_is_too_large_or_says_nothing_is_refused() {
    let (_cluster, ports) = Cluster::start_native(1);
    let session = open(ports[0], 60_000);
    let token = acquire(ports[0], &session);
    let guard = json!([{ "kind": "LOCK", "name": "ledger", "token": token }]);
    let put = |bytes: usize| json!([{ "key": LEDGER, "value": "AAAA".repeat(bytes / 3) }]);
    let many: Vec<&str> = vec![LEDGER; 129];
    for (guards, puts, deletes, code) in [
        (json!([]), put(3), json!([]), "BAD_WRITE"),
        (guard.clone(), json!([]), json!([]), "BAD_WRITE"),
        (guard.clone(), put(51_000), json!([]), "BAD_WRITE"),
        (guard.clone(), put(120_000), json!([]), "BODY_TOO_LARGE"),
        (guard.clone(), put(3), json!([LEDGER]), "BAD_WRITE"),
        (guard.clone(), json!([]), json!(many), "BAD_WRITE"),
        (guard.clone(), json!([]), json!([""]), "BAD_WRITE"),
        (json!([{ "kind": "COUNTER", "name": "n", "token": 1 }]), put(3), json!([]), "BAD_WRITE"),
        (json!([{ "name": "n", "token": 1 }]), put(3), json!([]), "BAD_KIND"),
    ] {
        let body = json!({ "session": session, "number": 3, "guards": guards, "puts": puts, "deletes": deletes });
        let (status, answer) = post(ports[0], "/v1/keys/write", &body);
        assert!((400..=413).contains(&status) && answer["code"] == code, "{code}: {status} {answer}");
    }
}
