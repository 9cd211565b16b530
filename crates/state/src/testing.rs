//! What the tests of this crate are written with: a machine that numbers its own entries, and short
//! names for the commands they send.

use bytes::Bytes;
use tidelock_model::{
    Batch, Caller, Command, Compare, CompareResult, CompareTarget, DeleteOp, Key, KeyRange, KeyValue, LeaseId, LogTime,
    NodeId, Op, OpAnswer, Origin, Outcome, Proposal, PutLease, PutOp, PutValue, Query, QueryAnswer, RangeAnswer,
    RangeOp, Refusal, Revision, Space, Term, Txn,
};

use crate::{Effects, SnapshotHead, State, StateLoader};

pub(crate) const TERM: Term = Term(3);

pub(crate) fn key(name: &str) -> Key {
    Key::new(Space::User, name.as_bytes())
}

pub(crate) fn everything() -> KeyRange {
    KeyRange::all_of(Space::User)
}

pub(crate) fn put_op(name: &str, value: &str) -> PutOp {
    PutOp {
        key: key(name),
        value: PutValue::Set(Bytes::copy_from_slice(value.as_bytes())),
        lease: PutLease::Set(LeaseId::NONE),
        want_previous: false,
    }
}

pub(crate) fn put(name: &str, value: &str) -> Op {
    Op::Put(put_op(name, value))
}

pub(crate) fn put_leased(name: &str, value: &str, lease: i64) -> Op {
    Op::Put(PutOp { lease: PutLease::Set(LeaseId(lease)), ..put_op(name, value) })
}

pub(crate) fn put_keeping_value(name: &str) -> Op {
    Op::Put(PutOp { value: PutValue::Keep, ..put_op(name, "") })
}

pub(crate) fn delete(name: &str) -> Op {
    Op::Delete(DeleteOp { range: KeyRange::single(key(name)), want_previous: false })
}

pub(crate) fn range_at(at: u64) -> RangeOp {
    RangeOp { at: Some(Revision(at)), ..RangeOp::all(everything()) }
}

pub(crate) fn if_version(name: &str, version: i64) -> Compare {
    let range = KeyRange::single(key(name));
    Compare { range, result: CompareResult::Equal, target: CompareTarget::Version(version) }
}

pub(crate) fn txn(compares: Vec<Compare>, success: Vec<Op>, failure: Vec<Op>) -> Op {
    Op::Txn(Box::new(Txn { compares, success, failure }))
}

pub(crate) fn all_of(ops: Vec<Op>) -> Op {
    txn(vec![], ops, vec![])
}

pub(crate) fn proposal(number: u64, command: Command) -> Proposal {
    Proposal { origin: Origin { node: NodeId(1), boot: 1, number }, request: None, caller: Caller::Internal, command }
}

/// The values of a range answer, with their keys' names.
pub(crate) fn pairs(items: &[KeyValue]) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    items.iter().map(|item| (text(item.key.name()), text(item.record.value()))).collect()
}

/// A state and the next numbers for it.
pub(crate) struct Machine {
    pub(crate) state: State,
    pub(crate) number: u64,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        Machine { state: State::new(), number: 0 }
    }

    /// Applies an entry of these proposals.
    pub(crate) fn entry(&mut self, proposals: Vec<Proposal>) -> Effects {
        let index = self.state.applied().next();
        self.state.apply(index, TERM, Batch { at: LogTime(index.0 * 10), proposals })
    }

    /// Applies an entry of these commands.
    pub(crate) fn commands(&mut self, commands: Vec<Command>) -> Effects {
        let numbered = commands.into_iter().map(|command| {
            self.number += 1;
            proposal(self.number, command)
        });
        let proposals = numbered.collect();
        self.entry(proposals)
    }

    pub(crate) fn effects(&mut self, op: Op) -> Effects {
        self.commands(vec![Command::Write(op)])
    }

    pub(crate) fn command(&mut self, command: Command) -> Outcome {
        self.commands(vec![command]).applied.remove(0).outcome
    }

    /// Applies an entry of a command by someone.
    pub(crate) fn command_by(&mut self, caller: Caller, command: Command) -> Outcome {
        self.number += 1;
        let proposal = Proposal { caller, ..proposal(self.number, command) };
        self.entry(vec![proposal]).applied.remove(0).outcome
    }

    /// Carries out an operation that must succeed.
    pub(crate) fn done(&mut self, op: Op) -> OpAnswer {
        match self.command(Command::Write(op)).result {
            Ok(tidelock_model::Answer::Op(answer)) => answer,
            other => panic!("refused: {other:?}"),
        }
    }

    /// Carries out an operation that must be refused and leave no trace.
    pub(crate) fn refused(&mut self, op: Op) -> Refusal {
        let before = (self.state.revision(), self.state.live_sum, self.state.keyspace.held());
        let effects = self.effects(op);
        assert_eq!((self.state.revision(), self.state.live_sum, self.state.keyspace.held()), before);
        assert_eq!(effects.events, []);
        effects.applied[0].outcome.result.clone().expect_err("this operation must be refused")
    }

    pub(crate) fn grant(&mut self, id: i64) {
        self.command(Command::LeaseGrant { id: LeaseId(id), ttl_s: 60 }).result.unwrap();
    }

    pub(crate) fn compact(&mut self, revision: u64) {
        self.command(Command::Compact { revision: Revision(revision) }).result.unwrap();
    }

    pub(crate) fn sweep_all(&mut self) {
        while self.state.sweep(2, Revision(u64::MAX)) {}
    }

    pub(crate) fn read(&self, op: RangeOp) -> Result<RangeAnswer, Refusal> {
        match self.state.read(&Query::Range(op))? {
            QueryAnswer::Op { answer: OpAnswer::Range(answer), .. } => Ok(answer),
            other => panic!("a range was answered with {other:?}"),
        }
    }

    pub(crate) fn pairs_at(&self, at: u64) -> Vec<(String, String)> {
        pairs(&self.read(range_at(at)).unwrap().items)
    }
}

/// All pages of a snapshot, `max_bytes` each.
pub(crate) fn pages(state: &State, head: &SnapshotHead, max_bytes: usize) -> Vec<Vec<u8>> {
    let mut pages = Vec::new();
    let mut from = None;
    loop {
        let page = state.snapshot_page(head, from.as_ref(), max_bytes);
        pages.push(page.bytes);
        from = Some(match page.next {
            Some(next) => next,
            None => return pages,
        });
    }
}

pub(crate) fn load(head: &SnapshotHead, pages: Vec<Vec<u8>>) -> Result<State, crate::LoadError> {
    let mut loader = StateLoader::new(head.bytes.clone().into())?;
    for page in pages {
        loader.add_page(page.into())?;
    }
    loader.finish()
}
