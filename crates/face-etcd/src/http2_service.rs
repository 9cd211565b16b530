//! What an HTTP/2 connection of a client asks, handed to whoever answers it: calls with one message each way to
//! `unary`, Watch streams to `watch`, everything else to `door`.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use tidelock_client_port::{Allowance, ClientName, Face, PREFIX_BYTES, one_message};
use tidelock_http2::RequestHead;
use tidelock_http2::serve::{Answering, Incoming, Reply, Service};
use tidelock_tls::Acceptor;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;

use crate::EtcdFace;
use crate::call_counts::CallCounts;
use crate::client_body::ClientBody;
use crate::door::Door;
use crate::services::Services;
use crate::unary::{CallHead, Methods};
use crate::watch;

/// Answers of one connection at a time that may be long: they are held whole, from when they are looked for until their
/// client has taken them. Half of what the connection keeps for a client that takes nothing, so that there is always room
/// for short ones.
pub(crate) const LONG_ANSWERS_MAX: usize = 8;

/// One client's connection.
pub(crate) struct ClientConnection {
    pub(crate) door: Door,
    pub(crate) methods: Arc<Methods>,
    /// Who it is, by its certificate.
    pub(crate) name: Option<ClientName>,
    /// For long answers to take turns.
    pub(crate) long_answers: Arc<Semaphore>,
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

/// The face as the client port takes it: what every connection needs, made once.
#[derive(Clone)]
struct AtPort {
    door: Door,
    methods: Arc<Methods>,
}

/// Serves `face` on `listener` until `shutdown` resolves, with TLS if there is an acceptor for it. Then streams
/// are told that the server stopped, calls under way get [`crate::FaceConfig::drain`] to finish, and the
/// connections are closed.
pub async fn serve(
    listener: TcpListener,
    face: EtcdFace,
    tls: Option<Arc<Acceptor>>,
    shutdown: impl Future<Output = ()>,
) {
    let at_port = AtPort { door: Door::new(face), methods: Arc::new(Methods::all()) };
    tidelock_client_port::serve(listener, at_port, tls, shutdown).await;
}

impl Face for AtPort {
    type Connection = ClientConnection;

    fn connection(&self, name: Option<ClientName>) -> ClientConnection {
        let long_answers = Arc::new(Semaphore::new(LONG_ANSWERS_MAX));
        ClientConnection { door: self.door.clone(), methods: Arc::clone(&self.methods), name, long_answers }
    }

    fn answer(self, request: http::Request<Body>) -> impl Future<Output = http::Response<Body>> + Send {
        self.door.answer(request)
    }

    fn stop_streams(&self) {
        self.door.face().stop_streams();
    }

    fn allowance(&self) -> Allowance {
        let config = self.door.face().config();
        Allowance {
            streams: config.streams_per_connection,
            ping_after: config.ping_after,
            ping_timeout: config.ping_timeout,
            drain: config.drain,
        }
    }
}

impl Service for ClientConnection {
    type Body = ClientBody;

    fn collects(&self, head: &RequestHead) -> Option<usize> {
        self.call_head(head).map(|_| PREFIX_BYTES + self.message_bytes())
    }

    fn may_wait(&self, head: &RequestHead) -> bool {
        self.call_head(head).is_none_or(|call| call.may_wait)
    }

    fn call(self: &Arc<ClientConnection>, head: &RequestHead, body: Bytes) -> Answering<Reply<ClientBody>> {
        if let Some(call) = self.call_head(head)
            && let Some(message) = one_message(&body, self.message_bytes())
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
