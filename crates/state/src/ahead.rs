//! Walking along a tree and what its items point to.
//!
//! Records and long keys lie anywhere in memory, and writing one out takes a processor so many steps that it does not come
//! to the next before it needs it: a walk would wait for each. So some are looked at in advance, one right after the
//! other, and what they wait for comes at the same time.

use std::hint::black_box;
use std::vec;

use tidelock_model::{Key, Record};

/// How many are looked at together: about as many as a processor fetches at a time, and too few to drive out of its cache
/// what was fetched first.
const TOGETHER: usize = 16;
/// Bytes of a value beyond which nothing is looked at in advance.
const BYTES_MAX: usize = 512;
/// What a processor fetches at once.
const LINE_BYTES: usize = 64;

/// What can be looked at in advance. The sum that comes of it means nothing: it keeps the compiler from leaving it out.
pub(crate) trait Glance {
    fn glance(&self) -> usize;
}

impl Glance for Key {
    fn glance(&self) -> usize {
        self.as_stored().len()
    }
}

impl Glance for Record {
    fn glance(&self) -> usize {
        let value = self.value();
        value[..value.len().min(BYTES_MAX)].iter().step_by(LINE_BYTES).map(|byte| usize::from(*byte)).sum()
    }
}

/// Items as they come, looked at before, some at a time.
pub(crate) struct Ahead<'a, I, T, G> {
    items: I,
    glance: G,
    seen: vec::IntoIter<&'a T>,
}

impl<'a, I: Iterator<Item = &'a T>, T, G: Fn(&[&'a T]) -> usize> Ahead<'a, I, T, G> {
    pub(crate) fn of(items: I, glance: G) -> Ahead<'a, I, T, G> {
        Ahead { items, glance, seen: Vec::new().into_iter() }
    }
}

impl<'a, I: Iterator<Item = &'a T>, T, G: Fn(&[&'a T]) -> usize> Iterator for Ahead<'a, I, T, G> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        if let Some(item) = self.seen.next() {
            return Some(item);
        }
        let mut seen = Vec::with_capacity(TOGETHER);
        seen.extend(self.items.by_ref().take(TOGETHER));
        black_box((self.glance)(&seen));
        self.seen = seen.into_iter();
        self.seen.next()
    }
}
