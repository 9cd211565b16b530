//! What a change of the store means to ZooKeeper's clients.
//!
//! Znodes and sessions are keys; whoever watches them is told of keys. This is the one place outside
//! `state::znodes` that reads them.

use crate::{Event, EventKind, Key, LeaseId, Space};

/// First byte of the name of a znode's key: then the parent's path, a zero byte, and its own name.
pub const ZNODE_KEY: u8 = b'N';
/// First byte of the name of the key of what is kept beside a znode, its rights among it: then its path.
pub const SIDE_KEY: u8 = b'S';
/// First byte of the name of a session's own key: then its id.
pub const SESSION_KEY: u8 = b'Z';

/// A change that somebody may want to hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZnodeEvent {
    /// A znode was created.
    Created(String),
    /// Its data was set.
    DataChanged(String),
    /// It was deleted.
    Deleted(String),
    /// A session was opened, or went on at another connection.
    SessionTaken {
        /// Which.
        session: LeaseId,
        /// The connection it goes on at.
        generation: u64,
    },
    /// A session is over.
    SessionEnded(LeaseId),
}

impl ZnodeEvent {
    /// What an event of the store is; nothing if it concerns nobody.
    #[must_use]
    pub fn of(event: &Event) -> Option<ZnodeEvent> {
        let deleted = event.kind() == EventKind::Delete;
        if let Some(path) = znode_path(&event.key) {
            return Some(match deleted {
                true => ZnodeEvent::Deleted(path),
                false if event.record.meta().version == 1 => ZnodeEvent::Created(path),
                false => ZnodeEvent::DataChanged(path),
            });
        }
        let session = LeaseId(i64::from_be_bytes(rest(&event.key, SESSION_KEY)?.try_into().ok()?));
        if deleted {
            return Some(ZnodeEvent::SessionEnded(session));
        }
        let generation = u64::from_be_bytes(*event.record.value().last_chunk()?);
        Some(ZnodeEvent::SessionTaken { session, generation })
    }
}

fn rest(key: &Key, kind: u8) -> Option<&[u8]> {
    let ours = key.space_byte() == Some(Space::Tree as u8);
    key.name().split_first().filter(|(first, _)| ours && **first == kind).map(|(_, rest)| rest)
}

/// The path of a [`SIDE_KEY`].
pub(super) fn side_path(key: &Key) -> Option<&str> {
    std::str::from_utf8(rest(key, SIDE_KEY)?).ok()
}

/// The path of a znode's key; nothing for other keys.
#[must_use]
pub fn znode_path(key: &Key) -> Option<String> {
    let rest = rest(key, ZNODE_KEY)?;
    if rest.is_empty() {
        return Some("/".to_owned());
    }
    let path = rest.iter().map(|byte| if *byte == 0 { b'/' } else { *byte }).collect();
    String::from_utf8(path).ok()
}
