//! History that is forgotten by itself.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use support::requests::{get, kv, put};
use support::{Cluster, Process, wait_for};
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
