//! Changing who is in the cluster and who leads it, while clients write. Nobody who is not involved may
//! notice, and whoever is out stays out (M1, H21).

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use serde_json::Value;
use support::requests::{get, kv, put};
use support::writers::{History, WRITTEN, Writers, everything};
use support::{Cluster, http, wait_for, within};

const CLIENTS: usize = 4;
const NO_ERRORS: Vec<&String> = Vec::new();

/// The members as node `at` knows them.
fn members(cluster: &Cluster, at: usize) -> Vec<Value> {
    let list = wait_for("the members", || cluster.nodes[at].admin_get("/v1/members"));
    let list: Value = serde_json::from_str(&list).unwrap();
    list["members"].as_array().unwrap().clone()
}

/// The id of the member called `name`.
fn id_of(cluster: &Cluster, at: usize, name: &str) -> String {
    let named = |members: Vec<Value>| members.into_iter().find(|member| member["name"] == name);
    wait_for(&format!("a member called {name}"), || {
        Some(named(members(cluster, at))?["id"].as_str().unwrap().to_owned())
    })
}

/// Asks node `at` to remove the member called `name`; gives back status and body.
fn remove(cluster: &Cluster, at: usize, name: &str) -> (u16, String) {
    let path = format!("/v1/members/{}", id_of(cluster, at, name));
    http(cluster.nodes[at].admin_port, "DELETE", &path, "").expect("the node answers")
}

async fn check(history: &History, cluster: &Cluster, at: usize) {
    history.check(&everything(&cluster.nodes[at].client_url(), WRITTEN).await);
}

/// Operators move leadership before maintenance. Clients of all nodes, the old leader included, must see
/// nothing but a slower answer.
#[tokio::test(flavor = "multi_thread")]
async fn leadership_goes_round_while_clients_write_and_no_write_fails() {
    let cluster = Cluster::start(3);
    let writers = Writers::start(&cluster.client_urls(), CLIENTS);
    for _ in 0..4 {
        writers.wait_for_more(50);
        let leader = cluster.wait_for_leader();
        let next = (leader + 1) % 3;
        let body = format!("{{\"to\": \"{}\"}}", id_of(&cluster, leader, &cluster.nodes[next].name));
        let (status, answer) = http(cluster.nodes[leader].admin_port, "POST", "/v1/leadership", &body).unwrap();
        assert_eq!(status, 200, "{answer}");
        wait_for("the new leader", || (cluster.wait_for_leader() == next).then_some(()));
    }
    let history = writers.finish().await;
    assert_eq!(history.errors(), NO_ERRORS);
    check(&history, &cluster, 0).await;
    cluster.wait_until_replicas_agree();
}

/// So long that an election cannot be mistaken for a hand-over.
const SLOW: [&str; 4] = ["--heartbeat-ms", "100", "--election-ms", "3000"];
const SHORTER_THAN_AN_ELECTION: Duration = Duration::from_millis(2500);

/// Every rolling upgrade stops every leader once. It must hand over first: an election would make all
/// clients of all nodes wait for seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_told_to_stop_hands_over_and_clients_of_the_others_see_no_error() {
    let mut cluster = Cluster::start_with(3, &SLOW);
    let leader = cluster.wait_for_leader();
    let others: Vec<String> = (0..3).filter(|at| *at != leader).map(|at| cluster.nodes[at].client_url()).collect();
    let writers = Writers::start(&others, CLIENTS);
    writers.wait_for_more(50);
    let told = Instant::now();
    assert_eq!(cluster.nodes[leader].terminate().code(), Some(0));
    writers.wait_for_more(10);
    let waited = told.elapsed();
    assert!(waited < SHORTER_THAN_AN_ELECTION, "clients waited {waited:?}, as long as an election takes");
    cluster.nodes[leader].start();
    cluster.nodes[leader].wait_until_ready();
    writers.wait_for_more(50);
    let history = writers.finish().await;
    assert_eq!(history.errors(), NO_ERRORS);
    check(&history, &cluster, leader).await;
    cluster.wait_until_replicas_agree();
}

/// A cluster moves to other machines one by one: a node joins as a learner, votes by itself once it has
/// caught up, and takes the place of the leader, which leaves. M1: who left is out for good.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_joins_and_the_leader_leaves_while_clients_write() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_leader();
    let others: Vec<usize> = (0..3).filter(|at| *at != leader).collect();
    let urls: Vec<String> = others.iter().map(|at| cluster.nodes[*at].client_url()).collect();
    let writers = Writers::start(&urls, CLIENTS);
    writers.wait_for_more(50);
    cluster.add_joining("d").start();
    cluster.nodes[3].wait_until_ready();
    wait_for("the new node to vote", || {
        members(&cluster, others[0])
            .iter()
            .any(|member| member["name"] == "d" && member["role"] == "voter")
            .then_some(())
    });

    let name = cluster.nodes[leader].name.clone();
    let (status, answer) = remove(&cluster, others[0], &name);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(cluster.nodes[leader].wait_until_ended().code(), Some(1));
    let said = cluster.nodes[leader].log();
    assert!(said.contains("this node was removed from the cluster") && said.contains("what to do"), "{said}");
    writers.wait_for_more(50);

    // It is started again by its supervisor: nobody votes with it or listens to it.
    let term = cluster.nodes[others[0]].status_number("term");
    cluster.nodes[leader].start();
    wait_for("the removed node to be refused or to end", || is_out(&mut cluster, leader).then_some(()));
    writers.wait_for_more(50);
    let history = writers.finish().await;
    assert_eq!(history.errors(), NO_ERRORS);
    assert_eq!(cluster.nodes[others[0]].status_number("term"), term, "the removed node made the cluster vote");
    assert!(cluster.nodes[leader].admin_get("/readyz").is_none(), "the removed node says it is ready");
    cluster.nodes[leader].kill();
    check(&history, &cluster, 3).await;
    cluster.wait_until_replicas_agree();
}

/// Whether a removed node knows: it ended, or was told by the others.
fn is_out(cluster: &mut Cluster, node: usize) -> bool {
    let node = &mut cluster.nodes[node];
    node.has_ended() || node.log().contains("was removed; remove its data directory")
}

/// M1: a node that was down when it was removed has not heard of it. It must be told, and its opinion of
/// who leads must not count.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_removed_while_it_was_down_is_told_and_disturbs_nobody() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_leader();
    let gone = (leader + 1) % 3;
    within("a put", kv(&cluster.nodes[leader].client_url()).put(put("k", "v"))).await.unwrap();
    let name = cluster.nodes[gone].name.clone();
    id_of(&cluster, leader, &name);
    cluster.nodes[gone].kill();
    let (status, answer) = remove(&cluster, leader, &name);
    assert_eq!(status, 200, "{answer}");
    let term = cluster.nodes[leader].status_number("term");
    cluster.nodes[gone].start();
    wait_for("the removed node to be told", || is_out(&mut cluster, gone).then_some(()));
    // That nothing happens can only be seen by looking for a while: three election timeouts are time enough to seek
    // election, if it could.
    tokio::time::sleep(Duration::from_secs(3)).await;
    within("a put", kv(&cluster.nodes[leader].client_url()).put(put("k", "w"))).await.unwrap();
    assert_eq!(cluster.nodes[leader].status_number("term"), term, "the removed node made the cluster vote");
    assert_eq!(cluster.wait_for_leader(), leader);
    assert_eq!(members(&cluster, leader).len(), 2);
}

/// Removing a node that works while another is dead would leave a cluster that cannot agree on anything,
/// not even on undoing it.
#[tokio::test(flavor = "multi_thread")]
async fn removing_a_member_that_is_needed_for_a_majority_is_refused() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_leader();
    let (dead, needed) = ((leader + 1) % 3, (leader + 2) % 3);
    let (dead_name, needed_name) = (cluster.nodes[dead].name.clone(), cluster.nodes[needed].name.clone());
    id_of(&cluster, leader, &dead_name);
    id_of(&cluster, leader, &needed_name);
    cluster.nodes[dead].kill();
    wait_for("the link to the dead one to break", || {
        let peers = cluster.nodes[leader].status()?["peers"].clone();
        let down = peers.as_array()?.iter().filter(|peer| peer["connected"] == false).count();
        (down == 1).then_some(())
    });
    // Until the leader has missed the dead one for long enough it believes in it, and would let the other go. It looks
    // once per election timeout at whom it heard since, and tells nobody what it found: there is nothing to wait for
    // but the time, twice of it and some more.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let (status, answer) = remove(&cluster, leader, &needed_name);
    assert_eq!(status, 409, "{answer}");
    assert!(answer.contains("hint"), "{answer}");
    assert_eq!(members(&cluster, leader).len(), 3);
    // The dead one can go, and then what is left works on.
    let (status, answer) = remove(&cluster, leader, &dead_name);
    assert_eq!(status, 200, "{answer}");
    within("a put", kv(&cluster.nodes[leader].client_url()).put(put("k", "v"))).await.unwrap();
    let (status, _) = remove(&cluster, leader, &needed_name);
    assert_eq!(status, 200);
    // The last one cannot leave.
    let own_name = cluster.nodes[leader].name.clone();
    let (status, answer) = remove(&cluster, leader, &own_name);
    assert_eq!(status, 409, "{answer}");
    within("a put", kv(&cluster.nodes[leader].client_url()).put(put("k", "w"))).await.unwrap();
}

/// How long two nodes get to tell a lie together.
const LIE_PATIENCE: Duration = Duration::from_secs(5);

/// H21, M1: a founder that lost its disk is started again as it always was. It has promised things under
/// its old id that it no longer knows of; if it votes as if it had not, what it had acknowledged is lost.
#[tokio::test(flavor = "multi_thread")]
async fn h21_a_founder_that_lost_its_disk_does_not_vote_as_if_nothing_had_happened() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_leader();
    let (behind, wiped) = ((leader + 1) % 3, (leader + 2) % 3);
    let url = cluster.nodes[leader].client_url();
    for node in 0..3 {
        id_of(&cluster, leader, &cluster.nodes[node].name);
    }
    cluster.wait_until_replicas_agree();
    cluster.nodes[behind].kill();
    within("a put", kv(&url).put(put("precious", "acknowledged"))).await.unwrap();
    cluster.nodes[leader].kill();
    cluster.nodes[wiped].kill();
    std::fs::remove_dir_all(cluster.nodes[wiped].data_dir()).unwrap();
    cluster.nodes[wiped].start();
    cluster.nodes[behind].start();
    // Whoever knew it with its old disk turns it away, and it says what to do.
    assert!(!cluster.nodes[wiped].wait_until_ended().success());
    let last_words = cluster.nodes[wiped].log();
    assert!(last_words.contains("with another disk") && last_words.contains("--join"), "{last_words}");
    cluster.nodes[wiped].start();

    // Of the two nodes with the write, one is down and one has lost it. The others may say nothing; they
    // may not say that there is none.
    let begun = Instant::now();
    while begun.elapsed() < LIE_PATIENCE {
        for node in [behind, wiped] {
            let mut kv = kv(&cluster.nodes[node].client_url());
            let read = tokio::time::timeout(Duration::from_secs(1), kv.range(get("precious"))).await;
            if let Ok(Ok(answer)) = read {
                assert_eq!(answer.into_inner().count, 1, "R2: an acknowledged write is gone");
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    cluster.nodes[leader].start();
    let found =
        support::until::until("the write to be readable again", async || kv(&url).range(get("precious")).await.ok())
            .await;
    assert_eq!(found.into_inner().count, 1, "R2: an acknowledged write is gone");
}
