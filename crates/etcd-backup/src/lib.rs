//! Reads and writes etcd's own backup file: the way in from a real etcd, and the way out to one.
//!
//! The file is what `etcdctl snapshot save` leaves behind: a member's database (a bbolt file, a B+tree
//! of pages) and a SHA-256 of it. [`BackupReader`] gives back every change it holds in the order they
//! happened, its leases, and what a member keeps besides ([`MemberState`]). [`BackupWriter`] takes the
//! same and leaves a file that `etcdctl snapshot restore` accepts. Both stream: memory does not grow with
//! the number of keys.
//!
//! What holds:
//! - a file is read as a whole or refused with the place of the damage; no entry is passed over, and no
//!   bytes of a file, however hostile, make the reader panic, loop or allocate beyond the file's size;
//! - a file gets its final name only when all of it is on disk;
//! - what the writer accepts, the reader reads back equal.
//!
//! The crate knows nothing of our own state: translation is the caller's. Calls block.
//! The format and its limits: `docs/internals/etcd-backup.md`.

mod contents;
mod error;
mod file_header;
mod messages;
mod page;
mod page_file;
mod reader;
mod schema;
mod tree_reader;
mod tree_writer;
mod writer;

pub use contents::{
    Alarm, AlarmKind, Auth, Change, ChangeKind, KeyRecord, Lease, Member, MemberState, Permission, PermissionKind,
    RawEntry, Revision, Role, User,
};
pub use error::{ReadError, WriteError};
pub use reader::{BackupReader, Changes, Checksum, ChecksumRule, Leases, Status};
pub use writer::{BackupWriter, Seal, Written};
