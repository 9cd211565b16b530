//! The body of a request that is read as it comes. What is kept of it is bounded by the window of its stream: more is
//! only asked for when what there was is read.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::Frame;

use super::ready::Ready;

#[derive(Debug, Default)]
struct Shared {
    parts: VecDeque<Bytes>,
    end: bool,
    /// The client gave up, or the connection is gone, before the end.
    cut: bool,
    /// Bytes at the front that are not to be told of: they were given back when they came.
    released: usize,
    reader: Option<Waker>,
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
pub(super) struct Feed(Arc<Mutex<Shared>>);

/// The body of a request, as it comes.
#[derive(Debug)]
pub struct Incoming {
    shared: Arc<Mutex<Shared>>,
    stream: u32,
    ready: Arc<Ready>,
}

pub(super) fn channel(stream: u32, ready: &Arc<Ready>, end: bool) -> (Feed, Incoming) {
    let shared = Arc::new(Mutex::new(Shared { end, ..Shared::default() }));
    (Feed(Arc::clone(&shared)), Incoming { shared, stream, ready: Arc::clone(ready) })
}

impl Feed {
    pub(super) fn push(&self, data: Bytes, end: bool) {
        let mut shared = lock(&self.0);
        if !data.is_empty() {
            shared.parts.push_back(data);
        }
        shared.end |= end;
        wake_reader(shared);
    }

    /// Something for which the client has got room already.
    pub(super) fn push_released(&self, data: Bytes) {
        lock(&self.0).released += data.len();
        self.push(data, false);
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
        let mut shared = lock(&self.0);
        shared.cut = !shared.end;
        wake_reader(shared);
    }
}

impl http_body::Body for Incoming {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let mut shared = lock(&self.shared);
        if let Some(part) = shared.parts.pop_front() {
            let told = part.len().min(shared.released);
            shared.released -= told;
            let is_all = shared.end;
            drop(shared);
            // Room is only made for a client that has more to send.
            if !is_all && part.len() > told {
                self.ready.note_read(self.stream, part.len() - told);
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
        shared.end && shared.parts.is_empty()
    }
}
