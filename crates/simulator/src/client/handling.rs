//! What a node does with a request: the etcd face's translation around the node's coordinator, in the
//! order of the face's own handlers. Runs inside the node's door.

use std::sync::Arc;

use tidelock_coordinator::{Consistency, Coordinator, ProposeError, ReadError, Role};
use tidelock_etcd_api::etcdserverpb::{CompactionRequest, LeaseGrantRequest, LeaseRevokeRequest};
use tidelock_face_etcd::{FaceError, Headers, Limits, kv, lease, txn};
use tidelock_model::{Answer as Outcome, Caller, Command, LeaseId, Op as ModelOp, Query, QueryAnswer, Revision};

use super::wire;
use crate::history::{Answer, Compare, Content, Op, Request, Told};

/// Carries out a request, or says why not.
pub(super) async fn handle(coordinator: Arc<dyn Coordinator>, caller: Caller, request: Request) -> Told {
    let face = Face { caller, headers: Headers::new(coordinator.clone()), coordinator, limits: Limits::default() };
    let local = matches!(&request, Request::Op(Op::Get { serializable: true, .. }));
    if !local && face.coordinator.status().role == Role::Learner {
        return Told::Refused(FaceError::NotSupportedForLearner.to_string());
    }
    face.answer(request).await.map_or_else(|told| told, Told::Answer)
}

/// A mistake in the request itself: it goes nowhere.
fn mistaken(error: FaceError) -> Told {
    Told::Refused(error.to_string())
}

/// An answer that does not fit; shows in the history as an error that no checker expects.
fn misfit(error: FaceError) -> Told {
    Told::Unknown(error.to_string())
}

/// Whether what was to be proposed may have been carried out, or may still be. A face says the same of a node that is
/// stopping and of one that stopped meanwhile.
pub(super) fn is_fate_unknown(error: &ProposeError) -> bool {
    matches!(error, ProposeError::OutcomeUnknown { .. } | ProposeError::Interrupted | ProposeError::Stopping)
}

fn not_proposed(error: ProposeError) -> Told {
    let unknown = is_fate_unknown(&error);
    let text = FaceError::from(error).to_string();
    if unknown { Told::Unknown(text) } else { Told::Refused(text) }
}

fn not_read(error: ReadError) -> Told {
    match error {
        ReadError::Refused(refusal) => Told::Error(FaceError::from(refusal).to_string()),
        other => Told::Refused(FaceError::from(other).to_string()),
    }
}

/// A renewal changes something, so one that was under way may have been done.
fn not_renewed(error: ReadError) -> Told {
    match error {
        ReadError::Overloaded { .. } => Told::Refused(FaceError::from(error).to_string()),
        ReadError::Refused(refusal) => Told::Error(FaceError::from(refusal).to_string()),
        other => Told::Unknown(FaceError::from(other).to_string()),
    }
}

struct Face {
    caller: Caller,
    coordinator: Arc<dyn Coordinator>,
    headers: Headers,
    limits: Limits,
}

impl Face {
    async fn answer(&self, request: Request) -> Result<Answer, Told> {
        match request {
            Request::Op(Op::Put { key, value, lease }) => self.put(&key, &value, lease).await,
            Request::Op(Op::Delete { key, end }) => self.delete(&key, end.as_deref()).await,
            Request::Op(Op::Get { key, end, at, serializable }) => {
                self.get(&key, end.as_deref(), at, serializable).await
            }
            Request::Txn { compares, then, otherwise } => self.txn(&compares, &then, &otherwise).await,
            Request::Compact { revision } => self.compact(revision).await,
            Request::Grant { lease, ttl_s } => self.grant(lease, ttl_s).await,
            Request::Revoke { lease } => self.revoke(lease).await,
            Request::KeepAlive { lease } => self.keep_alive(lease).await,
        }
    }

    async fn propose(&self, command: Command) -> Result<(Revision, Outcome), Told> {
        let outcome = self.coordinator.propose(self.caller.clone(), command, None).await.map_err(not_proposed)?;
        let answer = outcome.result.map_err(|refusal| Told::Error(FaceError::from(refusal).to_string()))?;
        Ok((outcome.revision, answer))
    }

    async fn put(&self, key: &str, value: &str, lease: i64) -> Result<Answer, Told> {
        let command = kv::put_to_command(wire::put(key, value, lease), &self.limits).map_err(mistaken)?;
        let (revision, answer) = self.propose(command).await?;
        let response = kv::put_to_response(&answer, self.headers.at(revision)).map_err(misfit)?;
        Ok(wire::answer(response.header, wire::put_content(&response)))
    }

    async fn delete(&self, key: &str, end: Option<&str>) -> Result<Answer, Told> {
        let command = kv::delete_to_command(&wire::delete(key, end), &self.limits).map_err(mistaken)?;
        let (revision, answer) = self.propose(command).await?;
        let response = kv::delete_to_response(&answer, self.headers.at(revision)).map_err(misfit)?;
        Ok(wire::answer(response.header, wire::delete_content(&response)))
    }

    async fn get(&self, key: &str, end: Option<&str>, at: i64, serializable: bool) -> Result<Answer, Told> {
        let request = wire::range(key, end, at, serializable);
        let query = kv::range_to_query(&request).map_err(mistaken)?;
        let answer = self
            .coordinator
            .read(self.caller.clone(), query, kv::range_consistency(&request))
            .await
            .map_err(not_read)?;
        let QueryAnswer::Op { revision, .. } = answer else { return Err(misfit(FaceError::KeyNotFound)) };
        let response = kv::range_to_response(answer, self.headers.at(revision)).map_err(misfit)?;
        Ok(wire::answer(response.header, wire::range_content(&response)))
    }

    async fn txn(&self, compares: &[Compare], then: &[Op], otherwise: &[Op]) -> Result<Answer, Told> {
        const MISFIT: FaceError = FaceError::Internal("the answer does not fit the request");
        let request = wire::txn(compares, then, otherwise);
        let local = txn::is_serializable(&request);
        let mut op = txn::txn_to_op(request, &self.limits).map_err(mistaken)?;
        if let ModelOp::Txn(txn) = &mut op {
            txn.compares.extend(wire::admissions(compares));
        }
        let (revision, answer) = if op.writes() {
            match self.propose(Command::Write(op)).await? {
                (revision, Outcome::Op(answer)) => (revision, answer),
                _ => return Err(misfit(MISFIT)),
            }
        } else {
            let consistency = if local { Consistency::Local } else { Consistency::Linearizable };
            match self.coordinator.read(self.caller.clone(), Query::Txn(op), consistency).await.map_err(not_read)? {
                QueryAnswer::Op { revision, answer } => (revision, answer),
                _ => return Err(misfit(MISFIT)),
            }
        };
        let response = txn::txn_to_response(&answer, revision, self.headers.at(revision)).map_err(misfit)?;
        let content = wire::txn_content(&response).ok_or_else(|| misfit(MISFIT))?;
        Ok(wire::answer(response.header, content))
    }

    async fn compact(&self, revision: i64) -> Result<Answer, Told> {
        let request = CompactionRequest { revision, physical: false };
        let command = kv::compact_to_command(request).map_err(mistaken)?;
        let (revision, _) = self.propose(command).await?;
        Ok(wire::answer(Some(self.headers.at(revision)), Content::Compacted))
    }

    async fn grant(&self, id: i64, ttl_s: i64) -> Result<Answer, Told> {
        let request = LeaseGrantRequest { ttl: ttl_s, id };
        // The id that would be chosen for a client that leaves it to us; ours never do.
        let command = lease::grant_to_command(request, LeaseId(id), &self.limits).map_err(mistaken)?;
        let (revision, answer) = self.propose(command).await?;
        let response = lease::grant_to_response(&answer, self.headers.at(revision)).map_err(misfit)?;
        Ok(wire::answer(response.header, Content::Granted))
    }

    async fn revoke(&self, id: i64) -> Result<Answer, Told> {
        let command = lease::revoke_to_command(LeaseRevokeRequest { id }).map_err(mistaken)?;
        let (revision, _) = self.propose(command).await?;
        Ok(wire::answer(Some(self.headers.at(revision)), Content::Revoked))
    }

    async fn keep_alive(&self, id: i64) -> Result<Answer, Told> {
        // Made before the renewal, as the face does; its revision says nothing about the lease.
        let header = self.headers.without_revision();
        let info = self.coordinator.keep_alive(self.caller.clone(), LeaseId(id)).await.map_err(not_renewed)?;
        let response = lease::keep_alive_to_response(id, info, header);
        let ttl_s = Some(response.ttl).filter(|ttl| *ttl > 0);
        Ok(wire::answer(response.header, Content::KeptAlive { ttl_s }))
    }
}
