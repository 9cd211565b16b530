//! Who is told what: one subscription for the whole node, whose events are handed to the mailboxes of those they concern.
//!
//! A grant goes to the mailbox that its session is attached to, unless the reply to the request told it (a place that was
//! granted as it was taken); everything else to those who observe the name. Each notice is encoded once, however many
//! get it. A grant waits for nobody: an observer that is still told what happened to that name before is given up, and
//! looks anew. Whom an event does not concern costs nothing but a look-up of its session and its name.
//!
//! A session that ends is told to the stream it is attached to with the entry that ended it. Nothing is done at intervals.
//!
//! [`Router::routed`] says up to which revision all was handed out: a reply that shows a revision is held back until
//! then, so that a client that knows of a revision has been told all that happened up to it.
//!
//! Nobody is told of a name who may not read it: asked when an observer comes, and again when users and roles change.

mod encode;
mod waiting;

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use foldhash::fast::RandomState;
use tidelock_coordinator::{Coordinator, EndedSessions, WatchNotice, WatchRequest, WatcherId};
use tidelock_model::native_keys::{Slot, parse_borrowed};
use tidelock_model::{
    Auth, Caller, Event, EventKind, Key, KeyRange, Kind, LeaseId, Name, NativeNotice, Need, Revision, Space, Term,
};
use tidelock_native_api::v1;
use tidelock_native_api::v1::lost::Reason;
use tokio::sync::Notify;

use crate::mailbox::{Format, Item, MESSAGES_MAX, Mailbox, PlaceOf};
use crate::problem::Problem;
use crate::session_map::SessionMap;
pub(crate) use encode::{Encoded, Encoder};
use waiting::Waiting;

const WATCHER: WatcherId = WatcherId(1);

type Map<K, V> = HashMap<K, V, RandomState>;

/// One wish to observe a name, from before it is granted until after it is over. It is known by its address: a mailbox
/// may stop observing a name and begin again while the first wish is still seen to.
#[derive(Debug, Default)]
pub(crate) struct Observation {
    is_over: AtomicBool,
}

impl Observation {
    /// Nobody is to be told any more. Changes while the table is held.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }
}

/// Somebody who observes a name.
struct Observer {
    observation: Arc<Observation>,
    mailbox: Arc<Mailbox>,
    caller: Caller,
    /// Up to here it was told by another node, which may be ahead of this one.
    told_revision: u64,
    /// What happened since it came, while it is told what happened before.
    held: Option<Vec<Item>>,
}

#[derive(Default)]
struct Table {
    sessions: SessionMap<Arc<Mailbox>>,
    observers: Map<u8, Map<Box<str>, Vec<Observer>>>,
    waiting: Waiting,
    /// Those whose replies wait for what was not handed out yet.
    behind: Vec<Arc<Mailbox>>,
    /// Everybody, to be told when it is over.
    everybody: Vec<Weak<Mailbox>>,
    auth: Arc<Auth>,
    stopped: bool,
}

/// A session that was attached a moment ago. It is detached again unless somebody keeps it: what was to follow may fail,
/// or nobody may wait for it any more.
pub(crate) struct Attaching<'a> {
    router: &'a Router,
    session: LeaseId,
    mailbox: &'a Arc<Mailbox>,
    after: u64,
    is_kept: bool,
}

impl Attaching<'_> {
    /// Leaves it attached, for the caller to detach: after which revision all is told.
    pub(crate) fn keep(mut self) -> u64 {
        self.is_kept = true;
        self.after
    }
}

impl Drop for Attaching<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.router.detach(std::iter::once(self.session.0), self.mailbox);
        }
    }
}

/// Hands out what happens.
pub(crate) struct Router {
    table: Mutex<Table>,
    routed: AtomicU64,
    /// `routed` became known.
    opened: Notify,
    /// Somebody waits for `routed` to move.
    wished: Notify,
    hash: RandomState,
    encoder: Encoder,
}

impl Router {
    pub(crate) fn new(encoder: Encoder) -> Router {
        Router {
            table: Mutex::default(),
            routed: AtomicU64::new(0),
            opened: Notify::new(),
            wished: Notify::new(),
            hash: RandomState::default(),
            encoder,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything up to here is in the mailboxes of those it concerns.
    pub(crate) fn routed(&self) -> u64 {
        self.routed.load(Ordering::Acquire)
    }

    /// What a grant of this name to this session is known by.
    pub(crate) fn place_of(&self, session: LeaseId, kind: Kind, name: &str) -> PlaceOf {
        (session.0, self.name_hash(kind, name))
    }

    fn name_hash(&self, kind: Kind, name: &str) -> u64 {
        self.hash.hash_one((kind as u8, name))
    }

    /// A new mailbox.
    pub(crate) fn mailbox(&self, format: Format) -> Arc<Mailbox> {
        let mailbox = Arc::new(Mailbox::new(format));
        let mut table = self.lock();
        if table.stopped {
            mailbox.end(Reason::ShuttingDown);
        }
        if table.everybody.len() == table.everybody.capacity() {
            table.everybody.retain(|one| one.strong_count() > 0);
        }
        table.everybody.push(Arc::downgrade(&mailbox));
        mailbox
    }

    /// The table, as soon as events are followed: whoever is put into it misses nothing from then on.
    async fn table_once_open(&self) -> MutexGuard<'_, Table> {
        loop {
            let mut opened = std::pin::pin!(self.opened.notified());
            opened.as_mut().enable();
            {
                let table = self.lock();
                if self.routed() > 0 || table.stopped {
                    return table;
                }
            }
            opened.await;
        }
    }

    /// Has `mailbox` told of this session from now on, and no other.
    pub(crate) async fn attach<'a>(&'a self, session: LeaseId, mailbox: &'a Arc<Mailbox>) -> Attaching<'a> {
        let mut table = self.table_once_open().await;
        let before = table.sessions.insert(session.0, Arc::clone(mailbox));
        let after = self.routed();
        drop(table);
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(before, mailbox)) {
            before.push(self.encoder.lost(before.format, session, Reason::NotAllowed, "another stream attached it"));
        }
        Attaching { router: self, session, mailbox, after, is_kept: false }
    }

    /// Whether `mailbox` is the one that is told of this session.
    pub(crate) fn is_attached(&self, session: LeaseId, mailbox: &Arc<Mailbox>) -> bool {
        self.lock().sessions.get(session.0).is_some_and(|attached| Arc::ptr_eq(attached, mailbox))
    }

    /// Takes back what [`Router::attach`] did, unless another was attached since.
    pub(crate) fn detach(&self, sessions: impl Iterator<Item = i64>, mailbox: &Arc<Mailbox>) {
        let mut table = self.lock();
        for session in sessions {
            if table.sessions.get(session).is_some_and(|attached| Arc::ptr_eq(attached, mailbox)) {
                table.sessions.remove(session);
            }
        }
    }

    /// Has `mailbox` told what happens to a name: after which revision. If it names one that it was told of, it is to be
    /// told first what happened after that, and all of this is held back until [`Router::caught_up`]. Nothing is done if
    /// it was stopped before it began.
    pub(crate) async fn observe(
        &self,
        coordinator: &dyn Coordinator,
        caller: Caller,
        (kind, name): (Kind, &Name),
        (mailbox, observation): (&Arc<Mailbox>, &Arc<Observation>),
        told_revision: u64,
    ) -> Result<u64, Problem> {
        let mut table = self.table_once_open().await;
        // Asked with the table held: a change of users and roles is looked at either here or there.
        coordinator.auth().check(&caller, &Need::ReadName(name.as_str()))?;
        if !observation.is_over() {
            let observers = table.observers.entry(kind as u8).or_default().entry(name.as_str().into()).or_default();
            let (observation, mailbox) = (Arc::clone(observation), Arc::clone(mailbox));
            let held = (told_revision > 0).then(Vec::new);
            observers.push(Observer { observation, mailbox, caller, told_revision, held });
        }
        Ok(self.routed())
    }

    /// Gives out what was held back.
    pub(crate) fn caught_up(&self, kind: Kind, name: &str, observation: &Arc<Observation>) {
        let mut table = self.lock();
        let Some(observers) = table.observers.get_mut(&(kind as u8)).and_then(|names| names.get_mut(name)) else {
            return;
        };
        for observer in observers.iter_mut().filter(|observer| Arc::ptr_eq(&observer.observation, observation)) {
            for item in observer.held.take().unwrap_or_default() {
                observer.mailbox.push(item);
            }
        }
    }

    /// Tells of a name no more, or does not begin to.
    pub(crate) fn stop_observing(&self, kind: Kind, name: &str, observation: &Arc<Observation>) {
        let mut table = self.lock();
        observation.end();
        let Some(names) = table.observers.get_mut(&(kind as u8)) else { return };
        if let Some(observers) = names.get_mut(name) {
            observers.retain(|observer| !Arc::ptr_eq(&observer.observation, observation));
            if observers.is_empty() {
                names.remove(name);
            }
        }
    }

    /// Has `mailbox` woken when all up to `revision` was handed out; whether it was already.
    pub(crate) fn wake_at(&self, revision: u64, mailbox: &Arc<Mailbox>) -> bool {
        let mut table = self.lock();
        if self.routed() >= revision || table.stopped {
            return true;
        }
        table.behind.push(Arc::clone(mailbox));
        drop(table);
        self.wished.notify_one();
        false
    }

    /// Ends everybody's mailbox, and those to come.
    pub(crate) fn stop(&self) {
        let mut table = self.lock();
        table.stopped = true;
        self.end_all(&mut table, Reason::ShuttingDown);
        drop(table);
        self.opened.notify_waiters();
    }

    fn end_all(&self, table: &mut Table, reason: Reason) {
        table.everybody.drain(..).filter_map(|one| one.upgrade()).for_each(|one| one.end(reason));
        table.sessions = SessionMap::default();
        table.observers.clear();
        table.waiting.wake_all();
        table.behind.clear();
    }

    /// Follows the store until the node stops. One task runs this.
    pub(crate) async fn follow(&self, coordinator: Arc<dyn Coordinator>) {
        loop {
            let subscription = coordinator.subscribe();
            subscription.follow_sessions();
            let range = KeyRange { start: Key::start_of(Space::Lock), end: Key::end_of(Space::Lock) };
            let caller = Caller::Internal;
            subscription.open(WatchRequest { id: WATCHER, range, from: None, want_previous: false, caller });
            loop {
                let notice = tokio::select! {
                    biased;
                    notice = subscription.next() => notice,
                    ended = std::future::poll_fn(|cx| subscription.poll_ended(cx)) => {
                        if ended.missed {
                            break;
                        }
                        self.sessions_over(&ended);
                        continue;
                    }
                    () = self.wished.notified() => {
                        // What happened is in the queue before anybody learns of its revision: whoever still waits
                        // does so for changes that are not ours, and nobody tells us of those unasked.
                        if !self.lock().behind.is_empty() {
                            subscription.request_progress();
                        }
                        continue;
                    }
                };
                match notice {
                    None => return self.stop(),
                    Some(WatchNotice::Closed { .. }) => break,
                    Some(notice) => self.take(&*coordinator, notice),
                }
            }
            // What happened meanwhile is lost to us, so nobody may rely on having been told. Who comes from now on waits
            // until events are followed again.
            let mut table = self.lock();
            self.routed.store(0, Ordering::Release);
            self.end_all(&mut table, Reason::Compacted);
        }
    }

    fn take(&self, coordinator: &dyn Coordinator, notice: WatchNotice) {
        let mut table = self.lock();
        let routed = match notice {
            WatchNotice::Opened { revision, .. } => {
                // What happened before is told to nobody: who looked before that looks again.
                table.waiting.wake_all();
                revision
            }
            WatchNotice::Progress { revision } => revision,
            WatchNotice::Events { events, .. } => {
                let term = coordinator.term();
                self.follow_auth(&mut table, coordinator.auth(), term);
                events.iter().for_each(|event| self.hand_out(&mut table, event, term));
                events.last().map_or(Revision::default(), at)
            }
            WatchNotice::Closed { .. } => return,
        };
        let is_first = self.routed.fetch_max(routed.0.max(1), Ordering::Release) == 0;
        table.behind.drain(..).for_each(|mailbox| mailbox.wake());
        drop(table);
        if is_first {
            self.opened.notify_waiters();
        }
    }

    /// Takes away what observers may not read any more.
    fn follow_auth(&self, table: &mut Table, auth: Arc<Auth>, term: Term) {
        if Arc::ptr_eq(&auth, &table.auth) {
            return;
        }
        for (kind, names) in &mut table.observers {
            for (name, observers) in names {
                observers.retain(|observer| {
                    let Err(refusal) = auth.check_again(&observer.caller, &Need::ReadName(name)) else { return true };
                    observer.observation.end();
                    let kind = Kind::from_byte(*kind).unwrap_or(Kind::Lock);
                    match observer.mailbox.format {
                        Format::Stream => {
                            let refused = self.not_observing(kind, name, &refusal.into(), term);
                            observer.mailbox.push(refused);
                        }
                        Format::Notices | Format::Events => observer.mailbox.end(Reason::NotAllowed),
                    }
                    false
                });
            }
        }
        table.auth = auth;
    }

    fn hand_out(&self, table: &mut Table, event: &Event, term: Term) {
        if table.sessions.is_empty() && table.observers.is_empty() && table.waiting.is_empty() {
            return;
        }
        let Some((kind, name, slot)) = parse_borrowed(&event.key) else { return };
        if let Slot::Member { number, .. } = slot
            && !table.waiting.is_empty()
        {
            table.waiting.wake((self.name_hash(kind, name), number));
        }
        let (session, now) = (event.record.meta().lease, at(event).0);
        // A place is named by the revision at which it was taken. If that is now, the reply tells all there is to tell.
        let is_old_place = matches!(slot, Slot::Member { number, .. } if kind.is_queue() && number != now);
        let is_told = is_old_place && event.kind() == EventKind::Put;
        let attached = if is_told { table.sessions.get(session.0) } else { None };
        let mut observers = table.observers.get_mut(&(kind as u8)).and_then(|names| names.get_mut(name));
        if attached.is_none() && observers.is_none() {
            return;
        }
        let Some(notice) = NativeNotice::of(event) else { return };
        let is_grant = matches!(notice, NativeNotice::Granted { .. });
        let granted = (is_grant && is_old_place).then(|| self.place_of(session, kind, name));
        if granted.is_none() && observers.is_none() {
            return;
        }
        let mut encoded = Encoded::new(&self.encoder, notice, event);
        if let (Some(mailbox), Some(_)) = (attached, granted) {
            let is_observer = |observer: &Observer| Arc::ptr_eq(&observer.mailbox, mailbox);
            // Held back, it would be overtaken by replies and other grants, and lost if the client went then: it comes
            // back with what it was told last. Told before what the observer missed, it would be lost to that.
            let is_behind = |observer: &mut Observer| {
                is_observer(observer) && observer.held.is_some() && now > observer.told_revision
            };
            for observer in observers.iter_mut().flat_map(|observers| observers.extract_if(.., is_behind)) {
                observer.observation.end();
                mailbox.push(self.not_observing(kind, name, &overtaken(), term));
            }
            if !observers.as_ref().is_some_and(|observers| observers.iter().any(is_observer)) {
                mailbox.push(encoded.item(mailbox.format, granted));
            }
        }
        let untold = |observer: &&mut Observer| now > observer.told_revision;
        for observer in observers.iter_mut().flat_map(|observers| observers.iter_mut()).filter(untold) {
            let item = encoded.item(observer.mailbox.format, granted);
            match &mut observer.held {
                None => drop(observer.mailbox.push(item)),
                Some(held) if held.len() < MESSAGES_MAX => held.push(item),
                Some(_) => observer.mailbox.end(Reason::TooSlow),
            }
        }
    }

    /// That a name is observed no longer. It shows the revision up to which all was told.
    fn not_observing(&self, kind: Kind, name: &str, problem: &Problem, term: Term) -> Item {
        self.encoder.not_observing(kind, name, problem, (self.routed(), term))
    }

    /// Tells whoever the session is attached to that it is over.
    pub(crate) fn session_over(&self, session: LeaseId) {
        self.end_session(&mut self.lock(), session);
    }

    fn sessions_over(&self, ended: &EndedSessions) {
        let mut table = self.lock();
        ended.sessions.iter().for_each(|session| self.end_session(&mut table, *session));
    }

    fn end_session(&self, table: &mut Table, session: LeaseId) {
        if let Some(mailbox) = table.sessions.remove(session.0) {
            let why = "its time ran out, or it was closed";
            mailbox.push(self.encoder.lost(mailbox.format, session, Reason::SessionEnded, why));
        }
    }

    /// How many sessions and observers there are.
    #[cfg(test)]
    pub(crate) fn registered(&self) -> (usize, usize) {
        let table = self.lock();
        let names = table.observers.values().flat_map(Map::values);
        (table.sessions.len(), names.map(Vec::len).sum())
    }

    /// Notices made of something else than an event.
    pub(crate) fn encoder(&self) -> &Encoder {
        &self.encoder
    }
}

fn overtaken() -> Problem {
    let text = "a grant to the client came before all was told that happened until then; ask what is";
    Problem::new(v1::error::Family::Absent, "COMPACTED", text)
}

fn at(event: &Event) -> Revision {
    event.record.meta().modified
}

/// A notice about a place that a session was granted while nobody told it.
pub(crate) fn missed_grant(kind: Kind, name: Name, session: LeaseId, member: &v1::Member) -> NativeNotice {
    let (place, token, moved_from) = (member.place, member.token, member.moved_from);
    NativeNotice::Granted { kind, name, place, moved_from, session, token }
}
