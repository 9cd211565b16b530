//! W1, W2, W4: a watcher is told of changes in the order of revisions, of each once, and of all changes
//! of one revision in one response (no watcher here asks for fragments). Also: it is opened before it is
//! told anything, and told nothing after it was ended.

use super::told_watch::ToldWatch;
use super::{Findings, Prepared};
use crate::history::{Notice, WatchEvent};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    for watch in &prepared.watches {
        let (mut last, mut open, mut over) = (0, false, false);
        for (_, notice) in &watch.log.notices {
            let refused_at_once = matches!(notice, Notice::Canceled { .. });
            let opens = matches!(notice, Notice::Created { .. });
            if over || (opens && open) || (!open && !opens && !refused_at_once) {
                findings.add("W1", format_args!("{watch} was told out of turn: {notice:?}"));
            }
            open |= opens;
            over |= refused_at_once;
            if let Notice::Events { revision, events } = notice {
                check_response(prepared, watch, last, *revision, events, findings);
                last = events.iter().map(|event| event.kv.modified).max().unwrap_or(0).max(last);
            }
        }
    }
}

fn check_response(
    prepared: &Prepared<'_>,
    watch: &ToldWatch<'_>,
    last: i64,
    header: i64,
    events: &[WatchEvent],
    findings: &mut Findings,
) {
    let mut before = last;
    for (place, event) in events.iter().enumerate() {
        let (key, revision) = (event.kv.key.as_str(), event.kv.modified);
        let same_revision = events[..place].iter().rev().take_while(|other| other.kv.modified == revision);
        let seen = same_revision.filter(|other| other.kv.key == key).count();
        let changed = || prepared.replay.changes_at(revision).iter().filter(|change| change.key == key).count();
        if revision < before {
            findings.add("W1", format_args!("{watch} was told of revision {revision} after {before}"));
        } else if seen > 0 && seen >= changed() {
            findings.add("W2", format_args!("{watch} was told of {key:?} at revision {revision} twice"));
        } else if revision == last {
            findings.add("W4", format_args!("{watch} was told of revision {revision} in two responses"));
        }
        before = before.max(revision);
    }
    if header < before {
        findings.add("W1", format_args!("{watch} was told of revision {before} by a store at {header}"));
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, put_op, run};
    use crate::history::{History, Notice, WatchEvent};

    fn legal() -> History {
        let mut maker = Maker::new();
        let watch = maker.watch(1, "a", Some("z"), 0);
        maker.put(1, "a", "1");
        maker.put(1, "b", "2");
        maker.txn(1, vec![], vec![put_op("a", "3"), put_op("b", "4")], vec![]);
        maker.tell(watch);
        maker.put(1, "a", "5");
        maker.tell(watch);
        maker.done()
    }

    fn broken(damage: impl Fn(&mut Vec<WatchEvent>)) -> Vec<&'static str> {
        let mut history = legal();
        let Notice::Events { events, .. } = &mut history.watches[0].notices[1].1 else { panic!() };
        damage(events);
        run(&history, "watch_order")
    }

    #[test]
    fn events_in_order_pass() {
        assert_eq!(run(&legal(), "watch_order"), [] as [&str; 0]);
    }

    #[test]
    fn events_out_of_order_are_caught() {
        assert_eq!(broken(|events| events.swap(0, 1)), ["W1"]);
    }

    /// H5: a node that catches up from a snapshot must not replay what was told.
    #[test]
    fn an_event_told_twice_is_caught() {
        assert_eq!(broken(|events| events.insert(0, events[0].clone())), ["W2"]);
        let mut history = legal();
        let again = history.watches[0].notices[1].clone();
        history.watches[0].notices.push(again);
        assert!(run(&history, "watch_order").contains(&"W1"));
    }

    /// A controller that sees half a transaction acts on a state that never was.
    #[test]
    fn a_revision_split_over_two_responses_is_caught() {
        let mut history = legal();
        let (stamp, notice) = history.watches[0].notices[1].clone();
        let Notice::Events { revision, events } = notice else { panic!() };
        let (first, second) = events.split_at(3);
        let response = |events: &[WatchEvent]| (stamp, Notice::Events { revision, events: events.to_vec() });
        history.watches[0].notices.splice(1..2, [response(first), response(second)]);
        assert_eq!(run(&history, "watch_order"), ["W4"]);
    }

    #[test]
    fn what_is_told_before_the_opening_or_after_the_end_is_caught() {
        let mut history = legal();
        history.watches[0].notices.swap(0, 1);
        assert_eq!(run(&history, "watch_order"), ["W1"]);
        let mut history = legal();
        let canceled = Notice::Canceled { compact_revision: 0, reason: String::new() };
        let stamp = history.watches[0].notices[0].0;
        history.watches[0].notices.insert(2, (stamp, canceled));
        assert_eq!(run(&history, "watch_order"), ["W1"]);
    }

    #[test]
    fn an_event_from_the_future_of_its_response_is_caught() {
        let mut history = legal();
        let Notice::Events { revision, .. } = &mut history.watches[0].notices[1].1 else { panic!() };
        *revision = 2;
        assert_eq!(run(&history, "watch_order"), ["W1"]);
    }
}
