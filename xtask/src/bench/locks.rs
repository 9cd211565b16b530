//! The suite `locks`: locks taken and given back, one for all or one each.
//!
//! First each system in its own way: the native API, etcd's Lock service, ZooKeeper's recipe, and one node of Redis with
//! `SET NX PX` and a script. Then ours in the ways of the two that agree, for who comes with their clients.

use std::time::{Duration, UNIX_EPOCH};

use tidelock_load::{LockLoad, Locked, Protocol, lock_by_recipe, lock_by_rpc, lock_by_set, lock_natively, spread};

use super::figures::{Figures, Unit};
use super::points::using;
use super::report::Amount;
use super::{Bench, Suite};
use crate::Result;
use crate::servers::{Cluster, Kind};

/// Workers that hand one lock on; 1 is a lock without contention.
const WAITERS: [usize; 5] = [1, 16, 64, 100, 1000];
const QUICK_WAITERS: [usize; 4] = [1, 16, 64, 1000];
/// Workers on our own line: as many as the capacity table asks for, and so many that the others are not asked any more.
const WAITERS_OF_OURS: [usize; 2] = [CAPACITY_WAITERS as usize, 10_000];
/// Workers that hand one lock on in etcd's and ZooKeeper's ways.
const WAITERS_IN_THEIR_WAYS: [usize; 3] = [16, 64, 1000];
/// Workers with a lock each.
const LOCK_EACH: [usize; 5] = [1, 16, 64, 256, 1000];
const QUICK_LOCK_EACH: [usize; 2] = [64, 1000];
/// What the capacity table looks for.
pub(super) const CAPACITY_WAITERS: u64 = 500;
pub(super) const EACH: &str = "a lock each, each in its own way";
pub(super) const ONE: &str = "one lock, each in its own way";
pub(super) const ONE_OF_OURS: &str = "one lock, native";
const REDIS_NOTE: &str =
    "Redis is one node without replication; who waits for its lock is not told, but asks again after 50 to 100 ms";
/// Connections that many workers share.
const CONNECTIONS_MAX: usize = 16;
/// Sessions of the recipe: ZooKeeper takes 60 from one address by default, and ours does.
const SESSIONS_MAX: usize = 50;

/// How a lock is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Native,
    EtcdService,
    ZookeeperRecipe,
    RedisSet,
}

impl Way {
    fn own_of(kind: Kind) -> Way {
        match kind {
            Kind::Tidelock => Way::Native,
            Kind::Etcd => Way::EtcdService,
            Kind::Zookeeper => Way::ZookeeperRecipe,
            Kind::Redis => Way::RedisSet,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Way::Native => "native",
            Way::EtcdService => "etcd's service",
            Way::ZookeeperRecipe => "ZooKeeper's recipe",
            Way::RedisSet => "SET NX PX and a script",
        }
    }
}

/// What a Java machine does before the first case, twice: it is slow until its hot code is compiled.
const WARM_UP: Case = Case { workers: 64, contended: false, time: Duration::from_secs(8), leader_only: false };

/// What is measured.
#[derive(Clone, Copy)]
struct Case {
    workers: usize,
    contended: bool,
    time: Duration,
    /// Whether all workers ask the leader; otherwise they are spread over the members.
    leader_only: bool,
}

/// Workers with a lock each, and with one for all, where each system has its own way.
fn own_ways(quick: bool) -> (&'static [usize], &'static [usize]) {
    if quick { (&QUICK_LOCK_EACH, &QUICK_WAITERS) } else { (&LOCK_EACH, &WAITERS) }
}

/// Rounds of the whole suite, all systems together, that one round of each case takes.
pub(super) fn round_count(quick: bool, takes_part: impl Fn(Kind) -> bool) -> u64 {
    let (each, one) = own_ways(quick);
    let part = |kind| u64::from(takes_part(kind));
    let all = [Kind::Tidelock, Kind::Etcd, Kind::Zookeeper, Kind::Redis].map(part).iter().sum::<u64>();
    let theirs = 2 * part(Kind::Tidelock) + part(Kind::Etcd) + part(Kind::Zookeeper);
    (each.len() + one.len()) as u64 * all
        + WAITERS_OF_OURS.len() as u64 * part(Kind::Tidelock)
        + WAITERS_IN_THEIR_WAYS.len() as u64 * theirs
}

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let suite = Suite::Locks;
    let nodes = bench.options.largest();
    let time = Duration::from_secs(bench.options.seconds());
    let leader_only = bench.options.leader_only();
    let (each, one) = own_ways(bench.options.quick);
    let cases = (each.len() + one.len() + WAITERS_OF_OURS.len() + 2 * WAITERS_IN_THEIR_WAYS.len()) as u64;
    bench.begin(suite, cases * bench.options.rounds());
    let mut all = bench.start(suite, nodes).await?;
    if all.iter().any(|cluster| cluster.system.kind == Kind::Redis) {
        bench.report.note(suite.name(), REDIS_NOTE);
    }
    warm_up(bench, &all).await?;
    let in_flight = bench.options.in_flight.clone();
    let wanted = |workers: &&usize| in_flight.as_ref().is_none_or(|chosen| chosen.contains(workers));
    let each = each.iter().filter(wanted).map(|&workers| Case { workers, contended: false, time, leader_only });
    let one = one.iter().filter(wanted).map(|&workers| Case { workers, contended: true, time, leader_only });
    for case in each.chain(one) {
        let name = if case.contended { ONE } else { EACH };
        let amount = Amount { count: case.workers as u64, of: "workers" };
        let measure = async |cluster: &mut Cluster| lock(cluster, Way::own_of(cluster.system.kind), case).await;
        bench.rounds(suite, &mut all, name, amount, measure).await?;
    }
    drop(all);
    for way in [Way::Native, Way::EtcdService, Way::ZookeeperRecipe] {
        let speaks = |kind: Kind| kind == Kind::Tidelock || Way::own_of(kind) == way;
        let mut clusters = bench.start_those(suite, nodes, speaks).await?;
        warm_up(bench, &clusters).await?;
        let waiters: &[usize] = if way == Way::Native { &WAITERS_OF_OURS } else { &WAITERS_IN_THEIR_WAYS };
        for &workers in waiters.iter().filter(wanted) {
            let case = Case { workers, contended: true, time, leader_only };
            let amount = Amount { count: workers as u64, of: "workers" };
            let measure = async |cluster: &mut Cluster| lock(cluster, way, case).await;
            bench.rounds(suite, &mut clusters, &format!("one lock, {}", way.words()), amount, measure).await?;
        }
    }
    Ok(())
}

async fn warm_up(bench: &Bench, clusters: &[Cluster]) -> Result<()> {
    for cluster in clusters.iter().filter(|cluster| cluster.system.is_java()) {
        bench.say(&format!("{}: warm up", cluster.system.name));
        for contended in [false, true] {
            lock(cluster, Way::own_of(cluster.system.kind), Case { contended, ..WARM_UP }).await?;
        }
    }
    Ok(())
}

async fn lock(cluster: &Cluster, way: Way, case: Case) -> Result<Figures> {
    let Case { workers, contended, time, leader_only } = case;
    let pids = cluster.pids();
    let leader = if leader_only { Some(cluster.leader_at().await?) } else { None };
    // A new name each time: what an ended round leaves behind must not stand in line.
    let name = format!("bench-lock-{}", UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos()));
    tokio::task::block_in_place(|| {
        let (endpoints, connections, lock): (_, _, fn(&LockLoad<'_>) -> Result<Locked>) = match way {
            Way::Native => (cluster.native_endpoints(), CONNECTIONS_MAX, lock_natively),
            Way::RedisSet => (cluster.redis_endpoints(), CONNECTIONS_MAX, lock_by_set),
            Way::EtcdService => (cluster.endpoints(Protocol::Etcd), CONNECTIONS_MAX, lock_by_rpc),
            Way::ZookeeperRecipe => (cluster.endpoints(Protocol::Zookeeper), SESSIONS_MAX, lock_by_recipe),
        };
        let name = if way == Way::ZookeeperRecipe { format!("/{name}") } else { name };
        let endpoints = leader.map_or(&endpoints[..], |at| &endpoints[at..=at]);
        let addresses = spread(endpoints, workers.min(connections));
        let (locked, used) =
            using(&pids, || lock(&LockLoad { addresses: &addresses, name: &name, workers, contended, time }))?;
        if let Some(why) = locked.first_failure {
            return Err(why);
        }
        let cycles = locked.cycles.max(1) as f64;
        let mut figures = Figures::default();
        figures.add("locks/s", Unit::PerSecond, locked.cycles as f64 / locked.elapsed.as_secs_f64().max(1e-9));
        figures.add_time("acquire p50", locked.acquires.quantile(500));
        figures.add_time("acquire p99", locked.acquires.quantile(990));
        figures.add_time("acquire p99.9", locked.acquires.quantile(999));
        figures.add_time("cycle p50", locked.latencies.quantile(500));
        figures.add_time("cycle p99", locked.latencies.quantile(990));
        figures.add("CPU us/lock", Unit::CpuMicroseconds, used.servers.as_secs_f64() * 1e6 / cycles);
        figures.add("client us/lock", Unit::CpuMicroseconds, used.client.as_secs_f64() * 1e6 / cycles);
        figures.add("received B/lock", Unit::Bytes, locked.bytes_per_cycle as f64);
        figures.add("RSS", Unit::Bytes, used.resident as f64);
        Ok(figures)
    })
}
