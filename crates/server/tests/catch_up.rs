//! Nodes that were away, or are new, catch up while the others serve: from the log if it reaches back
//! far enough, from a snapshot if not. Either way they end up with the same state (R5), and what they
//! then say from their own copy is right.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use support::requests::{get_all, kv, put, put_together};
use support::watcher::Watcher;
use support::writers::{WRITTEN, Writers, everything};
use support::{Cluster, Process, wait_for, within};
use tidelock_etcd_api::etcdserverpb as pb;

const WRITES: usize = 100_000;
/// Clients that share the writing, and puts in each of their transactions.
const CLIENTS: usize = 8;
const PUTS_PER_TXN: usize = 125;
/// What a node logs when it was sent a snapshot instead of entries.
const GOT_SNAPSHOT: &str = "installed a snapshot from the leader";

/// Writes [`WRITES`] keys under `bulk/`.
async fn write_bulk(url: &str) {
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let mut node = kv(url);
            tokio::spawn(async move {
                for txn in 0..WRITES / CLIENTS / PUTS_PER_TXN {
                    let key = |part| put(format!("bulk/{client}/{txn}/{part}"), format!("value {part}"));
                    within("a txn", node.txn(put_together((0..PUTS_PER_TXN).map(key)))).await.unwrap();
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
}

/// How many keys a node has under a prefix, from its own copy, whatever the others have.
async fn count_locally(node: &Process, prefix: &str) -> i64 {
    let request = pb::RangeRequest { serializable: true, count_only: true, ..get_all(prefix) };
    within("a local count", kv(&node.client_url()).range(request)).await.unwrap().into_inner().count
}

fn is_voter(cluster: &Cluster, name: &str) -> bool {
    let members = cluster.nodes[0].admin_get("/v1/members").unwrap();
    let members: serde_json::Value = serde_json::from_str(&members).unwrap();
    let mut members = members["members"].as_array().unwrap().iter();
    members.any(|member| member["name"] == name && member["role"] == "voter")
}

/// A machine is rebooted, a rack loses its network: the node must not need a copy of everything for
/// that, and a watcher that waits at it must not miss what happened meanwhile (W3).
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_missed_100_000_writes_catches_up_from_the_log() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_leader();
    let away = (leader + 1) % 3;
    let back_url = [cluster.nodes[away].client_url()];
    let watcher = Watcher::start(&back_url, "marks/", 2);
    cluster.nodes[away].kill();
    let url = cluster.nodes[leader].client_url();
    within("a put", kv(&url).put(put("marks/before", ""))).await.unwrap();
    write_bulk(&url).await;
    within("a put", kv(&url).put(put("marks/after", ""))).await.unwrap();

    cluster.nodes[away].start();
    cluster.nodes[away].wait_until_ready();
    cluster.wait_until_replicas_agree();
    assert_eq!(count_locally(&cluster.nodes[away], "bulk/").await, WRITES as i64);
    assert!(!cluster.nodes[away].log().contains(GOT_SNAPSHOT), "the log was enough, but a snapshot was sent");
    let seen: Vec<String> = watcher.finish().await.into_iter().map(|seen| seen.key).collect();
    assert_eq!(seen, ["marks/before", "marks/after"]);
}

/// Growing a cluster, or replacing a lost disk, must not interrupt anybody: the snapshot is taken and
/// sent while clients write, and what they write meanwhile arrives after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_an_empty_disk_catches_up_from_a_snapshot_while_clients_write() {
    let mut cluster = Cluster::start(3);
    let urls = cluster.client_urls();
    write_bulk(&urls[0]).await;
    let writers = Writers::start(&urls, 4);
    writers.wait_for_more(50);
    cluster.add_joining("d").start();
    cluster.nodes[3].wait_until_ready();
    wait_for("the new node to vote", || is_voter(&cluster, "d").then_some(()));
    writers.wait_for_more(50);
    let history = writers.finish().await;

    cluster.wait_until_replicas_agree();
    assert!(cluster.nodes[3].log().contains(GOT_SNAPSHOT));
    assert_eq!(count_locally(&cluster.nodes[3], "bulk/").await, WRITES as i64);
    let there = everything(&cluster.nodes[3].client_url(), WRITTEN).await;
    history.check(&there);
    assert_eq!(history.errors(), Vec::<&String>::new(), "a node that joins disturbs nobody");
    assert_eq!(count_locally(&cluster.nodes[3], WRITTEN).await, there.len() as i64);
}

/// Value size with which a snapshot is due every 64 writes or so; the second lets the log go that the
/// first one covers.
const TRIM_VALUE_BYTES: usize = 1 << 20;
const TRIM_CLIENTS: usize = 2;

/// Whether a node has given up the beginning of its log.
fn is_trimmed(node: &Process) -> bool {
    let mut files = std::fs::read_dir(node.data_dir()).unwrap();
    !files.any(|file| file.unwrap().file_name().to_string_lossy().starts_with("segment-0000000000000001-"))
}

/// A node that was away for longer than the log reaches back has state, log and watchers of its own when
/// the snapshot arrives. All of it must move on together: nothing old may shine through (R6), and a
/// watcher that asks for what happened meanwhile gets it from history, not silence (W3, W8, H5).
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_away_for_longer_than_the_log_reaches_back_gets_a_snapshot() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_leader();
    let (away, stays) = ((leader + 1) % 3, (leader + 2) % 3);
    let url = cluster.nodes[leader].client_url();
    within("a put", kv(&url).put(put("old/deleted-meanwhile", "old"))).await.unwrap();
    cluster.wait_until_replicas_agree();
    cluster.nodes[away].kill();
    within("a put", kv(&url).put(put("marks/before", ""))).await.unwrap();
    within("a delete", kv(&url).delete_range(support::requests::delete_all("old/"))).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writing: Vec<_> =
        (0..TRIM_CLIENTS).map(|client| tokio::spawn(overwrite(url.clone(), client, stop.clone()))).collect();
    wait_for("the log to be trimmed", || {
        (is_trimmed(&cluster.nodes[leader]) && is_trimmed(&cluster.nodes[stays])).then_some(())
    });
    stop.store(true, Ordering::Relaxed);
    for task in writing {
        task.await.unwrap();
    }
    within("a put", kv(&url).put(put("marks/after", ""))).await.unwrap();

    cluster.nodes[away].start();
    cluster.nodes[away].wait_until_ready();
    cluster.wait_until_replicas_agree();
    assert!(cluster.nodes[away].log().contains(GOT_SNAPSHOT));
    assert_eq!(count_locally(&cluster.nodes[away], "old/").await, 0, "R6: what was deleted is back");
    assert_eq!(count_locally(&cluster.nodes[away], "over/").await, (TRIM_CLIENTS * OVERWRITTEN) as i64);
    let watcher = Watcher::start(&[cluster.nodes[away].client_url()], "marks/", 2);
    let seen: Vec<String> = watcher.finish().await.into_iter().map(|seen| seen.key).collect();
    assert_eq!(seen, ["marks/before", "marks/after"]);

    // What it got is durable: it comes back by itself, at the same place.
    cluster.nodes[away].kill();
    cluster.nodes[away].start();
    cluster.nodes[away].wait_until_ready();
    cluster.wait_until_replicas_agree();
}

/// Keys each client writes over and over: much log, little state.
const OVERWRITTEN: usize = 5;

async fn overwrite(url: String, client: usize, stop: Arc<AtomicBool>) {
    let mut node = kv(&url);
    for number in 0.. {
        let key = format!("over/{client}/{}", number % OVERWRITTEN);
        within("a put", node.put(put(key, vec![b'x'; TRIM_VALUE_BYTES]))).await.unwrap();
        if stop.load(Ordering::Relaxed) && number > OVERWRITTEN {
            return;
        }
    }
}
