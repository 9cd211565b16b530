//! What the threads and the callers of one node share.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tidelock_coordinator::{ProposeError, ReadError, Renewed};
use tidelock_model::{Auth, LeaseInfo, Member, Members, NodeId, Outcome, Revision};
use tidelock_replica::watch_hub::WatchControl;
use tidelock_replica::{Input, MemberRefusal, Ready, Standing, Task, consensus};
use tidelock_state::State;
use tokio::sync::watch;

use crate::config::NodeLimits;
use crate::identity::Identity;
use crate::inbox::Inbox;
use crate::measurements::Measurements;
use crate::snapshots::Received;
use crate::waiters::Waiters;

/// Work for the thread that owns the state.
pub(crate) enum ApplyTask {
    Do(Task),
    Watch(WatchControl),
    /// Take a snapshot soon, whether or not the journal calls for one.
    TakeSnapshot,
    /// The consensus engine has decided on the oldest snapshot received: if it wanted it, the task to
    /// install it came before this.
    DropReceived,
}

/// Work for the thread that owns the journal.
pub(crate) enum JournalTask {
    Persist(Ready),
    Fetch(consensus::Fetch),
    /// A snapshot covers everything up to here.
    Trim(tidelock_model::LogIndex),
}

/// Why a node stopped by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopReason {
    /// The journal cannot be trusted any more; nothing was acknowledged that is not durable.
    #[error("the journal failed: {0}; restart the node, and replace its disk if this happens again")]
    JournalFailed(String),
    /// The cluster decided against this node.
    #[error("{0}")]
    Fatal(#[from] tidelock_replica::Fatal),
    /// A thread died of a broken invariant: going on could do harm.
    #[error("the {0} thread panicked; this is a bug: keep the log and report it")]
    Panicked(String),
    /// It was asked to.
    #[error("the node was shut down")]
    Requested,
}

/// Everything shared between the threads and the callers of a node.
pub(crate) struct Shared {
    pub(crate) identity: Identity,
    pub(crate) boot: u64,
    pub(crate) limits: NodeLimits,
    pub(crate) request_timeout: Duration,
    pub(crate) state: RwLock<State>,
    /// Oldest revisions that someone still reads at; sweeping stops before the first.
    pub(crate) pins: Mutex<BTreeMap<Revision, usize>>,
    pub(crate) consensus: Inbox<Input>,
    pub(crate) apply: Inbox<ApplyTask>,
    pub(crate) journal: Inbox<JournalTask>,
    pub(crate) proposals: Waiters<Result<Outcome, ProposeError>>,
    pub(crate) reads: Waiters<Result<(), ReadError>>,
    pub(crate) leases: Waiters<Result<Option<LeaseInfo>, ReadError>>,
    pub(crate) renewals: Waiters<Result<Renewed, ReadError>>,
    pub(crate) member_calls: Waiters<Result<Vec<Member>, MemberRefusal>>,
    pub(crate) transfers: Waiters<Result<(), MemberRefusal>>,
    pub(crate) term: AtomicU64,
    pub(crate) standing: Mutex<Standing>,
    pub(crate) members: Mutex<Members>,
    /// Users and roles as of what was carried out; the same as in the state, without its lock.
    pub(crate) auth: RwLock<Arc<Auth>>,
    /// Whether anything is checked: most clusters check nothing, and pay nothing.
    pub(crate) checks: AtomicBool,
    pub(crate) disk_full: AtomicBool,
    pub(crate) leader_full: AtomicBool,
    pub(crate) disk_bytes: AtomicU64,
    pub(crate) journal_written: AtomicU64,
    pub(crate) proposals_failed: AtomicU64,
    pub(crate) watchers: AtomicU64,
    pub(crate) measurements: Arc<Measurements>,
    pub(crate) next_subscriber: AtomicU64,
    /// Snapshots received from the leader that the consensus engine was not asked about yet.
    pub(crate) received: Mutex<VecDeque<Received>>,
    /// Whether all that was agreed on before this node started is carried out here: a round of reads was waited for.
    pub(crate) regained: AtomicBool,
    /// Counts states that were replaced as a whole, so that a snapshot under way notices.
    pub(crate) installs: AtomicU64,
    pub(crate) snapshots_begun: AtomicU64,
    pub(crate) snapshots_finished: watch::Sender<SnapshotFinished>,
    /// Whether what was compacted is being freed.
    pub(crate) sweeping: watch::Sender<bool>,
    pub(crate) stopped: watch::Sender<Option<StopReason>>,
}

/// How the last snapshot ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct SnapshotFinished {
    /// Counts those begun since the node started.
    pub(crate) number: u64,
    /// Why there is none, if there is none.
    pub(crate) problem: Option<String>,
}

/// Keeps the versions visible at a revision from being swept while someone reads at it.
pub(crate) struct Pin {
    shared: Arc<Shared>,
    revision: Revision,
}

impl Pin {
    /// To be called while the state is locked, so that nothing is swept in between.
    pub(crate) fn new(shared: &Arc<Shared>, revision: Revision) -> Pin {
        *shared.pins.lock().entry(revision).or_default() += 1;
        Pin { shared: shared.clone(), revision }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.shared.pins.lock();
        if let Some(count) = pins.get_mut(&self.revision) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&self.revision);
            }
        }
    }
}

impl Shared {
    /// What may be swept now: everything older than the oldest pin.
    pub(crate) fn keep_from(&self) -> Revision {
        self.pins.lock().keys().next().copied().unwrap_or(Revision(u64::MAX))
    }

    /// Stops the node: the first reason is the one that counts.
    pub(crate) fn stop(&self, reason: StopReason) {
        self.stopped.send_if_modified(|current| {
            let first = current.is_none();
            if first {
                *current = Some(reason);
            }
            first
        });
        self.consensus.close();
        self.apply.close();
        self.journal.close();
        self.proposals.clear();
        self.reads.clear();
        self.leases.clear();
        self.renewals.clear();
        self.member_calls.clear();
        self.transfers.clear();
    }

    /// Follows the users and roles of a state that has just been changed, before anybody is answered.
    pub(crate) fn follow_auth(&self, state: &State) {
        if !Arc::ptr_eq(&self.auth.read(), state.auth()) {
            *self.auth.write() = Arc::clone(state.auth());
            self.checks.store(state.auth().enabled, Ordering::Release);
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.borrow().is_some()
    }

    /// Whom to talk to, and where.
    pub(crate) fn peer_addresses(members: &[Member]) -> Vec<(NodeId, Vec<String>)> {
        members.iter().map(|member| (member.id, member.peer_addresses.clone())).collect()
    }
}
