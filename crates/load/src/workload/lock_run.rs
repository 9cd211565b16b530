//! What the loads of locks have in common: when a run begins and ends, and what was done in it.

use std::time::{Duration, Instant};

use crate::histogram::Histogram;
use crate::lines::Turn;

/// What was done with locks.
#[derive(Clone, Debug, Default)]
pub struct Locked {
    /// Times that a lock was taken and given back.
    pub cycles: u64,
    /// From asking for the lock to having given it back.
    pub latencies: Histogram,
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
    locked: Locked,
}

impl LockRun {
    pub(super) fn new(time: Duration) -> LockRun {
        let last = Instant::now();
        LockRun { time, is_prepared: false, start: None, until: None, last, locked: Locked::default() }
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

    /// A lock asked for at `since` was given back. Whether to ask for the next.
    pub(super) fn cycle(&mut self, now: Instant, since: Instant) -> bool {
        let goes_on = !self.is_over(now);
        if goes_on {
            self.last = now;
            self.locked.cycles += 1;
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
        Locked { elapsed, ..self.locked }
    }
}
