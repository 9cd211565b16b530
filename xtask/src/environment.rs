//! What a figure was measured on. A number without this cannot be compared with another one.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::{Result, table, workspace};

/// Writes of the disk probe: enough for a median, few enough to take about a second on a slow disk.
const PROBES: usize = 200;
/// A journal's small write.
const PROBE_BYTES: usize = 4096;

/// The machine, the sources and the moment.
#[derive(Default, Serialize)]
pub(crate) struct Environment {
    /// Seconds since 1970.
    pub(crate) unix_time: u64,
    /// What is checked out.
    pub(crate) commit: String,
    /// Processor model.
    pub(crate) processor: String,
    /// Processors this process may use.
    pub(crate) processors: usize,
    /// Kernel release.
    pub(crate) kernel: String,
    /// Median time of a 4 KiB append with fdatasync where the servers keep their data: no durable write
    /// with one request in flight can be quicker.
    pub(crate) fdatasync_us_median: u64,
    /// The slowest of those.
    pub(crate) fdatasync_us_max: u64,
    /// How this was called.
    pub(crate) command: Vec<String>,
}

impl Environment {
    /// Looks around; `data` is where the servers will keep their data.
    pub(crate) fn look(data: &Path) -> Result<Environment> {
        let mut syncs = probe_disk(data).map_err(|error| format!("probing the disk at {}: {error}", data.display()))?;
        syncs.sort_unstable();
        let us = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Ok(Environment {
            unix_time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            commit: workspace::commit(),
            processor: processor_model(),
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: kernel.trim().to_string(),
            fdatasync_us_median: us(syncs[PROBES / 2]),
            fdatasync_us_max: us(syncs[PROBES - 1]),
            command: std::env::args().skip(1).collect(),
        })
    }

    /// Two lines for the terminal.
    pub(crate) fn text(&self) -> String {
        format!(
            "{} x {}, Linux {}, commit {}\n4 KiB append + fdatasync on the data disk: median {}, worst {}",
            self.processors,
            self.processor,
            self.kernel,
            self.commit,
            table::duration(Duration::from_micros(self.fdatasync_us_median)),
            table::duration(Duration::from_micros(self.fdatasync_us_max)),
        )
    }
}

fn processor_model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    model.map_or_else(|| std::env::consts::ARCH.to_string(), |(_, model)| model.trim().to_string())
}

fn probe_disk(data: &Path) -> std::io::Result<Vec<Duration>> {
    let mut file = tempfile::tempfile_in(data)?;
    let block = [0xa5u8; PROBE_BYTES];
    let mut syncs = Vec::with_capacity(PROBES);
    for _ in 0..PROBES {
        let start = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        syncs.push(start.elapsed());
    }
    Ok(syncs)
}
