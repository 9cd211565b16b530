//! Bytes that must not get through, and links that must recover.

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::peers::frame::{self, FRAME_BYTES_MAX, FrameReader, FrameWriter};
use crate::peers::handshake::{HANDSHAKE_BYTES_MAX, Identity, Purpose, VERSIONS};

/// A connection to `node` that has shaken hands as node `from` and can now misbehave.
pub(super) async fn connect_raw(node: &TestNode, from: NodeId, purpose: Purpose) -> TcpStream {
    let mut tcp = TcpStream::connect(&node.address).await.unwrap();
    let identity = Identity { cluster: CLUSTER, node: from, disk: 1, versions: VERSIONS, advertise: String::new() };
    let mut reader = FrameReader::new(HANDSHAKE_BYTES_MAX);
    let mut writer = FrameWriter::new(DEADLINE, HANDSHAKE_BYTES_MAX);
    identity.greet(&mut tcp, &mut reader, &mut writer, node.id, purpose).await.unwrap();
    tcp
}

pub(super) fn encoded(payload: &[u8]) -> Vec<u8> {
    let mut bytes = frame::header(&[payload], FRAME_BYTES_MAX).unwrap().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

/// Reads pulses until the other side hangs up.
pub(super) async fn hung_up_on(mut tcp: TcpStream) {
    let drain = async { while tcp.read(&mut [0; 64]).await.is_ok_and(|count| count > 0) {} };
    tokio::time::timeout(DEADLINE, drain).await.expect("the other side should have hung up");
}

/// Damage on the way must cost the link and nothing else: what came whole before it is delivered,
/// nothing of the damaged frame or after it is, and the next link works.
#[test]
fn a_damaged_frame_costs_the_link_and_later_frames_still_flow() {
    run(async {
        let b = TestNode::start(2, |_| ());
        let from = NodeId(1);
        let mut corrupted = encoded(b"second");
        *corrupted.last_mut().unwrap() ^= 1;
        let oversized = (FRAME_BYTES_MAX as u32 + 1).to_le_bytes().to_vec();
        for damage in [corrupted, oversized] {
            b.recorder.frames.lock().clear();
            let mut tcp = connect_raw(&b, from, Purpose::Messages).await;
            let bytes = [encoded(b"first"), damage, encoded(b"third")].concat();
            tcp.write_all(&bytes).await.unwrap();
            hung_up_on(tcp).await;
            assert_eq!(b.recorder.frames_from(from), [Bytes::from_static(b"first")]);
        }

        b.recorder.frames.lock().clear();
        let mut tcp = connect_raw(&b, from, Purpose::Messages).await;
        tcp.write_all(&encoded(b"later")).await.unwrap();
        until("later frames flow", || b.recorder.frames_from(from) == [Bytes::from_static(b"later")]).await;
        // A frame cut short by the end of the connection is not delivered either.
        tcp.write_all(&encoded(b"cut short")[..12]).await.unwrap();
        drop(tcp);
        until("the end is seen", || b.recorder.events.lock().last() == Some(&LinkEvent::Down(from))).await;
        assert_eq!(b.recorder.frames_from(from).len(), 1);
    });
}

/// A peer that reconnects before its old connection was seen to end must not be reported as down:
/// that would start an election against a healthy leader.
#[test]
fn the_end_of_a_replaced_connection_is_not_reported() {
    run(async {
        let b = TestNode::start(2, |_| ());
        let from = NodeId(1);
        let mut old = connect_raw(&b, from, Purpose::Messages).await;
        old.write_all(&encoded(b"old")).await.unwrap();
        until("old is read", || b.recorder.frames_from(from).len() == 1).await;
        let mut new = connect_raw(&b, from, Purpose::Messages).await;
        hung_up_on(old).await;
        new.write_all(&encoded(b"new")).await.unwrap();
        until("new is read", || b.recorder.frames_from(from).len() == 2).await;
        assert_eq!(*b.recorder.events.lock(), [LinkEvent::Up(from), LinkEvent::Up(from)]);
        drop(new);
        until("down in the end", || b.recorder.events.lock().last() == Some(&LinkEvent::Down(from))).await;
    });
}

/// A machine that lost power says nothing, and neither does TCP for a quarter of an hour. Both ends
/// must notice by themselves.
#[test]
fn a_peer_that_falls_silent_is_noticed_at_both_ends() {
    run(async {
        let quick = |config: &mut PeerConfig| {
            config.limits.pulse_every = Duration::from_millis(20);
            config.limits.silence = Duration::from_millis(200);
        };
        // The accepting end: a peer that shakes hands and never says another word.
        let b = TestNode::start(2, quick);
        let _mute = connect_raw(&b, NodeId(1), Purpose::Messages).await;
        until("accepting end noticed", || b.recorder.saw(LinkEvent::Down(NodeId(1)))).await;

        // The dialing end: everything is forwarded until the cable is pulled.
        let a = TestNode::start(1, quick);
        let cable = Cable::to(&b).await;
        a.net.set_peers(&[(b.id, vec![cable.address.clone()])]);
        until("linked", || a.net.send(b.id, numbered(1, 4))).await;
        cable.pulled.send_replace(true);
        until("dialing end noticed", || a.problem_with(b.id).contains("nothing was heard")).await;
        cable.pulled.send_replace(false);
        until("back after the cable is", || a.net.send(b.id, numbered(2, 4))).await;
    });
}

/// A forwarder that, once pulled, neither passes bytes on nor closes anything, like a dead cable.
struct Cable {
    address: String,
    pulled: tokio::sync::watch::Sender<bool>,
}

impl Cable {
    async fn to(node: &TestNode) -> Cable {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (pulled, watching) = tokio::sync::watch::channel(false);
        let target = node.address.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(&target).await.unwrap();
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                tokio::spawn(forward(near_in, far_out, watching.clone()));
                tokio::spawn(forward(far_in, near_out, watching.clone()));
            }
        });
        Cable { address, pulled }
    }
}

async fn forward(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut pulled: tokio::sync::watch::Receiver<bool>,
) {
    let mut buffer = [0; 4096];
    while let Ok(count) = from.read(&mut buffer).await {
        let _ = pulled.wait_for(|pulled| !*pulled).await;
        if count == 0 || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Port scanners, health checks and fuzzers reach the peer port. None of them may stop the node, be
/// delivered, or keep a real peer out.
#[test]
fn random_bytes_never_stop_the_acceptor() {
    run(async {
        let b = Arc::new(TestNode::start(2, |config| config.limits.handshake = Duration::from_millis(50)));
        let node = Arc::clone(&b);
        let handle = Handle::current();
        let thrown = tokio::task::spawn_blocking(move || {
            let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(100));
            let bytes = proptest::collection::vec(any::<u8>(), 0..300);
            runner.run(&(bytes, any::<bool>(), 0usize..40), |(bytes, shake_hands, keep)| {
                handle.block_on(throw(&node, &bytes, shake_hands, keep));
                Ok(())
            })
        });
        thrown.await.unwrap().unwrap();
        assert!(b.recorder.frames_from(NodeId(1)).is_empty());

        let a = TestNode::start(3, |_| ());
        a.knows(&[&b]);
        until("a real peer still gets in", || a.net.send(b.id, numbered(1, 4))).await;
    });
}

/// Throws `bytes` at the node: after a good handshake, or after the first `keep` bytes of one.
async fn throw(node: &TestNode, bytes: &[u8], shake_hands: bool, keep: usize) {
    let mut tcp = if shake_hands {
        connect_raw(node, NodeId(1), Purpose::Messages).await
    } else {
        let mut tcp = TcpStream::connect(&node.address).await.unwrap();
        let hello = crate::peers::handshake::Hello {
            versions: VERSIONS,
            cluster: CLUSTER,
            from: NodeId(1),
            to: node.id,
            purpose: Purpose::Snapshot,
            advertise: "somewhere".into(),
            disk: 1,
        };
        let hello = encoded(&hello.encode());
        let _ = tcp.write_all(&hello[..keep.min(hello.len())]).await;
        tcp
    };
    // The node may hang up at any byte; that is its right.
    let _ = tcp.write_all(bytes).await;
    let _ = tcp.shutdown().await;
    hung_up_on(tcp).await;
}
