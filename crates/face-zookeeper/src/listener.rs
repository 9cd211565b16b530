//! The only file with sockets: takes connections from ports that are open already, and runs what the face
//! needs beside them until told to stop.
//!
//! With TLS, a connection is nobody's until its handshake is done: so many may be at it at a port
//! ([`HANDSHAKES_MAX`]) for so long ([`HANDSHAKE_TIMEOUT`]), later ones wait in the system's queue. One address has no
//! more of them than it may have connections.

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use tidelock_model::Identity;
use tidelock_tls::{Acceptor, Refusal, RefusalLog, SecureStream, distinguished_name};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::connection;
use crate::{Face, ZookeeperFace};

/// How long to wait after a connection could not be taken: mostly there are too many, and trying again at
/// once would only burn time.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Most TLS handshakes under way at a port. One costs some ten kilobytes and a millisecond of computing.
const HANDSHAKES_MAX: usize = 256;
/// How long a TLS handshake may take: a few round trips on the slowest line.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// An open port.
#[derive(Debug)]
pub struct Port {
    /// Bound already.
    pub listener: TcpListener,
    /// What secures its connections; `None`: nothing.
    pub tls: Option<Arc<Acceptor>>,
}

/// Serves `face` on all of `ports` until `shutdown` resolves; then connections are closed.
pub async fn serve(ports: Vec<Port>, face: ZookeeperFace, shutdown: impl Future<Output = ()>) {
    // Dropped at the end, and with it everything that still goes on.
    let mut tasks = JoinSet::new();
    for chore in face.chores() {
        tasks.spawn(chore);
    }
    for port in ports {
        tasks.spawn(take_connections(Arc::clone(&face.shared), port));
    }
    shutdown.await;
}

/// Takes connections, and serves them, until it is dropped.
async fn take_connections(face: Arc<Face>, port: Port) {
    let mut connections = JoinSet::new();
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    let refusals = Arc::new(RefusalLog::default());
    loop {
        let place = match &port.tls {
            Some(_) => Arc::clone(&handshakes).acquire_owned().await.ok(),
            None => None,
        };
        let accepted = tokio::select! {
            Some(_ended) = connections.join_next() => continue,
            accepted = port.listener.accept() => accepted,
        };
        let Ok((stream, address)) = accepted else {
            tokio::time::sleep(ACCEPT_RETRY).await;
            continue;
        };
        // Small packets must not wait for each other; a connection that cannot be set up ends anyway.
        let _ = stream.set_nodelay(true);
        match &port.tls {
            None => {
                let arriving = ready(Some((stream, Vec::new())));
                connections.spawn(connection::serve(Arc::clone(&face), arriving, address));
            }
            Some(tls) => {
                let arriving = shake_hands(Arc::clone(&face), Arc::clone(tls), stream, place, Arc::clone(&refusals));
                connections.spawn(connection::serve(Arc::clone(&face), arriving, address));
            }
        }
    }
}

/// A connection inside TLS, and who its client is by the certificate it showed.
async fn shake_hands(
    face: Arc<Face>,
    tls: Arc<Acceptor>,
    stream: TcpStream,
    place: Option<OwnedSemaphorePermit>,
    refusals: Arc<RefusalLog>,
) -> Option<(SecureStream<TcpStream>, Vec<Identity>)> {
    let from = stream.peer_addr().ok();
    let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await;
    drop(place);
    match shaken.unwrap_or_else(|_| Err(Refusal::too_slow(HANDSHAKE_TIMEOUT))) {
        Ok(accepted) => {
            let subject = accepted.stream.certificates().first().and_then(distinguished_name);
            let who = subject.map(|subject| face.config.security.by_certificate(subject));
            Some((accepted.stream, who.unwrap_or_default()))
        }
        Err(refusal) => {
            refusals.note(from, &refusal);
            None
        }
    }
}
