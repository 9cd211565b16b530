//! Runs a journal next to an oracle: the plain list of records it was given. What a journal opens
//! with must be what some prefix of that list amounts to, and the prefix must hold all that was synced.

use bytes::Bytes;
use tidelock_journal::memory_disk::MemoryDisk;
use tidelock_journal::{
    AppendError, HardState, Journal, JournalConfig, LogEntry, OpenError, Recovered, SnapshotMeta, SnapshotWriter,
    remove_older,
};
use tidelock_model::{LogIndex, NodeId, Term};

/// The smallest segments that hold a few records, so that rotation happens all the time.
pub(crate) const SEGMENT: u64 = 2048;

pub(crate) fn config() -> JournalConfig {
    JournalConfig { segment_bytes: SEGMENT, spare_segments: 1, free_floor_bytes: 0 }
}

pub(crate) fn entry(index: u64, term: u64, size: usize) -> LogEntry {
    let fill = (index * 31 + term * 7) as u8 | 1;
    LogEntry {
        index: LogIndex(index),
        term: Term(term),
        kind: (index % 3) as u8,
        payload: Bytes::from(vec![fill; size]),
        context: Bytes::from(vec![fill ^ 0x55; size % 5]),
    }
}

pub(crate) fn hard_state(term: u64, vote: u64, commit: u64) -> HardState {
    HardState { term: Term(term), vote: NodeId(vote), commit: LogIndex(commit) }
}

/// A small deterministic source of choices.
#[derive(Clone)]
pub(crate) struct Choices(pub(crate) u64);

impl Choices {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // A multiplicative step and a shift mix well enough to choose among a handful of things.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[derive(Clone, Debug)]
enum Given {
    Entry(LogEntry),
    HardState(HardState),
    Restart(u64),
}

/// What a prefix of the given records amounts to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Contents {
    pub(crate) entries: Vec<LogEntry>,
    pub(crate) last: u64,
    pub(crate) hard_state: HardState,
}

#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    given: Vec<Given>,
    /// How many of them must survive.
    synced: usize,
    /// The newest snapshot known to be durable, and one that may be.
    snapshot: Option<(u64, u64)>,
    attempted: Option<(u64, u64)>,
}

impl Oracle {
    fn new() -> Oracle {
        Oracle { given: Vec::new(), synced: 0, snapshot: None, attempted: None }
    }

    fn log_after(&self, count: usize) -> (u64, Vec<LogEntry>, HardState) {
        let (mut base, mut log, mut state) = (0, Vec::<LogEntry>::new(), HardState::default());
        for given in &self.given[..count] {
            match given {
                Given::Entry(entry) => {
                    log.truncate((entry.index.0 - base - 1) as usize);
                    log.push(entry.clone());
                }
                Given::HardState(new) => state = *new,
                Given::Restart(index) => {
                    base = *index;
                    log.clear();
                }
            }
        }
        (base, log, state)
    }

    /// What a journal must open with if `count` records and the snapshot are on disk.
    fn contents(&self, count: usize, snapshot: Option<(u64, u64)>) -> Contents {
        let (base, mut log, mut state) = self.log_after(count);
        let last = base + log.len() as u64;
        let Some((index, term)) = snapshot else { return Contents { entries: log, last, hard_state: state } };
        if state.term.0 < term {
            state = HardState { term: Term(term), vote: NodeId(0), ..state };
        }
        state.commit = state.commit.max(LogIndex(index));
        let differs = index > base && index <= last && log[(index - base - 1) as usize].term.0 != term;
        if index > last || differs {
            return Contents { entries: Vec::new(), last: index, hard_state: state };
        }
        log.retain(|entry| entry.index.0 > index);
        Contents { entries: log, last, hard_state: state }
    }

    /// Checks what a journal opened with; says how many records it holds.
    pub(crate) fn check(&self, recovered: &Recovered) -> usize {
        self.find(recovered, self.synced).unwrap_or_else(|| {
            panic!(
                "recovered something that was never there or lacks what was synced: {recovered:?}\nexpected at least {:?}\nor all of {:?}",
                self.contents(self.synced, self.snapshot),
                self.contents(self.given.len(), self.snapshot),
            )
        })
    }

    /// The prefix of at least `least` records that the journal opened with.
    pub(crate) fn find(&self, recovered: &Recovered, least: usize) -> Option<usize> {
        let snapshot = recovered.snapshot.as_ref().map(|meta| (meta.index.0, meta.term.0));
        if snapshot != self.snapshot && (snapshot.is_none() || snapshot != self.attempted) {
            return None;
        }
        let found = Contents {
            entries: recovered.entries.clone(),
            last: recovered.last_index.0,
            hard_state: recovered.hard_state,
        };
        (least..=self.given.len()).rev().find(|count| self.contents(*count, snapshot) == found)
    }

    fn rebase(&mut self, recovered: &Recovered) {
        let start = recovered.snapshot.as_ref().map(|meta| (meta.index.0, meta.term.0));
        let restart = start.map(|(index, _)| Given::Restart(index));
        let entries = recovered.entries.iter().cloned().map(Given::Entry);
        self.given = restart.into_iter().chain(entries).chain([Given::HardState(recovered.hard_state)]).collect();
        self.synced = self.given.len();
        (self.snapshot, self.attempted) = (start, None);
    }
}

/// One thing to do with a journal.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Entries of the given size, the first of which replaces `back` earlier ones.
    Append {
        count: u64,
        back: u64,
        size: usize,
        state: bool,
    },
    Sync,
    /// A snapshot of the log, `back` before its end; then trim and forget older snapshots.
    Snapshot {
        back: u64,
    },
    /// A snapshot from a peer, `ahead` of the log.
    Install {
        ahead: u64,
    },
    Maintain,
}

pub(crate) struct Driver {
    pub(crate) disk: MemoryDisk,
    pub(crate) journal: Option<Journal<MemoryDisk>>,
    pub(crate) oracle: Oracle,
    term: u64,
}

impl Driver {
    pub(crate) fn new() -> Driver {
        Driver::on(MemoryDisk::new())
    }

    pub(crate) fn on(disk: MemoryDisk) -> Driver {
        Driver { disk, journal: None, oracle: Oracle::new(), term: 1 }
    }

    pub(crate) fn journal(&mut self) -> &mut Journal<MemoryDisk> {
        self.journal.as_mut().expect("the journal is open")
    }

    /// Opens the journal (again) and compares with the oracle.
    pub(crate) fn open(&mut self) -> Result<(), OpenError> {
        self.journal = None;
        let (journal, recovered) = Journal::open(self.disk.clone(), config())?;
        self.oracle.check(&recovered);
        check_readable(&journal, &recovered);
        self.oracle.rebase(&recovered);
        self.term = recovered.hard_state.term.0.max(self.term);
        self.journal = Some(journal);
        Ok(())
    }

    /// Does one step. An error means that the disk failed under it.
    pub(crate) fn step(&mut self, step: &Step) -> Result<(), AppendError> {
        match *step {
            Step::Append { count, back, size, state } => self.append(count, back, size, state),
            Step::Sync => self.sync(),
            Step::Snapshot { back } => self.snapshot(back),
            Step::Install { ahead } => self.install(ahead),
            Step::Maintain => self.journal().maintain().map(|_| ()).map_err(AppendError::Failed),
        }
    }

    fn append(&mut self, count: u64, back: u64, size: usize, state: bool) -> Result<(), AppendError> {
        let floor = self.oracle.snapshot.map_or(0, |(index, _)| index);
        let last = self.journal().last_index().0;
        let start = (last + 1).saturating_sub(back).max(floor + 1).min(last + 1);
        self.term += u64::from(start <= last);
        let entries: Vec<_> = (start..start + count).map(|index| entry(index, self.term, size)).collect();
        let end = if count == 0 { last } else { start + count - 1 };
        let state = state.then(|| hard_state(self.term, end % 4, floor.max(start - 1)));
        self.oracle.given.extend(entries.iter().cloned().map(Given::Entry));
        self.oracle.given.extend(state.map(Given::HardState));
        self.journal().append(&entries, state)
    }

    fn sync(&mut self) -> Result<(), AppendError> {
        self.journal().sync().map_err(AppendError::Failed)?;
        self.oracle.synced = self.oracle.given.len();
        Ok(())
    }

    fn snapshot(&mut self, back: u64) -> Result<(), AppendError> {
        let (base, log, _) = self.oracle.log_after(self.oracle.given.len());
        let Some(at) = log.len().checked_sub(1 + back as usize) else { return Ok(()) };
        let (index, term) = (base + at as u64 + 1, log[at].term.0);
        if self.oracle.snapshot.is_some_and(|(newest, _)| newest >= index) {
            return Ok(());
        }
        self.write_snapshot(index, term)?;
        while self.journal().trim_one(LogIndex(index)).map_err(AppendError::Failed)? {}
        remove_older(&self.disk, 1).map_err(AppendError::Failed)
    }

    fn install(&mut self, ahead: u64) -> Result<(), AppendError> {
        let index = self.journal().last_index().0 + ahead;
        self.term += 1;
        let term = self.term;
        self.write_snapshot(index, term)?;
        let state = hard_state(term, 0, index);
        self.oracle.given.extend([Given::Restart(index), Given::HardState(state)]);
        self.journal().restart_from_snapshot(LogIndex(index), Term(term), state)?;
        self.oracle.synced = self.oracle.given.len();
        Ok(())
    }

    fn write_snapshot(&mut self, index: u64, term: u64) -> Result<(), AppendError> {
        self.oracle.attempted = Some((index, term));
        let meta = SnapshotMeta { index: LogIndex(index), term: Term(term), extra: Bytes::from_static(b"members") };
        let write = || {
            let mut writer = SnapshotWriter::create(self.disk.clone(), meta)?;
            writer.write_chunk(&index.to_le_bytes())?;
            writer.finish()
        };
        write().map_err(|error| AppendError::Failed(std::io::Error::other(error)))?;
        self.oracle.snapshot = self.oracle.attempted.take();
        Ok(())
    }
}

/// What the journal handed out at opening must also be what it reads back later.
pub(crate) fn check_readable(journal: &Journal<MemoryDisk>, recovered: &Recovered) {
    let (first, last) = (journal.first_index(), journal.last_index());
    let all = journal.read(first, last.next(), usize::MAX).expect("an open journal can be read");
    let start = all.len() - recovered.entries.len();
    assert_eq!(all[start..], recovered.entries);
    for (entry, index) in all.iter().zip(first.0..) {
        assert_eq!(entry.index.0, index, "entries are read in order and without gaps");
    }
}

/// Random steps, in proportions that make rotation, replacement and trimming all frequent.
pub(crate) fn random_steps(choices: &mut Choices, count: usize) -> Vec<Step> {
    let one = |choices: &mut Choices| match choices.below(20) {
        0..=9 => Step::Append {
            count: choices.below(6),
            back: choices.below(5).saturating_sub(2),
            size: choices.below(300) as usize,
            state: choices.below(2) == 0,
        },
        10..=15 => Step::Sync,
        16..=17 => Step::Snapshot { back: choices.below(6) },
        18 => Step::Install { ahead: choices.below(20) },
        _ => Step::Maintain,
    };
    (0..count).map(|_| one(choices)).collect()
}
