//! Which accepted connection of a peer counts. A peer that comes back before its old connection was
//! seen to end has two for a moment; the newer one counts, and is read only after the older one has
//! been let go.
//!
//! `link_up` and `link_down` are called from here, under the lock, so that their order is the order
//! of events: an old connection's end is never reported after a newer one's start. So is `peer_gone`, if the
//! peer already turned out to take no new connection.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidelock_model::NodeId;
use tokio::sync::watch;

use super::handshake::Purpose;
use super::net::Shared;

#[derive(Default)]
pub(super) struct Claims(Mutex<Claimed>);

#[derive(Default)]
struct Claimed {
    last: u64,
    by_peer: BTreeMap<(NodeId, Purpose), Place>,
}

struct Place {
    /// Number of the claim that counts. Changes, or goes away, when another takes its place.
    holder: watch::Sender<u64>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// One accepted connection's right to be read. Dropping it gives the right back.
pub(super) struct Claim {
    shared: Arc<Shared>,
    pub(super) peer: NodeId,
    purpose: Purpose,
    number: u64,
    holder: watch::Receiver<u64>,
    /// Held while the connection is read.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
}

impl Claim {
    /// Makes a new connection from `peer` the one that counts.
    pub(super) fn new(shared: &Arc<Shared>, peer: NodeId, purpose: Purpose) -> Claim {
        let mut claimed = shared.claims.0.lock();
        claimed.last += 1;
        let number = claimed.last;
        let place = claimed
            .by_peer
            .entry((peer, purpose))
            .or_insert_with(|| Place { holder: watch::Sender::new(number), turn: Arc::default() });
        place.holder.send_replace(number);
        let (holder, turn) = (place.holder.subscribe(), Arc::clone(&place.turn));
        if purpose == Purpose::Messages {
            shared.inbound.link_up(peer);
        }
        drop(claimed);
        Claim { shared: Arc::clone(shared), peer, purpose, number, holder, turn }
    }

    /// Completes when this connection no longer counts.
    pub(super) fn superseded(&self) -> impl Future<Output = ()> + Send + use<> {
        let (mut holder, number) = (self.holder.clone(), self.number);
        async move {
            // An error means that the place is gone, which is just as final.
            let _ = holder.wait_for(|current| *current != number).await;
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = self.shared.claims.0.lock();
        let key = (self.peer, self.purpose);
        if claimed.by_peer.get(&key).is_some_and(|place| *place.holder.borrow() == self.number) {
            claimed.by_peer.remove(&key);
            // Our own end is not the peer's: a node that stops must not report its whole cluster dead.
            if self.purpose == Purpose::Messages && !self.shared.is_stopping() {
                self.shared.inbound.link_down(self.peer);
                self.shared.tell_if_gone(self.peer);
            }
        }
    }
}

impl Claims {
    /// Whether a messages connection from `peer` is open.
    pub(super) fn hears(&self, peer: NodeId) -> bool {
        self.0.lock().by_peer.contains_key(&(peer, Purpose::Messages))
    }

    /// Lets go of every connection from a peer that was removed.
    pub(super) fn evict(&self, shared: &Shared, peer: NodeId) {
        let mut claimed = self.0.lock();
        claimed.by_peer.remove(&(peer, Purpose::Snapshot));
        if claimed.by_peer.remove(&(peer, Purpose::Messages)).is_some() {
            shared.inbound.link_down(peer);
        }
    }
}
