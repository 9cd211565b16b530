//! What was found: the first of each kind in full, the rest counted.

use std::collections::BTreeMap;

use indicatif::ProgressBar;

/// Differences of one kind that are shown in full.
const SHOWN_OF_A_KIND: u64 = 2;
/// Differences after which the run stops.
const DIFFERENCES_MAX: u64 = 400;
/// Characters of one request or answer that are shown.
const SHOWN_CHARS: usize = 3_000;

/// A difference.
pub(super) struct Difference {
    /// Groups like ones.
    pub(super) kind: String,
    /// What was done.
    pub(super) asked: String,
    pub(super) ours: String,
    pub(super) theirs: String,
}

/// Collects differences.
pub(super) struct Report {
    seed: u64,
    bar: ProgressBar,
    kinds: BTreeMap<String, u64>,
}

impl Report {
    pub(super) fn new(seed: u64, bar: ProgressBar) -> Report {
        Report { seed, bar, kinds: BTreeMap::new() }
    }

    /// Takes a difference found at operation `at` of `round`.
    pub(super) fn add(&mut self, round: u64, at: u64, difference: &Difference) {
        let Difference { kind, asked, ours, theirs } = difference;
        let count = self.kinds.entry(kind.clone()).or_default();
        *count += 1;
        if *count > SHOWN_OF_A_KIND {
            return;
        }
        let text = format!(
            "\ndifference: {kind}\n  operation {at} of round {round}; replay: --seed {} --round {round}\n  \
             asked:     {}\n  ours:      {}\n  zookeeper: {}",
            self.seed,
            cut(asked),
            cut(ours),
            cut(theirs),
        );
        self.bar.suspend(|| println!("{text}"));
    }

    /// How many there were.
    pub(super) fn count(&self) -> u64 {
        self.kinds.values().sum()
    }

    /// Whether going on would only repeat them.
    pub(super) fn is_full(&self) -> bool {
        self.count() >= DIFFERENCES_MAX
    }

    /// A line for each kind.
    pub(super) fn text(&self) -> String {
        self.kinds.iter().map(|(kind, count)| format!("{count:>9}  {kind}\n")).collect()
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{} ... ({} bytes)", &text[..at], text.len()),
        None => text.to_string(),
    }
}
