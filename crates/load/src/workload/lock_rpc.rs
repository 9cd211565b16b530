//! etcd: locks by its Lock service. Each worker takes a lock and gives it back at once, again and again.

use std::time::Instant;

use prost::Message;
use tidelock_etcd_api::etcdserverpb::{LeaseGrantRequest, LeaseGrantResponse};
use tidelock_etcd_api::v3lockpb::{LockRequest, LockResponse, UnlockRequest};

use super::lock_run::{LockLoad, LockRun, Locked};
use crate::etcd_messages::method;
use crate::lines::{Actor, Answer, Lines, Protocol, Tag, Turn};

/// Longer than any run: nobody keeps these leases alive.
const LEASE_TTL_S: i64 = 120;

/// Lets workers take locks.
pub fn lock_by_rpc(load: &LockLoad<'_>) -> Result<Locked, String> {
    let mut lines = Lines::open(Protocol::Etcd, load.addresses)?;
    let worker = |at: usize| Worker {
        line: load.line_of(at),
        name: load.name_of(at),
        lease: 0,
        key: Vec::new(),
        doing: Doing::Grant,
        since: Instant::now(),
    };
    let mut actor = Workers { workers: (0..load.workers).map(worker).collect(), run: LockRun::new(load.time) };
    lines.run(&mut actor)?;
    Ok(actor.run.finish())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Grant,
    Lock,
    Unlock,
    Nothing,
}

struct Worker {
    line: usize,
    name: String,
    lease: i64,
    key: Vec<u8>,
    doing: Doing,
    since: Instant,
}

struct Workers {
    workers: Vec<Worker>,
    run: LockRun,
}

impl Workers {
    fn send(&mut self, lines: &mut Lines, at: usize, doing: Doing) {
        let now = lines.now();
        let worker = &mut self.workers[at];
        worker.doing = doing;
        let (path, message) = match doing {
            Doing::Grant => (method::LEASE_GRANT, LeaseGrantRequest { ttl: LEASE_TTL_S, id: 0 }.encode_to_vec()),
            Doing::Lock => {
                worker.since = now;
                let request = LockRequest { name: worker.name.clone().into(), lease: worker.lease };
                (method::LOCK, request.encode_to_vec())
            }
            Doing::Unlock => (method::UNLOCK, UnlockRequest { key: worker.key.clone().into() }.encode_to_vec()),
            Doing::Nothing => return,
        };
        lines.call(worker.line, at as Tag, path, |out| out.extend_from_slice(&message));
    }
}

impl Actor for Workers {
    fn answered(&mut self, lines: &mut Lines, _: usize, tag: Tag, answer: Answer<'_>) {
        let at = tag as usize;
        match answer {
            Answer::Message(message) => {
                let worker = &mut self.workers[at];
                match worker.doing {
                    Doing::Grant => worker.lease = LeaseGrantResponse::decode(&*message).map_or(0, |grant| grant.id),
                    Doing::Lock => {
                        worker.key = LockResponse::decode(&*message).map_or(Vec::new(), |lock| lock.key.into());
                    }
                    Doing::Unlock | Doing::Nothing => {}
                }
            }
            Answer::End(status) if status.code != 0 => {
                self.run.fail(format!("status {}: {}", status.code, status.message));
            }
            Answer::End(_) => match self.workers[at].doing {
                Doing::Grant => self.workers[at].doing = Doing::Nothing,
                Doing::Lock => {
                    self.run.acquired(lines.now(), self.workers[at].since);
                    self.send(lines, at, Doing::Unlock);
                }
                Doing::Unlock => {
                    if self.run.cycle(lines, self.workers[at].since) {
                        self.send(lines, at, Doing::Lock);
                    }
                }
                Doing::Nothing => {}
            },
            Answer::Reply { .. } | Answer::Value(_) => {}
        }
    }

    fn lost(&mut self, _: &mut Lines, _: usize, _: &[Tag], why: &str) {
        self.run.fail(format!("a connection was lost: {why}"));
    }

    fn turn(&mut self, lines: &mut Lines) -> Turn {
        let now = lines.now();
        if self.run.prepares() {
            (0..self.workers.len()).for_each(|at| self.send(lines, at, Doing::Grant));
        } else if self.run.begins(now, self.workers.iter().all(|worker| worker.doing == Doing::Nothing)) {
            (0..self.workers.len()).for_each(|at| self.send(lines, at, Doing::Lock));
        }
        self.run.turn(now)
    }
}
