//! What faces call: the [`Coordinator`] of a running node.
//!
//! A write is encoded here, handed to the consensus thread, and answered by the apply thread. A read
//! waits for a confirmation if it must be fresh, then reads the state under a short shared lock; a long
//! one goes page by page at one revision, so that it never holds up a writer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidelock_coordinator::{
    Answering, Consistency, Coordinator, CopyError, MemberError, PeerStatus, ProposeError, ReadError, Renewed, Role,
    StateCopy, Status, Subscription,
};
use tidelock_model::limits::COMMAND_BYTES_MAX;
use tidelock_model::{
    Auth, AuthRefusal, Caller, Command, Errand, LeaseId, LeaseInfo, LogIndex, Member, MemberChange, MemberRole, Need,
    NodeId, OpAnswer, Origin, Outcome, Proposal, Query, QueryAnswer, RangeOp, Refusal, RequestId, Revision, Term, Wire,
};
use tidelock_replica::{Call, Input, LeaseCall, MemberRefusal, RENEWALS_MAX, Renewal};
use tidelock_state::State;

use crate::inbox::Refused;
use crate::links::Links;
use crate::shared::{ApplyTask, Pin, Shared};
use crate::state_copy::NodeCopy;
use crate::subscription::NodeSubscription;
use crate::waiters::Room;

/// Inputs that may wait for the consensus thread before callers are turned away. Reports of finished
/// work and peers' frames come on top.
const INPUTS_WAITING_MAX: usize = 200_000;
/// With more requests than these under way, the next are left to the consensus thread: the more it finds when it comes
/// to them, the less each one costs.
const FEW: usize = 4;
/// Calls about leases that may wait at this node. Apart from the other limits, so that a flood of
/// writes never keeps a lease from being renewed.
const LEASE_CALLS_WAITING_MAX: usize = 100_000;
/// Batches of renewals that may wait at this node. A face has one under way at a time; the rest are those whose
/// callers went away while nobody led.
const RENEWALS_WAITING_MAX: usize = 256;
/// Compactions, alarms and changes of users that may wait at this node beside what clients write, and their bytes: without
/// them a node that has too much to do would also hold more and more.
const UPKEEP_WAITING_MAX: usize = 256;
const UPKEEP_BYTES_WAITING_MAX: usize = 1 << 20;
/// Changes of members that may wait at this node.
const MEMBER_CALLS_WAITING_MAX: usize = 64;
/// Keys read under one hold of the lock.
const PAGE_ITEMS: usize = 1_000;

/// A running node, as faces see it.
pub(crate) struct NodeHandle<L> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) links: L,
}

impl<L: Links> NodeHandle<L> {
    /// Whether `caller` may do what needs this, as far as this node knows. Writes are asked about again when
    /// they are carried out; this spares the log what would be refused there.
    fn authorise<'a>(&self, caller: &Caller, needs: impl FnOnce(&mut Vec<Need<'a>>)) -> Result<(), AuthRefusal> {
        if caller.is_internal() || !self.shared.checks.load(Ordering::Acquire) {
            return Ok(());
        }
        self.shared.state.read().authorise(caller, needs)
    }

    async fn propose_command(
        &self,
        caller: Caller,
        command: Command,
        request: Option<RequestId>,
    ) -> Result<Outcome, ProposeError> {
        let shared = &self.shared;
        self.authorise(&caller, |needs| command.needs(needs))?;
        check_readable(&command)?;
        if command.grows() && self.is_full() {
            return Err(ProposeError::NoSpace { node: shared.identity.node });
        }
        let overloaded = |waiting| ProposeError::Overloaded { waiting };
        let room = self.room_for(&command);
        if !shared.proposals.have(room) {
            // Before it is encoded, and before it has a number: those that are refused must not move on the window in which
            // others' numbers count.
            return Err(overloaded(shared.proposals.waiting()));
        }
        let number = shared.proposals.number();
        let origin = Origin { node: shared.identity.node, boot: shared.boot, number };
        let bytes = Proposal { origin, request, caller, command }.to_bytes();
        debug_assert!(bytes.len() > COMMAND_BYTES_MAX || Proposal::from_bytes(bytes.clone().into()).is_ok());
        if bytes.len() > COMMAND_BYTES_MAX {
            return Err(ProposeError::TooLarge { bytes: bytes.len(), max: COMMAND_BYTES_MAX });
        }
        let answer = shared.proposals.add_with(number, bytes.len(), room).map_err(overloaded)?;
        let call = Input::Call(Call::Propose { number, bytes: bytes.into() });
        let few = shared.proposals.waiting() <= FEW;
        if let Err(refused) = shared.consensus.offer(call, INPUTS_WAITING_MAX, few) {
            shared.proposals.remove(number);
            return Err(match refused {
                Refused::Full { waiting } => overloaded(waiting),
                Refused::Closed => ProposeError::Stopping,
            });
        }
        // It was handed over: it may be in the journal, or on its way to the leader.
        answer.await.unwrap_or(Err(ProposeError::Interrupted))
    }

    /// How many proposals, and how many bytes of them, may wait before this one is refused.
    fn room_for(&self, command: &Command) -> Room {
        let limits = &self.shared.limits;
        let (more, more_bytes) =
            if command.is_upkeep() { (UPKEEP_WAITING_MAX, UPKEEP_BYTES_WAITING_MAX) } else { (0, 0) };
        Room { waiting: limits.proposals_waiting + more, bytes: limits.proposal_bytes_waiting + more_bytes }
    }

    fn is_full(&self) -> bool {
        self.shared.disk_full.load(Ordering::Relaxed) || self.shared.leader_full.load(Ordering::Relaxed)
    }

    /// Waits until this node's state holds everything acknowledged before now.
    async fn catch_up(&self) -> Result<(), ReadError> {
        let shared = &self.shared;
        let overloaded = |waiting| ReadError::Overloaded { waiting };
        let (token, answer) = shared.reads.add(shared.limits.reads_waiting).map_err(overloaded)?;
        let few = shared.reads.waiting() <= FEW;
        let offered = shared.consensus.offer(Input::Call(Call::Read(token)), INPUTS_WAITING_MAX, few);
        if let Err(refused) = offered {
            shared.reads.remove(token);
            return Err(match refused {
                Refused::Full { waiting } => overloaded(waiting),
                Refused::Closed => ReadError::Stopping,
            });
        }
        answer.await.unwrap_or(Err(ReadError::Stopping))
    }

    async fn read_query(
        &self,
        caller: Caller,
        query: Query,
        consistency: Consistency,
    ) -> Result<QueryAnswer, ReadError> {
        let asks_first = match consistency {
            Consistency::Linearizable => !tidelock_model::planted!(ReadWithoutBarrier),
            Consistency::Local => {
                !self.shared.regained.load(Ordering::Relaxed)
                    && shows_revisions(&query)
                    && !tidelock_model::planted!(LocalReadAfterStart)
            }
        };
        if asks_first {
            self.catch_up().await?;
        }
        if let Query::Range(range) = &query {
            return self.read_range(&caller, range).await;
        }
        Ok(self.shared.state.read().read_as(&caller, &query)?)
    }

    async fn read_range(&self, caller: &Caller, op: &RangeOp) -> Result<QueryAnswer, ReadError> {
        let wanted = State::items_wanted(op);
        let (now, at, count, _pin) = {
            let state = self.shared.state.read();
            state.authorise(caller, |needs| needs.push(Need::Read(&op.range))).map_err(Refusal::from)?;
            if wanted <= PAGE_ITEMS || op.range.as_single().is_some() {
                return Ok(state.read(&Query::Range(op.clone()))?);
            }
            let at = op.at.unwrap_or(state.revision());
            let count = state.count_at(&op.range, at)?;
            if count <= PAGE_ITEMS as u64 {
                return Ok(state.read(&Query::Range(op.clone()))?);
            }
            (state.revision(), at, count, Pin::new(&self.shared, at))
        };
        let items = self.read_pages(op, at, wanted).await?;
        let answer = OpAnswer::Range(State::finish_range(op, items, count));
        Ok(QueryAnswer::Op { revision: now, answer })
    }

    async fn read_pages(
        &self,
        op: &RangeOp,
        at: Revision,
        wanted: usize,
    ) -> Result<Vec<tidelock_model::KeyValue>, ReadError> {
        let mut items = Vec::new();
        let mut after = None;
        loop {
            let page = self.shared.state.read().range_page(op, at, after.as_ref(), PAGE_ITEMS)?;
            items.extend(page.items);
            after = page.next;
            if after.is_none() || items.len() >= wanted {
                return Ok(items);
            }
            // Others on this worker thread get their turn between pages.
            tokio::task::yield_now().await;
        }
    }

    async fn lease_call(&self, caller: Caller, id: LeaseId, renew: bool) -> Result<Option<LeaseInfo>, ReadError> {
        let shared = &self.shared;
        let errand = if renew { Errand::KeepAlive(id) } else { Errand::LeaseInfo(id) };
        self.authorise(&caller, |needs| errand.needs(needs)).map_err(Refusal::from)?;
        let overloaded = |waiting| ReadError::Overloaded { waiting };
        let (token, answer) = shared.leases.add(LEASE_CALLS_WAITING_MAX).map_err(overloaded)?;
        // Not bounded by the length of the queue: renewals have their own limit and go first class.
        shared.consensus.push(Input::Call(Call::Lease(LeaseCall { token, id, renew })));
        if shared.is_stopped() {
            return Err(ReadError::Stopping);
        }
        answer.await.unwrap_or(Err(ReadError::Stopping))
    }

    async fn renew(&self, caller: Caller, mut leases: Vec<LeaseId>) -> Result<Renewed, ReadError> {
        let shared = &self.shared;
        let errands: Vec<Errand<'_>> = leases.iter().map(|id| Errand::KeepAlive(*id)).collect();
        let needs = |needs: &mut Vec<Need<'_>>| errands.iter().for_each(|errand| errand.needs(needs));
        self.authorise(&caller, needs).map_err(Refusal::from)?;
        leases.sort_unstable();
        let mut renewed = Renewed::default();
        for batch in leases.chunks(RENEWALS_MAX) {
            let overloaded = |waiting| ReadError::Overloaded { waiting };
            let (token, answer) = shared.renewals.add(RENEWALS_WAITING_MAX).map_err(overloaded)?;
            shared.measurements.renewed(batch.len());
            let renewal = Renewal { token, leases: batch.to_vec() };
            // Not bounded by the length of the queue, as other calls about leases are not.
            shared.consensus.push(Input::Call(Call::Renew(renewal)));
            if shared.is_stopped() {
                return Err(ReadError::Stopping);
            }
            let mut answer = answer.await.unwrap_or(Err(ReadError::Stopping))?;
            renewed.gone.append(&mut answer.gone);
            renewed.ending.append(&mut answer.ending);
        }
        Ok(renewed)
    }

    async fn until_stopped(&self) {
        let mut stopped = self.shared.stopped.subscribe();
        let _ = stopped.wait_for(Option::is_some).await;
    }

    fn member_error(&self, refusal: MemberRefusal) -> MemberError {
        match refusal {
            MemberRefusal::Exists(id) => MemberError::Exists(id),
            MemberRefusal::AddressTaken(address) => MemberError::AddressTaken(address),
            MemberRefusal::NotFound(id) => MemberError::NotFound(id),
            MemberRefusal::WrongRole(id) => MemberError::WrongRole(id),
            MemberRefusal::LearnerBehind { id, behind } => MemberError::LearnerBehind { id, behind },
            MemberRefusal::WouldLoseQuorum => MemberError::WouldLoseQuorum,
            MemberRefusal::Busy | MemberRefusal::HandingOver => MemberError::Busy,
            MemberRefusal::TimedOut => MemberError::OutcomeUnknown { waited: self.shared.request_timeout },
        }
    }
}

/// Refuses what others could not read: an entry like that is skipped, with all that was packed into it. Faces bound what
/// clients write; names of users, roles and members are looked at here, where they are few.
fn check_readable(command: &Command) -> Result<(), ProposeError> {
    if !command.is_upkeep() {
        return Ok(());
    }
    let encoded = command.to_bytes();
    let bytes = encoded.len();
    match Command::from_bytes(encoded.into()) {
        Ok(_) => Ok(()),
        Err(_) => Err(ProposeError::TooLarge { bytes, max: COMMAND_BYTES_MAX }),
    }
}

impl<L: Links> Coordinator for NodeHandle<L> {
    fn auth(&self) -> Arc<Auth> {
        Arc::clone(&self.shared.auth.read())
    }

    fn propose(
        &self,
        caller: Caller,
        command: Command,
        request: Option<RequestId>,
    ) -> Answering<'_, Result<Outcome, ProposeError>> {
        Box::pin(self.propose_command(caller, command, request))
    }

    fn is_overloaded(&self) -> bool {
        self.shared.proposals.waiting() >= self.shared.limits.proposals_waiting
    }

    fn read(
        &self,
        caller: Caller,
        query: Query,
        consistency: Consistency,
    ) -> Answering<'_, Result<QueryAnswer, ReadError>> {
        Box::pin(self.read_query(caller, query, consistency))
    }

    fn subscribe(&self) -> Arc<dyn Subscription> {
        Arc::new(NodeSubscription::new(self.shared.clone()))
    }

    fn keep_alive(&self, caller: Caller, lease: LeaseId) -> Answering<'_, Result<Option<LeaseInfo>, ReadError>> {
        Box::pin(self.lease_call(caller, lease, true))
    }

    fn renew_leases(&self, caller: Caller, leases: Vec<LeaseId>) -> Answering<'_, Result<Renewed, ReadError>> {
        Box::pin(self.renew(caller, leases))
    }

    fn lease_info(&self, caller: Caller, lease: LeaseId) -> Answering<'_, Result<Option<LeaseInfo>, ReadError>> {
        Box::pin(self.lease_call(caller, lease, false))
    }

    fn change_members(&self, caller: Caller, change: MemberChange) -> Answering<'_, Result<Vec<Member>, MemberError>> {
        Box::pin(async move {
            self.authorise(&caller, |needs| Errand::ChangeMembers(&change).needs(needs))?;
            let added = self.shared.member_calls.add(MEMBER_CALLS_WAITING_MAX);
            let (token, answer) = added.map_err(|_| MemberError::Busy)?;
            self.shared.consensus.push(Input::Call(Call::ChangeMembers { token, change }));
            let result = answer.await.map_err(|_| MemberError::Stopping)?;
            let mut members = result.map_err(|refusal| self.member_error(refusal))?;
            // Names and client addresses are known to the state alone.
            let published = self.shared.state.read().members().clone();
            for member in &mut members {
                if let Some(known) = published.by_id.get(&member.id) {
                    member.name.clone_from(&known.name);
                    member.client_urls.clone_from(&known.client_urls);
                    member.zookeeper.clone_from(&known.zookeeper);
                }
            }
            Ok(members)
        })
    }

    fn transfer_leadership(&self, caller: Caller, to: NodeId) -> Answering<'_, Result<(), MemberError>> {
        Box::pin(async move {
            self.authorise(&caller, |needs| Errand::TransferLeadership.needs(needs))?;
            let added = self.shared.transfers.add(MEMBER_CALLS_WAITING_MAX);
            let (token, answer) = added.map_err(|_| MemberError::Busy)?;
            self.shared.consensus.push(Input::Call(Call::Transfer { token, to }));
            let result = answer.await.map_err(|_| MemberError::Stopping)?;
            result.map_err(|refusal| self.member_error(refusal))
        })
    }

    fn take_snapshot(&self, caller: Caller) -> Answering<'_, Result<(), String>> {
        Box::pin(async move {
            self.authorise(&caller, |needs| Errand::TakeSnapshot.needs(needs))
                .map_err(|refusal| refusal.to_string())?;
            let mut finished = self.shared.snapshots_finished.subscribe();
            // One under way began before this call; the next is meant.
            let wanted = self.shared.snapshots_begun.load(Ordering::Relaxed) + 1;
            self.shared.apply.push(ApplyTask::TakeSnapshot);
            tokio::select! {
                biased;
                Ok(last) = finished.wait_for(|last| last.number >= wanted) => last.problem.clone().map_or(Ok(()), Err),
                () = self.until_stopped() => Err("the node is shutting down".to_owned()),
            }
        })
    }

    fn copy_state(&self, caller: Caller) -> Answering<'_, Result<Box<dyn StateCopy>, CopyError>> {
        Box::pin(async move {
            // Without a majority there is no telling what else was acknowledged: then it is what is here.
            if let Err(ReadError::Stopping) = self.catch_up().await {
                return Err(CopyError::Stopping);
            }
            self.authorise(&caller, |needs| Errand::TakeSnapshot.needs(needs))?;
            Ok(Box::new(NodeCopy::begin(&self.shared)?) as Box<dyn StateCopy>)
        })
    }

    fn wait_until_swept(&self) -> Answering<'_, ()> {
        Box::pin(async move {
            let mut sweeping = self.shared.sweeping.subscribe();
            tokio::select! {
                biased;
                _ = sweeping.wait_for(|sweeping| !sweeping) => {}
                () = self.until_stopped() => {}
            }
        })
    }

    fn term(&self) -> Term {
        Term(self.shared.term.load(Ordering::Relaxed))
    }

    fn revision(&self) -> Revision {
        self.shared.state.read().revision()
    }

    fn status(&self) -> Status {
        let shared = &self.shared;
        let standing = shared.standing.lock().clone();
        let members = shared.members.lock().clone();
        let me = shared.identity.node;
        let is_learner = members.by_id.get(&me).is_some_and(|member| member.role == MemberRole::Learner);
        let matched = |id: NodeId| standing.progress.iter().find(|(peer, ..)| *peer == id).map(|(_, index, _)| *index);
        let connected = |id: NodeId| self.links.link_state(id).is_some_and(|state| state.connected);
        let peer = |id: &NodeId| PeerStatus { node: *id, connected: connected(*id), matched: matched(*id) };
        let state = shared.state.read();
        Status {
            cluster: shared.identity.cluster,
            node: me,
            role: match standing.role {
                tidelock_replica::Role::Leader => Role::Leader,
                tidelock_replica::Role::Candidate => Role::Candidate,
                tidelock_replica::Role::Follower if is_learner => Role::Learner,
                tidelock_replica::Role::Follower => Role::Follower,
            },
            leader: standing.leader,
            term: standing.term,
            committed: LogIndex(standing.committed.0.max(state.applied().0)),
            applied: state.applied(),
            regained: shared.regained.load(Ordering::Relaxed),
            revision: state.revision(),
            compacted: state.compacted(),
            digest: state.digest(),
            keys: state.keys(),
            leases: state.lease_count(),
            watchers: shared.watchers.load(Ordering::Relaxed),
            data_bytes: state.data_bytes(),
            disk_bytes: shared.disk_bytes.load(Ordering::Relaxed),
            disk_full: self.is_full(),
            proposals_waiting: shared.proposals.waiting() as u64,
            leader_changes: standing.leader_changes,
            proposals_failed: shared.proposals_failed.load(Ordering::Relaxed),
            peers: members.by_id.keys().filter(|id| **id != me).map(peer).collect(),
        }
    }
}

/// Whether clients keep by revision what this tells. Not members, alarms and the past of one key, which people look at
/// when there is no leader to ask; nor znodes, whose clients say themselves what they have seen, and may want to read
/// where nobody leads.
fn shows_revisions(query: &Query) -> bool {
    match query {
        Query::Range(_) | Query::Txn(_) | Query::Page(_) | Query::Leases | Query::LeaseKeys(_) | Query::Native(_) => {
            true
        }
        Query::Members | Query::Alarms | Query::Auth(_) | Query::History(_) | Query::Znodes(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use tidelock_journal::memory_disk::MemoryDisk;
    use tidelock_model::{Key, Op, PutLease, PutOp, PutValue, Space};

    use super::*;
    use crate::journal_worker::tests::{Witness, config};
    use crate::{Draws, NodeLimits, Prepared};

    /// Numbers of writes count within a window: were those that are refused to move it on, a write that waits, and is sent
    /// again to another leader, would count as carried out long ago, and never be.
    #[test]
    fn writes_that_are_refused_for_want_of_room_take_no_number() {
        let few_bytes = NodeLimits { proposal_bytes_waiting: 100, ..NodeLimits::default() };
        let few = NodeLimits { proposals_waiting: 1, ..NodeLimits::default() };
        for limits in [few_bytes, few] {
            let config = crate::NodeConfig { limits, ..config() };
            let prepared = Prepared::open(&config, MemoryDisk::new(), Draws { boot: 1, disk: 1 }).unwrap();
            let workers = prepared.connect(Witness::default(), Box::new(|_| {}));
            let numbers = || workers.shared.proposals.number();
            let propose = || {
                let value = PutValue::Set(vec![0; 200].into());
                let (key, lease) = (Key::new(Space::User, b"k"), PutLease::Set(LeaseId::NONE));
                let command = Command::Write(Op::Put(PutOp { key, value, lease, want_previous: false }));
                workers.coordinator.propose(Caller::Internal, command, None)
            };
            let mut cx = Context::from_waker(Waker::noop());
            let mut waits = propose();
            assert!(waits.as_mut().poll(&mut cx).is_pending());
            let before = numbers();
            for _ in 0..10 {
                let answer = propose().as_mut().poll(&mut cx);
                assert!(matches!(answer, Poll::Ready(Err(ProposeError::Overloaded { .. }))), "{answer:?}");
            }
            assert_eq!(numbers(), before + 1);
        }
    }
}
