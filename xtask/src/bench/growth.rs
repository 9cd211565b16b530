//! The suite `growth`: how costs grow with keys, watchers, leases and members. What to look for is the shape of the
//! curve: flat, or no steeper than a logarithm.
//!
//! etcd takes part as far as it gets there within minutes; the largest amounts are ours alone.

use std::time::Duration;

use tidelock_load::{FanOut, Kind as Work, Protocol, Values};

use super::options::Part;
use super::points::{Point, fill_with};
use super::report::Amount;
use super::{Bench, Suite, leases, watch};
use crate::Result;
use crate::servers::{Cluster, Kind};

/// Keys in the store; the last only without `--quick`, and so with each of these.
pub(super) const KEYS: [u64; 4] = [10_000, 100_000, 1_000_000, 10_000_000];
pub(super) const WATCHERS: [usize; 5] = [10, 100, 1_000, 10_000, 100_000];
pub(super) const LEASES: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];
pub(super) const MEMBERS: [usize; 4] = [1, 3, 5, 7];
/// The largest amounts that peers are asked for.
pub(super) const PEER_KEYS_MAX: u64 = 1_000_000;
pub(super) const PEER_WATCHERS_MAX: usize = 10_000;
pub(super) const PEER_LEASES_MAX: u64 = 100_000;
/// More keys than this have small values: with 256 bytes each, ten million are 4 GB of memory and as much of a journal.
const LARGE_VALUES_KEYS_MAX: u64 = 1_000_000;
const SMALL_VALUE_BYTES: usize = 16;
const LARGE_NOTE: &str = "more than 1,000,000 keys have values of 16 bytes, and are ours alone";
const IN_FLIGHT: usize = 256;
const WRITES_PER_S: f64 = 500.0;
const CONNECTIONS: usize = 16;

pub(super) fn shortened<T>(all: &[T], quick: bool) -> &[T] {
    if quick { &all[..all.len() - 1] } else { all }
}

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let of = |part, steps| if bench.options.wants(part) { steps } else { 0 };
    let steps = of(Part::Keys, KEYS.len() * 2)
        + of(Part::Watchers, WATCHERS.len())
        + of(Part::Leases, LEASES.len())
        + of(Part::Members, MEMBERS.len());
    bench.begin(Suite::Growth, steps as u64);
    if bench.options.wants(Part::Keys) {
        keys(bench).await?;
    }
    if bench.options.wants(Part::Watchers) {
        watchers(bench).await?;
    }
    if bench.options.wants(Part::Leases) {
        many_leases(bench).await?;
    }
    if bench.options.wants(Part::Members) {
        members(bench).await?;
    }
    Ok(())
}

/// A single node of each system, of ours alone if that is too much for the others.
async fn start(bench: &Bench, with_peers: bool) -> Result<Vec<Cluster>> {
    bench.start_those(Suite::Growth, 1, |kind| with_peers || kind == Kind::Tidelock).await
}

async fn keys(bench: &mut Bench) -> Result<()> {
    for &keys in shortened(&KEYS, bench.options.quick) {
        let small = keys > LARGE_VALUES_KEYS_MAX;
        let value_bytes = if small { SMALL_VALUE_BYTES } else { bench.options.value_bytes };
        if small {
            bench.report.note(Suite::Growth.name(), LARGE_NOTE);
        }
        let values = Values::new(value_bytes);
        let mut clusters = start(bench, keys <= PEER_KEYS_MAX).await?;
        for cluster in &clusters {
            bench.say(&format!("{}: {keys} keys", cluster.system.name));
            let endpoints = cluster.endpoints(Protocol::Etcd);
            tokio::task::block_in_place(|| fill_with(&endpoints, Protocol::Etcd, keys, &values))?;
        }
        for kind in [Work::Get, Work::Put] {
            let point = Point::of(bench, kind, keys, value_bytes, IN_FLIGHT);
            let amount = Amount { count: keys, of: "keys" };
            let measure = async |cluster: &mut Cluster| point.measure(cluster).await;
            bench.rounds_of(1, Suite::Growth, &mut clusters, kind.name().1, amount, measure).await?;
        }
    }
    Ok(())
}

async fn watchers(bench: &mut Bench) -> Result<()> {
    let mut clusters = start(bench, true).await?;
    for &watchers in shortened(&WATCHERS, bench.options.quick) {
        if watchers > PEER_WATCHERS_MAX {
            clusters.retain(|cluster| cluster.system.kind == Kind::Tidelock);
        }
        let time = Duration::from_secs(bench.options.seconds());
        let (connections, value_bytes) = (CONNECTIONS.min(watchers), bench.options.value_bytes);
        let plan = FanOut { watchers, connections, distinct: true, writes_per_s: WRITES_PER_S, value_bytes, time };
        let amount = Amount { count: watchers as u64, of: "watchers" };
        let measure = async |cluster: &mut Cluster| watch::fan_out(cluster, plan);
        bench.rounds_of(1, Suite::Growth, &mut clusters, "watch a key each", amount, measure).await?;
    }
    Ok(())
}

async fn many_leases(bench: &mut Bench) -> Result<()> {
    for &count in shortened(&LEASES, bench.options.quick) {
        let mut clusters = start(bench, count <= PEER_LEASES_MAX).await?;
        let time = Duration::from_secs(bench.options.seconds());
        let amount = Amount { count, of: "leases" };
        let measure = async |cluster: &mut Cluster| leases::grant_and_renew(cluster, count, time).await;
        bench.rounds_of(1, Suite::Growth, &mut clusters, "leases", amount, measure).await?;
    }
    Ok(())
}

async fn members(bench: &mut Bench) -> Result<()> {
    let values = Values::new(bench.options.value_bytes);
    for &nodes in shortened(&MEMBERS, bench.options.quick) {
        let mut clusters = bench.start(Suite::Growth, nodes).await?;
        let keys = bench.options.keys;
        for cluster in &clusters {
            let endpoints = cluster.endpoints(Protocol::Etcd);
            tokio::task::block_in_place(|| fill_with(&endpoints, Protocol::Etcd, keys, &values))?;
        }
        let point = Point::of(bench, Work::Put, keys, bench.options.value_bytes, IN_FLIGHT);
        let amount = Amount { count: nodes as u64, of: "members" };
        let measure = async |cluster: &mut Cluster| point.measure(cluster).await;
        bench.rounds_of(1, Suite::Growth, &mut clusters, "put", amount, measure).await?;
    }
    Ok(())
}
