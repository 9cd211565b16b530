//! The suite `native`: what the native API does that no peer has. Many sessions with a lock each, what they weigh on one
//! node; and phasers of many parties, flat and as a tree.

use std::time::UNIX_EPOCH;

use tidelock_load::{NativeSessions, Parties, PhaserLoad, Protocol, spread};

use super::figures::{Figures, Unit};
use super::points::using;
use super::report::Amount;
use super::{Bench, Suite};
use crate::servers::Cluster;
use crate::{Result, client, fill};

/// Sessions, and for a quick look.
pub(super) const SESSIONS: u64 = 1_000_000;
pub(super) const QUICK_SESSIONS: u64 = 100_000;
/// What the capacity table looks for.
pub(super) const OPEN_AND_LOCK: &str = "sessions, a lock each";
pub(super) const SESSION_AND_LOCK: &str = "B/session+lock";
/// A stream takes 65,536 sessions at most.
const STREAMS: usize = 20;
/// Parties, and those who speak for them.
const PARTIES: usize = 10_000;
const PARTY_SESSIONS: usize = 100;
const CONNECTIONS: usize = 16;
/// Phases of a round, and for a quick look.
const PHASES: u64 = 20;
const QUICK_PHASES: u64 = 5;
/// Cases with the children that the parties are shared out to; none: one phaser has them all.
const PHASERS: [(&str, usize); 2] = [("phaser, flat", 0), ("phaser, tree of 100", 100)];

/// Sessions, and phases of a round of phasers.
fn amounts(quick: bool) -> (u64, u64) {
    if quick { (QUICK_SESSIONS, QUICK_PHASES) } else { (SESSIONS, PHASES) }
}

/// How many sessions are opened, and how many arrivals there are in one round of each case.
pub(super) fn work(quick: bool) -> (u64, u64) {
    let (sessions, phases) = amounts(quick);
    (sessions, (PHASERS.len() * PARTIES) as u64 * phases)
}

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let suite = Suite::Native;
    let (sessions, phases) = amounts(bench.options.quick);
    bench.begin(suite, 1 + PHASERS.len() as u64 * bench.options.rounds());
    let mut clusters = bench.start(suite, 1).await?;
    if clusters.is_empty() {
        // Peers were asked for alone, and none of them speaks it.
        return Ok(());
    }
    let amount = Amount { count: sessions, of: "sessions" };
    let measure = async |cluster: &mut Cluster| open_and_lock(cluster, sessions).await;
    // Once: they fill a new server.
    bench.rounds_of(1, suite, &mut clusters, OPEN_AND_LOCK, amount, measure).await?;
    drop(clusters);
    let mut clusters = bench.start(suite, bench.options.largest()).await?;
    for (case, children) in PHASERS {
        let amount = Amount { count: PARTIES as u64, of: "parties" };
        let measure = async |cluster: &mut Cluster| {
            let figures = meet(cluster, children, phases)?;
            forget_the_past(cluster).await?;
            Ok(figures)
        };
        bench.rounds(suite, &mut clusters, case, amount, measure).await?;
    }
    Ok(())
}

/// What is past is not what sessions and parties weigh.
async fn forget_the_past(cluster: &Cluster) -> Result<()> {
    fill::compact(&client::channel(cluster.endpoints(Protocol::Etcd)[0])).await
}

async fn open_and_lock(cluster: &mut Cluster, count: u64) -> Result<Figures> {
    let addresses = spread(&cluster.native_endpoints(), STREAMS);
    let pids = cluster.pids();
    let empty = cluster.settled_memory().await?;
    let mut sessions = tokio::task::block_in_place(|| NativeSessions::connect(&addresses))?;
    let (opens, opens_used) =
        tokio::task::block_in_place(|| using(&pids, || sessions.open(usize::try_from(count).unwrap_or(usize::MAX))))?;
    let bare = cluster.settled_memory().await?;
    let (locks, locks_used) = tokio::task::block_in_place(|| using(&pids, || sessions.lock()))?;
    // A snapshot under way would keep the compaction waiting, perhaps for longer than a request may take.
    cluster.settled_memory().await?;
    forget_the_past(cluster).await?;
    let with_locks = cluster.settled_memory().await?;
    // Only now: what the server keeps for attached sessions is part of what they weigh.
    drop(sessions);
    let count = count as f64;
    let per_session = |after: u64| after.saturating_sub(empty.resident) as f64 / count;
    let mut figures = Figures::default();
    figures.add("granted", Unit::Count, count);
    figures.add("opens/s", Unit::PerSecond, count / opens.as_secs_f64().max(1e-9));
    figures.add("locks/s", Unit::PerSecond, count / locks.as_secs_f64().max(1e-9));
    figures.add("CPU us/open", Unit::CpuMicroseconds, opens_used.servers.as_secs_f64() * 1e6 / count);
    figures.add("CPU us/lock", Unit::CpuMicroseconds, locks_used.servers.as_secs_f64() * 1e6 / count);
    figures.add("B/session", Unit::Bytes, per_session(bare.resident));
    figures.add(SESSION_AND_LOCK, Unit::Bytes, per_session(with_locks.resident));
    Ok(figures)
}

/// One round of a phaser. Registering its parties is what warms the servers up.
fn meet(cluster: &Cluster, children: usize, phases: u64) -> Result<Figures> {
    let addresses = spread(&cluster.native_endpoints(), CONNECTIONS);
    let pids = cluster.pids();
    // A new name each time: nobody of an ended round must be waited for.
    let name = format!("bench-phaser-{}", UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos()));
    let load = PhaserLoad { addresses: &addresses, name: &name, sessions: PARTY_SESSIONS, parties: PARTIES, children };
    tokio::task::block_in_place(|| {
        let mut parties = Parties::set_up(&load)?;
        let (phased, used) = using(&pids, || parties.run(phases))?;
        parties.close()?;
        let (arrivals, seconds) = (phased.arrivals.max(1) as f64, phased.elapsed.as_secs_f64().max(1e-9));
        let mut figures = Figures::default();
        figures.add("phases/s", Unit::PerSecond, phased.phases.count() as f64 / seconds);
        figures.add_time("phase p50", phased.phases.quantile(500));
        figures.add_time("phase max", phased.phases.max());
        figures.add("arrivals/s", Unit::PerSecond, arrivals / seconds);
        figures.add("CPU us/arrival", Unit::CpuMicroseconds, used.servers.as_secs_f64() * 1e6 / arrivals);
        figures.add("client us/arrival", Unit::CpuMicroseconds, used.client.as_secs_f64() * 1e6 / arrivals);
        figures.add("received B/arrival", Unit::Bytes, phased.bytes as f64 / arrivals);
        figures.add("RSS", Unit::Bytes, used.resident as f64);
        Ok(figures)
    })
}
