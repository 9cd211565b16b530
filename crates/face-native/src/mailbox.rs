//! What waits to be sent to one client: bounded, filled by the router, emptied by the client's own connection.
//!
//! A client that does not take what there is gets nothing more ([`MESSAGES_MAX`], [`BYTES_MAX`]): its mailbox ends, and
//! what was in it is dropped at once. Its sessions live on.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use tidelock_native_api::v1::lost::Reason;
use tokio::sync::Notify;

/// Most messages that wait for one client.
pub(crate) const MESSAGES_MAX: usize = 1024;
/// Most bytes that do.
pub(crate) const BYTES_MAX: usize = 1024 * 1024;

/// How the client wants what it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// As `ToClient`, in a frame.
    Stream,
    /// As `Notice`, in a frame.
    Notices,
    /// As a server-sent event.
    Events,
}

/// Whose place a grant is of: the session, and a hash of kind and name.
pub(crate) type PlaceOf = (i64, u64);

/// One message.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// When it happened; zero: out of order.
    pub(crate) revision: u64,
    /// Whose place was granted, if it is that.
    pub(crate) granted: Option<PlaceOf>,
    /// The session that is not served any more, if it says that.
    pub(crate) lost: Option<i64>,
    pub(crate) payload: Bytes,
}

#[derive(Debug, Default)]
struct Content {
    items: Vec<Item>,
    bytes: usize,
    /// How many were taken out and not given to the client yet, and their bytes: they count as if they were here.
    kept: (usize, usize),
    /// How many there were in all.
    pushed: u64,
    end: Option<Reason>,
}

impl Content {
    /// Whether at most so many messages and bytes wait for the client.
    fn is_within(&self, messages: usize, bytes: usize) -> bool {
        self.items.len() + self.kept.0 <= messages && self.bytes + self.kept.1 <= bytes
    }
}

/// A client's mailbox.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub(crate) format: Format,
    content: Mutex<Content>,
    reader: AtomicWaker,
    /// Something was taken out.
    taken: Notify,
}

impl Mailbox {
    pub(crate) fn new(format: Format) -> Mailbox {
        Mailbox { format, content: Mutex::default(), reader: AtomicWaker::new(), taken: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message; whether there is somebody to take it.
    pub(crate) fn push(&self, item: Item) -> bool {
        let mut content = self.lock();
        if content.end.is_some() {
            return false;
        }
        content.bytes += item.payload.len();
        content.pushed += 1;
        content.items.push(item);
        let fits = content.is_within(MESSAGES_MAX, BYTES_MAX);
        if !fits {
            *content = Content { end: Some(Reason::TooSlow), ..Content::default() };
        }
        drop(content);
        self.reader.wake();
        fits
    }

    /// How many messages were put into it so far.
    pub(crate) fn pushed(&self) -> u64 {
        self.lock().pushed
    }

    /// Ends it, if it has not ended.
    pub(crate) fn end(&self, reason: Reason) {
        self.lock().end.get_or_insert(reason);
        self.reader.wake();
    }

    /// Has the client looked at it again.
    pub(crate) fn wake(&self) {
        self.reader.wake();
    }

    /// Wakes this one when there is more.
    pub(crate) fn register(&self, reader: &Waker) {
        self.reader.register(reader);
    }

    /// Waits until it is at most half full: for who tells much at once, and must not cut the client by it.
    pub(crate) async fn until_room(&self) {
        loop {
            let mut taken = std::pin::pin!(self.taken.notified());
            taken.as_mut().enable();
            {
                let content = self.lock();
                if content.is_within(MESSAGES_MAX / 2, BYTES_MAX / 2) || content.end.is_some() {
                    return;
                }
            }
            taken.await;
        }
    }

    /// Moves all there is to the end of `items`; why there will be no more, if so.
    pub(crate) fn take(&self, items: &mut std::collections::VecDeque<Item>) -> Option<Reason> {
        let mut content = self.lock();
        content.bytes = 0;
        if !content.items.is_empty() {
            items.extend(content.items.drain(..));
            self.taken.notify_waiters();
        }
        content.end
    }

    /// Says what was taken out and not given to the client.
    pub(crate) fn keep(&self, items: &std::collections::VecDeque<Item>) {
        self.lock().kept = (items.len(), items.iter().map(|item| item.payload.len()).sum());
        self.taken.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn item(bytes: usize) -> Item {
        Item { revision: 1, granted: None, lost: None, payload: vec![0; bytes].into() }
    }

    /// A client that never reads its grants must not fill the server's memory.
    #[test]
    fn a_client_that_does_not_read_is_given_up_and_nothing_is_kept_for_it() {
        for (bytes, fit) in [(1, MESSAGES_MAX), (BYTES_MAX / 4, 4)] {
            let mailbox = Mailbox::new(Format::Stream);
            assert!((0..fit).all(|_| mailbox.push(item(bytes))));
            assert!(!mailbox.push(item(bytes)));
            assert!(!mailbox.push(item(bytes)));
            let mut items = VecDeque::new();
            assert_eq!(mailbox.take(&mut items), Some(Reason::TooSlow));
            assert!(items.is_empty());
        }
    }

    #[test]
    fn a_client_that_reads_can_be_told_any_number_of_things() {
        let (mailbox, mut items) = (Mailbox::new(Format::Stream), VecDeque::new());
        for _ in 0..10 * MESSAGES_MAX {
            assert!(mailbox.push(item(1)));
            assert_eq!(mailbox.take(&mut items), None);
            items.clear();
        }
    }
}
