//! Everything a run decides up front: how many nodes, what the network and the disks are like, who asks
//! what, and which faults strike when.
//!
//! A plan is drawn from a seed alone ([`Plan::draw`], in `draw.rs`), and a run is carried out from its plan and
//! the same seed. Since faults are a list, a failing run is made smaller by leaving elements out; what is left
//! out can be said on the command line ([`Overrides`]).
//!
//! What holds for every plan, so that a failed check means a bug and not a bad plan:
//! - what is durable is destroyed (wipe, rot, misdirected writes) on a minority of the founding nodes at most,
//!   and these stay the same ones for the whole run. A cluster of one is spared altogether;
//! - every fault is over before `safety`.
//!
//! Faults are in `fault.rs`.

use std::fmt::Write as _;

use crate::history::Micros;

mod draw;
mod fault;
mod overrides;

pub use draw::WORKLOADS;
pub use fault::{Fault, Keep, Kind, Scheduled, Shape, Target};
pub use overrides::{Overrides, UnknownName};

/// One millisecond.
pub const MILLISECOND: Micros = 1_000;
/// One second.
pub const SECOND: Micros = 1_000_000;

/// What a run decides up front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What everything is drawn from.
    pub seed: u64,
    /// How faults were drawn.
    pub mood: Mood,
    /// Founding nodes; their ids are 1 to this.
    pub nodes: u64,
    /// What the network does to frames.
    pub network: NetworkPlan,
    /// What the disks are like.
    pub disk: DiskPlan,
    /// The settings of all nodes.
    pub timing: Timing,
    /// Workloads and how many clients each has.
    pub workloads: Vec<(&'static str, u64)>,
    /// Faults, in order of time.
    pub schedule: Vec<Scheduled>,
    /// How long faults may strike.
    pub safety: Micros,
    /// How long the cluster may take to be well again afterwards.
    pub healing: Micros,
}

/// How many faults there are, and how mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// None.
    Quiet,
    /// One kind only, often.
    Single,
    /// Some kinds.
    Mixed,
    /// Most kinds, often.
    Brutal,
}

/// What the network does to frames. Times are one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkPlan {
    /// Lost, in thousandths.
    pub loss: u64,
    /// Arriving twice, in thousandths.
    pub duplicate: u64,
    /// Arriving with a wrong bit, in thousandths.
    pub corrupt: u64,
    /// The least time a frame takes.
    pub delay_min: Micros,
    /// The most time a frame takes that is not held back.
    pub delay_max: Micros,
    /// Frames held back, in a million. So few since, in order, all later ones wait behind.
    pub slow: u64,
    /// The most time such a frame takes.
    pub slow_max: Micros,
    /// Whether frames may overtake each other. Real links keep them in order.
    pub reorder: bool,
    /// How often a cut or a lost frame breaks the connection, in thousandths.
    pub breaks: u64,
    /// How often what is under way when a cut begins is lost, in thousandths.
    pub cut_loses: u64,
}

impl NetworkPlan {
    /// A network that takes half a millisecond and does nothing else.
    pub const PERFECT: NetworkPlan = NetworkPlan {
        loss: 0,
        duplicate: 0,
        corrupt: 0,
        delay_min: 500,
        delay_max: 500,
        slow: 0,
        slow_max: 500,
        reorder: false,
        breaks: 0,
        cut_loses: 0,
    };
}

/// How long the disks take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskPlan {
    /// The least time of a sync.
    pub sync_min: Micros,
    /// The most time of a usual sync.
    pub sync_max: Micros,
    /// The least time of a write.
    pub write_min: Micros,
    /// The most time of a write.
    pub write_max: Micros,
    /// Syncs that take much longer, in thousandths.
    pub stall: u64,
    /// The most time of such a sync.
    pub stall_max: Micros,
}

impl DiskPlan {
    /// A fast disk without surprises.
    pub const FAST: DiskPlan =
        DiskPlan { sync_min: 200, sync_max: 200, write_min: 20, write_max: 20, stall: 0, stall_max: 200 };
}

/// The settings of all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How often a leader says that it lives.
    pub heartbeat: Micros,
    /// After how many silent heartbeats followers seek election, at least.
    pub election_heartbeats: u64,
    /// How long a node lets a request wait.
    pub request_timeout: Micros,
    /// Journal bytes that call for a new snapshot.
    pub snapshot_journal_bytes: u64,
    /// Log entries kept behind a snapshot.
    pub catch_up_entries: u64,
    /// Size of a journal's files.
    pub segment_bytes: u64,
    /// Proposals that may wait at a node.
    pub proposals_waiting: u64,
}

impl Timing {
    /// How long followers wait for a leader before they seek election, at least; at most it is twice that.
    #[must_use]
    pub fn election(&self) -> Micros {
        self.heartbeat * self.election_heartbeats
    }
}

impl Plan {
    /// The same plan without the faults at these places of the schedule.
    #[must_use]
    pub fn without(&self, indexes: &[usize]) -> Plan {
        let kept = self.schedule.iter().enumerate().filter(|(index, _)| !indexes.contains(index));
        Plan { schedule: kept.map(|(_, fault)| *fault).collect(), ..self.clone() }
    }

    /// The same plan with a perfect network; cuts stay.
    #[must_use]
    pub fn quiet_network(&self) -> Plan {
        Plan { network: NetworkPlan::PERFECT, ..self.clone() }
    }

    /// The same plan with fast disks; scheduled faults stay.
    #[must_use]
    pub fn fast_disks(&self) -> Plan {
        Plan { disk: DiskPlan::FAST, ..self.clone() }
    }

    /// The same plan without this workload.
    #[must_use]
    pub fn without_workload(&self, name: &str) -> Plan {
        let kept = self.workloads.iter().copied().filter(|(workload, _)| *workload != name);
        Plan { workloads: kept.collect(), ..self.clone() }
    }

    /// How much faster or slower than virtual time a node's clock may run, in thousandths.
    #[must_use]
    pub fn clock_drift_permille(&self) -> u64 {
        let rate = |scheduled: &Scheduled| match scheduled.fault {
            Fault::ClockRate { permille, .. } => permille.unsigned_abs(),
            _ => 0,
        };
        self.schedule.iter().map(rate).max().unwrap_or(0)
    }

    /// The plan for people. Faults are numbered as [`Plan::without`] counts them.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = String::new();
        self.describe_conditions(&mut text).expect("writing to a string does not fail");
        for (number, Scheduled { at, fault }) in self.schedule.iter().enumerate() {
            writeln!(text, "{number:>4}  {:>7} s  {fault:?}", seconds(*at)).expect("writing to a string does not fail");
        }
        text
    }

    fn describe_conditions(&self, text: &mut String) -> std::fmt::Result {
        let Plan { seed, mood, nodes, network, disk, timing, .. } = self;
        writeln!(text, "seed {seed}: {nodes} nodes, {mood:?}, {} faults", self.schedule.len())?;
        writeln!(text, "time: {} s with faults, {} s to heal", seconds(self.safety), seconds(self.healing))?;
        writeln!(
            text,
            "network: delay {}..{} ms, {} of a million up to {} ms, {}",
            millis(network.delay_min),
            millis(network.delay_max),
            network.slow,
            millis(network.slow_max),
            if network.reorder { "any order" } else { "in order" },
        )?;
        writeln!(
            text,
            "network, of a thousand: loss {}, duplicate {}, corrupt {}, breaks {}, lost by a cut {}",
            network.loss, network.duplicate, network.corrupt, network.breaks, network.cut_loses,
        )?;
        writeln!(
            text,
            "disk: sync {}..{} ms, {} of a thousand up to {} ms, write {}..{} ms",
            millis(disk.sync_min),
            millis(disk.sync_max),
            disk.stall,
            millis(disk.stall_max),
            millis(disk.write_min),
            millis(disk.write_max),
        )?;
        writeln!(
            text,
            "timing: heartbeat {} ms, election {} ms, request {} ms",
            millis(timing.heartbeat),
            millis(timing.election()),
            millis(timing.request_timeout),
        )?;
        writeln!(
            text,
            "limits: snapshot after {} bytes, {} entries behind it, segments of {} bytes, {} proposals",
            timing.snapshot_journal_bytes, timing.catch_up_entries, timing.segment_bytes, timing.proposals_waiting,
        )?;
        let workloads: Vec<String> = self.workloads.iter().map(|(name, clients)| format!("{name} {clients}")).collect();
        writeln!(text, "clients: {}", workloads.join(", "))
    }
}

fn seconds(time: Micros) -> String {
    format!("{}.{:03}", time / SECOND, time % SECOND / MILLISECOND)
}

fn millis(time: Micros) -> String {
    format!("{}.{:03}", time / MILLISECOND, time % MILLISECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy_plan() -> Plan {
        (0..).map(Plan::draw).find(|plan| plan.schedule.len() > 5 && plan.network.loss > 0).expect("most are busy")
    }

    /// Minimising a failure relies on this: what is left out must be exactly what was named.
    #[test]
    fn leaving_out_faults_leaves_the_rest_as_it_was() {
        let plan = busy_plan();
        let smaller = plan.without(&[0, 3]);
        let mut expected = plan.schedule.clone();
        expected.remove(3);
        expected.remove(0);
        assert_eq!(smaller.schedule, expected);
        assert_eq!(Plan { schedule: plan.schedule.clone(), ..smaller }, plan);
        assert_eq!(plan.quiet_network().network, NetworkPlan::PERFECT);
        assert_eq!(plan.quiet_network().schedule, plan.schedule);
        let (dropped, _) = plan.workloads[0];
        assert_eq!(plan.without_workload(dropped).workloads, plan.workloads[1..]);
    }

    /// People read this to understand a failure; a fault that is missing from it misleads them.
    #[test]
    fn a_description_names_every_fault_and_workload() {
        let plan = busy_plan();
        let text = plan.describe();
        assert_eq!(text.lines().count(), 8 + plan.schedule.len());
        assert!(plan.workloads.iter().all(|(name, clients)| text.contains(&format!("{name} {clients}"))), "{text}");
        assert!(text.contains(&format!("loss {}", plan.network.loss)), "{text}");
    }
}
