//! What a key was, version by version: for people who want to know who changed what, and when.

use bytes::Bytes;

use crate::{Key, LeaseId, Revision};

/// What a [`crate::Query::History`] asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Of what.
    pub of: HistoryOf,
    /// Only versions before this revision; `None` is all of them.
    pub before: Option<Revision>,
    /// The newest so many; at most [`crate::limits::HISTORY_VERSIONS_MAX`].
    pub max: usize,
    /// So many bytes of each version's data; all together at most [`crate::limits::HISTORY_BYTES_MAX`].
    pub data_bytes: usize,
}

/// Whose versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryOf {
    /// A key's.
    Key(Key),
    /// A znode's, by its path.
    Znode(String),
}

/// The versions of a key that are held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The compaction horizon: what was superseded before this revision is forgotten.
    pub oldest: Revision,
    /// There are earlier ones: ask again with `before`.
    pub more: bool,
    /// The versions, newest first.
    pub versions: Vec<KeyVersion>,
}

/// One version of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyVersion {
    /// When it came to be.
    pub revision: Revision,
    /// How.
    pub kind: VersionKind,
    /// The leader's clock then, in milliseconds; known of znodes that were written, not of deletions or other keys.
    pub at_ms: Option<u64>,
    /// As the key's own protocol counts; nothing of a deletion.
    pub version: Option<i64>,
    /// The lease or session it belonged to.
    pub lease: LeaseId,
    /// How long its data is; nothing of a deletion, and of a znode without data.
    pub data_length: Option<u64>,
    /// The beginning of its data.
    pub data: Bytes,
}

/// How a version came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionKind {
    /// The key did not exist before.
    Created,
    /// It was written again.
    Changed,
    /// It was deleted, or went with its lease.
    Deleted,
}
