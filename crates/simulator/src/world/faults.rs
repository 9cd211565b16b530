//! Faults: what strikes whom, and how it ends.

use std::io;

use tidelock_journal::Disk;
use tidelock_journal::memory_disk::{MemoryDisk, Operation};
use tidelock_model::NodeId;

use super::connections::SILENCE;
use super::{Event, World};
use crate::coverage;
use crate::history::{Micros, Observation};
use crate::machine::{Fate, Machine, PowerCut, Worker};
use crate::network::CutId;
use crate::plan::{Fault, Keep, MILLISECOND, Shape, Target};
use crate::random::Random;

/// How often a machine that lost its power loses it again while it starts, in thousandths.
const POWER_GOES_AGAIN_PERMILLE: u64 = 200;
/// How often a machine with a damaged disk is restarted at once, in thousandths.
const RESTART_AFTER_DAMAGE_PERMILLE: u64 = 600;
/// Bytes that strike together when a write goes astray.
const SECTOR: usize = 512;

impl World {
    pub(super) fn strike(&mut self, place: usize) {
        let fault = self.plan.schedule[place].fault;
        let now = self.now();
        self.trace.note(now, None, || format!("fault {place}: {fault:?}"));
        self.trace.numbers(now, None, "fault", &[place as u64]);
        self.coverage.hit(fault.kind().counter());
        self.see_who_is_introduced();
        match fault {
            Fault::Partition { shape, lasts } => {
                let cut = self.cut(&shape);
                self.after(lasts, Event::Mend(cut));
            }
            Fault::Flap { shape, period, lasts } => {
                let cut = self.cut(&shape);
                self.after(period, Event::Flap { cut, period, until: now + lasts });
            }
            Fault::CrashAll { down, keep } => {
                let all: Vec<NodeId> = self.machines.keys().copied().collect();
                all.into_iter().for_each(|node| self.kill(node, down, keep));
            }
            // A cluster is founded by all its founders (decision 0010): one that is lost before it has met all others
            // keeps those from taking part, too.
            other if other.kind().destroys() && !self.is_founded() => {}
            other => {
                if let Some(node) = other.target().and_then(|target| self.find(target)) {
                    self.strike_one(node, other);
                }
            }
        }
    }

    /// Whether every founder has met all others, as far as was seen when faults struck.
    fn is_founded(&self) -> bool {
        !self.leaders.is_empty() && self.founders.iter().all(|founder| self.introduced.contains(&founder.id))
    }

    fn see_who_is_introduced(&mut self) {
        let is_introduced =
            |machine: &&Machine| machine.life.as_ref().is_some_and(|life| life.workers.consensus.is_introduced());
        self.introduced.extend(self.machines.values().filter(is_introduced).map(|machine| machine.id));
    }

    /// Whom a target means now: among the machines that run.
    fn find(&self, target: Target) -> Option<NodeId> {
        let running = self.machines.values().filter(|machine| machine.life.is_some());
        let running: Vec<NodeId> = running.map(|machine| machine.id).collect();
        target.resolve(&running, self.leader())
    }

    fn strike_one(&mut self, node: NodeId, fault: Fault) {
        match fault {
            Fault::Crash { down, keep, .. } => self.kill(node, down, keep),
            Fault::CrashAtWrite { after, down, keep, .. } => self.with(node, |machine| {
                machine.disk.power_off_during(after);
                machine.power_cut = Some(PowerCut { down, keep });
            }),
            Fault::Stop { down, .. } => self.ask_to_stop(node, down),
            Fault::Pause { lasts, .. } => {
                self.with(node, |machine| machine.paused = true);
                self.doors.pause(node);
                self.note_standing(Observation::Paused { node });
                self.after(lasts, Event::Resume(node));
            }
            Fault::Wipe { down, .. } => self.wipe(node, down),
            Fault::DiskFull { lasts, .. } => {
                self.with(node, |machine| machine.disk.set_capacity(Some(0)));
                self.after(lasts, Event::DiskHasRoom(node));
            }
            Fault::DiskSlow { factor, lasts, .. } => {
                self.with(node, |machine| machine.slow = factor);
                self.after(lasts, Event::DiskIsFast(node));
            }
            Fault::SyncError { .. } => self.fail_io(node, Operation::Sync),
            Fault::WriteError { .. } => self.fail_io(node, Operation::Write),
            Fault::BitRot { place, .. } => self.damage(node, |disk| rot(disk, place)),
            Fault::Misdirect { place, .. } => self.damage(node, |disk| misdirect(disk, place)),
            Fault::ClockRate { permille, .. } => {
                let now = self.now();
                self.with(node, |machine| machine.set_clock_rate(now, permille));
            }
            Fault::ClockJump { millis, .. } => self.with(node, |machine| machine.jump_wall_clock(millis)),
            Fault::ClientsCutOff { lasts, .. } => {
                self.doors.block(node, true);
                self.after(lasts, Event::ClientsReturn(node));
            }
            Fault::FalseAlarm { .. } => self.false_alarm(node),
            Fault::Partition { .. } | Fault::Flap { .. } | Fault::CrashAll { .. } => {}
        }
    }

    /// Connections with the leader break, and whoever had them takes it for dead.
    fn false_alarm(&mut self, node: NodeId) {
        let Some(leader) = self.leader() else { return };
        let alarmed: Vec<NodeId> = match node == leader {
            true => self.machines.keys().copied().filter(|other| *other != leader).collect(),
            false => vec![node],
        };
        for other in alarmed {
            self.break_link(leader, other, "the connection was reset");
            self.break_link(other, leader, "the connection was reset");
            self.tell_gone(other, leader);
        }
    }

    /// Damages a disk. Most of what is damaged is only read when the node starts, so it soon does.
    fn damage(&mut self, node: NodeId, change: impl FnOnce(&MemoryDisk) -> bool) {
        self.with(node, |machine| machine.damaged |= change(&machine.disk));
        if self.random.chance(RESTART_AFTER_DAMAGE_PERMILLE) {
            self.kill(node, 500 * MILLISECOND, Keep::Everything);
        }
    }

    fn fail_io(&mut self, node: NodeId, operation: Operation) {
        self.with(node, |machine| {
            machine.disk.fail(operation, 1, io::ErrorKind::Other);
            machine.failed_io = true;
        });
    }

    fn cut(&mut self, shape: &Shape) -> CutId {
        let members: Vec<NodeId> = self.machines.values().filter(|m| m.life.is_some()).map(|m| m.id).collect();
        let cut = self.network.cut(shape, &members, self.leader());
        self.cut_begins(cut);
        cut
    }

    fn cut_begins(&mut self, cut: CutId) {
        for (from, to) in self.network.cut_links(cut).to_vec() {
            if self.network.breaks() {
                self.break_link(from, to, "the connection was reset");
            }
            self.after(SILENCE, Event::Silence(from, to));
        }
    }

    pub(super) fn flap(&mut self, cut: CutId, period: Micros, until: Micros) {
        if self.now() >= until {
            return self.network.mend(cut);
        }
        if self.network.flip(cut) {
            self.cut_begins(cut);
        }
        self.after(period, Event::Flap { cut, period, until });
    }

    /// Kills a node that runs.
    pub(super) fn kill(&mut self, node: NodeId, down: Micros, keep: Keep) {
        if self.machines.get(&node).is_none_or(|machine| machine.life.is_none()) {
            return;
        }
        self.end_life(node, "killed", survives(keep));
        self.start_later(node, down);
    }

    fn start_later(&mut self, node: NodeId, down: Micros) {
        let until = self.now() + down;
        self.with(node, |machine| machine.fate = Fate::Down { until });
        self.at(until, Event::Start(node));
    }

    /// The power went during a disk operation.
    pub(super) fn lose_power(&mut self, node: NodeId) {
        self.coverage.hit(coverage::CRASH_DURING_IO);
        let Some(machine) = self.machines.get(&node) else { return };
        let cut = machine.power_cut.unwrap_or(PowerCut { down: 500 * MILLISECOND, keep: Keep::Nothing });
        self.end_life(node, "lost its power", survives(cut.keep));
        if self.random.chance(POWER_GOES_AGAIN_PERMILLE) && self.now() < self.plan.safety {
            let operations = self.random.between(1, 12);
            self.with(node, |machine| {
                machine.disk.power_off_during(operations);
                machine.power_cut = Some(cut);
            });
        }
        self.start_later(node, cut.down);
    }

    fn ask_to_stop(&mut self, node: NodeId, down: Micros) {
        let Some(machine) = self.machines.get_mut(&node) else { return };
        let Some(life) = machine.life.as_ref() else { return };
        life.workers.step_down();
        let boot = life.boot;
        machine.fate = Fate::Down { until: self.clock.now() + 500 * MILLISECOND + down };
        self.wake(node, Worker::Consensus, 1);
        self.after(500 * MILLISECOND, Event::FinishStop(node, boot));
    }

    pub(super) fn finish_stop(&mut self, node: NodeId, boot: u64) {
        let Some(machine) = self.machines.get(&node) else { return };
        let Fate::Down { until } = machine.fate else { return };
        if machine.life.as_ref().is_none_or(|life| life.boot != boot) {
            return;
        }
        self.end_life(node, "stopped as asked", |_| true);
        self.at(until, Event::Start(node));
    }

    pub(super) fn resume(&mut self, node: NodeId) {
        self.with(node, |machine| machine.paused = false);
        self.doors.resume(node);
        self.note_standing(Observation::Resumed { node });
        for worker in Worker::ALL {
            self.wake(node, worker, 1);
        }
    }

    /// Whether a node stands still matters to the checks of sessions alone.
    fn note_standing(&mut self, observation: Observation) {
        if self.has("znodes") {
            self.recorder.observe(observation);
        }
    }

    fn wipe(&mut self, node: NodeId, down: Micros) {
        // Before a cluster is founded, a lost disk means to found it anew: nothing was promised.
        if self.leaders.is_empty() {
            return;
        }
        self.end_life(node, "lost its disk", |_| true);
        self.with(node, |machine| {
            machine.disk = MemoryDisk::new();
            machine.wiped = true;
        });
        self.start_later(node, down);
    }
}

/// What of the unsynced writes is on the disk after a crash.
fn survives(keep: Keep) -> impl FnMut(&mut Random) -> bool {
    move |random| match keep {
        Keep::Nothing => false,
        Keep::Everything => true,
        Keep::Some(permille) => random.chance(permille),
    }
}

/// All files with their lengths, in order.
fn files(disk: &MemoryDisk) -> Vec<(String, Vec<u8>)> {
    let mut names = disk.list().unwrap_or_default();
    names.sort();
    names.into_iter().filter_map(|name| Some((name.clone(), disk.contents(&name)?))).collect()
}

/// Flips one bit of a byte that holds something. `false`: there is none.
fn rot(disk: &MemoryDisk, place: u64) -> bool {
    let files = files(disk);
    let held = |bytes: &[u8]| bytes.iter().filter(|byte| **byte != 0).count() as u64;
    let total: u64 = files.iter().map(|(_, bytes)| held(bytes)).sum();
    let Some(mut nth) = (place / 8).checked_rem(total) else { return false };
    for (name, bytes) in files {
        if nth < held(&bytes) {
            let mut places = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(at, _)| at);
            let Some(at) = places.nth(nth as usize) else { return false };
            disk.flip(&name, at, 1 << (place % 8));
            return true;
        }
        nth -= held(&bytes);
    }
    false
}

/// Puts a copy of one sector over another of the same file. `false`: nothing changed by that.
fn misdirect(disk: &MemoryDisk, place: u64) -> bool {
    let files: Vec<_> = files(disk).into_iter().filter(|(_, bytes)| bytes.len() >= 2 * SECTOR).collect();
    let Some(file) = place.checked_rem(files.len() as u64) else { return false };
    let (name, bytes) = &files[file as usize];
    let sectors = (bytes.len() / SECTOR) as u64;
    let (from, to) = ((place >> 8) % sectors, (place >> 32) % sectors);
    let sector = |number: u64| &bytes[number as usize * SECTOR..][..SECTOR];
    if sector(from) == sector(to) {
        return false;
    }
    let copy = sector(from).to_vec();
    disk.overwrite(name, to as usize * SECTOR, &copy);
    true
}
