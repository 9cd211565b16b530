//! What is on its way to one client: replies and events in the order they must arrive, in one queue.
//!
//! - A reply never shows a state older than an event that was sent before it: [`Outbox::reply`] refuses, and the
//!   read is made again.
//! - Bounded: requests wait while much is unsent; a client that does not even take its events is closed, comes
//!   back and repairs its watches.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tidelock_model::Revision;
use tokio::sync::Notify;

use crate::wire::{EventKind, KeeperState, MAX_REPLY, Reply, write_event, write_reply};

/// Unsent bytes from which on no more requests are taken.
pub(crate) const UNSENT_PAUSE: usize = 4 << 20;
/// Unsent bytes that end the connection: room for the largest reply behind what was queued before it, so only events
/// that nobody takes can be too many.
const UNSENT_MAX: usize = MAX_REPLY + 2 * UNSENT_PAUSE;

/// In the header of an event that belongs to no one change.
const NO_ZXID: i64 = -1;

/// The queue of one connection.
#[derive(Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    /// Something was added, or the end was told: for the task that sends.
    filled: Notify,
    /// Something was sent: for the task that answers.
    drained: Notify,
    /// The connection is cut: for the task that sends, which may be stuck with a client that takes nothing.
    severed: Notify,
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    /// Packets queued since somebody asked.
    packets: u64,
    /// The newest change that an event told.
    last_event: Revision,
    /// The newest state that anything told; headers never go back behind it.
    last_told: Revision,
    end: Option<End>,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// After what is queued was sent.
    Flushed,
    /// At once.
    Cut,
}

/// An event newer than the reply's state was sent already: read again.
#[derive(Debug)]
pub(crate) struct Overtaken;

impl Outbox {
    /// Queues replies that show the state at `at`, unless a newer event was sent.
    pub(crate) fn replies<'a>(
        &self,
        at: Revision,
        replies: impl Iterator<Item = (i32, &'a Reply)>,
    ) -> Result<(), Overtaken> {
        let mut queue = self.lock();
        if queue.last_event > at {
            return Err(Overtaken);
        }
        queue.last_told = queue.last_told.max(at);
        let zxid = zxid(queue.last_told);
        for (xid, reply) in replies {
            write_reply(&mut queue.bytes, xid, zxid, reply);
            queue.packets += 1;
        }
        self.added(queue);
        Ok(())
    }

    /// Queues the reply to a change made at `at`. Events of later changes may have been sent; its header tells
    /// of them then.
    pub(crate) fn outcome(&self, xid: i32, at: Revision, reply: &Reply) {
        let mut queue = self.lock();
        queue.last_told = queue.last_told.max(at);
        let zxid = zxid(queue.last_told);
        write_reply(&mut queue.bytes, xid, zxid, reply);
        queue.packets += 1;
        self.added(queue);
    }

    /// Queues the replies to changes, each made at its revision, as [`Outbox::outcome`] does for one.
    pub(crate) fn outcomes(&self, outcomes: impl Iterator<Item = (i32, Revision, Reply)>) {
        let mut queue = self.lock();
        for (xid, at, reply) in outcomes {
            queue.last_told = queue.last_told.max(at);
            let zxid = zxid(queue.last_told);
            write_reply(&mut queue.bytes, xid, zxid, &reply);
            queue.packets += 1;
        }
        self.added(queue);
    }

    /// A new connection: even its first replies that show nothing, such as those to pings, tell where the store is.
    pub(crate) fn begin_at(&self, told: Revision) {
        let mut queue = self.lock();
        queue.last_told = queue.last_told.max(told);
    }

    /// Queues a reply that shows no state.
    pub(crate) fn plain(&self, xid: i32, reply: &Reply) {
        self.outcome(xid, Revision::default(), reply);
    }

    /// Queues a reply whose header tells no state, as those to credentials do.
    pub(crate) fn without_zxid(&self, xid: i32, reply: &Reply) {
        let mut queue = self.lock();
        write_reply(&mut queue.bytes, xid, 0, reply);
        queue.packets += 1;
        self.added(queue);
    }

    /// Queues bytes as they are: the answer to the handshake.
    pub(crate) fn raw(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut queue = self.lock();
        write(&mut queue.bytes);
        queue.packets += 1;
        self.added(queue);
    }

    /// Queues an event of the change made at `at`.
    pub(crate) fn event(&self, at: Revision, kind: EventKind, path: &str) {
        self.add_event(at, zxid(at), kind, path);
    }

    /// Queues an event that tells what was missed by `at`, of which it is not known when it happened.
    pub(crate) fn missed_event(&self, at: Revision, kind: EventKind, path: &str) {
        self.add_event(at, NO_ZXID, kind, path);
    }

    fn add_event(&self, at: Revision, zxid: i64, kind: EventKind, path: &str) {
        let mut queue = self.lock();
        queue.last_event = queue.last_event.max(at);
        queue.last_told = queue.last_told.max(at);
        write_event(&mut queue.bytes, zxid, kind, KeeperState::SyncConnected, path);
        queue.packets += 1;
        self.added(queue);
    }

    /// How many packets were queued since the last call.
    pub(crate) fn take_packets(&self) -> u64 {
        std::mem::take(&mut self.lock().packets)
    }

    /// The zxid of the newest state that anything told.
    pub(crate) fn last_told(&self) -> i64 {
        zxid(self.lock().last_told)
    }

    fn added(&self, mut queue: MutexGuard<'_, Queue>) {
        let too_much = queue.bytes.len() > UNSENT_MAX;
        if too_much {
            queue.end = Some(End::Cut);
        }
        if queue.end == Some(End::Cut) {
            // Nobody will send it, and the watches go on filling it until the connection is gone.
            queue.bytes = Vec::new();
        }
        drop(queue);
        self.filled.notify_one();
        if too_much {
            self.severed.notify_one();
        }
    }

    /// Ends the connection once everything queued was sent.
    pub(crate) fn finish(&self) {
        self.lock().end.get_or_insert(End::Flushed);
        self.filled.notify_one();
    }

    /// Ends the connection now.
    pub(crate) fn cut(&self) {
        self.lock().end = Some(End::Cut);
        self.filled.notify_one();
        self.drained.notify_one();
        self.severed.notify_one();
    }

    /// Waits until the connection is cut. One task at a time may wait.
    pub(crate) async fn is_cut(&self) {
        loop {
            let severed = self.severed.notified();
            if self.lock().end == Some(End::Cut) {
                return;
            }
            severed.await;
        }
    }

    /// Waits until there is room for more replies.
    pub(crate) async fn has_room(&self) {
        loop {
            let drained = self.drained.notified();
            {
                let queue = self.lock();
                if queue.bytes.len() < UNSENT_PAUSE || queue.end.is_some() {
                    return;
                }
            }
            drained.await;
        }
    }

    /// The next bytes to send; `None`: the connection ends.
    pub(crate) async fn next(&self, sent: Vec<u8>) -> Option<Vec<u8>> {
        let mut empty = sent;
        empty.clear();
        loop {
            let filled = self.filled.notified();
            {
                let mut queue = self.lock();
                if queue.end == Some(End::Cut) {
                    return None;
                }
                if !queue.bytes.is_empty() {
                    let bytes = std::mem::replace(&mut queue.bytes, empty);
                    drop(queue);
                    self.drained.notify_one();
                    return Some(bytes);
                }
                if queue.end.is_some() {
                    return None;
                }
            }
            filled.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Revisions are far from 2^63.
pub(crate) fn zxid(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(outbox: &Outbox, at: u64) -> Result<(), Overtaken> {
        outbox.replies(Revision(at), [(1, &Reply::Empty)].into_iter())
    }

    /// A client that was told of a change must not be shown the state before it.
    #[test]
    fn a_reply_older_than_an_event_is_made_again() {
        let outbox = Outbox::default();
        reply(&outbox, 3).unwrap();
        outbox.event(Revision(5), EventKind::NodeCreated, "/a");
        assert!(reply(&outbox, 4).is_err());
        reply(&outbox, 5).unwrap();
    }

    /// A client takes the zxid of a ping's answer for what it has seen: it must not be less than it saw before it
    /// came back.
    #[tokio::test]
    async fn the_first_answer_of_a_connection_tells_where_the_store_is() {
        let outbox = Outbox::default();
        outbox.begin_at(Revision(1 << 33));
        outbox.plain(-2, &Reply::Empty);
        let bytes = outbox.next(Vec::new()).await.unwrap();
        assert_eq!(bytes[8..16], (1i64 << 33).to_be_bytes());
    }

    /// A client that takes nothing must not fill our memory with its events.
    #[tokio::test]
    async fn who_takes_nothing_is_cut_off() {
        let outbox = Outbox::default();
        let path = format!("/{}", "x".repeat(1 << 20));
        for at in 0..80 {
            outbox.event(Revision(at), EventKind::NodeCreated, &path);
        }
        outbox.is_cut().await;
        assert_eq!(outbox.next(Vec::new()).await, None);
        assert_eq!(outbox.lock().bytes.capacity(), 0, "what nobody will send is not kept");
    }

    /// What was answered before the end must still arrive: the reply to closeSession, for one.
    #[tokio::test]
    async fn what_is_queued_before_the_end_is_sent() {
        let outbox = Outbox::default();
        outbox.plain(7, &Reply::Empty);
        outbox.finish();
        assert_eq!(outbox.next(Vec::new()).await.map(|bytes| bytes.len()), Some(20));
        assert_eq!(outbox.next(Vec::new()).await, None);
    }
}
