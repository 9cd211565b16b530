//! Keeps a misconfigured peer that retries twice a second from filling the log.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Lines let through per window.
const LINES_MAX: u32 = 5;
/// The window: long enough to be quiet, short enough that whoever looks at the log sees the trouble.
const WINDOW: Duration = Duration::from_secs(30);

/// Lets a few lines through per window and counts the rest.
#[derive(Default)]
pub(super) struct LogGate(Mutex<Option<Window>>);

struct Window {
    began: Instant,
    lines: u32,
    suppressed: u64,
}

impl LogGate {
    /// Whether to log now; if so, how many lines were held back since the last one.
    pub(super) fn pass(&self) -> Option<u64> {
        self.pass_at(Instant::now())
    }

    fn pass_at(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock();
        let current = window.get_or_insert(Window { began: now, lines: 0, suppressed: 0 });
        if now.saturating_duration_since(current.began) >= WINDOW {
            current.began = now;
            current.lines = 0;
        }
        if current.lines == LINES_MAX {
            current.suppressed += 1;
            return None;
        }
        current.lines += 1;
        Some(std::mem::take(&mut current.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full log disk stops the node: a retrying stranger must not be able to cause it.
    #[test]
    fn a_retrying_peer_gets_a_few_lines_per_window() {
        let gate = LogGate::default();
        let start = Instant::now();
        let passed = (0..1000).filter(|_| gate.pass_at(start).is_some()).count();
        assert_eq!(passed, LINES_MAX as usize);
        assert_eq!(gate.pass_at(start + WINDOW), Some(1000 - u64::from(LINES_MAX)));
    }
}
