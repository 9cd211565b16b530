//! Members that come and go, one change at a time: a learner is added, its machine started, and it is
//! promoted once it caught up; voters are removed, or exchanged in one step.
//!
//! What it keeps to, because no cluster survives otherwise: at most seven members; never fewer voters than
//! three, or than the cluster began with if that is less; an id is used once.
//!
//! A change whose fate is unknown is looked up later: whoever is listed and has no machine gets one, and
//! whoever was to be removed and is no longer listed is stopped.

use std::collections::BTreeSet;

use tidelock_coordinator::{Consistency, MemberError};
use tidelock_model::{Caller, Member, MemberChange, MemberRole, NodeId, Query, QueryAnswer};

use super::{MemberOrders, Order, Setup};
use crate::client::Client;
use crate::coverage;
use crate::history::Micros;

/// Most members at a time.
const MEMBERS_MAX: usize = 7;
/// Voters that are always left, if there were as many to begin with.
const VOTERS_MIN: usize = 3;
/// Shortest and longest time between two changes.
const PAUSE: (Micros, Micros) = (1_500_000, 6_000_000);
/// How often a learner that is behind is tried again, and how long is waited in between.
const PROMOTE_TRIES: u64 = 12;
const PROMOTE_PAUSE: (Micros, Micros) = (200_000, 1_000_000);

pub(super) fn start(setup: &Setup, clients: u64) {
    setup.each(clients.min(1), |client, _| Churn::new(client, setup.orders()).run());
}

struct Churn {
    client: Client,
    orders: MemberOrders,
    /// Members that have a machine.
    running: BTreeSet<NodeId>,
    /// Members that were to be removed and may be there still.
    leaving: BTreeSet<NodeId>,
    next_id: u64,
    voters_min: Option<usize>,
}

impl Churn {
    fn new(client: Client, orders: MemberOrders) -> Churn {
        let (running, leaving) = (BTreeSet::new(), BTreeSet::new());
        Churn { client, orders, running, leaving, next_id: 0, voters_min: None }
    }

    async fn run(mut self) {
        while !self.client.stopping() {
            self.client.think(PAUSE.0, PAUSE.1).await;
            self.start_the_listed().await;
            let Some(members) = self.list(Consistency::Linearizable).await else { continue };
            self.stop_the_gone(&members);
            self.change(&members).await;
        }
    }

    /// The members, asked of any node.
    async fn list(&mut self, consistency: Consistency) -> Option<Vec<Member>> {
        let node = self.client.any_node()?;
        let asked = self.client.call_at(node, |coordinator| async move {
            coordinator.read(Caller::Internal, Query::Members, consistency).await
        });
        let Ok(QueryAnswer::Members { members, .. }) = asked.await? else { return None };
        let largest = members.iter().map(|member| member.id.0).max()?;
        self.next_id = self.next_id.max(largest + 1);
        if self.voters_min.is_none() {
            // The founders, who run already.
            self.running = members.iter().map(|member| member.id).collect();
            self.voters_min = Some(voters(&members).len().min(VOTERS_MIN));
        }
        Some(members)
    }

    /// Starts machines for those who are listed by any node: the change that added them was agreed on. Not
    /// asked of a majority, because without the new machine there may be none.
    async fn start_the_listed(&mut self) {
        let Some(members) = self.list(Consistency::Local).await else { return };
        for member in &members {
            if !self.leaving.contains(&member.id) && self.running.insert(member.id) {
                self.orders.give(Order::Start { member: member.clone(), members: members.clone() });
            }
        }
    }

    fn stop_the_gone(&mut self, members: &[Member]) {
        let gone = |node: &NodeId| !members.iter().any(|member| member.id == *node);
        for node in self.leaving.iter().copied().filter(gone).collect::<Vec<_>>() {
            self.leaving.remove(&node);
            if self.running.remove(&node) {
                self.orders.give(Order::Stop { node });
            }
        }
    }

    async fn change(&mut self, members: &[Member]) {
        let voters = voters(members);
        let removable = voters.len() > self.voters_min.unwrap_or(VOTERS_MIN);
        let learner = members.iter().find(|member| member.role == MemberRole::Learner).map(|member| member.id);
        let full = members.len() >= MEMBERS_MAX;
        match (learner, self.client.below(10)) {
            (Some(learner), 0) => self.remove(learner).await,
            (Some(learner), _) => self.promote(learner).await,
            (None, 0..2) if voters.len() >= VOTERS_MIN => self.exchange(*self.client.pick(&voters)).await,
            (None, 2..5) if removable => self.remove(*self.client.pick(&voters)).await,
            (None, _) if full => self.remove(*self.client.pick(&voters)).await,
            (None, 5) => self.add(MemberRole::Voter).await,
            (None, _) => self.add(MemberRole::Learner).await,
        }
    }

    fn new_member(&mut self, role: MemberRole) -> Member {
        let id = self.next_id;
        self.next_id += 1;
        let (name, client_urls) = (String::new(), Vec::new());
        Member {
            id: NodeId(id),
            name,
            peer_addresses: vec![format!("machine-{id:x}:2380")],
            client_urls,
            role,
            zookeeper: None,
        }
    }

    async fn send(&self, change: MemberChange) -> Option<Result<Vec<Member>, MemberError>> {
        let node = self.client.any_node()?;
        let answer = self
            .client
            .call_at(node, |coordinator| async move { coordinator.change_members(Caller::Internal, change).await })
            .await;
        if matches!(answer, Some(Ok(_))) {
            self.client.around().coverage.hit(coverage::MEMBERSHIP_CHANGED);
        }
        answer
    }

    async fn add(&mut self, role: MemberRole) {
        let member = self.new_member(role);
        if let Some(Ok(members)) = self.send(MemberChange::Add(member.clone())).await {
            self.running.insert(member.id);
            self.orders.give(Order::Start { member, members });
        }
    }

    async fn promote(&self, learner: NodeId) {
        for _ in 0..PROMOTE_TRIES {
            match self.send(MemberChange::Promote(learner)).await {
                Some(Ok(_)) => return self.client.around().coverage.hit(coverage::LEARNER_PROMOTED),
                Some(Err(MemberError::LearnerBehind { .. } | MemberError::Busy)) if !self.client.stopping() => {
                    self.client.think(PROMOTE_PAUSE.0, PROMOTE_PAUSE.1).await;
                }
                _ => return,
            }
        }
    }

    async fn remove(&mut self, node: NodeId) {
        self.leaving.insert(node);
        match self.send(MemberChange::Remove(node)).await {
            Some(Ok(members)) => self.stop_the_gone(&members),
            // Surely nothing was changed: it is no longer about to leave.
            Some(Err(MemberError::WouldLoseQuorum | MemberError::Busy)) => drop(self.leaving.remove(&node)),
            _ => {}
        }
    }

    /// Exchanges a voter for a new one in one step.
    async fn exchange(&mut self, node: NodeId) {
        let member = self.new_member(MemberRole::Voter);
        self.leaving.insert(node);
        let change = MemberChange::Replace { add: vec![member.clone()], remove: vec![node] };
        match self.send(change).await {
            Some(Ok(members)) => {
                self.client.around().coverage.hit(coverage::JOINT_CHANGE);
                self.running.insert(member.id);
                self.orders.give(Order::Start { member, members: members.clone() });
                self.stop_the_gone(&members);
            }
            Some(Err(MemberError::WouldLoseQuorum | MemberError::Busy)) => drop(self.leaving.remove(&node)),
            _ => {}
        }
    }
}

fn voters(members: &[Member]) -> Vec<NodeId> {
    members.iter().filter(|member| member.role == MemberRole::Voter).map(|member| member.id).collect()
}
