//! Do all members compute the same state? Each tells the others its digest now and then; whoever
//! finds a majority against itself must stop (R5, H24).

use std::collections::BTreeMap;

use tidelock_model::{LogIndex, NodeId};

/// Indexes remembered. Members are rarely further apart, and a missed comparison is made again later.
const REMEMBERED_MAX: usize = 64;

#[derive(Default)]
pub(crate) struct Digests {
    me: Option<NodeId>,
    by_index: BTreeMap<LogIndex, BTreeMap<NodeId, u128>>,
}

impl Digests {
    pub(crate) fn own(&mut self, me: NodeId, index: LogIndex, digest: u128, voters: usize) -> Option<LogIndex> {
        self.me = Some(me);
        self.heard(me, index, digest, voters)
    }

    /// Notes a digest; gives the index if a majority of the members disagrees with this node there.
    pub(crate) fn heard(&mut self, from: NodeId, index: LogIndex, digest: u128, voters: usize) -> Option<LogIndex> {
        self.by_index.entry(index).or_default().insert(from, digest);
        while self.by_index.len() > REMEMBERED_MAX {
            self.by_index.pop_first();
        }
        let told = self.by_index.get(&index)?;
        let mine = *told.get(&self.me?)?;
        let mut against: BTreeMap<u128, usize> = BTreeMap::new();
        for digest in told.values().filter(|digest| **digest != mine) {
            *against.entry(*digest).or_default() += 1;
        }
        against.values().any(|count| *count > voters / 2).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: NodeId = NodeId(1);

    /// H24: the odd one out stops; the majority, which is right, goes on.
    #[test]
    fn h24_only_the_member_a_majority_disagrees_with_is_found_to_diverge() {
        let mut digests = Digests::default();
        assert_eq!(digests.own(ME, LogIndex(1000), 7, 3), None);
        assert_eq!(digests.heard(NodeId(2), LogIndex(1000), 8, 3), None, "one against one decides nothing");
        assert_eq!(digests.heard(NodeId(3), LogIndex(1000), 8, 3), Some(LogIndex(1000)));

        let mut majority = Digests::default();
        assert_eq!(majority.heard(NodeId(3), LogIndex(1000), 7, 3), None);
        assert_eq!(majority.own(ME, LogIndex(1000), 8, 3), None);
        assert_eq!(majority.heard(NodeId(2), LogIndex(1000), 8, 3), None);
    }

    #[test]
    fn digests_of_the_past_do_not_pile_up() {
        let mut digests = Digests::default();
        for index in 0..1000 {
            digests.own(ME, LogIndex(index), 1, 3);
        }
        assert_eq!(digests.by_index.len(), REMEMBERED_MAX);
    }
}
