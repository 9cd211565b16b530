//! Clients that write all the time, at all nodes, and remember what they were told; and the checks of
//! what they remember against what is there in the end.
//!
//! Every key is written by one request of one client, once. So whatever is there in the end tells which
//! request it came from, and a request carried out twice shows as a second version.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::etcdserverpb::kv_client::KvClient;
use tidelock_etcd_api::mvccpb;
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use super::requests::{get, kv, put, put_together};
use super::{wait_for, within};

/// Under which writers write.
pub const WRITTEN: &str = "w/";
/// Every so many requests one is a transaction of several keys.
const TXN_EVERY: usize = 4;
const TXN_KEYS: usize = 3;
/// Every so many requests what was written last is read back at another node.
const READ_EVERY: usize = 8;
/// Between two requests of a client: the machine also has servers to run.
const PACE: Duration = Duration::from_millis(2);
/// After an error, before the next node is tried.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);

/// One request that was acknowledged.
struct Acknowledged {
    keys: Vec<String>,
    revision: i64,
    sent: Instant,
    told: Instant,
}

/// What one client did.
#[derive(Default)]
struct Remembered {
    acknowledged: Vec<Acknowledged>,
    /// Keys of requests that got an error: they may be there or not.
    maybe: Vec<Vec<String>>,
    errors: Vec<String>,
}

/// Clients that write until they are told to stop.
pub struct Writers {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<Remembered>>,
}

/// What all clients did.
pub struct History(Vec<Remembered>);

impl Writers {
    /// Starts `clients` clients that use all of `urls` in turn.
    pub fn start(urls: &[String], clients: usize) -> Writers {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicU64::new(0));
        let tasks = (0..clients)
            .map(|name| {
                let client = Client {
                    name,
                    nodes: urls.iter().map(|url| kv(url)).collect(),
                    at: name % urls.len(),
                    revision_seen: 0,
                    remembered: Remembered::default(),
                };
                tokio::spawn(client.run(stop.clone(), acknowledged.clone()))
            })
            .collect();
        Writers { stop, acknowledged, tasks }
    }

    /// Waits until `count` more requests are acknowledged than now.
    pub fn wait_for_more(&self, count: u64) {
        let before = self.acknowledged.load(Ordering::Relaxed);
        wait_for(&format!("{count} more acknowledged writes"), || {
            let finished = self.tasks.iter().any(JoinHandle::is_finished);
            assert!(!finished, "a client ended early, see its panic above");
            (self.acknowledged.load(Ordering::Relaxed) >= before + count).then_some(())
        });
    }

    /// Ends the writing.
    pub async fn finish(self) -> History {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for task in self.tasks {
            all.push(within("a client to end", task).await.expect("no client found a broken promise"));
        }
        History(all)
    }
}

struct Client {
    name: usize,
    nodes: Vec<KvClient<Channel>>,
    at: usize,
    revision_seen: i64,
    remembered: Remembered,
}

impl Client {
    async fn run(mut self, stop: Arc<AtomicBool>, acknowledged: Arc<AtomicU64>) -> Remembered {
        for number in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            if self.write(number).await {
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            if number % READ_EVERY == READ_EVERY - 1 {
                self.read_back().await;
            }
            tokio::time::sleep(PACE).await;
        }
        self.remembered
    }

    async fn write(&mut self, number: usize) -> bool {
        let count = if number % TXN_EVERY == TXN_EVERY - 1 { TXN_KEYS } else { 1 };
        let keys: Vec<String> = (0..count).map(|part| format!("{WRITTEN}{}/{number}/{part}", self.name)).collect();
        let puts = keys.iter().map(|key| put(key.clone(), key.clone()));
        let sent = Instant::now();
        let node = &mut self.nodes[self.at];
        let header = if count == 1 {
            node.put(put(keys[0].clone(), keys[0].clone())).await.map(|answer| answer.into_inner().header)
        } else {
            node.txn(put_together(puts)).await.map(|answer| answer.into_inner().header)
        };
        match header {
            Ok(header) => {
                let revision = header.expect("every answer has a header").revision;
                assert!(revision > self.revision_seen, "R1: {revision} after {}", self.revision_seen);
                self.revision_seen = revision;
                let told = Instant::now();
                self.remembered.acknowledged.push(Acknowledged { keys, revision, sent, told });
                true
            }
            Err(status) => {
                self.remembered.errors.push(format!("{:?}: {}", status.code(), status.message()));
                self.remembered.maybe.push(keys);
                self.next_node().await;
                false
            }
        }
    }

    /// R3: what this client was told is there, whichever node it asks.
    async fn read_back(&mut self) {
        let Some(last) = self.remembered.acknowledged.last() else { return };
        let (key, revision) = (last.keys[0].clone(), last.revision);
        self.at = (self.at + 1) % self.nodes.len();
        match self.nodes[self.at].range(get(key.clone())).await {
            Ok(answer) => {
                let answer = answer.into_inner();
                let found = answer.kvs.first().map(|item| item.mod_revision);
                assert_eq!(found, Some(revision), "R3: {key} was acknowledged and is not read back");
                let now = answer.header.expect("every answer has a header").revision;
                assert!(now >= self.revision_seen, "R1: revision {now} after {}", self.revision_seen);
                self.revision_seen = now;
            }
            Err(_) => self.next_node().await,
        }
    }

    async fn next_node(&mut self) {
        self.at = (self.at + 1) % self.nodes.len();
        tokio::time::sleep(PAUSE_AFTER_ERROR).await;
    }
}

impl History {
    /// Requests that were acknowledged.
    pub fn acknowledged(&self) -> usize {
        self.0.iter().map(|client| client.acknowledged.len()).sum()
    }

    /// What the clients were told when it was not yes.
    pub fn errors(&self) -> Vec<&String> {
        self.0.iter().flat_map(|client| &client.errors).collect()
    }

    /// Checks all of it against everything that is there under [`WRITTEN`] in the end.
    pub fn check(&self, there: &[mvccpb::KeyValue]) {
        let there: BTreeMap<&[u8], &mvccpb::KeyValue> = there.iter().map(|item| (item.key.as_ref(), item)).collect();
        self.check_acknowledged(&there);
        self.check_nothing_else(&there);
        self.check_order();
    }

    /// R2, R1: what was acknowledged is there, at the revision that was told.
    fn check_acknowledged(&self, there: &BTreeMap<&[u8], &mvccpb::KeyValue>) {
        for request in self.0.iter().flat_map(|client| &client.acknowledged) {
            for key in &request.keys {
                let item = there.get(key.as_bytes());
                let item = item.unwrap_or_else(|| panic!("R2: {key} was acknowledged and is not there"));
                assert_eq!(item.value, item.key, "the value of {key} is another one's");
                assert_eq!(item.mod_revision, request.revision, "R1: {key} is not at the revision that was told");
            }
        }
    }

    /// H25: nothing was carried out twice. R4: of a transaction all is there or nothing.
    fn check_nothing_else(&self, there: &BTreeMap<&[u8], &mvccpb::KeyValue>) {
        let mut known: BTreeSet<&[u8]> = BTreeSet::new();
        let requests = self.0.iter().flat_map(|client| client.acknowledged.iter().map(|request| &request.keys));
        for keys in requests.chain(self.0.iter().flat_map(|client| &client.maybe)) {
            known.extend(keys.iter().map(String::as_bytes));
            let revisions: BTreeSet<Option<i64>> =
                keys.iter().map(|key| there.get(key.as_bytes()).map(|item| item.mod_revision)).collect();
            assert_eq!(revisions.len(), 1, "R4: {keys:?} were written together and are at {revisions:?}");
        }
        for (key, item) in there {
            assert!(known.contains(key), "nobody wrote {key:?}");
            assert_eq!(item.version, 1, "H25: {key:?} was written {} times by one request", item.version);
        }
    }

    /// R1: no revision was told twice, and who began after somebody was answered has a higher one.
    fn check_order(&self) {
        let mut all: Vec<&Acknowledged> = self.0.iter().flat_map(|client| &client.acknowledged).collect();
        all.sort_by_key(|request| std::cmp::Reverse(request.revision));
        for pair in all.windows(2) {
            let [later, earlier] = pair else { unreachable!("windows of two") };
            assert_ne!(later.revision, earlier.revision, "R1: a revision was told twice");
        }
        let mut first_told: Option<Instant> = None;
        for request in all {
            if let Some(told) = first_told {
                let keys = &request.keys;
                assert!(request.sent <= told, "R1: {keys:?} began after a later revision was told");
            }
            first_told = Some(first_told.map_or(request.told, |told| told.min(request.told)));
        }
    }
}

/// Everything under `prefix`, read with a majority.
pub async fn everything(url: &str, prefix: &str) -> Vec<mvccpb::KeyValue> {
    let request: pb::RangeRequest = super::requests::get_all(prefix);
    within("a listing", kv(url).range(request)).await.unwrap().into_inner().kvs
}
