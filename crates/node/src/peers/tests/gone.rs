//! When a peer counts as gone: a hint on which elections hang, so it must come at once, once, and not for every
//! connection that breaks (decision 0018).

use super::*;

fn times_gone(node: &TestNode, peer: NodeId) -> usize {
    node.recorder.events.lock().iter().filter(|event| **event == LinkEvent::Gone(peer)).count()
}

/// Nobody waits for the silence of a process whose end the system has already told.
#[test]
fn a_peer_whose_process_ended_is_said_to_be_gone_once_for_each_time() {
    run(async {
        let (a, mut b) = linked_pair().await;
        for time in 1..=3 {
            until("heard", || a.recorder.saw(LinkEvent::Up(b.id))).await;
            let address = b.address.clone();
            b.net.stop().await;
            until("gone", || times_gone(&a, b.id) == time).await;
            // Dialed in vain several times meanwhile.
            until("tried again", || a.problem_with(b.id).contains("refused")).await;
            b = TestNode::start_at(2, &address, |_| ());
            a.recorder.events.lock().retain(|event| *event != LinkEvent::Up(b.id));
            b.knows(&[&a]);
            until("back", || a.net.is_connected(b.id) && b.net.is_connected(a.id)).await;
            assert_eq!(times_gone(&a, b.id), time, "coming back is not going");
        }
    });
}

/// A connection that a firewall or a proxy cut is made anew. Its peer is alive, and must not be voted out.
#[test]
fn a_peer_that_takes_a_new_connection_is_not_gone() {
    run(async {
        let (a, b) = linked_pair().await;
        // The newer connection counts, so that of `b` is cut; and then the newer one ends, too.
        for _ in 0..10 {
            drop(broken_links::connect_raw(&a, b.id, crate::peers::handshake::Purpose::Messages).await);
        }
        a.recorder.frames.lock().clear();
        until("heard again", || b.net.send(a.id, numbered(2, 4)) && !a.recorder.frames_from(b.id).is_empty()).await;
        assert_eq!(times_gone(&a, b.id), 0);
    });
}
