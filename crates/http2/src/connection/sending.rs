//! What is sent: answers, as far as the client's windows go, and the little that keeps a connection alive.
//!
//! Data that finds no window waits with its stream. Streams that could send stand in line and send a frame each in
//! turn, so that a large answer does not hold up small ones. That many large ones do not keep small ones from being made
//! is `waiting`'s business.

use std::io::IoSlice;

use bytes::{BufMut, Bytes, BytesMut};

use super::{Connection, LAST_CALL, OUT_BYTES_DATA};
use crate::frame::{self, ErrorCode, HEAD_BYTES};
use crate::hpack::Field;
use crate::serve::Refusal;
use crate::streams::Waiting;

/// What became of a stream's turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// A frame was sent; there may be more.
    Sent,
    /// There was nothing to send.
    Nothing,
    /// It has to wait until the client takes more of anything.
    NoConnectionWindow,
    /// It has to wait until the client takes more of it, and is put in line again then.
    NoOwnWindow,
}

impl Connection {
    /// What is to be written. Take from its front what was written.
    pub fn out(&mut self) -> &mut BytesMut {
        self.out.end()
    }

    /// Whether anything is to be written.
    #[must_use]
    pub fn has_out(&self) -> bool {
        !self.out.is_empty()
    }

    /// What is to be written, in two parts, either of which may be empty.
    #[must_use]
    pub fn out_parts(&self) -> [IoSlice<'_>; 2] {
        self.out.parts()
    }

    /// So much of it was written. What is kept of the memory for it then is `bytes_kept` at most.
    pub fn wrote(&mut self, count: usize, bytes_kept: usize) {
        self.out.wrote(count, bytes_kept);
    }

    /// Begins an answer. Nothing, if nobody waits for it any more.
    pub fn send_head<'a>(
        &mut self,
        stream: u32,
        status: u16,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        end: bool,
    ) {
        if self.streams.get(stream).is_none() {
            return;
        }
        let at = self.begin_head();
        self.encoder.begin(self.out.end());
        self.encoder.status(status, self.out.end());
        for (name, value) in fields {
            self.encoder.field(name, value, self.out.end());
        }
        self.end_head(at, stream, end);
        if end {
            self.sent_all(stream);
        }
    }

    /// More of an answer.
    pub fn send_data(&mut self, stream: u32, data: Bytes, end: bool) {
        let Some(open) = self.streams.get(stream) else { return };
        self.waits.more(open, data.len());
        open.waiting.push_back(Waiting::Data(data, end));
        self.send_of(stream);
    }

    /// More of an answer: bytes of its own, and then some that other answers have too. Those are not copied if they can
    /// be sent as they are.
    pub fn send_shared(&mut self, stream: u32, own: Bytes, shared: Bytes) {
        let nobody_waits = self.streams.line.is_empty();
        let Some(open) = self.streams.get(stream) else { return };
        let bytes = own.len() + shared.len();
        let fits = open.waiting.is_empty()
            && bytes as i64 <= open.send_window.min(self.send_window)
            && bytes <= self.send_frame_bytes;
        if !fits || !nobody_waits || self.out.len() >= OUT_BYTES_DATA {
            self.send_data(stream, own, false);
            self.send_data(stream, shared, false);
            return;
        }
        open.send_window -= bytes as i64;
        self.send_window -= bytes as i64;
        frame::put_head(bytes, frame::DATA, 0, stream, self.out.end());
        self.out.end().put_slice(&own);
        self.out.put_shared(shared);
    }

    /// Ends an answer with what there is to say after it.
    pub fn send_trailers(&mut self, stream: u32, trailers: Vec<Field>) {
        let Some(open) = self.streams.get(stream) else { return };
        open.waiting.push_back(Waiting::Trailers(trailers));
        self.send_of(stream);
    }

    /// A whole answer to a call that went well: head, one message, trailers.
    pub fn send_message(&mut self, stream: u32, message: Bytes) {
        let Some(open) = self.streams.get(stream) else { return };
        let size = message.len() as i64;
        let fits = open.waiting.is_empty()
            && size <= open.send_window.min(self.send_window)
            && message.len() <= self.send_frame_bytes
            && self.out.len() < OUT_BYTES_DATA;
        let content = [(&b"content-type"[..], &b"application/grpc"[..])];
        self.send_head(stream, 200, content, false);
        if fits {
            self.send_window -= size;
            frame::put_head(message.len(), frame::DATA, 0, stream, self.out.end());
            self.out.end().put_slice(&message);
            self.put_trailers(stream, [(&b"grpc-status"[..], &b"0"[..])]);
            self.sent_all(stream);
        } else {
            if let Some(open) = self.streams.get(stream) {
                self.waits.mark_whole(open);
            }
            self.send_data(stream, message, false);
            let ok = Field { name: Bytes::from_static(b"grpc-status"), value: Bytes::from_static(b"0") };
            self.send_trailers(stream, vec![ok]);
        }
    }

    /// A whole answer to a call that was refused: a head that is all there is.
    pub fn send_refusal(&mut self, stream: u32, refusal: Refusal) {
        let fields =
            [("content-type", "application/grpc"), ("grpc-status", refusal.status), ("grpc-message", refusal.message)];
        self.send_head(stream, 200, fields.map(|(name, value)| (name.as_bytes(), value.as_bytes())), true);
    }

    /// Ends a request that cannot be answered.
    pub fn reset(&mut self, stream: u32, code: ErrorCode) {
        if self.forget(stream).is_some() {
            self.put_reset(stream, code);
        }
    }

    /// So much of a request was read: gives room for as much of it again.
    pub fn release(&mut self, stream: u32, bytes: usize) {
        let Some(open) = self.streams.get(stream) else { return };
        let bytes = (bytes as i64).min(open.unread);
        open.unread -= bytes;
        self.unread -= bytes;
        open.released += bytes;
        // Told in large steps, and only while there is more to come.
        if open.receiving && open.released * 2 >= i64::from(self.limits.stream_window) {
            let more = std::mem::take(&mut open.released);
            open.receive_window += more;
            frame::put_window(stream, more as u32, self.out.end());
        }
        self.release_connection(0);
    }

    /// Gives room for more of all requests, at once and whether they are read or not: one that nobody reads must not hold
    /// up the others. Unless too much is unread altogether.
    pub(super) fn release_connection(&mut self, bytes: i64) {
        self.released += bytes;
        let window = i64::from(self.limits.connection_window);
        if self.released * 2 >= window && self.unread <= window {
            let more = std::mem::take(&mut self.released);
            self.receive_window += more;
            frame::put_window(0, more as u32, self.out.end());
        }
    }

    /// Asks whether anybody is there.
    pub fn send_ping(&mut self) {
        self.pings_out += 1;
        frame::put_ping(*b"tidelock", 0, self.out.end());
    }

    /// Tells the client to send new requests elsewhere. What it sent before it knew is still answered.
    pub fn say_goodbye(&mut self) {
        self.leaving = true;
        frame::put_goaway(u32::MAX >> 1, ErrorCode::NoError, "", self.out.end());
        self.pings_out += 1;
        frame::put_ping(LAST_CALL, 0, self.out.end());
    }

    /// Whether the client was told the last request that is answered, and all of those are.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.last.is_some() && self.streams.len() == 0
    }

    /// Sends what waits, as far as windows and room go. To be called when `out` was written.
    pub fn send_waiting(&mut self) {
        // Each in the line gets its turn, and goes to its end with the rest. Over when nobody can go on.
        let mut blocked = 0;
        while self.out.len() < OUT_BYTES_DATA
            && blocked < self.streams.line.len()
            && let Some(id) = self.streams.line.pop_front()
        {
            let Some(stream) = self.streams.get(id) else { continue };
            stream.in_line = false;
            match self.send_one(id) {
                Turn::Sent => blocked = 0,
                Turn::NoConnectionWindow => blocked += 1,
                Turn::NoOwnWindow | Turn::Nothing => continue,
            }
            self.streams.stand_in_line(id);
        }
    }

    /// Sends what a stream has as long as nobody else waits for a turn.
    fn send_of(&mut self, id: u32) {
        let mut turn = Turn::Sent;
        while turn == Turn::Sent && self.streams.line.is_empty() && self.out.len() < OUT_BYTES_DATA {
            turn = self.send_one(id);
        }
        if matches!(turn, Turn::Sent | Turn::NoConnectionWindow) {
            self.streams.stand_in_line(id);
        }
    }

    /// Sends one frame of what a stream has.
    fn send_one(&mut self, id: u32) -> Turn {
        let Some(stream) = self.streams.get(id) else { return Turn::Nothing };
        match stream.waiting.pop_front() {
            None => Turn::Nothing,
            Some(Waiting::Trailers(fields)) => {
                self.put_trailers(id, fields.iter().map(|field| (&field.name[..], &field.value[..])));
                self.sent_all(id);
                Turn::Sent
            }
            Some(Waiting::Data(data, end)) => self.send_part(id, data, end),
        }
    }

    fn send_part(&mut self, id: u32, mut data: Bytes, end: bool) -> Turn {
        let (frame_bytes, window) = (self.send_frame_bytes, self.send_window);
        let Some(stream) = self.streams.get(id) else { return Turn::Nothing };
        let room = stream.send_window.min(window).max(0) as usize;
        let size = data.len().min(room).min(frame_bytes);
        if size == 0 && !data.is_empty() {
            let turn = if stream.send_window > 0 { Turn::NoConnectionWindow } else { Turn::NoOwnWindow };
            stream.waiting.push_front(Waiting::Data(data, end));
            return turn;
        }
        let part = data.split_to(size);
        let is_last = data.is_empty() && end;
        stream.send_window -= size as i64;
        self.waits.sent(stream, size);
        if !data.is_empty() {
            stream.waiting.push_front(Waiting::Data(data, end));
        }
        self.send_window -= size as i64;
        let flags = if is_last { frame::END_STREAM } else { 0 };
        frame::put_head(size, frame::DATA, flags, id, self.out.end());
        self.out.end().put_slice(&part);
        if is_last {
            self.sent_all(id);
        }
        Turn::Sent
    }

    /// The answer is sent. A client that has not finished its request is told not to bother.
    fn sent_all(&mut self, id: u32) {
        self.settings_in = 0;
        if self.forget(id).is_some_and(|stream| stream.receiving) {
            self.put_reset(id, ErrorCode::NoError);
        }
    }

    fn put_trailers<'a>(&mut self, stream: u32, fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) {
        let at = self.begin_head();
        self.encoder.begin(self.out.end());
        for (name, value) in fields {
            self.encoder.field(name, value, self.out.end());
        }
        self.end_head(at, stream, true);
    }

    /// Leaves room for the head of a frame whose length is not known yet.
    fn begin_head(&mut self) -> usize {
        self.out.end().put_slice(&[0; HEAD_BYTES]);
        self.out.len()
    }

    /// Writes that head; what does not fit one frame goes into more.
    fn end_head(&mut self, at: usize, stream: u32, end: bool) {
        let flags = if end { frame::END_STREAM } else { 0 };
        let length = self.out.len() - at;
        if length <= self.send_frame_bytes {
            let head = frame::head(length, frame::HEADERS, flags | frame::END_HEADERS, stream);
            self.out.end()[at - HEAD_BYTES..at].copy_from_slice(&head);
            return;
        }
        let block = self.out.end().split_off(at);
        self.out.end().truncate(at - HEAD_BYTES);
        let parts = block.chunks(self.send_frame_bytes);
        let last = parts.len() - 1;
        for (number, part) in parts.enumerate() {
            let (kind, flags) = if number == 0 { (frame::HEADERS, flags) } else { (frame::CONTINUATION, 0) };
            let flags = if number == last { flags | frame::END_HEADERS } else { flags };
            frame::put_head(part.len(), kind, flags, stream, self.out.end());
            self.out.end().put_slice(part);
        }
    }
}
