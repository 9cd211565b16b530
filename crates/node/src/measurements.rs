//! What a node measures of itself, for whoever shows it: durations and counts. Measuring takes a few atomic
//! additions per batch and decides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidelock_model::{EventKind, NodeId, Revision};
use tidelock_replica::Observer;
use tidelock_state::{Effects, LeaseChange, State};

use crate::quota_log::QuotaLog;

/// Upper bounds of the buckets, in microseconds: from one millisecond, doubling, as etcd's histograms of disk
/// times have them. What is longer is in the last, unbounded bucket.
pub const BUCKET_BOUNDS_US: [u64; 14] = {
    let mut bounds = [1_000; 14];
    let mut at = 1;
    while at < bounds.len() {
        bounds[at] = bounds[at - 1] * 2;
        at += 1;
    }
    bounds
};

/// How often something took how long.
#[derive(Debug, Default)]
pub struct Histogram {
    /// One per bound, and one for what is longer; each counts its own only.
    buckets: [AtomicU64; BUCKET_BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

/// A histogram as read at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramReading {
    /// One per bound of [`BUCKET_BOUNDS_US`], and one for what is longer; each counts its own only.
    pub buckets: Vec<u64>,
    /// Of all durations.
    pub sum: Duration,
}

impl Histogram {
    /// Counts one.
    pub fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKET_BOUNDS_US.iter().position(|bound| us <= *bound).unwrap_or(BUCKET_BOUNDS_US.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// What was counted so far.
    #[must_use]
    pub fn read(&self) -> HistogramReading {
        HistogramReading {
            buckets: self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect(),
            sum: Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)),
        }
    }
}

/// What the workers and links of one node count.
#[derive(Debug, Default)]
pub(crate) struct Measurements {
    pub(crate) sync: Histogram,
    pub(crate) apply: Histogram,
    puts: AtomicU64,
    deletes: AtomicU64,
    transactions: AtomicU64,
    leases_granted: AtomicU64,
    leases_ended: AtomicU64,
    renewal_batches: AtomicU64,
    renewals_batched: AtomicU64,
    /// Taken once per read from a link, not per message.
    received: Mutex<BTreeMap<NodeId, u64>>,
}

/// What a node has measured since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// How long it took to make a batch of the journal durable.
    pub sync: HistogramReading,
    /// How long it took to carry out a batch of entries.
    pub apply: HistogramReading,
    /// Keys set, on this node, whoever asked.
    pub puts: u64,
    /// Keys deleted.
    pub deletes: u64,
    /// Revisions with more than one change.
    pub transactions: u64,
    /// Leases granted.
    pub leases_granted: u64,
    /// Leases revoked or expired.
    pub leases_ended: u64,
    /// Messages to the leader, or to itself, that renew many leases.
    pub renewal_batches: u64,
    /// Leases in them.
    pub renewals_batched: u64,
    /// Bytes of messages written to each peer.
    pub sent: Vec<(NodeId, u64)>,
    /// Bytes of messages delivered from each peer.
    pub received: Vec<(NodeId, u64)>,
    /// Messages to each peer that were lost before they were written.
    pub dropped: Vec<(NodeId, u64)>,
}

impl Measurements {
    /// Counts what a peer sent.
    pub(crate) fn receive(&self, from: NodeId, bytes: usize) {
        *self.received.lock().entry(from).or_default() += bytes as u64;
    }

    /// Counts one batch of so many renewals.
    pub(crate) fn renewed(&self, leases: usize) {
        self.renewal_batches.fetch_add(1, Ordering::Relaxed);
        self.renewals_batched.fetch_add(leases as u64, Ordering::Relaxed);
    }

    /// What was measured here; what the links sent is theirs to add.
    pub(crate) fn read(&self) -> Measured {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Measured {
            sync: self.sync.read(),
            apply: self.apply.read(),
            puts: count(&self.puts),
            deletes: count(&self.deletes),
            transactions: count(&self.transactions),
            leases_granted: count(&self.leases_granted),
            leases_ended: count(&self.leases_ended),
            renewal_batches: count(&self.renewal_batches),
            renewals_batched: count(&self.renewals_batched),
            sent: Vec::new(),
            received: self.received.lock().iter().map(|(peer, bytes)| (*peer, *bytes)).collect(),
            dropped: Vec::new(),
        }
    }
}

/// Counts what is carried out, and tells of quotas.
pub(crate) struct Tally(pub(crate) Arc<Measurements>, pub(crate) QuotaLog);

impl Observer for Tally {
    fn applied(&mut self, _state: &State, effects: Option<&Effects>) {
        let Some(effects) = effects else { return };
        self.1.exceeded(&effects.over_quota);
        let (mut puts, mut transactions) = (0, 0);
        let mut revision = (Revision(0), 0);
        for event in &effects.events {
            puts += u64::from(event.kind() == EventKind::Put);
            let modified = event.record.meta().modified;
            revision = if revision.0 == modified { (modified, revision.1 + 1) } else { (modified, 1) };
            transactions += u64::from(revision.1 == 2);
        }
        let of = |is: fn(&LeaseChange) -> bool| effects.leases.iter().filter(|change| is(change)).count() as u64;
        let counts = &self.0;
        for (counter, count) in [
            (&counts.puts, puts),
            (&counts.deletes, effects.events.len() as u64 - puts),
            (&counts.transactions, transactions),
            (&counts.leases_granted, of(|change| matches!(change, LeaseChange::Granted { .. }))),
            (&counts.leases_ended, of(|change| matches!(change, LeaseChange::Ended { .. }))),
        ] {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    fn installed(&mut self, _state: &State) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Alerts on disk latency compare the buckets' bounds by name; a duration in the wrong one is a false alarm.
    #[test]
    fn a_duration_is_counted_in_the_first_bucket_that_holds_it() {
        assert_eq!((BUCKET_BOUNDS_US[0], BUCKET_BOUNDS_US[13]), (1_000, 8_192_000));
        let histogram = Histogram::default();
        for us in [0, 1_000, 1_001, 8_192_000, 8_192_001] {
            histogram.record(Duration::from_micros(us));
        }
        let reading = histogram.read();
        assert_eq!((reading.buckets[0], reading.buckets[1], reading.buckets[13], reading.buckets[14]), (2, 1, 1, 1));
        assert_eq!(reading.sum, Duration::from_micros(16_386_002));
    }
}
