//! The highest number known by any moment, mostly a revision: what a later request must not be behind.

use crate::history::{Micros, Stamp};

use super::replay::EMPTY_STORE;

/// The highest number over time.
pub(crate) struct Horizon {
    least: i64,
    /// Only the moments at which it rose, in order.
    rises: Vec<(Stamp, i64)>,
}

impl Horizon {
    /// Made from every sighting of a revision, in any order.
    pub(crate) fn of_revisions(sightings: Vec<(Stamp, i64)>) -> Horizon {
        Horizon::new(EMPTY_STORE, sightings)
    }

    /// Made from every sighting, in any order; `least` before the first.
    pub(crate) fn new(least: i64, mut sightings: Vec<(Stamp, i64)>) -> Horizon {
        sightings.sort_unstable();
        let mut highest = least;
        sightings.retain(|(_, number)| {
            let rises = *number > highest;
            highest = highest.max(*number);
            rises
        });
        Horizon { least, rises: sightings }
    }

    /// The highest one seen before a moment.
    pub(crate) fn before(&self, moment: Stamp) -> i64 {
        self.nth(self.rises.partition_point(|(stamp, _)| stamp.order < moment.order))
    }

    /// The highest one seen by a time.
    pub(crate) fn by(&self, at: Micros) -> i64 {
        self.nth(self.rises.partition_point(|(stamp, _)| stamp.at <= at))
    }

    fn nth(&self, count: usize) -> i64 {
        self.rises[..count].last().map_or(self.least, |(_, number)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stale read is judged by this: it must forget nothing and not count what came at the same moment.
    #[test]
    fn it_tells_the_highest_revision_before_a_moment() {
        let stamp = |order| Stamp { order, at: order * 10 };
        let horizon = Horizon::of_revisions(vec![(stamp(5), 7), (stamp(2), 3), (stamp(3), 9), (stamp(9), 10)]);
        let before: Vec<i64> = [0, 2, 3, 4, 6, 10].map(|order| horizon.before(stamp(order))).to_vec();
        assert_eq!(before, [1, 1, 3, 9, 9, 10]);
        assert_eq!((horizon.by(19), horizon.by(20), horizon.by(90)), (1, 3, 10));
    }
}
