//! etcd: a put of a random value to a random key, on the condition that the key exists, which it does.

use prost::Message;
use tidelock_etcd_api::etcdserverpb::TxnResponse;

use super::{Workload, garbled};
use crate::etcd_messages::{self as wire, method};
use crate::lines::{Lines, Tag};
use crate::random::Random;
use crate::values::{self, Values};

/// "Greater", of Compare's results.
const GREATER: u64 = 1;

pub(super) struct Txn {
    pub(super) keys: u64,
    pub(super) values: Values,
}

impl Workload for Txn {
    fn send(&mut self, lines: &mut Lines, line: usize, tag: Tag, random: &mut Random) -> u64 {
        let number = random.below(self.keys);
        lines.call(line, tag, method::TXN, |out| {
            let key = values::key(number);
            // Compare: the version (target 0, the default) is greater than 0, which is left out as defaults are.
            wire::length(out, 1, 2 + wire::field_bytes(key.len()) + 2);
            wire::number(out, 1, GREATER);
            wire::bytes(out, 3, &key);
            wire::number(out, 4, 0);
            let put = wire::put_bytes(&key, self.values.bytes());
            wire::length(out, 2, wire::field_bytes(put));
            wire::length(out, 2, put);
            wire::put(out, &key, self.values.bytes(), |out| self.values.write(number, random, out));
        });
        number
    }

    fn check(&self, _: u64, answer: &[u8], closely: bool) -> Result<(), String> {
        if closely {
            let txn = TxnResponse::decode(answer).map_err(|error| garbled(&error))?;
            if !txn.succeeded || txn.responses.len() != 1 {
                return Err("a transaction whose condition holds did not succeed".to_string());
            }
        }
        Ok(())
    }
}
