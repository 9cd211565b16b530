//! S3 as told: a node that follows sessions tells of each that ends, once, in order, when it ended and not before; and who
//! follows its session hears of it.
//!
//! A node carries out every entry by itself, so what it is to tell is what ended in its own state, from when it was asked
//! to tell on. Where it took over the state of another it cannot know which sessions ended: it says so, and its log
//! begins anew. A log that is open when the run ends told all but what happened last.

use std::collections::BTreeMap;

use tidelock_model::NodeId;

use super::prepared::At;
use super::{Findings, Prepared};
use crate::history::{Micros, NativePush, Observation, Stamp};

/// What happened in the last moments need not have been told.
const LATE: Micros = 1_500_000;

/// A session that ended in the state of a node: when, which, and whether in a snapshot of another's.
type Ended = (Stamp, i64, bool);

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let mut ended: BTreeMap<NodeId, Vec<Ended>> = BTreeMap::new();
    for (stamp, observation) in &prepared.history.observations {
        if let Observation::SessionEnded { node, session, in_snapshot } = observation {
            ended.entry(*node).or_default().push((*stamp, *session, *in_snapshot));
        }
    }
    let run_ended = prepared.history.bounds.ended.map_or(0, |ended| ended.at);
    for push in &prepared.history.native_pushes {
        check_push(push, ended.get(&push.node).map_or(&[], Vec::as_slice), run_ended, findings);
    }
    check_follows(prepared, &ended, findings);
}

fn check_push(push: &NativePush, ended: &[Ended], run_ended: Micros, findings: &mut Findings) {
    let (node, closed) = (push.node, push.closed.map_or(u64::MAX, |closed| closed.order));
    let since = |order: u64| move |(at, ..): &&Ended| (order..closed).contains(&at.order);
    let mut due = ended.iter().filter(since(push.began.order)).filter(|(.., in_snapshot)| !in_snapshot).peekable();
    for (told_at, told) in &push.ended {
        // What ended before it was opened may have been told or not.
        let was_early = |(at, session, _): &&Ended| {
            *session != told.0 && push.opened.is_none_or(|(opened, _)| at.order < opened.order)
        };
        while due.next_if(was_early).is_some() {}
        let next = due.next();
        if next.is_none_or(|(at, session, _)| *session != told.0 || at.order > told_at.order) {
            let (at, session) = (At(*told_at), told.0);
            findings.add(
                "S3",
                format_args!("node {node} was told at {at} of the end of session {session:x}, and next was {next:?}"),
            );
            return;
        }
    }
    let Some((opened, _)) = push.opened.filter(|_| push.closed.is_none()) else { return };
    let jumped = ended.iter().filter(since(opened.order)).filter(|(.., in_snapshot)| *in_snapshot);
    let left = due.filter(since(opened.order)).chain(jumped).find(|(at, ..)| at.at + LATE < run_ended);
    if let Some((at, session, in_snapshot)) = left {
        let (at, how) = (At(*at), if *in_snapshot { " in a snapshot" } else { "" });
        findings.add("S3", format_args!("node {node} never told of the end{how} of session {session:x} at {at}"));
    }
}

fn check_follows(prepared: &Prepared<'_>, ended: &BTreeMap<NodeId, Vec<Ended>>, findings: &mut Findings) {
    for follow in prepared.history.native_follows.iter().filter(|follow| follow.told.is_none()) {
        let node = prepared.history.native_pushes[follow.push].node;
        let mut ends = ended.get(&node).into_iter().flatten().filter(|(_, session, _)| *session == follow.session.0);
        if let Some((at, ..)) = ends.find(|(at, ..)| at.order > follow.from.order && at.at + LATE < follow.heard.at) {
            let (client, session, at, heard) = (follow.client, follow.session.0, At(*at), At(follow.heard));
            findings.add(
                "S3",
                format_args!(
                    "client {client} listened at node {node} until {heard}; session {session:x} ended at {at}"
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use tidelock_model::{LeaseId, NodeId};

    use crate::check::native_tests::{Maker, assert_found, violations};
    use crate::history::{History, NativeFollow, Observation, Stamp};

    /// Two sessions end one after the other; the client of the second follows it.
    fn two_ends() -> History {
        let mut maker = Maker::new();
        let sessions: Vec<LeaseId> = (1..=2).map(|client| maker.open(client)).collect();
        let from = maker.stamp();
        sessions.iter().for_each(|session| maker.end(*session));
        let told = maker.history.native_pushes[0].ended[1].0;
        let follow = NativeFollow { client: 2, session: sessions[1], push: 0, from, heard: told, told: Some(told) };
        maker.history.native_follows.push(follow);
        maker.done()
    }

    #[test]
    fn ends_that_are_told_once_and_in_order_pass() {
        assert_eq!(violations(&two_ends()), [] as [&str; 0]);
    }

    /// Who is never told goes on believing in what it held until its own clock says otherwise.
    #[test]
    fn s3_an_end_that_is_not_told_is_caught() {
        let mut history = two_ends();
        history.native_pushes[0].ended.pop();
        assert_found(&history, "S3 native_ends");
        let mut history = two_ends();
        history.native_pushes[0].ended.remove(0);
        assert_found(&history, "S3 native_ends");
    }

    /// S3: of a session that lives it is not told that it is over, nor before it is, nor twice.
    #[test]
    fn s3_an_end_that_is_not_or_not_yet_or_twice_is_caught() {
        let mut history = two_ends();
        history.native_pushes[0].ended[0].1 = LeaseId(7);
        assert_found(&history, "S3 native_ends");
        let mut history = two_ends();
        history.native_pushes[0].ended[0].0 = Stamp { order: 1, at: 1 };
        assert_found(&history, "S3 native_ends");
        let mut history = two_ends();
        let again = history.native_pushes[0].ended[1];
        history.native_pushes[0].ended.push(again);
        assert_found(&history, "S3 native_ends");
    }

    /// A node that took over another's state cannot know which sessions ended, and must say so.
    #[test]
    fn s3_a_jump_that_is_not_told_is_caught() {
        let mut history = two_ends();
        let (last, session) = history.native_pushes[0].ended[1];
        let jumped = Observation::SessionEnded { node: NodeId(1), session: session.0 + 1, in_snapshot: true };
        history.observations.push((last, jumped));
        assert_found(&history, "S3 native_ends");
        // One that began anew is another log.
        history.native_pushes[0].closed = Some(Stamp { order: last.order + 1, at: last.at + 1 });
        assert_eq!(violations(&history), [] as [&str; 0]);
    }

    #[test]
    fn s3_a_client_that_listens_and_hears_nothing_is_caught() {
        let mut history = two_ends();
        let ended = history.bounds.ended.unwrap();
        history.native_follows[0].told = None;
        assert_eq!(violations(&history), [] as [&str; 0], "it went away at that very moment");
        history.native_follows[0].heard = ended;
        assert_found(&history, "S3 native_ends");
    }
}
