//! The world of one run: all machines, what is between them, and one list of what happens next.
//!
//! Everything that happens is an [`Event`] at a virtual time. The loop takes the earliest one, lets it happen,
//! lets the clients react, and puts down what follows from it. Nothing else moves: the nodes' workers get their
//! turns from here, their frames are carried from here, their clocks are told the time from here. Which of
//! several things comes first is drawn from the seed.
//!
//! `faults.rs` strikes, `connections.rs` carries frames and snapshots, `ending.rs` heals and judges.

mod connections;
mod ending;
mod faults;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use tidelock_journal::memory_disk::MemoryDisk;
use tidelock_model::{ClusterId, Member, MemberRole, NodeId, Term};
use tidelock_node::{Bootstrap, Draws, NodeConfig, NodeLimits, SnapshotJob, StopReason};
use tidelock_replica::Fatal;
use tidelock_replica::watch_hub::QueueLimits;

use crate::check::Violation;
use crate::client::{Recorder, Surroundings};
use crate::coverage::{self, Coverage};
use crate::doors::Doors;
use crate::executor::{Clock, Executor};
use crate::history::{Micros, Observation};
use crate::machine::{Fate, Machine, Worker};
use crate::native_push;
use crate::network::{CutId, Delivery, Network};
use crate::plan::{MILLISECOND, Plan, SECOND};
use crate::random::Random;
use crate::tap::Scribe;
use crate::trace::{Lines, Trace};
use crate::workload::{Order, Setup};
use crate::zookeeper::{self, SimulatedOutside};

use connections::Transfer;
pub use ending::Outcome;

/// The cluster all runs found.
const CLUSTER: ClusterId = ClusterId(0x51);
/// How long a worker may take to get to what waits for it, usually.
const WAKE_UP: (Micros, Micros) = (5, 400);
/// How long until a node that stopped by itself is started again.
const OPERATOR_PAUSE: Micros = SECOND;

/// Something that happens.
enum Event {
    /// A worker of this life has its turn.
    Turn(NodeId, u64, Worker),
    /// A frame arrives.
    Arrive(Delivery),
    /// The first tries to connect to the second.
    Connect(NodeId, NodeId),
    /// Nothing was heard on this link for long, if it is still cut.
    Silence(NodeId, NodeId),
    /// A snapshot on its way gets a piece further.
    Carry(u64),
    /// A snapshot being taken gets a piece further.
    Take(u64),
    /// A fault of the plan strikes.
    Strike(usize),
    /// A machine is started.
    Start(NodeId),
    /// A node that was asked to stop does.
    FinishStop(NodeId, u64),
    Resume(NodeId),
    Mend(CutId),
    Flap {
        cut: CutId,
        period: Micros,
        until: Micros,
    },
    DiskHasRoom(NodeId),
    DiskIsFast(NodeId),
    ClientsReturn(NodeId),
}

/// The world of one run.
pub struct World {
    plan: Plan,
    clock: Clock,
    executor: Executor,
    events: BTreeMap<(Micros, u64), Event>,
    sequence: u64,
    machines: BTreeMap<NodeId, Machine>,
    founders: Vec<Member>,
    network: Network,
    random: Random,
    disk_random: Random,
    boots: u64,
    doors: Doors,
    recorder: Recorder,
    scribe: Scribe,
    coverage: Coverage,
    setup: Setup,
    trace: Trace,
    transfers: BTreeMap<u64, Transfer>,
    taking: BTreeMap<u64, (NodeId, u64, SnapshotJob<MemoryDisk>)>,
    next_number: u64,
    /// Links whose next attempt to connect is in the list.
    connecting: BTreeSet<(NodeId, NodeId)>,
    leaders: BTreeSet<(Term, NodeId)>,
    /// When the last leader whose life ended did.
    leader_ended: Option<Micros>,
    /// Founders that have met all others.
    introduced: BTreeSet<NodeId>,
    /// Nodes that stopped because they were removed, as they said.
    said_removed: BTreeSet<NodeId>,
    violations: Vec<Violation>,
    limits: NodeLimits,
}

impl World {
    /// A world in which nothing has happened yet.
    #[must_use]
    pub fn new(plan: Plan, lines: Lines) -> World {
        let random = Random::new(plan.seed);
        let (clock, doors, coverage, executor) = (Clock::new(), Doors::new(), Coverage::default(), Executor::new());
        let recorder = Recorder::new(clock.clone());
        let around = Surroundings::new(clock.clone(), doors.clone(), recorder.clone(), coverage.clone());
        let setup = Setup::new(Rc::new(around), executor.spawner(), random.fork("clients"));
        let network = Network::new(plan.network, random.fork("network"), coverage.clone());
        let founder = |id: u64| Member {
            id: NodeId(id),
            name: format!("n{id}"),
            peer_addresses: vec![format!("host-{id}:1")],
            client_urls: vec![],
            role: MemberRole::Voter,
            zookeeper: None,
        };
        let limits = limits(&plan, &mut random.fork("limits"));
        World {
            clock,
            executor,
            events: BTreeMap::new(),
            sequence: 0,
            machines: BTreeMap::new(),
            founders: (1..=plan.nodes).map(founder).collect(),
            network,
            disk_random: random.fork("disks"),
            random: random.fork("world"),
            boots: 0,
            doors,
            scribe: Scribe::new(recorder.clone()),
            recorder,
            coverage,
            setup,
            trace: Trace::new(lines),
            transfers: BTreeMap::new(),
            taking: BTreeMap::new(),
            next_number: 0,
            connecting: BTreeSet::new(),
            leaders: BTreeSet::new(),
            leader_ended: None,
            introduced: BTreeSet::new(),
            said_removed: BTreeSet::new(),
            violations: Vec::new(),
            limits,
            plan,
        }
    }

    /// Lives through the whole plan and judges what happened.
    #[must_use]
    pub fn run(mut self) -> Outcome {
        for founder in self.founders.clone() {
            let (cluster, node, members) = (CLUSTER, founder.id, self.founders.clone());
            self.add_machine(node, Bootstrap::Found { cluster, node, members });
        }
        for (name, clients) in self.plan.workloads.clone() {
            self.setup.start(name, clients);
        }
        for (place, scheduled) in self.plan.schedule.clone().iter().enumerate() {
            self.at(scheduled.at, Event::Strike(place));
        }
        self.live_until(self.plan.safety);
        self.heal_and_judge()
    }

    fn now(&self) -> Micros {
        self.clock.now()
    }

    fn at(&mut self, time: Micros, event: Event) {
        self.sequence += 1;
        self.events.insert((time.max(self.now()), self.sequence), event);
    }

    fn after(&mut self, wait: Micros, event: Event) {
        self.at(self.now() + wait, event);
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Lets everything happen up to `end`.
    fn live_until(&mut self, end: Micros) {
        loop {
            if self.executor.run_ready() > 0 {
                self.look_after_all();
            }
            let event = self.events.first_key_value().map(|((at, _), _)| *at);
            let timer = self.clock.next_due();
            let next = [event, timer].into_iter().flatten().min().unwrap_or(end);
            if next > end {
                self.clock.advance_to(end);
                return;
            }
            self.clock.advance_to(next);
            if event == Some(next)
                && let Some(((_, _), event)) = self.events.pop_first()
            {
                self.happen(event);
            } else if event.is_none() && timer.is_none() {
                return;
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Turn(node, boot, worker) => self.turn(node, boot, worker),
            Event::Arrive(delivery) => self.arrive(delivery),
            Event::Connect(from, to) => self.connect(from, to),
            Event::Silence(from, to) => self.silence(from, to),
            Event::Carry(transfer) => self.carry(transfer),
            Event::Take(job) => self.take_snapshot_further(job),
            Event::Strike(place) => self.strike(place),
            Event::Start(node) => self.start(node),
            Event::FinishStop(node, boot) => self.finish_stop(node, boot),
            Event::Resume(node) => self.resume(node),
            Event::Mend(cut) => self.network.mend(cut),
            Event::Flap { cut, period, until } => self.flap(cut, period, until),
            Event::DiskHasRoom(node) => self.with(node, |machine| machine.disk.set_capacity(None)),
            Event::DiskIsFast(node) => self.with(node, |machine| machine.slow = 1),
            Event::ClientsReturn(node) => self.doors.block(node, false),
        }
    }

    fn with(&mut self, node: NodeId, change: impl FnOnce(&mut Machine)) {
        if let Some(machine) = self.machines.get_mut(&node) {
            change(machine);
        }
    }

    fn add_machine(&mut self, node: NodeId, bootstrap: Bootstrap) {
        if self.machines.contains_key(&node) {
            return;
        }
        let timing = self.plan.timing;
        let config = NodeConfig {
            name: format!("n{node}"),
            data_dir: "simulated".into(),
            client_urls: Vec::new(),
            bootstrap,
            heartbeat: Duration::from_micros(timing.heartbeat),
            election_timeout: Duration::from_micros(timing.election()),
            request_timeout: Duration::from_micros(timing.request_timeout),
            limits: self.limits.clone(),
        };
        self.machines.insert(node, Machine::new(node, config));
        let wait = self.random.between(0, 20 * MILLISECOND);
        self.after(wait, Event::Start(node));
    }

    fn start(&mut self, node: NodeId) {
        let now = self.now();
        let due = |machine: &&mut Machine| matches!(machine.fate, Fate::Down { until } if until <= now);
        let Some(machine) = self.machines.get_mut(&node).filter(due) else { return };
        self.boots += 1;
        let draws = Draws { boot: self.random.below(u64::MAX), disk: self.random.below(u64::MAX) };
        let started = machine.start(now, draws);
        let (is_off, damaged) = (machine.disk.is_off(), machine.damaged);
        self.trace.numbers(now, Some(node), "start", &[draws.boot, u64::from(started.is_ok())]);
        match started {
            // Rot in a record that was not known to be durable yet looks like a write torn by the power cut: a
            // stated limit of the journal. Nobody can tell what such a node acknowledged.
            Ok(true) if damaged => {
                self.with(node, |machine| (machine.life, machine.fate) = (None, Fate::Gone));
            }
            Ok(_) => self.started(node, draws.boot),
            Err(_) if is_off => self.lose_power(node),
            Err(error) if damaged => {
                self.coverage.hit(coverage::DAMAGE_REFUSED);
                self.trace.note(now, Some(node), || format!("refused its damaged disk: {error}"));
                self.with(node, |machine| machine.fate = Fate::Gone);
            }
            Err(error) => {
                self.violate("R2", "start", format!("node {node} refused a sound disk: {error}"));
                self.with(node, |machine| machine.fate = Fate::Gone);
            }
        }
    }

    fn started(&mut self, node: NodeId, boot: u64) {
        if self.boots > self.plan.nodes {
            self.coverage.hit(coverage::RESTART);
        }
        self.recorder.observe(Observation::Started { node, boot });
        let Some(life) = self.machines.get(&node).and_then(|machine| machine.life.as_ref()) else { return };
        let coordinator = life.workers.coordinator.clone();
        let listening = coordinator.clone();
        self.doors.open(node, coordinator.clone());
        if self.has("znodes") {
            let outside = SimulatedOutside::new(self.clock.clone(), self.plan.seed, boot);
            zookeeper::start(&self.doors, node, coordinator, outside, &self.executor.spawner());
        }
        if self.has("native") {
            native_push::start(&self.doors, node, listening, &self.recorder, &self.executor.spawner());
        }
        for worker in Worker::ALL {
            self.wake(node, worker, 1);
        }
        self.look_after(node);
    }

    /// Whether these clients take part.
    fn has(&self, workload: &str) -> bool {
        self.plan.workloads.iter().any(|(name, _)| *name == workload)
    }

    /// Has a worker take its turn after at most `wait`.
    fn wake(&mut self, node: NodeId, worker: Worker, wait: Micros) {
        let at = self.now() + wait;
        let Some(machine) = self.machines.get_mut(&node) else { return };
        let Some(life) = machine.life.as_mut() else { return };
        let due = &mut life.due[worker as usize];
        if due.is_none_or(|due| at < due) {
            *due = Some(at);
            let boot = life.boot;
            self.at(at, Event::Turn(node, boot, worker));
        }
    }

    fn turn(&mut self, node: NodeId, boot: u64, worker: Worker) {
        let now = self.now();
        let Some(machine) = self.machines.get_mut(&node) else { return };
        let paused = machine.paused;
        let Some(life) = machine.life.as_mut().filter(|life| life.boot == boot) else { return };
        if life.due[worker as usize] != Some(now) {
            return;
        }
        life.due[worker as usize] = None;
        if paused {
            return;
        }
        self.trace.numbers(now, Some(node), worker.name(), &[]);
        if let Some(wait) = machine.turn(worker, now) {
            self.wake(node, worker, wait);
        }
        self.look_after(node);
    }

    fn look_after_all(&mut self) {
        let nodes: Vec<NodeId> = self.machines.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.look_after(node));
        while let Some(order) = self.setup.orders().take() {
            self.obey(order);
        }
    }

    /// Puts down what follows from what a node did.
    fn look_after(&mut self, node: NodeId) {
        let Some(machine) = self.machines.get(&node) else { return };
        if machine.disk.is_off() {
            return self.lose_power(node);
        }
        let Some(life) = machine.life.as_ref() else { return };
        let (boot, links, tap) = (life.boot, life.links.clone(), life.tap.clone());
        let (jobs, reason, leads) = (life.take_jobs(), life.workers.stopped(), life.workers.leads_in());
        self.write_down(node, boot, tap.take());
        self.notice_leader(node, leads);
        for (to, frame) in links.take_frames() {
            self.send(node, to, &frame);
        }
        for sending in links.take_snapshots() {
            self.begin_transfer(node, boot, sending);
        }
        if let Some(peers) = links.take_changed_peers() {
            self.peers_changed(node, &peers);
        }
        for job in jobs {
            let number = self.number();
            self.taking.insert(number, (node, boot, job));
            self.after(100, Event::Take(number));
        }
        if let Some(reason) = reason {
            return self.stopped_by_itself(node, &reason);
        }
        for worker in Worker::ALL {
            self.wake_if_it_has_work(node, worker);
        }
    }

    fn wake_if_it_has_work(&mut self, node: NodeId, worker: Worker) {
        let Some(machine) = self.machines.get(&node).filter(|machine| machine.is_awake()) else { return };
        if !machine.life.as_ref().is_some_and(|life| life.has_work(worker)) {
            return;
        }
        let wait = match worker {
            Worker::Journal => self.disk_time(node),
            Worker::Consensus | Worker::Apply => self.random.magnitude(WAKE_UP.0, WAKE_UP.1),
        };
        // One that is to have its turn soon anyway is not hurried: the draw above stands for how late it is.
        let soon = self.now() + wait;
        let life = self.machines.get(&node).and_then(|machine| machine.life.as_ref());
        let is_due = life.and_then(|life| life.due[worker as usize]).is_some_and(|due| due <= soon);
        if !is_due {
            self.wake(node, worker, wait);
        }
    }

    /// How long the disk takes for what waits.
    fn disk_time(&mut self, node: NodeId) -> Micros {
        let slow = self.machines.get(&node).map_or(1, |machine| machine.slow);
        let disk = self.plan.disk;
        let time = match self.disk_random.chance(disk.stall) {
            true => self.disk_random.between(disk.sync_max, disk.stall_max),
            false => self.disk_random.between(disk.sync_min, disk.sync_max),
        };
        (time * slow).max(1)
    }

    fn write_down(&mut self, node: NodeId, boot: u64, seen: Vec<crate::tap::Seen>) {
        for seen in seen {
            if seen.installed {
                self.coverage.hit(coverage::SNAPSHOT_INSTALLED);
            }
            self.coverage.add(coverage::PROPOSAL_RESENT, seen.duplicates);
            self.trace.event(self.clock.now(), Some(node), "applied", &seen.digest.to_le_bytes(), || {
                format!("up to {} at revision {}", seen.index, seen.revision)
            });
            if let Err(message) = self.scribe.write(node, boot, seen) {
                self.violate("R5", "ledger", message);
            }
        }
        self.notice_rare_paths(node);
    }

    fn notice_rare_paths(&mut self, node: NodeId) {
        let life = self.machines.get_mut(&node).and_then(|machine| machine.life.as_mut());
        let Some(life) = life else { return };
        let (lagged, trimmed) = (life.workers.apply.lagged(), life.workers.journal.first_index());
        self.coverage.add(coverage::WATCHER_LAGGING, lagged.saturating_sub(life.lagged));
        self.coverage.add(coverage::JOURNAL_TRIMMED, u64::from(trimmed > life.trimmed && life.trimmed.0 > 0));
        if life.workers.is_full() && !life.full {
            self.coverage.hit(coverage::DISK_FULL_SEEN);
        }
        (life.lagged, life.trimmed, life.full) = (lagged, trimmed, life.workers.is_full());
    }

    fn notice_leader(&mut self, node: NodeId, leads: Option<Term>) {
        if let Some(term) = leads
            && self.leaders.insert((term, node))
        {
            self.coverage.hit(coverage::LEADER_CHANGE);
            let soon = self.plan.timing.election() / 2;
            if self.leader_ended.take().is_some_and(|ended| self.now() < ended + soon) {
                self.coverage.hit(coverage::QUICK_SUCCESSION);
            }
            self.trace.numbers(self.clock.now(), Some(node), "leads", &[term.0]);
            self.recorder.observe(Observation::Leads { node, term });
        }
    }

    /// The node that leads in the newest term, if it is up.
    fn leader(&self) -> Option<NodeId> {
        let leads = |machine: &Machine| machine.life.as_ref().and_then(|life| life.workers.leads_in());
        self.machines.values().filter_map(|machine| Some((leads(machine)?, machine.id))).max().map(|(_, node)| node)
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Start { member, members } => {
                let (cluster, node) = (CLUSTER, member.id);
                self.add_machine(node, Bootstrap::Join { cluster, node, members });
            }
            Order::Stop { node } => {
                if self.machines.get(&node).is_some_and(|machine| machine.life.is_some()) {
                    self.end_life(node, "removed", |_| true);
                }
                self.with(node, |machine| machine.fate = Fate::Gone);
            }
        }
    }

    /// Ends a life; `keep` says what of the unsynced writes is on the disk afterwards.
    fn end_life(&mut self, node: NodeId, why: &str, mut keep: impl FnMut(&mut Random) -> bool) {
        let now = self.now();
        self.trace.note(now, Some(node), || why.to_owned());
        self.trace.numbers(now, Some(node), "ends", &[]);
        if self.leader() == Some(node) {
            self.leader_ended = Some(now);
        }
        self.doors.close(node);
        self.recorder.observe(Observation::Stopped { node, why: why.to_owned() });
        let Some(machine) = self.machines.get_mut(&node) else { return };
        machine.paused = false;
        machine.failed_io = false;
        machine.power_cut = None;
        machine.life = None;
        let random = &mut self.disk_random;
        machine.disk.crash(|_| keep(random));
        self.taking.retain(|_, (owner, _, _)| *owner != node);
        self.network.node_down(node);
        self.connections_end(node);
    }

    fn stopped_by_itself(&mut self, node: NodeId, reason: &StopReason) {
        let Some(machine) = self.machines.get(&node) else { return };
        let (damaged, wiped, failed) = (machine.damaged, machine.wiped, machine.failed_io);
        let why = reason.to_string();
        let fate = match reason {
            StopReason::Requested => Fate::Down { until: self.now() + OPERATOR_PAUSE },
            StopReason::JournalFailed(_) if failed || damaged => Fate::Down { until: self.now() + OPERATOR_PAUSE },
            // Whether that is true is judged at the end, when every removal is known.
            StopReason::Fatal(Fatal::Removed) => {
                self.said_removed.insert(node);
                Fate::Gone
            }
            StopReason::Fatal(Fatal::LostDisk) if wiped => Fate::Gone,
            StopReason::Fatal(Fatal::LostLog(_)) if damaged || wiped => Fate::Gone,
            other => {
                if matches!(other, StopReason::Fatal(Fatal::Diverged { .. })) {
                    self.coverage.hit(coverage::DIVERGENCE_STOP);
                }
                self.violate("R5", "stopped", format!("node {node} stopped by itself: {why}"));
                Fate::Gone
            }
        };
        self.end_life(node, &why, |_| true);
        self.with(node, |machine| machine.fate = fate);
        if let Fate::Down { until } = fate {
            self.at(until, Event::Start(node));
        }
    }

    fn violate(&mut self, invariant: &'static str, checker: &'static str, message: String) {
        self.trace.note(self.clock.now(), None, || format!("VIOLATION {invariant} {checker}: {message}"));
        self.violations.push(Violation { invariant, checker, message });
    }
}

/// Small limits, so that a minute of light work meets them all.
fn limits(plan: &Plan, random: &mut Random) -> NodeLimits {
    let timing = plan.timing;
    NodeLimits {
        proposals_waiting: timing.proposals_waiting as usize,
        snapshot_journal_bytes: timing.snapshot_journal_bytes,
        catch_up_entries: timing.catch_up_entries,
        segment_bytes: timing.segment_bytes,
        free_floor_bytes: 1,
        snapshot_page_bytes: random.between(256, 8 * 1024) as usize,
        watch_queue: QueueLimits { events: random.between(4, 64) as usize, bytes: 64 << 10 },
        ..NodeLimits::default()
    }
}
