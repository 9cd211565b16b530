//! etcd's JSON gateway, and the plain HTTP endpoints beside it: everything at the client port that is not gRPC.
//!
//! | file         | what it holds                                                              |
//! |--------------|----------------------------------------------------------------------------|
//! | `routes`     | the table of paths                                                         |
//! | `transcode`  | JSON to protobuf and back, by the descriptors                              |
//! | `call`       | calls to the gRPC services in this process                                 |
//! | `stream`     | streams as lines over HTTP                                                 |
//! | `websocket`  | streams as messages over a websocket                                       |
//! | `refusal`    | errors                                                                     |
//! | `endpoints`  | `/version`, `/health`, `/livez`, `/readyz`, `/metrics`                     |
//!
//! What holds: a call through here is the same call as over gRPC, with the same limits, answers and errors; no
//! service knows that there is a gateway. Bodies are bounded before they are read, streams are not collected.
//!
//! Refused: calls asked for by a web page of another origin. A browser on the same machine can reach loopback,
//! and no page has any business in here. (etcd answers them, and tells the browser to let the page read.)

mod call;
mod endpoints;
mod refusal;
mod routes;
mod stream;
#[cfg(test)]
mod tests;
mod transcode;
mod websocket;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Method as HttpMethod, Request, Response, StatusCode};
use http_body_util::Full;
use tidelock_client_port::{Shape, frame, is_of_another_origin};
use tonic::Status;
use tonic::body::Body;

use crate::EtcdFace;
use call::{Call, metadata};
use refusal::{JSON, refused};
use transcode::{Method, methods, request_from_json, response_to_json};

/// How many times the size of a message its JSON may have: base64 takes a third more, names and quotes some.
const JSON_GROWTH: usize = 2;

/// Every answer that came from a service says so.
const GRPC_CONTENT_TYPE: (HeaderName, HeaderValue) =
    (HeaderName::from_static("grpc-metadata-content-type"), HeaderValue::from_static("application/grpc"));

/// Answers whatever is not gRPC. Cloning is cheap.
#[derive(Clone)]
pub(crate) struct Gateway(Arc<Shared>);

struct Shared {
    face: EtcdFace,
    /// Made when the first client asks in JSON: the descriptors take megabytes, and most clients speak gRPC.
    methods: LazyLock<HashMap<&'static str, Method>>,
}

impl Gateway {
    pub(crate) fn new(face: EtcdFace) -> Gateway {
        Gateway(Arc::new(Shared { face, methods: LazyLock::new(methods) }))
    }

    pub(crate) async fn answer(&self, request: Request<Body>) -> Response<Body> {
        if is_of_another_origin(&request) {
            return refused(&Status::permission_denied("requests of web pages of another origin are refused"));
        }
        if request.method() == HttpMethod::OPTIONS {
            return Response::new(Body::empty());
        }
        let path = routes::canonical(request.uri().path());
        if !path.starts_with("/v3/") {
            return endpoints::answer(&self.0.face, &request.into_parts().0).await;
        }
        let Some(method) = self.0.methods.get(&*path) else { return refused(&Status::not_found("Not Found")) };
        let Some(shape) = &method.shape else {
            let service = method.name.split('/').next().unwrap_or_default();
            return refused(&Status::unimplemented(format!("unknown service {service}")));
        };
        let face = self.0.face.clone();
        let limits = face.config().limits;
        if websocket::is_wanted(request.headers()) {
            let method = (method.clone(), shape.clone());
            return websocket::answer(face, method, request, limits.message_bytes() * JSON_GROWTH);
        }
        if request.method() != HttpMethod::POST {
            return refused(&Status::unimplemented("Method Not Allowed"));
        }
        let (head, body) = request.into_parts();
        let metadata = metadata(&head.headers);
        if shape.takes_stream {
            let bytes_max = limits.message_bytes() * JSON_GROWTH;
            return stream::answer_stream(face, (method, shape), metadata, body, bytes_max).await;
        }
        let frames = match one_request(shape, body, limits.message_bytes()).await {
            Ok(frames) => frames,
            Err(status) => return refused(&status),
        };
        let call = Call::new(face, method, metadata, frames);
        if shape.gives_stream { stream::answer_lines(call, shape).await } else { answer_one(call, shape).await }
    }
}

/// A body with one request in it, framed for the service.
async fn one_request(shape: &Shape, body: Body, message_bytes: usize) -> Result<Body, Status> {
    let json = stream::read_whole(body, message_bytes * JSON_GROWTH).await?;
    let encoded = request_from_json(shape, &json)?;
    if encoded.len() > message_bytes {
        return Err(too_large(encoded.len(), message_bytes));
    }
    Ok(Body::new(Full::new(frame(&encoded))))
}

async fn answer_one(mut call: Call, shape: &Shape) -> Response<Body> {
    let message = match call.next().await {
        Some(Ok(message)) => message,
        Some(Err(status)) => return refused(&status),
        None => return refused(&Status::internal("the service gave no answer")),
    };
    // What it says after its one answer decides whether that counts.
    if let Some(Err(status)) = call.next().await {
        return refused(&status);
    }
    let mut json = Vec::new();
    if let Err(status) = response_to_json(shape, message, &mut json) {
        return refused(&status);
    }
    let mut response = whole(StatusCode::OK, JSON, json);
    let (name, value) = GRPC_CONTENT_TYPE;
    response.headers_mut().insert(name, value);
    response
}

/// In the words of etcd's gRPC library, which looks at the message where we may have seen only its JSON.
fn too_large(bytes: usize, bytes_max: usize) -> Status {
    Status::resource_exhausted(format!("grpc: received message larger than max ({bytes} vs. {bytes_max})"))
}

/// An answer that is all there.
fn whole(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(body.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
