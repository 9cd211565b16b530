//! The one door between the protocols and everything below: propose, read, watch, and the few calls
//! about leases and members that are neither.
//!
//! Faces hold an `Arc<dyn Coordinator>` and see nothing else of the node. What comes back is decided:
//! an [`Outcome`] was agreed on by the cluster, an error says what the caller may do next.

mod copy;
mod error;
mod renewed;
mod status;
mod watch;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tidelock_model::{
    Auth, Caller, Command, LeaseId, LeaseInfo, Member, MemberChange, NodeId, Outcome, Query, QueryAnswer, RequestId,
    Revision, Term,
};

pub use copy::{CopyError, CopyHead, StateCopy};
pub use error::{MemberError, ProposeError, ReadError};
pub use renewed::Renewed;
pub use status::{PeerStatus, Role, Status};
pub use watch::{EndedSessions, Subscription, WatchClosed, WatchNotice, WatchRequest, WatcherId};

/// A boxed future; one small allocation per call buys one vtable for all faces.
pub type Answering<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How fresh a read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// Sees every write acknowledged before the read began (R3); costs a round to a majority, shared
    /// with all reads waiting at the time.
    Linearizable,
    /// What this node has, which may be behind others, but never behind what it has shown before, also before it was
    /// started again (H14): until it once asked the cluster, it does so for these reads, too.
    Local,
}

/// The node, as the protocols see it. Everything is asked on behalf of a [`Caller`], and refused if that may
/// not (A1): reads at the moment of reading, writes here and again when they are carried out.
pub trait Coordinator: Send + Sync + 'static {
    /// Users and roles, as of what this node has carried out. Cheap enough for every call.
    fn auth(&self) -> Arc<Auth>;

    /// Puts `command` through the log and waits for its outcome. With a `request` id, a retry of the
    /// same request gets the first outcome and has no second effect (H25).
    fn propose(
        &self,
        caller: Caller,
        command: Command,
        request: Option<RequestId>,
    ) -> Answering<'_, Result<Outcome, ProposeError>>;

    /// Whether so many writes wait here that another would be refused. A hint, for whoever can refuse more cheaply than by
    /// proposing. Cheap enough for every call.
    fn is_overloaded(&self) -> bool {
        false
    }

    /// Reads from this node's store.
    fn read(
        &self,
        caller: Caller,
        query: Query,
        consistency: Consistency,
    ) -> Answering<'_, Result<QueryAnswer, ReadError>>;

    /// Opens a connection's worth of watches: one bounded queue, any number of watchers.
    fn subscribe(&self) -> Arc<dyn Subscription>;

    /// Renews a lease at the leader. `None`: no such lease. An answer means the lease existed at a
    /// moment within this call (L4).
    fn keep_alive(&self, caller: Caller, lease: LeaseId) -> Answering<'_, Result<Option<LeaseInfo>, ReadError>>;

    /// Renews many leases at the leader. An answer means that every lease it does not name existed at a moment
    /// within this call and has its whole time to live again (L4). A node asks the leader once for all of them;
    /// what is here is for whoever has no leader to ask.
    fn renew_leases(&self, caller: Caller, leases: Vec<LeaseId>) -> Answering<'_, Result<Renewed, ReadError>> {
        Box::pin(async move {
            let mut renewed = Renewed::default();
            for lease in leases {
                if self.keep_alive(caller.clone(), lease).await?.is_none() {
                    renewed.gone.push(lease);
                }
            }
            Ok(renewed)
        })
    }

    /// What the leader knows of a lease, without renewing it. `None`: no such lease.
    fn lease_info(&self, caller: Caller, lease: LeaseId) -> Answering<'_, Result<Option<LeaseInfo>, ReadError>>;

    /// Changes who is in the cluster; answers with the members after the change.
    fn change_members(&self, caller: Caller, change: MemberChange) -> Answering<'_, Result<Vec<Member>, MemberError>>;

    /// Hands leadership to `to` and waits until it leads.
    fn transfer_leadership(&self, caller: Caller, to: NodeId) -> Answering<'_, Result<(), MemberError>>;

    /// Takes a snapshot of this node's state and waits until it is durable. It happens anyway when the
    /// journal has grown; this is for operators and measurements.
    fn take_snapshot(&self, caller: Caller) -> Answering<'_, Result<(), String>>;

    /// Begins a copy of everything this node holds, for a backup. It holds every write acknowledged before
    /// the call as long as there is a majority to ask, and what this node has if there is none: backups
    /// are wanted most when a cluster cannot be had any more. Whoever has no store has nothing to copy.
    fn copy_state(&self, _caller: Caller) -> Answering<'_, Result<Box<dyn StateCopy>, CopyError>> {
        Box::pin(async { Err(CopyError::NothingYet) })
    }

    /// Waits until this node has freed what was compacted.
    fn wait_until_swept(&self) -> Answering<'_, ()>;

    /// The current term, as response headers carry it. Cheap enough for every call.
    fn term(&self) -> Term;

    /// The store's revision at this node. Cheap enough for every call.
    fn revision(&self) -> Revision;

    /// What this node knows of itself and its peers, now. Never waits.
    fn status(&self) -> Status;
}
