//! What waits to be written to one peer: a queue bounded in frames and in bytes, filled from any
//! thread without blocking and emptied by the link's one writer.
//!
//! Closed while there is no link. Closing forgets what is queued: it was meant for a connection that
//! is gone, and the consensus engine says again what still matters.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// How much the writer takes at once: a few hundred small frames per system call, yet a bounded
/// amount of memory beside the queue.
const TAKE_BYTES: usize = 512 * 1024;
/// The same in frames.
pub(super) const TAKE_FRAMES: usize = 1024;

pub(super) struct Outbox {
    queue: Mutex<Queue>,
    filled: Notify,
    frames_max: usize,
    bytes_max: usize,
}

#[derive(Default)]
struct Queue {
    open: bool,
    frames: VecDeque<Bytes>,
    bytes: usize,
    dropped: u64,
}

impl Outbox {
    pub(super) fn new(frames_max: usize, bytes_max: usize) -> Outbox {
        Outbox { queue: Mutex::new(Queue::default()), filled: Notify::new(), frames_max, bytes_max }
    }

    /// Queues as many of `frames` as fit, in order, and returns how many. Stops at one that is empty,
    /// which would be a pulse, or over `frame_max`. Wakes the writer at most once: a wake-up costs more
    /// than the frame.
    pub(super) fn push(&self, frames: impl IntoIterator<Item = Bytes>, frame_max: usize) -> usize {
        let mut taken = 0;
        let was_empty = {
            let mut queue = self.queue.lock();
            let was_empty = queue.frames.is_empty();
            let mut frames = frames.into_iter();
            for frame in frames.by_ref() {
                let sendable = queue.open && !frame.is_empty() && frame.len() <= frame_max;
                let fits = queue.frames.is_empty() || queue.bytes + frame.len() <= self.bytes_max;
                if !sendable || !fits || queue.frames.len() >= self.frames_max {
                    // Later frames are dropped too, even if they are smaller: order is part of the deal.
                    queue.dropped += 1 + frames.count() as u64;
                    break;
                }
                queue.bytes += frame.len();
                queue.frames.push_back(frame);
                taken += 1;
            }
            was_empty
        };
        // A writer that has frames left looks again by itself.
        if was_empty && taken > 0 {
            self.filled.notify_one();
        }
        taken
    }

    /// Waits until something is queued. Safe to cancel.
    pub(super) async fn wait(&self) {
        while self.queue.lock().frames.is_empty() {
            self.filled.notified().await;
        }
    }

    /// Moves the next frames to `batch`, up to the bounds of one write.
    pub(super) fn take(&self, batch: &mut Vec<Bytes>) {
        let mut queue = self.queue.lock();
        let mut bytes = 0;
        while bytes < TAKE_BYTES && batch.len() < TAKE_FRAMES {
            let Some(frame) = queue.frames.pop_front() else { break };
            bytes += frame.len();
            batch.push(frame);
        }
        queue.bytes -= bytes;
    }

    /// Opens the queue for as long as the guard lives.
    pub(super) fn open(&self) -> OpenOutbox<'_> {
        self.queue.lock().open = true;
        OpenOutbox(self)
    }

    pub(super) fn is_open(&self) -> bool {
        self.queue.lock().open
    }

    /// How many frames were not taken, or forgotten with a lost link.
    pub(super) fn dropped(&self) -> u64 {
        self.queue.lock().dropped
    }
}

/// Closes the queue when dropped, however the link ended.
pub(super) struct OpenOutbox<'a>(&'a Outbox);

impl Drop for OpenOutbox<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.open = false;
        queue.dropped += queue.frames.len() as u64;
        queue.bytes = 0;
        // The memory of a queue that once was long is given back as well.
        queue.frames = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME_MAX: usize = 1000;

    fn frame(len: usize) -> Bytes {
        Bytes::from(vec![1; len])
    }

    /// A peer that does not read must cost a bounded amount of memory, not the node's life.
    #[test]
    fn frames_beyond_the_bounds_are_dropped_and_counted() {
        let outbox = Outbox::new(3, 100);
        let _open = outbox.open();
        assert_eq!(outbox.push([frame(50)], FRAME_MAX), 1);
        assert_eq!(outbox.push([frame(51)], FRAME_MAX), 0, "over the bytes");
        assert_eq!(outbox.push([frame(20), frame(20), frame(1)], FRAME_MAX), 2, "over the frames");
        assert_eq!(outbox.dropped(), 2);
        let mut batch = Vec::new();
        outbox.take(&mut batch);
        assert_eq!(batch.iter().map(Bytes::len).collect::<Vec<_>>(), [50, 20, 20]);
        assert_eq!(outbox.push([frame(100)], FRAME_MAX), 1, "what was taken no longer counts");
    }

    /// The largest frame must get through whatever the queue bound is, or a peer could never catch up.
    #[test]
    fn one_frame_larger_than_the_bound_fits_an_empty_queue() {
        let outbox = Outbox::new(3, 100);
        let _open = outbox.open();
        assert_eq!(outbox.push([frame(1000), frame(1)], FRAME_MAX), 1);
    }

    /// A frame that the receiver must refuse would cost the link, and everything queued with it.
    #[test]
    fn a_frame_nobody_could_take_is_not_queued() {
        let outbox = Outbox::new(3, 10_000);
        let _open = outbox.open();
        assert_eq!(outbox.push([frame(1001)], FRAME_MAX), 0);
        assert_eq!(outbox.push([frame(0)], FRAME_MAX), 0);
    }

    /// Sending to a peer that is down must say so, and old messages must not greet it when it is back.
    #[test]
    fn a_closed_queue_takes_and_keeps_nothing() {
        let outbox = Outbox::new(3, 100);
        assert_eq!(outbox.push([frame(1)], FRAME_MAX), 0);
        let open = outbox.open();
        assert_eq!(outbox.push([frame(1)], FRAME_MAX), 1);
        drop(open);
        assert_eq!(outbox.push([frame(1)], FRAME_MAX), 0);
        let _open = outbox.open();
        let mut batch = Vec::new();
        outbox.take(&mut batch);
        assert!(batch.is_empty());
    }
}
