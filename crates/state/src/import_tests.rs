//! Copying a store and making a store of the copy: the two halves of backup and restore, against each other.

use proptest::collection::vec;
use proptest::prelude::*;
use tidelock_model::{Command, Key, LeaseId, MemberRole, NodeId, Space};

use super::*;
use crate::testing::{Machine, all_of, delete, everything, key, load, pages, put, put_leased};

/// The order in which a backup has it: what is visible at the floor and older, then every change.
fn copied(state: &State, floor: Revision, revision: Revision, page_size: usize) -> Vec<KeyValue> {
    let mut items = Vec::new();
    let mut after: Option<Key> = None;
    loop {
        let page = state.unchanged_page(floor, after.as_ref(), page_size).unwrap();
        items.extend(page.items);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut from = Some((floor, 0));
    while let Some(position) = from {
        let page = state.unchanged_gone_page(floor, position, page_size).unwrap();
        items.extend(page.items);
        from = page.next;
    }
    items.sort_by_key(|item| item.record.position());
    let mut from = Some((floor, 0));
    while let Some(position) = from {
        let page = state.changes_page(position, revision, page_size).unwrap();
        items.extend(page.items);
        from = page.next;
    }
    items
}

fn imported(items: Vec<KeyValue>, leases: &[(LeaseId, u32)], revision: Revision, compacted: Revision) -> Imported {
    let mut import = StateImport::new(revision, compacted).unwrap();
    leases.iter().for_each(|(id, ttl_s)| import.add_lease(*id, *ttl_s).unwrap());
    items.into_iter().for_each(|item| import.add_change(item).unwrap());
    import.finish(Vec::new())
}

fn leases(state: &State) -> Vec<(LeaseId, u32)> {
    state.leases().map(|(id, lease)| (id, lease.ttl_s)).collect()
}

/// Everything a client could ask of two states from `compacted` to `revision`.
fn assert_same_answers(one: &Machine, other: &State, compacted: Revision, revision: Revision) {
    let other = Machine { state: State::new(), number: 0 }.with(other);
    for at in compacted.0.max(1)..=revision.0 {
        let (expected, found) = (one.read(crate::testing::range_at(at)), other.read(crate::testing::range_at(at)));
        assert_eq!(expected, found, "at revision {at}");
        let events = |machine: &Machine| {
            let page = machine.state.events_page(&everything(), Revision(at), 1_000, true).unwrap();
            let within = |event: &tidelock_model::Event| event.record.meta().modified <= revision;
            page.events.into_iter().filter(within).collect::<Vec<_>>()
        };
        assert_eq!(events(one), events(&other), "events from revision {at}");
    }
}

impl Machine {
    /// This machine over a copy of another state, made the way nodes do it.
    fn with(mut self, state: &State) -> Machine {
        let head = state.begin_snapshot();
        self.state = load(&head, pages(state, &head, 100)).unwrap();
        self
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(usize, i64),
    Delete(usize),
    PutTwo(usize, usize),
    Revoke(i64),
    Compact(u64),
    Sweep,
}

const NAMES: [&str; 5] = ["a", "b", "b/1", "c", "a name too long to be kept inside of a handle"];

fn step() -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    prop_oneof![
        5 => (name.clone(), 0i64..3).prop_map(|(name, lease)| Step::Put(name, lease)),
        3 => name.clone().prop_map(Step::Delete),
        2 => (name.clone(), name).prop_map(|(one, two)| Step::PutTwo(one, two)),
        1 => (1i64..3).prop_map(Step::Revoke),
        1 => (0u64..12).prop_map(Step::Compact),
        1 => Just(Step::Sweep),
    ]
}

fn carry_out(machine: &mut Machine, step: &Step, keep_from: Revision) {
    for id in [1, 2] {
        if !machine.state.has_lease(LeaseId(id)) {
            machine.grant(id);
        }
    }
    match *step {
        Step::Put(name, lease) => drop(machine.done(put_leased(NAMES[name], "v", lease))),
        Step::Delete(name) => drop(machine.done(delete(NAMES[name]))),
        Step::PutTwo(one, two) if one == two => {}
        Step::PutTwo(one, two) => drop(machine.done(all_of(vec![put(NAMES[one], "1"), put(NAMES[two], "2")]))),
        Step::Revoke(id) => drop(machine.command(Command::LeaseRevoke { id: LeaseId(id) })),
        Step::Compact(back) => {
            let revision = Revision(machine.state.revision().0.saturating_sub(back));
            drop(machine.command(Command::Compact { revision }));
        }
        Step::Sweep => while machine.state.sweep(3, keep_from) {},
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A restored cluster must answer every read of the past and every watch from the past as the old one
    /// did, whatever was going on while it was copied.
    #[test]
    fn a_store_made_of_a_copy_answers_as_the_one_that_was_copied(
        before in vec(step(), 0..40),
        meanwhile in vec(step(), 0..20),
        page_size in 1usize..5,
    ) {
        let mut machine = Machine::new();
        before.iter().for_each(|step| carry_out(&mut machine, step, Revision(u64::MAX)));
        let (revision, compacted) = (machine.state.revision(), machine.state.compacted());
        let leases = leases(&machine.state);
        // What the copy must equal: the state as it is now.
        let head = machine.state.begin_snapshot();
        let expected = load(&head, pages(&machine.state, &head, 1_000)).unwrap();
        // Writing, compacting and sweeping go on, held back only as a copy holds them back.
        meanwhile.iter().for_each(|step| carry_out(&mut machine, step, compacted));
        let items = copied(&machine.state, compacted, revision, page_size);
        let Imported { state, without_lease } = imported(items, &leases, revision, compacted);
        prop_assert_eq!(without_lease, 0);
        prop_assert_eq!((state.revision(), state.compacted(), state.keys()), (revision, compacted, expected.keys()));
        prop_assert_eq!(state.keyspace.held(), expected.keyspace.held());
        prop_assert_eq!(state.data_bytes(), expected.data_bytes());
        prop_assert_eq!(state.live_sum, state.recompute_live_sum());
        for (id, _) in &leases {
            prop_assert!(state.lease_keys(*id).eq(expected.lease_keys(*id)));
        }
        let expected = Machine { state: expected, number: 0 };
        assert_same_answers(&expected, &state, compacted, revision);
    }
}

fn item(name: &str, [created, modified, version]: [u64; 3], lease: i64) -> KeyValue {
    let (created, modified) = (Revision(created), Revision(modified));
    let meta = RecordMeta { created, modified, version, lease: LeaseId(lease), sub: 0 };
    KeyValue { key: key(name), record: Record::new(meta, b"v") }
}

fn member(id: u64) -> Member {
    let (name, role) = (String::new(), MemberRole::Voter);
    Member { id: NodeId(id), name, peer_addresses: vec![], client_urls: vec![], role, zookeeper: None }
}

/// R5: three founders each read the file by themselves; one that differs by a bit would be found out as a
/// broken replica later.
#[test]
fn the_same_input_gives_the_same_state_to_the_byte() {
    let make = || {
        let mut import = StateImport::new(Revision(9), Revision(4)).unwrap();
        import.add_lease(LeaseId(5), 30).unwrap();
        import.add_change(item("a", [2, 3, 2], 5)).unwrap();
        import.add_change(item("b", [7, 7, 1], 0)).unwrap();
        let fingerprint = import.fingerprint();
        let mut state = import.finish(vec![member(1), member(2)]).state;
        state.apply_nothing(LogIndex(1));
        let head = state.begin_snapshot();
        (fingerprint, state.digest(), pages(&state, &head, 1_000), head.bytes)
    };
    assert_eq!(make(), make());
}

/// H6: the deletion at the very revision of a compaction has nothing left to delete in the file, and must
/// still be told to whoever watches from there.
#[test]
fn a_deletion_of_a_compacted_key_is_kept_for_watchers() {
    let mut import = StateImport::new(Revision(6), Revision(5)).unwrap();
    import.add_change(item("b", [2, 4, 3], 0)).unwrap();
    import.add_change(KeyValue { key: key("a"), record: Record::tombstone(Revision(5), 0) }).unwrap();
    import.add_change(item("a", [6, 6, 1], 0)).unwrap();
    let state = import.finish(Vec::new()).state;
    let page = state.events_page(&everything(), Revision(5), 9, true).unwrap();
    let told: Vec<(bool, u64)> =
        page.events.iter().map(|event| (event.record.is_tombstone(), event.record.meta().modified.0)).collect();
    assert_eq!(told, [(true, 5), (false, 6)]);
    let state = Machine::new().with(&state).state;
    assert_eq!((state.keys(), state.keyspace.held()), (2, (1, 2)));
}

/// etcd keeps a key whose lease it does not know for ever. Ours would be refused by the next start if it
/// kept the number, so it must not.
#[test]
fn a_key_of_an_unknown_lease_stays_without_one() {
    let mut import = StateImport::new(Revision(3), Revision(0)).unwrap();
    import.add_change(item("a", [2, 2, 1], 77)).unwrap();
    import.add_change(item("a", [2, 3, 2], 77)).unwrap();
    let Imported { state, without_lease } = import.finish(Vec::new());
    assert_eq!(without_lease, 1);
    let state = Machine::new().with(&state).state;
    assert_eq!(state.live_sum, state.recompute_live_sum());
    let page = state.events_page(&everything(), Revision(2), 9, false).unwrap();
    let leases: Vec<i64> = page.events.iter().map(|event| event.record.meta().lease.0).collect();
    assert_eq!(leases, [77, 0]);
}

/// Revisions that clients saw after the backup was taken must never be given out again.
#[test]
fn a_store_can_begin_at_a_later_revision_and_without_history() {
    let mut import = StateImport::new(Revision(1_003), Revision(1_003)).unwrap();
    import.add_change(item("a", [2, 2, 1], 0)).unwrap();
    import.add_change(item("a", [2, 3, 2], 0)).unwrap();
    let mut machine = Machine { state: import.finish(Vec::new()).state, number: 0 };
    assert_eq!(machine.state.keyspace.held(), (0, 0));
    assert!(machine.state.events_page(&everything(), Revision(3), 9, false).is_err());
    machine.done(put("a", "new"));
    let found = machine.read(crate::testing::range_at(1_004)).unwrap().items;
    let meta = found[0].record.meta();
    assert_eq!((meta.created, meta.modified, meta.version), (Revision(2), Revision(1_004), 3));
}

/// A file whose changes are out of order or impossible was not written by any server.
#[test]
fn what_no_store_could_have_written_is_refused() {
    let mut import = StateImport::new(Revision(5), Revision(0)).unwrap();
    import.add_change(item("a", [3, 3, 1], 0)).unwrap();
    assert_eq!(import.add_change(item("b", [3, 3, 1], 0)), Err(ImportError::OutOfOrder(Revision(3), 0)));
    assert_eq!(import.add_change(item("b", [6, 6, 1], 0)), Err(ImportError::OutOfOrder(Revision(6), 0)));
    assert_eq!(import.add_change(item("b", [5, 4, 1], 0)), Err(ImportError::BadChange(Revision(4), 0)));
    let nameless = KeyValue { key: Key::from_stored(&[]), ..item("b", [4, 4, 1], 0) };
    assert_eq!(import.add_change(nameless), Err(ImportError::BadChange(Revision(4), 0)));
    assert_eq!(import.add_lease(LeaseId(0), 1), Err(ImportError::BadLease(LeaseId(0))));
    assert!(StateImport::new(Revision(5), Revision(6)).is_err());
    assert!(StateImport::new(Revision(0), Revision(0)).is_err());
    assert!(StateImport::new(Revision(u64::MAX), Revision(0)).is_err());
    let other = Key::new(Space::Tree, b"z");
    import.add_change(KeyValue { key: other, ..item("b", [5, 5, 1], 0) }).unwrap();
}
