//! What a broken link to the leader leads to (decision 0018): another leader at once if the leader is gone, and
//! nothing if it is not.

use std::collections::BTreeSet;

use bytes::Bytes;
use tidelock_model::{NodeId, Term};
use tidelock_replica::{Call, Input, glance};

use super::{Cluster, put};

/// A cluster in which a leader has led for a while.
fn led(ids: &[u64]) -> (Cluster, NodeId, Vec<NodeId>) {
    let mut cluster = Cluster::founded(ids);
    let leader = cluster.elect();
    let others = cluster.nodes.keys().copied().filter(|id| *id != leader).collect();
    (cluster, leader, others)
}

fn term(cluster: &Cluster) -> Term {
    cluster.nodes.values().map(|node| node.replica.term()).max().unwrap()
}

/// How often somebody on the wire asks to be elected.
fn questions(wire: &[(NodeId, NodeId, Bytes)]) -> usize {
    wire.iter().filter(|(_, _, bytes)| glance::describe(bytes).contains("MsgRequestPreVote ")).count()
}

/// Writes wait from the death of a leader until there is another. Its followers see its connections end at once;
/// waiting for silence would take an election timeout.
#[test]
fn a_leader_whose_links_ended_is_succeeded_without_waiting() {
    // In whatever order they notice, and whoever died.
    for (ids, first) in [(&[1, 2, 3][..], 0), (&[1, 2, 3], 1), (&[1, 2, 3, 4, 5], 0), (&[1, 2, 3, 4, 5], 3)] {
        let (mut cluster, old, mut others) = led(ids);
        let client = others[0];
        cluster.propose(client, 1, put("before"));
        cluster.settle();
        cluster.cut_off.insert(old);
        others.rotate_left(first);
        for other in &others {
            cluster.step(*other, Input::PeerGone { peer: old });
            cluster.settle();
        }
        let new = cluster.leader();
        assert_ne!(new, old);
        cluster.propose(client, 2, put("after"));
        cluster.settle();
        assert_eq!(cluster.nodes[&client].answered.len(), 2, "a write is answered before the next tick");
        assert_eq!(term(&cluster), Term(cluster.nodes[&old].replica.term().0 + 1), "one election sufficed");
    }
}

/// The member whose turn is first may have less of the log than another. It cannot win, and must not make the
/// other wait.
#[test]
fn a_member_with_more_of_the_log_asks_instead() {
    let (mut cluster, old, others) = led(&[1, 2, 3]);
    let (first, second) = (others[0], others[1]);
    cluster.cut_off.insert(first);
    cluster.propose(old, 1, put("only at two"));
    cluster.settle();
    cluster.cut_off = BTreeSet::from([old]);
    cluster.step(second, Input::PeerGone { peer: old });
    cluster.step(first, Input::PeerGone { peer: old });
    cluster.settle();
    assert_eq!(cluster.leader(), second);
    cluster.tick(2);
    assert_eq!(cluster.nodes[&first].state.keys(), 1, "what was acknowledged is there");
}

/// A cable, a proxy or a firewall can end one follower's connections while everybody else is well. That must depose
/// nobody, cost that follower its leader for a heartbeat at most, and not fill the network with questions.
#[test]
fn a_link_that_breaks_while_the_leader_lives_changes_nothing() {
    let (mut cluster, leader, others) = led(&[1, 2, 3]);
    let before = term(&cluster);
    let mut asked = 0;
    for round in 0..300 {
        cluster.step(others[round % 2], Input::PeerGone { peer: leader });
        asked += questions(cluster.wire.make_contiguous());
        cluster.settle();
        cluster.tick(1);
        asked += questions(cluster.wire.make_contiguous());
        assert_eq!((cluster.leader(), term(&cluster)), (leader, before), "round {round}");
        assert_eq!(cluster.nodes[&others[round % 2]].replica.leader(), Some(leader), "round {round}");
    }
    assert!((1..60).contains(&asked), "{asked} questions because of 300 broken links");
}

/// The same while the leader does not reach the follower for a while: it asks a few times, then it waits.
#[test]
fn a_follower_that_lost_its_leader_alone_asks_a_few_times_only() {
    let (mut cluster, leader, others) = led(&[1, 2, 3]);
    let (before, lone) = (term(&cluster), others[1]);
    cluster.step(lone, Input::PeerGone { peer: leader });
    let mut asked = 0;
    // Less than an election timeout: what its timer does is not the question here.
    for _ in 0..9 {
        asked += questions(cluster.wire.make_contiguous());
        cluster.wire.retain(|(from, to, _)| (*from, *to) != (leader, lone));
        while let Some((from, to, bytes)) = cluster.wire.pop_front() {
            if (from, to) != (leader, lone) {
                cluster.step(to, Input::Frame { from, bytes });
            }
        }
        cluster.now += 100;
        for id in [leader, others[0], lone] {
            cluster.step(id, Input::Tick { now: tidelock_model::LogTime(cluster.now) });
        }
    }
    assert!((1..=6).contains(&asked), "{asked} questions to two others");
    assert_eq!((cluster.leader(), term(&cluster)), (leader, before));
    cluster.settle();
    cluster.tick(2);
    assert_eq!(cluster.nodes[&lone].replica.leader(), Some(leader), "and follows it again");
}

/// A member that asked too early, while the other still heard from the dead leader, is answered when the other
/// notices: nobody has to ask twice.
#[test]
fn whoever_asked_too_early_is_answered_when_the_other_notices() {
    let (mut cluster, old, others) = led(&[1, 2, 3]);
    cluster.cut_off.insert(old);
    cluster.step(others[0], Input::PeerGone { peer: old });
    cluster.settle();
    assert!(others.iter().all(|id| !cluster.nodes[id].replica.is_leader()), "one alone deposes nobody");
    cluster.step(others[1], Input::PeerGone { peer: old });
    cluster.settle();
    assert_eq!(cluster.leader(), others[0]);
}

/// H7: the deposed leader lives on when all its links broke at once. It must not serve reads as if it led.
#[test]
fn h7_a_leader_taken_for_dead_by_all_confirms_no_read() {
    let (mut cluster, old, others) = led(&[1, 2, 3]);
    cluster.cut_off.insert(old);
    for other in &others {
        cluster.step(*other, Input::PeerGone { peer: old });
    }
    cluster.step(old, Input::Call(Call::Read(1)));
    cluster.settle();
    let new = cluster.leader();
    cluster.propose(new, 1, put("newer"));
    cluster.settle();
    assert_eq!(cluster.nodes[&new].answered.len(), 1);
    assert!(!cluster.nodes[&old].fresh.contains(&1));
    cluster.cut_off.clear();
    cluster.tick(5);
    assert_eq!(cluster.leader(), new, "it follows when it hears of the new one");
    cluster.check_agreement();
}
