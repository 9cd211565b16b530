//! What the loads of locks have in common: who takes which lock where, when a run begins and ends, and what was done in it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::histogram::Histogram;
use crate::lines::{Lines, Turn};

/// What a load of locks is.
#[derive(Clone, Copy, Debug)]
pub struct LockLoad<'a> {
    /// Where to connect to, once for each time it is named.
    pub addresses: &'a [SocketAddr],
    /// What the lock is called.
    pub name: &'a str,
    /// How many take locks; they share the connections.
    pub workers: usize,
    /// Whether they all want the one lock; otherwise each has one of its own.
    pub contended: bool,
    /// For how long.
    pub time: Duration,
}

impl LockLoad<'_> {
    pub(super) fn line_of(&self, worker: usize) -> usize {
        worker % self.addresses.len()
    }

    pub(super) fn name_of(&self, worker: usize) -> String {
        if self.contended { self.name.to_owned() } else { format!("{}-{worker}", self.name) }
    }
}

/// What was done with locks.
#[derive(Clone, Debug, Default)]
pub struct Locked {
    /// Times that a lock was taken and given back.
    pub cycles: u64,
    /// From asking for the lock to having given it back.
    pub latencies: Histogram,
    /// From asking for the lock to having it.
    pub acquires: Histogram,
    /// Bytes that all workers were sent for one cycle, between the end of the first and the end of the last: what comes
    /// before is everyone taking a place in the line.
    pub bytes_per_cycle: u64,
    /// How long it went on.
    pub elapsed: Duration,
    /// Requests that failed, and why the first did.
    pub failed: u64,
    /// Why the first of them failed.
    pub first_failure: Option<String>,
}

/// One run: it is prepared, begins when every worker is ready, and ends after its time or with the first failure.
pub(super) struct LockRun {
    time: Duration,
    is_prepared: bool,
    start: Option<Instant>,
    until: Option<Instant>,
    /// The end of the last cycle.
    last: Instant,
    /// Bytes that had been read at the end of the first cycle, and of the last.
    bytes_at_first: u64,
    bytes_at_last: u64,
    locked: Locked,
}

impl LockRun {
    pub(super) fn new(time: Duration) -> LockRun {
        let last = Instant::now();
        LockRun {
            time,
            is_prepared: false,
            start: None,
            until: None,
            last,
            bytes_at_first: 0,
            bytes_at_last: 0,
            locked: Locked::default(),
        }
    }

    /// `true` once: whatever a run needs is to be asked for now.
    pub(super) fn prepares(&mut self) -> bool {
        !std::mem::replace(&mut self.is_prepared, true)
    }

    /// `true` once, when all workers are `ready`: they are to ask for their locks now.
    pub(super) fn begins(&mut self, now: Instant, ready: bool) -> bool {
        let begins = ready && self.start.is_none() && self.until.is_none();
        if begins {
            (self.start, self.until, self.last) = (Some(now), Some(now + self.time), now);
        }
        begins
    }

    /// A lock asked for at `since` is held.
    pub(super) fn acquired(&mut self, now: Instant, since: Instant) {
        if !self.is_over(now) {
            self.locked.acquires.record(now.duration_since(since));
        }
    }

    /// A lock asked for at `since` was given back. Whether to ask for the next.
    pub(super) fn cycle(&mut self, lines: &Lines, since: Instant) -> bool {
        let now = lines.now();
        let goes_on = !self.is_over(now);
        if goes_on {
            self.last = now;
            self.locked.cycles += 1;
            self.bytes_at_last = lines.bytes_read();
            if self.locked.cycles == 1 {
                self.bytes_at_first = self.bytes_at_last;
            }
            self.locked.latencies.record(now.duration_since(since));
        }
        goes_on
    }

    /// One failure is enough to say that this is no measurement.
    pub(super) fn fail(&mut self, why: String) {
        self.locked.failed += 1;
        self.locked.first_failure.get_or_insert(why);
        self.until = Some(self.last);
    }

    pub(super) fn turn(&self, now: Instant) -> Turn {
        if self.is_over(now) { Turn::Done } else { Turn::Wait(self.until) }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    /// What came of it.
    pub(super) fn finish(self) -> Locked {
        let elapsed = self.start.map_or(Duration::ZERO, |start| self.last.duration_since(start));
        let between = self.locked.cycles.saturating_sub(1).max(1);
        let bytes_per_cycle = (self.bytes_at_last - self.bytes_at_first) / between;
        Locked { elapsed, bytes_per_cycle, ..self.locked }
    }
}
