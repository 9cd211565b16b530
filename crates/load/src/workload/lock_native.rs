//! The native API: locks by its stream. Each worker has a session, takes a lock and gives it back at once, again and
//! again. Sessions share streams as they would in a process with many of them.

use std::collections::HashMap;
use std::time::{Instant, UNIX_EPOCH};

use prost::Message;
use tidelock_native_api::v1::{
    Acquire, Answer as NativeAnswer, FromClient, Granted, Kind, Mode, OpenReply, OpenRequest, Release, Reply, Request,
    ToClient, answer, from_client, notice, reply, request, to_client,
};

use super::lock_run::{LockLoad, LockRun, Locked};
use crate::grpc::StreamId;
use crate::lines::{Actor, Answer, Lines, Protocol, Tag, Turn};
use crate::random::Random;

/// Longer than any run: nobody keeps these sessions alive.
const SESSION_TTL_MS: u32 = 600_000;
const CONNECT: &str = "/tidelock.v1.Native/Connect";
/// Every stream has the same tag: messages say themselves whose they are.
const STREAM: Tag = 0;

/// Lets workers take locks.
pub fn lock_natively(load: &LockLoad<'_>) -> Result<Locked, String> {
    let mut lines = Lines::open(Protocol::Etcd, load.addresses)?;
    let streams: Vec<StreamId> =
        (0..load.addresses.len()).filter_map(|line| lines.open_stream(line, STREAM, CONNECT)).collect();
    if streams.len() < load.addresses.len() {
        return Err("a connection was lost before the run".to_string());
    }
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
    /// The stream of each connection.
    streams: Vec<StreamId>,
    by_session: HashMap<i64, usize>,
    run: LockRun,
}

impl Workers {
    fn send(&mut self, lines: &mut Lines, line: usize, message: from_client::Message) {
        let message = FromClient { message: Some(message) };
        let encode = |out: &mut Vec<u8>| message.encode(out).expect("a vector takes any message");
        lines.push(line, self.streams[line], encode);
    }

    fn request(&mut self, lines: &mut Lines, at: usize, op: request::Op) {
        let worker = &mut self.workers[at];
        worker.number += 1;
        let (session, number) = (worker.session, worker.number);
        let request = Request { session, number, acknowledged: number - 1, op: Some(op) };
        let line = worker.line;
        self.send(lines, line, from_client::Message::Request(request));
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

    fn opened(&mut self, opened: &OpenReply) {
        if let Some(error) = &opened.error {
            return self.run.fail(format!("open: {}: {}", error.code, error.message));
        }
        let at = opened.client as usize & AT_MASK;
        self.workers[at].session = opened.session;
        self.by_session.insert(opened.session, at);
    }

    fn replied(&mut self, lines: &mut Lines, reply: Reply) {
        let Some(at) = self.by_session.get(&reply.session).copied() else { return };
        let answer = match reply.result {
            Some(reply::Result::Answer(answer)) => answer,
            Some(reply::Result::Error(error)) => return self.run.fail(format!("{}: {}", error.code, error.message)),
            None => return self.run.fail("a reply without a result".to_string()),
        };
        if reply.number != self.workers[at].number {
            return;
        }
        match (self.workers[at].doing, answer) {
            (Doing::Acquire, NativeAnswer { answer: Some(answer::Answer::Place(place)) }) if place.token != 0 => {
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

/// The low bits of the number a session is opened with say whose it is; the others are drawn anew for each run.
const AT_MASK: usize = (1 << 24) - 1;

impl Actor for Workers {
    fn answered(&mut self, lines: &mut Lines, _: usize, _: Tag, answer: Answer<'_>) {
        match answer {
            Answer::Message(message) => match ToClient::decode(&*message).map(|message| message.message) {
                Ok(Some(to_client::Message::Opened(opened))) => self.opened(&opened),
                Ok(Some(to_client::Message::Reply(reply))) => self.replied(lines, reply),
                Ok(Some(to_client::Message::Notice(notice))) => {
                    if let Some(notice::Notice::Granted(granted)) = notice.notice {
                        self.granted(lines, &granted);
                    }
                }
                Ok(Some(to_client::Message::Lost(lost))) => self.run.fail(format!("lost: {}", lost.message)),
                Ok(_) => {}
                Err(error) => self.run.fail(format!("an unreadable message: {error}")),
            },
            Answer::End(status) => self.run.fail(format!("status {}: {}", status.code, status.message)),
            Answer::Reply { .. } | Answer::Value(_) => {}
        }
    }

    fn lost(&mut self, _: &mut Lines, _: usize, _: &[Tag], why: &str) {
        self.run.fail(format!("a connection was lost: {why}"));
    }

    fn turn(&mut self, lines: &mut Lines) -> Turn {
        let now = lines.now();
        if self.run.prepares() {
            let drawn = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
            let run = Random::new(drawn).next() << 24;
            for at in 0..self.workers.len() {
                let open = OpenRequest { ttl_ms: SESSION_TTL_MS, client: run | at as u64 };
                let line = self.workers[at].line;
                self.send(lines, line, from_client::Message::Open(open));
            }
        } else if self.run.begins(now, self.by_session.len() == self.workers.len()) {
            (0..self.workers.len()).for_each(|at| self.acquire(lines, at));
        }
        self.run.turn(now)
    }
}
