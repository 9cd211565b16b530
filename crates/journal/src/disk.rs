//! What the journal asks of a disk: one directory of files with a flat set of names.
//!
//! The promises a `Disk` must keep are few, so that a simulator can withhold everything else: a write
//! is durable after `sync_data` on its file returned, a created, renamed or removed name is durable
//! after `sync_dir` returned, and a write changes no byte outside its own range. See the media
//! assumptions in `docs/internals/journal.md`.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

/// A file in a [`Disk`]. Stays usable when its name changes or goes away.
pub trait DiskFile: Send + Sync {
    /// Writes all of `bytes` at `offset`, extending the file where needed. Not durable yet.
    ///
    /// # Errors
    /// Any failure; part of the bytes may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`, the end of all that counts in this file: what is behind them may become
    /// zeros, up to the end of a block. Not durable yet. The file has its full length already.
    ///
    /// # Errors
    /// As for [`DiskFile::write_at`].
    fn append(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(offset, bytes)
    }

    /// As [`DiskFile::append`], for what nobody waits for: it may stay in memory until the next one, or the next sync.
    ///
    /// # Errors
    /// As for [`DiskFile::write_at`].
    fn append_at_leisure(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(offset, bytes)
    }

    /// Nothing will be appended for now: what was kept for it is let go. All is synced.
    fn end_appends(&self) {}

    /// Fills `bytes` from `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file ends before that, otherwise what the disk said.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Makes every earlier write to this file durable, its length included.
    ///
    /// # Errors
    /// After a failure nothing is known about the earlier writes, not even if a later call succeeds.
    fn sync_data(&self) -> io::Result<()>;

    /// The length of the file.
    ///
    /// # Errors
    /// What the disk said.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// What the disk said.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// Fills a new, empty file with `len` zero bytes that really occupy space, so that overwriting
    /// them later neither needs room nor changes the file's metadata. Not durable yet.
    ///
    /// # Errors
    /// `StorageFull` when there is no room; the file is then of no use.
    fn allocate_zeroed(&self, len: u64) -> io::Result<()>;
}

/// One data directory. Names are plain file names, never paths.
pub trait Disk: Send + Sync {
    /// Opens an existing file for reading and writing.
    ///
    /// # Errors
    /// `NotFound`, or what the disk said.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Creates an empty file. A file that had this name loses it.
    ///
    /// # Errors
    /// What the disk said.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Renames a file, replacing one that has the new name.
    ///
    /// # Errors
    /// What the disk said.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a name.
    ///
    /// # Errors
    /// `NotFound`, or what the disk said.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// All names, in no particular order.
    ///
    /// # Errors
    /// What the disk said.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes every earlier creation, renaming and removal durable.
    ///
    /// # Errors
    /// After a failure nothing is known about them.
    fn sync_dir(&self) -> io::Result<()>;

    /// How many bytes could still be allocated.
    ///
    /// # Errors
    /// What the disk said.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Where this is, for messages to the operator.
    fn location(&self) -> String;

    /// Makes a file of `len` zeros, as [`DiskFile::allocate_zeroed`] does and durable but for its name: beside whatever
    /// else is done, where that is possible. A file that cannot be made leaves no name behind.
    fn prepare(&self, name: &str, len: u64) -> Prepared {
        let (tell, made) = sync_channel(1);
        // There is room for it.
        let _ = tell.send(zeroed(self, name, len));
        Prepared::from_channel(made)
    }
}

/// A file that is being made. Dropping it waits: its name must not be used for anything else before.
pub struct Prepared {
    made: Receiver<io::Result<Box<dyn DiskFile>>>,
    /// What was received already.
    file: Option<io::Result<Box<dyn DiskFile>>>,
}

impl Prepared {
    /// What will come through the channel.
    pub(crate) fn from_channel(made: Receiver<io::Result<Box<dyn DiskFile>>>) -> Prepared {
        Prepared { made, file: None }
    }

    /// Whether there is nothing to wait for: it was made, or failed, or nobody could be found to make it.
    pub(crate) fn is_over(&mut self) -> bool {
        match self.made.try_recv() {
            Ok(file) => self.file = Some(file),
            Err(TryRecvError::Empty) => return self.file.is_some(),
            Err(TryRecvError::Disconnected) => {}
        }
        true
    }

    /// What came of it, waiting until it is over; nothing if nobody could be found to make it.
    pub(crate) fn take(mut self) -> Option<io::Result<Box<dyn DiskFile>>> {
        self.file.take().or_else(|| self.made.recv().ok())
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        let _ = self.made.recv();
    }
}

/// A new file of `bytes` zeros under the name, durable but for that.
pub(crate) fn zeroed(disk: &(impl Disk + ?Sized), name: &str, bytes: u64) -> io::Result<Box<dyn DiskFile>> {
    let file = disk.create(name)?;
    match file.allocate_zeroed(bytes).and_then(|()| file.sync_data()) {
        Ok(()) => Ok(file),
        Err(error) => {
            // The room goes back at once; should that fail too, the next open removes the file.
            let _ = disk.remove(name);
            Err(error)
        }
    }
}

impl<D: Disk + ?Sized> Disk for Arc<D> {
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        (**self).open(name)
    }
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        (**self).create(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        (**self).rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        (**self).remove(name)
    }
    fn list(&self) -> io::Result<Vec<String>> {
        (**self).list()
    }
    fn sync_dir(&self) -> io::Result<()> {
        (**self).sync_dir()
    }
    fn free_bytes(&self) -> io::Result<u64> {
        (**self).free_bytes()
    }
    fn location(&self) -> String {
        (**self).location()
    }
    fn prepare(&self, name: &str, len: u64) -> Prepared {
        (**self).prepare(name, len)
    }
}

/// Ending of files that never count: a crash leaves them, the next open removes them.
pub(crate) const TEMPORARY: &str = ".tmp";

/// Whether an error only says that there is no room, which is weather; every other one is a disk
/// that can no longer be trusted.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Reads a number of exactly 16 hexadecimal digits, as file names carry them.
pub(crate) fn parse_hex16(digits: &str) -> Option<u64> {
    // `from_str_radix` alone would take "+1" and capital letters, so one file could have two names.
    let plain = digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}
