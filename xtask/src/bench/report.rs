//! The figures as a table for people and as JSON for everything else.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::Workload;
use super::cell::Sample;
use crate::environment::Environment;
use crate::table::{self, Table};
use crate::{Result, workspace};

/// One cell of all systems.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) nodes: usize,
    pub(super) workload: Workload,
    pub(super) in_flight: usize,
    /// The rounds of each system, in the order of [`Report::systems`].
    pub(super) samples: Vec<Vec<Sample>>,
}

/// All cells.
#[derive(Serialize)]
pub(super) struct Report {
    environment: Environment,
    systems: Vec<String>,
    rows: Vec<SavedRow>,
}

#[derive(Serialize)]
struct SavedRow {
    #[serde(flatten)]
    row: Row,
    /// Metric by metric, so a median row need not be any one round.
    medians: Vec<Sample>,
}

impl Report {
    pub(super) fn new(environment: Environment, systems: Vec<String>) -> Report {
        Report { environment, systems, rows: Vec::new() }
    }

    /// Adds a cell and says it in one line per system, for people who watch.
    pub(super) fn add(&mut self, row: Row) -> String {
        let medians: Vec<Sample> = row.samples.iter().map(|samples| median_of(samples)).collect();
        let mut text = String::new();
        for (system, median) in self.systems.iter().zip(&medians) {
            let workload = workload_name(row.workload);
            text.push_str(&format!(
                "{} x {system}, {workload}, {} in flight: {} ops/s, p99 {}, {:.1} us CPU/op\n",
                row.nodes,
                row.in_flight,
                table::grouped(median.ops_per_s as u64),
                us(median.p99_us),
                median.server_cpu_us_per_op
            ));
        }
        self.rows.push(SavedRow { row, medians });
        text
    }

    /// The table: a line per system and cell, and below a pair how ours compares.
    pub(super) fn text(&self) -> String {
        let mut table = Table::new(
            3,
            &[
                "nodes",
                "work",
                "system",
                "in flight",
                "ops/s",
                "p50",
                "p99",
                "p99.9",
                "max",
                "CPU us/op",
                "client us/op",
                "RSS MiB",
                "failed",
            ],
        );
        for SavedRow { row, medians } in &self.rows {
            for (system, sample) in self.systems.iter().zip(medians) {
                table.row(cells(row, system, sample));
            }
            if let [ours, peer] = medians.as_slice() {
                table.row(ratios(ours, peer));
            }
        }
        let mut text = table.text();
        if let [ours, peer] = self.systems.as_slice() {
            text.push_str(&format!("\nratio: {ours} divided by {peer}\n"));
        }
        text
    }

    /// Writes JSON to the target directory, and to `also` if given; says where.
    pub(super) fn save(&self, also: Option<&Path>) -> Result<Vec<PathBuf>> {
        let json = serde_json::to_string_pretty(self).map_err(|error| format!("encoding results: {error}"))?;
        let usual = workspace::target().join("bench").join(format!("bench-{}.json", self.environment.unix_time));
        let mut written = Vec::new();
        for path in [Some(usual.as_path()), also].into_iter().flatten() {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            parent
                .map_or(Ok(()), std::fs::create_dir_all)
                .and_then(|()| std::fs::write(path, &json))
                .map_err(|error| format!("{}: {error}", path.display()))?;
            written.push(path.to_path_buf());
        }
        Ok(written)
    }
}

fn workload_name(workload: Workload) -> &'static str {
    match workload {
        Workload::Put => "put",
        Workload::Get => "get",
    }
}

fn us(us: f64) -> String {
    table::duration(Duration::from_secs_f64(us / 1e6))
}

fn cells(row: &Row, system: &str, sample: &Sample) -> Vec<String> {
    vec![
        row.nodes.to_string(),
        workload_name(row.workload).to_string(),
        system.to_string(),
        table::grouped(row.in_flight as u64),
        table::grouped(sample.ops_per_s as u64),
        us(sample.p50_us),
        us(sample.p99_us),
        us(sample.p999_us),
        us(sample.max_us),
        format!("{:.1}", sample.server_cpu_us_per_op),
        format!("{:.1}", sample.client_cpu_us_per_op),
        format!("{:.0}", sample.resident_bytes / f64::from(1 << 20)),
        table::grouped(sample.failed),
    ]
}

fn ratios(ours: &Sample, peer: &Sample) -> Vec<String> {
    let ratio = |get: fn(&Sample) -> f64| match get(peer) {
        0.0 => "-".to_string(),
        of_peer => format!("{:.2}x", get(ours) / of_peer),
    };
    let mut row = vec![String::new(), String::new(), "ratio".to_string(), String::new()];
    row.extend([
        ratio(|sample| sample.ops_per_s),
        ratio(|sample| sample.p50_us),
        ratio(|sample| sample.p99_us),
        ratio(|sample| sample.p999_us),
        ratio(|sample| sample.max_us),
        ratio(|sample| sample.server_cpu_us_per_op),
        ratio(|sample| sample.client_cpu_us_per_op),
        ratio(|sample| sample.resident_bytes),
    ]);
    row
}

/// The median of each metric over the rounds; the mean of the middle two if their number is even.
fn median_of(samples: &[Sample]) -> Sample {
    let median = |get: fn(&Sample) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(get).collect();
        values.sort_unstable_by(f64::total_cmp);
        let upper = values.len() / 2;
        if values.len() % 2 == 1 { values[upper] } else { f64::midpoint(values[upper - 1], values[upper]) }
    };
    Sample {
        operations: median(|sample| sample.operations as f64) as u64,
        // Not a median: a failure in one round out of three must not vanish.
        failed: samples.iter().map(|sample| sample.failed).sum(),
        seconds: median(|sample| sample.seconds),
        ops_per_s: median(|sample| sample.ops_per_s),
        p50_us: median(|sample| sample.p50_us),
        p99_us: median(|sample| sample.p99_us),
        p999_us: median(|sample| sample.p999_us),
        max_us: median(|sample| sample.max_us),
        server_cpu_us_per_op: median(|sample| sample.server_cpu_us_per_op),
        client_cpu_us_per_op: median(|sample| sample.client_cpu_us_per_op),
        resident_bytes: median(|sample| sample.resident_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ops_per_s: f64, failed: u64) -> Sample {
        Sample {
            operations: 10,
            failed,
            seconds: 1.0,
            ops_per_s,
            p50_us: 1.0,
            p99_us: 2.0,
            p999_us: 3.0,
            max_us: 4.0,
            server_cpu_us_per_op: 0.0,
            client_cpu_us_per_op: 6.0,
            resident_bytes: 7.0,
        }
    }

    /// One disturbed round must not move the figure, and one failure must not disappear in it.
    #[test]
    fn the_median_ignores_an_outlier_but_no_failure() {
        let median = median_of(&[sample(100.0, 0), sample(1.0, 3), sample(110.0, 0)]);
        assert_eq!((median.ops_per_s, median.failed), (100.0, 3));
        assert_eq!(median_of(&[sample(100.0, 0), sample(110.0, 0)]).ops_per_s, 105.0);
    }

    /// Ours over theirs, not the other way round: everything said about the figures hangs on it.
    #[test]
    fn the_ratio_is_ours_divided_by_the_peers() {
        let ratios = ratios(&sample(300.0, 0), &sample(100.0, 0));
        assert_eq!(ratios[4], "3.00x");
        assert_eq!(ratios[9], "-", "no division by zero");
    }
}
