//! The only file with sockets: takes connections from a listener that is bound already, and runs what the face
//! needs beside them until told to stop.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::ZookeeperFace;
use crate::connection;

/// How long to wait after a connection could not be taken: mostly there are too many, and trying again at
/// once would only burn time.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Serves `face` on `listener` until `shutdown` resolves; then connections are closed.
pub async fn serve(listener: TcpListener, face: ZookeeperFace, shutdown: impl Future<Output = ()>) {
    let shared = face.shared;
    // Dropped at the end, and with it everything that still goes on.
    let mut tasks = JoinSet::new();
    let (watches, coordinator) = (Arc::clone(&shared.watches), Arc::clone(&shared.coordinator));
    let sessions = Arc::clone(&shared.sessions);
    tasks.spawn(async move { watches.follow(coordinator, sessions).await });
    let renewing = Arc::clone(&shared);
    tasks.spawn(async move { renewing.sessions.renew(renewing.config.tick / 4).await });
    let reaping = Arc::clone(&shared);
    tasks.spawn(async move { reaping.reap().await });
    let looking = Arc::clone(&shared);
    tasks.spawn(async move { looking.watch_for_leader().await });
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => return,
            Some(_ended) = tasks.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    // Small packets must not wait for each other; a connection that cannot be set up ends anyway.
                    let _ = stream.set_nodelay(true);
                    tasks.spawn(connection::serve(Arc::clone(&shared), stream, address));
                }
                Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
            },
        }
    }
}
