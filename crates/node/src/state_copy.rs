//! A copy of everything at one revision, while the store goes on changing: what a backup is made of.
//!
//! Sweeping is held back at the compacted revision for as long as the copy lives, and the lock is held for
//! a page at a time. Versions older than the compacted revision are found by key, but wanted in the order
//! they came about: handles to them (32 bytes each, values are shared with the store) are gathered first,
//! sorted in runs and merged. Changes since are in order already and are read as they are wanted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidelock_coordinator::{CopyError, CopyHead, StateCopy};
use tidelock_model::{Key, KeyValue, Revision};
use tidelock_state::{ChangePosition, State};

use crate::shared::{Pin, Shared};

/// Versions looked at under one hold of the lock: writers wait meanwhile.
const PAGE_ITEMS: usize = 1_000;
/// Handles sorted at a time; 2 MiB of them.
const RUN_ITEMS: usize = 64 * 1024;

/// A copy under way.
pub(crate) struct NodeCopy {
    shared: Arc<Shared>,
    /// States that were replaced as a whole before it began.
    installs: u64,
    head: CopyHead,
    stage: Stage,
    /// Keeps what is copied from being swept.
    _pin: Pin,
}

enum Stage {
    /// Nothing was read yet.
    Begun,
    /// Versions older than the compacted revision are given out.
    Unchanged(Runs),
    /// Changes since are given out; `None`: that was all.
    Changes(Option<ChangePosition>),
}

impl NodeCopy {
    /// Begins a copy of the state as it is now.
    pub(crate) fn begin(shared: &Arc<Shared>) -> Result<NodeCopy, CopyError> {
        let state = shared.state.read();
        if state.applied().0 == 0 {
            return Err(CopyError::NothingYet);
        }
        let head = CopyHead {
            revision: state.revision(),
            compacted: state.compacted(),
            leases: state.leases_without_session().map(|(id, lease)| (id, lease.ttl_s)).collect(),
            members: state.members().by_id.values().cloned().collect(),
            alarms: state.alarms().iter().collect(),
            auth: Arc::clone(state.auth()),
        };
        let pin = Pin::new(shared, head.compacted);
        let installs = shared.installs.load(Ordering::Relaxed);
        Ok(NodeCopy { shared: shared.clone(), installs, head, stage: Stage::Begun, _pin: pin })
    }

    /// Looks at the state the copy is of, if it is still there.
    fn look<T>(&self, look: impl FnOnce(&State) -> Result<T, tidelock_model::Refusal>) -> Result<T, CopyError> {
        if self.shared.is_stopped() {
            return Err(CopyError::Stopping);
        }
        let state = self.shared.state.read();
        if self.shared.installs.load(Ordering::Relaxed) != self.installs {
            return Err(CopyError::Replaced);
        }
        // Held back, nothing it needs is swept but with the whole state.
        look(&state).map_err(|_| CopyError::Replaced)
    }

    fn gather_unchanged(&self) -> Result<Runs, CopyError> {
        let floor = self.head.compacted;
        let mut runs = Runs::default();
        if floor == Revision(0) {
            return Ok(runs);
        }
        let mut after: Option<Key> = None;
        loop {
            let page = self.look(|state| state.unchanged_page(floor, after.as_ref(), PAGE_ITEMS))?;
            runs.add(page.items);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let mut from = Some((floor, 0));
        while let Some(position) = from {
            let page = self.look(|state| state.unchanged_gone_page(floor, position, PAGE_ITEMS))?;
            runs.add(page.items);
            from = page.next;
        }
        runs.finish();
        Ok(runs)
    }
}

impl StateCopy for NodeCopy {
    fn head(&self) -> &CopyHead {
        &self.head
    }

    fn next_page(&mut self) -> Result<Vec<KeyValue>, CopyError> {
        loop {
            match &mut self.stage {
                Stage::Begun => self.stage = Stage::Unchanged(self.gather_unchanged()?),
                Stage::Unchanged(runs) => {
                    let items = runs.take(PAGE_ITEMS);
                    if !items.is_empty() {
                        return Ok(items);
                    }
                    self.stage = Stage::Changes(Some((self.head.compacted, 0)));
                }
                Stage::Changes(None) => return Ok(Vec::new()),
                Stage::Changes(Some(from)) => {
                    let from = *from;
                    let page = self.look(|state| state.changes_page(from, self.head.revision, PAGE_ITEMS))?;
                    self.stage = Stage::Changes(page.next);
                    if !page.items.is_empty() {
                        return Ok(page.items);
                    }
                }
            }
        }
    }
}

/// Versions sorted by position, a run at a time, and given out in order of all.
#[derive(Default)]
struct Runs {
    unsorted: Vec<KeyValue>,
    sorted: Vec<std::vec::IntoIter<KeyValue>>,
    /// Each run's next position.
    next: BinaryHeap<Reverse<(ChangePosition, usize)>>,
    /// The last one given out: one may have been added twice.
    last: Option<ChangePosition>,
}

impl Runs {
    fn add(&mut self, items: Vec<KeyValue>) {
        self.unsorted.extend(items);
        if self.unsorted.len() >= RUN_ITEMS {
            self.finish();
        }
    }

    fn finish(&mut self) {
        let mut run = std::mem::take(&mut self.unsorted);
        run.sort_by_cached_key(|item| item.record.position());
        self.sorted.push(run.into_iter());
        self.note_next(self.sorted.len() - 1);
    }

    fn note_next(&mut self, run: usize) {
        match self.sorted[run].as_slice().first() {
            Some(item) => self.next.push(Reverse((item.record.position(), run))),
            // Its memory goes now, not with the last run's.
            None => self.sorted[run] = Vec::new().into_iter(),
        }
    }

    fn take(&mut self, count: usize) -> Vec<KeyValue> {
        let mut items = Vec::new();
        while items.len() < count
            && let Some(Reverse((position, run))) = self.next.pop()
        {
            let item = self.sorted[run].next();
            if self.last.replace(position) != Some(position) {
                items.extend(item);
            }
            self.note_next(run);
        }
        items
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_model::{LeaseId, Record, RecordMeta, Space};

    /// A backup out of order is refused by the very file format; one that lost versions would be worse.
    #[test]
    fn runs_give_everything_out_in_order_whatever_order_it_came_in() {
        let item = |number: u64| {
            let revision = Revision(number);
            let meta = RecordMeta { created: revision, modified: revision, version: 1, lease: LeaseId::NONE, sub: 0 };
            KeyValue { key: Key::new(Space::User, &number.to_le_bytes()), record: Record::new(meta, b"v") }
        };
        let count = RUN_ITEMS as u64 * 2 + 777;
        let mut runs = Runs::default();
        // A multiplier without a factor in common with the count goes through all numbers once.
        let order: Vec<u64> = (0..count).map(|at| at * 7_919 % count).collect();
        order.chunks(PAGE_ITEMS).for_each(|page| runs.add(page.iter().map(|number| item(*number)).collect()));
        runs.finish();
        let mut taken = Vec::new();
        loop {
            let page = runs.take(PAGE_ITEMS);
            if page.is_empty() {
                break;
            }
            taken.extend(page.iter().map(|item| item.record.meta().modified.0));
        }
        assert_eq!(taken, (0..count).collect::<Vec<_>>());
    }
}
