//! What waits for the windows of its client: how much of it there may be, and what may be made meanwhile.
//!
//! Answers that are made whole and answers that are made in parts are counted apart, and either kind waits for its own
//! alone. Whoever leaves hundreds of streams unread still gets the answers to small calls; whoever leaves large answers
//! lying is still told what happens on its streams.
//!
//! What holds for one connection: whole answers that wait have [`WHOLE_BYTES_MAX`] together, where only the first
//! [`SHARE_BYTES_MAX`] of each count, so sixteen at most are larger than that. Parts that wait have half of
//! [`PARTS_BYTES_MAX`] together and beyond that one part for each stream.
//!
//! Nobody waits for ever: an answer of which its client takes nothing can be told from one that it takes slowly
//! ([`Connection::stalled`]).

use std::cmp::Reverse;

use super::{Connection, LINE_MAX};
use crate::streams::Stream;

/// Bytes of whole answers that may wait for their client's windows before no more are made. A client may shut the window
/// of every stream and ask on.
pub(super) const WHOLE_BYTES_MAX: usize = 32 << 20;
/// Bytes of answers in parts that may wait before no more of those are begun. Those that go on are made ahead until half
/// of it, and then only when nothing of theirs waits: a stream always has a place for what it has to say next.
pub(super) const PARTS_BYTES_MAX: usize = 32 << 20;
/// How much of one answer counts: a few large ones, however large and however slowly they are taken, hold up nobody.
pub(super) const SHARE_BYTES_MAX: usize = 2 << 20;

/// What may be made now for the client of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Anything at all.
    pub(crate) any: bool,
    /// Whole answers.
    pub(crate) calls: bool,
    /// The beginning of an answer in parts.
    pub(crate) heads: bool,
}

/// What waits, of all streams.
#[derive(Debug, Default)]
pub(super) struct Waits {
    pub(super) whole: usize,
    pub(super) parts: usize,
    /// Counts how often was looked for answers that stall.
    period: u32,
}

impl Waits {
    /// So much more of an answer waits.
    pub(super) fn more(&mut self, stream: &mut Stream, bytes: usize) {
        if stream.waiting_bytes == 0 {
            stream.moved = self.period;
        }
        self.count(stream, stream.waiting_bytes + bytes);
    }

    /// So much of it was sent.
    pub(super) fn sent(&mut self, stream: &mut Stream, bytes: usize) {
        stream.moved = self.period;
        self.count(stream, stream.waiting_bytes - bytes);
    }

    /// All there will be of an answer is there at once.
    pub(super) fn mark_whole(&mut self, stream: &mut Stream) {
        let bytes = stream.waiting_bytes;
        self.count(stream, 0);
        stream.whole = true;
        self.count(stream, bytes);
    }

    /// Nothing of it waits any more.
    pub(super) fn forget(&mut self, stream: &mut Stream) {
        self.count(stream, 0);
    }

    fn count(&mut self, stream: &mut Stream, bytes: usize) {
        let counted = if stream.whole { &mut self.whole } else { &mut self.parts };
        *counted -= stream.waiting_bytes.min(SHARE_BYTES_MAX);
        *counted += bytes.min(SHARE_BYTES_MAX);
        stream.waiting_bytes = bytes;
    }
}

impl Connection {
    /// What may be made now: nothing while many answers wait that the client could have, if it took anything at all, and
    /// little of what it leaves lying.
    pub(crate) fn room(&self) -> Room {
        let any = !self.is_congested() && self.streams.line.len() < LINE_MAX;
        let calls = any && self.waits.whole < WHOLE_BYTES_MAX;
        Room { any, calls, heads: any && self.waits.parts < PARTS_BYTES_MAX }
    }

    /// Whether answers in parts may be made for later, too.
    pub(crate) fn may_make_ahead(&self) -> bool {
        self.waits.parts < PARTS_BYTES_MAX / 2
    }

    /// Whether any answer waits that was made whole.
    pub(crate) fn has_whole_waiting(&self) -> bool {
        self.waits.whole > 0
    }

    /// How much of an answer waits for the client.
    pub(crate) fn waiting_bytes(&mut self, stream: u32) -> usize {
        self.streams.get(stream).map_or(0, |stream| stream.waiting_bytes)
    }

    /// Answers of which their client has taken nothing since this was asked the last time, though nothing but windows of
    /// their own keeps them: those that were made whole, and, if asked for, those in parts. The largest come first.
    pub(crate) fn stalled(&mut self, in_parts: bool) -> Vec<u32> {
        let period = self.waits.period;
        self.waits.period = period.wrapping_add(1);
        let stalls = |stream: &Stream| {
            let waits = stream.waiting_bytes > 0 && !stream.in_line && stream.moved != period;
            waits && (stream.whole || in_parts)
        };
        let mut stalled: Vec<(usize, u32)> = self
            .streams
            .values_mut()
            .filter(|(_, stream)| stalls(stream))
            .map(|(id, stream)| (stream.waiting_bytes, *id))
            .collect();
        stalled.sort_unstable_by_key(|(bytes, id)| (Reverse(*bytes), *id));
        stalled.into_iter().map(|(_, id)| id).collect()
    }

    /// Whether an answer was made whole.
    pub(crate) fn is_whole(&mut self, stream: u32) -> bool {
        self.streams.get(stream).is_some_and(|stream| stream.whole)
    }
}
