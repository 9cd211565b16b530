//! ZooKeeper: one lock by the recipe that its clients follow. A worker makes an ephemeral, sequential znode, lists its
//! siblings, and holds the lock if it is the first; else it watches the one before it and looks again when that goes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::lock_rpc::Locked;
use super::znode_fill::create;
use crate::lines::{Actor, Answer, Lines, Protocol, Tag, Turn};
use crate::zookeeper::{self as wire, opcode};

const EPHEMERAL_SEQUENTIAL: i32 = 3;
const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;
/// The tag of the request that makes the parent.
const PARENT: Tag = Tag::MAX >> 2;

/// Lets `workers` take locks for `time`: the one lock called `name`, or each one of its own. `name` is a path of one
/// part; each address is a session.
pub fn lock_by_recipe(
    addresses: &[SocketAddr],
    name: &str,
    workers: usize,
    contended: bool,
    time: Duration,
) -> Result<Locked, String> {
    let mut lines = Lines::open(Protocol::Zookeeper, addresses)?;
    let now = Instant::now();
    let worker = |at: usize| Worker {
        line: at % addresses.len(),
        parent: if contended { name.to_string() } else { format!("{name}-{at}") },
        own: String::new(),
        doing: Doing::Create,
        since: now,
    };
    let mut workers = Workers {
        workers: (0..workers).map(worker).collect(),
        parents_left: if contended { 1 } else { workers },
        waiting: HashMap::new(),
        time,
        start: None,
        until: None,
        last: now,
        begun: false,
        locked: Locked::default(),
    };
    lines.run(&mut workers)?;
    workers.locked.elapsed = workers.start.map_or(Duration::ZERO, |start| workers.last.duration_since(start));
    Ok(workers.locked)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Create,
    List,
    Watch,
    Delete,
}

struct Worker {
    line: usize,
    parent: String,
    own: String,
    doing: Doing,
    since: Instant,
}

struct Workers {
    workers: Vec<Worker>,
    parents_left: usize,
    /// Who waits for which path to go.
    waiting: HashMap<Vec<u8>, usize>,
    time: Duration,
    start: Option<Instant>,
    until: Option<Instant>,
    last: Instant,
    begun: bool,
    locked: Locked,
}

impl Workers {
    fn send(&mut self, lines: &mut Lines, at: usize, doing: Doing, before: &str) {
        let now = lines.now();
        let worker = &mut self.workers[at];
        worker.doing = doing;
        let parent = &worker.parent;
        match doing {
            Doing::Create => {
                worker.since = now;
                let path = format!("{parent}/lock-");
                lines.ask(worker.line, at as Tag, opcode::CREATE, |out| {
                    create(out, path.as_bytes(), 0, EPHEMERAL_SEQUENTIAL, |_| {});
                });
            }
            Doing::List => lines.ask(worker.line, at as Tag, opcode::GET_CHILDREN, |out| {
                wire::bytes(out, parent.as_bytes());
                out.push(0);
            }),
            Doing::Watch => {
                let path = format!("{parent}/{before}");
                lines.ask(worker.line, at as Tag, opcode::EXISTS, |out| {
                    wire::bytes(out, path.as_bytes());
                    out.push(1);
                });
                self.waiting.insert(path.into_bytes(), at);
            }
            Doing::Delete => {
                let path = format!("{parent}/{}", worker.own);
                lines.ask(worker.line, at as Tag, opcode::DELETE, |out| {
                    wire::bytes(out, path.as_bytes());
                    wire::int(out, -1);
                });
            }
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    fn fail(&mut self, why: String) {
        self.locked.failed += 1;
        self.locked.first_failure.get_or_insert(why);
        self.until = Some(self.last);
    }

    fn replied(&mut self, lines: &mut Lines, at: usize, error: i32, mut body: &[u8]) {
        match (self.workers[at].doing, error) {
            (Doing::Create, 0) => {
                let path = wire::take_bytes(&mut body).map(String::from_utf8_lossy).unwrap_or_default();
                self.workers[at].own = path.rsplit('/').next().unwrap_or_default().to_string();
                self.send(lines, at, Doing::List, "");
            }
            (Doing::List, 0) => {
                let own = self.workers[at].own.as_bytes();
                let count = wire::take_int(&mut body).unwrap_or(0).max(0);
                let names = (0..count).map_while(|_| wire::take_bytes(&mut body));
                let before =
                    names.filter(|name| *name < own).max().map(|name| String::from_utf8_lossy(name).into_owned());
                match before {
                    None => self.send(lines, at, Doing::Delete, ""),
                    Some(before) => self.send(lines, at, Doing::Watch, &before),
                }
            }
            // It stands: its end will be told.
            (Doing::Watch, 0) => {}
            // It went in between.
            (Doing::Watch, NO_NODE) => self.look_again(lines, at),
            (Doing::Delete, 0) => {
                let now = lines.now();
                if !self.is_over(now) {
                    self.last = now;
                    self.locked.cycles += 1;
                    self.locked.latencies.record(now.duration_since(self.workers[at].since));
                    self.send(lines, at, Doing::Create, "");
                }
            }
            (_, error) => self.fail(format!("ZooKeeper's error {error}")),
        }
    }

    fn look_again(&mut self, lines: &mut Lines, at: usize) {
        self.waiting.retain(|_, waiter| *waiter != at);
        if self.workers[at].doing == Doing::Watch {
            self.send(lines, at, Doing::List, "");
        }
    }
}

impl Actor for Workers {
    fn answered(&mut self, lines: &mut Lines, _: usize, tag: Tag, answer: Answer<'_>) {
        let Answer::Reply { error, body } = answer else { return };
        if tag == PARENT {
            match error {
                0 | NODE_EXISTS => self.parents_left = self.parents_left.saturating_sub(1),
                error => self.fail(format!("ZooKeeper's error {error}")),
            }
            return;
        }
        self.replied(lines, tag as usize, error, body);
    }

    fn event(&mut self, lines: &mut Lines, _: usize, _: i32, path: &[u8]) {
        if let Some(at) = self.waiting.remove(path) {
            self.look_again(lines, at);
        }
    }

    fn lost(&mut self, _: &mut Lines, _: usize, _: &[Tag], why: &str) {
        self.fail(format!("a connection was lost: {why}"));
    }

    fn turn(&mut self, lines: &mut Lines) -> Turn {
        let now = lines.now();
        if !std::mem::replace(&mut self.begun, true) {
            let mut parents: Vec<String> = self.workers.iter().map(|worker| worker.parent.clone()).collect();
            parents.dedup();
            for parent in parents {
                lines.ask(0, PARENT, opcode::CREATE, |out| create(out, parent.as_bytes(), 0, 0, |_| {}));
            }
        } else if self.start.is_none() && self.parents_left == 0 {
            (self.start, self.until, self.last) = (Some(now), Some(now + self.time), now);
            (0..self.workers.len()).for_each(|at| self.send(lines, at, Doing::Create, ""));
        }
        if self.is_over(now) { Turn::Done } else { Turn::Wait(self.until) }
    }
}
