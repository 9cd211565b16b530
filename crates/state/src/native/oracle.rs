//! The primitives again, as simply as they can be said: vectors, looked through from the front every time.

mod phasers;

use std::collections::{BTreeMap, BTreeSet};

use tidelock_model::native_records::{Gate, HazardStage};
use tidelock_model::{Kind, LeaseId, Mode, Name, NativeNotice, NativeOp, OnDeath, Wait};

use self::phasers::Phaser;

/// A place in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) place: u64,
    pub(super) session: LeaseId,
    pub(super) mode: Mode,
    pub(super) held: bool,
    /// Learnt from the real thing; zero until then.
    pub(super) token: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Meeting {
    generation: u64,
    made: (u32, bool, OnDeath),
    pub(super) expected: u32,
    pub(super) open: bool,
    pub(super) members: Vec<(u64, LeaseId)>,
}

#[derive(Clone, Debug)]
pub(super) struct Latch {
    on_death: OnDeath,
    pub(super) gate: Gate,
    pub(super) left: u64,
    pub(super) pledges: Vec<(u64, LeaseId)>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Rcu {
    pub(super) version: u64,
    pub(super) oldest: u64,
    /// Reader, session, version.
    pub(super) readers: Vec<(u64, LeaseId, u64)>,
}

#[derive(Clone, Debug)]
pub(super) struct Hazard {
    pub(super) epoch: u64,
    pub(super) stage: HazardStage,
    pub(super) protectors: Vec<(u64, LeaseId)>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Oracle {
    pub(super) sessions: BTreeSet<LeaseId>,
    pub(super) queues: BTreeMap<(Kind, Name), Vec<Waiter>>,
    pub(super) permits: BTreeMap<Name, u32>,
    pub(super) barriers: BTreeMap<Name, Meeting>,
    pub(super) latches: BTreeMap<Name, Latch>,
    pub(super) phasers: BTreeMap<Name, Phaser>,
    pub(super) counters: BTreeMap<Name, i64>,
    pub(super) fences: BTreeMap<Name, u64>,
    pub(super) rcus: BTreeMap<Name, Rcu>,
    pub(super) hazards: BTreeMap<Name, Hazard>,
    /// What somebody waits for and happened since this was last emptied; grants apart.
    pub(super) told: Vec<NativeNotice>,
}

impl Oracle {
    /// Lets in from the front whoever may be.
    fn settle_queues(&mut self) {
        for ((kind, name), queue) in &mut self.queues {
            let permits = self.permits.get(name).copied().filter(|_| *kind == Kind::Semaphore);
            while let Some(at) = queue.iter().position(|waiter| !waiter.held) {
                let (before, mode) = (&queue[..at], queue[at].mode);
                let used: u64 = queue.iter().filter(|waiter| waiter.held).map(|waiter| weight(waiter.mode)).sum();
                let may = match mode {
                    Mode::Exclusive => before.is_empty(),
                    Mode::Shared => before.iter().all(|waiter| waiter.mode == Mode::Shared),
                    Mode::Permits(weight) => {
                        permits.is_some_and(|all| used + u64::from(weight.min(all)) <= u64::from(all))
                    }
                };
                if !may {
                    break;
                }
                queue[at].held = true;
            }
        }
    }

    fn tell_barrier(&mut self, name: &Name, generation: u64, gate: Gate) {
        self.told.push(NativeNotice::Barrier { name: name.clone(), generation, gate });
    }

    fn tell_latch(&mut self, name: &Name, gate: Gate) {
        self.told.push(NativeNotice::Latch { name: name.clone(), gate });
    }

    /// Carries a request out that may take `next` as its revision; says whether it is possible.
    pub(super) fn ask(&mut self, session: LeaseId, op: &NativeOp, next: u64) -> bool {
        let before = self.clone();
        let done = self.sessions.contains(&session) && self.attempt(session, op, next);
        if !done {
            *self = before;
        }
        done
    }

    fn attempt(&mut self, session: LeaseId, op: &NativeOp, next: u64) -> bool {
        match op {
            NativeOp::Acquire { name, mode, permits, wait, .. } => {
                let Mode::Permits(weight) = mode else {
                    return self.enqueue(session, Kind::Lock, name, *mode, *wait, next);
                };
                if *permits == 0 && !self.permits.contains_key(name) {
                    return false;
                }
                let all = *self.permits.entry(name.clone()).or_insert(*permits);
                let agrees = *permits == 0 || *permits == all;
                let fits = (1..=all).contains(weight);
                agrees && fits && self.enqueue(session, Kind::Semaphore, name, *mode, *wait, next)
            }
            NativeOp::Campaign { name, wait, .. } => {
                self.enqueue(session, Kind::Election, name, Mode::Exclusive, *wait, next)
            }
            NativeOp::Release { kind, name, token } => {
                self.leave_queue(session, *kind, name, |waiter| waiter.held && waiter.token == *token)
            }
            NativeOp::GiveUp { kind, name, place } if kind.is_queue() => {
                self.leave_queue(session, *kind, name, |waiter| waiter.place == *place)
            }
            NativeOp::GiveUp { kind, name, place } => self.give_up(session, *kind, name, *place),
            NativeOp::Resign { name, token, successor } => self.resign(session, name, *token, *successor),
            NativeOp::Downgrade { name, token } => {
                let Some(held) = self.held(session, Kind::Lock, name, *token) else { return false };
                held.mode = Mode::Shared;
                self.settle_queues();
                true
            }
            NativeOp::Proclaim { name, token, .. } => self.held(session, Kind::Election, name, *token).is_some(),
            NativeOp::Renew { kind, name, token, .. } => self.held(session, *kind, name, *token).is_some(),
            NativeOp::Resize { name, permits } => {
                self.permits.insert(name.clone(), *permits);
                self.settle_queues();
                true
            }
            NativeOp::Enter { name, parties, double, on_death } => {
                self.enter(session, name, (*parties, *double, *on_death), next)
            }
            NativeOp::Leave { name, place } => {
                self.barriers.get(name).is_some_and(|meeting| meeting.open) && self.leave(session, name, *place)
            }
            NativeOp::SetLatch { name, count, on_death } => {
                if self.latches.get(name).is_some_and(|latch| latch.gate == Gate::Shut) {
                    return false;
                }
                let gate = if *count == 0 { Gate::Open } else { Gate::Shut };
                self.tell_latch(name, gate);
                let latch = Latch { on_death: *on_death, gate, left: *count, pledges: vec![] };
                self.latches.insert(name.clone(), latch);
                true
            }
            NativeOp::Pledge { name } => {
                let Some(latch) = self.latches.get_mut(name).filter(|latch| latch.gate == Gate::Shut) else {
                    return false;
                };
                latch.pledges.push((next, session));
                true
            }
            NativeOp::CountDown { name, by, pledge } => self.count_down(session, name, *by, *pledge),
            NativeOp::Register { name, parties, parent, on_death } => {
                self.register(session, name, *parties, parent.as_ref(), *on_death, next)
            }
            NativeOp::Arrive { name, party, count, deregister } => {
                self.arrive(session, name, *party, *count, *deregister)
            }
            _ => self.attempt_alone(session, op, next),
        }
    }

    /// What needs no others to come to something.
    fn attempt_alone(&mut self, session: LeaseId, op: &NativeOp, next: u64) -> bool {
        match op {
            NativeOp::Add { name, delta, .. } => {
                let counter = self.counters.entry(name.clone()).or_insert(i64::MIN);
                let before = if *counter == i64::MIN { 0 } else { *counter };
                let is_told = *counter == i64::MIN || *delta != 0;
                *counter = before + delta;
                if is_told {
                    self.told.push(NativeNotice::Counter { name: name.clone(), value: before + delta });
                }
                true
            }
            NativeOp::Admit(fencing) => {
                let highest = self.fences.get(&fencing.fence).copied().unwrap_or(0);
                if fencing.token == 0 || fencing.token >= next || fencing.token < highest {
                    return false;
                }
                self.fences.insert(fencing.fence.clone(), fencing.token);
                if fencing.token > highest {
                    let (name, highest) = (fencing.fence.clone(), fencing.token);
                    self.told.push(NativeNotice::Fence { name, highest });
                }
                true
            }
            NativeOp::Publish { name, .. } => {
                let rcu = self.rcus.entry(name.clone()).or_default();
                (rcu.version, rcu.oldest) = (next, u64::MAX);
                self.settle_rcu(name);
                true
            }
            NativeOp::StartReading { name } => {
                let Some(rcu) = self.rcus.get_mut(name) else { return false };
                rcu.readers.push((next, session, rcu.version));
                true
            }
            NativeOp::Report { name, reader, version } => {
                let Some(rcu) = self.rcus.get_mut(name) else { return false };
                let most = rcu.version;
                let found = rcu.readers.iter_mut().find(|found| (found.0, found.1) == (*reader, session));
                let Some(found) = found.filter(|found| (found.2..=most).contains(version)) else { return false };
                found.2 = *version;
                self.settle_rcu(name);
                true
            }
            NativeOp::Protect { name } => {
                let hazard = self.hazard(name, next);
                hazard.protectors.push((next, session));
                hazard.stage == HazardStage::Alive
            }
            NativeOp::Retire { name } => {
                let hazard = self.hazard(name, next);
                if hazard.stage == HazardStage::Alive {
                    (hazard.epoch, hazard.stage) = (next, HazardStage::Retiring);
                    if hazard.protectors.is_empty() {
                        self.settle_hazard(name);
                    } else {
                        self.told.push(NativeNotice::Hazard { name: name.clone(), epoch: next, clear: false });
                    }
                }
                true
            }
            NativeOp::Forget { kind: Kind::Hazard, name } => {
                let (kind, session, of) = (Kind::Hazard, LeaseId::NONE, name.clone());
                self.told.push(NativeNotice::Gone { kind, name: of, place: 0, session, token: 0 });
                self.hazards.remove(name).is_some_and(|hazard| hazard.protectors.is_empty())
            }
            _ => unreachable!("not in these programs"),
        }
    }

    fn held(&mut self, session: LeaseId, kind: Kind, name: &Name, token: u64) -> Option<&mut Waiter> {
        let queue = self.queues.get_mut(&(kind, name.clone()))?;
        queue.iter_mut().find(|waiter| waiter.held && waiter.session == session && waiter.token == token)
    }

    fn enqueue(&mut self, session: LeaseId, kind: Kind, name: &Name, mode: Mode, wait: Wait, place: u64) -> bool {
        let queue = self.queues.entry((kind, name.clone())).or_default();
        let ahead = queue.len();
        queue.push(Waiter { place, session, mode, held: false, token: 0 });
        self.settle_queues();
        let held = self.queues[&(kind, name.clone())][ahead].held;
        match wait {
            Wait::Try => held,
            Wait::Queue(most) => held || most == 0 || ahead < most as usize,
        }
    }

    fn leave_queue(&mut self, session: LeaseId, kind: Kind, name: &Name, is_meant: impl Fn(&Waiter) -> bool) -> bool {
        let Some(queue) = self.queues.get_mut(&(kind, name.clone())) else { return false };
        let Some(at) = queue.iter().position(|waiter| waiter.session == session && is_meant(waiter)) else {
            return false;
        };
        queue.remove(at);
        self.settle_queues();
        true
    }

    fn resign(&mut self, session: LeaseId, name: &Name, token: u64, successor: LeaseId) -> bool {
        if self.held(session, Kind::Election, name, token).is_none() {
            return false;
        }
        let Some(queue) = self.queues.get_mut(&(Kind::Election, name.clone())) else { return false };
        let Some(next) = queue.iter().position(|waiter| waiter.session == successor && !waiter.held) else {
            return false;
        };
        let next = queue.remove(next);
        queue[0] = Waiter { place: queue[0].place, ..next };
        self.settle_queues();
        true
    }

    fn enter(&mut self, session: LeaseId, name: &Name, made: (u32, bool, OnDeath), next: u64) -> bool {
        let new = Meeting { generation: next, made, expected: made.0, open: false, members: vec![] };
        let meeting = self.barriers.entry(name.clone()).or_insert(new);
        if meeting.made != made || meeting.open {
            return false;
        }
        meeting.members.push((next, session));
        self.settle_meeting(name);
        true
    }

    /// Opens a meeting that is complete, and removes one that is over.
    fn settle_meeting(&mut self, name: &Name) {
        let Some(meeting) = self.barriers.get_mut(name) else { return };
        let (generation, double) = (meeting.generation, meeting.made.1);
        if !meeting.open && !meeting.members.is_empty() && meeting.members.len() >= meeting.expected as usize {
            meeting.open = true;
            self.tell_barrier(name, generation, Gate::Open);
            if !double {
                self.barriers.remove(name);
            }
        } else if meeting.members.is_empty() {
            let was_open = meeting.open;
            self.barriers.remove(name);
            if was_open {
                self.tell_barrier(name, generation, Gate::Left);
            }
        }
    }

    fn leave(&mut self, session: LeaseId, name: &Name, place: u64) -> bool {
        let Some(meeting) = self.barriers.get_mut(name) else { return false };
        let Some(at) = meeting.members.iter().position(|member| *member == (place, session)) else { return false };
        meeting.members.remove(at);
        self.settle_meeting(name);
        true
    }

    /// Members went from a meeting that they had not left.
    fn lose(&mut self, name: &Name, is_gone: impl Fn(&(u64, LeaseId)) -> bool) -> bool {
        let Some(meeting) = self.barriers.get_mut(name) else { return false };
        let before = meeting.members.len();
        meeting.members.retain(|member| !is_gone(member));
        let gone = before - meeting.members.len();
        if gone == 0 {
            return false;
        }
        // Before it opens nobody is there who could be told.
        if meeting.made.2 == OnDeath::Break && (meeting.open || !meeting.members.is_empty()) {
            let generation = meeting.generation;
            self.barriers.remove(name);
            self.tell_barrier(name, generation, Gate::Broken);
            return true;
        }
        if !meeting.open {
            meeting.expected -= gone as u32;
        }
        self.settle_meeting(name);
        true
    }

    fn count_down(&mut self, session: LeaseId, name: &Name, by: u64, pledge: u64) -> bool {
        let Some(latch) = self.latches.get_mut(name) else { return false };
        match latch.gate {
            Gate::Broken => return false,
            Gate::Shut => {}
            _ => return true,
        }
        if pledge != 0 {
            let Some(at) = latch.pledges.iter().position(|found| *found == (pledge, session)) else { return false };
            latch.pledges.remove(at);
        }
        self.lower(name, by);
        by > 0
    }

    fn lower(&mut self, name: &Name, by: u64) {
        let Some(latch) = self.latches.get_mut(name) else { return };
        latch.left = latch.left.saturating_sub(by);
        if latch.left == 0 {
            latch.gate = Gate::Open;
            latch.pledges.clear();
            self.tell_latch(name, Gate::Open);
        }
    }

    fn lose_pledges(&mut self, name: &Name, is_gone: impl Fn(&(u64, LeaseId)) -> bool) -> bool {
        let Some(latch) = self.latches.get_mut(name) else { return false };
        let before = latch.pledges.len();
        latch.pledges.retain(|pledge| !is_gone(pledge));
        let gone = before - latch.pledges.len();
        if gone == 0 {
            return false;
        }
        if latch.on_death == OnDeath::Shrink {
            self.lower(name, gone as u64);
        } else {
            (latch.gate, latch.left) = (Gate::Broken, 0);
            latch.pledges.clear();
            self.tell_latch(name, Gate::Broken);
        }
        true
    }

    fn settle_rcu(&mut self, name: &Name) {
        let Some(rcu) = self.rcus.get_mut(name) else { return };
        let oldest = rcu.readers.iter().map(|reader| reader.2).min().unwrap_or(rcu.version);
        if rcu.oldest != oldest {
            rcu.oldest = oldest;
            let version = rcu.version;
            self.told.push(NativeNotice::Rcu { name: name.clone(), version, oldest });
        }
    }

    /// The object there is, or a new one.
    fn hazard(&mut self, name: &Name, next: u64) -> &mut Hazard {
        let new = Hazard { epoch: next, stage: HazardStage::Alive, protectors: vec![] };
        self.hazards.entry(name.clone()).or_insert(new)
    }

    fn settle_hazard(&mut self, name: &Name) {
        let Some(hazard) = self.hazards.get_mut(name) else { return };
        if hazard.stage == HazardStage::Retiring && hazard.protectors.is_empty() {
            hazard.stage = HazardStage::Retired;
            let epoch = hazard.epoch;
            self.told.push(NativeNotice::Hazard { name: name.clone(), epoch, clear: true });
        }
    }

    fn give_up(&mut self, session: LeaseId, kind: Kind, name: &Name, place: u64) -> bool {
        let is_meant = |found: &(u64, LeaseId)| *found == (place, session);
        match kind {
            Kind::Barrier if self.barriers.get(name).is_some_and(|meeting| meeting.open) => {
                self.leave(session, name, place)
            }
            Kind::Barrier => self.lose(name, is_meant),
            Kind::Latch => self.lose_pledges(name, is_meant),
            Kind::Phaser => self.lose_party(name, |party| is_meant(&(party.party, party.session))),
            Kind::Rcu => {
                let Some(rcu) = self.rcus.get_mut(name) else { return false };
                let before = rcu.readers.len();
                rcu.readers.retain(|reader| !is_meant(&(reader.0, reader.1)));
                let gone = rcu.readers.len() < before;
                self.settle_rcu(name);
                gone
            }
            Kind::Hazard => {
                let Some(hazard) = self.hazards.get_mut(name) else { return false };
                let before = hazard.protectors.len();
                hazard.protectors.retain(|protector| !is_meant(protector));
                let gone = hazard.protectors.len() < before;
                self.settle_hazard(name);
                gone
            }
            _ => false,
        }
    }

    /// All that these sessions had is gone at once.
    pub(super) fn end(&mut self, sessions: &[LeaseId]) {
        let dead: BTreeSet<LeaseId> = sessions.iter().copied().filter(|id| self.sessions.remove(id)).collect();
        let is_gone = |member: &(u64, LeaseId)| dead.contains(&member.1);
        self.queues.values_mut().for_each(|queue| queue.retain(|waiter| !dead.contains(&waiter.session)));
        self.settle_queues();
        for name in self.barriers.keys().cloned().collect::<Vec<_>>() {
            self.lose(&name, is_gone);
        }
        for name in self.latches.keys().cloned().collect::<Vec<_>>() {
            self.lose_pledges(&name, is_gone);
        }
        self.lose_dead_parties(&dead);
        for name in self.rcus.keys().cloned().collect::<Vec<_>>() {
            if let Some(rcu) = self.rcus.get_mut(&name) {
                rcu.readers.retain(|reader| !dead.contains(&reader.1));
            }
            self.settle_rcu(&name);
        }
        for name in self.hazards.keys().cloned().collect::<Vec<_>>() {
            if let Some(hazard) = self.hazards.get_mut(&name) {
                hazard.protectors.retain(|protector| !is_gone(protector));
            }
            self.settle_hazard(&name);
        }
    }
}

fn weight(mode: Mode) -> u64 {
    match mode {
        Mode::Permits(weight) => u64::from(weight),
        _ => 0,
    }
}
