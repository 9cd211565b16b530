//! The replicated machine, pure: committed entries in, outcomes and events out.
//!
//! [`State`] is what every replica holds and agrees on: one multi-version keyspace with one revision
//! counter, the leases that own keys, the members, the alarms, users and roles, and what is needed to carry out every request
//! once. It reads no clock, draws no random number, performs no IO and starts no thread; the same
//! entries give the same state, digest included, on every machine (R5).
//!
//! Applying is total (Z1): whatever a committed entry holds, the answer is an outcome, never a panic.
//! The one exception is an entry out of order, which is a bug of the node and must stop it.
//!
//! Where to look: `apply` (what a command does), `txn` (transactions), `keyspace` (versions and how
//! they are found), `history` (watching and compaction), `lease`, `requests` (exactly once), `read`,
//! `auth` (who may do what), `znodes` (ZooKeeper's tree), `native` (locks and their kin), `snapshot`, `digest`. Not here: when leases
//! expire, and anything about a wire protocol.

mod ahead;
mod apply;
mod auth;
mod change;
mod copy;
mod digest;
mod history;
mod import;
mod keyspace;
mod lease;
mod load;
mod native;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod properties;
mod read;
mod requests;
mod snapshot;
#[cfg(test)]
mod testing;
mod txn;
mod versions;
mod znodes;

use std::sync::Arc;

use tidelock_model::{Alarms, Auth, Key, LeaseId, LogIndex, LogTime, Member, Members, Revision};

pub use apply::{Applied, Effects, LeaseChange};
pub use copy::{ChangePosition, ChangesPage};
pub use history::{Changes, EventsPage};
pub use import::{ImportError, Imported, StateImport};
pub use lease::{ByLease, Lease};
pub use load::{LoadError, StateLoader};
pub use read::RangePage;
pub use requests::{ORIGIN_WINDOW, REQUESTS_REMEMBERED, REQUESTS_REMEMBERED_BYTES};
pub use snapshot::{SnapshotHead, SnapshotPage, SnapshotPosition};

use digest::LiveSum;
use keyspace::Keyspace;
use lease::Leases;
use native::Sessions;
use requests::Requests;

/// Everything the replicas agree on, as of one log index.
pub struct State {
    /// Last entry carried out.
    applied: LogIndex,
    /// Revision of the last change.
    revision: Revision,
    /// Oldest revision that can be read or watched from; zero while nothing was compacted.
    compacted: Revision,
    /// Greatest time stamp seen; never runs back.
    clock: LogTime,
    members: Members,
    alarms: Alarms,
    auth: Arc<Auth>,
    keyspace: Keyspace,
    leases: Leases,
    requests: Requests,
    /// Native sessions, beside their leases.
    sessions: Sessions,
    /// Sum over what lives, kept up with every change.
    live_sum: LiveSum,
    /// Room for byte forms that are looked at and forgotten. No part of the state.
    scratch: Vec<u8>,
}

impl State {
    /// An empty store, at revision 1, before the first entry.
    #[must_use]
    pub fn new() -> State {
        State {
            applied: LogIndex(0),
            revision: Revision::FIRST,
            compacted: Revision(0),
            clock: LogTime(0),
            members: Members::default(),
            alarms: Alarms::default(),
            auth: Arc::default(),
            keyspace: Keyspace::new(),
            leases: Leases::new(),
            requests: Requests::new(),
            sessions: Sessions::new(),
            live_sum: LiveSum::default(),
            scratch: Vec::new(),
        }
    }

    /// The last entry carried out.
    #[must_use]
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// The revision of the last change.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The oldest revision that can be read or watched from; zero while nothing was compacted.
    #[must_use]
    pub fn compacted(&self) -> Revision {
        self.compacted
    }

    /// The greatest time stamp of any entry so far.
    #[must_use]
    pub fn clock(&self) -> LogTime {
        self.clock
    }

    /// Who is in the cluster.
    #[must_use]
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// What is declared to be wrong.
    #[must_use]
    pub fn alarms(&self) -> &Alarms {
        &self.alarms
    }

    /// How many keys exist.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.keyspace.live_len() as u64
    }

    /// Bytes of keys and values held, superseded versions included.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.keyspace.data_bytes()
    }

    /// How many leases exist.
    #[must_use]
    pub fn lease_count(&self) -> u64 {
        self.leases.len() as u64
    }

    /// All leases, ascending by id.
    pub fn leases(&self) -> impl Iterator<Item = (LeaseId, Lease)> + '_ {
        self.leases.iter()
    }

    /// The leases that are neither a session of the native API nor one of ZooKeeper's, ascending by id. What shape an id has
    /// does not tell: those that clients of etcd have drawn look like any.
    pub fn leases_without_session(&self) -> impl Iterator<Item = (LeaseId, Lease)> + '_ {
        let mut sessions = self.sessions.iter().map(|(id, _)| id).peekable();
        self.leases().filter(move |(id, _)| {
            while sessions.next_if(|session| session < id).is_some() {}
            sessions.peek() != Some(id) && !self.is_znode_session(*id)
        })
    }

    /// One lease, if it exists.
    #[must_use]
    pub fn lease(&self, id: LeaseId) -> Option<Lease> {
        self.leases.get(id)
    }

    /// Whether the lease exists.
    #[must_use]
    pub fn has_lease(&self, id: LeaseId) -> bool {
        self.leases.get(id).is_some()
    }

    /// The keys a lease owns, ascending; none if there is no such lease.
    pub fn lease_keys(&self, id: LeaseId) -> impl Iterator<Item = &Key> + '_ {
        self.leases.keys(id)
    }

    /// How many keys a lease owns.
    #[must_use]
    pub fn lease_keys_count(&self, id: LeaseId) -> usize {
        self.leases.owned(id)
    }

    /// Sets the first members of a new cluster, before any entry.
    pub fn bootstrap_members(&mut self, members: Vec<Member>) {
        assert_eq!(self.applied, LogIndex(0), "the first members are set before the first entry");
        self.members.by_id = members.into_iter().map(|member| (member.id, member)).collect();
    }
}

impl Default for State {
    fn default() -> State {
        State::new()
    }
}
