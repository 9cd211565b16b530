//! Which disk each peer had when it was first met, remembered for good.
//!
//! A founder's id follows from the founding flags. If it loses its disk and is started again with the same
//! flags, it comes back under the same id and knows nothing of what it had promised: it could vote twice
//! in a term, or store less than it had acknowledged (H21). So two things hold:
//! - whoever meets a peer for the first time writes down the number of its disk before it answers, and
//!   turns away anyone who comes under that id with another disk;
//! - a founder that holds nothing yet promises nothing, to nobody, before every other founder has accepted
//!   its greeting ([`tidelock_replica::Input::Introduced`]). Who has is remembered here too, so that they need
//!   not all be up at once.
//!
//! Together: by the time a founder makes its first promise, every other founder knows its disk, and none
//! would talk to its successor on an empty one. The price: to take part, a founder must have met every other
//! one once. Members that join later draw their ids at random and cannot come back under an old one.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use bytes::Bytes;
use crc32c::crc32c;
use parking_lot::Mutex;
use tidelock_journal::Disk;
use tidelock_model::{DecodeError, NodeId, Reader, Wire, put_varint};

const FILE: &str = "acquaintances";
const TEMPORARY: &str = "acquaintances.tmp";
const MAGIC: &[u8] = b"tidelock acquaintances\n";
/// Peers a node can have met: every member its cluster ever had.
const PEERS_MAX: usize = 1 << 20;

/// What a member whose disk is not the one it had is told, among other words.
pub const OTHER_DISK: &str = "was known here with another disk";

/// The peers this node has met.
pub(crate) struct Acquaintances<D> {
    disk: D,
    met: Mutex<Met>,
}

#[derive(Clone, Default)]
struct Met {
    /// Peers that greeted this node, and their disks.
    disks: BTreeMap<NodeId, u64>,
    /// Peers that accepted this node's greeting.
    accepted_by: BTreeSet<NodeId>,
}

impl<D: Disk> Acquaintances<D> {
    /// Reads what was remembered.
    pub(crate) fn open(disk: D) -> io::Result<Acquaintances<D>> {
        let met = match disk.open(FILE) {
            Ok(file) => {
                let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or(0)];
                file.read_at(0, &mut bytes)?;
                decode(&bytes).ok_or_else(|| {
                    let place = format!("{}/{FILE}", disk.location());
                    let advice = "remove the data directory and add this node again as a new member";
                    io::Error::new(io::ErrorKind::InvalidData, format!("{place} is damaged; {advice}"))
                })?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Met::default(),
            Err(error) => return Err(error),
        };
        Ok(Acquaintances { disk, met: Mutex::new(met) })
    }

    /// Takes note of a peer and its disk, durably; refuses one that had another disk before.
    pub(crate) fn meet(&self, node: NodeId, disk: u64) -> Result<(), String> {
        let mut met = self.met.lock();
        match met.disks.get(&node) {
            Some(before) if *before == disk => Ok(()),
            Some(_) if tidelock_model::planted!(WipedDiskRejoins) => Ok(()),
            Some(_) => Err(format!(
                "member {node:x} {OTHER_DISK}: what it had promised is lost; remove it (`tidelock member remove \
                 {node:x}`) and let it join as a new member (`--join`)"
            )),
            None => {
                let mut with_it = met.clone();
                with_it.disks.insert(node, disk);
                write(&self.disk, &with_it).map_err(|error| format!("cannot take note of member {node:x}: {error}"))?;
                *met = with_it;
                Ok(())
            }
        }
    }

    /// Takes note, durably, that a peer accepted this node's greeting.
    pub(crate) fn accepted_by(&self, node: NodeId) -> io::Result<()> {
        let mut met = self.met.lock();
        if !met.accepted_by.contains(&node) {
            let mut with_it = met.clone();
            with_it.accepted_by.insert(node);
            write(&self.disk, &with_it)?;
            *met = with_it;
        }
        Ok(())
    }

    /// Whether a peer ever accepted this node's greeting.
    pub(crate) fn was_accepted_by(&self, node: NodeId) -> bool {
        self.met.lock().accepted_by.contains(&node)
    }
}

fn write(disk: &impl Disk, met: &Met) -> io::Result<()> {
    let mut out = MAGIC.to_vec();
    put_varint(&mut out, met.disks.len() as u64);
    for (node, number) in &met.disks {
        node.encode(&mut out);
        put_varint(&mut out, *number);
    }
    put_varint(&mut out, met.accepted_by.len() as u64);
    met.accepted_by.iter().for_each(|node| node.encode(&mut out));
    out.extend_from_slice(&crc32c(&out).to_le_bytes());
    let file = disk.create(TEMPORARY)?;
    file.write_at(0, &out)?;
    file.sync_data()?;
    disk.rename(TEMPORARY, FILE)?;
    disk.sync_dir()
}

fn decode(bytes: &[u8]) -> Option<Met> {
    let (content, check) = bytes.split_last_chunk::<4>()?;
    if crc32c(content) != u32::from_le_bytes(*check) {
        return None;
    }
    let mut input = Reader::new(Bytes::copy_from_slice(content.strip_prefix(MAGIC)?));
    let read = |input: &mut Reader| -> Result<Met, DecodeError> {
        let mut met = Met::default();
        for _ in 0..input.count("the number of peers", PEERS_MAX)? {
            met.disks.insert(NodeId::decode(input)?, input.varint()?);
        }
        for _ in 0..input.count("the number of peers", PEERS_MAX)? {
            met.accepted_by.insert(NodeId::decode(input)?);
        }
        input.finish()?;
        Ok(met)
    };
    read(&mut input).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_journal::memory_disk::MemoryDisk;

    /// H21: forgetting whom one met would let a member with an empty disk back in after a restart.
    #[test]
    fn h21_a_peer_with_another_disk_is_refused_also_after_a_restart() {
        let disk = MemoryDisk::new();
        let met = Acquaintances::open(disk.clone()).unwrap();
        met.meet(NodeId(1), 11).unwrap();
        met.meet(NodeId(2), 22).unwrap();
        assert!(met.meet(NodeId(1), 12).unwrap_err().contains(OTHER_DISK));
        // Nothing that was not synced survives.
        disk.crash(|_| false);
        let met = Acquaintances::open(disk).unwrap();
        assert!(met.meet(NodeId(1), 12).is_err());
        met.meet(NodeId(1), 11).unwrap();
        met.meet(NodeId(2), 22).unwrap();
    }

    /// Founders that are never all up at the same moment must come to found their cluster all the same.
    #[test]
    fn who_accepted_this_node_is_remembered_over_a_restart() {
        let disk = MemoryDisk::new();
        let met = Acquaintances::open(disk.clone()).unwrap();
        met.accepted_by(NodeId(2)).unwrap();
        met.meet(NodeId(3), 33).unwrap();
        disk.crash(|_| false);
        let met = Acquaintances::open(disk).unwrap();
        assert!(met.was_accepted_by(NodeId(2)) && !met.was_accepted_by(NodeId(3)));
    }

    #[test]
    fn a_damaged_list_is_refused() {
        let disk = MemoryDisk::new();
        Acquaintances::open(disk.clone()).unwrap().meet(NodeId(1), 11).unwrap();
        for offset in 0..disk.contents(FILE).unwrap().len() {
            let damaged = disk.fork();
            damaged.flip(FILE, offset, 4);
            assert!(Acquaintances::open(damaged).is_err(), "byte {offset}");
        }
    }

    /// A peer that was not written down durably must not be told that it is known.
    #[test]
    fn h21_a_peer_is_not_accepted_when_it_cannot_be_remembered() {
        let disk = MemoryDisk::new();
        let met = Acquaintances::open(disk.clone()).unwrap();
        disk.set_capacity(Some(0));
        assert!(met.meet(NodeId(1), 11).is_err());
        disk.set_capacity(None);
        met.meet(NodeId(1), 12).unwrap();
    }
}
