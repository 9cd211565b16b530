//! The admin address: health, metrics and administration over HTTP and JSON.
//!
//! ```text
//! GET    /health               {"health":"true"} only if a linearizable read just succeeded
//! GET    /readyz, /livez       whether to send traffic here; whether the process runs at all
//! GET    /metrics              Prometheus text
//! GET    /v1/status            what this node knows of itself and its peers
//! GET    /v1/members           the members
//! POST   /v1/members           {"peer_address", "name"?, "learner"?}: add one
//! POST   /v1/members/ID/promote, DELETE /v1/members/ID
//! POST   /v1/leadership        {"to": ID}
//! POST   /v1/history          {"znode": "/path"} or {"key": "name"}: its versions
//! POST   /v1/snapshot          answers once a snapshot of this node's state is durable
//! ```
//!
//! Errors are `{"error", "hint", "code"}`. Bodies are small and bounded. A change asked for by a web
//! page of another origin is refused: a browser on the same machine can reach loopback, and no page
//! has any business removing members.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use serde_json::json;
use tidelock_coordinator::{Consistency, Coordinator, MemberError, ReadError};
use tidelock_model::{
    Caller, Key, KeyRange, Member, MemberChange, MemberRole, NodeId, Projection, Query, QueryAnswer, RangeOp, Space,
};

use crate::admin_api::{
    AddMember, ErrorReport, MemberAdded, MemberList, MemberReport, StatusReport, TransferLeadership,
    member_error_advice, parse_hex,
};
use crate::config::check_host_port;

/// Largest body taken; a request to add a member is a few hundred bytes.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// A read that takes longer than this is no sign of health.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest member name taken.
const NAME_BYTES_MAX: usize = 255;

/// What the routes need.
#[derive(Clone)]
pub(crate) struct Admin {
    /// The node.
    pub(crate) coordinator: Arc<dyn Coordinator>,
    /// Its name.
    pub(crate) name: Arc<str>,
    /// What a scrape gets.
    pub(crate) metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

/// The routes.
pub(crate) fn router(admin: Admin) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/readyz", get(readyz))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/metrics", get(metrics_text))
        .route("/v1/status", get(status))
        .route("/v1/members", get(list_members).post(add_member))
        .route("/v1/members/{id}", delete(remove_member))
        .route("/v1/members/{id}/promote", post(promote_member))
        .route("/v1/leadership", post(transfer_leadership))
        .route("/v1/snapshot", post(take_snapshot))
        .route("/v1/history", post(crate::admin_history::history))
        .fallback(no_such_route)
        .layer(middleware::from_fn(refuse_other_origins))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(admin)
}

/// The routes of an address that is for monitoring alone.
pub(crate) fn metrics_router(admin: Admin) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/readyz", get(readyz))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/metrics", get(metrics_text))
        .with_state(admin)
}

/// An answer that is not a success.
pub(crate) struct Refused(StatusCode, ErrorReport);

impl Refused {
    fn new(status: StatusCode, code: &str, error: impl Into<String>, hint: impl Into<String>) -> Refused {
        Refused(status, ErrorReport { error: error.into(), hint: hint.into(), code: code.into() })
    }

    pub(crate) fn bad_request(error: impl Into<String>, hint: impl Into<String>) -> Refused {
        Refused::new(StatusCode::BAD_REQUEST, "bad-request", error, hint)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

impl From<MemberError> for Refused {
    fn from(error: MemberError) -> Refused {
        let status = match error {
            MemberError::NotFound(_) => StatusCode::NOT_FOUND,
            MemberError::Exists(_)
            | MemberError::AddressTaken(_)
            | MemberError::WrongRole(_)
            | MemberError::LearnerBehind { .. }
            | MemberError::WouldLoseQuorum => StatusCode::CONFLICT,
            MemberError::Denied(_) => StatusCode::FORBIDDEN,
            MemberError::Busy | MemberError::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            MemberError::OutcomeUnknown { .. } => StatusCode::GATEWAY_TIMEOUT,
        };
        let (code, hint) = member_error_advice(&error);
        Refused::new(status, code, error.to_string(), hint)
    }
}

impl From<ReadError> for Refused {
    fn from(error: ReadError) -> Refused {
        let hint = "check that a majority of the members runs and can reach each other, then retry";
        Refused::new(StatusCode::SERVICE_UNAVAILABLE, "no-majority", error.to_string(), hint)
    }
}

/// Browsers name the page's origin on every request that changes something; other programs do not.
async fn refuse_other_origins(request: Request, next: Next) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if !reads && !is_same_origin(request.headers()) {
        return Refused::new(
            StatusCode::FORBIDDEN,
            "other-origin",
            "changes asked for by a web page of another origin are refused",
            "use the tidelock command or curl",
        )
        .into_response();
    }
    next.run(request).await
}

fn is_same_origin(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    origin.to_str().ok().and_then(|origin| origin.strip_prefix("http://")) == Some(host)
}

async fn no_such_route() -> Refused {
    let hint =
        "there are /health /readyz /livez /metrics /v1/status /v1/members /v1/leadership /v1/snapshot and /v1/history";
    Refused::new(StatusCode::NOT_FOUND, "no-such-route", "there is nothing at this path", hint)
}

/// Tells the truth: a node that cannot reach a majority is not healthy, however well it feels.
async fn health(State(admin): State<Admin>) -> Response {
    let key = Key::new(Space::User, b"health");
    let range = KeyRange::single(key);
    let query = Query::Range(RangeOp { projection: Projection::CountOnly, ..RangeOp::all(range) });
    let reading = admin.coordinator.read(Caller::Internal, query, Consistency::Linearizable);
    let reason = match tokio::time::timeout(HEALTH_TIMEOUT, reading).await {
        Ok(Ok(_)) => return Json(json!({"health": "true", "reason": ""})).into_response(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("a read took longer than {HEALTH_TIMEOUT:?}"),
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"health": "false", "reason": reason}))).into_response()
}

async fn readyz(State(admin): State<Admin>) -> Response {
    let status = admin.coordinator.status();
    if status.is_ready() {
        return "ok\n".into_response();
    }
    let why = match status.leader {
        None => "no leader is known\n",
        Some(_) => "still catching up with the leader\n",
    };
    (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
}

async fn metrics_text(State(admin): State<Admin>) -> Response {
    let text = (admin.metrics)();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn status(State(admin): State<Admin>) -> Json<StatusReport> {
    Json(StatusReport::new(&admin.name, &admin.coordinator.status()))
}

/// Local, not linearizable: the list must be readable when the cluster has no majority, which is when
/// operators need it most. A node that is behind shows an older list.
async fn list_members(State(admin): State<Admin>) -> Result<Json<MemberList>, Refused> {
    let answer = admin.coordinator.read(Caller::Internal, Query::Members, Consistency::Local).await?;
    let QueryAnswer::Members { members, .. } = answer else {
        unreachable!("Query::Members is answered by members");
    };
    Ok(Json(report(&admin, &members)))
}

async fn add_member(State(admin): State<Admin>, body: Bytes) -> Result<Json<MemberAdded>, Refused> {
    let request: AddMember = parse(&body, r#"send {"peer_address": "host:port"}"#)?;
    if let Err(why) = check_host_port(&request.peer_address, false) {
        let error = format!("peer_address {:?} {why}", request.peer_address);
        return Err(Refused::bad_request(error, "send the host:port at which members reach the new one"));
    }
    let name = request.name.unwrap_or_default();
    if name.len() > NAME_BYTES_MAX {
        return Err(Refused::bad_request("the name is too long", format!("use at most {NAME_BYTES_MAX} bytes")));
    }
    let member = Member {
        id: NodeId(rand::random::<u64>().max(1)),
        name,
        peer_addresses: vec![request.peer_address],
        client_urls: Vec::new(),
        role: if request.learner { MemberRole::Learner } else { MemberRole::Voter },
        zookeeper: None,
    };
    let id = member.id;
    let members = admin.coordinator.change_members(Caller::Internal, MemberChange::Add(member)).await?;
    let MemberList { cluster, members } = report(&admin, &members);
    tracing::info!(member = %crate::admin_api::hex(id.0), "member added");
    Ok(Json(MemberAdded { id: crate::admin_api::hex(id.0), cluster, members }))
}

async fn promote_member(State(admin): State<Admin>, Path(id): Path<String>) -> Result<Json<MemberList>, Refused> {
    let change = MemberChange::Promote(node_id(&id)?);
    let members = admin.coordinator.change_members(Caller::Internal, change).await?;
    tracing::info!(member = %id, "member promoted");
    Ok(Json(report(&admin, &members)))
}

async fn remove_member(State(admin): State<Admin>, Path(id): Path<String>) -> Result<Json<MemberList>, Refused> {
    let change = MemberChange::Remove(node_id(&id)?);
    let members = admin.coordinator.change_members(Caller::Internal, change).await?;
    tracing::info!(member = %id, "member removed");
    Ok(Json(report(&admin, &members)))
}

async fn transfer_leadership(State(admin): State<Admin>, body: Bytes) -> Result<Json<MemberList>, Refused> {
    let request: TransferLeadership = parse(&body, r#"send {"to": "the id of a voter, in hex"}"#)?;
    admin.coordinator.transfer_leadership(Caller::Internal, node_id(&request.to)?).await?;
    tracing::info!(to = %request.to, "leadership transferred");
    list_members(State(admin)).await
}

async fn take_snapshot(State(admin): State<Admin>) -> Result<&'static str, Refused> {
    let hint = "look at the node's log and at the space left on its disk";
    let failed = |problem: String| Refused::new(StatusCode::SERVICE_UNAVAILABLE, "no-snapshot", problem, hint);
    admin.coordinator.take_snapshot(Caller::Internal).await.map_err(failed)?;
    Ok("{}\n")
}

fn report(admin: &Admin, members: &[Member]) -> MemberList {
    let status = admin.coordinator.status();
    let list = MemberList::new(status.cluster, members, status.leader);
    debug_assert!(list.members.iter().filter(|member: &&MemberReport| member.leader).count() <= 1);
    list
}

fn node_id(text: &str) -> Result<NodeId, Refused> {
    parse_hex(text).map(NodeId).ok_or_else(|| {
        Refused::bad_request(format!("{text:?} is not a member id"), "use a hex id from GET /v1/members")
    })
}

pub(crate) fn parse<T: DeserializeOwned>(body: &[u8], hint: &str) -> Result<T, Refused> {
    serde_json::from_slice(body)
        .map_err(|error| Refused::bad_request(format!("the body cannot be understood: {error}"), hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect::<HeaderMap<axum::http::HeaderValue>>()
    }

    /// A page in the operator's browser can send requests to loopback; without this check it could
    /// remove members behind the operator's back.
    #[test]
    fn a_web_page_of_another_origin_may_change_nothing() {
        assert!(is_same_origin(&headers(&[("host", "127.0.0.1:7480")])));
        assert!(is_same_origin(&headers(&[("host", "127.0.0.1:7480"), ("origin", "http://127.0.0.1:7480")])));
        assert!(!is_same_origin(&headers(&[("host", "127.0.0.1:7480"), ("origin", "http://evil.example")])));
        assert!(!is_same_origin(&headers(&[("host", "127.0.0.1:7480"), ("origin", "null")])));
        assert!(!is_same_origin(&headers(&[("origin", "null")])));
    }
}
