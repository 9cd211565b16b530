//! Makes a failing run small enough to be understood: leaves out whatever is not needed for the failure.
//!
//! A candidate counts if the same property is violated as in the run that is made smaller, judged by the same
//! checker (for a panic: at the same place). First the whole run is made smaller, by fewer nodes and less time;
//! that draws another schedule, so it only succeeds where the failure is easy to reach. Then faults are
//! left out (delta debugging: halves, quarters, ..., single ones), then the network's and the disks' moods, then
//! workloads, then what remains of the faults once more.
//!
//! What is left is not the smallest there is, but nothing single can be left out of it, unless the bound on
//! runs was met ([`RUNS_MAX`]).

use std::collections::BTreeSet;

use crate::campaign::run_plan;
use crate::check::Violation;
use crate::plan::{Overrides, Plan, SECOND, UnknownName};
use crate::trace::Lines;

/// Runs that are spent on one failure at most.
pub const RUNS_MAX: u64 = 600;
/// Fewer nodes that are tried.
const NODES: &[u64] = &[1, 3, 5];
/// Shorter times that are tried, in seconds.
const SECONDS: &[u64] = &[5, 10, 15, 20, 30, 45];

/// What makes two failures the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    invariant: &'static str,
    checker: &'static str,
    /// For a panic, where.
    place: Option<String>,
}

impl Signature {
    /// Of one violation.
    #[must_use]
    pub fn of(violation: &Violation) -> Signature {
        let Violation { invariant, checker, message } = violation;
        let is_panic = *checker == "panic";
        let place = is_panic.then(|| message.split(": ").next().unwrap_or_default().to_string());
        Signature { invariant, checker, place }
    }
}

/// What is left of a failing run.
#[derive(Clone, Debug)]
pub struct Minimised {
    /// What has to be changed about the seed's plan.
    pub overrides: Overrides,
    /// What is violated then.
    pub violation: Violation,
    /// Runs it took.
    pub runs: u64,
}

/// Makes the failing run of a seed smaller. `tell` hears what was left out. `None`: it does not fail.
pub fn minimise(
    seed: u64,
    overrides: &Overrides,
    tell: &mut dyn FnMut(&str),
) -> Result<Option<Minimised>, UnknownName> {
    let plan = Plan::draw_with(seed, overrides)?;
    let Some(violation) = violations(plan).into_iter().next() else { return Ok(None) };
    tell(&format!("to be kept: {violation}"));
    let wanted = Signature::of(&violation);
    let draw = move |overrides: &Overrides| Plan::draw_with(seed, overrides).expect("known names stay known");
    let fails = |plan: Plan| violations(plan).into_iter().find(|found| Signature::of(found) == wanted);
    let mut search = Search { draw, fails, tell, best: overrides.clone(), violation, runs: 1 };
    search.run();
    Ok(Some(Minimised { overrides: search.best, violation: search.violation, runs: search.runs }))
}

fn violations(plan: Plan) -> Vec<Violation> {
    run_plan(plan, Lines::Dropped).map_or_else(|panicked| vec![panicked], |outcome| outcome.violations)
}

/// The search; `fails` gives the violation that is wanted, if a plan leads to it.
struct Search<'a, Draw, Fails> {
    draw: Draw,
    fails: Fails,
    tell: &'a mut dyn FnMut(&str),
    best: Overrides,
    violation: Violation,
    runs: u64,
}

impl<Draw: Fn(&Overrides) -> Plan, Fails: FnMut(Plan) -> Option<Violation>> Search<'_, Draw, Fails> {
    fn run(&mut self) {
        // Numbers of faults mean something else in another schedule, so this comes before any is left out.
        if self.best.drop_faults.is_empty() {
            self.fewer_nodes();
            self.less_time();
        }
        self.fewer_faults();
        self.try_one("a perfect network", |best| best.quiet_network = true);
        self.try_one("fast disks", |best| best.fast_disks = true);
        self.fewer_workloads();
        self.fewer_faults();
    }

    /// Runs a candidate and keeps it if the failure is still there.
    fn keeps_failing(&mut self, candidate: Overrides) -> bool {
        if self.runs >= RUNS_MAX || candidate == self.best {
            return false;
        }
        self.runs += 1;
        let Some(violation) = (self.fails)((self.draw)(&candidate)) else { return false };
        (self.best, self.violation) = (candidate, violation);
        true
    }

    fn try_one(&mut self, what: &str, change: impl FnOnce(&mut Overrides)) -> bool {
        let mut candidate = self.best.clone();
        change(&mut candidate);
        let smaller = self.keeps_failing(candidate);
        if smaller {
            (self.tell)(&format!("still fails with {what}"));
        }
        smaller
    }

    fn fewer_nodes(&mut self) {
        let now = (self.draw)(&self.best).nodes;
        for nodes in NODES.iter().copied().filter(|nodes| *nodes < now) {
            if self.try_one(&format!("{nodes} nodes"), |best| best.nodes = Some(nodes)) {
                return;
            }
        }
    }

    fn less_time(&mut self) {
        let now = (self.draw)(&self.best).safety;
        for seconds in SECONDS.iter().copied().filter(|seconds| seconds * SECOND < now) {
            if self.try_one(&format!("{seconds} s of faults"), |best| best.safety = Some(seconds * SECOND)) {
                return;
            }
        }
    }

    fn fewer_workloads(&mut self) {
        for (name, _) in (self.draw)(&self.best).workloads {
            self.try_one(&format!("no {name}"), |best| best.drop_workloads.push(name.to_string()));
        }
    }

    /// Delta debugging over the schedule.
    fn fewer_faults(&mut self) {
        let all = (self.draw)(&Overrides { drop_faults: Vec::new(), ..self.best.clone() }).schedule.len();
        let mut kept: Vec<usize> = (0..all).filter(|place| !self.best.drop_faults.contains(place)).collect();
        let before = kept.len();
        if !kept.is_empty() && self.keeps_only(&[], all) {
            kept.clear();
        }
        let mut parts = 2;
        while !kept.is_empty() && self.runs < RUNS_MAX {
            let size = kept.len().div_ceil(parts);
            match self.smaller_by_a_part(&kept, size, all) {
                Some(fewer) => {
                    kept = fewer;
                    parts = 2.max(parts - 1);
                }
                None if size == 1 => break,
                None => parts = (2 * parts).min(kept.len()),
            }
        }
        if kept.len() < before {
            (self.tell)(&format!("still fails with {} of {before} faults", kept.len()));
        }
    }

    /// Leaves out one part of the faults: the first without which the run still fails.
    fn smaller_by_a_part(&mut self, kept: &[usize], size: usize, all: usize) -> Option<Vec<usize>> {
        for part in kept.chunks(size) {
            let rest: Vec<usize> = kept.iter().copied().filter(|place| !part.contains(place)).collect();
            if !rest.is_empty() && self.keeps_only(&rest, all) {
                return Some(rest);
            }
        }
        None
    }

    fn keeps_only(&mut self, kept: &[usize], all: usize) -> bool {
        let kept: BTreeSet<usize> = kept.iter().copied().collect();
        let drop_faults = (0..all).filter(|place| !kept.contains(place)).collect();
        self.keeps_failing(Overrides { drop_faults, ..self.best.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{NetworkPlan, Scheduled};

    fn violation(message: &str) -> Violation {
        Violation { invariant: "R2", checker: "durable", message: message.to_string() }
    }

    fn search(seed: u64, fails: impl Fn(&Plan) -> bool) -> (Overrides, u64) {
        let draw = |overrides: &Overrides| Plan::draw_with(seed, overrides).unwrap();
        let fails = |plan: Plan| fails(&plan).then(|| violation("lost"));
        let (best, violation) = (Overrides::default(), violation("lost"));
        let mut search = Search { draw, fails, tell: &mut |_| {}, best, violation, runs: 0 };
        search.run();
        (search.best, search.runs)
    }

    fn busy_seed() -> u64 {
        let busy = |plan: &Plan| plan.schedule.len() > 20 && plan.network.loss > 0 && plan.workloads.len() > 3;
        (0..).find(|seed| busy(&Plan::draw(*seed))).expect("some are busy")
    }

    /// People read what is left; everything that is not needed hides what is.
    #[test]
    fn exactly_the_needed_faults_and_workloads_are_left() {
        let seed = busy_seed();
        let plan = Plan::draw(seed);
        let needed = [plan.schedule[2], plan.schedule[9], plan.schedule[17]];
        let (workload, _) = plan.workloads[1];
        let fails = |plan: &Plan| {
            let is_there = |fault: &Scheduled| plan.schedule.contains(fault);
            needed.iter().all(is_there) && plan.workloads.iter().any(|(name, _)| *name == workload)
        };
        let (best, runs) = search(seed, fails);
        let small = Plan::draw_with(seed, &best).unwrap();
        assert_eq!(small.schedule, needed);
        assert_eq!(small.workloads.len(), 1);
        assert_eq!(small.network, NetworkPlan::PERFECT);
        assert!(runs < 150, "{runs}");
    }

    /// A failure that needs no fault at all must be shown without any.
    #[test]
    fn a_failure_that_needs_nothing_loses_everything() {
        let (best, _) = search(busy_seed(), |_| true);
        let plan = Plan::draw_with(busy_seed(), &best).unwrap();
        assert_eq!((plan.nodes, plan.safety, plan.schedule.len()), (1, 5 * SECOND, 0));
        assert_eq!(plan.workloads.len(), 0);
    }

    /// What is needed must not be lost on the way, and a search must end.
    #[test]
    fn a_run_in_which_everything_is_needed_stays_as_it_is() {
        let whole = Plan::draw(busy_seed());
        let (best, runs) = search(busy_seed(), |plan| *plan == whole);
        assert_eq!(best, Overrides::default());
        assert!(runs < RUNS_MAX);
    }

    /// Two panics are the same only at the same place; a violation whatever it says.
    #[test]
    fn failures_are_the_same_by_what_is_violated_and_where() {
        let panicked = |message: &str| {
            Signature::of(&Violation { invariant: "assertion", checker: "panic", message: message.to_string() })
        };
        assert_eq!(panicked("a.rs:1: left 1"), panicked("a.rs:1: left 2"));
        assert_ne!(panicked("a.rs:1: left 1"), panicked("a.rs:2: left 1"));
        assert_eq!(Signature::of(&violation("x")), Signature::of(&violation("y")));
    }
}
