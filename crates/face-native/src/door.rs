//! What comes in at the port: gRPC calls and streams, and plain HTTP, which is `http`'s business.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use tidelock_client_port::{Allowance, ClientName, Face, PREFIX_BYTES, one_message, time_given};
use tidelock_http2::RequestHead;
use tidelock_http2::serve::{Answering, Incoming, Reply, Service};
use tonic::Status;
use tonic::body::Body;

use crate::NativeFace;
use crate::callers::Proof;
use crate::connect::{MESSAGE_BYTES_MAX, connect};
use crate::mailbox::Format;
use crate::problem::Problem;
use crate::services::Services;
use crate::translate;
use crate::unary::{Method, SERVICE};
use tidelock_native_api::v1;

/// One client's HTTP/2 connection.
pub struct ClientConnection {
    face: NativeFace,
    /// Who it is, by its certificate.
    name: Option<ClientName>,
}

/// What a head says of its call: found out once, since the same head comes with many.
struct CallHead {
    method: Method,
    headers: HeaderMap,
    patience: Option<std::time::Duration>,
}

impl ClientConnection {
    fn named<B>(&self, mut request: Request<B>) -> Request<B> {
        if let Some(name) = &self.name {
            request.extensions_mut().insert(name.clone());
        }
        request
    }

    /// What a head says of its call, if it is plainly one with one message each way.
    fn call_head<'a>(&self, head: &'a RequestHead) -> Option<&'a CallHead> {
        let found = head.digest(|head| {
            let is_call = head.method == "POST"
                && head.get("content-type").is_some_and(|kind| kind.starts_with(b"application/grpc"))
                && head.get("grpc-encoding").is_none_or(|encoding| encoding == "identity");
            let method = method_of(std::str::from_utf8(&head.path).ok().filter(|_| is_call)?)?;
            let mut headers = HeaderMap::new();
            for field in head.fields.iter().filter(|field| matches!(&field.name[..], b"authorization" | b"token")) {
                if let (Ok(name), Ok(value)) =
                    (HeaderName::from_bytes(&field.name), HeaderValue::from_maybe_shared(field.value.clone()))
                {
                    headers.append(name, value);
                }
            }
            let patience = head.get("grpc-timeout").and_then(|text| time_given(text));
            Some(CallHead { method, headers, patience })
        });
        found?.as_ref()
    }
}

/// The call of a path, if it is one with one message each way.
fn method_of(path: &str) -> Option<Method> {
    Method::named(path.strip_prefix('/')?.strip_prefix(SERVICE)?.strip_prefix('/')?)
}

impl Service for ClientConnection {
    type Body = Body;

    fn collects(&self, head: &RequestHead) -> Option<usize> {
        self.call_head(head).map(|_| PREFIX_BYTES + MESSAGE_BYTES_MAX)
    }

    fn call(self: &Arc<ClientConnection>, head: &RequestHead, body: Bytes) -> Answering<Reply<Body>> {
        let Some(call) = self.call_head(head) else {
            return Box::pin(async { Reply::Other(Status::internal("malformed request").into_http()) });
        };
        let (method, headers, patience) = (call.method, call.headers.clone(), call.patience);
        let mut extensions = http::Extensions::new();
        if let Some(name) = &self.name {
            extensions.insert(name.clone());
        }
        let services = Arc::clone(self.face.services());
        Box::pin(async move {
            let answering = async {
                let message = one_message(&body, MESSAGE_BYTES_MAX).ok_or_else(not_one_message)?;
                let proof = services.proof(&headers, &extensions).await?;
                services.call(method, &proof, message).await
            };
            match within(patience, answering).await {
                Ok(message) => Reply::Message(message),
                Err(problem) => Reply::Other(Status::from(problem.at(services.header_now())).into_http()),
            }
        })
    }

    fn serve(&self, request: Request<Incoming>) -> Answering<Response<Body>> {
        Box::pin(self.face.clone().answer(self.named(request.map(Body::new))))
    }
}

fn not_one_message() -> Problem {
    Problem::wrong("BAD_MESSAGE", format!("one message of at most {MESSAGE_BYTES_MAX} bytes is expected"))
}

fn no_such_method() -> Problem {
    Problem::new(v1::error::Family::Absent, "NO_SUCH_METHOD", "there is no such method here")
}

/// Gives up when the client's time is over. What was asked for may still happen, as with any deadline.
async fn within<T>(
    patience: Option<std::time::Duration>,
    work: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    let Some(patience) = patience else { return work.await };
    tokio::time::timeout(patience, work).await.unwrap_or_else(|_| {
        let text = "the time given for the call is over; it may or may not have happened";
        Err(Problem::new(v1::error::Family::Unknown, "NO_ANSWER", text))
    })
}

impl Face for NativeFace {
    type Connection = ClientConnection;

    fn connection(&self, name: Option<ClientName>) -> ClientConnection {
        ClientConnection { face: self.clone(), name }
    }

    async fn answer(self, request: Request<Body>) -> Response<Body> {
        let is_grpc = |value: &HeaderValue| value.as_bytes().starts_with(b"application/grpc");
        if request.headers().get(CONTENT_TYPE).is_some_and(is_grpc) {
            let failed = |problem: Problem| Status::from(problem.at(self.services().header_now())).into_http();
            return self.answer_grpc(request).await.unwrap_or_else(failed);
        }
        // Boxed so that streams, which are nearly everything, do not carry its size around.
        Box::pin(crate::http::answer(&self, request)).await
    }

    fn stop_streams(&self) {
        self.services().router.stop();
    }

    fn allowance(&self) -> Allowance {
        self.services().config.allowance
    }
}

impl NativeFace {
    async fn answer_grpc(&self, request: Request<Body>) -> Result<Response<Body>, Problem> {
        let services = self.services();
        let (head, body) = request.into_parts();
        let proof = services.proof(&head.headers, &head.extensions).await?;
        let method = head.uri.path().strip_prefix('/').and_then(|path| path.strip_prefix(SERVICE)).unwrap_or_default();
        let body = match method {
            "/Connect" => {
                // Who may not come in at all learns it here.
                services.caller(&proof)?;
                connect(Arc::clone(services), proof, body)
            }
            "/Observe" => observe(services, &proof, one(body).await?).await?,
            _ => {
                let method = method_of(head.uri.path()).ok_or_else(no_such_method)?;
                let patience = head.headers.get("grpc-timeout").and_then(|value| time_given(value.as_bytes()));
                let message = one(body).await?;
                let answer = within(patience, services.call(method, &proof, message)).await?;
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                Body::new(Full::new(answer).with_trailers(async { Some(Ok(trailers)) }))
            }
        };
        let mut response = Response::new(body);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        Ok(response)
    }
}

/// The one message of a body.
async fn one(body: Body) -> Result<Bytes, Problem> {
    let whole = Limited::new(body, PREFIX_BYTES + MESSAGE_BYTES_MAX).collect().await.map_err(|_| not_one_message())?;
    one_message(&whole.to_bytes(), MESSAGE_BYTES_MAX).ok_or_else(not_one_message)
}

async fn observe(services: &Arc<Services>, proof: &Proof, message: Bytes) -> Result<Body, Problem> {
    let request = <v1::ObserveRequest as prost::Message>::decode(message)
        .map_err(|error| Problem::wrong("BAD_MESSAGE", error.to_string()))?;
    let (kind, name) = (translate::kind(request.kind)?, translate::name(&request.name)?);
    let caller = services.caller(proof)?;
    services.listen_to_name(caller, (kind, name), request.told_revision, Format::Notices).await
}
