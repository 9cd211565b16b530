//! Sets of keys made of ranges: what a user may touch, put together from many permissions.

use crate::{Key, KeyRange};

/// A union of ranges, kept as disjoint ones that do not touch, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intervals(Vec<KeyRange>);

impl Intervals {
    /// Adds a range.
    pub fn add(&mut self, range: &KeyRange) {
        if range.is_empty() {
            return;
        }
        let mut merged = range.clone();
        // Those that end before it begins stay; touching counts as one range.
        let from = self.0.partition_point(|one| one.end < merged.start);
        let to = self.0.partition_point(|one| one.start <= merged.end);
        for one in &self.0[from..to] {
            merged.start = merged.start.min(one.start.clone());
            merged.end = merged.end.max(one.end.clone());
        }
        self.0.splice(from..to, [merged]);
    }

    /// Whether all of a range is in the set. A range without keys is in none, as with etcd.
    #[must_use]
    pub fn cover(&self, range: &KeyRange) -> bool {
        let after = self.0.partition_point(|one| one.start <= range.start);
        !range.is_empty() && after > 0 && range.end <= self.0[after - 1].end
    }

    /// Whether a key is in the set.
    #[must_use]
    pub fn cover_key(&self, key: &Key) -> bool {
        let after = self.0.partition_point(|one| one.start <= *key);
        after > 0 && *key < self.0[after - 1].end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Space;
    use proptest::prelude::*;

    fn key(number: u8) -> Key {
        Key::new(Space::User, &[number])
    }
    fn range((start, end): (u8, u8)) -> KeyRange {
        KeyRange { start: key(start), end: key(end) }
    }

    proptest! {
        /// A user with many small permissions may do exactly what they add up to, not a key more or less.
        #[test]
        fn a_union_covers_what_its_parts_add_up_to(
            parts in proptest::collection::vec((0u8..24, 0u8..24), 0..12),
            asked in (0u8..24, 0u8..24),
        ) {
            let mut set = Intervals::default();
            parts.iter().for_each(|part| set.add(&range(*part)));
            // Names between two numbers belong to the lower one, so numbers tell everything.
            let holds = |number: u8| parts.iter().any(|(start, end)| *start <= number && number < *end);
            for number in 0..24 {
                prop_assert_eq!(set.cover_key(&key(number)), holds(number));
            }
            if asked.0 < asked.1 {
                prop_assert_eq!(set.cover(&range(asked)), (asked.0..asked.1).all(holds));
            }
            prop_assert!(set.0.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
