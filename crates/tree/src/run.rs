//! The elements of one node in order, and where a place is among them.
//!
//! Elements with long keys are searched by their *heads*: the bytes of each that follow what all of them begin with,
//! four of an item and sixteen of a pivot. Neighbours in a large tree begin alike, often for longer than a key keeps in
//! its handle, so that comparing the elements themselves would fetch the bytes of every one from a place of its own in
//! memory; the heads of a full leaf are four cache lines, one after the other. Only elements whose heads are equal are
//! compared. Items with short keys lie in the leaf with all they are sorted by and are as quick to search: a leaf that
//! has no other has no heads. A branch has them always, and knows what its pivots share: every search passes it.
//!
//! ```text
//! elements  /jobs/1017  /jobs/1018  /jobs/1101  /jobs/12      shared = 7: all begin with "/jobs/1"
//! heads     "017"       "018"       "101"       "2"           as numbers, filled up with zeros
//! ```
//!
//! Invariant: with heads, all elements begin with the same `shared` bytes; it may be more that they share.

use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ops::{Deref, Range};

use super::{Order, append, place, split_off, take};

/// What a run is of: the items of a leaf or the pivots of a branch.
pub(super) trait Kind {
    type Order: Order;
    type Element;
    /// Bytes as a number that sorts as they do.
    type Head: Copy + Ord;
    /// The bytes from `shared` on; zeros where there are none.
    fn head(bytes: &[u8], shared: usize) -> Self::Head;
    /// Elements with more bytes than these are searched by heads.
    const SHORT_BYTES: usize;
    /// What is known of the bytes that all begin with.
    type Prefix: Prefix;
    fn compare(element: &Self::Element, probe: <Self::Order as Order>::Probe<'_>) -> Ordering;
    fn bytes(element: &Self::Element) -> &[u8];
}

pub(super) struct Items<O>(PhantomData<O>);
impl<O: Order> Kind for Items<O> {
    type Order = O;
    type Element = O::Item;
    type Head = u32;
    const SHORT_BYTES: usize = O::SHORT_BYTES;
    /// It is read only where an item is missing, beside items that are read then, too.
    type Prefix = ();
    #[inline]
    fn head(bytes: &[u8], shared: usize) -> u32 {
        u32::from_be_bytes(bytes_from(bytes, shared))
    }
    #[inline]
    fn compare(item: &O::Item, probe: O::Probe<'_>) -> Ordering {
        O::compare(item, probe)
    }
    #[inline]
    fn bytes(item: &O::Item) -> &[u8] {
        O::item_bytes(item)
    }
}

pub(super) struct Pivots<O>(PhantomData<O>);
impl<O: Order> Kind for Pivots<O> {
    type Order = O;
    type Element = O::Pivot;
    /// There are few of them, and what lies below a branch begins less alike than what lies in a leaf.
    type Head = u128;
    /// A head is compared sooner than even a short key.
    const SHORT_BYTES: usize = if O::SHORT_BYTES == usize::MAX { usize::MAX } else { 0 };
    type Prefix = [u8; 40];
    #[inline]
    fn head(bytes: &[u8], shared: usize) -> u128 {
        u128::from_be_bytes(bytes_from(bytes, shared))
    }
    #[inline]
    fn compare(pivot: &O::Pivot, probe: O::Probe<'_>) -> Ordering {
        O::compare_pivot(pivot, probe)
    }
    #[inline]
    fn bytes(pivot: &O::Pivot) -> &[u8] {
        O::pivot_bytes(pivot)
    }
}

/// The bytes that all elements of a run begin with, or nothing of them.
pub(super) trait Prefix: Copy {
    /// So many bytes at most count as shared.
    const MAX: usize;
    const NONE: Self;
    fn of(bytes: &[u8]) -> Self;
    /// The bytes, of which there are so many.
    fn get(&self, shared: usize) -> Option<&[u8]>;
}

impl Prefix for () {
    const MAX: usize = u16::MAX as usize;
    const NONE: () = ();
    fn of(_bytes: &[u8]) {}
    #[inline]
    fn get(&self, _shared: usize) -> Option<&[u8]> {
        None
    }
}

impl<const LEN: usize> Prefix for [u8; LEN] {
    const MAX: usize = LEN;
    const NONE: [u8; LEN] = [0; LEN];
    fn of(bytes: &[u8]) -> [u8; LEN] {
        bytes_from(bytes, 0)
    }
    #[inline]
    fn get(&self, shared: usize) -> Option<&[u8]> {
        self.as_slice().get(..shared)
    }
}

pub(super) struct Run<K: Kind> {
    elements: Vec<K::Element>,
    heads: Vec<K::Head>,
    has_heads: bool,
    /// How many first bytes all elements have in common, at least.
    shared: u16,
    /// The place behind the element that came last, as far as is known.
    behind_newest: u16,
    prefix: K::Prefix,
}

fn is_long<K: Kind>(element: &K::Element) -> bool {
    K::bytes(element).len() > K::SHORT_BYTES
}

impl<K: Kind> Deref for Run<K> {
    type Target = [K::Element];
    #[inline]
    fn deref(&self) -> &[K::Element] {
        &self.elements
    }
}

impl<K: Kind> Run<K> {
    pub(super) fn new() -> Run<K> {
        Run::of(Vec::new())
    }

    /// A run of elements that are in order.
    pub(super) fn of(elements: Vec<K::Element>) -> Run<K> {
        let mut run =
            Run { elements, heads: Vec::new(), has_heads: false, shared: 0, behind_newest: 0, prefix: K::Prefix::NONE };
        if run.elements.iter().any(is_long::<K>) {
            run.make_heads();
        }
        run
    }

    /// Makes room for so many elements, which are to come.
    pub(super) fn expect(&mut self, count: usize) {
        self.elements.reserve_exact(count);
    }

    /// How many elements are before `probe`.
    #[inline]
    pub(super) fn count_before(&self, probe: <K::Order as Order>::Probe<'_>) -> usize {
        self.count(probe, Ordering::is_lt)
    }

    /// How many elements are before `probe` or at it.
    #[inline]
    pub(super) fn count_up_to(&self, probe: <K::Order as Order>::Probe<'_>) -> usize {
        self.count(probe, Ordering::is_le)
    }

    /// Where `probe` is, or where it would be.
    #[inline]
    pub(super) fn find(&self, probe: <K::Order as Order>::Probe<'_>) -> Result<usize, usize> {
        let alike = self.alike(probe);
        let at = alike.start + self.count_alike(&alike, probe, Ordering::is_lt);
        if alike.contains(&at) && K::compare(&self.elements[at], probe).is_eq() {
            return Ok(at);
        }
        Err(self.beyond_all(probe, alike.start).unwrap_or(at))
    }

    #[inline]
    fn count(&self, probe: <K::Order as Order>::Probe<'_>, is_before: impl Fn(Ordering) -> bool) -> usize {
        let alike = self.alike(probe);
        let at = alike.start + self.count_alike(&alike, probe, is_before);
        self.beyond_all(probe, alike.start).unwrap_or(at)
    }

    /// Which elements have the head of `probe`: it is among them or next to them, if it begins like all.
    #[inline]
    fn alike(&self, probe: <K::Order as Order>::Probe<'_>) -> Range<usize> {
        if !self.has_heads {
            return 0..self.elements.len();
        }
        let head = K::head(K::Order::probe_bytes(probe), self.shared());
        let before = count_first(&self.heads, |one| *one < head);
        before..before + self.heads[before..].iter().take_while(|one| **one == head).count()
    }

    #[inline]
    fn count_alike(
        &self,
        alike: &Range<usize>,
        probe: <K::Order as Order>::Probe<'_>,
        is_before: impl Fn(Ordering) -> bool,
    ) -> usize {
        let alike = &self.elements[alike.clone()];
        let is_before = |element: &K::Element| is_before(K::compare(element, probe));
        match alike {
            _ if !self.has_heads => count_first(alike, is_before),
            // What is new mostly comes last among what is alike.
            [_, .., last] if is_before(last) => alike.len(),
            // Each is looked at in a place of its own: the fewest are best.
            _ => alike.partition_point(is_before),
        }
    }

    /// Where `probe` is if it does not begin like the elements: before or behind all of them.
    #[inline]
    fn beyond_all(&self, probe: <K::Order as Order>::Probe<'_>, near: usize) -> Option<usize> {
        if !self.has_heads {
            return None;
        }
        let probe = K::Order::probe_bytes(probe);
        let shared = match self.prefix.get(self.shared()) {
            Some(shared) => shared,
            None => &K::bytes(self.elements.get(near).or_else(|| self.elements.last())?)[..self.shared()],
        };
        let is_apart = !probe.starts_with(shared);
        is_apart.then(|| if probe < shared { 0 } else { self.elements.len() })
    }

    pub(super) fn insert(&mut self, at: usize, element: K::Element) {
        if !self.has_heads && is_long::<K>(&element) {
            self.make_heads();
        }
        if self.has_heads {
            self.share_with(&element, at);
            let head = K::head(K::bytes(&element), self.shared());
            place(&mut self.heads, at, head);
        }
        place(&mut self.elements, at, element);
        // A node has fewer elements than a u16 counts.
        self.behind_newest = at as u16 + 1;
    }

    /// Whether what is to come to `at` goes on where the last one left off.
    pub(super) fn goes_on(&self, at: usize) -> bool {
        at > 0 && at == usize::from(self.behind_newest)
    }

    pub(super) fn remove(&mut self, at: usize) -> K::Element {
        self.behind_newest -= u16::from(at < usize::from(self.behind_newest));
        if self.has_heads {
            take(&mut self.heads, at);
        }
        take(&mut self.elements, at)
    }

    /// An element, to be changed in what does not sort it.
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut K::Element> {
        self.elements.get_mut(at)
    }

    /// Puts an element in the place of one that is sorted just like it.
    pub(super) fn replace(&mut self, at: usize, element: K::Element) -> K::Element {
        std::mem::replace(&mut self.elements[at], element)
    }

    /// Everything from `at` on, which must not be all.
    pub(super) fn split_off(&mut self, at: usize) -> Run<K> {
        let mut right = Run::of(split_off(&mut self.elements, at));
        if let Some(newest @ 1..) = self.behind_newest.checked_sub(at as u16) {
            right.behind_newest = newest;
            self.behind_newest = 0;
        }
        if self.has_heads {
            split_off(&mut self.heads, at);
            let shared = self.shared_by_all();
            if shared > self.shared() {
                self.share(shared, None);
            }
        }
        right
    }

    pub(super) fn append(&mut self, right: Run<K>) {
        if right.has_heads && !self.has_heads {
            self.make_heads();
        }
        let Some(last) = right.elements.last().filter(|_| self.has_heads) else {
            return append(&mut self.elements, right.elements);
        };
        self.share_with(last, self.elements.len());
        let shared = self.shared();
        append(&mut self.heads, right.elements.iter().map(|element| K::head(K::bytes(element), shared)).collect());
        append(&mut self.elements, right.elements);
    }

    fn shared(&self) -> usize {
        usize::from(self.shared)
    }

    /// How much the first and the last have in common, and so all between them.
    fn shared_by_all(&self) -> usize {
        match (self.elements.first(), self.elements.last()) {
            (Some(first), Some(last)) => common(K::bytes(first), K::bytes(last), K::Prefix::MAX),
            _ => 0,
        }
    }

    /// Makes sure that what all share is shared by an element that is to come to `at`, too.
    fn share_with(&mut self, element: &K::Element, at: usize) {
        let bytes = K::bytes(element);
        let shared = match self.elements.get(at).or_else(|| self.elements.last()) {
            Some(near) => common(bytes, K::bytes(near), self.shared()),
            None => bytes.len().min(K::Prefix::MAX),
        };
        if shared != self.shared() || self.elements.is_empty() {
            self.share(shared, Some(element));
        }
    }

    fn make_heads(&mut self) {
        self.has_heads = true;
        self.share(self.shared_by_all(), None);
    }

    /// Notes that all elements, and one that may be about to come, share so many bytes.
    fn share(&mut self, shared: usize, coming: Option<&K::Element>) {
        // No more than a u16 holds: `common` was told.
        self.shared = shared as u16;
        let bytes = coming.or_else(|| self.elements.first()).map_or(&[][..], |element| K::bytes(element));
        self.prefix = K::Prefix::of(&bytes[..shared]);
        self.heads.clear();
        self.heads.reserve_exact(self.elements.len());
        self.heads.extend(self.elements.iter().map(|element| K::head(K::bytes(element), shared)));
    }

    /// Panics if the heads are not those of the elements, or if there is more room than there may be: most in the last
    /// leaf of all.
    #[cfg(test)]
    pub(super) fn check(&self, is_last: bool) {
        let most = <K::Order as Order>::LEAF_MAX.max(super::NODE_MAX);
        let spare = self.elements.capacity() - self.elements.len();
        assert!(spare <= if is_last { most } else { super::merged_max(most) });
        assert_eq!(self.heads.len(), if self.has_heads { self.elements.len() } else { 0 });
        assert!(self.has_heads || !self.elements.iter().any(is_long::<K>));
        for (element, head) in self.elements.iter().zip(&self.heads) {
            assert!(*head == K::head(K::bytes(element), self.shared()));
            assert!(common(K::bytes(element), K::bytes(&self.elements[0]), self.shared()) == self.shared());
            assert!(self.prefix.get(self.shared()).is_none_or(|prefix| K::bytes(element).starts_with(prefix)));
        }
    }
}

#[inline]
fn bytes_from<const COUNT: usize>(bytes: &[u8], shared: usize) -> [u8; COUNT] {
    let behind = bytes.get(shared..).unwrap_or_default();
    if let Some(all) = behind.first_chunk() {
        return *all;
    }
    let mut some = [0; COUNT];
    some[..behind.len()].copy_from_slice(behind);
    some
}

/// How many first bytes are the same, up to `max`.
fn common(a: &[u8], b: &[u8], max: usize) -> usize {
    let len = a.len().min(b.len()).min(max);
    if a[..len] == b[..len] {
        return len;
    }
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// How many of `elements` are before a place; those that are come first.
///
/// Looks at every eighth, and then at those before the first that is not. Which ones does not depend on what the
/// others say, so a processor fetches them from memory together, where halving waits for one after the other: a node
/// is seldom in its cache.
#[inline]
fn count_first<T>(elements: &[T], is_before: impl Fn(&T) -> bool) -> usize {
    const STRIDE: usize = 8;
    let whole = elements.chunks_exact(STRIDE).map(|block| usize::from(is_before(&block[STRIDE - 1]))).sum::<usize>();
    let rest = &elements[whole * STRIDE..];
    whole * STRIDE + rest.iter().take(STRIDE - 1).map(|element| usize::from(is_before(element))).sum::<usize>()
}
