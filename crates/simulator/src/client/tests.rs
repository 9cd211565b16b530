use std::time::Duration;

use tidelock_coordinator::{ProposeError, ReadError};
use tidelock_model::NodeId;

use super::test_double::{Stage, TERM};
use super::{Habits, WatchSpec};
use crate::history::{Answer, Compare, Content, Kv, Notice, Op, Request, Told, WatchLog};

const NODE: NodeId = NodeId(1);

fn put(key: &str, value: &str, lease: i64) -> Request {
    Request::Op(put_op(key, value, lease))
}

fn put_op(key: &str, value: &str, lease: i64) -> Op {
    Op::Put { key: key.into(), value: value.into(), lease }
}

fn get_op(key: &str, at: i64) -> Op {
    Op::Get { key: key.into(), end: None, at, serializable: false }
}

fn kv(key: &str, value: &str, created: i64, modified: i64, version: i64, lease: i64) -> Kv {
    Kv { key: key.into(), value: value.into(), created, modified, version, lease }
}

fn answered(revision: i64, content: Content) -> Told {
    Told::Answer(Answer { revision, term: TERM, content })
}

/// What the checkers judge is what clients were told: a translation that loses or bends something would
/// make them judge something that never happened.
#[test]
fn every_kind_of_request_is_answered_with_what_the_store_says() {
    let mut stage = Stage::new();
    assert_eq!(stage.ask(put("k", "one", 0)), answered(2, Content::Put { previous: None }));
    let first = kv("k", "one", 2, 2, 1, 0);
    assert_eq!(stage.ask(Request::Grant { lease: 5, ttl_s: 4 }), answered(2, Content::Granted));
    assert_eq!(stage.ask(put("k", "two", 5)), answered(3, Content::Put { previous: Some(first.clone()) }));
    let second = kv("k", "two", 2, 3, 2, 5);
    let read = |found: Vec<Kv>| Content::Get { count: found.len() as i64, found };
    assert_eq!(stage.ask(Request::Op(get_op("k", 0))), answered(3, read(vec![second.clone()])));
    assert_eq!(stage.ask(Request::Op(get_op("k", 2))), answered(3, read(vec![first])));
    let range = Op::Get { key: "a".into(), end: Some("z".into()), at: 0, serializable: true };
    assert_eq!(stage.ask(Request::Op(range)), answered(3, read(vec![second.clone()])));
    let alive = |ttl_s| answered(0, Content::KeptAlive { ttl_s });
    assert_eq!(stage.ask(Request::KeepAlive { lease: 5 }), alive(Some(4)));
    assert_eq!(stage.ask(Request::KeepAlive { lease: 6 }), alive(None));
    assert_eq!(stage.ask(Request::Compact { revision: 3 }), answered(3, Content::Compacted));
    assert_eq!(stage.ask(Request::Revoke { lease: 5 }), answered(4, Content::Revoked));
    assert_eq!(stage.ask(put("k", "three", 0)), answered(5, Content::Put { previous: None }));
    let third = kv("k", "three", 5, 5, 1, 0);
    let delete = Request::Op(Op::Delete { key: "k".into(), end: Some("l".into()) });
    assert_eq!(stage.ask(delete), answered(6, Content::Delete { previous: vec![third] }));
}

/// Each compare must be the one that was meant, and each answer must stand at the place of its operation.
#[test]
fn transactions_compare_and_answer_in_the_order_they_were_asked_in() {
    let mut stage = Stage::new();
    stage.ask(put("k", "one", 0));
    let mut asked = |compares: Vec<Compare>, then: Vec<Op>| match stage.ask(Request::Txn {
        compares,
        then,
        otherwise: vec![get_op("k", 0)],
    }) {
        Told::Answer(Answer { revision, content: Content::Txn { succeeded, answers }, .. }) => {
            (revision, succeeded, answers)
        }
        other => panic!("not an answer: {other:?}"),
    };
    let one = kv("k", "one", 2, 2, 1, 0);
    let read = |kv: &Kv| Content::Get { found: vec![kv.clone()], count: 1 };
    let holding = vec![
        Compare::ValueIs("k".into(), "one".into()),
        Compare::ModifiedAt("k".into(), 2),
        Compare::VersionIs("k".into(), 1),
        Compare::ModifiedAt("missing".into(), 0),
        Compare::VersionIs("missing".into(), 0),
    ];
    for broken in [
        Compare::ValueIs("k".into(), "two".into()),
        Compare::ModifiedAt("k".into(), 1),
        Compare::VersionIs("k".into(), 2),
        Compare::ValueIs("missing".into(), String::new()),
    ] {
        let mut compares = holding.clone();
        compares.push(broken);
        assert_eq!(asked(compares, vec![put_op("k", "never", 0)]), (2, false, vec![read(&one)]));
    }
    let two = kv("k", "two", 2, 3, 2, 0);
    let then = vec![get_op("k", 0), put_op("k", "two", 0), get_op("k", 0)];
    let answers = vec![read(&one), Content::Put { previous: Some(one.clone()) }, read(&two)];
    assert_eq!(asked(holding, then), (3, true, answers));
    // One that only reads takes no place in the log.
    assert_eq!(asked(Vec::new(), vec![get_op("k", 0)]), (3, true, vec![read(&two)]));
    assert_eq!(stage.double.proposals(), 6);
}

/// "Nothing changed" must be told as such, and only if it is certain.
#[test]
fn what_cannot_be_done_is_an_error_in_etcds_words() {
    let mut stage = Stage::new();
    let error = |text: &str| Told::Error(format!("etcdserver: {text}"));
    assert_eq!(stage.ask(put("k", "one", 9)), error("requested lease not found"));
    assert_eq!(stage.ask(Request::Revoke { lease: 9 }), error("requested lease not found"));
    stage.ask(Request::Grant { lease: 9, ttl_s: 4 });
    assert_eq!(stage.ask(Request::Grant { lease: 9, ttl_s: 4 }), error("lease already exists"));
    stage.ask(put("k", "two", 0));
    stage.ask(put("k", "three", 0));
    stage.ask(Request::Compact { revision: 3 });
    let compacted = error("mvcc: required revision has been compacted");
    assert_eq!(stage.ask(Request::Compact { revision: 3 }), compacted);
    assert_eq!(stage.ask(Request::Op(get_op("k", 2))), compacted);
    assert_eq!(stage.ask(Request::Op(get_op("k", 9))), error("mvcc: required revision is a future revision"));
}

/// R7: a write whose fate is unknown must never be told as one that did not happen, or the checkers would
/// call it a violation when it shows up; and the other way round they would overlook one.
#[test]
fn r7_a_failed_write_is_unknown_exactly_if_it_may_have_happened() {
    let waited = Duration::from_secs(1);
    for (error, unknown) in [
        (ProposeError::OutcomeUnknown { waited }, true),
        (ProposeError::Stopping, true),
        (ProposeError::NoLeader, false),
        (ProposeError::Overloaded { waiting: 1 }, false),
        (ProposeError::NoSpace { node: NODE }, false),
        (ProposeError::TooLarge { bytes: 2, max: 1 }, false),
    ] {
        let mut stage = Stage::new();
        stage.double.refuse_proposal(error.clone());
        let told = stage.ask(put("k", "v", 0));
        assert_eq!(matches!(told, Told::Unknown(_)), unknown, "{error}: {told:?}");
        assert_eq!(matches!(told, Told::Refused(_)), !unknown, "{error}: {told:?}");
    }
}

/// A read changes nothing and may be called refused; a renewal that got lost may have been done.
#[test]
fn a_failed_renewal_may_have_happened_and_a_failed_read_did_not() {
    let waited = Duration::from_secs(1);
    for error in [ReadError::NoLeader, ReadError::Timeout { waited }, ReadError::Stopping] {
        let mut stage = Stage::new();
        stage.double.refuse_read(error.clone());
        assert!(matches!(stage.ask(Request::Op(get_op("k", 0))), Told::Refused(_)), "{error}");
        stage.double.refuse_read(error.clone());
        assert!(matches!(stage.ask(Request::KeepAlive { lease: 5 }), Told::Unknown(_)), "{error}");
    }
}

/// A learner may be far behind: clients that ask it for more than its own state must go elsewhere.
#[test]
fn a_learner_answers_serializable_reads_alone() {
    let mut stage = Stage::new();
    stage.double.become_learner();
    let refused = Told::Refused("etcdserver: rpc not supported for learner".into());
    assert_eq!(stage.ask(Request::Op(get_op("k", 0))), refused);
    assert_eq!(stage.ask(put("k", "v", 0)), refused);
    let local = Op::Get { key: "k".into(), end: None, at: 0, serializable: true };
    assert!(matches!(stage.ask(Request::Op(local)), Told::Answer(_)));
}

/// A client that stops waiting knows nothing about its write, and the history must say when it stopped.
#[test]
fn a_request_that_takes_too_long_or_whose_connection_breaks_is_unknown() {
    let mut stage = Stage::new();
    stage.double.answer_nobody();
    let client = stage.client(1_000_000);
    let told = stage.start(async move { client.ask_at(NODE, put("k", "late", 0)).await });
    stage.run_for(999_999);
    assert_eq!(*told.borrow(), None);
    stage.run_for(1);
    assert_eq!(told.take(), Some(Told::Unknown("no answer in time".into())));

    let client = stage.client(1_000_000);
    let told = stage.start(async move { client.ask_at(NODE, put("k", "broken", 0)).await });
    stage.run_for(500_000);
    stage.doors.close(NODE);
    stage.run_for(500_000);
    assert_eq!(told.take(), Some(Told::Unknown("the connection to the node broke".into())));
    assert_eq!(stage.ask(put("k", "nobody", 0)), Told::Refused("the node cannot be reached".into()));

    let operations = stage.history().operations;
    let results: Vec<_> = operations.iter().map(|operation| operation.returned.map(|stamp| stamp.at)).collect();
    assert_eq!(results[0], Some(1_000_000));
    assert!(operations.windows(2).all(|pair| pair[0].called < pair[1].called));
    assert!(operations.iter().all(|operation| operation.returned > Some(operation.called)));
}

/// A write that was done and acknowledged, but not to anyone who could hear it, is the hardest case for
/// clients and checkers alike: it must occur, and as unknown.
#[test]
fn a_write_whose_answer_is_lost_on_the_way_is_unknown() {
    let mut stage = Stage::new();
    let client = stage.client(1_000_000);
    let told = stage.start(async move { client.ask_at(NODE, put("k", "v", 0)).await });
    while stage.double.proposals() == 0 {
        stage.run_for(1);
    }
    stage.doors.close(NODE);
    stage.run_for(500_000);
    assert_eq!(told.take(), Some(Told::Unknown("the connection to the node broke".into())));
}

/// A node that is stopped for a while must not carry out what arrives meanwhile, and must afterwards.
#[test]
fn a_paused_node_carries_nothing_out_until_it_goes_on() {
    let mut stage = Stage::new();
    stage.doors.pause(NODE);
    let client = stage.client(10_000_000);
    let told = stage.start(async move { client.ask_at(NODE, put("k", "v", 0)).await });
    stage.run_for(5_000_000);
    assert_eq!((stage.double.proposals(), told.borrow().is_none()), (0, true));
    stage.doors.resume(NODE);
    stage.run_for(1_000_000);
    assert_eq!(stage.double.proposals(), 1);
    assert!(matches!(told.take(), Some(Told::Answer(_))));
}

/// Clients that never moved on would sit at a dead node for the rest of the run.
#[test]
fn a_client_moves_on_when_its_node_is_gone() {
    let mut stage = Stage::new();
    let client = stage.client(100_000);
    let first = client.choose_node().unwrap();
    stage.doors.close(first);
    let told = stage.start(async move { client.ask(put("k", "v", 0)).await });
    stage.run_for(1_000_000);
    assert!(matches!(told.take(), Some(Told::Answer(_))));
    assert_ne!(stage.history().operations[0].node, first);
}

fn spec(start: i64) -> WatchSpec {
    let (key, end) = ("k".to_owned(), Some("l".to_owned()));
    WatchSpec { key, end, start, no_puts: false, no_deletes: false, previous: true, notify: false }
}

fn habits() -> Habits {
    Habits { dawdles: 0, asks_progress_permille: 1000, reopens_permille: 0, notify_every: 1_000_000, lasts: 60_000_000 }
}

fn logs(stage: &Stage) -> Vec<WatchLog> {
    stage.history().watches
}

/// The whole life of a watcher must be in its log: what the checkers do not see they cannot judge.
#[test]
fn a_watch_log_holds_everything_from_opening_to_the_servers_end_of_it() {
    let mut stage = Stage::new();
    stage.ask(put("k", "one", 0));
    stage.ask(put("k", "two", 0));
    let client = stage.client(1_000_000);
    let watching = client.clone();
    let watched = stage.start(async move { watching.watch(NODE, vec![spec(3), spec(1)], &habits()).await });
    stage.run_for(10);
    stage.ask(Request::Op(Op::Delete { key: "k".into(), end: None }));
    stage.run_for(3_000_000);
    let log = logs(&stage).remove(0);
    let notices: Vec<&Notice> = log.notices.iter().map(|(_, notice)| notice).collect();
    assert_eq!(*notices[0], Notice::Created { revision: 3 });
    let Notice::Events { revision: 3, events } = notices[1] else { panic!("{:?}", notices[1]) };
    assert_eq!((events[0].kv.value.as_str(), events[0].deleted), ("two", false));
    assert_eq!(events[0].previous.as_ref().map(|kv| kv.value.as_str()), Some("one"));
    let deleted = notices.iter().any(|notice| {
        matches!(notice, Notice::Events { revision: 4, events } if events[0].deleted && events[0].kv.modified == 4)
    });
    assert!(deleted, "{notices:?}");
    assert_eq!(notices.last(), Some(&&Notice::Progress { revision: 4 }));
    assert_eq!(log.closed, None);
    assert!(watched.borrow().is_none());

    // Everything before revision 4 is forgotten, and with it where these watchers would start.
    stage.ask(Request::Compact { revision: 4 });
    let late = stage.start(async move { client.watch(NODE, vec![spec(2)], &habits()).await });
    stage.run_for(10);
    let log = logs(&stage).pop().unwrap();
    let ends = Notice::Canceled { compact_revision: 4, reason: String::new() };
    assert_eq!(log.notices.last().map(|(_, notice)| notice), Some(&ends));
    assert!(log.closed.is_some() && late.take().is_some_and(|watched| !watched.broke));
    assert_eq!(stage.around.coverage.get(crate::coverage::WATCHER_COMPACTED), 1);
}

/// W5: a client that goes on elsewhere must go on right after what it was told, or the checkers would take
/// its own gap for the server's.
#[test]
fn w5_a_broken_stream_tells_where_each_watcher_goes_on() {
    let mut stage = Stage::new();
    stage.ask(put("k", "one", 0));
    stage.ask(put("k", "two", 0));
    let client = stage.client(1_000_000);
    let habits = Habits { asks_progress_permille: 0, ..habits() };
    let specs = vec![spec(0), spec(2), spec(50)];
    let watched = stage.start(async move { client.watch(NODE, specs, &habits).await });
    stage.run_for(10);
    stage.doors.block(NODE, true);
    stage.run_for(10);
    let watched = watched.take().expect("it broke");
    let starts: Vec<i64> = watched.unfinished.iter().map(|spec| spec.start).collect();
    assert_eq!((watched.broke, starts), (true, vec![4, 4, 50]));
    assert!(logs(&stage).iter().all(|log| log.closed.is_some()));
}

/// A client may use a name again right after it cancelled it; what it is told then must not be taken for
/// what the old watcher was told.
#[test]
fn a_name_used_again_is_another_watcher() {
    let mut stage = Stage::new();
    stage.ask(put("k", "one", 0));
    let client = stage.client(1_000_000);
    let habits = Habits { reopens_permille: 1000, ..habits() };
    stage.start(async move { client.watch(NODE, vec![spec(1)], &habits).await });
    for number in 0..20 {
        stage.ask(put("k", &number.to_string(), 0));
        stage.run_for(400_000);
    }
    let logs = logs(&stage);
    assert!(logs.len() > 3, "{}", logs.len());
    for log in &logs {
        assert!(matches!(log.notices[0].1, Notice::Created { .. }), "{log:?}");
        // The first change of all is at revision 2.
        let mut last = log.start.max(2) - 1;
        for (stamp, notice) in &log.notices {
            assert!(log.closed.is_none_or(|closed| *stamp < closed));
            if let Notice::Events { events, .. } = notice {
                assert_eq!(events[0].kv.modified, last + 1);
                last = events.last().unwrap().kv.modified;
            }
        }
    }
}

/// A reader that takes its time must get everything all the same, only later.
#[test]
fn a_slow_reader_misses_nothing() {
    let mut stage = Stage::new();
    let client = stage.client(1_000_000);
    let habits = Habits { dawdles: 500_000, ..habits() };
    stage.start(async move { client.watch(NODE, vec![spec(1)], &habits).await });
    let writer = stage.client(1_000_000);
    stage.start(async move {
        for _ in 0..60 {
            writer.ask_at(NODE, put("k", &writer.unique(), 0)).await;
        }
    });
    stage.run_for(55_000_000);
    let logs = logs(&stage);
    let told = logs[0].notices.iter().flat_map(|(_, notice)| match notice {
        Notice::Events { events, .. } => events.iter().map(|event| event.kv.modified).collect(),
        _ => Vec::new(),
    });
    assert_eq!(told.collect::<Vec<_>>(), (2..=61).collect::<Vec<_>>());
}
