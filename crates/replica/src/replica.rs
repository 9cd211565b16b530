//! One node of the cluster without its IO: inputs in, effects out.
//!
//! `step` takes what happened; `effects` says what to do next. Nothing here waits, reads a clock or
//! touches a file, so a whole cluster of these runs in one deterministic loop.
//!
//! A proposal's way: `Call::Propose` -> (forwarded to the leader) -> packed with others into one entry
//! -> agreed on -> `Task::Apply` on every node -> answered by the node it came in at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use tidelock_model::limits::BATCH_COMMANDS_MAX;
use tidelock_model::{Batch, LogIndex, LogTime, MemberRole, Members, NodeId, Term};

use crate::broken_link::BrokenLink;
use crate::consensus::{Consensus, PeerFault, ReadContexts, Ready, Role, Start};
use crate::digests::Digests;
use crate::effects::{
    Call, CallFailure, Committed, Effects, Fatal, Input, LeaseCall, LeaseReply, Reply, Standing, Task, Token,
};
use crate::member_calls::MemberCalls;
use crate::peer_message::{ITEMS_MAX, PeerMessage};
use crate::proposals::Proposals;
use crate::read_barrier::{ReadBarrier, Waiter};
use crate::renewals::Renewals;

/// Bytes of proposals packed into one entry. Large enough that packing pays, small enough that a
/// follower is not sent one huge frame.
const ENTRY_BYTES_MAX: usize = 256 << 10;
/// Bytes of proposals in one frame to the leader. The answers to its heartbeats take the same way, behind it.
const FORWARD_BYTES_MAX: usize = 1 << 20;
/// Ticks after which a call about a lease is sent to the leader again.
const LEASE_RESEND_TICKS: u64 = 3;

/// How a replica is set up.
pub struct Settings {
    /// This node.
    pub node: NodeId,
    /// Drawn at random when the node started.
    pub boot: u64,
    /// Ticks a caller waits before it is told that nothing came.
    pub timeout_ticks: u64,
}

struct LeaseWait {
    call: LeaseCall,
    since: u64,
    sent: Option<u64>,
}

/// One node of the cluster without its IO.
pub struct Replica {
    pub(crate) settings: Settings,
    pub(crate) consensus: Consensus,
    pub(crate) members: Members,
    pub(crate) effects: Effects,
    pub(crate) tick: u64,
    pub(crate) member_calls: MemberCalls,
    now: LogTime,
    proposals: Proposals,
    /// Proposals other nodes sent here, and the lease clock's, to be packed into entries.
    inbox: Vec<Bytes>,
    pub(crate) barrier: ReadBarrier,
    pub(crate) renewals: Renewals,
    lease_waits: BTreeMap<Token, LeaseWait>,
    digests: Digests,
    /// Members whose disks are full.
    full: BTreeSet<NodeId>,
    /// Leader and term as of the last look, to notice changes.
    known: (Option<NodeId>, Term, bool),
    leader_changes: u64,
    pub(crate) broken_link: BrokenLink,
}

impl Replica {
    /// A node that starts with what the journal and the snapshot hold.
    pub fn new(settings: Settings, start: Start, members: Members) -> Result<Replica, String> {
        let contexts = ReadContexts::new(settings.node, settings.boot);
        let timeout = settings.timeout_ticks;
        let mut consensus = Consensus::new(start)?;
        let mut voters = members.by_id.values().filter(|member| member.role == MemberRole::Voter);
        if voters.next().is_some_and(|first| first.id == settings.node) && voters.next().is_none() {
            // Nobody else could lead: there is nothing to wait for, and nobody to be known to.
            consensus.introduce();
            consensus.campaign();
        }
        let known = (consensus.leader(), consensus.term(), false);
        Ok(Replica {
            settings,
            consensus,
            members,
            effects: Effects::default(),
            tick: 0,
            member_calls: MemberCalls::default(),
            now: LogTime(0),
            proposals: Proposals::new(timeout),
            inbox: Vec::new(),
            barrier: ReadBarrier::new(contexts, timeout),
            renewals: Renewals::default(),
            lease_waits: BTreeMap::new(),
            digests: Digests::default(),
            full: BTreeSet::new(),
            known,
            leader_changes: 0,
            broken_link: BrokenLink::default(),
        })
    }

    /// Takes what happened. Call [`Replica::effects`] after one or several.
    pub fn step(&mut self, input: Input) {
        match input {
            Input::Call(call) => self.call(call),
            Input::Frame { from, bytes } => self.frame(from, bytes),
            Input::Tick { now } => self.tick(now),
            Input::Persisted { number } => self.consensus.persisted(number),
            Input::Applied { index, done } => {
                self.proposals.done(done);
                self.consensus.applied(index);
            }
            Input::Expire { term, bytes } => {
                // Judged by the term once more when applied; this only spares the log a useless entry.
                if self.consensus.is_leader() && self.consensus.term() == term {
                    self.inbox.push(bytes);
                } else if let Some(leader) = self.leader().filter(|_| tidelock_model::planted!(ExpiryByDeposedLeader)) {
                    self.effects.frames.push((leader, PeerMessage::Forward(vec![bytes]).to_frame()));
                }
            }
            Input::LeaseReplies { to, replies } => self.lease_replies(to, replies),
            Input::Renewed { to, reply } => self.renewed(to, reply),
            Input::Digest { index, digest } => self.own_digest(index, digest),
            Input::Fetched { fetch, entries } => self.consensus.entries_fetched(fetch, entries),
            Input::Trimmed { first_index } => self.consensus.trimmed(first_index),
            Input::SnapshotTaken { index, term, voters } => self.consensus.snapshot_taken(index, term, &voters),
            Input::SnapshotSent { to, delivered } => self.consensus.snapshot_sent(to, delivered),
            Input::SnapshotReceived { from, message } => {
                let taken = self.consensus.step_snapshot(from, message);
                self.engine_took(from, taken);
            }
            Input::Installed { index, members } => {
                self.consensus.applied(index);
                self.members_replaced(members);
            }
            Input::Space { full } => self.space(full),
            Input::LinkDown { peer } => {
                self.consensus.unreachable(peer);
                self.proposals.link_down(peer);
                self.lease_waits.values_mut().for_each(|wait| wait.sent = None);
                self.renewals.send_again();
            }
            Input::PeerGone { peer } => self.peer_gone(peer),
            Input::Introduced => self.consensus.introduce(),
            Input::StepDown => self.step_down(),
        }
    }

    /// What to do now. Sends, packs and asks whatever the inputs since the last call allow.
    pub fn effects(&mut self) -> Effects {
        self.notice_leader();
        self.send_proposals();
        self.send_lease_calls();
        self.send_renewals();
        if self.consensus.leader().is_some()
            && let Some(context) = self.barrier.begin(self.tick)
        {
            self.consensus.read_index(context);
        }
        while let Some(ready) = self.consensus.ready() {
            self.perform(ready);
        }
        self.release_reads();
        self.effects.take_snapshot |= self.consensus.take_snapshot_wish();
        std::mem::take(&mut self.effects)
    }

    /// Where the node stands.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing {
            role: self.consensus.role(),
            leader: self.consensus.leader(),
            term: self.consensus.term(),
            committed: self.consensus.committed(),
            leader_changes: self.leader_changes,
            leader_full: self.consensus.leader().is_some_and(|leader| self.full.contains(&leader)),
            progress: if self.consensus.is_leader() { self.consensus.progress().collect() } else { Vec::new() },
        }
    }

    /// Whether this node may make promises; see [`Input::Introduced`].
    #[must_use]
    pub fn is_introduced(&self) -> bool {
        self.consensus.is_introduced()
    }

    /// The current term.
    #[must_use]
    pub fn term(&self) -> Term {
        self.consensus.term()
    }

    /// The leader, if one is known.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        self.consensus.leader()
    }

    fn call(&mut self, call: Call) {
        match call {
            Call::Propose { number, bytes } => self.proposals.add(number, bytes, self.tick),
            Call::Read(token) => self.barrier.add(Waiter::Read(token), self.tick),
            Call::Lease(call) => {
                self.lease_waits.insert(call.token, LeaseWait { call, since: self.tick, sent: None });
            }
            Call::Renew(renewal) => self.renewals.add(renewal, self.tick),
            Call::ChangeMembers { token, change } => self.change_members(token, change),
            Call::Transfer { token, to } => self.transfer(token, to),
        }
    }

    fn frame(&mut self, from: NodeId, bytes: Bytes) {
        let message = match PeerMessage::from_frame(bytes) {
            Ok(message) => message,
            Err(error) => return self.effects.faults.push((from, PeerFault::Malformed(error))),
        };
        match message {
            PeerMessage::Raft(message) => {
                let taken = self.consensus.step(from, message);
                self.engine_took(from, taken);
            }
            // Not the leader (any more): the sender notices and sends them to the right one.
            PeerMessage::Forward(proposals) if self.consensus.is_leader() => self.inbox.extend(proposals),
            PeerMessage::Forward(_) => {}
            PeerMessage::LeaseCalls(calls) => {
                for call in calls {
                    self.barrier.add(Waiter::Lease { from, call }, self.tick);
                }
            }
            PeerMessage::Renewal(renewal) => {
                self.barrier.add(Waiter::Renewal { from, renewal: Arc::new(renewal) }, self.tick);
            }
            PeerMessage::Renewed(reply) => self.renewed(self.settings.node, reply),
            PeerMessage::LeaseReplies(replies) => self.lease_replies(self.settings.node, replies),
            PeerMessage::ChangeMembers { token, change } => self.change_members_for(from, token, &change),
            PeerMessage::MembersChanged { token, result } => self.members_changed(token, result),
            PeerMessage::Transfer { token, to } => self.transfer_for(from, token, to),
            PeerMessage::Transferred { token, result } => self.transferred(token, result),
            PeerMessage::Space { full: true } => _ = self.full.insert(from),
            PeerMessage::Space { full: false } => _ = self.full.remove(&from),
            // A learner's word does not count: a majority is one of voters.
            PeerMessage::Digest { .. } if !self.is_voter(from) => {}
            PeerMessage::Digest { index, digest } => {
                let voters = self.voters();
                let diverged = self.digests.heard(from, index, digest, voters);
                self.stop_if_diverged(diverged);
            }
        }
    }

    fn engine_took(&mut self, from: NodeId, taken: Result<(), PeerFault>) {
        match taken {
            Ok(()) => self.heed_question(),
            Err(fault @ PeerFault::LostLog { .. }) => self.effects.fatal = Some(Fatal::LostLog(fault)),
            Err(fault) => self.effects.faults.push((from, fault)),
        }
    }

    fn tick(&mut self, now: LogTime) {
        self.tick += 1;
        self.now = now;
        self.consensus.tick();
        self.follow_hint();
        for (number, why) in self.proposals.tick(self.tick, self.settings.node) {
            self.effects.replies.push(Reply::ProposalFailed { number, why });
        }
        for waiter in self.barrier.tick(self.tick) {
            // A follower's call is the follower's to give up.
            if let Waiter::Read(token) = waiter {
                let why = if self.consensus.leader().is_some() { CallFailure::TimedOut } else { CallFailure::NoLeader };
                self.effects.replies.push(Reply::ReadFailed { token, why });
            }
        }
        for context in self.barrier.retry(self.tick, false) {
            self.consensus.read_index(context);
        }
        self.tick_lease_waits();
        self.renewals.tick(self.tick, self.settings.timeout_ticks, &mut self.effects.replies);
        self.tick_member_calls();
    }

    fn tick_lease_waits(&mut self) {
        let (tick, timeout, replies) = (self.tick, self.settings.timeout_ticks, &mut self.effects.replies);
        self.lease_waits.retain(|token, wait| {
            if tick.saturating_sub(wait.since) > timeout {
                replies.push(Reply::LeaseFailed { token: *token });
                return false;
            }
            if wait.sent.is_some_and(|sent| tick.saturating_sub(sent) >= LEASE_RESEND_TICKS) {
                wait.sent = None;
            }
            true
        });
    }

    /// Notices a new leader, term or part, and sends again what only the old one was told.
    fn notice_leader(&mut self) {
        let (leader, term) = (self.consensus.leader(), self.consensus.term());
        let leads = self.consensus.is_leader();
        if self.known == (leader, term, leads) {
            return;
        }
        let led = self.known.2.then_some(self.known.1);
        if leader.is_some() && leader != self.known.0 {
            self.leader_changes += 1;
        }
        self.known = (leader, term, leads);
        let leads_in = leads.then_some(term);
        if led != leads_in {
            self.effects.tasks.push(Task::Leading(leads_in));
        }
        self.proposals.resend_to(leader, term);
        self.lease_waits.values_mut().for_each(|wait| wait.sent = None);
        self.renewals.send_again();
        if leader.is_some() {
            for context in self.barrier.retry(self.tick, true) {
                self.consensus.read_index(context);
            }
        }
        self.notice_transfers();
    }

    fn send_proposals(&mut self) {
        if self.inbox.is_empty() && !self.proposals.has_unsent() {
            return;
        }
        let Some(leader) = self.consensus.leader() else { return };
        let (me, term) = (self.settings.node, self.consensus.term());
        let own = self.proposals.take_unsent();
        if leader == me {
            // What others sent goes first; what of it is not taken is dropped, and comes again from them.
            let mut all = std::mem::take(&mut self.inbox);
            let others = all.len();
            all.extend(own.iter().map(|(_, bytes)| bytes.clone()));
            let taken = self.append(&all).saturating_sub(others);
            own[..taken].iter().for_each(|(number, _)| self.proposals.sent(*number, me, term, self.tick));
            return;
        }
        self.inbox.clear();
        let mut rest = &own[..];
        while !rest.is_empty() {
            let (chunk, after) =
                rest.split_at(fitting(rest.iter().take(ITEMS_MAX).map(|(_, bytes)| bytes), FORWARD_BYTES_MAX));
            rest = after;
            let forward = PeerMessage::Forward(chunk.iter().map(|(_, bytes)| bytes.clone()).collect());
            self.effects.frames.push((leader, forward.to_frame()));
            chunk.iter().for_each(|(number, _)| self.proposals.sent(*number, leader, term, self.tick));
        }
    }

    /// Packs proposals into as few entries as fit. How many of the first are in the log now; the rest certainly is not:
    /// leadership is being handed over, or the log holds as much as it may of what is not agreed on. That can last, and
    /// end little by little: what got in must not be put there again each time that there is some room (H25 would hold,
    /// but nothing else get in).
    fn append(&mut self, proposals: &[Bytes]) -> usize {
        let mut taken = 0;
        while taken < proposals.len() {
            let rest = &proposals[taken..];
            let count = fitting(rest.iter().take(BATCH_COMMANDS_MAX), ENTRY_BYTES_MAX);
            if !self.consensus.propose(Batch::pack(self.now, &rest[..count])) {
                break;
            }
            taken += count;
        }
        taken
    }

    fn send_lease_calls(&mut self) {
        let Some(leader) = self.consensus.leader().filter(|_| !self.lease_waits.is_empty()) else { return };
        let (me, tick) = (self.settings.node, self.tick);
        let mut calls = Vec::new();
        for wait in self.lease_waits.values_mut().filter(|wait| wait.sent.is_none()) {
            wait.sent = Some(tick);
            calls.push(wait.call);
        }
        if leader == me {
            for call in calls {
                self.barrier.add(Waiter::Lease { from: me, call }, tick);
            }
            return;
        }
        for chunk in calls.chunks(ITEMS_MAX) {
            self.effects.frames.push((leader, PeerMessage::LeaseCalls(chunk.to_vec()).to_frame()));
        }
    }

    fn lease_replies(&mut self, to: NodeId, replies: Vec<LeaseReply>) {
        if to != self.settings.node {
            for chunk in replies.chunks(ITEMS_MAX) {
                self.effects.frames.push((to, PeerMessage::LeaseReplies(chunk.to_vec()).to_frame()));
            }
            return;
        }
        for reply in replies {
            // A second answer to a call that was sent twice finds nobody.
            if self.lease_waits.remove(&reply.token).is_some() {
                self.effects.replies.push(Reply::Lease(reply));
            }
        }
    }

    fn perform(&mut self, mut ready: Ready) {
        self.effects.frames.append(&mut ready.send_now);
        self.effects.snapshots.append(&mut ready.snapshots);
        self.effects.fetches.append(&mut ready.fetches);
        for (context, index) in std::mem::take(&mut ready.reads) {
            self.barrier.confirm(context, index);
        }
        if let Some((index, term)) = ready.install {
            self.effects.tasks.push(Task::Install { index, term });
        }
        let committed = std::mem::take(&mut ready.committed);
        self.note_membership(&committed);
        if !committed.is_empty() {
            self.effects.tasks.push(Task::Apply(committed));
        }
        self.effects.persist.push(ready);
    }

    fn note_membership(&mut self, committed: &[Committed]) {
        for entry in committed {
            let Committed::Membership { index, change, .. } = entry else { continue };
            if let Some(change) = change {
                self.members.apply(change);
                self.effects.members = Some(self.members.by_id.values().cloned().collect());
                self.member_wish_came_true(change);
            }
            self.member_change_applied(*index);
            if self.members.removed.contains(&self.settings.node) {
                // At once, also if it leads: the engine cannot go on without a place among the members.
                self.effects.fatal = Some(Fatal::Removed);
            }
        }
    }

    /// The members changed in a way the log did not tell: a snapshot was installed.
    fn members_replaced(&mut self, members: Members) {
        self.effects.members = Some(members.by_id.values().cloned().collect());
        if members.removed.contains(&self.settings.node) {
            self.effects.fatal = Some(Fatal::Removed);
        }
        self.members = members;
    }

    fn release_reads(&mut self) {
        let mut reads = Vec::new();
        let mut calls: BTreeMap<NodeId, Vec<LeaseCall>> = BTreeMap::new();
        for waiter in self.barrier.release(self.consensus.handed_out()) {
            match waiter {
                Waiter::Read(token) => reads.push(token),
                // Only a leader may answer; a follower's wait is asked again at the new one.
                Waiter::Lease { from, call } if self.consensus.is_leader() => calls.entry(from).or_default().push(call),
                Waiter::Renewal { from, renewal } if self.consensus.is_leader() => {
                    self.effects.tasks.push(Task::Renew { from, renewal });
                }
                Waiter::Lease { .. } | Waiter::Renewal { .. } => {}
            }
        }
        if !reads.is_empty() {
            self.effects.tasks.push(Task::ReadsReady(reads));
        }
        for (from, calls) in calls {
            self.effects.tasks.push(Task::LeaseCalls { from, calls });
        }
    }

    /// Tells the others while the disk is full, and once when it no longer is: they refuse, at their own
    /// doors, what this node could not store if it leads.
    fn space(&mut self, full: bool) {
        let me = self.settings.node;
        let changed = if full { self.full.insert(me) } else { self.full.remove(&me) };
        if full || changed {
            let frame = PeerMessage::Space { full }.to_frame();
            let others = self.members.by_id.keys().filter(|id| **id != me);
            self.effects.frames.extend(others.map(|id| (*id, frame.clone())));
        }
    }

    fn own_digest(&mut self, index: LogIndex, digest: u128) {
        let (me, voters) = (self.settings.node, self.voters());
        let frame = PeerMessage::Digest { index, digest }.to_frame();
        let others = self.members.by_id.keys().filter(|id| **id != me);
        self.effects.frames.extend(others.map(|id| (*id, frame.clone())));
        let diverged = self.digests.own(me, index, digest, voters);
        self.stop_if_diverged(diverged);
    }

    fn stop_if_diverged(&mut self, diverged: Option<LogIndex>) {
        if let Some(index) = diverged {
            self.effects.fatal = Some(Fatal::Diverged { index });
        }
    }

    fn is_voter(&self, id: NodeId) -> bool {
        self.members.by_id.get(&id).is_some_and(|member| member.role == MemberRole::Voter)
    }

    fn voters(&self) -> usize {
        self.members.by_id.keys().filter(|id| self.is_voter(**id)).count()
    }

    /// The members as this replica knows them.
    #[must_use]
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// Whether this node leads.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.consensus.role() == Role::Leader
    }
}

/// How many of the first have at most so many bytes together; one at least.
fn fitting<'a>(proposals: impl Iterator<Item = &'a Bytes>, bytes_max: usize) -> usize {
    let sums = proposals.scan(0, |sum, proposal| {
        *sum += proposal.len();
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= bytes_max).count().max(1)
}

/// Whether a frame carries entries: what a node that is behind with applying may drop, because the
/// leader sends them again.
#[must_use]
pub fn carries_entries(frame: &Bytes) -> bool {
    PeerMessage::is_append(frame)
}
