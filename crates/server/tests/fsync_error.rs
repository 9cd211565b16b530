//! A disk that fails to make writes durable (H17). What the system then still holds in memory is nobody's
//! knowledge, and it tells so only once: the node must stop at the first failure, acknowledge nothing it
//! is not sure of, and start again from what is really there.

#![cfg(all(target_os = "linux", target_env = "gnu"))]
// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::process::Stdio;

use support::failing_sync::FailingSync;
use support::requests::{kv, put};
use support::writers::{WRITTEN, Writers, everything};
use support::{Cluster, tidelock, wait_for, within};
use tonic::Code;

/// Acknowledged before each failure.
const WRITES: usize = 50;
const CLIENTS: usize = 6;
/// Acknowledged writes before the leader fails, while it is away, and after it came back.
const WRITES_BETWEEN: u64 = 100;
/// Shorter than the defaults, so that nobody waits long for the next leader.
const QUICK: [&str; 4] = ["--heartbeat-ms", "50", "--election-ms", "500"];
/// etcd's words for "nothing was done, try again": here they would be a lie.
const NOTHING_WAS_DONE: [&str; 2] = ["etcdserver: no leader", "etcdserver: too many requests"];

async fn write(url: &str, prefix: &str) {
    for number in 0..WRITES {
        within("a put", kv(url).put(put(format!("{prefix}{number}"), "v"))).await.unwrap();
    }
}

/// Starts node 0, which is alone, and waits until it has nothing left to write by itself: the next sync
/// is that of the test's next write. Gives back where the log of this run begins.
fn start_and_wait_until_idle(cluster: &mut Cluster) -> usize {
    let log_begins = cluster.nodes[0].log().len();
    cluster.start_all();
    // It tells its name and addresses to the cluster before it says this.
    let ready = "ready to serve client requests";
    wait_for("the node to be idle", || cluster.nodes[0].log()[log_begins..].contains(ready).then_some(()));
    log_begins
}

/// Waits until node 0 has stopped by itself, and checks what it told its operator.
fn check_that_it_stopped(cluster: &mut Cluster, log_begins: usize) {
    let node = &mut cluster.nodes[0];
    assert_eq!(node.wait_until_ended().code(), Some(1), "a supervisor must see that this was no ordinary stop");
    let said = &node.log()[log_begins..];
    let last = said.rsplit_once("error: the node stopped: ").expect("its last words say that it stopped").1;
    assert!(last.contains("the journal failed") && last.contains("os error 5"), "why? {last}");
    assert!(last.contains("restart the node, and replace its disk if this happens again"), "and now? {last}");
    assert!(last.contains("what to do: "), "and now? {last}");
}

/// Checks that all acknowledged writes are there, and the one in flight once or not at all.
async fn check_there(url: &str, prefix: &str) {
    let there = everything(url, prefix).await;
    let in_flight = in_flight(prefix);
    let mut found: Vec<&[u8]> = there.iter().map(|item| item.key.as_ref()).collect();
    found.retain(|key| *key != in_flight.as_bytes());
    let mut expected: Vec<String> = (0..WRITES).map(|number| format!("{prefix}{number}")).collect();
    expected.sort();
    let expected: Vec<&[u8]> = expected.iter().map(String::as_bytes).collect();
    assert_eq!(found, expected, "R2: what was acknowledged is there, and nothing that nobody wrote");
    assert!(there.iter().all(|item| item.version == 1), "H25: something was written twice: {there:?}");
}

/// The key that is written while the sync fails.
fn in_flight(prefix: &str) -> String {
    format!("{prefix}in-flight")
}

/// Lets node 0 write under `prefix`, fails the sync of what `ask` then writes, and checks all but what
/// `ask` was told. Afterwards the node runs again, with its real disk.
async fn fail_the_sync_of(cluster: &mut Cluster, failing: &FailingSync, prefix: &str, ask: impl AsyncFnOnce(&str)) {
    failing.install(&mut cluster.nodes[0]);
    let log_begins = start_and_wait_until_idle(cluster);
    let url = cluster.nodes[0].client_url();
    write(&url, prefix).await;
    failing.fail_next(&cluster.nodes[0]);
    ask(&url).await;
    check_that_it_stopped(cluster, log_begins);

    failing.uninstall(&mut cluster.nodes[0]);
    cluster.start_all();
    check_there(&url, prefix).await;
}

/// Both an etcd client and the user of our own command must learn that the outcome is unknown: a yes
/// could be lost with the disk, and a no could turn out to be there after the restart.
#[tokio::test(flavor = "multi_thread")]
async fn h17_a_failed_sync_stops_the_node_and_neither_loses_nor_promises_a_write() {
    let failing = FailingSync::build();
    let mut cluster = Cluster::prepare(1, &[]);
    fail_the_sync_of(&mut cluster, &failing, "first/", async |url| {
        let told = within("a verdict", kv(url).put(put(in_flight("first/"), "v"))).await;
        let told = told.expect_err("the write was acknowledged although it may not be on the disk");
        assert_eq!(told.code(), Code::Unavailable, "{told:?}");
        assert!(!NOTHING_WAS_DONE.contains(&told.message()), "{told:?}");
    })
    .await;

    cluster.nodes[0].kill();
    fail_the_sync_of(&mut cluster, &failing, "second/", async |url| {
        let key = in_flight("second/");
        let told = tidelock().args(["put", &key, "v", "--endpoints", url]).stdin(Stdio::null()).output().unwrap();
        let words = String::from_utf8_lossy(&told.stderr);
        assert!(!told.status.success(), "the write was acknowledged although it may not be on the disk");
        assert!(words.contains("the write may or may not have happened: read before you retry"), "{words}");
    })
    .await;
    check_there(&cluster.nodes[0].client_url(), "first/").await;
}

/// One bad disk is what a cluster is for: the others elect a leader and go on, and the failed node comes
/// back from what its disk really holds.
#[tokio::test(flavor = "multi_thread")]
async fn h17_a_leader_whose_sync_failed_makes_way_for_another_and_no_acknowledged_write_is_lost() {
    let failing = FailingSync::build();
    let mut cluster = Cluster::prepare(3, &QUICK);
    cluster.nodes.iter_mut().for_each(|node| failing.install(node));
    cluster.start_all();
    let writers = Writers::start(&cluster.client_urls(), CLIENTS);
    writers.wait_for_more(WRITES_BETWEEN);

    let failed = cluster.wait_for_leader();
    failing.fail_next(&cluster.nodes[failed]);
    assert_eq!(cluster.nodes[failed].wait_until_ended().code(), Some(1));
    let said = cluster.nodes[failed].log();
    assert!(said.contains("the journal failed") && said.contains("os error 5"), "{said}");
    writers.wait_for_more(WRITES_BETWEEN);
    assert_ne!(cluster.wait_for_leader(), failed);

    failing.uninstall(&mut cluster.nodes[failed]);
    cluster.nodes[failed].start();
    cluster.nodes[failed].wait_until_ready();
    writers.wait_for_more(WRITES_BETWEEN);
    let history = writers.finish().await;
    assert!(history.acknowledged() as u64 >= 3 * WRITES_BETWEEN);
    history.check(&everything(&cluster.nodes[failed].client_url(), WRITTEN).await);
    cluster.wait_until_replicas_agree();
}
