//! The client's wish for a leader (`hasleader: true`): refuse a call when there is none, and end a
//! stream that outlived its leader, so that the client looks for a member that has one.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tidelock_coordinator::Coordinator;

/// The metadata key and value by which a client requires a leader.
const REQUIRE_LEADER: (&str, &[u8]) = ("hasleader", b"true");

/// How many times in a row no leader must be seen before a stream is ended. Opening streams anew costs
/// far more than waiting out an election.
const MISSES: u32 = 3;

/// Whether the client requires a leader.
pub(crate) fn requires_leader(headers: &HeaderMap) -> bool {
    headers.get(REQUIRE_LEADER.0).is_some_and(|value| value.as_bytes() == REQUIRE_LEADER.1)
}

/// Resolves once there was no leader for `grace`; never, unless `required`.
pub(crate) async fn leader_lost(coordinator: Arc<dyn Coordinator>, grace: Duration, required: bool) {
    if !required {
        std::future::pending::<()>().await;
    }
    let mut misses = 0;
    while misses < MISSES {
        tokio::time::sleep(grace / MISSES).await;
        misses = if coordinator.status().leader.is_some() { 0 } else { misses + 1 };
    }
}
