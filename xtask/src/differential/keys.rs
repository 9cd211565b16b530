//! The small world the random requests live in: few keys, so that requests meet; all the odd ones among them.

use bytes::Bytes;

use crate::random::Random;

/// Keys of the watch streams' own marks; requests do not name it, though ranges may cover it.
pub(super) const MARK: &[u8] = b"~mark";

/// Keys beside the generated ones: nested prefixes, neighbours, zero bytes, high bytes, no UTF-8.
const ODD: [&[u8]; 14] = [
    b"\0",
    b"\0\0",
    b"\0a",
    b"a",
    b"a\0",
    b"a\0b",
    b"b",
    b"k",
    b"k/",
    b"k0",
    b"\x7f",
    b"\xc3\x28",
    b"\xff",
    b"\xff\xff",
];

/// Generated keys: `k/0` to `k/8`, each with two below it.
const DIRECTORIES: u64 = 9;

/// A key; rarely none, which servers must refuse.
pub(super) fn key(random: &mut Random) -> Bytes {
    if one_in(random, 150) {
        return Bytes::new();
    }
    some_key(random)
}

/// A key that is one.
pub(super) fn some_key(random: &mut Random) -> Bytes {
    if one_in(random, 3) {
        return Bytes::from_static(ODD[random.below(ODD.len() as u64) as usize]);
    }
    let directory = random.below(DIRECTORIES);
    match random.below(3) {
        0 => format!("k/{directory}").into(),
        1 => format!("k/{directory}/x").into(),
        _ => format!("k/{directory}/y").into(),
    }
}

/// An end for a range that begins at `key`: of all four kinds, also before the key.
pub(super) fn range_end(random: &mut Random, key: &[u8]) -> Bytes {
    match random.below(100) {
        0..40 => Bytes::new(),
        40..52 => Bytes::from_static(b"\0"),
        52..78 => prefix_end(key),
        _ => some_key(random),
    }
}

/// The end of the range of all keys that begin with `prefix`, as clients compute it.
pub(super) fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end.into();
        }
    }
    Bytes::from_static(b"\0")
}

/// A value out of few, so that compares hold now and then; sometimes bytes that nobody else has.
pub(super) fn value(random: &mut Random) -> Bytes {
    match random.below(10) {
        0 => Bytes::new(),
        1..7 => format!("v{}", random.below(5)).into(),
        7 => Bytes::from_static(b"\0\xff\0"),
        _ => {
            let length = random.below(60);
            (0..length).map(|_| random.next().to_le_bytes()[0]).collect::<Vec<u8>>().into()
        }
    }
}

/// True once in `times` on average.
pub(super) fn one_in(random: &mut Random, times: u64) -> bool {
    random.below(times) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A prefix whose end is wrong would leave whole kinds of ranges untried.
    #[test]
    fn the_end_of_a_prefix_is_the_one_clients_compute() {
        assert_eq!(prefix_end(b"k/"), "k0");
        assert_eq!(prefix_end(b"a\xff"), "b");
        assert_eq!(prefix_end(b"\xff\xff"), "\0");
    }
}
