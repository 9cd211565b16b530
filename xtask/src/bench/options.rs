//! What can be asked of `cargo xtask bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tidelock_load::Protocol;

use crate::workspace;

/// Seconds of a round, and rounds, if nothing is said.
const SECONDS: u64 = 2;
const ROUNDS: u64 = 3;
/// The same for a quick look.
const QUICK_SECONDS: u64 = 2;
const QUICK_ROUNDS: u64 = 1;

/// What to measure.
#[derive(Args, Clone)]
pub(crate) struct Options {
    /// What to measure [default: etcd]
    #[arg(value_name = "SUITE", value_delimiter = ',', value_enum)]
    named: Vec<Suite>,
    /// The same, comma separated
    #[arg(long, value_delimiter = ',', value_enum, conflicts_with = "named")]
    suite: Vec<Suite>,
    /// Which parts of the suite growth, comma separated [default: all]
    #[arg(long, value_delimiter = ',', value_enum)]
    part: Vec<Part>,
    /// A quick look: fewer cases, one short round
    #[arg(long)]
    pub(super) quick: bool,
    /// Cluster sizes, comma separated
    #[arg(long, value_delimiter = ',', default_value = "1,3", value_parser = positive)]
    pub(super) nodes: Vec<usize>,
    /// Operations in flight, in the suite locks workers, comma separated [default: as suits the workload]
    #[arg(long, value_delimiter = ',', value_parser = positive)]
    pub(super) in_flight: Option<Vec<usize>>,
    /// Which workloads of the suites etcd and zookeeper, comma separated [default: all]
    #[arg(long, value_delimiter = ',')]
    pub(super) workload: Option<Vec<String>>,
    /// Seconds each round of each case is measured for [default: 2]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// Operations in each round of each case, instead of a time
    #[arg(long, conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) ops: Option<u64>,
    /// Rounds; the median is reported [default: 3, quick 1]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// Keys that operations choose from, evenly at random
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) keys: u64,
    /// Leases of a peer in the suite leases, where ours has 1,000,000: etcd grants some thousand per second
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) peer_leases: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 256)]
    pub(super) value_bytes: usize,
    /// Which members operations go to
    #[arg(long, value_enum, default_value = "all")]
    target: Target,
    /// The system to compare with [default: every one that is found]
    #[arg(long, value_enum)]
    pub(super) peer: Option<Peer>,
    /// The etcd [default: an installed one, or etcd on PATH]
    #[arg(long, value_name = "FILE")]
    pub(super) etcd_bin: Option<PathBuf>,
    /// The directory of ZooKeeper's jars [default: as conformance/zookeeper/install leaves them]
    #[arg(long, value_name = "DIR")]
    pub(super) zookeeper_jars: Option<PathBuf>,
    /// The Redis of the suite locks [default: redis-server on PATH]
    #[arg(long, value_name = "FILE")]
    pub(super) redis_bin: Option<PathBuf>,
    /// Install peers that are missing: needs Go or Python for etcd, Java and Maven for ZooKeeper; Redis is not installed
    #[arg(long)]
    pub(super) install_peers: bool,
    /// Our binary [default: a fresh release build]
    #[arg(long, value_name = "FILE")]
    pub(super) tidelock_bin: Option<PathBuf>,
    /// Where servers keep their data while they are measured, such as another disk [default: target/]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Measure the peers alone
    #[arg(long)]
    pub(super) peer_only: bool,
    /// Write results here too (always written to target/bench/)
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Write the results and charts of each suite into this directory, such as docs/benchmarks
    #[arg(long, value_name = "DIR")]
    pub(super) publish: Option<PathBuf>,
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "give a number above zero".to_string())
}

impl Options {
    /// Where servers keep their data.
    pub(super) fn data(&self) -> PathBuf {
        self.data.clone().unwrap_or_else(workspace::target)
    }

    /// What to run, in order.
    pub(super) fn suites(&self) -> Vec<Suite> {
        let asked = if self.named.is_empty() { &self.suite } else { &self.named };
        match asked.as_slice() {
            [] => vec![Suite::Etcd],
            asked if asked.contains(&Suite::All) => {
                Suite::value_variants().iter().copied().filter(|suite| *suite != Suite::All).collect()
            }
            asked => asked.to_vec(),
        }
    }

    /// Whether this part of the suite `growth` is wanted.
    pub(super) fn wants(&self, part: Part) -> bool {
        self.part.is_empty() || self.part.contains(&part)
    }

    pub(super) fn seconds(&self) -> u64 {
        self.seconds.unwrap_or(if self.quick { QUICK_SECONDS } else { SECONDS })
    }

    pub(super) fn rounds(&self) -> u64 {
        self.rounds.unwrap_or(if self.quick { QUICK_ROUNDS } else { ROUNDS })
    }

    /// The largest cluster asked for, for suites with one size.
    pub(super) fn largest(&self) -> usize {
        self.nodes.iter().copied().max().unwrap_or(1)
    }

    pub(super) fn leader_only(&self) -> bool {
        self.target == Target::Leader
    }
}

/// Cases that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Suite {
    /// Operations of etcd's protocol, beside etcd
    Etcd,
    /// Operations of ZooKeeper's protocol, beside ZooKeeper
    Zookeeper,
    /// Watchers and the writes they are told of, beside etcd
    Watch,
    /// Many leases with a key each, and their renewals, beside etcd
    Leases,
    /// Memory of many keys, and restarts, beside both
    Memory,
    /// The leader killed or stopped: time to the first write, beside both
    Failover,
    /// Locks taken and handed over, beside all; prints the capacity table
    Locks,
    /// A million sessions with a lock each, and phasers of 10,000 parties: ours alone
    Native,
    /// The worst request during compaction and snapshot, beside etcd
    Background,
    /// More than the server can do, beside etcd
    Overload,
    /// How costs grow with keys, watchers, leases and members, beside etcd
    Growth,
    /// Everything
    All,
}

impl Suite {
    /// Its name in files.
    pub(super) fn name(self) -> &'static str {
        match self {
            Suite::Etcd => "etcd",
            Suite::Zookeeper => "zookeeper",
            Suite::Watch => "watch",
            Suite::Leases => "leases",
            Suite::Memory => "memory",
            Suite::Failover => "failover",
            Suite::Locks => "locks",
            Suite::Native => "native",
            Suite::Background => "background",
            Suite::Overload => "overload",
            Suite::Growth => "growth",
            Suite::All => "all",
        }
    }

    /// Whether it sends operations of `protocol`, so that who speaks it can take part.
    pub(super) fn speaks(self, protocol: Protocol) -> bool {
        match self {
            Suite::Native => false,
            Suite::Zookeeper => protocol == Protocol::Zookeeper,
            Suite::Memory | Suite::Failover | Suite::Locks | Suite::All => true,
            Suite::Etcd | Suite::Watch | Suite::Leases | Suite::Background | Suite::Overload | Suite::Growth => {
                protocol == Protocol::Etcd
            }
        }
    }
}

/// What costs may grow with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// Keys in the store
    Keys,
    /// Watchers of a key each
    Watchers,
    /// Leases with a key each
    Leases,
    /// Members of the cluster
    Members,
}

/// Which members operations go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// The leader alone
    Leader,
    /// All members in turn
    All,
}

/// A system to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Peer {
    /// The real etcd
    Etcd,
    /// The real ZooKeeper
    Zookeeper,
    /// The real Redis, in the suite locks
    Redis,
    /// No other system
    None,
}
