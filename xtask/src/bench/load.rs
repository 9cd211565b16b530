//! The load itself: a number of workers, each with one request in flight, until time or work is up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidelock_etcd_api::etcdserverpb::kv_client::KvClient;
use tidelock_etcd_api::etcdserverpb::{PutRequest, RangeRequest};
use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::Workload;
use crate::Result;
use crate::fill::{self, Values};
use crate::histogram::Histogram;
use crate::random::Random;

/// A worker whose request failed waits this long: a server that is down must not be hammered, and the
/// failures of one bad moment must not drown the count.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(20);

/// Histograms the workers share: enough that two threads seldom want the same one.
const HISTOGRAMS: usize = 16;

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub(super) enum Until {
    /// After this time.
    Elapsed(Duration),
    /// After this many requests.
    Operations(u64),
}

/// What to send.
pub(super) struct Load {
    pub(super) workload: Workload,
    pub(super) in_flight: usize,
    pub(super) until: Until,
    pub(super) keys: u64,
    pub(super) values: Values,
}

/// What came back.
pub(super) struct Done {
    pub(super) elapsed: Duration,
    /// Of the requests that succeeded.
    pub(super) latencies: Histogram,
    pub(super) failed: u64,
    pub(super) first_failure: Option<String>,
}

/// What all workers share.
struct Shared {
    workload: Workload,
    keys: u64,
    values: Values,
    deadline: Option<Instant>,
    /// Requests nobody has taken yet.
    remaining: AtomicU64,
    failed: AtomicU64,
    first_failure: Mutex<Option<String>>,
}

impl Shared {
    /// Whether a worker may send one more.
    fn take(&self) -> bool {
        match self.deadline {
            Some(deadline) => Instant::now() < deadline,
            None => {
                self.remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
            }
        }
    }

    fn failed(&self, status: &tonic::Status) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let mut first = self.first_failure.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| format!("{:?}: {}", status.code(), status.message()));
    }
}

/// Runs `load` over `channels`. Every worker goes through them in turn, so that with one in flight, too,
/// each member is asked as often as the others.
pub(super) async fn run(channels: &[Channel], load: &Load) -> Result<Done> {
    let start = Instant::now();
    let (deadline, remaining) = match load.until {
        Until::Elapsed(time) => (Some(start + time), 0),
        Until::Operations(count) => (None, count),
    };
    let shared = Arc::new(Shared {
        workload: load.workload,
        keys: load.keys,
        values: load.values.clone(),
        deadline,
        remaining: AtomicU64::new(remaining),
        failed: AtomicU64::new(0),
        first_failure: Mutex::new(None),
    });
    let histograms: Vec<_> = (0..HISTOGRAMS).map(|_| Arc::new(Mutex::new(Histogram::new()))).collect();
    let clients: Vec<_> = channels.iter().cloned().map(KvClient::new).collect();
    let mut workers = JoinSet::new();
    for worker in 0..load.in_flight {
        let mut clients = clients.clone();
        clients.rotate_left(worker % channels.len());
        let histogram = Arc::clone(&histograms[worker % HISTOGRAMS]);
        workers.spawn(work(clients, Arc::clone(&shared), histogram, Random::new(worker as u64)));
    }
    while let Some(ended) = workers.join_next().await {
        ended.map_err(|error| format!("a worker ended: {error}"))?;
    }
    let elapsed = start.elapsed();
    let mut latencies = Histogram::new();
    for histogram in &histograms {
        latencies.merge(&histogram.lock().unwrap_or_else(PoisonError::into_inner));
    }
    let first_failure = shared.first_failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(Done { elapsed, latencies, failed: shared.failed.load(Ordering::Relaxed), first_failure })
}

async fn work(
    mut clients: Vec<KvClient<Channel>>,
    shared: Arc<Shared>,
    histogram: Arc<Mutex<Histogram>>,
    mut random: Random,
) {
    let count = clients.len();
    let mut turn = 0;
    while shared.take() {
        let kv = &mut clients[turn % count];
        turn += 1;
        let key = fill::key(random.below(shared.keys));
        let start = Instant::now();
        let answer = match shared.workload {
            Workload::Put => {
                let value = shared.values.pick(&mut random);
                kv.put(PutRequest { key, value, ..PutRequest::default() }).await.map(drop)
            }
            // Not serializable, so the answer reflects every write acknowledged before.
            Workload::Get => kv.range(RangeRequest { key, ..RangeRequest::default() }).await.map(drop),
        };
        let latency = start.elapsed();
        match answer {
            Ok(()) => histogram.lock().unwrap_or_else(PoisonError::into_inner).record(latency),
            Err(status) => {
                shared.failed(&status);
                tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
            }
        }
    }
}
