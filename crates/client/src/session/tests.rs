//! A session against a small cluster of some elections that lives in memory: what is dropped leaves nothing behind, what
//! is late is lost, what is asked again happens once.

mod any_point;
mod fake;
mod give_back;
mod nodes;

use std::collections::{BTreeMap, BTreeSet};

use tidelock_native_api::v1::{self, answer::Answer, request::Op};

use super::{Output, Session, Ticket, Wish};
use crate::clock::Moment;
use crate::error::{Code, Error, Failure, Loss, Refusal};
use fake::{Fake, NAME};
use std::time::Duration;

const TTL: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(5);

fn at(seconds: u64) -> Moment {
    Moment::from_nanos(seconds * 1_000_000_000)
}

fn acquire() -> Op {
    acquire_of(NAME)
}

fn acquire_of(name: &str) -> Op {
    Op::Campaign(v1::Campaign { name: name.into(), ..Default::default() })
}

fn add() -> Op {
    Op::Add(v1::Add { name: "n".into(), delta: 1, fencing: None })
}

/// A session, the cluster it talks to, and what its program was told.
struct Pair {
    session: Session,
    cluster: Fake,
    now: Moment,
    connected: bool,
    held: Vec<(Ticket, u64, Op)>,
    failed: Vec<(Ticket, Error)>,
    /// May be asked in another session.
    not_asked: Vec<Ticket>,
    over: Option<Error>,
    valid_until: Moment,
    /// Nothing is sent to who left the node.
    left_node: bool,
    told: BTreeSet<Ticket>,
}

impl Pair {
    fn new() -> Pair {
        Pair {
            session: Session::new(1, TTL, 77),
            cluster: Fake::new(),
            now: at(100),
            connected: false,
            held: Vec::new(),
            failed: Vec::new(),
            not_asked: Vec::new(),
            over: None,
            valid_until: at(0),
            left_node: false,
            told: BTreeSet::new(),
        }
    }

    /// Opened and connected at second 100.
    fn open() -> Pair {
        let mut pair = Pair::new();
        pair.connect();
        pair.settle();
        pair
    }

    fn input(&mut self, input: impl FnOnce(&mut Session, Moment, &mut Vec<Output>)) {
        let mut out = Vec::new();
        input(&mut self.session, self.now, &mut out);
        self.outputs(out);
    }

    fn outputs(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send(message) if self.connected => self.cluster.inbox.push_back(message),
                Output::Send(_) => panic!("sent without a connection"),
                Output::Answered { ticket, answer, undo, .. } => {
                    assert!(self.told.insert(ticket), "ticket {ticket} was answered twice");
                    if let (Answer::Place(place), Some(undo)) = (answer, undo) {
                        assert_ne!(place.token, 0, "a place that waits is not an answer");
                        self.held.push((ticket, place.token, undo));
                    }
                }
                Output::Failed { ticket, error } => {
                    assert!(self.told.insert(ticket), "ticket {ticket} was answered twice");
                    self.failed.push((ticket, error));
                }
                Output::NotAsked { ticket, .. } => {
                    assert!(self.told.insert(ticket), "ticket {ticket} was answered twice");
                    self.not_asked.push(ticket);
                }
                Output::Valid { until, .. } => self.valid_until = until,
                Output::Over { error, .. } => self.over = Some(error),
                Output::AskHoldings { .. } => {
                    let (holdings, revision) = (self.cluster.holdings(), self.cluster.revision);
                    let mut out = Vec::new();
                    self.session.holdings(&holdings, revision, self.now, &mut out);
                    self.outputs(out);
                }
                Output::LeaveNode => self.left_node = true,
                Output::Opened { .. } => {}
            }
        }
    }

    fn ask(&mut self, ticket: Ticket, op: Op) {
        self.ask_within(ticket, op, None);
    }

    /// A grant is waited for at most that long.
    fn ask_within(&mut self, ticket: Ticket, op: Op, wait: Option<Duration>) {
        let wish = Wish { op, ticket: Some(ticket), consumes: None, patience: PATIENCE, wait };
        self.input(|session, now, out| session.ask(wish, now, out));
    }

    fn abandon(&mut self, ticket: Ticket) {
        self.input(|session, now, out| session.abandon(ticket, now, out));
    }

    fn drop_held(&mut self, which: usize) {
        let (ticket, _, undo) = self.held.remove(which);
        self.input(|session, now, out| session.undo(ticket, undo, now, out));
    }

    /// Gives something back, and waits for the answer.
    fn release(&mut self, ticket: Ticket, which: usize) {
        let (held, _, op) = self.held.remove(which);
        let wish = Wish { op, ticket: Some(ticket), consumes: Some(held), patience: PATIENCE, wait: None };
        self.input(|session, now, out| session.ask(wish, now, out));
    }

    fn connect(&mut self) {
        if !self.connected {
            self.connected = true;
            self.input(Session::connected);
        }
    }

    fn disconnect(&mut self) {
        self.connected = false;
        self.cluster.cut_off();
        self.session.disconnected();
    }

    fn carry_to_cluster(&mut self) {
        self.cluster.take_one();
    }

    fn carry_to_client(&mut self) {
        use v1::to_client::Message;
        let Some(message) = self.cluster.outbox.pop_front() else { return };
        self.input(|session, now, out| match message {
            Message::Opened(reply) => session.opened(&reply, now, out),
            Message::Reply(reply) => session.replied(reply, now, out),
            Message::Attached(attached) => session.attached(&attached, now, out),
            Message::KeptAlive(kept) => session.kept_alive(kept, now, out),
            Message::Closed(reply) => session.closed(&reply, now),
            Message::Lost(lost) => session.lost(lost.reason(), out),
            Message::Notice(v1::Notice { revision, notice: Some(v1::notice::Notice::Granted(granted)) }) => {
                session.granted(&granted, revision, now, out);
            }
            other => panic!("nothing else comes: {other:?}"),
        });
    }

    /// Lets everything arrive that is on its way.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.cluster.is_idle() {
                return;
            }
            self.carry_to_cluster();
            self.carry_to_client();
        }
        panic!("it never comes to rest");
    }

    fn pass(&mut self, seconds: u64) {
        self.now = self.now + Duration::from_secs(seconds);
        self.input(Session::tick);
    }

    /// Little enough that nothing is late by it.
    fn pass_a_moment(&mut self) {
        self.now = self.now + Duration::from_millis(60);
        self.input(Session::tick);
    }

    fn failure_of(&self, ticket: Ticket) -> Option<&Error> {
        self.failed.iter().find(|(failed, _)| *failed == ticket).map(|(_, error)| error)
    }
}

/// The everyday case, and that the token is the cluster's.
#[test]
fn a_free_lock_is_had_and_given_back() {
    let mut pair = Pair::open();
    pair.ask(1, acquire());
    pair.settle();
    assert_eq!(pair.cluster.queue().len(), 1);
    assert_eq!(pair.held[0].1, pair.cluster.queue()[0].token);
    pair.drop_held(0);
    pair.settle();
    assert!(pair.cluster.queue().is_empty());
}

/// Somebody who stops waiting must not keep those behind it waiting.
#[test]
fn an_abandoned_waiter_leaves_the_queue_whether_or_not_its_place_is_known() {
    for known in [false, true] {
        let mut pair = Pair::open();
        pair.cluster.stranger_enters(NAME);
        pair.ask(1, acquire());
        pair.carry_to_cluster();
        if known {
            pair.settle();
        }
        assert_eq!(pair.cluster.queue().len(), 2);
        pair.abandon(1);
        pair.settle();
        assert_eq!(pair.cluster.ours(), 0, "known: {known}");
        assert!(pair.held.is_empty());
    }
}

/// The grant that crosses the giving up is nobody's: it must go on to the next.
#[test]
fn a_grant_that_crosses_the_giving_up_is_given_back() {
    let mut pair = Pair::open();
    pair.cluster.stranger_enters(NAME);
    pair.ask(1, acquire());
    pair.settle();
    pair.cluster.stranger_leaves(NAME);
    assert_eq!(pair.cluster.ours(), 1);
    pair.abandon(1);
    pair.settle();
    assert_eq!(pair.cluster.ours(), 0);
}

/// A password that was changed shuts the door on who waits in a queue: it must be told, and its place must not be kept
/// from others once the door opens again. What is held is held until its time is over, and no longer.
#[test]
fn who_waits_is_told_when_nobody_lets_the_client_in_any_more() {
    let denied = || Error::Refused(Refusal { code: Code::Denied, message: "no".into(), numbers: BTreeMap::new() });
    let mut pair = Pair::open();
    pair.ask(1, acquire());
    pair.settle();
    pair.ask(2, acquire());
    pair.settle();
    pair.ask(3, add());
    pair.carry_to_cluster();
    pair.disconnect();
    pair.ask(4, add());
    pair.input(|session, now, out| session.refused(&denied(), now, out));
    assert_eq!((pair.failure_of(2), pair.failure_of(4)), (Some(&denied()), Some(&denied())));
    assert_eq!(pair.failure_of(3), None, "it may have happened");
    assert_eq!((pair.held.len(), pair.over.as_ref()), (1, None));
    pair.connect();
    pair.settle();
    assert_eq!((pair.cluster.ours(), pair.told.contains(&3)), (1, true));
    pair.disconnect();
    pair.pass(24);
    assert_eq!(pair.over, Some(Loss::Expired.into()));

    let mut pair = Pair::new();
    pair.ask(1, acquire());
    pair.input(|session, now, out| session.refused(&denied(), now, out));
    assert_eq!((pair.failure_of(1), pair.over.clone()), (Some(&denied()), Some(denied())));

    // Sent, and not carried out: told that it was refused it must not be carried out once the door opens again.
    let mut pair = Pair::open();
    pair.cluster.unavailable = 1;
    pair.ask(1, add());
    pair.settle();
    pair.disconnect();
    pair.input(|session, now, out| session.refused(&denied(), now, out));
    assert_eq!(pair.failure_of(1), Some(&denied()));
    pair.connect();
    pair.settle();
    assert_eq!((pair.cluster.carried_out, pair.session.requests.is_empty()), (0, true));
}

/// H25: the answer got lost with the connection. Asking again must find the same place, not take a second one.
#[test]
fn a_request_asked_again_on_another_connection_takes_one_place() {
    let mut pair = Pair::open();
    pair.ask(1, acquire());
    pair.carry_to_cluster();
    pair.disconnect();
    pair.connect();
    pair.settle();
    assert_eq!((pair.cluster.queue().len(), pair.held.len()), (1, 1));
    assert_eq!(pair.cluster.carried_out, 1);
}

/// A first answer is old news: "waits", although it was granted since, and that was told to nobody.
#[test]
fn a_grant_missed_while_disconnected_is_told_on_the_next_connection() {
    let mut pair = Pair::open();
    pair.cluster.stranger_enters(NAME);
    pair.ask(1, acquire());
    pair.carry_to_cluster();
    pair.disconnect();
    pair.cluster.stranger_leaves(NAME);
    pair.connect();
    pair.settle();
    assert_eq!(pair.held.len(), 1);
}

/// The answer to another request may overtake what was missed. Who loses the connection between the two must be told of
/// the grant on the next one: it holds the lock and does not know, and everybody waits.
#[test]
fn a_grant_that_an_answer_overtook_is_told_after_another_loss_of_the_connection() {
    let mut pair = Pair::open();
    pair.cluster.stranger_enters(NAME);
    pair.ask(1, acquire());
    pair.settle();
    pair.disconnect();
    pair.cluster.stranger_leaves(NAME);
    pair.connect();
    pair.ask(2, add());
    while !pair.told.contains(&2) {
        pair.carry_to_cluster();
        pair.carry_to_client();
    }
    assert!(!pair.told.contains(&1), "the answer came first");
    pair.disconnect();
    pair.connect();
    pair.settle();
    assert_eq!(pair.held.len(), 1);
}

/// The same when the cluster does not know any more what was missed.
#[test]
fn a_grant_missed_before_a_compaction_is_found_by_asking_what_is_held() {
    let mut pair = Pair::open();
    pair.cluster.stranger_enters(NAME);
    pair.ask(1, acquire());
    pair.settle();
    pair.disconnect();
    pair.cluster.stranger_leaves(NAME);
    pair.cluster.compact();
    pair.connect();
    pair.settle();
    assert_eq!(pair.held.len(), 1);
}

/// K6: a lock that could not be renewed is lost before the cluster gives it away, and stays lost even if a renewal
/// comes through after all: somebody may have been told.
#[test]
fn what_was_not_renewed_in_time_is_lost_for_good() {
    let mut pair = Pair::open();
    pair.ask(1, acquire());
    pair.settle();
    pair.disconnect();
    pair.pass(23);
    assert_eq!(pair.over, None);
    assert!(pair.now < pair.valid_until);
    pair.connect();
    pair.pass(2);
    assert!(pair.now >= pair.valid_until);
    assert_eq!(pair.over, Some(Loss::Expired.into()));
    // The renewal was on its way and is acknowledged now.
    pair.settle();
    assert_eq!(pair.over, Some(Loss::Expired.into()));
    pair.ask(2, acquire());
    assert_eq!(pair.not_asked, [2], "it is asked in another session");
}

/// L12: at 0.8 of the time to live the program is told to stop, and has the rest of it. A client that ended its session at
/// once would let the next one in while the program still stops: two under one exclusive lock. Only who says that
/// everything has stopped lets the next one in before its time.
#[test]
fn a_session_that_ran_out_is_left_to_the_cluster_unless_the_program_is_done() {
    for is_closed in [false, true] {
        let mut pair = Pair::open();
        pair.ask(1, acquire());
        pair.settle();
        // The connection stands; what is renewed does not arrive.
        pair.pass(24);
        assert_eq!(pair.over, Some(Loss::Expired.into()));
        pair.settle();
        assert_eq!((pair.cluster.is_closed, pair.cluster.ours()), (false, 1));
        pair.disconnect();
        pair.connect();
        pair.settle();
        assert_eq!((pair.cluster.is_closed, pair.cluster.ours()), (false, 1), "nor on the next connection");
        if is_closed {
            pair.input(|session, _, out| session.close(out));
            pair.settle();
        }
        pair.pass(29);
        assert_eq!(pair.session.is_done(), is_closed);
        // By now the cluster has ended it by itself.
        pair.pass(1);
        pair.settle();
        assert_eq!((pair.session.is_done(), pair.cluster.is_closed), (true, is_closed));
    }

    // Said while there is no connection, it is done on the next one.
    let mut pair = Pair::open();
    pair.ask(1, acquire());
    pair.settle();
    pair.disconnect();
    pair.pass(24);
    pair.input(|session, _, out| session.close(out));
    pair.connect();
    pair.settle();
    assert_eq!((pair.session.is_done(), pair.cluster.is_closed, pair.cluster.ours()), (true, true, 0));
}

/// Who only waits holds nothing that could be relied on too long, and keeps its place through an outage.
#[test]
fn a_waiter_keeps_its_place_through_an_outage() {
    let mut pair = Pair::open();
    pair.cluster.stranger_enters(NAME);
    pair.ask(1, acquire());
    pair.settle();
    pair.disconnect();
    pair.pass(28);
    pair.connect();
    pair.settle();
    assert_eq!(pair.over, None);
    pair.cluster.stranger_leaves(NAME);
    pair.settle();
    assert_eq!(pair.held.len(), 1);
}

/// A waiter whose session is over must be told, not wait for ever.
#[test]
fn who_waits_is_told_when_the_session_ends() {
    let mut pair = Pair::open();
    pair.cluster.stranger_enters(NAME);
    pair.ask(1, acquire());
    pair.settle();
    pair.cluster.end_session();
    pair.settle();
    assert_eq!(pair.failure_of(1), Some(&Loss::SessionEnded.into()));
    assert_eq!(pair.over, Some(Loss::SessionEnded.into()));
}

/// Renewals go out every third of the time to live; a node that leaves one unanswered is left.
#[test]
fn a_session_is_renewed_and_a_silent_node_is_left() {
    let mut pair = Pair::open();
    pair.pass(9);
    assert!(pair.cluster.inbox.is_empty());
    pair.pass(1);
    assert_eq!(pair.cluster.inbox.len(), 1);
    pair.settle();
    assert_eq!(pair.valid_until, at(100 + 10 + 24));
    pair.pass(10);
    pair.pass(4);
    assert!(!pair.left_node);
    pair.pass(1);
    assert!(pair.left_node);
}

/// "It did not happen" and "nobody knows" are different things to a program that counts money.
#[test]
fn what_was_never_sent_failed_and_what_was_sent_is_unknown() {
    let mut pair = Pair::open();
    pair.ask(1, add());
    pair.disconnect();
    pair.ask(2, add());
    pair.pass(6);
    assert_eq!(pair.failure_of(1), Some(&Error::Unknown { waited: PATIENCE }));
    assert!(matches!(pair.failure_of(2), Some(Error::Failed(Failure::Unreachable(_)))));
    // The one that was sent is asked again, so that it happens once; nobody is told any more.
    pair.connect();
    pair.settle();
    assert_eq!(pair.cluster.carried_out, 1);
}

/// What a session that ends had under way: a lock is gone with it, a count may have been made.
#[test]
fn a_session_that_ends_leaves_counts_unknown_and_locks_lost() {
    let mut pair = Pair::open();
    pair.ask(1, add());
    pair.ask(2, acquire());
    pair.cluster.end_session();
    pair.carry_to_client();
    assert_eq!(pair.failure_of(1), Some(&Error::Unknown { waited: PATIENCE }));
    assert_eq!(pair.failure_of(2), Some(&Loss::SessionEnded.into()));
}

/// A node without a leader says so; the request is asked again by itself, under its number.
#[test]
fn a_request_that_could_not_be_carried_out_is_asked_again() {
    let mut pair = Pair::open();
    pair.cluster.unavailable = 2;
    pair.ask(1, acquire());
    for _ in 0..3 {
        pair.settle();
        pair.pass(1);
    }
    pair.settle();
    assert_eq!((pair.held.len(), pair.cluster.carried_out), (1, 1));
}

/// A leader names its successor: the place is another one then, and giving up the old one finds nothing.
#[test]
fn a_place_that_was_moved_is_given_back_by_its_token() {
    let mut pair = Pair::open();
    pair.cluster.stranger_enters(NAME);
    pair.ask(1, acquire());
    pair.settle();
    pair.cluster.stranger_names_us(NAME);
    pair.abandon(1);
    pair.settle();
    assert_eq!(pair.cluster.ours(), 0);
}

/// Everything is given back when the client goes, and nothing is closed before that.
#[test]
fn closing_waits_for_what_is_under_way_and_then_closes() {
    let mut pair = Pair::open();
    pair.ask(1, acquire());
    pair.carry_to_cluster();
    pair.abandon(1);
    pair.input(|session, _, out| session.close(out));
    assert_eq!(pair.over, None);
    pair.settle();
    assert_eq!(pair.over, Some(Failure::Closed.into()));
    assert!(pair.session.is_done());
    assert!(pair.cluster.is_closed);
}
