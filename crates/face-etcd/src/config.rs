//! What can be set about this face. Defaults are etcd's, so that clients tuned for it feel at home.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidelock_client_port::{BCRYPT_COST, TokenKind};

/// Bytes a message may have beyond [`Limits::request_bytes`] before it is refused unread: room for
/// protobuf framing, and for an answer of our own instead of a broken stream.
pub const MESSAGE_OVERHEAD_BYTES: usize = 512 * 1024;

/// Shortest time between two progress notices that may be configured.
pub const PROGRESS_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Bounds on what one request may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest encoded request that writes (`--max-request-bytes`).
    pub request_bytes: usize,
    /// Most operations in one level of a transaction (`--max-txn-ops`).
    pub txn_ops: usize,
    /// Shortest time to live of a lease; shorter ones are raised to it. Several election timeouts,
    /// or a change of leader alone would let leases run out.
    pub lease_ttl_min_s: u32,
    /// Most watchers on one watch stream.
    pub watchers_per_stream: usize,
    /// Most learners that MemberAdd lets in (`--max-learners`).
    pub learners_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            request_bytes: 1_572_864,
            txn_ops: 128,
            lease_ttl_min_s: 2,
            watchers_per_stream: 10_000,
            learners_max: 1,
        }
    }
}

impl Limits {
    /// Largest message that is read at all.
    #[must_use]
    pub fn message_bytes(&self) -> usize {
        self.request_bytes + MESSAGE_OVERHEAD_BYTES
    }
}

/// What a scrape of `/metrics` gets: made by whoever knows the whole process, asked anew each time.
#[derive(Clone)]
pub struct MetricsText(Arc<dyn Fn() -> String + Send + Sync>);

impl MetricsText {
    /// From a function that writes Prometheus' text format. It must not block.
    pub fn new(text: impl Fn() -> String + Send + Sync + 'static) -> MetricsText {
        MetricsText(Arc::new(text))
    }

    pub(crate) fn text(&self) -> String {
        (self.0)()
    }
}

impl fmt::Debug for MetricsText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MetricsText")
    }
}

/// The same function, not functions that say the same.
impl PartialEq for MetricsText {
    fn eq(&self, other: &MetricsText) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for MetricsText {}

/// Everything that can be set about this face.
#[derive(Clone, Debug)]
pub struct FaceConfig {
    /// Bounds on requests.
    pub limits: Limits,
    /// How long a watcher that asked for progress notices may hear nothing; at least
    /// [`PROGRESS_INTERVAL_MIN`].
    pub progress_interval: Duration,
    /// How long a stream that requires a leader survives without one: three election timeouts.
    pub leader_grace: Duration,
    /// Most calls and streams at a time on one connection. Go clients put everything on one.
    pub streams_per_connection: u32,
    /// How long a connection may be silent before it is pinged.
    pub ping_after: Duration,
    /// How long the answer to a ping may take.
    pub ping_timeout: Duration,
    /// How long calls under way are given to finish when the face stops.
    pub drain: Duration,
    /// Whether calls are timed, for histograms (`--metrics=extensive`).
    pub time_calls: bool,
    /// What `Status` tells as the space quota, in bytes. Nothing is enforced by it.
    pub quota_bytes: i64,
    /// How clients that came in are known again (`--auth-token`).
    pub token: TokenKind,
    /// Whether members speak TLS to each other: what the URLs of peers begin with.
    pub peers_use_tls: bool,
    /// The cost of hashing a password (`--bcrypt-cost`).
    pub bcrypt_cost: u32,
    /// What `/metrics` answers; nothing is served there without it.
    pub metrics: Option<MetricsText>,
    /// Where snapshots are put together before they are sent: a file as large as the store, without a name.
    pub scratch_dir: PathBuf,
}

impl Default for FaceConfig {
    fn default() -> FaceConfig {
        FaceConfig {
            limits: Limits::default(),
            progress_interval: Duration::from_secs(600),
            leader_grace: Duration::from_secs(3),
            streams_per_connection: 16_384,
            ping_after: Duration::from_secs(2 * 3600),
            ping_timeout: Duration::from_secs(20),
            drain: Duration::from_secs(5),
            time_calls: false,
            quota_bytes: 2 * 1024 * 1024 * 1024,
            token: TokenKind::default(),
            peers_use_tls: false,
            bcrypt_cost: BCRYPT_COST,
            metrics: None,
            scratch_dir: std::env::temp_dir(),
        }
    }
}
