//! H26, the other half: nothing that a correct peer says is refused, however late, twice or out of order it is heard.
//!
//! What is refused is as good as lost, and said again: a rule that is too strict holds a node back for as long as its
//! peers have the same to say. So here whole clusters run with slow disks, lost and delayed messages, nodes that crash,
//! logs that are trimmed, snapshots and changes of members; the rules must find nothing.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;
use tidelock_model::{LogEntry, Member, MemberChange};

use super::*;
use crate::consensus::{ReadContexts, Role, SnapshotWanted};
use crate::effects::Committed;

/// More than this on their way at once are dropped, the oldest first.
const IN_FLIGHT_MAX: usize = 300;
const NODES: u64 = 5;

/// What is on a node's disk.
#[derive(Clone)]
struct Disk {
    hard_state: HardState,
    snapshot: (LogIndex, Term),
    voters: Bytes,
    entries: Vec<LogEntry>,
}

struct Node {
    engine: Consensus,
    disk: Disk,
    /// Readies that are not durable yet, with who votes where there is a snapshot.
    held: VecDeque<(Ready, Option<Bytes>)>,
    /// What is carried out: index, and who votes as of which index.
    applied: LogIndex,
    voters: Vec<(LogIndex, Bytes)>,
    contexts: ReadContexts,
    removed: bool,
}

enum Sent {
    Frame(Bytes),
    Snapshot(SnapshotWanted),
}

struct Cluster {
    nodes: BTreeMap<NodeId, Node>,
    wire: VecDeque<(NodeId, NodeId, Sent)>,
    lives: u64,
    /// Whose removal was begun.
    gone: BTreeSet<NodeId>,
}

impl Disk {
    fn start(&self, node: NodeId) -> Consensus {
        let mut engine = Consensus::new(Start {
            node,
            seed: 7,
            election_ticks: 10,
            hard_state: self.hard_state,
            voters: self.voters.clone(),
            snapshot: self.snapshot,
            entries: self.entries.clone(),
        })
        .unwrap();
        engine.introduce();
        engine
    }

    fn write(&mut self, ready: &Ready, voters: Option<Bytes>) {
        if let (Some(snapshot), Some(voters)) = (ready.install, voters) {
            (self.snapshot, self.voters) = (snapshot, voters);
            self.entries.clear();
        }
        if let Some(first) = ready.entries.first() {
            self.entries.retain(|entry| entry.index < first.index);
            self.entries.extend(ready.entries.iter().cloned());
        }
        self.hard_state = ready.hard_state.unwrap_or(self.hard_state);
    }

    fn term_at(&self, index: LogIndex) -> Option<Term> {
        let found = self.entries.iter().find(|entry| entry.index == index).map(|entry| entry.term);
        found.or((index == self.snapshot.0).then_some(self.snapshot.1))
    }
}

impl Node {
    fn new(id: NodeId, disk: Disk, life: u64) -> Node {
        let (applied, voters) = (disk.snapshot.0, vec![(disk.snapshot.0, disk.voters.clone())]);
        let contexts = ReadContexts::new(id, life);
        Node { engine: disk.start(id), disk, held: VecDeque::new(), applied, voters, contexts, removed: false }
    }

    /// Takes a snapshot of what is carried out and durable, and drops the log before it.
    fn compact(&mut self, keep: u64) {
        let index = self.applied.min(self.disk.hard_state.commit);
        let Some(term) = self.disk.term_at(index).filter(|_| index > self.disk.snapshot.0) else { return };
        let Some((_, voters)) = self.voters.iter().rev().find(|(at, _)| *at <= index).cloned() else { return };
        self.engine.snapshot_taken(index, term, &voters);
        // The journal keeps more than it must; this disk does not, and so does not know the entries before either.
        (self.disk.snapshot, self.disk.voters) = ((index, term), voters);
        self.disk.entries.retain(|entry| entry.index > index);
        self.engine.trimmed(LogIndex((index.0 + 1).saturating_sub(keep)));
    }
}

impl Cluster {
    fn founded(founders: u64) -> Cluster {
        let voters =
            Consensus::voters_of(&(1..=founders).map(|id| (NodeId(id), MemberRole::Voter)).collect::<Vec<_>>());
        let mut cluster = Cluster { nodes: BTreeMap::new(), wire: VecDeque::new(), lives: 0, gone: BTreeSet::new() };
        for id in 1..=founders {
            let hard_state = HardState { term: FOUNDING.1, vote: NodeId(0), commit: FOUNDING.0 };
            cluster.start(NodeId(id), Disk { hard_state, snapshot: FOUNDING, voters: voters.clone(), entries: vec![] });
        }
        cluster
    }

    fn start(&mut self, id: NodeId, disk: Disk) {
        self.lives += 1;
        self.nodes.insert(id, Node::new(id, disk, self.lives));
    }

    fn crash(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.remove(&id) {
            self.start(id, node.disk);
        }
    }

    /// Takes all readies of a node but writes none of them.
    fn look(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        while let Some(mut ready) = node.engine.ready() {
            let voters = ready.install.map(|_| Bytes::from(wire::encode_voters(node.engine.raw.store().voters())));
            if let (Some((index, _)), Some(voters)) = (ready.install, &voters) {
                (node.applied, node.voters) = (index, vec![(index, voters.clone())]);
                node.engine.applied(index);
            }
            for entry in &ready.committed {
                node.applied = entry.index();
                if let Committed::Membership { voters, .. } = entry {
                    node.voters.push((node.applied, voters.clone()));
                    node.removed |= node.engine.raw.raft.prs().get(id.0).is_none();
                }
            }
            node.engine.applied(node.applied);
            for fetch in ready.fetches.drain(..) {
                let wanted = |entry: &&LogEntry| entry.index >= fetch.from && entry.index < fetch.to;
                let entries = node.disk.entries.iter().filter(wanted).cloned().collect::<Vec<_>>();
                let from_there = entries.first().is_some_and(|entry| entry.index == fetch.from);
                node.engine.entries_fetched(fetch, if from_there { entries } else { vec![] });
            }
            self.wire.extend(ready.send_now.drain(..).map(|(to, frame)| (id, to, Sent::Frame(frame_of(frame)))));
            self.wire.extend(ready.snapshots.drain(..).map(|wanted| (id, wanted.to, Sent::Snapshot(wanted))));
            node.held.push_back((ready, voters));
        }
        let too_many = self.wire.len().saturating_sub(IN_FLIGHT_MAX);
        self.wire.drain(..too_many);
        if node.removed {
            self.nodes.remove(&id);
        }
    }

    /// Makes the oldest readies of a node durable.
    fn persist(&mut self, id: NodeId, count: usize) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let count = count.min(node.held.len());
        let mut last = None;
        for (ready, voters) in node.held.drain(..count) {
            node.disk.write(&ready, voters);
            last = Some(ready.number);
            self.wire.extend(ready.send_after.into_iter().map(|(to, frame)| (id, to, Sent::Frame(frame_of(frame)))));
        }
        if let Some(number) = last {
            node.engine.persisted(number);
        }
    }

    /// Has one message arrive, of those on their way; it may stay on its way, too.
    fn deliver(&mut self, place: usize, again: bool) {
        let Some((from, to, sent)) = self.wire.remove(place) else { return };
        let taken = match (&sent, self.nodes.get_mut(&to)) {
            (_, None) => Ok(()),
            (Sent::Frame(frame), Some(node)) => node.engine.step(from, frame.clone()),
            (Sent::Snapshot(wanted), Some(node)) => node.engine.step_snapshot(from, wanted.message.clone()),
        };
        if let Err(fault) = taken {
            let (Sent::Frame(message) | Sent::Snapshot(SnapshotWanted { message, .. })) = &sent;
            panic!("{to:?} refused {} of {from:?}: {fault}", crate::consensus::describe(message.clone()));
        }
        if let (Sent::Snapshot(_), Some(leader)) = (&sent, self.nodes.get_mut(&from)) {
            leader.engine.snapshot_sent(to, true);
        }
        if again {
            self.wire.push_back((from, to, sent));
        }
    }

    fn lose(&mut self, place: usize) {
        let Some((from, to, sent)) = self.wire.remove(place) else { return };
        let Some(node) = self.nodes.get_mut(&from) else { return };
        match sent {
            Sent::Snapshot(_) => node.engine.snapshot_sent(to, false),
            Sent::Frame(_) => node.engine.unreachable(to),
        }
    }

    /// Everybody is quick for a while.
    fn calm(&mut self, ticks: usize) {
        for _ in 0..ticks {
            self.nodes.values_mut().for_each(|node| node.engine.tick());
            for _ in 0..200 {
                for id in self.nodes.keys().copied().collect::<Vec<_>>() {
                    self.look(id);
                    self.persist(id, usize::MAX);
                    self.look(id);
                }
                if self.wire.is_empty() {
                    break;
                }
                (0..self.wire.len()).for_each(|_| self.deliver(0, false));
            }
        }
    }

    /// Has a leader change who is a member. Whoever is new starts with nothing; whoever was removed does not come back.
    fn change(&mut self, id: NodeId, other: NodeId, kind: u8) {
        let added = if kind == 3 { NodeId(1 + other.0 % NODES) } else { other };
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.engine.role() == Role::Leader) else { return };
        let role = if kind == 3 { MemberRole::Voter } else { MemberRole::Learner };
        let (name, peer_addresses, client_urls) = (String::new(), vec![], vec![]);
        let member = Member { id: added, name, peer_addresses, client_urls, role, zookeeper: None };
        let change = match kind {
            0 | 3 if self.gone.contains(&added) => return,
            0 => MemberChange::Add(member),
            1 => MemberChange::Promote(other),
            2 => MemberChange::Remove(other),
            _ => MemberChange::Replace { add: vec![member], remove: vec![other] },
        };
        // As leaders judge it: who is added is new, and nobody else is.
        let is_there = node.engine.raw.raft.prs().get(other.0).is_some();
        if is_there == (kind == 0) || !node.engine.propose_change(&change) {
            return;
        }
        if matches!(kind, 2 | 3) {
            self.gone.insert(other);
        }
        if matches!(kind, 0 | 3) && !self.nodes.contains_key(&added) {
            let hard_state = HardState { term: Term(0), vote: NodeId(0), commit: LogIndex(0) };
            let voters = Consensus::voters_of(&[]);
            self.start(added, Disk { hard_state, snapshot: (LogIndex(0), Term(0)), voters, entries: vec![] });
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Tick(u64),
    Ticks(usize),
    Look(u64),
    Persist(u64, usize),
    Deliver(usize, bool),
    DeliverFirst(usize),
    Lose(usize),
    Propose(u64, usize, usize),
    Read(u64),
    Compact(u64, u64),
    Crash(u64),
    Seek(u64),
    Transfer(u64, u64),
    Change(u64, u64, u8),
    Calm(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let id = || 1..=NODES;
    prop_oneof![
        2 => id().prop_map(Event::Tick),
        2 => (1..4usize).prop_map(Event::Ticks),
        8 => id().prop_map(Event::Look),
        6 => (id(), 1..4usize).prop_map(|(id, count)| Event::Persist(id, count)),
        10 => (0..IN_FLIGHT_MAX, proptest::bool::weighted(0.1)).prop_map(|(place, again)| Event::Deliver(place, again)),
        10 => (1..6usize).prop_map(Event::DeliverFirst),
        2 => (0..IN_FLIGHT_MAX).prop_map(Event::Lose),
        4 => (id(), 1..6usize, 0..20u32).prop_map(|(id, count, size)| Event::Propose(id, count, 1 << size)),
        1 => id().prop_map(Event::Read),
        2 => (id(), 0..3u64).prop_map(|(id, keep)| Event::Compact(id, keep)),
        1 => id().prop_map(Event::Crash),
        2 => id().prop_map(Event::Seek),
        2 => (id(), id()).prop_map(|(id, to)| Event::Transfer(id, to)),
        1 => (id(), id(), 0..4u8).prop_map(|(id, other, kind)| Event::Change(id, other, kind)),
        1 => (1..13usize).prop_map(Event::Calm),
    ]
}

fn happen(cluster: &mut Cluster, event: Event) {
    let place = |cluster: &Cluster, place: usize| place % cluster.wire.len().max(1);
    let leader = cluster.nodes.iter().find(|(_, node)| node.engine.is_leader()).map(|(id, _)| *id);
    // Mostly whoever leads is asked, and sometimes another.
    let asked = |id: u64| if id == 1 { NodeId(id) } else { leader.unwrap_or(NodeId(id)) };
    let mut at = |id: NodeId, act: &mut dyn FnMut(&mut Node)| _ = cluster.nodes.get_mut(&id).map(act);
    match event {
        Event::Tick(id) => at(NodeId(id), &mut |node| node.engine.tick()),
        Event::Ticks(count) => (0..count).for_each(|_| cluster.nodes.values_mut().for_each(|node| node.engine.tick())),
        Event::Look(id) => cluster.look(NodeId(id)),
        Event::Persist(id, count) => cluster.persist(NodeId(id), count),
        Event::Deliver(number, again) => cluster.deliver(place(cluster, number), again),
        Event::DeliverFirst(count) => (0..count).for_each(|_| cluster.deliver(0, false)),
        Event::Lose(number) => cluster.lose(place(cluster, number)),
        Event::Propose(id, count, size) => at(asked(id), &mut |node| {
            (0..count).for_each(|_| _ = node.engine.propose(vec![7; size]));
        }),
        Event::Read(id) => at(NodeId(id), &mut |node| node.engine.read_index(node.contexts.draw())),
        Event::Compact(id, keep) => at(asked(id), &mut |node| node.compact(keep)),
        Event::Crash(id) => cluster.crash(NodeId(id)),
        Event::Seek(id) => at(NodeId(id), &mut |node| node.engine.seek_election()),
        Event::Transfer(id, to) => at(asked(id), &mut |node| {
            if node.engine.is_leader() {
                node.engine.transfer(NodeId(to));
            }
        }),
        Event::Change(id, other, kind) => cluster.change(asked(id), NodeId(other), kind),
        Event::Calm(ticks) => cluster.calm(ticks),
    }
}

proptest! {
    /// A peer that is refused what it must say can neither lead nor follow.
    #[test]
    fn h26_nothing_that_a_correct_peer_says_is_refused(
        founders in prop_oneof![1 => Just(1u64), 1 => Just(2), 6 => Just(3)],
        events in proptest::collection::vec(event(), 1..300),
    ) {
        let mut cluster = Cluster::founded(founders);
        cluster.calm(40);
        for event in events {
            happen(&mut cluster, event);
        }
        cluster.calm(60);
    }
}
