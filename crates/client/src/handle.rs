//! How parts of a program hold on to a session, to what it gave them, and to what they observe.
//!
//! Dropping is always right. A request that is dropped before its answer is abandoned: the task gives back what it got.
//! An answer that is dropped unread gives back what it brought, since it carries the [`Possession`]. A possession that
//! is dropped is given back in the background.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tidelock_native_api::v1::{self, answer::Answer, request::Op};
use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::{Clock, Moment};
use crate::engine::{ObserverKey, Subject};
use crate::error::{Error, Failure, Loss};
use crate::inbox::Sender;
use crate::limits;
use crate::session::{SessionKey, Ticket};
use crate::task::{Command, NOTICES_MAX};

/// Numbers for tickets, sessions and observers: unique in this process.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// What is known of a session without asking the task.
pub(crate) struct SessionState {
    pub(crate) key: SessionKey,
    pub(crate) ttl: Duration,
    clock: Arc<dyn Clock>,
    /// In nanoseconds of the clock; zero until it is open.
    valid_until: AtomicU64,
    /// Zero until it is open.
    id: AtomicI64,
    over: watch::Sender<Option<Error>>,
}

impl SessionState {
    pub(crate) fn new(ttl: Duration, clock: Arc<dyn Clock>) -> SessionState {
        let (valid_until, id) = (AtomicU64::new(0), AtomicI64::new(0));
        SessionState { key: next_number(), ttl, clock, valid_until, id, over: watch::Sender::new(None) }
    }

    pub(crate) fn set_valid_until(&self, until: Moment) {
        self.valid_until.store(until.nanos(), Ordering::Release);
    }

    pub(crate) fn set_id(&self, id: i64) {
        self.id.store(id, Ordering::Release);
    }

    pub(crate) fn set_over(&self, error: Error) {
        self.over.send_replace(Some(error));
    }

    fn loss(&self) -> Option<Error> {
        // Whatever ended the session, what it held is lost.
        self.over.borrow().as_ref().map(|error| match error {
            Error::Lost(loss) => Error::Lost(loss.clone()),
            _ => Loss::SessionEnded.into(),
        })
    }

    /// Who asks in a session that was refused while it asked is told that; another one would be refused, too.
    fn ended_by(&self, unmet: Unmet) -> Unmet {
        match (&*self.over.borrow(), unmet) {
            (
                Some(refused @ Error::Refused(_)),
                Unmet::SessionWasOver(_) | Unmet::Error(Error::Lost(Loss::SessionEnded)),
            ) => Unmet::Error(refused.clone()),
            (_, unmet) => unmet,
        }
    }

    /// Whether what the session holds may be relied on at this moment.
    fn check(&self) -> Result<(), Error> {
        if let Some(error) = self.loss() {
            return Err(error);
        }
        let is_valid = self.clock.now().nanos() < self.valid_until.load(Ordering::Acquire);
        if is_valid { Ok(()) } else { Err(Loss::Expired.into()) }
    }
}

/// A session, as the handles of primitives and their guards have it.
#[derive(Clone)]
pub(crate) struct SessionHandle {
    state: Arc<SessionState>,
    commands: Sender,
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {:x}", self.state.id.load(Ordering::Acquire))
    }
}

impl SessionHandle {
    pub(crate) fn new(state: Arc<SessionState>, commands: Sender) -> SessionHandle {
        SessionHandle { state, commands }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.over.borrow().is_some()
    }

    pub(crate) fn id(&self) -> i64 {
        self.state.id.load(Ordering::Acquire)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.state.check()
    }

    /// Waits until nothing of the session may be relied on any more.
    pub(crate) async fn lost(&self) -> Error {
        let mut over = self.state.over.subscribe();
        // The sender is in `state`, which this keeps.
        let _ = over.wait_for(Option::is_some).await;
        self.state.loss().unwrap_or(Loss::SessionEnded.into())
    }

    /// Whether nobody has it but the client and its task: nothing is held, and nobody asks.
    pub(crate) fn is_unused(&self) -> bool {
        Arc::strong_count(&self.state) <= 2
    }

    /// The session is needed no more.
    pub(crate) fn close(&self) {
        self.commands.give_back(Command::CloseSession { session: self.state.key });
    }

    /// Asks for something that concerns what this session holds.
    pub(crate) async fn ask(&self, op: Op) -> Result<Answered, Error> {
        self.ask_anew(op, None).await.map_err(Unmet::into_error)
    }

    /// Asks for something that any session would do for; a grant is waited for at most that long.
    pub(crate) async fn ask_anew(&self, op: Op, wait: Option<Duration>) -> Result<Answered, Unmet> {
        limits::check(&op).map_err(Unmet::Error)?;
        self.request(op, None, wait).await
    }

    async fn request(&self, op: Op, consumes: Option<Ticket>, wait: Option<Duration>) -> Result<Answered, Unmet> {
        let (answer, answered) = oneshot::channel();
        let ticket = next_number();
        let session = self.state.key;
        let command = Command::Ask { session, op, ticket, consumes, wait, answer };
        let put = if consumes.is_some() { self.commands.wish_back(command) } else { self.commands.wish(command) };
        put.map_err(Unmet::Error)?;
        let mut waiting = Abandoning { handle: self, ticket: Some(ticket) };
        let answer = answered.await;
        waiting.ticket = None;
        match answer {
            Ok(answer) => answer.map_err(|unmet| self.state.ended_by(unmet)),
            Err(_) => Err(Unmet::Error(Failure::Closed.into())),
        }
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Unmet {
    Error(Error),
    /// The session was over before this was asked there: it may be asked in another, unless it concerns what was held.
    SessionWasOver(Box<Op>),
}

impl Unmet {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Unmet::Error(error) => error,
            Unmet::SessionWasOver(_) => Loss::SessionEnded.into(),
        }
    }
}

/// Abandons a request when it is dropped before the answer.
struct Abandoning<'a> {
    handle: &'a SessionHandle,
    ticket: Option<Ticket>,
}

impl Drop for Abandoning<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.handle.commands.give_back(Command::Abandon { session: self.handle.state.key, ticket });
        }
    }
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) answer: Answer,
    /// What it gave, if it gave something that must be given back.
    pub(crate) possession: Option<Possession>,
}

/// Something that is held and must be given back.
#[derive(Debug)]
pub(crate) struct Possession {
    handle: SessionHandle,
    ticket: Ticket,
    undo: Option<Op>,
}

impl Possession {
    pub(crate) fn new(handle: SessionHandle, ticket: Ticket, undo: Op) -> Possession {
        Possession { handle, ticket, undo: Some(undo) }
    }

    pub(crate) fn session(&self) -> &SessionHandle {
        &self.handle
    }

    /// The place, where what is held is one.
    pub(crate) fn place(&self) -> Option<u64> {
        match &self.undo {
            Some(Op::GiveUp(give_up)) => Some(give_up.place),
            _ => None,
        }
    }

    /// Gives it back, and waits for the answer. Dropped half way, it is given back all the same.
    pub(crate) async fn give_back(mut self) -> Result<Answered, Error> {
        match self.undo.take() {
            Some(undo) => {
                let given_back = self.handle.request(undo, Some(self.ticket), None).await;
                given_back.map_err(Unmet::into_error)
            }
            None => Err(Failure::Closed.into()),
        }
    }

    /// Ends it by another request. If that one is refused it is given back.
    pub(crate) async fn end_by(mut self, op: Op) -> Result<Answered, Error> {
        let answered = self.handle.ask(op).await?;
        self.undo = None;
        self.forget();
        Ok(answered)
    }

    /// It is gone without our doing: nothing is left to be given back.
    pub(crate) fn forget_place(mut self) {
        self.undo = None;
        self.forget();
    }

    /// Tells the task that nothing is held here any more.
    fn forget(&self) {
        let command = Command::Forget { session: self.handle.state.key, possession: self.ticket };
        self.handle.commands.give_back(command);
    }
}

impl Drop for Possession {
    fn drop(&mut self) {
        if let Some(op) = self.undo.take() {
            let command = Command::Undo { session: self.handle.state.key, possession: self.ticket, op };
            self.handle.commands.give_back(command);
        }
    }
}

/// What happens to one name.
pub(crate) struct Observation {
    key: ObserverKey,
    commands: Sender,
    notices: mpsc::Receiver<v1::Notice>,
    ready: Option<oneshot::Receiver<Result<(), Error>>>,
    /// What happened up to this revision was seen by looking.
    seen: u64,
}

impl Observation {
    /// Begins to observe.
    pub(crate) fn begin(commands: &Sender, kind: v1::Kind, name: &str) -> Result<Observation, Error> {
        limits::name(name)?;
        let (key, subject) = (next_number(), Subject { kind: kind.into(), name: name.to_owned() });
        let (sender, notices) = mpsc::channel(NOTICES_MAX);
        let (ready, is_ready) = oneshot::channel();
        commands.wish(Command::Observe { key, subject, notices: sender, ready })?;
        Ok(Observation { key, commands: commands.clone(), notices, ready: Some(is_ready), seen: 0 })
    }

    /// Waits until the cluster tells what happens, or why it does not.
    pub(crate) async fn is_told(&mut self) -> Result<(), Error> {
        let Some(ready) = self.ready.take() else { return Ok(()) };
        let nobody = |_| Failure::Unreachable("no node lets this be observed".into());
        ready.await.map_err(nobody)?
    }

    /// Somebody looked: what is told of up to then is in that, and old. A node that is behind tells of it all the same.
    pub(crate) fn looked(&mut self, header: Option<&v1::Header>) {
        self.seen = self.seen.max(header.map_or(0, |header| header.revision));
    }

    /// The next thing that happens after what was seen. `None`: something was missed, so that one must look anew. May be
    /// dropped half way.
    pub(crate) async fn next(&mut self) -> Option<v1::Notice> {
        loop {
            let notice = self.notices.recv().await?;
            if notice.revision > self.seen {
                return Some(notice);
            }
        }
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        self.commands.give_back(Command::StopObserving(self.key));
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "observation {}", self.key)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::clock::MachineClock;
    use crate::inbox::inbox;

    /// A program that asked too much at once must still get rid of what it has.
    #[tokio::test]
    async fn a_release_is_taken_although_too_many_wishes_wait() {
        let (commands, mut waiting) = inbox();
        let state = Arc::new(SessionState::new(Duration::from_secs(10), Arc::new(MachineClock)));
        let undo = Op::GiveUp(v1::GiveUp { place: 3, ..Default::default() });
        let possession = Possession::new(SessionHandle::new(state, commands.clone()), 7, undo);
        while commands.wish(Command::StopObserving(0)).is_ok() {}
        let mut releases = Box::pin(possession.give_back());
        assert!(releases.as_mut().now_or_never().is_none(), "it waits for an answer");
        let put = std::iter::from_fn(|| waiting.next().now_or_never().flatten());
        assert!(put.into_iter().any(|command| matches!(command, Command::Ask { consumes: Some(7), .. })));
    }
}
