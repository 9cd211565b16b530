//! The versions of one key: found from the newest back, told in either direction.

use std::iter;

use tidelock_model::{Key, KeyValue, Record, Revision};

use super::{Deletions, Keyspace, Position, Version};

/// Where the versions of a key begin.
#[derive(Clone, Copy)]
pub(super) struct HeldVersions<'a> {
    pub(super) live: Option<&'a Record>,
    pub(super) gone: Option<&'a Deletions>,
}

impl Keyspace {
    /// The version of `key` visible at revision `at`.
    pub(crate) fn visible<'a>(&'a self, key: &'a Key, at: Revision) -> Option<Version<'a>> {
        let record = if at >= self.changed {
            self.live.get(key).map(|live| &live.record)
        } else {
            self.visible_before(key, (at.next(), 0))
        };
        record.map(|record| Version { key, record })
    }

    /// The last version of `key` before `position`, unless that is a deletion.
    fn visible_before(&self, key: &Key, position: Position) -> Option<&Record> {
        self.held_before(key, position).filter(|record| !record.is_tombstone())
    }

    /// What the key of a change was before the change's revision, if it was anything and that is still held.
    pub(crate) fn before_revision_of(&self, change: &KeyValue) -> Option<Record> {
        let (revision, sub) = change.record.position();
        if let Some(before) = self.back_before(&change.record, (revision, 0)) {
            return Some(before.clone());
        }
        // It came about in this revision, perhaps after another change of the same revision deleted it.
        let mut earlier = self.changes_from(revision).take_while(|other| other.record.position() < (revision, sub));
        let first = earlier.find(|other| other.key == change.key)?;
        self.replaced.by(&first.record).cloned()
    }

    /// The version of `key` now, if it was alive at revision `at`; the deletion that ended it, if it was and went since.
    pub(crate) fn newest_since(&self, key: &Key, at: Revision) -> Option<&Record> {
        let live = self.live.get(key).map(|live| &live.record).filter(|live| live.meta().created <= at);
        let is_meant = |change: &&KeyValue| change.record.is_tombstone() && change.key == *key;
        live.or_else(|| self.changes_from(at.next()).find(is_meant).map(|change| &change.record))
    }

    /// The last version of `key` before `position`, deletions included.
    pub(crate) fn held_before(&self, key: &Key, position: Position) -> Option<&Record> {
        let live = self.live.get(key).map(|live| &live.record);
        let gone = || HeldVersions { live: None, gone: self.gone.of(key) };
        live.and_then(|live| self.back_before(live, position)).or_else(|| self.last_before(gone(), position))
    }

    /// The last of these versions before `position`, deletions included.
    pub(super) fn last_before<'a>(&'a self, held: HeldVersions<'a>, position: Position) -> Option<&'a Record> {
        held.live.and_then(|live| self.back_before(live, position)).or_else(|| {
            let (before, after) = held.gone?.around(position);
            after.and_then(|after| self.back_before(after, position)).or(before)
        })
    }

    /// The first version before `position` on the way back from `newest`, up to when the key came about.
    pub(crate) fn back_before<'a>(&'a self, newest: &'a Record, position: Position) -> Option<&'a Record> {
        self.steps_back(newest, position).last().filter(|last| last.position() < position)
    }

    /// From `newest` on until a version is before `position`, with long steps where there are any.
    fn steps_back<'a>(&'a self, newest: &'a Record, position: Position) -> impl Iterator<Item = &'a Record> {
        iter::successors(Some(newest), move |at| {
            if at.position() < position {
                return None;
            }
            let far = self.replaced.far_before(at).filter(|far| far.position() >= position);
            far.or_else(|| self.replaced.by(at))
        })
    }

    /// What a change replaced, if that is held.
    pub(crate) fn replaced_by(&self, change: &Record) -> Option<&Record> {
        self.replaced.by(change)
    }

    /// The versions of a key before `bound`, newest first, deletions included.
    pub(crate) fn newest_first<'a>(&'a self, key: &Key, bound: Position) -> impl Iterator<Item = &'a Record> + use<'a> {
        let held = HeldVersions { live: self.live.get(key).map(|live| &live.record), gone: self.gone.of(key) };
        iter::successors(self.last_before(held, bound), move |at| {
            self.replaced.by(at).or_else(|| held.gone?.around(at.position()).0)
        })
    }

    /// The versions back from `newest` up to when the key came about, those from `from` on, oldest first.
    pub(crate) fn oldest_first<'a>(&'a self, newest: &'a Record, from: Position) -> OldestFirst<'a> {
        let (mut later, mut next) = (Vec::new(), Vec::new());
        let mut at = Some(newest);
        while let Some(version) = at.filter(|version| version.position() >= from) {
            next.push(version);
            at = self.replaced.by(version);
            if let Some(far) = self.replaced.far_before(version).filter(|far| far.position() >= from) {
                later.extend(next.first());
                next.clear();
                at = Some(far);
            }
        }
        OldestFirst { keyspace: self, later, next }
    }
}

/// Versions that are found from the newest back, told in the other direction. Of what was stepped over it keeps where it
/// begins: what it holds in memory is a small part of a long history.
pub(crate) struct OldestFirst<'a> {
    keyspace: &'a Keyspace,
    /// Where stretches begin that come later, the last one first; each is told back to what was told before it.
    later: Vec<&'a Record>,
    /// The stretch that is being told, its newest first.
    next: Vec<&'a Record>,
}

impl<'a> Iterator for OldestFirst<'a> {
    type Item = &'a Record;

    fn next(&mut self) -> Option<&'a Record> {
        let version = self.next.pop()?;
        if self.next.is_empty()
            && let Some(newest) = self.later.pop()
        {
            let told = version.position();
            let back = iter::successors(Some(newest), |at| self.keyspace.replaced.by(at));
            self.next.extend(back.take_while(|version| version.position() > told));
        }
        Some(version)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Machine, delete, key, put};
    use tidelock_model::Revision;

    /// A counter that is written all day must not make reads of yesterday take all day.
    #[test]
    fn every_version_of_a_key_that_changed_often_is_found_in_few_steps() {
        const VERSIONS: u64 = 5_000;
        let (mut machine, hot) = (Machine::new(), key("hot"));
        machine.done(put("hot", "gone"));
        machine.done(delete("hot"));
        let first = machine.state.revision().0 + 1;
        (0..VERSIONS).for_each(|value| drop(machine.done(put("hot", &value.to_string()))));
        let keyspace = &machine.state.keyspace;
        let live = &keyspace.get(&hot).unwrap().record;
        for value in 0..VERSIONS {
            let at = Revision(first + value);
            assert_eq!(keyspace.visible(&hot, at).unwrap().record.value(), value.to_string().as_bytes());
            assert!(keyspace.steps_back(live, (at.next(), 0)).count() <= 5 * 16 + VERSIONS as usize / 256);
        }
        assert!(keyspace.visible(&hot, Revision(first - 1)).is_none());
        assert!(keyspace.visible(&hot, Revision(first - 2)).is_some());
    }

    /// Long steps must not lead to what was swept, nor past what is still readable.
    #[test]
    fn a_key_that_changed_often_is_read_alike_while_it_is_swept() {
        let (mut machine, hot) = (Machine::new(), key("hot"));
        (0..2_000).for_each(|value| drop(machine.done(put("hot", &value.to_string()))));
        for floor in [3, 255, 256, 257, 258, 700, 1_500, 2_000] {
            machine.compact(floor);
            while machine.state.sweep(100, Revision(u64::MAX)) {}
            for revision in floor..=2_001 {
                let found = machine.state.keyspace.visible(&hot, Revision(revision)).unwrap();
                assert_eq!(found.record.value(), (revision - 2).to_string().as_bytes(), "at {revision} above {floor}");
            }
        }
    }
}
