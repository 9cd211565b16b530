//! etcd: writes every key once, in transactions of as many puts as etcd allows.

use prost::Message;
use tidelock_etcd_api::etcdserverpb::TxnResponse;

use super::{Workload, garbled};
use crate::etcd_messages::{self as wire, method};
use crate::lines::{Lines, Tag};
use crate::random::Random;
use crate::values::{self, Values};

/// etcd's default limit. Large values make it fewer.
const PUTS_PER_TXN: u64 = 128;

/// Keys `0..keys`.
pub struct Fill {
    keys: u64,
    values: Values,
    next: u64,
}

impl Fill {
    /// Writes `keys` keys.
    pub fn new(keys: u64, values: Values) -> Fill {
        Fill { keys, values, next: 0 }
    }
}

impl Workload for Fill {
    fn send(&mut self, lines: &mut Lines, line: usize, tag: Tag, random: &mut Random) -> u64 {
        let first = self.next;
        self.next = (first + self.values.per_request(PUTS_PER_TXN)).min(self.keys);
        lines.call(line, tag, method::TXN, |out| {
            for number in first..self.next {
                let key = values::key(number);
                let put = wire::put_bytes(&key, self.values.bytes());
                wire::length(out, 2, wire::field_bytes(put));
                wire::length(out, 2, put);
                wire::put(out, &key, self.values.bytes(), |out| self.values.write(number, random, out));
            }
        });
        first
    }

    fn check(&self, _: u64, answer: &[u8], closely: bool) -> Result<(), String> {
        if closely && !TxnResponse::decode(answer).map_err(|error| garbled(&error))?.succeeded {
            return Err("a transaction without a condition did not succeed".to_string());
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.next >= self.keys
    }
}
