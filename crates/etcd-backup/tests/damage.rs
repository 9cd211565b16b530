//! Whatever is in a file, reading it ends, with an error or with what is there; it never panics.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Cursor;

use proptest::prelude::*;
use tidelock_etcd_backup::{
    BackupReader, BackupWriter, Change, ChangeKind, ChecksumRule, KeyRecord, Lease, MemberState, ReadError, Revision,
};

const SAMPLE: &[u8] = include_bytes!("data/etcd-3.6.6.db.zst");
const SEAL_BYTES: usize = 32;

fn sample() -> Vec<u8> {
    zstd::decode_all(SAMPLE).unwrap()
}

/// A file of ours with branches, overflow and buckets of every size.
fn own_file() -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("own");
    let mut writer = BackupWriter::create(&path).unwrap();
    for main in 2..400 {
        let value = vec![b'v'; if main % 50 == 0 { 9000 } else { 100 }];
        let key = format!("/key/{}", main % 7).into_bytes();
        let record = KeyRecord { key, create_revision: 2, mod_revision: main, version: main, value, lease: 0 };
        writer.push(&Change { revision: Revision { main, sub: 0 }, kind: ChangeKind::Put(record) }).unwrap();
        writer.push_lease(&Lease { id: main, ttl_s: 60, remaining_ttl_s: 0 }).unwrap();
    }
    writer.finish(&MemberState { term: Some(3), ..MemberState::default() }).unwrap();
    fs::read(path).unwrap()
}

/// Reads everything there is to read.
fn read_all(bytes: &[u8], rule: ChecksumRule) -> Result<usize, ReadError> {
    let mut backup = BackupReader::from_source(Cursor::new(bytes), rule)?;
    let mut entries = 0;
    for change in backup.changes() {
        change?;
        entries += 1;
    }
    for lease in backup.leases() {
        lease?;
        entries += 1;
    }
    backup.status()?;
    Ok(entries)
}

/// A backup that was cut by a full disk or a broken download must not pass for a smaller one.
#[test]
fn a_backup_cut_anywhere_is_refused() {
    for whole in [sample(), own_file()] {
        read_all(&whole, ChecksumRule::IfPresent).unwrap();
        let bare = whole.len() - SEAL_BYTES;
        let sectors = (0..whole.len()).step_by(512);
        for length in sectors.clone().chain(sectors.map(|at| at + SEAL_BYTES)).chain(bare - 40..whole.len()) {
            let result = read_all(&whole[..length.min(whole.len() - 1)], ChecksumRule::IfPresent);
            // Without its seal alone it is what is in a data directory.
            assert_eq!(result.is_ok(), length == bare, "{length} of {}: {result:?}", whole.len());
        }
    }
}

/// The messages are read by people in trouble; each kind of trouble has its own.
#[test]
fn each_kind_of_damage_is_called_by_its_name() {
    let whole = own_file();
    let refusal = |bytes: &[u8], rule| read_all(bytes, rule).unwrap_err();
    let mut flipped = whole.clone();
    flipped[9000] ^= 1;
    assert!(matches!(refusal(&flipped, ChecksumRule::IfPresent), ReadError::ChecksumMismatch { .. }));
    assert!(matches!(refusal(&whole[..8192], ChecksumRule::IfPresent), ReadError::CutShort { .. }));
    assert!(matches!(refusal(&whole[..9000], ChecksumRule::IfPresent), ReadError::CutShort { .. }));
    assert!(matches!(refusal(b"hello", ChecksumRule::IfPresent), ReadError::NotABackup { .. }));
    assert!(matches!(refusal(b"", ChecksumRule::IfPresent), ReadError::NotABackup { .. }));
    assert!(matches!(refusal(&[7; 8192], ChecksumRule::IfPresent), ReadError::NotABackup { .. }));
    let mut crossed = whole;
    let (second, third) = (2 * 4096, 3 * 4096);
    crossed.copy_within(second..third, third);
    assert!(matches!(refusal(&crossed, ChecksumRule::Ignored), ReadError::Damaged { page: 3, .. }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Somebody will point an import at the wrong file.
    #[test]
    fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..20_000)) {
        prop_assert!(read_all(&bytes, ChecksumRule::IfPresent).is_err());
        prop_assert!(read_all(&bytes, ChecksumRule::Ignored).is_err());
    }

    /// The seal covers every byte.
    #[test]
    fn a_sealed_backup_with_any_byte_changed_is_refused(at in any::<prop::sample::Index>(), change in 1u8..) {
        let mut bytes = sample();
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        let result = read_all(&bytes, ChecksumRule::Required);
        prop_assert!(matches!(result, Err(ReadError::ChecksumMismatch { .. })), "{result:?}");
    }

    /// With the seal ignored, damage goes unnoticed or is refused; it never panics or hangs. Most bytes of a
    /// file are values or empty, so the beginnings of pages, where the structure is, are hit on purpose.
    #[test]
    fn damage_behind_an_ignored_seal_never_panics(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..200, any::<u8>()), 1..12),
        own in any::<bool>(),
    ) {
        let mut bytes = if own { own_file() } else { sample() };
        for (page, offset, value) in changes {
            let at = page.index(bytes.len() / 4096 - 2) * 4096 + 2 * 4096 + offset;
            bytes[at] = value;
        }
        let _ = read_all(&bytes, ChecksumRule::Ignored);
    }

    /// Whole pages lost or swapped, as a disk does it.
    #[test]
    fn pages_in_wrong_places_never_panic(
        moves in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..6),
        own in any::<bool>(),
    ) {
        let mut bytes = if own { own_file() } else { sample() };
        for (from, to) in moves {
            let pages = bytes.len() / 4096;
            let (from, to) = (from.index(pages) * 4096, to.index(pages) * 4096);
            bytes.copy_within(from..from + 4096, to);
        }
        let _ = read_all(&bytes, ChecksumRule::Ignored);
    }
}
