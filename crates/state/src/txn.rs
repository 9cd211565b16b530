//! Operations on keys, alone or as If/Then/Else transactions.
//!
//! First everything is decided, on shared references: every compare, nested ones included, is judged
//! against the state before the command, which fixes the path through it, and every operation on that
//! path is checked. Any refusal leaves no trace. Then the path is carried out by code that has nothing
//! left to decide, at one revision, each operation seeing the effects of those before it.
//!
//! Two puts to one key in one transaction are legal here; a face that must refuse them does so itself.

use std::collections::{BTreeMap, BTreeSet};

use tidelock_model::limits::{KEY_BYTES_MAX, TXN_DEPTH_MAX, VALUE_BYTES_MAX};
use tidelock_model::{
    Compare, CompareResult, CompareTarget, DeleteOp, Event, Key, KeyRange, KeyValue, Op, OpAnswer, PutLease, PutOp,
    PutValue, RangeOp, Refusal, Revision, Txn,
};

use crate::State;
use crate::change::Revising;

/// The way through nested transactions: which branch is taken, in the order they are met.
#[derive(Default)]
pub(crate) struct Path {
    taken: Vec<bool>,
}

impl State {
    /// Carries out an operation of the log, or refuses it whole.
    pub(crate) fn write(&mut self, op: Op, events: &mut Vec<Event>) -> Result<OpAnswer, Refusal> {
        let path = self.decide(&op)?;
        let mut revising = Revising::new(self, events);
        let answer = self.carry_out(op, &mut path.taken.into_iter(), &mut revising);
        revising.finish(self);
        Ok(answer)
    }

    /// Answers an operation that writes nothing.
    pub(crate) fn read_op(&self, op: &Op) -> Result<OpAnswer, Refusal> {
        if op.writes() {
            return Err(Refusal::READ_MUST_NOT_WRITE);
        }
        let path = self.decide(op)?;
        Ok(self.answer_reads(op, &mut path.taken.into_iter()))
    }

    fn decide(&self, op: &Op) -> Result<Path, Refusal> {
        let mut path = Path::default();
        // Only "keep what is there" depends on earlier operations of the same transaction.
        let mut pending = (matches!(op, Op::Txn(_)) && keeps(op, 0)).then(Pending::default);
        self.decide_op(op, 0, &mut path, &mut pending)?;
        Ok(path)
    }

    fn decide_op<'a>(
        &self,
        op: &'a Op,
        depth: usize,
        path: &mut Path,
        pending: &mut Option<Pending<'a>>,
    ) -> Result<(), Refusal> {
        match op {
            Op::Put(put) => {
                self.check_put(put, pending.as_ref())?;
                if let Some(pending) = pending {
                    pending.put(&put.key);
                }
            }
            Op::Delete(delete) => {
                if let Some(pending) = pending {
                    pending.delete(&delete.range);
                }
            }
            Op::Range(range) => self.check_range(range)?,
            Op::Txn(txn) => {
                if depth >= TXN_DEPTH_MAX {
                    return Err(Refusal::NESTED_TOO_DEEP);
                }
                let succeeded = txn.compares.iter().all(|compare| self.holds(compare));
                path.taken.push(succeeded);
                for op in if succeeded { &txn.success } else { &txn.failure } {
                    self.decide_op(op, depth + 1, path, pending)?;
                }
            }
        }
        Ok(())
    }

    fn check_put(&self, put: &PutOp, pending: Option<&Pending<'_>>) -> Result<(), Refusal> {
        if put.key.space_byte().is_none() {
            return Err(Refusal::EMPTY_KEY);
        }
        // Decoding bounds both already; what got past it could not be read back from a snapshot.
        if put.key.name().len() > KEY_BYTES_MAX {
            return Err(Refusal::KEY_TOO_LONG);
        }
        if matches!(&put.value, PutValue::Set(value) if value.len() > VALUE_BYTES_MAX) {
            return Err(Refusal::VALUE_TOO_LARGE);
        }
        if matches!(put.lease, PutLease::Set(id) if id.is_some() && self.leases.get(id).is_none())
            && !tidelock_model::planted!(PutOnDeadLease)
        {
            return Err(Refusal::LeaseNotFound);
        }
        if put.value == PutValue::Keep || put.lease == PutLease::Keep {
            let exists = pending.and_then(|pending| pending.exists(&put.key));
            if !exists.unwrap_or_else(|| self.keyspace.get(&put.key).is_some()) {
                return Err(Refusal::KeyNotFound);
            }
        }
        Ok(())
    }

    fn check_range(&self, range: &RangeOp) -> Result<(), Refusal> {
        match range.at {
            // No revision is before the first: whoever asks for one is told that it is gone.
            Some(at) if at < Revision::FIRST => Err(Refusal::Compacted { asked: at, oldest: self.compacted }),
            Some(at) => self.check_readable(at),
            None => Ok(()),
        }
    }

    /// Whether a condition holds for every key in its range. A range without keys compares like one
    /// key that does not exist: its numbers are zero, and its value is unequal even to "unequal".
    fn holds(&self, compare: &Compare) -> bool {
        if let CompareTarget::Admits(token) = compare.target {
            return self.admits(&compare.range, token);
        }
        if let Some(key) = compare.range.as_single() {
            return holds_for(compare, self.keyspace.get(key));
        }
        let mut found = self.keyspace.live_range(&compare.range).peekable();
        if found.peek().is_none() {
            return holds_for(compare, None);
        }
        found.all(|item| holds_for(compare, Some(item)))
    }

    fn carry_out(&mut self, op: Op, taken: &mut impl Iterator<Item = bool>, revising: &mut Revising<'_>) -> OpAnswer {
        match op {
            Op::Put(put) => {
                let want_previous = put.want_previous;
                let previous = self.put_key(revising, put);
                OpAnswer::Put { previous: previous.filter(|_| want_previous) }
            }
            Op::Delete(delete) => self.carry_out_delete(&delete, revising),
            Op::Range(range) => OpAnswer::Range(self.answer_range(&range)),
            Op::Txn(txn) => {
                let succeeded = taken.next().expect("every transaction on the path was decided");
                let Txn { compares, success, failure } = *txn;
                // A token that was let through is remembered with what it did (K4).
                for compare in compares.iter().filter(|_| succeeded) {
                    if let (CompareTarget::Admits(token), Some(fence)) = (&compare.target, compare.range.as_single())
                        && !tidelock_model::planted!(ShownTokenForgotten)
                    {
                        self.raise_fence(revising, fence, *token);
                    }
                }
                let ops = if succeeded { success } else { failure };
                let answers = ops.into_iter().map(|op| self.carry_out(op, &mut *taken, revising)).collect();
                OpAnswer::Txn { succeeded, answers }
            }
        }
    }

    fn carry_out_delete(&mut self, delete: &DeleteOp, revising: &mut Revising<'_>) -> OpAnswer {
        if let Some(key) = delete.range.as_single() {
            let previous = self.delete_key(revising, key);
            let deleted = u64::from(previous.is_some());
            return OpAnswer::Delete {
                deleted,
                previous: previous.filter(|_| delete.want_previous).into_iter().collect(),
            };
        }
        let keys: Vec<Key> = self.keyspace.live_range(&delete.range).map(|item| item.key.clone()).collect();
        let mut previous = Vec::new();
        for key in &keys {
            previous.extend(self.delete_key(revising, key).filter(|_| delete.want_previous));
        }
        OpAnswer::Delete { deleted: keys.len() as u64, previous }
    }

    fn answer_reads(&self, op: &Op, taken: &mut impl Iterator<Item = bool>) -> OpAnswer {
        match op {
            Op::Put(_) | Op::Delete(_) => unreachable!("the operation was found to write nothing"),
            Op::Range(range) => OpAnswer::Range(self.answer_range(range)),
            Op::Txn(txn) => {
                let succeeded = taken.next().expect("every transaction on the path was decided");
                let ops = if succeeded { &txn.success } else { &txn.failure };
                let answers = ops.iter().map(|op| self.answer_reads(op, &mut *taken)).collect();
                OpAnswer::Txn { succeeded, answers }
            }
        }
    }
}

/// Whether an operation keeps a value or lease anywhere. Not looking deeper than transactions may
/// nest; what is deeper is refused.
fn keeps(op: &Op, depth: usize) -> bool {
    match op {
        Op::Put(put) => put.value == PutValue::Keep || put.lease == PutLease::Keep,
        Op::Delete(_) | Op::Range(_) => false,
        Op::Txn(_) if depth >= TXN_DEPTH_MAX => false,
        Op::Txn(txn) => txn.success.iter().chain(&txn.failure).any(|op| keeps(op, depth + 1)),
    }
}

fn holds_for(compare: &Compare, item: Option<&KeyValue>) -> bool {
    let meta = item.map(|item| item.record.meta());
    // Revisions and versions never reach the sign bit; clients' numbers may.
    let (actual, expected) = match &compare.target {
        CompareTarget::Version(n) => (meta.map_or(0, |meta| meta.version as i64), *n),
        CompareTarget::Created(n) => (meta.map_or(0, |meta| meta.created.0 as i64), *n),
        CompareTarget::Modified(n) if meta.is_none() && tidelock_model::planted!(AbsentKeyMatches) => (*n, *n),
        CompareTarget::Modified(n) => (meta.map_or(0, |meta| meta.modified.0 as i64), *n),
        CompareTarget::Lease(n) => (meta.map_or(0, |meta| meta.lease.0), *n),
        // Judged before, by the fence.
        CompareTarget::Admits(_) => return false,
        CompareTarget::Value(expected) => {
            return item.is_some_and(|item| relates(compare.result, item.record.value(), expected));
        }
    };
    relates(compare.result, &actual, &expected)
}

fn relates<T: Ord + ?Sized>(result: CompareResult, actual: &T, expected: &T) -> bool {
    match result {
        CompareResult::Equal => actual == expected,
        CompareResult::Greater => actual > expected,
        CompareResult::Less => actual < expected,
        CompareResult::NotEqual => actual != expected,
    }
}

/// Which keys the operations looked at so far would create or delete. Every lookup and update costs
/// the logarithm of the number of operations, amortised: a put stays until a delete takes it out, and
/// deleted ranges are merged as they overlap.
#[derive(Default)]
struct Pending<'a> {
    created: BTreeSet<&'a Key>,
    /// Disjoint deleted ranges, start to end.
    deleted: BTreeMap<&'a Key, &'a Key>,
}

impl<'a> Pending<'a> {
    fn put(&mut self, key: &'a Key) {
        self.created.insert(key);
    }

    fn delete(&mut self, range: &'a KeyRange) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (&range.start, &range.end);
        while let Some(key) = self.created.range::<Key, _>(start..end).next().copied() {
            self.created.remove(key);
        }
        // Swallow what overlaps or touches: ranges that begin up to `end`, last first, while they
        // still reach `start`.
        while let Some((other_start, other_end)) = self.deleted.range::<Key, _>(..=end).next_back() {
            if **other_end < *start {
                break;
            }
            let other_start = *other_start;
            end = end.max(other_end);
            start = start.min(other_start);
            self.deleted.remove(other_start);
        }
        self.deleted.insert(start, end);
    }

    /// Whether the key would exist by now; `None` if no operation touched it.
    fn exists(&self, key: &Key) -> Option<bool> {
        if self.created.contains(key) {
            return Some(true);
        }
        let deleted = self.deleted.range::<Key, _>(..=key).next_back().is_some_and(|(_, end)| key < *end);
        deleted.then_some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        Machine, all_of, delete, everything, if_version, key, pairs, put, put_keeping_value, put_leased, range_at, txn,
    };
    use tidelock_model::Revision;

    /// "If nobody holds it, take it" must be judged once, on what was there before: a transaction must
    /// not make its own nested conditions come true.
    #[test]
    fn nested_conditions_see_the_state_before_the_transaction() {
        let mut machine = Machine::new();
        let nested = txn(vec![if_version("lock", 0)], vec![put("seen", "free")], vec![put("seen", "taken")]);
        machine.done(all_of(vec![put("lock", "me"), nested]));
        assert_eq!(machine.pairs_at(2), [("lock".into(), "me".into()), ("seen".into(), "free".into())]);
    }

    /// Clients read their own writes inside a transaction, and all of it happens at one revision.
    #[test]
    fn operations_see_those_before_them_and_share_one_revision() {
        let mut machine = Machine::new();
        let range = Op::Range(RangeOp::all(everything()));
        let answer = machine.done(all_of(vec![put("a", "1"), range, put("a", "2"), delete("a"), put("b", "3")]));
        let OpAnswer::Txn { answers, .. } = answer else { panic!() };
        let OpAnswer::Range(seen) = &answers[1] else { panic!() };
        assert_eq!(pairs(&seen.items), [("a".to_owned(), "1".to_owned())]);
        let positions: Vec<_> =
            machine.state.changes(Revision(2), 9).unwrap().items.iter().map(|i| i.record.position()).collect();
        assert_eq!(positions, [0, 1, 2, 3].map(|sub| (Revision(2), sub)));
    }

    /// A transaction that fails half way must leave nothing behind: no key, no revision, no event.
    #[test]
    fn a_refused_operation_undoes_the_whole_transaction() {
        let mut machine = Machine::new();
        machine.done(put("a", "1"));
        assert_eq!(machine.refused(all_of(vec![put("b", "2"), put_leased("c", "3", 7)])), Refusal::LeaseNotFound);
        assert_eq!(machine.refused(all_of(vec![delete("a"), put_keeping_value("a")])), Refusal::KeyNotFound);
        let future = Op::Range(range_at(3));
        let refusal = Refusal::FutureRevision { asked: Revision(3), now: Revision(2) };
        assert_eq!(machine.refused(all_of(vec![put("b", "2"), future])), refusal);
        let never = machine.refused(all_of(vec![put("b", "2"), Op::Range(range_at(0))]));
        assert!(matches!(never, Refusal::Compacted { asked: Revision(0), .. }), "{never:?}");
        assert_eq!(machine.pairs_at(2), [("a".to_owned(), "1".to_owned())]);
    }

    /// Keeping the value of a key that the same transaction made is legal, however often it came and went.
    #[test]
    fn keeping_a_value_sees_what_the_transaction_did_before() {
        let mut machine = Machine::new();
        machine.done(all_of(vec![put("a", "1"), put_keeping_value("a")]));
        let everything = Op::Delete(DeleteOp { range: everything(), want_previous: false });
        machine.done(all_of(vec![delete("a"), everything.clone(), put("a", "2"), put_keeping_value("a")]));
        assert_eq!(machine.pairs_at(3), [("a".to_owned(), "2".to_owned())]);
        let again = all_of(vec![put("b", "1"), everything, put("c", "1"), put_keeping_value("b")]);
        assert_eq!(machine.refused(again), Refusal::KeyNotFound);
    }

    /// Read-only transactions are answered without the log; one that writes must not slip through.
    #[test]
    fn a_transaction_that_could_write_is_not_a_read() {
        let machine = Machine::new();
        let op = txn(vec![if_version("a", 1)], vec![put("a", "1")], vec![]);
        assert_eq!(machine.state.read_op(&op), Err(Refusal::READ_MUST_NOT_WRITE));
    }

    /// A delete that hits nothing is a success that changes nothing: revisions count changes (R1).
    #[test]
    fn deleting_nothing_consumes_no_revision() {
        let mut machine = Machine::new();
        assert_eq!(machine.done(delete("a")), OpAnswer::Delete { deleted: 0, previous: vec![] });
        machine.done(all_of(vec![delete("a"), delete("b")]));
        assert_eq!(machine.state.revision(), Revision(1));
    }

    /// The lock recipes of etcd clients compare the create revision of an absent key with zero.
    #[test]
    fn an_absent_key_compares_as_zero_and_its_value_as_nothing() {
        let machine = Machine::new();
        let range = KeyRange::single(key("absent"));
        let compare = |result, target| Compare { range: range.clone(), result, target };
        assert!(machine.state.holds(&compare(CompareResult::Equal, CompareTarget::Created(0))));
        assert!(machine.state.holds(&compare(CompareResult::Greater, CompareTarget::Lease(-1))));
        let value = CompareTarget::Value(bytes::Bytes::new());
        assert!(!machine.state.holds(&compare(CompareResult::Equal, value.clone())));
        assert!(!machine.state.holds(&compare(CompareResult::NotEqual, value)));
    }

    /// A key or value that no snapshot could bring back must not get in, whoever made the command.
    #[test]
    fn keys_and_values_that_could_not_be_loaded_again_are_refused() {
        let mut machine = Machine::new();
        let longest = "k".repeat(KEY_BYTES_MAX);
        machine.done(put(&longest, &"v".repeat(VALUE_BYTES_MAX)));
        assert_eq!(machine.refused(put(&format!("{longest}k"), "")), Refusal::KEY_TOO_LONG);
        assert_eq!(machine.refused(put("k", &"v".repeat(VALUE_BYTES_MAX + 1))), Refusal::VALUE_TOO_LARGE);
        let head = machine.state.begin_snapshot();
        let loaded = crate::testing::load(&head, crate::testing::pages(&machine.state, &head, 1)).unwrap();
        assert_eq!(loaded.digest(), machine.state.digest());
    }

    /// The decoder bounds nesting; a command made in this process must not overflow the stack either.
    #[test]
    fn nesting_beyond_the_limit_is_refused() {
        let mut machine = Machine::new();
        let nest = |levels| (0..levels).fold(put("a", "1"), |op, _| all_of(vec![op]));
        machine.done(nest(TXN_DEPTH_MAX));
        assert_eq!(machine.refused(nest(TXN_DEPTH_MAX + 1)), Refusal::NESTED_TOO_DEEP);
    }
}
