//! Exactly once: what was carried out already.
//!
//! Two kinds of repetition end here. A node that loses its leader sends a proposal again under the same
//! [`Origin`]; the second copy is a duplicate and has no effect. A client that got no answer sends a
//! request again under the same [`RequestId`], perhaps through another node; it gets the first outcome
//! and there is no second effect (H25).
//!
//! Both memories are bounded. An origin's numbers are remembered within a window, and below it
//! everything counts as carried out: no node has that many proposals under way. Outcomes are forgotten
//! oldest first beyond [`REQUESTS_REMEMBERED`] or [`REQUESTS_REMEMBERED_BYTES`]; a retry later than that
//! is a new request. All of it is replicated and part of snapshots.

use std::collections::{BTreeMap, VecDeque};

use tidelock_model::{
    Answer, DecodeError, KeyValue, LogIndex, NodeId, OpAnswer, Origin, Outcome, Reader, RequestId, Wire, ZnodeAnswer,
    ZnodeOpAnswer, ZnodeOutcome, put_bytes, put_varint,
};

/// How many of a node's latest proposal numbers are told apart. More than a node lets wait at once.
pub const ORIGIN_WINDOW: u64 = 16_384;

/// How many outcomes are remembered for requests that clients may send again.
pub const REQUESTS_REMEMBERED: usize = 16_384;

/// How large these outcomes may be in all, about.
pub const REQUESTS_REMEMBERED_BYTES: usize = 32 * 1024 * 1024;

/// How many nodes' proposals are told apart; the one that was silent longest is forgotten beyond that.
/// Far more than a cluster has members, so none under way is.
const ORIGINS_MAX: usize = 256;

const WORDS: usize = ORIGIN_WINDOW as usize / 64;

/// Which proposals of one node were carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OriginWindow {
    boot: u64,
    /// The node's life before this one; whatever of it still arrives is too late.
    previous_boot: Option<u64>,
    /// The greatest number seen.
    highest: u64,
    /// One bit per number in the window, at the number modulo the window's size.
    carried_out: Box<[u64; WORDS]>,
    last_heard: LogIndex,
}

impl OriginWindow {
    fn new(boot: u64, previous_boot: Option<u64>) -> OriginWindow {
        OriginWindow { boot, previous_boot, highest: 0, carried_out: Box::new([0; WORDS]), last_heard: LogIndex(0) }
    }

    /// Whether `number` is new; it is not a second time.
    fn admit(&mut self, number: u64) -> bool {
        if number > self.highest {
            let fresh = (number - self.highest).min(ORIGIN_WINDOW);
            for passed in 0..fresh {
                let (word, bit) = place(number - passed);
                self.carried_out[word] &= !bit;
            }
            self.highest = number;
        } else if self.highest - number >= ORIGIN_WINDOW {
            return false;
        }
        let (word, bit) = place(number);
        let is_new = self.carried_out[word] & bit == 0;
        self.carried_out[word] |= bit;
        is_new
    }
}

fn place(number: u64) -> (usize, u64) {
    let at = number % ORIGIN_WINDOW;
    // The window's size bounds the word.
    ((at / 64) as usize, 1 << (at % 64))
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Requests {
    origins: BTreeMap<NodeId, OriginWindow>,
    outcomes: BTreeMap<RequestId, Outcome>,
    /// The remembered requests, oldest first.
    order: VecDeque<RequestId>,
    /// About how large the remembered outcomes are.
    bytes: usize,
}

impl Requests {
    pub(crate) fn new() -> Requests {
        Requests { origins: BTreeMap::new(), outcomes: BTreeMap::new(), order: VecDeque::new(), bytes: 0 }
    }

    /// Whether a proposal is to be carried out; the second time it is not.
    pub(crate) fn admit(&mut self, origin: Origin, now: LogIndex) -> bool {
        if !self.origins.contains_key(&origin.node) {
            self.make_room_for_origin();
        }
        let window = self.origins.entry(origin.node).or_insert_with(|| OriginWindow::new(origin.boot, None));
        if window.boot != origin.boot {
            if window.previous_boot == Some(origin.boot) {
                return false;
            }
            *window = OriginWindow::new(origin.boot, Some(window.boot));
        }
        window.last_heard = now;
        window.admit(origin.number)
    }

    fn make_room_for_origin(&mut self) {
        if self.origins.len() >= ORIGINS_MAX {
            let silent = self.origins.iter().min_by_key(|(node, window)| (window.last_heard, **node));
            if let Some(node) = silent.map(|(node, _)| *node) {
                self.origins.remove(&node);
            }
        }
    }

    /// The outcome of a request that was carried out.
    pub(crate) fn remembered(&self, request: RequestId) -> Option<&Outcome> {
        self.outcomes.get(&request)
    }

    /// Remembers the outcome of a request, forgetting the oldest ones beyond the bounds.
    pub(crate) fn remember(&mut self, request: RequestId, outcome: Outcome) {
        self.bytes += outcome_bytes(&outcome);
        match self.outcomes.insert(request, outcome) {
            None => self.order.push_back(request),
            Some(forgotten) => self.bytes -= outcome_bytes(&forgotten),
        }
        while self.order.len() > REQUESTS_REMEMBERED || self.bytes > REQUESTS_REMEMBERED_BYTES {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(outcome) = self.outcomes.remove(&oldest) {
                self.bytes -= outcome_bytes(&outcome);
            }
        }
    }
}

/// About how much memory an outcome keeps alive; the same on every replica.
fn outcome_bytes(outcome: &Outcome) -> usize {
    /// The outcome itself and its places in the table and the queue.
    const EACH: usize = 160;
    EACH + match &outcome.result {
        Ok(Answer::Op(answer)) => answer_bytes(answer),
        Ok(Answer::Znodes(outcomes)) => outcomes.iter().map(znode_outcome_bytes).sum(),
        _ => 0,
    }
}

fn answer_bytes(answer: &OpAnswer) -> usize {
    const EACH: usize = 48;
    let items_bytes = |items: &[KeyValue]| items.iter().map(item_bytes).sum::<usize>();
    EACH + match answer {
        OpAnswer::Put { previous } => previous.as_ref().map_or(0, item_bytes),
        OpAnswer::Delete { previous, .. } => items_bytes(previous),
        OpAnswer::Range(answer) => items_bytes(&answer.items),
        OpAnswer::Txn { answers, .. } => answers.iter().map(answer_bytes).sum(),
    }
}

fn znode_outcome_bytes(outcome: &ZnodeOutcome) -> usize {
    const EACH: usize = 128;
    let op_bytes = |answer: &ZnodeOpAnswer| match answer {
        ZnodeOpAnswer::Created { path, .. } => EACH + path.len(),
        ZnodeOpAnswer::Changed(_) | ZnodeOpAnswer::Done => EACH,
    };
    EACH + match &outcome.result {
        Ok(ZnodeAnswer::One(answer)) => op_bytes(answer),
        Ok(ZnodeAnswer::Multi(answers)) => answers.iter().map(op_bytes).sum(),
        Ok(ZnodeAnswer::MultiFailed { .. }) | Err(_) => 0,
    }
}

fn item_bytes(item: &KeyValue) -> usize {
    const EACH: usize = 96;
    EACH + item.key.as_stored().len() + item.record.value().len()
}

impl Wire for Requests {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.origins.len() as u64);
        for (node, window) in &self.origins {
            node.encode(out);
            put_varint(out, window.boot);
            out.push(u8::from(window.previous_boot.is_some()));
            if let Some(boot) = window.previous_boot {
                put_varint(out, boot);
            }
            put_varint(out, window.highest);
            window.last_heard.encode(out);
            put_bytes(out, &window.carried_out.map(u64::to_le_bytes).concat());
        }
        put_varint(out, self.order.len() as u64);
        for request in &self.order {
            put_varint(out, request.client);
            put_varint(out, request.number);
            self.outcomes[request].encode(out);
        }
    }

    fn decode(input: &mut Reader) -> Result<Requests, DecodeError> {
        let mut requests = Requests::new();
        for _ in 0..input.count("the number of origins", ORIGINS_MAX)? {
            let node = NodeId::decode(input)?;
            let boot = input.varint()?;
            let previous_boot = if input.flag()? { Some(input.varint()?) } else { None };
            let mut window = OriginWindow::new(boot, previous_boot);
            window.highest = input.varint()?;
            window.last_heard = LogIndex::decode(input)?;
            let bytes = input.short_bytes(WORDS * 8)?;
            if bytes.len() != WORDS * 8 {
                return Err(DecodeError::Truncated);
            }
            for (word, bytes) in window.carried_out.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            requests.origins.insert(node, window);
        }
        for _ in 0..input.count("the number of remembered requests", REQUESTS_REMEMBERED)? {
            let request = RequestId { client: input.varint()?, number: input.varint()? };
            requests.remember(request, Outcome::decode(input)?);
        }
        Ok(requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, load, pages, proposal, put};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use tidelock_model::{Command, Proposal, RangeOp, Refusal, Revision};

    fn write(number: u64, value: &str) -> Proposal {
        proposal(number, Command::Write(put("a", value)))
    }

    /// A node that lost its leader sends its proposals again; the write must not happen twice.
    #[test]
    fn a_proposal_that_arrives_twice_is_carried_out_once() {
        let mut machine = Machine::new();
        let effects = machine.entry(vec![write(2, "second"), write(1, "first"), write(2, "second")]);
        assert_eq!(effects.applied.iter().map(|applied| applied.duplicate).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!(effects.applied[2].outcome.result, Err(Refusal::CARRIED_OUT_ALREADY));
        assert_eq!((machine.state.revision(), effects.events.len()), (Revision(3), 2));
        assert_eq!(machine.pairs_at(3), [("a".to_owned(), "first".to_owned())]);
    }

    /// After a restart a node counts from one again; its new proposals are new and its old ones too late.
    #[test]
    fn a_restarted_node_is_heard_and_its_former_life_is_not() {
        let mut machine = Machine::new();
        let in_boot = |boot, number| {
            let mut proposal = write(number, "x");
            proposal.origin.boot = boot;
            proposal
        };
        let effects = machine.entry(vec![in_boot(7, 1), in_boot(9, 1), in_boot(7, 2), in_boot(9, 2)]);
        let duplicates: Vec<_> = effects.applied.iter().map(|applied| applied.duplicate).collect();
        assert_eq!(duplicates, [false, false, true, false]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Within the window every number counts exactly once, in whatever order; below it none does.
        #[test]
        fn the_window_tells_numbers_apart(steps in proptest::collection::vec((0u64..40_000, 0u64..70), 1..200)) {
            let mut window = OriginWindow::new(1, None);
            let (mut seen, mut highest) = (BTreeSet::new(), 0);
            for (start, count) in steps {
                for number in start..start + count {
                    highest = highest.max(number);
                    let expected = number + ORIGIN_WINDOW > highest && seen.insert(number);
                    prop_assert_eq!(window.admit(number), expected, "number {}", number);
                }
            }
        }
    }

    /// H25: a client that retries through another node gets the first answer and no second effect, also
    /// from a node that was restored from a snapshot meanwhile.
    #[test]
    fn a_retried_request_gets_the_first_outcome_and_has_no_second_effect() {
        let mut machine = Machine::new();
        let request = |number, value| {
            let mut proposal = write(number, value);
            proposal.request = Some(RequestId { client: 5, number: 77 });
            proposal
        };
        let first = machine.entry(vec![request(1, "first")]).applied.remove(0);
        for number in [2, 3] {
            let again = machine.entry(vec![request(number, "again")]);
            assert_eq!((&again.applied[0].outcome, again.applied[0].duplicate), (&first.outcome, false));
            assert_eq!((again.events.len(), machine.state.revision()), (0, Revision(2)));
            let head = machine.state.begin_snapshot();
            machine.state = load(&head, pages(&machine.state, &head, 10)).unwrap();
        }
    }

    /// Memory for retries is bounded in number and in bytes; the newest are the ones that matter.
    #[test]
    fn the_oldest_outcomes_are_forgotten_first() {
        let id = |number| RequestId { client: 1, number };
        let mut machine = Machine::new();
        let value = "x".repeat(1 << 20);
        machine.done(put("a", &value));
        let large = machine.read(RangeOp::all(crate::testing::everything())).unwrap();
        let outcome = |result| Outcome { revision: Revision(1), index: LogIndex(1), result };
        let mut requests = Requests::new();
        let small = REQUESTS_REMEMBERED as u64 + 10;
        (0..small).for_each(|number| requests.remember(id(number), outcome(Ok(Answer::Done))));
        assert_eq!((requests.order.len(), requests.remembered(id(9))), (REQUESTS_REMEMBERED, None));
        assert!(requests.remembered(id(10)).is_some());
        for number in small..small + 40 {
            let answer = Answer::Op(OpAnswer::Range(large.clone()));
            requests.remember(id(number), outcome(Ok(answer)));
        }
        assert!(requests.bytes <= REQUESTS_REMEMBERED_BYTES && requests.outcomes.len() < 40);
        assert!(requests.remembered(id(small + 39)).is_some());
        let bytes: usize = requests.outcomes.values().map(outcome_bytes).sum();
        assert_eq!(bytes, requests.bytes);
    }

    /// Nodes come and go over the years; what is remembered of them must not grow with that.
    #[test]
    fn the_longest_silent_origin_is_forgotten_first() {
        let mut requests = Requests::new();
        let origin = |node| Origin { node: NodeId(node), boot: 1, number: 1 };
        for node in 0..ORIGINS_MAX as u64 {
            assert!(requests.admit(origin(node), LogIndex(node + 1)));
        }
        assert!(!requests.admit(origin(0), LogIndex(1_000)));
        assert!(requests.admit(origin(9_999), LogIndex(1_001)));
        assert_eq!(requests.origins.len(), ORIGINS_MAX);
        assert!(requests.origins.contains_key(&NodeId(0)) && !requests.origins.contains_key(&NodeId(1)));
    }
}
