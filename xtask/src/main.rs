//! Chores of this repository: `cargo xtask --help`.
//!
//! `tidy` enforces our style, `measure` weighs the store and the server, `bench` compares the server with a peer,
//! `differential` compares its answers with etcd's, `differential-zookeeper` with ZooKeeper's, `sim` and `zoo` run the
//! simulator. The servers these start are real processes on loopback; they are ended, and their data removed, however
//! this process ends (see `servers::cleanup`).

mod bench;
mod client;
mod differences;
mod differential;
mod environment;
mod fill;
mod measure;
mod procfs;
mod progress;
mod random;
mod servers;
mod sim;
mod table;
mod tidy;
mod workspace;
mod zookeeper_differential;

use std::future::Future;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

/// What went wrong, as a sentence for the person at the terminal.
pub(crate) type Result<T> = std::result::Result<T, String>;

/// Exit code of a process that a signal ended, less the signal's number: what shells expect.
const ENDED_BY_SIGNAL: i32 = 128;

/// The server's allocator, with a count around it (`measure state` reads it).
#[global_allocator]
static ALLOCATOR: cap::Cap<mimalloc::MiMalloc> = cap::Cap::new(mimalloc::MiMalloc, usize::MAX);

/// Chores of the Tidelock repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check the style rules that neither the compiler nor clippy knows
    Tidy,
    /// Weigh the store and the server: bytes, restart, what a snapshot costs
    #[command(subcommand)]
    Measure(measure::Measure),
    /// Load Tidelock and the real peers in turns: operations, watches, leases, locks, failures, growth
    Bench(Box<bench::Options>),
    /// Send the same random requests to Tidelock and to a real etcd and compare all answers
    Differential(differential::Options),
    /// Send the same random requests to Tidelock and to a real ZooKeeper and compare all that comes back
    DifferentialZookeeper(zookeeper_differential::Options),
    /// Run whole simulated clusters under faults, each from one seed
    #[command(disable_help_flag = true)]
    Sim(sim::Passed),
    /// Show that the simulator finds every planted bug
    #[command(disable_help_flag = true)]
    Zoo(sim::Passed),
}

fn main() -> ExitCode {
    servers::cleanup::install();
    let done = match Arguments::parse().chore {
        Chore::Tidy => tidy(),
        Chore::Measure(measure::Measure::Chain(options)) => run(measure::chain::run(options)),
        Chore::Measure(measure::Measure::Limits(options)) => measure::limits::run(&options),
        Chore::Measure(measure::Measure::State(options)) => measure::state::run(&options),
        Chore::Measure(measure::Measure::Memory(options)) => run(measure::memory::run(options)),
        Chore::Measure(measure::Measure::Snapshot(options)) => run(measure::snapshot::run(options)),
        Chore::Bench(options) => run(bench::run(*options)),
        Chore::Differential(options) => run(differential::run(options)),
        Chore::DifferentialZookeeper(options) => run(zookeeper_differential::run(options)),
        Chore::Sim(passed) => sim::run(&passed),
        Chore::Zoo(passed) => sim::zoo(&passed),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn tidy() -> Result<()> {
    let findings = tidy::check(&workspace::root())?;
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        count => Err(format!("{count} finding(s); each line says where and what to do")),
    }
}

/// Runs `work` to its end, or until a signal: then the servers are ended and their data removed, whatever `work` is doing. A
/// load keeps its thread busy for minutes, so somebody else has to look.
fn run(work: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("starting the runtime: {error}"))?;
    runtime.block_on(async {
        // Watched from here on: a signal that comes before would end this process and leave the servers.
        let watch = |kind| signal(kind).map_err(|error| format!("watching signals: {error}"));
        let mut interrupt = watch(SignalKind::interrupt())?;
        let mut terminate = watch(SignalKind::terminate())?;
        let mut hang_up = watch(SignalKind::hangup())?;
        tokio::spawn(async move {
            let (kind, word) = tokio::select! {
                _ = interrupt.recv() => (SignalKind::interrupt(), "interrupted"),
                _ = terminate.recv() => (SignalKind::terminate(), "terminated"),
                _ = hang_up.recv() => (SignalKind::hangup(), "the terminal is gone"),
            };
            servers::cleanup::end_all(|| {
                eprintln!("xtask: {word}; servers ended, data removed");
                std::process::exit(ENDED_BY_SIGNAL + kind.as_raw_value())
            });
        });
        // Boxed: a whole benchmark is a large future.
        Box::pin(work).await
    })
}
