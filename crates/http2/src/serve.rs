//! Drives a [`Connection`] over a socket: one task per connection, which reads what came, runs the calls that are
//! under way, and writes what is to be said, all of it at once.
//!
//! A call whose message is small is collected and handed over whole ([`Service::call`]); everything else gets a body
//! to read from and answers with one ([`Service::serve`]). Calls run within the connection's task: none of them is
//! spawned, and one that its client gives up on is dropped at once. So none of them may compute for long between two
//! awaits; what does belongs into a task of its own.
//!
//! What holds: a turn of the task is short ([`READS_AT_ONCE`], [`LOOKS_AT_ONCE`], [`WRITES_AT_ONCE`]), whatever the client
//! sends; while a client does not take what there is for it, nothing more is read or made for it.

mod body;
mod calls;
mod piece;
mod ready;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, Sleep};

use crate::{Connection, ErrorCode, Event, Limits, RequestHead};
use body::Feed;
pub use body::{Cut, Incoming};
use calls::{Calls, Done, Work};
pub use piece::Piece;
use ready::Ready;

/// How much is read at a time at first, and at most by a connection that has much to say. Most connections are idle,
/// and there may be many.
const READ_BYTES_MIN: usize = 4 * 1024;
const READ_BYTES_MAX: usize = 32 * 1024;
/// How often is read in a row before others get their turn.
const READS_AT_ONCE: usize = 4;
/// How often is looked at calls in a row.
const LOOKS_AT_ONCE: usize = 512;
/// How often is written in a row.
const WRITES_AT_ONCE: usize = 16;
/// How many parts of one answer are taken in a row.
const PARTS_AT_ONCE: usize = 64;
/// How much of an answer may wait for its client before more of it is made.
const BODY_BYTES_AHEAD: usize = 128 * 1024;
/// Bytes of all requests that are being collected, or were and are not answered yet. One that would be more is refused.
const COLLECTED_BYTES_MAX: usize = 64 << 20;
/// What is kept of the memory for what is written, when all of it was.
const OUT_BYTES_KEPT: usize = 16 * 1024;

/// Whoever answers.
pub trait Service: Send + Sync + 'static {
    /// What answers with a body have as such.
    type Body: http_body::Body<Data: Into<Piece>, Error: std::error::Error> + Send + Unpin + 'static;

    /// How many bytes the body of this request may have to be collected and answered whole; nothing if it is to be
    /// served as a stream.
    fn collects(&self, head: &RequestHead) -> Option<usize>;

    /// Answers a request that was collected.
    fn call(self: &Arc<Self>, head: &RequestHead, body: Bytes) -> Answering<Reply<Self::Body>>;

    /// Answers a request whose body is read as it comes.
    fn serve(&self, request: http::Request<Incoming>) -> Answering<http::Response<Self::Body>>;
}

/// An answer being made.
pub type Answering<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The answer to a request that was collected.
pub enum Reply<B> {
    /// It went well, with this message, framed as gRPC wants it.
    Message(Bytes),
    /// It was refused, with nothing but this to say. There may be more of these than of all others.
    Refused(Refusal),
    /// Anything else.
    Other(http::Response<B>),
}

/// A refusal as gRPC has it, known before anybody asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The number of its status.
    pub status: &'static str,
    /// Printable ASCII without a percent sign, which is what needs no escaping.
    pub message: &'static str,
}

/// How a connection is kept.
#[derive(Clone, Copy, Debug)]
pub struct Keeping {
    /// What a client may take.
    pub limits: Limits,
    /// After how much silence it is asked whether it is there.
    pub ping_after: Duration,
    /// How long it may take to say so.
    pub ping_timeout: Duration,
}

/// What is known of a request that is not over.
enum Open {
    /// It is collected.
    Collecting { head: Arc<RequestHead>, body: BytesMut, bytes_max: usize },
    /// It is being answered, at this place; what is still to come of it goes into the feed. So many bytes of it were
    /// collected.
    Answering { place: usize, feed: Option<Feed>, collected: usize },
}

impl Open {
    fn collected(&self) -> usize {
        match self {
            Open::Collecting { body, .. } => body.len(),
            Open::Answering { collected, .. } => *collected,
        }
    }
}

/// A connection on its way to its end. Resolves when it is closed.
///
/// It keeps its turns short by itself: run it as `tokio::task::unconstrained`, or calls that are answered at once are put
/// off to a later turn one by one.
pub struct Serving<IO, S: Service> {
    io: IO,
    service: Arc<S>,
    connection: Connection,
    input: BytesMut,
    read_bytes: usize,
    events: Vec<Event>,
    open: HashMap<u32, Open, foldhash::fast::RandomState>,
    /// Bytes that were collected of those that are open.
    collected: usize,
    ready: Arc<Ready>,
    reads: Vec<(u32, usize)>,
    calls: Calls<S::Body>,
    /// Answers whose client does not take what there is: stream and place.
    held: Vec<(u32, usize)>,
    keeping: Keeping,
    heard: Instant,
    alarm: Pin<Box<Sleep>>,
    /// When the alarm goes off, and the task that it wakes then.
    alarm_at: Instant,
    alarmed: Option<Waker>,
    /// Something was written that may still be with the layer that encrypts it.
    unflushed: bool,
    closing: bool,
}

impl<IO, S> Serving<IO, S>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    S: Service,
{
    /// A connection that was just made; `read` came on it already.
    pub fn new(io: IO, read: BytesMut, service: Arc<S>, keeping: Keeping) -> Serving<IO, S> {
        let now = Instant::now();
        let ready = Arc::new(Ready::default());
        Serving {
            io,
            service,
            connection: Connection::new(keeping.limits),
            input: read,
            read_bytes: READ_BYTES_MIN,
            events: Vec::new(),
            open: HashMap::default(),
            collected: 0,
            calls: Calls::new(Arc::clone(&ready)),
            ready,
            reads: Vec::new(),
            held: Vec::new(),
            heard: now,
            alarm: Box::pin(tokio::time::sleep_until(now + keeping.ping_after)),
            alarm_at: now + keeping.ping_after,
            alarmed: None,
            keeping,
            unflushed: false,
            closing: false,
        }
    }

    /// Answers what is under way and then closes.
    pub fn say_goodbye(self: Pin<&mut Self>) {
        self.get_mut().connection.say_goodbye();
    }

    /// Takes in what came; the end of the connection if it is over.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..READS_AT_ONCE {
            self.take_in();
            if self.closing || self.connection.is_congested() {
                return Poll::Ready(Ok(()));
            }
            self.input.reserve(self.read_bytes);
            let room = self.input.capacity() - self.input.len();
            let read = ready!(pin!(self.io.read_buf(&mut self.input)).poll(cx))?;
            if read == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            if read == room {
                self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
            }
            self.heard = Instant::now();
        }
        self.take_in();
        // There may be more, and nobody will say so.
        cx.waker().wake_by_ref();
        Poll::Ready(Ok(()))
    }

    fn take_in(&mut self) {
        if self.closing || self.input.is_empty() {
            return;
        }
        let mut events = std::mem::take(&mut self.events);
        let received = self.connection.receive(&mut self.input, &mut events);
        for event in events.drain(..) {
            match event {
                Event::Request { stream, head, end } => self.begin(stream, head, end),
                Event::Data { stream, data, end } => self.go_on(stream, data, end),
                Event::Gone { stream } => self.give_up(stream),
            }
        }
        self.events = events;
        // What was refused is told why, and then it is over.
        self.closing |= received.is_err();
    }

    fn begin(&mut self, stream: u32, head: Arc<RequestHead>, end: bool) {
        match self.service.collects(&head) {
            Some(_) if end => self.call(stream, &head, Bytes::new()),
            Some(bytes_max) => {
                self.open.insert(stream, Open::Collecting { head, body: BytesMut::new(), bytes_max });
            }
            None => {
                let (feed, body) = body::channel(stream, &self.ready, end);
                self.serve(stream, &head, body, (!end).then_some(feed));
            }
        }
    }

    fn go_on(&mut self, stream: u32, data: Bytes, end: bool) {
        let bytes = data.len();
        match self.open.get_mut(&stream) {
            Some(Open::Answering { feed, .. }) => match feed {
                Some(to) => {
                    to.push(data, end);
                    if end {
                        *feed = None;
                    }
                }
                None => self.connection.release(stream, bytes),
            },
            Some(Open::Collecting { body, bytes_max, .. }) => {
                if body.len() + bytes > *bytes_max {
                    self.overflow(stream, data, end);
                    return;
                }
                if self.collected + bytes > COLLECTED_BYTES_MAX {
                    // Clients take this for an exhausted resource.
                    self.close(stream);
                    self.connection.reset(stream, ErrorCode::EnhanceYourCalm);
                    return;
                }
                // Nearly always all of it comes at once.
                let whole = if end && body.is_empty() {
                    data
                } else {
                    body.extend_from_slice(&data);
                    self.collected += bytes;
                    if !end {
                        self.connection.release(stream, bytes);
                        return;
                    }
                    self.collected -= body.len();
                    std::mem::take(body).freeze()
                };
                self.connection.release(stream, bytes);
                if let Some(Open::Collecting { head, .. }) = self.open.remove(&stream) {
                    self.call(stream, &head, whole);
                }
            }
            // Answered already.
            None => self.connection.release(stream, bytes),
        }
    }

    /// Larger than what is collected: served as a stream, beginning with what is here.
    fn overflow(&mut self, stream: u32, data: Bytes, end: bool) {
        let Some(Open::Collecting { head, body, .. }) = self.close(stream) else { return };
        let (feed, incoming) = body::channel(stream, &self.ready, false);
        feed.push_released(body.freeze());
        feed.push(data, end);
        self.serve(stream, &head, incoming, (!end).then_some(feed));
    }

    fn serve(&mut self, stream: u32, head: &RequestHead, body: Incoming, feed: Option<Feed>) {
        let Some(request) = head.to_http(body) else {
            self.connection.reset(stream, ErrorCode::Protocol);
            return;
        };
        let place = self.calls.add(stream, Work::Head(self.service.serve(request)));
        self.open.insert(stream, Open::Answering { place, feed, collected: 0 });
    }

    fn call(&mut self, stream: u32, head: &RequestHead, body: Bytes) {
        let collected = body.len();
        self.collected += collected;
        let place = self.calls.add(stream, Work::Call(self.service.call(head, body)));
        self.open.insert(stream, Open::Answering { place, feed: None, collected });
    }

    /// A request is over, or is not collected any more.
    fn close(&mut self, stream: u32) -> Option<Open> {
        let closed = self.open.remove(&stream)?;
        self.collected -= closed.collected();
        Some(closed)
    }

    /// Nobody waits for it any more: it is dropped.
    fn give_up(&mut self, stream: u32) {
        if let Some(Open::Answering { place, .. }) = self.close(stream) {
            self.calls.drop_at(place);
            self.held.retain(|(held, _)| *held != stream);
        }
    }

    /// Takes what calls have come to, and gives clients room for what was read of their requests.
    fn poll_calls(&mut self, cx: &mut Context<'_>) {
        let mut looks = LOOKS_AT_ONCE;
        self.calls.begin_turn(cx);
        while let Some((stream, place, done)) = self.calls.poll_next(&mut looks) {
            match done {
                Done::Message(message) => {
                    self.close(stream);
                    self.connection.send_message(stream, message);
                }
                Done::Refused(refusal) => {
                    self.close(stream);
                    self.connection.send_refusal(stream, refusal);
                }
                Done::Head(response) => self.begin_answer(stream, response),
                Done::Part(part) => self.go_on_answering(stream, place, part),
            }
        }
        let woken_again = self.ready.end(&mut self.reads);
        for (stream, bytes) in self.reads.drain(..) {
            self.connection.release(stream, bytes);
        }
        if woken_again || !self.calls.is_turn_over() {
            cx.waker().wake_by_ref();
        }
    }

    fn begin_answer(&mut self, stream: u32, response: http::Response<S::Body>) {
        let (head, body) = response.into_parts();
        let fields = head.headers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
        let end = http_body::Body::is_end_stream(&body);
        self.connection.send_head(stream, head.status.as_u16(), fields, end);
        if end {
            self.close(stream);
        } else if let Some(Open::Answering { place, .. }) = self.open.get_mut(&stream) {
            let at = self.calls.put(stream, Work::Body(body));
            *place = at;
            if let Some(Done::Part(part)) = self.calls.poll_at(at) {
                self.go_on_answering(stream, at, part);
            }
        }
    }

    /// Takes parts of an answer as long as there are some and the client takes them.
    fn go_on_answering(&mut self, stream: u32, place: usize, first: calls::Part<S::Body>) {
        let mut part = first;
        for taken in 1.. {
            match part {
                None => self.connection.send_data(stream, Bytes::new(), true),
                Some(Err(_)) => self.connection.reset(stream, ErrorCode::Internal),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        let Piece { own, shared } = data.into();
                        if shared.is_empty() {
                            self.connection.send_data(stream, own, false);
                        } else {
                            self.connection.send_shared(stream, own, shared);
                        }
                        if self.connection.waiting_bytes(stream) >= BODY_BYTES_AHEAD {
                            self.held.push((stream, place));
                            self.calls.hold(place);
                            return;
                        }
                        if taken == PARTS_AT_ONCE {
                            self.calls.look_at(place);
                            return;
                        }
                        let Some(Done::Part(next)) = self.calls.poll_at(place) else { return };
                        part = next;
                        continue;
                    }
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        self.connection.send_trailers(stream, calls::fields(&trailers));
                    }
                },
            }
            self.calls.drop_at(place);
            self.close(stream);
            return;
        }
    }

    /// Writes until the socket takes no more or nothing is left.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..WRITES_AT_ONCE {
            if !self.connection.has_out() {
                if self.unflushed {
                    ready!(Pin::new(&mut self.io).poll_flush(cx))?;
                    self.unflushed = false;
                }
                return Poll::Ready(Ok(()));
            }
            let written = ready!(self.poll_write_some(cx))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.connection.wrote(written, OUT_BYTES_KEPT);
            self.unflushed = true;
            if !self.connection.has_out() {
                self.connection.send_waiting();
                self.resume_bodies();
            }
        }
        // There is more, and the socket takes it: after others had their turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_write_some(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let io = Pin::new(&mut self.io);
        let parts = self.connection.out_parts();
        match parts {
            [bytes, shared] if shared.is_empty() => io.poll_write(cx, &bytes),
            _ if io.is_write_vectored() => io.poll_write_vectored(cx, &parts),
            _ => io.poll_write(cx, self.connection.out()),
        }
    }

    /// Answers whose client took enough go on being made.
    fn resume_bodies(&mut self) {
        let (connection, calls) = (&mut self.connection, &mut self.calls);
        self.held.retain(|(stream, place)| {
            let is_held = connection.waiting_bytes(*stream) >= BODY_BYTES_AHEAD;
            if !is_held {
                calls.resume(*place);
            }
            is_held
        });
    }

    /// Asks after silence, and gives up after more of it.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_set = self.alarmed.as_ref().is_some_and(|task| task.will_wake(cx.waker()));
        if is_set && Instant::now() < self.alarm_at {
            // It will wake this task. Looking at it would cost more than looking at the clock.
            return Poll::Pending;
        }
        self.alarmed = Some(cx.waker().clone());
        while self.alarm.as_mut().poll(cx).is_ready() {
            let silent = self.heard.elapsed();
            let patience = self.keeping.ping_after;
            if silent < patience {
                self.alarm_at = self.heard + patience;
                self.alarm.as_mut().reset(self.alarm_at);
            } else if self.connection.awaits_pong() && silent >= patience + self.keeping.ping_timeout {
                return Poll::Ready(());
            } else {
                if !self.connection.awaits_pong() {
                    self.connection.send_ping();
                }
                self.alarm_at = self.heard + patience + self.keeping.ping_timeout;
                self.alarm.as_mut().reset(self.alarm_at);
            }
        }
        Poll::Pending
    }
}

impl<IO, S> Future for Serving<IO, S>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    S: Service,
{
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.closing
            && let Poll::Ready(Err(error)) = this.poll_read(cx)
        {
            // What was asked before the client left is dropped, as it cannot be answered.
            return Poll::Ready(if error.kind() == io::ErrorKind::UnexpectedEof { Ok(()) } else { Err(error) });
        }
        if !this.closing && this.connection.takes_answers() {
            this.poll_calls(cx);
        }
        if this.poll_alarm(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let took_answers = this.connection.takes_answers();
        let written = this.poll_write(cx)?;
        if written.is_ready() && (this.closing || this.connection.is_done()) {
            return Pin::new(&mut this.io).poll_shutdown(cx);
        }
        if !took_answers && this.connection.takes_answers() {
            // Nothing was read or made because of what is written by now.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
