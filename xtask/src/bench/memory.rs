//! The suite `memory`: what many keys weigh, fresh and after a restart, and how long a restart takes.

use tidelock_load::{Protocol, Values};

use super::figures::{Figures, Unit};
use super::points::fill_with;
use super::report::Amount;
use super::{Bench, Suite};
use crate::Result;
use crate::servers::{Cluster, Kind};

/// Keys, and for a quick look.
const KEYS: u64 = 1_000_000;
const QUICK_KEYS: u64 = 100_000;

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let suite = Suite::Memory;
    bench.begin(suite, bench.options.rounds());
    let keys = if bench.options.quick { QUICK_KEYS } else { KEYS };
    let values = Values::new(bench.options.value_bytes);
    let amount = Amount { count: keys, of: "keys" };
    let measure = async |cluster: &mut Cluster| weigh(cluster, keys, &values).await;
    // A second filling of the same servers would rewrite the keys of the first.
    bench.rounds_on_new(suite, 1, "fill, crash, restart", amount, measure).await
}

async fn weigh(cluster: &mut Cluster, keys: u64, values: &Values) -> Result<Figures> {
    let protocol = if cluster.system.kind == Kind::Zookeeper { Protocol::Zookeeper } else { Protocol::Etcd };
    let empty = cluster.settled_memory().await?;
    let endpoints = cluster.endpoints(protocol);
    let filled = tokio::task::block_in_place(|| fill_with(&endpoints, protocol, keys, values))?;
    let fresh = cluster.settled_memory().await?;
    let back = cluster.crash_and_restart(0).await?;
    let restarted = cluster.settled_memory().await?;
    let mut figures = Figures::default();
    figures.add("keys/s", Unit::PerSecond, keys as f64 / filled.elapsed.as_secs_f64().max(1e-9));
    figures.add("empty RSS", Unit::Bytes, empty.resident as f64);
    figures.add("fresh RSS", Unit::Bytes, fresh.resident as f64);
    figures.add("restarted RSS", Unit::Bytes, restarted.resident as f64);
    figures.add_time("start to first read", back);
    Ok(figures)
}
