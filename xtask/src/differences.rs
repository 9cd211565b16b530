//! What the comparisons with other servers found: the first of each kind in full, the rest counted.

use std::collections::BTreeMap;

use indicatif::ProgressBar;

/// Differences of one kind that are shown in full.
const SHOWN_OF_A_KIND: u64 = 2;
/// Characters of one request or answer that are shown.
const SHOWN_CHARS: usize = 4_000;

/// A difference.
pub(crate) struct Difference<'a> {
    /// Groups like ones.
    pub(crate) kind: &'a str,
    /// Which operation it was, and how to come back to it.
    pub(crate) place: String,
    /// What was asked.
    pub(crate) asked: &'a str,
    pub(crate) ours: &'a str,
    pub(crate) theirs: &'a str,
}

/// Collects differences.
pub(crate) struct Report {
    bar: ProgressBar,
    /// Whom we are compared with.
    peer: &'static str,
    /// Differences after which the run stops.
    max: u64,
    kinds: BTreeMap<String, u64>,
}

impl Report {
    pub(crate) fn new(bar: ProgressBar, peer: &'static str, max: u64) -> Report {
        Report { bar, peer, max, kinds: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, difference: &Difference<'_>) {
        let Difference { kind, place, asked, ours, theirs } = difference;
        let count = self.kinds.entry((*kind).to_string()).or_default();
        *count += 1;
        if *count > SHOWN_OF_A_KIND {
            return;
        }
        let (asked, ours, theirs, peer) = (cut(asked), cut(ours), cut(theirs), self.peer);
        let text = format!("\ndifference: {kind}\n  {place}\n  asked: {asked}\n  tidelock: {ours}\n  {peer}: {theirs}");
        self.bar.suspend(|| println!("{text}"));
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.kinds.values().sum()
    }

    /// Whether going on would only repeat them.
    pub(crate) fn is_full(&self) -> bool {
        self.count() >= self.max
    }

    /// A line for each kind.
    pub(crate) fn text(&self) -> String {
        self.kinds.iter().map(|(kind, count)| format!("{count:>9}  {kind}\n")).collect()
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{} ... ({} bytes)", &text[..at], text.len()),
        None => text.to_string(),
    }
}
