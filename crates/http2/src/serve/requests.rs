//! What comes in: requests that are begun, collected or read as they come, and how much of all of them is kept.
//!
//! Windows are given back as a request is read, so they do not bound what whoever read it keeps. That is counted here:
//! heads, what was collected of a body until it is answered, and of a body that is read as it comes what its reader can do
//! nothing with yet ([`Count`]). Whatever would be more than [`REQUEST_BYTES_MAX`] is refused.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite};

use super::body::{self, Count, Feed, Incoming, own};
use super::calls::Work;
use super::{Open, Service, Serving};
use crate::{ErrorCode, RequestHead};

/// Bytes that are kept of all requests of a connection, in heads and bodies. One that would be more is refused.
pub(super) const REQUEST_BYTES_MAX: usize = 64 << 20;

impl<IO, S> Serving<IO, S>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    S: Service,
{
    pub(super) fn begin(&mut self, stream: u32, head: Arc<RequestHead>, end: bool) {
        if self.kept + head.size() > REQUEST_BYTES_MAX {
            self.refuse(stream);
            return;
        }
        match self.service.collects(&head) {
            Some(_) if end => self.call(stream, &head, Bytes::new()),
            Some(bytes_max) => {
                self.kept += head.size();
                self.open.insert(stream, Open::Collecting { head, body: BytesMut::new(), bytes_max });
            }
            None => {
                let (feed, body) = body::channel(stream, &self.ready, end, Count::of(&head));
                self.serve(stream, &head, body, feed, end);
            }
        }
    }

    pub(super) fn go_on(&mut self, stream: u32, data: Bytes, end: bool) {
        let bytes = data.len();
        match self.open.get_mut(&stream) {
            Some(Open::Answering { feed: Some(_), .. }) => self.feed(stream, data, end),
            Some(Open::Collecting { body, bytes_max, .. }) => {
                if self.kept + bytes > REQUEST_BYTES_MAX {
                    self.refuse(stream);
                    return;
                }
                if body.len() + bytes > *bytes_max {
                    self.overflow(stream, data, end);
                    return;
                }
                // Nearly always all of it comes at once.
                let whole = if end && body.is_empty() {
                    data
                } else {
                    body.extend_from_slice(&data);
                    self.kept += bytes;
                    if !end {
                        self.connection.release(stream, bytes);
                        return;
                    }
                    self.kept -= body.len();
                    std::mem::take(body).freeze()
                };
                self.connection.release(stream, bytes);
                if let Some(Open::Collecting { head, .. }) = self.close(stream) {
                    self.call(stream, &head, whole);
                }
            }
            // Answered already, or said to be over.
            Some(Open::Answering { feed: None, .. }) | None => self.connection.release(stream, bytes),
        }
    }

    /// More of a request that is read as it comes.
    fn feed(&mut self, stream: u32, data: Bytes, end: bool) {
        let Some(Open::Answering { feed, kept, .. }) = self.open.get_mut(&stream) else { return };
        let Some(to) = feed else { return };
        if to.is_unread() {
            self.connection.release(stream, data.len());
            return;
        }
        let before = to.count.bytes();
        to.count.take_in(&data, end);
        let now = to.count.bytes();
        *kept = *kept - before + now;
        self.kept = self.kept - before + now;
        if now > before && self.kept > REQUEST_BYTES_MAX {
            self.refuse(stream);
            return;
        }
        to.push(data, end);
        if end {
            *feed = None;
        }
    }

    /// Larger than what is collected: served as a stream, beginning with what is here.
    fn overflow(&mut self, stream: u32, data: Bytes, end: bool) {
        let Some(Open::Collecting { head, body, .. }) = self.close(stream) else { return };
        // What was collected has its room back: only this count knows of it.
        let count = Count::All(body.len() + data.len());
        let (feed, incoming) = body::channel(stream, &self.ready, false, count);
        feed.push_released(body.freeze());
        feed.push(data, end);
        self.serve(stream, &head, incoming, feed, end);
    }

    fn serve(&mut self, stream: u32, head: &RequestHead, body: Incoming, feed: Feed, end: bool) {
        let Some(request) = head.to_http(body) else {
            self.connection.reset(stream, ErrorCode::Protocol);
            return;
        };
        let kept = head.size() + feed.count.bytes();
        self.kept += kept;
        let place = self.calls.add(stream, Work::Head(self.service.serve(request)));
        self.open.insert(stream, Open::Answering { place, feed: (!end).then_some(feed), kept });
    }

    fn call(&mut self, stream: u32, head: &RequestHead, body: Bytes) {
        let kept = head.size() + body.len();
        self.kept += kept;
        let body = if self.service.may_wait(head) { own(body) } else { body };
        let place = self.calls.add(stream, Work::Call(self.service.call(head, body)));
        self.open.insert(stream, Open::Answering { place, feed: None, kept });
    }

    /// A request is over, or is not collected any more.
    pub(super) fn close(&mut self, stream: u32) -> Option<Open> {
        let closed = self.open.remove(&stream)?;
        self.kept -= closed.kept();
        Some(closed)
    }

    /// Nobody waits for it any more: it is dropped.
    pub(super) fn give_up(&mut self, stream: u32) {
        if let Some(Open::Answering { place, .. }) = self.close(stream) {
            self.calls.drop_at(place);
            self.held.retain(|(held, _)| *held != stream);
        }
    }

    /// Ends a request that takes too much. Clients take this for an exhausted resource.
    pub(super) fn refuse(&mut self, stream: u32) {
        self.give_up(stream);
        self.connection.reset(stream, ErrorCode::EnhanceYourCalm);
    }
}
