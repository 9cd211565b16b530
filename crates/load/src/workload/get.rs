//! etcd: a read of a random key, linearizable or of whatever the member has.

use prost::Message;
use tidelock_etcd_api::etcdserverpb::RangeResponse;

use super::{Workload, garbled};
use crate::etcd_messages::{self as wire, method};
use crate::lines::{Lines, Tag};
use crate::random::Random;
use crate::values::{self, Values};

pub(super) struct Get {
    pub(super) keys: u64,
    pub(super) values: Values,
    pub(super) serializable: bool,
}

impl Workload for Get {
    fn send(&mut self, lines: &mut Lines, line: usize, tag: Tag, random: &mut Random) -> u64 {
        let number = random.below(self.keys);
        lines.call(line, tag, method::RANGE, |out| {
            wire::bytes(out, 1, &values::key(number));
            if self.serializable {
                wire::number(out, 7, 1);
            }
        });
        number
    }

    fn check(&self, number: u64, answer: &[u8], closely: bool) -> Result<(), String> {
        // What is asked of every answer costs nothing: the value must fit in.
        if answer.len() < self.values.bytes() {
            return Err("a read of a key that exists found nothing".to_string());
        }
        if closely {
            let range = RangeResponse::decode(answer).map_err(|error| garbled(&error))?;
            let right = |kv: &tidelock_etcd_api::mvccpb::KeyValue| {
                kv.key[..] == values::key(number) && self.values.is_of(number, &kv.value)
            };
            if range.kvs.len() != 1 || !range.kvs.iter().all(right) {
                return Err(format!("a read of key {number} gave another key's value, or none"));
            }
        }
        Ok(())
    }
}
