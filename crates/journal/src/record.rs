//! Records: what a segment is made of, and the only code that writes or reads their bytes.
//!
//! A record is a 20-byte header and a payload padded to four bytes. Its header check covers the
//! segment's sequence number, the record's own offset, the check of the record before it (the link) and
//! the check of its payload. So a record is valid in one place of one use of one file only: a stale
//! record of a recycled file, a sector that landed elsewhere or a record whose predecessor differs is
//! seen for what it is. The header check is the record's name in the chain.
//!
//! Decoding takes any bytes, never panics and never allocates. Layout: `docs/internals/journal.md`.

use bytes::Bytes;
use crc32c::{crc32c, crc32c_append};
use tidelock_model::{HardState, LogEntry, LogIndex, NodeId, Term};

/// Bytes before a record's payload.
pub(crate) const RECORD_HEADER: usize = 20;
/// Records start at multiples of this, which bounds the places to look at when searching for one.
pub(crate) const RECORD_ALIGN: usize = 4;
const ENTRY_FIELDS: usize = 24;
const HARD_STATE_FIELDS: usize = 24;

/// An entry whose bytes belong to someone else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EntryView<'a> {
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) kind: u8,
    pub(crate) context: &'a [u8],
    pub(crate) payload: &'a [u8],
}

impl EntryView<'_> {
    pub(crate) fn to_entry(self) -> LogEntry {
        LogEntry {
            index: LogIndex(self.index),
            term: Term(self.term),
            kind: self.kind,
            payload: Bytes::copy_from_slice(self.payload),
            context: Bytes::copy_from_slice(self.context),
        }
    }
}

impl<'a> From<&'a LogEntry> for EntryView<'a> {
    fn from(entry: &'a LogEntry) -> Self {
        EntryView {
            index: entry.index.0,
            term: entry.term.0,
            kind: entry.kind,
            context: &entry.context,
            payload: &entry.payload,
        }
    }
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Record<'a> {
    /// An entry. One with an index already taken replaces that entry and all after it.
    Entry(EntryView<'a>),
    /// The hard state from here on.
    HardState(HardState),
    /// A snapshot took the place of the whole log, which goes on after this index.
    Restart { index: u64, term: u64 },
    /// Everything before this record was durable when it was written.
    Mark,
    /// The segment ends here and the next one exists.
    Seal,
}

const KIND_ENTRY: u8 = 1;
const KIND_HARD_STATE: u8 = 2;
const KIND_RESTART: u8 = 3;
const KIND_MARK: u8 = 4;
const KIND_SEAL: u8 = 5;

impl Record<'_> {
    fn kind(&self) -> u8 {
        match self {
            Record::Entry(_) => KIND_ENTRY,
            Record::HardState(_) => KIND_HARD_STATE,
            Record::Restart { .. } => KIND_RESTART,
            Record::Mark => KIND_MARK,
            Record::Seal => KIND_SEAL,
        }
    }

    fn payload_len(&self) -> usize {
        match self {
            Record::Entry(entry) => ENTRY_FIELDS + entry.context.len() + entry.payload.len(),
            Record::HardState(_) => HARD_STATE_FIELDS,
            Record::Restart { .. } => 16,
            Record::Mark | Record::Seal => 0,
        }
    }

    /// Bytes this record takes in a segment.
    pub(crate) fn encoded_len(&self) -> u64 {
        (RECORD_HEADER + self.payload_len().next_multiple_of(RECORD_ALIGN)) as u64
    }

    fn put_payload(&self, out: &mut Vec<u8>) {
        match self {
            Record::Entry(entry) => {
                out.extend_from_slice(&entry.index.to_le_bytes());
                out.extend_from_slice(&entry.term.to_le_bytes());
                out.extend_from_slice(&[entry.kind, 0, 0, 0]);
                out.extend_from_slice(&(entry.context.len() as u32).to_le_bytes());
                out.extend_from_slice(entry.context);
                out.extend_from_slice(entry.payload);
            }
            Record::HardState(state) => {
                out.extend_from_slice(&state.term.0.to_le_bytes());
                out.extend_from_slice(&state.vote.0.to_le_bytes());
                out.extend_from_slice(&state.commit.0.to_le_bytes());
            }
            Record::Restart { index, term } => {
                out.extend_from_slice(&index.to_le_bytes());
                out.extend_from_slice(&term.to_le_bytes());
            }
            Record::Mark | Record::Seal => {}
        }
    }

    /// Appends the record's bytes to `out`, as they belong at `offset` of the segment `sequence` after
    /// the record whose check is `link`. Returns the record's own check.
    ///
    /// The caller has made sure that the record fits a segment, so its length fits 32 bits.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, sequence: u64, offset: u64, link: u32) -> u32 {
        let start = out.len();
        out.extend_from_slice(&(self.payload_len() as u32).to_le_bytes());
        out.extend_from_slice(&[self.kind(), 0, 0, 0]);
        out.extend_from_slice(&link.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        let body = start + RECORD_HEADER;
        self.put_payload(out);
        out.resize(body + (out.len() - body).next_multiple_of(RECORD_ALIGN), 0);
        let payload_check = crc32c(&out[body..]);
        out[start + 12..start + 16].copy_from_slice(&payload_check.to_le_bytes());
        let check = header_check(&out[start..start + 16], sequence, offset);
        out[start + 16..start + 20].copy_from_slice(&check.to_le_bytes());
        check
    }
}

fn header_check(first_sixteen: &[u8], sequence: u64, offset: u64) -> u32 {
    let place = crc32c_append(crc32c(&sequence.to_le_bytes()), &offset.to_le_bytes());
    crc32c_append(place, first_sixteen)
}

/// A record's header that matched its check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    kind: u8,
    payload_len: usize,
    payload_check: u32,
    /// Check of the record before.
    pub(crate) link: u32,
    /// This record's check.
    pub(crate) check: u32,
}

impl Header {
    /// Reads the header of a record at `offset`, or nothing if no record starts there.
    pub(crate) fn decode(bytes: &[u8], sequence: u64, offset: u64) -> Option<Header> {
        let bytes = bytes.get(..RECORD_HEADER)?;
        let check = u32_at(bytes, 16)?;
        // No kind is zero, so that a stretch of zeros can never, by a lucky checksum, be a record.
        (bytes[4] != 0).then_some(())?;
        (header_check(&bytes[..16], sequence, offset) == check).then_some(())?;
        Some(Header {
            kind: bytes[4],
            payload_len: u32_at(bytes, 0)? as usize,
            payload_check: u32_at(bytes, 12)?,
            link: u32_at(bytes, 8)?,
            check,
        })
    }

    /// Bytes the whole record takes.
    pub(crate) fn record_len(&self) -> usize {
        RECORD_HEADER + self.payload_len.next_multiple_of(RECORD_ALIGN)
    }

    /// Reads the record whose first byte is the first of `bytes`.
    pub(crate) fn record<'a>(&self, bytes: &'a [u8]) -> Result<Record<'a>, Flaw> {
        let padded = bytes.get(RECORD_HEADER..self.record_len()).ok_or(Flaw::Payload)?;
        if crc32c(padded) != self.payload_check && !tidelock_model::planted!(RecordChecksumIgnored) {
            return Err(Flaw::Payload);
        }
        let payload = padded.get(..self.payload_len).ok_or(Flaw::Payload)?;
        parse(self.kind, payload).ok_or(Flaw::Meaning)
    }
}

/// Why a record with a valid header cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The payload does not match its check: a torn write, or rot.
    Payload,
    /// All checks match, yet this program would not write such a record. Never a torn write.
    Meaning,
}

fn parse(kind: u8, payload: &[u8]) -> Option<Record<'_>> {
    let exactly = |len: usize| (payload.len() == len).then_some(());
    match kind {
        KIND_ENTRY => {
            let context_len = u32_at(payload, 20)? as usize;
            let rest = payload.get(ENTRY_FIELDS..)?;
            let (context, content) = rest.split_at_checked(context_len)?;
            Some(Record::Entry(EntryView {
                index: u64_at(payload, 0)?,
                term: u64_at(payload, 8)?,
                kind: payload[16],
                context,
                payload: content,
            }))
        }
        KIND_HARD_STATE => {
            exactly(HARD_STATE_FIELDS)?;
            Some(Record::HardState(HardState {
                term: Term(u64_at(payload, 0)?),
                vote: NodeId(u64_at(payload, 8)?),
                commit: LogIndex(u64_at(payload, 16)?),
            }))
        }
        KIND_RESTART => {
            exactly(16)?;
            Some(Record::Restart { index: u64_at(payload, 0)?, term: u64_at(payload, 8)? })
        }
        KIND_MARK => exactly(0).map(|()| Record::Mark),
        KIND_SEAL => exactly(0).map(|()| Record::Seal),
        _ => None,
    }
}

/// Looks in `bytes` (a whole segment) for a mark or a seal at or after `from`. One proves that
/// everything before it had reached the disk.
pub(crate) fn find_proof_of_sync(bytes: &[u8], sequence: u64, from: usize) -> Option<u64> {
    (from.next_multiple_of(RECORD_ALIGN)..bytes.len()).step_by(RECORD_ALIGN).find_map(|at| {
        // Both have no payload, so their first eight bytes are known: the checksum is computed rarely.
        let head = bytes.get(at..at + 8)?;
        let candidate = matches!(head, [0, 0, 0, 0, KIND_MARK | KIND_SEAL, 0, 0, 0]);
        (candidate && Header::decode(&bytes[at..], sequence, at as u64).is_some()).then_some(at as u64)
    })
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(four.try_into().ok()?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let eight = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(eight.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Checksums keep accidents out, not every byte string: a payload that passed them must still
        /// not be able to crash the start of a node.
        #[test]
        fn payloads_of_any_kind_and_content_are_parsed_or_refused(kind: u8, payload: Vec<u8>) {
            if let Some(record) = parse(kind, &payload) {
                prop_assert_eq!(record.payload_len(), payload.len());
            }
        }

        /// What is read back must be what was written, in its own place and in no other: a record that
        /// also passes elsewhere could be taken for one that belongs there (H15).
        #[test]
        fn a_record_is_valid_in_exactly_one_place(
            index: u64, term: u64, kind: u8, context: Vec<u8>, payload: Vec<u8>,
            sequence in 1..1000u64, offset in (0..1000u64).prop_map(|n| n * 4), link: u32,
        ) {
            let record = Record::Entry(EntryView { index, term, kind, context: &context, payload: &payload });
            let mut bytes = Vec::new();
            let check = record.encode(&mut bytes, sequence, offset, link);
            prop_assert_eq!(bytes.len() as u64, record.encoded_len());
            let header = Header::decode(&bytes, sequence, offset).expect("valid where it belongs");
            prop_assert_eq!((header.check, header.link, header.record_len()), (check, link, bytes.len()));
            prop_assert_eq!(header.record(&bytes), Ok(record));
            prop_assert!(Header::decode(&bytes, sequence + 1, offset).is_none());
            prop_assert!(Header::decode(&bytes, sequence, offset + 4).is_none());
        }
    }
}
