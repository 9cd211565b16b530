//! The real disk: one directory of the operating system, locked for this process.
//!
//! The directory is created readable for its owner only, files likewise. A lock on the file `LOCK` keeps
//! a second process out for as long as any clone of the disk lives; it goes away with the process,
//! however that ends.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::fs::{FallocateFlags, FlockOperation};

use crate::direct::{Aligned, Appender, open_past_cache};
use crate::disk::{Disk, DiskFile, Prepared, zeroed};

const LOCK_FILE: &str = "LOCK";
/// Zeros are written in pieces of this size.
const ZERO_PIECE: usize = 1024 * 1024;
/// A removed file gives its room back in pieces of this size. All at once, a file of some hundred megabytes
/// keeps the file system, and with it the journal's sync, busy for 60 ms (`cargo xtask measure snapshot`).
const RELEASE_PIECE: u64 = 8 * 1024 * 1024;

/// Why the data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OsDiskError {
    /// Another process holds the lock.
    #[error("the data directory {directory} is in use: another tidelock runs on it")]
    InUse {
        /// The directory.
        directory: PathBuf,
    },
    /// The directory cannot be created, opened or locked.
    #[error("cannot use the data directory {directory}: {source}")]
    Io {
        /// The directory.
        directory: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A directory of real files. Clones share it and its lock.
#[derive(Clone, Debug)]
pub struct OsDisk {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    directory: File,
    /// Held for the lock on it.
    _lock: File,
}

impl OsDisk {
    /// Creates the directory if it is missing, and locks it.
    ///
    /// # Errors
    /// `InUse` if another process has it, `Io` if it cannot be used.
    pub fn open(path: impl AsRef<Path>) -> Result<OsDisk, OsDiskError> {
        let path = path.as_ref().to_path_buf();
        let failed = |source: io::Error| OsDiskError::Io { directory: path.clone(), source };
        create_directory(&path).map_err(failed)?;
        let directory = File::open(&path).map_err(failed)?;
        let lock = new_file_options().truncate(false).open(path.join(LOCK_FILE)).map_err(failed)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(OsDisk { inner: Arc::new(Inner { path, directory, _lock: lock }) }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(OsDiskError::InUse { directory: path }),
            Err(error) => Err(failed(error.into())),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    fn file(&self, name: &str) -> PathBuf {
        assert!(!name.is_empty() && !name.contains('/') && name != "..", "names are plain file names: {name}");
        self.inner.path.join(name)
    }
}

fn create_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    // The new directory's name is part of what must survive a crash.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

fn new_file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    options
}

impl Disk for OsDisk {
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OsFile::holding(OpenOptions::new().read(true).write(true).open(self.file(name))?)?))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        // A new file rather than a truncated one: whoever has the old one open keeps the old bytes.
        match self.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Box::new(OsFile::holding(new_file_options().create_new(true).open(self.file(name))?)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.file(from), self.file(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.file(name);
        let file = OpenOptions::new().write(true).open(&path)?;
        fs::remove_file(path)?;
        if file.metadata()?.len() > RELEASE_PIECE && nobody_has_open(&file) {
            // The name first, for good: no crash may leave a file that is there and cut short.
            self.sync_dir()?;
            release_in_pieces(&file)?;
        }
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.inner.path)?.map(|entry| Ok(entry?.file_name().into_string()));
        // A name that is not UTF-8 is not ours.
        Ok(names.collect::<io::Result<Vec<_>>>()?.into_iter().filter_map(Result::ok).collect())
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.inner.directory.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::fstatvfs(&self.inner.directory)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn location(&self) -> String {
        self.inner.path.display().to_string()
    }

    fn prepare(&self, name: &str, len: u64) -> Prepared {
        let (tell, made) = sync_channel(1);
        let (disk, name) = (self.clone(), name.to_owned());
        let make = move || {
            let file = zeroed(&disk, &name, len);
            // With it goes the lock on the directory, which whoever waits for the file may want next.
            drop(disk);
            let _ = tell.send(file);
        };
        // Without a thread the channel closes, and whoever needs the file makes it.
        let _ = thread::Builder::new().name("spare".to_owned()).spawn(make);
        Prepared::from_channel(made)
    }
}

struct OsFile {
    file: File,
    end: Mutex<End>,
}

/// How a file is appended to.
enum End {
    /// Nobody did yet.
    Untouched,
    /// Past the cache.
    Direct(Appender),
    /// Like everything else, where nothing else is possible.
    Cached,
}

impl OsFile {
    /// Marks the file as open for as long as this lives, so that [`nobody_has_open`] sees it.
    fn holding(file: File) -> io::Result<OsFile> {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)?;
        Ok(OsFile { file, end: Mutex::new(End::Untouched) })
    }

    fn end(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OsFile {
    fn drop(&mut self) {
        if let End::Direct(appender) = &mut *self.end() {
            // A help, not a part of the log.
            let _ = appender.write_held(&self.file);
        }
    }
}

fn nobody_has_open(file: &File) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

fn release_in_pieces(file: &File) -> io::Result<()> {
    let mut left = file.metadata()?.len();
    while left > 0 {
        left = left.saturating_sub(RELEASE_PIECE);
        file.set_len(left)?;
    }
    Ok(())
}

impl DiskFile for OsFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if let End::Direct(appender) = &mut *self.end() {
            appender.written(offset, bytes);
        }
        self.file.write_all_at(bytes, offset)
    }

    fn append(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut end = self.end();
        if let End::Untouched = *end {
            *end = Appender::of(&self.file).map_or(End::Cached, End::Direct);
        }
        match &mut *end {
            End::Direct(appender) => appender.append(&self.file, offset, bytes),
            End::Untouched | End::Cached => self.file.write_all_at(bytes, offset),
        }
    }

    fn append_at_leisure(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if let End::Direct(appender) = &mut *self.end()
            && appender.hold_back(offset, bytes)
        {
            return Ok(());
        }
        self.file.write_all_at(bytes, offset)
    }

    fn end_appends(&self) {
        *self.end() = End::Untouched;
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)?;
        if let End::Direct(appender) = &*self.end() {
            appender.read(offset, bytes);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        // Also what nobody waited for: a new segment's header relies on all of the one before.
        if let End::Direct(appender) = &mut *self.end() {
            appender.write_held(&self.file)?;
        }
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn allocate_zeroed(&self, len: u64) -> io::Result<()> {
        // Asking for all the room first finds a full disk at once; where the file system cannot do
        // that, writing finds it a little later.
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, len) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
        // Reserved blocks still count as unwritten, and the first write to one changes metadata that
        // every sync must then wait for. Real zeros avoid that.
        let zeros = Aligned::zeros(ZERO_PIECE);
        let direct = open_past_cache(&self.file);
        let mut at = 0;
        while at < len {
            let piece = (len - at).min(ZERO_PIECE as u64);
            let zeros = &zeros.bytes()[..piece as usize];
            let is_written = direct.as_ref().is_some_and(|direct| direct.write_all_at(zeros, at).is_ok());
            if !is_written {
                self.file.write_all_at(zeros, at)?;
            }
            // So that a sync of another file does not have to wait for all of it.
            self.file.sync_data()?;
            at += piece;
        }
        Ok(())
    }
}
