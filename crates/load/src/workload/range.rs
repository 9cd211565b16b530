//! etcd: a linearizable read of 1,000 keys that follow each other.

use prost::Message;
use tidelock_etcd_api::etcdserverpb::RangeResponse;

use super::{Workload, garbled};
use crate::etcd_messages::{self as wire, method};
use crate::lines::{Lines, Tag};
use crate::random::Random;
use crate::values;

/// Keys of one read.
const KEYS: u64 = 1000;

pub(super) struct Range {
    pub(super) keys: u64,
}

impl Range {
    fn count(&self) -> u64 {
        KEYS.min(self.keys)
    }
}

impl Workload for Range {
    fn send(&mut self, lines: &mut Lines, line: usize, tag: Tag, random: &mut Random) -> u64 {
        let first = random.below(self.keys - self.count() + 1);
        lines.call(line, tag, method::RANGE, |out| {
            wire::bytes(out, 1, &values::key(first));
            wire::bytes(out, 2, &values::key(first + self.count()));
        });
        first
    }

    fn check(&self, first: u64, answer: &[u8], closely: bool) -> Result<(), String> {
        if answer.len() < self.count() as usize * values::KEY_BYTES {
            return Err("a range is shorter than its keys".to_string());
        }
        if closely {
            let range = RangeResponse::decode(answer).map_err(|error| garbled(&error))?;
            let right = |(at, kv): (u64, &tidelock_etcd_api::mvccpb::KeyValue)| kv.key[..] == values::key(first + at);
            if range.kvs.len() as u64 != self.count() || !(0..).zip(&range.kvs).all(right) {
                return Err(format!("a range from key {first} on gave other keys"));
            }
        }
        Ok(())
    }
}
