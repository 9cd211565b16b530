//! Three real nodes: losing one, handing over leadership, letting one in, and `tidelock dev`.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Cluster, Process, tidelock, wait_for};

/// Runs a command until it succeeds: around a change of leader, requests may fail and be retried.
fn eventually(cluster: &Cluster, arguments: &[&str]) -> String {
    wait_for(&format!("tidelock {arguments:?} to succeed"), || {
        let output = tidelock()
            .args(arguments)
            .env("TIDELOCK_ENDPOINTS", running(cluster, Process::client_url))
            .env("TIDELOCK_ADMIN", running(cluster, Process::admin_url))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    })
}

fn running(cluster: &Cluster, url: fn(&Process) -> String) -> String {
    cluster.nodes.iter().filter(|node| node.is_running()).map(url).collect::<Vec<_>>().join(",")
}

fn status(cluster: &Cluster) -> Value {
    serde_json::from_str(&eventually(cluster, &["status", "--output", "json"])).unwrap()
}

fn members(cluster: &Cluster) -> Vec<Value> {
    let list: Value = serde_json::from_str(&eventually(cluster, &["member", "list", "--output", "json"])).unwrap();
    list["members"].as_array().unwrap().clone()
}

/// The reason to run three nodes: one may die, even the leader, and nothing acknowledged is lost.
#[test]
fn writes_go_on_and_nothing_is_lost_when_the_leader_is_killed() {
    let mut cluster = Cluster::start(3);
    cluster.run(&["put", "before", "1"]);
    let leader = cluster.wait_for_leader();
    cluster.nodes[leader].kill();

    eventually(&cluster, &["put", "after", "2"]);
    assert_eq!(eventually(&cluster, &["get", "before", "--value-only"]), "1\n");

    cluster.nodes[leader].start();
    cluster.nodes[leader].wait_until_ready();
    let back = cluster.nodes[leader].client_url();
    assert_eq!(eventually(&cluster, &["get", "after", "--value-only", "--endpoints", &back]), "2\n");
    // R5: once quiet, all replicas are at the same place and look the same.
    wait_for("replicas to agree", || {
        let status = status(&cluster);
        let nodes = status["nodes"].as_array().unwrap().clone();
        let same = |name: &str| nodes.iter().all(|node| node[name] == nodes[0][name]);
        (nodes.len() == 3 && same("applied") && same("digest") && same("revision")).then_some(())
    });
}

/// Without a majority nothing may be acknowledged, and health must say so: a node that claims to be
/// well keeps its traffic.
#[test]
fn a_node_without_a_majority_is_not_healthy_and_takes_no_writes() {
    let mut cluster = Cluster::start(3);
    cluster.run(&["put", "k", "v"]);
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    wait_for("health to be denied", || {
        let (status, body) = support::http(cluster.nodes[0].admin_port, "GET", "/health", "")?;
        (status == 503 && body.contains("\"health\":\"false\"")).then_some(())
    });
    let alone = cluster.nodes[0].client_url();
    let put = tidelock().args(["put", "k", "w", "--timeout-ms", "2000", "--endpoints", &alone]).output().unwrap();
    assert_eq!(put.status.code(), Some(1), "{}", String::from_utf8_lossy(&put.stdout));
    assert_eq!(cluster.nodes[0].admin_get("/livez").as_deref(), Some("ok\n"));
    // Members can still be listed: that is when operators need the list most.
    assert_eq!(members(&cluster).len(), 3);
}

/// Operators move leadership before they stop a machine; a transfer that silently does nothing costs
/// an election timeout of downtime.
#[test]
fn leadership_is_handed_to_the_member_that_was_named() {
    let cluster = Cluster::start(3);
    let leader = cluster.wait_for_leader();
    let next = (leader + 1) % 3;
    eventually(&cluster, &["member", "transfer", &cluster.nodes[next].name.clone()]);
    wait_for("the new leader", || (cluster.wait_for_leader() == next).then_some(()));
}

/// A cluster grows without being stopped: the new node catches up as a learner and votes after that.
#[test]
fn a_node_joins_catches_up_and_becomes_a_voter() {
    let mut cluster = Cluster::start(1);
    for number in 0..20 {
        cluster.run(&["put", &format!("k/{number}"), "v"]);
    }
    cluster.add_joining("b").start();
    cluster.nodes[1].wait_until_ready();
    wait_for("the joined node to vote", || {
        let members = members(&cluster);
        let joined = members.iter().find(|member| member["name"] == "b")?;
        (joined["role"] == "voter").then_some(())
    });
    let joined = cluster.nodes[1].client_url();
    let count = eventually(&cluster, &["get", "--prefix", "k/", "--count-only", "--endpoints", &joined]);
    assert_eq!(count, "20\n");

    // Removed for good: it stops by itself and says why, with an exit code that is not success.
    eventually(&cluster, &["member", "remove", "b"]);
    let status = cluster.nodes[1].wait_until_ended();
    assert_eq!(status.code(), Some(1));
    assert_eq!(members(&cluster).len(), 1);
}

/// `tidelock dev` is how people meet a cluster; Ctrl-C must leave neither processes nor data behind.
#[test]
fn dev_runs_a_cluster_and_leaves_nothing_behind() {
    let mut dev = tidelock().arg("dev").stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut greeting = Vec::new();
    for line in BufReader::new(dev.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let last = line.starts_with("Ctrl-C");
        greeting.push(line);
        if last {
            break;
        }
    }
    let after = |label: &str| -> String {
        let line = greeting.iter().find(|line| line.trim_start().starts_with(label)).unwrap();
        line.trim_start().trim_start_matches(label).trim().to_owned()
    };
    let (endpoints, dir) = (after("etcd clients"), after("data, logs"));
    let dir = dir.split(" (").next().unwrap().to_owned();
    assert_eq!(endpoints.split(',').count(), 3, "{greeting:?}");
    let put = tidelock().args(["put", "k", "v", "--endpoints", &endpoints]).output().unwrap();
    assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    assert!(std::path::Path::new(&dir).is_dir());
    // The command for a lock works as it is printed: without its nodes it would find nobody.
    let lock = greeting.iter().find(|line| line.contains(" lock ")).unwrap();
    let locked = Command::new("sh").args(["-c", lock]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&locked.stdout), "one at a time\n", "{lock}");

    let interrupted = Command::new("kill").args(["-INT", &dev.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    let status = wait_for("dev to end", || dev.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    assert!(!std::path::Path::new(&dir).exists(), "{dir} was left behind");
    for url in endpoints.split(',') {
        let address = url.trim_start_matches("http://");
        assert!(std::net::TcpStream::connect(address).is_err(), "somebody still listens at {address}");
    }
}
