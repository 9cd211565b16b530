//! Who is interested in a key.
//!
//! Almost every watch is for one key or for a prefix, and many are for the same: keys are looked up,
//! prefixes are looked up once per distinct length, and ranges that are neither in a tree that knows where
//! they end (`range_tree.rs`). Watchers of the same range are one group, which is told as one.

use std::collections::{BTreeMap, BTreeSet};

use tidelock_model::{Key, KeyRange, WatcherId};

use super::SubscriberId;
use super::range_tree::RangeTree;

pub(super) type Who = (SubscriberId, WatcherId);

/// All watchers of one range.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// Ascending: those of one subscription follow each other.
    pub(super) who: BTreeSet<Who>,
    /// Names it. Never given to another.
    pub(super) number: u64,
}

#[derive(Default)]
pub(super) struct Interests {
    keys: BTreeMap<Key, Group>,
    /// By length, then by the prefix itself.
    prefixes: BTreeMap<usize, BTreeMap<Key, Group>>,
    ranges: RangeTree<Group>,
    groups: u64,
}

/// The prefix that `range` stands for, if it stands for one.
fn as_prefix(range: &KeyRange) -> Option<&Key> {
    let (start, end) = (range.start.as_stored(), range.end.as_stored());
    let cut = start.iter().rposition(|byte| *byte != 0xff)?;
    let ends_after = end.len() == cut + 1 && end[..cut] == start[..cut] && end[cut] == start[cut] + 1;
    ends_after.then_some(&range.start)
}

impl Interests {
    pub(super) fn add(&mut self, range: &KeyRange, who: Who) {
        self.groups += 1;
        let new = || Group { number: self.groups, ..Group::default() };
        let group = if let Some(key) = range.as_single() {
            self.keys.entry(key.clone()).or_insert_with(new)
        } else if let Some(prefix) = as_prefix(range) {
            let same_length = self.prefixes.entry(prefix.as_stored().len()).or_default();
            same_length.entry(prefix.clone()).or_insert_with(new)
        } else {
            self.ranges.get_or_insert_with(range, new)
        };
        group.who.insert(who);
    }

    pub(super) fn remove(&mut self, range: &KeyRange, who: Who) {
        fn remove_from(map: &mut BTreeMap<Key, Group>, key: &Key, who: Who) {
            if let Some(group) = map.get_mut(key) {
                group.who.remove(&who);
                if group.who.is_empty() {
                    map.remove(key);
                }
            }
        }
        if let Some(key) = range.as_single() {
            remove_from(&mut self.keys, key, who);
        } else if let Some(prefix) = as_prefix(range) {
            let length = prefix.as_stored().len();
            if let Some(same_length) = self.prefixes.get_mut(&length) {
                remove_from(same_length, prefix, who);
                if same_length.is_empty() {
                    self.prefixes.remove(&length);
                }
            }
        } else if let Some(group) = self.ranges.get_mut(range) {
            group.who.remove(&who);
            if group.who.is_empty() {
                self.ranges.remove(range);
            }
        }
    }

    /// Calls `tell` for every group that is interested in `key`, each once.
    pub(super) fn each_matching<'a>(&'a self, key: &Key, mut tell: impl FnMut(&'a Group)) {
        if let Some(group) = self.keys.get(key) {
            tell(group);
        }
        let stored = key.as_stored();
        for (length, same_length) in self.prefixes.range(..=stored.len()) {
            if let Some(group) = same_length.get(&Key::from_stored(&stored[..*length])) {
                tell(group);
            }
        }
        self.ranges.each_holding(key, &mut tell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidelock_model::Space;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'b'), Just(0u8), Just(0xffu8)], 0..4)
    }
    fn range() -> impl Strategy<Value = KeyRange> {
        prop_oneof![
            bytes().prop_map(|name| KeyRange::single(Key::new(Space::User, &name))),
            bytes().prop_map(|prefix| KeyRange::prefix(Space::User, &prefix)),
            (bytes(), bytes()).prop_map(|(start, end)| KeyRange {
                start: Key::new(Space::User, &start),
                end: Key::new(Space::User, &end)
            }),
            bytes().prop_map(|start| KeyRange { start: Key::new(Space::User, &start), end: Key::end_of(Space::User) }),
        ]
    }

    proptest! {
        /// W3: whatever the shape of the range, exactly the keys inside it are reported.
        #[test]
        fn w3_exactly_the_watchers_whose_range_holds_the_key_are_told(
            ranges in proptest::collection::vec(range(), 0..20), removed in 0..20usize, name in bytes()
        ) {
            let mut interests = Interests::default();
            for (id, range) in (0..).zip(&ranges) {
                interests.add(range, (id, WatcherId(0)));
            }
            for (id, range) in (0..).zip(&ranges).take(removed) {
                interests.remove(range, (id, WatcherId(0)));
            }
            let key = Key::new(Space::User, &name);
            let mut told = Vec::new();
            interests.each_matching(&key, |group| told.extend(group.who.iter().map(|who| who.0)));
            told.sort_unstable();
            let expected: Vec<u64> =
                (0..).zip(&ranges).skip(removed).filter(|(_, range)| range.contains(&key)).map(|(id, _)| id).collect();
            prop_assert_eq!(told, expected);
        }
    }
}
