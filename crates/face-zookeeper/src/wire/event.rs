//! Watch events: packets that no request asked for.

use super::codes::xid;
use super::jute::{put_int, put_long, put_packet, put_string};

/// What happened to a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum EventKind {
    /// Nothing: the packet tells a [`KeeperState`] only.
    None = -1,
    /// It was created.
    NodeCreated = 1,
    /// It was deleted.
    NodeDeleted = 2,
    /// Its data was set.
    NodeDataChanged = 3,
    /// A child came or went.
    NodeChildrenChanged = 4,
}

/// How the connection is, which each event tells as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum KeeperState {
    /// The server is in touch with the others.
    SyncConnected = 3,
    /// The server only answers reads.
    ConnectedReadOnly = 5,
    /// The session is over.
    Expired = -112,
}

/// Appends an event packet, length included. `zxid` is that of the change; servers before 3.9 say -1.
pub fn write_event(out: &mut Vec<u8>, zxid: i64, kind: EventKind, state: KeeperState, path: &str) {
    put_packet(out, |out| {
        put_int(out, xid::NOTIFICATION);
        put_long(out, zxid);
        put_int(out, 0); // No error.
        put_int(out, kind as i32);
        put_int(out, state as i32);
        put_string(out, path);
    });
}
