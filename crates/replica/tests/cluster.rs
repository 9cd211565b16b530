//! Several replicas in one loop, without threads, disks or sockets: what a cluster does together.
//! Everything is deterministic; a simulator with faults builds on the same calls.

// The harness is part of the tests: what it unwraps is there, or the test has failed.
#![allow(clippy::unwrap_used)]

#[path = "cluster/answers.rs"]
mod answers;
#[path = "cluster/broken_link.rs"]
mod broken_link;
#[path = "cluster/own_removal.rs"]
mod own_removal;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use tidelock_model::{
    Caller, Command, HardState, Key, LeaseId, LogIndex, LogTime, Member, MemberChange, MemberRole, Members, NodeId, Op,
    Origin, Proposal, PutLease, PutOp, PutValue, Space, Term, Wire,
};
use tidelock_replica::consensus::Consensus;
use tidelock_replica::{
    Applier, Call, Effects, Fatal, Input, LeaseCall, MemberRefusal, Renewal, Replica, Reply, Report, Settings, Start,
    Task, expiry_proposal,
};
use tidelock_state::State;

struct Node {
    replica: Replica,
    applier: Applier,
    state: State,
    answered: BTreeMap<u64, u64>,
    fresh: BTreeSet<u64>,
    replies: Vec<Reply>,
    /// Why it has to stop, if it has.
    fatal: Option<Fatal>,
    /// Up to where it would know that entries are agreed on after a crash.
    durable_commit: LogIndex,
}

struct Cluster {
    nodes: BTreeMap<NodeId, Node>,
    wire: VecDeque<(NodeId, NodeId, Bytes)>,
    cut_off: BTreeSet<NodeId>,
    now: u64,
}

fn member(id: u64, role: MemberRole) -> Member {
    let peer_addresses = vec![format!("host-{id}:1")];
    Member { id: NodeId(id), name: format!("n{id}"), peer_addresses, client_urls: vec![], role, zookeeper: None }
}

impl Cluster {
    fn founded(ids: &[u64]) -> Cluster {
        let founders: Vec<Member> = ids.iter().map(|id| member(*id, MemberRole::Voter)).collect();
        let mut cluster =
            Cluster { nodes: BTreeMap::new(), wire: VecDeque::new(), cut_off: BTreeSet::new(), now: 1_000 };
        for id in ids {
            let mut state = State::new();
            state.bootstrap_members(founders.clone());
            state.apply_nothing(LogIndex(1));
            let roles: Vec<_> = founders.iter().map(|founder| (founder.id, founder.role)).collect();
            cluster.start(*id, state, Consensus::voters_of(&roles));
            cluster.step(NodeId(*id), Input::Introduced);
        }
        cluster
    }

    fn start(&mut self, id: u64, state: State, voters: Bytes) {
        let (node, index) = (NodeId(id), state.applied());
        let settings = Settings { node, boot: 7 + id, timeout_ticks: 50 };
        let term = Term(u64::from(index.0 > 0));
        let start = Start {
            node,
            seed: 42,
            election_ticks: 10,
            hard_state: HardState { term, vote: NodeId(0), commit: index },
            voters: voters.clone(),
            snapshot: (index, term),
            entries: vec![],
        };
        let members: Members = state.members().clone();
        let replica = Replica::new(settings, start, members).unwrap();
        let applier = Applier::new(node, 7 + id, &state, term, voters);
        let (answered, fresh) = (BTreeMap::new(), BTreeSet::new());
        let node =
            Node { replica, applier, state, answered, fresh, replies: vec![], fatal: None, durable_commit: index };
        self.nodes.insert(NodeId(id), node);
    }

    fn step(&mut self, id: NodeId, input: Input) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.replica.step(input);
        loop {
            let effects = node.replica.effects();
            let idle = effects.frames.is_empty()
                && effects.persist.is_empty()
                && effects.tasks.is_empty()
                && effects.replies.is_empty();
            if idle {
                break;
            }
            perform(id, node, effects, &mut self.wire);
        }
    }

    /// Delivers messages until there are none.
    fn settle(&mut self) {
        while let Some((from, to, bytes)) = self.wire.pop_front() {
            let reachable = !self.cut_off.contains(&from) && !self.cut_off.contains(&to);
            if reachable && self.nodes.contains_key(&to) {
                self.step(to, Input::Frame { from, bytes });
            }
        }
    }

    fn tick(&mut self, count: usize) {
        for _ in 0..count {
            self.now += 100;
            let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
            for id in ids {
                self.step(id, Input::Tick { now: LogTime(self.now) });
                self.expire(id);
            }
            self.settle();
        }
    }

    fn expire(&mut self, id: NodeId) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.applier.advance(Duration::from_millis(100), Duration::from_millis(300));
        if let Some((term, leases)) = node.applier.due(&node.state) {
            let origin = Origin { node: NodeId(!id.0), boot: 1, number: self.now };
            let bytes = expiry_proposal(origin, term, leases);
            self.step(id, Input::Expire { term, bytes });
        }
    }

    fn leader(&self) -> NodeId {
        let connected = |id: &&NodeId| !self.cut_off.contains(*id);
        let leads = |id: &&NodeId| self.nodes[*id].replica.is_leader();
        *self.nodes.keys().filter(connected).find(leads).expect("someone leads")
    }

    fn elect(&mut self) -> NodeId {
        for _ in 0..100 {
            self.tick(1);
            let led = |(id, node): (&NodeId, &Node)| !self.cut_off.contains(id) && node.replica.is_leader();
            if self.nodes.iter().any(led) {
                self.tick(2);
                return self.leader();
            }
        }
        panic!("nobody was elected within ten seconds");
    }

    fn follower(&self) -> NodeId {
        let leader = self.leader();
        *self.nodes.keys().find(|id| **id != leader && !self.cut_off.contains(*id)).unwrap()
    }

    fn propose(&mut self, id: NodeId, number: u64, command: Command) {
        let origin = Origin { node: id, boot: 7 + id.0, number };
        let bytes = Proposal { origin, request: None, caller: Caller::Internal, command }.to_bytes().into();
        self.step(id, Input::Call(Call::Propose { number, bytes }));
    }

    fn check_agreement(&self) {
        let digests: BTreeSet<(LogIndex, u128)> =
            self.nodes.values().map(|node| (node.state.applied(), node.state.digest())).collect();
        assert_eq!(digests.len(), 1, "R5: same index, same state: {digests:?}");
    }
}

fn perform(id: NodeId, node: &mut Node, effects: Effects, wire: &mut VecDeque<(NodeId, NodeId, Bytes)>) {
    assert_eq!(effects.faults, [], "H26: nothing that a correct peer says is refused");
    wire.extend(effects.frames.into_iter().map(|(to, frame)| (id, to, frame)));
    for ready in effects.persist {
        if let Some(stored) = ready.hard_state.filter(|_| ready.must_sync) {
            node.durable_commit = stored.commit;
        }
        wire.extend(ready.send_after.into_iter().map(|(to, frame)| (id, to, frame)));
        node.replica.step(Input::Persisted { number: ready.number });
    }
    let mut report = Report::default();
    for task in effects.tasks {
        match task {
            Task::Apply(entries) => {
                let index = entries.last().unwrap().index();
                entries.into_iter().for_each(|entry| node.applier.apply(&mut node.state, entry, &mut report));
                let done = report.outcomes.iter().map(|(number, _)| *number..=*number).collect();
                node.replica.step(Input::Applied { index, done });
            }
            Task::ReadsReady(tokens) => node.fresh.extend(tokens),
            Task::LeaseCalls { from, calls } => node.applier.lease_calls(from, calls, &mut report),
            Task::Renew { from, renewal } => {
                let reply = node.applier.renew(&renewal).expect("whoever is given this leads");
                node.replica.step(Input::Renewed { to: from, reply });
            }
            Task::Leading(term) => node.applier.leading(&node.state, term),
            Task::Install { .. } => panic!("no snapshots here"),
        }
    }
    for (number, outcome) in report.outcomes {
        assert!(outcome.result.is_ok(), "{outcome:?}");
        let again = node.answered.insert(number, outcome.revision.0);
        assert_eq!(again, None, "H25: proposal {number} was carried out twice");
    }
    for (to, reply) in report.lease_replies {
        node.replica.step(Input::LeaseReplies { to, replies: vec![reply] });
    }
    node.replies.extend(effects.replies);
    node.fatal = node.fatal.take().or(effects.fatal);
}

fn put(name: &str) -> Command {
    Command::Write(Op::Put(PutOp {
        key: Key::new(Space::User, name.as_bytes()),
        value: PutValue::Set(Bytes::from_static(b"v")),
        lease: PutLease::Set(LeaseId::NONE),
        want_previous: false,
    }))
}

/// L1: ten thousand sessions of a follower must cost the cluster a few messages, not ten thousand, and nothing in
/// the log; and they live as long as they are renewed.
#[test]
fn l1_ten_thousand_leases_are_renewed_by_one_message_and_no_entry() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let leader = cluster.elect();
    let follower = cluster.follower();
    let leases: Vec<LeaseId> = (1..=10_000).map(LeaseId).collect();
    for lease in &leases {
        cluster.propose(leader, lease.0 as u64, Command::LeaseGrant { id: *lease, ttl_s: 2 });
    }
    cluster.settle();
    let applied = cluster.nodes[&follower].state.applied();
    for token in 0..4 {
        cluster.tick(15);
        let mut asked = leases.clone();
        asked.push(LeaseId(77_777));
        cluster.step(follower, Input::Call(Call::Renew(Renewal { token, leases: asked })));
        let mut messages = 0;
        while let Some((from, to, bytes)) = cluster.wire.pop_front() {
            messages += 1;
            cluster.step(to, Input::Frame { from, bytes });
        }
        // The batch, the round that says who leads, the answer.
        assert!(messages <= 6, "{messages} messages");
        let Some(Reply::Renewed(reply)) = cluster.nodes[&follower].replies.last() else { panic!("no answer") };
        assert_eq!((reply.token, &reply.gone, &reply.ending), (token, &vec![LeaseId(77_777)], &vec![]));
    }
    let state = &cluster.nodes[&follower].state;
    assert_eq!((state.lease_count(), state.applied()), (10_000, applied), "all live on, and the log has not grown");
}

#[test]
fn writes_through_any_node_are_carried_out_once_everywhere() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    cluster.elect();
    for (number, id) in [(1, 1), (1, 2), (1, 3), (2, 1)] {
        cluster.propose(NodeId(id), number, put(&format!("{id}-{number}")));
    }
    cluster.settle();
    cluster.tick(2);
    cluster.check_agreement();
    let node = &cluster.nodes[&NodeId(1)];
    assert_eq!(node.answered.len(), 2);
    assert_eq!(node.state.keys(), 4);
}

/// H25: the follower's proposal reaches a leader that is lost before anyone hears of it, and is sent to
/// the next: once carried out, and answered, not failed.
#[test]
fn h25_a_proposal_a_lost_leader_was_sent_is_carried_out_once_by_the_next() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let old = cluster.elect();
    let follower = cluster.follower();
    cluster.propose(follower, 1, put("k"));
    // The old leader gets it and appends it, but nothing it says gets out.
    let (to_leader, _): (Vec<_>, Vec<_>) = cluster.wire.drain(..).partition(|(_, to, _)| *to == old);
    for (from, to, bytes) in to_leader {
        cluster.step(to, Input::Frame { from, bytes });
    }
    cluster.wire.clear();
    cluster.cut_off.insert(old);
    let new = cluster.elect();
    assert_ne!(new, old);
    cluster.tick(3);
    assert_eq!(cluster.nodes[&follower].answered.len(), 1);
    cluster.cut_off.clear();
    cluster.tick(20);
    cluster.check_agreement();
    assert_eq!(cluster.nodes[&old].state.keys(), 1);
}

/// H21: a founder that holds nothing may be new, or may have lost its disk and with it what it promised.
/// Until the others vouch for it, it promises nothing, and an acknowledged write stays.
#[test]
fn h21_a_founder_that_holds_nothing_promises_nothing_before_it_is_introduced() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let leader = cluster.elect();
    let wiped = cluster.follower();
    let behind = *cluster.nodes.keys().find(|id| **id != leader && **id != wiped).unwrap();
    cluster.cut_off.insert(behind);
    cluster.propose(leader, 1, put("precious"));
    cluster.settle();
    assert_eq!(cluster.nodes[&leader].answered.len(), 1);
    let mut state = State::new();
    let founders: Vec<Member> = (1..=3).map(|id| member(id, MemberRole::Voter)).collect();
    state.bootstrap_members(founders.clone());
    state.apply_nothing(LogIndex(1));
    let roles: Vec<_> = founders.iter().map(|founder| (founder.id, founder.role)).collect();
    cluster.start(wiped.0, state, Consensus::voters_of(&roles));
    cluster.cut_off = BTreeSet::from([leader]);
    cluster.tick(100);
    assert!(!cluster.nodes[&behind].replica.is_leader(), "elected by a node that may have forgotten");
    assert_eq!(cluster.nodes[&wiped].replica.term(), Term(1), "no promise was made");
}

/// H7: a leader that is cut off must not serve reads as if it still led.
#[test]
fn h7_a_leader_that_is_cut_off_confirms_no_read() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let old = cluster.elect();
    cluster.step(old, Input::Call(Call::Read(1)));
    cluster.settle();
    assert!(cluster.nodes[&old].fresh.contains(&1), "a healthy leader confirms");
    cluster.cut_off.insert(old);
    cluster.step(old, Input::Call(Call::Read(2)));
    let new = cluster.elect();
    cluster.propose(new, 1, put("newer"));
    cluster.settle();
    cluster.tick(5);
    assert!(!cluster.nodes[&old].fresh.contains(&2));
    cluster.tick(60);
    let gave_up = |reply: &Reply| matches!(reply, Reply::ReadFailed { token: 2, .. });
    assert!(cluster.nodes[&old].replies.iter().any(gave_up), "and tells the reader so in time");
}

/// R3: a read on a follower sees what was acknowledged before it.
#[test]
fn r3_a_follower_serves_a_read_only_after_it_caught_up() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let leader = cluster.elect();
    let follower = cluster.follower();
    cluster.propose(leader, 1, put("k"));
    cluster.settle();
    assert_eq!(cluster.nodes[&leader].answered.len(), 1);
    cluster.step(follower, Input::Call(Call::Read(9)));
    while !cluster.nodes[&follower].fresh.contains(&9) {
        let (from, to, bytes) = cluster.wire.pop_front().expect("the read is answered");
        cluster.step(to, Input::Frame { from, bytes });
    }
    assert_eq!(cluster.nodes[&follower].state.keys(), 1);
}

/// L1, L3 and H8 together: renewed through a follower it lives, also over a change of leader; left
/// alone it ends, and its end is agreed on.
#[test]
fn l1_a_lease_renewed_through_a_follower_outlives_its_ttl_and_a_leader() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let leader = cluster.elect();
    let follower = cluster.follower();
    let lease = LeaseId(5);
    cluster.propose(leader, 1, Command::LeaseGrant { id: lease, ttl_s: 2 });
    cluster.settle();
    let keep_alive = |cluster: &mut Cluster, token| {
        cluster.step(follower, Input::Call(Call::Lease(LeaseCall { token, id: lease, renew: true })));
        cluster.settle();
        let told = |reply: &Reply| matches!(reply, Reply::Lease(r) if r.token == token && r.info.is_some());
        cluster.nodes[&follower].replies.iter().any(told)
    };
    for token in 0..4 {
        cluster.tick(15);
        assert!(keep_alive(&mut cluster, token), "renewal {token}");
    }
    cluster.cut_off.insert(leader);
    cluster.elect();
    assert!(keep_alive(&mut cluster, 100), "the new leader knows the lease");
    cluster.tick(30);
    assert_eq!(cluster.nodes[&follower].state.lease_count(), 0, "left alone, it ends");
    cluster.cut_off.clear();
    cluster.tick(30);
    cluster.check_agreement();
}

#[test]
fn leadership_moves_where_it_was_asked_to() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let old = cluster.elect();
    let to = cluster.follower();
    // Asked at a node that does not lead: it is passed on.
    cluster.step(to, Input::Call(Call::Transfer { token: 1, to }));
    cluster.settle();
    cluster.tick(2);
    assert_eq!(cluster.leader(), to);
    assert!(!cluster.nodes[&old].replica.is_leader());
    let done = |reply: &Reply| matches!(reply, Reply::Transferred { token: 1, result: Ok(()) });
    assert!(cluster.nodes[&to].replies.iter().any(done));
}

/// A node that has the state of three founders, as a snapshot would give it, and is not a member yet.
fn start_fourth(cluster: &mut Cluster) {
    let mut state = State::new();
    let founders: Vec<Member> = (1..=3).map(|id| member(id, MemberRole::Voter)).collect();
    state.bootstrap_members(founders.clone());
    state.apply_nothing(LogIndex(1));
    let roles: Vec<_> = founders.iter().map(|founder| (founder.id, founder.role)).collect();
    cluster.start(4, state, Consensus::voters_of(&roles));
    cluster.step(NodeId(4), Input::Introduced);
}

/// M1: whoever is removed leaves when it hears of it. Had the other of two members forgotten that after a crash, it
/// would wait for the vote of somebody who is gone.
#[test]
fn m1_that_a_member_was_removed_is_durable_at_the_other_when_it_is_told() {
    let mut cluster = Cluster::founded(&[1, 2]);
    let leader = cluster.elect();
    let removed = cluster.follower();
    cluster.step(leader, Input::Call(Call::ChangeMembers { token: 1, change: MemberChange::Remove(removed) }));
    cluster.settle();
    let told = cluster.nodes[&removed].state.applied();
    assert!(!cluster.nodes[&leader].state.members().by_id.contains_key(&removed));
    assert!(cluster.nodes[&leader].durable_commit >= told, "{:?} of {told}", cluster.nodes[&leader].durable_commit);
    assert_eq!(cluster.nodes[&leader].durable_commit, cluster.nodes[&leader].state.applied());
}

/// M1: replacing a member takes two sets of voters at once; the cluster must come out of it by itself.
#[test]
fn m1_a_member_is_replaced_by_joint_consensus_and_the_cluster_leaves_it() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let leader = cluster.elect();
    let removed = cluster.follower();
    start_fourth(&mut cluster);
    let change = MemberChange::Replace { add: vec![member(4, MemberRole::Voter)], remove: vec![removed] };
    cluster.step(leader, Input::Call(Call::ChangeMembers { token: 1, change }));
    cluster.settle();
    cluster.tick(10);
    let members =
        |reply: &Reply| matches!(reply, Reply::Members { token: 1, result: Ok(members) } if members.len() == 3);
    assert!(cluster.nodes[&leader].replies.iter().any(members));
    // Out of the joint state: another change is possible at once, and the old member does not count.
    cluster.cut_off.insert(removed);
    cluster.nodes.remove(&removed);
    cluster.propose(leader, 1, put("k"));
    cluster.settle();
    cluster.tick(3);
    cluster.check_agreement();
    assert_eq!(cluster.nodes[&NodeId(4)].state.keys(), 1);
    let promote = MemberChange::Promote(NodeId(4));
    cluster.step(leader, Input::Call(Call::ChangeMembers { token: 2, change: promote }));
    let refused = Err(MemberRefusal::WrongRole(NodeId(4)));
    let is_refused = |reply: &Reply| matches!(reply, Reply::Members { token: 2, result } if *result == refused);
    assert!(cluster.nodes[&leader].replies.iter().any(is_refused), "a voter cannot be promoted");
}

/// M1: who leaves by a joint change votes until the cluster has left it. Told earlier that it was removed, it
/// would stop, and with one more node lost the old voters would have no majority: nobody could ever lead.
#[test]
fn m1_nobody_is_told_of_its_removal_before_the_joint_change_is_over() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let leader = cluster.elect();
    let leaves = cluster.follower();
    start_fourth(&mut cluster);
    let change = MemberChange::Replace { add: vec![member(4, MemberRole::Voter)], remove: vec![leaves] };
    cluster.step(leader, Input::Call(Call::ChangeMembers { token: 1, change }));
    let mut was_joint = false;
    while let Some((from, to, bytes)) = cluster.wire.pop_front() {
        cluster.step(to, Input::Frame { from, bytes });
        let replica = &cluster.nodes[&leader].replica;
        let added = replica.members().by_id.contains_key(&NodeId(4));
        let removed = replica.members().removed.contains(&leaves);
        was_joint |= added && !removed;
        let answered = answer_to_change(&cluster.nodes[&leader], 1).is_some();
        assert!(!answered || removed, "answered before it was over");
    }
    assert!(was_joint, "there was a time in which both sets of voters counted");
    cluster.tick(5);
    assert!(cluster.nodes[&leader].replica.members().removed.contains(&leaves));
    assert_eq!(answer_to_change(&cluster.nodes[&leader], 1).unwrap().unwrap().len(), 3);
}

/// M1: a leader that is to be an observer hands over first, and votes for nobody any more; together with another part
/// for somebody else it is one change.
#[test]
fn m1_a_leader_becomes_a_learner_while_a_learner_becomes_a_voter() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let leader = cluster.elect();
    let asked = cluster.follower();
    start_fourth(&mut cluster);
    cluster.step(
        leader,
        Input::Call(Call::ChangeMembers { token: 1, change: MemberChange::Add(member(4, MemberRole::Learner)) }),
    );
    cluster.settle();
    cluster.tick(10);
    let add = vec![member(leader.0, MemberRole::Learner), member(4, MemberRole::Voter)];
    let change = MemberChange::Replace { add, remove: vec![] };
    cluster.step(asked, Input::Call(Call::ChangeMembers { token: 2, change }));
    cluster.settle();
    cluster.tick(30);
    assert_eq!(answer_to_change(&cluster.nodes[&asked], 2).unwrap().unwrap().len(), 4);
    let next = cluster.leader();
    assert_ne!(next, leader);
    let role = |id: NodeId| cluster.nodes[&next].state.members().by_id[&id].role;
    assert_eq!((role(leader), role(NodeId(4))), (MemberRole::Learner, MemberRole::Voter));
    // What it holds does not count: with it alone the new leader has no majority, without it it has.
    cluster.cut_off.insert(leader);
    cluster.propose(next, 1, put("k"));
    cluster.settle();
    cluster.tick(3);
    assert_eq!(cluster.nodes[&next].state.keys(), 1);
}

/// Two operators who both saw the same members must not both change them: the second would act on what is no more.
#[test]
fn a_change_for_members_that_are_others_by_now_is_refused() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let leader = cluster.elect();
    let seen: Vec<Member> = cluster.nodes[&leader].state.members().by_id.values().cloned().collect();
    start_fourth(&mut cluster);
    for (token, id) in [(1, 4), (2, 5)] {
        let change = Box::new(MemberChange::Add(member(id, MemberRole::Learner)));
        let change = MemberChange::IfStill { members: seen.clone(), change };
        cluster.step(leader, Input::Call(Call::ChangeMembers { token, change }));
        cluster.settle();
        cluster.tick(10);
    }
    assert_eq!(answer_to_change(&cluster.nodes[&leader], 1).unwrap().unwrap().len(), 4);
    assert_eq!(answer_to_change(&cluster.nodes[&leader], 2), Some(Err(MemberRefusal::Busy)));
}

/// A new address changes no voters, and must leave the way free for the next change.
#[test]
fn a_member_that_moves_keeps_its_part_and_further_changes_are_possible() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let leader = cluster.elect();
    let moved = cluster.follower();
    for (token, address) in [(1, "elsewhere:1"), (2, "elsewhere:2")] {
        // The asker need not know the part; the leader does.
        let peer_addresses = vec![address.to_owned()];
        let change = MemberChange::Readdress { id: moved, peer_addresses, role: MemberRole::Learner };
        cluster.step(leader, Input::Call(Call::ChangeMembers { token, change }));
        cluster.settle();
        cluster.tick(3);
        let done = |reply: &Reply| match reply {
            Reply::Members { token: t, result: Ok(members) } if *t == token => {
                let found = members.iter().find(|member| member.id == moved).unwrap();
                found.peer_addresses == [address] && found.role == MemberRole::Voter
            }
            _ => false,
        };
        assert!(cluster.nodes[&leader].replies.iter().any(done), "change {token}");
    }
    cluster.check_agreement();
}

/// What was answered to the change of members with this token; an answer must not come twice.
fn answer_to_change(node: &Node, wanted: u64) -> Option<Result<Vec<NodeId>, MemberRefusal>> {
    let mut answers = node.replies.iter().filter_map(|reply| match reply {
        Reply::Members { token, result } if *token == wanted => Some(result.clone()),
        _ => None,
    });
    let answer = answers.next();
    assert!(answers.next().is_none(), "change {wanted} was answered twice");
    answer.map(|result| result.map(|members| members.iter().map(|member| member.id).collect()))
}

/// Ticks until the change is answered; what leaders say about changes of members is lost if `deaf`.
fn wait_for_change(cluster: &mut Cluster, asked: NodeId, deaf: bool) -> Option<Result<Vec<NodeId>, MemberRefusal>> {
    const MEMBERS_CHANGED: u8 = 6;
    for _ in 0..60 {
        cluster.now += 100;
        for id in cluster.nodes.keys().copied().collect::<Vec<_>>() {
            cluster.step(id, Input::Tick { now: LogTime(cluster.now) });
        }
        while let Some((from, to, bytes)) = cluster.wire.pop_front() {
            if !(deaf && bytes[0] == MEMBERS_CHANGED && !carries_hand_over(&bytes)) && cluster.nodes.contains_key(&to) {
                cluster.step(to, Input::Frame { from, bytes });
            }
        }
        if let Some(answer) = answer_to_change(&cluster.nodes[&asked], 1) {
            return Some(answer);
        }
    }
    None
}

/// Whether an answer about members says that leadership is handed over first: its last byte is that refusal.
fn carries_hand_over(frame: &Bytes) -> bool {
    frame.last() == Some(&9)
}

/// The leader's word that a change was made may be lost with it. Whoever asked must hear all the same that it
/// worked, or would report a failure of what succeeded: the node that was asked answers from its own log.
#[test]
fn whoever_asked_a_follower_to_remove_the_leader_is_answered_even_if_no_leader_says_so() {
    for deaf in [false, true] {
        for asked in [0, 1] {
            let mut cluster = Cluster::founded(&[1, 2, 3]);
            let old = cluster.elect();
            let others: Vec<NodeId> = cluster.nodes.keys().copied().filter(|id| *id != old).collect();
            let change = MemberChange::Remove(old);
            cluster.step(others[asked], Input::Call(Call::ChangeMembers { token: 1, change }));
            assert_eq!(wait_for_change(&mut cluster, others[asked], deaf), Some(Ok(others.clone())));
            cluster.nodes.remove(&old);
            cluster.elect();
            cluster.tick(3);
            cluster.check_agreement();
        }
    }
}

/// The same asked at the leader itself, which hands over first: the next leader's answer reaches it.
#[test]
fn whoever_asked_the_leader_to_remove_itself_is_answered() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let old = cluster.elect();
    let others: Vec<NodeId> = cluster.nodes.keys().copied().filter(|id| *id != old).collect();
    let change = MemberChange::Remove(old);
    cluster.step(old, Input::Call(Call::ChangeMembers { token: 1, change }));
    assert_eq!(wait_for_change(&mut cluster, old, false), Some(Ok(others)));
}

/// Told that the leader of two was removed, an operator turns its machine off. If the other did not know by
/// then, it would wait for a vote of the one that is gone, for ever.
#[test]
fn of_two_members_either_can_be_removed_and_the_other_goes_on_alone() {
    for asks_leader in [true, false] {
        let mut cluster = Cluster::founded(&[1, 2]);
        let leader = cluster.elect();
        let other = cluster.follower();
        let asked = if asks_leader { leader } else { other };
        let change = MemberChange::Remove(leader);
        cluster.step(asked, Input::Call(Call::ChangeMembers { token: 1, change }));
        assert_eq!(wait_for_change(&mut cluster, asked, false), Some(Ok(vec![other])));
        cluster.nodes.remove(&leader);
        cluster.wire.clear();
        assert_eq!(cluster.elect(), other);
        cluster.propose(other, 1, put("alone"));
        cluster.settle();
        assert_eq!(cluster.nodes[&other].answered.len(), 1);
    }
}

/// A cluster must not be talked into losing its majority.
#[test]
fn removing_a_healthy_member_while_another_is_down_is_refused() {
    let mut cluster = Cluster::founded(&[1, 2, 3]);
    let leader = cluster.elect();
    let follower = cluster.follower();
    let down = *cluster.nodes.keys().find(|id| **id != leader && **id != follower).unwrap();
    cluster.cut_off.insert(down);
    cluster.tick(25);
    let remove = |id| MemberChange::Remove(id);
    cluster.step(leader, Input::Call(Call::ChangeMembers { token: 1, change: remove(follower) }));
    cluster.step(leader, Input::Call(Call::ChangeMembers { token: 2, change: remove(down) }));
    cluster.settle();
    cluster.tick(3);
    let result_of = |wanted| {
        let replies = &cluster.nodes[&leader].replies;
        replies.iter().find_map(|reply| match reply {
            Reply::Members { token, result } if *token == wanted => Some(result.clone()),
            _ => None,
        })
    };
    assert_eq!(result_of(1), Some(Err(MemberRefusal::WouldLoseQuorum)));
    assert!(matches!(result_of(2), Some(Ok(members)) if members.len() == 2));
}
