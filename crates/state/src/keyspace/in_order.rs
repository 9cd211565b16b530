//! Versions in the order they came about: read for a copy of the store, put back from one.

use tidelock_model::KeyValue;

use super::{ByPosition, Keyspace, Position, held_bytes};
use crate::tree::Iter;

impl Keyspace {
    /// All changes held at `from` and after, in order.
    pub(crate) fn changes_from_position(&self, from: Position) -> Iter<'_, ByPosition> {
        self.history.iter_from(from)
    }

    /// Adds a change after all changes before it, whatever its key was before. Unlike a deletion by a
    /// command, one whose key is not known is kept: what it deleted was compacted, watchers may still ask.
    pub(crate) fn load_next(&mut self, mut item: KeyValue) {
        // All versions of a key share one copy of it.
        if let Some(before) = self.live.get(&item.key) {
            item.key = before.key.clone();
        }
        self.changed = item.record.meta().modified;
        self.data_bytes += held_bytes(&item);
        self.history.push_last(item.clone());
        let key = item.key.clone();
        if !item.record.is_tombstone() {
            let replaced = self.live.insert(&key, item);
            replaced.into_iter().for_each(|replaced| self.past.push(&key, [replaced.record]));
            return;
        }
        match self.live.remove(&key) {
            Some(deleted) => self.past.push(&key, [deleted.record, item.record]),
            None => self.past.push(&key, [item.record]),
        }
    }

    /// Puts another record in the place of a live version's, with the same position.
    pub(crate) fn amend_live(&mut self, item: KeyValue) {
        if self.history.remove(item.record.position()).is_some() {
            self.history.insert(item.record.position(), item.clone());
        }
        let key = item.key.clone();
        self.live.insert(&key, item);
    }
}
