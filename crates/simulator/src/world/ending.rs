//! The end of a run: everything is healed, the cluster must come to itself within a bound, and what happened
//! is judged.

mod native;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use tidelock_face_zookeeper::wire as znodes;
use tidelock_model::native_keys::is_session;
use tidelock_model::{LeaseId, NodeId};

use super::{Event, World};
use crate::check::{self, Violation, healed, session_ids};
use crate::coverage;
use crate::history::{History, Micros, Observation, Request, Step, Told, TreeChange};
use crate::machine::{Fate, Machine};
use crate::plan::{MILLISECOND, Plan, SECOND};

/// How long clients go on after everything was healed.
const GO_ON: Micros = 3 * SECOND;
/// How long watchers are given at the very end.
const LAST_EVENTS: Micros = 2_500 * MILLISECOND;
/// How long what was decided in the last moment, such as the end of a lease, may take to reach everybody. A member that
/// joined then is sent a snapshot, and a slow disk takes seconds to write one.
const SETTLE: Micros = 10 * SECOND;
/// How often it is looked whether it has.
const SETTLE_EVERY: Micros = 10 * MILLISECOND;
/// One seed in so many is idle for this long before it ends.
const IDLE_EVERY: u64 = 4;
const IDLE: Micros = 20 * SECOND;
/// How often it is looked whether everybody is done.
const LOOK_EVERY: Micros = 100 * MILLISECOND;

/// What came of a run.
pub struct Outcome {
    /// The plan it followed.
    pub plan: Plan,
    /// What must not have happened.
    pub violations: Vec<Violation>,
    /// Over everything that happened, in order.
    pub trace_hash: u128,
    /// How much happened.
    pub events: u64,
    /// Virtual time that passed.
    pub simulated: Micros,
    /// What was reached, how often.
    pub coverage: BTreeMap<String, u64>,
    /// Requests asked, and answered with certainty.
    pub operations: (u64, u64),
    /// Lines for people, if they were kept.
    pub lines: Vec<String>,
}

impl World {
    pub(super) fn heal_and_judge(mut self) -> Outcome {
        self.heal();
        let deadline = self.now() + self.plan.healing;
        self.live_until(self.now() + GO_ON);
        self.setup.stop();
        self.wait_for_clients(deadline);
        self.setup.last_look();
        self.wait_for_clients(deadline);
        if self.plan.seed.is_multiple_of(IDLE_EVERY) {
            // Long enough for every lease that is left to end.
            self.live_until(self.now() + IDLE);
        }
        self.live_until(self.now() + LAST_EVENTS);
        if self.setup.working() > 0 {
            let message = format!("{} clients got no answer long after everything was healed", self.setup.working());
            self.violate("liveness", "healing", message);
        }
        self.dismiss_who_takes_no_part();
        self.settle();
        self.judge()
    }

    fn heal(&mut self) {
        let now = self.now();
        self.trace.numbers(now, None, "healed", &[]);
        self.network.heal_all();
        let nodes: Vec<_> = self.machines.keys().copied().collect();
        for node in nodes {
            self.with(node, |machine| machine.disk.heal());
            self.with(node, |machine| machine.slow = 1);
            self.doors.block(node, false);
            if self.machines[&node].paused {
                self.resume(node);
            }
            if let Fate::Down { .. } = self.machines[&node].fate
                && self.machines[&node].life.is_none()
            {
                self.with(node, |machine| machine.fate = Fate::Down { until: now });
                self.after(MILLISECOND, Event::Start(node));
            }
        }
        let stamp = self.recorder.stamp();
        let (drift, election) = (self.plan.clock_drift_permille(), 2 * self.plan.timing.election());
        self.recorder.with(|history| {
            history.bounds.healed = Some(stamp);
            history.bounds.clock_drift_permille = drift;
            history.bounds.election = election;
        });
    }

    fn wait_for_clients(&mut self, deadline: Micros) {
        while self.setup.working() > 0 && self.now() < deadline {
            self.live_until(self.now() + LOOK_EVERY);
        }
    }

    fn settle(&mut self) {
        let deadline = self.now() + SETTLE;
        while self.now() < deadline && !self.recorder.with(|history| healed::have_converged(history)) {
            self.live_until(self.now() + SETTLE_EVERY);
        }
    }

    fn judge(mut self) -> Outcome {
        let ended = self.recorder.stamp();
        self.recorder.with(|history| history.bounds.ended = Some(ended));
        let history = self.recorder.finish();
        self.count(&history);
        self.judge_removals(&history);
        self.trace_history(&history);
        let mut violations = std::mem::take(&mut self.violations);
        violations.extend(check::all(&history));
        let certain = |told: &Told| matches!(told, Told::Answer(_) | Told::Error(_));
        let answered = history.operations.iter().filter(|operation| certain(&operation.result)).count();
        Outcome {
            trace_hash: self.trace.hash(),
            events: self.trace.events(),
            simulated: self.clock.now(),
            coverage: self.coverage.totals(),
            operations: (history.operations.len() as u64, answered as u64),
            lines: self.trace.lines().map(str::to_owned).collect(),
            violations,
            plan: self.plan,
        }
    }

    /// Some founders take no part for good, and need not catch up: those on a new disk, whether or not they
    /// noticed, and those that have not met another founder who is gone.
    fn dismiss_who_takes_no_part(&mut self) {
        let someone_is_gone = self.machines.values().any(|machine| machine.fate == Fate::Gone);
        let outside = |machine: &Machine| {
            let introduced = machine.life.as_ref().is_some_and(|life| life.workers.consensus.is_introduced());
            machine.life.is_some() && (machine.wiped || (!introduced && someone_is_gone))
        };
        let outsiders: Vec<NodeId> =
            self.machines.values().filter(|machine| outside(machine)).map(|machine| machine.id).collect();
        for node in outsiders {
            self.end_life(node, "takes no part", |_| true);
        }
        self.executor.run_ready();
    }

    /// M1: who stopped because it was removed must have been.
    fn judge_removals(&mut self, history: &History) {
        let mut removed = BTreeSet::new();
        for (_, observation) in &history.observations {
            if let Observation::Members { removed: some, .. } = observation {
                removed.extend(some.iter().copied());
            }
        }
        for node in std::mem::take(&mut self.said_removed).difference(&removed) {
            self.violate("M1", "removed", format!("node {node} stopped as removed, and nobody ever removed it"));
        }
    }

    fn count(&self, history: &History) {
        let revoked = history.operations.iter().filter_map(|operation| match operation.request {
            Request::Revoke { lease } => Some(lease),
            _ => None,
        });
        let revoked: BTreeSet<i64> = revoked.collect();
        let sessions: BTreeSet<i64> = session_ids(history).collect();
        for (_, observation) in &history.observations {
            if let Observation::LeaseEnded { lease, .. } = observation
                && !sessions.contains(lease)
                && !is_session(LeaseId(*lease))
            {
                self.coverage.add(coverage::LEASE_EXPIRED, u64::from(!revoked.contains(lease)));
            }
        }
        self.count_znodes(history);
        native::count(&self.coverage, history);
    }

    fn count_znodes(&self, history: &History) {
        let mut closed = BTreeSet::new();
        for log in &history.znodes {
            let mut restoring = false;
            for (_, step) in &log.steps {
                match step {
                    Step::Asked { request: znodes::Request::CloseSession, .. } => {
                        closed.extend(log.session().map(|(id, _)| id));
                    }
                    Step::Asked { request: znodes::Request::SetWatches { .. }, .. } => restoring = true,
                    Step::Asked { .. } => {}
                    Step::Replied { .. } => restoring = false,
                    Step::Fired { .. } => {
                        self.coverage.add(coverage::ZNODE_WATCH_CAUGHT_UP, u64::from(restoring));
                    }
                }
            }
        }
        for changes in history.ledger.tree.values() {
            for change in changes {
                let TreeChange::Session { id, generation: None } = change else { continue };
                self.coverage.add(coverage::SESSION_EXPIRED, u64::from(!closed.contains(id)));
                self.coverage.add(coverage::EPHEMERALS_WENT, u64::from(changes.len() > 1));
            }
        }
    }

    /// What clients were told is part of what must be the same in two runs.
    fn trace_history(&mut self, history: &History) {
        let mut text = String::new();
        for operation in &history.operations {
            text.clear();
            let _ = write!(text, "{:?} {:?} {:?}", operation.called, operation.returned, operation.result);
            self.trace.event(operation.called.at, Some(operation.node), "asked", text.as_bytes(), || {
                format!("client {}: {:?} -> {:?}", operation.client, operation.request, operation.result)
            });
        }
        for call in &history.native {
            text.clear();
            let _ = write!(text, "{:?} {:?} {:?}", call.called, call.returned, call.told);
            self.trace.event(call.called.at, Some(call.node), "native", text.as_bytes(), || {
                format!("client {}: {:?} -> {:?}", call.client, call.ask, call.told)
            });
        }
        for log in &history.znodes {
            text.clear();
            let _ = write!(text, "{:?} {:?}", log.greeted, log.closed);
            self.trace.event(log.called.at, Some(log.node), "connected", text.as_bytes(), || {
                let (client, wanted, seen) = (log.client, log.wanted, log.seen);
                format!("client {client} with session {wanted:x} having seen {seen}: {text}")
            });
            for (stamp, step) in &log.steps {
                let step = format!("{step:?}");
                self.trace.event(stamp.at, Some(log.node), "spoke", step.as_bytes(), || {
                    format!("client {}: {step}", log.client)
                });
            }
        }
    }
}
