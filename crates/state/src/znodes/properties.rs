//! Random programs of several sessions, on the real tree and on the naive one.

use proptest::collection::vec;
use proptest::prelude::*;
use tidelock_model::{
    AclEntry, Answer, Command, CreateZnode, Identity, KeyRange, LeaseExpiry, LeaseId, Revision, Rights, SessionAnswer,
    Space, ZnodeCommand, ZnodeError, ZnodeEvent, ZnodeFound, ZnodeLife, ZnodeOp, ZnodeRead, ZnodeRequest,
    ZnodeRequests, znode_changes, znode_path,
};

use super::oracle::{Oracle, may};
use super::paths;
use super::record::Session;
use super::testing::{Client, create_op, entry, open_acl, who};
use crate::testing::{Machine, TERM, load, pages};

const PATHS: [&str; 19] = [
    "/a",
    "/b",
    "/a/x",
    "/a/x/y",
    "/a0",
    "/a.b",
    "/a/n-0000000000",
    "/a/n-0000000001",
    "/",
    "/zookeeper",
    "/zookeeper/config",
    "/zookeeper/quota/a",
    "/zookeeper/quota/a/zookeeper_stats",
    "/zookeeper/quota/a/zookeeper_limits",
    "/zookeeper/quota/a/x",
    "/zookeeper/quota/a/x/zookeeper_stats",
    "/bad/../x",
    "/a//b",
    "noslash",
];

/// Mostly few that exist, so that programs get somewhere.
fn path() -> impl Strategy<Value = String> {
    prop_oneof![8 => 0..4usize, 2 => 4..PATHS.len()].prop_map(|at| PATHS[at].to_owned())
}

fn identities() -> impl Strategy<Value = Vec<Identity>> {
    prop_oneof![
        4 => Just(vec![]),
        2 => Just(vec![who("ip", "10.0.0.1")]),
        2 => Just(vec![who("ip", "10.0.0.1"), who("digest", "a:1")]),
        1 => Just(vec![who("digest", "a:1"), who("digest", "b:1")]),
        1 => Just(vec![who("super", "")]),
    ]
}

fn acl() -> impl Strategy<Value = Vec<AclEntry>> {
    prop_oneof![
        12 => Just(open_acl()),
        1 => Just(vec![]),
        1 => Just(vec![entry(31, "auth", "")]),
        1 => (0..32).prop_map(|bits| vec![entry(bits, "world", "anyone"), entry(31 - bits, "digest", "a:1")]),
        1 => Just(vec![entry(31, "nonsense", "")]),
    ]
}

fn data() -> impl Strategy<Value = Option<bytes::Bytes>> {
    let limits = prop_oneof![
        (1..6).prop_map(|count| format!("count=1,bytes=-1=;countHardLimit={count}")),
        (0..6).prop_map(|bytes| format!("count=-1,bytes=3=;byteHardLimit={bytes}")),
    ];
    let some = prop_oneof![6 => vec(any::<u8>(), 0..3).prop_map(Into::into), 1 => limits.prop_map(Into::into)];
    proptest::option::of(some)
}

fn version() -> impl Strategy<Value = i32> {
    prop_oneof![3 => Just(-1), 1 => 0..3]
}

fn op() -> impl Strategy<Value = ZnodeOp> {
    let life = prop_oneof![
        4 => Just(ZnodeLife::Persistent),
        3 => Just(ZnodeLife::Ephemeral),
        1 => Just(ZnodeLife::Container),
        1 => (0u64..60).prop_map(ZnodeLife::Ttl),
    ];
    let path_to_create = prop_oneof![5 => path(), 2 => Just("/a/n-".to_owned()), 1 => Just("/a/".to_owned())];
    let create = (path_to_create, data(), acl(), life, any::<bool>()).prop_map(|(path, data, acl, life, numbered)| {
        let sequential = numbered && path.ends_with(['-', '/']);
        ZnodeOp::Create(CreateZnode { path, data, acl, life, sequential })
    });
    prop_oneof![
        8 => create,
        4 => (path(), version()).prop_map(|(path, version)| ZnodeOp::Delete { path, version }),
        2 => (path(), data(), version()).prop_map(|(path, data, version)| ZnodeOp::SetData { path, data, version }),
        2 => (path(), acl(), version()).prop_map(|(path, acl, version)| ZnodeOp::SetAcl { path, acl, version }),
        1 => (path(), version()).prop_map(|(path, version)| ZnodeOp::Check { path, version }),
    ]
}

fn request() -> impl Strategy<Value = ZnodeRequest> {
    prop_oneof![3 => op().prop_map(ZnodeRequest::One), 2 => vec(op(), 0..5).prop_map(ZnodeRequest::Multi)]
}

#[derive(Clone, Debug)]
enum Step {
    /// So many at once, in one entry.
    Open(usize),
    /// With this timeout, or the one before.
    Attach(usize, u32),
    Close(usize),
    /// As etcd's clients could.
    Revoke(usize),
    Expire(Vec<usize>),
    /// Requests of the session that is the so-manieth, behind by so many generations.
    Requests(usize, u64, Vec<Identity>, Vec<ZnodeRequest>),
    /// A quota of `/a`, or none of it any more.
    Quota(usize, bool, Option<bytes::Bytes>),
    /// Whether quotas count from now on.
    Enforce(bool),
    Reap(Vec<String>),
    Look(String, Vec<Identity>),
    Reload(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let behind = prop_oneof![9 => Just(0u64), 1 => Just(1)];
    prop_oneof![
        2 => (1usize..3).prop_map(Step::Open),
        1 => (any::<usize>(), prop_oneof![Just(0u32), 1u32..9000]).prop_map(|(at, ms)| Step::Attach(at, ms)),
        1 => any::<usize>().prop_map(Step::Close),
        1 => any::<usize>().prop_map(Step::Revoke),
        1 => vec(any::<usize>(), 0..3).prop_map(Step::Expire),
        16 => (any::<usize>(), behind, identities(), vec(request(), 1..5))
            .prop_map(|(session, behind, identities, requests)| Step::Requests(session, behind, identities, requests)),
        2 => (any::<usize>(), prop_oneof![3 => Just(true), 1 => Just(false)], data())
            .prop_map(|(session, set, limits)| Step::Quota(session, set, limits)),
        1 => any::<bool>().prop_map(Step::Enforce),
        2 => vec(path(), 1..6).prop_map(Step::Reap),
        3 => (path(), identities()).prop_map(|(path, identities)| Step::Look(path, identities)),
        1 => (1usize..200).prop_map(Step::Reload),
    ]
}

struct Run {
    machine: Machine,
    oracle: Oracle,
    /// Every session that ever was.
    sessions: Vec<LeaseId>,
    /// The last revision whose changes were compared.
    told: Revision,
}

impl Run {
    fn new() -> Run {
        Run { machine: Machine::new(), oracle: Oracle::new(), sessions: vec![], told: Revision(1) }
    }

    /// Which session is meant; before there is any, one that never was.
    fn pick(&self, at: usize) -> LeaseId {
        self.sessions.get(at % self.sessions.len().max(1)).copied().unwrap_or(LeaseId(5))
    }

    /// Log time of the entry that comes next.
    fn next_ms(&self) -> u64 {
        self.machine.state.applied().next().0 * 10
    }

    fn step(&mut self, step: Step) {
        let now_ms = self.next_ms();
        match step {
            Step::Open(count) => {
                let open = Command::Znode(ZnodeCommand::OpenSession { timeout_ms: 1500 });
                for applied in self.machine.commands(vec![open; count]).applied {
                    let Ok(Answer::Session(SessionAnswer { session, timeout_ms: 1500, generation: 1 })) =
                        applied.outcome.result
                    else {
                        panic!("not opened");
                    };
                    assert!(!self.sessions.contains(&session), "an id is given out once");
                    assert_eq!(self.machine.state.lease(session).unwrap().ttl_s, 2);
                    self.sessions.push(session);
                    self.oracle.open(session);
                }
            }
            Step::Attach(at, timeout_ms) => self.attach(at, timeout_ms),
            Step::Close(at) => {
                let session = self.pick(at);
                let closed = self.machine.close_session(session).is_ok();
                assert_eq!(closed, self.oracle.sessions.contains_key(&session));
                self.oracle.end(&[session]);
            }
            Step::Revoke(at) => {
                let id = self.pick(at);
                let _ = self.machine.command(Command::LeaseRevoke { id });
                self.oracle.end(&[id]);
            }
            Step::Expire(which) => {
                let ids: Vec<_> = which.iter().map(|at| self.pick(*at)).collect();
                let state = &self.machine.state;
                let named = |id: &LeaseId| Some(LeaseExpiry { id: *id, granted_at: state.lease(*id)?.granted_at });
                let leases = ids.iter().filter_map(named).collect();
                self.machine.command(Command::LeaseExpire { term: TERM, leases }).result.unwrap();
                self.oracle.end(&ids);
            }
            Step::Requests(at, behind, identities, requests) => self.requests(at, behind, identities, requests),
            Step::Quota(at, set, limits) => {
                let path = |name: &str| format!("/zookeeper/quota/a{name}");
                let ops =
                    [path("/zookeeper_limits"), path("/zookeeper_stats"), path("")].into_iter().rev().map(|path| {
                        let create = CreateZnode { acl: open_acl(), ..create_op(&path, ZnodeLife::Persistent) };
                        match set {
                            true => ZnodeOp::Create(CreateZnode { data: limits.clone(), ..create }),
                            false => ZnodeOp::Delete { path, version: -1 },
                        }
                    });
                let mut requests: Vec<_> = ops.map(ZnodeRequest::One).collect();
                if !set {
                    requests.reverse();
                }
                self.requests(at, 0, vec![who("super", "")], requests);
            }
            Step::Enforce(enforces) => self.oracle.enforces_quotas = enforces,
            Step::Reap(paths) => {
                paths.iter().for_each(|path| self.oracle.reap(path, now_ms));
                self.machine.command(Command::Znode(ZnodeCommand::Reap { paths })).result.unwrap();
            }
            Step::Look(path, identities) => self.look(&path, &identities),
            Step::Reload(max_bytes) => {
                let head = self.machine.state.begin_snapshot();
                let loaded = load(&head, pages(&self.machine.state, &head, max_bytes)).unwrap();
                assert_eq!(loaded.digest(), self.machine.state.digest());
                self.machine.state = loaded;
            }
        }
    }

    fn attach(&mut self, at: usize, timeout_ms: u32) {
        let session = self.pick(at);
        let before = self.machine.state.lease(session);
        let attach = Command::Znode(ZnodeCommand::AttachSession { session, timeout_ms });
        let attached = match self.machine.command(attach).result {
            Ok(Answer::Session(answer)) => Some((answer.generation, answer.timeout_ms)),
            _ => None,
        };
        let expected = self.oracle.sessions.get_mut(&session).map(|generation| {
            *generation += 1;
            *generation
        });
        self.oracle.revision += u64::from(expected.is_some());
        assert_eq!(attached.map(|(generation, _)| generation), expected);
        if let (Some((_, granted_ms)), Some(before)) = (attached, before) {
            let lease = self.machine.state.lease(session).unwrap();
            assert!(timeout_ms == 0 || granted_ms == timeout_ms);
            assert!(timeout_ms != 0 || lease.ttl_s == before.ttl_s);
            assert_eq!((lease.ttl_s, lease.granted_at), (granted_ms.div_ceil(1000), self.machine.state.applied()));
        }
    }

    fn requests(&mut self, at: usize, behind: u64, identities: Vec<Identity>, requests: Vec<ZnodeRequest>) {
        let (session, now_ms) = (self.pick(at), self.next_ms());
        let generation = self.oracle.sessions.get(&session).copied().unwrap_or(1).wrapping_sub(behind);
        let mut expected = vec![];
        for request in &requests {
            let result = self.oracle.request(session, generation, &identities, request, now_ms);
            expected.push((self.oracle.revision, result));
        }
        let asked = ZnodeRequests { session, generation, identities, requests };
        let command =
            if self.oracle.enforces_quotas { ZnodeCommand::RequestsWithinQuotas } else { ZnodeCommand::Requests };
        let outcome = self.machine.command(Command::Znode(command(asked)));
        let Ok(Answer::Znodes(outcomes)) = outcome.result else { panic!("{outcome:?}") };
        let outcomes: Vec<_> = outcomes.into_iter().map(|outcome| (outcome.revision.0, outcome.result)).collect();
        assert_eq!(outcomes, expected);
    }

    fn look(&self, path: &str, identities: &[Identity]) {
        let judge = |bits: i32| match self.oracle.nodes.get(path) {
            None => Err(ZnodeError::NoNode),
            Some(node) if may(node, bits, identities) => Ok(()),
            Some(_) => Err(ZnodeError::NoAuth),
        };
        let client = Client { session: LeaseId::NONE, generation: 0, identities: identities.to_vec() };
        let look = |read: ZnodeRead| self.machine.look(&client, read).map(drop);
        assert_eq!(look(ZnodeRead::Stat(path.to_owned())), judge(1));
        assert_eq!(look(ZnodeRead::Data(path.to_owned())), judge(1));
        assert_eq!(look(ZnodeRead::Children(path.to_owned())), judge(1));
        assert_eq!(look(ZnodeRead::Descendants(path.to_owned())), judge(1));
        assert_eq!(look(ZnodeRead::Acl(path.to_owned())), judge(1 | 16));
    }

    /// Everything that can be seen must be what the naive tree says.
    fn compare(&self) {
        let state = &self.machine.state;
        assert_eq!((state.revision().0, state.live_sum), (self.oracle.revision, state.recompute_live_sum()));
        let root = Client { session: LeaseId::NONE, generation: 0, identities: vec![who("super", "")] };
        for (path, node) in &self.oracle.nodes {
            let stat = self.oracle.stat(path);
            let look = |read: fn(String) -> ZnodeRead| self.machine.look(&root, read(path.clone())).unwrap();
            assert_eq!(look(ZnodeRead::Data), ZnodeFound::Data { data: self.oracle.data(path), stat }, "{path}");
            let names = self.oracle.children(path);
            assert_eq!(look(ZnodeRead::Children), ZnodeFound::Children { names, stat });
            assert_eq!(look(ZnodeRead::Acl), ZnodeFound::Acl { acl: node.acl.clone(), stat });
            assert_eq!(look(ZnodeRead::Glance), ZnodeFound::Stat(stat));
            assert_eq!(look(ZnodeRead::Descendants), ZnodeFound::Count(self.oracle.descendants(path)));
        }
        for session in &self.sessions {
            let mut found =
                match self.machine.look(&root, ZnodeRead::Ephemerals { session: *session, prefix: "/".into() }) {
                    Ok(ZnodeFound::Paths(paths)) => paths,
                    other => panic!("{other:?}"),
                };
            found.sort();
            let theirs = self.oracle.nodes.keys().filter(|path| self.oracle.stat(path).owner == *session);
            assert!(found.iter().eq(theirs));
        }
        self.check_keys();
    }

    /// Watchers are told of what happened, each of what it may read: with the rights that counted at that moment,
    /// as the events say, also when they are read from history.
    fn compare_told(&mut self, in_order: bool) {
        let state = &self.machine.state;
        let page = state.events_page(&KeyRange::all_of(Space::Tree), self.told.next(), usize::MAX, true).unwrap();
        let mut told = vec![];
        for revision in page.events.chunk_by(|one, next| one.record.meta().modified == next.record.meta().modified) {
            for change in znode_changes(revision) {
                let list = |rights: Rights| rights.map_or_else(open_acl, |list| list.to_vec());
                match change.event {
                    ZnodeEvent::SessionTaken { .. } | ZnodeEvent::SessionEnded(_) => {}
                    event => told.push((event, list(change.rights), list(change.parent_rights))),
                }
            }
        }
        let mut expected = std::mem::take(&mut self.oracle.told);
        if !in_order {
            told.sort_by_key(|told| format!("{told:?}"));
            expected.sort_by_key(|told| format!("{told:?}"));
        }
        assert_eq!(told, expected);
        self.told = state.revision();
    }

    /// What is stored is what belongs to the znodes and sessions that exist, and nothing else.
    fn check_keys(&self) {
        let state = &self.machine.state;
        let (mut znodes, mut sessions) = (vec![], vec![]);
        for item in state.keyspace.live_range(&KeyRange::all_of(Space::Tree)) {
            let (kind, rest) = item.key.name().split_first().unwrap();
            match kind {
                b'N' => znodes.push(znode_path(&item.key).unwrap()),
                b'S' | b'C' => {
                    let path = std::str::from_utf8(rest).unwrap();
                    let node = self.oracle.nodes.get(path).expect("it belongs to a znode that exists");
                    let is_reaped = matches!(node.life, ZnodeLife::Container | ZnodeLife::Ttl(_));
                    assert!(*kind == b'S' || is_reaped);
                }
                b'Q' => {
                    let of = std::str::from_utf8(rest).unwrap();
                    assert!(self.oracle.nodes.contains_key(&format!("/zookeeper/quota{of}/zookeeper_stats")));
                }
                b'Z' => {
                    let id = LeaseId(i64::from_be_bytes(rest.try_into().unwrap()));
                    assert_eq!(item.record.meta().lease, id);
                    sessions.push((id, Session::read(item.record.value()).generation));
                }
                other => panic!("a key of kind {other}"),
            }
        }
        for path in znodes.iter().filter(|path| *path != "/") {
            assert!(state.znode(paths::parent_of(path)).is_some(), "{path} has no parent");
        }
        znodes.sort();
        assert!(znodes.iter().eq(self.oracle.nodes.keys()));
        assert!(sessions.into_iter().eq(self.oracle.sessions.clone()));
        let reaped = self
            .oracle
            .nodes
            .values()
            .filter(|node| !matches!(node.life, ZnodeLife::Persistent | ZnodeLife::Ephemeral));
        assert_eq!(state.keyspace.live_range(&paths::reapable_keys()).count(), reaped.count());
        assert!(state.leases().map(|(id, _)| id).eq(self.oracle.sessions.keys().copied()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// ZooKeeper's clients build locks on these numbers: every answer, figure, list and error is the one that
    /// the plain rules give, after every step, however sessions, multis, reaping and reloading interleave.
    #[test]
    fn the_tree_behaves_like_the_naive_one(steps in vec(step(), 1..40)) {
        let mut run = Run::new();
        run.step(Step::Open(2));
        run.told = run.machine.state.revision();
        for step in steps {
            // When a session ends, its znodes go in any order.
            let in_order = matches!(step, Step::Requests(..) | Step::Quota(..));
            run.step(step);
            run.compare();
            run.compare_told(in_order);
        }
    }
}
