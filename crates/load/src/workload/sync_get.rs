//! ZooKeeper: a sync, and behind it on the same connection a read: what it takes there to read what is newest.

use super::znode_fill::KEYS;
use super::znode_get::ZnodeGet;
use super::{BESIDE, Workload};
use crate::lines::{Lines, Tag};
use crate::random::Random;
use crate::zookeeper::{self as wire, opcode};

pub(super) struct SyncGet {
    pub(super) get: ZnodeGet,
}

impl Workload for SyncGet {
    fn send(&mut self, lines: &mut Lines, line: usize, tag: Tag, random: &mut Random) -> u64 {
        lines.ask(line, tag | BESIDE, opcode::SYNC, |out| wire::bytes(out, KEYS.as_bytes()));
        self.get.send(lines, line, tag, random)
    }

    fn check(&self, asked: u64, answer: &[u8], closely: bool) -> Result<(), String> {
        self.get.check(asked, answer, closely)
    }
}
