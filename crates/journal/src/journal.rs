//! The journal: appends, syncs, reads back and trims.
//!
//! Entries and hard states become records in the last segment, one write per call; `sync` makes all of
//! them durable with one `sync_data` and leaves a mark behind them that says so. A segment that is full
//! is synced, then the spare takes its place. Invariants:
//! - only the last segment can have bytes that are not durable, so only there can a crash tear;
//! - every segment starts with the hard state of that moment, so trimming never loses it;
//! - sequence numbers of segments in use are consecutive, and a segment is sealed once the next exists;
//! - entries leave the journal only when a finished snapshot covers them.
//!
//! Not here: reading the files at start (`recovery`), bytes of a record (`record`).

use std::collections::VecDeque;
use std::io;

use tidelock_model::{HardState, LogEntry, LogIndex, Term};

use crate::disk::{Disk, Prepared, is_full, zeroed};
use crate::error::{AppendError, OpenError, ReadError};
use crate::positions::{Point, Positions};
use crate::record::{EntryView, Header, RECORD_HEADER, Record};
use crate::recovery;
use crate::segment::{
    CLOSING_BYTES, RECORDS_START, SEGMENT_BYTES, Segment, SegmentHeader, Spare, finish_spare, parse_spare_name,
    spare_name, unfinished_spare_name,
};
use crate::snapshot::latest_snapshot;
use crate::snapshot_format::SnapshotMeta;

/// Segments kept for reuse after a trim; more than the reserve, since a trim often frees several at once
/// and filling a new file with zeros costs a second write of all its bytes.
pub(crate) const MAX_SPARES: usize = 4;
/// How much of a segment is read at once when entries are read back.
const READ_WINDOW: u64 = 256 * 1024;

/// How the journal uses its disk.
#[derive(Clone, Debug)]
pub struct JournalConfig {
    /// Size of one segment file; an entry must fit into one.
    pub segment_bytes: u64,
    /// Segments prepared ahead, so that a full disk is noticed while there is still room to write.
    pub spare_segments: usize,
    /// Below this much free space [`Journal::space`] says low.
    pub free_floor_bytes: u64,
}

impl Default for JournalConfig {
    fn default() -> Self {
        JournalConfig { segment_bytes: 16 * 1024 * 1024, spare_segments: 1, free_floor_bytes: 64 * 1024 * 1024 }
    }
}

impl JournalConfig {
    fn validate(&self) -> Result<(), OpenError> {
        if !SEGMENT_BYTES.contains(&self.segment_bytes) || !self.segment_bytes.is_multiple_of(512) {
            let what = format!("segment_bytes {} must be a multiple of 512 in {SEGMENT_BYTES:?}", self.segment_bytes);
            return Err(OpenError::Config(what));
        }
        if !(1..=MAX_SPARES).contains(&self.spare_segments) {
            let what = format!("spare_segments {} must be 1 to {MAX_SPARES}", self.spare_segments);
            return Err(OpenError::Config(what));
        }
        Ok(())
    }
}

/// Whether there is room to go on for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The reserve is in place.
    Ok,
    /// The reserve could not be allocated or little space is left. Accept nothing that adds data.
    Low,
}

/// What was on disk when the journal opened. All of it is durable.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The newest hard state; never behind the snapshot.
    pub hard_state: HardState,
    /// The snapshot to start from; its file has been checked.
    pub snapshot: Option<SnapshotMeta>,
    /// Every entry after the snapshot, gapless.
    pub entries: Vec<LogEntry>,
    /// First entry the journal can read back; may lie before the snapshot.
    pub first_index: LogIndex,
    /// Last entry in the log, the snapshot's if there are none after it.
    pub last_index: LogIndex,
    /// What had to be mended, one sentence each, for the operator's log.
    pub notes: Vec<String>,
}

/// The durable log of one node. One thread owns it.
pub struct Journal<D: Disk> {
    pub(crate) disk: D,
    pub(crate) config: JournalConfig,
    pub(crate) segments: VecDeque<Segment>,
    pub(crate) spares: Vec<Spare>,
    /// The spare that is being made, and its number.
    pub(crate) preparing: Option<(u64, Prepared)>,
    pub(crate) positions: Positions,
    pub(crate) hard_state: HardState,
    pub(crate) space: Space,
    /// Records were written after the last sync.
    pub(crate) dirty: bool,
    /// Up to where the current segment is durable, and up to where its synced note says so.
    pub(crate) synced: u64,
    pub(crate) synced_noted: u64,
    pub(crate) failed: bool,
    pub(crate) buffer: Vec<u8>,
}

impl<D: Disk> Journal<D> {
    /// Opens the journal in `disk`, or starts one in an empty directory, and gives back what it holds.
    ///
    /// What a crash left unfinished is cut off and cleaned away; anything that was durable and is not
    /// there any more makes this fail.
    ///
    /// # Errors
    /// See [`OpenError`]: the journal never opens with a part of what was durable.
    pub fn open(disk: D, config: JournalConfig) -> Result<(Journal<D>, Recovered), OpenError> {
        config.validate()?;
        recovery::open(disk, config)
    }

    /// Writes entries and then a hard state, in one write. Durable only after [`Journal::sync`].
    ///
    /// An entry with an index the log already has replaces that entry and all after it.
    ///
    /// # Errors
    /// See [`AppendError`]; unless it is `Failed`, nothing was written and the journal goes on.
    pub fn append(&mut self, entries: &[LogEntry], hard_state: Option<HardState>) -> Result<(), AppendError> {
        self.check_usable().map_err(AppendError::Failed)?;
        self.check_order(entries)?;
        // The hard state comes last: its commit index may name the entries before it, and a torn
        // write keeps a prefix.
        let entries = entries.iter().map(|entry| Record::Entry(EntryView::from(entry)));
        let records: Vec<Record<'_>> = entries.chain(hard_state.map(Record::HardState)).collect();
        self.write(&records)
    }

    /// Makes everything appended so far durable.
    ///
    /// # Errors
    /// The journal cannot be used any more; nobody knows what is durable.
    pub fn sync(&mut self) -> io::Result<()> {
        self.check_usable()?;
        if !self.dirty {
            return Ok(());
        }
        let mut synced = self.current().file.sync_data();
        if tidelock_model::planted!(SyncErrorRetried) && synced.is_err() {
            synced = self.current().file.sync_data();
        }
        self.fail_on_error(synced)?;
        self.dirty = false;
        self.synced = self.current().end;
        // The mark itself is not waited for. It reaches the disk with the next sync or when the system
        // writes back, and from then on damage before it is known to be damage.
        let marked = self.current_mut().mark();
        self.fail_on_error(marked)
    }

    /// Reads the entries `from <= index < to`, stopping once `max_bytes` of content are exceeded but
    /// never before the first one.
    ///
    /// # Errors
    /// See [`ReadError`]; every record is checked again, so damage is never handed on.
    pub fn read(&self, from: LogIndex, to: LogIndex, max_bytes: usize) -> Result<Vec<LogEntry>, ReadError> {
        self.check_usable().map_err(ReadError::Failed)?;
        let (first, last) = (self.positions.first(), self.positions.last());
        if from.0 < first {
            return Err(ReadError::Trimmed { first: LogIndex(first) });
        }
        if to.0 > last + 1 {
            return Err(ReadError::BeyondEnd { last: LogIndex(last) });
        }
        let mut walk = Walk::new(self);
        let (mut entries, mut bytes) = (Vec::new(), 0usize);
        for index in from.0..to.0 {
            let entry = walk.entry(index)?;
            bytes = bytes.saturating_add(entry.payload.len() + entry.context.len());
            if bytes > max_bytes && !entries.is_empty() {
                break;
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    /// Gives up the oldest segment if it holds nothing after `up_to` and a finished snapshot covers it; whether the next
    /// one can go as well. One at a time, because each keeps the disk busy. Syncs before it does.
    ///
    /// # Errors
    /// The journal cannot be used any more.
    pub fn trim_one(&mut self, up_to: LogIndex) -> io::Result<bool> {
        self.check_usable()?;
        let covered = latest_snapshot(&self.disk).map(|found| found.map_or(0, |name| name.index.0.min(up_to.0)));
        let mut covered = self.fail_on_error(covered)?;
        if tidelock_model::planted!(JournalTrimmedTooSoon) {
            covered = up_to.0;
        }
        if !self.oldest_is_covered(covered) {
            return Ok(false);
        }
        // What replaced entries of these segments must be durable before they go. Otherwise a crash
        // brings back what was written after the replaced ones, and the proof that the snapshot
        // contradicts it is gone.
        self.sync()?;
        let dropped = self.drop_oldest();
        self.fail_on_error(dropped)?;
        Ok(self.oldest_is_covered(covered))
    }

    fn oldest_is_covered(&self, covered: u64) -> bool {
        self.segments.len() > 1 && self.segments[0].highest <= covered
    }

    /// Starts the log anew after a snapshot installed from a peer: what was there is irrelevant, the
    /// next entry is `index + 1`. Durable on return.
    ///
    /// # Errors
    /// `SnapshotMissing` unless a finished snapshot covers `index`; otherwise as for `append`.
    pub fn restart_from_snapshot(
        &mut self,
        index: LogIndex,
        term: Term,
        hard_state: HardState,
    ) -> Result<(), AppendError> {
        self.check_usable().map_err(AppendError::Failed)?;
        let newest = latest_snapshot(&self.disk);
        let newest = self.fail_on_error(newest).map_err(AppendError::Failed)?;
        if newest.is_none_or(|name| name.index < index) {
            return Err(AppendError::SnapshotMissing { index });
        }
        self.write(&[Record::Restart { index: index.0, term: term.0 }, Record::HardState(hard_state)])?;
        self.sync().map_err(AppendError::Failed)?;
        while self.segments.len() > 1 {
            let dropped = self.drop_oldest();
            self.fail_on_error(dropped).map_err(AppendError::Failed)?;
        }
        Ok(())
    }

    /// Puts the reserve back in place if it is missing and notes how far the journal is durable; to be
    /// called about once a second.
    ///
    /// # Errors
    /// The disk failed in another way than being full: the journal cannot be used any more.
    pub fn maintain(&mut self) -> io::Result<Space> {
        self.check_usable()?;
        if self.synced > self.synced_noted {
            let noted = self.current().note_synced(self.synced);
            self.fail_on_error(noted)?;
            self.synced_noted = self.synced;
        }
        self.space = Space::Ok;
        if !self.prepare_spare()? {
            self.space = Space::Low;
        }
        if !self.is_above_floor()? {
            self.space = Space::Low;
        }
        Ok(self.space)
    }

    /// Whether enough of the disk is free, if need be after giving up spares beyond the reserve.
    fn is_above_floor(&mut self) -> io::Result<bool> {
        loop {
            let free = self.disk.free_bytes();
            if self.fail_on_error(free)? >= self.config.free_floor_bytes {
                return Ok(true);
            }
            if self.spares.len() <= self.config.spare_segments {
                return Ok(false);
            }
            let Some(spare) = self.spares.pop() else { return Ok(false) };
            let removed = self.disk.remove(&spare.name).and_then(|()| self.disk.sync_dir());
            self.fail_on_error(removed)?;
        }
    }

    /// What the last attempt to keep the reserve found.
    pub fn space(&self) -> Space {
        self.space
    }

    /// Bytes of all segments and spares.
    pub fn disk_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.size).sum::<u64>()
            + self.spares.len() as u64 * self.config.segment_bytes
    }

    /// First entry that can be read back; one after `last_index` when there is none.
    pub fn first_index(&self) -> LogIndex {
        LogIndex(self.positions.first())
    }

    /// Last entry of the log, durable or not.
    pub fn last_index(&self) -> LogIndex {
        LogIndex(self.positions.last())
    }

    /// The hard state last appended.
    pub fn hard_state(&self) -> HardState {
        self.hard_state
    }

    /// The disk, for snapshots beside the journal.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// Leaves a mark behind what recovery has made durable, unless the segment is full.
    pub(crate) fn mark_if_room(&mut self) -> io::Result<()> {
        let segment = self.current_mut();
        if segment.end > segment.entry_limit() {
            return Ok(());
        }
        let marked = segment.mark();
        self.fail_on_error(marked)
    }

    fn check_usable(&self) -> io::Result<()> {
        if self.failed { Err(io::Error::other("an earlier write or sync of the journal failed")) } else { Ok(()) }
    }

    fn fail_on_error<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        self.failed |= result.is_err();
        result
    }

    fn current(&self) -> &Segment {
        self.segments.back().expect("a journal always has a segment")
    }

    fn current_mut(&mut self) -> &mut Segment {
        self.segments.back_mut().expect("a journal always has a segment")
    }

    fn check_order(&self, entries: &[LogEntry]) -> Result<(), AppendError> {
        let (first, last) = (self.positions.first(), self.positions.last());
        let mut expected = None;
        for entry in entries {
            let index = entry.index.0;
            let follows = expected.map_or(index >= first && index <= last + 1, |next| index == next);
            if !follows || index == u64::MAX {
                let (first, last) = (LogIndex(first), LogIndex(last));
                return Err(AppendError::OutOfOrder { index: entry.index, first, last });
            }
            expected = Some(index + 1);
        }
        Ok(())
    }

    /// Writes all of `records` or, when the room for them cannot be found, none.
    pub(crate) fn write(&mut self, records: &[Record<'_>]) -> Result<(), AppendError> {
        let segments = self.count_new_segments(records)?;
        if !self.allocate_spares(segments).map_err(AppendError::Failed)? {
            self.space = Space::Low;
            return Err(AppendError::NoSpace);
        }
        let written = self.write_reserved(records);
        self.fail_on_error(written).map_err(AppendError::Failed)
    }

    fn count_new_segments(&self, records: &[Record<'_>]) -> Result<usize, AppendError> {
        let first_record = Record::HardState(self.hard_state).encoded_len();
        let limit = self.config.segment_bytes - CLOSING_BYTES - RECORDS_START as u64 - first_record;
        let mut left = self.current().entry_limit().saturating_sub(self.current().end);
        let mut segments = 0;
        for record in records {
            let bytes = record.encoded_len();
            if bytes > limit {
                return Err(AppendError::TooLarge { bytes, limit });
            }
            if bytes > left {
                segments += 1;
                left = limit;
            }
            left -= bytes;
        }
        Ok(segments)
    }

    /// Sees to it that there will be enough spares, without waiting for them: to fill one with zeros takes as long as
    /// hundreds of appends. False when the disk is full.
    fn prepare_spare(&mut self) -> io::Result<bool> {
        if self.spares.len() < self.config.spare_segments {
            self.begin_spare();
        }
        let is_over = self.preparing.as_mut().is_some_and(|(_, prepared)| prepared.is_over());
        if is_over { self.take_prepared() } else { Ok(true) }
    }

    /// Brings the number of spares up to `wanted` now. False when the disk is full.
    fn allocate_spares(&mut self, wanted: usize) -> io::Result<bool> {
        while self.spares.len() < wanted {
            self.begin_spare();
            if !self.take_prepared()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Lets a spare be made, unless one is.
    fn begin_spare(&mut self) {
        if self.preparing.is_none() {
            let number = self.next_spare_number();
            let prepared = self.disk.prepare(&unfinished_spare_name(number), self.config.segment_bytes);
            self.preparing = Some((number, prepared));
        }
    }

    /// Takes the spare that is being made, when it is. False when the disk is full.
    fn take_prepared(&mut self) -> io::Result<bool> {
        let Some((number, prepared)) = self.preparing.take() else { return Ok(true) };
        // Whoever could not be found to make it is not needed.
        let made = prepared
            .take()
            .unwrap_or_else(|| zeroed(&self.disk, &unfinished_spare_name(number), self.config.segment_bytes));
        match made.and_then(|file| finish_spare(&self.disk, number, file)) {
            Ok(spare) => self.spares.push(spare),
            Err(error) if is_full(&error) => return Ok(false),
            Err(error) => return self.fail_on_error(Err(error)),
        }
        Ok(true)
    }

    fn next_spare_number(&self) -> u64 {
        let known = self.spares.iter().filter_map(|spare| parse_spare_name(&spare.name));
        known.chain(self.preparing.iter().map(|(number, _)| *number)).max().map_or(1, |number| number + 1)
    }

    fn write_reserved(&mut self, records: &[Record<'_>]) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        for record in records {
            let at = self.current().end + buffer.len() as u64;
            if at + record.encoded_len() > self.current().entry_limit() {
                self.flush(&mut buffer)?;
                self.rotate()?;
            }
            self.encode(record, &mut buffer);
        }
        self.flush(&mut buffer)?;
        self.buffer = buffer;
        Ok(())
    }

    fn encode(&mut self, record: &Record<'_>, buffer: &mut Vec<u8>) {
        let segment = self.segments.back_mut().expect("a journal always has a segment");
        let offset = segment.end + buffer.len() as u64;
        segment.chain = record.encode(buffer, segment.sequence, offset, segment.chain);
        match *record {
            Record::Entry(EntryView { index, .. }) => {
                segment.highest = segment.highest.max(index);
                self.positions.note(Point { index, sequence: segment.sequence, offset });
            }
            Record::Restart { index, .. } => {
                segment.highest = segment.highest.max(index);
                self.positions.restart_at(index + 1);
            }
            Record::HardState(state) => self.hard_state = state,
            Record::Mark | Record::Seal => {}
        }
    }

    fn flush(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        let segment = self.current_mut();
        segment.file.append(segment.end, buffer)?;
        segment.end += buffer.len() as u64;
        buffer.clear();
        self.dirty = true;
        Ok(())
    }

    /// Ends the current segment and goes on in the spare.
    fn rotate(&mut self) -> io::Result<()> {
        // All of the old segment must be durable before the new one exists: recovery takes damage in
        // any but the last segment for rot.
        self.current().file.sync_data()?;
        let spare = self.spares.pop().expect("the caller has reserved a spare for each new segment");
        let old = self.current();
        let header = SegmentHeader {
            sequence: old.sequence + 1,
            first_index: self.positions.last() + 1,
            segment_bytes: self.config.segment_bytes,
            previous_end: old.end,
            previous_chain: old.chain,
        };
        let next = Segment::activate(&self.disk, spare, &header, self.hard_state)?;
        // Only now, when the new segment cannot vanish in a crash any more, the old one says that it
        // exists. From here on a missing newest segment is noticed.
        let old = self.current_mut();
        old.seal()?;
        old.file.sync_data()?;
        old.file.end_appends();
        (self.synced, self.synced_noted) = (next.end, 0);
        self.segments.push_back(next);
        self.dirty = false;
        Ok(())
    }

    /// Gives up the oldest segment. One directory sync for each, so that a crash can only leave a
    /// gapless run of segments.
    pub(crate) fn drop_oldest(&mut self) -> io::Result<()> {
        let Some(segment) = self.segments.pop_front() else { return Ok(()) };
        if segment.size == self.config.segment_bytes && self.spares.len() < MAX_SPARES {
            let name = spare_name(self.next_spare_number());
            self.disk.rename(&segment.name, &name)?;
            self.spares.push(Spare { name, file: segment.file });
        } else {
            self.disk.remove(&segment.name)?;
        }
        self.disk.sync_dir()?;
        self.positions.drop_before(segment.sequence + 1);
        Ok(())
    }
}

/// Reads entries in ascending order, a window of a segment at a time.
struct Walk<'a, D: Disk> {
    journal: &'a Journal<D>,
    at: Option<(&'a Segment, u64)>,
    /// Where to jump: from this index on the entries are elsewhere.
    jump: Option<Point>,
    window: Vec<u8>,
    window_start: u64,
}

impl<'a, D: Disk> Walk<'a, D> {
    fn new(journal: &'a Journal<D>) -> Self {
        Walk { journal, at: None, jump: None, window: Vec::new(), window_start: 0 }
    }

    /// The entry `index`; each call must ask for a later one.
    fn entry(&mut self, index: u64) -> Result<LogEntry, ReadError> {
        if self.at.is_none() || self.jump.is_some_and(|point| point.index <= index) {
            let (point, jump) = self.journal.positions.locate(index);
            let point = point.expect("every live entry has a point at or before it");
            let oldest = self.journal.segments[0].sequence;
            let segment = &self.journal.segments[(point.sequence - oldest) as usize];
            if self.at.is_none_or(|(before, _)| before.sequence != segment.sequence) {
                self.window.clear();
            }
            self.at = Some((segment, point.offset));
            self.jump = jump;
        }
        let (segment, mut offset) = self.at.expect("the walk has just been given a place");
        loop {
            let damaged =
                || ReadError::Damaged { directory: self.journal.disk.location(), file: segment.name.clone(), offset };
            self.load(segment, offset, RECORD_HEADER as u64)?;
            let header = Header::decode(self.bytes(offset), segment.sequence, offset).ok_or_else(damaged)?;
            self.load(segment, offset, header.record_len() as u64)?;
            let record = header.record(self.bytes(offset)).map_err(|_| damaged())?;
            let next = offset + header.record_len() as u64;
            match record {
                Record::Entry(entry) if entry.index == index => {
                    let entry = entry.to_entry();
                    self.at = Some((segment, next));
                    return Ok(entry);
                }
                Record::Entry(entry) if entry.index > index => return Err(damaged()),
                Record::Restart { .. } | Record::Seal => return Err(damaged()),
                Record::Entry(_) | Record::HardState(_) | Record::Mark => offset = next,
            }
        }
    }

    /// Makes sure that the window covers `len` bytes at `offset`, or as many as the segment has.
    fn load(&mut self, segment: &Segment, offset: u64, len: u64) -> Result<(), ReadError> {
        let end = (offset + len).min(segment.end);
        let loaded = self.window_start..self.window_start + self.window.len() as u64;
        if loaded.contains(&offset) && end <= loaded.end {
            return Ok(());
        }
        let wanted = len.max(READ_WINDOW).min(segment.end.saturating_sub(offset));
        self.window.resize(wanted as usize, 0);
        self.window_start = offset;
        segment.file.read_at(offset, &mut self.window).map_err(ReadError::Failed)
    }

    fn bytes(&self, offset: u64) -> &[u8] {
        self.window.get((offset - self.window_start) as usize..).unwrap_or_default()
    }
}
