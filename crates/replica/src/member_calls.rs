//! Changing who is in the cluster and who leads it: checked on the leader, carried out by the log,
//! answered to whoever asked, on whatever node.

use std::collections::BTreeMap;

use tidelock_model::{LogIndex, Member, MemberChange, MemberRole, NodeId};

use crate::effects::{MemberRefusal, Reply, Token};
use crate::peer_message::PeerMessage;
use crate::replica::Replica;

/// A learner this close to the leader may vote: it will hold everything within a few round trips.
const PROMOTE_BEHIND_MAX: u64 = 1000;
/// Ticks after which a change that waits for a hand-over is asked for again.
const ASK_AGAIN_TICKS: u64 = 2;
/// Calls under way; an operator makes one at a time.
const CALLS_MAX: usize = 64;

#[derive(Default)]
pub(crate) struct MemberCalls {
    /// On the leader: who waits for the change under way, and its entry.
    changing: Option<(NodeId, Token, LogIndex)>,
    /// On the leader: whether the change under way is a joint one that was entered and not left yet.
    joint: bool,
    /// At the node asked: when each caller began to wait.
    waiting: BTreeMap<Token, (Wish, u64)>,
    /// On the leader: who waits for a hand-over, and to whom.
    transfers: Vec<(NodeId, Token, NodeId)>,
    /// At the node asked: changes to be asked for again at these ticks.
    again: BTreeMap<Token, u64>,
}

enum Wish {
    Change(MemberChange),
    Transfer,
}

/// Whether a change ends this member's vote, which a leader must have.
fn removes(change: &MemberChange, id: NodeId) -> bool {
    match change.unconditional() {
        MemberChange::Remove(removed) => *removed == id,
        MemberChange::Replace { add, remove } => {
            remove.contains(&id) || add.iter().any(|member| member.id == id && member.role == MemberRole::Learner)
        }
        MemberChange::Add(_)
        | MemberChange::Promote(_)
        | MemberChange::Readdress { .. }
        | MemberChange::IfStill { .. } => false,
    }
}

impl Replica {
    pub(crate) fn change_members(&mut self, token: Token, change: MemberChange) {
        let me = self.settings.node;
        match self.consensus.leader() {
            Some(_) if self.member_calls.waiting.len() >= CALLS_MAX => {
                self.effects.replies.push(Reply::Members { token, result: Err(MemberRefusal::Busy) });
            }
            Some(leader) => {
                self.member_calls.waiting.insert(token, (Wish::Change(change.clone()), self.tick));
                if leader == me {
                    self.change_members_for(me, token, &change);
                } else {
                    self.effects.frames.push((leader, PeerMessage::ChangeMembers { token, change }.to_frame()));
                }
            }
            None => self.effects.replies.push(Reply::Members { token, result: Err(MemberRefusal::TimedOut) }),
        }
    }

    pub(crate) fn change_members_for(&mut self, from: NodeId, token: Token, change: &MemberChange) {
        if !self.consensus.is_leader() {
            return self.tell_members(from, token, Err(MemberRefusal::TimedOut));
        }
        if let MemberChange::IfStill { members, .. } = change
            && !self.members.are_still(members)
        {
            return self.tell_members(from, token, Err(MemberRefusal::Busy));
        }
        let change = change.unconditional();
        if let Err(refusal) = self.judge(change) {
            return self.tell_members(from, token, Err(refusal));
        }
        if removes(change, self.settings.node) && self.hand_over(|id| !removes(change, id)) {
            return self.tell_members(from, token, Err(MemberRefusal::HandingOver));
        }
        let change = self.with_role(change.clone());
        if self.member_calls.changing.is_some() || !self.consensus.propose_change(&change) {
            return self.tell_members(from, token, Err(MemberRefusal::Busy));
        }
        self.member_calls.changing = Some((from, token, self.consensus.last_index()));
    }

    /// Fills in the part of a member that keeps it.
    fn with_role(&self, mut change: MemberChange) -> MemberChange {
        if let MemberChange::Readdress { id, role, .. } = &mut change
            && let Some(member) = self.members.by_id.get(id)
        {
            *role = member.role;
        }
        change
    }

    /// Whether a change makes sense and leaves a healthy majority.
    fn judge(&self, change: &MemberChange) -> Result<(), MemberRefusal> {
        let members = &self.members.by_id;
        let known = |id: &NodeId| members.get(id).ok_or(MemberRefusal::NotFound(*id));
        match change {
            MemberChange::Add(member) => self.judge_added(member)?,
            MemberChange::Promote(id) => {
                known(id)?;
                self.judge_promoted(*id)?;
                // It was heard of just now, so it only adds to the healthy ones.
                return Ok(());
            }
            MemberChange::Remove(id) => {
                known(id)?;
            }
            MemberChange::Readdress { id, peer_addresses, .. } => {
                let readdressed = Member { peer_addresses: peer_addresses.clone(), ..known(id)?.clone() };
                return self.judge_addresses(&readdressed);
            }
            MemberChange::Replace { add, remove } => {
                for member in add {
                    match members.get(&member.id).map(|known| (known.role, member.role)) {
                        None => self.judge_added(member)?,
                        Some((MemberRole::Voter, MemberRole::Learner)) => {}
                        Some((_, MemberRole::Voter)) => self.judge_promoted(member.id)?,
                        Some((MemberRole::Learner, MemberRole::Learner)) => {
                            return Err(MemberRefusal::WrongRole(member.id));
                        }
                    }
                }
                remove.iter().try_for_each(|id| known(id).map(|_| ()))?;
            }
            MemberChange::IfStill { change, .. } => return self.judge(change),
        }
        self.judge_majority(change)
    }

    /// Whether a member is a learner that is near enough to vote.
    fn judge_promoted(&self, id: NodeId) -> Result<(), MemberRefusal> {
        if self.members.by_id.get(&id).is_none_or(|member| member.role != MemberRole::Learner) {
            return Err(MemberRefusal::WrongRole(id));
        }
        let matched = self.consensus.progress().find(|(peer, ..)| *peer == id).map_or(0, |(_, m, _)| m.0);
        let behind = self.consensus.last_index().0.saturating_sub(matched);
        if behind > PROMOTE_BEHIND_MAX || matched == 0 {
            return Err(MemberRefusal::LearnerBehind { id, behind });
        }
        Ok(())
    }

    fn judge_added(&self, member: &Member) -> Result<(), MemberRefusal> {
        if self.members.by_id.contains_key(&member.id) || self.members.removed.contains(&member.id) {
            return Err(MemberRefusal::Exists(member.id));
        }
        self.judge_addresses(member)
    }

    fn judge_addresses(&self, member: &Member) -> Result<(), MemberRefusal> {
        let others = self.members.by_id.values().filter(|other| other.id != member.id);
        let mut taken = others.flat_map(|other| &other.peer_addresses);
        match taken.find(|address| member.peer_addresses.contains(address)) {
            Some(address) => Err(MemberRefusal::AddressTaken(address.clone())),
            None => Ok(()),
        }
    }

    /// After the change, the voters heard of lately must still be a majority. A lone founder may add
    /// its first companion, or no cluster could ever grow.
    fn judge_majority(&self, change: &MemberChange) -> Result<(), MemberRefusal> {
        let mut after = self.members.clone();
        after.apply(change);
        let voters: Vec<NodeId> = after.by_id.values().filter(|m| m.role == MemberRole::Voter).map(|m| m.id).collect();
        let me = self.settings.node;
        let healthy =
            |id: &&NodeId| **id == me || self.consensus.progress().any(|(peer, _, active)| peer == **id && active);
        let before = self.members.by_id.values().filter(|m| m.role == MemberRole::Voter).count();
        let grows_from_one = before == 1 && matches!(change, MemberChange::Add(_));
        if voters.is_empty() || (voters.iter().filter(healthy).count() <= voters.len() / 2 && !grows_from_one) {
            return Err(MemberRefusal::WouldLoseQuorum);
        }
        Ok(())
    }

    pub(crate) fn member_change_applied(&mut self, index: LogIndex) {
        let Some((from, token, at)) = self.member_calls.changing.filter(|(.., at)| *at <= index) else { return };
        let leads = self.consensus.is_leader();
        if at == index && leads && self.consensus.is_joint() {
            // Half of it: whoever leaves votes until the entry that ends the joint change.
            self.member_calls.joint = true;
            return;
        }
        self.member_calls.changing = None;
        // Another leader's change may have taken that place in the log.
        let ours = leads && (at == index || self.member_calls.joint);
        self.member_calls.joint = false;
        let members = self.members.by_id.values().cloned().collect();
        self.tell_members(from, token, if ours { Ok(members) } else { Err(MemberRefusal::TimedOut) });
    }

    /// A change was carried out: whoever asked for it at this node has what it wished for. The leader's
    /// own answer may never come, above all when the change removed the leader.
    pub(crate) fn member_wish_came_true(&mut self, change: &MemberChange) {
        if self.consensus.is_joint() {
            return;
        }
        let members = &self.members;
        let is_it = |(_, (wish, _)): &(&Token, &(Wish, u64))| match wish {
            Wish::Change(wished) => match wished.unconditional() {
                MemberChange::Replace { add, remove } => {
                    let is_there =
                        |member: &Member| members.by_id.get(&member.id).is_some_and(|known| known.role == member.role);
                    let added = add.iter().all(is_there);
                    added && remove.iter().all(|id| members.removed.contains(id))
                }
                wished => wished == change,
            },
            Wish::Transfer => false,
        };
        let tokens: Vec<Token> = self.member_calls.waiting.iter().filter(is_it).map(|(token, _)| *token).collect();
        for token in tokens {
            let members = self.members.by_id.values().cloned().collect();
            self.members_changed(token, Ok(members));
        }
    }

    fn tell_members(&mut self, to: NodeId, token: Token, result: Result<Vec<Member>, MemberRefusal>) {
        if to == self.settings.node {
            self.members_changed(token, result);
        } else {
            self.effects.frames.push((to, PeerMessage::MembersChanged { token, result }.to_frame()));
        }
    }

    pub(crate) fn members_changed(&mut self, token: Token, result: Result<Vec<Member>, MemberRefusal>) {
        if result == Err(MemberRefusal::HandingOver) {
            self.member_calls.again.insert(token, self.tick + ASK_AGAIN_TICKS);
            return;
        }
        if self.member_calls.waiting.remove(&token).is_some() {
            self.effects.replies.push(Reply::Members { token, result });
        }
    }

    pub(crate) fn transfer(&mut self, token: Token, to: NodeId) {
        let me = self.settings.node;
        match self.consensus.leader() {
            Some(leader) => {
                self.member_calls.waiting.insert(token, (Wish::Transfer, self.tick));
                if leader == me {
                    self.transfer_for(me, token, to);
                } else {
                    self.effects.frames.push((leader, PeerMessage::Transfer { token, to }.to_frame()));
                }
            }
            None => self.effects.replies.push(Reply::Transferred { token, result: Err(MemberRefusal::TimedOut) }),
        }
    }

    pub(crate) fn transfer_for(&mut self, from: NodeId, token: Token, to: NodeId) {
        let refusal = match self.members.by_id.get(&to) {
            None => Some(MemberRefusal::NotFound(to)),
            Some(member) if member.role == MemberRole::Learner => Some(MemberRefusal::WrongRole(to)),
            Some(_) if !self.consensus.is_leader() => Some(MemberRefusal::TimedOut),
            Some(_) if self.member_calls.transfers.len() >= CALLS_MAX => Some(MemberRefusal::Busy),
            Some(_) => None,
        };
        if let Some(refusal) = refusal {
            return self.tell_transferred(from, token, Err(refusal));
        }
        if to == self.settings.node {
            return self.tell_transferred(from, token, Ok(()));
        }
        self.member_calls.transfers.push((from, token, to));
        self.consensus.transfer(to);
    }

    /// The leader changed: hand-overs under way succeeded or did not. While no leader is known they wait.
    pub(crate) fn notice_transfers(&mut self) {
        let Some(leader) = self.consensus.leader().filter(|leader| *leader != self.settings.node) else { return };
        for (from, token, to) in std::mem::take(&mut self.member_calls.transfers) {
            let result = if to == leader { Ok(()) } else { Err(MemberRefusal::TimedOut) };
            self.tell_transferred(from, token, result);
        }
    }

    fn tell_transferred(&mut self, to: NodeId, token: Token, result: Result<(), MemberRefusal>) {
        if to == self.settings.node {
            self.transferred(token, result);
        } else {
            self.effects.frames.push((to, PeerMessage::Transferred { token, result }.to_frame()));
        }
    }

    pub(crate) fn transferred(&mut self, token: Token, result: Result<(), MemberRefusal>) {
        if self.member_calls.waiting.remove(&token).is_some() {
            self.effects.replies.push(Reply::Transferred { token, result });
        }
    }

    /// Hands leadership to the member that holds most, if this node leads.
    pub(crate) fn step_down(&mut self) {
        if self.consensus.is_leader() {
            self.hand_over(|_| true);
        }
    }

    /// Begins to hand leadership to the voter that holds most among those who `may` have it. `false`: there is
    /// none.
    fn hand_over(&mut self, may: impl Fn(NodeId) -> bool) -> bool {
        let voter = |id: &NodeId| self.members.by_id.get(id).is_some_and(|m| m.role == MemberRole::Voter);
        let heirs = self.consensus.progress().filter(|(id, _, active)| voter(id) && *active && may(*id));
        let Some((to, ..)) = heirs.max_by_key(|(_, held, _)| *held) else { return false };
        self.consensus.transfer(to);
        true
    }

    fn ask_again(&mut self) {
        let (tick, me) = (self.tick, self.settings.node);
        let Some(leader) = self.consensus.leader() else { return };
        let due = self.member_calls.again.iter().filter(|(_, at)| **at <= tick).map(|(token, _)| *token);
        for token in due.collect::<Vec<_>>() {
            self.member_calls.again.remove(&token);
            let Some((Wish::Change(change), _)) = self.member_calls.waiting.get(&token) else { continue };
            let change = change.clone();
            if leader == me {
                self.change_members_for(me, token, &change);
            } else {
                self.effects.frames.push((leader, PeerMessage::ChangeMembers { token, change }.to_frame()));
            }
        }
    }

    /// Once a tick: gives up callers that waited too long.
    pub(crate) fn tick_member_calls(&mut self) {
        let (tick, timeout) = (self.tick, self.settings.timeout_ticks);
        let expired = |(_, (_, since)): &(&Token, &(Wish, u64))| tick.saturating_sub(*since) > timeout;
        let tokens: Vec<Token> = self.member_calls.waiting.iter().filter(expired).map(|(token, _)| *token).collect();
        for token in tokens {
            let Some((wish, _)) = self.member_calls.waiting.remove(&token) else { continue };
            self.effects.replies.push(match wish {
                Wish::Change(_) => Reply::Members { token, result: Err(MemberRefusal::TimedOut) },
                Wish::Transfer => Reply::Transferred { token, result: Err(MemberRefusal::TimedOut) },
            });
        }
        self.ask_again();
        if !self.consensus.is_leader() {
            self.member_calls.changing = None;
            self.member_calls.joint = false;
        }
        // The engine puts an empty entry in the place of a change it does not like.
        let joint = self.member_calls.joint;
        let passed = |(.., at): &(NodeId, Token, LogIndex)| !joint && *at <= self.consensus.handed_out();
        if let Some((from, token, _)) = self.member_calls.changing.filter(passed) {
            self.member_calls.changing = None;
            self.tell_members(from, token, Err(MemberRefusal::Busy));
        }
    }
}
