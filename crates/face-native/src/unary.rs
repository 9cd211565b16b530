//! Calls with one message each way, over gRPC and JSON alike.

use bytes::Bytes;
use futures_util::future::join_all;
use prost::Message;
use tidelock_client_port::framed;
use tidelock_coordinator::Consistency;
use tidelock_model::{Caller, LeaseId};
use tidelock_native_api::v1;

use crate::callers::{Proof, owner};
use crate::problem::Problem;
use crate::questions;
use crate::services::Services;
use crate::translate;

/// The service, as paths name it.
pub(crate) const SERVICE: &str = "tidelock.v1.Native";

/// How many leases the leader is asked about at a time. Each is a question of its own; one after the other they would
/// take as many round trips.
const LEASES_ASKED_AT_ONCE: usize = 128;

/// A call with one message each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Open,
    Close,
    KeepAlive,
    Ask,
    Describe,
    Names,
    Sessions,
}

impl Method {
    /// By the last part of the path of its call.
    pub(crate) fn named(name: &str) -> Option<Method> {
        Some(match name {
            "Open" => Method::Open,
            "Close" => Method::Close,
            "KeepAlive" => Method::KeepAlive,
            "Ask" => Method::Ask,
            "Describe" => Method::Describe,
            "Names" => Method::Names,
            "Sessions" => Method::Sessions,
            _ => return None,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Method::Open => "Open",
            Method::Close => "Close",
            Method::KeepAlive => "KeepAlive",
            Method::Ask => "Ask",
            Method::Describe => "Describe",
            Method::Names => "Names",
            Method::Sessions => "Sessions",
        }
    }
}

fn read<T: Message + Default>(message: Bytes) -> Result<T, Problem> {
    T::decode(message).map_err(|error| Problem::wrong("BAD_MESSAGE", error.to_string()))
}

fn freshness(stale: bool) -> Consistency {
    if stale { Consistency::Local } else { Consistency::Linearizable }
}

impl Services {
    /// Carries a call out: its answer, in a frame.
    pub(crate) async fn call(&self, method: Method, proof: &Proof, message: Bytes) -> Result<Bytes, Problem> {
        let caller = self.caller(proof)?;
        Ok(match method {
            Method::Open => {
                let owner = owner(&caller);
                framed(&self.open(caller, owner, read(message)?).await?)
            }
            Method::Close => {
                let v1::CloseRequest { session } = read(message)?;
                framed(&self.close(caller, LeaseId(session)).await?)
            }
            Method::KeepAlive => framed(&self.keep_alive(&caller, read(message)?).await?),
            Method::Ask => framed(&self.ask(caller, translate::request(read(message)?)?).await?),
            Method::Describe => framed(&self.describe(&caller, read(message)?).await?),
            Method::Names => framed(&self.names(&caller, read(message)?).await?),
            Method::Sessions => framed(&self.sessions(&caller, read(message)?).await?),
        })
    }

    pub(crate) async fn describe(
        &self,
        caller: &Caller,
        request: v1::DescribeRequest,
    ) -> Result<v1::DescribeReply, Problem> {
        let (revision, found) = self.find(caller, questions::describe(&request)?, freshness(request.stale)).await?;
        questions::described(self.header(revision, 0), found)
    }

    async fn names(&self, caller: &Caller, request: v1::NamesRequest) -> Result<v1::NamesReply, Problem> {
        let freshness = freshness(request.stale);
        let (revision, found) = self.find(caller, questions::names(request)?, freshness).await?;
        questions::named(self.header(revision, 0), found)
    }

    async fn sessions(&self, caller: &Caller, request: v1::SessionsRequest) -> Result<v1::SessionsReply, Problem> {
        let freshness = freshness(request.stale);
        let (revision, found) = self.find(caller, questions::sessions(&request), freshness).await?;
        let mut sessions = questions::sessions_found(found)?;
        if request.session != 0 && sessions.is_empty() {
            return Err(tidelock_model::NativeError::UnknownSession.into());
        }
        if request.remaining {
            for some in sessions.chunks_mut(LEASES_ASKED_AT_ONCE) {
                // Who may see the session may see how long it has left.
                let ask = |one: &v1::Session| self.coordinator.lease_info(Caller::Internal, LeaseId(one.session));
                let infos = join_all(some.iter().map(ask)).await;
                for (session, info) in some.iter_mut().zip(infos) {
                    session.remaining_ms = info?.map_or(0, |info| info.remaining_ms);
                }
            }
        }
        Ok(v1::SessionsReply { header: Some(self.header(revision, 0)), sessions })
    }
}
