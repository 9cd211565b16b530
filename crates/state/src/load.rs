//! Reading a snapshot back: the other half of `snapshot`.
//!
//! What lives is appended in order, so loading is a sequential build of full tree nodes. Nothing read
//! is trusted: bytes that do not decode, keys or versions out of order, numbers that cannot be, and a
//! state whose digest differs from the head's are errors, and memory grows only with the input.

use std::cmp::Ordering;
use std::sync::Arc;

use bytes::Bytes;
use tidelock_model::limits::COMMAND_BYTES_MAX;
use tidelock_model::{
    Alarms, Auth, DecodeError, KeyValue, LeaseId, LogIndex, LogTime, Members, Reader, Record, Revision, Wire,
};

use crate::State;
use crate::lease::Lease;
use crate::requests::Requests;
use crate::snapshot::{HEAD_VERSION, separator};

/// Why a snapshot could not be loaded. It is damaged or not ours; another copy may be good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The bytes cannot be read.
    #[error("the snapshot cannot be read")]
    Decode(#[from] DecodeError),
    /// A newer program wrote it.
    #[error("snapshot format {found} is unknown")]
    UnknownVersion {
        /// The format found.
        found: u8,
    },
    /// What was read cannot be a state.
    #[error("the snapshot contradicts itself: {what}")]
    Inconsistent {
        /// What is wrong.
        what: &'static str,
    },
    /// The loaded state is not the one that was saved.
    #[error("the loaded state has digest {loaded:032x}, the saved one had {saved:032x}")]
    DigestMismatch {
        /// As told by the head.
        saved: u128,
        /// As computed.
        loaded: u128,
    },
}

/// Counters beyond this were never counted up to; letting them in would overflow later.
pub(crate) const NUMBER_MAX: u64 = i64::MAX as u64;

/// Builds a [`State`] from a snapshot's head and pages.
pub struct StateLoader {
    state: State,
    keys: u64,
    digest: u128,
    /// The last version read: it is live unless another version of its key follows or it is a deletion.
    last: Option<KeyValue>,
    /// Whether what is gone is being read, which comes in no order of keys.
    is_gone: bool,
    /// How many changes and replaced versions there were when the first version of the last one's key was read.
    begun: (usize, usize),
    /// Changes to be put in order, with their positions beside them so that sorting need not look up
    /// each record.
    changes: Vec<(Revision, u32, KeyValue)>,
    /// Changes and what they replaced, to be put in order.
    replaced: Vec<(Record, KeyValue)>,
}

impl StateLoader {
    /// Begins with a snapshot's head.
    pub fn new(head: Bytes) -> Result<StateLoader, LoadError> {
        let mut input = Reader::new(head);
        let version = input.byte()?;
        if !(1..=HEAD_VERSION).contains(&version) {
            return Err(LoadError::UnknownVersion { found: version });
        }
        let mut state = State::new();
        state.applied = LogIndex::decode(&mut input)?;
        state.revision = Revision::decode(&mut input)?;
        state.compacted = Revision::decode(&mut input)?;
        state.clock = LogTime::decode(&mut input)?;
        let mut digest = [0; 16];
        for byte in &mut digest {
            *byte = input.byte()?;
        }
        let keys = input.varint()?;
        state.members = Members::decode(&mut input)?;
        for _ in 0..input.count("the number of leases", usize::MAX)? {
            let id = LeaseId::decode(&mut input)?;
            let lease = Lease { ttl_s: input.varint32()?, granted_at: LogIndex::decode(&mut input)? };
            state.leases.grant(id, lease);
        }
        state.requests = Requests::decode(&mut input)?;
        if version >= 2 {
            state.alarms = Alarms::decode(&mut input)?;
        }
        if version >= 3 {
            state.auth = Arc::new(Auth::decode(&mut input)?);
        }
        if version >= 4 {
            for _ in 0..input.count("the number of sessions", usize::MAX)? {
                let id = LeaseId::decode(&mut input)?;
                if !state.has_lease(id) {
                    return Err(LoadError::Inconsistent { what: "a session without a lease" });
                }
                state.sessions.load(id, input.short_bytes(COMMAND_BYTES_MAX)?)?;
            }
        }
        input.finish()?;
        if state.compacted > state.revision || state.revision < Revision::FIRST {
            return Err(LoadError::Inconsistent { what: "its revisions" });
        }
        if [state.applied.0, state.revision.0].into_iter().any(|number| number > NUMBER_MAX) {
            return Err(LoadError::Inconsistent { what: "a number that cannot be reached" });
        }
        let digest = u128::from_le_bytes(digest);
        Ok(StateLoader {
            state,
            keys,
            digest,
            last: None,
            is_gone: false,
            begun: (0, 0),
            changes: Vec::new(),
            replaced: Vec::new(),
        })
    }

    /// Adds the next page.
    pub fn add_page(&mut self, page: Bytes) -> Result<(), LoadError> {
        let mut input = Reader::new(page);
        while input.remaining() > 0 {
            let item = KeyValue::decode(&mut input)?;
            if item.key.space_byte().is_none() && item == separator() && !self.is_gone {
                self.settle_last(None)?;
                self.is_gone = true;
                continue;
            }
            self.add(item)?;
        }
        Ok(())
    }

    fn add(&mut self, mut item: KeyValue) -> Result<(), LoadError> {
        let position = item.record.position();
        let is_possible = position.0 > Revision::FIRST
            && position.0 <= self.state.revision
            && item.record.meta().version <= NUMBER_MAX
            && item.key.space_byte().is_some();
        if !is_possible {
            return Err(LoadError::Inconsistent { what: "a version that cannot be" });
        }
        let mut replaces_last = false;
        if let Some(last) = &self.last {
            match last.key.cmp(&item.key) {
                Ordering::Less => {}
                Ordering::Equal if last.record.position() < position => {
                    // All versions of a key share one copy of it.
                    item.key = last.key.clone();
                    replaces_last = !last.record.is_tombstone();
                }
                Ordering::Greater if self.is_gone => {}
                _ => return Err(LoadError::Inconsistent { what: "versions out of order" }),
            }
        }
        self.settle_last(Some(&item.record).filter(|_| replaces_last))?;
        if !replaces_last {
            self.begun = (self.changes.len(), self.replaced.len());
        }
        if position.0 >= self.state.compacted {
            self.changes.push((position.0, position.1, item.clone()));
        }
        self.last = Some(item);
        Ok(())
    }

    fn settle_last(&mut self, replaced_by: Option<&Record>) -> Result<(), LoadError> {
        let Some(last) = self.last.take() else { return Ok(()) };
        let is_swept = |change: &Record| change.meta().modified < self.state.compacted;
        if last.record.is_tombstone() {
            if !is_swept(&last.record) {
                self.state.keyspace.load_deletion(last);
            }
            return Ok(());
        }
        if let Some(change) = replaced_by {
            if !is_swept(change) {
                self.replaced.push((change.clone(), last));
            }
            return Ok(());
        }
        if self.is_gone
            && let Some(live) = self.state.keyspace.get(&last.key)
        {
            // It went while the snapshot was written, after it was written among what lives.
            if live.record != last.record {
                return Err(LoadError::Inconsistent { what: "a key that lives twice" });
            }
            self.changes.truncate(self.begun.0);
            self.replaced.truncate(self.begun.1);
            return Ok(());
        }
        self.add_live(last)
    }

    fn add_live(&mut self, item: KeyValue) -> Result<(), LoadError> {
        let lease = item.record.meta().lease;
        if lease.is_some() && !self.state.has_lease(lease) {
            return Err(LoadError::Inconsistent { what: "a key of a lease that does not exist" });
        }
        if !tidelock_model::planted!(LoadedLeasesOwnNothing) {
            self.state.leases.attach(lease, &item.key);
        }
        self.state.live_sum.add_key(&item);
        if self.is_gone {
            self.state.keyspace.load_live_between(item);
        } else {
            self.state.keyspace.load_live(item);
        }
        Ok(())
    }

    /// Ends with the state, once all pages are added.
    pub fn finish(mut self) -> Result<State, LoadError> {
        self.settle_last(None)?;
        let StateLoader { mut state, keys, digest, mut changes, mut replaced, .. } = self;
        changes.sort_unstable_by_key(|(revision, sub, _)| (*revision, *sub));
        if changes.windows(2).any(|pair| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1)) {
            return Err(LoadError::Inconsistent { what: "two changes at one position" });
        }
        for (_, _, change) in changes {
            state.keyspace.add_change(change);
        }
        replaced.sort_unstable_by_key(|(change, _)| change.position());
        for (change, before) in replaced {
            state.keyspace.load_replaced(&change, before);
        }
        state.keyspace.loaded_from(state.compacted);
        let leases: Vec<_> = state.leases.iter().collect();
        leases.into_iter().for_each(|(id, lease)| state.live_sum.add_lease(id, lease));
        state.sessions.iter().for_each(|(id, memory)| state.live_sum.add_session(id, memory));
        if state.keys() != keys {
            return Err(LoadError::Inconsistent { what: "the number of keys" });
        }
        if state.digest() != digest {
            return Err(LoadError::DigestMismatch { saved: digest, loaded: state.digest() });
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SnapshotHead;
    use crate::testing::{Machine, delete, key, load, pages, put, put_leased};
    use tidelock_model::RecordMeta;

    fn machine() -> Machine {
        let mut machine = Machine::new();
        machine.grant(1);
        machine.done(put("a", "1"));
        machine.done(put("a", "2"));
        machine.done(put_leased("b", "1", 1));
        machine
    }

    /// A snapshot that lost or swapped pages must not become a store that silently lacks keys.
    #[test]
    fn missing_doubled_or_swapped_pages_are_noticed() {
        let machine = machine();
        let head = machine.state.begin_snapshot();
        let whole = pages(&machine.state, &head, 1);
        assert_eq!(whole.iter().filter(|page| !page.is_empty()).count(), 3);
        let mut missing = whole.clone();
        missing.remove(1);
        assert!(matches!(load(&head, missing), Err(LoadError::DigestMismatch { .. })));
        let mut swapped = whole.clone();
        swapped.swap(0, 1);
        assert_eq!(load(&head, swapped).err(), Some(LoadError::Inconsistent { what: "versions out of order" }));
        let doubled = [whole.clone(), whole].concat();
        assert_eq!(load(&head, doubled).err(), Some(LoadError::Inconsistent { what: "a version that cannot be" }));
        let meta = RecordMeta { created: Revision(2), modified: Revision(2), version: 1, lease: LeaseId::NONE, sub: 0 };
        let other = KeyValue { key: key("b"), record: Record::new(meta, b"2") };
        let twice = [pages(&machine.state, &head, usize::MAX), vec![other.to_bytes()]].concat();
        assert_eq!(load(&head, twice).err(), Some(LoadError::Inconsistent { what: "a key that lives twice" }));
        let count = LoadError::Inconsistent { what: "the number of keys" };
        assert_eq!(load(&head, vec![]).err(), Some(count));
    }

    /// A value changed on disk in a way that still decodes must not be served.
    #[test]
    fn a_changed_value_is_noticed() {
        let machine = machine();
        let head = machine.state.begin_snapshot();
        let mut bytes = pages(&machine.state, &head, usize::MAX).concat();
        let last = bytes.len() - 1 - separator().to_bytes().len();
        bytes[last] = b'9';
        assert!(matches!(load(&head, vec![bytes]), Err(LoadError::DigestMismatch { .. })));
    }

    /// Before version 6 what is gone came by key, between what lives: a node that is started anew still finds such files.
    #[test]
    fn what_is_gone_is_read_from_old_snapshots_too() {
        let mut machine = machine();
        for op in [delete("a"), put("c", "1"), delete("c"), put("a", "3"), put("c", "2"), put("c", "3")] {
            machine.done(op);
        }
        let mut head = machine.state.begin_snapshot();
        let mut input = Reader::new(pages(&machine.state, &head, usize::MAX).concat().into());
        let mut items = Vec::new();
        while input.remaining() > 0 {
            items.extend(Some(KeyValue::decode(&mut input).unwrap()).filter(|item| *item != separator()));
        }
        assert_eq!(items.iter().filter(|item| item.record.is_tombstone()).count(), 2);
        items.sort_by_key(|item| (item.key.clone(), item.record.position()));
        let mut page = Vec::new();
        items.iter().for_each(|item| item.encode(&mut page));
        head.bytes[0] = 5;
        let loaded = load(&head, vec![page]).unwrap();
        assert_eq!(loaded.digest(), machine.state.digest());
        assert_eq!(loaded.keyspace.held(), machine.state.keyspace.held());
        assert_eq!(loaded.data_bytes(), machine.state.data_bytes());
        let revisions = 2..=machine.state.revision().0;
        let at_all = |state: State| {
            let machine = Machine { state, number: 0 };
            revisions.clone().map(|at| machine.pairs_at(at)).collect::<Vec<_>>()
        };
        assert_eq!(at_all(loaded), at_all(machine.state));
    }

    /// An older program must say that it cannot read a newer snapshot, not that it is damaged.
    #[test]
    fn an_unknown_format_is_named() {
        let error = StateLoader::new(Bytes::from_static(&[9, 1, 2])).err();
        assert_eq!(error, Some(LoadError::UnknownVersion { found: 9 }));
    }

    /// Pinned bytes: old snapshots must stay readable, or a new version number is due.
    #[test]
    fn old_bytes_stay_readable() {
        let mut machine = Machine::new();
        machine.done(put("k", "v"));
        let head = machine.state.begin_snapshot();
        let pages = pages(&machine.state, &head, usize::MAX);
        // The key, and that nothing is gone: what version 6 added.
        assert_eq!(pages, [[2, 0x10, b'k', 2, 0, 1, 2, 0, 1, b'v', 0, 0, 0, 0]]);
        let without_gone = vec![pages[0][..10].to_vec()];
        let digest = machine.state.digest().to_le_bytes();
        let mut expected = vec![6, 1, 2, 0, 10];
        expected.extend_from_slice(&digest);
        // One key; no members, none removed; no leases; one origin: node, boot, no other boot, highest,
        // last heard, and 2048 bytes of window with number 1 in it; no remembered requests.
        expected.extend_from_slice(&[1, 0, 0, 0, 1, 1, 1, 0, 1, 1, 0x80, 0x10, 2]);
        expected.extend_from_slice(&[0; 2047]);
        expected.push(0);
        // No alarms: what version 2 added.
        expected.push(0);
        // Nothing is checked, revision 1, no secret, no users, no roles: what version 3 added.
        let without_auth = expected.len();
        expected.extend_from_slice(&[0, 1]);
        expected.extend_from_slice(&[0; 32 + 2]);
        // No native sessions: what version 4 added.
        let without_sessions = expected.len();
        expected.push(0);
        let whole = expected.len();
        assert_eq!(head.bytes, expected);
        for (version, length) in
            [(5, whole), (4, whole), (3, without_sessions), (2, without_auth), (1, without_auth - 1)]
        {
            expected.truncate(length);
            expected[0] = version;
            let mut older: SnapshotHead = head.clone();
            older.bytes.clone_from(&expected);
            assert_eq!(load(&older, without_gone.clone()).unwrap().digest(), machine.state.digest());
        }
        let pinned = 49_006_668_418_093_372_190_168_907_123_473_963_371;
        assert_eq!(machine.state.digest(), pinned, "the digest is compared between versions of the program");
    }
}
