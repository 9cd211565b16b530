//! K4, K5, E1, B1, P1, U1, R3 as told: what a node's subscription tells of native primitives is what happened, in order,
//! once each.
//!
//! Of everything after the revision it was opened at: each grant, to its session alone; each change of what a leader
//! shows and each place that is free again, so observers of an election see who leads, what it says and when nobody does;
//! each meeting that opened, ended or broke; each gate, phase, count, fence, version and object; and what was forgotten.
//! Who was open when the run ended was told all of it.

use tidelock_model::native_keys::Slot;
use tidelock_model::native_records::{Gate, HazardStage, Place, Stored};
use tidelock_model::{Kind, LeaseId, Name, NativeNotice};

use super::native_replay::{Things, place, stored, unsigned};
use super::{Findings, Prepared};
use crate::history::{History, Micros, NativeChange, NativeRecord};

/// What happened in the last moments need not have been told.
const LATE: Micros = 1_500_000;

/// Something to be told, at a revision that was first seen at this time.
type Expected = (u64, Micros, NativeNotice);

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let expected = expected(prepared.history);
    for push in &prepared.history.native_pushes {
        let Some((_, opened)) = push.opened else { continue };
        let mut due = expected.iter().filter(|(revision, ..)| *revision > opened);
        let mut all_right = true;
        for (_, revision, notice) in &push.notices {
            let next = due.next();
            if next.is_none_or(|(at, _, expected)| at != revision || !is_told(expected, notice)) {
                let node = push.node;
                let missed = next.filter(|(at, ..)| at < revision).map(|(.., missed)| missed);
                findings.add(
                    id(missed.unwrap_or(notice)),
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

/// Whose a place was is not told where the version before is compacted already.
fn is_told(expected: &NativeNotice, told: &NativeNotice) -> bool {
    let untold = |notice: &NativeNotice| match notice {
        NativeNotice::Gone { kind, name, place, .. } => {
            let (kind, name, place) = (*kind, name.clone(), *place);
            NativeNotice::Gone { kind, name, place, session: LeaseId::NONE, token: 0 }
        }
        other => other.clone(),
    };
    expected == told || untold(expected) == *told
}

fn id(notice: &NativeNotice) -> &'static str {
    match notice {
        NativeNotice::Granted { kind, .. } | NativeNotice::Changed { kind, .. } | NativeNotice::Gone { kind, .. } => {
            match kind {
                Kind::Election => "E1",
                Kind::Lock | Kind::Semaphore => "K5",
                kind => super::native_forgotten::id(*kind),
            }
        }
        NativeNotice::Phase { .. } => "P1",
        NativeNotice::Barrier { .. } | NativeNotice::Latch { .. } => "B1",
        NativeNotice::Counter { .. } => "R3",
        NativeNotice::Fence { .. } => "K4",
        NativeNotice::Rcu { .. } | NativeNotice::Hazard { .. } => "U1",
    }
}

/// What is to be told, worked out from the ledger.
fn expected(history: &History) -> Vec<Expected> {
    let (mut things, mut expected) = (Things::default(), Vec::new());
    for (revision, at) in &history.ledger.native {
        for change in &at.changes {
            let before = things.apply(change);
            let notice = match change.slot {
                Slot::Head => of_head(change, before.as_ref()),
                Slot::Member { number, .. } if change.kind.is_queue() => of_place(number, change, before.as_ref()),
                _ => None,
            };
            expected.extend(notice.map(|notice| (unsigned(*revision), at.seen.at, notice)));
        }
    }
    expected
}

/// A grant is a token that the place did not have; who holds under the one it had shows something else.
fn of_place(number: u64, change: &NativeChange, before: Option<&NativeRecord>) -> Option<NativeNotice> {
    let (kind, name) = (change.kind, change.name.clone());
    let token_before = before.and_then(place).map_or(0, |before| before.token);
    let Some(record) = &change.became else {
        let session = LeaseId(before.map_or(0, |before| before.session));
        return Some(NativeNotice::Gone { kind, name, place: number, session, token: token_before });
    };
    let Place { token, moved_from, .. } = *place(record).filter(|place| place.is_granted())?;
    let session = LeaseId(record.session);
    Some(if token == token_before {
        NativeNotice::Changed { kind, name, session, token }
    } else {
        NativeNotice::Granted { kind, name, place: number, moved_from, session, token }
    })
}

fn of_head(change: &NativeChange, before: Option<&NativeRecord>) -> Option<NativeNotice> {
    let (kind, name): (Kind, Name) = (change.kind, change.name.clone());
    let Some(record) = &change.became else {
        // Barriers go by themselves, when their meetings are over.
        let forgotten = NativeNotice::Gone { kind, name, place: 0, session: LeaseId::NONE, token: 0 };
        return (kind != Kind::Barrier).then_some(forgotten);
    };
    Some(match stored(record)? {
        Stored::Barrier(barrier) if barrier.gate != Gate::Shut => {
            NativeNotice::Barrier { name, generation: record.created, gate: barrier.gate }
        }
        Stored::Latch { gate, .. } => NativeNotice::Latch { name, gate: *gate },
        Stored::Phaser(phaser) if phaser.parent.is_none() && before.is_some() => {
            NativeNotice::Phase { name, phase: phaser.phase, broken: phaser.broken }
        }
        Stored::Counter { value } => NativeNotice::Counter { name, value: *value },
        Stored::Fence { highest } => NativeNotice::Fence { name, highest: *highest },
        Stored::Rcu { version, oldest } => NativeNotice::Rcu { name, version: *version, oldest: *oldest },
        // Nobody waits for one that is only made.
        Stored::Hazard { stage: HazardStage::Alive, .. } => return None,
        Stored::Hazard { epoch, stage } => {
            NativeNotice::Hazard { name, epoch: *epoch, clear: *stage == HazardStage::Retired }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use tidelock_model::{Data, Kind, NativeAnswer, NativeNotice, NativeOp, Wait};

    use crate::check::native_tests::{Maker, assert_found, name, violations};
    use crate::history::History;

    /// A leader says something else and resigns; another one leads and goes.
    fn election() -> History {
        let mut maker = Maker::new();
        for session in [maker.open(1), maker.open(2)] {
            let data = Data::default();
            let campaign = NativeOp::Campaign { name: name("e"), wait: Wait::Queue(0), data: data.clone() };
            let Ok(NativeAnswer::Place { token, .. }) = maker.ask(session, campaign) else { panic!() };
            maker.ask(session, NativeOp::Proclaim { name: name("e"), token, data }).unwrap();
            maker.ask(session, NativeOp::Release { kind: Kind::Election, name: name("e"), token }).unwrap();
        }
        maker.done()
    }

    /// Observers would follow a leader that is gone, or what it said before.
    #[test]
    fn e1_a_proclamation_or_a_vacancy_that_nobody_is_told_of_is_caught() {
        assert_eq!(violations(&election()), [] as [&str; 0]);
        let losses: [fn(&NativeNotice) -> bool; 2] = [
            |notice| matches!(notice, NativeNotice::Changed { .. }),
            |notice| matches!(notice, NativeNotice::Gone { .. }),
        ];
        for is_lost in losses {
            let mut history = election();
            history.native_pushes[0].notices.retain(|(.., notice)| !is_lost(notice));
            assert_found(&history, "E1 native_notices");
            let mut history = election();
            let notices = &mut history.native_pushes[0].notices;
            let first = notices.iter().position(|(.., notice)| is_lost(notice)).unwrap();
            notices.swap(first - 1, first);
            assert_found(&history, "E1 native_notices");
        }
    }

    /// A node that reads what happened in the past may find the version before compacted.
    #[test]
    fn a_vacancy_that_does_not_say_whose_it_was_passes() {
        let mut history = election();
        for (.., notice) in &mut history.native_pushes[0].notices {
            if let NativeNotice::Gone { session, token, .. } = notice {
                (*session, *token) = (tidelock_model::LeaseId::NONE, 0);
            }
        }
        assert_eq!(violations(&history), [] as [&str; 0]);
    }
}
