//! M1: who votes is agreed on like everything else: nodes that have carried out the log up to the same
//! index see the same voters, and whoever was removed never votes again.

use std::collections::BTreeMap;

use tidelock_model::{LogIndex, NodeId};

use super::{Findings, Prepared};
use crate::history::Observation;

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let mut views: Vec<(LogIndex, NodeId, Vec<NodeId>, &[NodeId])> = Vec::new();
    for (_, observation) in &prepared.history.observations {
        if let Observation::Members { node, index, voters, removed } = observation {
            let mut voters = voters.clone();
            voters.sort_unstable();
            views.push((*index, *node, voters, removed));
        }
    }
    views.sort_by_key(|(index, ..)| *index);
    for pair in views.windows(2) {
        let [(index, node, voters, _), (other_index, other, others, _)] = pair else { continue };
        if index == other_index && voters != others {
            findings.add(
                "M1",
                format_args!("after index {index} node {node} sees voters {voters:?}, node {other} {others:?}"),
            );
        }
    }
    let mut removed: BTreeMap<NodeId, LogIndex> = BTreeMap::new();
    for (index, node, voters, gone) in &views {
        for id in *gone {
            removed.entry(*id).or_insert(*index);
        }
        for id in voters.iter().filter(|id| removed.contains_key(id)) {
            let since = removed[id];
            findings.add("M1", format_args!("{id} was removed by index {since}, node {node} sees it vote at {index}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{run, stamp};
    use crate::history::{History, Observation};
    use tidelock_model::{LogIndex, NodeId};

    fn violations(views: &[(u64, u64, &[u64], &[u64])]) -> Vec<&'static str> {
        let ids = |ids: &[u64]| ids.iter().map(|id| NodeId(*id)).collect::<Vec<_>>();
        let view = |(node, index, voters, removed): &(u64, u64, &[u64], &[u64])| Observation::Members {
            node: NodeId(*node),
            index: LogIndex(*index),
            voters: ids(voters),
            removed: ids(removed),
        };
        let observations = views.iter().map(|at| (stamp(0), view(at))).collect();
        run(&History { observations, ..History::default() }, "members")
    }

    #[test]
    fn members_that_are_agreed_on_pass() {
        let views: &[(u64, u64, &[u64], &[u64])] =
            &[(1, 5, &[1, 2, 3], &[]), (2, 5, &[3, 2, 1], &[]), (1, 9, &[1, 2], &[3]), (3, 5, &[1, 2, 3], &[])];
        assert_eq!(violations(views), [] as [&str; 0]);
    }

    /// Two majorities that do not meet are two clusters.
    #[test]
    fn nodes_that_disagree_on_who_votes_are_caught() {
        assert_eq!(violations(&[(1, 5, &[1, 2, 3], &[]), (2, 5, &[1, 2], &[])]), ["M1"]);
    }

    /// H21: the zombie member.
    #[test]
    fn a_removed_member_that_votes_again_is_caught() {
        assert_eq!(violations(&[(1, 5, &[1, 2], &[3]), (2, 9, &[1, 2, 3], &[])]), ["M1"]);
        assert_eq!(violations(&[(1, 5, &[1, 3], &[3])]), ["M1"]);
    }
}
