//! What the kernel says a process used: processor time and memory.

use std::time::Duration;

use crate::Result;

/// Processor time of all threads of a process so far, user and system, in steps of one clock tick
/// (usually 10 ms): meaningful over seconds.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let ticks = cpu_ticks(&stat).ok_or_else(|| format!("{path} has an unknown form"))?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Fields 14 and 15, user and system time. The second field is the program's name in parentheses and may
/// hold anything, blanks and parentheses included, so fields are counted from its end.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Resident memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// All of it.
    pub(crate) resident: u64,
    /// Without what is backed by files: the program itself, mapped files.
    pub(crate) anonymous: u64,
}

/// Resident memory of a process now.
pub(crate) fn memory(pid: u32) -> Result<Memory> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    memory_of(&status).ok_or_else(|| format!("{path} has an unknown form"))
}

fn memory_of(status: &str) -> Option<Memory> {
    let bytes = |name: &str| -> Option<u64> {
        let line = status.lines().find(|line| line.starts_with(name))?;
        let kib: u64 = line[name.len()..].trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    };
    Some(Memory { resident: bytes("VmRSS:")?, anonymous: bytes("RssAnon:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program called `a) b (c` must not shift the fields, or its CPU time would be some other number.
    #[test]
    fn a_strange_program_name_does_not_shift_the_fields() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 111 222 13 14 15";
        assert_eq!(cpu_ticks(stat), Some(333));
        assert_eq!(cpu_ticks("42 (x"), None);
    }

    /// The real kernel's files must have the form we read.
    #[test]
    fn this_process_can_be_read() {
        let pid = std::process::id();
        assert!(memory(pid).unwrap().resident > 0);
        let before = cpu_time(pid).unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while cpu_time(pid).unwrap() == before {
            assert!(std::time::Instant::now() < deadline, "a busy process uses processor time");
        }
    }
}
