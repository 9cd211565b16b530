//! `cargo xtask bench`: the server under load, beside the real etcd, the real ZooKeeper and, for locks, the real Redis.
//!
//! All systems of a comparison run at the same time on the same machine and disk, and their rounds take turns
//! (A, B, A, B), so that a slow minute of the machine hits all of them; what is reported is the median of the rounds.
//! Each suite is a file. They share the load generator (`crates/load`), which costs a few microseconds for each operation,
//! and [`Bench`], which starts servers, does rounds and collects figures.
//!
//! Operations per second on a shared machine measure the client too. Processor time per operation, over
//! all server processes, is the figure that carries over to another machine. How to read the rest is in
//! docs/internals/benchmarks.md.

mod background;
mod capacity;
mod chart;
mod estimate;
mod failover;
mod figures;
mod growth;
mod leases;
mod locks;
mod memory;
mod native;
mod options;
mod overload;
mod points;
mod publication;
mod report;
mod watch;

use indicatif::ProgressBar;
use tidelock_load::Protocol;

use crate::environment::Environment;
use crate::servers::{Cluster, Kind, System, peer};
use crate::{Result, progress};
use figures::Figures;
pub(crate) use options::Options;
use options::{Peer, Suite};
use report::{Amount, Report, Row};

/// More failed operations than this share mean that something else is measured than was meant.
const FAILED_PER_MILLE_MAX: u64 = 10;

/// Runs everything and prints the tables.
pub(crate) async fn run(options: Options) -> Result<()> {
    let mut environment = Environment::look(&options.data())?;
    environment.command = publication::without_files(&environment.command);
    println!("{}\n", environment.text());
    let bar = progress::bar(1, "bench");
    let mut bench = Bench { systems: systems(&options)?, report: Report::new(environment), options, bar };
    println!("{}\n", estimate::text(&bench)?);
    for suite in bench.options.suites() {
        match suite {
            Suite::Etcd => points::run(&mut bench, Protocol::Etcd).await?,
            Suite::Zookeeper => points::run(&mut bench, Protocol::Zookeeper).await?,
            Suite::Watch => watch::run(&mut bench).await?,
            Suite::Leases => leases::run(&mut bench).await?,
            Suite::Memory => memory::run(&mut bench).await?,
            Suite::Failover => failover::run(&mut bench).await?,
            Suite::Locks => locks::run(&mut bench).await?,
            Suite::Native => native::run(&mut bench).await?,
            Suite::Background => background::run(&mut bench).await?,
            Suite::Overload => overload::run(&mut bench).await?,
            Suite::Growth => growth::run(&mut bench).await?,
            Suite::All => {}
        }
    }
    bench.bar.finish_and_clear();
    println!("\n{}", bench.report.text());
    if let Some(table) = capacity::text(&bench.report) {
        println!("{table}");
    }
    for path in bench.report.save(bench.options.json.as_deref(), bench.options.publish.as_deref())? {
        println!("written: {}", path.display());
    }
    Ok(())
}

/// Ours, and the peers that there are.
fn systems(options: &Options) -> Result<Vec<System>> {
    let mut systems = Vec::new();
    if !options.peer_only {
        systems.push(System::tidelock(options.tidelock_bin.as_deref())?);
    }
    for (wanted, found) in [
        (Peer::Etcd, peer::etcd(options.etcd_bin.as_deref(), options.install_peers)),
        (Peer::Zookeeper, peer::zookeeper(options.zookeeper_jars.as_deref(), options.install_peers)),
        (Peer::Redis, System::redis(options.redis_bin.as_deref())),
    ] {
        match (options.peer, found) {
            (None, Ok(system)) => systems.push(system),
            (Some(peer), Ok(system)) if peer == wanted => systems.push(system),
            (Some(peer), Err(why)) if peer == wanted => return Err(why),
            (None, Err(why)) if wanted == Peer::Redis => eprintln!("left out of the suite locks: {why}"),
            (None, Err(why)) => eprintln!("left out: {why} (--install-peers gets it)"),
            _ => {}
        }
    }
    Ok(systems)
}

/// What all suites share.
struct Bench {
    options: Options,
    systems: Vec<System>,
    report: Report,
    bar: ProgressBar,
}

impl Bench {
    /// A suite of `rounds` rounds for each system begins.
    fn begin(&self, suite: Suite, rounds: u64) {
        let systems = self.systems_of(suite).count() as u64;
        self.bar.reset();
        self.bar.set_length(rounds * systems);
    }

    fn say(&self, what: &str) {
        self.bar.set_message(what.to_string());
    }

    fn systems_of(&self, suite: Suite) -> impl Iterator<Item = &System> {
        self.systems.iter().filter(move |system| match system.kind {
            Kind::Tidelock => true,
            Kind::Etcd => suite.speaks(Protocol::Etcd),
            Kind::Zookeeper => suite.speaks(Protocol::Zookeeper),
            Kind::Redis => suite == Suite::Locks,
        })
    }

    /// A cluster of each system that can do the suite.
    async fn start(&self, suite: Suite, nodes: usize) -> Result<Vec<Cluster>> {
        self.start_those(suite, nodes, |_| true).await
    }

    /// The same, of those that are `wanted`.
    async fn start_those(&self, suite: Suite, nodes: usize, wanted: impl Fn(Kind) -> bool) -> Result<Vec<Cluster>> {
        let mut clusters = Vec::new();
        for system in self.systems_of(suite).filter(|system| wanted(system.kind)) {
            let nodes = system.members(nodes);
            self.say(&format!("{nodes} x {}: start", system.name));
            clusters.push(Cluster::start_under(system, nodes, &self.options.data()).await?);
        }
        Ok(clusters)
    }

    /// All rounds of one case, the systems taking turns, into the report.
    async fn rounds(
        &mut self,
        suite: Suite,
        clusters: &mut [Cluster],
        case: &str,
        amount: Amount,
        measure: impl AsyncFn(&mut Cluster) -> Result<Figures>,
    ) -> Result<()> {
        self.rounds_of(self.options.rounds(), suite, clusters, case, amount, measure).await
    }

    /// The same with a number of rounds that the case decides.
    async fn rounds_of(
        &mut self,
        count: u64,
        suite: Suite,
        clusters: &mut [Cluster],
        case: &str,
        amount: Amount,
        measure: impl AsyncFn(&mut Cluster) -> Result<Figures>,
    ) -> Result<()> {
        let mut samples = vec![Vec::new(); clusters.len()];
        for round in 1..=count {
            let doing = format!("{case}, {} {}, {round}/{count}", amount.count, amount.of);
            self.round(suite, clusters, &doing, &measure, &mut samples).await?;
        }
        self.record(suite, clusters, case, amount, samples);
        Ok(())
    }

    /// All rounds of what can be done once to a server: each on new ones.
    async fn rounds_on_new(
        &mut self,
        suite: Suite,
        nodes: usize,
        case: &str,
        amount: Amount,
        measure: impl AsyncFn(&mut Cluster) -> Result<Figures>,
    ) -> Result<()> {
        let count = self.options.rounds();
        let (mut clusters, mut samples) = (Vec::new(), vec![Vec::new(); self.systems_of(suite).count()]);
        for round in 1..=count {
            // Those of the round before end first, or they would share the machine.
            clusters.clear();
            clusters = self.start(suite, nodes).await?;
            let doing = format!("{case}, {} {}, {round}/{count}", amount.count, amount.of);
            self.round(suite, &mut clusters, &doing, &measure, &mut samples).await?;
        }
        self.record(suite, &clusters, case, amount, samples);
        Ok(())
    }

    /// Each system once.
    async fn round(
        &self,
        suite: Suite,
        clusters: &mut [Cluster],
        doing: &str,
        measure: &impl AsyncFn(&mut Cluster) -> Result<Figures>,
        samples: &mut [Vec<Figures>],
    ) -> Result<()> {
        for (at, samples) in samples.iter_mut().enumerate() {
            if suite == Suite::Locks {
                // Those who stood in line when a round ended leave it, of whichever system: a thousand at once take etcd
                // seconds, which are not the next one's.
                futures_util::future::try_join_all(clusters.iter().map(Cluster::quiet)).await?;
            }
            let cluster = &mut clusters[at];
            let doing = format!("{} x {}, {doing}", cluster.nodes(), cluster.system.name);
            self.say(&doing);
            samples.push(measure(cluster).await.map_err(|error| format!("{doing}: {error}"))?);
            self.bar.inc(1);
        }
        Ok(())
    }

    fn record(&mut self, suite: Suite, clusters: &[Cluster], case: &str, amount: Amount, rounds: Vec<Vec<Figures>>) {
        let systems = clusters.iter().map(|cluster| cluster.system.name.clone()).collect();
        let members = clusters.iter().map(Cluster::nodes).collect();
        let nodes = clusters.first().map_or(0, Cluster::nodes);
        let case = case.to_string();
        let text = self.report.add(Row { suite: suite.name(), nodes, case, amount, systems, members, rounds });
        self.bar.suspend(|| print!("{text}"));
    }
}
