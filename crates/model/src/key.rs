//! Keys and ranges of the one ordered keyspace.
//!
//! A key's first byte says whose it is ([`Space`]), the rest is the owner's own name for it. So
//! every face has its own ordered region, and snapshot, watch, history and digest treat all alike.

use std::cmp::Ordering;
use std::fmt;

use triomphe::ThinArc;

use crate::codec::{DecodeError, Reader, Wire, put_bytes};
use crate::limits::KEY_BYTES_MAX;

/// Whose keys these are: the first byte of every stored key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Space {
    /// Keys of etcd clients and of the native key-value API.
    User = 0x10,
    /// Znodes.
    Tree = 0x20,
    /// Services, nodes and checks.
    Catalog = 0x30,
    /// Lock queues, elections, barriers and their kin.
    Lock = 0x40,
    /// Users, roles and grants.
    Auth = 0x50,
    /// Sagas and two-phase commits.
    Saga = 0x60,
}

/// Short keys live inside the handle: no allocation, and no reference count to touch when a key is
/// compared, copied or dropped. 22 bytes is what fits beside the tag and length in 24.
const INLINE_MAX: usize = 22;

/// What a longer key keeps in its handle of itself: most comparisons are decided by it, and the rest is a cache miss away.
const HEAD_BYTES: usize = 15;

#[derive(Clone)]
enum Repr {
    /// What is not used of `bytes` is zero: comparing relies on it.
    Inline {
        len: u8,
        bytes: [u8; INLINE_MAX],
    },
    Shared {
        head: [u8; HEAD_BYTES],
        bytes: ThinArc<(), u8>,
    },
}

/// Keys up to this long are put together without memory of their own: most are, and each is for every member to make.
const STACK_BYTES: usize = 128;

/// Copies the parts one after the other; there is room for them.
fn put_parts(mut to: &mut [u8], parts: &[&[u8]]) {
    for part in parts {
        let (here, rest) = to.split_at_mut(part.len());
        here.copy_from_slice(part);
        to = rest;
    }
}

/// The eight bytes at `AT`, as a number that sorts as they do.
#[inline]
fn word<const AT: usize, const LEN: usize>(bytes: &[u8; LEN]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[AT..AT + 8]);
    u64::from_be_bytes(word)
}

/// A key, its [`Space`] byte included. Cheap to clone.
#[derive(Clone)]
pub struct Key(Repr);

impl Key {
    /// Stored bytes of a key up to which all of them lie in its handle.
    pub const INLINE_BYTES: usize = INLINE_MAX;

    /// The key `name` in `space`.
    #[must_use]
    pub fn new(space: Space, name: &[u8]) -> Key {
        Key::join(&[space as u8], name)
    }

    /// A key from its stored bytes, the space byte included.
    #[must_use]
    pub fn from_stored(bytes: &[u8]) -> Key {
        Key::join(bytes, &[])
    }

    /// The first key of `space`, which is also the end of the one before it.
    #[must_use]
    pub fn start_of(space: Space) -> Key {
        Key::new(space, &[])
    }

    /// The first key beyond `space`.
    #[must_use]
    pub fn end_of(space: Space) -> Key {
        Key::from_stored(&[space as u8 + 1])
    }

    /// The smallest key greater than this one.
    #[must_use]
    pub fn successor(&self) -> Key {
        Key::join(self.as_stored(), &[0])
    }

    /// The stored bytes, the space byte included.
    #[must_use]
    pub fn as_stored(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Shared { bytes, .. } => &bytes.slice,
        }
    }

    /// The owner's name for the key: the stored bytes without the space byte.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.as_stored().get(1..).unwrap_or_default()
    }

    /// The space byte, or `None` for the empty key, which only serves as a range bound.
    #[must_use]
    pub fn space_byte(&self) -> Option<u8> {
        self.as_stored().first().copied()
    }

    fn join(head: &[u8], tail: &[u8]) -> Key {
        Key::from_parts(&[head, tail])
    }

    /// A key whose stored bytes, the space byte included, are these one after the other.
    #[must_use]
    pub fn from_parts(parts: &[&[u8]]) -> Key {
        let len = parts.iter().map(|part| part.len()).sum();
        if len <= INLINE_MAX {
            let mut bytes = [0; INLINE_MAX];
            put_parts(&mut bytes, parts);
            // `len` is at most 22 here.
            return Key(Repr::Inline { len: len as u8, bytes });
        }
        let bytes = if let [bytes] | [bytes, []] = parts {
            ThinArc::from_header_and_slice((), bytes)
        } else if len <= STACK_BYTES {
            let mut bytes = [0; STACK_BYTES];
            put_parts(&mut bytes, parts);
            ThinArc::from_header_and_slice((), &bytes[..len])
        } else {
            ThinArc::from_header_and_slice((), &parts.concat())
        };
        let mut head = [0; HEAD_BYTES];
        head.copy_from_slice(&bytes.slice[..HEAD_BYTES]);
        Key(Repr::Shared { head, bytes })
    }

    /// The first [`HEAD_BYTES`], as numbers that sort as they do; a key that has fewer is filled up with zeros.
    #[inline]
    fn head(&self) -> (u64, u64) {
        match &self.0 {
            Repr::Inline { bytes, .. } => (word::<0, INLINE_MAX>(bytes), word::<7, INLINE_MAX>(bytes)),
            Repr::Shared { head, .. } => (word::<0, HEAD_BYTES>(head), word::<7, HEAD_BYTES>(head)),
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Key {}
impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Key {
    /// As the stored bytes do. Where one has ended and the other has not, its zero is at most what the other has there:
    /// if it is less that decides rightly, and if all are equal the lengths do.
    #[inline]
    fn cmp(&self, other: &Key) -> Ordering {
        let by_head = self.head().cmp(&other.head());
        if by_head.is_ne() {
            return by_head;
        }
        match (&self.0, &other.0) {
            (Repr::Inline { len, bytes }, Repr::Inline { len: other_len, bytes: other }) => {
                word::<14, INLINE_MAX>(bytes).cmp(&word::<14, INLINE_MAX>(other)).then(len.cmp(other_len))
            }
            // All versions of a key share one copy of it.
            (Repr::Shared { bytes, .. }, Repr::Shared { bytes: other, .. })
                if std::ptr::eq(&raw const bytes.slice, &raw const other.slice) =>
            {
                Ordering::Equal
            }
            _ => self.as_stored().cmp(other.as_stored()),
        }
    }
}
impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_stored().hash(state);
    }
}
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.space_byte() {
            Some(space) => write!(f, "{space:02x}:{}", self.name().escape_ascii()),
            None => f.write_str("(empty)"),
        }
    }
}

impl Wire for Key {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.as_stored());
    }
    fn decode(input: &mut Reader) -> Result<Key, DecodeError> {
        Ok(Key::from_stored(input.short_bytes(KEY_BYTES_MAX + 2)?))
    }
}

/// The keys from `start` up to but not including `end`. Empty when `start >= end`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyRange {
    /// First key inside.
    pub start: Key,
    /// First key beyond.
    pub end: Key,
}

impl KeyRange {
    /// Just `key`.
    #[must_use]
    pub fn single(key: Key) -> KeyRange {
        KeyRange { end: key.successor(), start: key }
    }

    /// All keys of `space`.
    #[must_use]
    pub fn all_of(space: Space) -> KeyRange {
        KeyRange { start: Key::start_of(space), end: Key::end_of(space) }
    }

    /// The keys of `space` whose names start with `prefix`.
    #[must_use]
    pub fn prefix(space: Space, prefix: &[u8]) -> KeyRange {
        let start = Key::new(space, prefix);
        let stored = start.as_stored();
        // The space byte is never 0xff, so a byte that can grow is always found.
        let cut = stored.iter().rposition(|byte| *byte != 0xff).unwrap_or(0);
        let mut end = stored[..=cut].to_vec();
        end[cut] += 1;
        KeyRange { end: Key::from_stored(&end), start }
    }

    /// Whether no key can be inside.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// The one key inside, if the range was made for a single key.
    #[must_use]
    pub fn as_single(&self) -> Option<&Key> {
        let (start, end) = (self.start.as_stored(), self.end.as_stored());
        let single = end.len() == start.len() + 1 && end.last() == Some(&0) && end.starts_with(start);
        single.then_some(&self.start)
    }

    /// Whether `key` is inside.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        *key >= self.start && *key < self.end
    }
}

impl Wire for KeyRange {
    fn encode(&self, out: &mut Vec<u8>) {
        self.start.encode(out);
        self.end.encode(out);
    }
    fn decode(input: &mut Reader) -> Result<KeyRange, DecodeError> {
        Ok(KeyRange { start: Key::decode(input)?, end: Key::decode(input)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The handle is what every index pays per key; growing it silently would break the memory budget.
    #[test]
    fn a_key_handle_is_24_bytes() {
        assert_eq!(size_of::<Key>(), 24);
        assert_eq!(size_of::<Option<Key>>(), 24);
    }

    #[test]
    fn keys_order_by_bytes_whether_inline_or_shared() {
        let short = Key::new(Space::User, b"aaaa");
        let long = Key::new(Space::User, &[b'a'; 64]);
        let later = Key::new(Space::User, b"b");
        assert!(short < long && long < later && later < Key::end_of(Space::User));
        assert_eq!(Key::new(Space::User, &[7; 21]), Key::from_stored(&[&[0x10][..], &[7; 21]].concat()));
    }

    proptest! {
        /// Comparing looks at words, at zeros behind the end, and at part of a long key: none of it may show. Few
        /// different bytes, and lengths on both sides of every limit, make ends and equal beginnings likely.
        #[test]
        fn keys_compare_as_their_bytes_do(
            prefix in proptest::collection::vec(0u8..2, 0..24),
            a in proptest::collection::vec(0u8..3, 0..12),
            b in proptest::collection::vec(0u8..3, 0..12),
        ) {
            let (a, b) = ([&prefix[..], &a].concat(), [&prefix[..], &b].concat());
            let (left, right) = (Key::from_stored(&a), Key::from_stored(&b));
            prop_assert_eq!(left.cmp(&right), a.cmp(&b));
            prop_assert_eq!(left == right, a == b);
            prop_assert_eq!((left.as_stored(), right.as_stored()), (&a[..], &b[..]));
        }
    }

    #[test]
    fn a_prefix_range_ends_after_the_last_name_with_that_prefix() {
        let range = KeyRange::prefix(Space::User, b"a\xff");
        assert!(range.contains(&Key::new(Space::User, b"a\xff\xff\xff")));
        assert!(!range.contains(&Key::new(Space::User, b"b")));
        let all = KeyRange::prefix(Space::User, b"\xff");
        assert!(all.contains(&Key::new(Space::User, b"\xff\xff")));
        assert!(!all.contains(&Key::start_of(Space::Tree)));
    }

    #[test]
    fn only_a_range_made_for_one_key_is_single() {
        let key = Key::new(Space::User, b"k");
        assert_eq!(KeyRange::single(key.clone()).as_single(), Some(&key));
        assert_eq!(KeyRange::prefix(Space::User, b"k").as_single(), None);
    }
}
