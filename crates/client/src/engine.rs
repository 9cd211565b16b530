//! A client without IO: its sessions, what it observes, and the one stream they share.
//!
//! Routes what comes to whom it concerns. Names that several parts of a program observe are observed once on the
//! stream. An observer that missed something, since the cluster does not know it any more, is ended and looks anew.

mod one_by_one;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidelock_native_api::v1::{self, from_client::Message, notice::Notice, request::Op, to_client};

use crate::clock::Moment;
use crate::error::{Error, of_wire};
use crate::session::{Output, Session, SessionKey, Ticket, Wish};
use one_by_one::OneByOne;

/// Who is told what happens to a name.
pub(crate) type ObserverKey = u64;

/// What is observed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Subject {
    pub(crate) kind: i32,
    pub(crate) name: String,
}

#[derive(Default)]
struct Observed {
    by: BTreeSet<ObserverKey>,
    /// The stream has said that it tells.
    is_told: bool,
    /// All up to this revision was told.
    told: u64,
}

/// What follows from an input, for the task to do.
#[derive(Debug)]
pub(crate) enum Todo {
    /// Of a session.
    Session(Output),
    /// From now on the observer is told.
    Observing(ObserverKey),
    /// Something happened to what it observes.
    Notice(ObserverKey, v1::Notice),
    /// It missed something and must look anew, or may not observe, for this reason.
    Missed(ObserverKey, Option<Error>),
    /// The whole stream is over.
    StreamEnded,
}

/// All of one client.
#[derive(Default)]
pub(crate) struct Engine {
    sessions: BTreeMap<SessionKey, Session>,
    observed: BTreeMap<Subject, Observed>,
    subjects: BTreeMap<ObserverKey, Subject>,
    /// How often the stream was asked to tell of a name and has not said that it does. Only the last word counts: who
    /// stops observing and begins again must not take the first beginning for the second.
    unanswered: BTreeMap<Subject, u32>,
    connected: bool,
    one_by_one: OneByOne,
    outputs: Vec<Output>,
    todo: Vec<Todo>,
}

impl Engine {
    /// What is to be done, once.
    pub(crate) fn take_todo(&mut self) -> Vec<Todo> {
        self.sessions.retain(|_, session| !session.is_done());
        let outputs = std::mem::take(&mut self.outputs);
        self.todo.extend(self.one_by_one.let_through(outputs).into_iter().map(Todo::Session));
        std::mem::take(&mut self.todo)
    }

    /// Whether there is anything that a stream is needed for.
    pub(crate) fn needs_stream(&self) -> bool {
        !self.sessions.is_empty() || !self.subjects.is_empty()
    }

    pub(crate) fn wakes_at(&self) -> Option<Moment> {
        self.sessions.values().filter_map(Session::wakes_at).min()
    }

    // ---- What the program wants

    pub(crate) fn open(&mut self, key: SessionKey, ttl: Duration, client: u64, now: Moment) {
        let mut session = Session::new(key, ttl, client);
        if self.connected {
            session.connected(now, &mut self.outputs);
        }
        self.sessions.insert(key, session);
    }

    pub(crate) fn close_all(&mut self) {
        self.sessions.values_mut().for_each(|session| session.close(&mut self.outputs));
        self.subjects.clear();
        self.observed.clear();
    }

    /// One session is needed no more.
    pub(crate) fn close(&mut self, key: SessionKey) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.close(&mut self.outputs);
        }
    }

    pub(crate) fn ask(&mut self, key: SessionKey, wish: Wish, now: Moment) {
        match self.sessions.get_mut(&key) {
            Some(session) => session.ask(wish, now, &mut self.outputs),
            None => self.outputs.extend(wish.came_too_late()),
        }
    }

    pub(crate) fn abandon(&mut self, key: SessionKey, ticket: Ticket, now: Moment) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.abandon(ticket, now, &mut self.outputs);
        }
    }

    pub(crate) fn undo(&mut self, key: SessionKey, possession: Ticket, op: Op, now: Moment) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.undo(possession, op, now, &mut self.outputs);
        }
    }

    pub(crate) fn forget(&mut self, key: SessionKey, possession: Ticket) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.forget_possession(possession);
        }
    }

    pub(crate) fn observe(&mut self, key: ObserverKey, subject: Subject) {
        let observed = self.observed.entry(subject.clone()).or_default();
        let is_first = observed.by.is_empty();
        observed.by.insert(key);
        if observed.is_told {
            self.todo.push(Todo::Observing(key));
        }
        if is_first && self.connected {
            *self.unanswered.entry(subject.clone()).or_default() += 1;
            self.outputs.push(Output::Send(observe(&subject, 0)));
        }
        self.subjects.insert(key, subject);
    }

    pub(crate) fn stop_observing(&mut self, key: ObserverKey) {
        let Some(subject) = self.subjects.remove(&key) else { return };
        let Some(observed) = self.observed.get_mut(&subject) else { return };
        observed.by.remove(&key);
        if observed.by.is_empty() {
            self.observed.remove(&subject);
            if self.connected {
                let stop = v1::StopObserving { kind: subject.kind, name: subject.name };
                self.outputs.push(Output::Send(Message::StopObserving(stop)));
            }
        }
    }

    // ---- The stream

    pub(crate) fn connected(&mut self, now: Moment) {
        self.connected = true;
        // Observers first: what sessions ask again may be what they wait for.
        for (subject, observed) in &self.observed {
            self.unanswered.insert(subject.clone(), 1);
            self.outputs.push(Output::Send(observe(subject, observed.told)));
        }
        for session in self.sessions.values_mut() {
            session.connected(now, &mut self.outputs);
        }
        self.one_by_one.connected();
    }

    pub(crate) fn disconnected(&mut self) {
        self.connected = false;
        self.one_by_one.disconnected();
        self.unanswered.clear();
        self.observed.values_mut().for_each(|observed| observed.is_told = false);
        self.sessions.values_mut().for_each(Session::disconnected);
    }

    /// No node lets this client in: whoever waits for one is told so.
    pub(crate) fn refused(&mut self, error: &Error, now: Moment) {
        for session in self.sessions.values_mut() {
            session.refused(error, now, &mut self.outputs);
        }
        self.observed.clear();
        let observers = std::mem::take(&mut self.subjects).into_keys();
        self.todo.extend(observers.map(|key| Todo::Missed(key, Some(error.clone()))));
    }

    pub(crate) fn tick(&mut self, now: Moment) {
        for session in self.sessions.values_mut() {
            session.tick(now, &mut self.outputs);
        }
    }

    /// A message came.
    pub(crate) fn received(&mut self, message: v1::ToClient, now: Moment) {
        use to_client::Message as From;
        self.tick(now);
        let out = &mut self.outputs;
        match message.message {
            Some(From::Opened(reply)) => {
                let client = reply.client;
                let mut sessions = self.sessions.values_mut();
                if let Some(session) = sessions.find(|session| session.id().is_none() && session.client() == client) {
                    session.opened(&reply, now, out);
                }
            }
            Some(From::Reply(reply)) => {
                self.one_by_one.answered(reply.session, reply.number);
                let Some(session) = by_id(&mut self.sessions, reply.session) else { return };
                session.replied(reply, now, out);
            }
            Some(From::Attached(attached)) => {
                let Some(session) = by_id(&mut self.sessions, attached.session) else { return };
                session.attached(&attached, now, out);
            }
            Some(From::KeptAlive(kept)) => {
                let Some(session) = by_id(&mut self.sessions, kept.session) else { return };
                session.kept_alive(kept, now, out);
            }
            Some(From::Closed(reply)) => {
                let Some(session) = by_id(&mut self.sessions, reply.session) else { return };
                session.closed(&reply, now);
            }
            Some(From::Lost(lost)) if lost.session == 0 => {
                if lost.reason() == v1::lost::Reason::BadMessage
                    && let Some((session, number)) = self.one_by_one.bad_message()
                    && let Some(session) = by_id(&mut self.sessions, session)
                {
                    session.not_understood(number, &lost.message, out);
                }
                self.todo.push(Todo::StreamEnded);
            }
            Some(From::Lost(lost)) => {
                let Some(session) = by_id(&mut self.sessions, lost.session) else { return };
                session.lost(lost.reason(), out);
            }
            Some(From::Observing(observing)) => self.observing(observing),
            Some(From::Notice(notice)) => self.noticed(&notice, now),
            None => {}
        }
    }

    /// What a session holds was asked for, and is told.
    pub(crate) fn holdings(&mut self, key: SessionKey, holdings: &[v1::Holding], revision: u64, now: Moment) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.holdings(holdings, revision, now, &mut self.outputs);
        }
    }

    fn observing(&mut self, observing: v1::Observing) {
        let subject = Subject { kind: observing.kind, name: observing.name };
        if let Some(more) = self.unanswered.get_mut(&subject).filter(|left| **left > 1) {
            *more -= 1;
            return;
        }
        self.unanswered.remove(&subject);
        let Some(observed) = self.observed.get_mut(&subject) else { return };
        if let Some(error) = &observing.error {
            let missed = self.observed.remove(&subject).unwrap_or_default();
            for key in missed.by {
                self.subjects.remove(&key);
                self.todo.push(Todo::Missed(key, of_wire(error)));
            }
            return;
        }
        observed.is_told = true;
        let revision = observing.header.map_or(0, |header| header.revision);
        if observed.told == 0 {
            observed.told = revision;
        }
        self.todo.extend(observed.by.iter().map(|key| Todo::Observing(*key)));
    }

    fn noticed(&mut self, notice: &v1::Notice, now: Moment) {
        let revision = notice.revision;
        let Some(what) = &notice.notice else { return };
        if let Notice::Granted(granted) = what
            && let Some(session) = by_id(&mut self.sessions, granted.session)
        {
            session.granted(granted, revision, now, &mut self.outputs);
        }
        let Some(observed) = subject_of(what).and_then(|subject| self.observed.get_mut(&subject)) else { return };
        // Another change of the same revision may follow, and would be missed if this were all that is told.
        observed.told = observed.told.max(revision.saturating_sub(1));
        self.todo.extend(observed.by.iter().map(|key| Todo::Notice(*key, notice.clone())));
    }
}

fn by_id(sessions: &mut BTreeMap<SessionKey, Session>, id: i64) -> Option<&mut Session> {
    sessions.values_mut().find(|session| session.id() == Some(id))
}

fn observe(subject: &Subject, told_revision: u64) -> Message {
    Message::Observe(v1::ObserveRequest { kind: subject.kind, name: subject.name.clone(), told_revision })
}

fn subject_of(notice: &Notice) -> Option<Subject> {
    use v1::Kind;
    let (kind, name) = match notice {
        Notice::Granted(granted) => (granted.kind(), &granted.name),
        Notice::Changed(changed) => (changed.kind(), &changed.name),
        Notice::Gone(gone) => (gone.kind(), &gone.name),
        Notice::Barrier(barrier) => (Kind::Barrier, &barrier.name),
        Notice::Latch(latch) => (Kind::Latch, &latch.name),
        Notice::Phase(phase) => (Kind::Phaser, &phase.name),
        Notice::Counter(counter) => (Kind::Counter, &counter.name),
        Notice::Fence(fence) => (Kind::Fence, &fence.name),
        Notice::Rcu(rcu) => (Kind::Rcu, &rcu.name),
        Notice::Hazard(hazard) => (Kind::Hazard, &hazard.name),
    };
    Some(Subject { kind: kind.into(), name: name.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Loss;

    /// A program asks while its session, idle for long, is being ended: that wish certainly reached nobody, and belongs into
    /// another session. What gives back what the session held has nothing left to give back.
    #[test]
    fn what_is_asked_in_a_session_that_is_gone_may_be_asked_in_another() {
        let mut engine = Engine::default();
        let wish = |ticket, consumes| {
            let op = Op::GiveUp(v1::GiveUp { place: 3, ..Default::default() });
            Wish { op, ticket: Some(ticket), consumes, patience: Duration::from_secs(5), wait: None }
        };
        engine.ask(1, wish(7, None), Moment::from_nanos(1));
        engine.ask(1, wish(8, Some(4)), Moment::from_nanos(1));
        let told = engine.take_todo();
        assert!(matches!(told[0], Todo::Session(Output::NotAsked { ticket: 7, .. })), "{told:?}");
        let lost: Error = Loss::SessionEnded.into();
        assert!(matches!(&told[1], Todo::Session(Output::Failed { ticket: 8, error }) if *error == lost), "{told:?}");
    }
}
