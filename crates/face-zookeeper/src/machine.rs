//! What the system tells about this process and its machine, for operators; and dates as Java writes them.
//!
//! Linux tells it in `/proc`; elsewhere less is told.

use std::fs;

/// What ZooKeeper says of what there is not.
const NOT_AVAILABLE: &str = "<NA>";
/// ZooKeeper's names for what belongs to a Java virtual machine, of which there is none.
const OF_JAVA: [&str; 7] = [
    "java.version",
    "java.vendor",
    "java.home",
    "java.class.path",
    "java.library.path",
    "java.io.tmpdir",
    "java.compiler",
];

/// Open files and connections, and how many there may be; as far as the system tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) open: Option<u64>,
    pub(crate) most: Option<u64>,
}

/// Takes a moment with many connections: not on threads that serve others.
pub(crate) fn files() -> Files {
    // One of them is the directory being read.
    let open = fs::read_dir("/proc/self/fd").ok().map(|files| (files.count() as u64).saturating_sub(1));
    Files { open, most: most_files(&fs::read_to_string("/proc/self/limits").unwrap_or_default()) }
}

fn most_files(limits: &str) -> Option<u64> {
    limits.lines().find_map(|line| line.strip_prefix("Max open files"))?.split_ascii_whitespace().next()?.parse().ok()
}

/// The environment, by ZooKeeper's names and in its order. Blocks for a moment.
pub(crate) fn environment(version: &str) -> Vec<(&'static str, String)> {
    let line = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let variable = |name: &str| std::env::var(name).ok();
    let told = |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| NOT_AVAILABLE.to_owned());
    let mut all = vec![("zookeeper.version", version.to_owned())];
    all.push(("host.name", told(line("/proc/sys/kernel/hostname"))));
    all.extend(OF_JAVA.map(|name| (name, NOT_AVAILABLE.to_owned())));
    all.push(("os.name", told(line("/proc/sys/kernel/ostype")).replace(NOT_AVAILABLE, std::env::consts::OS)));
    all.push(("os.arch", std::env::consts::ARCH.to_owned()));
    all.push(("os.version", told(line("/proc/sys/kernel/osrelease"))));
    all.push(("user.name", told(variable("USER"))));
    all.push(("user.home", told(variable("HOME"))));
    let directory = std::env::current_dir().ok().map(|directory| directory.display().to_string());
    all.push(("user.dir", told(directory)));
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    for (name, field) in
        [("os.memory.free", "MemAvailable:"), ("os.memory.max", "MemTotal:"), ("os.memory.total", "MemTotal:")]
    {
        all.push((name, told(megabytes(&memory, field))));
    }
    all
}

fn megabytes(memory: &str, field: &str) -> Option<String> {
    let line = memory.lines().find_map(|line| line.strip_prefix(field))?;
    let kilobytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(format!("{}MB", kilobytes / 1024))
}

/// A moment since 1970 as Java's `Date` is written, in UTC: `Sun Nov 15 21:17:02 UTC 2026`.
pub(crate) fn java_date(ms: u64) -> String {
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, seconds) = (ms / 86_400_000, ms / 1000 % 86_400);
    let weekday = WEEKDAYS[(days % 7) as usize];
    let (mut year, mut rest) = (1970, days % DAYS_IN_400_YEARS);
    year += days / DAYS_IN_400_YEARS * 400;
    while rest >= days_of_year(year) {
        rest -= days_of_year(year);
        year += 1;
    }
    let mut month = 0;
    while rest >= days_of_month(year, month) {
        rest -= days_of_month(year, month);
        month += 1;
    }
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{weekday} {} {:02} {hour:02}:{minute:02}:{second:02} UTC {year}", MONTHS[month], rest + 1)
}

const DAYS_IN_400_YEARS: u64 = 146_097;

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of_year(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

/// Months count from zero; there are twelve, and no year has a day beyond them.
fn days_of_month(year: u64, month: usize) -> u64 {
    match month {
        1 => 28 + u64::from(is_leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An operator reads from this when a session ends; a day off is worse than no date.
    #[test]
    fn dates_are_those_of_the_calendar() {
        for (ms, expected) in [
            (0, "Thu Jan 01 00:00:00 UTC 1970"),
            (951_782_400_000, "Tue Feb 29 00:00:00 UTC 2000"),
            (1_794_777_422_999, "Sun Nov 15 21:17:02 UTC 2026"),
            (4_107_542_399_000, "Sun Feb 28 23:59:59 UTC 2100"),
            (4_107_542_400_000, "Mon Mar 01 00:00:00 UTC 2100"),
            (1_735_689_599_000, "Tue Dec 31 23:59:59 UTC 2024"),
        ] {
            assert_eq!(java_date(ms), expected);
        }
        java_date(u64::MAX);
    }

    /// Scripts look for these names; ours are there even where nothing can be told.
    #[test]
    fn the_environment_has_zookeepers_names() {
        let all = environment("3.9.4");
        assert_eq!(all[0], ("zookeeper.version", "3.9.4".to_owned()));
        for name in ["host.name", "java.version", "os.name", "os.arch", "user.dir", "os.memory.free"] {
            assert!(all.iter().any(|(known, value)| *known == name && !value.is_empty()), "{name}: {all:?}");
        }
        assert_eq!(
            most_files("Max open files            1024                 4096                 files\n"),
            Some(1024)
        );
    }
}
