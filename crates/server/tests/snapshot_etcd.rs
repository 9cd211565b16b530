//! Migration in and the exit ramp out, with a real etcd: its files restored here, ours restored there.
//!
//! Runs with the `etcd` and `etcdctl` on the `PATH` and is skipped without them.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

#[path = "../../etcd-backup/tests/etcd_process/mod.rs"]
#[allow(dead_code)]
mod etcd_process;
mod support;

use std::path::Path;

use etcd_process::{Etcd, PrintedKey, find, run};
use serde_json::Value;
use support::{Cluster, tidelock};

fn etcd_is_missing() -> bool {
    let missing = find("etcd").is_none() || find("etcdctl").is_none();
    if missing {
        eprintln!("skipped: etcd and etcdctl are not on the PATH");
    }
    missing
}

/// What etcdctl prints as a number: zero is left out, and newer tools print texts.
fn number(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

/// All keys as of a revision, asked of us by etcd's own tool.
fn keys(url: &str, revision: i64) -> Vec<PrintedKey> {
    let revision = format!("--rev={revision}");
    let printed = run("etcdctl", &["get", "", "--prefix", "-w", "json", &revision, "--endpoints", url], "");
    let answer: Value = serde_json::from_str(&printed).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let numbers = |key: &Value| ["create_revision", "mod_revision", "version", "lease"].map(|name| number(&key[name]));
    let key = |key: &Value| (text(&key["key"]), text(&key["value"]), numbers(key));
    answer["kvs"].as_array().map(|keys| keys.iter().map(key).collect()).unwrap_or_default()
}

fn ctl(url: &str, arguments: &[&str], input: &str) -> String {
    run("etcdctl", &[arguments, &["--endpoints", url]].concat(), input)
}

/// A bit of everything; gives the revision that was compacted.
fn use_everything(url: &str) -> i64 {
    for round in 0..12 {
        // A transaction takes 128 operations.
        let puts: String = (0..100).map(|key| format!("put /bulk/{key:03} {round}{}\n", "v".repeat(180))).collect();
        ctl(url, &["txn"], &format!("\n{puts}\n\n"));
        ctl(url, &["del", &format!("/bulk/0{round:02}")], "");
    }
    ctl(url, &["put", "/large"], &"x".repeat(300_000));
    let granted = ctl(url, &["lease", "grant", "3600"], "");
    ctl(url, &["put", "/leased", "value", "--lease", granted.split(' ').nth(1).unwrap()], "");
    ctl(url, &["del", "/bulk/09", "--prefix"], "");
    let compacted = revision(url) - 8;
    ctl(url, &["compaction", "--physical", &compacted.to_string()], "");
    for value in ["1", "2", "3"] {
        ctl(url, &["put", "/a", value], "");
    }
    compacted
}

fn revision(url: &str) -> i64 {
    let printed = ctl(url, &["get", "no such key", "-w", "json"], "");
    number(&serde_json::from_str::<Value>(&printed).unwrap()["header"]["revision"])
}

fn leases(url: &str) -> Vec<String> {
    let mut ids: Vec<String> = ctl(url, &["lease", "list"], "").lines().skip(1).map(str::to_owned).collect();
    ids.sort();
    ids
}

fn restore_here(file: &Path, more: &[&str]) -> Cluster {
    let mut cluster = Cluster::prepare(1, &[]);
    let output = tidelock()
        .args(["snapshot", "restore"])
        .arg(file)
        .args(["--name", &cluster.nodes[0].name, "--data-dir"])
        .arg(cluster.nodes[0].data_dir())
        .args(more)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    cluster.start_all();
    cluster
}

/// The exit ramp: whoever moved here must be able to move back, with every key at every revision.
#[test]
fn what_etcdctl_saves_here_is_served_by_a_real_etcd() {
    if etcd_is_missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("saved.db");
    let cluster = Cluster::start(1);
    let url = cluster.nodes[0].client_url();
    let compacted = use_everything(&url);
    let last = revision(&url);
    ctl(&url, &["snapshot", "save", &file.display().to_string()], "");
    let [_, told, _, _] = etcd_process::status(&file);
    assert_eq!(told, last);
    let etcd = Etcd::start(&dir.path().join("etcd"), Some(&file), None);
    assert_eq!(etcd.revision(), last);
    for at in compacted..=last {
        assert_eq!(etcd.keys(at), keys(&url, at), "at revision {at}");
    }
    assert!(etcd.refuses(&["get", "/a", &format!("--rev={}", compacted - 1)]));
    assert_eq!(etcd.leases(), leases(&url));
    etcd.ctl(&["put", "/a", "4"]);
    etcd.ctl(&["compaction", "--physical", &(last + 1).to_string()]);
    assert_eq!(etcd.revision(), last + 1);
    etcd.stop();
}

/// The way in: a file of `etcdctl snapshot save`, and a copy of a stopped member's database, become a node
/// that answers as the etcd did.
#[test]
fn what_a_real_etcd_held_is_served_here() {
    if etcd_is_missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (file, data) = (dir.path().join("saved.db"), dir.path().join("etcd"));
    let etcd = Etcd::start(&data, None, None);
    let compacted = use_everything(etcd.endpoint());
    let last = etcd.revision();
    let expected: Vec<_> = (compacted..=last).map(|at| etcd.keys(at)).collect();
    let their_leases = etcd.leases();
    etcd.ctl(&["snapshot", "save", &file.display().to_string()]);
    etcd.stop();
    let copy = data.join("member/snap/db");
    for (file, flags) in [(&file, &[][..]), (&copy, &["--skip-hash-check"])] {
        let cluster = restore_here(file, flags);
        let url = cluster.nodes[0].client_url();
        assert_eq!(revision(&url), last);
        for (at, expected) in (compacted..=last).zip(&expected) {
            assert_eq!(&keys(&url, at), expected, "at revision {at}");
        }
        assert_eq!(leases(&url), their_leases);
        ctl(&url, &["put", "/a", "4"], "");
        assert_eq!(revision(&url), last + 1);
    }
}

/// Who could do what must survive the way out and the way back, passwords included: a restored store that lets
/// everybody in, or nobody, is no backup.
#[test]
fn users_and_their_rights_travel_both_ways() {
    if etcd_is_missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let cluster = Cluster::start(1);
    let url = cluster.nodes[0].client_url();
    for command in [
        &["put", "/a/1", "hers"][..],
        &["role", "add", "writer"],
        &["role", "grant-permission", "writer", "readwrite", "/a/", "--prefix"],
        &["user", "add", "alice:wonder"],
        &["user", "grant-role", "alice", "writer"],
        &["user", "add", "root:secret"],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        ctl(&url, command, "");
    }
    let ask = |url: &str, user: &str, command: &[&str]| {
        let mut etcdctl = std::process::Command::new("etcdctl");
        etcdctl.env("ETCDCTL_API", "3").args(command).args(["--user", user, "--endpoints", url]);
        let output = etcdctl.output().unwrap();
        if output.status.success() {
            String::from_utf8(output.stdout).unwrap()
        } else {
            String::from_utf8(output.stderr).unwrap()
        }
    };
    let judge = |url: &str, whose: &str| {
        assert_eq!(ask(url, "alice:wonder", &["get", "/a/1", "--print-value-only"]), "hers\n", "{whose}");
        assert!(ask(url, "alice:wonder", &["put", "/b", "x"]).contains("permission denied"), "{whose}");
        assert!(ask(url, "alice:wrong", &["get", "/a/1"]).contains("authentication failed"), "{whose}");
        assert_eq!(ask(url, "root:secret", &["user", "list"]), "alice\nroot\n", "{whose}");
    };
    judge(&url, "ours");

    ask(&url, "root:secret", &["snapshot", "save", &file("ours.db")]);
    let etcd = Etcd::start(&dir.path().join("etcd"), Some(Path::new(&file("ours.db"))), Some("root:secret"));
    judge(etcd.endpoint(), "etcd's");
    etcd.ctl(&["snapshot", "save", &file("theirs.db")]);
    etcd.stop();
    let back = restore_here(Path::new(&file("theirs.db")), &[]);
    judge(&back.nodes[0].client_url(), "ours again");
}
