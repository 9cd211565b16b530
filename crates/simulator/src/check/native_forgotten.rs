//! K2, K4, B1, P1, U1: what is forgotten is what nobody uses, because somebody asked for it.
//!
//! The head of a semaphore, a latch, a phaser, a counter, versions or a hazard goes by a request of its own alone, and
//! only when it has no members, nor a phaser below it that has. That of a fence never goes: who comes back from a long
//! pause would find no trace of what it must not do any more. Barriers go by themselves (`native_barriers.rs`).

use std::collections::BTreeSet;

use tidelock_model::native_keys::Slot;
use tidelock_model::native_records::Stored;
use tidelock_model::{Kind, Name, NativeCommand, NativeError, NativeOp};

use super::native_replay::{Subject, Thing, Things};
use super::{Findings, Prepared};
use crate::history::{History, NativeAsk, NativeTold};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let asked = asked(prepared.history);
    let mut things = Things::default();
    for (revision, at) in &prepared.history.ledger.native {
        at.changes.iter().for_each(|change| drop(things.apply(change)));
        for change in &at.changes {
            let (kind, name) = (change.kind, &change.name);
            if change.slot != Slot::Head || change.became.is_some() || kind == Kind::Barrier {
                continue;
            }
            let id = id(kind);
            if kind == Kind::Fence {
                findings.add(id, format_args!("{kind:?} {name} was forgotten at {revision}, which it must never be"));
            } else if !asked.contains(&(kind, name.clone())) {
                findings.add(id, format_args!("{kind:?} {name} was forgotten at {revision}, and nobody asked for it"));
            }
            if let Some(user) = user(&things, kind, name) {
                findings.add(id, format_args!("{kind:?} {name} was forgotten at {revision}, and {user} uses it"));
            }
        }
    }
}

pub(super) fn id(kind: Kind) -> &'static str {
    match kind {
        Kind::Fence => "K4",
        Kind::Latch => "B1",
        Kind::Phaser => "P1",
        Kind::Rcu | Kind::Hazard => "U1",
        Kind::Counter => "R3",
        _ => "K2",
    }
}

/// Who uses something: one of its members, or the members of a phaser below it.
pub(crate) fn user(things: &Things, kind: Kind, name: &Name) -> Option<String> {
    let own = things.get(kind, name).and_then(|thing| thing.members.keys().next());
    if let Some((number, _)) = own {
        return Some(format!("member {number}"));
    }
    let is_below = |thing: &Thing| match thing.stored_head() {
        Some(Stored::Phaser(phaser)) => kind == Kind::Phaser && phaser.parent.as_ref() == Some(name),
        _ => false,
    };
    let mut below = things.of_kind(Kind::Phaser).filter(|(_, thing)| is_below(thing));
    below.find_map(|(of, _)| Some(format!("{of}, of which {}", user(things, Kind::Phaser, of)?)))
}

/// What clients asked to be forgotten, but for what was refused.
fn asked(history: &History) -> BTreeSet<Subject> {
    let mut asked = BTreeSet::new();
    for call in &history.native {
        let NativeAsk::Command(NativeCommand::Request(request), _) = &call.ask else { continue };
        let NativeOp::Forget { kind, name } = &request.op else { continue };
        // That the session is over says nothing of an earlier attempt.
        let refused = matches!(&call.told, NativeTold::Decided { result: Err(error), .. }
            if *error != NativeError::UnknownSession);
        if !refused {
            asked.insert((*kind, name.clone()));
        }
    }
    asked
}

#[cfg(test)]
mod tests {
    use tidelock_model::{Data, Kind, LeaseId, Mode, NativeError, NativeOp, Wait};

    use crate::check::native_tests::{Maker, assert_found, name, violations};
    use crate::history::NativeAsk;

    fn take(maker: &mut Maker, session: LeaseId, weight: u32) {
        let (mode, wait) = (Mode::Permits(weight), Wait::Queue(0));
        let op = NativeOp::Acquire { name: name("s"), mode, permits: 0, wait, data: Data::default() };
        maker.ask(session, op).unwrap();
    }

    fn resize(maker: &mut Maker, session: LeaseId, permits: u32) {
        maker.ask(session, NativeOp::Resize { name: name("s"), permits }).unwrap();
    }

    const FORGET: fn() -> NativeOp = || NativeOp::Forget { kind: Kind::Semaphore, name: name("s") };

    /// Permits shrink below what is out, grow again, and go when nobody has any.
    fn resized() -> Maker {
        let mut maker = Maker::new();
        let sessions: Vec<LeaseId> = (1..=3).map(|client| maker.open(client)).collect();
        resize(&mut maker, sessions[0], 3);
        take(&mut maker, sessions[0], 2);
        take(&mut maker, sessions[1], 2);
        resize(&mut maker, sessions[0], 1);
        assert_eq!(maker.ask(sessions[2], FORGET()), Err(NativeError::InUse));
        // The one who waits wants more than there is by now, and gets it.
        maker.end(sessions[0]);
        resize(&mut maker, sessions[1], 4);
        take(&mut maker, sessions[2], 2);
        maker.end(sessions[1]);
        let token = super::super::native_replay::grants(&maker.history).last().unwrap().place.token;
        maker.ask(sessions[2], NativeOp::Release { kind: Kind::Semaphore, name: name("s"), token }).unwrap();
        maker.ask(sessions[2], FORGET()).unwrap();
        resize(&mut maker, sessions[2], 1);
        maker
    }

    #[test]
    fn a_semaphore_that_is_resized_and_forgotten_passes() {
        assert_eq!(violations(&resized().done()), [] as [&str; 0]);
    }

    /// Holders of permits would hold nothing any more.
    #[test]
    fn k2_something_forgotten_while_it_is_used_is_caught() {
        let mut history = resized().done();
        for at in history.ledger.native.values_mut() {
            at.changes.retain(|change| change.kind != Kind::Semaphore || change.became.is_some() || is_head(change));
        }
        assert_found(&history, "K2 native_forgotten");
    }

    fn is_head(change: &crate::history::NativeChange) -> bool {
        change.slot == tidelock_model::native_keys::Slot::Head
    }

    /// Something that goes by itself takes with it what clients rely on.
    #[test]
    fn k2_something_forgotten_that_nobody_asked_for_is_caught() {
        let mut history = resized().done();
        history.native.retain(|call| !format!("{:?}", call.ask).contains("Forget"));
        assert!(history.native.iter().all(|call| !matches!(&call.ask, NativeAsk::KeepAlive(_))));
        assert_found(&history, "K2 native_forgotten");
    }

    /// Somebody is let in although the permits that are left do not suffice.
    #[test]
    fn k2_a_grant_beyond_the_permits_left_by_a_resize_is_caught() {
        let mut maker = Maker::new();
        let sessions: Vec<LeaseId> = (1..=2).map(|client| maker.open(client)).collect();
        resize(&mut maker, sessions[0], 4);
        take(&mut maker, sessions[0], 2);
        take(&mut maker, sessions[1], 2);
        let mut history = maker.done();
        assert_eq!(violations(&history), [] as [&str; 0]);
        for change in history.ledger.native.values_mut().flat_map(|at| &mut at.changes).filter(|change| is_head(change))
        {
            let Some(crate::history::NativeValue::Stored(tidelock_model::native_records::Stored::Semaphore(head))) =
                change.became.as_mut().map(|record| &mut record.value)
            else {
                continue;
            };
            head.permits = 3;
        }
        assert_found(&history, "K2 native_queues");
    }
}
