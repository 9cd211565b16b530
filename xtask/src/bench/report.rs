//! The figures as tables for people, as JSON for everything else, and as charts.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::figures::{Figures, median_of};
use super::{capacity, chart, publication};
use crate::environment::Environment;
use crate::table::Table;
use crate::{Result, workspace};

/// How ratios are to be read.
pub(super) const RATIO: &str =
    "ratio: ours divided by the peer's; above 1 is better for what is counted per second, below 1 for the rest";

/// One case of all systems.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// The suite it belongs to.
    pub(super) suite: &'static str,
    /// Members of the cluster.
    pub(super) nodes: usize,
    /// What was done.
    pub(super) case: String,
    /// With how much of it: what a curve is drawn over.
    pub(super) amount: Amount,
    /// The systems, ours first.
    pub(super) systems: Vec<String>,
    /// Members of each: Redis has one, whatever the others have.
    pub(super) members: Vec<usize>,
    /// The rounds of each system.
    pub(super) rounds: Vec<Vec<Figures>>,
}

/// So many of something.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Amount {
    pub(super) count: u64,
    pub(super) of: &'static str,
}

/// All cases.
#[derive(Serialize)]
pub(super) struct Report {
    environment: Environment,
    rows: Vec<SavedRow>,
    /// What a reader has to know beside the figures of a suite.
    notes: Vec<(&'static str, &'static str)>,
}

#[derive(Serialize)]
pub(super) struct SavedRow {
    #[serde(flatten)]
    pub(super) row: Row,
    /// Figure by figure, so a median need not be any one round.
    pub(super) medians: Vec<Figures>,
}

impl Report {
    pub(super) fn new(environment: Environment) -> Report {
        Report { environment, rows: Vec::new(), notes: Vec::new() }
    }

    /// Adds a sentence that is printed below the tables of a suite, once.
    pub(super) fn note(&mut self, suite: &'static str, note: &'static str) {
        if !self.notes.contains(&(suite, note)) {
            self.notes.push((suite, note));
        }
    }

    fn notes_of(&self, suite: &str) -> String {
        let notes = self.notes.iter().filter(|(of, _)| *of == suite);
        notes.map(|(_, note)| format!("{note}\n")).collect()
    }

    /// A figure of the first system, of the case with so much of it.
    pub(super) fn ours(&self, suite: &str, case: &str, count: u64, figure: &str) -> Option<f64> {
        let of = |row: &&SavedRow| row.row.suite == suite && row.row.case == case && row.row.amount.count == count;
        let row = self.rows.iter().rev().find(of)?;
        let first = row.row.systems.first().filter(|name| *name == "tidelock");
        first.and_then(|_| row.medians.first()?.get(figure))
    }

    /// Members of the clusters of the first case of `suite`.
    pub(super) fn nodes_of(&self, suite: &str) -> Option<usize> {
        self.rows.iter().find(|row| row.row.suite == suite).map(|row| row.row.nodes)
    }

    /// Adds a case and says it in one line per system, for people who watch.
    pub(super) fn add(&mut self, row: Row) -> String {
        let medians: Vec<Figures> = row.rounds.iter().map(|rounds| median_of(rounds)).collect();
        let mut text = String::new();
        for ((system, members), median) in row.systems.iter().zip(&row.members).zip(&medians) {
            let figures: Vec<String> =
                median.0.iter().map(|figure| format!("{} {}", figure.name, figure.unit.text(figure.value))).collect();
            text.push_str(&format!(
                "{members} x {system}, {}, {} {}: {}\n",
                row.case,
                row.amount.count,
                row.amount.of,
                figures.join(", ")
            ));
        }
        self.rows.push(SavedRow { row, medians });
        text
    }

    /// One table for rows with the same figures: a line per system and case, and below a pair how ours compares.
    pub(super) fn text(&self) -> String {
        let mut text = tables_of(&self.rows.iter().collect::<Vec<_>>());
        text.push_str(&format!("{RATIO}\n"));
        for (_, note) in &self.notes {
            text.push_str(&format!("{note}\n"));
        }
        text
    }

    /// Writes JSON to the target directory, and to `also` if given; JSON and charts to `publish` if given. Says where.
    pub(super) fn save(&self, also: Option<&Path>, publish: Option<&Path>) -> Result<Vec<PathBuf>> {
        let json = serde_json::to_string_pretty(self).map_err(|error| format!("encoding results: {error}"))?;
        let name = format!("bench-{}", self.environment.unix_time);
        let mut files = vec![(workspace::target().join("bench").join(format!("{name}.json")), json.clone())];
        files.extend(also.map(|path| (path.to_path_buf(), json)));
        if let Some(directory) = publish {
            let mut suites: Vec<&'static str> = self.rows.iter().map(|row| row.row.suite).collect();
            suites.dedup();
            for suite in suites {
                let rows: Vec<&SavedRow> = self.rows.iter().filter(|row| row.row.suite == suite).collect();
                publication::remove_charts(directory, suite);
                let charts = chart::all(suite, &rows);
                let part = serde_json::json!({
                    "environment": self.environment,
                    "rows": rows,
                    "tables": tables_of(&rows),
                    "notes": self.notes_of(suite),
                    "charts": charts.iter().map(|(name, _)| name).collect::<Vec<_>>(),
                    "capacity": (suite == "locks").then(|| capacity::text(self)).flatten(),
                });
                let text = serde_json::to_string_pretty(&part).map_err(|error| format!("encoding results: {error}"))?;
                files.push((directory.join(format!("{suite}.json")), text));
                files.extend(charts.into_iter().map(|(name, svg)| (directory.join(name), svg)));
            }
        }
        for (path, text) in &files {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            parent
                .map_or(Ok(()), std::fs::create_dir_all)
                .and_then(|()| std::fs::write(path, text))
                .map_err(|error| format!("{}: {error}", path.display()))?;
        }
        let mut paths: Vec<PathBuf> = files.into_iter().map(|(path, _)| path).collect();
        if let Some(directory) = publish {
            paths.push(publication::write_page(directory)?);
        }
        Ok(paths)
    }
}

fn heading(row: &SavedRow) -> Vec<&'static str> {
    let amount = row.row.amount.of;
    let figures = row.medians.first().into_iter().flat_map(|figures| &figures.0).map(|figure| figure.name);
    std::iter::once(amount).chain(figures).collect()
}

fn tables_of(mut rows: &[&SavedRow]) -> String {
    let mut text = String::new();
    while let Some(first) = rows.first() {
        let alike = rows.iter().take_while(|row| heading(row) == heading(first)).count();
        let (group, rest) = rows.split_at(alike);
        text.push_str(&table_of(group));
        text.push('\n');
        rows = rest;
    }
    text
}

fn table_of(rows: &[&SavedRow]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let mut header = vec!["nodes", "work", "system"];
    header.extend(heading(first));
    let mut table = Table::new(3, &header);
    for SavedRow { row, medians } in rows {
        for ((system, members), figures) in row.systems.iter().zip(&row.members).zip(medians) {
            let mut cells = vec![members.to_string(), row.case.clone(), system.clone()];
            cells.push(crate::table::grouped(row.amount.count));
            cells.extend(figures.0.iter().map(|figure| figure.unit.text(figure.value)));
            table.row(cells);
        }
        if let [ours, peers @ ..] = medians.as_slice() {
            for (peer, name) in peers.iter().zip(&row.systems[1..]) {
                table.row(ratios(ours, peer, name));
            }
        }
    }
    table.text()
}

fn ratios(ours: &Figures, peer: &Figures, name: &str) -> Vec<String> {
    let ratio = |figure: &super::figures::Figure| match peer.get(figure.name) {
        _ if !figure.is_compared() => String::new(),
        None | Some(0.0) => "-".to_string(),
        Some(of_peer) => format!("{:.2}x", figure.value / of_peer),
    };
    let mut row = vec![String::new(), String::new(), format!("ratio to {name}"), String::new()];
    row.extend(ours.0.iter().map(ratio));
    row
}

#[cfg(test)]
mod tests {
    use super::super::figures::Unit;
    use super::*;

    fn figures(ops: f64, cpu: f64) -> Figures {
        let mut figures = Figures::default();
        figures.add("ops/s", Unit::PerSecond, ops);
        figures.add("CPU us/op", Unit::CpuMicroseconds, cpu);
        figures
    }

    /// Ours over theirs, not the other way round: everything said about the figures hangs on it.
    #[test]
    fn the_ratio_is_ours_divided_by_the_peers() {
        let ratios = ratios(&figures(300.0, 1.0), &figures(100.0, 0.0), "a peer");
        assert_eq!(ratios[4..], ["3.00x", "-"], "and no division by zero");
    }
}
