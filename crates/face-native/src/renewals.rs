//! Keep-alives of all clients of this node, put together: one question to the leader for all that came while the last one was under
//! way.

use std::sync::{Arc, Mutex, PoisonError};

use tidelock_coordinator::{Coordinator, ReadError};
use tidelock_model::{Caller, LeaseId};
use tokio::sync::{Notify, oneshot};

use crate::problem::Problem;
use tidelock_native_api::v1::error::Family;

/// Most renewals that wait; each is of a session that somebody attached.
const WAITING_MAX: usize = 1_000_000;

/// What became of a session's renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// It has its whole time to live again.
    Kept,
    /// It is over.
    Gone,
    /// Its end is being decided: ask again.
    Ending,
}

type Waiting = (LeaseId, oneshot::Sender<Result<Renewal, ReadError>>);

/// The renewals of this node.
#[derive(Default)]
pub(crate) struct Renewals {
    waiting: Mutex<Vec<Waiting>>,
    more: Notify,
}

impl Renewals {
    /// Renews a session; the caller was asked whether it may.
    pub(crate) async fn renew(&self, session: LeaseId) -> Result<Renewal, Problem> {
        let (answer, answered) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.len() >= WAITING_MAX {
                return Err(Problem::new(Family::Bounded, "OVERLOADED", "too many sessions are being renewed"));
            }
            waiting.push((session, answer));
        }
        self.more.notify_one();
        match answered.await {
            Ok(renewal) => Ok(renewal?),
            Err(_) => Err(ReadError::Stopping.into()),
        }
    }

    /// Renews what comes, until the node stops. One task runs this.
    pub(crate) async fn run(&self, coordinator: Arc<dyn Coordinator>) {
        loop {
            self.more.notified().await;
            let batch = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            let mut sessions: Vec<LeaseId> = batch.iter().map(|(session, _)| *session).collect();
            sessions.sort_unstable();
            sessions.dedup();
            let mut renewed = coordinator.renew_leases(Caller::Internal, sessions).await;
            if let Ok(renewed) = &mut renewed {
                renewed.gone.sort_unstable();
                renewed.ending.sort_unstable();
            }
            for (session, answer) in batch {
                // Whoever went away meanwhile does not want to know.
                let _ = answer.send(match &renewed {
                    Err(error) => Err(error.clone()),
                    Ok(renewed) if renewed.gone.binary_search(&session).is_ok() => Ok(Renewal::Gone),
                    Ok(renewed) if renewed.ending.binary_search(&session).is_ok() => Ok(Renewal::Ending),
                    Ok(_) => Ok(Renewal::Kept),
                });
            }
            if renewed == Err(ReadError::Stopping) {
                return;
            }
        }
    }
}
