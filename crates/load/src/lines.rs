//! Connections and the one loop that serves them: everything that came is read, then everything that is to go is
//! written, one call to the kernel for each connection.
//!
//! An [`Actor`] decides what is sent. It is told of every answer and may send in the same breath; what it sends goes
//! out together with all the rest when nothing is left to read. There is one thread, no task and no lock, so that the
//! load costs little beside what it loads. A connection that is lost is opened again until the run ends.

use std::borrow::Cow;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};

use crate::grpc::{self, StreamId};
use crate::hpack::RequestHeaders;
use crate::redis::{self, Value};
use crate::socket::{Socket, Tls};
use crate::zookeeper;

/// What a caller knows a request by.
pub type Tag = u64;

/// Bytes read at once. A read that fills less of it has emptied the socket.
const READ_BYTES: usize = 256 << 10;
/// Sockets that are looked at in one turn.
const EVENTS_MAX: usize = 1024;
/// Between attempts to open a connection again.
const REOPEN_PAUSE: Duration = Duration::from_millis(10);
/// How long a server may take to take a connection, unless [`Access`] says otherwise.
const OPEN_LIMIT: Duration = Duration::from_secs(30);
/// How often ZooKeeper's sessions are kept, asked or not. Far below any timeout we ask for.
const PING_EVERY: Duration = Duration::from_secs(3);
/// The longest wait of the loop.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// How long a session of ZooKeeper outlives silence.
const SESSION_TIMEOUT_MS: i32 = 30_000;

/// Which protocol is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// etcd's v3, gRPC over HTTP/2 without TLS.
    Etcd,
    /// ZooKeeper's.
    Zookeeper,
}

/// What is spoken on a connection: a protocol that there are operations for, or Redis', of which there are only locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// etcd's v3, and our own API, which is gRPC too.
    Etcd,
    /// ZooKeeper's.
    Zookeeper,
    /// Redis'.
    Redis,
}

impl From<Protocol> for Language {
    fn from(protocol: Protocol) -> Language {
        match protocol {
            Protocol::Etcd => Language::Etcd,
            Protocol::Zookeeper => Language::Zookeeper,
        }
    }
}

/// How servers are reached, and as whom.
#[derive(Clone, Debug)]
pub struct Access {
    /// How connections are encrypted; nothing: they are not.
    pub tls: Option<Tls>,
    /// etcd: what every request shows of who sends it.
    pub token: Option<String>,
    /// How long a server may take to take a connection.
    pub patience: Duration,
}

impl Default for Access {
    /// Plain, as nobody.
    fn default() -> Access {
        Access { tls: None, token: None, patience: OPEN_LIMIT }
    }
}

/// How a call of gRPC ended; code 0 is success.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// gRPC's number.
    pub code: u32,
    /// The server's words.
    pub message: String,
}

/// What came back for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// etcd: a message of the call. Its end follows, or more messages.
    Message(Cow<'a, [u8]>),
    /// etcd: the call is over.
    End(Status),
    /// ZooKeeper: the answer.
    Reply {
        /// Zero is success.
        error: i32,
        /// What follows the header.
        body: &'a [u8],
    },
    /// Redis: the answer.
    Value(Value<'a>),
}

/// The server broke the protocol, or the connection broke; the text says how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) String);

/// What the front of the input was.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    /// Less than a whole frame.
    Incomplete,
    /// Nothing that concerns anybody.
    Taken { consumed: usize },
    /// Requests may be sent from here on.
    Opened { consumed: usize },
    /// An answer.
    Answered { consumed: usize, tag: Tag, answer: Answer<'a> },
    /// ZooKeeper: a watch fired.
    Event { consumed: usize, kind: i32, path: &'a [u8] },
}

/// Who decides what is sent.
pub trait Actor {
    /// An answer came.
    fn answered(&mut self, lines: &mut Lines, line: usize, tag: Tag, answer: Answer<'_>);

    /// ZooKeeper: a watch fired.
    fn event(&mut self, _lines: &mut Lines, _line: usize, _kind: i32, _path: &[u8]) {}

    /// A connection can be used.
    fn opened(&mut self, _lines: &mut Lines, _line: usize) {}

    /// A connection was lost, and with it the answers to `tags`. It is being opened again.
    fn lost(&mut self, lines: &mut Lines, line: usize, tags: &[Tag], why: &str);

    /// Called before each wait.
    fn turn(&mut self, lines: &mut Lines) -> Turn;
}

/// What the loop does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Waits for answers, until this moment at most.
    Wait(Option<Instant>),
    /// Ends.
    Done,
}

enum Wire {
    Etcd(Box<grpc::Connection>),
    Zookeeper(zookeeper::Connection),
    Redis(redis::Connection),
}

struct Line {
    address: SocketAddr,
    socket: Socket,
    wire: Wire,
    out: Vec<u8>,
    written: usize,
    /// The beginning of a frame whose end has not come.
    rest: Vec<u8>,
    open: bool,
    dirty: bool,
}

/// Connections to some servers.
pub struct Lines {
    poll: Poll,
    language: Language,
    access: Access,
    lines: Vec<Line>,
    dirty: Vec<usize>,
    reopen: Vec<(Instant, usize)>,
    scratch: Vec<u8>,
    now: Instant,
    pinged: Instant,
    bytes_read: u64,
}

impl Lines {
    /// Opens a connection to each of `addresses`, in their order, and waits until all can be used.
    pub fn open(language: impl Into<Language>, addresses: &[SocketAddr]) -> Result<Lines, String> {
        Lines::open_as(language, addresses, Access::default())
    }

    /// The same where not everybody may come.
    pub fn open_as(language: impl Into<Language>, addresses: &[SocketAddr], access: Access) -> Result<Lines, String> {
        let patience = access.patience;
        let mut all = Lines::start(language, addresses, access)?;
        let mut opening = Opening { until: all.now + patience, why: String::new() };
        all.run(&mut opening)?;
        if all.lines.iter().any(|line| !line.open) {
            return Err(format!("a connection was not open within {patience:?}: {}", opening.why));
        }
        Ok(all)
    }

    /// The same without waiting.
    pub(crate) fn start(
        language: impl Into<Language>,
        addresses: &[SocketAddr],
        access: Access,
    ) -> Result<Lines, String> {
        let language = language.into();
        let failed = |error: io::Error| format!("opening connections: {error}");
        let now = Instant::now();
        let poll = Poll::new().map_err(failed)?;
        let (lines, dirty, reopen) = (Vec::new(), Vec::new(), Vec::new());
        let scratch = vec![0; READ_BYTES];
        let mut all = Lines { poll, language, access, lines, dirty, reopen, scratch, now, pinged: now, bytes_read: 0 };
        for (at, address) in addresses.iter().enumerate() {
            let line = all.connect(*address, at).map_err(failed)?;
            all.lines.push(line);
        }
        Ok(all)
    }

    fn connect(&mut self, address: SocketAddr, at: usize) -> io::Result<Line> {
        let mut socket = Socket::open(address, self.access.tls.as_ref())?;
        self.poll.registry().register(socket.stream(), Token(at), Interest::READABLE | Interest::WRITABLE)?;
        let mut out = Vec::new();
        let wire = match self.language {
            Language::Etcd => {
                let headers = RequestHeaders::new(&address.to_string(), &self.access);
                Wire::Etcd(Box::new(grpc::Connection::new(headers, &mut out)))
            }
            Language::Zookeeper => Wire::Zookeeper(zookeeper::Connection::new(SESSION_TIMEOUT_MS, &mut out)),
            Language::Redis => Wire::Redis(redis::Connection::new(&mut out)),
        };
        Ok(Line { address, socket, wire, out, written: 0, rest: Vec::new(), open: false, dirty: false })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lines.len()
    }

    /// Whether a connection can be used.
    pub fn is_open(&self, line: usize) -> bool {
        self.lines[line].open
    }

    /// Where a connection goes.
    pub fn address(&self, line: usize) -> SocketAddr {
        self.lines[line].address
    }

    /// When what is being handled came in.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Bytes that came on all connections so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// etcd: asks once. The line must be open.
    pub fn call(&mut self, line: usize, tag: Tag, path: &'static str, message: impl FnOnce(&mut Vec<u8>)) {
        let Line { wire: Wire::Etcd(wire), out, .. } = &mut self.lines[line] else { return };
        wire.call(out, tag, path, message);
        self.mark(line);
    }

    /// etcd: begins a call of many messages. The line must be open.
    pub fn open_stream(&mut self, line: usize, tag: Tag, path: &'static str) -> Option<StreamId> {
        let Line { wire: Wire::Etcd(wire), out, .. } = &mut self.lines[line] else { return None };
        let stream = wire.open(out, tag, path);
        self.mark(line);
        Some(stream)
    }

    /// etcd: one more message of such a call.
    pub fn push(&mut self, line: usize, stream: StreamId, message: impl FnOnce(&mut Vec<u8>)) {
        let Line { wire: Wire::Etcd(wire), out, .. } = &mut self.lines[line] else { return };
        wire.push(out, stream, message);
        self.mark(line);
    }

    /// etcd: gives a call up.
    pub fn cancel(&mut self, line: usize, tag: Tag) {
        let Line { wire: Wire::Etcd(wire), out, .. } = &mut self.lines[line] else { return };
        wire.cancel(out, tag);
        self.mark(line);
    }

    /// ZooKeeper: asks. The line must be open.
    pub fn ask(&mut self, line: usize, tag: Tag, opcode: i32, body: impl FnOnce(&mut Vec<u8>)) {
        let Line { wire: Wire::Zookeeper(wire), out, .. } = &mut self.lines[line] else { return };
        wire.ask(out, tag, opcode, body);
        self.mark(line);
    }

    /// Redis: asks. The line must be open.
    pub fn command(&mut self, line: usize, tag: Tag, words: &[&[u8]]) {
        let Line { wire: Wire::Redis(wire), out, .. } = &mut self.lines[line] else { return };
        wire.command(out, tag, words);
        self.mark(line);
    }

    fn mark(&mut self, at: usize) {
        if !std::mem::replace(&mut self.lines[at].dirty, true) {
            self.dirty.push(at);
        }
    }

    /// Serves the connections until `actor` is done.
    pub fn run(&mut self, actor: &mut impl Actor) -> Result<(), String> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        loop {
            self.now = Instant::now();
            let Turn::Wait(until) = actor.turn(self) else { return Ok(()) };
            self.ping();
            self.reopen_due(actor);
            self.flush(actor);
            let wait = until.map_or(WAIT_MAX, |until| until.saturating_duration_since(self.now)).min(WAIT_MAX);
            let wait = if self.reopen.is_empty() { wait } else { wait.min(REOPEN_PAUSE) };
            match self.poll.poll(&mut events, Some(wait)) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(format!("waiting: {error}")),
                _ => {}
            }
            for event in &events {
                let at = event.token().0;
                if event.is_writable() {
                    self.mark(at);
                }
                if event.is_readable() || event.is_error() {
                    self.read(at, event.is_read_closed() || event.is_error(), actor);
                }
            }
        }
    }

    fn read(&mut self, at: usize, to_the_end: bool, actor: &mut impl Actor) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let broken = loop {
            let socket = &mut self.lines[at].socket;
            match socket.read(&mut scratch) {
                Ok(0) => break Some(Broken("the server closed the connection".to_string())),
                Ok(count) => {
                    let is_empty = count < scratch.len() && socket.tells_when_empty();
                    self.now = Instant::now();
                    self.bytes_read += count as u64;
                    if let Err(broken) = self.take(at, &scratch[..count], actor) {
                        break Some(broken);
                    }
                    if is_empty && !to_the_end {
                        break None;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Some(Broken(error.to_string())),
            }
        };
        self.scratch = scratch;
        if let Some(Broken(why)) = broken {
            self.lose(at, &why, actor);
        } else if self.lines[at].socket.wants_write() {
            self.mark(at);
        }
    }

    fn take(&mut self, at: usize, bytes: &[u8], actor: &mut impl Actor) -> Result<(), Broken> {
        if self.lines[at].rest.is_empty() {
            let used = self.parse(at, bytes, actor)?;
            self.lines[at].rest.extend_from_slice(&bytes[used..]);
        } else {
            let mut input = std::mem::take(&mut self.lines[at].rest);
            input.extend_from_slice(bytes);
            let used = self.parse(at, &input, actor)?;
            input.drain(..used);
            self.lines[at].rest = input;
        }
        Ok(())
    }

    fn parse(&mut self, at: usize, input: &[u8], actor: &mut impl Actor) -> Result<usize, Broken> {
        let mut used = 0;
        loop {
            let Line { wire, out, .. } = &mut self.lines[at];
            let step = match wire {
                Wire::Etcd(wire) => wire.step(&input[used..], out)?,
                Wire::Zookeeper(wire) => wire.step(&input[used..])?,
                Wire::Redis(wire) => wire.step(&input[used..])?,
            };
            if !out.is_empty() {
                self.mark(at);
            }
            used += match step {
                Step::Incomplete => return Ok(used),
                Step::Taken { consumed } => consumed,
                Step::Opened { consumed } => {
                    self.lines[at].open = true;
                    actor.opened(self, at);
                    consumed
                }
                Step::Answered { consumed, tag, answer } => {
                    actor.answered(self, at, tag, answer);
                    consumed
                }
                Step::Event { consumed, kind, path } => {
                    actor.event(self, at, kind, path);
                    consumed
                }
            };
        }
    }

    fn flush(&mut self, actor: &mut impl Actor) {
        for at in std::mem::take(&mut self.dirty) {
            let line = &mut self.lines[at];
            line.dirty = false;
            if let Err(error) = line.flush() {
                // One that was never up says so with every attempt.
                self.lose(at, &error.to_string(), actor);
            }
        }
    }

    fn lose(&mut self, at: usize, why: &str, actor: &mut impl Actor) {
        if self.reopen.iter().any(|(_, lost)| *lost == at) {
            return;
        }
        let line = &mut self.lines[at];
        let tags = match &line.wire {
            Wire::Etcd(wire) => wire.unanswered(),
            Wire::Zookeeper(wire) => wire.unanswered(),
            Wire::Redis(wire) => wire.unanswered(),
        };
        (line.open, line.written) = (false, 0);
        line.out.clear();
        line.rest.clear();
        self.reopen.push((Instant::now() + REOPEN_PAUSE, at));
        actor.lost(self, at, &tags, why);
    }

    fn reopen_due(&mut self, actor: &mut impl Actor) {
        let now = self.now;
        let due: Vec<usize> = self.reopen.iter().filter(|(when, _)| *when <= now).map(|(_, at)| *at).collect();
        self.reopen.retain(|(when, _)| *when > now);
        for at in due {
            match self.connect(self.lines[at].address, at) {
                Ok(line) => self.lines[at] = line,
                Err(error) => self.lose(at, &error.to_string(), actor),
            }
        }
    }

    /// Keeps ZooKeeper's sessions.
    fn ping(&mut self) {
        if self.language != Language::Zookeeper || self.now.duration_since(self.pinged) < PING_EVERY {
            return;
        }
        self.pinged = self.now;
        for at in 0..self.lines.len() {
            if let Line { wire: Wire::Zookeeper(wire), out, open: true, .. } = &mut self.lines[at] {
                wire.ping(out);
                self.mark(at);
            }
        }
    }
}

impl Drop for Lines {
    /// Sessions are ended, so that the server need not wait for them.
    fn drop(&mut self) {
        for line in &mut self.lines {
            if let Wire::Zookeeper(wire) = &mut line.wire {
                wire.close(&mut line.out);
                // A server that does not listen any more ends them by itself.
                let _ = line.flush();
            }
        }
    }
}

impl Line {
    fn flush(&mut self) -> io::Result<()> {
        loop {
            let rest = &self.out[self.written..];
            let sent = if rest.is_empty() { self.socket.push().map(|()| 0) } else { self.socket.write(rest) };
            match sent {
                Ok(_) if rest.is_empty() => break,
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Not connected yet, or no room: the kernel says when.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if !self.open {
            // Only here is it certain that there is a connection to set it on.
            self.socket.stream().set_nodelay(true)?;
        }
        self.out.clear();
        self.written = 0;
        Ok(())
    }
}

/// Waits until all are open.
struct Opening {
    until: Instant,
    why: String,
}

impl Actor for Opening {
    fn answered(&mut self, _: &mut Lines, _: usize, _: Tag, _: Answer<'_>) {}

    fn lost(&mut self, lines: &mut Lines, line: usize, _: &[Tag], why: &str) {
        self.why = format!("{}: {why}", lines.address(line));
    }

    fn turn(&mut self, lines: &mut Lines) -> Turn {
        let done = lines.lines.iter().all(|line| line.open) || lines.now >= self.until;
        if done { Turn::Done } else { Turn::Wait(Some(self.until)) }
    }
}
