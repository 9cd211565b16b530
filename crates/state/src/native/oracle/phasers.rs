//! Phasers, as simply as they can be said.

use std::collections::BTreeSet;

use tidelock_model::{LeaseId, Name, NativeNotice, OnDeath};

use super::Oracle;

#[derive(Clone, Debug)]
pub(in super::super) struct Party {
    pub(in super::super) party: u64,
    pub(in super::super) session: LeaseId,
    pub(in super::super) parties: u32,
    pub(in super::super) arrived: u32,
}

#[derive(Clone, Debug)]
pub(in super::super) struct Phaser {
    parent: Option<Name>,
    on_death: OnDeath,
    pub(in super::super) phase: u64,
    pub(in super::super) broken: bool,
    /// Of a root: whether its tree had parties when it was looked at last.
    was_active: bool,
    pub(in super::super) parties: Vec<Party>,
}

impl Oracle {
    fn root(&self, name: &Name) -> Name {
        match &self.phasers[name].parent {
            Some(parent) => self.root(parent),
            None => name.clone(),
        }
    }

    fn children<'a>(&'a self, name: &'a Name) -> impl Iterator<Item = &'a Name> {
        self.phasers.iter().filter(move |(_, child)| child.parent.as_ref() == Some(name)).map(|(child, _)| child)
    }

    /// Whether a phaser has parties, its own or its children's.
    pub(in super::super) fn is_active(&self, name: &Name) -> bool {
        !self.phasers[name].parties.is_empty() || self.children(name).any(|child| self.is_active(child))
    }

    /// Whether it has parties and all have arrived.
    pub(in super::super) fn is_done(&self, name: &Name) -> bool {
        let own = self.phasers[name].parties.iter().all(|party| party.arrived == party.parties);
        let children = self.children(name).all(|child| !self.is_active(child) || self.is_done(child));
        self.is_active(name) && own && children
    }

    fn is_too_late(&self, name: &Name) -> bool {
        match &self.phasers[name].parent {
            _ if self.is_active(name) => self.is_done(name),
            Some(parent) => self.is_too_late(parent),
            None => false,
        }
    }

    fn settle_phasers(&mut self) {
        let roots: Vec<Name> =
            self.phasers.iter().filter(|(_, phaser)| phaser.parent.is_none()).map(|(name, _)| name.clone()).collect();
        for root in roots {
            let is_active = self.is_active(&root);
            let Some(phaser) = self.phasers.get_mut(&root) else { continue };
            // The last party ends the phase by going.
            let is_left = std::mem::replace(&mut phaser.was_active, is_active) && !is_active;
            if phaser.broken || !(is_left || self.is_done(&root)) {
                continue;
            }
            let of_tree: Vec<Name> = self.phasers.keys().filter(|name| self.root(name) == root).cloned().collect();
            for name in of_tree {
                let parties = self.phasers.get_mut(&name).map(|phaser| phaser.parties.iter_mut());
                parties.into_iter().flatten().for_each(|party| party.arrived = 0);
            }
            if let Some(phaser) = self.phasers.get_mut(&root) {
                phaser.phase += 1;
                let phase = phaser.phase;
                self.told.push(NativeNotice::Phase { name: root, phase, broken: false });
            }
        }
    }

    pub(super) fn register(
        &mut self,
        session: LeaseId,
        name: &Name,
        parties: u32,
        parent: Option<&Name>,
        on_death: OnDeath,
        party: u64,
    ) -> bool {
        if parent.is_some_and(|parent| !self.phasers.contains_key(parent)) {
            return false;
        }
        let new =
            Phaser { parent: parent.cloned(), on_death, phase: 0, broken: false, was_active: false, parties: vec![] };
        let phaser = self.phasers.entry(name.clone()).or_insert(new);
        let agrees = phaser.parent.as_ref() == parent && phaser.on_death == on_death;
        if !agrees || self.phasers[&self.root(name)].broken || parties == 0 {
            return false;
        }
        let arrived = if self.is_too_late(name) { parties } else { 0 };
        if let Some(phaser) = self.phasers.get_mut(name) {
            phaser.parties.push(Party { party, session, parties, arrived });
        }
        self.settle_phasers();
        true
    }

    pub(super) fn arrive(&mut self, session: LeaseId, name: &Name, party: u64, count: u32, deregister: bool) -> bool {
        if !self.phasers.contains_key(name) || self.phasers[&self.root(name)].broken {
            return false;
        }
        let Some(phaser) = self.phasers.get_mut(name) else { return false };
        let mut found = phaser.parties.iter_mut();
        let Some(found) = found.find(|found| (found.party, found.session) == (party, session)) else { return false };
        let left = found.parties - found.arrived;
        let count = if count == 0 { left } else { count };
        if left == 0 || count > left {
            return false;
        }
        if deregister {
            found.parties -= count;
        } else {
            found.arrived += count;
        }
        phaser.parties.retain(|party| party.parties > 0);
        self.settle_phasers();
        true
    }

    /// A party went of its own accord.
    pub(super) fn lose_party(&mut self, name: &Name, is_gone: impl Fn(&Party) -> bool) -> bool {
        let Some(phaser) = self.phasers.get_mut(name) else { return false };
        let before = phaser.parties.len();
        phaser.parties.retain(|party| !is_gone(party));
        let gone = phaser.parties.len() < before;
        self.settle_phasers();
        gone
    }

    /// All parties of these sessions are gone at once.
    pub(super) fn lose_dead_parties(&mut self, dead: &BTreeSet<LeaseId>) {
        for name in self.phasers.keys().cloned().collect::<Vec<_>>() {
            let root = self.root(&name);
            let Some(phaser) = self.phasers.get_mut(&name) else { continue };
            let before = phaser.parties.len();
            phaser.parties.retain(|party| !dead.contains(&party.session));
            let breaks = phaser.parties.len() < before && phaser.on_death == OnDeath::Break;
            if let Some(root_phaser) = self.phasers.get_mut(&root).filter(|root| breaks && !root.broken) {
                root_phaser.broken = true;
                let phase = root_phaser.phase;
                self.told.push(NativeNotice::Phase { name: root, phase, broken: true });
            }
        }
        self.settle_phasers();
    }
}
