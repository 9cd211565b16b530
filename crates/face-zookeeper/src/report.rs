//! The state of this server as operators are told it, in figures: put together here once, said as text by `words`
//! and as JSON by `admin`.
//!
//! Only what is known is told. A figure of ZooKeeper's that has no meaning here is left out rather than made up.

use std::sync::atomic::Ordering::Relaxed;

use tidelock_coordinator::{Consistency, Role, Status};
use tidelock_model::{
    Caller, Member, MemberRole, NodeId, Query, QueryAnswer, ZnodeFound, ZnodeQuery, ZnodeRead, ZnodeTotals,
};

use crate::Face;
use crate::figures::Latency;
use crate::machine;
use crate::outbox::zxid;

/// The version that clients and scripts are told; behind it, ours.
pub(crate) const VERSION: &str = concat!("3.9.4-tidelock-", env!("CARGO_PKG_VERSION"));
/// What ZooKeeper says while it has no leader.
pub(crate) const NOT_SERVING: &str = "This ZooKeeper instance is not currently serving requests";
/// Entries that a follower may lack and still count as in step: those under way at a busy moment.
const IN_STEP_ENTRIES: u64 = 5_000;

/// A server's part, in ZooKeeper's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Standalone,
    Leader,
    Follower,
    Observer,
    /// Reads are answered, without a majority.
    ReadOnly,
}

impl Mode {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Mode::Standalone => "standalone",
            Mode::Leader => "leader",
            Mode::Follower => "follower",
            Mode::Observer => "observer",
            Mode::ReadOnly => "read-only",
        }
    }
}

/// A member, in ZooKeeper's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) number: u64,
    pub(crate) node: NodeId,
    /// `host:port`, where other members reach it.
    pub(crate) peer_address: String,
    /// What it tells of elections.
    pub(crate) election_port: Option<u16>,
    /// `host:port`, where ZooKeeper's clients reach it, if it told.
    pub(crate) client_address: Option<String>,
    pub(crate) votes: bool,
}

impl Server {
    fn of(member: &Member) -> Server {
        let told = member.zookeeper.as_ref();
        let client = told.map(|told| told.client_address.clone()).filter(|address| !address.is_empty());
        Server {
            // Whoever does not serve ZooKeeper's clients has no number but its id.
            number: told.map_or(member.id.0, |told| told.number),
            node: member.id,
            peer_address: member.peer_addresses.first().cloned().unwrap_or_default(),
            election_port: told.map(|told| told.election_port),
            client_address: client,
            votes: member.role == MemberRole::Voter,
        }
    }

    pub(crate) fn host(&self) -> &str {
        self.peer_address.rsplit_once(':').map_or("", |(host, _)| host)
    }

    pub(crate) fn kind(&self) -> &'static str {
        if self.votes { "participant" } else { "observer" }
    }

    /// As a zoo.cfg lists it.
    pub(crate) fn line(&self) -> String {
        let peer_port = self.peer_address.rsplit_once(':').map_or("", |(_, port)| port);
        let port = self.election_port.map_or_else(|| peer_port.to_owned(), |port| port.to_string());
        let client = self.client_address.as_ref().map(|client| format!(";{client}")).unwrap_or_default();
        format!("server.{}={}:{port}:{}{client}", self.number, self.peer_address, self.kind())
    }
}

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Figure {
    Text(String),
    Whole(u64),
    Fraction(f64),
}

/// What a server tells of itself.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) status: Status,
    pub(crate) mode: Mode,
    pub(crate) totals: ZnodeTotals,
    pub(crate) latency: Latency,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) connections: u64,
    pub(crate) waiting: u64,
    pub(crate) uptime_ms: u64,
}

impl Report {
    pub(crate) fn zxid(&self) -> i64 {
        zxid(self.status.revision)
    }
}

impl Face {
    pub(crate) fn mode(&self) -> Mode {
        if self.read_only.is_on() { Mode::ReadOnly } else { mode(&self.coordinator.status()) }
    }

    /// Whether there is a leader, or reads are answered without one.
    pub(crate) fn is_serving(&self) -> bool {
        self.coordinator.status().leader.is_some() || self.read_only.is_on()
    }

    pub(crate) async fn report(&self) -> Report {
        let (status, counts) = (self.coordinator.status(), &self.counts);
        Report {
            mode: self.mode(),
            totals: self.totals().await,
            latency: counts.latency(),
            received: counts.received.load(Relaxed),
            sent: counts.sent.load(Relaxed),
            connections: counts.connections.load(Relaxed),
            waiting: counts.waiting.load(Relaxed),
            uptime_ms: counts.uptime_ms(),
            status,
        }
    }

    async fn totals(&self) -> ZnodeTotals {
        match self.look_as_operator(ZnodeRead::Totals).await {
            Some(ZnodeFound::Totals(totals)) => totals,
            _ => ZnodeTotals::default(),
        }
    }

    /// One look at what this node has.
    pub(crate) async fn look_as_operator(&self, read: ZnodeRead) -> Option<ZnodeFound> {
        let query = Query::Znodes(ZnodeQuery { identities: Vec::new(), reads: vec![read] });
        match self.coordinator.read(Caller::Internal, query, Consistency::Local).await {
            Ok(QueryAnswer::Znodes { mut found, .. }) => found.pop()?.ok(),
            _ => None,
        }
    }

    /// The members, by number.
    pub(crate) async fn servers(&self) -> Vec<Server> {
        let answer = self.coordinator.read(Caller::Internal, Query::Members, Consistency::Local).await;
        let Ok(QueryAnswer::Members { members, .. }) = answer else { return Vec::new() };
        let mut servers: Vec<Server> = members.iter().map(Server::of).collect();
        servers.sort_by_key(|server| server.number);
        servers
    }

    /// What exporters read: names without `zk_`, in ZooKeeper's words.
    pub(crate) async fn monitor(&self) -> Vec<(&'static str, Figure)> {
        let (report, servers) = (self.report().await, self.servers().await);
        let files = tokio::task::spawn_blocking(machine::files).await.unwrap_or_default();
        let (watches, watched) = self.watches.with(|table, _| {
            let (paths, watches) = table.totals();
            (watches as u64, paths as u64)
        });
        let mut all = vec![
            ("version", Figure::Text(VERSION.to_owned())),
            ("server_state", Figure::Text(report.mode.as_str().to_owned())),
        ];
        if let Some(state) = peer_state(&report) {
            all.push(("peer_state", Figure::Text(state.to_owned())));
        }
        all.push(("avg_latency", Figure::Fraction(report.latency.average)));
        let counts = &self.counts;
        let mut numbers = vec![
            ("min_latency", report.latency.min),
            ("max_latency", report.latency.max),
            ("packets_received", report.received),
            ("packets_sent", report.sent),
            ("bytes_received_count", counts.bytes_received.load(Relaxed)),
            ("response_bytes", counts.bytes_sent.load(Relaxed)),
            ("num_alive_connections", report.connections),
            ("connection_request_count", counts.greeted.load(Relaxed)),
            ("connection_rejected", counts.rejected.load(Relaxed)),
            ("auth_failed_count", counts.auth_failed.load(Relaxed)),
            ("outstanding_requests", report.waiting),
            ("znode_count", report.totals.znodes),
            ("ephemerals_count", report.totals.ephemerals),
            ("approximate_data_size", report.totals.bytes),
            ("watch_count", watches),
            ("watched_paths", watched),
            ("global_sessions", report.totals.sessions),
            ("local_sessions", 0),
            ("uptime", report.uptime_ms),
        ];
        numbers.extend(files.open.map(|open| ("open_file_descriptor_count", open)));
        numbers.extend(files.most.map(|most| ("max_file_descriptor_count", most)));
        if report.mode != Mode::Standalone {
            numbers.push(("quorum_size", servers.iter().filter(|server| server.votes).count() as u64));
        }
        if report.mode == Mode::Leader {
            numbers.extend(Following::of(&report.status, &servers).figures());
        }
        all.extend(numbers.into_iter().map(|(name, number)| (name, Figure::Whole(number))));
        all
    }
}

fn mode(status: &Status) -> Mode {
    match status.role {
        Role::Leader if status.peers.is_empty() => Mode::Standalone,
        Role::Leader => Mode::Leader,
        Role::Learner => Mode::Observer,
        Role::Follower | Role::Candidate => Mode::Follower,
    }
}

fn peer_state(report: &Report) -> Option<&'static str> {
    match (report.mode, report.status.leader) {
        (Mode::Standalone, _) => None,
        (_, None) | (Mode::ReadOnly, _) => Some("looking - election"),
        (Mode::Leader, _) => Some("leading - broadcast"),
        (Mode::Follower, _) => Some("following - broadcast"),
        (Mode::Observer, _) => Some("observing - broadcast"),
    }
}

/// What the leader knows of those who follow it: how many are connected, and how many of them are in step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Following {
    learners: u64,
    followers: u64,
    synced_followers: u64,
    pub(crate) synced_observers: u64,
}

impl Following {
    pub(crate) fn of(status: &Status, servers: &[Server]) -> Following {
        let votes = |node: NodeId| servers.iter().any(|server| server.node == node && server.votes);
        let in_step = |matched: u64| status.committed.0.saturating_sub(matched) <= IN_STEP_ENTRIES;
        let mut following = Following::default();
        for peer in status.peers.iter().filter(|peer| peer.connected) {
            following.learners += 1;
            let is_synced = u64::from(peer.matched.is_some_and(|matched| in_step(matched.0)));
            if votes(peer.node) {
                following.followers += 1;
                following.synced_followers += is_synced;
            } else {
                following.synced_observers += is_synced;
            }
        }
        following
    }

    fn figures(self) -> [(&'static str, u64); 4] {
        [
            ("learners", self.learners),
            ("followers", self.followers),
            ("synced_followers", self.synced_followers),
            ("synced_observers", self.synced_observers),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_model::ZookeeperServer;

    fn member(zookeeper: Option<ZookeeperServer>, role: MemberRole) -> Member {
        let peer_addresses = vec!["zk1:2888".to_owned()];
        Member { id: NodeId(0xbeef), name: "a".to_owned(), peer_addresses, client_urls: Vec::new(), role, zookeeper }
    }

    /// Tools read members from these lines; a port that nobody can dial, or a number nobody gave, misleads them.
    #[test]
    fn a_member_is_listed_as_a_zoo_cfg_lists_it() {
        let told = ZookeeperServer { number: 3, election_port: 3888, client_address: "zk1:2181".to_owned() };
        let server = Server::of(&member(Some(told), MemberRole::Voter));
        assert_eq!(server.line(), "server.3=zk1:2888:3888:participant;zk1:2181");
        assert_eq!((server.host(), server.number), ("zk1", 3));
        let other = Server::of(&member(None, MemberRole::Learner));
        assert_eq!(other.line(), "server.48879=zk1:2888:2888:observer");
    }
}
