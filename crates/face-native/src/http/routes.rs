//! The table of paths, and what the JSON of each becomes.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Map, Value};
use tidelock_client_port::Shape;

use super::openapi;
use crate::descriptors::{descriptors, shape_of};
use crate::unary::Method;

/// The fields that stand beside an operation's own.
pub(super) const BESIDE: [&str; 3] = ["session", "number", "acknowledged"];

/// What a path is.
pub(super) struct Route {
    pub(super) method: Method,
    /// The operation whose fields are given, as `Request` has it; none: the fields of the whole request are.
    pub(super) op: Option<&'static str>,
    /// What the path says, and so the client need not.
    pub(super) preset: Preset,
    pub(super) shape: Shape,
}

/// What a path says, and so the client need not.
type Preset = &'static [(&'static str, &'static str)];

type Op = (&'static str, &'static str, Preset);

/// Paths of operations below `/v1`: the operation, and what the path says about it.
const OPS: &[Op] = &[
    ("/lock/acquire", "acquire", &[("mode", "EXCLUSIVE")]),
    ("/lock/release", "release", &[("kind", "LOCK")]),
    ("/lock/give-up", "giveUp", &[("kind", "LOCK")]),
    ("/lock/downgrade", "downgrade", &[]),
    ("/lock/renew", "renew", &[("kind", "LOCK")]),
    ("/semaphore/acquire", "acquire", &[("mode", "PERMITS")]),
    ("/semaphore/release", "release", &[("kind", "SEMAPHORE")]),
    ("/semaphore/give-up", "giveUp", &[("kind", "SEMAPHORE")]),
    ("/semaphore/renew", "renew", &[("kind", "SEMAPHORE")]),
    ("/semaphore/resize", "resize", &[]),
    ("/semaphore/forget", "forget", &[("kind", "SEMAPHORE")]),
    ("/election/campaign", "campaign", &[]),
    ("/election/proclaim", "proclaim", &[]),
    ("/election/resign", "release", &[("kind", "ELECTION")]),
    ("/election/resign-to", "resign", &[]),
    ("/election/give-up", "giveUp", &[("kind", "ELECTION")]),
    ("/election/renew", "renew", &[("kind", "ELECTION")]),
    ("/barrier/enter", "enter", &[]),
    ("/barrier/leave", "leave", &[]),
    ("/barrier/give-up", "giveUp", &[("kind", "BARRIER")]),
    ("/latch/set", "setLatch", &[]),
    ("/latch/pledge", "pledge", &[]),
    ("/latch/count-down", "countDown", &[]),
    ("/latch/give-up", "giveUp", &[("kind", "LATCH")]),
    ("/latch/forget", "forget", &[("kind", "LATCH")]),
    ("/phaser/register", "register", &[]),
    ("/phaser/arrive", "arrive", &[]),
    ("/phaser/give-up", "giveUp", &[("kind", "PHASER")]),
    ("/phaser/forget", "forget", &[("kind", "PHASER")]),
    ("/counter/add", "add", &[]),
    ("/counter/compare-and-set", "compareAndSet", &[]),
    ("/counter/forget", "forget", &[("kind", "COUNTER")]),
    ("/fence/admit", "admit", &[]),
    ("/keys/write", "write", &[]),
    ("/rcu/publish", "publish", &[]),
    ("/rcu/start-reading", "startReading", &[]),
    ("/rcu/report", "report", &[]),
    ("/rcu/give-up", "giveUp", &[("kind", "RCU")]),
    ("/rcu/forget", "forget", &[("kind", "RCU")]),
    ("/hazard/protect", "protect", &[]),
    ("/hazard/retire", "retire", &[]),
    ("/hazard/give-up", "giveUp", &[("kind", "HAZARD")]),
    ("/hazard/forget", "forget", &[("kind", "HAZARD")]),
];

/// Paths of whole calls below `/v1`.
const CALLS: &[(&str, Method, Preset)] = &[
    ("/native/open", Method::Open, &[]),
    ("/native/close", Method::Close, &[]),
    ("/native/keep-alive", Method::KeepAlive, &[]),
    ("/native/ask", Method::Ask, &[]),
    ("/native/describe", Method::Describe, &[]),
    ("/native/names", Method::Names, &[]),
    ("/native/sessions", Method::Sessions, &[]),
    ("/lock/describe", Method::Describe, &[("kind", "LOCK")]),
    ("/semaphore/describe", Method::Describe, &[("kind", "SEMAPHORE")]),
    ("/election/describe", Method::Describe, &[("kind", "ELECTION")]),
    ("/election/leader", Method::Describe, &[("kind", "ELECTION"), ("limit", "1")]),
    ("/barrier/describe", Method::Describe, &[("kind", "BARRIER")]),
    ("/latch/describe", Method::Describe, &[("kind", "LATCH")]),
    ("/phaser/describe", Method::Describe, &[("kind", "PHASER")]),
    ("/counter/describe", Method::Describe, &[("kind", "COUNTER")]),
    ("/fence/describe", Method::Describe, &[("kind", "FENCE")]),
    ("/rcu/describe", Method::Describe, &[("kind", "RCU")]),
    ("/hazard/describe", Method::Describe, &[("kind", "HAZARD")]),
];

/// All paths that take POST, and the document about them.
pub(crate) struct Routes {
    by_path: BTreeMap<String, Route>,
    document: Bytes,
}

impl Routes {
    pub(crate) fn new() -> Routes {
        let shape = |method: Method| shape_of(method.name());
        let ops = OPS.iter().map(|(path, op, preset)| {
            (format!("/v1{path}"), Route { method: Method::Ask, op: Some(op), preset, shape: shape(Method::Ask) })
        });
        let calls = CALLS.iter().map(|(path, method, preset)| {
            (format!("/v1{path}"), Route { method: *method, op: None, preset, shape: shape(*method) })
        });
        let by_path: BTreeMap<String, Route> = ops.chain(calls).collect();
        let document = openapi::document(descriptors(), &by_path).to_string().into();
        Routes { by_path, document }
    }

    pub(super) fn find(&self, path: &str) -> Option<&Route> {
        self.by_path.get(path)
    }

    pub(super) fn document(&self) -> Bytes {
        self.document.clone()
    }
}

impl Route {
    /// The JSON of the whole message, of what the client gave.
    pub(super) fn message(&self, mut given: Map<String, Value>) -> Value {
        let mut beside = Map::new();
        if self.op.is_some() {
            for name in BESIDE {
                beside.extend(given.remove(name).map(|value| (name.to_owned(), value)));
            }
        }
        for (name, value) in self.preset {
            given.entry(*name).or_insert_with(|| Value::from(*value));
        }
        match self.op {
            None => Value::Object(given),
            Some(op) => {
                beside.insert(op.to_owned(), Value::Object(given));
                Value::Object(beside)
            }
        }
    }

    /// Whether its reply may be held back until a place is granted.
    pub(super) fn may_wait(&self) -> bool {
        matches!(self.op, Some("acquire" | "campaign"))
    }
}
