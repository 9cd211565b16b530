//! The store alone, in this process: bytes per key from a counting allocator, and times per operation at
//! growing sizes. What should not grow with the number of keys shows at a glance whether it does.

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use tidelock_model::{
    Batch, Caller, Command, Key, KeyRange, LeaseId, LogIndex, LogTime, NodeId, Op, Origin, Projection, Proposal,
    PutLease, PutOp, PutValue, Query, RangeOp, Revision, Space, Term, Wire,
};
use tidelock_state::State;

use super::{KEY_OVERHEAD_BUDGET, LEASE_BUDGET, per_thing, signed, verdict};
use crate::fill::{self, KEY_BYTES, Values};
use crate::random::Random;
use crate::table::{self, Table};
use crate::{ALLOCATOR, Result, progress};

/// Commands per entry: what a busy leader packs together.
const COMMANDS_PER_ENTRY: u64 = 64;
/// Reads timed at each size.
const GETS: u64 = 100_000;
/// Counts timed at each size.
const COUNTS: u64 = 10_000;
/// Steps of one sweep, as a node would do between batches.
const SWEEP_STEPS: usize = 1_000;
/// Spreads keys 0, 1, 2... over the population so that puts do not come in key order; a prime, so every
/// key of a smaller population still comes once.
const STRIDE: u64 = 2_147_483_647;

/// How large.
#[derive(Args)]
pub(crate) struct Options {
    /// Keys at the last size
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..2_000_000_000))]
    keys: u64,
    /// Leases
    #[arg(long, default_value_t = 1_000_000)]
    leases: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 256)]
    value_bytes: usize,
}

/// A store and the log position that goes with it.
struct Store {
    state: State,
    commands: u64,
    /// Time spent in `apply` since it was last asked for.
    applying: Duration,
}

impl Store {
    fn new() -> Store {
        Store { state: State::new(), commands: 0, applying: Duration::ZERO }
    }

    /// Applies `commands` as entries, decoded from bytes as they would be in a node, so that what a
    /// stored value keeps alive is what it keeps alive there.
    fn apply(&mut self, commands: impl Iterator<Item = Command>) {
        let mut proposals = Vec::new();
        for command in commands {
            self.commands += 1;
            let origin = Origin { node: NodeId(1), boot: 1, number: self.commands };
            proposals.push(Proposal { origin, request: None, caller: Caller::Internal, command });
            if proposals.len() as u64 == COMMANDS_PER_ENTRY {
                self.apply_entry(std::mem::take(&mut proposals));
            }
        }
        if !proposals.is_empty() {
            self.apply_entry(proposals);
        }
    }

    fn apply_entry(&mut self, proposals: Vec<Proposal>) {
        let bytes = Bytes::from(Batch { at: LogTime(0), proposals }.to_bytes());
        let batch = Batch::from_bytes(bytes).expect("what was just encoded decodes");
        let index = LogIndex(self.state.applied().0 + 1);
        let start = Instant::now();
        let effects = self.state.apply(index, Term(1), batch);
        self.applying += start.elapsed();
        let refused = effects.applied.iter().find(|applied| applied.duplicate || applied.outcome.result.is_err());
        assert!(refused.is_none(), "a refused command would not have been measured: {refused:?}");
    }

    /// Nanoseconds per command in `apply` since the last call.
    fn ns_per_command(&mut self, commands: u64) -> u64 {
        ns_per(std::mem::take(&mut self.applying), commands)
    }
}

/// Builds, measures and prints.
pub(crate) fn run(options: &Options) -> Result<()> {
    let values = Values::new(options.value_bytes);
    let empty = ALLOCATOR.allocated();
    let mut store = Store::new();
    let bar = progress::bar(options.keys * 2 + options.leases, "store");
    let mut table =
        Table::new(0, &["keys", "overhead B/key", "ns/put new", "ns/get", "ns/count half", "ns/count miss"]);
    let mut built = 0;
    for size in sizes(options.keys) {
        store.apply((built..size).map(|at| put(key_number(at, options.keys), &values)));
        bar.inc(size - built);
        let new = size - built;
        built = size;
        table.row(vec![
            table::grouped(size),
            overhead(empty, size, &values).to_string(),
            store.ns_per_command(new).to_string(),
            time_gets(&store.state, size, options.keys).to_string(),
            time_counts(&store.state, options.keys / 2, options.keys).to_string(),
            time_counts(&store.state, options.keys, options.keys + 1).to_string(),
        ]);
    }
    let loaded = overhead(empty, built, &values);
    let history = rewrite(&mut store, options, &values, &bar);
    let after_rewrite = overhead(empty, built, &values);
    let sweep = compact(&mut store);
    let after_sweep = overhead(empty, built, &values);
    let lease = grant(&mut store, options.leases);
    bar.finish_and_clear();

    println!("{}", table.text());
    println!("per key beside its {KEY_BYTES} + {} bytes, allocated (requested sizes, mimalloc):", options.value_bytes);
    println!("  loaded             {loaded:>6} B   ({})", verdict(loaded, KEY_OVERHEAD_BUDGET));
    println!("  each rewritten     {after_rewrite:>6} B   (one old version with its value kept; {history} ns/put)");
    println!(
        "  compacted          {after_sweep:>6} B   ({}; sweep took {})",
        verdict(after_sweep, KEY_OVERHEAD_BUDGET),
        table::duration(sweep)
    );
    println!("per lease            {:>6} B   ({}; {} ns/grant)", lease.0, verdict(lease.0, LEASE_BUDGET), lease.1);
    Ok(())
}

/// 1,000, 10,000, ... and at last `keys`.
fn sizes(keys: u64) -> Vec<u64> {
    let mut sizes: Vec<u64> = (3..9).map(|exponent| 10u64.pow(exponent)).take_while(|size| *size < keys).collect();
    sizes.push(keys);
    sizes
}

/// The key that comes at position `at` of the loading order.
fn key_number(at: u64, keys: u64) -> u64 {
    ((u128::from(at) * u128::from(STRIDE)) % u128::from(keys)) as u64
}

fn key(number: u64) -> Key {
    Key::new(Space::User, &fill::key(number))
}

fn put(number: u64, values: &Values) -> Command {
    let value = PutValue::Set(values.pick(&mut Random::new(number)));
    Command::Write(Op::Put(PutOp {
        key: key(number),
        value,
        lease: PutLease::Set(LeaseId::NONE),
        want_previous: false,
    }))
}

fn overhead(empty: usize, keys: u64, values: &Values) -> i64 {
    let allocated = ALLOCATOR.allocated().saturating_sub(empty) as u64;
    per_thing(signed(allocated), keys) - signed(KEY_BYTES + values.pick(&mut Random::new(0)).len() as u64)
}

fn ns_per(time: Duration, count: u64) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) / count.max(1)
}

fn time_gets(state: &State, size: u64, keys: u64) -> u64 {
    let mut random = Random::new(1);
    let queries = (0..GETS).map(|_| key(key_number(random.below(size), keys)));
    let queries: Vec<Query> = queries.map(|key| Query::Range(RangeOp::all(KeyRange::single(key)))).collect();
    let start = Instant::now();
    for query in &queries {
        black_box(state.read(black_box(query))).expect("a read of now is not refused");
    }
    ns_per(start.elapsed(), GETS)
}

/// Counting the keys from number `from` to `to`.
fn time_counts(state: &State, from: u64, to: u64) -> u64 {
    let range = KeyRange { start: key(from), end: key(to) };
    let query = Query::Range(RangeOp { projection: Projection::CountOnly, ..RangeOp::all(range) });
    let start = Instant::now();
    for _ in 0..COUNTS {
        black_box(state.read(black_box(&query))).expect("a read of now is not refused");
    }
    ns_per(start.elapsed(), COUNTS)
}

/// Puts every key again; nanoseconds per put.
fn rewrite(store: &mut Store, options: &Options, values: &Values, bar: &indicatif::ProgressBar) -> u64 {
    store.apply((0..options.keys).map(|at| put(key_number(at, options.keys), values)));
    bar.inc(options.keys);
    store.ns_per_command(options.keys)
}

/// Forgets all history; how long the sweeping took in all.
fn compact(store: &mut Store) -> Duration {
    let revision = store.state.revision();
    store.apply(std::iter::once(Command::Compact { revision }));
    let start = Instant::now();
    while store.state.sweep(SWEEP_STEPS, Revision(u64::MAX)) {}
    store.applying = Duration::ZERO;
    start.elapsed()
}

/// Grants leases; bytes and nanoseconds of each.
fn grant(store: &mut Store, leases: u64) -> (i64, u64) {
    let before = signed(ALLOCATOR.allocated() as u64);
    store.apply((1..=leases).map(|id| {
        // As clients and servers choose them: anywhere in the positive numbers.
        let id = LeaseId((Random::new(id).next() >> 1) as i64 | 1);
        Command::LeaseGrant { id, ttl_s: 60 }
    }));
    let bytes = per_thing(signed(ALLOCATOR.allocated() as u64) - before, leases);
    (bytes, store.ns_per_command(leases))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A population with holes would report overhead for keys that are not there.
    #[test]
    fn every_key_of_the_population_comes_once() {
        for keys in [1, 2, 1_000, 4_096, 9_973] {
            let seen: BTreeSet<u64> = (0..keys).map(|at| key_number(at, keys)).collect();
            assert_eq!(seen.len() as u64, keys);
        }
        assert_eq!(sizes(5_000), [1_000, 5_000]);
        assert_eq!(sizes(500), [500]);
    }

    /// The measure drives the real store: an API it misuses would be noticed only in a report.
    #[test]
    fn a_small_store_is_measured() {
        run(&Options { keys: 2_000, leases: 100, value_bytes: 32 }).unwrap();
    }
}
