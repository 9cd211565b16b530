//! The suite `failover`: the leader's process is killed, or stopped, and how long it takes until a write succeeds.
//!
//! Writes are due every few milliseconds, spread over all members. What counts is the first that was due after the
//! leader was gone and succeeded; a client that asks the right member at once waits no longer than that.

use std::time::{Duration, Instant};

use tidelock_load::{Kind as Work, Load, Pace, Protocol, Until, Values, spread};

use super::figures::Figures;
use super::points::prepare;
use super::report::Amount;
use super::{Bench, Suite};
use crate::Result;
use crate::servers::{Cluster, Kind};

/// Before the leader goes, and until the run ends: ZooKeeper takes more than ten seconds to miss a stopped leader.
const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(4);
const AFTER_STOPPED_ZOOKEEPER: Duration = Duration::from_secs(16);
/// Writes per second: often enough to see 5 ms.
const WRITES_PER_S: f64 = 200.0;
/// The load, where there is one.
const LOADED_PER_S: f64 = 2_000.0;
const CONNECTIONS: usize = 6;
const KEYS: u64 = 1_000;
/// A write to a member that waits for a leader may wait for long; others are sent meanwhile.
const GIVE_UP: Duration = Duration::from_secs(20);

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let suite = Suite::Failover;
    let nodes = bench.options.largest().max(3);
    bench.begin(suite, 3 * bench.options.rounds());
    let mut clusters = bench.start(suite, nodes).await?;
    for cluster in &clusters {
        prepare(cluster, own_protocol(cluster), KEYS, &Values::new(256))?;
    }
    for (case, stopped, per_s) in [
        ("leader killed", false, WRITES_PER_S),
        ("leader killed, loaded", false, LOADED_PER_S),
        ("leader stopped", true, WRITES_PER_S),
    ] {
        let amount = Amount { count: per_s as u64, of: "writes/s" };
        let measure = async |cluster: &mut Cluster| lose_leader(cluster, stopped, per_s).await;
        bench.rounds(suite, &mut clusters, case, amount, measure).await?;
    }
    Ok(())
}

fn own_protocol(cluster: &Cluster) -> Protocol {
    if cluster.system.kind == Kind::Zookeeper { Protocol::Zookeeper } else { Protocol::Etcd }
}

async fn lose_leader(cluster: &mut Cluster, stopped: bool, per_s: f64) -> Result<Figures> {
    let protocol = own_protocol(cluster);
    let leader = cluster.leader_at().await?;
    let addresses = spread(&cluster.endpoints(protocol), CONNECTIONS);
    let is_slow = stopped && cluster.system.kind == Kind::Zookeeper;
    let time = BEFORE + if is_slow { AFTER_STOPPED_ZOOKEEPER } else { AFTER };
    let load =
        Load { pace: Pace::Open(per_s), give_up: GIVE_UP, record: true, ..Load::open(per_s, Until::Elapsed(time)) };
    let writing = tokio::task::spawn_blocking(move || {
        let kind = if protocol == Protocol::Etcd { Work::Put } else { Work::Set };
        let mut workload = kind.start(KEYS, &Values::new(256), 0);
        tidelock_load::run(protocol, &addresses, workload.as_mut(), &load)
    });
    tokio::time::sleep(BEFORE).await;
    let gone = Instant::now();
    if stopped {
        cluster.stop(leader)?;
    } else {
        cluster.kill(leader);
    }
    tokio::time::sleep(time - BEFORE).await;
    // Whatever came of it, the next round finds all members up.
    if stopped {
        cluster.go_on(leader)?;
    } else {
        cluster.start_again(leader)?;
    }
    let done = writing.await.map_err(|error| format!("the load ended: {error}"))??;
    cluster.ready().await?;
    let back = done.calls.iter().filter(|call| call.due >= gone).map(|call| call.answered).min();
    let back = back.ok_or_else(|| format!("no write succeeded within {:?}", time - BEFORE))?;
    let mut figures = Figures::default();
    figures.add_time("first write after", back.duration_since(gone));
    figures.add_time("longest silence", done.timeline.longest_silence());
    Ok(figures)
}
