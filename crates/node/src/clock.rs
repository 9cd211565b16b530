//! Time, as the workers are told it: nobody but their threads looks at a clock, so a simulator can tell
//! them any.

use std::time::{Duration, Instant, SystemTime};

use tidelock_model::LogTime;

/// A moment, on both clocks of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// On a clock that only runs forward; what matters is the difference between two moments.
    pub steady: Duration,
    /// On the wall; may be wrong and may jump. Stamps entries and decides nothing.
    pub wall: LogTime,
}

/// The machine's clocks.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    begun: Instant,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock { begun: Instant::now() }
    }

    pub(crate) fn now(&self) -> Moment {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Moment { steady: self.begun.elapsed(), wall: LogTime(wall.as_millis() as u64) }
    }
}

/// What a worker did with its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Give it another when something arrives for it, or after so long at the latest.
    WaitAtMost(Duration),
    /// The node has stopped.
    Ended,
}
