//! The load: operations of one kind, so many at once or so many per second, until time or work is up.
//!
//! Closed: N operations are on their way, each answer lets the next one go. Open: operations are due at fixed moments,
//! whatever the server does, and latency counts from there, so that a stall is charged for everyone who would have come
//! meanwhile. One in some answers is decoded and compared with what was asked for; a wrong one is a failure.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::histogram::Histogram;
use crate::lines::{Actor, Answer, Lines, Protocol, Tag, Turn};
use crate::random::Random;
use crate::timeline::Timeline;
use crate::workload::{BESIDE, Workload};

/// One in so many answers is decoded.
const CHECK_EVERY: u64 = 64;
/// An operation that failed is followed by this pause: a server that is down must not be hammered, and the failures of
/// one bad moment must not drown the count.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(20);
/// How often operations are looked through for those that take too long.
const GIVE_UP_EVERY: Duration = Duration::from_millis(50);
/// Operations of an open load that may be on their way; above it the rest waits here, and its wait is charged.
const OPEN_IN_FLIGHT_MAX: usize = 1 << 16;
/// The default of [`Load::give_up`]: above the servers' own limits, so that their verdict is seen and not ours.
const GIVE_UP: Duration = Duration::from_secs(15);

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After this time.
    Elapsed(Duration),
    /// After this many operations.
    Operations(u64),
    /// When the workload has nothing left.
    Done,
}

/// How many at once.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// So many on their way.
    Closed(usize),
    /// So many per second.
    Open(f64),
}

/// What to send, and how.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// How many at once.
    pub pace: Pace,
    /// When to stop.
    pub until: Until,
    /// Picks the random choices.
    pub seed: u64,
    /// An operation without an answer for so long has failed.
    pub give_up: Duration,
    /// Whether every answer is written down, for loads during which something happens.
    pub record: bool,
}

/// Operations that are written down at most; the later ones are not.
const CALLS_MAX: usize = 1 << 22;

/// An operation that succeeded.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// When it was due.
    pub due: Instant,
    /// When its answer came.
    pub answered: Instant,
}

impl Load {
    /// `in_flight` operations at once.
    pub fn closed(in_flight: usize, until: Until) -> Load {
        Load { pace: Pace::Closed(in_flight), until, seed: 1, give_up: GIVE_UP, record: false }
    }

    /// `per_s` operations per second.
    pub fn open(per_s: f64, until: Until) -> Load {
        Load { pace: Pace::Open(per_s), until, seed: 1, give_up: GIVE_UP, record: false }
    }
}

/// What came back.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// From the first operation to the last answer.
    pub elapsed: Duration,
    /// Of the operations that succeeded.
    pub latencies: Histogram,
    /// Operations that did not.
    pub failed: u64,
    /// Why the first of them did not.
    pub first_failure: Option<String>,
    /// What was answered when.
    pub timeline: Timeline,
    /// Every answer, if [`Load::record`] asks for it.
    pub calls: Vec<Call>,
}

impl Done {
    /// Adds what another generator did at the same time.
    pub fn merge(&mut self, other: &Done) {
        self.elapsed = self.elapsed.max(other.elapsed);
        self.latencies.merge(&other.latencies);
        self.failed += other.failed;
        self.first_failure = self.first_failure.take().or_else(|| other.first_failure.clone());
        self.timeline.merge(&other.timeline);
        self.calls.extend_from_slice(&other.calls);
    }

    /// Fails if more than `per_mille` of all operations did: then something else was measured than was meant.
    pub fn check(&self, per_mille: u64) -> Result<(), String> {
        let all = self.latencies.count() + self.failed;
        if self.failed * 1000 > per_mille * all {
            let first = self.first_failure.as_deref().unwrap_or_default();
            return Err(format!("{} of {all} operations failed, the first with: {first}", self.failed));
        }
        Ok(())
    }
}

/// Addresses of `count` connections, as many to each endpoint.
pub fn spread(endpoints: &[SocketAddr], count: usize) -> Vec<SocketAddr> {
    let count = count.next_multiple_of(endpoints.len().max(1));
    endpoints.iter().cycle().take(count).copied().collect()
}

/// Opens connections to `addresses` and sends `load` over them.
pub fn run(
    protocol: Protocol,
    addresses: &[SocketAddr],
    workload: &mut dyn Workload,
    load: &Load,
) -> Result<Done, String> {
    run_over(&mut Lines::open(protocol, addresses)?, workload, load)
}

/// Sends `load` over connections that are open.
pub fn run_over(lines: &mut Lines, workload: &mut dyn Workload, load: &Load) -> Result<Done, String> {
    let mut running = Running::new(workload, load);
    lines.run(&mut running)?;
    running.done.elapsed = running.last_answer.duration_since(running.start);
    Ok(running.done)
}

#[derive(Clone, Copy)]
struct Slot {
    due: Instant,
    asked: u64,
    line: usize,
    /// etcd: the message came; the end of the call has not.
    judged: bool,
    busy: bool,
}

struct Running<'a> {
    workload: &'a mut dyn Workload,
    load: Load,
    random: Random,
    slots: Vec<Slot>,
    /// Slots without an operation: free ones of an open load, resting ones of a closed one.
    idle: Vec<usize>,
    resting: VecDeque<(Instant, usize)>,
    busy: usize,
    sent: u64,
    next_line: usize,
    start: Instant,
    last_answer: Instant,
    looked_through: Instant,
    done: Done,
}

impl<'a> Running<'a> {
    fn new(workload: &'a mut dyn Workload, load: &Load) -> Running<'a> {
        let now = Instant::now();
        let count = match load.pace {
            Pace::Closed(in_flight) => in_flight,
            Pace::Open(_) => OPEN_IN_FLIGHT_MAX,
        };
        let slot = Slot { due: now, asked: 0, line: 0, judged: false, busy: false };
        Running {
            workload,
            load: *load,
            random: Random::new(load.seed),
            slots: vec![slot; count],
            idle: (0..count).rev().collect(),
            resting: VecDeque::new(),
            busy: 0,
            sent: 0,
            next_line: 0,
            start: now,
            last_answer: now,
            looked_through: now,
            done: Done { timeline: Timeline::from(now), ..Done::default() },
        }
    }

    fn may_send(&self, now: Instant) -> bool {
        match self.load.until {
            Until::Elapsed(time) => now < self.start + time,
            Until::Operations(count) => self.sent < count,
            Until::Done => !self.workload.is_done(),
        }
    }

    /// Connections take turns, so that with one in flight, too, each member is asked as often as the others.
    fn pick_line(&mut self, lines: &Lines) -> Option<usize> {
        let count = lines.count();
        let found = (0..count).map(|step| (self.next_line + step) % count).find(|line| lines.is_open(*line))?;
        self.next_line = (found + 1) % count;
        Some(found)
    }

    fn send(&mut self, lines: &mut Lines, slot: usize, due: Instant) -> bool {
        let Some(line) = self.pick_line(lines) else { return false };
        let asked = self.workload.send(lines, line, slot as Tag, &mut self.random);
        self.slots[slot] = Slot { due, asked, line, judged: false, busy: true };
        self.sent += 1;
        self.busy += 1;
        true
    }

    fn end(&mut self, lines: &mut Lines, at: usize, verdict: Result<(), String>) {
        let now = lines.now();
        if !std::mem::replace(&mut self.slots[at].busy, false) {
            return;
        }
        self.busy -= 1;
        self.last_answer = now;
        let succeeded = verdict.is_ok();
        match verdict {
            Ok(()) => {
                let latency = now.duration_since(self.slots[at].due);
                self.done.latencies.record(latency);
                self.done.timeline.answered(now, latency);
                if self.load.record && self.done.calls.len() < CALLS_MAX {
                    self.done.calls.push(Call { due: self.slots[at].due, answered: now });
                }
            }
            Err(why) => {
                self.done.failed += 1;
                self.done.timeline.failed(now);
                self.done.first_failure.get_or_insert(why);
            }
        }
        let closed = matches!(self.load.pace, Pace::Closed(_));
        if closed && !succeeded {
            self.resting.push_back((now + PAUSE_AFTER_FAILURE, at));
        } else if !(closed && self.may_send(now) && self.send(lines, at, now)) {
            self.idle.push(at);
        }
    }

    /// Sends what is due. The moment at which something will be due next.
    fn send_due(&mut self, lines: &mut Lines) -> Option<Instant> {
        let now = lines.now();
        while let Some((_, slot)) = self.resting.pop_front_if(|(until, _)| *until <= now) {
            self.idle.push(slot);
        }
        while self.may_send(now) {
            let due = match self.load.pace {
                Pace::Closed(_) => now,
                Pace::Open(per_s) => self.start + Duration::from_secs_f64(self.sent as f64 / per_s),
            };
            if due > now {
                return Some(due);
            }
            let Some(slot) = self.idle.pop() else { break };
            if !self.send(lines, slot, due) {
                self.idle.push(slot);
                return Some(now + PAUSE_AFTER_FAILURE);
            }
        }
        self.resting.front().map(|(until, _)| *until)
    }

    fn give_up(&mut self, lines: &mut Lines) {
        let now = lines.now();
        if now.duration_since(self.looked_through) < GIVE_UP_EVERY {
            return;
        }
        self.looked_through = now;
        for at in 0..self.slots.len() {
            let slot = self.slots[at];
            if slot.busy && now.duration_since(slot.due) > self.load.give_up {
                lines.cancel(slot.line, at as Tag);
                self.end(lines, at, Err(format!("no answer within {:?}", self.load.give_up)));
            }
        }
    }
}

impl Actor for Running<'_> {
    fn answered(&mut self, lines: &mut Lines, line: usize, tag: Tag, answer: Answer<'_>) {
        let Some(slot) = self.slots.get_mut((tag & !BESIDE) as usize) else { return };
        // The answer to an operation that was given up on.
        if !slot.busy || slot.line != line {
            return;
        }
        let at = (tag & !BESIDE) as usize;
        let closely = (self.done.latencies.count() + at as u64).is_multiple_of(CHECK_EVERY);
        match answer {
            Answer::Message(message) => {
                slot.judged = true;
                if let Err(why) = self.workload.check(slot.asked, &message, closely) {
                    lines.cancel(line, tag);
                    self.end(lines, at, Err(why));
                }
            }
            Answer::End(status) if status.code == 0 && slot.judged => self.end(lines, at, Ok(())),
            Answer::End(status) => {
                let why = match status.code {
                    0 => "success without an answer".to_string(),
                    code => format!("gRPC status {code}: {}", status.message),
                };
                self.end(lines, at, Err(why));
            }
            Answer::Value(value) => self.end(lines, at, Err(format!("Redis' answer: {}", value.words()))),
            Answer::Reply { error: 0, .. } if tag & BESIDE != 0 => {}
            Answer::Reply { error: 0, body } => {
                let verdict = self.workload.check(slot.asked, body, closely);
                self.end(lines, at, verdict);
            }
            Answer::Reply { error, .. } => self.end(lines, at, Err(format!("ZooKeeper's error {error}"))),
        }
    }

    fn lost(&mut self, lines: &mut Lines, line: usize, tags: &[Tag], why: &str) {
        let why = format!("{}: {why}", lines.address(line));
        for tag in tags {
            let at = (tag & !BESIDE) as usize;
            if self.slots.get(at).is_some_and(|slot| slot.busy && slot.line == line) {
                self.end(lines, at, Err(why.clone()));
            }
        }
    }

    fn turn(&mut self, lines: &mut Lines) -> Turn {
        let next = self.send_due(lines);
        self.give_up(lines);
        if self.busy == 0 && !self.may_send(lines.now()) {
            return Turn::Done;
        }
        Turn::Wait(next)
    }
}
