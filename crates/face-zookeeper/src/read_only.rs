//! The read-only mode: without a majority, clients that asked for it may still read what this node has.
//!
//! - It is offered once no leader was known for a while, by clients' own wish and the operator's setting only. What is
//!   shown may be old; it is never older than what the client has seen (`lastZxidSeen`).
//! - Nothing is changed: every request that could is refused (-119), and no session is opened, renewed or ended. A
//!   client without a session gets one for as long as its connection lasts, which no server knows later.
//! - When a leader is known again these connections are closed; clients come back, with their sessions if they had any.
//!
//! A learner that is cut off does not notice, and does not offer it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidelock_model::{LeaseId, Revision, SessionAnswer};
use tokio::sync::watch;

use crate::Face;
use crate::outbox::Outbox;
use crate::outside::{Outside, Ticks};
use crate::sessions::NoSession;
use crate::watch_table::ConnectionId;
use crate::wire::{ConnectRequest, PASSWORD_LENGTH, Request};

/// How often a leader is looked for, and silent connections are.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How long no leader must be known at least: an election is no reason to change anything for clients. ZooKeeper waits
/// as long, or a tick.
const GRACE_MIN: Duration = Duration::from_secs(2);
/// The first byte of the ids of sessions that end with their connections: no other session has it.
const ID_TOP: i64 = 2 << 56;

/// Whether this node is without a majority, and who reads at it all the same.
pub(crate) struct ReadOnly {
    outside: Arc<dyn Outside>,
    without_leader: watch::Sender<bool>,
    readers: Mutex<HashMap<ConnectionId, Reader>>,
}

struct Reader {
    outbox: Arc<Outbox>,
    heard: Arc<AtomicBool>,
    last_heard: Duration,
    timeout: Duration,
}

/// A session that goes on, or only lasts, at a connection that reads.
pub(crate) struct ReadingSession {
    pub(crate) session: SessionAnswer,
    pub(crate) password: [u8; PASSWORD_LENGTH],
}

impl ReadOnly {
    pub(crate) fn new(outside: Arc<dyn Outside>) -> ReadOnly {
        ReadOnly { outside, without_leader: watch::Sender::new(false), readers: Mutex::default() }
    }

    /// Whether this node is without a leader for longer than an election takes.
    pub(crate) fn is_on(&self) -> bool {
        *self.without_leader.borrow()
    }

    /// Completes when it is.
    pub(crate) async fn begins(&self) {
        // The sender is here, so it never ends otherwise.
        let _ = self.without_leader.subscribe().wait_for(|without| *without).await;
    }

    /// A connection reads, until a leader is known again or nothing is heard of it for `timeout`.
    pub(crate) fn hold(&self, id: ConnectionId, outbox: &Arc<Outbox>, timeout: Duration) -> Arc<AtomicBool> {
        let heard = Arc::new(AtomicBool::new(true));
        let (outbox, last_heard) = (Arc::clone(outbox), self.outside.now());
        self.lock().insert(id, Reader { outbox, heard: Arc::clone(&heard), last_heard, timeout });
        // The leader may have come back a moment ago, before this connection was there to be closed.
        if !self.is_on() {
            self.close_all();
        }
        heard
    }

    pub(crate) fn release(&self, id: ConnectionId) {
        self.lock().remove(&id);
    }

    fn close_all(&self) {
        self.lock().drain().for_each(|(_, reader)| reader.outbox.cut());
    }

    fn close_silent(&self, now: Duration) {
        self.lock().retain(|_, reader| {
            if reader.heard.swap(false, Ordering::Relaxed) {
                reader.last_heard = now;
            }
            let is_alive = now.saturating_sub(reader.last_heard) <= reader.timeout;
            if !is_alive {
                reader.outbox.cut();
            }
            is_alive
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ConnectionId, Reader>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Face {
    /// Follows whether there is a leader, until dropped. Does nothing where the mode is off.
    pub(crate) async fn watch_for_leader(&self) {
        if !self.config.read_only_mode {
            return;
        }
        let grace = GRACE_MIN.max(self.config.tick);
        let mut led = self.outside.now();
        let mut looks = Ticks::new(&self.outside, LOOK_INTERVAL);
        loop {
            looks.next().await;
            let now = self.outside.now();
            if self.coordinator.status().leader.is_some() {
                led = now;
            }
            let without = now.saturating_sub(led) >= grace;
            if self.read_only.without_leader.send_replace(without) != without {
                tracing::info!(read_only = without, "whether ZooKeeper's clients may only read changed");
            }
            if without {
                self.read_only.close_silent(now);
            } else {
                self.read_only.close_all();
            }
        }
    }

    /// The session of a client that may only read; checked with what this node has, and changed nowhere.
    pub(crate) fn reading_session(
        &self,
        request: &ConnectRequest,
        timeout: Duration,
    ) -> Result<ReadingSession, NoSession> {
        // A node that was never told anything has not even a root to show.
        if self.coordinator.revision() <= Revision::FIRST {
            return Err(NoSession::Unavailable);
        }
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let answer = |session| SessionAnswer { session, timeout_ms, generation: 0 };
        if request.session_id == 0 {
            let id = LeaseId(ID_TOP | (rand::random::<i64>() & ((1 << 56) - 1)));
            let password = self.sessions.known_password(id).unwrap_or_else(rand::random);
            return Ok(ReadingSession { session: answer(id), password });
        }
        let session = LeaseId(request.session_id);
        let password = self.sessions.known_password(session).ok_or(NoSession::Unavailable)?;
        if !crate::sessions::is_password(&password, &request.password) {
            return Err(NoSession::Over);
        }
        Ok(ReadingSession { session: answer(session), password })
    }
}

/// Whether a session lasts only as long as its connection.
pub(crate) fn is_passing(session: LeaseId) -> bool {
    session.0 >> 56 == ID_TOP >> 56
}

/// Whether a request is refused where clients may only read; the others are answered from what this node has.
pub(crate) fn is_refused(request: &Request, session: LeaseId) -> bool {
    match request {
        Request::Create(_)
        | Request::Delete { .. }
        | Request::DeleteContainer { .. }
        | Request::SetData { .. }
        | Request::SetAcl { .. }
        | Request::Multi(_)
        | Request::Sync { .. }
        | Request::Reconfig { .. } => true,
        Request::CloseSession => !is_passing(session),
        _ => false,
    }
}
