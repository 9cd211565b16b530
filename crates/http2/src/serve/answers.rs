//! What goes out: calls that are looked at, answers that are taken from them as far as there is room
//! ([`Connection::room`](crate::Connection)), and those of which nothing is taken.

use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::calls::{Done, Part, Work, fields};
use super::{Open, Piece, Service, Serving};
use crate::ErrorCode;

/// How often is looked at calls in a row.
const LOOKS_AT_ONCE: usize = 512;
/// How many parts of one answer are taken in a row.
const PARTS_AT_ONCE: usize = 64;
/// How much of an answer may wait for its client before more of it is made.
const BODY_BYTES_AHEAD: usize = 128 * 1024;
/// How often is looked for answers of which nothing was taken since. What stalls is given up after this time at least, and
/// twice of it at most: so long can a client that has left answers lying wait for others.
pub(super) const STALL_PERIOD: Duration = Duration::from_secs(60);

impl<IO, S> Serving<IO, S>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    S: Service,
{
    /// Takes what calls have come to, as far as there is room for it, and gives clients room for what was read of their
    /// requests.
    pub(super) fn poll_calls(&mut self, cx: &mut Context<'_>) {
        let mut looks = LOOKS_AT_ONCE;
        self.calls.begin_turn(cx);
        while let Some((stream, place, done)) = self.calls.poll_next(self.connection.room(), &mut looks) {
            match done {
                Done::Message(message) => {
                    self.close(stream);
                    self.connection.send_message(stream, message);
                }
                Done::Refused(refusal) => {
                    self.close(stream);
                    self.connection.send_refusal(stream, refusal);
                }
                Done::Head(response) => self.begin_answer(stream, response),
                Done::Part(part) => self.go_on_answering(stream, place, part),
            }
        }
        if self.ready.end(&mut self.reads) {
            cx.waker().wake_by_ref();
        }
        for (stream, bytes) in self.reads.drain(..) {
            self.connection.release(stream, bytes);
        }
        if self.stalls_at.is_none() && self.may_stall() {
            let at = Instant::now() + self.stall_period;
            self.stalls_at = Some(at);
            if at < self.alarm_at {
                self.set_alarm(at);
            }
        }
    }

    fn begin_answer(&mut self, stream: u32, response: http::Response<S::Body>) {
        let (head, body) = response.into_parts();
        let fields = head.headers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
        let end = http_body::Body::is_end_stream(&body);
        self.connection.send_head(stream, head.status.as_u16(), fields, end);
        if end {
            self.close(stream);
        } else if let Some(Open::Answering { place, .. }) = self.open.get_mut(&stream) {
            let at = self.calls.put(stream, Work::Body(body));
            *place = at;
            if let Some(Done::Part(part)) = self.calls.poll_at(at) {
                self.go_on_answering(stream, at, part);
            }
        }
    }

    /// Takes parts of an answer as long as there are some and the client takes them.
    fn go_on_answering(&mut self, stream: u32, place: usize, first: Part<S::Body>) {
        let mut part = first;
        for taken in 1.. {
            match part {
                None => self.connection.send_data(stream, Bytes::new(), true),
                Some(Err(_)) => self.connection.reset(stream, ErrorCode::Internal),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        let Piece { own, shared } = data.into();
                        if shared.is_empty() {
                            self.connection.send_data(stream, own, false);
                        } else {
                            self.connection.send_shared(stream, own, shared);
                        }
                        if self.connection.waiting_bytes(stream) >= self.body_bytes_ahead() {
                            self.held.push((stream, place));
                            self.calls.hold(place);
                            return;
                        }
                        if taken == PARTS_AT_ONCE {
                            self.calls.look_at(place);
                            return;
                        }
                        let Some(Done::Part(next)) = self.calls.poll_at(place) else { return };
                        part = next;
                        continue;
                    }
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        self.connection.send_trailers(stream, fields(&trailers));
                    }
                },
            }
            self.calls.drop_at(place);
            self.close(stream);
            return;
        }
    }

    /// From how much on that waits of an answer no more of it is made: from anything on, while much waits altogether.
    fn body_bytes_ahead(&self) -> usize {
        if self.connection.may_make_ahead() { BODY_BYTES_AHEAD } else { 1 }
    }

    /// Answers whose client took enough go on being made.
    pub(super) fn resume_bodies(&mut self) {
        let ahead = self.body_bytes_ahead();
        let (connection, calls) = (&mut self.connection, &mut self.calls);
        self.held.retain(|(stream, place)| {
            let is_held = connection.waiting_bytes(*stream) >= ahead;
            if !is_held {
                calls.resume(*place);
            }
            is_held
        });
    }

    /// Whether something waits that a client which takes nothing would keep there for ever.
    fn may_stall(&self) -> bool {
        self.connection.has_whole_waiting() || self.calls.has_put_off_heads()
    }

    /// Gives up answers of which nothing is taken: whole ones, which have everything but their client's windows, and those
    /// in parts as long as others cannot begin because of them, until there is room for many. A stream that its client
    /// only reads late keeps its place while nobody else needs it.
    pub(super) fn end_stalled(&mut self) {
        let heads_wait = self.calls.does_a_head_wait();
        let in_parts = std::mem::replace(&mut self.heads_waited, heads_wait) && heads_wait;
        for stream in self.connection.stalled(in_parts) {
            if self.connection.is_whole(stream) || !self.connection.may_make_ahead() {
                self.refuse(stream);
            }
        }
        self.stalls_at = self.may_stall().then(|| Instant::now() + self.stall_period);
    }
}
