//! Random programs of several sessions, on the real primitives and on the naive ones.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use tidelock_model::native_records::{Gate, Stored};
use tidelock_model::{
    Command, Data, Fencing, Key, KeyRange, Kind, LeaseId, Mode, Name, NativeAnswer, NativeCommand, NativeError,
    NativeNotice, NativeOp, NativeRequest, OnDeath, Refusal, Revision, Wait,
};

use super::oracle::{Oracle, Waiter};
use super::testing::{Native, name};
use crate::State;
use crate::testing::{Machine, load, pages};

/// A request in the making: what it is about is looked up when its turn comes.
#[derive(Clone, Copy, Debug)]
struct Raw {
    which: u8,
    session: usize,
    /// Which of the names.
    at: usize,
    /// Which of the places there are.
    pick: usize,
    small: u32,
    flag: bool,
    /// Ask as the one whose place it is.
    as_owner: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Open,
    Close(usize),
    Expire(Vec<usize>),
    Ask(Raw),
    /// The last request comes again.
    AskAgain,
    Reload(usize),
    /// The past is forgotten.
    Compact,
}

/// Names of phasers: the second and third are part of the first, the fourth of the third.
const PHASERS: [(&str, Option<&str>); 4] = [("p", None), ("q", Some("p")), ("r", Some("p")), ("s", Some("r"))];
const NAMES: [&str; 2] = ["a", "b"];
const QUEUES: [Kind; 3] = [Kind::Lock, Kind::Election, Kind::Semaphore];

fn step(kinds: std::ops::Range<u8>) -> impl Strategy<Value = Step> {
    let raw = (kinds, any::<usize>(), any::<usize>(), any::<usize>(), 0u32..4, any::<bool>(), 0..8u8);
    let ask = raw.prop_map(|(which, session, at, pick, small, flag, as_owner)| {
        Step::Ask(Raw { which, session, at, pick, small, flag, as_owner: as_owner > 0 })
    });
    prop_oneof![
        3 => Just(Step::Open),
        1 => any::<usize>().prop_map(Step::Close),
        1 => vec(any::<usize>(), 0..4).prop_map(Step::Expire),
        40 => ask,
        2 => Just(Step::AskAgain),
        1 => (1usize..200).prop_map(Step::Reload),
        1 => Just(Step::Compact),
    ]
}

struct Run {
    native: Native,
    oracle: Oracle,
    /// Every session that ever was.
    sessions: Vec<LeaseId>,
    /// The greatest token ever given out for a name.
    greatest: BTreeMap<(Kind, Name), u64>,
    numbers: BTreeMap<LeaseId, u64>,
    last: Option<(NativeRequest, Result<NativeAnswer, NativeError>)>,
    /// What happened, and how often.
    reached: BTreeMap<&'static str, u64>,
}

/// A double barrier, which is made the same way each time.
fn doubled(shrinks: bool) -> Name {
    name(if shrinks { "double" } else { "strict" })
}

fn pick<T: Clone>(of: &[T], at: usize) -> Option<T> {
    of.get(at % of.len().max(1)).cloned()
}

impl Run {
    fn new() -> Run {
        let sessions = Vec::new();
        Run {
            native: Native::new(),
            oracle: Oracle::default(),
            sessions,
            greatest: BTreeMap::new(),
            numbers: BTreeMap::new(),
            last: None,
            reached: BTreeMap::new(),
        }
    }

    /// Mostly one that lives. Before there is any, one that never was.
    fn session(&self, at: usize) -> LeaseId {
        let live = self.oracle.sessions.iter().nth(at / 16 % self.oracle.sessions.len().max(1));
        let any = pick(&self.sessions, at / 16).unwrap_or(LeaseId(5));
        live.copied().filter(|_| !at.is_multiple_of(16)).unwrap_or(any)
    }

    /// A member of something, and who asks about it.
    fn member(&self, raw: Raw, members: &[(u64, LeaseId)]) -> (u64, LeaseId) {
        let (place, owner) = pick(members, raw.pick).unwrap_or((7, LeaseId(5)));
        (place, if raw.as_owner { owner } else { self.session(raw.session) })
    }

    fn waiter(&self, raw: Raw, kind: Kind, of: &Name) -> (Waiter, LeaseId) {
        let queue = self.oracle.queues.get(&(kind, of.clone())).cloned().unwrap_or_default();
        let nobody = Waiter { place: 7, session: LeaseId(5), mode: Mode::Shared, held: false, token: 7 };
        let waiter = pick(&queue, if raw.flag { 0 } else { raw.pick }).unwrap_or(nobody);
        let who = if raw.as_owner { waiter.session } else { self.session(raw.session) };
        (waiter, who)
    }

    fn queue_op(&self, raw: Raw) -> (LeaseId, NativeOp) {
        // A crowd at one name is what queues are for.
        let raw = match raw.which {
            15..=17 => Raw { which: 0, at: 0, small: 0, ..raw },
            18..=20 => Raw { which: 4, at: 0, small: 0, ..raw },
            21..=22 => Raw { which: 10, at: 0, ..raw },
            _ => raw,
        };
        let (session, of, kind) = (self.session(raw.session), name(NAMES[raw.at % 2]), QUEUES[raw.pick % 3]);
        let wait = [Wait::Queue(0), Wait::Queue(0), Wait::Queue(2), Wait::Try][raw.small as usize];
        let (waiter, owner) = self.waiter(raw, kind, &of);
        let data = Data::default();
        match raw.which {
            0..=1 => {
                let mode = if raw.flag { Mode::Shared } else { Mode::Exclusive };
                (session, NativeOp::Acquire { name: of, mode, permits: 0, wait, data })
            }
            2..=3 => {
                let (mode, permits) = (Mode::Permits(raw.small), if raw.flag { 0 } else { 3 });
                (session, NativeOp::Acquire { name: of, mode, permits, wait: Wait::Queue(0), data })
            }
            4 => (session, NativeOp::Campaign { name: of, wait, data }),
            5..=8 => (owner, NativeOp::Release { kind, name: of, token: waiter.token }),
            9 => (owner, NativeOp::GiveUp { kind, name: of, place: waiter.place }),
            10 => {
                let (leader, owner) = self.waiter(Raw { flag: true, ..raw }, Kind::Election, &of);
                let (next, _) = self.waiter(Raw { flag: false, ..raw }, Kind::Election, &of);
                (owner, NativeOp::Resign { name: of, token: leader.token, successor: next.session })
            }
            11 => {
                let (holder, owner) = self.waiter(raw, Kind::Lock, &of);
                (owner, NativeOp::Downgrade { name: of, token: holder.token })
            }
            12 => {
                let (leader, owner) = self.waiter(raw, Kind::Election, &of);
                (owner, NativeOp::Proclaim { name: of, token: leader.token, data })
            }
            13 => (owner, NativeOp::Renew { kind, name: of, token: waiter.token, ttl_ms: 0 }),
            _ => (session, NativeOp::Resize { name: of, permits: 1 + raw.small }),
        }
    }

    fn meeting_op(&self, raw: Raw) -> (LeaseId, NativeOp) {
        // Those of a double barrier, who must come and go in numbers.
        let raw = match raw.which {
            18..=20 => Raw { which: 0, at: 2 + raw.at % 2, pick: 1, ..raw },
            21..=23 => Raw { which: 3, ..raw },
            // Promises at the latch that breaks, and those that are not kept.
            25 => Raw { which: 6, at: 1, ..raw },
            26 => Raw { which: 8, at: 1, ..raw },
            _ => raw,
        };
        let (session, of) = (self.session(raw.session), name(NAMES[raw.at % 2]));
        // A name is mostly made the same way.
        let on_death = if raw.at.is_multiple_of(2) { OnDeath::Shrink } else { OnDeath::Break };
        let on_death = if raw.pick.is_multiple_of(16) { OnDeath::Break } else { on_death };
        let members = self.oracle.barriers.get(&of).map_or_else(Vec::new, |meeting| meeting.members.clone());
        let (place, owner) = self.member(raw, &members);
        let pledges = self.oracle.latches.get(&of).map_or_else(Vec::new, |latch| latch.pledges.clone());
        let (pledge, pledger) = self.member(raw, &pledges);
        match raw.which {
            0..=2 => {
                let double = raw.at % 4 > 1;
                let of = if double { doubled(on_death == OnDeath::Shrink) } else { of };
                (session, NativeOp::Enter { name: of, parties: 3, double, on_death })
            }
            3 => {
                let of = doubled(raw.at.is_multiple_of(2));
                let meeting = self.oracle.barriers.get(&of);
                let (place, owner) = self.member(raw, &meeting.map_or_else(Vec::new, |found| found.members.clone()));
                (owner, NativeOp::Leave { name: of, place })
            }
            4 => (owner, NativeOp::GiveUp { kind: Kind::Barrier, name: of, place }),
            5 => (session, NativeOp::SetLatch { name: of, count: u64::from(raw.small), on_death }),
            6 => (session, NativeOp::Pledge { name: of }),
            7 if raw.flag => (pledger, NativeOp::CountDown { name: of, by: 1, pledge }),
            7 => (session, NativeOp::CountDown { name: of, by: 1 + u64::from(raw.small), pledge: 0 }),
            8 => (pledger, NativeOp::GiveUp { kind: Kind::Latch, name: of, place: pledge }),
            9 => (session, NativeOp::Add { name: of, delta: i64::from(raw.small) - 1, fencing: None }),
            10 => {
                let token = (raw.pick as u64) % (self.native.machine.state.revision().0 + 2);
                (session, NativeOp::Admit(Fencing { fence: of, token }))
            }
            11 => (session, NativeOp::Publish { name: of, data: Data::default(), fencing: None }),
            12 => (session, NativeOp::StartReading { name: of }),
            13 | 14 => {
                let rcu = self.oracle.rcus.get(&of).cloned().unwrap_or_default();
                let readers: Vec<_> = rcu.readers.iter().map(|reader| (reader.0, reader.1)).collect();
                let (reader, owner) = self.member(raw, &readers);
                let versions = [rcu.version, rcu.version, rcu.oldest, rcu.version.saturating_sub(1)];
                match raw.which {
                    13 => (owner, NativeOp::Report { name: of, reader, version: versions[raw.small as usize] }),
                    _ => (owner, NativeOp::GiveUp { kind: Kind::Rcu, name: of, place: reader }),
                }
            }
            15 => (session, NativeOp::Protect { name: of }),
            16 => (session, NativeOp::Retire { name: of }),
            24 => (session, NativeOp::Forget { kind: Kind::Hazard, name: of }),
            _ => {
                let protectors = self.oracle.hazards.get(&of).map_or_else(Vec::new, |hazard| hazard.protectors.clone());
                let (place, owner) = self.member(raw, &protectors);
                (owner, NativeOp::GiveUp { kind: Kind::Hazard, name: of, place })
            }
        }
    }

    fn phaser_op(&self, raw: Raw) -> (LeaseId, NativeOp) {
        let (text, parent) = PHASERS[raw.at % PHASERS.len()];
        let of = name(text);
        let parties =
            self.oracle.phasers.get(&of).map_or_else(Vec::new, |phaser| {
                phaser.parties.iter().map(|party| (party.party, party.session)).collect()
            });
        let (party, owner) = self.member(raw, &parties);
        match raw.which {
            0..=1 => {
                // One of them breaks the tree when a party dies.
                let on_death = if text == "q" { OnDeath::Break } else { OnDeath::Shrink };
                let (parties, parent) = (1 + raw.small % 3, parent.map(name));
                (self.session(raw.session), NativeOp::Register { name: of, parties, parent, on_death })
            }
            2 => (owner, NativeOp::GiveUp { kind: Kind::Phaser, name: of, place: party }),
            3 => (owner, NativeOp::Arrive { name: of, party, count: raw.small % 3, deregister: true }),
            _ => (owner, NativeOp::Arrive { name: of, party, count: raw.small % 3, deregister: false }),
        }
    }

    fn step(&mut self, step: Step, build: fn(&Run, Raw) -> (LeaseId, NativeOp)) {
        self.oracle.told.clear();
        match step {
            Step::Open => {
                let session = self.native.open();
                assert!(!self.sessions.contains(&session), "an id is given out once (S2)");
                self.sessions.push(session);
                self.oracle.sessions.insert(session);
            }
            Step::Close(at) => {
                let session = self.session(at);
                // Also if it is over: a close that is asked again is told the same (H25).
                assert_eq!(self.native.close(session).is_ok(), self.sessions.contains(&session));
                self.oracle.end(&[session]);
            }
            Step::Expire(which) => {
                let sessions: Vec<LeaseId> = which.iter().map(|at| self.session(*at)).collect();
                let effects = self.native.expire(&sessions);
                let deleted = effects.events.iter().filter(|event| event.record.is_tombstone());
                let at: std::collections::BTreeSet<Revision> =
                    deleted.map(|event| event.record.meta().modified).collect();
                assert!(at.len() <= 1, "all that they held went at one revision (S1)");
                self.oracle.end(&sessions);
            }
            Step::Ask(raw) => {
                let (session, op) = build(self, raw);
                self.ask(session, op);
            }
            Step::AskAgain => self.ask_again(),
            Step::Reload(page) => self.reload(page),
            Step::Compact => {
                let revision = self.native.machine.state.revision();
                if revision > self.native.machine.state.compacted() {
                    self.native.entry(Command::Compact { revision });
                    self.native.machine.sweep_all();
                }
                self.native.told.clear();
            }
        }
        self.compare();
    }

    fn ask(&mut self, session: LeaseId, op: NativeOp) {
        let next = self.native.machine.state.revision().next().0;
        let number = self.numbers.entry(session).or_default();
        *number += 1;
        let request = NativeRequest { session, number: *number, acknowledged: *number - 1, op };
        let possible = self.oracle.ask(session, &request.op, next);
        let result = self.native.command(NativeCommand::Request(request.clone()));
        assert_eq!(result.is_ok(), possible, "{:?}: {result:?}", request.op);
        if result.is_err() {
            assert_eq!(self.native.machine.state.revision().next().0, next, "what is refused leaves no trace");
        }
        self.last = Some((request, result));
    }

    fn ask_again(&mut self) {
        let before = self.native.machine.state.revision();
        if let Some((request, first)) = self.last.clone() {
            let again = self.native.command(NativeCommand::Request(request.clone()));
            let is_over = !self.oracle.sessions.contains(&request.session);
            assert_eq!(again, if is_over { Err(NativeError::UnknownSession) } else { first });
        }
        self.native.told.clear();
        assert_eq!(self.native.machine.state.revision(), before, "no second effect (H25)");
    }

    fn reload(&mut self, page: usize) {
        let state = &self.native.machine.state;
        let head = state.begin_snapshot();
        let loaded = load(&head, pages(state, &head, page)).unwrap();
        assert_eq!(loaded.digest(), state.digest());
        // Deletions of places are not found by key, only in history: it must be whole.
        let all = KeyRange { start: Key::from_stored(&[]), end: Key::from_stored(&[u8::MAX]) };
        let told = |state: &State| state.events_page(&all, state.compacted(), usize::MAX, true).unwrap();
        assert_eq!(told(&loaded), told(state));
        self.native.machine.state = loaded;
        self.native.told.clear();
    }

    /// Whether the real primitives are as the naive ones, and whoever waits was told exactly what happened.
    fn compare(&mut self) {
        for notice in &self.native.told {
            *self.reached.entry(label(notice)).or_default() += 1;
        }
        self.compare_grants();
        let is_event = |notice: &&NativeNotice| match notice {
            NativeNotice::Granted { .. } | NativeNotice::Changed { .. } => false,
            NativeNotice::Gone { kind, place, .. } => *place == 0 || !kind.is_queue(),
            _ => true,
        };
        let mut told: Vec<String> = self.native.told.iter().filter(is_event).map(|told| format!("{told:?}")).collect();
        let mut expected: Vec<String> = self.oracle.told.iter().map(|told| format!("{told:?}")).collect();
        told.sort();
        expected.sort();
        assert_eq!(told, expected, "told once per cause");
        self.compare_queues();
        self.compare_meetings();
        self.compare_phasers();
        self.compare_versions();
        let state = &self.native.machine.state;
        assert_eq!(state.live_sum, state.recompute_live_sum());
    }

    /// K1, K2, K5: who was let in is who may be, once, in order, each with a token greater than all before.
    fn compare_grants(&mut self) {
        let mut granted: Vec<(Kind, Name, u64, LeaseId, u64)> = Vec::new();
        for notice in &self.native.told {
            if let NativeNotice::Granted { kind, name, place, session, token, .. } = notice {
                granted.push((*kind, name.clone(), *place, *session, *token));
            }
        }
        for ((kind, name), queue) in &mut self.oracle.queues {
            let mut told = granted.iter().filter(|told| (told.0, &told.1) == (*kind, name));
            for waiter in queue.iter_mut().filter(|waiter| waiter.held && waiter.token == 0) {
                let told = told.next().expect("whoever is let in is told");
                assert_eq!((told.2, told.3), (waiter.place, waiter.session), "in the order of the queue (K5)");
                let greatest = self.greatest.entry((*kind, name.clone())).or_default();
                assert!(told.4 > *greatest, "tokens only grow (K1) and have one holder (K2)");
                (*greatest, waiter.token) = (told.4, told.4);
            }
            assert_eq!(told.next(), None, "nobody else is told");
        }
    }

    fn compare_queues(&self) {
        for (kind, text) in QUEUES.into_iter().flat_map(|kind| NAMES.map(|text| (kind, text))) {
            let found = self.native.describe(kind, text);
            let queue = self.oracle.queues.get(&(kind, name(text))).cloned().unwrap_or_default();
            let members = found.members.iter().map(|member| {
                let place = member.queued.clone().expect("a place");
                assert!(self.native.machine.state.has_lease(member.session), "a holder lives (K2)");
                let (mode, token) = (place.mode, place.token);
                Waiter { place: member.place, session: member.session, mode, held: token > 0, token }
            });
            let members: Vec<Waiter> = members.collect();
            assert_eq!(members, queue);
            assert!(members.is_sorted_by_key(|waiter| !waiter.held), "holders are first");
            let tokens: Vec<u64> = members.iter().filter(|waiter| waiter.held).map(|waiter| waiter.token).collect();
            assert!(tokens.is_sorted_by(|one, next| one < next));
            if kind == Kind::Election {
                assert!(tokens.len() <= 1, "one leader (E1)");
            }
            if let Some(Stored::Semaphore(head)) = found.head {
                let weights = members.iter().filter(|waiter| waiter.held).map(|waiter| match waiter.mode {
                    Mode::Permits(weight) => u64::from(weight),
                    _ => 0,
                });
                assert_eq!(head.used, weights.sum::<u64>());
                assert_eq!(Some(&head.permits), self.oracle.permits.get(&name(text)));
            }
        }
    }

    fn compare_meetings(&self) {
        let members = |kind, text| -> Vec<(u64, LeaseId)> {
            let found = self.native.describe(kind, text).members;
            found.iter().map(|member| (member.place, member.session)).collect()
        };
        for text in ["a", "b", "double", "strict"] {
            let (of, head) = (name(text), self.native.describe(Kind::Barrier, text).head);
            let meeting = self.oracle.barriers.get(&of);
            assert_eq!(members(Kind::Barrier, text), meeting.map_or_else(Vec::new, |found| found.members.clone()));
            match (head, meeting) {
                (Some(Stored::Barrier(head)), Some(meeting)) => {
                    assert_eq!((head.expected, head.gate == Gate::Open), (meeting.expected, meeting.open));
                }
                (head, meeting) => assert!(head.is_none() && meeting.is_none(), "{head:?} {meeting:?}"),
            }
            let latch = self.oracle.latches.get(&of);
            assert_eq!(members(Kind::Latch, text), latch.map_or_else(Vec::new, |latch| latch.pledges.clone()));
            let found = self.native.describe(Kind::Latch, text);
            if let (Some(Stored::Latch { gate, .. }), Some(latch)) = (found.head, latch) {
                let left = if let Some(Stored::LatchCount { left, .. }) = found.tally { left } else { 0 };
                assert_eq!((gate, left), (latch.gate, latch.left));
            }
            let counter = self.native.describe(Kind::Counter, text).head;
            let expected = self.oracle.counters.get(&of).map(|value| Stored::Counter { value: *value });
            assert_eq!(counter, expected);
            let fence = self.native.describe(Kind::Fence, text).head;
            assert_eq!(fence, self.oracle.fences.get(&of).map(|highest| Stored::Fence { highest: *highest }));
            let hazard = self.oracle.hazards.get(&of);
            assert_eq!(members(Kind::Hazard, text), hazard.map_or_else(Vec::new, |hazard| hazard.protectors.clone()));
            let expected = hazard.map(|hazard| Stored::Hazard { epoch: hazard.epoch, stage: hazard.stage });
            assert_eq!(self.native.describe(Kind::Hazard, text).head, expected);
        }
    }

    /// P1: parties, arrivals and the phase are what they should be, and nothing that is done is waited for.
    fn compare_phasers(&self) {
        for (text, _) in PHASERS {
            let (of, found) = (name(text), self.native.describe(Kind::Phaser, text));
            let Some(phaser) = self.oracle.phasers.get(&of) else {
                assert_eq!(found.head, None);
                continue;
            };
            let Some(Stored::Phaser(head)) = found.head else { panic!("no phaser {text}") };
            assert_eq!((head.phase, head.broken), (phaser.phase, phaser.broken));
            let root = self.native.describe(Kind::Phaser, "p").head;
            let Some(Stored::Phaser(root)) = root else { panic!("no root") };
            let parties = found.members.iter().map(|member| match member.parties {
                Some(Stored::Party { parties, arrived, phase }) => {
                    (member.place, member.session, parties, if phase == root.phase { arrived } else { 0 })
                }
                _ => panic!("not a party"),
            });
            let expected =
                phaser.parties.iter().map(|found| (found.party, found.session, found.parties, found.arrived));
            assert_eq!(parties.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
            if let Some(Stored::PhaserTally(tally)) = found.tally {
                let tally = tally.in_phase(root.phase);
                let is_done = self.oracle.is_done(&of);
                assert_eq!((tally.registered > 0, tally.is_complete()), (self.oracle.is_active(&of), is_done));
            }
            assert!(phaser.broken || text != "p" || !self.oracle.is_done(&of), "a phase that can end has ended");
        }
    }

    fn compare_versions(&self) {
        for text in NAMES {
            let found = self.native.describe(Kind::Rcu, text);
            let rcu = self.oracle.rcus.get(&name(text)).cloned();
            let head = rcu.as_ref().map(|rcu| Stored::Rcu { version: rcu.version, oldest: rcu.oldest });
            assert_eq!(found.head, head);
            let mut readers: Vec<_> =
                found.members.iter().map(|found| (found.place, found.session, found.version)).collect();
            readers.sort_unstable();
            assert_eq!(readers, rcu.map_or_else(Vec::new, |rcu| rcu.readers));
        }
    }

    /// R5: the same log on another machine ends in the same state.
    fn finish(self) -> BTreeMap<&'static str, u64> {
        let mut twin = Machine::new();
        for command in self.native.log {
            twin.commands(vec![command]);
        }
        assert_eq!(twin.state.digest(), self.native.machine.state.digest());
        self.reached
    }
}

fn label(notice: &NativeNotice) -> &'static str {
    match notice {
        NativeNotice::Granted { moved_from: 1.., .. } => "followed by name",
        NativeNotice::Granted { place, token, .. } if place == token => "granted at once",
        NativeNotice::Granted { .. } => "let in",
        NativeNotice::Changed { .. } => "changed",
        NativeNotice::Gone { .. } => "gone",
        NativeNotice::Barrier { gate: Gate::Broken, .. } => "barrier broken",
        NativeNotice::Barrier { gate: Gate::Left, .. } => "barrier left",
        NativeNotice::Barrier { .. } => "barrier opened",
        NativeNotice::Latch { gate: Gate::Broken, .. } => "latch broken",
        NativeNotice::Latch { gate: Gate::Open, .. } => "latch opened",
        NativeNotice::Latch { .. } => "latch set",
        NativeNotice::Phase { broken: true, .. } => "phaser broken",
        NativeNotice::Phase { .. } => "phase ended",
        NativeNotice::Counter { .. } => "counted",
        NativeNotice::Fence { .. } => "fence raised",
        NativeNotice::Rcu { .. } => "version",
        NativeNotice::Hazard { clear: true, .. } => "cleared",
        NativeNotice::Hazard { .. } => "retiring",
    }
}

fn run(steps: Vec<Step>, build: fn(&Run, Raw) -> (LeaseId, NativeOp)) -> BTreeMap<&'static str, u64> {
    let mut run = Run::new();
    for _ in 0..3 {
        run.step(Step::Open, build);
    }
    steps.into_iter().for_each(|step| run.step(step, build));
    run.finish()
}

/// Programs that never get anywhere prove nothing: each kind of thing must happen often among a few hundred of them.
#[test]
fn the_programs_reach_everything() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    type Build = fn(&Run, Raw) -> (LeaseId, NativeOp);
    let mut runner = TestRunner::deterministic();
    let mut reached: BTreeMap<&'static str, u64> = BTreeMap::new();
    let programs: [(u8, Build); 3] = [(23, Run::queue_op), (27, Run::meeting_op), (9, Run::phaser_op)];
    for (kinds, build) in programs {
        for _ in 0..100 {
            let steps = vec(step(0..kinds), 80).new_tree(&mut runner).unwrap().current();
            run(steps, build).into_iter().for_each(|(what, times)| *reached.entry(what).or_default() += times);
        }
    }
    assert_eq!(reached.len(), 18, "{reached:?}");
    assert!(reached.values().all(|times| *times >= 20), "{reached:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Locks, elections and semaphores: K1, K2, K3, K5, E1, S1, S2 after every step of any program.
    #[test]
    fn k_e_s_queues_do_what_naive_queues_do(steps in vec(step(0..23), 1..80)) {
        drop(run(steps, Run::queue_op));
    }

    /// Barriers, latches, counters, fences, versions and hazards: B1, K4, U1, H1 after every step of any program.
    #[test]
    fn b_u_h_meetings_do_what_naive_meetings_do(steps in vec(step(0..27), 1..80)) {
        drop(run(steps, Run::meeting_op));
    }

    /// Trees of phasers: P1, P2 after every step of any program.
    #[test]
    fn p_phasers_do_what_naive_phasers_do(steps in vec(step(0..9), 1..80)) {
        drop(run(steps, Run::phaser_op));
    }
}

/// Whatever a committed request holds, the answer is an outcome (Z1): names and places that fit nothing.
#[test]
fn z1_requests_about_nothing_are_refused() {
    let mut native = Native::new();
    let session = native.open();
    for kind in Kind::ALL {
        for number in [0, 1, u64::MAX] {
            let give_up = NativeOp::GiveUp { kind, name: name("x"), place: number };
            assert_eq!(native.ask(session, give_up), Err(NativeError::NoSuchPlace { place: number }));
            assert!(native.ask(session, NativeOp::Release { kind, name: name("x"), token: number }).is_err());
        }
        assert!(native.ask(session, NativeOp::Forget { kind, name: name("x") }).is_err());
        assert_eq!(native.describe(kind, "x").count, 0);
    }
    let stranger = Command::Native(NativeCommand::Close { session: LeaseId(i64::MAX) });
    let refused = native.machine.command(stranger).result;
    assert_eq!(refused, Err(Refusal::Native(NativeError::UnknownSession)));
}
