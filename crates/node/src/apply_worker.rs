//! The worker that owns the state: carries out what was agreed on, answers who waited for it, keeps
//! watchers and leases.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidelock_coordinator::ProposeError;
use tidelock_journal::Disk;
use tidelock_model::{LogIndex, NodeId, Origin, Term};
use tidelock_replica::watch_hub::WatchControl;
use tidelock_replica::{Applier, Call, Committed, Input, LeaseReply, Observer, Report, Task, expiry_proposal};
use tidelock_state::State;

use crate::clock::{Moment, Turn};
use crate::held_watches::HeldWatches;
use crate::inbox::Worker;
use crate::shared::{ApplyTask, Shared};
use crate::snapshots::{Received, SnapshotJob, Snapshots};

/// Bytes of entries carried out under one hold of the lock: some milliseconds of readers waiting, at
/// the very most.
const LOCK_BYTES_MAX: usize = 256 << 10;
/// Steps of sweeping old versions at a time, likewise.
const SWEEP_STEPS: usize = 500;
/// How often the allocator is reminded of what was freed.
const NUDGE_EVERY: Duration = Duration::from_secs(1);

/// What runs snapshots on the side: a thread each, or the simulator.
pub type RunSnapshot<D> = Box<dyn FnMut(SnapshotJob<D>) + Send>;

/// Owns the state.
pub struct ApplyWorker<D: Disk + Clone> {
    shared: Arc<Shared>,
    applier: Applier,
    snapshots: Snapshots<D>,
    run_snapshot: RunSnapshot<D>,
    heartbeat: Duration,
    /// When the lease clock was last brought up to date, and when it was last looked at.
    advanced: Duration,
    ticked: Duration,
    expiries: u64,
    /// Whether old versions are left to sweep.
    sweep: Sweep,
    /// When the allocator was last reminded of what was freed.
    nudged: Duration,
    /// Those that wait until this node has regained what it had before it started.
    held_watches: HeldWatches,
    /// Numbers of the proposals that were answered last; kept for its memory.
    done: Vec<u64>,
}

/// Numbers that ascend, those that follow one another together. What is sent to another thread is freed there, and is
/// better small: a block for each batch, of the size of the state's own, leaves as many holes between them.
fn runs(numbers: &[u64]) -> Vec<RangeInclusive<u64>> {
    let runs = numbers.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    runs.map(|run| run[0]..=run[run.len() - 1]).collect()
}

/// How far sweeping what was compacted has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweep {
    Done,
    GoOn,
    /// Someone still reads at a revision that was compacted: look again later.
    HeldBack,
}

impl<D: Disk + Clone + 'static> Worker<ApplyTask> for ApplyWorker<D> {
    fn take_turn(&mut self, tasks: &mut Vec<ApplyTask>, now: Moment) -> Turn {
        // A thread that did not run for several heartbeats stood still, and so did its clients' renewals:
        // only a plausible part of that time counts against their leases.
        let by_wall = tidelock_model::planted!(LeasesByWallClock);
        let time = if by_wall { Duration::from_millis(now.wall.0) } else { now.steady };
        let believed = if by_wall { Duration::MAX } else { self.heartbeat * 3 };
        let elapsed = time.saturating_sub(self.advanced);
        if elapsed >= self.heartbeat || !tidelock_model::planted!(LeaseClockBehind) {
            self.applier.advance(elapsed, believed);
            self.advanced = time;
        }
        for task in tasks.drain(..) {
            match task {
                ApplyTask::Do(task) => self.perform(task),
                ApplyTask::Watch(control) => self.watch(control),
                ApplyTask::TakeSnapshot => self.snapshots.wish(),
                ApplyTask::DropReceived => drop(self.shared.received.lock().pop_front()),
            }
        }
        self.shared.watchers.store(self.applier.hub.watchers(), Ordering::Relaxed);
        if now.steady.saturating_sub(self.ticked) >= self.heartbeat {
            self.end_leases();
            self.ask_for_held_watches();
            self.nudge_allocator(now.steady);
            self.ticked = now.steady;
        }
        if self.sweep != Sweep::Done {
            self.sweep();
        }
        if self.sweep != Sweep::GoOn
            && let Some(job) = self.snapshots.begin_if_due(&self.applier, now)
        {
            (self.run_snapshot)(job);
        }
        Turn::WaitAtMost(if self.sweep == Sweep::GoOn { Duration::ZERO } else { self.heartbeat })
    }
}

impl<D: Disk + Clone + 'static> ApplyWorker<D> {
    pub(crate) fn new(
        shared: Arc<Shared>,
        applier: Applier,
        snapshots: Snapshots<D>,
        run_snapshot: RunSnapshot<D>,
        heartbeat: Duration,
    ) -> Self {
        ApplyWorker {
            shared,
            applier,
            snapshots,
            run_snapshot,
            heartbeat,
            advanced: Duration::ZERO,
            ticked: Duration::ZERO,
            expiries: 0,
            sweep: Sweep::GoOn,
            nudged: Duration::ZERO,
            held_watches: HeldWatches::default(),
            done: Vec::new(),
        }
    }

    /// Has everything that is carried out from now on seen by `observer`.
    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.applier.observe(observer);
    }

    /// How often a watcher fell behind since the start.
    #[must_use]
    pub fn lagged(&self) -> u64 {
        self.applier.hub.lagged()
    }

    /// Takes one turn with whatever has arrived.
    pub fn turn(&mut self, now: Moment) -> Turn {
        let mut tasks = Vec::new();
        match self.shared.apply.take(&mut tasks) {
            true => self.take_turn(&mut tasks, now),
            false => Turn::Ended,
        }
    }

    fn sweep(&mut self) {
        let keep_from = self.shared.keep_from();
        let mut state = self.shared.state.write();
        self.sweep = match state.sweep(SWEEP_STEPS, keep_from) {
            true => Sweep::GoOn,
            false if keep_from < state.compacted() => Sweep::HeldBack,
            false => Sweep::Done,
        };
        drop(state);
        self.shared.sweeping.send_replace(self.sweep != Sweep::Done);
    }

    /// The allocator returns freed memory to the system a second later, but only when a block larger than those it
    /// keeps for reuse is freed, which a node at rest never does. So it is given one: address space, no page of
    /// which is touched.
    fn nudge_allocator(&mut self, now: Duration) {
        const LARGE: usize = 32 << 20;
        if now.saturating_sub(self.nudged) >= NUDGE_EVERY {
            self.nudged = now;
            drop(std::hint::black_box(Vec::<u8>::with_capacity(LARGE)));
        }
    }

    fn perform(&mut self, task: Task) {
        match task {
            Task::Apply(entries) => self.apply(entries),
            Task::ReadsReady(tokens) => {
                self.regain();
                tokens.into_iter().for_each(|token| self.shared.reads.answer(token, Ok(())));
            }
            Task::LeaseCalls { from, calls } => {
                let mut report = Report::default();
                self.applier.lease_calls(from, calls, &mut report);
                self.report_leases(&report.lease_replies);
            }
            Task::Renew { from, renewal } => {
                if let Some(reply) = self.applier.renew(&renewal) {
                    self.shared.consensus.push(Input::Renewed { to: from, reply });
                }
            }
            Task::Leading(term) => self.applier.leading(&self.shared.state.read(), term),
            Task::Install { index, term } => self.install(index, term),
        }
    }

    fn watch(&mut self, control: WatchControl) {
        let waits = !self.shared.regained.load(Ordering::Relaxed) && !tidelock_model::planted!(WatchOpenedAfterStart);
        let control = if waits { self.held_watches.pass(control) } else { Some(control) };
        if let Some(control) = control {
            self.applier.hub.control(&self.shared.state.read(), control);
            self.applier.hub.wake();
        }
    }

    /// A round asked the cluster, and what it told to wait for is carried out: so is all that this node had before it
    /// started.
    fn regain(&mut self) {
        if self.shared.regained.swap(true, Ordering::Relaxed) {
            return;
        }
        for control in self.held_watches.release() {
            self.watch(control);
        }
    }

    /// Asks the cluster for those who wait, in case that nobody else does. Nobody takes the answer: it lets them go.
    fn ask_for_held_watches(&self) {
        if self.held_watches.is_empty() || self.shared.reads.waiting() > 0 {
            return;
        }
        if let Ok((token, _)) = self.shared.reads.add(self.shared.limits.reads_waiting) {
            self.shared.consensus.push(Input::Call(Call::Read(token)));
        }
    }

    fn apply(&mut self, entries: Vec<Committed>) {
        let mut entries = entries.into_iter().peekable();
        while entries.peek().is_some() {
            let mut report = Report::default();
            let mut bytes = 0;
            let mut index = LogIndex(0);
            let began = Instant::now();
            {
                let mut state = self.shared.state.write();
                let compacted = state.compacted();
                while let Some(entry) = entries.next_if(|_| bytes < LOCK_BYTES_MAX) {
                    bytes += if let Committed::Batch { bytes, .. } = &entry { bytes.len() } else { 0 };
                    index = entry.index();
                    self.applier.apply(&mut state, entry, &mut report);
                }
                self.shared.follow_auth(&state);
                if state.compacted() != compacted {
                    self.sweep = Sweep::GoOn;
                    self.shared.sweeping.send_replace(true);
                }
            }
            self.shared.measurements.apply.record(began.elapsed());
            self.applier.hub.wake();
            self.answer(index, report);
        }
    }

    fn answer(&mut self, index: LogIndex, report: Report) {
        self.done.clear();
        for (number, outcome) in report.outcomes {
            self.shared.proposals.answer(number, Ok(outcome));
            self.done.push(number);
        }
        for number in report.unknown {
            let waited = self.shared.request_timeout;
            self.shared.proposals.answer(number, Err(ProposeError::OutcomeUnknown { waited }));
            self.done.push(number);
        }
        self.done.sort_unstable();
        let done = runs(&self.done);
        self.shared.consensus.push_and_run([Input::Applied { index, done }]);
        for (index, digest) in report.digests {
            self.shared.consensus.push(Input::Digest { index, digest });
        }
        self.report_leases(&report.lease_replies);
    }

    fn report_leases(&self, replies: &[(NodeId, LeaseReply)]) {
        let mut rest = replies;
        while let Some((to, _)) = rest.first() {
            let count = rest.iter().take_while(|(other, _)| other == to).count();
            let (same, after) = rest.split_at(count);
            let replies = same.iter().map(|(_, reply)| *reply).collect();
            self.shared.consensus.push(Input::LeaseReplies { to: *to, replies });
            rest = after;
        }
    }

    fn end_leases(&mut self) {
        let due = self.applier.due(&self.shared.state.read());
        if let Some((term, leases)) = due {
            self.expiries += 1;
            // Its own origin, so that its numbers and the callers' do not collide.
            let node = NodeId(!self.shared.identity.node.0);
            let origin = Origin { node, boot: self.shared.boot, number: self.expiries };
            self.shared.consensus.push(Input::Expire { term, bytes: expiry_proposal(origin, term, leases) });
        }
    }

    fn install(&mut self, index: LogIndex, term: Term) {
        let mut waiting = self.shared.received.lock();
        let place = waiting.iter().position(|received| received.index == index);
        // The engine accepts only a snapshot that was received whole, and it was put there first.
        let place = place.expect("an accepted snapshot is there");
        let received = Received {
            index,
            state: std::mem::replace(&mut waiting[place].state, State::new()),
            voters: waiting[place].voters.clone(),
        };
        drop(waiting);
        tracing::info!(%index, revision = %received.state.revision(), "installed a snapshot from the leader");
        let members = received.state.members().clone();
        let replaced = {
            let mut state = self.shared.state.write();
            let replaced = std::mem::replace(&mut *state, received.state);
            self.shared.follow_auth(&state);
            self.shared.installs.fetch_add(1, Ordering::Relaxed);
            self.applier.installed(&state, term, received.voters);
            self.sweep = Sweep::GoOn;
            replaced
        };
        // Millions of records are freed when no reader waits for the lock any more.
        drop(replaced);
        self.applier.hub.wake();
        self.shared.consensus.push(Input::Installed { index, members });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that is left out is sent again for ever, one too many is never answered.
    #[test]
    fn runs_hold_the_numbers_and_no_others() {
        for numbers in [vec![], vec![7], vec![1, 2, 3], vec![1, 3, 4, 9, u64::MAX - 1, u64::MAX]] {
            assert_eq!(runs(&numbers).into_iter().flatten().collect::<Vec<_>>(), numbers);
        }
        assert_eq!(runs(&[5, 6, 7, 9]), [5..=7, 9..=9]);
    }
}
