//! etcd: leases with numbers of our choosing, so that each can be given a key and be renewed without remembering it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use prost::Message;
use tidelock_etcd_api::etcdserverpb::{LeaseGrantRequest, LeaseKeepAliveRequest};

use super::Workload;
use crate::etcd_messages::{self as wire, Field, method};
use crate::grpc::StreamId;
use crate::histogram::Histogram;
use crate::lines::{Actor, Answer, Lines, Protocol, Tag, Turn};
use crate::random::Random;

/// Leases are numbered from here on: zero means that the server chooses.
const FIRST_LEASE: i64 = 1 << 40;
/// Renewals on their way on one connection.
const RENEWALS_PER_STREAM: usize = 256;

/// Grants leases, one after the other.
pub struct LeaseGrants {
    /// How many.
    pub leases: u64,
    /// For how long, in seconds.
    pub ttl_s: i64,
    /// The number of the next.
    pub next: u64,
}

impl Workload for LeaseGrants {
    fn send(&mut self, lines: &mut Lines, line: usize, tag: Tag, _: &mut Random) -> u64 {
        let number = self.next;
        self.next += 1;
        let request = LeaseGrantRequest { ttl: self.ttl_s, id: FIRST_LEASE + number as i64 };
        lines.call(line, tag, method::LEASE_GRANT, |out| out.extend_from_slice(&request.encode_to_vec()));
        number
    }

    /// Field 2 is the lease's number.
    fn check(&self, number: u64, answer: &[u8], _: bool) -> Result<(), String> {
        match wire::fields(answer).find(|(field, _)| *field == 2) {
            Some((_, Field::Number(id))) if id == FIRST_LEASE as u64 + number => Ok(()),
            other => Err(format!("a lease of another number was granted: {other:?}")),
        }
    }

    fn is_done(&self) -> bool {
        self.next >= self.leases
    }
}

/// Puts a key for each of those leases, which ends with it.
pub struct LeasePuts {
    /// How many.
    pub leases: u64,
    /// The number of the next.
    pub next: u64,
}

impl Workload for LeasePuts {
    fn send(&mut self, lines: &mut Lines, line: usize, tag: Tag, _: &mut Random) -> u64 {
        let number = self.next;
        self.next += 1;
        lines.call(line, tag, method::PUT, |out| {
            wire::bytes(out, 1, format!("leased/{number:010}").as_bytes());
            wire::bytes(out, 2, b"owner");
            wire::number(out, 3, FIRST_LEASE as u64 + number);
        });
        number
    }

    fn check(&self, _: u64, _: &[u8], _: bool) -> Result<(), String> {
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.next >= self.leases
    }
}

/// What came of renewals.
#[derive(Clone, Debug, Default)]
pub struct Renewed {
    /// From asking to the answer.
    pub latencies: Histogram,
    /// Leases that are gone, as answers said.
    pub gone: u64,
    /// How long it went on.
    pub elapsed: Duration,
    /// Why it ended early, if it did.
    pub failure: Option<String>,
}

/// Renews `leases` leases from number `first` on, over one stream for each address, for `time`: random ones, many at
/// once; or, with `per_s`, one after the other at a pace, as live clients do.
pub fn renew(
    addresses: &[SocketAddr],
    first: u64,
    leases: u64,
    per_s: Option<f64>,
    time: Duration,
) -> Result<Renewed, String> {
    let mut lines = Lines::open(Protocol::Etcd, addresses)?;
    let streams: Vec<Option<StreamId>> =
        (0..addresses.len()).map(|line| lines.open_stream(line, line as Tag, method::LEASE_KEEP_ALIVE)).collect();
    let start = Instant::now();
    let sent = vec![std::collections::VecDeque::new(); addresses.len()];
    let mut renewing = Renewing {
        first,
        leases,
        per_s,
        until: start + time,
        start,
        streams,
        sent,
        count: 0,
        random: Random::new(9),
        gone: BTreeSet::new(),
        done: Renewed::default(),
    };
    lines.run(&mut renewing)?;
    renewing.done.gone = renewing.gone.len() as u64;
    renewing.done.elapsed = start.elapsed().min(time);
    Ok(renewing.done)
}

struct Renewing {
    first: u64,
    leases: u64,
    per_s: Option<f64>,
    until: Instant,
    start: Instant,
    streams: Vec<Option<StreamId>>,
    /// When those without an answer were due; answers come in order.
    sent: Vec<std::collections::VecDeque<Instant>>,
    count: u64,
    random: Random,
    /// The ids of leases that are gone: one may be asked for again and again.
    gone: BTreeSet<u64>,
    done: Renewed,
}

impl Renewing {
    fn send(&mut self, lines: &mut Lines, line: usize, due: Instant) {
        let Some(stream) = self.streams[line] else { return };
        let number = match self.per_s {
            Some(_) => self.count % self.leases,
            None => self.random.below(self.leases),
        };
        let id = FIRST_LEASE + (self.first + number) as i64;
        lines.push(line, stream, |out| out.extend_from_slice(&LeaseKeepAliveRequest { id }.encode_to_vec()));
        self.sent[line].push_back(due);
        self.count += 1;
    }
}

impl Actor for Renewing {
    /// Field 2 is the lease, field 3 the time that it has; none is left out, and means that it is gone.
    fn answered(&mut self, lines: &mut Lines, line: usize, _: Tag, answer: Answer<'_>) {
        let now = lines.now();
        match answer {
            Answer::Message(message) => {
                if let Some(due) = self.sent[line].pop_front() {
                    self.done.latencies.record(now.saturating_duration_since(due));
                }
                let number = |wanted| {
                    let found = wire::fields(&message).find(|(field, _)| *field == wanted);
                    if let Some((_, Field::Number(value))) = found { value } else { 0 }
                };
                if number(3) == 0 {
                    self.gone.insert(number(2));
                }
                if self.per_s.is_none() && now < self.until {
                    self.send(lines, line, now);
                }
            }
            Answer::End(status) => {
                self.streams[line] = None;
                self.done.failure.get_or_insert(format!("a stream of renewals ended: {}", status.message));
            }
            Answer::Reply { .. } | Answer::Value(_) => {}
        }
    }

    fn opened(&mut self, lines: &mut Lines, line: usize) {
        self.sent[line].clear();
        self.streams[line] = lines.open_stream(line, line as Tag, method::LEASE_KEEP_ALIVE);
    }

    fn lost(&mut self, _: &mut Lines, line: usize, _: &[Tag], why: &str) {
        self.streams[line] = None;
        self.done.failure.get_or_insert(format!("a connection was lost: {why}"));
    }

    fn turn(&mut self, lines: &mut Lines) -> Turn {
        let now = lines.now();
        if now >= self.until {
            return Turn::Done;
        }
        let count = self.streams.len();
        match self.per_s {
            None => {
                for line in 0..count {
                    while self.streams[line].is_some() && self.sent[line].len() < RENEWALS_PER_STREAM {
                        self.send(lines, line, now);
                    }
                }
                Turn::Wait(Some(self.until))
            }
            Some(per_s) => loop {
                let due = self.start + Duration::from_secs_f64(self.count as f64 / per_s);
                if due > now {
                    return Turn::Wait(Some(due.min(self.until)));
                }
                let line = self.count as usize % count;
                if self.streams[line].is_none() {
                    // What was due on a lost stream is late, and the next one must not wait for it.
                    self.count += 1;
                    continue;
                }
                self.send(lines, line, due);
            },
        }
    }
}
