//! Keep-alives of all clients of this node, put together: one question to the leader for all that came while the last one was under
//! way.

use std::sync::{Arc, Mutex, PoisonError};

use tidelock_coordinator::{Consistency, Coordinator, ReadError};
use tidelock_model::limits::NATIVE_LIST_MAX;
use tidelock_model::{Caller, LeaseId, NativeFound, NativeQuery, Query, QueryAnswer};
use tokio::sync::{Notify, oneshot};

use crate::problem::Problem;
use tidelock_native_api::v1::error::Family;

/// Most renewals that wait; each is of a session that somebody attached.
const WAITING_MAX: usize = 1_000_000;

/// What became of a session's renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// It has its whole time to live again, which is this one.
    Kept { ttl_ms: u32 },
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
            let renewed = renew_all(&*coordinator, sessions).await;
            for (session, answer) in batch {
                // Whoever went away meanwhile does not want to know.
                let _ = answer.send(renewed.as_ref().map(|renewed| renewed.of(session)).map_err(Clone::clone));
            }
            if matches!(renewed, Err(ReadError::Stopping)) {
                return;
            }
        }
    }
}

/// What became of many; all lists are sorted.
struct RenewedAll {
    gone: Vec<LeaseId>,
    ending: Vec<LeaseId>,
    /// Those that this node still has, with their times to live.
    living: Vec<(LeaseId, u32)>,
}

impl RenewedAll {
    fn of(&self, session: LeaseId) -> Renewal {
        if self.ending.binary_search(&session).is_ok() {
            return Renewal::Ending;
        }
        match self.living.binary_search_by_key(&session, |(id, _)| *id) {
            Ok(at) if self.gone.binary_search(&session).is_err() => Renewal::Kept { ttl_ms: self.living[at].1 },
            // This node had it when it was attached: it has ended since.
            _ => Renewal::Gone,
        }
    }
}

async fn renew_all(coordinator: &dyn Coordinator, sessions: Vec<LeaseId>) -> Result<RenewedAll, ReadError> {
    let mut renewed = coordinator.renew_leases(Caller::Internal, sessions.clone()).await?;
    renewed.gone.sort_unstable();
    renewed.ending.sort_unstable();
    let mut living = Vec::with_capacity(sessions.len());
    // Looked up each time: any request of the session may change its time to live, by whatever way it comes here.
    for some in sessions.chunks(NATIVE_LIST_MAX as usize) {
        let query = Query::Native(NativeQuery::SomeSessions { sessions: some.to_vec(), holdings: 0 });
        let found = coordinator.read(Caller::Internal, query, Consistency::Local).await?;
        if let QueryAnswer::Native { found: NativeFound::Sessions(found), .. } = found {
            living.extend(found.iter().map(|one| (one.session, one.ttl_s.saturating_mul(1000))));
        }
    }
    Ok(RenewedAll { gone: renewed.gone, ending: renewed.ending, living })
}
