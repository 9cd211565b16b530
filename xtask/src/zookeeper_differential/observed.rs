//! All that one side showed of one step: what came over each connection, in its order.

use std::collections::{BTreeMap, BTreeSet};

use super::answer::{Item, Value};
use super::masking::Names;

/// What came, by connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Observed(pub(super) BTreeMap<String, Vec<Item>>);

/// The row of the connection that asked.
pub(super) const ASKED: &str = "asked";
/// The row of the connection that a session had before it came back.
pub(super) const BEFORE: &str = "before";

impl Observed {
    /// Adds what came over a connection.
    pub(super) fn add(&mut self, row: &str, items: Vec<Item>) {
        if !items.is_empty() {
            self.0.entry(row.to_string()).or_default().extend(items);
        }
    }

    /// The reply to what was asked.
    pub(super) fn reply(&self) -> Option<&Item> {
        self.0.get(ASKED)?.iter().find(|item| matches!(item, Item::Reply { .. }))
    }

    /// The same, to be changed.
    pub(super) fn reply_mut(&mut self) -> Option<&mut Item> {
        self.0.get_mut(ASKED)?.iter_mut().find(|item| matches!(item, Item::Reply { .. }))
    }

    /// The newest zxid that any header told.
    pub(super) fn highest(&self) -> i64 {
        self.0.values().flatten().filter_map(Item::zxid).max().unwrap_or(0)
    }

    /// Puts names in place of numbers.
    pub(super) fn mask(&mut self, names: &Names) {
        self.0.values_mut().for_each(|items| names.mask(items));
    }

    /// Whether a write was done: answered, and not with a refusal, also not inside a multi.
    pub(super) fn succeeded(&self) -> bool {
        let Some(Item::Reply { error: 0, fields, .. }) = self.reply() else { return false };
        !fields.iter().any(|field| field.name.ends_with(".error") && field.value != Value::Number(0))
    }
}

/// How two differ, in a few words that are the same for like differences.
pub(super) fn kind_of_difference(ours: &Observed, theirs: &Observed) -> String {
    let rows = ours.0.keys().chain(theirs.0.keys());
    let nothing = Vec::new();
    for row in rows {
        let (one, other) = (ours.0.get(row).unwrap_or(&nothing), theirs.0.get(row).unwrap_or(&nothing));
        if one == other {
            continue;
        }
        let row = if row == ASKED || row == BEFORE { row } else { "other connection" };
        let kinds = |items: &[Item]| items.iter().map(Item::kind).collect::<Vec<_>>().join(" ");
        let (our, their) = (kinds(one), kinds(other));
        if our != their {
            return format!("{row}: [{our}] / [{their}]");
        }
        // Each once: how many items of a row differ alike is chance.
        let names: BTreeSet<String> = one.iter().zip(other).flat_map(|(one, other)| differing(one, other)).collect();
        return format!("{row}: {}", names.into_iter().collect::<Vec<_>>().join(" "));
    }
    "none".to_string()
}

/// The names of the fields that differ in two items of one kind.
fn differing(one: &Item, other: &Item) -> Vec<String> {
    match (one, other) {
        (
            Item::Reply { xid, zxid, fields, .. },
            Item::Reply { xid: other_xid, zxid: other_zxid, fields: other_fields, .. },
        ) => {
            let mut names = Vec::new();
            if xid != other_xid {
                names.push("xid".to_string());
            }
            if zxid != other_zxid {
                names.push("header zxid".to_string());
            }
            if fields.len() != other_fields.len() {
                names.push("number of fields".to_string());
            }
            // The place in a multi is left out: it is no other difference there.
            let plain =
                |name: &str| name.trim_start_matches(|digit: char| digit.is_ascii_digit() || digit == '.').to_string();
            let unlike = fields.iter().zip(other_fields).filter(|(one, other)| one != other);
            names.extend(unlike.map(|(one, _)| plain(&one.name)));
            names
        }
        (Item::Event { path, state, .. }, Item::Event { path: other_path, state: other_state, .. }) => {
            match (path == other_path, state == other_state) {
                (false, _) => vec!["an event's path".to_string()],
                (_, false) => vec!["an event's state".to_string()],
                _ if one != other => vec!["an event's zxid".to_string()],
                _ => Vec::new(),
            }
        }
        _ if one != other => vec!["fields".to_string()],
        _ => Vec::new(),
    }
}
