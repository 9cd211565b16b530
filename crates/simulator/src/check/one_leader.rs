//! R5: at most one node leads in each term.

use std::collections::BTreeMap;

use super::{Findings, Prepared};
use crate::history::Observation;

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let mut leaders = BTreeMap::new();
    for (_, observation) in &prepared.history.observations {
        if let Observation::Leads { node, term } = observation {
            let leader = *leaders.entry(*term).or_insert(*node);
            if leader != *node {
                findings.add("R5", format_args!("nodes {leader} and {node} both led in term {term}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{run, stamp};
    use crate::history::{History, Observation};
    use tidelock_model::{NodeId, Term};

    fn violations(leads: &[(u64, u64)]) -> Vec<&'static str> {
        let observations = leads
            .iter()
            .map(|(node, term)| (stamp(0), Observation::Leads { node: NodeId(*node), term: Term(*term) }))
            .collect();
        run(&History { observations, ..History::default() }, "one_leader")
    }

    #[test]
    fn leaders_of_different_terms_pass() {
        assert_eq!(violations(&[(1, 2), (2, 3), (1, 4), (1, 4)]), [] as [&str; 0]);
    }

    /// H21: a wiped disk that votes again elects two.
    #[test]
    fn two_leaders_of_one_term_are_caught() {
        assert_eq!(violations(&[(1, 2), (2, 3), (1, 3)]), ["R5"]);
    }
}
