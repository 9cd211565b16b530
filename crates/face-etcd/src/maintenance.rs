//! Status, alarms, leadership, defragmentation.
//!
//! Defragment succeeds without doing anything: memory is given back as history is compacted, there is
//! no file with holes. NOSPACE is raised and lowered by the disk itself and needs no disarming. Not
//! served yet: Hash, HashKV, Snapshot and Downgrade.

use std::pin::Pin;

use futures_core::Stream;
use tidelock_coordinator::{Role, Status as NodeStatus};
use tidelock_etcd_api::etcdserverpb::alarm_request::AlarmAction;
use tidelock_etcd_api::etcdserverpb::maintenance_server::Maintenance;
use tidelock_etcd_api::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse, DowngradeInfo,
    DowngradeRequest, DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse, MoveLeaderRequest,
    MoveLeaderResponse, ResponseHeader, SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse,
};
use tidelock_model::NodeId;
use tonic::{Request, Response, Status};

use crate::error_map::{FaceError, transfer_error};
use crate::header::wire_number;
use crate::services::Services;

/// The etcd version this face answers like; clients choose features by it.
pub const ETCD_VERSION: &str = "3.7.0";

/// Least size to tell: tools divide by it.
const SIZE_MIN_BYTES: u64 = 4096;

/// What a node knows of itself, on the wire.
#[must_use]
pub fn status_to_response(status: &NodeStatus, quota_bytes: i64, header: ResponseHeader) -> StatusResponse {
    let size = wire_number(status.data_bytes.max(SIZE_MIN_BYTES));
    let mut errors = Vec::new();
    if status.leader.is_none() {
        errors.push(FaceError::NoLeader.to_string());
    }
    errors.extend(alarms(status).iter().map(|alarm| format!("memberID:{} alarm:NOSPACE ", alarm.member_id)));
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

/// The alarms raised at this node.
#[must_use]
pub fn alarms(status: &NodeStatus) -> Vec<AlarmMember> {
    let nospace = AlarmMember { member_id: status.node.0, alarm: AlarmType::Nospace.into() };
    status.disk_full.then_some(nospace).into_iter().collect()
}

fn unimplemented(what: &str) -> Status {
    Status::unimplemented(format!("tidelock does not serve {what} yet"))
}

#[tonic::async_trait]
impl Maintenance for Services {
    async fn alarm(&self, request: Request<AlarmRequest>) -> Result<Response<AlarmResponse>, Status> {
        self.refuse_on_learner()?;
        let request = request.into_inner();
        let status = self.coordinator.status();
        let asked_for = |alarm: &AlarmMember| {
            (request.member_id == 0 || request.member_id == alarm.member_id)
                && (request.alarm == i32::from(AlarmType::None) || request.alarm == alarm.alarm)
        };
        let alarms = match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Get) => alarms(&status).into_iter().filter(asked_for).collect(),
            // Nothing is sticky here, so there is nothing to disarm.
            Ok(AlarmAction::Deactivate) => Vec::new(),
            Ok(AlarmAction::Activate) | Err(_) => return Err(unimplemented("raising alarms by hand")),
        };
        Ok(Response::new(AlarmResponse { header: Some(self.headers.at(status.revision)), alarms }))
    }

    async fn status(&self, _request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let status = self.coordinator.status();
        let header = self.headers.at(status.revision);
        Ok(Response::new(status_to_response(&status, self.config.quota_bytes, header)))
    }

    async fn defragment(&self, _request: Request<DefragmentRequest>) -> Result<Response<DefragmentResponse>, Status> {
        self.refuse_on_learner()?;
        Ok(Response::new(DefragmentResponse { header: None }))
    }

    async fn hash(&self, _request: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        Err(unimplemented("Hash"))
    }

    async fn hash_kv(&self, _request: Request<HashKvRequest>) -> Result<Response<HashKvResponse>, Status> {
        Err(unimplemented("HashKV"))
    }

    type SnapshotStream = Pin<Box<dyn Stream<Item = Result<SnapshotResponse, Status>> + Send>>;

    async fn snapshot(&self, _request: Request<SnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        Err(unimplemented("Snapshot"))
    }

    async fn move_leader(&self, request: Request<MoveLeaderRequest>) -> Result<Response<MoveLeaderResponse>, Status> {
        self.refuse_on_learner()?;
        if self.coordinator.status().role != Role::Leader {
            return Err(FaceError::NotLeader.into());
        }
        let target = NodeId(request.into_inner().target_id);
        self.coordinator.transfer_leadership(target).await.map_err(transfer_error)?;
        Ok(Response::new(MoveLeaderResponse { header: None }))
    }

    async fn downgrade(&self, _request: Request<DowngradeRequest>) -> Result<Response<DowngradeResponse>, Status> {
        Err(unimplemented("Downgrade"))
    }
}
