//! Leases and what they own.
//!
//! A lease is not a version of anything: granting one consumes no revision. It exists from its grant
//! to its end, owns any number of keys, and a key has at most one owner. When a lease ends, all it
//! owns is deleted at one revision (`apply`). The time left is the leader's business, not replicated.
//!
//! While a snapshot reads the leases page by page, those that end or are granted anew are kept aside as they were
//! ([`Leases::hold`]): nobody else sees them.
//!
//! Invariant: the attachments are exactly the (lease, key) pairs of the live versions that name one.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use tidelock_model::{Key, KeyRange, LeaseId, LogIndex};

use tidelock_tree::{Order, Tree};

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Time to live in seconds.
    pub ttl_s: u32,
    /// The entry that granted it: tells this lease from an earlier one of the same id.
    pub granted_at: LogIndex,
}

/// By the id of a lease, whatever is kept beside it.
pub struct ByLease<T>(PhantomData<T>);
impl<T> Order for ByLease<T> {
    type Item = (LeaseId, T);
    type Pivot = LeaseId;
    type Probe<'a> = LeaseId;
    fn probe(item: &(LeaseId, T)) -> LeaseId {
        item.0
    }
    fn pivot(item: &(LeaseId, T)) -> LeaseId {
        item.0
    }
    fn compare(item: &(LeaseId, T), probe: LeaseId) -> Ordering {
        item.0.cmp(&probe)
    }
    fn compare_pivot(pivot: &LeaseId, probe: LeaseId) -> Ordering {
        pivot.cmp(&probe)
    }
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

/// Before every lease.
pub(crate) const FIRST_LEASE: LeaseId = LeaseId(i64::MIN);

pub(crate) struct Leases {
    table: Tree<ByLease<Lease>>,
    attachments: Tree<ByLeaseAndKey>,
    /// As of which entry someone reads the leases in pages.
    held: Option<LogIndex>,
    /// What ended or changed since then, as it was.
    departed: BTreeMap<LeaseId, Lease>,
}

impl Leases {
    pub(crate) fn new() -> Leases {
        Leases { table: Tree::new(), attachments: Tree::new(), held: None, departed: BTreeMap::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (LeaseId, Lease)> + '_ {
        self.table.iter_from(FIRST_LEASE).copied()
    }

    pub(crate) fn get(&self, id: LeaseId) -> Option<Lease> {
        self.table.get(id).map(|(_, lease)| *lease)
    }

    /// The keys a lease owns, ascending.
    pub(crate) fn keys(&self, id: LeaseId) -> impl Iterator<Item = &Key> + '_ {
        self.attachments.iter_from((id, &[])).take_while(move |attached| attached.0 == id).map(|attached| &attached.1)
    }

    /// How many keys a lease owns.
    pub(crate) fn owned(&self, id: LeaseId) -> usize {
        /// Walking over a few is cheaper than finding both ends; over many it is not.
        const STEPS_MAX: usize = 8;
        let few = self.keys(id).take(STEPS_MAX).count();
        if few < STEPS_MAX {
            return few;
        }
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
        let before = self.table.insert(id, (id, lease));
        self.keep_aside(before);
    }

    /// Removes a lease whose keys are gone already.
    pub(crate) fn end(&mut self, id: LeaseId) -> Option<Lease> {
        let ended = self.table.remove(id);
        self.keep_aside(ended);
        ended.map(|(_, lease)| lease)
    }

    /// From now on [`Leases::page`] gives the leases as of entry `at`, until [`Leases::release`].
    pub(crate) fn hold(&mut self, at: LogIndex) {
        self.release();
        self.held = Some(at);
    }

    /// Nobody reads the leases in pages any more.
    pub(crate) fn release(&mut self) {
        self.held = None;
        self.departed = BTreeMap::new();
    }

    fn keep_aside(&mut self, departed: Option<(LeaseId, Lease)>) {
        if let (Some(held), Some((id, lease))) = (self.held, departed)
            && lease.granted_at <= held
        {
            self.departed.insert(id, lease);
        }
    }

    /// The next leases from `from` on as of entry `at`, ascending, found among `max` of those that exist now. And where
    /// to go on, unless that was all.
    pub(crate) fn page(&self, at: LogIndex, from: LeaseId, max: usize) -> (Vec<(LeaseId, Lease)>, Option<LeaseId>) {
        let mut table = self.table.iter_from(from);
        let mut page: Vec<_> = table.by_ref().take(max.max(1)).copied().collect();
        let next = table.next().map(|(id, _)| *id);
        page.retain(|(_, lease)| lease.granted_at <= at);
        let departed = self.departed.range(from..).take_while(|(id, _)| next.is_none_or(|next| **id < next));
        page.extend(departed.map(|(id, lease)| (*id, *lease)));
        page.sort_unstable_by_key(|(id, _)| *id);
        (page, next)
    }

    /// Makes `lease` own `key`; "no lease" owns nothing.
    pub(crate) fn attach(&mut self, lease: LeaseId, key: &Key) {
        if lease.is_some() {
            self.attachments.insert((lease, key.as_stored()), (lease, key.clone()));
        }
    }

    /// Undoes [`Leases::attach`].
    pub(crate) fn detach(&mut self, lease: LeaseId, key: &Key) {
        if lease.is_some() {
            self.attachments.remove((lease, key.as_stored()));
        }
    }
}
