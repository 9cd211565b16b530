//! Reading everything there is, as of one revision, while the state goes on changing: for backups in
//! another format than our own snapshots.
//!
//! A copy taken at revision R of a store compacted at C consists of the versions that are visible at C and
//! older than it ([`State::unchanged_page`], by key, and [`State::unchanged_gone_page`]), and of every change from C to R
//! ([`State::changes_page`], in order). Versions never change, so pages can be read one at a time as long
//! as sweeping is held back at C ([`State::sweep`]); compaction may go on.

use tidelock_model::{Key, KeyValue, Refusal, Revision};

use crate::State;
use crate::read::RangePage;

/// A change's place: its revision, and its position within that.
pub type ChangePosition = (Revision, u32);

/// Some changes in order. A revision may be cut between two pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangesPage {
    /// The changes.
    pub items: Vec<KeyValue>,
    /// Where to go on; `None`: that was all.
    pub next: Option<ChangePosition>,
}

impl State {
    /// The next versions after the key `after`, of keys that live, that are visible at `floor` and older than it, by key.
    /// Looks at no more than `max_keys` keys, so a page may be empty and not the last. Refused if sweeping was
    /// not held back at `floor`.
    pub fn unchanged_page(&self, floor: Revision, after: Option<&Key>, max_keys: usize) -> Result<RangePage, Refusal> {
        self.check_held(floor)?;
        let mut live = self.keyspace.live_from(&after.map_or_else(|| Key::from_stored(&[]), Key::successor));
        let mut items = Vec::new();
        let mut last = None;
        for item in live.by_ref().take(max_keys.max(1)) {
            items.extend(self.unchanged(item, floor));
            last = Some(&item.key);
        }
        let next = last.filter(|_| live.next().is_some()).cloned();
        Ok(RangePage { items, next })
    }

    /// The same of keys that went since, in the order they went, among the next `max` changes from `from` on. To be asked
    /// for after the others: one that went meanwhile is told twice, and none is missed.
    pub fn unchanged_gone_page(
        &self,
        floor: Revision,
        from: ChangePosition,
        max: usize,
    ) -> Result<ChangesPage, Refusal> {
        self.check_held(floor)?;
        let mut changes = self.keyspace.changes_from_position(from.max((floor, 0)));
        let deletions = changes.by_ref().take(max.max(1)).filter(|change| change.record.is_tombstone());
        let items = deletions.filter_map(|change| self.unchanged(change, floor)).collect();
        Ok(ChangesPage { items, next: changes.next().map(|change| change.record.position()) })
    }

    /// What the key of `item` was at `floor`, if that came about before.
    fn unchanged(&self, item: &KeyValue, floor: Revision) -> Option<KeyValue> {
        let visible = self.keyspace.back_before(&item.record, (floor.next(), 0))?;
        let is_older = visible.meta().modified < floor && !visible.is_tombstone();
        is_older.then(|| KeyValue { key: item.key.clone(), record: visible.clone() })
    }

    /// The next changes from `from` on, up to and including revision `up_to`: at most `max` of them.
    /// Refused if sweeping was not held back at `from`.
    pub fn changes_page(&self, from: ChangePosition, up_to: Revision, max: usize) -> Result<ChangesPage, Refusal> {
        self.check_held(from.0)?;
        let mut items = Vec::new();
        for change in self.keyspace.changes_from_position(from) {
            if change.record.meta().modified > up_to {
                break;
            }
            if items.len() >= max.max(1) {
                return Ok(ChangesPage { items, next: Some(change.record.position()) });
            }
            items.push(change.clone());
        }
        Ok(ChangesPage { items, next: None })
    }

    fn check_held(&self, floor: Revision) -> Result<(), Refusal> {
        if floor < self.keyspace.swept() {
            return Err(Refusal::Compacted { asked: floor, oldest: self.compacted });
        }
        Ok(())
    }
}
