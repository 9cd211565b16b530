//! R3, in the manner of Elle's list-append: keys under `list/` hold elements separated by commas, and a
//! change appends one. The elements never move, so every state ever read or stored is a beginning of the
//! longest: two that are not beginnings of one another are a fork. An acknowledged element is in the list,
//! once, and in every fresh read asked for later.
//!
//! Looks at no revision, so it does not depend on what `linearizable.rs` depends on.

use std::collections::{BTreeMap, BTreeSet};

use super::carry_out::{carried_out, is_serializable};
use super::horizon::Horizon;
use super::leases::answered;
use super::{Findings, Prepared};
use crate::history::{Content, Op, Stamp};

const PREFIX: &str = "list/";

/// What the history has about one list.
#[derive(Default)]
struct List<'a> {
    /// What the store held, in order.
    stored: Vec<&'a str>,
    /// What was read.
    read: Vec<&'a str>,
    /// What was read and had to be fresh: when it was asked for and how many elements there were.
    fresh: Vec<(Stamp, usize, usize)>,
    /// What was acknowledged: when, and the new element.
    appended: Vec<(Stamp, &'a str, usize)>,
}

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    for (key, list) in lists(prepared) {
        check_one(prepared, key, list, findings);
    }
}

fn lists<'a>(prepared: &Prepared<'a>) -> BTreeMap<&'a str, List<'a>> {
    let mut lists: BTreeMap<&str, List<'_>> = BTreeMap::new();
    for (key, versions) in prepared.replay.with_prefix(PREFIX) {
        // A list that is deleted begins again; no workload does that, and nothing could be said of it.
        if let Some(stored) = versions.iter().map(|version| version.became.map(|kv| kv.value.as_str())).collect() {
            lists.insert(key, List { stored, ..List::default() });
        }
    }
    for (index, operation) in prepared.history.operations.iter().enumerate() {
        let Some((content, returned)) = answered(operation) else { continue };
        let fresh = !is_serializable(&operation.request);
        for (op, content) in carried_out(&operation.request, content) {
            match (op, content) {
                (Op::Put { key, value, .. }, _) => {
                    if let Some(list) = lists.get_mut(key.as_str()) {
                        list.appended.push((returned, value.rsplit(',').next().unwrap_or(value), index));
                    }
                }
                (Op::Get { key, end, at, .. }, Content::Get { found, .. }) => {
                    for kv in found {
                        if let Some(list) = lists.get_mut(kv.key.as_str()) {
                            list.read.push(&kv.value);
                        }
                    }
                    if let (None, 0, true, Some(list)) = (end, at, fresh, lists.get_mut(key.as_str())) {
                        let length = found.first().map_or(0, |kv| kv.value.split(',').count());
                        list.fresh.push((operation.called, length, index));
                    }
                }
                _ => {}
            }
        }
    }
    lists
}

fn check_one(prepared: &Prepared<'_>, key: &str, list: List<'_>, findings: &mut Findings) {
    let last = list.stored.last().copied().unwrap_or_default();
    let mut states = list.stored;
    states.extend(list.read);
    states.sort_unstable_by_key(|state| (state.len(), *state));
    for pair in states.windows(2) {
        let (shorter, longer) = (pair[0], pair[1]);
        let continued = longer.strip_prefix(shorter).is_some_and(|rest| rest.is_empty() || rest.starts_with(','));
        if !continued {
            findings.add("R3", format_args!("{key:?} forked: it was {shorter:?} and {longer:?}"));
        }
    }
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for (place, element) in last.split(',').enumerate() {
        if places.insert(element, place).is_some() {
            findings.add("R3", format_args!("{key:?} has {element:?} twice"));
        }
    }
    let mut acknowledged = Vec::new();
    let mut once = BTreeSet::new();
    for (returned, element, index) in list.appended {
        match places.get(element) {
            Some(place) if once.insert(element) => acknowledged.push((returned, *place as i64 + 1)),
            Some(_) => {}
            None => {
                let name = prepared.name(index);
                findings.add("R3", format_args!("{key:?} ends without {element:?}: {name}"));
            }
        }
    }
    let acknowledged = Horizon::new(0, acknowledged);
    for (called, length, index) in list.fresh {
        let least = acknowledged.before(called);
        if (length as i64) < least {
            let name = prepared.name(index);
            findings.add("R3", format_args!("{least} elements had been acknowledged before this was asked: {name}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::{Maker, answer_mut, run};
    use crate::history::{Content, History, Told};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "lists")
    }

    fn legal() -> History {
        let mut maker = Maker::new();
        maker.put(1, "list/1", "a");
        maker.put(2, "list/1", "a,b");
        maker.get(1, "list/1", None, false);
        let lost = maker.put(2, "list/1", "a,b,c");
        maker.unanswered(lost);
        maker.put(1, "list/1", "a,b,c,d");
        maker.get(1, "list/", Some("list0"), false);
        maker.done()
    }

    fn reading(value: &str) -> History {
        let mut history = legal();
        let Content::Get { found, .. } = &mut answer_mut(&mut history, 2).content else { panic!() };
        found[0].value = value.into();
        history
    }

    #[test]
    fn a_list_that_only_grows_passes() {
        assert_eq!(violations(&legal()), [] as [&str; 0]);
    }

    #[test]
    fn a_read_of_another_list_is_caught() {
        assert!(violations(&reading("a,x")).contains(&"R3"));
        // "a,bb" begins with the letters of "a,b" and yet not with its elements.
        assert!(violations(&reading("a,bb")).contains(&"R3"));
    }

    #[test]
    fn a_fresh_read_without_what_was_acknowledged_is_caught() {
        assert_eq!(violations(&reading("a")), ["R3"]);
        let mut history = legal();
        answer_mut(&mut history, 2).content = Content::Get { found: vec![], count: 0 };
        assert_eq!(violations(&history), ["R3"]);
    }

    /// The lost update: two read the same list, both were told that theirs is in it.
    #[test]
    fn an_acknowledged_element_that_is_lost_is_caught() {
        let mut history = legal();
        for kv in history.ledger.changes.values_mut().flatten().filter_map(|change| change.became.as_mut()) {
            kv.value = kv.value.replace("a,b", "a");
        }
        assert!(violations(&history).contains(&"R3"));
    }

    #[test]
    fn an_element_that_is_there_twice_is_caught() {
        let mut maker = Maker::new();
        maker.put(1, "list/1", "a");
        let twice = maker.put(1, "list/1", "a,a");
        maker.unanswered(twice);
        assert_eq!(violations(&maker.done()), ["R3"]);
        let mut history = legal();
        history.operations[3].result = Told::Refused("no leader".into());
        assert_eq!(violations(&history), [] as [&str; 0]);
    }
}
