//! etcd: a put of a random value to a random key.

use prost::Message;
use tidelock_etcd_api::etcdserverpb::PutResponse;

use super::{Workload, garbled};
use crate::etcd_messages::{self, method};
use crate::lines::{Lines, Tag};
use crate::random::Random;
use crate::values::{self, Values};

pub(super) struct Put {
    pub(super) keys: u64,
    pub(super) values: Values,
}

impl Workload for Put {
    fn send(&mut self, lines: &mut Lines, line: usize, tag: Tag, random: &mut Random) -> u64 {
        let number = random.below(self.keys);
        lines.call(line, tag, method::PUT, |out| {
            etcd_messages::put(out, &values::key(number), self.values.bytes(), |out| {
                self.values.write(number, random, out);
            });
        });
        number
    }

    fn check(&self, _: u64, answer: &[u8], closely: bool) -> Result<(), String> {
        if closely {
            let put = PutResponse::decode(answer).map_err(|error| garbled(&error))?;
            if put.header.is_none_or(|header| header.revision < 1) {
                return Err("a put was answered without a revision".to_string());
            }
        }
        Ok(())
    }
}
