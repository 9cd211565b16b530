//! Starting from a snapshot and a journal together.

use bytes::Bytes;
use tidelock_journal::memory_disk::MemoryDisk;
use tidelock_journal::{
    AppendError, Disk, Journal, OpenError, ReadError, Recovered, SnapshotMeta, SnapshotWriter, latest_snapshot,
};
use tidelock_model::{LogIndex, Term};

use crate::driver::{config, entry, hard_state};

fn snapshot(disk: &MemoryDisk, index: u64, term: u64) -> String {
    let meta = SnapshotMeta { index: LogIndex(index), term: Term(term), extra: Bytes::from_static(b"x") };
    let mut writer = SnapshotWriter::create(disk.clone(), meta).unwrap();
    writer.write_chunk(b"state").unwrap();
    writer.finish().unwrap().name().file_name()
}

/// A journal with entries 1 to `last` of term 1, over several segments.
fn journal(disk: &MemoryDisk, last: u64) -> Journal<MemoryDisk> {
    let (mut journal, _) = Journal::open(disk.clone(), config()).unwrap();
    let entries: Vec<_> = (1..=last).map(|index| entry(index, 1, 200)).collect();
    journal.append(&entries, Some(hard_state(1, 2, last))).unwrap();
    journal.sync().unwrap();
    journal
}

fn reopen(disk: &MemoryDisk) -> Result<Recovered, OpenError> {
    disk.crash(|_| false);
    Journal::open(disk.clone(), config()).map(|(_, recovered)| recovered)
}

fn indexes(recovered: &Recovered) -> Vec<u64> {
    recovered.entries.iter().map(|entry| entry.index.0).collect()
}

/// Entries that no snapshot covers are the only copy this node has. A trim that came too early must
/// not take them.
#[test]
fn trimming_goes_no_further_than_a_finished_snapshot() {
    let disk = MemoryDisk::new();
    let mut journal = journal(&disk, 40);
    while journal.trim_one(LogIndex(40)).unwrap() {}
    assert_eq!(journal.first_index(), LogIndex(1), "without a snapshot nothing goes");
    snapshot(&disk, 20, 1);
    while journal.trim_one(LogIndex(40)).unwrap() {}
    let first = journal.first_index().0;
    assert!((2..=21).contains(&first), "whole segments up to the snapshot go: {first}");
    assert!(matches!(journal.read(LogIndex(1), LogIndex(3), 1), Err(ReadError::Trimmed { .. })));
    drop(journal);
    let recovered = reopen(&disk).unwrap();
    assert_eq!(indexes(&recovered), (21..=40).collect::<Vec<_>>());
    assert_eq!(recovered.hard_state, hard_state(1, 2, 40), "the vote survives the segment it was written in");
}

/// A node that was far behind takes a snapshot from its leader; its old log must not come back.
#[test]
fn a_log_restarted_from_a_peers_snapshot_goes_on_after_it() {
    let disk = MemoryDisk::new();
    let mut journal = journal(&disk, 40);
    let restart = journal.restart_from_snapshot(LogIndex(100), Term(5), hard_state(5, 0, 100));
    assert!(matches!(restart, Err(AppendError::SnapshotMissing { .. })), "the snapshot comes first");
    snapshot(&disk, 100, 5);
    journal.restart_from_snapshot(LogIndex(100), Term(5), hard_state(5, 0, 100)).unwrap();
    assert_eq!((journal.first_index(), journal.last_index()), (LogIndex(101), LogIndex(100)));
    assert!(journal.append(&[entry(41, 1, 1)], None).is_err());
    drop(journal);
    assert_eq!(indexes(&reopen(&disk).unwrap()), [0u64; 0]);
    let (mut journal, _) = Journal::open(disk.clone(), config()).unwrap();
    journal.append(&[entry(101, 5, 10)], None).unwrap();
    journal.sync().unwrap();
    drop(journal);
    let recovered = reopen(&disk).unwrap();
    assert_eq!(indexes(&recovered), [101]);
    assert_eq!(recovered.hard_state, hard_state(5, 0, 100));
}

/// The crash may come between the snapshot's arrival and the journal's restart (H22).
#[test]
fn a_snapshot_ahead_of_the_log_takes_its_place_at_the_next_start() {
    let disk = MemoryDisk::new();
    drop(journal(&disk, 40));
    snapshot(&disk, 100, 5);
    let recovered = reopen(&disk).unwrap();
    assert_eq!((indexes(&recovered), recovered.last_index), (vec![], LogIndex(100)));
    assert_eq!(recovered.hard_state, hard_state(5, 0, 100), "a vote in an older term means nothing now");
    let (mut journal, _) = Journal::open(disk, config()).unwrap();
    journal.append(&[entry(101, 5, 10)], None).unwrap();
}

/// A snapshot is agreed on. A log that has another entry in its place holds what the cluster discarded.
#[test]
fn a_log_that_contradicts_the_snapshot_is_dropped_at_the_next_start() {
    let disk = MemoryDisk::new();
    drop(journal(&disk, 40));
    snapshot(&disk, 30, 5);
    let recovered = reopen(&disk).unwrap();
    assert_eq!((indexes(&recovered), recovered.last_index), (vec![], LogIndex(30)));
}

/// Rot in the newest snapshot is survivable if an older one and an unbroken log lead to the same state.
#[test]
fn an_older_snapshot_stands_in_for_a_damaged_one_if_the_journal_reaches_back() {
    let disk = MemoryDisk::new();
    drop(journal(&disk, 40));
    snapshot(&disk, 10, 1);
    let newest = snapshot(&disk, 30, 1);
    disk.flip(&newest, 40, 1);
    let recovered = reopen(&disk).unwrap();
    assert_eq!(recovered.snapshot.as_ref().map(|meta| meta.index), Some(LogIndex(10)));
    assert_eq!(indexes(&recovered), (11..=40).collect::<Vec<_>>());
    assert!(recovered.notes.iter().any(|note| note.contains(&newest)), "the operator hears of it");
    assert_eq!(latest_snapshot(&disk).unwrap().map(|name| name.index), Some(LogIndex(10)));
}

/// Without such a way the damaged snapshot was the only copy: the node must say so and stop (H16).
#[test]
fn a_damaged_snapshot_that_nothing_can_replace_is_refused_by_name() {
    // The journal has been trimmed behind the damaged snapshot.
    let disk = MemoryDisk::new();
    let mut trimmed = journal(&disk, 40);
    snapshot(&disk, 10, 1);
    let newest = snapshot(&disk, 30, 1);
    while trimmed.trim_one(LogIndex(30)).unwrap() {}
    drop(trimmed);
    disk.flip(&newest, 40, 1);
    let error = reopen(&disk).unwrap_err();
    assert!(matches!(&error, OpenError::SnapshotDamaged { file, .. } if *file == newest), "{error}");

    // There is no older snapshot.
    let disk = MemoryDisk::new();
    drop(journal(&disk, 40));
    let only = snapshot(&disk, 30, 1);
    disk.flip(&only, 40, 1);
    assert!(matches!(reopen(&disk), Err(OpenError::SnapshotDamaged { .. })));

    // The log ends before the damaged snapshot, which came from a peer.
    let disk = MemoryDisk::new();
    drop(journal(&disk, 20));
    snapshot(&disk, 10, 1);
    let peers = snapshot(&disk, 30, 1);
    disk.flip(&peers, 40, 1);
    assert!(matches!(reopen(&disk), Err(OpenError::SnapshotDamaged { .. })));
}

/// Snapshots moved away by hand leave a trimmed log without its beginning (H12).
#[test]
fn a_trimmed_journal_without_its_snapshot_is_refused() {
    let disk = MemoryDisk::new();
    let mut journal = journal(&disk, 40);
    let name = snapshot(&disk, 30, 1);
    while journal.trim_one(LogIndex(30)).unwrap() {}
    drop(journal);
    disk.remove(&name).unwrap();
    disk.sync_dir().unwrap();
    assert!(matches!(reopen(&disk), Err(OpenError::Hole { .. })));
    // And a snapshot without any journal has lost the node's vote.
    let disk = MemoryDisk::new();
    snapshot(&disk, 30, 1);
    assert!(matches!(reopen(&disk), Err(OpenError::Hole { .. })));
}

/// What an interrupted snapshot left behind takes room that nobody would ever free.
#[test]
fn temporary_files_are_removed_at_the_next_start() {
    let disk = MemoryDisk::new();
    drop(journal(&disk, 5));
    disk.create("snapshot-0.tmp").unwrap();
    disk.create("spare-0000000000000007.log.tmp").unwrap();
    disk.sync_dir().unwrap();
    reopen(&disk).unwrap();
    assert!(disk.list().unwrap().iter().all(|name| !name.ends_with(".tmp")));
}

/// A lagging follower is fed in bounded pieces; each must be what was appended, whatever was replaced.
#[test]
fn reading_back_is_bounded_and_never_empty() {
    let disk = MemoryDisk::new();
    let journal = journal(&disk, 40);
    let bytes =
        |entries: &[tidelock_journal::LogEntry]| entries.iter().map(|e| e.payload.len() + e.context.len()).sum();
    for from in 1..=40 {
        let entries = journal.read(LogIndex(from), LogIndex(41), 1000).unwrap();
        assert_eq!(entries[0], entry(from, 1, 200));
        let total: usize = bytes(&entries);
        assert!(total <= 1000 && (entries.len() == 5 || from > 36), "{total}");
        assert_eq!(journal.read(LogIndex(from), LogIndex(41), 0).unwrap().len(), 1, "one entry always fits");
    }
    assert!(matches!(journal.read(LogIndex(39), LogIndex(42), 1), Err(ReadError::BeyondEnd { .. })));
    assert!(journal.read(LogIndex(41), LogIndex(41), 1).unwrap().is_empty());
}
