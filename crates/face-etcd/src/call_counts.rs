//! How many calls came in, how they ended and how long they took: what `/metrics` tells of the gRPC services.
//!
//! Counting takes a look-up and a few atomic additions per call and no lock. Calls through the JSON gateway are
//! calls like any other. A call whose client went away, or whose time was up, counts as cancelled. Bytes are
//! those of messages with their five bytes of framing.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::body::{Bytes, Frame, SizeHint};
use tonic::body::Body;
use tonic::{Code, Status};

/// Codes there are.
const CODES: usize = 17;
/// Upper bounds of the buckets for durations of calls, in milliseconds: those of Prometheus' own clients.
pub const CALL_BOUNDS_MS: [u64; 11] = [5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000];

/// Whether requests and answers are streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// One request, one answer.
    Unary,
    /// One request, many answers.
    ServerStream,
    /// Many of both.
    BidiStream,
}

use CallKind::{BidiStream, ServerStream, Unary};

/// All methods etcd has, by service.
const METHODS: &[(&str, &[(&str, CallKind)])] = &[
    (
        "etcdserverpb.KV",
        &[
            ("Range", Unary),
            ("Put", Unary),
            ("DeleteRange", Unary),
            ("Txn", Unary),
            ("Compact", Unary),
            ("RangeStream", ServerStream),
        ],
    ),
    ("etcdserverpb.Watch", &[("Watch", BidiStream)]),
    (
        "etcdserverpb.Lease",
        &[
            ("LeaseGrant", Unary),
            ("LeaseRevoke", Unary),
            ("LeaseKeepAlive", BidiStream),
            ("LeaseTimeToLive", Unary),
            ("LeaseLeases", Unary),
        ],
    ),
    (
        "etcdserverpb.Cluster",
        &[
            ("MemberAdd", Unary),
            ("MemberRemove", Unary),
            ("MemberUpdate", Unary),
            ("MemberList", Unary),
            ("MemberPromote", Unary),
        ],
    ),
    (
        "etcdserverpb.Maintenance",
        &[
            ("Alarm", Unary),
            ("Status", Unary),
            ("Defragment", Unary),
            ("Hash", Unary),
            ("HashKV", Unary),
            ("Snapshot", ServerStream),
            ("MoveLeader", Unary),
            ("Downgrade", Unary),
        ],
    ),
    (
        "etcdserverpb.Auth",
        &[
            ("AuthEnable", Unary),
            ("AuthDisable", Unary),
            ("AuthStatus", Unary),
            ("Authenticate", Unary),
            ("UserAdd", Unary),
            ("UserGet", Unary),
            ("UserList", Unary),
            ("UserDelete", Unary),
            ("UserChangePassword", Unary),
            ("UserGrantRole", Unary),
            ("UserRevokeRole", Unary),
            ("RoleAdd", Unary),
            ("RoleGet", Unary),
            ("RoleList", Unary),
            ("RoleDelete", Unary),
            ("RoleGrantPermission", Unary),
            ("RoleRevokePermission", Unary),
        ],
    ),
    ("v3lockpb.Lock", &[("Lock", Unary), ("Unlock", Unary)]),
    (
        "v3electionpb.Election",
        &[("Campaign", Unary), ("Proclaim", Unary), ("Leader", Unary), ("Observe", ServerStream), ("Resign", Unary)],
    ),
    ("grpc.health.v1.Health", &[("Check", Unary), ("Watch", ServerStream)]),
];

/// Counts of one method.
#[derive(Debug)]
struct Method {
    service: &'static str,
    name: &'static str,
    kind: CallKind,
    started: AtomicU64,
    handled: [AtomicU64; CODES],
    buckets: [AtomicU64; CALL_BOUNDS_MS.len() + 1],
    sum_us: AtomicU64,
}

/// Counts of everything that came in at one face.
#[derive(Debug)]
pub struct CallCounts {
    methods: Vec<Method>,
    by_path: HashMap<String, usize>,
    timed: bool,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    pub(crate) health_successes: AtomicU64,
    pub(crate) health_failures: AtomicU64,
}

/// What was counted of one method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodReading {
    /// Its service.
    pub service: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Its kind.
    pub kind: CallKind,
    /// Calls that came in.
    pub started: u64,
    /// Calls that ended, by the name of their code; those that never occurred are left out, apart from `OK`.
    pub handled: Vec<(&'static str, u64)>,
    /// How long they took, one per bound of [`CALL_BOUNDS_MS`] and one for what is longer, each its own only;
    /// nothing if calls are not timed.
    pub buckets: Vec<u64>,
    /// How long they took together.
    pub sum: Duration,
}

/// What was counted of everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallReading {
    /// By method, every one there is.
    pub methods: Vec<MethodReading>,
    /// Bytes of requests.
    pub received_bytes: u64,
    /// Bytes of answers.
    pub sent_bytes: u64,
    /// `/health` said that this node is well.
    pub health_successes: u64,
    /// `/health` said that it is not.
    pub health_failures: u64,
}

impl CallCounts {
    pub(crate) fn new(timed: bool) -> Arc<CallCounts> {
        let method = |service, (name, kind): &(&'static str, CallKind)| Method {
            service,
            name,
            kind: *kind,
            started: AtomicU64::new(0),
            handled: Default::default(),
            buckets: Default::default(),
            sum_us: AtomicU64::new(0),
        };
        let methods: Vec<Method> = METHODS
            .iter()
            .flat_map(|(service, methods)| methods.iter().map(move |entry| method(service, entry)))
            .collect();
        let path = |(at, method): (usize, &Method)| (format!("/{}/{}", method.service, method.name), at);
        Arc::new(CallCounts {
            by_path: methods.iter().enumerate().map(path).collect(),
            methods,
            timed,
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            health_successes: AtomicU64::new(0),
            health_failures: AtomicU64::new(0),
        })
    }

    /// Counts a call that comes in; `None` if there is no such method.
    pub(crate) fn begin(self: &Arc<CallCounts>, path: &str) -> Option<Counting> {
        let method = *self.by_path.get(path)?;
        self.methods[method].started.fetch_add(1, Ordering::Relaxed);
        let began = self.timed.then(Instant::now);
        Some(Counting { counts: Arc::clone(self), method, began, done: false })
    }

    /// The number of a method; `None` if there is no such method.
    pub(crate) fn number_of(&self, path: &str) -> Option<usize> {
        self.by_path.get(path).copied()
    }

    /// Counts a call of so many bytes that comes in, and says when, if calls are timed. To be followed by `end`.
    pub(crate) fn start(&self, method: usize, bytes: usize) -> Option<Instant> {
        self.methods[method].started.fetch_add(1, Ordering::Relaxed);
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.timed.then(Instant::now)
    }

    /// Counts how a call ended, with so many bytes of an answer.
    pub(crate) fn end(&self, method: usize, began: Option<Instant>, code: Code, bytes: usize) {
        let method = &self.methods[method];
        let code = usize::try_from(code as i32).unwrap_or(0).min(CODES - 1);
        method.handled[code].fetch_add(1, Ordering::Relaxed);
        if bytes > 0 {
            self.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        if let Some(began) = began {
            let took = began.elapsed();
            let ms = took.as_millis();
            let bucket = CALL_BOUNDS_MS.iter().position(|bound| ms < u128::from(*bound));
            method.buckets[bucket.unwrap_or(CALL_BOUNDS_MS.len())].fetch_add(1, Ordering::Relaxed);
            method.sum_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// Everything so far.
    #[must_use]
    pub fn read(&self) -> CallReading {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let method = |method: &Method| {
            let codes = method.handled.iter().enumerate();
            let handled = codes.map(|(code, count)| (CODE_NAMES[code], load(count)));
            MethodReading {
                service: method.service,
                name: method.name,
                kind: method.kind,
                started: load(&method.started),
                handled: handled.filter(|(name, count)| *count > 0 || *name == "OK").collect(),
                buckets: if self.timed { method.buckets.iter().map(load).collect() } else { Vec::new() },
                sum: Duration::from_micros(load(&method.sum_us)),
            }
        };
        CallReading {
            methods: self.methods.iter().map(method).collect(),
            received_bytes: load(&self.received_bytes),
            sent_bytes: load(&self.sent_bytes),
            health_successes: load(&self.health_successes),
            health_failures: load(&self.health_failures),
        }
    }
}

/// Codes as etcd's metrics name them.
const CODE_NAMES: [&str; CODES] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// One call under way. Dropped before it ended, it was cancelled.
pub(crate) struct Counting {
    counts: Arc<CallCounts>,
    method: usize,
    began: Option<Instant>,
    done: bool,
}

impl Counting {
    /// Counts the bytes of the request as they are read.
    pub(crate) fn requested(&self, request: http::Request<Body>) -> http::Request<Body> {
        let counts = Arc::clone(&self.counts);
        request.map(|inner| Body::new(Received { inner, counts }))
    }

    /// Counts how the call ends: now, if the answer is an error, or else when its last byte is sent.
    pub(crate) fn answered(mut self, response: http::Response<Body>) -> http::Response<Body> {
        match Status::from_header_map(response.headers()) {
            Some(status) => {
                self.finish(status.code());
                response
            }
            None => response.map(|inner| Body::new(Sent { inner, counting: self })),
        }
    }

    /// Counts bytes of the answer.
    pub(crate) fn sent(&self, bytes: usize) {
        self.counts.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts how the call ended, if it was not counted before.
    pub(crate) fn finish(&mut self, code: Code) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        self.counts.end(self.method, self.began, code, 0);
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.finish(Code::Cancelled);
    }
}

/// A request that is counted as it is read.
struct Received {
    inner: Body,
    counts: Arc<CallCounts>,
}

/// An answer that is counted as it is sent.
struct Sent {
    inner: Body,
    counting: Counting,
}

type Polled = Poll<Option<Result<Frame<Bytes>, Status>>>;

impl hyper::body::Body for Received {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.counts.received_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl hyper::body::Body for Sent {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.counting.counts.sent_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
                } else if let Some(trailers) = frame.trailers_ref() {
                    let code = Status::from_header_map(trailers).map_or(Code::Ok, |status| status.code());
                    self.counting.finish(code);
                }
            }
            Some(Err(status)) => {
                let code = status.code();
                self.counting.finish(code);
            }
            None => self.counting.finish(Code::Ok),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dashboard of calls under way subtracts the two; a call that is never counted as ended leaks there.
    #[test]
    fn every_call_that_begins_ends_exactly_once() {
        let counts = CallCounts::new(true);
        drop(counts.begin("/etcdserverpb.KV/Range"));
        let refused = Status::not_found("x").into_http();
        drop(counts.begin("/etcdserverpb.KV/Range").unwrap().answered(refused));
        drop(counts.begin("/etcdserverpb.KV/Range").unwrap().answered(http::Response::new(Body::empty())));
        assert!(counts.begin("/etcdserverpb.KV/Nothing").is_none());
        let reading = counts.read();
        let range = &reading.methods[0];
        assert_eq!((range.service, range.name, range.started), ("etcdserverpb.KV", "Range", 3));
        assert_eq!(range.handled, [("OK", 0), ("Canceled", 2), ("NotFound", 1)]);
        assert_eq!(range.buckets.iter().sum::<u64>(), 3);
    }

    /// Every method that is served must be counted under its own name.
    #[test]
    fn the_codes_are_named_as_grpc_numbers_them() {
        assert_eq!(CODE_NAMES[Code::ResourceExhausted as usize], "ResourceExhausted");
        assert_eq!(CODE_NAMES[Code::Unauthenticated as usize], "Unauthenticated");
        assert_eq!(CODE_NAMES[Code::Unavailable as usize], "Unavailable");
    }
}
