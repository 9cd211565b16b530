//! Why a backup cannot be read or written: one variant per thing the caller can do next.

use std::io;

/// What to do about a file that cannot be trusted.
const TAKE_ANOTHER: &str = "copy it again or take a new snapshot";

/// Why a backup is refused. Nothing of it counts, also not what was given out before.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file is something else. Look whether it is the right one.
    #[error("this is not an etcd snapshot: {what}")]
    NotABackup {
        /// What was expected.
        what: String,
    },
    /// A part of the file is missing.
    #[error("the snapshot is cut short: {what}; {TAKE_ANOTHER}")]
    CutShort {
        /// What is missing.
        what: String,
    },
    /// The file is not what was sealed: it was changed or damaged on the way.
    #[error("the snapshot does not match its checksum (says {sealed}, has {found}); {TAKE_ANOTHER}")]
    ChecksumMismatch {
        /// What the file's end says, in hexadecimal.
        sealed: String,
        /// What its bytes come to, in hexadecimal.
        found: String,
    },
    /// There is nothing to check the file against. Copies of a member's own database have no checksum; if
    /// this is one, allow that.
    #[error("the snapshot has no checksum, as if it was copied from a data directory (member/snap/db)")]
    ChecksumMissing,
    /// The tree of pages is broken.
    #[error("the snapshot is damaged at page {page}: {what}; {TAKE_ANOTHER}")]
    Damaged {
        /// The page; zero for a small bucket kept inside another page.
        page: u64,
        /// What is wrong there.
        what: String,
    },
    /// The tree is sound, but an entry is not one that etcd writes.
    #[error("the snapshot has an entry that etcd does not write: bucket {bucket}, key {key}: {what}")]
    BadEntry {
        /// The bucket's name.
        bucket: String,
        /// The entry's key, in hexadecimal.
        key: String,
        /// What is wrong with it.
        what: String,
    },
    /// Larger than anything etcd writes; refused before it costs memory.
    #[error("the snapshot holds {what}, more than the {limit} allowed")]
    TooLarge {
        /// What is large.
        what: String,
        /// The bound.
        limit: u64,
    },
    /// The disk failed. Trying again may help.
    #[error("cannot read the snapshot: {0}")]
    Io(#[from] io::Error),
}

impl ReadError {
    pub(crate) fn damaged(page: u64, what: impl Into<String>) -> ReadError {
        ReadError::Damaged { page, what: what.into() }
    }

    pub(crate) fn bad_entry(bucket: &str, key: &[u8], what: impl Into<String>) -> ReadError {
        ReadError::BadEntry { bucket: bucket.to_owned(), key: hex(key), what: what.into() }
    }
}

/// Why a backup was not written. The target's name is untouched.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Changes and leases come in order, each once. A mistake of the caller.
    #[error("{what} is not above the one before it")]
    OutOfOrder {
        /// Which entry.
        what: String,
    },
    /// etcd could not have this entry. A mistake of the caller.
    #[error("{entry} cannot be in an etcd snapshot: {what}")]
    BadEntry {
        /// Which entry.
        entry: String,
        /// What is wrong with it.
        what: String,
    },
    /// etcd's file format has no room for an entry this large.
    #[error("{entry} has {size} bytes, more than the {limit} that fit an etcd snapshot")]
    TooLarge {
        /// Which entry.
        entry: String,
        /// Its size.
        size: u64,
        /// The bound.
        limit: u64,
    },
    /// The disk failed or is full.
    #[error("cannot write the snapshot: {0}")]
    Io(#[from] io::Error),
}

/// Bytes for a person to read.
pub(crate) fn hex(bytes: &[u8]) -> String {
    /// Enough to find an entry by; keys may have thousands of bytes.
    const SHOWN_BYTES: usize = 64;
    let shown = bytes.iter().take(SHOWN_BYTES).map(|byte| format!("{byte:02x}")).collect::<String>();
    if bytes.len() > SHOWN_BYTES { format!("{shown}...") } else { shown }
}
