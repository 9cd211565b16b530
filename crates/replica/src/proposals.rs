//! Proposals of this node that have no outcome yet.
//!
//! A proposal is sent to the leader and sent again when the leader changes or a link breaks; `apply`
//! carries it out once, by its origin (see `state::requests`). So a client sees a pause, not an error,
//! when a leader is lost. It is answered by this node's own apply; here is only what has to be resent
//! or given up.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use bytes::Bytes;
use tidelock_model::{NodeId, Term};

use crate::effects::CallFailure;

struct Pending {
    bytes: Bytes,
    since: u64,
    sent: Option<Sent>,
    /// Whether any leader may ever have got it, whatever became of that leader or the link.
    may_be_done: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Sent {
    to: NodeId,
    term: Term,
    at: u64,
}

/// Ticks after which a proposal is sent again to the same leader: a frame may have been dropped.
const RESEND_TICKS: u64 = 10;

pub(crate) struct Proposals {
    by_number: BTreeMap<u64, Pending>,
    /// Numbers not sent to the current leader yet.
    unsent: Vec<u64>,
    timeout_ticks: u64,
}

impl Proposals {
    pub(crate) fn new(timeout_ticks: u64) -> Proposals {
        Proposals { by_number: BTreeMap::new(), unsent: Vec::new(), timeout_ticks }
    }

    pub(crate) fn add(&mut self, number: u64, bytes: Bytes, tick: u64) {
        self.by_number.insert(number, Pending { bytes, since: tick, sent: None, may_be_done: false });
        self.unsent.push(number);
    }

    pub(crate) fn done(&mut self, numbers: Vec<RangeInclusive<u64>>) {
        for number in numbers.into_iter().flatten() {
            self.by_number.remove(&number);
        }
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Takes what has to be sent now, with its number.
    pub(crate) fn take_unsent(&mut self) -> Vec<(u64, Bytes)> {
        let numbers = std::mem::take(&mut self.unsent);
        let bytes = |number: u64| Some((number, self.by_number.get(&number)?.bytes.clone()));
        numbers.into_iter().filter_map(bytes).collect()
    }

    /// It went to a leader, or into this node's own log if that leads.
    pub(crate) fn sent(&mut self, number: u64, to: NodeId, term: Term, tick: u64) {
        if let Some(pending) = self.by_number.get_mut(&number) {
            pending.sent = Some(Sent { to, term, at: tick });
            pending.may_be_done = true;
        }
    }

    /// Another leader or term, or the link to the leader broke: send what the new one may not have.
    pub(crate) fn resend_to(&mut self, leader: Option<NodeId>, term: Term) {
        let stale = |pending: &Pending| pending.sent.is_none_or(|sent| sent.term != term || Some(sent.to) != leader);
        self.unsent = self.by_number.iter().filter(|(_, p)| stale(p)).map(|(number, _)| *number).collect();
    }

    /// Messages to `peer` were lost: what went there is sent again.
    pub(crate) fn link_down(&mut self, peer: NodeId) {
        for (number, pending) in &mut self.by_number {
            if pending.sent.is_some_and(|sent| sent.to == peer) {
                pending.sent = None;
                self.unsent.push(*number);
            }
        }
    }

    /// Once a tick: gives up what waited too long, and sends again what was sent long ago, unless it
    /// is in this node's own log.
    pub(crate) fn tick(&mut self, tick: u64, me: NodeId) -> Vec<(u64, CallFailure)> {
        let mut failed = Vec::new();
        let (timeout, unsent) = (self.timeout_ticks, &mut self.unsent);
        unsent.clear();
        self.by_number.retain(|number, pending| {
            if tick.saturating_sub(pending.since) > timeout {
                let may_be_done = pending.may_be_done && !tidelock_model::planted!(TimeoutToldAsNotDone);
                let why = if may_be_done { CallFailure::TimedOut } else { CallFailure::NoLeader };
                failed.push((*number, why));
                return false;
            }
            if pending.sent.is_none_or(|sent| sent.to != me && tick.saturating_sub(sent.at) > RESEND_TICKS) {
                unsent.push(*number);
            }
            true
        });
        failed
    }
}

#[cfg(test)]
mod tests {
    use tidelock_model::{
        Batch, Caller, Command, HardState, Key, LogTime, MemberRole, Members, Op, Origin, Proposal, PutLease, PutOp,
        PutValue, Space, Wire,
    };

    use super::*;
    use crate::consensus::{self, Consensus, Start};
    use crate::effects::{Call, Effects, Input, Reply};
    use crate::replica::{Replica, Settings};

    const ME: NodeId = NodeId(1);

    fn numbers(proposals: &mut Proposals) -> Vec<u64> {
        proposals.take_unsent().into_iter().map(|(number, _)| number).collect()
    }

    /// A leader that dies takes nothing with it that was not answered: the next one is sent it again.
    #[test]
    fn what_a_lost_leader_was_sent_is_sent_to_the_next() {
        let mut proposals = Proposals::new(50);
        proposals.add(1, Bytes::new(), 0);
        proposals.add(2, Bytes::new(), 0);
        assert_eq!(numbers(&mut proposals), [1, 2]);
        proposals.sent(1, NodeId(2), Term(1), 0);
        proposals.sent(2, NodeId(2), Term(1), 0);
        assert!(!proposals.has_unsent());
        proposals.done(vec![1..=1]);
        proposals.resend_to(Some(NodeId(3)), Term(2));
        assert_eq!(numbers(&mut proposals), [2]);
    }

    /// "May have happened" and "did not happen" are different answers to a client.
    #[test]
    fn a_proposal_never_sent_fails_as_certainly_not_done() {
        let mut proposals = Proposals::new(5);
        proposals.add(1, Bytes::new(), 0);
        proposals.add(2, Bytes::new(), 0);
        proposals.sent(2, NodeId(2), Term(1), 0);
        assert_eq!(proposals.tick(6, ME), [(1, CallFailure::NoLeader), (2, CallFailure::TimedOut)]);
        assert_eq!(proposals.tick(7, ME), []);
    }

    /// The leader got it, carried it out and died before the news came back. Told "nothing was done", a
    /// client does it a second time.
    #[test]
    fn a_proposal_whose_link_broke_is_never_reported_as_certainly_not_done() {
        let mut proposals = Proposals::new(5);
        proposals.add(1, Bytes::new(), 0);
        proposals.add(2, Bytes::new(), 0);
        proposals.sent(1, NodeId(2), Term(1), 0);
        proposals.sent(2, NodeId(3), Term(1), 0);
        proposals.link_down(NodeId(2));
        assert_eq!(proposals.tick(6, ME), [(1, CallFailure::TimedOut), (2, CallFailure::TimedOut)]);
    }

    /// A node that leads alone, and takes on no more than a megabyte of what is not agreed on.
    fn leader() -> Replica {
        let start = || {
            let (snapshot, founders) = (consensus::FOUNDING, [(ME, MemberRole::Voter)]);
            let hard_state = HardState { term: snapshot.1, vote: NodeId(0), commit: snapshot.0 };
            let voters = Consensus::voters_of(&founders);
            Start { node: ME, seed: 7, election_ticks: 10, hard_state, voters, snapshot, entries: vec![] }
        };
        let settings = Settings { node: ME, boot: 7, timeout_ticks: 20 };
        let mut replica = Replica::new(settings, start(), Members::default()).unwrap();
        replica.consensus = Consensus::with_uncommitted_max(start(), 1 << 20).unwrap();
        replica.consensus.introduce();
        replica.consensus.campaign();
        replica
    }

    /// The numbers of the proposals that are appended now, and the ready that is durable when they are.
    fn appended(effects: &Effects) -> (Vec<u64>, Option<u64>) {
        let entries = effects.persist.iter().flat_map(|ready| &ready.entries).filter(|entry| !entry.payload.is_empty());
        let batches = entries.map(|entry| Batch::from_bytes(entry.payload.clone()).unwrap());
        let numbers = batches.flat_map(|batch| batch.proposals).map(|proposal| proposal.origin.number).collect();
        (numbers, effects.persist.last().map(|ready| ready.number))
    }

    fn propose(replica: &mut Replica, number: u64) {
        let origin = Origin { node: ME, boot: 7, number };
        let value = PutValue::Set(vec![7; 200 << 10].into());
        let put = PutOp { key: Key::new(Space::User, b"k"), value, lease: PutLease::Keep, want_previous: false };
        let command = Command::Write(Op::Put(put));
        let bytes = Proposal { origin, request: None, caller: Caller::Internal, command }.to_bytes().into();
        replica.step(Input::Call(Call::Propose { number, bytes }));
    }

    /// A disk stands still until the log is full of what is not agreed on, and recovers. If what got in were put there
    /// again with each tick, there would never be room for the rest, and the disk would write copies.
    #[test]
    fn what_got_into_a_log_that_is_full_is_not_put_there_again() {
        let mut replica = leader();
        (1..=8).for_each(|number| propose(&mut replica, number));
        let (first, durable) = appended(&replica.effects());
        assert_eq!(first, [1, 2, 3, 4, 5], "there is room for no more");
        for now in 1..10 {
            replica.step(Input::Tick { now: LogTime(now) });
            assert_eq!(appended(&replica.effects()), (vec![], None));
        }
        // The disk moves again. What it wrote is agreed on, but not carried out yet.
        replica.step(Input::Persisted { number: durable.unwrap() });
        assert_eq!(appended(&replica.effects()).0, []);
        replica.step(Input::Tick { now: LogTime(10) });
        assert_eq!(appended(&replica.effects()).0, [6, 7, 8]);
    }

    /// What did not get in did not happen, and the client may do it again; of what did get in nobody can say so.
    #[test]
    fn of_a_log_that_stays_full_it_is_known_what_is_in_there() {
        let mut replica = leader();
        (1..=8).for_each(|number| propose(&mut replica, number));
        let mut told = Vec::new();
        for now in 0..=21 {
            replica.step(Input::Tick { now: LogTime(now) });
            told.extend(replica.effects().replies.into_iter().map(|reply| match reply {
                Reply::ProposalFailed { number, why } => (number, why),
                _ => panic!("nobody asked for anything else"),
            }));
        }
        let failed = |number| (number, if number <= 5 { CallFailure::TimedOut } else { CallFailure::NoLeader });
        assert_eq!(told, (1..=8).map(failed).collect::<Vec<_>>());
    }

    #[test]
    fn a_frame_lost_on_the_way_is_sent_again() {
        let mut proposals = Proposals::new(100);
        proposals.add(1, Bytes::new(), 0);
        numbers(&mut proposals);
        proposals.sent(1, NodeId(2), Term(1), 0);
        proposals.tick(RESEND_TICKS, ME);
        assert!(!proposals.has_unsent());
        proposals.tick(RESEND_TICKS + 1, ME);
        assert_eq!(numbers(&mut proposals), [1]);
    }
}
