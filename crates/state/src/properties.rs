//! Properties of the whole machine, checked against the naive oracle over random commands.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tidelock_model::{
    Alarm, AlarmKind, Alarms, Batch, Caller, Command, Compare, CompareResult, CompareTarget, DeleteOp, Key, KeyRange,
    LeaseExpiry, LeaseId, LogIndex, LogTime, Member, MemberRole, NodeId, Op, Origin, Projection, Proposal, PutLease,
    PutOp, PutValue, Query, QueryAnswer, RangeOp, RequestId, Revision, RevisionBounds, Sort, SortBy, Space, Term, Txn,
};

use crate::State;
use crate::oracle::Oracle;
use crate::testing::{Machine, TERM, everything, load, pages};

/// Few names, so that they meet often; one too long to be stored inline.
const NAMES: [&str; 8] = ["a", "aa", "ab", "b", "c", "c/1", "c/2", "long/enough/to/be/stored/elsewhere"];

fn name() -> impl Strategy<Value = Key> {
    (0..NAMES.len()).prop_map(|at| Key::new(Space::User, NAMES[at].as_bytes()))
}

fn range() -> impl Strategy<Value = KeyRange> {
    prop_oneof![
        3 => name().prop_map(KeyRange::single),
        2 => (name(), name()).prop_map(|(start, end)| KeyRange { start, end }),
        1 => Just(everything()),
    ]
}

fn lease() -> impl Strategy<Value = LeaseId> {
    (0i64..4).prop_map(LeaseId)
}

fn revision() -> impl Strategy<Value = Revision> {
    (0u64..40).prop_map(Revision)
}

fn put_op() -> impl Strategy<Value = PutOp> {
    let value = prop_oneof![
        4 => vec(b'0'..b'4', 0..3).prop_map(|value| PutValue::Set(value.into())),
        1 => Just(PutValue::Keep),
    ];
    let owner = prop_oneof![3 => lease().prop_map(PutLease::Set), 1 => Just(PutLease::Keep)];
    (name(), value, owner, any::<bool>()).prop_map(|(key, value, lease, want_previous)| PutOp {
        key,
        value,
        lease,
        want_previous,
    })
}

fn range_op() -> impl Strategy<Value = RangeOp> {
    let by = prop_oneof![
        Just(SortBy::Key),
        Just(SortBy::Version),
        Just(SortBy::Created),
        Just(SortBy::Modified),
        Just(SortBy::Value)
    ];
    let sort = option::of((by, any::<bool>()).prop_map(|(by, descending)| Sort { by, descending }));
    let bound = || prop_oneof![3 => Just(0u64), 1 => 1u64..30];
    let bounds =
        (bound(), bound(), bound(), bound()).prop_map(|(modified_min, modified_max, created_min, created_max)| {
            RevisionBounds { modified_min, modified_max, created_min, created_max }
        });
    let projection =
        prop_oneof![3 => Just(Projection::Full), 1 => Just(Projection::KeysOnly), 1 => Just(Projection::CountOnly)];
    (range(), option::of(revision()), 0u64..5, sort, bounds, projection)
        .prop_map(|(range, at, limit, sort, bounds, projection)| RangeOp { range, at, limit, sort, bounds, projection })
}

fn compare() -> impl Strategy<Value = Compare> {
    let target = prop_oneof![
        (-1i64..4).prop_map(CompareTarget::Version),
        (-1i64..30).prop_map(CompareTarget::Created),
        (-1i64..30).prop_map(CompareTarget::Modified),
        (-1i64..4).prop_map(CompareTarget::Lease),
        vec(b'0'..b'4', 0..3).prop_map(|value| CompareTarget::Value(value.into())),
    ];
    let result = prop_oneof![
        Just(CompareResult::Equal),
        Just(CompareResult::Greater),
        Just(CompareResult::Less),
        Just(CompareResult::NotEqual)
    ];
    (range(), result, target).prop_map(|(range, result, target)| Compare { range, result, target })
}

fn op() -> impl Strategy<Value = Op> {
    let leaf = prop_oneof![
        5 => put_op().prop_map(Op::Put),
        3 => (range(), any::<bool>()).prop_map(|(range, want_previous)| Op::Delete(DeleteOp { range, want_previous })),
        1 => range_op().prop_map(Op::Range),
    ];
    leaf.prop_recursive(2, 12, 4, |inner| {
        (vec(compare(), 0..3), vec(inner.clone(), 0..4), vec(inner, 0..4))
            .prop_map(|(compares, success, failure)| Op::Txn(Box::new(Txn { compares, success, failure })))
    })
}

/// Raised one time in `1 + lowered`: under an alarm little else happens.
fn alarm(members: impl Strategy<Value = u64>, lowered: u32) -> impl Strategy<Value = Command> {
    let kind = prop_oneof![Just(AlarmKind::NoSpace), Just(AlarmKind::Corrupt)];
    let raised = prop_oneof![1 => Just(true), lowered => Just(false)];
    (members, kind, raised)
        .prop_map(|(member, kind, raised)| Command::SetAlarm { alarm: Alarm { member: NodeId(member), kind }, raised })
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        12 => op().prop_map(Command::Write),
        2 => revision().prop_map(|revision| Command::Compact { revision }),
        3 => lease().prop_map(|id| Command::LeaseGrant { id, ttl_s: 60 }),
        1 => lease().prop_map(|id| Command::LeaseRevoke { id }),
        1 => alarm(0u64..2, 3),
        1 => (any::<bool>(), vec((lease(), 0u64..20), 0..4)).prop_map(|(same_term, leases)| Command::LeaseExpire {
            term: if same_term { TERM } else { Term(TERM.0 - 1) },
            leases: leases
                .into_iter()
                .map(|(id, granted_at)| LeaseExpiry { id, granted_at: LogIndex(granted_at) })
                .collect(),
        }),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Entry(Vec<Command>),
    /// Expire every lease, each named as it stands.
    ExpireAll,
    Sweep(usize),
    Read(RangeOp),
    Txn(Op),
    /// Go on with a state loaded from a snapshot, written in pages of so many bytes.
    Reload(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => vec(command(), 1..4).prop_map(Step::Entry),
        1 => Just(Step::ExpireAll),
        2 => (0usize..10).prop_map(Step::Sweep),
        2 => range_op().prop_map(Step::Read),
        1 => op().prop_map(Step::Txn),
        1 => (1usize..200).prop_map(Step::Reload),
    ]
}

fn run_entry(machine: &mut Machine, oracle: &mut Oracle, commands: Vec<Command>) {
    let index = machine.state.applied().next();
    let before = oracle.revision;
    let mut expected = Vec::new();
    for command in &commands {
        let result = oracle.apply(index, TERM, command);
        expected.push((oracle.revision, result));
    }
    let effects = machine.commands(commands);
    let applied = effects.applied.into_iter().map(|applied| (applied.outcome.revision, applied.outcome.result));
    assert_eq!(applied.collect::<Vec<_>>(), expected);
    // What is told now and what is found in history later are the same, but for what a compaction in
    // the same entry cut off.
    let mut uncompacted = oracle.clone();
    uncompacted.compacted = Revision(0);
    assert_eq!(effects.events, uncompacted.events(&everything(), before.next()));
}

fn run_step(machine: &mut Machine, oracle: &mut Oracle, step: Step) {
    match step {
        Step::Entry(commands) => run_entry(machine, oracle, commands),
        Step::ExpireAll => {
            let leases =
                machine.state.leases().map(|(id, lease)| LeaseExpiry { id, granted_at: lease.granted_at }).collect();
            run_entry(machine, oracle, vec![Command::LeaseExpire { term: TERM, leases }]);
            assert_eq!(machine.state.lease_count(), 0);
        }
        Step::Sweep(steps) => {
            machine.state.sweep(steps, Revision(u64::MAX));
        }
        Step::Read(op) => {
            let expected = op.at.map_or(Ok(()), |at| oracle.check(at)).map(|()| oracle.range(&op));
            assert_eq!(machine.read(op), expected);
        }
        Step::Txn(op) => {
            // Alarms do not keep anyone from reading.
            let mut copy = Oracle { alarms: Alarms::default(), ..oracle.clone() };
            let read = machine.state.read(&Query::Txn(op.clone()));
            if op.writes() {
                assert!(read.is_err());
                return;
            }
            let expected = copy.apply(LogIndex(0), TERM, &Command::Write(op));
            let answer = read.map(|answer| match answer {
                QueryAnswer::Op { answer, .. } => tidelock_model::Answer::Op(answer),
                other => panic!("{other:?}"),
            });
            assert_eq!(answer, expected);
        }
        Step::Reload(max_bytes) => {
            let head = machine.state.begin_snapshot();
            machine.state = load(&head, pages(&machine.state, &head, max_bytes)).unwrap();
        }
    }
}

/// Reads a range the way a node does: in pages of `size` keys.
fn read_paged(state: &State, op: &RangeOp, at: Revision, size: usize) -> tidelock_model::RangeAnswer {
    let (mut items, mut after) = (Vec::new(), None);
    loop {
        let page = state.range_page(op, at, after.as_ref(), size).unwrap();
        items.extend(page.items);
        after = page.next;
        if after.is_none() || items.len() >= State::items_wanted(op) {
            return State::finish_range(op, items, state.count_at(&op.range, at).unwrap());
        }
    }
}

/// Everything that can be seen must equal what the oracle says.
fn compare_all(machine: &Machine, oracle: &Oracle) {
    let state = &machine.state;
    assert_eq!((state.revision(), state.compacted()), (oracle.revision, oracle.compacted));
    assert_eq!(state.alarms(), &oracle.alarms);
    assert_eq!(state.live_sum, state.recompute_live_sum());
    assert!(state.leases().eq(oracle.leases.iter().map(|(id, lease)| (*id, *lease))));
    for id in oracle.leases.keys() {
        let owned = oracle.at(oracle.revision).into_values().filter(|item| item.record.meta().lease == *id);
        assert!(state.lease_keys(*id).eq(owned.map(|item| item.key).collect::<Vec<_>>().iter()));
    }
    for at in oracle.compacted.0..=oracle.revision.0 {
        let op = RangeOp { at: Some(Revision(at)), ..RangeOp::all(everything()) };
        for limit in 0..4 {
            let op = RangeOp { limit, ..op.clone() };
            assert_eq!(machine.read(op.clone()), Ok(oracle.range(&op)));
        }
        let narrow = KeyRange { start: Key::new(Space::User, b"aa"), end: Key::new(Space::User, b"c/2") };
        let narrow = RangeOp { range: narrow, ..op };
        assert_eq!(read_paged(state, &narrow, Revision(at), 2), oracle.range(&narrow));
    }
    for from in oracle.compacted.0..oracle.revision.0 + 3 {
        compare_events(state, oracle, Revision(from));
    }
    assert!(oracle.compacted.0 == 0 || state.changes(Revision(oracle.compacted.0 - 1), 1).is_err());
}

/// A watcher that catches up in small pages sees every event once, whole revisions at a time.
fn compare_events(state: &State, oracle: &Oracle, from: Revision) {
    let range = KeyRange { start: Key::new(Space::User, b"a"), end: Key::new(Space::User, b"c/2") };
    let (mut events, mut next) = (Vec::new(), from);
    while next <= state.revision() {
        let page = state.events_page(&range, next, 2, true).unwrap();
        assert!(page.next > next);
        assert!(page.events.iter().all(|event| (next..page.next).contains(&event.record.meta().modified)));
        events.extend(page.events);
        next = page.next;
    }
    assert_eq!(next, from.max(state.revision().next()));
    assert_eq!(events, oracle.events(&range, from));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The store never lies: every answer, event, count and refusal at every revision still held is
    /// the one that the plain rules give, however compaction, sweeping and reloading interleave.
    #[test]
    fn the_machine_behaves_like_the_oracle(steps in vec(step(), 1..40)) {
        let (mut machine, mut oracle) = (Machine::new(), Oracle::new());
        for step in steps {
            run_step(&mut machine, &mut oracle, step);
        }
        compare_all(&machine, &oracle);
        machine.sweep_all();
        compare_all(&machine, &oracle);
        // Forgetting forgets: nothing is held that nobody can read.
        prop_assert_eq!(machine.state.keyspace.held(), oracle.held());
    }

    /// A snapshot holds one moment, whatever is written, compacted and swept while it is taken, and two
    /// replicas go on alike from the original and the copy (R5).
    #[test]
    fn a_snapshot_taken_under_writes_is_the_state_of_its_moment(
        before in vec(vec(command(), 1..4), 0..20),
        during in vec(vec(command(), 1..4), 1..20),
        max_bytes in 1usize..100,
    ) {
        let (mut machine, mut oracle) = (Machine::new(), Oracle::new());
        before.into_iter().for_each(|commands| run_entry(&mut machine, &mut oracle, commands));
        let then = oracle.clone();
        let number = machine.number;
        let head = machine.state.begin_snapshot();
        let digest = machine.state.digest();

        let (mut written, mut from, mut finished) = (Vec::new(), None, false);
        for commands in &during {
            if !finished {
                let page = machine.state.snapshot_page(&head, from.as_ref(), max_bytes);
                written.push(page.bytes);
                finished = page.next.is_none();
                from = page.next;
            }
            run_entry(&mut machine, &mut oracle, commands.clone());
            machine.state.sweep(usize::MAX, head.keep_from);
        }
        while !finished {
            let page = machine.state.snapshot_page(&head, from.as_ref(), max_bytes);
            written.push(page.bytes);
            finished = page.next.is_none();
            from = page.next;
        }

        let loaded = load(&head, written).unwrap();
        prop_assert_eq!((loaded.applied(), loaded.digest()), (head.index, digest));
        let mut copy = Machine { state: loaded, number };
        compare_all(&copy, &then);
        prop_assert_eq!(copy.state.keyspace.held(), then.held());
        let mut again = then;
        during.into_iter().for_each(|commands| run_entry(&mut copy, &mut again, commands));
        prop_assert_eq!(copy.state.digest(), machine.state.digest());
        prop_assert_eq!(copy.state.begin_snapshot(), machine.state.begin_snapshot());
    }

    /// A read in pages that a compaction overtakes still shows one revision, as long as sweeping waits.
    #[test]
    fn a_paged_read_shows_one_revision_under_writes(
        before in vec(vec(command(), 1..4), 1..20),
        during in vec(vec(command(), 1..4), 1..20),
        size in 1usize..4,
    ) {
        let (mut machine, mut oracle) = (Machine::new(), Oracle::new());
        before.into_iter().for_each(|commands| run_entry(&mut machine, &mut oracle, commands));
        let at = oracle.revision;
        let op = RangeOp::all(everything());
        let expected = oracle.range(&op).items;
        let (mut items, mut after) = (Vec::new(), None);
        for commands in during.into_iter().chain(std::iter::repeat_with(Vec::new)) {
            let page = machine.state.range_page(&op, at, after.as_ref(), size).unwrap();
            items.extend(page.items);
            after = page.next;
            if after.is_none() {
                break;
            }
            run_entry(&mut machine, &mut oracle, commands);
            machine.state.sweep(usize::MAX, at);
        }
        prop_assert_eq!(items, expected);
    }
}

fn wild_key() -> impl Strategy<Value = Key> {
    prop_oneof![name(), vec(any::<u8>(), 0..40).prop_map(|bytes| Key::from_stored(&bytes))]
}

fn wild_number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..30, any::<u64>(), Just(u64::MAX), Just(i64::MAX as u64)]
}

fn wild_op() -> impl Strategy<Value = Op> {
    let wild_range = || (wild_key(), wild_key()).prop_map(|(start, end)| KeyRange { start, end });
    let leaf = prop_oneof![
        op(),
        (wild_key(), vec(any::<u8>(), 0..4), wild_number()).prop_map(|(key, value, lease)| Op::Put(PutOp {
            key,
            value: PutValue::Set(value.into()),
            lease: PutLease::Set(LeaseId(lease as i64)),
            want_previous: true,
        })),
        wild_range().prop_map(|range| Op::Delete(DeleteOp { range, want_previous: true })),
        (wild_range(), wild_number(), wild_number()).prop_map(|(range, at, limit)| {
            let bounds = RevisionBounds { modified_min: limit, modified_max: at, created_min: at, created_max: limit };
            Op::Range(RangeOp { at: Some(Revision(at)), limit, bounds, ..RangeOp::all(range) })
        }),
    ];
    (leaf, 0usize..20, wild_range(), wild_number()).prop_map(|(op, depth, range, number)| {
        (0..depth).fold(op, |op, level| {
            let target = CompareTarget::Modified(number as i64);
            let compare = Compare { range: range.clone(), result: CompareResult::Less, target };
            let compares = if level % 2 == 0 { vec![] } else { vec![compare] };
            Op::Txn(Box::new(Txn { compares, success: vec![op], failure: vec![] }))
        })
    })
}

fn wild_command() -> impl Strategy<Value = Command> {
    prop_oneof![
        4 => wild_op().prop_map(Command::Write),
        2 => command(),
        1 => wild_number().prop_map(|revision| Command::Compact { revision: Revision(revision) }),
        1 => (wild_number(), any::<u32>()).prop_map(|(id, ttl_s)| Command::LeaseGrant { id: LeaseId(id as i64), ttl_s }),
        1 => wild_number().prop_map(|id| Command::LeaseRevoke { id: LeaseId(id as i64) }),
        1 => alarm(wild_number(), 3),
        1 => wild_number().prop_map(|id| Command::PublishMember(Member {
            id: NodeId(id),
            name: String::new(),
            peer_addresses: vec![],
            client_urls: vec![],
            role: MemberRole::Learner,
            zookeeper: None,
        })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Z1: an entry that makes one replica panic makes all of them panic, again after every restart.
    #[test]
    fn no_command_however_wild_stops_the_machine(
        entries in vec((wild_number(), vec((wild_command(), wild_number(), 0u64..3, 0u64..3), 0..4)), 1..20),
    ) {
        let mut state = State::new();
        for (at, commands) in entries {
            let proposals = commands.into_iter().map(|(command, number, boot, client)| Proposal {
                origin: Origin { node: NodeId(number % 3), boot, number },
                request: (client > 0).then_some(RequestId { client, number }),
                caller: Caller::Internal,
                command,
            });
            let batch = Batch { at: LogTime(at), proposals: proposals.collect() };
            state.apply(state.applied().next(), TERM, batch);
            state.sweep(3, Revision(at));
        }
        let head = state.begin_snapshot();
        let loaded = load(&head, pages(&state, &head, 64)).unwrap();
        prop_assert_eq!(loaded.digest(), state.digest());
        prop_assert_eq!(loaded.begin_snapshot(), head);
    }

    /// A damaged or hostile snapshot is refused or is harmless; it never stops the node that reads it.
    #[test]
    fn a_damaged_snapshot_is_refused_not_fatal(
        commands in vec(command(), 1..20),
        noise in vec((any::<usize>(), any::<u8>()), 1..4),
        in_head: bool,
    ) {
        let mut machine = Machine::new();
        machine.commands(commands);
        let mut head = machine.state.begin_snapshot();
        let mut bytes = pages(&machine.state, &head, usize::MAX).concat();
        let damaged = if in_head { &mut head.bytes } else { &mut bytes };
        for (at, byte) in noise {
            if !damaged.is_empty() {
                let at = at % damaged.len();
                damaged[at] = byte;
            }
        }
        if let Ok(mut state) = load(&head, vec![bytes]) {
            state.apply_nothing(state.applied().next());
            while state.sweep(100, Revision(u64::MAX)) {}
        }
    }
}

/// The empty value and the empty page are ordinary inputs, too.
#[test]
fn an_empty_store_survives_the_round_trip() {
    let state = State::new();
    let head = state.begin_snapshot();
    let loaded = load(&head, pages(&state, &head, 1)).unwrap();
    assert_eq!((loaded.digest(), loaded.revision()), (state.digest(), Revision(1)));
    assert_eq!(load(&head, vec![Bytes::new().to_vec()]).unwrap().keys(), 0);
}
