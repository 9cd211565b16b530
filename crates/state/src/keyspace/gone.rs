//! Deletions, by key: how versions of a key are found that none of now leads to.

use std::collections::VecDeque;

use tidelock_model::{Key, Record};

use super::{ByKey, Keyed, Position};
use tidelock_tree::{Iter, Tree};

/// When a key was deleted, as far as that is held; at least once.
pub(super) struct Deletions {
    pub(super) key: Key,
    last: Record,
    /// Most keys that are deleted come once.
    #[expect(clippy::box_collection, reason = "an item has eight bytes for what few have")]
    earlier: Option<Box<VecDeque<Record>>>,
}

impl Deletions {
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
    const LEAF_MAX: usize = 47;
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

    pub(super) fn of(&self, key: &Key) -> Option<&Deletions> {
        self.keys.get(key)
    }

    /// Those of keys from `start` on.
    pub(super) fn iter_from(&self, start: &Key) -> Iter<'_, ByKey<Deletions>> {
        self.keys.iter_from(start)
    }

    /// Forgets the oldest deletion of `key`, which is at `position`.
    pub(super) fn forget(&mut self, key: &Key, position: Position) {
        // It is mostly the only one, and then nothing has to be looked for again.
        let Some(mut deletions) = self.keys.remove(key) else { return };
        if let Some(mut earlier) = deletions.earlier.take() {
            earlier.pop_front_if(|oldest| oldest.position() == position);
            deletions.earlier = Some(earlier).filter(|earlier| !earlier.is_empty());
            self.keys.insert(key, deletions);
        } else if deletions.last.position() != position {
            self.keys.insert(key, deletions);
        }
    }

    /// Of how many keys.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }
}
