//! What the command line changes about the plan of a seed.
//!
//! `without` and the switches that a minimised failure uses take things out of the plan the seed draws and
//! leave the rest as it was. `only` draws anew, so that every seed has the faults that were asked for.

use std::collections::BTreeSet;

use super::draw::NETWORK_COUNTERS;
use super::fault::without_group;
use super::{Kind, Plan, Shape, WORKLOADS};
use crate::coverage;
use crate::history::Micros;

/// What the command line changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// This many founding nodes.
    pub nodes: Option<u64>,
    /// Faults strike for so long.
    pub safety: Option<Micros>,
    /// Leave out faults, shapes of cuts and misbehaviours of the network with these names.
    pub without: Vec<String>,
    /// Have these and no others; if empty, whatever the seed draws.
    pub only: Vec<String>,
    /// Leave out the faults at these places of the schedule, as counted after all of the above.
    pub drop_faults: Vec<usize>,
    /// Leave out these workloads.
    pub drop_workloads: Vec<String>,
    /// A perfect network, but for cuts.
    pub quiet_network: bool,
    /// Fast disks, but for scheduled faults.
    pub fast_disks: bool,
}

/// A name that is none of a fault, a shape, a misbehaviour of the network, or a workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {name:?}; there are: {known}")]
pub struct UnknownName {
    /// What was given.
    pub name: String,
    /// What there is.
    pub known: String,
}

impl Overrides {
    /// Every name that `without` and `only` know.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        counters().map(without_group).collect()
    }

    /// The options that say the same, for a command that replays a run; empty for no change.
    #[must_use]
    pub fn arguments(&self) -> String {
        let mut arguments = Vec::new();
        if let Some(nodes) = self.nodes {
            arguments.push(format!("--nodes {nodes}"));
        }
        if let Some(safety) = self.safety {
            arguments.push(format!("--seconds {}", safety.div_ceil(super::SECOND)));
        }
        let numbers: Vec<String> = self.drop_faults.iter().map(usize::to_string).collect();
        let lists = [
            ("--without", &self.without),
            ("--only", &self.only),
            ("--drop-faults", &numbers),
            ("--drop-workloads", &self.drop_workloads),
        ];
        let given = lists.into_iter().filter(|(_, values)| !values.is_empty());
        arguments.extend(given.map(|(option, values)| format!("{option} {}", values.join(","))));
        arguments.extend(self.quiet_network.then(|| "--quiet-network".to_string()));
        arguments.extend(self.fast_disks.then(|| "--fast-disks".to_string()));
        arguments.join(" ")
    }

    fn selection(&self) -> Result<Selection, UnknownName> {
        let workloads: Vec<&str> = WORKLOADS.iter().map(|(name, ..)| *name).collect();
        if let Some(name) = self.drop_workloads.iter().find(|name| !workloads.contains(&name.as_str())) {
            return Err(UnknownName { name: name.clone(), known: workloads.join(", ") });
        }
        let known = |names: &[String]| names.iter().map(|name| counter(name)).collect::<Result<BTreeSet<_>, _>>();
        Ok(Selection { only: known(&self.only)?, without: known(&self.without)? })
    }
}

impl Plan {
    /// The plan of a seed, changed by the command line.
    pub fn draw_with(seed: u64, overrides: &Overrides) -> Result<Plan, UnknownName> {
        let selection = overrides.selection()?;
        let mut plan = Plan::draw_selected(seed, overrides, &selection).without(&overrides.drop_faults);
        for name in &overrides.drop_workloads {
            plan = plan.without_workload(name);
        }
        if overrides.quiet_network {
            plan = plan.quiet_network();
        }
        Ok(if overrides.fast_disks { plan.fast_disks() } else { plan })
    }
}

fn counters() -> impl Iterator<Item = &'static str> {
    let kinds = Kind::ALL.iter().map(|kind| kind.counter());
    kinds.chain(Shape::COUNTERS.iter().copied()).chain(NETWORK_COUNTERS.iter().copied())
}

fn counter(name: &str) -> Result<&'static str, UnknownName> {
    let found = counters().find(|counter| without_group(counter) == name);
    found.ok_or_else(|| UnknownName { name: name.to_string(), known: Overrides::names().join(", ") })
}

/// What is asked for, by the names under which it is counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    only: BTreeSet<&'static str>,
    without: BTreeSet<&'static str>,
}

impl Selection {
    /// Whether certain things are asked for.
    pub(super) fn is_restricted(&self) -> bool {
        !self.only.is_empty()
    }

    /// Whether this one is asked for. A shape asks for partitions too.
    pub(super) fn wants(&self, counter: &str) -> bool {
        let asked = self.only.is_empty() || self.only.contains(counter);
        asked || (counter == coverage::PARTITION && self.asks_for_shapes())
    }

    /// Whether cuts may have this shape.
    pub(super) fn wants_shape(&self, counter: &str) -> bool {
        !self.asks_for_shapes() || self.only.contains(counter)
    }

    /// Whether this one is to be left out.
    pub(super) fn refuses(&self, counter: &str) -> bool {
        self.without.contains(counter)
    }

    fn asks_for_shapes(&self) -> bool {
        Shape::COUNTERS.iter().any(|counter| self.only.contains(counter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Mood, NetworkPlan, SECOND};

    fn named(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_string()).collect()
    }

    /// A typing error must not silently run something else.
    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = Plan::draw_with(1, &Overrides { only: named(&["crahs"]), ..Overrides::default() }).unwrap_err();
        assert!(error.to_string().contains("crash-at-write"), "{error}");
        assert!(Plan::draw_with(1, &Overrides { without: named(&["x"]), ..Overrides::default() }).is_err());
        assert!(Plan::draw_with(1, &Overrides { drop_workloads: named(&["x"]), ..Overrides::default() }).is_err());
    }

    /// One who hunts a bug with one kind of fault wants that kind in every seed, and nothing else.
    #[test]
    fn only_gives_that_and_nothing_else_in_every_seed() {
        let overrides = Overrides { only: named(&["bridge", "loss"]), nodes: Some(5), ..Overrides::default() };
        for seed in 0..100 {
            let plan = Plan::draw_with(seed, &overrides).unwrap();
            assert!(!plan.schedule.is_empty() && plan.nodes == 5);
            assert!(plan.schedule.iter().all(|scheduled| matches!(scheduled.fault.shape(), Some(Shape::Bridge(_)))));
            assert!(plan.network.loss > 0 && plan.network.duplicate == 0 && !plan.network.reorder);
            assert_ne!(plan.mood, Mood::Quiet);
        }
    }

    /// Taking one kind out must leave the rest of a failing run as it was, or nothing is learnt from it.
    #[test]
    fn without_takes_out_one_kind_and_changes_nothing_else() {
        let overrides = Overrides { without: named(&["crash", "ring", "corrupt"]), ..Overrides::default() };
        let mut left_out = 0;
        for seed in 0..200 {
            let plan = Plan::draw(seed);
            let changed = Plan::draw_with(seed, &overrides).unwrap();
            let mut expected = plan.clone();
            expected.network.corrupt = 0;
            let unwanted =
                |fault: &crate::plan::Fault| fault.kind() == Kind::Crash || fault.shape() == Some(Shape::Ring);
            expected.schedule.retain(|scheduled| !unwanted(&scheduled.fault));
            left_out += plan.schedule.len() - expected.schedule.len();
            assert_eq!(changed, expected);
        }
        assert!(left_out > 50, "{left_out}");
    }

    /// The command that replays a failure must say everything that was changed.
    #[test]
    fn the_arguments_say_every_change() {
        let overrides = Overrides {
            nodes: Some(3),
            safety: Some(20 * SECOND),
            without: named(&["crash"]),
            only: named(&["wipe", "loss"]),
            drop_faults: vec![1, 4],
            drop_workloads: named(&["leases"]),
            quiet_network: true,
            fast_disks: true,
        };
        assert_eq!(
            overrides.arguments(),
            "--nodes 3 --seconds 20 --without crash --only wipe,loss --drop-faults 1,4 --drop-workloads leases \
             --quiet-network --fast-disks"
        );
        assert_eq!(Overrides::default().arguments(), "");
        let plan = Plan::draw_with(5, &overrides).unwrap();
        assert_eq!((plan.nodes, plan.safety, plan.network), (3, 20 * SECOND, NetworkPlan::PERFECT));
    }
}
