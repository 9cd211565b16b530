//! A node of one, given its turns by hand over a disk in memory: what threads and real time would make rare.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tidelock_coordinator::{Answering, Consistency, Coordinator, ProposeError};
use tidelock_journal::memory_disk::MemoryDisk;
use tidelock_model::limits::COMMAND_BYTES_MAX;
use tidelock_model::{
    Caller, ClusterId, Command, Key, LeaseId, LogTime, Member, MemberRole, NodeId, Op, Outcome, PutLease, PutOp,
    PutValue, Query, Revision, Space,
};
use tidelock_node::peers::{LinkState, SnapshotDone, SnapshotSource};
use tidelock_node::{Bootstrap, Draws, Links, Moment, NodeConfig, NodeLimits, Prepared, SnapshotJob, Workers};
use tidelock_state::State;

const HEARTBEAT: Duration = Duration::from_millis(100);

/// A node of one has nobody to talk to.
#[derive(Clone)]
struct Alone;

impl Links for Alone {
    fn send_all(&self, _: NodeId, _: Vec<Bytes>) {}
    fn set_peers(&self, _: &[(NodeId, Vec<String>)]) {}
    fn link_state(&self, _: NodeId) -> Option<LinkState> {
        None
    }
    fn send_snapshot(&self, _: NodeId, _: Box<dyn SnapshotSource>, _: SnapshotDone) {}
}

type Jobs = Arc<Mutex<Vec<SnapshotJob<MemoryDisk>>>>;

struct Single {
    workers: Workers<MemoryDisk, Alone>,
    coordinator: Arc<dyn Coordinator>,
    jobs: Jobs,
    now: Duration,
}

impl Single {
    fn start(limits: NodeLimits) -> Single {
        let member = Member {
            id: NodeId(1),
            name: "one".into(),
            peer_addresses: vec!["h:1".into()],
            client_urls: vec![],
            role: MemberRole::Voter,
            zookeeper: None,
        };
        let config = NodeConfig {
            name: "one".into(),
            data_dir: "memory".into(),
            client_urls: vec![],
            bootstrap: Bootstrap::Found { cluster: ClusterId(1), node: NodeId(1), members: vec![member] },
            heartbeat: HEARTBEAT,
            election_timeout: HEARTBEAT * 10,
            request_timeout: Duration::from_secs(5),
            limits,
        };
        let prepared = Prepared::open(&config, MemoryDisk::new(), Draws { boot: 1, disk: 1 }).unwrap();
        let jobs = Jobs::default();
        let put_down = jobs.clone();
        let workers = prepared.connect(Alone, Box::new(move |job| put_down.lock().unwrap().push(job)));
        let coordinator = workers.coordinator.clone();
        let mut single = Single { workers, coordinator, jobs, now: Duration::ZERO };
        single.settle();
        single
    }

    /// Gives every worker turns until none has anything to do, without time passing.
    fn settle(&mut self) {
        for _ in 0..20 {
            let now = Moment { steady: self.now, wall: LogTime(1_000) };
            self.workers.consensus.turn(now);
            self.workers.journal.turn(now);
            self.workers.apply.turn(now);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.settle();
    }

    fn wait<T>(&mut self, mut call: Answering<'_, T>) -> T {
        for _ in 0..10 {
            if let Poll::Ready(done) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return done;
            }
            self.settle();
        }
        panic!("no answer");
    }

    fn propose(&mut self, command: Command) -> Result<Outcome, ProposeError> {
        let coordinator = self.coordinator.clone();
        self.wait(coordinator.propose(Caller::Internal, command, None))
    }
}

fn put(value: Vec<u8>) -> Command {
    Command::Write(Op::Put(PutOp {
        key: Key::new(Space::User, b"k"),
        value: PutValue::Set(value.into()),
        lease: PutLease::Set(LeaseId::NONE),
        want_previous: false,
    }))
}

/// L1: a client that renewed a moment ago relies on the whole time to live from then.
#[test]
fn l1_a_renewal_counts_from_when_it_came_not_from_the_last_tick() {
    let mut node = Single::start(NodeLimits::default());
    let lease = LeaseId(5);
    node.propose(Command::LeaseGrant { id: lease, ttl_s: 1 }).unwrap();
    // Just before the next look at the clock; the one before it is almost a heartbeat ago.
    node.pass(HEARTBEAT - Duration::from_millis(1));
    let coordinator = node.coordinator.clone();
    assert!(node.wait(coordinator.keep_alive(Caller::Internal, lease)).unwrap().is_some());
    let renewed = node.now;
    while node.workers.look(|state| state.has_lease(lease)) {
        node.pass(Duration::from_millis(1));
    }
    let lived = node.now - renewed;
    assert!(lived >= Duration::from_secs(1), "ended after only {lived:?}");
    assert!(lived <= Duration::from_secs(1) + HEARTBEAT * 2, "ended late: {lived:?}");
}

/// Otherwise a node whose snapshots and compactions meet would keep the garbage until it restarts.
#[test]
fn a_compaction_that_a_snapshot_held_back_is_swept_after_it() {
    let mut node = Single::start(NodeLimits { snapshot_page_bytes: 1, ..NodeLimits::default() });
    for value in 0..50 {
        node.propose(put(vec![value; 100])).unwrap();
    }
    let held = node.workers.look(State::data_bytes);
    let coordinator = node.coordinator.clone();
    let mut snapshot = coordinator.take_snapshot(Caller::Internal);
    assert!(snapshot.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    node.settle();
    let mut job = node.jobs.lock().unwrap().pop().expect("a snapshot began");
    assert!(job.turn(), "it is under way");
    let revision = node.workers.look(State::revision);
    node.propose(Command::Compact { revision }).unwrap();
    node.pass(HEARTBEAT);
    assert!(node.workers.look(State::data_bytes) > held / 2, "the snapshot still reads the past");
    while job.turn() {}
    drop(job);
    node.pass(HEARTBEAT);
    node.pass(HEARTBEAT);
    assert!(node.workers.look(State::data_bytes) < held / 10, "nobody reads the past any more");
    node.wait(snapshot).unwrap();
}

/// What compresses well makes small files, but each costs a walk over all that is held: if only files counted, history
/// that nobody compacts would be read again with every few megabytes of journal.
#[test]
fn snapshots_read_no_more_than_the_journal_wrote() {
    let mut node = Single::start(NodeLimits { snapshot_journal_bytes: 10_000, ..NodeLimits::default() });
    let mut begun = 0;
    for _ in 0..200 {
        node.propose(put(vec![0; 1_000])).unwrap();
        while let Some(mut job) = node.jobs.lock().unwrap().pop() {
            begun += 1;
            while job.turn() {}
        }
    }
    assert!((3..=6).contains(&begun), "{begun} snapshots; with 10, 20, 40, 80 and 160 kB there are five");
}

/// If its size were taken off what waits without having been added, every later write would be refused.
#[test]
fn a_command_over_the_limit_is_refused_and_leaves_nothing_waiting() {
    let mut node = Single::start(NodeLimits::default());
    for _ in 0..3 {
        let refused = node.propose(put(vec![0; COMMAND_BYTES_MAX + 1]));
        assert!(matches!(refused, Err(ProposeError::TooLarge { .. })), "{refused:?}");
    }
    let outcome = node.propose(put(b"small".to_vec())).unwrap();
    assert_eq!(outcome.revision, Revision(2));
    let coordinator = node.coordinator.clone();
    node.wait(coordinator.read(Caller::Internal, Query::Members, Consistency::Linearizable)).unwrap();
}
