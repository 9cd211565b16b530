//! The tree as one request will leave it: the state, with changes on top that are not made yet.
//!
//! Operations of a request see what those before them did, and the state does not know of it: dropping a
//! draft undoes everything. What a draft says of a znode (revisions, versions) is what the state will say once
//! it is carried out.

use std::collections::BTreeMap;

use bytes::Bytes;
use tidelock_model::{Event, PutLease, PutOp, PutValue, Revision, ZnodeStat};

use crate::State;
use crate::change::Revising;
use crate::znodes::quota::Figures;
use crate::znodes::record::{Side, Znode};
use crate::znodes::{paths, quota};

/// One change, in its place among the others.
enum Change {
    /// Of a znode, and what it becomes.
    Node(String, Option<(Znode, Option<Bytes>)>),
    /// Of who may do what with it: right before it, if it is a new one. Who tells watchers goes by the place
    /// (`tidelock_model::znode_changes`).
    Rights(String, Side),
}

/// Everything to change, at one revision.
pub(super) struct Changes {
    /// In the order they were asked for: that is the order watchers are told in.
    nodes: Vec<Change>,
    sides: BTreeMap<String, Option<Side>>,
    reapable: BTreeMap<String, bool>,
    figures: BTreeMap<String, Option<Figures>>,
}

pub(super) struct Draft<'a> {
    state: &'a State,
    /// The one that changes will have.
    pub(super) revision: Revision,
    /// Whether one operation is all there is: then nobody asks what became of `nodes` and `children`, and they stay
    /// empty.
    is_for_one: bool,
    nodes: BTreeMap<String, Option<Znode>>,
    /// How many children more or fewer.
    children: BTreeMap<String, i64>,
    changes: Changes,
}

impl State {
    pub(super) fn znode(&self, path: &str) -> Option<Znode> {
        self.keyspace.get(&paths::node_key(path)?).map(|item| Znode::read(&item.record))
    }

    pub(super) fn znode_side(&self, path: &str, znode: &Znode) -> Side {
        let stored = self.keyspace.get(&paths::side_key(path));
        stored.map_or_else(|| Side::of_new(znode.created), |item| Side::read(item.record.value()))
    }

    /// Makes the changes of a draft; none of them, no revision.
    pub(super) fn carry_out_changes(&mut self, changes: Changes, events: &mut Vec<Event>) {
        let mut revising = Revising::new(self, events);
        self.make_changes(changes, &mut revising);
        revising.finish(self);
    }

    pub(super) fn make_changes(&mut self, changes: Changes, revising: &mut Revising<'_>) {
        let has_rights = changes.nodes.iter().any(|change| matches!(change, Change::Rights(..)));
        for change in changes.nodes {
            let (path, becomes) = match change {
                Change::Node(path, becomes) => (path, becomes),
                Change::Rights(path, side) => {
                    self.put_side(revising, &path, &side);
                    continue;
                }
            };
            let Some(key) = paths::node_key(&path) else { continue };
            match becomes {
                Some((znode, data)) => {
                    let value = PutValue::Set(znode.write(data.as_ref()));
                    let lease = PutLease::Set(znode.owner);
                    self.put_key(revising, PutOp { key, value, lease, want_previous: false });
                }
                None => drop(self.delete_key(revising, &key)),
            }
        }
        for (path, side) in changes.sides {
            match side {
                Some(side) if has_rights && self.has_just_got(&path, &side, revising.revision()) => {}
                Some(side) => self.put_side(revising, &path, &side),
                None => drop(self.delete_key(revising, &paths::side_key(&path))),
            }
        }
        for (path, is_reapable) in changes.reapable {
            let key = paths::reapable_key(&path);
            if is_reapable {
                let (value, lease) = (PutValue::Set(Bytes::new()), PutLease::Set(Default::default()));
                self.put_key(revising, PutOp { key, value, lease, want_previous: false });
            } else {
                self.delete_key(revising, &key);
            }
        }
        for (path, figures) in changes.figures {
            self.put_figures(revising, &path, figures);
        }
    }

    fn has_just_got(&self, path: &str, side: &Side, at: Revision) -> bool {
        let stored = self.keyspace.get(&paths::side_key(path)).map(|item| &item.record);
        stored.is_some_and(|record| record.meta().modified == at && *record.value() == side.write())
    }

    pub(super) fn put_side(&mut self, revising: &mut Revising<'_>, path: &str, side: &Side) {
        let (key, value) = (paths::side_key(path), PutValue::Set(side.write()));
        self.put_key(revising, PutOp { key, value, lease: PutLease::Set(Default::default()), want_previous: false });
    }
}

impl<'a> Draft<'a> {
    /// The tree as it is.
    pub(super) fn new(state: &'a State) -> Draft<'a> {
        let (sides, reapable, figures) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let changes = Changes { nodes: Vec::new(), sides, reapable, figures };
        let (nodes, children) = (BTreeMap::new(), BTreeMap::new());
        Draft { state, revision: state.revision.next(), is_for_one: false, nodes, children, changes }
    }

    /// The same, for a single operation.
    pub(super) fn for_one(state: &'a State) -> Draft<'a> {
        Draft { is_for_one: true, ..Draft::new(state) }
    }

    /// Log time in milliseconds.
    pub(super) fn now_ms(&self) -> u64 {
        self.state.clock.0
    }

    pub(super) fn node(&self, path: &str) -> Option<Znode> {
        self.nodes.get(path).copied().unwrap_or_else(|| self.state.znode(path))
    }

    pub(super) fn side(&self, path: &str, znode: &Znode) -> Side {
        match self.changes.sides.get(path) {
            Some(Some(side)) => side.clone(),
            Some(None) => Side::of_new(znode.created),
            None => self.state.znode_side(path, znode),
        }
    }

    pub(super) fn children(&self, path: &str) -> u64 {
        let now = self.state.keyspace.count(&paths::children(path), Revision(u64::MAX)) as u64;
        now.saturating_add_signed(self.added_children(path))
    }

    /// The same of a znode that was found, which is cheaper: most have never had any.
    pub(super) fn children_of(&self, path: &str, znode: &Znode, side: &Side) -> u64 {
        if side.tells_of_no_child(znode) { 0 } else { self.children(path) }
    }

    /// How many children more or fewer a znode has by this draft.
    pub(super) fn added_children(&self, path: &str) -> i64 {
        self.children.get(path).copied().unwrap_or(0)
    }

    pub(super) fn stat(&self, path: &str, znode: &Znode, side: &Side) -> ZnodeStat {
        let stat = znode.stat(side, self.children_of(path, znode, side));
        match self.shown_figures(path) {
            Some(text) => ZnodeStat { data_length: text.len() as u32, ..stat },
            None => stat,
        }
    }

    /// What a znode shows instead of its data, if it is one that shows figures.
    pub(super) fn shown_figures(&self, path: &str) -> Option<String> {
        quota::path_of_stats(path).and_then(|path| self.figures(path)).map(Figures::text)
    }

    /// The data as it was set.
    pub(super) fn data(&self, path: &str) -> Option<Bytes> {
        let last = self.changes.nodes.iter().rev().find_map(|change| match change {
            Change::Node(changed, becomes) if changed == path => Some(becomes),
            _ => None,
        });
        match last {
            Some(becomes) => becomes.as_ref().and_then(|(_, data)| data.clone()),
            None => {
                let stored = paths::node_key(path).and_then(|key| self.state.keyspace.get(&key));
                stored.and_then(|item| Znode::read_data(&item.record))
            }
        }
    }

    pub(super) fn state(&self) -> &State {
        self.state
    }

    /// The znodes below a path that this draft changed.
    pub(super) fn changed_below<'b>(&'b self, path: &'b str) -> impl Iterator<Item = (&'b str, Option<Znode>)> + 'b {
        let below = move |changed: &str| changed.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        self.nodes.iter().filter(move |(changed, _)| below(changed)).map(|(changed, znode)| (changed.as_str(), *znode))
    }

    pub(super) fn changed_figures(&self, path: &str) -> Option<Option<Figures>> {
        self.changes.figures.get(path).copied()
    }

    pub(super) fn put_figures(&mut self, path: &str, figures: Option<Figures>) {
        self.changes.figures.insert(path.to_owned(), figures);
    }

    /// Adds or changes a znode. Its parent is told of neither.
    pub(super) fn put(&mut self, path: &str, znode: Znode, data: Option<Bytes>) {
        self.note(path, Some(znode));
        self.changes.nodes.push(Change::Node(path.to_owned(), Some((znode, data))));
    }

    /// Says who may do what with a znode: before [`Draft::put`], if it is a new one.
    pub(super) fn put_rights(&mut self, path: &str, side: Side) {
        self.changes.nodes.push(Change::Rights(path.to_owned(), side.clone()));
        self.put_side(path, side);
    }

    pub(super) fn put_side(&mut self, path: &str, side: Side) {
        self.changes.sides.insert(path.to_owned(), Some(side));
    }

    /// Counts a new child; see [`Draft::put`].
    pub(super) fn count_child(&mut self, parent: &str) {
        self.add_children(parent, 1);
    }

    fn note(&mut self, path: &str, znode: Option<Znode>) {
        if !self.is_for_one {
            self.nodes.insert(path.to_owned(), znode);
        }
    }

    fn add_children(&mut self, parent: &str, added: i64) {
        if !self.is_for_one {
            *self.children.entry(parent.to_owned()).or_default() += added;
        }
    }

    pub(super) fn set_reapable(&mut self, path: &str) {
        self.changes.reapable.insert(path.to_owned(), true);
    }

    /// Deletes a znode that exists, with all that hangs on it, and tells its parent.
    pub(super) fn delete(&mut self, path: &str) {
        let parent = paths::parent_of(path);
        if let Some(znode) = self.node(path) {
            self.add_to_quotas(path, Figures::of_one(&znode).negative());
        }
        self.note(path, None);
        self.changes.nodes.push(Change::Node(path.to_owned(), None));
        self.changes.sides.insert(path.to_owned(), None);
        self.changes.reapable.insert(path.to_owned(), false);
        self.add_children(parent, -1);
        self.end_figures(path);
        if let Some(znode) = self.node(parent) {
            let side = Side { children_modified: self.revision, ..self.side(parent, &znode) };
            self.put_side(parent, side);
        }
    }

    pub(super) fn finish(self) -> Changes {
        self.changes
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Machine;
    use crate::znodes::testing::{create, create_for, create_numbered, delete, entry};
    use tidelock_model::ZnodeOpAnswer;

    /// A znode made anew under an old name has none of the old one's rights and numbers, even within the same
    /// multi that deleted it.
    #[test]
    fn a_znode_deleted_and_made_anew_in_one_multi_begins_from_nothing() {
        let mut machine = Machine::new();
        let client = machine.open_session();
        machine.created(&client, create_for("/p", vec![entry(31 - 2, "world", "anyone")]));
        machine.created(&client, create("/p/x"));
        machine.one(&client, delete("/p/x")).unwrap();
        let ops = vec![delete("/p"), create("/p"), create_numbered("/p/n-")];
        let answers = machine.multi(&client, ops).unwrap();
        assert!(matches!(&answers[2], ZnodeOpAnswer::Created { path, .. } if path == "/p/n-0000000000"));
        let stat = machine.glance("/p").unwrap();
        assert_eq!((stat.child_version, stat.acl_version, stat.children), (1, 0, 1));
        assert!(machine.one(&client, crate::znodes::testing::set("/p", "", -1)).is_ok());
    }
}
