//! What requests feel while the server writes a snapshot or forgets a long history: steady writes and reads, with and
//! without.
//!
//! The promise is that neither ever stops the world. It is judged by the worst request meanwhile, against the 99th
//! percentile without, or the worst without if a bad moment of the machine made that larger.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use tidelock_load::Histogram;
use tonic::transport::Channel;

use super::paced::{Calls, Pace, Plan};
use crate::fill::{self, Values};
use crate::servers::{Cluster, System, admin};
use crate::table::{self, Table};
use crate::{Result, progress};

/// Connections to send over.
const CONNECTIONS: usize = 4;
/// From when to when something went on.
type Window = (Instant, Instant);

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
    /// Fail if the worst request meanwhile took this much longer than the 99th percentile without
    #[arg(long, default_value_t = 20)]
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
    let bar = progress::bar(options.keys, "rewrite keys");
    fill::fill(&channels, options.keys, &values, &bar).await?;
    bar.finish_and_clear();

    // Loading made one due: take it now, so that none starts by itself while none is wanted.
    take_snapshot(&cluster).await?;
    let plan = || Plan { each_per_s: options.rate, keys: options.keys, values: values.clone() };
    let warm_up = Pace::start(channels.clone(), plan());
    tokio::time::sleep(WARM_UP).await;
    warm_up.stop().await;

    let bar = progress::bar(options.snapshots, "snapshots under load");
    let pace = Pace::start(channels.clone(), plan());
    let mut snapshots = Vec::new();
    for _ in 0..options.snapshots {
        tokio::time::sleep(Duration::from_secs(options.seconds)).await;
        snapshots.push(take_snapshot(&cluster).await?);
        bar.inc(1);
    }
    tokio::time::sleep(Duration::from_secs(options.seconds)).await;
    bar.finish_and_clear();
    let compaction = compact(&channels[0]).await?;
    report(&options, &pace.stop().await, &snapshots, compaction)
}

/// Forgets the whole history and waits until it is gone; from when to when. Data that shrank makes a snapshot due, so
/// one may run at the end of it.
async fn compact(channel: &Channel) -> Result<Window> {
    let start = Instant::now();
    fill::compact(channel).await?;
    Ok((start, Instant::now()))
}

/// Asks for a snapshot and waits until it is written; from when to when.
async fn take_snapshot(cluster: &Cluster) -> Result<Window> {
    let start = Instant::now();
    let answer = admin::ask(cluster.admin(0), "POST", "/v1/snapshot").await?;
    match answer.code {
        200..=299 => Ok((start, Instant::now())),
        code => Err(format!("the server refused a snapshot ({code}): {}", answer.body)),
    }
}

fn report(options: &Options, calls: &Calls, snapshots: &[Window], compaction: Window) -> Result<()> {
    let header = ["requests", "meanwhile", "count", "p50", "p90", "p99", "p99.9", "worst"];
    let mut table = Table::new(2, &header);
    let limit = Duration::from_millis(options.limit_ms);
    let all: Vec<Window> = snapshots.iter().copied().chain([compaction]).collect();
    let mut longest = Duration::ZERO;
    let mut allowed = Duration::ZERO;
    for (requests, wrote) in [("put", true), ("get", false)] {
        let usual = calls.latencies(wrote, &all, false);
        allowed = allowed.max(usual.max().max(usual.quantile(990) + limit));
        table.row(cells(requests, "nothing", &usual));
        for (what, during) in [("snapshot", snapshots), ("compaction", &[compaction][..])] {
            let latencies = calls.latencies(wrote, during, true);
            longest = longest.max(latencies.max());
            table.row(cells(requests, what, &latencies));
        }
    }
    let each: Vec<String> = snapshots.iter().map(|(from, to)| table::duration(*to - *from)).collect();
    println!(
        "{} keys of {} bytes, {} writes and {} reads per second; snapshots took {}, compaction of {} changes {}\n{}",
        table::grouped(options.keys),
        options.value_bytes,
        options.rate,
        options.rate,
        each.join(", "),
        table::grouped(options.keys * 2),
        table::duration(compaction.1 - compaction.0),
        table.text()
    );
    if let Some(failure) = &calls.first_failure {
        return Err(format!("{} requests failed, the first with: {failure}", calls.failed));
    }
    println!("worst meanwhile {}, allowed {}", table::duration(longest), table::duration(allowed));
    if longest > allowed {
        return Err(format!("a request took longer by more than {} ms", options.limit_ms));
    }
    Ok(())
}

fn cells(requests: &str, snapshot: &str, latencies: &Histogram) -> Vec<String> {
    let mut row = vec![requests.to_string(), snapshot.to_string(), table::grouped(latencies.count())];
    row.extend([500, 900, 990, 999].map(|per_mille| table::duration(latencies.quantile(per_mille))));
    row.push(table::duration(latencies.max()));
    row
}
