//! The links of a simulated node: what it sends is put down for the world to carry, and what the world
//! knows of its connections is shown to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tidelock_model::NodeId;
use tidelock_node::Links;
use tidelock_node::peers::{LinkState, SnapshotDone, SnapshotSendError, SnapshotSource};

/// A snapshot a node wants sent.
pub(crate) struct Sending {
    pub(crate) to: NodeId,
    pub(crate) source: Box<dyn SnapshotSource>,
    pub(crate) done: SnapshotDone,
}

const UNKNOWN: LinkState = LinkState { connected: false, accepted: false, problem: None, dropped: 0 };

#[derive(Default)]
struct Content {
    peers: BTreeMap<NodeId, LinkState>,
    frames: Vec<(NodeId, Bytes)>,
    snapshots: Vec<Sending>,
    /// Peers that were connected, until it is told that they are gone.
    met: BTreeSet<NodeId>,
    changed: bool,
}

/// The links of one life of one node. Clones are the same links.
#[derive(Clone, Default)]
pub(crate) struct SimLinks(Arc<Mutex<Content>>);

impl SimLinks {
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frames to be carried, in order.
    pub(crate) fn take_frames(&self) -> Vec<(NodeId, Bytes)> {
        std::mem::take(&mut self.lock().frames)
    }

    /// Snapshots to be carried.
    pub(crate) fn take_snapshots(&self) -> Vec<Sending> {
        std::mem::take(&mut self.lock().snapshots)
    }

    /// The peers, if they changed since the last look.
    pub(crate) fn take_changed_peers(&self) -> Option<Vec<NodeId>> {
        let mut content = self.lock();
        std::mem::take(&mut content.changed).then(|| content.peers.keys().copied().collect())
    }

    /// Whether this node wants to talk to `peer`.
    pub(crate) fn has_peer(&self, peer: NodeId) -> bool {
        self.lock().peers.contains_key(&peer)
    }

    /// Whether frames go to `peer` now.
    pub(crate) fn is_connected(&self, peer: NodeId) -> bool {
        self.lock().peers.get(&peer).is_some_and(|state| state.connected)
    }

    /// A peer that is not known yet greeted this node and can be answered. `true`: it was not known.
    pub(crate) fn learn(&self, peer: NodeId) -> bool {
        let mut content = self.lock();
        let known = content.peers.contains_key(&peer);
        content.peers.entry(peer).or_insert(UNKNOWN);
        !known
    }

    /// The peer accepted the greeting.
    pub(crate) fn connected(&self, peer: NodeId) {
        let mut content = self.lock();
        content.met.insert(peer);
        if let Some(state) = content.peers.get_mut(&peer) {
            (state.connected, state.accepted, state.problem) = (true, true, None);
        }
    }

    /// Whether the peer was connected since this was last asked.
    pub(crate) fn take_met(&self, peer: NodeId) -> bool {
        self.lock().met.remove(&peer)
    }

    /// There is no connection to the peer, and why.
    pub(crate) fn disconnected(&self, peer: NodeId, why: &str) {
        if let Some(state) = self.lock().peers.get_mut(&peer) {
            (state.connected, state.problem) = (false, Some(why.to_owned()));
        }
    }
}

impl Links for SimLinks {
    fn send_all(&self, to: NodeId, frames: Vec<Bytes>) {
        let mut content = self.lock();
        if content.peers.get(&to).is_some_and(|state| state.connected) {
            content.frames.extend(frames.into_iter().map(|frame| (to, frame)));
        }
    }

    fn set_peers(&self, peers: &[(NodeId, Vec<String>)]) {
        let mut content = self.lock();
        content.peers.retain(|peer, _| peers.iter().any(|(wanted, _)| wanted == peer));
        for (peer, _) in peers {
            content.peers.entry(*peer).or_insert(UNKNOWN);
        }
        content.changed = true;
    }

    fn link_state(&self, peer: NodeId) -> Option<LinkState> {
        self.lock().peers.get(&peer).cloned()
    }

    fn send_snapshot(&self, to: NodeId, source: Box<dyn SnapshotSource>, done: SnapshotDone) {
        let mut content = self.lock();
        if content.peers.contains_key(&to) {
            content.snapshots.push(Sending { to, source, done });
            return;
        }
        drop(content);
        done(Err(SnapshotSendError::UnknownPeer(to)));
    }
}
