//! One session of a client, without IO: what is asked and held, what comes, what follows.
//!
//! What holds:
//! - a request keeps its number until it is answered, over any number of connections (see `requests`);
//! - whatever was given to somebody who does not want it any more is given back: a place that an abandoned request took
//!   ([`Session::abandon`]), a grant that nobody waits for;
//! - a session whose possessions were not renewed in time is over for good, even if the cluster would still take a
//!   renewal: `check()` that failed once never succeeds again;
//! - once it is over every ticket is told. One that ran out here is left for the cluster to end, unless the client says
//!   that it needs it no more: closed before, it would let the next one in beside a program that has just been told.
//!
//! A ticket is a number that stands for whoever waits; who that is, is the task's business (`crate::task`), and so is
//! the clock: every input has the time.

pub(crate) mod backoff;
mod leaderless;
mod places;
mod renewal;
mod requests;
#[cfg(test)]
mod tests;
mod told;
mod undo;

use std::collections::BTreeMap;
use std::time::Duration;

use tidelock_native_api::v1::{self, answer::Answer, from_client::Message, request::Op};

use crate::clock::Moment;
use crate::error::{Error, Failure, Loss};
use backoff::Backoff;
use leaderless::Leaderless;
use places::Places;
use renewal::Renewal;
use requests::Requests;
pub(crate) use undo::PlaceKey;
use undo::outlasts_session;

/// Who waits for something.
pub(crate) type Ticket = u64;
/// Which session of this client; not the cluster's id, which is known only once it is open.
pub(crate) type SessionKey = u64;

/// An answer is waited for at least that long, however short the wait for the grant: a busy cluster is not one that
/// nobody can reach.
const ANSWER_WITHIN_MIN: Duration = Duration::from_secs(1);

/// How long who wants to wait that long for the outcome waits for an answer.
pub(crate) fn answer_within(patience: Duration, wait: Option<Duration>) -> Duration {
    wait.map_or(patience, |wait| wait.max(ANSWER_WITHIN_MIN).min(patience))
}

/// What follows from an input.
#[derive(Debug)]
pub(crate) enum Output {
    /// To be sent.
    Send(Message),
    /// A request was carried out; for places in queues: granted.
    Answered {
        session: SessionKey,
        ticket: Ticket,
        answer: Answer,
        /// What gives back what it gave.
        undo: Option<Op>,
    },
    /// A request was not carried out, or nobody knows.
    Failed { ticket: Ticket, error: Error },
    /// The session was over before this was asked there, and nobody can have relied on that one in asking: another one
    /// will do.
    NotAsked { ticket: Ticket, op: Op },
    /// What the session holds may be relied on until then.
    Valid { session: SessionKey, until: Moment },
    /// The session has this id.
    Opened { session: SessionKey, id: i64 },
    /// The session is over; nothing of it may be relied on.
    Over { session: SessionKey, error: Error },
    /// What the session holds must be asked for: what was missed is not known any more.
    AskHoldings { session: SessionKey, id: i64 },
    /// The node is of no use any more: another one, please.
    LeaveNode,
}

/// What somebody asks for.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) op: Op,
    /// Nobody: what it gives is given back.
    pub(crate) ticket: Option<Ticket>,
    /// The possession that ends with this request.
    pub(crate) consumes: Option<Ticket>,
    /// How long an answer is waited for.
    pub(crate) patience: Duration,
    /// How long a grant is waited for; without an end unless told.
    pub(crate) wait: Option<Duration>,
}

impl Wish {
    /// What nobody waits for.
    fn giving_back(op: Op, consumes: Option<Ticket>) -> Wish {
        Wish { op, ticket: None, consumes, patience: Duration::MAX, wait: None }
    }

    /// Whether something stays held if this is never carried out.
    fn gives_back(&self) -> bool {
        self.ticket.is_none() || self.consumes.is_some()
    }

    /// It came when the session was over, so it was certainly not carried out there. What gives back has nothing to give
    /// back any more.
    pub(crate) fn came_too_late(self) -> Option<Output> {
        let Wish { op, ticket: Some(ticket), consumes, .. } = self else { return None };
        Some(match consumes {
            None => Output::NotAsked { ticket, op },
            Some(_) => Output::Failed { ticket, error: Loss::SessionEnded.into() },
        })
    }

    fn answer_within(&self) -> Duration {
        answer_within(self.patience, self.wait)
    }
}

/// A request with what became of it so far.
#[derive(Debug)]
struct Asked {
    wish: Wish,
    since: Moment,
    /// It was sent then, and no word came about that.
    out_since: Option<Moment>,
    /// It was sent at least once, and nobody knows what became of that.
    in_doubt: bool,
    /// It was refused since the stream's proof of who asks had aged, and is asked once more on a new stream.
    shown_again: bool,
    /// It could not be carried out, and is asked again then.
    again: Option<Moment>,
    /// The cluster had too much to do, so often and with these words.
    overloaded: (Backoff, Option<Error>),
}

impl Asked {
    fn new(wish: Wish, since: Moment) -> Asked {
        let overloaded = (Backoff::default(), None);
        Asked { wish, since, out_since: None, in_doubt: false, shown_again: false, again: None, overloaded }
    }

    fn deadline(&self) -> Option<Moment> {
        self.wish.ticket.map(|_| self.since + self.wish.answer_within())
    }

    fn is_late(&self, now: Moment) -> bool {
        self.deadline().is_some_and(|deadline| now >= deadline)
    }

    /// Whether it may have been carried out.
    fn may_have_happened(&self) -> bool {
        self.out_since.is_some() || self.in_doubt
    }

    /// Whether it can be dropped so that nothing happened and nothing stays held. Under a number of its own or not: the
    /// cluster does not mind numbers that never come.
    fn can_be_taken_back(&self) -> bool {
        !self.may_have_happened() && !self.wish.gives_back()
    }

    /// Nobody waits for it any more. What it gives back is given back all the same, so nobody can tell when.
    fn not_in_time(&mut self) -> Option<Output> {
        let waited = self.wish.answer_within();
        let error = match &self.overloaded.1 {
            _ if self.may_have_happened() || self.wish.consumes.is_some() => Error::Unknown { waited },
            Some(overloaded) => overloaded.clone(),
            None => Failure::Unreachable(format!("nobody answered within {waited:?}")).into(),
        };
        self.wish.ticket.take().map(|ticket| Output::Failed { ticket, error })
    }
}

enum State {
    /// Nobody has answered yet; asked for first at that time.
    Opening {
        sent: Option<Moment>,
    },
    Open {
        id: i64,
        renewal: Renewal,
    },
    /// Over. Until that time the cluster may still have it, and it is closed there if the client needs it no more.
    Over {
        close: Option<(i64, Moment)>,
    },
}

/// One session.
pub(crate) struct Session {
    key: SessionKey,
    ttl: Duration,
    /// The number by which asking to open it again gets the same one.
    client: u64,
    state: State,
    connected: bool,
    requests: Requests<Asked>,
    /// When it is asked again to open or to close it.
    again: Option<Moment>,
    leaderless: Leaderless,
    places: Places,
    /// Grants that came before the replies that name their places: place and token by the place known.
    early: BTreeMap<PlaceKey, (u64, u64)>,
    /// All up to this revision was told.
    told: u64,
    /// The stream is still telling what was missed, beside what happens meanwhile: `told` stands still until it is
    /// attached, or who loses the stream now would not be told the rest.
    is_catching_up: bool,
    /// The stream tells what is granted.
    is_attached: bool,
    /// Something may have been missed: what is held must be asked for, once the stream tells what happens from then on.
    is_unsure: bool,
    /// The client needs it no more: to be closed when all is done.
    closing: bool,
}

impl Session {
    pub(crate) fn new(key: SessionKey, ttl: Duration, client: u64) -> Session {
        Session {
            key,
            ttl,
            client,
            state: State::Opening { sent: None },
            connected: false,
            requests: Requests::new(),
            again: None,
            leaderless: Leaderless::default(),
            places: Places::default(),
            early: BTreeMap::new(),
            told: 0,
            is_catching_up: false,
            is_attached: false,
            is_unsure: false,
            closing: false,
        }
    }

    pub(crate) fn id(&self) -> Option<i64> {
        match &self.state {
            State::Open { id, .. } | State::Over { close: Some((id, _)) } => Some(*id),
            _ => None,
        }
    }

    pub(crate) fn client(&self) -> u64 {
        self.client
    }

    /// Whether nothing is left to be done for it.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, State::Over { close: None })
    }

    // ---- What the program wants

    /// Somebody asks for something.
    pub(crate) fn ask(&mut self, wish: Wish, now: Moment, out: &mut Vec<Output>) {
        if let Some(gone) = wish.consumes {
            self.places.forget(gone);
        }
        if matches!(self.state, State::Over { .. }) {
            out.extend(wish.came_too_late());
            return;
        }
        let gives_back = wish.gives_back();
        let asked = Asked::new(wish, now);
        if gives_back {
            // There is no more of it than was given.
            self.requests.push_always(asked);
        } else if let Err(Asked { wish: Wish { ticket: Some(ticket), .. }, .. }) = self.requests.push(asked) {
            out.push(Output::Failed { ticket, error: Failure::Overloaded.into() });
        }
        self.send_from_line(now, out);
    }

    /// Who holds that ticket does not want it any more. Whatever it got, or gets yet, is given back.
    pub(crate) fn abandon(&mut self, ticket: Ticket, now: Moment, out: &mut Vec<Output>) {
        let is_its = |asked: &Asked| asked.wish.ticket == Some(ticket);
        self.requests.take(|asked| is_its(asked) && asked.can_be_taken_back());
        for asked in self.requests.all_mut().filter(|asked| is_its(asked)) {
            asked.wish.ticket = None;
        }
        if let Some(undo) = self.places.leave(ticket) {
            self.give_back(undo, now, out);
        }
        self.go_on(now, out);
    }

    /// Who has a possession does not want it any more.
    pub(crate) fn undo(&mut self, possession: Ticket, op: Op, now: Moment, out: &mut Vec<Output>) {
        self.ask(Wish::giving_back(op, Some(possession)), now, out);
    }

    /// The client needs the session no more.
    pub(crate) fn close(&mut self, out: &mut Vec<Output>) {
        self.closing = true;
        self.send_close(out);
        self.finish_closing(out);
    }

    /// Ends it there as well, if it is over here and needed no more.
    fn send_close(&self, out: &mut Vec<Output>) {
        if let State::Over { close: Some((session, _)) } = self.state
            && self.closing
            && self.connected
        {
            out.push(Output::Send(Message::Close(v1::CloseRequest { session })));
        }
    }

    fn give_back(&mut self, op: Op, now: Moment, out: &mut Vec<Output>) {
        self.ask(Wish::giving_back(op, None), now, out);
    }

    /// A possession has ended without a request of its own.
    pub(crate) fn forget_possession(&mut self, ticket: Ticket) {
        self.places.forget(ticket);
    }

    /// Requests are under way no more: what waited for that goes on.
    fn go_on(&mut self, now: Moment, out: &mut Vec<Output>) {
        self.give_back_early(now, out);
        self.send_from_line(now, out);
        self.finish_closing(out);
    }

    fn finish_closing(&mut self, out: &mut Vec<Output>) {
        if !self.closing || !self.requests.is_empty() {
            return;
        }
        match self.state {
            State::Opening { sent: None } => self.end(&Failure::Closed.into(), None, out),
            State::Open { id, ref renewal } => {
                let until = renewal.valid_until();
                self.end(&Failure::Closed.into(), Some((id, until)), out);
            }
            // It may exist by now; the answer will say.
            State::Opening { .. } | State::Over { .. } => {}
        }
    }

    // ---- The connection

    /// There is a stream to a node: says all that a new one must hear.
    pub(crate) fn connected(&mut self, now: Moment, out: &mut Vec<Output>) {
        self.connected = true;
        let told_revision = self.told;
        self.is_catching_up = told_revision > 0;
        match &mut self.state {
            State::Opening { sent } => {
                sent.get_or_insert(now);
                // Until it is open nothing else tells whether the node can do anything.
                self.leaderless.asked_in_vain(now);
                let ttl_ms = u32::try_from(self.ttl.as_millis()).unwrap_or(u32::MAX);
                out.push(Output::Send(Message::Open(v1::OpenRequest { ttl_ms, client: self.client })));
            }
            State::Open { id, renewal } => {
                out.push(Output::Send(Message::Attach(v1::Attach { session: *id, told_revision })));
                // Renewed as soon as it is attached. Who does not even attach it in time is as silent as who does not
                // renew it.
                renewal.disconnected();
                renewal.sent(now);
                self.send_all(now, out);
            }
            State::Over { .. } => self.send_close(out),
        }
    }

    /// The stream is gone, and with it all answers that were on their way.
    pub(crate) fn disconnected(&mut self) {
        self.connected = false;
        self.is_attached = false;
        self.again = None;
        self.leaderless.disconnected();
        if let State::Open { renewal, .. } = &mut self.state {
            renewal.disconnected();
        }
        for asked in self.requests.under_way_mut() {
            asked.in_doubt |= asked.out_since.take().is_some();
            asked.again = None;
        }
    }

    /// No node lets this client in, and it is of no use to try again: whoever waits is told why. What is held stays so
    /// for as long as it may be relied on.
    pub(crate) fn refused(&mut self, error: &Error, now: Moment, out: &mut Vec<Output>) {
        self.disconnected();
        if matches!(self.state, State::Opening { .. }) {
            return self.end(error, None, out);
        }
        // Not kept for the next stream: who is told that it was refused may ask anew.
        let dropped = self.requests.take(Asked::can_be_taken_back);
        let mut told: Vec<Ticket> = dropped.into_iter().filter_map(|asked| asked.wish.ticket).collect();
        // What was sent before and may have happened is not said to be refused. What gives something back stays in line
        // all the same: the door may open again.
        let not_sent = self.requests.all_mut().filter(|asked| !asked.in_doubt);
        told.extend(not_sent.filter_map(|asked| asked.wish.ticket.take()));
        for ticket in self.places.not_handed_over() {
            if let Some(undo) = self.places.leave(ticket) {
                self.give_back(undo, now, out);
            }
            told.push(ticket);
        }
        out.extend(told.into_iter().map(|ticket| Output::Failed { ticket, error: error.clone() }));
        self.go_on(now, out);
    }

    /// Whether we were away for so long that the session may be over. Nothing is asked before it is renewed, so that what
    /// was not is certainly not carried out if it turns out to be over.
    fn is_doubtful(&self, now: Moment) -> bool {
        matches!(&self.state, State::Open { renewal, .. } if now >= renewal.valid_until())
    }

    fn send(&mut self, number: u64, now: Moment, out: &mut Vec<Output>) {
        let State::Open { id, .. } = self.state else { return };
        let acknowledged = self.requests.acknowledged();
        let Some(asked) = self.requests.get_mut(number) else { return };
        (asked.out_since, asked.again) = (Some(now), None);
        let op = Some(asked.wish.op.clone());
        out.push(Output::Send(Message::Request(v1::Request { session: id, number, acknowledged, op })));
    }

    /// What this stream must hear of requests and has not heard.
    fn send_all(&mut self, now: Moment, out: &mut Vec<Output>) {
        if self.is_doubtful(now) {
            return;
        }
        for number in self.requests.numbers() {
            let waits = |asked: &mut Asked| asked.out_since.is_none() && asked.again.is_none();
            if self.requests.get_mut(number).is_some_and(waits) {
                self.send(number, now, out);
            }
        }
        self.send_from_line(now, out);
    }

    fn send_from_line(&mut self, now: Moment, out: &mut Vec<Output>) {
        if !self.connected || self.is_doubtful(now) || !matches!(self.state, State::Open { .. }) {
            return;
        }
        while let Some(number) = self.requests.number_next() {
            self.send(number, now, out);
        }
    }

    // ---- Time

    /// What is to be done by now.
    pub(crate) fn tick(&mut self, now: Moment, out: &mut Vec<Output>) {
        self.end_what_is_late(now, out);
        if let State::Open { id, renewal } = &mut self.state {
            let (id, until) = (*id, renewal.valid_until());
            if now >= until && self.places.holds_anything() {
                // Not closed: whoever relies on it hears of this only now, and has the rest of the time to stop.
                return self.end(&Loss::Expired.into(), Some((id, now + self.ttl)), out);
            }
            if self.connected && renewal.silent_at().is_some_and(|silent| now >= silent) {
                return out.push(Output::LeaveNode);
            } else if self.connected && renewal.due().is_some_and(|due| now >= due) {
                renewal.sent(now);
                out.push(Output::Send(keep_alive(id, now)));
            }
        }
        if let State::Over { close } = &mut self.state {
            *close = close.filter(|(_, until)| now < *until);
        }
        if self.connected && self.leaderless.leave_at().is_some_and(|leave| now >= leave) {
            self.leaderless.leave();
            return out.push(Output::LeaveNode);
        }
        self.ask_again(now, out);
    }

    fn ask_again(&mut self, now: Moment, out: &mut Vec<Output>) {
        if self.again.take_if(|at| now >= *at).is_some() && self.connected {
            self.connected(now, out);
        }
        // In doubt they are sent once the session is renewed.
        let may_send = self.connected && !self.is_doubtful(now);
        for number in self.requests.numbers() {
            let again = self.requests.get_mut(number).and_then(|asked| asked.again.take_if(|at| now >= *at));
            if may_send && again.is_some() {
                self.send(number, now, out);
            }
        }
    }

    /// Nobody waits longer than it wants to. What may have been carried out goes on, to be undone if it was. What certainly
    /// was not is not asked again: who is told that nothing happened may ask anew, and it must not happen twice.
    fn end_what_is_late(&mut self, now: Moment, out: &mut Vec<Output>) {
        let taken_back = self.requests.take(|asked| asked.is_late(now) && asked.can_be_taken_back());
        if !taken_back.is_empty() {
            out.extend(taken_back.into_iter().filter_map(|mut asked| asked.not_in_time()));
            self.go_on(now, out);
        }
        out.extend(self.requests.all_mut().filter(|asked| asked.is_late(now)).filter_map(Asked::not_in_time));
        for (ticket, error) in self.places.not_granted_in_time(now) {
            if let Some(undo) = self.places.leave(ticket) {
                self.give_back(undo, now, out);
            }
            out.push(Output::Failed { ticket, error });
        }
    }

    /// When [`Session::tick`] has something to do.
    pub(crate) fn wakes_at(&self) -> Option<Moment> {
        let requests = self.requests.all().flat_map(|asked| [asked.deadline(), asked.again]).flatten().min();
        let own = match &self.state {
            State::Opening { .. } | State::Over { close: None } => None,
            State::Over { close: Some((_, until)) } => Some(*until),
            State::Open { renewal, .. } => {
                let expiry = self.places.holds_anything().then(|| renewal.valid_until());
                let next = if self.connected { renewal.silent_at().or(renewal.due()) } else { None };
                [expiry, next].into_iter().flatten().min()
            }
        };
        let leave = self.leaderless.leave_at().filter(|_| self.connected);
        [requests, self.places.wakes_at(), own, leave, self.again].into_iter().flatten().min()
    }

    fn end(&mut self, error: &Error, close: Option<(i64, Moment)>, out: &mut Vec<Output>) {
        let was_over = matches!(self.state, State::Over { .. });
        self.state = State::Over { close };
        self.again = None;
        self.leaderless.disconnected();
        self.send_close(out);
        if was_over {
            return;
        }
        // First, so that whoever asks again as soon as it is told does so in a new session.
        out.push(Output::Over { session: self.key, error: error.clone() });
        let nothing_is_lost = self.places.is_empty() && *error == Loss::SessionEnded.into();
        for asked in self.requests.drain() {
            let happened = asked.may_have_happened();
            let (waited, Wish { op, ticket: Some(ticket), consumes, .. }) = (asked.wish.answer_within(), asked.wish)
            else {
                continue;
            };
            out.push(match happened && outlasts_session(&op) {
                true => Output::Failed { ticket, error: Error::Unknown { waited } },
                false if nothing_is_lost && !happened && consumes.is_none() => Output::NotAsked { ticket, op },
                false => Output::Failed { ticket, error: error.clone() },
            });
        }
        let left = self.places.not_handed_over();
        out.extend(left.into_iter().map(|ticket| Output::Failed { ticket, error: error.clone() }));
        (self.places, self.early) = (Places::default(), BTreeMap::new());
    }
}

fn keep_alive(session: i64, now: Moment) -> Message {
    Message::KeepAlive(v1::KeepAlive { sent: now.nanos(), session })
}
