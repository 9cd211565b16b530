//! What is between the machines: connections that come and go, frames, and snapshots on their way.

use bytes::Bytes;
use tidelock_model::NodeId;
use tidelock_node::peers::{PeerInbound, SnapshotDone, SnapshotSendError, SnapshotSink, SnapshotSource, seal, unseal};
use tidelock_replica::glance;

use super::{Event, World};
use crate::coverage;
use crate::history::{Micros, Observation};
use crate::links::Sending;
use crate::machine::Worker;
use crate::network::Delivery;
use crate::plan::{MILLISECOND, SECOND};

/// How soon a connection that ended is tried again, mostly.
const REDIAL: (Micros, Micros) = (100, 5 * MILLISECOND);
/// How often it is, in thousandths; else after the pause between two attempts.
const REDIAL_PERMILLE: u64 = 800;
/// Pause between two attempts to connect.
const RETRY: (Micros, Micros) = (30 * MILLISECOND, 300 * MILLISECOND);
/// A link on which nothing was heard for this long is given up.
pub(super) const SILENCE: Micros = 5 * SECOND;
/// Bytes of a snapshot carried at a time.
const PIECE_BYTES: (u64, u64) = (200, 16 * 1024);
/// Time between two pieces.
const PIECE_TIME: (Micros, Micros) = (200, 5 * MILLISECOND);
/// How often a transfer breaks off by itself at any piece, in thousandths.
const BREAK_OFF_PERMILLE: u64 = 5;
/// How long a transfer waits for a receiver that does nothing.
const STALL_MAX: Micros = 10 * SECOND;

/// A snapshot on its way.
pub(super) struct Transfer {
    from: (NodeId, u64),
    to: NodeId,
    to_boot: Option<u64>,
    source: Box<dyn SnapshotSource>,
    sink: Option<Box<dyn SnapshotSink>>,
    done: SnapshotDone,
    moved: Micros,
}

impl World {
    /// The peers a node talks to changed.
    pub(super) fn peers_changed(&mut self, node: NodeId, peers: &[NodeId]) {
        for peer in peers.iter().copied().filter(|peer| *peer != node) {
            self.try_to_connect(node, peer, 1);
        }
        // Whoever is no longer a peer is not listened to any more.
        let talking =
            |machine: &crate::machine::Machine| machine.life.as_ref().is_some_and(|life| life.links.is_connected(node));
        let strangers: Vec<NodeId> = self.machines.values().filter(|machine| talking(machine)).map(|m| m.id).collect();
        for stranger in strangers.into_iter().filter(|id| !peers.contains(id)) {
            self.break_link(stranger, node, "no longer a peer");
        }
    }

    fn try_to_connect(&mut self, from: NodeId, to: NodeId, wait: Micros) {
        if self.connecting.insert((from, to)) {
            self.after(wait, Event::Connect(from, to));
        }
    }

    pub(super) fn connect(&mut self, from: NodeId, to: NodeId) {
        self.connecting.remove(&(from, to));
        let Some(life) = self.machines.get(&from).and_then(|machine| machine.life.as_ref()) else { return };
        let (links, disk_number) = (life.links.clone(), life.disk_number);
        if !links.has_peer(to) || links.is_connected(to) {
            return;
        }
        let through = self.network.connected(from, to) && self.network.connected(to, from);
        let awake = self.machines[&from].is_awake();
        let receiver = self.machines.get(&to).filter(|machine| machine.is_awake() && through && awake);
        let admitted = match receiver.and_then(|machine| machine.life.as_ref()) {
            Some(life) => life.inbound.admits(from, disk_number).inspect(|()| life.inbound.link_up(from)),
            None => Err("no connection".to_owned()),
        };
        self.trace.numbers(self.clock.now(), Some(from), "connect", &[to.0, u64::from(admitted.is_ok())]);
        match admitted {
            Ok(()) => {
                links.connected(to);
                let receiver = self.machines.get(&to).and_then(|machine| machine.life.as_ref());
                if receiver.is_some_and(|life| life.links.learn(from)) {
                    self.try_to_connect(to, from, 1);
                }
            }
            Err(why) => {
                self.trace.note(self.clock.now(), Some(from), || format!("no link to {to}: {why}"));
                links.disconnected(to, &why);
                // Where nobody listens a connection is refused. One that is cut off, or paused, does not answer at all.
                let refused = self.machines.get(&to).is_some_and(|machine| machine.life.is_none()) && through && awake;
                if refused && links.take_met(to) {
                    self.tell_gone(from, to);
                }
                let wait = self.random.between(RETRY.0, RETRY.1);
                self.try_to_connect(from, to, wait);
            }
        }
        self.look_after(to);
    }

    /// A connection breaks: both ends notice.
    pub(super) fn break_link(&mut self, from: NodeId, to: NodeId, why: &str) {
        let Some(life) = self.machines.get(&from).and_then(|machine| machine.life.as_ref()) else { return };
        if !life.links.is_connected(to) {
            return;
        }
        life.links.disconnected(to, why);
        self.trace.numbers(self.clock.now(), Some(from), "link breaks", &[to.0]);
        if let Some(life) = self.machines.get(&to).and_then(|machine| machine.life.as_ref()) {
            life.inbound.link_down(from);
        }
        let (least, most) = if self.random.chance(REDIAL_PERMILLE) { REDIAL } else { RETRY };
        let wait = self.random.between(least, most);
        self.try_to_connect(from, to, wait);
    }

    /// A node is told that a peer's process is gone.
    pub(super) fn tell_gone(&mut self, node: NodeId, peer: NodeId) {
        let Some(life) = self.machines.get(&node).and_then(|machine| machine.life.as_ref()) else { return };
        if life.workers.leader() == Some(peer) && self.machines.get(&peer).is_some_and(|peer| peer.life.is_none()) {
            self.coverage.hit(coverage::LEADER_SEEN_GONE);
        }
        life.inbound.peer_gone(peer);
        self.trace.numbers(self.clock.now(), Some(node), "peer gone", &[peer.0]);
        self.wake_if_it_has_work(node, Worker::Consensus);
    }

    /// Nothing was heard on a link for long.
    pub(super) fn silence(&mut self, from: NodeId, to: NodeId) {
        if !self.network.connected(from, to) {
            self.break_link(from, to, "nothing was heard");
            self.break_link(to, from, "nothing was heard");
        }
    }

    /// All connections of a node end with it.
    pub(super) fn connections_end(&mut self, node: NodeId) {
        let others: Vec<NodeId> = self.machines.keys().copied().filter(|other| *other != node).collect();
        for other in others {
            self.break_link(other, node, "the connection was closed");
            if let Some(life) = self.machines.get(&other).and_then(|machine| machine.life.as_ref()) {
                life.inbound.link_down(node);
            }
            self.wake_if_it_has_work(other, Worker::Consensus);
        }
    }

    /// Puts a frame on its way.
    pub(super) fn send(&mut self, from: NodeId, to: NodeId, frame: &Bytes) {
        // A follower passes another's round on to the leader it knows; that is not a second use.
        if let Some(round) = glance::read_round(frame).filter(|round| round.node == from) {
            let (node, boot, counter) = (round.node, round.boot, round.counter);
            self.recorder.observe(Observation::ReadRound { node, boot, counter });
        }
        if self.trace.is_read() {
            self.trace.note(self.clock.now(), Some(from), || format!("sends to n{to}: {}", glance::describe(frame)));
        }
        let Some(sealed) = seal(frame) else { return };
        let deliveries = self.network.send(self.clock.now(), from, to, sealed);
        if deliveries.is_empty() && self.network.breaks() {
            self.break_link(from, to, "the connection was reset");
        }
        for delivery in deliveries {
            self.at(delivery.at, Event::Arrive(delivery));
        }
    }

    pub(super) fn arrive(&mut self, delivery: Delivery) {
        if !self.network.arrives(&delivery) {
            return;
        }
        let (from, to) = (delivery.from, delivery.to);
        let Some(life) = self.machines.get(&to).and_then(|machine| machine.life.as_ref()) else { return };
        self.trace.event(self.clock.now(), Some(to), "arrives", &delivery.bytes, || {
            let sound = if delivery.corrupted { ", corrupted" } else { "" };
            format!("{} bytes from n{from}{sound}", delivery.bytes.len())
        });
        match unseal(delivery.bytes) {
            Ok(frame) => life.inbound.take(from, vec![frame]),
            Err(broken) => self.break_link(from, to, &broken.to_string()),
        }
        self.wake_if_it_has_work(to, Worker::Consensus);
    }

    pub(super) fn begin_transfer(&mut self, from: NodeId, boot: u64, sending: Sending) {
        let Sending { to, source, done } = sending;
        let busy = |transfer: &Transfer| transfer.from == (from, boot) && transfer.to == to;
        if self.transfers.values().any(busy) {
            return done(Err(SnapshotSendError::Busy(to)));
        }
        let (number, moved) = (self.number(), self.now());
        let transfer = Transfer { from: (from, boot), to, to_boot: None, source, sink: None, done, moved };
        self.transfers.insert(number, transfer);
        self.after(MILLISECOND, Event::Carry(number));
    }

    pub(super) fn carry(&mut self, number: u64) {
        let Some(mut transfer) = self.transfers.remove(&number) else { return };
        let ((from, boot), to, now) = (transfer.from, transfer.to, self.now());
        let life_of = |node: NodeId| self.machines.get(&node).and_then(|machine| machine.life.as_ref());
        // With its sender, a transfer is forgotten.
        let Some(sender) = life_of(from).filter(|life| life.boot == boot) else { return };
        let sender_disk = sender.disk_number;
        let through = self.network.connected(from, to) && self.network.connected(to, from);
        let paused = |node: NodeId| self.machines.get(&node).is_some_and(|machine| machine.paused);
        if (paused(from) || paused(to)) && now - transfer.moved < STALL_MAX {
            self.transfers.insert(number, transfer);
            return self.after(100 * MILLISECOND, Event::Carry(number));
        }
        let receiver = life_of(to).filter(|life| transfer.to_boot.is_none_or(|boot| boot == life.boot));
        let breaks_off = self.plan.network.loss > 0 && self.random.chance(BREAK_OFF_PERMILLE);
        let Some(receiver) = receiver.filter(|_| through && !breaks_off && !paused(to)) else {
            (transfer.done)(Err(SnapshotSendError::Interrupted("the connection ended".to_owned())));
            return self.look_after(from);
        };
        transfer.to_boot = Some(receiver.boot);
        transfer.moved = now;
        let inbound = receiver.inbound.clone();
        if transfer.sink.is_none() {
            let head = transfer.source.head();
            let opened = inbound.admits(from, sender_disk).and_then(|()| inbound.receive_snapshot(from, head));
            match opened {
                Ok(sink) => transfer.sink = Some(sink),
                Err(why) => {
                    (transfer.done)(Err(SnapshotSendError::Refused(why)));
                    return self.look_after_both(from, to);
                }
            }
        }
        let piece = self.random.between(PIECE_BYTES.0, PIECE_BYTES.1) as usize;
        let Some(result) = move_piece(&mut transfer, piece) else {
            self.transfers.insert(number, transfer);
            let wait = self.random.between(PIECE_TIME.0, PIECE_TIME.1);
            self.look_after_both(from, to);
            return self.after(wait, Event::Carry(number));
        };
        self.trace.numbers(now, Some(from), "snapshot sent", &[to.0, u64::from(result.is_ok())]);
        (transfer.done)(result);
        self.look_after_both(from, to);
    }

    fn look_after_both(&mut self, one: NodeId, other: NodeId) {
        self.look_after(one);
        self.look_after(other);
    }

    /// A snapshot being taken gets a piece further.
    pub(super) fn take_snapshot_further(&mut self, number: u64) {
        let Some((node, boot, job)) = self.taking.get_mut(&number) else { return };
        let (node, boot) = (*node, *boot);
        let machine = self.machines.get(&node);
        if machine.is_some_and(|machine| machine.paused) {
            return self.after(50 * MILLISECOND, Event::Take(number));
        }
        if machine.and_then(|machine| machine.life.as_ref()).is_none_or(|life| life.boot != boot) {
            self.taking.remove(&number);
            return;
        }
        if job.turn() {
            let wait = self.disk_time(node);
            self.after(wait, Event::Take(number));
        } else {
            self.taking.remove(&number);
            self.coverage.hit(coverage::SNAPSHOT_TAKEN);
            self.trace.numbers(self.clock.now(), Some(node), "snapshot taken", &[]);
        }
        self.look_after(node);
    }
}

/// Moves one piece; gives how the transfer ended, if it did.
fn move_piece(transfer: &mut Transfer, piece: usize) -> Option<Result<(), SnapshotSendError>> {
    let sink = transfer.sink.as_mut()?;
    match transfer.source.read(piece) {
        Ok(Some(bytes)) => match sink.write(bytes) {
            Ok(()) => None,
            Err(error) => Some(Err(SnapshotSendError::ReceiverFailed(error.to_string()))),
        },
        Ok(None) => {
            let finished = transfer.sink.take()?.finish();
            Some(finished.map_err(|error| SnapshotSendError::ReceiverFailed(error.to_string())))
        }
        Err(error) => Some(Err(SnapshotSendError::Source(error))),
    }
}
