//! etcd: watchers, and writes that they are told of. How long after a write was due a watcher heard of it.
//!
//! Each connection has one Watch stream that carries all of its watchers, as etcd's own clients do it. A value begins
//! with the moment its write was due, so that an event says itself how late it is.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use prost::Message;
use tidelock_etcd_api::etcdserverpb::watch_request::RequestUnion;
use tidelock_etcd_api::etcdserverpb::{WatchCreateRequest, WatchRequest};

use crate::etcd_messages::{self as wire, Field, method};
use crate::grpc::StreamId;
use crate::histogram::Histogram;
use crate::lines::{Actor, Answer, Lines, Protocol, Tag, Turn};
use crate::random::Random;
use crate::values::Values;

/// How long watchers may take to be set up, and the last events to arrive.
const SET_UP_LIMIT: Duration = Duration::from_secs(60);
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// Set on the tag of a Watch stream.
const WATCHING: Tag = 1 << 62;

/// What to set up.
#[derive(Clone, Copy, Debug)]
pub struct FanOut {
    /// Watchers.
    pub watchers: usize,
    /// Connections that they share.
    pub connections: usize,
    /// Whether each watches a key of its own; else all watch the same.
    pub distinct: bool,
    /// Writes per second.
    pub writes_per_s: f64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// How long writes are sent.
    pub time: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct FannedOut {
    /// Writes that succeeded.
    pub writes: u64,
    /// Events that should have come.
    pub expected: u64,
    /// From the moment a write was due to the event.
    pub deliveries: Histogram,
    /// From the first write to the last event.
    pub elapsed: Duration,
}

/// Watchers that are set up.
pub struct Watchers {
    lines: Lines,
    plan: FanOut,
    keys: u64,
}

impl Watchers {
    /// Sets up the watchers, and waits until the server has confirmed each of them.
    pub fn set_up(endpoints: &[SocketAddr], plan: FanOut) -> Result<Watchers, String> {
        let mut addresses: Vec<SocketAddr> = endpoints.iter().cycle().take(plan.connections).copied().collect();
        // Writers have connections of their own.
        addresses.extend_from_slice(endpoints);
        let mut lines = Lines::open(Protocol::Etcd, &addresses)?;
        let keys = if plan.distinct { plan.watchers as u64 } else { 1 };
        let mut creating = Creating { plan, confirmed: 0, until: Instant::now() + SET_UP_LIMIT, failed: None };
        for connection in 0..plan.connections.min(plan.watchers) {
            let Some(stream) = lines.open_stream(connection, WATCHING, method::WATCH) else { continue };
            for watcher in (connection..plan.watchers).step_by(plan.connections) {
                create(&mut lines, connection, stream, watcher as u64 % keys);
            }
        }
        lines.run(&mut creating)?;
        match creating.failed {
            Some(why) => Err(why),
            None => Ok(Watchers { lines, plan, keys }),
        }
    }

    /// Sends the writes and waits for their events.
    pub fn run(&mut self) -> Result<FannedOut, String> {
        let start = Instant::now();
        let per_write = self.plan.watchers as u64 / self.keys;
        let writing = (self.plan.connections..self.lines.count()).collect();
        let mut running = Running {
            plan: self.plan,
            keys: self.keys,
            per_write,
            values: Values::new(self.plan.value_bytes),
            random: Random::new(5),
            writing,
            start,
            sent: 0,
            ended: 0,
            last: start,
            failed: None,
            done: FannedOut::default(),
        };
        self.lines.run(&mut running)?;
        if let Some(why) = running.failed {
            return Err(why);
        }
        running.done.elapsed = running.last.duration_since(start);
        running.done.expected = running.done.writes * per_write;
        Ok(running.done)
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("fan-out/{number:08}").into_bytes()
}

fn create(lines: &mut Lines, line: usize, stream: StreamId, number: u64) {
    let create = WatchCreateRequest { key: key(number).into(), ..WatchCreateRequest::default() };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    lines.push(line, stream, |out| out.extend_from_slice(&request.encode_to_vec()));
}

struct Creating {
    plan: FanOut,
    confirmed: usize,
    until: Instant,
    failed: Option<String>,
}

impl Actor for Creating {
    fn answered(&mut self, _: &mut Lines, _: usize, _: Tag, answer: Answer<'_>) {
        match answer {
            // Field 3: created.
            Answer::Message(message) if wire::fields(&message).any(|field| field == (3, Field::Number(1))) => {
                self.confirmed += 1;
            }
            Answer::End(status) => self.failed = Some(format!("a Watch stream ended: {}", status.message)),
            _ => {}
        }
    }

    fn lost(&mut self, _: &mut Lines, _: usize, _: &[Tag], why: &str) {
        self.failed = Some(format!("a watcher's connection was lost: {why}"));
    }

    fn turn(&mut self, lines: &mut Lines) -> Turn {
        if lines.now() >= self.until {
            self.failed = Some(format!("{} of {} watchers were set up in time", self.confirmed, self.plan.watchers));
        }
        let done = self.failed.is_some() || self.confirmed >= self.plan.watchers;
        if done { Turn::Done } else { Turn::Wait(Some(self.until)) }
    }
}

struct Running {
    plan: FanOut,
    keys: u64,
    per_write: u64,
    values: Values,
    random: Random,
    writing: Vec<usize>,
    start: Instant,
    sent: u64,
    ended: u64,
    last: Instant,
    failed: Option<String>,
    done: FannedOut,
}

impl Running {
    fn due(&self, number: u64) -> Instant {
        self.start + Duration::from_secs_f64(number as f64 / self.plan.writes_per_s)
    }

    fn write(&mut self, lines: &mut Lines) {
        let line = self.writing[self.sent as usize % self.writing.len()];
        let number = if self.keys == 1 { 0 } else { self.random.below(self.keys) };
        // The mark at the front of a value is the number of the write.
        let (sent, values, random) = (self.sent, &self.values, &mut self.random);
        lines.call(line, sent, method::PUT, |out| {
            wire::put(out, &key(number), values.bytes(), |out| values.write(sent, random, out));
        });
        self.sent += 1;
    }

    /// Counts the events of a WatchResponse: field 11, in each the pair (2), in it the value (5).
    fn deliver(&mut self, now: Instant, message: &[u8]) {
        for event in inside(message, 11) {
            let value = inside(event, 2).flat_map(|pair| inside(pair, 5)).next();
            let Some(mark) = value.and_then(|value| value.first_chunk::<8>()) else { continue };
            let due = self.due(u64::from_be_bytes(*mark).min(self.sent));
            self.done.deliveries.record(now.saturating_duration_since(due));
            self.last = now;
        }
    }
}

fn inside(message: &[u8], number: u64) -> impl Iterator<Item = &[u8]> {
    wire::fields(message).filter_map(move |(of, field)| match field {
        Field::Bytes(bytes) if of == number => Some(bytes),
        _ => None,
    })
}

impl Actor for Running {
    fn answered(&mut self, lines: &mut Lines, _: usize, tag: Tag, answer: Answer<'_>) {
        match answer {
            Answer::Message(message) if tag == WATCHING => self.deliver(lines.now(), &message),
            Answer::End(status) if tag == WATCHING => {
                self.failed = Some(format!("a Watch stream ended: {}", status.message));
            }
            Answer::End(status) => {
                self.ended += 1;
                self.done.writes += u64::from(status.code == 0);
            }
            _ => {}
        }
    }

    fn lost(&mut self, _: &mut Lines, _: usize, _: &[Tag], why: &str) {
        self.failed = Some(format!("a connection was lost: {why}"));
    }

    fn turn(&mut self, lines: &mut Lines) -> Turn {
        let now = lines.now();
        let end = self.start + self.plan.time;
        while self.due(self.sent) <= now && self.due(self.sent) < end {
            self.write(lines);
        }
        if self.failed.is_some() || now >= end + DRAIN_LIMIT {
            return Turn::Done;
        }
        if self.due(self.sent) < end {
            return Turn::Wait(Some(self.due(self.sent)));
        }
        let complete = self.done.deliveries.count() >= self.done.writes * self.per_write;
        if self.ended == self.sent && complete { Turn::Done } else { Turn::Wait(Some(end + DRAIN_LIMIT)) }
    }
}
