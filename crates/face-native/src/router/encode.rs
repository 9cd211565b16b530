//! Messages to clients, in the format each wants; a notice in each format at most once.

use std::sync::LazyLock;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use tidelock_client_port::{PREFIX_BYTES, Shape, framed};
use tidelock_model::native_records::Place;
use tidelock_model::{Data, Event, Kind, LeaseId, NativeNotice, Revision, Term};
use tidelock_native_api::v1;
use tidelock_native_api::v1::lost::Reason;
use tidelock_native_api::v1::to_client::Message as ToClientMessage;

use crate::descriptors::shape_of;
use crate::mailbox::{Format, Item, PlaceOf};
use crate::problem::Problem;
use crate::translate;

/// Knows the formats.
pub(crate) struct Encoder {
    /// This one.
    node: u64,
    /// What an observer is told, for JSON.
    notices: LazyLock<Shape>,
}

impl Encoder {
    pub(crate) fn new(node: u64) -> Encoder {
        Encoder { node, notices: LazyLock::new(|| shape_of("Observe")) }
    }

    /// That a session is not served any more.
    pub(crate) fn lost(&self, format: Format, session: LeaseId, reason: Reason, message: &str) -> Item {
        let lost = v1::Lost { reason: reason.into(), session: session.0, message: message.to_owned() };
        let payload = match format {
            Format::Stream => framed(&to_client(ToClientMessage::Lost(lost))),
            // Observers have no session.
            Format::Notices => Bytes::new(),
            Format::Events => {
                let json = serde_json::json!({ "session": session.0.to_string(), "reason": reason.as_str_name() });
                format!("event: lost\ndata: {json}\n\n").into()
            }
        };
        Item { revision: 0, granted: None, lost: Some(session.0), payload }
    }

    /// That a name is not observed, or no longer, as of a revision and a term.
    pub(crate) fn not_observing(
        &self,
        kind: Kind,
        name: &str,
        problem: &Problem,
        (revision, term): (u64, Term),
    ) -> Item {
        let (kind, error) = (translate::wire_kind(kind).into(), Some(problem.to_wire()));
        let header = Some(v1::Header { revision, index: 0, term: term.0, node: self.node });
        let observing = v1::Observing { header, kind, name: name.to_owned(), error };
        let payload = framed(&to_client(ToClientMessage::Observing(observing)));
        Item { revision: 0, granted: None, lost: None, payload }
    }

    /// A notice as a server-sent event, but for its id.
    fn event(&self, notice: &v1::Notice) -> Bytes {
        use v1::notice::Notice as N;
        let name = match &notice.notice {
            Some(N::Granted(_)) => "granted",
            Some(N::Changed(_)) => "changed",
            Some(N::Gone(_)) => "gone",
            Some(N::Barrier(_)) => "barrier",
            Some(N::Latch(_)) => "latch",
            Some(N::Phase(_)) => "phase",
            Some(N::Counter(_)) => "counter",
            Some(N::Fence(_)) => "fence",
            Some(N::Rcu(_)) => "rcu",
            Some(N::Hazard(_)) => "hazard",
            None => "notice",
        };
        let mut text = format!("event: {name}\ndata: ").into_bytes();
        // Encoded a moment ago, by the same descriptors.
        if self.notices.response_to_json(notice.encode_to_vec().into(), false, &mut text).is_err() {
            text.extend_from_slice(b"{}");
        }
        text.extend_from_slice(b"\n\n");
        text.into()
    }
}

pub(crate) fn to_client(message: ToClientMessage) -> v1::ToClient {
    v1::ToClient { message: Some(message) }
}

/// A notice, and its encodings as far as somebody wanted them.
pub(crate) struct Encoded<'a> {
    encoder: &'a Encoder,
    notice: v1::Notice,
    stream: Option<Bytes>,
    notices: Option<Bytes>,
    events: Option<Bytes>,
}

impl<'a> Encoded<'a> {
    pub(crate) fn new(encoder: &'a Encoder, notice: NativeNotice, event: &Event) -> Encoded<'a> {
        let is_place = matches!(notice, NativeNotice::Granted { .. } | NativeNotice::Changed { .. });
        let data = is_place.then(|| Place::of(&event.record)).flatten().map(|(place, _)| place.data);
        Encoded::at(encoder, notice, event.record.meta().modified, &data.unwrap_or_default())
    }

    pub(crate) fn at(encoder: &'a Encoder, notice: NativeNotice, at: Revision, data: &Data) -> Encoded<'a> {
        let notice = translate::notice(notice, at, data);
        Encoded { encoder, notice, stream: None, notices: None, events: None }
    }

    pub(crate) fn item(&mut self, format: Format, granted: Option<PlaceOf>) -> Item {
        let (encoder, notice) = (self.encoder, &self.notice);
        let payload = match format {
            Format::Stream => self.stream.get_or_insert_with(|| in_to_client(notice)),
            Format::Notices => self.notices.get_or_insert_with(|| framed(notice)),
            Format::Events => self.events.get_or_insert_with(|| encoder.event(notice)),
        };
        Item { revision: notice.revision, granted, lost: None, payload: payload.clone() }
    }
}

/// The field of `ToClient` that a notice is in.
const NOTICE_FIELD: u32 = 3;

/// A notice in a `ToClient` in a frame, without a copy of it.
fn in_to_client(notice: &v1::Notice) -> Bytes {
    let length = prost::encoding::message::encoded_len(NOTICE_FIELD, notice);
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + length);
    out.put_u8(0);
    out.put_u32(length as u32);
    prost::encoding::message::encode(NOTICE_FIELD, notice, &mut out);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A notice is put into its message by hand: it must be the same bytes as the long way gives.
    #[test]
    fn a_notice_is_where_clients_look_for_it() {
        let counter = v1::CounterNotice { name: "n".into(), value: -3 };
        let notice = v1::Notice { revision: 7, notice: Some(v1::notice::Notice::Counter(counter)) };
        assert_eq!(in_to_client(&notice), framed(&to_client(ToClientMessage::Notice(notice.clone()))));
    }
}
