//! The suite `background`: what requests feel while the server compacts its history and writes a snapshot.
//!
//! All of our members are told to write one at the same moment (`POST /v1/snapshot`); etcd writes its own when it likes, so there only compaction is
//! asked for. Load is open: writes are due at fixed moments, and latency counts from there.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tidelock_load::{Kind as Work, Load, Protocol, Until, Values, spread};

use super::figures::{Figures, Unit};
use super::points::prepare;
use super::report::Amount;
use super::{Bench, Suite};
use crate::servers::{Cluster, Kind, admin};
use crate::{Result, client, fill};

/// Keys in the store, and for a quick look.
const KEYS: u64 = 1_000_000;
const QUICK_KEYS: u64 = 100_000;
const WRITES_PER_S: f64 = 1_000.0;
const CONNECTIONS: usize = 6;
/// The first part of the load: nothing happens but writes.
const CALM: Duration = Duration::from_secs(5);

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let suite = Suite::Background;
    bench.begin(suite, bench.options.rounds());
    let keys = if bench.options.quick { QUICK_KEYS } else { KEYS };
    let values = Values::new(bench.options.value_bytes);
    let mut clusters = bench.start(suite, bench.options.largest()).await?;
    for cluster in &clusters {
        prepare(cluster, Protocol::Etcd, keys, &values)?;
    }
    let amount = Amount { count: keys, of: "keys" };
    let measure = async |cluster: &mut Cluster| disturb(cluster, keys, &values).await;
    bench.rounds(suite, &mut clusters, "compaction and snapshot", amount, measure).await
}

async fn disturb(cluster: &mut Cluster, keys: u64, values: &Values) -> Result<Figures> {
    // The first part is to be calm, whatever the fill left to do.
    cluster.quiet().await?;
    let endpoints = cluster.endpoints(Protocol::Etcd);
    let addresses = spread(&endpoints, CONNECTIONS);
    let (values, start) = (values.clone(), Instant::now());
    let load = Load { record: true, ..Load::open(WRITES_PER_S, Until::Elapsed(CALM * 3)) };
    let writing = tokio::task::spawn_blocking(move || {
        tidelock_load::run(Protocol::Etcd, &addresses, Work::Put.start(keys, &values, 0).as_mut(), &load)
    });
    tokio::time::sleep(CALM).await;
    let from = Instant::now();
    fill::compact(&client::channel(endpoints[0])).await?;
    if cluster.system.kind == Kind::Tidelock {
        let members = (0..cluster.nodes()).map(|member| snapshot(cluster.admin(member)));
        try_join_all(members).await?;
    }
    let to = Instant::now();
    let done = writing.await.map_err(|error| format!("the load ended: {error}"))??;
    done.check(0)?;
    let latency = |call: &tidelock_load::Call| call.answered.duration_since(call.due);
    let mut calm: Vec<Duration> = done.calls.iter().filter(|call| call.answered < from).map(latency).collect();
    calm.sort_unstable();
    let normal = calm.get(calm.len() * 99 / 100).copied().unwrap_or_default();
    let felt = done.calls.iter().filter(|call| call.due <= to && call.answered >= from);
    let worst = felt.map(latency).max().unwrap_or_default();
    let mut figures = Figures::default();
    figures.add_time("calm p99", normal);
    figures.add_worst("calm worst", calm.last().copied().unwrap_or_default());
    figures.add_worst("worst meanwhile", worst);
    figures.add_worst("above calm p99", worst.saturating_sub(normal));
    figures.add_time("it took", to.duration_since(from));
    figures.add("seconds", Unit::Count, start.elapsed().as_secs_f64());
    Ok(figures)
}

async fn snapshot(admin: SocketAddr) -> Result<()> {
    let answer = admin::ask(admin, "POST", "/v1/snapshot").await?;
    match answer.code {
        200..300 => Ok(()),
        code => Err(format!("the server refused a snapshot ({code}): {}", answer.body)),
    }
}
