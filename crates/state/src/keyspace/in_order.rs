//! Versions in the order they came about: read for a copy of the store, put back from one.

use tidelock_model::{KeyValue, Record};

use super::{Keyspace, Position, held_bytes, is_read_in_past};

impl Keyspace {
    /// All changes held at `from` and after, in order.
    pub(crate) fn changes_from_position(&self, from: Position) -> impl Iterator<Item = &KeyValue> + Clone {
        self.history.iter_from(from)
    }

    /// Adds a change after all changes before it, whatever its key was before. Unlike a deletion by a
    /// command, one whose key is not known is kept: what it deleted was compacted, watchers may still ask.
    pub(crate) fn load_next(&mut self, mut item: KeyValue) {
        // Its mark is this store's: a record of another one is not shared with it.
        item.record = Record::new(item.record.meta(), item.record.value());
        // All versions of a key share one copy of it.
        if let Some(before) = self.live.get(&item.key) {
            item.key = before.key.clone();
        }
        self.changed = item.record.meta().modified;
        self.data_bytes += held_bytes(&item);
        self.add_change(item.clone());
        let key = item.key.clone();
        let record = item.record.clone();
        let replaced = if record.is_tombstone() { self.live.remove(&key) } else { self.live.insert(&key, item) };
        if let Some(replaced) = replaced {
            self.replaced.push(&record, replaced.record);
        }
        if record.is_tombstone() && is_read_in_past(&key) {
            self.gone.push(&key, record);
        }
    }

    /// Puts another record in the place of a live version's, with the same position.
    pub(crate) fn amend_live(&mut self, item: KeyValue) {
        if let Some(change) = self.history.get_mut(item.record.position()) {
            item.record.set_mark(change.record.mark());
            *change = item.clone();
        }
        let key = item.key.clone();
        self.live.insert(&key, item);
    }
}
