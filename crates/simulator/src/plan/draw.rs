//! Draws a plan from a seed (swarm testing): each seed has its own subset of faults and its own rates.
//!
//! If every run had every fault, some bugs could never show: a partition hides what a long pause needs.
//! So some seeds are quiet, some have one kind of fault many times, most have some kinds, and a few have nearly
//! everything at once. Counts and durations are chosen so that, over many seeds, a majority can usually talk:
//! a cluster that is never available has no history to check.
//!
//! Each part draws from its own fork of the seed's stream, so a change to one part does not change the others.

use std::collections::BTreeSet;

use super::overrides::Selection;
use super::{
    DiskPlan, Fault, Keep, Kind, MILLISECOND, Mood, NetworkPlan, Overrides, Plan, SECOND, Scheduled, Shape, Target,
    Timing,
};
use crate::coverage;
use crate::history::Micros;
use crate::random::Random;

/// How long faults strike if nothing else is said.
const SAFETY: Micros = 60 * SECOND;
/// The time between the end of the last fault and the end of the phase.
const MARGIN: Micros = SECOND;
/// In most seeds the cluster finds itself before faults begin.
const SETTLING: Micros = 3 * SECOND;
/// No plan has more faults than this.
const FAULTS_MAX: u64 = 45;

/// Every workload: its name, how often a seed has it (in thousandths), and how many clients it has at least
/// and at most. The names are those of `crate::workload`. New ones go to the end: all are drawn in this order from
/// a stream of their own, so seeds that do not have the new one stay what they were.
pub const WORKLOADS: &[(&str, u64, u64, u64)] = &[
    ("registers", 900, 2, 6),
    ("transactions", 500, 1, 3),
    ("lists", 500, 1, 3),
    ("counters", 400, 1, 3),
    ("leases", 600, 1, 3),
    ("watches", 700, 1, 4),
    ("sessions", 500, 1, 3),
    ("bulk", 400, 1, 2),
    ("upkeep", 700, 1, 1),
    ("members", 250, 1, 1),
    ("locks", 200, 3, 5),
    ("auth", 200, 3, 6),
    ("znodes", 250, 2, 5),
    ("native", 400, 3, 6),
];

/// The names of what a network does to frames, as they are counted.
pub(super) const NETWORK_COUNTERS: &[&str] = &[
    coverage::FRAME_LOST,
    coverage::FRAME_DUPLICATED,
    coverage::FRAME_CORRUPTED,
    coverage::FRAME_REORDERED,
    coverage::FRAME_DELAYED,
];

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Plan {
        Plan::draw_selected(seed, &Overrides::default(), &Selection::default())
    }

    /// Draws with what the command line says, in terms of known kinds.
    pub(super) fn draw_selected(seed: u64, overrides: &Overrides, selection: &Selection) -> Plan {
        let random = Random::new(seed).fork("plan");
        let mut mood_random = random.fork("mood");
        let drawn = draw_mood(&mut mood_random);
        // Asked for certain faults, a seed without faults is of no use.
        let mood = if selection.is_restricted() && drawn == Mood::Quiet { Mood::Mixed } else { drawn };
        let nodes = overrides.nodes.unwrap_or_else(|| draw_nodes(&mut random.fork("nodes")));
        let safety = overrides.safety.unwrap_or(SAFETY);
        let timing = draw_timing(&mut random.fork("timing"));
        let (kinds, network_kinds) = draw_kinds(&mut random.fork("kinds"), mood, selection);
        let workloads = draw_workloads(&mut random.fork("workloads"));
        let destroyable = draw_destroyable(&mut random.fork("destroyable"), nodes, &workloads);
        Plan {
            seed,
            mood,
            nodes,
            network: draw_network(&mut random.fork("network"), &network_kinds),
            disk: draw_disk(&mut random.fork("disk"), mood),
            timing,
            workloads,
            schedule: Schedule::new(random.fork("schedule"), nodes, safety, destroyable, selection).draw(mood, &kinds),
            safety,
            // A few elections, since votes may split, then snapshots for those who were away, and the last
            // requests that wait for their timeouts.
            healing: 20 * timing.election() + 30 * SECOND,
        }
    }
}

fn draw_mood(random: &mut Random) -> Mood {
    match random.below(1000) {
        0..80 => Mood::Quiet,
        80..280 => Mood::Single,
        280..880 => Mood::Mixed,
        _ => Mood::Brutal,
    }
}

fn draw_nodes(random: &mut Random) -> u64 {
    match random.below(1000) {
        0..80 => 1,
        80..680 => 3,
        680..910 => 5,
        _ => 7,
    }
}

fn draw_timing(random: &mut Random) -> Timing {
    Timing {
        heartbeat: random.between(50, 100) * MILLISECOND,
        election_heartbeats: random.between(5, 20),
        request_timeout: random.between(1_000, 6_000) * MILLISECOND,
        snapshot_journal_bytes: random.magnitude(4 << 10, 256 << 10),
        catch_up_entries: random.magnitude(10, 1_000),
        // Small, so that files are changed often; large enough for the largest batch of small requests.
        segment_bytes: *random.pick(&[64 << 10, 64 << 10, 128 << 10, 256 << 10]),
        proposals_waiting: if random.chance(100) { random.between(4, 32) } else { 5_000 },
    }
}

/// Which kinds of faults a seed has, and what its network does.
fn draw_kinds(random: &mut Random, mood: Mood, selection: &Selection) -> (Vec<Kind>, BTreeSet<&'static str>) {
    let mut chosen = |all: &[Kind], permille| all.iter().copied().filter(|_| random.chance(permille)).collect();
    let mut kinds: Vec<Kind> = match mood {
        Mood::Quiet => Vec::new(),
        Mood::Single => vec![*random.pick(Kind::ALL)],
        Mood::Mixed => chosen(Kind::ALL, 400),
        Mood::Brutal => chosen(Kind::ALL, 800),
    };
    let permille = match mood {
        Mood::Quiet => 0,
        Mood::Single => 150,
        Mood::Mixed => 350,
        Mood::Brutal => 700,
    };
    let mut network: BTreeSet<_> = NETWORK_COUNTERS.iter().copied().filter(|_| random.chance(permille)).collect();
    if selection.is_restricted() {
        kinds = Kind::ALL.iter().copied().filter(|kind| selection.wants(kind.counter())).collect();
        network = NETWORK_COUNTERS.iter().copied().filter(|counter| selection.wants(counter)).collect();
    }
    network.retain(|counter| !selection.refuses(counter));
    (kinds, network)
}

fn draw_network(random: &mut Random, kinds: &BTreeSet<&'static str>) -> NetworkPlan {
    let delay_min = random.magnitude(100, 2 * MILLISECOND);
    let delay_max = delay_min + random.magnitude(100, 20 * MILLISECOND);
    let reorder = kinds.contains(coverage::FRAME_REORDERED);
    // In order, one frame that is held back holds back all behind it.
    let slow = if reorder { random.magnitude(100, 30_000) } else { random.magnitude(100, 2_000) };
    let slow_max = random.magnitude(50 * MILLISECOND, 2 * SECOND);
    let loss = random.magnitude(1, 300);
    let duplicate = random.magnitude(1, 100);
    let corrupt = random.magnitude(1, 20);
    let breaks = random.between(0, 500);
    let cut_loses = random.between(0, 1_000);
    // Everything is drawn before it is known what is wanted: leaving a kind out changes nothing else.
    let wanted = |counter, value| if kinds.contains(counter) { value } else { 0 };
    NetworkPlan {
        loss: wanted(coverage::FRAME_LOST, loss),
        duplicate: wanted(coverage::FRAME_DUPLICATED, duplicate),
        corrupt: wanted(coverage::FRAME_CORRUPTED, corrupt),
        delay_min,
        delay_max,
        slow: wanted(coverage::FRAME_DELAYED, slow),
        slow_max: slow_max.max(delay_max),
        reorder,
        breaks,
        cut_loses,
    }
}

fn draw_disk(random: &mut Random, mood: Mood) -> DiskPlan {
    let sync_min = random.magnitude(50, 2 * MILLISECOND);
    let sync_max = sync_min + random.magnitude(100, 10 * MILLISECOND);
    let stall = if random.chance(300) { random.between(1, 10) } else { 0 };
    DiskPlan {
        sync_min,
        sync_max,
        write_min: 10,
        write_max: random.magnitude(10, MILLISECOND),
        stall: if mood == Mood::Quiet { 0 } else { stall },
        stall_max: sync_max + random.magnitude(10 * MILLISECOND, SECOND),
    }
}

fn draw_workloads(random: &mut Random) -> Vec<(&'static str, u64)> {
    let mut workloads = Vec::new();
    for (name, permille, least, most) in WORKLOADS {
        // Both are drawn for each, so that one workload's chance does not change the others.
        let (wanted, clients) = (random.chance(*permille), random.between(*least, *most));
        if wanted {
            workloads.push((*name, clients));
        }
    }
    // Upkeep and members alone ask nothing that could be checked.
    if workloads.iter().all(|(name, _)| matches!(*name, "upkeep" | "members")) {
        workloads.insert(0, ("registers", 4));
    }
    workloads
}

/// The founders whose durable bytes may be destroyed: a minority, whatever becomes of the cluster.
fn draw_destroyable(random: &mut Random, nodes: u64, workloads: &[(&str, u64)]) -> Vec<u64> {
    let mut founders: Vec<u64> = (1..=nodes).collect();
    random.shuffle(&mut founders);
    let minority = nodes.saturating_sub(1) / 2;
    // Where members come and go only three voters may be left, and one is a minority of those. Elsewhere it is
    // only one half of the time, so that larger clusters keep some strength.
    let members_change = workloads.iter().any(|(name, _)| *name == "members");
    let only_one = random.chance(500) || members_change;
    founders.truncate(if only_one { minority.min(1) } else { minority } as usize);
    founders
}

/// Draws the faults of one plan.
struct Schedule<'a> {
    random: Random,
    nodes: u64,
    safety: Micros,
    /// The founders whose durable bytes may be destroyed.
    destroyable: Vec<u64>,
    /// Founders that were wiped already; a second time shows nothing new.
    wiped: BTreeSet<u64>,
    selection: &'a Selection,
}

impl Schedule<'_> {
    fn new(random: Random, nodes: u64, safety: Micros, destroyable: Vec<u64>, selection: &Selection) -> Schedule<'_> {
        Schedule { random, nodes, safety, destroyable, wiped: BTreeSet::new(), selection }
    }

    fn draw(mut self, mood: Mood, kinds: &[Kind]) -> Vec<Scheduled> {
        let possible: Vec<Kind> = kinds.iter().copied().filter(|kind| self.is_possible(*kind)).collect();
        let from = if self.random.chance(200) { 0 } else { SETTLING };
        let until = self.safety.saturating_sub(MARGIN);
        if possible.is_empty() || from >= until {
            return Vec::new();
        }
        let per_minute = match mood {
            Mood::Quiet => 0,
            Mood::Single => self.random.between(5, 18),
            Mood::Mixed => self.random.between(5, 25),
            Mood::Brutal => self.random.between(25, FAULTS_MAX),
        };
        let count = (per_minute * self.safety / SAFETY).min(FAULTS_MAX);
        let weighted: Vec<Kind> = possible.iter().flat_map(|kind| std::iter::repeat_n(*kind, weight(*kind))).collect();
        let mut schedule = Vec::new();
        let mut struck = [0; Kind::ALL.len()];
        for _ in 0..count {
            let kind = *self.random.pick(&weighted);
            let at = self.random.between(from, until - 1);
            let fault = self.fault(kind, until - at);
            struck[kind as usize] += 1;
            if let Some(fault) = fault.filter(|fault| struck[kind as usize] <= at_most(kind) && !self.refuses(fault)) {
                schedule.push(Scheduled { at, fault });
            }
        }
        schedule.sort_by_key(|scheduled| scheduled.at);
        schedule
    }

    fn is_possible(&self, kind: Kind) -> bool {
        let enough_nodes = !kind.parts() || self.nodes > 1;
        enough_nodes && (!kind.destroys() || !self.destroyable.is_empty())
    }

    fn refuses(&self, fault: &Fault) -> bool {
        let refuses = |counter| self.selection.refuses(counter);
        refuses(fault.kind().counter()) || fault.shape().is_some_and(|shape| refuses(shape.counter()))
    }

    /// A fault of this kind that takes at most `left`; `None` if it would be one too many.
    fn fault(&mut self, kind: Kind, left: Micros) -> Option<Fault> {
        let target = if kind.destroys() { self.destroyable() } else { self.target() };
        let down = self.lasting(0, 6 * SECOND).min(left);
        Some(match kind {
            Kind::Crash => Fault::Crash { target, down, keep: self.keep() },
            Kind::CrashAtWrite => {
                Fault::CrashAtWrite { target, after: self.random.magnitude(1, 200), down, keep: self.keep() }
            }
            Kind::CrashAll => Fault::CrashAll { down: down.min(3 * SECOND), keep: self.keep() },
            Kind::Stop => Fault::Stop { target, down },
            Kind::Pause => Fault::Pause { target, lasts: self.pause().min(left) },
            Kind::Wipe => {
                let Target::Founder(founder) = target else { return None };
                if !self.wiped.insert(founder) {
                    return None;
                }
                Fault::Wipe { target, down }
            }
            Kind::Partition => {
                Fault::Partition { shape: self.shape()?, lasts: self.lasting(200 * MILLISECOND, 12 * SECOND).min(left) }
            }
            Kind::Flap => Fault::Flap {
                shape: self.shape()?,
                period: self.random.magnitude(50 * MILLISECOND, 2 * SECOND),
                lasts: self.lasting(SECOND, 10 * SECOND).min(left),
            },
            Kind::DiskFull => Fault::DiskFull { target, lasts: self.lasting(SECOND, 10 * SECOND).min(left) },
            Kind::DiskSlow => Fault::DiskSlow {
                target,
                factor: self.random.magnitude(5, 200),
                lasts: self.lasting(SECOND, 8 * SECOND).min(left),
            },
            Kind::SyncError => Fault::SyncError { target },
            Kind::WriteError => Fault::WriteError { target },
            Kind::BitRot => Fault::BitRot { target, place: self.random.number() },
            Kind::Misdirect => Fault::Misdirect { target, place: self.random.number() },
            Kind::ClockRate => Fault::ClockRate { target, permille: self.signed(1, 50) },
            Kind::ClockJump => Fault::ClockJump { target, millis: self.signed(1, 3_600_000) },
            Kind::ClientsCutOff => {
                Fault::ClientsCutOff { target, lasts: self.lasting(200 * MILLISECOND, 10 * SECOND).min(left) }
            }
            Kind::FalseAlarm => Fault::FalseAlarm { target },
        })
    }

    fn target(&mut self) -> Target {
        let number = self.random.below(1 << 16);
        match self.random.below(100) {
            0..40 => Target::Leader,
            40..65 => Target::Follower(number),
            _ => Target::Any(number),
        }
    }

    fn destroyable(&mut self) -> Target {
        Target::Founder(*self.random.pick(&self.destroyable))
    }

    /// Half of the time any duration, half of the time more likely a short one.
    fn lasting(&mut self, low: Micros, high: Micros) -> Micros {
        if self.random.chance(500) { self.random.between(low, high) } else { self.random.magnitude(low, high) }
    }

    /// Mostly seconds; sometimes longer than any timeout there is.
    fn pause(&mut self) -> Micros {
        let most = if self.random.chance(150) { 30 * SECOND } else { 5 * SECOND };
        self.lasting(100 * MILLISECOND, most)
    }

    fn keep(&mut self) -> Keep {
        match self.random.below(100) {
            0..30 => Keep::Nothing,
            30..50 => Keep::Everything,
            _ => Keep::Some(self.random.between(1, 999)),
        }
    }

    /// A shape that parts somebody in a cluster of this size.
    fn shape(&mut self) -> Option<Shape> {
        let wanted: Vec<&str> =
            Shape::COUNTERS.iter().copied().filter(|name| self.selection.wants_shape(name)).collect();
        // A ring parts nobody in most clusters, so it is drawn more often where it does.
        let share = |name: &str| match name {
            coverage::RING => {
                if self.nodes > 3 {
                    3
                } else {
                    0
                }
            }
            coverage::BRIDGE => usize::from(self.nodes > 2),
            _ => 1,
        };
        let possible: Vec<&str> = wanted.into_iter().flat_map(|name| std::iter::repeat_n(name, share(name))).collect();
        if possible.is_empty() {
            return None;
        }
        let target = self.target();
        let name = *self.random.pick(&possible);
        // Neither nobody nor everybody.
        let mask = self.random.between(1, (1 << self.nodes.min(63)) - 2);
        Some(match name {
            coverage::ISOLATE => Shape::Isolate(target),
            coverage::ONE_WAY_IN => Shape::OneWayIn(target),
            coverage::ONE_WAY_OUT => Shape::OneWayOut(target),
            coverage::HALVES => Shape::Halves(mask),
            coverage::BRIDGE => Shape::Bridge(mask % self.nodes),
            _ => Shape::Ring,
        })
    }

    fn signed(&mut self, low: u64, high: u64) -> i64 {
        let size = self.random.magnitude(low, high) as i64;
        if self.random.chance(500) { size } else { -size }
    }
}

/// How much more often than the rarest kinds a kind is drawn, in seeds that have it.
fn weight(kind: Kind) -> usize {
    match kind {
        Kind::Crash | Kind::CrashAtWrite | Kind::Partition => 4,
        Kind::Pause | Kind::Flap => 3,
        Kind::CrashAll => 1,
        _ => 2,
    }
}

/// How often a kind may strike in one run: what stops the whole cluster, or a node for good, not often.
fn at_most(kind: Kind) -> u64 {
    match kind {
        Kind::CrashAll => 4,
        Kind::Wipe | Kind::BitRot | Kind::Misdirect => 3,
        _ => FAULTS_MAX,
    }
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
