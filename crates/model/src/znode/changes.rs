//! Changes of znodes together with who may hear of them.
//!
//! A watcher is told of a change only if it may read the znode, by the list of rights that counted at that very
//! change: for a deleted znode the one it had, for "its children changed" the parent's. Nobody has to look that up:
//! the state writes the side record of a znode that is not everybody's along with every change of it, so the events
//! of a revision hold all that is needed, also when they are read from history much later.
//!
//! - A znode that is created with a list of its own: its side record comes right before it.
//! - Every other change of a znode that is not everybody's, or of its children: its side record is somewhere among the
//!   changes of the revision. What it was before them counts, until a new list comes in between.
//! - No side record: everybody may do everything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::znode::event::side_path;
use crate::znode::rights::{RIGHTS_AT, stored_rights};
use crate::{AclEntry, Event, Record, ZnodeEvent};

/// A list of rights; nothing: everybody may do everything.
pub type Rights = Option<Arc<[AclEntry]>>;

/// A change that somebody may want to hear of, and who may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZnodeChange {
    /// What changed.
    pub event: ZnodeEvent,
    /// The rights of the znode.
    pub rights: Rights,
    /// The rights of its parent, if that got or lost a child.
    pub parent_rights: Rights,
}

/// What the events of one revision, all of them and in order, mean to ZooKeeper's clients.
#[must_use]
pub fn znode_changes(events: &[Event]) -> Vec<ZnodeChange> {
    // Nearly always nothing is restricted, and nothing has to be looked for.
    let mut lists = if events.iter().any(is_restricted) { lists_before(events) } else { BTreeMap::new() };
    let mut changes = Vec::with_capacity(events.len());
    // The path of the list that was right before.
    let mut new_list = None;
    for event in events {
        let Some(told) = ZnodeEvent::of(event) else {
            new_list = side_path(&event.key).filter(|_| !event.record.is_tombstone());
            match new_list.map(|path| (path, rights_in(&event.record))) {
                Some((path, Some(list))) => drop(lists.insert(path.to_owned(), list)),
                Some((path, None)) => drop(lists.remove(path)),
                None => {}
            }
            continue;
        };
        let new_list = new_list.take();
        let mut change = ZnodeChange { event: told, rights: None, parent_rights: None };
        if let ZnodeEvent::Created(path) | ZnodeEvent::DataChanged(path) | ZnodeEvent::Deleted(path) = &change.event {
            if matches!(change.event, ZnodeEvent::Created(_)) && new_list != Some(path) {
                lists.remove(path);
            }
            change.rights = lists.get(path).cloned();
            if !matches!(change.event, ZnodeEvent::DataChanged(_)) {
                change.parent_rights = parent(path).and_then(|parent| lists.get(parent)).cloned();
            }
            if let ZnodeEvent::Deleted(_) = change.event {
                lists.remove(path);
            }
        }
        changes.push(change);
    }
    changes
}

/// Whether a znode that this is about was or is not everybody's. What it was is not always known.
fn is_restricted(event: &Event) -> bool {
    let has_list = |record: &Record| record.value().len() > RIGHTS_AT;
    side_path(&event.key).is_some()
        && (event.record.is_tombstone() || has_list(&event.record) || event.previous.as_ref().is_some_and(has_list))
}

/// The lists as they were before all of these.
fn lists_before(events: &[Event]) -> BTreeMap<String, Arc<[AclEntry]>> {
    let mut lists = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for event in events {
        let Some(path) = side_path(&event.key).filter(|path| seen.insert(*path)) else { continue };
        let before = match &event.previous {
            Some(previous) => rights_in(previous),
            // What was deleted was there, so it is not known any more: nobody may.
            None if event.record.is_tombstone() => Some(Arc::from([])),
            None if event.record.meta().version > 1 => rights_in(&event.record),
            None => None,
        };
        if let Some(list) = before {
            lists.insert(path.to_owned(), list);
        }
    }
    lists
}

fn rights_in(record: &Record) -> Rights {
    if record.is_tombstone() { None } else { stored_rights(record.value()).map(Arc::from) }
}

fn parent(path: &str) -> Option<&str> {
    match path.rfind('/')? {
        _ if path.len() == 1 => None,
        0 => Some("/"),
        at => Some(&path[..at]),
    }
}
