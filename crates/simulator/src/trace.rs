//! What makes two runs of a seed comparable: a hash over everything that happened, in order.
//!
//! Every event is hashed as bytes: when, where, a kind, and what identifies it. Hashing needs no text, so
//! that it can be on in every run; lines for people are only made when somebody reads them. Two runs of one
//! seed with different hashes mean that something in the simulator or in the nodes does not depend on the
//! seed alone (a clock, an address, the order of a hash map).

use std::collections::VecDeque;

use tidelock_model::NodeId;
use xxhash_rust::xxh3::Xxh3;

use crate::history::Micros;

/// Lines kept when a run keeps only its end.
pub const RECENT_LINES: usize = 2_000;

/// What becomes of lines for people. The hash is the same in all cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// They are not even made.
    Dropped,
    /// The last [`RECENT_LINES`] are kept.
    Recent,
    /// All are kept.
    All,
    /// Each is printed as it comes, so that a run that hangs or aborts still shows how far it got.
    Printed,
}

/// The trace of one run.
pub struct Trace {
    hash: Xxh3,
    events: u64,
    lines: Lines,
    kept: VecDeque<String>,
}

impl Trace {
    /// An empty trace.
    #[must_use]
    pub fn new(lines: Lines) -> Trace {
        Trace { hash: Xxh3::new(), events: 0, lines, kept: VecDeque::new() }
    }

    /// Records an event. `kind` and `digest` are hashed; `line` is made only if somebody reads it.
    pub fn event(
        &mut self,
        at: Micros,
        node: Option<NodeId>,
        kind: &'static str,
        digest: &[u8],
        line: impl FnOnce() -> String,
    ) {
        self.events += 1;
        // Fixed-size numbers and lengths first: no two different lists of events give the same bytes.
        let mut frame = [0_u8; 32];
        frame[..8].copy_from_slice(&at.to_le_bytes());
        frame[8..16].copy_from_slice(&node.map_or(u64::MAX, |node| node.0).to_le_bytes());
        frame[16..24].copy_from_slice(&(kind.len() as u64).to_le_bytes());
        frame[24..].copy_from_slice(&(digest.len() as u64).to_le_bytes());
        self.hash.update(&frame);
        self.hash.update(kind.as_bytes());
        self.hash.update(digest);
        if self.lines != Lines::Dropped {
            self.keep(at, node, kind, &line());
        }
    }

    /// Records an event that is identified by a few numbers.
    pub fn numbers(&mut self, at: Micros, node: Option<NodeId>, kind: &'static str, numbers: &[u64]) {
        let mut bytes = [0_u8; NUMBERS_MAX * 8];
        assert!(numbers.len() <= NUMBERS_MAX, "an event is identified by at most {NUMBERS_MAX} numbers");
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let digest = &bytes[..numbers.len() * 8];
        self.event(at, node, kind, digest, || numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" "));
    }

    /// A line for people only: not part of the hash, made only if somebody reads it.
    pub fn note(&mut self, at: Micros, node: Option<NodeId>, line: impl FnOnce() -> String) {
        if self.lines != Lines::Dropped {
            self.keep(at, node, "note", &line());
        }
    }

    /// Whether lines are read by anybody.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.lines != Lines::Dropped
    }

    /// The hash over all events so far.
    #[must_use]
    pub fn hash(&self) -> u128 {
        self.hash.digest128()
    }

    /// How many events were hashed.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The lines that were kept, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.kept.iter().map(String::as_str)
    }

    fn keep(&mut self, at: Micros, node: Option<NodeId>, kind: &str, text: &str) {
        let node = node.map_or("  -".to_string(), |node| format!("{:>3}", format!("n{node}")));
        let line = format!("{:>4}.{:06} {node} {kind}: {text}", at / 1_000_000, at % 1_000_000);
        match self.lines {
            Lines::Dropped => {}
            Lines::Printed => println!("{line}"),
            Lines::All => self.kept.push_back(line),
            Lines::Recent => {
                if self.kept.len() == RECENT_LINES {
                    self.kept.pop_front();
                }
                self.kept.push_back(line);
            }
        }
    }
}

/// More numbers than any event needs.
const NUMBERS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(lines: Lines) -> Trace {
        let mut trace = Trace::new(lines);
        trace.event(1_500_000, Some(NodeId(1)), "sent", b"abc", || "abc to 2".to_string());
        trace.numbers(2_000_001, None, "cut", &[1, 2]);
        trace.note(2_000_002, None, || "for people".to_string());
        trace
    }

    /// Hashes of pinned seeds are compared between builds and machines.
    #[test]
    fn the_hash_of_a_trace_never_changes() {
        assert_eq!(format!("{:032x}", sample(Lines::Dropped).hash()), "c5761fc96c85ac4fcec6490c4dc0fccf");
    }

    /// A failing seed is run again with lines; were the run a different one then, there would be
    /// nothing to look at.
    #[test]
    fn keeping_lines_does_not_change_the_hash() {
        let hashes = [Lines::Dropped, Lines::Recent, Lines::All].map(|lines| sample(lines).hash());
        assert!(hashes.iter().all(|hash| *hash == hashes[0]));
        assert_eq!(sample(Lines::Dropped).lines().count(), 0);
        assert_eq!(sample(Lines::Recent).lines().count(), 3);
        assert_eq!(sample(Lines::All).lines().next(), Some("   1.500000  n1 sent: abc to 2"));
    }

    /// Runs that differ in anything must not be taken for equal.
    #[test]
    fn every_part_of_an_event_counts() {
        let hash = |at, node, kind, digest: &[u8]| {
            let mut trace = Trace::new(Lines::Dropped);
            trace.event(at, node, kind, digest, String::new);
            trace.hash()
        };
        let base = hash(1, Some(NodeId(1)), "ab", b"c");
        assert_eq!(base, hash(1, Some(NodeId(1)), "ab", b"c"));
        assert_ne!(base, hash(2, Some(NodeId(1)), "ab", b"c"));
        assert_ne!(base, hash(1, None, "ab", b"c"));
        assert_ne!(base, hash(1, Some(NodeId(1)), "a", b"bc"));
        assert_ne!(base, hash(1, Some(NodeId(1)), "ab", b"d"));
    }

    /// Lines are costly; a thousand runs that nobody reads must not make them.
    #[test]
    fn lines_that_nobody_reads_are_not_made() {
        let mut trace = Trace::new(Lines::Dropped);
        trace.event(0, None, "kind", b"", || unreachable!("nobody reads it"));
        trace.note(0, None, || unreachable!("nobody reads it"));
        assert_eq!((trace.events(), trace.is_read()), (1, false));
    }

    /// A long run must not fill the memory.
    #[test]
    fn recent_lines_are_bounded_and_the_latest_ones() {
        let mut trace = Trace::new(Lines::Recent);
        for number in 0..RECENT_LINES as u64 + 5 {
            trace.numbers(number, None, "n", &[number]);
        }
        assert_eq!(trace.lines().count(), RECENT_LINES);
        assert!(trace.lines().next().is_some_and(|line| line.ends_with("n: 5")));
    }
}
