//! The tree of znodes, on the one keyspace.
//!
//! Five kinds of records in [`Space::Tree`](tidelock_model::Space::Tree), told apart by the first byte of
//! their names:
//!
//! ```text
//! N parent 00 name   a znode; the parent's path is empty for the root, and the root itself is just N.
//!                    Its data and its times; owner, version and revisions are the record's own.
//! S path             how often it got a child, when its children changed last, who may do what with it.
//!                    Absent as long as that is: never, at its creation, everybody everything.
//! C path             it is a container or has a time to live. Empty.
//! Q path             how many znodes and bytes there are at and below it, if somebody asks (`quota`).
//! Z session          a session: its time-out, and which of its connections is the one. Owned by its lease.
//! ```
//!
//! No name holds a zero byte, so the children of a znode are one range of keys, and counting them takes the
//! logarithm of the number of znodes; their number is stored nowhere and cannot be wrong.
//!
//! A request is decided against a [`Draft`](draft::Draft): the tree with this request's changes on top. A
//! draft that is given up leaves no trace; one that is finished is carried out at one revision. A session is
//! a lease: whatever ends it deletes its ephemeral znodes, with all that hangs on them, at one revision.
//!
//! Invariants, checked by `properties`: every znode but the root has a parent; S and C belong to znodes that
//! exist, Q to paths whose `zookeeper_stats` exists; every Z is owned by the lease it names.
//!
//! One znode is written by no client: `/zookeeper/config`, where members change (see `config`).
//!
//! The rules (order of checks, numbers, versions) are ZooKeeper's, since its clients see them. Not here: when
//! a session ends or a container is looked at, watches, and anything about the wire.

mod acl;
mod config;
mod draft;
#[cfg(test)]
mod oracle;
mod paths;
#[cfg(test)]
mod properties;
mod quota;
#[cfg(test)]
mod quota_rules;
mod reads;
mod reap;
mod record;
mod requests;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod session_rules;
mod sessions;
#[cfg(test)]
mod testing;
mod totals;

use bytes::Bytes;
use tidelock_model::{Answer, Key, Record, Refusal, ZnodeCommand};

use crate::State;
use crate::apply::Effects;
use requests::Quotas;

pub(crate) use totals::ZnodeSum;

/// What one write of a znode made it.
pub(crate) struct WrittenZnode {
    /// As ZooKeeper counts.
    pub(crate) version: i32,
    pub(crate) modified_ms: u64,
    pub(crate) data: Option<Bytes>,
}

/// The key of a znode; nothing for what cannot be a path.
pub(crate) fn key_of(path: &str) -> Option<Key> {
    paths::node_key(path).filter(|_| paths::check(path).is_ok())
}

/// What the record of a [`key_of`] a znode says.
pub(crate) fn written(record: &Record) -> WrittenZnode {
    let znode = record::Znode::read(record);
    WrittenZnode {
        version: znode.shown_version(),
        modified_ms: znode.modified_ms,
        data: record::Znode::read_data(record),
    }
}

impl State {
    pub(crate) fn change_znodes(&mut self, command: ZnodeCommand, effects: &mut Effects) -> Result<Answer, Refusal> {
        match command {
            ZnodeCommand::OpenSession { timeout_ms } => self.open_session(timeout_ms, effects).map(Answer::Session),
            ZnodeCommand::AttachSession { session, timeout_ms } => {
                self.attach_session(session, timeout_ms, effects).map(Answer::Session)
            }
            ZnodeCommand::CloseSession { session } => self.close_session(session, effects).map(|()| Answer::Done),
            ZnodeCommand::Requests(requests) => {
                Ok(Answer::Znodes(self.request_znodes(&requests, Quotas::Shown, effects)))
            }
            ZnodeCommand::RequestsWithinQuotas(requests) => {
                Ok(Answer::Znodes(self.request_znodes(&requests, Quotas::Enforced, effects)))
            }
            ZnodeCommand::Reap { paths } => {
                self.reap(&paths, effects);
                Ok(Answer::Done)
            }
        }
    }
}
