//! When leases end. Kept by the leader alone, in memory: renewals never enter the log (design
//! section 5). Ending a lease is a log entry, judged again when it is applied.
//!
//! - L1: a lease is not proposed for expiry before its time to live has passed since it was granted
//!   here, renewed here, or taken over by this leader. Late is allowed, early never.
//! - Time is brought up to date before anything is granted or renewed ([`LeaseClock::advance`]), or the time
//!   since the last look at the clock would be taken off the lease.
//! - If the leader stood still, so did its leases.
//! - A lease whose end is on its way through the log is not renewed any more; who asks is answered
//!   when the entry is applied.
//!
//! Cost per lease on the leader: a timer and when to look at it, 40 bytes in trees whose leaves are full where leases come
//! in the order of their ids; a renewal is one look-up, because a deadline is only moved when it comes up. What the state
//! knows of a lease is not kept here a second time.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use tidelock_model::{LeaseExpiry, LeaseId, LeaseInfo, LogIndex, NodeId, Term};
use tidelock_state::{ByLease, Lease};
use tidelock_tree::{Order, Tree};

use crate::effects::LeaseCall;

/// Leases ended by one entry: enough for ten thousand a second, few enough that applying the entry
/// holds up nothing.
const EXPIRE_AT_ONCE_MAX: usize = 1000;
/// Most keys that one entry deletes, unless a single lease owns more: a rack of clients that dies with all its locks must
/// not keep every member from answering, and so the living from being renewed, for as long as a million deletions take.
/// The leader's own rule: `apply` ends whatever an entry names, or members of two builds would differ.
const EXPIRED_KEYS_MAX: usize = 20_000;
/// Leases that are looked at in one turn: a million that were renewed since a new leader looked at none come up together.
const LOOKS_AT_ONCE_MAX: usize = 20_000;
/// Microseconds after which an expiry that was not applied is proposed again.
const PROPOSE_AGAIN_US: u64 = 1_000_000;
/// Calls that may wait for the end of one lease; more are not answered, and ask again.
const CALLS_WAITING_MAX: usize = 64;

/// How long at most until a lease is looked at, however long it lives: what a timer keeps of that moment must tell it.
const LOOK_WITHIN_MS: u64 = 20 * 24 * 3600 * 1000;

/// The deadline of a lease whose end was proposed.
const ENDING: u64 = 0;

#[derive(Clone, Copy)]
struct Timer {
    deadline_us: u64,
    ttl_s: u32,
    /// When it is looked at next, of which this is the part that says which moment near now is meant.
    look_ms: u32,
}

impl Timer {
    fn starting(now_us: u64, ttl_s: u32) -> Timer {
        let mut timer = Timer { deadline_us: 0, ttl_s, look_ms: 0 };
        timer.renew(now_us);
        timer
    }

    fn renew(&mut self, now_us: u64) {
        self.deadline_us = now_us.saturating_add(u64::from(self.ttl_s) * 1_000_000);
    }

    fn is_ending(&self) -> bool {
        self.deadline_us == ENDING
    }

    /// Has it looked at when `at_us` is over; sooner if that is far off. Gives the moment.
    fn look_after(&mut self, at_us: u64, now_us: u64) -> u64 {
        let at_ms = at_us.div_ceil(1000).min(now_us / 1000 + LOOK_WITHIN_MS);
        self.look_ms = at_ms as u32;
        at_ms
    }

    /// The moment at which it is looked at next: the one near now.
    fn look(&self, now_us: u64) -> u64 {
        let now_ms = now_us / 1000;
        // Ahead of now, or behind it where there is more to look at than was looked at yet: by less than half of 2^32 ms.
        let ahead = self.look_ms.wrapping_sub(now_ms as u32) as i32;
        now_ms.saturating_add_signed(i64::from(ahead))
    }
}

/// When to look at a lease, in milliseconds.
type LookAt = (u64, LeaseId);

/// Before every look at any lease.
const FIRST_LOOK: LookAt = (0, LeaseId(i64::MIN));

struct ByTime;
impl Order for ByTime {
    type Item = LookAt;
    type Pivot = LookAt;
    type Probe<'a> = LookAt;
    fn probe(item: &LookAt) -> LookAt {
        *item
    }
    fn pivot(item: &LookAt) -> LookAt {
        *item
    }
    fn compare(item: &LookAt, probe: LookAt) -> Ordering {
        item.cmp(&probe)
    }
    fn compare_pivot(pivot: &LookAt, probe: LookAt) -> Ordering {
        pivot.cmp(&probe)
    }
}

/// The leader's clock over all leases.
#[derive(Default)]
pub struct LeaseClock {
    leading: Option<Term>,
    now_us: u64,
    timers: Tree<ByLease<Timer>>,
    /// When to look at a lease again; at or before its true deadline.
    looks: Tree<ByTime>,
    waiting: BTreeMap<LeaseId, Vec<(NodeId, LeaseCall)>>,
}

/// What a call about a lease gets.
#[derive(Debug, PartialEq, Eq)]
pub enum Look {
    /// An answer.
    Known(Option<LeaseInfo>),
    /// Nothing yet: the lease is ending, or this node does not lead.
    Later,
}

/// What became of a lease that was to be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewing {
    /// It has its whole time to live again.
    Renewed,
    /// Its end was proposed; only the log knows.
    Ending,
    /// It does not exist.
    Gone,
}

impl LeaseClock {
    /// Begins to lead: every lease gets its full time to live from now. `leases` come in ascending order.
    pub fn lead(&mut self, term: Term, leases: impl Iterator<Item = (LeaseId, Lease)>) {
        self.stop();
        self.leading = Some(term);
        let now_us = self.now_us;
        let mut looks = Vec::new();
        for (id, lease) in leases {
            let ttl_s = if tidelock_model::planted!(NewLeaderForgetsTimeLeft) { 0 } else { lease.ttl_s };
            let mut timer = Timer::starting(now_us, ttl_s);
            looks.push((timer.look_after(timer.deadline_us, now_us), id));
            self.timers.push_last((id, timer));
        }
        looks.sort_unstable();
        looks.into_iter().for_each(|look| self.looks.push_last(look));
    }

    /// Stops leading: forgets everything, so that nothing stale can be proposed later (H8).
    pub fn stop(&mut self) {
        *self = LeaseClock { now_us: self.now_us, ..LeaseClock::default() };
    }

    /// The term led in, if any.
    #[must_use]
    pub fn leading(&self) -> Option<Term> {
        self.leading
    }

    /// A lease was granted.
    pub fn grant(&mut self, id: LeaseId, ttl_s: u32) {
        if self.leading.is_none() {
            return;
        }
        let mut timer = Timer::starting(self.now_us, ttl_s);
        let look = (timer.look_after(timer.deadline_us, self.now_us), id);
        self.timers.insert(id, (id, timer));
        self.look_at(look);
    }

    fn look_at(&mut self, look: LookAt) {
        self.looks.insert(look, look);
    }

    /// A lease goes on for `ttl_s` from now, even if its end was proposed. Who waited to hear of that end asks again.
    pub fn regrant(&mut self, id: LeaseId, ttl_s: u32) {
        self.end(id);
        self.grant(id, ttl_s);
    }

    /// A lease ended. Gives back who waited to hear of it.
    pub fn end(&mut self, id: LeaseId) -> Vec<(NodeId, LeaseCall)> {
        if let Some((_, timer)) = self.timers.remove(id) {
            let look = self.looks.remove((timer.look(self.now_us), id));
            assert!(look.is_some(), "a lease is looked at when its timer says (L1)");
        }
        self.waiting.remove(&id).unwrap_or_default()
    }

    /// Answers a call, renewing the lease if that was asked for.
    pub fn call(&mut self, from: NodeId, call: LeaseCall) -> Look {
        if self.leading.is_none() {
            return Look::Later;
        }
        let Some((_, timer)) = self.timers.get_mut(call.id) else { return Look::Known(None) };
        if timer.is_ending() && !tidelock_model::planted!(EndingLeaseRenewed) {
            let waiting = self.waiting.entry(call.id).or_default();
            if waiting.len() < CALLS_WAITING_MAX {
                waiting.push((from, call));
            }
            return Look::Later;
        }
        if call.renew {
            timer.renew(self.now_us);
        }
        Look::Known(Some(LeaseInfo {
            id: call.id,
            granted_ttl_s: timer.ttl_s,
            remaining_ms: timer.deadline_us.saturating_sub(self.now_us) / 1000,
        }))
    }

    /// Renews a lease among many, without anybody waiting for its end. Only while leading.
    pub fn renew(&mut self, id: LeaseId) -> Renewing {
        let Some((_, timer)) = self.timers.get_mut(id) else { return Renewing::Gone };
        if timer.is_ending() && tidelock_model::planted!(EndingSessionToldAsOver) {
            return Renewing::Gone;
        }
        if timer.is_ending() && !tidelock_model::planted!(EndingLeaseRenewed) {
            return Renewing::Ending;
        }
        timer.renew(self.now_us);
        Renewing::Renewed
    }

    /// Time passes: `elapsed` since the last call, of which at most `believed` counts. What is beyond that
    /// was a stall, during which nobody could have renewed anything.
    pub fn advance(&mut self, elapsed: Duration, believed: Duration) {
        self.now_us += u64::try_from(elapsed.min(believed).as_micros()).unwrap_or(0);
    }

    /// The leases whose time is over, to be proposed for expiry: no more than one entry ends, by the number of keys that
    /// each owns. `known` says which entry granted a lease, and that number.
    pub fn due(&mut self, known: impl Fn(LeaseId) -> (LogIndex, usize)) -> Vec<LeaseExpiry> {
        let (mut due, mut keys) = (Vec::new(), 0);
        for _ in 0..LOOKS_AT_ONCE_MAX {
            if due.len() == EXPIRE_AT_ONCE_MAX {
                break;
            }
            let first = self.looks.iter_from(FIRST_LOOK).next().copied();
            let Some((at, id)) = first.filter(|(at, _)| *at <= self.now_us / 1000) else { break };
            let Some((_, timer)) = self.timers.get_mut(id) else { unreachable!("every look is at a lease") };
            let is_renewed = timer.deadline_us > self.now_us && !tidelock_model::planted!(RenewalOverlooked);
            let next_us = if is_renewed {
                timer.deadline_us
            } else {
                let (granted_at, owned) = known(id);
                keys += owned;
                if keys > EXPIRED_KEYS_MAX && !due.is_empty() {
                    break;
                }
                timer.deadline_us = ENDING;
                due.push(LeaseExpiry { id, granted_at });
                self.now_us + PROPOSE_AGAIN_US
            };
            let look = (timer.look_after(next_us, self.now_us), id);
            self.looks.remove((at, id));
            self.look_at(look);
        }
        due
    }

    /// How many leases the clock watches over.
    #[must_use]
    pub fn len(&self) -> usize {
        self.timers.len()
    }

    /// Whether it watches over none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.timers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: LeaseId = LeaseId(7);
    const ME: NodeId = NodeId(1);

    fn leading(ttl_s: u32) -> LeaseClock {
        let mut clock = LeaseClock::default();
        clock.lead(Term(3), [(LEASE, Lease { ttl_s, granted_at: LogIndex(10) })].into_iter());
        clock
    }
    fn keep_alive() -> LeaseCall {
        LeaseCall { token: 1, id: LEASE, renew: true }
    }
    fn tick(clock: &mut LeaseClock, elapsed_ms: u64, believed_ms: u64) -> Vec<LeaseExpiry> {
        clock.advance(Duration::from_millis(elapsed_ms), Duration::from_millis(believed_ms));
        clock.due(|_| (LogIndex(10), 1))
    }
    fn expiry() -> Vec<LeaseExpiry> {
        vec![LeaseExpiry { id: LEASE, granted_at: LogIndex(10) }]
    }

    #[test]
    fn l1_a_lease_ends_no_earlier_than_its_time_to_live_after_the_last_renewal() {
        let mut clock = leading(2);
        assert_eq!(tick(&mut clock, 1_500, 2_000), []);
        assert!(matches!(clock.call(ME, keep_alive()), Look::Known(Some(info)) if info.remaining_ms == 2_000));
        assert_eq!(tick(&mut clock, 1_999, 2_000), []);
        assert_eq!(tick(&mut clock, 1, 2_000), expiry());
    }

    /// H8: a leader that was paused must not end leases whose owners had no one to renew them with.
    #[test]
    fn h8_a_stall_of_the_leader_does_not_count_against_leases() {
        let mut clock = leading(2);
        assert_eq!(tick(&mut clock, 60_000, 300), []);
        assert_eq!(tick(&mut clock, 1_699, 2_000), []);
        assert_eq!(tick(&mut clock, 1, 300), expiry());
    }

    #[test]
    fn h8_a_leader_that_was_deposed_proposes_nothing() {
        let mut clock = leading(1);
        clock.stop();
        assert_eq!(tick(&mut clock, 5_000, 5_000), []);
        assert_eq!(clock.call(ME, keep_alive()), Look::Later);
    }

    /// A keepalive that says yes while the end is already in the log would be a lie.
    #[test]
    fn l4_a_renewal_during_the_end_is_answered_only_when_the_end_is_known() {
        let mut clock = leading(1);
        assert_eq!(tick(&mut clock, 1_000, 1_000), expiry());
        assert_eq!(clock.call(NodeId(2), keep_alive()), Look::Later);
        assert_eq!(clock.end(LEASE), [(NodeId(2), keep_alive())]);
        assert_eq!(clock.call(ME, keep_alive()), Look::Known(None));
    }

    /// L1: a batch counts from when it arrives, so a late one lengthens a life; and it must neither call a lease
    /// that is ending alive (L4) nor bring one back.
    #[test]
    fn l1_a_batch_renews_from_when_it_arrives_and_only_what_is_alive() {
        let mut clock = leading(2);
        assert_eq!(tick(&mut clock, 1_999, 2_000), []);
        assert_eq!((clock.renew(LEASE), clock.renew(LeaseId(8))), (Renewing::Renewed, Renewing::Gone));
        assert_eq!(tick(&mut clock, 1_999, 2_000), []);
        assert_eq!(tick(&mut clock, 1, 2_000), expiry());
        assert_eq!(clock.renew(LEASE), Renewing::Ending);
        clock.end(LEASE);
        assert_eq!(clock.renew(LEASE), Renewing::Gone);
    }

    #[test]
    fn an_end_that_got_lost_is_proposed_again() {
        let mut clock = leading(1);
        assert_eq!(tick(&mut clock, 1_000, 1_000), expiry());
        assert_eq!(tick(&mut clock, PROPOSE_AGAIN_US / 1000 - 1, PROPOSE_AGAIN_US / 1000), []);
        assert_eq!(tick(&mut clock, 1, 1), expiry());
    }

    /// S2: a session that goes on with another timeout lives for that long from then, neither less nor for ever, even
    /// if its end was proposed already.
    #[test]
    fn s2_a_lease_that_is_granted_anew_counts_from_then() {
        for (ttl_s, ending) in [(1, false), (5, false), (5, true)] {
            let mut clock = leading(2);
            let passed_ms = if ending { 2_000 } else { 1_000 };
            assert_eq!(tick(&mut clock, passed_ms, passed_ms).is_empty(), !ending);
            clock.regrant(LEASE, ttl_s);
            assert_eq!((clock.timers.len(), clock.looks.len()), (1, 1));
            let ms = u64::from(ttl_s) * 1_000;
            assert_eq!(tick(&mut clock, ms - 1, ms), []);
            assert_eq!(tick(&mut clock, 1, 1), expiry());
        }
    }

    /// A rack of clients that dies with all its locks must not stop everybody for as long as its locks take to delete.
    #[test]
    fn leases_that_own_much_are_ended_a_few_at_a_time() {
        let mut clock = leading(1);
        (10..20).for_each(|id| clock.grant(LeaseId(id), 1));
        clock.advance(Duration::from_secs(1), Duration::from_secs(1));
        let mut due = || clock.due(|_| (LogIndex(10), EXPIRED_KEYS_MAX / 4 + 1)).len();
        assert_eq!([due(), due(), due(), due()], [3, 3, 3, 2]);
    }

    /// Whatever else waits for this thread waits for as long as leases are looked at.
    #[test]
    fn renewed_leases_that_come_up_together_are_looked_at_a_part_at_a_time() {
        let mut clock = LeaseClock::default();
        let ids = || (0..2 * LOOKS_AT_ONCE_MAX as i64 + 1).map(LeaseId);
        clock.lead(Term(3), ids().map(|id| (id, Lease { ttl_s: 2, granted_at: LogIndex(10) })));
        assert_eq!(tick(&mut clock, 1_000, 1_000), []);
        ids().for_each(|id| assert_eq!(clock.renew(id), Renewing::Renewed));
        let mut left_over = || {
            assert_eq!(tick(&mut clock, 500, 500), []);
            let now_ms = clock.now_us / 1000;
            clock.looks.iter_from(FIRST_LOOK).take_while(|(at, _)| *at <= now_ms).count()
        };
        assert_eq!([left_over(), left_over(), left_over()], [0, LOOKS_AT_ONCE_MAX + 1, 1]);
    }

    /// Short work under long leases must not leave anything behind on the leader.
    #[test]
    fn a_lease_that_was_revoked_leaves_nothing_in_the_clock() {
        let mut clock = leading(3_600);
        for id in 100..200 {
            clock.grant(LeaseId(id), 3_600);
            assert_eq!(clock.end(LeaseId(id)), []);
        }
        assert_eq!((clock.timers.len(), clock.looks.len()), (1, 1));
    }

    /// L1: a lease may live for longer than its timer can tell apart, on a node that has been up for longer than that.
    #[test]
    fn l1_a_long_life_on_a_node_that_is_up_for_long_ends_neither_early_nor_never() {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        let mut clock = leading(1);
        tick(&mut clock, 1_000, 1_000);
        clock.end(LEASE);
        (0..75).for_each(|_| clock.advance(DAY, DAY));
        clock.grant(LEASE, 100 * 24 * 3600);
        for _ in 0..99 {
            clock.advance(DAY, DAY);
            assert_eq!(clock.due(|_| (LogIndex(10), 1)), []);
            assert_eq!((clock.timers.len(), clock.looks.len()), (1, 1));
        }
        clock.advance(DAY, DAY);
        assert_eq!(clock.due(|_| (LogIndex(10), 1)), expiry());
        clock.end(LEASE);
        assert_eq!((clock.timers.len(), clock.looks.len()), (0, 0));
    }

    /// What the module comment says of the cost.
    #[test]
    fn a_lease_costs_its_leader_40_bytes() {
        assert_eq!(size_of::<(LeaseId, Timer)>() + size_of::<LookAt>(), 40);
    }

    #[test]
    fn looking_at_a_lease_does_not_renew_it() {
        let mut clock = leading(2);
        tick(&mut clock, 1_000, 1_000);
        let look = LeaseCall { renew: false, ..keep_alive() };
        assert!(matches!(clock.call(ME, look), Look::Known(Some(info)) if info.remaining_ms == 1_000));
        assert_eq!(tick(&mut clock, 1_000, 1_000), expiry());
    }
}
