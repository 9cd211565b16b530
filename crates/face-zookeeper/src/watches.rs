//! The watches of this node, kept in step with the store.
//!
//! One subscription follows all znodes; one task takes its events in order, tells those who watch, and publishes
//! up to which revision everything was told. A reply that shows revision R waits for that: so the event of a change
//! leaves before any reply that shows it, on every connection, with reads made in parallel.
//!
//! What changed while a client was away is told by `replay`, if that is wanted.
//!
//! The same task learns from the sessions' own records that a session ended or went on elsewhere.

mod replay;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidelock_coordinator::{Coordinator, Subscription, WatchNotice, WatchRequest, WatcherId};
use tidelock_model::{
    Caller, Event, Key, KeyRange, LeaseId, Revision, SESSION_KEY, Space, ZnodeChange, ZnodeEvent, znode_changes,
};
use tokio::sync::Notify;

use crate::outbox::{Outbox, Overtaken};
use crate::outside::Outside;
use crate::watch_table::{Change, ConnectionId, WatchKind, WatchTable};
use crate::wire::{EventKind, Reply};

use replay::HeldBack;
pub(crate) use replay::{Replay, Unfinished};

const WATCHER: WatcherId = WatcherId(1);
/// How long to wait before a node that is behind is asked again how far it is.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// A watch that a read asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) kind: WatchKind,
    pub(crate) path: String,
}

/// What is to be told of a session.
pub(crate) trait SessionNews: Send + Sync {
    /// It is over.
    fn ended(&self, session: LeaseId);
    /// Another connection took it over.
    fn taken_over(&self, session: LeaseId, generation: u64);
}

/// Why a reply cannot be sent yet.
pub(crate) enum Early {
    /// Not all changes it shows were told.
    Behind,
    /// Later changes were told already: read again.
    Overtaken,
}

/// The watches of this node.
pub(crate) struct Watches {
    inner: Mutex<Inner>,
    subscription: Mutex<Arc<dyn Subscription>>,
    /// `told` moved, or was confirmed.
    moved: Notify,
    outside: Arc<dyn Outside>,
}

struct Inner {
    table: WatchTable,
    /// Up to here every change was told.
    told: Revision,
    /// What waits for clients that are told of earlier changes first.
    held_back: HashMap<ConnectionId, HeldBack>,
}

impl Watches {
    pub(crate) fn new(coordinator: &dyn Coordinator, outside: Arc<dyn Outside>) -> Watches {
        Watches::over(coordinator.subscribe(), outside)
    }

    fn over(subscription: Arc<dyn Subscription>, outside: Arc<dyn Outside>) -> Watches {
        let inner = Inner { table: WatchTable::default(), told: Revision::default(), held_back: HashMap::new() };
        Watches { inner: Mutex::new(inner), subscription: Mutex::new(subscription), moved: Notify::new(), outside }
    }

    /// Follows the store until the node stops. One task runs this.
    pub(crate) async fn follow(&self, coordinator: Arc<dyn Coordinator>, sessions: Arc<dyn SessionNews>) {
        loop {
            let subscription = Arc::clone(&self.subscription.lock().unwrap_or_else(PoisonError::into_inner));
            let range = KeyRange { start: Key::start_of(Space::Tree), end: Key::end_of(Space::Tree) };
            subscription.open(WatchRequest {
                id: WATCHER,
                range,
                from: None,
                // What a deleted znode's rights were, says what was before.
                want_previous: true,
                caller: Caller::Internal,
            });
            loop {
                match subscription.next().await {
                    None => return self.lock().table.cut_all(),
                    Some(WatchNotice::Closed { .. }) => break,
                    Some(notice) => self.take(notice, &*sessions),
                }
            }
            // What happened meanwhile is lost to us, so nobody may rely on having been told.
            self.lock().table.cut_all();
            *self.subscription.lock().unwrap_or_else(PoisonError::into_inner) = coordinator.subscribe();
        }
    }

    fn take(&self, notice: WatchNotice, sessions: &dyn SessionNews) {
        let mut inner = self.lock();
        match notice {
            WatchNotice::Opened { revision, .. } | WatchNotice::Progress { revision } => {
                inner.told = inner.told.max(revision);
            }
            WatchNotice::Events { events, .. } => {
                for revision in events.chunk_by(|one, next| at(one) == at(next)) {
                    inner.tell(revision, sessions);
                }
                if let Some(last) = events.last() {
                    inner.told = inner.told.max(at(last));
                }
            }
            WatchNotice::Closed { .. } => {}
        }
        drop(inner);
        self.moved.notify_waiters();
    }

    /// Waits until every change up to `at` was told.
    pub(crate) async fn told_up_to(&self, at: Revision) {
        if self.lock().told >= at {
            return;
        }
        // What has changed was handed to the task that tells of it before anybody learnt of the revision, so usually
        // that task only has to get its turn. Asking for it would wake two threads.
        tokio::task::yield_now().await;
        let mut ask_at = self.outside.now();
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            moved.as_mut().enable();
            if self.lock().told >= at {
                return;
            }
            // Changes of other keyspaces move the revision too, and nobody tells us of those unasked. A node that is
            // not there yet answers at once and in vain, so it is not asked again before it had time to move.
            let now = self.outside.now();
            if now >= ask_at {
                ask_at = now + ASK_AGAIN;
                self.subscription.lock().unwrap_or_else(PoisonError::into_inner).request_progress();
            }
            self.outside.within(ASK_AGAIN, moved).await;
        }
    }

    /// Begins the watches that reads ask for.
    pub(crate) fn begin<'a>(&self, connection: ConnectionId, wishes: impl Iterator<Item = &'a Wish>) {
        let mut inner = self.lock();
        wishes.for_each(|wish| inner.table.begin(connection, wish.kind, &wish.path));
    }

    /// Sends replies that show the state at `at` and lets the watches that came with them count from there;
    /// those that came with a refused read (`false`) are dropped.
    pub(crate) fn reply<'a>(
        &self,
        connection: ConnectionId,
        outbox: &Outbox,
        at: Revision,
        replies: impl Iterator<Item = (i32, &'a Reply)>,
        wishes: impl Iterator<Item = (&'a Wish, bool)>,
    ) -> Result<(), Early> {
        let mut inner = self.lock();
        if inner.told < at {
            return Err(Early::Behind);
        }
        outbox.replies(at, replies).map_err(|Overtaken| Early::Overtaken)?;
        for (wish, granted) in wishes {
            if granted {
                inner.table.arm(connection, wish.kind, &wish.path, at);
            } else {
                inner.table.drop_pending(connection, wish.kind, &wish.path);
            }
        }
        Ok(())
    }

    /// The same for watches that a client had before it came back: those whose znode changed meanwhile fire, the
    /// others count from now on; then the reply.
    pub(crate) fn restore<'a>(
        &self,
        connection: ConnectionId,
        outbox: &Outbox,
        at: Revision,
        reply: (i32, &Reply),
        watches: impl Iterator<Item = (&'a Wish, Option<EventKind>)>,
    ) -> Result<(), Early> {
        let mut inner = self.lock();
        if inner.told < at {
            return Err(Early::Behind);
        }
        for (wish, fired) in watches {
            match fired {
                Some(event) => {
                    inner.table.drop_pending(connection, wish.kind, &wish.path);
                    outbox.missed_event(at, event, &wish.path);
                }
                None => inner.table.arm(connection, wish.kind, &wish.path, at),
            }
        }
        outbox.outcome(reply.0, at, reply.1);
        Ok(())
    }

    /// Works on the table; what is sent within is in order with everything else.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut WatchTable, Revision) -> T) -> T {
        let mut inner = self.lock();
        let told = inner.told;
        work(&mut inner.table, told)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn at(event: &Event) -> Revision {
    event.record.meta().modified
}

impl Inner {
    /// Tells of all changes of one revision.
    fn tell(&mut self, events: &[Event], sessions: &dyn SessionNews) {
        if self.table.is_empty() && self.held_back.is_empty() {
            return tell_of_sessions(events, sessions);
        }
        let at = events.first().map_or_else(Revision::default, at);
        let changes = znode_changes(events);
        self.held_back.values_mut().for_each(|held| held.add(at, &changes));
        for change in &changes {
            match change.event {
                ZnodeEvent::SessionTaken { session, generation } => sessions.taken_over(session, generation),
                ZnodeEvent::SessionEnded(session) => sessions.ended(session),
                _ => tell(&mut self.table, at, change),
            }
        }
    }
}

/// What is left to tell while nobody watches a znode.
fn tell_of_sessions(events: &[Event], sessions: &dyn SessionNews) {
    let of_sessions = events.iter().filter(|event| event.key.name().first() == Some(&SESSION_KEY));
    for event in of_sessions {
        match ZnodeEvent::of(event) {
            Some(ZnodeEvent::SessionTaken { session, generation }) => sessions.taken_over(session, generation),
            Some(ZnodeEvent::SessionEnded(session)) => sessions.ended(session),
            _ => {}
        }
    }
}

/// Tells those who watch a znode, and may read it, of a change.
fn tell(table: &mut WatchTable, at: Revision, ZnodeChange { event, rights, parent_rights }: &ZnodeChange) {
    let (change, path) = match event {
        ZnodeEvent::Created(path) => (Change::Created, path),
        ZnodeEvent::DataChanged(path) => (Change::DataChanged, path),
        ZnodeEvent::Deleted(path) => (Change::Deleted, path),
        ZnodeEvent::SessionTaken { .. } | ZnodeEvent::SessionEnded(_) => return,
    };
    table.tell(at, change, path, rights, parent_rights);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outside::ThisMachine;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll};

    #[derive(Default)]
    struct Asked(AtomicUsize);

    impl Subscription for Asked {
        fn open(&self, _: WatchRequest) {}
        fn close(&self, _: WatcherId) {}
        fn request_progress(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn poll_next(&self, _: &mut Context<'_>) -> Poll<Option<WatchNotice>> {
            Poll::Pending
        }
    }

    struct Nobody;

    impl SessionNews for Nobody {
        fn ended(&self, _: LeaseId) {}
        fn taken_over(&self, _: LeaseId, _: u64) {}
    }

    /// A client that says to have seen the future must not keep a core busy while it is made to wait.
    #[tokio::test]
    async fn a_node_that_is_behind_is_not_asked_all_the_time_how_far_it_is() {
        let asked = Arc::new(Asked::default());
        let watches = Watches::over(asked.clone(), Arc::new(ThisMachine::default()));
        let answering = async {
            loop {
                watches.take(WatchNotice::Progress { revision: Revision(5) }, &Nobody);
                tokio::task::yield_now().await;
            }
        };
        let waiting = async {
            tokio::select! {
                () = watches.told_up_to(Revision(6)) => panic!("nobody told it"),
                () = answering => {}
            }
        };
        assert!(tokio::time::timeout(ASK_AGAIN * 10, waiting).await.is_err());
        let times = asked.0.load(Ordering::Relaxed);
        assert!((1..=20).contains(&times), "{times}");
    }
}
