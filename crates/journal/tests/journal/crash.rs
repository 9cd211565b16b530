//! Crashes at every moment: what was synced is there, and nothing that was never written.

use proptest::prelude::*;
use tidelock_journal::memory_disk::{MemoryDisk, Operation, Unsynced};
use tidelock_journal::{Journal, LogEntry};
use tidelock_model::LogIndex;

use crate::driver::{Choices, Driver, SEGMENT, Step, config, entry, hard_state, random_steps};

/// What a crash leaves of unsynced writes: nothing, all, or a choice for each sector and name.
fn crash(disk: &MemoryDisk, choices: &mut Choices) {
    match choices.below(6) {
        0 => disk.crash(|_| false),
        1 => disk.crash(|_| true),
        2 => disk.crash(|unsynced| matches!(unsynced, Unsynced::Name { .. })),
        3 => disk.crash(|unsynced| matches!(unsynced, Unsynced::Sector { .. })),
        _ => disk.crash(|_| choices.below(2) == 0),
    }
}

/// Runs steps, cuts the power during the `at`-th change to the disk, and opens again. Then a little
/// more work and a second crash: what the first recovery gave out must survive that one too.
fn crash_during(steps: &[Step], at: u64, choices: &mut Choices) {
    let mut driver = Driver::new();
    driver.open().expect("an empty disk opens");
    driver.disk.power_off_during(at);
    for step in steps {
        if driver.step(step).is_err() {
            break;
        }
    }
    crash(&driver.disk, choices);
    driver.open().expect("a crash alone is never damage");
    // Recovery has said "all of this is durable", so nothing of it may depend on a later sync.
    crash(&driver.disk, choices);
    driver.open().expect("a crash after recovery is never damage");
    for step in random_steps(choices, 4) {
        driver.step(&step).expect("the journal goes on after a crash");
    }
    driver.step(&Step::Sync).expect("the journal goes on after a crash");
    crash(&driver.disk, choices);
    driver.open().expect("a crash alone is never damage");
}

/// An acknowledged write must survive a power cut at any moment, whatever the disk did with what was
/// not yet synced (H2, H12, H15): this is the promise the whole product stands on.
#[test]
fn h2_power_cut_during_every_single_disk_operation_loses_nothing_synced() {
    for seed in 0..12u64 {
        let mut choices = Choices(seed);
        let steps = random_steps(&mut choices, 40);
        let mut whole = Driver::new();
        whole.open().expect("an empty disk opens");
        let before = whole.disk.operations();
        for step in &steps {
            whole.step(step).expect("nothing fails without faults");
        }
        let operations = whole.disk.operations() - before;
        assert!(operations > 60, "the script does enough to be worth it: {operations}");
        for at in 1..=operations {
            crash_during(&steps, at, &mut choices.clone());
        }
    }
}

/// A first start cut short must not look like a journal that lost its segments.
#[test]
fn power_cut_during_the_very_first_start_leaves_a_directory_that_starts() {
    for at in 1..30 {
        for seed in 0..20 {
            let mut driver = Driver::new();
            driver.disk.power_off_during(at);
            let _ = driver.open();
            crash(&driver.disk, &mut Choices(seed * 100 + at));
            driver.open().expect("the next start works");
        }
    }
}

/// Recovery writes too: cut short by another crash it must be repeatable, as often as it takes.
#[test]
fn power_cut_during_recovery_itself_loses_nothing_synced() {
    for seed in 0..60u64 {
        let mut choices = Choices(seed);
        let mut driver = Driver::new();
        driver.open().expect("an empty disk opens");
        let stop = 20 + choices.below(150);
        driver.disk.power_off_during(stop);
        for step in random_steps(&mut choices, 60) {
            if driver.step(&step).is_err() {
                break;
            }
        }
        crash(&driver.disk, &mut choices);
        for at in 1..12 {
            driver.disk.power_off_during(at);
            if let Err(error) = driver.open() {
                assert!(matches!(error, tidelock_journal::OpenError::Io(_)), "{error}");
            }
            crash(&driver.disk, &mut choices);
        }
        driver.open().expect("a crash alone is never damage");
    }
}

/// A process that is killed leaves its writes in the system's memory. What the next process reads there
/// it reports as durable, so it has to make it so before a power cut takes it away.
#[test]
fn entries_found_after_a_kill_survive_a_power_cut_after_the_restart() {
    let mut driver = Driver::new();
    driver.open().unwrap();
    driver.step(&Step::Append { count: 3, back: 0, size: 100, state: true }).unwrap();
    driver.open().unwrap();
    assert_eq!(driver.journal().last_index(), LogIndex(3));
    driver.disk.crash(|_| false);
    driver.open().unwrap();
    assert_eq!(driver.journal().last_index(), LogIndex(3));
}

/// After a failed sync the system forgets that the pages were never written and a second sync succeeds.
/// The next start reads them from memory, so only writing them again makes them durable (H17).
#[test]
fn entries_found_after_a_failed_sync_survive_a_power_cut_after_the_restart() {
    let mut driver = Driver::new();
    driver.open().unwrap();
    driver.step(&Step::Append { count: 3, back: 0, size: 100, state: true }).unwrap();
    driver.disk.fail(Operation::Sync, 1, std::io::ErrorKind::Other);
    driver.journal().sync().unwrap_err();
    driver.open().unwrap();
    assert_eq!(driver.journal().last_index(), LogIndex(3));
    driver.disk.crash(|_| false);
    driver.open().unwrap();
    assert_eq!(driver.journal().last_index(), LogIndex(3));
}

/// After any failed write or sync nobody knows what is on the disk; a journal that went on would
/// acknowledge what may not be there (H17).
#[test]
fn a_failed_write_or_sync_stops_the_journal_for_good() {
    for operation in [Operation::Write, Operation::Sync] {
        let mut driver = Driver::new();
        driver.open().unwrap();
        driver.step(&Step::Append { count: 1, back: 0, size: 10, state: true }).unwrap();
        driver.step(&Step::Sync).unwrap();
        driver.disk.fail(operation, 1, std::io::ErrorKind::Other);
        let failed = driver.step(&Step::Append { count: 1, back: 0, size: 10, state: true });
        let failed = failed.and_then(|()| driver.step(&Step::Sync));
        failed.unwrap_err();
        let journal = driver.journal();
        journal.append(&[entry(2, 1, 1)], None).unwrap_err();
        journal.sync().unwrap_err();
        journal.maintain().unwrap_err();
        journal.trim_one(LogIndex(1)).unwrap_err();
        journal.read(LogIndex(1), LogIndex(2), 1).unwrap_err();
        driver.open().expect("a new process starts from what is there");
    }
}

/// A leader's correction of a follower's log must not come undone at the next start: the follower would
/// bring back entries that the cluster has discarded.
#[test]
fn replaced_entries_stay_replaced_after_reopening() {
    let disk = MemoryDisk::new();
    let (mut journal, _) = Journal::open(disk.clone(), config()).unwrap();
    let old: Vec<LogEntry> = (1..=20).map(|index| entry(index, 1, 150)).collect();
    journal.append(&old, Some(hard_state(1, 1, 5))).unwrap();
    journal.sync().unwrap();
    let new: Vec<LogEntry> = (8..=12).map(|index| entry(index, 2, 150)).collect();
    journal.append(&new, Some(hard_state(2, 0, 5))).unwrap();
    journal.sync().unwrap();
    let expected: Vec<LogEntry> = old[..7].iter().chain(&new).cloned().collect();
    assert_eq!(journal.read(LogIndex(1), LogIndex(13), usize::MAX).unwrap(), expected);
    drop(journal);
    disk.crash(|_| false);
    let (journal, recovered) = Journal::open(disk, config()).unwrap();
    assert_eq!(recovered.entries, expected);
    assert_eq!(recovered.hard_state, hard_state(2, 0, 5));
    assert_eq!(journal.read(LogIndex(1), LogIndex(13), usize::MAX).unwrap(), expected);
}

/// A recycled file is full of valid-looking records of its earlier life. One of them coming back would
/// be a log entry from the past in the middle of the present.
#[test]
fn records_of_a_recycled_segment_never_come_back() {
    let mut driver = Driver::new();
    driver.open().unwrap();
    let fill = Step::Append { count: 2, back: 0, size: 200, state: true };
    let mut recycled_with_leftovers = 0;
    for round in 0..60 {
        driver.step(&fill).unwrap();
        driver.step(&Step::Sync).unwrap();
        driver.step(&Step::Snapshot { back: 1 }).unwrap();
        // The newest segment holds leftovers if bytes follow its last record. They must not matter
        // whether the process ends or the power does.
        let newest = newest_segment(&driver.disk);
        let bytes = driver.disk.contents(&newest).unwrap();
        recycled_with_leftovers += usize::from(bytes[bytes.len() - 400..].iter().any(|byte| *byte != 0));
        if round % 3 == 0 {
            driver.disk.crash(|_| round % 2 == 0);
            driver.open().unwrap();
        }
    }
    assert!(recycled_with_leftovers > 5, "segments were recycled in this test: {recycled_with_leftovers}");
    assert!(driver.journal().disk_bytes() <= 8 * SEGMENT, "trimming keeps the journal small");
}

fn newest_segment(disk: &MemoryDisk) -> String {
    use tidelock_journal::Disk;
    disk.list().unwrap().into_iter().filter(|name| name.starts_with("segment-")).max().unwrap()
}

/// Sectors arrive in any order, so a torn write can leave its second entry intact where the first is
/// missing. When the leader sends the first one again, byte for byte, the second must not follow it by
/// itself: nobody has appended it in this life, and the leader may by now have sent another.
#[test]
fn an_entry_behind_a_torn_one_does_not_come_back_when_the_torn_one_is_written_again() {
    let mut driver = Driver::new();
    driver.open().unwrap();
    driver.step(&Step::Append { count: 1, back: 0, size: 50, state: true }).unwrap();
    driver.step(&Step::Sync).unwrap();
    let (torn, behind) = (entry(2, 1, 600), entry(3, 1, 100));
    driver.journal().append(&[torn.clone(), behind], None).unwrap();
    // The mark of the sync arrives, the sector with the beginning of the torn entry does not, all else does.
    let mut asked = 0;
    driver.disk.crash(|_| {
        asked += 1;
        asked != 2
    });
    driver.open().expect("a crash alone is never damage");
    assert_eq!(driver.journal().last_index(), LogIndex(1), "the tear is where this test wants it");
    driver.journal().append(&[torn], None).unwrap();
    driver.journal().sync().unwrap();
    driver.disk.crash(|_| false);
    let (_, recovered) = Journal::open(driver.disk.clone(), config()).unwrap();
    assert_eq!(recovered.last_index, LogIndex(2));
}

/// Found by the random test below. Entries 7 to 9 are durable, then 6 is replaced, which discards them,
/// and a snapshot covers the new 6. If the crash undid the replacement after the old 6 was trimmed, 7
/// to 9 would follow the snapshot although the cluster had discarded them.
#[test]
fn discarded_entries_do_not_come_back_behind_a_snapshot() {
    let mut driver = Driver::new();
    driver.open().unwrap();
    driver.step(&Step::Append { count: 9, back: 0, size: 230, state: false }).unwrap();
    driver.step(&Step::Sync).unwrap();
    let second = driver.disk.contents("segment-0000000000000002-0000000000000007.log");
    assert!(second.is_some(), "1 to 6 are in the first segment, 7 to 9 in the second");
    driver.step(&Step::Append { count: 1, back: 4, size: 10, state: false }).unwrap();
    driver.step(&Step::Snapshot { back: 0 }).unwrap();
    driver.disk.crash(|_| false);
    driver.open().expect("a crash alone is never damage");
    assert_eq!(driver.journal().last_index(), LogIndex(6));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Many lives of one node in a row: work, power cut or kill, start, more work. Whatever the order,
    /// each start finds all that was synced in all lives before (H2, H12).
    #[test]
    fn any_sequence_of_work_and_crashes_keeps_what_was_synced(seed in any::<u64>()) {
        let mut choices = Choices(seed);
        let mut driver = Driver::new();
        driver.open().expect("an empty disk opens");
        for _ in 0..6 {
            if choices.below(2) == 0 {
                let at = 1 + choices.below(120);
                driver.disk.power_off_during(at);
            }
            for step in random_steps(&mut choices, 25) {
                if driver.step(&step).is_err() {
                    break;
                }
            }
            if choices.below(4) != 0 {
                crash(&driver.disk, &mut choices);
            } else {
                driver.disk.power_off_during(u64::MAX);
            }
            driver.open().expect("a crash alone is never damage");
        }
    }
}
