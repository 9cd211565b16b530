//! What requests feel while the server writes a snapshot: steady writes and reads, with and without one.
//!
//! The promise is that a snapshot never stops the world. It is judged by the worst request while one was
//! written, against the worst without: the tail is where a pause shows first.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use super::paced::{Calls, Pace, Plan};
use crate::fill::{self, Values};
use crate::histogram::Histogram;
use crate::servers::{Cluster, System, admin};
use crate::table::{self, Table};
use crate::{Result, progress};

/// Connections to send over.
const CONNECTIONS: usize = 4;
/// Load before anything is counted, so that connections are open.
const WARM_UP: Duration = Duration::from_secs(1);

/// How much.
#[derive(Args)]
pub(crate) struct Options {
    /// Keys in the store
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 256)]
    value_bytes: usize,
    /// Writes per second, and as many reads
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..100_000))]
    rate: u32,
    /// Seconds of load without a snapshot before each snapshot
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Snapshots
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    snapshots: u64,
    /// Fail if the worst request with a snapshot took this much longer than the worst without
    #[arg(long, default_value_t = 50)]
    limit_ms: u64,
    /// Our binary [default: a fresh release build]
    #[arg(long, value_name = "FILE")]
    tidelock_bin: Option<PathBuf>,
}

/// Loads, paces, snapshots, compares.
pub(crate) async fn run(options: Options) -> Result<()> {
    let system = System::tidelock(options.tidelock_bin.as_deref())?;
    let cluster = Cluster::start(&system, 1).await?;
    let channels = cluster.connect(CONNECTIONS, false).await?;
    let values = Values::new(options.value_bytes);
    let bar = progress::bar(options.keys, "load keys");
    fill::fill(&channels, options.keys, &values, &bar).await?;
    bar.finish_and_clear();

    // Loading made one due: take it now, so that none starts by itself while none is wanted.
    take_snapshot(&cluster).await?;
    let plan = || Plan { each_per_s: options.rate, keys: options.keys, values: values.clone() };
    let warm_up = Pace::start(channels.clone(), plan());
    tokio::time::sleep(WARM_UP).await;
    warm_up.stop().await;

    let bar = progress::bar(options.snapshots, "snapshots under load");
    let pace = Pace::start(channels, plan());
    let mut windows = Vec::new();
    for _ in 0..options.snapshots {
        tokio::time::sleep(Duration::from_secs(options.seconds)).await;
        windows.push(take_snapshot(&cluster).await?);
        bar.inc(1);
    }
    tokio::time::sleep(Duration::from_secs(options.seconds)).await;
    bar.finish_and_clear();
    report(&options, &pace.stop().await, &windows)
}

/// Asks for a snapshot and waits until it is written; from when to when.
async fn take_snapshot(cluster: &Cluster) -> Result<(Instant, Instant)> {
    let start = Instant::now();
    let answer = admin::ask(cluster.admin(0), "POST", "/v1/snapshot").await?;
    match answer.code {
        200..=299 => Ok((start, Instant::now())),
        code => Err(format!("the server refused a snapshot ({code}): {}", answer.body)),
    }
}

fn report(options: &Options, calls: &Calls, windows: &[(Instant, Instant)]) -> Result<()> {
    let header = ["requests", "snapshot", "count", "p50", "p90", "p99", "p99.9", "worst"];
    let mut table = Table::new(2, &header);
    let mut worst = [Duration::ZERO; 2];
    for wrote in [true, false] {
        for inside in [false, true] {
            let latencies = calls.latencies(wrote, windows, inside);
            worst[usize::from(inside)] = worst[usize::from(inside)].max(latencies.max());
            table.row(cells(if wrote { "put" } else { "get" }, if inside { "running" } else { "none" }, &latencies));
        }
    }
    let each: Vec<String> = windows.iter().map(|(from, to)| table::duration(*to - *from)).collect();
    println!(
        "{} keys of {} bytes, {} writes and {} reads per second; snapshots took {}\n{}",
        table::grouped(options.keys),
        options.value_bytes,
        options.rate,
        options.rate,
        each.join(", "),
        table.text()
    );
    if let Some(failure) = &calls.first_failure {
        return Err(format!("{} requests failed, the first with: {failure}", calls.failed));
    }
    let [without, with] = worst;
    let longer = with.saturating_sub(without);
    println!("worst with minus worst without: {}", table::duration(longer));
    if longer > Duration::from_millis(options.limit_ms) {
        return Err(format!("a snapshot made the worst request longer by more than {} ms", options.limit_ms));
    }
    Ok(())
}

fn cells(requests: &str, snapshot: &str, latencies: &Histogram) -> Vec<String> {
    let mut row = vec![requests.to_string(), snapshot.to_string(), table::grouped(latencies.count())];
    row.extend([500, 900, 990, 999].map(|per_mille| table::duration(latencies.quantile(per_mille))));
    row.push(table::duration(latencies.max()));
    row
}
