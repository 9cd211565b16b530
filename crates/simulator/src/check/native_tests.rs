//! The checkers of native primitives on histories made by the real state machine, legal and damaged ones.

use tidelock_model::native_keys::Slot;
use tidelock_model::native_records::{Gate, HazardStage, Stored};
use tidelock_model::{
    Answer, Batch, Caller, Command, Compare, Data, Fencing, GuardedWrite, Key, KeyChange, KeyCondition, Kind, LeaseId,
    LogTime, Mode, Name, NativeAnswer, NativeCommand, NativeError, NativeNotice, NativeOp, NativeRequest, NodeId,
    OnDeath, Op, Origin, Proposal, PutLease, PutOp, PutValue, Refusal, Space, Term, TokenGuard, Txn, Wait,
};
use tidelock_state::{LeaseChange, State};

use super::all;
use crate::history::{
    self, Content, History, Micros, NativeAsk, NativeBelief, NativeCall, NativeChange, NativePush, NativeRevision,
    NativeTold, NativeValue, Observation, Operation, Request, Stamp, Told,
};
use crate::tap::{change as change_of, native_change};

const TTL_MS: u32 = 3_000;

pub(super) struct Maker {
    state: State,
    pub(super) history: History,
    order: u64,
    now: Micros,
    numbers: std::collections::BTreeMap<LeaseId, u64>,
}

pub(super) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

impl Maker {
    pub(super) fn new() -> Maker {
        let began = Stamp { order: 0, at: 0 };
        let push = NativePush { opened: Some((began, 1)), ..NativePush::new(NodeId(1), began) };
        let history = History { native_pushes: vec![push], ..History::default() };
        Maker { state: State::new(), history, order: 0, now: 0, numbers: Default::default() }
    }

    pub(super) fn stamp(&mut self) -> Stamp {
        self.order += 1;
        self.now += 1_000;
        Stamp { order: self.order, at: self.now }
    }

    fn apply(&mut self, command: Command) -> NativeTold {
        let index = self.state.applied().next();
        let origin = Origin { node: NodeId(1), boot: 1, number: index.0 };
        let proposal = Proposal { origin, request: None, caller: Caller::Internal, command };
        let effects = self.state.apply(index, Term(1), Batch { at: LogTime(index.0), proposals: vec![proposal] });
        let seen = self.stamp();
        for event in &effects.events {
            let modified = event.record.meta().modified;
            let changes = self.history.ledger.changes.entry(modified.0 as i64).or_default();
            if native_change(event).is_none() {
                changes.push(change_of(event));
                continue;
            }
            let empty = NativeRevision { index, seen, changes: vec![] };
            let at = self.history.ledger.native.entry(modified.0 as i64).or_insert(empty);
            at.changes.extend(native_change(event));
            if let Some(notice) = NativeNotice::of(event) {
                self.history.native_pushes[0].notices.push((seen, modified.0, notice));
            }
        }
        let revision = self.state.revision();
        for change in &effects.leases {
            let seen = self.stamp();
            let observation = match change {
                LeaseChange::Granted { id, ttl_s, .. } => {
                    Observation::LeaseGranted { lease: id.0, ttl_s: i64::from(*ttl_s) }
                }
                LeaseChange::Ended { id } => {
                    let ended = Observation::SessionEnded { node: NodeId(1), session: id.0, in_snapshot: false };
                    self.history.observations.push((seen, ended));
                    let told = self.stamp();
                    self.history.native_pushes[0].ended.push((told, *id));
                    Observation::LeaseEnded { lease: id.0, revision }
                }
                LeaseChange::Renewed { .. } => continue,
            };
            self.history.observations.push((seen, observation));
        }
        let outcome = effects.applied.into_iter().next().unwrap().outcome;
        let result = match outcome.result {
            Ok(Answer::Native(answer)) => Ok(answer),
            Err(Refusal::Native(error)) => Err(error),
            _ => return NativeTold::Refused("not native".into()),
        };
        NativeTold::Decided { revision: outcome.revision.0, index, result }
    }

    fn call(&mut self, client: u32, command: NativeCommand, myself: u64) -> Result<NativeAnswer, NativeError> {
        let called = self.stamp();
        let told = self.apply(Command::Native(command.clone()));
        let NativeTold::Decided { result, .. } = &told else { panic!("{told:?}") };
        let (result, returned) = (*result, Some(self.stamp()));
        let ask = NativeAsk::Command(command, myself);
        self.history.native.push(NativeCall { client, node: NodeId(1), called, returned, ask, told });
        result
    }

    pub(super) fn open(&mut self, client: u32) -> LeaseId {
        let opened = self.call(client, NativeCommand::Open { ttl_ms: TTL_MS, owner: String::new() }, u64::from(client));
        let Ok(NativeAnswer::Opened { session, .. }) = opened else { panic!("{opened:?}") };
        session
    }

    pub(super) fn ask(&mut self, session: LeaseId, op: NativeOp) -> Result<NativeAnswer, NativeError> {
        let number = self.numbers.entry(session).or_default();
        *number += 1;
        let request = NativeRequest { session, number: *number, acknowledged: *number - 1, op };
        self.call(1, NativeCommand::Request(request), 0)
    }

    pub(super) fn lock(&mut self, session: LeaseId, mode: Mode) -> (u64, u64) {
        let op = NativeOp::Acquire { name: name("l"), mode, permits: 0, wait: Wait::Queue(0), data: Data::default() };
        let Ok(NativeAnswer::Place { place, token, .. }) = self.ask(session, op) else { panic!() };
        (place, token)
    }

    fn release(&mut self, session: LeaseId, token: u64) {
        self.ask(session, NativeOp::Release { kind: Kind::Lock, name: name("l"), token }).unwrap();
    }

    /// Writes `fenced/l` by showing a token; whether that was let through.
    pub(super) fn write_fenced(&mut self, token: u64, value: &str) -> bool {
        let (key, value) = (Key::new(Space::User, b"fenced/l"), format!("{token}#{value}"));
        let put = PutOp {
            key,
            value: PutValue::Set(value.clone().into()),
            lease: PutLease::Set(LeaseId::NONE),
            want_previous: false,
        };
        let compares = vec![Compare::admits(&Fencing { fence: name("l"), token })];
        let txn = Txn { compares, success: vec![Op::Put(put)], failure: vec![] };
        let before = self.state.revision();
        let called = self.stamp();
        self.apply(Command::Write(Op::Txn(Box::new(txn))));
        let (revision, returned) = (self.state.revision(), Some(self.stamp()));
        let succeeded = revision > before;
        let answers = if succeeded { vec![Content::Put { previous: None }] } else { vec![] };
        let answer =
            history::Answer { revision: revision.0 as i64, term: 1, content: Content::Txn { succeeded, answers } };
        let request = Request::Txn {
            compares: vec![history::Compare::Admits("l".into(), token)],
            then: vec![history::Op::Put { key: "fenced/l".into(), value, lease: 0 }],
            otherwise: vec![],
        };
        let (client, node, result) = (1, NodeId(1), Told::Answer(answer));
        self.history.operations.push(Operation { client, node, called, returned, asker: None, request, result });
        succeeded
    }

    /// Writes `held/l` if the session holds the lock under this token, and it was last changed then.
    pub(super) fn write_held(
        &mut self,
        session: LeaseId,
        token: u64,
        value: &str,
        if_changed_at: Option<u64>,
    ) -> Result<NativeAnswer, NativeError> {
        let (key, value) = (Key::new(Space::User, b"held/l"), format!("{token}#{value}"));
        let guard = TokenGuard { kind: Kind::Lock, name: name("l"), token };
        let condition = if_changed_at.map(|modified| KeyCondition { key: key.clone(), modified });
        let change = KeyChange { key, value: Some(value.clone().into()) };
        let write = GuardedWrite::new(vec![guard], condition.into_iter().collect(), vec![change]).unwrap();
        let called = self.stamp();
        let result = self.ask(session, NativeOp::Write(write));
        let (revision, returned) = (self.state.revision().0 as i64, Some(self.stamp()));
        let content = Content::Written { done: result.is_ok() };
        let holds = history::Compare::Holds { session: session.0, kind: Kind::Lock, name: "l".into(), token };
        let expected = if_changed_at.map(|at| history::Compare::ModifiedAt("held/l".into(), at as i64));
        let request = Request::Txn {
            compares: std::iter::once(holds).chain(expected).collect(),
            then: vec![history::Op::Put { key: "held/l".into(), value, lease: 0 }],
            otherwise: vec![],
        };
        let told = Told::Answer(history::Answer { revision, term: 0, content });
        let (client, node) = (1, NodeId(1));
        self.history.operations.push(Operation { client, node, called, returned, asker: None, request, result: told });
        result
    }

    pub(super) fn end(&mut self, session: LeaseId) {
        self.now += Micros::from(TTL_MS) * 1_000;
        self.apply(Command::LeaseRevoke { id: session });
    }

    pub(super) fn done(mut self) -> History {
        self.now += 10_000_000;
        self.history.bounds.ended = Some(self.stamp());
        self.history
    }
}

pub(super) fn violations(history: &History) -> Vec<String> {
    let native = |checker: &str| checker.starts_with("native_");
    let found = all(history).into_iter().filter(|violation| native(violation.checker));
    found.map(|violation| format!("{} {}", violation.invariant, violation.checker)).collect()
}

pub(super) fn assert_found(history: &History, wanted: &str) {
    let found = violations(history);
    assert!(found.iter().any(|one| one == wanted), "{wanted} is not in {found:?}: {:#?}", all(history));
}

/// Three in line for a lock: the first releases, the second dies.
fn queue() -> Maker {
    let mut maker = Maker::new();
    let sessions: Vec<LeaseId> = (1..=3).map(|client| maker.open(client)).collect();
    let (_, token) = maker.lock(sessions[0], Mode::Exclusive);
    maker.lock(sessions[1], Mode::Exclusive);
    maker.lock(sessions[2], Mode::Shared);
    let renewed = NativeOp::Renew { kind: Kind::Lock, name: name("l"), token, ttl_ms: 0 };
    maker.ask(sessions[0], renewed).unwrap();
    maker.release(sessions[0], token);
    maker.end(sessions[1]);
    maker
}

/// A meeting of three, a latch, a tree of phasers, versions, a hazard, counters and a fence.
fn meetings() -> Maker {
    let mut maker = Maker::new();
    let sessions: Vec<LeaseId> = (1..=3).map(|client| maker.open(client)).collect();
    for session in &sessions {
        let op = NativeOp::Enter { name: name("b"), parties: 3, double: false, on_death: OnDeath::Shrink };
        maker.ask(*session, op).unwrap();
    }
    maker.ask(sessions[0], NativeOp::SetLatch { name: name("c"), count: 2, on_death: OnDeath::Shrink }).unwrap();
    maker.ask(sessions[0], NativeOp::CountDown { name: name("c"), by: 1, pledge: 0 }).unwrap();
    maker.ask(sessions[0], NativeOp::CountDown { name: name("c"), by: 1, pledge: 0 }).unwrap();
    let mut parties = Vec::new();
    for (session, of, parent) in [(sessions[0], "p", None), (sessions[1], "q", Some(name("p")))] {
        let op = NativeOp::Register { name: name(of), parties: 1, parent, on_death: OnDeath::Shrink };
        let Ok(NativeAnswer::Registered { party, .. }) = maker.ask(session, op) else { panic!() };
        parties.push((session, of, party));
    }
    for (session, of, party) in parties {
        maker.ask(session, NativeOp::Arrive { name: name(of), party, count: 0, deregister: false }).unwrap();
    }
    maker.ask(sessions[0], NativeOp::Publish { name: name("r"), data: Data::default(), fencing: None }).unwrap();
    maker.ask(sessions[1], NativeOp::StartReading { name: name("r") }).unwrap();
    maker.ask(sessions[0], NativeOp::Publish { name: name("r"), data: Data::default(), fencing: None }).unwrap();
    maker.ask(sessions[1], NativeOp::Protect { name: name("h") }).unwrap();
    maker.ask(sessions[0], NativeOp::Retire { name: name("h") }).unwrap();
    let fencing = Some(Fencing { fence: name("f"), token: 5 });
    maker.ask(sessions[0], NativeOp::Add { name: name("n"), delta: 11, fencing }).unwrap();
    maker.ask(sessions[0], NativeOp::Add { name: name("n"), delta: 12, fencing: None }).unwrap();
    maker
}

#[test]
fn legal_histories_of_native_primitives_pass() {
    assert_eq!(violations(&queue().done()), [] as [&str; 0]);
    assert_eq!(violations(&meetings().done()), [] as [&str; 0]);
}

fn change(history: &mut History, is_it: impl Fn(&NativeChange) -> bool) -> &mut NativeChange {
    let changes = history.ledger.native.values_mut().flat_map(|at| at.changes.iter_mut());
    changes.into_iter().find(|change| is_it(change)).expect("there is one")
}

fn set_place(change: &mut NativeChange, set: impl FnOnce(&mut tidelock_model::native_records::Place)) {
    let Some(NativeValue::Place(place)) = change.became.as_mut().map(|record| &mut record.value) else { panic!() };
    set(place);
}

/// Two clients would write at the same time, each with a token.
#[test]
fn k2_a_second_holder_is_caught() {
    let mut history = queue().done();
    let waiting = change(&mut history, is_waiting);
    let Slot::Member { number, .. } = waiting.slot else { panic!() };
    set_place(waiting, |place| place.token = number);
    assert_found(&history, "K2 native_queues");
}

fn is_waiting(change: &NativeChange) -> bool {
    matches!(change.became.as_ref().map(|record| &record.value), Some(NativeValue::Place(place)) if place.token == 0)
}

fn is_handed_over(change: &NativeChange) -> bool {
    let Slot::Member { number, .. } = change.slot else { return false };
    let value = change.became.as_ref().map(|record| &record.value);
    matches!(value, Some(NativeValue::Place(place)) if place.token > number)
}

/// A resource that remembers the highest token would refuse the rightful holder.
#[test]
fn k1_a_token_that_goes_back_is_caught() {
    let mut history = queue().done();
    set_place(change(&mut history, is_handed_over), |place| place.token = 2);
    assert_found(&history, "K1 native_queues");
}

/// Somebody waits for ever although the lock is free.
#[test]
fn k5_a_lost_wake_up_is_caught() {
    let mut history = queue().done();
    for at in history.ledger.native.values_mut() {
        at.changes.retain(|change| !is_handed_over(change));
    }
    assert_found(&history, "K5 native_queues");
}

/// Who came first is served last.
#[test]
fn k5_a_grant_out_of_order_is_caught() {
    let mut maker = Maker::new();
    let sessions: Vec<LeaseId> = (1..=3).map(|client| maker.open(client)).collect();
    let (_, token) = maker.lock(sessions[0], Mode::Exclusive);
    let (first, _) = maker.lock(sessions[1], Mode::Exclusive);
    let (second, _) = maker.lock(sessions[2], Mode::Exclusive);
    maker.release(sessions[0], token);
    let mut history = maker.done();
    let granted = change(&mut history, is_handed_over);
    assert_eq!(granted.slot, Slot::Member { number: first, version: 0 });
    granted.slot = Slot::Member { number: second, version: 0 };
    assert_found(&history, "K5 native_queues");
}

/// Ten thousand waiters would wake for each release.
#[test]
fn k5_a_herd_is_caught() {
    let mut history = queue().done();
    let waiting = change(&mut history, is_waiting).clone();
    let last = history.ledger.native.last_entry().unwrap();
    last.into_mut().changes.push(waiting);
    assert_found(&history, "K5 native_queues");
}

/// A client must be able to rely on its lock for as long as its session was renewed.
#[test]
fn k1_a_grant_while_another_believes_to_hold_is_caught() {
    let belief = |from: Micros, until: Micros, token: u64, session: LeaseId| NativeBelief {
        client: 1,
        session,
        kind: Kind::Lock,
        name: name("l"),
        mode: Mode::Exclusive,
        token,
        from,
        until,
    };
    let history = queue().done();
    let grants = super::native_replay::grants(&history);
    let (first, second) = (&grants[0], &grants[1]);
    let session = LeaseId(first.session);
    let held = belief(first.seen.at, second.seen.at, first.place.token, session);
    let mut right = history.clone();
    right.native_beliefs = vec![held.clone()];
    assert_eq!(violations(&right), [] as [&str; 0]);
    let mut wrong = history.clone();
    wrong.native_beliefs = vec![NativeBelief { until: second.seen.at + 1, ..held.clone() }];
    assert_found(&wrong, "K1 native_beliefs");
    wrong.native_beliefs = vec![NativeBelief { token: 77, ..held }];
    assert_found(&wrong, "K2 native_beliefs");
}

/// A grant that nobody hears of, or hears of twice.
#[test]
fn k5_a_notice_that_is_lost_or_told_twice_is_caught() {
    let mut history = queue().done();
    history.native_pushes[0]
        .notices
        .retain(|(_, revision, notice)| !matches!(notice, NativeNotice::Granted { place, .. } if place != revision));
    assert_found(&history, "K5 native_notices");
    let mut history = queue().done();
    let again = history.native_pushes[0].notices[0].clone();
    history.native_pushes[0].notices.insert(1, again);
    assert_found(&history, "K5 native_notices");
}

/// What a session held must go when it ends: nobody else can give it back.
#[test]
fn s1_something_that_outlives_its_session_is_caught() {
    let mut history = queue().done();
    let last = *history.ledger.native.keys().next_back().unwrap();
    let at = history.ledger.native.get_mut(&last).unwrap();
    at.changes.retain(|change| change.became.is_some());
    assert_found(&history, "S1 native_sessions");
}

/// A stranger released what another holds.
#[test]
fn k3_a_release_that_the_holder_did_not_ask_for_is_caught() {
    let mut history = queue().done();
    for call in &mut history.native {
        if let NativeAsk::Command(NativeCommand::Request(request), _) = &mut call.ask
            && matches!(request.op, NativeOp::Release { .. })
        {
            request.session = LeaseId(request.session.0 + (9 << 32));
        }
    }
    let found = violations(&history);
    assert!(found.contains(&"K3 native_sessions".to_string()), "{found:?}");
    assert!(found.contains(&"K3 native_answers".to_string()), "{found:?}");
}

#[test]
fn s2_s3_wrong_news_of_a_session_is_caught() {
    let mut history = queue().done();
    let asked = history.native.iter().rposition(|call| call.session().is_some()).unwrap();
    let NativeTold::Decided { result, .. } = &mut history.native[asked].told else { panic!() };
    *result = Err(NativeError::UnknownSession);
    assert_found(&history, "S3 native_sessions");
    let mut maker = queue();
    let ended = maker.history.observations.iter().rev().find_map(|(_, seen)| match seen {
        Observation::LeaseEnded { lease, .. } => Some(LeaseId(*lease)),
        _ => None,
    });
    let (called, returned) = (maker.stamp(), Some(maker.stamp()));
    let (ask, told) = (NativeAsk::KeepAlive(ended.unwrap()), NativeTold::KeptAlive(true));
    maker.history.native.push(NativeCall { client: 2, node: NodeId(1), called, returned, ask, told });
    assert_found(&maker.done(), "S2 native_sessions");
}

#[test]
fn l1_a_session_that_ends_early_is_caught() {
    let mut maker = Maker::new();
    let session = maker.open(1);
    maker.apply(Command::LeaseRevoke { id: session });
    assert_found(&maker.done(), "L1 native_sessions");
}

/// A retry must get the first answer.
#[test]
fn h25_a_second_answer_is_caught() {
    let mut history = queue().done();
    let mut again = history.native.last().unwrap().clone();
    let NativeTold::Decided { revision, .. } = &mut again.told else { panic!() };
    *revision += 1;
    history.native.push(again);
    assert_found(&history, "H25 native_answers");
}

/// A request that was carried out twice leaves a place that nobody knows of.
#[test]
fn h25_a_second_place_is_caught() {
    let mut history = queue().done();
    let acquired = history.native.iter().position(|call| match &call.ask {
        NativeAsk::Command(NativeCommand::Request(request), _) => matches!(request.op, NativeOp::Acquire { .. }),
        _ => false,
    });
    history.native.remove(acquired.unwrap());
    assert_found(&history, "H25 native_answers");
}

fn set_stored(change: &mut NativeChange, set: impl FnOnce(&mut Stored)) {
    let Some(NativeValue::Stored(stored)) = change.became.as_mut().map(|record| &mut record.value) else { panic!() };
    set(stored);
}

fn is_head(change: &NativeChange, kind: Kind, is_it: impl Fn(&Stored) -> bool) -> bool {
    let stored = match change.became.as_ref().map(|record| &record.value) {
        Some(NativeValue::Stored(stored)) => stored,
        _ => return false,
    };
    change.kind == kind && change.slot == Slot::Head && is_it(stored)
}

/// Who passed was not safe: the third had not come.
#[test]
fn b1_a_barrier_that_opens_early_is_caught() {
    let mut history = meetings().done();
    let came =
        change(&mut history, |change| change.kind == Kind::Barrier && matches!(change.slot, Slot::Member { .. }));
    let who = came.slot;
    for at in history.ledger.native.values_mut() {
        at.changes.retain(|change| change.kind != Kind::Barrier || change.slot != who);
    }
    assert_found(&history, "B1 native_barriers");
}

#[test]
fn b1_a_latch_that_opens_early_is_caught() {
    let mut history = meetings().done();
    for at in history.ledger.native.values_mut() {
        at.changes.retain(|change| {
            !matches!(
                change.became.as_ref().map(|record| &record.value),
                Some(NativeValue::Stored(Stored::LatchCount { left: 1, .. }))
            )
        });
    }
    assert_found(&history, "B1 native_meetings");
    let mut history = meetings().done();
    let opened = |change: &NativeChange| {
        is_head(change, Kind::Latch, |head| matches!(head, Stored::Latch { gate: Gate::Open, .. }))
    };
    for at in history.ledger.native.values_mut() {
        at.changes.retain(|change| !opened(change));
    }
    assert_found(&history, "B1 native_notices");
}

/// A party that has not arrived would be left behind.
#[test]
fn p1_a_phase_that_ends_without_a_child_is_caught() {
    let mut history = meetings().done();
    let arrived = |change: &NativeChange| {
        change.name == name("q")
            && matches!(
                change.became.as_ref().map(|record| &record.value),
                Some(NativeValue::Stored(Stored::Party { arrived: 1, .. }))
            )
    };
    for at in history.ledger.native.values_mut() {
        at.changes.retain(|change| !arrived(change));
    }
    assert_found(&history, "P1 native_meetings");
    let mut history = meetings().done();
    let ended = |change: &NativeChange| {
        is_head(change, Kind::Phaser, |head| matches!(head, Stored::Phaser(phaser) if phaser.phase > 0))
    };
    set_stored(change(&mut history, ended), |head| {
        let Stored::Phaser(phaser) = head else { panic!() };
        phaser.phase = 2;
    });
    assert_found(&history, "P1 native_meetings");
}

#[test]
fn u1_what_goes_too_early_is_caught() {
    let mut history = meetings().done();
    let retiring = |head: &Stored| matches!(head, Stored::Hazard { stage: HazardStage::Retiring, .. });
    let retired = |change: &NativeChange| is_head(change, Kind::Hazard, retiring);
    set_stored(change(&mut history, retired), |head| {
        let Stored::Hazard { stage, .. } = head else { panic!() };
        *stage = HazardStage::Retired;
    });
    assert_found(&history, "U1 native_meetings");
    let mut history = meetings().done();
    let published = |change: &NativeChange| {
        is_head(change, Kind::Rcu, |head| matches!(head, Stored::Rcu { version, oldest } if version != oldest))
    };
    set_stored(change(&mut history, published), |head| {
        let Stored::Rcu { version, oldest } = head else { panic!() };
        *oldest = *version;
    });
    assert_found(&history, "U1 native_meetings");
}

#[test]
fn k4_r3_fences_and_counters_that_lie_are_caught() {
    let mut history = meetings().done();
    let raised = |change: &NativeChange| is_head(change, Kind::Fence, |_| true);
    let fence = change(&mut history, raised).clone();
    let mut higher = fence.clone();
    set_stored(&mut higher, |head| *head = Stored::Fence { highest: 9 });
    let first = *history.ledger.native.keys().next().unwrap();
    history.ledger.native.get_mut(&first).unwrap().changes.push(higher);
    assert_found(&history, "K4 native_answers");
    let mut history = meetings().done();
    let last = history.native.last_mut().unwrap();
    let NativeTold::Decided { result: Ok(NativeAnswer::Counter { before, .. }), .. } = &mut last.told else { panic!() };
    *before -= 1;
    assert_found(&history, "R3 native_answers");
    let mut history = meetings().done();
    history.native.pop();
    assert_found(&history, "H25 native_answers");
}
