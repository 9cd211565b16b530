//! The native API: many parties of a phaser that go from phase to phase together.
//!
//! Sessions speak for some parties each, as processes do, and have some requests under way at a time. Every stream
//! observes the phaser, as clients do that wait. A phase is over when every arrival was answered and every stream was
//! told of the next one; a phase that ends twice, or with another number, ends the run.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tidelock_native_api::v1::{
    Arrive, CloseRequest, Kind, Notice, ObserveRequest, Register, Reply, Request, answer, from_client, notice, request,
    to_client,
};

use super::native_stream::{SILENCE_LIMIT, Streams, answer_of, message_of, opened};
use crate::histogram::Histogram;
use crate::lines::{Actor, Answer, Lines, Protocol, Tag, Turn};

/// Requests of one session under way; the server remembers up to 64 answers that were not acknowledged.
const UNDER_WAY_MAX: usize = 16;

/// What to set up.
#[derive(Clone, Copy, Debug)]
pub struct PhaserLoad<'a> {
    /// Where to connect to, once for each time it is named.
    pub addresses: &'a [SocketAddr],
    /// What the phaser is called. It must be new.
    pub name: &'a str,
    /// Sessions; they share the connections.
    pub sessions: usize,
    /// Parties; the sessions have an even share of them.
    pub parties: usize,
    /// Phasers below it that have an even share of the parties; zero: all are in the one.
    pub children: usize,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Phased {
    /// Of each phase: from the first arrival sent to the last answered, and every stream told.
    pub phases: Histogram,
    /// Arrivals of all phases.
    pub arrivals: u64,
    /// Bytes that came meanwhile.
    pub bytes: u64,
    /// How long it went on.
    pub elapsed: Duration,
}

/// Parties that are registered.
pub struct Parties {
    lines: Lines,
    work: Work,
}

impl Parties {
    /// Opens the sessions, registers the parties, and has every stream observe the phaser.
    pub fn set_up(load: &PhaserLoad<'_>) -> Result<Parties, String> {
        let mut lines = Lines::open(Protocol::Etcd, load.addresses)?;
        let streams = Streams::open(&mut lines)?;
        let session = |at: usize| Session {
            line: at % load.addresses.len(),
            parties: (at..load.parties).step_by(load.sessions).map(|party| Party::of(load, party)).collect(),
            ..Session::default()
        };
        let work = Work {
            root: load.name.to_owned(),
            streams,
            sessions: (0..load.sessions).map(session).collect(),
            by_session: HashMap::new(),
            step: Step::Open,
            founder: 0,
            phase: 0,
            ended: 0,
            left: 0,
            last: Instant::now(),
            failed: None,
        };
        let mut parties = Parties { lines, work };
        parties.go(Step::Open)?;
        // A child's parent must be there first, and there is no phaser without a party.
        let is_tree = load.children > 0;
        if is_tree {
            parties.go(Step::Found)?;
        }
        parties.go(Step::Register)?;
        if is_tree {
            parties.go(Step::LeaveTheRoot)?;
        }
        parties.go(Step::Observe)?;
        Ok(parties)
    }

    /// Lets all of them arrive, again and again, for so many phases.
    pub fn run(&mut self, phases: u64) -> Result<Phased, String> {
        let (start, bytes_before) = (Instant::now(), self.lines.bytes_read());
        let mut phased = Phased::default();
        for _ in 0..phases {
            let began = Instant::now();
            self.go(Step::Arrive)?;
            if self.work.ended != 1 {
                return Err(format!("{} arrivals were told that they ended the phase, not one", self.work.ended));
            }
            self.work.phase += 1;
            phased.phases.record(self.work.last.duration_since(began));
            phased.arrivals += self.work.sessions.iter().map(|session| session.parties.len() as u64).sum::<u64>();
        }
        phased.elapsed = start.elapsed();
        phased.bytes = self.lines.bytes_read() - bytes_before;
        Ok(phased)
    }

    /// Ends the sessions, and with them the parties: they would stay for minutes.
    pub fn close(mut self) -> Result<(), String> {
        self.go(Step::Close)
    }

    /// Takes one step, which is over when all that it asked for has come.
    fn go(&mut self, step: Step) -> Result<(), String> {
        (self.work.step, self.work.last, self.work.ended) = (step, Instant::now(), 0);
        self.work.begin(&mut self.lines);
        self.lines.run(&mut self.work)?;
        self.work.failed.take().map_or(Ok(()), Err)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Open,
    /// Makes the root of a tree, with a party that leaves when there are children.
    Found,
    Register,
    LeaveTheRoot,
    Observe,
    Arrive,
    Close,
}

struct Party {
    phaser: String,
    parent: String,
    /// As the server calls it, once it is registered.
    id: u64,
}

impl Party {
    fn of(load: &PhaserLoad<'_>, party: usize) -> Party {
        let (phaser, parent) = match load.children {
            0 => (load.name.to_owned(), String::new()),
            children => (format!("{}/{}", load.name, party % children), load.name.to_owned()),
        };
        Party { phaser, parent, id: 0 }
    }
}

#[derive(Default)]
struct Session {
    line: usize,
    id: i64,
    parties: Vec<Party>,
    /// The party that asks next in this step.
    next: usize,
    /// All requests up to this one were answered.
    acknowledged: u64,
    /// The parties that asked since then; none in the place of one that was answered.
    under_way: VecDeque<Option<usize>>,
}

impl Session {
    /// Request `number` was answered. Which party asked, if it was waiting.
    fn answered(&mut self, number: u64) -> Option<usize> {
        let place = usize::try_from(number.checked_sub(self.acknowledged + 1)?).ok()?;
        let party = self.under_way.get_mut(place)?.take()?;
        while self.under_way.front() == Some(&None) {
            self.under_way.pop_front();
            self.acknowledged += 1;
        }
        Some(party)
    }
}

struct Work {
    root: String,
    streams: Streams,
    sessions: Vec<Session>,
    by_session: HashMap<i64, usize>,
    step: Step,
    /// The party that the root of a tree was made with.
    founder: u64,
    phase: u64,
    /// Arrivals of this phase that were told that the next one began.
    ended: u64,
    /// What is missing in this step.
    left: usize,
    /// When the last of it came.
    last: Instant,
    failed: Option<String>,
}

impl Work {
    /// Sends the first requests of a step, or all if they are few.
    fn begin(&mut self, lines: &mut Lines) {
        self.left = match self.step {
            Step::Found | Step::LeaveTheRoot => 1,
            Step::Open | Step::Close => self.sessions.len(),
            Step::Observe => self.streams.count(),
            Step::Register => self.party_count(),
            // Every stream is told of the next phase.
            Step::Arrive => self.party_count() + self.streams.count(),
        };
        match self.step {
            Step::Open => {
                for (at, session) in self.sessions.iter().enumerate() {
                    self.streams.open_session(lines, session.line, at);
                }
            }
            Step::Found => {
                let register = Register { name: self.root.clone(), parties: 1, ..Register::default() };
                self.request(lines, 0, 0, request::Op::Register(register));
            }
            Step::LeaveTheRoot => {
                let (name, party) = (self.root.clone(), self.founder);
                let arrive = Arrive { name, party, count: 0, deregister: true };
                self.request(lines, 0, 0, request::Op::Arrive(arrive));
            }
            Step::Register | Step::Arrive => {
                for at in 0..self.sessions.len() {
                    self.sessions[at].next = 0;
                    self.ask_next(lines, at);
                }
            }
            Step::Observe => {
                let observe = ObserveRequest { kind: Kind::Phaser.into(), name: self.root.clone(), told_revision: 0 };
                for line in 0..self.streams.count() {
                    self.streams.send(lines, line, from_client::Message::Observe(observe.clone()));
                }
            }
            Step::Close => {
                for session in &self.sessions {
                    let close = CloseRequest { session: session.id };
                    self.streams.send(lines, session.line, from_client::Message::Close(close));
                }
            }
        }
    }

    fn party_count(&self) -> usize {
        self.sessions.iter().map(|session| session.parties.len()).sum()
    }

    fn request(&mut self, lines: &mut Lines, at: usize, party: usize, op: request::Op) {
        let session = &mut self.sessions[at];
        session.under_way.push_back(Some(party));
        let number = session.acknowledged + session.under_way.len() as u64;
        let request = Request { session: session.id, number, acknowledged: session.acknowledged, op: Some(op) };
        self.streams.send(lines, session.line, from_client::Message::Request(request));
    }

    /// Lets the next parties of a session ask, as far as it may have more under way.
    fn ask_next(&mut self, lines: &mut Lines, at: usize) {
        while self.sessions[at].under_way.len() < UNDER_WAY_MAX {
            let session = &mut self.sessions[at];
            let place = session.next;
            let Some(party) = session.parties.get(place) else { return };
            session.next += 1;
            let (name, parent) = (party.phaser.clone(), party.parent.clone());
            let op = match self.step {
                Step::Register => request::Op::Register(Register { name, parties: 1, parent, ..Register::default() }),
                Step::Arrive => request::Op::Arrive(Arrive { name, party: party.id, count: 0, deregister: false }),
                _ => return,
            };
            self.request(lines, at, place, op);
        }
    }

    fn replied(&mut self, lines: &mut Lines, reply: Reply) -> Result<bool, String> {
        let at = *self.by_session.get(&reply.session).ok_or("a reply to a session of somebody else")?;
        let party = self.sessions[at].answered(reply.number).ok_or("a reply that nobody waits for")?;
        let phase = self.phase;
        match (self.step, answer_of(reply)?) {
            (Step::Found, answer::Answer::Registered(registered)) => self.founder = registered.party,
            (Step::Register, answer::Answer::Registered(registered)) if registered.phase == phase => {
                self.sessions[at].parties[party].id = registered.party;
            }
            (Step::LeaveTheRoot, answer::Answer::Arrived(arrived)) if arrived.now == phase => {}
            (Step::Arrive, answer::Answer::Arrived(arrived))
                if arrived.phase == phase && (phase..=phase + 1).contains(&arrived.now) =>
            {
                self.ended += arrived.now - phase;
            }
            (step, other) => return Err(format!("in phase {phase} {step:?} was answered with {other:?}")),
        }
        self.ask_next(lines, at);
        Ok(true)
    }

    fn told(&mut self, notice: Notice) -> Result<bool, String> {
        match notice.notice {
            Some(notice::Notice::Phase(told)) if self.step == Step::Arrive => {
                let is_next = told.phase == self.phase + 1 && !told.broken;
                if is_next { Ok(true) } else { Err(format!("in phase {} all were told of {told:?}", self.phase)) }
            }
            _ => Ok(false),
        }
    }

    /// Whether the message is one of those that the step waits for.
    fn take(&mut self, lines: &mut Lines, message: to_client::Message) -> Result<bool, String> {
        match message {
            to_client::Message::Opened(reply) => {
                let (at, id) = opened(&reply)?;
                self.sessions.get_mut(at).ok_or("a session that nobody asked for")?.id = id;
                self.by_session.insert(id, at);
                Ok(true)
            }
            to_client::Message::Reply(reply) => self.replied(lines, reply),
            to_client::Message::Notice(notice) => self.told(notice),
            to_client::Message::Observing(observing) => match observing.error {
                Some(error) => Err(format!("observe: {}: {}", error.code, error.message)),
                None => Ok(true),
            },
            to_client::Message::Closed(closed) => match closed.error {
                Some(error) => Err(format!("close: {}: {}", error.code, error.message)),
                None => Ok(true),
            },
            // A session that was closed is told to be over, too.
            to_client::Message::Lost(lost) if self.step == Step::Close && lost.session != 0 => Ok(false),
            to_client::Message::Lost(lost) => Err(format!("lost: {}", lost.message)),
            _ => Ok(false),
        }
    }
}

impl Actor for Work {
    fn answered(&mut self, lines: &mut Lines, _: usize, _: Tag, answer: Answer<'_>) {
        match message_of(answer).and_then(|message| message.map_or(Ok(false), |message| self.take(lines, message))) {
            Ok(true) => {
                self.left = self.left.saturating_sub(1);
                self.last = lines.now();
            }
            Ok(false) => {}
            Err(why) => {
                self.failed.get_or_insert(why);
            }
        }
    }

    fn lost(&mut self, _: &mut Lines, _: usize, _: &[Tag], why: &str) {
        self.failed.get_or_insert(format!("a connection was lost: {why}"));
    }

    fn turn(&mut self, lines: &mut Lines) -> Turn {
        let until = self.last + SILENCE_LIMIT;
        if lines.now() >= until {
            let (step, missing) = (self.step, self.left);
            self.failed.get_or_insert(format!("{step:?}: nothing for {SILENCE_LIMIT:?}; {missing} are missing"));
        }
        if self.failed.is_some() || self.left == 0 { Turn::Done } else { Turn::Wait(Some(until)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is acknowledged is forgotten by the server: an answer that is missing must hold back those after it.
    #[test]
    fn only_an_unbroken_row_of_answers_is_acknowledged() {
        let mut session = Session { under_way: (0..4).map(Some).collect(), ..Session::default() };
        assert_eq!((session.answered(2), session.acknowledged), (Some(1), 0));
        assert_eq!((session.answered(1), session.acknowledged), (Some(0), 2));
        assert_eq!((session.answered(1), session.answered(2), session.answered(5)), (None, None, None));
        assert_eq!((session.answered(3), session.acknowledged, session.under_way.len()), (Some(2), 3, 1));
    }
}
