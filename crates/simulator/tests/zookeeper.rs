//! Failures that ZooKeeper itself had (H11 to H13), as runs of the simulator that must be clean: sessions, ephemerals
//! and watches through the production code of the ZooKeeper face, under the faults that brought them out.
//!
//! What is judged is in `check/session_*.rs`, `check/watch_once.rs` and `check/znode_writes.rs`.

mod first_seeds;

use first_seeds::{assert_reached, runs};
use tidelock_simulator::coverage;

/// A client that lost its session must find its ephemerals gone, wherever it looks, and nobody's go while its session
/// lives: not when leaders crash or stand still, not when a session goes on elsewhere or tries to after its end.
#[test]
fn h11_ephemerals_live_exactly_as_long_as_their_sessions() {
    let reached = runs("znodes", "--only crash,pause,isolate,clients-cut-off");
    assert_reached(
        &reached,
        &[
            coverage::LEADER_CHANGE,
            coverage::SESSION_REATTACHED,
            coverage::SESSION_EXPIRED,
            coverage::SESSION_CLOSED,
            coverage::SESSION_OVER,
            coverage::EPHEMERALS_WENT,
        ],
    );
}

/// What a client was told is done stays done, with power cuts at every moment and disks that fail. That a log with a
/// hole is refused is tested where logs are: `h12_any_missing_segment_is_refused` in `crates/journal`.
#[test]
fn h12_a_znode_that_was_acknowledged_survives() {
    let reached = runs("znodes", "--only crash-all,crash-at-write,sync-error");
    assert_reached(&reached, &[coverage::RESTART, coverage::CRASH_ALL, coverage::ZNODE_WATCH_FIRED]);
}

/// A request that is too large is refused or ends its connection, and takes nothing down: neither a node (its end
/// would be a violation) nor what others asked.
#[test]
fn h13_requests_that_are_too_large_harm_nobody() {
    let reached = runs("znodes", "--only crash,partition");
    assert_reached(&reached, &[coverage::OVERSIZED_REFUSED, coverage::SESSION_REATTACHED]);
}
