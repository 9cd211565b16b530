//! Ranges by where they begin, and for each part of the tree how far its ranges reach: those that hold a key are found
//! without looking at the others, however many there are.
//!
//! A search tree whose halves differ in height by one at most (AVL). It is as deep as the logarithm of what it holds,
//! so recursion is bounded.

use std::cmp::Ordering;

use tidelock_model::{Key, KeyRange};

/// A value for each distinct range.
#[derive(Debug)]
pub(super) struct RangeTree<V>(Link<V>);

type Link<V> = Option<Box<Node<V>>>;

#[derive(Debug)]
struct Node<V> {
    range: KeyRange,
    value: V,
    /// Where the range ends that reaches furthest, here and below.
    reach: Key,
    height: u8,
    before: Link<V>,
    after: Link<V>,
}

impl<V> Default for RangeTree<V> {
    fn default() -> RangeTree<V> {
        RangeTree(None)
    }
}

fn height<V>(link: &Link<V>) -> u8 {
    link.as_ref().map_or(0, |node| node.height)
}

impl<V> Node<V> {
    /// Looks again at what is below.
    fn update(&mut self) {
        self.height = 1 + height(&self.before).max(height(&self.after));
        let below = [&self.before, &self.after].into_iter().flatten().map(|node| &node.reach);
        self.reach = below.fold(&self.range.end, |reach, other| reach.max(other)).clone();
    }
}

/// Lets the half that is too high by two lend to the other.
fn balanced<V>(mut node: Box<Node<V>>) -> Box<Node<V>> {
    let (before, after) = (height(&node.before), height(&node.after));
    if before > after + 1 {
        let inner_is_higher = node.before.as_ref().is_some_and(|low| height(&low.after) > height(&low.before));
        if inner_is_higher {
            node.before = node.before.take().map(turn_left);
        }
        turn_right(node)
    } else if after > before + 1 {
        let inner_is_higher = node.after.as_ref().is_some_and(|high| height(&high.before) > height(&high.after));
        if inner_is_higher {
            node.after = node.after.take().map(turn_right);
        }
        turn_left(node)
    } else {
        node.update();
        node
    }
}

/// The one before comes up in place of its parent.
fn turn_right<V>(mut node: Box<Node<V>>) -> Box<Node<V>> {
    let Some(mut top) = node.before.take() else { return node };
    node.before = top.after.take();
    node.update();
    top.after = Some(node);
    top.update();
    top
}

/// The one after comes up in place of its parent.
fn turn_left<V>(mut node: Box<Node<V>>) -> Box<Node<V>> {
    let Some(mut top) = node.after.take() else { return node };
    node.after = top.before.take();
    node.update();
    top.before = Some(node);
    top.update();
    top
}

fn insert<V>(link: Link<V>, range: &KeyRange, value: V) -> Box<Node<V>> {
    let Some(mut node) = link else {
        let (range, reach) = (range.clone(), range.end.clone());
        return Box::new(Node { range, value, reach, height: 1, before: None, after: None });
    };
    match range.cmp(&node.range) {
        Ordering::Less => node.before = Some(insert(node.before.take(), range, value)),
        Ordering::Greater => node.after = Some(insert(node.after.take(), range, value)),
        Ordering::Equal => node.value = value,
    }
    balanced(node)
}

fn remove<V>(link: Link<V>, range: &KeyRange) -> Link<V> {
    let mut node = link?;
    match range.cmp(&node.range) {
        Ordering::Less => node.before = remove(node.before.take(), range),
        Ordering::Greater => node.after = remove(node.after.take(), range),
        Ordering::Equal => {
            let Some(after) = node.after.take() else { return node.before };
            let (mut next, rest) = take_first(after);
            next.before = node.before.take();
            next.after = rest;
            return Some(balanced(next));
        }
    }
    Some(balanced(node))
}

/// The first below a node, and what is left without it.
fn take_first<V>(mut node: Box<Node<V>>) -> (Box<Node<V>>, Link<V>) {
    match node.before.take() {
        None => {
            let rest = node.after.take();
            (node, rest)
        }
        Some(before) => {
            let (first, rest) = take_first(before);
            node.before = rest;
            (first, Some(balanced(node)))
        }
    }
}

impl<V> RangeTree<V> {
    /// The value of a range.
    pub(super) fn get_mut(&mut self, range: &KeyRange) -> Option<&mut V> {
        let mut link = &mut self.0;
        loop {
            let node = link.as_mut()?;
            link = match range.cmp(&node.range) {
                Ordering::Less => &mut node.before,
                Ordering::Greater => &mut node.after,
                Ordering::Equal => return Some(&mut node.value),
            };
        }
    }

    /// The value of a range, which gets a new one if it has none.
    pub(super) fn get_or_insert_with(&mut self, range: &KeyRange, new: impl FnOnce() -> V) -> &mut V {
        if self.get_mut(range).is_none() {
            self.0 = Some(insert(self.0.take(), range, new()));
        }
        self.get_mut(range).expect("it was there, or was just put there")
    }

    /// Forgets a range.
    pub(super) fn remove(&mut self, range: &KeyRange) {
        self.0 = remove(self.0.take(), range);
    }

    /// Calls `tell` for every range that holds `key`, in order.
    pub(super) fn each_holding<'a>(&'a self, key: &Key, tell: &mut impl FnMut(&'a V)) {
        fn look<'a, V>(link: &'a Link<V>, key: &Key, tell: &mut impl FnMut(&'a V)) {
            let Some(node) = link.as_ref().filter(|node| *key < node.reach) else { return };
            look(&node.before, key, tell);
            if node.range.start <= *key {
                if *key < node.range.end {
                    tell(&node.value);
                }
                look(&node.after, key, tell);
            }
        }
        look(&self.0, key, tell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use tidelock_model::Space;

    fn key(number: u16) -> Key {
        Key::new(Space::User, &number.to_be_bytes())
    }

    /// The height of a tree, after making sure that nothing in it is out of place.
    fn checked(link: &Link<u16>) -> u8 {
        let Some(node) = link else { return 0 };
        let (before, after) = (checked(&node.before), checked(&node.after));
        assert!(before.abs_diff(after) <= 1, "one half is deeper by more than one");
        assert_eq!(node.height, 1 + before.max(after));
        let below = [&node.before, &node.after].into_iter().flatten().map(|node| node.reach.clone()).max();
        assert_eq!(node.reach, below.into_iter().fold(node.range.end.clone(), Key::max));
        node.height
    }

    proptest! {
        /// W3: a watcher whose range is lost in the tree misses events, and one that stays there after it was closed
        /// is looked for in vain. Compared with a list of all ranges, while they come and go.
        #[test]
        fn w3_ranges_that_come_and_go_are_found_by_exactly_the_keys_they_hold(
            steps in proptest::collection::vec((any::<bool>(), 0u16..40, 0u16..40), 0..200), asked in 0u16..40
        ) {
            let (mut tree, mut list) = (RangeTree::default(), BTreeMap::new());
            for (number, (adds, start, end)) in (0..).zip(steps) {
                let range = KeyRange { start: key(start), end: key(end) };
                if adds {
                    tree.get_or_insert_with(&range, || number);
                    list.entry(range).or_insert(number);
                } else {
                    tree.remove(&range);
                    list.remove(&range);
                }
                checked(&tree.0);
            }
            let mut found = Vec::new();
            tree.each_holding(&key(asked), &mut |value| found.push(*value));
            let holding = |(range, value): (&KeyRange, &u16)| range.contains(&key(asked)).then_some(*value);
            prop_assert_eq!(found, list.iter().filter_map(holding).collect::<Vec<_>>());
        }
    }

    /// Ranges that are added in order are the common case, and the one in which a tree without balance is a list.
    #[test]
    fn many_ranges_in_order_make_a_shallow_tree() {
        let mut tree = RangeTree::default();
        for number in 0..10_000 {
            tree.get_or_insert_with(&KeyRange { start: key(number), end: key(number + 2) }, || number);
        }
        assert!(checked(&tree.0) <= 16);
        let mut found = Vec::new();
        tree.each_holding(&key(5_000), &mut |value| found.push(*value));
        assert_eq!(found, [4_999, 5_000]);
    }
}
