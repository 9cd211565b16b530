//! The space quota: a store that passes it stops growing, everywhere, until somebody has made room.
//!
//! Measured is what the state holds (`Status::data_bytes`: keys and values, history included), which is the
//! same on all members; what each entry costs beside its bytes is not counted. A member whose state is above
//! its quota raises the alarm NOSPACE, which is replicated: from then on nothing that grows is carried out,
//! deletes and compactions are, until an operator lowers the alarm. Lowered too early, it is raised again.
//!
//! The log takes a moment to raise an alarm, so the door counts as well: [`Guarded`] turns away what would
//! pass the quota before it is proposed. A store can end up above its quota by what was on its way at that
//! moment, which the limit on waiting proposals bounds, on each member.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tidelock_coordinator::{
    Answering, Consistency, Coordinator, CopyError, MemberError, ProposeError, ReadError, Renewed, StateCopy, Status,
    Subscription,
};
use tidelock_model::{
    Alarm, AlarmKind, Auth, Caller, Command, LeaseId, LeaseInfo, Member, MemberChange, Need, NodeId, Op, Outcome,
    PutValue, Query, QueryAnswer, RequestId, Revision, Term,
};
use tokio::sync::Notify;

/// etcd's default, which operators plan for.
pub(crate) const QUOTA_BYTES_DEFAULT: u64 = 2 << 30;
/// How often the size is looked at when nobody writes here.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// What a lease counts for, as with etcd.
const LEASE_BYTES: u64 = 64;

/// How much the store may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quota {
    Bytes(u64),
    Unlimited,
}

impl Quota {
    /// As etcd reads it: nothing or zero is the default, a negative number is no limit.
    pub(crate) fn from_setting(bytes: Option<i64>) -> Quota {
        match bytes {
            None | Some(0) => Quota::Bytes(QUOTA_BYTES_DEFAULT),
            Some(bytes) => u64::try_from(bytes).map_or(Quota::Unlimited, Quota::Bytes),
        }
    }

    /// As `Status` and `/metrics` tell it; 0 if there is none.
    pub(crate) fn told(self) -> i64 {
        match self {
            Quota::Bytes(bytes) => i64::try_from(bytes).unwrap_or(i64::MAX),
            Quota::Unlimited => 0,
        }
    }
}

/// A node behind its quota: everything but growing writes goes straight through.
pub(crate) struct Guarded {
    inner: Arc<dyn Coordinator>,
    quota: Quota,
    /// What may still be written here before the size is looked at again.
    left: AtomicI64,
    /// A write was turned away: see to the alarm.
    turned_away: Notify,
    ranges: AtomicU64,
}

impl Guarded {
    pub(crate) fn new(inner: Arc<dyn Coordinator>, quota: Quota) -> Arc<Guarded> {
        // Nothing is left at first, so that the first write looks.
        Arc::new(Guarded {
            inner,
            quota,
            left: AtomicI64::new(0),
            turned_away: Notify::new(),
            ranges: AtomicU64::new(0),
        })
    }

    /// Reads of ranges that were asked for here.
    pub(crate) fn ranges(&self) -> u64 {
        self.ranges.load(Ordering::Relaxed)
    }

    /// Whether `bytes` more would pass the quota. Looks at the size only when what it had left is used up.
    fn would_pass(&self, bytes: u64) -> bool {
        let Quota::Bytes(quota) = self.quota else { return false };
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        if self.left.fetch_sub(bytes, Ordering::Relaxed) >= bytes {
            return false;
        }
        let left = room(quota, self.inner.status().data_bytes).saturating_sub(bytes);
        self.left.store(left.max(0), Ordering::Relaxed);
        left < 0
    }

    /// Whether the caller could write this at all: nobody else may use the quota up, and with it everybody's
    /// writing. Who may not is told so below.
    fn may(&self, caller: &Caller, command: &Command) -> bool {
        let (auth, mut needs) = (self.inner.auth(), Vec::new());
        command.needs(&mut needs);
        let about_keys = |need: &&Need<'_>| !matches!(need, Need::WriteKeysOfLease(_) | Need::ReadKeysOfLease(_));
        needs.iter().filter(about_keys).all(|need| auth.check(caller, need).is_ok())
    }

    /// Raises the alarm whenever the store is above the quota and the alarm is not raised, for as long as it is
    /// polled.
    pub(crate) async fn watch_over(self: Arc<Guarded>) {
        let Quota::Bytes(quota) = self.quota else { return };
        loop {
            let turned_away = tokio::select! {
                () = self.turned_away.notified() => true,
                () = tokio::time::sleep(LOOK_EVERY) => false,
            };
            let status = self.inner.status();
            self.left.store(room(quota, status.data_bytes).max(0), Ordering::Relaxed);
            if turned_away || status.data_bytes > quota {
                self.raise_alarm(&status, quota).await;
            }
        }
    }

    async fn raise_alarm(&self, status: &Status, quota: u64) {
        let alarm = Alarm { member: status.node, kind: AlarmKind::NoSpace };
        let alarms = self.inner.read(Caller::Internal, Query::Alarms, Consistency::Local).await;
        if matches!(alarms, Ok(QueryAnswer::Alarms { alarms, .. }) if alarms.contains(&alarm)) {
            return;
        }
        tracing::warn!(data_bytes = status.data_bytes, quota, "the space quota is used up: raising the alarm NOSPACE");
        let raised = self.inner.propose(Caller::Internal, Command::SetAlarm { alarm, raised: true }, None).await;
        if let Err(error) = raised {
            tracing::warn!(%error, "the alarm NOSPACE could not be raised; trying again");
        }
    }
}

fn room(quota: u64, held: u64) -> i64 {
    let wide = i128::from(quota) - i128::from(held);
    i64::try_from(wide).unwrap_or(if wide < 0 { i64::MIN } else { i64::MAX })
}

/// What a command may add, at most: of a transaction the larger branch, as one of them is carried out.
fn growth(command: &Command) -> u64 {
    match command {
        Command::Write(op) => op_growth(op),
        Command::LeaseGrant { .. } => LEASE_BYTES,
        _ => 0,
    }
}

fn op_growth(op: &Op) -> u64 {
    match op {
        Op::Put(put) => {
            let value = match &put.value {
                PutValue::Set(value) => value.len(),
                PutValue::Keep => 0,
            };
            (put.key.as_stored().len() + value) as u64
        }
        Op::Txn(txn) => {
            let branch = |ops: &[Op]| ops.iter().map(op_growth).sum::<u64>();
            branch(&txn.success).max(branch(&txn.failure))
        }
        Op::Delete(_) | Op::Range(_) => 0,
    }
}

impl Coordinator for Guarded {
    fn auth(&self) -> Arc<Auth> {
        self.inner.auth()
    }

    fn propose(
        &self,
        caller: Caller,
        command: Command,
        request: Option<RequestId>,
    ) -> Answering<'_, Result<Outcome, ProposeError>> {
        if command.grows() && self.would_pass(growth(&command)) && self.may(&caller, &command) {
            self.turned_away.notify_one();
            let node = self.inner.status().node;
            return Box::pin(std::future::ready(Err(ProposeError::NoSpace { node })));
        }
        self.inner.propose(caller, command, request)
    }

    fn is_overloaded(&self) -> bool {
        self.inner.is_overloaded()
    }

    fn read(
        &self,
        caller: Caller,
        query: Query,
        consistency: Consistency,
    ) -> Answering<'_, Result<QueryAnswer, ReadError>> {
        if matches!(query, Query::Range(_)) {
            self.ranges.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.read(caller, query, consistency)
    }

    fn subscribe(&self) -> Arc<dyn Subscription> {
        self.inner.subscribe()
    }

    fn keep_alive(&self, caller: Caller, lease: LeaseId) -> Answering<'_, Result<Option<LeaseInfo>, ReadError>> {
        self.inner.keep_alive(caller, lease)
    }

    fn renew_leases(&self, caller: Caller, leases: Vec<LeaseId>) -> Answering<'_, Result<Renewed, ReadError>> {
        self.inner.renew_leases(caller, leases)
    }

    fn lease_info(&self, caller: Caller, lease: LeaseId) -> Answering<'_, Result<Option<LeaseInfo>, ReadError>> {
        self.inner.lease_info(caller, lease)
    }

    fn change_members(&self, caller: Caller, change: MemberChange) -> Answering<'_, Result<Vec<Member>, MemberError>> {
        self.inner.change_members(caller, change)
    }

    fn transfer_leadership(&self, caller: Caller, to: NodeId) -> Answering<'_, Result<(), MemberError>> {
        self.inner.transfer_leadership(caller, to)
    }

    fn take_snapshot(&self, caller: Caller) -> Answering<'_, Result<(), String>> {
        self.inner.take_snapshot(caller)
    }

    fn copy_state(&self, caller: Caller) -> Answering<'_, Result<Box<dyn StateCopy>, CopyError>> {
        self.inner.copy_state(caller)
    }

    fn wait_until_swept(&self) -> Answering<'_, ()> {
        self.inner.wait_until_swept()
    }

    fn term(&self) -> Term {
        self.inner.term()
    }

    fn revision(&self) -> Revision {
        self.inner.revision()
    }

    fn status(&self) -> Status {
        self.inner.status()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operators carry their etcd values over: 0 must not mean "no space at all".
    #[test]
    fn the_setting_is_read_as_etcd_reads_it() {
        assert_eq!(Quota::from_setting(None), Quota::Bytes(2 << 30));
        assert_eq!(Quota::from_setting(Some(0)), Quota::Bytes(2 << 30));
        assert_eq!(Quota::from_setting(Some(-1)), Quota::Unlimited);
        assert_eq!(Quota::from_setting(Some(1 << 33)), Quota::Bytes(1 << 33));
        assert_eq!((Quota::Unlimited.told(), Quota::Bytes(7).told()), (0, 7));
    }

    #[test]
    fn room_may_be_negative_and_never_wraps() {
        assert_eq!((room(10, 4), room(4, 10)), (6, -6));
        assert_eq!((room(u64::MAX, 0), room(0, u64::MAX)), (i64::MAX, i64::MIN));
    }
}
