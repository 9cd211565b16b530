//! What clients were told about revisions stays true, whatever the node was doing when it was killed.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use support::requests::{get, kv, put};
use support::{Cluster, wait_for};
use tidelock_etcd_api::etcdserverpb as pb;
use tonic::Code;

const ROUNDS: u64 = 6;
const WRITES_A_ROUND: u64 = 120;

fn serializable() -> pb::RangeRequest {
    pb::RangeRequest { serializable: true, ..get("key") }
}

fn read_at(key: &str, revision: i64) -> pb::RangeRequest {
    pb::RangeRequest { revision, ..get(key) }
}

/// H3: whoever was told a revision or a compaction must find both after a crash in the middle of freeing what was
/// compacted; a revision that goes back makes every cache of it wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h3_a_crash_while_compacting_takes_no_revision_back() {
    let mut cluster = Cluster::start(1);
    let mut compacted = 0;
    for round in 0..ROUNDS {
        let url = cluster.nodes[0].client_url();
        let mut client = kv(&url);
        let mut told = 0;
        for number in 0..WRITES_A_ROUND {
            let value = format!("{round}.{number}");
            let answer = client.put(put(format!("key/{}", number % 7), value)).await.unwrap().into_inner();
            told = answer.header.unwrap().revision;
        }
        let wanted = told - 10;
        let mut compacting = kv(&url);
        let compaction = tokio::spawn(async move {
            compacting.compact(pb::CompactionRequest { revision: wanted, physical: true }).await.is_ok()
        });
        // From before the compaction is agreed on until after it is done.
        tokio::time::sleep(Duration::from_millis(round * 3)).await;
        cluster.nodes[0].kill();
        if compaction.await.unwrap() {
            compacted = wanted;
        }
        cluster.nodes[0].start();
        cluster.nodes[0].wait_until_ready();

        let mut client = kv(&cluster.nodes[0].client_url());
        let now = client.range(get("key/0")).await.unwrap().into_inner();
        assert!(now.header.unwrap().revision >= told, "round {round}: the revision went back");
        let last =
            client.range(read_at(&format!("key/{}", (WRITES_A_ROUND - 1) % 7), told)).await.unwrap().into_inner();
        assert_eq!(last.kvs[0].value, format!("{round}.{}", WRITES_A_ROUND - 1));
        if compacted > 0 {
            let gone = client.range(read_at("key/0", compacted - 1)).await.unwrap_err();
            assert_eq!(gone.code(), Code::OutOfRange, "round {round}: what was compacted came back");
        }
    }
}

/// H14: a client of one member keeps what it read by revision: a member that comes back must not answer, not even
/// from local data alone, with less than it had answered before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h14_what_one_member_tells_never_goes_back_over_its_restarts() {
    let mut cluster = Cluster::start(3);
    let mut told = 0;
    for round in 0..ROUNDS {
        let writer = usize::try_from(round % 2).unwrap();
        let mut client = kv(&cluster.nodes[writer].client_url());
        for number in 0..40 {
            client.put(put("key", format!("{round}.{number}"))).await.unwrap();
        }
        let mut local = kv(&cluster.nodes[2].client_url());
        let before = local.range(serializable()).await.unwrap().into_inner().header.unwrap().revision;
        assert!(before >= told, "round {round}: {before} after {told}");
        cluster.nodes[2].kill();
        cluster.nodes[2].start();
        cluster.nodes[2].wait_until_ready();
        let mut local = kv(&cluster.nodes[2].client_url());
        told = local.range(serializable()).await.unwrap().into_inner().header.unwrap().revision;
        assert!(told >= before, "round {round}: {told} after {before}, which was read before the restart");
    }
}

/// H14: a member that comes back and finds nobody cannot know how much it had shown. It says so instead of showing what
/// may be less; it is not taken for dead, and members can be listed, since that is when people look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h14_a_member_that_comes_back_alone_shows_no_keys_rather_than_old_ones() {
    let mut cluster = Cluster::start(3);
    kv(&cluster.nodes[2].client_url()).put(put("key", "value")).await.unwrap();
    cluster.nodes.iter_mut().for_each(support::Process::kill);
    cluster.nodes[2].start();
    wait_for("the node to live", || cluster.nodes[2].admin_get("/livez"));
    let refused = kv(&cluster.nodes[2].client_url()).range(serializable()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert_eq!(cluster.nodes[2].admin_get("/readyz"), None);
    assert!(cluster.nodes[2].admin_get("/v1/members").is_some());

    cluster.nodes[1].start();
    cluster.nodes[2].wait_until_ready();
    let shown = kv(&cluster.nodes[2].client_url()).range(serializable()).await.unwrap().into_inner();
    assert_eq!(shown.kvs[0].value, "value");
}
