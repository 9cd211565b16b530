//! The API for people and scripts: JSON in, JSON out, server-sent events for what is pushed, and a document that says so.
//!
//! A call through here is the same call as over gRPC: its JSON is translated by the descriptors and carried out by the
//! same code. Errors are the `Error` of the proto with the HTTP code of its family.
//!
//! Refused: fields that nobody knows (they are misspelt more often than not), bodies larger than [`BODY_BYTES_MAX`],
//! and requests of web pages of another origin.

mod openapi;
mod query;
mod routes;
mod waiting;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method as HttpMethod, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use serde_json::{Map, Value};
use tidelock_client_port::{PREFIX_BYTES, Unreadable, is_of_another_origin};
use tidelock_model::{LeaseId, NativeError};
use tidelock_native_api::v1;
use tidelock_native_api::v1::error::Family;
use tonic::body::Body;

use crate::NativeFace;
use crate::connect::MESSAGE_BYTES_MAX;
use crate::mailbox::Format;
use crate::problem::{CHALLENGE, Problem};
use crate::services::Services;
use crate::translate;

use query::Parameters;
pub(crate) use routes::Routes;

/// Largest body taken: JSON takes up to twice the space of the message it is.
const BODY_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");

/// Answers whatever is not gRPC.
pub(crate) async fn answer(face: &NativeFace, request: Request<Body>) -> Response<Body> {
    match try_answer(face, request).await {
        Ok(response) => response,
        Err(problem) => refused(&problem, face.services().header_now()),
    }
}

async fn try_answer(face: &NativeFace, request: Request<Body>) -> Result<Response<Body>, Problem> {
    if is_of_another_origin(&request) {
        let text = "requests of web pages of another origin are refused";
        return Err(Problem::new(Family::Denied, "OTHER_ORIGIN", text));
    }
    let (head, body) = request.into_parts();
    let (services, routes, path) = (face.services(), face.routes(), head.uri.path());
    if let "/v1/openapi.json" | "/v1/native/events" | "/v1/observe" = path {
        if head.method != HttpMethod::GET {
            return Err(wrong_method(path, "GET"));
        }
        return match path {
            "/v1/openapi.json" => Ok(whole(StatusCode::OK, routes.document())),
            path => events(services, path == "/v1/observe", &head).await,
        };
    }
    let route = routes.find(path).ok_or_else(|| {
        let text = format!("there is nothing at {path}; GET /v1/openapi.json tells what there is");
        Problem::new(Family::Absent, "NO_SUCH_PATH", text)
    })?;
    if head.method != HttpMethod::POST {
        return Err(wrong_method(path, "POST"));
    }
    let json = object(body).await?;
    if lives_too_long(&json) {
        return Err(NativeError::TtlOutOfRange.into());
    }
    let encoded = route.shape.request_from_json(route.message(json).to_string().as_bytes(), true).map_err(bad_json)?;
    let proof = services.proof(&head.headers, &head.extensions).await?;
    let parameters = Parameters::of(head.uri.query());
    let framed = match parameters.number("wait_ms")? {
        Some(wait_ms) if route.may_wait() => waiting::ask(services, &proof, encoded, wait_ms).await?,
        Some(_) => return Err(Problem::wrong("BAD_PARAMETER", "only who acquires or campaigns can wait")),
        None => services.call(route.method, &proof, encoded).await?,
    };
    let mut out = Vec::new();
    let answer = framed.slice(PREFIX_BYTES..);
    let written = route.shape.response_to_json(answer, false, &mut out);
    written.map_err(|text| Problem::new(Family::Unknown, "INTERNAL", text))?;
    Ok(whole(StatusCode::OK, out))
}

fn wrong_method(path: &str, right: &str) -> Problem {
    Problem::wrong("METHOD_NOT_ALLOWED", format!("{path} takes {right}"))
}

/// Whether a time to live does not even fit its field: it is out of range like any other that is too long.
fn lives_too_long(json: &Map<String, Value>) -> bool {
    let number = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
    let asked = ["ttlMs", "ttl_ms"].iter().filter_map(|name| number(json.get(*name)?));
    asked.max().is_some_and(|ttl_ms| ttl_ms > u64::from(u32::MAX))
}

fn bad_json(unreadable: Unreadable) -> Problem {
    Problem::wrong(
        "BAD_JSON",
        match unreadable {
            Unreadable::CutOff => "the JSON ends too early".to_owned(),
            Unreadable::Malformed(why) => format!("the JSON is not what is expected here: {why}"),
        },
    )
}

/// The object in a body; an empty body is an empty object.
async fn object(body: Body) -> Result<Map<String, Value>, Problem> {
    let whole = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|_| {
        Problem::wrong("BODY_TOO_LARGE", format!("a body has at most {BODY_BYTES_MAX} bytes, and comes to its end"))
    })?;
    let whole = whole.to_bytes();
    if whole.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    match serde_json::from_slice(&whole) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Problem::wrong("BAD_JSON", "a JSON object is expected, in braces")),
        Err(error) => Err(Problem::wrong("BAD_JSON", format!("the body is no JSON: {error}"))),
    }
}

/// What happens to a name or a session, as it happens.
async fn events(services: &Arc<Services>, is_name: bool, head: &Parts) -> Result<Response<Body>, Problem> {
    let parameters = Parameters::of(head.uri.query());
    let proof = services.proof(&head.headers, &head.extensions).await?;
    let caller = services.caller(&proof)?;
    // A browser that comes back says by itself what it was told last.
    let last = head.headers.get("last-event-id").and_then(|id| id.to_str().ok()).and_then(|id| id.parse().ok());
    let told_revision = match last {
        Some(last) => last,
        None => parameters.number("from")?.unwrap_or(0),
    };
    let body = if is_name {
        let kind = parameters.text("kind")?;
        let kind = v1::Kind::from_str_name(&kind.to_ascii_uppercase()).unwrap_or(v1::Kind::Unspecified);
        let (kind, name) = (translate::kind(kind.into())?, translate::name(&parameters.text("name")?)?);
        services.listen_to_name(caller, (kind, name), told_revision, Format::Events).await?
    } else {
        let session = parameters.number("session")?.and_then(|id| i64::try_from(id).ok());
        let session = LeaseId(session.ok_or_else(|| Problem::wrong("BAD_PARAMETER", "give session=ID"))?);
        services.listen_to_session(caller, session, told_revision, Format::Events).await?
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, EVENTS);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

fn refused(problem: &Problem, header: v1::Header) -> Response<Body> {
    let v1::Error { code, message, numbers, .. } = problem.to_wire();
    let (revision, term) = (header.revision.to_string(), header.term.to_string());
    let header = serde_json::json!({ "revision": revision, "term": term });
    let family = problem.family.as_str_name();
    let mut json = serde_json::json!({ "code": code, "message": message, "family": family, "header": header });
    if !numbers.is_empty() {
        let text = |(name, number): (String, i64)| (name, Value::from(number.to_string()));
        json["numbers"] = Value::Object(numbers.into_iter().map(text).collect());
    }
    let mut response = whole(problem.http_code(), json.to_string());
    if problem.http_code() == StatusCode::UNAUTHORIZED {
        let (name, value) = CHALLENGE;
        response.headers_mut().insert(name, value);
    }
    response
}

/// An answer that is all there.
fn whole(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(body.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}
