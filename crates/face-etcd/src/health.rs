//! gRPC's own health service, as etcd registers it: one service, named by the empty string, which serves
//! as long as anyone can ask. Whether the cluster has a leader is another question; `/readyz` answers it.

use std::pin::Pin;

use futures_core::Stream;
use futures_util::StreamExt;
use tidelock_etcd_api::healthpb::health_check_response::ServingStatus;
use tidelock_etcd_api::healthpb::health_server::Health;
use tidelock_etcd_api::healthpb::{HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse};
use tonic::{Request, Response, Status};

use crate::leader_watch::requires_leader;
use crate::services::Services;

/// The name of the server as a whole.
const WHOLE_SERVER: &str = "";

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for Services {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        self.refuse_on_learner()?;
        if request.get_ref().service != WHOLE_SERVER {
            return Err(Status::not_found("unknown service"));
        }
        Ok(Response::new(response(ServingStatus::Serving)))
    }

    async fn list(&self, _request: Request<HealthListRequest>) -> Result<Response<HealthListResponse>, Status> {
        self.refuse_on_learner()?;
        let statuses = [(WHOLE_SERVER.to_owned(), response(ServingStatus::Serving))].into();
        Ok(Response::new(HealthListResponse { statuses }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// Tells the state once, which then does not change until the server stops.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.refuse_on_learner()?;
        let required = requires_leader(request.metadata().as_ref());
        let known = request.get_ref().service == WHOLE_SERVER;
        let status = if known { ServingStatus::Serving } else { ServingStatus::ServiceUnknown };
        let end = self.stream_end(required);
        let now = futures_util::stream::iter([Ok(response(status))]);
        let until_the_end = futures_util::stream::once(async move { Err(Status::from(end.await)) });
        Ok(Response::new(Box::pin(now.chain(until_the_end))))
    }
}
