//! K5, E1, B1, P1 as told: what a node's subscription tells of native primitives is what happened, in order, once each.
//!
//! Of everything after the revision it was opened at: each grant, to its session alone; each change of a leader; each
//! meeting that opened, ended or broke; each gate; each phase. Who was open when the run ended was told all of it.

use tidelock_model::native_keys::Slot;
use tidelock_model::native_records::{Gate, Stored};
use tidelock_model::{LeaseId, NativeNotice};

use super::native_replay::{Things, grants, stored, unsigned};
use super::{Findings, Prepared};
use crate::history::{History, Micros};

/// What happened in the last moments need not have been told.
const LATE: Micros = 1_500_000;

/// Something to be told, at a revision that was first seen at this time.
type Expected = (u64, Micros, NativeNotice);

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let expected = expected(prepared.history);
    for push in &prepared.history.native_pushes {
        let Some((_, opened)) = push.opened else { continue };
        let told = push.notices.iter().filter(|(.., notice)| matters(notice));
        let mut due = expected.iter().filter(|(revision, ..)| *revision > opened);
        let mut all_right = true;
        for (_, revision, notice) in told {
            let next = due.next();
            if next.is_none_or(|(at, _, expected)| (at, expected) != (revision, notice)) {
                let node = push.node;
                findings.add(
                    id(notice),
                    format_args!("node {node} was told at {revision} of {notice:?}, and next was {next:?}"),
                );
                all_right = false;
                break;
            }
        }
        let ended = prepared.history.bounds.ended.map_or(0, |ended| ended.at);
        if let (None, true, Some((revision, seen, notice))) = (push.closed, all_right, due.next())
            && seen + LATE < ended
        {
            findings.add(id(notice), format_args!("node {} was never told of {notice:?} at {revision}", push.node));
        }
    }
}

fn matters(notice: &NativeNotice) -> bool {
    matches!(
        notice,
        NativeNotice::Granted { .. }
            | NativeNotice::Barrier { .. }
            | NativeNotice::Latch { .. }
            | NativeNotice::Phase { .. }
    )
}

fn id(notice: &NativeNotice) -> &'static str {
    match notice {
        NativeNotice::Granted { kind: tidelock_model::Kind::Election, .. } => "E1",
        NativeNotice::Granted { .. } => "K5",
        NativeNotice::Phase { .. } => "P1",
        _ => "B1",
    }
}

/// What is to be told, worked out from the ledger.
fn expected(history: &History) -> Vec<Expected> {
    let mut expected: Vec<(u64, usize, Micros, NativeNotice)> = Vec::new();
    for grant in grants(history) {
        let position = history.ledger.native.get(&(grant.revision as i64)).map_or(0, |at| {
            let is_it = |slot: Slot| matches!(slot, Slot::Member { number, .. } if number == grant.number);
            let mut changes = at.changes.iter();
            changes
                .position(|change| (change.kind, &change.name) == (grant.kind, &grant.name) && is_it(change.slot))
                .unwrap_or(0)
        });
        let notice = NativeNotice::Granted {
            kind: grant.kind,
            name: grant.name,
            place: grant.number,
            moved_from: grant.place.moved_from,
            session: LeaseId(grant.session),
            token: grant.place.token,
        };
        expected.push((grant.revision, position, grant.seen.at, notice));
    }
    let mut things = Things::default();
    for (revision, at) in &history.ledger.native {
        for (position, change) in at.changes.iter().enumerate() {
            let before = things.apply(change);
            let (Slot::Head, Some(record)) = (change.slot, &change.became) else { continue };
            let name = change.name.clone();
            let notice = match stored(record) {
                Some(Stored::Barrier(barrier)) if barrier.gate != Gate::Shut => {
                    NativeNotice::Barrier { name, generation: record.created, gate: barrier.gate }
                }
                Some(Stored::Latch { gate, .. }) => NativeNotice::Latch { name, gate: *gate },
                Some(Stored::Phaser(phaser)) if phaser.parent.is_none() && before.is_some() => {
                    NativeNotice::Phase { name, phase: phaser.phase, broken: phaser.broken }
                }
                _ => continue,
            };
            expected.push((unsigned(*revision), position, at.seen.at, notice));
        }
    }
    expected.sort_by_key(|(revision, position, ..)| (*revision, *position));
    expected.into_iter().map(|(revision, _, seen, notice)| (revision, seen, notice)).collect()
}
