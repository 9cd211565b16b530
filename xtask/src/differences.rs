//! What the comparisons with other servers found: the first of each kind in full, the rest counted.

use std::collections::BTreeMap;
use std::time::Instant;

use indicatif::ProgressBar;

use crate::Result;

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
    fn text(&self) -> String {
        self.kinds.iter().map(|(kind, count)| format!("{count:>9}  {kind}\n")).collect()
    }
}

/// Which differences with a reason there were, and how often.
#[derive(Default)]
pub(crate) struct Hits(BTreeMap<&'static str, u64>);

impl Hits {
    /// Counts one.
    pub(crate) fn add(&mut self, name: &'static str) {
        *self.0.entry(name).or_default() += 1;
    }

    /// Whether rules make the two answers equal, one after the other; those that did are counted.
    pub(crate) fn explain<A: Clone + PartialEq>(
        &mut self,
        (ours, theirs): (&A, &A),
        rules: impl IntoIterator<Item = (&'static str, impl FnOnce(&mut A, &mut A))>,
    ) -> bool {
        let mut both = (ours.clone(), theirs.clone());
        let mut used = Vec::new();
        for (name, make_alike) in rules {
            let before = both.clone();
            make_alike(&mut both.0, &mut both.1);
            if both != before {
                used.push(name);
            }
            if both.0 == both.1 {
                used.into_iter().for_each(|name| self.add(name));
                return true;
            }
        }
        false
    }

    /// A line for each rule, by its name and reason.
    fn text(&self, rules: impl IntoIterator<Item = (&'static str, &'static str)>) -> String {
        let line = |(name, reason)| format!("{:>9}  {name} ({reason})\n", self.0.get(name).copied().unwrap_or(0));
        rules.into_iter().map(line).collect()
    }
}

/// Prints what a run of `done` operations found; an error if there was a difference that no rule explains.
pub(crate) fn conclude(
    (done, report, hits): (u64, Report, Hits),
    started: Instant,
    rules: impl IntoIterator<Item = (&'static str, &'static str)>,
) -> Result<()> {
    println!("\nexplained differences:\n{}", hits.text(rules));
    let unexplained = report.count();
    if unexplained > 0 {
        println!("unexplained differences:\n{}", report.text());
    }
    let seconds = started.elapsed().as_secs_f64();
    let rate = done as f64 / seconds;
    println!("{done} operations in {seconds:.0} s ({rate:.0}/s), {unexplained} unexplained differences");
    if unexplained == 0 { Ok(()) } else { Err("the two servers differ, see above".to_string()) }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{} ... ({} bytes)", &text[..at], text.len()),
        None => text.to_string(),
    }
}
