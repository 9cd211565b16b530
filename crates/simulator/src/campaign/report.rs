//! What came of a campaign: figures, what was reached how often, and every seed that failed with the command
//! that replays it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::{Campaign, SeedResult, is_judged, shortfalls};
use crate::check::Violation;
use crate::coverage;
use crate::history::Micros;
use crate::plan::{Overrides, SECOND};

/// Failing seeds that are kept; after so many the rest would tell nothing new.
const FAILURES_MAX: usize = 50;
/// Violations of one seed that are shown; the first is what matters, the others often follow from it.
const VIOLATIONS_SHOWN: usize = 5;

/// A seed that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Which.
    pub seed: u64,
    /// What happened, what was noticed first being first.
    pub violations: Vec<Violation>,
}

/// What came of a campaign.
#[derive(Clone, Debug)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// Of these, how many ran twice.
    pub twice: u64,
    /// How long it took by the clock on the wall.
    pub took: Duration,
    /// Virtual time that passed, second runs not counted.
    pub simulated: Micros,
    /// Requests asked, and answered with certainty.
    pub operations: (u64, u64),
    /// What was reached, how often.
    pub coverage: BTreeMap<String, u64>,
    /// Seeds that failed, by seed; the first [`FAILURES_MAX`] of them.
    pub failures: Vec<Failure>,
    /// Seeds that failed beyond those.
    pub more_failures: u64,
    /// What was not reached often enough.
    pub shortfalls: Vec<String>,
    threads: usize,
    range: Option<(u64, u64)>,
    overrides: Overrides,
    bug: Option<String>,
}

impl Report {
    pub(super) fn new(campaign: &Campaign) -> Report {
        let (first, last) = (campaign.seeds.iter().min(), campaign.seeds.iter().max());
        Report {
            seeds: 0,
            twice: 0,
            took: Duration::ZERO,
            simulated: 0,
            operations: (0, 0),
            coverage: BTreeMap::new(),
            failures: Vec::new(),
            more_failures: 0,
            shortfalls: Vec::new(),
            threads: campaign.threads,
            range: first.copied().zip(last.copied()),
            overrides: campaign.overrides.clone(),
            bug: None,
        }
    }

    /// The same, of a campaign in which this bug was awake.
    #[must_use]
    pub fn with_bug(self, bug: Option<String>) -> Report {
        Report { bug, ..self }
    }

    pub(super) fn take(&mut self, result: SeedResult) {
        self.seeds += 1;
        self.twice += u64::from(result.twice);
        self.simulated += result.simulated;
        self.operations.0 += result.operations.0;
        self.operations.1 += result.operations.1;
        for (name, times) in result.coverage {
            *self.coverage.entry(name).or_default() += times;
        }
        if result.violations.is_empty() {
            return;
        }
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(Failure { seed: result.seed, violations: result.violations });
        } else {
            self.more_failures += 1;
        }
    }

    pub(super) fn finish(&mut self, took: Duration) {
        self.took = took;
        self.failures.sort_by_key(|failure| failure.seed);
        self.shortfalls = shortfalls(&self.coverage, self.seeds, &self.overrides);
    }

    /// Whether nothing was found and everything was reached.
    #[must_use]
    pub fn is_green(&self) -> bool {
        self.failures.is_empty() && self.shortfalls.is_empty()
    }

    /// Every failing seed with what happened and the command that replays it; empty if there is none.
    #[must_use]
    pub fn describe_failures(&self) -> String {
        let mut text = String::new();
        for failure in &self.failures {
            text.push_str(&format!("seed {} failed:\n", failure.seed));
            for violation in failure.violations.iter().take(VIOLATIONS_SHOWN) {
                text.push_str(&format!("  {violation}\n"));
            }
            let hidden = failure.violations.len().saturating_sub(VIOLATIONS_SHOWN);
            if hidden > 0 {
                text.push_str(&format!("  and {hidden} more\n"));
            }
            let command = replay_command(failure.seed, &self.overrides, self.bug.as_deref());
            text.push_str(&format!("  replay it: {command}\n"));
        }
        if self.more_failures > 0 {
            text.push_str(&format!("and {} more seeds failed\n", self.more_failures));
        }
        text
    }

    fn figures(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64().max(0.001);
        let range = self.range.map_or(String::new(), |(first, last)| format!(", {first} to {last}"));
        let counted = |name: &str| grouped(self.coverage.get(name).copied().unwrap_or_default());
        writeln!(f, "seeds              {}{range}; {} of them twice", self.seeds, self.twice)?;
        writeln!(
            f,
            "wall time          {seconds:.1} s on {} threads, {:.2} seeds/s",
            self.threads,
            self.seeds as f64 / seconds
        )?;
        writeln!(f, "simulated          {:.2} h", self.simulated as f64 / (3_600 * SECOND) as f64)?;
        let (asked, answered) = self.operations;
        writeln!(f, "operations         {} asked, {} answered", grouped(asked), grouped(answered))?;
        writeln!(f, "leader changes     {}", counted(coverage::LEADER_CHANGE))?;
        writeln!(f, "snapshot installs  {}", counted(coverage::SNAPSHOT_INSTALLED))
    }

    fn reached(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let judged = is_judged(&self.overrides) && self.seeds >= coverage::SEEDS_TO_JUDGE;
        let heading = if judged { "at least" } else { "" };
        writeln!(f, "\n{:<40} {:>12} {heading:>10}", "reached", "times")?;
        for (name, per_thousand) in coverage::REQUIRED {
            let times = self.coverage.get(*name).copied().unwrap_or_default();
            let required = if judged { grouped(per_thousand * self.seeds / 1000) } else { String::new() };
            writeln!(f, "{name:<40} {:>12} {required:>10}", grouped(times))?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.figures(f)?;
        self.reached(f)?;
        writeln!(f)?;
        f.write_str(&self.describe_failures())?;
        for shortfall in &self.shortfalls {
            writeln!(f, "not reached often enough: {shortfall}")?;
        }
        let failed = self.failures.len() as u64 + self.more_failures;
        match self.is_green() {
            true => write!(f, "green: nothing found"),
            false => write!(f, "RED: {failed} seeds failed, {} paths not reached", self.shortfalls.len()),
        }
    }
}

/// The command that does the same again, with a trace to read.
#[must_use]
pub fn replay_command(seed: u64, overrides: &Overrides, bug: Option<&str>) -> String {
    let bug = bug.map_or(String::new(), |bug| format!("--bug {bug} "));
    format!("cargo xtask sim {bug}--seed {seed} {}", overrides.arguments()).trim_end().to_string()
}

/// A count with separators: 1,234,567.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Report {
        let overrides = Overrides { quiet_network: true, ..Overrides::default() };
        Report::new(&Campaign { seeds: vec![3, 1, 2], threads: 2, overrides, stop_at_first: false })
    }

    fn result(seed: u64, violations: Vec<Violation>) -> SeedResult {
        let coverage = BTreeMap::from([(coverage::CRASH.to_string(), 2)]);
        SeedResult { seed, violations, simulated: SECOND, operations: (10, 9), coverage, twice: seed == 2 }
    }

    fn violation(message: &str) -> Violation {
        Violation { invariant: "R2", checker: "durable", message: message.to_string() }
    }

    /// A red run is worth as much as the command that shows it again: with everything that was changed, and
    /// with the bug that was awake.
    #[test]
    fn a_failure_is_shown_with_the_command_that_replays_it() {
        let mut report = empty();
        report.take(result(3, vec![violation("lost")]));
        report.take(result(2, Vec::new()));
        report.take(result(1, (0..7).map(|n| violation(&n.to_string())).collect()));
        report.finish(Duration::from_secs(2));
        assert!(!report.is_green());
        let text = report.describe_failures();
        assert!(text.contains("R2 (durable): lost\n  replay it: cargo xtask sim --seed 3 --quiet-network\n"), "{text}");
        assert!(text.contains("and 2 more\n"), "{text}");
        assert!(text.find("seed 1 failed") < text.find("seed 3 failed"), "{text}");
        let text = report.with_bug(Some("a-bug".to_string())).describe_failures();
        assert!(text.contains("cargo xtask sim --bug a-bug --seed 3 --quiet-network"), "{text}");
    }

    /// The figures are quoted; each seed must count once.
    #[test]
    fn figures_are_sums_over_the_seeds() {
        let mut report = empty();
        (1..=3).for_each(|seed| report.take(result(seed, Vec::new())));
        report.finish(Duration::from_secs(2));
        assert!(report.is_green());
        assert_eq!((report.seeds, report.twice, report.simulated, report.operations), (3, 1, 3 * SECOND, (30, 27)));
        assert_eq!(report.coverage[coverage::CRASH], 6);
        let text = report.to_string();
        assert!(text.contains("1.50 seeds/s") && text.ends_with("green: nothing found"), "{text}");
    }

    /// A thousand broken seeds must not fill the memory or the screen.
    #[test]
    fn failures_are_bounded_and_the_rest_is_counted() {
        let mut report = empty();
        let many = FAILURES_MAX as u64 + 3;
        (0..many).for_each(|seed| report.take(result(seed, vec![violation("x")])));
        assert_eq!((report.failures.len(), report.more_failures), (FAILURES_MAX, 3));
        assert!(report.describe_failures().ends_with("and 3 more seeds failed\n"));
    }

    /// A campaign that lost a kind of fault finds nothing and must still be red.
    #[test]
    fn a_campaign_that_reached_nothing_is_red() {
        let mut report = empty();
        report.overrides = Overrides::default();
        (0..coverage::SEEDS_TO_JUDGE).for_each(|seed| report.take(result(seed, Vec::new())));
        report.finish(Duration::from_secs(2));
        assert!(!report.is_green() && report.failures.is_empty());
        assert!(report.to_string().contains("not reached often enough: path: snapshot install"));
    }
}
