//! Who may do what with a znode: how a list of rights is read and judged.
//!
//! Here and not in the state, because two ask: the state, for every request, and whoever tells watchers of changes,
//! since a change of a znode is no business of who may not read it.

use std::net::Ipv6Addr;

use bytes::Bytes;

use crate::codec::{DecodeError, Reader, Wire};
use crate::limits::ZNODE_ACL_MAX;
use crate::{AclEntry, Identity};

/// The right to read a znode, as a bit of [`AclEntry::permissions`].
pub const READ: i32 = 1;
/// Bytes of a [`SIDE_KEY`](super::SIDE_KEY) record before its list of rights.
pub const RIGHTS_AT: usize = 16;

/// Whether the identities have any of these permissions.
#[must_use]
pub fn allows(acl: &[AclEntry], permissions: i32, identities: &[Identity]) -> bool {
    let is_super = identities.iter().any(|who| who.scheme == "super");
    let grants = |entry: &AclEntry| {
        entry.permissions & permissions != 0
            && (is_everybody(&entry.who) || identities.iter().any(|who| matches(&entry.who, who)))
    };
    is_super || acl.iter().any(grants)
}

/// Whether an entry is about everybody.
#[must_use]
pub fn is_everybody(who: &Identity) -> bool {
    who.scheme == "world" && who.id == "anyone"
}

fn matches(expected: &Identity, who: &Identity) -> bool {
    if expected.scheme != who.scheme {
        return false;
    }
    if expected.scheme != "ip" {
        // ZooKeeper's rule: the user `super` is meant wherever any user of SASL is.
        return expected.id == who.id || who.scheme == "sasl" && who.id == "super";
    }
    let (Some((network, bits)), Some(address)) = (ip_prefix(&expected.id), address_bytes(&who.id)) else {
        return false;
    };
    let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
    network.len() == address.len() && (0..bits).all(|at| bit(&network, at) == bit(&address, at))
}

/// An address and how many of its bits count; nothing if it is none.
#[must_use]
pub fn ip_prefix(text: &str) -> Option<(Vec<u8>, usize)> {
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let bytes = address_bytes(address)?;
    let all = bytes.len() * 8;
    let bits = bits.map_or(Some(all), |bits| bits.parse().ok())?;
    (bits <= all).then_some((bytes, bits))
}

/// Numbers may begin with zeros, as in ZooKeeper.
fn address_bytes(text: &str) -> Option<Vec<u8>> {
    let bytes: Result<Vec<u8>, _> = text.split('.').map(str::parse).collect();
    match bytes {
        Ok(bytes) => (bytes.len() == 4).then_some(bytes),
        Err(_) => text.parse().ok().map(|address: Ipv6Addr| address.octets().to_vec()),
    }
}

/// The list of rights in a stored record: nothing if everybody may do everything. One that cannot be read lets
/// nobody in.
#[must_use]
pub fn stored_rights(record: &[u8]) -> Option<Vec<AclEntry>> {
    let bytes = record.get(RIGHTS_AT..).filter(|bytes| !bytes.is_empty())?;
    Some(read(bytes).unwrap_or_default())
}

fn read(bytes: &[u8]) -> Result<Vec<AclEntry>, DecodeError> {
    let mut input = Reader::new(Bytes::copy_from_slice(bytes));
    (0..input.count("a list of rights", ZNODE_ACL_MAX)?).map(|_| AclEntry::decode(&mut input)).collect()
}
