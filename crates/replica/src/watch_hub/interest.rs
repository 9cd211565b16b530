//! Who is interested in a key.
//!
//! Almost every watch is for one key or for a prefix, and many are for the same: keys are looked up,
//! prefixes are looked up once per distinct length, and only ranges that are neither are tested one by
//! one.

use std::collections::{BTreeMap, BTreeSet};

use tidelock_model::{Key, KeyRange, WatcherId};

use super::SubscriberId;

pub(super) type Who = (SubscriberId, WatcherId);

#[derive(Default)]
pub(super) struct Interests {
    keys: BTreeMap<Key, BTreeSet<Who>>,
    /// By length, then by the prefix itself.
    prefixes: BTreeMap<usize, BTreeMap<Key, BTreeSet<Who>>>,
    ranges: BTreeMap<KeyRange, BTreeSet<Who>>,
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
        if let Some(key) = range.as_single() {
            self.keys.entry(key.clone()).or_default().insert(who);
        } else if let Some(prefix) = as_prefix(range) {
            let same_length = self.prefixes.entry(prefix.as_stored().len()).or_default();
            same_length.entry(prefix.clone()).or_default().insert(who);
        } else {
            self.ranges.entry(range.clone()).or_default().insert(who);
        }
    }

    pub(super) fn remove(&mut self, range: &KeyRange, who: Who) {
        fn remove_from<K: Ord>(map: &mut BTreeMap<K, BTreeSet<Who>>, key: &K, who: Who) {
            if let Some(all) = map.get_mut(key) {
                all.remove(&who);
                if all.is_empty() {
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
        } else {
            remove_from(&mut self.ranges, range, who);
        }
    }

    /// Calls `tell` for everyone interested in `key`, each once.
    pub(super) fn each_matching(&self, key: &Key, mut tell: impl FnMut(Who)) {
        if let Some(all) = self.keys.get(key) {
            all.iter().copied().for_each(&mut tell);
        }
        let stored = key.as_stored();
        for (length, same_length) in self.prefixes.range(..=stored.len()) {
            if let Some(all) = same_length.get(&Key::from_stored(&stored[..*length])) {
                all.iter().copied().for_each(&mut tell);
            }
        }
        for (range, all) in &self.ranges {
            if range.contains(key) {
                all.iter().copied().for_each(&mut tell);
            }
        }
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
            interests.each_matching(&key, |who| told.push(who.0));
            told.sort_unstable();
            let expected: Vec<u64> =
                (0..).zip(&ranges).skip(removed).filter(|(_, range)| range.contains(&key)).map(|(id, _)| id).collect();
            prop_assert_eq!(told, expected);
        }
    }
}
