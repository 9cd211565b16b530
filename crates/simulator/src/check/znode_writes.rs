//! R2, R3, R4, R6 for znodes, and their numbers.
//!
//! - what was acknowledged is in the ledger once, whole at one revision, after everything known when it was asked and
//!   not after the zxid of its answer; what was refused is not there;
//! - every znode that was written was asked for, and every one that went had a reason: a request, the end of its
//!   session, or that it is of a kind that goes by itself;
//! - the numbers of sequential znodes grow, parent by parent.

use std::collections::{BTreeMap, BTreeSet};

use tidelock_face_zookeeper::wire::Request;
use tidelock_face_zookeeper::wire::client::Found;

use super::healed::running_at_the_end;
use super::session_end::was_deleted;
use super::tree::{Asked, Replied, deletes, parent, writes};
use super::{Findings, Prepared};
use crate::history::TreeChange;

/// Digits of a sequential znode's number.
const DIGITS: usize = 10;

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    for asked in &prepared.tree.asked {
        match asked.answer {
            Some(answer) if answer.is_ok() => check_done(prepared, asked, &answer, findings),
            Some(_) => {
                for (path, text) in writes(asked.request) {
                    if let Some((revision, _)) = prepared.tree.written.get(text) {
                        findings.add("R6", format_args!("refused, and written to {path} at {revision}: {text}"));
                    }
                }
            }
            None => {}
        }
    }
    check_last_reached(prepared, findings);
    check_reasons(prepared, findings);
    check_numbers(prepared, findings);
}

/// The ledger remembers what the nodes forgot: they are compared at the end.
fn check_last_reached(prepared: &Prepared<'_>, findings: &mut Findings) {
    let answers = prepared.tree.asked.iter().filter_map(|asked| asked.answer);
    let (Some(_), Some(told)) = (prepared.history.bounds.healed, answers.map(|answer| answer.zxid).max()) else {
        return;
    };
    let reached = running_at_the_end(prepared.history).values().flatten().map(|state| state.revision).max();
    if let Some(reached) = reached.filter(|reached| *reached < told) {
        findings.add("R2", format_args!("a client was told of {told}, but no node is beyond {reached} at the end"));
    }
}

fn check_done(prepared: &Prepared<'_>, asked: &Asked<'_>, answer: &Replied<'_>, findings: &mut Findings) {
    let tree = &prepared.tree;
    let (known, client) = (prepared.seen.before(asked.called), asked.log.client);
    let mut revisions = BTreeSet::new();
    for (path, text) in writes(asked.request) {
        let Some((revision, written)) = tree.written.get(text) else {
            findings.add("R2", format_args!("acknowledged to client {client} and not in the ledger: {path} = {text}"));
            continue;
        };
        revisions.insert(*revision);
        if *revision <= known || *revision > answer.zxid {
            let zxid = answer.zxid;
            findings.add(
                "R3",
                format_args!(
                    "{path} = {text} at {revision}; {known} was known when client {client} asked, told {zxid}"
                ),
            );
        }
        if let (Request::Create(_), Found::Created(told, _)) = (asked.request, answer.found)
            && told != written
        {
            findings.add("R2", format_args!("client {client} was told that it made {told}; it made {written}"));
        }
    }
    if revisions.len() > 1 {
        findings.add("R4", format_args!("one multi of client {client} at revisions {revisions:?}"));
    }
    for path in deletes(asked.request) {
        let gone = |(_, change): (i64, &TreeChange)| matches!(change, TreeChange::Znode { path: gone, became: None } if gone == path);
        if !tree.changes_in(known, answer.zxid).any(gone) {
            let zxid = answer.zxid;
            findings
                .add("R2", format_args!("{path} was deleted for client {client} between {known} and {zxid}, it says"));
        }
    }
}

fn check_reasons(prepared: &Prepared<'_>, findings: &mut Findings) {
    let tree = &prepared.tree;
    let asked_for: BTreeSet<&str> =
        tree.asked.iter().flat_map(|asked| writes(asked.request)).map(|(_, text)| text).collect();
    let mut times: BTreeMap<&str, i64> = BTreeMap::new();
    for (path, versions) in tree.paths() {
        let mut before = None;
        for (revision, became) in versions {
            match became {
                // What the tree begins with, and the parents of everything, have no data.
                Some(znode) if znode.data.is_empty() => {}
                Some(znode) if !asked_for.contains(znode.data.as_str()) => {
                    findings.add("R2", format_args!("nobody asked for {path} = {} at {revision}", znode.data));
                }
                Some(znode) => {
                    if let Some(first) = times.insert(&znode.data, *revision) {
                        findings.add("R6", format_args!("{} of revision {first} is back at {revision}", znode.data));
                    }
                }
                None => {
                    let explained = before.is_some_and(|(by_itself, owner)| by_itself || owner != 0);
                    if !explained && !was_deleted(prepared, path, *revision) {
                        findings.add("R2", format_args!("nobody asked for {path} to go at {revision}"));
                    }
                }
            }
            before = became.map(|znode| (znode.goes_by_itself, znode.owner));
        }
    }
}

fn check_numbers(prepared: &Prepared<'_>, findings: &mut Findings) {
    // A parent that is made anew counts anew.
    let mut highest: BTreeMap<(&str, i64), (i64, &str)> = BTreeMap::new();
    let numbered: BTreeSet<&str> =
        prepared.tree.asked.iter().flat_map(|asked| sequential_prefixes(asked.request)).collect();
    for (revision, changes) in &prepared.history.ledger.tree {
        for change in changes {
            let TreeChange::Znode { path, became: Some(znode) } = change else { continue };
            let Some((prefix, digits)) = path.len().checked_sub(DIGITS).and_then(|at| path.split_at_checked(at)) else {
                continue;
            };
            let (Ok(number), true, Some(parent)) = (digits.parse::<i64>(), numbered.contains(prefix), parent(path))
            else {
                continue;
            };
            if znode.version != 1 {
                continue;
            }
            let made = prepared.tree.get(parent, *revision).map_or(0, |znode| znode.created);
            if let Some((before, other)) = highest.insert((parent, made), (number, path))
                && before >= number
            {
                findings.add("S4", format_args!("{path} was made at {revision}, after {other}"));
            }
        }
    }
}

fn sequential_prefixes(request: &Request) -> Vec<&str> {
    use tidelock_face_zookeeper::wire::{CreateMode, CreateRequest, MultiOp};
    let prefix = |create: &CreateRequest| CreateMode::from_flags(create.flags).is_some_and(CreateMode::is_sequential);
    match request {
        Request::Create(create) if prefix(create) => vec![create.path.as_str()],
        Request::Multi(ops) => ops
            .iter()
            .filter_map(|op| match op {
                MultiOp::Create(create) if prefix(create) => Some(create.path.as_str()),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::run;
    use crate::check::znode_maker::ZnodeMaker;
    use crate::history::{History, Step, TreeChange};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "znode_writes")
    }

    fn legal() -> ZnodeMaker {
        let mut maker = ZnodeMaker::new();
        let one = maker.open(1);
        maker.create(one, "/a", "1", false);
        maker.set(one, "/a", "2");
        maker.sequential(one, "/q-", "3", 0);
        maker.sequential(one, "/q-", "4", 1);
        maker.delete(one, "/a");
        maker
    }

    #[test]
    fn what_was_asked_for_and_answered_passes() {
        assert_eq!(violations(&legal().done()), [] as [&str; 0]);
    }

    /// H12: a committed write that is lost.
    #[test]
    fn an_acknowledged_write_that_is_gone_is_caught() {
        for revision in 3..=7 {
            let mut history = legal().done();
            history.ledger.tree.get_mut(&revision).unwrap().clear();
            assert!(violations(&history).contains(&"R2"), "{revision}");
        }
    }

    #[test]
    fn a_refused_write_that_was_done_is_caught() {
        let mut history = legal().done();
        let refused = history.znodes[0].steps.iter_mut().find_map(|(_, step)| match step {
            Step::Replied { error, .. } => Some(error),
            _ => None,
        });
        *refused.unwrap() = -110;
        assert_eq!(violations(&history), ["R6"]);
    }

    #[test]
    fn a_znode_that_nobody_asked_for_or_that_goes_unasked_is_caught() {
        let mut maker = legal();
        let became = Some(maker.znode("9", 0));
        maker.change(vec![TreeChange::Znode { path: "/x".into(), became }]);
        maker.change(vec![TreeChange::Znode { path: "/x".into(), became: None }]);
        assert_eq!(violations(&maker.done()), ["R2", "R2"]);
    }

    /// Two waiting for a lock with the same number, or in another order than they came.
    #[test]
    fn a_number_that_does_not_grow_is_caught() {
        let mut maker = legal();
        let one = maker.last();
        maker.sequential(one, "/q-", "5", 1);
        assert_eq!(violations(&maker.done()), ["S4"]);
    }
}
