//! B1, P1, U1: latches, phasers, versions and hazards, as the ledger tells them, revision by revision.
//!
//! - a latch is counted down to its end and not beyond, and opens then (B1);
//! - a phase ends when all parties of all phasers of the tree arrived in it or the last of them went, at once, and the
//!   next one is one greater; one of a broken tree never ends (P1);
//! - no version may go that somebody reads, and no object that somebody keeps; versions ascend (U1);
//! - an object that was retired stays so, has one epoch that no other of its name had, and is protected no more (U1).
//!
//! Barriers have a file of their own (`native_barriers.rs`).

use std::collections::BTreeMap;

use tidelock_model::native_keys::Slot;
use tidelock_model::native_records::{Gate, HazardStage, Phaser, Stored};
use tidelock_model::{Kind, LogIndex, Name};

use super::native_replay::{Thing, Things, stored, unsigned};
use super::{Findings, Prepared};
use crate::history::{NativeChange, NativeRecord, NativeRevision};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let mut walk = Walk::default();
    let mut entry = LogIndex(0);
    for (revision, at) in &prepared.history.ledger.native {
        if at.index != entry {
            walk.finish_entry(entry, findings);
            entry = at.index;
        }
        walk.take(unsigned(*revision), at, findings);
    }
    walk.finish_entry(entry, findings);
}

#[derive(Default)]
struct Walk {
    things: Things,
    /// Whether the entry changed anything about phasers.
    phasers: bool,
}

impl Walk {
    fn take(&mut self, revision: u64, at: &NativeRevision, findings: &mut Findings) {
        let mut phases = Vec::new();
        let has_phasers = at.changes.iter().any(|change| change.kind == Kind::Phaser);
        let trees = if has_phasers { self.trees() } else { BTreeMap::new() };
        self.phasers |= has_phasers;
        for (position, change) in at.changes.iter().enumerate() {
            let before = self.things.apply(change);
            match (change.kind, change.slot) {
                (Kind::Latch, Slot::Tally) => check_count(revision, change, before.as_ref(), findings),
                (Kind::Latch, Slot::Head) => self.check_latch(revision, (at, position), findings),
                (Kind::Phaser, Slot::Head) => {
                    if let Some(before) = before.as_ref() {
                        phases.push((change, before.clone()));
                    }
                }
                (Kind::Rcu, Slot::Head) => check_ascends(revision, change, before.as_ref(), findings),
                (Kind::Hazard, Slot::Head) => check_stage(revision, change, before.as_ref(), findings),
                (Kind::Hazard, _) if change.became.is_some() => self.check_protected(revision, change, findings),
                _ => {}
            }
        }
        for (change, before) in phases {
            self.check_phase(revision, change, &before, findings);
        }
        self.check_emptied(revision, &trees, findings);
        for change in at.changes.iter().filter(|change| matches!(change.kind, Kind::Rcu | Kind::Hazard)) {
            self.check_free(revision, change, findings);
        }
    }

    fn check_latch(&self, revision: u64, (at, position): (&NativeRevision, usize), findings: &mut Findings) {
        let change = &at.changes[position];
        let Some(Stored::Latch { gate: Gate::Open, .. }) = change.became.as_ref().and_then(stored) else { return };
        let tally = self.things.get(Kind::Latch, &change.name).and_then(Thing::stored_tally);
        // Clients count down by one; pledges of the dead go before, as many as they were.
        let pledges =
            at.changes[..position].iter().filter(|other| other.kind == Kind::Latch && other.name == change.name);
        let pledges =
            pledges.filter(|other| matches!(other.slot, Slot::Member { .. }) && other.became.is_none()).count();
        if let Some(Stored::LatchCount { left, of }) = tally
            && *left > (pledges as u64).max(1)
        {
            findings.add("B1", format_args!("latch {} opened at {revision} with {left} of {of} left", change.name));
        }
    }

    /// The head of a phaser changed that was there before.
    fn check_phase(&self, revision: u64, change: &NativeChange, before: &NativeRecord, findings: &mut Findings) {
        let (Some(Stored::Phaser(was)), Some(Stored::Phaser(now))) =
            (stored(before), change.became.as_ref().and_then(stored))
        else {
            return;
        };
        if now.phase == was.phase {
            return;
        }
        let name = &change.name;
        if now.phase != was.phase + 1 || was.broken {
            findings.add("P1", format_args!("phaser {name} went from {was:?} to {now:?} at {revision}"));
        }
        for (of, thing) in self.things.of_kind(Kind::Phaser) {
            if self.root(of).as_ref() != Some(name) {
                continue;
            }
            for ((party, _), record) in &thing.members {
                let Some(Stored::Party { parties, arrived, phase }) = stored(record) else { continue };
                if *phase != was.phase || arrived != parties {
                    findings.add(
                        "P1",
                        format_args!(
                            "phase {} of {name} ended at {revision}; party {party} of {of} had not arrived: {record:?}",
                            was.phase
                        ),
                    );
                }
            }
        }
    }

    /// The trees there are: their roots, and how many members of all their phasers there are.
    fn trees(&self) -> BTreeMap<Name, (Phaser, usize)> {
        let mut trees = BTreeMap::new();
        for (name, thing) in self.things.of_kind(Kind::Phaser) {
            let root = self.root(name).and_then(|root| {
                let head = self.things.get(Kind::Phaser, &root).and_then(Thing::stored_head).cloned();
                Some((root, head?))
            });
            if let Some((root, Stored::Phaser(head))) = root {
                trees.entry(root).or_insert((head, 0)).1 += thing.members.len();
            }
        }
        trees
    }

    /// The last party of a tree ends its phase by going: who only looks on would wait for ever.
    fn check_emptied(&self, revision: u64, before: &BTreeMap<Name, (Phaser, usize)>, findings: &mut Findings) {
        if before.is_empty() {
            return;
        }
        for (root, (now, members)) in self.trees() {
            let Some((was, before)) = before.get(&root) else { continue };
            if *before > 0 && members == 0 && now.phase == was.phase && !now.broken {
                findings.add("P1", format_args!("the last party of {root} went at {revision}, and its phase goes on"));
            }
        }
    }

    /// The root of the tree a phaser is part of.
    fn root(&self, name: &Name) -> Option<Name> {
        let mut name = name.clone();
        loop {
            match self.things.get(Kind::Phaser, &name)?.stored_head()? {
                Stored::Phaser(phaser) => match &phaser.parent {
                    Some(parent) => name = parent.clone(),
                    None => return Some(name),
                },
                _ => return None,
            }
        }
    }

    /// Whether a tree waits although all of it arrived.
    fn finish_entry(&mut self, entry: LogIndex, findings: &mut Findings) {
        if !std::mem::take(&mut self.phasers) {
            return;
        }
        for (root, thing) in self.things.of_kind(Kind::Phaser) {
            let Some(Stored::Phaser(head)) = thing.stored_head().filter(|_| self.root(root).as_ref() == Some(root))
            else {
                continue;
            };
            let of_tree = self.things.of_kind(Kind::Phaser).filter(|(name, _)| self.root(name).as_ref() == Some(root));
            let parties: Vec<&NativeRecord> = of_tree.flat_map(|(_, thing)| thing.members.values()).collect();
            let done = |record: &NativeRecord| {
                matches!(stored(record), Some(Stored::Party { parties, arrived, phase })
                    if *phase == head.phase && arrived == parties)
            };
            if !head.broken && !parties.is_empty() && parties.into_iter().all(done) {
                findings.add("P1", format_args!("all of {root} arrived by entry {entry}, and its phase goes on"));
            }
        }
    }

    /// Who keeps an object that was retired would keep what its owner deletes.
    fn check_protected(&self, revision: u64, change: &NativeChange, findings: &mut Findings) {
        let head = self.things.get(Kind::Hazard, &change.name).and_then(Thing::stored_head);
        if !matches!(head, Some(Stored::Hazard { stage: HazardStage::Alive, .. })) {
            findings.add("U1", format_args!("{} was protected at {revision}: {head:?}", change.name));
        }
    }

    /// What may go is not looked at any more.
    fn check_free(&self, revision: u64, change: &NativeChange, findings: &mut Findings) {
        let name = &change.name;
        let Some(thing) = self.things.get(change.kind, name) else { return };
        let told = change.became.as_ref().and_then(stored);
        if matches!(told, Some(Stored::Hazard { stage: HazardStage::Retired, .. })) && !thing.members.is_empty() {
            findings.add("U1", format_args!("{name} may go at {revision}, and {:?} keep it", thing.members));
        }
        let first = thing.members.keys().map(|(number, version)| (*version, *number)).min();
        match (thing.stored_head(), first) {
            (Some(Stored::Rcu { oldest, .. }), Some((version, reader))) if version < *oldest => {
                findings.add(
                    "U1",
                    format_args!(
                        "{name}: versions before {oldest} may go at {revision}; reader {reader} reads {version}"
                    ),
                );
            }
            (Some(Stored::Rcu { version, oldest }), first)
                if *oldest < first.map_or(*version, |(version, _)| version) =>
            {
                findings.add("U1", format_args!("{name}: nobody reads {oldest} at {revision}, and it may not go"));
            }
            (Some(Stored::Hazard { stage: HazardStage::Retiring, .. }), None) => {
                findings.add("U1", format_args!("{name}: nobody keeps it at {revision}, and it may not go"));
            }
            _ => {}
        }
    }
}

/// A count goes down, or begins anew when its latch does.
fn check_count(revision: u64, change: &NativeChange, before: Option<&NativeRecord>, findings: &mut Findings) {
    let (Some(Stored::LatchCount { left: was, .. }), Some(Stored::LatchCount { left, .. })) =
        (before.and_then(stored), change.became.as_ref().and_then(stored))
    else {
        return;
    };
    if left >= was || *left == 0 {
        findings.add("B1", format_args!("latch {} went from {was} to {left} at {revision}", change.name));
    }
}

fn check_ascends(revision: u64, change: &NativeChange, before: Option<&NativeRecord>, findings: &mut Findings) {
    let (was, now) = (before.and_then(stored), change.became.as_ref().and_then(stored));
    if let (Some(Stored::Rcu { version: was_at, oldest: before }), Some(Stored::Rcu { version, oldest })) = (was, now)
        && (version < was_at || oldest < before)
    {
        findings.add("U1", format_args!("{}: {revision} made {now:?} of {was:?}", change.name));
    }
}

/// Epochs are revisions, so nobody who comes back from a long pause finds the one it had: not even if the name was
/// forgotten meanwhile.
fn check_stage(revision: u64, change: &NativeChange, before: Option<&NativeRecord>, findings: &mut Findings) {
    let hazard = |record: &NativeRecord| match stored(record) {
        Some(Stored::Hazard { epoch, stage }) => Some((*epoch, *stage)),
        _ => None,
    };
    let (was, now) = (before.and_then(hazard), change.became.as_ref().and_then(hazard));
    let follows = match (was, now) {
        (None | Some((_, HazardStage::Alive)), Some((epoch, HazardStage::Retiring | HazardStage::Retired)))
        | (None, Some((epoch, HazardStage::Alive))) => epoch == revision,
        (Some((before, HazardStage::Retiring)), Some((epoch, HazardStage::Retired))) => epoch == before,
        (_, None) => true,
        _ => false,
    };
    if !follows {
        findings.add("U1", format_args!("{}: {revision} made {now:?} of {was:?}", change.name));
    }
}

#[cfg(test)]
mod tests {
    use tidelock_model::native_records::{HazardStage, Stored};
    use tidelock_model::{Kind, LeaseId, NativeAnswer, NativeError, NativeOp, OnDeath};

    use crate::check::native_tests::{Maker, assert_found, name, violations};
    use crate::history::{History, NativeChange, NativeTold, NativeValue};

    fn forget(maker: &mut Maker, session: LeaseId) {
        maker.ask(session, NativeOp::Forget { kind: Kind::Hazard, name: name("h") }).unwrap();
    }

    /// An object is kept, retired, let go and forgotten; then there is another one of its name.
    fn retired() -> History {
        let mut maker = Maker::new();
        let session = maker.open(1);
        let protect = || NativeOp::Protect { name: name("h") };
        let Ok(NativeAnswer::Protected { place, .. }) = maker.ask(session, protect()) else { panic!() };
        maker.ask(session, NativeOp::Retire { name: name("h") }).unwrap();
        maker.ask(session, NativeOp::GiveUp { kind: Kind::Hazard, name: name("h"), place }).unwrap();
        assert!(matches!(maker.ask(session, protect()), Err(NativeError::Retiring { .. })));
        forget(&mut maker, session);
        maker.ask(session, protect()).unwrap();
        maker.done()
    }

    fn hazard(change: &mut NativeChange) -> Option<(&mut u64, &mut HazardStage)> {
        match change.became.as_mut().map(|record| &mut record.value) {
            Some(NativeValue::Stored(Stored::Hazard { epoch, stage })) => Some((epoch, stage)),
            _ => None,
        }
    }

    /// Who comes back from a long pause must not take another object for the one that it read, nor one that goes for
    /// one that stays.
    #[test]
    fn u1_an_object_that_comes_back_is_caught() {
        assert_eq!(violations(&retired()), [] as [&str; 0]);
        let mut history = retired();
        let mut heads = history.ledger.native.values_mut().flat_map(|at| &mut at.changes).filter_map(hazard);
        let first = *heads.next().unwrap().0;
        *heads.last().unwrap().0 = first;
        assert_found(&history, "U1 native_meetings");
        let mut history = retired();
        history.ledger.native.retain(|_, at| {
            at.changes.iter().all(|change| change.became.is_some() || change.slot != super::Slot::Head)
        });
        assert_found(&history, "U1 native_meetings");
    }

    /// Readers would keep what its owner deletes, and owners delete what is read.
    #[test]
    fn u1_wrong_news_of_an_object_is_caught() {
        let mut damaged = 0;
        for call in 0..retired().native.len() {
            let mut history = retired();
            match &mut history.native[call].told {
                NativeTold::Decided { result: Ok(NativeAnswer::Protected { epoch, .. }), .. }
                | NativeTold::Decided { result: Err(NativeError::Retiring { epoch }), .. } => *epoch += 1,
                NativeTold::Decided { result: Ok(NativeAnswer::Retired { clear, .. }), .. } => *clear = !*clear,
                _ => continue,
            }
            assert_found(&history, "U1 native_answers");
            damaged += 1;
        }
        assert_eq!(damaged, 4, "two are protected, one is retired, one refused");
    }

    /// Who looks on, or comes to look, would wait for a phase that nobody is left to end.
    #[test]
    fn p1_a_phase_that_outlives_the_last_party_is_caught() {
        let emptied = || {
            let mut maker = Maker::new();
            let session = maker.open(1);
            let op = NativeOp::Register { name: name("p"), parties: 1, parent: None, on_death: OnDeath::Shrink };
            let Ok(NativeAnswer::Registered { party, .. }) = maker.ask(session, op) else { panic!() };
            maker.ask(session, NativeOp::GiveUp { kind: Kind::Phaser, name: name("p"), place: party }).unwrap();
            maker.done()
        };
        assert_eq!(violations(&emptied()), [] as [&str; 0]);
        let mut history = emptied();
        let last = history.ledger.native.values_mut().next_back().unwrap();
        last.changes.retain(|change| change.slot != super::Slot::Head);
        assert_found(&history, "P1 native_meetings");
    }
}
