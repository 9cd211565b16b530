//! What comes in at the client port, gRPC or not: calls go to the services, the rest to the gateway, which
//! itself calls the services through here. Deadlines that clients set are kept here, for both.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response};
use tidelock_client_port::{ClientName, time_given};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;

use crate::EtcdFace;
use crate::gateway::Gateway;

/// The one service behind every connection. Cloning is cheap.
#[derive(Clone)]
pub(crate) struct Door {
    face: EtcdFace,
    gateway: Gateway,
}

impl Door {
    pub(crate) fn new(face: EtcdFace) -> Door {
        Door { gateway: Gateway::new(face.clone()), face }
    }

    pub(crate) fn face(&self) -> &EtcdFace {
        &self.face
    }

    /// Answers one request, whatever it is.
    pub(crate) async fn answer(self, mut request: Request<Body>) -> Response<Body> {
        if is_grpc(request.headers()) {
            call(self.face, request).await
        } else {
            // A certificate does not speak for who comes through the gateway: in etcd the gateway is a client of its
            // own, and proxies that put JSON clients behind one certificate are built on that. A token does.
            request.extensions_mut().remove::<ClientName>();
            // Boxed so that the calls, which are nearly everything, do not carry its size around.
            Box::pin(self.gateway.answer(request)).await
        }
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// Calls a gRPC method, and gives up when the time the client gave it is over. A write that is given up on
/// may still happen, as with any deadline.
pub(crate) async fn call(mut face: EtcdFace, request: Request<Body>) -> Response<Body> {
    let patience = request.headers().get("grpc-timeout").and_then(|value| time_given(value.as_bytes()));
    let answering = face.call(request);
    let answer = match patience {
        None => answering.await,
        Some(patience) => match tokio::time::timeout(patience, answering).await {
            Ok(answer) => answer,
            Err(_elapsed) => return Status::deadline_exceeded("context deadline exceeded").into_http(),
        },
    };
    match answer {
        Ok(response) => response,
        Err(never) => match never {},
    }
}
