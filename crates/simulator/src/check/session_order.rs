//! S4: what one client sees is in order.
//!
//! - answers come in the order of the requests, on every connection;
//! - the zxid of answers never goes back, also not where a session goes on elsewhere;
//! - a read shows the tree exactly as it was at its zxid; so does the list of a session's ephemerals;
//! - what a client changes, it changes in the order it asked for;
//! - sync is a barrier: its zxid is behind nothing that anybody had been told, or any node had done, when it was asked.

use std::collections::VecDeque;

use tidelock_face_zookeeper::wire::client::Found;
use tidelock_face_zookeeper::wire::{Request, Stat};

use super::prepared::At;
use super::tree::{Asked, NO_NODE, Replied, Tree, writes};
use super::{Findings, Prepared};
use crate::history::{Step, Znode, ZnodeLog};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    for log in &prepared.history.znodes {
        check_connection(prepared, log, findings);
    }
    for asked in &prepared.tree.asked {
        let Some(answer) = asked.answer else { continue };
        if let Err(expected) = fits(&prepared.tree, asked, &answer) {
            let Asked { log: ZnodeLog { client, node, .. }, request, .. } = asked;
            let (at, zxid, error, found) = (At(answer.at), answer.zxid, answer.error, answer.found);
            findings.add(
                "S4",
                format_args!(
                    "client {client} was told by node {node} at {at}, zxid {zxid}: {error} {found:?} for {request:?}; then there was {expected}"
                ),
            );
        }
        let known = prepared.seen.before(asked.called).max(prepared.told_znodes.before(asked.called));
        if matches!(asked.request, Request::Sync { .. }) && answer.error == 0 && answer.zxid < known {
            let (client, node, called, zxid) = (asked.log.client, asked.log.node, At(asked.called), answer.zxid);
            findings.add(
                "S4",
                format_args!("client {client} synced at node {node} at {called} up to {zxid}; {known} was known"),
            );
        }
    }
}

fn check_connection(prepared: &Prepared<'_>, log: &ZnodeLog, findings: &mut Findings) {
    let (mut waiting, mut seen, mut wrote) = (VecDeque::new(), log.seen, 0);
    let (client, node) = (log.client, log.node);
    for (stamp, step) in &log.steps {
        match step {
            Step::Asked { xid, request } => {
                waiting.push_back(*xid);
                for (path, text) in writes(request) {
                    let Some((revision, _)) = prepared.tree.written.get(text) else { continue };
                    if *revision < wrote {
                        findings.add(
                            "S4",
                            format_args!(
                                "client {client} wrote {path} at {revision}, after what it did later, at {wrote}"
                            ),
                        );
                    }
                    wrote = wrote.max(*revision);
                }
            }
            Step::Replied { xid, zxid, .. } => {
                let at = At(*stamp);
                let expected = waiting.pop_front();
                if expected != Some(*xid) {
                    findings.add(
                        "S4",
                        format_args!("client {client} got answer {xid} of node {node} at {at}, not {expected:?}"),
                    );
                }
                if *zxid > 0 && *zxid < seen {
                    findings
                        .add("S4", format_args!("client {client} had seen {seen}; node {node} told {zxid} at {at}"));
                }
                seen = seen.max(*zxid);
            }
            Step::Fired { .. } => {}
        }
    }
}

/// Whether an answer is what the tree was at its zxid; else what it would have been.
fn fits(tree: &Tree<'_>, asked: &Asked<'_>, answer: &Replied<'_>) -> Result<(), String> {
    let at = answer.zxid;
    let (path, found) = match asked.request {
        Request::GetData { path, .. } | Request::Exists { path, .. } => (path, answer.found),
        Request::GetChildren { path, .. } | Request::GetChildren2 { path, .. } => (path, answer.found),
        Request::GetEphemerals { .. } => {
            let Found::Paths(paths) = answer.found else { return Ok(()) };
            let owned = tree.owned(asked.log.session().map_or(0, |(id, _)| id), at);
            let mut told: Vec<&str> = paths.iter().map(String::as_str).collect();
            told.sort_unstable();
            return if told == owned { Ok(()) } else { Err(format!("{owned:?}")) };
        }
        _ => return Ok(()),
    };
    let znode = tree.get(path, at);
    let expected = || format!("{znode:?}");
    match (answer.error, znode) {
        (NO_NODE, None) => Ok(()),
        (0, Some(znode)) => match found {
            Found::Data(data, stat) => {
                let same = data.as_deref().unwrap_or_default() == znode.data.as_bytes();
                if same && stat_fits(tree, path, znode, stat, at) { Ok(()) } else { Err(expected()) }
            }
            Found::Stat(stat) if stat_fits(tree, path, znode, stat, at) => Ok(()),
            Found::Children(names, stat) => {
                let mut told: Vec<&str> = names.iter().map(String::as_str).collect();
                told.sort_unstable();
                let children = tree.children(path, at);
                let stat_fits = stat.is_none_or(|stat| stat_fits(tree, path, znode, &stat, at));
                if told == children && stat_fits { Ok(()) } else { Err(format!("{children:?}, {znode:?}")) }
            }
            _ => Err(expected()),
        },
        // Refused for another reason: the session is over, for one.
        (error, _) if error != 0 && error != NO_NODE => Ok(()),
        _ => Err(expected()),
    }
}

fn stat_fits(tree: &Tree<'_>, path: &str, znode: &Znode, stat: &Stat, at: i64) -> bool {
    stat.czxid == znode.created
        && stat.mzxid == znode.modified
        && i64::from(stat.version) + 1 == znode.version
        && stat.ephemeral_owner == znode.owner
        && usize::try_from(stat.num_children) == Ok(tree.children(path, at).len())
}

#[cfg(test)]
mod tests {
    use crate::check::testing::run;
    use crate::check::znode_maker::ZnodeMaker;
    use crate::history::{History, Step};
    use tidelock_face_zookeeper::wire::client::Found;

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "session_order")
    }

    fn legal() -> ZnodeMaker {
        let mut maker = ZnodeMaker::new();
        let (one, two) = (maker.open(1), maker.open(2));
        maker.create(one, "/a", "1", false);
        maker.create(one, "/a/b", "2", false);
        maker.create(two, "/e", "3", true);
        maker.sync(one);
        maker.get(one, "/a", false);
        maker.get(one, "/none", false);
        maker.children(two, "/a", false);
        maker.ephemerals(two);
        let again = maker.attach(1, one);
        maker.get(again, "/e", false);
        maker
    }

    fn replies(history: &mut History) -> Vec<&mut Step> {
        let steps = history.znodes.iter_mut().flat_map(|log| &mut log.steps).map(|(_, step)| step);
        steps.filter(|step| matches!(step, Step::Replied { .. })).collect()
    }

    #[test]
    fn what_is_in_order_passes() {
        assert_eq!(violations(&legal().done()), [] as [&str; 0]);
    }

    /// A client that sees the past has seen a lock that is no longer there.
    #[test]
    fn a_zxid_that_goes_back_is_caught() {
        let mut history = legal().done();
        for step in replies(&mut history) {
            if let Step::Replied { zxid, found: Found::Data(..), .. } = step {
                *zxid -= 1;
            }
        }
        assert!(!violations(&history).is_empty());
    }

    /// Each kind of read that shows something else than what was there.
    #[test]
    fn a_read_that_shows_another_moment_is_caught() {
        let count = replies(&mut legal().done()).len();
        let mut caught = 0;
        for place in 0..count {
            let mut history = legal().done();
            let mut all = replies(&mut history);
            let Step::Replied { found, .. } = &mut *all[place] else { continue };
            match found {
                Found::Data(data, _) => *data = Some("other".into()),
                Found::Children(names, _) => names.push("other".to_owned()),
                Found::Paths(paths) => paths.clear(),
                _ => continue,
            }
            assert_eq!(violations(&history), ["S4"], "{place}");
            caught += 1;
        }
        assert_eq!(caught, 4);
    }

    #[test]
    fn answers_out_of_order_are_caught() {
        let mut history = legal().done();
        for step in replies(&mut history) {
            if let Step::Replied { xid, .. } = step {
                *xid += 1;
            }
        }
        assert!(!violations(&history).is_empty());
    }

    /// After sync, what was acknowledged to anybody must be there.
    #[test]
    fn a_sync_that_is_behind_is_caught() {
        let mut maker = ZnodeMaker::new();
        let (one, two) = (maker.open(1), maker.open(2));
        maker.create(two, "/a", "1", false);
        maker.sync(one);
        let mut history = maker.done();
        if let Some((_, Step::Replied { zxid, .. })) = history.znodes[one].steps.last_mut() {
            *zxid -= 1;
        }
        assert_eq!(violations(&history), ["S4"]);
    }

    #[test]
    fn writes_in_another_order_than_asked_are_caught() {
        let mut maker = ZnodeMaker::new();
        let one = maker.open(1);
        maker.create(one, "/a", "1", false);
        maker.create(one, "/b", "2", false);
        let mut history = maker.done();
        let log = &mut history.znodes[one];
        let asked: Vec<usize> =
            (0..log.steps.len()).filter(|at| matches!(log.steps[*at].1, Step::Asked { .. })).collect();
        let (first, second) = (log.steps[asked[0]].1.clone(), log.steps[asked[1]].1.clone());
        (log.steps[asked[0]].1, log.steps[asked[1]].1) = (second, first);
        assert!(violations(&history).contains(&"S4"));
    }
}
