//! The capacity table: what is usually estimated for a lock service, and what this run measured of it.
//!
//! The estimate is for 4,000 services with 10 locks a second each and 500 who wait at the busiest lock. A line that this
//! run did not measure names the command that does. The page about it is docs/native/capacity.md.

use super::figures::Unit;
use super::locks::{CAPACITY_WAITERS, EACH, ONE, ONE_OF_OURS};
use super::native::{OPEN_AND_LOCK, QUICK_SESSIONS, SESSION_AND_LOCK, SESSIONS};
use super::report::Report;
use crate::table::{Table, grouped};

/// Workers of the case that lock operations are counted in.
const BUSY_WORKERS: u64 = 1000;
const RELEASES_PER_S: f64 = 100.0;
/// Of the lines about the memory of leases and of sessions.
const MILLION: f64 = 1e6;

/// The table, if the suite `locks` was run with ours in it.
pub(super) fn text(report: &Report) -> Option<String> {
    let lock = |case: &str, workers: u64, figure: &str| report.ours("locks", case, workers, figure);
    let per_s = lock(EACH, BUSY_WORKERS, "locks/s")?;
    let nodes = report.nodes_of("locks")?;
    let mut table = Table::new(3, &["capacity", "estimate", "measured", "by"]).with_notes(1);
    let mut line = |what: &str, estimate: &str, measured: Option<String>, by: &str, otherwise: &str| {
        let by = if measured.is_some() { by } else { otherwise };
        let measured = measured.unwrap_or_else(|| "not in this run".to_string());
        table.row([what, estimate, &measured, by].map(str::to_string).to_vec());
    };
    let this = "cargo xtask bench locks";
    line("members", "3 or 5", Some(nodes.to_string()), "--nodes", "");
    let agree = format!("{} of {nodes}", nodes / 2 + 1);
    line("members that must agree", "2 of 3", Some(agree), "not a measurement: a majority, by Raft", "");
    let operations = Some(format!("{}/s", grouped((2.0 * per_s) as u64)));
    line(
        "lock operations",
        "40,000/s",
        operations.clone(),
        "this run: 1,000 workers, a lock each, taken and given back",
        "",
    );
    line(
        "writes through the leader",
        "40,000/s",
        operations,
        "this run: each of those is a write; puts: cargo xtask bench etcd",
        "",
    );
    let times = |case: &str, workers: u64| {
        let time = |name: &str| lock(case, workers, name).map(|value| Unit::Microseconds.text(value));
        Some(format!("p50 {}, p99 {}", time("acquire p50")?, time("acquire p99")?))
    };
    line("latency of a write", "1 to 5 ms", times(ONE, 1), "this run: a lock acquired by one worker", this);
    let told = lock(ONE_OF_OURS, CAPACITY_WAITERS, "received B/lock");
    let all_told = "this run: all that 500 workers of one lock receive, requests' answers included";
    line("told per release, 500 waiters", "500 KB", told.map(|bytes| Unit::Bytes.text(bytes)), all_told, this);
    let sent = told.map(|bytes| format!("{:.3} MB/s", bytes * RELEASES_PER_S / 1e6));
    line("sent to them, 100 releases/s", "50 MB/s", sent, "this run: the line above, 100 times", this);
    let rates: Vec<String> = [(ONE, 16), (ONE, 64), (ONE, 1000), (ONE_OF_OURS, 10_000)]
        .iter()
        .filter_map(|(case, workers)| {
            let rate = lock(case, *workers, "locks/s")?;
            Some(format!("{}/s among {}", grouped(rate as u64), grouped(*workers)))
        })
        .collect();
    line("hand-overs of one lock", "-", Some(rates.join(", ")), "this run", this);
    line("time to live", "10 to 30 s", Some("1 s to a day".to_string()), "not a measurement: docs/native/locks.md", "");
    line("clocks apart", "< 1 s", Some("does not matter".to_string()), "not a measurement: docs/native/locks.md", "");
    let leases = [super::leases::LEASES, super::leases::QUICK_LEASES]
        .into_iter()
        .find_map(|count| report.ours("leases", "grant, put, renew", count, "B/lease"));
    let of_a_million = |bytes: f64| format!("{:.0} MB", bytes * MILLION / 1e6);
    let leases = leases.map(of_a_million);
    line("a million leases", "200 MB", leases, "this run: the suite leases", "cargo xtask bench leases");
    let sessions = [SESSIONS, QUICK_SESSIONS]
        .into_iter()
        .find_map(|count| report.ours("native", OPEN_AND_LOCK, count, SESSION_AND_LOCK))
        .map(of_a_million);
    let native = "cargo xtask bench native";
    line("a million sessions with a lock", "-", sessions, "this run: the suite native", native);
    Some(table.text())
}

#[cfg(test)]
mod tests {
    use super::super::figures::Figures;
    use super::super::report::{Amount, Row};
    use super::*;
    use crate::environment::Environment;

    fn add(report: &mut Report, case: &str, workers: u64, figures: &[(&'static str, Unit, f64)]) {
        add_to("locks", report, case, workers, figures);
    }

    fn add_to(suite: &'static str, report: &mut Report, case: &str, count: u64, figures: &[(&'static str, Unit, f64)]) {
        let mut all = Figures::default();
        figures.iter().for_each(|(name, unit, value)| all.add(name, *unit, *value));
        let amount = Amount { count, of: "workers" };
        let (systems, members) = (vec!["tidelock".to_string()], vec![3]);
        let (case, rounds) = (case.to_string(), vec![vec![all]]);
        report.add(Row { suite, nodes: 3, case, amount, systems, members, rounds });
    }

    /// Figures of another run, or of another line, would be planned with.
    #[test]
    fn what_was_measured_stands_beside_the_estimate_and_the_rest_names_its_command() {
        let mut report = Report::new(Environment::default());
        assert_eq!(text(&report), None, "nothing was measured");
        add(&mut report, EACH, 1000, &[("locks/s", Unit::PerSecond, 30_000.0)]);
        add(&mut report, ONE_OF_OURS, 500, &[("received B/lock", Unit::Bytes, 250.0)]);
        let table = text(&report).unwrap();
        let line = |what: &str| table.lines().find(|line| line.starts_with(what)).unwrap().to_string();
        assert!(line("lock operations").contains(" 60,000/s "), "two operations for each lock: {table}");
        assert!(line("told per release").contains(" 250 B "), "{table}");
        assert!(line("sent to them").contains(" 0.025 MB/s "), "{table}");
        assert!(line("latency of a write").contains("not in this run  cargo xtask bench locks"), "{table}");
        assert!(line("a million leases").contains("not in this run  cargo xtask bench leases"), "{table}");
        assert!(line("a million sessions").contains("not in this run  cargo xtask bench native"), "{table}");
        add_to("native", &mut report, OPEN_AND_LOCK, SESSIONS, &[(SESSION_AND_LOCK, Unit::Bytes, 420.0)]);
        let table = text(&report).unwrap();
        let sessions = table.lines().find(|line| line.starts_with("a million sessions")).unwrap();
        assert!(sessions.contains(" 420 MB ") && sessions.ends_with("the suite native"), "{table}");
    }
}
