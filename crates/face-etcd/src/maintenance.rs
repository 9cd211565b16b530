//! Status, leadership, defragmentation; alarms, hashes, snapshots and downgrades are in the files of these
//! names.
//!
//! Defragment succeeds without doing anything: memory is given back as history is compacted, there is
//! no file with holes.

use tidelock_coordinator::{Consistency, Role, Status as NodeStatus};
use tidelock_etcd_api::etcdserverpb::maintenance_server::Maintenance;
use tidelock_etcd_api::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse, DowngradeInfo,
    DowngradeRequest, DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse, MoveLeaderRequest,
    MoveLeaderResponse, ResponseHeader, SnapshotRequest, StatusRequest, StatusResponse,
};
use tidelock_model::{Caller, Errand, NodeId};
use tonic::{Request, Response, Status};

use crate::alarm::alarm_text;
use crate::downgrade::downgrade_to_response;
use crate::error_map::{FaceError, transfer_error};
use crate::header::wire_number;
use crate::leader_watch::requires_leader;
use crate::services::Services;
use crate::snapshot::Blobs;

/// The etcd version this face answers like; clients choose features by it.
pub const ETCD_VERSION: &str = "3.7.0";

/// Least size to tell: tools divide by it.
const SIZE_MIN_BYTES: u64 = 4096;

/// What a node knows of itself, on the wire, and the alarms that are raised.
#[must_use]
pub fn status_to_response(
    status: &NodeStatus,
    alarms: &[AlarmMember],
    quota_bytes: i64,
    header: ResponseHeader,
) -> StatusResponse {
    let size = wire_number(status.data_bytes.max(SIZE_MIN_BYTES));
    let mut errors = Vec::new();
    if status.leader.is_none() {
        errors.push(FaceError::NoLeader.to_string());
    }
    errors.extend(alarms.iter().map(alarm_text));
    StatusResponse {
        header: Some(header),
        version: ETCD_VERSION.to_owned(),
        db_size: size,
        leader: status.leader.map_or(0, |leader| leader.0),
        raft_index: status.committed.0,
        raft_term: status.term.0,
        raft_applied_index: status.applied.0,
        errors,
        db_size_in_use: size,
        is_learner: status.role == Role::Learner,
        storage_version: ETCD_VERSION.to_owned(),
        db_size_quota: quota_bytes,
        downgrade_info: Some(DowngradeInfo::default()),
    }
}

/// What is wrong with this node's own disk, as an alarm: raised and lowered by the disk itself.
#[must_use]
pub fn alarms(status: &NodeStatus) -> Vec<AlarmMember> {
    let nospace = AlarmMember { member_id: status.node.0, alarm: AlarmType::Nospace.into() };
    status.disk_full.then_some(nospace).into_iter().collect()
}

#[tonic::async_trait]
impl Maintenance for Services {
    async fn alarm(&self, request: Request<AlarmRequest>) -> Result<Response<AlarmResponse>, Status> {
        let caller = self.caller(&request)?;
        Ok(Response::new(self.answer_alarm(&caller, request.into_inner()).await?))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        self.permit(&self.caller(&request)?, &Errand::Status)?;
        let status = self.coordinator.status();
        let header = self.headers.at(status.revision);
        let alarms = self.raised_alarms(&Caller::Internal, &status, Consistency::Local).await?;
        Ok(Response::new(status_to_response(&status, &alarms, self.config.quota_bytes, header)))
    }

    async fn defragment(&self, request: Request<DefragmentRequest>) -> Result<Response<DefragmentResponse>, Status> {
        self.refuse_on_learner()?;
        self.permit(&self.caller(&request)?, &Errand::Maintain)?;
        Ok(Response::new(DefragmentResponse { header: None }))
    }

    async fn hash(&self, request: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        self.permit(&self.caller(&request)?, &Errand::Hash)?;
        Ok(Response::new(self.hash_everything()?))
    }

    async fn hash_kv(&self, request: Request<HashKvRequest>) -> Result<Response<HashKvResponse>, Status> {
        self.permit(&self.caller(&request)?, &Errand::Hash)?;
        Ok(Response::new(self.hash_keys(request.into_inner()).await?))
    }

    type SnapshotStream = Blobs;

    async fn snapshot(&self, request: Request<SnapshotRequest>) -> Result<Response<Blobs>, Status> {
        self.permit(&self.caller(&request)?, &Errand::TakeSnapshot)?;
        self.stream_snapshot(self.caller(&request)?, requires_leader(request.metadata().as_ref()))
    }

    async fn move_leader(&self, request: Request<MoveLeaderRequest>) -> Result<Response<MoveLeaderResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request)?;
        self.permit(&caller, &Errand::TransferLeadership)?;
        if self.coordinator.status().role != Role::Leader {
            return Err(FaceError::NotLeader.into());
        }
        let target = NodeId(request.into_inner().target_id);
        self.coordinator.transfer_leadership(caller, target).await.map_err(transfer_error)?;
        Ok(Response::new(MoveLeaderResponse { header: None }))
    }

    async fn downgrade(&self, request: Request<DowngradeRequest>) -> Result<Response<DowngradeResponse>, Status> {
        self.refuse_on_learner()?;
        self.permit(&self.caller(&request)?, &Errand::Maintain)?;
        Ok(Response::new(downgrade_to_response(request.get_ref(), self.headers.now())?))
    }
}
