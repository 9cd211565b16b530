//! The shape of `tidelock bench`.

use clap::{Args, ValueEnum};

use super::ClientArgs;

/// `tidelock bench`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidelock bench                                                 puts, 64 in flight, 10 seconds
  tidelock bench --workload get --in-flight 1000 --endpoints 10.0.0.1:2379,10.0.0.2:2379
  tidelock bench --protocol zookeeper --endpoints 10.0.0.1:2181 --workload set
  tidelock bench --workload put --rate 5000                      5000 a second, whatever the server does
  tidelock bench --endpoints https://10.0.0.1:2379 --cacert ca.pem --user bench:secret

Workloads: put, txn, get, serializable-get, range, mixed for etcd; create, set, get, exists, children, sync-get for
ZooKeeper. It writes keys that begin with `bench/`, or znodes below /bench, and leaves them there: not for a cluster
that others use.")]
pub(crate) struct BenchArgs {
    /// The protocol to speak
    #[arg(long, value_enum, default_value = "etcd")]
    pub(crate) protocol: BenchProtocol,

    /// What to do
    #[arg(long, default_value = "put")]
    pub(crate) workload: String,

    /// Operations in flight
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) in_flight: u32,

    /// Operations per second, instead of a number in flight; latency counts from when one was due
    #[arg(long, value_name = "N", conflicts_with = "in_flight", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate: Option<u32>,

    /// Connections [default: one for 64 in flight, 16 at most, as many to each node]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) connections: Option<u32>,

    /// How long
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,

    /// How many operations, instead of a time
    #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ops: Option<u64>,

    /// Keys to choose from; they are written first
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) keys: u64,

    /// Bytes of a value
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) value_bytes: u32,

    /// Do not write the keys first; they are there
    #[arg(long)]
    pub(crate) no_fill: bool,

    /// Connections are spread over all of the nodes
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

/// What is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchProtocol {
    /// etcd's v3
    Etcd,
    /// ZooKeeper's
    Zookeeper,
}
