//! What waits to be written to one peer: a queue bounded in frames and in bytes, filled from any
//! thread without blocking and emptied by the link's one writer.
//!
//! While nothing waits and the connection is a plain one, whoever has small frames to send writes them himself: that
//! spares the wake-up of the writer, which takes longer than the write. What the system does not take at once
//! (`Queue::rest`) is left to the writer, before everything else. `Queue::writing` keeps the two apart.
//!
//! Closed while there is no link. Closing forgets what is queued: it was meant for a connection that
//! is gone, and the consensus engine says again what still matters.

use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::frame::{FRAME_BYTES_MAX, HEADER_BYTES, header};

/// How much the writer takes at once: a few hundred small frames per system call, yet a bounded
/// amount of memory beside the queue.
const TAKE_BYTES: usize = 512 * 1024;
/// The same in frames.
pub(super) const TAKE_FRAMES: usize = 1024;
/// How much is written by whoever sends it. It is copied together for that; the writer sends large frames as they are.
const DIRECT_BYTES_MAX: usize = 16 * 1024;

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
    /// Bytes of frames handed to the system so far.
    written: u64,
    /// The connection, if frames may be written to it as they are.
    socket: Option<TcpStream>,
    /// Where small frames are put together to be written.
    together: BytesMut,
    /// The end of what was written in part. Goes first.
    rest: Bytes,
    /// The writer is writing what it took.
    writing: bool,
}

impl Outbox {
    pub(super) fn new(frames_max: usize, bytes_max: usize) -> Outbox {
        Outbox { queue: Mutex::new(Queue::default()), filled: Notify::new(), frames_max, bytes_max }
    }

    /// Sends or queues as many of `frames` as fit, in order, and returns how many. Stops at one that is empty,
    /// which would be a pulse, or over `frame_max`. Wakes the writer at most once: a wake-up costs more
    /// than the frame.
    pub(super) fn push(&self, frames: impl IntoIterator<Item = Bytes>, frame_max: usize) -> usize {
        let mut taken = 0;
        let wake = {
            let mut queue = self.queue.lock();
            let was_empty = queue.is_empty();
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
            if was_empty && !queue.writing {
                queue.write_directly();
            }
            // A writer that has something left looks again by itself.
            was_empty && !queue.is_empty()
        };
        if wake {
            self.filled.notify_one();
        }
        taken
    }

    /// Waits until something is queued. Safe to cancel.
    pub(super) async fn wait(&self) {
        while self.queue.lock().is_empty() {
            self.filled.notified().await;
        }
    }

    /// Moves the next frames to `batch`, up to the bounds of one write. What it returns goes before them, as it is.
    /// Nobody else writes until [`Outbox::wrote`].
    pub(super) fn take(&self, batch: &mut Vec<Bytes>) -> Bytes {
        let mut queue = self.queue.lock();
        let mut bytes = 0;
        while bytes < TAKE_BYTES && batch.len() < TAKE_FRAMES {
            let Some(frame) = queue.frames.pop_front() else { break };
            bytes += frame.len();
            batch.push(frame);
        }
        queue.bytes -= bytes;
        queue.written += bytes as u64;
        queue.writing = true;
        std::mem::take(&mut queue.rest)
    }

    /// What was taken is written.
    pub(super) fn wrote(&self) {
        self.queue.lock().writing = false;
    }

    /// Opens the queue for as long as the guard lives. Frames may be written to `socket` as they are.
    pub(super) fn open(&self, socket: Option<TcpStream>) -> OpenOutbox<'_> {
        let mut queue = self.queue.lock();
        queue.open = true;
        queue.socket = socket;
        OpenOutbox(self)
    }

    pub(super) fn is_open(&self) -> bool {
        self.queue.lock().open
    }

    /// How many frames were not taken, or forgotten with a lost link.
    pub(super) fn dropped(&self) -> u64 {
        self.queue.lock().dropped
    }

    /// Bytes of frames that were written.
    pub(super) fn written(&self) -> u64 {
        self.queue.lock().written
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.rest.is_empty()
    }

    /// Hands what is queued to the system, if it is little and can be written as it is.
    fn write_directly(&mut self) {
        let little = self.bytes + self.frames.len() * HEADER_BYTES <= DIRECT_BYTES_MAX;
        let Some(mut socket) = self.socket.as_ref().filter(|_| little && !self.frames.is_empty()) else { return };
        self.together.clear();
        for frame in &self.frames {
            // A frame that no header can describe was refused before it was queued.
            let Some(header) = header(&[frame], FRAME_BYTES_MAX) else { return };
            self.together.put_slice(&header);
            self.together.put_slice(frame);
        }
        let written = match socket.write(&self.together) {
            Ok(written) => written,
            // Either there is no room, and the writer waits for it, or it meets the same error and reports it.
            Err(_) => return,
        };
        if written < self.together.len() {
            self.rest = Bytes::copy_from_slice(&self.together[written..]);
        }
        self.written += self.bytes as u64;
        self.bytes = 0;
        self.frames.clear();
    }
}

/// Closes the queue when dropped, however the link ended.
pub(super) struct OpenOutbox<'a>(&'a Outbox);

impl Drop for OpenOutbox<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        let lost = queue.frames.len() as u64;
        // The memory of a queue that once was long is given back as well.
        *queue = Queue { dropped: queue.dropped + lost, written: queue.written, ..Queue::default() };
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
        let _open = outbox.open(None);
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
        let _open = outbox.open(None);
        assert_eq!(outbox.push([frame(1000), frame(1)], FRAME_MAX), 1);
    }

    /// A frame that the receiver must refuse would cost the link, and everything queued with it.
    #[test]
    fn a_frame_nobody_could_take_is_not_queued() {
        let outbox = Outbox::new(3, 10_000);
        let _open = outbox.open(None);
        assert_eq!(outbox.push([frame(1001)], FRAME_MAX), 0);
        assert_eq!(outbox.push([frame(0)], FRAME_MAX), 0);
    }

    /// Sending to a peer that is down must say so, and old messages must not greet it when it is back.
    #[test]
    fn a_closed_queue_takes_and_keeps_nothing() {
        let outbox = Outbox::new(3, 100);
        assert_eq!(outbox.push([frame(1)], FRAME_MAX), 0);
        let open = outbox.open(None);
        assert_eq!(outbox.push([frame(1)], FRAME_MAX), 1);
        drop(open);
        assert_eq!(outbox.push([frame(1)], FRAME_MAX), 0);
        let _open = outbox.open(None);
        let mut batch = Vec::new();
        outbox.take(&mut batch);
        assert!(batch.is_empty());
    }

    /// Two ends of a connection of this machine, the first without waiting.
    fn connected() -> (TcpStream, TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        near.set_nonblocking(true).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// Every write of a follower's promise would otherwise wait for another thread to wake up.
    #[test]
    fn a_small_frame_on_a_plain_connection_is_written_at_once_and_whole() {
        use std::io::Read;
        let (near, mut far) = connected();
        let outbox = Outbox::new(10, 10_000);
        let _open = outbox.open(Some(near));
        assert_eq!(outbox.push([frame(3), frame(5)], FRAME_MAX), 2);
        let mut arrived = [0; 2 * HEADER_BYTES + 8];
        far.read_exact(&mut arrived).unwrap();
        assert_eq!(arrived[..HEADER_BYTES], header(&[&frame(3)], FRAME_MAX).unwrap());
        assert_eq!(outbox.written(), 8);
        let mut batch = Vec::new();
        assert!(outbox.take(&mut batch).is_empty() && batch.is_empty(), "nothing is left to the writer");
    }

    /// A frame cut in two by another one would cost the link, again and again under load.
    #[test]
    fn frames_stay_whole_and_in_order_when_the_system_takes_them_in_part() {
        use std::io::Read;
        let (near, mut far) = connected();
        let writer_end = near.try_clone().unwrap();
        let outbox = Outbox::new(10_000, usize::MAX);
        let _open = outbox.open(Some(near));
        let frames: Vec<Bytes> = (0..2_000u32).map(|at| Bytes::from(vec![at as u8; 9_000])).collect();
        let expected: usize = frames.iter().map(|frame| frame.len() + HEADER_BYTES).sum();
        let reading = std::thread::spawn(move || {
            let mut arrived = vec![0; expected];
            far.read_exact(&mut arrived).unwrap();
            arrived
        });
        writer_end.set_nonblocking(true).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            use tokio::io::AsyncWriteExt;
            let mut stream = tokio::net::TcpStream::from_std(writer_end).unwrap();
            for (at, frame) in frames.iter().enumerate() {
                assert_eq!(outbox.push([frame.clone()], 10_000), 1);
                let mut batch = Vec::new();
                // The writer comes by only now and then, as it does when others keep it busy.
                if at % 16 == 0 || at + 1 == frames.len() {
                    let rest = outbox.take(&mut batch);
                    stream.write_all(&rest).await.unwrap();
                    for frame in batch {
                        stream.write_all(&header(&[&frame], 10_000).unwrap()).await.unwrap();
                        stream.write_all(&frame).await.unwrap();
                    }
                    outbox.wrote();
                }
            }
        });
        let arrived = reading.join().unwrap();
        let mut at = 0;
        for frame in &frames {
            assert_eq!(arrived[at..at + HEADER_BYTES], header(&[frame], 10_000).unwrap());
            assert_eq!(arrived[at + HEADER_BYTES..at + HEADER_BYTES + frame.len()], frame[..]);
            at += HEADER_BYTES + frame.len();
        }
    }
}
