//! The durable log and the snapshot files of one node.
//!
//! [`Journal`] turns "append these entries and this hard state, make them durable" into segment
//! files; [`SnapshotWriter`], [`SnapshotReader`] and [`SnapshotReceiver`] keep snapshots beside them.
//! Everything goes through the [`Disk`] trait: [`OsDisk`] is the real one, [`memory_disk::MemoryDisk`]
//! one that loses, tears and damages writes on request.
//!
//! What holds:
//! - what was appended before a successful [`Journal::sync`] is there after any crash, or the journal
//!   refuses to open and says which file is damaged; it never opens with something missing or altered;
//! - what was not synced may be lost, but only as a suffix;
//! - after a failed write or sync every later call fails, because nobody knows what is on the disk;
//! - a full disk is met only while preparing a new segment, before anything is written.
//!
//! The crate knows nothing of Raft, threads or clocks. Calls block; one thread owns the journal.
//! The file formats, byte by byte, and the argument for cutting or refusing: `docs/internals/journal.md`.

mod direct;
mod disk;
mod error;
mod journal;
pub mod memory_disk;
mod os_disk;
mod positions;
mod record;
mod recovery;
mod segment;
mod snapshot;
mod snapshot_format;

pub use disk::{Disk, DiskFile};
pub use error::{AppendError, OpenError, ReadError, SnapshotError};
pub use journal::{Journal, JournalConfig, Recovered, Space};
pub use os_disk::{OsDisk, OsDiskError};
pub use snapshot::{
    SnapshotReader, SnapshotReceiver, SnapshotWriter, latest_snapshot, list_snapshots, remove_older, verify_snapshot,
};
pub use snapshot_format::{MAX_CHUNK_BYTES, MAX_EXTRA_BYTES, SnapshotMeta, SnapshotName};
pub use tidelock_model::{HardState, LogEntry};
