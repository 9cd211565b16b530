//! What is given back is given back, however long that takes; and what is asked for under too much work is had in the end.

use super::fake::NAME;
use super::*;

/// The number of `LINE_MAX`, and some.
const MORE_THAN_THE_LINE: u64 = 70_000;

impl Pair {
    /// Held by this session, one for each name.
    fn holding(names: &[String]) -> Pair {
        let mut pair = Pair::open();
        for (name, ticket) in names.iter().zip(1..) {
            pair.ask(ticket, acquire_of(name));
        }
        pair.settle();
        assert_eq!(pair.held.len(), names.len());
        pair
    }
}

fn names(count: u32) -> Vec<String> {
    (0..count).map(|number| format!("e{number}")).collect()
}

/// B1: a session that dies held many things. All who are next get theirs under one number, and each must be told.
#[test]
fn many_grants_under_one_token_are_many_grants() {
    let names = names(50);
    let mut pair = Pair::open();
    for (name, ticket) in names.iter().zip(1..) {
        pair.cluster.stranger_enters(name);
        pair.ask(ticket, acquire_of(name));
    }
    pair.settle();
    pair.cluster.strangers_die();
    pair.settle();
    assert_eq!((pair.held.len(), pair.cluster.ours()), (50, 50));
    assert!(pair.held.iter().all(|(_, token, _)| *token == pair.held[0].1));
    // One that is given back is not all of them.
    pair.drop_held(0);
    pair.cut_and_come_back();
    assert_eq!((pair.held.len(), pair.cluster.ours()), (49, 49));
}

impl Pair {
    fn cut_and_come_back(&mut self) {
        self.disconnect();
        self.connect();
        self.settle();
    }
}

/// A release that could not be sent in time is an error to who waits for it; what it gives back must not stay held by
/// nobody for as long as the program runs.
#[test]
fn a_release_that_is_late_in_line_is_carried_out_all_the_same() {
    let mut pair = Pair::holding(&[NAME.to_owned()]);
    pair.disconnect();
    pair.release(2, 0);
    pair.pass(6);
    assert_eq!(pair.failure_of(2), Some(&Error::Unknown { waited: PATIENCE }));
    pair.connect();
    pair.settle();
    assert_eq!(pair.cluster.ours(), 0);
}

/// A cluster with too much to do refuses without doing anything. What gives back is asked again for as long as the session
/// lives, and who waits for the answer is told in time that it is not known when.
#[test]
fn what_is_given_back_to_an_overloaded_cluster_is_given_back_in_the_end() {
    let mut pair = Pair::holding(&["a".to_owned(), "b".to_owned(), "c".to_owned()]);
    pair.cluster.stranger_enters("d");
    pair.ask(4, acquire_of("d"));
    pair.settle();
    pair.cluster.overloaded = 40;
    pair.drop_held(0);
    pair.release(5, 0);
    pair.abandon(4);
    for _ in 0..6 {
        pair.settle();
        pair.pass(1);
    }
    assert_eq!(pair.failure_of(5), Some(&Error::Unknown { waited: PATIENCE }));
    assert_eq!(pair.cluster.ours(), 4);
    for _ in 0..40 {
        pair.settle();
        pair.pass(1);
    }
    assert_eq!((pair.cluster.ours(), pair.over.as_ref()), (1, None));
}

/// Whoever asks for something while the cluster has too much to do gets it when it has less, within its patience; and is
/// told that nothing happened if it never has.
#[test]
fn what_is_asked_of_an_overloaded_cluster_is_asked_again_within_its_patience() {
    let mut pair = Pair::open();
    pair.cluster.overloaded = 5;
    pair.ask(1, acquire());
    for _ in 0..60 {
        pair.settle();
        pair.pass_a_moment();
    }
    pair.settle();
    assert_eq!((pair.held.len(), pair.cluster.carried_out), (1, 1));
    pair.cluster.overloaded = u32::MAX;
    pair.ask(2, add());
    for _ in 0..100 {
        pair.settle();
        pair.pass_a_moment();
    }
    assert_eq!(pair.failure_of(2).and_then(Error::code), Some(Code::Bounded));
    // Pauses grow: a hundred tries in six seconds would keep it overloaded.
    assert!(u32::MAX - pair.cluster.overloaded < 20, "{}", u32::MAX - pair.cluster.overloaded);
    assert_eq!(pair.cluster.carried_out, 1);
}

/// H25: whoever is told that nothing happened asks anew, under another number. If the first were sent once more as soon as
/// the cluster can, a counter would count twice.
#[test]
fn what_is_said_not_to_have_happened_does_not_happen_afterwards() {
    for is_overloaded in [true, false] {
        let mut pair = Pair::open();
        match is_overloaded {
            true => pair.cluster.overloaded = u32::MAX,
            false => pair.cluster.unavailable = u32::MAX,
        }
        pair.ask(1, add());
        // Until it waits to be asked again while its caller's patience ends.
        for _ in 0..100 {
            pair.settle();
            pair.pass_a_moment();
        }
        let told = pair.failure_of(1).unwrap();
        assert!(matches!(told, Error::Refused(_) | Error::Failed(Failure::Unreachable(_))), "{told:?}");
        (pair.cluster.overloaded, pair.cluster.unavailable) = (0, 0);
        for _ in 0..100 {
            pair.settle();
            pair.pass_a_moment();
        }
        assert_eq!((pair.cluster.carried_out, pair.session.requests.is_empty()), (0, true));
        pair.ask(2, add());
        pair.settle();
        assert_eq!((pair.cluster.carried_out, pair.told.contains(&2)), (1, true), "its number is not missed");
        // Nothing is left that closing would wait for.
        pair.input(|session, _, out| session.close(out));
        assert_eq!(pair.over, Some(Failure::Closed.into()));
    }
}

/// As above, but its first answer got lost: it may have been carried out, so it is asked to the end, and nobody is told
/// that nothing happened.
#[test]
fn what_may_have_happened_is_unknown_although_the_cluster_has_too_much_to_do_now() {
    let mut pair = Pair::open();
    pair.ask(1, add());
    pair.carry_to_cluster();
    pair.cluster.overloaded = u32::MAX;
    pair.cut_and_come_back();
    for _ in 0..100 {
        pair.settle();
        pair.pass_a_moment();
    }
    assert_eq!(pair.failure_of(1), Some(&Error::Unknown { waited: PATIENCE }));
    pair.cluster.overloaded = 0;
    pair.pass(1);
    pair.settle();
    assert_eq!((pair.cluster.carried_out, pair.session.requests.is_empty()), (1, true));
}

/// A program that asks too fast is refused; what it has must be taken back all the same.
#[test]
fn what_is_given_back_has_its_place_in_a_full_line() {
    let mut pair = Pair::holding(&["a".to_owned(), "b".to_owned()]);
    pair.disconnect();
    for ticket in 10..10 + MORE_THAN_THE_LINE {
        pair.ask(ticket, add());
    }
    assert!(pair.failed.iter().any(|(_, error)| *error == Failure::Overloaded.into()));
    pair.drop_held(0);
    pair.release(3, 0);
    assert_eq!(pair.failure_of(3), None);
    pair.pass(6);
    pair.connect();
    pair.settle();
    assert_eq!(pair.cluster.ours(), 0);
}

/// "Somebody else has it" and "nobody can be reached" lead to different actions, also for who wants to wait less long than
/// answers are waited for.
#[test]
fn who_stood_in_line_in_vain_is_told_apart_from_who_reached_nobody() {
    let wait = Some(Duration::from_secs(2));
    let mut pair = Pair::open();
    pair.cluster.stranger_enters(NAME);
    pair.ask_within(1, acquire(), wait);
    pair.settle();
    pair.pass(1);
    assert_eq!(pair.failure_of(1), None);
    pair.pass(1);
    assert_eq!(pair.failure_of(1).and_then(Error::code), Some(Code::TimedOut));
    pair.settle();
    assert_eq!(pair.cluster.ours(), 0, "its place is given up");

    pair.cluster.unavailable = u32::MAX;
    pair.ask_within(2, acquire(), wait);
    pair.settle();
    pair.pass(2);
    assert!(matches!(pair.failure_of(2), Some(Error::Failed(Failure::Unreachable(_)))), "{:?}", pair.failure_of(2));

    // An answer is waited for a second at least, or a busy cluster would look like none.
    let mut pair = Pair::open();
    pair.cluster.stranger_enters(NAME);
    pair.ask_within(1, acquire(), Some(Duration::from_millis(1)));
    pair.pass_a_moment();
    assert_eq!(pair.failure_of(1), None);
    pair.settle();
    pair.pass_a_moment();
    assert_eq!(pair.failure_of(1).and_then(Error::code), Some(Code::TimedOut));
}
