//! `cargo xtask measure`: what the store and the server weigh, what their background work costs, and what the machine
//! takes whatever they do.
//!
//! `state` looks at the store alone, in this process: no network, no disk, no noise. `memory` and `snapshot` look at
//! the real server from outside, `chain` at what it asks of the system, `limits` at the machine without a server.
//! docs/internals/benchmarks.md says how to read them.

pub(crate) mod chain;
pub(crate) mod limits;
pub(crate) mod memory;
mod paced;
pub(crate) mod snapshot;
pub(crate) mod state;

use clap::Subcommand;

/// Bytes a key may cost beside its own and its value's (the design's budget).
const KEY_OVERHEAD_BUDGET: u64 = 150;
/// Bytes a lease may cost (the design's budget).
const LEASE_BUDGET: u64 = 200;
/// Bytes a lease with a key of 20 bytes and no value may cost: a fifth of what etcd takes.
const LEASE_AND_KEY_BUDGET: u64 = 549;

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum Measure {
    /// Where the time of one agreement goes, step by step, by the system's trace; needs root
    Chain(chain::Options),
    /// What no server on this machine can go below: syncs, agreements and sends with nothing around them
    Limits(limits::Options),
    /// The server's memory per key and per lease, and how long it takes to come back
    Memory(memory::Options),
    /// What requests feel while the server writes a snapshot
    Snapshot(snapshot::Options),
    /// The store alone: bytes per key, and how costs grow from a thousand keys on
    State(state::Options),
}

/// `total` spread over `count` things, rounded; negative if memory shrank.
fn per_thing(total: i64, count: u64) -> i64 {
    let count = i64::try_from(count).unwrap_or(i64::MAX).max(1);
    (total + total.signum() * count / 2) / count
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Whether a figure keeps to its budget, in words.
fn verdict(figure: i64, budget: u64) -> String {
    let within = figure <= signed(budget);
    format!("budget {budget}: {}", if within { "kept" } else { "BROKEN" })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The budgets are judged by these figures: off by rounding is fine, off by sign is not.
    #[test]
    fn a_share_is_rounded_and_keeps_its_sign() {
        assert_eq!((per_thing(1499, 10), per_thing(1495, 10), per_thing(-29, 10)), (150, 150, -3));
        assert_eq!(per_thing(5, 0), 5);
        assert!(verdict(150, 150).contains("kept") && verdict(151, 150).contains("BROKEN"));
    }
}
