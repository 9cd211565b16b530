//! Peer links: carries opaque frames between members over TCP, and snapshots on a connection of
//! their own. Knows nothing of Raft; what a frame means is its sender's and receiver's business.
//!
//! Whoever sends opens the connection, so a pair of members has two one-way links and no tie to
//! break. Each connection starts with a handshake (`handshake.rs`) in which both sides name their
//! cluster, themselves and the protocol versions they speak; a side that is refused is told why.
//!
//! What holds:
//! - Frames of one connection are delivered in order, whole and unchanged, or not at all. Nothing is
//!   delivered from a frame that is oversized, cut short or does not match its checksum; the link is
//!   dropped and opened anew.
//! - [`PeerNet::send`] never blocks. A frame it takes may still be lost with the link, and is never
//!   sent twice.
//! - At most one connection of a kind from a peer is read at a time: a newer one waits until the older
//!   one has delivered its last frame.
//! - Memory is bounded: queues in frames and bytes, frames by [`FRAME_BYTES_MAX`], handshakes by count
//!   and time. A peer that claims a large frame costs only what it really sends.
//! - A snapshot is finished at the receiver only after every byte arrived, and reported as sent only
//!   after the receiver said that it finished.
//!
//! Both ends send a small pulse while a link is open. So a peer that vanished without a word is
//! noticed within [`PeerLimits::silence`], and after a partition the link is new instead of waiting for
//! TCP's own, much longer, retransmission pauses.
//!
//! Not here: encryption (`stream.rs` is the seam, the server has the TLS), what to do with a lost
//! frame (the consensus engine retries), who is a member ([`PeerInbound::admits`] asks the node).

mod accept;
mod claims;
mod dial;
pub mod enquiry;
mod frame;
mod handshake;
mod link;
mod log_gate;
mod net;
mod outbox;
mod snapshot;
mod stream;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidelock_model::{ClusterId, Member, NodeId};

pub use frame::{FRAME_BYTES_MAX, seal, unseal};
pub use net::{LinkState, PeerNet, TurnedAway};
pub use snapshot::SNAPSHOT_HEAD_BYTES_MAX;
pub use stream::{Acceptor, Connector, PeerSecurity, PeerStream, PlainTcp};

/// A boxed future, so that the traits here stay usable as trait objects.
pub type Awaiting<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Who this node is towards its peers, and how its links behave.
#[derive(Clone)]
pub struct PeerConfig {
    /// The cluster; peers of another one are turned away.
    pub cluster: ClusterId,
    /// This node.
    pub node: NodeId,
    /// The number of its disk.
    pub disk: u64,
    /// Where this node says it is reached, `host:port`: shown in the logs of peers, and where one that does
    /// not know this node yet answers it.
    pub advertise: String,
    /// Bounds and deadlines.
    pub limits: PeerLimits,
    /// Turns an outgoing TCP connection into the stream to talk over.
    pub connector: Arc<dyn Connector>,
    /// Turns an accepted TCP connection into the stream to talk over.
    pub acceptor: Arc<dyn Acceptor>,
}

impl PeerConfig {
    /// Plain TCP with the default limits.
    #[must_use]
    pub fn plain(cluster: ClusterId, node: NodeId, disk: u64, advertise: String) -> PeerConfig {
        PeerConfig {
            cluster,
            node,
            disk,
            advertise,
            limits: PeerLimits::default(),
            connector: Arc::new(PlainTcp),
            acceptor: Arc::new(PlainTcp),
        }
    }
}

/// Bounds and deadlines of the links. The defaults suit a LAN and a localhost cluster alike.
#[derive(Clone, Debug)]
pub struct PeerLimits {
    /// Most frames that wait to be written to one peer.
    pub queue_frames: usize,
    /// Most bytes that wait to be written to one peer. One frame is always taken into an empty queue.
    pub queue_bytes: usize,
    /// Largest frame, never above [`FRAME_BYTES_MAX`].
    pub frame_bytes: usize,
    /// How long opening a TCP connection, or resolving a name, may take.
    pub connect: Duration,
    /// How long the handshake may take, at both ends.
    pub handshake: Duration,
    /// A write that makes no progress for this long ends the link.
    pub write_stall: Duration,
    /// How often each end of an open link sends a pulse.
    pub pulse_every: Duration,
    /// A link on which nothing at all was heard for this long is ended. Several pulses long.
    pub silence: Duration,
    /// First pause before a lost link is tried again.
    pub retry_min: Duration,
    /// Longest pause between two tries.
    pub retry_max: Duration,
    /// Longest pause when the peer's addresses are all on this machine: trying costs next to nothing
    /// there, and a restarted process should be back at once.
    pub retry_max_near: Duration,
    /// A snapshot transfer that makes no progress for this long is given up.
    pub snapshot_stall: Duration,
    /// Cap on the bandwidth of one snapshot transfer; `None` sends as fast as the link takes it.
    pub snapshot_bytes_per_second: Option<NonZeroU64>,
}

impl Default for PeerLimits {
    fn default() -> PeerLimits {
        PeerLimits {
            queue_frames: 8 * 1024,
            queue_bytes: 64 * 1024 * 1024,
            frame_bytes: FRAME_BYTES_MAX,
            connect: Duration::from_secs(2),
            handshake: Duration::from_secs(5),
            write_stall: Duration::from_secs(5),
            pulse_every: Duration::from_secs(1),
            silence: Duration::from_secs(5),
            retry_min: Duration::from_millis(50),
            retry_max: Duration::from_secs(2),
            retry_max_near: Duration::from_millis(200),
            snapshot_stall: Duration::from_secs(30),
            snapshot_bytes_per_second: None,
        }
    }
}

/// The node, as its peer links see it. Except for `deliver`, whose future is awaited, and
/// `receive_snapshot`, which may block, these are called on the runtime and must return at once.
pub trait PeerInbound: Send + Sync + 'static {
    /// Takes the frames that arrived together, in order. The next read waits for the future, so a slow
    /// node slows its peers down instead of filling its memory. The future is dropped if the link ends
    /// meanwhile. Frames of one call may share a buffer: copy what is kept for long.
    fn deliver(&self, from: NodeId, frames: Vec<Bytes>) -> Awaiting<'_, ()>;

    /// `peer` opened its messages connection to us. Repeated without a `link_down` in between when the
    /// peer came back before its old connection was seen to end.
    fn link_up(&self, peer: NodeId);

    /// The messages connection from `peer` ended, or the peer was removed. Not called for links that
    /// end because this node stops. Calls for one peer never overlap and the last one is true.
    fn link_down(&self, peer: NodeId);

    /// The connections with `peer`, both ways, ended, and it takes no new one. Said once for each time that
    /// there was a connection to it; not while this node stops.
    fn peer_gone(&self, peer: NodeId) {
        let _ = peer;
    }

    /// The members, for whoever asks (`enquiry`).
    fn members(&self) -> Vec<Member> {
        Vec::new()
    }

    /// Whether `node`, with the disk of that number, may connect; the error is told to it and logged.
    /// May write a few bytes to disk, the first time a peer is met.
    fn admits(&self, node: NodeId, disk: u64) -> Result<(), String>;

    /// Opens a place for the snapshot that `head` describes; the error is told to the sender. May block.
    fn receive_snapshot(&self, from: NodeId, head: Bytes) -> Result<Box<dyn SnapshotSink>, String>;
}

/// A snapshot being sent. `read` may block.
pub trait SnapshotSource: Send + 'static {
    /// What the receiver must know first; opaque to the links and at most
    /// [`SNAPSHOT_HEAD_BYTES_MAX`] long.
    fn head(&self) -> Bytes;

    /// The next 1 to `max` bytes, or `None` after the last.
    fn read(&mut self, max: usize) -> io::Result<Option<Bytes>>;
}

/// A snapshot being received. Both calls may block. Dropped without `finish`, it must leave nothing
/// installed.
pub trait SnapshotSink: Send + 'static {
    /// Takes the next bytes.
    fn write(&mut self, chunk: Bytes) -> io::Result<()>;

    /// Every byte is there: make the snapshot durable. The sender is told only after this returned.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// Told how a snapshot transfer ended, exactly once. Must not block.
pub type SnapshotDone = Box<dyn FnOnce(Result<(), SnapshotSendError>) + Send>;

/// Why a snapshot was not confirmed. One variant per thing the caller can do next.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotSendError {
    /// Not one of the peers set, or removed meanwhile. Do not retry.
    #[error("node {0} is not a peer")]
    UnknownPeer(NodeId),
    /// Another transfer to this peer runs. Wait for its end.
    #[error("a snapshot is already being sent to node {0}")]
    Busy(NodeId),
    /// No connection could be made, or it was lost before the receiver confirmed: the receiver may or
    /// may not have finished. Retry later.
    #[error("the transfer was interrupted: {0}")]
    Interrupted(String),
    /// The receiver, or its handshake, said no. Retrying the same snapshot at once will not help.
    #[error("the receiver refused: {0}")]
    Refused(String),
    /// The receiver could not store it. Retry after its disk was looked at.
    #[error("the receiver failed: {0}")]
    ReceiverFailed(String),
    /// Our own snapshot could not be read. Make a new one.
    #[error("reading the snapshot failed")]
    Source(#[source] io::Error),
    /// This node is stopping.
    #[error("this node is stopping")]
    Stopping,
}
