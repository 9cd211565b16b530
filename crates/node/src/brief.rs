//! Which work on the state is so soon done that it is done where it is found, without waking the thread it belongs to.
//!
//! Whoever does it holds up the consensus engine meanwhile, and heartbeats with it. So what can take long whatever its
//! size, such as deleting a range or ending a session, is not brief; nor is anything that many watchers may have to
//! be told of, or that has to wait for somebody who reads.

use tidelock_model::{Batch, Command, NativeCommand, NativeOp, Op, Wire, ZnodeCommand};
use tidelock_replica::{Committed, Task};

/// Tasks, entries of a task, commands of an entry, readers: at most so many.
const FEW: usize = 4;
/// Bytes of an entry.
const SMALL_BYTES: usize = 8 << 10;

/// Whether all of this is soon done.
pub(crate) fn are_brief(tasks: &[Task]) -> bool {
    tasks.len() <= FEW && tasks.iter().all(is_brief)
}

fn is_brief(task: &Task) -> bool {
    match task {
        Task::Apply(entries) => entries.len() <= FEW && entries.iter().all(is_brief_entry),
        Task::ReadsReady(readers) => readers.len() <= FEW,
        Task::LeaseCalls { calls, .. } => calls.len() <= FEW,
        Task::Renew { .. } | Task::Leading(_) | Task::Install { .. } => false,
    }
}

fn is_brief_entry(entry: &Committed) -> bool {
    let Committed::Batch { bytes, .. } = entry else { return false };
    if bytes.len() > SMALL_BYTES || Batch::count_of(bytes).is_ok_and(|count| count > FEW) {
        return false;
    }
    // Read once more when it is carried out, which costs less than waking a thread for it.
    let batch = Batch::from_bytes(bytes.clone());
    batch.is_ok_and(|batch| batch.proposals.iter().all(|proposal| is_brief_command(&proposal.command)))
}

fn is_brief_command(command: &Command) -> bool {
    match command {
        Command::Write(op) => is_brief_op(op),
        Command::LeaseGrant { .. } => true,
        Command::Znode(ZnodeCommand::Requests(requests)) => requests.requests.len() <= FEW,
        Command::Znode(ZnodeCommand::OpenSession { .. } | ZnodeCommand::AttachSession { .. }) => true,
        Command::Native(NativeCommand::Open { .. }) => true,
        // With more permits, any number of waiters may be let in at once.
        Command::Native(NativeCommand::Request(request)) => !matches!(request.op, NativeOp::Resize { .. }),
        _ => false,
    }
}

fn is_brief_op(op: &Op) -> bool {
    match op {
        Op::Put(_) => true,
        Op::Delete(delete) => delete.range.as_single().is_some(),
        Op::Range(range) => range.range.as_single().is_some(),
        Op::Txn(txn) => {
            let single = txn.compares.iter().all(|compare| compare.range.as_single().is_some());
            single && txn.success.iter().chain(&txn.failure).all(is_brief_op)
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tidelock_model::{
        Caller, DeleteOp, Key, KeyRange, LeaseId, LogIndex, LogTime, NodeId, Origin, Proposal, PutLease, PutOp,
        PutValue, Space, Term,
    };

    use super::*;

    fn apply(commands: Vec<Command>) -> Task {
        let proposals = commands.into_iter().enumerate().map(|(number, command)| {
            let origin = Origin { node: NodeId(1), boot: 1, number: number as u64 };
            Proposal { origin, request: None, caller: Caller::Internal, command }
        });
        let batch = Batch { at: LogTime(0), proposals: proposals.collect() };
        let bytes = Bytes::from(batch.to_bytes());
        Task::Apply(vec![Committed::Batch { index: LogIndex(1), term: Term(1), bytes }])
    }

    fn put(bytes: usize) -> Command {
        let value = PutValue::Set(Bytes::from(vec![7; bytes]));
        let put =
            PutOp { key: Key::new(Space::User, b"k"), value, lease: PutLease::Set(LeaseId(0)), want_previous: false };
        Command::Write(Op::Put(put))
    }

    /// Heartbeats wait while something brief is done: what can take long, however small its entry, must never be that.
    #[test]
    fn only_what_cannot_take_long_is_brief() {
        let delete = |range| Command::Write(Op::Delete(DeleteOp { range, want_previous: false }));
        assert!(are_brief(&[apply(vec![put(100)])]));
        assert!(are_brief(&[apply(vec![delete(KeyRange::single(Key::new(Space::User, b"k")))])]));
        assert!(!are_brief(&[apply(vec![delete(KeyRange::all_of(Space::User))])]), "a million keys may go");
        assert!(!are_brief(&[apply(vec![Command::LeaseRevoke { id: LeaseId(1) }])]), "with all it owns");
        let close = NativeCommand::Close { session: LeaseId(1) };
        assert!(!are_brief(&[apply(vec![Command::Native(close)])]), "with all it holds");
        assert!(!are_brief(&[apply(vec![put(SMALL_BYTES)])]));
        assert!(!are_brief(&[apply((0..=FEW).map(|_| put(1)).collect())]));
        assert!(!are_brief(&[Task::Install { index: LogIndex(1), term: Term(1) }]));
    }
}
