//! What watches missed while their client was away, told from the store's history when they are given back: an
//! extension (`tidelock.replayPersistentWatches`) that ZooKeeper does not have. There persistent watches are only
//! set again, and whatever happened meanwhile is lost to them.
//!
//! - The client is told exactly what it would have been told had it stayed: every change after the last zxid it saw,
//!   in order, each with its own zxid, once per path, before the reply to setWatches. For that the watches are set in
//!   a table of their own first, and the changes run through it.
//! - Changes made meanwhile are held back and told behind the others. No change is missed or told twice at the seam.
//! - If the history no longer reaches back that far, nobody can say what happened. The client is then told to look
//!   again at every path it watches for good ([`look_again`]): too much rather than nothing.
//!
//! Bounded: history is read in pages, at the pace at which the client takes its events; who makes it wait for too
//! long is closed ([`HELD_BACK_MAX`]), comes back, and goes on after the last event it got.

use std::sync::Arc;

use tidelock_coordinator::{Coordinator, WatchNotice, WatchRequest, WatcherId};
use tidelock_model::{Caller, Identity, Key, KeyRange, Revision, Space, ZnodeChange, znode_changes};

use super::{Watches, Wish, at, tell};
use crate::outbox::Outbox;
use crate::watch_table::{ConnectionId, WatchTable};
use crate::wire::{EventKind, Reply};

/// Changes held back for one connection while it is told of earlier ones: some ten megabytes of usual paths.
const HELD_BACK_MAX: usize = 100_000;
const REPLAYING: WatcherId = WatcherId(1);

/// Changes that wait until earlier ones were told.
pub(super) struct HeldBack {
    outbox: Arc<Outbox>,
    changes: Vec<(Revision, ZnodeChange)>,
    /// There were more than are kept.
    too_slow: bool,
}

impl HeldBack {
    pub(super) fn add(&mut self, at: Revision, changes: &[ZnodeChange]) {
        if self.changes.len() + changes.len() <= HELD_BACK_MAX {
            self.changes.extend(changes.iter().map(|change| (at, change.clone())));
        } else {
            self.changes.clear();
            self.too_slow = true;
            self.outbox.cut();
        }
    }
}

/// The watches of one connection on their way from what its client has seen to now.
pub(crate) struct Replay {
    watches: Arc<Watches>,
    connection: ConnectionId,
    outbox: Arc<Outbox>,
    /// As the node's table would be, had the client stayed.
    table: WatchTable,
    /// Up to where changes were told; nothing if the history does not reach back.
    covered: Option<Revision>,
}

/// Why the watches do not count yet.
pub(crate) enum Unfinished {
    /// Not all changes were told: wait for it.
    Behind,
    /// The client is too slow; its connection ends.
    TooSlow,
}

/// The node stops.
pub(crate) struct Stopping;

impl Replay {
    /// Begins with the watches as they were; what changes from now on is held back.
    pub(crate) fn begin<'a>(
        watches: &Arc<Watches>,
        connection: ConnectionId,
        outbox: &Arc<Outbox>,
        identities: Vec<Identity>,
        wishes: impl Iterator<Item = &'a Wish>,
    ) -> Replay {
        let mut table = WatchTable::default();
        table.connect(connection, Arc::clone(outbox), identities);
        wishes.for_each(|wish| table.add(connection, wish.kind, &wish.path));
        let held = HeldBack { outbox: Arc::clone(outbox), changes: Vec::new(), too_slow: false };
        watches.lock().held_back.insert(connection, held);
        Replay { watches: Arc::clone(watches), connection, outbox: Arc::clone(outbox), table, covered: None }
    }

    /// Tells what the history holds of changes after `seen`.
    pub(crate) async fn catch_up(&mut self, coordinator: &dyn Coordinator, seen: Revision) -> Result<(), Stopping> {
        let subscription = coordinator.subscribe();
        let range = KeyRange { start: Key::start_of(Space::Tree), end: Key::end_of(Space::Tree) };
        let (from, caller) = (Some(seen.next()), Caller::Internal);
        subscription.open(WatchRequest { id: REPLAYING, range, from, want_previous: true, caller });
        subscription.request_progress();
        loop {
            match subscription.next().await {
                None => return Err(Stopping),
                Some(WatchNotice::Opened { .. }) => {}
                Some(WatchNotice::Events { events, .. }) => {
                    for revision in events.chunk_by(|one, next| at(one) == at(next)) {
                        let changes = znode_changes(revision);
                        changes.iter().for_each(|change| tell(&mut self.table, at(&revision[0]), change));
                    }
                    // The client's pace is ours.
                    self.outbox.has_room().await;
                }
                Some(WatchNotice::Progress { revision }) => {
                    self.covered = Some(revision);
                    return Ok(());
                }
                Some(WatchNotice::Closed { why, .. }) => {
                    tracing::info!(%seen, ?why, "a client came back to watches whose history is gone: it looks again");
                    return Ok(());
                }
            }
        }
    }

    /// Tells what was held back, lets the watches count in the node's own table, and sends the reply. `once` are
    /// those that fire once with what the state at `at` shows they missed; `staying` are the others, with whether
    /// their znode exists.
    pub(crate) fn finish<'a>(
        &mut self,
        at: Revision,
        reply: (i32, &Reply),
        once: impl Iterator<Item = (&'a Wish, Option<EventKind>)>,
        staying: impl Iterator<Item = (&'a Wish, bool)>,
    ) -> Result<(), Unfinished> {
        let watches = Arc::clone(&self.watches);
        let mut inner = watches.lock();
        if inner.told < at {
            return Err(Unfinished::Behind);
        }
        let held = inner.held_back.remove(&self.connection);
        if held.as_ref().is_some_and(|held| held.too_slow) {
            return Err(Unfinished::TooSlow);
        }
        let held = held.map(|held| held.changes).unwrap_or_default();
        let mut now = at;
        if let Some(covered) = self.covered {
            for (revision, change) in held.iter().filter(|(revision, _)| *revision > covered) {
                tell(&mut self.table, *revision, change);
                now = now.max(*revision);
            }
        }
        for (wish, exists) in staying {
            if self.covered.is_none() {
                look_again(exists).iter().for_each(|event| self.outbox.event(now, *event, &wish.path));
            }
            inner.table.add(self.connection, wish.kind, &wish.path);
        }
        for (wish, missed) in once {
            let fired = self.covered.is_some() && !self.table.has(self.connection, wish.kind, &wish.path);
            match missed {
                None if !fired => inner.table.arm(self.connection, wish.kind, &wish.path, at),
                missed => {
                    inner.table.drop_pending(self.connection, wish.kind, &wish.path);
                    if let Some(event) = missed.filter(|_| !fired) {
                        self.outbox.event(now, event, &wish.path);
                    }
                }
            }
        }
        self.outbox.outcome(reply.0, now, reply.1);
        Ok(())
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.watches.lock().held_back.remove(&self.connection);
    }
}

/// What a client is told of a path it watches for good, if nobody knows what happened there: that everything may
/// have changed. A recursive watch never hears of "children changed" otherwise; here it stands for all below.
fn look_again(exists: bool) -> &'static [EventKind] {
    if exists { &[EventKind::NodeDataChanged, EventKind::NodeChildrenChanged] } else { &[EventKind::NodeDeleted] }
}
