//! Where native records lie: in [`Space::Lock`], all that belongs to one name beside each other.
//!
//! ```text
//! kind name 00                     what there is one of: the head. A lock and an election have none.
//! kind name 00 00                  what changes often and nobody watches: the tally.
//! kind name 00 number              a member, named by the revision it came at; owned by its session.
//! kind name 00 version number      a member of an Rcu: the first one reads the oldest version.
//! ```
//!
//! A number is its length and then its bytes, the greatest first, so that numbers sort as they count and small ones
//! are short. A member of a queue with a short name fits into the key's handle.

use crate::native::{Kind, Name};
use crate::{Key, KeyRange, LeaseId, Space};

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// What there is one of.
    Head,
    /// Figures that change often.
    Tally,
    /// Something that a session holds.
    Member {
        /// Its number.
        number: u64,
        /// The version it reads; zero for all but members of an Rcu.
        version: u64,
    },
}

/// The key of a name, with what says which of its records it is.
fn key(kind: Kind, name: &str, slot: [&[u8]; 3]) -> Key {
    let [one, two, three] = slot;
    Key::from_parts(&[&[Space::Lock as u8, kind as u8], name.as_bytes(), one, two, three])
}

/// A number as keys have it.
struct Digits {
    bytes: [u8; 9],
    len: usize,
}

impl Digits {
    fn of(number: u64) -> Digits {
        let used = 8 - number.leading_zeros() as usize / 8;
        let mut bytes = [0; 9];
        // At most eight.
        bytes[0] = used as u8;
        bytes[1..=used].copy_from_slice(&number.to_be_bytes()[8 - used..]);
        Digits { bytes, len: used + 1 }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Takes a number off the front; only its shortest form is one.
fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let (length, rest) = bytes.split_first()?;
    let (digits, rest) = rest.split_at_checked(usize::from(*length))?;
    if *length > 8 || digits.first() == Some(&0) {
        return None;
    }
    *bytes = rest;
    Some(digits.iter().fold(0, |number, digit| number << 8 | u64::from(*digit)))
}

/// The key of a name's head.
#[must_use]
pub fn head(kind: Kind, name: &Name) -> Key {
    key(kind, name.as_str(), [&[0], &[], &[]])
}

/// The key of a name's tally.
#[must_use]
pub fn tally(kind: Kind, name: &Name) -> Key {
    key(kind, name.as_str(), [&[0, 0], &[], &[]])
}

/// The key of a member.
#[must_use]
pub fn member(kind: Kind, name: &Name, number: u64) -> Key {
    key(kind, name.as_str(), [&[0], Digits::of(number).as_bytes(), &[]])
}

/// The key of a member of an Rcu.
#[must_use]
pub fn reader(name: &Name, version: u64, number: u64) -> Key {
    let (version, number) = (Digits::of(version), Digits::of(number));
    key(Kind::Rcu, name.as_str(), [&[0], version.as_bytes(), number.as_bytes()])
}

/// All members of a name, in order.
#[must_use]
pub fn members(kind: Kind, name: &Name) -> KeyRange {
    let at = |slot| key(kind, name.as_str(), [slot, &[], &[]]);
    KeyRange { start: at(&[0, 1]), end: at(&[1]) }
}

/// Whether a key is one of [`members`]: cheaper than to make the range for one or two keys.
#[must_use]
pub fn is_member(kind: Kind, name: &Name, key: &Key) -> bool {
    let rest = key.as_stored().strip_prefix(&[Space::Lock as u8, kind as u8]);
    let slot = rest.and_then(|rest| rest.strip_prefix(name.as_str().as_bytes()));
    matches!(slot, Some([0, 1..=u8::MAX, ..]))
}

/// All that belongs to a name: what to watch.
#[must_use]
pub fn all(kind: Kind, name: &Name) -> KeyRange {
    KeyRange { start: head(kind, name), end: members(kind, name).end }
}

/// All keys of names of that kind that begin with `prefix`.
#[must_use]
pub fn names(kind: Kind, prefix: &str) -> KeyRange {
    KeyRange::prefix(Space::Lock, key(kind, prefix, [&[], &[], &[]]).name())
}

/// What a key is: nothing if it is not one of these.
#[must_use]
pub fn parse(key: &Key) -> Option<(Kind, Name, Slot)> {
    let (kind, name, slot) = parse_borrowed(key)?;
    Some((kind, Name::new(name).ok()?, slot))
}

/// The same without a copy of the name.
#[must_use]
pub fn parse_borrowed(key: &Key) -> Option<(Kind, &str, Slot)> {
    if key.space_byte() != Some(Space::Lock as u8) {
        return None;
    }
    let (kind, rest) = key.name().split_first()?;
    let kind = Kind::from_byte(*kind)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    let (name, mut rest) = (std::str::from_utf8(&rest[..end]).ok()?, &rest[end + 1..]);
    let slot = match rest {
        [] => Slot::Head,
        [0] => Slot::Tally,
        _ => {
            let version = if kind == Kind::Rcu { take_number(&mut rest)? } else { 0 };
            let number = take_number(&mut rest)?;
            (rest.is_empty()).then_some(Slot::Member { number, version })?
        }
    };
    Some((kind, name, slot))
}

/// The first byte of every native session's id: far from what etcd's clients draw, and not that of ZooKeeper's.
pub const SESSION_TOP: i64 = 2 << 56;

/// Whether a lease can be a native session.
#[must_use]
pub fn is_session(id: LeaseId) -> bool {
    id.0 >> 56 == SESSION_TOP >> 56
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    /// Queues are granted in the order of their keys (K5): numbers must sort as they count.
    #[test]
    fn k5_members_sort_by_number() {
        let numbers = [1, 2, 255, 256, 65_535, 65_536, u64::from(u32::MAX), 1 << 40, u64::MAX];
        let keys: Vec<Key> = numbers.iter().map(|number| member(Kind::Lock, &name("a"), *number)).collect();
        assert!(keys.is_sorted());
        let range = members(Kind::Lock, &name("a"));
        assert!(keys.iter().all(|key| range.contains(key)));
        for other in [head(Kind::Lock, &name("a")), tally(Kind::Lock, &name("a")), member(Kind::Lock, &name("ab"), 1)] {
            assert!(!range.contains(&other), "{other:?}");
        }
        assert!(!range.contains(&member(Kind::Lock, &name("a\u{1}"), 1)));
    }

    proptest! {
        /// Who is told of a change must find in the key what the writer put there.
        #[test]
        fn a_key_says_what_it_was_made_of(text in "[^\0]{1,40}", number: u64, version: u64, kind in 0..Kind::ALL.len()) {
            let (kind, name) = (Kind::ALL[kind], name(&text));
            prop_assert_eq!(parse(&head(kind, &name)), Some((kind, name.clone(), Slot::Head)));
            prop_assert_eq!(parse(&tally(kind, &name)), Some((kind, name.clone(), Slot::Tally)));
            if kind != Kind::Rcu {
                let slot = Slot::Member { number: number.max(1), version: 0 };
                prop_assert_eq!(parse(&member(kind, &name, number.max(1))), Some((kind, name.clone(), slot)));
            }
            let (version, number) = (version.max(1), number.max(1));
            let slot = Slot::Member { number, version };
            prop_assert_eq!(parse(&reader(&name, version, number)), Some((Kind::Rcu, name, slot)));
        }

        /// Whatever bytes a key has, it is either one of ours, in its only spelling, or none.
        #[test]
        fn any_bytes_are_a_key_or_none(mut bytes in proptest::collection::vec(0u8..4, 0..12), kind in 0..Kind::ALL.len()) {
            bytes.splice(0..0, [Space::Lock as u8, Kind::ALL[kind] as u8, b'n']);
            let key = Key::from_stored(&bytes);
            for kind in Kind::ALL {
                for text in ["n", "n\u{1}", "m"] {
                    let is_within = members(kind, &name(text)).contains(&key);
                    prop_assert_eq!(is_member(kind, &name(text), &key), is_within);
                }
            }
            if let Some((kind, name, slot)) = parse(&key) {
                let again = match slot {
                    Slot::Head => head(kind, &name),
                    Slot::Tally => tally(kind, &name),
                    Slot::Member { number, version } if kind == Kind::Rcu => reader(&name, version, number),
                    Slot::Member { number, .. } => member(kind, &name, number),
                };
                prop_assert_eq!(again, key);
            }
        }
    }

    /// A million sessions with a lock each: the key of a place must not cost an allocation.
    #[test]
    fn the_place_of_a_short_name_fits_the_handle() {
        assert!(member(Kind::Lock, &name("lock-1234567"), 1 << 31).as_stored().len() <= 22);
    }
}
