//! Fills a server with keys quickly: transactions of as many puts as etcd allows, several in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use indicatif::ProgressBar;
use tidelock_etcd_api::etcdserverpb::kv_client::KvClient;
use tidelock_etcd_api::etcdserverpb::request_op::Request;
use tidelock_etcd_api::etcdserverpb::{CompactionRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::Result;
use crate::random::Random;

/// etcd's default limit.
const PUTS_PER_TXN: u64 = 128;
/// Enough to keep the journal busy; few enough to stay far below any server's bound on waiting writes.
const TXNS_IN_FLIGHT: u64 = 8;
/// Random bytes that values are cut from. Values share them, so making one costs nothing.
const VALUE_POOL_BYTES: usize = 1 << 20;

/// The key with this number: 20 bytes.
pub(crate) fn key(number: u64) -> Bytes {
    Bytes::from(format!("bench/{number:014}"))
}

/// Bytes of a key made by [`key`].
pub(crate) const KEY_BYTES: u64 = 20;

/// Values that do not compress and cost nothing to make.
#[derive(Clone)]
pub(crate) struct Values {
    pool: Bytes,
    bytes: usize,
}

impl Values {
    /// Values of `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Values {
        let mut random = Random::new(7);
        let words = (VALUE_POOL_BYTES + bytes).div_ceil(8);
        let pool: Vec<u8> = (0..words).flat_map(|_| random.next().to_le_bytes()).collect();
        Values { pool: Bytes::from(pool), bytes }
    }

    /// One of them.
    pub(crate) fn pick(&self, random: &mut Random) -> Bytes {
        let start = random.below(VALUE_POOL_BYTES as u64) as usize;
        self.pool.slice(start..start + self.bytes)
    }
}

/// Puts keys `0..keys`, and moves `bar` by as many.
pub(crate) async fn fill(channels: &[Channel], keys: u64, values: &Values, bar: &ProgressBar) -> Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let mut workers: JoinSet<Result<()>> = JoinSet::new();
    for worker in 0..TXNS_IN_FLIGHT {
        let channel = channels[worker as usize % channels.len()].clone();
        let (next, values, bar) = (Arc::clone(&next), values.clone(), bar.clone());
        workers.spawn(async move {
            let mut kv = KvClient::new(channel);
            let mut random = Random::new(worker);
            loop {
                let first = next.fetch_add(PUTS_PER_TXN, Ordering::Relaxed);
                if first >= keys {
                    return Ok(());
                }
                let last = (first + PUTS_PER_TXN).min(keys);
                let success = (first..last).map(|number| put(number, values.pick(&mut random))).collect();
                let txn = TxnRequest { success, ..TxnRequest::default() };
                kv.txn(txn).await.map_err(|status| format!("loading keys: {}", status.message()))?;
                bar.inc(last - first);
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker.map_err(|error| format!("a loading task ended: {error}"))??;
    }
    Ok(())
}

/// Puts a key under each of `leases`, and moves `bar` by as many.
pub(crate) async fn attach(channels: &[Channel], leases: &[i64], bar: &ProgressBar) -> Result<()> {
    let mut workers: JoinSet<Result<()>> = JoinSet::new();
    let share = leases.len().div_ceil(TXNS_IN_FLIGHT as usize).max(1);
    for (worker, leases) in leases.chunks(share).enumerate() {
        let (channel, bar, leases) = (channels[worker % channels.len()].clone(), bar.clone(), leases.to_vec());
        workers.spawn(async move {
            let mut kv = KvClient::new(channel);
            let mut number = (worker * share) as u64;
            for leases in leases.chunks(PUTS_PER_TXN as usize) {
                let own = |(key_number, lease): (u64, &i64)| {
                    let put = PutRequest { key: key(key_number), lease: *lease, ..PutRequest::default() };
                    RequestOp { request: Some(Request::RequestPut(put)) }
                };
                let txn = TxnRequest { success: (number..).zip(leases).map(own).collect(), ..TxnRequest::default() };
                kv.txn(txn).await.map_err(|status| format!("attaching keys: {}", status.message()))?;
                number += leases.len() as u64;
                bar.inc(leases.len() as u64);
            }
            Ok(())
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker.map_err(|error| format!("an attaching task ended: {error}"))??;
    }
    Ok(())
}

fn put(number: u64, value: Bytes) -> RequestOp {
    let put = PutRequest { key: key(number), value, ..PutRequest::default() };
    RequestOp { request: Some(Request::RequestPut(put)) }
}

/// Drops all history, so that it does not grow from round to round. Waits until it is gone where the
/// server can tell.
pub(crate) async fn compact(channel: &Channel) -> Result<()> {
    forget(channel, true).await
}

/// The same without waiting, as servers do that compact by themselves.
pub(crate) async fn begin_compaction(channel: &Channel) -> Result<()> {
    forget(channel, false).await
}

async fn forget(channel: &Channel, physical: bool) -> Result<()> {
    let mut kv = KvClient::new(channel.clone());
    let failed = |status: tonic::Status| format!("compacting: {}", status.message());
    let read = kv.range(RangeRequest { key: key(0), ..RangeRequest::default() }).await.map_err(failed)?;
    let revision = read.into_inner().header.map_or(0, |header| header.revision);
    match kv.compact(CompactionRequest { revision, physical }).await {
        Ok(_) => Ok(()),
        // Nothing was written since the last time.
        Err(status) if status.message().contains("compacted") => Ok(()),
        Err(status) => Err(failed(status)),
    }
}
