//! The suite `watch`: writes that many watchers are told of, beside etcd.

use std::time::Duration;

use tidelock_load::{FanOut, Protocol, Watchers};

use super::figures::{Figures, Unit};
use super::points::using;
use super::report::Amount;
use super::{Bench, Suite};
use crate::Result;

/// Writes per second, and bytes of each.
const WRITES_PER_S: f64 = 100.0;
const VALUE_BYTES: usize = 1024;

/// Watchers of one key on their own or on shared connections, and of a key each.
const CASES: [(&str, usize, usize, bool); 3] = [
    ("fan-out, a connection each", 500, 500, false),
    ("fan-out, 16 connections", 500, 16, false),
    ("a key each, 16 connections", 10_000, 16, true),
];

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let suite = Suite::Watch;
    let nodes = bench.options.largest();
    bench.begin(suite, CASES.len() as u64 * bench.options.rounds());
    let mut clusters = bench.start(suite, nodes).await?;
    for (case, watchers, connections, distinct) in CASES {
        let time = Duration::from_secs(bench.options.seconds());
        let plan =
            FanOut { watchers, connections, distinct, writes_per_s: WRITES_PER_S, value_bytes: VALUE_BYTES, time };
        let amount = Amount { count: watchers as u64, of: "watchers" };
        let measure = async |cluster: &mut crate::servers::Cluster| fan_out(cluster, plan);
        bench.rounds(suite, &mut clusters, case, amount, measure).await?;
    }
    Ok(())
}

/// One round of `plan`.
pub(super) fn fan_out(cluster: &crate::servers::Cluster, plan: FanOut) -> Result<Figures> {
    let (endpoints, pids) = (cluster.endpoints(Protocol::Etcd), cluster.pids());
    tokio::task::block_in_place(|| {
        let mut watchers = Watchers::set_up(&endpoints, plan)?;
        let (done, used) = using(&pids, || watchers.run())?;
        let delivered = done.deliveries.count().max(1) as f64;
        let mut figures = Figures::default();
        figures.add("events/s", Unit::PerSecond, delivered / done.elapsed.as_secs_f64().max(1e-9));
        figures.add_time("p50", done.deliveries.quantile(500));
        figures.add_time("p99", done.deliveries.quantile(990));
        figures.add_time("p99.9", done.deliveries.quantile(999));
        figures.add("CPU us/event", Unit::CpuMicroseconds, used.servers.as_secs_f64() * 1e6 / delivered);
        figures.add("client us/event", Unit::CpuMicroseconds, used.client.as_secs_f64() * 1e6 / delivered);
        figures.add("RSS", Unit::Bytes, used.resident as f64);
        figures.add("missing", Unit::Faults, done.expected.saturating_sub(done.deliveries.count()) as f64);
        Ok(figures)
    })
}
