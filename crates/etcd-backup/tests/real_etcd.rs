//! The round trip with a real server: its backup read by us, ours restored by it.
//!
//! Runs with the `etcd` and `etcdctl` (and, if there, `etcdutl` and `bbolt`) that come first on the PATH and
//! is skipped without them, so other versions are tried by another PATH.

#![allow(clippy::unwrap_used)]

mod etcd_process;

use std::collections::BTreeMap;
use std::path::Path;

use etcd_process::{Etcd, PrintedKey, check_structure, find, run, status};
use tidelock_etcd_backup::{
    BackupReader, BackupWriter, Change, ChangeKind, ChecksumRule, KeyRecord, Lease, MemberState, Revision,
};

const ROOT: Option<&str> = Some("root:secret");

fn etcd_is_missing() -> bool {
    let missing = find("etcd").is_none() || find("etcdctl").is_none();
    if missing {
        eprintln!("skipped: etcd and etcdctl are not on the PATH");
    }
    missing
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |chunk: &[u8]| {
        let bits = (0..3).fold(0, |bits, index| bits << 8 | u32::from(*chunk.get(index).unwrap_or(&0)));
        let digit = |index: usize| match index <= chunk.len() {
            true => DIGITS[(bits >> (18 - 6 * index) & 63) as usize] as char,
            false => '=',
        };
        (0..4).map(digit).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}

/// The keys as of a revision, by the history, printed as etcdctl does.
fn keys_at(changes: &[Change], revision: i64) -> Vec<PrintedKey> {
    let mut live = BTreeMap::new();
    for change in changes.iter().filter(|change| change.revision.main <= revision) {
        match &change.kind {
            ChangeKind::Put(record) => _ = live.insert(&record.key, record),
            ChangeKind::Delete { key } => _ = live.remove(key),
            ChangeKind::Mark => {}
        }
    }
    live.into_values()
        .map(|record| {
            let numbers = [record.create_revision, record.mod_revision, record.version, record.lease];
            (base64(&record.key), base64(&record.value), numbers)
        })
        .collect()
}

/// Does a bit of everything. Gives the revision that was compacted.
fn use_everything(etcd: &mut Etcd) -> i64 {
    for round in 0..12 {
        // A transaction takes 128 operations.
        let puts: String = (0..100).map(|key| format!("put /bulk/{key:03} {round}{}\n", "v".repeat(180))).collect();
        etcd.ctl_with(&["txn"], &format!("\n{puts}\n\n"));
        etcd.ctl(&["del", &format!("/bulk/0{round:02}")]);
    }
    etcd.ctl_with(&["put", "/large"], &"x".repeat(300_000));
    for ttl in ["3600", "7200"] {
        let granted = etcd.ctl(&["lease", "grant", ttl]);
        let id = granted.split(' ').nth(1).unwrap().to_owned();
        etcd.ctl(&["put", &format!("/leased/{ttl}"), "value", "--lease", &id]);
    }
    etcd.ctl(&["put", "/a", "1"]);
    etcd.ctl(&["del", "/bulk/09", "--prefix"]);
    let compacted = etcd.revision() - 8;
    etcd.ctl(&["compaction", "--physical", &compacted.to_string()]);
    for value in ["2", "3", ""] {
        etcd.ctl(&["put", "/a", value]);
    }
    etcd.ctl(&["role", "add", "reader"]);
    etcd.ctl(&["role", "grant-permission", "reader", "read", "--prefix=true", "/bulk/"]);
    etcd.ctl(&["user", "add", "alice:wonderland"]);
    etcd.ctl(&["user", "grant-role", "alice", "reader"]);
    etcd.ctl(&["role", "add", "root"]);
    etcd.ctl(&["user", "add", "root:secret"]);
    etcd.ctl(&["user", "grant-role", "root", "root"]);
    etcd.ctl(&["auth", "enable"]);
    etcd.user = ROOT;
    compacted
}

fn copy(from: &Path, to: &Path) -> Vec<Change> {
    let mut original = BackupReader::open(from, ChecksumRule::Required).unwrap();
    let mut writer = BackupWriter::create(to).unwrap();
    let changes: Vec<Change> = original.changes().collect::<Result<_, _>>().unwrap();
    for change in &changes {
        writer.push(change).unwrap();
    }
    for lease in original.leases() {
        writer.push_lease(&lease.unwrap()).unwrap();
    }
    writer.finish(original.state()).unwrap();
    changes
}

/// etcd's tool and we say the same about a file. Its number of keys changed its meaning in 3.6.
fn assert_same_status(file: &Path) {
    let ours = BackupReader::open(file, ChecksumRule::Required).unwrap().status().unwrap();
    let [hash, revision, keys, bytes] = status(file);
    assert_eq!((hash, revision, bytes), (i64::from(ours.hash), ours.revision, ours.bytes as i64));
    assert!([ours.entries, ours.live_keys].contains(&(keys as u64)), "{keys} and {ours:?}");
}

/// This is the promise of migration in and of the exit ramp out, both at once: a real server's data read
/// completely, written by us, and served again by a real server, the same to the last number.
#[test]
fn a_backup_of_a_real_server_goes_through_our_types_and_back_into_a_server() {
    if etcd_is_missing() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (saved, ours) = (directory.path().join("saved.db"), directory.path().join("ours.db"));
    let mut etcd = Etcd::start(&directory.path().join("first"), None, None);
    let compacted = use_everything(&mut etcd);
    etcd.ctl(&["snapshot", "save", &saved.display().to_string()]);

    let changes = copy(&saved, &ours);
    let revision = etcd.revision();
    assert_eq!(BackupReader::open(&saved, ChecksumRule::Required).unwrap().revision(), revision);
    for at in compacted..=revision {
        assert_eq!(keys_at(&changes, at), etcd.keys(at), "revision {at}");
    }
    let mut backup = BackupReader::open(&saved, ChecksumRule::Required).unwrap();
    let mut leases: Vec<String> = backup.leases().map(|lease| format!("{:016x}", lease.unwrap().id)).collect();
    leases.sort();
    assert_eq!(leases, etcd.leases());
    assert_eq!(leases.len(), 2);

    assert_same_status(&saved);
    assert_same_status(&ours);
    assert_eq!(status(&saved)[..3], status(&ours)[..3]);
    check_structure(&ours);

    let restored_data = directory.path().join("second");
    let restored = Etcd::start(&restored_data, Some(&ours), ROOT);
    assert_eq!(restored.revision(), revision);
    for at in compacted..=revision {
        assert_eq!(restored.keys(at), etcd.keys(at), "revision {at}");
    }
    assert_eq!(restored.leases(), leases);
    let granted = |etcd: &Etcd| {
        let printed = |id: &String| etcd.ctl(&["lease", "timetolive", id, "--keys"]);
        // "lease 123 granted with TTL(3600s), remaining(3599s), attached keys([/leased/3600])"
        let without_remaining = |line: &str| (line.split(", rem").next().map(str::to_owned), line.contains("/leased/"));
        leases.iter().map(|id| without_remaining(&printed(id))).collect::<Vec<_>>()
    };
    assert_eq!(granted(&restored), granted(&etcd));
    for question in [&["user", "get", "alice"][..], &["role", "get", "reader"], &["user", "list"]] {
        assert_eq!(restored.ctl(question), etcd.ctl(question));
    }
    assert!(restored.refuses(&["compaction", &compacted.to_string()]), "what was compacted stays compacted");
    live_on(restored, revision, &restored_data);
}

/// The restored server changes its pages: it writes, deletes, compacts and shrinks its file.
fn live_on(etcd: Etcd, revision: i64, data: &Path) {
    etcd.ctl(&["put", "/after", "restore"]);
    etcd.ctl(&["del", "/bulk/", "--prefix"]);
    assert_eq!(etcd.revision(), revision + 2);
    let before = etcd.keys(0);
    etcd.ctl(&["compaction", "--physical", &(revision + 2).to_string()]);
    etcd.ctl(&["defrag"]);
    assert_eq!(etcd.keys(0), before);
    etcd.stop();
    check_structure(&data.join("member/snap/db"));
}

/// A write of `main` revisions' standing, for backups that no server made.
fn put(main: i64, key: &str, create_revision: i64, value_bytes: usize) -> Change {
    let (key, value, version) = (key.as_bytes().to_vec(), vec![b'v'; value_bytes], main - create_revision + 1);
    let record = KeyRecord { key, create_revision, mod_revision: main, version, value, lease: 7 };
    Change { revision: Revision { main, sub: 0 }, kind: ChangeKind::Put(record) }
}

/// Has a server restore a backup of these changes, compact it in two steps, and start again.
fn restore_and_compact(changes: &[Change], compactions: [i64; 2]) {
    let directory = tempfile::tempdir().unwrap();
    let (backup, data) = (directory.path().join("backup.db"), directory.path().join("data"));
    let mut writer = BackupWriter::create(&backup).unwrap();
    for change in changes {
        writer.push(change).unwrap();
    }
    writer.push_lease(&Lease { id: 7, ttl_s: 5000, remaining_ttl_s: 0 }).unwrap();
    let revision = writer.finish(&MemberState::default()).unwrap().revision;
    assert_same_status(&backup);
    check_structure(&backup);

    let etcd = Etcd::start(&data, Some(&backup), None);
    assert_eq!(etcd.revision(), revision);
    assert_eq!(etcd.leases(), ["0000000000000007"]);
    let expected = keys_at(changes, revision);
    assert_eq!(etcd.keys(0), expected);
    for at in compactions {
        etcd.ctl(&["compaction", "--physical", &at.to_string()]);
    }
    assert_eq!(etcd.keys(0), expected);
    etcd.ctl(&["put", "/after", "compaction"]);
    etcd.stop();
    check_structure(&data.join("member/snap/db"));
    let etcd = Etcd::start(&data, None, None);
    assert_eq!(etcd.revision(), revision + 1);
    assert_eq!(etcd.keys(revision), expected);
}

/// Compaction deletes from pages all over the tree. A tree that is only good for reading would not bear it.
#[test]
fn a_server_restored_from_a_large_backup_of_ours_survives_compaction() {
    if etcd_is_missing() {
        return;
    }
    let last = 40_001;
    let changes: Vec<Change> = (2..=last)
        .map(|main| match main % 5 {
            0 => {
                Change { revision: Revision { main, sub: 0 }, kind: ChangeKind::Delete { key: b"/sometimes".to_vec() } }
            }
            // A few values take pages of their own.
            _ => put(main, &format!("/key/{}", main % 2), 2 + main % 2, if main % 1000 == 7 { 50_000 } else { 60 }),
        })
        .collect();
    restore_and_compact(&changes, [last / 2, last]);
}

/// Ten changes of this size fill a leaf and 123 leaves a branch, so the last five changes are alone in their
/// leaf. Were that leaf alone in its branch, deleting from it would crash the server, days after the restore.
#[test]
fn a_server_restored_from_a_backup_of_ours_survives_deletions_in_its_last_leaf() {
    if etcd_is_missing() {
        return;
    }
    let (count, hot_from) = (123 * 10 + 5, 123 * 10 - 1);
    let changes: Vec<Change> = (2..count + 2)
        .map(|main| match main < hot_from {
            true => put(main, &format!("/key/{main:04}"), main, 330),
            false => put(main, "/hot/key1", hot_from, 330),
        })
        .collect();
    restore_and_compact(&changes, [hot_from - 5, count + 1]);
}

/// A store whose last revisions left nothing behind must not start again at an earlier one: clients
/// would see time run backwards.
#[test]
fn a_mark_keeps_the_revision_of_a_restored_server_from_going_back() {
    if etcd_is_missing() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let backup = directory.path().join("backup.db");
    let mut writer = BackupWriter::create(&backup).unwrap();
    writer.push(&Change { revision: Revision { main: 500, sub: 0 }, kind: ChangeKind::Mark }).unwrap();
    writer.finish(&MemberState::default()).unwrap();
    assert_same_status(&backup);
    let etcd = Etcd::start(&directory.path().join("data"), Some(&backup), None);
    assert_eq!(etcd.revision(), 500);
    assert_eq!(etcd.keys(0), []);
    etcd.ctl(&["put", "/a", "1"]);
    assert_eq!(etcd.keys(0), [(base64(b"/a"), base64(b"1"), [501, 501, 1, 0])]);
}

/// Operators who restore with a bumped revision get a database with an entry that holds nothing. It has no
/// checksum either, as nothing taken from a data directory has.
#[test]
fn a_database_that_was_restored_with_a_bumped_revision_is_read() {
    if etcd_is_missing() {
        return;
    }
    if find("etcdutl").is_none() || !run("etcdutl", &["snapshot", "restore", "--help"], "").contains("bump-revision") {
        eprintln!("skipped: no etcdutl on the PATH that can bump a revision");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (saved, data) = (directory.path().join("saved.db"), directory.path().join("data"));
    let etcd = Etcd::start(&directory.path().join("first"), None, None);
    etcd.ctl(&["put", "/a", "1"]);
    etcd.ctl(&["snapshot", "save", &saved.display().to_string()]);
    let [saved, data_dir] = [&saved, &data].map(|path| path.display().to_string());
    let bump = ["--bump-revision", "1000", "--mark-compacted", "--data-dir", &data_dir];
    run("etcdutl", &[&["snapshot", "restore", &saved][..], &bump].concat(), "");
    let database = data.join("member/snap/db");
    let mut backup = BackupReader::open(&database, ChecksumRule::IfPresent).unwrap();
    let changes: Vec<Change> = backup.changes().collect::<Result<_, _>>().unwrap();
    assert_eq!(changes.last(), Some(&Change { revision: Revision { main: 1002, sub: 0 }, kind: ChangeKind::Mark }));
    assert_eq!((changes.len(), backup.revision()), (2, 1002));
    assert_eq!(backup.state().scheduled_compact_revision, Some(1002));
    assert_eq!(backup.status().unwrap().hash as i64, status(&database)[0]);
}
