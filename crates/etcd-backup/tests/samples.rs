//! Backups that real servers made are read completely. What went in: `tests/data/make-sample.sh`.

#![allow(clippy::unwrap_used)]

use std::io::Cursor;

use tidelock_etcd_backup::{
    Alarm, AlarmKind, BackupReader, BackupWriter, Change, ChangeKind, Checksum, ChecksumRule, KeyRecord, Lease,
    Permission, PermissionKind, ReadError, Revision, Role,
};

const SAMPLES: [(&str, &[u8]); 3] = [
    ("3.4", include_bytes!("data/etcd-3.4.23.db.zst")),
    ("3.5", include_bytes!("data/etcd-3.5.1.db.zst")),
    ("3.6", include_bytes!("data/etcd-3.6.6.db.zst")),
];

fn unpack(packed: &[u8]) -> Vec<u8> {
    zstd::decode_all(packed).unwrap()
}

fn open(bytes: &[u8]) -> BackupReader<Cursor<&[u8]>> {
    BackupReader::from_source(Cursor::new(bytes), ChecksumRule::Required).unwrap()
}

fn put(main: i64, sub: i64, key: &str, value: &[u8], create_revision: i64, version: i64, lease: i64) -> Change {
    let (key, value) = (key.as_bytes().to_vec(), value.to_vec());
    let record = KeyRecord { key, create_revision, mod_revision: main, version, value, lease };
    Change { revision: Revision { main, sub }, kind: ChangeKind::Put(record) }
}

fn delete(main: i64, sub: i64, key: &str) -> Change {
    Change { revision: Revision { main, sub }, kind: ChangeKind::Delete { key: key.as_bytes().to_vec() } }
}

/// Who moves in must find every key with the revisions, versions and leases it had, and the history since
/// the compaction: watches resume from there.
#[test]
fn all_changes_of_a_real_backup_are_read_in_order() {
    for (version, packed) in SAMPLES {
        let bytes = unpack(packed);
        let mut backup = open(&bytes);
        let changes: Vec<Change> = backup.changes().collect::<Result<_, _>>().unwrap();
        let mut expected = vec![
            put(3, 0, "/app/one", b"second", 2, 2, 0),
            put(4, 0, "/app/two", b"2", 4, 1, 0),
            delete(5, 0, "/app/three"),
            put(6, 0, "/gone", b"soon", 6, 1, 0),
            delete(7, 0, "/gone"),
            put(8, 0, "/leased", b"value", 8, 1, 0x1234),
            put(9, 0, "/large", &[b'x'; 9000], 9, 1, 0),
            put(10, 0, "/empty", b"", 10, 1, 0),
            delete(10, 1, "/app/two"),
        ];
        // A deletion at the very revision of a compaction: older servers dropped it, newer ones keep it.
        if version != "3.6" {
            expected.retain(|change| change.revision.main != 5);
        }
        assert_eq!(changes, expected, "etcd {version}");
        assert_eq!(backup.revision(), 10, "etcd {version}");
        assert_eq!(backup.checksum(), Checksum::Matches);
    }
}

/// A lease that is lost on the way takes its keys with it, or lets them live for ever.
#[test]
fn leases_of_a_real_backup_are_read() {
    for (version, packed) in SAMPLES {
        let bytes = unpack(packed);
        let leases: Vec<Lease> = open(&bytes).leases().collect::<Result<_, _>>().unwrap();
        let ids: Vec<(i64, i64)> = leases.iter().map(|lease| (lease.id, lease.ttl_s)).collect();
        assert_eq!(ids, [(0x1234, 3600), (0xabcd, 60000)], "etcd {version}");
    }
}

/// Users who moved house must be able to log in, and nobody else.
#[test]
fn users_roles_and_the_rest_of_a_real_backup_are_read() {
    for (version, packed) in SAMPLES {
        let bytes = unpack(packed);
        let backup = open(&bytes);
        let state = backup.state();
        assert_eq!((state.scheduled_compact_revision, state.finished_compact_revision), (Some(5), Some(5)));
        assert!(state.consistent_index.is_some_and(|index| index > 20), "etcd {version}: {state:?}");
        assert_eq!(state.cluster_version.as_deref(), Some(&*format!("{version}.0")));
        assert_eq!(state.term.is_some(), version != "3.4");
        assert_eq!(state.conf_state_json.is_some(), version != "3.4");
        assert_eq!(state.storage_version.as_deref(), (version == "3.6").then_some("3.6.0"));
        assert_eq!(state.members.len(), 1);
        assert!(String::from_utf8_lossy(&state.members[0].json).contains("\"name\":\"sample\""));
        assert_eq!(state.removed_members.len(), 1);
        assert_eq!(state.alarms, [Alarm { member_id: 7, kind: AlarmKind::NoSpace }]);
        assert_eq!(state.unrecognised, [], "etcd {version}");

        assert_eq!(state.auth.enabled, Some(true));
        assert!(state.auth.revision.is_some_and(|revision| revision > 5));
        let users: Vec<String> = state
            .auth
            .users
            .iter()
            .map(|user| {
                let (name, hash_bytes) = (String::from_utf8_lossy(&user.name), user.password_hash.len());
                format!("{name} {:?} {hash_bytes} {:?}", user.roles, user.no_password)
            })
            .collect();
        let expected = ["alice [\"reader\"] 60 Some(false)", "robot [] 0 Some(true)", "root [\"root\"] 60 Some(false)"];
        assert_eq!(users, expected, "etcd {version}");
        let permission = |kind, key: &[u8], end: &[u8]| Permission { kind, key: key.to_vec(), range_end: end.to_vec() };
        let reader = vec![
            permission(PermissionKind::Read, b"/app/", b"/app0"),
            permission(PermissionKind::ReadWrite, b"/z", b"\0"),
        ];
        let roles = [
            Role { name: b"reader".to_vec(), permissions: reader },
            Role { name: b"root".to_vec(), permissions: vec![] },
        ];
        assert_eq!(state.auth.roles, roles, "etcd {version}");
    }
}

/// Copying a backup through our types must lose nothing: etcd's own fingerprint covers every byte of every
/// entry of every bucket.
#[test]
fn a_real_backup_written_again_has_the_same_fingerprint() {
    let directory = tempfile::tempdir().unwrap();
    for (version, packed) in SAMPLES {
        let bytes = unpack(packed);
        let mut original = open(&bytes);
        let path = directory.path().join(version);
        let mut writer = BackupWriter::create(&path).unwrap();
        for change in original.changes() {
            writer.push(&change.unwrap()).unwrap();
        }
        for lease in original.leases() {
            writer.push_lease(&lease.unwrap()).unwrap();
        }
        writer.finish(original.state()).unwrap();
        let mut copy = BackupReader::open(&path, ChecksumRule::Required).unwrap();
        assert_eq!(copy.state(), original.state());
        let (copied, original) = (copy.status().unwrap(), original.status().unwrap());
        assert_eq!((copied.hash, copied.entries), (original.hash, original.entries), "etcd {version}");
        assert_eq!((copied.live_keys, copied.revision), (4, 10), "etcd {version}");
    }
}

/// People also copy `member/snap/db`. It has no seal and is taken, unless the caller insists on one.
#[test]
fn a_database_without_a_checksum_is_read_unless_one_is_required() {
    let bytes = unpack(SAMPLES[0].1);
    let bare = &bytes[..bytes.len() - 32];
    let mut backup = BackupReader::from_source(Cursor::new(bare), ChecksumRule::IfPresent).unwrap();
    assert_eq!(backup.checksum(), Checksum::Missing);
    assert_eq!(backup.changes().filter(Result::is_ok).count(), 8);
    let refused = BackupReader::from_source(Cursor::new(bare), ChecksumRule::Required);
    assert!(matches!(refused, Err(ReadError::ChecksumMissing)), "{refused:?}");
}

/// A server that dies during a commit leaves one of the two headers broken; the other one is enough.
#[test]
fn a_database_with_one_broken_header_is_read_by_the_other() {
    let bytes = unpack(SAMPLES[1].1);
    for broken in [0, 4096] {
        let mut bare = bytes[..bytes.len() - 32].to_vec();
        bare[broken + 20] ^= 1;
        let mut backup = BackupReader::from_source(Cursor::new(bare), ChecksumRule::IfPresent).unwrap();
        assert_eq!(backup.changes().filter(Result::is_ok).count(), 8, "header at {broken}");
    }
}
