//! A coordinator made of canned answers, for tests of the plumbing between socket and door. What the
//! real one answers is tested with the real one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tidelock_coordinator::{
    Answering, Consistency, Coordinator, MemberError, ProposeError, ReadError, Role, Status, Subscription, WatchNotice,
    WatchRequest, WatcherId,
};
use tidelock_model::{
    Answer, Auth, Caller, ClusterId, Command, Key, KeyValue, LeaseId, LeaseInfo, LogIndex, Member, MemberChange,
    NodeId, OpAnswer, Outcome, PageQuery, Query, QueryAnswer, RangeAnswer, Record, RecordMeta, Refusal, RequestId,
    Revision, Space, Term,
};
use tokio::sync::{Mutex, Semaphore, mpsc};

/// The revision everything happens at.
pub(crate) const REVISION: Revision = Revision(7);

pub(crate) struct Double {
    pub(crate) has_leader: AtomicBool,
    pub(crate) is_learner: AtomicBool,
    pub(crate) proposals: parking::Log<Command>,
    /// What the next proposals answer; afterwards all are puts that succeeded.
    pub(crate) outcomes: std::sync::Mutex<VecDeque<Result<Answer, Refusal>>>,
    /// What the next transactions of reads answer.
    pub(crate) looks: std::sync::Mutex<VecDeque<OpAnswer>>,
    pub(crate) is_overloaded: AtomicBool,
    /// What stands in the line of any lock.
    pub(crate) line: std::sync::Mutex<Vec<KeyValue>>,
    /// How many keys there are to list, `k000` on.
    pub(crate) keys: AtomicUsize,
    /// How many pages can be read before their revision is compacted.
    pub(crate) pages_allowed: AtomicUsize,
    /// Renewals wait for a permit each.
    pub(crate) renewals_allowed: Semaphore,
    pub(crate) renewals_under_way: AtomicUsize,
    /// Where tests put notices for the subscriptions.
    pub(crate) notices: mpsc::Sender<WatchNotice>,
    notices_out: Arc<Mutex<mpsc::Receiver<WatchNotice>>>,
    pub(crate) subscriptions: Arc<AtomicUsize>,
}

/// A list that is appended to from anywhere.
pub(crate) mod parking {
    pub(crate) struct Log<T>(std::sync::Mutex<Vec<T>>);
    impl<T: Clone> Log<T> {
        pub(crate) fn new() -> Log<T> {
            Log(std::sync::Mutex::new(Vec::new()))
        }
        pub(crate) fn push(&self, item: T) {
            self.0.lock().unwrap().push(item);
        }
        pub(crate) fn all(&self) -> Vec<T> {
            self.0.lock().unwrap().clone()
        }
    }
}

impl Double {
    pub(crate) fn new() -> Arc<Double> {
        let (notices, notices_out) = mpsc::channel(1);
        Arc::new(Double {
            has_leader: AtomicBool::new(true),
            is_learner: AtomicBool::new(false),
            is_overloaded: AtomicBool::new(false),
            proposals: parking::Log::new(),
            outcomes: std::sync::Mutex::new(VecDeque::new()),
            looks: std::sync::Mutex::new(VecDeque::new()),
            line: std::sync::Mutex::new(Vec::new()),
            keys: AtomicUsize::new(0),
            pages_allowed: AtomicUsize::new(usize::MAX),
            renewals_allowed: Semaphore::new(Semaphore::MAX_PERMITS),
            renewals_under_way: AtomicUsize::new(0),
            notices,
            notices_out: Arc::new(Mutex::new(notices_out)),
            subscriptions: Arc::new(AtomicUsize::new(0)),
        })
    }
}

/// An item of this name that was created then.
pub(crate) fn item(name: &str, created: Revision) -> KeyValue {
    let meta = RecordMeta { created, modified: created, version: 1, lease: LeaseId(7), sub: 0 };
    KeyValue { key: Key::new(Space::User, name.as_bytes()), record: Record::new(meta, b"value") }
}

impl Double {
    fn page(&self, page: &PageQuery) -> Result<QueryAnswer, ReadError> {
        let allowed = |left: usize| left.checked_sub(1);
        if self.pages_allowed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, allowed).is_err() {
            return Err(Refusal::Compacted { asked: REVISION, oldest: Revision(9) }.into());
        }
        assert!(page.at == Some(REVISION) || page.after.is_none(), "every page but the first names the revision");
        let mut items = self.items();
        items
            .retain(|item| page.range.contains(&item.key) && page.after.as_ref().is_none_or(|after| item.key > *after));
        let more = items.len() > page.max_keys;
        items.truncate(page.max_keys);
        let next = items.last().filter(|_| more).map(|item| item.key.clone());
        Ok(QueryAnswer::Page { revision: REVISION, items, next })
    }

    fn items(&self) -> Vec<KeyValue> {
        (0..self.keys.load(Ordering::SeqCst)).map(|at| item(&format!("k{at:03}"), REVISION)).collect()
    }

    fn answer(&self, query: &Query) -> Result<QueryAnswer, ReadError> {
        let answer = match query {
            Query::Page(page) => return self.page(page),
            Query::Alarms => return Ok(QueryAnswer::Alarms { revision: REVISION, alarms: vec![] }),
            Query::Txn(_) => self.looks.lock().unwrap().pop_front().expect("the test says what is seen"),
            Query::Range(op) => {
                let count = self.items().iter().filter(|item| op.range.contains(&item.key)).count() as u64;
                let line = self.line.lock().unwrap();
                let items = line.iter().filter(|item| op.range.contains(&item.key)).cloned().collect();
                OpAnswer::Range(RangeAnswer { items, count, more: false })
            }
            _ => OpAnswer::Range(RangeAnswer::default()),
        };
        Ok(QueryAnswer::Op { revision: REVISION, answer })
    }
}

impl Coordinator for Double {
    fn auth(&self) -> Arc<Auth> {
        Arc::default()
    }

    fn propose(
        &self,
        _: Caller,
        command: Command,
        _: Option<RequestId>,
    ) -> Answering<'_, Result<Outcome, ProposeError>> {
        self.proposals.push(command);
        let next = self.outcomes.lock().unwrap().pop_front();
        let result = next.unwrap_or(Ok(Answer::Op(OpAnswer::PUT_DONE)));
        Box::pin(std::future::ready(Ok(Outcome { revision: REVISION, index: LogIndex(1), result })))
    }

    fn is_overloaded(&self) -> bool {
        self.is_overloaded.load(Ordering::SeqCst)
    }

    fn read(&self, _: Caller, query: Query, _: Consistency) -> Answering<'_, Result<QueryAnswer, ReadError>> {
        Box::pin(std::future::ready(self.answer(&query)))
    }

    fn subscribe(&self) -> Arc<dyn Subscription> {
        self.subscriptions.fetch_add(1, Ordering::SeqCst);
        let opened = mpsc::channel(64);
        Arc::new(DoubleSubscription {
            opening: opened.0,
            opened: Arc::new(Mutex::new(opened.1)),
            notices: Arc::clone(&self.notices_out),
            open: Arc::clone(&self.subscriptions),
            taking: std::sync::Mutex::new(None),
        })
    }

    /// Odd leases exist.
    fn keep_alive(&self, _: Caller, lease: LeaseId) -> Answering<'_, Result<Option<LeaseInfo>, ReadError>> {
        self.renewals_under_way.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            self.renewals_allowed.acquire().await.expect("never closed").forget();
            self.renewals_under_way.fetch_sub(1, Ordering::SeqCst);
            let info = LeaseInfo { id: lease, granted_ttl_s: 10, remaining_ms: 10_000 };
            Ok((lease.0 % 2 == 1).then_some(info))
        })
    }

    fn lease_info(&self, caller: Caller, lease: LeaseId) -> Answering<'_, Result<Option<LeaseInfo>, ReadError>> {
        self.keep_alive(caller, lease)
    }

    fn change_members(&self, _: Caller, _: MemberChange) -> Answering<'_, Result<Vec<Member>, MemberError>> {
        Box::pin(std::future::ready(Err(MemberError::Busy)))
    }

    fn transfer_leadership(&self, _: Caller, _: NodeId) -> Answering<'_, Result<(), MemberError>> {
        let waited = Duration::ZERO;
        Box::pin(std::future::ready(Err(MemberError::OutcomeUnknown { waited })))
    }

    fn take_snapshot(&self, _: Caller) -> Answering<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn wait_until_swept(&self) -> Answering<'_, ()> {
        Box::pin(async {})
    }

    fn term(&self) -> Term {
        Term(3)
    }

    fn revision(&self) -> Revision {
        self.status().revision
    }

    fn status(&self) -> Status {
        Status {
            cluster: ClusterId(1),
            node: NodeId(2),
            role: if self.is_learner.load(Ordering::SeqCst) { Role::Learner } else { Role::Follower },
            leader: self.has_leader.load(Ordering::SeqCst).then_some(NodeId(5)),
            term: Term(3),
            committed: LogIndex(9),
            applied: LogIndex(8),
            regained: true,
            revision: REVISION,
            compacted: Revision(1),
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
            peers: vec![],
        }
    }
}

/// Answers opens and closes at once; the rest is what the test puts into `Double::notices`.
struct DoubleSubscription {
    opening: mpsc::Sender<WatchNotice>,
    opened: Arc<Mutex<mpsc::Receiver<WatchNotice>>>,
    notices: Arc<Mutex<mpsc::Receiver<WatchNotice>>>,
    open: Arc<AtomicUsize>,
    taking: std::sync::Mutex<Option<Answering<'static, Option<WatchNotice>>>>,
}

impl DoubleSubscription {
    fn tell(&self, notice: WatchNotice) {
        self.opening.try_send(notice).expect("tests open few watchers");
    }
}

impl Subscription for DoubleSubscription {
    fn open(&self, request: WatchRequest) {
        self.tell(WatchNotice::Opened { id: request.id, revision: REVISION });
    }
    fn close(&self, id: WatcherId) {
        self.tell(WatchNotice::Closed { id, why: tidelock_coordinator::WatchClosed::Requested });
    }
    fn request_progress(&self) {
        self.tell(WatchNotice::Progress { revision: REVISION });
    }
    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<WatchNotice>> {
        let mut taking = self.taking.lock().unwrap();
        let next = taking.get_or_insert_with(|| {
            let (opened, notices) = (Arc::clone(&self.opened), Arc::clone(&self.notices));
            Box::pin(async move {
                let (mut opened, mut notices) = (opened.lock().await, notices.lock().await);
                tokio::select! {
                    biased;
                    notice = opened.recv() => notice,
                    notice = notices.recv() => notice,
                }
            })
        });
        let notice = std::task::ready!(next.as_mut().poll(cx));
        *taking = None;
        Poll::Ready(notice)
    }
}

impl Drop for DoubleSubscription {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}
