//! What was answered when: for loads during which something happens.

use std::time::{Duration, Instant};

/// What one entry covers: finer than any pause that matters.
const STEP: Duration = Duration::from_millis(10);
/// The longest run that is written down: an hour. What comes later is added to the last entry.
const ENTRIES_MAX: usize = 360_000;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    answered: u32,
    failed: u32,
    worst: Duration,
}

/// Counts and the worst latency for every 10 ms.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    start: Option<Instant>,
    entries: Vec<Entry>,
    last: Option<Instant>,
    longest_silence: Duration,
}

impl Timeline {
    /// One that begins at `start`.
    pub fn from(start: Instant) -> Timeline {
        Timeline { start: Some(start), ..Timeline::default() }
    }

    fn entry(&mut self, now: Instant) -> Option<&mut Entry> {
        let at = (now.saturating_duration_since(self.start?).as_millis() / STEP.as_millis()) as usize;
        let at = at.min(ENTRIES_MAX - 1);
        if at >= self.entries.len() {
            self.entries.resize(at + 1, Entry::default());
        }
        self.entries.get_mut(at)
    }

    /// An answer came.
    pub fn answered(&mut self, now: Instant, latency: Duration) {
        if let Some(entry) = self.entry(now) {
            entry.answered += 1;
            entry.worst = entry.worst.max(latency);
        }
        let last = self.last.replace(now).or(self.start).unwrap_or(now);
        self.longest_silence = self.longest_silence.max(now.saturating_duration_since(last));
    }

    /// An operation failed.
    pub fn failed(&mut self, now: Instant) {
        if let Some(entry) = self.entry(now) {
            entry.failed += 1;
        }
    }

    /// The longest time between two answers.
    pub fn longest_silence(&self) -> Duration {
        self.longest_silence
    }

    /// When it begins.
    pub fn start(&self) -> Option<Instant> {
        self.start
    }

    /// The worst latency of what was answered within one of `windows`, or of what was not, both ends generously.
    pub fn worst(&self, windows: &[(Instant, Instant)], inside: bool) -> Duration {
        let Some(start) = self.start else { return Duration::ZERO };
        let mut worst = Duration::ZERO;
        for (at, entry) in self.entries.iter().enumerate() {
            let from = start + STEP * at as u32;
            let within = windows.iter().any(|(begin, end)| from + STEP > *begin && from <= *end);
            if within == inside {
                worst = worst.max(entry.worst);
            }
        }
        worst
    }

    /// Operations answered from `from` after the start on, for `length`.
    pub fn answered_during(&self, from: Duration, length: Duration) -> u64 {
        let at = |time: Duration| (time.as_millis() / STEP.as_millis()) as usize;
        let entries = self.entries.iter().skip(at(from)).take(at(length));
        entries.map(|entry| u64::from(entry.answered)).sum()
    }

    /// Adds what happened elsewhere at the same time.
    pub(crate) fn merge(&mut self, other: &Timeline) {
        self.start = self.start.or(other.start);
        if self.entries.len() < other.entries.len() {
            self.entries.resize(other.entries.len(), Entry::default());
        }
        for (mine, theirs) in self.entries.iter_mut().zip(&other.entries) {
            mine.answered += theirs.answered;
            mine.failed += theirs.failed;
            mine.worst = mine.worst.max(theirs.worst);
        }
        self.longest_silence = self.longest_silence.max(other.longest_silence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stall must be charged to the window it was felt in, and a silence seen whole.
    #[test]
    fn the_worst_and_the_silence_are_found_where_they_were() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut timeline = Timeline::from(start);
        timeline.answered(at(5), Duration::from_millis(1));
        timeline.answered(at(105), Duration::from_millis(80));
        timeline.answered(at(206), Duration::from_millis(2));
        assert_eq!(timeline.worst(&[(at(95), at(120))], true), Duration::from_millis(80));
        assert_eq!(timeline.worst(&[(at(95), at(120))], false), Duration::from_millis(2));
        assert_eq!(timeline.longest_silence(), Duration::from_millis(101));
        assert_eq!(timeline.answered_during(Duration::ZERO, Duration::from_millis(200)), 2);
    }
}
