//! Whole links over loopback: two real nodes' worth of sockets, a recorder in place of the node.

mod broken_links;
mod gone;
mod refusals;
mod snapshots;

use std::collections::BTreeSet;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tidelock_model::{ClusterId, NodeId};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;

use super::{Awaiting, PeerConfig, PeerInbound, PeerNet, SnapshotSink};

const CLUSTER: ClusterId = ClusterId(0xc1);
const DEADLINE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkEvent {
    Up(NodeId),
    Down(NodeId),
    Gone(NodeId),
}

/// Stands in for the node: writes down what it is told.
struct Recorder {
    frames: Mutex<Vec<(NodeId, Bytes)>>,
    events: Mutex<Vec<LinkEvent>>,
    banned: Mutex<BTreeSet<NodeId>>,
    /// Deliveries that may complete; tests of backpressure start with none.
    deliveries: Semaphore,
    snapshots: snapshots::Shelf,
}

impl Recorder {
    fn new() -> Arc<Recorder> {
        Arc::new(Recorder {
            frames: Mutex::default(),
            events: Mutex::default(),
            banned: Mutex::default(),
            deliveries: Semaphore::new(Semaphore::MAX_PERMITS),
            snapshots: snapshots::Shelf::default(),
        })
    }

    fn frames_from(&self, node: NodeId) -> Vec<Bytes> {
        self.frames.lock().iter().filter(|(from, _)| *from == node).map(|(_, frame)| frame.clone()).collect()
    }

    fn saw(&self, event: LinkEvent) -> bool {
        self.events.lock().contains(&event)
    }
}

impl PeerInbound for Recorder {
    fn deliver(&self, from: NodeId, frames: Vec<Bytes>) -> Awaiting<'_, ()> {
        Box::pin(async move {
            self.deliveries.acquire().await.expect("never closed").forget();
            self.frames.lock().extend(frames.into_iter().map(|frame| (from, frame)));
        })
    }

    fn link_up(&self, peer: NodeId) {
        self.events.lock().push(LinkEvent::Up(peer));
    }

    fn link_down(&self, peer: NodeId) {
        self.events.lock().push(LinkEvent::Down(peer));
    }

    fn peer_gone(&self, peer: NodeId) {
        self.events.lock().push(LinkEvent::Gone(peer));
    }

    fn admits(&self, node: NodeId, _disk: u64) -> Result<(), String> {
        if self.banned.lock().contains(&node) { Err(format!("node {node} was removed")) } else { Ok(()) }
    }

    fn receive_snapshot(&self, from: NodeId, head: Bytes) -> Result<Box<dyn SnapshotSink>, String> {
        self.snapshots.open(from, &head)
    }
}

struct TestNode {
    id: NodeId,
    net: PeerNet,
    recorder: Arc<Recorder>,
    address: String,
}

impl TestNode {
    fn start(id: u64, change: impl FnOnce(&mut PeerConfig)) -> TestNode {
        TestNode::start_at(id, "127.0.0.1:0", change)
    }

    fn start_at(id: u64, address: &str, change: impl FnOnce(&mut PeerConfig)) -> TestNode {
        let listener = StdListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let recorder = Recorder::new();
        let mut config = PeerConfig::plain(CLUSTER, NodeId(id), id, address.clone());
        change(&mut config);
        let net = PeerNet::start(config, listener, Arc::clone(&recorder) as Arc<dyn PeerInbound>, Handle::current());
        TestNode { id: NodeId(id), net: net.unwrap(), recorder, address }
    }

    fn knows(&self, others: &[&TestNode]) {
        let peers: Vec<_> = others.iter().map(|other| (other.id, vec![other.address.clone()])).collect();
        self.net.set_peers(&peers);
    }

    fn problem_with(&self, peer: NodeId) -> String {
        self.net.link_state(peer).and_then(|state| state.problem).unwrap_or_default()
    }
}

/// A member that was away while others joined hears a leader it does not know. If it could not answer, it
/// would never catch up.
#[test]
fn a_peer_that_is_not_known_yet_is_answered_where_it_says_it_is() {
    run(async {
        let (new, behind) = (TestNode::start(1, |_| ()), TestNode::start(2, |_| ()));
        new.knows(&[&behind]);
        until("the one that is behind to link back", || behind.net.is_connected(new.id)).await;
        behind.net.send_all(new.id, [Bytes::from_static(b"heard you")]);
        until("the answer", || !new.recorder.frames_from(behind.id).is_empty()).await;
    });
}

/// Two nodes that know each other, with links up both ways.
async fn linked_pair() -> (TestNode, TestNode) {
    let (a, b) = (TestNode::start(1, |_| ()), TestNode::start(2, |_| ()));
    a.knows(&[&b]);
    b.knows(&[&a]);
    until("linked both ways", || a.net.is_connected(b.id) && b.net.is_connected(a.id)).await;
    (a, b)
}

/// Waits for a condition, and fails the test with `what` if it takes too long.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "timed out waiting for: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime: Runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(test);
}

fn numbered(number: u32, len: usize) -> Bytes {
    let mut frame = number.to_le_bytes().to_vec();
    frame.resize(len.max(4), number as u8);
    frame.into()
}

/// Order is what the log is made of; sizes cover the coalesced, the vectored and the multi-read path.
#[test]
fn frames_arrive_in_order_and_intact_both_ways() {
    run(async {
        let (a, b) = linked_pair().await;
        let sizes = [4, 100, 8 * 1024, 9 * 1024, 70 * 1024, 3 * 1024 * 1024];
        let sent: Vec<_> = (0..200).map(|number| numbered(number, sizes[number as usize % sizes.len()])).collect();
        for frame in &sent {
            // Three megabytes a piece: the queue may be full for a moment, and says so.
            until("room in the queue", || a.net.send(b.id, frame.clone())).await;
            until("room in the queue", || b.net.send(a.id, frame.clone())).await;
        }
        until("all at b", || b.recorder.frames_from(a.id).len() == sent.len()).await;
        until("all at a", || a.recorder.frames_from(b.id).len() == sent.len()).await;
        assert!(b.recorder.frames_from(a.id) == sent);
        assert!(a.recorder.frames_from(b.id) == sent);
    });
}

/// The consensus thread is a plain thread: sending must work without a runtime around it.
#[test]
fn a_thread_outside_the_runtime_can_send() {
    run(async {
        let (a, b) = linked_pair().await;
        let (net, to) = (a.net.clone(), b.id);
        let taken = std::thread::spawn(move || net.send_all(to, (0..500).map(|number| numbered(number, 20))));
        let taken = tokio::task::spawn_blocking(move || taken.join()).await.unwrap().unwrap();
        assert_eq!(taken, 500);
        until("all arrived", || b.recorder.frames_from(a.id).len() == 500).await;
        assert_eq!(b.recorder.frames_from(a.id), (0..500).map(|number| numbered(number, 20)).collect::<Vec<_>>());
    });
}

/// A member that restarts must be back within moments, in both directions, without anybody's help.
#[test]
fn links_come_back_when_a_peer_restarts() {
    run(async {
        let (a, b) = linked_pair().await;
        let address = b.address.clone();
        b.net.stop().await;
        until("a noticed", || !a.net.is_connected(b.id)).await;
        assert!(!a.net.send(b.id, numbered(1, 4)), "nothing is queued for a peer that is down");

        let b = TestNode::start_at(2, &address, |_| ());
        b.knows(&[&a]);
        let start = Instant::now();
        until("linked again", || a.net.is_connected(b.id) && b.net.is_connected(a.id)).await;
        assert!(start.elapsed() < Duration::from_secs(2), "took {:?}", start.elapsed());
        assert!(a.net.send(b.id, numbered(2, 4)) && b.net.send(a.id, numbered(3, 4)));
        until("frames flow", || b.recorder.frames_from(a.id) == [numbered(2, 4)]).await;
        until("frames flow", || a.recorder.frames_from(b.id) == [numbered(3, 4)]).await;
    });
}

/// Failover speed hangs on this: a follower must hear at once that the leader's process is gone.
#[test]
fn the_death_of_a_peer_is_reported_at_once() {
    run(async {
        let (a, b) = linked_pair().await;
        until("up reported", || a.recorder.saw(LinkEvent::Up(b.id))).await;
        let start = Instant::now();
        drop(b.net);
        until("down reported", || a.recorder.saw(LinkEvent::Down(b.id))).await;
        assert!(start.elapsed() < Duration::from_secs(1), "took {:?}", start.elapsed());
        assert!(b.recorder.events.lock().iter().all(|event| *event == LinkEvent::Up(a.id)), "own stop is no news");
    });
}

/// A member moved to another address is followed; one that was removed is let go in both directions.
#[test]
fn peers_can_move_and_be_removed() {
    run(async {
        let (a, b) = linked_pair().await;
        let moved = TestNode::start(2, |_| ());
        a.knows(&[&moved]);
        until("the new address is used", || {
            a.net.send(b.id, numbered(7, 4)) && !moved.recorder.frames.lock().is_empty()
        })
        .await;

        moved.knows(&[&a]);
        until("the other way too", || a.recorder.saw(LinkEvent::Up(b.id)) && moved.net.is_connected(a.id)).await;
        a.recorder.banned.lock().insert(b.id);
        a.net.set_peers(&[]);
        assert!(!a.net.send(b.id, numbered(8, 4)) && !a.net.is_connected(b.id));
        until("told why", || moved.problem_with(a.id).contains("was removed")).await;
        assert!(a.recorder.saw(LinkEvent::Down(b.id)));
    });
}

/// A peer that does not read must not cost more than its queue: sends beyond it are dropped and say so.
#[test]
fn a_peer_that_does_not_read_costs_a_bounded_queue() {
    run(async {
        let a = TestNode::start(1, |config| {
            config.limits.queue_frames = 10;
            config.limits.queue_bytes = 1024 * 1024;
        });
        let b = TestNode::start(2, |_| ());
        b.recorder.deliveries.forget_permits(Semaphore::MAX_PERMITS);
        a.knows(&[&b]);
        until("linked", || a.net.is_connected(b.id)).await;

        // The kernel's buffers and one batch are on their way; whatever exceeds them has to wait here.
        let mut taken = 0;
        let mut refused_in_a_row = 0;
        let start = Instant::now();
        while refused_in_a_row < 200 {
            assert!(start.elapsed() < DEADLINE, "{taken} frames of 64 KiB were taken and still more are");
            if a.net.send(b.id, numbered(taken, 64 * 1024)) {
                taken += 1;
                refused_in_a_row = 0;
            } else {
                refused_in_a_row += 1;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        assert!(a.net.link_state(b.id).unwrap().dropped > 0);

        // Nothing that was taken got lost, and the link works again once the peer reads.
        b.recorder.deliveries.add_permits(Semaphore::MAX_PERMITS);
        until("everything taken arrived", || b.recorder.frames_from(a.id).len() == taken as usize).await;
        let expected: Vec<_> = (0..taken).map(|number| numbered(number, 64 * 1024)).collect();
        assert!(b.recorder.frames_from(a.id) == expected);
    });
}

/// A node whose disk stalls stops reading for a while. That is no reason to call its link dead.
#[test]
fn a_receiver_that_is_slow_but_alive_keeps_its_link() {
    run(async {
        let quick = |config: &mut PeerConfig| {
            config.limits.pulse_every = Duration::from_millis(20);
            config.limits.silence = Duration::from_millis(400);
        };
        let (a, b) = (TestNode::start(1, quick), TestNode::start(2, quick));
        b.recorder.deliveries.forget_permits(Semaphore::MAX_PERMITS);
        a.knows(&[&b]);
        until("linked", || a.net.send(b.id, numbered(1, 4))).await;
        let start = Instant::now();
        until("several times the silence allowed", || {
            assert!(a.net.is_connected(b.id), "dropped: {}", a.problem_with(b.id));
            start.elapsed() > Duration::from_millis(1500)
        })
        .await;
        b.recorder.deliveries.add_permits(1);
        until("delivered", || b.recorder.frames_from(a.id) == [numbered(1, 4)]).await;
        assert!(!b.recorder.saw(LinkEvent::Down(a.id)));
    });
}
