//! How long to wait before the next try at another node: longer each time, never quite the same for two clients.

use std::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_millis(20);
/// The longest pause. A client that waits longer is later than need be when nodes come back.
const LONGEST: Duration = Duration::from_secs(1);

/// Counts tries that failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause after one more failure, between half of it and all of it by `dice`. The limit is the caller's own.
    pub(crate) fn failed(&mut self, limit: Duration, dice: u32) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST).min(limit);
        self.failures += 1;
        whole.mul_f64(0.5 + f64::from(dice) / f64::from(u32::MAX) / 2.0)
    }

    /// It worked: the next pause is a short one.
    pub(crate) fn worked(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without an end to it a client would come back minutes after the cluster did; without growth it would hammer it.
    #[test]
    fn pauses_grow_to_a_limit_and_begin_anew_after_success() {
        let mut backoff = Backoff::default();
        let mut pauses = || backoff.failed(Duration::from_secs(60), u32::MAX).as_millis();
        assert_eq!([pauses(), pauses(), pauses()], [20, 40, 80]);
        for _ in 0..40 {
            pauses();
        }
        assert_eq!(pauses(), 1000);
        backoff.worked();
        assert_eq!(backoff.failed(Duration::from_millis(10), 0).as_millis(), 5);
    }
}
