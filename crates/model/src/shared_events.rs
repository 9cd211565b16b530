//! Changes that many watchers are told of, held and written down once.
//!
//! What hundreds of watchers of a key are told differs in a few bytes for each of them; the changes themselves, with
//! their values, are the same. So they are shared, and with them what a face made of them for the wire: whoever is first
//! writes it, the others copy. The bytes are nothing but a function of the events; nothing here knows how they are made.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::Event;

/// Changes, in order. Cloning shares.
#[derive(Clone)]
pub struct SharedEvents(Arc<Content>);

struct Content {
    events: Vec<Event>,
    written: [OnceLock<Bytes>; 2],
}

/// What bytes are kept. Those of etcd's face: another face that wants to keep its own needs names of its own here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// As etcd's clients read it, without the versions replaced.
    Etcd = 0,
    /// As etcd's clients read it, with them.
    EtcdWithPrevious = 1,
}

impl SharedEvents {
    /// The bytes of the events, which `write` makes if nobody did before.
    pub fn written(&self, how: Written, write: impl FnOnce(&[Event]) -> Bytes) -> &Bytes {
        self.0.written[how as usize].get_or_init(|| write(&self.0.events))
    }
}

impl From<Vec<Event>> for SharedEvents {
    fn from(events: Vec<Event>) -> SharedEvents {
        SharedEvents(Arc::new(Content { events, written: Default::default() }))
    }
}

impl Deref for SharedEvents {
    type Target = [Event];

    fn deref(&self) -> &[Event] {
        &self.0.events
    }
}

impl PartialEq for SharedEvents {
    fn eq(&self, other: &SharedEvents) -> bool {
        self.0.events == other.0.events
    }
}
impl Eq for SharedEvents {}

impl fmt::Debug for SharedEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.events.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Key, Record, Revision, Space};

    /// A watcher that asked for the versions replaced must not get the bytes of one that did not, nor the other way
    /// round; and what one wrote, the next must not write again.
    #[test]
    fn what_is_written_down_is_written_once_for_each_kind() {
        let record = Record::tombstone(Revision(7), 0);
        let event = Event { key: Key::new(Space::User, b"k"), record, previous: None };
        let events = SharedEvents::from(vec![event]);
        let other = events.clone();
        assert_eq!(events.written(Written::Etcd, |_| Bytes::from_static(b"bare")), "bare");
        assert_eq!(other.written(Written::EtcdWithPrevious, |_| Bytes::from_static(b"whole")), "whole");
        assert_eq!(other.written(Written::Etcd, |_| unreachable!("written before")), "bare");
        assert_eq!(events, other);
    }
}
