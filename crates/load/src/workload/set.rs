//! ZooKeeper: the data of a random znode written.

use super::Workload;
use super::znode_fill::KEYS;
use crate::lines::{Lines, Tag};
use crate::random::Random;
use crate::values::{self, Values};
use crate::zookeeper::{self as wire, opcode};

/// Bytes of a znode's figures.
pub(super) const STAT_BYTES: usize = 68;

pub(super) struct Set {
    pub(super) keys: u64,
    pub(super) values: Values,
}

impl Workload for Set {
    fn send(&mut self, lines: &mut Lines, line: usize, tag: Tag, random: &mut Random) -> u64 {
        let number = random.below(self.keys);
        lines.ask(line, tag, opcode::SET_DATA, |out| {
            wire::bytes(out, &values::path(KEYS, number));
            wire::int(out, self.values.bytes() as i32);
            self.values.write(number, random, out);
            wire::int(out, -1);
        });
        number
    }

    fn check(&self, _: u64, answer: &[u8], _: bool) -> Result<(), String> {
        if answer.len() != STAT_BYTES {
            return Err(format!("a set was answered with {} bytes, not with figures", answer.len()));
        }
        Ok(())
    }
}
