//! What the real server weighs: resident memory per key and per lease, and how long it takes from the
//! start of its process to the first linearizable read when it comes back from a crash.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use tidelock_etcd_api::etcdserverpb::LeaseGrantRequest;
use tidelock_etcd_api::etcdserverpb::lease_client::LeaseClient;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::{KEY_OVERHEAD_BUDGET, LEASE_AND_KEY_BUDGET, LEASE_BUDGET, per_thing, signed, verdict};
use crate::fill::{self, KEY_BYTES, Values};
use crate::procfs::Memory;
use crate::servers::{Cluster, Kind, System};
use crate::table::{self, Table};
use crate::{Result, progress};

/// Lease grants in flight.
const GRANTS_IN_FLIGHT: u64 = 512;
/// Connections to load over.
const CONNECTIONS: usize = 4;
/// Long enough that no lease expires while they are counted.
const LEASE_TTL_S: i64 = 86_400;

/// How much.
#[derive(Args)]
pub(crate) struct Options {
    /// Keys to load
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Leases to grant; 0 for none
    #[arg(long, default_value_t = 1_000_000)]
    leases: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 256)]
    value_bytes: usize,
    /// What to weigh
    #[arg(long, value_enum, default_value = "tidelock")]
    system: Kind,
    /// Its binary [default: a fresh release build of ours, or etcd on PATH]
    #[arg(long, value_name = "FILE")]
    bin: Option<PathBuf>,
}

/// Loads, looks, compacts, looks, crashes, restarts, looks.
pub(crate) async fn run(options: Options) -> Result<()> {
    let system = System::of(options.system, options.bin.as_deref())?;
    let mut cluster = Cluster::start(&system, 1).await?;
    let channels = cluster.connect(CONNECTIONS, false).await?;
    let values = Values::new(options.value_bytes);
    let mut scale = Scale::new(&options, cluster.settled_memory().await?);

    let took = load(&channels, &options, &values, "load keys").await?;
    scale.keys("loaded", cluster.settled_memory().await?, &format!("{} keys/s", rate(options.keys, took)));
    let took = load(&channels, &options, &values, "rewrite keys").await?;
    scale.history("each rewritten", cluster.settled_memory().await?, &format!("{} keys/s", rate(options.keys, took)));
    fill::compact(&channels[0]).await?;
    scale.keys("compacted", cluster.settled_memory().await?, "");

    let took = cluster.crash_and_restart(0).await?;
    let answered = format!("first linearizable read {} after the start of the process", table::duration(took));
    scale.keys("after kill -9", cluster.settled_memory().await?, &answered);

    drop(cluster);
    if options.leases > 0 {
        weigh_leases(&system, &options, &mut scale).await?;
    }
    println!("{}", scale.text());
    Ok(())
}

/// On a new server: memory the first one freed but kept would take the leases in unseen.
async fn weigh_leases(system: &System, options: &Options, scale: &mut Scale) -> Result<()> {
    let mut cluster = Cluster::start(system, 1).await?;
    let channels = cluster.connect(CONNECTIONS, false).await?;
    let before = cluster.settled_memory().await?;
    let (took, ids) = grant(&channels, options.leases).await?;
    let after = cluster.settled_memory().await?;
    scale.leases("leases granted", before, after, LEASE_BUDGET, &format!("{} grants/s", rate(options.leases, took)));
    let bar = progress::bar(options.leases, "a key for each lease");
    let started = Instant::now();
    fill::attach(&channels, &ids, &bar).await?;
    bar.finish_and_clear();
    let attached = format!("{} keys/s", rate(options.leases, started.elapsed()));
    scale.leases("a key for each", before, cluster.settled_memory().await?, LEASE_AND_KEY_BUDGET, &attached);
    let took = cluster.crash_and_restart(0).await?;
    let answered = format!("first linearizable read after {}", table::duration(took));
    scale.leases("after kill -9", before, cluster.settled_memory().await?, LEASE_AND_KEY_BUDGET, &answered);
    Ok(())
}

async fn load(channels: &[Channel], options: &Options, values: &Values, doing: &str) -> Result<Duration> {
    let bar = progress::bar(options.keys, doing);
    let start = Instant::now();
    fill::fill(channels, options.keys, values, &bar).await?;
    bar.finish_and_clear();
    Ok(start.elapsed())
}

async fn grant(channels: &[Channel], leases: u64) -> Result<(Duration, Vec<i64>)> {
    let bar = progress::bar(leases, "grant leases");
    let start = Instant::now();
    let taken = Arc::new(AtomicU64::new(0));
    let mut workers = JoinSet::new();
    for worker in 0..GRANTS_IN_FLIGHT {
        let client = LeaseClient::new(channels[worker as usize % channels.len()].clone());
        workers.spawn(grant_until(client, Arc::clone(&taken), leases, bar.clone()));
    }
    let mut granted = Vec::new();
    while let Some(worker) = workers.join_next().await {
        granted.extend(worker.map_err(|error| format!("a granting task ended: {error}"))??);
    }
    bar.finish_and_clear();
    Ok((start.elapsed(), granted))
}

async fn grant_until(
    mut client: LeaseClient<Channel>,
    taken: Arc<AtomicU64>,
    leases: u64,
    bar: ProgressBar,
) -> Result<Vec<i64>> {
    let mut ids = Vec::new();
    while taken.fetch_add(1, Ordering::Relaxed) < leases {
        let request = LeaseGrantRequest { ttl: LEASE_TTL_S, ..LeaseGrantRequest::default() };
        let granted = client.lease_grant(request).await;
        let granted = granted.map_err(|status| format!("granting leases: {}", status.message()))?;
        ids.push(granted.into_inner().id);
        bar.inc(1);
    }
    Ok(ids)
}

fn rate(count: u64, took: Duration) -> String {
    table::grouped((count as f64 / took.as_secs_f64()) as u64)
}

/// Collects what was weighed.
struct Scale {
    keys: u64,
    leases: u64,
    own_bytes: u64,
    ours: bool,
    empty: Memory,
    table: Table,
}

impl Scale {
    fn new(options: &Options, empty: Memory) -> Scale {
        let mut table = Table::new(1, &["state", "RSS", "anonymous", "overhead", "", ""]).with_notes(2);
        table.row(vec!["empty".into(), table::mib(empty.resident), table::mib(empty.anonymous)]);
        let own_bytes = options.keys * (KEY_BYTES + options.value_bytes as u64);
        Scale {
            keys: options.keys,
            leases: options.leases,
            own_bytes,
            ours: options.system == Kind::Tidelock,
            empty,
            table,
        }
    }

    /// A line about keys, each with no more than one version.
    fn keys(&mut self, when: &str, now: Memory, note: &str) {
        let overhead = self.overhead(now);
        let verdict = self.verdict(overhead, KEY_OVERHEAD_BUDGET);
        self.add(when, now, format!("{overhead} B/key"), verdict, note);
    }

    /// A line about keys that have history, whose old values count as overhead: no budget holds for it.
    fn history(&mut self, when: &str, now: Memory, note: &str) {
        self.add(when, now, format!("{} B/key", self.overhead(now)), String::new(), note);
    }

    fn leases(&mut self, when: &str, before: Memory, now: Memory, budget: u64, note: &str) {
        let each = per_thing(signed(now.resident) - signed(before.resident), self.leases);
        let verdict = self.verdict(each, budget);
        self.add(when, now, format!("{each} B/lease"), verdict, note);
    }

    fn overhead(&self, now: Memory) -> i64 {
        let grown = signed(now.resident) - signed(self.empty.resident);
        per_thing(grown - signed(self.own_bytes), self.keys)
    }

    /// The budgets are ours; nobody else promised to keep them.
    fn verdict(&self, figure: i64, budget: u64) -> String {
        if self.ours { verdict(figure, budget) } else { String::new() }
    }

    fn add(&mut self, when: &str, now: Memory, overhead: String, verdict: String, note: &str) {
        eprintln!("{when}: {}, {overhead} {note}", table::mib(now.resident));
        let (resident, anonymous) = (table::mib(now.resident), table::mib(now.anonymous));
        self.table.row(vec![when.to_string(), resident, anonymous, overhead, verdict, note.to_string()]);
    }

    fn text(&self) -> String {
        let own = self.own_bytes / self.keys;
        format!(
            "{} keys of {own} bytes each (key and value), {} leases; overhead is resident memory beyond the \
             empty server's and the keys' own bytes\n{}",
            table::grouped(self.keys),
            table::grouped(self.leases),
            self.table.text()
        )
    }
}
