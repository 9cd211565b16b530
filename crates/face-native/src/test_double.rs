//! A coordinator that answers when and what a test says, for tests of order and bounds. What the real one answers is
//! tested with the real one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use tidelock_coordinator::{
    Answering, Consistency, Coordinator, EndedSessions, MemberError, ProposeError, ReadError, Role, Status,
    Subscription, WatchNotice, WatchRequest, WatcherId,
};
use tidelock_model::native_records::Place;
use tidelock_model::{
    Answer, Auth, Caller, ClusterId, Command, Data, Event, Holding, Kind, LeaseId, LeaseInfo, LogIndex, Member,
    MemberChange, MemberFound, Mode, Name, NativeAnswer, NativeCommand, NativeError, NativeFound, NativeQuery,
    NativeSession, NodeId, ObjectFound, Outcome, Query, QueryAnswer, Record, RecordMeta, RequestId, Revision, Term,
    native_keys,
};
use tokio::sync::{Notify, oneshot};

type Waiting = (Command, oneshot::Sender<Result<Outcome, ProposeError>>);

/// The double. Sessions are opened at once; requests wait until the test answers them.
#[derive(Default)]
pub(crate) struct Double {
    waiting: Mutex<VecDeque<Waiting>>,
    proposed: Notify,
    notices: Arc<Notices>,
    opened: Mutex<i64>,
    auth: Mutex<Arc<Auth>>,
    /// Users that this node learns of when it asks.
    auth_of_others: Mutex<Option<Arc<Auth>>>,
    /// Places that every session has: name, place and token.
    held: Mutex<Vec<(Name, u64, u64)>>,
    /// The first place of every election, which the session has: place, token, and where it moved from.
    leads: Mutex<Option<(u64, u64, u64)>>,
    /// The first of them is given back as soon as a part of them was told.
    gives_back: AtomicBool,
    /// The session that was asked about last, which has them.
    asked_of: AtomicI64,
    /// How far the cluster is, if it is further than this node.
    reached: AtomicU64,
    /// How far this node is, if it is further than its subscription.
    carried_out: AtomicU64,
    /// The time to live that sessions were given last, in seconds, if they were.
    ttl_s: AtomicU32,
    /// Which questions are not answered, or not well.
    unanswered: Mutex<Option<(Unanswered, Which)>>,
    /// How often it was asked for anything.
    questions: AtomicU64,
}

/// Some of the questions.
pub(crate) type Which = fn(&NativeQuery) -> bool;

/// What becomes of a question that is not answered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unanswered {
    Refused,
    Waits,
}

#[derive(Default)]
struct Notices {
    queue: Mutex<VecDeque<WatchNotice>>,
    ended: Mutex<EndedSessions>,
    /// The task that waits for the next.
    taker: Mutex<Option<Waker>>,
}

impl Double {
    /// Waits for the next request: what it is, and how to answer it.
    pub(crate) async fn proposal(&self) -> Waiting {
        loop {
            let proposed = self.proposed.notified();
            if let Some(one) = self.waiting.lock().unwrap().pop_front() {
                return one;
            }
            proposed.await;
        }
    }

    /// Lets the subscription tell of a change.
    pub(crate) fn happen(&self, event: Event) {
        let revision = event.record.meta().modified;
        self.tell(WatchNotice::Events { id: WatcherId(1), revision, events: vec![event].into() });
    }

    /// Lets the subscription tell that sessions are over.
    pub(crate) fn end(&self, sessions: Vec<LeaseId>) {
        self.notices.ended.lock().unwrap().sessions.extend(sessions);
        self.wake();
    }

    /// Lets the subscription tell that it may have missed some.
    pub(crate) fn miss_ended(&self) {
        self.notices.ended.lock().unwrap().missed = true;
        self.wake();
    }

    /// Lets every session have a place that was granted.
    pub(crate) fn hold(&self, name: &str, place: u64, token: u64) {
        self.held.lock().unwrap().push((Name::new(name).unwrap(), place, token));
    }

    /// Lets the session that was asked about last have the first place of an election, or nobody.
    pub(crate) fn lead(&self, place: Option<(u64, u64, u64)>) {
        *self.leads.lock().unwrap() = place;
    }

    /// Lets the first place be given back between two questions.
    pub(crate) fn give_back(&self) {
        self.gives_back.store(true, Ordering::SeqCst);
    }

    /// Lets only users in from now on, of whom there are none.
    pub(crate) fn shut_out_everybody(&self) {
        *self.auth.lock().unwrap() = nobody_allowed();
    }

    /// The same, but this node hears of it only when it asks the others.
    pub(crate) fn shut_out_everybody_once_asked(&self) {
        *self.auth_of_others.lock().unwrap() = Some(nobody_allowed());
    }

    /// Lets the cluster have reached a revision.
    pub(crate) fn reach(&self, revision: u64) {
        self.reached.store(revision, Ordering::SeqCst);
    }

    /// Lets this node have carried out all up to a revision.
    pub(crate) fn carry_out(&self, revision: u64) {
        self.carried_out.store(revision, Ordering::SeqCst);
    }

    /// Lets every session live for another time from now on.
    pub(crate) fn live_for(&self, ttl_s: u32) {
        self.ttl_s.store(ttl_s, Ordering::SeqCst);
    }

    /// Lets some questions go unanswered from now on.
    pub(crate) fn leave_unanswered(&self, how: Unanswered, which: Which) {
        *self.unanswered.lock().unwrap() = Some((how, which));
    }

    /// How often anything was asked, proposed or renewed so far.
    pub(crate) fn questions(&self) -> u64 {
        self.questions.load(Ordering::SeqCst)
    }

    fn session(&self, session: LeaseId, holdings: Vec<Holding>, count: u64) -> NativeSession {
        let ttl_s = Some(self.ttl_s.load(Ordering::SeqCst)).filter(|given| *given > 0).unwrap_or(60);
        NativeSession { session, ttl_s, owner: String::new(), acknowledged: 0, holdings, count }
    }

    fn tell(&self, notice: WatchNotice) {
        self.notices.queue.lock().unwrap().push_back(notice);
        self.wake();
    }

    fn wake(&self) {
        let taker = self.notices.taker.lock().unwrap().take();
        if let Some(taker) = taker {
            taker.wake();
        }
    }
}

fn nobody_allowed() -> Arc<Auth> {
    let mut auth = Auth::default();
    auth.enabled = true;
    Arc::new(auth)
}

/// The outcome of a request that was carried out.
pub(crate) fn outcome(revision: u64, answer: NativeAnswer) -> Result<Outcome, ProposeError> {
    Ok(Outcome { revision: Revision(revision), index: LogIndex(revision), result: Ok(Answer::Native(answer)) })
}

/// The outcome of a request that was refused.
pub(crate) fn refused(why: NativeError) -> Result<Outcome, ProposeError> {
    Ok(Outcome { revision: Revision(1), index: LogIndex(1), result: Err(why.into()) })
}

/// The grant of a place.
pub(crate) fn grant(name: &str, session: i64, place: u64, token: u64) -> Event {
    let (created, modified) = (Revision(place), Revision(token));
    let meta = RecordMeta { created, modified, version: 2, lease: LeaseId(session), sub: 0 };
    let key = native_keys::member(Kind::Lock, &Name::new(name).unwrap(), place);
    Event { key, record: Record::new(meta, &stored(token).write()), previous: None }
}

fn stored(token: u64) -> Place {
    Place { mode: Mode::Exclusive, token, moved_from: 0, data: Data::default() }
}

impl Coordinator for Double {
    fn auth(&self) -> Arc<Auth> {
        Arc::clone(&self.auth.lock().unwrap())
    }

    fn propose(
        &self,
        _: Caller,
        command: Command,
        _: Option<RequestId>,
    ) -> Answering<'_, Result<Outcome, ProposeError>> {
        self.questions.fetch_add(1, Ordering::SeqCst);
        if let Command::Native(NativeCommand::Open { ttl_ms, .. }) = command {
            let mut opened = self.opened.lock().unwrap();
            *opened += 1;
            let session = LeaseId(*opened);
            return Box::pin(std::future::ready(outcome(1, NativeAnswer::Opened { session, ttl_ms })));
        }
        let (answer, answered) = oneshot::channel();
        self.waiting.lock().unwrap().push_back((command, answer));
        self.proposed.notify_one();
        Box::pin(async move { answered.await.unwrap_or(Err(ProposeError::Interrupted)) })
    }

    /// Every session there is lives.
    fn read(&self, _: Caller, query: Query, _: Consistency) -> Answering<'_, Result<QueryAnswer, ReadError>> {
        self.questions.fetch_add(1, Ordering::SeqCst);
        if let Query::Native(query) = &query
            && let Some((how, _)) = self.unanswered.lock().unwrap().filter(|(_, which)| which(query))
        {
            return match how {
                Unanswered::Refused => Box::pin(std::future::ready(Err(ReadError::Stopping))),
                Unanswered::Waits => Box::pin(std::future::pending()),
            };
        }
        if let Query::Auth(_) = query {
            let mut known = self.auth.lock().unwrap();
            *known = self.auth_of_others.lock().unwrap().take().unwrap_or_else(|| Arc::clone(&known));
            let answer = QueryAnswer::Auth { revision: Revision(1), auth: Arc::clone(&known) };
            return Box::pin(std::future::ready(Ok(answer)));
        }
        let found = match query {
            Query::Native(NativeQuery::Session { session, skip, holdings }) => {
                self.asked_of.store(session.0, Ordering::SeqCst);
                let mut held = self.held.lock().unwrap();
                let count = held.len() as u64;
                let page = held.iter().skip(skip as usize).take(holdings as usize).cloned();
                let holding = |(name, place, token)| Holding { kind: Kind::Lock, name, place, token };
                let holdings: Vec<Holding> = page.map(holding).collect();
                if !holdings.is_empty() && self.gives_back.swap(false, Ordering::SeqCst) {
                    held.remove(0);
                }
                NativeFound::Sessions(vec![self.session(session, holdings, count)])
            }
            Query::Native(NativeQuery::SomeSessions { sessions, .. }) => {
                let one = |session| self.session(session, Vec::new(), 0);
                NativeFound::Sessions(sessions.into_iter().map(one).collect())
            }
            Query::Native(NativeQuery::Member { place, .. }) => {
                let found = self.held.lock().unwrap().iter().find(|held| held.1 == place).cloned();
                let session = LeaseId(self.asked_of.load(Ordering::SeqCst));
                NativeFound::Member(found.map(|(_, place, token)| {
                    let queued = Some(stored(token));
                    MemberFound { place, session, queued, parties: None, version: 0 }
                }))
            }
            Query::Native(NativeQuery::Describe { .. }) => {
                let session = LeaseId(self.asked_of.load(Ordering::SeqCst));
                let first = self.leads.lock().unwrap().map(|(place, token, moved_from)| {
                    let queued = Some(Place { moved_from, ..stored(token) });
                    MemberFound { place, session, queued, parties: None, version: 0 }
                });
                let members: Vec<MemberFound> = first.into_iter().collect();
                let count = members.len() as u64;
                NativeFound::Object(ObjectFound { head: None, created: 0, tally: None, root: None, members, count })
            }
            _ => NativeFound::Sessions(Vec::new()),
        };
        let revision = Revision(self.reached.load(Ordering::SeqCst).max(1));
        Box::pin(std::future::ready(Ok(QueryAnswer::Native { revision, found })))
    }

    fn subscribe(&self) -> Arc<dyn Subscription> {
        self.tell(WatchNotice::Opened { id: WatcherId(1), revision: Revision(1) });
        Arc::new(DoubleSubscription(Arc::clone(&self.notices)))
    }

    fn keep_alive(&self, _: Caller, lease: LeaseId) -> Answering<'_, Result<Option<LeaseInfo>, ReadError>> {
        self.questions.fetch_add(1, Ordering::SeqCst);
        let info = LeaseInfo { id: lease, granted_ttl_s: 60, remaining_ms: 60_000 };
        Box::pin(std::future::ready(Ok(Some(info))))
    }

    fn lease_info(&self, caller: Caller, lease: LeaseId) -> Answering<'_, Result<Option<LeaseInfo>, ReadError>> {
        self.keep_alive(caller, lease)
    }

    fn change_members(&self, _: Caller, _: MemberChange) -> Answering<'_, Result<Vec<Member>, MemberError>> {
        Box::pin(std::future::ready(Err(MemberError::Busy)))
    }

    fn transfer_leadership(&self, _: Caller, _: NodeId) -> Answering<'_, Result<(), MemberError>> {
        Box::pin(std::future::ready(Err(MemberError::Busy)))
    }

    fn take_snapshot(&self, _: Caller) -> Answering<'_, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn wait_until_swept(&self) -> Answering<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn term(&self) -> Term {
        Term(3)
    }

    fn revision(&self) -> Revision {
        Revision(self.carried_out.load(Ordering::SeqCst).max(1))
    }

    fn status(&self) -> Status {
        Status {
            cluster: ClusterId(1),
            node: NodeId(2),
            role: Role::Leader,
            leader: Some(NodeId(2)),
            term: Term(3),
            committed: LogIndex(1),
            applied: LogIndex(1),
            regained: true,
            revision: Revision(1),
            compacted: Revision(0),
            digest: 0,
            keys: 0,
            leases: 0,
            watchers: 0,
            data_bytes: 0,
            disk_bytes: 0,
            disk_full: false,
            proposals_waiting: 0,
            leader_changes: 0,
            proposals_failed: 0,
            peers: Vec::new(),
        }
    }
}

struct DoubleSubscription(Arc<Notices>);

impl Subscription for DoubleSubscription {
    fn open(&self, _: WatchRequest) {}

    fn close(&self, _: WatcherId) {}

    fn request_progress(&self) {}

    fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<EndedSessions> {
        *self.0.taker.lock().unwrap() = Some(cx.waker().clone());
        let ended = std::mem::take(&mut *self.0.ended.lock().unwrap());
        if ended == EndedSessions::default() { Poll::Pending } else { Poll::Ready(ended) }
    }

    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<WatchNotice>> {
        *self.0.taker.lock().unwrap() = Some(cx.waker().clone());
        match self.0.queue.lock().unwrap().pop_front() {
            Some(notice) => Poll::Ready(Some(notice)),
            None => Poll::Pending,
        }
    }
}
