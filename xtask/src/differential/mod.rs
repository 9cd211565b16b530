//! `cargo xtask differential`: one random stream of requests to Tidelock and to a real etcd, all answers compared.
//!
//! Requests go to both servers at once and one after the other, so that each has one right answer; reads that follow
//! each other are under way together. Everything that is answered is compared: codes and words of errors, revisions,
//! items, events of watchers in their order. What is masked is in `call.rs`; what may differ, and why, in
//! `explained.rs`, and nowhere else. How to read a difference is in docs/internals/differential.md.

mod auth_requests;
mod call;
mod explained;
mod generator;
mod keys;
mod kv_requests;
mod other_requests;
mod peer;
mod run;
mod side;
mod txn_requests;
mod watch_pair;
mod watch_stream;
mod world;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;

use crate::servers::System;
use crate::{Result, differences, progress, workspace};
use generator::Phase;
use run::Run;
use side::Side;

/// Memory as a disk, where there is one: a differential run waits for answers, not for a disk.
const MEMORY_DISK: &str = "/dev/shm";

/// What to compare.
#[derive(Args, Clone)]
pub(crate) struct Options {
    /// Operations to send to each server
    #[arg(long, default_value_t = 100_000)]
    ops: u64,
    /// Decides every request
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The etcd to compare with [default: the installed one, else etcd on PATH]
    #[arg(long, value_name = "FILE")]
    peer: Option<PathBuf>,
    /// Build an etcd 3.7 into target/peers if there is none (needs go), or fetch one
    #[arg(long)]
    install_peer: bool,
    /// Members of each cluster
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    nodes: u8,
    /// Our binary [default: a fresh release build]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// What requests are about, comma separated
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "kv,txn,lease,watch,compact,maintenance,recipes,auth"
    )]
    phases: Vec<Phase>,
}

/// Runs the comparison; an error if there was a difference that nothing explains.
pub(crate) async fn run(options: Options) -> Result<()> {
    let peer = peer::find(options.peer.as_deref(), options.install_peer)?;
    let tidelock = System::tidelock(options.binary.as_deref())?;
    let data = data_directory();
    let nodes = usize::from(options.nodes);
    println!("{} and {}, {nodes} node(s) each, seed {}", tidelock.name, peer.name, options.seed);
    let theirs = Side::start(&peer, nodes, &data).await?;
    let ours = Side::start(&tidelock, nodes, &data).await?;
    let bar = progress::bar(options.ops, "differential");
    let started = Instant::now();
    let mut run = Run::new(ours, theirs, options.seed, &options.phases, nodes, bar.clone());
    // Boxed: everything that can be asked is in it.
    Box::pin(run.go(options.ops)).await?;
    bar.finish_and_clear();
    let rules = explained::RULES.iter().map(|rule| (rule.name, rule.reason));
    differences::conclude(run.result(), started, rules)
}

fn data_directory() -> PathBuf {
    let memory = Path::new(MEMORY_DISK);
    if memory.is_dir() { memory.to_path_buf() } else { workspace::target() }
}
