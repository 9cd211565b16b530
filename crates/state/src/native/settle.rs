//! What follows when members go, other than by their own request to leave: who waited for them is let in or told.
//!
//! All that sessions held vanishes at one revision (S1, L3), and what follows from it for others happens at the same
//! revision, but for grants beyond the first of a queue, which need revisions of their own (see `queue`).

use std::collections::BTreeMap;

use tidelock_model::native_keys::{self as keys, Slot};
use tidelock_model::native_records::{Place, Stored};
use tidelock_model::{Key, KeyValue, Kind, Name};

use super::queue::Queued;
use crate::State;
use crate::change::Revising;

impl State {
    /// Where two bugs of the zoo live: what sessions that end leave behind.
    pub(crate) fn plant_in_native_ends(&self, keys: &mut Vec<Key>) {
        let place = |key: &Key| self.keyspace.get(key).and_then(Queued::read).map(|queued| queued.place);
        if tidelock_model::planted!(DeadWaiterStays) {
            keys.retain(|key| place(key).is_none_or(|place| place.is_granted()));
        }
        if tidelock_model::planted!(SessionEndLeavesAHolding)
            && let Some(left) = keys.iter().rposition(|key| keys::parse_borrowed(key).is_some())
        {
            keys.remove(left);
        }
    }

    /// After leases ended: `gone` is all they owned, deleted already. Other keys are none of its business.
    pub(crate) fn settle_native_after(&mut self, at: &mut Revising<'_>, gone: &[KeyValue]) {
        let mut by_name: BTreeMap<(Kind, Name), Vec<&KeyValue>> = BTreeMap::new();
        for item in gone {
            if let Some((kind, name, Slot::Member { .. })) = keys::parse(&item.key) {
                by_name.entry((kind, name)).or_default().push(item);
            }
        }
        let (mut later, mut phasers) = (Vec::new(), Vec::new());
        for ((kind, name), gone) in by_name {
            if kind == Kind::Phaser {
                let parties = gone.iter().filter_map(|item| Stored::read(item.record.value()));
                phasers.push((name, parties.collect::<Vec<_>>()));
                continue;
            }
            if !kind.is_queue() {
                self.settle_members(at, kind, &name, &gone);
                continue;
            }
            let places: Vec<Queued> = gone.iter().filter_map(|item| Queued::read(item)).collect();
            let mut grants = self.grantable_after(at, kind, &name, &places).into_iter();
            if let Some(first) = grants.next() {
                self.grant(at, kind, &name, first);
            }
            later.extend(grants.map(|grant| (kind, name.clone(), grant)));
        }
        self.settle_dead_parties(at, &phasers);
        for (kind, name, grant) in later {
            at.step(self);
            self.grant(at, kind, &name, grant);
        }
    }

    /// After a member gave up, deleted already; tells the token it had.
    pub(super) fn settle_given_up(&mut self, at: &mut Revising<'_>, kind: Kind, name: &Name, gone: &KeyValue) -> u64 {
        if !kind.is_queue() {
            self.settle_members(at, kind, name, &[gone]);
            return 0;
        }
        if let Some(place) = Queued::read(gone).filter(|_| !tidelock_model::planted!(GivingUpWakesNobody)) {
            self.settle_queue(at, kind, name, &[place]);
        }
        Place::of(&gone.record).map_or(0, |(place, _)| place.token)
    }

    fn settle_members(&mut self, at: &mut Revising<'_>, kind: Kind, name: &Name, gone: &[&KeyValue]) {
        match kind {
            // As many as fit into memory; counts are below 2^32.
            Kind::Barrier => self.settle_barrier(at, name, gone.len() as u32),
            Kind::Latch => self.settle_latch(at, name, gone.len() as u64),
            Kind::Phaser => {
                let parties: Vec<Stored> = gone.iter().filter_map(|item| Stored::read(item.record.value())).collect();
                self.settle_phaser(at, name, &parties);
            }
            Kind::Rcu => drop(self.settle_versions(at, name)),
            Kind::Hazard => self.settle_hazard(at, name),
            Kind::Lock | Kind::Election | Kind::Semaphore | Kind::Counter | Kind::Fence => {}
        }
    }
}
