//! What the system knows of this process, under the names all Prometheus clients use. Linux tells it in
//! `/proc`; elsewhere nothing is told.

use std::fmt::Write as _;
use std::fs;

use super::head;

/// Appends what can be found out.
pub(super) fn write(out: &mut String) {
    let Ok(stat) = fs::read_to_string("/proc/self/stat") else { return };
    let boot = fs::read_to_string("/proc/stat").ok().and_then(|text| boot_time(&text));
    let ticks = rustix::param::clock_ticks_per_second();
    let page = rustix::param::page_size() as u64;
    if let Some(process) = Process::parse(&stat, ticks, page) {
        let (cpu, resident, virtual_bytes) = (process.cpu_seconds, process.resident, process.virtual_bytes);
        tell(out, "process_cpu_seconds_total", "counter", "Time spent on processors, in seconds.", cpu);
        tell(out, "process_resident_memory_bytes", "gauge", "Memory in use, in bytes.", resident);
        tell(out, "process_virtual_memory_bytes", "gauge", "Memory mapped, in bytes.", virtual_bytes);
        if let Some(boot) = boot {
            let started = boot as f64 + process.started;
            tell(out, "process_start_time_seconds", "gauge", "When this process started, since 1970.", started);
        }
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        // One of them is the directory being read.
        let open = files.count().saturating_sub(1);
        tell(out, "process_open_fds", "gauge", "Open files and connections.", open);
    }
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    if let Some(most) = most_files(&limits) {
        tell(out, "process_max_fds", "gauge", "Files and connections that may be open.", most);
    }
}

fn tell(out: &mut String, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
    head(out, name, kind, help);
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{name} {value}");
}

#[derive(Debug, PartialEq)]
struct Process {
    cpu_seconds: f64,
    /// Seconds after the machine's start.
    started: f64,
    virtual_bytes: u64,
    resident: u64,
}

impl Process {
    /// From the line in `/proc/self/stat`. The name of the program is in parentheses and may hold anything, so
    /// fields are counted from its end.
    fn parse(stat: &str, ticks: u64, page: u64) -> Option<Process> {
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // The state, which is field 3 in the manual, comes first here.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let seconds = |ticked: u64| ticked as f64 / ticks.max(1) as f64;
        Some(Process {
            cpu_seconds: seconds(field(14)? + field(15)?),
            started: seconds(field(22)?),
            virtual_bytes: field(23)?,
            resident: field(24)? * page,
        })
    }
}

fn boot_time(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn most_files(limits: &str) -> Option<u64> {
    limits.lines().find_map(|line| line.strip_prefix("Max open files"))?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory alerts are built on this; a program name with spaces must not shift the fields.
    #[test]
    fn the_line_is_read_whatever_the_program_is_called() {
        let fields: Vec<String> = (4..=24).map(|number| number.to_string()).collect();
        let stat = format!("7 (a) (b c) S {}", fields.join(" "));
        let expected = Process { cpu_seconds: 0.29, started: 0.22, virtual_bytes: 23, resident: 24 * 4096 };
        assert_eq!(Process::parse(&stat, 100, 4096), Some(expected));
        assert_eq!(Process::parse("nonsense", 100, 4096), None);
        assert_eq!(boot_time("cpu 1\nbtime 1700000000\n"), Some(1_700_000_000));
        assert_eq!(
            most_files("Max open files            1024                 4096                 files\n"),
            Some(1024)
        );
    }
}
