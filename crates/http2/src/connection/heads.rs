//! Heads of requests and what ends their bodies, in one frame or many.
//!
//! Clients send the same few heads again and again. Those are remembered as bytes, and read once: what they say only
//! changes with the table they lean on.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::{Connection, Event, Fatal, Received, fatal, padding};
use crate::frame::{self, ErrorCode, Head};
use crate::request_head::{RequestHead, check_trailers};
use crate::streams::Stream;

/// Heads that are remembered because they come again and again.
const HEADS_KEPT: usize = 8;
/// Frames that the head of a request may be cut into.
const HEAD_FRAMES_MAX: u32 = 64;

/// A head that came in several frames, so far.
#[derive(Debug)]
pub(super) struct Unfinished {
    stream: u32,
    end: bool,
    block: BytesMut,
    frames: u32,
}

/// A head as it came, and what it says while the table is as it was.
#[derive(Debug)]
pub(super) struct Known {
    block: Bytes,
    table_changes: u64,
    head: Arc<RequestHead>,
}

impl Connection {
    pub(super) fn headers(&mut self, head: Head, payload: &[u8], events: &mut Vec<Event>) -> Received {
        if head.stream.is_multiple_of(2) {
            return Err(fatal(ErrorCode::Protocol, "requests have odd numbers"));
        }
        let mut block = &payload[padding(head, payload)?];
        if head.has(frame::WITH_PRIORITY) {
            if block.len() < 5 {
                return Err(fatal(ErrorCode::FrameSize, "a head is too short for its priority"));
            }
            let depends = u32::from_be_bytes([block[0] & 0x7f, block[1], block[2], block[3]]);
            block = &block[5..];
            if depends == head.stream {
                return Err(fatal(ErrorCode::Protocol, "a request depends on itself"));
            }
        }
        let end = head.has(frame::END_STREAM);
        if head.has(frame::END_HEADERS) {
            return self.head(head.stream, end, block, events);
        }
        self.unfinished = Some(Unfinished { stream: head.stream, end, block: BytesMut::from(block), frames: 1 });
        Ok(())
    }

    pub(super) fn continuation(&mut self, head: Head, payload: &[u8], events: &mut Vec<Event>) -> Received {
        let Some(mut unfinished) = self.unfinished.take().filter(|unfinished| unfinished.stream == head.stream) else {
            return Err(fatal(ErrorCode::Protocol, "a head is continued that did not begin"));
        };
        unfinished.block.extend_from_slice(payload);
        unfinished.frames += 1;
        if unfinished.block.len() > self.limits.head_bytes as usize || unfinished.frames > HEAD_FRAMES_MAX {
            return Err(fatal(ErrorCode::EnhanceYourCalm, "a head is too large"));
        }
        if head.has(frame::END_HEADERS) {
            return self.head(unfinished.stream, unfinished.end, &unfinished.block, events);
        }
        self.unfinished = Some(unfinished);
        Ok(())
    }

    /// A head is complete: a request begins, or the body of one ends with trailers.
    fn head(&mut self, id: u32, end: bool, block: &[u8], events: &mut Vec<Event>) -> Received {
        if id <= self.highest {
            return self.trailers(id, end, block, events);
        }
        let head = self.decode_head(block)?;
        self.highest = id;
        if self.last.is_some_and(|last| id > last) {
            // Told to go elsewhere, the client will.
            return Ok(());
        }
        let head = match head {
            Ok(head) => head,
            Err(code) => return self.refuse(id, code, events),
        };
        if self.streams.len() >= self.limits.streams as usize {
            return self.refuse(id, ErrorCode::RefusedStream, events);
        }
        if end && head.content_length.is_some_and(|length| length > 0) {
            return self.refuse(id, ErrorCode::Protocol, events);
        }
        self.streams.add(id, self.new_stream(!end, head.content_length));
        events.push(Event::Request { stream: id, head, end });
        Ok(())
    }

    fn new_stream(&self, receiving: bool, length_left: Option<u64>) -> Stream {
        Stream {
            receiving,
            length_left,
            unread: 0,
            receive_window: i64::from(self.limits.stream_window),
            released: 0,
            send_window: self.send_window_first,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            whole: false,
            moved: 0,
            in_line: false,
        }
    }

    fn decode_head(&mut self, block: &[u8]) -> Result<Result<Arc<RequestHead>, ErrorCode>, Fatal> {
        let changes = self.decoder.table_changes();
        if let Some(known) = self.known.iter().find(|known| known.table_changes == changes && known.block == block) {
            return Ok(Ok(Arc::clone(&known.head)));
        }
        let fields = self.decoder.decode(block).map_err(|_| fatal(ErrorCode::Compression, "a head cannot be read"))?;
        let Some(fields) = fields else { return Ok(Err(ErrorCode::EnhanceYourCalm)) };
        let Ok(head) = RequestHead::of(fields) else { return Ok(Err(ErrorCode::Protocol)) };
        let head = Arc::new(head);
        if self.decoder.table_changes() == changes {
            self.known.truncate(HEADS_KEPT - 1);
            let block = Bytes::copy_from_slice(block);
            self.known.push_front(Known { block, table_changes: changes, head: Arc::clone(&head) });
        }
        Ok(Ok(head))
    }

    fn trailers(&mut self, id: u32, end: bool, block: &[u8], events: &mut Vec<Event>) -> Received {
        // Read in any case: the table goes on.
        let fields = self.decoder.decode(block).map_err(|_| fatal(ErrorCode::Compression, "a head cannot be read"))?;
        let Some(stream) = self.streams.get(id) else { return self.head_of_the_past(id) };
        if !stream.receiving {
            return self.refuse(id, ErrorCode::StreamClosed, events);
        }
        if !end || !stream.length_fits(0, true) || fields.is_none_or(|fields| check_trailers(&fields).is_err()) {
            return self.refuse(id, ErrorCode::Protocol, events);
        }
        stream.receiving = false;
        events.push(Event::Data { stream: id, data: Bytes::new(), end: true });
        Ok(())
    }

    /// A head for a stream that is over, or was left out.
    fn head_of_the_past(&self, id: u32) -> Received {
        if self.resets.contains(&id) {
            Ok(())
        } else if id == self.highest {
            Err(fatal(ErrorCode::StreamClosed, "a head for a request that is over"))
        } else {
            Err(fatal(ErrorCode::Protocol, "requests must be numbered upwards"))
        }
    }
}
