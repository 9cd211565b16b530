//! W7: what an event says about before is right: the previous value is what the key was just before the
//! event's revision, and "created" is said of keys that did not exist.
//!
//! Whether a watcher asked for previous values is not recorded; one that was ever told one did ask. From
//! then on it may miss one only if that was compacted: its revision, one before the event's, is below a
//! compaction that was asked for before the event was told.

use super::told_watch::ToldWatch;
use super::{Findings, Prepared};
use crate::history::{Request, Stamp};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let operations = &prepared.history.operations;
    let compactions: Vec<(Stamp, i64)> = operations
        .iter()
        .filter_map(|operation| match operation.request {
            Request::Compact { revision } => Some((operation.called, revision)),
            _ => None,
        })
        .collect();
    for watch in &prepared.watches {
        check_watch(prepared, watch, &compactions, findings);
    }
}

fn check_watch(prepared: &Prepared<'_>, watch: &ToldWatch<'_>, compactions: &[(Stamp, i64)], findings: &mut Findings) {
    let asked = watch.events.iter().any(|(_, event)| event.previous.is_some());
    for (stamp, event) in &watch.events {
        let (key, revision) = (event.kv.key.as_str(), event.kv.modified);
        let before = prepared.replay.before(key, revision);
        match (&event.previous, before) {
            (Some(told), before) if before != Some(told) => {
                findings.add("W7", format_args!("{watch} was told {event:?}, but before that it was {before:?}"));
            }
            (None, Some(before)) if asked => {
                let forgotten =
                    |(called, compacted): &(Stamp, i64)| called.order < stamp.order && revision - 1 < *compacted;
                if !compactions.iter().any(forgotten) {
                    findings.add("W7", format_args!("{watch} was not told what was before {event:?}: {before:?}"));
                }
            }
            _ => {}
        }
        let says_created = event.kv.created == revision;
        if !event.deleted && says_created != before.is_none() {
            findings.add("W7", format_args!("{watch} was told {event:?}, but before that it was {before:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, run};
    use crate::history::{History, Notice, Request, WatchEvent};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "watch_previous")
    }

    fn legal() -> Maker {
        let mut maker = Maker::new();
        let watch = maker.watch(1, "a", Some("z"), 0);
        maker.put(1, "a", "1");
        maker.put(1, "a", "2");
        maker.put(1, "a", "3");
        maker.delete(1, "a", None);
        maker.put(1, "a", "4");
        maker.tell(watch);
        maker
    }

    fn damaged(history: &History, damage: impl Fn(&mut [WatchEvent])) -> History {
        let mut history = history.clone();
        let Notice::Events { events, .. } = &mut history.watches[0].notices[1].1 else { panic!() };
        damage(events);
        history
    }

    #[test]
    fn right_previous_values_pass_and_so_does_never_telling_any() {
        let history = legal().done();
        assert_eq!(violations(&history), [] as [&str; 0]);
        let never = damaged(&history, |events| events.iter_mut().for_each(|event| event.previous = None));
        assert_eq!(violations(&never), [] as [&str; 0]);
    }

    #[test]
    fn a_wrong_previous_value_is_caught() {
        let history = legal().done();
        let older = damaged(&history, |events| events[2].previous = events[1].previous.clone());
        assert_eq!(violations(&older), ["W7"]);
        let invented = damaged(&history, |events| events[0].previous = events[1].previous.clone());
        assert_eq!(violations(&invented), ["W7"]);
    }

    /// Clean-up code that needs the deleted value gets nothing.
    #[test]
    fn a_previous_value_that_is_left_out_is_caught_unless_it_was_compacted() {
        let left_out = damaged(&legal().done(), |events| events[2].previous = None);
        assert_eq!(violations(&left_out), ["W7"]);
        for (revision, passes) in [(3, false), (4, true)] {
            let mut maker = Maker::new();
            let compact = maker.ask(1, Request::Compact { revision });
            let mut history = left_out.clone();
            history.operations.push(maker.done().operations[compact].clone());
            assert_eq!(violations(&history).is_empty(), passes, "{revision}");
        }
    }

    #[test]
    fn an_event_that_is_wrongly_called_a_creation_is_caught() {
        let history = legal().done();
        let wrongly = damaged(&history, |events| events[1].kv.created = events[1].kv.modified);
        assert_eq!(violations(&wrongly), ["W7"]);
        let not = damaged(&history, |events| events[0].kv.created = 1);
        assert_eq!(violations(&not), ["W7"]);
    }
}
