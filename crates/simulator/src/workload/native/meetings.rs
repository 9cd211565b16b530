//! Barriers, latches and phasers: arrive, wait for the others, go on; or go away before they came.

use tidelock_model::native_records::{Gate, Stored};
use tidelock_model::{Kind, Name, NativeAnswer, NativeError, NativeNotice, NativeOp, ObjectFound, OnDeath};

use super::session::Session;
use super::{by_the_clock, name};
use crate::coverage;
use crate::history::Micros;

/// Longest time a client waits for the others.
const PATIENCE: (Micros, Micros) = (500_000, 5_000_000);
/// Longest time it takes for what it does between two arrivals.
const WORK: (Micros, Micros) = (5_000, 300_000);
/// Most phases it takes part in before it goes.
const PHASES_MAX: u64 = 6;
/// Different barriers. With two parties none waits on when the other goes: only one of three shrinks, or breaks before
/// it opens. Of two inside, the second is soon the last, on whom the other counts.
const BARRIERS: [(&str, u32, bool, OnDeath); 4] = [
    ("meet-3", 3, false, OnDeath::Shrink),
    ("double-3", 3, true, OnDeath::Shrink),
    ("strict-3", 3, false, OnDeath::Break),
    ("strict-double-2", 2, true, OnDeath::Break),
];
/// The tree of phasers: each is part of the one before, but for the first.
const PHASERS: [&str; 3] = ["root", "branch", "leaf"];

pub(super) async fn barrier(session: &mut Session<'_>) {
    let client = session.client();
    let (text, parties, double, on_death) = BARRIERS[by_the_clock(client, BARRIERS.len() as u64) as usize];
    let name = name(text);
    let op = NativeOp::Enter { name: name.clone(), parties, double, on_death };
    let Some(Ok(NativeAnswer::Entered { place, generation, missing })) = session.ask(op).await else { return };
    if client.chance(60) {
        return session.die();
    }
    let opened = if missing == 0 { Some(Gate::Open) } else { met(session, &name, generation, Gate::Open).await };
    match opened {
        None if !session.is_over() => {
            session.ask(NativeOp::GiveUp { kind: Kind::Barrier, name, place }).await;
        }
        Some(Gate::Open) if double => {
            let time = client.between(WORK.0, WORK.1);
            session.dwell(time).await;
            if session.is_over() {
                return;
            }
            // Who has left already counts on those inside.
            if client.chance(150) {
                return session.die();
            }
            let left = session.ask(NativeOp::Leave { name: name.clone(), place }).await;
            if let Some(Ok(NativeAnswer::Leaving { inside, .. })) = left
                && inside > 0
            {
                met(session, &name, generation, Gate::Left).await;
            }
        }
        _ => {}
    }
}

/// Waits until a meeting comes to `wanted` or breaks. One that is gone came to something meanwhile.
async fn met(session: &mut Session<'_>, name: &Name, generation: u64, wanted: Gate) -> Option<Gate> {
    let patience = session.client().between(PATIENCE.0, PATIENCE.1);
    let found = |found: &ObjectFound| match &found.head {
        Some(Stored::Barrier(barrier)) if found.created == generation => {
            (barrier.gate == wanted).then_some(barrier.gate)
        }
        _ => Some(Gate::Left),
    };
    let heard = |notice: &NativeNotice| match notice {
        NativeNotice::Barrier { name: of, generation: at, gate } if of == name && *at == generation => {
            (*gate == wanted || *gate != Gate::Open).then_some(*gate)
        }
        _ => None,
    };
    session.wait_for(patience, (Kind::Barrier, name), found, heard).await
}

pub(super) async fn latch(session: &mut Session<'_>) {
    let client = session.client();
    let slot = by_the_clock(client, 3);
    let on_death = if slot == 0 { OnDeath::Break } else { OnDeath::Shrink };
    let name = name(&format!("latch-{slot}"));
    session.ask(NativeOp::SetLatch { name: name.clone(), count: client.between(1, 3), on_death }).await;
    if session.is_over() {
        return;
    }
    let pledge = match client.chance(600) {
        true => match session.ask(NativeOp::Pledge { name: name.clone() }).await {
            Some(Ok(NativeAnswer::Pledged { pledge })) => pledge,
            _ => return,
        },
        false => 0,
    };
    let time = client.between(WORK.0, WORK.1);
    session.dwell(time).await;
    if session.is_over() {
        return;
    }
    if pledge != 0 && client.chance(150) {
        if client.chance(500) {
            return session.die();
        }
        session.ask(NativeOp::GiveUp { kind: Kind::Latch, name, place: pledge }).await;
        return;
    }
    let counted = session.ask(NativeOp::CountDown { name: name.clone(), by: 1, pledge }).await;
    if !matches!(counted, Some(Ok(NativeAnswer::Latch { left })) if left > 0) {
        return;
    }
    let patience = client.between(PATIENCE.0, PATIENCE.1);
    let found = |found: &ObjectFound| match &found.head {
        Some(Stored::Latch { gate, .. }) => (*gate != Gate::Shut).then_some(()),
        _ => Some(()),
    };
    let heard = |notice: &NativeNotice| match notice {
        NativeNotice::Latch { name: of, gate } if *of == name => (*gate != Gate::Shut).then_some(()),
        _ => None,
    };
    session.wait_for(patience, (Kind::Latch, &name), found, heard).await;
}

pub(super) async fn phaser(session: &mut Session<'_>) {
    let client = session.client();
    // Trees that a death breaks are made anew now and then.
    let breaks = client.now() / 30_000_000 % 2 == 1;
    let (on_death, tree) = if breaks { (OnDeath::Break, client.now() / 10_000_000) } else { (OnDeath::Shrink, 0) };
    let of_tree = |storey: usize| name(&format!("{}-{tree}", PHASERS[storey]));
    let storey = client.below(PHASERS.len() as u64) as usize;
    let parties = u32::try_from(client.between(1, 2)).unwrap_or(1);
    let register = |storey: usize| NativeOp::Register {
        name: of_tree(storey),
        parties,
        parent: storey.checked_sub(1).map(of_tree),
        on_death,
    };
    let mut storey = storey;
    let party = loop {
        match session.ask(register(storey)).await {
            Some(Ok(NativeAnswer::Registered { party, .. })) => break party,
            // The one above is not there yet.
            Some(Err(NativeError::NotFound)) if storey > 0 => storey -= 1,
            _ => return,
        }
    };
    let name = of_tree(storey);
    for _ in 0..client.between(1, PHASES_MAX) {
        let time = client.between(WORK.0, WORK.1);
        session.dwell(time).await;
        if session.is_over() {
            return;
        }
        let count = if parties == 2 && client.chance(300) { 1 } else { 0 };
        let op = NativeOp::Arrive { name: name.clone(), party, count, deregister: false };
        match session.ask(op).await {
            Some(Ok(NativeAnswer::Arrived { phase, now })) if phase == now && count == 0 => {
                if !await_advance(session, &of_tree(0), phase).await {
                    break;
                }
            }
            Some(Ok(_)) | Some(Err(NativeError::AlreadyArrived { .. })) => {}
            _ => return,
        }
    }
    if session.is_over() {
        return;
    }
    match client.below(10) {
        0 => session.die(),
        1..5 => {
            let op = NativeOp::Arrive { name: name.clone(), party, count: 0, deregister: true };
            if matches!(session.ask(op).await, Some(Err(NativeError::AlreadyArrived { .. }))) {
                session.ask(NativeOp::GiveUp { kind: Kind::Phaser, name, place: party }).await;
            }
        }
        _ => {
            session.ask(NativeOp::GiveUp { kind: Kind::Phaser, name, place: party }).await;
        }
    }
}

/// Waits for the next phase; whether it came.
async fn await_advance(session: &mut Session<'_>, root: &Name, phase: u64) -> bool {
    let patience = session.client().between(PATIENCE.0, PATIENCE.1);
    let found = |found: &ObjectFound| match &found.head {
        Some(Stored::Phaser(phaser)) if phaser.broken => Some(false),
        Some(Stored::Phaser(phaser)) => (phaser.phase > phase).then_some(true),
        _ => Some(false),
    };
    let heard = |notice: &NativeNotice| match notice {
        NativeNotice::Phase { name: of, phase: now, broken } if of == root => {
            (*broken || *now > phase).then_some(!*broken)
        }
        _ => None,
    };
    let advanced = session.wait_for(patience, (Kind::Phaser, root), found, heard).await.unwrap_or(false);
    session.client().around().coverage.add(coverage::NATIVE_PHASE_AWAITED, u64::from(advanced));
    advanced
}
