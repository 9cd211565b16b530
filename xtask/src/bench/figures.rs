//! What one round of one case gave: named figures with a unit, so that every suite has its own and one report prints
//! them all.

use std::time::Duration;

use serde::Serialize;
use tidelock_load::Done;

use crate::table;

/// How a figure is written, and which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unit {
    /// Something per second; more is better.
    PerSecond,
    /// A time as a client sees it; less is better.
    Microseconds,
    /// Processor time for one operation; less is better.
    CpuMicroseconds,
    /// Memory; less is better.
    Bytes,
    /// A time of which the worst round counts; less is better.
    WorstMicroseconds,
    /// A number that says how the rest is to be read.
    Count,
    /// How often something happened that must not; all rounds count.
    Faults,
}

impl Unit {
    /// The figure in words.
    pub(super) fn text(self, value: f64) -> String {
        match self {
            Unit::PerSecond if value < 100.0 => format!("{value:.1}"),
            Unit::PerSecond | Unit::Count | Unit::Faults => table::grouped(value as u64),
            Unit::Microseconds | Unit::WorstMicroseconds => {
                table::duration(Duration::from_secs_f64(value.max(0.0) / 1e6))
            }
            Unit::CpuMicroseconds => format!("{value:.1}"),
            Unit::Bytes if value < 65_536.0 => format!("{value:.0} B"),
            Unit::Bytes if value < 1_048_576.0 => format!("{:.0} KiB", value / 1024.0),
            Unit::Bytes if value < 10_485_760.0 => format!("{:.1} MiB", value / f64::from(1 << 20)),
            Unit::Bytes => format!("{:.0} MiB", value / f64::from(1 << 20)),
        }
    }
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    pub(super) value: f64,
}

impl Figure {
    /// Whether charts show it, and systems are compared by it.
    pub(super) fn is_compared(&self) -> bool {
        !matches!(self.unit, Unit::Count | Unit::Faults)
    }
}

/// The figures of one round.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct Figures(pub(super) Vec<Figure>);

impl Figures {
    /// Adds one.
    pub(super) fn add(&mut self, name: &'static str, unit: Unit, value: f64) {
        self.0.push(Figure { name, unit, value });
    }

    /// Adds a time.
    pub(super) fn add_time(&mut self, name: &'static str, time: Duration) {
        self.add(name, Unit::Microseconds, time.as_secs_f64() * 1e6);
    }

    /// Adds a time of which the worst round counts.
    pub(super) fn add_worst(&mut self, name: &'static str, time: Duration) {
        self.add(name, Unit::WorstMicroseconds, time.as_secs_f64() * 1e6);
    }

    /// What every load is reported by.
    pub(super) fn of_load(done: &Done, used: &Used) -> Figures {
        let operations = done.latencies.count().max(1) as f64;
        let mut figures = Figures::default();
        figures.add("ops/s", Unit::PerSecond, operations / done.elapsed.as_secs_f64().max(1e-9));
        for (name, per_mille) in [("p50", 500), ("p99", 990), ("p99.9", 999)] {
            figures.add_time(name, done.latencies.quantile(per_mille));
        }
        figures.add_time("max", done.latencies.max());
        figures.add("CPU us/op", Unit::CpuMicroseconds, used.servers.as_secs_f64() * 1e6 / operations);
        figures.add("client us/op", Unit::CpuMicroseconds, used.client.as_secs_f64() * 1e6 / operations);
        figures.add("RSS", Unit::Bytes, used.resident as f64);
        figures.add("failed", Unit::Faults, done.failed as f64);
        figures
    }

    /// The figure of this name.
    pub(super) fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }
}

/// What was used while something ran.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    /// Processor time of all server processes.
    pub(super) servers: Duration,
    /// Processor time of this process.
    pub(super) client: Duration,
    /// Resident memory of all server processes at the end.
    pub(super) resident: u64,
}

/// The median of each figure over the rounds; the mean of the middle two if their number is even. Faults are summed, and of
/// worst times the worst counts: what happened in one round out of three must not vanish.
pub(super) fn median_of(rounds: &[Figures]) -> Figures {
    let Some(first) = rounds.first() else { return Figures::default() };
    let median = |figure: &Figure| {
        let mut values: Vec<f64> = rounds.iter().filter_map(|round| round.get(figure.name)).collect();
        values.sort_unstable_by(f64::total_cmp);
        let upper = values.len() / 2;
        let value = match figure.unit {
            Unit::Faults => values.iter().sum(),
            Unit::WorstMicroseconds => values.last().copied().unwrap_or_default(),
            _ if values.len() % 2 == 1 => values[upper],
            _ => f64::midpoint(values[upper - 1], values[upper]),
        };
        Figure { value, ..figure.clone() }
    };
    Figures(first.0.iter().map(median).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(ops: f64, failed: f64) -> Figures {
        let mut figures = Figures::default();
        figures.add("ops/s", Unit::PerSecond, ops);
        figures.add("failed", Unit::Faults, failed);
        figures.add_worst("worst", Duration::from_secs_f64(ops));
        figures
    }

    /// One disturbed round must not move the figure, and one failure must not disappear in it.
    #[test]
    fn the_median_ignores_an_outlier_but_no_failure_and_no_worst_time() {
        let median = median_of(&[figures(100.0, 0.0), figures(1.0, 3.0), figures(110.0, 0.0)]);
        assert_eq!((median.get("ops/s"), median.get("failed")), (Some(100.0), Some(3.0)));
        assert_eq!(median.get("worst"), Some(110e6));
        assert_eq!(median_of(&[figures(100.0, 0.0), figures(110.0, 0.0)]).get("ops/s"), Some(105.0));
    }
}
