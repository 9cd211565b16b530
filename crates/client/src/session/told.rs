//! What the cluster says to a session, and what follows.

use std::time::Duration;

use tidelock_native_api::v1::{self, Kind, answer::Answer, from_client::Message};

use super::places::Given;
use super::renewal::Renewal;
use super::undo::{GrantKey, PlaceKey, queue_of, undo_of};
use super::{Asked, Output, Session, State, Ticket, Wish, keep_alive};
use crate::clock::Moment;
use crate::error::{Code, Error, Loss, Refusal, is_overload, of_wire, refusal};

/// How long to wait before a request that the node could not carry out is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// The longest pause before a cluster that has too much to do is asked again.
const OVERLOAD_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Most grants kept that came before the replies that name their places: no more than requests under way, by far.
const EARLY_MAX: usize = 128;

/// The code of an error that says: show who you are.
const UNAUTHENTICATED: &str = "UNAUTHENTICATED";

impl Session {
    /// The session is open, or is not to be.
    pub(crate) fn opened(&mut self, reply: &v1::OpenReply, now: Moment, out: &mut Vec<Output>) {
        let State::Opening { sent: Some(sent) } = self.state else { return };
        if let Some(error) = &reply.error {
            match of_wire(error) {
                Some(error) => self.end(&error, None, out),
                // If it goes on like this the node is left: see `leaderless`.
                None => self.again = Some(now + ASK_AGAIN_AFTER),
            }
            return;
        }
        // The cluster may know it since the first time it was asked for.
        let ttl = Duration::from_millis(reply.ttl_ms.into());
        let renewal = Renewal::opened(ttl, sent);
        out.push(Output::Opened { session: self.key, id: reply.session });
        out.push(Output::Valid { session: self.key, until: renewal.valid_until() });
        self.told = reply.header.map_or(0, |header| header.revision);
        self.state = State::Open { id: reply.session, renewal };
        (self.again, self.is_attached) = (None, true);
        self.leaderless.works();
        self.send_from_line(now, out);
        self.finish_closing(out);
    }

    /// A request has its answer.
    pub(crate) fn replied(&mut self, reply: v1::Reply, now: Moment, out: &mut Vec<Output>) {
        use v1::reply::Result as Outcome;
        let revision = reply.header.map_or(0, |header| header.revision);
        let answer = match reply.result {
            Some(Outcome::Answer(v1::Answer { answer: Some(answer) })) => Ok(answer),
            Some(Outcome::Error(error)) if error.code == UNAUTHENTICATED && self.may_show_again(reply.number) => {
                return out.push(Output::LeaveNode);
            }
            Some(Outcome::Error(error)) => match of_wire(&error) {
                None => return self.ask_again_later(reply.number, &error, now),
                Some(Error::Lost(Loss::SessionEnded)) => return self.unknown_session(reply.number, out),
                Some(error) => Err(error),
            },
            _ => Err(Error::protocol("a reply without a result")),
        };
        // Notices up to this revision came before; a first answer that is repeated has an old one.
        self.told_up_to(revision);
        self.leaderless.works();
        let Some(asked) = self.requests.answered(reply.number) else { return };
        match answer {
            Ok(answer) => self.carried_out(asked, answer, now, out),
            Err(error) => out.extend(asked.wish.ticket.map(|ticket| Output::Failed { ticket, error })),
        }
        self.go_on(now, out);
    }

    /// Whether a request that was refused for who asks may be asked once more. A stream shows its password once, and what
    /// that proves ends when the user is changed; a new stream shows it again.
    fn may_show_again(&mut self, number: u64) -> bool {
        let Some(asked) = self.requests.get_mut(number) else { return false };
        asked.out_since = None;
        !std::mem::replace(&mut asked.shown_again, true)
    }

    /// The session was over when this came, so it was not carried out; unless it was before, when it was sent first.
    fn unknown_session(&mut self, number: u64, out: &mut Vec<Output>) {
        if let Some(asked) = self.requests.get_mut(number) {
            asked.out_since = None;
        }
        self.end(&Loss::SessionEnded.into(), None, out);
    }

    /// No node can read this request: it was never carried out, and is not sent again.
    pub(crate) fn not_understood(&mut self, number: u64, why: &str, out: &mut Vec<Output>) {
        let Some(asked) = self.requests.answered(number) else { return };
        let message = format!("the cluster cannot read the request: {why}");
        let error = Error::Refused(Refusal { code: Code::Mistaken, message, numbers: Default::default() });
        out.extend(asked.wish.ticket.map(|ticket| Output::Failed { ticket, error }));
        self.finish_closing(out);
    }

    /// It was not carried out, or nobody knows. Under its number it may be asked as often as one likes.
    fn ask_again_later(&mut self, number: u64, error: &v1::Error, now: Moment) {
        use v1::error::Family;
        let Some(asked) = self.requests.get_mut(number) else { return };
        let sent = asked.out_since.take();
        asked.in_doubt |= error.family() == Family::Unknown;
        let pause = if is_overload(error) {
            let (pauses, words) = &mut asked.overloaded;
            *words = Some(refusal(error));
            // Not drawn, so that nothing here is left to chance, and yet another one for each client.
            let dice = (self.client ^ now.nanos().wrapping_mul(number)) as u32;
            pauses.failed(OVERLOAD_PAUSE_MAX, dice)
        } else {
            ASK_AGAIN_AFTER
        };
        asked.again = Some(now + pause);
        if let (Some(sent), Family::Unknown | Family::Unavailable) = (sent, error.family()) {
            self.leaderless.asked_in_vain(sent);
        }
    }

    fn carried_out(&mut self, asked: Asked, answer: Answer, now: Moment, out: &mut Vec<Output>) {
        let Asked { wish: Wish { op, ticket, wait, .. }, since, .. } = asked;
        let (answer, grant) = match (answer, queue_of(&op)) {
            (Answer::Place(mut place), Some((kind, name))) => {
                let key = PlaceKey::new(kind, name, place.place);
                if let Some((moved_to, token)) = self.early.remove(&key) {
                    (place.place, place.token) = (moved_to, token);
                }
                if place.token == 0
                    && let Some(ticket) = ticket
                {
                    self.look_again_if_it_moved(&key, out);
                    self.places.stand(ticket, key, wait.map(|wait| (since + wait, wait)));
                    return;
                }
                let grant = GrantKey { kind: key.kind, name: key.name, token: place.token };
                (Answer::Place(place), (place.token != 0).then_some(grant))
            }
            (answer, _) => (answer, None),
        };
        match (ticket, undo_of(&op, &answer)) {
            (Some(ticket), Some(undo)) => self.hand_over(ticket, Given { grant, answer, undo }, now, out),
            (Some(ticket), None) => out.push(Output::Answered { session: self.key, ticket, answer, undo: None }),
            (None, Some(undo)) => self.give_back(undo, now, out),
            (None, None) => {}
        }
    }

    /// Hands something over, unless it could not be relied on: who was away for so long must first hear that the session
    /// is still there.
    fn hand_over(&mut self, ticket: Ticket, given: Given, now: Moment, out: &mut Vec<Output>) {
        if self.is_doubtful(now) {
            return self.places.keep_back(ticket, given);
        }
        let Given { grant, answer, undo } = given;
        self.places.hold(ticket, grant);
        out.push(Output::Answered { session: self.key, ticket, answer, undo: Some(undo) });
    }

    /// A grant of the same election that is nobody's may be that of this place: its session was named to follow the leader
    /// before it heard of the place, and what it holds does not say from where it moved. Knowing the place, another
    /// look will tell.
    fn look_again_if_it_moved(&mut self, key: &PlaceKey, out: &mut Vec<Output>) {
        let may_be_its = |early: &PlaceKey| early.kind == i32::from(Kind::Election) && early.is_of_same_queue(key);
        if let State::Open { id, .. } = self.state
            && self.early.keys().any(may_be_its)
        {
            self.is_unsure = true;
            out.push(Output::AskHoldings { session: self.key, id });
        }
    }

    fn told_up_to(&mut self, revision: u64) {
        if !self.is_catching_up {
            self.told = self.told.max(revision);
        }
    }

    /// A place was granted.
    pub(crate) fn granted(&mut self, granted: &v1::Granted, revision: u64, now: Moment, out: &mut Vec<Output>) {
        // Another change of the same revision may follow.
        self.told_up_to(revision.saturating_sub(1));
        let known_as = if granted.moved_from == 0 { granted.place } else { granted.moved_from };
        let known_as = PlaceKey { kind: granted.kind, name: granted.name.clone(), place: known_as };
        let key = PlaceKey { place: granted.place, ..known_as.clone() };
        let grant = GrantKey { kind: granted.kind, name: granted.name.clone(), token: granted.token };
        if self.places.has_grant(&grant) {
            return; // Told twice, once on each of two connections.
        }
        if let Some(ticket) = self.places.take(&known_as) {
            self.early.retain(|early, (_, token)| !early.is_of_same_queue(&key) || *token != granted.token);
            let answer = Answer::Place(v1::Place { place: granted.place, token: granted.token, ahead: 0 });
            let undo = key.release(granted.token);
            self.hand_over(ticket, Given { grant: Some(grant), answer, undo }, now, out);
        } else if self.is_asking_for(granted.kind, &granted.name) && self.early.len() < EARLY_MAX {
            self.early.insert(known_as, (granted.place, granted.token));
        } else {
            // Nobody waits for it any more. If it was given back already, this does nothing.
            self.give_back(key.release(granted.token), now, out);
        }
    }

    fn is_asking_for(&self, kind: i32, name: &str) -> bool {
        let queues = self.requests.under_way().filter_map(|asked| queue_of(&asked.wish.op));
        queues.into_iter().any(|(asked, its_name)| i32::from(asked) == kind && its_name == name)
    }

    /// Grants whose request turned out not to be one of ours are given back.
    pub(super) fn give_back_early(&mut self, now: Moment, out: &mut Vec<Output>) {
        if self.early.is_empty() || self.is_unsure {
            return;
        }
        for (key, (place, token)) in std::mem::take(&mut self.early) {
            if self.is_asking_for(key.kind, &key.name) {
                self.early.insert(key, (place, token));
            } else {
                self.give_back(key.release(token), now, out);
            }
        }
    }

    /// The stream pushes what concerns this session.
    pub(crate) fn attached(&mut self, attached: &v1::Attached, now: Moment, out: &mut Vec<Output>) {
        if !matches!(self.state, State::Open { .. }) {
            return;
        }
        self.is_attached = true;
        out.push(Output::Send(keep_alive(attached.session, now)));
        // What was missed has been told by now; `told` moves on with what comes.
        self.is_catching_up = false;
        if self.told == 0 {
            self.told = attached.header.map_or(0, |header| header.revision);
        }
        if self.is_unsure {
            out.push(Output::AskHoldings { session: self.key, id: attached.session });
        }
    }

    /// A renewal is acknowledged.
    pub(crate) fn kept_alive(&mut self, kept: v1::KeptAlive, now: Moment, out: &mut Vec<Output>) {
        // If it comes too late for what is held, then that is lost, and stays so.
        self.tick(now, out);
        let was_doubtful = self.is_doubtful(now);
        let State::Open { renewal, .. } = &mut self.state else { return };
        renewal.acknowledged(Moment::from_nanos(kept.sent), Duration::from_millis(kept.ttl_ms.into()));
        out.push(Output::Valid { session: self.key, until: renewal.valid_until() });
        for (ticket, given) in self.places.take_unconfirmed() {
            self.hand_over(ticket, given, now, out);
        }
        if was_doubtful {
            self.send_all(now, out);
        }
    }

    /// The node serves the session no more.
    pub(crate) fn lost(&mut self, reason: v1::lost::Reason, out: &mut Vec<Output>) {
        use v1::lost::Reason;
        match (reason, &self.state) {
            (_, State::Over { .. }) => self.end(&Loss::SessionEnded.into(), None, out),
            (Reason::SessionEnded, _) => self.end(&Loss::SessionEnded.into(), None, out),
            (Reason::Compacted, State::Open { id, .. }) => {
                let id = *id;
                (self.told, self.is_catching_up, self.is_unsure, self.is_attached) = (0, false, true, false);
                out.push(Output::Send(Message::Attach(v1::Attach { session: id, told_revision: 0 })));
            }
            _ => out.push(Output::LeaveNode),
        }
    }

    /// What the session holds, read at that revision: grants that were missed are told now.
    pub(crate) fn holdings(&mut self, holdings: &[v1::Holding], revision: u64, now: Moment, out: &mut Vec<Output>) {
        // What is granted before the stream is attached, and after this was read, nobody tells.
        self.is_unsure &= !self.is_attached;
        for holding in holdings.iter().filter(|holding| holding.token != 0) {
            let (kind, name, place) = (holding.kind, &holding.name, holding.place);
            let key = PlaceKey { kind, name: name.clone(), place };
            // A successor has the leader's place instead of its own; only an election can have moved it.
            let moved_from = match self.places.waits_at(&key) || kind != i32::from(Kind::Election) {
                true => 0,
                false => self.missing_from(holdings, kind, name, revision).unwrap_or(0),
            };
            let (name, token) = (name.clone(), holding.token);
            let granted = v1::Granted { kind, name, place, moved_from, session: 0, token, ..Default::default() };
            self.granted(&granted, revision, now, out);
        }
        let is_gone = |key: &&PlaceKey| key.place <= revision && !has(holdings, key);
        let gone: Vec<PlaceKey> = self.places.waiting().filter(is_gone).cloned().collect();
        let gone = gone.into_iter().filter_map(|key| self.places.take(&key));
        out.extend(gone.map(|ticket| Output::Failed { ticket, error: Loss::SessionEnded.into() }));
        self.give_back_early(now, out);
    }

    /// A place that is waited for and is not among these, although it was taken by then: a place is called after the
    /// revision it was taken at.
    fn missing_from(&self, holdings: &[v1::Holding], kind: i32, name: &str, revision: u64) -> Option<u64> {
        let mut ours =
            self.places.waiting().filter(|key| key.kind == kind && key.name == name && key.place <= revision);
        ours.find(|key| !has(holdings, key)).map(|key| key.place)
    }

    /// The cluster has ended the session at our request, or never had it.
    pub(crate) fn closed(&mut self, reply: &v1::CloseReply, now: Moment) {
        let may_be_asked_again = reply.error.as_ref().is_some_and(|error| of_wire(error).is_none());
        match &mut self.state {
            State::Over { .. } if may_be_asked_again => self.again = Some(now + ASK_AGAIN_AFTER),
            State::Over { close } => *close = None,
            _ => {}
        }
    }
}

fn has(holdings: &[v1::Holding], key: &PlaceKey) -> bool {
    holdings.iter().any(|held| held.place == key.place && held.kind == key.kind && held.name == key.name)
}
