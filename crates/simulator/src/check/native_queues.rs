//! K1, K2, K5, E1: locks, permits and elections, as the ledger tells them, revision by revision.
//!
//! - tokens of a name strictly increase and are the revision of their grant, so a token has one holder (K1, K2; of an
//!   election: E1);
//! - holders agree with each other: one exclusive one, or shared ones, or as many permits as there were when the last
//!   of them was let in (K2, E1);
//! - a place is granted when nobody waits before it (K5) and its session lives (K2);
//! - one who waits hears nothing until its turn: its record does not change (K5);
//! - after every entry whoever may be let in is let in: no wake-up is lost (K5).

use std::collections::{BTreeMap, BTreeSet};

use tidelock_model::native_keys::Slot;
use tidelock_model::native_records::{Place, Stored};
use tidelock_model::{Kind, LogIndex, Mode, Name};

use super::native_replay::{Subject, Thing, Things, ends, place, unsigned};
use super::{Findings, Prepared};
use crate::history::{NativeChange, NativeRecord, Stamp};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let mut walk = Walk {
        things: Things::default(),
        highest: BTreeMap::new(),
        ends: ends(prepared.history),
        touched: BTreeSet::new(),
    };
    let mut entry = LogIndex(0);
    for (revision, at) in &prepared.history.ledger.native {
        if at.index != entry {
            walk.finish_entry(entry, findings);
            entry = at.index;
        }
        let mut here: BTreeSet<Subject> = BTreeSet::new();
        for change in at.changes.iter().filter(|change| change.kind.is_queue()) {
            here.insert((change.kind, change.name.clone()));
            walk.take(unsigned(*revision), change, findings);
        }
        for (kind, name) in &here {
            walk.check_holders(*kind, name, *revision, findings);
        }
        walk.touched.extend(here);
    }
    walk.finish_entry(entry, findings);
}

struct Walk {
    things: Things,
    /// The greatest token of each name.
    highest: BTreeMap<Subject, u64>,
    ends: BTreeMap<i64, (Stamp, u64)>,
    /// Queues that the entry changed.
    touched: BTreeSet<Subject>,
}

/// The id of a property of locks, as elections call it.
fn id(kind: Kind, of_locks: &'static str) -> &'static str {
    if kind == Kind::Election { "E1" } else { of_locks }
}

impl Walk {
    fn take(&mut self, revision: u64, change: &NativeChange, findings: &mut Findings) {
        let before = self.things.apply(change);
        let (kind, name) = (change.kind, &change.name);
        let (Slot::Member { number, .. }, Some(record)) = (change.slot, &change.became) else { return };
        let Some(now) = place(record) else {
            return findings.add("K2", format_args!("{kind:?} {name}: {revision} wrote what is no place: {record:?}"));
        };
        let was = before.as_ref().and_then(place);
        if before.is_none() && number != revision {
            findings.add("K5", format_args!("{kind:?} {name}: place {number} was taken at {revision}"));
        }
        match was {
            Some(was) if was.token == 0 && now.token == 0 => findings.add(
                "K5",
                format_args!("{kind:?} {name}: place {number} waits and was told of at {revision} all the same"),
            ),
            Some(was) if was.token == now.token => check_kept(kind, name, revision, &before, record, findings),
            _ if now.token != 0 => self.check_grant((kind, name), revision, number, record, now, findings),
            _ => {}
        }
    }

    fn check_grant(
        &mut self,
        (kind, name): (Kind, &Name),
        revision: u64,
        number: u64,
        record: &NativeRecord,
        now: &Place,
        findings: &mut Findings,
    ) {
        let highest = self.highest.entry((kind, name.clone())).or_insert(0);
        if now.token <= *highest {
            let before = *highest;
            findings
                .add(id(kind, "K1"), format_args!("{kind:?} {name}: token {} was granted after {before}", now.token));
        }
        *highest = now.token.max(*highest);
        if now.token != revision {
            findings.add(id(kind, "K2"), format_args!("{kind:?} {name}: {revision} granted token {}", now.token));
        }
        if let Some((_, ended)) = self.ends.get(&record.session).filter(|(_, ended)| *ended <= revision) {
            let session = record.session;
            findings.add(
                "K2",
                format_args!("{kind:?} {name}: {revision} granted to session {session:x}, which ended at {ended}"),
            );
        }
        let Some(thing) = self.things.get(kind, name) else { return };
        let first = thing.places().find(|(before, _, place)| *before < number && !place.is_granted());
        if let Some((before, ..)) = first {
            findings.add(
                "K5",
                format_args!("{kind:?} {name}: {revision} granted place {number}, and {before} waited longer"),
            );
        }
    }

    fn check_holders(&self, kind: Kind, name: &Name, revision: i64, findings: &mut Findings) {
        let Some(thing) = self.things.get(kind, name) else { return };
        let holders: Vec<(u64, i64, &Place)> = thing.places().filter(|(.., place)| place.is_granted()).collect();
        let exclusive = holders.iter().any(|(.., place)| place.mode == Mode::Exclusive);
        if exclusive && holders.len() > 1 {
            findings.add(id(kind, "K2"), format_args!("{kind:?} {name} is held by several at {revision}: {holders:?}"));
        }
        if let (Kind::Semaphore, Some(Stored::Semaphore(head))) = (kind, thing.stored_head()) {
            let used: u64 = holders.iter().map(|(.., place)| weight(place)).sum();
            // Permits may become fewer than are out; then nobody is let in. Who wants more than there are by now gets
            // all of them.
            let permits = u64::from(head.permits);
            let is_new = |place: &Place| place.token == unsigned(revision);
            let beyond = |place: &Place| is_new(place) && used - weight(place) + weight(place).min(permits) > permits;
            if used != head.used || holders.iter().any(|(.., place)| beyond(place)) {
                findings.add(
                    "K2",
                    format_args!("{kind:?} {name} at {revision}: {used} are out of {head:?}, held by {holders:?}"),
                );
            }
        }
    }

    /// Whether somebody waits who could be let in.
    fn finish_entry(&mut self, entry: LogIndex, findings: &mut Findings) {
        for (kind, name) in std::mem::take(&mut self.touched) {
            let Some(thing) = self.things.get(kind, &name) else { continue };
            let Some((number, _, waiting)) = thing.places().find(|(.., place)| !place.is_granted()) else { continue };
            if may_enter(thing, waiting) {
                findings.add("K5", format_args!("{kind:?} {name}: place {number} was not let in by entry {entry}"));
            }
        }
    }
}

/// A holder shows something else, or shares from now on; nothing else about it changes.
fn check_kept(
    kind: Kind,
    name: &Name,
    revision: u64,
    before: &Option<NativeRecord>,
    record: &NativeRecord,
    findings: &mut Findings,
) {
    let Some(before) = before else { return };
    let (Some(was), Some(now)) = (place(before), place(record)) else { return };
    let same_mode = was.mode == now.mode || (was.mode == Mode::Exclusive && now.mode == Mode::Shared);
    if before.session != record.session || !same_mode {
        findings.add(
            id(kind, "K2"),
            format_args!("{kind:?} {name}: {revision} made {record:?} of {before:?}, under the same token"),
        );
    }
}

fn weight(place: &Place) -> u64 {
    match place.mode {
        Mode::Permits(weight) => u64::from(weight),
        _ => 0,
    }
}

/// Whether the first who waits could hold what it waits for.
fn may_enter(thing: &Thing, waiting: &Place) -> bool {
    let mut holders = thing.places().map(|(.., place)| place).filter(|place| place.is_granted());
    match waiting.mode {
        Mode::Exclusive => holders.next().is_none(),
        Mode::Shared => holders.all(|holder| holder.mode == Mode::Shared),
        Mode::Permits(wanted) => {
            let Some(Stored::Semaphore(head)) = thing.stored_head() else { return false };
            let used: u64 = holders.map(weight).sum();
            used + u64::from(wanted.min(head.permits)) <= u64::from(head.permits)
        }
    }
}
