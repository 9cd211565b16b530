//! etcd: nine linearizable reads to one put.

use super::Workload;
use super::get::Get;
use super::put::Put;
use crate::lines::{Lines, Tag};
use crate::random::Random;
use crate::values::Values;

/// One of so many operations is a put.
const PUT_EVERY: u64 = 10;
/// Set on what was asked if it was a put.
const WAS_PUT: u64 = 1 << 63;

pub(super) struct Mixed {
    put: Put,
    get: Get,
}

impl Mixed {
    pub(super) fn new(keys: u64, values: Values) -> Mixed {
        Mixed { put: Put { keys, values: values.clone() }, get: Get { keys, values, serializable: false } }
    }
}

impl Workload for Mixed {
    fn send(&mut self, lines: &mut Lines, line: usize, tag: Tag, random: &mut Random) -> u64 {
        if random.below(PUT_EVERY) == 0 {
            return self.put.send(lines, line, tag, random) | WAS_PUT;
        }
        self.get.send(lines, line, tag, random)
    }

    fn check(&self, asked: u64, answer: &[u8], closely: bool) -> Result<(), String> {
        if asked & WAS_PUT != 0 {
            return self.put.check(asked & !WAS_PUT, answer, closely);
        }
        self.get.check(asked, answer, closely)
    }
}
