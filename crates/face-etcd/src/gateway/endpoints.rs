//! The plain HTTP endpoints that etcd has on its client port: `/version`, `/health`, `/livez`, `/readyz`,
//! `/metrics`. Words, codes and content types are etcd's; probes and dashboards compare them.
//!
//! They ask the coordinator themselves, not as a client: whether a node is well is told to everybody.

use http::header::{ALLOW, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use tidelock_coordinator::{Consistency, Role};
use tidelock_etcd_api::etcdserverpb::AlarmType;
use tidelock_model::{Caller, Query};
use tonic::body::Body;

use super::refusal::JSON;
use super::whole;
use crate::EtcdFace;
use crate::error_map::FaceError;
use crate::maintenance::{ETCD_VERSION, alarms};
use crate::services::Services;

const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// One thing that `/livez` or `/readyz` looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    DataCorruption,
    SerializableRead,
    LinearizableRead,
    NonLearner,
}

impl Check {
    /// Whether the process answers at all.
    const LIVE: &[Check] = &[Check::SerializableRead];
    /// Whether clients should be sent here.
    const READY: &[Check] =
        &[Check::DataCorruption, Check::SerializableRead, Check::LinearizableRead, Check::NonLearner];

    fn name(self) -> &'static str {
        match self {
            Check::DataCorruption => "data_corruption",
            Check::SerializableRead => "serializable_read",
            Check::LinearizableRead => "linearizable_read",
            Check::NonLearner => "non_learner",
        }
    }

    async fn run(self, services: &Services) -> Result<(), String> {
        match self {
            Check::DataCorruption => {
                let corrupt = alarms(&services.coordinator.status())
                    .iter()
                    .any(|alarm| alarm.alarm == i32::from(AlarmType::Corrupt));
                if corrupt { Err("alarm activated: CORRUPT".into()) } else { Ok(()) }
            }
            Check::SerializableRead => read(services, Consistency::Local).await.map_err(|error| error.to_string()),
            Check::LinearizableRead => {
                read(services, Consistency::Linearizable).await.map_err(|error| error.to_string())
            }
            Check::NonLearner => match services.coordinator.status().role {
                Role::Learner => Err("not supported for learner".into()),
                Role::Leader | Role::Follower | Role::Candidate => Ok(()),
            },
        }
    }
}

/// A read that costs next to nothing and goes the way of every other. Not one of keys: the local kind of those asks the
/// cluster after a start, and who has lost its leader must not be ended for that.
async fn read(services: &Services, consistency: Consistency) -> Result<(), FaceError> {
    services.read(&Caller::Internal, Query::Members, consistency).await.map(drop)
}

/// Answers anything that is not a call.
pub(super) async fn answer(face: &EtcdFace, request: &Parts) -> Response<Body> {
    let services = &*face.0.services;
    let query = request.uri.query().unwrap_or_default();
    let path = request.uri.path();
    let (root, sub) = match path.strip_prefix('/').and_then(|rest| rest.split_once('/')) {
        Some((root, sub)) => (root, Some(sub)),
        None => (path.strip_prefix('/').unwrap_or_default(), None),
    };
    let checks = match root {
        "livez" => Check::LIVE,
        "readyz" => Check::READY,
        _ => &[],
    };
    let checks: Vec<Check> = match sub {
        Some(name) => checks.iter().copied().filter(|check| check.name() == name).collect(),
        None => {
            checks.iter().copied().filter(|check| !values(query, "exclude").any(|name| name == check.name())).collect()
        }
    };
    let found = match (root, sub) {
        ("version" | "health", None) | ("livez" | "readyz", None) => true,
        ("metrics", None) => face.config().metrics.is_some(),
        ("livez" | "readyz", Some(_)) => !checks.is_empty(),
        _ => false,
    };
    if !found {
        return error(StatusCode::NOT_FOUND, "404 page not found");
    }
    if request.method != Method::GET {
        let mut response = error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return response;
    }
    match root {
        "version" => version(),
        "health" => {
            let answer = health(services, query).await;
            let counts = &face.0.counts;
            let counter = if answer.status().is_success() { &counts.health_successes } else { &counts.health_failures };
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            answer
        }
        "metrics" => metrics(face),
        _ => checked(services, &checks, flag(query, "verbose")).await,
    }
}

fn version() -> Response<Body> {
    let body =
        format!(r#"{{"etcdserver":"{ETCD_VERSION}","etcdcluster":"{ETCD_VERSION}","storage":"{ETCD_VERSION}"}}"#);
    whole(StatusCode::OK, JSON, body)
}

fn metrics(face: &EtcdFace) -> Response<Body> {
    let text = face.config().metrics.as_ref().map(crate::MetricsText::text).unwrap_or_default();
    whole(StatusCode::OK, PROMETHEUS, text)
}

/// Healthy only if no alarm is raised and a read just succeeded; `?serializable=true` asks about this node
/// alone, `?exclude=NOSPACE` forgives that alarm.
async fn health(services: &Services, query: &str) -> Response<Body> {
    match illness(services, query).await {
        None => whole(StatusCode::OK, PLAIN, r#"{"health":"true","reason":""}"#),
        Some(reason) => {
            let reason = serde_json::json!(reason);
            error(StatusCode::SERVICE_UNAVAILABLE, &format!(r#"{{"health":"false","reason":{reason}}}"#))
        }
    }
}

async fn illness(services: &Services, query: &str) -> Option<String> {
    let status = services.coordinator.status();
    // What cannot be read now is told below, in other words.
    let raised = services.raised_alarms(&Caller::Internal, &status, Consistency::Local).await;
    for alarm in raised.unwrap_or_default() {
        let name = AlarmType::try_from(alarm.alarm).map_or("UNKNOWN", |alarm| alarm.as_str_name());
        if !values(query, "exclude").any(|excluded| excluded == name) {
            return Some(format!("ALARM {name}"));
        }
    }
    let local = values(query, "serializable").next() == Some("true");
    if !local && status.leader.is_none() {
        return Some("RAFT NO LEADER".into());
    }
    let consistency = if local { Consistency::Local } else { Consistency::Linearizable };
    read(services, consistency).await.err().map(|error| format!("RANGE ERROR:{error}"))
}

async fn checked(services: &Services, checks: &[Check], verbose: bool) -> Response<Body> {
    let (mut report, mut failed) = (String::new(), false);
    for check in checks {
        let name = check.name();
        match check.run(services).await {
            Ok(()) => report.push_str(&format!("[+]{name} ok\n")),
            Err(why) => {
                failed = true;
                report.push_str(&format!("[-]{name} failed: {why}\n"));
            }
        }
    }
    if failed {
        return error(StatusCode::SERVICE_UNAVAILABLE, &report);
    }
    let text = if verbose { report + "ok\n" } else { "ok\n".into() };
    let mut response = whole(StatusCode::OK, PLAIN, text);
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn error(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = whole(status, PLAIN, format!("{text}\n"));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The values of a parameter. Those in use here need no unescaping.
fn values<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    query.split('&').filter_map(move |pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn flag(query: &str, name: &str) -> bool {
    query.split('&').any(|pair| pair.split('=').next() == Some(name))
}
