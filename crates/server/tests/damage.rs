//! Disks that lie: a bit that turned over (H16) must be noticed and never served, and the node mended from
//! its peers; the torn end of a write that was never acknowledged (H15) is none of that and must not keep
//! a node from starting.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use support::requests::{get_all, kv, put};
use support::{Cluster, Process, wait_for, within};
use tidelock_etcd_api::etcdserverpb as pb;

/// Large, so that the middle of a journal is the middle of a value.
const VALUE_BYTES: usize = 50_000;
const WRITES: usize = 60;
/// What the operator of a damaged node is told to do.
const ADVICE: &str = "remove the data directory and rejoin as a new member";

async fn write(url: &str, prefix: &str) {
    for number in 0..WRITES {
        let value = vec![b'v'; VALUE_BYTES];
        within("a put", kv(url).put(put(format!("{prefix}{number}"), value))).await.unwrap();
    }
}

/// How many keys a node has under a prefix, from its own copy.
async fn count_locally(node: &Process, prefix: &str) -> usize {
    let request = pb::RangeRequest { serializable: true, count_only: true, ..get_all(prefix) };
    within("a count", kv(&node.client_url()).range(request)).await.unwrap().into_inner().count as usize
}

/// Starts a node that must refuse to, and gives back what it said.
fn refused_start(node: &mut Process) -> String {
    let before = node.log().len();
    node.start();
    assert_eq!(node.wait_until_ended().code(), Some(1));
    node.log()[before..].to_owned()
}

/// H16: rot in what was durable. Starting with the rest would forget acknowledged writes or spread bad
/// ones; the node says which file, where, and what to do, and doing that brings it back.
#[tokio::test(flavor = "multi_thread")]
async fn h16_a_node_with_a_damaged_journal_refuses_to_start_and_comes_back_as_a_new_member() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_leader();
    let url = cluster.nodes[leader].client_url();
    write(&url, "before/").await;
    let rotten = (leader + 1) % 3;
    cluster.nodes[rotten].kill();
    let segment = cluster.nodes[rotten].newest_file("segment-");
    let used = segment.used();
    assert!(used > (WRITES * VALUE_BYTES / 2) as u64, "the journal is not where the test looks for it");
    for part in [1, 2, 3] {
        let offset = used / 4 * part;
        segment.flip(offset);
        let said = refused_start(&mut cluster.nodes[rotten]);
        assert!(said.contains(&segment.name) && said.contains("is damaged at byte"), "{said}");
        assert!(said.contains(ADVICE), "{said}");
        segment.flip(offset);
    }
    // Nobody touched the files meanwhile: mended, they are as good as before.
    cluster.nodes[rotten].start();
    cluster.nodes[rotten].wait_until_ready();
    cluster.wait_until_replicas_agree();
    assert_eq!(count_locally(&cluster.nodes[rotten], "before/").await, WRITES);
    cluster.nodes[rotten].kill();
    segment.flip(used / 2);
    refused_start(&mut cluster.nodes[rotten]);

    write(&url, "meanwhile/").await;
    let node = cluster.replace_with_new_member(rotten);
    node.start();
    node.wait_until_ready();
    cluster.wait_until_replicas_agree();
    assert_eq!(count_locally(&cluster.nodes[rotten], "before/").await, WRITES);
    assert_eq!(count_locally(&cluster.nodes[rotten], "meanwhile/").await, WRITES);
    // It counts again: the cluster survives the loss of another one.
    wait_for("the new member to vote", || {
        let members = cluster.nodes[leader].admin_get("/v1/members")?;
        (members.matches("\"voter\"").count() == 3).then_some(())
    });
    let other = (rotten + 1) % 3;
    cluster.nodes[other].kill();
    let url = cluster.nodes[rotten].client_url();
    support::until::until("a write without the other node", async || kv(&url).put(put("after", "")).await.ok()).await;
}

/// H16 for snapshots: the state itself.
#[tokio::test(flavor = "multi_thread")]
async fn h16_a_node_with_a_damaged_snapshot_refuses_to_start() {
    let mut cluster = Cluster::start(1);
    within("a put", kv(&cluster.nodes[0].client_url()).put(put("k", "v"))).await.unwrap();
    cluster.nodes[0].kill();
    let snapshot = cluster.nodes[0].newest_file("snapshot-");
    let used = snapshot.used();
    for offset in [0, used / 3, used / 2, used - 1] {
        snapshot.flip(offset);
        let said = refused_start(&mut cluster.nodes[0]);
        assert!(said.contains(&snapshot.name) && said.contains("is damaged"), "byte {offset}: {said}");
        assert!(said.contains(ADVICE), "byte {offset}: {said}");
        snapshot.flip(offset);
    }
    cluster.nodes[0].start();
    cluster.nodes[0].wait_until_ready();
}

/// H15: a power cut in the middle of a write leaves half a record behind what was acknowledged, or cuts
/// off the note behind it that it was safe. Neither was promised to anybody.
#[tokio::test(flavor = "multi_thread")]
async fn h15_a_torn_end_of_the_journal_is_cut_off_and_nothing_acknowledged_is_lost() {
    let mut cluster = Cluster::start(1);
    let url = cluster.nodes[0].client_url();
    let mut written = 0;
    let half_a_record = [&[0x40, 0, 0, 0, 1, 0, 0, 0][..], &[0xa5; 40]].concat();
    let tears: [&dyn Fn(&support::data_files::DataFile); 4] = [
        &|segment| segment.overwrite(segment.used() + 4, &half_a_record),
        &|segment| segment.overwrite(segment.used().next_multiple_of(512), &[0xff; 512]),
        // The last record says that everything before it is safe; it is 20 bytes long itself.
        &|segment| segment.overwrite(segment.used() - 1, &[0]),
        &|segment| segment.overwrite(segment.used() - 12, &[0; 12]),
    ];
    for (round, tear) in tears.iter().enumerate() {
        for number in 0..20 {
            within("a put", kv(&url).put(put(format!("k/{round}/{number}"), "v"))).await.unwrap();
            written += 1;
        }
        cluster.nodes[0].kill();
        tear(&cluster.nodes[0].newest_file("segment-"));
        cluster.nodes[0].start();
        cluster.nodes[0].wait_until_ready();
        let request = pb::RangeRequest { count_only: true, ..get_all("k/") };
        let answer = within("a count", kv(&url).range(request)).await.unwrap().into_inner();
        assert_eq!(answer.count, written, "after tear {round}");
    }
}
