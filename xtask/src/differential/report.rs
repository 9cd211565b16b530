//! What was found: the first of each kind in full, the rest counted.

use std::collections::BTreeMap;

use indicatif::ProgressBar;

/// Differences of one kind that are shown in full.
const SHOWN_OF_A_KIND: u64 = 2;
/// Differences after which the run stops: two stores that differ go on differing.
const DIFFERENCES_MAX: u64 = 60;
/// Bytes of one request or answer that are shown.
const SHOWN_BYTES: usize = 4_000;

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

    /// Takes a difference found at operation `at`. `kind` groups like ones.
    pub(super) fn difference(&mut self, at: u64, kind: &str, asked: &str, ours: &str, theirs: &str) {
        let count = self.kinds.entry(kind.to_string()).or_default();
        *count += 1;
        if *count > SHOWN_OF_A_KIND {
            return;
        }
        let text = format!(
            "\ndifference: {kind}\n  operation {at} of seed {seed}; replay: --seed {seed} --ops {at}\n  asked:    {}\n  tidelock: {}\n  etcd:     {}",
            cut(asked),
            cut(ours),
            cut(theirs),
            seed = self.seed,
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
    match text.char_indices().nth(SHOWN_BYTES) {
        Some((at, _)) => format!("{} ... ({} bytes)", &text[..at], text.len()),
        None => text.to_string(),
    }
}
