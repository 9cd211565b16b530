//! Who watches which znode, and who is told of a change. Pure: no clock, no IO.
//!
//! Two tables, as ZooKeeper has them, because what a client sees depends on it: *data* watches (of getData, exists)
//! and *child* watches (of getChildren). A persistent watch is in both, a recursive one in the first alone, so it
//! never hears of "children changed". One change tells a connection once per path, whatever watches it has there.
//!
//! A watch that comes with a read is *pending* until the read is answered: changes meanwhile are kept, and those
//! the answer does not show yet are told right behind it. So no change is missed and none is told that the client
//! has seen already.
//!
//! Who may not read a znode is not told of its changes, and a watch that waited for one is spent all the same: as
//! in ZooKeeper.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, hash_map};
use std::ops::Bound;
use std::sync::Arc;

use tidelock_model::{Identity, Revision, Rights, rights};

use crate::outbox::Outbox;
use crate::paths::{ancestor, parent};
use crate::wire::EventKind;

/// What one connection's watches may take: four hundred thousand of them, with short paths. Who wants more is cut off.
const WATCH_BYTES_MAX: usize = 256 << 20;
/// About what a watch takes besides its path, as measured with a hundred thousand.
const WATCH_BYTES: usize = 640;

/// Bytes of watches that are taken out of the table in one go.
const DISCONNECT_BYTES: usize = 256 << 10;

/// Names a connection within this node's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// What is watched at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum WatchKind {
    /// Existence and data, once.
    Data,
    /// Children, once.
    Child,
    /// All of that, until removed.
    Persistent,
    /// Everything from here down, until removed.
    Recursive,
}

impl WatchKind {
    fn is_once(self) -> bool {
        matches!(self, WatchKind::Data | WatchKind::Child)
    }
}

/// A change of a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Created,
    Deleted,
    DataChanged,
}

/// One connection's watch of one kind at one path.
#[derive(Default)]
struct Watch {
    armed: bool,
    /// Changes since a read asked for the watch, if one is not answered yet; nothing for those not to be told.
    pending: Option<Vec<(Revision, Option<EventKind>)>>,
}

/// A connection and who it is.
struct Connected {
    outbox: Arc<Outbox>,
    identities: Vec<Identity>,
}

impl Connected {
    fn may_read(&self, rights: &Rights) -> bool {
        rights.as_ref().is_none_or(|list| rights::allows(list, rights::READ, &self.identities))
    }
}

/// What happened, and who may hear of it.
struct News<'a> {
    at: Revision,
    event: EventKind,
    path: &'a str,
    rights: &'a Rights,
}

type Watchers = BTreeMap<(ConnectionId, WatchKind), Watch>;

/// All watches at this node.
#[derive(Default)]
pub(crate) struct WatchTable {
    by_path: HashMap<Arc<str>, Watchers>,
    by_connection: HashMap<ConnectionId, BTreeSet<(Arc<str>, WatchKind)>>,
    connected: HashMap<ConnectionId, Connected>,
    /// How much memory the watches of each connection take.
    taken: HashMap<ConnectionId, usize>,
    /// How many recursive watches there are at paths of which length: only ancestors so long are looked at, because
    /// a path can have thousands.
    recursive: BTreeMap<usize, usize>,
}

impl WatchTable {
    pub(crate) fn connect(&mut self, connection: ConnectionId, outbox: Arc<Outbox>, identities: Vec<Identity>) {
        self.connected.insert(connection, Connected { outbox, identities });
    }

    /// The connection proved to be somebody else, too: from now on that counts.
    pub(crate) fn identify(&mut self, connection: ConnectionId, identities: &[Identity]) {
        if let Some(connected) = self.connected.get_mut(&connection) {
            connected.identities = identities.to_vec();
        }
    }

    /// The connection is gone, and some of its watches with it; `true`: call again for more. Everybody waits for this
    /// table, and a connection may have very many.
    pub(crate) fn disconnect_some(&mut self, connection: ConnectionId) -> bool {
        self.connected.remove(&connection);
        self.taken.remove(&connection);
        let Some(held) = self.by_connection.get_mut(&connection) else { return false };
        let (mut some, mut bytes) = (Vec::new(), 0);
        while bytes < DISCONNECT_BYTES
            && let Some((path, kind)) = held.pop_last()
        {
            bytes += path.len() + WATCH_BYTES;
            some.push((path, kind));
        }
        let is_done = held.is_empty();
        if is_done {
            self.by_connection.remove(&connection);
        }
        some.into_iter().for_each(|(path, kind)| self.forget(path, connection, kind));
        !is_done
    }

    /// Ends every connection: what they missed cannot be told any more, and who comes back repairs its watches.
    pub(crate) fn cut_all(&mut self) {
        self.connected.values().for_each(|connected| connected.outbox.cut());
    }

    /// Whether nobody watches anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_path.is_empty()
    }

    /// How many paths are watched, and how many watches there are.
    pub(crate) fn totals(&self) -> (usize, usize) {
        (self.by_path.len(), self.by_connection.values().map(BTreeSet::len).sum())
    }

    /// How many connections watch something.
    pub(crate) fn watching(&self) -> usize {
        self.by_connection.values().filter(|watched| !watched.is_empty()).count()
    }

    /// Those connections, in any order.
    pub(crate) fn watchers(&self) -> Vec<ConnectionId> {
        let watching = self.by_connection.iter().filter(|(_, watched)| !watched.is_empty());
        watching.map(|(connection, _)| *connection).collect()
    }

    /// What a connection watches, by path, after a place in that order: at most so many.
    pub(crate) fn watched(
        &self,
        connection: ConnectionId,
        after: Option<&(Arc<str>, WatchKind)>,
        most: usize,
    ) -> Vec<(Arc<str>, WatchKind)> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let watched = self.by_connection.get(&connection);
        watched.into_iter().flat_map(|watched| watched.range((after, Bound::Unbounded))).take(most).cloned().collect()
    }

    /// Sets a watch that a read asked for; [`WatchTable::arm`] or [`WatchTable::drop_pending`] follows.
    pub(crate) fn begin(&mut self, connection: ConnectionId, kind: WatchKind, path: &str) {
        self.entry(connection, kind, path).pending.get_or_insert_default();
    }

    /// The read was answered with the state at `at`: from there on the watch counts.
    pub(crate) fn arm(&mut self, connection: ConnectionId, kind: WatchKind, path: &str, at: Revision) {
        let watch = self.entry(connection, kind, path);
        let changes = watch.pending.take().unwrap_or_default();
        let missed = changes.into_iter().find(|(revision, _)| *revision > at);
        watch.armed = watch.armed || missed.is_none();
        if let Some((revision, event)) = missed {
            if !watch.armed {
                self.remove(connection, kind, path);
            }
            if let (Some(event), Some(connected)) = (event, self.connected.get(&connection)) {
                connected.outbox.event(revision, event, path);
            }
        }
    }

    /// The read was refused: it leaves no watch.
    pub(crate) fn drop_pending(&mut self, connection: ConnectionId, kind: WatchKind, path: &str) {
        let watch = self.entry(connection, kind, path);
        watch.pending = None;
        if !watch.armed {
            self.remove(connection, kind, path);
        }
    }

    /// Sets a watch that counts from now on.
    pub(crate) fn add(&mut self, connection: ConnectionId, kind: WatchKind, path: &str) {
        self.entry(connection, kind, path).armed = true;
    }

    /// Whether the connection has such a watch.
    pub(crate) fn has(&self, connection: ConnectionId, kind: WatchKind, path: &str) -> bool {
        self.by_path.get(path).is_some_and(|watchers| watchers.contains_key(&(connection, kind)))
    }

    /// Removes a watch; `false`: there was none.
    pub(crate) fn remove(&mut self, connection: ConnectionId, kind: WatchKind, path: &str) -> bool {
        let held = self.by_connection.get_mut(&connection);
        let Some((shared, _)) = held.and_then(|held| held.take(&(Arc::from(path), kind))) else { return false };
        let taken = self.taken.entry(connection).or_default();
        *taken = taken.saturating_sub(path.len() + WATCH_BYTES);
        self.forget(shared, connection, kind);
        true
    }

    /// Tells everybody who watches, and may read what changed, of a change.
    pub(crate) fn tell(&mut self, at: Revision, change: Change, path: &str, rights: &Rights, parent_rights: &Rights) {
        let event = match change {
            Change::Created => EventKind::NodeCreated,
            Change::Deleted => EventKind::NodeDeleted,
            Change::DataChanged => EventKind::NodeDataChanged,
        };
        let (news, mut told) = (News { at, event, path, rights }, BTreeSet::new());
        self.fire(&news, path, &[WatchKind::Data, WatchKind::Persistent, WatchKind::Recursive], &mut told);
        // The nearest first, as all ancestors would be.
        let lengths: Vec<usize> = self.recursive.range(..path.len()).rev().map(|(length, _)| *length).collect();
        for above in lengths.into_iter().filter_map(|length| ancestor(path, length)) {
            self.fire(&news, above, &[WatchKind::Recursive], &mut told);
        }
        if change == Change::Deleted {
            self.fire(&news, path, &[WatchKind::Child], &mut told);
        }
        if let (Change::Created | Change::Deleted, Some(parent)) = (change, parent(path)) {
            let news = News { at, event: EventKind::NodeChildrenChanged, path: parent, rights: parent_rights };
            self.fire(&news, parent, &[WatchKind::Child, WatchKind::Persistent], &mut BTreeSet::new());
        }
    }

    /// Fires the watches of these kinds at `watched`; nobody is told twice.
    fn fire(&mut self, news: &News<'_>, watched: &str, kinds: &[WatchKind], told: &mut BTreeSet<ConnectionId>) {
        let Some(watchers) = self.by_path.get_mut(watched) else { return };
        let mut spent = Vec::new();
        for ((connection, kind), watch) in watchers.iter_mut().filter(|((_, kind), _)| kinds.contains(kind)) {
            let hears = self.connected.get(connection).filter(|connected| connected.may_read(news.rights));
            if let Some(pending) = &mut watch.pending {
                pending.push((news.at, hears.map(|_| news.event)));
            }
            if !watch.armed {
                continue;
            }
            if told.insert(*connection)
                && let Some(connected) = hears
            {
                connected.outbox.event(news.at, news.event, news.path);
            }
            if kind.is_once() && !tidelock_model::planted!(OneShotWatchStays) {
                watch.armed = false;
                if watch.pending.is_none() {
                    spent.push((*connection, *kind));
                }
            }
        }
        for (connection, kind) in spent {
            self.remove(connection, kind, watched);
        }
    }

    /// The watch, made if it is not there. Paths may be long, so each is looked up no more often than it must be.
    fn entry(&mut self, connection: ConnectionId, kind: WatchKind, path: &str) -> &mut Watch {
        // Both tables share one copy of the path.
        let known = self.by_path.get_key_value(path).map(|(path, _)| Arc::clone(path));
        let shared = known.unwrap_or_else(|| Arc::from(path));
        match self.by_path.entry(Arc::clone(&shared)).or_default().entry((connection, kind)) {
            Entry::Occupied(watch) => watch.into_mut(),
            Entry::Vacant(place) => {
                self.by_connection.entry(connection).or_default().insert((shared, kind));
                if kind == WatchKind::Recursive {
                    *self.recursive.entry(path.len()).or_default() += 1;
                }
                let taken = self.taken.entry(connection).or_default();
                *taken += path.len() + WATCH_BYTES;
                if *taken > WATCH_BYTES_MAX
                    && let Some(connected) = self.connected.get(&connection)
                {
                    connected.outbox.cut();
                }
                place.insert(Watch::default())
            }
        }
    }

    /// Takes it out of the table by path.
    fn forget(&mut self, path: Arc<str>, connection: ConnectionId, kind: WatchKind) {
        let length = path.len();
        let hash_map::Entry::Occupied(mut watchers) = self.by_path.entry(path) else { return };
        watchers.get_mut().remove(&(connection, kind));
        if watchers.get().is_empty() {
            watchers.remove();
        }
        if kind == WatchKind::Recursive
            && let Some(count) = self.recursive.get_mut(&length)
        {
            *count -= 1;
            if *count == 0 {
                self.recursive.remove(&length);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_model::AclEntry;

    const ME: ConnectionId = ConnectionId(1);

    fn table() -> (WatchTable, Arc<Outbox>) {
        let (mut table, outbox) = (WatchTable::default(), Arc::new(Outbox::default()));
        table.connect(ME, Arc::clone(&outbox), Vec::new());
        (table, outbox)
    }

    /// The events queued so far: kind and path.
    async fn told(outbox: &Outbox) -> Vec<(i32, String)> {
        outbox.raw(|out| out.extend_from_slice(&0i32.to_be_bytes()));
        let bytes = outbox.next(Vec::new()).await.unwrap();
        let mut rest = &bytes[..];
        let mut events = Vec::new();
        loop {
            let length = i32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
            if length == 0 {
                return events;
            }
            let packet = &rest[4..4 + length];
            let kind = i32::from_be_bytes(packet[16..20].try_into().unwrap());
            events.push((kind, String::from_utf8(packet[28..].to_vec()).unwrap()));
            rest = &rest[4 + length..];
        }
    }

    /// What a client sees of one change, with every kind of watch in place: each path once, deletion before the
    /// parent's change of children.
    #[tokio::test]
    async fn one_change_tells_a_connection_once_per_path() {
        let (mut table, outbox) = table();
        for kind in [WatchKind::Data, WatchKind::Child, WatchKind::Persistent, WatchKind::Recursive] {
            table.add(ME, kind, "/a/b");
            table.add(ME, kind, "/a");
        }
        table.tell(Revision(5), Change::Deleted, "/a/b", &None, &None);
        assert_eq!(told(&outbox).await, [(2, "/a/b".to_owned()), (4, "/a".to_owned())]);
        table.tell(Revision(6), Change::Created, "/a/b", &None, &None);
        assert_eq!(told(&outbox).await, [(1, "/a/b".to_owned()), (4, "/a".to_owned())], "those that stay");
        table.remove(ME, WatchKind::Persistent, "/a");
        table.remove(ME, WatchKind::Persistent, "/a/b");
        table.tell(Revision(7), Change::DataChanged, "/a/b", &None, &None);
        assert_eq!(told(&outbox).await, [(3, "/a/b".to_owned())], "recursive ones");
        table.tell(Revision(8), Change::DataChanged, "/a", &None, &None);
        assert_eq!(told(&outbox).await, [(3, "/a".to_owned())], "a data watch that never fired, and a recursive one");
    }

    /// Between asking and being answered a znode may change: told if the answer does not show it, and only then.
    #[tokio::test]
    async fn a_change_before_the_answer_is_told_only_if_the_answer_lacks_it() {
        let (mut table, outbox) = table();
        for (seen, expected) in [(Revision(5), 0), (Revision(4), 1)] {
            table.begin(ME, WatchKind::Data, "/a");
            table.tell(Revision(5), Change::DataChanged, "/a", &None, &None);
            assert!(told(&outbox).await.is_empty());
            table.arm(ME, WatchKind::Data, "/a", seen);
            assert_eq!(told(&outbox).await.len(), expected);
            assert_eq!(table.has(ME, WatchKind::Data, "/a"), expected == 0);
            table.remove(ME, WatchKind::Data, "/a");
        }
    }

    /// A change of a znode that somebody may not read is none of their business; that they read it once, or know more
    /// by now, makes no difference. The watch is spent, as in ZooKeeper.
    #[tokio::test]
    async fn who_may_not_read_a_znode_is_not_told_of_its_changes() {
        let (mut table, outbox) = table();
        let who = Identity { scheme: "digest".into(), id: "a:b".into() };
        let list: Rights = Some(Arc::from([AclEntry { permissions: 1, who: who.clone() }]));
        for kind in [WatchKind::Data, WatchKind::Child, WatchKind::Persistent, WatchKind::Recursive] {
            table.add(ME, kind, "/a/b");
            table.add(ME, kind, "/a");
        }
        table.begin(ME, WatchKind::Data, "/a/b");
        table.tell(Revision(5), Change::Deleted, "/a/b", &list, &None);
        assert_eq!(told(&outbox).await, [(4, "/a".to_owned())], "the parent is open");
        table.arm(ME, WatchKind::Data, "/a/b", Revision(4));
        assert!(told(&outbox).await.is_empty() && !table.has(ME, WatchKind::Data, "/a/b"), "also if it was to come");
        table.tell(Revision(6), Change::Created, "/a/b", &None, &list);
        assert_eq!(told(&outbox).await, [(1, "/a/b".to_owned())], "the parent is not");
        assert!(!table.has(ME, WatchKind::Child, "/a"));
        table.identify(ME, &[who]);
        table.tell(Revision(7), Change::DataChanged, "/a/b", &list, &list);
        assert_eq!(told(&outbox).await, [(3, "/a/b".to_owned())]);
    }

    /// A refused read, a fired watch and a lost connection must leave nothing behind.
    #[tokio::test]
    async fn nothing_is_kept_for_who_is_gone() {
        let (mut table, _outbox) = table();
        table.begin(ME, WatchKind::Data, "/refused");
        table.drop_pending(ME, WatchKind::Data, "/refused");
        table.add(ME, WatchKind::Child, "/fired");
        table.tell(Revision(2), Change::Created, "/fired/child", &None, &None);
        assert_eq!((table.by_path.len(), table.by_connection[&ME].len()), (0, 0));
        table.add(ME, WatchKind::Recursive, "/");
        let many = DISCONNECT_BYTES / WATCH_BYTES + 1;
        (0..many).for_each(|number| table.add(ME, WatchKind::Data, &format!("/{number}")));
        assert!(table.disconnect_some(ME), "not all at once");
        assert!(!table.disconnect_some(ME));
        assert_eq!((table.by_path.len(), table.by_connection.len(), table.recursive.len()), (0, 0, 0));
        assert!(table.taken.is_empty());
    }
}
