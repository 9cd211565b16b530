//! One client's connection, from its first bytes to its last.
//!
//! Three things go on at once: reading packets into a bounded queue, carrying them out in order, sending what is in
//! the [`Outbox`]. Requests that wait together are carried out together: changes in one log entry, one after the
//! other; reads in one look at the store. So a client that pipelines gets its order and pays no round for each.

mod group;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tidelock_coordinator::Consistency;
use tidelock_model::{
    Answer, Caller, Command, Identity, LeaseId, Query, QueryAnswer, Revision, SessionAnswer, ZnodeCommand, ZnodeError,
    ZnodeFound, ZnodeOutcome, ZnodeQuery, ZnodeRead, ZnodeRequests,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use group::{Group, Read, TOGETHER_MAX, Write, within_limits};

use crate::Face;
use crate::figures::{Arrived, ClientFigures};
use crate::outbox::{Outbox, UNSENT_PAUSE};
use crate::read_only::{ReadingSession, is_refused};
use crate::sasl::Negotiation;
use crate::sessions::NoSession;
use crate::translate::{Step, read_reply, step, write_reply};
use crate::watch_table::ConnectionId;
use crate::watches::{Early, Wish};
use crate::wire::{
    ConnectRequest, ConnectResponse, ErrorCode, Malformed, Opening, PASSWORD_LENGTH, Reply, Request, frame_length,
    opening, parse_request, take_frame,
};

/// Packets read ahead of what is carried out; ZooKeeper's limit for all connections together.
const READ_AHEAD: usize = 1000;
/// Bytes of packets read ahead, from which on no more are read.
const READ_AHEAD_BYTES: u32 = 4 << 20;
/// How long a new connection may take to say what it wants.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an operator may take to receive an answer.
const WORD_TIMEOUT: Duration = Duration::from_secs(30);
/// How much is read from a socket at a time.
const READ_BYTES: usize = 16 * 1024;
/// How long the last words may take to a client that is being left.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

/// A client with its session.
pub(crate) struct Connection {
    pub(crate) face: Arc<Face>,
    pub(crate) id: ConnectionId,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) session: SessionAnswer,
    pub(crate) identities: Vec<Identity>,
    /// Only reads are answered: there is no majority.
    reads_only: bool,
    pub(crate) negotiation: Negotiation,
    heard: Arc<AtomicBool>,
    figures: Arc<ClientFigures>,
}

/// Replies, and to which packets.
type Replies = Vec<(i32, Reply)>;

/// The connection ends: it was told so, or there is nothing more to say.
pub(crate) struct Ended;

/// A packet: whom to answer, what was asked, when, and its part of what may be read ahead.
type Asked = (i32, Result<Request, ErrorCode>, Arrived, OwnedSemaphorePermit);

/// Serves a client to its end. `arriving` is its connection, once that is secured, and who it is known to be by then.
pub(crate) async fn serve<IO>(
    face: Arc<Face>,
    arriving: impl Future<Output = Option<(IO, Vec<Identity>)>>,
    peer: SocketAddr,
) where
    IO: AsyncRead + AsyncWrite + Send + 'static,
{
    let address = peer.ip();
    if !face.sessions.admit(address, face.config.connections_per_address) {
        tracing::warn!(%address, "too many connections from one address; see maxClientCnxns");
        face.counts.rejected.fetch_add(1, Ordering::Relaxed);
        return;
    }
    // However this ends, also by being dropped, it is counted out.
    face.counts.connections.fetch_add(1, Ordering::Relaxed);
    let figures = face.clients.enter(ConnectionId(CONNECTIONS.fetch_add(1, Ordering::Relaxed)), peer);
    let _counted = Counted { face: Arc::clone(&face), address, figures: Arc::clone(&figures) };
    if let Some((io, known)) = arriving.await {
        let address = Identity { scheme: "ip".to_owned(), id: address.to_string() };
        greet_and_serve(face, io, &figures, [vec![address], known].concat()).await;
    }
}

struct Counted {
    face: Arc<Face>,
    address: IpAddr,
    figures: Arc<ClientFigures>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.face.counts.connections.fetch_sub(1, Ordering::Relaxed);
        self.face.clients.leave(&self.figures, &self.face.counts);
        self.face.sessions.dismiss(self.address);
    }
}

async fn greet_and_serve<IO>(face: Arc<Face>, io: IO, figures: &Arc<ClientFigures>, identities: Vec<Identity>)
where
    IO: AsyncRead + AsyncWrite + Send + 'static,
{
    let (mut reading, mut writing) = tokio::io::split(io);
    let outside = Arc::clone(&face.outside);
    let opened = outside.within(GREETING_TIMEOUT, open(&face, &mut reading)).await;
    let request = match opened {
        Some(Some(Opened::Request(request))) => request,
        Some(Some(Opened::Word(word))) => {
            figures.greets(&face.counts, 4);
            word_for_word(&face, word, &mut reading, &mut writing).await;
            return;
        }
        Some(None) | None => return,
    };
    let outbox = Arc::new(Outbox::default());
    let connection = match greet(&face, &request, &outbox, figures, identities).await {
        Ok(connection) => Some(connection),
        Err(NoSession::Over) => {
            outbox.raw(|out| ConnectResponse::session_over(&request).write(out));
            outbox.finish();
            None
        }
        Err(NoSession::Unavailable) => return,
    };
    let sending = send(&face, &outbox, figures, &mut writing);
    match connection {
        None => sending.await,
        Some(mut connection) => {
            let (asked, mut to_do) = mpsc::channel(READ_AHEAD);
            let heard = Arc::clone(&connection.heard);
            let reading = read(&face, &mut reading, &asked, (&heard, figures));
            let answering = async {
                connection.answer_all(&mut to_do).await;
                connection.outbox.finish();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                // None of them can starve another, and the order must not be left to chance (see `outside`).
                biased;
                () = sending => {}
                () = reading => {}
                () = answering => {}
            }
            connection.leave().await;
        }
    }
    let _ = outside.within(FAREWELL_TIMEOUT, writing.shutdown()).await;
}

/// Answers an operator.
async fn word_for_word(
    face: &Face,
    word: crate::wire::FourLetterWord,
    reading: &mut (impl AsyncRead + Unpin),
    writing: &mut (impl AsyncWrite + Unpin),
) {
    let argument = face.outside.within(GREETING_TIMEOUT, face.word_argument(word, reading)).await;
    let Some(Some(argument)) = argument else { return };
    // Boxed, so that no connection holds room for what only operators ask.
    let answer = Box::pin(face.answer_word(word, argument)).await;
    // Who does not take the answer must not hold it for ever.
    let telling = async {
        face.counts.sent.fetch_add(1, Ordering::Relaxed);
        writing.write_all(answer.as_bytes()).await?;
        writing.shutdown().await
    };
    let _ = face.outside.within(WORD_TIMEOUT, telling).await;
}

/// What a connection begins with.
enum Opened {
    Word(crate::wire::FourLetterWord),
    Request(ConnectRequest),
}

async fn open(face: &Face, reading: &mut (impl AsyncRead + Unpin)) -> Option<Opened> {
    let mut first = [0; 4];
    reading.read_exact(&mut first).await.ok()?;
    match opening(first, face.config.max_frame).ok()? {
        Opening::Word(word) => Some(Opened::Word(word)),
        Opening::Frame(length) => {
            let mut frame = vec![0; length];
            reading.read_exact(&mut frame).await.ok()?;
            ConnectRequest::parse(Bytes::from(frame)).ok().map(Opened::Request)
        }
    }
}

async fn greet(
    face: &Arc<Face>,
    request: &ConnectRequest,
    outbox: &Arc<Outbox>,
    figures: &Arc<ClientFigures>,
    identities: Vec<Identity>,
) -> Result<Connection, NoSession> {
    let bytes = 32 + request.password.len() + usize::from(request.read_only.is_some());
    let arrived = figures.greets(&face.counts, bytes);
    let wanted = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    let timeout = wanted.clamp(face.config.session_timeout_min, face.config.session_timeout_max);
    // What the client has seen, it must not unsee. Waiting a moment beats sending it away.
    let seen = Revision(u64::try_from(request.last_zxid_seen).unwrap_or(0));
    let patience = (timeout / 6).min(Duration::from_secs(1));
    let caught_up = face.outside.within(patience, face.watches.told_up_to(seen)).await;
    caught_up.ok_or(NoSession::Unavailable)?;

    let asked = face.outside.now();
    let opened = tokio::select! {
        biased;
        () = face.read_only.begins() => None,
        opened = open_session(face, request, timeout) => Some(opened?),
    };
    let id = figures.id;
    let reads_only = opened.is_none();
    let (session, password, heard) = match opened {
        Some((session, password)) => (session, password, face.sessions.hold(&session, id, outbox, asked)),
        None if request.read_only == Some(true) => {
            let ReadingSession { session, password } = face.reading_session(request, timeout)?;
            (session, password, face.read_only.hold(id, outbox, timeout))
        }
        None => return Err(NoSession::Unavailable),
    };
    face.watches.with(|table, told| {
        table.connect(id, Arc::clone(outbox), identities.clone());
        outbox.begin_at(told);
    });
    let response = ConnectResponse {
        timeout_ms: i32::try_from(session.timeout_ms).unwrap_or(i32::MAX),
        session_id: session.session.0,
        password,
        read_only: request.read_only.map(|_| reads_only),
    };
    outbox.raw(|out| response.write(out));
    figures.opens(&face.counts, arrived, session.session.0, session.timeout_ms);
    Ok(Connection {
        face: Arc::clone(face),
        id,
        outbox: Arc::clone(outbox),
        session,
        identities,
        reads_only,
        negotiation: Negotiation::default(),
        heard,
        figures: Arc::clone(figures),
    })
}

/// Opens a session, or takes one over; with its password.
async fn open_session(
    face: &Face,
    request: &ConnectRequest,
    timeout: Duration,
) -> Result<(SessionAnswer, [u8; PASSWORD_LENGTH]), NoSession> {
    let session = if request.session_id == 0 {
        face.sessions.open(timeout).await?
    } else {
        face.sessions.attach(LeaseId(request.session_id), &request.password, timeout).await?
    };
    Ok((session, face.sessions.password(session.session).await?))
}

/// Sends until the end is told or the client is gone.
async fn send(face: &Face, outbox: &Outbox, figures: &ClientFigures, writing: &mut (impl AsyncWrite + Unpin)) {
    let mut sent = Vec::new();
    while let Some(bytes) = outbox.next(sent).await {
        // Before it is sent, so that nobody who has an answer finds it uncounted.
        figures.sent(&face.counts, outbox.take_packets(), bytes.len());
        let written = async { writing.write_all(&bytes).await.is_ok() && writing.flush().await.is_ok() };
        // A client that takes nothing would keep us here for ever.
        tokio::select! {
            written = written => if !written { return },
            () = outbox.is_cut() => return,
        }
        sent = bytes;
    }
}

/// Reads packets until the client is gone or says something that ends the connection.
async fn read(
    face: &Face,
    reading: &mut (impl AsyncRead + Unpin),
    asked: &mpsc::Sender<Asked>,
    (heard, figures): (&AtomicBool, &ClientFigures),
) {
    let max_frame = face.config.max_frame;
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    let room = Arc::new(Semaphore::new(READ_AHEAD_BYTES as usize));
    loop {
        match take_frame(&mut buffer, max_frame) {
            Ok(Some(frame)) => {
                heard.store(true, Ordering::Relaxed);
                let arrived = figures.heard(&face.counts, &frame);
                let bytes = u32::try_from(frame.len()).unwrap_or(READ_AHEAD_BYTES).min(READ_AHEAD_BYTES);
                let Ok(taken) = Arc::clone(&room).acquire_many_owned(bytes).await else { return };
                let packet = match parse_request(frame) {
                    Ok((xid, request)) => (xid, Ok(request), arrived, taken),
                    Err(Malformed::Record { xid, .. }) => (xid, Err(ErrorCode::MarshallingError), arrived, taken),
                    Err(Malformed::Fatal { .. }) => return,
                };
                if asked.send(packet).await.is_err() {
                    return;
                }
            }
            Ok(None) => {
                // Room for what was announced, and never for more than may come.
                let announced = buffer.first_chunk().and_then(|prefix| frame_length(*prefix, max_frame).ok());
                buffer.reserve(announced.map_or(READ_BYTES, |length| (length + 4 - buffer.len()).max(READ_BYTES)));
                match reading.read_buf(&mut buffer).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
            }
            Err(_) => return,
        }
    }
}

impl Connection {
    async fn answer_all(&mut self, to_do: &mut mpsc::Receiver<Asked>) {
        let (mut waiting, mut arrivals) = (Vec::new(), Vec::new());
        while to_do.recv_many(&mut waiting, TOGETHER_MAX).await > 0 {
            let mut group = Group::default();
            for (xid, request, arrived, _read_ahead) in waiting.drain(..) {
                arrivals.push(arrived);
                if self.enforce_authentication(xid, &request).is_err() {
                    return;
                }
                let step = match request {
                    Ok(request) if self.reads_only && is_refused(&request, self.session.session) => {
                        Step::Answer(Reply::Error(ErrorCode::NotReadOnly))
                    }
                    Ok(request) => within_limits(step(request, self.session.session)),
                    Err(error) => Step::Answer(Reply::Error(error)),
                };
                if self.join(&mut group, xid, step).await.is_err() {
                    return;
                }
                self.figures.answered(&self.face.counts, &mut arrivals, group.len(), &self.outbox);
            }
            if self.carry_out(std::mem::take(&mut group)).await.is_err() {
                return;
            }
            self.figures.answered(&self.face.counts, &mut arrivals, 0, &self.outbox);
            self.outbox.has_room().await;
        }
    }

    /// Adds a step to those that go together, after carrying them out if it is of another kind.
    async fn join(&mut self, group: &mut Group, xid: i32, step: Step) -> Result<(), Ended> {
        if !group.takes(&step) {
            self.carry_out(std::mem::take(group)).await?;
        }
        match step {
            Step::Write(request, shape) => group.writes.push(Write { xid, request, shape }),
            Step::Read(reads, shape) => group.reads.push(Read { xid, reads, shape }),
            Step::Answer(reply) => self.outbox.plain(xid, &reply),
            Step::Other(request) => self.other(xid, request).await?,
        }
        Ok(())
    }

    async fn carry_out(&self, group: Group) -> Result<(), Ended> {
        if !group.writes.is_empty() {
            self.write(group.writes).await?;
        }
        if !group.reads.is_empty() {
            self.read(group.reads).await?;
        }
        Ok(())
    }

    async fn write(&self, writes: Vec<Write>) -> Result<(), Ended> {
        let (mut requests, mut shapes) = (Vec::new(), Vec::new());
        for Write { xid, request, shape } in writes {
            requests.push(request);
            shapes.push((xid, shape));
        }
        let requests = ZnodeRequests {
            session: self.session.session,
            generation: self.session.generation,
            identities: self.identities.clone(),
            requests,
        };
        let command = if self.face.config.enforce_quota {
            ZnodeCommand::RequestsWithinQuotas(requests)
        } else {
            ZnodeCommand::Requests(requests)
        };
        let outcome = self.face.coordinator.propose(Caller::Anonymous, Command::Znode(command), None).await;
        // Without an answer nobody knows what was done; a lost connection is how clients are told that.
        let outcome = outcome.map_err(|error| {
            tracing::debug!(%error, "a connection ends without an answer");
            Ended
        })?;
        let outcomes: Vec<ZnodeOutcome> = match outcome.result {
            Ok(Answer::Znodes(outcomes)) => outcomes,
            Ok(_) => return Err(Ended),
            Err(refusal) => {
                tracing::warn!(%refusal, "changes to znodes were refused");
                for (xid, _) in shapes {
                    self.outbox.plain(xid, &Reply::Error(ErrorCode::SystemError));
                }
                return Ok(());
            }
        };
        // They were carried out in order, so the last shows all that any of them shows.
        if let Some(last) = outcomes.last() {
            self.face.watches.told_up_to(last.revision).await;
        }
        let is_over = |result| matches!(result, &Err(ZnodeError::SessionExpired | ZnodeError::SessionMoved));
        let over = outcomes.iter().position(|outcome| is_over(&outcome.result));
        let told = over.map_or(outcomes.len(), |first| first + 1);
        self.outbox.outcomes(outcomes.into_iter().zip(shapes).take(told).map(|(outcome, (xid, shape))| {
            let reply = write_reply(outcome.result, &shape);
            (xid, outcome.revision, reply)
        }));
        if over.is_some() { Err(Ended) } else { Ok(()) }
    }

    async fn read(&self, reads: Vec<Read>) -> Result<(), Ended> {
        let watches = &self.face.watches;
        watches.begin(self.id, reads.iter().flat_map(|read| &read.shape.wishes).flatten());
        let mut rest = &reads[..];
        // A sync is a true barrier: what was acknowledged anywhere before is seen by whatever this client asks next.
        // What is here once stays here, so only the first look has to wait for it.
        let is_behind_sync = reads.first().is_some_and(Read::is_sync) && !tidelock_model::planted!(SyncWithoutBarrier);
        let mut consistency = if is_behind_sync { Consistency::Linearizable } else { Consistency::Local };
        while !rest.is_empty() {
            let all = rest.iter().flat_map(|read| read.reads.iter().cloned()).collect();
            let (at, found) = self.look(all, consistency).await?;
            consistency = Consistency::Local;
            let (replies, granted) = answers(rest, found);
            let sent = replies.iter().map(|(xid, reply)| (*xid, reply));
            match watches.reply(self.id, &self.outbox, at, sent, granted.into_iter()) {
                Ok(()) => {
                    rest = &rest[replies.len()..];
                    self.outbox.has_room().await;
                }
                Err(Early::Behind) => watches.told_up_to(at).await,
                Err(Early::Overtaken) => {}
            }
        }
        Ok(())
    }

    /// Reads of one moment, and which that was.
    pub(crate) async fn look(
        &self,
        reads: Vec<ZnodeRead>,
        consistency: Consistency,
    ) -> Result<(Revision, Vec<Result<ZnodeFound, ZnodeError>>), Ended> {
        let query = Query::Znodes(ZnodeQuery { identities: self.identities.clone(), reads });
        match self.face.coordinator.read(Caller::Anonymous, query, consistency).await {
            Ok(QueryAnswer::Znodes { revision, found }) => Ok((revision, found)),
            Ok(_) | Err(_) => Err(Ended),
        }
    }

    async fn leave(&self) {
        self.face.sessions.release(self.session.session, self.id);
        self.face.read_only.release(self.id);
        while self.face.watches.with(|table, _| table.disconnect_some(self.id)) {
            tokio::task::yield_now().await;
        }
    }
}

/// The replies to as many reads as may wait to be sent together, at least one, and which of their watches count.
/// What is left over is read again later: many small requests can ask for more than fits into memory.
fn answers(reads: &[Read], found: Vec<Result<ZnodeFound, ZnodeError>>) -> (Replies, Vec<(&Wish, bool)>) {
    let (mut replies, mut granted) = (Vec::new(), Vec::new());
    let (mut found, mut bytes) = (found.into_iter(), 0);
    for read in reads {
        if bytes > UNSENT_PAUSE {
            break;
        }
        let here: Vec<_> = found.by_ref().take(read.reads.len()).collect();
        let is_whole = here.len() == read.reads.len();
        if !is_whole && !replies.is_empty() {
            break;
        }
        bytes += here.iter().flatten().map(ZnodeFound::bytes).sum::<usize>();
        let (reply, counts) = if is_whole {
            read_reply(here, &read.shape)
        } else {
            // Alone it is more than one reply can hold.
            (Reply::Error(ErrorCode::MarshallingError), vec![false; read.reads.len()])
        };
        replies.push((read.xid, reply));
        let wished = read.shape.wishes.iter().zip(counts);
        granted.extend(wished.filter_map(|(wish, counts)| Some((wish.as_ref()?, counts))));
    }
    (replies, granted)
}
