//! The Lock service: a lock is held by whoever is first in the `line` of its name.
//!
//! As with etcd, the hold lasts as long as the lease; a holder that must not be mistaken for its successor
//! compares the key's creation in the transactions that the lock protects (K6).

use bytes::Bytes;
use tidelock_etcd_api::v3lockpb::lock_server::Lock;
use tidelock_etcd_api::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};
use tidelock_model::{DeleteOp, KeyRange, LeaseId, Op};
use tonic::{Request, Response, Status};

use crate::error_map::{FaceError, recipe_error};
use crate::key_range::key;
use crate::line::Line;
use crate::services::Services;

/// An unlock as an operation: the key that was answered to the lock is deleted, whoever holds it.
pub fn unlock_to_op(request: &UnlockRequest) -> Result<Op, FaceError> {
    let range = KeyRange::single(key(&request.key)?);
    Ok(Op::Delete(DeleteOp { range, want_previous: false }))
}

#[tonic::async_trait]
impl Lock for Services {
    async fn lock(&self, request: Request<LockRequest>) -> Result<Response<LockResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request).map_err(recipe_error)?;
        let LockRequest { name, lease } = request.into_inner();
        let line = Line::new(&name).map_err(recipe_error)?;
        let turn = self.take_turn(caller, line, LeaseId(lease), None, FaceError::SessionExpired).await;
        let (place, revision) = turn.map_err(recipe_error)?;
        let key = Bytes::copy_from_slice(place.key.name());
        Ok(Response::new(LockResponse { header: Some(self.headers.at(revision)), key }))
    }

    async fn unlock(&self, request: Request<UnlockRequest>) -> Result<Response<UnlockResponse>, Status> {
        self.refuse_on_learner()?;
        let caller = self.caller(&request).map_err(recipe_error)?;
        let op = unlock_to_op(request.get_ref()).map_err(recipe_error)?;
        let (revision, _) = self.write(&caller, op).await.map_err(recipe_error)?;
        Ok(Response::new(UnlockResponse { header: Some(self.headers.at(revision)) }))
    }
}
