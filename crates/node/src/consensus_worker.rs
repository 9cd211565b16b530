//! The consensus worker: feeds the replica and performs what it wants done. It never waits for a disk, a
//! peer or the state, so heartbeats go out whatever else is slow.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tidelock_coordinator::{ProposeError, ReadError, Renewed};
use tidelock_journal::Disk;
use tidelock_model::{HardState, Member, MemberRole, NodeId, Term};
use tidelock_replica::{CallFailure, Effects, Fatal, Input, Ready, RenewalReply, Replica, Reply, Task};

use crate::acquaintances::{Acquaintances, OTHER_DISK};
use crate::brief::are_brief;
use crate::clock::{Moment, Turn};
use crate::inbound::REMOVED;
use crate::inbox::Worker;
use crate::links::Links;
use crate::shared::{ApplyTask, JournalTask, Shared, StopReason};
use crate::snapshots;

/// How often peers' progress is copied out for status.
const STANDING_EVERY: Duration = Duration::from_millis(100);

/// With more watchers than these on this node, telling them is left to the thread that owns the state.
const WATCHERS_MAX: u64 = 64;

/// Ticks after which a founder that waits for others says so, again and again.
const SAY_SO_TICKS: u64 = 100;

/// Feeds the replica and performs what it wants done.
pub struct ConsensusWorker<D, L> {
    shared: Arc<Shared>,
    replica: Replica,
    links: L,
    disk: D,
    acquaintances: Arc<Acquaintances<D>>,
    heartbeat: Duration,
    next_tick: Duration,
    /// Ticks spent waiting for the other founders.
    waited: u64,
    /// When the standing was last copied out.
    copied: Duration,
    /// The last ready handed to the journal and not reported durable yet.
    at_journal: Option<u64>,
    /// A commit index that was not worth a write of its own.
    unwritten: Option<HardState>,
    /// Term and leader as last copied out.
    known: (Term, Option<NodeId>),
    /// Why this node must stop, once it was found out.
    fatal: Option<Fatal>,
}

impl<D: Disk + Clone + 'static, L: Links> Worker<Input> for ConsensusWorker<D, L> {
    fn take_turn(&mut self, inputs: &mut Vec<Input>, now: Moment) -> Turn {
        for input in inputs.drain(..) {
            if let Input::Persisted { number } = input
                && self.at_journal == Some(number)
            {
                self.at_journal = None;
            }
            let decides_on_snapshot = matches!(input, Input::SnapshotReceived { .. });
            self.replica.step(input);
            if decides_on_snapshot {
                self.settle();
                self.shared.apply.push(ApplyTask::DropReceived);
            }
        }
        if now.steady >= self.next_tick {
            self.introduce();
            self.replica.step(Input::Tick { now: now.wall });
            // After a stall one tick is due, not all those missed: nobody else's time was ours.
            self.next_tick = (self.next_tick + self.heartbeat).max(now.steady);
        }
        self.settle();
        if self.stop_if_fatal() {
            return Turn::Ended;
        }
        if now.steady.saturating_sub(self.copied) >= STANDING_EVERY {
            self.copied = now.steady;
            self.copy_standing();
            self.heed_refusals();
        }
        Turn::WaitAtMost(self.next_tick.saturating_sub(now.steady))
    }
}

impl<D: Disk + Clone + 'static, L: Links> ConsensusWorker<D, L> {
    pub(crate) fn new(
        shared: Arc<Shared>,
        replica: Replica,
        links: L,
        disk: D,
        acquaintances: Arc<Acquaintances<D>>,
        heartbeat: Duration,
    ) -> Self {
        ConsensusWorker {
            shared,
            replica,
            links,
            disk,
            acquaintances,
            heartbeat,
            next_tick: Duration::ZERO,
            waited: 0,
            copied: Duration::ZERO,
            at_journal: None,
            unwritten: None,
            known: (Term(0), None),
            fatal: None,
        }
    }

    /// Whether this node may make promises; only a founder that has not met all others may not.
    #[must_use]
    pub fn is_introduced(&self) -> bool {
        self.replica.is_introduced()
    }

    /// Takes one turn with whatever has arrived.
    pub fn turn(&mut self, now: Moment) -> Turn {
        let mut inputs = Vec::new();
        match self.shared.consensus.take(&mut inputs) {
            true => self.take_turn(&mut inputs, now),
            false => Turn::Ended,
        }
    }

    /// Tells the replica once every other founder has accepted this node's greeting, and so taken note of
    /// its disk. Voters do not wait for those who only learn: these wait for everybody, and so both know each other
    /// before both can have a vote.
    fn introduce(&mut self) {
        if self.replica.is_introduced() {
            return;
        }
        let me = self.shared.identity.node;
        let founders = &self.shared.identity.first_members;
        let learns = |member: &Member| member.role == MemberRole::Learner;
        let i_learn = founders.iter().any(|member| member.id == me && learns(member));
        let others = founders.iter().filter(|member| member.id != me && (i_learn || !learns(member)));
        let mut missing = Vec::new();
        for founder in others {
            let accepts = self.links.link_state(founder.id).is_some_and(|state| state.accepted);
            // What cannot be written down now is tried again with the next tick.
            let noted = accepts && self.acquaintances.accepted_by(founder.id).is_ok();
            if !noted && !self.acquaintances.was_accepted_by(founder.id) {
                missing.push(founder.name.as_str());
            }
        }
        if missing.is_empty() {
            return self.replica.step(Input::Introduced);
        }
        self.waited += 1;
        if self.waited.is_multiple_of(SAY_SO_TICKS) {
            tracing::warn!(
                missing = missing.join(", "),
                "waiting for the other founders: each must have been met once before this one takes part"
            );
        }
    }

    /// Performs effects until there are none: some are done at once and bring new ones.
    fn settle(&mut self) {
        loop {
            let effects = self.replica.effects();
            if !self.perform(effects) {
                break;
            }
        }
        let known = (self.replica.term(), self.replica.leader());
        if self.known != known {
            self.known = known;
            self.shared.term.store(known.0.0, Ordering::Relaxed);
            self.copy_standing();
        }
    }

    /// `true`: something was done at once that may bring new effects.
    fn perform(&mut self, effects: Effects) -> bool {
        self.send(&effects.frames);
        let again = self.persist(effects.persist);
        if !effects.tasks.is_empty() {
            let changes_leader = effects.tasks.iter().any(|task| matches!(task, Task::Leading(_)));
            self.carry_out(effects.tasks);
            if changes_leader {
                self.copy_standing();
            }
        }
        effects.replies.into_iter().for_each(|reply| self.reply(reply));
        for wanted in effects.snapshots {
            snapshots::send(&self.shared, &self.disk, &self.links, wanted);
        }
        self.shared.journal.push_all(effects.fetches.into_iter().map(JournalTask::Fetch));
        if effects.take_snapshot {
            self.shared.apply.push(ApplyTask::TakeSnapshot);
        }
        if let Some(members) = effects.members {
            self.links.set_peers(&Shared::peer_addresses(&members));
            *self.shared.members.lock() = self.replica.members().clone();
        }
        for (peer, fault) in effects.faults {
            tracing::warn!(peer = %format_args!("{peer:x}"), %fault, "a peer sent something improper");
        }
        if let Some(fatal) = effects.fatal {
            self.fatal.get_or_insert(fatal);
        }
        again
    }

    /// Has the state changed and read, here and now if that is soon done.
    fn carry_out(&self, tasks: Vec<Task>) {
        let few_watch = self.shared.watchers.load(Ordering::Relaxed) <= WATCHERS_MAX;
        let here = few_watch && are_brief(&tasks) && !self.shared.state.is_locked();
        let tasks = tasks.into_iter().map(ApplyTask::Do);
        if here { self.shared.apply.push_and_run(tasks) } else { self.shared.apply.push_all(tasks) }
    }

    /// One lock and one wake-up per peer, however many frames there are.
    fn send(&self, frames: &[(NodeId, Bytes)]) {
        let mut rest = frames;
        while let Some((to, _)) = rest.first() {
            let count = rest.iter().take_while(|(other, _)| other == to).count();
            let (same, after) = rest.split_at(count);
            self.links.send_all(*to, same.iter().map(|(_, frame)| frame.clone()).collect());
            rest = after;
        }
    }

    /// Hands what must be durable to the journal. What needs no disk, and follows nothing that does,
    /// is done here and now.
    fn persist(&mut self, ready: Vec<Ready>) -> bool {
        let mut again = false;
        for mut next in ready {
            if tidelock_model::planted!(PromiseNotPersisted) {
                next.hard_state = None;
            }
            let idle = next.entries.is_empty() && next.install.is_none() && !next.must_sync;
            if idle {
                self.unwritten = next.hard_state.take().or(self.unwritten);
            }
            if idle && self.at_journal.is_none() {
                self.send(&next.send_after);
                self.replica.step(Input::Persisted { number: next.number });
                again = true;
                continue;
            }
            if !idle {
                next.hard_state = next.hard_state.or(self.unwritten.take());
            }
            self.at_journal = Some(next.number);
            if tidelock_model::planted!(LoneNodeAcksBeforeSync) && self.replica.members().by_id.len() == 1 {
                self.replica.step(Input::Persisted { number: next.number });
                again = true;
            }
            self.shared.journal.push(JournalTask::Persist(next));
        }
        again
    }

    fn reply(&self, reply: Reply) {
        let shared = &self.shared;
        let waited = shared.request_timeout;
        match reply {
            Reply::ProposalFailed { number, why } => {
                shared.proposals_failed.fetch_add(1, Ordering::Relaxed);
                let error = match why {
                    CallFailure::TimedOut => ProposeError::OutcomeUnknown { waited },
                    CallFailure::NoLeader => ProposeError::NoLeader,
                };
                shared.proposals.answer(number, Err(error));
            }
            Reply::ReadFailed { token, why } => {
                let error = match why {
                    CallFailure::TimedOut => ReadError::Timeout { waited },
                    CallFailure::NoLeader => ReadError::NoLeader,
                };
                shared.reads.answer(token, Err(error));
            }
            Reply::LeaseFailed { token } => shared.leases.answer(token, Err(ReadError::Timeout { waited })),
            Reply::Lease(reply) => shared.leases.answer(reply.token, Ok(reply.info)),
            Reply::RenewalFailed { token } => shared.renewals.answer(token, Err(ReadError::Timeout { waited })),
            Reply::Renewed(RenewalReply { token, gone, ending }) => {
                shared.renewals.answer(token, Ok(Renewed { gone, ending }));
            }
            Reply::Members { token, result } => shared.member_calls.answer(token, result),
            Reply::Transferred { token, result } => shared.transfers.answer(token, result),
        }
    }

    fn copy_standing(&self) {
        let standing = self.replica.standing();
        self.shared.leader_full.store(standing.leader_full, Ordering::Relaxed);
        *self.shared.standing.lock() = standing;
    }

    /// A peer of this cluster that refuses this node as removed has carried out the removal; one that knew
    /// it with another disk knows of promises it has lost.
    fn heed_refusals(&mut self) {
        let first = self.shared.identity.first_members.iter().map(|member| member.id);
        let peers: BTreeSet<NodeId> = match self.replica.leader() {
            // Whoever is led is told by the log, unless it is the leader who refuses it. A learner seeks no election, so
            // it would wait for that leader for ever.
            Some(leader) => BTreeSet::from([leader]),
            None => first.chain(self.replica.members().by_id.keys().copied()).collect(),
        };
        for peer in peers {
            let problem = self.links.link_state(peer).and_then(|state| state.problem).unwrap_or_default();
            // About this node, not merely in these words: a peer may be told of its own removal.
            let me = self.shared.identity.node;
            if problem.contains(&format!("member {me:x} {REMOVED}")) {
                self.fatal = Some(Fatal::Removed);
            } else if problem.contains(&format!("member {me:x} {OTHER_DISK}")) {
                self.fatal = Some(Fatal::LostDisk);
            }
        }
    }

    fn stop_if_fatal(&mut self) -> bool {
        let Some(fatal) = self.fatal.take() else { return false };
        self.shared.stop(StopReason::Fatal(fatal));
        true
    }
}
