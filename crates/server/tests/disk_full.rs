//! A full disk (H18): writes that need room are refused in etcd's words, everything else goes on, nothing
//! acknowledged is lost, and it ends without a restart. Needs root for a small file system; where that is
//! not to be had the tests say so and pass.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Instant;

use support::requests::{get_all, kv, put};
use support::small_disk::SmallDisk;
use support::until::until;
use support::{Cluster, PATIENCE, within};
use tidelock_etcd_api::etcdserverpb as pb;
use tonic::Code;

/// The disk, and what the test itself takes of it. A node refuses writes below 64 MiB of free space and
/// keeps two segments of 16 MiB, so some 50 MiB of writes fit.
const DISK_MIB: usize = 224;
const BALLAST_MIB: usize = 80;
const VALUE_BYTES: usize = 256 << 10;
/// etcd's words, which its clients and operators know.
const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";

/// A started node on a small disk, or `None` after saying why there is none.
fn small() -> Option<(Cluster, SmallDisk)> {
    match Cluster::on_small_disk(DISK_MIB, BALLAST_MIB) {
        Ok((mut cluster, disk)) => {
            cluster.nodes[0].start();
            cluster.nodes[0].wait_until_ready();
            Some((cluster, disk))
        }
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

fn value(number: usize) -> Vec<u8> {
    (0..VALUE_BYTES).map(|at| (at * 31 + number * 7) as u8).collect()
}

/// Writes under `prefix` until that is refused; tells how many were acknowledged. Anything but the
/// refusal is a failure.
async fn fill(url: &str, prefix: &str) -> usize {
    let mut node = kv(url);
    let begun = Instant::now();
    for number in 0.. {
        match node.put(put(format!("{prefix}{number:05}"), value(number))).await {
            Ok(_) => assert!(begun.elapsed() < PATIENCE, "{number} writes and still not full"),
            Err(status) => {
                assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, NO_SPACE));
                return number;
            }
        }
    }
    unreachable!("the loop has no other end")
}

/// Checks that exactly the keys of these numbers are under `prefix`, with their values.
async fn check_there(url: &str, prefix: &str, numbers: std::ops::Range<usize>) {
    let keys = pb::RangeRequest { keys_only: true, ..get_all(prefix) };
    let found = within("a listing", kv(url).range(keys)).await.unwrap().into_inner().kvs;
    let expected: Vec<String> = numbers.clone().map(|number| format!("{prefix}{number:05}")).collect();
    let found: Vec<String> = found.iter().map(|item| String::from_utf8(item.key.to_vec()).unwrap()).collect();
    assert_eq!(found, expected);
    for number in numbers {
        let key = support::requests::get(format!("{prefix}{number:05}"));
        let found = within("a get", kv(url).range(key)).await.unwrap().into_inner();
        assert!(found.kvs[0].value == value(number), "the value of {number} is not what was written");
    }
}

/// Deletes the numbers from `range.start` on; tells the revision after that.
async fn delete(url: &str, prefix: &str, range: std::ops::Range<usize>) -> i64 {
    let request = pb::DeleteRangeRequest {
        key: format!("{prefix}{:05}", range.start).into(),
        range_end: format!("{prefix}{:05}", range.end).into(),
        ..Default::default()
    };
    let answer = within("a delete", kv(url).delete_range(request)).await.unwrap().into_inner();
    assert_eq!(answer.deleted, range.len() as i64);
    answer.header.unwrap().revision
}

async fn compact(url: &str, revision: i64) {
    let request = pb::CompactionRequest { revision, physical: false };
    within("a compaction", kv(url).compact(request)).await.unwrap();
}

async fn until_writable(url: &str) {
    until("writes to be taken again", async || kv(url).put(put("after", "room")).await.ok()).await;
}

/// Somebody else fills the disk and cleans up later. Meanwhile the service stays up for everything that
/// needs no room, and afterwards nobody has to restart it.
#[tokio::test(flavor = "multi_thread")]
async fn h18_a_full_disk_refuses_writes_keeps_serving_and_recovers_without_a_restart() {
    let Some((mut cluster, disk)) = small() else { return };
    let url = cluster.nodes[0].client_url();
    let written = fill(&url, "f/").await;
    assert!(written > 50, "only {written} writes fitted, which is no test");
    assert!(cluster.nodes[0].status().unwrap()["disk_full"].as_bool().unwrap());

    // Worse than refusing: not a single byte is left.
    disk.fill_with_ballast();
    check_there(&url, "f/", 0..written).await;
    let kept = written / 2;
    let revision = delete(&url, "f/", kept..written).await;
    compact(&url, revision).await;
    let refused = kv(&url).put(put("no", "room")).await.unwrap_err();
    assert_eq!(refused.message(), NO_SPACE);
    check_there(&url, "f/", 0..kept).await;

    // Starting on a full disk must work too: how else would anybody clean up?
    cluster.nodes[0].kill();
    cluster.nodes[0].start();
    cluster.nodes[0].wait_until_ready();
    check_there(&url, "f/", 0..kept).await;

    disk.drop_ballast();
    until_writable(&url).await;
    check_there(&url, "f/", 0..kept).await;
    assert!(!cluster.nodes[0].status().unwrap()["disk_full"].as_bool().unwrap());
    cluster.nodes[0].kill();
    cluster.nodes[0].start();
    cluster.nodes[0].wait_until_ready();
    check_there(&url, "f/", 0..kept).await;
}

/// Nobody else can free space when the store itself took it. Deleting and compacting, which is what
/// operators of etcd do then, must be enough.
#[tokio::test(flavor = "multi_thread")]
async fn h18_deleting_and_compacting_makes_room_on_a_disk_the_store_itself_filled() {
    let Some((mut cluster, _disk)) = small() else { return };
    let url = cluster.nodes[0].client_url();
    let written = fill(&url, "f/").await;
    let revision = delete(&url, "f/", 1..written).await;
    compact(&url, revision).await;
    until_writable(&url).await;
    check_there(&url, "f/", 0..1).await;
    cluster.nodes[0].kill();
    cluster.nodes[0].start();
    cluster.nodes[0].wait_until_ready();
    check_there(&url, "f/", 0..1).await;
}

/// Clients of the flood, and what each writes.
const FLOOD_CLIENTS: usize = 24;
const FLOOD_VALUE_BYTES: usize = 1 << 20;

/// Many large writes at once must not fill the disk to the last byte before anybody looks: a write that
/// then waits for room would hold up the very deletions that make room.
#[tokio::test(flavor = "multi_thread")]
async fn h18_a_flood_of_large_writes_leaves_the_room_that_deleting_needs() {
    let Some((cluster, _disk)) = small() else { return };
    let url = cluster.nodes[0].client_url();
    let flood: Vec<_> = (0..FLOOD_CLIENTS)
        .map(|client| {
            let mut node = kv(&url);
            tokio::spawn(async move {
                let begun = Instant::now();
                for number in 0.. {
                    let request = put(format!("f/{client}/{number}"), vec![client as u8; FLOOD_VALUE_BYTES]);
                    if let Err(status) = node.put(request).await {
                        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, NO_SPACE));
                        return number;
                    }
                    assert!(begun.elapsed() < PATIENCE, "{number} writes and still not full");
                }
                unreachable!("the loop has no other end")
            })
        })
        .collect();
    let mut written = 0;
    for client in flood {
        written += client.await.unwrap();
    }
    let request = support::requests::delete_all("f/");
    let answer = within("a delete", kv(&url).delete_range(request)).await.unwrap().into_inner();
    assert_eq!(answer.deleted, written as i64);
    compact(&url, answer.header.unwrap().revision).await;
    until_writable(&url).await;
}

/// What a node writes between two of its restarts; far less than calls for a snapshot.
const LIFE_WRITES: usize = 20;
const LIVES: usize = 5;

/// A node that is restarted every day must still come to take a snapshot, or its journal grows for ever
/// and every start takes longer than the last.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_restarts_often_still_comes_to_trim_its_journal() {
    let mut cluster = Cluster::start(1);
    let url = cluster.nodes[0].client_url();
    for life in 0..LIVES {
        for number in 0..LIFE_WRITES {
            let request = put(format!("f/{number}"), vec![life as u8; FLOOD_VALUE_BYTES]);
            within("a put", kv(&url).put(request)).await.unwrap();
        }
        cluster.nodes[0].kill();
        cluster.nodes[0].start();
        cluster.nodes[0].wait_until_ready();
    }
    support::wait_for("a snapshot", || cluster.nodes[0].log().contains("took a snapshot").then_some(()));
}
