//! The native API: many sessions, and a lock of its own name for each of them.
//!
//! Streams stay open until all of it is dropped: a server keeps something for each session that is attached to one, and
//! what sessions weigh is to include it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tidelock_native_api::v1::{Acquire, Mode, Reply, Request, answer, from_client, request, to_client};

use super::native_stream::{SILENCE_LIMIT, Streams, answer_of, message_of, opened};
use crate::lines::{Actor, Answer, Lines, Protocol, Tag, Turn};

/// Requests under way, on all streams together: of more than 5,000 at one node the server refuses some.
const IN_FLIGHT: usize = 2_000;

/// Sessions on some streams.
pub struct NativeSessions {
    lines: Lines,
    asking: Asking,
}

impl NativeSessions {
    /// A stream at each of `addresses`, without sessions.
    pub fn connect(addresses: &[SocketAddr]) -> Result<NativeSessions, String> {
        let mut lines = Lines::open(Protocol::Etcd, addresses)?;
        let streams = Streams::open(&mut lines)?;
        let shares = vec![Share::default(); streams.count()];
        let (step, last) = (Step::Open, Instant::now());
        Ok(NativeSessions { lines, asking: Asking { streams, shares, step, left: 0, last, failed: None } })
    }

    /// Opens so many sessions, as many on each stream. How long it took.
    pub fn open(&mut self, sessions: usize) -> Result<Duration, String> {
        let streams = self.asking.shares.len();
        for (line, share) in self.asking.shares.iter_mut().enumerate() {
            share.wanted = sessions / streams + usize::from(line < sessions % streams);
        }
        self.ask(Step::Open)
    }

    /// Takes a lock with each of them. How long it took.
    pub fn lock(&mut self) -> Result<Duration, String> {
        self.ask(Step::Lock)
    }

    fn ask(&mut self, step: Step) -> Result<Duration, String> {
        let (start, asking) = (Instant::now(), &mut self.asking);
        (asking.step, asking.last) = (step, start);
        asking.left = asking.shares.iter().map(|share| share.wanted).sum();
        asking.shares.iter_mut().for_each(|share| share.asked = 0);
        for line in 0..asking.shares.len() {
            (0..(IN_FLIGHT / asking.shares.len()).max(1)).for_each(|_| asking.ask_next(&mut self.lines, line));
        }
        self.lines.run(asking)?;
        asking.failed.take().map_or(Ok(asking.last.duration_since(start)), Err)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Open,
    Lock,
}

/// What one stream has of it.
#[derive(Clone, Default)]
struct Share {
    wanted: usize,
    /// Of this step.
    asked: usize,
    sessions: Vec<i64>,
}

struct Asking {
    streams: Streams,
    shares: Vec<Share>,
    step: Step,
    /// Answers that are missing in this step.
    left: usize,
    /// When the last one came.
    last: Instant,
    failed: Option<String>,
}

impl Asking {
    /// Asks for what comes next on a stream, if anything does.
    fn ask_next(&mut self, lines: &mut Lines, line: usize) {
        let (streams, share) = (self.shares.len(), &mut self.shares[line]);
        if share.asked >= share.wanted {
            return;
        }
        let place = share.asked;
        share.asked += 1;
        let number = place * streams + line;
        match self.step {
            Step::Open => self.streams.open_session(lines, line, number),
            Step::Lock => {
                let name = format!("bench-session-lock-{number:07}");
                let acquire = Acquire { name, mode: Mode::Exclusive.into(), ..Acquire::default() };
                let (session, op) = (share.sessions[place], Some(request::Op::Acquire(acquire)));
                let request = Request { session, number: 1, acknowledged: 0, op };
                self.streams.send(lines, line, from_client::Message::Request(request));
            }
        }
    }

    fn take(&mut self, line: usize, message: to_client::Message) -> Result<bool, String> {
        match (self.step, message) {
            (Step::Open, to_client::Message::Opened(reply)) => {
                let (_, session) = opened(&reply)?;
                self.shares[line].sessions.push(session);
                Ok(true)
            }
            (Step::Lock, to_client::Message::Reply(reply)) => granted(reply).map(|()| true),
            (_, to_client::Message::Lost(lost)) => Err(format!("lost: {}", lost.message)),
            _ => Ok(false),
        }
    }
}

/// A lock that nobody else wants is had at once.
fn granted(reply: Reply) -> Result<(), String> {
    match answer_of(reply)? {
        answer::Answer::Place(place) if place.token != 0 => Ok(()),
        other => Err(format!("a lock of a name of its own was not granted: {other:?}")),
    }
}

impl Actor for Asking {
    fn answered(&mut self, lines: &mut Lines, line: usize, _: Tag, answer: Answer<'_>) {
        match message_of(answer).and_then(|message| message.map_or(Ok(false), |message| self.take(line, message))) {
            Ok(true) => {
                self.left = self.left.saturating_sub(1);
                self.last = lines.now();
                self.ask_next(lines, line);
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
            let missing = self.left;
            self.failed.get_or_insert(format!("no answer for {SILENCE_LIMIT:?}; {missing} are missing"));
        }
        if self.failed.is_some() || self.left == 0 { Turn::Done } else { Turn::Wait(Some(until)) }
    }
}
