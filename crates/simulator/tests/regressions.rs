//! Seeds that once failed, each with the mistake it found. They must never fail again.
//!
//! To add one: take the command that `cargo xtask sim --seed S --minimise` prints, put its seed and the options behind
//! it here, and say in a few words what was wrong; the whole story goes to `docs/bugs.md`. Check that the line fails
//! without the fix. A later change to how plans are drawn makes a seed mean another run: the line then guards
//! less than it did, so the fix has a test of its own as well.

use tidelock_simulator::arguments;
use tidelock_simulator::campaign::{replay_command, run_seed};

/// Seed, options, what was wrong. A workload that came later is left out where a seed happens to draw it, so that the
/// run is still the one that failed.
const PINNED: &[(u64, &str, &str)] = &[
    (2, "", "a lease ended a part of a heartbeat early (bug 23)"),
    (4, "--drop-workloads znodes", "the same, with one kind of fault"),
    (9, "", "the same, without any fault"),
    (10, "", "a node took the words of a peer's removal for its own (bug 24)"),
    (1_092, "", "a leader removed itself, and the other of two members waited for its vote for ever (bug 25)"),
    (1_212, "--drop-workloads native", "the same"),
    (
        2_658_434_119,
        "--drop-workloads native",
        "a member that was away could not answer a leader it did not know (bug 26)",
    ),
    (2_658_434_215, "", "the same"),
    (5_077, "--drop-workloads native", "an expiry that got lost was proposed again too late (bug 28)"),
    (5_310, "", "the same"),
    (97, "", "a joint change was told as done before the cluster had left it (bug 29)"),
    (
        300_826,
        "--drop-workloads znodes",
        "judged before the end of a lease, decided in the last moment, had reached everybody",
    ),
    (
        2_640_194_793,
        "--drop-workloads native",
        "the last of two members forgot that the other was removed, and waited for its vote (bug 33)",
    ),
    (700_652, "", "an answer to a node's earlier life was taken for one to its next (bug 34)"),
    (
        2_096_368_231,
        "--drop-workloads native",
        "a founder lost its disk before another had met it, which had to wait for it for ever",
    ),
    (900_171, "", "a founder lost its disk before the cluster was founded, which nobody promised to survive"),
    (
        3,
        "--drop-workloads registers,transactions,lists,counters,leases,sessions,watches,bulk,upkeep,members,locks",
        "switching users and roles on ended nobody's session, and told every client that came back that it had (bug 39)",
    ),
    (22, "", "a member showed less than before it was killed (bug 66)"),
    (100_626, "", "a removed leader that lingered was ended by an assertion of the engine (bug 30)"),
    (2_000_106, "", "a leader left when its removal was agreed on, and nobody else knew (bug 55)"),
    (4_000_508, "", "a removed learner waited for its leader for ever (bug 63)"),
    (4_000_711, "", "judged before a member that joined late was sent a snapshot by a slow disk"),
];

/// What was found once was real for some user; found again it would be a mistake made twice.
#[test]
fn seeds_that_once_failed_are_clean() {
    for (seed, options, what) in PINNED {
        let overrides = arguments::parse(options).expect("options as the simulator prints them");
        let result = run_seed(*seed, &overrides, false).expect("names as the simulator prints them");
        let command = replay_command(*seed, &overrides, None);
        assert_eq!(result.violations, [], "again: {what}; replay it: {command}");
    }
}
