//! What holds of a session that a client comes back to, and of what was there before anybody came.

use tidelock_model::{
    Answer, Command, LeaseExpiry, LogIndex, Revision, SessionAnswer, ZnodeCommand, ZnodeError, ZnodeLife, ZnodeOp,
};

use super::testing::{Client, create, create_op, delete, set};
use crate::LeaseChange;
use crate::testing::{Machine, TERM};

fn attach(machine: &mut Machine, client: &Client, timeout_ms: u32) -> (SessionAnswer, Vec<LeaseChange>) {
    let attach = ZnodeCommand::AttachSession { session: client.session, timeout_ms };
    let effects = machine.commands(vec![Command::Znode(attach)]);
    match effects.applied[0].outcome.result {
        Ok(Answer::Session(answer)) => (answer, effects.leases),
        ref other => panic!("not attached: {other:?}"),
    }
}

/// S2: a client that comes back counts on what it is granted then, at every node and under every leader. The clock
/// of the leader is told, and begins anew.
#[test]
fn s2_a_client_that_comes_back_gets_the_timeout_it_asks_for_now() {
    let mut machine = Machine::new();
    let client = machine.open_session();
    for (asked_ms, granted_ms, ttl_s) in [(30_000, 30_000, 30), (2_001, 2_001, 3), (0, 2_001, 3)] {
        let (answer, leases) = attach(&mut machine, &client, asked_ms);
        let granted_at = machine.state.applied();
        assert_eq!(answer.timeout_ms, granted_ms);
        assert_eq!(leases, [LeaseChange::Renewed { id: client.session, ttl_s, granted_at }]);
        assert_eq!(machine.state.lease(client.session).map(|lease| lease.ttl_s), Some(ttl_s));
        assert_eq!(machine.state.live_sum, machine.state.recompute_live_sum());
    }
}

/// S2, L1: the end of a session was proposed, and its client comes back before that is carried out: it was told that
/// the session goes on, so it does.
#[test]
fn s2_an_end_on_its_way_does_not_hit_a_session_that_was_taken_up_again() {
    let mut machine = Machine::new();
    let client = machine.open_session();
    let granted_at = machine.state.lease(client.session).unwrap().granted_at;
    let expire = |granted_at: LogIndex| Command::LeaseExpire {
        term: TERM,
        leases: vec![LeaseExpiry { id: client.session, granted_at }],
    };
    attach(&mut machine, &client, 4_000);
    machine.command(expire(granted_at)).result.unwrap();
    assert!(machine.state.has_lease(client.session));
    let granted_at = machine.state.lease(client.session).unwrap().granted_at;
    machine.command(expire(granted_at)).result.unwrap();
    assert!(!machine.state.has_lease(client.session));
}

/// Clients take a zxid of zero for "before all changes": a watch they bring back must not fire for the root.
#[test]
fn what_was_there_from_the_start_shows_zeros_until_it_is_changed() {
    let mut machine = Machine::new();
    let client = machine.open_session();
    for path in ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"] {
        let stat = machine.glance(path).unwrap();
        let zxids = [stat.created, stat.modified, stat.children_modified];
        assert_eq!((zxids, stat.created_ms, stat.modified_ms), ([Revision(0); 3], 0, 0), "{path}");
    }
    machine.one(&client, create("/a")).unwrap();
    machine.one(&client, set("/", "data", 0)).unwrap();
    let (stat, now) = (machine.glance("/").unwrap(), machine.state.revision());
    assert_eq!((stat.created, stat.created_ms, stat.version), (Revision(0), 0, 1));
    assert_eq!((stat.modified, stat.children_modified.next()), (now, now));
    assert!(stat.modified_ms > 0);
}

/// Which operation of a multi failed is what a client goes by: one with a time to live that no znode can have is
/// judged in its turn, not before the others.
#[test]
fn an_impossible_time_to_live_in_a_multi_is_judged_in_its_turn() {
    let mut machine = Machine::new();
    let client = machine.open_session();
    let bad = || ZnodeOp::Create(create_op("/bad", ZnodeLife::Ttl(0)));
    let failed = machine.multi(&client, vec![delete("/nobody"), bad()]);
    assert_eq!(failed.unwrap_err(), (0, ZnodeError::NoNode));
    let failed = machine.multi(&client, vec![create("/a"), bad(), delete("/nobody")]);
    assert_eq!(failed.unwrap_err(), (1, ZnodeError::BadArguments));
    assert!(machine.glance("/a").is_none());
}
