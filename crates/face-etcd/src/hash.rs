//! Hashes by which operators compare members.
//!
//! The values are our own: etcd's are checksums of its file's pages, which we do not have. What they are
//! for holds here, too. HashKV is the same on all members for the same revision, whatever was compacted
//! where; Hash covers everything replicated, leases and members included, and is the same on all members
//! that have carried out the same entries.

use std::sync::Arc;

use tidelock_coordinator::Consistency;
use tidelock_etcd_api::etcdserverpb::{HashKvRequest, HashKvResponse, HashResponse};
use tidelock_model::{Caller, KeyRange, KeyValue, Revision, Space};
use xxhash_rust::xxh3::Xxh3;

use crate::error_map::FaceError;
use crate::header::wire_revision;
use crate::paging::Pages;
use crate::services::Services;

/// Items hashed before others on the thread get their turn.
const ITEMS_AT_A_TIME: usize = 250;

/// What `compact_revision` tells while nothing was compacted.
const NEVER_COMPACTED: i64 = -1;

/// The revision a request asks about; `None` is now.
fn revision_asked(request: HashKvRequest) -> Option<Revision> {
    u64::try_from(request.revision).ok().filter(|revision| *revision > 0).map(Revision)
}

fn wire_compacted(compacted: Revision) -> i64 {
    if compacted == Revision(0) { NEVER_COMPACTED } else { wire_revision(compacted) }
}

/// Adds everything about an item. Lengths go first, so that no two lists of items read alike.
fn add(hash: &mut Xxh3, item: &KeyValue) {
    let (name, value, meta) = (item.key.name(), item.record.value(), item.record.meta());
    hash.update(&(name.len() as u64).to_le_bytes());
    hash.update(name);
    hash.update(&(value.len() as u64).to_le_bytes());
    hash.update(value);
    for number in [meta.created.0, meta.modified.0, meta.version] {
        hash.update(&number.to_le_bytes());
    }
    hash.update(&meta.lease.0.to_le_bytes());
}

/// 32 bits that depend on all of them: what the wire has room for.
fn folded(hash: u64) -> u32 {
    (hash ^ (hash >> 32)) as u32
}

impl Services {
    /// Hashes all user keys as of a revision, at this member.
    pub(crate) async fn hash_keys(&self, request: HashKvRequest) -> Result<HashKvResponse, FaceError> {
        self.refuse_on_learner()?;
        let range = KeyRange::all_of(Space::User);
        let mut pages = Pages::new(
            Caller::Internal,
            Arc::clone(&self.coordinator),
            range,
            revision_asked(request),
            Consistency::Local,
        );
        let mut hash = Xxh3::new();
        loop {
            let (items, more) = pages.next(ITEMS_AT_A_TIME).await?;
            items.iter().for_each(|item| add(&mut hash, item));
            if !more {
                break;
            }
        }
        Ok(HashKvResponse {
            header: Some(self.headers.at(pages.begun())),
            hash: folded(hash.digest()),
            compact_revision: wire_compacted(self.coordinator.status().compacted),
            hash_revision: wire_revision(pages.at()),
        })
    }

    /// The digest that members compare among themselves, as far as it fits.
    pub(crate) fn hash_everything(&self) -> Result<HashResponse, FaceError> {
        self.refuse_on_learner()?;
        let status = self.coordinator.status();
        let hash = folded(status.digest as u64 ^ (status.digest >> 64) as u64);
        Ok(HashResponse { header: Some(self.headers.at(status.revision)), hash })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_model::{Key, LeaseId, Record, RecordMeta};

    fn hash_of(items: &[(&str, &str, RecordMeta)]) -> u32 {
        let mut hash = Xxh3::new();
        for (name, value, meta) in items {
            let record = Record::new(*meta, value.as_bytes());
            add(&mut hash, &KeyValue { key: Key::new(Space::User, name.as_bytes()), record });
        }
        folded(hash.digest())
    }

    /// A difference between two members that the hash does not see is a difference nobody finds.
    #[test]
    fn every_part_of_an_item_changes_the_hash() {
        let meta = RecordMeta { created: Revision(2), modified: Revision(4), version: 3, lease: LeaseId::NONE, sub: 0 };
        let hashes = [
            hash_of(&[("ab", "c", meta)]),
            hash_of(&[("a", "bc", meta)]),
            hash_of(&[("ab", "d", meta)]),
            hash_of(&[("ab", "c", RecordMeta { created: Revision(3), ..meta })]),
            hash_of(&[("ab", "c", RecordMeta { modified: Revision(5), ..meta })]),
            hash_of(&[("ab", "c", RecordMeta { version: 4, ..meta })]),
            hash_of(&[("ab", "c", RecordMeta { lease: LeaseId(1), ..meta })]),
            hash_of(&[]),
        ];
        let different: std::collections::BTreeSet<u32> = hashes.into_iter().collect();
        assert_eq!(different.len(), hashes.len());
        // Pinned: members of different versions compare it.
        assert_eq!(hashes[0], 358_424_910);
    }

    #[test]
    fn nothing_compacted_is_told_as_minus_one() {
        assert_eq!((wire_compacted(Revision(0)), wire_compacted(Revision(5))), (-1, 5));
        assert_eq!(revision_asked(HashKvRequest { revision: -4 }), None);
        assert_eq!(revision_asked(HashKvRequest { revision: 4 }), Some(Revision(4)));
    }
}
