//! The stream of one client: what it asks, what it is answered, what it is told, all of it in the task of its connection.
//!
//! No task and no channel of its own: the connection polls it, and it takes in what came, looks at what is under way,
//! takes what the router left in its mailbox, and gives out all of it as one piece.
//!
//! What holds, of the order in which a client is told:
//! - notices ascend by revision, but for what a session missed while it was away: that is told beside what happens
//!   meanwhile, and `Attached` comes after all of it;
//! - a reply that shows a revision comes after all notices up to it ([`Router::routed`]);
//! - a grant comes after the reply that named its place: while a request for a place of that name is under way, grants
//!   of that name to that session wait for what it comes to.
//!
//! Bounded: requests under way ([`UNDER_WAY_MAX`]; nothing more is read then), sessions and names of one stream, the
//! size of a message, and the mailbox.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use foldhash::fast::RandomState;
use futures_util::stream::{FuturesUnordered, Stream};
use http_body::{Body as _, Frame};
use prost::Message;
use tidelock_client_port::PREFIX_BYTES;
use tidelock_model::{Kind, LeaseId, Name, NativeOp};
use tidelock_native_api::v1;
use tidelock_native_api::v1::from_client::Message as FromClient;
use tidelock_native_api::v1::lost::Reason;
use tidelock_native_api::v1::to_client::Message as ToClient;
use tonic::body::Body;

use crate::callers::Proof;
use crate::mailbox::{Format, Item, Mailbox, PlaceOf};
use crate::problem::Problem;
use crate::renewals::Renewal;
use crate::router::Observation;
use crate::services::{Services, native_answer};
use crate::session_map::SessionMap;
use crate::translate;
use crate::work::{Attached, Done, Work, carry_out};

/// Largest message taken from a client.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Most requests under way on one stream.
const UNDER_WAY_MAX: usize = 4096;
/// Most sessions attached to one stream.
const SESSIONS_MAX: usize = 65_536;
/// Most names observed by one stream.
pub(crate) const OBSERVED_MAX: usize = 1000;
/// How much is given out in one piece, about.
const PIECE_BYTES: usize = 64 * 1024;

type Map<K, V> = HashMap<K, V, RandomState>;

/// The answering half of a stream, which reads the asking half. `F` is what [`carry_out`] gives.
pub(crate) struct Connect<F> {
    services: Arc<Services>,
    proof: Proof,
    begin: fn(Arc<Services>, Arc<Mailbox>, Work) -> F,
    input: Option<Body>,
    unread: Bytes,
    under_way: FuturesUnordered<F>,
    mailbox: Arc<Mailbox>,
    /// Requests under way that may be given a place, by whose it would be.
    taking: Map<PlaceOf, u32>,
    /// Sessions of this stream.
    sessions: SessionMap<()>,
    /// What is observed, or is about to be, and whether that was answered. All of it ends with the stream.
    observed: Map<(u8, Box<str>), (Arc<Observation>, bool)>,
    /// What the router left, in order.
    notices: VecDeque<Item>,
    /// The mailbox counts some of them.
    keeps: bool,
    /// Replies that were not given out yet, with the revisions they show.
    replies: VecDeque<(u64, ToClient)>,
    /// That sessions are attached, each with how many notices must have been given out before.
    attached: VecDeque<(u64, ToClient)>,
    /// Notices given out so far.
    told: u64,
    out: BytesMut,
    end: End,
}

/// How far the end of the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    NotYet,
    /// The last message is out; the trailers are not.
    Trailers,
    Over,
}

/// The stream of a client that comes with this proof.
pub(crate) fn connect(services: Arc<Services>, proof: Proof, input: Body) -> Body {
    let mailbox = services.router.mailbox(Format::Stream);
    Body::new(Connect {
        services,
        proof,
        begin: carry_out,
        input: Some(input),
        unread: Bytes::new(),
        under_way: FuturesUnordered::new(),
        mailbox,
        taking: Map::default(),
        sessions: SessionMap::default(),
        observed: Map::default(),
        notices: VecDeque::new(),
        keeps: false,
        replies: VecDeque::new(),
        attached: VecDeque::new(),
        told: 0,
        out: BytesMut::new(),
        end: End::NotYet,
    })
}

impl<F: Future<Output = Done>> Connect<F> {
    /// Takes in messages as long as there are some and there is room for what they ask.
    fn poll_input(&mut self, cx: &mut Context<'_>) {
        while self.end == End::NotYet && self.under_way.len() < UNDER_WAY_MAX && self.replies.len() < UNDER_WAY_MAX {
            match take_message(&mut self.unread) {
                Ok(Some(message)) => match v1::FromClient::decode(message) {
                    Ok(v1::FromClient { message: Some(message) }) => self.take_in(message),
                    // Of a later version, or nothing at all.
                    Ok(v1::FromClient { message: None }) => {}
                    Err(error) => self.finish(Reason::BadMessage, &error.to_string()),
                },
                Ok(None) => {
                    let Some(input) = &mut self.input else { return };
                    match Pin::new(input).poll_frame(cx) {
                        Poll::Ready(Some(Ok(frame))) => {
                            if let Ok(data) = frame.into_data() {
                                self.unread = joined(std::mem::take(&mut self.unread), data);
                            }
                        }
                        // The client has no more to say, or is gone: it gets the rest of its replies.
                        Poll::Ready(Some(Err(_)) | None) => self.input = None,
                        Poll::Pending => return,
                    }
                }
                Err(why) => self.finish(Reason::BadMessage, why),
            }
        }
    }

    fn take_in(&mut self, message: FromClient) {
        match message {
            FromClient::Request(request) => self.request(request),
            FromClient::KeepAlive(v1::KeepAlive { sent, session }) => {
                let session = LeaseId(session);
                if self.sessions.contains(session.0) {
                    self.start(Work::KeepAlive { session, sent });
                } else {
                    self.lost(session, Reason::NotAllowed, "attach the session first");
                }
            }
            FromClient::Attach(v1::Attach { session, told_revision }) => {
                let session = LeaseId(session);
                if self.sessions.len() >= SESSIONS_MAX && !self.sessions.contains(session.0) {
                    return self.lost(session, Reason::NotAllowed, "too many sessions on one stream");
                }
                match self.services.caller(&self.proof) {
                    Ok(caller) => self.start(Work::Attach { caller, session, told_revision }),
                    Err(problem) => self.lost(session, Reason::NotAllowed, &problem.message),
                }
            }
            FromClient::Open(request) => match self.services.caller(&self.proof) {
                Ok(_) if self.sessions.len() >= SESSIONS_MAX => {
                    let problem = Problem::new(
                        v1::error::Family::Bounded,
                        "TOO_MANY_SESSIONS",
                        "too many sessions on one stream; open another",
                    );
                    self.opened(request.client, Err(problem));
                }
                Ok(caller) => self.start(Work::Open { caller, request }),
                Err(problem) => self.opened(request.client, Err(problem)),
            },
            FromClient::Close(v1::CloseRequest { session }) => match self.services.caller(&self.proof) {
                Ok(caller) => self.start(Work::Close { caller, session: LeaseId(session) }),
                Err(problem) => self.closed(LeaseId(session), Err(problem)),
            },
            FromClient::Observe(request) => {
                if let Err(problem) = self.observe(&request) {
                    self.observing(request.kind, request.name, Err(problem));
                }
            }
            FromClient::StopObserving(v1::StopObserving { kind, name }) => {
                if let Ok(kind) = translate::kind(kind) {
                    self.stop_observing(kind, &name);
                }
            }
        }
    }

    fn request(&mut self, request: v1::Request) {
        let (session, number) = (request.session, request.number);
        let asked = self.services.caller(&self.proof).and_then(|caller| Ok((caller, translate::request(request)?)));
        match asked {
            Ok((caller, request)) => {
                let takes = matches!(request.op, NativeOp::Acquire { .. } | NativeOp::Campaign { .. });
                let taking = takes.then(|| {
                    let (kind, name) = request.op.subject();
                    self.services.router.place_of(request.session, kind, name.as_str())
                });
                if let Some(place) = taking {
                    *self.taking.entry(place).or_default() += 1;
                }
                self.start(Work::Request { caller, request, taking });
            }
            Err(problem) => {
                let result = Some(v1::reply::Result::Error(problem.to_wire()));
                self.reply(self.services.header_now(), v1::Reply { header: None, number, result, session });
            }
        }
    }

    /// A reply comes after what happened up to the revision it shows, also if it is an error: the client takes it for told.
    fn reply(&mut self, header: v1::Header, reply: v1::Reply) {
        let reply = v1::Reply { header: Some(header), ..reply };
        self.replies.push_back((header.revision, ToClient::Reply(reply)));
    }

    fn observe(&mut self, request: &v1::ObserveRequest) -> Result<(), Problem> {
        let caller = self.services.caller(&self.proof)?;
        let (kind, name) = (translate::kind(request.kind)?, translate::name(&request.name)?);
        let key = (kind as u8, name.as_str().into());
        // Who observes a name anew is told of no more names than before.
        if self.observed.len() >= OBSERVED_MAX && !self.observed.contains_key(&key) {
            let text = format!("a stream observes at most {OBSERVED_MAX} names");
            return Err(Problem::new(v1::error::Family::Bounded, "TOO_MANY_OBSERVED", text));
        }
        self.stop_observing(kind, name.as_str());
        let observation = Arc::<Observation>::default();
        self.observed.insert(key, (Arc::clone(&observation), false));
        let told_revision = request.told_revision;
        self.start(Work::Observe { caller, kind, name, told_revision, observation });
        Ok(())
    }

    /// Ends an observation, however far it is. One that was not answered yet is answered now: every one is, in the order
    /// in which they were asked for.
    fn stop_observing(&mut self, kind: Kind, name: &str) {
        let Some((observation, answered)) = self.observed.remove(&(kind as u8, name.into())) else { return };
        let is_told = answered || observation.is_over();
        self.services.router.stop_observing(kind, name, &observation);
        if !is_told {
            self.observing(translate::wire_kind(kind).into(), name.to_owned(), Ok(0));
        }
    }

    /// What came of the wish to observe a name.
    fn observed(&mut self, kind: Kind, name: &Name, observation: &Arc<Observation>, result: Result<u64, Problem>) {
        let key = (kind as u8, name.as_str().into());
        let Some((_, answered)) = self.observed.get_mut(&key).filter(|(last, _)| Arc::ptr_eq(last, observation)) else {
            return; // It was stopped, and answered then.
        };
        *answered = true;
        match result {
            // The router ended it, and told why.
            Ok(_) if observation.is_over() => return self.stop_observing(kind, name.as_str()),
            Ok(_) => {}
            Err(_) => drop(self.observed.remove(&key)),
        }
        self.observing(translate::wire_kind(kind).into(), name.as_str().to_owned(), result);
    }

    fn start(&mut self, work: Work) {
        self.under_way.push((self.begin)(Arc::clone(&self.services), Arc::clone(&self.mailbox), work));
    }

    /// Takes what came of what is under way.
    fn poll_work(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(done)) = Pin::new(&mut self.under_way).poll_next(cx) {
            match done {
                Done::Reply { session, number, taking, result } => self.replied(session, number, taking, result),
                Done::Opened { client, result } => self.opened(client, result),
                Done::Closed { session, result } => self.closed(session, result),
                Done::Attached { session, result } => self.attached(session, result),
                Done::KeptAlive { session, sent, result } => self.kept_alive(session, sent, &result),
                Done::Observing { kind, name, observation, result } => {
                    self.observed(kind, &name, &observation, result);
                }
            }
        }
    }

    fn replied(
        &mut self,
        session: i64,
        number: u64,
        taking: Option<PlaceOf>,
        result: Result<tidelock_model::Outcome, Problem>,
    ) {
        if let Some(place) = taking
            && let Some(count) = self.taking.get_mut(&place)
        {
            *count -= 1;
            if *count == 0 {
                self.taking.remove(&place);
            }
        }
        let (header, answer) = match result {
            Ok(outcome) => {
                let header = self.services.header(outcome.revision.0, outcome.index.0);
                let answer = native_answer(&outcome);
                let answer = answer.and_then(|answer| translate::answer(answer).ok_or_else(Problem::mismatch));
                (header, answer)
            }
            Err(problem) => (self.services.header_now(), Err(problem)),
        };
        let result = Some(match answer {
            Ok(answer) => v1::reply::Result::Answer(answer),
            Err(problem) => v1::reply::Result::Error(problem.to_wire()),
        });
        self.reply(header, v1::Reply { header: None, number, result, session });
    }

    fn opened(&mut self, client: u64, result: Result<v1::OpenReply, Problem>) {
        let reply = result.unwrap_or_else(|problem| v1::OpenReply {
            header: Some(self.services.header_now()),
            client,
            error: Some(problem.to_wire()),
            ..Default::default()
        });
        if reply.error.is_none() {
            self.sessions.insert(reply.session, ());
        }
        self.replies.push_back((0, ToClient::Opened(reply)));
    }

    fn closed(&mut self, session: LeaseId, result: Result<v1::CloseReply, Problem>) {
        let reply = result.unwrap_or_else(|problem| v1::CloseReply {
            header: Some(self.services.header_now()),
            session: session.0,
            error: Some(problem.to_wire()),
        });
        if reply.error.is_none() {
            self.sessions.remove(session.0);
        }
        self.replies.push_back((0, ToClient::Closed(reply)));
    }

    fn attached(&mut self, session: LeaseId, result: Result<Attached, Problem>) {
        match result {
            // It was taken away while it was told what it missed, and the client told why.
            Ok(_) if !self.services.router.is_attached(session, &self.mailbox) => {}
            Ok(Attached { after, ttl_ms, told_with }) => {
                self.sessions.insert(session.0, ());
                let header = Some(self.services.header(after, 0));
                let attached = v1::Attached { header, session: session.0, ttl_ms };
                self.attached.push_back((told_with, ToClient::Attached(attached)));
            }
            Err(problem) => {
                // It may have been attached to this stream before.
                self.sessions.remove(session.0);
                self.services.router.detach(std::iter::once(session.0), &self.mailbox);
                let reason = match problem.family {
                    v1::error::Family::Lost => Reason::SessionEnded,
                    v1::error::Family::Denied => Reason::NotAllowed,
                    _ => Reason::Unreachable,
                };
                self.lost(session, reason, &problem.message);
            }
        }
    }

    fn kept_alive(&mut self, session: LeaseId, sent: u64, result: &Result<Renewal, Problem>) {
        match result {
            Ok(Renewal::Kept { ttl_ms }) if self.sessions.contains(session.0) => {
                let header = Some(self.services.header_now());
                let kept = v1::KeptAlive { sent, ttl_ms: *ttl_ms, session: session.0, header };
                self.replies.push_back((0, ToClient::KeptAlive(kept)));
            }
            Ok(Renewal::Gone) if self.sessions.remove(session.0).is_some() => {
                self.services.router.session_over(session);
            }
            // Neither renewed nor over, or nobody could be asked: the client hears nothing, and asks again.
            Ok(Renewal::Ending | Renewal::Kept { .. } | Renewal::Gone) | Err(_) => {}
        }
    }

    fn observing(&mut self, kind: i32, name: String, result: Result<u64, Problem>) {
        let (header, error) = match result {
            Ok(after) => (self.services.header(after, 0), None),
            Err(problem) => (self.services.header_now(), Some(problem.to_wire())),
        };
        self.replies.push_back((0, ToClient::Observing(v1::Observing { header: Some(header), kind, name, error })));
    }

    fn lost(&mut self, session: LeaseId, reason: Reason, why: &str) {
        let lost = v1::Lost { reason: reason.into(), session: session.0, message: why.to_owned() };
        self.replies.push_back((0, ToClient::Lost(lost)));
    }

    /// Says why the stream ends, and that it does.
    fn finish(&mut self, reason: Reason, why: &str) {
        if self.end == End::NotYet {
            let lost = v1::Lost { reason: reason.into(), session: 0, message: why.to_owned() };
            put(&mut self.out, ToClient::Lost(lost));
            self.end = End::Trailers;
        }
    }

    /// Whether a notice must wait for the reply that names its place.
    fn is_early(&self, notice: &Item) -> bool {
        notice.granted.is_some_and(|place| self.taking.contains_key(&place))
    }

    /// Puts notices up to a revision into the piece; whether none of them must wait.
    fn put_notices(&mut self, up_to: u64) -> bool {
        while let Some(notice) = self.notices.front().filter(|notice| notice.revision <= up_to) {
            if self.is_early(notice) {
                return false;
            }
            self.out.extend_from_slice(&notice.payload);
            self.told += 1;
            if let Some(lost) = self.notices.pop_front().and_then(|notice| notice.lost) {
                self.sessions.remove(lost);
            }
        }
        true
    }

    /// Puts what may be given out into the piece.
    fn put_out(&mut self, routed: u64) {
        self.put_replies_and_notices(routed);
        while self.attached.front().is_some_and(|(told_with, _)| *told_with <= self.told) {
            self.attached.pop_front().into_iter().for_each(|(_, attached)| put(&mut self.out, attached));
        }
        // The bound of the mailbox is for what waits here, too: as long as a grant must wait, so does all behind it.
        if self.keeps || !self.notices.is_empty() {
            self.mailbox.keep(&self.notices);
            self.keeps = !self.notices.is_empty();
        }
    }

    /// Puts replies and notices into the piece, in order.
    fn put_replies_and_notices(&mut self, mut routed: u64) {
        while let Some(revision) = self.replies.front().map(|(revision, _)| *revision) {
            if self.out.len() >= PIECE_BYTES || !self.put_notices(revision) {
                return;
            }
            if revision > routed {
                if !self.services.router.wake_at(revision, &self.mailbox) {
                    break;
                }
                // It was handed out a moment ago: then what came before it is in the mailbox.
                routed = self.services.router.routed().max(revision);
                let _ = self.mailbox.take(&mut self.notices);
                continue;
            }
            if let Some((_, reply)) = self.replies.pop_front() {
                put(&mut self.out, reply);
            }
        }
        self.put_notices(u64::MAX);
    }
}

/// Appends a message in its frame.
fn put(out: &mut BytesMut, message: ToClient) {
    let message = v1::ToClient { message: Some(message) };
    let length = message.encoded_len();
    out.reserve(PREFIX_BYTES + length);
    out.put_u8(0);
    out.put_u32(length as u32);
    message.encode_raw(out);
}

/// Takes the first message off the front of what was read, if all of it is there. It shares the memory.
fn take_message(unread: &mut Bytes) -> Result<Option<Bytes>, &'static str> {
    let Some([flag, length @ ..]) = unread.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if *flag != 0 {
        return Err("messages are not compressed here");
    }
    if length > MESSAGE_BYTES_MAX {
        return Err("a message has at most 65,536 bytes");
    }
    if unread.len() < PREFIX_BYTES + length {
        return Ok(None);
    }
    unread.advance(PREFIX_BYTES);
    Ok(Some(unread.split_to(length)))
}

/// Appends what came. What was read is copied when it is still shared, and from then on grows in place: a client may send
/// a message byte by byte, and each of them must cost the same.
fn joined(unread: Bytes, more: Bytes) -> Bytes {
    if unread.is_empty() {
        return more;
    }
    let mut whole = BytesMut::from(unread);
    whole.extend_from_slice(&more);
    whole.freeze()
}

impl<F: Future<Output = Done> + Send> http_body::Body for Connect<F> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        match this.end {
            End::NotYet => {}
            End::Trailers => {
                this.end = End::Over;
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
            End::Over => return Poll::Ready(None),
        }
        this.mailbox.register(cx.waker());
        this.poll_input(cx);
        // Read before the mailbox is emptied: what was handed out up to here is in it.
        let routed = this.services.router.routed();
        let ended = this.mailbox.take(&mut this.notices);
        this.poll_work(cx);
        this.put_out(routed);
        if let Some(reason) = ended {
            this.finish(reason, "");
        }
        let has_replies = !this.replies.is_empty() || !this.attached.is_empty();
        let is_done = this.input.is_none() && this.under_way.is_empty() && !has_replies;
        if this.end == End::NotYet && is_done {
            this.end = End::Trailers;
        }
        if !this.out.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(this.out.split().freeze()))));
        }
        if this.end == End::Trailers {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl<F> Drop for Connect<F> {
    fn drop(&mut self) {
        let router = &self.services.router;
        router.detach(self.sessions.sessions(), &self.mailbox);
        for ((kind, name), (observation, _)) in self.observed.drain() {
            if let Some(kind) = Kind::from_byte(kind) {
                router.stop_observing(kind, &name, &observation);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that sends its messages byte by byte must not have the node copy all of them again with every byte.
    #[test]
    fn a_message_in_tiny_pieces_is_not_copied_with_each() {
        let (mut unread, mut moves) = (Bytes::from_static(b"0"), 0);
        for piece in 1..=MESSAGE_BYTES_MAX {
            let before = unread.as_ptr();
            unread = joined(unread, Bytes::copy_from_slice(&[piece as u8]));
            moves += usize::from(unread.as_ptr() != before);
        }
        assert!(unread.iter().skip(1).enumerate().all(|(at, byte)| *byte == (at + 1) as u8));
        assert!(moves < 64, "{moves}");
    }
}
