//! One watch stream of one system, sorted as it comes in.
//!
//! How servers cut events into responses is theirs to choose, so events are kept as one list for each watcher, in
//! the order in which they came. What was created and cancelled, and progress, have lists of their own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidelock_etcd_api::etcdserverpb::watch_client::WatchClient;
use tidelock_etcd_api::etcdserverpb::watch_request::RequestUnion;
use tidelock_etcd_api::etcdserverpb::{
    WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use tidelock_etcd_api::mvccpb::Event;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use super::call::{mask_header, with_token};
use super::keys::MARK;

/// Name of the watcher that sees the marks; the servers count their own names from zero.
pub(super) const MARK_ID: i64 = 1_000_000;
/// Requests on their way; they are answered one by one.
const REQUESTS_QUEUED: usize = 16;

/// What came in and was not looked at yet.
#[derive(Default)]
pub(super) struct Inbox {
    /// Watchers created, refused and cancelled, in order; ids masked.
    pub(super) controls: VecDeque<WatchResponse>,
    /// Events of each watcher.
    pub(super) events: BTreeMap<i64, Vec<Event>>,
    /// Revisions of the progress of the whole stream.
    pub(super) progress: Vec<i64>,
    /// The last mark seen.
    pub(super) mark: i64,
    /// Responses that cannot be right whatever the other side says.
    pub(super) faults: Vec<String>,
    /// Why the stream ended.
    pub(super) ended: Option<String>,
}

impl Inbox {
    fn take(&mut self, mut response: WatchResponse) {
        if let Some(header) = &mut response.header {
            mask_header(header);
        }
        let revision = response.header.as_ref().map_or(0, |header| header.revision);
        if response.created || response.canceled {
            self.controls.push_back(response);
            return;
        }
        if response.events.is_empty() {
            if response.watch_id == -1 {
                self.progress.push(revision);
            }
            return;
        }
        let last = response.events.last().and_then(|event| event.kv.as_ref()).map_or(0, |kv| kv.mod_revision);
        if revision < last {
            self.faults.push(format!("events up to {last} under a header of revision {revision}"));
        }
        if response.watch_id == MARK_ID {
            self.mark = last;
        } else {
            self.events.entry(response.watch_id).or_default().append(&mut response.events);
        }
    }
}

/// An open stream. Closed when dropped.
pub(super) struct WatchStream {
    requests: mpsc::Sender<WatchRequest>,
    inbox: Arc<Mutex<Inbox>>,
    changed: watch::Receiver<u64>,
    reader: JoinHandle<()>,
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl WatchStream {
    /// Opens a stream and its watcher of marks; the answer to that is the first control.
    pub(super) fn open(channel: &Channel, token: Option<String>) -> WatchStream {
        let (requests, queue) = mpsc::channel(REQUESTS_QUEUED);
        let inbox = Arc::new(Mutex::new(Inbox::default()));
        let (changes, changed) = watch::channel(0);
        let reader = tokio::spawn(read(channel.clone(), token, queue, Arc::clone(&inbox), changes));
        let stream = WatchStream { requests, inbox, changed, reader };
        stream.create(WatchCreateRequest { key: MARK.into(), watch_id: MARK_ID, ..WatchCreateRequest::default() });
        stream
    }

    /// Asks for a watcher.
    pub(super) fn create(&self, request: WatchCreateRequest) {
        self.request(RequestUnion::CreateRequest(request));
    }

    /// Asks for the end of a watcher.
    pub(super) fn cancel(&self, watch_id: i64) {
        self.request(RequestUnion::CancelRequest(WatchCancelRequest { watch_id }));
    }

    /// Asks how far the stream is.
    pub(super) fn progress(&self) {
        self.request(RequestUnion::ProgressRequest(WatchProgressRequest {}));
    }

    fn request(&self, request: RequestUnion) {
        // It fails if the stream ended, which whoever waits for the answer is told.
        let _ = self.requests.try_send(WatchRequest { request_union: Some(request) });
    }

    /// What came in.
    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `done` or until the time is over; says whether it is done.
    pub(super) async fn wait(&mut self, limit: Duration, done: impl Fn(&Inbox) -> bool) -> bool {
        let waiting = async {
            loop {
                self.changed.borrow_and_update();
                {
                    let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
                    if done(&inbox) {
                        return true;
                    }
                    if inbox.ended.is_some() {
                        return false;
                    }
                }
                if self.changed.changed().await.is_err() {
                    return done(&self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
                }
            }
        };
        tokio::time::timeout(limit, waiting).await.unwrap_or(false)
    }
}

async fn read(
    channel: Channel,
    token: Option<String>,
    queue: mpsc::Receiver<WatchRequest>,
    inbox: Arc<Mutex<Inbox>>,
    changes: watch::Sender<u64>,
) {
    let requests =
        futures_util::stream::unfold(queue, |mut queue| async { queue.recv().await.map(|next| (next, queue)) });
    let mut client = WatchClient::new(channel);
    let mut responses = match client.watch(with_token(requests, token.as_deref())).await {
        Ok(responses) => Some(responses.into_inner()),
        Err(status) => {
            inbox.lock().unwrap_or_else(PoisonError::into_inner).ended = Some(status.message().to_string());
            None
        }
    };
    while let Some(stream) = &mut responses {
        let next = stream.message().await;
        let mut inbox = inbox.lock().unwrap_or_else(PoisonError::into_inner);
        match next {
            Ok(Some(response)) => inbox.take(response),
            Ok(None) => inbox.ended = Some("it ended without an error".to_string()),
            Err(status) => inbox.ended = Some(format!("{:?}: {}", status.code(), status.message())),
        }
        if inbox.ended.is_some() {
            responses = None;
        }
        drop(inbox);
        changes.send_modify(|count| *count += 1);
    }
    changes.send_modify(|count| *count += 1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_etcd_api::etcdserverpb::ResponseHeader;
    use tidelock_etcd_api::mvccpb::KeyValue;

    fn event(mod_revision: i64) -> Event {
        Event { kv: Some(KeyValue { mod_revision, ..KeyValue::default() }), ..Event::default() }
    }

    fn response(watch_id: i64, revision: i64, events: Vec<Event>) -> WatchResponse {
        let header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
        WatchResponse { header, watch_id, events, ..WatchResponse::default() }
    }

    /// One server sends two responses where the other sends one: that is no difference.
    #[test]
    fn how_events_are_cut_into_responses_does_not_matter() {
        let (mut one, mut other) = (Inbox::default(), Inbox::default());
        one.take(response(3, 9, vec![event(8), event(9)]));
        other.take(response(3, 8, vec![event(8)]));
        other.take(response(3, 9, vec![event(9)]));
        assert_eq!(one.events, other.events);
    }

    /// A header behind its events would make clients resume too early and see events twice.
    #[test]
    fn a_header_behind_its_events_is_a_fault() {
        let mut inbox = Inbox::default();
        inbox.take(response(3, 8, vec![event(9)]));
        assert_eq!(inbox.faults.len(), 1);
    }
}
