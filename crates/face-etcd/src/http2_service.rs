//! What an HTTP/2 connection of a client asks, handed to whoever answers it: calls with one message each way to
//! `unary`, everything else to `door`.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use tidelock_http2::RequestHead;
use tidelock_http2::serve::{Answering, Incoming, Reply, Service};
use tonic::Status;
use tonic::body::Body;

use crate::door::Door;
use crate::error_map::FaceError;
use crate::leader_watch::requires_leader;
use crate::listener::ClientName;
use crate::unary::{self, Asked, Methods, PREFIX_BYTES};

/// One client's connection.
pub(crate) struct ClientConnection {
    pub(crate) door: Door,
    pub(crate) methods: Arc<Methods>,
    /// Who it is, by its certificate.
    pub(crate) name: Option<ClientName>,
}

impl ClientConnection {
    fn message_bytes(&self) -> usize {
        self.door.face().config().limits.message_bytes()
    }

    fn named<B>(&self, mut request: http::Request<B>) -> http::Request<B> {
        if let Some(name) = &self.name {
            request.extensions_mut().insert(name.clone());
        }
        request
    }

    /// Carries a call out that is plainly one.
    async fn carry_out(door: Door, run: unary::Run, asked: Asked) -> Result<Bytes, Status> {
        let face = door.face();
        if requires_leader(asked.headers()) && !face.has_leader() {
            return Err(FaceError::NoLeader.into());
        }
        run(face.services(), asked).await
    }
}

impl Service for ClientConnection {
    type Body = Body;

    fn collects(&self, head: &RequestHead) -> Option<usize> {
        self.methods.find(head).map(|_| PREFIX_BYTES + self.message_bytes())
    }

    fn call(&self, head: Arc<RequestHead>, body: Bytes) -> Answering<Reply<Body>> {
        let message = unary::one_message(body.clone(), self.message_bytes());
        let (Some(run), Some(message)) = (self.methods.find(&head), message) else {
            let Some(request) = head.to_http(Body::new(Full::new(body))) else {
                return Box::pin(async { Reply::Other(Status::internal("malformed request").into_http()) });
            };
            let answering = self.door.clone().answer(self.named(request));
            return Box::pin(async { Reply::Other(answering.await) });
        };
        let path = std::str::from_utf8(&head.path).unwrap_or_default();
        let counting = self.door.face().count(path, PREFIX_BYTES + message.len());
        let asked = Asked::new(&head, self.name.as_ref(), message);
        let patience = unary::patience(&head);
        let carrying = ClientConnection::carry_out(self.door.clone(), run, asked);
        Box::pin(async move {
            let result = match patience {
                None => carrying.await,
                Some(patience) => match tokio::time::timeout(patience, carrying).await {
                    Ok(result) => result,
                    // Counted as given up, as when the client says so itself.
                    Err(_elapsed) => {
                        return Reply::Other(Status::deadline_exceeded("context deadline exceeded").into_http());
                    }
                },
            };
            if let Some(counting) = counting {
                counting.ended(&result);
            }
            match result {
                Ok(message) => Reply::Message(message),
                Err(status) => Reply::Other(status.into_http()),
            }
        })
    }

    fn serve(&self, request: http::Request<Incoming>) -> Answering<http::Response<Body>> {
        Box::pin(self.door.clone().answer(self.named(request.map(Body::new))))
    }
}
