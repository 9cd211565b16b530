//! ZooKeeper: whether a random znode exists, which it does.

use super::Workload;
use super::set::STAT_BYTES;
use super::znode_fill::KEYS;
use crate::lines::{Lines, Tag};
use crate::random::Random;
use crate::values::{self, Values};
use crate::zookeeper::{self as wire, opcode};

/// Where the length of the data stands among the figures.
const DATA_LENGTH_AT: usize = 52;

pub(super) struct Exists {
    pub(super) keys: u64,
    pub(super) values: Values,
}

impl Workload for Exists {
    fn send(&mut self, lines: &mut Lines, line: usize, tag: Tag, random: &mut Random) -> u64 {
        let number = random.below(self.keys);
        lines.ask(line, tag, opcode::EXISTS, |out| {
            wire::bytes(out, &values::path(KEYS, number));
            out.push(0);
        });
        number
    }

    fn check(&self, _: u64, answer: &[u8], closely: bool) -> Result<(), String> {
        if answer.len() != STAT_BYTES {
            return Err(format!("exists was answered with {} bytes, not with figures", answer.len()));
        }
        let length = wire::take_int(&mut &answer[DATA_LENGTH_AT..]);
        if closely && length != Some(self.values.bytes() as i32) {
            return Err(format!("exists told of a znode with {length:?} bytes of data"));
        }
        Ok(())
    }
}
