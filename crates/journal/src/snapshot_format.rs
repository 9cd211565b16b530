//! The bytes of a snapshot file: a header, chunks, a footer, each checked and chained to the one before.
//!
//! [`Scanner`] walks a file from front to back and believes nothing: every length is compared with a
//! named bound and with what the file still has before memory is taken for it, and the end of the
//! file counts only if a footer with the right totals stands exactly there.
//! Layout: `docs/internals/journal.md`.

use bytes::Bytes;
use crc32c::{crc32c, crc32c_append};
use tidelock_model::{LogIndex, Term};

use crate::disk::{DiskFile, parse_hex16};
use crate::error::SnapshotError;
use crate::record::{u32_at, u64_at};

/// Largest chunk before compression.
pub const MAX_CHUNK_BYTES: usize = 64 * 1024 * 1024;
/// Largest [`SnapshotMeta::extra`].
pub const MAX_EXTRA_BYTES: usize = 1024 * 1024;
/// Largest chunk as stored: zstd adds at most about 1/256 to what it cannot compress.
const MAX_STORED_BYTES: usize = MAX_CHUNK_BYTES + MAX_CHUNK_BYTES / 128;

const MAGIC: &[u8; 8] = b"TDLKSNP\0";
const VERSION: u32 = 1;
const HEADER_FIELDS: usize = 32;
const CHUNK_HEADER: usize = 20;
const FOOTER: usize = 40;
const KIND_CHUNK: u32 = 1;
const KIND_FOOTER: u32 = 2;

/// What a snapshot stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotMeta {
    /// The last entry whose effect is in it.
    pub index: LogIndex,
    /// That entry's term.
    pub term: Term,
    /// The caller's own, such as the members of the cluster. At most [`MAX_EXTRA_BYTES`].
    pub extra: Bytes,
}

impl SnapshotMeta {
    /// The name of the finished file.
    pub fn name(&self) -> SnapshotName {
        SnapshotName { index: self.index, term: self.term }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_FIELDS + self.extra.len() + 4);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.extra.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.index.0.to_le_bytes());
        bytes.extend_from_slice(&self.term.0.to_le_bytes());
        bytes.extend_from_slice(&self.extra);
        let check = crc32c(&bytes);
        bytes.extend_from_slice(&check.to_le_bytes());
        bytes
    }
}

/// The name of a finished snapshot file. Ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotName {
    /// The last entry it covers.
    pub index: LogIndex,
    /// That entry's term.
    pub term: Term,
}

impl SnapshotName {
    /// As it stands in the directory.
    pub fn file_name(&self) -> String {
        format!("snapshot-{:016x}-{:016x}.snap", self.index, self.term)
    }

    pub(crate) fn parse(name: &str) -> Option<SnapshotName> {
        let (index, term) = name.strip_prefix("snapshot-")?.strip_suffix(".snap")?.split_once('-')?;
        Some(SnapshotName { index: LogIndex(parse_hex16(index)?), term: Term(parse_hex16(term)?) })
    }
}

/// Sums over a file, kept the same way while writing and while reading.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    chunks: u64,
    raw: u64,
    stored: u64,
    /// Check of the header, chunk header or footer before.
    chain: u32,
    /// Check of every byte so far.
    file: u32,
}

impl Totals {
    pub(crate) fn after_header(header: &[u8]) -> Totals {
        let chain = u32_at(header, header.len() - 4).expect("a header ends with its check");
        Totals { chain, file: crc32c(header), ..Totals::default() }
    }

    fn chained(&self, bytes: &[u8]) -> u32 {
        let seed = crc32c_append(crc32c(&self.chain.to_le_bytes()), &self.chunks.to_le_bytes());
        crc32c_append(seed, bytes)
    }

    /// Appends a chunk to `out`, which is empty.
    pub(crate) fn encode_chunk(&mut self, raw_len: usize, stored: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&KIND_CHUNK.to_le_bytes());
        out.extend_from_slice(&(stored.len() as u32).to_le_bytes());
        out.extend_from_slice(&(raw_len as u32).to_le_bytes());
        out.extend_from_slice(&crc32c(stored).to_le_bytes());
        let check = self.chained(out);
        out.extend_from_slice(&check.to_le_bytes());
        out.extend_from_slice(stored);
        self.add_chunk(raw_len, stored.len(), check);
        self.file = crc32c_append(self.file, out);
    }

    fn add_chunk(&mut self, raw_len: usize, stored_len: usize, check: u32) {
        self.chunks += 1;
        self.raw += raw_len as u64;
        self.stored += stored_len as u64;
        self.chain = check;
    }

    pub(crate) fn encode_footer(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FOOTER);
        out.extend_from_slice(&KIND_FOOTER.to_le_bytes());
        out.extend_from_slice(&self.file.to_le_bytes());
        out.extend_from_slice(&self.chunks.to_le_bytes());
        out.extend_from_slice(&self.raw.to_le_bytes());
        out.extend_from_slice(&self.stored.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        let check = self.chained(&out);
        out.extend_from_slice(&check.to_le_bytes());
        out
    }
}

/// Walks a snapshot file, checking everything but what the chunks hold once decompressed.
pub(crate) struct Scanner {
    pub(crate) file: Box<dyn DiskFile>,
    pub(crate) meta: SnapshotMeta,
    pub(crate) len: u64,
    offset: u64,
    totals: Totals,
    finished: bool,
}

fn damaged(offset: u64, what: &'static str) -> SnapshotError {
    SnapshotError::Damaged { offset, what }
}

impl Scanner {
    pub(crate) fn open(file: Box<dyn DiskFile>) -> Result<Scanner, SnapshotError> {
        let len = file.len()?;
        let mut header = read(&*file, len, 0, HEADER_FIELDS)?;
        if !header.starts_with(MAGIC) {
            return Err(damaged(0, "this is no snapshot"));
        }
        let field = |at: usize| u64_at(&header, at).ok_or(damaged(at as u64, "a header"));
        let (index, term) = (LogIndex(field(16)?), Term(field(24)?));
        let lengths = field(8)?;
        let (version, extra_len) = (lengths as u32, (lengths >> 32) as usize);
        if extra_len > MAX_EXTRA_BYTES {
            return Err(damaged(12, "a length within bounds"));
        }
        let rest = read(&*file, len, HEADER_FIELDS as u64, extra_len + 4)?;
        header.extend_from_slice(&rest);
        let end = header.len();
        if u32_at(&header, end - 4) != Some(crc32c(&header[..end - 4])) {
            return Err(damaged(0, "a header that matches its checksum"));
        }
        if version != VERSION {
            return Err(SnapshotError::UnknownVersion { version });
        }
        let totals = Totals::after_header(&header);
        let extra = Bytes::from(rest).slice(..extra_len);
        let meta = SnapshotMeta { index, term, extra };
        Ok(Scanner { file, meta, len, offset: end as u64, totals, finished: false })
    }

    /// The next chunk as stored and its length once decompressed; nothing after a valid footer.
    pub(crate) fn next_stored(&mut self) -> Result<Option<(Vec<u8>, usize)>, SnapshotError> {
        if self.finished {
            return Ok(None);
        }
        let at = self.offset;
        let header = read(&*self.file, self.len, at, CHUNK_HEADER)?;
        let field = |n: usize| u32_at(&header, n * 4).ok_or(damaged(at, "a chunk"));
        if field(0)? == KIND_FOOTER {
            return self.check_footer().map(|()| None);
        }
        let (stored_len, raw_len) = (field(1)? as usize, field(2)? as usize);
        let check = field(4)?;
        if field(0)? != KIND_CHUNK || self.totals.chained(&header[..16]) != check {
            return Err(damaged(at, "a chunk header that matches its checksum"));
        }
        if stored_len > MAX_STORED_BYTES || raw_len > MAX_CHUNK_BYTES {
            return Err(damaged(at, "a chunk within bounds"));
        }
        let stored = read(&*self.file, self.len, at + CHUNK_HEADER as u64, stored_len)?;
        if crc32c(&stored) != field(3)? {
            return Err(damaged(at, "a chunk that matches its checksum"));
        }
        self.totals.add_chunk(raw_len, stored_len, check);
        self.totals.file = crc32c_append(crc32c_append(self.totals.file, &header), &stored);
        self.offset = at + (CHUNK_HEADER + stored_len) as u64;
        Ok(Some((stored, raw_len)))
    }

    fn check_footer(&mut self) -> Result<(), SnapshotError> {
        let footer = read(&*self.file, self.len, self.offset, FOOTER)?;
        if footer != self.totals.encode_footer() {
            return Err(damaged(self.offset, "a footer that matches the file"));
        }
        if self.offset + FOOTER as u64 != self.len {
            return Err(damaged(self.offset + FOOTER as u64, "the end of the file"));
        }
        self.finished = true;
        Ok(())
    }

    /// Walks over all of it.
    pub(crate) fn check_all(mut self) -> Result<SnapshotMeta, SnapshotError> {
        while self.next_stored()?.is_some() {}
        Ok(self.meta)
    }
}

/// Reads `count` bytes that must be there, looking at the file's length before taking memory.
fn read(file: &dyn DiskFile, len: u64, offset: u64, count: usize) -> Result<Vec<u8>, SnapshotError> {
    if offset.checked_add(count as u64).is_none_or(|end| end > len) {
        return Err(damaged(offset, "more bytes than the file has"));
    }
    let mut bytes = vec![0; count];
    file.read_at(offset, &mut bytes)?;
    Ok(bytes)
}
