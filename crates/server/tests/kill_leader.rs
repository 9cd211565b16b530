//! Three real nodes under load while leaders are killed, all nodes are killed, and leaders are frozen.
//! Afterwards everything that clients were told must be true: R1 to R5, W1 to W5, L1, L3, H7, H8, H25.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use support::keeper::{Keeper, abandon};
use support::requests::{get, get_all, kv, put};
use support::until::until;
use support::watcher::{Seen, Watcher};
use support::writers::{History, WRITTEN, Writers, everything};
use support::{Cluster, within};
use tidelock_etcd_api::etcdserverpb::kv_client::KvClient;
use tonic::transport::Channel;

/// Shorter than the defaults, so that more leaders die in less time.
const QUICK: [&str; 4] = ["--heartbeat-ms", "50", "--election-ms", "500"];
const CLIENTS: usize = 6;
const LEADERS_KILLED: usize = 6;
const TIMES_ALL_KILLED: usize = 3;
/// Acknowledged writes between two faults, and while a node is down.
const WRITES_BETWEEN: u64 = 100;
/// Shorter than the faults last altogether, so that a lease lost by any of them would show.
const LEASE_TTL_S: i64 = 4;
/// A fresh cluster is at revision 1; this is the first write there can be.
const FIRST_WRITE: i64 = 2;

/// Everything that runs beside the faults.
struct Clients {
    writers: Writers,
    watcher: Watcher,
    keeper: Keeper,
    forsaken: Watcher,
    forsaken_since: Instant,
}

impl Clients {
    async fn start(cluster: &Cluster) -> Clients {
        let urls = cluster.client_urls();
        let watcher = Watcher::start(&urls, WRITTEN, FIRST_WRITE);
        let forsaken = Watcher::start(&urls, "forsaken/", FIRST_WRITE);
        let keys: Vec<String> = (0..5).map(|number| format!("forsaken/{number}")).collect();
        let forsaken_since = abandon(&urls[1], LEASE_TTL_S, &keys).await;
        let keeper = Keeper::start(&urls, "kept", LEASE_TTL_S).await;
        Clients { writers: Writers::start(&urls, CLIENTS), watcher, keeper, forsaken, forsaken_since }
    }

    /// Ends all of them and checks what they were told.
    async fn finish(self, cluster: &Cluster) -> History {
        let history = self.writers.finish().await;
        let kept = self.keeper.finish().await;
        assert!(kept.renewals > 0, "no renewal was ever acknowledged");

        let url = cluster.nodes[0].client_url();
        until("the abandoned lease to end", async || {
            let left = kv(&url).range(get_all("forsaken/")).await.ok()?.into_inner();
            (left.count == 0).then_some(())
        })
        .await;
        check_forsaken(&self.forsaken.finish().await, self.forsaken_since);

        let there = everything(&url, WRITTEN).await;
        history.check(&there);
        let seen = self.watcher.finish().await;
        check_seen(&seen, &there.iter().map(|item| (item.mod_revision, text(&item.key))).collect());
        cluster.wait_until_replicas_agree();
        history
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// W2, W3: what was seen is what happened, each change once. Nothing under the prefix is ever written
/// twice or deleted, so what is there in the end is all that ever happened.
fn check_seen(seen: &[Seen], happened: &BTreeSet<(i64, String)>) {
    let once: BTreeSet<(i64, String)> = seen.iter().map(|seen| (seen.revision, seen.key.clone())).collect();
    assert_eq!(once.len(), seen.len(), "W2: a change was seen twice");
    let missed: Vec<_> = happened.difference(&once).take(5).collect();
    let invented: Vec<_> = once.difference(happened).take(5).collect();
    assert!(missed.is_empty() && invented.is_empty(), "W3: missed {missed:?}, invented {invented:?}");
}

/// L1, L3: the keys of an abandoned lease go once, together, and not before its time.
fn check_forsaken(seen: &[Seen], since: Instant) {
    let (gone, written): (Vec<&Seen>, Vec<&Seen>) = seen.iter().partition(|seen| seen.deleted);
    assert_eq!((written.len(), gone.len()), (5, 5), "L3: {seen:?}");
    assert!(gone.iter().all(|event| event.revision == gone[0].revision), "L3: at several revisions: {gone:?}");
    let lived = gone[0].at - since;
    assert!(lived >= Duration::from_secs(LEASE_TTL_S.unsigned_abs()), "L1: the lease ended after {lived:?}");
}

/// What a cluster is for. Clients at every node go on while one leader after the other dies by kill -9
/// and comes back; nothing that was acknowledged may be missing, doubled or out of order afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_told_to_a_client_becomes_untrue_while_leaders_are_killed() {
    let mut cluster = Cluster::start_with(3, &QUICK);
    let clients = Clients::start(&cluster).await;
    for _ in 0..LEADERS_KILLED {
        clients.writers.wait_for_more(WRITES_BETWEEN);
        let leader = cluster.wait_for_leader();
        cluster.nodes[leader].kill();
        clients.writers.wait_for_more(WRITES_BETWEEN);
        cluster.nodes[leader].start();
        cluster.nodes[leader].wait_until_ready();
    }
    let history = clients.finish(&cluster).await;
    assert!(history.acknowledged() as u64 >= 2 * WRITES_BETWEEN * LEADERS_KILLED as u64);
}

/// R2: a power cut takes all nodes at once. What was acknowledged was on disk.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_told_to_a_client_becomes_untrue_when_all_nodes_are_killed_at_once() {
    let mut cluster = Cluster::start_with(3, &QUICK);
    let clients = Clients::start(&cluster).await;
    for _ in 0..TIMES_ALL_KILLED {
        clients.writers.wait_for_more(WRITES_BETWEEN);
        cluster.nodes.iter_mut().for_each(support::Process::kill);
        cluster.nodes.iter_mut().for_each(support::Process::start);
        cluster.nodes.iter_mut().for_each(support::Process::wait_until_ready);
    }
    clients.finish(&cluster).await;
}

/// How long the leader stands still: three election timeouts, so that another leads meanwhile.
const FROZEN: Duration = Duration::from_secs(3);
/// Shorter than the leader stands still: it must not end leases on waking.
const SHORT_TTL_S: i64 = 2;
/// How often a read is sent to the leader that stands still.
const READ_EVERY: Duration = Duration::from_millis(50);

/// H7, H8: a leader that wakes up does not know that another led meanwhile. Reads that reached it while
/// it slept must not show the past, and leases renewed elsewhere meanwhile must not be ended by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_frozen_neither_shows_the_past_nor_ends_leases() {
    let cluster = Cluster::start(3);
    let urls = cluster.client_urls();
    let keeper = Keeper::start(&urls, "kept", SHORT_TTL_S).await;
    let leader = cluster.wait_for_leader();
    let others = [(leader + 1) % 3, (leader + 2) % 3];
    let acknowledged = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let counting = tokio::spawn(count_up(urls[others[0]].clone(), acknowledged.clone(), stop.clone()));
    until("the first write", async || (acknowledged.load(Ordering::Relaxed) > 0).then_some(())).await;

    let reading = kv(&urls[leader]);
    // The connection must be there before the node sleeps.
    within("a read", reading.clone().range(get("count"))).await.unwrap();
    cluster.nodes[leader].pause();
    let (frozen, before) = (Instant::now(), acknowledged.load(Ordering::Relaxed));
    let mut reads = Vec::new();
    while frozen.elapsed() < FROZEN {
        reads.push(tokio::spawn(read_count(reading.clone(), acknowledged.clone())));
        tokio::time::sleep(READ_EVERY).await;
    }
    let meanwhile = acknowledged.load(Ordering::Relaxed) - before;
    cluster.nodes[leader].resume();
    let mut fresh = 0;
    for read in reads {
        fresh += usize::from(within("a read sent to the frozen leader", read).await.unwrap());
    }
    for _ in 0..20 {
        fresh += usize::from(read_count(reading.clone(), acknowledged.clone()).await);
    }
    assert!(meanwhile > 0, "nobody else led while the leader was frozen, so nothing was tried");
    assert!(fresh > 0, "no read was answered, so nothing was tried");

    stop.store(true, Ordering::Relaxed);
    within("the counter", counting).await.unwrap();
    // Long enough for a wrongly ended lease to show.
    let kept = keeper.finish().await;
    assert!(kept.renewals > 0 && !kept.slept_in, "the lease was not kept, so nothing was tried");
    cluster.wait_until_replicas_agree();
}

/// Writes 1, 2, 3, ... to one key and tells the last that was acknowledged.
async fn count_up(url: String, acknowledged: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    let mut node = kv(&url);
    for number in 1_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if node.put(put("count", number.to_string())).await.is_ok() {
            acknowledged.store(number, Ordering::SeqCst);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// One linearizable read; it must not be older than what was acknowledged before it began. `false`: it
/// got no answer, which is allowed.
async fn read_count(mut node: KvClient<Channel>, acknowledged: Arc<AtomicU64>) -> bool {
    let floor = acknowledged.load(Ordering::SeqCst);
    let Ok(answer) = node.range(get("count")).await else { return false };
    let value: u64 = text(&answer.into_inner().kvs[0].value).parse().unwrap();
    assert!(value >= floor, "H7: read {value}, but {floor} was acknowledged before the read began");
    true
}
