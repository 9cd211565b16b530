//! The suite `overload`: more than the server can do, sent whatever it answers.
//!
//! First what it can do is measured (1000 in flight). Then 1 and 4 times that is due each second, while clients with
//! leases of a few seconds renew them as they should, and somebody compacts the history every second: without that memory
//! grows with every write, as it should. Reported is what was answered in time, what became of the leases,
//! whether there was an election, what memory did all the while, and how long it took until writes were quick again.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tidelock_load::{Kind, LeaseGrants, Load, Protocol, Until, Values, renew, run as send, spread};

use super::figures::{Figures, Unit};
use super::points::{prepare, using};
use super::report::Amount;
use super::{Bench, Suite};
use crate::servers::Cluster;
use crate::{Result, client, fill, procfs};

pub(super) const FACTORS: [u64; 2] = [1, 4];
const SATURATING: usize = 1000;
const CONNECTIONS: usize = 16;
/// An answer that takes longer is of no use to anybody.
const IN_TIME: Duration = Duration::from_secs(5);
/// How many times as long as a round of other suites it goes on: what fills up slowly shows in its second half.
pub(super) const LONGER: u32 = 5;
/// How often memory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Clients with a lease, for how long it lasts, and how often each is renewed: as etcd's clients do, three times.
const LEASES: u64 = 100;
const LEASE_TTL_S: i64 = 6;
const RENEWALS_PER_S: f64 = LEASES as f64 * 3.0 / LEASE_TTL_S as f64;
/// How often history is forgotten.
const COMPACT_EVERY: Duration = Duration::from_secs(1);
/// Afterwards: a light load for so long, until no write takes longer than `QUICK_AGAIN`.
const AFTERWARDS: Duration = Duration::from_secs(10);
const AFTERWARDS_PER_S: f64 = 200.0;
const QUICK_AGAIN: Duration = Duration::from_millis(100);

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let suite = Suite::Overload;
    let nodes = bench.options.largest();
    bench.begin(suite, FACTORS.len() as u64 * bench.options.rounds());
    let values = Values::new(bench.options.value_bytes);
    let keys = bench.options.keys;
    let time = Duration::from_secs(bench.options.seconds()) * LONGER;
    let mut clusters = bench.start(suite, nodes).await?;
    for cluster in &clusters {
        prepare(cluster, Protocol::Etcd, keys, &values)?;
    }
    for factor in FACTORS {
        let amount = Amount { count: factor, of: "x saturation" };
        let measure = async |cluster: &mut Cluster| overload(cluster, factor, keys, &values, time).await;
        bench.rounds(suite, &mut clusters, "put", amount, measure).await?;
    }
    Ok(())
}

async fn overload(cluster: &mut Cluster, factor: u64, keys: u64, values: &Values, time: Duration) -> Result<Figures> {
    let endpoints = cluster.endpoints(Protocol::Etcd);
    let addresses = spread(&endpoints, CONNECTIONS);
    let pids = cluster.pids();
    let term = client::term(endpoints[0]).await?;
    let first = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()) % (1 << 30) * LEASES;
    let put = |load: &Load| send(Protocol::Etcd, &addresses, Kind::Put.start(keys, values, 0).as_mut(), load);
    let compacting = tokio::spawn(compact_again_and_again(endpoints[0]));
    let saturated = tokio::task::block_in_place(|| {
        let mut grants = LeaseGrants { leases: first + LEASES, ttl_s: LEASE_TTL_S, next: first };
        send(Protocol::Etcd, &endpoints, &mut grants, &Load::closed(LEASES as usize, Until::Done))?.check(0)?;
        put(&Load::closed(SATURATING, Until::Elapsed(Duration::from_secs(2))))
    })?;
    let capacity = saturated.latencies.count() as f64 / saturated.elapsed.as_secs_f64().max(1e-9);
    let renewing = {
        let endpoints = endpoints.clone();
        let time = time + AFTERWARDS;
        tokio::task::spawn_blocking(move || renew(&endpoints, first, LEASES, Some(RENEWALS_PER_S), time))
    };
    let load = Load { give_up: IN_TIME, ..Load::open(capacity * factor as f64, Until::Elapsed(time)) };
    let memory = tokio::spawn(look_at_memory(pids.clone(), time));
    let (done, used) = tokio::task::block_in_place(|| using(&pids, || put(&load)))?;
    let over = Instant::now();
    let light = Load { record: true, ..Load::open(AFTERWARDS_PER_S, Until::Elapsed(AFTERWARDS)) };
    let afterwards = tokio::task::block_in_place(|| put(&light))?;
    compacting.abort();
    let renewed = renewing.await.map_err(|error| format!("renewing ended: {error}"))??;
    let [half, end] = memory.await.map_err(|error| format!("looking at memory ended: {error}"))?;
    let slow = afterwards.calls.iter().filter(|call| call.answered.duration_since(call.due) > QUICK_AGAIN);
    let recovered = slow.map(|call| call.answered.saturating_duration_since(over)).max().unwrap_or_default();
    let mut figures = Figures::default();
    figures.add("peak ops/s", Unit::PerSecond, capacity);
    figures.add(
        "goodput/s",
        Unit::PerSecond,
        done.timeline.answered_during(Duration::ZERO, time) as f64 / time.as_secs_f64(),
    );
    for (name, per_mille) in [("p50", 500), ("p99", 990), ("p99.9", 999)] {
        figures.add_time(name, done.latencies.quantile(per_mille));
    }
    let answered = done.latencies.count().max(1) as f64;
    figures.add("CPU us/op", Unit::CpuMicroseconds, used.servers.as_secs_f64() * 1e6 / answered);
    figures.add("refused", Unit::Count, done.failed as f64);
    // Who cannot renew will lose its lease, also if it was not told so yet.
    let lost = if renewed.failure.is_some() { LEASES } else { renewed.gone };
    figures.add("leases lost", Unit::Faults, lost as f64);
    figures.add("elections", Unit::Faults, client::term(endpoints[0]).await?.saturating_sub(term) as f64);
    figures.add("RSS, 1st half", Unit::Bytes, half as f64);
    figures.add("RSS, 2nd half", Unit::Bytes, end as f64);
    figures.add_time("recovered after", recovered);
    Ok(figures)
}

/// The most that all servers together held in the first half of `time`, and in the second. What is held at once differs
/// with what is compacted and saved at the moment; what grows for as long as the overload lasts is more in the second.
async fn look_at_memory(pids: Vec<u32>, time: Duration) -> [u64; 2] {
    let start = Instant::now();
    let mut most = [0, 0];
    while start.elapsed() < time {
        let held: u64 = pids.iter().filter_map(|pid| procfs::memory(*pid).ok()).map(|memory| memory.resident).sum();
        let half = &mut most[usize::from(start.elapsed() > time / 2)];
        *half = held.max(*half);
        tokio::time::sleep(LOOK_EVERY).await;
    }
    most
}

/// Until it is aborted. A server with more to do than it can may refuse; the next second is another.
async fn compact_again_and_again(endpoint: SocketAddr) {
    let channel = client::channel(endpoint);
    loop {
        tokio::time::sleep(COMPACT_EVERY).await;
        let _ = fill::begin_compaction(&channel).await;
    }
}
