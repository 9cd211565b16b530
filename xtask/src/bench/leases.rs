//! The suite `leases`: many leases with a key each, what they weigh, and how they are renewed; beside etcd, with fewer of
//! them if not told otherwise: a million takes etcd more than five minutes, and what is compared is per lease or per second.

use std::time::Duration;

use tidelock_load::{LeaseGrants, LeasePuts, Load, Protocol, Until, Workload, renew, run as send, spread};

use super::figures::{Figures, Unit};
use super::points::using;
use super::report::Amount;
use super::{Bench, Suite};
use crate::Result;
use crate::servers::{Cluster, Kind};

/// Leases, and for a quick look.
pub(super) const LEASES: u64 = 1_000_000;
pub(super) const QUICK_LEASES: u64 = 100_000;
/// Long enough that none expires while they are counted.
const TTL_S: i64 = 86_400;
const IN_FLIGHT: usize = 512;
const CONNECTIONS: usize = 8;

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let suite = Suite::Leases;
    bench.begin(suite, bench.options.rounds());
    let leases = if bench.options.quick { QUICK_LEASES } else { LEASES };
    let time = Duration::from_secs(bench.options.seconds());
    let nodes = bench.options.largest();
    let amount = Amount { count: leases, of: "leases" };
    let peer_leases = bench.options.peer_leases.min(leases);
    let measure = async |cluster: &mut Cluster| {
        let count = if cluster.system.kind == Kind::Tidelock { leases } else { peer_leases };
        grant_and_renew(cluster, count, time).await
    };
    // The same numbers cannot be granted again.
    bench.rounds_on_new(suite, nodes, "grant, put, renew", amount, measure).await
}

/// Grants `leases`, puts a key for each, renews them for `time`.
pub(super) async fn grant_and_renew(cluster: &mut Cluster, leases: u64, time: Duration) -> Result<Figures> {
    let addresses = spread(&cluster.endpoints(Protocol::Etcd), CONNECTIONS);
    let pids = cluster.pids();
    let empty = cluster.settled_memory().await?;
    let all = |workload: &mut dyn Workload| {
        let (done, used) =
            using(&pids, || send(Protocol::Etcd, &addresses, workload, &Load::closed(IN_FLIGHT, Until::Done)))?;
        done.check(0)?;
        Ok::<_, String>((done, used))
    };
    let (granted, grants_used) =
        tokio::task::block_in_place(|| all(&mut LeaseGrants { leases, ttl_s: TTL_S, next: 0 }))?;
    let bare = cluster.settled_memory().await?;
    tokio::task::block_in_place(|| all(&mut LeasePuts { leases, next: 0 }))?;
    let with_keys = cluster.settled_memory().await?;
    let (renewed, renewals_used) =
        tokio::task::block_in_place(|| using(&pids, || renew(&addresses, 0, leases, None, time)))?;
    if let Some(why) = renewed.failure {
        return Err(why);
    }
    let (count, renewals) = (leases as f64, renewed.latencies.count().max(1) as f64);
    // Of one member: each holds them all.
    let per_lease = |after: u64, before: u64| after.saturating_sub(before) as f64 / count / cluster.nodes() as f64;
    let mut figures = Figures::default();
    figures.add("granted", Unit::Count, count);
    figures.add("grants/s", Unit::PerSecond, count / granted.elapsed.as_secs_f64().max(1e-9));
    figures.add("CPU us/grant", Unit::CpuMicroseconds, grants_used.servers.as_secs_f64() * 1e6 / count);
    figures.add("B/lease", Unit::Bytes, per_lease(bare.resident, empty.resident));
    figures.add("B/lease+key", Unit::Bytes, per_lease(with_keys.resident, empty.resident));
    figures.add("renewals/s", Unit::PerSecond, renewals / renewed.elapsed.as_secs_f64().max(1e-9));
    figures.add("CPU us/renewal", Unit::CpuMicroseconds, renewals_used.servers.as_secs_f64() * 1e6 / renewals);
    figures.add("gone", Unit::Faults, renewed.gone as f64);
    Ok(figures)
}
