//! Prometheus text, written from a node's [`Status`] and from what the node, the face and the process have
//! measured. Nothing is counted here; this only says it in Prometheus' words, so a scrape can never disagree
//! with `/v1/status`.
//!
//! Twice: under names of our own here, and in `etcd` under etcd's, for the dashboards and alerts that exist.

mod etcd;
mod process;

use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};

use tidelock_coordinator::{Coordinator, Role, Status};
use tidelock_face_etcd::CallCounts;
use tidelock_node::Measured;

use crate::quota::{Guarded, Quota};

/// Everything a scrape is written from.
pub(crate) struct Sources {
    pub(crate) node: Arc<Guarded>,
    pub(crate) measured: Box<dyn Fn() -> Measured + Send + Sync>,
    pub(crate) quota: Quota,
    /// Known as soon as clients are served.
    pub(crate) calls: OnceLock<Arc<CallCounts>>,
}

impl Sources {
    /// The text a scrape gets.
    pub(crate) fn text(&self) -> String {
        let status = self.node.status();
        let mut out = exposition(&status);
        let seen = etcd::Seen {
            status: &status,
            measured: &(self.measured)(),
            calls: self.calls.get().map(|calls| calls.read()),
            quota: self.quota,
            ranges: self.node.ranges(),
        };
        etcd::write(&mut out, &seen);
        process::write(&mut out);
        out
    }
}

/// What the status says, under names of our own.
fn exposition(status: &Status) -> String {
    let mut out = String::with_capacity(32 * 1024);
    let version = env!("CARGO_PKG_VERSION");
    head(&mut out, "tidelock_build_info", "gauge", "Always 1; the version is in the label.");
    line(&mut out, &format!("tidelock_build_info{{version=\"{version}\"}}"), 1);

    let lag = status.committed.0.saturating_sub(status.applied.0);
    for (name, help, value) in [
        ("ready", "Whether this node can serve: it knows a leader and has caught up.", u64::from(status.is_ready())),
        ("has_leader", "Whether this node knows a leader.", u64::from(status.leader.is_some())),
        ("is_leader", "Whether this node leads.", u64::from(status.role == Role::Leader)),
        ("is_learner", "Whether this node receives the log without voting.", u64::from(status.role == Role::Learner)),
        ("term", "The current Raft term.", status.term.0),
        ("committed_index", "Last log index known to be agreed on.", status.committed.0),
        ("applied_index", "Last log index carried out on this node.", status.applied.0),
        ("apply_lag_entries", "Entries agreed on but not carried out on this node yet.", lag),
        ("revision", "The store's revision on this node.", status.revision.0),
        ("compacted_revision", "Oldest revision that can be read.", status.compacted.0),
        ("keys", "Live keys.", status.keys),
        ("leases", "Live leases.", status.leases),
        ("watchers", "Watchers open on this node.", status.watchers),
        ("data_bytes", "Bytes of keys and values held in memory, history included.", status.data_bytes),
        ("disk_bytes", "Bytes of journal and snapshots on disk.", status.disk_bytes),
        ("disk_full", "Whether the disk is full and growing writes are refused.", u64::from(status.disk_full)),
        ("proposals_waiting", "Writes waiting for their outcome at this node.", status.proposals_waiting),
    ] {
        metric(&mut out, name, "gauge", help, value);
    }
    for (name, help, value) in [
        ("leader_changes_total", "Changes of leader seen since this node started.", status.leader_changes),
        (
            "proposals_failed_total",
            "Writes that came in here and failed since this node started.",
            status.proposals_failed,
        ),
    ] {
        metric(&mut out, name, "counter", help, value);
    }
    peers(&mut out, status);
    out
}

fn peers(out: &mut String, status: &Status) {
    head(out, "tidelock_peer_connected", "gauge", "Whether a link to the member is up.");
    for peer in &status.peers {
        line(out, &format!("tidelock_peer_connected{{peer=\"{:x}\"}}", peer.node), u64::from(peer.connected));
    }
    head(out, "tidelock_peer_lag_entries", "gauge", "On the leader: entries the member is not known to hold yet.");
    for peer in &status.peers {
        if let Some(matched) = peer.matched {
            let lag = status.committed.0.saturating_sub(matched.0);
            line(out, &format!("tidelock_peer_lag_entries{{peer=\"{:x}\"}}", peer.node), lag);
        }
    }
}

fn metric(out: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    let name = format!("tidelock_{name}");
    head(out, &name, kind, help);
    line(out, &name, value);
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(out: &mut String, series: &str, value: u64) {
    let _ = writeln!(out, "{series} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_coordinator::PeerStatus;
    use tidelock_model::{ClusterId, LogIndex, NodeId, Revision, Term};

    fn status() -> Status {
        Status {
            cluster: ClusterId(1),
            node: NodeId(0xa),
            role: Role::Leader,
            leader: Some(NodeId(0xa)),
            term: Term(3),
            committed: LogIndex(100),
            applied: LogIndex(98),
            regained: true,
            revision: Revision(42),
            compacted: Revision(1),
            digest: 7,
            keys: 5,
            leases: 2,
            watchers: 1,
            data_bytes: 10,
            disk_bytes: 20,
            disk_full: false,
            proposals_waiting: 0,
            leader_changes: 1,
            proposals_failed: 0,
            peers: vec![
                PeerStatus { node: NodeId(0xb), connected: true, matched: Some(LogIndex(90)) },
                PeerStatus { node: NodeId(0xc), connected: false, matched: None },
            ],
        }
    }

    /// Alerts are built on these names and values; a metric that vanishes or lies is found out at night.
    #[test]
    fn the_text_says_what_the_status_says() {
        let text = exposition(&status());
        for expected in [
            "tidelock_is_leader 1\n",
            "tidelock_apply_lag_entries 2\n",
            "tidelock_revision 42\n",
            "tidelock_leader_changes_total 1\n",
            "tidelock_peer_connected{peer=\"c\"} 0\n",
            "tidelock_peer_lag_entries{peer=\"b\"} 10\n",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing from:\n{text}");
        }
        assert!(!text.contains("tidelock_peer_lag_entries{peer=\"c\"}"));
    }

    /// Prometheus drops a whole scrape over one malformed line.
    #[test]
    fn every_series_has_help_and_type_and_a_number() {
        let text = exposition(&status());
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            assert!(value.parse::<u64>().is_ok(), "{line}");
            assert!(text.contains(&format!("# HELP {name} ")) && text.contains(&format!("# TYPE {name} ")), "{line}");
        }
    }
}
