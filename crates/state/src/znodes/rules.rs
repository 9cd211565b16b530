//! ZooKeeper's rules, one by one: what its clients and recipes rely on.

use tidelock_model::{
    Alarm, AlarmKind, Answer, Caller, Command, CreateZnode, LeaseId, NodeId, Op, Query, QueryAnswer, Refusal,
    RequestId, Revision, ZnodeAnswer, ZnodeCommand, ZnodeError, ZnodeFound, ZnodeLife, ZnodeOp, ZnodeOpAnswer,
    ZnodeRead, ZnodeRequest, znode_path,
};

use super::paths;
use super::testing::{
    Client, check, create, create_ephemeral, create_for, create_numbered, create_op, delete, entry, open_acl, set,
    set_acl, who,
};
use crate::testing::{Machine, load, pages, proposal, put, put_leased};
use ZnodeError as E;

fn stat_of(machine: &Machine, path: &str) -> tidelock_model::ZnodeStat {
    machine.glance(path).unwrap_or_else(|| panic!("{path} does not exist"))
}

/// Creates a chain of znodes under one session.
fn with(paths: &[&str]) -> (Machine, Client) {
    let mut machine = Machine::new();
    let client = machine.open_session();
    paths.iter().for_each(|path| drop(machine.created(&client, create(path))));
    (machine, client)
}

/// Curator, Solr and others look for these before they do anything; the figures are those of a fresh server.
#[test]
fn the_first_session_finds_the_root_and_the_system_znodes() {
    let (machine, client) = with(&[]);
    let root = stat_of(&machine, "/");
    assert_eq!((root.children, root.child_version, root.data_length, root.version), (1, -1, 0, 0));
    let system = stat_of(&machine, "/zookeeper");
    assert_eq!((system.children, system.child_version), (2, -2));
    let names = |path: &str| match machine.look(&client, ZnodeRead::Children(path.into())) {
        Ok(ZnodeFound::Children { names, .. }) => names,
        other => panic!("{other:?}"),
    };
    assert_eq!((names("/"), names("/zookeeper")), (vec!["zookeeper".into()], vec!["config".into(), "quota".into()]));
    match machine.look(&client, ZnodeRead::Acl("/zookeeper/config".into())) {
        Ok(ZnodeFound::Acl { acl, stat }) => {
            assert_eq!((acl, stat.acl_version), (vec![entry(1, "world", "anyone")], -1));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(machine.state.revision(), Revision(2), "all at the revision of the session");
}

/// Before any session there is no tree, and reading it must say so rather than fail.
#[test]
fn a_store_without_sessions_has_no_znodes() {
    let machine = Machine::new();
    let nobody = Client { session: LeaseId(1), generation: 1, identities: vec![] };
    assert_eq!(machine.look(&nobody, ZnodeRead::Stat("/".into())), Err(E::NoNode));
    assert_eq!(machine.look(&nobody, ZnodeRead::Reapable(9)), Ok(ZnodeFound::Paths(vec![])));
}

/// "/bad/../x" is "no node" to ZooKeeper's clients, since the parent is looked for first.
#[test]
fn create_checks_in_zookeepers_order() {
    let (mut machine, client) = with(&["/open", "/full"]);
    machine.created(&client, create_ephemeral("/eph"));
    machine.created(&client, create("/full/x"));
    machine.one(&client, set_acl("/full", vec![entry(31, "digest", "a:x")], -1)).unwrap();
    let op = |path: &str, life, acl| ZnodeOp::Create(CreateZnode { acl, ..create_op(path, life) });
    let plain = ZnodeLife::Persistent;
    let cases = [
        (op("noslash", ZnodeLife::Ttl(0), vec![]), E::BadArguments, "the time to live comes first"),
        (op("/x", ZnodeLife::Ttl(1 << 40), open_acl()), E::BadArguments, "so long nothing may live"),
        (op("noslash", plain, vec![]), E::BadArguments, "then whether there is a parent at all"),
        (op("/a\0b", plain, vec![]), E::BadArguments, "a zero byte is found with it"),
        (op("/none/x", plain, vec![]), E::InvalidAcl, "the list before the parent"),
        (op("/bad/../x", plain, open_acl()), E::NoNode, "the parent before the spelling"),
        (op("/full/..", plain, open_acl()), E::NoAuth, "the rights before the spelling"),
        (op("/full/x", plain, open_acl()), E::NoAuth, "the rights before the name"),
        (op("/open/..", plain, open_acl()), E::BadArguments, "the spelling"),
        (op("//x", plain, open_acl()), E::BadArguments, "an empty name"),
        (op("/eph/", plain, open_acl()), E::BadArguments, "the spelling before the kind of parent"),
        (op("/eph/x", plain, open_acl()), E::NoChildrenForEphemerals, "the kind of parent"),
        (op("/open", plain, open_acl()), E::NodeExists, "the name"),
        (op("/", plain, open_acl()), E::NodeExists, "the root"),
    ];
    for (op, error, why) in cases {
        assert_eq!(machine.one(&client, op), Err(error), "{why}");
    }
}

#[test]
fn delete_checks_in_zookeepers_order() {
    let (mut machine, client) = with(&["/shut", "/a", "/a/x"]);
    machine.created(&client, create("/shut/x"));
    machine.one(&client, set_acl("/shut", vec![entry(31 - 8, "world", "anyone")], -1)).unwrap();
    let versioned = |path: &str, version| ZnodeOp::Delete { path: path.into(), version };
    assert_eq!(machine.one(&client, delete("noslash")), Err(E::BadArguments));
    assert_eq!(machine.one(&client, delete("/none/x")), Err(E::NoNode));
    assert_eq!(machine.one(&client, versioned("/shut/none", 9)), Err(E::NoAuth), "the rights before the znode");
    assert_eq!(machine.one(&client, versioned("/none", 9)), Err(E::NoNode));
    assert_eq!(machine.one(&client, versioned("/a", 9)), Err(E::BadVersion), "the version before the children");
    assert_eq!(machine.one(&client, versioned("/a", 0)), Err(E::NotEmpty));
    for path in ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"] {
        assert_eq!(machine.one(&client, delete(path)), Err(E::BadArguments), "{path}");
    }
    assert_eq!(machine.one(&client, versioned("/a/x", 0)), Ok(ZnodeOpAnswer::Done));
    assert_eq!(machine.one(&client, delete("/a")), Ok(ZnodeOpAnswer::Done));
    assert_eq!(machine.glance("/a"), None);
}

/// Locks and caches are built on these figures: what moves which of them.
#[test]
fn figures_move_as_zookeepers_do() {
    let (mut machine, client) = with(&["/p"]);
    let made = stat_of(&machine, "/p");
    assert_eq!((made.created, made.modified, made.children_modified), (Revision(3), Revision(3), Revision(3)));
    assert_eq!((made.version, made.child_version, made.acl_version, made.data_length), (0, 0, 0, 4));
    assert!(made.created_ms > 0 && made.created_ms == made.modified_ms);

    machine.created(&client, create("/p/a"));
    machine.created(&client, create("/p/b"));
    machine.created(&client, create("/p/c"));
    machine.one(&client, delete("/p/b")).unwrap();
    let parent = stat_of(&machine, "/p");
    assert_eq!((parent.child_version, parent.children, parent.children_modified), (4, 2, Revision(7)));
    assert_eq!((parent.modified, parent.modified_ms, parent.version), (made.modified, made.modified_ms, 0));

    let Ok(ZnodeOpAnswer::Changed(set_stat)) = machine.one(&client, set("/p", "longer", 0)) else { panic!() };
    assert_eq!((set_stat.version, set_stat.modified, set_stat.data_length), (1, Revision(8), 6));
    assert!(set_stat.modified_ms > made.modified_ms && set_stat.created_ms == made.created_ms);
    assert_eq!((set_stat.children_modified, set_stat.created, set_stat.children), (Revision(7), Revision(3), 2));

    let Ok(ZnodeOpAnswer::Changed(acl_stat)) = machine.one(&client, set_acl("/p", open_acl(), 0)) else { panic!() };
    assert_eq!(acl_stat, tidelock_model::ZnodeStat { acl_version: 1, ..set_stat }, "only the list's version moves");
    assert_eq!(stat_of(&machine, "/p"), acl_stat);
    assert_eq!(machine.one(&client, set("/p", "", 0)), Err(E::BadVersion));
    assert_eq!(machine.one(&client, set_acl("/p", open_acl(), 0)), Err(E::BadVersion));
    assert_eq!(machine.one(&client, check("/p", 1)), Ok(ZnodeOpAnswer::Done));
    assert_eq!(machine.one(&client, check("/p", 0)), Err(E::BadVersion));
}

/// A lock's queue is ordered by these numbers: none may come twice, whatever was deleted in between.
#[test]
fn a_sequential_znode_gets_the_number_of_children_ever_created() {
    let (mut machine, client) = with(&["/q"]);
    assert_eq!(machine.created(&client, create_numbered("/q/n-")), "/q/n-0000000000");
    assert_eq!(machine.created(&client, create("/q/plain")), "/q/plain");
    assert_eq!(machine.created(&client, create_numbered("/q/n-")), "/q/n-0000000002");
    machine.one(&client, delete("/q/n-0000000002")).unwrap();
    assert_eq!(machine.created(&client, create_numbered("/q/n-")), "/q/n-0000000003");
    assert_eq!(machine.created(&client, create_numbered("/q/")), "/q/0000000004", "a number alone is a name");
    assert_eq!(machine.created(&client, create_numbered("/top")), "/top0000000001", "the system znodes do not count");
}

/// After two thousand million children numbers go on below zero, as ZooKeeper's do.
#[test]
fn sequence_numbers_wrap_as_zookeepers_do() {
    let (mut machine, client) = with(&["/q"]);
    machine.created(&client, create("/q/x"));
    let key = paths::side_key("/q");
    let mut value = machine.state.keyspace.get(&key).unwrap().record.value().to_vec();
    value[..4].copy_from_slice(&(i32::MAX as u32).to_be_bytes());
    let put = tidelock_model::PutOp {
        key,
        value: tidelock_model::PutValue::Set(value.into()),
        lease: tidelock_model::PutLease::Keep,
        want_previous: false,
    };
    machine.done(Op::Put(put));
    assert_eq!(machine.created(&client, create_numbered("/q/n")), "/q/n2147483647");
    assert_eq!(machine.created(&client, create_numbered("/q/n")), "/q/n-2147483648");
    assert_eq!(machine.created(&client, create_numbered("/q/n")), "/q/n-2147483647");
}

/// Clients tell "no data" from "empty data".
#[test]
fn no_data_is_not_empty_data() {
    let (mut machine, client) = with(&["/a"]);
    for data in [None, Some(bytes::Bytes::new()), Some(bytes::Bytes::from(vec![1; 5000]))] {
        machine.one(&client, ZnodeOp::SetData { path: "/a".into(), data: data.clone(), version: -1 }).unwrap();
        match machine.look(&client, ZnodeRead::Data("/a".into())) {
            Ok(ZnodeFound::Data { data: found, .. }) => assert_eq!(found, data),
            other => panic!("{other:?}"),
        }
    }
    let large = bytes::Bytes::from(vec![0; tidelock_model::limits::VALUE_BYTES_MAX]);
    let op = ZnodeOp::SetData { path: "/a".into(), data: Some(large), version: -1 };
    assert_eq!(machine.one(&client, op), Err(E::BadArguments), "no record could hold it");
}

/// zetcd#88: session expiry must be a tree operation, or parents can never be deleted again.
#[test]
fn a_session_that_ends_takes_its_znodes_and_tells_their_parents_at_one_revision() {
    let (mut machine, keeper) = with(&["/a", "/b"]);
    for way in 0..3 {
        let client = machine.open_session();
        let op = |path: &str| {
            let acl = vec![entry(31, "world", "anyone"), entry(1, "digest", "a:x")];
            ZnodeOp::Create(CreateZnode { acl, ..create_op(path, ZnodeLife::Ephemeral) })
        };
        ["/a/1", "/a/2", "/b/1"].into_iter().for_each(|path| drop(machine.created(&client, op(path))));
        assert_eq!(stat_of(&machine, "/a/1").owner, client.session);
        let Ok(ZnodeFound::Paths(theirs)) =
            machine.look(&keeper, ZnodeRead::Ephemerals { session: client.session, prefix: "/a".into() })
        else {
            panic!();
        };
        assert_eq!(theirs, ["/a/1", "/a/2"]);
        let (before, counts) =
            (machine.state.revision(), ["/a", "/b"].map(|path| stat_of(&machine, path).child_version));
        match way {
            0 => drop(machine.close_session(client.session).unwrap()),
            1 => machine.expire_sessions(&[client.session]),
            _ => drop(machine.command(Command::LeaseRevoke { id: client.session })),
        }
        assert_eq!(machine.state.revision(), before.next());
        for (path, count, gone) in [("/a", counts[0], 2), ("/b", counts[1], 1)] {
            let stat = stat_of(&machine, path);
            assert_eq!((stat.children, stat.children_modified), (0, before.next()));
            assert_eq!(stat.child_version, count + gone);
        }
        assert!(machine.state.keyspace.get(&paths::side_key("/a/1")).is_none());
        assert_eq!(machine.one(&client, create("/late")), Err(E::SessionExpired));
        assert_eq!(machine.attach_session(client.session).err(), Some(Refusal::LeaseNotFound));
        assert_eq!(machine.close_session(client.session), Err(Refusal::LeaseNotFound));
    }
    machine.one(&keeper, delete("/a")).unwrap();
}

/// An etcd lease is no session, and etcd keys may share a session's lease: one must not break the other.
#[test]
fn leases_of_etcd_clients_go_on_beside_sessions() {
    let mut machine = Machine::new();
    machine.grant(7);
    let client = machine.open_session();
    machine.done(put_leased("k", "v", client.session.0));
    machine.done(put_leased("own", "v", 7));
    machine.created(&client, create_ephemeral("/e"));
    let nobody = Client { session: LeaseId(7), generation: 1, identities: vec![] };
    assert_eq!(machine.one(&nobody, create("/x")), Err(E::SessionExpired));
    assert_eq!(machine.attach_session(LeaseId(7)).err(), Some(Refusal::LeaseNotFound));
    assert_eq!(machine.close_session(LeaseId(7)), Err(Refusal::LeaseNotFound));
    match machine.state.read(&Query::Leases) {
        Ok(QueryAnswer::Leases { ids, .. }) => assert_eq!(ids, [LeaseId(7), client.session]),
        other => panic!("{other:?}"),
    }
    machine.close_session(client.session).unwrap();
    assert_eq!(machine.pairs_at(machine.state.revision().0), [("own".to_owned(), "v".to_owned())]);
    machine.command(Command::LeaseRevoke { id: LeaseId(7) }).result.unwrap();
    assert_eq!(machine.state.lease_count(), 0);
}

/// The lease clock hears of sessions as it hears of leases, and gives them their time, never less (L1).
#[test]
fn a_session_is_a_lease_that_lives_at_least_as_long() {
    let mut machine = Machine::new();
    for (timeout_ms, ttl_s) in [(4000, 4), (4001, 5), (1, 1), (0, 1), (u32::MAX, 4_294_968)] {
        let effects = machine.commands(vec![Command::Znode(ZnodeCommand::OpenSession { timeout_ms })]);
        let Ok(Answer::Session(answer)) = effects.applied[0].outcome.result else { panic!("{effects:?}") };
        assert_eq!(answer.timeout_ms, timeout_ms);
        let granted_at = machine.state.applied();
        assert_eq!(effects.leases, [crate::LeaseChange::Granted { id: answer.session, ttl_s, granted_at }]);
        let effects = machine.commands(vec![Command::Znode(ZnodeCommand::CloseSession { session: answer.session })]);
        assert_eq!(effects.leases, [crate::LeaseChange::Ended { id: answer.session }]);
    }
}

/// Who lost a session must not come back as somebody else: an id is given out once, however entries are cut.
#[test]
fn every_session_has_an_id_of_its_own() {
    let mut machine = Machine::new();
    let mut seen = std::collections::BTreeSet::new();
    for count in [1, 3, 1, 2, 1, 1, 1] {
        let open = Command::Znode(ZnodeCommand::OpenSession { timeout_ms: 1000 });
        for applied in machine.commands(vec![open; count]).applied {
            let Ok(Answer::Session(answer)) = applied.outcome.result else { panic!() };
            assert_eq!(answer.session.0 >> 56, 1);
            assert!(seen.insert(answer.session));
        }
        let last = *seen.last().unwrap();
        machine.close_session(last).unwrap();
    }
}

/// An etcd client that chose the very id must neither lose its lease nor stop the node.
#[test]
fn an_id_that_is_taken_is_refused_and_the_next_try_gets_another() {
    let mut machine = Machine::new();
    let next = machine.state.applied().next().next();
    machine.grant(1 << 56 | (next.0 as i64) << 12);
    let open = || Command::Znode(ZnodeCommand::OpenSession { timeout_ms: 1000 });
    let refused = machine.command(open());
    assert_eq!((refused.result, refused.revision), (Err(Refusal::LeaseExists), Revision(1)));
    assert!(machine.command(open()).result.is_ok());
}

/// A connection that was cut off must not write after the client went on elsewhere.
#[test]
fn requests_of_an_earlier_connection_are_refused() {
    let (mut machine, old) = with(&["/a"]);
    let new = machine.attach_session(old.session).unwrap();
    assert_eq!(new.generation, old.generation + 1);
    assert_eq!(machine.one(&old, set("/a", "late", -1)), Err(E::SessionMoved));
    assert_eq!(machine.ask(&old, ZnodeRequest::Multi(vec![])).result, Err(E::SessionMoved));
    machine.one(&new, set("/a", "new", -1)).unwrap();
    let ahead = Client { generation: 9, ..new };
    assert_eq!(machine.one(&ahead, set("/a", "", -1)), Err(E::SessionMoved));
    let stranger = Client { session: LeaseId(99), ..old };
    assert_eq!(machine.one(&stranger, set("/a", "", -1)), Err(E::SessionExpired));
}

/// All or nothing at one revision, each operation seeing those before it; a failed one leaves no trace.
#[test]
fn a_multi_is_done_whole_or_not_at_all() {
    let (mut machine, client) = with(&["/a"]);
    let before = machine.state.revision();
    let ops = vec![
        check("/a", 0),
        create("/a/x"),
        create("/a/x/y"),
        set("/a/x/y", "new", 0),
        create_numbered("/a/n-"),
        create_numbered("/a/n-"),
        delete("/a/x/y"),
        delete("/a/x"),
        create("/a/x"),
    ];
    let answers = machine.multi(&client, ops.clone()).unwrap();
    assert_eq!(machine.state.revision(), before.next());
    let created = |at: usize| match &answers[at] {
        ZnodeOpAnswer::Created { path, stat } => (path.as_str(), stat.created),
        other => panic!("{other:?}"),
    };
    assert_eq!((created(4), created(5)), (("/a/n-0000000001", before.next()), ("/a/n-0000000002", before.next())));
    let stat = stat_of(&machine, "/a/x");
    assert_eq!((stat.version, stat.child_version, stat.created), (0, 0, before.next()), "it is a new one");
    let parent = stat_of(&machine, "/a");
    assert_eq!((parent.children, parent.child_version, parent.children_modified), (3, 5, before.next()));
    assert_eq!(machine.glance("/a/x/y"), None);

    assert_eq!(machine.multi(&client, ops), Err((1, E::NodeExists)));
    let doomed = vec![create("/b"), create_ephemeral("/b/e"), delete("/a/x"), set("/b", "", 7), delete("/nowhere")];
    assert_eq!(machine.multi(&client, doomed), Err((3, E::BadVersion)));
    assert_eq!(machine.multi(&client, vec![create("/c"), delete("/c"), create("/c/d")]), Err((2, E::NoNode)));
    assert_eq!(
        machine.multi(&client, vec![create_ephemeral("/c"), create("/c/d")]),
        Err((1, E::NoChildrenForEphemerals))
    );
    assert_eq!(machine.multi(&client, vec![create("/c"), create("/c/d"), delete("/c")]), Err((2, E::NotEmpty)));
    let now = machine.state.revision();
    assert_eq!(machine.multi(&client, vec![]), Ok(vec![]));
    assert_eq!(machine.multi(&client, vec![check("/a", -1)]), Ok(vec![ZnodeOpAnswer::Done]));
    assert_eq!(machine.state.revision(), now, "what changes nothing takes no revision");
    machine
        .multi(&client, vec![delete("/a/x"), delete("/a/n-0000000001"), delete("/a/n-0000000002"), delete("/a")])
        .unwrap();
    assert!(
        machine.state.keyspace.get(&paths::side_key("/a")).is_none(),
        "a parent gone with its children leaves nothing"
    );
}

/// A watcher must be told of what came and went within one multi, in the order it was asked for.
#[test]
fn events_of_a_multi_come_in_the_order_of_its_operations() {
    let (mut machine, client) = with(&["/a"]);
    let ops = vec![create("/z"), set("/a", "", -1), delete("/z"), create("/b")];
    let effects = machine.commands(vec![client.requests(vec![ZnodeRequest::Multi(ops)])]);
    let told = effects.events.iter().filter_map(|event| Some((znode_path(&event.key)?, event.record.meta().version)));
    let expected = [("/z", 1), ("/a", 2), ("/z", 0), ("/b", 1)].map(|(path, version)| (path.to_owned(), version));
    assert_eq!(told.collect::<Vec<_>>(), expected);
}

/// Pipelined requests are answered one by one, each with its own revision; a failed one takes none.
#[test]
fn requests_of_one_connection_are_carried_out_in_order_each_at_its_own_revision() {
    let (mut machine, client) = with(&[]);
    let requests = vec![
        ZnodeRequest::One(create("/a")),
        ZnodeRequest::One(create("/a")),
        ZnodeRequest::Multi(vec![create("/a/x"), create("/a/y")]),
        ZnodeRequest::One(delete("/a/x")),
    ];
    let Ok(Answer::Znodes(outcomes)) = machine.command(client.requests(requests)).result else { panic!() };
    let told: Vec<_> = outcomes.iter().map(|outcome| (outcome.revision.0, outcome.result.is_ok())).collect();
    assert_eq!(told, [(3, true), (3, false), (4, true), (5, true)]);
}

/// Who may do what: each operation asks the right znode for the right permission.
#[test]
fn every_operation_needs_its_own_permission() {
    let all = [1, 2, 4, 8, 16];
    let needed = |asked: &dyn Fn(&mut Machine, &Client) -> Result<(), ZnodeError>| -> Vec<i32> {
        let allows = |bit: &i32| {
            let (mut machine, client) = with(&["/p"]);
            machine.created(&client, create("/p/c"));
            machine.one(&client, set_acl("/p", vec![entry(*bit, "digest", "a:x")], -1)).unwrap();
            assert_eq!(asked(&mut machine, &client.as_who("digest", "b:x")), Err(E::NoAuth));
            assert_eq!(asked(&mut machine, &client.as_who("super", "")), Ok(()));
            let (mut machine, client) = with(&["/p"]);
            machine.created(&client, create("/p/c"));
            machine.one(&client, set_acl("/p", vec![entry(*bit, "digest", "a:x")], -1)).unwrap();
            asked(&mut machine, &client.as_who("digest", "a:x")).is_ok()
        };
        all.into_iter().filter(allows).collect()
    };
    let op = |op: ZnodeOp| move |machine: &mut Machine, client: &Client| machine.one(client, op.clone()).map(drop);
    let read =
        |read: ZnodeRead| move |machine: &mut Machine, client: &Client| machine.look(client, read.clone()).map(drop);
    let p = || "/p".to_owned();
    assert_eq!(needed(&read(ZnodeRead::Stat(p()))), [1]);
    assert_eq!(needed(&read(ZnodeRead::Data(p()))), [1]);
    assert_eq!(needed(&read(ZnodeRead::Children(p()))), [1]);
    assert_eq!(needed(&read(ZnodeRead::Descendants(p()))), [1]);
    assert_eq!(needed(&read(ZnodeRead::Acl(p()))), [1, 16]);
    assert_eq!(needed(&op(check("/p", -1))), [1]);
    assert_eq!(needed(&op(set("/p", "", -1))), [2]);
    assert_eq!(needed(&op(create("/p/new"))), [4]);
    assert_eq!(needed(&op(delete("/p/c"))), [8]);
    assert_eq!(needed(&op(set_acl("/p", open_acl(), -1))), [16]);
}

/// Who may only read a list must not learn the digests in it.
#[test]
fn a_list_of_rights_is_shown_with_digests_masked_unless_the_caller_may_administer() {
    let (mut machine, client) = with(&[]);
    let acl = vec![entry(1, "world", "anyone"), entry(16, "digest", "a:secret")];
    machine.created(&client, create_for("/p", acl.clone()));
    let shown = |client: &Client| match machine.look(client, ZnodeRead::Acl("/p".into())) {
        Ok(ZnodeFound::Acl { acl, .. }) => acl,
        other => panic!("{other:?}"),
    };
    assert_eq!(shown(&client.as_who("digest", "a:secret")), acl);
    assert_eq!(shown(&client.as_who("super", "")), acl);
    assert_eq!(shown(&client), [entry(1, "world", "anyone"), entry(16, "digest", "a:x")]);
}

/// Rights given to `auth` are those of who made the znode, for good.
#[test]
fn auth_stands_for_the_identities_of_who_creates() {
    let (mut machine, client) = with(&[]);
    let ann = Client { identities: vec![who("ip", "10.0.0.1"), who("digest", "ann:1")], ..client.clone() };
    assert_eq!(machine.one(&client, create_for("/p", vec![entry(31, "auth", "")])), Err(E::InvalidAcl));
    machine.created(&ann, create_for("/p", vec![entry(31, "auth", "")]));
    assert_eq!(machine.one(&client, set("/p", "", -1)), Err(E::NoAuth));
    assert!(machine.one(&client.as_who("digest", "ann:1"), set("/p", "", -1)).is_ok());
    assert_eq!(machine.one(&ann, set_acl("/p", vec![], -1)), Err(E::InvalidAcl));
}

/// Other operations look at the spelling first; what only reads does not find what cannot be.
#[test]
fn badly_spelled_paths_are_refused_where_zookeeper_refuses_them() {
    let (mut machine, client) = with(&["/a"]);
    for bad in ["", "a", "/a/", "/a//b", "/./a", "/a\0"] {
        assert_eq!(machine.one(&client, set(bad, "", -1)), Err(E::BadArguments), "{bad:?}");
        assert_eq!(machine.one(&client, set_acl(bad, vec![], -1)), Err(E::BadArguments), "{bad:?}");
        assert_eq!(machine.one(&client, check(bad, -1)), Err(E::BadArguments), "{bad:?}");
        assert_eq!(machine.look(&client, ZnodeRead::Data(bad.into())), Err(E::NoNode), "{bad:?}");
        assert_eq!(machine.look(&client, ZnodeRead::Children(bad.into())), Err(E::NoNode), "{bad:?}");
    }
    assert_eq!(machine.look(&client, ZnodeRead::Stat("/a\0".into())), Err(E::BadArguments));
    let longest = "/".to_owned() + &"n".repeat(tidelock_model::limits::ZNODE_PATH_BYTES_MAX - 1);
    assert_eq!(machine.one(&client, create_numbered(&longest)), Err(E::BadArguments), "with its number it is too long");
    assert_eq!(machine.created(&client, create(&longest)), longest);
    let head = machine.state.begin_snapshot();
    assert_eq!(load(&head, pages(&machine.state, &head, 64)).unwrap().digest(), machine.state.digest());
}

/// A container goes with its last child, but not before the first one came.
#[test]
fn containers_are_reaped_once_they_had_children_and_have_none() {
    let (mut machine, client) = with(&["/plain", "/plain/x"]);
    let container = |path: &str| ZnodeOp::Create(create_op(path, ZnodeLife::Container));
    machine.created(&client, container("/c"));
    machine.created(&client, container("/c/d"));
    machine.created(&client, create("/c/d/x"));
    machine.one(&client, delete("/plain/x")).unwrap();
    let candidates = |machine: &Machine| machine.look(&client, ZnodeRead::Reapable(9));
    let all = ["/c/d", "/c", "/plain", "/none", "/"];
    machine.reap(&all);
    assert!(machine.glance("/c/d").is_some() && machine.glance("/plain").is_some());
    assert_eq!(candidates(&machine), Ok(ZnodeFound::Paths(vec![])));
    assert_eq!(stat_of(&machine, "/c/d").owner, LeaseId::NONE);
    machine.one(&client, delete("/c/d/x")).unwrap();
    assert_eq!(candidates(&machine), Ok(ZnodeFound::Paths(vec!["/c/d".into()])));
    let before = machine.state.revision();
    machine.reap(&all);
    assert_eq!((machine.glance("/c/d"), machine.glance("/c")), (None, None), "the child first, then its parent");
    assert_eq!(machine.state.revision().0, before.0 + 2);
    machine.created(&client, container("/c"));
    machine.reap(&all);
    assert!(machine.glance("/c").is_some(), "a new one of the same name never had children");
}

/// A time to live counts from the last change of the data, and only while there are no children.
#[test]
fn znodes_with_a_time_to_live_are_reaped_when_it_is_over() {
    let (mut machine, client) = with(&[]);
    let ttl = |path: &str, ttl_ms| ZnodeOp::Create(create_op(path, ZnodeLife::Ttl(ttl_ms)));
    // Log time goes on by ten milliseconds with every entry here.
    machine.created(&client, ttl("/late", 1000));
    machine.created(&client, ttl("/t", 20));
    machine.created(&client, create("/t/x"));
    assert_eq!(machine.look(&client, ZnodeRead::Reapable(9)), Ok(ZnodeFound::Paths(vec!["/late".into()])));
    (0..5).for_each(|_| machine.reap(&["/t"]));
    assert!(machine.glance("/t").is_some());
    machine.one(&client, set("/t", "again", -1)).unwrap();
    machine.one(&client, delete("/t/x")).unwrap();
    let next = |max| machine.look(&client, ZnodeRead::Reapable(max));
    assert_eq!(next(9), Ok(ZnodeFound::Paths(vec!["/t".into(), "/late".into()])), "what ends first comes first");
    assert_eq!(next(1), Ok(ZnodeFound::Paths(vec!["/t".into()])));
    machine.reap(&["/t", "/late"]);
    assert!(machine.glance("/t").is_some(), "twenty milliseconds, not more");
    machine.reap(&["/t", "/late"]);
    assert_eq!((machine.glance("/t"), machine.glance("/late").is_some()), (None, true));
    assert_eq!(machine.look(&client, ZnodeRead::Reapable(9)), Ok(ZnodeFound::Paths(vec!["/late".into()])));
}

/// H25: a retried create of a sequential znode must not make a second one, whoever answers.
#[test]
fn h25_a_request_that_comes_again_gets_the_first_answer() {
    let (mut machine, client) = with(&["/q"]);
    let mut answers = vec![];
    for number in 100..103 {
        let again = client.requests(vec![ZnodeRequest::One(create_numbered("/q/n-"))]);
        let mut again = proposal(number, again);
        again.request = Some(RequestId { client: 5, number: 1 });
        answers.push(machine.entry(vec![again]).applied.remove(0).outcome);
        let head = machine.state.begin_snapshot();
        machine.state = load(&head, pages(&machine.state, &head, 10)).unwrap();
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    assert_eq!(stat_of(&machine, "/q").children, 1);
    let Ok(Answer::Znodes(outcomes)) = &answers[0].result else { panic!() };
    assert!(matches!(outcomes[0].result, Ok(ZnodeAnswer::One(ZnodeOpAnswer::Created { .. }))));
}

/// When space is short clients must be able to come back, delete and leave, and nothing may grow.
#[test]
fn a_space_alarm_refuses_what_grows_the_tree_and_nothing_else() {
    let (mut machine, client) = with(&["/a", "/b"]);
    let alarm = |kind, raised| Command::SetAlarm { alarm: Alarm { member: NodeId(1), kind }, raised };
    machine.command(alarm(AlarmKind::NoSpace, true)).result.unwrap();
    let refused = |machine: &mut Machine, command| machine.command(command).result.err();
    let open = || Command::Znode(ZnodeCommand::OpenSession { timeout_ms: 1000 });
    assert_eq!(refused(&mut machine, open()), Some(Refusal::NoSpace));
    for op in [create("/x"), set("/a", "", -1), set_acl("/a", open_acl(), -1)] {
        let multi = client.requests(vec![ZnodeRequest::Multi(vec![delete("/b"), op.clone()])]);
        assert_eq!(refused(&mut machine, multi), Some(Refusal::NoSpace));
        let one = client.requests(vec![ZnodeRequest::One(op)]);
        assert_eq!(refused(&mut machine, one), Some(Refusal::NoSpace));
    }
    machine.one(&client, delete("/a")).unwrap();
    let client = machine.attach_session(client.session).unwrap();
    machine.command(alarm(AlarmKind::NoSpace, false)).result.unwrap();
    machine.command(alarm(AlarmKind::Corrupt, true)).result.unwrap();
    let one = client.requests(vec![ZnodeRequest::One(delete("/b"))]);
    assert_eq!(refused(&mut machine, one), Some(Refusal::Corrupt));
    assert_eq!(refused(&mut machine, open()), Some(Refusal::Corrupt));
    assert_eq!(machine.close_session(client.session).err(), Some(Refusal::Corrupt));
    assert!(machine.attach_session(client.session).is_ok());
    machine.expire_sessions(&[client.session]);
    assert!(!machine.state.has_lease(client.session));
}

/// A1: etcd's users say nothing about znodes, but nobody but the nodes may have them reaped.
#[test]
fn a1_znodes_are_asked_about_their_own_rights_and_reaping_is_the_nodes_own() {
    use tidelock_model::{AuthCommand, AuthRefusal};
    let (mut machine, client) = with(&["/a"]);
    let root = || "root".to_owned();
    for command in [
        AuthCommand::UserAdd { user: root(), password_hash: None },
        AuthCommand::UserGrantRole { user: root(), role: root() },
        AuthCommand::Enable { token_secret: [1; 32] },
    ] {
        machine.command(Command::Auth(command)).result.unwrap();
    }
    let one = client.requests(vec![ZnodeRequest::One(create("/b"))]);
    assert!(machine.command_by(Caller::Anonymous, one).result.is_ok());
    let reap = Command::Znode(ZnodeCommand::Reap { paths: vec![] });
    assert_eq!(machine.command_by(Caller::Anonymous, reap).result, Err(Refusal::Auth(AuthRefusal::NoUser)));
    let revoke = Command::LeaseRevoke { id: client.session };
    assert_eq!(machine.command_by(Caller::Anonymous, revoke).result, Err(Refusal::Auth(AuthRefusal::NoUser)));
}

/// etcd's clients must not notice the tree: neither in their keys nor in what they read of them.
#[test]
fn keys_of_etcd_clients_are_not_mixed_with_znodes() {
    let (mut machine, client) = with(&["/a"]);
    machine.done(put("a", "1"));
    machine.created(&client, create("/b"));
    assert_eq!(machine.pairs_at(machine.state.revision().0), [("a".to_owned(), "1".to_owned())]);
    let page = machine.state.events_page(&crate::testing::everything(), Revision(1), 99, true).unwrap();
    assert_eq!(page.events.len(), 1);
}
