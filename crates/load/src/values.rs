//! Keys and values of the load. A value names its key, so that an answer can be checked without remembering what was
//! written.

use crate::random::Random;

/// Random bytes that values are cut from: they do not compress and cost nothing to make.
const POOL_BYTES: usize = 1 << 20;
/// What every value begins with: its key's number.
const MARK_BYTES: usize = 8;
/// What one request takes at most: less than the 1 MiB of ZooKeeper and the 1.5 MiB of etcd.
const REQUEST_BYTES: usize = 900 << 10;
/// What stands around a value in a request, its key included.
const AROUND_BYTES: usize = 128;
/// Bytes of an etcd key.
pub const KEY_BYTES: usize = 20;

/// Values of one size.
#[derive(Clone, Debug)]
pub struct Values {
    pool: Vec<u8>,
    bytes: usize,
}

impl Values {
    /// Values of `bytes` bytes.
    pub fn new(bytes: usize) -> Values {
        let mut random = Random::new(7);
        let words = (POOL_BYTES + bytes).div_ceil(8);
        Values { pool: (0..words).flat_map(|_| random.next().to_le_bytes()).collect(), bytes }
    }

    /// Bytes of each.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many of them go into one request: `most`, or as many as a server takes.
    pub(crate) fn per_request(&self, most: u64) -> u64 {
        most.min((REQUEST_BYTES / (self.bytes + AROUND_BYTES)) as u64).max(1)
    }

    /// Writes a value of key `number`.
    pub fn write(&self, number: u64, random: &mut Random, out: &mut Vec<u8>) {
        let mark = number.to_be_bytes();
        let marked = MARK_BYTES.min(self.bytes);
        out.extend_from_slice(&mark[MARK_BYTES - marked..]);
        let start = random.below(POOL_BYTES as u64) as usize;
        out.extend_from_slice(&self.pool[start..start + self.bytes - marked]);
    }

    /// Whether these bytes are a value of key `number`.
    pub fn is_of(&self, number: u64, value: &[u8]) -> bool {
        let marked = MARK_BYTES.min(self.bytes);
        value.len() == self.bytes && value[..marked] == number.to_be_bytes()[MARK_BYTES - marked..]
    }
}

/// The etcd key with this number.
pub fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"bench/00000000000000";
    digits(number, &mut key[6..]);
    key
}

/// The path of ZooKeeper's node with this number, below `parent`.
pub(crate) fn path(parent: &str, number: u64) -> Vec<u8> {
    let mut path = Vec::with_capacity(parent.len() + 11);
    path.extend_from_slice(parent.as_bytes());
    path.extend_from_slice(b"/0000000000");
    let start = parent.len() + 1;
    digits(number, &mut path[start..]);
    path
}

fn digits(mut number: u64, places: &mut [u8]) {
    for place in places.iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A check that passes every value would let a server win that answers nonsense.
    #[test]
    fn a_value_is_told_from_that_of_another_key() {
        for bytes in [1, 16, 256] {
            let (values, mut random, mut value) = (Values::new(bytes), Random::new(1), Vec::new());
            values.write(77, &mut random, &mut value);
            assert!(values.is_of(77, &value) && !values.is_of(78, &value), "{bytes}");
            assert!(!values.is_of(77, &value[..bytes - 1]), "{bytes}");
        }
        assert!(Values::new(0).is_of(1, &[]));
        assert_eq!(&key(1234), b"bench/00000000001234");
        assert_eq!(path("/bench/k", 12), b"/bench/k/0000000012");
    }
}
