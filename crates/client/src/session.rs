//! One session of a client, without IO: what is asked and held, what comes, what follows.
//!
//! What holds:
//! - a request keeps its number until it is answered, over any number of connections (see `requests`);
//! - whatever was given to somebody who does not want it any more is given back: a place that an abandoned request took
//!   ([`Session::abandon`]), a grant that nobody waits for;
//! - a session whose possessions were not renewed in time is over for good, even if the cluster would still take a
//!   renewal: `check()` that failed once never succeeds again;
//! - once it is over every ticket is told, and a session that the cluster may still have is closed.
//!
//! A ticket is a number that stands for whoever waits; who that is, is the task's business (`crate::task`), and so is
//! the clock: every input has the time.

pub(crate) mod backoff;
mod renewal;
mod requests;
#[cfg(test)]
mod tests;
mod told;
mod undo;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidelock_native_api::v1::{self, answer::Answer, from_client::Message, request::Op};

use crate::clock::Moment;
use crate::error::{Error, Failure, Loss};
use renewal::Renewal;
use requests::Requests;
pub(crate) use undo::PlaceKey;
use undo::outlasts_session;

/// Who waits for something.
pub(crate) type Ticket = u64;
/// Which session of this client; not the cluster's id, which is known only once it is open.
pub(crate) type SessionKey = u64;

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

/// A request with who wants it.
#[derive(Debug)]
struct Asked {
    op: Op,
    /// Nobody: what it gives is given back.
    ticket: Option<Ticket>,
    since: Moment,
    patience: Duration,
    /// The possession that ends with this request.
    consumes: Option<Ticket>,
    /// It was sent, and no word came about that.
    is_out: bool,
    /// It was sent at least once, and nobody knows what became of that.
    in_doubt: bool,
    /// It was refused since the stream's proof of who asks had aged, and is asked once more on a new stream.
    shown_again: bool,
}

impl Asked {
    fn deadline(&self) -> Option<Moment> {
        self.ticket.map(|_| self.since + self.patience)
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
    /// Over; if the cluster may still have it, it is closed until that time.
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
    /// When requests that could not be carried out are asked again.
    again: Option<(Moment, Vec<u64>)>,
    waiting: BTreeMap<PlaceKey, Ticket>,
    places: BTreeMap<Ticket, PlaceKey>,
    /// Grants that came before the replies that name their places: place and token by the place known.
    early: BTreeMap<PlaceKey, (u64, u64)>,
    /// What was given to somebody who has not given it back, with its token; zero where there is none.
    held: BTreeMap<Ticket, u64>,
    /// The tokens among them.
    tokens: BTreeSet<u64>,
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
            waiting: BTreeMap::new(),
            places: BTreeMap::new(),
            early: BTreeMap::new(),
            held: BTreeMap::new(),
            tokens: BTreeSet::new(),
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
    pub(crate) fn ask(
        &mut self,
        op: Op,
        ticket: Option<Ticket>,
        consumes: Option<Ticket>,
        patience: Duration,
        now: Moment,
        out: &mut Vec<Output>,
    ) {
        if let Some(gone) = consumes {
            self.forget_possession(gone);
        }
        if matches!(self.state, State::Over { .. }) {
            out.extend(ticket.map(|ticket| Output::Failed { ticket, error: Loss::SessionEnded.into() }));
            return;
        }
        let asked =
            Asked { op, ticket, since: now, patience, consumes, is_out: false, in_doubt: false, shown_again: false };
        if let Err(Asked { ticket: Some(ticket), .. }) = self.requests.push(asked) {
            out.push(Output::Failed { ticket, error: Failure::Overloaded.into() });
        }
        self.send_from_line(out);
    }

    /// Who holds that ticket does not want it any more. Whatever it got, or gets yet, is given back.
    pub(crate) fn abandon(&mut self, ticket: Ticket, now: Moment, out: &mut Vec<Output>) {
        self.requests.take_from_line(|asked| asked.ticket == Some(ticket) && asked.consumes.is_none());
        for asked in self.requests.under_way_mut().filter(|asked| asked.ticket == Some(ticket)) {
            asked.ticket = None;
        }
        if let Some(place) = self.places.remove(&ticket) {
            self.waiting.remove(&place);
            self.give_back(place.give_up(), now, out);
        }
        self.finish_closing(out);
    }

    /// Who has a possession does not want it any more.
    pub(crate) fn undo(&mut self, possession: Ticket, op: Op, now: Moment, out: &mut Vec<Output>) {
        self.ask(op, None, Some(possession), Duration::MAX, now, out);
    }

    /// The client needs the session no more.
    pub(crate) fn close(&mut self, out: &mut Vec<Output>) {
        self.closing = true;
        self.finish_closing(out);
    }

    fn give_back(&mut self, op: Op, now: Moment, out: &mut Vec<Output>) {
        self.ask(op, None, None, Duration::MAX, now, out);
    }

    /// A possession has ended without a request of its own.
    pub(crate) fn forget_possession(&mut self, ticket: Ticket) {
        if let Some(token) = self.held.remove(&ticket) {
            self.tokens.remove(&token);
        }
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
                let ttl_ms = u32::try_from(self.ttl.as_millis()).unwrap_or(u32::MAX);
                out.push(Output::Send(Message::Open(v1::OpenRequest { ttl_ms, client: self.client })));
            }
            State::Open { id, renewal } => {
                out.push(Output::Send(Message::Attach(v1::Attach { session: *id, told_revision })));
                // Renewed as soon as it is attached. Who does not even attach it in time is as silent as who does not
                // renew it.
                renewal.disconnected();
                renewal.sent(now);
                for number in self.requests.numbers() {
                    self.send(number, out);
                }
                self.send_from_line(out);
            }
            State::Over { close } => {
                let close = close.map(|(session, _)| Output::Send(Message::Close(v1::CloseRequest { session })));
                out.extend(close);
            }
        }
    }

    /// The stream is gone, and with it all answers that were on their way.
    pub(crate) fn disconnected(&mut self) {
        self.connected = false;
        self.is_attached = false;
        self.again = None;
        if let State::Open { renewal, .. } = &mut self.state {
            renewal.disconnected();
        }
        for asked in self.requests.under_way_mut() {
            asked.in_doubt |= std::mem::take(&mut asked.is_out);
        }
    }

    /// No node lets this client in, and it is of no use to try again: whoever waits is told why. What is held stays so
    /// for as long as it may be relied on.
    pub(crate) fn refused(&mut self, error: &Error, now: Moment, out: &mut Vec<Output>) {
        self.disconnected();
        if matches!(self.state, State::Opening { .. }) {
            return self.end(error, None, out);
        }
        let gives_nothing_back = |asked: &Asked| asked.consumes.is_none() && asked.ticket.is_some();
        let dropped = self.requests.take_from_line(gives_nothing_back);
        let mut told: Vec<Ticket> = dropped.into_iter().filter_map(|asked| asked.ticket).collect();
        // What was sent before and may have happened is not said to be refused. What gives something back stays in line
        // all the same: the door may open again.
        let not_sent = self.requests.all_mut().filter(|asked| !asked.in_doubt);
        told.extend(not_sent.filter_map(|asked| asked.ticket.take()));
        for (ticket, place) in std::mem::take(&mut self.places) {
            self.waiting.remove(&place);
            self.give_back(place.give_up(), now, out);
            told.push(ticket);
        }
        out.extend(told.into_iter().map(|ticket| Output::Failed { ticket, error: error.clone() }));
    }

    fn send(&mut self, number: u64, out: &mut Vec<Output>) {
        let State::Open { id, .. } = self.state else { return };
        let acknowledged = self.requests.acknowledged();
        let Some(asked) = self.requests.get_mut(number) else { return };
        asked.is_out = true;
        let op = Some(asked.op.clone());
        out.push(Output::Send(Message::Request(v1::Request { session: id, number, acknowledged, op })));
    }

    fn send_from_line(&mut self, out: &mut Vec<Output>) {
        if !self.connected || !matches!(self.state, State::Open { .. }) {
            return;
        }
        while let Some(number) = self.requests.number_next() {
            self.send(number, out);
        }
    }

    // ---- Time

    /// What is to be done by now.
    pub(crate) fn tick(&mut self, now: Moment, out: &mut Vec<Output>) {
        self.end_what_is_late(now, out);
        if let State::Open { id, renewal } = &mut self.state {
            let (id, until) = (*id, renewal.valid_until());
            if now >= until && !self.held.is_empty() {
                // The cluster may have it for a while yet, and nobody else gets what we do not use.
                return self.end(&Loss::Expired.into(), Some((id, now + self.ttl)), out);
            }
            if self.connected && renewal.silent_at().is_some_and(|silent| now >= silent) {
                out.push(Output::LeaveNode);
            } else if self.connected && renewal.due().is_some_and(|due| now >= due) {
                renewal.sent(now);
                out.push(Output::Send(keep_alive(id, now)));
            }
        }
        if let State::Over { close } = &mut self.state {
            *close = close.filter(|(_, until)| now < *until);
        }
        if let Some((_, numbers)) = self.again.take_if(|(at, _)| now >= *at)
            && self.connected
        {
            match self.state {
                State::Open { .. } => numbers.into_iter().for_each(|number| self.send(number, out)),
                _ => self.connected(now, out),
            }
        }
    }

    /// Nobody waits for an answer longer than it wants to. The request itself goes on, to be undone if it worked.
    fn end_what_is_late(&mut self, now: Moment, out: &mut Vec<Output>) {
        let is_late = |asked: &Asked| asked.deadline().is_some_and(|deadline| now >= deadline);
        for asked in self.requests.take_from_line(is_late) {
            let error = Failure::Unreachable(format!("nobody answered within {:?}", asked.patience)).into();
            out.extend(asked.ticket.map(|ticket| Output::Failed { ticket, error }));
        }
        for asked in self.requests.under_way_mut().filter(|asked| is_late(asked)) {
            let waited = asked.patience;
            let error = match asked.is_out || asked.in_doubt {
                true => Error::Unknown { waited },
                false => Failure::Unreachable("no majority, or no leader yet".into()).into(),
            };
            out.extend(asked.ticket.take().map(|ticket| Output::Failed { ticket, error }));
        }
    }

    /// When [`Session::tick`] has something to do.
    pub(crate) fn wakes_at(&self) -> Option<Moment> {
        let requests = self.requests.under_way().chain(self.requests.first_in_line()).filter_map(Asked::deadline).min();
        let own = match &self.state {
            State::Opening { .. } | State::Over { close: None } => None,
            State::Over { close: Some((_, until)) } => Some(*until),
            State::Open { renewal, .. } => {
                let expiry = (!self.held.is_empty()).then(|| renewal.valid_until());
                let next = if self.connected { renewal.silent_at().or(renewal.due()) } else { None };
                [expiry, next].into_iter().flatten().min()
            }
        };
        let again = self.again.as_ref().map(|(at, _)| *at);
        [requests, own, again].into_iter().flatten().min()
    }

    fn end(&mut self, error: &Error, close: Option<(i64, Moment)>, out: &mut Vec<Output>) {
        let was_over = matches!(self.state, State::Over { .. });
        self.state = State::Over { close };
        self.again = None;
        if let Some((session, _)) = close.filter(|_| self.connected) {
            out.push(Output::Send(Message::Close(v1::CloseRequest { session })));
        }
        if was_over {
            return;
        }
        // First, so that whoever asks again as soon as it is told does so in a new session.
        out.push(Output::Over { session: self.key, error: error.clone() });
        for asked in self.requests.drain() {
            let in_doubt = (asked.is_out || asked.in_doubt) && outlasts_session(&asked.op);
            let error = if in_doubt { Error::Unknown { waited: asked.patience } } else { error.clone() };
            out.extend(asked.ticket.map(|ticket| Output::Failed { ticket, error }));
        }
        let waiting = std::mem::take(&mut self.waiting).into_values();
        out.extend(waiting.map(|ticket| Output::Failed { ticket, error: error.clone() }));
        (self.places, self.early) = (BTreeMap::new(), BTreeMap::new());
        (self.held, self.tokens) = (BTreeMap::new(), BTreeSet::new());
    }
}

fn keep_alive(session: i64, now: Moment) -> Message {
    Message::KeepAlive(v1::KeepAlive { sent: now.nanos(), session })
}
