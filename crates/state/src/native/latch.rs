//! Latches: a count that opens a gate at zero.
//!
//! The head says whether it is open, and changes only then; the tally counts. Who counts down need not be known, and
//! who is not known can die unnoticed. A participant that promised to count down ([`State::pledge`]) and goes before
//! it did so breaks the latch, or counts down by going, as was said when the latch was set.

use bytes::Bytes;
use tidelock_model::native_keys as keys;
use tidelock_model::native_records::{Gate, Stored};
use tidelock_model::{Kind, LeaseId, Name, NativeAnswer, NativeError, OnDeath};

use crate::State;
use crate::change::Revising;

impl State {
    fn latch(&self, name: &Name) -> Option<(OnDeath, Gate)> {
        match self.stored(&keys::head(Kind::Latch, name)) {
            Some(Stored::Latch { on_death, gate }) => Some((on_death, gate)),
            _ => None,
        }
    }

    fn latch_count(&self, name: &Name) -> (u64, u64) {
        match self.stored(&keys::tally(Kind::Latch, name)) {
            Some(Stored::LatchCount { left, of }) => (left, of),
            _ => (0, 0),
        }
    }

    pub(super) fn set_latch(
        &mut self,
        at: &mut Revising<'_>,
        name: &Name,
        count: u64,
        on_death: OnDeath,
    ) -> Result<NativeAnswer, NativeError> {
        if matches!(self.latch(name), Some((_, Gate::Shut))) {
            return Err(NativeError::InUse);
        }
        let gate = if count == 0 { Gate::Open } else { Gate::Shut };
        self.put_stored(at, keys::head(Kind::Latch, name), &Stored::Latch { on_death, gate });
        if count > 0 {
            let tally = Stored::LatchCount { left: count, of: count };
            self.put_stored(at, keys::tally(Kind::Latch, name), &tally);
        }
        Ok(NativeAnswer::Latch { left: count })
    }

    pub(super) fn pledge(
        &mut self,
        at: &mut Revising<'_>,
        session: LeaseId,
        name: &Name,
    ) -> Result<NativeAnswer, NativeError> {
        match self.latch(name).ok_or(NativeError::NotFound)?.1 {
            Gate::Broken => return Err(NativeError::Broken),
            Gate::Open | Gate::Left => return Err(NativeError::LatchOpen),
            Gate::Shut => self.check_member(session, Kind::Latch, name)?,
        }
        let pledge = at.revision().0;
        self.put_owned(at, keys::member(Kind::Latch, name, pledge), Bytes::new(), session);
        Ok(NativeAnswer::Pledged { pledge })
    }

    pub(super) fn count_down(
        &mut self,
        at: &mut Revising<'_>,
        session: LeaseId,
        name: &Name,
        by: u64,
        pledge: u64,
    ) -> Result<NativeAnswer, NativeError> {
        if by == 0 {
            return Err(NativeError::BadCount);
        }
        match self.latch(name).ok_or(NativeError::NotFound)?.1 {
            Gate::Broken => return Err(NativeError::Broken),
            // Promises are gone by then, kept or not.
            Gate::Open | Gate::Left => return Ok(NativeAnswer::Latch { left: 0 }),
            Gate::Shut => {}
        }
        if pledge != 0 {
            let key = self.own_member(session, Kind::Latch, name, pledge)?;
            self.delete_key(at, &key);
        }
        Ok(NativeAnswer::Latch { left: self.lower_latch(at, name, by) })
    }

    fn lower_latch(&mut self, at: &mut Revising<'_>, name: &Name, by: u64) -> u64 {
        let (left, of) = self.latch_count(name);
        let left = left.saturating_sub(by);
        let left = if left == 1 && tidelock_model::planted!(LatchOpensOneEarly) { 0 } else { left };
        if left == 0 {
            self.end_latch(at, name, Gate::Open);
        } else {
            self.put_stored(at, keys::tally(Kind::Latch, name), &Stored::LatchCount { left, of });
        }
        left
    }

    fn end_latch(&mut self, at: &mut Revising<'_>, name: &Name, gate: Gate) {
        let Some((on_death, _)) = self.latch(name) else { return };
        self.put_stored(at, keys::head(Kind::Latch, name), &Stored::Latch { on_death, gate });
        self.delete_key(at, &keys::tally(Kind::Latch, name));
        self.delete_members(at, Kind::Latch, name);
    }

    /// What becomes of the latch once so many promises cannot be kept any more.
    pub(super) fn settle_latch(&mut self, at: &mut Revising<'_>, name: &Name, gone: u64) {
        match self.latch(name) {
            Some((OnDeath::Break, Gate::Shut)) => self.end_latch(at, name, Gate::Broken),
            Some((OnDeath::Shrink, Gate::Shut)) => drop(self.lower_latch(at, name, gone)),
            _ => {}
        }
    }
}
