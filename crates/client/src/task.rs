//! The one background task of a client: keeps a stream to some node, and carries out what the engine says.
//!
//! Everybody else talks to it by [`Command`]s. Nothing here decides anything: what follows from what is in `engine` and
//! `session`, which have no IO. When the last handle of the client is gone the task closes the sessions and ends.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tidelock_native_api::v1::{self, answer::Answer, request::Op};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Sleep;
use tonic::{Status, Streaming};

use crate::clock::{Clock, Moment};
use crate::engine::{Engine, ObserverKey, Subject, Todo};
use crate::error::{Error, Failure, of_status};
use crate::handle::{Answered, Possession, SessionHandle, SessionState, Unmet};
use crate::inbox::{Receiver, WeakSender};
use crate::nodes::{CONNECT_TIMEOUT, Nodes, why};
use crate::session::backoff::Backoff;
use crate::session::{Output, SessionKey, Ticket, Wish};

/// The task looks at the clock at least this often while it has something to wait for: timers stand still while the
/// machine sleeps, the clock does not.
const LOOK_AT_CLOCK: Duration = Duration::from_millis(500);
/// Most notices that an observer has not taken. One that has more begins anew.
pub(crate) const NOTICES_MAX: usize = 256;
/// Most messages that wait to be sent: 64 requests of each session, a renewal, and what is observed. A node that takes
/// none of them is left.
const OUTGOING_MAX: usize = 65_536;
/// Things held that are asked for at a time.
const HOLDINGS_PAGE: u32 = 1000;

/// What parts of the program want of the task.
pub(crate) enum Command {
    Open {
        session: Arc<SessionState>,
    },
    Ask {
        session: SessionKey,
        op: Op,
        ticket: Ticket,
        consumes: Option<Ticket>,
        wait: Option<Duration>,
        answer: Waiter,
    },
    Abandon {
        session: SessionKey,
        ticket: Ticket,
    },
    Undo {
        session: SessionKey,
        possession: Ticket,
        op: Op,
    },
    Forget {
        session: SessionKey,
        possession: Ticket,
    },
    Observe {
        key: ObserverKey,
        subject: Subject,
        notices: mpsc::Sender<v1::Notice>,
        ready: Ready,
    },
    StopObserving(ObserverKey),
    CloseSession {
        session: SessionKey,
    },
    Close(oneshot::Sender<()>),
}

/// Who waits until the cluster tells what happens to a name, or why it does not.
pub(crate) type Ready = oneshot::Sender<Result<(), Error>>;

/// Who waits for the answer to a request.
pub(crate) type Waiter = oneshot::Sender<Result<Answered, Unmet>>;

struct Observer {
    notices: mpsc::Sender<v1::Notice>,
    ready: Option<Ready>,
}

/// The connection to some node.
enum Link {
    Down,
    Pausing(Pin<Box<Sleep>>),
    Connecting { outgoing: mpsc::Sender<v1::FromClient>, turn: u64, calling: Calling },
    Up { outgoing: mpsc::Sender<v1::FromClient>, turn: u64, incoming: Box<Streaming<v1::ToClient>> },
}

type Calling = BoxFuture<'static, Result<Streaming<v1::ToClient>, Status>>;

enum LinkEvent {
    PauseOver,
    Connected(Box<Streaming<v1::ToClient>>),
    Message(v1::ToClient),
    /// Another node may do better.
    Broken(Trouble),
    /// Whoever this client says it is may not come in, or this is no node. Another one would say the same.
    Refused(Error),
}

/// Why there is no connection, for whoever waits until there is one in vain.
type Trouble = Option<String>;

impl LinkEvent {
    fn failed(status: &Status) -> LinkEvent {
        match of_status(status) {
            Some(error) => LinkEvent::Refused(error),
            None => LinkEvent::Broken(Some(why(status))),
        }
    }
}

impl Link {
    /// The next thing that happens. May be dropped half way: nothing is lost by that.
    async fn event(&mut self) -> LinkEvent {
        match self {
            Link::Down => std::future::pending().await,
            Link::Pausing(pause) => {
                pause.as_mut().await;
                LinkEvent::PauseOver
            }
            Link::Connecting { calling, .. } => match calling.await {
                Ok(incoming) => LinkEvent::Connected(Box::new(incoming)),
                Err(status) => LinkEvent::failed(&status),
            },
            Link::Up { incoming, .. } => match incoming.message().await {
                Ok(Some(message)) => LinkEvent::Message(message),
                Ok(None) => LinkEvent::Broken(None),
                Err(status) => LinkEvent::failed(&status),
            },
        }
    }
}

/// What a session holds, as it was asked for.
type Lookup = BoxFuture<'static, (SessionKey, Option<(Vec<v1::Holding>, u64)>)>;

pub(crate) struct Task {
    engine: Engine,
    nodes: Arc<Nodes>,
    clock: Arc<dyn Clock>,
    patience: Duration,
    commands: Receiver,
    /// For handles that are made here. Weak: the task ends when nobody else has one.
    to_self: WeakSender,
    link: Link,
    backoff: Backoff,
    /// What went wrong with the last connection, while there is none.
    trouble: Trouble,
    waiting: BTreeMap<Ticket, Waiter>,
    observers: BTreeMap<ObserverKey, Observer>,
    sessions: BTreeMap<SessionKey, Arc<SessionState>>,
    lookups: FuturesUnordered<Lookup>,
    /// Nothing new is taken on; over at the latest then.
    ending: Option<Moment>,
    closed: Vec<oneshot::Sender<()>>,
}

impl Task {
    pub(crate) fn new(
        nodes: Arc<Nodes>,
        clock: Arc<dyn Clock>,
        patience: Duration,
        commands: Receiver,
        to_self: WeakSender,
    ) -> Task {
        Task {
            engine: Engine::default(),
            nodes,
            clock,
            patience,
            commands,
            to_self,
            link: Link::Down,
            backoff: Backoff::default(),
            trouble: None,
            waiting: BTreeMap::new(),
            observers: BTreeMap::new(),
            sessions: BTreeMap::new(),
            lookups: FuturesUnordered::new(),
            ending: None,
            closed: Vec::new(),
        }
    }

    pub(crate) async fn run(mut self) {
        loop {
            self.carry_out();
            let now = self.clock.now();
            if self.ending.is_some_and(|end| now >= end || !self.engine.needs_stream()) {
                break;
            }
            if matches!(self.link, Link::Down) && self.engine.needs_stream() {
                self.call();
            }
            let wakes_at = [self.engine.wakes_at(), self.ending].into_iter().flatten().min();
            let nap = wakes_at.map(|at| now.until(at).min(LOOK_AT_CLOCK));
            tokio::select! {
                command = self.commands.next(), if self.ending.is_none() => self.command(command),
                event = self.link.event() => self.link_event(event),
                Some((session, found)) = self.lookups.next() => self.looked_up(session, found),
                () = sleep_if(nap) => {}
            }
            self.engine.tick(self.clock.now());
        }
        for closed in self.closed.drain(..) {
            let _ = closed.send(());
        }
    }

    fn command(&mut self, command: Option<Command>) {
        let now = self.clock.now();
        match command {
            None => self.end(now),
            Some(Command::Close(done)) => {
                self.closed.push(done);
                self.commands.close();
                self.end(now);
            }
            Some(Command::Open { session }) => {
                self.engine.open(session.key, session.ttl, rand::random(), now);
                self.sessions.insert(session.key, session);
            }
            Some(Command::Ask { session, op, ticket, consumes, wait, answer }) => {
                self.waiting.insert(ticket, answer);
                let wish = Wish { op, ticket: Some(ticket), consumes, patience: self.patience, wait };
                self.engine.ask(session, wish, now);
            }
            Some(Command::CloseSession { session }) => self.engine.close(session),
            Some(Command::Abandon { session, ticket }) => {
                self.waiting.remove(&ticket);
                self.engine.abandon(session, ticket, now);
            }
            Some(Command::Undo { session, possession, op }) => self.engine.undo(session, possession, op, now),
            Some(Command::Forget { session, possession }) => self.engine.forget(session, possession),
            Some(Command::Observe { key, subject, notices, ready }) => {
                self.observers.insert(key, Observer { notices, ready: Some(ready) });
                self.engine.observe(key, subject);
            }
            Some(Command::StopObserving(key)) => {
                self.observers.remove(&key);
                self.engine.stop_observing(key);
            }
        }
    }

    fn end(&mut self, now: Moment) {
        self.ending = Some(now + self.patience);
        self.engine.close_all();
    }

    fn link_event(&mut self, event: LinkEvent) {
        let now = self.clock.now();
        match event {
            // Called again as soon as somebody needs it.
            LinkEvent::PauseOver => self.link = Link::Down,
            LinkEvent::Connected(incoming) => {
                let Link::Connecting { outgoing, turn, .. } = std::mem::replace(&mut self.link, Link::Down) else {
                    return;
                };
                self.link = Link::Up { outgoing, turn, incoming };
                self.engine.connected(now);
            }
            LinkEvent::Message(message) => {
                self.backoff.worked();
                self.trouble = None;
                self.engine.received(message, now);
            }
            LinkEvent::Broken(trouble) => {
                self.trouble = trouble.or(self.trouble.take());
                self.leave_node();
            }
            LinkEvent::Refused(error) => {
                self.engine.refused(&error, now);
                self.leave_node();
            }
        }
    }

    /// Calls the node whose turn it is.
    fn call(&mut self) {
        let (outgoing, mut waiting) = mpsc::channel(OUTGOING_MAX);
        let chosen = self.nodes.current();
        let mut calls = chosen.calls;
        let messages = futures_util::stream::poll_fn(move |context| waiting.poll_recv(context));
        let calling = async move {
            let reply = tokio::time::timeout(CONNECT_TIMEOUT, calls.connect(messages)).await;
            Ok(reply.map_err(|_| Status::deadline_exceeded("the node does not answer"))??.into_inner())
        };
        self.link = Link::Connecting { outgoing, turn: chosen.turn, calling: Box::pin(calling) };
    }

    fn leave_node(&mut self) {
        let (Link::Connecting { turn, .. } | Link::Up { turn, .. }) = self.link else { return };
        self.nodes.leave(turn);
        self.engine.disconnected();
        let shortest = self.sessions.values().map(|session| session.ttl / 12).min();
        let pause = self.backoff.failed(shortest.unwrap_or(Duration::MAX), rand::random());
        self.link = Link::Pausing(Box::pin(tokio::time::sleep(pause)));
    }

    fn looked_up(&mut self, session: SessionKey, found: Option<(Vec<v1::Holding>, u64)>) {
        match found {
            Some((holdings, revision)) => self.engine.holdings(session, &holdings, revision, self.clock.now()),
            // The session is still unsure, and asks again at the next node.
            None => self.leave_node(),
        }
    }

    /// Does what the engine says, and what follows from that.
    fn carry_out(&mut self) {
        loop {
            let todo = self.engine.take_todo();
            if todo.is_empty() {
                return;
            }
            todo.into_iter().for_each(|todo| self.carry_out_one(todo));
        }
    }

    fn carry_out_one(&mut self, todo: Todo) {
        match todo {
            Todo::Session(output) => self.session_output(output),
            Todo::Observing(key) => {
                if let Some(ready) = self.observers.get_mut(&key).and_then(|observer| observer.ready.take()) {
                    let _ = ready.send(Ok(()));
                }
            }
            Todo::Notice(key, notice) => {
                let observer = self.observers.get(&key);
                if observer.is_some_and(|observer| observer.notices.try_send(notice).is_err()) {
                    self.observers.remove(&key);
                    self.engine.stop_observing(key);
                }
            }
            Todo::Missed(key, error) => {
                let ready = self.observers.remove(&key).and_then(|observer| observer.ready);
                if let (Some(ready), Some(error)) = (ready, error) {
                    let _ = ready.send(Err(error));
                }
            }
            Todo::StreamEnded => self.leave_node(),
        }
    }

    fn session_output(&mut self, output: Output) {
        match output {
            Output::Send(message) => {
                if let Link::Up { outgoing, .. } = &self.link
                    && outgoing.try_send(v1::FromClient { message: Some(message) }).is_err()
                {
                    self.leave_node();
                }
            }
            Output::Answered { session, ticket, answer, undo } => {
                self.answered(session, ticket, answer, undo);
            }
            Output::Failed { ticket, error } => {
                if let Some(answer) = self.waiting.remove(&ticket) {
                    let _ = answer.send(Err(Unmet::Error(self.with_trouble(error))));
                }
            }
            Output::NotAsked { ticket, op } => {
                if let Some(answer) = self.waiting.remove(&ticket) {
                    let _ = answer.send(Err(Unmet::SessionWasOver(Box::new(op))));
                }
            }
            Output::Valid { session, until } => {
                if let Some(state) = self.sessions.get(&session) {
                    state.set_valid_until(until);
                }
            }
            Output::Opened { session, id } => {
                if let Some(state) = self.sessions.get(&session) {
                    state.set_id(id);
                }
            }
            Output::Over { session, error } => {
                if let Some(state) = self.sessions.remove(&session) {
                    state.set_over(error);
                }
            }
            Output::AskHoldings { session, id } => self.look_up(session, id),
            Output::LeaveNode => self.leave_node(),
        }
    }

    /// An error of nobody answering, with why nobody did.
    fn with_trouble(&self, error: Error) -> Error {
        match (error, &self.trouble) {
            (Error::Failed(Failure::Unreachable(what)), Some(why)) => {
                Failure::Unreachable(format!("{what}; {why}")).into()
            }
            (error, _) => error,
        }
    }

    /// Hands an answer over, together with the duty to give back what it gave. Whoever drops it unread gives it back.
    fn answered(&mut self, session: SessionKey, ticket: Ticket, answer: Answer, undo: Option<Op>) {
        let waiter = self.waiting.remove(&ticket);
        let handle = self.sessions.get(&session).cloned().zip(self.to_self.upgrade());
        match (waiter, handle, undo) {
            (Some(waiter), Some((state, commands)), undo) => {
                let possession = undo.map(|op| Possession::new(SessionHandle::new(state, commands), ticket, op));
                let _ = waiter.send(Ok(Answered { answer, possession }));
            }
            // Nobody is left who could take it.
            (_, _, Some(op)) => self.engine.undo(session, ticket, op, self.clock.now()),
            (_, _, None) => {}
        }
    }

    fn look_up(&mut self, session: SessionKey, id: i64) {
        let mut calls = self.nodes.current().calls;
        self.lookups.push(Box::pin(async move {
            let mut holdings: Vec<v1::Holding> = Vec::new();
            loop {
                let skip = holdings.len() as u64;
                let request = v1::SessionsRequest { session: id, skip, holdings: HOLDINGS_PAGE, ..Default::default() };
                let answer = tokio::time::timeout(CONNECT_TIMEOUT, calls.sessions(request)).await;
                let Ok(Ok(reply)) = answer else { return (session, None) };
                let reply = reply.into_inner();
                let revision = reply.header.map_or(0, |header| header.revision);
                // Without the session there is nothing; the stream says so, too.
                let page = reply.sessions.into_iter().next().map(|session| session.holdings).unwrap_or_default();
                let is_last = page.len() < HOLDINGS_PAGE as usize;
                holdings.extend(page);
                if is_last {
                    return (session, Some((holdings, revision)));
                }
            }
        }));
    }
}

async fn sleep_if(nap: Option<Duration>) {
    match nap {
        Some(nap) => tokio::time::sleep(nap).await,
        None => std::future::pending().await,
    }
}

impl Drop for Task {
    /// Whoever still waits when the runtime ends is told, so that no guard is believed in without renewals.
    fn drop(&mut self) {
        for state in std::mem::take(&mut self.sessions).into_values() {
            state.set_over(Failure::Closed.into());
        }
    }
}
