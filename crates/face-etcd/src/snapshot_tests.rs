use tidelock_model::{Alarm, Key, LeaseId, NodeId, Record, RecordMeta, Revision};

use super::*;

/// A store that was put together by hand.
struct Fixed {
    head: CopyHead,
    pages: Vec<Vec<KeyValue>>,
}

impl StateCopy for Fixed {
    fn head(&self) -> &CopyHead {
        &self.head
    }

    fn next_page(&mut self) -> Result<Vec<KeyValue>, CopyError> {
        Ok(if self.pages.is_empty() { Vec::new() } else { self.pages.remove(0) })
    }
}

fn item(space: Space, name: &str, [created, modified, version]: [u64; 3], lease: i64) -> KeyValue {
    let (created, modified) = (Revision(created), Revision(modified));
    let meta = RecordMeta { created, modified, version, lease: LeaseId(lease), sub: 0 };
    KeyValue { key: Key::new(space, name.as_bytes()), record: Record::new(meta, name.as_bytes()) }
}

fn written(pages: Vec<Vec<KeyValue>>, revision: u64, compacted: u64) -> backup::BackupReader {
    let head = CopyHead {
        revision: Revision(revision),
        compacted: Revision(compacted),
        leases: vec![(LeaseId(-3), 60), (LeaseId(7), 30)],
        members: vec![Member {
            id: NodeId(10),
            name: "a".into(),
            peer_addresses: vec!["h:1".into()],
            client_urls: vec!["http://h:2".into()],
            role: MemberRole::Voter,
            zookeeper: None,
        }],
        alarms: vec![
            Alarm { member: NodeId(10), kind: AlarmKind::NoSpace },
            Alarm { member: NodeId(10), kind: AlarmKind::Corrupt },
        ],
        auth: Arc::default(),
    };
    let dir = tempfile::tempdir().unwrap();
    let copy = Box::new(Fixed { head, pages });
    let (file, bytes) = write_file(copy, dir.path(), &AtomicBool::new(false)).unwrap();
    assert_eq!(file.metadata().unwrap().len(), bytes);
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "the file has no name");
    backup::BackupReader::from_source(file, backup::ChecksumRule::IfPresent).unwrap()
}

/// This is the exit ramp: revisions, versions and leases that change on the way out break clients that
/// compare them.
#[test]
fn numbers_deletions_leases_and_members_are_in_the_file_as_they_were() {
    let gone = KeyValue { key: Key::new(Space::User, b"a"), record: Record::tombstone(Revision(9), 1) };
    let pages = vec![vec![item(Space::User, "a", [2, 4, 3], 7)], vec![item(Space::User, "b", [8, 8, 1], 0), gone]];
    let mut file = written(pages, 9, 5);
    let changes: Vec<backup::Change> = file.changes().map(Result::unwrap).collect();
    let record = |name: &str, create_revision, mod_revision, version, lease| {
        let (key, value) = (name.as_bytes().to_vec(), name.as_bytes().to_vec());
        backup::ChangeKind::Put(backup::KeyRecord { key, create_revision, mod_revision, version, value, lease })
    };
    let at = |main, sub| backup::Revision { main, sub };
    let expected = [
        backup::Change { revision: at(4, 0), kind: record("a", 2, 4, 3, 7) },
        backup::Change { revision: at(8, 0), kind: record("b", 8, 8, 1, 0) },
        backup::Change { revision: at(9, 1), kind: backup::ChangeKind::Delete { key: b"a".to_vec() } },
    ];
    assert_eq!(changes, expected);
    let leases: Vec<(i64, i64)> =
        file.leases().map(|lease| lease.map(|lease| (lease.id, lease.ttl_s)).unwrap()).collect();
    assert_eq!(leases, [(7, 30), (-3, 60)]);
    let state = file.state();
    assert_eq!((state.finished_compact_revision, state.scheduled_compact_revision), (Some(5), Some(5)));
    let member = r#"{"clientURLs":["http://h:2"],"id":10,"name":"a","peerURLs":["http://h:1"]}"#;
    assert_eq!(String::from_utf8_lossy(&state.members[0].json), member);
    assert_eq!(state.alarms, [backup::Alarm { member_id: 10, kind: backup::AlarmKind::Corrupt }]);
    assert_eq!(file.revision(), 9);
}

/// Other faces' keys are nobody's business in an etcd, but the revisions they took were given out: one that
/// is given out twice makes watchers miss changes (R1).
#[test]
fn keys_of_other_faces_stay_behind_and_their_revisions_do_not() {
    let pages = vec![vec![item(Space::User, "a", [2, 2, 1], 0), item(Space::Tree, "z", [3, 3, 1], 0)]];
    let mut file = written(pages, 3, 0);
    let kinds: Vec<backup::ChangeKind> = file.changes().map(|change| change.unwrap().kind).collect();
    assert_eq!((kinds.len(), &kinds[1]), (2, &backup::ChangeKind::Mark));
    assert_eq!(file.revision(), 3);
}

/// A client that went away must not keep a thread and a disk busy with a file for nobody.
#[test]
fn an_abandoned_snapshot_ends_at_the_next_page() {
    let head = CopyHead {
        revision: Revision(2),
        compacted: Revision(0),
        leases: vec![],
        members: vec![],
        alarms: vec![],
        auth: Arc::default(),
    };
    let copy = Box::new(Fixed { head, pages: vec![vec![item(Space::User, "a", [2, 2, 1], 0)]] });
    assert!(write_file(copy, &std::env::temp_dir(), &AtomicBool::new(true)).is_err());
}

/// Whoever moves back to etcd must find the same people with the same passwords, allowed the same things, and
/// still asked who they are: an open store is the worst of all restores.
#[test]
fn users_roles_and_the_switch_travel_and_the_token_secret_does_not() {
    let mut auth = Auth::default();
    (auth.enabled, auth.revision, auth.token_secret) = (true, 5, [7; 32]);
    let range = KeyRange::prefix(Space::User, b"a/");
    auth.change(|users, roles| {
        let hash = Some("$2b$10$hash".to_owned());
        users.insert("u".into(), User { password_hash: hash, roles: ["r".to_owned()].into(), tokens_since: 3 });
        users.insert("certified".into(), User::default());
        roles.insert("r".into(), Role { permissions: [(range, Permission::ReadWrite)].into() });
    });
    let written = auth_of(&auth);
    assert_eq!((written.enabled, written.revision), (Some(true), Some(5)));
    assert_eq!((&written.users[0].name[..], written.users[0].no_password), (&b"certified"[..], Some(true)));
    assert_eq!(
        (&written.users[1].password_hash[..], &written.users[1].roles),
        (&b"$2b$10$hash"[..], &vec!["r".into()])
    );
    let permission = &written.roles[0].permissions[0];
    assert_eq!((&permission.key[..], &permission.range_end[..]), (&b"a/"[..], &b"a0"[..]));
    assert_eq!(permission.kind, backup::PermissionKind::ReadWrite);
    assert_eq!(auth_of(&Auth::default()), backup::Auth::default());
}
