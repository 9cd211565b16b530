//! `cargo xtask bench`: throughput, latency and processor time of the server under load, beside a peer.
//!
//! Both systems run at the same time on the same machine and disk, and their rounds alternate
//! (A, B, A, B), so that a slow minute of the machine hits both; what is reported is the median of the
//! rounds. Load is closed: N requests are in flight, each worker sends its next when its last is
//! answered. History is compacted between rounds, outside of the measured time, so that a late round
//! is not slower than an early one.
//!
//! Operations per second on a shared machine measure the client too. Processor time per operation, over
//! all server processes, is the figure that carries over to another machine. How to read the rest is in
//! docs/internals/benchmarks.md.

mod cell;
mod load;
mod report;

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::environment::Environment;
use crate::fill::{self, Values};
use crate::servers::{Cluster, System};
use crate::{Result, progress, workspace};
use cell::{Cell, Sample};
use report::{Report, Row};

/// Most connections of one cell.
const CONNECTIONS_MAX: usize = 16;
/// Requests in flight that one connection carries before there is a second one.
const IN_FLIGHT_PER_CONNECTION: usize = 64;

/// What to measure.
#[derive(Args, Clone)]
pub(crate) struct Options {
    /// Cluster sizes, comma separated
    #[arg(long, value_delimiter = ',', default_value = "1,3", value_parser = positive)]
    nodes: Vec<usize>,
    /// Requests in flight, comma separated
    #[arg(long, value_delimiter = ',', default_value = "1,64,1000", value_parser = positive)]
    in_flight: Vec<usize>,
    /// What to send, comma separated
    #[arg(long, value_delimiter = ',', value_enum, default_value = "put,get")]
    workload: Vec<Workload>,
    /// Seconds each round of each cell is measured for
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Operations in each round of each cell, instead of a time
    #[arg(long, conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    ops: Option<u64>,
    /// Rounds; the median is reported
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Keys that requests choose from, evenly at random
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 256)]
    value_bytes: usize,
    /// Which members requests go to
    #[arg(long, value_enum, default_value = "all")]
    target: Target,
    /// A system to compare with
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// The peer's binary [default: etcd on PATH]
    #[arg(long, value_name = "FILE")]
    etcd_bin: Option<PathBuf>,
    /// Our binary [default: a fresh release build]
    #[arg(long, value_name = "FILE")]
    tidelock_bin: Option<PathBuf>,
    /// Measure the peer alone
    #[arg(long, requires = "peer")]
    peer_only: bool,
    /// Write results here too (always written to target/bench/)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn positive(text: &str) -> std::result::Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "give a number above zero".to_string())
}

/// What a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Workload {
    /// A put of one key.
    Put,
    /// A linearizable read of one key.
    Get,
}

/// Which members requests go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// The leader alone.
    Leader,
    /// All members in turn.
    All,
}

/// A system to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// The real etcd.
    Etcd,
}

/// Runs everything and prints the tables.
pub(crate) async fn run(options: Options) -> Result<()> {
    let systems = systems(&options)?;
    let environment = Environment::look(&workspace::target())?;
    println!("{}\n", environment.text());
    let per_size = options.in_flight.len() * options.workload.len() * systems.len();
    let steps = (per_size * options.nodes.len()) as u64 * options.rounds;
    let bar = progress::bar(steps, "bench");
    let mut report = Report::new(environment, systems.iter().map(|system| system.name.clone()).collect());
    for &nodes in &options.nodes {
        let mut clusters = Vec::with_capacity(systems.len());
        for system in &systems {
            bar.set_message(format!("{} x {}: start and fill", nodes, system.name));
            clusters.push(start_filled(system, nodes, &options).await?);
        }
        for &workload in &options.workload {
            for &in_flight in &options.in_flight {
                let cell = Cell::new(&options, nodes, workload, in_flight);
                let row = rounds(&clusters, &cell, options.rounds, &bar).await?;
                bar.suspend(|| print!("{}", report.add(row)));
            }
        }
    }
    bar.finish_and_clear();
    println!("\n{}", report.text());
    for path in report.save(options.json.as_deref())? {
        println!("written: {}", path.display());
    }
    Ok(())
}

fn systems(options: &Options) -> Result<Vec<System>> {
    let mut systems = Vec::new();
    if !options.peer_only {
        systems.push(System::tidelock(options.tidelock_bin.as_deref())?);
    }
    match options.peer {
        Some(Peer::Etcd) => systems.push(System::etcd(options.etcd_bin.as_deref())?),
        None => {}
    }
    Ok(systems)
}

async fn start_filled(system: &System, nodes: usize, options: &Options) -> Result<Cluster> {
    let cluster = Cluster::start(system, nodes).await?;
    let channels = cluster.connect(1, true).await?;
    let hidden = indicatif::ProgressBar::hidden();
    fill::fill(&channels, options.keys, &Values::new(options.value_bytes), &hidden).await?;
    Ok(cluster)
}

/// All rounds of one cell, the systems taking turns; one list of samples per system.
async fn rounds(clusters: &[Cluster], cell: &Cell, rounds: u64, bar: &indicatif::ProgressBar) -> Result<Row> {
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); clusters.len()];
    for round in 1..=rounds {
        for (cluster, samples) in clusters.iter().zip(&mut samples) {
            let name = &cluster.system.name;
            bar.set_message(format!("{} round {round}/{rounds}: {name}", cell.name()));
            samples.push(cell.measure(cluster).await.map_err(|error| format!("{name}, {}: {error}", cell.name()))?);
            bar.inc(1);
        }
    }
    Ok(Row { nodes: cell.nodes, workload: cell.workload, in_flight: cell.in_flight, samples })
}
