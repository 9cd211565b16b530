//! Writing the state out, as of one moment, while it goes on changing.
//!
//! The head holds all that changes without a revision: members, leases, requests, alarms, users and roles, the numbers.
//! There may be millions of leases, so they are read in pages, too ([`State::read_leases`]), before the rest. The pages hold every version of every key up to the head's revision, in key order; since
//! versions never change they can be read later, a page at a time, as long as sweeping is held back at
//! [`SnapshotHead::keep_from`]. `load` puts both together again.
//!
//! ```text
//! head = version:1 (currently 5)  applied  revision  compacted  clock  digest:16  keys  members
//!        leases:count (id ttl granted_at)*  requests  alarms (since version 2)  auth (since version 3)
//!        native sessions:count (id memory)* (since version 4; with fingerprints since version 5)
//! page = (key record)*      ascending by key and position
//! ```
//!
//! Versions that nobody could read at the head, but that sweeping has not come to yet, are left out:
//! history before the compacted revision is not kept, and without it they would never be swept.

use std::cmp::Ordering;

use tidelock_model::{Key, LeaseId, LogIndex, Record, Revision, Wire, put_bytes, put_varint};

use crate::State;
use crate::ahead::{Ahead, Glance};
use crate::keyspace::{HeldVersions, Keyspace, POSITION_END, Position};
use crate::lease::FIRST_LEASE;

/// First byte of a head.
pub(crate) const HEAD_VERSION: u8 = 5;

/// About what an encoded lease takes: ten bytes of id, and two small numbers.
const LEASE_BYTES: usize = 17;

/// What a snapshot begins with, and what must be known to go on with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHead {
    /// The last entry the snapshot holds.
    pub index: LogIndex,
    /// The revision its pages are read at.
    pub revision: Revision,
    /// Pass this (or less) to [`State::sweep`] until the last page is read: the oldest revision that is
    /// readable in the snapshot, even if compaction goes on meanwhile.
    pub keep_from: Revision,
    /// The encoded head, once all leases are read.
    pub bytes: Vec<u8>,
    /// Which leases are to be read next, and where in the bytes they go.
    leases: Option<(LeaseId, usize)>,
    /// The entry as of which the leases are read.
    leases_at: LogIndex,
}

/// Part of a snapshot's versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotPage {
    /// The encoded versions.
    pub bytes: Vec<u8>,
    /// Where to go on; `None`: that was the last page.
    pub next: Option<SnapshotPosition>,
}

/// A place between two versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotPosition {
    /// The key being written.
    key: Key,
    /// Versions of it before this are written.
    from: Position,
}

impl State {
    /// Begins a snapshot of the state as it is now, with all its leases.
    #[must_use]
    pub fn begin_snapshot(&self) -> SnapshotHead {
        let mut head = self.head();
        while self.read_leases(&mut head, usize::MAX) {}
        head
    }

    /// Begins a snapshot of the state as it is now without having read its leases: call [`State::read_leases`] until there
    /// are no more, then [`State::release_leases`]. One at a time.
    pub fn begin_long_snapshot(&mut self) -> SnapshotHead {
        self.leases.hold(self.applied);
        self.head()
    }

    /// Reads the next leases into the head; looks at no more than `max`. Says whether there are more.
    pub fn read_leases(&self, head: &mut SnapshotHead, max: usize) -> bool {
        let Some((from, at)) = head.leases.take() else { return false };
        let (page, next) = self.leases.page(head.leases_at, from, max);
        let mut bytes = Vec::with_capacity(page.len() * LEASE_BYTES);
        for (id, lease) in page {
            id.encode(&mut bytes);
            put_varint(&mut bytes, u64::from(lease.ttl_s));
            lease.granted_at.encode(&mut bytes);
        }
        let behind = at + bytes.len();
        head.bytes.splice(at..at, bytes);
        head.leases = next.map(|next| (next, behind));
        next.is_some()
    }

    /// Forgets what was kept for [`State::read_leases`].
    pub fn release_leases(&mut self) {
        self.leases.release();
    }

    fn head(&self) -> SnapshotHead {
        let mut bytes = vec![HEAD_VERSION];
        let out = &mut bytes;
        let ahead = u64::from(tidelock_model::planted!(AppliedAheadOfData) && self.revision > Revision::FIRST);
        LogIndex(self.applied.0 + ahead).encode(out);
        self.revision.encode(out);
        self.compacted.encode(out);
        self.clock.encode(out);
        out.extend_from_slice(&self.digest().to_le_bytes());
        put_varint(out, self.keys());
        self.members.encode(out);
        put_varint(out, self.lease_count());
        let leases = Some((FIRST_LEASE, out.len()));
        if tidelock_model::planted!(SnapshotForgetsRequests) {
            crate::requests::Requests::new().encode(out);
        } else {
            self.requests.encode(out);
        }
        self.alarms.encode(out);
        self.auth.encode(out);
        put_varint(out, self.sessions.len() as u64);
        for (id, memory) in self.sessions.iter() {
            id.encode(out);
            put_bytes(out, memory);
        }
        let index = LogIndex(self.applied.0 + ahead);
        let (revision, keep_from) = (self.revision, self.compacted);
        SnapshotHead { index, revision, keep_from, bytes, leases, leases_at: self.applied }
    }

    /// The next versions of a snapshot, about `max_bytes` of them. Looks at a bounded number of keys,
    /// so a page may be empty and not the last.
    #[must_use]
    pub fn snapshot_page(
        &self,
        head: &SnapshotHead,
        from: Option<&SnapshotPosition>,
        max_bytes: usize,
    ) -> SnapshotPage {
        self.snapshot_page_behind(Vec::new(), head, from, max_bytes)
    }

    /// The same, behind what there is already: its bytes are those of all pages.
    #[must_use]
    pub fn snapshot_page_behind(
        &self,
        mut bytes: Vec<u8>,
        head: &SnapshotHead,
        from: Option<&SnapshotPosition>,
        max_bytes: usize,
    ) -> SnapshotPage {
        /// Keys that are younger than the head cost time, too, and give no bytes.
        const KEYS_MAX: usize = 16 * 1024;
        /// Room that is made before it is known what there is.
        const ROOM_MAX: usize = 1 << 20;
        /// Versions of a key beyond which nothing is looked at in advance.
        const VERSIONS_AHEAD: usize = 8;
        // It ends with the version that makes it full.
        let begins_at = bytes.len();
        bytes.reserve(max_bytes.min(ROOM_MAX) / 8 * 9);
        let mut page = PageWriter { keyspace: &self.keyspace, head, begins_at, max_bytes, bytes };
        let mut start = Key::from_stored(&[]);
        if let Some(position) = from {
            let held = self.keyspace.versions_of(&position.key);
            if let Some(next) = page.write_versions(&position.key, held, Some(position.from)) {
                return page.cut_at(next);
            }
            start = position.key.successor();
            if page.is_full() {
                return page.cut_at(SnapshotPosition { key: position.key.clone(), from: POSITION_END });
            }
        }
        let versions = |newest| self.keyspace.back_from(newest).take(VERSIONS_AHEAD).map(Glance::glance).sum::<usize>();
        let live = self.keyspace.live_from(&start);
        let mut live = Ahead::of(live, |item| item.key.glance() + versions(&item.record)).peekable();
        let gone = self.keyspace.gone_from(&start);
        let mut gone = Ahead::of(gone, |item| item.key.glance() + versions(item.last())).peekable();
        for _ in 0..KEYS_MAX {
            let (key, order) = match (live.peek().copied(), gone.peek().copied()) {
                (None, None) => return SnapshotPage { bytes: page.bytes, next: None },
                (Some(live), None) => (&live.key, Ordering::Less),
                (None, Some(gone)) => (&gone.key, Ordering::Greater),
                (Some(live), Some(gone)) => match live.key.cmp(&gone.key) {
                    Ordering::Greater => (&gone.key, Ordering::Greater),
                    order => (&live.key, order),
                },
            };
            let live = live.next_if(|_| order.is_le()).map(|item| &item.record);
            let held = HeldVersions { live, gone: gone.next_if(|_| order.is_ge()) };
            if let Some(next) = page.write_versions(key, held, None) {
                return page.cut_at(next);
            }
            start = key.clone();
            if page.is_full() {
                break;
            }
        }
        page.cut_at(SnapshotPosition { key: start, from: POSITION_END })
    }
}

struct PageWriter<'a> {
    keyspace: &'a Keyspace,
    head: &'a SnapshotHead,
    begins_at: usize,
    max_bytes: usize,
    bytes: Vec<u8>,
}

impl PageWriter<'_> {
    /// A page takes at least one version, however small it shall be, or nobody would get anywhere.
    fn is_full(&self) -> bool {
        self.bytes.len() - self.begins_at >= self.max_bytes.max(1)
    }

    fn cut_at(self, next: SnapshotPosition) -> SnapshotPage {
        SnapshotPage { bytes: self.bytes, next: Some(next) }
    }

    fn write(&mut self, key: &Key, record: &Record) {
        if record.meta().modified <= self.head.revision {
            key.encode(&mut self.bytes);
            record.encode(&mut self.bytes);
        }
    }

    /// Writes the versions of a key that the snapshot keeps, from a position on if given. Returns where
    /// to go on if the page is full before the last.
    ///
    /// Kept are all from the compacted revision on, and before it the one that is visible there.
    fn write_versions(
        &mut self,
        key: &Key,
        held: HeldVersions<'_>,
        from: Option<Position>,
    ) -> Option<SnapshotPosition> {
        let floor = (self.head.keep_from, 0);
        // Most keys have one version, and of one that is older than the floor nothing before counts.
        let newest = held.live.filter(|live| live.position() < floor || (live.mark() == 0 && held.gone.is_none()));
        if let Some(newest) = newest {
            if from.is_none_or(|from| newest.position() >= from) {
                self.write(key, newest);
            }
            return None;
        }
        let keyspace = self.keyspace;
        let mut versions = keyspace.oldest_first(held, from.unwrap_or(floor)).peekable();
        let is_replaced_at_floor = versions.peek().is_some_and(|record| record.meta().modified == floor.0);
        if from.is_none() && !is_replaced_at_floor {
            let visible = keyspace.last_before(held, floor).filter(|record| !record.is_tombstone());
            visible.into_iter().for_each(|record| self.write(key, record));
        }
        for record in versions {
            if record.meta().modified > self.head.revision {
                return None;
            }
            if self.is_full() {
                return Some(SnapshotPosition { key: key.clone(), from: record.position() });
            }
            self.write(key, record);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Machine, load, pages, put, put_leased};
    use tidelock_model::{Command, LeaseId, Revision};

    /// A caller with no room at all must still come to an end.
    #[test]
    fn a_page_of_no_size_still_advances() {
        let mut machine = Machine::new();
        (0..5).for_each(|value| drop(machine.done(put("hot", &value.to_string()))));
        let head = machine.state.begin_snapshot();
        assert_eq!(load(&head, pages(&machine.state, &head, 0)).unwrap().digest(), machine.state.digest());
    }

    /// A million leases are not read under one hold of the lock, and clients end and grant them meanwhile. A snapshot that
    /// missed one that ended since would restore its keys without their owner, for good.
    #[test]
    fn leases_that_change_while_they_are_read_are_saved_as_they_were() {
        let mut machine = Machine::new();
        (1..=40).for_each(|id| machine.grant(id));
        machine.done(put_leased("a", "1", 7));
        let whole = machine.state.begin_snapshot();
        let mut head = machine.state.begin_long_snapshot();
        assert!(machine.state.read_leases(&mut head, 5));
        for id in [3, 7, 8, 39] {
            machine.command(Command::LeaseRevoke { id: LeaseId(id) }).result.unwrap();
        }
        // Anew under an old id, and new ones before, between and after.
        [8, -5, 50, 51].into_iter().for_each(|id| machine.grant(id));
        while machine.state.read_leases(&mut head, 5) {}
        machine.state.release_leases();
        assert_eq!(head.bytes, whole.bytes);
        let loaded = load(&head, pages(&machine.state, &head, 100)).unwrap();
        assert_eq!((loaded.lease_count(), loaded.lease_keys(LeaseId(7)).count()), (40, 1));
    }

    /// One hot key with a long history must not make one endless page: it blocks writers meanwhile.
    #[test]
    fn a_key_with_many_versions_is_cut_into_pages() {
        let mut machine = Machine::new();
        (0..1_000).for_each(|value| drop(machine.done(put("hot", &value.to_string()))));
        let head = machine.state.begin_snapshot();
        let pages = pages(&machine.state, &head, 100);
        assert!(pages.iter().all(|page| page.len() < 150) && pages.len() > 50);
        let loaded = load(&head, pages).unwrap();
        assert_eq!(loaded.keyspace.held(), machine.state.keyspace.held());
        assert_eq!(loaded.data_bytes(), machine.state.data_bytes());
    }

    /// What was compacted but not swept yet would stay forever in the copy, so it must not get there.
    #[test]
    fn what_waits_to_be_swept_is_left_out() {
        let mut machine = Machine::new();
        (0..100).for_each(|value| drop(machine.done(put("hot", &value.to_string()))));
        machine.compact(100);
        let head = machine.state.begin_snapshot();
        let loaded = load(&head, pages(&machine.state, &head, 100)).unwrap();
        machine.sweep_all();
        assert_eq!(loaded.keyspace.held(), machine.state.keyspace.held());
        assert_eq!(loaded.digest(), machine.state.digest());
        assert_eq!(loaded.compacted(), Revision(100));
    }
}
