//! Why a journal or snapshot call failed: one variant per thing the caller can do next.

use std::io;

use tidelock_model::LogIndex;

/// What to do about damage that only the other members can repair.
const HEAL: &str =
    "restore this member from its peers: remove the data directory and rejoin as a new member (or restore a backup)";

/// Why the journal does not open. The data directory is left as it was found.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Bytes that were durable are damaged, or a file is missing. Serving would mean lying.
    #[error("{directory}/{file} is damaged at byte {offset}: {what}; {HEAL}")]
    Damaged {
        /// The data directory.
        directory: String,
        /// The file in it.
        file: String,
        /// Where in the file the trouble begins.
        offset: u64,
        /// What was expected there.
        what: String,
    },
    /// Entries are missing: a segment file is gone, or the log does not reach back to the snapshot.
    #[error("the journal in {directory} has a hole: {what}; {HEAL}")]
    Hole {
        /// The data directory.
        directory: String,
        /// What is missing.
        what: String,
    },
    /// The newest snapshot is damaged and nothing older together with the journal can replace it.
    #[error("the snapshot {directory}/{file} is damaged ({what}) and nothing older can stand in for it; {HEAL}")]
    SnapshotDamaged {
        /// The data directory.
        directory: String,
        /// The snapshot file.
        file: String,
        /// What is wrong with it.
        what: String,
    },
    /// The files were written by a newer version of the program.
    #[error("{directory}/{file} has format version {version}, which this program does not know; start the newer one")]
    UnknownVersion {
        /// The data directory.
        directory: String,
        /// The file in it.
        file: String,
        /// The version it claims.
        version: u32,
    },
    /// The configuration cannot work.
    #[error("journal configuration: {0}")]
    Config(String),
    /// The disk failed while opening. Trying again may help.
    #[error("cannot open the journal")]
    Io(#[from] io::Error),
}

/// Why entries were not appended.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// No room for another segment. Nothing was written; try again after `maintain` says otherwise.
    #[error("no space left to extend the journal; nothing was written")]
    NoSpace,
    /// The entry can never fit into a segment. Nothing was written.
    #[error("an entry of {bytes} bytes is larger than a journal segment holds ({limit})")]
    TooLarge {
        /// Size of the record.
        bytes: u64,
        /// Largest record that fits.
        limit: u64,
    },
    /// The entries do not continue or overwrite what is there: a mistake of the caller. Nothing was written.
    #[error("entry {index} cannot follow: the journal holds {first} to {last}")]
    OutOfOrder {
        /// The index that does not fit.
        index: LogIndex,
        /// First index in the journal.
        first: LogIndex,
        /// Last index in the journal.
        last: LogIndex,
    },
    /// The log was to restart after a snapshot that is not on disk: a mistake of the caller. Nothing was written.
    #[error("there is no durable snapshot up to entry {index}")]
    SnapshotMissing {
        /// The index the snapshot should cover.
        index: LogIndex,
    },
    /// The disk failed, now or earlier. Nobody knows what is durable: stop the node.
    #[error("the journal failed and cannot be used any more")]
    Failed(#[source] io::Error),
}

/// Why entries could not be read back.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The range starts before what the journal still holds; send a snapshot instead.
    #[error("entries before {first} are no longer in the journal")]
    Trimmed {
        /// First index in the journal.
        first: LogIndex,
    },
    /// The range ends after what the journal holds: a mistake of the caller.
    #[error("the journal ends at entry {last}")]
    BeyondEnd {
        /// Last index in the journal.
        last: LogIndex,
    },
    /// A record no longer matches its checksum. Stop the node.
    #[error("{directory}/{file} is damaged at byte {offset}; {HEAL}")]
    Damaged {
        /// The data directory.
        directory: String,
        /// The file in it.
        file: String,
        /// Where the record starts.
        offset: u64,
    },
    /// The disk failed, now or earlier. Stop the node.
    #[error("reading the journal failed")]
    Failed(#[source] io::Error),
}

/// What is wrong with a snapshot file, or with reading or writing one.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The content is not what was written, or it is incomplete.
    #[error("damaged at byte {offset}: {what}")]
    Damaged {
        /// Where in the file the trouble begins.
        offset: u64,
        /// What was expected there.
        what: &'static str,
    },
    /// The file was written by a newer version of the program.
    #[error("format version {version} is not known")]
    UnknownVersion {
        /// The version it claims.
        version: u32,
    },
    /// The caller gave more than the format allows.
    #[error("{what} of {bytes} bytes is larger than {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The bound.
        limit: u64,
    },
    /// The disk failed. When it is only full, the snapshot can be tried again later.
    #[error("snapshot file: {0}")]
    Io(#[from] io::Error),
}
