//! A queue into a thread. Many put in, one takes everything at once: one lock and at most one wake-up
//! per batch on either side, which is what keeps a busy node from spending its time on waking.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

struct Content<T> {
    items: Vec<T>,
    taker_waits: bool,
    closed: bool,
}

/// A queue into one thread.
pub(crate) struct Inbox<T> {
    content: Mutex<Content<T>>,
    filled: Condvar,
}

/// Why an item was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full { waiting: usize },
    Closed,
}

impl<T> Inbox<T> {
    pub(crate) fn new() -> Inbox<T> {
        let content = Content { items: Vec::new(), taker_waits: false, closed: false };
        Inbox { content: Mutex::new(content), filled: Condvar::new() }
    }

    /// Puts an item in, unless `max` or more wait.
    pub(crate) fn offer(&self, item: T, max: usize) -> Result<(), Refused> {
        let mut content = self.content.lock();
        if content.closed {
            return Err(Refused::Closed);
        }
        if content.items.len() >= max {
            return Err(Refused::Full { waiting: content.items.len() });
        }
        content.items.push(item);
        self.wake(content);
        Ok(())
    }

    /// Puts items in whose number is bounded by what they answer: reports of work that was handed out.
    pub(crate) fn push_all(&self, items: impl IntoIterator<Item = T>) {
        let mut content = self.content.lock();
        if !content.closed {
            content.items.extend(items);
            self.wake(content);
        }
    }

    /// Puts in one such item.
    pub(crate) fn push(&self, item: T) {
        self.push_all([item]);
    }

    fn wake(&self, mut content: parking_lot::MutexGuard<'_, Content<T>>) {
        let wake = std::mem::take(&mut content.taker_waits);
        drop(content);
        if wake {
            self.filled.notify_one();
        }
    }

    /// Takes everything there is into `out` (which is empty), waiting at most `wait` for something.
    /// `false`: closed, and nothing is left.
    pub(crate) fn take(&self, out: &mut Vec<T>, wait: Duration) -> bool {
        let mut content = self.content.lock();
        if content.items.is_empty() && !content.closed && !wait.is_zero() {
            content.taker_waits = true;
            self.filled.wait_for(&mut content, wait);
            content.taker_waits = false;
        }
        std::mem::swap(&mut content.items, out);
        !content.closed || !out.is_empty()
    }

    /// How many items wait.
    pub(crate) fn len(&self) -> usize {
        self.content.lock().items.len()
    }

    /// Takes nothing more; what is inside is still handed out.
    pub(crate) fn close(&self) {
        self.content.lock().closed = true;
        self.filled.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_inbox_refuses_and_a_closed_one_hands_out_what_it_has() {
        let inbox = Inbox::new();
        assert_eq!(inbox.offer(1, 2), Ok(()));
        assert_eq!(inbox.offer(2, 2), Ok(()));
        assert_eq!(inbox.offer(3, 2), Err(Refused::Full { waiting: 2 }));
        inbox.close();
        assert_eq!(inbox.offer(4, 9), Err(Refused::Closed));
        let mut out = Vec::new();
        assert!(inbox.take(&mut out, Duration::ZERO));
        assert_eq!(out, [1, 2]);
        out.clear();
        assert!(!inbox.take(&mut out, Duration::from_secs(5)));
    }
}
