//! The two ways a key changes, with everything that hangs on it: versions, leases, digest, events.
//!
//! Nothing here decides anything; whoever calls has checked that the change may be made (`txn`,
//! `apply`). All changes of one command share a [`Revising`], which gives each its position.

use tidelock_model::{Event, Key, KeyValue, PutLease, PutOp, PutValue, Record, RecordMeta, Revision};

use crate::State;

/// A revision in the making: consumed only if something changes.
pub(crate) struct Revising<'a> {
    revision: Revision,
    next_sub: u32,
    has_deleted: bool,
    events: &'a mut Vec<Event>,
}

impl<'a> Revising<'a> {
    /// Changes to `state` at its next revision.
    pub(crate) fn new(state: &State, events: &'a mut Vec<Event>) -> Revising<'a> {
        Revising { revision: state.revision.next(), next_sub: 0, has_deleted: false, events }
    }

    /// The revision that changes get.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    /// Makes the revision the store's, if anything changed.
    pub(crate) fn finish(self, state: &mut State) {
        if self.next_sub > 0 || tidelock_model::planted!(NoChangeTakesARevision) {
            state.revision = self.revision;
        }
    }

    /// Goes on at the next revision, if anything changed at this one: for what one command does in turn.
    pub(crate) fn step(&mut self, state: &mut State) {
        if self.has_changes() {
            state.revision = self.revision;
            (self.revision, self.next_sub, self.has_deleted) = (self.revision.next(), 0, false);
        }
    }

    /// Whether anything changed at this revision.
    pub(crate) fn has_changes(&self) -> bool {
        self.next_sub > 0
    }

    fn take_sub(&mut self) -> u32 {
        let sub = self.next_sub;
        self.next_sub += 1;
        sub
    }
}

impl State {
    /// Sets a key; returns the version replaced.
    pub(crate) fn put_key(&mut self, revising: &mut Revising<'_>, put: PutOp) -> Option<KeyValue> {
        let (revision, sub) = (revising.revision, revising.take_sub());
        let (item, old) = self.keyspace.put(put.key, |old| {
            let old_meta = old.map(Record::meta);
            let meta = RecordMeta {
                created: old_meta.map_or(revision, |meta| meta.created),
                modified: revision,
                version: old_meta.map_or(1, |meta| meta.version + 1),
                lease: match put.lease {
                    PutLease::Set(lease) => lease,
                    PutLease::Keep => old_meta.map_or_else(Default::default, |meta| meta.lease),
                },
                sub,
            };
            match &put.value {
                PutValue::Set(value) => Record::new(meta, value),
                PutValue::Keep => Record::new(meta, old.map_or(&[], Record::value)),
            }
        });
        let old = old.map(|record| KeyValue { key: item.key.clone(), record });
        let lease = item.record.meta().lease;
        let old_lease = old.as_ref().map_or_else(Default::default, |old| old.record.meta().lease);
        if old_lease != lease {
            if !tidelock_model::planted!(MovedKeyStaysWithOldLease) {
                self.leases.detach(old_lease, &item.key);
            }
            self.leases.attach(lease, &item.key);
        }
        if let Some(old) = &old {
            self.live_sum.subtract_key(old);
        }
        self.live_sum.add_key(&item);
        self.tell(revising, item, old.as_ref());
        old
    }

    /// Deletes a key; returns what it was, or nothing if it did not exist.
    pub(crate) fn delete_key(&mut self, revising: &mut Revising<'_>, key: &Key) -> Option<KeyValue> {
        let (old, tombstone) = self.keyspace.delete(key, (revising.revision, revising.next_sub))?;
        revising.take_sub();
        revising.has_deleted = true;
        self.leases.detach(old.record.meta().lease, key);
        self.live_sum.subtract_key(&old);
        self.tell(revising, KeyValue { key: old.key.clone(), record: tombstone }, Some(&old));
        Some(old)
    }

    fn tell(&self, revising: &mut Revising<'_>, item: KeyValue, replaced: Option<&KeyValue>) {
        let previous = match replaced {
            Some(replaced) if replaced.record.meta().modified != revising.revision => Some(replaced.record.clone()),
            // Changed before in this very revision, or deleted: what watchers call previous is older than that.
            None if !revising.has_deleted => None,
            _ => self.keyspace.before_revision_of(&item),
        };
        revising.events.push(Event { key: item.key, record: item.record, previous });
    }
}
