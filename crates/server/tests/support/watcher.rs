//! A watcher as a careful client is one: whenever its stream ends it goes on at another node, at the
//! revision after the last it saw. It checks what every watcher is promised (W1 to W5, W9).

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use tidelock_etcd_api::etcdserverpb as pb;
use tidelock_etcd_api::mvccpb;
use tokio::task::JoinHandle;

use super::PATIENCE;
use super::requests::{put, watch_from, watches};

/// Answers after which it moves to another node although nothing is wrong.
const ANSWERS_PER_STREAM: usize = 200;
/// Silence after which it moves on, too.
const SILENCE: Duration = Duration::from_secs(2);
/// Before the next node is tried.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);

/// One change that was seen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub revision: i64,
    pub key: String,
    pub deleted: bool,
    pub at: Instant,
}

/// A watcher at work.
pub struct Watcher {
    end: String,
    urls: Vec<String>,
    task: JoinHandle<Vec<Seen>>,
}

impl Watcher {
    /// Watches everything under `prefix` from `revision` on, at all of `urls` in turn.
    pub fn start(urls: &[String], prefix: &str, revision: i64) -> Watcher {
        let end = format!("{prefix}~end");
        let state = State { prefix: prefix.to_owned(), end: end.clone(), next: revision, seen: Vec::new() };
        Watcher { end, urls: urls.to_vec(), task: tokio::spawn(state.run(urls.to_vec())) }
    }

    /// Writes a last key and gives back all changes seen before it.
    pub async fn finish(self) -> Vec<Seen> {
        super::within("the last write", super::requests::kv(&self.urls[0]).put(put(self.end, ""))).await.unwrap();
        let seen = tokio::time::timeout(PATIENCE, self.task).await;
        seen.expect("W3: the watcher never saw the last write").expect("the watcher found no broken promise")
    }
}

struct State {
    prefix: String,
    end: String,
    next: i64,
    seen: Vec<Seen>,
}

impl State {
    async fn run(mut self, urls: Vec<String>) -> Vec<Seen> {
        let mut nodes: Vec<_> = urls.iter().map(|url| watches(url)).collect();
        for turn in 0.. {
            let requests = stream::iter([watch_from(&self.prefix, self.next)]).chain(stream::pending());
            let node = turn % nodes.len();
            let opened = tokio::time::timeout(SILENCE, nodes[node].watch(requests)).await;
            if let Ok(Ok(answers)) = opened
                && self.follow(answers.into_inner()).await
            {
                break;
            }
            tokio::time::sleep(PAUSE_AFTER_ERROR).await;
        }
        self.seen
    }

    /// Follows one stream; `true` once the last key was seen.
    async fn follow(&mut self, mut answers: tonic::Streaming<pb::WatchResponse>) -> bool {
        for _ in 0..ANSWERS_PER_STREAM {
            let Ok(Ok(Some(answer))) = tokio::time::timeout(SILENCE, answers.message()).await else { return false };
            // W8: nothing was compacted, so nothing gives a node the right to refuse.
            assert!(!answer.canceled, "the watch was refused: {answer:?}");
            for event in answer.events {
                if self.take(&event) {
                    return true;
                }
            }
            // W4: a revision comes whole, so the next answer begins after it.
            self.next = self.seen.last().map_or(self.next, |last| last.revision + 1);
        }
        false
    }

    fn take(&mut self, event: &mvccpb::Event) -> bool {
        let item = event.kv.as_ref().expect("every event has a key");
        let key = String::from_utf8(item.key.to_vec()).unwrap();
        let revision = item.mod_revision;
        assert!(revision >= self.next, "W2, W9: {key} at {revision}, but {} comes next", self.next);
        if let Some(last) = self.seen.last() {
            assert!(revision >= last.revision, "W1: {key} at {revision} after {last:?}");
        }
        if key == self.end {
            return true;
        }
        let deleted = event.r#type == i32::from(mvccpb::event::EventType::Delete);
        self.seen.push(Seen { revision, key, deleted, at: Instant::now() });
        false
    }
}
