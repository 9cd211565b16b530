//! Leases and what they own.
//!
//! A lease is not a version of anything: granting one consumes no revision. It exists from its grant
//! to its end, owns any number of keys, and a key has at most one owner. When a lease ends, all it
//! owns is deleted at one revision (`apply`). The time left is the leader's business, not replicated.
//!
//! Invariant: the attachments are exactly the (lease, key) pairs of the live versions that name one.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use tidelock_model::{Key, KeyRange, LeaseId, LogIndex};

use crate::tree::{Order, Tree};

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Time to live in seconds.
    pub ttl_s: u32,
    /// The entry that granted it: tells this lease from an earlier one of the same id.
    pub granted_at: LogIndex,
}

struct ByLeaseAndKey;
impl Order for ByLeaseAndKey {
    type Item = (LeaseId, Key);
    type Pivot = (LeaseId, Key);
    type Probe<'a> = (LeaseId, &'a [u8]);
    fn probe(item: &(LeaseId, Key)) -> (LeaseId, &[u8]) {
        (item.0, item.1.as_stored())
    }
    fn pivot(item: &(LeaseId, Key)) -> (LeaseId, Key) {
        item.clone()
    }
    fn compare(item: &(LeaseId, Key), (lease, key): (LeaseId, &[u8])) -> Ordering {
        item.0.cmp(&lease).then_with(|| item.1.as_stored().cmp(key))
    }
    fn compare_pivot(pivot: &(LeaseId, Key), probe: (LeaseId, &[u8])) -> Ordering {
        Self::compare(pivot, probe)
    }
}

pub(crate) struct Leases {
    table: BTreeMap<LeaseId, Lease>,
    attachments: Tree<ByLeaseAndKey>,
}

impl Leases {
    pub(crate) fn new() -> Leases {
        Leases { table: BTreeMap::new(), attachments: Tree::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (LeaseId, Lease)> + '_ {
        self.table.iter().map(|(id, lease)| (*id, *lease))
    }

    pub(crate) fn get(&self, id: LeaseId) -> Option<Lease> {
        self.table.get(&id).copied()
    }

    /// The keys a lease owns, ascending.
    pub(crate) fn keys(&self, id: LeaseId) -> impl Iterator<Item = &Key> + '_ {
        self.attachments.iter_from((id, &[])).take_while(move |attached| attached.0 == id).map(|attached| &attached.1)
    }

    /// How many keys a lease owns.
    pub(crate) fn owned(&self, id: LeaseId) -> usize {
        self.attachments.count_range((id, &[]), (LeaseId(id.0.saturating_add(1)), &[]))
    }

    /// The keys of a range that a lease owns, ascending.
    pub(crate) fn keys_within<'a>(&'a self, id: LeaseId, range: &KeyRange) -> impl Iterator<Item = &'a Key> + use<'a> {
        let end = range.end.clone();
        let attached = self.attachments.iter_from((id, range.start.as_stored()));
        attached.take_while(move |attached| attached.0 == id && attached.1 < end).map(|attached| &attached.1)
    }

    /// Adds a lease, or grants one anew.
    pub(crate) fn grant(&mut self, id: LeaseId, lease: Lease) {
        self.table.insert(id, lease);
    }

    /// Removes a lease whose keys are gone already.
    pub(crate) fn end(&mut self, id: LeaseId) -> Option<Lease> {
        self.table.remove(&id)
    }

    /// Makes `lease` own `key`; "no lease" owns nothing.
    pub(crate) fn attach(&mut self, lease: LeaseId, key: &Key) {
        if lease.is_some() {
            self.attachments.insert((lease, key.clone()));
        }
    }

    /// Undoes [`Leases::attach`].
    pub(crate) fn detach(&mut self, lease: LeaseId, key: &Key) {
        if lease.is_some() {
            self.attachments.remove((lease, key.as_stored()));
        }
    }
}
