//! S2, H11: a session that is over stays over. Nobody is let in with it who asked after its end was seen or answered,
//! nothing that was asked over its connections after that is done, and its id is nobody else's.

use std::collections::BTreeMap;

use super::prepared::At;
use super::tree::{Session, writes};
use super::{Findings, Prepared};
use crate::history::{Greeted, Stamp, TreeChange};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let tree = &prepared.tree;
    for (id, session) in &tree.sessions {
        let Some(over) = over_since(session) else { continue };
        for log in session.logs.iter().filter(|log| log.called.order > over.order) {
            let (client, node, called, over) = (log.client, log.node, At(log.called), At(over));
            findings.add(
                "S2",
                format_args!(
                    "session {id:x} was over at {over}; client {client} asked node {node} at {called} and has it"
                ),
            );
        }
    }
    for asked in &tree.asked {
        let Some((id, _)) = asked.log.session() else { continue };
        let Some(session) = tree.sessions.get(&id) else { continue };
        let late = over_since(session).is_some_and(|over| over.order < asked.called.order);
        for (path, text) in writes(asked.request) {
            let Some((revision, _)) = tree.written.get(text) else { continue };
            if late || session.end_revision.is_some_and(|end| end < *revision) {
                findings.add("S2", format_args!("session {id:x} was over and wrote {path} at revision {revision}"));
            }
        }
    }
    check_ids(prepared, findings);
}

/// When the session was first known to be over: its end was seen, or its closing answered.
fn over_since(session: &Session<'_>) -> Option<Stamp> {
    let closed = session.closes.iter().filter_map(|close| close.answer).filter(|answer| answer.error == 0);
    session.ended.into_iter().chain(closed.map(|answer| answer.at)).min_by_key(|stamp| stamp.order)
}

fn check_ids(prepared: &Prepared<'_>, findings: &mut Findings) {
    let mut opened: BTreeMap<i64, u32> = BTreeMap::new();
    for log in prepared.history.znodes.iter().filter(|log| log.wanted == 0) {
        if let Some((_, Greeted::Session { id, .. })) = log.greeted
            && let Some(other) = opened.insert(id, log.client)
        {
            findings.add("S2", format_args!("session {id:x} was given to client {other} and to client {}", log.client));
        }
    }
    let mut over = BTreeMap::new();
    for (revision, changes) in &prepared.history.ledger.tree {
        for change in changes {
            match change {
                TreeChange::Session { id, generation: None } => drop(over.insert(*id, *revision)),
                TreeChange::Session { id, .. } => {
                    if let Some(end) = over.get(id) {
                        findings.add("S2", format_args!("session {id:x} ended at {end} and is back at {revision}"));
                    }
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::run;
    use crate::check::znode_maker::ZnodeMaker;
    use crate::history::{Greeted, History, TreeChange};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "session_final")
    }

    fn legal() -> ZnodeMaker {
        let mut maker = ZnodeMaker::new();
        let one = maker.open(1);
        maker.create(one, "/a", "1", false);
        let again = maker.attach(1, one);
        maker.create(again, "/b", "2", true);
        maker.close(again);
        maker.refused(1, again);
        maker
    }

    #[test]
    fn a_session_that_is_told_as_over_passes() {
        assert_eq!(violations(&legal().done()), [] as [&str; 0]);
    }

    /// H11: who reconnects with a closed id must be told so, or it believes to hold what it lost.
    #[test]
    fn a_session_that_is_let_in_after_its_end_is_caught() {
        let mut history = legal().done();
        let id = history.znodes[0].session().unwrap().0;
        let last = history.znodes.last_mut().unwrap();
        last.greeted.as_mut().unwrap().1 = Greeted::Session { id, timeout_ms: 4_000 };
        assert_eq!(violations(&history), ["S2"]);
    }

    #[test]
    fn a_write_of_a_session_that_is_over_is_caught() {
        let mut maker = legal();
        let old = maker.last();
        maker.create(old, "/c", "9", false);
        assert_eq!(violations(&maker.done()), ["S2"]);
    }

    #[test]
    fn a_session_that_comes_back_or_is_given_twice_is_caught() {
        let mut maker = legal();
        let id = maker.id(1);
        maker.change(vec![TreeChange::Session { id, generation: Some(9) }]);
        assert_eq!(violations(&maker.done()), ["S2"]);
        let mut maker = ZnodeMaker::new();
        let (_, two) = (maker.open(1), maker.open(2));
        let mut history = maker.done();
        let first = history.znodes[0].greeted.unwrap().1;
        history.znodes[two].greeted.as_mut().unwrap().1 = first;
        assert_eq!(violations(&history), ["S2"]);
    }
}
