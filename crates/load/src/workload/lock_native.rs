//! The native API: locks by its stream. Each worker has a session, takes a lock and gives it back at once, again and
//! again. Sessions share streams as they would in a process with many of them.

use std::collections::HashMap;
use std::time::Instant;

use tidelock_native_api::v1::{
    Acquire, Granted, Kind, Mode, OpenReply, Release, Reply, Request, answer, from_client, notice, request, to_client,
};

use super::lock_run::{LockLoad, LockRun, Locked};
use super::native_stream::{Streams, answer_of, message_of, opened};
use crate::lines::{Actor, Answer, Lines, Protocol, Tag, Turn};

/// Workers that begin at a time, each of the others when one was answered. A node has room for some thousand requests.
const BEGIN_AT_ONCE: usize = 1_000;

/// Lets workers take locks.
pub fn lock_natively(load: &LockLoad<'_>) -> Result<Locked, String> {
    let mut lines = Lines::open(Protocol::Etcd, load.addresses)?;
    let streams = Streams::open(&mut lines)?;
    let worker = |at: usize| Worker {
        line: load.line_of(at),
        name: load.name_of(at),
        session: 0,
        number: 0,
        doing: Doing::Open,
        since: Instant::now(),
    };
    let mut actor = Workers {
        workers: (0..load.workers).map(worker).collect(),
        streams,
        asked: 0,
        begun: 0,
        by_session: HashMap::new(),
        run: LockRun::new(load.time),
    };
    lines.run(&mut actor)?;
    Ok(actor.run.finish())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Open,
    Acquire,
    Release,
}

struct Worker {
    line: usize,
    name: String,
    session: i64,
    /// Of its last request.
    number: u64,
    doing: Doing,
    since: Instant,
}

struct Workers {
    workers: Vec<Worker>,
    streams: Streams,
    /// So many asked for a session.
    asked: usize,
    /// So many asked for a lock.
    begun: usize,
    by_session: HashMap<i64, usize>,
    run: LockRun,
}

impl Workers {
    fn request(&mut self, lines: &mut Lines, at: usize, op: request::Op) {
        let worker = &mut self.workers[at];
        worker.number += 1;
        let (session, number) = (worker.session, worker.number);
        let request = Request { session, number, acknowledged: number - 1, op: Some(op) };
        self.streams.send(lines, worker.line, from_client::Message::Request(request));
    }

    fn acquire(&mut self, lines: &mut Lines, at: usize) {
        let now = lines.now();
        let worker = &mut self.workers[at];
        (worker.doing, worker.since) = (Doing::Acquire, now);
        let acquire = Acquire { name: worker.name.clone(), mode: Mode::Exclusive.into(), ..Acquire::default() };
        self.request(lines, at, request::Op::Acquire(acquire));
    }

    fn release(&mut self, lines: &mut Lines, at: usize, token: u64) {
        self.run.acquired(lines.now(), self.workers[at].since);
        let worker = &mut self.workers[at];
        worker.doing = Doing::Release;
        let release = Release { kind: Kind::Lock.into(), name: worker.name.clone(), token };
        self.request(lines, at, request::Op::Release(release));
    }

    /// Has the next one ask for a session, if there is one.
    fn open_next(&mut self, lines: &mut Lines) {
        if let Some(worker) = self.workers.get(self.asked) {
            self.streams.open_session(lines, worker.line, self.asked);
            self.asked += 1;
        }
    }

    /// Has the next one ask for its first lock, if there is one.
    fn begin_next(&mut self, lines: &mut Lines) {
        if self.begun < self.workers.len() {
            self.begun += 1;
            self.acquire(lines, self.begun - 1);
        }
    }

    fn opened(&mut self, lines: &mut Lines, reply: &OpenReply) {
        match opened(reply) {
            Ok((at, session)) => {
                self.workers[at].session = session;
                self.by_session.insert(session, at);
                self.open_next(lines);
            }
            Err(why) => self.run.fail(why),
        }
    }

    fn replied(&mut self, lines: &mut Lines, reply: Reply) {
        let Some(at) = self.by_session.get(&reply.session).copied() else { return };
        let number = reply.number;
        let answer = match answer_of(reply) {
            Ok(answer) => answer,
            Err(why) => return self.run.fail(why),
        };
        self.begin_next(lines);
        if number != self.workers[at].number {
            return;
        }
        match (self.workers[at].doing, answer) {
            (Doing::Acquire, answer::Answer::Place(place)) if place.token != 0 => {
                self.release(lines, at, place.token);
            }
            (Doing::Release, _) => self.released(lines, at),
            _ => {}
        }
    }

    fn released(&mut self, lines: &mut Lines, at: usize) {
        if self.run.cycle(lines, self.workers[at].since) {
            self.acquire(lines, at);
        }
    }

    fn granted(&mut self, lines: &mut Lines, granted: &Granted) {
        let Some(at) = self.by_session.get(&granted.session).copied() else { return };
        if self.workers[at].doing == Doing::Acquire {
            self.release(lines, at, granted.token);
        }
    }
}

impl Actor for Workers {
    fn answered(&mut self, lines: &mut Lines, _: usize, _: Tag, answer: Answer<'_>) {
        match message_of(answer) {
            Ok(Some(to_client::Message::Opened(reply))) => self.opened(lines, &reply),
            Ok(Some(to_client::Message::Reply(reply))) => self.replied(lines, reply),
            Ok(Some(to_client::Message::Notice(notice))) => {
                if let Some(notice::Notice::Granted(granted)) = notice.notice {
                    self.granted(lines, &granted);
                }
            }
            Ok(Some(to_client::Message::Lost(lost))) => self.run.fail(format!("lost: {}", lost.message)),
            Ok(_) => {}
            Err(why) => self.run.fail(why),
        }
    }

    fn lost(&mut self, _: &mut Lines, _: usize, _: &[Tag], why: &str) {
        self.run.fail(format!("a connection was lost: {why}"));
    }

    fn turn(&mut self, lines: &mut Lines) -> Turn {
        let now = lines.now();
        if self.run.prepares() {
            (0..BEGIN_AT_ONCE).for_each(|_| self.open_next(lines));
        } else if self.run.begins(now, self.by_session.len() == self.workers.len()) {
            (0..BEGIN_AT_ONCE).for_each(|_| self.begin_next(lines));
        }
        self.run.turn(now)
    }
}
