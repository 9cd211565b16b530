//! The commands that talk to running nodes: data through the etcd API, the cluster through the admin
//! API. Each prints its answer and nothing else to standard output; failures go up as [`Failure`].

mod barrier;
mod bench;
mod certs;
mod connection;
mod dialing;
mod history;
mod kv;
mod lease;
mod lock;
mod locks;
mod manual;
mod member;
mod native;
mod program;
mod snapshot;
mod snapshot_auth;
mod snapshot_restore;
pub(crate) mod stand_in;
mod status;
mod supervise;
mod txn;
mod txn_syntax;
mod watch;

use crate::cli::Command;
use crate::failure::Failure;

pub(crate) use certs::{parse_host, parse_name};

/// Runs a client command to its end.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start: {error}")))?;
    runtime.block_on(async {
        match command {
            Command::Get(args) => Box::pin(kv::get(&args)).await,
            Command::Put(args) => Box::pin(kv::put(&args)).await,
            Command::Del(args) => Box::pin(kv::del(&args)).await,
            Command::Watch(args) => Box::pin(watch::watch(&args)).await,
            Command::Txn(args) => Box::pin(txn::txn(&args)).await,
            Command::Lease(args) => Box::pin(lease::lease(&args)).await,
            Command::Member(args) => Box::pin(member::member(&args)).await,
            Command::Snapshot(args) => Box::pin(snapshot::snapshot(&args)).await,
            Command::History(args) => Box::pin(history::history(&args)).await,
            Command::Status(args) => Box::pin(status::status(&args)).await,
            Command::Certs(args) => certs::certs(&args),
            Command::Bench(args) => Box::pin(bench::bench(&args)).await,
            Command::Lock(args) => Box::pin(lock::lock(&args)).await,
            Command::Elect(args) => Box::pin(lock::elect(&args)).await,
            Command::Barrier(args) => Box::pin(barrier::barrier(&args)).await,
            Command::Locks(args) => Box::pin(locks::locks(&args)).await,
            Command::Sessions(args) => Box::pin(locks::sessions(&args)).await,
            Command::Completions(args) => manual::completions(&args),
            Command::Man(args) => manual::man(&args),
            Command::Serve(_) | Command::Etcd { .. } | Command::Dev(_) => {
                unreachable!("servers are started by wiring and dev")
            }
        }
    })
}
