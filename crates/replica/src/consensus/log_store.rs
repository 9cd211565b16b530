//! The engine's view of the log: the tail in memory, the terms of everything the journal holds, and
//! requests to read older entries back.
//!
//! Entries leave memory once they are durable, carried out and beyond a budget; a follower that needs
//! them later gets them through a [`Fetch`]. The journal itself is written by whoever performs the
//! [`super::Ready`]; this only mirrors what was handed to it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot, SnapshotMetadata};
use raft::{Error, GetEntriesContext, RaftState, Storage, StorageError};
use tidelock_model::{LogEntry, LogIndex};

use super::{Start, wire};

/// Entries kept in memory for followers that are a little behind.
const TAIL_BYTES_MAX: usize = 2 << 20;
/// Fetches under way; more are dropped, and asked for again when the follower is next heard of.
const FETCHES_MAX: usize = 16;

/// A wish to read entries back from the journal.
pub struct Fetch {
    /// First entry wanted.
    pub from: LogIndex,
    /// First entry no longer wanted.
    pub to: LogIndex,
    /// At most so many bytes, but at least one entry.
    pub max_bytes: usize,
    context: GetEntriesContext,
}

pub(super) struct LogStore {
    hard_state: HardState,
    voters: ConfState,
    /// Index before the first entry that can be had, with its term in `terms`.
    before_first: u64,
    /// Runs of equal terms, as (first index, term); the first run covers `before_first`.
    terms: Vec<(u64, u64)>,
    tail: VecDeque<Entry>,
    tail_bytes: usize,
    last: u64,
    snapshot: Option<SnapshotMetadata>,
    fetches: RefCell<Vec<Fetch>>,
    fetched: Vec<Entry>,
    snapshot_wish: Cell<bool>,
}

fn size(entry: &Entry) -> usize {
    entry.data.len() + entry.context.len() + size_of::<Entry>()
}

impl LogStore {
    pub(super) fn new(start: Start) -> Result<LogStore, String> {
        let (snapshot_index, snapshot_term) = (start.snapshot.0.0, start.snapshot.1.0);
        let voters = wire::decode_voters(&start.voters).map_err(|error| error.to_string())?;
        let mut metadata = SnapshotMetadata::default();
        metadata.index = snapshot_index;
        metadata.term = snapshot_term;
        metadata.set_conf_state(voters.clone());
        let mut store = LogStore {
            hard_state: wire::hard_state_to(start.hard_state),
            voters,
            before_first: snapshot_index,
            terms: vec![(snapshot_index, snapshot_term)],
            tail: VecDeque::new(),
            tail_bytes: 0,
            last: snapshot_index,
            snapshot: Some(metadata).filter(|metadata| metadata.index > 0),
            fetches: RefCell::default(),
            fetched: Vec::new(),
            snapshot_wish: Cell::new(false),
        };
        let entries = start.entries.into_iter().map(wire::entry_to).collect::<Result<Vec<_>, _>>();
        store.append(entries.map_err(|error| format!("the journal holds an entry of another kind: {error}"))?);
        Ok(store)
    }

    fn tail_first(&self) -> u64 {
        self.last + 1 - self.tail.len() as u64
    }

    /// Adds entries, replacing what has the same or a later index.
    pub(super) fn append(&mut self, entries: Vec<Entry>) {
        let Some(first) = entries.first().map(|entry| entry.index) else { return };
        assert!(first <= self.last + 1, "the log has no holes: {first} after {}", self.last);
        while self.last >= first && !self.tail.is_empty() {
            self.tail_bytes -= self.tail.pop_back().map_or(0, |entry| size(&entry));
            self.last -= 1;
        }
        self.last = first - 1;
        while self.terms.len() > 1 && self.terms.last().is_some_and(|run| run.0 >= first) {
            self.terms.pop();
        }
        for entry in entries {
            if self.terms.last().is_none_or(|run| run.1 != entry.term) {
                self.terms.push((entry.index, entry.term));
            }
            self.last = entry.index;
            self.tail_bytes += size(&entry);
            self.tail.push_back(entry);
        }
    }

    /// Lets entries up to `done` (durable and carried out) leave memory, if there are too many.
    pub(super) fn evict(&mut self, done: u64) {
        while self.tail_bytes > TAIL_BYTES_MAX && self.tail.front().is_some_and(|entry| entry.index <= done) {
            self.tail_bytes -= self.tail.pop_front().map_or(0, |entry| size(&entry));
        }
    }

    /// The journal dropped what lies before `first`.
    pub(super) fn trim(&mut self, first: u64) {
        let before = first.saturating_sub(1).min(self.last);
        if before <= self.before_first {
            return;
        }
        self.before_first = before;
        while self.tail.front().is_some_and(|entry| entry.index <= before) {
            self.tail_bytes -= self.tail.pop_front().map_or(0, |entry| size(&entry));
        }
        while self.terms.len() > 1 && self.terms[1].0 <= before {
            self.terms.remove(0);
        }
    }

    /// A snapshot replaced the log.
    pub(super) fn restart(&mut self, metadata: &SnapshotMetadata) {
        self.before_first = metadata.index;
        self.last = metadata.index;
        self.terms = vec![(metadata.index, metadata.term)];
        self.tail.clear();
        self.tail_bytes = 0;
        self.voters = metadata.get_conf_state().clone();
        self.snapshot = Some(metadata.clone());
    }

    pub(super) fn hard_state(&self) -> &HardState {
        &self.hard_state
    }

    pub(super) fn set_hard_state(&mut self, state: HardState) {
        self.hard_state = state;
    }

    pub(super) fn set_voters(&mut self, voters: ConfState) {
        self.voters = voters;
    }

    pub(super) fn voters(&self) -> &ConfState {
        &self.voters
    }

    pub(super) fn set_snapshot(&mut self, index: u64, term: u64, voters: ConfState) {
        let mut metadata = SnapshotMetadata::default();
        metadata.index = index;
        metadata.term = term;
        metadata.set_conf_state(voters);
        self.snapshot = Some(metadata);
    }

    pub(super) fn take_snapshot_wish(&mut self) -> bool {
        self.snapshot_wish.take()
    }

    pub(super) fn has_fetches(&self) -> bool {
        !self.fetches.borrow().is_empty()
    }

    pub(super) fn take_fetches(&mut self) -> Vec<Fetch> {
        std::mem::take(self.fetches.get_mut())
    }

    /// Keeps what the journal returned for the engine's next look, and gives back the context that
    /// makes it look.
    pub(super) fn keep_fetched(&mut self, fetch: Fetch, entries: Vec<LogEntry>) -> GetEntriesContext {
        self.fetched = entries.into_iter().map_while(|entry| wire::entry_to(entry).ok()).collect();
        fetch.context
    }

    pub(super) fn forget_fetched(&mut self) {
        self.fetched = Vec::new();
    }
}

fn limited<'a>(entries: impl Iterator<Item = &'a Entry>, max_size: Option<u64>) -> Vec<Entry> {
    let max = max_size.unwrap_or(u64::MAX);
    let mut total = 0;
    let within = |entry: &&Entry| {
        let first = total == 0;
        total += size(entry) as u64;
        first || total <= max
    };
    entries.take_while(within).cloned().collect()
}

impl Storage for LogStore {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.voters.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.before_first {
            return Err(Error::Store(StorageError::Compacted));
        }
        assert!(high <= self.last + 1, "entries up to {high} asked for, the log ends at {}", self.last);
        let max_size = max_size.into();
        if low >= self.tail_first() {
            let offset = (low - self.tail_first()) as usize;
            let wanted = self.tail.iter().skip(offset).take((high - low) as usize);
            return Ok(limited(wanted, max_size));
        }
        if let Some(at) = self.fetched.iter().position(|entry| entry.index == low) {
            let wanted = self.fetched[at..].iter().take_while(|entry| entry.index < high);
            return Ok(limited(wanted, max_size));
        }
        if !context.can_async() {
            // Only entries not yet carried out are asked for at once, and those never leave memory.
            return Err(Error::Store(StorageError::Unavailable));
        }
        let mut fetches = self.fetches.borrow_mut();
        if fetches.len() < FETCHES_MAX && self.fetched.is_empty() {
            let max_bytes = max_size.unwrap_or(u64::MAX).min(16 << 20) as usize;
            let to = LogIndex(high.min(self.tail_first()));
            fetches.push(Fetch { from: LogIndex(low), to, max_bytes, context });
        }
        Err(Error::Store(StorageError::LogTemporarilyUnavailable))
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index < self.before_first {
            return Err(Error::Store(StorageError::Compacted));
        }
        if index > self.last {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let after = self.terms.partition_point(|run| run.0 <= index);
        // The first run covers `before_first` and everything up to the next run.
        Ok(self.terms[after.saturating_sub(1)].1)
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.before_first + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last)
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        // A receiver drops a snapshot that does not count it among the members; a newer one will.
        let names = |metadata: &SnapshotMetadata| {
            let voters = metadata.get_conf_state();
            let all = [&voters.voters, &voters.learners, &voters.voters_outgoing, &voters.learners_next];
            all.iter().any(|ids| ids.contains(&to))
        };
        match &self.snapshot {
            Some(metadata)
                if metadata.index >= request_index && metadata.index >= self.before_first && names(metadata) =>
            {
                let mut snapshot = Snapshot::default();
                snapshot.set_metadata(metadata.clone());
                Ok(snapshot)
            }
            _ => {
                self.snapshot_wish.set(true);
                Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
            }
        }
    }
}
