//! The Election service: the leader is whoever is first in the `line` of the election's name, and the value
//! of its key is what it proclaims.
//!
//! Proclaim and Resign act for the leadership that Campaign answered, recognised by the revision at which
//! its key was created: a deposed leader can neither speak for nor depose its successor.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_core::Stream;
use tidelock_coordinator::{Consistency, Coordinator, WatchNotice};
use tidelock_etcd_api::v3electionpb::election_server::Election;
use tidelock_etcd_api::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest, ProclaimResponse,
    ResignRequest, ResignResponse,
};
use tidelock_model::{Caller, Event, EventKind, Key, KeyRange, KeyValue, LeaseId, OpAnswer, Query, Revision};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use crate::error_map::{FaceError, recipe_error};
use crate::header::{Headers, wire_revision};
use crate::key_range::{key, wire_item};
use crate::leader_watch::requires_leader;
use crate::line::{Line, leave, only_item, proclaim, watch_keys};
use crate::reply_stream::ReplyStream;
use crate::services::{Services, StreamEnd};

/// Leaders waiting for the connection to take them.
const LEADERS_QUEUED: usize = 8;

/// A leadership, as the client was told it.
struct Leadership {
    key: Key,
    created: i64,
    lease: LeaseId,
}

fn leadership(leader: Option<LeaderKey>) -> Result<Leadership, FaceError> {
    let leader = leader.ok_or(FaceError::LeaderMissing)?;
    Ok(Leadership { key: key(&leader.key)?, created: leader.rev, lease: LeaseId(leader.lease) })
}

fn leader_response(item: &KeyValue, revision: Revision, headers: &Headers) -> LeaderResponse {
    LeaderResponse { header: Some(headers.at(revision)), kv: Some(wire_item(&item.key, &item.record)) }
}

impl Services {
    async fn proclaim_for_leader(&self, request: Request<ProclaimRequest>) -> Result<Revision, FaceError> {
        let caller = self.caller(&request);
        let request = request.into_inner();
        let Leadership { key, created, lease } = leadership(request.leader)?;
        let caller = &caller?;
        let lease = self.session_lease(caller, lease).await?;
        match self.write(caller, proclaim(&key, created, lease, request.value)).await? {
            (revision, OpAnswer::Txn { succeeded: true, .. }) => Ok(revision),
            _ => Err(FaceError::NotElected),
        }
    }

    async fn resign_for_leader(&self, request: Request<ResignRequest>) -> Result<Revision, FaceError> {
        let caller = self.caller(&request);
        let Leadership { key, created, .. } = leadership(request.into_inner().leader)?;
        // Someone else's leadership, or none: then there is nothing to resign from.
        let (revision, _) = self.write(&caller?, leave(&key, created)).await?;
        Ok(revision)
    }
}

#[tonic::async_trait]
impl Election for Services {
    async fn campaign(&self, request: Request<CampaignRequest>) -> Result<Response<CampaignResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request).map_err(recipe_error)?;
        let CampaignRequest { name, lease, value } = request.into_inner();
        let line = Line::new(&name).map_err(recipe_error)?;
        let turn = self.take_turn(caller, line, LeaseId(lease), Some(value), FaceError::NotElected).await;
        let (place, _) = turn.map_err(recipe_error)?;
        // As etcd: the header is of the moment the campaign began.
        let header = Some(self.headers.at(place.entered));
        let key = Bytes::copy_from_slice(place.key.name());
        let leader = LeaderKey { name, key, rev: wire_revision(place.created), lease: place.lease.0 };
        Ok(Response::new(CampaignResponse { header, leader: Some(leader) }))
    }

    async fn proclaim(&self, request: Request<ProclaimRequest>) -> Result<Response<ProclaimResponse>, Status> {
        self.refuse_on_learner()?;
        let revision = self.proclaim_for_leader(request).await.map_err(recipe_error)?;
        Ok(Response::new(ProclaimResponse { header: Some(self.headers.at(revision)) }))
    }

    async fn leader(&self, request: Request<LeaderRequest>) -> Result<Response<LeaderResponse>, Status> {
        self.refuse_on_learner()?;
        let line = Line::new(&request.get_ref().name).map_err(recipe_error)?;
        let answer = self
            .read(&self.caller(&request).map_err(recipe_error)?, Query::Range(line.first()), Consistency::Linearizable)
            .await
            .map_err(recipe_error)?;
        let (revision, leader) = only_item(answer)?;
        let leader = leader.ok_or(FaceError::NobodyElected)?;
        Ok(Response::new(leader_response(&leader, revision, &self.headers)))
    }

    type ObserveStream = Pin<Box<dyn Stream<Item = Result<LeaderResponse, Status>> + Send>>;

    async fn observe(&self, request: Request<LeaderRequest>) -> Result<Response<Self::ObserveStream>, Status> {
        self.refuse_on_learner()?;
        let required = requires_leader(request.metadata().as_ref());
        let line = Line::new(&request.get_ref().name).map_err(recipe_error)?;
        let (replies, stream) = mpsc::channel(LEADERS_QUEUED);
        let coordinator = Arc::clone(&self.coordinator);
        let caller = self.caller(&request).map_err(recipe_error)?;
        let observer = Observer { caller, coordinator, headers: self.headers.clone(), line, replies };
        tokio::spawn(observer.run(self.stream_end(required)));
        Ok(Response::new(Box::pin(ReplyStream(stream))))
    }

    async fn resign(&self, request: Request<ResignRequest>) -> Result<Response<ResignResponse>, Status> {
        self.refuse_on_learner()?;
        let revision = self.resign_for_leader(request).await.map_err(recipe_error)?;
        Ok(Response::new(ResignResponse { header: Some(self.headers.at(revision)) }))
    }
}

/// Tells who leads and what it proclaims, from now on. A leader that came and went between two looks may be
/// left out; the last one never is.
struct Observer {
    caller: Caller,
    coordinator: Arc<dyn Coordinator>,
    headers: Headers,
    line: Line,
    replies: mpsc::Sender<Result<LeaderResponse, Status>>,
}

/// Why an observer stopped.
enum Ended {
    /// The client is gone.
    Alone,
    Failed(FaceError),
}

impl From<FaceError> for Ended {
    fn from(error: FaceError) -> Ended {
        Ended::Failed(error)
    }
}

impl Observer {
    fn caller(&self) -> Caller {
        self.caller.as_of(&self.coordinator.auth())
    }

    async fn run(self, mut end: StreamEnd) {
        let ended = tokio::select! {
            ended = self.observe() => ended,
            why = &mut end => Ended::Failed(why),
            () = self.replies.closed() => Ended::Alone,
        };
        if let Ended::Failed(error) = ended {
            drop(self.replies.send(Err(recipe_error(error))).await);
        }
    }

    async fn observe(&self) -> Ended {
        loop {
            if let Err(ended) = self.observe_one().await {
                return ended;
            }
        }
    }

    /// Tells of one leader, from the moment there is one until it is none any more.
    async fn observe_one(&self) -> Result<(), Ended> {
        let query = Query::Range(self.line.first());
        let answer =
            self.coordinator.read(self.caller(), query, Consistency::Linearizable).await.map_err(FaceError::from)?;
        let (revision, leader) = only_item(answer)?;
        let Some(leader) = leader else { return self.until_candidate(revision).await };
        self.tell(&leader, revision).await?;
        let watching =
            watch_keys(&*self.coordinator, &self.caller(), [KeyRange::single(leader.key)].into_iter(), revision);
        loop {
            match watching.next().await.ok_or(FaceError::Stopped)? {
                WatchNotice::Events { revision, events, .. } => {
                    for event in events.iter() {
                        if event.kind() == EventKind::Delete {
                            return Ok(());
                        }
                        self.tell(&item(event), revision).await?;
                    }
                }
                // Too slow for a compaction: look again.
                WatchNotice::Closed { .. } => return Ok(()),
                WatchNotice::Opened { .. } | WatchNotice::Progress { .. } => {}
            }
        }
    }

    /// Waits until somebody enters the line, which was empty at `revision`.
    async fn until_candidate(&self, revision: Revision) -> Result<(), Ended> {
        let watching = watch_keys(&*self.coordinator, &self.caller(), [self.line.keys().clone()].into_iter(), revision);
        loop {
            match watching.next().await.ok_or(FaceError::Stopped)? {
                WatchNotice::Events { .. } | WatchNotice::Closed { .. } => return Ok(()),
                WatchNotice::Opened { .. } | WatchNotice::Progress { .. } => {}
            }
        }
    }

    async fn tell(&self, leader: &KeyValue, revision: Revision) -> Result<(), Ended> {
        let response = leader_response(leader, revision, &self.headers);
        self.replies.send(Ok(response)).await.map_err(|_| Ended::Alone)
    }
}

fn item(event: &Event) -> KeyValue {
    KeyValue { key: event.key.clone(), record: event.record.clone() }
}
