//! What followers answer, and what they need not.

use bytes::Bytes;
use tidelock_model::NodeId;
use tidelock_replica::{Call, Input, glance};

use super::{Cluster, put};

fn is_answer(bytes: &Bytes) -> bool {
    glance::describe(bytes).contains("MsgAppendResponse")
}

/// A lone write was answered twice by each follower, and the second answer woke the leader for nothing.
#[test]
fn a_follower_answers_a_write_once() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let leader = cluster.elect();
    for number in 1..=3 {
        cluster.propose(leader, number, put("k"));
        let mut answers = 0;
        while let Some((from, to, bytes)) = cluster.wire.pop_front() {
            answers += usize::from(is_answer(&bytes));
            cluster.step(to, Input::Frame { from, bytes });
        }
        assert_eq!(answers, 2, "one of each follower");
    }
    cluster.check_agreement();
}

/// R2: a leader that never learns what a follower holds would send it everything again, or count without it for ever.
/// The only answer may be lost with a connection.
#[test]
fn an_answer_that_was_lost_is_given_again() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let leader = cluster.elect();
    let deaf = cluster.follower();
    cluster.propose(leader, 1, put("k"));
    while let Some((from, to, bytes)) = cluster.wire.pop_front() {
        if from != deaf || !is_answer(&bytes) {
            cluster.step(to, Input::Frame { from, bytes });
        }
    }
    let last = cluster.nodes[&leader].replica.standing().committed;
    let known = |cluster: &Cluster, of: NodeId| {
        let standing = cluster.nodes[&leader].replica.standing();
        standing.progress.iter().find(|(id, _, _)| *id == of).map(|(_, holds, _)| *holds)
    };
    assert!(known(&cluster, deaf) < Some(last), "the answer was lost");
    cluster.tick(2);
    assert_eq!(known(&cluster, deaf), Some(last));
}

/// Writes that a lost leader leaves behind go to the next one all at once. In one frame they would hold up the answers to
/// its heartbeats, and a frame beyond what a link takes would be made and dropped again until all of them are given up.
#[test]
fn what_is_sent_on_to_a_leader_goes_in_frames_of_bounded_size() {
    const BYTES_MAX: usize = 1 << 20;
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let leader = cluster.elect();
    let follower = cluster.follower();
    let node = cluster.nodes.get_mut(&follower).unwrap();
    for number in 1..=20 {
        let bytes = Bytes::from(vec![7; BYTES_MAX / 3]);
        node.replica.step(Input::Call(Call::Propose { number, bytes }));
    }
    let frames = node.replica.effects().frames;
    let sizes: Vec<usize> = frames.iter().filter(|(to, _)| *to == leader).map(|(_, frame)| frame.len()).collect();
    assert!(sizes.iter().all(|size| *size < BYTES_MAX + 1000), "{sizes:?}");
    assert_eq!(sizes.iter().sum::<usize>() / (BYTES_MAX / 3), 20);
}
