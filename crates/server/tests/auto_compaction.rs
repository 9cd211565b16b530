//! History that is forgotten by itself.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use support::requests::{get, kv, put};
use support::{Cluster, Process, http, wait_for};
use tidelock_etcd_api::etcdserverpb as pb;
use tonic::Code;

/// Without it a store that is written to all day grows all day. With it old revisions go, at every member, and
/// what is there now stays readable.
#[tokio::test(flavor = "multi_thread")]
async fn old_revisions_are_forgotten_after_the_retention_and_the_newest_stay() {
    let cluster = Cluster::start_with(3, &["--auto-compaction-retention", "2s"]);
    let urls: Vec<String> = cluster.nodes.iter().map(Process::client_url).collect();
    kv(&urls[0]).put(put("k", "old")).await.unwrap();
    let old = kv(&urls[0]).put(put("k", "new")).await.unwrap().into_inner().header.unwrap().revision - 1;
    let at_old = |url: &str| {
        let (url, request) = (url.to_owned(), pb::RangeRequest { revision: old, ..get("k") });
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async { kv(&url).range(request).await })
        })
    };
    assert_eq!(at_old(&urls[1]).unwrap().into_inner().kvs[0].value, "old");
    for url in &urls {
        let forgotten = wait_for("the old revision to be forgotten", || at_old(url).err());
        assert_eq!(forgotten.code(), Code::OutOfRange, "{forgotten}");
        let now = kv(url).range(get("k")).await.unwrap().into_inner();
        assert_eq!(now.kvs[0].value, "new");
    }
    let leader = cluster.wait_for_leader();
    let by_itself = |node: &Process| node.log().contains("compacted by itself");
    assert!(by_itself(&cluster.nodes[leader]), "the leader says what it does");
    assert_eq!(cluster.nodes.iter().filter(|node| by_itself(node)).count(), 1, "only the leader does it");
}

/// Who only takes locks cannot compact. Each cycle here leaves over 4 KB of history: without a bound the quota is used
/// up after some 2,000 of them, and every lock is refused from then on.
#[test]
fn locks_go_on_however_often_they_were_taken() {
    const CYCLES: u64 = 4_000;
    let mut cluster = Cluster::prepare(1, &["--quota-bytes", "8388608"]);
    let port = cluster.nodes[0].serve_native();
    cluster.start_all();
    let post = |path: &str, body: Value| -> Value {
        let (status, text) = http(port, "POST", path, &body.to_string()).expect("an answer");
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    };
    let opened = post("/v1/native/open", json!({ "ttlMs": 600_000 }));
    let (session, data) = (&opened["session"], "AAAA".repeat(1_365));
    for cycle in 0..CYCLES {
        let (first, number) = (2 * cycle + 1, 2 * cycle + 2);
        let acquire =
            json!({ "session": session, "number": first, "acknowledged": first - 1, "name": "busy", "data": data });
        let token = post("/v1/lock/acquire", acquire)["answer"]["place"]["token"].clone();
        let release =
            json!({ "session": session, "number": number, "acknowledged": first, "name": "busy", "token": token });
        post("/v1/lock/release", release);
    }
}
