//! Counters, and fences that let no old token through.

use tidelock_model::native_keys as keys;
use tidelock_model::native_records::Stored;
use tidelock_model::{Fencing, Key, KeyRange, Kind, Name, NativeAnswer, NativeError};

use crate::State;
use crate::change::Revising;

impl State {
    fn counter(&self, name: &Name) -> i64 {
        match self.stored(&keys::head(Kind::Counter, name)) {
            Some(Stored::Counter { value }) => value,
            _ => 0,
        }
    }

    fn set_counter(
        &mut self,
        at: &mut Revising<'_>,
        name: &Name,
        after: i64,
        fencing: Option<&Fencing>,
    ) -> NativeAnswer {
        let before = self.counter(name);
        if let Some(fencing) = fencing {
            self.raise_fence(at, &keys::head(Kind::Fence, &fencing.fence), fencing.token);
        }
        let key = keys::head(Kind::Counter, name);
        if before != after || self.keyspace.get(&key).is_none() {
            self.put_stored(at, key, &Stored::Counter { value: after });
        }
        let before = if tidelock_model::planted!(BlocksOverlap) { before - 1 } else { before };
        NativeAnswer::Counter { before, after }
    }

    /// A block of numbers is an addition: it has those after `before` up to `after`, and nobody else does.
    pub(super) fn add(
        &mut self,
        at: &mut Revising<'_>,
        name: &Name,
        delta: i64,
        fencing: Option<&Fencing>,
    ) -> Result<NativeAnswer, NativeError> {
        self.check_fencing(fencing)?;
        let after = self.counter(name).checked_add(delta).ok_or(NativeError::Overflow)?;
        Ok(self.set_counter(at, name, after, fencing))
    }

    pub(super) fn compare_and_set(
        &mut self,
        at: &mut Revising<'_>,
        name: &Name,
        expected: i64,
        value: i64,
        fencing: Option<&Fencing>,
    ) -> Result<NativeAnswer, NativeError> {
        self.check_fencing(fencing.filter(|_| !tidelock_model::planted!(CompareAndSetUnfenced)))?;
        let actual = self.counter(name);
        if actual != expected {
            return Err(NativeError::Mismatch { actual });
        }
        Ok(self.set_counter(at, name, value, fencing))
    }

    pub(super) fn admit(&mut self, at: &mut Revising<'_>, fencing: &Fencing) -> Result<NativeAnswer, NativeError> {
        self.check_fencing(Some(fencing))?;
        self.raise_fence(at, &keys::head(Kind::Fence, &fencing.fence), fencing.token);
        Ok(NativeAnswer::Done)
    }

    fn highest_admitted(&self, fence: &Key) -> u64 {
        match self.stored(fence) {
            Some(Stored::Fence { highest }) => highest,
            _ => 0,
        }
    }

    /// Whether a token would be let through. One that no grant can have given yet would shut out all that come.
    pub(super) fn check_fencing(&self, fencing: Option<&Fencing>) -> Result<(), NativeError> {
        let Some(Fencing { fence, token }) = fencing else { return Ok(()) };
        let (token, highest) = (*token, self.highest_admitted(&keys::head(Kind::Fence, fence)));
        if token > self.revision.0 || token == 0 {
            return Err(NativeError::ForgedToken { token });
        }
        if token < highest && !tidelock_model::planted!(FenceAdmitsOldTokens) {
            Err(NativeError::Fenced { token, highest })
        } else {
            Ok(())
        }
    }

    /// Remembers a token that was let through. The same once more changes nothing.
    pub(crate) fn raise_fence(&mut self, at: &mut Revising<'_>, fence: &Key, token: u64) {
        if self.highest_admitted(fence) < token {
            self.put_stored(at, fence.clone(), &Stored::Fence { highest: token });
        }
    }

    /// Whether a condition of a transaction that shows a token holds: the range is one fence, which lets it through.
    pub(crate) fn admits(&self, range: &KeyRange, token: u64) -> bool {
        let Some(fence) = range.as_single() else { return false };
        let is_fence = matches!(keys::parse_borrowed(fence), Some((Kind::Fence, _, keys::Slot::Head)));
        let highest = self.highest_admitted(fence);
        let is_new = highest < token || (highest == token && !tidelock_model::planted!(TokenLetThroughOnce));
        is_fence
            && (1..=self.revision.0).contains(&token)
            && (is_new || tidelock_model::planted!(OldTokenInATransaction))
    }
}
