//! The worker that owns the journal: the only one that waits for the disk.
//!
//! It takes everything that is to be made durable, writes it, syncs once, and only then lets the
//! messages go that depend on it (R2). While the disk is full what is to be written waits here and nothing
//! of it is acknowledged; reading back and trimming, which makes room, go on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tidelock_journal::{AppendError, Disk, Journal, Space};
use tidelock_model::{HardState, LogEntry, LogIndex, NodeId, Term};
use tidelock_replica::{Input, Ready};

use crate::clock::{Moment, Turn};
use crate::inbox::Worker;
use crate::links::Links;
use crate::shared::{JournalTask, Shared, StopReason};

/// How often the reserve of prepared segments is looked after.
const MAINTAIN_EVERY: Duration = Duration::from_secs(1);
/// And after how many bytes written: a flood must not eat, within that second, the room that deleting
/// will need once the disk is found to be full (H18).
const MAINTAIN_BYTES: u64 = 4 << 20;
/// Pause between attempts to write while the disk is full.
const FULL_RETRY: Duration = Duration::from_millis(200);
/// Pause between two segments that are given up. Each keeps the disk busy for some milliseconds, in which nobody's
/// write is synced: twenty at once, as after a large load, were a stall of 40 ms for everyone.
const TRIM_PAUSE: Duration = Duration::from_millis(20);

/// Owns the journal.
pub struct JournalWorker<D: Disk, L> {
    shared: Arc<Shared>,
    journal: Journal<D>,
    links: L,
    /// The latest promise, for when the log restarts from a snapshot.
    hard_state: HardState,
    /// What was not begun to be written.
    waiting: Vec<Ready>,
    /// What is being written; more than for a moment only while the disk is full.
    under_way: Option<UnderWay>,
    /// When to try again to write to a full disk.
    retry: Option<Duration>,
    /// When the reserve was last looked after, and how much had been written then.
    maintained: Duration,
    maintained_at: u64,
    trimming: Option<Trimming>,
}

/// Segments that are being given up, one after the other.
#[derive(Clone, Copy)]
struct Trimming {
    up_to: LogIndex,
    /// When the next one may go.
    next: Duration,
}

/// Several readies, on their way to the disk together.
struct UnderWay {
    writes: VecDeque<Write>,
    /// Number of the last ready among them.
    number: u64,
    sync: bool,
    send: Vec<(NodeId, Vec<Bytes>)>,
}

enum Write {
    Append { entries: Vec<LogEntry>, promise: Option<HardState> },
    RestartFrom { index: LogIndex, term: Term, promise: HardState },
}

impl<D: Disk + Clone, L: Links> Worker<JournalTask> for JournalWorker<D, L> {
    fn take_turn(&mut self, tasks: &mut Vec<JournalTask>, now: Moment) -> Turn {
        match self.work(tasks, now) {
            Ok(()) => Turn::WaitAtMost(self.pause()),
            Err(error) => {
                self.fail(&error);
                Turn::Ended
            }
        }
    }
}

impl<D: Disk + Clone, L: Links> JournalWorker<D, L> {
    pub(crate) fn new(shared: Arc<Shared>, journal: Journal<D>, links: L, hard_state: HardState) -> Self {
        JournalWorker {
            shared,
            journal,
            links,
            hard_state,
            waiting: Vec::new(),
            under_way: None,
            retry: None,
            maintained: Duration::ZERO,
            maintained_at: 0,
            trimming: None,
        }
    }

    /// How long there is nothing to do if nothing arrives.
    fn pause(&self) -> Duration {
        if self.trimming.is_some() {
            TRIM_PAUSE
        } else if self.retry.is_some() {
            FULL_RETRY
        } else {
            MAINTAIN_EVERY
        }
    }

    /// The first entry the journal holds.
    #[must_use]
    pub fn first_index(&self) -> LogIndex {
        self.journal.first_index()
    }

    /// Takes one turn with whatever has arrived.
    pub fn turn(&mut self, now: Moment) -> Turn {
        let mut tasks = Vec::new();
        match self.shared.journal.take(&mut tasks) {
            true => self.take_turn(&mut tasks, now),
            false => Turn::Ended,
        }
    }

    fn work(&mut self, tasks: &mut Vec<JournalTask>, now: Moment) -> Result<(), AppendError> {
        for task in tasks.drain(..) {
            match task {
                JournalTask::Persist(next) => self.waiting.push(next),
                JournalTask::Fetch(fetch) => {
                    let read = self.journal.read(fetch.from, fetch.to, fetch.max_bytes);
                    // What cannot be read is sent by snapshot instead.
                    let entries = read.inspect_err(|error| tracing::warn!(%error, "reading entries back failed"));
                    self.shared.consensus.push(Input::Fetched { fetch, entries: entries.unwrap_or_default() });
                }
                JournalTask::Trim(up_to) => {
                    let before = self.trimming.unwrap_or(Trimming { up_to, next: now.steady });
                    self.trimming = Some(Trimming { up_to: before.up_to.max(up_to), ..before });
                }
            }
        }
        let full = self.retry.is_some_and(|retry| now.steady < retry);
        if self.retry.is_some() && !full {
            self.maintain().map_err(AppendError::Failed)?;
        }
        if !full {
            self.persist(now)?;
        }
        self.trim(now).map_err(AppendError::Failed)?;
        let written = self.shared.journal_written.load(Ordering::Relaxed);
        let is_due = now.steady.saturating_sub(self.maintained) >= MAINTAIN_EVERY;
        if is_due || written.saturating_sub(self.maintained_at) >= MAINTAIN_BYTES {
            (self.maintained, self.maintained_at) = (now.steady, written);
            self.maintain().map_err(AppendError::Failed)?;
        }
        Ok(())
    }

    /// Nobody knows what is on the disk: nothing more may be acknowledged (H17).
    fn fail(&self, error: &dyn std::error::Error) {
        let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        self.shared.stop(StopReason::JournalFailed(format!("{error}{cause}")));
    }

    /// Writes everything that waits. If the disk is full, what is left stays for the next attempt.
    fn persist(&mut self, now: Moment) -> Result<(), AppendError> {
        self.retry = None;
        loop {
            let mut under_way = match self.under_way.take() {
                Some(under_way) => under_way,
                None if self.waiting.is_empty() => return Ok(()),
                None => self.gather(),
            };
            while let Some(write) = under_way.writes.front() {
                match self.write(write) {
                    Ok(()) => drop(under_way.writes.pop_front()),
                    Err(AppendError::NoSpace) => {
                        self.under_way = Some(under_way);
                        self.retry = Some(now.steady + FULL_RETRY);
                        if !self.shared.disk_full.swap(true, Ordering::Relaxed) {
                            tracing::error!("the disk is full: writes wait until there is space again");
                        }
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
            }
            let skips = tidelock_model::planted!(AckBeforeSync)
                || (tidelock_model::planted!(EveryOtherSyncSkipped) && under_way.number % 2 == 0);
            if under_way.sync && !skips {
                let began = Instant::now();
                self.journal.sync().map_err(AppendError::Failed)?;
                self.shared.measurements.sync.record(began.elapsed());
            }
            // Before what depends on it is sent: an answer to a request for a vote must not overtake the news that
            // everything before the request is durable, on which the engine insists of whoever is elected.
            self.shared.consensus.push_and_run([Input::Persisted { number: under_way.number }]);
            for (to, frames) in under_way.send {
                self.links.send_all(to, frames);
            }
        }
    }

    /// Makes one batch of everything that waits: as few writes as possible, and one sync.
    fn gather(&mut self) -> UnderWay {
        let mut batch = UnderWay { writes: VecDeque::new(), number: 0, sync: false, send: Vec::new() };
        let mut entries: Vec<LogEntry> = Vec::new();
        let mut promise = None;
        for next in self.waiting.drain(..) {
            batch.number = next.number;
            self.hard_state = next.hard_state.unwrap_or(self.hard_state);
            if let Some((index, term)) = next.install {
                append(&mut batch.writes, std::mem::take(&mut entries), promise.take());
                batch.writes.push_back(Write::RestartFrom { index, term, promise: self.hard_state });
            }
            batch.sync |= next.must_sync;
            promise = next.hard_state.or(promise);
            entries.extend(next.entries);
            for (to, frame) in next.send_after {
                match batch.send.last_mut() {
                    Some((last, frames)) if *last == to => frames.push(frame),
                    _ => batch.send.push((to, vec![frame])),
                }
            }
        }
        append(&mut batch.writes, entries, promise);
        batch
    }

    fn write(&mut self, write: &Write) -> Result<(), AppendError> {
        match write {
            Write::Append { entries, promise } => {
                self.journal.append(entries, *promise)?;
                let bytes: usize = entries.iter().map(|entry| entry.payload.len() + 40).sum();
                self.shared.journal_written.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Write::RestartFrom { index, term, promise } => {
                self.journal.restart_from_snapshot(*index, *term, *promise)?;
                self.shared.consensus.push(Input::Trimmed { first_index: self.journal.first_index() });
            }
        }
        Ok(())
    }

    fn maintain(&mut self) -> std::io::Result<()> {
        if tidelock_model::planted!(AckBeforeSync) {
            self.journal.sync()?;
        }
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

    /// Gives up the next segment, if it is time.
    fn trim(&mut self, now: Moment) -> std::io::Result<()> {
        let Some(trimming) = self.trimming.filter(|trimming| trimming.next <= now.steady) else { return Ok(()) };
        let goes_on = self.journal.trim_one(trimming.up_to)?;
        self.trimming = goes_on.then(|| Trimming { next: now.steady + TRIM_PAUSE, ..trimming });
        self.shared.consensus.push(Input::Trimmed { first_index: self.journal.first_index() });
        Ok(())
    }
}

/// Adds appends. Later entries may replace earlier ones of the same batch; the journal takes runs that
/// only grow.
fn append(writes: &mut VecDeque<Write>, mut entries: Vec<LogEntry>, promise: Option<HardState>) {
    while let Some(cut) = entries.windows(2).position(|pair| pair[1].index != pair[0].index.next()) {
        let after = entries.split_off(cut + 1);
        writes.push_back(Write::Append { entries: std::mem::replace(&mut entries, after), promise: None });
    }
    if !entries.is_empty() || promise.is_some() {
        writes.push_back(Write::Append { entries, promise });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;

    use tidelock_journal::memory_disk::MemoryDisk;
    use tidelock_model::{ClusterId, LogTime, Member, MemberRole};

    use super::*;
    use crate::peers::{LinkState, SnapshotDone, SnapshotSource};
    use crate::{Bootstrap, Draws, NodeConfig, NodeLimits, Prepared};

    /// Notes, for each frame that leaves, what consensus had been told by then.
    #[derive(Clone, Default)]
    pub(crate) struct Witness {
        shared: Arc<Mutex<Option<Arc<Shared>>>>,
        told_before: Arc<Mutex<Vec<Vec<u64>>>>,
    }

    impl Links for Witness {
        fn send_all(&self, _: NodeId, frames: Vec<Bytes>) {
            let shared = self.shared.lock().unwrap().clone().unwrap();
            let mut inputs = Vec::new();
            shared.consensus.take(&mut inputs);
            let durable = inputs.iter().filter_map(|input| match input {
                Input::Persisted { number } => Some(*number),
                _ => None,
            });
            let durable: Vec<u64> = durable.collect();
            frames.iter().for_each(|_| self.told_before.lock().unwrap().push(durable.clone()));
        }
        fn set_peers(&self, _: &[(NodeId, Vec<String>)]) {}
        fn link_state(&self, _: NodeId) -> Option<LinkState> {
            None
        }
        fn send_snapshot(&self, _: NodeId, _: Box<dyn SnapshotSource>, _: SnapshotDone) {}
    }

    pub(crate) fn config() -> NodeConfig {
        let member = Member {
            id: NodeId(1),
            name: "one".into(),
            peer_addresses: vec!["h:1".into()],
            client_urls: vec![],
            role: MemberRole::Voter,
            zookeeper: None,
        };
        NodeConfig {
            name: "one".into(),
            data_dir: "memory".into(),
            client_urls: vec![],
            bootstrap: Bootstrap::Found { cluster: ClusterId(1), node: NodeId(1), members: vec![member] },
            heartbeat: Duration::from_millis(100),
            election_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(5),
            limits: NodeLimits::default(),
        }
    }

    /// A vote that was asked for can come back, and make this node the leader, before the next line of the worker runs.
    /// If consensus did not know by then that what came before the request is durable, the engine stopped the node.
    #[test]
    fn consensus_knows_what_is_durable_before_what_depends_on_it_is_sent() {
        let links = Witness::default();
        let prepared = Prepared::open(&config(), MemoryDisk::new(), Draws { boot: 1, disk: 1 }).unwrap();
        let mut worker = prepared.connect(links.clone(), Box::new(|_| {})).journal;
        *links.shared.lock().unwrap() = Some(worker.shared.clone());
        let promise = HardState { term: Term(7), vote: NodeId(1), ..worker.hard_state };
        let request = (NodeId(2), Bytes::from_static(b"vote for me"));
        worker.shared.journal.push(JournalTask::Persist(Ready {
            number: 9,
            hard_state: Some(promise),
            must_sync: true,
            send_after: vec![request],
            ..Ready::default()
        }));
        worker.turn(Moment { steady: Duration::ZERO, wall: LogTime(1_000) });
        assert_eq!(*links.told_before.lock().unwrap(), [vec![9]]);
    }

    /// Segments go one by one. All that a snapshot covers at once, after a large load, kept every write waiting.
    #[test]
    fn a_write_waits_for_one_segment_that_goes_and_not_for_all() {
        let (links, disk) = (Witness::default(), MemoryDisk::new());
        let mut config = config();
        config.limits.segment_bytes = 64 << 10;
        let prepared = Prepared::open(&config, disk.clone(), Draws { boot: 1, disk: 1 }).unwrap();
        let mut worker = prepared.connect(links.clone(), Box::new(|_| {})).journal;
        *links.shared.lock().unwrap() = Some(worker.shared.clone());
        let last = worker.journal.last_index().0;
        let entry = |index| LogEntry {
            index: LogIndex(index),
            term: Term(1),
            kind: 0,
            payload: vec![7; 30 << 10].into(),
            context: Bytes::new(),
        };
        let write = |number: u64, entries: Vec<LogEntry>| {
            let send_after = vec![(NodeId(2), Bytes::from_static(b"written"))];
            JournalTask::Persist(Ready { number, entries, must_sync: true, send_after, ..Ready::default() })
        };
        let at = |millis| Moment { steady: Duration::from_millis(millis), wall: LogTime(1_000) };
        worker.shared.journal.push(write(1, (last + 1..=last + 20).map(entry).collect()));
        worker.turn(at(0));
        let covered = LogIndex(last + 19);
        let meta = tidelock_journal::SnapshotMeta { index: covered, term: Term(1), extra: Bytes::new() };
        tidelock_journal::SnapshotWriter::create(disk, meta).unwrap().finish().unwrap();

        let first = worker.first_index();
        worker.shared.journal.push_all([JournalTask::Trim(covered), write(2, vec![entry(last + 21)])]);
        assert_eq!(worker.turn(at(0)), Turn::WaitAtMost(TRIM_PAUSE));
        assert_eq!(links.told_before.lock().unwrap().len(), 2, "what was to be written is");
        let after_one = worker.first_index();
        assert!(first < after_one && after_one.0 <= first.0 + 3, "{first} {after_one}");
        worker.turn(at(1));
        assert_eq!(worker.first_index(), after_one, "the next one has its pause");
        let mut turns = 1;
        while worker.turn(at(1 + turns * TRIM_PAUSE.as_millis() as u64)) == Turn::WaitAtMost(TRIM_PAUSE) {
            turns += 1;
        }
        assert!(turns >= 5 && covered.0 - worker.first_index().0 <= 3, "{turns} {}", worker.first_index());
    }
}
