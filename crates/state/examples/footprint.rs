//! Prints what keys cost in time and memory: `cargo run --release -p tidelock-state --example footprint`.
//!
//! Memory is what the kernel counts for the process, so it includes the allocator's own overhead; time
//! is what the process spent on a processor, so that a busy machine does not count. Linux only.

use std::time::Duration;

use bytes::Bytes;
use tidelock_model::{
    Batch, Caller, Command, Key, KeyRange, LeaseId, LogTime, NodeId, Op, Origin, Proposal, PutLease, PutOp, PutValue,
    Query, RangeOp, Revision, Space, Term,
};
use tidelock_state::{SnapshotHead, State, StateLoader};

const KEYS: u64 = 1_000_000;
const VALUE_BYTES: usize = 256;

fn resident_bytes() -> u64 {
    const PAGE: u64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE
}

fn processor_time() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    Duration::from_nanos(schedstat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

/// A number that visits all of `0..KEYS` in no order.
fn scattered(number: u64) -> u64 {
    number * 7_919 % KEYS
}

fn key(number: u64) -> Key {
    Key::new(Space::User, format!("/bench/{number:012}").as_bytes())
}

fn write_snapshot(state: &State, what: &str) -> (SnapshotHead, Vec<Bytes>) {
    let began = processor_time();
    let head = state.begin_snapshot();
    let (mut pages, mut from) = (Vec::new(), None);
    loop {
        let page = state.snapshot_page(&head, from.as_ref(), 1 << 20);
        pages.push(Bytes::from(page.bytes));
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    println!("{what} written: {:?} in {} pages", processor_time() - began, pages.len());
    (head, pages)
}

fn put_all(state: &mut State, name: &str, keys: &[Key]) {
    let value = Bytes::from(vec![7; VALUE_BYTES]);
    let began = processor_time();
    for key in keys {
        let put = PutOp {
            key: key.clone(),
            value: PutValue::Set(value.clone()),
            lease: PutLease::Set(LeaseId::NONE),
            want_previous: false,
        };
        let origin = Origin { node: NodeId(1), boot: 1, number: state.applied().0 + 1 };
        let proposals =
            vec![Proposal { origin, request: None, caller: Caller::Internal, command: Command::Write(Op::Put(put)) }];
        state.apply(state.applied().next(), Term(1), Batch { at: LogTime(1), proposals });
    }
    println!("{name}: {} ns per put", (processor_time() - began).as_nanos() / u128::from(KEYS));
}

fn main() {
    let keys: Vec<Key> = (0..KEYS).map(|number| key(scattered(number))).collect();
    let before = resident_bytes();
    let mut state = State::new();
    put_all(&mut state, "create in random order", &keys);
    let payload = 20 + VALUE_BYTES as u64;
    println!("overhead: {} B per key beside key and value", (resident_bytes() - before) / KEYS - payload);
    put_all(&mut state, "overwrite in random order", &keys);
    write_snapshot(&state, "snapshot of two versions of each");

    let began = processor_time();
    let revision = state.revision();
    let compact = Command::Compact { revision };
    let origin = Origin { node: NodeId(2), boot: 1, number: 1 };
    let proposals = vec![Proposal { origin, request: None, caller: Caller::Internal, command: compact }];
    state.apply(state.applied().next(), Term(1), Batch { at: LogTime(1), proposals });
    while state.sweep(1_000, Revision(u64::MAX)) {}
    println!("sweep of {KEYS} versions: {:?}", processor_time() - began);

    let began = processor_time();
    let range = KeyRange::all_of(Space::User);
    let read = state.read(&Query::Range(RangeOp { limit: 500, ..RangeOp::all(range) }));
    println!("list of 500 with count: {:?} ({})", processor_time() - began, read.is_ok());

    let (head, pages) = write_snapshot(&state, "snapshot");
    drop(state);

    let began = processor_time();
    let mut loader = StateLoader::new(head.bytes.into()).expect("the head was just written");
    for page in pages {
        loader.add_page(page).expect("the page was just written");
    }
    let loaded = loader.finish().expect("the snapshot was just written");
    println!("snapshot loaded: {:?}, {} keys", processor_time() - began, loaded.keys());
}
