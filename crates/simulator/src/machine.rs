//! One simulated machine: a disk, two clocks, and on them one life of a node after the other.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidelock_journal::memory_disk::MemoryDisk;
use tidelock_model::{LogIndex, LogTime, NodeId};
use tidelock_node::{Draws, Inbound, Moment, NodeConfig, Prepared, SnapshotJob, StartError, Turn, Workers};

use crate::history::Micros;
use crate::links::SimLinks;
use crate::plan::Keep;
use crate::tap::Tap;

/// Wall-clock time when a run begins, in milliseconds. Any will do.
const WALL_BEGIN_MS: u64 = 1_700_000_000_000;

/// The three workers of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Worker {
    Consensus,
    Journal,
    Apply,
}

impl Worker {
    pub(crate) const ALL: [Worker; 3] = [Worker::Consensus, Worker::Journal, Worker::Apply];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Worker::Consensus => "consensus",
            Worker::Journal => "journal",
            Worker::Apply => "apply",
        }
    }
}

/// What becomes of a machine that is not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It runs.
    Up,
    /// It is started again at that time.
    Down { until: Micros },
    /// It is never started again: its disk was refused, or it was told to leave.
    Gone,
}

/// A crash that is to come when the power goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PowerCut {
    pub(crate) down: Micros,
    pub(crate) keep: Keep,
}

/// Steady and wall clock of a machine, as functions of virtual time.
#[derive(Clone, Copy, Debug, Default)]
struct Clocks {
    /// Thousandths by which they run faster, and since when.
    rate: i64,
    since: Micros,
    /// What they showed then, in microseconds.
    shown: u64,
    wall_offset_ms: i64,
    /// What the steady clock showed when the present life began.
    life_began: u64,
}

impl Clocks {
    fn show(&self, now: Micros) -> u64 {
        let passed = now.saturating_sub(self.since);
        self.shown + passed * u64::try_from(1000 + self.rate).unwrap_or(1000) / 1000
    }

    fn set_rate(&mut self, now: Micros, rate: i64) {
        (self.shown, self.since) = (self.show(now), now);
        self.rate = rate;
    }

    fn moment(&self, now: Micros) -> Moment {
        let shown = self.show(now);
        let wall = (WALL_BEGIN_MS + shown / 1000).saturating_add_signed(self.wall_offset_ms);
        Moment { steady: Duration::from_micros(shown - self.life_began), wall: LogTime(wall) }
    }

    /// How much virtual time passes while the steady clock moves on by `time`; at least a microsecond.
    fn virtual_time(&self, time: Duration) -> Micros {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 2000);
        micros * 1000 / u64::try_from(1000 + self.rate).unwrap_or(1000) + 1
    }
}

/// One simulated machine.
pub(crate) struct Machine {
    pub(crate) id: NodeId,
    pub(crate) config: NodeConfig,
    pub(crate) disk: MemoryDisk,
    pub(crate) fate: Fate,
    pub(crate) life: Option<Life>,
    pub(crate) paused: bool,
    /// How many times slower than planned the disk is.
    pub(crate) slow: u64,
    /// What is durable was destroyed in part: refusing to start is right.
    pub(crate) damaged: bool,
    /// The disk was replaced: being refused by peers is right.
    pub(crate) wiped: bool,
    /// A disk error was injected into this life: stopping is right.
    pub(crate) failed_io: bool,
    pub(crate) power_cut: Option<PowerCut>,
    clocks: Clocks,
}

/// A node between its start and its end.
pub(crate) struct Life {
    pub(crate) boot: u64,
    pub(crate) disk_number: u64,
    pub(crate) workers: Workers<MemoryDisk, SimLinks>,
    pub(crate) inbound: Arc<Inbound<MemoryDisk>>,
    pub(crate) links: SimLinks,
    pub(crate) tap: Tap,
    pub(crate) jobs: Arc<Mutex<Vec<SnapshotJob<MemoryDisk>>>>,
    /// When each worker has its next turn.
    pub(crate) due: [Option<Micros>; 3],
    /// What was last seen of it, to notice what is new.
    pub(crate) lagged: u64,
    pub(crate) trimmed: LogIndex,
    pub(crate) full: bool,
}

impl Machine {
    pub(crate) fn new(id: NodeId, config: NodeConfig) -> Machine {
        Machine {
            id,
            config,
            disk: MemoryDisk::new(),
            fate: Fate::Down { until: 0 },
            life: None,
            paused: false,
            slow: 1,
            damaged: false,
            wiped: false,
            failed_io: false,
            power_cut: None,
            clocks: Clocks::default(),
        }
    }

    /// Starts the node with what the disk holds. Gives whether the end of the journal was cut off as torn.
    pub(crate) fn start(&mut self, now: Micros, draws: Draws) -> Result<bool, StartError> {
        let prepared = Prepared::open(&self.config, self.disk.clone(), draws)?;
        let was_cut = prepared.was_cut();
        let (inbound, links, tap) = (prepared.inbound(), SimLinks::default(), Tap::default());
        let disk_number = prepared.identity().disk;
        let jobs: Arc<Mutex<Vec<_>>> = Arc::default();
        let put_down = jobs.clone();
        let run_snapshot = move |job| put_down.lock().unwrap_or_else(PoisonError::into_inner).push(job);
        let mut workers = prepared.connect(links.clone(), Box::new(run_snapshot));
        workers.apply.observe(Box::new(tap.clone()));
        self.clocks.life_began = self.clocks.show(now);
        let boot = draws.boot;
        let (due, lagged, trimmed, full) = ([None; 3], 0, LogIndex(0), false);
        self.life = Some(Life { boot, disk_number, workers, inbound, links, tap, jobs, due, lagged, trimmed, full });
        self.fate = Fate::Up;
        Ok(was_cut)
    }

    /// Gives a worker its turn; gives how long it may wait for the next, in virtual time, or `None` if it ended.
    pub(crate) fn turn(&mut self, worker: Worker, now: Micros) -> Option<Micros> {
        let moment = self.clocks.moment(now);
        let life = self.life.as_mut()?;
        let turn = match worker {
            Worker::Consensus => life.workers.consensus.turn(moment),
            Worker::Journal => life.workers.journal.turn(moment),
            Worker::Apply => life.workers.apply.turn(moment),
        };
        match turn {
            Turn::WaitAtMost(time) => Some(self.clocks.virtual_time(time)),
            Turn::Ended => None,
        }
    }

    pub(crate) fn set_clock_rate(&mut self, now: Micros, permille: i64) {
        self.clocks.set_rate(now, permille);
    }

    pub(crate) fn jump_wall_clock(&mut self, millis: i64) {
        self.clocks.wall_offset_ms += millis;
    }

    /// Whether it runs and is not paused.
    pub(crate) fn is_awake(&self) -> bool {
        self.life.is_some() && !self.paused
    }
}

impl Life {
    pub(crate) fn take_jobs(&self) -> Vec<SnapshotJob<MemoryDisk>> {
        std::mem::take(&mut self.jobs.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Which workers have something to do at once.
    pub(crate) fn has_work(&self, worker: Worker) -> bool {
        let waiting = self.workers.waiting();
        match worker {
            Worker::Consensus => waiting.consensus,
            Worker::Journal => waiting.journal,
            Worker::Apply => waiting.apply,
        }
    }
}
