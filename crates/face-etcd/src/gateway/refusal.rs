//! How the gateway says that something went wrong: one status, three ways to write it.
//!
//! etcd changed the shape between 3.5 and 3.6; clients of both are about. What is sent has the fields of
//! both: clients of 3.5 read `error`, those of 3.6 and later `code` and `message`, and HTTP codes are those
//! that both agree on.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use serde_json::json;
use tonic::body::Body;
use tonic::{Code, Status};

use super::whole;

/// The content type of everything that is JSON.
pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The HTTP code for a gRPC code, by the table of the gateway that etcd uses.
pub(super) fn http_code(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        // Nginx' "client closed request"; it has no name of its own.
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The answer to a call that failed before anything was said.
pub(super) fn refused(status: &Status) -> Response<Body> {
    let (code, message) = (status.code() as i32, status.message());
    // In the order in which etcd 3.5 writes them: `json!` would sort.
    let body = format!(r#"{{"error":{0},"code":{code},"message":{0}}}"#, json!(message));
    let mut response = whole(http_code(status.code()), JSON, body);
    if status.code() == Code::Unauthenticated
        && let Ok(why) = HeaderValue::from_str(message)
    {
        response.headers_mut().insert(WWW_AUTHENTICATE, why);
    }
    response
}

/// The answer to a stream that failed before its first message.
pub(super) fn refused_stream(status: &Status) -> Response<Body> {
    let mut response = Response::new(Body::new(http_body_util::Full::new(error_line(status))));
    *response.status_mut() = http_code(status.code());
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// The last line of a stream that failed.
pub(super) fn error_line(status: &Status) -> Bytes {
    let (code, http) = (status.code() as i32, http_code(status.code()));
    let (message, reason) = (json!(status.message()), json!(http.canonical_reason().unwrap_or_default()));
    let http = http.as_u16();
    format!(
        "{{\"error\":{{\"grpc_code\":{code},\"http_code\":{http},\"message\":{message},\"http_status\":{reason},\
         \"code\":{code}}}}}\n"
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients of 3.5 and of 3.7 look for different fields; each must find its own.
    #[test]
    fn an_error_has_the_fields_that_clients_of_every_version_look_for() {
        let line = error_line(&Status::unavailable("etcdserver: \"no\" leader"));
        let error: serde_json::Value = serde_json::from_slice(&line).unwrap();
        let error = &error["error"];
        assert_eq!((&error["grpc_code"], &error["http_code"], &error["code"]), (&json!(14), &json!(503), &json!(14)));
        assert_eq!(
            (&error["message"], &error["http_status"]),
            (&json!("etcdserver: \"no\" leader"), &json!("Service Unavailable"))
        );
        assert!(line.ends_with(b"\n"), "streams are read by lines");
    }

    /// Clients retry on 503 and give up on 400: a wrong pair makes them do the wrong one.
    #[test]
    fn http_codes_are_those_that_clients_act_on() {
        for (code, http) in [
            (Code::InvalidArgument, 400),
            (Code::FailedPrecondition, 400),
            (Code::OutOfRange, 400),
            (Code::Unauthenticated, 401),
            (Code::PermissionDenied, 403),
            (Code::NotFound, 404),
            (Code::ResourceExhausted, 429),
            (Code::Cancelled, 499),
            (Code::Unknown, 500),
            (Code::Unimplemented, 501),
            (Code::Unavailable, 503),
            (Code::DeadlineExceeded, 504),
        ] {
            assert_eq!(http_code(code).as_u16(), http, "{code:?}");
        }
    }
}
