//! Locks, permits and elections: wait in line, hold, write under the token, and let go in every way there is.

use bytes::Bytes;
use tidelock_model::{
    Data, Fencing, Kind, LeaseId, Mode, Name, NativeAnswer, NativeError, NativeNotice, NativeOp, ObjectFound, Wait,
};

use super::counts::change_fenced;
use super::session::Session;
use super::{Memory, fenced, name};
use crate::coverage;
use crate::history::Micros;

/// So few that there is always someone waiting.
const LOCKS: u64 = 2;
/// Permits of the one semaphore.
const PERMITS: u32 = 3;
/// Longest time a client waits for its turn.
const PATIENCE: (Micros, Micros) = (300_000, 8_000_000);
/// Longest time it holds something before the next thing.
const HOLD: (Micros, Micros) = (10_000, 400_000);
/// Longest time that it holds the only permit there is.
const SQUEEZE: Micros = 4_000_000;
/// Most things it does while it holds something.
const DONE_MAX: u64 = 4;

/// What a place was granted under: the place it is known by now, and the token.
type Granted = (u64, u64);

pub(super) async fn lock(session: &mut Session<'_>, memory: &mut Memory) {
    let client = session.client();
    let name = name(&format!("lock-{}", client.below(LOCKS)));
    if client.chance(80) {
        return trespass(session, memory, Kind::Lock, &name).await;
    }
    let mode = if client.chance(600) { Mode::Exclusive } else { Mode::Shared };
    let op = NativeOp::Acquire { name: name.clone(), mode, permits: 0, wait: wait(session), data: Data::default() };
    let Some((place, token)) = queue_up(session, Kind::Lock, &name, mode, op).await else { return };
    for _ in 0..client.between(1, DONE_MAX) {
        if session.is_over() {
            return memory.keep_token(Kind::Lock, &name, token);
        }
        match client.below(10) {
            0..2 if mode == Mode::Exclusive => {
                let fencing = Fencing { fence: name.clone(), token };
                change_fenced(session, memory, fencing).await;
            }
            2..5 if mode == Mode::Exclusive => fenced::write(session, &name, token).await,
            5..7 => {
                session.renew(Kind::Lock, &name, token).await;
            }
            7 if mode == Mode::Exclusive && client.chance(400) => {
                // From here on others may come in: the client knows what it asked for.
                session.forget(token);
                session.ask(NativeOp::Downgrade { name: name.clone(), token }).await;
                break;
            }
            _ => {}
        }
        let time = client.between(HOLD.0, HOLD.1);
        session.dwell(time).await;
    }
    let_go(session, memory, Kind::Lock, &name, (place, token)).await;
}

pub(super) async fn semaphore(session: &mut Session<'_>) {
    let client = session.client();
    let name = name("permits");
    if client.chance(150) {
        // More for all, or less than there are out.
        let permits = u32::try_from(client.between(1, u64::from(2 * PERMITS))).unwrap_or(1);
        resize(session, &name, permits).await;
    }
    let squeezes = client.chance(250);
    if squeezes {
        resize(session, &name, 1).await;
    }
    if session.is_over() {
        return;
    }
    let mode = Mode::Permits(u32::try_from(client.between(1, u64::from(PERMITS))).unwrap_or(1));
    // Whoever makes it says how many there are; nobody else needs to know.
    let permits = if client.chance(150) { PERMITS } else { 0 };
    let (wait, data) = (wait(session), Data::default());
    let op = NativeOp::Acquire { name: name.clone(), mode, permits, wait, data };
    let Some(granted) = queue_up(session, Kind::Semaphore, &name, mode, op).await else { return };
    let time = if squeezes { client.between(2 * HOLD.1, SQUEEZE) } else { client.between(HOLD.0, 2 * HOLD.1) };
    session.dwell(time).await;
    if squeezes {
        // Others came to wait for the one permit there was; now there are more than they wait for.
        resize(session, &name, 4 * PERMITS).await;
    }
    let_go(session, &mut Memory::default(), Kind::Semaphore, &name, granted).await;
}

async fn resize(session: &mut Session<'_>, name: &Name, permits: u32) {
    if session.is_over() {
        return;
    }
    if let Some(Ok(_)) = session.ask(NativeOp::Resize { name: name.clone(), permits }).await {
        session.client().around().coverage.hit(coverage::NATIVE_RESIZED);
    }
}

pub(super) async fn election(session: &mut Session<'_>, memory: &mut Memory) {
    let client = session.client();
    let name = name("election");
    if client.chance(100) {
        return trespass(session, memory, Kind::Election, &name).await;
    }
    let data = Data::new(Bytes::from(client.unique())).unwrap_or_default();
    let op = NativeOp::Campaign { name: name.clone(), wait: wait(session), data };
    let Some((place, token)) = queue_up(session, Kind::Election, &name, Mode::Exclusive, op).await else { return };
    for _ in 0..client.between(0, DONE_MAX) {
        if session.is_over() {
            return;
        }
        match client.below(10) {
            0..4 => {
                let data = Data::new(Bytes::from(client.unique())).unwrap_or_default();
                session.ask(NativeOp::Proclaim { name: name.clone(), token, data }).await;
            }
            4..7 => fenced::write_held(session, Kind::Election, &name, token).await,
            _ => {
                session.renew(Kind::Election, &name, token).await;
            }
        }
        let time = client.between(HOLD.0, HOLD.1);
        session.dwell(time).await;
    }
    if client.chance(500)
        && let Some(successor) = somebody_waiting(session, &name).await
    {
        session.forget(token);
        let op = NativeOp::Resign { name: name.clone(), token, successor };
        if let Some(Ok(_)) = session.ask(op).await {
            client.around().coverage.hit(coverage::NATIVE_SUCCESSOR);
            memory.keep_token(Kind::Election, &name, token);
            return;
        }
    }
    let_go(session, memory, Kind::Election, &name, (place, token)).await;
}

fn wait(session: &Session<'_>) -> Wait {
    match session.client().below(10) {
        0..2 => Wait::Try,
        2 => Wait::Queue(3),
        _ => Wait::Queue(0),
    }
}

/// Takes a place and waits for its turn, for a while.
async fn queue_up(session: &mut Session<'_>, kind: Kind, name: &Name, mode: Mode, op: NativeOp) -> Option<Granted> {
    let client = session.client();
    let Some(Ok(NativeAnswer::Place { place, token, .. })) = session.ask(op).await else { return None };
    if token != 0 {
        session.believe(kind, name, mode, token);
        return Some((place, token));
    }
    if client.chance(60) {
        session.die();
        return None;
    }
    let patience = client.between(PATIENCE.0, PATIENCE.1);
    let own = session.id();
    let granted = session
        .wait_for(
            patience,
            (kind, name),
            |found| granted_in(found, own, place),
            |notice| granted_by(notice, own, place),
        )
        .await;
    match granted {
        Some(Some((place, token))) => {
            client.around().coverage.hit(coverage::NATIVE_HANDED_OVER);
            session.believe(kind, name, mode, token);
            Some((place, token))
        }
        // The place is gone, and with it the session.
        Some(None) => None,
        None if session.is_over() => None,
        None => {
            let told = session.ask(NativeOp::GiveUp { kind, name: name.clone(), place }).await;
            if let Some(Ok(NativeAnswer::Left { token: 0 })) = told {
                client.around().coverage.hit(coverage::NATIVE_GAVE_UP);
            }
            None
        }
    }
}

/// What is found of one's place: granted, gone, or nothing new.
fn granted_in(found: &ObjectFound, own: LeaseId, place: u64) -> Option<Option<Granted>> {
    let mut mine = found.members.iter().filter(|member| member.session == own);
    let is_meant = |queued: &tidelock_model::native_records::Place, at: u64| at == place || queued.moved_from == place;
    let found = mine.find_map(|member| {
        let queued = member.queued.as_ref()?;
        is_meant(queued, member.place).then_some((member.place, queued.token))
    });
    match found {
        None => Some(None),
        Some((_, 0)) => None,
        Some(granted) => Some(Some(granted)),
    }
}

fn granted_by(notice: &NativeNotice, own: LeaseId, waiting: u64) -> Option<Option<Granted>> {
    match notice {
        NativeNotice::Granted { place, moved_from, token, .. }
            if notice.addressee() == Some(own) && (*place == waiting || *moved_from == waiting) =>
        {
            Some(Some((*place, *token)))
        }
        _ => None,
    }
}

/// Gives back what it holds: properly, by its place, by sleeping through the end of the session, or by dying.
async fn let_go(session: &mut Session<'_>, memory: &mut Memory, kind: Kind, name: &Name, (place, token): Granted) {
    let client = session.client();
    if session.is_over() {
        return memory.keep_token(kind, name, token);
    }
    let op = match client.below(20) {
        0 => return session.die(),
        1 => {
            client.around().coverage.hit(coverage::NATIVE_OVERSLEPT);
            session.oversleep().await;
            session.forget(token);
            NativeOp::Release { kind, name: name.clone(), token }
        }
        2..5 => NativeOp::GiveUp { kind, name: name.clone(), place },
        _ => NativeOp::Release { kind, name: name.clone(), token },
    };
    session.forget(token);
    session.ask(op).await;
    memory.keep_token(kind, name, token);
}

/// Tries what must not work: old tokens, and those of others.
async fn trespass(session: &mut Session<'_>, memory: &mut Memory, kind: Kind, name: &Name) {
    let client = session.client();
    let old = memory.old_tokens.iter().rev().find(|(of, at, _)| *of == kind && at == name).map(|(.., token)| *token);
    let token = match old.filter(|_| client.chance(500)) {
        Some(token) => Some(token),
        None => token_of_another(session, kind, name).await,
    };
    let Some(token) = token else { return };
    let name = name.clone();
    let refused = match client.below(4) {
        3 => return fenced::write_held(session, kind, &name, token).await,
        0 => session.ask(NativeOp::Release { kind, name, token }).await,
        1 => session.ask(NativeOp::Renew { kind, name, token, ttl_ms: 0 }).await,
        _ if kind == Kind::Election => {
            let data = Data::new(Bytes::from(client.unique())).unwrap_or_default();
            session.ask(NativeOp::Proclaim { name, token, data }).await
        }
        _ => session.ask(NativeOp::Downgrade { name, token }).await,
    };
    if let Some(Err(NativeError::StaleToken { .. } | NativeError::NotHolder { .. })) = refused {
        client.around().coverage.hit(coverage::NATIVE_STALE_REFUSED);
    }
}

async fn token_of_another(session: &Session<'_>, kind: Kind, name: &Name) -> Option<u64> {
    let client = session.client();
    let (_, found) = client.native_look(client.choose_node()?, kind, name).await?;
    let others = found.members.iter().filter(|member| member.session != session.id());
    others.filter_map(|member| member.queued.as_ref()).map(|queued| queued.token).find(|token| *token != 0)
}

async fn somebody_waiting(session: &Session<'_>, name: &Name) -> Option<LeaseId> {
    let client = session.client();
    let (_, found) = client.native_look(client.choose_node()?, Kind::Election, name).await?;
    let waiting =
        |member: &&tidelock_model::MemberFound| member.queued.as_ref().is_some_and(|queued| queued.token == 0);
    let waiting: Vec<LeaseId> = found.members.iter().filter(waiting).map(|member| member.session).collect();
    if waiting.is_empty() { None } else { Some(*client.pick(&waiting)) }
}
