//! S1, S2, S3, K3, L1, L2: native sessions own what they hold, exactly as long as they live.
//!
//! - when a session ends, all it holds vanishes at that revision, and nothing is put on it later (S1);
//! - what a session holds goes by its own request alone, or with it, or with the meeting it was for (K3);
//! - a request after the end is told that there is no such session, and never otherwise (S2); nobody is told so of one
//!   that lives (S3);
//! - a session nobody closed does not end before its time to live passed since the last acknowledged renewal was sent
//!   (L1), and once the faults are over not much later (L2).

use std::collections::{BTreeMap, BTreeSet};

use tidelock_model::native_keys::Slot;
use tidelock_model::native_records::{Barrier, Gate, Stored};
use tidelock_model::{Kind, LeaseId, Name, NativeAnswer, NativeCommand, NativeError, NativeOp, NativeRequest};

use super::leases::SECOND;
use super::native_replay::{Things, ends, place, stored, unsigned};
use super::prepared::At;
use super::{Findings, Prepared};
use crate::history::{
    History, Micros, NativeAsk, NativeCall, NativeChange, NativeRecord, NativeRevision, NativeTold, Observation, Stamp,
};

/// The longest time that nodes let a request wait.
const REQUEST_MAX: Micros = 7 * SECOND;

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let ends = ends(prepared.history);
    check_holdings(prepared.history, &ends, findings);
    let mut sessions = sessions(prepared.history);
    for (id, (ended, _)) in &ends {
        sessions.entry(*id).or_default().ended = Some(*ended);
    }
    for (id, session) in &sessions {
        check_told(*id, session, findings);
        check_not_early(prepared, *id, session, findings);
        check_not_late(prepared, *id, session, findings);
    }
}

/// What of a name a member is: its number, and the version it reads.
type Held = (Kind, Name, u64, u64);

fn check_holdings(history: &History, ends: &BTreeMap<i64, (Stamp, u64)>, findings: &mut Findings) {
    let leaving = Leaving::new(history);
    let (mut things, mut held) = (Things::default(), BTreeMap::<i64, BTreeSet<Held>>::new());
    let mut ending: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
    ends.iter().for_each(|(session, (_, revision))| ending.entry(*revision).or_default().push(*session));
    for (revision, at) in &history.ledger.native {
        let number_of = unsigned(*revision);
        for change in &at.changes {
            let before = things.apply(change);
            let Slot::Member { number, version } = change.slot else { continue };
            let what = (change.kind, change.name.clone(), number, version);
            if let Some(before) = &before {
                held.entry(before.session).or_default().remove(&what);
            }
            let Some(now) = &change.became else {
                if let Some(before) = before
                    && ends.get(&before.session).is_none_or(|(_, ended)| *ended != number_of)
                    && !leaving.explains(&before, change, at)
                {
                    findings.add(
                        "K3",
                        format_args!("{revision} took {what:?} from its session, which had not asked: {before:?}"),
                    );
                }
                continue;
            };
            if let Some((_, ended)) = ends.get(&now.session).filter(|(_, ended)| *ended <= number_of) {
                findings.add("S1", format_args!("{revision} put {what:?} on a session that ended at {ended}"));
            }
            held.entry(now.session).or_default().insert(what);
        }
        for session in ending.get(&number_of).into_iter().flatten() {
            check_let_go(*session, &held, *revision, findings);
        }
    }
    let last = history.ledger.native.last_key_value().map_or(0, |(revision, _)| *revision);
    ends.keys().for_each(|session| check_let_go(*session, &held, last, findings));
}

fn check_let_go(session: i64, held: &BTreeMap<i64, BTreeSet<Held>>, revision: i64, findings: &mut Findings) {
    if let Some(left) = held.get(&session).filter(|left| !left.is_empty()) {
        findings.add("S1", format_args!("session {session:x} was over at {revision} and still held {left:?}"));
    }
}

/// What sessions asked to give back, but for what was refused.
pub(super) struct Leaving {
    by_token: BTreeSet<(i64, Kind, Name, u64)>,
    by_number: BTreeSet<(i64, Kind, Name, u64)>,
}

impl Leaving {
    pub(super) fn new(history: &History) -> Leaving {
        let mut leaving = Leaving { by_token: BTreeSet::new(), by_number: BTreeSet::new() };
        let refused: BTreeSet<(LeaseId, u64)> = requests(history)
            // That the session is over says nothing of an earlier attempt under the same number.
            .filter(|(_, call)| {
                matches!(&call.told, NativeTold::Decided { result: Err(error), .. }
                    if *error != NativeError::UnknownSession)
            })
            .map(|(request, _)| (request.session, request.number))
            .collect();
        for (request, _) in requests(history) {
            let NativeRequest { session, number, op, .. } = request;
            if refused.contains(&(*session, *number)) {
                continue;
            }
            let (kind, name) = op.subject();
            match op {
                NativeOp::Release { token, .. } => {
                    leaving.by_token.insert((session.0, kind, name.clone(), *token));
                }
                NativeOp::GiveUp { place: number, .. }
                | NativeOp::Leave { place: number, .. }
                | NativeOp::CountDown { pledge: number, .. }
                | NativeOp::Arrive { party: number, deregister: true, .. }
                | NativeOp::Report { reader: number, .. } => {
                    leaving.by_number.insert((session.0, kind, name.clone(), *number));
                }
                _ => {}
            }
        }
        leaving
    }

    /// Whether the session asked to give back what is gone.
    pub(super) fn asked(&self, gone: &NativeRecord, change: &NativeChange) -> bool {
        let (kind, name) = (change.kind, &change.name);
        let Slot::Member { number, .. } = change.slot else { return false };
        let token = place(gone).map_or(0, |place| place.token);
        self.by_number.contains(&(gone.session, kind, name.clone(), number))
            || (token != 0 && self.by_token.contains(&(gone.session, kind, name.clone(), token)))
    }

    fn explains(&self, gone: &NativeRecord, change: &NativeChange, at: &NativeRevision) -> bool {
        let (kind, name) = (change.kind, &change.name);
        let Slot::Member { number, .. } = change.slot else { return true };
        let same = |other: &&NativeChange| (other.kind, &other.name) == (kind, name);
        let became = at.changes.iter().filter(same).filter_map(|other| other.became.as_ref());
        // A meeting that is over takes its members along; a successor leaves the place it waited at. When all have left
        // a double barrier nobody is there any more who could be taken along.
        self.asked(gone, change)
            || became.clone().filter_map(stored).any(|head| match head {
                Stored::Barrier(Barrier { gate: Gate::Open, double, .. }) => !double,
                Stored::Barrier(barrier) => barrier.gate == Gate::Broken,
                Stored::Latch { gate, .. } => *gate != Gate::Shut,
                _ => false,
            })
            || became
                .filter_map(|record| Some((record.session, place(record)?)))
                .any(|(session, moved)| kind == Kind::Election && session == gone.session && moved.moved_from == number)
    }
}

fn requests(history: &History) -> impl Iterator<Item = (&NativeRequest, &NativeCall)> {
    history.native.iter().filter_map(|call| match &call.ask {
        NativeAsk::Command(NativeCommand::Request(request), _) => Some((request, call)),
        _ => None,
    })
}

/// What is known of one session.
#[derive(Default)]
struct Session<'a> {
    ended: Option<Stamp>,
    calls: Vec<&'a NativeCall>,
    /// When the opening was first asked for that made it, and when it was answered.
    opened: Option<(Stamp, Stamp)>,
    /// Every time to live that it may have had, in milliseconds.
    ttls: Vec<u64>,
}

fn sessions(history: &History) -> BTreeMap<i64, Session<'_>> {
    let mut sessions: BTreeMap<i64, Session<'_>> = BTreeMap::new();
    let mut openings: BTreeMap<u64, Stamp> = BTreeMap::new();
    for call in &history.native {
        if let NativeAsk::Command(NativeCommand::Open { ttl_ms, .. }, myself) = &call.ask {
            let first = *openings.entry(*myself).or_insert(call.called);
            if let (NativeTold::Decided { result: Ok(NativeAnswer::Opened { session, .. }), .. }, Some(returned)) =
                (&call.told, call.returned)
            {
                let session = sessions.entry(session.0).or_default();
                session.opened.get_or_insert((first, returned));
                session.ttls.push(u64::from(*ttl_ms));
            }
        }
        let Some(id) = call.session() else { continue };
        let session = sessions.entry(id.0).or_default();
        session.calls.push(call);
        if let NativeAsk::Command(NativeCommand::Request(request), _) = &call.ask
            && let NativeOp::Renew { ttl_ms, .. } = request.op
            && ttl_ms != 0
        {
            session.ttls.push(u64::from(ttl_ms));
        }
    }
    sessions
}

fn check_told(id: i64, session: &Session<'_>, findings: &mut Findings) {
    for call in &session.calls {
        let Some(returned) = call.returned else { continue };
        let lives = match &call.told {
            // Succeeds whether it ended the session or came too late, so it tells nothing of whether the session lived.
            NativeTold::Decided { result: Ok(_), .. }
                if matches!(call.ask, NativeAsk::Command(NativeCommand::Close { .. }, _)) =>
            {
                continue;
            }
            NativeTold::Decided { result: Err(NativeError::UnknownSession), .. }
            | NativeTold::KeptAlive(false)
            | NativeTold::Attached(false) => false,
            NativeTold::Decided { .. } | NativeTold::KeptAlive(true) | NativeTold::Attached(true) => true,
            NativeTold::Refused(_) | NativeTold::Unknown(_) => continue,
        };
        let (called, told) = (At(call.called), &call.told);
        if lives && session.ended.is_some_and(|ended| ended.order < call.called.order) {
            findings
                .add("S2", format_args!("session {id:x} was over when {:?} was asked at {called}: {told:?}", call.ask));
        }
        if !lives && session.ended.is_none_or(|ended| ended.at > returned.at) {
            findings.add("S3", format_args!("session {id:x} was not over when {:?} was asked at {called}", call.ask));
        }
    }
}

/// When each renewal that was acknowledged was first asked for.
fn renewals<'a>(session: &'a Session<'_>) -> impl Iterator<Item = Stamp> + 'a {
    let first = |number: u64| {
        let number_of = |call: &NativeCall| match &call.ask {
            NativeAsk::Command(NativeCommand::Request(request), _) => request.number,
            _ => 0,
        };
        session.calls.iter().find(|call| number_of(call) == number).map(|call| call.called)
    };
    let acknowledged = session.calls.iter().filter_map(move |call| match (&call.ask, &call.told) {
        (NativeAsk::KeepAlive(_), NativeTold::KeptAlive(true)) => Some(call.called),
        (NativeAsk::Command(NativeCommand::Request(request), _), NativeTold::Decided { result: Ok(_), .. })
            if matches!(request.op, NativeOp::Renew { .. }) =>
        {
            first(request.number)
        }
        _ => None,
    });
    session.opened.map(|(asked, _)| asked).into_iter().chain(acknowledged)
}

fn check_not_early(prepared: &Prepared<'_>, id: i64, session: &Session<'_>, findings: &mut Findings) {
    let Some(ended) = session.ended else { return };
    let closes = |call: &&&NativeCall| matches!(call.ask, NativeAsk::Command(NativeCommand::Close { .. }, _));
    if session.calls.iter().filter(closes).any(|close| close.called.order < ended.order) {
        return;
    }
    let Some(ttl) = session.ttls.iter().map(|ttl| ttl.div_ceil(1_000)).min() else { return };
    let Some(since) = renewals(session).filter(|since| since.order < ended.order).max() else { return };
    let least = ttl * SECOND * 1_000 / (1_000 + prepared.history.bounds.clock_drift_permille);
    if ended.at < since.at + least {
        let (early, since, ended) = ((since.at + least - ended.at).div_ceil(1_000), At(since), At(ended));
        findings.add("L1", format_args!("session {id:x}, renewed at {since}, ended at {ended}, {early} ms too early"));
    }
}

fn check_not_late(prepared: &Prepared<'_>, id: i64, session: &Session<'_>, findings: &mut Findings) {
    let bounds = &prepared.history.bounds;
    let (Some(healed), Some(run_ended), Some((_, opened))) = (bounds.healed, bounds.ended, session.opened) else {
        return;
    };
    let until = session.ended.unwrap_or(run_ended);
    let leads = prepared.history.observations.iter().filter(|(_, seen)| matches!(seen, Observation::Leads { .. }));
    let led = leads.map(|(stamp, _)| stamp).filter(|stamp| stamp.order < until.order).map(|stamp| stamp.at).max();
    let mut heard = opened.at;
    // Who only wants to be told of the end does not put it off.
    let renews = |call: &&&NativeCall| !matches!(call.ask, NativeAsk::Attach(_));
    for call in session.calls.iter().filter(renews).filter(|call| call.called.order < until.order) {
        let Some(returned) = call.returned else { return };
        // What nobody was told of may still be done, as late as nodes let requests wait.
        let late = if matches!(call.told, NativeTold::Unknown(_)) { REQUEST_MAX } else { 0 };
        heard = heard.max((returned.at + late).min(until.at));
    }
    let since = healed.at.max(led.unwrap_or(0)).max(heard);
    let slow = 1_000_u64.saturating_sub(bounds.clock_drift_permille).max(1);
    let ttl = session.ttls.iter().map(|ttl| ttl.div_ceil(1_000)).max().unwrap_or(0) * SECOND * 1_000 / slow;
    let bound = ttl + 2 * bounds.election + SECOND * 3 / 2;
    if until.at > since + bound {
        let (over, until) = ((until.at - since - bound) / 1_000, At(until));
        findings.add("L2", format_args!("session {id:x} was there until {until}, {over} ms beyond its bound"));
    }
}
