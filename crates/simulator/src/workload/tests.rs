use std::collections::{BTreeMap, BTreeSet};

use tidelock_model::MemberRole;

use super::{ALL, MemberOrders, Order, Setup, number_of};
use crate::client::test_double::Stage;
use crate::coverage;
use crate::history::{
    Answer, Content, History, Kv, Micros, NativeCall, NativeTold, Notice, Op, Operation, Request, Told,
};
use crate::random::Random;

/// Time that the faultless runs here are given.
const RUN: Micros = 40_000_000;

struct Run {
    stage: Stage,
    setup: Setup,
}

/// Starts workloads on a cluster without faults and lets them work.
fn run(seed: u64, workloads: &[(&str, u64)]) -> Run {
    let mut stage = Stage::new();
    let setup = Setup::new(stage.around.clone(), stage.executor.spawner(), Random::new(seed).fork("clients"));
    workloads.iter().for_each(|(name, clients)| setup.start(name, *clients));
    stage.run_for(RUN);
    Run { stage, setup }
}

fn everything() -> Vec<(&'static str, u64)> {
    ALL.iter().map(|workload| (workload.name, 2)).collect()
}

fn ops(operation: &Operation) -> Vec<&Op> {
    match &operation.request {
        Request::Op(op) => vec![op],
        Request::Txn { then, otherwise, .. } => then.iter().chain(otherwise).collect(),
        _ => Vec::new(),
    }
}

fn values(history: &History) -> Vec<(&str, &str)> {
    let all = history.operations.iter().flat_map(ops);
    all.filter_map(|op| match op {
        Op::Put { key, value, .. } => Some((key.as_str(), value.as_str())),
        _ => None,
    })
    .collect()
}

fn succeeded(operation: &Operation) -> bool {
    match &operation.result {
        Told::Answer(Answer { content: Content::Txn { succeeded, .. }, .. }) => *succeeded,
        Told::Answer(_) => true,
        _ => false,
    }
}

/// A value found in an answer names the request that wrote it; every checker relies on it.
#[test]
fn no_two_requests_write_the_same_value() {
    let run = run(1, &everything());
    let history = run.stage.history();
    let all = values(&history);
    let distinct: BTreeSet<&str> = all.iter().map(|(_, value)| *value).collect();
    assert!(all.len() > 500, "{}", all.len());
    assert_eq!(distinct.len(), all.len());
    let leases: Vec<i64> = history
        .operations
        .iter()
        .filter_map(|operation| match operation.request {
            Request::Grant { lease, .. } => Some(lease),
            _ => None,
        })
        .collect();
    assert_eq!(leases.iter().collect::<BTreeSet<_>>().len(), leases.len());
}

/// A seed that shows a bug must show it again; the workloads are part of what a seed decides.
#[test]
fn the_same_seed_gives_the_same_history() {
    let told = |seed| format!("{:?}", run(seed, &everything()).stage.history());
    assert_eq!(told(5), told(5));
    assert_ne!(told(5), told(6));
}

/// A workload that does nothing, or floods the cluster, makes a run worthless.
#[test]
fn every_workload_works_at_a_sane_rate() {
    for workload in ALL {
        // Registers give the others revisions to work with.
        let history = run(2, &[("registers", 8), (workload.name, 2)]).stage.history();
        let mine = |operation: &&Operation| operation.client >= 8;
        let asked = history.operations.iter().filter(mine).count();
        let answered = history.operations.iter().filter(mine).filter(|operation| succeeded(operation)).count();
        match workload.name {
            "watches" => assert!(history.watches.len() > 4, "{} watches", history.watches.len()),
            "native" => {
                let answered = |call: &&NativeCall| matches!(call.told, NativeTold::Decided { result: Ok(_), .. });
                let (asked, answered) = (history.native.len(), history.native.iter().filter(answered).count());
                assert!(answered > 60 && asked < 2 * 12 * (RUN / 1_000_000) as usize, "{answered} of {asked}");
            }
            // These ask in other ways, the last one of a face that is not there in these runs.
            "members" | "znodes" => assert_eq!(asked, 0),
            name => {
                assert!(answered >= 8, "{name}: {answered} of {asked}");
                assert!(asked < 2 * 12 * (RUN / 1_000_000) as usize, "{name}: {asked}");
            }
        }
    }
}

/// Only if clients stop when they are told to can the end of a run be judged.
#[test]
fn all_clients_finish_when_the_run_stops_and_watchers_stay() {
    let mut run = run(3, &everything());
    assert!(run.setup.working() > 10);
    run.setup.stop();
    run.stage.run_for(20_000_000);
    assert_eq!(run.setup.working(), 0);
    run.setup.last_look();
    run.stage.run_for(5_000_000);
    let history = run.stage.history();
    let last = history.operations.last().unwrap();
    let Told::Answer(Answer { revision, content: Content::Get { found, .. }, .. }) = &last.result else {
        panic!("{last:?}")
    };
    assert!(found.len() > 10);
    assert!(history.operations.iter().all(|operation| operation.returned.is_some()));
    // A watcher that was open all the time was told up to the end, slow reader or not.
    let open: Vec<_> = history.watches.iter().filter(|log| log.closed.is_none()).collect();
    assert!(!open.is_empty());
    for log in open.iter().filter(|log| log.key == "a" && log.start <= *revision && !log.no_puts) {
        let newest = log.notices.iter().rev().find_map(|(_, notice)| match notice {
            Notice::Events { events, .. } => events.last().map(|event| event.kv.modified),
            _ => None,
        });
        assert!(newest.is_some_and(|newest| newest + 20 > *revision), "{newest:?} of {revision}: {}", log.start);
    }
}

fn accounts(operation: &Operation) -> Option<&[Kv]> {
    match (&operation.request, &operation.result) {
        (
            Request::Op(Op::Get { key, end: Some(_), .. }),
            Told::Answer(Answer { content: Content::Get { found, .. }, .. }),
        ) if key == "account/" => Some(found),
        _ => None,
    }
}

/// The checker of transfers counts the money: a workload that lost some would be taken for a bug.
#[test]
fn transfers_keep_the_sum_of_all_accounts() {
    let history = run(4, &[("transactions", 4)]).stage.history();
    let sums = history.operations.iter().filter_map(accounts).filter(|found| !found.is_empty());
    let sums: Vec<u64> = sums.map(|found| found.iter().map(|kv| number_of(&kv.value)).sum()).collect();
    assert!(sums.len() > 20 && sums.iter().all(|sum| *sum == 600), "{sums:?}");
    let transfers = history.operations.iter().filter(|operation| ops(operation).len() > 2 && succeeded(operation));
    assert!(transfers.count() > 50);
}

/// What was appended stays in place, so the last text of each list shows the order of all appends.
#[test]
fn lists_only_grow_and_counters_only_count() {
    let history = run(5, &[("lists", 4), ("counters", 4)]).stage.history();
    let mut latest: BTreeMap<&str, &str> = BTreeMap::new();
    for operation in history.operations.iter().filter(|operation| succeeded(operation)) {
        for op in ops(operation) {
            let Op::Put { key, value, .. } = op else { continue };
            let before = latest.insert(key, value).unwrap_or_default();
            if key.starts_with("list/") {
                let element = value.strip_prefix(before).map(|rest| rest.trim_start_matches(','));
                assert!(element.is_some_and(|element| element.starts_with('c') && !element.contains(',')), "{value}");
            } else {
                assert_eq!(number_of(value), number_of(before) + 1);
            }
        }
    }
    assert!(latest.keys().filter(|key| key.starts_with("list/")).count() > 3, "lists are changed for new ones");
}

/// Coverage of what only happens if someone does it.
#[test]
fn leases_end_in_both_ways_and_watchers_meet_compactions() {
    let run = run(6, &everything());
    let counted = |name| run.stage.around.coverage.get(name);
    for name in [coverage::LEASE_REVOKED, coverage::COMPACTION_UNDER_WATCH, coverage::WATCHER_COMPACTED] {
        assert!(counted(name) > 0, "{name}");
    }
    let history = run.stage.history();
    let notices = || history.watches.iter().flat_map(|log| log.notices.iter().map(|(_, notice)| notice));
    assert!(notices().any(|notice| matches!(notice, Notice::Progress { .. })));
    let previous = |notice: &Notice| matches!(notice, Notice::Events { events, .. } if events.iter().any(|event| event.previous.is_some()));
    assert!(notices().any(previous));
    assert!(history.watches.iter().any(|log| log.start > 0) && history.watches.iter().any(|log| log.start == 0));
}

/// A lock that nobody ever waits for, or that is never written under, shows nothing.
#[test]
fn locks_are_handed_over_and_guard_writes() {
    let run = run(8, &[("locks", 4)]);
    assert!(run.stage.around.coverage.get(coverage::LOCK_HANDED_OVER) > 0);
    let history = run.stage.history();
    let guarded =
        history.operations.iter().filter(|operation| succeeded(operation)).flat_map(ops).filter_map(|op| match op {
            Op::Put { key, value, .. } if key.starts_with("guarded/") => Some(value),
            _ => None,
        });
    let tokens: BTreeSet<u64> = guarded.map(|value| number_of(value)).collect();
    assert!(tokens.len() > 1, "{tokens:?}");
}

/// Users that may do nothing, or everything, show nothing either; all others go on undisturbed.
#[test]
fn users_are_sometimes_allowed_and_sometimes_refused() {
    let run = run(9, &[("auth", 6), ("registers", 2), ("watches", 2)]);
    for name in [coverage::RIGHT_REVOKED, coverage::WRITE_DENIED, coverage::WATCHER_REVOKED] {
        assert!(run.stage.around.coverage.get(name) > 0, "{name}");
    }
    let history = run.stage.history();
    let (users, others): (Vec<_>, Vec<_>) = history.operations.iter().partition(|operation| operation.asker.is_some());
    let allowed = users.iter().filter(|operation| succeeded(operation)).count();
    assert!(allowed * 10 > users.len() && allowed * 10 < users.len() * 9, "{allowed} of {}", users.len());
    assert!(others.iter().all(|operation| !matches!(operation.result, Told::Refused(_))));
    let denied = |notice: &Notice| matches!(notice, Notice::Canceled { reason, .. } if reason.contains("denied"));
    let disturbed = history.watches.iter().filter(|log| log.user.is_none()).flat_map(|log| &log.notices);
    assert!(!disturbed.into_iter().any(|(_, notice)| denied(notice)));
}

fn drain(orders: &MemberOrders) -> Vec<Order> {
    std::iter::from_fn(|| orders.take()).collect()
}

/// A member without a machine, or a machine without a member, would cost the cluster its majority for a
/// reason that is the simulator's own.
#[test]
fn every_member_that_was_added_has_a_machine_and_every_removed_one_has_none() {
    let mut stage = Stage::new();
    let setup = Setup::new(stage.around.clone(), stage.executor.spawner(), Random::new(7));
    setup.start("members", 5);
    assert_eq!(setup.working(), 1);
    let mut machines: BTreeSet<u64> = (1..=3).collect();
    for _ in 0..300 {
        stage.run_for(1_000_000);
        for order in drain(&setup.orders()) {
            match order {
                Order::Start { member, members } => {
                    assert!(members.contains(&member));
                    assert!(machines.insert(member.id.0), "{:x} was started twice", member.id);
                }
                Order::Stop { node } => assert!(machines.remove(&node.0), "{node:x} does not run"),
            }
        }
        let members = stage.double.members();
        let voters = members.iter().filter(|member| member.role == MemberRole::Voter).count();
        assert!((3..=7).contains(&voters) && members.len() <= 7, "{members:?}");
    }
    let members: BTreeSet<u64> = stage.double.members().iter().map(|member| member.id.0).collect();
    assert_eq!(machines, members);
    for name in [coverage::MEMBERSHIP_CHANGED, coverage::LEARNER_PROMOTED, coverage::JOINT_CHANGE] {
        assert!(stage.around.coverage.get(name) > 0, "{name}");
    }
}

/// A plan names workloads by text; a typing mistake must not pass for an empty run.
#[test]
#[should_panic(expected = "plans name workloads that exist")]
fn an_unknown_workload_is_refused() {
    let stage = Stage::new();
    Setup::new(stage.around.clone(), stage.executor.spawner(), Random::new(1)).start("regsters", 1);
}
