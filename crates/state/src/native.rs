//! Native primitives, on the one keyspace: sessions and the queues, meetings, counts and versions they take part in.
//!
//! Records lie in [`Space::Lock`](tidelock_model::Space::Lock) (layout: `tidelock_model::native_keys`), so history,
//! snapshots, watchers and the digest know them like any key. What a session holds is a key of its lease: whatever
//! ends the lease deletes it, and `settle` lets in who waited for it, in the same entry. Only the sessions' memory of
//! first answers is not a key (`sessions`): it changes with every request and nobody reads its past.
//!
//! A request is decided on shared references first and carried out then; what is refused leaves no trace but its
//! answer. Tokens, generations, versions and epochs are revisions, so none of them ever comes again or goes back.
//!
//! Invariants, checked by `properties` after every step:
//! - the granted places of a queue are its first ones, and their tokens ascend with them (K1, K5);
//! - a token has one holder, whose session lives (K2); who may be let in is let in (no lost wake-up);
//! - a barrier opens once for all its parties (B1); a phase ends when all parties arrived, and not before (P1).
//!
//! Not here: when a session ends, who is connected where, and anything about a wire protocol.

mod barrier;
mod counter;
mod latch;
#[cfg(test)]
mod meeting_rules;
#[cfg(test)]
mod oracle;
mod phaser;
#[cfg(test)]
mod properties;
mod queue;
#[cfg(test)]
mod queue_rules;
mod reads;
mod retire;
#[cfg(test)]
mod session_rules;
mod sessions;
mod settle;
#[cfg(test)]
mod testing;
mod write;
#[cfg(test)]
mod write_rules;

use bytes::Bytes;
use tidelock_model::limits::{NATIVE_HOLDINGS_MAX, NATIVE_PARTIES_MAX};
use tidelock_model::native_keys::{self as keys, Slot};
use tidelock_model::native_records::Stored;
use tidelock_model::{
    Answer, Key, KeyRange, Kind, LeaseId, Name, NativeAnswer, NativeCommand, NativeError, NativeOp, NativeRequest,
    PutLease, PutOp, PutValue, Refusal, Revision, Wire,
};

use crate::State;
use crate::apply::Effects;
use crate::change::Revising;

pub(crate) use sessions::{RequestNumber, Sessions};

impl State {
    pub(crate) fn change_native(&mut self, command: NativeCommand, effects: &mut Effects) -> Result<Answer, Refusal> {
        match command {
            NativeCommand::Open { ttl_ms, owner } => self.open_native(ttl_ms, &owner, effects),
            NativeCommand::Close { session } => self.close_native(session, effects),
            NativeCommand::Request(NativeRequest { session, number, acknowledged, op }) => {
                self.sessions.check(session, number, acknowledged)?;
                if let NativeOp::Write(write) = op {
                    return self.write_guarded(session, write, effects);
                }
                Ok(Answer::Native(self.carry_out_native(session, op, effects)?))
            }
        }
    }

    fn carry_out_native(
        &mut self,
        session: LeaseId,
        op: NativeOp,
        effects: &mut Effects,
    ) -> Result<NativeAnswer, NativeError> {
        if let NativeOp::Renew { kind, name, token, ttl_ms } = op {
            return self.renew_held(session, kind, &name, token, ttl_ms, effects);
        }
        let mut revising = Revising::new(self, &mut effects.events);
        let answer = self.decide_native(session, op, &mut revising);
        debug_assert!(answer.is_ok() || !revising.has_changes(), "what is refused leaves no trace");
        revising.finish(self);
        answer
    }

    fn decide_native(
        &mut self,
        session: LeaseId,
        op: NativeOp,
        at: &mut Revising<'_>,
    ) -> Result<NativeAnswer, NativeError> {
        match op {
            NativeOp::Acquire { name, mode, permits, wait, data } => {
                self.acquire(at, session, &name, mode, permits, wait, data)
            }
            NativeOp::Campaign { name, wait, data } => self.campaign(at, session, &name, wait, data),
            NativeOp::Release { kind, name, token } => self.release(at, session, kind, &name, token),
            NativeOp::GiveUp { kind, name, place } => self.give_up(at, session, kind, &name, place),
            NativeOp::Resign { name, token, successor } => self.resign(at, session, &name, token, successor),
            NativeOp::Downgrade { name, token } => self.downgrade(at, session, &name, token),
            NativeOp::Proclaim { name, token, data } => self.proclaim(at, session, &name, token, data),
            // Carried out apart: the one changes no key, the other keys of clients.
            NativeOp::Renew { .. } | NativeOp::Write(_) => Err(NativeError::WrongKind),
            NativeOp::Resize { name, permits } => self.resize(at, &name, permits),
            NativeOp::Enter { name, parties, double, on_death } => {
                self.enter_barrier(at, session, &name, parties, double, on_death)
            }
            NativeOp::Leave { name, place } => self.leave_barrier(at, session, &name, place),
            NativeOp::SetLatch { name, count, on_death } => self.set_latch(at, &name, count, on_death),
            NativeOp::Pledge { name } => self.pledge(at, session, &name),
            NativeOp::CountDown { name, by, pledge } => self.count_down(at, session, &name, by, pledge),
            NativeOp::Register { name, parties, parent, on_death } => {
                self.register(at, session, &name, parties, parent, on_death)
            }
            NativeOp::Arrive { name, party, count, deregister } => {
                self.arrive(at, session, &name, party, count, deregister)
            }
            NativeOp::Add { name, delta, fencing } => self.add(at, &name, delta, fencing.as_ref()),
            NativeOp::CompareAndSet { name, expected, value, fencing } => {
                self.compare_and_set(at, &name, expected, value, fencing.as_ref())
            }
            NativeOp::Admit(fencing) => self.admit(at, &fencing),
            NativeOp::Publish { name, data, fencing } => self.publish(at, &name, data, fencing.as_ref()),
            NativeOp::StartReading { name } => self.start_reading(at, session, &name),
            NativeOp::Report { name, reader, version } => self.report(at, session, &name, reader, version),
            NativeOp::Protect { name } => self.protect(at, session, &name),
            NativeOp::Retire { name } => self.retire(at, &name),
            NativeOp::Forget { kind, name } => self.forget(at, kind, &name),
        }
    }

    /// Leaves, whatever it is: for waiting places, the answer to an await that was dropped.
    fn give_up(
        &mut self,
        at: &mut Revising<'_>,
        session: LeaseId,
        kind: Kind,
        name: &Name,
        place: u64,
    ) -> Result<NativeAnswer, NativeError> {
        let key = self.own_member(session, kind, name, place)?;
        if kind == Kind::Barrier && self.is_barrier_open(name) {
            return self.leave_barrier(at, session, name, place);
        }
        // The key was found just now.
        let Some(gone) = self.delete_key(at, &key) else { return Err(NativeError::NoSuchPlace { place }) };
        Ok(NativeAnswer::Left { token: self.settle_given_up(at, kind, name, &gone) })
    }

    /// Removes what is left of something that nobody uses, which is: of which no session has a part. Who waits for it
    /// without one, for a latch say, is not known here, and is told by the notice that it is gone. A fence must be
    /// remembered for as long as somebody may come back from a long pause: for ever. Who comes back to a hazard finds
    /// another epoch, or none.
    fn forget(&mut self, at: &mut Revising<'_>, kind: Kind, name: &Name) -> Result<NativeAnswer, NativeError> {
        if !matches!(kind, Kind::Semaphore | Kind::Latch | Kind::Phaser | Kind::Counter | Kind::Rcu | Kind::Hazard) {
            return Err(NativeError::WrongKind);
        }
        let head = keys::head(kind, name);
        if self.keyspace.get(&head).is_none() {
            return Err(NativeError::NotFound);
        }
        let has_children = kind == Kind::Phaser && self.phaser_tally(name).registered > 0;
        let is_used = has_children || self.member_count(kind, name) > 0;
        if is_used && !tidelock_model::planted!(ForgottenWhileUsed) {
            return Err(NativeError::InUse);
        }
        self.delete_key(at, &head);
        self.delete_key(at, &keys::tally(kind, name));
        Ok(NativeAnswer::Done)
    }

    fn stored(&self, key: &Key) -> Option<Stored> {
        self.keyspace.get(key).and_then(|item| Stored::read(item.record.value()))
    }

    fn put_stored(&mut self, at: &mut Revising<'_>, key: Key, stored: &Stored) {
        self.put_owned(at, key, stored.to_bytes().into(), LeaseId::NONE);
    }

    fn put_owned(&mut self, at: &mut Revising<'_>, key: Key, value: Bytes, session: LeaseId) {
        let (value, lease) = (PutValue::Set(value), PutLease::Set(session));
        self.put_key(at, PutOp { key, value, lease, want_previous: false });
    }

    fn member_count(&self, kind: Kind, name: &Name) -> u64 {
        self.keyspace.count(&keys::members(kind, name), Revision(u64::MAX)) as u64
    }

    fn delete_members(&mut self, at: &mut Revising<'_>, kind: Kind, name: &Name) {
        let members: Vec<Key> =
            self.keyspace.live_range(&keys::members(kind, name)).map(|item| item.key.clone()).collect();
        members.iter().for_each(|key| drop(self.delete_key(at, key)));
    }

    /// The key of a member that this session has.
    fn own_member(&self, session: LeaseId, kind: Kind, name: &Name, place: u64) -> Result<Key, NativeError> {
        let key = match kind {
            // Only the version a reader is at says where it is: it is found among the session's own.
            Kind::Rcu => {
                let is_meant = |key: &&Key| matches!(keys::parse_borrowed(key), Some((_, _, Slot::Member { number, .. })) if number == place);
                self.leases.keys_within(session, &keys::members(kind, name)).find(is_meant).cloned()
            }
            _ => Some(keys::member(kind, name, place)),
        };
        let is_own = |key: &Key| self.keyspace.get(key).is_some_and(|item| item.record.meta().lease == session);
        key.filter(|key| place != 0 && is_own(key)).ok_or(NativeError::NoSuchPlace { place })
    }

    /// Whether a session may hold one thing more.
    fn check_holdings(&self, session: LeaseId) -> Result<(), NativeError> {
        let is_full = self.leases.owned(session) >= NATIVE_HOLDINGS_MAX;
        if is_full { Err(NativeError::TooManyHoldings) } else { Ok(()) }
    }

    /// Whether a session may hold one thing more, and something without a queue have one member more.
    fn check_member(&self, session: LeaseId, kind: Kind, name: &Name) -> Result<(), NativeError> {
        self.check_holdings(session)?;
        let is_full = self.member_count(kind, name) >= u64::from(NATIVE_PARTIES_MAX);
        if is_full { Err(NativeError::BadCount) } else { Ok(()) }
    }
}

/// All keys that sort from `bound` on and belong to `range`.
fn from(range: &KeyRange, bound: Key) -> KeyRange {
    KeyRange { start: bound.max(range.start.clone()), end: range.end.clone() }
}
