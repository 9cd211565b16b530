//! Quotas: what an operator sees of them, and what they refuse.

use bytes::Bytes;
use tidelock_model::{
    Answer, Command, CreateZnode, ZnodeAnswer, ZnodeCommand, ZnodeError, ZnodeFound, ZnodeLife, ZnodeOp, ZnodeRead,
    ZnodeRequest, ZnodeRequests,
};

use super::testing::{Client, create, create_ephemeral, create_op, delete, set};
use crate::testing::Machine;

const STATS: &str = "/zookeeper/quota/a/zookeeper_stats";
const LIMITS: &str = "/zookeeper/quota/a/zookeeper_limits";

fn create_with(path: &str, data: &str) -> ZnodeOp {
    let data = Some(Bytes::copy_from_slice(data.as_bytes()));
    ZnodeOp::Create(CreateZnode { data, ..create_op(path, ZnodeLife::Persistent) })
}

/// A machine with `/a`, which has the four bytes of every [`create`], and a quota of it.
fn with_quota(limits: &str) -> (Machine, Client) {
    let mut machine = Machine::new();
    let client = machine.open_session();
    for op in [create("/a"), create("/zookeeper/quota/a"), create_with(LIMITS, limits), create_with(STATS, "x")] {
        machine.one(&client, op).unwrap();
    }
    (machine, client)
}

fn figures(machine: &Machine, client: &Client) -> String {
    match machine.look(client, ZnodeRead::Data(STATS.into())) {
        Ok(ZnodeFound::Data { data: Some(data), stat }) => {
            assert_eq!(stat.data_length as usize, data.len());
            String::from_utf8(data.to_vec()).unwrap()
        }
        other => panic!("no figures: {other:?}"),
    }
}

/// Asks with quotas enforced; tells what became of it, and of which znodes the log is to tell.
fn ask(
    machine: &mut Machine,
    client: &Client,
    request: ZnodeRequest,
) -> (Result<ZnodeAnswer, ZnodeError>, Vec<String>) {
    let (session, generation) = (client.session, client.generation);
    let requests = ZnodeRequests { session, generation, identities: vec![], requests: vec![request] };
    let effects = machine.commands(vec![Command::Znode(ZnodeCommand::RequestsWithinQuotas(requests))]);
    match effects.applied[0].outcome.result.clone() {
        Ok(Answer::Znodes(mut outcomes)) => (outcomes.remove(0).result, effects.over_quota),
        other => panic!("not asked: {other:?}"),
    }
}

fn one(machine: &mut Machine, client: &Client, op: ZnodeOp) -> Result<(), ZnodeError> {
    ask(machine, client, ZnodeRequest::One(op)).0.map(drop)
}

/// An operator reads who uses how much; figures that drift are worse than none.
#[test]
fn the_figures_of_a_quota_are_true_whatever_changes_below_it() {
    let (mut machine, client) = with_quota("count=9,bytes=99");
    let other = machine.open_session();
    let created = machine.glance(STATS).unwrap();
    let after = |machine: &mut Machine, expected: &str| assert_eq!(figures(machine, &client), expected);
    after(&mut machine, "count=1,bytes=4");
    machine.one(&client, create("/a/b")).unwrap();
    machine.one(&client, create("/a/b/c")).unwrap();
    machine.one(&client, create("/ab")).unwrap();
    after(&mut machine, "count=3,bytes=12");
    machine.one(&client, set("/a/b", "longer", -1)).unwrap();
    after(&mut machine, "count=3,bytes=14");
    machine.one(&other, create_ephemeral("/a/e")).unwrap();
    after(&mut machine, "count=4,bytes=18");
    machine.close_session(other.session).unwrap();
    after(&mut machine, "count=3,bytes=14");
    machine.multi(&client, vec![delete("/a/b/c"), create("/a/d"), create("/a/d/e"), delete("/a/b")]).unwrap();
    after(&mut machine, "count=3,bytes=12");
    machine.one(&client, ZnodeOp::Create(create_op("/a/t", ZnodeLife::Ttl(1)))).unwrap();
    machine.reap(&["/a/t"]);
    after(&mut machine, "count=3,bytes=12");
    let stat = machine.glance(STATS).unwrap();
    assert_eq!((stat.version, stat.modified), (created.version, created.modified), "nobody set its data");
    machine.one(&client, delete(STATS)).unwrap();
    machine.one(&client, create("/a/later")).unwrap();
    machine.multi(&client, vec![create("/a/new"), create_with(STATS, ""), delete("/a/d/e")]).unwrap();
    after(&mut machine, "count=4,bytes=16");
}

/// A hard limit that can be broken limits nothing; one that was not asked for must not stop anybody.
#[test]
fn a_hard_limit_refuses_what_would_break_it() {
    let (mut machine, client) = with_quota("count=-1,bytes=-1=;byteHardLimit=10;countHardLimit=2");
    assert_eq!(one(&mut machine, &client, create("/a/b")), Ok(()));
    assert_eq!(one(&mut machine, &client, create("/a/c")), Err(ZnodeError::QuotaExceeded));
    assert_eq!(one(&mut machine, &client, create("/a/b")), Err(ZnodeError::NodeExists), "that comes first");
    assert_eq!(
        one(&mut machine, &client, set("/a/b", "1234567", 9)),
        Err(ZnodeError::QuotaExceeded),
        "before versions"
    );
    assert_eq!(one(&mut machine, &client, set("/a", "123456", -1)), Ok(()));
    assert_eq!(one(&mut machine, &client, create("/b")), Ok(()), "elsewhere");
    assert_eq!(figures(&machine, &client), "count=2,bytes=10");
    machine.one(&client, create("/a/c")).expect("it is not asked for");
    assert_eq!(one(&mut machine, &client, delete("/a/c")), Ok(()));

    // In a multi the operations before it count.
    machine.one(&client, delete("/a/b")).unwrap();
    let both = ZnodeRequest::Multi(vec![create_with("/a/b", ""), create_with("/a/c", "")]);
    let expected = ZnodeAnswer::MultiFailed { at: 1, error: ZnodeError::QuotaExceeded };
    assert_eq!(ask(&mut machine, &client, both).0, Ok(expected));
    let moved = ZnodeRequest::Multi(vec![create_with("/a/b", ""), delete("/a/b"), create_with("/a/c", "")]);
    assert!(matches!(ask(&mut machine, &client, moved).0, Ok(ZnodeAnswer::Multi(_))));

    machine.one(&client, delete(STATS)).unwrap();
    assert_eq!(one(&mut machine, &client, create("/a/d")), Ok(()), "nobody counts");
}

/// A soft limit warns an operator and stops nobody.
#[test]
fn a_soft_limit_is_told_and_refuses_nothing() {
    let (mut machine, client) = with_quota("count=1,bytes=-1");
    let (result, told) = ask(&mut machine, &client, ZnodeRequest::One(create("/a/b")));
    assert!(result.is_ok());
    assert_eq!(told, ["/a/b"]);
    let (result, told) = ask(&mut machine, &client, ZnodeRequest::One(set("/a/b", "very much longer", -1)));
    assert!(result.is_ok() && told.is_empty(), "no bytes are limited");
    // What was not done broke nothing.
    let failing = ZnodeRequest::Multi(vec![create("/a/c"), delete("/nobody")]);
    assert_eq!(ask(&mut machine, &client, failing).1, Vec::<String>::new());
}

/// Limits are texts that anybody may write: what makes no sense limits nothing.
#[test]
fn limits_that_make_no_sense_limit_nothing() {
    for limits in ["", "=", "count", "count=", "countHardLimit=x", ",;,", "countHardLimit=-1", "countHardLimit=1e1"] {
        let (mut machine, client) = with_quota(limits);
        assert_eq!(one(&mut machine, &client, create("/a/b")), Ok(()), "{limits}");
    }
    for limits in ["countHardLimit=1", "bytes=1=;countHardLimit=1", "count=5;;countHardLimit=1=7"] {
        let (mut machine, client) = with_quota(limits);
        assert_eq!(one(&mut machine, &client, create("/a/b")), Err(ZnodeError::QuotaExceeded), "{limits}");
    }
}
