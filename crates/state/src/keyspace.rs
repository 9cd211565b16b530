//! The multi-version index: which versions of which keys are held, and how they are found.
//!
//! Three trees, each version's record shared between them:
//! - `live`: the latest version of every key that exists, by key;
//! - `past`: superseded versions and deletions, by key, those of a key in order;
//! - `history`: every change, by position, for watchers and for compaction.
//!
//! ```text
//! put a=1 @2, put b=1 @3, put a=2 @4, delete b @5        live     a@4
//!                                                        past     a: @2   b: @3 @5(deleted)
//!                                                        history  a@2  b@3  a@4  b@5
//! ```
//!
//! Reading now takes `live` alone. Reading at revision R looks at `live` first and otherwise seeks the
//! greatest position up to R in `past`: a key with a million versions costs as much as one with two.
//!
//! Invariants: a version is in exactly one of `live` and `past`; whatever is visible at a revision not
//! yet swept is held, and so is every change since; `data_bytes` is the sum over `live` and `past`.
//! Whether a revision may be read is for the callers to check against `compacted`; presence here
//! means nothing, since sweeping runs behind compaction.

mod in_order;
mod past;

use std::cmp::Ordering;
use std::iter::Peekable;
use std::marker::PhantomData;

use tidelock_model::{Key, KeyRange, KeyValue, Record, Revision};

use self::past::Past;
use crate::tree::{Iter, NODE_MAX, Order, Tree};

pub(crate) use self::past::Versions;

/// Revision and place within it: orders all changes.
pub(crate) type Position = (Revision, u32);

/// After every position there is.
pub(crate) const POSITION_END: Position = (Revision(u64::MAX), u32::MAX);

/// What is sorted by its key.
pub(crate) trait Keyed {
    /// Most items in a leaf.
    const LEAF_MAX: usize = NODE_MAX;
    fn key(&self) -> &Key;
}

impl Keyed for KeyValue {
    fn key(&self) -> &Key {
        &self.key
    }
}

pub(crate) struct ByKey<T>(PhantomData<T>);
impl<T: Keyed> Order for ByKey<T> {
    const LEAF_MAX: usize = T::LEAF_MAX;
    type Item = T;
    type Pivot = Key;
    type Probe<'a> = &'a Key;
    fn probe(item: &T) -> &Key {
        item.key()
    }
    fn pivot(item: &T) -> Key {
        item.key().clone()
    }
    fn compare(item: &T, probe: &Key) -> Ordering {
        item.key().cmp(probe)
    }
    fn compare_pivot(pivot: &Key, probe: &Key) -> Ordering {
        pivot.cmp(probe)
    }

    const SHORT_BYTES: usize = Key::INLINE_BYTES;
    fn probe_bytes<'a>(probe: Self::Probe<'a>) -> &'a [u8] {
        probe.as_stored()
    }
    fn item_bytes(item: &T) -> &[u8] {
        item.key().as_stored()
    }
    fn pivot_bytes(pivot: &Key) -> &[u8] {
        pivot.as_stored()
    }
}

pub(crate) struct ByPosition;
impl Order for ByPosition {
    /// Other leaves than the keys' own: compaction frees these and keeps those.
    const LEAF_MAX: usize = 128;
    type Item = KeyValue;
    type Pivot = Position;
    type Probe<'a> = Position;
    fn probe(item: &KeyValue) -> Position {
        item.record.position()
    }
    fn pivot(item: &KeyValue) -> Position {
        item.record.position()
    }
    fn compare(item: &KeyValue, probe: Position) -> Ordering {
        item.record.position().cmp(&probe)
    }
    fn compare_pivot(pivot: &Position, probe: Position) -> Ordering {
        pivot.cmp(&probe)
    }
}

pub(crate) struct Keyspace {
    live: Tree<ByKey<KeyValue>>,
    past: Past,
    history: Tree<ByPosition>,
    /// Revision of the newest version held: reading at or after it needs `live` alone.
    changed: Revision,
    /// What may have been removed by sweeping: versions superseded before this revision.
    swept: Revision,
    /// Up to where sweeping has looked at the changes of the floor's own revision.
    floor_swept: Position,
    data_bytes: u64,
}

impl Keyspace {
    pub(crate) fn new() -> Keyspace {
        Keyspace {
            live: Tree::new(),
            past: Past::new(),
            history: Tree::new(),
            changed: Revision(0),
            swept: Revision(0),
            floor_swept: (Revision(0), 0),
            data_bytes: 0,
        }
    }

    pub(crate) fn live_len(&self) -> usize {
        self.live.len()
    }

    pub(crate) fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Below this revision reads could miss versions that were swept already.
    pub(crate) fn swept(&self) -> Revision {
        self.swept
    }

    /// The version of `key` that exists now.
    pub(crate) fn get(&self, key: &Key) -> Option<&KeyValue> {
        self.live.get(key)
    }

    /// The last key before `bound` that exists now.
    pub(crate) fn live_before(&self, bound: &Key) -> Option<&KeyValue> {
        self.live.predecessor(bound)
    }

    /// The keys of `range` that exist now, in order.
    pub(crate) fn live_range(&self, range: &KeyRange) -> impl Iterator<Item = &KeyValue> {
        // Counting first is cheaper than comparing every key with the end.
        let count = self.live.count_range(&range.start, &range.end);
        self.live.iter_from(&range.start).take(count)
    }

    /// Gives `key` the version that `make` makes of the one before, which becomes past. Returns both.
    pub(crate) fn put(&mut self, key: Key, make: impl FnOnce(Option<&Record>) -> Record) -> (KeyValue, Option<Record>) {
        let (item, replaced) = match self.live.get_mut(&key) {
            Some(live) => {
                let record = make(Some(&live.record));
                let replaced = std::mem::replace(&mut live.record, record);
                (live.clone(), Some(replaced))
            }
            None => {
                let item = KeyValue { key, record: make(None) };
                self.live.insert(&item.key, item.clone());
                (item, None)
            }
        };
        self.changed = item.record.meta().modified;
        self.data_bytes += held_bytes(&item);
        self.history.push_last(item.clone());
        if let Some(replaced) = &replaced {
            // All versions of a key share one copy of it.
            self.past.push(&item.key, [replaced.clone()]);
        }
        (item, replaced)
    }

    /// Deletes `key` if it exists; returns what it was and its tombstone.
    pub(crate) fn delete(&mut self, key: &Key, at: Position) -> Option<(KeyValue, Record)> {
        let deleted = self.live.remove(key)?;
        self.changed = at.0;
        let tombstone = Record::tombstone(at.0, at.1);
        let item = KeyValue { key: deleted.key.clone(), record: tombstone.clone() };
        self.data_bytes += held_bytes(&item);
        self.past.push(&deleted.key, [deleted.record.clone(), tombstone.clone()]);
        self.history.push_last(item);
        Some((deleted, tombstone))
    }

    /// The version of `key` visible at revision `at`.
    pub(crate) fn visible<'a>(&'a self, key: &'a Key, at: Revision) -> Option<Version<'a>> {
        match self.live.get(key) {
            Some(live) if live.record.meta().modified <= at => Some(Version::of(live)),
            _ => {
                let record = self.past_before(key, (Revision(at.0.saturating_add(1)), 0))?;
                Some(Version { key, record })
            }
        }
    }

    /// The version of `key` in `past` that the change at `position` or later replaced, unless that
    /// was a deletion.
    pub(crate) fn past_before(&self, key: &Key, position: Position) -> Option<&Record> {
        self.held_before(key, position).filter(|record| !record.is_tombstone())
    }

    /// The version of `key` in `past` before `position`, deletions included.
    pub(crate) fn held_before(&self, key: &Key, position: Position) -> Option<&Record> {
        self.past.of(key)?.last_before(position)
    }

    /// Superseded versions of a key.
    pub(crate) fn past_of(&self, key: &Key) -> Option<&Versions> {
        self.past.of(key)
    }

    /// Superseded versions of keys from `start` on, in order of keys.
    pub(crate) fn past_from(&self, start: &Key) -> Iter<'_, ByKey<Versions>> {
        self.past.iter_from(start)
    }

    /// Keys that exist now from `start` on, in order.
    pub(crate) fn live_from(&self, start: &Key) -> Iter<'_, ByKey<KeyValue>> {
        self.live.iter_from(start)
    }

    /// All changes at revision `from` and after, in order.
    pub(crate) fn changes_from(&self, from: Revision) -> Iter<'_, ByPosition> {
        self.history.iter_from((from, 0))
    }

    /// Walks the keys of `range` that have any version, telling which is visible at `at`.
    pub(crate) fn scan<'a>(&'a self, range: &'a KeyRange, at: Revision) -> Scan<'a> {
        let past = (at < self.changed).then(|| self.past.iter_from(&range.start).peekable());
        Scan { live: self.live.iter_from(&range.start).peekable(), past, end: &range.end, at }
    }

    /// How many keys of `range` are visible at `at`.
    pub(crate) fn count(&self, range: &KeyRange, at: Revision) -> usize {
        let now = self.live.count_range(&range.start, &range.end);
        if at >= self.changed {
            return now;
        }
        let changes = self.history.len() - self.history.rank((at.next(), 0));
        if changes > now {
            return self.scan(range, at).filter(|seen| seen.visible.is_some()).count();
        }
        // Few changes since: count now, and undo each key's changes at its first one after `at`.
        let (mut created, mut deleted) = (0, 0);
        for change in self.changes_from(at.next()).filter(|change| range.contains(&change.key)) {
            let before = self.held_before(&change.key, change.record.position());
            if before.is_some_and(|before| before.meta().modified > at) {
                continue;
            }
            let was = before.is_some_and(|before| !before.is_tombstone());
            let is = self.live.get(&change.key).is_some();
            created += usize::from(is && !was);
            deleted += usize::from(was && !is);
        }
        now + deleted - created
    }

    /// Removes what nobody may read once everything before `floor` is forgotten, in at most
    /// `max_steps` steps. Says whether there is more to do.
    ///
    /// Each change up to the floor makes the version it replaced unreachable; a deletion before the
    /// floor is itself as good as nothing. Changes at the floor stay, so that a watch from the floor
    /// misses nothing (H6), and with them the version that is visible there.
    pub(crate) fn sweep(&mut self, max_steps: usize, floor: Revision) -> bool {
        for _ in 0..max_steps {
            let floor = if tidelock_model::planted!(CompactionDropsItsOwnRevision) { floor.next() } else { floor };
            let is_due = |first: &&KeyValue| first.record.meta().modified < floor;
            if self.history.first().filter(is_due).is_some() {
                self.swept = self.swept.max(floor);
                let Some(change) = self.history.pop_first() else { return false };
                self.forget_replaced_by(&change, floor, change.record.is_tombstone());
                continue;
            }
            let looked_at = self.floor_swept.max((floor, 0));
            let at_floor = |change: &&KeyValue| change.record.meta().modified == floor;
            let Some(change) = self.history.iter_from(looked_at).next().filter(at_floor).cloned() else { return false };
            self.swept = self.swept.max(floor);
            self.forget_replaced_by(&change, floor, false);
            let (revision, sub) = change.record.position();
            self.floor_swept = (revision, sub.saturating_add(1));
        }
        true
    }

    /// Forgets what `change` replaced, unless that is of the floor's own revision: then a watch from the
    /// floor still tells it. With `and_itself` the change is forgotten, too.
    fn forget_replaced_by(&mut self, change: &KeyValue, floor: Revision, and_itself: bool) {
        // What came about replaced nothing; if the key was deleted before that, it was forgotten before this.
        if change.record.meta().version == 1 && !change.record.is_tombstone() {
            return;
        }
        let is_due = |replaced: &Record| replaced.meta().modified < floor;
        let (bytes, count) = self.past.forget(&change.key, change.record.position(), is_due, and_itself);
        self.data_bytes -= (bytes + count * change.key.as_stored().len()) as u64;
    }

    /// How many superseded versions and how many changes are held.
    #[cfg(test)]
    pub(crate) fn held(&self) -> (usize, usize) {
        (self.past.len(), self.history.len())
    }

    /// Adds the latest version of a key, after all keys before it: for loading.
    pub(crate) fn load_live(&mut self, item: KeyValue) {
        self.changed = self.changed.max(item.record.meta().modified);
        self.data_bytes += held_bytes(&item);
        self.live.push_last(item);
    }

    /// Adds a superseded version, after all versions before it: for loading.
    pub(crate) fn load_past(&mut self, item: KeyValue) {
        self.changed = self.changed.max(item.record.meta().modified);
        self.data_bytes += held_bytes(&item);
        self.past.push_last(item.key, item.record);
    }

    /// Adds a change, after all changes before it: for loading.
    pub(crate) fn load_change(&mut self, item: KeyValue) {
        self.history.push_last(item);
    }

    /// Says that nothing before `floor` was loaded.
    pub(crate) fn loaded_from(&mut self, floor: Revision) {
        self.swept = floor;
    }
}

fn held_bytes(item: &KeyValue) -> u64 {
    (item.key.as_stored().len() + item.record.value().len()) as u64
}

/// A version of a key, where it is held.
#[derive(Clone, Copy)]
pub(crate) struct Version<'a> {
    pub(crate) key: &'a Key,
    pub(crate) record: &'a Record,
}

impl<'a> Version<'a> {
    fn of(item: &'a KeyValue) -> Version<'a> {
        Version { key: &item.key, record: &item.record }
    }

    pub(crate) fn to_item(self) -> KeyValue {
        KeyValue { key: self.key.clone(), record: self.record.clone() }
    }
}

/// One key met by a [`Scan`].
pub(crate) struct Seen<'a> {
    pub(crate) key: &'a Key,
    /// The version asked for, if the key existed then.
    pub(crate) visible: Option<Version<'a>>,
}

/// A walk over the keys of a range as of one revision.
pub(crate) struct Scan<'a> {
    live: Peekable<Iter<'a, ByKey<KeyValue>>>,
    /// Absent when `live` alone tells everything.
    past: Option<Peekable<Iter<'a, ByKey<Versions>>>>,
    end: &'a Key,
    at: Revision,
}

impl<'a> Iterator for Scan<'a> {
    type Item = Seen<'a>;

    fn next(&mut self) -> Option<Seen<'a>> {
        let (end, at) = (self.end, self.at);
        let live = self.live.peek().copied().filter(|item| item.key < *end);
        let past = self.past.as_mut().and_then(|past| past.peek().copied()).filter(|item| item.key < *end);
        let live_visible = live.filter(|live| live.record.meta().modified <= at).map(Version::of);
        let order = match (live, past) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(live), Some(past)) => live.key.cmp(&past.key),
        };
        let live = live.filter(|_| order.is_le());
        if live.is_some() {
            self.live.next();
        }
        let Some(past) = past.filter(|_| order.is_ge()) else {
            return live.map(|live| Seen { key: &live.key, visible: live_visible });
        };
        self.past.as_mut().and_then(Iterator::next);
        let was = || past.last_before((at.next(), 0)).filter(|record| !record.is_tombstone());
        let visible = live.and(live_visible).or_else(|| Some(Version { key: &past.key, record: was()? }));
        Some(Seen { key: &past.key, visible })
    }
}
