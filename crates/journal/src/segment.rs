//! Segment files: their header, their names, and how one comes into use.
//!
//! A file is filled with zeros and synced under a temporary name, waits as a spare, and becomes a
//! segment in one step: header and first record are written and synced while it is still a spare, then
//! it is renamed. So a file with a segment's name always has a complete header and a hard state.
//! Its sequence number is never used for another segment and is mixed into every record's check, so
//! what an earlier use left in a recycled file means nothing in the new one.

use std::io;

use crc32c::{crc32c, crc32c_append};
use tidelock_model::HardState;

use crate::disk::{Disk, DiskFile, TEMPORARY, parse_hex16, zeroed};
use crate::record::{RECORD_HEADER, Record, u32_at, u64_at};

/// Bytes of the header.
pub(crate) const SEGMENT_HEADER: usize = 64;
/// Where the first record starts: behind the header and the synced note.
pub(crate) const RECORDS_START: usize = SEGMENT_HEADER + SYNCED_NOTE;
const SYNCED_NOTE: usize = 16;
/// Smallest and largest segment that can be asked for: room for a few records; offsets stay small
/// and a whole segment fits into memory at recovery.
pub(crate) const SEGMENT_BYTES: std::ops::RangeInclusive<u64> = 1024..=1024 * 1024 * 1024;
const MAGIC: &[u8; 8] = b"TDLKSEG\0";
const VERSION: u32 = 1;
/// Room that entries leave at the end of a segment for one mark and one seal.
pub(crate) const CLOSING_BYTES: u64 = 2 * RECORD_HEADER as u64;

/// The first bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) sequence: u64,
    /// The index that was next when the segment came into use.
    pub(crate) first_index: u64,
    pub(crate) segment_bytes: u64,
    /// Where the previous segment ends; all of it before that was durable.
    pub(crate) previous_end: u64,
    /// Check of the previous segment's last record.
    pub(crate) previous_chain: u32,
}

/// Why a segment header cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderFlaw {
    Damaged,
    Version(u32),
}

impl SegmentHeader {
    /// The header's bytes. The last four are its check, which the first record links to.
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER] {
        let mut bytes = [0; SEGMENT_HEADER];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first_index.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.segment_bytes.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.previous_end.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.previous_chain.to_le_bytes());
        let check = crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads a header and its check.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(SegmentHeader, u32), HeaderFlaw> {
        let read = || {
            let check = u32_at(bytes, 60)?;
            let intact = bytes.starts_with(MAGIC) && crc32c(&bytes[..60]) == check;
            let header = SegmentHeader {
                sequence: u64_at(bytes, 16)?,
                first_index: u64_at(bytes, 24)?,
                segment_bytes: u64_at(bytes, 32)?,
                previous_end: u64_at(bytes, 40)?,
                previous_chain: u32_at(bytes, 48)?,
            };
            intact.then_some((u32_at(bytes, 8)?, header, check))
        };
        // The check comes first: a damaged version number must not send the operator to another program.
        match read().ok_or(HeaderFlaw::Damaged)? {
            (VERSION, header, check) => Ok((header, check)),
            (version, ..) => Err(HeaderFlaw::Version(version)),
        }
    }
}

/// The synced note of a segment: a promise, renewed now and then, of how far it is durable. Marks say the same
/// but stand behind what they vouch for, so a tail lost together with its marks only shows here.
pub(crate) fn encode_synced_note(sequence: u64, end: u64) -> [u8; SYNCED_NOTE] {
    let mut bytes = [0; SYNCED_NOTE];
    bytes[..8].copy_from_slice(&end.to_le_bytes());
    bytes[8..12].copy_from_slice(&synced_note_check(sequence, end).to_le_bytes());
    bytes
}

/// Reads the synced note out of a whole segment. A damaged one promises nothing.
pub(crate) fn decode_synced_note(segment: &[u8], sequence: u64) -> u64 {
    let end = u64_at(segment, SEGMENT_HEADER).unwrap_or(0);
    let check = u32_at(segment, SEGMENT_HEADER + 8);
    if check == Some(synced_note_check(sequence, end)) { end } else { 0 }
}

fn synced_note_check(sequence: u64, end: u64) -> u32 {
    crc32c_append(crc32c(&sequence.to_le_bytes()), &end.to_le_bytes())
}

/// A segment in use.
pub(crate) struct Segment {
    pub(crate) name: String,
    pub(crate) sequence: u64,
    pub(crate) file: Box<dyn DiskFile>,
    pub(crate) size: u64,
    /// Where the next record goes.
    pub(crate) end: u64,
    /// Check of the last record, or of the header.
    pub(crate) chain: u32,
    /// Largest index ever written here, live or replaced.
    pub(crate) highest: u64,
}

/// A file ready to become a segment.
pub(crate) struct Spare {
    pub(crate) name: String,
    pub(crate) file: Box<dyn DiskFile>,
}

pub(crate) fn segment_name(sequence: u64, first_index: u64) -> String {
    format!("segment-{sequence:016x}-{first_index:016x}.log")
}

/// Sequence number and first index of a segment's name.
pub(crate) fn parse_segment_name(name: &str) -> Option<(u64, u64)> {
    let (sequence, first) = name.strip_prefix("segment-")?.strip_suffix(".log")?.split_once('-')?;
    Some((parse_hex16(sequence)?, parse_hex16(first)?))
}

pub(crate) fn spare_name(number: u64) -> String {
    format!("spare-{number:016x}.log")
}

pub(crate) fn parse_spare_name(name: &str) -> Option<u64> {
    parse_hex16(name.strip_prefix("spare-")?.strip_suffix(".log")?)
}

/// The name of a spare that is being made.
pub(crate) fn unfinished_spare_name(number: u64) -> String {
    format!("{}{TEMPORARY}", spare_name(number))
}

/// Gives a file of zeros its name as a spare, durable when this returns.
pub(crate) fn finish_spare<D: Disk>(disk: &D, number: u64, file: Box<dyn DiskFile>) -> io::Result<Spare> {
    let name = spare_name(number);
    disk.rename(&unfinished_spare_name(number), &name)?;
    disk.sync_dir()?;
    Ok(Spare { name, file })
}

/// The first segment of a new data directory.
pub(crate) fn create_first<D: Disk>(disk: &D, bytes: u64) -> io::Result<Segment> {
    let header =
        SegmentHeader { sequence: 1, first_index: 1, segment_bytes: bytes, previous_end: 0, previous_chain: 0 };
    let name = segment_name(1, 1);
    let file = zeroed(disk, &format!("{name}{TEMPORARY}"), bytes)?;
    Segment::activate(disk, Spare { name: format!("{name}{TEMPORARY}"), file }, &header, HardState::default())
}

impl Segment {
    /// Turns a spare into the segment `header` describes, with `hard_state` as its first record.
    pub(crate) fn activate<D: Disk>(
        disk: &D,
        spare: Spare,
        header: &SegmentHeader,
        hard_state: HardState,
    ) -> io::Result<Segment> {
        let mut bytes = header.encode().to_vec();
        let link = u32_at(&bytes, 60).expect("an encoded header has its check in its last four bytes");
        bytes.extend_from_slice(&[0; SYNCED_NOTE]);
        let chain = Record::HardState(hard_state).encode(&mut bytes, header.sequence, RECORDS_START as u64, link);
        spare.file.write_at(0, &bytes)?;
        spare.file.sync_data()?;
        let name = segment_name(header.sequence, header.first_index);
        disk.rename(&spare.name, &name)?;
        disk.sync_dir()?;
        Ok(Segment {
            name,
            sequence: header.sequence,
            file: spare.file,
            size: header.segment_bytes,
            end: bytes.len() as u64,
            chain,
            highest: 0,
        })
    }

    /// Where entries must end, so that a mark and a seal always fit behind them.
    pub(crate) fn entry_limit(&self) -> u64 {
        self.size - CLOSING_BYTES
    }

    /// Notes how far the segment is durable. Not synced: it is a help, not a part of the log.
    pub(crate) fn note_synced(&self, end: u64) -> io::Result<()> {
        self.file.write_at(SEGMENT_HEADER as u64, &encode_synced_note(self.sequence, end))
    }

    /// Leaves a mark at the end, which nobody waits for.
    pub(crate) fn mark(&mut self) -> io::Result<()> {
        self.write_record(&Record::Mark, |file, end, bytes| file.append_at_leisure(end, bytes))
    }

    /// Says at the end that there is another segment.
    pub(crate) fn seal(&mut self) -> io::Result<()> {
        self.write_record(&Record::Seal, |file, end, bytes| file.append(end, bytes))
    }

    fn write_record(
        &mut self,
        record: &Record<'_>,
        append: impl Fn(&dyn DiskFile, u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(RECORD_HEADER);
        let chain = record.encode(&mut bytes, self.sequence, self.end, self.chain);
        assert!(self.end + bytes.len() as u64 <= self.size, "marks and seals have room kept for them");
        append(&*self.file, self.end, &bytes)?;
        self.end += bytes.len() as u64;
        self.chain = chain;
        Ok(())
    }
}
