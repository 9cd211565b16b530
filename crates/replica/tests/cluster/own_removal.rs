//! Who is removed leaves when others know of it, and not before.

use super::*;

/// M1: a leader that found its own removal agreed on once stopped at once and told nobody. The others went on counting
/// it among the voters; with one more of them lost nobody could ever lead again.
#[test]
fn m1_a_leader_does_not_leave_before_others_know_that_it_was_removed() {
    let mut cluster = Cluster::founded(&[1, 2, 3, 4]);
    let leader = cluster.elect();
    let followers: Vec<NodeId> = cluster.nodes.keys().copied().filter(|id| *id != leader).collect();
    let (removed, other, lost) = (followers[0], followers[1], followers[2]);
    cluster.cut_off.insert(lost);
    // Three of four have the entry, and its leader does not know: it hears nothing of one of them.
    cluster.step(leader, Input::Call(Call::ChangeMembers { token: 1, change: MemberChange::Remove(removed) }));
    while let Some((from, to, bytes)) = cluster.wire.pop_front() {
        if from != other && to != lost {
            cluster.step(to, Input::Frame { from, bytes });
        }
    }
    // The one that is to go leads next, and agrees on it with the others.
    cluster.step(leader, Input::Call(Call::Transfer { token: 2, to: removed }));
    while let Some((from, to, bytes)) = cluster.wire.pop_front() {
        if ![from, to].contains(&lost) {
            cluster.step(to, Input::Frame { from, bytes });
        }
        if cluster.nodes[&removed].fatal.is_some() {
            // It ends where it stands.
            cluster.wire.retain(|(from, _, _)| *from != removed);
            cluster.cut_off.insert(removed);
        }
    }
    cluster.tick(2);
    for stays in [leader, other] {
        assert!(cluster.nodes[&stays].replica.members().removed.contains(&removed), "{stays:?} knows");
    }
    cluster.cut_off.insert(removed);
    let next = cluster.elect();
    cluster.propose(next, 1, put("k"));
    cluster.settle();
    assert_eq!(cluster.nodes[&next].state.keys(), 1);
}

/// A member that is removed while another leads is told, and leaves.
#[test]
fn m1_a_follower_leaves_when_it_is_told_that_it_was_removed() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let leader = cluster.elect();
    let removed = cluster.follower();
    cluster.step(leader, Input::Call(Call::ChangeMembers { token: 1, change: MemberChange::Remove(removed) }));
    cluster.settle();
    assert!(matches!(cluster.nodes[&removed].fatal, Some(Fatal::Removed)));
}
