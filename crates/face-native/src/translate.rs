//! Requests and answers, from the wire to the core and back. Pure: wire types end here.

use tidelock_model::native_records::Gate;
use tidelock_model::{
    Data, Fencing, Kind, LeaseId, Mode, Name, NativeAnswer, NativeError, NativeNotice, NativeOp, NativeRequest,
    OnDeath, Revision, Wait,
};
use tidelock_native_api::v1;
use tidelock_native_api::v1::request::Op;

use crate::problem::Problem;
use crate::write::guarded_write;

/// What a session asks for.
pub(crate) fn request(request: v1::Request) -> Result<NativeRequest, Problem> {
    let v1::Request { session, number, acknowledged, op } = request;
    if number == 0 {
        let text = "a request has a number of the client's own: 1 for the first of a session, and so on; the same number \
                    again gets the same answer";
        return Err(Problem::wrong("NUMBER_MISSING", text));
    }
    let op = operation(op.ok_or_else(|| Problem::wrong("OP_MISSING", "the request does not say what is asked for"))?)?;
    Ok(NativeRequest { session: LeaseId(session), number, acknowledged, op })
}

fn operation(op: Op) -> Result<NativeOp, Problem> {
    Ok(match op {
        Op::Acquire(acquire) => self::acquire(acquire)?,
        Op::Campaign(v1::Campaign { name, wait, data, queue_max }) => {
            NativeOp::Campaign { name: self::name(&name)?, wait: self::wait(wait, queue_max)?, data: Data::new(data)? }
        }
        Op::Release(v1::Release { kind, name, token }) => {
            NativeOp::Release { kind: self::kind(kind)?, name: self::name(&name)?, token }
        }
        Op::GiveUp(v1::GiveUp { kind, name, place }) => {
            NativeOp::GiveUp { kind: self::kind(kind)?, name: self::name(&name)?, place }
        }
        Op::Resign(v1::Resign { name, token, successor }) => {
            NativeOp::Resign { name: self::name(&name)?, token, successor: LeaseId(successor) }
        }
        Op::Downgrade(v1::Downgrade { name, token }) => NativeOp::Downgrade { name: self::name(&name)?, token },
        Op::Proclaim(v1::Proclaim { name, token, data }) => {
            NativeOp::Proclaim { name: self::name(&name)?, token, data: Data::new(data)? }
        }
        Op::Renew(v1::Renew { kind, name, token, ttl_ms }) => {
            NativeOp::Renew { kind: self::kind(kind)?, name: self::name(&name)?, token, ttl_ms }
        }
        Op::Resize(v1::Resize { name, permits }) => NativeOp::Resize { name: self::name(&name)?, permits },
        op => meeting(op)?,
    })
}

/// The operations of kinds whose members do not stand in a queue.
fn meeting(op: Op) -> Result<NativeOp, Problem> {
    Ok(match op {
        Op::Enter(v1::Enter { name, parties, double, on_death }) => {
            NativeOp::Enter { name: self::name(&name)?, parties, double, on_death: self::on_death(on_death)? }
        }
        Op::Leave(v1::Leave { name, place }) => NativeOp::Leave { name: self::name(&name)?, place },
        Op::SetLatch(v1::SetLatch { name, count, on_death }) => {
            NativeOp::SetLatch { name: self::name(&name)?, count, on_death: self::on_death(on_death)? }
        }
        Op::Pledge(v1::Pledge { name }) => NativeOp::Pledge { name: self::name(&name)? },
        Op::CountDown(v1::CountDown { name, by, pledge }) => {
            NativeOp::CountDown { name: self::name(&name)?, by: by.max(1), pledge }
        }
        Op::Register(v1::Register { name, parties, parent, on_death }) => NativeOp::Register {
            name: self::name(&name)?,
            parties,
            parent: (!parent.is_empty()).then(|| self::name(&parent)).transpose()?,
            on_death: self::on_death(on_death)?,
        },
        Op::Arrive(v1::Arrive { name, party, count, deregister }) => {
            NativeOp::Arrive { name: self::name(&name)?, party, count, deregister }
        }
        Op::Add(v1::Add { name, delta, fencing }) => {
            NativeOp::Add { name: self::name(&name)?, delta, fencing: self::fencing(fencing)? }
        }
        Op::CompareAndSet(v1::CompareAndSet { name, expected, value, fencing }) => {
            NativeOp::CompareAndSet { name: self::name(&name)?, expected, value, fencing: self::fencing(fencing)? }
        }
        Op::Admit(v1::Admit { fence, token }) => NativeOp::Admit(Fencing { fence: self::name(&fence)?, token }),
        Op::Publish(v1::Publish { name, data, fencing }) => {
            NativeOp::Publish { name: self::name(&name)?, data: Data::new(data)?, fencing: self::fencing(fencing)? }
        }
        Op::StartReading(v1::StartReading { name }) => NativeOp::StartReading { name: self::name(&name)? },
        Op::Report(v1::Report { name, reader, version }) => {
            NativeOp::Report { name: self::name(&name)?, reader, version }
        }
        Op::Protect(v1::Protect { name }) => NativeOp::Protect { name: self::name(&name)? },
        Op::Retire(v1::Retire { name }) => NativeOp::Retire { name: self::name(&name)? },
        Op::Forget(v1::Forget { kind, name }) => NativeOp::Forget { kind: self::kind(kind)?, name: self::name(&name)? },
        Op::Write(write) => NativeOp::Write(guarded_write(write)?),
        _ => return Err(Problem::mismatch()),
    })
}

fn acquire(acquire: v1::Acquire) -> Result<NativeOp, Problem> {
    let v1::Acquire { name, mode, permits, wait, data, weight, queue_max } = acquire;
    let mode = match v1::Mode::try_from(mode) {
        Ok(v1::Mode::Exclusive) => Mode::Exclusive,
        Ok(v1::Mode::Shared) => Mode::Shared,
        Ok(v1::Mode::Permits) => Mode::Permits(weight.max(1)),
        Ok(v1::Mode::Unspecified) | Err(_) => {
            return Err(Problem::wrong("BAD_MODE", "mode is EXCLUSIVE or SHARED for a lock, PERMITS for a semaphore"));
        }
    };
    Ok(NativeOp::Acquire {
        name: self::name(&name)?,
        mode,
        permits,
        wait: self::wait(wait, queue_max)?,
        data: Data::new(data)?,
    })
}

pub(crate) fn name(text: &str) -> Result<Name, NativeError> {
    Name::new(text)
}

pub(crate) fn kind(number: i32) -> Result<Kind, Problem> {
    Ok(match v1::Kind::try_from(number) {
        Ok(v1::Kind::Lock) => Kind::Lock,
        Ok(v1::Kind::Election) => Kind::Election,
        Ok(v1::Kind::Semaphore) => Kind::Semaphore,
        Ok(v1::Kind::Barrier) => Kind::Barrier,
        Ok(v1::Kind::Latch) => Kind::Latch,
        Ok(v1::Kind::Phaser) => Kind::Phaser,
        Ok(v1::Kind::Counter) => Kind::Counter,
        Ok(v1::Kind::Fence) => Kind::Fence,
        Ok(v1::Kind::Rcu) => Kind::Rcu,
        Ok(v1::Kind::Hazard) => Kind::Hazard,
        Ok(v1::Kind::Unspecified) | Err(_) => {
            let text = "kind is LOCK, ELECTION, SEMAPHORE, BARRIER, LATCH, PHASER, COUNTER, FENCE, RCU or HAZARD";
            return Err(Problem::wrong("BAD_KIND", text));
        }
    })
}

pub(crate) fn wire_kind(kind: Kind) -> v1::Kind {
    match kind {
        Kind::Lock => v1::Kind::Lock,
        Kind::Election => v1::Kind::Election,
        Kind::Semaphore => v1::Kind::Semaphore,
        Kind::Barrier => v1::Kind::Barrier,
        Kind::Latch => v1::Kind::Latch,
        Kind::Phaser => v1::Kind::Phaser,
        Kind::Counter => v1::Kind::Counter,
        Kind::Fence => v1::Kind::Fence,
        Kind::Rcu => v1::Kind::Rcu,
        Kind::Hazard => v1::Kind::Hazard,
    }
}

fn wait(wait: i32, queue_max: u32) -> Result<Wait, Problem> {
    match v1::Wait::try_from(wait) {
        Ok(v1::Wait::Queue) => Ok(Wait::Queue(queue_max)),
        Ok(v1::Wait::Try) => Ok(Wait::Try),
        Err(_) => Err(Problem::wrong("BAD_WAIT", "wait is QUEUE or TRY")),
    }
}

fn on_death(on_death: i32) -> Result<OnDeath, Problem> {
    match v1::OnDeath::try_from(on_death) {
        Ok(v1::OnDeath::Shrink) => Ok(OnDeath::Shrink),
        Ok(v1::OnDeath::Break) => Ok(OnDeath::Break),
        Err(_) => Err(Problem::wrong("BAD_POLICY", "onDeath is SHRINK or BREAK")),
    }
}

pub(crate) fn wire_on_death(on_death: OnDeath) -> v1::OnDeath {
    match on_death {
        OnDeath::Shrink => v1::OnDeath::Shrink,
        OnDeath::Break => v1::OnDeath::Break,
    }
}

fn fencing(fencing: Option<v1::Fencing>) -> Result<Option<Fencing>, NativeError> {
    fencing.map(|v1::Fencing { fence, token }| Ok(Fencing { fence: name(&fence)?, token })).transpose()
}

pub(crate) fn wire_gate(gate: Gate) -> v1::Gate {
    match gate {
        Gate::Shut => v1::Gate::Shut,
        Gate::Open => v1::Gate::Open,
        Gate::Left => v1::Gate::Left,
        Gate::Broken => v1::Gate::Broken,
    }
}

/// An answer; none to who opened a session, which is told otherwise.
pub(crate) fn answer(answer: NativeAnswer) -> Option<v1::Answer> {
    use v1::answer::Answer as A;
    let answer = match answer {
        NativeAnswer::Done => A::Done(v1::Done {}),
        NativeAnswer::Opened { .. } => return None,
        NativeAnswer::Place { place, token, ahead } => A::Place(v1::Place { place, token, ahead }),
        NativeAnswer::Left { token } => A::Left(v1::Left { token }),
        NativeAnswer::Entered { place, generation, missing } => A::Entered(v1::Entered { place, generation, missing }),
        NativeAnswer::Leaving { generation, inside } => A::Leaving(v1::Leaving { generation, inside }),
        NativeAnswer::Pledged { pledge } => A::Pledged(v1::Pledged { pledge }),
        NativeAnswer::Latch { left } => A::Latch(v1::LatchCount { left }),
        NativeAnswer::Registered { party, phase } => A::Registered(v1::Registered { party, phase }),
        NativeAnswer::Arrived { phase, now } => A::Arrived(v1::Arrived { phase, now }),
        NativeAnswer::Counter { before, after } => A::Counter(v1::CounterChange { before, after }),
        NativeAnswer::Version { reader, version, oldest } => A::Version(v1::Version { reader, version, oldest }),
        NativeAnswer::Protected { place, epoch } => A::Protected(v1::Protected { place, epoch }),
        NativeAnswer::Retired { epoch, clear } => A::Retired(v1::Retired { epoch, clear }),
    };
    Some(v1::Answer { answer: Some(answer) })
}

/// A notice; `data` is what the holder shows, of a place in a queue.
pub(crate) fn notice(notice: NativeNotice, at: Revision, data: &Data) -> v1::Notice {
    use v1::notice::Notice as N;
    let data = data.as_bytes().clone();
    let text = |name: Name| name.as_str().to_owned();
    let notice = match notice {
        NativeNotice::Granted { kind, name, place, moved_from, session, token } => {
            let (kind, session) = (wire_kind(kind).into(), session.0);
            N::Granted(v1::Granted { kind, name: text(name), place, moved_from, session, token, data })
        }
        NativeNotice::Changed { kind, name, session, token } => {
            let (kind, session) = (wire_kind(kind).into(), session.0);
            N::Changed(v1::Changed { kind, name: text(name), session, token, data })
        }
        NativeNotice::Gone { kind, name, place, .. } => {
            N::Gone(v1::Gone { kind: wire_kind(kind).into(), name: text(name), place })
        }
        NativeNotice::Barrier { name, generation, gate } => {
            N::Barrier(v1::BarrierNotice { name: text(name), generation, gate: wire_gate(gate).into() })
        }
        NativeNotice::Latch { name, gate } => {
            N::Latch(v1::LatchNotice { name: text(name), gate: wire_gate(gate).into() })
        }
        NativeNotice::Phase { name, phase, broken } => N::Phase(v1::PhaseNotice { name: text(name), phase, broken }),
        NativeNotice::Counter { name, value } => N::Counter(v1::CounterNotice { name: text(name), value }),
        NativeNotice::Fence { name, highest } => N::Fence(v1::FenceNotice { name: text(name), highest }),
        NativeNotice::Rcu { name, version, oldest } => N::Rcu(v1::RcuNotice { name: text(name), version, oldest }),
        NativeNotice::Hazard { name, epoch, clear } => N::Hazard(v1::HazardNotice { name: text(name), epoch, clear }),
    };
    v1::Notice { revision: at.0, notice: Some(notice) }
}
