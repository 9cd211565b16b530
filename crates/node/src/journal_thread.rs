//! The thread that owns the journal: the only one that waits for the disk.
//!
//! It takes everything that is to be made durable, writes it, syncs once, and only then lets the
//! messages go that depend on it (R2). While the disk is full it waits, and nothing is acknowledged.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidelock_journal::{AppendError, Journal, OsDisk, Space};
use tidelock_model::{HardState, LogEntry, LogIndex, NodeId};
use tidelock_replica::{Input, Ready};

use crate::peers::PeerNet;
use crate::shared::{JournalTask, Shared, StopReason};

/// How often the reserve of prepared segments is looked after.
const MAINTAIN_EVERY: Duration = Duration::from_secs(1);
/// And after how many bytes written: a flood must not eat, within that second, the room that deleting
/// will need once the disk is found to be full (H18).
const MAINTAIN_BYTES: u64 = 4 << 20;
/// Pause between attempts to write while the disk is full.
const FULL_RETRY: Duration = Duration::from_millis(200);

pub(crate) struct JournalThread {
    pub(crate) shared: Arc<Shared>,
    pub(crate) journal: Journal<OsDisk>,
    pub(crate) peers: PeerNet,
    /// The latest promise, for when the log restarts from a snapshot.
    pub(crate) hard_state: HardState,
}

impl JournalThread {
    pub(crate) fn run(mut self) {
        let mut tasks = Vec::new();
        let mut maintained = Instant::now();
        let mut maintained_at = 0;
        while self.shared.journal.take(&mut tasks, MAINTAIN_EVERY) {
            let mut ready = Vec::new();
            for task in tasks.drain(..) {
                match task {
                    JournalTask::Persist(next) => ready.push(next),
                    JournalTask::Fetch(fetch) => {
                        let read = self.journal.read(fetch.from, fetch.to, fetch.max_bytes);
                        // What cannot be read is sent by snapshot instead.
                        let entries = read.inspect_err(|error| tracing::warn!(%error, "reading entries back failed"));
                        self.shared.consensus.push(Input::Fetched { fetch, entries: entries.unwrap_or_default() });
                    }
                    JournalTask::Trim(up_to) => {
                        if let Err(error) = self.trim(up_to) {
                            return self.fail(&error);
                        }
                    }
                }
            }
            if !ready.is_empty()
                && let Err(error) = self.persist(ready)
            {
                return self.fail(&error);
            }
            let written = self.shared.journal_written.load(Ordering::Relaxed);
            if maintained.elapsed() >= MAINTAIN_EVERY || written.saturating_sub(maintained_at) >= MAINTAIN_BYTES {
                (maintained, maintained_at) = (Instant::now(), written);
                if let Err(error) = self.maintain() {
                    return self.fail(&error);
                }
            }
        }
    }

    /// Nobody knows what is on the disk: nothing more may be acknowledged (H17).
    fn fail(&self, error: &dyn std::error::Error) {
        let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        self.shared.stop(StopReason::JournalFailed(format!("{error}{cause}")));
    }

    fn persist(&mut self, ready: Vec<Ready>) -> Result<(), AppendError> {
        let mut number = 0;
        let mut sync = false;
        let mut send: Vec<(NodeId, Vec<bytes::Bytes>)> = Vec::new();
        let mut entries: Vec<LogEntry> = Vec::new();
        let mut promise = None;
        for next in ready {
            number = next.number;
            self.hard_state = next.hard_state.unwrap_or(self.hard_state);
            if let Some((index, term)) = next.install {
                self.append(&mut entries, &mut promise)?;
                let hard_state = self.hard_state;
                self.when_there_is_room(|journal| journal.restart_from_snapshot(index, term, hard_state))?;
                self.shared.consensus.push(Input::Trimmed { first_index: self.journal.first_index() });
            }
            sync |= next.must_sync;
            promise = next.hard_state.or(promise);
            entries.extend(next.entries);
            for (to, frame) in next.send_after {
                match send.last_mut() {
                    Some((last, frames)) if *last == to => frames.push(frame),
                    _ => send.push((to, vec![frame])),
                }
            }
        }
        self.append(&mut entries, &mut promise)?;
        if sync {
            self.journal.sync().map_err(AppendError::Failed)?;
        }
        for (to, frames) in send {
            self.peers.send_all(to, frames);
        }
        self.shared.consensus.push(Input::Persisted { number });
        Ok(())
    }

    fn append(&mut self, entries: &mut Vec<LogEntry>, promise: &mut Option<HardState>) -> Result<(), AppendError> {
        let promise = promise.take();
        // Later entries may replace earlier ones of the same batch; the journal takes runs that only grow.
        let entries = std::mem::take(entries);
        let bytes: usize = entries.iter().map(|entry| entry.payload.len() + 40).sum();
        let mut rest = entries.as_slice();
        while let Some(cut) = rest.windows(2).position(|pair| pair[1].index != pair[0].index.next()) {
            let (run, after) = rest.split_at(cut + 1);
            self.when_there_is_room(|journal| journal.append(run, None))?;
            rest = after;
        }
        if !rest.is_empty() || promise.is_some() {
            self.when_there_is_room(|journal| journal.append(rest, promise))?;
        }
        self.shared.journal_written.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Does `write` as soon as the disk has room for it. Until then this node acknowledges nothing;
    /// it goes on to talk to its peers and to serve what it has.
    fn when_there_is_room(
        &mut self,
        mut write: impl FnMut(&mut Journal<OsDisk>) -> Result<(), AppendError>,
    ) -> Result<(), AppendError> {
        loop {
            match write(&mut self.journal) {
                Err(AppendError::NoSpace) if !self.shared.is_stopped() => {
                    if !self.shared.disk_full.swap(true, Ordering::Relaxed) {
                        tracing::error!("the disk is full: writes wait until there is space again");
                    }
                    std::thread::sleep(FULL_RETRY);
                    self.maintain().map_err(AppendError::Failed)?;
                }
                other => return other,
            }
        }
    }

    fn maintain(&mut self) -> std::io::Result<()> {
        let full = self.journal.maintain()? == Space::Low;
        if self.shared.disk_full.swap(full, Ordering::Relaxed) != full {
            if full {
                tracing::error!("the disk is nearly full: writes are refused; free space, or delete and compact");
            } else {
                tracing::info!("the disk has space again: writes are accepted");
            }
        }
        self.shared.consensus.push(Input::Space { full });
        self.shared.disk_bytes.store(self.journal.disk_bytes(), Ordering::Relaxed);
        Ok(())
    }

    fn trim(&mut self, up_to: LogIndex) -> std::io::Result<()> {
        self.journal.trim(up_to)?;
        self.shared.consensus.push(Input::Trimmed { first_index: self.journal.first_index() });
        Ok(())
    }
}
