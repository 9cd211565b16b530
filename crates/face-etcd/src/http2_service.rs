//! What an HTTP/2 connection of a client asks, handed to whoever answers it: calls with one message each way to
//! `unary`, Watch streams to `watch`, everything else to `door`.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use tidelock_http2::RequestHead;
use tidelock_http2::serve::{Answering, Incoming, Reply, Service};
use tonic::Status;
use tonic::body::Body;

use crate::call_counts::CallCounts;
use crate::client_body::ClientBody;
use crate::door::Door;
use crate::listener::ClientName;
use crate::services::Services;
use crate::unary::{self, CallHead, Methods, PREFIX_BYTES};
use crate::watch;

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

    pub(crate) fn services(&self) -> &Services {
        self.door.face().services()
    }

    pub(crate) fn counts(&self) -> &CallCounts {
        self.door.face().call_counts()
    }

    pub(crate) fn has_leader(&self) -> bool {
        self.door.face().has_leader()
    }

    /// What a head says of its call, if it is plainly one.
    fn call_head<'a>(&self, head: &'a RequestHead) -> Option<&'a CallHead> {
        head.digest(|head| self.methods.find(head, self.counts()))?.as_ref()
    }
}

impl Service for ClientConnection {
    type Body = ClientBody;

    fn collects(&self, head: &RequestHead) -> Option<usize> {
        self.call_head(head).map(|_| PREFIX_BYTES + self.message_bytes())
    }

    fn call(self: &Arc<ClientConnection>, head: &RequestHead, body: Bytes) -> Answering<Reply<ClientBody>> {
        if let Some(call) = self.call_head(head)
            && let Some(message) = unary::one_message(&body, self.message_bytes())
        {
            return call.call(self, message);
        }
        let Some(request) = head.to_http(Body::new(Full::new(body))) else {
            return Box::pin(async { Reply::Other(Status::internal("malformed request").into_http()) });
        };
        let answering = self.door.clone().answer(self.named(request));
        Box::pin(async { Reply::Other(answering.await.map(ClientBody::Other)) })
    }

    fn serve(&self, request: http::Request<Incoming>) -> Answering<http::Response<ClientBody>> {
        let request = self.named(request.map(Body::new));
        if watch::is_plain(&request) {
            return Box::pin(std::future::ready(self.door.face().watch(request)));
        }
        let answering = self.door.clone().answer(request);
        Box::pin(async { answering.await.map(ClientBody::Other) })
    }
}
