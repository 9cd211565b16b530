//! Opens a backup and gives out what it holds.
//!
//! Opening checks the seal over the whole file and reads everything but the history and the leases, which
//! are streamed: [`BackupReader::changes`], [`BackupReader::leases`]. A stream that has failed has ended;
//! what it gave before must not be used, for nobody knows what is missing.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::contents::{Change, ChangeKind, Lease, MemberState, Revision};
use crate::error::ReadError;
use crate::messages;
use crate::page_file::PageFile;
use crate::schema;
use crate::tree_reader::{BucketRoot, Entry, SeenPages, Walk, last_key};

/// Bytes of the seal at the file's end.
pub(crate) const SEAL_BYTES: u64 = 32;
/// What comes before the seal is a multiple of this, so a file's length tells whether it has one. etcd's
/// own rule: the smallest sector, of which every page size is a multiple.
const SEAL_UNIT_BYTES: u64 = 512;
/// The file is hashed in pieces of this size.
const PIECE_BYTES: usize = 256 * 1024;
/// Buckets in a file. etcd has ten.
const BUCKETS_MAX: usize = 64;
/// Bytes of everything but the history and the leases. Hundreds of thousands of users fit.
const STATE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What to make of the seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChecksumRule {
    /// Checked if there is one. Copies of a member's own database have none.
    #[default]
    IfPresent,
    /// There must be one, and it must match.
    Required,
    /// Not looked at. For a person who knows that the file is damaged and wants what can be had.
    Ignored,
}

/// What was made of the seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// Every byte is as it was when the file was made.
    Matches,
    /// There is none; only the structure speaks for the file.
    Missing,
    /// It was not looked at.
    NotLookedAt,
}

/// What `etcdctl snapshot status` says about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Fingerprint of all entries, the same as etcd's tools print.
    pub hash: u32,
    /// Revision of the last change.
    pub revision: i64,
    /// Entries of all buckets: what etcd's tools before 3.6 print as the number of keys.
    pub entries: u64,
    /// Keys that exist after the last change: what etcd's tools print since 3.6.
    pub live_keys: u64,
    /// Bytes of the database.
    pub bytes: u64,
}

/// An open backup.
#[derive(Debug)]
pub struct BackupReader<R = File> {
    file: PageFile<R>,
    buckets: BTreeMap<Vec<u8>, BucketRoot>,
    checksum: Checksum,
    revision: i64,
    state: MemberState,
}

impl BackupReader<File> {
    /// Opens a file and checks its seal, which reads all of it.
    pub fn open(path: &Path, rule: ChecksumRule) -> Result<BackupReader<File>, ReadError> {
        BackupReader::from_source(File::open(path)?, rule)
    }
}

impl<R: Read + Seek> BackupReader<R> {
    /// The same for anything that can be read anywhere.
    pub fn from_source(mut source: R, rule: ChecksumRule) -> Result<BackupReader<R>, ReadError> {
        let (length, checksum) = check_seal(&mut source, rule)?;
        let mut file = PageFile::open(source, length)?;
        let buckets = find_buckets(&mut file)?;
        let Some(history) = buckets.get(schema::KEY.as_bytes()) else {
            let what = "it is a bbolt database, but without etcd's keys".to_owned();
            return Err(ReadError::NotABackup { what });
        };
        let last = last_revision(&mut file, history)?;
        let state = read_state(&mut file, &buckets)?;
        // The changes of a compacted stretch may all be gone, but their revisions were given out.
        let revision = [last, state.finished_compact_revision, state.scheduled_compact_revision]
            .into_iter()
            .flatten()
            .fold(1, i64::max);
        Ok(BackupReader { file, buckets, checksum, revision, state })
    }

    /// What was made of the seal.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// The revision a server started from this file is at.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Bytes of the database, without free space behind it and without the seal.
    pub fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    /// Everything but the history and the leases.
    pub fn state(&self) -> &MemberState {
        &self.state
    }

    /// The history, in the order it happened.
    pub fn changes(&mut self) -> Changes<'_, R> {
        Changes { stream: self.stream(schema::KEY), last: None }
    }

    /// The leases, in the order of their ids taken as unsigned.
    pub fn leases(&mut self) -> Leases<'_, R> {
        Leases(self.stream(schema::LEASE))
    }

    /// Walks the whole file once, decoding every change and lease and checking that no page is used twice.
    ///
    /// Costs 16 bytes or so of memory for every live key.
    pub fn status(&mut self) -> Result<Status, ReadError> {
        let mut status = Status { hash: 0, revision: 0, entries: 0, live_keys: 0, bytes: self.file.bytes() };
        let mut live = HashSet::new();
        let mut last = None;
        let mut seen = SeenPages::none_of(self.file.pages());
        for (name, root) in &self.buckets {
            status.hash = crc32c::crc32c_append(status.hash, name);
            let mut walk = Walk::new(root.clone(), seen);
            while let Some(entry) = walk.next(&mut self.file)? {
                status.hash = crc32c::crc32c_append(status.hash, &entry.key);
                status.hash = crc32c::crc32c_append(status.hash, &entry.value);
                status.entries += 1;
                if name == schema::KEY.as_bytes() {
                    let change = decode_next_change(&entry, &mut last)?;
                    status.revision = change.revision.main;
                    match &change.kind {
                        ChangeKind::Put(record) => _ = live.insert(fingerprint(&record.key)),
                        ChangeKind::Delete { key } => _ = live.remove(&fingerprint(key)),
                        // etcd's tools count it as a key without a name.
                        ChangeKind::Mark => _ = live.insert(fingerprint(&[])),
                    }
                } else if name == schema::LEASE.as_bytes() {
                    decode_lease(&entry)?;
                }
            }
            seen = walk.into_seen();
        }
        status.live_keys = live.len() as u64;
        Ok(status)
    }

    fn stream(&mut self, bucket: &str) -> Stream<'_, R> {
        let seen = SeenPages::none_of(self.file.pages());
        let walk = self.buckets.get(bucket.as_bytes()).map(|root| Walk::new(root.clone(), seen));
        Stream { file: &mut self.file, walk }
    }
}

/// The history, streamed. See [`BackupReader::changes`].
#[derive(Debug)]
pub struct Changes<'a, R> {
    stream: Stream<'a, R>,
    last: Option<Revision>,
}

impl<R: Read + Seek> Iterator for Changes<'_, R> {
    type Item = Result<Change, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let last = &mut self.last;
        self.stream.next(|entry| decode_next_change(entry, last))
    }
}

/// The leases, streamed. See [`BackupReader::leases`].
#[derive(Debug)]
pub struct Leases<'a, R>(Stream<'a, R>);

impl<R: Read + Seek> Iterator for Leases<'_, R> {
    type Item = Result<Lease, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next(decode_lease)
    }
}

#[derive(Debug)]
struct Stream<'a, R> {
    file: &'a mut PageFile<R>,
    /// None at the end, after an error, or if there is no such bucket.
    walk: Option<Walk>,
}

impl<R: Read + Seek> Stream<'_, R> {
    fn next<T>(&mut self, decode: impl FnOnce(&Entry) -> Result<T, ReadError>) -> Option<Result<T, ReadError>> {
        let entry = self.walk.as_mut()?.next(self.file).transpose();
        let item = entry.map(|entry| decode(&entry?));
        if !matches!(item, Some(Ok(_))) {
            self.walk = None;
        }
        item
    }
}

/// The change in an entry, which must be later than `last`.
fn decode_next_change(entry: &Entry, last: &mut Option<Revision>) -> Result<Change, ReadError> {
    let bad = |what| ReadError::bad_entry(schema::KEY, &entry.key, what);
    refuse_bucket(schema::KEY, entry)?;
    let (revision, tombstone) = schema::decode_revision(&entry.key).map_err(bad)?;
    let kind = messages::decode_change(revision, tombstone, &entry.value).map_err(bad)?;
    // Keys ascend in a sound tree, but a write and a deletion at one revision have different ones.
    if last.replace(revision) == Some(revision) {
        return Err(bad("two changes at one revision".to_owned()));
    }
    Ok(Change { revision, kind })
}

fn decode_lease(entry: &Entry) -> Result<Lease, ReadError> {
    let bad = |what| ReadError::bad_entry(schema::LEASE, &entry.key, what);
    refuse_bucket(schema::LEASE, entry)?;
    let id = schema::decode_lease_id(&entry.key).map_err(bad)?;
    let lease = messages::decode_lease(&entry.value).map_err(bad)?;
    if lease.id == id { Ok(lease) } else { Err(bad(format!("it calls itself lease {:x}", lease.id))) }
}

fn refuse_bucket(bucket: &str, entry: &Entry) -> Result<(), ReadError> {
    if entry.is_bucket { Err(ReadError::bad_entry(bucket, &entry.key, "a bucket inside a bucket")) } else { Ok(()) }
}

/// Enough of a key's hash to tell it from any other.
fn fingerprint(key: &[u8]) -> [u8; 16] {
    *Sha256::digest(key).first_chunk().expect("a SHA-256 has 32 bytes")
}

/// Whether the file is as it was sealed, and how long it is without the seal.
fn check_seal<R: Read + Seek>(source: &mut R, rule: ChecksumRule) -> Result<(u64, Checksum), ReadError> {
    let length = source.seek(SeekFrom::End(0))?;
    let sealed_bytes = length.checked_sub(SEAL_BYTES).filter(|bytes| bytes % SEAL_UNIT_BYTES == 0);
    match (sealed_bytes, rule) {
        (sealed_bytes, ChecksumRule::Ignored) => Ok((sealed_bytes.unwrap_or(length), Checksum::NotLookedAt)),
        (Some(sealed_bytes), _) => {
            source.seek(SeekFrom::Start(0))?;
            let found = hash_of(&mut source.by_ref().take(sealed_bytes))?;
            let mut sealed = [0; SEAL_BYTES as usize];
            source.read_exact(&mut sealed)?;
            if sealed != found {
                let (sealed, found) = (crate::error::hex(&sealed), crate::error::hex(&found));
                return Err(ReadError::ChecksumMismatch { sealed, found });
            }
            Ok((sealed_bytes, Checksum::Matches))
        }
        (None, _) if length == 0 => Err(ReadError::NotABackup { what: "it is empty".to_owned() }),
        (None, _) if length % SEAL_UNIT_BYTES != 0 => {
            // Something else than a database is told so, rather than that it is cut short.
            PageFile::open(&mut *source, length)?;
            let what = format!("{length} bytes are neither a database nor a database and its checksum");
            Err(ReadError::CutShort { what })
        }
        (None, ChecksumRule::Required) => Err(ReadError::ChecksumMissing),
        (None, _) => Ok((length, Checksum::Missing)),
    }
}

/// SHA-256 of everything in `source`.
pub(crate) fn hash_of(source: &mut impl Read) -> io::Result<[u8; SEAL_BYTES as usize]> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match source.read(&mut piece) {
            Ok(0) => return Ok(hasher.finalize().into()),
            Ok(bytes) => hasher.update(&piece[..bytes]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn find_buckets<R: Read + Seek>(file: &mut PageFile<R>) -> Result<BTreeMap<Vec<u8>, BucketRoot>, ReadError> {
    let mut walk = Walk::new(BucketRoot::Page(file.root()), SeenPages::none_of(file.pages()));
    let mut buckets = BTreeMap::new();
    while let Some(entry) = walk.next(file)? {
        if !entry.is_bucket {
            return Err(ReadError::bad_entry("(root)", &entry.key, "not in any bucket"));
        }
        if buckets.len() == BUCKETS_MAX {
            return Err(ReadError::TooLarge { what: "many buckets".to_owned(), limit: BUCKETS_MAX as u64 });
        }
        buckets.insert(entry.key, BucketRoot::parse(&entry.value)?);
    }
    Ok(buckets)
}

fn last_revision<R: Read + Seek>(file: &mut PageFile<R>, history: &BucketRoot) -> Result<Option<i64>, ReadError> {
    let Some(key) = last_key(file, history)? else { return Ok(None) };
    match schema::decode_revision(&key) {
        Ok((revision, _)) => Ok(Some(revision.main)),
        Err(what) => Err(ReadError::bad_entry(schema::KEY, &key, what)),
    }
}

fn read_state<R: Read + Seek>(
    file: &mut PageFile<R>,
    buckets: &BTreeMap<Vec<u8>, BucketRoot>,
) -> Result<MemberState, ReadError> {
    let mut state = MemberState::default();
    let mut bytes = 0;
    for (name, root) in buckets {
        if [schema::KEY.as_bytes(), schema::LEASE.as_bytes()].contains(&name.as_slice()) {
            continue;
        }
        let mut walk = Walk::new(root.clone(), SeenPages::none_of(file.pages()));
        while let Some(entry) = walk.next(file)? {
            refuse_bucket(&String::from_utf8_lossy(name), &entry)?;
            bytes += entry.key.len() + entry.value.len();
            if bytes > STATE_BYTES_MAX {
                let what = "a great many users, roles, members or unknown entries".to_owned();
                return Err(ReadError::TooLarge { what, limit: STATE_BYTES_MAX as u64 });
            }
            schema::collect(&mut state, name, &entry.key, &entry.value)?;
        }
    }
    Ok(state)
}
