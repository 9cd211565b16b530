//! The rules of barriers, latches, phasers, versions and hazards, one by one.

use super::testing::*;
use tidelock_model::limits::{NATIVE_PARTIES_MAX, NATIVE_PHASER_DEPTH_MAX};
use tidelock_model::native_records::{Gate, Stored};
use tidelock_model::{Data, Kind, LeaseId, NativeAnswer, NativeError, NativeNotice, NativeOp, OnDeath};

fn opened(text: &str, generation: u64) -> NativeNotice {
    NativeNotice::Barrier { name: name(text), generation, gate: Gate::Open }
}

fn entered(native: &mut Native, session: LeaseId, op: NativeOp) -> (u64, u64, u32) {
    match native.ask(session, op) {
        Ok(NativeAnswer::Entered { place, generation, missing }) => (place, generation, missing),
        other => panic!("not entered: {other:?}"),
    }
}

fn count(native: &Native, wanted: &NativeNotice) -> usize {
    native.told.iter().filter(|notice| *notice == wanted).count()
}

/// B1: a barrier opens once for all its parties, leaves nothing behind, and who comes later is of the next meeting.
#[test]
fn b1_a_barrier_opens_once_for_all_and_begins_anew() {
    let mut native = Native::new();
    let sessions: Vec<LeaseId> = (0..3).map(|_| native.open()).collect();
    let op = || enter("b", 3, false, OnDeath::Break);
    let (_, generation, missing) = entered(&mut native, sessions[0], op());
    assert_eq!(missing, 2);
    assert_eq!(native.told, []);
    assert_eq!(native.ask(sessions[1], enter("b", 2, false, OnDeath::Break)), Err(NativeError::Differs { made: 3 }));
    assert_eq!(native.ask(sessions[1], enter("b", 3, false, OnDeath::Shrink)), Err(NativeError::Differs { made: 3 }));
    entered(&mut native, sessions[1], op());
    assert_eq!(entered(&mut native, sessions[2], op()), (0, generation, 0));
    assert_eq!(count(&native, &opened("b", generation)), 1);
    assert_eq!((native.describe(Kind::Barrier, "b").count, native.describe(Kind::Barrier, "b").head), (0, None));
    let (_, next, missing) = entered(&mut native, sessions[0], op());
    assert!(next > generation && missing == 2);
    for parties in [0, NATIVE_PARTIES_MAX + 1] {
        let bad = enter("other", parties, false, OnDeath::Break);
        assert_eq!(native.ask(sessions[0], bad), Err(NativeError::BadCount));
    }
    assert_eq!(entered(&mut native, sessions[0], enter("alone", 1, false, OnDeath::Break)).2, 0);
}

/// B1: a party that dies while others wait breaks their meeting, or makes it smaller: never do they wait for the dead.
#[test]
fn b1_a_dead_party_breaks_or_shrinks_the_meeting() {
    for (policy, gate) in [(OnDeath::Break, Gate::Broken), (OnDeath::Shrink, Gate::Open)] {
        let mut native = Native::new();
        let (a, b, c) = (native.open(), native.open(), native.open());
        let (_, generation, _) = entered(&mut native, a, enter("b", 3, false, policy));
        entered(&mut native, b, enter("b", 3, false, policy));
        native.expire(&[b]);
        let told = NativeNotice::Barrier { name: name("b"), generation, gate };
        if policy == OnDeath::Shrink {
            assert_eq!(count(&native, &told), 0, "two are expected now");
            assert_eq!(entered(&mut native, c, enter("b", 3, false, policy)), (0, generation, 0));
        }
        assert_eq!(count(&native, &told), 1);
        assert_eq!(native.describe(Kind::Barrier, "b").head, None);
    }
    // The last one that gives up takes the meeting along.
    let mut native = Native::new();
    let a = native.open();
    let (place, _, _) = entered(&mut native, a, enter("b", 3, false, OnDeath::Break));
    native.ask(a, give_up(Kind::Barrier, "b", place)).unwrap();
    assert_eq!(native.describe(Kind::Barrier, "b").head, None);
}

/// B1: a double barrier lets nobody in late, and tells when the last one has left.
#[test]
fn b1_parties_of_a_double_barrier_enter_and_leave_together() {
    let mut native = Native::new();
    let (a, b, late) = (native.open(), native.open(), native.open());
    let op = || enter("d", 2, true, OnDeath::Shrink);
    let (first, generation, _) = entered(&mut native, a, op());
    let leave = |place| NativeOp::Leave { name: name("d"), place };
    assert_eq!(native.ask(a, leave(first)), Err(NativeError::BarrierShut));
    let (second, _, missing) = entered(&mut native, b, op());
    assert_eq!((missing, count(&native, &opened("d", generation))), (0, 1));
    assert_eq!(native.ask(late, op()), Err(NativeError::BarrierOpen));
    assert_eq!(native.ask(late, leave(first)), Err(NativeError::NoSuchPlace { place: first }));
    assert_eq!(native.ask(a, leave(first)), Ok(NativeAnswer::Leaving { generation, inside: 1 }));
    assert_eq!(native.ask(b, leave(second)), Ok(NativeAnswer::Leaving { generation, inside: 0 }));
    let left = NativeNotice::Barrier { name: name("d"), generation, gate: Gate::Left };
    assert_eq!(count(&native, &left), 1);
    assert!(entered(&mut native, late, op()).1 > generation);
}

/// Inside a double barrier, a death ends the waiting of who leaves as well.
#[test]
fn b1_a_death_inside_a_double_barrier_breaks_it_or_counts_as_leaving() {
    for (policy, gate) in [(OnDeath::Break, Gate::Broken), (OnDeath::Shrink, Gate::Left)] {
        let mut native = Native::new();
        let (a, b, c) = (native.open(), native.open(), native.open());
        let (place, generation, _) = entered(&mut native, a, enter("d", 3, true, policy));
        entered(&mut native, b, enter("d", 3, true, policy));
        entered(&mut native, c, enter("d", 3, true, policy));
        native.ask(a, NativeOp::Leave { name: name("d"), place }).unwrap();
        native.expire(&[b]);
        if policy == OnDeath::Shrink {
            native.expire(&[c]);
        }
        let told = NativeNotice::Barrier { name: name("d"), generation, gate };
        assert_eq!(count(&native, &told), 1, "{policy:?}");
    }
}

/// B1: who has left counts on those inside. If the last of them dies, it was no common end, and who waits for one must
/// not be told that it was. To give up inside is to leave, though.
#[test]
fn b1_the_last_one_inside_that_dies_breaks_a_double_barrier() {
    for (policy, dies, gate) in
        [(OnDeath::Break, true, Gate::Broken), (OnDeath::Break, false, Gate::Left), (OnDeath::Shrink, true, Gate::Left)]
    {
        let mut native = Native::new();
        let (a, b) = (native.open(), native.open());
        let (place, generation, _) = entered(&mut native, a, enter("d", 2, true, policy));
        let (other, _, _) = entered(&mut native, b, enter("d", 2, true, policy));
        let leave = NativeOp::Leave { name: name("d"), place };
        assert_eq!(native.ask(a, leave), Ok(NativeAnswer::Leaving { generation, inside: 1 }));
        if dies {
            native.expire(&[b]);
        } else {
            native.ask(b, give_up(Kind::Barrier, "d", other)).unwrap();
        }
        let told = NativeNotice::Barrier { name: name("d"), generation, gate };
        assert_eq!(native.told, [told], "{policy:?} {dies}");
        assert_eq!(native.describe(Kind::Barrier, "d").head, None);
    }
}

/// B1, U1: ten thousand at a barrier would each be told of all the others that go with it. Only a place in a queue is
/// somebody's concern when it goes; a reader that goes on to another version is not even gone.
#[test]
fn b1_u1_what_happens_is_told_once_and_not_for_every_member() {
    let mut native = Native::new();
    let sessions: Vec<LeaseId> = (0..3).map(|_| native.open()).collect();
    let (_, generation, _) = entered(&mut native, sessions[0], enter("b", 3, false, OnDeath::Shrink));
    for session in &sessions[1..] {
        entered(&mut native, *session, enter("b", 3, false, OnDeath::Shrink));
    }
    assert_eq!(native.told, [opened("b", generation)]);

    native.ask(sessions[0], NativeOp::SetLatch { name: name("l"), count: 2, on_death: OnDeath::Shrink }).unwrap();
    for session in &sessions {
        native.ask(*session, NativeOp::Pledge { name: name("l") }).unwrap();
    }
    native.ask(sessions[0], NativeOp::CountDown { name: name("l"), by: 2, pledge: 0 }).unwrap();
    assert_eq!(native.told, [NativeNotice::Latch { name: name("l"), gate: Gate::Open }]);

    let publish = || NativeOp::Publish { name: name("v"), data: Data::default(), fencing: None };
    native.ask(sessions[0], publish()).unwrap();
    let start = NativeOp::StartReading { name: name("v") };
    let Ok(NativeAnswer::Version { reader, .. }) = native.ask(sessions[0], start) else { panic!() };
    let Ok(NativeAnswer::Version { version, .. }) = native.ask(sessions[1], publish()) else { panic!() };
    native.ask(sessions[0], NativeOp::Report { name: name("v"), reader, version }).unwrap();
    assert_eq!(native.told, [NativeNotice::Rcu { name: name("v"), version, oldest: version }]);

    let (place, token) = native.place(sessions[0], exclusive("m"));
    native.ask(sessions[0], release(Kind::Lock, "m", token)).unwrap();
    assert!(matches!(native.told[..], [NativeNotice::Gone { kind: Kind::Lock, place: gone, .. }] if gone == place));
}

/// A latch opens at zero and stays open; a promise that cannot be kept counts or breaks, as was said.
#[test]
fn a_latch_opens_at_zero_and_knows_who_promised() {
    let mut native = Native::new();
    let (a, b) = (native.open(), native.open());
    let set = |count, on_death| NativeOp::SetLatch { name: name("l"), count, on_death };
    let down = |by, pledge| NativeOp::CountDown { name: name("l"), by, pledge };
    let pledge = NativeOp::Pledge { name: name("l") };
    let told = |gate| NativeNotice::Latch { name: name("l"), gate };
    assert_eq!(native.ask(a, down(1, 0)), Err(NativeError::NotFound));
    native.ask(a, set(3, OnDeath::Shrink)).unwrap();
    assert_eq!(native.ask(a, set(3, OnDeath::Shrink)), Err(NativeError::InUse));
    assert_eq!(native.ask(a, down(0, 0)), Err(NativeError::BadCount));
    assert_eq!(native.ask(a, down(1, 0)), Ok(NativeAnswer::Latch { left: 2 }));
    assert_eq!(native.told, [], "who waits is told once, not at every count");
    let Ok(NativeAnswer::Pledged { pledge: kept }) = native.ask(a, pledge.clone()) else { panic!() };
    native.ask(b, pledge.clone()).unwrap();
    assert_eq!(native.ask(b, down(1, kept)), Err(NativeError::NoSuchPlace { place: kept }));
    native.expire(&[b]);
    assert_eq!(count(&native, &told(Gate::Open)), 0);
    assert_eq!(native.ask(a, down(1, kept)), Ok(NativeAnswer::Latch { left: 0 }));
    assert_eq!(count(&native, &told(Gate::Open)), 1);
    assert_eq!(native.ask(a, down(9, 0)), Ok(NativeAnswer::Latch { left: 0 }));
    assert_eq!(native.ask(a, pledge.clone()), Err(NativeError::LatchOpen));

    native.ask(a, set(2, OnDeath::Break)).unwrap();
    let c = native.open();
    native.ask(c, pledge).unwrap();
    native.expire(&[c]);
    assert_eq!(count(&native, &told(Gate::Broken)), 1);
    assert_eq!(native.ask(a, down(1, 0)), Err(NativeError::Broken));
}

/// Who waits for a latch has no part in it that could keep it from being removed. So it must be told, or it waits for
/// ever.
#[test]
fn a_latch_that_is_forgotten_tells_who_waits_and_not_while_somebody_promised() {
    let mut native = Native::new();
    let a = native.open();
    let forget = || NativeOp::Forget { kind: Kind::Latch, name: name("l") };
    native.ask(a, NativeOp::SetLatch { name: name("l"), count: 2, on_death: OnDeath::Shrink }).unwrap();
    let Ok(NativeAnswer::Pledged { pledge }) = native.ask(a, NativeOp::Pledge { name: name("l") }) else { panic!() };
    assert_eq!(native.ask(a, forget()), Err(NativeError::InUse));
    native.ask(a, NativeOp::CountDown { name: name("l"), by: 1, pledge }).unwrap();
    native.ask(a, forget()).unwrap();
    let (kind, name, session) = (Kind::Latch, name("l"), LeaseId::NONE);
    assert_eq!(native.told, [NativeNotice::Gone { kind, name, place: 0, session, token: 0 }]);
}

/// Promises that cannot be kept any more count one by one, also when one session made them all.
#[test]
fn every_promise_of_a_dead_session_counts_down() {
    let mut native = Native::new();
    let (a, b) = (native.open(), native.open());
    native.ask(a, NativeOp::SetLatch { name: name("l"), count: 3, on_death: OnDeath::Shrink }).unwrap();
    for _ in 0..2 {
        native.ask(b, NativeOp::Pledge { name: name("l") }).unwrap();
    }
    native.expire(&[b]);
    let down = NativeOp::CountDown { name: name("l"), by: 1, pledge: 0 };
    assert_eq!(native.ask(a, down), Ok(NativeAnswer::Latch { left: 0 }));
}

fn registered(native: &mut Native, session: LeaseId, op: NativeOp) -> (u64, u64) {
    match native.ask(session, op) {
        Ok(NativeAnswer::Registered { party, phase }) => (party, phase),
        other => panic!("not registered: {other:?}"),
    }
}

fn phase_of(native: &Native, text: &str) -> u64 {
    match native.describe(Kind::Phaser, text).head {
        Some(Stored::Phaser(phaser)) => phaser.phase,
        other => panic!("{other:?}"),
    }
}

fn phase_told(text: &str, phase: u64) -> NativeNotice {
    NativeNotice::Phase { name: name(text), phase, broken: false }
}

/// P1: the phase ends when all registered parties arrived, once, also as parties come and go in between.
#[test]
fn p1_a_phase_ends_when_all_parties_arrived_and_they_may_change() {
    let mut native = Native::new();
    let (a, b, c) = (native.open(), native.open(), native.open());
    let (pa, phase) = registered(&mut native, a, register("p", 1, None));
    let (pb, _) = registered(&mut native, b, register("p", 1, None));
    assert_eq!(phase, 0);
    assert_eq!(native.ask(a, arrive("p", pa)), Ok(NativeAnswer::Arrived { phase: 0, now: 0 }));
    assert_eq!(native.ask(a, arrive("p", pa)), Err(NativeError::AlreadyArrived { phase: 0 }));
    assert_eq!(native.ask(b, arrive("p", pa)), Err(NativeError::NoSuchPlace { place: pa }));
    // Joins in the middle of the phase and is waited for.
    let (pc, _) = registered(&mut native, c, register("p", 2, None));
    assert_eq!(native.ask(b, arrive("p", pb)), Ok(NativeAnswer::Arrived { phase: 0, now: 0 }));
    let one = NativeOp::Arrive { name: name("p"), party: pc, count: 1, deregister: false };
    assert_eq!(native.ask(c, one.clone()), Ok(NativeAnswer::Arrived { phase: 0, now: 0 }));
    let goes = NativeOp::Arrive { name: name("p"), party: pc, count: 1, deregister: true };
    assert_eq!(native.ask(c, goes), Ok(NativeAnswer::Arrived { phase: 0, now: 1 }));
    assert_eq!(native.told, [phase_told("p", 1)]);
    for (session, party) in [(a, pa), (b, pb)] {
        native.ask(session, arrive("p", party)).unwrap();
    }
    assert_eq!(native.ask(c, one), Ok(NativeAnswer::Arrived { phase: 1, now: 2 }));
}

/// P1: a dead party is not waited for and not counted twice; where it was to be counted on, all are told.
#[test]
fn p1_a_dead_party_is_deregistered_or_breaks_the_phaser() {
    let mut native = Native::new();
    let (a, b, c) = (native.open(), native.open(), native.open());
    let (pa, _) = registered(&mut native, a, register("p", 1, None));
    registered(&mut native, b, register("p", 3, None));
    let (pc, _) = registered(&mut native, c, register("p", 1, None));
    native.ask(c, arrive("p", pc)).unwrap();
    // Dies after it arrived: what it did counts for nothing, and the others are still waited for.
    native.expire(&[c]);
    assert_eq!(phase_of(&native, "p"), 0);
    native.ask(a, arrive("p", pa)).unwrap();
    native.expire(&[b]);
    assert_eq!(native.told.last(), Some(&phase_told("p", 1)));

    let strict =
        |text: &str| NativeOp::Register { name: name(text), parties: 1, parent: None, on_death: OnDeath::Break };
    let d = native.open();
    let (party, _) = registered(&mut native, a, strict("q"));
    registered(&mut native, d, strict("q"));
    native.ask(a, arrive("q", party)).unwrap();
    native.expire(&[d]);
    assert!(native.told.contains(&NativeNotice::Phase { name: name("q"), phase: 0, broken: true }));
    assert_eq!(native.ask(a, arrive("q", party)), Err(NativeError::Broken));
    assert_eq!(native.ask(a, strict("q")), Err(NativeError::Broken));
    native.ask(a, give_up(Kind::Phaser, "q", party)).unwrap();
    native.ask(a, NativeOp::Forget { kind: Kind::Phaser, name: name("q") }).unwrap();
}

/// P1: with the last party a phase is over, by one and once, however it goes: who only looks on would wait for ever.
#[test]
fn p1_a_phase_ends_when_the_last_party_goes() {
    let mut native = Native::new();
    let a = native.open();
    let (party, _) = registered(&mut native, a, register("p", 2, None));
    let goes = |party, count| NativeOp::Arrive { name: name("p"), party, count, deregister: true };
    assert_eq!(native.ask(a, goes(party, 1)), Ok(NativeAnswer::Arrived { phase: 0, now: 0 }));
    assert_eq!(native.ask(a, goes(party, 1)), Ok(NativeAnswer::Arrived { phase: 0, now: 1 }));
    assert_eq!(native.told, [phase_told("p", 1)]);
    let (party, phase) = registered(&mut native, a, register("p", 1, None));
    assert_eq!(phase, 1);
    native.ask(a, give_up(Kind::Phaser, "p", party)).unwrap();
    assert_eq!(native.told, [phase_told("p", 2)]);

    // A tree loses all of its parties at once, some of which had arrived.
    let (b, c) = (native.open(), native.open());
    let (own, _) = registered(&mut native, b, register("p", 1, None));
    registered(&mut native, b, register("q", 2, Some("p")));
    registered(&mut native, c, register("r", 1, Some("p")));
    native.ask(b, arrive("p", own)).unwrap();
    native.expire(&[b, c]);
    assert_eq!(native.told, [phase_told("p", 3)]);
    // A child that empties is no end as long as its parent has others.
    let (own, _) = registered(&mut native, a, register("p", 1, None));
    let (child, _) = registered(&mut native, a, register("q", 1, Some("p")));
    native.ask(a, give_up(Kind::Phaser, "q", child)).unwrap();
    assert_eq!((native.told.len(), phase_of(&native, "p")), (0, 3));
    native.ask(a, arrive("p", own)).unwrap();
    assert_eq!(native.told, [phase_told("p", 4)]);
}

/// P1: nothing ends any more in a tree that is broken.
#[test]
fn p1_the_last_party_that_goes_from_a_broken_phaser_ends_nothing() {
    let mut native = Native::new();
    let (a, b) = (native.open(), native.open());
    let strict = || NativeOp::Register { name: name("p"), parties: 1, parent: None, on_death: OnDeath::Break };
    let (party, _) = registered(&mut native, a, strict());
    registered(&mut native, b, strict());
    native.expire(&[b]);
    assert_eq!(native.told, [NativeNotice::Phase { name: name("p"), phase: 0, broken: true }]);
    native.ask(a, give_up(Kind::Phaser, "p", party)).unwrap();
    assert_eq!((native.told.len(), phase_of(&native, "p")), (0, 0));
}

/// P2: a parent advances after all its children, and the whole tree with one change of one record.
#[test]
fn p2_a_tree_of_phasers_advances_when_all_its_children_have() {
    let mut native = Native::new();
    let session = native.open();
    assert_eq!(native.ask(session, register("x", 1, Some("root"))), Err(NativeError::NotFound));
    let (own, _) = registered(&mut native, session, register("root", 1, None));
    let parties: Vec<(String, u64)> = (0..6)
        .map(|at| {
            let child = format!("child-{}", at % 3);
            let party = registered(&mut native, session, register(&child, 1, Some("root"))).0;
            (child, party)
        })
        .collect();
    native.ask(session, arrive("root", own)).unwrap();
    for (at, (child, party)) in parties.iter().enumerate() {
        assert_eq!((phase_of(&native, "root"), native.told.contains(&phase_told("root", 1))), (0, false), "{at}");
        native.ask(session, arrive(child, *party)).unwrap();
    }
    assert_eq!(native.told, [phase_told("root", 1)]);
    assert_eq!(native.describe(Kind::Phaser, "child-1").root, Some(name("root")));
    // A child whose parties have all arrived takes newcomers for the next phase; an empty one is not waited for.
    let (child, party) = &parties[0];
    let go = NativeOp::Arrive { name: name(child), party: *party, count: 0, deregister: true };
    native.ask(session, go).unwrap();
    native.ask(session, arrive(child, parties[3].1)).unwrap();
    assert_eq!(registered(&mut native, session, register(child, 1, Some("root"))).1, 2);
    assert_eq!(native.ask(session, register(child, 1, None)), Err(NativeError::Differs { made: 0 }));
}

/// Deep or huge trees meet a bound, not the end of the memory.
#[test]
fn phasers_are_bounded_in_depth_and_parties() {
    let mut native = Native::new();
    let session = native.open();
    registered(&mut native, session, register("0", 1, None));
    for depth in 1..NATIVE_PHASER_DEPTH_MAX {
        let (child, parent) = (depth.to_string(), (depth - 1).to_string());
        registered(&mut native, session, register(&child, 1, Some(&parent)));
    }
    let last = (NATIVE_PHASER_DEPTH_MAX - 1).to_string();
    assert_eq!(native.ask(session, register("deep", 1, Some(&last))), Err(NativeError::NestedTooDeep));
    assert_eq!(native.ask(session, register("0", NATIVE_PARTIES_MAX, None)), Err(NativeError::BadCount));
    assert_eq!(native.ask(session, register("0", 0, None)), Err(NativeError::BadCount));
}

/// U1: a version may go when every reader is past it, and a dead reader holds nothing back.
#[test]
fn u1_old_versions_may_go_once_all_readers_are_past_them() {
    let mut native = Native::new();
    let (a, b) = (native.open(), native.open());
    let publish = || NativeOp::Publish { name: name("v"), data: Data::new("x".into()).unwrap(), fencing: None };
    let start = NativeOp::StartReading { name: name("v") };
    let version = |answer| match answer {
        Ok(NativeAnswer::Version { reader, version, oldest }) => (reader, version, oldest),
        other => panic!("{other:?}"),
    };
    assert_eq!(native.ask(a, start.clone()), Err(NativeError::NotFound));
    let (_, first, _) = version(native.ask(a, publish()));
    let (reader, read, _) = version(native.ask(a, start.clone()));
    assert_eq!(read, first);
    version(native.ask(b, start));
    let (_, second, oldest) = version(native.ask(a, publish()));
    assert_eq!(oldest, first, "both still read it");
    let report = |version| NativeOp::Report { name: name("v"), reader, version };
    assert_eq!(version(native.ask(a, report(second))).2, first, "one of two is past it");
    let bad = NativeError::BadVersion { least: second, most: second };
    assert_eq!(native.ask(a, report(first)), Err(bad));
    assert_eq!(native.ask(a, report(second + 1)), Err(bad));
    native.expire(&[b]);
    assert_eq!(native.told.last(), Some(&NativeNotice::Rcu { name: name("v"), version: second, oldest: second }));
    native.ask(a, give_up(Kind::Rcu, "v", reader)).unwrap();
    native.ask(a, NativeOp::Forget { kind: Kind::Rcu, name: name("v") }).unwrap();
    assert!(version(native.ask(a, publish())).1 > second, "a version never comes again");
}

/// H1: an object goes when nobody keeps it, and a reader that slept too long sees it by the epoch.
#[test]
fn h1_a_retired_object_goes_when_the_last_protection_is_over() {
    let mut native = Native::new();
    let (a, b) = (native.open(), native.open());
    let protect = || NativeOp::Protect { name: name("o") };
    let retire = || NativeOp::Retire { name: name("o") };
    let Ok(NativeAnswer::Protected { place, epoch: before }) = native.ask(a, protect()) else { panic!() };
    native.ask(b, protect()).unwrap();
    let Ok(NativeAnswer::Retired { epoch, clear: false }) = native.ask(b, retire()) else { panic!() };
    assert!(epoch > before);
    assert_eq!(native.ask(a, protect()), Err(NativeError::Retiring { epoch }));
    assert_eq!(native.ask(b, retire()), Ok(NativeAnswer::Retired { epoch, clear: false }));
    native.ask(a, give_up(Kind::Hazard, "o", place)).unwrap();
    let clear = NativeNotice::Hazard { name: name("o"), epoch, clear: true };
    assert_eq!(count(&native, &clear), 0);
    native.expire(&[b]);
    assert_eq!(native.told, [clear]);
    assert_eq!(native.ask(a, protect()), Err(NativeError::Retiring { epoch }), "its owner deletes it just now");
    assert_eq!(native.ask(a, retire()), Ok(NativeAnswer::Retired { epoch, clear: true }));
}

/// H1: a name is new once it was forgotten, and its epoch is one that no earlier reader has: it would take the new object
/// for the one that it read.
#[test]
fn h1_a_hazard_that_is_forgotten_begins_anew_with_an_epoch_of_its_own() {
    let mut native = Native::new();
    let a = native.open();
    let protect = || NativeOp::Protect { name: name("o") };
    let forget = || NativeOp::Forget { kind: Kind::Hazard, name: name("o") };
    assert_eq!(native.ask(a, forget()), Err(NativeError::NotFound));
    let Ok(NativeAnswer::Protected { place, epoch: first }) = native.ask(a, protect()) else { panic!() };
    assert_eq!(native.told, [], "nobody waits for it");
    assert_eq!(native.ask(a, forget()), Err(NativeError::InUse));
    let again = native.ask(a, protect());
    let Ok(NativeAnswer::Protected { place: other, epoch }) = again else { panic!("{again:?}") };
    assert_eq!(epoch, first, "one object, one epoch");
    let Ok(NativeAnswer::Retired { epoch: second, .. }) = native.ask(a, NativeOp::Retire { name: name("o") }) else {
        panic!()
    };
    assert_eq!(native.ask(a, forget()), Err(NativeError::InUse));
    for place in [place, other] {
        native.ask(a, give_up(Kind::Hazard, "o", place)).unwrap();
    }
    native.ask(a, forget()).unwrap();
    let (kind, session) = (Kind::Hazard, LeaseId::NONE);
    assert_eq!(native.told, [NativeNotice::Gone { kind, name: name("o"), place: 0, session, token: 0 }]);
    assert_eq!(native.describe(Kind::Hazard, "o").head, None);
    let Ok(NativeAnswer::Protected { epoch: third, .. }) = native.ask(a, protect()) else { panic!() };
    assert!(0 < first && first < second && second < third, "{first} {second} {third}");
}
