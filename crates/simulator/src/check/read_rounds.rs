//! H7: a name under which a node asks whether its leader still leads is never used twice. An answer to an
//! old question would otherwise pass for an answer to a new one, and the read be stale. Names are made of
//! the node, its life and a counter, so no two lives of a node may be the same either.

use std::collections::BTreeSet;

use super::{Findings, Prepared};
use crate::history::Observation;

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let (mut rounds, mut lives) = (BTreeSet::new(), BTreeSet::new());
    for (_, observation) in &prepared.history.observations {
        match observation {
            Observation::ReadRound { node, boot, counter } if !rounds.insert((*node, *boot, *counter)) => {
                findings.add("H7", format_args!("node {node} in life {boot} used read round {counter} twice"));
            }
            Observation::Started { node, boot } if !lives.insert((*node, *boot)) => {
                findings.add("H7", format_args!("node {node} had life {boot} twice"));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{run, stamp};
    use crate::history::{History, Observation};
    use tidelock_model::NodeId;

    fn violations(observations: Vec<Observation>) -> Vec<&'static str> {
        let observations = observations.into_iter().map(|observation| (stamp(0), observation)).collect();
        run(&History { observations, ..History::default() }, "read_rounds")
    }

    fn round(node: u64, boot: u64, counter: u64) -> Observation {
        Observation::ReadRound { node: NodeId(node), boot, counter }
    }

    fn started(node: u64, boot: u64) -> Observation {
        Observation::Started { node: NodeId(node), boot }
    }

    #[test]
    fn rounds_that_differ_in_anything_pass() {
        let different =
            vec![started(1, 1), round(1, 1, 1), round(2, 1, 1), started(1, 2), round(1, 2, 1), round(1, 2, 2)];
        assert_eq!(violations(different), [] as [&str; 0]);
    }

    #[test]
    fn a_round_or_a_life_used_twice_is_caught() {
        assert_eq!(violations(vec![round(1, 1, 1), round(1, 1, 2), round(1, 1, 1)]), ["H7"]);
        assert_eq!(violations(vec![started(1, 1), started(2, 1), started(1, 1)]), ["H7"]);
    }
}
