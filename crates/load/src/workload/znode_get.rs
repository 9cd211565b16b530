//! ZooKeeper: the data of a random znode read, from whatever the member has.

use super::Workload;
use super::set::STAT_BYTES;
use super::znode_fill::KEYS;
use crate::lines::{Lines, Tag};
use crate::random::Random;
use crate::values::{self, Values};
use crate::zookeeper::{self as wire, opcode};

pub(super) struct ZnodeGet {
    pub(super) keys: u64,
    pub(super) values: Values,
}

impl Workload for ZnodeGet {
    fn send(&mut self, lines: &mut Lines, line: usize, tag: Tag, random: &mut Random) -> u64 {
        let number = random.below(self.keys);
        lines.ask(line, tag, opcode::GET_DATA, |out| {
            wire::bytes(out, &values::path(KEYS, number));
            out.push(0);
        });
        number
    }

    fn check(&self, number: u64, mut answer: &[u8], closely: bool) -> Result<(), String> {
        if answer.len() != 4 + self.values.bytes() + STAT_BYTES {
            return Err(format!("a read was answered with {} bytes", answer.len()));
        }
        if closely && !wire::take_bytes(&mut answer).is_some_and(|data| self.values.is_of(number, data)) {
            return Err(format!("a read of znode {number} gave another's data"));
        }
        Ok(())
    }
}
