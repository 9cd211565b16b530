//! The Watch service: one stream is one subscription. What the messages mean is in `watch_stream.rs`;
//! here are the task, its queue and its timers.
//!
//! Nothing is buffered without bound towards a slow client: the task queues a few responses and then
//! waits, takes nothing from its subscription meanwhile, and the hub below marks it as lagging. When the
//! client is gone the queue closes, the task ends and drops the subscription with all its watchers.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use tidelock_coordinator::Subscription;
use tidelock_etcd_api::etcdserverpb::watch_server::Watch;
use tidelock_etcd_api::etcdserverpb::{WatchRequest, WatchResponse};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tonic::{Request, Response, Status, Streaming};

use crate::callers::StreamCaller;
use crate::config::PROGRESS_INTERVAL_MIN;
use crate::error_map::FaceError;
use crate::header::Headers;
use crate::leader_watch::requires_leader;
use crate::reply_stream::ReplyStream;
use crate::services::{Services, StreamEnd};
use crate::watch_stream::{Action, HeaderAt, WatchStream};

/// Responses waiting on one stream for the connection to take them.
const REPLIES_QUEUED: usize = 8;

#[tonic::async_trait]
impl Watch for Services {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        self.refuse_on_learner()?;
        let required = requires_leader(request.metadata().as_ref());
        let (replies, stream) = mpsc::channel(REPLIES_QUEUED);
        let task = WatchTask {
            caller: self.caller_of_stream(&request),
            subscription: self.coordinator.subscribe(),
            stream: WatchStream::new(self.config.limits),
            actions: VecDeque::new(),
            headers: self.headers.clone(),
            replies,
            interval: with_jitter(self.config.progress_interval.max(PROGRESS_INTERVAL_MIN)),
        };
        tokio::spawn(task.run(request.into_inner(), self.stream_end(required)));
        Ok(Response::new(Box::pin(ReplyStream(stream))))
    }
}

/// Up to a tenth longer, so that the watchers of clients that started together do not all want notices
/// at once.
fn with_jitter(interval: Duration) -> Duration {
    interval + interval.mul_f64(rand::random_range(0.0..0.1))
}

struct WatchTask {
    caller: StreamCaller,
    subscription: Arc<dyn Subscription>,
    stream: WatchStream,
    actions: VecDeque<Action>,
    headers: Headers,
    replies: mpsc::Sender<Result<WatchResponse, Status>>,
    interval: Duration,
}

/// The client is gone, or has been told why the stream ends.
struct Ended;

impl WatchTask {
    async fn run(mut self, mut requests: Streaming<WatchRequest>, mut end: StreamEnd) {
        let subscription = Arc::clone(&self.subscription);
        // Kept over the turns of the loop: a notice that is being handed over must not be lost because
        // the client said something at the same moment.
        let mut notice = subscription.next();
        let mut intervals = tokio::time::interval_at(Instant::now() + self.interval, self.interval);
        intervals.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reading = true;
        loop {
            tokio::select! {
                told = &mut notice => match told {
                    Some(told) => {
                        notice = subscription.next();
                        self.stream.on_notice(told, &mut self.actions);
                    }
                    None => return self.fail(FaceError::Stopped).await,
                },
                request = requests.message(), if reading => match request {
                    Ok(Some(request)) => self.stream.on_request(request, self.caller.now(), &mut self.actions),
                    // The client will ask no more but still listens.
                    Ok(None) => reading = false,
                    Err(_gone) => return,
                },
                _ = intervals.tick() => self.stream.on_interval(&mut self.actions),
                why = &mut end => return self.fail(why).await,
                () = self.replies.closed() => return,
            }
            if self.act().await.is_err() {
                return;
            }
        }
    }

    async fn act(&mut self) -> Result<(), Ended> {
        while let Some(action) = self.actions.pop_front() {
            match action {
                Action::Reply(at, mut response) => {
                    response.header = Some(match at {
                        HeaderAt::Revision(revision) => self.headers.at(revision),
                        HeaderAt::Now => self.headers.now(),
                        HeaderAt::Nothing => self.headers.without_revision(),
                    });
                    self.replies.send(Ok(response)).await.map_err(|_| Ended)?;
                }
                Action::Open(request) => self.subscription.open(request),
                Action::Close(id) => self.subscription.close(id),
                Action::RequestProgress => self.subscription.request_progress(),
            }
        }
        Ok(())
    }

    async fn fail(&self, error: FaceError) {
        // If the client is gone there is nobody to tell.
        let _ = self.replies.send(Err(error.into())).await;
    }
}
