//! The client's half of gRPC over HTTP/2, as bytes in and out: no sockets, no clock.
//!
//! It does what a real client does on the wire (windows, settings, pings, header tables) and reads of an answer only
//! what says how the call went: frames' heads, the message, `grpc-status`. Calls that the server's limits do not let out
//! yet wait here. A server that breaks the protocol ends the connection with a [`Broken`] that says how.
//!
//! Not here: what messages mean (`etcd_messages`), sockets (`lines`).

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

use crate::hpack::{self, RequestHeaders};
use crate::lines::{Answer, Broken, Status, Step, Tag};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD: usize = 9;
/// What a message starts with: whether it is compressed, and its length.
const MESSAGE_HEAD: usize = 5;
/// The largest window there is: answers are never throttled, so that the server is measured and not the window.
const WINDOW_MAX: u32 = (1 << 31) - 1;
/// A window is filled up again when this much of it is used.
const WINDOW_STEP: u32 = 1 << 30;
/// The largest frame we take.
const FRAME_BYTES_MAX: usize = 1 << 18;
/// The largest answer we take.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// The longest header block we take.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// What both sides start with (RFC 9113, 6.5.2).
const WINDOW_AT_FIRST: i64 = 65_535;
const FRAME_BYTES_AT_FIRST: usize = 16_384;
/// Calls that may wait for the server to allow them.
const HELD_MAX: usize = 1 << 20;

mod kind {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RST_STREAM: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PUSH_PROMISE: u8 = 5;
    pub(super) const PING: u8 = 6;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const WINDOW_UPDATE: u8 = 8;
    pub(super) const CONTINUATION: u8 = 9;
}

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// gRPC's codes that are given here, not by a server.
const UNKNOWN: u32 = 2;
const UNAVAILABLE: u32 = 14;
const CANCELLED_ERROR: u32 = 8;

/// A number that names a call on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId(u32);

struct Stream {
    tag: Tag,
    /// The beginning of a message whose end has not come.
    partial: Vec<u8>,
    /// Bytes since its window was filled up.
    received: u32,
}

/// Message bytes that the server's windows do not let out yet.
struct Unsent {
    stream: u32,
    rest: Vec<u8>,
    window: i64,
    ends: bool,
}

/// A call that waits for another to end, because the server limits their number.
struct Held {
    tag: Tag,
    path: &'static str,
    message: Vec<u8>,
}

/// One connection.
pub(crate) struct Connection {
    headers: RequestHeaders,
    streams: HashMap<u32, Stream>,
    next_stream: u32,
    /// The server has said its settings: calls may begin.
    settled: bool,
    send_window: i64,
    stream_window: i64,
    frame_bytes: usize,
    streams_max: usize,
    received: u32,
    unsent: VecDeque<Unsent>,
    held: VecDeque<Held>,
    /// What came out of a frame beside its first part.
    ready: VecDeque<(Tag, Answer<'static>)>,
    /// A header block that goes on in the next frame: stream, whether it ends the stream, bytes.
    continued: Option<(u32, bool, Vec<u8>)>,
    /// Blocks that were found good; servers send the same bytes again and again.
    good_headers: Vec<u8>,
    good_trailers: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(headers: RequestHeaders, out: &mut Vec<u8>) -> Connection {
        out.extend_from_slice(PREFACE);
        let settings: [(u16, u32); 4] = [(1, 0), (2, 0), (4, WINDOW_MAX), (5, FRAME_BYTES_MAX as u32)];
        head(out, settings.len() * 6, kind::SETTINGS, 0, 0);
        for (name, value) in settings {
            out.extend_from_slice(&name.to_be_bytes());
            out.extend_from_slice(&value.to_be_bytes());
        }
        window_update(out, 0, WINDOW_MAX - WINDOW_AT_FIRST as u32);
        Connection {
            headers,
            streams: HashMap::new(),
            next_stream: 1,
            settled: false,
            send_window: WINDOW_AT_FIRST,
            stream_window: WINDOW_AT_FIRST,
            frame_bytes: FRAME_BYTES_AT_FIRST,
            streams_max: usize::MAX,
            received: 0,
            unsent: VecDeque::new(),
            held: VecDeque::new(),
            ready: VecDeque::new(),
            continued: None,
            good_headers: Vec::new(),
            good_trailers: Vec::new(),
        }
    }

    /// The calls without an end.
    pub(crate) fn unanswered(&self) -> Vec<Tag> {
        self.streams.values().map(|stream| stream.tag).chain(self.held.iter().map(|held| held.tag)).collect()
    }

    /// Asks once: one message, one answer.
    pub(crate) fn call(&mut self, out: &mut Vec<u8>, tag: Tag, path: &'static str, message: impl FnOnce(&mut Vec<u8>)) {
        if self.streams.len() >= self.streams_max || !self.held.is_empty() {
            let mut held = Held { tag, path, message: Vec::new() };
            message(&mut held.message);
            if self.held.len() < HELD_MAX {
                self.held.push_back(held);
            } else {
                let status = Status { code: CANCELLED_ERROR, message: "too many calls wait here".to_string() };
                self.ready.push_back((tag, Answer::End(status)));
            }
            return;
        }
        let stream = self.begin(out, tag, path);
        self.message(out, stream, true, message);
    }

    /// Begins a call of many messages; none is sent yet.
    pub(crate) fn open(&mut self, out: &mut Vec<u8>, tag: Tag, path: &'static str) -> StreamId {
        StreamId(self.begin(out, tag, path))
    }

    /// Sends one more message of a call that was opened.
    pub(crate) fn push(&mut self, out: &mut Vec<u8>, stream: StreamId, message: impl FnOnce(&mut Vec<u8>)) {
        self.message(out, stream.0, false, message);
    }

    /// Gives a call up; nothing more is heard of it.
    pub(crate) fn cancel(&mut self, out: &mut Vec<u8>, tag: Tag) {
        let found = self.streams.iter().find(|(_, stream)| stream.tag == tag).map(|(id, _)| *id);
        if let Some(stream) = found {
            self.streams.remove(&stream);
            self.unsent.retain(|unsent| unsent.stream != stream);
            head(out, 4, kind::RST_STREAM, 0, stream);
            out.extend_from_slice(&CANCELLED_ERROR.to_be_bytes());
        }
        self.held.retain(|held| held.tag != tag);
    }

    fn begin(&mut self, out: &mut Vec<u8>, tag: Tag, path: &'static str) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 2;
        self.streams.insert(stream, Stream { tag, partial: Vec::new(), received: 0 });
        let start = out.len();
        head(out, 0, kind::HEADERS, END_HEADERS, stream);
        self.headers.write(path, out);
        let length = out.len() - start - FRAME_HEAD;
        set_length(&mut out[start..], length);
        stream
    }

    fn message(&mut self, out: &mut Vec<u8>, stream: u32, ends: bool, message: impl FnOnce(&mut Vec<u8>)) {
        let start = out.len();
        head(out, 0, kind::DATA, if ends { END_STREAM } else { 0 }, stream);
        out.extend_from_slice(&[0; MESSAGE_HEAD]);
        message(out);
        let length = out.len() - start - FRAME_HEAD;
        let body = (length - MESSAGE_HEAD) as u32;
        out[start + FRAME_HEAD + 1..start + FRAME_HEAD + MESSAGE_HEAD].copy_from_slice(&body.to_be_bytes());
        let room = self.send_window.min(self.stream_window);
        if self.unsent.is_empty() && length <= self.frame_bytes && length as i64 <= room {
            self.send_window -= length as i64;
            set_length(&mut out[start..], length);
            return;
        }
        let rest = out[start + FRAME_HEAD..].to_vec();
        out.truncate(start);
        self.unsent.push_back(Unsent { stream, rest, window: self.stream_window, ends });
        self.send_unsent(out);
    }

    fn send_unsent(&mut self, out: &mut Vec<u8>) {
        for unsent in &mut self.unsent {
            let mut sent = 0;
            while sent < unsent.rest.len() {
                let room = usize::try_from(self.send_window.min(unsent.window)).unwrap_or(0);
                let piece = (unsent.rest.len() - sent).min(room).min(self.frame_bytes);
                if piece == 0 {
                    break;
                }
                let last = unsent.ends && sent + piece == unsent.rest.len();
                head(out, piece, kind::DATA, if last { END_STREAM } else { 0 }, unsent.stream);
                out.extend_from_slice(&unsent.rest[sent..sent + piece]);
                sent += piece;
                self.send_window -= piece as i64;
                unsent.window -= piece as i64;
            }
            unsent.rest.drain(..sent);
        }
        self.unsent.retain(|unsent| !unsent.rest.is_empty());
    }

    fn send_held(&mut self, out: &mut Vec<u8>) {
        while self.streams.len() < self.streams_max
            && let Some(held) = self.held.pop_front()
        {
            let stream = self.begin(out, held.tag, held.path);
            self.message(out, stream, true, |out| out.extend_from_slice(&held.message));
        }
    }

    /// Takes one frame from the front of `input`, if a whole one is there.
    pub(crate) fn step<'a>(&mut self, input: &'a [u8], out: &mut Vec<u8>) -> Result<Step<'a>, Broken> {
        if let Some((tag, answer)) = self.ready.pop_front() {
            return Ok(Step::Answered { consumed: 0, tag, answer });
        }
        let Some((frame, rest)) = input.split_at_checked(FRAME_HEAD) else { return Ok(Step::Incomplete) };
        let length = usize::from(frame[0]) << 16 | usize::from(frame[1]) << 8 | usize::from(frame[2]);
        if length > FRAME_BYTES_MAX {
            return Err(Broken(format!("a frame of {length} bytes, {FRAME_BYTES_MAX} are allowed")));
        }
        let Some(payload) = rest.get(..length) else { return Ok(Step::Incomplete) };
        let (kind, flags) = (frame[3], frame[4]);
        let stream = u32::from_be_bytes([frame[5] & 0x7f, frame[6], frame[7], frame[8]]);
        if self.continued.is_some() && kind != kind::CONTINUATION {
            return Err(Broken("a header block was interrupted".to_string()));
        }
        let consumed = FRAME_HEAD + length;
        let answered = match kind {
            kind::DATA => self.data(payload, flags, stream, out)?,
            kind::HEADERS => self.headers(payload, flags, stream, out)?,
            kind::CONTINUATION => self.continuation(payload, flags, stream, out)?,
            kind::SETTINGS => return self.settings(payload, flags, consumed, out),
            kind::WINDOW_UPDATE => self.window(payload, stream, out)?,
            kind::PING if flags & ACK == 0 => {
                head(out, payload.len(), kind::PING, ACK, 0);
                out.extend_from_slice(payload);
                None
            }
            kind::RST_STREAM => {
                let error = <[u8; 4]>::try_from(payload).map_or(0, u32::from_be_bytes);
                let text = format!("the server gave the call up (HTTP/2 error {error})");
                self.end(stream, Status { code: UNAVAILABLE, message: text }, out)
            }
            kind::GOAWAY => return Err(Broken("the server ended the connection".to_string())),
            kind::PUSH_PROMISE => return Err(Broken("a pushed answer, which we switched off".to_string())),
            _ => None,
        };
        Ok(match answered {
            Some((tag, answer)) => Step::Answered { consumed, tag, answer },
            None => Step::Taken { consumed },
        })
    }

    fn settings<'a>(
        &mut self,
        payload: &[u8],
        flags: u8,
        consumed: usize,
        out: &mut Vec<u8>,
    ) -> Result<Step<'a>, Broken> {
        if flags & ACK != 0 {
            return Ok(Step::Taken { consumed });
        }
        for setting in payload.chunks_exact(6) {
            let name = u16::from_be_bytes([setting[0], setting[1]]);
            let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
            match name {
                1 => self.headers.server_table(value),
                3 => self.streams_max = value as usize,
                4 => {
                    let change = i64::from(value) - self.stream_window;
                    self.stream_window += change;
                    self.unsent.iter_mut().for_each(|unsent| unsent.window += change);
                }
                5 => self.frame_bytes = (value as usize).clamp(FRAME_BYTES_AT_FIRST, 1 << 24),
                _ => {}
            }
        }
        head(out, 0, kind::SETTINGS, ACK, 0);
        self.send_unsent(out);
        self.send_held(out);
        let first = !std::mem::replace(&mut self.settled, true);
        Ok(if first { Step::Opened { consumed } } else { Step::Taken { consumed } })
    }

    fn window<'a>(
        &mut self,
        payload: &[u8],
        stream: u32,
        out: &mut Vec<u8>,
    ) -> Result<Option<(Tag, Answer<'a>)>, Broken> {
        let step = <[u8; 4]>::try_from(payload).map_err(|_| Broken("a window update of a wrong length".to_string()))?;
        let step = i64::from(u32::from_be_bytes(step) & WINDOW_MAX);
        if stream == 0 {
            self.send_window += step;
            if self.send_window > i64::from(WINDOW_MAX) {
                return Err(Broken("a window above its largest size".to_string()));
            }
        } else if let Some(unsent) = self.unsent.iter_mut().find(|unsent| unsent.stream == stream) {
            unsent.window += step;
        }
        if !self.unsent.is_empty() {
            self.send_unsent(out);
        }
        Ok(None)
    }

    fn data<'a>(
        &mut self,
        payload: &'a [u8],
        flags: u8,
        id: u32,
        out: &mut Vec<u8>,
    ) -> Result<Option<(Tag, Answer<'a>)>, Broken> {
        self.received += payload.len() as u32;
        if self.received >= WINDOW_STEP {
            window_update(out, 0, std::mem::take(&mut self.received));
        }
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(None) };
        stream.received += payload.len() as u32;
        if stream.received >= WINDOW_STEP {
            window_update(out, id, std::mem::take(&mut stream.received));
        }
        let payload = unpadded(payload, flags)?;
        let tag = stream.tag;
        if stream.partial.is_empty() && flags & END_STREAM == 0 && whole(payload)? == Some(payload.len()) {
            return Ok(Some((tag, Answer::Message(Cow::Borrowed(&payload[MESSAGE_HEAD..])))));
        }
        stream.partial.extend_from_slice(payload);
        let mut at = 0;
        while let Some(length) = whole(&stream.partial[at..])? {
            let message = stream.partial[at + MESSAGE_HEAD..at + length].to_vec();
            self.ready.push_back((tag, Answer::Message(Cow::Owned(message))));
            at += length;
        }
        stream.partial.drain(..at);
        if flags & END_STREAM != 0 {
            let status = Status { code: UNKNOWN, message: "the answer ended without a status".to_string() };
            if let Some(end) = self.end(id, status, out) {
                self.ready.push_back(end);
            }
        }
        Ok(self.ready.pop_front())
    }

    fn headers<'a>(
        &mut self,
        payload: &[u8],
        flags: u8,
        stream: u32,
        out: &mut Vec<u8>,
    ) -> Result<Option<(Tag, Answer<'a>)>, Broken> {
        let mut block = unpadded(payload, flags)?;
        if flags & PRIORITY != 0 {
            block = block.get(5..).ok_or_else(|| Broken("a priority that is cut".to_string()))?;
        }
        if flags & END_HEADERS == 0 {
            self.continued = Some((stream, flags & END_STREAM != 0, block.to_vec()));
            return Ok(None);
        }
        self.block(stream, flags & END_STREAM != 0, block, out)
    }

    fn continuation<'a>(
        &mut self,
        payload: &[u8],
        flags: u8,
        stream: u32,
        out: &mut Vec<u8>,
    ) -> Result<Option<(Tag, Answer<'a>)>, Broken> {
        let Some((of, ends, mut block)) = self.continued.take().filter(|(of, _, _)| *of == stream) else {
            return Err(Broken("a header block goes on that never began".to_string()));
        };
        if block.len() + payload.len() > HEADER_BYTES_MAX {
            return Err(Broken("a header block without end".to_string()));
        }
        block.extend_from_slice(payload);
        if flags & END_HEADERS == 0 {
            self.continued = Some((of, ends, block));
            return Ok(None);
        }
        self.block(of, ends, &block, out)
    }

    /// A whole header block: the beginning of an answer, or its end.
    fn block<'a>(
        &mut self,
        stream: u32,
        ends: bool,
        block: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<(Tag, Answer<'a>)>, Broken> {
        let broken = |what: &str| Broken(format!("a header block cannot be read: {what}"));
        if !ends {
            if block != self.good_headers {
                match hpack::decode(block).map_err(broken)?.http_status {
                    Some(200) => self.good_headers = block.to_vec(),
                    status => return Ok(self.end(stream, not_grpc(status), out)),
                }
            }
            return Ok(None);
        }
        if block == self.good_trailers {
            return Ok(self.end(stream, Status::default(), out));
        }
        let headers = hpack::decode(block).map_err(broken)?;
        let status = match headers.grpc_status {
            Some(code) => Status { code, message: headers.message },
            None => not_grpc(headers.http_status),
        };
        if status.code == 0 {
            self.good_trailers = block.to_vec();
        }
        Ok(self.end(stream, status, out))
    }

    fn end<'a>(&mut self, stream: u32, status: Status, out: &mut Vec<u8>) -> Option<(Tag, Answer<'a>)> {
        let ended = self.streams.remove(&stream)?;
        if !self.unsent.is_empty() {
            self.unsent.retain(|unsent| unsent.stream != stream);
        }
        if !self.held.is_empty() {
            self.send_held(out);
        }
        Some((ended.tag, Answer::End(status)))
    }
}

fn not_grpc(http_status: Option<u32>) -> Status {
    let said = http_status.map_or_else(|| "no status".to_string(), |status| format!("HTTP status {status}"));
    Status { code: UNKNOWN, message: format!("an answer that is not gRPC: {said}") }
}

/// The length of the message at the front, head included, if all of it is there.
fn whole(bytes: &[u8]) -> Result<Option<usize>, Broken> {
    let Some(head) = bytes.first_chunk::<MESSAGE_HEAD>() else { return Ok(None) };
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if head[0] != 0 {
        return Err(Broken("a compressed message, which we did not ask for".to_string()));
    }
    if length > MESSAGE_BYTES_MAX {
        return Err(Broken(format!("a message of {length} bytes")));
    }
    Ok((bytes.len() >= MESSAGE_HEAD + length).then_some(MESSAGE_HEAD + length))
}

fn unpadded(payload: &[u8], flags: u8) -> Result<&[u8], Broken> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let cut = || Broken("a frame with more padding than bytes".to_string());
    let (&padding, rest) = payload.split_first().ok_or_else(cut)?;
    rest.len().checked_sub(padding.into()).map(|length| &rest[..length]).ok_or_else(cut)
}

fn head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    set_length(&mut out[start..], length);
}

fn set_length(frame: &mut [u8], length: usize) {
    frame[..3].copy_from_slice(&(length as u32).to_be_bytes()[1..]);
}

fn window_update(out: &mut Vec<u8>, stream: u32, step: u32) {
    head(out, 4, kind::WINDOW_UPDATE, 0, stream);
    out.extend_from_slice(&step.to_be_bytes());
}

#[cfg(test)]
#[path = "grpc_tests.rs"]
mod tests;
