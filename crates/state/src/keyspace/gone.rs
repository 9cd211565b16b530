//! Deletions, by key: how versions of a key are found that none of now leads to.

use std::collections::VecDeque;

use tidelock_model::{Key, Record};

use super::{ByKey, Keyed, Position};
use crate::tree::{Iter, Tree};

/// When a key was deleted, as far as that is held; at least once.
pub(crate) struct Deletions {
    pub(crate) key: Key,
    last: Record,
    /// Most keys that are deleted come once.
    #[expect(clippy::box_collection, reason = "an item has eight bytes for what few have")]
    earlier: Option<Box<VecDeque<Record>>>,
}

impl Deletions {
    pub(crate) fn last(&self) -> &Record {
        &self.last
    }

    /// Newest first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = &Record> {
        std::iter::once(&self.last).chain(self.earlier.iter().flat_map(|earlier| earlier.iter().rev()))
    }

    /// The last one before a position, and the first one at it or after.
    pub(super) fn around(&self, position: Position) -> (Option<&Record>, Option<&Record>) {
        if self.last.position() < position {
            return (Some(&self.last), None);
        }
        let Some(earlier) = &self.earlier else { return (None, Some(&self.last)) };
        let at = earlier.partition_point(|deletion| deletion.position() < position);
        (at.checked_sub(1).and_then(|before| earlier.get(before)), earlier.get(at).or(Some(&self.last)))
    }

    fn push(&mut self, newest: Record) {
        let before = std::mem::replace(&mut self.last, newest);
        self.earlier.get_or_insert_default().push_back(before);
    }
}

impl Keyed for Deletions {
    /// As many bytes as other leaves have, nearly: its items are larger.
    const LEAF_MAX: usize = 48;
    fn key(&self) -> &Key {
        &self.key
    }
}

pub(super) struct Gone {
    keys: Tree<ByKey<Deletions>>,
}

impl Gone {
    pub(super) fn new() -> Gone {
        Gone { keys: Tree::new() }
    }

    /// Adds the deletion of `key` that is newer than all of it.
    pub(super) fn push(&mut self, key: &Key, deletion: Record) {
        let before = self.keys.insert(key, Deletions { key: key.clone(), last: deletion, earlier: None });
        if let Some(before) = before
            && let Some(deletions) = self.keys.get_mut(key)
        {
            let newest = std::mem::replace(deletions, before).last;
            deletions.push(newest);
        }
    }

    /// Adds the deletion of a key that none is after, newer than all of it: for loading.
    pub(super) fn push_last(&mut self, key: Key, deletion: Record) {
        match self.keys.last_mut().filter(|last| last.key == key) {
            Some(last) => last.push(deletion),
            None => self.keys.push_last(Deletions { key, last: deletion, earlier: None }),
        }
    }

    pub(super) fn of(&self, key: &Key) -> Option<&Deletions> {
        self.keys.get(key)
    }

    /// Those of keys from `start` on.
    pub(super) fn iter_from(&self, start: &Key) -> Iter<'_, ByKey<Deletions>> {
        self.keys.iter_from(start)
    }

    /// Forgets the oldest deletion of `key`, which is at `position`. Says whether it was held.
    pub(super) fn forget(&mut self, key: &Key, position: Position) -> bool {
        // It is mostly the only one, and then nothing has to be looked for again.
        let Some(mut deletions) = self.keys.remove(key) else { return false };
        if let Some(mut earlier) = deletions.earlier.take() {
            let is_held = earlier.pop_front_if(|oldest| oldest.position() == position).is_some();
            deletions.earlier = Some(earlier).filter(|earlier| !earlier.is_empty());
            self.keys.insert(key, deletions);
            return is_held;
        }
        let is_held = deletions.last.position() == position;
        if !is_held {
            self.keys.insert(key, deletions);
        }
        is_held
    }

    /// How many are held.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.keys.iter_from(&Key::from_stored(&[])).map(|deletions| deletions.newest_first().count()).sum()
    }
}
