//! ZooKeeper: one lock by the recipe that its clients follow. A worker makes an ephemeral, sequential znode, lists its
//! siblings, and holds the lock if it is the first; else it watches the one before it and looks again when that goes.

use std::collections::HashMap;
use std::time::Instant;

use super::lock_run::{LockLoad, LockRun, Locked};
use super::znode_fill::create;
use crate::lines::{Actor, Answer, Lines, Protocol, Tag, Turn};
use crate::zookeeper::{self as wire, opcode};

const EPHEMERAL_SEQUENTIAL: i32 = 3;
const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;
/// The tag of the request that makes the parent.
const PARENT: Tag = Tag::MAX >> 2;

/// Lets workers take locks. Their name is a path of one part; each address is a session.
pub fn lock_by_recipe(load: &LockLoad<'_>) -> Result<Locked, String> {
    let mut lines = Lines::open(Protocol::Zookeeper, load.addresses)?;
    let now = Instant::now();
    let worker = |at: usize| Worker {
        line: load.line_of(at),
        parent: load.name_of(at),
        own: String::new(),
        doing: Doing::Create,
        since: now,
    };
    let mut workers = Workers {
        workers: (0..load.workers).map(worker).collect(),
        parents_left: if load.contended { 1 } else { load.workers },
        waiting: HashMap::new(),
        run: LockRun::new(load.time),
    };
    lines.run(&mut workers)?;
    Ok(workers.run.finish())
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
    run: LockRun,
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
                    None => {
                        self.run.acquired(lines.now(), self.workers[at].since);
                        self.send(lines, at, Doing::Delete, "");
                    }
                    Some(before) => self.send(lines, at, Doing::Watch, &before),
                }
            }
            // It stands: its end will be told.
            (Doing::Watch, 0) => {}
            // It went in between.
            (Doing::Watch, NO_NODE) => self.look_again(lines, at),
            (Doing::Delete, 0) => {
                if self.run.cycle(lines, self.workers[at].since) {
                    self.send(lines, at, Doing::Create, "");
                }
            }
            (_, error) => self.run.fail(format!("ZooKeeper's error {error}")),
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
                error => self.run.fail(format!("ZooKeeper's error {error}")),
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
        self.run.fail(format!("a connection was lost: {why}"));
    }

    fn turn(&mut self, lines: &mut Lines) -> Turn {
        let now = lines.now();
        if self.run.prepares() {
            let mut parents: Vec<String> = self.workers.iter().map(|worker| worker.parent.clone()).collect();
            parents.dedup();
            for parent in parents {
                lines.ask(0, PARENT, opcode::CREATE, |out| create(out, parent.as_bytes(), 0, 0, |_| {}));
            }
        } else if self.run.begins(now, self.parents_left == 0) {
            (0..self.workers.len()).for_each(|at| self.send(lines, at, Doing::Create, ""));
        }
        self.run.turn(now)
    }
}
