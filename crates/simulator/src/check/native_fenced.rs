//! K4, K6: what a native lock guards is written by one holder after the other where the token is asked for.
//!
//! A client that was stopped or cut off may believe to hold a lock that is another's by now, and nobody can keep it
//! from writing: that is the stated limit (K6), and nothing is said here of `unfenced/<lock>`, which asks for no token.
//! Of `fenced/<lock>`, written by transactions and native writes that show the token to the lock's fence, it is said that
//! - its tokens never go back, so the writes of two holders do not mix (K6);
//! - each of them was granted by that lock before (K6);
//! - the fence is at the token of the last write, so nothing older gets through elsewhere either (K4);
//! - who is refused showed a token that is older than one let through, or was never given; a holder is never refused
//!   (K6).

use std::collections::{BTreeMap, BTreeSet};

use tidelock_model::{Kind, Mode, Name};

use super::native_replay::{Things, grants, unsigned};
use super::{Findings, Prepared};
use crate::history::{Answer, Compare, Content, Request, Told};

const FENCED: &str = "fenced/";

/// The token a value was written with.
pub(crate) fn token_of(value: &str) -> u64 {
    value.split('#').next().and_then(|token| token.parse().ok()).unwrap_or(0)
}

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    check_register(prepared, findings);
    check_refusals(prepared, findings);
}

fn check_register(prepared: &Prepared<'_>, findings: &mut Findings) {
    let of_locks = grants(prepared.history).into_iter().filter(|grant| grant.kind == Kind::Lock);
    let granted: BTreeSet<(Name, u64)> = of_locks.map(|grant| (grant.name, grant.place.token)).collect();
    let mut highest: BTreeMap<&str, u64> = BTreeMap::new();
    for (revision, changes) in &prepared.history.ledger.changes {
        for change in changes {
            let (Some(lock), Some(kv)) = (change.key.strip_prefix(FENCED), &change.became) else { continue };
            let (token, before) = (token_of(&kv.value), highest.get(lock).copied().unwrap_or(0));
            if token < before {
                findings.add("K6", format_args!("{lock}: {revision} was written under {token}, after {before}"));
            }
            highest.insert(lock, token.max(before));
            let given =
                Name::new(lock).is_ok_and(|lock| token < unsigned(*revision) && granted.contains(&(lock, token)));
            if !given {
                findings
                    .add("K6", format_args!("{lock}: {revision} was written under {token}, which it never granted"));
            }
            let fence = prepared.replay.fence(lock, *revision);
            if fence != token {
                findings
                    .add("K4", format_args!("{lock}: {revision} was written under {token}; the fence is at {fence}"));
            }
        }
    }
}

/// A request that showed a token and was refused: at which revision, the lock, the token, its place in the history.
type Refused<'a> = (u64, &'a str, u64, usize);

fn check_refusals(prepared: &Prepared<'_>, findings: &mut Findings) {
    let mut refused: Vec<Refused<'_>> = Vec::new();
    for (index, operation) in prepared.history.operations.iter().enumerate() {
        if let (
            Request::Txn { compares, .. },
            Told::Answer(Answer {
                revision,
                content: Content::Txn { succeeded: false, .. } | Content::Written { done: false },
                ..
            }),
        ) = (&operation.request, &operation.result)
            && let [Compare::Admits(lock, token)] = compares.as_slice()
        {
            refused.push((unsigned(*revision), lock, *token, index));
        }
    }
    refused.sort_unstable();
    let (mut things, mut ledger) = (Things::default(), prepared.history.ledger.native.iter().peekable());
    for (revision, lock, token, index) in refused {
        while let Some((_, at)) = ledger.next_if(|(of, _)| unsigned(**of) <= revision) {
            at.changes.iter().for_each(|change| drop(things.apply(change)));
        }
        let fence = prepared.replay.fence(lock, i64::try_from(revision).unwrap_or(i64::MAX));
        if fence <= token && (1..=revision).contains(&token) {
            let name = prepared.name(index);
            findings.add("K6", format_args!("{token} was refused by a fence at {fence}: {name}"));
        }
        let thing = Name::new(lock).ok().and_then(|lock| things.get(Kind::Lock, &lock));
        let holds = |place: &tidelock_model::native_records::Place| {
            place.is_granted() && place.mode == Mode::Exclusive && place.token == token
        };
        if thing.is_some_and(|thing| thing.places().any(|(.., place)| holds(place))) {
            let name = prepared.name(index);
            findings.add("K6", format_args!("{token} held the lock and was refused; the fence is at {fence}: {name}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use tidelock_model::{LeaseId, Mode};

    use crate::check::native_tests::{Maker, assert_found, violations};
    use crate::history::{Answer, Content, History, Told};

    /// A holder writes, sleeps through the end of its session and writes again, after the next holder and before.
    fn woken(next_writes_first: bool) -> (History, Vec<bool>) {
        let mut maker = Maker::new();
        let sessions: Vec<LeaseId> = (1..=2).map(|client| maker.open(client)).collect();
        let (_, old) = maker.lock(sessions[0], Mode::Exclusive);
        maker.lock(sessions[1], Mode::Exclusive);
        let mut done = vec![maker.write_fenced(old, "a")];
        maker.end(sessions[0]);
        let new = super::grants(&maker.history).last().unwrap().place.token;
        assert!(new > old);
        if next_writes_first {
            done.push(maker.write_fenced(new, "b"));
        }
        done.push(maker.write_fenced(old, "c"));
        done.push(maker.write_fenced(new, "d"));
        (maker.done(), done)
    }

    #[test]
    fn writes_of_one_holder_after_the_other_pass() {
        let (history, done) = woken(true);
        assert_eq!(done, [true, true, false, true]);
        assert_eq!(violations(&history), [] as [&str; 0]);
        // Nobody was harmed yet when it came back: K4 promises no more than that.
        let (history, done) = woken(false);
        assert_eq!(done, [true, true, true]);
        assert_eq!(violations(&history), [] as [&str; 0]);
    }

    /// One that slept for long overwrites what the next holder wrote: what fences are for.
    #[test]
    fn k6_a_register_that_goes_back_to_an_old_token_is_caught() {
        let (mut history, _) = woken(true);
        let changed = history.ledger.changes.values_mut().rev().find(|changes| !changes.is_empty()).unwrap();
        let became = changed[0].became.as_mut().unwrap();
        became.value = format!("2#{}", became.value);
        assert_found(&history, "K6 native_fenced");
        assert_found(&history, "K4 native_fenced");
    }

    /// A fence that does not remember what it let through lets the old holder through next time.
    #[test]
    fn k4_a_token_that_is_not_remembered_is_caught() {
        let (mut history, _) = woken(true);
        for at in history.ledger.native.values_mut() {
            at.changes.retain(|change| change.kind != tidelock_model::Kind::Fence);
        }
        assert_found(&history, "K4 native_fenced");
    }

    /// A holder that cannot write what its lock is for has no use for it.
    #[test]
    fn k6_a_holder_that_is_refused_is_caught() {
        let (mut history, _) = woken(true);
        let last = history.operations.last_mut().unwrap();
        let Told::Answer(Answer { content: Content::Txn { succeeded, answers }, .. }) = &mut last.result else {
            panic!()
        };
        (*succeeded, *answers) = (false, vec![]);
        assert_found(&history, "K6 native_fenced");
    }

    /// Whoever makes tokens up is no holder.
    #[test]
    fn k6_a_token_that_no_lock_gave_is_caught() {
        let (mut history, _) = woken(true);
        for at in history.ledger.native.values_mut() {
            at.changes.retain(|change| change.kind != tidelock_model::Kind::Lock);
        }
        assert_found(&history, "K6 native_fenced");
    }
}
