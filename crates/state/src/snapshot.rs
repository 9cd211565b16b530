//! Writing the state out, as of one moment, while it goes on changing.
//!
//! The head holds all that changes without a revision: members, leases, requests, alarms, users and roles, the numbers.
//! There may be millions of leases, so they are read in pages, too ([`State::read_leases`]), before the rest. The pages hold every version of every key up to the head's revision; since
//! versions never change they can be read later, a page at a time, as long as sweeping is held back at
//! [`SnapshotHead::keep_from`]. `load` puts both together again.
//!
//! What lives comes first, in key order, with the versions it had since it came about. What is gone follows in the order
//! it went: it need not be found by key for that. A key that goes while pages are written may so come twice, or only among
//! the gone, without its deletion: it is alive at the head's revision.
//!
//! ```text
//! head = version:1 (currently 6)  applied  revision  compacted  clock  digest:16  keys  members
//!        leases:count (id ttl granted_at)*  requests  alarms (since version 2)  auth (since version 3)
//!        native sessions:count (id memory)* (since version 4; with fingerprints since version 5)
//! page = (key record)*      of a key ascending by position
//!        what lives, ascending by key; then 0 0 0 0, where a key and a record would be; then what is gone (since
//!        version 6; before, all versions of all keys came ascending by key)
//! ```
//!
//! Versions that nobody could read at the head, but that sweeping has not come to yet, are left out:
//! history before the compacted revision is not kept, and without it they would never be swept.

use tidelock_model::{Key, KeyValue, LeaseId, LogIndex, Record, Revision, Wire, put_bytes, put_varint};

use crate::State;
use crate::ahead::{Ahead, Glance};
use crate::keyspace::{Keyspace, POSITION_END, Position};
use crate::lease::FIRST_LEASE;

/// First byte of a head.
pub(crate) const HEAD_VERSION: u8 = 6;

/// Stands between what lives and what is gone: no key is empty, and nothing changed at revision zero.
pub(crate) fn separator() -> KeyValue {
    KeyValue { key: Key::from_stored(&[]), record: Record::tombstone(Revision(0), 0) }
}

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
pub struct SnapshotPosition(Place);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// At a key that lives; versions of it before the position are written.
    Living(Key, Position),
    /// At the deletion at the first position; versions of its key before the second are written.
    Gone(Position, Position),
}

/// Before every position there is.
const POSITION_START: Position = (Revision(0), 0);

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
        /// Room that is made before it is known what there is.
        const ROOM_MAX: usize = 1 << 20;
        // It ends with the version that makes it full.
        let begins_at = bytes.len();
        bytes.reserve(max_bytes.min(ROOM_MAX) / 8 * 9);
        let mut page = PageWriter { keyspace: &self.keyspace, head, begins_at, max_bytes, bytes };
        let next = match from.map(|position| &position.0) {
            None => page.write_all(None),
            Some(Place::Living(key, from)) => page.write_all(Some((key, *from))),
            Some(Place::Gone(deletion, from)) => page.write_gone(*deletion, *from),
        };
        SnapshotPage { bytes: page.bytes, next: next.map(SnapshotPosition) }
    }
}

/// Keys and changes that are looked at for a page: those that are younger than the head cost time, too, and give no bytes.
const LOOKED_AT_MAX: usize = 16 * 1024;
/// Versions of a key beyond which nothing is looked at in advance.
const VERSIONS_AHEAD: usize = 8;

/// Each function returns where to go on if the page is full before its end.
struct PageWriter<'a> {
    keyspace: &'a Keyspace,
    head: &'a SnapshotHead,
    begins_at: usize,
    max_bytes: usize,
    bytes: Vec<u8>,
}

impl<'a> PageWriter<'a> {
    /// A page takes at least one version, however small it shall be, or nobody would get anywhere.
    fn is_full(&self) -> bool {
        self.bytes.len() - self.begins_at >= self.max_bytes.max(1)
    }

    fn write_all(&mut self, from: Option<(&Key, Position)>) -> Option<Place> {
        if let Some(next) = self.write_living(from) {
            return Some(next);
        }
        separator().encode(&mut self.bytes);
        if self.keyspace.has_deletions() { self.write_gone((self.head.keep_from, 0), POSITION_START) } else { None }
    }

    fn write_living(&mut self, from: Option<(&Key, Position)>) -> Option<Place> {
        let mut written = Key::from_stored(&[]);
        if let Some((key, from)) = from {
            if from != POSITION_END
                && let Some(newest) = self.keyspace.newest_since(key, self.head.revision)
                && let Some(from) = self.write_versions(key, newest, Some(from))
            {
                return Some(Place::Living(key.clone(), from));
            }
            written = key.clone();
        }
        let keyspace = self.keyspace;
        let glance = |items: &[&'a KeyValue]| glance(keyspace, items);
        for (looked_at, item) in Ahead::of(keyspace.live_from(&written.successor()), glance).enumerate() {
            if looked_at >= LOOKED_AT_MAX || self.is_full() {
                return Some(Place::Living(written, POSITION_END));
            }
            if let Some(from) = self.write_versions(&item.key, &item.record, None) {
                return Some(Place::Living(item.key.clone(), from));
            }
            written = item.key.clone();
        }
        None
    }

    fn write_gone(&mut self, deletion: Position, from: Position) -> Option<Place> {
        let keyspace = self.keyspace;
        let glance = |changes: &[&'a KeyValue]| {
            let deletions: Vec<_> = changes.iter().copied().filter(|change| change.record.is_tombstone()).collect();
            glance(keyspace, &deletions)
        };
        let mut from = Some(from).filter(|from| *from != POSITION_START);
        for (looked_at, change) in Ahead::of(keyspace.changes_from_position(deletion), glance).enumerate() {
            let position = change.record.position();
            if looked_at >= LOOKED_AT_MAX || self.is_full() {
                return Some(Place::Gone(position, POSITION_START));
            }
            if change.record.is_tombstone()
                && let Some(from) = self.write_versions(&change.key, &change.record, from.take())
            {
                return Some(Place::Gone(position, from));
            }
        }
        None
    }

    fn write(&mut self, key: &Key, record: &Record) {
        if record.meta().modified <= self.head.revision {
            key.encode(&mut self.bytes);
            record.encode(&mut self.bytes);
        }
    }

    /// Writes the versions of a key back from `newest` that the snapshot keeps, from a position on if given.
    ///
    /// Kept are all from the compacted revision on, and before it the one that is visible there.
    fn write_versions(&mut self, key: &Key, newest: &Record, from: Option<Position>) -> Option<Position> {
        let (keyspace, floor) = (self.keyspace, (self.head.keep_from, 0));
        // Most keys have one version, and of one that is older than the floor nothing before counts.
        if newest.position() < floor || newest.mark() == 0 {
            if from.is_none_or(|from| newest.position() >= from) {
                self.write(key, newest);
            }
            return None;
        }
        let mut versions = keyspace.oldest_first(newest, from.unwrap_or(floor)).peekable();
        let is_replaced_at_floor = versions.peek().is_some_and(|record| record.meta().modified == floor.0);
        if from.is_none() && !is_replaced_at_floor {
            let visible = keyspace.back_before(newest, floor);
            visible.into_iter().for_each(|record| self.write(key, record));
        }
        for record in versions.take_while(|record| record.meta().modified <= self.head.revision) {
            if self.is_full() {
                return Some(record.position());
            }
            self.write(key, record);
        }
        None
    }
}

/// Looks at keys and their versions, one of each before the next of any: a version is found by the one after it.
fn glance(keyspace: &Keyspace, items: &[&KeyValue]) -> usize {
    let mut seen = items.iter().map(|item| item.key.glance()).sum::<usize>();
    let mut versions: Vec<&Record> = items.iter().map(|item| &item.record).collect();
    for _ in 0..VERSIONS_AHEAD {
        seen += versions.iter().map(|version| version.glance()).sum::<usize>();
        versions = versions.into_iter().filter_map(|version| keyspace.replaced_by(version)).collect();
    }
    seen
}

#[cfg(test)]
mod tests {
    use crate::testing::{Machine, delete, load, pages, put, put_leased};
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

    /// What a page was cut in the middle of may go before the next one is written, and come again, and go again.
    #[test]
    fn a_key_that_goes_while_its_versions_are_written_is_saved_as_it_was() {
        for meanwhile in
            [vec![delete("hot")], vec![delete("hot"), put("hot", "new"), delete("hot"), put("hot", "newer")]]
        {
            let mut machine = Machine::new();
            (0..50).for_each(|value| drop(machine.done(put("hot", &value.to_string()))));
            let head = machine.state.begin_snapshot();
            let (digest, held) = (machine.state.digest(), machine.state.keyspace.held());
            let first = machine.state.snapshot_page(&head, None, 100);
            let mut pages = vec![first.bytes];
            meanwhile.into_iter().for_each(|op| drop(machine.done(op)));
            let mut from = first.next;
            while let Some(position) = from {
                let page = machine.state.snapshot_page(&head, Some(&position), 100);
                pages.push(page.bytes);
                from = page.next;
            }
            let loaded = load(&head, pages).unwrap();
            assert_eq!((loaded.digest(), loaded.keyspace.held()), (digest, held));
        }
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
