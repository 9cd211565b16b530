//! The rules of queues, one by one.

use super::testing::*;
use crate::testing::{all_of, if_version, put, txn};
use tidelock_model::limits::{NATIVE_HOLDINGS_MAX, NATIVE_QUEUE_MAX};
use tidelock_model::{
    Compare, Data, Fencing, Kind, LeaseId, Mode, NativeAnswer, NativeError, NativeFound, NativeNotice, NativeOp,
    NativeQuery, OpAnswer, Refusal, Wait,
};
use tidelock_tree::steps;

/// L1, L5, K1: who waits is let in by the release, told once, with a token greater than every one before.
#[test]
fn l1_k1_a_release_lets_in_the_next_with_a_greater_token() {
    let mut native = Native::new();
    let (a, b, c) = (native.open(), native.open(), native.open());
    let (place, token) = native.place(a, exclusive("m"));
    assert_eq!(place, token, "granted at once: the token is the revision it came at");
    assert_eq!((native.place(b, exclusive("m")).1, native.place(c, exclusive("m")).1), (0, 0));
    native.ask(a, release(Kind::Lock, "m", token)).unwrap();
    let first = native.granted();
    assert_eq!(first.len(), 1, "one release, one wake-up (L8)");
    assert_eq!((first[0].0, first[0].1 > token), (b, true));
    native.ask(b, release(Kind::Lock, "m", first[0].1)).unwrap();
    let second = native.granted();
    assert_eq!((second[0].0, second[0].1 > first[0].1), (c, true));
}

/// K1: a lock that nobody held for a while must not give out a token that an old holder may still carry.
#[test]
fn k1_tokens_grow_when_a_lock_was_free_in_between() {
    let mut native = Native::new();
    let session = native.open();
    let mut last = 0;
    for _ in 0..3 {
        let (_, token) = native.place(session, exclusive("m"));
        assert!(token > last);
        last = token;
        native.ask(session, release(Kind::Lock, "m", token)).unwrap();
    }
    assert_eq!(native.describe(Kind::Lock, "m").count, 0);
}

/// L2, K3: only the holder releases; a stranger, an old token or a token of another lock changes nothing.
#[test]
fn l2_k3_a_stranger_or_an_old_token_releases_nothing() {
    let mut native = Native::new();
    let (a, b) = (native.open(), native.open());
    let (_, token) = native.place(a, exclusive("m"));
    assert_eq!(native.ask(b, release(Kind::Lock, "m", token)), Err(NativeError::NotHolder { token }));
    assert_eq!(native.ask(a, release(Kind::Lock, "other", token)), Err(NativeError::StaleToken { token }));
    assert_eq!(native.ask(a, release(Kind::Lock, "m", 0)), Err(NativeError::StaleToken { token: 0 }));
    assert_eq!(native.ask(a, release(Kind::Counter, "m", token)), Err(NativeError::WrongKind));
    native.ask(a, release(Kind::Lock, "m", token)).unwrap();
    let (_, again) = native.place(a, exclusive("m"));
    // etcd's client library once deleted a newer lock of the same session by a retried unlock.
    assert_eq!(native.ask(a, release(Kind::Lock, "m", token)), Err(NativeError::StaleToken { token }));
    assert_eq!(native.describe(Kind::Lock, "m").members[0].queued.as_ref().unwrap().token, again);
}

/// L3: renewing is fenced as well, and may change the time to live; nothing is renewed for who lost it.
#[test]
fn l3_renewing_needs_a_current_token() {
    let mut native = Native::new();
    let (a, b) = (native.open(), native.open());
    let (_, token) = native.place(a, exclusive("m"));
    let renew = |token, ttl_ms| NativeOp::Renew { kind: Kind::Lock, name: name("m"), token, ttl_ms };
    let before = native.machine.state.lease(a).unwrap();
    native.ask(a, renew(token, 60_500)).unwrap();
    let after = native.machine.state.lease(a).unwrap();
    assert_eq!((after.ttl_s, after.granted_at > before.granted_at), (61, true));
    native.ask(a, renew(token, 0)).unwrap();
    assert_eq!(native.machine.state.lease(a).unwrap().ttl_s, 61);
    assert_eq!(native.ask(b, renew(token, 0)), Err(NativeError::NotHolder { token }));
    assert_eq!(native.ask(a, renew(token + 1, 0)), Err(NativeError::StaleToken { token: token + 1 }));
    for ttl_ms in [1, 999, u32::MAX] {
        assert_eq!(native.ask(a, renew(token, ttl_ms)), Err(NativeError::TtlOutOfRange));
    }
}

/// L4, L14, S1: a session that dies frees all it held at one revision, and whoever waited is let in by the same entry.
#[test]
fn l4_s1_a_dead_session_frees_all_its_locks_at_one_revision() {
    let mut native = Native::new();
    let (dying, b, c) = (native.open(), native.open(), native.open());
    for lock in ["x", "y", "z"] {
        native.place(dying, exclusive(lock));
    }
    native.place(b, exclusive("x"));
    native.place(c, exclusive("y"));
    let effects = native.expire(&[dying]);
    let revisions: std::collections::BTreeSet<_> =
        effects.events.iter().map(|event| event.record.meta().modified).collect();
    assert_eq!(revisions.len(), 1);
    let token = revisions.into_iter().next().unwrap().0;
    assert_eq!(native.granted(), [(b, token), (c, token)]);
    assert_eq!(native.describe(Kind::Lock, "z").count, 0);
}

/// L5: who gives up, or dies while waiting, leaves the queue, and nobody else is told or moved.
#[test]
fn l5_a_waiter_that_goes_costs_the_others_nothing() {
    let mut native = Native::new();
    let (a, b, c, d) = (native.open(), native.open(), native.open(), native.open());
    let (_, token) = native.place(a, exclusive("m"));
    let (gives_up, _) = native.place(b, exclusive("m"));
    native.place(c, exclusive("m"));
    native.place(d, exclusive("m"));
    assert_eq!(native.ask(b, give_up(Kind::Lock, "m", gives_up)), Ok(NativeAnswer::Left { token: 0 }));
    assert_eq!((native.granted().len(), native.told.len()), (0, 1));
    native.expire(&[c]);
    assert_eq!((native.granted().len(), native.told.len()), (0, 1));
    native.ask(a, release(Kind::Lock, "m", token)).unwrap();
    assert_eq!(native.granted().iter().map(|(session, _)| *session).collect::<Vec<_>>(), [d]);
}

/// A cancelled wait may cross the grant: one request gives the place up whatever became of it, and the next is let in.
#[test]
fn giving_up_a_place_that_was_just_granted_lets_in_the_next() {
    let mut native = Native::new();
    let (a, b, c) = (native.open(), native.open(), native.open());
    let (_, token) = native.place(a, exclusive("m"));
    let (place, _) = native.place(b, exclusive("m"));
    native.place(c, exclusive("m"));
    native.ask(a, release(Kind::Lock, "m", token)).unwrap();
    let crossed = native.granted()[0].1;
    assert_eq!(native.ask(c, give_up(Kind::Lock, "m", place)), Err(NativeError::NoSuchPlace { place }));
    assert_eq!(native.ask(b, give_up(Kind::Lock, "m", place)), Ok(NativeAnswer::Left { token: crossed }));
    assert_eq!(native.granted()[0].0, c);
    assert_eq!(native.ask(b, give_up(Kind::Lock, "m", place)), Err(NativeError::NoSuchPlace { place }));
}

/// L11: readers wait for writers before them only, a writer for all; nobody overtakes (L7).
#[test]
fn l11_readers_share_and_a_writer_waits_for_all_before_it() {
    let mut native = Native::new();
    let sessions: Vec<LeaseId> = (0..6).map(|_| native.open()).collect();
    let (_, first) = native.place(sessions[0], shared("m"));
    let (_, second) = native.place(sessions[1], shared("m"));
    assert!(first > 0 && second > first, "readers share, each with a token of its own (K2)");
    let (writer, token) = native.place(sessions[2], exclusive("m"));
    assert_eq!(token, 0);
    assert_eq!(native.place(sessions[3], shared("m")).1, 0, "it does not overtake the writer");
    assert_eq!(native.place(sessions[4], shared("m")).1, 0);
    assert_eq!(native.place(sessions[5], exclusive("m")).1, 0);
    native.ask(sessions[0], release(Kind::Lock, "m", first)).unwrap();
    assert_eq!(native.granted(), []);
    native.ask(sessions[1], release(Kind::Lock, "m", second)).unwrap();
    assert_eq!(native.granted()[0].0, sessions[2]);
    let token = native.granted()[0].1;
    native.ask(sessions[2], release(Kind::Lock, "m", token)).unwrap();
    let granted = native.granted();
    assert_eq!(granted.iter().map(|(session, _)| *session).collect::<Vec<_>>(), [sessions[3], sessions[4]]);
    assert!(granted[0].1 < granted[1].1 && writer < granted[0].1, "one token, one holder (K2)");
}

/// L11: a waiting writer that goes must not leave the readers behind it waiting for nobody (K5, no lost wake-up).
#[test]
fn k5_readers_behind_a_writer_that_gives_up_are_let_in() {
    let mut native = Native::new();
    let (a, w, b, c) = (native.open(), native.open(), native.open(), native.open());
    native.place(a, shared("m"));
    native.place(w, exclusive("m"));
    native.place(b, shared("m"));
    native.place(c, shared("m"));
    native.expire(&[w]);
    assert_eq!(native.granted().iter().map(|(session, _)| *session).collect::<Vec<_>>(), [b, c]);
}

/// A holder that only reads from now on keeps its token and lets other readers in.
#[test]
fn downgrading_lets_readers_in_and_keeps_the_token() {
    let mut native = Native::new();
    let (a, b, c) = (native.open(), native.open(), native.open());
    let (_, token) = native.place(a, exclusive("m"));
    native.place(b, shared("m"));
    native.place(c, exclusive("m"));
    native.ask(a, NativeOp::Downgrade { name: name("m"), token }).unwrap();
    assert_eq!(native.granted().iter().map(|(session, _)| *session).collect::<Vec<_>>(), [b]);
    native.ask(a, release(Kind::Lock, "m", token)).unwrap();
    assert_eq!(native.granted(), []);
}

/// Semaphores are fair: a large request is not starved by small ones behind it, and nothing is given out twice.
#[test]
fn permits_are_given_in_order_and_never_more_than_there_are() {
    let mut native = Native::new();
    let sessions: Vec<LeaseId> = (0..4).map(|_| native.open()).collect();
    let (_, two) = native.place(sessions[0], permits("s", 2, 3));
    assert_eq!(native.place(sessions[1], permits("s", 2, 3)).1, 0);
    assert_eq!(native.place(sessions[2], permits("s", 1, 0)).1, 0, "one is left, but another waits before it");
    assert_eq!(native.ask(sessions[3], permits("s", 4, 0)), Err(NativeError::BadWeight { permits: 3 }));
    assert_eq!(native.ask(sessions[3], permits("s", 0, 0)), Err(NativeError::BadWeight { permits: 3 }));
    assert_eq!(native.ask(sessions[3], permits("s", 1, 9)), Err(NativeError::Differs { made: 3 }));
    assert_eq!(native.ask(sessions[3], permits("unmade", 1, 0)), Err(NativeError::NotFound));
    native.ask(sessions[0], release(Kind::Semaphore, "s", two)).unwrap();
    let granted = native.granted();
    assert_eq!(granted.iter().map(|(session, _)| *session).collect::<Vec<_>>(), [sessions[1], sessions[2]]);
    native.ask(sessions[3], NativeOp::Resize { name: name("s"), permits: 5 }).unwrap();
    assert!(native.place(sessions[3], permits("s", 2, 5)).1 > 0);
    native.expire(&sessions[1..]);
    let forget = NativeOp::Forget { kind: Kind::Semaphore, name: name("s") };
    native.ask(sessions[0], forget.clone()).unwrap();
    assert_eq!(native.ask(sessions[0], forget), Err(NativeError::NotFound));
}

/// Who asked for more than there is after a resize must not block the queue for ever.
#[test]
fn a_waiter_that_wants_more_than_there_is_left_after_a_resize_gets_all_there_is() {
    let mut native = Native::new();
    let (a, b, c) = (native.open(), native.open(), native.open());
    let (_, token) = native.place(a, permits("s", 1, 4));
    native.place(b, permits("s", 4, 4));
    native.place(c, permits("s", 1, 4));
    native.ask(a, NativeOp::Resize { name: name("s"), permits: 2 }).unwrap();
    native.ask(a, release(Kind::Semaphore, "s", token)).unwrap();
    assert_eq!(native.granted().len(), 1);
    let held = native.granted()[0].1;
    native.ask(b, release(Kind::Semaphore, "s", held)).unwrap();
    assert_eq!(native.granted()[0].0, c);
    assert_eq!(native.ask(a, NativeOp::Resize { name: name("s"), permits: 0 }), Err(NativeError::BadCount));
}

/// A client that does not want to wait is told at once, and leaves nothing in the queue.
#[test]
fn trying_takes_no_place_and_a_limit_is_told() {
    let mut native = Native::new();
    let (a, b, c) = (native.open(), native.open(), native.open());
    let (_, token) = native.place(a, exclusive("m"));
    let attempt =
        |wait| NativeOp::Acquire { name: name("m"), mode: Mode::Exclusive, permits: 0, wait, data: Data::default() };
    assert_eq!(native.ask(b, attempt(Wait::Try)), Err(NativeError::Busy { token }));
    assert_eq!(native.ask(b, attempt(Wait::Queue(1))), Err(NativeError::QueueFull { waiting: 1 }));
    native.place(b, attempt(Wait::Queue(2)));
    assert_eq!(native.ask(c, attempt(Wait::Queue(2))), Err(NativeError::QueueFull { waiting: 2 }));
    assert_eq!(native.describe(Kind::Lock, "m").count, 2);
    let (mode, wait, data) = (Mode::Shared, Wait::Try, Data::default());
    assert!(native.place(c, NativeOp::Acquire { name: name("free"), mode, permits: 0, wait, data }).1 > 0);
}

/// A hundred thousand waiters, or one client that takes everything, must meet a bound and a clear word.
#[test]
fn queues_and_holdings_are_bounded() {
    let mut native = Native::new();
    let mut session = native.open();
    for held in 0..NATIVE_QUEUE_MAX {
        if held % NATIVE_HOLDINGS_MAX == 0 {
            session = native.open();
        }
        native.place(session, exclusive("m"));
    }
    let waiting = NATIVE_QUEUE_MAX as u64;
    let other = native.open();
    assert_eq!(native.ask(other, exclusive("m")), Err(NativeError::QueueFull { waiting }));
    for held in 0..NATIVE_HOLDINGS_MAX {
        native.place(other, exclusive(&format!("own-{held}")));
    }
    assert_eq!(native.ask(other, exclusive("one-more")), Err(NativeError::TooManyHoldings));
}

/// EL1, EL3, E1: leaders follow each other in order, each with a greater epoch, and what one proclaims is its own.
#[test]
fn el3_e1_campaign_proclaim_and_resign() {
    let mut native = Native::new();
    let (a, b, c) = (native.open(), native.open(), native.open());
    let (_, epoch) = native.place(a, campaign("e", "host-a"));
    native.place(b, campaign("e", "host-b"));
    native.place(c, campaign("e", "host-c"));
    let proclaim = |token| NativeOp::Proclaim { name: name("e"), token, data: Data::new("new".into()).unwrap() };
    native.ask(a, proclaim(epoch)).unwrap();
    assert_eq!(
        native.told,
        [NativeNotice::Changed { kind: Kind::Election, name: name("e"), session: a, token: epoch }]
    );
    assert_eq!(native.ask(b, proclaim(epoch)), Err(NativeError::NotHolder { token: epoch }));
    native.ask(a, release(Kind::Election, "e", epoch)).unwrap();
    assert_eq!(native.granted()[0].0, b);
    assert_eq!(native.ask(a, proclaim(epoch)), Err(NativeError::StaleToken { token: epoch }));
    let leader = native.describe(Kind::Election, "e").members[0].queued.clone().unwrap();
    assert_eq!((&leader.data.as_bytes()[..], leader.token > epoch), (&b"host-b"[..], true));
}

/// A leader that hands over to somebody it chose: that one leads, before all who wait, and they keep their order.
#[test]
fn a_leader_names_its_successor() {
    let mut native = Native::new();
    let (a, b, c) = (native.open(), native.open(), native.open());
    let (leading, epoch) = native.place(a, campaign("e", "a"));
    native.place(b, campaign("e", "b"));
    let (waiting, _) = native.place(c, campaign("e", "c"));
    let resign = |successor| NativeOp::Resign { name: name("e"), token: epoch, successor };
    assert_eq!(native.ask(a, resign(LeaseId(99))), Err(NativeError::NoSuccessor));
    // What is left is the leader's own grant; the next one's is told to the next one.
    assert_eq!(native.ask(a, resign(c)), Ok(NativeAnswer::Left { token: epoch }));
    let token = native.machine.state.revision().0;
    let granted = NativeNotice::Granted {
        kind: Kind::Election,
        name: name("e"),
        place: leading,
        moved_from: waiting,
        session: c,
        token,
    };
    assert!(native.told.contains(&granted), "{:?}", native.told);
    assert_eq!(native.granted().len(), 1);
    native.expire(&[c]);
    assert_eq!(native.granted()[0].0, b);
}

/// K4: our own store rejects a write that carries an older token than one it has seen, and tells the two apart.
#[test]
fn k4_a_fence_lets_no_older_token_through() {
    let mut native = Native::new();
    let session = native.open();
    let (old, new) = native.two_tokens(session, "m");
    let fencing = |token| Fencing { fence: name("ledger"), token };
    let admit = |token| NativeOp::Admit(fencing(token));
    native.ask(session, admit(old)).unwrap();
    native.ask(session, admit(new)).unwrap();
    let revision = native.machine.state.revision();
    native.ask(session, admit(new)).unwrap();
    assert_eq!(native.machine.state.revision(), revision, "the same holder again changes nothing");
    assert_eq!(native.ask(session, admit(old)), Err(NativeError::Fenced { token: old, highest: new }));
    for token in [0, 1 << 40] {
        assert_eq!(native.ask(session, admit(token)), Err(NativeError::ForgedToken { token }));
    }
    let forget = NativeOp::Forget { kind: Kind::Fence, name: name("ledger") };
    assert_eq!(native.ask(session, forget), Err(NativeError::WrongKind));

    let add = |token| NativeOp::Add { name: name("n"), delta: 5, fencing: Some(fencing(token)) };
    assert_eq!(native.ask(session, add(old)), Err(NativeError::Fenced { token: old, highest: new }));
    assert_eq!(native.ask(session, add(new)), Ok(NativeAnswer::Counter { before: 0, after: 5 }));
    let set = |token| NativeOp::CompareAndSet { name: name("n"), expected: 5, value: 9, fencing: Some(fencing(token)) };
    assert_eq!(native.ask(session, set(old)), Err(NativeError::Fenced { token: old, highest: new }));
    assert_eq!(native.ask(session, set(1 << 40)), Err(NativeError::ForgedToken { token: 1 << 40 }));
    assert_eq!(native.ask(session, set(new)), Ok(NativeAnswer::Counter { before: 5, after: 9 }));
}

/// K4: inside a transaction the token decides which branch is taken, and a write that was let through is remembered.
#[test]
fn k4_a_transaction_is_fenced_by_a_token() {
    let mut native = Native::new();
    let session = native.open();
    let (old, new) = native.two_tokens(session, "m");
    let fenced = |token, value: &str| {
        let fencing = Fencing { fence: name("ledger"), token };
        txn(vec![Compare::admits(&fencing)], vec![put("balance", value)], vec![])
    };
    let machine = &mut native.machine;
    let succeeded = |answer| matches!(answer, OpAnswer::Txn { succeeded: true, .. });
    assert!(succeeded(machine.done(fenced(new, "new"))));
    assert!(!succeeded(machine.done(fenced(old, "old"))), "a paused holder wakes up");
    assert!(succeeded(machine.done(fenced(new, "newer"))));
    assert!(!succeeded(machine.done(fenced(u64::MAX, "forged"))));
    assert!(!succeeded(machine.done(fenced(0, "forged"))));
    // A condition that fails beside it leaves the fence as it was.
    let (_, third) = native.place(session, exclusive("m"));
    let machine = &mut native.machine;
    let fencing = Fencing { fence: name("ledger"), token: third };
    let both = txn(vec![Compare::admits(&fencing), if_version("balance", 9)], vec![], vec![]);
    assert!(!succeeded(machine.done(both)));
    assert!(succeeded(machine.done(fenced(new, "still"))));
    // Not a fence: never lets through. Not a write: not a read either.
    let mut elsewhere = Compare::admits(&fencing);
    elsewhere.range = crate::testing::everything();
    assert!(!succeeded(machine.done(txn(vec![elsewhere], vec![], vec![]))));
    let read = txn(vec![Compare::admits(&fencing)], vec![], vec![]);
    assert_eq!(machine.state.read_op(&all_of(vec![read])), Err(Refusal::READ_MUST_NOT_WRITE));
}

/// O1, numbers for ids: a block is nobody else's, an overflow is refused, a lost race is told.
#[test]
fn o1_counters_add_compare_and_hand_out_blocks() {
    let mut native = Native::new();
    let session = native.open();
    let add = |delta| NativeOp::Add { name: name("n"), delta, fencing: None };
    assert_eq!(native.ask(session, add(100)), Ok(NativeAnswer::Counter { before: 0, after: 100 }));
    assert_eq!(native.ask(session, add(100)), Ok(NativeAnswer::Counter { before: 100, after: 200 }));
    let set = |expected, value| NativeOp::CompareAndSet { name: name("n"), expected, value, fencing: None };
    assert_eq!(native.ask(session, set(100, 1)), Err(NativeError::Mismatch { actual: 200 }));
    assert_eq!(native.ask(session, set(200, i64::MAX)), Ok(NativeAnswer::Counter { before: 200, after: i64::MAX }));
    assert_eq!(native.ask(session, add(1)), Err(NativeError::Overflow));
    let forget = NativeOp::Forget { kind: Kind::Counter, name: name("n") };
    native.ask(session, forget).unwrap();
    assert_eq!(native.ask(session, add(1)), Ok(NativeAnswer::Counter { before: 0, after: 1 }));
}

/// A session with thousands of places in one queue must not have all of them walked over for every token that it shows:
/// its requests would hold up everybody's, on every member.
#[test]
fn l8_a_token_is_found_in_so_many_steps_however_many_places_its_session_has() {
    let mut taken = Vec::new();
    for places in [10, NATIVE_HOLDINGS_MAX] {
        let mut native = Native::new();
        let reader = native.open();
        let tokens = native.tokens_after_a_wait(reader, "m", places);
        let (last, middle) = (tokens[places - 1], tokens[places / 2]);
        let renew = |token| NativeOp::Renew { kind: Kind::Lock, name: name("m"), token, ttl_ms: 0 };
        let downgrade = |token| NativeOp::Downgrade { name: name("m"), token };
        let mut steps_of = |op| {
            let (steps, answer) = steps::of(|| native.ask(reader, op));
            (steps, answer.is_ok())
        };
        let asked = [
            (steps_of(renew(last)), true),
            (steps_of(renew(last + 1)), false),
            (steps_of(downgrade(last)), true),
            (steps_of(release(Kind::Lock, "m", middle)), true),
            (steps_of(release(Kind::Lock, "m", last)), true),
        ];
        taken.push(asked.map(|((steps, is_done), expected)| {
            assert_eq!(is_done, expected);
            steps
        }));
    }
    // Fourteen halvings, each of which goes down the tree; to walk would be ten thousand steps.
    for (few, many) in taken[0].iter().zip(taken[1]) {
        assert!(many < few + 5_000, "{taken:?}");
    }
}

/// Who holds much in one queue, beside others, must find each of its tokens whatever it gave back before: a token that is
/// not found is a lock that is never released.
#[test]
fn every_token_of_a_session_with_many_places_is_found_in_any_order() {
    let mut native = Native::new();
    let (reader, other) = (native.open(), native.open());
    let (writer, token) = (other, native.place(other, exclusive("m")).1);
    for at in 0..300 {
        let who = if at % 7 == 3 { other } else { reader };
        native.place(who, shared("m"));
    }
    native.ask(writer, release(Kind::Lock, "m", token)).unwrap();
    let mut held = native.granted();
    // One that was granted at once, and one that waits.
    held.push((reader, native.place(reader, shared("m")).1));
    native.place(other, exclusive("m"));
    native.place(reader, shared("m"));
    let tokens: Vec<u64> = held.iter().map(|(_, token)| *token).collect();
    for turn in 0..tokens.len() {
        // 301 places, and a stride that meets each of them once.
        let (who, token) = held[turn * 100 % held.len()];
        let stranger = if who == reader { other } else { reader };
        let is_first = native.describe(Kind::Lock, "m").members[0].queued.as_ref().unwrap().token == token;
        let refused = if is_first { NativeError::NotHolder { token } } else { NativeError::StaleToken { token } };
        assert_eq!(native.ask(stranger, release(Kind::Lock, "m", token)), Err(refused));
        assert_eq!(native.ask(who, release(Kind::Lock, "m", token)), Ok(NativeAnswer::Left { token }));
        assert_eq!(native.ask(who, release(Kind::Lock, "m", token)), Err(NativeError::StaleToken { token }));
    }
    assert_eq!(native.describe(Kind::Lock, "m").count, 2, "the writer that is let in, and the reader behind it");
}

/// Who pages through a long queue holds up writers for as long as it is read to: a page at its end must cost what one at
/// its front does.
#[test]
fn a_page_of_a_long_queue_costs_the_same_wherever_it_begins() {
    let mut native = Native::new();
    let reader = native.open();
    let tokens = native.tokens_after_a_wait(reader, "m", NATIVE_HOLDINGS_MAX);
    let page = |skip: u64, limit| {
        let query = NativeQuery::Describe { kind: Kind::Lock, name: name("m"), skip, limit };
        let (steps, found) = steps::of(|| native.read(query));
        let NativeFound::Object(found) = found else { panic!("{found:?}") };
        let tokens = found.members.iter().map(|member| member.queued.as_ref().unwrap().token);
        (steps, tokens.collect::<Vec<_>>())
    };
    let (first, shown) = page(0, 10);
    assert_eq!(shown, tokens[..10]);
    let (last, shown) = page(NATIVE_HOLDINGS_MAX as u64 - 10, 20);
    assert_eq!(shown, tokens[NATIVE_HOLDINGS_MAX - 10..]);
    assert!(last < first + 1_000, "{first} {last}");
    for beyond in [NATIVE_HOLDINGS_MAX as u64, u64::MAX] {
        assert_eq!(page(beyond, 10).1, []);
    }
}

/// Ten thousand waiters must cost a hand-over no more than ten: what is looked at may only grow with the logarithm,
/// and one is told (L8). The same for one that gives up in the middle, and for one that dies.
#[test]
fn l8_a_hand_over_costs_the_same_however_many_wait() {
    let mut taken = Vec::new();
    for waiters in [10u64, 10_000] {
        let mut native = Native::new();
        let (holder, crowd, dying) = (native.open(), native.open(), native.open());
        let (_, token) = native.place(holder, exclusive("m"));
        let mut middle = 0;
        for at in 0..waiters - 1 {
            let who = if at == waiters / 3 { dying } else { crowd };
            let (place, _) = native.place(who, exclusive("m"));
            middle = if at == waiters / 2 { place } else { middle };
        }
        let (gave_up, answer) = steps::of(|| native.ask(crowd, give_up(Kind::Lock, "m", middle)));
        assert_eq!((answer, native.told.len()), (Ok(NativeAnswer::Left { token: 0 }), 1));
        let (died, _) = steps::of(|| native.expire(&[dying]));
        assert_eq!(native.told.len(), 1);
        let (released, answer) = steps::of(|| native.ask(holder, release(Kind::Lock, "m", token)));
        assert_eq!((answer, native.granted().len()), (Ok(NativeAnswer::Left { token }), 1));
        taken.push([gave_up, died, released]);
    }
    // Each lookup may meet one or two levels more, of up to 64 elements each.
    for (few, many) in taken[0].iter().zip(taken[1]) {
        assert!(many < few + 4_000, "{taken:?}");
    }
}
