//! Where entries are: a sparse map from log index to place in a segment.
//!
//! A point is kept for the first live entry of every segment, for every entry that replaced an earlier
//! one, and otherwise every [`SPACING_BYTES`]. Between one point and the next the live entries follow
//! each other in the file, so a reader walks from a point and jumps whenever the next point begins.
//! Worked example: entries 5 6 7 are written, then 6' 7' replace two of them. The points are 5 (before
//! the first record) and 6 (before the record of 6'), so nobody ever walks over the stale 6 and 7.

use std::collections::VecDeque;

/// How many bytes a reader may have to walk over in vain; 1,024 points for a full 16 MiB segment.
const SPACING_BYTES: u64 = 16 * 1024;

/// The place of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) index: u64,
    pub(crate) sequence: u64,
    pub(crate) offset: u64,
}

/// The live range of the log and where to find it.
#[derive(Debug)]
pub(crate) struct Positions {
    points: VecDeque<Point>,
    first: u64,
    last: u64,
}

impl Positions {
    /// No entries; the next one is `next`.
    pub(crate) fn starting_at(next: u64) -> Positions {
        Positions { points: VecDeque::new(), first: next, last: next.saturating_sub(1) }
    }

    /// First live entry; one more than `last` when there is none.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Last live entry.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Takes note of an entry just written at `place`. It must not leave a gap after `last`.
    pub(crate) fn note(&mut self, place: Point) {
        assert!(place.index <= self.last.saturating_add(1), "an entry never leaves a gap behind it");
        let replaces = place.index <= self.last;
        while self.points.back().is_some_and(|point| point.index >= place.index) {
            self.points.pop_back();
        }
        let near = self.points.back().is_some_and(|point| {
            point.sequence == place.sequence && place.offset.saturating_sub(point.offset) < SPACING_BYTES
        });
        if replaces || !near {
            self.points.push_back(place);
        }
        self.last = place.index;
        self.first = self.first.min(place.index);
    }

    /// Forgets every entry; the log goes on at `next`.
    pub(crate) fn restart_at(&mut self, next: u64) {
        *self = Positions::starting_at(next);
    }

    /// Forgets entries in segments before `sequence`.
    pub(crate) fn drop_before(&mut self, sequence: u64) {
        while self.points.front().is_some_and(|point| point.sequence < sequence) {
            self.points.pop_front();
        }
        // The first live entry of a segment is always a point, so the front one is the new start.
        self.first = self.points.front().map_or(self.last.saturating_add(1), |point| point.index);
    }

    /// The point from which to walk to `index`, and the one at which to stop walking.
    pub(crate) fn locate(&self, index: u64) -> (Option<Point>, Option<Point>) {
        let after = self.points.partition_point(|point| point.index <= index);
        let at = after.checked_sub(1).and_then(|before| self.points.get(before).copied());
        (at, self.points.get(after).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(index: u64, sequence: u64, offset: u64) -> Point {
        Point { index, sequence, offset }
    }

    /// A reader led onto a replaced entry would send a follower what the cluster has discarded.
    #[test]
    fn replaced_entries_are_never_walked_over() {
        let mut positions = Positions::starting_at(5);
        for (index, offset) in [(5, 100), (6, 200), (7, 300), (6, 400), (7, 500)] {
            positions.note(point(index, 1, offset));
        }
        assert_eq!(positions.locate(5), (Some(point(5, 1, 100)), Some(point(6, 1, 400))));
        assert_eq!(positions.locate(7), (Some(point(6, 1, 400)), None));
        assert_eq!((positions.first(), positions.last()), (5, 7));
    }

    /// After old segments go, asking for their entries must lead to "send a snapshot", not to a wrong place.
    #[test]
    fn dropping_segments_moves_the_first_entry() {
        let mut positions = Positions::starting_at(1);
        for (index, sequence) in [(1, 1), (2, 1), (3, 2), (4, 3)] {
            positions.note(point(index, sequence, 100));
        }
        positions.drop_before(2);
        assert_eq!((positions.first(), positions.last()), (3, 4));
        positions.drop_before(9);
        assert_eq!((positions.first(), positions.last()), (5, 4));
    }
}
