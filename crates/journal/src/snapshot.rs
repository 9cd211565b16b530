//! Snapshot files: written in chunks, read back checked, passed on to peers as they are.
//!
//! What the chunks hold is the caller's business. A snapshot counts only under its final name, which it
//! gets after all its bytes are durable; a file cut short by a crash has a temporary name and is removed
//! at the next open. A snapshot from a peer is checked from first to last byte before it gets a name.
//!
//! Not here: bytes of the format (`snapshot_format`), which snapshot to start from (`recovery`).

use std::io;

use bytes::Bytes;

use crate::disk::{Disk, DiskFile, TEMPORARY};
use crate::error::SnapshotError;
use crate::snapshot_format::{MAX_CHUNK_BYTES, MAX_EXTRA_BYTES, Scanner, SnapshotMeta, SnapshotName, Totals};

/// Fastest useful level: snapshots are written while the node serves.
const COMPRESSION_LEVEL: i32 = 1;
/// The level for what does not compress: hardly looks at it.
const HURRIED_LEVEL: i32 = -100;
/// So many chunks are hurried through after one that hardly shrank; then it is tried again.
const HURRIED_CHUNKS: u32 = 15;
/// Written bytes are synced in steps of this size, so that the journal's own sync never has to wait
/// behind a whole snapshot's worth of dirty pages.
const SYNC_STEP_BYTES: u64 = 1024 * 1024;
/// Ending of a damaged snapshot that was set aside because an older one could take its place.
pub(crate) const DAMAGED: &str = ".damaged";

/// A file under a temporary name, removed again unless it is finished.
struct Draft<D: Disk> {
    disk: D,
    name: String,
    file: Option<Box<dyn DiskFile>>,
    written: u64,
    unsynced: u64,
}

impl<D: Disk> Draft<D> {
    fn create(disk: D) -> io::Result<Draft<D>> {
        let taken = disk.list()?;
        let name = (0u64..)
            .map(|number| format!("snapshot-{number}{TEMPORARY}"))
            .find(|name| !taken.contains(name))
            .expect("a directory has fewer files than there are numbers");
        let file = Some(disk.create(&name)?);
        Ok(Draft { disk, name, file, written: 0, unsynced: 0 })
    }

    fn file(&self) -> &dyn DiskFile {
        self.file.as_deref().expect("the file is taken only by finish, which consumes the draft")
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file().write_at(self.written, bytes)?;
        self.written += bytes.len() as u64;
        self.unsynced += bytes.len() as u64;
        if self.unsynced >= SYNC_STEP_BYTES {
            self.file().sync_data()?;
            self.unsynced = 0;
        }
        Ok(())
    }

    fn finish(mut self, name: SnapshotName) -> io::Result<()> {
        if !tidelock_model::planted!(SnapshotNamedBeforeSync) {
            self.file().sync_data()?;
        }
        self.disk.rename(&self.name, &name.file_name())?;
        self.file = None;
        self.disk.sync_dir()
    }
}

impl<D: Disk> Drop for Draft<D> {
    fn drop(&mut self) {
        if self.file.is_some() {
            // Best effort, for the room it takes; the next open removes it in any case.
            let _ = self.disk.remove(&self.name);
        }
    }
}

/// Writes a snapshot. Dropped without [`SnapshotWriter::finish`] it leaves nothing behind.
pub struct SnapshotWriter<D: Disk> {
    draft: Draft<D>,
    meta: SnapshotMeta,
    totals: Totals,
    buffer: Vec<u8>,
    squeezer: Squeezer,
    /// A failed write leaves a file that must not be finished.
    failed: bool,
}

/// Compresses chunks, one after the other. Values that are compressed or encrypted already do not get smaller, and
/// trying costs more than all the rest of a snapshot: after a chunk that hardly shrank the next ones are hurried through.
struct Squeezer {
    compressor: zstd::bulk::Compressor<'static>,
    /// Chunks left to hurry through.
    hurried: u32,
    /// What the last chunk became. Kept, since memory for each anew would have to be cleared by the system first.
    stored: Vec<u8>,
}

impl Squeezer {
    fn new() -> std::io::Result<Squeezer> {
        Ok(Squeezer { compressor: zstd::bulk::Compressor::new(COMPRESSION_LEVEL)?, hurried: 0, stored: Vec::new() })
    }

    fn squeeze(&mut self, chunk: &[u8]) -> std::io::Result<&[u8]> {
        let hurry = self.hurried > 0;
        self.compressor.set_compression_level(if hurry { HURRIED_LEVEL } else { COMPRESSION_LEVEL })?;
        self.stored.clear();
        self.stored.reserve(zstd::zstd_safe::compress_bound(chunk.len()));
        self.compressor.compress_to_buffer(chunk, &mut self.stored)?;
        self.hurried = match hurry {
            true => self.hurried - 1,
            // Names and numbers alone make a chunk of random values a tenth smaller: not worth it.
            false if self.stored.len() > chunk.len() / 4 * 3 => HURRIED_CHUNKS,
            false => 0,
        };
        Ok(&self.stored)
    }
}

impl<D: Disk> SnapshotWriter<D> {
    /// Starts a file for `meta`.
    ///
    /// # Errors
    /// `TooLarge` for the meta's extra, or what the disk said.
    pub fn create(disk: D, meta: SnapshotMeta) -> Result<Self, SnapshotError> {
        check_size("extra", meta.extra.len(), MAX_EXTRA_BYTES)?;
        let mut draft = Draft::create(disk)?;
        let header = meta.encode();
        draft.write(&header)?;
        let totals = Totals::after_header(&header);
        let squeezer = Squeezer::new()?;
        Ok(SnapshotWriter { draft, meta, totals, squeezer, buffer: Vec::new(), failed: false })
    }

    /// Adds one chunk of at most [`MAX_CHUNK_BYTES`].
    ///
    /// # Errors
    /// `TooLarge`, or what the disk said; the snapshot can then only be dropped.
    pub fn write_chunk(&mut self, chunk: &[u8]) -> Result<(), SnapshotError> {
        check_size("chunk", chunk.len(), MAX_CHUNK_BYTES)?;
        self.check_usable()?;
        self.failed = true;
        let stored = self.squeezer.squeeze(chunk)?;
        self.buffer.clear();
        self.totals.encode_chunk(chunk.len(), stored, &mut self.buffer);
        self.draft.write(&self.buffer)?;
        self.failed = false;
        Ok(())
    }

    /// Completes the file, makes it durable and gives it its name.
    ///
    /// # Errors
    /// What the disk said; the snapshot may or may not exist then.
    pub fn finish(mut self) -> Result<SnapshotMeta, SnapshotError> {
        self.check_usable()?;
        let footer = self.totals.encode_footer();
        self.draft.write(&footer)?;
        self.draft.finish(self.meta.name())?;
        Ok(self.meta)
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.draft.written
    }

    fn check_usable(&self) -> io::Result<()> {
        if self.failed { Err(io::Error::other("an earlier write of this snapshot failed")) } else { Ok(()) }
    }
}

fn check_size(what: &'static str, bytes: usize, limit: usize) -> Result<(), SnapshotError> {
    if bytes > limit {
        return Err(SnapshotError::TooLarge { what, bytes: bytes as u64, limit: limit as u64 });
    }
    Ok(())
}

/// Reads a finished snapshot: its chunks, or its raw bytes for a peer.
pub struct SnapshotReader {
    scanner: Scanner,
}

impl SnapshotReader {
    /// Opens the snapshot and checks its header, and that it is what its name says.
    ///
    /// # Errors
    /// See [`SnapshotError`].
    pub fn open<D: Disk>(disk: &D, name: SnapshotName) -> Result<SnapshotReader, SnapshotError> {
        let scanner = Scanner::open(disk.open(&name.file_name())?)?;
        if scanner.meta.name() != name {
            return Err(SnapshotError::Damaged { offset: 16, what: "the index and term of the file's name" });
        }
        Ok(SnapshotReader { scanner })
    }

    /// What the snapshot stands for.
    pub fn meta(&self) -> &SnapshotMeta {
        &self.scanner.meta
    }

    /// The next chunk. The snapshot is complete only once this has returned `None`: that is when
    /// number and sizes of all chunks have been compared with the footer.
    ///
    /// # Errors
    /// `Damaged` for anything that is not exactly as written.
    pub fn next_chunk(&mut self) -> Result<Option<Bytes>, SnapshotError> {
        let Some((stored, raw_len)) = self.scanner.next_stored()? else { return Ok(None) };
        let damaged = SnapshotError::Damaged { offset: 0, what: "a chunk that decompresses to its length" };
        match zstd::bulk::decompress(&stored, raw_len) {
            Ok(chunk) if chunk.len() == raw_len => Ok(Some(Bytes::from(chunk))),
            _ => Err(damaged),
        }
    }

    /// Length of the file.
    pub fn raw_len(&self) -> u64 {
        self.scanner.len
    }

    /// Up to `len` bytes of the file from `offset`, as they are; fewer only at its end. The receiver
    /// checks them.
    ///
    /// # Errors
    /// What the disk said.
    pub fn read_raw(&self, offset: u64, len: usize) -> Result<Bytes, SnapshotError> {
        let left = self.scanner.len.saturating_sub(offset);
        let mut bytes = vec![0; left.min(len as u64) as usize];
        self.scanner.file.read_at(offset, &mut bytes)?;
        Ok(Bytes::from(bytes))
    }
}

/// Receives a snapshot file from a peer. Dropped without [`SnapshotReceiver::finish`] it leaves nothing.
pub struct SnapshotReceiver<D: Disk> {
    draft: Draft<D>,
    max_bytes: u64,
    failed: bool,
}

impl<D: Disk> SnapshotReceiver<D> {
    /// Starts to receive a file of at most `max_bytes`.
    ///
    /// # Errors
    /// What the disk said.
    pub fn create(disk: D, max_bytes: u64) -> Result<Self, SnapshotError> {
        Ok(SnapshotReceiver { draft: Draft::create(disk)?, max_bytes, failed: false })
    }

    /// Appends the next bytes of the file.
    ///
    /// # Errors
    /// `TooLarge` when the peer sends more than agreed, or what the disk said.
    pub fn write_raw(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        let total = self.draft.written + bytes.len() as u64;
        if total > self.max_bytes {
            return Err(SnapshotError::TooLarge { what: "snapshot", bytes: total, limit: self.max_bytes });
        }
        self.failed = true;
        self.draft.write(bytes)?;
        self.failed = false;
        Ok(())
    }

    /// Bytes received so far.
    pub fn received(&self) -> u64 {
        self.draft.written
    }

    /// Checks the whole file, makes it durable and gives it its name.
    ///
    /// # Errors
    /// `Damaged` when what arrived is not a complete snapshot; it is discarded.
    pub fn finish(self) -> Result<SnapshotMeta, SnapshotError> {
        if self.failed {
            return Err(io::Error::other("an earlier write of this snapshot failed").into());
        }
        let meta = Scanner::open(self.draft.disk.open(&self.draft.name)?)?.check_all()?;
        self.draft.finish(meta.name())?;
        Ok(meta)
    }
}

/// Checks every byte of a finished snapshot without decompressing it.
///
/// # Errors
/// See [`SnapshotError`].
pub fn verify_snapshot<D: Disk>(disk: &D, name: SnapshotName) -> Result<SnapshotMeta, SnapshotError> {
    SnapshotReader::open(disk, name)?.scanner.check_all()
}

/// Finished snapshots, oldest first, by their names alone.
///
/// # Errors
/// What the disk said.
pub fn list_snapshots<D: Disk>(disk: &D) -> io::Result<Vec<SnapshotName>> {
    let mut names: Vec<SnapshotName> = disk.list()?.iter().filter_map(|name| SnapshotName::parse(name)).collect();
    names.sort_unstable();
    Ok(names)
}

/// The newest finished snapshot, by its name alone.
///
/// # Errors
/// What the disk said.
pub fn latest_snapshot<D: Disk>(disk: &D) -> io::Result<Option<SnapshotName>> {
    Ok(list_snapshots(disk)?.pop())
}

/// Removes all but the `keep` newest snapshots (never the newest) and those set aside as damaged.
///
/// # Errors
/// What the disk said; some may be left then.
pub fn remove_older<D: Disk>(disk: &D, keep: usize) -> io::Result<()> {
    let names = list_snapshots(disk)?;
    let old = names.len().saturating_sub(keep.max(1));
    for name in &names[..old] {
        disk.remove(&name.file_name())?;
    }
    for name in disk.list()?.iter().filter(|name| name.ends_with(DAMAGED)) {
        disk.remove(name)?;
    }
    disk.sync_dir()
}
