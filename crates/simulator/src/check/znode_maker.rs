//! Makes histories of ZooKeeper's clients by hand: a tree of a few lines carries out what a test asks, one request
//! after the other, at once. Tests then break what was recorded.

use std::collections::BTreeMap;

use bytes::Bytes;
use tidelock_face_zookeeper::wire::client::Found;
use tidelock_face_zookeeper::wire::{CreateCall, CreateRequest, Request, Stat, WatchedPaths};
use tidelock_model::{LogIndex, NodeId, Revision};

use super::tree::{DATA_CHANGED, NO_NODE};
use crate::history::{Greeted, History, Micros, Observation, Stamp, Step, TreeChange, Znode, ZnodeLog};

const NODE: NodeId = NodeId(1);
const TIMEOUT_MS: u32 = 4_000;
/// Time between two moments.
const STEP: Micros = 1_000;

/// A history in the making.
pub(crate) struct ZnodeMaker {
    history: History,
    now: Stamp,
    revision: i64,
    tree: BTreeMap<String, Znode>,
    /// Who has which session.
    ids: BTreeMap<u32, i64>,
    xid: i32,
}

impl ZnodeMaker {
    pub(crate) fn new() -> ZnodeMaker {
        let mut history = History::default();
        history.bounds.election = 1_000_000;
        let now = Stamp { order: 0, at: 0 };
        let mut maker = ZnodeMaker { history, now, revision: 1, tree: BTreeMap::new(), ids: BTreeMap::new(), xid: 0 };
        maker.observe(Observation::Started { node: NODE, boot: 1 });
        maker
    }

    pub(crate) fn done(mut self) -> History {
        self.history.bounds.ended = Some(self.moment());
        self.history
    }

    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    fn moment(&mut self) -> Stamp {
        self.now.order += 10;
        self.now
    }

    pub(crate) fn wait(&mut self, micros: Micros) {
        self.now.at += micros;
    }

    pub(crate) fn wait_until(&mut self, at: Micros) {
        self.now.at = at;
    }

    pub(crate) fn heal(&mut self) {
        self.history.bounds.healed = Some(self.moment());
    }

    pub(crate) fn observe(&mut self, observation: Observation) {
        let stamp = self.moment();
        self.history.observations.push((stamp, observation));
    }

    /// The session of a client.
    pub(crate) fn id(&self, client: u32) -> i64 {
        self.ids[&client]
    }

    /// The last connection.
    pub(crate) fn last(&self) -> usize {
        self.history.znodes.iter().rposition(|log| log.session().is_some()).unwrap()
    }

    /// A znode made at the next revision.
    pub(crate) fn znode(&self, text: &str, owner: i64) -> Znode {
        let next = self.revision + 1;
        Znode { data: text.into(), owner, goes_by_itself: false, created: next, modified: next, version: 1 }
    }

    /// Takes the next revision.
    pub(crate) fn change(&mut self, changes: Vec<TreeChange>) {
        self.revision += 1;
        for change in &changes {
            if let TreeChange::Znode { path, became } = change {
                match became {
                    Some(znode) => drop(self.tree.insert(path.clone(), znode.clone())),
                    None => drop(self.tree.remove(path)),
                }
            }
        }
        self.history.ledger.changes.insert(self.revision, Vec::new());
        self.history.ledger.tree.insert(self.revision, changes);
        let (index, revision) = (LogIndex(self.revision as u64), Revision(self.revision as u64));
        self.observe(Observation::Applied { node: NODE, boot: 1, index, digest: 0, revision });
    }

    fn connect(&mut self, client: u32, wanted: i64, greeted: Greeted) -> usize {
        self.wait(STEP);
        let called = self.moment();
        let asked = |log: &&ZnodeLog| log.client == client;
        let zxids = self.history.znodes.iter().filter(asked).flat_map(|log| &log.steps).map(|(_, step)| match step {
            Step::Replied { zxid, .. } => *zxid,
            _ => 0,
        });
        let seen = zxids.max().unwrap_or(0);
        let greeted = Some((self.moment(), greeted));
        let steps = Vec::new();
        self.history.znodes.push(ZnodeLog { client, node: NODE, called, wanted, seen, greeted, steps, closed: None });
        self.history.znodes.len() - 1
    }

    /// A client opens a session.
    pub(crate) fn open(&mut self, client: u32) -> usize {
        let id = 100 + i64::from(client);
        let log = self.connect(client, 0, Greeted::Session { id, timeout_ms: TIMEOUT_MS });
        self.ids.insert(client, id);
        let mut changes = vec![TreeChange::Session { id, generation: Some(1) }];
        if self.tree.is_empty() {
            changes.push(TreeChange::Znode { path: "/".into(), became: Some(self.znode("", 0)) });
        }
        self.change(changes);
        self.observe(Observation::LeaseGranted { lease: id, ttl_s: 4 });
        log
    }

    /// It goes on at a new connection.
    pub(crate) fn attach(&mut self, client: u32, old: usize) -> usize {
        let (id, timeout_ms) = self.history.znodes[old].session().unwrap();
        let log = self.connect(client, id, Greeted::Session { id, timeout_ms });
        self.change(vec![TreeChange::Session { id, generation: Some(2) }]);
        log
    }

    /// It wants to go on and is told that its session is over.
    pub(crate) fn refused(&mut self, client: u32, old: usize) {
        let (id, _) = self.history.znodes[old].session().unwrap();
        let log = self.connect(client, id, Greeted::Over);
        self.leave(log);
    }

    /// A connection ends.
    pub(crate) fn leave(&mut self, log: usize) {
        let closed = self.moment();
        self.history.znodes[log].closed = Some(closed);
    }

    /// A session ends by itself.
    pub(crate) fn expire(&mut self, log: usize) {
        let (id, _) = self.history.znodes[log].session().unwrap();
        let owned: Vec<String> =
            self.tree.iter().filter(|(_, znode)| znode.owner == id).map(|(path, _)| path.clone()).collect();
        let gone = owned.into_iter().map(|path| TreeChange::Znode { path, became: None });
        let changes = gone.chain([TreeChange::Session { id, generation: None }]).collect();
        self.change(changes);
        let revision = Revision(self.revision as u64);
        self.observe(Observation::LeaseEnded { lease: id, revision });
    }

    fn ask(&mut self, log: usize, request: Request) {
        self.wait(STEP);
        self.xid += 1;
        let (stamp, xid) = (self.moment(), self.xid);
        self.history.znodes[log].steps.push((stamp, Step::Asked { xid, request }));
    }

    fn reply(&mut self, log: usize, error: i32, found: Found) {
        let (stamp, xid, zxid) = (self.moment(), self.xid, self.revision);
        self.history.znodes[log].steps.push((stamp, Step::Replied { xid, zxid, error, found }));
    }

    pub(crate) fn close(&mut self, log: usize) {
        self.ask(log, Request::CloseSession);
        self.expire(log);
        self.reply(log, 0, Found::Nothing);
        self.leave(log);
    }

    fn make(&mut self, log: usize, asked: &str, path: &str, text: &str, flags: i32) {
        let data = Some(Bytes::copy_from_slice(text.as_bytes()));
        let (call, acl) = (CreateCall::Create, Vec::new());
        self.ask(log, Request::Create(CreateRequest { call, path: asked.into(), data, acl, flags }));
        let owner = if flags == 1 { self.history.znodes[log].session().unwrap().0 } else { 0 };
        let became = Some(self.znode(text, owner));
        self.change(vec![TreeChange::Znode { path: path.into(), became }]);
        self.reply(log, 0, Found::Created(path.into(), None));
    }

    pub(crate) fn create(&mut self, log: usize, path: &str, text: &str, ephemeral: bool) {
        self.make(log, path, path, text, i32::from(ephemeral));
    }

    pub(crate) fn sequential(&mut self, log: usize, prefix: &str, text: &str, number: u32) {
        self.make(log, prefix, &format!("{prefix}{number:010}"), text, 2);
    }

    pub(crate) fn set(&mut self, log: usize, path: &str, text: &str) {
        let data = Some(Bytes::copy_from_slice(text.as_bytes()));
        self.ask(log, Request::SetData { path: path.into(), data, version: -1 });
        let mut znode = self.tree[path].clone();
        (znode.data, znode.version, znode.modified) = (text.into(), znode.version + 1, self.revision + 1);
        self.change(vec![TreeChange::Znode { path: path.into(), became: Some(znode) }]);
        self.reply(log, 0, Found::Nothing);
    }

    pub(crate) fn delete(&mut self, log: usize, path: &str) {
        self.ask(log, Request::Delete { path: path.into(), version: -1 });
        self.change(vec![TreeChange::Znode { path: path.into(), became: None }]);
        self.reply(log, 0, Found::Nothing);
    }

    pub(crate) fn ping(&mut self, log: usize) {
        self.ask(log, Request::Ping);
        self.reply(log, 0, Found::Nothing);
    }

    pub(crate) fn sync(&mut self, log: usize) {
        self.ask(log, Request::Sync { path: None });
        self.reply(log, 0, Found::Nothing);
    }

    fn names(&self, path: &str) -> Vec<String> {
        let prefix = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        let below = self.tree.keys().filter_map(|key| key.strip_prefix(&prefix));
        below.filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_owned).collect()
    }

    fn stat(&self, path: &str) -> Option<Stat> {
        let znode = self.tree.get(path)?;
        Some(Stat {
            czxid: znode.created,
            mzxid: znode.modified,
            version: i32::try_from(znode.version - 1).unwrap(),
            ephemeral_owner: znode.owner,
            num_children: i32::try_from(self.names(path).len()).unwrap(),
            ..Stat::default()
        })
    }

    /// Reads a znode; with a watch it is asked whether it exists, so that there is one in any case.
    pub(crate) fn get(&mut self, log: usize, path: &str, watch: bool) {
        let request = match watch {
            true => Request::Exists { path: path.into(), watch },
            false => Request::GetData { path: path.into(), watch },
        };
        self.ask(log, request);
        match self.stat(path) {
            None => self.reply(log, NO_NODE, Found::Nothing),
            Some(stat) if watch => self.reply(log, 0, Found::Stat(stat)),
            Some(stat) => {
                let data = Some(Bytes::copy_from_slice(self.tree[path].data.as_bytes()));
                self.reply(log, 0, Found::Data(data, stat));
            }
        }
    }

    pub(crate) fn children(&mut self, log: usize, path: &str, watch: bool) {
        self.ask(log, Request::GetChildren { path: path.into(), watch });
        let names = self.names(path);
        self.reply(log, 0, Found::Children(names, None));
    }

    pub(crate) fn ephemerals(&mut self, log: usize) {
        self.ask(log, Request::GetEphemerals { prefix: None });
        let (id, _) = self.history.znodes[log].session().unwrap();
        let owned = self.tree.iter().filter(|(_, znode)| znode.owner == id).map(|(path, _)| path.clone()).collect();
        self.reply(log, 0, Found::Paths(owned));
    }

    /// A watch fires for the last change.
    pub(crate) fn event(&mut self, log: usize, kind: i32, path: &str) {
        let (stamp, zxid) = (self.moment(), self.revision);
        self.history.znodes[log].steps.push((stamp, Step::Fired { zxid, kind, path: path.into() }));
    }

    /// Sets watches again; those on data are told to have changed, or not.
    pub(crate) fn set_watches(&mut self, log: usize, data: &[&str], exist: &[&str], told: bool) {
        let list = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
        let paths = WatchedPaths { data: list(data), exist: list(exist), ..WatchedPaths::default() };
        let relative_zxid = self.history.znodes[log].seen;
        self.ask(log, Request::SetWatches { relative_zxid, paths });
        if told {
            data.iter().for_each(|path| self.event(log, DATA_CHANGED, path));
        }
        self.reply(log, 0, Found::Nothing);
    }
}
