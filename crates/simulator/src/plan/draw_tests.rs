//! What must hold for every plan, over many seeds.

use std::collections::{BTreeMap, BTreeSet};

use xxhash_rust::xxh3::xxh3_128;

use super::*;

const SEEDS: u64 = 2_000;

fn plans() -> impl Iterator<Item = Plan> {
    (0..SEEDS).map(Plan::draw)
}

/// Pinned seeds of bugs must stay what they are. If this fails on purpose (a new kind of fault), every
/// pinned seed must be looked at again: it is another run now.
#[test]
fn the_plan_of_a_seed_never_changes_by_accident() {
    let plan = Plan::draw(17);
    assert_eq!(plan, Plan::draw(17));
    assert_ne!(plan.schedule, Plan::draw(18).schedule);
    let hash = |change: fn(Plan) -> Plan| {
        let all: String = (0..20).map(|seed| format!("{:?}", change(Plan::draw(seed)))).collect();
        format!("{:032x}", xxh3_128(all.as_bytes()))
    };
    assert_eq!(hash(|plan| plan), "9011d01b2f6a7433dfdd30883ae41ade");
    // Without the workload that came last the plans are what they were before it.
    assert_eq!(hash(|plan| plan.without_workload("native")), "0fb130e7e3fa30941804d6de72749207");
}

/// If faults could destroy a majority, losing data would be no bug, and every check would be in vain.
#[test]
fn what_is_durable_is_destroyed_on_a_minority_only() {
    let mut destroyed_in = 0;
    for plan in plans() {
        let destroying = plan.schedule.iter().filter(|scheduled| scheduled.fault.kind().destroys());
        let mut struck = BTreeSet::new();
        for scheduled in destroying {
            let Some(Target::Founder(founder)) = scheduled.fault.target() else {
                panic!("seed {}: {:?} could strike anybody", plan.seed, scheduled.fault);
            };
            assert!((1..=plan.nodes).contains(&founder));
            struck.insert(founder);
        }
        assert!(struck.len() as u64 * 2 < plan.nodes, "seed {}: {struck:?} of {}", plan.seed, plan.nodes);
        // That workload removes voters until three are left.
        let members_change = plan.workloads.iter().any(|(name, _)| *name == "members");
        assert!(!members_change || struck.len() <= 1, "seed {}: {struck:?}", plan.seed);
        destroyed_in += u64::from(!struck.is_empty());
    }
    assert!(destroyed_in > SEEDS / 4, "{destroyed_in}");
}

/// A kind that is never drawn is never tested. Every one must be in a good share of the seeds.
#[test]
fn every_kind_and_shape_appears_in_many_seeds() {
    let mut seeds_with: BTreeMap<&str, u64> = BTreeMap::new();
    for plan in plans() {
        let faults = plan.schedule.iter().map(|scheduled| scheduled.fault);
        let mut found: BTreeSet<&str> = faults.clone().map(|fault| fault.kind().counter()).collect();
        found.extend(faults.filter_map(|fault| fault.shape()).map(|shape| shape.counter()));
        let NetworkPlan { loss, duplicate, corrupt, slow, reorder, .. } = plan.network;
        let rates = [loss, duplicate, corrupt, u64::from(reorder), slow];
        found.extend(NETWORK_COUNTERS.iter().zip(rates).filter(|(_, rate)| *rate > 0).map(|(name, _)| *name));
        found.extend(plan.workloads.iter().map(|(name, _)| *name));
        found.into_iter().for_each(|name| *seeds_with.entry(name).or_default() += 1);
    }
    let kinds = Kind::ALL.iter().map(|kind| kind.counter());
    let shapes = Shape::COUNTERS.iter().chain(NETWORK_COUNTERS).copied();
    for name in kinds.chain(shapes).chain(WORKLOADS.iter().map(|(name, ..)| *name)) {
        let seeds = seeds_with.get(name).copied().unwrap_or_default();
        assert!(seeds >= SEEDS * 6 / 100, "{name} in {seeds} of {SEEDS} seeds; all: {seeds_with:?}");
    }
}

/// A requirement that the plans cannot meet would make every run red; each kind must be planned three times
/// as often as it is required, since some faults strike nodes that are down already.
#[test]
fn faults_are_planned_more_often_than_coverage_requires() {
    let mut planned: BTreeMap<&str, u64> = BTreeMap::new();
    for scheduled in plans().flat_map(|plan| plan.schedule) {
        *planned.entry(scheduled.fault.kind().counter()).or_default() += 1;
        if let Some(shape) = scheduled.fault.shape() {
            *planned.entry(shape.counter()).or_default() += 1;
        }
    }
    for (name, per_thousand) in coverage::REQUIRED {
        if name.starts_with("fault: ") || name.starts_with("cut: ") {
            let times = planned.get(name).copied().unwrap_or_default();
            assert!(times >= 3 * per_thousand * SEEDS / 1000, "{name} planned {times} times: {planned:?}");
        }
    }
}

/// The healing phase promises that there are no faults; one that is still there would be blamed on the node.
#[test]
fn every_fault_is_over_before_the_safety_phase_is() {
    for plan in plans() {
        assert!(plan.schedule.is_sorted_by_key(|scheduled| scheduled.at));
        for Scheduled { at, fault } in &plan.schedule {
            assert!(at + fault.lasts() < plan.safety, "seed {}: {fault:?} at {at}", plan.seed);
        }
    }
}

/// Nodes refuse settings that make no sense; times must have an order.
#[test]
fn every_plan_is_within_its_bounds() {
    for plan in plans() {
        let Plan { network, disk, timing, .. } = &plan;
        assert!([1, 3, 5, 7].contains(&plan.nodes));
        assert!(network.loss <= 300 && network.duplicate <= 100 && network.corrupt <= 20);
        assert!(network.delay_min >= 100 && network.delay_min <= network.delay_max);
        assert!(network.delay_max <= network.slow_max && network.slow_max <= 2 * SECOND);
        assert!(disk.sync_min <= disk.sync_max && disk.sync_max <= disk.stall_max && disk.write_min <= disk.write_max);
        assert!((50 * MILLISECOND..=100 * MILLISECOND).contains(&timing.heartbeat));
        assert!((5..=20).contains(&timing.election_heartbeats));
        assert!((4 << 10..=256 << 10).contains(&timing.snapshot_journal_bytes));
        assert!((10..=1_000).contains(&timing.catch_up_entries) && timing.segment_bytes.is_multiple_of(512));
        assert!(plan.schedule.len() as u64 <= FAULTS_MAX && plan.clock_drift_permille() <= 50);
        assert!(plan.nodes > 1 || plan.schedule.iter().all(|scheduled| !scheduled.fault.kind().parts()));
        assert!((1..=WORKLOADS.len()).contains(&plan.workloads.len()));
    }
}

/// A workload that plans do not know is never run, and one that plans know and nobody wrote stops the run.
#[test]
fn plans_know_every_workload_and_how_many_clients_it_can_have() {
    let all: BTreeMap<&str, u64> = crate::workload::ALL.iter().map(|one| (one.name, one.clients_max)).collect();
    let known: BTreeSet<&str> = WORKLOADS.iter().map(|(name, ..)| *name).collect();
    assert_eq!(known, all.keys().copied().collect());
    for (name, permille, least, most) in WORKLOADS {
        assert!(*permille > 0 && (1..=*most).contains(least) && *most <= all[name], "{name}");
    }
}

/// Swarm: quiet seeds show what faults hide, brutal ones what only many faults together show.
#[test]
fn some_seeds_are_quiet_and_some_are_brutal() {
    let counts: Vec<u64> = plans().map(|plan| plan.schedule.len() as u64).collect();
    let quiet = counts.iter().filter(|count| **count == 0).count() as u64;
    let brutal = counts.iter().filter(|count| **count >= 25).count() as u64;
    assert!((SEEDS / 20..SEEDS / 5).contains(&quiet), "{quiet}");
    assert!((SEEDS / 20..SEEDS / 5).contains(&brutal), "{brutal}");
    let average = counts.iter().sum::<u64>() / SEEDS;
    assert!((10..=25).contains(&average), "{average}");
    assert!(plans().any(|plan| plan.mood == Mood::Quiet && plan.network.loss + plan.network.slow == 0));
}

/// A cluster that is mostly down has no history worth checking. This is a rough and pessimistic reckoning: nodes
/// that are struck are always different ones, a cut stops everything, an election takes two timeouts.
#[test]
fn a_majority_is_usually_there() {
    let (mut up, mut all) = (0, 0);
    for plan in plans() {
        let step = 100 * MILLISECOND;
        for now in (0..plan.safety).step_by(step as usize) {
            let broken: u64 = plan.schedule.iter().map(|scheduled| broken_nodes(&plan, scheduled, now)).sum();
            all += 1;
            up += u64::from(broken * 2 < plan.nodes);
        }
    }
    let permille = up * 1000 / all;
    assert!(permille > 550, "{permille} permille of the time");
}

fn broken_nodes(plan: &Plan, scheduled: &Scheduled, now: Micros) -> u64 {
    let Scheduled { at, fault } = scheduled;
    let election = if matches!(fault.target(), Some(Target::Leader)) { 2 * plan.timing.election() } else { 0 };
    let while_it_lasts = now >= *at && now < at + fault.lasts();
    match fault.kind() {
        Kind::ClockRate | Kind::ClockJump | Kind::ClientsCutOff => 0,
        Kind::FalseAlarm => 0,
        Kind::CrashAll if now >= *at && now < at + fault.lasts() + 2 * plan.timing.election() => plan.nodes,
        Kind::Partition | Kind::Flap if while_it_lasts => match fault.shape() {
            Some(Shape::Halves(_) | Shape::Bridge(_) | Shape::Ring) => plan.nodes,
            _ => 1,
        },
        kind if kind.destroys() => u64::from(now >= *at),
        _ if while_it_lasts => 1,
        // Until there is another leader, nothing is answered.
        _ if election > 0 && now >= *at && now < at + election => plan.nodes,
        _ => 0,
    }
}
