//! The only file with sockets: takes connections from a listener that is bound already and answers on
//! them until told to stop.
//!
//! HTTP/2 and HTTP/1.1 share the port: gRPC needs the one, clients of the JSON gateway mostly speak the
//! other, and a connection tells by its first bytes which it is. What a request wants is `door`'s business.
//!
//! With TLS, a connection is nobody's until its handshake is done: so many may be at it ([`HANDSHAKES_MAX`]) for
//! so long ([`HANDSHAKE_TIMEOUT`]), later ones wait in the system's queue. Whoever speaks plain text to a TLS
//! port, or TLS to a plain one, is told so in the way of the protocol expected here, and closed.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use futures_util::StreamExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use tidelock_tls::{Accepted, Acceptor, Refusal, RefusalLog};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming};

use crate::authority::Mended;
use crate::door::Door;
use crate::{EtcdFace, FaceConfig};

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
/// connection, if the node was told to believe it (`client-cert-auth`). Requests that come through the JSON
/// gateway do not have it, as in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientName(pub Arc<str>);

/// Serves `face` on `listener` until `shutdown` resolves, with TLS if there is an acceptor for it. Then streams
/// are told that the server stopped, calls under way get [`crate::FaceConfig::drain`] to finish, and the
/// connections are closed.
pub async fn serve(
    listener: TcpListener,
    face: EtcdFace,
    tls: Option<Arc<Acceptor>>,
    shutdown: impl Future<Output = ()>,
) {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true)).with_keepalive(Some(TCP_KEEPALIVE));
    serve_incoming(incoming, face, tls, shutdown).await;
}

async fn serve_incoming(
    incoming: impl Stream<Item = io::Result<TcpStream>>,
    face: EtcdFace,
    tls: Option<Arc<Acceptor>>,
    shutdown: impl Future<Output = ()>,
) {
    let builder = connection_builder(face.config());
    let drain = face.config().drain;
    let door = Door::new(face.clone());
    let ending = GracefulShutdown::new();
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
                    if let Some((client, Accepted { stream, user })) = shaken.ok().and_then(|shaken| greeted(shaken, &refusals)) {
                        let client = (client, user.map(ClientName));
                        connections.spawn(to_its_end(ending.watch(serve_connection(&builder, stream, client, door.clone()))));
                    }
                    continue;
                }
            };
            match (connection, &tls) {
                (Ok(io), None) => {
                    let client = (io.connect_info(), None);
                    connections.spawn(to_its_end(ending.watch(serve_connection(&builder, io, client, door.clone()))));
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
    // Those who are not done by then are cut.
    let _ = tokio::time::timeout(drain, ending.shutdown()).await;
}

fn connection_builder(config: &FaceConfig) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(config.streams_per_connection)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(METADATA_BYTES_MAX)
        .keep_alive_interval(config.ping_after)
        .keep_alive_timeout(config.ping_timeout);
    builder
}

/// How a connection ended is its client's business.
async fn to_its_end(connection: impl Future) {
    let _ended = connection.await;
}

/// A handshake that is over: from where it came, and how it ended.
type Shaken = (TcpConnectInfo, Result<Accepted<TcpStream>, Refusal>);

async fn shake_hands(tls: Arc<Acceptor>, io: TcpStream) -> Shaken {
    let client = io.connect_info();
    let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(io)).await;
    (client, shaken.unwrap_or_else(|_| Err(Refusal::too_slow(HANDSHAKE_TIMEOUT))))
}

fn greeted((client, shaken): Shaken, refusals: &RefusalLog) -> Option<(TcpConnectInfo, Accepted<TcpStream>)> {
    match shaken {
        Ok(accepted) => Some((client, accepted)),
        Err(refusal) => {
            refusals.note(client.remote_addr(), &refusal);
            None
        }
    }
}

/// One connection, which ends by itself when its client goes or when it is told to.
fn serve_connection<IO>(
    builder: &Builder<TokioExecutor>,
    io: IO,
    (client, name): (TcpConnectInfo, Option<ClientName>),
    door: Door,
) -> impl hyper_util::server::graceful::GracefulConnection<Error: Send> + Send + 'static + use<IO>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(client.clone());
        if let Some(name) = &name {
            request.extensions_mut().insert(name.clone());
        }
        let answering = door.clone().answer(request.map(Body::new));
        async { Ok::<_, Infallible>(answering.await) }
    });
    builder.serve_connection_with_upgrades(TokioIo::new(Mended::new(io)), service).into_owned()
}
