//! Barriers: parties that meet, and of a double one meet again when they leave.
//!
//! The head is one meeting, made by its first arrival; the revision it was created at is the meeting's generation.
//! When the meeting is over the head says how, for those who watch, and is deleted at the same revision with all its
//! members. So nothing is left of it, and who comes then begins the next one (B1).
//!
//! A party that goes before the barrier opens, because its session ended or it gave up, breaks the meeting or makes
//! it smaller, as its parties said. Inside a double barrier a party that gives up leaves, and one that dies breaks it
//! or leaves. Parties that never came are not known: a client's own time limit ends with giving up.

use bytes::Bytes;
use tidelock_model::limits::NATIVE_PARTIES_MAX;
use tidelock_model::native_keys as keys;
use tidelock_model::native_records::{Barrier, Gate, Stored};
use tidelock_model::{Kind, LeaseId, Name, NativeAnswer, NativeError, OnDeath};

use crate::State;
use crate::change::Revising;

impl State {
    /// The meeting there is, and its generation.
    fn barrier(&self, name: &Name) -> Option<(Barrier, u64)> {
        let item = self.keyspace.get(&keys::head(Kind::Barrier, name))?;
        match Stored::read(item.record.value())? {
            Stored::Barrier(barrier) => Some((barrier, item.record.meta().created.0)),
            _ => None,
        }
    }

    pub(super) fn is_barrier_open(&self, name: &Name) -> bool {
        self.barrier(name).is_some_and(|(barrier, _)| barrier.gate == Gate::Open)
    }

    fn put_barrier(&mut self, at: &mut Revising<'_>, name: &Name, barrier: Barrier) {
        self.put_stored(at, keys::head(Kind::Barrier, name), &Stored::Barrier(barrier));
    }

    /// Says how the meeting ended, and removes all of it.
    fn end_barrier(&mut self, at: &mut Revising<'_>, name: &Name, barrier: Barrier, gate: Gate) {
        self.put_barrier(at, name, Barrier { gate, ..barrier });
        self.delete_members(at, Kind::Barrier, name);
        self.delete_key(at, &keys::head(Kind::Barrier, name));
    }

    pub(super) fn enter_barrier(
        &mut self,
        at: &mut Revising<'_>,
        session: LeaseId,
        name: &Name,
        parties: u32,
        double: bool,
        on_death: OnDeath,
    ) -> Result<NativeAnswer, NativeError> {
        if !(1..=NATIVE_PARTIES_MAX).contains(&parties) {
            return Err(NativeError::BadCount);
        }
        let place = at.revision().0;
        let new = Barrier { parties, expected: parties, double, on_death, gate: Gate::Shut };
        let found = self.barrier(name);
        let (barrier, generation) = found.unwrap_or((new, place));
        if (Barrier { expected: parties, gate: Gate::Shut, ..barrier }) != new {
            return Err(NativeError::Differs { made: u64::from(barrier.parties) });
        }
        if barrier.gate == Gate::Open {
            return Err(NativeError::BarrierOpen);
        }
        self.check_member(session, Kind::Barrier, name)?;
        // No more than parties, which is a small number.
        let arrived = self.member_count(Kind::Barrier, name) as u32 + 1;
        let early = tidelock_model::planted!(BarrierOpensOneEarly) && parties > 2;
        let missing = barrier.expected.saturating_sub(arrived + u32::from(early));
        if missing == 0 && !double {
            self.end_barrier(at, name, barrier, Gate::Open);
            return Ok(NativeAnswer::Entered { place: 0, generation, missing });
        }
        if missing == 0 {
            self.put_barrier(at, name, Barrier { gate: Gate::Open, ..barrier });
        } else if found.is_none() {
            self.put_barrier(at, name, barrier);
        }
        self.put_owned(at, keys::member(Kind::Barrier, name, place), Bytes::new(), session);
        Ok(NativeAnswer::Entered { place, generation, missing })
    }

    pub(super) fn leave_barrier(
        &mut self,
        at: &mut Revising<'_>,
        session: LeaseId,
        name: &Name,
        place: u64,
    ) -> Result<NativeAnswer, NativeError> {
        let key = self.own_member(session, Kind::Barrier, name, place)?;
        let (barrier, generation) = self.barrier(name).ok_or(NativeError::NotFound)?;
        if barrier.gate != Gate::Open {
            return Err(NativeError::BarrierShut);
        }
        self.delete_key(at, &key);
        let inside = self.member_count(Kind::Barrier, name) as u32;
        if inside == 0 || (inside == 1 && tidelock_model::planted!(DoubleBarrierLeftEarly)) {
            self.end_barrier(at, name, barrier, Gate::Left);
        }
        Ok(NativeAnswer::Leaving { generation, inside })
    }

    /// What becomes of the others once so many parties went without leaving.
    pub(super) fn settle_barrier(&mut self, at: &mut Revising<'_>, name: &Name, gone: u32) {
        let Some((barrier, _)) = self.barrier(name) else { return };
        let left = self.member_count(Kind::Barrier, name) as u32;
        let expected = barrier.expected.saturating_sub(gone);
        let expected = if tidelock_model::planted!(DeadPartyStillExpected) { barrier.expected } else { expected };
        match (barrier.on_death, barrier.gate) {
            // Nobody is there who could be told.
            _ if left == 0 && barrier.gate == Gate::Shut => drop(self.delete_key(at, &keys::head(Kind::Barrier, name))),
            (_, Gate::Open) if left == 0 && tidelock_model::planted!(BarrierBreakToldAsLeft) => {
                self.end_barrier(at, name, barrier, Gate::Left);
            }
            // Also with the last one inside: who has left and waits must not take a death for a leaving.
            (OnDeath::Break, _) => self.end_barrier(at, name, barrier, Gate::Broken),
            (OnDeath::Shrink, Gate::Open) if left == 0 => self.end_barrier(at, name, barrier, Gate::Left),
            (OnDeath::Shrink, Gate::Shut) if left >= expected && !barrier.double => {
                self.end_barrier(at, name, Barrier { expected, ..barrier }, Gate::Open);
            }
            (OnDeath::Shrink, Gate::Shut) => {
                let gate = if left >= expected { Gate::Open } else { Gate::Shut };
                self.put_barrier(at, name, Barrier { expected, gate, ..barrier });
            }
            (OnDeath::Shrink, _) => {}
        }
    }
}
