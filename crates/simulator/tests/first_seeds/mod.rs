//! Runs of the first seeds that have certain clients, under chosen faults: they must be clean, and reach what they are
//! for.

use std::collections::BTreeMap;

use tidelock_simulator::arguments;
use tidelock_simulator::campaign::{replay_command, run_seed};
use tidelock_simulator::plan::Plan;

/// Seeds that each test runs.
const SEEDS: usize = 6;

/// Runs the first few seeds in which the clients of a workload take part, with these options; gives what they reached.
pub(crate) fn runs(workload: &str, options: &str) -> BTreeMap<String, u64> {
    let overrides = arguments::parse(options).expect("options as the simulator prints them");
    let takes_part = |seed: &u64| Plan::draw(*seed).workloads.iter().any(|(name, _)| *name == workload);
    let mut reached = BTreeMap::new();
    for seed in (1..).filter(takes_part).take(SEEDS) {
        let result = run_seed(seed, &overrides, false).expect("names that exist");
        assert_eq!(result.violations, [], "replay it: {}", replay_command(seed, &overrides, None));
        result.coverage.into_iter().for_each(|(name, times)| *reached.entry(name).or_default() += times);
    }
    reached
}

/// A run that did not come to what it is for says nothing.
pub(crate) fn assert_reached(reached: &BTreeMap<String, u64>, names: &[&str]) {
    for name in names {
        assert!(reached.get(*name).is_some_and(|times| *times > 0), "{name} was not reached: {reached:#?}");
    }
}
