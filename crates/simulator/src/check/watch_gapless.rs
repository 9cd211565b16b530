//! W3, W5, W9: from its first revision to the last event it was told, a watcher was told exactly the
//! ledger's changes in its range that pass its filters: none missing, none below its start, none made
//! up, each with its content. What lies between the last event and a bookmark or the end of the run is
//! judged by `watch_bookmark.rs` and `watch_ends.rs`.
//!
//! W5 follows: a watcher that goes on elsewhere at last + 1 is a new log with that start.

use super::replay::Version;
use super::told_watch::ToldWatch;
use super::{Findings, Prepared};
use crate::history::WatchEvent;

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    for watch in &prepared.watches {
        let Some(last) = watch.events.iter().map(|(_, event)| event.kv.modified).max() else { continue };
        let from = watch.from.unwrap_or(0);
        for (_, event) in watch.events.iter().filter(|(_, event)| event.kv.modified < from) {
            let revision = event.kv.modified;
            findings.add("W9", format_args!("{watch} was told of revision {revision}, before its first, {from}"));
        }
        let due = watch.due(last);
        // Mostly everything is as it should be, and needs no closer look.
        let exact = due.len() == watch.events.len() && due.iter().zip(&watch.events).all(|(due, told)| is(told.1, due));
        if !exact {
            compare(watch, due, &told(watch, from), findings);
        }
    }
}

/// The events from `from` on, by revision and key: their order is `watch_order.rs`'s.
fn told<'a>(watch: &ToldWatch<'a>, from: i64) -> Vec<&'a WatchEvent> {
    let events = watch.events.iter().map(|(_, event)| *event);
    let mut told: Vec<_> = events.filter(|event| event.kv.modified >= from).collect();
    told.sort_by(|a, b| place_of_event(a).cmp(&place_of_event(b)));
    told
}

fn place_of_event(event: &WatchEvent) -> (i64, &str) {
    (event.kv.modified, &event.kv.key)
}

fn compare(watch: &ToldWatch<'_>, due: &[Version<'_>], told: &[&WatchEvent], findings: &mut Findings) {
    let mut due: Vec<&Version<'_>> = due.iter().collect();
    due.sort_by(|a, b| (a.revision, a.key, a.place).cmp(&(b.revision, b.key, b.place)));
    let (mut due, mut told) = (due.into_iter().peekable(), told.iter().peekable());
    loop {
        let (next_due, next_told) = (due.peek(), told.peek());
        let order = match (next_due, next_told) {
            (None, None) => return,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(change), Some(event)) => (change.revision, change.key).cmp(&place_of_event(event)),
        };
        if order.is_le()
            && let Some(change) = due.next()
        {
            if order.is_lt() {
                let (revision, key) = (change.revision, change.key);
                findings.add("W3", format_args!("{watch} was not told of {key:?} at revision {revision}"));
            } else if let Some(event) = told.next().filter(|event| !is(event, change)) {
                findings.add("W3", format_args!("{watch} was told {event:?}, but it became {:?}", change.became));
            }
        } else if let Some(event) = told.next()
            // A second telling is `watch_order.rs`'s.
            && !repeats(watch, event)
        {
            findings.add("W3", format_args!("{watch} was told of what did not happen or it did not ask: {event:?}"));
        }
    }
}

fn repeats(watch: &ToldWatch<'_>, event: &WatchEvent) -> bool {
    watch.events.iter().filter(|(_, other)| place_of_event(other) == place_of_event(event)).count() > 1
}

fn is(event: &WatchEvent, change: &Version<'_>) -> bool {
    match change.became {
        Some(kv) => !event.deleted && event.kv == *kv,
        None => event.deleted && event.kv.key == change.key && event.kv.modified == change.revision,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::testing::{Maker, run};
    use crate::history::{History, Notice};

    fn events_mut(notice: &mut Notice) -> &mut Vec<WatchEvent> {
        match notice {
            Notice::Events { events, .. } => events,
            other => panic!("not events: {other:?}"),
        }
    }

    fn maker() -> Maker {
        let mut maker = Maker::new();
        maker.put(1, "a", "1"); // 2
        maker.put(1, "b", "2"); // 3
        maker.put(1, "a", "3"); // 4
        maker.delete(1, "a", None); // 5
        maker.put(1, "zz", "4"); // 6
        maker.put(1, "a", "5"); // 7
        maker
    }

    fn watched(start: i64, no_puts: bool, no_deletes: bool) -> History {
        let mut maker = maker();
        let watch = maker.watch(1, "a", Some("c"), start);
        maker.history.watches[watch].no_puts = no_puts;
        maker.history.watches[watch].no_deletes = no_deletes;
        maker.put(1, "b", "6"); // 8
        maker.tell(watch);
        maker.put(1, "b", "7"); // 9
        maker.tell(watch);
        maker.done()
    }

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "watch_gapless")
    }

    #[test]
    fn whatever_the_start_and_the_filters_a_complete_watch_passes() {
        for start in 0..11 {
            for (no_puts, no_deletes) in [(false, false), (true, false), (false, true)] {
                assert_eq!(violations(&watched(start, no_puts, no_deletes)), [] as [&str; 0], "start {start}");
            }
        }
    }

    /// H5, H6: a dropped event is a controller that never acts.
    #[test]
    fn a_missing_event_is_caught_wherever_it_was() {
        for place in 0..4 {
            let mut history = watched(2, false, false);
            events_mut(&mut history.watches[0].notices[1].1).remove(place);
            assert_eq!(violations(&history), ["W3"], "event {place}");
        }
    }

    /// H6: a watch on a future revision once got what was before it.
    #[test]
    fn an_event_below_the_start_is_caught() {
        let mut history = watched(4, false, false);
        history.watches[0].start = 5;
        assert_eq!(violations(&history), ["W9"]);
        // From "now on" means after the revision it was opened at.
        let mut history = watched(0, false, false);
        let earlier = events_mut(&mut watched(7, false, false).watches[0].notices[1].1)[0].clone();
        events_mut(&mut history.watches[0].notices[1].1).insert(0, earlier);
        assert_eq!(violations(&history), ["W9"]);
    }

    #[test]
    fn an_event_that_did_not_happen_or_was_not_asked_for_is_caught() {
        let mut history = watched(2, false, false);
        let events = events_mut(&mut history.watches[0].notices[1].1);
        let mut invented = events[0].clone();
        invented.kv.key = "bb".into();
        events.insert(1, invented);
        assert_eq!(violations(&history), ["W3"]);
        let mut history = watched(2, false, false);
        history.watches[0].no_deletes = true;
        assert_eq!(violations(&history), ["W3"]);
        let mut history = watched(2, false, false);
        history.watches[0].end = Some("b".into());
        assert_eq!(violations(&history).len(), 3);
    }

    #[test]
    fn an_event_with_the_wrong_content_is_caught() {
        type Damage = fn(&mut WatchEvent);
        let damages: [Damage; 3] =
            [|event| event.kv.value = "x".into(), |event| event.deleted = true, |event| event.kv.version += 1];
        for damage in damages {
            let mut history = watched(2, false, false);
            damage(&mut events_mut(&mut history.watches[0].notices[1].1)[0]);
            assert_eq!(violations(&history), ["W3"]);
        }
    }
}
