//! How a cluster of real processes gets over the loss of its leader, at the default timing: killed, frozen, or
//! only seemingly gone. The times are printed, not judged: test machines are slow and busy (decision 0018 has what
//! was measured).

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use support::requests::{kv, put};
use support::{Cluster, within};

/// How often a leader is lost in each way.
const TIMES: usize = 3;
/// How long one attempt to write may take before the next is made, elsewhere: shorter than the node's own patience.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Writes at the nodes that are left, in turn, until one says yes; how long that took.
async fn first_write(urls: &[String], lost: usize) -> Duration {
    let began = Instant::now();
    within("a write after the leader was lost", async {
        for attempt in 0.. {
            let url = &urls[(lost + 1 + attempt % 2) % 3];
            let key = format!("after/{attempt}");
            if let Ok(Ok(_)) = tokio::time::timeout(ATTEMPT, kv(url).put(put(key, "v"))).await {
                break;
            }
        }
    })
    .await;
    began.elapsed()
}

fn leader_changes(cluster: &Cluster, node: usize) -> String {
    let metrics = cluster.nodes[node].admin_get("/metrics").unwrap_or_default();
    let wanted = |line: &&str| line.starts_with("tidelock_leader_changes_total");
    metrics.lines().find(wanted).unwrap_or_default().to_owned()
}

/// Everything that locks and elects through this cluster waits while it has no leader. A process that is killed
/// closes its connections, so nobody has to wait for its silence.
#[tokio::test(flavor = "multi_thread")]
async fn writes_go_on_at_once_when_the_leader_is_killed() {
    let mut cluster = Cluster::start(3);
    let urls = cluster.client_urls();
    for _ in 0..TIMES {
        let leader = cluster.wait_for_leader();
        first_write(&urls, leader).await;
        cluster.nodes[leader].kill();
        let took = first_write(&urls, leader).await;
        println!("leader killed: first write after {took:?}");
        let seen = cluster.nodes[(leader + 1) % 3].log();
        assert!(seen.contains("takes no new one"), "nobody noticed the end of its connections");
        cluster.nodes[leader].start();
        cluster.nodes[leader].wait_until_ready();
    }
    cluster.wait_until_replicas_agree();
}

/// A machine that hangs closes nothing: its silence has to tell.
#[tokio::test(flavor = "multi_thread")]
async fn writes_go_on_when_the_leader_is_frozen() {
    let cluster = Cluster::start(3);
    let urls = cluster.client_urls();
    for _ in 0..TIMES {
        let leader = cluster.wait_for_leader();
        first_write(&urls, leader).await;
        cluster.nodes[leader].pause();
        let took = first_write(&urls, leader).await;
        println!("leader frozen: first write after {took:?}");
        cluster.nodes[leader].resume();
        cluster.wait_until_replicas_agree();
    }
}

/// A follower that is killed, again and again, closes connections too. That is no reason to elect anybody.
#[tokio::test(flavor = "multi_thread")]
async fn the_leader_stays_when_followers_come_and_go() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_leader();
    let before = leader_changes(&cluster, leader);
    assert!(!before.is_empty(), "the metric is there");
    for time in 0..4 {
        let follower = (leader + 1 + time % 2) % 3;
        cluster.nodes[follower].kill();
        cluster.nodes[follower].start();
        cluster.nodes[follower].wait_until_ready();
    }
    assert_eq!((cluster.wait_for_leader(), leader_changes(&cluster, leader)), (leader, before));
}
