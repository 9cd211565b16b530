//! Going through much of the store without holding anything up: page by page, all of it at one revision.
//!
//! The first page decides the revision unless the caller did; the others are read at it. Nothing is held
//! in between, so a compaction may overtake the reader: then it is refused like any read of the past.

use std::collections::VecDeque;
use std::sync::Arc;

use tidelock_coordinator::{Consistency, Coordinator};
use tidelock_model::{Caller, Key, KeyRange, KeyValue, PageQuery, Query, QueryAnswer, Revision};

use crate::error_map::FaceError;
use crate::kv::MISMATCH;

/// Keys looked at under one hold of the store's lock, at least: a past revision may show few of the keys
/// there are, and asking for one at a time would take for ever.
const PAGE_KEYS_MIN: usize = 64;

/// The same, at most: writers wait meanwhile.
const PAGE_KEYS_MAX: usize = 1000;

/// A walk over a range.
pub(crate) struct Pages {
    caller: Caller,
    coordinator: Arc<dyn Coordinator>,
    page: PageQuery,
    /// How fresh the first page must be; the others need what this node has had since.
    consistency: Consistency,
    /// The store's revision at the first page.
    begun: Option<Revision>,
    complete: bool,
    waiting: VecDeque<KeyValue>,
}

impl Pages {
    /// Over `range` as of `at`, or as of now.
    pub(crate) fn new(
        caller: Caller,
        coordinator: Arc<dyn Coordinator>,
        range: KeyRange,
        at: Option<Revision>,
        consistency: Consistency,
    ) -> Pages {
        let page = PageQuery { range, at, after: None, max_keys: PAGE_KEYS_MIN };
        Pages { caller, coordinator, page, consistency, begun: None, complete: false, waiting: VecDeque::new() }
    }

    /// The next items, `count` of them unless there are fewer, and whether there are more.
    pub(crate) async fn next(&mut self, count: usize) -> Result<(Vec<KeyValue>, bool), FaceError> {
        // One more than asked for, to know whether there is one.
        while self.waiting.len() <= count && !self.complete {
            let missing = count.saturating_add(1) - self.waiting.len();
            self.read_page(missing.clamp(PAGE_KEYS_MIN, PAGE_KEYS_MAX)).await?;
        }
        let items = self.waiting.drain(..count.min(self.waiting.len())).collect();
        Ok((items, !self.waiting.is_empty()))
    }

    async fn read_page(&mut self, max_keys: usize) -> Result<(), FaceError> {
        let consistency = if self.begun.is_none() { self.consistency } else { Consistency::Local };
        self.page.max_keys = max_keys;
        let answer = self
            .coordinator
            .read(self.caller.as_of(&self.coordinator.auth()), Query::Page(self.page.clone()), consistency)
            .await?;
        let QueryAnswer::Page { revision, items, next } = answer else { return Err(MISMATCH) };
        self.begun.get_or_insert(revision);
        self.page.at.get_or_insert(revision);
        self.waiting.extend(items);
        self.complete = next.is_none();
        self.page.after = next;
        // A read of memory never waits: others on this thread get their turn between pages.
        tokio::task::yield_now().await;
        Ok(())
    }

    /// The revision that is read.
    pub(crate) fn at(&self) -> Revision {
        self.page.at.unwrap_or_default()
    }

    /// The store's revision when the walk began.
    pub(crate) fn begun(&self) -> Revision {
        self.begun.unwrap_or_default()
    }

    /// What of the range is still to come after `last`.
    pub(crate) fn rest_after(&self, last: &Key) -> KeyRange {
        KeyRange { start: last.successor(), end: self.page.range.end.clone() }
    }
}
