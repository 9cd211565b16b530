//! Events on their way to one watcher, as they are written: what is its own first, then the events, whose bytes all
//! watchers that are told the same share.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::message;
use tidelock_etcd_api::etcdserverpb::{ResponseHeader, WatchResponse};
use tidelock_model::{Event, Revision, SharedEvents, Written};

use crate::key_range::wire_event;

/// The number of the field of a response that holds its events. It comes last, so what stands before it can be written
/// without it.
const EVENTS_FIELD: u32 = 11;

/// Events to tell one watcher. At least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// The store's revision, for the header.
    pub revision: Revision,
    /// The client's name for the watcher.
    pub watch_id: i64,
    /// What happened.
    pub events: SharedEvents,
    /// Whether the versions replaced are told. The subscription may have them at hand unasked; clients print them.
    pub with_previous: bool,
}

impl Told {
    /// What the header, its ids at their longest included, and the flags take at most.
    pub(crate) const ENVELOPE_BYTES: usize = 80;
    /// The tag and the length in front of each event.
    pub(crate) const EVENT_FRAME_BYTES: usize = 6;

    /// The events as they stand in a response.
    pub(crate) fn event_bytes(&self) -> &Bytes {
        let with_previous = self.with_previous;
        let how = if with_previous { Written::EtcdWithPrevious } else { Written::Etcd };
        self.events.written(how, |events| write_events(events, with_previous))
    }

    /// What the response takes at most.
    pub(crate) fn bytes_max(&self) -> usize {
        Told::ENVELOPE_BYTES + self.event_bytes().len() + self.events.len() * Told::EVENT_FRAME_BYTES
    }

    /// The response without its events, which come last.
    pub(crate) fn envelope(&self, header: ResponseHeader) -> WatchResponse {
        WatchResponse { header: Some(header), watch_id: self.watch_id, ..Default::default() }
    }

    /// Writes the response: to the byte what protobuf makes of it.
    pub fn write(&self, header: ResponseHeader, out: &mut impl BufMut) {
        self.envelope(header).encode_raw(out);
        out.put_slice(self.event_bytes());
    }

    /// The response as a client reads it, out of the bytes it gets: for those who are not behind a wire.
    #[must_use]
    pub fn to_response(&self, header: ResponseHeader) -> WatchResponse {
        let mut out = BytesMut::new();
        self.write(header, &mut out);
        WatchResponse::decode(out.freeze()).expect("what was just written can be read")
    }
}

fn write_events(events: &[Event], with_previous: bool) -> Bytes {
    // Those of one notice, one after the other: a page of history may have a thousand.
    let mut out = BytesMut::new();
    for event in events {
        let event = wire_event(event, with_previous);
        out.reserve(message::encoded_len(EVENTS_FIELD, &event));
        message::encode(EVENTS_FIELD, &event, &mut out);
    }
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidelock_model::{Key, LeaseId, Record, RecordMeta, Space};

    fn record() -> impl Strategy<Value = Record> {
        (1..u64::MAX >> 1, 1..9u64, any::<i64>(), 0..2000usize, any::<bool>()).prop_map(
            |(modified, version, lease, bytes, deleted)| {
                let modified = Revision(modified);
                if deleted {
                    return Record::tombstone(modified, 0);
                }
                let meta = RecordMeta { created: modified, modified, version, lease: LeaseId(lease), sub: 0 };
                Record::new(meta, &vec![b'v'; bytes])
            },
        )
    }

    fn event() -> impl Strategy<Value = Event> {
        let name = proptest::collection::vec(any::<u8>(), 1..40);
        (name, record(), proptest::option::of(record())).prop_map(|(name, record, previous)| {
            let key = Key::new(Space::User, &name);
            Event { key, record, previous: previous.filter(|previous| !previous.is_tombstone()) }
        })
    }

    proptest! {
        /// Every client reads these bytes with protobuf of its own: they must be the ones that it would have written,
        /// for the first watcher that is told and for those after it, whatever each asked for.
        #[test]
        fn the_shared_bytes_are_the_ones_protobuf_writes(
            events in proptest::collection::vec(event(), 1..5),
            watchers in proptest::collection::vec((any::<i64>(), any::<bool>()), 1..5),
            header in any::<(u64, u64, u64)>(),
        ) {
            let events = SharedEvents::from(events);
            for (watch_id, with_previous) in watchers {
                let revision = Revision(header.2 >> 1);
                let told = Told { revision, watch_id, events: events.clone(), with_previous };
                let header = ResponseHeader {
                    cluster_id: header.0,
                    member_id: header.1,
                    revision: revision.0 as i64,
                    raft_term: 3,
                };
                let whole = WatchResponse {
                    header: Some(header),
                    watch_id,
                    events: events.iter().map(|event| wire_event(event, with_previous)).collect(),
                    ..Default::default()
                };
                let mut written = BytesMut::new();
                told.write(header, &mut written);
                prop_assert_eq!(&written[..], &whole.encode_to_vec()[..]);
                prop_assert!(written.len() <= told.bytes_max());
                prop_assert_eq!(told.to_response(header), whole);
            }
        }
    }
}
