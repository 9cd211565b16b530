//! Backup and restore with the real binary: what is saved comes back with all its numbers, as one node or
//! three, and what cannot be trusted is refused before anything is written.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use support::requests::{get, get_all, kv, leases, put, put_together, watch_from, watches};
use support::{Cluster, Process, http, tidelock, wait_for, within};
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_backup::{BackupReader, ChangeKind, ChecksumRule};

/// Runs a command of the binary; gives what it printed, or what it complained of.
fn run(arguments: &[&str]) -> Result<String, String> {
    let output = tidelock().args(arguments).output().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn save(node: &Process, file: &Path) -> Value {
    let (url, file) = (node.client_url(), file.display().to_string());
    let printed = run(&["snapshot", "save", &file, "--endpoints", &url, "--output", "json"]).unwrap();
    serde_json::from_str(&printed).unwrap()
}

/// Makes a node's data directory; `more` are flags besides name and directory.
fn restore(file: &Path, node: &Process, more: &[&str]) -> Result<Value, String> {
    let (file, dir) = (file.display().to_string(), node.data_dir().display().to_string());
    let arguments = ["snapshot", "restore", &file, "--data-dir", &dir, "--name", &node.name, "--output", "json"];
    Ok(serde_json::from_str(&run(&[&arguments[..], more].concat())?).unwrap())
}

/// A single node over what is in a file.
fn restored(file: &Path) -> Cluster {
    let mut cluster = Cluster::prepare(1, &[]);
    let peer = format!("127.0.0.1:{}", cluster.nodes[0].peer_port);
    restore(file, &cluster.nodes[0], &["--peer-advertise", &peer]).unwrap();
    cluster.start_all();
    cluster
}

fn founders(cluster: &Cluster) -> String {
    let founder = |node: &Process| format!("{}=127.0.0.1:{}", node.name, node.peer_port);
    cluster.nodes.iter().map(founder).collect::<Vec<_>>().join(",")
}

/// Some of everything under `d/`; gives the revision that was compacted and the lease.
async fn fill(url: &str) -> (i64, i64) {
    let (mut kv, mut leases) = (kv(url), leases(url));
    let grant = pb::LeaseGrantRequest { ttl: 3_600, id: 0 };
    let lease = leases.lease_grant(grant).await.unwrap().into_inner().id;
    for round in 0..5 {
        for key in 0..20 {
            kv.put(put(format!("d/{key:02}"), format!("{round}"))).await.unwrap();
        }
        let together = (0..10).map(|key| put(format!("d/t{key}"), format!("{round}")));
        kv.txn(put_together(together)).await.unwrap();
        let gone = pb::DeleteRangeRequest { key: format!("d/0{round}").into(), ..Default::default() };
        kv.delete_range(gone).await.unwrap();
    }
    kv.put(pb::PutRequest { lease, ..put("d/leased", "x") }).await.unwrap();
    let compacted = kv.put(put("d/00", "last")).await.unwrap().into_inner().header.unwrap().revision - 30;
    kv.compact(pb::CompactionRequest { revision: compacted, physical: true }).await.unwrap();
    (compacted, lease)
}

async fn items_at(url: &str, revision: i64) -> Vec<tidelock_etcd_api::mvccpb::KeyValue> {
    kv(url).range(pb::RangeRequest { revision, ..get_all("d/") }).await.unwrap().into_inner().kvs
}

async fn revision(url: &str) -> i64 {
    kv(url).range(get("d/none")).await.unwrap().into_inner().header.unwrap().revision
}

/// All events under `d/` from a revision to another.
async fn events(url: &str, from: i64, to: i64) -> Vec<(i32, tidelock_etcd_api::mvccpb::KeyValue)> {
    let mut answers = watches(url).watch(watching(from)).await.unwrap().into_inner();
    let mut found = Vec::new();
    within("all events", async {
        while found.last().is_none_or(|(_, kv): &(i32, tidelock_etcd_api::mvccpb::KeyValue)| kv.mod_revision < to) {
            let answer = answers.message().await.unwrap().expect("the stream goes on");
            assert_eq!(answer.compact_revision, 0);
            found.extend(answer.events.into_iter().map(|event| (event.r#type, event.kv.unwrap())));
        }
    })
    .await;
    found
}

/// The requests of a watch stream that its client does not close.
fn watching(from: i64) -> impl futures_util::Stream<Item = pb::WatchRequest> + Send + 'static {
    use futures_util::StreamExt as _;
    futures_util::stream::iter([watch_from("d/", from)]).chain(futures_util::stream::pending())
}

/// The promise of a backup: every revision that could be read, every event that could be watched and every
/// lease is there again, and the restored node is a node like any other.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_saved_comes_back_with_its_history_leases_and_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("backup.db");
    let old = Cluster::start(1);
    let old_url = old.nodes[0].client_url();
    let (compacted, lease) = fill(&old_url).await;
    let report = save(&old.nodes[0], &file);
    let last = revision(&old_url).await;
    assert_eq!((report["revision"].as_i64(), report["compacted"].as_i64()), (Some(last), Some(compacted)));
    assert_eq!(report["checksum"], "matches");

    let mut new = restored(&file);
    let url = new.nodes[0].client_url();
    for at in compacted..=last {
        assert_eq!(items_at(&url, at).await, items_at(&old_url, at).await, "at revision {at}");
    }
    assert_eq!(events(&url, compacted, last).await, events(&old_url, compacted, last).await);
    let too_old = kv(&url).range(pb::RangeRequest { revision: compacted - 1, ..get_all("d/") }).await.unwrap_err();
    assert!(too_old.message().contains("compacted"), "{too_old}");
    let ttl = pb::LeaseTimeToLiveRequest { id: lease, keys: true };
    let ttl = leases(&url).lease_time_to_live(ttl).await.unwrap().into_inner();
    assert_eq!((ttl.granted_ttl, ttl.keys.len()), (3_600, 1));

    // It goes on where the old one was, over restarts, and can be saved again and joined.
    kv(&url).put(put("d/00", "new")).await.unwrap();
    leases(&url).lease_revoke(pb::LeaseRevokeRequest { id: lease }).await.unwrap();
    new.nodes[0].kill();
    new.nodes[0].start();
    new.nodes[0].wait_until_ready();
    let now = items_at(&url, 0).await;
    let changed = now.iter().find(|item| item.key == "d/00").unwrap();
    assert_eq!((changed.mod_revision, &changed.value[..]), (last + 1, &b"new"[..]));
    assert!(now.iter().all(|item| item.lease == 0), "what the lease owned is gone with it");
    assert_eq!(save(&new.nodes[0], &file)["revision"].as_i64(), Some(last + 2));
    let joining = new.add_joining("b");
    joining.start();
    joining.wait_until_ready();
    let joined = new.nodes[1].client_url();
    support::until::until("the new member to be a voter", async || kv(&joined).range(get("d/none")).await.ok()).await;
    assert_eq!(items_at(&joined, compacted).await, items_at(&old_url, compacted).await);
    new.wait_until_replicas_agree();
}

/// R5: the members of a restored cluster never exchange what they restored. They must have it all the same,
/// to the bit, and form a cluster that survives the loss of one.
#[tokio::test(flavor = "multi_thread")]
async fn three_members_restored_from_one_file_agree_and_lose_nothing_when_one_dies() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("backup.db");
    let old = Cluster::start(1);
    let old_url = old.nodes[0].client_url();
    let (compacted, _) = fill(&old_url).await;
    save(&old.nodes[0], &file);

    let mut new = Cluster::prepare(3, &[]);
    let founders = founders(&new);
    let flags = ["--initial-cluster", &founders, "--cluster-token", "again"];
    let reports: Vec<Value> = new.nodes.iter().map(|node| restore(&file, node, &flags).unwrap()).collect();
    assert!(reports.iter().all(|report| report["digest"] == reports[0]["digest"]));
    assert!(reports.iter().all(|report| report["cluster"] == reports[0]["cluster"]));
    new.start_all();
    new.wait_until_replicas_agree();
    for node in &new.nodes {
        assert_eq!(items_at(&node.client_url(), compacted).await, items_at(&old_url, compacted).await);
    }
    let leader = new.wait_for_leader();
    new.nodes[leader].kill();
    let other = new.nodes[(leader + 1) % 3].client_url();
    support::until::until("a write after the leader died", async || kv(&other).put(put("d/x", "y")).await.ok()).await;
    new.nodes[leader].start();
    new.nodes[leader].wait_until_ready();
    new.wait_until_replicas_agree();
}

/// Members that began with different data, or in different clusters, would silently differ for ever. Their
/// cluster's id must tell them apart before they exchange a word.
#[tokio::test(flavor = "multi_thread")]
async fn only_members_made_from_the_same_data_with_the_same_flags_are_one_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = ["one.db", "other.db"].map(|name| dir.path().join(name));
    let old = Cluster::start(1);
    kv(&old.nodes[0].client_url()).put(put("d/1", "1")).await.unwrap();
    save(&old.nodes[0], &one);
    kv(&old.nodes[0].client_url()).put(put("d/1", "2")).await.unwrap();
    save(&old.nodes[0], &other);
    let founders = founders(&Cluster::prepare(3, &[]));
    let cluster_of = |file: &PathBuf, more: &[&str]| {
        let node = Cluster::prepare(1, &[]);
        restore(file, &node.nodes[0], more).unwrap()["cluster"].as_str().unwrap().to_owned()
    };
    let three = ["--initial-cluster", &founders];
    let with_token = [&three[..], &["--cluster-token", "t"]].concat();
    let bumped = [&three[..], &["--bump-revision", "10"]].concat();
    assert_eq!(cluster_of(&one, &three), cluster_of(&one, &three));
    let mut clusters = vec![
        cluster_of(&one, &three),
        cluster_of(&other, &three),
        cluster_of(&one, &with_token),
        cluster_of(&one, &bumped),
        // Alone, a cluster is a new one each time.
        cluster_of(&one, &[]),
        cluster_of(&one, &[]),
    ];
    clusters.sort();
    clusters.dedup();
    assert_eq!(clusters.len(), 6);
}

/// Clients that saw revisions after the backup must not be told of other changes under the same numbers.
#[tokio::test(flavor = "multi_thread")]
async fn a_bumped_revision_and_a_marked_history_make_old_watchers_begin_anew() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("backup.db");
    let old = Cluster::start(1);
    fill(&old.nodes[0].client_url()).await;
    let last = save(&old.nodes[0], &file)["revision"].as_i64().unwrap();
    let mut new = Cluster::prepare(1, &[]);
    restore(&file, &new.nodes[0], &["--mark-compacted"]).unwrap_err();
    restore(&file, &new.nodes[0], &["--bump-revision", "1000", "--mark-compacted"]).unwrap();
    new.start_all();
    let url = new.nodes[0].client_url();
    assert_eq!(revision(&url).await, last + 1_000);
    assert_eq!(items_at(&url, 0).await, items_at(&old.nodes[0].client_url(), 0).await);
    let mut answers = watches(&url).watch(watching(last)).await.unwrap().into_inner();
    let told = within("the end of the old watch", async {
        loop {
            let answer = answers.message().await.unwrap().unwrap();
            if answer.canceled {
                return answer.compact_revision;
            }
        }
    });
    assert_eq!(told.await, last + 1_000);
    let written = kv(&url).put(put("d/00", "new")).await.unwrap().into_inner();
    assert_eq!(written.header.unwrap().revision, last + 1_001);
}

/// A backup is of one moment: two keys that are always written together must never be found apart, however
/// much is written, compacted and swept while it is taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_of_one_revision_while_writes_and_compactions_go_on() {
    const PAIRS: usize = 400;
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(1);
    let url = cluster.nodes[0].client_url();
    let stop = Arc::new(AtomicBool::new(false));
    let write = |from: usize| {
        let (mut kv, stop) = (kv(&url), stop.clone());
        tokio::spawn(async move {
            let mut round = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                for pair in (from..PAIRS).step_by(4) {
                    let pair = ["x", "y"].map(|side| put(format!("d/{pair}/{side}"), format!("{round}")));
                    kv.txn(put_together(pair)).await.unwrap();
                }
                round += 1;
                let header = kv.range(get("d/none")).await.unwrap().into_inner().header.unwrap();
                // Another may have compacted further meanwhile.
                let compact = pb::CompactionRequest { revision: header.revision, physical: false };
                drop(kv.compact(compact).await);
            }
        })
    };
    let writers: Vec<_> = (0..4).map(write).collect();
    support::until::until("all pairs", async || (items_at(&url, 0).await.len() == 2 * PAIRS).then_some(())).await;
    for attempt in 0..5 {
        let file = dir.path().join(format!("{attempt}.db"));
        let report = save(&cluster.nodes[0], &file);
        let mut live = BTreeMap::new();
        for change in BackupReader::open(&file, ChecksumRule::Required).unwrap().changes() {
            match change.unwrap().kind {
                ChangeKind::Put(record) => _ = live.insert(record.key.clone(), record),
                other => panic!("nothing was deleted: {other:?}"),
            }
        }
        assert_eq!(live.len(), 2 * PAIRS);
        let sides: Vec<_> = live.values().map(|record| (&record.value, record.mod_revision)).collect();
        assert!(sides.chunks(2).all(|pair| pair[0] == pair[1]), "a transaction is there by half");
        assert!(live.values().all(|record| record.mod_revision <= report["revision"].as_i64().unwrap()));
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
}

/// Whoever restores is in trouble already. A file that lost something on the way must be refused by name,
/// and the target must be left as it was.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_cut_and_foreign_files_are_refused_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let good = dir.path().join("good.db");
    let old = Cluster::start(1);
    fill(&old.nodes[0].client_url()).await;
    save(&old.nodes[0], &good);
    let bytes = std::fs::read(&good).unwrap();
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 1;
    let unsealed = &bytes[..bytes.len() - 32];
    let bad: [(&str, &[u8]); 6] = [
        ("flipped.db", &flipped),
        ("cut.db", &bytes[..bytes.len() / 2 + 100]),
        ("unsealed.db", unsealed),
        ("empty.db", &[]),
        ("text.db", b"this is not a snapshot at all"),
        ("missing.db", &[]),
    ];
    let target = Cluster::prepare(1, &[]);
    for (name, bytes) in bad {
        let file = dir.path().join(name);
        if name != "missing.db" {
            std::fs::write(&file, bytes).unwrap();
        }
        let told = restore(&file, &target.nodes[0], &[]).unwrap_err();
        assert!(told.contains(name), "{told}");
        if name != "unsealed.db" {
            let told = run(&["snapshot", "status", &file.display().to_string()]).unwrap_err();
            assert!(told.contains(name), "{told}");
        }
        let around = target.nodes[0].data_dir().parent().unwrap().to_owned();
        assert_eq!(std::fs::read_dir(around).unwrap().count(), 0, "{name}");
    }
    // What has no checksum is taken if that is meant; what has a directory of its own is not touched.
    restore(&dir.path().join("unsealed.db"), &target.nodes[0], &["--skip-hash-check"]).unwrap();
    let told = restore(&good, &target.nodes[0], &[]).unwrap_err();
    assert!(told.contains("not empty"), "{told}");
    // A node that cannot be reached leaves no file behind, nor does it take one away.
    let here = good.display().to_string();
    run(&["snapshot", "save", &here, "--endpoints", "http://127.0.0.1:1"]).unwrap_err();
    assert_eq!(std::fs::read(&good).unwrap(), bytes);
}

/// Programs without gRPC back up through the gateway: the same blobs, a line each.
#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_streams_snapshots_too() {
    let cluster = Cluster::start(1);
    kv(&cluster.nodes[0].client_url()).put(put("d/1", "1")).await.unwrap();
    let answer = http(cluster.nodes[0].client_port, "POST", "/v3/maintenance/snapshot", "{}");
    let (status, body) = answer.expect("the gateway answers");
    assert_eq!(status, 200);
    let lines: Vec<Value> = body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() >= 2 && lines.iter().all(|line| line["result"]["blob"].is_string()), "{body}");
    assert_eq!(lines[0]["result"]["version"], "3.7.0");
}

/// Nobody can save a thousand times at once: each takes the room of a whole store on the journal's disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_third_snapshot_at_a_time_is_turned_away_and_served_later() {
    use tidelock_etcd_api::etcdserverpb::maintenance_client::MaintenanceClient;
    let cluster = Cluster::start(1);
    let url = cluster.nodes[0].client_url();
    // More than waits in queues and sockets on the way.
    for key in 0..60 {
        kv(&url).put(put(format!("d/{key}"), vec![b'x'; 1 << 20])).await.unwrap();
    }
    let mut client = MaintenanceClient::new(support::requests::channel(&url));
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = client.snapshot(pb::SnapshotRequest {}).await.unwrap().into_inner();
        within("the first blob", stream.message()).await.unwrap().unwrap();
        held.push(stream);
    }
    let refused = client.snapshot(pb::SnapshotRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    drop(held);
    wait_for("a place to be free again", || {
        let (url, file) = (url.clone(), tempfile::NamedTempFile::new().unwrap());
        let file = file.path().display().to_string();
        run(&["snapshot", "save", &file, "--endpoints", &url]).ok()
    });
}
