//! Native primitives under kill, pause and partition of servers and clients, as runs of the simulator that must be
//! clean. Clients die, sleep through the end of their sessions and ask again elsewhere in all of them.
//!
//! What is judged is in `check/native_*.rs`.

use std::collections::BTreeMap;

use tidelock_simulator::arguments;
use tidelock_simulator::campaign::{replay_command, run_seed};
use tidelock_simulator::coverage;
use tidelock_simulator::plan::Plan;

/// Seeds that each test runs.
const SEEDS: usize = 4;

/// Runs the first few seeds in which these clients take part, with these faults; gives what they reached.
fn runs(options: &str) -> BTreeMap<String, u64> {
    let overrides = arguments::parse(options).expect("options as the simulator prints them");
    let has_native = |seed: &u64| Plan::draw(*seed).workloads.iter().any(|(name, _)| *name == "native");
    let mut reached = BTreeMap::new();
    for seed in (1..).filter(has_native).take(SEEDS) {
        let result = run_seed(seed, &overrides, false).expect("names that exist");
        assert_eq!(result.violations, [], "replay it: {}", replay_command(seed, &overrides, None));
        result.coverage.into_iter().for_each(|(name, times)| *reached.entry(name).or_default() += times);
    }
    reached
}

fn assert_reached(reached: &BTreeMap<String, u64>, names: &[&str]) {
    for name in names {
        assert!(reached.get(*name).is_some_and(|times| *times > 0), "{name} was not reached: {reached:#?}");
    }
}

/// K1, K2, K5, E1: there are never two current tokens, and who waited longest is next, when servers are killed.
#[test]
fn k1_never_two_current_tokens_when_servers_are_killed() {
    let reached = runs("--only crash,crash-all,crash-at-write");
    assert_reached(
        &reached,
        &[
            coverage::LEADER_CHANGE,
            coverage::NATIVE_HANDED_OVER,
            coverage::NATIVE_GAVE_UP,
            coverage::NATIVE_ASKED_AGAIN,
            coverage::NATIVE_STALE_REFUSED,
        ],
    );
}

/// S1, S2, S3: a session ends once, with all it holds, and not while it is renewed, when servers and clients stand
/// still.
#[test]
fn s1_sessions_end_once_with_all_they_hold_when_servers_and_clients_pause() {
    let reached = runs("--only pause,clock-rate,clients-cut-off");
    assert_reached(
        &reached,
        &[coverage::PAUSE, coverage::NATIVE_OVERSLEPT, coverage::NATIVE_SESSION_EXPIRED, coverage::NATIVE_DEATH_LET_IN],
    );
}

/// B1, P1: nobody passes a barrier, a latch or a phase before all are there, when the network parts.
#[test]
fn b1_p1_nobody_goes_on_before_all_are_there_when_the_network_parts() {
    let reached = runs("--only partition,flap,loss,duplicate");
    assert_reached(
        &reached,
        &[
            coverage::PARTITION,
            coverage::NATIVE_BARRIER_OPENED,
            coverage::NATIVE_LATCH_OPENED,
            coverage::NATIVE_PHASE_AWAITED,
        ],
    );
}
