//! When a node that finds no leader is left for another.
//!
//! A node that is cut off from the others answers, and so is not silent, but nothing can be done there. If no node has
//! a leader, going from one to the next helps nobody: the stay is longer each time until one of them works.

use std::time::Duration;

use crate::clock::Moment;

/// The first stay: an election takes about as long.
const FIRST_STAY: Duration = Duration::from_secs(1);
/// The longest.
const LONGEST_STAY: Duration = Duration::from_secs(8);

/// What the nodes so far could not do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leaderless {
    /// When the node was first asked for what it could not do.
    since: Option<Moment>,
    /// How many were left since one worked.
    left: u32,
}

impl Leaderless {
    /// What the node was asked for then it has not done.
    pub(crate) fn asked_in_vain(&mut self, asked: Moment) {
        self.since = Some(self.since.map_or(asked, |since| since.min(asked)));
    }

    /// The node did something.
    pub(crate) fn works(&mut self) {
        *self = Leaderless::default();
    }

    /// When the node is to be left, if it does nothing until then.
    pub(crate) fn leave_at(&self) -> Option<Moment> {
        let stay = FIRST_STAY.saturating_mul(1 << self.left.min(16)).min(LONGEST_STAY);
        self.since.map(|since| since + stay)
    }

    /// The node is left.
    pub(crate) fn leave(&mut self) {
        (self.since, self.left) = (None, self.left + 1);
    }

    /// The connection is gone, for whatever reason.
    pub(crate) fn disconnected(&mut self) {
        self.since = None;
    }
}
