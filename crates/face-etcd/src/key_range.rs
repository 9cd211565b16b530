//! etcd's way of naming keys and ranges, and items and events on their way out.
//!
//! An etcd key `k` is `k` in [`Space::User`]; no other space can be named from here. `range_end` empty
//! is the one key, a single zero byte is "from `key` on", anything else is exclusive. A range whose end
//! is not beyond its start holds nothing and is no error (except for watches).

use bytes::Bytes;
use tidelock_etcd_api::mvccpb;
use tidelock_model::limits::KEY_BYTES_MAX;
use tidelock_model::{Event, EventKind, Key, KeyRange, KeyValue, Record, Space};

use crate::error_map::FaceError;
use crate::header::{wire_number, wire_revision};

/// The `range_end` that means "everything from `key` on".
const FROM_KEY: &[u8] = &[0];

/// That end, for answers.
pub(crate) const fn from_key_end() -> &'static [u8] {
    FROM_KEY
}

/// A key that is written or compared: neither empty nor longer than the store takes.
pub(crate) fn key(name: &[u8]) -> Result<Key, FaceError> {
    match name.len() {
        0 => Err(FaceError::EmptyKey),
        1..=KEY_BYTES_MAX => Ok(Key::new(Space::User, name)),
        _ => Err(FaceError::RequestTooLarge),
    }
}

/// The range that `key` and `range_end` name together.
pub(crate) fn key_range(name: &[u8], range_end: &[u8]) -> Result<KeyRange, FaceError> {
    let start = key(name)?;
    let end = match range_end {
        [] => return Ok(KeyRange::single(start)),
        FROM_KEY => Key::end_of(Space::User),
        // One byte more than a key: clients spell "just after this key" by appending a zero byte.
        end if end.len() > KEY_BYTES_MAX + 1 => return Err(FaceError::RequestTooLarge),
        end => Key::new(Space::User, end),
    };
    Ok(KeyRange { start, end })
}

/// An item as etcd writes it. The value is shared with the store, not copied.
pub(crate) fn wire_item(key: &Key, record: &Record) -> mvccpb::KeyValue {
    let meta = record.meta();
    mvccpb::KeyValue {
        key: Bytes::copy_from_slice(key.name()),
        create_revision: wire_revision(meta.created),
        mod_revision: wire_revision(meta.modified),
        version: wire_number(meta.version),
        value: record.value_bytes(),
        lease: meta.lease.0,
    }
}

/// Items as etcd writes them.
pub(crate) fn wire_items(items: &[KeyValue]) -> Vec<mvccpb::KeyValue> {
    items.iter().map(|item| wire_item(&item.key, &item.record)).collect()
}

/// An event as etcd writes it: of a deletion only the key and the revision are told, of what was before
/// only if it is wanted.
pub(crate) fn wire_event(event: &Event, want_previous: bool) -> mvccpb::Event {
    let (kind, kv) = match event.kind() {
        EventKind::Put => (mvccpb::event::EventType::Put, wire_item(&event.key, &event.record)),
        EventKind::Delete => {
            let key = Bytes::copy_from_slice(event.key.name());
            let mod_revision = wire_revision(event.record.meta().modified);
            (mvccpb::event::EventType::Delete, mvccpb::KeyValue { key, mod_revision, ..Default::default() })
        }
    };
    let previous = event.previous.as_ref().filter(|_| want_previous);
    let prev_kv = previous.map(|previous| wire_item(&event.key, previous));
    mvccpb::Event { r#type: kind.into(), kv: Some(kv), prev_kv }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_model::{LeaseId, RecordMeta, Revision};

    fn user(name: &[u8]) -> Key {
        Key::new(Space::User, name)
    }

    /// Prefix and from-key listings are spelled with these ends by every client.
    #[test]
    fn the_three_spellings_of_a_range_mean_what_clients_mean() {
        assert_eq!(key_range(b"k", b"").unwrap().as_single(), Some(&user(b"k")));
        assert_eq!(key_range(b"k", b"l").unwrap(), KeyRange { start: user(b"k"), end: user(b"l") });
        assert_eq!(key_range(b"k", b"\0").unwrap(), KeyRange { start: user(b"k"), end: Key::end_of(Space::User) });
        let all = key_range(b"\0", b"\0").unwrap();
        assert!(all.contains(&user(b"\0")) && all.contains(&user(b"\xff\xff\xff")));
    }

    /// An etcd client must not see or touch another protocol's keys, whatever range it asks for.
    #[test]
    fn no_range_reaches_beyond_the_users_space() {
        for (start, end) in [(&b"\0"[..], &b"\0"[..]), (b"\xff\xff", b"\0"), (b"\0", b"\xff\xff\xff\xff")] {
            let range = key_range(start, end).unwrap();
            assert!(range.start >= Key::start_of(Space::User) && range.end <= Key::end_of(Space::User));
        }
    }

    #[test]
    fn a_range_that_ends_before_it_starts_is_empty_and_no_error() {
        assert!(key_range(b"b", b"a").unwrap().is_empty());
        assert!(key_range(b"b", b"b").unwrap().is_empty());
    }

    #[test]
    fn keys_are_bounded_at_the_door() {
        let longest = vec![b'k'; KEY_BYTES_MAX];
        assert!(key_range(&longest, b"").is_ok());
        assert!(key_range(&longest, &[&longest[..], &[0]].concat()).is_ok());
        assert_eq!(key_range(&vec![b'k'; KEY_BYTES_MAX + 1], b""), Err(FaceError::RequestTooLarge));
        assert_eq!(key_range(b"k", &vec![b'k'; KEY_BYTES_MAX + 2]), Err(FaceError::RequestTooLarge));
        assert_eq!(key_range(b"", b"x"), Err(FaceError::EmptyKey));
    }

    /// W5: clients tell a deletion's event by its bare key and revision.
    #[test]
    fn a_delete_event_carries_only_key_and_revision() {
        let meta = RecordMeta { created: Revision(2), modified: Revision(3), version: 2, lease: LeaseId(7), sub: 0 };
        let previous = Some(Record::new(meta, b"old"));
        let event = Event { key: user(b"k"), record: Record::tombstone(Revision(9), 1), previous };
        let wire = wire_event(&event, true);
        assert_eq!(wire.r#type, 1);
        let bare = mvccpb::KeyValue { key: "k".into(), mod_revision: 9, ..Default::default() };
        assert_eq!(wire.kv, Some(bare));
        let old = mvccpb::KeyValue {
            key: "k".into(),
            create_revision: 2,
            mod_revision: 3,
            version: 2,
            value: "old".into(),
            lease: 7,
        };
        assert_eq!(wire.prev_kv, Some(old));
    }
}
