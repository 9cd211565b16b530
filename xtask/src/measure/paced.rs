//! Requests at a steady pace, whatever the server does: the n-th is due at a fixed moment and its latency
//! counts from there, so that a server that stalls is charged for everyone who would have come meanwhile.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidelock_etcd_api::etcdserverpb::kv_client::KvClient;
use tidelock_etcd_api::etcdserverpb::{PutRequest, RangeRequest};
use tidelock_load::Histogram;
use tokio::sync::Semaphore;
use tonic::transport::Channel;

use crate::fill::{self, Values};
use crate::random::Random;

/// Requests that may be unanswered at once; when a server hangs for longer, the rest waits here, and
/// that wait is charged too.
const UNANSWERED_MAX: usize = 4096;

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// When it was due.
    pub(super) due: Instant,
    /// When it was answered.
    pub(super) answered: Instant,
    /// Whether it wrote.
    pub(super) wrote: bool,
}

/// Everything that was sent.
#[derive(Default)]
pub(super) struct Calls {
    pub(super) answered: Vec<Call>,
    pub(super) failed: u64,
    pub(super) first_failure: Option<String>,
}

impl Calls {
    /// The latencies of calls that write or do not, and that overlap `during` or do not.
    pub(super) fn latencies(&self, wrote: bool, during: &[(Instant, Instant)], inside: bool) -> Histogram {
        let mut histogram = Histogram::new();
        let overlaps = |call: &Call| during.iter().any(|(from, to)| call.due <= *to && call.answered >= *from);
        for call in self.answered.iter().filter(|call| call.wrote == wrote && overlaps(call) == inside) {
            histogram.record(call.answered.duration_since(call.due));
        }
        histogram
    }
}

/// Steady load that runs until it is stopped.
pub(super) struct Pace {
    calls: Arc<Mutex<Calls>>,
    sender: tokio::task::JoinHandle<()>,
    unanswered: Arc<Semaphore>,
}

/// What to send.
pub(super) struct Plan {
    /// Writes per second, and as many reads.
    pub(super) each_per_s: u32,
    pub(super) keys: u64,
    pub(super) values: Values,
}

impl Pace {
    /// Begins to send.
    pub(super) fn start(channels: Vec<Channel>, plan: Plan) -> Pace {
        let calls = Arc::new(Mutex::new(Calls::default()));
        let unanswered = Arc::new(Semaphore::new(UNANSWERED_MAX));
        let sender = tokio::spawn(send(channels, plan, Arc::clone(&calls), Arc::clone(&unanswered)));
        Pace { calls, sender, unanswered }
    }

    /// Stops, waits for the answers still due, and hands over what was seen.
    pub(super) async fn stop(self) -> Calls {
        self.sender.abort();
        // All permits back means that nothing is on its way any more.
        let _all = self.unanswered.acquire_many(UNANSWERED_MAX as u32).await;
        std::mem::take(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn send(channels: Vec<Channel>, plan: Plan, calls: Arc<Mutex<Calls>>, unanswered: Arc<Semaphore>) {
    let step = Duration::from_secs(1) / (plan.each_per_s * 2);
    let mut random = Random::new(3);
    let start = tokio::time::Instant::now();
    for number in 0u32.. {
        let due = start + step * number;
        tokio::time::sleep_until(due).await;
        let Ok(permit) = Arc::clone(&unanswered).acquire_owned().await else { return };
        let kv = KvClient::new(channels[number as usize % channels.len()].clone());
        let key = fill::key(random.below(plan.keys));
        let value = number.is_multiple_of(2).then(|| plan.values.pick(&mut random));
        let calls = Arc::clone(&calls);
        tokio::spawn(async move {
            call(kv, key, value, due.into_std(), &calls).await;
            drop(permit);
        });
    }
}

async fn call(
    mut kv: KvClient<Channel>,
    key: bytes::Bytes,
    value: Option<bytes::Bytes>,
    due: Instant,
    calls: &Mutex<Calls>,
) {
    let wrote = value.is_some();
    let answer = match value {
        Some(value) => kv.put(PutRequest { key, value, ..PutRequest::default() }).await.map(drop),
        None => kv.range(RangeRequest { key, ..RangeRequest::default() }).await.map(drop),
    };
    let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
    match answer {
        Ok(()) => calls.answered.push(Call { due, answered: Instant::now(), wrote }),
        Err(status) => {
            calls.failed += 1;
            calls.first_failure.get_or_insert_with(|| format!("{:?}: {}", status.code(), status.message()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that was already waiting when the snapshot began felt it too: it counts as "with".
    #[test]
    fn a_call_that_only_touches_the_window_counts_as_inside() {
        let base = Instant::now();
        let at = |ms: u64| base + Duration::from_millis(ms);
        let call = |due, answered| Call { due: at(due), answered: at(answered), wrote: true };
        let calls = Calls { answered: vec![call(0, 9), call(5, 15), call(25, 35), call(31, 40)], ..Calls::default() };
        let window = [(at(10), at(30))];
        assert_eq!(calls.latencies(true, &window, true).count(), 2);
        assert_eq!(calls.latencies(true, &window, false).count(), 2);
        assert_eq!(calls.latencies(false, &window, true).count(), 0);
    }
}
