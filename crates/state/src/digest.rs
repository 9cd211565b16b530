//! A fingerprint of the state, equal on all replicas at the same log index (R5).
//!
//! The sum over what lives does not depend on the order of changes, so it is kept up by subtracting
//! what a change removes and adding what it brings, and a state loaded from a snapshot has the same
//! one as the state it was taken from. History is left out: how far sweeping got may differ.

use tidelock_model::{KeyValue, LeaseId, Wire};
use xxhash_rust::xxh3::xxh3_128;

use crate::State;
use crate::lease::Lease;
use crate::znodes::ZnodeSum;

/// Order-independent sum of the hashes of all live keys, leases and native sessions, and with it what is told of the znodes among
/// them: both change with exactly the same keys. Only the first is part of the fingerprint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LiveSum {
    hashes: u128,
    pub(crate) znodes: ZnodeSum,
}

impl LiveSum {
    pub(crate) fn add_key(&mut self, item: &KeyValue) {
        self.hashes = self.hashes.wrapping_add(hash_key(item));
        self.znodes.add(item);
    }

    pub(crate) fn subtract_key(&mut self, item: &KeyValue) {
        self.hashes = self.hashes.wrapping_sub(hash_key(item));
        self.znodes.subtract(item);
    }

    pub(crate) fn add_lease(&mut self, id: LeaseId, lease: Lease) {
        self.hashes = self.hashes.wrapping_add(hash_lease(id, lease));
    }

    pub(crate) fn add_session(&mut self, id: LeaseId, memory: &[u8]) {
        self.hashes = self.hashes.wrapping_add(hash_session(id, memory));
    }

    pub(crate) fn subtract_session(&mut self, id: LeaseId, memory: &[u8]) {
        self.hashes = self.hashes.wrapping_sub(hash_session(id, memory));
    }

    pub(crate) fn subtract_lease(&mut self, id: LeaseId, lease: Lease) {
        self.hashes = self.hashes.wrapping_sub(hash_lease(id, lease));
    }
}

/// Appends numbers to a buffer of known size without allocating.
struct Bytes<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Bytes<N> {
    fn new() -> Bytes<N> {
        Bytes { bytes: [0; N], len: 0 }
    }

    fn put(mut self, bytes: &[u8]) -> Bytes<N> {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }
}

fn hash_key(item: &KeyValue) -> u128 {
    let meta = item.record.meta();
    let bytes = Bytes::<69>::new()
        .put(b"k")
        .put(&xxh3_128(item.key.as_stored()).to_le_bytes())
        .put(&xxh3_128(item.record.value()).to_le_bytes())
        .put(&meta.created.0.to_le_bytes())
        .put(&meta.modified.0.to_le_bytes())
        .put(&meta.version.to_le_bytes())
        .put(&meta.lease.0.to_le_bytes())
        .put(&meta.sub.to_le_bytes());
    xxh3_128(&bytes.bytes)
}

fn hash_lease(id: LeaseId, lease: Lease) -> u128 {
    let bytes = Bytes::<21>::new()
        .put(b"l")
        .put(&id.0.to_le_bytes())
        .put(&lease.ttl_s.to_le_bytes())
        .put(&lease.granted_at.0.to_le_bytes());
    xxh3_128(&bytes.bytes)
}

fn hash_session(id: LeaseId, memory: &[u8]) -> u128 {
    let bytes = Bytes::<25>::new().put(b"s").put(&id.0.to_le_bytes()).put(&xxh3_128(memory).to_le_bytes());
    xxh3_128(&bytes.bytes)
}

impl State {
    /// The fingerprint of the state as of [`State::applied`].
    #[must_use]
    pub fn digest(&self) -> u128 {
        let mut bytes = self.live_sum.hashes.to_le_bytes().to_vec();
        for number in [self.revision.0, self.compacted.0, self.clock.0] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        self.members.encode(&mut bytes);
        // Left out when there are none, so that members of a version without alarms agree.
        if !self.alarms.is_empty() {
            self.alarms.encode(&mut bytes);
        }
        if !self.auth.is_untouched() {
            self.auth.encode(&mut bytes);
        }
        xxh3_128(&bytes)
    }

    /// The sum over what lives, computed anew.
    #[cfg(test)]
    pub(crate) fn recompute_live_sum(&self) -> LiveSum {
        let mut sum = LiveSum::default();
        self.keyspace.live_from(&tidelock_model::Key::from_stored(&[])).for_each(|item| sum.add_key(item));
        self.leases.iter().for_each(|(id, lease)| sum.add_lease(id, lease));
        self.sessions.iter().for_each(|(id, memory)| sum.add_session(id, memory));
        sum
    }
}
