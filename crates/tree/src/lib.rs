//! An ordered set in memory: a B+tree that changes in place and counts what it holds.
//!
//! The same item type is kept in several orders, so the order is a type parameter ([`Order`]) and
//! the tree compares items with a *probe*: a cheap, borrowed description of a place in the order.
//! Branches hold *pivots*, owned copies of just the ordered part of an item, so that a removed item
//! is freed at once and not kept alive by a branch.
//!
//! Invariants (checked by `Tree::check` in the tests):
//! - items ascend strictly; a pivot is above everything left of it and not above anything right of it;
//! - all leaves are at the same depth, no node but an empty root is empty, every count is exact;
//! - no node holds more than [`NODE_MAX`] elements (a leaf [`Order::LEAF_MAX`]), nor much spare room: see [`GROWTH`].
//!
//! Appending leaves full nodes behind, at the far right and, for clients that each load a run of keys, wherever the run
//! is: so a sequential load wastes nothing. Removal frees empty nodes and merges small neighbours. No copy-on-write: readers hold a lock for a page.

mod run;

use std::cmp::Ordering;
use std::mem;
use std::slice;

use run::{Items, Pivots, Run};

/// Most items in a leaf and children in a branch. 63 items of 32 bytes are 2 KiB: shifting them costs
/// less than the cache misses of one more level.
pub const NODE_MAX: usize = 63;

/// Nodes grow by this many elements at a time instead of doubling: spare room is what the memory budget per key is lost to.
/// They have room for one less than a multiple of it ([`room_beyond`]). Only the last leaf of all has room for as many as it
/// may hold: what comes in order fills it, and blocks that are outgrown one after the other leave holes that others do not
/// fit into.
const GROWTH: usize = 8;

/// A node smaller than this is merged with a neighbour if both fit in [`merged_max`]; the gap between
/// that and the most it may hold keeps a merge from being undone by the next insert.
const fn merge_below(most: usize) -> usize {
    most / 4
}
const fn merged_max(most: usize) -> usize {
    most * 3 / 4
}

/// How a tree sorts its items.
pub trait Order {
    /// Most items in a leaf. Leaves of trees that live and die apart should differ in size: an allocator keeps blocks of
    /// one size together, and what one tree frees between the leaves of another stays with the process.
    const LEAF_MAX: usize = NODE_MAX;

    /// What the tree holds.
    type Item;
    /// The ordered part of an item, owned.
    type Pivot;
    /// A place in the order, borrowed.
    type Probe<'a>: Copy;

    /// The item's place.
    fn probe(item: &Self::Item) -> Self::Probe<'_>;
    /// The item's place, owned.
    fn pivot(item: &Self::Item) -> Self::Pivot;
    /// How the item's place relates to `probe`.
    fn compare(item: &Self::Item, probe: Self::Probe<'_>) -> Ordering;
    /// How the pivot's place relates to `probe`.
    fn compare_pivot(pivot: &Self::Pivot, probe: Self::Probe<'_>) -> Ordering;

    /// Up to so many of the bytes that sort an item lie in the item itself.
    const SHORT_BYTES: usize = usize::MAX;

    /// The bytes of a place, if that is what sorts.
    fn probe_bytes<'a>(_probe: Self::Probe<'a>) -> &'a [u8] {
        &[]
    }
    /// The same of an item.
    fn item_bytes(_item: &Self::Item) -> &[u8] {
        &[]
    }
    /// The same of a pivot.
    fn pivot_bytes(_pivot: &Self::Pivot) -> &[u8] {
        &[]
    }
}

enum Node<O: Order> {
    Leaf(Run<Items<O>>),
    Branch(Box<Branch<O>>),
}

/// `pivots[i]` separates `children[i]` from `children[i + 1]`.
struct Branch<O: Order> {
    pivots: Run<Pivots<O>>,
    children: Vec<Child<O>>,
}

struct Child<O: Order> {
    /// Items below.
    count: usize,
    node: Node<O>,
}

/// An ordered set of items.
pub struct Tree<O: Order> {
    root: Node<O>,
    len: usize,
}

enum Inserted<O: Order> {
    Replaced(O::Item),
    Added,
    /// Added, and the node was too full: the pivot and everything from it on moved to a new node.
    Split(O::Pivot, Node<O>),
}

impl<O: Order> Default for Tree<O> {
    fn default() -> Tree<O> {
        Tree::new()
    }
}

impl<O: Order> Tree<O> {
    /// Without any item.
    #[must_use]
    pub fn new() -> Tree<O> {
        Tree { root: Node::Leaf(Run::new()), len: 0 }
    }

    /// How many items there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The item at `probe`.
    pub fn get(&self, probe: O::Probe<'_>) -> Option<&O::Item> {
        let items = self.root.leaf_for(probe);
        items.find(probe).ok().map(|at| &items[at])
    }

    /// The item at `probe`, to be changed in what does not sort it.
    pub fn get_mut(&mut self, probe: O::Probe<'_>) -> Option<&mut O::Item> {
        let mut node = &mut self.root;
        loop {
            match node {
                Node::Leaf(items) => {
                    let at = items.find(probe).ok()?;
                    return items.get_mut(at);
                }
                Node::Branch(branch) => {
                    let at = branch.child_for(probe);
                    node = &mut branch.children[at].node;
                }
            }
        }
    }

    /// The greatest item before `probe`.
    pub fn predecessor(&self, probe: O::Probe<'_>) -> Option<&O::Item> {
        self.root.predecessor(probe)
    }

    /// How many items come before `probe`.
    pub fn rank(&self, probe: O::Probe<'_>) -> usize {
        let mut before = 0;
        let mut node = &self.root;
        loop {
            match node {
                Node::Leaf(items) => {
                    steps::add(items.len());
                    return before + items.count_before(probe);
                }
                Node::Branch(branch) => {
                    steps::add(branch.children.len());
                    let at = branch.child_for(probe);
                    before += branch.children[..at].iter().map(|child| child.count).sum::<usize>();
                    node = &branch.children[at].node;
                }
            }
        }
    }

    /// The item that so many come before.
    pub fn nth(&self, mut before: usize) -> Option<&O::Item> {
        let mut node = &self.root;
        loop {
            match node {
                Node::Leaf(items) => {
                    steps::add(1);
                    return items.get(before);
                }
                Node::Branch(branch) => {
                    steps::add(branch.children.len());
                    let holds_it = |child: &&Child<O>| {
                        let is_within = before < child.count;
                        before -= if is_within { 0 } else { child.count };
                        is_within
                    };
                    node = &branch.children.iter().find(holds_it)?.node;
                }
            }
        }
    }

    /// How many items are at or after `start` and before `end`.
    pub fn count_range(&self, start: O::Probe<'_>, end: O::Probe<'_>) -> usize {
        self.rank(end).saturating_sub(self.rank(start))
    }

    /// The items at and after `probe`, in order.
    pub fn iter_from(&self, probe: O::Probe<'_>) -> Iter<'_, O> {
        let mut iter = Iter { leaf: [].iter(), branches: Vec::new() };
        let mut node = &self.root;
        loop {
            match node {
                Node::Leaf(items) => {
                    let at = items.count_before(probe);
                    iter.leaf = items[at..].iter();
                    return iter;
                }
                Node::Branch(branch) => {
                    let at = branch.child_for(probe);
                    iter.branches.push(branch.children[at + 1..].iter());
                    node = &branch.children[at].node;
                }
            }
        }
    }

    /// Adds an item at `probe`, which is its own place; returns the one that was there.
    pub fn insert(&mut self, probe: O::Probe<'_>, item: O::Item) -> Option<O::Item> {
        debug_assert!(O::compare(&item, probe).is_eq(), "an item is put where it belongs");
        let inserted = self.root.insert(probe, item, true);
        self.settle_root(inserted)
    }

    /// Adds an item that comes after all others, without searching for its place.
    pub fn push_last(&mut self, item: O::Item) {
        let inserted = self.root.push_last(item);
        self.settle_root(inserted);
    }

    /// Removes the item at `probe`.
    pub fn remove(&mut self, probe: O::Probe<'_>) -> Option<O::Item> {
        let removed = self.root.remove(probe)?;
        self.shrink_root();
        Some(removed)
    }

    fn settle_root(&mut self, inserted: Inserted<O>) -> Option<O::Item> {
        match inserted {
            Inserted::Replaced(old) => return Some(old),
            Inserted::Added => {}
            Inserted::Split(pivot, right) => {
                let left = mem::replace(&mut self.root, Node::Leaf(Run::new()));
                let children = vec![Child::of(left), Child::of(right)];
                self.root = Node::Branch(Box::new(Branch { pivots: Run::of(vec![pivot]), children }));
            }
        }
        self.len += 1;
        None
    }

    fn shrink_root(&mut self) {
        self.len -= 1;
        while let Node::Branch(branch) = &mut self.root {
            if branch.children.len() > 1 {
                return;
            }
            self.root = branch.children.pop().map_or(Node::Leaf(Run::new()), |child| child.node);
        }
    }
}

impl<O: Order> Child<O> {
    fn of(node: Node<O>) -> Child<O> {
        Child { count: node.count(), node }
    }
}

impl<O: Order> Node<O> {
    /// Items below.
    fn count(&self) -> usize {
        match self {
            Node::Leaf(items) => items.len(),
            Node::Branch(branch) => branch.children.iter().map(|child| child.count).sum(),
        }
    }

    /// Elements in this node itself.
    fn width(&self) -> usize {
        match self {
            Node::Leaf(items) => items.len(),
            Node::Branch(branch) => branch.children.len(),
        }
    }

    fn leaf_for(&self, probe: O::Probe<'_>) -> &Run<Items<O>> {
        let mut node = self;
        loop {
            match node {
                Node::Leaf(items) => return items,
                Node::Branch(branch) => node = &branch.children[branch.child_for(probe)].node,
            }
        }
    }

    fn last(&self) -> Option<&O::Item> {
        let mut node = self;
        loop {
            match node {
                Node::Leaf(items) => return items.last(),
                Node::Branch(branch) => node = &branch.children.last()?.node,
            }
        }
    }

    fn predecessor(&self, probe: O::Probe<'_>) -> Option<&O::Item> {
        match self {
            Node::Leaf(items) => {
                let at = items.count_before(probe);
                items[..at].last()
            }
            Node::Branch(branch) => {
                let at = branch.child_for(probe);
                let inside = branch.children[at].node.predecessor(probe);
                inside.or_else(|| branch.children[..at].last()?.node.last())
            }
        }
    }

    /// `rightmost`: nothing in the tree is right of this node.
    fn insert(&mut self, probe: O::Probe<'_>, item: O::Item, rightmost: bool) -> Inserted<O> {
        match self {
            Node::Leaf(items) => match items.find(probe) {
                Ok(at) => Inserted::Replaced(items.replace(at, item)),
                Err(at) => add_to_leaf(items, at, item, rightmost),
            },
            Node::Branch(branch) => {
                let at = branch.child_for(probe);
                let rightmost = rightmost && at + 1 == branch.children.len();
                let Err(item) = branch.pass_on(at, probe, item) else { return Inserted::Added };
                let inserted = branch.children[at].node.insert(probe, item, rightmost);
                branch.settle_insert(at, inserted, rightmost)
            }
        }
    }

    fn push_last(&mut self, item: O::Item) -> Inserted<O> {
        match self {
            Node::Leaf(items) => {
                debug_assert!(items.last().is_none_or(|last| O::compare(last, O::probe(&item)).is_lt()));
                add_to_leaf(items, items.len(), item, true)
            }
            Node::Branch(branch) => {
                let at = branch.children.len() - 1;
                let inserted = branch.children[at].node.push_last(item);
                branch.settle_insert(at, inserted, true)
            }
        }
    }

    fn remove(&mut self, probe: O::Probe<'_>) -> Option<O::Item> {
        match self {
            Node::Leaf(items) => {
                let at = items.find(probe).ok()?;
                Some(items.remove(at))
            }
            Node::Branch(branch) => {
                let at = branch.child_for(probe);
                let removed = branch.children[at].node.remove(probe)?;
                branch.settle_remove(at);
                Some(removed)
            }
        }
    }
}

impl<O: Order> Branch<O> {
    /// Which child `probe` belongs to.
    fn child_for(&self, probe: O::Probe<'_>) -> usize {
        self.pivots.count_up_to(probe)
    }

    /// Puts an item that belongs behind everything in a full leaf in front of the next leaf, if that has room; gives it
    /// back otherwise. Without this, a run of keys that comes in from behind would leave a leaf for each.
    fn pass_on(&mut self, at: usize, probe: O::Probe<'_>, item: O::Item) -> Result<(), O::Item> {
        let [full, next, ..] = &mut self.children[at..] else { return Err(item) };
        let (Node::Leaf(full), Node::Leaf(items)) = (&full.node, &mut next.node) else { return Err(item) };
        let is_behind = |last: &O::Item| O::compare(last, probe).is_lt();
        if full.len() < O::LEAF_MAX || items.len() == O::LEAF_MAX || !full.last().is_some_and(is_behind) {
            return Err(item);
        }
        self.pivots.remove(at);
        self.pivots.insert(at, O::pivot(&item));
        items.insert(0, item);
        next.count += 1;
        Ok(())
    }

    fn settle_insert(&mut self, at: usize, inserted: Inserted<O>, rightmost: bool) -> Inserted<O> {
        let child = &mut self.children[at];
        match inserted {
            Inserted::Replaced(old) => Inserted::Replaced(old),
            Inserted::Added => {
                child.count += 1;
                Inserted::Added
            }
            Inserted::Split(pivot, right) => {
                child.count = child.node.count();
                self.add_child(at + 1, pivot, right, rightmost)
            }
        }
    }

    fn add_child(&mut self, at: usize, pivot: O::Pivot, node: Node<O>, rightmost: bool) -> Inserted<O> {
        self.pivots.insert(at - 1, pivot);
        place(&mut self.children, at, Child::of(node));
        if self.children.len() <= NODE_MAX {
            return Inserted::Added;
        }
        let cut = if rightmost { self.children.len() - 1 } else { self.children.len() / 2 };
        let right = Branch { children: split_off(&mut self.children, cut), pivots: self.pivots.split_off(cut) };
        // What a branch with too many children has at the cut separates the two now.
        let pivot = self.pivots.remove(cut - 1);
        Inserted::Split(pivot, Node::Branch(Box::new(right)))
    }

    fn settle_remove(&mut self, at: usize) {
        self.children[at].count -= 1;
        let width = |child: usize| self.children[child].node.width();
        if width(at) == 0 {
            take(&mut self.children, at);
            if !self.pivots.is_empty() {
                self.pivots.remove(at.saturating_sub(1));
            }
            return;
        }
        let most = match self.children[at].node {
            Node::Leaf(_) => O::LEAF_MAX,
            Node::Branch(_) => NODE_MAX,
        };
        if width(at) < merge_below(most) {
            if at + 1 < self.children.len() && width(at) + width(at + 1) <= merged_max(most) {
                self.merge(at);
            } else if at > 0 && width(at - 1) + width(at) <= merged_max(most) {
                self.merge(at - 1);
            }
        }
    }

    /// Moves the contents of the child after `left` into `left`.
    fn merge(&mut self, left: usize) {
        let right = take(&mut self.children, left + 1);
        let pivot = self.pivots.remove(left);
        let left = &mut self.children[left];
        left.count += right.count;
        match (&mut left.node, right.node) {
            (Node::Leaf(left), Node::Leaf(right)) => left.append(right),
            (Node::Branch(left), Node::Branch(right)) => {
                left.pivots.insert(left.children.len() - 1, pivot);
                left.pivots.append(right.pivots);
                append(&mut left.children, right.children);
            }
            _ => unreachable!("all leaves are at the same depth"),
        }
    }
}

fn add_to_leaf<O: Order>(items: &mut Run<Items<O>>, at: usize, item: O::Item, rightmost: bool) -> Inserted<O> {
    if items.len() < O::LEAF_MAX {
        items.insert(at, item);
        return Inserted::Added;
    }
    let mut right = Run::new();
    if at == items.len() {
        if rightmost {
            right.expect(O::LEAF_MAX);
        }
        right.insert(0, item);
    } else {
        // A run that goes on in front of others leaves full leaves behind, too: it is parted from them, or each of its leaves
        // would be left half full.
        let cut = if items.goes_on(at) { at } else { O::LEAF_MAX / 2 };
        right = items.split_off(cut);
        match at.checked_sub(items.len()) {
            Some(at) if at > 0 => right.insert(at, item),
            _ => items.insert(at, item),
        }
    }
    Inserted::Split(O::pivot(&right[0]), Node::Leaf(right))
}

/// Room for more than `len` elements: one less than a multiple of [`GROWTH`]. An allocator that is asked for an alignment takes
/// a few bytes more than the elements have; where these fill one of its sizes exactly, they would get the next, which is a
/// fifth larger.
const fn room_beyond(len: usize) -> usize {
    ((len + 1) / GROWTH + 1) * GROWTH - 1
}

fn place<T>(elements: &mut Vec<T>, at: usize, element: T) {
    if elements.len() == elements.capacity() {
        elements.reserve_exact(room_beyond(elements.len()) - elements.len());
    }
    elements.insert(at, element);
}

fn take<T>(elements: &mut Vec<T>, at: usize) -> T {
    let taken = elements.remove(at);
    if elements.capacity() - elements.len() > 2 * GROWTH {
        elements.shrink_to(room_beyond(elements.len() + GROWTH / 2));
    }
    taken
}

fn split_off<T>(elements: &mut Vec<T>, at: usize) -> Vec<T> {
    let room_for = |len: usize| len.checked_sub(1).map_or(0, room_beyond);
    let mut right = Vec::with_capacity(room_for(elements.len() - at));
    right.extend(elements.drain(at..));
    elements.shrink_to(room_for(at));
    right
}

fn append<T>(left: &mut Vec<T>, right: Vec<T>) {
    left.reserve_exact(right.len());
    left.extend(right);
}

/// Items of a tree in order.
pub struct Iter<'a, O: Order> {
    leaf: slice::Iter<'a, O::Item>,
    /// What is left of each branch above the leaf, the root's first.
    branches: Vec<slice::Iter<'a, Child<O>>>,
}

impl<'a, O: Order> Iter<'a, O> {
    fn descend(&mut self, mut node: &'a Node<O>) {
        loop {
            match node {
                Node::Leaf(items) => {
                    self.leaf = items.iter();
                    return;
                }
                Node::Branch(branch) => {
                    let mut children = branch.children.iter();
                    let Some(first) = children.next() else { return };
                    self.branches.push(children);
                    node = &first.node;
                }
            }
        }
    }
}

impl<'a, O: Order> Iterator for Iter<'a, O> {
    type Item = &'a O::Item;

    fn next(&mut self) -> Option<&'a O::Item> {
        loop {
            if let Some(item) = self.leaf.next() {
                steps::add(1);
                return Some(item);
            }
            let branch = self.branches.last_mut()?;
            match branch.next() {
                Some(child) => self.descend(&child.node),
                None => {
                    self.branches.pop();
                }
            }
        }
    }
}

/// Counts how many elements were looked at, where debug assertions are on, as they are in tests: what must take the
/// logarithm of a size can then be held to it. Elsewhere it counts none.
pub mod steps {
    thread_local! {
        static TAKEN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    /// At most so many elements are looked at.
    #[inline(always)]
    pub(super) fn add(elements: usize) {
        if cfg!(debug_assertions) {
            TAKEN.set(TAKEN.get() + elements);
        }
    }

    /// Those of `work`, on this thread.
    pub fn of<T>(work: impl FnOnce() -> T) -> (usize, T) {
        let before = TAKEN.get();
        let done = work();
        (TAKEN.get() - before, done)
    }
}

#[cfg(test)]
mod tests;
