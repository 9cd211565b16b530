//! One watch stream's bookkeeping, without IO: requests and notices in, actions out.
//!
//! A client names its watchers as it likes and may reuse a name the moment it cancelled it. The
//! subscription below therefore gets names of our own, never reused, and `by_wire_id` says which
//! watcher a client's name means now.
//!
//! What holds:
//! - `created` precedes a watcher's events and `canceled` follows them: notices come in that order and
//!   are never reordered here.
//! - A progress notice never overtakes events (W6): it is only ever made out of the subscription's own
//!   [`WatchNotice::Progress`], at its place in the queue. One question is under way at a time; what is
//!   asked meanwhile is asked after it, so an answer is never older than its question.
//! - Progress is not told for a watcher that is to begin later, and for the whole stream only if none is: the
//!   question is then left without an answer, as etcd leaves it.
//! - A revision is split over several responses only for clients that said they can take it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use prost::Message;
use tidelock_coordinator::{WatchClosed, WatchNotice, WatchRequest, WatcherId};
use tidelock_etcd_api::etcdserverpb::watch_create_request::FilterType;
use tidelock_etcd_api::etcdserverpb::watch_request::RequestUnion;
use tidelock_etcd_api::etcdserverpb::{WatchCreateRequest, WatchRequest as WireRequest, WatchResponse};
use tidelock_model::{Caller, Event, EventKind, KeyRange, Revision, SharedEvents};

use crate::config::Limits;
use crate::error_map::FaceError;
use crate::header::wire_revision;
use crate::key_range::{key_range, wire_event};
pub use crate::told::Told;

/// The watch id of responses that are about no watcher: refused ones and progress of the whole stream.
const NO_WATCHER: i64 = -1;

/// etcd's words for a range without keys.
const EMPTY_RANGE: &str = "mvcc: watcher range is empty";

/// etcd's words for a watch id that is in use.
const DUPLICATE_ID: &str = "mvcc: duplicate watch ID provided on the WatchStream";

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send these events.
    Tell(Told),
    /// Send this, with a header at that revision.
    Reply(HeaderAt, WatchResponse),
    /// Open a watcher.
    Open(WatchRequest),
    /// Close a watcher.
    Close(WatcherId),
    /// Ask the subscription for progress.
    RequestProgress,
}

/// Which revision a response's header shall tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderAt {
    /// This one.
    Revision(Revision),
    /// The store's present one.
    Now,
    /// None: zero.
    Nothing,
}

/// A watcher, as the client described it.
struct Watcher {
    wire_id: i64,
    want_puts: bool,
    want_deletes: bool,
    want_previous: bool,
    fragment: bool,
    wants_progress: bool,
    /// The first revision it wants to hear of; zero if that was whatever came next.
    starts: Revision,
    /// Whether it was told nothing since the last tick.
    quiet: bool,
}

/// Whose progress is asked for.
#[derive(Default)]
struct Asked {
    stream: bool,
    watchers: BTreeSet<WatcherId>,
}

impl Asked {
    fn is_empty(&self) -> bool {
        !self.stream && self.watchers.is_empty()
    }
}

/// A request to watch that was not answered yet.
enum Unanswered {
    Opening(WatcherId),
    Refused(String),
}

/// The bookkeeping of one stream.
pub struct WatchStream {
    limits: Limits,
    watchers: BTreeMap<WatcherId, Watcher>,
    by_wire_id: BTreeMap<i64, WatcherId>,
    next_wire_id: i64,
    next_id: i64,
    /// Requests to watch that were not answered yet, oldest first. As many as there are watchers, and the
    /// refusals behind them.
    unanswered: VecDeque<Unanswered>,
    /// The progress question under way.
    asked: Option<Asked>,
    /// What to ask next.
    to_ask: Asked,
}

impl WatchStream {
    /// A stream without watchers.
    #[must_use]
    pub fn new(limits: Limits) -> WatchStream {
        WatchStream {
            limits,
            watchers: BTreeMap::new(),
            by_wire_id: BTreeMap::new(),
            next_wire_id: 0,
            next_id: 0,
            unanswered: VecDeque::new(),
            asked: None,
            to_ask: Asked::default(),
        }
    }

    /// Takes a request of the client's, who is `caller` unless what it says about itself does not hold.
    pub fn on_request(
        &mut self,
        request: WireRequest,
        caller: Result<Caller, FaceError>,
        actions: &mut VecDeque<Action>,
    ) {
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => match self.create(&create, caller) {
                Ok(open) => {
                    self.unanswered.push_back(Unanswered::Opening(open.id));
                    actions.push_back(Action::Open(open));
                }
                // Clients tell answers apart by their order alone: those to earlier requests come first.
                Err(reason) => {
                    self.unanswered.push_back(Unanswered::Refused(reason));
                    self.tell_refusals(actions);
                }
            },
            // Unknown ids are ignored, as etcd does: the watcher may just have been cancelled by us.
            Some(RequestUnion::CancelRequest(cancel)) => {
                if let Some(id) = self.by_wire_id.remove(&cancel.watch_id) {
                    actions.push_back(Action::Close(id));
                }
            }
            Some(RequestUnion::ProgressRequest(_)) if tidelock_model::planted!(ProgressPastTheQueue) => {
                let response = WatchResponse { watch_id: NO_WATCHER, ..Default::default() };
                actions.push_back(Action::Reply(HeaderAt::Now, response));
            }
            Some(RequestUnion::ProgressRequest(_)) if !self.by_wire_id.is_empty() => {
                self.to_ask.stream = true;
                self.ask_for_progress(actions);
            }
            // A stream without watchers has no progress to tell, and a request without content no effect.
            Some(RequestUnion::ProgressRequest(_)) | None => {}
        }
    }

    /// Tells the refusals that no earlier request stands before any more.
    fn tell_refusals(&mut self, actions: &mut VecDeque<Action>) {
        while let Some(Unanswered::Refused(_)) = self.unanswered.front() {
            if let Some(Unanswered::Refused(reason)) = self.unanswered.pop_front() {
                actions.push_back(refused(reason));
            }
        }
    }

    fn create(
        &mut self,
        create: &WatchCreateRequest,
        caller: Result<Caller, FaceError>,
    ) -> Result<WatchRequest, String> {
        let caller = caller.map_err(denial_text)?;
        let from = match u64::try_from(create.start_revision) {
            Ok(0) => None,
            Ok(revision) => Some(Revision(revision)),
            Err(_) => return Err(FaceError::Compacted.to_string()),
        };
        let range = watched_range(create)?;
        // Those being closed count too: they still hold memory below.
        if self.watchers.len() >= self.limits.watchers_per_stream {
            let limit = self.limits.watchers_per_stream;
            return Err(format!("etcdserver: a watch stream can have {limit} watchers; open another stream"));
        }
        let wire_id = self.choose_wire_id(create.watch_id)?;
        let filtered = |filter: FilterType| create.filters.contains(&filter.into());
        let watcher = Watcher {
            wire_id,
            want_puts: !filtered(FilterType::Noput),
            want_deletes: !filtered(FilterType::Nodelete),
            want_previous: create.prev_kv,
            fragment: create.fragment,
            wants_progress: create.progress_notify,
            starts: from.unwrap_or_default(),
            quiet: true,
        };
        let id = WatcherId(self.next_id);
        self.next_id += 1;
        self.watchers.insert(id, watcher);
        self.by_wire_id.insert(wire_id, id);
        Ok(WatchRequest { id, range, from, want_previous: create.prev_kv, caller })
    }

    fn choose_wire_id(&mut self, asked: i64) -> Result<i64, String> {
        if asked != 0 {
            let taken = self.by_wire_id.contains_key(&asked);
            return if taken { Err(DUPLICATE_ID.to_owned()) } else { Ok(asked) };
        }
        while self.by_wire_id.contains_key(&self.next_wire_id) {
            self.next_wire_id += 1;
        }
        let chosen = self.next_wire_id;
        self.next_wire_id += 1;
        Ok(chosen)
    }

    /// Takes a notice of the subscription's.
    pub fn on_notice(&mut self, notice: WatchNotice, actions: &mut VecDeque<Action>) {
        match notice {
            WatchNotice::Opened { id, revision } => {
                if let Some(watcher) = self.watchers.get(&id) {
                    let response = WatchResponse { watch_id: watcher.wire_id, created: true, ..Default::default() };
                    actions.push_back(Action::Reply(HeaderAt::Revision(revision), response));
                }
                self.answered(id, actions);
            }
            WatchNotice::Events { id, revision, events } => self.on_events(id, revision, events, actions),
            WatchNotice::Progress { revision } => self.on_progress(revision, actions),
            WatchNotice::Closed { id, why } => {
                self.on_closed(id, why, actions);
                self.answered(id, actions);
            }
        }
    }

    fn is_unanswered(&self, id: WatcherId) -> bool {
        self.unanswered.iter().any(|waiting| matches!(waiting, Unanswered::Opening(opening) if *opening == id))
    }

    /// The request for this watcher was answered; what was held back behind it may be told.
    fn answered(&mut self, id: WatcherId, actions: &mut VecDeque<Action>) {
        self.unanswered.retain(|waiting| !matches!(waiting, Unanswered::Opening(opening) if *opening == id));
        self.tell_refusals(actions);
    }

    fn on_events(&mut self, id: WatcherId, revision: Revision, events: SharedEvents, actions: &mut VecDeque<Action>) {
        let Some(watcher) = self.watchers.get_mut(&id) else { return };
        let wanted = |event: &Event| match event.kind() {
            EventKind::Put => watcher.want_puts,
            EventKind::Delete => watcher.want_deletes,
        };
        let events = match events.iter().all(wanted) {
            true => events,
            false => events.iter().filter(|event| wanted(event)).cloned().collect::<Vec<_>>().into(),
        };
        if events.is_empty() {
            return;
        }
        watcher.quiet = false;
        let told = Told { revision, watch_id: watcher.wire_id, events, with_previous: watcher.want_previous };
        if watcher.fragment && told.bytes_max() >= self.limits.message_bytes() {
            let parts = fragments(&told, self.limits.message_bytes());
            actions.extend(parts.into_iter().map(|part| Action::Reply(HeaderAt::Revision(revision), part)));
        } else {
            actions.push_back(Action::Tell(told));
        }
    }

    fn on_closed(&mut self, id: WatcherId, why: WatchClosed, actions: &mut VecDeque<Action>) {
        let Some(watcher) = self.watchers.remove(&id) else { return };
        // The name may mean another watcher by now.
        if self.by_wire_id.get(&watcher.wire_id) == Some(&id) {
            self.by_wire_id.remove(&watcher.wire_id);
        }
        let mut response = WatchResponse { watch_id: watcher.wire_id, canceled: true, ..Default::default() };
        let at = match why {
            WatchClosed::Requested => HeaderAt::Now,
            WatchClosed::Compacted { compacted } => {
                response.compact_revision = wire_revision(compacted);
                HeaderAt::Nothing
            }
            // Not even opened: told as one that never came to be.
            WatchClosed::Refused(refusal) if self.is_unanswered(id) => {
                actions.push_back(refused(denial_text(refusal.into())));
                return;
            }
            WatchClosed::Refused(refusal) => {
                response.cancel_reason = denial_text(refusal.into());
                HeaderAt::Now
            }
        };
        actions.push_back(Action::Reply(at, response));
    }

    fn on_progress(&mut self, revision: Revision, actions: &mut VecDeque<Action>) {
        let Some(asked) = self.asked.take() else { return };
        let at = HeaderAt::Revision(revision);
        for id in asked.watchers {
            // Cancelled meanwhile: it expects nothing more but the confirmation.
            if let Some(watcher) = self.watchers.get(&id)
                && self.by_wire_id.get(&watcher.wire_id) == Some(&id)
                && watcher.starts <= revision
            {
                let response = WatchResponse { watch_id: watcher.wire_id, ..Default::default() };
                actions.push_back(Action::Reply(at, response));
            }
        }
        // A client resumes after the revision it is told: before one of its watchers begins, that is too early.
        let begun = |id: &WatcherId| self.watchers.get(id).is_none_or(|watcher| watcher.starts <= revision);
        if asked.stream && self.by_wire_id.values().all(begun) {
            actions.push_back(Action::Reply(at, WatchResponse { watch_id: NO_WATCHER, ..Default::default() }));
        }
        self.ask_for_progress(actions);
    }

    /// Takes the passing of a progress interval: whoever asked for notices and heard nothing since the
    /// last one gets one.
    pub fn on_interval(&mut self, actions: &mut VecDeque<Action>) {
        for (id, watcher) in self.watchers.iter_mut().filter(|(_, watcher)| watcher.wants_progress) {
            if std::mem::replace(&mut watcher.quiet, true) {
                self.to_ask.watchers.insert(*id);
            }
        }
        self.ask_for_progress(actions);
    }

    fn ask_for_progress(&mut self, actions: &mut VecDeque<Action>) {
        if self.asked.is_none() && !self.to_ask.is_empty() {
            self.asked = Some(std::mem::take(&mut self.to_ask));
            actions.push_back(Action::RequestProgress);
        }
    }
}

/// Why someone may not watch, in the words of Go's gRPC library, which etcd puts there.
fn denial_text(error: FaceError) -> String {
    format!("rpc error: code = {:?} desc = {error}", error.code())
}

/// A watcher that never came to be: told as created and cancelled at once, about no id.
fn refused(cancel_reason: String) -> Action {
    let response =
        WatchResponse { watch_id: NO_WATCHER, created: true, canceled: true, cancel_reason, ..Default::default() };
    Action::Reply(HeaderAt::Now, response)
}

/// The range to watch. Unlike in a read, no key means "from the first on" and an empty range is a
/// mistake.
fn watched_range(create: &WatchCreateRequest) -> Result<KeyRange, String> {
    let first: &[u8] = if create.key.is_empty() { &[0] } else { &create.key };
    let range = key_range(first, &create.range_end).map_err(|error| error.to_string())?;
    if range.is_empty() { Err(EMPTY_RANGE.to_owned()) } else { Ok(range) }
}

/// Splits events into several responses of less than `max_bytes` each, as far as single events allow; all but
/// the last are marked. The sizes are added up as protobuf will write them.
fn fragments(told: &Told, max_bytes: usize) -> Vec<WatchResponse> {
    let watch_id = told.watch_id;
    let mut parts = vec![WatchResponse { watch_id, ..Default::default() }];
    let mut bytes = Told::ENVELOPE_BYTES;
    for event in told.events.iter().map(|event| wire_event(event, told.with_previous)) {
        let event_bytes = event.encoded_len() + Told::EVENT_FRAME_BYTES;
        let last = parts.last_mut().expect("there is always a part");
        if bytes + event_bytes >= max_bytes && !last.events.is_empty() {
            last.fragment = true;
            bytes = Told::ENVELOPE_BYTES;
            parts.push(WatchResponse { watch_id, events: vec![event], ..Default::default() });
        } else {
            last.events.push(event);
        }
        bytes += event_bytes;
    }
    parts
}

#[cfg(test)]
#[path = "watch_stream_tests.rs"]
mod tests;
