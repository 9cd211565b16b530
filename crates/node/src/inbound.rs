//! What arrives from peers, on its way to the consensus thread.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidelock_journal::Disk;
use tidelock_model::{Member, NodeId};
use tidelock_replica::{Input, carries_entries};

use crate::acquaintances::Acquaintances;
use crate::peers::{Awaiting, PeerInbound, SnapshotSink};
use crate::shared::Shared;
use crate::snapshots::FileSink;

/// Inputs waiting for the consensus thread beyond which a peer's link is not read any more.
const INPUTS_WAITING_MAX: usize = 50_000;
/// Pause before looking again.
const PAUSE: Duration = Duration::from_millis(2);
/// Batches waiting for the apply or journal thread beyond which entries from the leader are dropped:
/// it sends them again, and memory stays bounded on a node that cannot keep up.
const TASKS_WAITING_MAX: usize = 5_000;

/// What a member that was removed is told. It may never see the entry that removed it, because the leader
/// stops sending to it; by these words it knows (M1).
pub(crate) const REMOVED: &str = "was removed from the cluster";

/// The node, as its links see it.
pub struct Inbound<D> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) disk: D,
    pub(crate) acquaintances: Arc<Acquaintances<D>>,
}

impl<D> Inbound<D> {
    /// Takes frames of a peer without waiting for room.
    pub fn take(&self, from: NodeId, frames: Vec<Bytes>) {
        let behind = self.shared.apply.len().max(self.shared.journal.len()) > TASKS_WAITING_MAX;
        let taken = frames.into_iter().filter(|frame| !(behind && carries_entries(frame)));
        self.shared.consensus.push_and_run(taken.map(|bytes| Input::Frame { from, bytes }));
    }
}

impl<D: Disk + Clone + 'static> PeerInbound for Inbound<D> {
    fn deliver(&self, from: NodeId, frames: Vec<Bytes>) -> Awaiting<'_, ()> {
        Box::pin(async move {
            while self.shared.consensus.len() > INPUTS_WAITING_MAX && !self.shared.is_stopped() {
                tokio::time::sleep(PAUSE).await;
            }
            self.shared.measurements.receive(from, frames.iter().map(Bytes::len).sum());
            self.take(from, frames);
        })
    }

    fn link_up(&self, peer: NodeId) {
        tracing::debug!(peer = %format_args!("{peer:x}"), "peer connected");
    }

    fn link_down(&self, peer: NodeId) {
        tracing::debug!(peer = %format_args!("{peer:x}"), "peer disconnected");
        self.shared.consensus.push(Input::LinkDown { peer });
    }

    fn peer_gone(&self, peer: NodeId) {
        tracing::info!(peer = %format_args!("{peer:x}"), "a peer's connections ended and it takes no new one");
        self.shared.consensus.push(Input::PeerGone { peer });
    }

    fn members(&self) -> Vec<Member> {
        // Names are known to the state alone, and addresses to both.
        let state = self.shared.state.read();
        state.members().by_id.values().cloned().collect()
    }

    fn admits(&self, node: NodeId, disk: u64) -> Result<(), String> {
        // An unknown one may be a member this node, being behind, has not heard of yet.
        if self.shared.members.lock().removed.contains(&node) {
            return Err(format!("member {node:x} {REMOVED}; remove its data directory and add it as a new member"));
        }
        self.acquaintances.meet(node, disk)
    }

    fn receive_snapshot(&self, from: NodeId, head: Bytes) -> Result<Box<dyn SnapshotSink>, String> {
        let sink = FileSink::open(self.shared.clone(), self.disk.clone(), from, head)?;
        Ok(Box::new(sink))
    }
}
