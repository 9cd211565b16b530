//! The suite `growth`: how costs grow with keys, watchers, leases and members. What to look for is the shape of the
//! curve: flat, or no steeper than a logarithm.

use std::time::Duration;

use tidelock_load::{FanOut, Kind as Work, Protocol, Values};

use super::points::{Point, fill_with};
use super::report::Amount;
use super::{Bench, Suite, leases, watch};
use crate::Result;
use crate::servers::Cluster;

/// Keys in the store; the last only without `--quick`, and so with each of these.
const KEYS: [u64; 4] = [10_000, 100_000, 1_000_000, 10_000_000];
const WATCHERS: [usize; 5] = [10, 100, 1_000, 10_000, 100_000];
const LEASES: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];
const MEMBERS: [usize; 4] = [1, 3, 5, 7];
const IN_FLIGHT: usize = 256;
const WRITES_PER_S: f64 = 500.0;
const CONNECTIONS: usize = 16;

fn shortened<T>(all: &[T], quick: bool) -> &[T] {
    if quick { &all[..all.len() - 1] } else { all }
}

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let steps = KEYS.len() * 2 + WATCHERS.len() + LEASES.len() + MEMBERS.len();
    bench.begin(Suite::Growth, steps as u64);
    keys(bench).await?;
    watchers(bench).await?;
    many_leases(bench).await?;
    members(bench).await
}

async fn keys(bench: &mut Bench) -> Result<()> {
    let values = Values::new(bench.options.value_bytes);
    for &keys in shortened(&KEYS, bench.options.quick) {
        let mut clusters = bench.start(Suite::Growth, 1).await?;
        for cluster in &clusters {
            bench.say(&format!("{}: {keys} keys", cluster.system.name));
            let endpoints = cluster.endpoints(Protocol::Etcd);
            tokio::task::block_in_place(|| fill_with(&endpoints, Protocol::Etcd, keys, &values))?;
        }
        for kind in [Work::Get, Work::Put] {
            let point = Point::of(bench, Protocol::Etcd, kind, keys, IN_FLIGHT);
            let amount = Amount { count: keys, of: "keys" };
            let measure = async |cluster: &mut Cluster| point.measure(cluster).await;
            bench.rounds_of(1, Suite::Growth, &mut clusters, kind.name().1, amount, measure).await?;
        }
    }
    Ok(())
}

async fn watchers(bench: &mut Bench) -> Result<()> {
    let mut clusters = bench.start(Suite::Growth, 1).await?;
    for &watchers in shortened(&WATCHERS, bench.options.quick) {
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
        let mut clusters = bench.start(Suite::Growth, 1).await?;
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
        let point = Point::of(bench, Protocol::Etcd, Work::Put, keys, IN_FLIGHT);
        let amount = Amount { count: nodes as u64, of: "members" };
        let measure = async |cluster: &mut Cluster| point.measure(cluster).await;
        bench.rounds_of(1, Suite::Growth, &mut clusters, "put", amount, measure).await?;
    }
    Ok(())
}
