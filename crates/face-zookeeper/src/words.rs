//! Four-letter words: what operators, scripts and exporters ask on the client port, in ZooKeeper's text.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidelock_coordinator::{Consistency, Role};
use tidelock_model::{Caller, Query, QueryAnswer, ZnodeFound, ZnodeQuery, ZnodeRead};

use crate::Face;
use crate::wire::FourLetterWord;

/// The version that clients and scripts are told; behind it, ours.
const VERSION: &str = concat!("3.9.4-tidelock-", env!("CARGO_PKG_VERSION"));

/// What is counted for operators, since the node started.
#[derive(Default)]
pub(crate) struct Counts {
    /// Open now.
    pub(crate) connections: AtomicU64,
    /// Packets.
    pub(crate) received: AtomicU64,
    /// Packets, events among them.
    pub(crate) sent: AtomicU64,
    answered: AtomicU64,
    latency_total_ms: AtomicU64,
    latency_max_ms: AtomicU64,
}

impl Counts {
    /// So many requests were answered so long after they were read.
    pub(crate) fn answered(&self, requests: u64, after: Duration) {
        let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        self.answered.fetch_add(requests, Ordering::Relaxed);
        self.latency_total_ms.fetch_add(after_ms.saturating_mul(requests), Ordering::Relaxed);
        self.latency_max_ms.fetch_max(after_ms, Ordering::Relaxed);
    }

    /// Average and maximum in milliseconds.
    fn latency(&self) -> (f64, u64) {
        let answered = self.answered.load(Ordering::Relaxed).max(1);
        let average = self.latency_total_ms.load(Ordering::Relaxed) as f64 / answered as f64;
        (average, self.latency_max_ms.load(Ordering::Relaxed))
    }
}

impl Face {
    /// The answer to a word.
    pub(crate) async fn answer_word(&self, word: FourLetterWord) -> String {
        let name = word.as_str();
        if self.config.words.as_ref().is_some_and(|allowed| !allowed.iter().any(|word| word == name)) {
            return format!("{name} is not executed because it is not in the whitelist.\n");
        }
        match name {
            "ruok" => "imok".to_owned(),
            "isro" => if self.read_only.is_on() { "ro" } else { "rw" }.to_owned(),
            "envi" => format!("Environment:\nzookeeper.version={VERSION}\n"),
            "srvr" | "stat" => self.server_text().await,
            "mntr" => self.monitor_text().await,
            _ => format!("{name} is not served by this server.\n"),
        }
    }

    fn mode(&self) -> &'static str {
        let status = self.coordinator.status();
        match status.role {
            _ if self.read_only.is_on() => "read-only",
            Role::Leader if status.peers.is_empty() => "standalone",
            Role::Leader => "leader",
            Role::Learner => "observer",
            Role::Follower | Role::Candidate => "follower",
        }
    }

    async fn znodes(&self) -> u64 {
        let query = ZnodeQuery { identities: Vec::new(), reads: vec![ZnodeRead::Descendants("/".to_owned())] };
        match self.coordinator.read(Caller::Anonymous, Query::Znodes(query), Consistency::Local).await {
            Ok(QueryAnswer::Znodes { found, .. }) => match found.first() {
                Some(Ok(ZnodeFound::Count(below))) => below + 1,
                _ => 0,
            },
            _ => 0,
        }
    }

    async fn server_text(&self) -> String {
        let status = self.coordinator.status();
        let counts = &self.counts;
        let (average, maximum) = counts.latency();
        let mut text = format!("Zookeeper version: {VERSION}\nLatency min/avg/max: 0/{average:.1}/{maximum}\n");
        for (name, count) in
            [("Received", &counts.received), ("Sent", &counts.sent), ("Connections", &counts.connections)]
        {
            let _ = writeln!(text, "{name}: {}", count.load(Ordering::Relaxed));
        }
        let (outstanding, zxid) = (status.proposals_waiting, status.revision);
        let (mode, znodes) = (self.mode(), self.znodes().await);
        let _ = write!(text, "Outstanding: {outstanding}\nZxid: 0x{zxid:x}\nMode: {mode}\nNode count: {znodes}\n");
        text
    }

    async fn monitor_text(&self) -> String {
        let status = self.coordinator.status();
        let (paths, watches) = self.watches.with(|table, _| table.totals());
        let (average, maximum) = self.counts.latency();
        let mut text = format!("zk_version\t{VERSION}\nzk_server_state\t{}\n", self.mode());
        let _ = writeln!(text, "zk_avg_latency\t{average:.1}");
        for (name, value) in [
            ("max_latency", maximum),
            ("packets_received", self.counts.received.load(Ordering::Relaxed)),
            ("packets_sent", self.counts.sent.load(Ordering::Relaxed)),
            ("num_alive_connections", self.counts.connections.load(Ordering::Relaxed)),
            ("outstanding_requests", status.proposals_waiting),
            ("znode_count", self.znodes().await),
            ("watch_count", watches as u64),
            ("watched_paths", paths as u64),
            ("approximate_data_size", status.data_bytes),
        ] {
            let _ = writeln!(text, "zk_{name}\t{value}");
        }
        text
    }
}
