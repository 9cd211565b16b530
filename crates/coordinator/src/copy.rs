//! Everything a node holds, as of one revision: what backups are made of.

use std::sync::Arc;

use tidelock_model::{Alarm, Auth, AuthRefusal, KeyValue, LeaseId, Member, Revision};

/// What there is besides versions of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyHead {
    /// The revision the copy is of.
    pub revision: Revision,
    /// The oldest revision that can be read in it; zero while nothing was compacted.
    pub compacted: Revision,
    /// All leases that are no sessions, with their time to live in seconds, ascending by id.
    pub leases: Vec<(LeaseId, u32)>,
    /// The members by id.
    pub members: Vec<Member>,
    /// The alarms that are raised.
    pub alarms: Vec<Alarm>,
    /// Users and roles, and whether they are asked for.
    pub auth: Arc<Auth>,
}

/// Why a copy could not be taken to its end. What was read so far must not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// This node was sent a newer state by the leader meanwhile. Begin again.
    #[error("the node was sent a newer state while it was being copied; try again")]
    Replaced,
    /// This node has just joined and was not sent the state yet. Ask another, or wait.
    #[error("the node was not sent the cluster's state yet; ask another member")]
    NothingYet,
    /// Everything is in a copy, so it is for administrators.
    #[error(transparent)]
    Refused(#[from] AuthRefusal),
    /// The node is stopping. Ask another.
    #[error("the node is shutting down")]
    Stopping,
}

/// A copy under way. Writers are held up for a page at a time only, and compaction cannot take anything
/// away from it; dropping it ends that. Calls block for a moment, so not on threads that serve others.
pub trait StateCopy: Send {
    /// Everything but the versions.
    fn head(&self) -> &CopyHead;

    /// The next versions, ordered by their revisions and positions: first those that are visible at the
    /// compacted revision, then every change since, deletions included. None left: that was all.
    fn next_page(&mut self) -> Result<Vec<KeyValue>, CopyError>;
}
