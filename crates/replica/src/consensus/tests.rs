//! The engine alone, a few of them in one loop: what peers, disks and readers may rely on.

use std::collections::BTreeMap;

use bytes::Bytes;
use raft::eraftpb::{Entry, Message, MessageType};
use tidelock_model::{HardState, LogIndex, MemberRole, NodeId, Term};

use super::{Consensus, FOUNDING, PeerFault, Ready, Start, wire};
use crate::peer_message::PeerMessage;

mod correct_peers;
mod faulty_peers;

const IDS: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

fn engine(node: NodeId) -> Consensus {
    let (index, term) = FOUNDING;
    let mut engine = Consensus::new(Start {
        node,
        seed: 7,
        election_ticks: 10,
        hard_state: HardState { term, vote: NodeId(0), commit: index },
        voters: Consensus::voters_of(&IDS.map(|id| (id, MemberRole::Voter))),
        snapshot: FOUNDING,
        entries: vec![],
    })
    .unwrap();
    engine.introduce();
    engine
}

fn frame_of(frame: Bytes) -> Bytes {
    match PeerMessage::from_frame(frame) {
        Ok(PeerMessage::Raft(message)) => message,
        _ => panic!("the engine sends nothing else"),
    }
}

/// Does all that `ready` asks for but the fetches and snapshots, which are left in it; what is to be sent.
fn perform(engine: &mut Consensus, ready: &mut Ready) -> Vec<(NodeId, Bytes)> {
    let mut frames = std::mem::take(&mut ready.send_now);
    engine.persisted(ready.number);
    frames.append(&mut ready.send_after);
    if let Some(last) = ready.committed.last() {
        engine.applied(last.index());
    }
    frames
}

/// Has the engines talk until they are quiet, all but those that are cut off. What they asked of disks.
fn settle(engines: &mut BTreeMap<NodeId, Consensus>, cut_off: &[NodeId]) -> Vec<Ready> {
    let mut asked = Vec::new();
    loop {
        let mut frames = Vec::new();
        for (id, engine) in engines.iter_mut() {
            while let Some(mut ready) = engine.ready() {
                frames.extend(perform(engine, &mut ready).into_iter().map(|(to, frame)| (*id, to, frame)));
                asked.push(ready);
                assert!(asked.len() < 1000, "they never come to rest");
            }
        }
        if frames.is_empty() {
            return asked;
        }
        for (from, to, frame) in frames {
            if !cut_off.contains(&from) && !cut_off.contains(&to) {
                engines.get_mut(&to).unwrap().step(from, frame_of(frame)).unwrap();
            }
        }
    }
}

fn message(kind: MessageType, from: NodeId, to: NodeId, term: u64) -> Message {
    let mut message = Message::default();
    message.set_msg_type(kind);
    (message.from, message.to, message.term) = (from.0, to.0, term);
    message
}

fn taken(engine: &mut Consensus, message: &Message) -> Result<(), PeerFault> {
    engine.step(NodeId(message.from), wire::encode_message(&[], message).into())
}

/// A follower needs what its leader cannot read any more: a bad place on a disk, under an entry that left memory long ago.
/// Asked for again at once, the leader's journal would do nothing else, and the follower never catch up.
#[test]
fn what_cannot_be_read_back_is_sent_by_snapshot_and_not_asked_for_again() {
    let mut engines: BTreeMap<_, _> = IDS.map(|id| (id, engine(id))).into();
    let (leader, late) = (IDS[0], IDS[2]);
    engines.get_mut(&leader).unwrap().campaign();
    settle(&mut engines, &[]);
    for _ in 0..8 {
        assert!(engines.get_mut(&leader).unwrap().propose(vec![7; 1 << 20]));
        settle(&mut engines, &[late]);
    }
    engines.get_mut(&leader).unwrap().tick();
    let mut asked = settle(&mut engines, &[]);
    let fetches: Vec<_> = asked.iter_mut().flat_map(|ready| ready.fetches.drain(..)).collect();
    assert!(!fetches.is_empty(), "what it needs is not in memory");
    for fetch in fetches {
        engines.get_mut(&leader).unwrap().entries_fetched(fetch, vec![]);
    }
    let asked = settle(&mut engines, &[]);
    assert!(asked.iter().all(|ready| ready.fetches.is_empty()), "asked again at once");
    let leading = engines.get_mut(&leader).unwrap();
    assert!(leading.take_snapshot_wish());
    let voters = Consensus::voters_of(&IDS.map(|id| (id, MemberRole::Voter)));
    leading.snapshot_taken(LogIndex(9), Term(2), &voters);
    leading.tick();
    let asked = settle(&mut engines, &[]);
    let snapshots: Vec<_> = asked.iter().flat_map(|ready| &ready.snapshots).map(|wanted| wanted.to).collect();
    assert_eq!(snapshots, [late]);
}

/// H8: a follower whose disk is busy is alive. If its answers to heartbeats waited for the disk, so would readers, and the
/// leader of two slow disks would be deposed.
#[test]
fn h8_a_slow_disk_holds_back_no_answer_to_a_heartbeat() {
    let (mut follower, leader) = (engine(IDS[1]), IDS[0]);
    let append = |index: u64, commit: u64| {
        let mut append = message(MessageType::MsgAppend, leader, IDS[1], 2);
        (append.index, append.log_term, append.commit) = (index, if index == 1 { 1 } else { 2 }, commit);
        let mut entry = Entry::default();
        (entry.index, entry.term) = (index + 1, 2);
        append.mut_entries().push(entry);
        append
    };
    taken(&mut follower, &append(1, 1)).unwrap();
    while let Some(mut ready) = follower.ready() {
        perform(&mut follower, &mut ready);
    }
    // From here on the disk is busy. It learns of another entry, and that the one before is agreed on.
    taken(&mut follower, &append(2, 2)).unwrap();
    let writing = follower.ready().expect("an entry to write");
    assert!(writing.must_sync && writing.hard_state.is_some());
    taken(&mut follower, &message(MessageType::MsgHeartbeat, leader, IDS[1], 2)).unwrap();
    let answer = follower.ready().expect("an answer to the heartbeat");
    assert_eq!((answer.send_now.len(), answer.send_after.len()), (1, 0));
    // A term is another matter: what is said in its name must be remembered.
    taken(&mut follower, &message(MessageType::MsgHeartbeat, leader, IDS[1], 3)).unwrap();
    let answer = follower.ready().expect("a new term, and an answer");
    assert_eq!((answer.send_now.len(), answer.send_after.len()), (0, 1));
}
