//! Drives a [`Connection`] over a socket: one task per connection, which reads what came, runs the calls that are
//! under way, and writes what is to be said, all of it at once.
//!
//! A call whose message is small is collected and handed over whole ([`Service::call`]); everything else gets a body
//! to read from and answers with one ([`Service::serve`]). Calls run within the connection's task: none of them is
//! spawned, and one that its client gives up on is dropped at once. So none of them may compute for long between two
//! awaits; what does belongs into a task of its own.
//!
//! What holds: a turn of the task is short ([`READS_AT_ONCE`], `LOOKS_AT_ONCE`, [`WRITES_AT_ONCE`]), whatever the client
//! sends; while a client does not take what there is for it, nothing more is read or made for it. What it leaves lying in
//! one place does not keep from it what it asks for in another.
//!
//! What comes in is in `requests`, what goes out in `answers`; here is what drives both.

mod answers;
mod body;
mod calls;
mod piece;
mod ready;
mod requests;
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

use crate::{Connection, Event, Limits, RequestHead};
use answers::STALL_PERIOD;
use body::Feed;
pub use body::{Cut, Incoming};
use calls::Calls;
pub use piece::Piece;
use ready::Ready;

/// How much is read at a time at first, and at most by a connection that has much to say. Most connections are idle,
/// and there may be many.
const READ_BYTES_MIN: usize = 4 * 1024;
const READ_BYTES_MAX: usize = 32 * 1024;
/// How often is read in a row before others get their turn.
const READS_AT_ONCE: usize = 4;
/// How often is written in a row.
const WRITES_AT_ONCE: usize = 16;
/// What is kept of the memory for what is written, when all of it was.
const OUT_BYTES_KEPT: usize = 16 * 1024;

/// Whoever answers.
pub trait Service: Send + Sync + 'static {
    /// What answers with a body have as such.
    type Body: http_body::Body<Data: Into<Piece>, Error: std::error::Error> + Send + Unpin + 'static;

    /// How many bytes the body of this request may have to be collected and answered whole; nothing if it is to be
    /// served as a stream.
    fn collects(&self, head: &RequestHead) -> Option<usize>;

    /// Whether the answer to a request that is collected may wait for others to do something, such as for a lock. What came
    /// of it is copied then: otherwise it holds on to everything that was read with it.
    fn may_wait(&self, _head: &RequestHead) -> bool {
        true
    }

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
    /// It is being answered, at this place; what is still to come of it goes into the feed. So many bytes of it are
    /// kept.
    Answering { place: usize, feed: Option<Feed>, kept: usize },
}

impl Open {
    /// How many bytes of it are kept, in its head and its body.
    fn kept(&self) -> usize {
        match self {
            Open::Collecting { head, body, .. } => head.size() + body.len(),
            Open::Answering { kept, .. } => *kept,
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
    /// Bytes that are kept of those that are open.
    kept: usize,
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
    /// When to look for answers of which nothing is taken, while there may be some.
    stalls_at: Option<Instant>,
    stall_period: Duration,
    /// When it was looked for them the last time, others waited to begin.
    heads_waited: bool,
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
            kept: 0,
            calls: Calls::new(Arc::clone(&ready)),
            ready,
            reads: Vec::new(),
            held: Vec::new(),
            heard: now,
            alarm: Box::pin(tokio::time::sleep_until(now + keeping.ping_after)),
            alarm_at: now + keeping.ping_after,
            alarmed: None,
            stalls_at: None,
            stall_period: STALL_PERIOD,
            heads_waited: false,
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

    /// Does what is due by the clock. Ready when the client has been silent for too long.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_set = self.alarmed.as_ref().is_some_and(|task| task.will_wake(cx.waker()));
        if is_set && Instant::now() < self.alarm_at {
            // It will wake this task. Looking at it would cost more than looking at the clock.
            return Poll::Pending;
        }
        self.alarmed = Some(cx.waker().clone());
        while self.alarm.as_mut().poll(cx).is_ready() {
            if self.stalls_at.is_some_and(|at| at <= Instant::now()) {
                self.end_stalled();
            }
            let Some(next) = self.ask_after_silence() else { return Poll::Ready(()) };
            self.alarm_at = self.stalls_at.map_or(next, |at| at.min(next));
            self.alarm.as_mut().reset(self.alarm_at);
        }
        Poll::Pending
    }

    /// Has the alarm go off earlier.
    fn set_alarm(&mut self, at: Instant) {
        self.alarm_at = at;
        self.alarm.as_mut().reset(at);
        self.alarmed = None;
    }

    /// When to look at the client's silence again; nothing if there was more of it than allowed.
    fn ask_after_silence(&mut self) -> Option<Instant> {
        let (silent, patience) = (self.heard.elapsed(), self.keeping.ping_after);
        if silent < patience {
            return Some(self.heard + patience);
        }
        let patience = patience + self.keeping.ping_timeout;
        if !self.connection.awaits_pong() {
            self.connection.send_ping();
        } else if silent >= patience {
            return None;
        }
        Some(self.heard + patience)
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
        if !this.closing {
            this.poll_calls(cx);
        }
        if this.poll_alarm(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let was_congested = this.connection.is_congested();
        let written = this.poll_write(cx)?;
        if written.is_ready() && (this.closing || this.connection.is_done()) {
            return Pin::new(&mut this.io).poll_shutdown(cx);
        }
        let can_read = was_congested && !this.connection.is_congested();
        if can_read || !this.closing && this.calls.can_go_on(this.connection.room()) {
            // Left undone because of what is written by now, or because it was much at once.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
