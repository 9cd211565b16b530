//! The page that `--publish` writes beside the figures and charts: what people look at first.
//!
//! It is made from the JSON files of the directory, not from the run, so that suites published one by one end up on one
//! page, each with the command, the commit and the day it comes from.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::report::RATIO;
use crate::Result;

/// Options whose values are files of one machine: of no use to somebody who runs the command elsewhere.
const FILE_OPTIONS: [&str; 5] = ["--tidelock-bin", "--etcd-bin", "--zookeeper-jars", "--redis-bin", "--json"];
/// Suites in the order of the page, with what they show.
const SUITES: [(&str, &str); 11] = [
    ("etcd", "Operations of etcd's protocol"),
    ("zookeeper", "Operations of ZooKeeper's protocol"),
    ("locks", "Locks: one each, and one handed on"),
    ("native", "Sessions with a lock each, and phasers of 10,000 parties"),
    ("watch", "Watchers and the writes they are told of"),
    ("leases", "Leases with a key each, and their renewals"),
    ("memory", "Memory of 1,000,000 keys, and restarts"),
    ("failover", "The leader killed or stopped: time to the first write"),
    ("background", "The worst request during compaction and snapshot"),
    ("overload", "More than the server can do"),
    ("growth", "How costs grow with keys, watchers, leases and members"),
];
/// Charts that are shown; the others are linked.
const SHOWN: [&str; 10] = [
    "ops-s",
    "cpu-us",
    "locks-s",
    "acquire-p99",
    "b-session",
    "phase-p50",
    "b-lease",
    "first-write-after",
    "restarted-rss",
    "goodput-s",
];

/// The arguments of a command without files of this machine.
pub(super) fn without_files(arguments: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut skip = false;
    for argument in arguments {
        let is_value = std::mem::take(&mut skip);
        if is_value {
            continue;
        }
        let (name, has_value) = argument.split_once('=').map_or((argument.as_str(), false), |(name, _)| (name, true));
        if FILE_OPTIONS.contains(&name) {
            skip = !has_value;
        } else {
            kept.push(argument.clone());
        }
    }
    kept
}

/// Removes the charts of an earlier publication of `suite`: those of cases that are no more would stay for ever.
pub(super) fn remove_charts(directory: &Path, suite: &str) {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for file in files {
        let name = file.file_name().to_string_lossy().into_owned();
        if name.starts_with(&format!("{suite}-")) && name.ends_with(".svg") {
            // One that stays is seen when the change is looked at.
            let _ = std::fs::remove_file(file.path());
        }
    }
}

/// Writes README.md into `directory`, from the suites that are published there.
pub(super) fn write_page(directory: &Path) -> Result<PathBuf> {
    let mut suites = Vec::new();
    for (suite, title) in SUITES {
        let file = directory.join(format!("{suite}.json"));
        if let Ok(text) = std::fs::read_to_string(&file) {
            let value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
            suites.push((suite, title, value));
        }
    }
    let page = directory.join("README.md");
    std::fs::write(&page, page_of(&suites)).map_err(|error| format!("{}: {error}", page.display()))?;
    Ok(page)
}

fn page_of(suites: &[(&str, &str, Value)]) -> String {
    let mut page = "# Benchmarks\n\nWritten by `cargo xtask bench --publish`; do not edit. Each suite runs all systems in one run on \
                    one machine, taking turns, fsync on, and reports medians. What is sent, and what the columns mean, \
                    is in [internals/benchmarks.md](../internals/benchmarks.md).\n\n| Suite | Command | Commit | Day |\n\
                    | --- | --- | --- | --- |\n"
        .to_string();
    for (suite, title, value) in suites {
        let environment = &value["environment"];
        let _ = writeln!(
            page,
            "| [{title}](#{suite}) | `{}` | {} | {} |",
            command_of(environment),
            environment["commit"].as_str().unwrap_or("unknown"),
            day_of(environment["unix_time"].as_u64().unwrap_or(0)),
        );
    }
    for (suite, title, value) in suites {
        let _ = write!(page, "\n## {suite}\n\n{title}. {}\n\n", machine_of(&value["environment"]));
        let words = |name: &str| value[name].as_str().unwrap_or_default();
        let _ = write!(page, "```text\n{}{RATIO}\n{}```\n", words("tables"), words("notes"));
        if let Some(capacity) = value["capacity"].as_str() {
            let _ = write!(page, "\nWhat is usually estimated for a lock service, and what this run measured:\n\n");
            let _ = write!(page, "```text\n{capacity}```\n");
        }
        charts_of(&mut page, value);
        let _ = write!(page, "\nEvery round: [{suite}.json]({suite}.json).\n");
    }
    page
}

fn charts_of(page: &mut String, value: &Value) {
    let names: Vec<&str> = value["charts"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let is_shown = |name: &&str| SHOWN.iter().any(|shown| name.contains(shown));
    let (shown, linked): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| is_shown(name));
    for name in shown {
        let _ = write!(page, "\n![{}]({name})\n", name.trim_end_matches(".svg"));
    }
    if !linked.is_empty() {
        let links: Vec<String> =
            linked.iter().map(|name| format!("[{}]({name})", name.trim_end_matches(".svg"))).collect();
        let _ = write!(page, "\nMore charts: {}.\n", links.join(", "));
    }
}

fn command_of(environment: &Value) -> String {
    let words = environment["command"].as_array().into_iter().flatten().filter_map(Value::as_str);
    std::iter::once("cargo xtask").chain(words).collect::<Vec<_>>().join(" ")
}

fn machine_of(environment: &Value) -> String {
    let number = |name: &str| environment[name].as_u64().unwrap_or(0);
    format!(
        "On {} x {}, Linux {}; a 4 KiB append with fdatasync took {} us there (median; worst {} us).",
        number("processors"),
        environment["processor"].as_str().unwrap_or("unknown"),
        environment["kernel"].as_str().unwrap_or("unknown"),
        number("fdatasync_us_median"),
        number("fdatasync_us_max"),
    )
}

/// The day of a moment, as 2026-11-16: days since 1970 counted in eras of 400 years that begin in March, so that a leap
/// day is the last of its year.
fn day_of(unix_time: u64) -> String {
    let days = unix_time / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", year + era * 400 + next)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page that says when and how is the only evidence that figures are not old.
    #[test]
    fn the_page_says_for_each_published_suite_how_and_when_it_was_run() {
        let directory = tempfile::tempdir().unwrap();
        let environment =
            serde_json::json!({ "command": ["bench", "locks"], "commit": "abc", "unix_time": 1_794_814_298_u64 });
        let suite = serde_json::json!({
            "environment": environment, "tables": "the table\n", "capacity": "the estimate\n",
            "charts": ["locks-locks-s.svg", "locks-cycle-p50.svg"],
        });
        std::fs::write(directory.path().join("locks.json"), suite.to_string()).unwrap();
        let page = std::fs::read_to_string(write_page(directory.path()).unwrap()).unwrap();
        for expected in [
            "`cargo xtask bench locks` | abc | 2026-11-16",
            "the table\nratio",
            "the estimate\n",
            "![locks-locks-s](locks-locks-s.svg)",
            " [locks-cycle-p50](locks-cycle-p50.svg)",
        ] {
            assert!(page.contains(expected), "{expected}: {page}");
        }
    }

    /// Files of the machine that measured are of no use in a published command.
    #[test]
    fn a_published_command_names_no_files() {
        let given = ["bench", "--tidelock-bin", "/x", "locks", "--etcd-bin=/y", "--seconds", "3"].map(str::to_string);
        assert_eq!(without_files(&given), ["bench", "locks", "--seconds", "3"]);
    }

    /// Off by one at the end of February puts every figure on the wrong day.
    #[test]
    fn days_are_those_of_the_calendar() {
        for (time, day) in
            [(0, "1970-01-01"), (951_782_400, "2000-02-29"), (951_868_800, "2000-03-01"), (1_735_689_599, "2024-12-31")]
        {
            assert_eq!(day_of(time), day);
        }
    }
}
