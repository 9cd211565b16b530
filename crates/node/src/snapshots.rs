//! Snapshots: when to take one, taking it while writes go on, sending it to a follower, receiving one.
//!
//! Taking one never stops the world: the head is made between two batches, the rest is read page by
//! page at that revision while the store moves on. The journal is trimmed only after the file is
//! durable.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tidelock_journal::{
    Disk, SnapshotError, SnapshotMeta, SnapshotReader, SnapshotReceiver, SnapshotWriter, list_snapshots, remove_older,
};
use tidelock_model::{LogIndex, NodeId};
use tidelock_replica::{Applier, Input, consensus::SnapshotWanted};
use tidelock_state::{LoadError, SnapshotHead, SnapshotPosition, State, StateLoader};

use crate::clock::Moment;
use crate::links::Links;
use crate::peers::{SnapshotSink, SnapshotSource};
use crate::shared::{JournalTask, Pin, Shared, SnapshotFinished};

/// Pages are gathered into chunks of this size, which compress better and cost fewer checksums.
const CHUNK_BYTES: usize = 1 << 20;
/// Leases looked at under one hold of the state's lock: some hundred microseconds.
const LEASES_PER_PAGE: usize = 8 * 1024;
/// A head is written in pieces of this size.
const HEAD_PIECE_BYTES: usize = 16 << 20;
/// Why a snapshot under way is not finished.
const REPLACED: &str = "given up: a newer state was installed or the node stops";
/// Snapshot files kept: the newest, and the one before it while a follower may still be reading it.
const KEPT: usize = 2;
/// The same on a full disk, where room counts more. A follower that is reading one has it open.
const KEPT_ON_FULL_DISK: usize = 1;
/// Pause between snapshots that are taken for want of space: each costs the disk a copy of the state.
const LOW_SPACE_PAUSE: Duration = Duration::from_secs(5);
/// Bytes of data below which it does not matter what a snapshot holds too much.
const SHRUNK_FROM: u64 = 32 << 20;
/// Largest snapshot taken from a peer.
const RECEIVED_BYTES_MAX: u64 = 64 << 30;

/// A snapshot received from the leader, waiting to be accepted by the consensus engine.
pub(crate) struct Received {
    pub(crate) index: LogIndex,
    pub(crate) state: State,
    pub(crate) voters: Bytes,
}

/// Why a snapshot could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotLoadError {
    /// The file cannot be read.
    #[error("snapshot file: {0}")]
    File(#[from] SnapshotError),
    /// Its content is not a state.
    #[error("snapshot content: {0}")]
    Content(#[from] LoadError),
    /// It has no content.
    #[error("the snapshot is empty")]
    Empty,
}

/// Reads a whole state from a snapshot file.
pub(crate) fn load(reader: &mut SnapshotReader) -> Result<State, SnapshotLoadError> {
    let mut loader = StateLoader::new(read_head(reader)?)?;
    while let Some(chunk) = reader.next_chunk()? {
        loader.add_page(chunk)?;
    }
    Ok(loader.finish()?)
}

/// Writes a head: how many pieces it has, then the pieces. One with millions of leases is larger than a
/// chunk may be.
fn write_head<D: Disk + Clone>(writer: &mut SnapshotWriter<D>, head: &[u8]) -> Result<(), SnapshotError> {
    let pieces = head.chunks(HEAD_PIECE_BYTES);
    writer.write_chunk(&(pieces.len() as u32).to_le_bytes())?;
    pieces.into_iter().try_for_each(|piece| writer.write_chunk(piece))
}

fn read_head(reader: &mut SnapshotReader) -> Result<Bytes, SnapshotLoadError> {
    let count = reader.next_chunk()?.ok_or(SnapshotLoadError::Empty)?;
    let count = u32::from_le_bytes(count.as_ref().try_into().map_err(|_| SnapshotLoadError::Empty)?);
    let mut head = Vec::new();
    for _ in 0..count {
        head.extend_from_slice(&reader.next_chunk()?.ok_or(SnapshotLoadError::Empty)?);
    }
    Ok(head.into())
}

/// Writes a state nobody else uses: the founding one.
pub(crate) fn write_whole<D: Disk + Clone>(disk: &D, state: &State, meta: SnapshotMeta) -> Result<(), SnapshotError> {
    let head = state.begin_snapshot();
    let mut writer = SnapshotWriter::create(disk.clone(), meta)?;
    write_head(&mut writer, &head.bytes)?;
    let mut position = None;
    loop {
        let page = state.snapshot_page(&head, position.as_ref(), CHUNK_BYTES);
        if !page.bytes.is_empty() {
            writer.write_chunk(&page.bytes)?;
        }
        match page.next {
            Some(next) => position = Some(next),
            None => return writer.finish().map(|_| ()),
        }
    }
}

/// Decides when this node takes a snapshot.
pub(crate) struct Snapshots<D> {
    shared: Arc<Shared>,
    disk: D,
    running: Arc<AtomicBool>,
    wished: bool,
    /// Journal bytes written when the last snapshot began, and that snapshot's size.
    last_at: u64,
    last_size: Arc<AtomicU64>,
    /// When the last snapshot began, and how many bytes of keys and values were held then.
    last_begun: Option<Duration>,
    last_data: u64,
}

impl<D: Disk + Clone> Snapshots<D> {
    pub(crate) fn new(shared: Arc<Shared>, disk: D, last_size: u64) -> Snapshots<D> {
        let running = Arc::new(AtomicBool::new(false));
        let last_size = Arc::new(AtomicU64::new(last_size));
        let last_data = shared.state.read().data_bytes();
        Snapshots { shared, disk, running, wished: false, last_at: 0, last_size, last_begun: None, last_data }
    }

    pub(crate) fn wish(&mut self) {
        self.wished = true;
    }

    /// Whether the journal has grown enough since the last snapshot: at least by the configured amount,
    /// by the last snapshot's size and by what it held, so that snapshots neither write nor read more than the journal
    /// writes, and a restart replays no more than it loads. The size alone tells little of what compresses well.
    fn is_due(&self, written: u64, now: Moment) -> bool {
        let grown = written.saturating_sub(self.last_at);
        let last = self.last_size.load(Ordering::Relaxed).max(self.last_data);
        let due_after = self.shared.limits.snapshot_journal_bytes.max(last);
        self.wished || grown >= due_after || (grown > 0 && (self.has_shrunk() || self.would_make_room(now)))
    }

    /// Whether compaction freed much of what the last snapshot holds: a restart would load it all again.
    fn has_shrunk(&self) -> bool {
        self.last_data > SHRUNK_FROM && self.shared.state.read().data_bytes() < self.last_data / 4 * 3
    }

    /// On a full disk a snapshot makes room once the state is smaller than the journal behind it, which
    /// deleting and compacting lead to (H18). It must fit into half of what is left, so that trying
    /// cannot make things worse.
    fn would_make_room(&self, now: Moment) -> bool {
        let rested = self.last_begun.is_none_or(|begun| now.steady.saturating_sub(begun) >= LOW_SPACE_PAUSE);
        if !rested || !self.shared.disk_full.load(Ordering::Relaxed) {
            return false;
        }
        let size = self.shared.state.read().data_bytes();
        let free = self.disk.free_bytes().unwrap_or(0);
        size < self.shared.disk_bytes.load(Ordering::Relaxed) && size < free / 2
    }

    /// Begins a snapshot if one is due and none is under way.
    pub(crate) fn begin_if_due(&mut self, applier: &Applier, now: Moment) -> Option<SnapshotJob<D>> {
        let written = self.shared.journal_written.load(Ordering::Relaxed);
        if !self.is_due(written, now) || self.running.swap(true, Ordering::Acquire) {
            return None;
        }
        self.last_begun = Some(now.steady);
        self.wished = false;
        self.last_at = written;
        let (term, voters) = applier.position();
        let (head, pin) = {
            let mut state = self.shared.state.write();
            let head = state.begin_long_snapshot();
            self.last_data = state.data_bytes();
            let pin = Pin::new(&self.shared, head.keep_from);
            (head, pin)
        };
        let meta = SnapshotMeta { index: head.index, term, extra: voters };
        Some(SnapshotJob {
            number: self.shared.snapshots_begun.fetch_add(1, Ordering::Relaxed) + 1,
            shared: self.shared.clone(),
            disk: self.disk.clone(),
            installs: self.shared.installs.load(Ordering::Relaxed),
            last_size: self.last_size.clone(),
            head,
            progress: Progress::Begun(meta),
            running: self.running.clone(),
            _pin: pin,
        })
    }
}

/// A snapshot being taken. Whoever has it calls [`SnapshotJob::turn`] until there is nothing left to do.
/// Dropped before that, it leaves only a temporary file that the next start removes.
pub struct SnapshotJob<D: Disk + Clone> {
    number: u64,
    shared: Arc<Shared>,
    disk: D,
    installs: u64,
    last_size: Arc<AtomicU64>,
    head: SnapshotHead,
    progress: Progress<D>,
    running: Arc<AtomicBool>,
    /// Keeps what the snapshot reads from being swept.
    _pin: Pin,
}

enum Progress<D: Disk + Clone> {
    /// The head's leases are being read.
    Begun(SnapshotMeta),
    Writing {
        writer: SnapshotWriter<D>,
        next: Option<SnapshotPosition>,
        chunk: Vec<u8>,
    },
    Written(SnapshotWriter<D>),
    Over,
}

impl<D: Disk + Clone> SnapshotJob<D> {
    /// Does the next piece of work. `false`: there is none left.
    pub fn turn(&mut self) -> bool {
        if matches!(self.progress, Progress::Over) {
            return false;
        }
        let problem = match self.advance() {
            Ok(None) => return true,
            Ok(Some(problem)) => problem,
            Err(error) => Some(error.to_string()),
        };
        self.progress = Progress::Over;
        if let Some(problem) = &problem {
            tracing::warn!(problem, "a snapshot could not be taken; it will be tried again");
        }
        self.shared.snapshots_finished.send_replace(SnapshotFinished { number: self.number, problem });
        false
    }

    /// `Some` when it is over: with why there is no snapshot, if there is none.
    fn advance(&mut self) -> Result<Option<Option<String>>, SnapshotError> {
        if self.shared.installs.load(Ordering::Relaxed) != self.installs || self.shared.is_stopped() {
            return Ok(Some(Some(REPLACED.to_owned())));
        }
        let page_bytes = self.shared.limits.snapshot_page_bytes;
        self.progress = match std::mem::replace(&mut self.progress, Progress::Over) {
            Progress::Begun(meta) => match self.look(|state, head| state.read_leases(head, LEASES_PER_PAGE)) {
                None => return Ok(Some(Some(REPLACED.to_owned()))),
                Some(true) => Progress::Begun(meta),
                Some(false) => {
                    self.shared.state.write().release_leases();
                    let mut writer = SnapshotWriter::create(self.disk.clone(), meta)?;
                    write_head(&mut writer, &self.head.bytes)?;
                    self.head.bytes = Vec::new();
                    if tidelock_model::planted!(JournalTrimmedTooSoon) {
                        self.shared.journal.push(JournalTask::Trim(self.head.index));
                    }
                    Progress::Writing { writer, next: None, chunk: Vec::new() }
                }
            },
            Progress::Writing { mut writer, next, chunk } => {
                let page = self.look(|state, head| state.snapshot_page_behind(chunk, head, next.as_ref(), page_bytes));
                let Some(page) = page else { return Ok(Some(Some(REPLACED.to_owned()))) };
                let mut chunk = page.bytes;
                if chunk.len() >= CHUNK_BYTES || (page.next.is_none() && !chunk.is_empty()) {
                    writer.write_chunk(&chunk)?;
                    chunk.clear();
                }
                match page.next {
                    Some(next) => Progress::Writing { writer, next: Some(next), chunk },
                    None => Progress::Written(writer),
                }
            }
            Progress::Written(writer) => {
                self.last_size.store(writer.written(), Ordering::Relaxed);
                let meta = writer.finish()?;
                self.done(&meta);
                return Ok(Some(None));
            }
            Progress::Over => Progress::Over,
        };
        Ok(None)
    }

    /// Looks at the state the head belongs to for a moment; `None` if it is not there any more.
    fn look<T>(&mut self, look: impl FnOnce(&State, &mut SnapshotHead) -> T) -> Option<T> {
        let state = self.shared.state.read();
        // Looked at under the lock: it may have been replaced since the turn began.
        (self.shared.installs.load(Ordering::Relaxed) == self.installs).then(|| look(&state, &mut self.head))
    }

    fn done(&self, meta: &SnapshotMeta) {
        tracing::info!(index = %meta.index, bytes = self.last_size.load(Ordering::Relaxed), "took a snapshot");
        let kept = if self.shared.disk_full.load(Ordering::Relaxed) { KEPT_ON_FULL_DISK } else { KEPT };
        if let Err(error) = remove_older(&self.disk, kept) {
            tracing::warn!(%error, "older snapshots could not be removed");
        }
        let (index, term, voters) = (meta.index, meta.term, meta.extra.clone());
        self.shared.consensus.push(Input::SnapshotTaken { index, term, voters });
        self.shared.journal.push(JournalTask::Trim(self.trim_up_to(index)));
    }

    /// Followers that were away for a while catch up from entries behind the snapshot: so many, but none
    /// from before the oldest snapshot kept. Counting alone would keep gigabytes of large entries.
    fn trim_up_to(&self, index: LogIndex) -> LogIndex {
        let counted = index.0.saturating_sub(self.shared.limits.catch_up_entries);
        let oldest = list_snapshots(&self.disk).ok().and_then(|names| names.first().map(|name| name.index.0));
        LogIndex(counted.max(oldest.unwrap_or(0)).min(index.0))
    }
}

impl<D: Disk + Clone> Drop for SnapshotJob<D> {
    fn drop(&mut self) {
        if let Progress::Begun(_) = self.progress {
            self.shared.state.write().release_leases();
        }
        self.running.store(false, Ordering::Release);
    }
}

/// Sends the snapshot a follower needs.
pub(crate) fn send(shared: &Arc<Shared>, disk: &impl Disk, links: &impl Links, wanted: SnapshotWanted) {
    let (to, shared) = (wanted.to, shared.clone());
    let opened = || -> Result<SnapshotReader, SnapshotError> {
        let names = list_snapshots(disk)?;
        let found = names.into_iter().find(|name| name.index == wanted.index);
        let missing = || io::Error::new(io::ErrorKind::NotFound, "that snapshot was replaced by a newer one");
        SnapshotReader::open(disk, found.ok_or_else(missing)?)
    };
    match opened() {
        Ok(reader) => {
            tracing::info!(to = %format_args!("{to:x}"), index = %wanted.index, "sending a snapshot");
            let source = Box::new(FileSource { reader, sent: 0, message: wanted.message });
            let done = move |result: Result<(), _>| {
                if let Err(error) = &result {
                    tracing::warn!(to = %format_args!("{to:x}"), %error, "a snapshot was not delivered");
                }
                shared.consensus.push(Input::SnapshotSent { to, delivered: result.is_ok() });
            };
            links.send_snapshot(to, source, Box::new(done));
        }
        Err(error) => {
            tracing::warn!(%error, "no snapshot to send");
            shared.consensus.push(Input::SnapshotSent { to, delivered: false });
        }
    }
}

struct FileSource {
    reader: SnapshotReader,
    sent: u64,
    message: Bytes,
}

impl SnapshotSource for FileSource {
    fn head(&self) -> Bytes {
        self.message.clone()
    }

    fn read(&mut self, max: usize) -> io::Result<Option<Bytes>> {
        let left = self.reader.raw_len().saturating_sub(self.sent);
        if left == 0 {
            return Ok(None);
        }
        let count = max.min(usize::try_from(left).unwrap_or(max));
        let bytes = self.reader.read_raw(self.sent, count).map_err(io::Error::other)?;
        self.sent += bytes.len() as u64;
        Ok(Some(bytes))
    }
}

/// Receives a snapshot, checks and loads it, and offers it to the consensus engine.
pub(crate) struct FileSink<D: Disk + Clone> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) disk: D,
    pub(crate) from: NodeId,
    pub(crate) message: Bytes,
    pub(crate) receiver: SnapshotReceiver<D>,
}

impl<D: Disk + Clone> FileSink<D> {
    pub(crate) fn open(shared: Arc<Shared>, disk: D, from: NodeId, message: Bytes) -> Result<FileSink<D>, String> {
        let receiver = SnapshotReceiver::create(disk.clone(), RECEIVED_BYTES_MAX).map_err(|error| error.to_string())?;
        Ok(FileSink { shared, disk, from, message, receiver })
    }
}

impl<D: Disk + Clone + 'static> SnapshotSink for FileSink<D> {
    fn write(&mut self, chunk: Bytes) -> io::Result<()> {
        self.receiver.write_raw(&chunk).map_err(io::Error::other)
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        let FileSink { shared, disk, from, message, receiver } = *self;
        let meta = receiver.finish().map_err(io::Error::other)?;
        let mut reader = SnapshotReader::open(&disk, meta.name()).map_err(io::Error::other)?;
        let state = load(&mut reader).map_err(io::Error::other)?;
        if state.applied() != meta.index {
            return Err(io::Error::other("the snapshot's content and its name disagree"));
        }
        let received = Received { index: meta.index, state, voters: meta.extra };
        // One entry per message: the consensus thread decides on them in the same order.
        shared.received.lock().push_back(received);
        shared.consensus.push(Input::SnapshotReceived { from, message });
        Ok(())
    }
}
