//! A cluster in one struct, for tests of clients and workloads: commands are applied to one state at once,
//! reads are always fresh, and watchers are served by the real hub. Tests can make calls fail or wait.

use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use tidelock_coordinator::{
    Answering, Consistency, Coordinator, MemberError, ProposeError, ReadError, Role, Status, Subscription, WatchNotice,
    WatchRequest, WatcherId,
};
use tidelock_model::{
    Auth, Batch, Caller, ClusterId, Command, LeaseId, LeaseInfo, LogTime, Member, MemberChange, MemberRole, NodeId,
    Origin, Outcome, Proposal, Query, QueryAnswer, RequestId, Revision, Term, WatchClosed,
};
use tidelock_replica::watch_hub::{QueueLimits, SubscriberId, WatchControl, WatchHub, WatchQueue};
use tidelock_state::State;

use super::{Client, Recorder, Surroundings};
use crate::coverage::Coverage;
use crate::doors::Doors;
use crate::executor::{Clock, Executor};
use crate::history::{History, Micros, Request, Told};
use crate::random::Random;

/// Changes re-read for a lagging watcher at a time.
const PAGE_CHANGES: usize = 10;
/// So little that slow readers lag.
const QUEUE: QueueLimits = QueueLimits { events: 10, bytes: 10_000 };
/// The term everything happens in.
pub(crate) const TERM: u64 = 3;

struct Content {
    state: State,
    hub: WatchHub,
    subscribers: SubscriberId,
    proposals: u64,
    refuse_proposals: VecDeque<ProposeError>,
    refuse_reads: VecDeque<ReadError>,
    role: Role,
}

/// The cluster.
pub(crate) struct Double {
    content: Mutex<Content>,
    /// Every call waits here first, if tests said so.
    waits: Mutex<bool>,
}

impl Double {
    pub(crate) fn new() -> Arc<Double> {
        let mut state = State::new();
        state.bootstrap_members((1..=3).map(founder).collect());
        let content = Content {
            hub: WatchHub::new(state.revision()),
            state,
            subscribers: 0,
            proposals: 0,
            refuse_proposals: VecDeque::new(),
            refuse_reads: VecDeque::new(),
            role: Role::Leader,
        };
        Arc::new(Double { content: Mutex::new(content), waits: Mutex::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap()
    }

    pub(crate) fn refuse_proposal(&self, error: ProposeError) {
        self.lock().refuse_proposals.push_back(error);
    }

    pub(crate) fn refuse_read(&self, error: ReadError) {
        self.lock().refuse_reads.push_back(error);
    }

    pub(crate) fn become_learner(&self) {
        self.lock().role = Role::Learner;
    }

    /// From now on no call is answered.
    pub(crate) fn answer_nobody(&self) {
        *self.waits.lock().unwrap() = true;
    }

    pub(crate) fn proposals(&self) -> u64 {
        self.lock().proposals
    }

    pub(crate) fn members(&self) -> Vec<Member> {
        self.lock().state.members().by_id.values().cloned().collect()
    }

    async fn wait(&self) {
        if *self.waits.lock().unwrap() {
            std::future::pending::<()>().await;
        }
    }

    fn control(&self, control: WatchControl) {
        let content = &mut *self.lock();
        content.hub.control(&content.state, control);
        content.hub.wake();
    }
}

fn founder(id: u64) -> Member {
    let (name, client_urls) = (String::new(), Vec::new());
    Member {
        id: NodeId(id),
        name,
        peer_addresses: vec![format!("n{id}:1")],
        client_urls,
        role: MemberRole::Voter,
        zookeeper: None,
    }
}

impl Coordinator for Double {
    fn auth(&self) -> Arc<Auth> {
        Arc::clone(self.lock().state.auth())
    }

    fn propose(
        &self,
        caller: Caller,
        command: Command,
        request: Option<RequestId>,
    ) -> Answering<'_, Result<Outcome, ProposeError>> {
        Box::pin(async move {
            self.wait().await;
            let content = &mut *self.lock();
            if let Some(error) = content.refuse_proposals.pop_front() {
                return Err(error);
            }
            content.proposals += 1;
            let index = content.state.applied().next();
            let origin = Origin { node: NodeId(1), boot: 1, number: index.0 };
            let batch = Batch { at: LogTime(index.0), proposals: vec![Proposal { origin, request, caller, command }] };
            let mut effects = content.state.apply(index, Term(TERM), batch);
            content.hub.check_callers(content.state.auth());
            content.hub.publish(&effects.events, content.state.revision());
            content.hub.wake();
            Ok(effects.applied.remove(0).outcome)
        })
    }

    fn read(&self, caller: Caller, query: Query, _: Consistency) -> Answering<'_, Result<QueryAnswer, ReadError>> {
        Box::pin(async move {
            self.wait().await;
            let mut content = self.lock();
            match content.refuse_reads.pop_front() {
                Some(error) => Err(error),
                None => Ok(content.state.read_as(&caller, &query)?),
            }
        })
    }

    fn subscribe(&self) -> Arc<dyn Subscription> {
        unreachable!("tests open doors with `Handle`, which subscribes")
    }

    fn keep_alive(&self, _: Caller, lease: LeaseId) -> Answering<'_, Result<Option<LeaseInfo>, ReadError>> {
        Box::pin(async move {
            self.wait().await;
            let mut content = self.lock();
            match content.refuse_reads.pop_front() {
                Some(error) => Err(error),
                None => Ok(content.state.lease(lease).map(|known| LeaseInfo {
                    id: lease,
                    granted_ttl_s: known.ttl_s,
                    remaining_ms: u64::from(known.ttl_s) * 1000,
                })),
            }
        })
    }

    fn lease_info(&self, caller: Caller, lease: LeaseId) -> Answering<'_, Result<Option<LeaseInfo>, ReadError>> {
        self.keep_alive(caller, lease)
    }

    fn change_members(&self, _: Caller, change: MemberChange) -> Answering<'_, Result<Vec<Member>, MemberError>> {
        Box::pin(async move {
            self.wait().await;
            let content = &mut *self.lock();
            let index = content.state.applied().next();
            content.state.apply_membership(index, &change);
            Ok(content.state.members().by_id.values().cloned().collect())
        })
    }

    fn transfer_leadership(&self, _: Caller, _: NodeId) -> Answering<'_, Result<(), MemberError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn take_snapshot(&self, _: Caller) -> Answering<'_, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn wait_until_swept(&self) -> Answering<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn term(&self) -> Term {
        Term(TERM)
    }

    fn revision(&self) -> Revision {
        self.lock().state.revision()
    }

    fn status(&self) -> Status {
        let content = self.lock();
        let state = &content.state;
        Status {
            cluster: ClusterId(1),
            node: NodeId(1),
            role: content.role,
            leader: Some(NodeId(1)),
            term: Term(TERM),
            committed: state.applied(),
            applied: state.applied(),
            regained: true,
            revision: state.revision(),
            compacted: state.compacted(),
            digest: state.digest(),
            keys: state.keys(),
            leases: state.lease_count(),
            watchers: content.hub.watchers(),
            data_bytes: state.data_bytes(),
            disk_bytes: 0,
            disk_full: false,
            proposals_waiting: 0,
            leader_changes: 0,
            proposals_failed: 0,
            peers: Vec::new(),
        }
    }
}

/// The way in for clients: a double that can hand itself to its subscriptions.
pub(crate) struct Handle(pub(crate) Arc<Double>);

macro_rules! pass_on {
    ($($name:ident($($argument:ident: $of:ty),*) -> $gives:ty;)*) => {
        $(fn $name(&self, $($argument: $of),*) -> $gives { self.0.$name($($argument),*) })*
    };
}

impl Coordinator for Handle {
    pass_on! {
        auth() -> Arc<Auth>;
        propose(caller: Caller, command: Command, request: Option<RequestId>) -> Answering<'_, Result<Outcome, ProposeError>>;
        read(caller: Caller, query: Query, consistency: Consistency) -> Answering<'_, Result<QueryAnswer, ReadError>>;
        keep_alive(caller: Caller, lease: LeaseId) -> Answering<'_, Result<Option<LeaseInfo>, ReadError>>;
        lease_info(caller: Caller, lease: LeaseId) -> Answering<'_, Result<Option<LeaseInfo>, ReadError>>;
        change_members(caller: Caller, change: MemberChange) -> Answering<'_, Result<Vec<Member>, MemberError>>;
        transfer_leadership(caller: Caller, to: NodeId) -> Answering<'_, Result<(), MemberError>>;
        take_snapshot(caller: Caller) -> Answering<'_, Result<(), String>>;
        wait_until_swept() -> Answering<'_, ()>;
        term() -> Term;
        revision() -> Revision;
        status() -> Status;
    }

    fn subscribe(&self) -> Arc<dyn Subscription> {
        let id = {
            let mut content = self.0.lock();
            content.subscribers += 1;
            content.subscribers
        };
        let queue = Arc::new(WatchQueue::new(QUEUE));
        self.0.control(WatchControl::Subscribe { subscriber: id, queue: queue.clone() });
        Arc::new(DoubleSubscription { double: self.0.clone(), id, queue })
    }
}

struct DoubleSubscription {
    double: Arc<Double>,
    id: SubscriberId,
    queue: Arc<WatchQueue>,
}

impl DoubleSubscription {
    /// Re-reads a page for one who lags; what there was to tell, if anything.
    fn reread(&self) -> Option<WatchNotice> {
        let (watcher, lag) = self.queue.take_lagging()?;
        let (page, revision, compacted) = {
            let state = &self.double.lock().state;
            let page = state.events_page(&lag.range, lag.next, PAGE_CHANGES, lag.want_previous);
            (page, state.revision(), state.compacted())
        };
        let Ok(page) = page else {
            let why = WatchClosed::Compacted { compacted };
            self.double.control(WatchControl::Close { subscriber: self.id, watcher, why });
            return None;
        };
        self.double.control(WatchControl::TakeBack { subscriber: self.id, watcher, next: page.next });
        let events = page.events;
        (!events.is_empty()).then_some(WatchNotice::Events { id: watcher, revision, events: events.into() })
    }
}

impl Subscription for DoubleSubscription {
    fn open(&self, request: WatchRequest) {
        self.double.control(WatchControl::Open { subscriber: self.id, request });
    }

    fn close(&self, id: WatcherId) {
        let why = WatchClosed::Requested;
        self.double.control(WatchControl::Close { subscriber: self.id, watcher: id, why });
    }

    fn request_progress(&self) {
        self.double.control(WatchControl::Progress { subscriber: self.id });
    }

    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<WatchNotice>> {
        self.queue.is_taken_by(cx.waker());
        match self.queue.take().or_else(|| self.reread()) {
            Some(notice) => Poll::Ready(Some(notice)),
            None => Poll::Pending,
        }
    }
}

impl Drop for DoubleSubscription {
    fn drop(&mut self) {
        self.double.control(WatchControl::Unsubscribe { subscriber: self.id });
    }
}

/// Everything a test of clients needs: three nodes that are one double.
pub(crate) struct Stage {
    pub(crate) executor: Executor,
    pub(crate) clock: Clock,
    pub(crate) doors: Doors,
    pub(crate) around: Rc<Surroundings>,
    pub(crate) double: Arc<Double>,
}

impl Stage {
    pub(crate) fn new() -> Stage {
        let (executor, clock, doors, double) = (Executor::new(), Clock::new(), Doors::new(), Double::new());
        (1..=3).for_each(|node| doors.open(NodeId(node), Arc::new(Handle(double.clone()))));
        let recorder = Recorder::new(clock.clone());
        let around = Rc::new(Surroundings::new(clock.clone(), doors.clone(), recorder, Coverage::default()));
        Stage { executor, clock, doors, around, double }
    }

    pub(crate) fn client(&self, timeout: Micros) -> Client {
        Client::new(7, self.around.clone(), Random::new(1), timeout)
    }

    /// Lets time pass.
    pub(crate) fn run_for(&mut self, time: Micros) {
        let end = self.clock.now() + time;
        loop {
            self.executor.run_ready();
            match self.clock.next_due().filter(|due| *due <= end) {
                Some(due) => self.clock.advance_to(due),
                None => return self.clock.advance_to(end),
            }
        }
    }

    /// Starts something; what it gives is there once it is done.
    pub(crate) fn start<T: 'static>(
        &mut self,
        call: impl Future<Output = T> + 'static,
    ) -> Rc<std::cell::RefCell<Option<T>>> {
        let given = Rc::new(std::cell::RefCell::new(None));
        let place = given.clone();
        self.executor.spawn(async move {
            let value = call.await;
            *place.borrow_mut() = Some(value);
        });
        self.executor.run_ready();
        given
    }

    /// Has a client ask, and lets time pass until it was told.
    pub(crate) fn ask(&mut self, request: Request) -> Told {
        let client = self.client(5_000_000);
        let told = self.start(async move { client.ask_at(NodeId(1), request).await });
        self.run_for(6_000_000);
        told.take().expect("it was told by now")
    }

    pub(crate) fn history(&self) -> History {
        self.around.recorder.with(|history| history.clone())
    }
}
