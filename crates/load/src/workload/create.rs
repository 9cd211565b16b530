//! ZooKeeper: a new znode of its own name below one of a hundred parents.

use super::Workload;
use super::znode_fill::{NEW, PARENTS, create};
use crate::lines::{Lines, Tag};
use crate::random::Random;
use crate::values::{self, Values};
use crate::zookeeper::{self as wire, opcode};

pub(super) struct Create {
    values: Values,
    /// Tells this generator's names from those of others and of earlier rounds.
    prefix: u64,
    next: u64,
}

impl Create {
    pub(super) fn new(values: Values, seed: u64) -> Create {
        let since = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
        Create { values, prefix: since.wrapping_add(seed), next: 0 }
    }

    fn path(&self, number: u64) -> Vec<u8> {
        let mut path = values::path(NEW, number % PARENTS);
        path.extend_from_slice(format!("/{:x}-{number}", self.prefix).as_bytes());
        path
    }
}

impl Workload for Create {
    fn send(&mut self, lines: &mut Lines, line: usize, tag: Tag, random: &mut Random) -> u64 {
        let number = self.next;
        self.next += 1;
        lines.ask(line, tag, opcode::CREATE, |out| {
            create(out, &self.path(number), self.values.bytes(), 0, |out| self.values.write(number, random, out));
        });
        number
    }

    fn check(&self, number: u64, mut answer: &[u8], closely: bool) -> Result<(), String> {
        if closely && wire::take_bytes(&mut answer) != Some(&self.path(number)) {
            return Err("a create was answered with another path".to_string());
        }
        Ok(())
    }
}
