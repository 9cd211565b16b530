//! Changes of clients' keys under tokens: the store itself keeps out who holds a lock no more (K3, K4).
//!
//! A token of a queue is good while the session holds its place: whatever took the place away came before in the log,
//! so no write of a former holder comes after it. A token of a fence is good unless a larger one was let through.

use tidelock_model::{Answer, Fencing, GuardedWrite, Kind, LeaseId, NativeAnswer, NativeError, Refusal, TokenGuard};

use crate::State;
use crate::apply::Effects;

impl State {
    pub(super) fn write_guarded(
        &mut self,
        session: LeaseId,
        write: GuardedWrite,
        effects: &mut Effects,
    ) -> Result<Answer, Refusal> {
        self.check_guards(session, &write)?;
        self.write(write.into_op(), &mut effects.events)?;
        Ok(Answer::Native(NativeAnswer::Done))
    }

    /// Whether every token is good and every condition holds, or which is the first that does not: the transaction that
    /// follows would only say that something does not.
    fn check_guards(&self, session: LeaseId, write: &GuardedWrite) -> Result<(), NativeError> {
        for (at, guard) in write.guards().iter().enumerate() {
            // Shown twice it is as good as once.
            if write.guards()[..at].contains(guard) {
                continue;
            }
            let TokenGuard { kind, name, token } = guard;
            let is_anybodys = tidelock_model::planted!(WriteByAnybody)
                && self.places(*kind, name).any(|any| any.place.token == *token);
            if *kind == Kind::Fence {
                self.check_fencing(Some(&Fencing { fence: name.clone(), token: *token }))?;
            } else if !(is_anybodys || tidelock_model::planted!(WriteUnderOldToken)) {
                self.find_held(session, *kind, name, *token)?;
            }
        }
        for (at, condition) in write.conditions().iter().enumerate() {
            let modified = self.keyspace.get(&condition.key).map_or(0, |item| item.record.meta().modified.0);
            if modified != condition.modified && !tidelock_model::planted!(UnmetWriteToldAsDone) {
                return Err(NativeError::KeyChanged { condition: at as u32, modified });
            }
        }
        Ok(())
    }
}
