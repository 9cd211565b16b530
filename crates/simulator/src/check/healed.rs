//! Liveness: once the faults are over the cluster works again. In the time that is left a write is
//! acknowledged (so there is a leader), every request is answered, and at the end all nodes that run have
//! carried out the same log and have the same state.

use std::collections::{BTreeMap, BTreeSet};

use tidelock_model::{LogIndex, NodeId};

use super::carry_out::wrote;
use super::leases::{SECOND, answered};
use super::{Findings, Prepared};
use crate::history::{History, Micros, Observation};

/// How long a request may be under way when nothing is broken. Clients give up long before.
const UNDER_WAY_MAX: Micros = 20 * SECOND;

/// How far a node has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) index: LogIndex,
    pub(crate) digest: u128,
    pub(crate) revision: i64,
}

/// The nodes that were running when the run ended, with how far they had come; `None` for one that was
/// never seen to carry out anything.
pub(crate) fn running_at_the_end(history: &History) -> BTreeMap<NodeId, Option<Reached>> {
    let (mut running, mut reached, mut removed) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    for (_, observation) in &history.observations {
        match observation {
            Observation::Started { node, .. } => drop(running.insert(*node, None)),
            Observation::Stopped { node, .. } => drop(running.remove(node)),
            // A node that was removed while it was away may have nobody left to hear it from.
            Observation::Members { removed: gone, .. } => removed.extend(gone.iter().copied()),
            Observation::Applied { node, index, digest, revision, .. } => {
                let revision = i64::try_from(revision.0).unwrap_or(i64::MAX);
                reached.insert(*node, Reached { index: *index, digest: *digest, revision });
            }
            _ => {}
        }
    }
    running.retain(|node, _| !removed.contains(node));
    for (node, last) in &mut running {
        *last = reached.get(node).copied();
    }
    running
}

/// Whether all nodes that run have come equally far.
pub(crate) fn have_converged(history: &History) -> bool {
    let mut reached = running_at_the_end(history).into_values().map(|reached| reached.map(of));
    let first = reached.next();
    reached.all(|other| Some(other) == first)
}

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let bounds = &prepared.history.bounds;
    let (Some(healed), Some(ended)) = (bounds.healed, bounds.ended) else { return };
    let mut acknowledged = false;
    for (index, operation) in prepared.history.operations.iter().enumerate() {
        acknowledged |=
            answered(operation).is_some_and(|(content, returned)| returned.order > healed.order && wrote(content));
        let since = operation.called.at.max(healed.at);
        if operation.returned.is_none() && since + UNDER_WAY_MAX < ended.at {
            let name = prepared.name(index);
            findings.add("liveness", format_args!("there was time to answer this: {name}"));
        }
    }
    if !acknowledged {
        findings.add("liveness", format_args!("no write was acknowledged after the faults were over"));
    }
    let running = running_at_the_end(prepared.history);
    let mut first: Option<(&NodeId, &Option<Reached>)> = None;
    for (node, reached) in &running {
        match first {
            None => first = Some((node, reached)),
            Some((other, expected)) if expected.map(of) != reached.map(of) => {
                findings.add(
                    "liveness",
                    format_args!("nodes {other} and {node} did not converge: {expected:?}, {reached:?}"),
                );
            }
            Some(_) => {}
        }
    }
    if running.is_empty() {
        findings.add("liveness", format_args!("no node was running at the end"));
    }
}

fn of(reached: Reached) -> (LogIndex, u128) {
    (reached.index, reached.digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::testing::{Maker, run};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "healed")
    }

    fn legal() -> Maker {
        let mut maker = Maker::new();
        maker.put(1, "a", "1");
        maker.heal();
        maker.put(1, "a", "2");
        maker.wait(30_000_000);
        maker
    }

    #[test]
    fn a_cluster_that_recovers_passes() {
        assert_eq!(violations(&legal().done()), [] as [&str; 0]);
    }

    #[test]
    fn a_cluster_that_takes_no_write_any_more_is_caught() {
        let mut maker = Maker::new();
        maker.put(1, "a", "1");
        maker.heal();
        maker.get(1, "a", None, false);
        assert_eq!(violations(&maker.done()), ["liveness"]);
    }

    #[test]
    fn a_request_that_is_never_answered_is_caught() {
        let mut history = legal().done();
        history.operations[0].returned = None;
        assert_eq!(violations(&history), ["liveness"]);
    }

    #[test]
    fn nodes_that_do_not_converge_are_caught() {
        for place in 0..2 {
            let mut history = legal().done();
            let last = history.observations.iter_mut().rev();
            let applied = last.filter(|(_, observation)| matches!(observation, Observation::Applied { .. }));
            let Some((_, Observation::Applied { digest, index, .. })) = applied.into_iter().next() else { panic!() };
            if place == 0 {
                *digest += 1;
            } else {
                *index = LogIndex(index.0 - 1);
            }
            assert_eq!(violations(&history), ["liveness"]);
            // A node that is down need not have caught up.
            let node = NodeId(3);
            let stamp = history.bounds.ended.unwrap();
            history.observations.push((stamp, Observation::Stopped { node, why: "removed".into() }));
            assert_eq!(violations(&history), [] as [&str; 0]);
        }
    }
}
