//! What operators look at and decide: alarms that stay, hashes that agree, listings that stream.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use support::requests::{channel, delete_all, get_all, kv, put, put_together};
use support::{Cluster, wait_for, within};
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::etcdserverpb::maintenance_client::MaintenanceClient;
use tonic::Code;
use tonic::transport::Channel;

fn maintenance(url: &str) -> MaintenanceClient<Channel> {
    MaintenanceClient::new(channel(url))
}

fn alarm(action: pb::alarm_request::AlarmAction, alarm: pb::AlarmType) -> pb::AlarmRequest {
    pb::AlarmRequest { action: action.into(), member_id: 77, alarm: alarm.into() }
}

/// An operator raises the alarm before the disk is full, or the monitoring does. It must hold at every node,
/// outlive restarts, and be lowered by hand only.
#[tokio::test(flavor = "multi_thread")]
async fn a_space_alarm_holds_everywhere_and_outlives_restarts_until_it_is_lowered() {
    use pb::alarm_request::AlarmAction::{Activate, Deactivate, Get};
    let mut cluster = Cluster::start(3);
    let urls: Vec<String> = cluster.nodes.iter().map(support::Process::client_url).collect();
    kv(&urls[0]).put(put("old/1", "v")).await.unwrap();
    let raised = maintenance(&urls[0]).alarm(alarm(Activate, pb::AlarmType::Nospace)).await.unwrap().into_inner();
    let expected = pb::AlarmMember { member_id: 77, alarm: pb::AlarmType::Nospace.into() };
    assert_eq!(raised.alarms, [expected]);

    let status = kv(&urls[1]).put(put("new", "v")).await.unwrap_err();
    let no_space = "etcdserver: mvcc: database space exceeded";
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, no_space));
    let listed = maintenance(&urls[2]).alarm(alarm(Get, pb::AlarmType::None)).await.unwrap().into_inner();
    assert_eq!(listed.alarms, [expected]);
    let status = maintenance(&urls[2]).status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.errors, ["memberID:77 alarm:NOSPACE "]);

    // From a snapshot alone, and from the journal.
    let (code, answer) = support::http(cluster.nodes[0].admin_port, "POST", "/v1/snapshot", "").unwrap();
    assert_eq!(code, 200, "{answer}");
    cluster.nodes.iter_mut().for_each(support::Process::kill);
    cluster.start_all();
    let refused = wait_for("an answer after the restart", || {
        let url = urls[0].clone();
        let asked = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async { kv(&url).put(put("new", "v")).await })
        });
        asked.err().filter(|status| status.code() != Code::Unavailable)
    });
    assert_eq!(refused.message(), no_space);

    let gone = kv(&urls[1]).delete_range(delete_all("old/")).await.unwrap().into_inner();
    assert_eq!(gone.deleted, 1, "space can be freed");
    let lowered = maintenance(&urls[1]).alarm(alarm(Deactivate, pb::AlarmType::Nospace)).await.unwrap().into_inner();
    assert_eq!(lowered.alarms, [expected]);
    kv(&urls[2]).put(put("new", "v")).await.unwrap();
    cluster.wait_until_replicas_agree();
}

/// H24: members that should be equal are compared by these; a false alarm costs a night, a missed one data.
#[tokio::test(flavor = "multi_thread")]
async fn hashes_agree_between_members_at_one_revision_and_change_with_the_data() {
    let cluster = Cluster::start(3);
    let urls: Vec<String> = cluster.nodes.iter().map(support::Process::client_url).collect();
    let hash = |url: String, revision: i64| async move {
        maintenance(&url).hash_kv(pb::HashKvRequest { revision }).await.map(tonic::Response::into_inner)
    };
    let empty = hash(urls[0].clone(), 0).await.unwrap();
    assert_eq!((empty.hash_revision, empty.compact_revision), (1, -1));
    for value in ["1", "2", "3"] {
        kv(&urls[0]).put(put("k", value)).await.unwrap();
    }
    cluster.wait_until_replicas_agree();
    let mut seen = Vec::new();
    for revision in 2..=4 {
        let one = hash(urls[0].clone(), revision).await.unwrap();
        assert_eq!(one.hash_revision, revision);
        for url in &urls[1..] {
            assert_eq!(hash(url.clone(), revision).await.unwrap().hash, one.hash, "at {revision}");
        }
        seen.push(one.hash);
    }
    let before = hash(urls[1].clone(), 0).await.unwrap();
    assert_eq!((before.hash, before.hash_revision), (seen[2], 4));
    seen.push(empty.hash);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 4, "every revision has a hash of its own");

    kv(&urls[0]).compact(pb::CompactionRequest { revision: 4, physical: true }).await.unwrap();
    let compacted = hash(urls[0].clone(), 4).await.unwrap();
    assert_eq!((compacted.hash, compacted.compact_revision), (before.hash, 4), "compaction changes no hash");
    assert_eq!(hash(urls[0].clone(), 3).await.unwrap_err().code(), Code::OutOfRange);
    assert_eq!(hash(urls[0].clone(), 99).await.unwrap_err().code(), Code::OutOfRange);

    // Whatever is applied between two of these calls, such as a new leader's first entry, makes their answers differ.
    let applied =
        || cluster.nodes.iter().map(|node| node.status().map(|status| status["applied"].clone())).collect::<Vec<_>>();
    let mut whole = Vec::new();
    for _ in 0..20 {
        cluster.wait_until_replicas_agree();
        let before = applied();
        whole.clear();
        for url in &urls {
            whole.push(maintenance(url).hash(pb::HashRequest {}).await.unwrap().into_inner().hash);
        }
        if applied() == before {
            break;
        }
    }
    whole.dedup();
    assert_eq!(whole.len(), 1);
}

/// A listing that takes long must show one revision, whatever is written meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_listing_is_the_one_range_gives_though_keys_change_meanwhile() {
    const KEYS: usize = 2_000;
    let cluster = Cluster::start(1);
    let url = cluster.nodes[0].client_url();
    let names: Vec<String> = (0..KEYS).map(|at| format!("list/{at:05}")).collect();
    for some in names.chunks(100) {
        kv(&url).txn(put_together(some.iter().map(|name| put(name.as_str(), vec![b'v'; 2_000])))).await.unwrap();
    }
    let whole = kv(&url).range(get_all("list/")).await.unwrap().into_inner();
    let mut stream = kv(&url).range_stream(get_all("list/")).await.unwrap().into_inner();
    let mut streamed = pb::RangeResponse::default();
    let mut parts = 0;
    while let Some(part) = within("a part", stream.message()).await.unwrap() {
        let part = part.range_response.unwrap();
        parts += 1;
        assert!(streamed.header.is_none(), "the part with the header is the last");
        streamed.kvs.extend(part.kvs);
        (streamed.header, streamed.count, streamed.more) = (part.header, part.count, part.more);
        // Keys at the end are deleted before the listing comes to them, and new ones appear.
        kv(&url)
            .delete_range(pb::DeleteRangeRequest { key: names[KEYS - parts].clone().into(), ..Default::default() })
            .await
            .unwrap();
        kv(&url).put(put(format!("list/{parts:05}x"), "new")).await.unwrap();
    }
    assert!(parts > 4, "{parts} parts");
    assert_eq!(streamed, whole);
}
