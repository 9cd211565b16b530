//! R5: nodes that have carried out the log up to the same index have the same state. Digests and
//! revisions are compared over all nodes and all their lives.

use super::{Findings, Prepared};
use crate::history::Observation;

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let mut states: Vec<_> = prepared
        .history
        .observations
        .iter()
        .filter_map(|(_, observation)| match observation {
            Observation::Applied { node, boot, index, digest, revision } => {
                Some((*index, *digest, *revision, *node, *boot))
            }
            _ => None,
        })
        .collect();
    states.sort_unstable();
    for pair in states.windows(2) {
        let [a, b] = pair else { continue };
        if a.0 == b.0 && (a.1, a.2) != (b.1, b.2) {
            findings.add(
                "R5",
                format_args!(
                    "after index {} node {} (life {}) has digest {:032x} at revision {}, node {} (life {}) {:032x} at {}",
                    a.0, a.3, a.4, a.1, a.2, b.3, b.4, b.1, b.2
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{run, stamp};
    use crate::history::{History, Observation};
    use tidelock_model::{LogIndex, NodeId, Revision};

    fn violations(states: &[(u64, u64, u128, u64)]) -> Vec<&'static str> {
        let mut history = History::default();
        for (order, (node, index, digest, revision)) in states.iter().enumerate() {
            let observation = Observation::Applied {
                node: NodeId(*node),
                boot: 1,
                index: LogIndex(*index),
                digest: *digest,
                revision: Revision(*revision),
            };
            history.observations.push((stamp(order as u64), observation));
        }
        run(&history, "agreement")
    }

    #[test]
    fn nodes_that_agree_pass() {
        assert_eq!(violations(&[(1, 5, 77, 3), (1, 6, 78, 3), (2, 6, 78, 3), (3, 5, 77, 3)]), [] as [&str; 0]);
    }

    /// H1, H24: silent divergence is what no client can see until it is too late.
    #[test]
    fn h1_nodes_that_differ_after_the_same_index_are_caught() {
        assert_eq!(violations(&[(1, 5, 77, 3), (2, 6, 78, 3), (2, 5, 76, 3)]), ["R5"]);
        assert_eq!(violations(&[(1, 5, 77, 3), (2, 5, 77, 4)]), ["R5"]);
        // A node that carries the log out differently after a restart disagrees with itself.
        assert_eq!(violations(&[(1, 5, 77, 3), (1, 5, 70, 3)]), ["R5"]);
    }
}
