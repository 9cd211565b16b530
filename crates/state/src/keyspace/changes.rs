//! Every change that is held, in order, for watchers and for compaction.
//!
//! Changes come after all others and are forgotten from the front. So they lie in chunks, one behind the other: adding
//! one moves nothing and looks for nothing, forgetting one neither. A place in the middle is found by halving.

use std::collections::VecDeque;

use tidelock_model::KeyValue;

use super::Position;

/// How many are allocated together: larger than any node of the trees, since compaction frees these and keeps those. One
/// less than fill a block of the allocator, for the same reason as the trees' nodes have (`room_beyond` in `tree/src/lib.rs`).
const CHUNK: usize = (8 << 10) / size_of::<KeyValue>() - 1;

struct Chunk {
    /// Nothing in it, nor in those behind it, is before this.
    from: Position,
    /// As many as fit, but for the first chunk and the last.
    items: VecDeque<KeyValue>,
}

pub(super) struct Changes {
    chunks: VecDeque<Chunk>,
    len: usize,
}

impl Changes {
    pub(super) fn new() -> Changes {
        Changes { chunks: VecDeque::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn first(&self) -> Option<&KeyValue> {
        self.chunks.front()?.items.front()
    }

    /// Adds a change, after all others.
    pub(super) fn push(&mut self, item: KeyValue) {
        debug_assert!(
            self.chunks.back().and_then(|last| last.items.back()).is_none_or(|last| is_before(last, position(&item)))
        );
        self.len += 1;
        if let Some(last) = self.chunks.back_mut().filter(|last| last.items.len() < CHUNK) {
            return last.items.push_back(item);
        }
        let mut items = VecDeque::with_capacity(CHUNK);
        let from = position(&item);
        items.push_back(item);
        self.chunks.push_back(Chunk { from, items });
    }

    /// Forgets the first change.
    pub(super) fn pop_first(&mut self) -> Option<KeyValue> {
        let first = self.chunks.front_mut()?;
        let item = first.items.pop_front()?;
        if first.items.is_empty() {
            self.chunks.pop_front();
        }
        self.len -= 1;
        Some(item)
    }

    /// The chunk, and the place in it, of the first change that is not before `at`; perhaps one after the chunk's last.
    fn find(&self, at: Position) -> (usize, usize) {
        let chunk = self.chunks.partition_point(|chunk| chunk.from <= at).saturating_sub(1);
        let place = self.chunks.get(chunk).map_or(0, |chunk| chunk.items.partition_point(|item| is_before(item, at)));
        (chunk, place)
    }

    /// How many changes are before `at`.
    pub(super) fn rank(&self, at: Position) -> usize {
        let (chunk, place) = self.find(at);
        // All but the first and the last are full, and the last has nothing behind it.
        let before =
            self.chunks.front().filter(|_| chunk > 0).map_or(0, |first| first.items.len() + (chunk - 1) * CHUNK);
        before + place
    }

    /// All changes that are not before `at`, in order.
    pub(super) fn iter_from(&self, at: Position) -> impl Iterator<Item = &KeyValue> + Clone {
        let (chunk, place) = self.find(at);
        self.chunks.range(chunk.min(self.chunks.len())..).flat_map(|chunk| &chunk.items).skip(place)
    }

    /// The change at `at`, to be given another record with the same position.
    pub(super) fn get_mut(&mut self, at: Position) -> Option<&mut KeyValue> {
        let (chunk, place) = self.find(at);
        self.chunks.get_mut(chunk)?.items.get_mut(place).filter(|item| position(item) == at)
    }
}

fn position(item: &KeyValue) -> Position {
    item.record.position()
}

fn is_before(item: &KeyValue, at: Position) -> bool {
    position(item) < at
}

#[cfg(test)]
mod tests {
    use tidelock_model::{Key, Record, Revision, Space};

    use super::*;

    fn change(at: Position) -> KeyValue {
        KeyValue { key: Key::new(Space::User, b"k"), record: Record::tombstone(at.0, at.1) }
    }

    /// Watchers that catch up begin anywhere, and sweeping goes on meanwhile: what is found must not depend on where
    /// chunks begin and end.
    #[test]
    fn every_place_is_found_however_much_was_forgotten() {
        let positions: Vec<Position> =
            (1..=400).flat_map(|revision| (0..revision % 3).map(move |sub| (Revision(revision), sub as u32))).collect();
        let mut changes = Changes::new();
        positions.iter().for_each(|at| changes.push(change(*at)));
        for forgotten in 0..=positions.len() {
            let held = &positions[forgotten..];
            assert_eq!((changes.len(), changes.first().map(position)), (held.len(), held.first().copied()));
            for revision in (0..=402).step_by(7) {
                let at = (Revision(revision), 1);
                let after: Vec<Position> = held.iter().copied().filter(|held| *held >= at).collect();
                assert_eq!(changes.rank(at), held.len() - after.len(), "{forgotten} forgotten, at {at:?}");
                assert!(changes.iter_from(at).map(position).eq(after), "{forgotten} forgotten, at {at:?}");
                assert_eq!(changes.get_mut(at).map(|item| position(item)), held.contains(&at).then_some(at));
            }
            assert_eq!(changes.pop_first().map(|item| position(&item)), held.first().copied());
        }
        // And again, in a first chunk that was begun before.
        (500..700).for_each(|revision| changes.push(change((Revision(revision), 0))));
        (0..50).for_each(|_| drop(changes.pop_first()));
        (700..900).for_each(|revision| changes.push(change((Revision(revision), 0))));
        for revision in 549..902 {
            let expected: Vec<u64> = (revision.max(550)..900).collect();
            let found = changes.iter_from((Revision(revision), 0)).map(|item| position(item).0.0);
            assert!(found.eq(expected.iter().copied()), "from {revision}");
            assert_eq!(changes.len() - changes.rank((Revision(revision), 0)), expected.len());
        }
    }
}
