//! H25, K3, K4, B1, U1, R3: what clients of native primitives are told is what happened, once.
//!
//! - a request that is asked again under its number gets the first answer, to the last bit, and is never forgotten
//!   before it was acknowledged (H25);
//! - it has one effect: a session has as many places as it asked for, and every addition counts once (H25); blocks of
//!   numbers do not overlap (R3);
//! - an answer shows what the ledger says of that revision, and its effect came after it was asked for (R3; of who is
//!   at a barrier: B1; of whether an object may go: U1);
//! - a token is good for its holder, while it holds, and for nobody else (K3);
//! - a fence lets no token through below the highest it let through (K4).

use std::collections::{BTreeMap, BTreeSet};

use tidelock_model::native_keys::Slot;
use tidelock_model::native_records::{Gate, HazardStage, Stored};
use tidelock_model::{Fencing, Kind, LeaseId, LogIndex, Name, NativeAnswer, NativeCommand, NativeError, NativeOp};

use super::native_forgotten::user;
use super::native_replay::{Thing, Things, place, stored, unsigned};
use super::{Findings, Prepared};
use crate::history::{History, NativeAsk, NativeTold, Stamp};

/// What a request was decided to be, at which revision, by which entry.
type Decided = (u64, LogIndex, Result<NativeAnswer, NativeError>);

/// One request, however often it was asked.
struct Asked<'a> {
    session: LeaseId,
    op: &'a NativeOp,
    called: Stamp,
    decided: Option<Decided>,
}

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let asked = collect(prepared.history, findings);
    check_openings(prepared.history, findings);
    check_one_effect(prepared.history, &asked, findings);
    check_additions(prepared.history, &asked, findings);
    let mut answers: Vec<(&Asked<'_>, &Decided)> =
        asked.values().filter_map(|asked| Some((asked, asked.decided.as_ref()?))).collect();
    answers.sort_by_key(|(_, (revision, index, _))| (*revision, *index));
    let mut ledger = prepared.history.ledger.native.iter().peekable();
    let (mut things, mut passed) = (Things::default(), Passed::default());
    for (asked, decided) in answers {
        while let Some((revision, at)) = ledger.next_if(|(revision, _)| unsigned(**revision) <= decided.0) {
            for change in &at.changes {
                passed.take(unsigned(*revision), change, &mut things, findings);
            }
        }
        let seen = unsigned(prepared.seen.before(asked.called));
        if let Err(flaw) = judge(asked, decided, &things, &passed, seen) {
            let (session, op) = (asked.session, asked.op);
            let (id, what) = flaw;
            findings.add(id, format_args!("session {:x} asked {op:?} and was told {decided:?}; {what}", session.0));
        }
    }
}

fn collect<'a>(history: &'a History, findings: &mut Findings) -> BTreeMap<(LeaseId, u64), Asked<'a>> {
    let mut all: BTreeMap<(LeaseId, u64), Asked<'a>> = BTreeMap::new();
    for call in &history.native {
        let NativeAsk::Command(NativeCommand::Request(request), _) = &call.ask else { continue };
        let (session, op) = (request.session, &request.op);
        let asked =
            all.entry((session, request.number)).or_insert(Asked { session, op, called: call.called, decided: None });
        let NativeTold::Decided { revision, index, result } = &call.told else { continue };
        match result {
            Err(NativeError::UnknownSession) => continue,
            Err(NativeError::RequestForgotten { .. } | NativeError::TooManyUnacknowledged) => {
                findings.add("H25", format_args!("request {} of session {:x}: {result:?}", request.number, session.0));
                continue;
            }
            _ => {}
        }
        let decided = (*revision, *index, *result);
        if let Some(first) = asked.decided.as_ref().filter(|first| **first != decided) {
            findings.add(
                "H25",
                format_args!(
                    "request {} of session {:x}, {op:?}, was answered {first:?} and {decided:?}",
                    request.number, session.0
                ),
            );
        }
        asked.decided.get_or_insert(decided);
    }
    all
}

/// Who asks again for a session gets the same one.
fn check_openings(history: &History, findings: &mut Findings) {
    let (mut by_client, mut by_session) = (BTreeMap::new(), BTreeMap::new());
    for call in &history.native {
        if let (
            NativeAsk::Command(NativeCommand::Open { .. }, myself),
            NativeTold::Decided { result: Ok(NativeAnswer::Opened { session, .. }), .. },
        ) = (&call.ask, &call.told)
        {
            let first = *by_client.entry(*myself).or_insert(*session);
            let owner = *by_session.entry(*session).or_insert(*myself);
            if first != *session || owner != *myself {
                findings.add(
                    "H25",
                    format_args!("session {:x} was opened for {myself:x}, which has {:x}", session.0, first.0),
                );
            }
        }
    }
}

/// Whether a request makes a member, if it succeeds.
fn makes_a_member(op: &NativeOp) -> bool {
    matches!(
        op,
        NativeOp::Acquire { .. }
            | NativeOp::Campaign { .. }
            | NativeOp::Enter { .. }
            | NativeOp::Pledge { .. }
            | NativeOp::Register { .. }
            | NativeOp::StartReading { .. }
            | NativeOp::Protect { .. }
    )
}

/// The number of the member an answer names.
fn member_made(answer: &NativeAnswer) -> u64 {
    match answer {
        NativeAnswer::Place { place, .. }
        | NativeAnswer::Entered { place, .. }
        | NativeAnswer::Protected { place, .. } => *place,
        NativeAnswer::Pledged { pledge } => *pledge,
        NativeAnswer::Registered { party, .. } => *party,
        NativeAnswer::Version { reader, .. } => *reader,
        _ => 0,
    }
}

/// A session has as many members of a name as it asked for: those it was told of, and one for each request whose fate
/// it does not know.
fn check_one_effect(history: &History, asked: &BTreeMap<(LeaseId, u64), Asked<'_>>, findings: &mut Findings) {
    let mut made: BTreeMap<(i64, Kind, Name), BTreeSet<u64>> = BTreeMap::new();
    for (revision, at) in &history.ledger.native {
        for change in &at.changes {
            if let (Slot::Member { number, .. }, Some(record)) = (change.slot, &change.became)
                && number == unsigned(*revision)
            {
                made.entry((record.session, change.kind, change.name.clone())).or_default().insert(number);
            }
        }
    }
    let mut open: BTreeMap<(i64, Kind, Name), usize> = BTreeMap::new();
    for asked in asked.values().filter(|asked| makes_a_member(asked.op)) {
        let (kind, name) = asked.op.subject();
        let of = (asked.session.0, kind, name.clone());
        match &asked.decided {
            Some((.., Ok(answer))) => {
                if let Some(made) = made.get_mut(&of) {
                    made.remove(&member_made(answer));
                }
            }
            Some((.., Err(_))) => {}
            None => *open.entry(of).or_default() += 1,
        }
    }
    for (of, left) in made {
        let open = open.get(&of).copied().unwrap_or(0);
        if left.len() > open {
            let (session, kind, name) = of;
            findings.add(
                "H25",
                format_args!("session {session:x} got {left:?} of {kind:?} {name} beyond what it asked for"),
            );
        }
    }
}

/// Every addition has a number of its own, so it is known by it: it counts once, if it was not refused. Blocks are
/// apart.
fn check_additions(history: &History, asked: &BTreeMap<(LeaseId, u64), Asked<'_>>, findings: &mut Findings) {
    let mut possible: BTreeMap<(&Name, i64), (Option<&Fencing>, bool)> = BTreeMap::new();
    // A counter that was forgotten begins anew.
    let forgotten = |name: &Name, by: u64| {
        let is_it = |change: &crate::history::NativeChange| {
            (change.kind, &change.name) == (Kind::Counter, name) && change.became.is_none()
        };
        let until = history.ledger.native.iter().take_while(|(revision, _)| unsigned(**revision) <= by);
        until.filter(|(_, at)| at.changes.iter().any(is_it)).count()
    };
    let mut blocks: Vec<(&Name, usize, i64, i64)> = Vec::new();
    for asked in asked.values() {
        let NativeOp::Add { name, delta, fencing } = asked.op else { continue };
        let refused = matches!(asked.decided, Some((.., Err(_))));
        possible.insert((name, *delta), (fencing.as_ref(), refused));
        if let Some((revision, _, Ok(NativeAnswer::Counter { before, after }))) = asked.decided {
            blocks.push((name, forgotten(name, revision), before, after));
        }
    }
    blocks.sort_unstable();
    for pair in blocks.windows(2) {
        let ((name, life, first, end), (other, next, begin, last)) = (pair[0], pair[1]);
        if (name, life) == (other, next) && begin < end {
            findings.add("R3", format_args!("counter {name}: {first}..{end} and {begin}..{last} were both given out"));
        }
    }
    let (mut things, mut counted) = (Things::default(), BTreeSet::new());
    for (revision, at) in &history.ledger.native {
        let highest: Vec<(Name, u64)> =
            things.of_kind(Kind::Fence).filter_map(|(name, thing)| Some((name.clone(), highest(thing)?))).collect();
        for change in &at.changes {
            let before = things.apply(change);
            let value = |stored: Option<&Stored>| match stored {
                Some(Stored::Counter { value }) => *value,
                _ => 0,
            };
            let is_known_by_its_steps = !matches!(change.name.as_str(), "compared" | "touched");
            if change.kind != Kind::Counter || !is_known_by_its_steps || change.became.is_none() {
                continue;
            }
            let (was, now) = (value(before.as_ref().and_then(stored)), value(change.became.as_ref().and_then(stored)));
            let (name, delta) = (&change.name, now.wrapping_sub(was));
            let Some((fencing, refused)) = possible.get(&(name, delta)) else {
                findings
                    .add("H25", format_args!("counter {name} went from {was} to {now} at {revision}; nobody asked"));
                continue;
            };
            if *refused || !counted.insert((name.clone(), delta)) {
                findings.add("H25", format_args!("counter {name}: {delta} was refused or counted before {revision}"));
            }
            let let_through = |fencing: &&Fencing| {
                !highest.iter().any(|(fence, highest)| *fence == fencing.fence && *highest > fencing.token)
            };
            if fencing.is_some_and(|fencing| !let_through(&fencing)) {
                findings
                    .add("K4", format_args!("counter {name}: {revision} added under {fencing:?}; fences: {highest:?}"));
            }
        }
    }
}

fn highest(thing: &Thing) -> Option<u64> {
    match thing.stored_head() {
        Some(Stored::Fence { highest }) => Some(*highest),
        _ => None,
    }
}

/// What is remembered of revisions passed: who got which token, and when a member went.
#[derive(Default)]
struct Passed {
    tokens: BTreeMap<(Kind, Name, u64), i64>,
    gone: BTreeMap<(Kind, Name, u64), u64>,
}

impl Passed {
    fn take(
        &mut self,
        revision: u64,
        change: &crate::history::NativeChange,
        things: &mut Things,
        findings: &mut Findings,
    ) {
        let before = things.apply(change);
        let (kind, name) = (change.kind, change.name.clone());
        match (change.slot, &change.became) {
            (Slot::Member { .. }, Some(record)) => {
                if let Some(token) = place(record).map(|place| place.token).filter(|token| *token != 0) {
                    self.tokens.insert((kind, name, token), record.session);
                }
            }
            (Slot::Member { number, .. }, None) => {
                self.gone.insert((kind, name, number), revision);
            }
            (Slot::Head, Some(record)) if kind == Kind::Fence => {
                let was = before.as_ref().and_then(stored);
                if let (Some(Stored::Fence { highest: was }), Some(Stored::Fence { highest })) = (was, stored(record))
                    && highest <= was
                {
                    findings.add("K4", format_args!("fence {name} went from {was} to {highest} at {revision}"));
                }
            }
            _ => {}
        }
    }
}

/// What is wrong about an answer.
type Flaw = (&'static str, String);

fn flaw<T>(id: &'static str, what: impl Into<String>) -> Result<T, Flaw> {
    Err((id, what.into()))
}

/// Judges an answer by the records as they were right after its revision.
fn judge(asked: &Asked<'_>, decided: &Decided, things: &Things, passed: &Passed, seen: u64) -> Result<(), Flaw> {
    let (revision, _, result) = decided;
    let (kind, name) = asked.op.subject();
    let thing = things.get(kind, name);
    judge_token(asked, result, thing, passed)?;
    let answer = match result {
        Ok(answer) => answer,
        Err(error) => return judge_error(error, asked.op, things),
    };
    if let Some((of, token)) = fencing(asked.op) {
        let now = fence(things, of);
        if now != token {
            return flaw("K4", format!("the fence was at {now}"));
        }
    }
    let made = member_made(answer);
    if made != 0 && makes_a_member(asked.op) && (made <= seen || made > *revision) {
        return flaw("R3", format!("revision {seen} had been there before it was asked"));
    }
    match (asked.op, answer) {
        (NativeOp::Acquire { .. } | NativeOp::Campaign { .. }, NativeAnswer::Place { place: number, token, ahead }) => {
            let own = thing.and_then(|thing| thing.members.get(&(*number, 0)));
            let before = thing.map_or(0, |thing| thing.members.range(..(*number, 0)).count() as u64);
            match own.and_then(|own| Some((own.session, place(own)?.token))) {
                Some(found) if found == (asked.session.0, *token) && before == *ahead => Ok(()),
                found => flaw("R3", format!("the ledger has {found:?} there, and {before} ahead")),
            }
        }
        (NativeOp::Enter { .. }, NativeAnswer::Entered { missing: 1.., .. }) => judge_barrier(answer, thing),
        (NativeOp::Leave { place, .. } | NativeOp::GiveUp { place, .. }, NativeAnswer::Leaving { .. }) => {
            match passed.gone.get(&(kind, name.clone(), *place)) {
                Some(_) => judge_barrier(answer, thing),
                None => flaw("B1", "it is still there"),
            }
        }
        (NativeOp::Protect { .. } | NativeOp::Retire { .. }, _) => judge_hazard(answer, thing),
        (NativeOp::CountDown { .. }, NativeAnswer::Latch { left }) => {
            let now = match thing.and_then(Thing::stored_tally) {
                Some(Stored::LatchCount { left, .. }) => *left,
                _ => 0,
            };
            if now == *left { Ok(()) } else { flaw("B1", format!("{now} were left")) }
        }
        (NativeOp::Add { .. } | NativeOp::CompareAndSet { .. }, NativeAnswer::Counter { after, .. }) => {
            let now = counter(thing);
            if now == *after { Ok(()) } else { flaw("R3", format!("it was {now}")) }
        }
        (NativeOp::Release { .. }, NativeAnswer::Left { token }) => {
            let held = passed.tokens.get(&(kind, name.clone(), *token)) == Some(&asked.session.0);
            let left = !thing.is_some_and(|thing| thing.places().any(|(.., place)| place.token == *token));
            if held && left { Ok(()) } else { flaw("K3", "that session did not hold it, or still does") }
        }
        (NativeOp::Forget { .. }, _) if thing.is_some_and(|thing| thing.head.is_some()) => {
            flaw("R3", "it is still there")
        }
        (NativeOp::Resize { permits, .. }, _) => match thing.and_then(Thing::stored_head) {
            Some(Stored::Semaphore(head)) if head.permits == *permits => Ok(()),
            other => flaw("R3", format!("the ledger has {other:?}")),
        },
        (NativeOp::GiveUp { place, .. }, _) => match passed.gone.get(&(kind, name.clone(), *place)) {
            Some(_) => Ok(()),
            None => flaw("R3", "it is still there"),
        },
        _ => Ok(()),
    }
}

fn gate(head: Option<&Stored>) -> Option<Gate> {
    match head {
        Some(Stored::Barrier(barrier)) => Some(barrier.gate),
        _ => None,
    }
}

/// How many are missing, or inside. Nothing is left of a meeting that the last one left.
fn judge_barrier(answer: &NativeAnswer, thing: Option<&Thing>) -> Result<(), Flaw> {
    let there = thing.map_or(0, |thing| thing.members.len() as u32);
    let head = thing.and_then(|thing| thing.head.as_ref());
    let meeting = head.and_then(|head| match stored(head) {
        Some(Stored::Barrier(barrier)) => Some((head.created, *barrier)),
        _ => None,
    });
    let fits = match (*answer, meeting) {
        (NativeAnswer::Entered { generation, missing, .. }, Some((created, barrier))) => {
            created == generation && barrier.gate == Gate::Shut && there + missing == barrier.expected
        }
        (NativeAnswer::Leaving { generation, inside: inside @ 1.. }, Some((created, barrier))) => {
            created == generation && barrier.gate == Gate::Open && there == inside
        }
        (NativeAnswer::Leaving { inside: 0, .. }, None) => there == 0,
        _ => false,
    };
    if fits { Ok(()) } else { flaw("B1", format!("there were {there} at {meeting:?}")) }
}

fn hazard(thing: Option<&Thing>) -> Option<(u64, HazardStage)> {
    match thing.and_then(Thing::stored_head) {
        Some(Stored::Hazard { epoch, stage }) => Some((*epoch, *stage)),
        _ => None,
    }
}

/// Who reads goes by the epoch it was told, and who deletes by whether nobody keeps it.
fn judge_hazard(answer: &NativeAnswer, thing: Option<&Thing>) -> Result<(), Flaw> {
    let now = hazard(thing);
    let fits = match *answer {
        NativeAnswer::Protected { place, epoch } => {
            let is_kept = thing.is_some_and(|thing| thing.members.contains_key(&(place, 0)));
            is_kept && now == Some((epoch, HazardStage::Alive))
        }
        NativeAnswer::Retired { epoch, clear: true } => now == Some((epoch, HazardStage::Retired)),
        NativeAnswer::Retired { epoch, clear: false } => now == Some((epoch, HazardStage::Retiring)),
        _ => false,
    };
    if fits { Ok(()) } else { flaw("U1", format!("the ledger has {now:?}")) }
}

/// A token is good for who holds it then, and for nobody else.
fn judge_token(
    asked: &Asked<'_>,
    result: &Result<NativeAnswer, NativeError>,
    thing: Option<&Thing>,
    passed: &Passed,
) -> Result<(), Flaw> {
    let (kind, name) = asked.op.subject();
    let token = match asked.op {
        NativeOp::Renew { token, .. }
        | NativeOp::Proclaim { token, .. }
        | NativeOp::Downgrade { token, .. }
        | NativeOp::Release { token, .. } => token,
        // The first is the one that its subject is about.
        NativeOp::Write(write) if kind.is_queue() => match write.guards() {
            [first, ..] => &first.token,
            [] => return Ok(()),
        },
        _ => return Ok(()),
    };
    let is_release = matches!(asked.op, NativeOp::Release { .. });
    let holds = thing.is_some_and(|thing| {
        thing.places().any(|(_, session, place)| session == asked.session.0 && place.token == *token)
    });
    let owner = passed.tokens.get(&(kind, name.clone(), *token));
    match result {
        Ok(_) if !is_release && !holds => flaw("K3", format!("session {owner:x?} had that token, if any")),
        Err(NativeError::StaleToken { .. } | NativeError::NotHolder { .. }) if holds => {
            flaw("K3", "that session held it")
        }
        _ => Ok(()),
    }
}

fn judge_error(error: &NativeError, op: &NativeOp, things: &Things) -> Result<(), Flaw> {
    let (kind, name) = op.subject();
    let thing = things.get(kind, name);
    match error {
        NativeError::Mismatch { actual } => {
            let now = counter(thing);
            if now == *actual { Ok(()) } else { flaw("R3", format!("it was {now}")) }
        }
        NativeError::Fenced { token, highest: told } => {
            let now = fencing(op).map_or(0, |(of, _)| fence(things, of));
            if now == *told && token < told { Ok(()) } else { flaw("K4", format!("the fence was at {now}")) }
        }
        NativeError::InUse if matches!(op, NativeOp::Forget { .. }) && user(things, kind, name).is_none() => {
            flaw("R3", "nobody used it")
        }
        NativeError::BarrierShut | NativeError::BarrierOpen => {
            let expected = if *error == NativeError::BarrierOpen { Gate::Open } else { Gate::Shut };
            let now = gate(thing.and_then(Thing::stored_head));
            if now == Some(expected) { Ok(()) } else { flaw("B1", format!("it was {now:?}")) }
        }
        NativeError::Retiring { epoch } => {
            let now = hazard(thing);
            let fits = now.is_some_and(|(at, stage)| at == *epoch && stage != HazardStage::Alive);
            if fits { Ok(()) } else { flaw("U1", format!("the ledger has {now:?}")) }
        }
        NativeError::Busy { .. } | NativeError::QueueFull { .. } => {
            let taken = thing.is_some_and(|thing| !thing.members.is_empty());
            if taken { Ok(()) } else { flaw("K5", "nobody was there") }
        }
        _ => Ok(()),
    }
}

/// To which fence a request shows a token, and which.
fn fencing(op: &NativeOp) -> Option<(&Name, u64)> {
    let fencing = match op {
        NativeOp::Add { fencing, .. } | NativeOp::CompareAndSet { fencing, .. } | NativeOp::Publish { fencing, .. } => {
            fencing.as_ref()?
        }
        NativeOp::Admit(fencing) => fencing,
        NativeOp::Write(write) => {
            let fence = write.guards().iter().find(|guard| guard.kind == Kind::Fence)?;
            return Some((&fence.name, fence.token));
        }
        _ => return None,
    };
    Some((&fencing.fence, fencing.token))
}

fn fence(things: &Things, name: &Name) -> u64 {
    things.get(Kind::Fence, name).and_then(highest).unwrap_or(0)
}

fn counter(thing: Option<&Thing>) -> i64 {
    match thing.and_then(Thing::stored_head) {
        Some(Stored::Counter { value }) => *value,
        _ => 0,
    }
}
