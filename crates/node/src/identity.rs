//! Who this node is: written once, when the data directory is made, and never changed.
//!
//! A node that lost its directory lost its identity with it: it must join as a new member, because
//! under its old id it could vote twice in a term it already voted in (H21). A founder's id follows from
//! the founding flags and would be the same again; its disk's number is drawn anew with every directory
//! and tells the two apart (see `acquaintances`).

use std::io;

use bytes::Bytes;
use crc32c::crc32c;
use tidelock_journal::Disk;
use tidelock_model::{ClusterId, DecodeError, Member, NodeId, Reader, Wire, put_varint};

const FILE: &str = "identity";
const TEMPORARY: &str = "identity.tmp";
const MAGIC: &[u8] = b"tidelock identity\n";
const VERSION: u8 = 2;
const MEMBERS_MAX: usize = 1024;

/// Who a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its id.
    pub node: NodeId,
    /// Drawn at random when the directory was made.
    pub disk: u64,
    /// The members known when the directory was made, to find the others by before the log tells.
    pub first_members: Vec<Member>,
}

/// Why an identity could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file is not what was written.
    #[error("{location}/identity is damaged; remove the data directory and add this node again as a new member")]
    Damaged {
        /// The data directory.
        location: String,
    },
    /// The disk failed.
    #[error("{location}/identity: {error}")]
    Io {
        /// The data directory.
        location: String,
        /// How.
        error: io::Error,
    },
}

impl Identity {
    /// Reads the identity of a data directory; `None` if it has none yet.
    pub(crate) fn read(disk: &impl Disk) -> Result<Option<Identity>, IdentityError> {
        let failed = |error| IdentityError::Io { location: disk.location(), error };
        let file = match disk.open(FILE) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let length = file.len().map_err(failed)?.min(1 << 20) as usize;
        let mut bytes = vec![0; length];
        file.read_at(0, &mut bytes).map_err(failed)?;
        Identity::decode(&bytes).map(Some).ok_or_else(|| IdentityError::Damaged { location: disk.location() })
    }

    /// Writes it, durable on return.
    pub(crate) fn write(&self, disk: &impl Disk) -> Result<(), IdentityError> {
        let write = || {
            let file = disk.create(TEMPORARY)?;
            file.write_at(0, &self.encode())?;
            file.sync_data()?;
            disk.rename(TEMPORARY, FILE)?;
            disk.sync_dir()
        };
        write().map_err(|error| IdentityError::Io { location: disk.location(), error })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.push(VERSION);
        self.cluster.encode(&mut out);
        self.node.encode(&mut out);
        put_varint(&mut out, self.disk);
        put_varint(&mut out, self.first_members.len() as u64);
        self.first_members.iter().for_each(|member| member.encode(&mut out));
        let check = crc32c(&out);
        out.extend_from_slice(&check.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Identity> {
        let (content, check) = bytes.split_last_chunk::<4>()?;
        if crc32c(content) != u32::from_le_bytes(*check) {
            return None;
        }
        let mut input = Reader::new(Bytes::copy_from_slice(content.strip_prefix(MAGIC)?));
        let read = |input: &mut Reader| -> Result<Identity, DecodeError> {
            let version = input.byte()?;
            if version != VERSION {
                return Err(DecodeError::UnknownTag { what: "identity version", tag: version });
            }
            let (cluster, node) = (ClusterId::decode(input)?, NodeId::decode(input)?);
            let disk = input.varint()?;
            let count = input.count("the number of members", MEMBERS_MAX)?;
            let first_members = (0..count).map(|_| Member::decode(input)).collect::<Result<_, _>>()?;
            input.finish()?;
            Ok(Identity { cluster, node, disk, first_members })
        };
        read(&mut input).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_journal::memory_disk::MemoryDisk;
    use tidelock_model::MemberRole;

    fn identity() -> Identity {
        let member = Member {
            id: NodeId(9),
            name: "a".into(),
            peer_addresses: vec!["h:1".into()],
            client_urls: vec![],
            role: MemberRole::Voter,
            zookeeper: None,
        };
        Identity { cluster: ClusterId(7), node: NodeId(9), disk: 5, first_members: vec![member] }
    }

    #[test]
    fn an_identity_is_read_back_as_written() {
        let disk = MemoryDisk::new();
        assert_eq!(Identity::read(&disk).unwrap(), None);
        identity().write(&disk).unwrap();
        assert_eq!(Identity::read(&disk).unwrap(), Some(identity()));
    }

    /// A node that takes on a wrong id could vote twice.
    #[test]
    fn h21_a_damaged_identity_is_refused() {
        let disk = MemoryDisk::new();
        identity().write(&disk).unwrap();
        let length = disk.contents(FILE).unwrap().len();
        for offset in 0..length {
            let damaged = disk.fork();
            damaged.flip(FILE, offset, 1);
            assert!(matches!(Identity::read(&damaged), Err(IdentityError::Damaged { .. })), "byte {offset}");
        }
    }
}
