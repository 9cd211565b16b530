//! Superseded versions and deletions, by key, those of a key in the order they came about.
//!
//! A key is found once for all of its versions: one that is written often costs a version eight bytes, and one that
//! came and went is one item. Versions go at the front, when they are swept, and come at the end; one among a million
//! is found by halving.

use std::collections::VecDeque;

use tidelock_model::{Key, Record};

use super::{ByKey, Keyed, Position};
use crate::tree::{Iter, Tree};

/// What is held of one key; never empty.
pub(crate) struct Versions {
    pub(crate) key: Key,
    records: VecDeque<Record>,
}

impl Versions {
    /// How many are before a position.
    fn before(&self, position: Position) -> usize {
        // Mostly none are, when a snapshot asks, or the first, when that is swept, or all: nothing else is to be fetched
        // from memory then.
        let is_before = |record: &Record| record.position() < position;
        match (self.records.front(), self.records.get(1), self.records.back()) {
            (Some(first), _, _) if !is_before(first) => 0,
            (_, Some(second), _) if !is_before(second) => 1,
            (_, _, Some(last)) if !is_before(last) => self.records.partition_point(is_before),
            _ => self.records.len(),
        }
    }

    /// The oldest `count`.
    pub(crate) fn first(&self, count: usize) -> impl Iterator<Item = &Record> {
        self.records.iter().take(count)
    }

    /// Those at `from` and after.
    pub(crate) fn since(&self, from: Position) -> impl Iterator<Item = &Record> + use<'_> {
        self.records.range(self.before(from)..)
    }

    /// The last one before `position`.
    pub(crate) fn last_before(&self, position: Position) -> Option<&Record> {
        self.records.get(self.before(position).checked_sub(1)?)
    }
}

impl Keyed for Versions {
    /// As many bytes as other leaves have, nearly: its items are larger.
    const LEAF_MAX: usize = 32;
    fn key(&self) -> &Key {
        &self.key
    }
}

pub(super) struct Past {
    keys: Tree<ByKey<Versions>>,
}

impl Past {
    pub(super) fn new() -> Past {
        Past { keys: Tree::new() }
    }

    /// Adds versions of `key` that are newer than all that are held of it.
    pub(super) fn push<const COUNT: usize>(&mut self, key: &Key, newest: [Record; COUNT]) {
        // The first of a key that was changed before follows others; that of a new one seldom does.
        let follows = newest.first().is_some_and(|first| first.meta().version != 1);
        if follows && let Some(versions) = self.keys.get_mut(key) {
            return versions.records.extend(newest);
        }
        let before = self.keys.insert(key, Versions { key: key.clone(), records: newest.into() });
        if let Some(before) = before
            && let Some(versions) = self.keys.get_mut(key)
        {
            let newest = std::mem::replace(&mut versions.records, before.records);
            versions.records.extend(newest);
        }
    }

    /// Adds a version that is newer than all of its key, which none is after: for loading.
    pub(super) fn push_last(&mut self, key: Key, record: Record) {
        match self.keys.last_mut().filter(|last| last.key == key) {
            Some(last) => last.records.push_back(record),
            None => self.keys.push_last(Versions { key, records: [record].into() }),
        }
    }

    /// What is held of a key.
    pub(super) fn of(&self, key: &Key) -> Option<&Versions> {
        self.keys.get(key)
    }

    /// What is held of keys from `start` on.
    pub(super) fn iter_from(&self, start: &Key) -> Iter<'_, ByKey<Versions>> {
        self.keys.iter_from(start)
    }

    /// Forgets the last version of `key` before a position, if `is_due` says so of it, and with it the one at that
    /// position, if `and_at`. Tells how many bytes of values and how often the key went.
    pub(super) fn forget(
        &mut self,
        key: &Key,
        position: Position,
        is_due: impl Fn(&Record) -> bool,
        and_at: bool,
    ) -> (usize, usize) {
        let Some(versions) = self.keys.get_mut(key) else { return (0, 0) };
        let at = versions.before(position);
        let has_one_at = and_at && versions.records.get(at).is_some_and(|record| record.position() == position);
        let before = at.checked_sub(1).filter(|before| is_due(&versions.records[*before]));
        let gone = [has_one_at.then_some(at), before];
        let gone = gone.into_iter().flatten().filter_map(|at| versions.records.remove(at));
        let (bytes, count) = gone.fold((0, 0), |(bytes, count), record| (bytes + record.value().len(), count + 1));
        if versions.records.is_empty() {
            self.keys.remove(key);
        } else if versions.records.capacity() > 4 * versions.records.len() {
            versions.records.shrink_to(2 * versions.records.len());
        }
        (bytes, count)
    }

    /// How many versions are held.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.keys.iter_from(&Key::from_stored(&[])).map(|versions| versions.records.len()).sum()
    }
}
