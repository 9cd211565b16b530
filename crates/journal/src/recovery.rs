//! Opening a journal: what is there, what a crash left unfinished, what is damaged.
//!
//! Segments are read in order. In all but the last, everything up to where the next segment's header
//! says it ends was durable, so any flaw there is damage. In the last one the records are followed to
//! the first place where none continues the chain. Whether that place is the end of the log, the torn
//! edge of a write that was never acknowledged, or damage is decided by one question: is there proof
//! that the bytes there had been durable? The proof is a mark or a seal behind it. With proof the
//! journal refuses to open; without, nobody was ever told that those bytes were safe, and they are cut.
//!
//! What is given back is made durable first: after a killed process the bytes read here may exist only
//! in memory, and after a failed sync they may never be written unless someone writes them again.
//! The argument in full: `docs/internals/journal.md`.

use std::collections::VecDeque;

use tidelock_model::{HardState, LogEntry, NodeId};

use crate::disk::{Disk, TEMPORARY};
use crate::error::{AppendError, OpenError, SnapshotError};
use crate::journal::{Journal, JournalConfig, MAX_SPARES, Recovered, Space};
use crate::positions::{Point, Positions};
use crate::record::{Flaw, Header, RECORD_HEADER, Record, find_proof_of_sync};
use crate::segment::{
    HeaderFlaw, RECORDS_START, SEGMENT_BYTES, SEGMENT_HEADER, Segment, SegmentHeader, Spare, create_first,
    decode_synced_note, parse_segment_name, parse_spare_name, segment_name,
};
use crate::snapshot::{DAMAGED, verify_snapshot};
use crate::snapshot_format::{SnapshotMeta, SnapshotName};

pub(crate) fn open<D: Disk>(disk: D, config: JournalConfig) -> Result<(Journal<D>, Recovered), OpenError> {
    let files = Files::list(&disk)?;
    let chosen = choose_snapshot(&disk, &files.snapshots)?;
    files.check_complete(&disk)?;
    let headers = read_headers(&disk, &files.segments)?;
    let first_index = headers.first().map_or(1, |(header, _)| header.first_index);
    let mut log = Log::starting_at(first_index, chosen.usable.as_ref());
    let mut segments = VecDeque::with_capacity(headers.len() + 1);
    for (at, (header, check)) in headers.iter().enumerate() {
        let next = headers.get(at + 1).map(|(next, _)| next);
        segments.push_back(read_segment(&disk, header, *check, next, &mut log)?);
    }
    log.check_reaches(&disk, &chosen)?;

    // Up to here nothing was changed: who is refused can still look at the files as they were found.
    for repair in log.repairs.drain(..) {
        repair.apply(&segments)?;
    }
    for name in &files.temporary {
        disk.remove(name)?;
    }
    disk.sync_dir()?;
    if segments.is_empty() {
        segments.push_back(create_first(&disk, config.segment_bytes)?);
    }
    assemble(disk, config, &files.spares, segments, log, chosen)
}

/// Builds the journal and brings it in line with the snapshot.
fn assemble<D: Disk>(
    disk: D,
    config: JournalConfig,
    spare_names: &[String],
    segments: VecDeque<Segment>,
    log: Log,
    chosen: Chosen,
) -> Result<(Journal<D>, Recovered), OpenError> {
    let snapshot_ahead = chosen.usable.as_ref().is_some_and(|meta| log.is_superseded_by(meta));
    let Log { positions, mut hard_state, mut entries, mut notes, marked, .. } = log;
    if let Some(meta) = &chosen.usable {
        // A crash between installing a snapshot and noting it here leaves the hard state behind.
        if hard_state.term < meta.term {
            hard_state = HardState { term: meta.term, vote: NodeId(0), ..hard_state };
        }
        hard_state.commit = hard_state.commit.max(meta.index);
    }
    set_aside(&disk, &chosen.damaged, &mut notes)?;
    let spares = adopt_spares(&disk, &config, spare_names)?;
    let synced = segments.back().map_or(0, |last| last.end);
    let mut journal = Journal {
        disk,
        config,
        segments,
        spares,
        preparing: None,
        positions,
        hard_state,
        space: Space::Ok,
        dirty: false,
        synced,
        synced_noted: 0,
        failed: false,
        buffer: Vec::new(),
    };
    if let (true, Some(meta)) = (snapshot_ahead, &chosen.usable) {
        notes.push(format!("the snapshot at entry {} replaced the log", meta.index));
        entries.clear();
        journal.restart_from_snapshot(meta.index, meta.term, hard_state).map_err(|error| match error {
            AppendError::Failed(error) => OpenError::Io(error),
            other => OpenError::Io(std::io::Error::new(std::io::ErrorKind::StorageFull, other)),
        })?;
    } else if !marked {
        journal.mark_if_room()?;
    }
    journal.maintain()?;
    let (first_index, last_index) = (journal.first_index(), journal.last_index());
    let recovered = Recovered { hard_state, snapshot: chosen.usable, entries, first_index, last_index, notes };
    Ok((journal, recovered))
}

/// Damaged snapshots that an older one stands in for keep their bytes but lose their name, so that
/// they are not looked at again.
fn set_aside<D: Disk>(disk: &D, found: &[(SnapshotName, String)], notes: &mut Vec<String>) -> Result<(), OpenError> {
    for (name, what) in found {
        let name = name.file_name();
        disk.rename(&name, &format!("{name}{DAMAGED}"))?;
        notes.push(format!("{name} is damaged ({what}); an older snapshot and the journal stand in for it"));
    }
    if !found.is_empty() {
        disk.sync_dir()?;
    }
    Ok(())
}

fn adopt_spares<D: Disk>(disk: &D, config: &JournalConfig, names: &[String]) -> Result<Vec<Spare>, OpenError> {
    let mut spares = Vec::new();
    for name in names {
        let file = disk.open(name)?;
        if file.len()? == config.segment_bytes && spares.len() < MAX_SPARES {
            spares.push(Spare { name: name.clone(), file });
        } else {
            disk.remove(name)?;
            disk.sync_dir()?;
        }
    }
    Ok(spares)
}

/// The names in the directory, sorted out.
struct Files {
    segments: Vec<(u64, u64)>,
    spares: Vec<String>,
    snapshots: Vec<SnapshotName>,
    temporary: Vec<String>,
}

impl Files {
    fn list<D: Disk>(disk: &D) -> Result<Files, OpenError> {
        let names = disk.list()?;
        let mut segments: Vec<_> = names.iter().filter_map(|name| parse_segment_name(name)).collect();
        let mut snapshots: Vec<_> = names.iter().filter_map(|name| SnapshotName::parse(name)).collect();
        let mut spares: Vec<_> = names.iter().filter(|name| parse_spare_name(name).is_some()).cloned().collect();
        let temporary = names.into_iter().filter(|name| name.ends_with(TEMPORARY)).collect();
        segments.sort_unstable();
        snapshots.sort_unstable();
        spares.sort_unstable();
        Ok(Files { segments, spares, snapshots, temporary })
    }

    /// A new directory may hold temporary files of a first start that did not get far, nothing else:
    /// the first segment is there before the first spare or snapshot, and one is always there after.
    fn check_complete<D: Disk>(&self, disk: &D) -> Result<(), OpenError> {
        if !self.segments.is_empty() || (self.snapshots.is_empty() && self.spares.is_empty()) {
            return Ok(());
        }
        let what = "there are other files of a journal, but no segment".to_string();
        Err(OpenError::Hole { directory: disk.location(), what })
    }
}

/// The snapshot to start from, and the newer damaged ones it would stand in for.
struct Chosen {
    usable: Option<SnapshotMeta>,
    damaged: Vec<(SnapshotName, String)>,
}

fn choose_snapshot<D: Disk>(disk: &D, names: &[SnapshotName]) -> Result<Chosen, OpenError> {
    let mut damaged = Vec::new();
    for name in names.iter().rev() {
        match verify_snapshot(disk, *name) {
            Ok(meta) => return Ok(Chosen { usable: Some(meta), damaged }),
            Err(SnapshotError::Io(error)) => return Err(OpenError::Io(error)),
            Err(SnapshotError::UnknownVersion { version }) => {
                return Err(OpenError::UnknownVersion { directory: disk.location(), file: name.file_name(), version });
            }
            Err(error) => damaged.push((*name, error.to_string())),
        }
    }
    Ok(Chosen { usable: None, damaged })
}

fn damaged<D: Disk>(disk: &D, file: &str, offset: u64, what: &str) -> OpenError {
    OpenError::Damaged { directory: disk.location(), file: file.to_string(), offset, what: what.to_string() }
}

fn read_headers<D: Disk>(disk: &D, names: &[(u64, u64)]) -> Result<Vec<(SegmentHeader, u32)>, OpenError> {
    let mut headers: Vec<(SegmentHeader, u32)> = Vec::with_capacity(names.len());
    for &(sequence, first_index) in names {
        let name = segment_name(sequence, first_index);
        if let Some((before, _)) = headers.last()
            && before.sequence + 1 != sequence
        {
            let what = format!("segment {:016x} is followed by {sequence:016x}", before.sequence);
            return Err(OpenError::Hole { directory: disk.location(), what });
        }
        let file = disk.open(&name)?;
        let len = file.len()?;
        let mut bytes = [0; SEGMENT_HEADER];
        if len < bytes.len() as u64 {
            return Err(damaged(disk, &name, len, "the file is too short"));
        }
        file.read_at(0, &mut bytes)?;
        let (header, check) = SegmentHeader::decode(&bytes).map_err(|flaw| match flaw {
            HeaderFlaw::Damaged => damaged(disk, &name, 0, "the header does not match its checksum"),
            HeaderFlaw::Version(version) => {
                OpenError::UnknownVersion { directory: disk.location(), file: name.clone(), version }
            }
        })?;
        if (header.sequence, header.first_index) != (sequence, first_index) {
            return Err(damaged(disk, &name, 16, "the header belongs to another file"));
        }
        if header.segment_bytes != len || !SEGMENT_BYTES.contains(&len) {
            return Err(damaged(disk, &name, len, "the file does not have the length it was made with"));
        }
        headers.push((header, check));
    }
    Ok(headers)
}

/// Something to put right on disk, once it is clear that the journal opens.
struct Repair {
    sequence: u64,
    offset: u64,
    bytes: Vec<u8>,
}

impl Repair {
    fn apply(self, segments: &VecDeque<Segment>) -> std::io::Result<()> {
        for segment in segments.iter().filter(|segment| segment.sequence == self.sequence) {
            segment.file.write_at(self.offset, &self.bytes)?;
            segment.file.sync_data()?;
        }
        Ok(())
    }
}

/// The log as the records build it up.
struct Log {
    positions: Positions,
    hard_state: HardState,
    /// Entries after `snapshot_index`, without gaps.
    entries: Vec<LogEntry>,
    snapshot_index: u64,
    term_at_snapshot: Option<u64>,
    /// The last record is a mark.
    marked: bool,
    repairs: Vec<Repair>,
    notes: Vec<String>,
}

impl Log {
    fn starting_at(next: u64, snapshot: Option<&SnapshotMeta>) -> Log {
        Log {
            positions: Positions::starting_at(next),
            hard_state: HardState::default(),
            entries: Vec::new(),
            snapshot_index: snapshot.map_or(0, |meta| meta.index.0),
            term_at_snapshot: None,
            marked: false,
            repairs: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Takes one record in; false if it cannot follow what came before.
    fn take(&mut self, record: &Record<'_>, sequence: u64, offset: u64) -> bool {
        match *record {
            Record::Entry(entry) => {
                let index = entry.index;
                if index == 0 || index == u64::MAX || index > self.positions.last() + 1 {
                    return false;
                }
                if tidelock_model::planted!(ReplacedEntriesReturn) && index <= self.positions.last() {
                    return true;
                }
                self.positions.note(Point { index, sequence, offset });
                let keep = self.entries.first().map_or(0, |first| index.saturating_sub(first.index.0));
                self.entries.truncate(keep as usize);
                if index > self.snapshot_index {
                    self.entries.push(entry.to_entry());
                } else {
                    self.term_at_snapshot = (index == self.snapshot_index).then_some(entry.term);
                }
            }
            Record::Restart { index, .. } if index == u64::MAX => return false,
            Record::Restart { index, term } => {
                self.positions.restart_at(index + 1);
                self.entries.clear();
                self.term_at_snapshot = (index == self.snapshot_index).then_some(term);
            }
            Record::HardState(state) => self.hard_state = state,
            Record::Mark | Record::Seal => {}
        }
        true
    }

    /// Snapshot and log together must cover everything from the first entry on.
    fn check_reaches<D: Disk>(&self, disk: &D, chosen: &Chosen) -> Result<(), OpenError> {
        let (first, last) = (self.positions.first(), self.positions.last());
        let connected = first <= self.snapshot_index + 1;
        if let Some((name, what)) = chosen.damaged.first() {
            // An older snapshot stands in only if the log leads from it to where the newest one was.
            if chosen.usable.is_none() || !connected || last < name.index.0 {
                let (directory, file, what) = (disk.location(), name.file_name(), what.clone());
                return Err(OpenError::SnapshotDamaged { directory, file, what });
            }
        }
        if !connected {
            let what = format!("it begins at entry {first}, but the snapshot ends at {}", self.snapshot_index);
            return Err(OpenError::Hole { directory: disk.location(), what });
        }
        Ok(())
    }

    /// Whether the snapshot is not a point of this log but takes its place: it was installed from a
    /// peer, and the crash came before the journal restarted after it.
    fn is_superseded_by(&self, meta: &SnapshotMeta) -> bool {
        let index = meta.index.0;
        let inside = index >= self.positions.first() && index <= self.positions.last();
        index > self.positions.last() || (inside && self.term_at_snapshot != Some(meta.term.0))
    }
}

/// Where following the records of a segment came to an end.
struct Followed {
    end: u64,
    chain: u32,
    highest: u64,
    /// Everything before this was durable for certain.
    durable: u64,
    stop: Stop,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// As far as was asked for.
    Limit,
    /// No intact record is there.
    NoRecord,
    /// A seal is there.
    Sealed,
    /// An intact record is there that no crash could have put there.
    Impossible(&'static str),
}

fn follow(bytes: &[u8], sequence: u64, header_check: u32, limit: u64, log: &mut Log) -> Followed {
    let start = RECORDS_START as u64;
    let mut found = Followed { end: start, chain: header_check, highest: 0, durable: start, stop: Stop::Limit };
    log.marked = false;
    while found.end < limit {
        let rest = bytes.get(found.end as usize..).unwrap_or_default();
        found.stop = Stop::NoRecord;
        let Some(header) = Header::decode(rest, sequence, found.end) else { return found };
        if header.link != found.chain {
            found.stop = Stop::Impossible("a record does not continue the one before it");
            return found;
        }
        let record = match header.record(rest) {
            Ok(record) => record,
            Err(Flaw::Payload) => return found,
            Err(Flaw::Meaning) => {
                found.stop = Stop::Impossible("a record has no meaning to this program");
                return found;
            }
        };
        if record == Record::Seal {
            found.stop = Stop::Sealed;
            return found;
        }
        let is_first = found.end == start;
        if (is_first && !matches!(record, Record::HardState(_))) || !log.take(&record, sequence, found.end) {
            found.stop = Stop::Impossible("a record cannot follow what comes before it");
            return found;
        }
        if let Record::Entry(entry) = record {
            found.highest = found.highest.max(entry.index);
        } else if let Record::Restart { index, .. } = record {
            found.highest = found.highest.max(index);
        }
        log.marked = record == Record::Mark;
        if log.marked {
            found.durable = found.end;
        }
        found.end += header.record_len() as u64;
        found.chain = header.check;
        if is_first {
            found.durable = found.end;
        }
    }
    found.stop = Stop::Limit;
    found
}

fn read_segment<D: Disk>(
    disk: &D,
    header: &SegmentHeader,
    header_check: u32,
    next: Option<&SegmentHeader>,
    log: &mut Log,
) -> Result<Segment, OpenError> {
    let name = segment_name(header.sequence, header.first_index);
    let file = disk.open(&name)?;
    let mut bytes = vec![0; header.segment_bytes as usize];
    file.read_at(0, &mut bytes)?;
    let limit = next.map_or(header.segment_bytes, |next| next.previous_end);
    let found = follow(&bytes, header.sequence, header_check, limit, log);
    match next {
        Some(next) => finish_closed(disk, &name, &bytes, header.sequence, &found, next, log)?,
        None => finish_last(disk, &name, &bytes, header.sequence, &found, log)?,
    }
    Ok(Segment {
        name,
        sequence: header.sequence,
        file,
        size: header.segment_bytes,
        end: found.end,
        chain: found.chain,
        highest: found.highest,
    })
}

/// A segment with a successor was durable up to where the successor says it ends.
fn finish_closed<D: Disk>(
    disk: &D,
    name: &str,
    bytes: &[u8],
    sequence: u64,
    found: &Followed,
    next: &SegmentHeader,
    log: &mut Log,
) -> Result<(), OpenError> {
    if found.stop != Stop::Limit || found.end != next.previous_end {
        let what = match found.stop {
            Stop::Impossible(what) => what,
            _ => "a record that had been durable is not intact",
        };
        return Err(damaged(disk, name, found.end, what));
    }
    if found.chain != next.previous_chain {
        return Err(damaged(disk, name, found.end, "the next segment does not continue this one"));
    }
    // A crash may have come after the next segment was there and before this one was sealed.
    let at_end = Header::decode(&bytes[found.end as usize..], sequence, found.end);
    if at_end.is_none_or(|header| header.link != found.chain) {
        let mut seal = Vec::with_capacity(RECORD_HEADER);
        Record::Seal.encode(&mut seal, sequence, found.end, found.chain);
        log.repairs.push(Repair { sequence, offset: found.end, bytes: seal });
    }
    Ok(())
}

/// The last segment ends where the records end, unless something proves that more had been durable.
fn finish_last<D: Disk>(
    disk: &D,
    name: &str,
    bytes: &[u8],
    sequence: u64,
    found: &Followed,
    log: &mut Log,
) -> Result<(), OpenError> {
    let end = found.end as usize;
    match found.stop {
        Stop::Sealed => {
            let what = format!("{name} is sealed, but the segment after it is missing");
            return Err(OpenError::Hole { directory: disk.location(), what });
        }
        Stop::Impossible(what) => return Err(damaged(disk, name, found.end, what)),
        Stop::Limit | Stop::NoRecord => {}
    }
    if end == RECORDS_START {
        return Err(damaged(disk, name, found.end, "the segment's first record is not intact"));
    }
    if let Some(proof) = find_proof_of_sync(bytes, sequence, end) {
        let what = format!("a record that had been durable is not intact (the mark at byte {proof} proves it)");
        return Err(damaged(disk, name, found.end, &what));
    }
    if decode_synced_note(bytes, sequence) > found.end {
        return Err(damaged(disk, name, found.end, "records that had been durable are gone"));
    }
    // What is kept is written once more and synced, and what follows is cleared, so that no later crash
    // can bring a piece of it back.
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(end, |last| (last + 1).max(end));
    let mut rewrite = bytes[found.durable as usize..end].to_vec();
    rewrite.resize(used - found.durable as usize, 0);
    log.repairs.push(Repair { sequence, offset: found.durable, bytes: rewrite });
    if used > end {
        log.notes.push(format!(
            "cleared what followed byte {end} of {name}: left by an earlier use of the file or by a write that was never confirmed"
        ));
    }
    Ok(())
}
