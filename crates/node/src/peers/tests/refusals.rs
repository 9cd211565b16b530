//! Handshakes that must fail, and what both sides learn from them.

use super::*;
use crate::peers::frame::{FrameReader, FrameWriter};
use crate::peers::handshake::{HANDSHAKE_BYTES_MAX, HandshakeError, Identity, Purpose, Versions};

/// A node started with an old configuration must never mix two clusters' logs, and the operator of
/// either side must be able to read why it does not join.
#[test]
fn a_peer_of_another_cluster_is_refused_and_both_sides_say_why() {
    run(async {
        let a = TestNode::start(1, |config| config.cluster = ClusterId(0xbad));
        let b = TestNode::start(2, |_| ());
        a.knows(&[&b]);
        until("a knows why", || a.problem_with(b.id).contains("this is cluster c1")).await;
        let turned_away = b.net.last_turned_away().unwrap();
        assert_eq!(turned_away.node, Some(a.id));
        assert!(turned_away.reason.contains("belongs to cluster bad"), "{}", turned_away.reason);
        assert!(!a.net.is_connected(b.id) && !a.net.send(b.id, numbered(1, 4)));
        assert!(b.recorder.events.lock().is_empty());
    });
}

/// Two members with swapped addresses would vote for each other's logs.
#[test]
fn a_peer_at_the_wrong_address_is_refused_and_both_sides_say_why() {
    run(async {
        let (a, b) = (TestNode::start(1, |_| ()), TestNode::start(2, |_| ()));
        a.net.set_peers(&[(NodeId(3), vec![b.address.clone()])]);
        until("a knows why", || a.problem_with(NodeId(3)).contains("this is node 2, not node 3")).await;
        assert!(b.net.last_turned_away().unwrap().reason.contains("correct the peer address of node 3"));
    });
}

/// A copied data directory makes two processes claim one identity; the second must not get in.
#[test]
fn a_peer_that_claims_our_own_id_is_refused() {
    run(async {
        let (twin, b) = (TestNode::start(2, |_| ()), TestNode::start(2, |_| ()));
        let identity = identity(&twin, Versions { min: 1, max: 1 });
        let error = greet(&identity, &b, b.id).await.unwrap_err();
        assert!(error.to_string().contains("stop one of the two"), "{error}");
    });
}

/// During a rolling upgrade a node too new or too old must be told so, not fed frames it misreads.
#[test]
fn a_peer_of_another_protocol_version_is_refused_and_both_sides_say_why() {
    run(async {
        let (a, b) = (TestNode::start(1, |_| ()), TestNode::start(2, |_| ()));
        let error = greet(&identity(&a, Versions { min: 7, max: 9 }), &b, b.id).await.unwrap_err();
        assert!(matches!(&error, HandshakeError::Refused(reason) if reason.contains("the caller 7 to 9")), "{error}");
        until("b noted it", || b.net.last_turned_away().is_some()).await;
        assert!(b.net.last_turned_away().unwrap().reason.contains("speaks peer protocol 1 to 1"));

        let newest = greet(&identity(&a, Versions { min: 1, max: 9 }), &b, b.id).await.unwrap();
        assert_eq!(newest, 1, "ranges that meet agree on the newest common version");
    });
}

/// A removed member that still runs must not disturb the cluster; one that is let in again must not
/// need a restart.
#[test]
fn a_removed_member_is_refused_until_it_is_admitted() {
    run(async {
        let (a, b) = (TestNode::start(1, |_| ()), TestNode::start(2, |_| ()));
        b.recorder.banned.lock().insert(a.id);
        a.knows(&[&b]);
        until("a knows why", || a.problem_with(b.id).contains("node 1 was removed")).await;
        b.recorder.banned.lock().clear();
        until("let in", || a.net.send(b.id, numbered(1, 4))).await;
        assert_eq!(a.problem_with(b.id), "");
    });
}

/// A connection that says nothing must not hold a place for longer than the deadline.
#[test]
fn a_silent_connection_is_dropped_at_the_handshake_deadline() {
    run(async {
        let b = TestNode::start(2, |config| config.limits.handshake = Duration::from_millis(100));
        let _silent = tokio::net::TcpStream::connect(&b.address).await.unwrap();
        until("dropped", || b.net.last_turned_away().is_some_and(|away| away.reason.contains("in time"))).await;
    });
}

/// Whoever answers on a peer's port without being one (a web server, say) must not hang the link.
#[test]
fn an_acceptor_that_is_no_peer_is_reported_as_such() {
    run(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut tcp, _)) = listener.accept().await {
                let _ = tokio::io::AsyncWriteExt::write_all(&mut tcp, b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            }
        });
        let a = TestNode::start(1, |_| ());
        a.net.set_peers(&[(NodeId(2), vec![address])]);
        until("reported", || a.problem_with(NodeId(2)).contains("does not speak the Tidelock peer protocol")).await;
    });
}

fn identity(node: &TestNode, versions: Versions) -> Identity {
    Identity { cluster: CLUSTER, node: node.id, disk: 1, versions, advertise: node.address.clone() }
}

async fn greet(identity: &Identity, at: &TestNode, to: NodeId) -> Result<u32, HandshakeError> {
    let mut tcp = tokio::net::TcpStream::connect(&at.address).await.unwrap();
    let mut reader = FrameReader::new(HANDSHAKE_BYTES_MAX);
    let mut writer = FrameWriter::new(DEADLINE, HANDSHAKE_BYTES_MAX);
    identity.greet(&mut tcp, &mut reader, &mut writer, to, Purpose::Messages).await
}
