//! The multi-version index: which versions of which keys are held, and how they are found.
//!
//! Each version's record is shared between:
//! - `live`: the latest version of every key that exists, by key;
//! - `history`: every change, by position, for watchers and for compaction;
//! - `replaced`: what each change replaced, in the same order. From a version to the one before it is one step;
//! - `gone`: the deletions, by key: where the versions begin that a key had before them. Only of what is read in the
//!   past ([`is_read_in_past`]): a search in a tree that is large is most of what a deletion costs.
//!
//! ```text
//! put a=1 @2, put b=1 @3, put a=2 @4, delete b @5        live      a@4
//!                                                        history   a@2  b@3  a@4  b@5
//!                                                        replaced  a@4 -> a@2   b@5 -> b@3
//!                                                        gone      b@5
//! ```
//!
//! Reading now takes `live` alone. Reading at revision R begins with `live`, or the first deletion after R, and goes
//! back from there: as far as the key changed since, by long steps if that was often.
//!
//! Invariants: a version is in exactly one of `live` and `replaced`; whatever is visible at a revision not yet swept is
//! held, and so is every change since; `data_bytes` is the sum over `live`, `replaced` and the deletions in `history`.
//! Whether a revision may be read is for the callers to check against `compacted`; presence here
//! means nothing, since sweeping runs behind compaction.

mod changes;
mod gone;
mod in_order;
mod replaced;
mod versions;

use std::cmp::Ordering;
use std::iter::Peekable;
use std::marker::PhantomData;

use tidelock_model::{Key, KeyRange, KeyValue, Record, Revision, Space};

use self::changes::Changes;
use self::gone::{Deletions, Gone};
use self::replaced::Replaced;
use self::versions::HeldVersions;
use tidelock_tree::{Iter, NODE_MAX, Order, Tree};

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

pub(crate) struct Keyspace {
    live: Tree<ByKey<KeyValue>>,
    gone: Gone,
    replaced: Replaced,
    history: Changes,
    /// How many deletions are in `history`.
    deletions: usize,
    /// Revision of the newest version held: reading at or after it needs `live` alone.
    changed: Revision,
    /// Up to where sweeping has looked at the changes of the floor's own revision.
    floor_swept: Position,
    data_bytes: u64,
}

impl Keyspace {
    pub(crate) fn new() -> Keyspace {
        Keyspace {
            live: Tree::new(),
            gone: Gone::new(),
            replaced: Replaced::new(),
            history: Changes::new(),
            deletions: 0,
            changed: Revision(0),
            floor_swept: (Revision(0), 0),
            data_bytes: 0,
        }
    }

    pub(crate) fn live_len(&self) -> usize {
        self.live.len()
    }

    /// Whether any deletion is held.
    pub(crate) fn has_deletions(&self) -> bool {
        self.deletions > 0
    }

    pub(crate) fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Below this revision reads could miss versions that were swept already.
    pub(crate) fn swept(&self) -> Revision {
        self.replaced.swept
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

    /// The same without so many of the first, over which nobody has to walk.
    pub(crate) fn live_range_after(&self, range: &KeyRange, skip: usize) -> impl Iterator<Item = &KeyValue> {
        let start = self.live.rank(&range.start);
        let count = self.live.rank(&range.end).saturating_sub(start).saturating_sub(skip);
        let first = self.live.nth(start.saturating_add(skip));
        first.into_iter().flat_map(|first| self.live.iter_from(&first.key)).take(count)
    }

    /// The first key of `range` that exists now and is not before what is looked for, by halving: `is_before` holds of
    /// the first ones and of none behind them.
    pub(crate) fn live_partition(&self, range: &KeyRange, is_before: impl Fn(&KeyValue) -> bool) -> Option<&KeyValue> {
        let (mut low, end) = (self.live.rank(&range.start), self.live.rank(&range.end));
        let mut high = end;
        while low < high {
            let middle = low + (high - low) / 2;
            if self.live.nth(middle).is_some_and(&is_before) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        self.live.nth(low).filter(|_| low < end)
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
        self.add_change(item.clone());
        if let Some(replaced) = &replaced {
            self.replaced.push(&item.record, replaced.clone());
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
        self.replaced.push(&tombstone, deleted.record.clone());
        if is_read_in_past(&deleted.key) {
            self.gone.push(&deleted.key, tombstone.clone());
        }
        self.add_change(item);
        Some((deleted, tombstone))
    }

    /// Keys that exist now from `start` on, in order.
    pub(crate) fn live_from(&self, start: &Key) -> Iter<'_, ByKey<KeyValue>> {
        self.live.iter_from(start)
    }

    /// All changes at revision `from` and after, in order.
    pub(crate) fn changes_from(&self, from: Revision) -> impl Iterator<Item = &KeyValue> + Clone {
        self.history.iter_from((from, 0))
    }

    /// Walks the keys of `range` that have any version, telling which is visible at `at`.
    pub(crate) fn scan<'a>(&'a self, range: &'a KeyRange, at: Revision) -> Scan<'a> {
        let is_past = at < self.changed;
        let gone = is_past.then(|| self.gone.iter_from(&range.start).peekable());
        let before = if is_past { (at.next(), 0) } else { POSITION_END };
        Scan { keyspace: self, live: self.live.iter_from(&range.start).peekable(), gone, end: &range.end, before }
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
                self.replaced.swept = self.replaced.swept.max(floor);
                let Some(change) = self.history.pop_first() else { return false };
                self.forget_replaced_by(&change, floor, change.record.is_tombstone());
                continue;
            }
            let looked_at = self.floor_swept.max((floor, 0));
            let at_floor = |change: &&KeyValue| change.record.meta().modified == floor;
            let Some(change) = self.history.iter_from(looked_at).next().filter(at_floor).cloned() else { return false };
            self.replaced.swept = self.replaced.swept.max(floor);
            self.forget_replaced_by(&change, floor, false);
            let (revision, sub) = change.record.position();
            self.floor_swept = (revision, sub.saturating_add(1));
        }
        true
    }

    /// Forgets what `change` replaced, unless that is of the floor's own revision: then a watch from the
    /// floor still tells it. With `and_itself` the change is forgotten, too.
    fn forget_replaced_by(&mut self, change: &KeyValue, floor: Revision, and_itself: bool) {
        let is_due = |replaced: &Record| replaced.meta().modified < floor;
        let key_bytes = change.key.as_stored().len();
        let replaced = self.replaced.forget(&change.record, is_due);
        let mut bytes = replaced.map_or(0, |replaced| key_bytes + replaced.value().len());
        if and_itself {
            self.deletions -= 1;
            bytes += key_bytes;
            if is_read_in_past(&change.key) {
                self.gone.forget(&change.key, change.record.position());
            }
        }
        self.data_bytes -= bytes as u64;
    }

    /// How many keys there are of which deletions are found by key.
    #[cfg(test)]
    pub(crate) fn gone_len(&self) -> usize {
        self.gone.len()
    }

    /// How many superseded versions and deletions and how many changes are held.
    #[cfg(test)]
    pub(crate) fn held(&self) -> (usize, usize) {
        (self.replaced.len() + self.deletions, self.history.len())
    }

    /// Adds the latest version of a key, after all keys before it: for loading.
    pub(crate) fn load_live(&mut self, item: KeyValue) {
        self.changed = self.changed.max(item.record.meta().modified);
        self.data_bytes += held_bytes(&item);
        self.live.push_last(item);
    }

    /// Adds what `change` replaced, after all that changes before it replaced: for loading.
    pub(crate) fn load_replaced(&mut self, change: &Record, replaced: KeyValue) {
        self.data_bytes += held_bytes(&replaced);
        self.replaced.push(change, replaced.record);
    }

    /// Adds the latest version of a key, wherever it belongs: for loading.
    pub(crate) fn load_live_between(&mut self, item: KeyValue) {
        self.changed = self.changed.max(item.record.meta().modified);
        self.data_bytes += held_bytes(&item);
        let key = item.key.clone();
        self.live.insert(&key, item);
    }

    /// Adds a deletion, after all of its key before it: for loading.
    pub(crate) fn load_deletion(&mut self, item: KeyValue) {
        self.changed = self.changed.max(item.record.meta().modified);
        self.data_bytes += held_bytes(&item);
        if is_read_in_past(&item.key) {
            self.gone.push(&item.key, item.record);
        }
    }

    /// Adds a change, after all changes before it.
    pub(crate) fn add_change(&mut self, item: KeyValue) {
        self.deletions += usize::from(item.record.is_tombstone());
        self.history.push(item);
    }

    /// Says that nothing before `floor` was loaded.
    pub(crate) fn loaded_from(&mut self, floor: Revision) {
        self.replaced.swept = floor;
    }
}

/// Whether versions of a key that is gone can be asked for by their key. Of native primitives they are told to watchers
/// and kept in snapshots, which go along `history`.
fn is_read_in_past(key: &Key) -> bool {
    key.space_byte() != Some(Space::Lock as u8)
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

impl Version<'_> {
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
    keyspace: &'a Keyspace,
    live: Peekable<Iter<'a, ByKey<KeyValue>>>,
    /// Absent when `live` alone tells everything.
    gone: Option<Peekable<Iter<'a, ByKey<Deletions>>>>,
    end: &'a Key,
    /// What is visible comes before this.
    before: Position,
}

impl<'a> Iterator for Scan<'a> {
    type Item = Seen<'a>;

    fn next(&mut self) -> Option<Seen<'a>> {
        let end = self.end;
        let live = self.live.peek().copied().filter(|item| item.key < *end);
        let gone = self.gone.as_mut().and_then(|gone| gone.peek().copied()).filter(|item| item.key < *end);
        let (key, order) = match (live, gone) {
            (None, None) => return None,
            (Some(live), None) => (&live.key, Ordering::Less),
            (None, Some(gone)) => (&gone.key, Ordering::Greater),
            (Some(live), Some(gone)) => match live.key.cmp(&gone.key) {
                Ordering::Greater => (&gone.key, Ordering::Greater),
                order => (&live.key, order),
            },
        };
        let (live, gone) = (live.filter(|_| order.is_le()), gone.filter(|_| order.is_ge()));
        if live.is_some() {
            self.live.next();
        }
        if gone.is_some() {
            self.gone.as_mut().and_then(Iterator::next);
        }
        let held = HeldVersions { live: live.map(|live| &live.record), gone };
        let record = self.keyspace.last_before(held, self.before).filter(|record| !record.is_tombstone());
        Some(Seen { key, visible: record.map(|record| Version { key, record }) })
    }
}
