//! S1, H11: the ephemeral znodes of a session go exactly once, when it ends, all at its end's revision; never while it
//! lives, unless somebody deletes them; and none is made for a session that is not there.

use super::tree::{Asked, deletes};
use super::{Findings, Prepared};
use crate::history::TreeChange;

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let tree = &prepared.tree;
    for (id, session) in &tree.sessions {
        let Some(end) = session.end_revision else { continue };
        let left = tree.owned(*id, end);
        if !left.is_empty() {
            findings.add("S1", format_args!("session {id:x} ended at revision {end} and left {left:?}"));
        }
    }
    for (path, versions) in tree.paths() {
        let mut before = None;
        for (revision, became) in versions {
            if let Some(znode) = became.filter(|znode| znode.owner != 0) {
                let over = tree.sessions.get(&znode.owner).and_then(|session| session.end_revision);
                if over.is_some_and(|over| over <= *revision) {
                    let owner = znode.owner;
                    findings
                        .add("S1", format_args!("{path} of session {owner:x} at {revision}, which ended at {over:?}"));
                }
            }
            if let (Some(owner), None) = (before, became)
                && owner != 0
                && !ends_at(prepared, owner, *revision)
                && !was_deleted(prepared, path, *revision)
            {
                findings.add(
                    "S1",
                    format_args!("{path} of session {owner:x}, which lives, went at revision {revision} unasked"),
                );
            }
            before = became.map(|znode| znode.owner);
        }
    }
}

fn ends_at(prepared: &Prepared<'_>, session: i64, revision: i64) -> bool {
    let ended = |change: &TreeChange| matches!(change, TreeChange::Session { id, generation: None } if *id == session);
    prepared.tree.changes_at(revision).iter().any(ended)
}

/// Whether somebody asked for a path to be deleted and may have got it at this revision.
pub(crate) fn was_deleted(prepared: &Prepared<'_>, path: &str, revision: i64) -> bool {
    let fits = |asked: &&Asked<'_>| {
        deletes(asked.request).contains(path)
            && prepared.seen.before(asked.called) < revision
            && asked.answer.is_none_or(|answer| answer.is_ok() && answer.zxid >= revision)
    };
    prepared.tree.asked.iter().any(|asked| fits(&asked))
}

#[cfg(test)]
mod tests {
    use crate::check::testing::run;
    use crate::check::znode_maker::ZnodeMaker;
    use crate::history::{History, TreeChange};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "session_end")
    }

    fn closed() -> ZnodeMaker {
        let mut maker = ZnodeMaker::new();
        let (one, two) = (maker.open(1), maker.open(2));
        maker.create(one, "/e", "1", true);
        maker.create(one, "/f", "2", true);
        maker.create(two, "/g", "3", true);
        maker.delete(two, "/f");
        maker.close(one);
        maker
    }

    #[test]
    fn ephemerals_that_go_with_their_session_or_by_request_pass() {
        assert_eq!(violations(&closed().done()), [] as [&str; 0]);
    }

    /// A lock whose holder is gone is held for ever.
    #[test]
    fn an_ephemeral_that_stays_is_caught() {
        let mut history = closed().done();
        let (_, last) = history.ledger.tree.iter_mut().next_back().unwrap();
        last.retain(|change| !matches!(change, TreeChange::Znode { .. }));
        assert_eq!(violations(&history), ["S1"]);
    }

    /// Two holders of a lock: the first one's znode went though it lives.
    #[test]
    fn an_ephemeral_that_goes_while_its_session_lives_is_caught() {
        let mut maker = ZnodeMaker::new();
        let one = maker.open(1);
        maker.create(one, "/e", "1", true);
        maker.change(vec![TreeChange::Znode { path: "/e".into(), became: None }]);
        assert_eq!(violations(&maker.done()), ["S1"]);
    }

    #[test]
    fn an_ephemeral_of_a_session_that_is_over_is_caught() {
        let mut maker = closed();
        let became = Some(maker.znode("9", maker.id(1)));
        maker.change(vec![TreeChange::Znode { path: "/h".into(), became }]);
        assert!(violations(&maker.done()).contains(&"S1"));
    }
}
