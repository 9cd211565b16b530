//! The same watch stream on both systems, and the comparison of what watchers are told.
//!
//! Servers tell events when they get round to it, so both streams are brought to rest before they are compared, and
//! before whatever depends on what was told already (a cancellation, a compaction): a mark is put, both streams
//! have a watcher that sees it, and what comes before it in a stream was told before it. Watchers that begin in the
//! past are caught up with by etcd on the side, up to a tenth of a second later; for them progress is asked for
//! until it is told, which it is only when all are caught up.

use std::collections::BTreeMap;
use std::time::Duration;

use tidelock_etcd_api::etcdserverpb::WatchCreateRequest;
use tidelock_etcd_api::mvccpb::Event;

use super::explained::{CANCELLED_TWICE, UNASKED_PREVIOUS};
use super::side::Side;
use super::watch_stream::{Inbox, MARK_ID, WatchStream};
use crate::differences::Hits;

/// How long a server may take to tell what it has to.
const TOLD_LIMIT: Duration = Duration::from_secs(10);
/// Between two questions for progress.
const PROGRESS_PAUSE: Duration = Duration::from_millis(15);
/// Questions for progress before a stream counts as stuck.
const PROGRESS_TRIES: usize = 600;
/// Watchers on one stream, beside the one of marks.
const WATCHERS_MAX: usize = 6;

/// A difference between the two, in words.
pub(super) struct Difference {
    pub(super) kind: &'static str,
    pub(super) ours: String,
    pub(super) theirs: String,
}

/// What is compared.
type Checked = Result<(), Difference>;

struct Watcher {
    start_revision: i64,
    prev_kv: bool,
}

/// One stream on both systems.
pub(super) struct WatchPair {
    ours: WatchStream,
    theirs: WatchStream,
    watchers: BTreeMap<i64, Watcher>,
    /// Whether a watcher began in the past since the last rest.
    catching_up: bool,
}

impl WatchPair {
    /// Opens the stream on both.
    pub(super) async fn open(
        ours: &Side,
        theirs: &Side,
        at: usize,
        user: Option<&str>,
    ) -> Result<WatchPair, Difference> {
        let open = |side: &Side| {
            let token = user.map(|user| side.token(user));
            WatchStream::open(&side.channels[at % side.channels.len()], token)
        };
        let (ours, theirs) = (open(ours), open(theirs));
        let mut pair = WatchPair { ours, theirs, watchers: BTreeMap::new(), catching_up: false };
        pair.compare_control("watch: a new stream").await?;
        Ok(pair)
    }

    /// Creates a watcher; the answers are compared.
    pub(super) async fn create(
        &mut self,
        request: &WatchCreateRequest,
        revision: i64,
        compacted: i64,
        hits: &mut Hits,
    ) -> Checked {
        if self.watchers.len() >= WATCHERS_MAX {
            return Ok(());
        }
        self.ours.create(request.clone());
        self.theirs.create(request.clone());
        let Some(id) = self.compare_control("watch: create").await? else { return Ok(()) };
        let start_revision = request.start_revision;
        if start_revision > 0 && start_revision < compacted {
            self.compare_control("watch: create at a compacted revision").await?;
            // As the Go client does. etcd confirms it once more.
            self.ours.cancel(id);
            self.theirs.cancel(id);
            let confirmed = self.theirs.wait(TOLD_LIMIT, |inbox| !inbox.controls.is_empty()).await;
            if confirmed && self.theirs.inbox().controls.pop_front().is_some() {
                hits.add(CANCELLED_TWICE);
            }
            return Ok(());
        }
        self.watchers.insert(id, Watcher { start_revision, prev_kv: request.prev_kv });
        self.catching_up |= start_revision > 0 && start_revision <= revision;
        Ok(())
    }

    /// Cancels the watcher that `pick` falls on, or one that does not exist. The stream is at rest.
    pub(super) async fn cancel(&mut self, pick: u64) -> Checked {
        let ids: Vec<i64> = self.watchers.keys().copied().collect();
        let at = (pick % (ids.len() as u64 + 1)) as usize;
        let id = ids.get(at).copied().unwrap_or(4711);
        self.ours.cancel(id);
        self.theirs.cancel(id);
        if self.watchers.remove(&id).is_some() {
            self.compare_control("watch: cancel").await?;
        }
        Ok(())
    }

    /// Asks for progress. The stream is at rest and its watchers have not begun in the past.
    pub(super) async fn progress(&mut self, revision: i64) -> Checked {
        self.ours.progress();
        self.theirs.progress();
        // One that begins later keeps the whole stream silent.
        if self.watchers.values().any(|watcher| watcher.start_revision > revision) {
            return Ok(());
        }
        let told = |inbox: &Inbox| !inbox.progress.is_empty();
        let (ours_told, theirs_told) =
            tokio::join!(self.ours.wait(TOLD_LIMIT, told), self.theirs.wait(TOLD_LIMIT, told));
        let take = |stream: &WatchStream| std::mem::take(&mut stream.inbox().progress);
        let (ours, theirs) = (take(&self.ours), take(&self.theirs));
        if ours_told && theirs_told && ours == theirs && ours == [revision] {
            return Ok(());
        }
        Err(Difference { kind: "watch: progress", ours: format!("{ours:?}"), theirs: format!("{theirs:?}") })
    }

    /// Waits until the mark of `revision` and everything before it was told on both, and compares all of it.
    pub(super) async fn rest(&mut self, revision: i64, past: bool, hits: &mut Hits) -> Checked {
        let marked = move |inbox: &Inbox| inbox.mark >= revision;
        let (ours, theirs) = tokio::join!(self.ours.wait(TOLD_LIMIT, marked), self.theirs.wait(TOLD_LIMIT, marked));
        if !ours || !theirs {
            let words = |told: bool, stream: &WatchStream| match &stream.inbox().ended {
                Some(why) => format!("the stream ended: {why}"),
                None if told => "told in time".to_string(),
                None => "not told in time".to_string(),
            };
            let (ours, theirs) = (words(ours, &self.ours), words(theirs, &self.theirs));
            return Err(Difference { kind: "watch: an event of the mark", ours, theirs });
        }
        if std::mem::take(&mut self.catching_up) {
            self.catch_up(revision).await?;
        }
        self.compare_events(hits).await?;
        self.nothing_left(past)
    }

    async fn catch_up(&mut self, revision: i64) -> Checked {
        self.ours.progress();
        let told = move |inbox: &Inbox| inbox.progress.last().is_some_and(|progress| *progress >= revision);
        let ours = self.ours.wait(TOLD_LIMIT, told).await;
        let mut theirs = false;
        for _ in 0..PROGRESS_TRIES {
            self.theirs.progress();
            theirs = self.theirs.wait(PROGRESS_PAUSE, told).await;
            if theirs {
                break;
            }
        }
        if ours && theirs {
            return Ok(());
        }
        let words = |told| if told { "told" } else { "not told in time" }.to_string();
        Err(Difference { kind: "watch: progress of watchers in the past", ours: words(ours), theirs: words(theirs) })
    }

    /// The next control on both; the id of the watcher if one was created.
    async fn compare_control(&mut self, kind: &'static str) -> Result<Option<i64>, Difference> {
        let some = |inbox: &Inbox| !inbox.controls.is_empty();
        tokio::join!(self.ours.wait(TOLD_LIMIT, some), self.theirs.wait(TOLD_LIMIT, some));
        let (ours, theirs) = (self.ours.inbox().controls.pop_front(), self.theirs.inbox().controls.pop_front());
        match (&ours, &theirs) {
            (Some(one), Some(other)) if one == other => {
                Ok((one.created && !one.canceled && one.watch_id != MARK_ID).then_some(one.watch_id))
            }
            _ => Err(Difference { kind, ours: format!("{ours:?}"), theirs: format!("{theirs:?}") }),
        }
    }

    async fn compare_events(&mut self, hits: &mut Hits) -> Checked {
        let ids: Vec<i64> = {
            let (ours, theirs) = (self.ours.inbox(), self.theirs.inbox());
            ours.events.keys().chain(theirs.events.keys()).copied().collect()
        };
        for id in ids {
            // A queue of etcd's that was full is told a little later, after the mark.
            let count = |stream: &WatchStream| stream.inbox().events.get(&id).map_or(0, Vec::len);
            let wanted = count(&self.ours).max(count(&self.theirs));
            let enough = move |inbox: &Inbox| inbox.events.get(&id).map_or(0, Vec::len) >= wanted;
            tokio::join!(self.ours.wait(TOLD_LIMIT, enough), self.theirs.wait(TOLD_LIMIT, enough));
            let take = |stream: &WatchStream| stream.inbox().events.remove(&id).unwrap_or_default();
            let (ours, mut theirs) = (take(&self.ours), take(&self.theirs));
            if ours != theirs && self.watchers.get(&id).is_some_and(|watcher| !watcher.prev_kv) {
                theirs.iter_mut().for_each(|event| event.prev_kv = None);
                if ours == theirs {
                    hits.add(UNASKED_PREVIOUS);
                }
            }
            if ours != theirs {
                let (ours, theirs) = from_first_difference(&ours, &theirs);
                return Err(Difference { kind: "watch: events", ours, theirs });
            }
        }
        Ok(())
    }

    /// At rest nothing may be left over; progress of a stream that catches up was asked for more than once.
    fn nothing_left(&mut self, past: bool) -> Checked {
        let left = |stream: &WatchStream| {
            let mut inbox = stream.inbox();
            let progress = std::mem::take(&mut inbox.progress);
            let progress = if past { Vec::new() } else { progress };
            (std::mem::take(&mut inbox.controls), progress, std::mem::take(&mut inbox.faults))
        };
        let (ours, theirs) = (left(&self.ours), left(&self.theirs));
        let nothing = Default::default();
        if ours == nothing && theirs == nothing {
            return Ok(());
        }
        Err(Difference {
            kind: "watch: something nobody asked for",
            ours: format!("{ours:?}"),
            theirs: format!("{theirs:?}"),
        })
    }
}

fn from_first_difference(ours: &[Event], theirs: &[Event]) -> (String, String) {
    let same = ours.iter().zip(theirs).take_while(|(one, other)| one == other).count();
    let text = |events: &[Event]| format!("{} events, from number {same} on: {:?}", events.len(), &events[same..]);
    (text(ours), text(theirs))
}
