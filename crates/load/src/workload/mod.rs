//! What an operation of the load is: one file for each kind.
//!
//! A [`Workload`] sends one operation and judges its answer. When and how many is [`crate::Load`]'s business.

mod children;
mod create;
mod exists;
mod fill;
mod get;
mod lease;
mod lock_native;
mod lock_recipe;
mod lock_redis;
mod lock_rpc;
mod lock_run;
mod mixed;
mod native_sessions;
mod native_stream;
mod phaser;
mod put;
mod range;
mod set;
mod sync_get;
mod txn;
mod watch_fan_out;
mod znode_fill;
mod znode_get;

use crate::lines::{Lines, Protocol, Tag};
use crate::random::Random;
use crate::values::Values;

pub use fill::Fill;
pub use lease::{LeaseGrants, LeasePuts, Renewed, renew};
pub use lock_native::lock_natively;
pub use lock_recipe::lock_by_recipe;
pub use lock_redis::lock_by_set;
pub use lock_rpc::lock_by_rpc;
pub use lock_run::{LockLoad, Locked};
pub use native_sessions::NativeSessions;
pub use phaser::{Parties, Phased, PhaserLoad};
pub use watch_fan_out::{FanOut, FannedOut, Watchers};
pub use znode_fill::ZnodeFill;

/// Set on the tag of a request whose answer is not the operation's: it only counts if it is a failure.
pub(crate) const BESIDE: Tag = 1 << 63;

/// One kind of operation.
pub trait Workload: Send {
    /// Sends one on `line`, known by `tag`. What it asks for is remembered by the number that is returned.
    fn send(&mut self, lines: &mut Lines, line: usize, tag: Tag, random: &mut Random) -> u64;

    /// Judges an answer to what was `asked`; `closely` if it is its turn to be decoded. The error says what is wrong.
    fn check(&self, asked: u64, answer: &[u8], closely: bool) -> Result<(), String>;

    /// Nothing is left to send.
    fn is_done(&self) -> bool {
        false
    }
}

/// The kinds that can be asked for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// etcd: a put of a key out of many.
    Put,
    /// etcd: a put on the condition that the key exists.
    Txn,
    /// etcd: a linearizable read of one key.
    Get,
    /// etcd: a read of one key from whatever the member has.
    SerializableGet,
    /// etcd: a linearizable read of 1,000 keys.
    Range,
    /// etcd: nine linearizable reads to one put.
    Mixed,
    /// ZooKeeper: a new znode.
    Create,
    /// ZooKeeper: the data of a znode written.
    Set,
    /// ZooKeeper: the data of a znode read, from whatever the member has.
    ZnodeGet,
    /// ZooKeeper: whether a znode exists.
    Exists,
    /// ZooKeeper: the names of 100 children.
    Children,
    /// ZooKeeper: a sync and a read behind it.
    SyncGet,
}

/// All of them with the names that users give them.
const NAMES: [(Protocol, &str, Kind); 12] = [
    (Protocol::Etcd, "put", Kind::Put),
    (Protocol::Etcd, "txn", Kind::Txn),
    (Protocol::Etcd, "get", Kind::Get),
    (Protocol::Etcd, "serializable-get", Kind::SerializableGet),
    (Protocol::Etcd, "range", Kind::Range),
    (Protocol::Etcd, "mixed", Kind::Mixed),
    (Protocol::Zookeeper, "create", Kind::Create),
    (Protocol::Zookeeper, "set", Kind::Set),
    (Protocol::Zookeeper, "get", Kind::ZnodeGet),
    (Protocol::Zookeeper, "exists", Kind::Exists),
    (Protocol::Zookeeper, "children", Kind::Children),
    (Protocol::Zookeeper, "sync-get", Kind::SyncGet),
];

impl Kind {
    /// The kind that `name` means in `protocol`; the error lists those that there are.
    pub fn of(protocol: Protocol, name: &str) -> Result<Kind, String> {
        let found = NAMES.iter().find(|(of, known, _)| *of == protocol && *known == name);
        found.map(|(_, _, kind)| *kind).ok_or_else(|| {
            let known: Vec<&str> =
                NAMES.iter().filter(|(of, _, _)| *of == protocol).map(|(_, name, _)| *name).collect();
            format!("no workload {name:?} there; give one of {}", known.join(", "))
        })
    }

    /// All kinds of a protocol.
    pub fn all(protocol: Protocol) -> impl Iterator<Item = Kind> {
        NAMES.iter().filter(move |(of, _, _)| *of == protocol).map(|(_, _, kind)| *kind)
    }

    /// Its name, and the protocol it is of.
    pub fn name(self) -> (Protocol, &'static str) {
        let found = NAMES.iter().find(|(_, _, kind)| *kind == self);
        found.map(|(protocol, name, _)| (*protocol, *name)).expect("every kind is in the table")
    }

    /// Whether it changes anything.
    pub fn writes(self) -> bool {
        matches!(self, Kind::Put | Kind::Txn | Kind::Mixed | Kind::Create | Kind::Set)
    }

    /// Operations of this kind on `keys` keys; `seed` tells apart generators that run side by side.
    pub fn start(self, keys: u64, values: &Values, seed: u64) -> Box<dyn Workload> {
        let values = values.clone();
        match self {
            Kind::Put => Box::new(put::Put { keys, values }),
            Kind::Txn => Box::new(txn::Txn { keys, values }),
            Kind::Get => Box::new(get::Get { keys, values, serializable: false }),
            Kind::SerializableGet => Box::new(get::Get { keys, values, serializable: true }),
            Kind::Range => Box::new(range::Range { keys }),
            Kind::Mixed => Box::new(mixed::Mixed::new(keys, values)),
            Kind::Create => Box::new(create::Create::new(values, seed)),
            Kind::Set => Box::new(set::Set { keys, values }),
            Kind::ZnodeGet => Box::new(znode_get::ZnodeGet { keys, values }),
            Kind::Exists => Box::new(exists::Exists { keys, values }),
            Kind::Children => Box::new(children::Children),
            Kind::SyncGet => Box::new(sync_get::SyncGet { get: znode_get::ZnodeGet { keys, values } }),
        }
    }
}

/// The message could not be decoded.
fn garbled(error: &prost::DecodeError) -> String {
    format!("an answer that cannot be decoded: {error}")
}
