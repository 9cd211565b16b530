//! K3, K6: what a native write asks for a place in a queue for is written by who holds that place, and by nobody else.
//!
//! Of `held/<name>`, written by the holder of that lock, or by who leads, it is said that
//! - its token is held when it is written, by the session that asked (K3): an old holder writes nothing from the moment
//!   it holds nothing, whether the next one has written or not;
//! - its tokens never go back, so the writes of two holders do not mix (K6);
//! - nobody is refused who holds what it shows while every condition holds (K6);
//! - who is told that a key was changed is told when (R3).
//!
//! That a write is whole, takes effect once and is there when it was acknowledged is judged as that of any transaction
//! (`linearizable`, `durable`, `resurrection`), and that it is answered once as that of any request (`native_answers`).

use std::collections::BTreeMap;

use tidelock_model::{Kind, NativeCommand, NativeError, NativeOp};

use super::carry_out::{Seen, carry_out};
use super::native_fenced::token_of;
use super::{Findings, Prepared};
use crate::history::{Answer, Compare, Content, NativeAsk, NativeTold, Request, Told};

const HELD: &str = "held/";

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    check_registers(prepared, findings);
    check_refusals(prepared, findings);
    check_conditions(prepared, findings);
}

/// The queue whose token a request shows first, and whose session it is.
fn shown(request: &Request) -> Option<(i64, Kind, &str, u64)> {
    let Request::Txn { compares, .. } = request else { return None };
    match compares.first()? {
        Compare::Holds { session, kind, name, token } => Some((*session, *kind, name, *token)),
        _ => None,
    }
}

fn check_registers(prepared: &Prepared<'_>, findings: &mut Findings) {
    let mut highest: BTreeMap<&str, u64> = BTreeMap::new();
    for (revision, changes) in &prepared.history.ledger.changes {
        for change in changes {
            let Some(name) = change.key.strip_prefix(HELD).filter(|name| !name.contains('/')) else { continue };
            let Some(kv) = &change.became else { continue };
            let (token, before) = (token_of(&kv.value), highest.get(name).copied().unwrap_or(0));
            if token < before {
                findings.add("K6", format_args!("{name}: {revision} was written under {token}, after {before}"));
            }
            highest.insert(name, token.max(before));
            let writer = prepared.claims.writer(&kv.value).map(|writer| &prepared.history.operations[writer].request);
            // That nobody asked for it is the business of `durable`.
            let Some((session, kind, ..)) = writer.and_then(shown) else { continue };
            if !prepared.replay.is_held(session, kind, name, token, *revision) {
                let holders = prepared.replay.holders_of(kind, name, token);
                findings.add(
                    "K3",
                    format_args!("{name}: {revision} was written under {token} by {session:x}; held by {holders:x?}"),
                );
            }
        }
    }
}

fn check_refusals(prepared: &Prepared<'_>, findings: &mut Findings) {
    for (index, operation) in prepared.history.operations.iter().enumerate() {
        if let Told::Answer(Answer { revision, content: Content::Written { done: false }, .. }) = &operation.result
            && let Some(expected) = carry_out(&prepared.replay, &operation.request, *revision, *revision)
            && matches!(expected.seen, Seen::Txn(true, _))
        {
            let name = prepared.name(index);
            findings.add("K6", format_args!("every token was good and every condition held: {name}"));
        }
    }
}

fn check_conditions(prepared: &Prepared<'_>, findings: &mut Findings) {
    for call in &prepared.history.native {
        if let NativeAsk::Command(NativeCommand::Request(request), _) = &call.ask
            && let NativeOp::Write(write) = &request.op
            && let NativeTold::Decided {
                revision, result: Err(NativeError::KeyChanged { condition, modified }), ..
            } = &call.told
        {
            let key = write.conditions().get(*condition as usize).map(|condition| condition.key.name());
            let key = key.map(|key| String::from_utf8_lossy(key).into_owned()).unwrap_or_default();
            let revision = i64::try_from(*revision).unwrap_or(i64::MAX);
            let really = prepared.replay.get(&key, revision).map_or(0, |kv| kv.modified);
            if i64::try_from(*modified) != Ok(really) {
                findings.add(
                    "R3",
                    format_args!(
                        "{key} was changed at {really}, not {modified}: {:?} was told {:?}",
                        call.ask, call.told
                    ),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidelock_model::{Kind, LeaseId, Mode, NativeError};

    use crate::check::native_tests::{Maker, assert_found, violations};
    use crate::history::{Answer, Content, History, NativeTold, Told};

    /// Two holders one after the other write; the first tries again while the other holds the lock and has not written.
    fn handed_over() -> (History, Vec<bool>) {
        let mut maker = Maker::new();
        let sessions: Vec<LeaseId> = (1..=2).map(|client| maker.open(client)).collect();
        let (_, old) = maker.lock(sessions[0], Mode::Exclusive);
        maker.lock(sessions[1], Mode::Exclusive);
        let mut done = vec![
            maker.write_held(sessions[0], old, "a", None).is_ok(),
            maker.write_held(sessions[1], old, "b", None).is_ok(),
            maker.write_held(sessions[0], old, "c", Some(0)).is_ok(),
        ];
        maker.end(sessions[0]);
        let next = maker.open(3);
        let new = super::super::native_replay::grants(&maker.history).last().unwrap().place.token;
        done.push(maker.write_held(next, old, "d", None).is_ok());
        done.push(maker.write_held(sessions[1], new, "e", None).is_ok());
        (maker.done(), done)
    }

    #[test]
    fn writes_of_one_holder_after_the_other_pass() {
        let (history, done) = handed_over();
        assert_eq!(done, [true, false, false, false, true]);
        assert_eq!(violations(&history), [] as [&str; 0]);
    }

    /// An old holder that still writes is what the token is there to prevent: here the lock is another's already.
    #[test]
    fn k3_a_write_under_a_token_that_is_not_held_any_more_is_caught() {
        let (mut history, _) = handed_over();
        let last = *history.ledger.changes.iter().rfind(|(_, changes)| !changes.is_empty()).unwrap().0;
        let Some(kv) = history.ledger.changes.get_mut(&last).unwrap()[0].became.as_mut() else { panic!() };
        kv.value = history
            .ledger
            .native
            .values()
            .find_map(|at| {
                let place =
                    at.changes.iter().find_map(|change| crate::check::native_replay::place(change.became.as_ref()?));
                place.filter(|place| place.is_granted()).map(|place| format!("{}#d", place.token))
            })
            .unwrap();
        assert_found(&history, "K3 native_writes");
    }

    #[test]
    fn k6_a_register_that_goes_back_to_an_old_token_is_caught() {
        let (mut history, _) = handed_over();
        let last = history.ledger.changes.values_mut().rfind(|changes| !changes.is_empty()).unwrap();
        last[0].became.as_mut().unwrap().value = "1#e".into();
        assert_found(&history, "K6 native_writes");
    }

    /// A holder that cannot write what its lock is for has no use for it.
    #[test]
    fn k6_a_holder_that_is_refused_is_caught() {
        let (mut history, _) = handed_over();
        let Told::Answer(Answer { content, .. }) = &mut history.operations.last_mut().unwrap().result else { panic!() };
        *content = Content::Written { done: false };
        assert_found(&history, "K6 native_writes");
        let last = history.native.last_mut().unwrap();
        let NativeTold::Decided { result, .. } = &mut last.told else { panic!() };
        *result = Err(NativeError::StaleToken { token: 2 });
        assert_found(&history, "K3 native_answers");
    }

    /// Who is told when a key was changed compares with that next time.
    #[test]
    fn r3_a_wrong_revision_of_a_change_is_caught() {
        let (mut history, _) = handed_over();
        let told = history.native.iter_mut().find_map(|call| match &mut call.told {
            NativeTold::Decided { result: Err(NativeError::KeyChanged { modified, .. }), .. } => Some(modified),
            _ => None,
        });
        *told.unwrap() += 1;
        assert_found(&history, "R3 native_writes");
    }

    /// K3: a write of a session that holds nothing, told as done, is caught by the answer alone.
    #[test]
    fn k3_a_write_by_somebody_else_is_caught() {
        let (mut history, _) = handed_over();
        for at in history.ledger.native.values_mut() {
            at.changes.retain(|change| change.kind != Kind::Lock);
        }
        assert_found(&history, "K3 native_writes");
        assert_found(&history, "K3 native_answers");
    }
}
