//! Counters, fences, versions and hazards.

use bytes::Bytes;
use tidelock_model::native_records::{HazardStage, Stored};
use tidelock_model::{Data, Fencing, Kind, Name, NativeAnswer, NativeError, NativeNotice, NativeOp, ObjectFound};

use super::session::{Decided, Session};
use super::{Memory, name};
use crate::coverage;
use crate::history::Micros;

/// Different counters for blocks of numbers.
const COUNTERS: u64 = 2;
/// Longest time a client reads or waits.
const WHILE: (Micros, Micros) = (20_000, 1_500_000);

/// A number that no other addition of the run has, so that an addition is known by what it adds.
fn unique_delta(session: &Session<'_>, memory: &mut Memory) -> i64 {
    memory.deltas += 1;
    i64::from(session.client().id()) * 1_000_000 + i64::try_from(memory.deltas).unwrap_or(0)
}

/// Something small, to see whether the session is still there.
pub(super) async fn touch(session: &mut Session<'_>) {
    let (name, fencing) = (name("touched"), None);
    session.ask(NativeOp::CompareAndSet { name, expected: 0, value: 0, fencing }).await;
}

/// Changes something under the token of a lock, in one of the ways that ask for one.
pub(super) async fn change_fenced(session: &mut Session<'_>, memory: &mut Memory, fencing: Fencing) {
    match session.client().below(4) {
        0 => compare_and_set(session, Some(fencing)).await,
        1 => {
            let told = publish(session, &name("versions"), Some(fencing)).await;
            note_fenced(session, told);
        }
        _ => fenced_add(session, memory, Some(fencing)).await,
    }
}

fn note_fenced(session: &Session<'_>, told: Decided) {
    if let Some(Err(NativeError::Fenced { .. })) = told {
        session.client().around().coverage.hit(coverage::NATIVE_FENCED);
    }
}

/// Adds to what the holder of a lock counts, under its token.
async fn fenced_add(session: &mut Session<'_>, memory: &mut Memory, fencing: Option<Fencing>) {
    let delta = unique_delta(session, memory);
    let told = session.ask(NativeOp::Add { name: name("guarded"), delta, fencing }).await;
    note_fenced(session, told);
}

pub(super) async fn count(session: &mut Session<'_>, memory: &mut Memory) {
    let client = session.client();
    let old = memory.old_tokens.iter().find(|(kind, ..)| *kind == Kind::Lock).cloned();
    match (client.below(4), old) {
        (0, Some((_, fence, token))) => change_fenced(session, memory, Fencing { fence, token }).await,
        (1, Some((_, fence, token))) => {
            let told = session.ask(NativeOp::Admit(Fencing { fence, token })).await;
            note_fenced(session, told);
        }
        (2, _) => compare_and_set(session, None).await,
        _ => {
            let name = name(&format!("block-{}", client.below(COUNTERS)));
            let delta = unique_delta(session, memory);
            session.ask(NativeOp::Add { name, delta, fencing: None }).await;
        }
    }
}

/// Counts up by comparing: what is expected is found by trying.
async fn compare_and_set(session: &mut Session<'_>, fencing: Option<Fencing>) {
    let (name, mut expected) = (name("compared"), 0);
    for _ in 0..3 {
        let (value, fencing) = (expected + 1, fencing.clone());
        match session.ask(NativeOp::CompareAndSet { name: name.clone(), expected, value, fencing }).await {
            Some(Err(NativeError::Mismatch { actual })) => expected = actual,
            told => return note_fenced(session, told),
        }
    }
}

pub(super) async fn versions(session: &mut Session<'_>) {
    let client = session.client();
    let name = name("versions");
    if client.chance(300) {
        let told = publish(session, &name, None).await;
        let Some(Ok(NativeAnswer::Version { version, .. })) = told else { return };
        let found = |found: &ObjectFound| match found.head {
            Some(Stored::Rcu { oldest, .. }) => (oldest >= version).then_some(()),
            _ => Some(()),
        };
        let heard = |notice: &NativeNotice| match notice {
            NativeNotice::Rcu { name: of, oldest, .. } if *of == name => (*oldest >= version).then_some(()),
            _ => None,
        };
        let patience = client.between(WHILE.0, WHILE.1);
        session.wait_for(patience, (Kind::Rcu, &name), found, heard).await;
        return;
    }
    let told = session.ask(NativeOp::StartReading { name: name.clone() }).await;
    if matches!(told, Some(Err(NativeError::NotFound))) {
        publish(session, &name, None).await;
    }
    let Some(Ok(NativeAnswer::Version { reader, .. })) = told else { return };
    let mut reported = 0;
    for _ in 0..client.between(1, 2) {
        let time = client.between(WHILE.0, WHILE.1);
        session.dwell(time).await;
        if session.is_over() {
            return;
        }
        if client.chance(400) {
            publish(session, &name, None).await;
        }
        let Some((_, found)) = look(session, Kind::Rcu, &name).await else { return };
        let Some(Stored::Rcu { version, .. }) = found.head else { return };
        reported = version.max(reported);
        session.ask(NativeOp::Report { name: name.clone(), reader, version: reported }).await;
    }
    if client.chance(150) {
        return session.die();
    }
    if !session.is_over() {
        session.ask(NativeOp::GiveUp { kind: Kind::Rcu, name, place: reader }).await;
    }
}

async fn publish(session: &mut Session<'_>, name: &Name, fencing: Option<Fencing>) -> Decided {
    let data = Data::new(Bytes::from(session.client().unique())).unwrap_or_default();
    session.ask(NativeOp::Publish { name: name.clone(), data, fencing }).await
}

pub(super) async fn hazard(session: &mut Session<'_>) {
    let client = session.client();
    let name = name("hazard");
    if client.chance(300) {
        return retire(session, name).await;
    }
    let place = match session.ask(NativeOp::Protect { name: name.clone() }).await {
        Some(Ok(NativeAnswer::Protected { place, .. })) => place,
        // Whoever retired it may be gone, and what was retired does not come back.
        Some(Err(NativeError::Retiring { .. })) if client.chance(500) => return forget_hazard(session, name).await,
        _ => return,
    };
    if client.chance(400) {
        session.ask(NativeOp::Retire { name: name.clone() }).await;
    }
    let time = client.between(WHILE.0, WHILE.1);
    session.dwell(time).await;
    if client.chance(150) {
        return session.die();
    }
    if !session.is_over() {
        session.ask(NativeOp::GiveUp { kind: Kind::Hazard, name, place }).await;
    }
}

/// Retires an object, waits until nobody keeps it, and makes room for the next one of its name.
async fn retire(session: &mut Session<'_>, name: Name) {
    let client = session.client();
    let told = session.ask(NativeOp::Retire { name: name.clone() }).await;
    let Some(Ok(NativeAnswer::Retired { epoch, clear })) = told else { return };
    if !clear {
        let found = |found: &ObjectFound| match found.head {
            Some(Stored::Hazard { epoch: now, stage }) => (now > epoch || stage == HazardStage::Retired).then_some(()),
            _ => Some(()),
        };
        let heard = |notice: &NativeNotice| match notice {
            NativeNotice::Hazard { name: of, epoch: now, clear } if *of == name => {
                (*now > epoch || *clear).then_some(())
            }
            NativeNotice::Gone { kind: Kind::Hazard, name: of, .. } if *of == name => Some(()),
            _ => None,
        };
        let patience = client.between(WHILE.0, WHILE.1);
        if session.wait_for(patience, (Kind::Hazard, &name), found, heard).await.is_none() {
            return;
        }
    }
    if client.chance(700) {
        forget_hazard(session, name).await;
    }
}

async fn forget_hazard(session: &mut Session<'_>, name: Name) {
    if !session.is_over() {
        session.ask(NativeOp::Forget { kind: Kind::Hazard, name }).await;
    }
}

/// Removes what nobody uses, of anything that may be removed and of what may not.
pub(super) async fn forget(session: &mut Session<'_>) {
    let client = session.client();
    let of = [
        (Kind::Semaphore, "permits"),
        (Kind::Latch, "latch-0"),
        (Kind::Latch, "latch-1"),
        (Kind::Phaser, "root-0"),
        (Kind::Phaser, "branch-0"),
        (Kind::Phaser, "leaf-0"),
        (Kind::Counter, "block-0"),
        (Kind::Counter, "guarded"),
        (Kind::Rcu, "versions"),
        (Kind::Hazard, "hazard"),
        (Kind::Fence, "lock-0"),
    ];
    let (kind, text) = *client.pick(&of);
    match session.ask(NativeOp::Forget { kind, name: name(text) }).await {
        Some(Ok(_)) => client.around().coverage.hit(coverage::NATIVE_FORGOTTEN),
        Some(Err(NativeError::InUse)) => client.around().coverage.hit(coverage::NATIVE_FORGET_REFUSED),
        _ => {}
    }
}

async fn look(session: &Session<'_>, kind: Kind, name: &Name) -> Option<(u64, ObjectFound)> {
    let client = session.client();
    client.native_look(client.choose_node()?, kind, name).await
}
