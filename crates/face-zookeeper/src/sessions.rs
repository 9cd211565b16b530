//! Sessions: opened and taken over through the log, kept alive at the leader, watched for their end.
//!
//! - The password of a session is made from its id and a secret that all members share, so that any member knows
//!   it; it is checked before anything is disturbed (S1).
//! - A session goes on at one connection. Taking it over counts its generation up in the log; requests of older
//!   connections are refused when they are carried out, and the older connection is closed.
//! - Packets renew a session at the leader, never through the log: all that were heard from since the last time in
//!   one message, four times a tick. A renewal that comes late lengthens the session's life, never shortens it (S2).
//! - A node that cannot reach the leader closes a client's connection before its session could have ended elsewhere:
//!   nobody may believe to hold what somebody else got meanwhile (S4).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ring::hmac;
use tidelock_coordinator::{Coordinator, ProposeError};
use tidelock_model::{Answer, AuthCommand, Caller, Command, LeaseId, Refusal, SessionAnswer, ZnodeCommand};

use crate::outbox::Outbox;
use crate::outside::{Outside, Ticks};
use crate::watch_table::ConnectionId;
use crate::watches::SessionNews;
use crate::wire::PASSWORD_LENGTH;

/// Keeps these passwords apart from everything else that is made with the secret.
const PASSWORD_LABEL: &[u8] = b"zookeeper session";

/// A session that goes on at a connection of this node.
#[derive(Clone)]
struct Held {
    connection: ConnectionId,
    generation: u64,
    outbox: Arc<Outbox>,
    timeout: Duration,
    /// A packet came since the last renewal.
    heard: Arc<AtomicBool>,
    /// When the last renewal was asked for that the leader confirmed.
    renewed: Arc<Mutex<Duration>>,
}

impl Held {
    fn renewed_at(&self, asked: Duration) {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = asked;
    }

    /// Whether the session may soon be over without this node hearing of it.
    fn is_in_doubt(&self, now: Duration) -> bool {
        let renewed = *self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        now.saturating_sub(renewed) > self.timeout * 2 / 3
    }
}

/// The sessions and connections of this node.
pub(crate) struct Sessions {
    coordinator: Arc<dyn Coordinator>,
    outside: Arc<dyn Outside>,
    held: Mutex<BTreeMap<LeaseId, Held>>,
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

/// Why there is no session.
#[derive(Debug)]
pub(crate) enum NoSession {
    /// It is over, or the password is wrong: the client is told.
    Over,
    /// Nothing can be said now; the connection is closed, and the client tries elsewhere.
    Unavailable,
}

fn milliseconds(timeout: Duration) -> u32 {
    u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX)
}

impl Sessions {
    pub(crate) fn new(coordinator: Arc<dyn Coordinator>, outside: Arc<dyn Outside>) -> Sessions {
        Sessions { coordinator, outside, held: Mutex::default(), by_address: Mutex::default() }
    }

    /// Opens a new session.
    pub(crate) async fn open(&self, timeout: Duration) -> Result<SessionAnswer, NoSession> {
        self.propose(ZnodeCommand::OpenSession { timeout_ms: milliseconds(timeout) }).await
    }

    /// Takes a session over for a new connection, with the timeout that it asks for.
    pub(crate) async fn attach(
        &self,
        session: LeaseId,
        password: &[u8],
        timeout: Duration,
    ) -> Result<SessionAnswer, NoSession> {
        let expected = self.password(session).await?;
        if !is_password(&expected, password) {
            return Err(NoSession::Over);
        }
        // First of all it must not run out meanwhile.
        match self.coordinator.keep_alive(Caller::Internal, session).await {
            Ok(Some(_)) => {
                let timeout_ms = milliseconds(timeout);
                self.propose(ZnodeCommand::AttachSession { session, timeout_ms }).await
            }
            Ok(None) if tidelock_model::planted!(ClosedSessionLetIn) => {
                let timeout_ms = milliseconds(timeout);
                self.propose(ZnodeCommand::AttachSession { session, timeout_ms }).await
            }
            Ok(None) => Err(NoSession::Over),
            Err(_) => Err(NoSession::Unavailable),
        }
    }

    async fn propose(&self, command: ZnodeCommand) -> Result<SessionAnswer, NoSession> {
        let outcome = self.coordinator.propose(Caller::Anonymous, Command::Znode(command), None).await;
        match outcome.map(|outcome| outcome.result) {
            Ok(Ok(Answer::Session(session))) => Ok(session),
            Ok(Err(Refusal::LeaseNotFound)) => Err(NoSession::Over),
            Ok(_) | Err(_) => Err(NoSession::Unavailable),
        }
    }

    /// What a client must show to come back to a session.
    pub(crate) async fn password(&self, session: LeaseId) -> Result<[u8; PASSWORD_LENGTH], NoSession> {
        let auth = self.coordinator.auth();
        let auth =
            if auth.has_secret() { auth } else { self.draw_secret().await.map_err(|_| NoSession::Unavailable)? };
        Ok(password_by(&auth, session))
    }

    /// The same, if the secret was drawn already.
    pub(crate) fn known_password(&self, session: LeaseId) -> Option<[u8; PASSWORD_LENGTH]> {
        let auth = self.coordinator.auth();
        auth.has_secret().then(|| password_by(&auth, session))
    }

    /// The first session of a cluster draws the secret; of several that do so at once, one wins.
    async fn draw_secret(&self) -> Result<Arc<tidelock_model::Auth>, ProposeError> {
        let command = Command::Auth(AuthCommand::DrawSecret { token_secret: self.outside.draw_secret() });
        self.coordinator.propose(Caller::Internal, command, None).await?;
        Ok(self.coordinator.auth())
    }

    /// A connection goes on with a session that was `asked` for then; gives back what says that it was heard from.
    pub(crate) fn hold(
        &self,
        session: &SessionAnswer,
        connection: ConnectionId,
        outbox: &Arc<Outbox>,
        asked: Duration,
    ) -> Arc<AtomicBool> {
        let heard = Arc::new(AtomicBool::new(true));
        let held = Held {
            connection,
            generation: session.generation,
            outbox: Arc::clone(outbox),
            timeout: Duration::from_millis(u64::from(session.timeout_ms)),
            heard: Arc::clone(&heard),
            renewed: Arc::new(Mutex::new(asked)),
        };
        let mut all = self.lock();
        match all.get(&session.session) {
            // A still newer one is there already.
            Some(other) if other.generation > session.generation => outbox.cut(),
            _ => {
                if let Some(older) = all.insert(session.session, held) {
                    older.outbox.cut();
                }
            }
        }
        heard
    }

    /// The connection is gone, or ends its session by itself.
    pub(crate) fn release(&self, session: LeaseId, connection: ConnectionId) {
        let mut all = self.lock();
        if all.get(&session).is_some_and(|held| held.connection == connection) {
            all.remove(&session);
        }
    }

    /// Counts a connection in, unless its address has `max` already.
    pub(crate) fn admit(&self, address: IpAddr, max: usize) -> bool {
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let count = by_address.entry(address).or_default();
        let admitted = max == 0 || *count < max;
        *count += usize::from(admitted);
        admitted
    }

    /// Counts it out.
    pub(crate) fn dismiss(&self, address: IpAddr) {
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&address);
            }
        }
    }

    /// Renews the sessions that were heard from, every `interval`, until dropped.
    pub(crate) async fn renew(&self, interval: Duration) {
        let mut ticks = Ticks::new(&self.outside, interval);
        loop {
            ticks.next().await;
            let heard: Vec<(LeaseId, Held)> = {
                let all = self.lock();
                let heard = |(_, held): &(&LeaseId, &Held)| held.heard.swap(false, Ordering::Relaxed);
                all.iter().filter(heard).map(|(session, held)| (*session, held.clone())).collect()
            };
            if !heard.is_empty() {
                self.renew_together(heard, interval).await;
            }
        }
    }

    async fn renew_together(&self, heard: Vec<(LeaseId, Held)>, patience: Duration) {
        let asked = self.outside.now();
        if tidelock_model::planted!(SessionRenewedHereOnly) {
            return;
        }
        let sessions = heard.iter().map(|(session, _)| *session).collect();
        let renewing = self.coordinator.renew_leases(Caller::Internal, sessions);
        // `None`: nobody knows.
        let answer = self.outside.within(patience, renewing).await.and_then(Result::ok);
        let set = |leases: Vec<LeaseId>| leases.into_iter().collect::<BTreeSet<LeaseId>>();
        let answer = answer.map(|renewed| (set(renewed.gone), set(renewed.ending)));
        for (session, held) in heard {
            match &answer {
                Some((gone, _)) if gone.contains(&session) => held.outbox.cut(),
                Some((_, ending)) if !ending.contains(&session) => held.renewed_at(asked),
                _ if held.is_in_doubt(self.outside.now()) => held.outbox.cut(),
                // What was heard still counts.
                _ => held.heard.store(true, Ordering::Relaxed),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn password_by(auth: &tidelock_model::Auth, session: LeaseId) -> [u8; PASSWORD_LENGTH] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &auth.token_secret);
    let tag = hmac::sign(&key, &[PASSWORD_LABEL, &session.0.to_be_bytes()].concat());
    let mut password = [0; PASSWORD_LENGTH];
    password.copy_from_slice(&tag.as_ref()[..PASSWORD_LENGTH]);
    password
}

/// Whether a client showed the right one. All of it is compared, so that time tells nothing about how much was right.
pub(crate) fn is_password(expected: &[u8; PASSWORD_LENGTH], shown: &[u8]) -> bool {
    let differing = expected.iter().zip(shown).fold(0, |differing, (one, other)| differing | (one ^ other));
    differing == 0 && shown.len() == PASSWORD_LENGTH
}

impl SessionNews for Sessions {
    fn ended(&self, session: LeaseId) {
        if let Some(held) = self.lock().remove(&session) {
            held.outbox.cut();
        }
    }

    fn taken_over(&self, session: LeaseId, generation: u64) {
        let mut all = self.lock();
        if all.get(&session).is_some_and(|held| held.generation < generation)
            && let Some(held) = all.remove(&session)
        {
            held.outbox.cut();
        }
    }
}
