//! R3, H7: a linearizable read is never behind anything that anybody knew when it was asked: no answer,
//! no watch event, no state any node had reached. A read that is content with less still shows a state
//! that existed, that of the revision it tells.
//!
//! That a node had reached a revision counts, told or not: it was agreed on, and whoever confirms later
//! that it leads has agreed on it too.

use super::carry_out::{carry_out, is_serializable, may_write, operations};
use super::{Findings, Prepared};
use crate::history::Told;

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    for (index, operation) in prepared.history.operations.iter().enumerate() {
        let Told::Answer(answer) = &operation.result else { continue };
        let reads = !may_write(&operation.request) && operations(&operation.request).next().is_some();
        if !reads {
            continue;
        }
        let revision = answer.revision;
        if !is_serializable(&operation.request) {
            let seen = prepared.seen.before(operation.called);
            if revision < seen {
                let name = prepared.name(index);
                findings.add("R3", format_args!("revision {seen} existed before this read was asked: {name}"));
            }
        } else if let Some(expected) = carry_out(&prepared.replay, &operation.request, revision, revision)
            && !expected.seen.is(&answer.content)
        {
            let (name, seen) = (prepared.name(index), &expected.seen);
            findings.add("R3", format_args!("{name}; the state at revision {revision} was {seen:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, answer_mut, run};
    use crate::history::{Content, History, Notice, Observation};
    use tidelock_model::{LogIndex, NodeId, Revision};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "stale_read")
    }

    /// A write, and a read of the state before it that began after its answer.
    fn stale(serializable: bool) -> History {
        let mut maker = Maker::new();
        maker.put(1, "a", "1");
        maker.put(1, "a", "2");
        let read = maker.get(2, "a", None, serializable);
        let mut history = maker.done();
        let old = history.ledger.changes[&2][0].became.clone().unwrap();
        let answer = answer_mut(&mut history, read);
        answer.revision = 2;
        answer.content = Content::Get { found: vec![old], count: 1 };
        history
    }

    #[test]
    fn a_fresh_read_passes() {
        let mut maker = Maker::new();
        maker.put(1, "a", "1");
        maker.get(2, "a", None, false);
        assert_eq!(violations(&maker.done()), [] as [&str; 0]);
    }

    /// H7: a leader that was paused answered from before the pause.
    #[test]
    fn a_read_that_is_behind_an_earlier_answer_is_caught() {
        assert_eq!(violations(&stale(false)), ["R3"]);
    }

    #[test]
    fn a_read_that_may_be_behind_passes() {
        assert_eq!(violations(&stale(true)), [] as [&str; 0]);
    }

    /// Stale is allowed, invented is not.
    #[test]
    fn a_serializable_read_of_a_state_that_never_was_is_caught() {
        let mut history = stale(true);
        answer_mut(&mut history, 2).revision = 3;
        assert_eq!(violations(&history), ["R3"]);
    }

    /// Somebody saw the event, picked up the phone, and the other side read the old value.
    #[test]
    fn a_read_that_is_behind_what_a_watcher_or_a_node_had_seen_is_caught() {
        let mut legal = stale(false);
        legal.observations.clear();
        // Without the answer of the second write nothing is known of it any more.
        legal.operations[1].result = crate::history::Told::Unknown("timeout".into());
        assert_eq!(violations(&legal), [] as [&str; 0]);
        let stamp = legal.operations[1].returned.unwrap();
        let mut applied = legal.clone();
        let observation =
            Observation::Applied { node: NodeId(1), boot: 1, index: LogIndex(9), digest: 1, revision: Revision(3) };
        applied.observations.push((stamp, observation));
        assert_eq!(violations(&applied), ["R3"]);
        let mut maker = Maker::new();
        let watch = maker.watch(1, "x", None, 0);
        let mut watched = maker.done();
        watched.watches[watch].notices = vec![(stamp, Notice::Progress { revision: 3 })];
        legal.watches = watched.watches;
        assert_eq!(violations(&legal), ["R3"]);
    }
}
