//! Changes of members, in the engine's words and in ours, and what is agreed on as it is handed out.

use bytes::Bytes;
use raft::eraftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState, Entry, EntryType,
};
use tidelock_model::{LogIndex, MemberChange, MemberRole, NodeId, Reader, Term, Wire};

use super::{Consensus, wire};
use crate::effects::Committed;

impl Consensus {
    /// Hands out what is agreed on, in order.
    pub(super) fn hand_out(&mut self, new: Vec<Entry>) -> Vec<Committed> {
        let mut entries = std::mem::take(&mut self.own_removal.held_back);
        entries.extend(new);
        let mut committed = Vec::with_capacity(entries.len());
        let mut entries = entries.into_iter();
        while let Some(mut entry) = entries.next() {
            if self.waits_to_be_told(&entry) {
                self.own_removal.held_back = std::iter::once(entry).chain(entries).collect();
                break;
            }
            assert_eq!(entry.index, self.handed_out + 1, "entries are handed out once and in order");
            self.handed_out = entry.index;
            let (index, term) = (LogIndex(entry.index), Term(entry.term));
            committed.push(match entry.get_entry_type() {
                EntryType::EntryNormal if entry.data.is_empty() => Committed::Nothing { index, term },
                EntryType::EntryNormal => Committed::Batch { index, term, bytes: entry.take_data() },
                EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
                    self.change_voters(index, term, entry.take_context())
                }
            });
        }
        committed
    }

    fn change_voters(&mut self, index: LogIndex, term: Term, context: Bytes) -> Committed {
        // The engine leaves a joint configuration with an entry that has no content.
        let change = match context.is_empty() {
            true => None,
            false => MemberChange::decode(&mut Reader::new(context)).ok(),
        };
        let conf_change = change.as_ref().map_or_else(ConfChangeV2::default, conf_change);
        let outgoing = self.raw.store().voters().voters_outgoing.clone();
        match self.raw.apply_conf_change(&conf_change) {
            Ok(voters) => {
                let change = match change {
                    Some(change) => Some(without_staying(change, &voters.voters_outgoing)),
                    None => left(&outgoing, &voters),
                };
                let bytes = wire::encode_voters(&voters).into();
                self.raw.mut_store().set_voters(voters);
                self.voters_changed();
                Committed::Membership { index, term, change, voters: bytes }
            }
            // Removing the last voter, or leaving a joint configuration twice: refused alike everywhere.
            Err(_) => Committed::Nothing { index, term },
        }
    }
}

/// Whoever is to be removed by a joint change votes on until the cluster leaves it; told to stop before, it
/// could take the majority of the old voters with it.
fn without_staying(mut change: MemberChange, outgoing: &[u64]) -> MemberChange {
    if let MemberChange::Replace { remove, .. } = &mut change {
        remove.retain(|id| !outgoing.contains(&id.0));
    }
    change
}

/// Who is gone now that a joint change is over.
fn left(outgoing: &[u64], now: &ConfState) -> Option<MemberChange> {
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
