//! The space quota: a store that is full refuses to grow, says so, and lets the operator out again.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

#[path = "support/as_etcd.rs"]
mod as_etcd;
mod support;

use as_etcd::{Member, etcd};
use support::requests::{channel, delete_all, kv, put};
use support::{Cluster, Process, free_ports, wait_for};
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::etcdserverpb::maintenance_client::MaintenanceClient;
use tonic::Code;

const QUOTA: usize = 1 << 20;
const VALUE: usize = 64 << 10;
const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";

async fn alarms(url: &str) -> Vec<pb::AlarmMember> {
    let request = pb::AlarmRequest::default();
    MaintenanceClient::new(channel(url)).alarm(request).await.unwrap().into_inner().alarms
}

/// As `etcdctl alarm disarm` does: all that are raised, one by one.
async fn disarm(url: &str) {
    for alarm in alarms(url).await {
        let request = pb::AlarmRequest {
            action: pb::alarm_request::AlarmAction::Deactivate.into(),
            member_id: alarm.member_id,
            alarm: alarm.alarm,
        };
        MaintenanceClient::new(channel(url)).alarm(request).await.unwrap();
    }
}

fn wait_for_alarm(url: &str) -> Vec<pb::AlarmMember> {
    wait_for("the alarm", || {
        let found =
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(async { alarms(url).await }));
        (!found.is_empty()).then_some(found)
    })
}

/// An operator's whole way through a full store, as etcd's manual describes it. On the way: the overshoot is
/// bounded, the alarm holds at all members, lowering it too early does not help, and room can be made.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_stops_growing_everywhere_and_the_operator_gets_it_going_again() {
    let cluster = Cluster::start_with(3, &["--quota-bytes", "1048576"]);
    let urls: Vec<String> = cluster.nodes.iter().map(Process::client_url).collect();
    let mut written = 0;
    let refused = loop {
        match kv(&urls[0]).put(put(format!("big/{written}"), vec![b'v'; VALUE])).await {
            Ok(_) => written += 1,
            Err(status) => break status,
        }
        assert!(written * VALUE <= QUOTA, "{written} values were taken");
    };
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, NO_SPACE));
    assert!(written * VALUE > QUOTA / 2, "the quota is used: {written} values");

    let raised = wait_for_alarm(&urls[1]);
    assert_eq!(raised[0].alarm, i32::from(pb::AlarmType::Nospace));
    // Small ones too, and at the other members.
    let status = kv(&urls[2]).put(put("small", "v")).await.unwrap_err();
    assert_eq!(status.message(), NO_SPACE);

    let (_, metrics) = support::http(cluster.nodes[0].admin_port, "GET", "/metrics", "").unwrap();
    assert!(metrics.contains("etcd_server_quota_backend_bytes 1048576\n"), "{metrics}");

    let gone = kv(&urls[1]).delete_range(delete_all("big/")).await.unwrap().into_inner();
    assert_eq!(gone.deleted, written as i64);
    let revision = gone.header.unwrap().revision;
    kv(&urls[1]).compact(pb::CompactionRequest { revision, physical: true }).await.unwrap();
    let status = kv(&urls[0]).put(put("small", "v")).await.unwrap_err();
    assert_eq!(status.message(), NO_SPACE, "the alarm stays until it is lowered");
    disarm(&urls[2]).await;
    wait_for("writes to be taken", || {
        let url = urls[0].clone();
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async { kv(&url).put(put("small", "v")).await.ok() })
        })
    });
    assert_eq!(alarms(&urls[0]).await, []);
    cluster.wait_until_replicas_agree();
}

/// Lowered while the store is still too large, the alarm must come back: otherwise one careless command turns
/// the quota off.
#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_that_is_lowered_too_early_is_raised_again() {
    let dir = tempfile::tempdir().unwrap();
    let ports = free_ports(2);
    let (url, peer) = (as_etcd::url(ports[0]), as_etcd::url(ports[1]));
    let member = |quota: &str, name: &str| {
        let mut command = etcd(dir.path());
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url, "--listen-peer-urls", &peer]);
        command.args(["--initial-advertise-peer-urls", &peer, "--quota-backend-bytes", quota]);
        let mut member = Member::start(command, dir.path(), name);
        member.wait_until_ready();
        member
    };
    let mut unlimited = member("-1", "unlimited");
    for at in 0..20 {
        kv(&url).put(put(format!("big/{at}"), vec![b'v'; VALUE])).await.unwrap();
    }
    // Started again with a quota that the store is above already.
    unlimited.terminate();
    let _limited = member(&QUOTA.to_string(), "limited");
    for _ in 0..2 {
        wait_for_alarm(&url);
        disarm(&url).await;
    }
    wait_for_alarm(&url);
    let status = kv(&url).put(put("small", "v")).await.unwrap_err();
    assert_eq!(status.message(), NO_SPACE);
}

/// A node that has more to do than it can must still be told to forget history: while it refuses to, it holds more and
/// more with every write that it does take.
#[tokio::test(flavor = "multi_thread")]
async fn history_is_compacted_also_where_too_many_writes_wait() {
    let mut cluster = Cluster::start_with(3, &["--max-proposals-waiting", "1"]);
    let url = cluster.nodes[0].client_url();
    wait_for("a write", || {
        let write = async { kv(&url).put(put("key", "value")).await.ok() };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(write))
    });
    // Nothing is agreed on any more: what is written waits.
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    let waiting = tokio::spawn({
        let url = url.clone();
        async move { kv(&url).put(put("key", "waits")).await }
    });
    let waits = |status: String| status.contains("\"proposals_waiting\":1").then_some(());
    wait_for("the write to wait", || cluster.nodes[0].admin_get("/v1/status").and_then(waits));
    let refused = kv(&url).put(put("key", "one too many")).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, "etcdserver: too many requests"));
    let compacted = kv(&url).compact(pb::CompactionRequest { revision: 2, physical: false }).await;
    let taken = compacted.map_or_else(|status| status.code() != Code::ResourceExhausted, |_| true);
    assert!(taken, "a compaction was refused although nothing but writes is too much");
    drop(waiting.await);
}
