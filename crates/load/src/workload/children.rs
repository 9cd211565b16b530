//! ZooKeeper: the names of 100 children.

use super::Workload;
use super::znode_fill::{CHILDREN, LISTED};
use crate::lines::{Lines, Tag};
use crate::random::Random;
use crate::zookeeper::{self as wire, opcode};

pub(super) struct Children;

impl Workload for Children {
    fn send(&mut self, lines: &mut Lines, line: usize, tag: Tag, _: &mut Random) -> u64 {
        lines.ask(line, tag, opcode::GET_CHILDREN, |out| {
            wire::bytes(out, LISTED.as_bytes());
            out.push(0);
        });
        0
    }

    fn check(&self, _: u64, mut answer: &[u8], closely: bool) -> Result<(), String> {
        let count = wire::take_int(&mut answer);
        if count != Some(CHILDREN as i32) {
            return Err(format!("a listing of {CHILDREN} children has {count:?}"));
        }
        if closely && (0..CHILDREN).any(|_| wire::take_bytes(&mut answer).is_none_or(|name| name.len() != 10)) {
            return Err("a listing with other names in it".to_string());
        }
        Ok(())
    }
}
