//! Sessions that are attached, each with something beside it.
//!
//! There may be millions of them, so what is kept for each counts: eight bytes and what lies beside, in leaves that are
//! full since new sessions come last. A hash table of them takes up to twice that and half as much again.

use std::cmp::Ordering;
use std::marker::PhantomData;

use tidelock_tree::{Order, Tree};

struct BySession<T>(PhantomData<T>);

impl<T> Order for BySession<T> {
    type Item = (i64, T);
    type Pivot = i64;
    type Probe<'a> = i64;
    fn probe(item: &(i64, T)) -> i64 {
        item.0
    }
    fn pivot(item: &(i64, T)) -> i64 {
        item.0
    }
    fn compare(item: &(i64, T), probe: i64) -> Ordering {
        item.0.cmp(&probe)
    }
    fn compare_pivot(pivot: &i64, probe: i64) -> Ordering {
        pivot.cmp(&probe)
    }
}

/// Sessions by their number.
pub(crate) struct SessionMap<T>(Tree<BySession<T>>);

impl<T> Default for SessionMap<T> {
    fn default() -> SessionMap<T> {
        SessionMap(Tree::new())
    }
}

impl<T> SessionMap<T> {
    pub(crate) fn get(&self, session: i64) -> Option<&T> {
        self.0.get(session).map(|(_, beside)| beside)
    }

    pub(crate) fn contains(&self, session: i64) -> bool {
        self.get(session).is_some()
    }

    /// Adds a session; what was beside it before, if it was there.
    pub(crate) fn insert(&mut self, session: i64, beside: T) -> Option<T> {
        self.0.insert(session, (session, beside)).map(|(_, before)| before)
    }

    /// Takes a session out, if it is there.
    pub(crate) fn remove(&mut self, session: i64) -> Option<T> {
        self.0.remove(session).map(|(_, beside)| beside)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn sessions(&self) -> impl Iterator<Item = i64> + '_ {
        self.0.iter_from(i64::MIN).map(|(session, _)| *session)
    }
}
