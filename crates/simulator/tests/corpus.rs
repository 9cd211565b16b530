//! The simulator on every test run: seeds that are always the same, and seeds nobody has run before.
//!
//! `TIDELOCK_SIM_BASE=N` chooses where the fresh seeds begin; otherwise the commit does. A failure prints the
//! command that replays each failing seed.

use tidelock_simulator::campaign::{self, Campaign, PINNED_TRACES, run_plan, run_seed};
use tidelock_simulator::plan::{Mood, Overrides, Plan};
use tidelock_simulator::trace::Lines;

/// Seeds that run on every commit.
const FIXED: std::ops::RangeInclusive<u64> = 1..=40;
/// Seeds that are others on every commit.
const FRESH: u64 = 200;

fn fresh_base() -> u64 {
    match std::env::var("TIDELOCK_SIM_BASE") {
        Ok(base) => base.parse().expect("TIDELOCK_SIM_BASE is a number"),
        Err(_) => campaign::fresh_base(),
    }
}

/// Whatever a user was promised holds in every one of these runs: nothing acknowledged is lost, nothing stale is
/// read, no watcher misses anything, no lease ends early, and the cluster comes to itself. And the runs had the
/// faults and took the rare paths that make this worth saying.
#[test]
fn a_fixed_corpus_and_fresh_seeds_find_nothing() {
    let base = fresh_base();
    println!("fresh seeds begin at {base}; the same again: TIDELOCK_SIM_BASE={base}");
    let seeds = FIXED.chain(base..base + FRESH).collect();
    let overrides = Overrides::default();
    let campaign = Campaign { seeds, threads: campaign::all_cores(), overrides, stop_at_first: false };
    let report = campaign.run(|_| {}).expect("nothing is named");
    println!("{report}");
    let missed = report.shortfalls.join("\n");
    assert!(report.is_green(), "TIDELOCK_SIM_BASE={base}\n{}{missed}", report.describe_failures());
}

/// A failure that does not come again cannot be understood. Clocks, addresses, threads or the order of a hash
/// map that reach a node show here.
#[test]
fn one_seed_gives_the_same_trace_twice() {
    let brutal = (1..).find(|seed| Plan::draw(*seed).mood == Mood::Brutal).expect("some are");
    let result = run_seed(brutal, &Overrides::default(), true).expect("nothing is named");
    assert!(result.twice);
    assert_eq!(result.violations, [], "seed {brutal}");
    let hash = |lines| run_plan(Plan::draw(brutal), lines).map(|outcome| outcome.trace_hash);
    assert_eq!(hash(Lines::Dropped), hash(Lines::All), "reading along changes the run");
}

/// A seed must mean the same run for whoever gets it, in whatever build: a colleague, the next machine.
#[test]
fn the_pinned_seeds_do_what_they_always_did() {
    let checked = campaign::check_pinned();
    checked.iter().for_each(|(line, _)| println!("{line}"));
    assert!(!PINNED_TRACES.is_empty() && checked.iter().all(|(_, as_pinned)| *as_pinned), "{checked:#?}");
}
