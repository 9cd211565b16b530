//! `cargo xtask differential-zookeeper`: random programs sent to Tidelock and to a real ZooKeeper, all that comes back
//! compared.
//!
//! Several sessions work on one small tree. One request after the other goes to both servers, and after each both come
//! to rest (a ping is answered behind everything that is on its way), so that each has one right answer. Compared are
//! replies with their whole body, events with their place between replies, ends of connections. What is masked is in
//! `masking.rs`; what may differ, and why, in `explained.rs`, and nowhere else.

mod answer;
mod call;
mod connection;
mod explained;
mod generator;
mod masking;
mod observed;
mod packets;
mod quotas;
mod run;
mod server;
mod side;
mod tree;

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;

use crate::{Result, differences, progress, workspace};
use run::Run;
use side::Side;

/// What to compare.
#[derive(Args, Clone)]
pub(crate) struct Options {
    /// Operations to send to each server
    #[arg(long, default_value_t = 50_000)]
    ops: u64,
    /// Decides every request
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Do this round of the seed alone
    #[arg(long)]
    round: Option<u64>,
    /// Print every operation and what ZooKeeper answered
    #[arg(long)]
    trace: bool,
    /// The jars of the ZooKeeper to compare with [default: those of conformance/zookeeper/install]
    #[arg(long, value_name = "DIR")]
    peer: Option<PathBuf>,
    /// Our binary [default: a fresh release build]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Nodes of ours; sessions go from one to the other
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    /// Compare ZooKeeper with itself: shows that nothing is compared that chance decides
    #[arg(long, conflicts_with = "binary")]
    peer_twice: bool,
}

/// Runs the comparison; an error if there was a difference that nothing explains.
pub(crate) async fn run(options: Options) -> Result<()> {
    let jars = server::peer(options.peer.as_deref())?;
    let theirs = server::start_zookeeper(&jars).await?;
    let (ours, reaps_since) = if options.peer_twice {
        (server::start_zookeeper(&jars).await?, None)
    } else {
        let server =
            server::start_tidelock(&workspace::server_binary(options.binary.as_deref())?, options.nodes).await?;
        let started = server.started;
        (server, Some(started))
    };
    println!("seed {}, ours at {:?}, ZooKeeper at {:?}", options.seed, ours.addresses, theirs.addresses);
    let bar = progress::bar(options.ops, "differential");
    let started = Instant::now();
    let mut run = Run::new(Side::new(ours), Side::new(theirs), reaps_since, options.seed, bar.clone());
    run.trace = options.trace;
    // Boxed: everything that can be asked is in it.
    Box::pin(run.go(options.ops, options.round)).await?;
    bar.finish_and_clear();
    let rules = explained::RULES.iter().map(|rule| (rule.name, rule.reason));
    differences::conclude(run.result(), started, rules)
}
