//! A client that keeps a lease alive, at whatever node answers, and checks that it is never taken from
//! it before its time (L1, H8).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::stream;
use tidelock_etcd_api::etcdserverpb as pb;
use tokio::task::JoinHandle;

use super::requests::{get, kv, leases, put};
use super::within;

/// How long one renewal may take before another node is tried.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Renewals per time to live.
const RENEWALS_PER_TTL: u32 = 8;
/// Before another node is tried.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);

/// A lease and its keeper.
pub struct Keeper {
    urls: Vec<String>,
    key: String,
    stop: Arc<AtomicBool>,
    task: JoinHandle<Kept>,
    revision: i64,
}

/// How it went.
pub struct Kept {
    /// Renewals that were acknowledged.
    pub renewals: usize,
    /// The keeper itself could not renew in time, so the lease may be gone and proves nothing.
    pub slept_in: bool,
}

impl Keeper {
    /// Grants a lease of `ttl_s` seconds, gives it `key` and renews it from then on.
    pub async fn start(urls: &[String], key: &str, ttl_s: i64) -> Keeper {
        let grant = pb::LeaseGrantRequest { ttl: ttl_s, id: 0 };
        let granted = within("a lease", leases(&urls[0]).lease_grant(grant)).await.unwrap().into_inner();
        assert_eq!(granted.ttl, ttl_s);
        let request = pb::PutRequest { lease: granted.id, ..put(key, "kept") };
        let answer = within("a put", kv(&urls[0]).put(request)).await.unwrap().into_inner();
        let stop = Arc::new(AtomicBool::new(false));
        let ttl = Duration::from_secs(ttl_s.unsigned_abs());
        let task = tokio::spawn(keep(urls.to_vec(), granted.id, ttl, stop.clone()));
        Keeper { urls: urls.to_vec(), key: key.to_owned(), stop, task, revision: answer.header.unwrap().revision }
    }

    /// Ends the renewing and checks that the key was never gone.
    pub async fn finish(self) -> Kept {
        self.stop.store(true, Ordering::Relaxed);
        let kept = within("the keeper", self.task).await.expect("the keeper found no broken promise");
        if !kept.slept_in {
            let found = within("a get", kv(&self.urls[0]).range(get(self.key.clone()))).await.unwrap().into_inner();
            let revisions: Vec<i64> = found.kvs.iter().map(|item| item.create_revision).collect();
            assert_eq!(revisions, [self.revision], "L1: the key of a lease that was kept alive is gone");
        }
        kept
    }
}

async fn keep(urls: Vec<String>, id: i64, ttl: Duration, stop: Arc<AtomicBool>) -> Kept {
    let mut nodes: Vec<_> = urls.iter().map(|url| leases(url)).collect();
    let mut last = Instant::now();
    let mut kept = Kept { renewals: 0, slept_in: false };
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let sent = Instant::now();
        let node = turn % nodes.len();
        let renewal = async {
            let request = stream::iter([pb::LeaseKeepAliveRequest { id }]);
            nodes[node].lease_keep_alive(request).await?.into_inner().message().await
        };
        match tokio::time::timeout(RENEWAL_TIMEOUT, renewal).await {
            Ok(Ok(Some(answer))) if answer.ttl > 0 => {
                last = sent;
                kept.renewals += 1;
                tokio::time::sleep(ttl / RENEWALS_PER_TTL).await;
            }
            Ok(Ok(Some(_gone))) => {
                let since = last.elapsed();
                assert!(since >= ttl, "L1: a lease of {ttl:?} ended {since:?} after an acknowledged renewal was sent");
                kept.slept_in = true;
                break;
            }
            _ => tokio::time::sleep(PAUSE_AFTER_ERROR).await,
        }
    }
    kept
}

/// Grants a lease, gives it `keys` in one transaction, and abandons it. Tells when it was granted.
pub async fn abandon(url: &str, ttl_s: i64, keys: &[String]) -> Instant {
    let granted = Instant::now();
    let grant = pb::LeaseGrantRequest { ttl: ttl_s, id: 0 };
    let id = within("a lease", leases(url).lease_grant(grant)).await.unwrap().into_inner().id;
    let puts = keys.iter().map(|key| pb::PutRequest { lease: id, ..put(key.clone(), "abandoned") });
    within("a txn", kv(url).txn(super::requests::put_together(puts))).await.unwrap();
    granted
}
