//! S5: watches on znodes. On every connection, the events are exactly those that its watches call for:
//!
//! - none is missing, and each comes before any answer whose zxid shows its change;
//! - a one-shot watch fires at most once, and for the first change after the answer it came with;
//! - of a client that was away, a watch fires at once if its znode changed since the zxid the client had seen.
//!
//! Persistent watches that are set again by a client that is back count from some moment before the answer to that;
//! until then their events are allowed and not expected.

use std::collections::BTreeSet;

use tidelock_face_zookeeper::wire::client::Found;
use tidelock_face_zookeeper::wire::{AddWatchMode, RemovedWatch, Request, WatchedPaths};

use super::prepared::At;
use super::tree::{CHILDREN_CHANGED, CREATED, DATA_CHANGED, DELETED, NO_NODE, Tree, parent};
use super::{Findings, Prepared};
use crate::history::{Stamp, Step, TreeChange, ZnodeLog};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    for log in &prepared.history.znodes {
        let mut watching = Watching::new(&prepared.tree, log, findings);
        log.steps.iter().for_each(|(stamp, step)| watching.take(*stamp, step));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Data,
    Child,
    Persistent,
    Recursive,
}

type Event = (i32, String);

/// Whether a one-shot watch of this kind is told of such an event.
fn is_told_to(kind: Kind, event: i32) -> bool {
    event == DELETED || (event == CHILDREN_CHANGED) == (kind == Kind::Child)
}

/// What a connection is owed.
struct Watching<'a, 'b> {
    tree: &'a Tree<'a>,
    log: &'a ZnodeLog,
    findings: &'b mut Findings,
    asked: Vec<(i32, &'a Request)>,
    armed: BTreeSet<(Kind, &'a str)>,
    /// Everything up to this revision was accounted for.
    settled: i64,
    /// What the revision after that still owes, once its first event came.
    owed: Option<(i64, Vec<Event>)>,
    /// Events that came while watches were being set again.
    early: Vec<(i64, Event)>,
    /// Whether the answer to that is still to come.
    restoring: bool,
}

impl<'a, 'b> Watching<'a, 'b> {
    fn new(tree: &'a Tree<'a>, log: &'a ZnodeLog, findings: &'b mut Findings) -> Watching<'a, 'b> {
        let (asked, armed, early) = (Vec::new(), BTreeSet::new(), Vec::new());
        Watching { tree, log, findings, asked, armed, settled: log.seen, owed: None, early, restoring: false }
    }

    fn take(&mut self, stamp: Stamp, step: &'a Step) {
        match step {
            Step::Asked { xid, request } => {
                self.restoring |= matches!(request, Request::SetWatches { .. });
                self.asked.push((*xid, request));
            }
            Step::Fired { zxid, kind, path } => self.fired(stamp, *zxid, (*kind, path.clone())),
            Step::Replied { zxid, error, found, .. } => {
                if self.asked.is_empty() {
                    return;
                }
                let (_, request) = self.asked.remove(0);
                if let Request::SetWatches { relative_zxid, paths } = request {
                    return self.restored(stamp, *zxid, *relative_zxid, paths);
                }
                if *zxid > 0 {
                    self.settle(stamp, *zxid);
                }
                let done = *error == 0 && !matches!(found, Found::MultiFailed(_));
                self.answered(request, done, *error);
            }
        }
    }

    fn answered(&mut self, request: &'a Request, done: bool, error: i32) {
        match request {
            Request::GetData { path, watch: true } if done => drop(self.armed.insert((Kind::Data, path))),
            Request::Exists { path, watch: true } if done || error == NO_NODE => {
                self.armed.insert((Kind::Data, path));
            }
            Request::GetChildren { path, watch: true } | Request::GetChildren2 { path, watch: true } if done => {
                self.armed.insert((Kind::Child, path));
            }
            Request::AddWatch { path, mode } if done => {
                let recursive = *mode == AddWatchMode::PersistentRecursive;
                self.armed.insert((if recursive { Kind::Recursive } else { Kind::Persistent }, path));
            }
            Request::RemoveWatches { path, kind: RemovedWatch::Any } if done => {
                self.armed.retain(|(_, armed)| armed != path);
            }
            _ => {}
        }
    }

    /// The events that a revision calls for; one-shot watches are spent.
    fn owes(&mut self, revision: i64) -> Vec<Event> {
        let mut events = Vec::new();
        for change in self.tree.changes_at(revision) {
            let TreeChange::Znode { path, became } = change else { continue };
            let kind = match became {
                None => DELETED,
                Some(znode) if znode.version == 1 => CREATED,
                Some(_) => DATA_CHANGED,
            };
            let mut kinds = vec![Kind::Data, Kind::Persistent, Kind::Recursive];
            kinds.extend((kind == DELETED).then_some(Kind::Child));
            if self.fire(path, &kinds) | self.has_recursive_above(path) {
                events.push((kind, path.clone()));
            }
            if let (CREATED | DELETED, Some(parent)) = (kind, parent(path))
                && self.fire(parent, &[Kind::Child, Kind::Persistent])
            {
                events.push((CHILDREN_CHANGED, parent.to_owned()));
            }
        }
        events
    }

    fn fire(&mut self, path: &'a str, kinds: &[Kind]) -> bool {
        let mut any = false;
        for kind in kinds {
            let Some(found) = self.armed.get(&(*kind, path)).copied() else { continue };
            any = true;
            if matches!(kind, Kind::Data | Kind::Child) {
                self.armed.remove(&found);
            }
        }
        any
    }

    fn has_recursive_above(&self, path: &str) -> bool {
        let mut above = parent(path);
        while let Some(path) = above {
            if self.armed.contains(&(Kind::Recursive, path)) {
                return true;
            }
            above = parent(path);
        }
        false
    }

    fn fired(&mut self, stamp: Stamp, zxid: i64, event: Event) {
        if self.restoring {
            return self.early.push((zxid, event));
        }
        if zxid <= self.settled && self.owed.as_ref().is_none_or(|(revision, _)| *revision != zxid) {
            let settled = self.settled;
            return self.complain(stamp, format_args!("event {event:?} of {zxid} came after an answer at {settled}"));
        }
        self.settle(stamp, zxid - 1);
        if self.owed.is_none() {
            let owed = self.owes(zxid);
            self.owed = Some((zxid, owed));
        }
        let Some((_, owed)) = &mut self.owed else { return };
        match owed.iter().position(|expected| *expected == event) {
            Some(place) => drop(owed.remove(place)),
            None => {
                let owed = owed.clone();
                self.complain(stamp, format_args!("event {event:?} of {zxid} was not asked for; owed: {owed:?}"));
            }
        }
    }

    /// Everything up to a revision must have been told.
    fn settle(&mut self, stamp: Stamp, up_to: i64) {
        if let Some((revision, owed)) = self.owed.take_if(|(revision, _)| *revision <= up_to) {
            self.settled = self.settled.max(revision);
            self.missing(stamp, revision, &owed);
        }
        if self.settled >= up_to {
            return;
        }
        let (after, mut last) = (self.settled, 0);
        let changed: Vec<i64> = self.tree.changes_in(after, up_to).map(|(revision, _)| revision).collect();
        for revision in changed {
            if revision != last {
                let owed = self.owes(revision);
                self.missing(stamp, revision, &owed);
            }
            last = revision;
        }
        self.settled = up_to;
    }

    fn missing(&mut self, stamp: Stamp, revision: i64, owed: &[Event]) {
        if !owed.is_empty() {
            self.complain(stamp, format_args!("events {owed:?} of {revision} were not told before what shows them"));
        }
    }

    /// Watches were set again, and by the answer at `at` everything up to there was told. The node looked at the tree
    /// at some moment before, so a change since then may have been told as itself.
    fn restored(&mut self, stamp: Stamp, at: i64, seen: i64, paths: &'a WatchedPaths) {
        let tree = self.tree;
        let set = |path: &str| tree.get(path, at).is_none_or(|znode| znode.modified > seen);
        let children = |path: &str| tree.get(path, at).is_none() || tree.children_changed(path, at) > seen;
        let data = paths.data.iter().map(|path| (Kind::Data, path.as_str(), set(path)));
        let exist = paths.exist.iter().map(|path| (Kind::Data, path.as_str(), tree.get(path, at).is_some()));
        let child = paths.child.iter().map(|path| (Kind::Child, path.as_str(), children(path)));
        let mut early = std::mem::take(&mut self.early);
        for (kind, path, changed) in data.chain(exist).chain(child) {
            let fits = |(zxid, event): &(i64, Event)| event.1 == path && is_told_to(kind, event.0) && *zxid <= at;
            match early.iter().position(fits) {
                Some(place) => {
                    let (_, event) = early.remove(place);
                    if !changed && !self.happened(&event, seen, at) {
                        self.complain(stamp, format_args!("event {event:?} though nothing changed since {seen}"));
                    }
                }
                None if changed => {
                    self.complain(stamp, format_args!("{path} changed since {seen} and {kind:?} was not told by {at}"));
                }
                None => drop(self.armed.insert((kind, path))),
            }
        }
        self.armed.extend(paths.persistent.iter().map(|path| (Kind::Persistent, path.as_str())));
        self.armed.extend(paths.persistent_recursive.iter().map(|path| (Kind::Recursive, path.as_str())));
        for (zxid, event) in early {
            if !self.is_of_a_staying_watch(&event) || zxid > at {
                self.complain(stamp, format_args!("event {event:?} of {zxid} is of no watch that was set again"));
            }
        }
        (self.restoring, self.settled, self.owed) = (false, self.settled.max(at), None);
    }

    /// Whether there was such a change between two moments.
    fn happened(&self, (kind, path): &Event, after: i64, to: i64) -> bool {
        self.tree.changes_in(after, to).any(|(_, change)| match change {
            TreeChange::Znode { path: changed, .. } if *kind == CHILDREN_CHANGED => parent(changed) == Some(path),
            TreeChange::Znode { path: changed, .. } => changed == path,
            _ => false,
        })
    }

    fn is_of_a_staying_watch(&self, (kind, path): &Event) -> bool {
        let recursive = self.armed.contains(&(Kind::Recursive, path.as_str())) || self.has_recursive_above(path);
        self.armed.contains(&(Kind::Persistent, path.as_str())) || (recursive && *kind != CHILDREN_CHANGED)
    }

    fn complain(&mut self, stamp: Stamp, what: std::fmt::Arguments<'_>) {
        let (client, node, at) = (self.log.client, self.log.node, At(stamp));
        self.findings.add("S5", format_args!("client {client} at node {node}, {at}: {what}"));
    }
}

#[cfg(test)]
mod tests {
    use crate::check::testing::run;
    use crate::check::znode_maker::ZnodeMaker;
    use crate::history::{History, Step};

    fn violations(history: &History) -> Vec<&'static str> {
        run(history, "watch_once")
    }

    /// Client 1 watches `/a` and the children of the root; client 2 changes both; client 1 looks.
    fn watched() -> (ZnodeMaker, usize) {
        let mut maker = ZnodeMaker::new();
        let (one, two) = (maker.open(1), maker.open(2));
        maker.create(two, "/a", "1", false);
        maker.get(one, "/a", true);
        maker.children(one, "/", true);
        maker.set(two, "/a", "2");
        maker.event(one, 3, "/a");
        maker.create(two, "/b", "3", false);
        maker.event(one, 4, "/");
        maker.get(one, "/a", false);
        maker.set(two, "/a", "4");
        maker.get(one, "/a", false);
        (maker, one)
    }

    fn events(history: &mut History, one: usize) -> Vec<usize> {
        let steps = &history.znodes[one].steps;
        (0..steps.len()).filter(|at| matches!(steps[*at].1, Step::Fired { .. })).collect()
    }

    #[test]
    fn watches_that_fire_once_and_in_time_pass() {
        assert_eq!(violations(&watched().0.done()), [] as [&str; 0]);
    }

    #[test]
    fn an_event_that_is_missing_is_caught() {
        for which in 0..2 {
            let (maker, one) = watched();
            let mut history = maker.done();
            let place = events(&mut history, one)[which];
            history.znodes[one].steps.remove(place);
            assert_eq!(violations(&history), ["S5"], "{which}");
        }
    }

    /// The client read the new value and believes that its watch still guards it.
    #[test]
    fn an_event_after_the_answer_that_shows_its_change_is_caught() {
        let (maker, one) = watched();
        let mut history = maker.done();
        let place = events(&mut history, one)[1];
        let late = history.znodes[one].steps.remove(place);
        history.znodes[one].steps.push(late);
        assert!(!violations(&history).is_empty());
    }

    #[test]
    fn an_event_that_comes_twice_or_that_nobody_watches_is_caught() {
        let (maker, one) = watched();
        let mut history = maker.done();
        let place = events(&mut history, one)[0];
        let twice = history.znodes[one].steps[place].clone();
        history.znodes[one].steps.insert(place, twice);
        assert_eq!(violations(&history), ["S5"]);
        let (mut maker, one) = watched();
        maker.event(one, 3, "/a");
        assert_eq!(violations(&maker.done()), ["S5"]);
    }

    /// Client 1 watches, is away while `/a` changes, and comes back.
    fn restored(told: bool) -> History {
        let mut maker = ZnodeMaker::new();
        let (one, two) = (maker.open(1), maker.open(2));
        maker.create(two, "/a", "1", false);
        maker.get(one, "/a", true);
        maker.get(one, "/b", true);
        maker.leave(one);
        maker.set(two, "/a", "2");
        let again = maker.attach(1, one);
        maker.set_watches(again, &["/a"], &["/b"], told);
        maker.create(two, "/b", "3", false);
        maker.event(again, 1, "/b");
        maker.get(again, "/b", false);
        maker.done()
    }

    #[test]
    fn a_change_missed_while_away_must_be_told() {
        assert_eq!(violations(&restored(true)), [] as [&str; 0]);
        assert_eq!(violations(&restored(false)), ["S5"]);
    }
}
