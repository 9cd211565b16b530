//! What a request must answer and change, worked out on the reference model.
//!
//! As etcd means it: all compares are judged on the store before the transaction, the operations of
//! the branch taken see what those before them did, and everything happens at one revision.

use std::collections::BTreeMap;

use super::replay::{Replay, contains};
use crate::history::{Change, Compare, Content, Kv, Op, Request};

/// A key with its value, borrowed from the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item<'a> {
    key: &'a str,
    value: &'a str,
    created: i64,
    modified: i64,
    version: i64,
    lease: i64,
}

impl<'a> From<&'a Kv> for Item<'a> {
    fn from(kv: &'a Kv) -> Item<'a> {
        let Kv { key, value, created, modified, version, lease } = kv;
        Item { key, value, created: *created, modified: *modified, version: *version, lease: *lease }
    }
}

/// What must be answered.
#[derive(Debug)]
pub(crate) enum Seen<'a> {
    Put(Option<Item<'a>>),
    Delete(Vec<Item<'a>>),
    Get(Vec<Item<'a>>),
    Txn(bool, Vec<Seen<'a>>),
}

/// What must come of a request.
pub(crate) struct Expected<'a> {
    pub(crate) seen: Seen<'a>,
    pub(crate) changes: Vec<(&'a str, Option<Item<'a>>)>,
}

/// Carries `request` out on the store as of revision `before`; what it changes is changed at
/// `revision`. `None` for a request that is not about keys.
pub(crate) fn carry_out<'a>(
    replay: &Replay<'a>,
    request: &'a Request,
    before: i64,
    revision: i64,
) -> Option<Expected<'a>> {
    let mut store = Store { replay, before, revision, changed: BTreeMap::new(), changes: Vec::new() };
    let seen = match request {
        Request::Op(op) => store.op(op),
        Request::Txn { compares, then, otherwise } => {
            let succeeded = compares.iter().all(|compare| store.holds(compare));
            let ops = if succeeded { then } else { otherwise };
            Seen::Txn(succeeded, ops.iter().map(|op| store.op(op)).collect())
        }
        Request::Compact { .. } | Request::Grant { .. } | Request::Revoke { .. } | Request::KeepAlive { .. } => {
            return None;
        }
    };
    Some(Expected { seen, changes: store.changes })
}

struct Store<'r, 'a> {
    replay: &'r Replay<'a>,
    before: i64,
    revision: i64,
    changed: BTreeMap<&'a str, Option<Item<'a>>>,
    changes: Vec<(&'a str, Option<Item<'a>>)>,
}

impl<'a> Store<'_, 'a> {
    fn get(&self, key: &str) -> Option<Item<'a>> {
        match self.changed.get(key) {
            Some(item) => *item,
            None => self.replay.get(key, self.before).map(Item::from),
        }
    }

    fn range(&self, first: &str, end: Option<&str>) -> Vec<Item<'a>> {
        if end.is_none() {
            return self.get(first).into_iter().collect();
        }
        let past = self.replay.range(first, end, self.before).into_iter().map(Item::from);
        if self.changed.is_empty() {
            return past.collect();
        }
        let mut items: BTreeMap<&str, Item<'a>> = past.map(|item| (item.key, item)).collect();
        for (key, item) in self.changed.iter().filter(|(key, _)| contains(first, end, key)) {
            match item {
                Some(item) => items.insert(key, *item),
                None => items.remove(key),
            };
        }
        items.into_values().collect()
    }

    fn set(&mut self, key: &'a str, item: Option<Item<'a>>) {
        self.changed.insert(key, item);
        self.changes.push((key, item));
    }

    fn op(&mut self, op: &'a Op) -> Seen<'a> {
        match op {
            Op::Put { key, value, lease } => {
                let previous = self.get(key);
                let (created, version) = previous.map_or((self.revision, 1), |kv| (kv.created, kv.version + 1));
                let item = Item { key, value, created, modified: self.revision, version, lease: *lease };
                self.set(key, Some(item));
                Seen::Put(previous)
            }
            Op::Delete { key, end } => {
                let previous = self.range(key, end.as_deref());
                previous.iter().for_each(|item| self.set(item.key, None));
                Seen::Delete(previous)
            }
            Op::Get { key, end, at: 0, .. } => Seen::Get(self.range(key, end.as_deref())),
            Op::Get { key, end, at, .. } => {
                Seen::Get(self.replay.range(key, end.as_deref(), *at).into_iter().map(Item::from).collect())
            }
        }
    }

    fn holds(&self, compare: &Compare) -> bool {
        match compare {
            Compare::ValueIs(key, value) => self.get(key).is_some_and(|item| item.value == value),
            Compare::ModifiedAt(key, revision) => self.get(key).map_or(0, |item| item.modified) == *revision,
            Compare::VersionIs(key, version) => self.get(key).map_or(0, |item| item.version) == *version,
            // A token is a revision that was there, and none that is older than one that was let through.
            Compare::Admits(fence, token) => {
                i64::try_from(*token).is_ok_and(|token| (1..=self.before).contains(&token))
                    && self.replay.fence(fence, self.before) <= *token
            }
            Compare::Holds { session, kind, name, token } => {
                self.replay.is_held(*session, *kind, name, *token, self.before)
            }
        }
    }
}

impl Seen<'_> {
    /// Whether this is what was answered.
    pub(crate) fn is(&self, content: &Content) -> bool {
        match (self, content) {
            (Seen::Put(expected), Content::Put { previous }) => *expected == previous.as_ref().map(Item::from),
            (Seen::Delete(expected), Content::Delete { previous }) => same(expected, previous),
            (Seen::Get(expected), Content::Get { found, count }) => {
                same(expected, found) && usize::try_from(*count) == Ok(expected.len())
            }
            (Seen::Txn(branch, expected), Content::Txn { succeeded, answers }) => {
                branch == succeeded
                    && expected.len() == answers.len()
                    && expected.iter().zip(answers).all(|(expected, answer)| expected.is(answer))
            }
            (Seen::Txn(branch, _), Content::Written { done }) => branch == done,
            _ => false,
        }
    }
}

fn same(expected: &[Item<'_>], found: &[Kv]) -> bool {
    expected.len() == found.len() && expected.iter().zip(found).all(|(item, kv)| *item == Item::from(kv))
}

impl Expected<'_> {
    /// Whether exactly this was changed, in this order.
    pub(crate) fn changes_are(&self, changes: &[Change]) -> bool {
        self.changes.len() == changes.len()
            && self
                .changes
                .iter()
                .zip(changes)
                .all(|((key, item), change)| *key == change.key && *item == change.became.as_ref().map(Item::from))
    }
}

/// Whether an answer says that something was changed.
pub(crate) fn wrote(content: &Content) -> bool {
    match content {
        Content::Put { .. } => true,
        Content::Delete { previous } => !previous.is_empty(),
        Content::Txn { answers, .. } => answers.iter().any(wrote),
        // A native write puts something at least.
        Content::Written { done } => *done,
        Content::Get { .. } | Content::Compacted | Content::Granted | Content::Revoked | Content::KeptAlive { .. } => {
            false
        }
    }
}

/// Every operation a request may carry out, whichever branch is taken.
pub(crate) fn operations(request: &Request) -> impl Iterator<Item = &Op> {
    let (first, then, otherwise): (Option<&Op>, &[Op], &[Op]) = match request {
        Request::Op(op) => (Some(op), &[], &[]),
        Request::Txn { then, otherwise, .. } => (None, then, otherwise),
        _ => (None, &[], &[]),
    };
    first.into_iter().chain(then).chain(otherwise)
}

/// Whether a request may change keys, so that it goes through the log.
pub(crate) fn may_write(request: &Request) -> bool {
    operations(request).any(|op| !matches!(op, Op::Get { .. }))
}

/// Whether a request reads and may be answered from what one node has.
pub(crate) fn is_serializable(request: &Request) -> bool {
    let mut ops = operations(request).peekable();
    ops.peek().is_some() && ops.all(|op| matches!(op, Op::Get { serializable: true, .. }))
}

/// Every operation that was carried out, with its answer.
pub(crate) fn carried_out<'a>(request: &'a Request, content: &'a Content) -> Vec<(&'a Op, &'a Content)> {
    match (request, content) {
        (Request::Op(op), content) => vec![(op, content)],
        (Request::Txn { then, otherwise, .. }, Content::Txn { succeeded, answers }) => {
            (if *succeeded { then } else { otherwise }).iter().zip(answers).collect()
        }
        (Request::Txn { then, .. }, Content::Written { done: true }) => then.iter().map(|op| (op, content)).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::testing::{kv, put_op};
    use crate::history::{Change, Ledger};

    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        ledger.changes.insert(2, vec![Change { key: "a".into(), became: Some(kv("a", "1", 2, 2, 1)) }]);
        ledger.changes.insert(3, vec![Change { key: "b".into(), became: Some(kv("b", "2", 3, 3, 1)) }]);
        ledger
    }

    fn get(key: &str, end: Option<&str>) -> Op {
        Op::Get { key: key.into(), end: end.map(Into::into), at: 0, serializable: false }
    }

    /// The answers here are written by hand: the model that judges all others must itself be judged.
    #[test]
    fn a_transaction_reads_its_own_writes_and_compares_what_was_before() {
        let ledger = ledger();
        let replay = Replay::new(&ledger);
        let request = Request::Txn {
            compares: vec![Compare::ValueIs("a".into(), "1".into()), Compare::VersionIs("c".into(), 0)],
            then: vec![
                put_op("c", "3"),
                get("a", Some("z")),
                Op::Delete { key: "a".into(), end: None },
                put_op("b", "4"),
                get("a", Some("z")),
                Op::Get { key: "a".into(), end: None, at: 2, serializable: false },
            ],
            otherwise: vec![],
        };
        let expected = carry_out(&replay, &request, 3, 4).unwrap();
        let (a, b, c) = (kv("a", "1", 2, 2, 1), kv("b", "2", 3, 3, 1), kv("c", "3", 4, 4, 1));
        let new_b = kv("b", "4", 3, 4, 2);
        let found = |found: Vec<Kv>| Content::Get { count: found.len() as i64, found };
        let answers = vec![
            Content::Put { previous: None },
            found(vec![a.clone(), b.clone(), c.clone()]),
            Content::Delete { previous: vec![a.clone()] },
            Content::Put { previous: Some(b) },
            found(vec![new_b.clone(), c.clone()]),
            found(vec![a]),
        ];
        assert!(expected.seen.is(&Content::Txn { succeeded: true, answers: answers.clone() }));
        assert!(!expected.seen.is(&Content::Txn { succeeded: false, answers }));
        let change = |key: &str, became| Change { key: key.into(), became };
        let changes = vec![change("c", Some(c)), change("a", None), change("b", Some(new_b))];
        assert!(expected.changes_are(&changes));
        assert!(!expected.changes_are(&changes[..2]));
    }

    /// A lost compare-and-set must take the other branch, and only the other.
    #[test]
    fn a_compare_that_does_not_hold_takes_the_other_branch() {
        let ledger = ledger();
        let replay = Replay::new(&ledger);
        for (compare, holds) in [
            (Compare::ModifiedAt("a".into(), 2), true),
            (Compare::ModifiedAt("a".into(), 3), false),
            (Compare::ModifiedAt("x".into(), 0), true),
            (Compare::VersionIs("b".into(), 1), true),
            (Compare::ValueIs("x".into(), String::new()), false),
        ] {
            let request = Request::Txn { compares: vec![compare], then: vec![put_op("a", "9")], otherwise: vec![] };
            let expected = carry_out(&replay, &request, 3, 4).unwrap();
            assert_eq!(expected.changes.len(), usize::from(holds), "{request:?}");
        }
    }
}
