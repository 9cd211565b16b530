//! ZooKeeper: makes what the other workloads use, in transactions.
//!
//! `/bench/k` holds the znodes that are read and written, `/bench/c` 100 children to list, `/bench/n` the parents of
//! those that `create` makes.

use super::Workload;
use crate::lines::{Lines, Tag};
use crate::random::Random;
use crate::values::{self, Values};
use crate::zookeeper::{self as wire, opcode};

/// Znodes of one transaction. Large values make it fewer.
const CREATES_PER_MULTI: u64 = 32;
/// Children below `/bench/c`.
pub(super) const CHILDREN: u64 = 100;
/// Parents below `/bench/n`.
pub(super) const PARENTS: u64 = 100;
/// Parent of what is read and written.
pub(super) const KEYS: &str = "/bench/k";
/// Parent of what is listed.
pub(super) const LISTED: &str = "/bench/c";
/// Parent of the parents of what is created.
pub(super) const NEW: &str = "/bench/n";

/// All that is made: first the few above, then `keys` znodes.
pub struct ZnodeFill {
    keys: u64,
    values: Values,
    next: u64,
}

impl ZnodeFill {
    /// Makes `keys` znodes and what stands above them.
    pub fn new(keys: u64, values: Values) -> ZnodeFill {
        ZnodeFill { keys, values, next: 0 }
    }

    fn paths(&self, first: u64, last: u64) -> impl Iterator<Item = (Vec<u8>, Option<u64>)> {
        let above = ["/bench", KEYS, LISTED, NEW];
        let (few, keys) = (above.len() as u64, above.len() as u64 + CHILDREN + PARENTS);
        (first..last).map(move |at| match at {
            at if at < few => (above[at as usize].as_bytes().to_vec(), None),
            at if at < few + CHILDREN => (values::path(LISTED, at - few), None),
            at if at < keys => (values::path(NEW, at - few - CHILDREN), None),
            at => (values::path(KEYS, at - keys), Some(at - keys)),
        })
    }

    fn total(&self) -> u64 {
        4 + CHILDREN + PARENTS + self.keys
    }
}

impl Workload for ZnodeFill {
    fn send(&mut self, lines: &mut Lines, line: usize, tag: Tag, random: &mut Random) -> u64 {
        let first = self.next;
        self.next = (first + self.values.per_request(CREATES_PER_MULTI)).min(self.total());
        lines.ask(line, tag, opcode::MULTI, |out| {
            for (path, number) in self.paths(first, self.next) {
                multi_head(out, opcode::CREATE, false);
                create(out, &path, number.map_or(0, |_| self.values.bytes()), 0, |out| {
                    if let Some(number) = number {
                        self.values.write(number, random, out);
                    }
                });
            }
            multi_head(out, -1, true);
        });
        first
    }

    fn check(&self, _: u64, mut answer: &[u8], _: bool) -> Result<(), String> {
        match wire::take_int(&mut answer) {
            Some(opcode::CREATE) => Ok(()),
            // The first result is an error: whether it is the last, and its number.
            Some(-1) => match answer.get(1..).and_then(|mut rest| wire::take_int(&mut rest)) {
                Some(error) => Err(format!("ZooKeeper's error {error}")),
                None => Err("a transaction's answer is cut".to_string()),
            },
            other => Err(format!("a transaction of creates was answered by type {other:?}")),
        }
    }

    fn is_done(&self) -> bool {
        self.next >= self.total()
    }
}

fn multi_head(out: &mut Vec<u8>, opcode: i32, done: bool) {
    wire::int(out, opcode);
    out.push(done.into());
    wire::int(out, -1);
}

/// A create request of data of `data_bytes` bytes that `data` writes; open to everybody.
pub(super) fn create(out: &mut Vec<u8>, path: &[u8], data_bytes: usize, flags: i32, data: impl FnOnce(&mut Vec<u8>)) {
    const ALL_PERMISSIONS: i32 = 31;
    wire::bytes(out, path);
    wire::int(out, data_bytes as i32);
    data(out);
    wire::int(out, 1);
    wire::int(out, ALL_PERMISSIONS);
    wire::bytes(out, b"world");
    wire::bytes(out, b"anyone");
    wire::int(out, flags);
}
