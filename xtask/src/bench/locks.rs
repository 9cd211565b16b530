//! The suite `locks`: locks taken and given back, one each or one for all, through etcd's Lock service and through
//! ZooKeeper's recipe.

use std::time::{Duration, UNIX_EPOCH};

use tidelock_load::{Protocol, lock_by_recipe, lock_by_rpc, spread};

use super::figures::{Figures, Unit};
use super::points::using;
use super::report::Amount;
use super::{Bench, Suite};
use crate::Result;
use crate::servers::{Cluster, Kind};

/// Workers that hand one lock on; 1 is a lock without contention.
const WAITERS: [usize; 5] = [1, 16, 64, 100, 1000];
/// Connections of the Lock service, which many workers share.
const RPC_CONNECTIONS_MAX: usize = 16;
/// Sessions of the recipe: ZooKeeper takes 60 from one address by default, and ours does.
const SESSIONS_MAX: usize = 50;

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let suite = Suite::Locks;
    let nodes = bench.options.largest();
    bench.begin(suite, 2 * WAITERS.len() as u64 * bench.options.rounds());
    for protocol in [Protocol::Etcd, Protocol::Zookeeper] {
        let other = if protocol == Protocol::Etcd { Kind::Zookeeper } else { Kind::Etcd };
        let mut clusters = bench.start_those(suite, nodes, |kind| kind != other).await?;
        for waiters in WAITERS {
            let time = Duration::from_secs(bench.options.seconds());
            let case = match protocol {
                Protocol::Etcd => "lock by etcd's service",
                Protocol::Zookeeper => "lock by ZooKeeper's recipe",
            };
            let amount = Amount { count: waiters as u64, of: "waiters" };
            let measure = async |cluster: &mut Cluster| hand_over(cluster, protocol, waiters, time);
            bench.rounds(suite, &mut clusters, case, amount, measure).await?;
        }
    }
    Ok(())
}

fn hand_over(cluster: &Cluster, protocol: Protocol, waiters: usize, time: Duration) -> Result<Figures> {
    let (endpoints, pids) = (cluster.endpoints(protocol), cluster.pids());
    // A new name each time: what an ended round leaves behind must not stand in line.
    let since = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos());
    tokio::task::block_in_place(|| {
        let (locked, used) = using(&pids, || match protocol {
            Protocol::Etcd => {
                let addresses = spread(&endpoints, waiters.min(RPC_CONNECTIONS_MAX));
                lock_by_rpc(&addresses, &format!("bench-lock-{since}"), waiters, true, time)
            }
            Protocol::Zookeeper => {
                let addresses = spread(&endpoints, waiters.min(SESSIONS_MAX));
                lock_by_recipe(&addresses, &format!("/bench-lock-{since}"), waiters, true, time)
            }
        })?;
        if let Some(why) = locked.first_failure {
            return Err(why);
        }
        let cycles = locked.cycles.max(1) as f64;
        let mut figures = Figures::default();
        figures.add("locks/s", Unit::PerSecond, locked.cycles as f64 / locked.elapsed.as_secs_f64().max(1e-9));
        figures.add_time("p50", locked.latencies.quantile(500));
        figures.add_time("p99", locked.latencies.quantile(990));
        figures.add("CPU us/lock", Unit::CpuMicroseconds, used.servers.as_secs_f64() * 1e6 / cycles);
        figures.add("client us/lock", Unit::CpuMicroseconds, used.client.as_secs_f64() * 1e6 / cycles);
        Ok(figures)
    })
}
