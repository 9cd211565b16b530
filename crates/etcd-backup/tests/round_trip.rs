//! What is written is read back equal, and what could not be read back is refused when it is written.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use tidelock_etcd_backup::{
    Alarm, AlarmKind, Auth, BackupReader, BackupWriter, Change, ChangeKind, ChecksumRule, KeyRecord, Lease, Member,
    MemberState, Permission, PermissionKind, RawEntry, Revision, Role, User, WriteError, Written,
};

fn write(path: &Path, changes: &[Change], leases: &[Lease], state: &MemberState) -> Result<Written, WriteError> {
    let mut writer = BackupWriter::create(path)?;
    for change in changes {
        writer.push(change)?;
    }
    for lease in leases {
        writer.push_lease(lease)?;
    }
    writer.finish(state)
}

fn mark(main: i64, sub: i64) -> Change {
    Change { revision: Revision { main, sub }, kind: ChangeKind::Mark }
}

fn put(main: i64, key: &[u8]) -> Change {
    let record = KeyRecord {
        key: key.to_vec(),
        create_revision: main,
        mod_revision: main,
        version: 1,
        value: b"value".to_vec(),
        lease: 0,
    };
    Change { revision: Revision { main, sub: 0 }, kind: ChangeKind::Put(record) }
}

fn any_kind(main: i64) -> impl Strategy<Value = ChangeKind> {
    let key = proptest::collection::vec(any::<u8>(), 1..40);
    let value = prop_oneof![
        8 => proptest::collection::vec(any::<u8>(), 0..100),
        1 => proptest::collection::vec(any::<u8>(), 0..12_000),
    ];
    let record = (key.clone(), 1..=main, 1..i64::MAX, value, any::<i64>()).prop_map(
        move |(key, create_revision, version, value, lease)| {
            ChangeKind::Put(KeyRecord { key, create_revision, mod_revision: main, version, value, lease })
        },
    );
    prop_oneof![6 => record, 2 => key.prop_map(|key| ChangeKind::Delete { key }), 1 => Just(ChangeKind::Mark)]
}

/// Steps of revisions: the next change of a transaction, or a later transaction.
fn any_changes() -> impl Strategy<Value = Vec<Change>> {
    proptest::collection::vec(prop_oneof![Just(0i64), 1i64..4], 0..200).prop_flat_map(|steps| {
        let mut revision = Revision { main: 1, sub: -1 };
        let changes: Vec<_> = steps
            .into_iter()
            .map(|step| {
                let sub = if step == 0 { revision.sub + 1 } else { 0 };
                revision = Revision { main: revision.main + step, sub };
                let at = revision;
                any_kind(at.main).prop_map(move |kind| Change { revision: at, kind })
            })
            .collect();
        changes
    })
}

fn full_state() -> MemberState {
    let permission = |kind| Permission { kind, key: b"a".to_vec(), range_end: b"b".to_vec() };
    let user = |name: &str, no_password| User {
        name: name.into(),
        password_hash: b"$2a$10$".to_vec(),
        roles: vec!["one".to_owned(), "two".to_owned()],
        no_password,
    };
    MemberState {
        consistent_index: Some(77),
        term: Some(3),
        conf_state_json: Some(b"{}".to_vec()),
        storage_version: Some("3.6.0".to_owned()),
        scheduled_compact_revision: Some(900),
        finished_compact_revision: Some(800),
        cluster_version: Some("3.6.0".to_owned()),
        downgrade_json: Some(b"{\"enabled\":false}".to_vec()),
        members: vec![Member { id: 0xa, json: vec![b'm'; 3000] }, Member { id: u64::MAX, json: b"{}".to_vec() }],
        removed_members: vec![1, 2],
        alarms: vec![
            Alarm { member_id: 1, kind: AlarmKind::NoSpace },
            Alarm { member_id: 1, kind: AlarmKind::Corrupt },
            Alarm { member_id: 2, kind: AlarmKind::Other(9) },
        ],
        auth: Auth {
            enabled: Some(false),
            revision: Some(5),
            users: (0..300).map(|number| user(&format!("user{number:03}"), [None, Some(true)][number % 2])).collect(),
            roles: vec![Role {
                name: b"role".to_vec(),
                permissions: [PermissionKind::Read, PermissionKind::Write, PermissionKind::ReadWrite]
                    .map(permission)
                    .to_vec(),
            }],
        },
        unrecognised: vec![
            RawEntry { bucket: b"future".to_vec(), key: b"k".to_vec(), value: vec![1; 5000] },
            RawEntry { bucket: b"meta".to_vec(), key: b"newField".to_vec(), value: vec![] },
        ],
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// An exit ramp that loses or alters a change is none.
    #[test]
    fn any_history_comes_back_as_it_was_written(
        changes in any_changes(),
        leases in proptest::collection::btree_map(1i64.., (any::<i64>(), any::<i64>()), 0..300),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("backup");
        let leases: Vec<Lease> = leases
            .into_iter()
            .map(|(id, (ttl_s, remaining_ttl_s))| Lease { id, ttl_s, remaining_ttl_s })
            .collect();
        let written = write(&path, &changes, &leases, &MemberState::default()).unwrap();
        prop_assert_eq!(written.bytes, fs::metadata(&path).unwrap().len());
        let mut backup = BackupReader::open(&path, ChecksumRule::Required).unwrap();
        prop_assert_eq!(backup.revision(), changes.last().map_or(1, |change| change.revision.main));
        prop_assert_eq!(written.revision, backup.revision());
        prop_assert_eq!(backup.changes().collect::<Result<Vec<_>, _>>().unwrap(), changes);
        prop_assert_eq!(backup.leases().collect::<Result<Vec<_>, _>>().unwrap(), leases);
        prop_assert_eq!(backup.state(), &MemberState::default());
        backup.status().unwrap();
    }
}

/// Users, members, alarms and what a newer server may add must all survive the way.
#[test]
fn everything_besides_keys_comes_back_as_it_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("backup");
    let written = write(&path, &[put(2, b"k")], &[], &full_state()).unwrap();
    let mut backup = BackupReader::open(&path, ChecksumRule::Required).unwrap();
    assert_eq!(backup.state(), &full_state());
    // A compaction that took the last changes away still tells how far the store was.
    assert_eq!((written.revision, backup.revision()), (900, 900));
    backup.status().unwrap();
}

/// Revisions that come twice or backwards would make a server forget one of them without a word.
#[test]
fn changes_out_of_order_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut delete = put(5, b"k");
    delete.kind = ChangeKind::Delete { key: b"k".to_vec() };
    for pair in [[mark(5, 1), mark(5, 1)], [mark(5, 1), mark(5, 0)], [mark(5, 0), mark(4, 9)], [put(5, b"k"), delete]] {
        let result = write(&directory.path().join("backup"), &pair, &[], &MemberState::default());
        assert!(matches!(result, Err(WriteError::OutOfOrder { .. })), "{pair:?}: {result:?}");
    }
    let lease = Lease { id: 7, ttl_s: 1, remaining_ttl_s: 0 };
    let result = write(&directory.path().join("backup"), &[], &[lease, lease], &MemberState::default());
    assert!(matches!(result, Err(WriteError::OutOfOrder { .. })), "{result:?}");
}

/// Found at the export, such an entry is a bug report; found at the restore it is an outage.
#[test]
fn entries_etcd_could_not_have_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("backup");
    let broken = |change: fn(&mut KeyRecord)| {
        let mut put = put(5, b"k");
        if let ChangeKind::Put(record) = &mut put.kind {
            change(record);
        }
        put
    };
    let changes = [
        put(5, b""),
        mark(0, 0),
        mark(1, -1),
        broken(|record| record.mod_revision = 4),
        broken(|record| record.create_revision = 6),
        broken(|record| record.version = 0),
        Change { revision: Revision { main: 5, sub: 0 }, kind: ChangeKind::Delete { key: vec![] } },
    ];
    for change in changes {
        let result = write(&path, std::slice::from_ref(&change), &[], &MemberState::default());
        assert!(matches!(result, Err(WriteError::BadEntry { .. })), "{change:?}: {result:?}");
    }
    let states: [fn(&mut MemberState); 4] = [
        |state| state.removed_members = vec![1, 1],
        |state| state.auth.users[0].name.clear(),
        |state| state.unrecognised[0].bucket = b"key".to_vec(),
        |state| state.finished_compact_revision = Some(-1),
    ];
    for change in states {
        let mut state = full_state();
        change(&mut state);
        let result = write(&path, &[], &[], &state);
        assert!(matches!(result, Err(WriteError::BadEntry { .. })), "{result:?}");
    }
}

/// A backup that replaces yesterday's must do so only when it is complete.
#[test]
fn an_unfinished_backup_leaves_the_old_one_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("backup");
    write(&path, &[put(2, b"old")], &[], &MemberState::default()).unwrap();
    let before = fs::read(&path).unwrap();
    let mut writer = BackupWriter::create(&path).unwrap();
    writer.push(&put(3, b"new")).unwrap();
    drop(writer);
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}
