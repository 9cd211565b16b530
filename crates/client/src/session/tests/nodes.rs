//! Nodes that can do nothing, and sessions that were over before anybody noticed.

use super::fake::NAME;
use super::*;

impl Pair {
    /// Lets time pass in small steps, with everything arriving, until the node is left; how long that took.
    fn until_left(&mut self) -> Duration {
        let since = self.now;
        for _ in 0..1000 {
            if std::mem::take(&mut self.left_node) {
                return since.until(self.now);
            }
            self.pass_a_moment();
            self.settle();
        }
        panic!("it stays for ever");
    }
}

/// A node that is cut off from the others answers "no leader" for as long as that lasts. With other nodes to go to it must
/// not be asked for ever; and if none of them has a leader the client must not run from one to the next.
#[test]
fn a_node_without_a_leader_is_left_soon_and_then_less_and_less_often() {
    let mut pair = Pair::new();
    pair.cluster.has_no_leader = true;
    pair.ask(1, acquire());
    pair.connect();
    let mut stays = Vec::new();
    for _ in 0..5 {
        stays.push(pair.until_left().as_millis());
        pair.disconnect();
        pair.connect();
    }
    assert!((1000..1200).contains(&stays[0]), "{stays:?}");
    assert!(stays.windows(2).all(|pair| pair[1] >= pair[0]) && (8000..8200).contains(&stays[4]), "{stays:?}");
    pair.cluster.has_no_leader = false;
    pair.pass_a_moment();
    pair.settle();
    pair.ask(2, acquire());
    pair.settle();
    assert_eq!(pair.held.len(), 1);

    // The same in a session that is open: it is not silent, since it renews.
    pair.cluster.unavailable = u32::MAX;
    pair.ask(3, add());
    assert!(pair.until_left() < Duration::from_millis(1200));
    pair.cluster.unavailable = 0;
    pair.disconnect();
    pair.connect();
    pair.settle();
    for _ in 0..50 {
        pair.pass_a_moment();
        pair.settle();
    }
    assert!(!pair.left_node, "a node that works is not left");
}

/// Who slept for an hour and held nothing has lost nothing: what it asks then is asked in another session. But only what
/// was certainly not carried out in the old one, and only if nobody relied on that.
#[test]
fn what_is_asked_in_a_session_that_was_over_and_empty_may_be_asked_in_another() {
    let mut pair = Pair::open();
    pair.cluster.forget_session();
    pair.ask(1, add());
    pair.ask(2, add());
    pair.settle();
    assert_eq!(pair.not_asked, [1], "the second was out, and nobody knows");
    assert_eq!(pair.failure_of(2), Some(&Error::Unknown { waited: PATIENCE }));

    // In line while it was away.
    let mut pair = Pair::open();
    pair.disconnect();
    pair.cluster.forget_session();
    pair.pass(31);
    pair.ask(1, add());
    pair.connect();
    pair.settle();
    assert_eq!((pair.not_asked.len(), pair.cluster.carried_out), (1, 0));

    // Sent twice: the first may have been carried out.
    let mut pair = Pair::open();
    pair.ask(1, add());
    pair.carry_to_cluster();
    pair.disconnect();
    pair.cluster.forget_session();
    pair.connect();
    pair.settle();
    assert_eq!(pair.failure_of(1), Some(&Error::Unknown { waited: PATIENCE }));

    // Somebody relied on the session.
    let mut pair = Pair::open();
    pair.ask(1, acquire());
    pair.settle();
    pair.cluster.forget_session();
    pair.ask(2, acquire());
    pair.settle();
    assert_eq!(pair.failure_of(2), Some(&Loss::SessionEnded.into()));
}

/// A process that stood still for longer than its time to live finds the connection as it was. What it asks first was
/// certainly not carried out in the session that ended meanwhile, which held nothing: nobody has lost anything.
#[test]
fn who_stood_still_and_held_nothing_may_ask_in_another_session() {
    let mut pair = Pair::open();
    pair.now = pair.now + TTL + TTL;
    pair.cluster.end_session();
    pair.ask(1, acquire());
    pair.ask(2, add());
    assert!(pair.cluster.inbox.is_empty(), "nothing is sent before the session is known to live");
    pair.pass(0);
    pair.settle();
    assert_eq!((&pair.not_asked[..], &pair.failed[..]), (&[1, 2][..], &[][..]));

    // The end was told before it asked.
    pair.ask(3, acquire());
    assert_eq!(pair.not_asked, [1, 2, 3]);

    // One that was not carried out before, and waits to be asked again.
    let mut pair = Pair::open();
    pair.cluster.overloaded = 1;
    pair.ask_patiently(1, add());
    pair.settle();
    pair.now = pair.now + TTL;
    pair.cluster.end_session();
    pair.pass(0);
    pair.settle();
    assert_eq!((&pair.not_asked[..], &pair.failed[..]), (&[1][..], &[][..]));
}

/// The cluster may have been kinder, or slower, than the client reckons: then what was asked after the standstill is
/// carried out as soon as the session is renewed, once.
#[test]
fn who_stood_still_in_a_session_that_lives_is_served_once_it_is_renewed() {
    let mut pair = Pair::open();
    pair.cluster.overloaded = 1;
    pair.ask_patiently(1, add());
    pair.settle();
    pair.now = pair.now + Duration::from_secs(28);
    pair.ask(2, acquire());
    pair.pass(0);
    assert_eq!(pair.cluster.inbox.len(), 1, "the renewal");
    pair.settle();
    assert_eq!((pair.cluster.carried_out, pair.held.len(), pair.told.len()), (2, 1, 2));
    assert!(pair.now < pair.valid_until);
}

impl Pair {
    fn ask_patiently(&mut self, ticket: Ticket, op: Op) {
        let wish = Wish { op, ticket: Some(ticket), consumes: None, patience: 2 * TTL, wait: None };
        self.input(|session, now, out| session.ask(wish, now, out));
    }
}

/// A grant that is told before the first renewal after a long absence must not be taken for something that was held all
/// the while, and lost: the session lives, and all who wait in it would be thrown out.
#[test]
fn a_grant_after_a_long_absence_is_handed_over_once_the_session_is_known_to_live() {
    for is_abandoned in [false, true] {
        let mut pair = Pair::open();
        pair.cluster.stranger_enters(NAME);
        pair.ask(1, acquire());
        pair.settle();
        pair.disconnect();
        pair.cluster.stranger_leaves(NAME);
        pair.pass(27);
        pair.connect();
        // Attaching tells what was missed, and then that it is attached.
        pair.carry_to_cluster();
        pair.carry_to_cluster();
        pair.carry_to_client();
        pair.pass(0);
        assert_eq!((pair.held.len(), pair.over.as_ref()), (0, None), "nobody can rely on it yet");
        if is_abandoned {
            pair.abandon(1);
        }
        pair.settle();
        pair.pass(0);
        let expected = if is_abandoned { 0 } else { 1 };
        assert_eq!((pair.held.len(), pair.cluster.ours(), pair.over.as_ref()), (expected, expected, None));
        assert!(pair.now < pair.valid_until);
    }
}
