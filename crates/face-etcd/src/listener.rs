//! The only file with sockets: takes connections from a listener that is bound already and answers on
//! them until told to stop.

use std::future::Future;

use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::EtcdFace;

/// How much of one request or answer may be on its way unacknowledged. Above the 64 KiB that HTTP/2
/// starts with, so that a large value does not wait for a round trip every 64 KiB.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;

/// The same for all streams of a connection together.
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// Most bytes of metadata with one request; tokens are the largest thing in it.
const METADATA_BYTES_MAX: u32 = 64 * 1024;

/// After how long a silent TCP connection is probed.
const TCP_KEEPALIVE: std::time::Duration = std::time::Duration::from_secs(60);

/// Serves `face` on `listener` until `shutdown` resolves. Then streams are told that the server stopped,
/// calls under way get [`crate::FaceConfig::drain`] to finish, and the connections are closed.
pub async fn serve(
    listener: TcpListener,
    face: EtcdFace,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true)).with_keepalive(Some(TCP_KEEPALIVE));
    let config = face.config();
    let drain = config.drain;
    let server = Server::builder()
        .max_concurrent_streams(config.streams_per_connection)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_max_header_list_size(METADATA_BYTES_MAX)
        .http2_keepalive_interval(Some(config.ping_after))
        .http2_keepalive_timeout(Some(config.ping_timeout));

    let (stopped, mut stop_seen) = tokio::sync::oneshot::channel();
    let streams = face.clone();
    let shutdown = async move {
        shutdown.await;
        streams.stop_streams();
        // The receiver outlives this future: both are dropped when `serve` returns.
        let _ = stopped.send(());
    };
    let serving = server.serve_with_incoming_shutdown(face, incoming, shutdown);
    let deadline = async move {
        if (&mut stop_seen).await.is_err() {
            return std::future::pending().await;
        }
        tokio::time::sleep(drain).await;
    };
    tokio::select! {
        result = serving => result,
        () = deadline => Ok(()),
    }
}
