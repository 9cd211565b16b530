//! What each request needs of a register and does to it, in numbers.

use std::collections::BTreeMap;

use crate::check::carry_out::carried_out;
use crate::check::replay::contains;
use crate::history::{Answer, Compare, Content, Kv, Op, Operation, Request, Told};

/// What a register holds: the number of a value, or [`ABSENT`].
pub(super) type State = usize;

/// The key does not exist.
pub(super) const ABSENT: State = 0;

/// One way a request may take effect.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// The register must hold all of these just before; more than one is a contradiction.
    pub(super) needs: Vec<State>,
    /// It must hold none of these.
    pub(super) unlike: Vec<State>,
    /// What it holds after; `None`: the same.
    pub(super) becomes: Option<State>,
}

/// A request to be placed.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// Which request of the history.
    pub(super) index: usize,
    pub(super) called: u64,
    /// `None`: it may happen at any later time, or never.
    pub(super) returned: Option<u64>,
    /// Exactly one if it was answered.
    pub(super) choices: Vec<Choice>,
}

/// One register: its values by number, and which value was seen at which revision.
pub(super) struct Values<'a> {
    key: &'a str,
    numbers: BTreeMap<&'a str, State>,
    names: Vec<&'a str>,
    modified: BTreeMap<i64, State>,
}

impl<'a> Values<'a> {
    pub(super) fn new(key: &'a str, operations: impl Iterator<Item = &'a Operation>) -> Values<'a> {
        let names = vec!["(absent)"];
        let mut values = Values { key, numbers: BTreeMap::new(), names, modified: BTreeMap::new() };
        for operation in operations {
            let Told::Answer(Answer { content, .. }) = &operation.result else { continue };
            for (_, content) in carried_out(&operation.request, content) {
                if let Some(kv) = told(content, key) {
                    let state = values.number(&kv.value);
                    values.modified.insert(kv.modified, state);
                }
            }
        }
        values
    }

    fn number(&mut self, value: &'a str) -> State {
        *self.numbers.entry(value).or_insert_with(|| {
            self.names.push(value);
            self.names.len() - 1
        })
    }

    /// The value with a number, for messages.
    pub(super) fn name(&self, state: State) -> &'a str {
        self.names[state]
    }

    /// What the register must hold for a compare to hold; `None` if that is not known, or if it is about
    /// another key.
    fn compared(&mut self, compare: &'a Compare) -> Option<State> {
        let (Compare::ValueIs(key, _)
        | Compare::ModifiedAt(key, _)
        | Compare::VersionIs(key, _)
        | Compare::Admits(key, _)
        | Compare::Holds { name: key, .. }) = compare;
        match compare {
            Compare::Admits(..) | Compare::Holds { .. } => None,
            _ if key != self.key => None,
            Compare::ValueIs(_, value) => Some(self.number(value)),
            Compare::ModifiedAt(_, 0) | Compare::VersionIs(_, 0) => Some(ABSENT),
            Compare::ModifiedAt(_, revision) => self.modified.get(revision).copied(),
            Compare::VersionIs(..) => None,
        }
    }
}

/// The version of a key that an answer tells of.
fn told<'a>(content: &'a Content, key: &str) -> Option<&'a Kv> {
    let versions = match content {
        Content::Put { previous } => previous.as_slice(),
        Content::Delete { previous } => previous,
        Content::Get { found, .. } => found,
        _ => &[],
    };
    versions.iter().find(|kv| kv.key == key)
}

/// Whether an operation is about the register as it is then.
fn concerns(op: &Op, key: &str) -> bool {
    match op {
        Op::Put { key: put, .. } => put == key,
        Op::Delete { key: first, end } | Op::Get { key: first, end, at: 0, .. } => contains(first, end.as_deref(), key),
        Op::Get { .. } => false,
    }
}

/// A request as a step. `known`: its answer counts; else it may have happened. `None`: nothing can be said.
pub(super) fn step<'a>(index: usize, operation: &'a Operation, known: bool, values: &mut Values<'a>) -> Option<Step> {
    let called = operation.called.order;
    match (&operation.result, operation.returned) {
        (Told::Answer(Answer { content, .. }), Some(returned)) if known => {
            let choice = answered(&operation.request, content, values);
            // A lost compare that tells no value; see the module.
            let returned = Some(returned.order);
            (!choice.needs.is_empty()).then(|| Step { index, called, returned, choices: vec![choice] })
        }
        (Told::Error(_) | Told::Refused(_), _) => None,
        _ => {
            let choices = unanswered(&operation.request, values);
            (!choices.is_empty()).then_some(Step { index, called, returned: None, choices })
        }
    }
}

fn answered<'a>(request: &'a Request, content: &'a Content, values: &mut Values<'a>) -> Choice {
    let mut choice = Choice { needs: Vec::new(), unlike: Vec::new(), becomes: None };
    if let (Request::Txn { compares, .. }, Content::Txn { succeeded, .. }) = (request, content) {
        if *succeeded {
            choice.needs.extend(compares.iter().filter_map(|compare| values.compared(compare)));
        } else if let [compare] = compares.as_slice() {
            choice.unlike.extend(values.compared(compare));
        }
    }
    for (op, content) in carried_out(request, content) {
        if !concerns(op, values.key) {
            continue;
        }
        let before = told(content, values.key).map_or(ABSENT, |kv| values.number(&kv.value));
        // After its own first change a request sees that one, which is no news.
        if choice.becomes.is_none() {
            choice.needs.push(before);
        }
        choice.becomes = becomes(op, values).or(choice.becomes);
    }
    choice.needs.dedup();
    choice
}

/// The ways in which a request without an answer may have changed the register.
fn unanswered<'a>(request: &'a Request, values: &mut Values<'a>) -> Vec<Choice> {
    let (then, otherwise, compares): (&[Op], &[Op], &[Compare]) = match request {
        Request::Op(op) => (std::slice::from_ref(op), &[], &[]),
        Request::Txn { compares, then, otherwise } => (then, otherwise, compares),
        _ => (&[], &[], &[]),
    };
    let needs: Vec<State> = compares.iter().filter_map(|compare| values.compared(compare)).collect();
    let mut choices = Vec::new();
    for (ops, needs) in [(then, needs), (otherwise, Vec::new())] {
        let becomes = ops.iter().filter_map(|op| becomes(op, values)).next_back();
        if becomes.is_some() {
            choices.push(Choice { needs, unlike: Vec::new(), becomes });
        }
    }
    choices
}

fn becomes<'a>(op: &'a Op, values: &mut Values<'a>) -> Option<State> {
    match op {
        _ if !concerns(op, values.key) => None,
        Op::Put { value, .. } => Some(values.number(value)),
        Op::Delete { .. } => Some(ABSENT),
        Op::Get { .. } => None,
    }
}
