//! H26: a peer may say anything, and no node may stop because of it.
//!
//! The library is a guest that trusts everybody: these tests throw at it, in every part a node can have, what no
//! correct peer would send, one thing at a time, and then [`anything`]. The other half, that nothing else is refused, is
//! `correct_peers`.

use std::collections::VecDeque;

use raft::eraftpb::ConfState;

use super::*;
use crate::consensus::{ReadContexts, Role};

mod anything;

/// A node under attack, in one of the parts a node can have.
struct Target {
    engine: Consensus,
    /// Readies that are not durable yet.
    held: VecDeque<Ready>,
    contexts: ReadContexts,
    /// It carried out its own removal: then it stops, in good order.
    removed: bool,
}

impl Target {
    fn new(engine: Consensus) -> Target {
        Target { engine, held: VecDeque::new(), contexts: ReadContexts::new(IDS[0], 7), removed: false }
    }

    fn is_member(&self) -> bool {
        self.engine.raw.raft.prs().get(self.engine.raw.raft.id).is_some()
    }

    fn take_readies(&mut self) {
        let was_member = self.is_member();
        while let Some(mut ready) = self.engine.ready() {
            for wanted in ready.snapshots.drain(..) {
                self.engine.snapshot_sent(wanted.to, wanted.index.0.is_multiple_of(2));
            }
            for fetch in ready.fetches.drain(..) {
                self.engine.entries_fetched(fetch, vec![]);
            }
            if let Some(last) = ready.committed.last() {
                self.engine.applied(last.index());
            }
            self.removed |= was_member && !self.is_member();
            if let Some((index, _)) = ready.install {
                self.engine.applied(index);
            }
            self.held.push_back(ready);
            assert!(self.held.len() < 10_000, "it never comes to rest");
        }
    }

    fn persist(&mut self, count: usize) {
        for _ in 0..count {
            let Some(ready) = self.held.pop_front() else { return };
            if self.removed {
                return;
            }
            self.engine.persisted(ready.number);
            self.take_readies();
        }
    }

    /// Has all it wrote made durable; what it sent.
    fn settle(&mut self) {
        self.take_readies();
        self.persist(usize::MAX);
    }

    /// What the peer under `from` says, whatever it is. Snapshots come with their content.
    fn hear(&mut self, mut message: Message) -> Result<(), PeerFault> {
        message.to = self.engine.raw.raft.id;
        let bytes = Bytes::from(wire::encode_message(&[], &message));
        match message.get_msg_type() {
            MessageType::MsgSnapshot => self.engine.step_snapshot(NodeId(message.from), bytes),
            _ => self.engine.step(NodeId(message.from), bytes),
        }
    }

    /// Has it hear what it takes.
    fn take(&mut self, message: Message) {
        self.hear(message).unwrap();
    }
}

fn start(node: NodeId, voters: &[NodeId], learners: &[NodeId], at: (LogIndex, Term)) -> Consensus {
    let roles = voters.iter().map(|id| (*id, MemberRole::Voter));
    let roles: Vec<_> = roles.chain(learners.iter().map(|id| (*id, MemberRole::Learner))).collect();
    let mut engine = Consensus::new(Start {
        node,
        seed: 7,
        election_ticks: 10,
        hard_state: HardState { term: at.1, vote: NodeId(0), commit: at.0 },
        voters: Consensus::voters_of(&roles),
        snapshot: at,
        entries: vec![],
    })
    .unwrap();
    engine.introduce();
    engine
}

/// Entries after `after`, with these terms.
fn entries_after(after: u64, terms: &[u64]) -> Vec<Entry> {
    let entry = |(place, term): (usize, &u64)| {
        let mut entry = Entry::default();
        (entry.index, entry.term) = (after.wrapping_add(1 + place as u64), *term);
        entry
    };
    terms.iter().enumerate().map(entry).collect()
}

fn append(term: u64, after: (u64, u64), terms: &[u64], commit: u64) -> Message {
    let mut append = message(MessageType::MsgAppend, IDS[0], IDS[1], term);
    (append.index, append.log_term, append.commit) = (after.0, after.1, commit);
    append.set_entries(entries_after(after.0, terms).into());
    append
}

/// Follows node 1 in term 3: seven entries of three terms, agreed on up to the fifth.
fn follower() -> Target {
    let mut target = Target::new(start(IDS[1], &IDS, &[], FOUNDING));
    target.take(append(3, (1, 1), &[1, 2, 2, 2, 3, 3], 5));
    target.settle();
    assert_eq!((target.engine.last_index(), target.engine.committed()), (LogIndex(7), LogIndex(5)));
    target
}

/// Leads two others in term 4 with the follower's log.
fn leader() -> Target {
    let mut target = follower();
    target.engine.campaign();
    target.settle();
    for (kind, term) in [(MessageType::MsgRequestPreVoteResponse, 4), (MessageType::MsgRequestVoteResponse, 4)] {
        target.take(message(kind, IDS[2], IDS[1], term));
        target.settle();
    }
    assert_eq!((target.engine.role(), target.engine.term()), (Role::Leader, Term(4)));
    target
}

/// The nodes to throw things at, by number.
fn target(number: usize) -> Target {
    match number {
        0 => Target::new(start(IDS[1], &[], &[], (LogIndex(0), Term(0)))),
        1 => Target::new(start(IDS[1], &IDS, &[], FOUNDING)),
        2 => follower(),
        // Its disk stands still.
        3 => {
            let mut target = follower();
            target.take(append(3, (7, 3), &[3, 3], 6));
            target.take_readies();
            target
        }
        // Asks for pre-votes, or for votes, and waits for its disk.
        4 | 5 => {
            let mut target = target(number - 2);
            target.engine.campaign();
            target
        }
        6 => {
            let mut target = follower();
            target.engine.campaign();
            target.settle();
            target.take(message(MessageType::MsgRequestPreVoteResponse, IDS[2], IDS[1], 4));
            target
        }
        7 => leader(),
        // Has only a snapshot for who needs its first entries, and one follower that is up to date.
        8 => {
            let mut target = leader();
            target.engine.snapshot_taken(
                LogIndex(5),
                Term(2),
                &Consensus::voters_of(&IDS.map(|id| (id, MemberRole::Voter))),
            );
            target.engine.trimmed(LogIndex(6));
            let mut answer = message(MessageType::MsgAppendResponse, IDS[2], IDS[1], 4);
            answer.index = 8;
            target.take(answer);
            target.settle();
            target
        }
        // The only voter, with somebody who learns.
        _ => {
            let mut target = Target::new(start(IDS[1], &IDS[1..2], &IDS[2..], FOUNDING));
            target.engine.campaign();
            target.settle();
            assert_eq!(target.engine.role(), Role::Leader);
            target
        }
    }
}

const TARGETS: usize = 10;

fn said(kind: MessageType, term: u64, with: impl FnOnce(&mut Message)) -> Message {
    let mut said = message(kind, IDS[0], IDS[1], term);
    with(&mut said);
    said
}

fn snapshot(term: u64, at: (u64, u64), voters: ConfState) -> Message {
    said(MessageType::MsgSnapshot, term, |message| {
        let metadata = message.mut_snapshot().mut_metadata();
        (metadata.index, metadata.term) = at;
        metadata.set_conf_state(voters);
    })
}

fn all_three() -> ConfState {
    ConfState::from((IDS.map(|id| id.0).to_vec(), vec![]))
}

/// What is refused, to whom it is said, and what it would be.
fn improper_messages() -> Vec<(&'static str, usize, Message)> {
    use MessageType::{
        MsgAppendResponse, MsgHeartbeat, MsgReadIndex, MsgReadIndexResp, MsgRequestPreVote, MsgRequestVote,
    };
    let (never, alone, follows, leads) = (0, 1, 2, 7);
    let mut hole = append(3, (7, 3), &[3, 3], 7);
    hole.mut_entries()[1].index = 20;
    let joint = |with: fn(&mut ConfState)| {
        let mut voters = all_three();
        with(&mut voters);
        voters
    };
    let context = |size: usize| move |message: &mut Message| message.set_entries(vec![with_data(size)].into());
    vec![
        ("entries beyond the end of the log", follows, append(3, (20, 0), &[3], 5)),
        ("agreement beyond the end of the log", follows, append(3, (20, 0), &[], 9)),
        ("entries beyond all numbers", follows, append(3, (u64::MAX, 3), &[3], 5)),
        ("entries with a hole", follows, hole),
        ("entries of no term", follows, append(3, (7, 3), &[0], 8)),
        ("entries whose terms go down", follows, append(3, (7, 3), &[3, 2], 7)),
        ("entries of a term that is not yet", follows, append(3, (7, 3), &[3, 4], 7)),
        ("a heartbeat of no term", follows, said(MsgHeartbeat, 0, |message| message.commit = 9)),
        ("the last term of all", follows, said(MsgHeartbeat, u64::MAX, |_| ())),
        ("the last term of all, of a candidate", alone, said(MsgRequestVote, u64::MAX, |_| ())),
        (
            "a candidate of no term",
            alone,
            said(MsgRequestVote, 0, |message| {
                (message.index, message.log_term) = (1, 1);
            }),
        ),
        ("a read of some term", follows, said(MsgReadIndex, 3, context(24))),
        ("a read without a context", leads, said(MsgReadIndex, 0, |_| ())),
        ("a read with a context for which followers refuse heartbeats", leads, said(MsgReadIndex, 0, context(300))),
        (
            "an answer to a read of no term",
            follows,
            said(MsgReadIndexResp, 0, |message| {
                context(24)(message);
                message.index = 9;
            }),
        ),
        ("a snapshot of no term", follows, snapshot(3, (100, 0), all_three())),
        ("a snapshot of a term that is not yet", follows, snapshot(3, (100, 4), all_three())),
        ("a snapshot of nothing", never, snapshot(3, (0, 2), all_three())),
        ("a snapshot beyond all numbers", follows, snapshot(3, (u64::MAX, 3), all_three())),
        ("a snapshot that contradicts what is agreed on", follows, snapshot(3, (5, 3), all_three())),
        ("nobody votes", follows, snapshot(3, (100, 3), ConfState::from((vec![], vec![1, 2, 3])))),
        ("a voter who learns", follows, snapshot(3, (100, 3), ConfState::from((vec![1, 2], vec![2, 3])))),
        ("a voter without a name", follows, snapshot(3, (100, 3), ConfState::from((vec![0, 1, 2], vec![])))),
        ("left when not entered", follows, snapshot(3, (100, 3), joint(|voters| voters.auto_leave = true))),
        (
            "learns next, and never voted",
            follows,
            snapshot(3, (100, 3), joint(|voters| voters.learners_next = vec![3])),
        ),
        (
            "an acknowledgement beyond all numbers",
            leads,
            said(MsgAppendResponse, 4, |message| message.index = u64::MAX),
        ),
        ("an acknowledgement of what was not sent", leads, said(MsgAppendResponse, 4, |message| message.index = 9)),
        (
            "a refusal beyond all numbers",
            leads,
            said(MsgAppendResponse, 4, |message| {
                (message.reject, message.index, message.reject_hint) = (true, 7, u64::MAX);
            }),
        ),
        (
            "a demand for a snapshot",
            leads,
            said(MsgAppendResponse, 4, |message| {
                (message.reject, message.index, message.request_snapshot) = (true, 7, 5);
            }),
        ),
        ("a priority", never, said(MsgRequestPreVote, 1, |message| message.priority = -1)),
    ]
}

fn with_data(size: usize) -> Entry {
    let mut entry = Entry::default();
    entry.data = vec![7; size].into();
    entry
}

/// What the library takes for granted of a peer, a peer may break.
#[test]
fn h26_no_message_of_a_peer_stops_a_node() {
    for (what, part, message) in improper_messages() {
        let mut target = target(part);
        let taken = target.hear(message);
        assert!(matches!(taken, Err(PeerFault::Improper(_))), "{what}: {taken:?}");
        // Nothing of it is left that would stop it later, above all no term.
        target.settle();
        target.engine.seek_election();
        target.settle();
    }
}

/// A heartbeat tells what its receiver acknowledged. If that is not there, the disk lost it, and this node must not go
/// on; but not if it leads itself, or if it is somebody's who led before.
#[test]
fn h26_only_a_leader_can_show_a_node_that_it_lost_data() {
    let knows_more = |term| said(MessageType::MsgHeartbeat, term, |message| message.commit = 9);
    for (part, term, lost) in [(2, 3, true), (2, 4, true), (2, 2, false), (7, 4, false), (7, 3, false), (7, 5, true)] {
        let taken = target(part).hear(knows_more(term));
        let found = matches!(taken, Err(PeerFault::LostLog { known: LogIndex(9), .. }));
        assert_eq!(found, lost, "{part} in term {term}: {taken:?}");
    }
}

/// Nobody can have received its content: there would be nothing to install.
#[test]
fn h26_a_snapshot_without_its_content_is_refused() {
    let (mut follower, message) = (follower(), snapshot(3, (100, 3), all_three()));
    assert!(matches!(taken(&mut follower.engine, &message), Err(PeerFault::Improper(_))));
    follower.take(message);
    assert!(follower.engine.ready().is_some_and(|ready| ready.install == Some((LogIndex(100), Term(3)))));
}

/// A vote may come before it is asked for: the request waits for the disk. The library panics over a leader whose log is
/// not durable.
#[test]
fn h26_a_vote_that_was_not_asked_for_yet_makes_no_leader() {
    let mut target = target(3);
    target.engine.campaign();
    target.take(message(MessageType::MsgRequestPreVoteResponse, IDS[2], IDS[1], 4));
    let vote = message(MessageType::MsgRequestVoteResponse, IDS[2], IDS[1], 4);
    assert!(matches!(target.hear(vote.clone()), Err(PeerFault::Improper(_))));
    assert_eq!(target.engine.role(), Role::Candidate);
    target.settle();
    target.take(vote);
    assert_eq!(target.engine.role(), Role::Leader);
}

/// Whoever votes alone elects itself on the spot. Talked out of leading while its disk is busy, it waits for that.
#[test]
fn h26_a_lone_voter_leads_again_only_when_its_log_is_durable() {
    for by in [MessageType::MsgHeartbeatResponse, MessageType::MsgTimeoutNow] {
        let mut target = target(9);
        assert!(target.engine.propose(vec![7]));
        target.take_readies();
        target.take(message(by, IDS[2], IDS[1], 9));
        for _ in 0..40 {
            target.engine.tick();
            target.engine.seek_election();
            target.take(message(MessageType::MsgTimeoutNow, IDS[2], IDS[1], 9));
            target.take_readies();
        }
        target.settle();
        (0..20).for_each(|_| target.engine.tick());
        assert_eq!(target.engine.role(), Role::Leader);
    }
}

/// No peer needs to be faulty for this: the leader dies while a snapshot of its is on its way to a voter's disk. The
/// library looks through what was not carried out before it seeks election, and panicked as there was no log before it.
#[test]
fn a_voter_seeks_election_only_when_the_snapshot_that_it_received_is_in_place() {
    let mut target = follower();
    target.take(snapshot(3, (100, 3), all_three()));
    let ready = target.engine.ready().unwrap();
    for _ in 0..40 {
        target.engine.tick();
        target.engine.seek_election();
    }
    // It hears of no leader, and another may be elected.
    let asks = |message: &mut Message| (message.index, message.log_term) = (100, 3);
    target.take(said(MessageType::MsgRequestPreVote, 4, asks));
    let answer = target.engine.ready().unwrap();
    assert_eq!(answer.send_after.len(), 1);
    target.engine.persisted(answer.number.max(ready.number));
    target.engine.applied(LogIndex(100));
    target.engine.tick();
    assert_eq!(target.engine.role(), Role::Candidate);
}

/// A follower takes nobody's read to the leader: there it would be refused as said in another's name.
#[test]
fn a_read_that_asks_a_follower_goes_nowhere() {
    let mut follower = follower();
    let context = |message: &mut Message| message.set_entries(vec![with_data(24)].into());
    follower.take(said(MessageType::MsgReadIndex, 0, context));
    assert!(follower.engine.ready().is_none());
}
