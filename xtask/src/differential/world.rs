//! What the generator knows of the servers, so that its requests are near the interesting places.

use tidelock_etcd_api::etcdserverpb::LeaseGrantResponse;
use tidelock_etcd_api::v3electionpb::LeaderKey;

use super::call::{Answer, Call, Reply};
use super::keys::one_in;
use crate::random::Random;

/// Leaderships that are remembered; the oldest are forgotten.
const LEADERSHIPS_KEPT: usize = 8;
/// Revisions around an interesting one that are tried.
const NEAR: u64 = 25;

/// What is known.
#[derive(Default)]
pub(super) struct World {
    /// The store's revision.
    pub(super) revision: i64,
    /// The last revision that was compacted.
    pub(super) compacted: i64,
    /// Whether authentication is on.
    pub(super) auth: bool,
    /// Leases that were granted and not revoked.
    pub(super) leases: Vec<i64>,
    /// Leaderships that were won, lost ones among them.
    pub(super) leaderships: Vec<LeaderKey>,
}

impl World {
    /// Learns from an answer.
    pub(super) fn learn(&mut self, call: &Call, answer: &Answer) {
        if let Some(revision) = answer.revision() {
            self.revision = self.revision.max(revision);
        }
        let Answer::Reply(reply) = answer else { return };
        match (call, &**reply) {
            (Call::AuthEnable(_), _) => self.auth = true,
            (Call::AuthDisable(_), _) => self.auth = false,
            (Call::Compact(request), _) => self.compacted = self.compacted.max(request.revision),
            (_, Reply::LeaseGrant(LeaseGrantResponse { id, .. })) => self.leases.push(*id),
            (Call::LeaseRevoke(request), _) => self.leases.retain(|id| *id != request.id),
            (_, Reply::Campaign(reply)) => {
                self.leaderships.extend(reply.leader.clone());
                let excess = self.leaderships.len().saturating_sub(LEADERSHIPS_KEPT);
                self.leaderships.drain(..excess);
            }
            _ => {}
        }
    }

    /// A revision to read at: mostly now, else near now, near the compacted one, or nonsense.
    pub(super) fn revision_to_read(&self, random: &mut Random) -> i64 {
        match random.below(20) {
            0..12 => 0,
            12..16 => self.past(random),
            16 | 17 => self.compacted - 2 + random.below(5) as i64,
            18 => self.revision + random.below(4) as i64,
            _ => odd_number(random),
        }
    }

    /// A revision a little before now.
    pub(super) fn past(&self, random: &mut Random) -> i64 {
        (self.revision - random.below(NEAR) as i64).max(1)
    }

    /// A number that some key's revision or version may be compared with.
    pub(super) fn number_to_compare(&self, random: &mut Random) -> i64 {
        match random.below(8) {
            0..3 => random.below(4) as i64,
            3..7 => self.past(random),
            _ => odd_number(random),
        }
    }

    /// The id of a lease: mostly one that exists.
    pub(super) fn lease(&self, random: &mut Random) -> i64 {
        if self.leases.is_empty() || one_in(random, 6) {
            return lease_id(random);
        }
        self.leases[random.below(self.leases.len() as u64) as usize]
    }
}

/// A lease id out of few.
pub(super) fn lease_id(random: &mut Random) -> i64 {
    match random.below(14) {
        0 => -5,
        1 => i64::MAX,
        2 => i64::MIN,
        other => other as i64 * 1000,
    }
}

/// Numbers that programs trip over.
pub(super) fn odd_number(random: &mut Random) -> i64 {
    const ODD: [i64; 6] = [-1, 1, i64::MAX, i64::MIN, -100, 1 << 40];
    ODD[random.below(ODD.len() as u64) as usize]
}
