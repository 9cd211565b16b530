//! The clock that says how long something is held.
//!
//! It counts while the machine sleeps: a laptop that wakes up, or a virtual machine that is resumed, must find its
//! locks old. `std::time::Instant` stands still meanwhile on Linux and would find them fresh.

use std::ops::Add;
use std::time::Duration;

/// A point on the clock: the time since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Duration);

impl Moment {
    /// From nanoseconds, as [`Moment::nanos`] gives them.
    pub(crate) fn from_nanos(nanos: u64) -> Moment {
        Moment(Duration::from_nanos(nanos))
    }

    /// In nanoseconds: enough for 584 years.
    pub(crate) fn nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// How long until `later`; nothing if that is past.
    pub(crate) fn until(self, later: Moment) -> Duration {
        later.0.saturating_sub(self.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(span))
    }
}

/// Tells the time. A trait, so that tests can let it run as they like.
pub(crate) trait Clock: Send + Sync + 'static {
    fn now(&self) -> Moment;
}

/// The machine's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineClock;

/// Elsewhere the monotonic clock goes on while the machine sleeps.
#[cfg(target_os = "linux")]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

impl Clock for MachineClock {
    fn now(&self) -> Moment {
        let time = rustix::time::clock_gettime(CLOCK);
        // Neither is negative: the clock began at zero.
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Moment(Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0)))
    }
}
