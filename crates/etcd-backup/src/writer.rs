//! Writes a backup.
//!
//! Changes and leases are pushed in order and go to disk as pages fill up; the rest is given at the end.
//! The file has another name until it is complete and durable, so a crash leaves no half backup that
//! looks like a whole one. A writer dropped before [`BackupWriter::finish`] leaves nothing behind.
//! Whoever only passes the bytes on gives a file without a name and seals them on the way
//! ([`BackupWriter::unnamed`], [`Seal`]).

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::contents::{Change, ChangeKind, Lease, MemberState, Revision};
use crate::error::WriteError;
use crate::file_header::FileHeader;
use crate::messages;
use crate::page::PageKind;
use crate::reader::{SEAL_BYTES, hash_of};
use crate::schema::{self, StateEntries};
use crate::tree_writer::{PAGE_BYTES, PageSink, TreeWriter};

/// Ending of the name while the file is not complete.
const UNFINISHED: &str = ".part";
/// Backups hold everybody's data and password hashes.
const OWNER_ONLY: u32 = 0o600;
/// Pages are handed to the system in pieces of this size.
const PIECE_BYTES: usize = 256 * 1024;
/// The transaction the first header claims. bbolt keeps the header of an even one first, of an odd one second.
const TRANSACTION: u64 = 2;

/// A backup that is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Length of the file.
    pub bytes: u64,
    /// Changes in it.
    pub changes: u64,
    /// Leases in it.
    pub leases: u64,
    /// The revision a server started from it is at.
    pub revision: i64,
}

/// A backup being written.
pub struct BackupWriter {
    sink: PageSink<BufWriter<File>>,
    history: TreeWriter,
    leases: TreeWriter,
    last: Option<Revision>,
    written: Written,
    /// None for a file without a name.
    draft: Option<Draft>,
}

/// The checksum that goes behind the database, computed while the bytes pass by.
#[derive(Debug, Clone, Default)]
pub struct Seal(Sha256);

impl Seal {
    /// Takes the next bytes of the database.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// What to put behind the last of them.
    #[must_use]
    pub fn finish(self) -> [u8; SEAL_BYTES as usize] {
        self.0.finalize().into()
    }
}

impl BackupWriter {
    /// Begins a backup that will be at `path`. What is there now stays until the end.
    pub fn create(path: &Path) -> Result<BackupWriter, WriteError> {
        let draft = Draft::beside(path)?;
        // A draft is what a crash left, or somebody else is writing it right now; the latter loses.
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(OWNER_ONLY).open(&draft.path)?;
        BackupWriter::over(file, Some(draft))
    }

    /// Begins a backup in an empty file that needs no name: see [`BackupWriter::finish_unsealed`].
    pub fn unnamed(file: File) -> Result<BackupWriter, WriteError> {
        BackupWriter::over(file, None)
    }

    fn over(file: File, draft: Option<Draft>) -> Result<BackupWriter, WriteError> {
        Ok(BackupWriter {
            sink: PageSink::new(BufWriter::with_capacity(PIECE_BYTES, file))?,
            history: TreeWriter::default(),
            leases: TreeWriter::default(),
            last: None,
            written: Written { bytes: 0, changes: 0, leases: 0, revision: 1 },
            draft,
        })
    }

    /// Adds a change, later than all before.
    pub fn push(&mut self, change: &Change) -> Result<(), WriteError> {
        let revision = change.revision;
        check_change(change).map_err(|what| WriteError::BadEntry { entry: name(revision), what })?;
        // Two changes at one revision would pass as different entries if one of them is a deletion.
        if self.last.is_some_and(|last| last >= revision) {
            return Err(WriteError::OutOfOrder { what: name(revision) });
        }
        let tombstone = matches!(change.kind, ChangeKind::Delete { .. });
        let key = schema::encode_revision(revision, tombstone);
        self.history.push(&mut self.sink, key, messages::encode_change(&change.kind))?;
        self.last = Some(revision);
        self.written.changes += 1;
        Ok(())
    }

    /// Adds a lease, with an id above all before (taken as unsigned). Changes may be pushed before and after.
    pub fn push_lease(&mut self, lease: &Lease) -> Result<(), WriteError> {
        // Zero is how keys say that they have no lease.
        if lease.id == 0 {
            let entry = "the lease 0".to_owned();
            return Err(WriteError::BadEntry { entry, what: "no lease has that id".to_owned() });
        }
        let key = schema::encode_lease_id(lease.id).to_vec();
        self.leases.push(&mut self.sink, key, messages::encode_lease(lease))?;
        self.written.leases += 1;
        Ok(())
    }

    /// Bytes of the file so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sink.pages() * PAGE_BYTES as u64
    }

    /// Adds the rest, seals the file, waits until it is durable and gives it its name.
    pub fn finish(self, state: &MemberState) -> Result<Written, WriteError> {
        let (mut file, mut written, draft) = self.complete(state)?;
        written.bytes = seal(&mut file)?;
        file.sync_all()?;
        if let Some(mut draft) = draft {
            draft.publish()?;
        }
        Ok(written)
    }

    /// Adds the rest and gives the file back, at its beginning: the database alone, neither sealed nor
    /// durable.
    pub fn finish_unsealed(self, state: &MemberState) -> Result<(File, Written), WriteError> {
        let (mut file, mut written, _draft) = self.complete(state)?;
        written.bytes = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(0))?;
        Ok((file, written))
    }

    /// Adds everything but the seal.
    fn complete(mut self, state: &MemberState) -> Result<(File, Written, Option<Draft>), WriteError> {
        let root = self.write_buckets(StateEntries::of(state)?)?;
        // Without a list of free pages a server would look through the whole file when it opens it.
        let freelist = self.sink.write(PageKind::Freelist, 0, &[])?;
        let pages = self.sink.pages();
        let mut file = self.sink.into_output().into_inner().map_err(io::IntoInnerError::into_error)?;
        file.seek(SeekFrom::Start(0))?;
        for page in 0..2 {
            let transaction = TRANSACTION - page;
            let header = FileHeader { page_bytes: PAGE_BYTES, root, freelist, pages, transaction };
            file.write_all(&header.encode(page))?;
        }
        let last = self.last.map(|last| last.main);
        self.written.revision = [last, state.finished_compact_revision, state.scheduled_compact_revision]
            .into_iter()
            .flatten()
            .fold(1, i64::max);
        Ok((file, self.written, self.draft))
    }

    /// Writes all buckets and the tree that names them; gives the page where that begins.
    fn write_buckets(&mut self, entries: StateEntries) -> Result<u64, WriteError> {
        let mut buckets = BTreeMap::new();
        let streamed = [(schema::KEY, &mut self.history), (schema::LEASE, &mut self.leases)];
        for (name, tree) in streamed {
            buckets.insert(name.into(), std::mem::take(tree).finish_bucket(&mut self.sink)?);
        }
        for (name, entries) in entries.into_buckets() {
            let mut tree = TreeWriter::default();
            for (key, value) in entries {
                tree.push(&mut self.sink, key, value)?;
            }
            buckets.insert(name, tree.finish_bucket(&mut self.sink)?);
        }
        let mut root = TreeWriter::default();
        for (name, bucket) in buckets {
            root.push_bucket(&mut self.sink, name, bucket)?;
        }
        Ok(root.finish(&mut self.sink)?)
    }
}

/// Refuses what our own reader would refuse.
fn check_change(change: &Change) -> Result<(), String> {
    messages::check_revision(change.revision)?;
    match &change.kind {
        ChangeKind::Put(record) => messages::check_record(change.revision, record),
        ChangeKind::Delete { key } if key.is_empty() => Err("a deletion without a key".to_owned()),
        ChangeKind::Delete { .. } | ChangeKind::Mark => Ok(()),
    }
}

fn name(revision: Revision) -> String {
    format!("the change at revision {}.{}", revision.main, revision.sub)
}

/// Adds the SHA-256 of everything before it. The headers come first in the file but are known last,
/// so this reads the file once more.
fn seal(file: &mut File) -> io::Result<u64> {
    file.seek(SeekFrom::Start(0))?;
    let hash = hash_of(file)?;
    file.write_all(&hash)?;
    file.stream_position()
}

/// A file under another name, removed again unless it is published.
struct Draft {
    path: PathBuf,
    target: PathBuf,
    published: bool,
}

impl Draft {
    fn beside(target: &Path) -> io::Result<Draft> {
        let Some(name) = target.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file"));
        };
        let mut draft = name.to_owned();
        draft.push(UNFINISHED);
        Ok(Draft { path: target.with_file_name(draft), target: target.to_owned(), published: false })
    }

    fn publish(&mut self) -> io::Result<()> {
        fs::rename(&self.path, &self.target)?;
        self.published = true;
        let directory = self.target.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.published {
            // Best effort, for the room it takes.
            let _ = fs::remove_file(&self.path);
        }
    }
}
