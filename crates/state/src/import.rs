//! A state made of somebody else's history: the other half of `copy`, and the way in from etcd.
//!
//! Changes come in the order they happened, with the numbers they had: revisions, versions and leases are
//! kept, so that clients notice nothing. What lies before the compacted revision is forgotten again as
//! sweeping would, so that a watch from that revision on finds everything (H6), and the same input gives
//! the same state, digest included, whoever reads it. The request memory and the clock begin empty: nothing
//! that was on its way to the old cluster arrives at the new one.

use tidelock_model::{Auth, KeyValue, LeaseId, LogIndex, Member, Record, RecordMeta, Revision, Wire};
use xxhash_rust::xxh3::Xxh3;

use crate::State;
use crate::lease::Lease;
use crate::load::NUMBER_MAX;

/// Sweeping goes in steps of this size; nobody waits meanwhile.
const SWEEP_STEPS: usize = 1 << 16;

/// Why a history cannot become a state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// Revisions that contradict each other or cannot be reached.
    #[error("revision {revision} with everything before {compacted} compacted cannot be")]
    Numbers {
        /// The last revision.
        revision: Revision,
        /// The compacted one.
        compacted: Revision,
    },
    /// Changes come in order, each once, between the first revision and the last.
    #[error("the change at revision {0}.{1} is out of order, or beyond the revision the store is at")]
    OutOfOrder(Revision, u32),
    /// A change whose numbers no store could have given it.
    #[error("the change at revision {0}.{1} has numbers that cannot be")]
    BadChange(Revision, u32),
    /// A lease without an id, or twice.
    #[error("lease {0:x} is there twice, or has no id")]
    BadLease(LeaseId),
}

/// What became of an import.
pub struct Imported {
    /// The state, before the first entry.
    pub state: State,
    /// Keys that named a lease that does not exist. No lease will ever end them, so they have none now.
    pub without_lease: u64,
}

/// A state in the making.
pub struct StateImport {
    state: State,
    /// The last change added.
    last: (Revision, u32),
    hash: Xxh3,
    buffer: Vec<u8>,
}

impl StateImport {
    /// Begins a state that will be at `revision`, with everything before `compacted` forgotten.
    pub fn new(revision: Revision, compacted: Revision) -> Result<StateImport, ImportError> {
        if revision < Revision::FIRST || revision.0 > NUMBER_MAX || compacted > revision {
            return Err(ImportError::Numbers { revision, compacted });
        }
        let mut state = State::new();
        state.revision = revision;
        state.compacted = compacted;
        let mut hash = Xxh3::new();
        hash.update(&revision.0.to_le_bytes());
        hash.update(&compacted.0.to_le_bytes());
        Ok(StateImport { state, last: (Revision::FIRST, u32::MAX), hash, buffer: Vec::new() })
    }

    /// Adds a lease. It has its whole time to live from the moment the cluster has a leader: late is
    /// allowed, early never (L1).
    pub fn add_lease(&mut self, id: LeaseId, ttl_s: u32) -> Result<(), ImportError> {
        if !id.is_some() || self.state.has_lease(id) {
            return Err(ImportError::BadLease(id));
        }
        // Entries of the new cluster come later, so no lease granted there is taken for this one.
        self.state.leases.grant(id, Lease { ttl_s, granted_at: LogIndex(0) });
        self.hash.update(&id.0.to_le_bytes());
        self.hash.update(&ttl_s.to_le_bytes());
        Ok(())
    }

    /// Adds a change, later than all before.
    pub fn add_change(&mut self, item: KeyValue) -> Result<(), ImportError> {
        let position = item.record.position();
        if position <= self.last || position.0 > self.state.revision {
            return Err(ImportError::OutOfOrder(position.0, position.1));
        }
        let meta = item.record.meta();
        let is_possible = item.record.is_tombstone()
            || (meta.created > Revision::FIRST && meta.created <= meta.modified && meta.version <= NUMBER_MAX);
        if !is_possible || item.key.space_byte().is_none() {
            return Err(ImportError::BadChange(position.0, position.1));
        }
        self.last = position;
        self.buffer.clear();
        item.encode(&mut self.buffer);
        self.hash.update(&self.buffer);
        self.state.keyspace.load_next(item);
        Ok(())
    }

    /// Sets users and roles, and whether they are asked for.
    pub fn set_auth(&mut self, auth: Auth) {
        self.buffer.clear();
        auth.encode(&mut self.buffer);
        self.hash.update(&self.buffer);
        self.state.restore_auth(auth);
    }

    /// A fingerprint of everything added so far, in the order it came.
    #[must_use]
    pub fn fingerprint(&self) -> u128 {
        self.hash.digest128()
    }

    /// Ends with the state, whose cluster begins with these members.
    #[must_use]
    pub fn finish(self, members: Vec<Member>) -> Imported {
        let StateImport { mut state, .. } = self;
        while state.sweep(SWEEP_STEPS, Revision(u64::MAX)) {}
        state.keyspace.loaded_from(state.compacted);
        let without_lease = settle_leases(&mut state);
        state.bootstrap_members(members);
        Imported { state, without_lease }
    }
}

/// Gives every lease its keys, and the digest both.
fn settle_leases(state: &mut State) -> u64 {
    let mut orphans = Vec::new();
    for item in state.keyspace.live_from(&tidelock_model::Key::from_stored(&[])) {
        let lease = item.record.meta().lease;
        if lease.is_some() && state.leases.get(lease).is_none() {
            orphans.push(item.clone());
        } else {
            state.leases.attach(lease, &item.key);
            state.live_sum.add_key(item);
        }
    }
    let count = orphans.len() as u64;
    for KeyValue { key, record } in orphans {
        let meta = RecordMeta { lease: LeaseId::NONE, ..record.meta() };
        let amended = KeyValue { key, record: Record::new(meta, record.value()) };
        state.live_sum.add_key(&amended);
        state.keyspace.amend_live(amended);
    }
    let leases: Vec<_> = state.leases.iter().collect();
    leases.into_iter().for_each(|(id, lease)| state.live_sum.add_lease(id, lease));
    count
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
