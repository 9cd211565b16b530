//! The body of a request that is read as it comes. What waits in it is bounded by the window of its stream: more is
//! only asked for when what there was is read. What its reader keeps of it is counted ([`Count`]), since most readers take
//! a message piece by piece and can do nothing with it before it is whole.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http_body::Frame;

use super::READ_BYTES_MAX;
use super::ready::Ready;

/// Below this, what is kept is copied: it holds on to all that was read with it, a hundred others included.
const OWN_BYTES_MAX: usize = READ_BYTES_MAX / 4;
/// What stands before every message of gRPC: a flag and a length.
const PREFIX_BYTES: usize = 5;

/// Bytes that do not hold on to much more than themselves.
pub(super) fn own(data: Bytes) -> Bytes {
    if data.len() < OWN_BYTES_MAX { Bytes::copy_from_slice(&data) } else { data }
}

/// How much of a request its reader keeps, as far as can be seen from outside.
#[derive(Debug)]
pub(super) enum Count {
    /// All that came: nobody here knows when its reader has done with it.
    All(usize),
    /// Messages of gRPC.
    Messages(Messages),
}

/// How far a message is that comes piece by piece. Its reader has done with it when it is whole.
#[derive(Debug, Default)]
pub(super) struct Messages {
    prefix: [u8; PREFIX_BYTES],
    prefix_bytes: usize,
    /// What is still to come of it after its prefix.
    left: usize,
    /// What came of it.
    bytes: usize,
    /// Bytes of the only one there was before it; zero if there were several.
    only: Option<usize>,
    over: bool,
}

impl Count {
    /// Of a request with this head.
    pub(super) fn of(head: &crate::RequestHead) -> Count {
        let is_grpc = head.get("content-type").is_some_and(|kind| kind.starts_with(b"application/grpc"));
        if is_grpc { Count::Messages(Messages::default()) } else { Count::All(0) }
    }

    /// More of it came.
    pub(super) fn take_in(&mut self, data: &[u8], end: bool) {
        match self {
            Count::All(bytes) => *bytes += data.len(),
            Count::Messages(messages) => messages.take_in(data, end),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Count::All(bytes) => *bytes,
            Count::Messages(Messages { over: false, bytes, .. }) => *bytes,
            // A request that is one message is kept until it is answered.
            Count::Messages(Messages { bytes, only, .. }) => bytes + only.unwrap_or(0),
        }
    }
}

impl Messages {
    fn take_in(&mut self, mut data: &[u8], end: bool) {
        self.over |= end;
        while !data.is_empty() {
            let missing = PREFIX_BYTES - self.prefix_bytes;
            let taken = data.len().min(if missing > 0 { missing } else { self.left });
            let (part, rest) = data.split_at(taken);
            self.bytes += taken;
            if missing > 0 {
                self.prefix[self.prefix_bytes..][..taken].copy_from_slice(part);
                self.prefix_bytes += taken;
                let [_, length @ ..] = self.prefix;
                self.left = u32::from_be_bytes(length) as usize;
            } else {
                self.left -= taken;
            }
            if self.prefix_bytes == PREFIX_BYTES && self.left == 0 {
                *self = self.after_a_message();
            }
            data = rest;
        }
    }

    fn after_a_message(&self) -> Messages {
        let only = if self.only.is_none() { self.bytes } else { 0 };
        Messages { only: Some(only), over: self.over, ..Messages::default() }
    }
}

#[derive(Debug, Default)]
struct Shared {
    parts: VecDeque<Bytes>,
    /// Comes after them: small pieces, put together.
    small: BytesMut,
    end: bool,
    /// The client gave up, or the connection is gone, before the end.
    cut: bool,
    /// Nobody reads it any more.
    unread: bool,
    /// Bytes at the front that are not to be told of: they were given back when they came.
    released: usize,
    reader: Option<Waker>,
}

impl Shared {
    fn put(&mut self, data: Bytes) {
        if data.len() < OWN_BYTES_MAX {
            self.small.extend_from_slice(&data);
            return;
        }
        self.end_small();
        self.parts.push_back(data);
    }

    fn end_small(&mut self) {
        if !self.small.is_empty() {
            self.parts.push_back(std::mem::take(&mut self.small).freeze());
        }
    }

    /// The next part, and how much of it is to be told of.
    fn take(&mut self) -> Option<(Bytes, usize)> {
        if self.parts.is_empty() {
            self.end_small();
        }
        let part = self.parts.pop_front()?;
        let told = part.len().min(self.released);
        self.released -= told;
        let untold = part.len() - told;
        Some((part, untold))
    }
}

/// The rest of a request will not come: its client gave up, or is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client cancelled the request")]
pub struct Cut;

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of it that the connection has.
#[derive(Debug)]
pub(super) struct Feed {
    shared: Arc<Mutex<Shared>>,
    pub(super) count: Count,
}

/// The body of a request, as it comes.
#[derive(Debug)]
pub struct Incoming {
    shared: Arc<Mutex<Shared>>,
    stream: u32,
    ready: Arc<Ready>,
}

pub(super) fn channel(stream: u32, ready: &Arc<Ready>, end: bool, count: Count) -> (Feed, Incoming) {
    let shared = Arc::new(Mutex::new(Shared { end, ..Shared::default() }));
    let feed = Feed { shared: Arc::clone(&shared), count };
    (feed, Incoming { shared, stream, ready: Arc::clone(ready) })
}

impl Feed {
    /// More of it, which was counted before.
    pub(super) fn push(&self, data: Bytes, end: bool) {
        let mut shared = lock(&self.shared);
        shared.put(data);
        shared.end |= end;
        wake_reader(shared);
    }

    /// Something for which the client has got room already.
    pub(super) fn push_released(&self, data: Bytes) {
        lock(&self.shared).released += data.len();
        self.push(data, false);
    }

    /// Whether nobody reads it any more.
    pub(super) fn is_unread(&self) -> bool {
        lock(&self.shared).unread
    }
}

/// Wakes whoever waits for more, with the lock let go first: the reader may run at once.
fn wake_reader(mut shared: MutexGuard<'_, Shared>) {
    let reader = shared.reader.take();
    drop(shared);
    if let Some(reader) = reader {
        reader.wake();
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.cut = !shared.end;
        wake_reader(shared);
    }
}

impl http_body::Body for Incoming {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let mut shared = lock(&self.shared);
        if let Some((part, untold)) = shared.take() {
            drop(shared);
            // Told in any case: what nobody has read counts against all streams of the connection.
            if untold > 0 {
                self.ready.note_read(self.stream, untold);
            }
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        if shared.end {
            return Poll::Ready(None);
        }
        if shared.cut {
            return Poll::Ready(Some(Err(Cut)));
        }
        if !shared.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
            shared.reader = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        let shared = lock(&self.shared);
        shared.end && shared.parts.is_empty() && shared.small.is_empty()
    }
}

impl Drop for Incoming {
    /// What nobody will read is as good as read: it must not count against others while the answer goes on.
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.unread = true;
        let mut untold = 0;
        while let Some((_, bytes)) = shared.take() {
            untold += bytes;
        }
        drop(shared);
        if untold > 0 {
            self.ready.note_read(self.stream, untold);
        }
    }
}
