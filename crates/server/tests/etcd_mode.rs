//! In etcd's place: started under its name, with its flags, variables and config file, by tools that know
//! nothing of Tidelock.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

#[path = "support/as_etcd.rs"]
mod as_etcd;
mod support;

use std::path::Path;
use std::process::Command;

use as_etcd::{Member, etcd, output, url};
use support::requests::{channel, get, kv, put};
use support::{free_ports, http, wait_for, within};
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::etcdserverpb::cluster_client::ClusterClient;
use tonic::transport::Channel;

fn cluster(url: &str) -> ClusterClient<Channel> {
    ClusterClient::new(channel(url))
}

/// The flags of one member of a cluster: client and peer port each.
fn member(dir: &Path, name: &str, ports: &[(u16, u16)], own: usize, state: &str) -> Command {
    let list: Vec<String> = ports.iter().enumerate().map(|(at, (_, peer))| format!("m{at}={}", url(*peer))).collect();
    let (client, peer) = ports[own];
    let mut command = etcd(dir);
    command
        .args(["--name", name, "--initial-cluster-state", state])
        .arg(format!("--data-dir={}", dir.join(format!("{name}.data")).display()))
        .arg(format!("--listen-client-urls={}", url(client)))
        .arg(format!("--advertise-client-urls={}", url(client)))
        .arg(format!("--listen-peer-urls={}", url(peer)))
        .arg(format!("--initial-advertise-peer-urls={}", url(peer)))
        .arg(format!("--initial-cluster={}", list.join(",")));
    command
}

fn pairs(count: usize) -> Vec<(u16, u16)> {
    free_ports(count * 2).chunks(2).map(|pair| (pair[0], pair[1])).collect()
}

/// A single member, as every tutorial starts it.
fn single(dir: &Path, extra: &[&str]) -> (Member, u16) {
    let ports = pairs(1);
    let mut command = member(dir, "m0", &ports, 0, "new");
    command.args(extra);
    let mut running = Member::start(command, dir, "m0");
    running.wait_until_ready();
    (running, ports[0].0)
}

/// The whole point: a unit file for a cluster of three works with the binary exchanged, and tools see what they
/// saw before. Ended by SIGTERM it must look to its supervisor as etcd does: ended by that signal.
#[tokio::test(flavor = "multi_thread")]
async fn three_members_form_a_cluster_from_etcds_flags_and_end_by_the_signal() {
    let dir = tempfile::tempdir().unwrap();
    let ports = pairs(3);
    let mut members: Vec<Member> = (0..3)
        .map(|at| {
            Member::start(member(dir.path(), &format!("m{at}"), &ports, at, "new"), dir.path(), &format!("m{at}"))
        })
        .collect();
    members.iter_mut().for_each(Member::wait_until_ready);
    kv(&url(ports[0].0)).put(put("k", "v")).await.unwrap();
    for (client, _) in &ports {
        let found = kv(&url(*client)).range(get("k")).await.unwrap().into_inner();
        assert_eq!(found.kvs[0].value, "v");
    }
    let listed = cluster(&url(ports[1].0)).member_list(pb::MemberListRequest::default()).await.unwrap().into_inner();
    let mut names: Vec<String> = listed.members.iter().map(|member| member.name.clone()).collect();
    names.sort();
    assert_eq!(names, ["m0", "m1", "m2"]);
    assert!(listed.members.iter().any(|member| member.client_ur_ls == [url(ports[2].0)]));
    if let Ok(answer) = Command::new("etcdctl").args(["--endpoints", &url(ports[2].0), "get", "k"]).output() {
        assert_eq!(String::from_utf8_lossy(&answer.stdout), "k\nv\n");
    }
    const SIGTERM: i32 = 15;
    for member in &mut members {
        assert_eq!(member.terminate(), Some(SIGTERM), "{}", member.log());
    }
}

/// Containers are configured by variables alone; a flag beats its variable, and one that nobody knows is told.
#[tokio::test(flavor = "multi_thread")]
async fn variables_alone_are_enough_and_a_flag_beats_its_variable() {
    let dir = tempfile::tempdir().unwrap();
    let ports = free_ports(2);
    let mut command = etcd(dir.path());
    command
        .env("ETCD_NAME", "ignored")
        .env("ETCD_LISTEN_CLIENT_URLS", url(ports[0]))
        .env("ETCD_ADVERTISE_CLIENT_URLS", url(ports[0]))
        .env("ETCD_LISTEN_PEER_URLS", url(ports[1]))
        .env("ETCD_INITIAL_ADVERTISE_PEER_URLS", url(ports[1]))
        .env("ETCD_SNAPSHOT_COUNT", "5000")
        .env("ETCD_NO_SUCH_FLAG", "1")
        .args(["-name", "from-flag"]);
    let mut running = Member::start(command, dir.path(), "m");
    running.wait_until_ready();
    kv(&url(ports[0])).put(put("k", "v")).await.unwrap();
    let listed = cluster(&url(ports[0])).member_list(pb::MemberListRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.members[0].name, "from-flag");
    assert!(dir.path().join("from-flag.etcd").is_dir(), "data goes to NAME.etcd in the working directory");
    let log = running.log();
    assert!(log.contains("unrecognized environment variable: ETCD_NO_SUCH_FLAG=1"), "{log}");
    assert!(log.contains("ETCD_SNAPSHOT_COUNT has no effect: "), "{log}");
}

/// A config file counts alone, as with etcd: what is also on the command line is ignored, and said to be.
#[tokio::test(flavor = "multi_thread")]
async fn a_config_file_counts_alone() {
    let dir = tempfile::tempdir().unwrap();
    let ports = free_ports(3);
    let file = dir.path().join("etcd.yml");
    let text = format!(
        "name: 'from-file'\ndata-dir: {}\nlisten-client-urls: {}\nadvertise-client-urls: {}\n\
         listen-peer-urls: {}\ninitial-advertise-peer-urls: {}\nlisten-metrics-urls: {}\n\
         heartbeat-interval: 50\nelection-timeout: 500\nlog-outputs: [stderr]\nclient-transport-security:\n  auto-tls: false\n",
        dir.path().join("data").display(),
        url(ports[0]),
        url(ports[0]),
        url(ports[1]),
        url(ports[1]),
        url(ports[2]),
    );
    std::fs::write(&file, text).unwrap();
    let mut command = etcd(dir.path());
    command.arg("--config-file").arg(&file).args(["--name", "from-flag"]);
    let mut running = Member::start(command, dir.path(), "m");
    running.wait_until_ready();
    let listed = cluster(&url(ports[0])).member_list(pb::MemberListRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.members[0].name, "from-file");
    assert!(running.log().contains("the config file counts alone"), "{}", running.log());
    let (code, body) = http(ports[2], "GET", "/health", "").unwrap();
    assert_eq!((code, body.as_str()), (200, r#"{"health":"true","reason":""}"#));
    assert_eq!(
        http(ports[2], "GET", "/v1/members", "").unwrap().0,
        404,
        "an address for monitoring serves nothing else"
    );

    std::fs::write(&file, "listen-client-url: x\n").unwrap();
    let (refused, text) = output(etcd(dir.path()).arg("--config-file").arg(&file));
    assert_eq!(refused.status.code(), Some(1));
    assert!(text.contains("unknown key \"listen-client-url\""), "{text}");
    assert!(text.contains("did you mean listen-client-urls?"), "{text}");
}

/// What is wrong must be said so that it can be put right, with the exit codes scripts know.
#[test]
fn what_is_wrong_is_said_with_etcds_words_and_exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    for (words, code, expected) in [
        (vec!["--lisen-client-urls=x"], 2, "flag provided but not defined: -lisen-client-urls"),
        (vec!["--lisen-client-urls=x"], 2, "did you mean --listen-client-urls?"),
        (vec!["--name"], 2, "flag needs an argument: -name"),
        (vec!["--pre-vote", "false"], 2, "\"false\" is not a valid flag"),
        (vec!["--heartbeat-interval=soon"], 2, "invalid value \"soon\" for flag -heartbeat-interval"),
        (vec!["grpc-proxy", "start"], 2, "program of its own"),
        (vec!["--discovery=http://d/1"], 1, "list all members with --initial-cluster"),
        (vec!["--force-new-cluster"], 1, "--force-new-cluster=true is not supported"),
        (vec!["--listen-client-urls=http://127.0.0.1:1"], 1, "--advertise-client-urls: is required when"),
        (vec!["--heartbeat-interval=100", "--election-timeout=200"], 1, "set it to 500 or more"),
        (vec!["--name=a", "--initial-cluster=b=http://127.0.0.1:1"], 1, "does not list this node, \"a\""),
        (vec!["--auto-compaction-mode=hourly"], 1, "neither periodic nor revision"),
    ] {
        let (refused, text) = output(etcd(dir.path()).args(&words));
        assert_eq!(refused.status.code(), Some(code), "{words:?}: {text}");
        assert!(text.contains(expected), "{words:?}: {expected:?} is missing from:\n{text}");
    }
    let (version, text) = output(etcd(dir.path()).arg("--version"));
    assert!(version.status.success() && text.starts_with("etcd Version: 3."), "{text}");
    let (help, text) = output(etcd(dir.path()).arg("--help"));
    assert!(help.status.success() && text.contains("--quota-backend-bytes"), "{text}");
    // The same without the link.
    let (same, text) = output(support::tidelock().args(["etcd", "--no-such"]));
    assert!(same.status.code() == Some(2) && text.contains("not defined: -no-such"), "{text}");

    std::fs::create_dir_all(dir.path().join("default.etcd/member/wal")).unwrap();
    let (refused, text) = output(&mut etcd(dir.path()));
    assert_eq!(refused.status.code(), Some(1));
    assert!(text.contains("holds the data of a real etcd"), "{text}");
}

/// etcd's dashboard and alerts ask for these by name; one that is missing is a blank panel or an alert that
/// never fires.
#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_that_dashboards_and_alerts_use_are_there_and_move() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, port) = single(dir.path(), &["--metrics=extensive", "--quota-backend-bytes=1000000"]);
    let address = url(port);
    for at in 0..5 {
        kv(&address).put(put(format!("k{at}"), "v")).await.unwrap();
    }
    kv(&address).range(get("k0")).await.unwrap();
    kv(&address).range(pb::RangeRequest::default()).await.unwrap_err();
    let (code, text) = http(port, "GET", "/metrics", "").unwrap();
    assert_eq!(code, 200);
    let value = |series: &str| -> f64 {
        let line = text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
        line.unwrap_or_else(|| panic!("{series} is missing from:\n{text}")).rsplit(' ').next().unwrap().parse().unwrap()
    };
    let method =
        |method: &str| format!("grpc_method=\"{method}\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"");
    for (series, expected) in [
        ("etcd_server_has_leader", 1.0),
        ("etcd_server_is_leader", 1.0),
        ("etcd_server_is_learner", 0.0),
        ("etcd_server_proposals_pending", 0.0),
        ("etcd_server_proposals_failed_total", 0.0),
        ("etcd_server_leader_changes_seen_total", 0.0),
        ("etcd_server_quota_backend_bytes", 1_000_000.0),
        ("etcd_server_version{server_version=\"3.7.0\"}", 1.0),
        ("etcd_cluster_version{cluster_version=\"3.7\"}", 1.0),
        ("etcd_mvcc_put_total", 5.0),
        ("etcd_debugging_mvcc_put_total", 5.0),
        ("etcd_mvcc_delete_total", 0.0),
        ("etcd_debugging_mvcc_keys_total", 5.0),
        ("etcd_debugging_mvcc_current_revision", 6.0),
        ("etcd_debugging_mvcc_watcher_total", 0.0),
        (&format!("grpc_server_started_total{{{}}}", method("Put")), 5.0),
        (&format!("grpc_server_handled_total{{grpc_code=\"OK\",{}}}", method("Put")), 5.0),
        (&format!("grpc_server_handled_total{{grpc_code=\"InvalidArgument\",{}}}", method("Range")), 1.0),
        (&format!("grpc_server_handling_seconds_count{{{}}}", method("Put")), 5.0),
    ] {
        assert_eq!(value(series), expected, "{series}");
    }
    for series in [
        "etcd_server_proposals_committed_total",
        "etcd_server_proposals_applied_total",
        "etcd_mvcc_db_total_size_in_bytes",
        "etcd_mvcc_db_total_size_in_use_in_bytes",
        "etcd_mvcc_range_total",
        "etcd_disk_wal_fsync_duration_seconds_count",
        "etcd_disk_wal_fsync_duration_seconds_bucket{le=\"+Inf\"}",
        "etcd_disk_backend_commit_duration_seconds_count",
        "etcd_network_client_grpc_received_bytes_total",
        "etcd_network_client_grpc_sent_bytes_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_max_fds",
        "process_start_time_seconds",
    ] {
        assert!(value(series) > 0.0, "{series}");
    }
    // Prometheus drops a whole scrape over one malformed or repeated line.
    let mut seen = std::collections::HashSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok() && seen.insert(series), "{line}");
    }
}

/// `etcdctl member add`, then a start with `existing`: the documented way to grow a cluster. And H21: with its
/// disk wiped, the same member must not come back under its id.
#[tokio::test(flavor = "multi_thread")]
async fn h21_a_member_added_by_hand_starts_once_and_never_again_on_an_empty_disk() {
    let dir = tempfile::tempdir().unwrap();
    let ports = pairs(2);
    let mut first = Member::start(member(dir.path(), "m0", &ports[..1], 0, "new"), dir.path(), "m0");
    first.wait_until_ready();
    let address = url(ports[0].0);
    kv(&address).put(put("k", "v")).await.unwrap();
    let added = cluster(&address)
        .member_add(pb::MemberAddRequest { peer_ur_ls: vec![url(ports[1].1)], is_learner: false })
        .await
        .unwrap()
        .into_inner();
    let id = added.member.unwrap().id;

    let mut second = Member::start(member(dir.path(), "m1", &ports, 1, "existing"), dir.path(), "m1");
    second.wait_until_ready();
    let found = within("an answer", async { kv(&url(ports[1].0)).range(get("k")).await }).await.unwrap().into_inner();
    assert_eq!(found.kvs[0].value, "v");
    let listed = cluster(&address).member_list(pb::MemberListRequest::default()).await.unwrap().into_inner();
    assert!(listed.members.iter().any(|member| member.id == id && member.name == "m1"), "{listed:?}");

    // With its disk it comes back as who it was.
    second.terminate();
    let mut second = Member::start(member(dir.path(), "m1", &ports, 1, "existing"), dir.path(), "m1-again");
    second.wait_until_ready();
    wait_for("the write to pass again", || {
        let address = address.clone();
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async { kv(&address).put(put("k", "w")).await.ok() })
        })
    });

    // Without it, never.
    second.kill();
    std::fs::remove_dir_all(dir.path().join("m1.data")).unwrap();
    let mut wiped = Member::start(member(dir.path(), "m1", &ports, 1, "existing"), dir.path(), "m1-wiped");
    let status = wiped.wait_until_ended();
    assert_eq!(status.code(), Some(1), "{}", wiped.log());
    assert!(wiped.log().contains("remove this member and add it again"), "{}", wiped.log());
}
