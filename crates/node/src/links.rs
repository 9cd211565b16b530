//! What the workers ask of the links to their peers. [`PeerNet`] is the real thing, over TCP; the simulator
//! brings its own.

use bytes::Bytes;
use tidelock_model::NodeId;

use crate::peers::{LinkState, PeerNet, SnapshotDone, SnapshotSource};

/// The links to the peers of one node. Clones are the same links.
pub trait Links: Clone + Send + Sync + 'static {
    /// Sends frames, in order, without waiting. They may be lost.
    fn send_all(&self, to: NodeId, frames: Vec<Bytes>);

    /// Whom to talk to, and where.
    fn set_peers(&self, peers: &[(NodeId, Vec<String>)]);

    /// How the link to a peer is doing; `None` if it is not a peer.
    fn link_state(&self, peer: NodeId) -> Option<LinkState>;

    /// Sends a snapshot; `done` is told, once, how that went.
    fn send_snapshot(&self, to: NodeId, source: Box<dyn SnapshotSource>, done: SnapshotDone);
}

impl Links for PeerNet {
    fn send_all(&self, to: NodeId, frames: Vec<Bytes>) {
        PeerNet::send_all(self, to, frames);
    }

    fn set_peers(&self, peers: &[(NodeId, Vec<String>)]) {
        PeerNet::set_peers(self, peers);
    }

    fn link_state(&self, peer: NodeId) -> Option<LinkState> {
        PeerNet::link_state(self, peer)
    }

    fn send_snapshot(&self, to: NodeId, source: Box<dyn SnapshotSource>, done: SnapshotDone) {
        PeerNet::send_snapshot(self, to, source, done);
    }
}
