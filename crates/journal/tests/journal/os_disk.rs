//! The real disk, on a temporary directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tidelock_journal::{
    Disk, Journal, JournalConfig, OsDisk, OsDiskError, SnapshotMeta, SnapshotReader, SnapshotReceiver, SnapshotWriter,
    Space,
};
use tidelock_model::{LogIndex, Term};

use crate::driver::{entry, hard_state};

fn config() -> JournalConfig {
    JournalConfig { segment_bytes: 64 * 1024, spare_segments: 1, free_floor_bytes: 0 }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Keys, values and password hashes are in these files; other users of the machine must not read them.
#[test]
fn the_data_directory_and_its_files_are_private() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a/data");
    let disk = OsDisk::open(&path).unwrap();
    let (mut journal, _) = Journal::open(disk.clone(), config()).unwrap();
    journal.append(&[entry(1, 1, 100)], Some(hard_state(1, 1, 0))).unwrap();
    journal.sync().unwrap();
    let meta = SnapshotMeta { index: LogIndex(1), term: Term(1), extra: Bytes::new() };
    SnapshotWriter::create(disk, meta).unwrap().finish().unwrap();
    assert_eq!(mode(&path), 0o700);
    let files = || -> Vec<_> { fs::read_dir(&path).unwrap().map(|file| file.unwrap().path()).collect() };
    // The spare is made beside the journal, when there is time.
    let deadline = Instant::now() + Duration::from_secs(30);
    while files().len() < 4 {
        assert!(Instant::now() < deadline, "segment, spare, snapshot, lock: {:?}", files());
        std::thread::yield_now();
    }
    for file in files() {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

/// Two processes writing one journal would destroy it. The second must not start, and must say why.
#[test]
fn a_second_process_on_the_same_directory_is_turned_away() {
    let root = tempfile::tempdir().unwrap();
    let disk = OsDisk::open(root.path()).unwrap();
    let error = OsDisk::open(root.path()).unwrap_err();
    assert!(matches!(error, OsDiskError::InUse { .. }));
    assert!(error.to_string().contains(&root.path().display().to_string()), "{error}");
    assert!(error.to_string().contains("another tidelock runs"), "{error}");
    drop(disk);
    OsDisk::open(root.path()).expect("the lock goes with its owner");
}

/// Large files give their room back piece by piece, which must not reach a follower that still reads one.
#[test]
fn a_removed_file_keeps_its_bytes_for_who_has_it_open() {
    const BYTES: usize = 20 * 1024 * 1024;
    let root = tempfile::tempdir().unwrap();
    let disk = OsDisk::open(root.path()).unwrap();
    disk.create("large").unwrap().write_at(0, &vec![7; BYTES]).unwrap();
    // Another handle of the test, to see what becomes of a file without a name.
    let seen = fs::File::open(root.path().join("large")).unwrap();

    let reader = disk.open("large").unwrap();
    disk.remove("large").unwrap();
    assert!(disk.list().unwrap().iter().all(|name| name != "large"));
    let mut last = [0];
    reader.read_at(BYTES as u64 - 1, &mut last).unwrap();
    assert_eq!((last, seen.metadata().unwrap().len()), ([7], BYTES as u64));

    disk.create("large").unwrap().write_at(0, &vec![7; BYTES]).unwrap();
    let seen = fs::File::open(root.path().join("large")).unwrap();
    disk.remove("large").unwrap();
    assert_eq!(seen.metadata().unwrap().len(), 0, "nobody of ours read it any more");
}

/// Appends go past the system's cache in whole blocks, reads and the note in the header through it: whatever their sizes
/// and whoever comes between, the file is what was written. After a sync all of it is, also what nobody waited for: the
/// header of a new segment tells where the one before ends, and a file that ends sooner counts as damaged.
#[test]
fn appends_past_the_cache_and_writes_through_it_make_one_file() {
    const BYTES: u64 = 1 << 20;
    let root = tempfile::tempdir().unwrap();
    let disk = OsDisk::open(root.path()).unwrap();
    let file = disk.create("log").unwrap();
    file.allocate_zeroed(BYTES).unwrap();
    file.write_at(0, &[9; 100]).unwrap();
    let (mut expected, mut draw) = (vec![9; 100], 7u64);
    while expected.len() < BYTES as usize - 40_000 {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (kind, byte, at) = (draw >> 60, (draw >> 48) as u8, expected.len() as u64);
        let len = [20, 333, 4096, 4076, 30_000][(draw >> 40) as usize % 5];
        match kind {
            0..=3 => {
                file.append_at_leisure(at, &[byte; 20]).unwrap();
                expected.extend_from_slice(&[byte; 20]);
            }
            4 => {
                // The note, or somewhere in the block that is begun.
                let note = if byte % 2 == 0 { 64 } else { expected.len() - 30 };
                file.write_at(note as u64, &[byte; 12]).unwrap();
                expected[note..note + 12].fill(byte);
            }
            5 | 6 => {
                file.sync_data().unwrap();
                let on_disk = fs::read(root.path().join("log")).unwrap();
                assert!(on_disk[..expected.len()] == expected, "after {} bytes", expected.len());
                if kind == 6 {
                    file.end_appends();
                }
            }
            _ => {
                file.append(at, &vec![byte; len]).unwrap();
                expected.resize(expected.len() + len, byte);
            }
        }
        let mut read = vec![0; expected.len()];
        file.read_at(0, &mut read).unwrap();
        assert!(read == expected, "after {} bytes", expected.len());
    }
    assert_eq!(file.len().unwrap(), BYTES);
    file.append_at_leisure(expected.len() as u64, &[1; 20]).unwrap();
    expected.extend_from_slice(&[1; 20]);
    drop(file);
    assert!(fs::read(root.path().join("log")).unwrap()[..expected.len()] == expected, "after the end");
}

/// The whole life of a journal on real files: rotation, trimming, recycling, restarting.
#[test]
fn a_journal_on_real_files_survives_reopening_and_reuses_its_files() {
    let root = tempfile::tempdir().unwrap();
    let mut last = 0;
    for round in 1..=6u64 {
        let disk = OsDisk::open(root.path()).unwrap();
        let (mut journal, recovered) = Journal::open(disk.clone(), config()).unwrap();
        assert_eq!(recovered.last_index, LogIndex(last));
        for _ in 0..40 {
            let batch: Vec<_> = (last + 1..=last + 5).map(|index| entry(index, round, 900)).collect();
            journal.append(&batch, Some(hard_state(round, 1, last))).unwrap();
            journal.sync().unwrap();
            last += 5;
        }
        let from = last - 150;
        let back = journal.read(LogIndex(from), LogIndex(last + 1), usize::MAX).unwrap();
        assert_eq!(back, (from..=last).map(|index| entry(index, round, 900)).collect::<Vec<_>>());
        assert_eq!(journal.maintain().unwrap(), Space::Ok);
        let meta = SnapshotMeta { index: LogIndex(last - 7), term: Term(round), extra: Bytes::new() };
        let mut writer = SnapshotWriter::create(disk, meta).unwrap();
        writer.write_chunk(&round.to_le_bytes()).unwrap();
        writer.finish().unwrap();
        while journal.trim_one(LogIndex(last - 7)).unwrap() {}
        assert!(journal.disk_bytes() <= 6 * 64 * 1024, "{}", journal.disk_bytes());
    }
    let (_, recovered) = Journal::open(OsDisk::open(root.path()).unwrap(), config()).unwrap();
    assert_eq!(recovered.entries, (last - 6..=last).map(|index| entry(index, 6, 900)).collect::<Vec<_>>());
    assert_eq!(recovered.hard_state, hard_state(6, 1, last - 5).max_commit(last - 7));
}

trait MaxCommit {
    fn max_commit(self, commit: u64) -> Self;
}

impl MaxCommit for tidelock_journal::HardState {
    fn max_commit(mut self, commit: u64) -> Self {
        self.commit = self.commit.max(LogIndex(commit));
        self
    }
}

/// A transfer between two real directories, as between two nodes.
#[test]
fn a_snapshot_moves_between_real_directories() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, there) = (OsDisk::open(here.path()).unwrap(), OsDisk::open(there.path()).unwrap());
    let meta = SnapshotMeta { index: LogIndex(5), term: Term(2), extra: Bytes::from_static(b"voters") };
    let mut writer = SnapshotWriter::create(here.clone(), meta.clone()).unwrap();
    let chunks: Vec<Vec<u8>> = (0..20u8).map(|n| vec![n; 100_000]).collect();
    for chunk in &chunks {
        writer.write_chunk(chunk).unwrap();
    }
    writer.finish().unwrap();
    let source = SnapshotReader::open(&here, meta.name()).unwrap();
    let mut receiver = SnapshotReceiver::create(there.clone(), source.raw_len()).unwrap();
    while receiver.received() < source.raw_len() {
        receiver.write_raw(&source.read_raw(receiver.received(), 512).unwrap()).unwrap();
    }
    assert_eq!(receiver.finish().unwrap(), meta);
    let mut reader = SnapshotReader::open(&there, meta.name()).unwrap();
    for chunk in &chunks {
        assert_eq!(reader.next_chunk().unwrap().as_deref(), Some(chunk.as_slice()));
    }
    assert_eq!(reader.next_chunk().unwrap(), None);
    assert!(there.list().unwrap().iter().all(|name| !name.ends_with(".tmp")));
}
