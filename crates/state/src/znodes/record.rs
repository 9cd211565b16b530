//! What is stored of a znode and of a session, byte by byte.
//!
//! ```text
//! N  kind:1  created_ms:6  modified_ms:6  [ttl_ms:6]  data          kind = 0 plain, 1 container, 2 with a time
//!                                                                   to live; plus 4 if there is data at all,
//!                                                                   plus 8 if it was there from the start
//! S  child_creates:4  children_modified:8  acl_version:4  [acl]     without a list: everybody everything
//! Z  timeout_ms:4  generation:8
//! ```
//!
//! Big-endian and of fixed width, so that looking at a znode allocates nothing. Reading is total: bytes that
//! are not ours, which no command can have written, read as zeros, and as a list that lets nobody in.

use bytes::Bytes;
use tidelock_model::limits::VALUE_BYTES_MAX;
use tidelock_model::rights::{RIGHTS_AT, stored_rights};
use tidelock_model::{AclEntry, LeaseId, Record, Revision, Wire, ZnodeError, ZnodeLife, ZnodeStat, put_varint};

const CONTAINER: u8 = 1;
const WITH_TTL: u8 = 2;
const WITH_DATA: u8 = 4;
/// Nobody created it: it shows revision and time zero as long as nothing is changed about it, as ZooKeeper's do.
const PLANTED: u8 = 8;
/// The revision at which what nobody created was created.
pub(super) const FROM_THE_START: Revision = Revision(0);
/// Six bytes of milliseconds last for nine thousand years.
const MS_BYTES: usize = 6;
const MS_MAX: u64 = (1 << (8 * MS_BYTES)) - 1;

/// A znode without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Znode {
    pub(super) created: Revision,
    pub(super) modified: Revision,
    /// As the core counts: one at its creation.
    pub(super) version: u64,
    pub(super) owner: LeaseId,
    pub(super) life: ZnodeLife,
    pub(super) created_ms: u64,
    pub(super) modified_ms: u64,
    pub(super) data_length: u32,
}

/// What is known of a znode beside itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Side {
    /// How many children it ever got. Wraps, as ZooKeeper's does.
    pub(super) child_creates: u32,
    pub(super) children_modified: Revision,
    pub(super) acl_version: i32,
    /// Nothing: everybody may do everything.
    pub(super) acl: Option<Vec<AclEntry>>,
}

/// A session's own record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) timeout_ms: u32,
    pub(super) generation: u64,
}

/// Takes the first bytes off a value; zeros if there are not so many.
fn take<const N: usize>(value: &mut &[u8]) -> [u8; N] {
    let (first, rest) = value.split_first_chunk::<N>().map_or(([0; N], &[][..]), |(first, rest)| (*first, rest));
    *value = rest;
    first
}

fn take_ms(value: &mut &[u8]) -> u64 {
    take::<MS_BYTES>(value).iter().fold(0, |ms, byte| ms << 8 | u64::from(*byte))
}

fn put_ms(out: &mut Vec<u8>, ms: u64) {
    out.extend_from_slice(&ms.min(MS_MAX).to_be_bytes()[8 - MS_BYTES..]);
}

impl Znode {
    pub(super) fn read(record: &Record) -> Znode {
        let (meta, mut value) = (record.meta(), record.value());
        let [kind] = take(&mut value);
        let (created_ms, modified_ms) = (take_ms(&mut value), take_ms(&mut value));
        let life = match kind & !(WITH_DATA | PLANTED) {
            _ if meta.lease.is_some() => ZnodeLife::Ephemeral,
            CONTAINER => ZnodeLife::Container,
            WITH_TTL => ZnodeLife::Ttl(take_ms(&mut value)),
            _ => ZnodeLife::Persistent,
        };
        let planted = kind & PLANTED != 0;
        Znode {
            created: if planted { FROM_THE_START } else { meta.created },
            modified: if planted && meta.version == 1 { FROM_THE_START } else { meta.modified },
            version: meta.version,
            owner: meta.lease,
            life,
            created_ms,
            modified_ms,
            // No value is as large as that.
            data_length: u32::try_from(value.len()).unwrap_or(u32::MAX),
        }
    }

    /// The data of the znode that `record` is; no copy of large ones.
    pub(super) fn read_data(record: &Record) -> Option<Bytes> {
        let length = Znode::read(record).data_length as usize;
        let has_data = record.value().first().is_some_and(|kind| kind & WITH_DATA != 0);
        has_data.then(|| record.value_bytes()).map(|value| value.slice(value.len() - length..))
    }

    /// The value to store.
    pub(super) fn write(&self, data: Option<&Bytes>) -> Bytes {
        let kind = match self.life {
            ZnodeLife::Persistent | ZnodeLife::Ephemeral => 0,
            ZnodeLife::Container => CONTAINER,
            ZnodeLife::Ttl(_) => WITH_TTL,
        };
        // Exactly: what is left over would be given back by asking for memory once more.
        let times = if matches!(self.life, ZnodeLife::Ttl(_)) { 3 } else { 2 };
        let mut out = Vec::with_capacity(1 + times * MS_BYTES + data.map_or(0, Bytes::len));
        let planted = if self.created == FROM_THE_START { PLANTED } else { 0 };
        out.push(kind | planted | if data.is_some() { WITH_DATA } else { 0 });
        put_ms(&mut out, self.created_ms);
        put_ms(&mut out, self.modified_ms);
        if let ZnodeLife::Ttl(ttl_ms) = self.life {
            put_ms(&mut out, ttl_ms);
        }
        out.extend_from_slice(data.map_or(&[], |data| data));
        out.into()
    }

    /// How ZooKeeper counts changes of the data. Wraps, as there.
    pub(super) fn shown_version(&self) -> i32 {
        self.version.wrapping_sub(1) as i32
    }

    pub(super) fn stat(&self, side: &Side, children: u64) -> ZnodeStat {
        // Every child that was created and is not there was deleted.
        let child_version = 2 * i64::from(side.child_creates) - children as i64;
        ZnodeStat {
            created: self.created,
            modified: self.modified,
            created_ms: self.created_ms,
            modified_ms: self.modified_ms,
            version: self.shown_version(),
            child_version: child_version as i32,
            acl_version: side.acl_version,
            owner: self.owner,
            data_length: self.data_length,
            children: u32::try_from(children).unwrap_or(u32::MAX),
            children_modified: side.children_modified,
        }
    }
}

/// The length of data, if a record can hold it.
pub(super) fn data_length(data: Option<&Bytes>) -> Result<u32, ZnodeError> {
    let length = data.map_or(0, Bytes::len);
    if length + 1 + 3 * MS_BYTES > VALUE_BYTES_MAX {
        return Err(ZnodeError::BadArguments);
    }
    u32::try_from(length).map_err(|_| ZnodeError::BadArguments)
}

impl Side {
    /// What it is as long as nothing was written.
    pub(super) fn of_new(created: Revision) -> Side {
        Side { child_creates: 0, children_modified: created, acl_version: 0, acl: None }
    }

    /// Whether the znode has had no child so far. Every child that comes or goes moves `children_modified`, and to
    /// the revision of the znode's own creation only together with the number; that the number has come around to zero
    /// once more by then is more than one request can do. Only what nobody created has children that nobody counted.
    pub(super) fn tells_of_no_child(&self, znode: &Znode) -> bool {
        self.child_creates == 0 && self.children_modified == znode.created && znode.created != FROM_THE_START
    }

    pub(super) fn read(mut value: &[u8]) -> Side {
        let acl = stored_rights(value);
        let value = &mut value;
        Side {
            child_creates: u32::from_be_bytes(take(value)),
            children_modified: Revision(u64::from_be_bytes(take(value))),
            acl_version: i32::from_be_bytes(take(value)),
            acl,
        }
    }

    pub(super) fn write(&self) -> Bytes {
        let mut out = Vec::with_capacity(RIGHTS_AT);
        out.extend_from_slice(&self.child_creates.to_be_bytes());
        out.extend_from_slice(&self.children_modified.0.to_be_bytes());
        out.extend_from_slice(&self.acl_version.to_be_bytes());
        if let Some(acl) = &self.acl {
            put_varint(&mut out, acl.len() as u64);
            acl.iter().for_each(|entry| entry.encode(&mut out));
        }
        out.into()
    }
}

impl Session {
    pub(super) fn read(mut value: &[u8]) -> Session {
        let value = &mut value;
        Session { timeout_ms: u32::from_be_bytes(take(value)), generation: u64::from_be_bytes(take(value)) }
    }

    pub(super) fn write(self) -> Bytes {
        [&self.timeout_ms.to_be_bytes()[..], &self.generation.to_be_bytes()].concat().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_model::{Identity, RecordMeta};

    fn stored(value: &[u8], lease: LeaseId) -> Record {
        let meta = RecordMeta { created: Revision(3), modified: Revision(5), version: 2, lease, sub: 0 };
        Record::new(meta, value)
    }

    /// Nothing and empty are different data to a client, and a long-lived kind must stay what it is.
    #[test]
    fn a_znode_is_read_as_it_was_written() {
        let lives = [
            (ZnodeLife::Persistent, LeaseId::NONE),
            (ZnodeLife::Ephemeral, LeaseId(7)),
            (ZnodeLife::Container, LeaseId::NONE),
            (ZnodeLife::Ttl((1 << 40) - 1), LeaseId::NONE),
        ];
        for (life, owner) in lives {
            for data in [None, Some(Bytes::new()), Some(Bytes::from(vec![7; 2000]))] {
                let znode = Znode {
                    created: Revision(3),
                    modified: Revision(5),
                    version: 2,
                    owner,
                    life,
                    created_ms: 1_700_000_000_000,
                    modified_ms: MS_MAX,
                    data_length: data_length(data.as_ref()).unwrap(),
                };
                let record = stored(&znode.write(data.as_ref()), owner);
                assert_eq!((Znode::read(&record), Znode::read_data(&record)), (znode, data));
            }
        }
        assert!(data_length(Some(&vec![0; VALUE_BYTES_MAX].into())).is_err());
    }

    /// Rights that cannot be read must not be everybody's.
    #[test]
    fn damaged_records_are_read_without_opening_anything() {
        let who = Identity { scheme: "digest".into(), id: "a:b".into() };
        let acl = Some(vec![AclEntry { permissions: 31, who }]);
        let side = Side { child_creates: u32::MAX, children_modified: Revision(9), acl_version: -1, acl };
        let bytes = side.write();
        assert_eq!(Side::read(&bytes), side);
        for cut in 0..bytes.len() {
            let read = Side::read(&bytes[..cut]);
            assert!(cut <= 16 || read.acl == Some(vec![]), "cut at {cut}");
            Znode::read(&stored(&bytes[..cut], LeaseId::NONE));
            Znode::read_data(&stored(&bytes[..cut], LeaseId::NONE));
            Session::read(&bytes[..cut]);
        }
        let session = Session { timeout_ms: 4000, generation: 3 };
        assert_eq!(Session::read(&session.write()), session);
    }

    /// A list of the greatest length must fit a record, or no snapshot could bring it back.
    #[test]
    fn the_longest_list_of_rights_fits_a_record() {
        use tidelock_model::limits::{ZNODE_ACL_MAX, ZNODE_IDENTITY_BYTES_MAX, ZNODE_SCHEME_BYTES_MAX};
        let who = Identity { scheme: "s".repeat(ZNODE_SCHEME_BYTES_MAX), id: "i".repeat(ZNODE_IDENTITY_BYTES_MAX) };
        let acl = Some(vec![AclEntry { permissions: -1, who }; ZNODE_ACL_MAX]);
        let side = Side { acl, ..Side::of_new(Revision(1)) };
        assert!(side.write().len() <= VALUE_BYTES_MAX);
    }
}
