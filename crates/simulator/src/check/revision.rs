//! R1: the revision grows by one with every change and never goes back.
//!
//! - the ledger has every revision from the first on, without a hole, and does not contradict itself;
//! - nobody is told a revision that never was;
//! - no client is told a lower revision than before, in answers that must be fresh;
//! - reads from one node never go back, fresh or not, whether or not it was started again meanwhile, and no watch begins
//!   before what it had shown (H14);
//! - within one life a node's log index and revision never go back. Across lives they may: what was
//!   carried out but not yet known to be agreed on is carried out again, and shown only then.

use std::collections::BTreeMap;

use tidelock_model::NodeId;

use super::carry_out::{is_serializable, may_write, operations};
use super::replay::EMPTY_STORE;
use super::{Findings, Prepared};
use crate::history::{Notice, Observation, Stamp, Told};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    check_ledger(prepared, findings);
    check_clients(prepared, findings);
    check_what_each_node_shows(prepared, findings);
    check_nodes(prepared, findings);
}

fn check_ledger(prepared: &Prepared<'_>, findings: &mut Findings) {
    let mut next = EMPTY_STORE + 1;
    for (revision, changes) in &prepared.history.ledger.changes {
        if *revision != next {
            findings.add("R1", format_args!("the ledger goes from revision {} to {revision}", next - 1));
        }
        let ledger = &prepared.history.ledger;
        if changes.is_empty() && !ledger.tree.contains_key(revision) && !ledger.native.contains_key(revision) {
            findings.add("R1", format_args!("revision {revision} changed nothing"));
        }
        next = revision + 1;
    }
    for (revision, key, flaw) in prepared.replay.flaws() {
        let changes = prepared.replay.changes_at(*revision);
        findings.add("R1", format_args!("revision {revision}, key {key:?}: {flaw}: {changes:?}"));
    }
}

fn check_clients(prepared: &Prepared<'_>, findings: &mut Findings) {
    let last = prepared.replay.last();
    let mut told: BTreeMap<u32, i64> = BTreeMap::new();
    for (index, operation) in prepared.history.operations.iter().enumerate() {
        let Told::Answer(answer) = &operation.result else { continue };
        if answer.revision > last {
            let name = prepared.name(index);
            findings.add("R1", format_args!("the ledger ends at revision {last}: {name}"));
        }
        // Keep-alives tell none.
        if is_serializable(&operation.request) || answer.revision == 0 {
            continue;
        }
        let before = told.entry(operation.client).or_default();
        if answer.revision < *before {
            let name = prepared.name(index);
            findings.add("R1", format_args!("this client had been told revision {before}: {name}"));
        }
        *before = answer.revision.max(*before);
    }
}

/// What happens at one node, in order.
enum AtNode {
    /// It was asked something that it answered with this revision.
    Asked {
        told: i64,
        what: What,
    },
    Told(i64),
}

enum What {
    Operation(usize),
    WatchFromNowOn(u32),
}

fn check_what_each_node_shows(prepared: &Prepared<'_>, findings: &mut Findings) {
    let mut steps: Vec<(Stamp, NodeId, AtNode)> = Vec::new();
    for (index, operation) in prepared.history.operations.iter().enumerate() {
        let reads = !may_write(&operation.request) && operations(&operation.request).next().is_some();
        if let (true, Told::Answer(answer), Some(returned)) = (reads, &operation.result, operation.returned) {
            let asked = AtNode::Asked { told: answer.revision, what: What::Operation(index) };
            steps.push((operation.called, operation.node, asked));
            steps.push((returned, operation.node, AtNode::Told(answer.revision)));
        }
    }
    for watch in prepared.history.watches.iter().filter(|watch| watch.start == 0) {
        if let Some((told_at, Notice::Created { revision })) = watch.notices.first() {
            let asked = AtNode::Asked { told: *revision, what: What::WatchFromNowOn(watch.client) };
            steps.push((watch.called, watch.node, asked));
            steps.push((*told_at, watch.node, AtNode::Told(*revision)));
        }
    }
    steps.sort_by_key(|(stamp, ..)| stamp.order);
    let mut highest: BTreeMap<NodeId, i64> = BTreeMap::new();
    for (_, node, step) in steps {
        let highest = highest.entry(node).or_default();
        match step {
            AtNode::Told(revision) => *highest = revision.max(*highest),
            AtNode::Asked { told, what } if told < *highest => {
                let name = match what {
                    What::Operation(index) => prepared.name(index).to_string(),
                    What::WatchFromNowOn(client) => format!("a watch of client {client} at node {node} from {told} on"),
                };
                findings.add("R1", format_args!("this node had shown revision {highest} before: {name}"));
            }
            AtNode::Asked { .. } => {}
        }
    }
}

fn check_nodes(prepared: &Prepared<'_>, findings: &mut Findings) {
    let last = prepared.replay.last();
    let mut reached = BTreeMap::new();
    for (_, observation) in &prepared.history.observations {
        let Observation::Applied { node, boot, index, revision, .. } = observation else { continue };
        let now = (*index, *revision);
        let before = reached.entry((*node, *boot)).or_insert(now);
        if now.0 < before.0 || now.1 < before.1 {
            findings.add(
                "R1",
                format_args!("node {node} in life {boot} went back from index and revision {before:?} to {now:?}"),
            );
        }
        *before = now;
        if i64::try_from(revision.0).is_ok_and(|revision| revision > last) {
            findings.add("R1", format_args!("node {node} is at revision {revision}, the ledger ends at {last}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, answer_mut, damaged, run};
    use crate::history::{History, Notice, Observation};
    use tidelock_model::{LogIndex, NodeId, Revision};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "revision")
    }

    fn legal() -> Maker {
        let mut maker = Maker::new();
        maker.put(1, "a", "1");
        maker.put(1, "a", "2");
        maker.get(1, "a", None, false);
        maker.get(1, "a", None, true);
        maker
    }

    #[test]
    fn a_revision_that_only_grows_passes() {
        assert_eq!(violations(&legal().done()), [] as [&str; 0]);
    }

    #[test]
    fn a_hole_in_the_ledger_is_caught() {
        for damage in [2, 3] {
            let mut history = legal().done();
            let changes = history.ledger.changes.remove(&damage).unwrap();
            history.ledger.changes.insert(damage + 5, changes);
            assert!(violations(&history).contains(&"R1"));
        }
    }

    #[test]
    fn a_revision_without_a_change_is_caught() {
        let mut history = legal().done();
        history.ledger.changes.insert(4, vec![]);
        assert_eq!(violations(&history), ["R1"]);
    }

    /// H14: clients that see the index go back drop their caches, or worse, do not.
    #[test]
    fn an_answer_behind_an_earlier_one_to_the_same_client_is_caught() {
        let mut history = legal().done();
        answer_mut(&mut history, 2).revision = 2;
        assert_eq!(violations(&history), ["R1"]);
        let mut elsewhere = history.clone();
        elsewhere.operations[2].client = 9;
        assert_eq!(violations(&elsewhere), [] as [&str; 0]);
    }

    #[test]
    fn a_revision_that_never_was_is_caught() {
        let mut history = legal().done();
        answer_mut(&mut history, 2).revision = 4;
        assert_eq!(violations(&history), ["R1", "R1"]);
    }

    /// Even a read that may be behind must not be further behind than the same node was just before.
    #[test]
    fn h14_a_node_that_shows_an_older_state_than_before_is_caught_restarted_or_not() {
        let mut history = legal().done();
        answer_mut(&mut history, 3).revision = 2;
        assert_eq!(violations(&history), ["R1"]);
        let node = history.operations[3].node;
        let between = history.operations[2].returned.unwrap();
        history.observations.push((between, Observation::Started { node, boot: 9 }));
        assert_eq!(violations(&history), ["R1"]);
        history.operations[3].node = NodeId(99);
        assert_eq!(violations(&history), [] as [&str; 0]);
    }

    /// H3: a crash while compacting must not take the revision back.
    /// H14: a watch from now on that begins in the past tells what its client has seen.
    #[test]
    fn h14_a_watch_that_begins_before_what_its_node_had_shown_is_caught() {
        let mut maker = legal();
        let watch = maker.watch(1, "a", None, 0);
        let history = maker.done();
        assert_eq!(violations(&history), [] as [&str; 0]);
        let damage = |history: &mut History| {
            let Some((_, Notice::Created { revision })) = history.watches[watch].notices.first_mut() else { panic!() };
            *revision -= 1;
        };
        assert!(violations(&damaged(history, damage)).contains(&"R1"));
    }

    #[test]
    fn a_node_that_goes_back_within_a_life_is_caught() {
        let stamp = |order| crate::history::Stamp { order, at: order };
        let applied = |index, revision, boot| Observation::Applied {
            node: NodeId(1),
            boot,
            index: LogIndex(index),
            digest: u128::from(index),
            revision: Revision(revision),
        };
        for (second, boot, caught) in [((8, 3), 50, 1), ((10, 2), 50, 1), ((8, 2), 51, 0), ((11, 3), 50, 0)] {
            let mut history = legal().done();
            history.observations.push((stamp(1_000), applied(9, 3, 50)));
            history.observations.push((stamp(1_001), applied(second.0, second.1, boot)));
            assert_eq!(violations(&history).len(), caught, "{second:?}");
        }
        let mut history = legal().done();
        history.observations.push((stamp(1_000), applied(9, 4, 50)));
        assert_eq!(violations(&history), ["R1"]);
    }
}
