//! Prints what native sessions and locks cost in memory and time:
//! `cargo run --release -p tidelock-state --example native_footprint`; with `-- locks` at the end, only what locks cost
//! that nobody waits for.
//!
//! Memory is what the kernel counts for the process, so it includes the allocator's own overhead; time is what the
//! process spent on a processor, so that a busy machine does not count. Linux only.

use std::time::Duration;

use tidelock_model::{
    Answer, Batch, Caller, Command, Data, Kind, LeaseId, LogTime, Mode, Name, NativeAnswer, NativeCommand, NativeOp,
    NativeRequest, NodeId, OnDeath, Origin, Proposal, Revision, Term, Wait,
};
use tidelock_state::{Effects, State};

const SESSIONS: u64 = 1_000_000;
const CYCLES: u64 = 20_000;
/// What one entry of a busy leader holds.
const ENTRY_PROPOSALS: usize = 100;

fn resident_bytes() -> u64 {
    const PAGE: u64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE
}

fn processor_time() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    Duration::from_nanos(schedstat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

fn apply(state: &mut State, command: Command) -> Effects {
    let origin = Origin { node: NodeId(1), boot: 1, number: state.applied().0 + 1 };
    let proposals = vec![Proposal { origin, request: None, caller: Caller::Internal, command }];
    state.apply(state.applied().next(), Term(1), Batch { at: LogTime(1), proposals })
}

fn native(state: &mut State, command: NativeCommand) -> NativeAnswer {
    match &apply(state, Command::Native(command)).applied[0].outcome.result {
        Ok(Answer::Native(answer)) => *answer,
        other => panic!("refused: {other:?}"),
    }
}

fn open(state: &mut State) -> LeaseId {
    match native(state, NativeCommand::Open { ttl_ms: 10_000, owner: String::new() }) {
        NativeAnswer::Opened { session, .. } => session,
        other => panic!("not opened: {other:?}"),
    }
}

fn ask(state: &mut State, session: LeaseId, number: u64, op: NativeOp) -> NativeAnswer {
    let request = NativeRequest { session, number, acknowledged: number - 1, op };
    native(state, NativeCommand::Request(request))
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a short name")
}

fn acquire(text: &str) -> NativeOp {
    let (mode, wait, data) = (Mode::Exclusive, Wait::Queue(0), Data::default());
    NativeOp::Acquire { name: name(text), mode, permits: 0, wait, data }
}

fn forget_the_past(state: &mut State) {
    let revision = state.revision();
    apply(state, Command::Compact { revision });
    while state.sweep(1_000, Revision(u64::MAX)) {}
}

fn memory() {
    let mut state = State::new();
    let before = resident_bytes();
    let sessions: Vec<LeaseId> = (0..SESSIONS).map(|_| open(&mut state)).collect();
    let opened = resident_bytes();
    for (at, session) in sessions.iter().enumerate() {
        ask(&mut state, *session, 1, acquire(&format!("lock-{at}")));
    }
    forget_the_past(&mut state);
    let held = resident_bytes();
    let list = 8;
    println!(
        "a session: {} B; a session with a lock: {} B",
        (opened - before) / SESSIONS - list,
        (held - before) / SESSIONS - list
    );
}

fn cycles() {
    let mut state = State::new();
    let session = open(&mut state);
    let began = processor_time();
    for cycle in 0..CYCLES {
        let NativeAnswer::Place { token, .. } = ask(&mut state, session, 2 * cycle + 1, acquire("lock")) else {
            panic!()
        };
        ask(&mut state, session, 2 * cycle + 2, NativeOp::Release { kind: Kind::Lock, name: name("lock"), token });
    }
    println!("lock and release: {} ns", (processor_time() - began).as_nanos() / u128::from(CYCLES));
}

/// Applies requests that came in together, as one entry.
fn ask_together(state: &mut State, requests: impl Iterator<Item = NativeRequest>) -> Effects {
    let proposals = requests.zip(1..).map(|(request, place)| {
        let origin = Origin { node: NodeId(1), boot: 1, number: state.applied().0 * ENTRY_PROPOSALS as u64 + place };
        let command = Command::Native(NativeCommand::Request(request));
        Proposal { origin, request: None, caller: Caller::Internal, command }
    });
    let batch = Batch { at: LogTime(1), proposals: proposals.collect() };
    state.apply(state.applied().next(), Term(1), batch)
}

/// Many sessions, each with a lock of its own that nobody else wants, and nothing of the past forgotten. Names too long
/// for a key's handle, as most are.
fn uncontended(sessions: usize, rounds: u64) {
    let mut state = State::new();
    let sessions: Vec<(LeaseId, String)> =
        (0..sessions).map(|at| (open(&mut state), format!("some-benchmark-lock-{at}"))).collect();
    let began = processor_time();
    for round in 0..rounds {
        for together in sessions.chunks(ENTRY_PROPOSALS) {
            let acquires = together.iter().map(|(session, lock)| {
                let number = 2 * round + 1;
                NativeRequest { session: *session, number, acknowledged: number - 1, op: acquire(lock) }
            });
            let acquired = ask_together(&mut state, acquires);
            let releases = together.iter().zip(&acquired.applied).map(|((session, lock), applied)| {
                let Ok(Answer::Native(NativeAnswer::Place { token, .. })) = applied.outcome.result else { panic!() };
                let (number, op) = (2 * round + 2, NativeOp::Release { kind: Kind::Lock, name: name(lock), token });
                NativeRequest { session: *session, number, acknowledged: number - 1, op }
            });
            ask_together(&mut state, releases);
        }
    }
    let each = (processor_time() - began).as_nanos() / (u128::from(rounds) * sessions.len() as u128);
    println!("lock and release by each of {} sessions: {each} ns", sessions.len());
}

/// The holder releases and queues up again: every release lets in the next.
fn hand_overs(waiters: u64) {
    let mut state = State::new();
    let sessions: Vec<LeaseId> = (0..waiters).map(|_| open(&mut state)).collect();
    for session in &sessions {
        ask(&mut state, *session, 1, acquire("lock"));
    }
    let mut token = sessions.first().map_or(0, |_| state.revision().0 - waiters + 1);
    let (mut numbers, mut events) = (vec![1; sessions.len()], 0);
    let began = processor_time();
    for turn in 0..CYCLES {
        let at = (turn % waiters) as usize;
        numbers[at] += 1;
        let op = NativeOp::Release { kind: Kind::Lock, name: name("lock"), token };
        let number = numbers[at];
        let request = NativeRequest { session: sessions[at], number, acknowledged: number - 1, op };
        let effects = apply(&mut state, Command::Native(NativeCommand::Request(request)));
        events += effects.events.len();
        token = state.revision().0;
        numbers[at] += 1;
        ask(&mut state, sessions[at], numbers[at], acquire("lock"));
    }
    let each = (processor_time() - began).as_nanos() / u128::from(CYCLES);
    println!("hand-over with {waiters} in the queue: {each} ns, {} events per release", events as u64 / CYCLES);
}

/// Parties of one phaser, or of a tree with as many children as each child has parties.
fn phases(parties: u64, children: u64) {
    let mut state = State::new();
    let session = open(&mut state);
    let mut number = 0;
    let mut next = || {
        number += 1;
        number
    };
    let on_death = OnDeath::Shrink;
    let root = NativeOp::Register { name: name("root"), parties: 1, parent: None, on_death };
    let NativeAnswer::Registered { party: own, .. } = ask(&mut state, session, next(), root) else { panic!() };
    let mut all = vec![("root".to_owned(), own)];
    for at in 1..parties {
        let (text, parent) = match children {
            0 => ("root".to_owned(), None),
            _ => (format!("child-{}", at % children), Some(name("root"))),
        };
        let register = NativeOp::Register { name: name(&text), parties: 1, parent, on_death };
        let NativeAnswer::Registered { party, .. } = ask(&mut state, session, next(), register) else { panic!() };
        all.push((text, party));
    }
    const PHASES: u64 = 3;
    let began = processor_time();
    for _ in 0..PHASES {
        for (text, party) in &all {
            let arrive = NativeOp::Arrive { name: name(text), party: *party, count: 0, deregister: false };
            ask(&mut state, session, next(), arrive);
        }
    }
    let each = (processor_time() - began).as_nanos() / u128::from(PHASES * parties);
    println!("phase of {parties} parties, {children} children: {each} ns per arrival");
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("locks") {
        return uncontended(1_000, 300);
    }
    cycles();
    [2, 16, 1_000, 10_000].into_iter().for_each(hand_overs);
    phases(10_000, 0);
    phases(9_999, 100);
    memory();
    // After memory, which must not find what this frees.
    uncontended(1_000, 300);
}
