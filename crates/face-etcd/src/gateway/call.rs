//! Calls of the gateway to the gRPC services, in this process: the same messages in the same frames as from
//! a socket, so that limits, errors and authorisation are written once, in the services.

use std::future::Future;
use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri};
use http_body_util::BodyExt;
use tidelock_client_port::take_message;
use tonic::body::Body;
use tonic::{Code, Status};

use super::transcode::Method;
use crate::EtcdFace;
use crate::door;

/// HTTP headers with this before their name become metadata without it.
const METADATA_PREFIX: &str = "grpc-metadata-";

/// What of an HTTP request's headers a service gets to see: the token, the deadline, and metadata that the
/// client marked as such. Nothing else: neither the connection nor its certificate, whose name does not
/// speak for whoever uses the gateway.
pub(super) fn metadata(http: &HeaderMap) -> HeaderMap {
    let mut metadata = HeaderMap::new();
    for (name, value) in http {
        if *name == AUTHORIZATION || name == "grpc-timeout" {
            metadata.append(name.clone(), value.clone());
        } else if let Some(bare) = name.as_str().strip_prefix(METADATA_PREFIX)
            // The protocol's own headers are not the client's to set.
            && !bare.starts_with("grpc-")
            && !matches!(bare, "content-type" | "te")
            && let Ok(bare) = HeaderName::try_from(bare)
        {
            metadata.append(bare, value.clone());
        }
    }
    metadata
}

/// One call: not yet answered, or being answered.
pub(super) enum Call {
    Calling(Pin<Box<dyn Future<Output = Response<Body>> + Send>>),
    Answering { body: Body, unread: BytesMut },
    Over,
}

impl Call {
    /// Calls `method` with `frames`. Nothing happens before the first [`Call::next`].
    pub(super) fn new(face: EtcdFace, method: &Method, metadata: HeaderMap, frames: Body) -> Call {
        let mut request = Request::new(frames);
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = Uri::try_from(format!("/{}", method.name)).expect("the table holds only plain names");
        *request.version_mut() = http::Version::HTTP_2;
        *request.headers_mut() = metadata;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        request.headers_mut().insert(http::header::TE, HeaderValue::from_static("trailers"));
        Call::Calling(Box::pin(door::call(face, request)))
    }

    /// The next message; none when the call ended well. After an error there is nothing more. May be
    /// dropped while it waits and called again: nothing is lost.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, Status>> {
        let outcome = self.advance().await;
        if !matches!(outcome, Some(Ok(_))) {
            *self = Call::Over;
        }
        outcome
    }

    async fn advance(&mut self) -> Option<Result<Bytes, Status>> {
        if let Call::Calling(answering) = self {
            let (head, body) = answering.as_mut().await.into_parts();
            // A call that failed at once says so in its headers.
            if let Some(status) = failure(&head.headers) {
                return Some(Err(status));
            }
            *self = Call::Answering { body, unread: BytesMut::new() };
        }
        let Call::Answering { body, unread } = self else { return None };
        loop {
            if let Some(message) = take_message(unread) {
                return Some(Ok(message));
            }
            match body.frame().await? {
                Ok(frame) => match frame.into_data() {
                    Ok(data) => unread.extend_from_slice(&data),
                    Err(frame) => return frame.trailers_ref().and_then(failure).map(Err),
                },
                Err(status) => return Some(Err(status)),
            }
        }
    }
}

fn failure(headers: &HeaderMap) -> Option<Status> {
    Status::from_header_map(headers).filter(|status| status.code() != Code::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    /// The token must reach the services, and a web client must not be able to pass for the protocol.
    #[test]
    fn the_token_and_marked_metadata_are_passed_on_and_nothing_else() {
        let http = headers(&[
            ("authorization", "token.7"),
            ("grpc-metadata-hasleader", "true"),
            ("grpc-metadata-grpc-encoding", "gzip"),
            ("grpc-metadata-content-type", "text/plain"),
            ("grpc-timeout", "1S"),
            ("cookie", "secret"),
            ("hasleader", "true"),
            ("content-type", "application/json"),
        ]);
        let expected = headers(&[("authorization", "token.7"), ("hasleader", "true"), ("grpc-timeout", "1S")]);
        assert_eq!(metadata(&http), expected);
    }
}
