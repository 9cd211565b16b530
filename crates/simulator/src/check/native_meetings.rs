//! B1, P1, U1: barriers, latches, phasers, versions and hazards, as the ledger tells them, revision by revision.
//!
//! - a barrier opens when as many are there as were expected, and not before; who went is not expected any more; who
//!   comes when a meeting is over begins the next one (B1);
//! - a latch is counted down to its end and not beyond, and opens then (B1);
//! - a phase ends when all parties of all phasers of the tree arrived in it, at once, and the next one is one greater;
//!   one of a broken tree never ends (P1);
//! - no version may go that somebody reads, and no object that somebody keeps; epochs and versions ascend (U1).

use std::collections::BTreeMap;

use tidelock_model::native_keys::Slot;
use tidelock_model::native_records::{Barrier, Gate, Stored};
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
    /// How many went from a barrier's meeting before it opened.
    gone: BTreeMap<Name, u32>,
    /// Whether the entry changed anything about phasers.
    phasers: bool,
}

impl Walk {
    fn take(&mut self, revision: u64, at: &NativeRevision, findings: &mut Findings) {
        let mut phases = Vec::new();
        for (position, change) in at.changes.iter().enumerate() {
            let before = self.things.apply(change);
            self.phasers |= change.kind == Kind::Phaser;
            match (change.kind, change.slot) {
                (Kind::Barrier, _) => self.take_barrier(revision, (at, position), before.as_ref(), findings),
                (Kind::Latch, Slot::Tally) => check_count(revision, change, before.as_ref(), findings),
                (Kind::Latch, Slot::Head) => self.check_latch(revision, (at, position), findings),
                (Kind::Phaser, Slot::Head) => {
                    if let Some(before) = before.as_ref() {
                        phases.push((change, before.clone()));
                    }
                }
                (Kind::Rcu | Kind::Hazard, Slot::Head) => {
                    check_ascends(revision, change, before.as_ref(), findings);
                }
                _ => {}
            }
        }
        for (change, before) in phases {
            self.check_phase(revision, change, &before, findings);
        }
        for change in at.changes.iter().filter(|change| matches!(change.kind, Kind::Rcu | Kind::Hazard)) {
            self.check_free(revision, change, findings);
        }
    }

    fn take_barrier(
        &mut self,
        revision: u64,
        (at, position): (&NativeRevision, usize),
        before: Option<&NativeRecord>,
        findings: &mut Findings,
    ) {
        let change = &at.changes[position];
        let name = &change.name;
        let of_this = |change: &&NativeChange| change.kind == Kind::Barrier && change.name == *name;
        match (change.slot, &change.became) {
            (Slot::Member { .. }, None) => {
                // One that goes while its meeting waits; those of a meeting that is over follow its head.
                let head = self.things.get(Kind::Barrier, name).and_then(Thing::stored_head);
                if matches!(head, Some(Stored::Barrier(barrier)) if barrier.gate == Gate::Shut) {
                    *self.gone.entry(name.clone()).or_default() += 1;
                }
            }
            (Slot::Head, None) => drop(self.gone.remove(name)),
            (Slot::Head, Some(record)) => {
                let Some(Stored::Barrier(barrier)) = stored(record) else { return };
                let was_shut = !matches!(before.and_then(stored), Some(Stored::Barrier(was)) if was.gate == Gate::Open);
                if barrier.gate != Gate::Open || !was_shut {
                    return;
                }
                let (earlier, later) = at.changes.split_at(position);
                let is_member = |change: &&NativeChange| matches!(change.slot, Slot::Member { .. });
                let went = earlier.iter().filter(of_this).filter(is_member).any(|change| change.became.is_none());
                let members = self.things.get(Kind::Barrier, name).map_or(0, |thing| thing.members.len());
                // Whoever opened it by arriving is there without a record, or gets one right after.
                let came = later.iter().filter(of_this).filter(is_member).any(|change| change.became.is_some());
                let arrived = if went && !came { 0 } else { 1 };
                self.check_opened(revision, name, barrier, members as u32 + arrived, findings);
            }
            _ => {}
        }
    }

    fn check_opened(&self, revision: u64, name: &Name, barrier: &Barrier, there: u32, findings: &mut Findings) {
        let gone = self.gone.get(name).copied().unwrap_or(0);
        if there < barrier.expected || barrier.expected + gone < barrier.parties {
            findings.add(
                "B1",
                format_args!("barrier {name} opened at {revision} with {there} there and {gone} gone: {barrier:?}"),
            );
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

    /// What may go is not looked at any more.
    fn check_free(&self, revision: u64, change: &NativeChange, findings: &mut Findings) {
        let name = &change.name;
        let Some(thing) = self.things.get(change.kind, name) else { return };
        let told = change.became.as_ref().and_then(stored);
        if matches!(told, Some(Stored::Hazard { retiring: false, .. })) && !thing.members.is_empty() {
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
            (Some(Stored::Hazard { retiring: true, .. }), None) => {
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
    let falls = match (was, now) {
        (Some(Stored::Rcu { version: was, oldest }), Some(Stored::Rcu { version, oldest: now })) => {
            version < was || now < oldest
        }
        (Some(Stored::Hazard { epoch: was, .. }), Some(Stored::Hazard { epoch, retiring })) => {
            epoch < was || (epoch == was && *retiring)
        }
        _ => false,
    };
    if falls {
        findings.add("U1", format_args!("{}: {revision} made {now:?} of {was:?}", change.name));
    }
}
