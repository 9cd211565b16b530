//! What all services of this face share: the coordinator, who we are, and the few questions asked on
//! every call.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use tidelock_client_port::{Passwords, Tokens};
use tidelock_coordinator::{Consistency, Coordinator, Role};
use tidelock_model::{Answer, Caller, Command, Query, QueryAnswer, Revision};
use tokio::sync::{Semaphore, watch};

use crate::config::FaceConfig;
use crate::error_map::FaceError;
use crate::header::Headers;
use crate::leader_watch::leader_lost;
use crate::line_order::FollowedLines;
use crate::snapshot::SNAPSHOTS_AT_ONCE_MAX;

/// Why a stream must end, once it must.
pub(crate) type StreamEnd = Pin<Box<dyn Future<Output = FaceError> + Send>>;

/// Implements every service; each in the file named after it.
pub(crate) struct Services {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    pub(crate) config: FaceConfig,
    pub(crate) headers: Headers,
    /// Permits for snapshots under way.
    pub(crate) snapshots: Arc<Semaphore>,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) passwords: Passwords,
    /// Where somebody waits for a lock or a leadership.
    pub(crate) lines: Arc<FollowedLines>,
    standing: Standing,
    stopping: watch::Sender<bool>,
}

impl Services {
    pub(crate) fn new(coordinator: Arc<dyn Coordinator>, config: FaceConfig) -> Services {
        let headers = Headers::new(Arc::clone(&coordinator));
        let standing = Standing::new(&*coordinator);
        let snapshots = Arc::new(Semaphore::new(SNAPSHOTS_AT_ONCE_MAX));
        let (tokens, passwords) = (Arc::new(Tokens::new(config.token.clone())), Passwords::new(config.bcrypt_cost));
        let (lines, stopping) = (Arc::default(), watch::Sender::new(false));
        Services { coordinator, config, headers, snapshots, tokens, passwords, lines, standing, stopping }
    }

    /// Puts a command through the log: the store's revision after it, and its answer.
    pub(crate) async fn propose(&self, caller: &Caller, command: Command) -> Result<(Revision, Answer), FaceError> {
        let outcome = self.coordinator.propose(caller.clone(), command, None).await?;
        Ok((outcome.revision, outcome.result?))
    }

    /// Reads.
    pub(crate) async fn read(
        &self,
        caller: &Caller,
        query: Query,
        consistency: Consistency,
    ) -> Result<QueryAnswer, FaceError> {
        Ok(self.coordinator.read(caller.clone(), query, consistency).await?)
    }

    /// A learner answers `Status` and serializable reads; for the rest clients shall go elsewhere.
    pub(crate) fn refuse_on_learner(&self) -> Result<(), FaceError> {
        if self.standing.is_learner(&*self.coordinator) { Err(FaceError::NotSupportedForLearner) } else { Ok(()) }
    }

    /// Ends all streams, so that connections can close; unary calls under way finish by themselves.
    pub(crate) fn stop_streams(&self) {
        self.stopping.send_replace(true);
    }

    /// Resolves when a stream must end for a reason of ours: the face stops, or the client requires a
    /// leader and there has been none for too long.
    pub(crate) fn stream_end(&self, requires_leader: bool) -> StreamEnd {
        let lost = leader_lost(Arc::clone(&self.coordinator), self.config.leader_grace, requires_leader);
        let mut stopping = self.stopping.subscribe();
        Box::pin(async move {
            tokio::select! {
                () = lost => FaceError::NoLeader,
                // An error means that the face is gone altogether.
                _ = stopping.wait_for(|stopping| *stopping) => FaceError::Stopped,
            }
        })
    }
}

/// Whether this node is a learner, asked of it only now and then: the answer changes when an operator
/// promotes it, and every call needs it.
struct Standing {
    since: Instant,
    asked_ms: AtomicU64,
    learner: AtomicBool,
}

impl Standing {
    /// How old the answer may be.
    const REFRESH_MS: u64 = 100;

    fn new(coordinator: &dyn Coordinator) -> Standing {
        let learner = coordinator.status().role == Role::Learner;
        Standing { since: Instant::now(), asked_ms: AtomicU64::new(0), learner: AtomicBool::new(learner) }
    }

    fn is_learner(&self, coordinator: &dyn Coordinator) -> bool {
        let now = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let asked = self.asked_ms.load(Ordering::Relaxed);
        let due = now.saturating_sub(asked) >= Standing::REFRESH_MS;
        // Whoever wins asks; the others go on with the answer there is.
        if due && self.asked_ms.compare_exchange(asked, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.learner.store(coordinator.status().role == Role::Learner, Ordering::Relaxed);
        }
        self.learner.load(Ordering::Relaxed)
    }
}
