//! Many leases renewed by one message: how the sessions that a node heard from since the last time stay alive.
//!
//! - One batch is one frame to the leader and one frame back, however many leases it names, and nothing in the
//!   log. The leader confirms once for all of it that it still leads (L4).
//! - A batch that got lost is sent again. One that comes late finds its leases renewed later than their owners
//!   were heard from: that lengthens their lives and never shortens them (L1).
//! - The answer names the leases that are over, and those whose end is on its way through the log: nothing is
//!   said about the latter, and who wants to know asks again. All others were renewed.
//!
//! Look next: `lease_clock` (what a renewal does), `read_barrier` (why the leader waits before it answers).

use std::collections::BTreeMap;
use std::sync::Arc;

use tidelock_model::{DecodeError, LeaseId, NodeId, Reader, put_varint};

use crate::effects::{Renewal, RenewalReply, Reply, Token};
use crate::peer_message::PeerMessage;
use crate::read_barrier::Waiter;
use crate::replica::Replica;

/// Most leases in one batch: some hundred kilobytes at the very worst, and usually three bytes each.
pub const RENEWALS_MAX: usize = 32 * 1024;
/// Ticks after which a batch is sent to the leader again.
const RESEND_TICKS: u64 = 3;

struct Wait {
    renewal: Arc<Renewal>,
    since: u64,
    sent: Option<u64>,
}

/// The batches of this node that wait for the leader's answer. How many may wait is up to the callers.
#[derive(Default)]
pub(crate) struct Renewals {
    waiting: BTreeMap<Token, Wait>,
}

impl Renewals {
    pub(crate) fn add(&mut self, renewal: Renewal, tick: u64) {
        self.waiting.insert(renewal.token, Wait { renewal: Arc::new(renewal), since: tick, sent: None });
    }

    /// Whoever led until now may not have heard of them.
    pub(crate) fn send_again(&mut self) {
        self.waiting.values_mut().for_each(|wait| wait.sent = None);
    }

    /// Once a tick: gives up who waited too long, and sends again what got no answer.
    pub(crate) fn tick(&mut self, tick: u64, timeout: u64, replies: &mut Vec<Reply>) {
        self.waiting.retain(|token, wait| {
            if tick.saturating_sub(wait.since) > timeout {
                replies.push(Reply::RenewalFailed { token: *token });
                return false;
            }
            if wait.sent.is_some_and(|sent| tick.saturating_sub(sent) >= RESEND_TICKS) {
                wait.sent = None;
            }
            true
        });
    }

    fn take_unsent(&mut self, tick: u64) -> Vec<Arc<Renewal>> {
        let mut unsent = Vec::new();
        for wait in self.waiting.values_mut().filter(|wait| wait.sent.is_none()) {
            wait.sent = Some(tick);
            unsent.push(Arc::clone(&wait.renewal));
        }
        unsent
    }
}

impl Replica {
    pub(crate) fn send_renewals(&mut self) {
        let Some(leader) = self.consensus.leader() else { return };
        for renewal in self.renewals.take_unsent(self.tick) {
            if leader == self.settings.node {
                self.barrier.add(Waiter::Renewal { from: leader, renewal }, self.tick);
            } else {
                let frame = PeerMessage::Renewal(Renewal::clone(&renewal)).to_frame();
                self.effects.frames.push((leader, frame));
            }
        }
    }

    /// The leader's answer, for this node or for a follower.
    pub(crate) fn renewed(&mut self, to: NodeId, reply: RenewalReply) {
        if to != self.settings.node {
            return self.effects.frames.push((to, PeerMessage::Renewed(reply).to_frame()));
        }
        // A second answer to a batch that was sent twice finds nobody.
        if self.renewals.waiting.remove(&reply.token).is_some() {
            self.effects.replies.push(Reply::Renewed(reply));
        }
    }
}

/// Leases in ascending order, each as its distance from the one before: ids that were given out one after the
/// other take a few bytes instead of nine.
pub(crate) fn put_leases(out: &mut Vec<u8>, leases: &[LeaseId]) {
    put_varint(out, leases.len() as u64);
    let mut before = i64::MIN;
    for lease in leases {
        put_varint(out, lease.0.abs_diff(before));
        before = lease.0;
    }
}

pub(crate) fn read_leases(input: &mut Reader) -> Result<Vec<LeaseId>, DecodeError> {
    let mut before = i64::MIN;
    let count = input.count("the number of leases", RENEWALS_MAX)?;
    let mut next = || {
        before = before.checked_add_unsigned(input.varint()?).ok_or(DecodeError::BadNumber)?;
        Ok(LeaseId(before))
    };
    (0..count).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Ten thousand sessions of one node must be a small message, or batching them was for nothing.
    #[test]
    fn leases_given_out_one_after_the_other_take_three_bytes_each() {
        let leases: Vec<LeaseId> = (0..10_000).map(|number| LeaseId(1 << 56 | (1_000_000 + number) << 12)).collect();
        let mut out = Vec::new();
        put_leases(&mut out, &leases);
        assert!(out.len() < 3 * leases.len() + 20, "{} bytes", out.len());
    }

    proptest! {
        #[test]
        fn leases_survive_the_round_trip(mut ids in proptest::collection::vec(any::<i64>(), 0..100)) {
            ids.sort_unstable();
            let leases: Vec<LeaseId> = ids.into_iter().map(LeaseId).collect();
            let mut out = Vec::new();
            put_leases(&mut out, &leases);
            let mut input = Reader::new(out.into());
            prop_assert_eq!(read_leases(&mut input), Ok(leases));
            prop_assert!(input.finish().is_ok());
        }
    }
}
