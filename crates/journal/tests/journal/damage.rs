//! Damage: flipped bits, cut files, missing files. The journal opens with the truth or not at all.

use tidelock_journal::memory_disk::MemoryDisk;
use tidelock_journal::{Disk, Journal, OpenError, Recovered};
use tidelock_model::LogIndex;

use crate::driver::{Choices, Driver, Step, config, entry, random_steps};

const HEADER: usize = 64;
const RECORDS_START: usize = 80;
const RECORD_HEADER: usize = 20;

fn segments(disk: &MemoryDisk) -> Vec<String> {
    let mut names: Vec<_> = disk.list().unwrap().into_iter().filter(|name| name.starts_with("segment-")).collect();
    names.sort();
    names
}

/// Where the records of a segment start, and where the last one ends. Reads independently of the crate
/// and follows the links, since leftovers of an earlier use may come after the last record.
fn record_starts(bytes: &[u8]) -> Vec<usize> {
    let field = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut at = RECORDS_START;
    let mut starts = vec![at];
    let mut link = field(HEADER - 4);
    while at + RECORD_HEADER <= bytes.len() && bytes[at + 4] != 0 && field(at + 8) == link {
        link = field(at + 16);
        at += RECORD_HEADER + (field(at) as usize).next_multiple_of(4);
        starts.push(at);
    }
    starts
}

fn open(disk: &MemoryDisk) -> Result<Recovered, OpenError> {
    let (journal, recovered) = Journal::open(disk.clone(), config())?;
    crate::driver::check_readable(&journal, &recovered);
    Ok(recovered)
}

/// A journal with a few batches; with `unsynced`, one more that was never synced.
fn small_journal(unsynced: bool, maintained: bool) -> Driver {
    let mut driver = Driver::new();
    driver.open().unwrap();
    for size in [10, 33, 150] {
        driver.step(&Step::Append { count: 2, back: 0, size, state: true }).unwrap();
        driver.step(&Step::Sync).unwrap();
    }
    if maintained {
        driver.step(&Step::Maintain).unwrap();
    }
    if unsynced {
        driver.step(&Step::Append { count: 2, back: 0, size: 61, state: true }).unwrap();
    }
    driver.journal = None;
    assert_eq!(segments(&driver.disk).len(), 1, "the damage below is to the last segment");
    driver
}

/// The bytes of the last three records that are not marks, and whatever follows them.
fn last_three(driver: &Driver) -> (String, std::ops::Range<usize>) {
    let name = segments(&driver.disk).remove(0);
    let bytes = driver.disk.contents(&name).unwrap();
    let starts = record_starts(&bytes);
    let end = *starts.last().unwrap();
    let content: Vec<usize> = starts[..starts.len() - 1].iter().copied().filter(|at| bytes[at + 4] != 4).collect();
    (name, content[content.len() - 3]..end + 8)
}

/// The last records are where a crash tears and where an acknowledged write is youngest. A flipped bit
/// there is either refused or costs nothing that was synced; it never turns into other data (H15).
#[test]
fn a_flip_in_any_byte_of_the_last_three_records_never_loses_or_alters_synced_data() {
    for (unsynced, maintained) in [(false, false), (true, false), (false, true), (true, true)] {
        let driver = small_journal(unsynced, maintained);
        let (name, range) = last_three(&driver);
        let (mut refused, mut opened) = (0, 0);
        for at in range {
            for mask in [0x01, 0x80, 0xff] {
                let disk = driver.disk.fork();
                disk.flip(&name, at, mask);
                match open(&disk) {
                    Ok(recovered) => {
                        driver.oracle.check(&recovered);
                        opened += 1;
                    }
                    Err(error) => {
                        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
                        assert!(error.to_string().contains(&name), "the operator learns which file: {error}");
                        assert!(error.to_string().contains("rejoin as a new member"), "and what to do: {error}");
                        refused += 1;
                    }
                }
            }
        }
        assert!(opened > 0, "damage after the end and in marks is harmless");
        assert_eq!(refused > 0, !unsynced, "synced records are refused, unsynced ones are cut");
    }
}

/// A tail of zeros is what an unsynced write looks like after a power cut, so it is cut. Zeros in place
/// of synced records are a disk that lies, and the synced note tells (H15).
#[test]
fn zeros_from_any_byte_of_the_last_three_records_on_never_lose_synced_data() {
    for unsynced in [false, true] {
        let driver = small_journal(unsynced, true);
        let (name, range) = last_three(&driver);
        for at in range {
            let disk = driver.disk.fork();
            disk.zero_from(&name, at);
            match open(&disk) {
                Ok(recovered) => drop(driver.oracle.check(&recovered)),
                Err(error) => assert!(!unsynced && matches!(error, OpenError::Damaged { .. }), "{error}"),
            }
        }
    }
}

/// Without the note (it is written once a second) a lost tail may go unnoticed, but even then what
/// opens is a prefix of the log and never anything else.
#[test]
fn zeros_in_place_of_records_synced_a_moment_ago_leave_a_prefix() {
    let driver = small_journal(false, false);
    let (name, range) = last_three(&driver);
    for at in range {
        let disk = driver.disk.fork();
        disk.zero_from(&name, at);
        if let Ok(recovered) = open(&disk) {
            assert!(driver.oracle.find(&recovered, 0).is_some(), "a prefix of what was written");
        }
    }
}

/// Segment files never change their length, so a shorter one was cut by something else and is refused.
#[test]
fn a_segment_file_cut_at_any_byte_of_the_last_three_records_is_refused() {
    let driver = small_journal(true, true);
    let (name, range) = last_three(&driver);
    for at in range {
        let disk = driver.disk.fork();
        disk.truncate(&name, at);
        assert!(matches!(open(&disk), Err(OpenError::Damaged { .. })));
    }
}

/// A journal of several segments, some of them recycled, with entries replaced here and there.
fn long_journal(seed: u64) -> Driver {
    let mut driver = Driver::new();
    driver.open().unwrap();
    for step in random_steps(&mut Choices(seed), 60) {
        driver.step(&step).unwrap();
    }
    for _ in 0..8 {
        driver.step(&Step::Append { count: 3, back: 1, size: 170, state: true }).unwrap();
        driver.step(&Step::Sync).unwrap();
    }
    driver.step(&Step::Maintain).unwrap();
    driver.journal = None;
    driver
}

/// Bits rot in old records too, unseen for months. Whatever byte it is, the journal refuses or opens
/// with exactly what was written; it never serves or spreads the damage (H16).
#[test]
fn a_flip_in_any_byte_of_any_segment_is_refused_or_harmless() {
    for seed in [3, 8] {
        let driver = long_journal(seed);
        let names = segments(&driver.disk);
        assert!(names.len() >= 3, "there are older segments to damage: {names:?}");
        let intact = open(&driver.disk.fork()).unwrap();
        let mut refused = 0;
        for name in &names {
            let bytes = driver.disk.contents(name).unwrap();
            let records_end = record_starts(&bytes).last().copied().unwrap();
            for at in 0..bytes.len() {
                let disk = driver.disk.fork();
                disk.flip(name, at, 1 << (at % 8));
                match open(&disk) {
                    Ok(recovered) => {
                        assert_eq!(recovered.entries, intact.entries, "flip at {at} of {name}");
                        assert_eq!(recovered.hard_state, intact.hard_state, "flip at {at} of {name}");
                        assert_eq!(recovered.snapshot, intact.snapshot, "flip at {at} of {name}");
                        // The last two records are a seal, or a mark, which say nothing about the log.
                        let harmless = (HEADER..RECORDS_START).contains(&at) || at >= records_end - 2 * RECORD_HEADER;
                        assert!(harmless, "a flip at {at} of {name} went unnoticed");
                    }
                    Err(error) => {
                        assert!(matches!(error, OpenError::Damaged { .. } | OpenError::Hole { .. }), "{error}");
                        refused += 1;
                    }
                }
            }
        }
        assert!(refused > 2000, "most of the bytes were in records: {refused}");
    }
}

/// A sector that the disk wrote to the wrong place carries records with valid checksums. They must not
/// be taken for those that belong there (H15).
#[test]
fn a_sector_duplicated_over_another_is_refused_or_harmless() {
    let driver = long_journal(5);
    let intact = open(&driver.disk.fork()).unwrap();
    let names = segments(&driver.disk);
    for name in &names {
        for source in &names {
            let bytes = driver.disk.contents(source).unwrap();
            for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from * 512, to * 512))) {
                let disk = driver.disk.fork();
                disk.overwrite(name, to, &bytes[from..from + 512]);
                if let Ok(recovered) = open(&disk) {
                    assert_eq!(recovered.entries, intact.entries);
                    assert_eq!(recovered.hard_state, intact.hard_state);
                }
            }
        }
    }
}

/// A log with a hole that starts anyway loses acknowledged writes in silence (H12). Every missing file
/// must be noticed, the newest one above all, since nothing comes after it that could miss it.
#[test]
fn h12_any_missing_segment_is_refused() {
    let driver = {
        let mut driver = Driver::new();
        driver.open().unwrap();
        for _ in 0..12 {
            driver.step(&Step::Append { count: 3, back: 0, size: 170, state: true }).unwrap();
            driver.step(&Step::Sync).unwrap();
        }
        driver.step(&Step::Maintain).unwrap();
        driver.journal = None;
        driver
    };
    let names = segments(&driver.disk);
    assert!(names.len() >= 4);
    for name in &names {
        let disk = driver.disk.fork();
        disk.remove(name).unwrap();
        let error = open(&disk).unwrap_err();
        assert!(matches!(error, OpenError::Hole { .. }), "{name}: {error}");
    }
    let disk = driver.disk.fork();
    for name in &names {
        disk.remove(name).unwrap();
    }
    assert!(matches!(open(&disk), Err(OpenError::Hole { .. })), "an emptied journal is not a new one");
}

/// Two segments that changed places, or one restored from an old copy, have valid records throughout.
#[test]
fn segments_that_changed_places_are_refused() {
    let driver = long_journal(3);
    let names = segments(&driver.disk);
    let (first, second) = (&names[0], &names[1]);
    let disk = driver.disk.fork();
    let (a, b) = (disk.contents(first).unwrap(), disk.contents(second).unwrap());
    disk.overwrite(first, 0, &b);
    disk.overwrite(second, 0, &a);
    assert!(matches!(open(&disk), Err(OpenError::Damaged { .. })));
}

/// A segment restored from another copy of the log fits in name, size and every checksum of its own.
/// Only the chain tells that the segment after it continues something else (H12).
#[test]
fn a_segment_of_another_history_is_refused() {
    let history = |term: u64| {
        let disk = MemoryDisk::new();
        let (mut journal, _) = Journal::open(disk.clone(), config()).unwrap();
        let entries: Vec<_> = (1..=12).map(|index| entry(index, term, 200)).collect();
        journal.append(&entries, None).unwrap();
        journal.sync().unwrap();
        disk
    };
    let (disk, other) = (history(1), history(2));
    assert_eq!(segments(&disk), segments(&other));
    assert!(segments(&disk).len() >= 2);
    let name = segments(&disk).remove(0);
    disk.overwrite(&name, 0, &other.contents(&name).unwrap());
    let error = open(&disk).unwrap_err();
    assert!(error.to_string().contains("does not continue"), "{error}");
}

/// A record that is intact, in its place, and follows another record than the one before it cannot come
/// from a crash. Cutting there would hide that something else is wrong.
#[test]
fn an_intact_record_with_the_wrong_predecessor_is_refused() {
    let driver = small_journal(true, false);
    let (name, range) = last_three(&driver);
    let bytes = driver.disk.contents(&name).unwrap();
    let at = range.start;
    let mut header = bytes[at..at + RECORD_HEADER].to_vec();
    header[8] ^= 1;
    let place = crc32c::crc32c_append(crc32c::crc32c(&1u64.to_le_bytes()), &(at as u64).to_le_bytes());
    let check = crc32c::crc32c_append(place, &header[..16]);
    header[16..].copy_from_slice(&check.to_le_bytes());
    driver.disk.overwrite(&name, at, &header);
    let error = open(&driver.disk).unwrap_err();
    assert!(error.to_string().contains("does not continue the one before"), "{error}");
}

/// A refused directory is evidence, and often the only copy: looking at it must not change it.
#[test]
fn refusing_to_open_changes_nothing_on_disk() {
    let driver = small_journal(false, true);
    let (name, range) = last_three(&driver);
    driver.disk.flip(&name, range.start + 25, 0x10);
    let before = (driver.disk.operations(), driver.disk.contents(&name));
    open(&driver.disk).unwrap_err();
    assert_eq!((driver.disk.operations(), driver.disk.contents(&name)), before);
}

/// A follower that lags is fed from old segments. Damage found on that way must be an error at the
/// sender; once sent, it would be acknowledged by a healthy node (H16).
#[test]
fn reading_back_a_rotten_record_is_an_error() {
    let disk = MemoryDisk::new();
    let (mut journal, _) = Journal::open(disk.clone(), config()).unwrap();
    journal.append(&[entry(1, 1, 200), entry(2, 1, 200)], None).unwrap();
    journal.sync().unwrap();
    disk.flip(&segments(&disk)[0], 250, 0x04);
    let error = journal.read(LogIndex(1), LogIndex(3), usize::MAX).unwrap_err();
    assert!(matches!(error, tidelock_journal::ReadError::Damaged { .. }), "{error}");
}
