//! Watch delivery: turns applied events into bounded queues, one per subscription.
//!
//! A watcher sees every event in its range from its start revision on, once, in revision order. A
//! watcher whose subscription does not keep up is not dropped and slows nobody: it is marked lagging,
//! and whoever empties the queue re-reads what it missed from `state::history`, page by page, until
//! it is close enough for the hub to take it back. Opening a watcher in the past is the same thing.
//!
//! Invariants (simulator: watch ordered, unique, gapless, atomic, bookmark):
//! - W1, W2: a live watcher was told of everything below the hub's revision + 1, and of nothing twice;
//! - W4: the events of one revision are in one notice;
//! - W6: progress is only told while no watcher of the subscription lags;
//! - W9: nothing below a watcher's start revision is ever queued.
//!
//! Cost of an event: one look-up for its key, one per distinct prefix length being watched, one among the
//! other ranges, and a push per matching watcher. Watchers of the same range share what they are told, and
//! a subscription is woken once, whatever the number of its watchers.
//!
//! The end of a native session changes no key, so no history has it: who follows sessions is told beside its notices, and
//! told that it missed some where the hub itself cannot know ([`WatchHub::jumped`]).
//!
//! Who may watch what is asked when a watcher is opened and whenever users and roles change (A1).
//!
//! Not here: encoding (faces), one-shot watches (faces).

mod interest;
mod queue;
mod range_tree;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidelock_model::{
    Auth, Errand, Event, LeaseId, Need, Revision, SharedEvents, WatchClosed, WatchNotice, WatchRequest, WatcherId,
};
use tidelock_state::State;

use self::interest::{Group, Interests};
pub use self::queue::{Lag, QueueLimits, WatchQueue};

/// Names a subscription within one hub.
pub type SubscriberId = u64;

/// Events the hub itself re-reads to take a lagging watcher back: a part of what fits into its queue. What is further behind keeps
/// re-reading outside the thread that applies.
const TAKE_BACK_PART: usize = 16;

struct Watcher {
    request: WatchRequest,
    /// Nothing below this was or will be told while live.
    next: Revision,
    live: bool,
}

struct Subscriber {
    queue: Arc<WatchQueue>,
    watchers: BTreeMap<WatcherId, Watcher>,
    lagging: usize,
    progress_wanted: bool,
}

/// All watchers of one node.
#[derive(Default)]
pub struct WatchHub {
    subscribers: BTreeMap<SubscriberId, Subscriber>,
    interests: Interests,
    /// Who is told which sessions end.
    followers: BTreeSet<SubscriberId>,
    revision: Revision,
    touched: Vec<Arc<WatchQueue>>,
    watchers: u64,
    lagged: u64,
}

/// What a subscription asks of the hub.
#[derive(Debug)]
pub enum WatchControl {
    /// It exists.
    Subscribe {
        /// Its id.
        subscriber: SubscriberId,
        /// Where its notices go.
        queue: Arc<WatchQueue>,
    },
    /// It is gone.
    Unsubscribe {
        /// Which.
        subscriber: SubscriberId,
    },
    /// Open a watcher.
    Open {
        /// For whom.
        subscriber: SubscriberId,
        /// What.
        request: WatchRequest,
    },
    /// Close a watcher.
    Close {
        /// Whose.
        subscriber: SubscriberId,
        /// Which.
        watcher: WatcherId,
        /// Told to the subscription.
        why: WatchClosed,
    },
    /// Tell which native sessions end, from now on.
    FollowSessions {
        /// Whom.
        subscriber: SubscriberId,
    },
    /// Tell once everybody is up to date.
    Progress {
        /// Whom.
        subscriber: SubscriberId,
    },
    /// A lagging watcher has re-read everything below `next`.
    TakeBack {
        /// Whose.
        subscriber: SubscriberId,
        /// Which.
        watcher: WatcherId,
        /// What it needs next.
        next: Revision,
    },
}

impl WatchHub {
    /// A hub that has seen everything up to `revision`.
    #[must_use]
    pub fn new(revision: Revision) -> WatchHub {
        WatchHub { revision, ..WatchHub::default() }
    }

    /// Open watchers.
    #[must_use]
    pub fn watchers(&self) -> u64 {
        self.watchers
    }

    /// Hands out the events of one applied entry, after which the store is at `revision`.
    pub fn publish(&mut self, events: &[Event], revision: Revision) {
        self.revision = revision;
        if self.watchers == 0 || events.is_empty() {
            return;
        }
        let WatchHub { subscribers, interests, touched, lagged, .. } = self;
        let mut delivery = Delivery { revision, subscribers, touched, lagged };
        if let [event] = events {
            let mut shared = None;
            interests.each_matching(&event.key, |group| {
                let events = shared.get_or_insert_with(|| SharedEvents::from(vec![event.clone()]));
                delivery.deliver(group, events);
            });
            return;
        }
        // W4: a group is told everything of a revision at once.
        let mut matched: BTreeMap<u64, (&Group, Vec<Event>)> = BTreeMap::new();
        for event in events {
            interests.each_matching(&event.key, |group| {
                matched.entry(group.number).or_insert_with(|| (group, Vec::new())).1.push(event.clone());
            });
        }
        for (group, events) in matched.into_values() {
            if tidelock_model::planted!(RevisionToldInPieces) {
                events.into_iter().for_each(|event| delivery.deliver(group, &vec![event].into()));
                continue;
            }
            delivery.deliver(group, &events.into());
        }
    }

    /// Tells of a session that ended by the entry whose events were published last.
    pub fn session_ended(&mut self, session: LeaseId) {
        for subscriber in self.followers.iter().filter_map(|id| self.subscribers.get(id)) {
            subscriber.queue.end_session(session);
            // Thousands may end at once; the task is woken once.
            if !self.touched.last().is_some_and(|last| Arc::ptr_eq(last, &subscriber.queue)) {
                self.touched.push(subscriber.queue.clone());
            }
        }
    }

    /// How often a watcher fell behind because its queue was full.
    #[must_use]
    pub fn lagged(&self) -> u64 {
        self.lagged
    }

    /// Wakes who has something to take. Apart from [`WatchHub::publish`] so that it happens when no
    /// lock is held any more.
    pub fn wake(&mut self) {
        self.touched.drain(..).for_each(|queue| queue.wake());
    }

    /// Carries out what a subscription asked for.
    pub fn control(&mut self, state: &State, control: WatchControl) {
        match control {
            WatchControl::Subscribe { subscriber, queue } => {
                let new = Subscriber { queue, watchers: BTreeMap::new(), lagging: 0, progress_wanted: false };
                self.subscribers.insert(subscriber, new);
            }
            WatchControl::FollowSessions { subscriber } => drop(self.followers.insert(subscriber)),
            WatchControl::Unsubscribe { subscriber } => {
                self.followers.remove(&subscriber);
                for (id, watcher) in self.subscribers.remove(&subscriber).map(|s| s.watchers).unwrap_or_default() {
                    self.interests.remove(&watcher.request.range, (subscriber, id));
                    self.watchers -= 1;
                }
            }
            WatchControl::Open { subscriber, request } => self.open(state, subscriber, request),
            WatchControl::Close { subscriber, watcher, why } => self.close(subscriber, watcher, why),
            WatchControl::Progress { subscriber } => {
                if let Some(subscriber) = self.subscribers.get_mut(&subscriber) {
                    subscriber.progress_wanted = true;
                    subscriber.tell_progress(self.revision);
                    self.touched.push(subscriber.queue.clone());
                }
            }
            WatchControl::TakeBack { subscriber, watcher, next } => self.take_back(state, subscriber, watcher, next),
        }
    }

    fn open(&mut self, state: &State, subscriber_id: SubscriberId, request: WatchRequest) {
        let Some(subscriber) = self.subscribers.get_mut(&subscriber_id) else { return };
        let (id, after_now) = (request.id, self.revision.next());
        if subscriber.watchers.contains_key(&id) {
            // Faces hand out unused ids; a second use is theirs to report, and changes nothing here.
            return;
        }
        if let Err(refusal) = state.authorise(&request.caller, |needs| Errand::Watch(&request.range).needs(needs)) {
            subscriber.queue.push(WatchNotice::Closed { id, why: WatchClosed::Refused(refusal) });
            self.touched.push(subscriber.queue.clone());
            return;
        }
        let next = request.from.unwrap_or(after_now);
        let live = next >= after_now;
        self.interests.add(&request.range, (subscriber_id, id));
        self.watchers += 1;
        let watcher = Watcher { request, next, live };
        subscriber.queue.push(WatchNotice::Opened { id, revision: self.revision });
        if !live {
            subscriber.lagging += 1;
            subscriber.queue.lag(id, lag_of(&watcher, next));
        }
        subscriber.watchers.insert(id, watcher);
        self.touched.push(subscriber.queue.clone());
        if !live && next < state.compacted() && !tidelock_model::planted!(CompactedWatchStaysSilent) {
            self.close(subscriber_id, id, WatchClosed::Compacted { compacted: state.compacted() });
        }
    }

    /// Users or roles have changed: who may not read any more what it watches is told so, and nothing else.
    pub fn check_callers(&mut self, auth: &Auth) {
        let mut refused = Vec::new();
        for (subscriber, watchers) in self.subscribers.iter().map(|(id, one)| (*id, &one.watchers)) {
            for (id, watcher) in watchers {
                let WatchRequest { caller, range, .. } = &watcher.request;
                if let Err(refusal) = auth.check_again(caller, &Need::Read(range)) {
                    refused.push((subscriber, *id, refusal));
                }
            }
        }
        if tidelock_model::planted!(RevokedWatcherGoesOn) {
            return;
        }
        for (subscriber, id, refusal) in refused {
            self.close(subscriber, id, WatchClosed::Refused(refusal));
        }
    }

    fn close(&mut self, subscriber_id: SubscriberId, id: WatcherId, why: WatchClosed) {
        let Some(subscriber) = self.subscribers.get_mut(&subscriber_id) else { return };
        let Some(watcher) = subscriber.watchers.remove(&id) else { return };
        self.interests.remove(&watcher.request.range, (subscriber_id, id));
        self.watchers -= 1;
        if !watcher.live {
            subscriber.lagging -= 1;
            subscriber.queue.caught_up(id);
        }
        subscriber.queue.push(WatchNotice::Closed { id, why });
        subscriber.tell_progress(self.revision);
        self.touched.push(subscriber.queue.clone());
    }

    /// Makes a lagging watcher live again if what it misses is little, or nothing.
    fn take_back(&mut self, state: &State, subscriber_id: SubscriberId, id: WatcherId, next: Revision) {
        let Some(subscriber) = self.subscribers.get_mut(&subscriber_id) else { return };
        let Some(watcher) = subscriber.watchers.get_mut(&id).filter(|watcher| !watcher.live) else { return };
        let (range, previous) = (&watcher.request.range, watcher.request.want_previous);
        let next = if tidelock_model::planted!(TakenBackOneTooEarly) { Revision(next.0 - 1) } else { next };
        self.touched.push(subscriber.queue.clone());
        let most = (subscriber.queue.limits().events / TAKE_BACK_PART).max(1);
        let page = match state.events_page(range, next, most, previous) {
            Ok(page) => page,
            Err(_) => return self.close(subscriber_id, id, WatchClosed::Compacted { compacted: state.compacted() }),
        };
        let caught_up = page.next > state.revision();
        let empty = page.events.is_empty();
        let notice = WatchNotice::Events { id, revision: self.revision, events: page.events.into() };
        if caught_up && (empty || subscriber.queue.offer(notice)) {
            watcher.live = true;
            watcher.next = page.next;
            subscriber.lagging -= 1;
            subscriber.queue.caught_up(id);
            subscriber.tell_progress(self.revision);
        } else {
            subscriber.queue.lag(id, lag_of(watcher, next));
        }
    }

    /// The state was replaced by a snapshot: everybody re-reads from where they are.
    pub fn jumped(&mut self, revision: Revision) {
        let told = self.revision;
        self.revision = revision;
        if tidelock_model::planted!(WatchersMissTheJump) {
            return;
        }
        for (id, subscriber) in &mut self.subscribers {
            if self.followers.contains(id) && !tidelock_model::planted!(EndsMissTheJump) {
                subscriber.queue.miss_ended();
            }
            for (id, watcher) in &mut subscriber.watchers {
                if watcher.live && watcher.next <= revision {
                    watcher.live = false;
                    subscriber.lagging += 1;
                    subscriber.queue.lag(*id, lag_of(watcher, watcher.next.max(told.next())));
                }
            }
            self.touched.push(subscriber.queue.clone());
        }
    }
}

/// The part of the hub that is needed to hand out events, while the groups they go to are looked at.
struct Delivery<'a> {
    revision: Revision,
    subscribers: &'a mut BTreeMap<SubscriberId, Subscriber>,
    touched: &'a mut Vec<Arc<WatchQueue>>,
    lagged: &'a mut u64,
}

impl Delivery<'_> {
    /// Hands the same events to all watchers of a range.
    fn deliver(&mut self, group: &Group, events: &SharedEvents) {
        let mut members = group.who.iter().peekable();
        while let Some((subscriber_id, id)) = members.next() {
            let Some(subscriber) = self.subscribers.get_mut(subscriber_id) else { continue };
            let mut touched = subscriber.take(*id, self.revision, events, self.lagged);
            while let Some((_, id)) = members.next_if(|(other, _)| other == subscriber_id) {
                touched |= subscriber.take(*id, self.revision, events, self.lagged);
            }
            if touched {
                self.touched.push(subscriber.queue.clone());
            }
        }
    }
}

fn lag_of(watcher: &Watcher, next: Revision) -> Lag {
    Lag { next, range: watcher.request.range.clone(), want_previous: watcher.request.want_previous }
}

impl Subscriber {
    /// Queues what a watcher wants to hear of `events`, or has it lag. Whether there was any.
    fn take(&mut self, id: WatcherId, revision: Revision, events: &SharedEvents, lagged: &mut u64) -> bool {
        let Some(watcher) = self.watchers.get_mut(&id) else { return false };
        // A watcher may start in the future.
        let early = tidelock_model::planted!(FutureWatchToldAtOnce);
        let wanted = |event: &&Event| event.record.meta().modified >= watcher.next || early;
        let Some(first) = events.iter().find(wanted).map(|event| event.record.meta().modified) else { return false };
        if !watcher.live {
            return false;
        }
        let events = match events.iter().all(|event| wanted(&event)) {
            true => events.clone(),
            false => events.iter().filter(wanted).cloned().collect::<Vec<_>>().into(),
        };
        if !self.queue.offer(WatchNotice::Events { id, revision, events }) {
            if tidelock_model::planted!(FullQueueDropsEvents) {
                return false;
            }
            *lagged += 1;
            watcher.live = false;
            self.lagging += 1;
            let from = if tidelock_model::planted!(LagBeginsTooLate) { revision.next() } else { first };
            self.queue.lag(id, lag_of(watcher, from));
        }
        true
    }

    fn tell_progress(&mut self, revision: Revision) {
        if self.progress_wanted && (self.lagging == 0 || tidelock_model::planted!(ProgressWhileLagging)) {
            self.progress_wanted = false;
            self.queue.push(WatchNotice::Progress { revision });
        }
    }
}

#[cfg(test)]
mod tests;
