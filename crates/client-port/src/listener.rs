//! The only file with sockets: takes connections from a listener that is bound already and answers on
//! them until told to stop.
//!
//! HTTP/2 and HTTP/1.1 share the port: gRPC needs the one, clients of the JSON gateway mostly speak the
//! other, and a connection tells by its first bytes which it is. What a request wants is the [`Face`]'s business.
//!
//! With TLS, a connection is nobody's until its handshake is done: so many may be at it ([`HANDSHAKES_MAX`]) for
//! so long ([`HANDSHAKE_TIMEOUT`]), later ones wait in the system's queue. Whoever speaks plain text to a TLS
//! port, or TLS to a plain one, is told so in the way of the protocol expected here, and closed.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use futures_util::StreamExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tidelock_http2::serve::{Keeping, Service, Serving};
use tidelock_tls::{Accepted, Acceptor, Refusal, RefusalLog};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming};

use crate::first_bytes::{Resumed, speaks_http2};

/// How much of one request or answer may be on its way unacknowledged. Above the 64 KiB that HTTP/2
/// starts with, so that a large value does not wait for a round trip every 64 KiB.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;

/// The same for all streams of a connection together.
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// Most bytes of metadata with one request; tokens are the largest thing in it.
const METADATA_BYTES_MAX: u32 = 64 * 1024;

/// How long an HTTP/1.1 client may take over the head of a request, and stay silent between two. etcd's.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// After how long a silent TCP connection is probed.
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);

/// How long to wait after a connection could not be taken: mostly there are too many, and trying again at
/// once would only burn time.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Most TLS handshakes under way at a listener. One costs some ten kilobytes and a millisecond of computing.
const HANDSHAKES_MAX: usize = 256;

/// How long a TLS handshake may take: a few round trips on the slowest line.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Who a client is, by the common name of the certificate it showed: an extension of every request on its
/// connection, if the node was told to believe it (`client-cert-auth`). Whether it counts is the face's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientName(pub Arc<str>);

/// A protocol at the client port. Cloning is cheap; every clone is the same face.
pub trait Face: Clone + Send + Sync + 'static {
    /// What answers on one HTTP/2 connection.
    type Connection: Service;

    /// Takes an HTTP/2 connection, of a client that showed a certificate with this name, if any.
    fn connection(&self, name: Option<ClientName>) -> Self::Connection;

    /// Answers a request that came over HTTP/1.1. The name is among its extensions.
    fn answer(self, request: Request<Body>) -> impl Future<Output = Response<Body>> + Send;

    /// Ends all streams, now and from now on.
    fn stop_streams(&self);

    /// What a connection may have.
    fn allowance(&self) -> Allowance;
}

/// What the connections of a face may have.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// Most calls and streams at a time on one connection.
    pub streams: u32,
    /// How long a connection may be silent before it is pinged.
    pub ping_after: Duration,
    /// How long the answer to a ping may take.
    pub ping_timeout: Duration,
    /// How long calls under way are given to finish when the face stops.
    pub drain: Duration,
}

/// Serves `face` on `listener` until `shutdown` resolves, with TLS if there is an acceptor for it. Then streams
/// are told that the server stopped, calls under way get [`Allowance::drain`] to finish, and the
/// connections are closed.
pub async fn serve(
    listener: TcpListener,
    face: impl Face,
    tls: Option<Arc<Acceptor>>,
    shutdown: impl Future<Output = ()>,
) {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true)).with_keepalive(Some(TCP_KEEPALIVE));
    serve_incoming(incoming, face, tls, shutdown).await;
}

async fn serve_incoming(
    incoming: impl Stream<Item = io::Result<TcpStream>>,
    face: impl Face,
    tls: Option<Arc<Acceptor>>,
    shutdown: impl Future<Output = ()>,
) {
    let drain = face.allowance().drain;
    let welcome = Welcome::new(&face);
    // Dropped at the end, and with it whatever did not finish in time.
    let mut connections = JoinSet::new();
    let refusals = RefusalLog::default();
    {
        // Dropped at the end of the block: nobody waits for those who have not even shown who they are.
        let mut handshakes = JoinSet::new();
        let mut incoming = pin!(incoming);
        let mut shutdown = pin!(shutdown);
        loop {
            let connection = tokio::select! {
                () = &mut shutdown => break,
                Some(connection) = incoming.next(), if handshakes.len() < HANDSHAKES_MAX => connection,
                Some(_ended) = connections.join_next(), if !connections.is_empty() => continue,
                Some(shaken) = handshakes.join_next(), if !handshakes.is_empty() => {
                    if let Some(Accepted { stream, user }) = shaken.ok().and_then(|shaken| greeted(shaken, &refusals)) {
                        connections.spawn(welcome.clone().serve_connection(stream, user.map(ClientName)));
                    }
                    continue;
                }
            };
            match (connection, &tls) {
                (Ok(io), None) => {
                    connections.spawn(welcome.clone().serve_connection(io, None));
                }
                (Ok(io), Some(tls)) => {
                    handshakes.spawn(shake_hands(Arc::clone(tls), io));
                }
                (Err(_), _) => tokio::time::sleep(ACCEPT_RETRY).await,
            }
        }
        // The listener closes here: a client that comes now is refused and goes elsewhere.
    }
    face.stop_streams();
    welcome.ending.send_replace(true);
    // Those who are not done by then are cut.
    let all_ended = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(drain, all_ended).await;
}

/// A handshake that is over: from where it came, and how it ended.
type Shaken = (TcpConnectInfo, Result<Accepted<TcpStream>, Refusal>);

async fn shake_hands(tls: Arc<Acceptor>, io: TcpStream) -> Shaken {
    let client = io.connect_info();
    let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(io)).await;
    (client, shaken.unwrap_or_else(|_| Err(Refusal::too_slow(HANDSHAKE_TIMEOUT))))
}

fn greeted((client, shaken): Shaken, refusals: &RefusalLog) -> Option<Accepted<TcpStream>> {
    match shaken {
        Ok(accepted) => Some(accepted),
        Err(refusal) => {
            refusals.note(client.remote_addr(), &refusal);
            None
        }
    }
}

/// What every connection needs.
#[derive(Clone)]
struct Welcome<F> {
    face: F,
    keeping: Keeping,
    http1: http1::Builder,
    /// Set when connections shall come to their ends.
    ending: watch::Sender<bool>,
}

impl<F: Face> Welcome<F> {
    fn new(face: &F) -> Welcome<F> {
        let mut http1 = http1::Builder::new();
        http1.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
        Welcome { face: face.clone(), keeping: keeping(face.allowance()), http1, ending: watch::Sender::new(false) }
    }

    /// One connection, which ends by itself when its client goes, or when all shall. How it ends is its client's
    /// business.
    async fn serve_connection<IO>(self, mut io: IO, name: Option<ClientName>)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut ending = self.ending.subscribe();
        let first_bytes = tokio::select! {
            first_bytes = tokio::time::timeout(HEAD_TIMEOUT, speaks_http2(&mut io)) => first_bytes,
            _ = ending.wait_for(|ending| *ending) => return,
        };
        let Ok(Ok((is_http2, read))) = first_bytes else { return };
        if is_http2 {
            let client = self.face.connection(name);
            let mut serving = pin!(Serving::new(io, read, Arc::new(client), self.keeping));
            // Looked at by every turn of every connection: one place in memory for all of them.
            let news = self.ending.subscribe();
            let mut goodbye = pin!(ending.wait_for(|ending| *ending));
            let (mut is_first, mut is_told) = (true, false);
            let serving = poll_fn(|cx| {
                let may_end = std::mem::take(&mut is_first) || news.has_changed().unwrap_or(true);
                if may_end && !is_told && goodbye.as_mut().poll(cx).is_ready() {
                    is_told = true;
                    serving.as_mut().say_goodbye();
                }
                serving.as_mut().poll(cx)
            });
            // It keeps its turns short by itself.
            let _ended = tokio::task::unconstrained(serving).await;
        } else {
            let face = self.face;
            let service = service_fn(move |mut request: Request<Incoming>| {
                if let Some(name) = &name {
                    request.extensions_mut().insert(name.clone());
                }
                let answering = face.clone().answer(request.map(Body::new));
                async { Ok::<_, Infallible>(answering.await) }
            });
            let io = TokioIo::new(Resumed { read, io });
            let mut serving = pin!(self.http1.serve_connection(io, service).with_upgrades());
            tokio::select! {
                _ended = &mut serving => return,
                _ = ending.wait_for(|ending| *ending) => serving.as_mut().graceful_shutdown(),
            }
            let _ended = serving.await;
        }
    }
}

fn keeping(allowance: Allowance) -> Keeping {
    let limits = tidelock_http2::Limits {
        streams: allowance.streams,
        stream_window: STREAM_WINDOW_BYTES,
        connection_window: CONNECTION_WINDOW_BYTES,
        head_bytes: METADATA_BYTES_MAX,
    };
    Keeping { limits, ping_after: allowance.ping_after, ping_timeout: allowance.ping_timeout }
}
