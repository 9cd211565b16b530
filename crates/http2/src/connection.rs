//! One connection: bytes in, events and bytes out. Heads are in `heads`, what is sent in `sending`, and how much of it
//! may wait in `waiting`.

mod heads;
mod sending;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};

use crate::frame::{self, ErrorCode, FRAME_BYTES, HEAD_BYTES, Head, PREFACE, WINDOW_FIRST, WINDOW_MAX};
use crate::hpack::{Decoder, Encoder};
use crate::out::Out;
use crate::request_head::RequestHead;
use crate::streams::{Stream, Streams};
use heads::{Known, Unfinished};
pub(crate) use waiting::Room;
use waiting::Waits;

/// Bytes that wait to be written, from which on nothing more is read from the client.
const OUT_BYTES_HIGH: usize = 256 * 1024;
/// Bytes that wait to be written, from which on no more data is added to them. Well below the other limit: a client that
/// downloads as fast as it can is still listened to.
const OUT_BYTES_DATA: usize = 128 * 1024;
/// Streams that wait for their turn to send, from which on no more answers are made.
const LINE_MAX: usize = 256;
/// The largest frame of data that is sent, whatever the client takes: others get their turn after it.
const SEND_FRAME_BYTES_MAX: usize = 64 * 1024;
/// Streams that we ended which are remembered: what their client sent before it knew is skipped.
const RESETS_KEPT: usize = 128;
/// Settings that are taken in between two answers. Clients send them once, and a few more when they learn how fast a
/// line is; each of them moves the windows of all streams.
const SETTINGS_BETWEEN_ANSWERS_MAX: u32 = 100;
/// What the ping says that asks whether everything before it was seen.
const LAST_CALL: [u8; 8] = *b"lastcall";

/// What a client may take of us.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests at a time.
    pub streams: u32,
    /// Bytes of a request on their way.
    pub stream_window: u32,
    /// Bytes of all requests on their way.
    pub connection_window: u32,
    /// Bytes of the head of a request.
    pub head_bytes: u32,
}

/// Something that came from the client.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A new request.
    Request {
        /// Its number.
        stream: u32,
        /// What it says of itself.
        head: Arc<RequestHead>,
        /// Whether that is all of it.
        end: bool,
    },
    /// More of a request.
    Data {
        /// Of which.
        stream: u32,
        /// What; to be given back by [`Connection::release`] when there is room for more.
        data: Bytes,
        /// Whether that was the last of it.
        end: bool,
    },
    /// Nobody waits for an answer any more, or it was refused; nothing can be sent on it.
    Gone {
        /// Which.
        stream: u32,
    },
}

/// The connection cannot go on: send what is there, and close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Fatal {
    /// In HTTP/2's words.
    pub code: ErrorCode,
    /// In ours.
    pub why: &'static str,
}

const fn fatal(code: ErrorCode, why: &'static str) -> Fatal {
    Fatal { code, why }
}

type Received = Result<(), Fatal>;

const WINDOW_TOO_LARGE: Fatal = fatal(ErrorCode::FlowControl, "a window is too large");

/// One connection. See the crate's documentation.
#[derive(Debug)]
pub struct Connection {
    limits: Limits,
    out: Out,
    greeted: bool,
    settled: bool,
    decoder: Decoder,
    encoder: Encoder,
    unfinished: Option<Unfinished>,
    known: VecDeque<Known>,
    streams: Streams,
    /// The highest number of a request so far.
    highest: u32,
    /// Requests above this are not looked at: the client was told to go.
    last: Option<u32>,
    receive_window: i64,
    released: i64,
    send_window: i64,
    send_window_first: i64,
    send_frame_bytes: usize,
    /// Answers to pings of ours that are still missing.
    pings_out: u32,
    /// The client was told to go, and asked whether it heard that.
    leaving: bool,
    /// Settings that came since the last answer.
    settings_in: u32,
    /// Bytes of requests that nobody has read yet.
    unread: i64,
    waits: Waits,
    /// The streams that we ended last.
    resets: VecDeque<u32>,
}

impl Connection {
    /// A connection on which nothing was said yet.
    #[must_use]
    pub fn new(limits: Limits) -> Connection {
        let mut out = Out::default();
        let settings = [
            (frame::SETTING_STREAMS, limits.streams),
            (frame::SETTING_WINDOW, limits.stream_window),
            (frame::SETTING_LIST_BYTES, limits.head_bytes),
        ];
        frame::put_settings(&settings, out.end());
        let more = i64::from(limits.connection_window) - WINDOW_FIRST;
        if more > 0 {
            frame::put_window(0, more as u32, out.end());
        }
        Connection {
            out,
            greeted: false,
            settled: false,
            decoder: Decoder::new(limits.head_bytes as usize),
            encoder: Encoder::default(),
            unfinished: None,
            known: VecDeque::new(),
            streams: Streams::default(),
            highest: 0,
            last: None,
            receive_window: WINDOW_FIRST + more.max(0),
            released: 0,
            send_window: WINDOW_FIRST,
            send_window_first: WINDOW_FIRST,
            send_frame_bytes: FRAME_BYTES,
            pings_out: 0,
            leaving: false,
            settings_in: 0,
            unread: 0,
            waits: Waits::default(),
            resets: VecDeque::new(),
            limits,
        }
    }

    /// Requests that are not over.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Whether a ping of ours was not answered yet.
    #[must_use]
    pub fn awaits_pong(&self) -> bool {
        self.pings_out > 0
    }

    /// Whether nothing should be read from the client now, since too much waits to be written to it.
    #[must_use]
    pub fn is_congested(&self) -> bool {
        self.out.len() >= OUT_BYTES_HIGH
    }

    /// Takes in what came. Whole frames are taken off `input`; the rest stays until there is more. Stops early when
    /// too much waits to be written: call again when that is gone.
    pub fn receive(&mut self, input: &mut BytesMut, events: &mut Vec<Event>) -> Received {
        let received = self.receive_frames(input, events);
        if let Err(fatal) = received {
            frame::put_goaway(self.highest, fatal.code, fatal.why, self.out.end());
        }
        received
    }

    fn receive_frames(&mut self, input: &mut BytesMut, events: &mut Vec<Event>) -> Received {
        if !self.greeted {
            let length = input.len().min(PREFACE.len());
            if input[..length] != PREFACE[..length] {
                return Err(fatal(ErrorCode::Protocol, "this is not HTTP/2"));
            }
            if length < PREFACE.len() {
                return Ok(());
            }
            input.advance(PREFACE.len());
            self.greeted = true;
        }
        while !self.is_congested()
            && let Some(head) = input.first_chunk().map(Head::read)
        {
            if head.length > FRAME_BYTES {
                return Err(fatal(ErrorCode::FrameSize, "a frame is larger than 16384 bytes"));
            }
            if input.len() < HEAD_BYTES + head.length {
                input.reserve(HEAD_BYTES + head.length - input.len());
                break;
            }
            self.expect_kind(head)?;
            if head.kind == frame::DATA {
                input.advance(HEAD_BYTES);
                let payload = input.split_to(head.length).freeze();
                self.data(head, payload, events)?;
            } else {
                self.receive_frame(head, &input[HEAD_BYTES..HEAD_BYTES + head.length], events)?;
                input.advance(HEAD_BYTES + head.length);
            }
        }
        Ok(())
    }

    /// Whether a frame may come now.
    fn expect_kind(&self, head: Head) -> Received {
        if !self.settled && head.kind != frame::SETTINGS {
            return Err(fatal(ErrorCode::Protocol, "the first frame must be settings"));
        }
        if self.unfinished.is_some() && head.kind != frame::CONTINUATION {
            return Err(fatal(ErrorCode::Protocol, "the frames of a head must follow each other"));
        }
        Ok(())
    }

    /// Takes in a frame without data.
    fn receive_frame(&mut self, head: Head, payload: &[u8], events: &mut Vec<Event>) -> Received {
        match head.kind {
            frame::HEADERS => self.headers(head, payload, events),
            frame::PRIORITY => self.priority(head, payload),
            frame::RST_STREAM => self.reset_by_client(head, payload, events),
            frame::SETTINGS => self.settings(head, payload),
            frame::PUSH_PROMISE => Err(fatal(ErrorCode::Protocol, "a client cannot push")),
            frame::PING => self.ping(head, payload),
            frame::GOAWAY => connection_only(head),
            frame::WINDOW_UPDATE => self.window_update(head, payload, events),
            frame::CONTINUATION => self.continuation(head, payload, events),
            // What nobody knows is skipped.
            _ => Ok(()),
        }
    }

    fn data(&mut self, head: Head, payload: Bytes, events: &mut Vec<Event>) -> Received {
        self.expect_known(head.stream)?;
        let size = payload.len() as i64;
        if size > self.receive_window {
            return Err(fatal(ErrorCode::FlowControl, "more data than the connection's window allows"));
        }
        self.receive_window -= size;
        let rest = padding(head, &payload)?;
        let mut data = payload;
        data.truncate(rest.end);
        data.advance(rest.start);
        let (bytes, end) = (data.len() as i64, head.has(frame::END_STREAM));
        let Some(stream) = self.streams.get(head.stream).filter(|stream| stream.receiving) else {
            self.release_connection(size);
            return self.refuse(head.stream, ErrorCode::StreamClosed, events);
        };
        let refused = if size > stream.receive_window {
            Some(ErrorCode::FlowControl)
        } else if !stream.length_fits(bytes as u64, end) {
            Some(ErrorCode::Protocol)
        } else {
            None
        };
        if let Some(code) = refused {
            self.release_connection(size);
            return self.refuse(head.stream, code, events);
        }
        stream.receive_window -= size;
        // Padding is nobody's to give back.
        stream.released += size - bytes;
        stream.unread += bytes;
        stream.receiving = !end;
        self.unread += bytes;
        self.release_connection(size);
        events.push(Event::Data { stream: head.stream, data, end });
        Ok(())
    }

    fn priority(&mut self, head: Head, payload: &[u8]) -> Received {
        match payload.first_chunk::<4>() {
            _ if head.stream == 0 => Err(fatal(ErrorCode::Protocol, "a priority of nothing")),
            Some(depends) if payload.len() == 5 => {
                let [first, ..] = depends;
                let depends = u32::from_be_bytes([first & 0x7f, depends[1], depends[2], depends[3]]);
                if depends == head.stream {
                    return Err(fatal(ErrorCode::Protocol, "a request depends on itself"));
                }
                Ok(())
            }
            _ => Err(fatal(ErrorCode::FrameSize, "a priority has five bytes")),
        }
    }

    fn reset_by_client(&mut self, head: Head, payload: &[u8], events: &mut Vec<Event>) -> Received {
        self.expect_known(head.stream)?;
        if payload.len() != 4 {
            return Err(fatal(ErrorCode::FrameSize, "a reset has four bytes"));
        }
        if self.forget(head.stream).is_some() {
            events.push(Event::Gone { stream: head.stream });
        }
        Ok(())
    }

    fn settings(&mut self, head: Head, payload: &[u8]) -> Received {
        connection_only(head)?;
        if head.has(frame::ACK) {
            let empty = payload.is_empty();
            return if empty { Ok(()) } else { Err(fatal(ErrorCode::FrameSize, "settings are acknowledged bare")) };
        }
        if !payload.len().is_multiple_of(6) {
            return Err(fatal(ErrorCode::FrameSize, "settings have six bytes each"));
        }
        self.settings_in += 1;
        if self.settings_in > SETTINGS_BETWEEN_ANSWERS_MAX {
            return Err(fatal(ErrorCode::EnhanceYourCalm, "settings change all the time"));
        }
        let mut window = None;
        for setting in payload.chunks_exact(6) {
            let name = u16::from_be_bytes([setting[0], setting[1]]);
            let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
            self.setting(name, value, &mut window)?;
        }
        if let Some(window) = window {
            // The last one of them: each moves the windows of all streams.
            self.set_send_window(window)?;
        }
        self.settled = true;
        frame::put_head(0, frame::SETTINGS, frame::ACK, 0, self.out.end());
        self.send_waiting();
        Ok(())
    }

    fn setting(&mut self, name: u16, value: u32, window: &mut Option<i64>) -> Received {
        match name {
            frame::SETTING_TABLE_BYTES => self.encoder.set_table_bytes(value as usize),
            frame::SETTING_PUSH if value > 1 => return Err(fatal(ErrorCode::Protocol, "pushes are on or off")),
            frame::SETTING_WINDOW if i64::from(value) > WINDOW_MAX => return Err(WINDOW_TOO_LARGE),
            frame::SETTING_WINDOW => *window = Some(i64::from(value)),
            frame::SETTING_FRAME_BYTES => {
                if !(FRAME_BYTES as u32..=frame::FRAME_BYTES_MAX).contains(&value) {
                    return Err(fatal(ErrorCode::Protocol, "a largest frame that is not allowed"));
                }
                self.send_frame_bytes = (value as usize).min(SEND_FRAME_BYTES_MAX);
            }
            _ => {}
        }
        Ok(())
    }

    /// A window that all streams begin with; it moves the windows of those there are.
    fn set_send_window(&mut self, window: i64) -> Received {
        let more = window - self.send_window_first;
        self.send_window_first = window;
        let mut moved = Vec::new();
        for (id, stream) in self.streams.values_mut() {
            stream.send_window += more;
            if stream.send_window > WINDOW_MAX {
                return Err(WINDOW_TOO_LARGE);
            }
            moved.push(*id);
        }
        moved.into_iter().for_each(|id| self.streams.stand_in_line(id));
        Ok(())
    }

    fn ping(&mut self, head: Head, payload: &[u8]) -> Received {
        connection_only(head)?;
        let Ok(payload) = <[u8; 8]>::try_from(payload) else {
            return Err(fatal(ErrorCode::FrameSize, "a ping has eight bytes"));
        };
        if !head.has(frame::ACK) {
            frame::put_ping(payload, frame::ACK, self.out.end());
            return Ok(());
        }
        self.pings_out = self.pings_out.saturating_sub(1);
        if payload == LAST_CALL && std::mem::take(&mut self.leaving) {
            // Everything the client sent before it knew is here by now.
            self.last = Some(self.highest);
            frame::put_goaway(self.highest, ErrorCode::NoError, "", self.out.end());
        }
        Ok(())
    }

    fn window_update(&mut self, head: Head, payload: &[u8], events: &mut Vec<Event>) -> Received {
        let Ok(more) = <[u8; 4]>::try_from(payload) else {
            return Err(fatal(ErrorCode::FrameSize, "a window has four bytes"));
        };
        let more = i64::from(u32::from_be_bytes(more) & 0x7fff_ffff);
        if head.stream == 0 {
            self.send_window += more;
            if more == 0 {
                return Err(fatal(ErrorCode::Protocol, "a window that does not grow"));
            }
            if self.send_window > WINDOW_MAX {
                return Err(WINDOW_TOO_LARGE);
            }
        } else {
            self.expect_known(head.stream)?;
            let Some(stream) = self.streams.get(head.stream) else { return Ok(()) };
            stream.send_window += more;
            if more == 0 {
                return self.refuse(head.stream, ErrorCode::Protocol, events);
            }
            if stream.send_window > WINDOW_MAX {
                return self.refuse(head.stream, ErrorCode::FlowControl, events);
            }
            self.streams.stand_in_line(head.stream);
        }
        self.send_waiting();
        Ok(())
    }

    /// Whether a stream is or was; one that never was has no frames but a head.
    fn expect_known(&self, stream: u32) -> Received {
        if stream == 0 || stream > self.highest || stream.is_multiple_of(2) {
            return Err(fatal(ErrorCode::Protocol, "a frame of a request that never was"));
        }
        Ok(())
    }

    /// Ends a stream that does what it must not.
    fn refuse(&mut self, stream: u32, code: ErrorCode, events: &mut Vec<Event>) -> Received {
        if self.forget(stream).is_some() {
            events.push(Event::Gone { stream });
        } else if self.resets.contains(&stream) {
            // Sent before it knew.
            return Ok(());
        }
        self.put_reset(stream, code);
        Ok(())
    }

    fn put_reset(&mut self, stream: u32, code: ErrorCode) {
        self.resets.truncate(RESETS_KEPT - 1);
        self.resets.push_front(stream);
        frame::put_reset(stream, code, self.out.end());
    }

    /// A stream is over; what was not read of it never will be.
    fn forget(&mut self, stream: u32) -> Option<Stream> {
        let mut forgotten = self.streams.remove(stream)?;
        self.unread -= forgotten.unread;
        self.waits.forget(&mut forgotten);
        self.release_connection(0);
        Some(forgotten)
    }
}

fn connection_only(head: Head) -> Received {
    if head.stream == 0 { Ok(()) } else { Err(fatal(ErrorCode::Protocol, "a frame of no request names one")) }
}

/// Where in the payload of a frame is what does not only fill it up.
fn padding(head: Head, payload: &[u8]) -> Result<Range<usize>, Fatal> {
    if !head.has(frame::PADDED) {
        return Ok(0..payload.len());
    }
    let end = payload.first().and_then(|padding| payload.len().checked_sub(usize::from(*padding)));
    let end = end.filter(|end| *end > 0);
    end.map(|end| 1..end).ok_or(fatal(ErrorCode::Protocol, "a frame is padded beyond its end"))
}
