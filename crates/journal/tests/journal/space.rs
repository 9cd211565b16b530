//! A full disk: noticed early, harmful to nothing, over when there is room again (H18).

use tidelock_journal::memory_disk::MemoryDisk;
use tidelock_journal::{AppendError, Journal, JournalConfig, Space};
use tidelock_model::LogIndex;

use crate::driver::{Driver, SEGMENT, Step, config, entry};

/// When the disk is full, clients must see "no space" and nothing worse: no write half done, nothing
/// unreadable, and service again once there is room, without a restart.
#[test]
fn a_full_disk_refuses_appends_whole_and_recovers_without_a_restart() {
    let mut driver = Driver::new();
    driver.disk.set_capacity(Some(3 * SEGMENT));
    driver.open().unwrap();
    let mut appended = 0;
    let error = loop {
        let last = driver.journal().last_index().0;
        let batch: Vec<_> = (last + 1..last + 4).map(|index| entry(index, 1, 150)).collect();
        match driver.journal().append(&batch, None) {
            Ok(()) => appended = last + 3,
            Err(error) => break error,
        }
        driver.journal().sync().unwrap();
        driver.journal().maintain().unwrap();
    };
    assert!(matches!(error, AppendError::NoSpace), "{error}");
    assert_eq!(driver.journal().space(), Space::Low);
    assert_eq!(driver.journal().maintain().unwrap(), Space::Low, "trying again does not make it worse");
    let journal = driver.journal();
    assert_eq!(journal.last_index(), LogIndex(appended), "a refused batch leaves nothing behind");
    assert_eq!(journal.read(LogIndex(1), LogIndex(appended + 1), usize::MAX).unwrap().len() as u64, appended);

    // A smaller write, such as a vote, may still fit into what is preallocated.
    journal.append(&[], Some(crate::driver::hard_state(2, 1, 0))).unwrap();
    journal.sync().unwrap();

    driver.disk.set_capacity(None);
    let journal = driver.journal();
    assert_eq!(journal.maintain().unwrap(), Space::Ok);
    journal.append(&[entry(appended + 1, 2, 150)], None).unwrap();
    journal.sync().unwrap();
    driver.disk.crash(|_| false);
    let (_, recovered) = Journal::open(driver.disk.clone(), config()).unwrap();
    assert_eq!(recovered.entries.len() as u64, appended + 1);
}

/// A node that crashed with a full disk must be able to start: starting is how space gets freed.
#[test]
fn a_journal_on_a_full_disk_opens_and_says_that_space_is_low() {
    let mut driver = Driver::new();
    driver.disk.set_capacity(Some(SEGMENT));
    driver.open().unwrap();
    assert_eq!(driver.journal().space(), Space::Low);
    driver.step(&Step::Append { count: 2, back: 0, size: 100, state: true }).unwrap();
    driver.step(&Step::Sync).unwrap();
    driver.disk.crash(|_| false);
    driver.open().unwrap();
    assert_eq!(driver.journal().space(), Space::Low);
}

/// Segments that a snapshot made superfluous become the room for what comes next, even on a full disk.
#[test]
fn trimming_after_a_snapshot_makes_room_on_a_full_disk() {
    let mut driver = Driver::new();
    driver.disk.set_capacity(Some(4 * SEGMENT + 1000));
    driver.open().unwrap();
    for _ in 0..200 {
        driver.step(&Step::Append { count: 2, back: 0, size: 150, state: true }).unwrap();
        driver.step(&Step::Sync).unwrap();
        driver.step(&Step::Snapshot { back: 0 }).unwrap();
    }
    driver.disk.crash(|_| false);
    driver.open().unwrap();
}

/// The operator wants to hear of a filling disk before it is full.
#[test]
fn space_is_low_below_the_configured_floor_although_the_reserve_is_there() {
    let disk = MemoryDisk::new();
    disk.set_capacity(Some(10 * SEGMENT));
    let config = JournalConfig { free_floor_bytes: 9 * SEGMENT, ..config() };
    let (journal, _) = Journal::open(disk, config).unwrap();
    assert_eq!(journal.space(), Space::Low);
}

/// Refusing such an entry here is the last line; written, it could never be read back.
#[test]
fn an_entry_larger_than_a_segment_is_refused_and_the_journal_goes_on() {
    let (mut journal, _) = Journal::open(MemoryDisk::new(), config()).unwrap();
    let error = journal.append(&[entry(1, 1, 10), entry(2, 1, SEGMENT as usize)], None).unwrap_err();
    assert!(matches!(error, AppendError::TooLarge { .. }), "{error}");
    assert_eq!(journal.last_index(), LogIndex(0));
    journal.append(&[entry(1, 1, 1000)], None).unwrap();
}

/// A gap in the log is a bug above; taken in, it would only show as a refusal to start much later.
#[test]
fn entries_that_leave_a_gap_are_refused_and_the_journal_goes_on() {
    let (mut journal, _) = Journal::open(MemoryDisk::new(), config()).unwrap();
    journal.append(&[entry(1, 1, 1)], None).unwrap();
    for batch in [vec![entry(3, 1, 1)], vec![entry(2, 1, 1), entry(4, 1, 1)], vec![entry(0, 1, 1)]] {
        let error = journal.append(&batch, None).unwrap_err();
        assert!(matches!(error, AppendError::OutOfOrder { .. }), "{error}");
    }
    journal.append(&[entry(2, 1, 1)], None).unwrap();
    assert_eq!(journal.last_index(), LogIndex(2));
}
