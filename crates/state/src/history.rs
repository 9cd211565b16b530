//! What changed since: for watchers that catch up, and forgetting it again.
//!
//! Pages never split a revision (W4) and say up to where they cover, so that whoever reads them in a
//! row misses nothing and sees nothing twice (W2, W3). What was compacted is refused, never skipped
//! (W8), and judged by the compacted revision alone: sweeping lags behind and shows nowhere.

use tidelock_model::{Event, KeyRange, KeyValue, Refusal, Revision};

use crate::State;

/// Changes in order, whole revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The changed keys with what they became.
    pub items: Vec<KeyValue>,
    /// Everything before this revision was covered; go on from here.
    pub next: Revision,
}

/// Events of a range in order, whole revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsPage {
    /// The changes within the range.
    pub events: Vec<Event>,
    /// Everything before this revision was covered; go on from here. One above the store's revision
    /// when caught up.
    pub next: Revision,
}

impl State {
    /// Changes from revision `from` on: some `max` of them, and however many more its last revision has.
    pub fn changes(&self, from: Revision, max: usize) -> Result<Changes, Refusal> {
        self.check_watchable(from)?;
        let mut items = Vec::new();
        let next = self.walk_changes(from, max, |change| items.push(change.clone()));
        Ok(Changes { items, next })
    }

    /// Events within `range` from revision `from` on, found among the next `max_scanned` changes of
    /// any key. `from` may be in the future: then there are none yet and `next` stays there (W9).
    pub fn events_page(
        &self,
        range: &KeyRange,
        from: Revision,
        max_scanned: usize,
        want_previous: bool,
    ) -> Result<EventsPage, Refusal> {
        self.check_watchable(from)?;
        let mut events = Vec::new();
        let next = self.walk_changes(from, max_scanned, |change| {
            if range.contains(&change.key) {
                let previous = if want_previous { self.previous_of(change) } else { None };
                events.push(Event { key: change.key.clone(), record: change.record.clone(), previous });
            }
        });
        Ok(EventsPage { events, next })
    }

    /// Forgets what compaction made unreachable, in at most `max_steps` small steps, but nothing that
    /// reading at `keep_from` or later needs: pass the oldest revision that someone reads in pages or
    /// takes a snapshot of, or `Revision(u64::MAX)`. Says whether there is more to do.
    ///
    /// Changes no answer and no digest, so replicas may sweep when they like.
    pub fn sweep(&mut self, max_steps: usize, keep_from: Revision) -> bool {
        self.keyspace.sweep(max_steps, self.compacted.min(keep_from))
    }

    /// Sets the oldest revision that stays readable.
    pub(crate) fn compact(&mut self, revision: Revision) -> Result<(), Refusal> {
        if revision <= self.compacted {
            return Err(Refusal::Compacted { asked: revision, oldest: self.compacted });
        }
        if revision > self.revision && !tidelock_model::planted!(FutureIsCompacted) {
            return Err(Refusal::FutureRevision { asked: revision, now: self.revision });
        }
        self.compacted = revision;
        Ok(())
    }

    fn check_watchable(&self, from: Revision) -> Result<(), Refusal> {
        if from < self.compacted || (tidelock_model::planted!(CompactedRevisionUnwatchable) && from == self.compacted) {
            return Err(Refusal::Compacted { asked: from, oldest: self.compacted });
        }
        Ok(())
    }

    /// Visits changes from `from` on in order, about `max` of them; returns up to where.
    fn walk_changes<'a>(&'a self, from: Revision, max: usize, mut visit: impl FnMut(&'a KeyValue)) -> Revision {
        let mut last = None;
        for (visited, change) in self.keyspace.changes_from(from).enumerate() {
            let revision = change.record.meta().modified;
            // At least one revision is visited, or a caller with a small `max` would never advance.
            if visited >= max && last.is_some_and(|last| last != revision) {
                return revision;
            }
            visit(change);
            last = Some(revision);
        }
        from.max(self.revision.next())
    }

    /// What the key of a change was just before the change's revision, if that can still be read.
    fn previous_of(&self, change: &KeyValue) -> Option<tidelock_model::Record> {
        let modified = change.record.meta().modified;
        if modified.0.saturating_sub(1) < self.compacted.0 {
            return None;
        }
        if tidelock_model::planted!(PreviousIsTheEventItself) {
            return Some(change.record.clone());
        }
        self.keyspace.before_revision_of(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, all_of, delete, everything, put};

    fn revisions(page: &EventsPage) -> Vec<u64> {
        page.events.iter().map(|event| event.record.meta().modified.0).collect()
    }

    /// W4: a watcher must never see half a transaction, however small its pages are.
    #[test]
    fn a_page_never_splits_a_revision() {
        let mut machine = Machine::new();
        machine.done(put("a", "1"));
        machine.done(all_of(vec![put("a", "2"), put("b", "2"), put("c", "2")]));
        machine.done(put("a", "3"));
        let page = machine.state.events_page(&everything(), Revision(2), 2, false).unwrap();
        assert_eq!((revisions(&page), page.next), (vec![2, 3, 3, 3], Revision(4)));
        let page = machine.state.events_page(&everything(), Revision(4), 0, false).unwrap();
        assert_eq!((revisions(&page), page.next), (vec![4], Revision(5)));
    }

    /// H6: compaction once swallowed the deletion at the very revision a watcher resumed from.
    #[test]
    fn watching_from_the_compacted_revision_still_shows_its_deletions() {
        let mut machine = Machine::new();
        machine.done(put("a", "1"));
        machine.done(delete("a"));
        machine.compact(3);
        machine.sweep_all();
        let page = machine.state.events_page(&everything(), Revision(3), 9, true).unwrap();
        assert_eq!(revisions(&page), [3]);
        // What the key was at revision 2 is compacted: absent, not made up (W7).
        assert_eq!((page.events[0].record.is_tombstone(), &page.events[0].previous), (true, &None));
        let refusal = Refusal::Compacted { asked: Revision(2), oldest: Revision(3) };
        assert_eq!(machine.state.events_page(&everything(), Revision(2), 9, true), Err(refusal));
    }

    /// H6: a watch from a future revision must not report what happened before it.
    #[test]
    fn a_watch_from_the_future_waits_there() {
        let mut machine = Machine::new();
        machine.done(put("a", "1"));
        let page = machine.state.events_page(&everything(), Revision(9), 9, false).unwrap();
        assert_eq!((revisions(&page), page.next), (vec![], Revision(9)));
    }

    /// Compaction takes effect at once for everyone, even while the sweep is held back or behind.
    #[test]
    fn compaction_is_logical_first_and_the_sweep_catches_up() {
        let mut machine = Machine::new();
        for value in ["1", "2", "3", "4"] {
            machine.done(put("a", value));
        }
        machine.compact(4);
        let refusal = Refusal::Compacted { asked: Revision(3), oldest: Revision(4) };
        assert_eq!(machine.read(crate::testing::range_at(3)), Err(refusal));
        assert_eq!(machine.state.keyspace.held(), (3, 4));
        // Someone reads at revision 3: only what cannot be seen from there may go.
        assert!(!machine.state.sweep(9, Revision(3)));
        assert_eq!(machine.state.keyspace.held(), (2, 3));
        assert!(machine.state.sweep(0, Revision(u64::MAX)));
        assert!(!machine.state.sweep(9, Revision(u64::MAX)));
        assert_eq!(machine.state.keyspace.held(), (1, 2));
        assert_eq!(machine.pairs_at(4), [("a".to_owned(), "3".to_owned())]);
    }

    /// Deleted keys must cost nothing once their deletion is compacted, or churn fills the memory.
    #[test]
    fn a_deleted_and_compacted_key_leaves_nothing() {
        let mut machine = Machine::new();
        for round in 0..10 {
            machine.done(put("churned", &round.to_string()));
            machine.done(delete("churned"));
        }
        machine.done(put("a", "1"));
        machine.compact(machine.state.revision().0);
        machine.sweep_all();
        assert_eq!((machine.state.keyspace.held(), machine.state.keyspace.gone_len()), ((0, 1), 0));
        assert_eq!(machine.state.data_bytes(), 3);
    }

    /// H18: on a full disk operators delete, then compact at the very revision of the deletion. If that
    /// kept what was deleted, it would make no room, and nothing but a later write could change that.
    #[test]
    fn compacting_at_the_revision_of_a_deletion_forgets_what_was_deleted() {
        let mut machine = Machine::new();
        machine.done(all_of(vec![put("a", "large"), put("b", "large")]));
        machine.done(delete("a"));
        machine.done(put("b", ""));
        machine.compact(3);
        machine.sweep_all();
        // `a` itself is gone; its deletion stays for a watch from revision 3 (H6), and so does `b`,
        // which is visible there.
        assert_eq!(machine.state.keyspace.held(), (2, 2));
        let page = machine.state.events_page(&everything(), Revision(3), 9, true).unwrap();
        assert_eq!(revisions(&page), vec![3, 4]);
        let head = machine.state.begin_snapshot();
        let loaded = crate::testing::load(&head, crate::testing::pages(&machine.state, &head, 100)).unwrap();
        assert_eq!(loaded.keyspace.held(), (2, 2));
        machine.compact(4);
        machine.sweep_all();
        assert_eq!(machine.state.keyspace.held(), (0, 1));
    }
}
