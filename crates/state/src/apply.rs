//! Carries out committed entries: the only way the state changes.
//!
//! Reads no clock, draws no random number, awaits nothing and cannot fail: "refused" is an outcome.
//! Only an entry out of order stops the node, since it means the log or the caller is broken (H1).
//! Every command decides first, on shared references, and changes then.

use tidelock_model::{
    Alarm, AlarmKind, Answer, Batch, Command, Event, Key, LeaseExpiry, LeaseId, LogIndex, MemberChange, Origin,
    Outcome, Proposal, Refusal, Term, ZnodeCommand,
};

use crate::State;
use crate::change::Revising;
use crate::lease::Lease;
use crate::native::RequestNumber;

/// What became of one proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Whom to answer.
    pub origin: Origin,
    /// The verdict.
    pub outcome: Outcome,
    /// A second copy of a proposal: nothing was done, the origin was answered by the first, and
    /// `outcome` says nothing about it.
    pub duplicate: bool,
}

/// What an entry did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// One per proposal, in order.
    pub applied: Vec<Applied>,
    /// Every change of a key, in order of revision and position. What each key was before is told as
    /// of before the revision, however often the revision changed it.
    pub events: Vec<Event>,
    /// Leases that came and went, in order, for the expiry clock.
    pub leases: Vec<LeaseChange>,
    /// Paths of znodes whose change broke a soft limit of a quota, and was made: for the log.
    pub over_quota: Vec<String>,
}

/// A lease came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// It exists from now on.
    Granted {
        /// Which.
        id: LeaseId,
        /// Its time to live in seconds.
        ttl_s: u32,
        /// Its incarnation.
        granted_at: LogIndex,
    },
    /// It goes on, for as long as this from now on.
    Renewed {
        /// Which.
        id: LeaseId,
        /// Its time to live in seconds.
        ttl_s: u32,
        /// Its incarnation.
        granted_at: LogIndex,
    },
    /// It is gone, revoked or expired.
    Ended {
        /// Which.
        id: LeaseId,
    },
}

impl State {
    /// Carries out the next entry.
    pub fn apply(&mut self, index: LogIndex, term: Term, batch: Batch) -> Effects {
        self.advance(index);
        // A new leader's clock may trail the old one's: log time then stands still until it catches up.
        self.clock = self.clock.max(batch.at);
        let count = batch.proposals.len();
        let mut effects =
            Effects { applied: Vec::with_capacity(count), events: Vec::with_capacity(count), ..Effects::default() };
        for proposal in batch.proposals {
            let applied = self.apply_proposal(term, proposal, &mut effects);
            effects.applied.push(applied);
        }
        effects
    }

    /// Passes over an entry that holds nothing, such as a new leader's first.
    pub fn apply_nothing(&mut self, index: LogIndex) {
        self.advance(index);
    }

    /// Passes over an entry that does not decode: the same on every replica, and it changes nothing.
    pub fn apply_unreadable(&mut self, index: LogIndex) {
        self.advance(index);
    }

    /// Carries out a change of who is in the cluster, and tells ZooKeeper's clients.
    pub fn apply_membership(&mut self, index: LogIndex, change: &MemberChange) -> Effects {
        self.advance(index);
        self.members.apply(change);
        let mut effects = Effects::default();
        self.refresh_config(&mut effects.events);
        effects
    }

    fn advance(&mut self, index: LogIndex) {
        assert_eq!(index, self.applied.next(), "entries apply once and in order");
        self.applied = index;
    }

    fn apply_proposal(&mut self, term: Term, proposal: Proposal, effects: &mut Effects) -> Applied {
        let Proposal { origin, request, caller, command } = proposal;
        if !self.requests.admit(origin, self.applied) && !tidelock_model::planted!(ResentProposalDoneTwice) {
            let result = Err(Refusal::CARRIED_OUT_ALREADY);
            let outcome = Outcome { revision: self.revision, index: self.applied, result };
            return Applied { origin, outcome, duplicate: true };
        }
        // Before an earlier answer is repeated, too: it may tell what the caller may not know any more.
        if let Err(refusal) = self.authorise(&caller, |needs| command.needs(needs))
            && !tidelock_model::planted!(ApplyAsksNobody)
        {
            let outcome = Outcome { revision: self.revision, index: self.applied, result: Err(refusal.into()) };
            return Applied { origin, outcome, duplicate: false };
        }
        if let Some(outcome) = request.and_then(|request| self.requests.remembered(request))
            && !self.tells_of_an_ended_session(outcome)
        {
            let outcome = self.unless_anothers_session(&caller, outcome.clone());
            return Applied { origin, outcome, duplicate: false };
        }
        let native = RequestNumber::of(&command, &mut self.scratch);
        if let Some(outcome) = native.and_then(|request| self.first_native_answer(request))
            && !tidelock_model::planted!(NativeRetryDoneTwice)
        {
            return Applied { origin, outcome, duplicate: false };
        }
        let result = self.apply_command(term, command, effects);
        let outcome = Outcome { revision: self.revision, index: self.applied, result };
        if let Some(request) = native {
            self.remember_native_answer(request, &outcome);
        }
        // What an alarm refused was not looked at, and may be asked again when it is over.
        let is_answer = !matches!(outcome.result, Err(Refusal::NoSpace | Refusal::Corrupt));
        if let Some(request) = request.filter(|_| is_answer) {
            self.requests.remember(request, outcome.clone());
        }
        Applied { origin, outcome, duplicate: false }
    }

    fn apply_command(&mut self, term: Term, command: Command, effects: &mut Effects) -> Result<Answer, Refusal> {
        self.check_alarms(&command)?;
        match command {
            Command::Write(op) => self.write(op, &mut effects.events).map(Answer::Op),
            Command::Compact { revision } => self.compact(revision).map(|()| Answer::Done),
            Command::LeaseGrant { id, ttl_s } => self.grant_lease(id, ttl_s, effects),
            Command::LeaseRevoke { id } => self.revoke_lease(id, effects),
            Command::LeaseExpire { term: proposed_in, leases } => {
                // A deposed leader's view of who renewed is worth nothing.
                if proposed_in != term && !tidelock_model::planted!(ExpiryByDeposedLeader) {
                    return Err(Refusal::TERM_IS_OVER);
                }
                self.expire_leases(&leases, effects);
                Ok(Answer::Done)
            }
            Command::PublishMember(member) => {
                self.members.publish(&member);
                self.refresh_config(&mut effects.events);
                Ok(Answer::Done)
            }
            Command::SetAlarm { alarm, raised } => self.set_alarm(alarm, raised),
            Command::Auth(command) => self.change_auth(command),
            Command::Znode(command) => self.change_znodes(command, effects),
            Command::Native(command) => self.change_native(command, effects),
        }
    }

    /// What alarms forbid. What the cluster does by itself, such as ending leases that ran out, goes on:
    /// a lease may end late, but not be held back without end.
    fn check_alarms(&self, command: &Command) -> Result<(), Refusal> {
        if self.alarms.is_empty() {
            return Ok(());
        }
        let changes_data = match command {
            Command::Write(_)
            | Command::Compact { .. }
            | Command::LeaseGrant { .. }
            | Command::LeaseRevoke { .. }
            | Command::Native(_) => true,
            Command::LeaseExpire { .. } | Command::PublishMember(_) | Command::SetAlarm { .. } | Command::Auth(_) => {
                false
            }
            // A client that comes back to its session changes none of its data.
            Command::Znode(command) => !matches!(command, ZnodeCommand::AttachSession { .. }),
        };
        if changes_data && self.alarms.any(AlarmKind::Corrupt) {
            return Err(Refusal::Corrupt);
        }
        if command.grows() && self.alarms.any(AlarmKind::NoSpace) {
            return Err(Refusal::NoSpace);
        }
        Ok(())
    }

    fn set_alarm(&mut self, alarm: Alarm, raised: bool) -> Result<Answer, Refusal> {
        if raised && self.alarms.is_full() && !self.alarms.contains(alarm) {
            return Err(Refusal::TOO_MANY_ALARMS);
        }
        Ok(Answer::AlarmSet { was_raised: self.alarms.set(alarm, raised) })
    }

    pub(crate) fn grant_lease(&mut self, id: LeaseId, ttl_s: u32, effects: &mut Effects) -> Result<Answer, Refusal> {
        if !id.is_some() {
            return Err(Refusal::LEASE_ID_ZERO);
        }
        if self.has_lease(id) {
            return Err(Refusal::LeaseExists);
        }
        let lease = Lease { ttl_s, granted_at: self.applied };
        self.leases.grant(id, lease);
        self.live_sum.add_lease(id, lease);
        effects.leases.push(LeaseChange::Granted { id, ttl_s, granted_at: lease.granted_at });
        Ok(Answer::LeaseGranted { id, ttl_s })
    }

    /// Grants a lease that exists anew: with another time to live, and as another incarnation, so that an end
    /// which is on its way for the one before does not hit it (L1).
    pub(crate) fn renew_lease_for(&mut self, id: LeaseId, ttl_s: u32, effects: &mut Effects) {
        let Some(before) = self.leases.get(id) else { return };
        let lease = Lease { ttl_s, granted_at: self.applied };
        self.live_sum.subtract_lease(id, before);
        self.live_sum.add_lease(id, lease);
        self.leases.grant(id, lease);
        effects.leases.push(LeaseChange::Renewed { id, ttl_s, granted_at: lease.granted_at });
    }

    fn revoke_lease(&mut self, id: LeaseId, effects: &mut Effects) -> Result<Answer, Refusal> {
        if !self.has_lease(id) {
            return Err(Refusal::LeaseNotFound);
        }
        self.end_leases(&[id], effects);
        Ok(Answer::Done)
    }

    fn expire_leases(&mut self, leases: &[LeaseExpiry], effects: &mut Effects) {
        let is_meant = |expiry: &&LeaseExpiry| {
            self.leases.get(expiry.id).is_some_and(|lease| lease.granted_at == expiry.granted_at)
        };
        let mut ids: Vec<LeaseId> = leases.iter().filter(is_meant).map(|expiry| expiry.id).collect();
        ids.sort_unstable();
        ids.dedup();
        self.end_leases(&ids, effects);
    }

    /// Ends leases that exist: everything they own vanishes at one revision, in key order (L3).
    pub(crate) fn end_leases(&mut self, ids: &[LeaseId], effects: &mut Effects) {
        let mut keys: Vec<Key> = ids.iter().flat_map(|id| self.leases.keys(*id).cloned()).collect();
        keys.sort_unstable();
        if tidelock_model::planted!(OrderDependsOnMemory) && self.keyspace.data_bytes() % 2 == 1 {
            keys.reverse();
        }
        if tidelock_model::planted!(LeaseEndLeavesAKey) {
            keys.pop();
        }
        if tidelock_model::planted!(SessionEndLeavesAnEphemeral)
            && let Some(place) = keys.iter().rposition(|key| tidelock_model::znode_path(key).is_some())
        {
            keys.remove(place);
        }
        self.plant_in_native_ends(&mut keys);
        let mut revising = Revising::new(self, &mut effects.events);
        let mut gone = Vec::with_capacity(keys.len());
        for key in &keys {
            gone.extend(self.delete_key(&mut revising, key));
            if tidelock_model::planted!(LeaseKeysGoOneByOne) {
                revising.finish(self);
                revising = Revising::new(self, &mut effects.events);
            }
        }
        self.settle_after(&gone, revising.revision(), &mut revising);
        self.settle_native_after(&mut revising, &gone);
        revising.finish(self);
        for id in ids {
            if !tidelock_model::planted!(ClosedNativeSessionAnswers) {
                self.sessions.end(*id, &mut self.live_sum);
            }
            if let Some(lease) = self.leases.end(*id) {
                self.live_sum.subtract_lease(*id, lease);
                effects.leases.push(LeaseChange::Ended { id: *id });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, TERM, all_of, delete, everything, key, put, put_leased};
    use tidelock_model::limits::ALARMS_MAX;
    use tidelock_model::{LogTime, Member, MemberRole, NodeId, Revision};

    /// L3: sessions that die together vanish together, unless they own very much; a watcher never sees half of one gone.
    #[test]
    fn expiring_several_leases_deletes_all_their_keys_at_one_revision() {
        let mut machine = Machine::new();
        machine.grant(1);
        machine.grant(2);
        machine.done(all_of(vec![put_leased("b", "", 1), put_leased("a", "", 2), put("kept", "")]));
        let leases = [1, 2].map(|id| LeaseExpiry { id: LeaseId(id), granted_at: LogIndex(id as u64) }).to_vec();
        let effects = machine.commands(vec![Command::LeaseExpire { term: TERM, leases }]);
        let gone: Vec<_> = effects.events.iter().map(|event| (event.key.clone(), event.record.position())).collect();
        assert_eq!(gone, [(key("a"), (Revision(3), 0)), (key("b"), (Revision(3), 1))]);
        assert_eq!(effects.leases, [1, 2].map(|id| LeaseChange::Ended { id: LeaseId(id) }));
        assert_eq!((machine.state.keys(), machine.state.lease_count()), (1, 0));
    }

    /// A leader that was deposed, or an expiry meant for an earlier lease of the same id, must not end a
    /// lease that is being renewed elsewhere (L1).
    #[test]
    fn an_expiry_from_an_old_term_or_for_an_old_lease_has_no_effect() {
        let mut machine = Machine::new();
        machine.grant(1);
        machine.command(Command::LeaseRevoke { id: LeaseId(1) }).result.unwrap();
        machine.grant(1);
        let expire = |term, granted_at| {
            let leases = vec![LeaseExpiry { id: LeaseId(1), granted_at: LogIndex(granted_at) }];
            Command::LeaseExpire { term, leases }
        };
        assert_eq!(machine.command(expire(Term(TERM.0 - 1), 3)).result, Err(Refusal::TERM_IS_OVER));
        assert_eq!(machine.command(expire(TERM, 1)).result, Ok(Answer::Done));
        assert!(machine.state.has_lease(LeaseId(1)));
        assert_eq!(machine.command(expire(TERM, 3)).result, Ok(Answer::Done));
        assert!(!machine.state.has_lease(LeaseId(1)));
    }

    /// A key that was taken over, released from its lease or deleted must survive that lease's end.
    #[test]
    fn a_lease_only_takes_the_keys_it_still_owns() {
        let mut machine = Machine::new();
        machine.grant(1);
        machine.grant(2);
        machine.done(all_of(["a", "b", "c", "d"].map(|name| put_leased(name, "", 1)).to_vec()));
        machine.done(all_of(vec![put("a", "released"), put_leased("b", "moved", 2), delete("c")]));
        machine.done(put("c", "new"));
        let effects = machine.commands(vec![Command::LeaseRevoke { id: LeaseId(1) }]);
        assert_eq!(effects.events.iter().map(|event| &event.key).collect::<Vec<_>>(), [&key("d")]);
        assert!(machine.state.lease_keys(LeaseId(2)).eq([&key("b")]));
    }

    /// Granting and ending an empty lease changes no key: revisions count changes of keys only (R1).
    #[test]
    fn a_lease_without_keys_consumes_no_revision() {
        let mut machine = Machine::new();
        machine.grant(1);
        let taken = machine.command(Command::LeaseGrant { id: LeaseId(1), ttl_s: 5 });
        assert_eq!(taken.result, Err(Refusal::LeaseExists));
        let zero = machine.command(Command::LeaseGrant { id: LeaseId(0), ttl_s: 5 });
        assert_eq!(zero.result, Err(Refusal::LEASE_ID_ZERO));
        machine.command(Command::LeaseRevoke { id: LeaseId(1) }).result.unwrap();
        let gone = machine.command(Command::LeaseRevoke { id: LeaseId(1) });
        assert_eq!((gone.result, gone.revision), (Err(Refusal::LeaseNotFound), Revision(1)));
    }

    /// The previous value of an event is what a watcher saw last, not a state inside the transaction.
    #[test]
    fn an_event_tells_what_the_key_was_before_its_revision() {
        let mut machine = Machine::new();
        machine.done(put("a", "1"));
        let effects =
            machine.effects(all_of(vec![put("a", "2"), delete("a"), put("a", "3"), put("b", "1"), delete("b")]));
        let told: Vec<_> =
            effects.events.iter().map(|event| event.previous.as_ref().map(|p| p.value().to_vec())).collect();
        assert_eq!(told, [Some(b"1".to_vec()), Some(b"1".to_vec()), Some(b"1".to_vec()), None, None]);
        let page = machine.state.events_page(&everything(), Revision(3), 9, true).unwrap();
        assert_eq!(page.events, effects.events);
    }

    /// Log time orders what happened; a leader with a slow clock must not make it run back.
    #[test]
    fn log_time_stands_still_under_a_slow_clock() {
        let mut state = State::new();
        for (index, at, expected) in [(1, 50, 50), (2, 40, 50), (3, 60, 60)] {
            state.apply(LogIndex(index), TERM, Batch { at: LogTime(at), proposals: vec![] });
            assert_eq!(state.clock(), LogTime(expected));
        }
    }

    /// H1: an entry applied twice or skipped is divergence; stopping is the only honest answer.
    #[test]
    #[should_panic(expected = "entries apply once and in order")]
    fn h1_an_entry_out_of_order_stops_the_node() {
        State::new().apply_nothing(LogIndex(2));
    }

    /// An entry nobody can read, or that holds nothing, still takes its place in the log on every replica.
    #[test]
    fn empty_and_unreadable_entries_count_as_applied_and_change_nothing() {
        let mut state = State::new();
        let digest = state.digest();
        state.apply_nothing(LogIndex(1));
        state.apply_unreadable(LogIndex(2));
        assert_eq!((state.applied(), state.digest()), (LogIndex(2), digest));
    }

    /// An operator who must free space needs deletes and compaction; a disk that is nearly full must not
    /// get more. The alarm stays until it is lowered, whatever was freed.
    #[test]
    fn a_space_alarm_refuses_what_grows_and_nothing_else_until_it_is_lowered() {
        let mut machine = Machine::new();
        machine.grant(1);
        machine.done(put("a", "1"));
        let digest = machine.state.digest();
        let alarm = Alarm { member: NodeId(9), kind: AlarmKind::NoSpace };
        let set = |machine: &mut Machine, raised| machine.command(Command::SetAlarm { alarm, raised }).result;
        assert_eq!(set(&mut machine, true), Ok(Answer::AlarmSet { was_raised: false }));
        assert_eq!(set(&mut machine, true), Ok(Answer::AlarmSet { was_raised: true }));
        assert_eq!(machine.refused(put("b", "1")), Refusal::NoSpace);
        assert_eq!(machine.refused(all_of(vec![delete("a"), put("b", "1")])), Refusal::NoSpace);
        let granted = machine.command(Command::LeaseGrant { id: LeaseId(2), ttl_s: 5 });
        assert_eq!(granted.result, Err(Refusal::NoSpace));
        machine.done(delete("a"));
        machine.compact(3);
        machine.command(Command::LeaseRevoke { id: LeaseId(1) }).result.unwrap();
        assert_eq!(set(&mut machine, false), Ok(Answer::AlarmSet { was_raised: true }));
        assert_eq!(set(&mut machine, false), Ok(Answer::AlarmSet { was_raised: false }));
        machine.done(put("b", "1"));
        assert_ne!(machine.state.digest(), digest);
    }

    /// Data that cannot be trusted must not be changed by clients; but a lease that ran out must not own
    /// its keys for as long as it takes an operator to look.
    #[test]
    fn a_corruption_alarm_stops_clients_from_changing_anything_but_lets_leases_expire() {
        let mut machine = Machine::new();
        machine.grant(1);
        machine.done(put_leased("a", "1", 1));
        let alarm = Alarm { member: NodeId(9), kind: AlarmKind::Corrupt };
        machine.command(Command::SetAlarm { alarm, raised: true }).result.unwrap();
        assert_eq!(machine.refused(put("b", "1")), Refusal::Corrupt);
        assert_eq!(machine.refused(delete("a")), Refusal::Corrupt);
        for command in [Command::Compact { revision: Revision(2) }, Command::LeaseRevoke { id: LeaseId(1) }] {
            assert_eq!(machine.command(command).result, Err(Refusal::Corrupt));
        }
        let leases = vec![LeaseExpiry { id: LeaseId(1), granted_at: LogIndex(1) }];
        machine.command(Command::LeaseExpire { term: TERM, leases }).result.unwrap();
        assert_eq!(machine.state.keys(), 0);
    }

    /// Clients may name any member in an alarm: without a bound they could fill every member's memory.
    #[test]
    fn alarms_are_bounded() {
        let mut machine = Machine::new();
        let raise = |machine: &mut Machine, member| {
            let alarm = Alarm { member: NodeId(member), kind: AlarmKind::Corrupt };
            machine.command(Command::SetAlarm { alarm, raised: true }).result
        };
        for member in 0..ALARMS_MAX as u64 {
            raise(&mut machine, member).unwrap();
        }
        assert_eq!(raise(&mut machine, u64::MAX), Err(Refusal::TOO_MANY_ALARMS));
        assert_eq!(raise(&mut machine, 0), Ok(Answer::AlarmSet { was_raised: true }));
    }

    /// M1: a member that was removed does not come back under its old id.
    #[test]
    fn members_come_change_and_go_for_good() {
        let member = |id, name: &str| Member {
            id: NodeId(id),
            name: name.into(),
            peer_addresses: vec![format!("10.0.0.{id}:2380")],
            client_urls: vec![],
            role: MemberRole::Learner,
            zookeeper: None,
        };
        let mut state = State::new();
        state.bootstrap_members(vec![member(1, "one")]);
        let bootstrapped = state.digest();
        state.apply_membership(LogIndex(1), &MemberChange::Add(member(2, "")));
        state.apply_membership(LogIndex(2), &MemberChange::Promote(NodeId(2)));
        let proposals = vec![crate::testing::proposal(1, Command::PublishMember(member(2, "two")))];
        state.apply(LogIndex(3), TERM, Batch { at: LogTime(0), proposals });
        let two = &state.members().by_id[&NodeId(2)];
        assert_eq!((two.name.as_str(), two.role), ("two", MemberRole::Voter));
        state.apply_membership(LogIndex(4), &MemberChange::Remove(NodeId(2)));
        state.apply_membership(LogIndex(5), &MemberChange::Add(member(2, "")));
        assert_eq!(state.members().by_id.len(), 1);
        assert_ne!(state.digest(), bootstrapped);
    }
}
