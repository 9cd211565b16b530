//! Who made each revision of the ledger: a request that was answered so, one whose outcome its client
//! never learnt, the end of leases, or nobody.
//!
//! Values are unique, so a revision with a put names its request. A revision that only deletes is
//! matched to requests of unknown outcome that would have deleted just that; each makes at most one
//! revision, so this is a matching, found by augmenting paths.

use std::collections::{BTreeMap, BTreeSet};

use super::carry_out::{carry_out, operations, wrote};
use super::horizon::Horizon;
use super::leases::Lease;
use super::replay::Replay;
use crate::history::{Answer, Change, History, Op, Told};

/// Revisions without an obvious author that are looked at. A sound run has a handful; of a broken one
/// the first are enough.
const MATCHED_MAX: usize = 300;

/// Who made a revision. Requests are named by their place in the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    Answered(usize),
    Unknown(usize),
    LeasesEnded(BTreeSet<i64>),
}

/// Who made each revision.
pub(crate) struct Claims<'a> {
    by_revision: BTreeMap<i64, Claim>,
    /// Revisions that were answered to two writes: revision, first, second.
    pub(crate) shared: Vec<(i64, usize, usize)>,
    /// Who asked for each value.
    writers: BTreeMap<&'a str, usize>,
}

impl<'a> Claims<'a> {
    pub(crate) fn new(
        history: &'a History,
        replay: &Replay<'a>,
        leases: &BTreeMap<i64, Lease<'_>>,
        seen: &Horizon,
    ) -> Claims<'a> {
        let mut claims = Claims { by_revision: BTreeMap::new(), shared: Vec::new(), writers: BTreeMap::new() };
        claims.take_answered(history);
        let mut used = claims.take_unknown_puts(history);
        claims.take_lease_ends(history, replay, leases);
        claims.match_deletes(history, replay, seen, &mut used);
        claims
    }

    /// Who made a revision; `None`: nobody that is known.
    pub(crate) fn of(&self, revision: i64) -> Option<&Claim> {
        self.by_revision.get(&revision)
    }

    /// Who asked for a value to be written, by place in the history.
    pub(crate) fn writer(&self, value: &str) -> Option<usize> {
        self.writers.get(value).copied()
    }

    fn take_answered(&mut self, history: &'a History) {
        for (index, operation) in history.operations.iter().enumerate() {
            for op in operations(&operation.request) {
                if let Op::Put { value, .. } = op {
                    self.writers.insert(value, index);
                }
            }
            let Told::Answer(Answer { revision, content, .. }) = &operation.result else { continue };
            if !wrote(content) {
                continue;
            }
            match self.by_revision.get(revision) {
                Some(Claim::Answered(other)) => self.shared.push((*revision, *other, index)),
                _ => drop(self.by_revision.insert(*revision, Claim::Answered(index))),
            }
        }
    }

    fn take_unknown_puts(&mut self, history: &History) -> BTreeSet<usize> {
        let mut used = BTreeSet::new();
        for (revision, changes) in &history.ledger.changes {
            if self.by_revision.contains_key(revision) {
                continue;
            }
            let value = changes.iter().find_map(|change| change.became.as_ref());
            let Some(writer) = value.and_then(|kv| self.writer(&kv.value)) else { continue };
            let unknown = matches!(history.operations[writer].result, Told::Unknown(_));
            if unknown && used.insert(writer) {
                self.by_revision.insert(*revision, Claim::Unknown(writer));
            }
        }
        used
    }

    fn take_lease_ends(&mut self, history: &History, replay: &Replay<'a>, leases: &BTreeMap<i64, Lease<'_>>) {
        for (revision, changes) in &history.ledger.changes {
            if !self.by_revision.contains_key(revision)
                && let Some(ended) = ended_leases(*revision, changes, replay, leases)
            {
                self.by_revision.insert(*revision, Claim::LeasesEnded(ended));
            }
        }
    }

    fn match_deletes(&mut self, history: &'a History, replay: &Replay<'a>, seen: &Horizon, used: &mut BTreeSet<usize>) {
        let candidates: Vec<usize> = (0..history.operations.len())
            .filter(|index| {
                let operation = &history.operations[*index];
                let deletes = |op: &Op| matches!(op, Op::Delete { .. });
                matches!(operation.result, Told::Unknown(_))
                    && !used.contains(index)
                    && operations(&operation.request).any(deletes)
            })
            .collect();
        let unclaimed = history.ledger.changes.iter().filter(|(revision, changes)| {
            !self.by_revision.contains_key(revision)
                && !changes.is_empty()
                && changes.iter().all(|change| change.became.is_none())
        });
        let revisions: Vec<i64> = unclaimed.map(|(revision, _)| *revision).take(MATCHED_MAX).collect();
        let fits = |revision: i64, candidate: usize| {
            let operation = &history.operations[candidate];
            seen.before(operation.called) < revision
                && carry_out(replay, &operation.request, revision - 1, revision)
                    .is_some_and(|expected| expected.changes_are(replay.changes_at(revision)))
        };
        let edges: Vec<Vec<usize>> = revisions
            .iter()
            .map(|revision| (0..candidates.len()).filter(|place| fits(*revision, candidates[*place])).collect())
            .collect();
        for (place, matched) in matching(&edges, candidates.len()).into_iter().enumerate() {
            if let Some(revision) = matched {
                used.insert(candidates[place]);
                self.by_revision.insert(revisions[revision], Claim::Unknown(candidates[place]));
            }
        }
    }
}

/// The leases whose end explains a revision: it deleted exactly what they owned, and they ended.
fn ended_leases(
    revision: i64,
    changes: &[Change],
    replay: &Replay<'_>,
    leases: &BTreeMap<i64, Lease<'_>>,
) -> Option<BTreeSet<i64>> {
    let mut ended = BTreeSet::new();
    for change in changes {
        if change.became.is_some() {
            return None;
        }
        ended.insert(replay.get(&change.key, revision - 1)?.lease);
    }
    let is_over = |lease: &i64| {
        let observed = leases.get(lease).and_then(|lease| lease.ended);
        observed.is_some_and(|(_, after)| revision <= after)
            // A key put on it later means that this was not its end.
            && replay.last_attached(*lease).is_some_and(|last| last < revision)
    };
    let owned: usize = ended.iter().map(|lease| replay.owned_by(*lease, revision - 1).len()).sum();
    (!ended.is_empty() && ended.iter().all(is_over) && owned == changes.len()).then_some(ended)
}

/// A largest matching: for each right node its left one, if any.
fn matching(edges: &[Vec<usize>], right: usize) -> Vec<Option<usize>> {
    fn augment(left: usize, edges: &[Vec<usize>], tried: &mut [bool], matched: &mut [Option<usize>]) -> bool {
        for &place in &edges[left] {
            if std::mem::replace(&mut tried[place], true) {
                continue;
            }
            if matched[place].is_none_or(|other| augment(other, edges, tried, matched)) {
                matched[place] = Some(left);
                return true;
            }
        }
        false
    }
    let mut matched = vec![None; right];
    for left in 0..edges.len() {
        augment(left, edges, &mut vec![false; right], &mut matched);
    }
    matched
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Prepared;
    use crate::check::testing::{Maker, delete_op};
    use crate::history::Request;

    fn claims_of(history: &History) -> Vec<Option<Claim>> {
        let prepared = Prepared::new(history);
        history.ledger.changes.keys().map(|revision| prepared.claims.of(*revision).cloned()).collect()
    }

    /// A write without an answer that did happen is no invention, and its author is found by its value.
    #[test]
    fn values_name_the_request_that_wrote_them() {
        let mut maker = Maker::new();
        maker.put(1, "a", "1");
        let lost = maker.put(2, "a", "2");
        maker.unanswered(lost);
        let claims = claims_of(&maker.done());
        assert_eq!(claims, [Some(Claim::Answered(0)), Some(Claim::Unknown(1))]);
    }

    /// Two deletes without an answer and two deletions: each explains one, in whichever way it fits.
    #[test]
    fn deletions_are_matched_to_requests_of_unknown_outcome() {
        let mut maker = Maker::new();
        maker.put(1, "a", "1");
        maker.put(1, "b", "2");
        // Both could explain the first deletion, only the range the second.
        let range = maker.delete(2, "a", Some("c"));
        maker.unanswered(range);
        let mut history = maker.done();
        let single = crate::history::Operation {
            request: Request::Op(delete_op("a", None)),
            ..history.operations[range].clone()
        };
        history.operations.push(single);
        let mut both = history.ledger.changes.remove(&4).unwrap();
        let second = both.split_off(1);
        history.ledger.changes.insert(4, both);
        history.ledger.changes.insert(5, second);
        assert_eq!(claims_of(&history)[2..], [Some(Claim::Unknown(3)), Some(Claim::Unknown(2))]);
        history.operations.pop();
        assert_eq!(claims_of(&history)[2..].iter().flatten().count(), 1);
    }

    /// Leases that run out together vanish together; that is nobody's request and no invention either.
    #[test]
    fn the_end_of_leases_explains_the_deletion_of_all_they_owned_and_nothing_else() {
        let mut maker = Maker::new();
        maker.grant(1, 7, 2);
        maker.grant(1, 8, 2);
        maker.put_leased(1, "a", "1", 7);
        maker.put_leased(1, "b", "2", 8);
        maker.put_leased(1, "c", "3", 8);
        maker.wait(10_000_000);
        maker.expire(&[7, 8]);
        let mut history = maker.done();
        assert_eq!(claims_of(&history)[3], Some(Claim::LeasesEnded([7, 8].into())));
        history.ledger.changes.get_mut(&5).unwrap().pop();
        assert_eq!(claims_of(&history)[3], None);
    }

    #[test]
    fn a_matching_gives_way_where_it_must() {
        assert_eq!(matching(&[vec![0, 1], vec![0]], 2), [Some(1), Some(0)]);
        assert_eq!(matching(&[vec![0], vec![0]], 1), [Some(0)]);
    }
}
