//! The handle the node holds, and what all links share.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tidelock_model::NodeId;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::claims::Claims;
use super::frame::FRAME_BYTES_MAX;
use super::handshake::{Hello, Identity, VERSIONS};
use super::link::Link;
use super::log_gate::LogGate;
use super::{PeerConfig, PeerInbound, SnapshotDone, SnapshotSendError, SnapshotSource, accept, snapshot};

/// Links at most: more members than any cluster has.
const LINKS_MAX: usize = 64;
/// How long `stop` waits for disk work of a snapshot that is under way.
const STOP_WAIT_MAX: Duration = Duration::from_secs(10);

/// The links of one node. Cheap to clone; the last clone to go stops the links without waiting.
#[derive(Clone)]
pub struct PeerNet(Arc<Owner>);

struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.stopping.send_replace(true);
    }
}

/// What every task of the links sees.
pub(super) struct Shared {
    pub(super) config: PeerConfig,
    pub(super) identity: Identity,
    pub(super) inbound: Arc<dyn PeerInbound>,
    pub(super) claims: Claims,
    pub(super) gate: LogGate,
    links: RwLock<BTreeMap<NodeId, Arc<Link>>>,
    turned_away: Mutex<Option<TurnedAway>>,
    runtime: Handle,
    /// Every task holds a receiver until its very end, so "no receivers" means "all have ended".
    stopping: watch::Sender<bool>,
}

/// How the link to a peer is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Whether frames can be sent now.
    pub connected: bool,
    /// Whether the peer has ever accepted this node's greeting since it was set.
    pub accepted: bool,
    /// Why there is no link, in words that say what to do.
    pub problem: Option<String>,
    /// Frames that were not taken, or were lost with a link, since the peer was set.
    pub dropped: u64,
}

/// A connection this node refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnedAway {
    /// Where it came from.
    pub from: SocketAddr,
    /// Who it said it was, if it got that far.
    pub node: Option<NodeId>,
    /// What it was told, or why it was not answered.
    pub reason: String,
}

impl PeerNet {
    /// Starts accepting on `listener`. Nothing is dialed before [`PeerNet::set_peers`].
    pub fn start(
        config: PeerConfig,
        listener: std::net::TcpListener,
        inbound: Arc<dyn PeerInbound>,
        runtime: Handle,
    ) -> io::Result<PeerNet> {
        listener.set_nonblocking(true)?;
        let listener = {
            let _context = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let identity = Identity {
            cluster: config.cluster,
            node: config.node,
            disk: config.disk,
            versions: VERSIONS,
            advertise: config.advertise.clone(),
        };
        let shared = Arc::new(Shared {
            config,
            identity,
            inbound,
            claims: Claims::default(),
            gate: LogGate::default(),
            links: RwLock::default(),
            turned_away: Mutex::new(None),
            runtime,
            stopping: watch::Sender::new(false),
        });
        shared.spawn(accept::run(Arc::clone(&shared), listener));
        Ok(PeerNet(Arc::new(Owner(shared))))
    }

    /// Makes `peers` (id and `host:port` addresses) the ones linked to: opens links to new ones, drops
    /// those that are gone, both ways, and reconnects those whose addresses changed. This node itself
    /// may be among them and is skipped.
    pub fn set_peers(&self, peers: &[(NodeId, Vec<String>)]) {
        let shared = &self.0.0;
        let mut removed = Vec::new();
        {
            let mut links = shared.links.write();
            links.retain(|peer, link| {
                let stays = peers.iter().any(|(wanted, _)| wanted == peer);
                if !stays {
                    link.addresses.send_replace(None);
                    removed.push(*peer);
                }
                stays
            });
            for (peer, addresses) in peers.iter().filter(|(peer, _)| *peer != shared.config.node) {
                let addresses: Arc<[String]> = addresses.as_slice().into();
                if let Some(link) = links.get(peer) {
                    link.addresses.send_if_modified(|current| {
                        let changed = current.as_deref() != Some(&*addresses);
                        *current = Some(addresses);
                        changed
                    });
                    continue;
                }
                links.insert(*peer, Shared::open_link(shared, *peer, addresses));
            }
        }
        for peer in removed {
            shared.claims.evict(shared, peer);
        }
    }

    /// Queues one frame. Never blocks and may be called from any thread. `false`: dropped, because the
    /// peer is unknown or not connected, its queue is full, or the frame is empty or too large.
    pub fn send(&self, to: NodeId, frame: Bytes) -> bool {
        self.send_all(to, [frame]) == 1
    }

    /// Queues several frames, in order, with one lock and one wake-up of the writer. Returns how many
    /// were taken; from the first that was not, all were dropped.
    pub fn send_all(&self, to: NodeId, frames: impl IntoIterator<Item = Bytes>) -> usize {
        let shared = &self.0.0;
        let links = shared.links.read();
        let Some(link) = links.get(&to) else { return 0 };
        let max = shared.config.limits.frame_bytes.min(FRAME_BYTES_MAX);
        link.outbox.push(frames, max)
    }

    /// Whether frames can be sent to `to` now.
    #[must_use]
    pub fn is_connected(&self, to: NodeId) -> bool {
        self.0.0.links.read().get(&to).is_some_and(|link| link.outbox.is_open())
    }

    /// How the link to `to` is doing; `None` if it is not a peer.
    #[must_use]
    pub fn link_state(&self, to: NodeId) -> Option<LinkState> {
        let links = self.0.0.links.read();
        let link = links.get(&to)?;
        Some(LinkState {
            connected: link.outbox.is_open(),
            accepted: link.accepted.load(Ordering::Relaxed),
            problem: link.problem(),
            dropped: link.outbox.dropped(),
        })
    }

    /// Bytes written to each peer and frames lost on the way there, since it was set.
    #[must_use]
    pub fn written(&self) -> Vec<(NodeId, u64, u64)> {
        let links = self.0.0.links.read();
        links.iter().map(|(peer, link)| (*peer, link.outbox.written(), link.outbox.dropped())).collect()
    }

    /// The last connection this node refused, for whoever asks why a member cannot join.
    #[must_use]
    pub fn last_turned_away(&self) -> Option<TurnedAway> {
        self.0.0.turned_away.lock().clone()
    }

    /// Sends a snapshot on a connection of its own, at most one per peer at a time. `done` is told
    /// `Ok` only after the receiver confirmed that it finished.
    pub fn send_snapshot(&self, to: NodeId, source: Box<dyn SnapshotSource>, done: SnapshotDone) {
        let shared = &self.0.0;
        let link = shared.links.read().get(&to).cloned();
        let Some(link) = link else { return done(Err(SnapshotSendError::UnknownPeer(to))) };
        if !snapshot::reserve(&link.snapshot_busy) {
            return done(Err(SnapshotSendError::Busy(to)));
        }
        shared.spawn(snapshot::send(Arc::clone(shared), link, source, done));
    }

    /// Closes every connection and the listener, and waits until that is done. Snapshots under way
    /// are interrupted.
    pub async fn stop(&self) {
        let stopping = &self.0.0.stopping;
        stopping.send_replace(true);
        if tokio::time::timeout(STOP_WAIT_MAX, stopping.closed()).await.is_err() {
            tracing::warn!("peer links still have disk work under way after {STOP_WAIT_MAX:?}; not waiting for it");
        }
    }
}

impl Shared {
    fn open_link(shared: &Arc<Shared>, peer: NodeId, addresses: Arc<[String]>) -> Arc<Link> {
        let link = Arc::new(Link::new(peer, addresses, &shared.config.limits));
        let (task_shared, task_link) = (Arc::clone(shared), Arc::clone(&link));
        shared.spawn(async move { task_link.run(&task_shared).await });
        link
    }

    /// A peer that was admitted but is not known yet, most likely a member this node, being behind, has not
    /// heard of: it can only be answered where it says it is. Kept until the members are known.
    pub(super) fn learn(shared: &Arc<Shared>, peer: NodeId, address: &str) {
        let mut links = shared.links.write();
        if links.contains_key(&peer) || links.len() >= LINKS_MAX || address.is_empty() {
            return;
        }
        tracing::info!(%peer, address, "a peer that is not known yet connected; answering it there");
        let link = Shared::open_link(shared, peer, [address.to_owned()].as_slice().into());
        links.insert(peer, link);
    }

    /// Runs `task` until it ends or the links are stopped.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut stopping = self.stopping.subscribe();
        self.runtime.spawn(async move {
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => {}
                () = task => {}
            }
        });
    }

    /// Runs `work` on a blocking thread; `stop` waits for it.
    pub(super) fn spawn_blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let alive = self.stopping.subscribe();
        self.runtime.spawn_blocking(move || {
            let done = work();
            drop(alive);
            done
        })
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Nobody answers where `peer` was: if it is not heard either, it is gone.
    pub(super) fn unanswered(&self, peer: NodeId) {
        if !self.claims.hears(peer) {
            self.tell_if_gone(peer);
        }
    }

    /// Tells that a peer whose messages connection to us has ended is gone, if it takes no new one from us.
    pub(super) fn tell_if_gone(&self, peer: NodeId) {
        if self.links.read().get(&peer).is_some_and(|link| link.take_loss()) {
            self.inbound.peer_gone(peer);
        }
    }

    /// The peer just connected to us, so it is up: do not wait to connect back.
    pub(super) fn hurry(&self, peer: NodeId) {
        if let Some(link) = self.links.read().get(&peer) {
            link.retry_now.notify_one();
        }
    }

    /// Notes and logs a refused connection.
    pub(super) fn turn_away(&self, from: SocketAddr, hello: Option<&Hello>, reason: String) {
        if let Some(suppressed) = self.gate.pass() {
            match hello {
                Some(hello) => tracing::warn!(
                    %from, node = %hello.from, advertised = %hello.advertise, suppressed, "refused a peer: {reason}"
                ),
                None => tracing::warn!(%from, suppressed, "dropped a connection to the peer port: {reason}"),
            }
        }
        *self.turned_away.lock() = Some(TurnedAway { from, node: hello.map(|hello| hello.from), reason });
    }
}
