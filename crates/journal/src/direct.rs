//! Appends that go from our memory to the disk, past the system's cache.
//!
//! The log is written once and read again only after a crash or for a follower that is behind. Through the cache every
//! sync looks for the pages that changed, writes them and waits for each, and pages of segments nobody reads push out
//! others. Past it, a write and a sync take three quarters of the processor time and a seventh less of the wall clock's
//! (`docs/internals/journal.md`).
//!
//! The system takes whole blocks at addresses that are multiples of one. So the block that is begun is kept here, and
//! written again with what is added to it: its old bytes are the same in both, whichever of them a crash leaves.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// What the system writes at a time is a multiple of this: a page, and no disk has larger sectors.
pub(crate) const BLOCK: usize = 4096;

/// Memory beyond this, which only large entries need, is not kept for the next append.
const KEPT_BYTES: usize = 1 << 20;

/// Bytes at an address that is a multiple of [`BLOCK`].
pub(crate) struct Aligned {
    memory: Vec<u8>,
    /// Where in `memory` the first such address is.
    start: usize,
    len: usize,
}

impl Aligned {
    /// `len` zeros.
    pub(crate) fn zeros(len: usize) -> Aligned {
        let memory = vec![0; len.next_multiple_of(BLOCK) + BLOCK];
        let start = memory.as_ptr().align_offset(BLOCK);
        Aligned { memory, start, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }

    fn extend(&mut self, bytes: &[u8]) {
        let before = self.len;
        if self.start + before + bytes.len() + BLOCK > self.memory.len() {
            let mut larger = Aligned::zeros((before + bytes.len()) * 2);
            larger.bytes_mut()[..before].copy_from_slice(self.bytes());
            *self = larger;
        }
        self.len = before + bytes.len();
        self.bytes_mut()[before..].copy_from_slice(bytes);
    }

    /// Everything, with zeros up to the end of the last block.
    fn whole_blocks(&mut self) -> &[u8] {
        let padded = self.len.next_multiple_of(BLOCK);
        let (from, to) = (self.start + self.len, self.start + padded);
        self.memory[from..to].fill(0);
        &self.memory[self.start..to]
    }

    /// Forgets all blocks that are full; says how many bytes these were.
    fn keep_begun_block(&mut self) -> usize {
        let full = self.len / BLOCK * BLOCK;
        if self.memory.len() > KEPT_BYTES {
            let mut smaller = Aligned::zeros(self.len - full);
            smaller.bytes_mut().copy_from_slice(&self.bytes()[full..]);
            *self = smaller;
        } else {
            self.memory.copy_within(self.start + full..self.start + self.len, self.start);
            self.len -= full;
        }
        full
    }
}

/// The end of a file that is appended to past the cache.
pub(crate) struct Appender {
    /// Gone once the file system refused it.
    direct: Option<File>,
    file_bytes: u64,
    /// Where the begun block is, and what is in it: more than one block only while something is held back.
    from: u64,
    begun: Aligned,
    /// Something is not written yet.
    held: bool,
}

impl Appender {
    /// For a file whose length stays as it is. Nothing where the system, or the file system, has no such writes.
    pub(crate) fn of(file: &File) -> Option<Appender> {
        let (direct, file_bytes) = (Some(open_past_cache(file)?), file.metadata().ok()?.len());
        Some(Appender { direct, file_bytes, from: 0, begun: Aligned::zeros(0), held: false })
    }

    fn end(&self) -> u64 {
        self.from + self.begun.len as u64
    }

    /// Writes `bytes` at `offset`, with zeros behind them up to the end of the block, and what was held back before it.
    pub(crate) fn append(&mut self, cached: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.end() != offset {
            self.go_to(cached, offset)?;
        }
        self.begun.extend(bytes);
        // Also if it fails: then nothing of this is written once more (H17).
        self.held = false;
        if !self.write_past_cache()? {
            cached.write_all_at(self.begun.bytes(), self.from)?;
        }
        self.from += self.begun.keep_begun_block() as u64;
        Ok(())
    }

    /// `false`: it is for the cache to take everything, because the file ends within a block, or part of it was written,
    /// or the file system refuses such writes.
    fn write_past_cache(&mut self) -> io::Result<bool> {
        let blocks = self.begun.whole_blocks();
        let Some(direct) = &self.direct else { return Ok(false) };
        if self.from + blocks.len() as u64 > self.file_bytes {
            return Ok(false);
        }
        match direct.write_at(blocks, self.from) {
            Ok(written) => Ok(written == blocks.len()),
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
                self.direct = None;
                Ok(false)
            }
            // Whatever else it is, nobody knows what is on the disk (H17).
            Err(error) => Err(error),
        }
    }

    /// Keeps `bytes` until the next append writes them. `false`: they do not follow what was appended.
    pub(crate) fn hold_back(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let follows = self.end() == offset && offset > 0;
        if follows {
            self.begun.extend(bytes);
            self.held = true;
        }
        follows
    }

    /// Writes what was held back, if anything was.
    pub(crate) fn write_held(&mut self, cached: &File) -> io::Result<()> {
        if self.held { self.append(cached, self.end(), &[]) } else { Ok(()) }
    }

    /// Notes what was written elsewhere than at the end.
    pub(crate) fn written(&mut self, offset: u64, bytes: &[u8]) {
        let (at, end) = (offset.max(self.from), (offset + bytes.len() as u64).min(self.end()));
        if at < end {
            let source = &bytes[(at - offset) as usize..(end - offset) as usize];
            self.begun.bytes_mut()[(at - self.from) as usize..(end - self.from) as usize].copy_from_slice(source);
        }
    }

    /// Adds what is held back to bytes that were read from the file.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) {
        let (at, end) = (offset.max(self.from), (offset + bytes.len() as u64).min(self.end()));
        if at < end {
            let source = &self.begun.bytes()[(at - self.from) as usize..(end - self.from) as usize];
            bytes[(at - offset) as usize..(end - offset) as usize].copy_from_slice(source);
        }
    }

    /// Goes on at another place: reads the block that is begun there.
    fn go_to(&mut self, cached: &File, offset: u64) -> io::Result<()> {
        debug_assert!(!self.held, "whoever goes elsewhere has synced");
        let from = offset / BLOCK as u64 * BLOCK as u64;
        let mut begun = Aligned::zeros((offset - from) as usize);
        cached.read_exact_at(begun.bytes_mut(), from)?;
        (self.from, self.begun) = (from, begun);
        Ok(())
    }
}

/// The same file again, for whole blocks past the cache.
#[cfg(target_os = "linux")]
pub(crate) fn open_past_cache(file: &File) -> Option<File> {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    let flag = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).ok()?;
    // By its descriptor: a file's name changes when it becomes a segment.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::options().write(true).custom_flags(flag).open(path).ok()
}

/// The same file again, for whole blocks past the cache.
#[cfg(not(target_os = "linux"))]
pub(crate) fn open_past_cache(_: &File) -> Option<File> {
    None
}
