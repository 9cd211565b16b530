//! What watchers are told.

use crate::{Key, Record};

/// One change to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The key that changed.
    pub key: Key,
    /// What it became; a tombstone if it was deleted. Carries revision and position.
    pub record: Record,
    /// What it was just before this revision, if it existed and is still held.
    pub previous: Option<Record>,
}

/// Whether a change set or removed a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Created or overwritten.
    Put,
    /// Deleted, by a request or by the end of its lease.
    Delete,
}

impl Event {
    /// Whether this is a put or a delete.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        if self.record.is_tombstone() { EventKind::Delete } else { EventKind::Put }
    }
}
