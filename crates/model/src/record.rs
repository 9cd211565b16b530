//! One version of one key: value and metadata in a single shared allocation.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use triomphe::ThinArc;

use crate::codec::{DecodeError, Reader, Wire, put_bytes, put_varint};
use crate::limits::VALUE_BYTES_MAX;
use crate::{Key, LeaseId, Revision};

/// What is known of a version beside its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordMeta {
    /// Revision at which the key came to be (again).
    pub created: Revision,
    /// Revision of this change.
    pub modified: Revision,
    /// Changes made since `created`, this one included; zero marks a deletion.
    pub version: u64,
    /// The lease that owns the key, or none.
    pub lease: LeaseId,
    /// Position of this change among those of its revision.
    pub sub: u32,
}

/// One version of a key, or its deletion. Cloning shares; the value is never copied. An eight-byte
/// handle: all indexes together hold three of them per key, so each word counts.
#[derive(Clone)]
pub struct Record(ThinArc<Header, u8>);

/// The metadata, and what would be padding.
struct Header {
    created: Revision,
    modified: Revision,
    version: u64,
    lease: LeaseId,
    sub: u32,
    /// See [`Record::mark`].
    mark: AtomicU32,
}

impl Record {
    /// A version with a value.
    #[must_use]
    pub fn new(meta: RecordMeta, value: &[u8]) -> Record {
        let RecordMeta { created, modified, version, lease, sub } = meta;
        let header = Header { created, modified, version, lease, sub, mark: AtomicU32::new(0) };
        Record(ThinArc::from_header_and_slice(header, value))
    }

    /// The deletion of a key at `modified`/`sub`.
    #[must_use]
    pub fn tombstone(modified: Revision, sub: u32) -> Record {
        let meta = RecordMeta { created: Revision(0), modified, version: 0, lease: LeaseId::NONE, sub };
        Record::new(meta, &[])
    }

    /// Everything but the value.
    #[must_use]
    #[inline]
    pub fn meta(&self) -> RecordMeta {
        let Header { created, modified, version, lease, sub, .. } = self.0.header.header;
        RecordMeta { created, modified, version, lease, sub }
    }

    /// A number that the store which holds the record keeps with it; zero at first. Not part of the version: it is not
    /// compared, not encoded, and another replica's differs. A record is held by one store at a time.
    #[must_use]
    #[inline]
    pub fn mark(&self) -> u32 {
        self.0.header.header.mark.load(Ordering::Relaxed)
    }

    /// Sets the number, for all who share the record.
    pub fn set_mark(&self, mark: u32) {
        self.0.header.header.mark.store(mark, Ordering::Relaxed);
    }

    /// The value; empty for a deletion.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.0.slice
    }

    /// The value as a shared buffer that keeps this record alive: no copy, one small allocation.
    #[must_use]
    pub fn value_bytes(&self) -> Bytes {
        /// Below this, copying is cheaper than the owner's allocation and reference counting.
        const COPY_BELOW: usize = 512;
        if self.value().len() < COPY_BELOW {
            return Bytes::copy_from_slice(self.value());
        }
        struct Owner(Record);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                self.0.value()
            }
        }
        Bytes::from_owner(Owner(self.clone()))
    }

    /// Whether this is a deletion.
    #[must_use]
    #[inline]
    pub fn is_tombstone(&self) -> bool {
        self.meta().version == 0
    }

    /// Revision and position within it: the order of all changes.
    #[must_use]
    #[inline]
    pub fn position(&self) -> (Revision, u32) {
        (self.meta().modified, self.meta().sub)
    }
}

impl PartialEq for Record {
    fn eq(&self, other: &Record) -> bool {
        self.meta() == other.meta() && self.value() == other.value()
    }
}
impl Eq for Record {}
impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meta = self.meta();
        write!(f, "Record({}.{} v{} {} B)", meta.modified, meta.sub, meta.version, self.value().len())
    }
}

impl Wire for Record {
    fn encode(&self, out: &mut Vec<u8>) {
        let meta = self.meta();
        meta.modified.encode(out);
        put_varint(out, u64::from(meta.sub));
        put_varint(out, meta.version);
        if meta.version != 0 {
            meta.created.encode(out);
            meta.lease.encode(out);
            put_bytes(out, self.value());
        }
    }
    fn decode(input: &mut Reader) -> Result<Record, DecodeError> {
        let modified = Revision::decode(input)?;
        let sub = input.varint32()?;
        let version = input.varint()?;
        if version == 0 {
            return Ok(Record::tombstone(modified, sub));
        }
        let created = Revision::decode(input)?;
        let lease = LeaseId::decode(input)?;
        let value = input.short_bytes(VALUE_BYTES_MAX)?;
        Ok(Record::new(RecordMeta { created, modified, version, lease, sub }, value))
    }
}

/// A key with one of its versions: what reads return and every index stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Key,
    /// The version of it.
    pub record: Record,
}

impl Wire for KeyValue {
    fn encode(&self, out: &mut Vec<u8>) {
        self.key.encode(out);
        self.record.encode(out);
    }
    fn decode(input: &mut Reader) -> Result<KeyValue, DecodeError> {
        Ok(KeyValue { key: Key::decode(input)?, record: Record::decode(input)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_indexed_item_is_32_bytes() {
        assert_eq!(size_of::<Record>(), 8);
        assert_eq!(size_of::<KeyValue>(), 32);
        assert_eq!(size_of::<Header>(), 40);
    }
}
