//! The streams of a connection that are not over.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use crate::hpack::Field;

/// Something that waits to be sent on a stream.
#[derive(Debug)]
pub(crate) enum Waiting {
    /// Part of an answer, and whether it is the last.
    Data(Bytes, bool),
    /// What comes after the last part.
    Trailers(Vec<Field>),
}

/// A request and its answer.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The client has more to say.
    pub(crate) receiving: bool,
    /// What it must still send, if it said how much there is.
    pub(crate) length_left: Option<u64>,
    /// What came and was not read yet.
    pub(crate) unread: i64,
    /// How much the client may still send.
    pub(crate) receive_window: i64,
    /// What was taken in and may be sent again.
    pub(crate) released: i64,
    /// How much the client takes; less than nothing, if it made its windows smaller.
    pub(crate) send_window: i64,
    /// In order.
    pub(crate) waiting: VecDeque<Waiting>,
    /// Bytes of data that wait.
    pub(crate) waiting_bytes: usize,
    /// The answer was made whole, not in parts.
    pub(crate) whole: bool,
    /// In which period of looking for answers that stall something of it was sent, or began to wait.
    pub(crate) moved: u32,
    /// Whether it stands in the line of those that could send.
    pub(crate) in_line: bool,
}

impl Stream {
    /// Takes in that so many bytes came; whether they fit what the client said about all of them.
    pub(crate) fn length_fits(&mut self, bytes: u64, end: bool) -> bool {
        let Some(left) = &mut self.length_left else { return true };
        match left.checked_sub(bytes) {
            None => false,
            Some(rest) => {
                *left = rest;
                !end || rest == 0
            }
        }
    }
}

/// All of them, by number.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    open: HashMap<u32, Stream, foldhash::fast::RandomState>,
    /// Those that have something to send, and a window for it.
    pub(crate) line: VecDeque<u32>,
}

impl Streams {
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn get(&mut self, id: u32) -> Option<&mut Stream> {
        self.open.get_mut(&id)
    }

    pub(crate) fn add(&mut self, id: u32, stream: Stream) {
        self.open.insert(id, stream);
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<Stream> {
        self.open.remove(&id)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = (&u32, &mut Stream)> {
        self.open.iter_mut()
    }

    /// Puts a stream that has something to send at the end of the line.
    pub(crate) fn stand_in_line(&mut self, id: u32) {
        if let Some(stream) = self.open.get_mut(&id)
            && !stream.waiting.is_empty()
            && !std::mem::replace(&mut stream.in_line, true)
        {
            self.line.push_back(id);
        }
    }
}
