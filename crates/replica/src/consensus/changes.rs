//! Changes of members, in the engine's words and in ours.

use raft::eraftpb::{ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState};
use tidelock_model::{MemberChange, MemberRole, NodeId};

/// Whoever is to be removed by a joint change votes on until the cluster leaves it; told to stop before, it
/// could take the majority of the old voters with it.
pub(super) fn without_staying(mut change: MemberChange, outgoing: &[u64]) -> MemberChange {
    if let MemberChange::Replace { remove, .. } = &mut change {
        remove.retain(|id| !outgoing.contains(&id.0));
    }
    change
}

/// Who is gone now that a joint change is over.
pub(super) fn left(outgoing: &[u64], now: &ConfState) -> Option<MemberChange> {
    let gone = |id: &&u64| !now.voters.contains(id) && !now.learners.contains(id);
    let remove: Vec<NodeId> = outgoing.iter().filter(gone).map(|id| NodeId(*id)).collect();
    (!remove.is_empty()).then(|| MemberChange::Replace { add: Vec::new(), remove })
}

pub(super) fn conf_change(change: &MemberChange) -> ConfChangeV2 {
    let single = |id: NodeId, kind| {
        let mut single = ConfChangeSingle::default();
        single.node_id = id.0;
        single.set_change_type(kind);
        single
    };
    let adding = |role| match role {
        MemberRole::Voter => ConfChangeType::AddNode,
        MemberRole::Learner => ConfChangeType::AddLearnerNode,
    };
    let changes = match change.unconditional() {
        MemberChange::Add(member) => vec![single(member.id, adding(member.role))],
        MemberChange::Promote(id) => vec![single(*id, ConfChangeType::AddNode)],
        MemberChange::Remove(id) if tidelock_model::planted!(RemovedMemberStillVotes) => {
            vec![single(*id, ConfChangeType::AddNode)]
        }
        MemberChange::Remove(id) => vec![single(*id, ConfChangeType::RemoveNode)],
        // Changes no voters: adding a member in the part it has is nothing to the engine, while an empty
        // change would mean to leave a joint configuration.
        MemberChange::Readdress { id, role, .. } => vec![single(*id, adding(*role))],
        MemberChange::Replace { add, remove } => {
            let added = add.iter().map(|member| single(member.id, adding(member.role)));
            added.chain(remove.iter().map(|id| single(*id, ConfChangeType::RemoveNode))).collect()
        }
        MemberChange::IfStill { .. } => unreachable!("a change without its condition is not conditional"),
    };
    let mut conf_change = ConfChangeV2::default();
    conf_change.set_changes(changes.into());
    conf_change.set_transition(ConfChangeTransition::Auto);
    conf_change
}
