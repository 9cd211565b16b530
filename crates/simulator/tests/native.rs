//! Native primitives under kill, pause and partition of servers and clients, as runs of the simulator that must be
//! clean. Clients die, sleep through the end of their sessions and ask again elsewhere in all of them.
//!
//! What is judged is in `check/native_*.rs`.

mod first_seeds;

use first_seeds::{assert_reached, runs};
use tidelock_simulator::coverage;

/// K1, K2, K5, E1: there are never two current tokens, and who waited longest is next, when servers are killed.
#[test]
fn k1_never_two_current_tokens_when_servers_are_killed() {
    let reached = runs("native", "--only crash,crash-all,crash-at-write");
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
    let reached = runs("native", "--only pause,clock-rate,clients-cut-off");
    assert_reached(
        &reached,
        &[
            coverage::PAUSE,
            coverage::NATIVE_OVERSLEPT,
            coverage::NATIVE_SESSION_EXPIRED,
            coverage::NATIVE_DEATH_LET_IN,
            coverage::NATIVE_END_TOLD,
            coverage::NATIVE_RENEWED_LATE,
        ],
    );
}

/// B1, P1: nobody passes a barrier, a latch or a phase before all are there, nor believes a double barrier to be empty
/// while somebody is inside, when the network parts.
#[test]
fn b1_p1_nobody_goes_on_before_all_are_there_when_the_network_parts() {
    let reached = runs("native", "--only partition,flap,loss,duplicate");
    assert_reached(
        &reached,
        &[
            coverage::PARTITION,
            coverage::NATIVE_BARRIER_OPENED,
            coverage::NATIVE_BARRIER_LEFT,
            coverage::NATIVE_LATCH_OPENED,
            coverage::NATIVE_PHASE_AWAITED,
        ],
    );
}

/// K4, K6: one who was stopped or cut off past the end of its session comes back and writes. Where the token is asked
/// for, nothing of it is left once the next holder has written. That it shows where nobody asks for a token is too rare
/// for so few seeds; a campaign counts it.
#[test]
fn k6_an_old_holder_writes_nowhere_where_its_token_is_asked_for() {
    let reached = runs("native", "--only pause,partition,clients-cut-off");
    assert_reached(
        &reached,
        &[
            coverage::NATIVE_CLIENT_CUT_OFF,
            coverage::NATIVE_OVERSLEPT,
            coverage::NATIVE_FENCED_WRITE,
            coverage::NATIVE_FENCED_WRITE_REFUSED,
            coverage::NATIVE_WRITE,
            coverage::NATIVE_WRITE_REFUSED,
        ],
    );
}
