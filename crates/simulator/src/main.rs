//! The simulator's command line, reached as `cargo xtask sim` and `cargo xtask zoo`.
//!
//! Without `--seed` it runs a campaign; with `--seed` it replays one run with a trace to read, or makes it smaller. It
//! ends with a failure if anything was found. `zoo.rs` shows that planted bugs are found.

mod zoo;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use tidelock_model::zoo::Bug;
use tidelock_simulator::arguments::PlanArguments;
use tidelock_simulator::campaign::{self, Campaign, Progress, Report, replay_command};
use tidelock_simulator::check::Violation;
use tidelock_simulator::minimise::minimise;
use tidelock_simulator::plan::{Overrides, Plan};
use tidelock_simulator::trace::Lines;

/// What went wrong, as a sentence for the person at the terminal.
type Result<T> = std::result::Result<T, String>;

const EXAMPLES: &str = "\
Examples:
  cargo xtask sim --seeds 1000                      a thousand seeds, begun at a place the commit decides
  cargo xtask sim --seeds 1000 --from 1             seeds 1 to 1000
  cargo xtask sim --seed 17                         one seed, with everything that happens in it
  cargo xtask sim --seed 17 --trace seed-17.txt     the same, into a file
  cargo xtask sim --seed 17 --minimise              leaves out what its failure does not need
  cargo xtask sim --seeds 200 --only wipe,isolate   hunts with these faults alone
  cargo xtask sim --pinned                          compares this build's traces with the known ones
  cargo xtask zoo                                   shows that every planted bug is found

Names for --only and --without:
  ";

/// Runs whole clusters under faults, each from one seed, and judges what happened.
#[derive(Parser)]
#[command(name = "cargo xtask sim", bin_name = "cargo xtask sim", max_term_width = 110, after_help = after_help())]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    chore: Option<Chore>,
    #[command(flatten)]
    run: RunArguments,
}

#[derive(Subcommand)]
enum Chore {
    /// Plant each known bug and show how long the simulator takes to find it
    Zoo(zoo::Options),
}

#[derive(Args)]
struct RunArguments {
    /// How many seeds to run
    #[arg(long, value_name = "NUMBER", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    seeds: u64,
    /// The first of them [default: decided by the commit, and printed]
    #[arg(long, value_name = "SEED")]
    from: Option<u64>,
    /// How many at a time [default: one per core]
    #[arg(long, value_name = "NUMBER")]
    threads: Option<usize>,
    /// Replay this one and show what happens
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "from", "threads"])]
    seed: Option<u64>,
    /// Write what happens to a file
    #[arg(long, value_name = "FILE", requires = "seed")]
    trace: Option<PathBuf>,
    /// Leave out what the failure of the seed does not need
    #[arg(long, requires = "seed", conflicts_with = "trace")]
    minimise: bool,
    /// Run the seeds whose traces are known and compare
    #[arg(long, exclusive = true)]
    pinned: bool,
    /// Wake a planted bug and stop at the first seed that finds it
    #[arg(long, value_name = "NAME")]
    bug: Option<String>,
    /// Say on standard output which seed begins: how the zoo learns which one ended a process
    #[arg(long, hide = true)]
    tell: bool,
    #[command(flatten)]
    plan: PlanArguments,
}

fn after_help() -> String {
    format!("{EXAMPLES}{}", Overrides::names().join(", "))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.chore {
        Some(Chore::Zoo(options)) => zoo::run(&options),
        None => run(&arguments.run),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("simulator: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all is well.
fn run(arguments: &RunArguments) -> Result<bool> {
    if let Some(name) = &arguments.bug {
        wake(name)?;
    }
    let overrides = Overrides::from(arguments.plan.clone());
    match arguments.seed {
        _ if arguments.pinned => Ok(pinned()),
        Some(seed) if arguments.minimise => shrink(seed, &overrides, arguments.bug.as_deref()),
        Some(seed) => replay(seed, &overrides, arguments.trace.as_deref()),
        None => run_campaign(arguments, overrides),
    }
}

fn wake(name: &str) -> Result<()> {
    let known = || Bug::ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let bug = Bug::ALL.iter().find(|(known, _)| *known == name);
    let (_, bug) = bug.ok_or_else(|| format!("there is no bug {name:?}; there are: {}", known()))?;
    plant(*bug)
}

#[cfg(feature = "zoo")]
fn plant(bug: Bug) -> Result<()> {
    tidelock_model::zoo::plant(bug);
    Ok(())
}

#[cfg(not(feature = "zoo"))]
fn plant(_: Bug) -> Result<()> {
    Err("this build has no bugs in it; `cargo xtask sim --bug NAME` makes one that has".to_string())
}

fn run_campaign(arguments: &RunArguments, overrides: Overrides) -> Result<bool> {
    let from = arguments.from.unwrap_or_else(campaign::fresh_base);
    let seeds: Vec<u64> = (from..from.saturating_add(arguments.seeds)).collect();
    let threads = arguments.threads.unwrap_or_else(campaign::all_cores);
    let changes = overrides.arguments();
    println!("seeds {from} to {}, {threads} at a time {changes}", from + arguments.seeds - 1);
    let bar = bar(arguments.seeds);
    let stop_at_first = arguments.bug.is_some();
    let mut failed_before = 0;
    let told = |progress| match progress {
        Progress::Begins(seed) if arguments.tell => {
            println!("{}{seed}", zoo::BEGINS);
            // If the process dies of this seed, this must have been said.
            let _ = io::stdout().flush();
        }
        Progress::Begins(_) => {}
        Progress::Ended { seed, failed } => {
            failed_before += u64::from(failed);
            if failed {
                bar.println(format!("seed {seed} failed"));
                bar.set_message(format!("{failed_before} failed"));
            }
            bar.inc(1);
        }
    };
    let campaign = Campaign { seeds, threads, overrides, stop_at_first };
    let report = campaign.run(told).map_err(|error| error.to_string())?.with_bug(arguments.bug.clone());
    bar.finish_and_clear();
    println!("{report}");
    if let (true, Some(failure)) = (arguments.tell, report.failures.first()) {
        println!("{}", zoo::found(failure));
    }
    Ok(told_green(&report, arguments))
}

/// With a bug awake, paths may well be missed; only what was found counts.
fn told_green(report: &Report, arguments: &RunArguments) -> bool {
    if arguments.bug.is_some() { report.failures.is_empty() } else { report.is_green() }
}

fn bar(length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} {elapsed} (eta {eta}) {msg}");
    let bar = ProgressBar::new(length).with_style(style.expect("the template is well-formed"));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

fn replay(seed: u64, overrides: &Overrides, file: Option<&std::path::Path>) -> Result<bool> {
    let plan = Plan::draw_with(seed, overrides).map_err(|error| error.to_string())?;
    println!("{}", plan.describe());
    let lines = if file.is_some() { Lines::All } else { Lines::Printed };
    let outcome = match campaign::run_plan(plan, lines) {
        Ok(outcome) => outcome,
        Err(panicked) => return Ok(say_violations(&[panicked])),
    };
    if let Some(file) = file {
        let text = outcome.lines.join("\n") + "\n";
        std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        println!("{} lines written to {}", outcome.lines.len(), file.display());
    }
    let (asked, answered) = outcome.operations;
    println!();
    for (name, times) in &outcome.coverage {
        println!("{name:<40} {times:>12}");
    }
    let seconds = outcome.simulated / 1_000_000;
    println!("\n{} events in {seconds} virtual seconds; {asked} asked, {answered} answered", outcome.events);
    println!("trace hash {:032x}", outcome.trace_hash);
    Ok(say_violations(&outcome.violations))
}

fn say_violations(violations: &[Violation]) -> bool {
    for violation in violations {
        println!("VIOLATION {violation}");
    }
    if violations.is_empty() {
        println!("nothing found");
    }
    violations.is_empty()
}

fn shrink(seed: u64, overrides: &Overrides, bug: Option<&str>) -> Result<bool> {
    let found = minimise(seed, overrides, &mut |line| eprintln!("{line}")).map_err(|error| error.to_string())?;
    let Some(small) = found else {
        println!("seed {seed} does not fail: there is nothing to make smaller");
        return Ok(true);
    };
    let plan = Plan::draw_with(seed, &small.overrides).map_err(|error| error.to_string())?;
    println!("\nleft after {} runs:\n{}", small.runs, plan.describe());
    println!("VIOLATION {}", small.violation);
    println!("replay it: {}", replay_command(seed, &small.overrides, bug));
    Ok(false)
}

fn pinned() -> bool {
    let checked = campaign::check_pinned();
    for (line, as_pinned) in &checked {
        println!("{} {line}", if *as_pinned { "same:" } else { "DIFFERS:" });
    }
    checked.iter().all(|(_, as_pinned)| *as_pinned)
}
