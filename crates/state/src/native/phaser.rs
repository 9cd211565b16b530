//! Phasers: parties that come and go, and end each phase together.
//!
//! A phaser may be part of another one. A tree of them has one phase, that of its root; a child with parties counts
//! as one party of its parent, arrives when all its own have arrived, and goes when its last one goes. So the phase
//! ends when all of the tree have arrived (P1), with one change of one record that all may watch, and each arrival
//! changes a tally that few share: ten thousand parties do not meet in one record.
//!
//! What was noted in an earlier phase counts for nothing, so that nobody's record changes when a phase ends. Who joins
//! a phaser whose parties have all arrived takes part from the next phase on. A party that gives up is gone; one that
//! dies is gone, or breaks the whole tree, as its phaser was made. The last party of a tree ends its phase by going.

use tidelock_model::limits::{NATIVE_PARTIES_MAX, NATIVE_PHASER_DEPTH_MAX};
use tidelock_model::native_keys as keys;
use tidelock_model::native_records::{Phaser, PhaserTally, Stored};
use tidelock_model::{Kind, LeaseId, Name, NativeAnswer, NativeError, OnDeath};

use crate::State;
use crate::change::Revising;

/// A phaser and those it is part of, the root last.
pub(super) struct Line {
    names: Vec<Name>,
    root: Phaser,
}

impl Line {
    pub(super) fn root(&self) -> &Name {
        self.names.last().expect("a line has a phaser")
    }

    pub(super) fn phase(&self) -> u64 {
        self.root.phase
    }
}

impl State {
    fn phaser(&self, name: &Name) -> Option<Phaser> {
        match self.stored(&keys::head(Kind::Phaser, name)) {
            Some(Stored::Phaser(phaser)) => Some(phaser),
            _ => None,
        }
    }

    pub(super) fn phaser_tally(&self, name: &Name) -> PhaserTally {
        match self.stored(&keys::tally(Kind::Phaser, name)) {
            Some(Stored::PhaserTally(tally)) => tally,
            _ => PhaserTally::default(),
        }
    }

    fn put_phaser_tally(&mut self, at: &mut Revising<'_>, name: &Name, tally: PhaserTally) {
        self.put_stored(at, keys::tally(Kind::Phaser, name), &Stored::PhaserTally(tally));
    }

    pub(super) fn line(&self, name: &Name) -> Result<Line, NativeError> {
        let mut names = vec![name.clone()];
        let mut phaser = self.phaser(name).ok_or(NativeError::NotFound)?;
        while let Some(parent) = phaser.parent.take() {
            if names.len() >= NATIVE_PHASER_DEPTH_MAX {
                return Err(NativeError::NestedTooDeep);
            }
            phaser = self.phaser(&parent).ok_or(NativeError::NotFound)?;
            names.push(parent);
        }
        Ok(Line { names, root: phaser })
    }

    pub(super) fn register(
        &mut self,
        at: &mut Revising<'_>,
        session: LeaseId,
        name: &Name,
        parties: u32,
        parent: Option<Name>,
        on_death: OnDeath,
    ) -> Result<NativeAnswer, NativeError> {
        let new = Phaser { phase: 0, on_death, broken: false, parent };
        let found = self.phaser(name);
        let line = match (&found, &new.parent) {
            (Some(found), _) if found.on_death != on_death || found.parent != new.parent => {
                return Err(NativeError::Differs { made: 0 });
            }
            (Some(_), _) => self.line(name)?,
            (None, None) => Line { names: vec![name.clone()], root: new.clone() },
            (None, Some(parent)) => {
                let mut line = self.line(parent)?;
                if line.names.len() >= NATIVE_PHASER_DEPTH_MAX {
                    return Err(NativeError::NestedTooDeep);
                }
                line.names.insert(0, name.clone());
                line
            }
        };
        if line.root.broken {
            return Err(NativeError::Broken);
        }
        let registered = self.phaser_tally(name).registered;
        if parties == 0 || parties > NATIVE_PARTIES_MAX - registered.min(NATIVE_PARTIES_MAX) {
            return Err(NativeError::BadCount);
        }
        self.check_member(session, Kind::Phaser, name)?;
        if found.is_none() {
            self.put_stored(at, keys::head(Kind::Phaser, name), &Stored::Phaser(new));
        }
        let (party, phase) = (at.revision().0, line.phase());
        let is_late = self.join(at, &line.names, phase, parties);
        let member = Stored::Party { parties, arrived: if is_late { parties } else { 0 }, phase };
        self.put_party(at, session, name, party, &member);
        Ok(NativeAnswer::Registered { party, phase: phase + u64::from(is_late) })
    }

    fn put_party(&mut self, at: &mut Revising<'_>, session: LeaseId, name: &Name, party: u64, member: &Stored) {
        let value = tidelock_model::Wire::to_bytes(member).into();
        self.put_owned(at, keys::member(Kind::Phaser, name, party), value, session);
    }

    pub(super) fn arrive(
        &mut self,
        at: &mut Revising<'_>,
        session: LeaseId,
        name: &Name,
        party: u64,
        count: u32,
        deregister: bool,
    ) -> Result<NativeAnswer, NativeError> {
        let key = self.own_member(session, Kind::Phaser, name, party)?;
        let line = self.line(name)?;
        if line.root.broken {
            return Err(NativeError::Broken);
        }
        let phase = line.phase();
        let (parties, arrived) = self.party_in(&key, phase).ok_or(NativeError::NotFound)?;
        let left = parties.saturating_sub(arrived);
        let count = if count == 0 { left } else { count };
        if count > left || left == 0 {
            return Err(NativeError::AlreadyArrived { phase });
        }
        if !deregister {
            self.put_party(at, session, name, party, &Stored::Party { parties, arrived: arrived + count, phase });
            self.count_arrivals(at, &line, 0, count);
        } else {
            if count == parties {
                self.delete_key(at, &key);
            } else {
                self.put_party(at, session, name, party, &Stored::Party { parties: parties - count, arrived, phase });
            }
            self.count_leaving(at, &line, 0, count, 0);
        }
        let now = self.phaser(line.root()).map_or(phase, |root| root.phase);
        Ok(NativeAnswer::Arrived { phase, now })
    }

    /// How many parties a member stands for, and how many of them have arrived in this phase.
    fn party_in(&self, key: &tidelock_model::Key, phase: u64) -> Option<(u32, u32)> {
        party_of(&self.stored(key)?, phase)
    }

    /// Adds parties; says whether they are too late for this phase.
    fn join(&mut self, at: &mut Revising<'_>, line: &[Name], phase: u64, parties: u32) -> bool {
        let Some((name, above)) = line.split_first() else { return false };
        let tally = self.phaser_tally(name).in_phase(phase);
        // The first party of a child makes it one of its parent's.
        let is_late = tally.is_complete() || (tally.registered == 0 && self.join(at, above, phase, 1));
        let arrived = if is_late { tally.arrived + parties } else { tally.arrived };
        self.put_phaser_tally(at, name, PhaserTally { registered: tally.registered + parties, arrived, phase });
        is_late
    }

    fn count_arrivals(&mut self, at: &mut Revising<'_>, line: &Line, storey: usize, count: u32) {
        let Some(name) = line.names.get(storey) else { return self.advance_phase(at, line) };
        let before = self.phaser_tally(name).in_phase(line.phase());
        let tally = PhaserTally { arrived: before.arrived + count, ..before };
        assert!(tally.arrived <= tally.registered, "nobody arrives twice in a phase (P1)");
        self.put_phaser_tally(at, name, tally);
        if tally.is_complete() || (tidelock_model::planted!(PhaseEndsWithOneChild) && storey > 0) {
            self.count_arrivals(at, line, storey + 1, 1);
        }
    }

    /// Takes parties out, of which some have arrived in this phase.
    fn count_leaving(&mut self, at: &mut Revising<'_>, line: &Line, storey: usize, parties: u32, arrived: u32) {
        // The root has no parties any more: nobody holds the phase up, and who looks on must not wait for ever.
        let Some(name) = line.names.get(storey) else { return self.advance_phase(at, line) };
        let before = self.phaser_tally(name).in_phase(line.phase());
        let tally = PhaserTally {
            registered: before.registered.saturating_sub(parties),
            arrived: before.arrived.saturating_sub(arrived),
            ..before
        };
        self.put_phaser_tally(at, name, tally);
        if tally.registered == 0 {
            self.count_leaving(at, line, storey + 1, 1, u32::from(before.is_complete()));
        } else if tally.is_complete() && !before.is_complete() {
            self.count_arrivals(at, line, storey + 1, 1);
        }
    }

    fn advance_phase(&mut self, at: &mut Revising<'_>, line: &Line) {
        let Some(root) = self.phaser(line.root()).filter(|root| !root.broken) else { return };
        assert_eq!(root.phase, line.phase(), "a phase ends once (P1)");
        let root = Phaser { phase: root.phase + 1, ..root };
        self.put_stored(at, keys::head(Kind::Phaser, line.root()), &Stored::Phaser(root));
    }

    /// What becomes of a phaser whose parties went.
    pub(super) fn settle_phaser(&mut self, at: &mut Revising<'_>, name: &Name, gone: &[Stored]) {
        let Ok(line) = self.line(name) else { return };
        let (parties, arrived) = sum_of(gone, line.phase());
        let twice = tidelock_model::planted!(DeadPartyCountedTwice) && parties == 1 && arrived == 0;
        self.count_leaving(at, &line, 0, parties + u32::from(twice), arrived);
    }

    /// What becomes of phasers whose parties died together: as if they had all gone at once. So trees that break do so
    /// first, and parties that had arrived go before the others, who hold the phase up until the last of them is gone.
    pub(super) fn settle_dead_parties(&mut self, at: &mut Revising<'_>, dead: &[(Name, Vec<Stored>)]) {
        let (mut all_arrived, mut others) = (Vec::new(), Vec::new());
        for (name, gone) in dead {
            let Ok(line) = self.line(name) else { continue };
            let breaks = self.phaser(name).is_some_and(|phaser| phaser.on_death == OnDeath::Break);
            if breaks && !line.root.broken {
                let root = Phaser { broken: true, ..line.root.clone() };
                self.put_stored(at, keys::head(Kind::Phaser, line.root()), &Stored::Phaser(root));
            }
            let (parties, arrived) = sum_of(gone, line.phase());
            if parties == arrived { &mut all_arrived } else { &mut others }.push((name, gone));
        }
        for (name, gone) in all_arrived.into_iter().chain(others) {
            if tidelock_model::planted!(PhaserDeathHoldsUp) {
                continue;
            }
            self.settle_phaser(at, name, gone);
        }
    }
}

/// How many parties these stand for, and how many of them have arrived in this phase.
fn sum_of(gone: &[Stored], phase: u64) -> (u32, u32) {
    let parties = gone.iter().filter_map(|gone| party_of(gone, phase));
    parties.fold((0, 0), |(all, done), (parties, arrived)| (all + parties, done + arrived))
}

fn party_of(stored: &Stored, in_phase: u64) -> Option<(u32, u32)> {
    match *stored {
        Stored::Party { parties, arrived, phase } => Some((parties, if phase == in_phase { arrived } else { 0 })),
        _ => None,
    }
}
