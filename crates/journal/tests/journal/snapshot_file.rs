//! Snapshot files: complete and exactly as written, or an error.

use bytes::Bytes;
use tidelock_journal::memory_disk::{MemoryDisk, Operation, Unsynced};
use tidelock_journal::{
    Disk, MAX_CHUNK_BYTES, SnapshotError, SnapshotMeta, SnapshotName, SnapshotReader, SnapshotReceiver, SnapshotWriter,
    latest_snapshot, list_snapshots, remove_older, verify_snapshot,
};
use tidelock_model::{LogIndex, Term};

use crate::driver::Choices;

fn meta(index: u64) -> SnapshotMeta {
    SnapshotMeta { index: LogIndex(index), term: Term(3), extra: Bytes::from_static(b"voters 1 2 3") }
}

fn chunks() -> Vec<Bytes> {
    vec![Bytes::from(vec![7; 300]), Bytes::new(), Bytes::from_static(b"the quick brown fox"), Bytes::from(noise(200))]
}

fn noise(len: usize) -> Vec<u8> {
    let mut choices = Choices(99);
    (0..len).map(|_| choices.below(256) as u8).collect()
}

fn write(disk: &MemoryDisk, index: u64) -> SnapshotName {
    let mut writer = SnapshotWriter::create(disk.clone(), meta(index)).unwrap();
    for chunk in chunks() {
        writer.write_chunk(&chunk).unwrap();
    }
    writer.finish().unwrap().name()
}

fn read(disk: &MemoryDisk, name: SnapshotName) -> Result<(SnapshotMeta, Vec<Bytes>), SnapshotError> {
    let mut reader = SnapshotReader::open(disk, name)?;
    let mut chunks = Vec::new();
    while let Some(chunk) = reader.next_chunk()? {
        chunks.push(chunk);
    }
    Ok((reader.meta().clone(), chunks))
}

/// Passes a snapshot on in raw pieces of the given size.
fn transfer(
    from: &MemoryDisk,
    name: SnapshotName,
    to: &MemoryDisk,
    piece: usize,
) -> Result<SnapshotMeta, SnapshotError> {
    let reader = SnapshotReader::open(from, name)?;
    let mut receiver = SnapshotReceiver::create(to.clone(), reader.raw_len())?;
    while receiver.received() < reader.raw_len() {
        receiver.write_raw(&reader.read_raw(receiver.received(), piece)?)?;
    }
    receiver.finish()
}

/// A snapshot is all a node has of the past; it must come back as it went in, also by way of a peer.
#[test]
fn a_snapshot_is_read_back_as_written_and_as_sent_to_a_peer() {
    let (disk, peer) = (MemoryDisk::new(), MemoryDisk::new());
    let name = write(&disk, 10);
    disk.crash(|_| false);
    assert_eq!(read(&disk, name).unwrap(), (meta(10), chunks()));
    assert_eq!(verify_snapshot(&disk, name).unwrap(), meta(10));
    assert_eq!(transfer(&disk, name, &peer, 100).unwrap(), meta(10));
    peer.crash(|_| false);
    assert_eq!(read(&peer, name).unwrap(), (meta(10), chunks()));
}

/// Rot in a snapshot would be served as truth and spread to every node that is sent it (H16).
#[test]
fn a_flip_in_any_byte_of_a_snapshot_is_an_error_here_and_at_a_peer() {
    let disk = MemoryDisk::new();
    let name = write(&disk, 10);
    let len = disk.contents(&name.file_name()).unwrap().len();
    for at in 0..len {
        for mask in [0x01, 0x80, 0xff] {
            let damaged = disk.fork();
            damaged.flip(&name.file_name(), at, mask);
            read(&damaged, name).unwrap_err();
            verify_snapshot(&damaged, name).unwrap_err();
            let peer = MemoryDisk::new();
            transfer(&damaged, name, &peer, 4096).unwrap_err();
            assert_eq!(peer.list().unwrap(), Vec::<String>::new(), "a bad transfer leaves nothing behind");
        }
    }
}

/// A file cut short, or with something behind its end, is not the snapshot that was written (H22).
#[test]
fn a_snapshot_cut_at_any_byte_or_with_a_byte_too_many_is_an_error() {
    let disk = MemoryDisk::new();
    let name = write(&disk, 10);
    let file = name.file_name();
    let len = disk.contents(&file).unwrap().len();
    for at in 0..len {
        let damaged = disk.fork();
        damaged.truncate(&file, at);
        assert!(matches!(read(&damaged, name), Err(SnapshotError::Damaged { .. })), "cut at {at}");
    }
    disk.overwrite(&file, len, &[0]);
    assert!(matches!(read(&disk, name), Err(SnapshotError::Damaged { .. })));
}

/// A snapshot renamed by hand, or a directory entry that points at the wrong file, has intact contents
/// that stand for another index.
#[test]
fn a_snapshot_under_a_wrong_name_is_an_error() {
    let disk = MemoryDisk::new();
    let name = write(&disk, 10);
    let wrong = meta(11).name();
    disk.rename(&name.file_name(), &wrong.file_name()).unwrap();
    assert!(matches!(read(&disk, wrong), Err(SnapshotError::Damaged { .. })));
}

/// Only a finished snapshot counts: one that a crash or an error interrupted must never be found, and
/// the one before it must stay (H22).
#[test]
fn a_snapshot_interrupted_at_any_disk_operation_is_whole_or_absent() {
    let disk = MemoryDisk::new();
    write(&disk, 10);
    let before = disk.operations();
    write(&disk.fork(), 20);
    let operations = {
        let whole = disk.fork();
        write(&whole, 20);
        whole.operations() - before
    };
    for at in 1..=operations {
        for seed in 0..10 {
            let disk = disk.fork();
            disk.power_off_during(at);
            let attempt = || {
                let mut writer = SnapshotWriter::create(disk.clone(), meta(20))?;
                for chunk in chunks() {
                    writer.write_chunk(&chunk)?;
                }
                writer.finish()
            };
            let finished = attempt().is_ok();
            let mut choices = Choices(seed);
            disk.crash(|unsynced| match unsynced {
                Unsynced::Name { .. } => choices.below(2) == 0,
                Unsynced::Sector { .. } => choices.below(3) == 0,
            });
            let newest = latest_snapshot(&disk).unwrap().unwrap();
            assert!(!finished || newest == meta(20).name());
            assert_eq!(read(&disk, newest).unwrap().1, chunks());
        }
    }
}

/// A write that failed may have left half a chunk; finishing over it would publish a damaged file.
#[test]
fn a_snapshot_whose_write_failed_cannot_be_finished() {
    let disk = MemoryDisk::new();
    let mut writer = SnapshotWriter::create(disk.clone(), meta(10)).unwrap();
    disk.fail(Operation::Write, 1, std::io::ErrorKind::StorageFull);
    writer.write_chunk(b"lost").unwrap_err();
    writer.write_chunk(b"more").unwrap_err();
    writer.finish().unwrap_err();
    assert_eq!(disk.list().unwrap(), Vec::<String>::new(), "the room is given back");
}

/// A peer that sends without end must not fill the disk.
#[test]
fn a_transfer_longer_than_agreed_is_refused() {
    let mut receiver = SnapshotReceiver::create(MemoryDisk::new(), 10).unwrap();
    receiver.write_raw(&[0; 8]).unwrap();
    assert!(matches!(receiver.write_raw(&[0; 3]), Err(SnapshotError::TooLarge { .. })));
}

/// Lengths in a file are claims. One that asks for gigabytes must fail before memory is taken.
#[test]
fn a_chunk_over_the_limit_is_refused_when_written_and_when_claimed() {
    let disk = MemoryDisk::new();
    let mut writer = SnapshotWriter::create(disk.clone(), meta(10)).unwrap();
    let error = writer.write_chunk(&vec![0; MAX_CHUNK_BYTES + 1]).unwrap_err();
    assert!(matches!(error, SnapshotError::TooLarge { .. }));
    writer.write_chunk(&vec![0; MAX_CHUNK_BYTES]).unwrap();
    let name = writer.finish().unwrap().name();
    assert_eq!(read(&disk, name).unwrap().1[0].len(), MAX_CHUNK_BYTES);

    // A chunk header with all checks right but an absurd length, as only a forger would write it.
    let file = name.file_name();
    let bytes = disk.contents(&file).unwrap();
    let at = 32 + meta(10).extra.len() + 4;
    let mut header = bytes[at..at + 20].to_vec();
    header[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let seed = crc32c::crc32c_append(crc32c::crc32c(&bytes[at - 4..at]), &0u64.to_le_bytes());
    let check = crc32c::crc32c_append(seed, &header[..16]);
    header[16..].copy_from_slice(&check.to_le_bytes());
    disk.overwrite(&file, at, &header);
    let error = read(&disk, name).unwrap_err();
    assert!(error.to_string().contains("within bounds"), "{error}");
}

/// Old snapshots are removed only by this, and never the newest.
#[test]
fn removing_older_snapshots_keeps_the_newest_ones() {
    let disk = MemoryDisk::new();
    for index in [30, 10, 20] {
        write(&disk, index);
    }
    remove_older(&disk, 2).unwrap();
    disk.crash(|_| false);
    assert_eq!(list_snapshots(&disk).unwrap(), [meta(20).name(), meta(30).name()]);
    remove_older(&disk, 0).unwrap();
    assert_eq!(list_snapshots(&disk).unwrap(), [meta(30).name()]);
}
