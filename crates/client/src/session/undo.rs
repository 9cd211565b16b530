//! What gives back what a request took.
//!
//! Whoever drops a future half way, or a guard without a word, must leave nothing behind. So for each answer that gave
//! its asker a place somewhere there is a request that leaves that place.

use tidelock_native_api::v1::{self, Kind, answer::Answer, request::Op};

/// A place in a queue, by what notices call it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlaceKey {
    pub(crate) kind: i32,
    pub(crate) name: String,
    pub(crate) place: u64,
}

impl PlaceKey {
    pub(crate) fn new(kind: Kind, name: &str, place: u64) -> PlaceKey {
        PlaceKey { kind: kind.into(), name: name.to_owned(), place }
    }

    pub(crate) fn is_of_same_queue(&self, other: &PlaceKey) -> bool {
        (self.kind, &self.name) == (other.kind, &other.name)
    }

    pub(crate) fn give_up(&self) -> Op {
        Op::GiveUp(v1::GiveUp { kind: self.kind, name: self.name.clone(), place: self.place })
    }

    pub(crate) fn release(&self, token: u64) -> Op {
        Op::Release(v1::Release { kind: self.kind, name: self.name.clone(), token })
    }
}

/// A grant, by what it is given back with. A token is one queue's own: when somebody dies who held a hundred locks, the
/// next in each of the hundred queues is granted under the same number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GrantKey {
    pub(crate) kind: i32,
    pub(crate) name: String,
    pub(crate) token: u64,
}

/// The queue that a request takes a place in, if it does.
pub(crate) fn queue_of(op: &Op) -> Option<(Kind, &str)> {
    match op {
        Op::Acquire(acquire) if acquire.mode() == v1::Mode::Permits => Some((Kind::Semaphore, &acquire.name)),
        Op::Acquire(acquire) => Some((Kind::Lock, &acquire.name)),
        Op::Campaign(campaign) => Some((Kind::Election, &campaign.name)),
        _ => None,
    }
}

/// What gives back what the answer gave; nothing if it gave nothing that must be given back.
pub(crate) fn undo_of(op: &Op, answer: &Answer) -> Option<Op> {
    let (kind, name, place) = match (op, answer) {
        (Op::Acquire(_) | Op::Campaign(_), Answer::Place(v1::Place { place, token, .. })) => {
            let (kind, name) = queue_of(op)?;
            let key = PlaceKey::new(kind, name, *place);
            return Some(if *token == 0 { key.give_up() } else { key.release(*token) });
        }
        (Op::Enter(enter), Answer::Entered(entered)) => (Kind::Barrier, &enter.name, entered.place),
        (Op::Pledge(pledge), Answer::Pledged(pledged)) => (Kind::Latch, &pledge.name, pledged.pledge),
        (Op::Register(register), Answer::Registered(registered)) => (Kind::Phaser, &register.name, registered.party),
        (Op::StartReading(start), Answer::Version(version)) => (Kind::Rcu, &start.name, version.reader),
        (Op::Protect(protect), Answer::Protected(protected)) => (Kind::Hazard, &protect.name, protected.place),
        _ => return None,
    };
    (place != 0).then(|| PlaceKey::new(kind, name, place).give_up())
}

/// Whether what a request did outlasts its session: then nobody knows, when the session ends first, whether it did.
pub(crate) fn outlasts_session(op: &Op) -> bool {
    match op {
        Op::Acquire(_) | Op::Campaign(_) | Op::Release(_) | Op::GiveUp(_) | Op::Resign(_) | Op::Downgrade(_) => false,
        Op::Proclaim(_) | Op::Renew(_) | Op::Enter(_) | Op::Leave(_) | Op::Pledge(_) | Op::Register(_) => false,
        Op::StartReading(_) | Op::Report(_) | Op::Protect(_) => false,
        Op::Resize(_) | Op::SetLatch(_) | Op::CountDown(_) | Op::Arrive(_) | Op::Add(_) | Op::CompareAndSet(_) => true,
        Op::Admit(_) | Op::Write(_) | Op::Publish(_) | Op::Retire(_) | Op::Forget(_) => true,
    }
}
