//! Anything that a peer could say, in any order, to a node in any part, between all else that happens to a node.

use proptest::prelude::*;
use raft::CAMPAIGN_TRANSFER;
use raft::eraftpb::EntryType;
use tidelock_model::{Member, MemberChange, Wire};

use super::*;

/// Numbers at which arithmetic overflows, or nearly does.
const EDGES: [u64; 7] = [1 << 61, 1 << 62, (1 << 62) + 1, 1 << 63, u64::MAX - 2, u64::MAX - 1, u64::MAX];

/// What happens to a node.
#[derive(Clone, Debug)]
enum Happening {
    Heard(Box<Message>, Fit),
    Ticks(usize),
    Looked,
    Durable(usize),
    Proposed,
    Asked,
    SeeksElection,
    SnapshotTaken,
}

fn number(small: u64) -> impl Strategy<Value = u64> {
    prop_oneof![12 => 0..small, 1 => proptest::sample::select(EDGES.to_vec())]
}

fn entry() -> impl Strategy<Value = Entry> {
    let change = prop_oneof![
        Just(Bytes::new()),
        Just(Bytes::from_static(b"\x01nonsense")),
        (1..5u64).prop_map(|id| MemberChange::Remove(NodeId(id)).to_bytes().into()),
        (1..5u64).prop_map(|id| {
            let member = Member {
                id: NodeId(id),
                name: String::new(),
                peer_addresses: vec![],
                client_urls: vec![],
                role: if id % 2 == 0 { MemberRole::Learner } else { MemberRole::Voter },
                zookeeper: None,
            };
            MemberChange::Replace { add: vec![member], remove: vec![NodeId(5 - id)] }.to_bytes().into()
        }),
    ];
    (number(6), number(14), prop_oneof![4 => Just(None), 1 => change.prop_map(Some)]).prop_map(
        |(term, index, change)| {
            let mut entry = Entry::default();
            (entry.term, entry.index) = (term, index);
            match change {
                Some(change) => {
                    entry.set_entry_type(EntryType::EntryConfChangeV2);
                    entry.context = change;
                }
                None => entry.data = Bytes::from_static(&[7; 24]),
            }
            entry
        },
    )
}

fn voters() -> impl Strategy<Value = ConfState> {
    let ids = || proptest::collection::vec(0..5u64, 0..4);
    let any = (ids(), ids(), ids(), ids(), any::<bool>()).prop_map(|(voters, learners, outgoing, next, auto)| {
        let mut state = ConfState::from((voters, learners));
        (state.voters_outgoing, state.learners_next, state.auto_leave) = (outgoing, next, auto);
        state
    });
    prop_oneof![2 => Just(ConfState::from((vec![1, 2, 3], vec![]))), 1 => any]
}

/// Any message at all.
fn any_message() -> impl Strategy<Value = Message> {
    let kinds = [3u8, 3, 3, 4, 4, 5, 6, 6, 7, 7, 8, 9, 14, 15, 16, 17, 18];
    let contexts = [Bytes::new(), Bytes::from_static(CAMPAIGN_TRANSFER), Bytes::from_static(&[7; 24])];
    let head = (proptest::sample::select(kinds.to_vec()), 1..5u64, any::<bool>());
    let context = proptest::sample::select(contexts.to_vec());
    let numbers = (number(8), number(6), number(14), number(14), number(6), number(14), number(9), number(9));
    let snapshot = (number(14), number(6), voters());
    (head, context, numbers, proptest::collection::vec(entry(), 0..4), snapshot).prop_map(
        |(head, context, numbers, entries, snapshot)| {
            let mut message = Message::default();
            message.set_msg_type(wire::message_type(head.0).unwrap());
            (message.from, message.reject, message.context) = (head.1, head.2, context);
            (message.term, message.log_term, message.index, message.commit) =
                (numbers.0, numbers.1, numbers.2, numbers.3);
            (message.commit_term, message.reject_hint, message.request_snapshot) = (numbers.4, numbers.5, numbers.6);
            message.priority = -(numbers.7 as i64 & 3);
            message.set_entries(entries.into());
            if message.get_msg_type() == MessageType::MsgSnapshot {
                let metadata = message.mut_snapshot().mut_metadata();
                (metadata.index, metadata.term) = (snapshot.0, snapshot.1);
                metadata.set_conf_state(snapshot.2);
            }
            message
        },
    )
}

/// How much of a message is made to fit what its receiver knows. Where nothing fits, it is refused for the first thing
/// that is wrong, and the others are never looked at.
#[derive(Clone, Copy, Debug)]
struct Fit {
    head: bool,
    term: bool,
    numbers: bool,
    place: bool,
    entries: bool,
    snapshot: bool,
}

fn fit() -> impl Strategy<Value = Fit> {
    let mostly = || proptest::bool::weighted(0.85);
    (mostly(), mostly(), mostly(), mostly(), mostly(), mostly()).prop_map(
        |(head, term, numbers, place, entries, snapshot)| Fit { head, term, numbers, place, entries, snapshot },
    )
}

fn fitted(engine: &Consensus, mut message: Message, fit: Fit) -> Message {
    let (log, asks) = (&engine.raw.raft.raft_log, message.get_msg_type() == MessageType::MsgReadIndex);
    if fit.head {
        message.from = if message.from == IDS[1].0 { IDS[2].0 } else { message.from };
        (message.priority, message.request_snapshot) = (0, 0);
    }
    if fit.term {
        message.term = if asks { 0 } else { engine.term().0.max(1) + message.term % 8 / 6 };
    }
    if fit.numbers {
        for number in [&mut message.commit, &mut message.reject_hint] {
            *number %= log.last_index() + 1;
        }
        message.commit_term = log.term(message.commit).unwrap_or(0);
    }
    if fit.place {
        message.index = (log.committed + message.index % 5).min(log.last_index());
        message.log_term = log.term(message.index).unwrap_or(0);
    }
    if fit.entries {
        let (mut index, mut term) = (message.index, message.log_term);
        if matches!(message.get_msg_type(), MessageType::MsgReadIndex | MessageType::MsgReadIndexResp) {
            message.set_entries(vec![Entry::default()].into());
            message.mut_entries()[0].data = Bytes::from(vec![(index % 3) as u8; 24]);
        }
        for entry in &mut message.entries {
            index = index.wrapping_add(1);
            term = term.max(entry.term % 8).min(message.term).max(1);
            (entry.index, entry.term) = (index, term);
        }
    }
    if fit.snapshot && message.get_msg_type() == MessageType::MsgSnapshot {
        let term = message.term;
        let metadata = message.mut_snapshot().mut_metadata();
        metadata.index = log.committed + metadata.index % 8;
        metadata.term = metadata.term.min(term);
    }
    message
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        12 => (any_message(), fit()).prop_map(|(message, fit)| Happening::Heard(Box::new(message), fit)),
        1 => (1..30usize).prop_map(Happening::Ticks),
        2 => Just(Happening::Looked),
        2 => (1..4usize).prop_map(Happening::Durable),
        1 => Just(Happening::Proposed),
        1 => Just(Happening::Asked),
        1 => Just(Happening::SeeksElection),
        1 => Just(Happening::SnapshotTaken),
    ]
}

fn undergo(target: &mut Target, happening: Happening) {
    let engine = &mut target.engine;
    match happening {
        Happening::Heard(message, fit) => {
            let message = fitted(engine, *message, fit);
            let _ = target.hear(message);
        }
        Happening::Ticks(count) => (0..count).for_each(|_| engine.tick()),
        Happening::Looked => target.take_readies(),
        Happening::Durable(count) => target.persist(count),
        Happening::Proposed => _ = engine.propose(vec![7; 24]),
        Happening::Asked => engine.read_index(target.contexts.draw()),
        Happening::SeeksElection => engine.seek_election(),
        Happening::SnapshotTaken => {
            let (index, voters) = (engine.raw.raft.raft_log.applied(), engine.raw.store().voters());
            let (term, voters) = (engine.raw.raft.raft_log.term(index).unwrap(), wire::encode_voters(voters).into());
            engine.snapshot_taken(LogIndex(index), Term(term), &voters);
            engine.trimmed(LogIndex(index + 1));
        }
    }
}

proptest! {
    /// One frame of a faulty peer once ended the process of whoever received it, and again after each start.
    #[test]
    fn h26_nothing_that_peers_say_stops_a_node(
        part in 0..TARGETS,
        happenings in proptest::collection::vec(happening(), 1..100),
    ) {
        let mut target = target(part);
        for happening in happenings {
            if !target.removed {
                undergo(&mut target, happening);
            }
        }
        target.settle();
    }
}
