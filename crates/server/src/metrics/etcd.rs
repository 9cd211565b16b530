//! etcd's names for what this node measures: those that etcd's dashboard and alerts ask for, and their
//! neighbours. What is not measured is not told; docs/etcd-mode.md lists what each one means here and which
//! are missing.

use std::fmt::{Display, Write as _};

use tidelock_coordinator::{Role, Status};
use tidelock_face_etcd::maintenance::ETCD_VERSION;
use tidelock_face_etcd::{CALL_BOUNDS_MS, CallKind, CallReading, MethodReading};
use tidelock_model::NodeId;
use tidelock_node::{BUCKET_BOUNDS_US, HistogramReading, Measured};

use super::head;
use crate::quota::Quota;

/// Everything these metrics are written from.
pub(super) struct Seen<'a> {
    pub(super) status: &'a Status,
    pub(super) measured: &'a Measured,
    pub(super) calls: Option<CallReading>,
    pub(super) quota: Quota,
    pub(super) ranges: u64,
}

/// Appends all of them.
pub(super) fn write(out: &mut String, seen: &Seen<'_>) {
    server(out, seen);
    store(out, seen);
    disk(out, seen.measured);
    peers(out, seen.measured);
    if let Some(calls) = &seen.calls {
        face(out, calls);
    }
}

fn one(out: &mut String, name: &str, kind: &str, help: &str, value: impl Display) {
    head(out, name, kind, help);
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{name} {value}");
}

fn labelled(out: &mut String, name: &str, help: &str, label: &str, value: &str) {
    head(out, name, "gauge", help);
    let _ = writeln!(out, "{name}{{{label}=\"{value}\"}} 1");
}

fn server(out: &mut String, seen: &Seen<'_>) {
    let status = seen.status;
    let gauges: [(&str, &str, u64); 5] = [
        ("etcd_server_has_leader", "Whether this member knows a leader.", u64::from(status.leader.is_some())),
        ("etcd_server_is_leader", "Whether this member leads.", u64::from(status.role == Role::Leader)),
        ("etcd_server_is_learner", "Whether this member is a learner.", u64::from(status.role == Role::Learner)),
        ("etcd_server_proposals_pending", "Writes waiting for their outcome here.", status.proposals_waiting),
        (
            "etcd_server_quota_backend_bytes",
            "The space quota in bytes; 0 if there is none.",
            u64::try_from(seen.quota.told()).unwrap_or(0),
        ),
    ];
    for (name, help, value) in gauges {
        one(out, name, "gauge", help, value);
    }
    // Gauges in etcd as well, because they survive a restart.
    let positions = [
        ("etcd_server_proposals_committed_total", "Last log index known to be agreed on.", status.committed.0),
        ("etcd_server_proposals_applied_total", "Last log index carried out here.", status.applied.0),
    ];
    for (name, help, value) in positions {
        one(out, name, "gauge", help, value);
    }
    let counters = [
        ("etcd_server_leader_changes_seen_total", "Changes of leader seen since the start.", status.leader_changes),
        ("etcd_server_proposals_failed_total", "Writes that came in here and failed.", status.proposals_failed),
    ];
    for (name, help, value) in counters {
        one(out, name, "counter", help, value);
    }
    let id = format!("{:x}", status.node);
    labelled(out, "etcd_server_id", "This member; always 1.", "server_id", &id);
    labelled(out, "etcd_server_version", "The etcd this answers like; always 1.", "server_version", ETCD_VERSION);
    let minor = ETCD_VERSION.rsplit_once('.').map_or(ETCD_VERSION, |(minor, _)| minor);
    labelled(out, "etcd_cluster_version", "The same, of the cluster; always 1.", "cluster_version", minor);
}

fn store(out: &mut String, seen: &Seen<'_>) {
    let (status, measured) = (seen.status, seen.measured);
    let gauges = [
        ("etcd_mvcc_db_total_size_in_bytes", "Bytes of keys and values held, history included.", status.data_bytes),
        ("etcd_mvcc_db_total_size_in_use_in_bytes", "The same: nothing is held without use.", status.data_bytes),
        ("etcd_debugging_mvcc_keys_total", "Live keys.", status.keys),
        ("etcd_debugging_mvcc_watcher_total", "Watchers open here.", status.watchers),
        ("etcd_debugging_mvcc_current_revision", "The store's revision here.", status.revision.0),
        ("etcd_debugging_mvcc_compact_revision", "Oldest revision that can be read.", status.compacted.0),
    ];
    for (name, help, value) in gauges {
        one(out, name, "gauge", help, value);
    }
    for (name, help, value) in [
        ("put_total", "Keys set on this member, whoever asked.", measured.puts),
        ("delete_total", "Keys deleted on this member, whoever asked.", measured.deletes),
        ("txn_total", "Revisions with more than one change.", measured.transactions),
        ("range_total", "Reads of ranges that were asked for here.", seen.ranges),
    ] {
        one(out, &format!("etcd_mvcc_{name}"), "counter", help, value);
        one(out, &format!("etcd_debugging_mvcc_{name}"), "counter", help, value);
    }
    for (name, help, value) in [
        ("etcd_debugging_lease_granted_total", "Leases granted.", measured.leases_granted),
        ("etcd_debugging_lease_revoked_total", "Leases revoked or expired.", measured.leases_ended),
        ("tidelock_renewal_batches_total", "Messages that renew many leases at once.", measured.renewal_batches),
        ("tidelock_renewals_batched_total", "Leases in those messages.", measured.renewals_batched),
    ] {
        one(out, name, "counter", help, value);
    }
}

fn disk(out: &mut String, measured: &Measured) {
    let sync = "How long it took to make a batch of the journal durable.";
    durations(out, "etcd_disk_wal_fsync_duration_seconds", sync, &measured.sync);
    let apply = "How long it took to carry out a batch of entries in memory.";
    durations(out, "etcd_disk_backend_commit_duration_seconds", apply, &measured.apply);
}

fn durations(out: &mut String, name: &str, help: &str, reading: &HistogramReading) {
    head(out, name, "histogram", help);
    // Whole milliseconds all of them, which Go prints the same way.
    let bounds = BUCKET_BOUNDS_US.iter().map(|us| seconds(us / 1_000));
    buckets(out, name, "", bounds, &reading.buckets);
    let _ = writeln!(out, "{name}_sum {}", reading.sum.as_secs_f64());
    let _ = writeln!(out, "{name}_count {}", reading.buckets.iter().sum::<u64>());
}

/// Buckets are told as sums of all up to them. `labels`: nothing, or labels that end with a comma.
fn buckets(out: &mut String, name: &str, labels: &str, bounds: impl Iterator<Item = String>, own: &[u64]) {
    let mut sum = 0;
    for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(own) {
        sum += count;
        let _ = writeln!(out, "{name}_bucket{{{labels}le=\"{bound}\"}} {sum}");
    }
}

/// Milliseconds as seconds, without zeros at the end: `0.005`, `2.5`, `1`.
fn seconds(ms: u64) -> String {
    let text = format!("{}.{:03}", ms / 1_000, ms % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn peers(out: &mut String, measured: &Measured) {
    let mut series = |name: &str, label: &str, help: &str, values: &[(NodeId, u64)]| {
        head(out, name, "counter", help);
        for (peer, value) in values {
            let _ = writeln!(out, "{name}{{{label}=\"{peer:x}\"}} {value}");
        }
    };
    series("etcd_network_peer_sent_bytes_total", "To", "Bytes of messages written to the peer.", &measured.sent);
    let help = "Bytes of messages delivered from the peer.";
    series("etcd_network_peer_received_bytes_total", "From", help, &measured.received);
    let help = "Messages to the peer that were lost before they were written.";
    series("etcd_network_peer_sent_failures_total", "To", help, &measured.dropped);
}

fn face(out: &mut String, calls: &CallReading) {
    for (name, help, value) in [
        ("etcd_network_client_grpc_received_bytes_total", "Bytes of requests.", calls.received_bytes),
        ("etcd_network_client_grpc_sent_bytes_total", "Bytes of answers.", calls.sent_bytes),
        ("etcd_server_health_success", "/health said that this member is well.", calls.health_successes),
        ("etcd_server_health_failures", "/health said that it is not.", calls.health_failures),
    ] {
        one(out, name, "counter", help, value);
    }
    let streams =
        calls.methods.iter().filter(|method| (method.service, method.name) == ("etcdserverpb.Watch", "Watch"));
    let open: u64 = streams.map(|method| method.started.saturating_sub(handled(method))).sum();
    one(out, "etcd_debugging_mvcc_watch_stream_total", "gauge", "Watch streams open here.", open);
    head(out, "grpc_server_started_total", "counter", "Calls that came in.");
    for method in &calls.methods {
        let _ = writeln!(out, "grpc_server_started_total{{{}}} {}", labels(method, ""), method.started);
    }
    head(out, "grpc_server_handled_total", "counter", "Calls that ended, by code.");
    for method in &calls.methods {
        for (code, count) in &method.handled {
            let labels = labels(method, &format!("grpc_code=\"{code}\","));
            let _ = writeln!(out, "grpc_server_handled_total{{{labels}}} {count}");
        }
    }
    if calls.methods.iter().all(|method| method.buckets.is_empty()) {
        return;
    }
    let name = "grpc_server_handling_seconds";
    head(out, name, "histogram", "How long calls took.");
    for method in &calls.methods {
        let labels = labels(method, "");
        let bounds = CALL_BOUNDS_MS.iter().map(|ms| seconds(*ms));
        buckets(out, name, &format!("{labels},"), bounds, &method.buckets);
        let _ = writeln!(out, "{name}_sum{{{labels}}} {}", method.sum.as_secs_f64());
        let _ = writeln!(out, "{name}_count{{{labels}}} {}", method.buckets.iter().sum::<u64>());
    }
}

fn handled(method: &MethodReading) -> u64 {
    method.handled.iter().map(|(_, count)| count).sum()
}

fn labels(method: &MethodReading, more: &str) -> String {
    let kind = match method.kind {
        CallKind::Unary => "unary",
        CallKind::ServerStream => "server_stream",
        CallKind::BidiStream => "bidi_stream",
    };
    let (service, name) = (method.service, method.name);
    format!("{more}grpc_method=\"{name}\",grpc_service=\"{service}\",grpc_type=\"{kind}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Alerts read quantiles off these buckets by their bounds as text.
    #[test]
    fn buckets_are_sums_and_bounds_are_spelled_as_prometheus_does() {
        let mut counts = vec![0; BUCKET_BOUNDS_US.len() + 1];
        (counts[0], counts[1], counts[14]) = (3, 2, 1);
        let mut out = String::new();
        durations(&mut out, "x", "y", &HistogramReading { buckets: counts, sum: Duration::from_millis(1500) });
        for expected in [
            "x_bucket{le=\"0.001\"} 3\n",
            "x_bucket{le=\"0.002\"} 5\n",
            "x_bucket{le=\"8.192\"} 5\n",
            "x_bucket{le=\"+Inf\"} 6\n",
            "x_sum 1.5\n",
            "x_count 6\n",
        ] {
            assert!(out.contains(expected), "{expected:?} is missing from:\n{out}");
        }
        assert_eq!((seconds(5), seconds(2_500), seconds(10_000)), ("0.005".into(), "2.5".into(), "10".into()));
    }
}
