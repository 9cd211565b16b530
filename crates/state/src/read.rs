//! Reads: of the state as it is, or as it was at any revision still held.
//!
//! A read at the compacted revision is allowed, below it and above the current one refused. Huge
//! ranges are read in pages at one fixed revision, so that nobody holds a lock for long: ask for
//! [`State::range_page`] until enough ([`State::items_wanted`]), then [`State::finish_range`]. The
//! first page checks the revision; while later ones are read compaction may overtake it, and sweeping
//! must be held back at that revision ([`State::sweep`]).

use std::sync::Arc;

use tidelock_model::{
    Caller, Key, KeyRange, KeyValue, OpAnswer, PageQuery, Projection, Query, QueryAnswer, RangeAnswer, RangeOp, Record,
    Refusal, Revision, RevisionBounds, SortBy,
};

use crate::State;
use crate::keyspace::Version;

/// Part of a range, as of one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangePage {
    /// The items, by key.
    pub items: Vec<KeyValue>,
    /// Where to go on: pass it as `after`. `None`: that was all.
    pub next: Option<Key>,
}

impl State {
    /// Answers a query from the state as it is, if `caller` may ask.
    pub fn read_as(&self, caller: &Caller, query: &Query) -> Result<QueryAnswer, Refusal> {
        self.authorise(caller, |needs| query.needs(needs))?;
        self.read(query)
    }

    /// Answers a query from the state as it is.
    pub fn read(&self, query: &Query) -> Result<QueryAnswer, Refusal> {
        let revision = self.revision;
        Ok(match query {
            Query::Range(range) => {
                range.at.map_or(Ok(()), |at| self.check_readable(at))?;
                QueryAnswer::Op { revision, answer: OpAnswer::Range(self.answer_range(range)) }
            }
            Query::Txn(op) => QueryAnswer::Op { revision, answer: self.read_op(op)? },
            Query::Leases => QueryAnswer::Leases { revision, ids: self.leases.iter().map(|(id, _)| id).collect() },
            Query::LeaseKeys(id) => {
                let keys = self.has_lease(*id).then(|| self.lease_keys(*id).cloned().collect());
                QueryAnswer::LeaseKeys { revision, keys }
            }
            Query::Members => {
                QueryAnswer::Members { revision, members: self.members.by_id.values().cloned().collect() }
            }
            Query::Page(page) => {
                let RangePage { items, next } = self.read_page(page)?;
                QueryAnswer::Page { revision, items, next }
            }
            Query::Auth(_) => QueryAnswer::Auth { revision, auth: Arc::clone(&self.auth) },
            Query::Znodes(query) => QueryAnswer::Znodes { revision, found: self.read_znodes(query) },
            Query::History(query) => QueryAnswer::History { revision, history: self.read_history(query) },
            Query::Native(query) => QueryAnswer::Native { revision, found: self.read_native(query) },
            Query::Alarms => QueryAnswer::Alarms { revision, alarms: self.alarms.iter().collect() },
        })
    }

    fn read_page(&self, page: &PageQuery) -> Result<RangePage, Refusal> {
        let at = page.at.unwrap_or(self.revision);
        // Nobody holds sweeping back for this reader: each page is judged like a read of its own.
        self.check_readable(at)?;
        self.range_page(&RangeOp::all(page.range.clone()), at, page.after.as_ref(), page.max_keys)
    }

    /// Whether revision `at` can be read.
    pub fn check_readable(&self, at: Revision) -> Result<(), Refusal> {
        if at < self.compacted {
            return Err(Refusal::Compacted { asked: at, oldest: self.compacted });
        }
        if at > self.revision {
            return Err(Refusal::FutureRevision { asked: at, now: self.revision });
        }
        Ok(())
    }

    /// The next items of `op.range` after the key `after`, as of revision `at`: those within
    /// `op.bounds`, by key. Limit, order and projection are left to [`State::finish_range`]. Looks at
    /// no more than `max_items` keys, so a page may hold fewer items, even none, and not be the last.
    pub fn range_page(
        &self,
        op: &RangeOp,
        at: Revision,
        after: Option<&Key>,
        max_items: usize,
    ) -> Result<RangePage, Refusal> {
        match after {
            None => self.check_readable(at)?,
            // Begun before a compaction, a read may finish: what it needs is gone only once swept.
            Some(_) if at < self.keyspace.swept() => {
                return Err(Refusal::Compacted { asked: at, oldest: self.compacted });
            }
            Some(_) => {}
        }
        let start = after.map_or_else(|| op.range.start.clone(), |after| after.successor().max(op.range.start.clone()));
        let range = KeyRange { start, end: op.range.end.clone() };
        let mut items = Vec::new();
        let mut next = None;
        let mut scan = self.keyspace.scan(&range, at);
        for seen in scan.by_ref().take(max_items.max(1)) {
            items.extend(seen.visible.filter(|version| within(&op.bounds, version.record)).map(Version::to_item));
            next = Some(seen.key);
        }
        let next = next.filter(|_| scan.next().is_some()).cloned();
        Ok(RangePage { items, next })
    }

    /// How many keys of `range` existed at revision `at`. Takes the logarithm of the number of keys if
    /// `at` is now, and otherwise as long as there are changes since, or keys, whichever is less.
    pub fn count_at(&self, range: &KeyRange, at: Revision) -> Result<u64, Refusal> {
        self.check_readable(at)?;
        Ok(self.keyspace.count(range, at) as u64)
    }

    /// How many items of the range, by key, are enough to answer `op`: its limit and one more to tell
    /// that there are more, or all if they must be sorted first, or none if only their number is asked.
    #[must_use]
    pub fn items_wanted(op: &RangeOp) -> usize {
        let natural = op.sort.is_none_or(|sort| sort.by == SortBy::Key && !sort.descending);
        match op.projection {
            Projection::CountOnly => 0,
            _ if op.limit == 0 || !natural => usize::MAX,
            _ => usize::try_from(op.limit).unwrap_or(usize::MAX).saturating_add(1),
        }
    }

    /// Makes the answer to `op` out of its items within bounds, at least [`State::items_wanted`] of
    /// them if there are so many, and the number of keys in the range.
    #[must_use]
    pub fn finish_range(op: &RangeOp, mut items: Vec<KeyValue>, count: u64) -> RangeAnswer {
        if op.projection == Projection::CountOnly {
            return RangeAnswer { items: Vec::new(), count, more: false };
        }
        if let Some(sort) = op.sort {
            // The items come by key, and equal ones stay so: the order is the same on every node.
            items.sort_by(|a, b| {
                let (a, b) = if sort.descending { (b, a) } else { (a, b) };
                let (a_meta, b_meta) = (a.record.meta(), b.record.meta());
                match sort.by {
                    SortBy::Key => a.key.cmp(&b.key),
                    SortBy::Version => a_meta.version.cmp(&b_meta.version),
                    SortBy::Created => a_meta.created.cmp(&b_meta.created),
                    SortBy::Modified => a_meta.modified.cmp(&b_meta.modified),
                    SortBy::Value => a.record.value().cmp(b.record.value()),
                }
            });
        }
        let limit = usize::try_from(op.limit).unwrap_or(usize::MAX);
        let more = limit > 0 && items.len() > limit;
        if more {
            items.truncate(limit);
        }
        if op.projection == Projection::KeysOnly {
            items.iter_mut().for_each(|item| item.record = Record::new(item.record.meta(), &[]));
        }
        RangeAnswer { items, count, more }
    }

    /// Answers a range whose revision was checked, all at once. Without `op.at` it sees what the
    /// transaction it is part of has done so far.
    pub(crate) fn answer_range(&self, op: &RangeOp) -> RangeAnswer {
        let at = op.at.unwrap_or(Revision(u64::MAX));
        let wanted = State::items_wanted(op);
        let mut items = Vec::new();
        if let Some(key) = op.range.as_single() {
            let visible = self.keyspace.visible(key, at);
            items.extend(visible.filter(|version| within(&op.bounds, version.record)).map(Version::to_item));
            return State::finish_range(op, items, u64::from(visible.is_some()));
        }
        if wanted > 0 {
            let visible = self.keyspace.scan(&op.range, at).filter_map(|seen| seen.visible);
            let within = visible.filter(|version| within(&op.bounds, version.record));
            items.extend(within.take(wanted).map(Version::to_item));
        }
        // All of them were read: no need to count again.
        let complete = items.len() < wanted && wanted > 0 && op.bounds.is_unbounded();
        let count = if complete { items.len() } else { self.keyspace.count(&op.range, at) };
        State::finish_range(op, items, count as u64)
    }
}

/// Whether a version is within bounds; a bound of zero is none.
fn within(bounds: &RevisionBounds, record: &Record) -> bool {
    let meta = record.meta();
    let (created, modified) = (meta.created.0, meta.modified.0);
    modified >= bounds.modified_min
        && created >= bounds.created_min
        && (bounds.modified_max == 0 || modified <= bounds.modified_max)
        && (bounds.created_max == 0 || created <= bounds.created_max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, delete, everything, key, pairs, put, range_at};

    /// Kubernetes lists in chunks at one revision and shows how many remain: limit cuts, count does not.
    #[test]
    fn a_limited_read_says_that_there_is_more_and_how_many_there_are() {
        let mut machine = Machine::new();
        ["a", "b", "c", "d", "e"].into_iter().for_each(|name| drop(machine.done(put(name, name))));
        let answer = machine.read(RangeOp { limit: 2, ..RangeOp::all(everything()) }).unwrap();
        assert_eq!((answer.items.len(), answer.count, answer.more), (2, 5, true));
        let answer = machine.read(RangeOp { limit: 5, ..RangeOp::all(everything()) }).unwrap();
        assert_eq!((answer.items.len(), answer.count, answer.more), (5, 5, false));
    }

    /// A read of the past must show it exactly: deleted keys there, later ones not.
    #[test]
    fn an_old_revision_is_read_as_it_was() {
        let mut machine = Machine::new();
        machine.done(put("a", "1"));
        machine.done(put("b", "1"));
        machine.done(delete("a"));
        machine.done(put("a", "2"));
        let texts = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(machine.pairs_at(1), texts(&[]));
        assert_eq!(machine.pairs_at(3), texts(&[("a", "1"), ("b", "1")]));
        assert_eq!(machine.pairs_at(4), texts(&[("b", "1")]));
        assert_eq!(machine.pairs_at(5), texts(&[("a", "2"), ("b", "1")]));
        let refusal = Refusal::FutureRevision { asked: Revision(6), now: Revision(5) };
        assert_eq!(machine.read(range_at(6)), Err(refusal));
    }

    /// Counting at an old revision takes one of two ways, by what is cheaper; both must agree.
    #[test]
    fn counting_the_past_agrees_with_reading_it() {
        let mut machine = Machine::new();
        for round in 0..3 {
            for at in 0..40 {
                let name = format!("{:02}", at * 7 % 40);
                machine.done(if (at + round) % 3 == 0 { delete(&name) } else { put(&name, "x") });
            }
        }
        for at in 1..=machine.state.revision().0 {
            let range = KeyRange { start: key("05"), end: key("31") };
            let read = machine.read(RangeOp { range: range.clone(), ..range_at(at) }).unwrap().items.len() as u64;
            assert_eq!(machine.state.count_at(&range, Revision(at)), Ok(read), "at {at}");
        }
    }

    /// Streams and hashes read the store a page at a time while it changes: they must see one revision, all
    /// of it, and learn when it is gone.
    #[test]
    fn pages_show_one_revision_and_end_when_it_is_compacted() {
        let mut machine = Machine::new();
        ["a", "b", "c"].into_iter().for_each(|name| drop(machine.done(put(name, "1"))));
        let mut page = PageQuery { range: everything(), at: None, after: None, max_keys: 2 };
        let read = |machine: &Machine, page: &PageQuery| match machine.state.read(&Query::Page(page.clone()))? {
            QueryAnswer::Page { revision, items, next } => Ok((revision, pairs(&items), next)),
            other => panic!("{other:?}"),
        };
        let texts = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), "1".to_owned())).collect::<Vec<_>>();
        let (revision, items, next) = read(&machine, &page).unwrap();
        assert_eq!((revision, items, next.clone()), (Revision(4), texts(&["a", "b"]), Some(key("b"))));
        page = PageQuery { at: Some(revision), after: next, ..page };
        machine.done(put("c", "2"));
        machine.done(put("d", "1"));
        let rest = (Revision(6), texts(&["c"]), None);
        assert_eq!(read(&machine, &page), Ok(rest), "what came later is not shown");
        machine.compact(5);
        assert_eq!(read(&machine, &page), Err(Refusal::Compacted { asked: Revision(4), oldest: Revision(5) }));
    }

    /// A page that would show a revision with holes must be refused: sweeping went past it.
    #[test]
    fn a_paged_read_that_lost_its_hold_is_refused() {
        let mut machine = Machine::new();
        ["1", "2", "3"].into_iter().for_each(|value| drop(machine.done(put("a", value))));
        machine.compact(4);
        let (op, after) = (RangeOp::all(everything()), key(""));
        assert!(machine.state.range_page(&op, Revision(3), None, 9).is_err());
        assert_eq!(machine.state.range_page(&op, Revision(3), Some(&after), 9).unwrap().items.len(), 1);
        machine.sweep_all();
        assert!(machine.state.range_page(&op, Revision(3), Some(&after), 9).is_err());
    }
}
