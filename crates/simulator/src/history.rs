//! What happened in one run: what every client asked and was told, and what an observer who sees into
//! all nodes at once saw. The workloads and the world write it, the checkers read it and nothing else,
//! so a checker can be tested on a history made by hand.
//!
//! Keys and values are text, and every value written in a run is written only once: a value found
//! somewhere names the request that wrote it.

mod native;
mod znodes;

use std::collections::BTreeMap;
use std::sync::Arc;

use tidelock_model::{Auth, Kind, LogIndex, NodeId, Revision, Term};

pub use native::{
    NativeAsk, NativeBelief, NativeCall, NativeChange, NativeFollow, NativePush, NativeRecord, NativeRevision,
    NativeTold, NativeValue,
};
pub use znodes::{Greeted, Step, TreeChange, Znode, ZnodeLog};

/// Virtual time since the run began, in microseconds.
pub type Micros = u64;

/// A moment of the run. `order` counts everything that is recorded, so two things at the same
/// virtual time are still one before the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Place in the order of everything recorded; decides what happened before what.
    pub order: u64,
    /// Virtual time.
    pub at: Micros,
}

/// Everything recorded in one run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// What clients asked, in the order of asking.
    pub operations: Vec<Operation>,
    /// What clients watched, in the order of opening.
    pub watches: Vec<WatchLog>,
    /// Connections of ZooKeeper's clients, in the order of the attempts.
    pub znodes: Vec<ZnodeLog>,
    /// What clients asked of native primitives, in the order of asking.
    pub native: Vec<NativeCall>,
    /// What nodes were told of native primitives.
    pub native_pushes: Vec<NativePush>,
    /// What clients believed to hold.
    pub native_beliefs: Vec<NativeBelief>,
    /// Who was to be told of the ends of native sessions.
    pub native_follows: Vec<NativeFollow>,
    /// What really changed in the store, revision by revision, as seen inside the nodes.
    pub ledger: Ledger,
    /// Other things seen inside the nodes, in order.
    pub observations: Vec<(Stamp, Observation)>,
    /// What bounds the checkers may rely on in this run.
    pub bounds: Bounds,
}

/// What a run's faults can do to time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds {
    /// How much faster or slower than virtual time a node's clock may run, in thousandths.
    pub clock_drift_permille: u64,
    /// The longest election timeout, in virtual time.
    pub election: Micros,
    /// The moment from which on there were no more faults.
    pub healed: Option<Stamp>,
    /// The end of the run.
    pub ended: Option<Stamp>,
}

/// One request of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Who asked; a client asks one thing at a time.
    pub client: u32,
    /// The node it asked.
    pub node: NodeId,
    /// When it asked.
    pub called: Stamp,
    /// When it was told; `None` if the run ended first.
    pub returned: Option<Stamp>,
    /// On whose behalf, if that matters; `None`: nobody asks what it may do.
    pub asker: Option<Asker>,
    /// What it asked.
    pub request: Request,
    /// What it was told.
    pub result: Told,
}

/// A user that a request is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Its name.
    pub user: String,
    /// The revision of users and roles as of which it proved that; known once the request has arrived.
    pub auth_revision: u64,
}

/// A request, as an etcd client means it. Puts and deletes always ask for the previous values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Set, delete or read.
    Op(Op),
    /// If all compares hold the first list, else the second.
    Txn {
        /// All must hold.
        compares: Vec<Compare>,
        /// Carried out if they do.
        then: Vec<Op>,
        /// Carried out if not.
        otherwise: Vec<Op>,
    },
    /// Forget history before this revision.
    Compact {
        /// The oldest revision still held afterwards.
        revision: i64,
    },
    /// Grant a lease.
    Grant {
        /// Its id, unique in the run.
        lease: i64,
        /// Its time to live.
        ttl_s: i64,
    },
    /// End a lease.
    Revoke {
        /// Which.
        lease: i64,
    },
    /// Renew a lease.
    KeepAlive {
        /// Which.
        lease: i64,
    },
}

/// One operation of a request or transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Set a key.
    Put {
        /// Which.
        key: String,
        /// To what; unique in the run.
        value: String,
        /// Owned by this lease; 0 for none.
        lease: i64,
    },
    /// Delete a key, or those from `key` up to but excluding `end`.
    Delete {
        /// The first.
        key: String,
        /// Where the range ends.
        end: Option<String>,
    },
    /// Read a key or a range.
    Get {
        /// The first.
        key: String,
        /// Where the range ends.
        end: Option<String>,
        /// As of this revision; 0 for now.
        at: i64,
        /// Whether what the node has is good enough.
        serializable: bool,
    },
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key has this value. Does not hold for a key that does not exist.
    ValueIs(String, String),
    /// The key was last changed at this revision; 0: it does not exist.
    ModifiedAt(String, i64),
    /// The key was written so many times since it was created; 0: it does not exist.
    VersionIs(String, i64),
    /// The native fence of this name lets the token through; it lets none before it through from then on. Clients of
    /// etcd cannot say this: it is the store's own.
    Admits(String, u64),
    /// A native session holds the place of this token, as a native write asks. Clients of etcd cannot say this either.
    Holds {
        /// Who.
        session: i64,
        /// A queue.
        kind: Kind,
        /// Which.
        name: String,
        /// Of the grant.
        token: u64,
    },
}

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// An answer.
    Answer(Answer),
    /// The request was carried out to its end and cannot be done: nothing changed. Why, in etcd's words.
    Error(String),
    /// It certainly did not happen: refused before it was sent anywhere. Why.
    Refused(String),
    /// It may or may not have happened, or may still happen. Why.
    Unknown(String),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The store's revision, from the response's header. 0 where etcd gives none (keep-alive included).
    pub revision: i64,
    /// The term, from the response's header.
    pub term: u64,
    /// What was asked for.
    pub content: Content,
}

/// The content of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Set; what the key was before.
    Put {
        /// Before.
        previous: Option<Kv>,
    },
    /// Deleted; what the keys were before.
    Delete {
        /// Before.
        previous: Vec<Kv>,
    },
    /// Read.
    Get {
        /// What was found, by key.
        found: Vec<Kv>,
        /// How many there are in the range.
        count: i64,
    },
    /// A transaction's.
    Txn {
        /// Whether all compares held.
        succeeded: bool,
        /// The answers of the list that was carried out.
        answers: Vec<Content>,
    },
    /// A native write's, which tells nothing of what was before.
    Written {
        /// Whether every token was good and every condition held.
        done: bool,
    },
    /// Compacted.
    Compacted,
    /// Granted.
    Granted,
    /// Revoked.
    Revoked,
    /// Renewed, for so many seconds; `None`: there is no such lease.
    KeptAlive {
        /// Seconds.
        ttl_s: Option<i64>,
    },
}

/// A key and its value, with what etcd tells about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kv {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
    /// Revision of its creation.
    pub created: i64,
    /// Revision of its last change.
    pub modified: i64,
    /// Times written since its creation.
    pub version: i64,
    /// Its lease, or 0.
    pub lease: i64,
}

/// What one watcher was told, from its opening to its end. A watcher that is opened again after a lost
/// connection is a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchLog {
    /// Who watched.
    pub client: u32,
    /// At which node.
    pub node: NodeId,
    /// The first key.
    pub key: String,
    /// Where the range ends; `None`: the one key.
    pub end: Option<String>,
    /// The first revision wanted; 0: from now on.
    pub start: i64,
    /// Whether deletions are left out.
    pub no_deletes: bool,
    /// Whether puts are left out.
    pub no_puts: bool,
    /// For which user; `None`: nobody asks what it may read.
    pub user: Option<String>,
    /// When it asked.
    pub called: Stamp,
    /// What it was told, in order.
    pub notices: Vec<(Stamp, Notice)>,
    /// When the client closed it or its connection broke; `None`: it was open when the run ended.
    pub closed: Option<Stamp>,
}

/// Something a watcher was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It is open; the store's revision then.
    Created {
        /// The revision.
        revision: i64,
    },
    /// Events, in one response.
    Events {
        /// From the header.
        revision: i64,
        /// In order.
        events: Vec<WatchEvent>,
    },
    /// Everything up to this revision was told.
    Progress {
        /// The revision.
        revision: i64,
    },
    /// The server ended it.
    Canceled {
        /// The oldest revision still held, if that is why; else 0.
        compact_revision: i64,
        /// In etcd's words.
        reason: String,
    },
}

/// One event, as a watcher saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// The key, as of the event. For a deletion only `key` and `modified` mean something.
    pub kv: Kv,
    /// Whether it was deleted.
    pub deleted: bool,
    /// What it was before, if the watcher asked for it and it is still held.
    pub previous: Option<Kv>,
}

/// What really changed, revision by revision. Written from the state of whichever node got there first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// The changes of each revision, in order; a key may change more than once. Empty for those that changed
    /// nothing but the tree of znodes or native records.
    pub changes: BTreeMap<i64, Vec<Change>>,
    /// The changes of the tree of znodes. What ends at once, leases and sessions, may change both.
    pub tree: BTreeMap<i64, Vec<TreeChange>>,
    /// The changes of native records.
    pub native: BTreeMap<i64, NativeRevision>,
}

/// One change to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// What it became; `None`: deleted.
    pub became: Option<Kv>,
}

/// Something seen inside a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// A node leads in this term (recorded once per node and term).
    Leads {
        /// Who.
        node: NodeId,
        /// In which term.
        term: Term,
    },
    /// A node has carried out the log up to this index.
    Applied {
        /// Who.
        node: NodeId,
        /// Which of its lives.
        boot: u64,
        /// Up to where.
        index: LogIndex,
        /// The digest of its state.
        digest: u128,
        /// Its store's revision.
        revision: Revision,
    },
    /// A lease is in the state of a node for the first time anywhere.
    LeaseGranted {
        /// Which.
        lease: i64,
        /// For how long.
        ttl_s: i64,
    },
    /// A lease that was there is gone from the state of a node, for the first time anywhere.
    LeaseEnded {
        /// Which.
        lease: i64,
        /// The store's revision right after.
        revision: Revision,
    },
    /// A native session that was in the state of a node is gone from it.
    SessionEnded {
        /// The node.
        node: NodeId,
        /// Which session.
        session: i64,
        /// Whether the node took over a state without it, so that it does not know which ended.
        in_snapshot: bool,
    },
    /// Users or roles changed, in the state of a node for the first time anywhere.
    AuthChanged {
        /// The entry that did it.
        index: LogIndex,
        /// The store's revision before that entry.
        before: Revision,
        /// The store's revision after it. The change came anywhere between: an entry may hold writes, too.
        revision: Revision,
        /// Users and roles from then on.
        auth: Arc<Auth>,
    },
    /// A client knows that everything up to this entry was carried out, changes of users and roles among it.
    AuthAcknowledged {
        /// The entry.
        index: LogIndex,
    },
    /// A node asked whether it, or its leader, still leads, under this name (node, boot, counter).
    ReadRound {
        /// Who asked.
        node: NodeId,
        /// Which of its lives.
        boot: u64,
        /// Its count within that life.
        counter: u64,
    },
    /// A node started, with what its disk held.
    Started {
        /// Who.
        node: NodeId,
        /// Which of its lives.
        boot: u64,
    },
    /// A node stopped: killed, or by itself.
    Stopped {
        /// Who.
        node: NodeId,
        /// Why, for people.
        why: String,
    },
    /// A node does nothing any more until it resumes or stops.
    Paused {
        /// Who.
        node: NodeId,
    },
    /// A node that was paused goes on.
    Resumed {
        /// Who.
        node: NodeId,
    },
    /// A node's members changed: who may vote, as it sees it.
    Members {
        /// Who sees it.
        node: NodeId,
        /// After which index.
        index: LogIndex,
        /// Who votes.
        voters: Vec<NodeId>,
        /// Who was removed.
        removed: Vec<NodeId>,
    },
}
