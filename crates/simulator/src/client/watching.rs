//! A watch stream, both ends: the node's is the etcd face's bookkeeping over a subscription, in the
//! shape of the face's own task; the client's writes down what each watcher was told.
//!
//! What holds: a few responses wait between the two ends, as in a connection; a client that takes them
//! slowly lets the node's queue fill and its watchers lag. What was on its way when the connection broke
//! either still arrives or is lost, never in part.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tidelock_coordinator::{Coordinator, Role};
use tidelock_etcd_api::etcdserverpb::watch_create_request::FilterType;
use tidelock_etcd_api::etcdserverpb::watch_request::RequestUnion;
use tidelock_etcd_api::etcdserverpb::{
    WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use tidelock_face_etcd::watch_stream::{Action, HeaderAt, WatchStream};
use tidelock_face_etcd::{Headers, Limits};
use tidelock_model::{Caller, NodeId};
use tokio::sync::mpsc;

use super::{Client, wire};
use crate::coverage;
use crate::doors::within;
use crate::executor::Clock;
use crate::history::{Micros, Notice, WatchLog};

/// Responses waiting on one stream for the client to take them; what the face allows.
const REPLIES_QUEUED: usize = 8;
/// Requests of the client's that wait for the node to take them. More than a client ever has.
const REQUESTS_QUEUED: usize = 16;
/// Shortest and longest time between two whims of a client.
const WHIM: (Micros, Micros) = (200_000, 2_000_000);

/// etcd's words for someone who may not.
const DENIED: &str = "permission denied";

/// How often a client that does nothing looks whether the run is over.
const DAWDLE_STEP: Micros = 200_000;

/// A watcher to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchSpec {
    /// The first key.
    pub key: String,
    /// Where the range ends; `None`: the one key.
    pub end: Option<String>,
    /// The first revision wanted; 0: from now on.
    pub start: i64,
    /// Leave out puts.
    pub no_puts: bool,
    /// Leave out deletions.
    pub no_deletes: bool,
    /// Tell what was before.
    pub previous: bool,
    /// Tell progress when there was nothing else to tell for a while.
    pub notify: bool,
}

/// How a client treats its stream.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// The longest pause before it takes the next response; 0: none.
    pub dawdles: Micros,
    /// How often, in thousandths of its whims, it asks for progress.
    pub asks_progress_permille: u64,
    /// How often, in thousandths of its whims, it cancels a watcher and opens another under its name.
    pub reopens_permille: u64,
    /// How long the node waits before it tells a quiet watcher that asked for it how far it is.
    pub notify_every: Micros,
    /// How long until it closes the stream; streams that are open when the run stops stay open.
    pub lasts: Micros,
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Whether the connection broke, or was never made.
    pub broke: bool,
    /// The watchers that were open then, as they would have to be opened to go on.
    pub unfinished: Vec<WatchSpec>,
}

struct Watcher {
    spec: WatchSpec,
    /// Where its log is.
    log: usize,
    created: bool,
    open: bool,
    /// What it has to be told next; 0 until that is known.
    next: i64,
}

impl Client {
    /// Watches at a node until the connection breaks, the client has had enough, or there is no watcher
    /// left.
    pub async fn watch(&self, node: NodeId, specs: Vec<WatchSpec>, habits: &Habits) -> Watched {
        self.watch_for(node, None, specs, habits).await
    }

    /// The same, as one of the node's users if need be.
    pub async fn watch_for(&self, node: NodeId, user: Option<&str>, specs: Vec<WatchSpec>, habits: &Habits) -> Watched {
        let Some(door) = self.around().doors.door(node) else { return Watched { broke: true, unfinished: specs } };
        let (requests, requested) = mpsc::channel(REQUESTS_QUEUED);
        let (replies, replied) = mpsc::channel(REPLIES_QUEUED);
        let (clock, name) = (self.around().clock.clone(), user.map(Arc::from));
        let served = serve(door.coordinator(), name, requested, replies, clock, habits.notify_every);
        let arrives_late = self.chance(500);
        let connection = async {
            // However it ends, the client only sees that nothing more comes.
            let _ = within(&door, served).await;
            if arrives_late {
                std::future::pending::<()>().await;
            }
        };
        let mut reader = Reader { client: self, node, user, requests, watchers: Vec::new(), by_id: BTreeMap::new() };
        specs.into_iter().zip(1..).for_each(|(spec, id)| reader.open(spec, id));
        let broke = tokio::select! {
            biased;
            broke = reader.read(replied, habits) => broke,
            () = connection => true,
        };
        reader.finish(broke)
    }
}

/// The client's end.
struct Reader<'a> {
    client: &'a Client,
    node: NodeId,
    user: Option<&'a str>,
    requests: mpsc::Sender<WatchRequest>,
    watchers: Vec<Watcher>,
    /// Whom responses under a name are about, in this order: the next one follows when the one before
    /// was cancelled.
    by_id: BTreeMap<i64, VecDeque<usize>>,
}

impl Reader<'_> {
    fn request(&self, request: RequestUnion) -> bool {
        // If the queue is full, or the node gone, the client has to do without.
        self.requests.try_send(WatchRequest { request_union: Some(request) }).is_ok()
    }

    fn open(&mut self, spec: WatchSpec, id: i64) {
        let filters = [(spec.no_puts, FilterType::Noput), (spec.no_deletes, FilterType::Nodelete)];
        let create = WatchCreateRequest {
            key: wire::bytes(&spec.key),
            range_end: wire::range_end(spec.end.as_deref()),
            start_revision: spec.start,
            progress_notify: spec.notify,
            filters: filters.iter().filter(|(wanted, _)| *wanted).map(|(_, filter)| (*filter).into()).collect(),
            prev_kv: spec.previous,
            watch_id: id,
            fragment: false,
        };
        let recorder = &self.client.around().recorder;
        let log = WatchLog {
            client: self.client.id(),
            node: self.node,
            key: spec.key.clone(),
            end: spec.end.clone(),
            start: spec.start,
            no_deletes: spec.no_deletes,
            no_puts: spec.no_puts,
            user: self.user.map(str::to_owned),
            called: recorder.stamp(),
            notices: Vec::new(),
            closed: None,
        };
        if self.request(RequestUnion::CreateRequest(create)) {
            let next = spec.start;
            let watcher = Watcher { spec, log: recorder.watch_called(log), created: false, open: true, next };
            self.by_id.entry(id).or_default().push_back(self.watchers.len());
            self.watchers.push(watcher);
        }
    }

    /// Reads until the stream is to be closed (`false`) or nothing more comes (`true`).
    async fn read(&mut self, mut replies: mpsc::Receiver<WatchResponse>, habits: &Habits) -> bool {
        let client = self.client;
        let until = client.now() + habits.lasts;
        let mut whim = Box::pin(client.think(WHIM.0, WHIM.1));
        loop {
            tokio::select! {
                biased;
                () = &mut whim => {
                    whim = Box::pin(client.think(WHIM.0, WHIM.1));
                    if client.stopping() {
                        continue;
                    }
                    if client.now() >= until {
                        return false;
                    }
                    self.follow_whim(habits);
                }
                reply = replies.recv() => {
                    let Some(reply) = reply else { return true };
                    self.take(&reply);
                    if habits.dawdles > 0 {
                        self.dawdle(habits.dawdles).await;
                    }
                }
            }
            if self.watchers.iter().all(|watcher| !watcher.open) {
                return false;
            }
        }
    }

    /// Does nothing for a while, but not beyond the end of the run: what is open then is to be told
    /// everything.
    async fn dawdle(&self, longest: Micros) {
        let until = self.client.now() + self.client.between(1, longest);
        while self.client.now() < until && !self.client.stopping() {
            self.client.sleep(DAWDLE_STEP.min(until - self.client.now())).await;
        }
    }

    fn follow_whim(&mut self, habits: &Habits) {
        if self.client.chance(habits.asks_progress_permille) {
            self.request(RequestUnion::ProgressRequest(WatchProgressRequest {}));
        }
        if self.client.chance(habits.reopens_permille) {
            self.reopen();
        }
    }

    /// Cancels one and opens another under the same name at once, as a client may.
    fn reopen(&mut self) {
        let ids: Vec<i64> = self.by_id.keys().copied().collect();
        let id = *self.client.pick(&ids);
        let Some(place) = self.by_id.get(&id).and_then(|all| all.back().copied()) else { return };
        if !self.watchers[place].open || !self.request(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: id }))
        {
            return;
        }
        self.close(place);
        let start = self.client.newest_revision() - i64::try_from(self.client.below(20)).unwrap_or(0);
        let spec = WatchSpec { start: start.max(1), ..self.watchers[place].spec.clone() };
        self.open(spec, id);
    }

    fn close(&mut self, place: usize) {
        let watcher = &mut self.watchers[place];
        if std::mem::replace(&mut watcher.open, false) {
            self.client.around().recorder.watch_closed(watcher.log);
        }
    }

    fn take(&mut self, response: &WatchResponse) {
        let revision = response.header.as_ref().map_or(0, |header| header.revision);
        self.client.around().saw_revision(revision);
        if response.watch_id < 0 && !response.created && !response.canceled {
            let all: Vec<usize> = (0..self.watchers.len()).filter(|place| self.watchers[*place].created).collect();
            return all.into_iter().for_each(|place| self.tell(place, Notice::Progress { revision }));
        }
        let Some(place) = self.addressee(response) else { return };
        if response.created {
            let watcher = &mut self.watchers[place];
            watcher.created = true;
            if watcher.spec.start == 0 {
                watcher.next = revision + 1;
            }
            self.tell(place, Notice::Created { revision });
        }
        if response.canceled {
            if let Some(all) = self.by_id.values_mut().find(|all| all.front() == Some(&place)) {
                all.pop_front();
            }
            let (compact_revision, reason) = (response.compact_revision, response.cancel_reason.clone());
            if compact_revision > 0 && self.watchers[place].open {
                self.client.around().coverage.hit(coverage::WATCHER_COMPACTED);
            }
            if self.user.is_some() && !response.created && reason.contains(DENIED) && self.watchers[place].open {
                self.client.around().coverage.hit(coverage::WATCHER_REVOKED);
            }
            self.tell(place, Notice::Canceled { compact_revision, reason });
            return self.close(place);
        }
        if !response.events.is_empty() {
            let events: Vec<_> = response.events.iter().map(wire::event).collect();
            self.tell(place, Notice::Events { revision, events });
        } else if !response.created {
            self.tell(place, Notice::Progress { revision });
        }
    }

    /// Whom a response is about. One that was refused has no name; it is the first still waiting.
    fn addressee(&self, response: &WatchResponse) -> Option<usize> {
        if response.watch_id < 0 {
            return (0..self.watchers.len()).find(|place| self.watchers[*place].open && !self.watchers[*place].created);
        }
        self.by_id.get(&response.watch_id)?.front().copied()
    }

    /// Writes a notice down, unless the client has given the watcher up before.
    fn tell(&mut self, place: usize, notice: Notice) {
        let watcher = &mut self.watchers[place];
        if !watcher.open {
            return;
        }
        let told_up_to = match &notice {
            Notice::Events { events, .. } => events.last().map_or(0, |event| event.kv.modified),
            Notice::Progress { revision } => *revision,
            Notice::Created { .. } | Notice::Canceled { .. } => 0,
        };
        watcher.next = watcher.next.max(told_up_to + 1).max(watcher.spec.start);
        self.client.around().recorder.watch_told(watcher.log, notice);
    }

    fn finish(mut self, broke: bool) -> Watched {
        let open: Vec<usize> = (0..self.watchers.len()).filter(|place| self.watchers[*place].open).collect();
        let resumed = |watcher: &Watcher| {
            // One from "now on" that never heard what "now" was has no place to go on at.
            let start = if watcher.created || watcher.spec.start > 0 { watcher.next } else { 0 };
            WatchSpec { start, ..watcher.spec.clone() }
        };
        let unfinished = open.iter().map(|place| resumed(&self.watchers[*place])).collect();
        open.into_iter().for_each(|place| self.close(place));
        Watched { broke, unfinished }
    }
}

/// Who the node takes the client for when a request arrives.
fn caller(coordinator: &dyn Coordinator, user: Option<&Arc<str>>) -> Caller {
    let proved = |name: &Arc<str>| Caller::User { name: name.clone(), auth_revision: coordinator.auth().revision };
    user.map_or(Caller::Internal, proved)
}

/// The node's end, in the shape of the face's own task.
async fn serve(
    coordinator: Arc<dyn Coordinator>,
    user: Option<Arc<str>>,
    mut requests: mpsc::Receiver<WatchRequest>,
    replies: mpsc::Sender<WatchResponse>,
    clock: Clock,
    notify_every: Micros,
) {
    if coordinator.status().role == Role::Learner {
        return;
    }
    let headers = Headers::new(coordinator.clone());
    let subscription = coordinator.subscribe();
    let mut stream = WatchStream::new(Limits::default());
    let mut actions = VecDeque::new();
    // Kept over the turns of the loop, as the face does: a notice being handed over is not lost.
    let mut notice = subscription.next();
    let mut interval = clock.sleep(notify_every);
    loop {
        tokio::select! {
            biased;
            request = requests.recv() => match request {
                Some(request) => stream.on_request(request, Ok(caller(&*coordinator, user.as_ref())), &mut actions),
                None => return,
            },
            () = &mut interval => {
                interval = clock.sleep(notify_every);
                stream.on_interval(&mut actions);
            }
            told = &mut notice => match told {
                Some(told) => {
                    notice = subscription.next();
                    stream.on_notice(told, &mut actions);
                }
                None => return,
            },
        }
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Tell(told) => {
                    if replies.send(told.to_response(headers.at(told.revision))).await.is_err() {
                        return;
                    }
                }
                Action::Reply(at, mut response) => {
                    response.header = Some(match at {
                        HeaderAt::Revision(revision) => headers.at(revision),
                        HeaderAt::Now => headers.now(),
                        HeaderAt::Nothing => headers.without_revision(),
                    });
                    if replies.send(response).await.is_err() {
                        return;
                    }
                }
                Action::Open(request) => subscription.open(request),
                Action::Close(id) => subscription.close(id),
                Action::RequestProgress => subscription.request_progress(),
            }
        }
    }
}
