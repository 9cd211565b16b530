//! The tree of znodes at any revision, replayed from the ledger, and what is known of sessions and of who wrote what.
//! Shares nothing with `crates/state`.

use std::collections::{BTreeMap, BTreeSet};

use tidelock_face_zookeeper::wire::client::Found;
use tidelock_face_zookeeper::wire::{MultiOp, Request};

use crate::history::{Greeted, History, Micros, Observation, Stamp, Step, TreeChange, Znode, ZnodeLog};

/// Kinds of events, by ZooKeeper's numbers.
pub(crate) const CREATED: i32 = 1;
pub(crate) const DELETED: i32 = 2;
pub(crate) const DATA_CHANGED: i32 = 3;
pub(crate) const CHILDREN_CHANGED: i32 = 4;

/// "No such znode", by ZooKeeper's number.
pub(crate) const NO_NODE: i32 = -101;

/// A request with its answer.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) log: &'a ZnodeLog,
    pub(crate) called: Stamp,
    pub(crate) request: &'a Request,
    pub(crate) answer: Option<Replied<'a>>,
}

/// An answer.
#[derive(Clone, Copy)]
pub(crate) struct Replied<'a> {
    pub(crate) at: Stamp,
    pub(crate) zxid: i64,
    pub(crate) error: i32,
    pub(crate) found: &'a Found,
}

impl Replied<'_> {
    /// Whether what was asked for was done.
    pub(crate) fn is_ok(&self) -> bool {
        self.error == 0 && !matches!(self.found, Found::MultiFailed(_))
    }
}

/// What is known of a session.
#[derive(Default)]
pub(crate) struct Session<'a> {
    /// Connections it went on at, in the order of asking.
    pub(crate) logs: Vec<&'a ZnodeLog>,
    pub(crate) timeout: Micros,
    /// When it was first over in the state of a node.
    pub(crate) ended: Option<Stamp>,
    /// The revision at which it ended.
    pub(crate) end_revision: Option<i64>,
    /// Requests to close it.
    pub(crate) closes: Vec<Asked<'a>>,
    /// When its lease was granted, and for how long.
    pub(crate) granted: Option<(Stamp, i64)>,
}

/// The tree at any revision.
#[derive(Default)]
pub(crate) struct Tree<'a> {
    znodes: BTreeMap<&'a str, Vec<(i64, Option<&'a Znode>)>>,
    changes: BTreeMap<i64, &'a [TreeChange]>,
    pub(crate) sessions: BTreeMap<i64, Session<'a>>,
    pub(crate) asked: Vec<Asked<'a>>,
    /// Where and when each text was written.
    pub(crate) written: BTreeMap<&'a str, (i64, &'a str)>,
}

impl<'a> Tree<'a> {
    pub(crate) fn new(history: &'a History) -> Tree<'a> {
        let mut tree = Tree::default();
        for (revision, changes) in &history.ledger.tree {
            tree.changes.insert(*revision, changes);
            for change in changes {
                match change {
                    TreeChange::Znode { path, became } => {
                        tree.znodes.entry(path).or_default().push((*revision, became.as_ref()));
                        if let Some(znode) = became {
                            tree.written.entry(&znode.data).or_insert((*revision, path));
                        }
                    }
                    TreeChange::Session { id, generation: None } => {
                        tree.sessions.entry(*id).or_default().end_revision.get_or_insert(*revision);
                    }
                    TreeChange::Session { id, .. } => drop(tree.sessions.entry(*id).or_default()),
                    TreeChange::Aside { .. } => {}
                }
            }
        }
        tree.take_logs(history);
        for (stamp, observation) in &history.observations {
            match observation {
                Observation::LeaseEnded { lease, .. } => {
                    if let Some(session) = tree.sessions.get_mut(lease) {
                        session.ended.get_or_insert(*stamp);
                    }
                }
                Observation::LeaseGranted { lease, ttl_s } => {
                    if let Some(session) = tree.sessions.get_mut(lease) {
                        session.granted.get_or_insert((*stamp, *ttl_s));
                    }
                }
                _ => {}
            }
        }
        tree
    }

    fn take_logs(&mut self, history: &'a History) {
        for log in &history.znodes {
            let mut waiting = Vec::new();
            for (stamp, step) in &log.steps {
                match step {
                    Step::Asked { request, .. } => {
                        waiting.push(self.asked.len());
                        self.asked.push(Asked { log, called: *stamp, request, answer: None });
                    }
                    // In order; that they are is judged elsewhere.
                    Step::Replied { zxid, error, found, .. } if !waiting.is_empty() => {
                        let replied = Replied { at: *stamp, zxid: *zxid, error: *error, found };
                        self.asked[waiting.remove(0)].answer = Some(replied);
                    }
                    Step::Replied { .. } | Step::Fired { .. } => {}
                }
            }
            if let Some((_, Greeted::Session { id, timeout_ms })) = log.greeted {
                let session = self.sessions.entry(id).or_default();
                session.logs.push(log);
                session.timeout = Micros::from(timeout_ms) * 1_000;
            }
        }
        for asked in &self.asked {
            if let (Request::CloseSession, Some((id, _))) = (asked.request, asked.log.session()) {
                self.sessions.entry(id).or_default().closes.push(*asked);
            }
        }
    }

    /// The changes of a revision.
    pub(crate) fn changes_at(&self, revision: i64) -> &'a [TreeChange] {
        self.changes.get(&revision).copied().unwrap_or_default()
    }

    /// The changes after one revision and up to another.
    pub(crate) fn changes_in(&self, after: i64, to: i64) -> impl Iterator<Item = (i64, &'a TreeChange)> + '_ {
        let range = if after < to { after + 1..to + 1 } else { 0..0 };
        self.changes.range(range).flat_map(|(revision, changes)| changes.iter().map(|change| (*revision, change)))
    }

    /// A znode as of a revision.
    pub(crate) fn get(&self, path: &str, at: i64) -> Option<&'a Znode> {
        let versions = self.znodes.get(path)?;
        let count = versions.partition_point(|(revision, _)| *revision <= at);
        versions[..count].last().and_then(|(_, became)| *became)
    }

    /// The names of a znode's children as of a revision, sorted.
    pub(crate) fn children(&self, path: &str, at: i64) -> Vec<&'a str> {
        let all = self.below(path).filter(|(path, _)| self.get(path, at).is_some());
        all.map(|(_, name)| name).collect()
    }

    /// Every child that a path ever had: path and name.
    fn below(&self, path: &str) -> impl Iterator<Item = (&'a str, &'a str)> + '_ {
        let prefix = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        let from =
            self.znodes.range::<str, _>((std::ops::Bound::Excluded(prefix.as_str()), std::ops::Bound::Unbounded));
        let keys: Vec<&'a str> = from.map(|(path, _)| *path).take_while(|path| path.starts_with(&prefix)).collect();
        let length = prefix.len();
        keys.into_iter().map(move |path| (path, &path[length..])).filter(|(_, name)| !name.contains('/'))
    }

    /// When the children of a znode last changed, up to a revision, or it was created.
    pub(crate) fn children_changed(&self, path: &str, at: i64) -> i64 {
        let created = self.get(path, at).map_or(0, |znode| znode.created);
        let mut last = created;
        for (child, _) in self.below(path) {
            let versions = &self.znodes[child];
            let mut before = false;
            for (revision, became) in versions.iter().take_while(|(revision, _)| *revision <= at) {
                if became.is_some() != before {
                    last = last.max(*revision);
                }
                before = became.is_some();
            }
        }
        last
    }

    /// The znodes that a session owns as of a revision, sorted.
    pub(crate) fn owned(&self, session: i64, at: i64) -> Vec<&'a str> {
        let owned = |path: &&str| self.get(path, at).is_some_and(|znode| znode.owner == session);
        self.znodes.keys().copied().filter(owned).collect()
    }

    /// Every path there ever was, with what it became when.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (&'a str, &[(i64, Option<&'a Znode>)])> {
        self.znodes.iter().map(|(path, versions)| (*path, versions.as_slice()))
    }
}

/// The texts that a request writes, each with the path asked for.
pub(crate) fn writes(request: &Request) -> Vec<(&str, &str)> {
    fn text<'a>(path: &'a str, data: &'a Option<bytes::Bytes>) -> Option<(&'a str, &'a str)> {
        Some((path, std::str::from_utf8(data.as_ref()?).ok()?))
    }
    let all: Vec<Option<(&str, &str)>> = match request {
        Request::Create(create) => vec![text(&create.path, &create.data)],
        Request::SetData { path, data, .. } => vec![text(path, data)],
        Request::Multi(ops) => ops
            .iter()
            .map(|op| match op {
                MultiOp::Create(create) => text(&create.path, &create.data),
                MultiOp::SetData { path, data, .. } => text(path, data),
                MultiOp::Delete { .. } | MultiOp::Check { .. } => None,
            })
            .collect(),
        _ => Vec::new(),
    };
    all.into_iter().flatten().collect()
}

/// The paths that a request deletes.
pub(crate) fn deletes(request: &Request) -> BTreeSet<&str> {
    match request {
        Request::Delete { path, .. } => BTreeSet::from([path.as_str()]),
        Request::Multi(ops) => ops
            .iter()
            .filter_map(|op| match op {
                MultiOp::Delete { path, .. } => Some(path.as_str()),
                _ => None,
            })
            .collect(),
        _ => BTreeSet::new(),
    }
}

/// The parent of a path; the root has none.
pub(crate) fn parent(path: &str) -> Option<&str> {
    match path.rsplit_once('/')? {
        ("", "") => None,
        ("", _) => Some("/"),
        (parent, _) => Some(parent),
    }
}
