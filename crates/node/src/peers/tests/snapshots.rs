//! Snapshot transfers: whole, refused, interrupted.

use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

use super::broken_links::{connect_raw, encoded, hung_up_on};
use super::*;
use crate::peers::handshake::Purpose;
use crate::peers::{SnapshotSendError, SnapshotSource};

/// Where a recorder keeps received snapshots.
#[derive(Default)]
pub(super) struct Shelf {
    shared: Arc<ShelfState>,
}

#[derive(Default)]
struct ShelfState {
    heads: Mutex<Vec<(NodeId, Bytes)>>,
    finished: Mutex<Vec<Vec<u8>>>,
    dropped_unfinished: AtomicUsize,
    written: AtomicUsize,
    fail_writes: AtomicBool,
    fail_finish: AtomicBool,
}

impl Shelf {
    pub(super) fn open(&self, from: NodeId, head: &Bytes) -> Result<Box<dyn SnapshotSink>, String> {
        if head.starts_with(b"unwanted") {
            return Err("this node already has a newer one".into());
        }
        self.shared.heads.lock().push((from, head.clone()));
        Ok(Box::new(ShelfSink { shelf: Arc::clone(&self.shared), bytes: Vec::new(), finished: false }))
    }
}

struct ShelfSink {
    shelf: Arc<ShelfState>,
    bytes: Vec<u8>,
    finished: bool,
}

impl SnapshotSink for ShelfSink {
    fn write(&mut self, chunk: Bytes) -> io::Result<()> {
        if self.shelf.fail_writes.load(Ordering::Relaxed) {
            return Err(io::Error::other("no space left"));
        }
        self.bytes.extend_from_slice(&chunk);
        self.shelf.written.fetch_add(chunk.len(), Ordering::Relaxed);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        if self.shelf.fail_finish.load(Ordering::Relaxed) {
            return Err(io::Error::other("sync failed"));
        }
        self.finished = true;
        let bytes = std::mem::take(&mut self.bytes);
        self.shelf.finished.lock().push(bytes);
        Ok(())
    }
}

impl Drop for ShelfSink {
    fn drop(&mut self) {
        if !self.finished {
            self.shelf.dropped_unfinished.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A snapshot in memory; may fail, or wait for a permit, before its last bytes.
struct Memory {
    head: &'static [u8],
    bytes: Bytes,
    fail_at_end: bool,
    hold_at_end: Option<std::sync::mpsc::Receiver<()>>,
}

impl Memory {
    fn of(bytes: &[u8]) -> Memory {
        Memory { head: b"head", bytes: Bytes::copy_from_slice(bytes), fail_at_end: false, hold_at_end: None }
    }
}

impl SnapshotSource for Memory {
    fn head(&self) -> Bytes {
        Bytes::from_static(self.head)
    }

    fn read(&mut self, max: usize) -> io::Result<Option<Bytes>> {
        if self.bytes.len() <= max {
            if let Some(hold) = self.hold_at_end.take() {
                // Let go of by the test, or by its end.
                let _ = hold.recv_timeout(DEADLINE);
            }
            if self.fail_at_end {
                return Err(io::Error::other("bad sector"));
            }
        }
        let count = self.bytes.len().min(max);
        Ok((count > 0).then(|| self.bytes.split_to(count)))
    }
}

fn contents(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 % 251) as u8).collect()
}

fn begin(from: &TestNode, to: NodeId, source: Memory) -> oneshot::Receiver<Result<(), SnapshotSendError>> {
    let (done, outcome) = oneshot::channel();
    let report = Box::new(move |sent| done.send(sent).expect("the test waits for it"));
    from.net.send_snapshot(to, Box::new(source), report);
    outcome
}

async fn outcome(outcome: oneshot::Receiver<Result<(), SnapshotSendError>>) -> Result<(), SnapshotSendError> {
    tokio::time::timeout(DEADLINE, outcome).await.expect("the sender is told in time").expect("and exactly once")
}

async fn one_way() -> (TestNode, TestNode) {
    let (a, b) = (TestNode::start(1, |_| ()), TestNode::start(2, |_| ()));
    a.knows(&[&b]);
    (a, b)
}

/// A follower restored from a snapshot with a missing or doubled byte would diverge for good.
#[test]
fn a_snapshot_arrives_whole_and_is_confirmed_after_it_was_finished() {
    run(async {
        let (a, b) = one_way().await;
        let shelf = &b.recorder.snapshots.shared;
        for len in [0, 1, 256 * 1024, 5 * 1024 * 1024 + 17] {
            let bytes = contents(len);
            outcome(begin(&a, b.id, Memory::of(&bytes))).await.unwrap();
            assert!(shelf.finished.lock().pop() == Some(bytes), "{len} bytes");
            assert_eq!(shelf.heads.lock().pop(), Some((a.id, Bytes::from_static(b"head"))));
        }
        assert_eq!(shelf.dropped_unfinished.load(Ordering::Relaxed), 0);
    });
}

/// Two transfers at once would fill the follower's disk twice; messages must flow beside one.
#[test]
fn one_transfer_per_peer_runs_at_a_time_and_messages_flow_beside_it() {
    run(async {
        let (a, b) = one_way().await;
        let (release, hold) = std::sync::mpsc::sync_channel(1);
        let mut first = Memory::of(&contents(1024 * 1024));
        first.hold_at_end = Some(hold);
        let first = begin(&a, b.id, first);
        let second = outcome(begin(&a, b.id, Memory::of(b"x"))).await;
        assert!(matches!(second, Err(SnapshotSendError::Busy(_))), "{second:?}");
        until("messages flow", || a.net.send(b.id, numbered(1, 4))).await;
        until("messages arrive", || !b.recorder.frames.lock().is_empty()).await;
        release.send(()).unwrap();
        outcome(first).await.unwrap();
        outcome(begin(&a, b.id, Memory::of(b"x"))).await.unwrap();
        let stranger = outcome(begin(&a, NodeId(9), Memory::of(b"x"))).await;
        assert!(matches!(stranger, Err(SnapshotSendError::UnknownPeer(NodeId(9)))), "{stranger:?}");
    });
}

/// Half a snapshot must never be installed, whichever side dies; and the sender must be told.
#[test]
fn an_interrupted_transfer_leaves_nothing_finished_and_tells_the_sender() {
    run(async {
        for receiver_dies in [false, true] {
            let (a, b) = one_way().await;
            let shelf = Arc::clone(&b.recorder.snapshots.shared);
            // Held to the end of the test, so that the transfer can never be complete.
            let (_release, hold) = std::sync::mpsc::sync_channel::<()>(1);
            let mut source = Memory::of(&contents(2 * 1024 * 1024));
            source.hold_at_end = Some(hold);
            let sending = begin(&a, b.id, source);
            until("half-way", || shelf.written.load(Ordering::Relaxed) > 1024 * 1024).await;
            if receiver_dies {
                b.net.stop().await;
                let sent = outcome(sending).await;
                assert!(matches!(sent, Err(SnapshotSendError::Interrupted(_))), "{sent:?}");
            } else {
                drop(a.net);
                let sent = outcome(sending).await;
                assert!(matches!(sent, Err(SnapshotSendError::Stopping)), "{sent:?}");
            }
            until("the sink is let go", || shelf.dropped_unfinished.load(Ordering::Relaxed) == 1).await;
            assert!(shelf.finished.lock().is_empty());
        }
    });
}

/// Whatever is wrong with the bytes of a snapshot, it must not be installed: a missing chunk, a wrong
/// total, a flipped bit, a frame that has no business there.
#[test]
fn a_damaged_snapshot_is_never_finished() {
    run(async {
        let b = TestNode::start(2, |_| ());
        let shelf = &b.recorder.snapshots.shared;
        let (head, chunk) = (encoded(b"\x01head"), encoded(b"\x02some bytes"));
        let end = |total: u64| encoded(&[&[3], &total.to_le_bytes()[..]].concat());
        let mut flipped = chunk.clone();
        *flipped.last_mut().unwrap() ^= 4;
        let endings = [
            vec![],
            end(9),
            end(11),
            [flipped, end(20)].concat(),
            encoded(b"\x03short"),
            [head.clone(), end(10)].concat(),
        ];
        for (round, ending) in endings.iter().enumerate() {
            let mut tcp = connect_raw(&b, NodeId(1), Purpose::Snapshot).await;
            tcp.write_all(&[&head[..], &chunk[..], &ending[..]].concat()).await.unwrap();
            tcp.shutdown().await.unwrap();
            hung_up_on(tcp).await;
            assert_eq!(shelf.dropped_unfinished.load(Ordering::Relaxed), round + 1);
            assert!(shelf.finished.lock().is_empty(), "ending {round}");
        }

        // The same by the book, to show that it is the damage that made the difference.
        let mut tcp = connect_raw(&b, NodeId(1), Purpose::Snapshot).await;
        tcp.write_all(&[head, chunk, end(10)].concat()).await.unwrap();
        let mut answers = Vec::new();
        until("finished", || !shelf.finished.lock().is_empty()).await;
        tcp.read_to_end(&mut answers).await.unwrap();
        assert!(answers.ends_with(&encoded(b"\x05")), "done is the last word");
    });
}

/// Each way a transfer can fail asks for another reaction, so each must be told apart.
#[test]
fn refusal_and_failure_of_either_side_are_told_apart() {
    run(async {
        let (a, b) = one_way().await;
        let shelf = &b.recorder.snapshots.shared;
        let mut unwanted = Memory::of(b"x");
        unwanted.head = b"unwanted";
        let refused = outcome(begin(&a, b.id, unwanted)).await;
        assert!(matches!(&refused, Err(SnapshotSendError::Refused(why)) if why.contains("newer one")), "{refused:?}");

        shelf.fail_writes.store(true, Ordering::Relaxed);
        let failed = outcome(begin(&a, b.id, Memory::of(&contents(8 * 1024 * 1024)))).await;
        assert!(
            matches!(&failed, Err(SnapshotSendError::ReceiverFailed(why)) if why.contains("no space left")),
            "{failed:?}"
        );
        shelf.fail_writes.store(false, Ordering::Relaxed);

        shelf.fail_finish.store(true, Ordering::Relaxed);
        let failed = outcome(begin(&a, b.id, Memory::of(b"x"))).await;
        assert!(
            matches!(&failed, Err(SnapshotSendError::ReceiverFailed(why)) if why.contains("sync failed")),
            "{failed:?}"
        );
        shelf.fail_finish.store(false, Ordering::Relaxed);

        let mut unreadable = Memory::of(&contents(1024 * 1024));
        unreadable.fail_at_end = true;
        let failed = outcome(begin(&a, b.id, unreadable)).await;
        assert!(matches!(failed, Err(SnapshotSendError::Source(_))), "{failed:?}");
        until("no sink is left open", || shelf.dropped_unfinished.load(Ordering::Relaxed) == 3).await;
        assert!(shelf.finished.lock().is_empty());

        b.recorder.banned.lock().insert(a.id);
        let refused = outcome(begin(&a, b.id, Memory::of(b"x"))).await;
        assert!(matches!(&refused, Err(SnapshotSendError::Refused(why)) if why.contains("removed")), "{refused:?}");
    });
}

/// Feeding a new member must not starve the clients of the old ones.
#[test]
fn a_transfer_keeps_to_its_bandwidth() {
    run(async {
        let a = TestNode::start(1, |config| {
            config.limits.snapshot_bytes_per_second = NonZeroU64::new(1024 * 1024);
        });
        let b = TestNode::start(2, |_| ());
        a.knows(&[&b]);
        let start = Instant::now();
        outcome(begin(&a, b.id, Memory::of(&contents(512 * 1024)))).await.unwrap();
        assert!(start.elapsed() >= Duration::from_millis(480), "took only {:?}", start.elapsed());
    });
}

/// A member removed in the middle of its snapshot must not be fed on.
#[test]
fn removing_the_peer_ends_its_transfer() {
    run(async {
        let (a, b) = one_way().await;
        let (_release, hold) = std::sync::mpsc::sync_channel::<()>(1);
        let mut source = Memory::of(&contents(1024 * 1024));
        source.hold_at_end = Some(hold);
        let sending = begin(&a, b.id, source);
        let shelf = &b.recorder.snapshots.shared;
        until("under way", || shelf.written.load(Ordering::Relaxed) > 0).await;
        a.net.set_peers(&[]);
        let sent = outcome(sending).await;
        assert!(matches!(sent, Err(SnapshotSendError::UnknownPeer(_))), "{sent:?}");
        until("the sink is let go", || shelf.dropped_unfinished.load(Ordering::Relaxed) == 1).await;
    });
}
