//! A second, naive implementation of the state's semantics, to compare the real one with: it keeps
//! every version ever made in one list, answers by walking it, and undoes a refused command by
//! restoring a copy.

use std::collections::BTreeMap;

use tidelock_model::{
    AlarmKind, Alarms, Answer, Command, Compare, CompareResult, CompareTarget, Event, Key, KeyRange, KeyValue, LeaseId,
    LogIndex, Op, OpAnswer, Projection, PutLease, PutOp, PutValue, RangeAnswer, RangeOp, Record, RecordMeta, Refusal,
    Revision, SortBy, Term,
};

use crate::Lease;

#[derive(Clone)]
pub(crate) struct Oracle {
    pub(crate) revision: Revision,
    pub(crate) compacted: Revision,
    /// Every change ever, in order.
    pub(crate) versions: Vec<KeyValue>,
    pub(crate) leases: BTreeMap<LeaseId, Lease>,
    pub(crate) alarms: Alarms,
}

impl Oracle {
    pub(crate) fn new() -> Oracle {
        Oracle {
            revision: Revision(1),
            compacted: Revision(0),
            versions: Vec::new(),
            leases: BTreeMap::new(),
            alarms: Alarms::default(),
        }
    }

    pub(crate) fn apply(&mut self, index: LogIndex, term: Term, command: &Command) -> Result<Answer, Refusal> {
        let saved = self.clone();
        let result = self.attempt(index, term, command);
        if result.is_err() {
            *self = saved;
        }
        result
    }

    fn attempt(&mut self, index: LogIndex, term: Term, command: &Command) -> Result<Answer, Refusal> {
        let (before, next) = (self.clone(), self.revision.next());
        let by_itself = matches!(
            command,
            Command::LeaseExpire { .. } | Command::PublishMember(_) | Command::SetAlarm { .. } | Command::Auth(_)
        );
        match command {
            _ if !by_itself && self.alarms.any(AlarmKind::Corrupt) => return Err(Refusal::Corrupt),
            Command::LeaseGrant { .. } if self.alarms.any(AlarmKind::NoSpace) => return Err(Refusal::NoSpace),
            Command::Write(op) if op.grows() && self.alarms.any(AlarmKind::NoSpace) => return Err(Refusal::NoSpace),
            Command::SetAlarm { alarm, raised } => {
                let was_raised = self.alarms.contains(*alarm);
                self.alarms.set(*alarm, *raised);
                return Ok(Answer::AlarmSet { was_raised });
            }
            Command::Write(op) => {
                let answer = self.op(&before, op)?;
                if self.versions.len() > before.versions.len() {
                    self.revision = next;
                }
                return Ok(Answer::Op(answer));
            }
            Command::Compact { revision } if *revision <= self.compacted => {
                return Err(Refusal::Compacted { asked: *revision, oldest: self.compacted });
            }
            Command::Compact { revision } if *revision > self.revision => {
                return Err(Refusal::FutureRevision { asked: *revision, now: self.revision });
            }
            Command::Compact { revision } => self.compacted = *revision,
            Command::LeaseGrant { id: LeaseId(0), .. } => return Err(Refusal::LEASE_ID_ZERO),
            Command::LeaseGrant { id, .. } if self.leases.contains_key(id) => return Err(Refusal::LeaseExists),
            Command::LeaseGrant { id, ttl_s } => {
                self.leases.insert(*id, Lease { ttl_s: *ttl_s, granted_at: index });
                return Ok(Answer::LeaseGranted { id: *id, ttl_s: *ttl_s });
            }
            Command::LeaseRevoke { id } if !self.leases.contains_key(id) => return Err(Refusal::LeaseNotFound),
            Command::LeaseRevoke { id } => self.end(&[*id]),
            Command::LeaseExpire { term: proposed_in, .. } if *proposed_in != term => {
                return Err(Refusal::TERM_IS_OVER);
            }
            Command::LeaseExpire { leases, .. } => {
                let is_meant = |id, at| self.leases.get(id).is_some_and(|lease: &Lease| lease.granted_at == at);
                let meant = leases.iter().filter(|expiry| is_meant(&expiry.id, expiry.granted_at));
                self.end(&meant.map(|expiry| expiry.id).collect::<Vec<_>>());
            }
            // Users and roles have an oracle of their own, in `auth`; so have znodes, in `znodes`, and `native`.
            Command::PublishMember(_) | Command::Auth(_) | Command::Znode(_) | Command::Native(_) => {}
        }
        Ok(Answer::Done)
    }

    fn end(&mut self, ids: &[LeaseId]) {
        let next = self.revision.next();
        for (key, item) in self.at(Revision(u64::MAX)) {
            if ids.contains(&item.record.meta().lease) {
                self.append(&key, next, |sub| Record::tombstone(next, sub));
                self.revision = next;
            }
        }
        self.leases.retain(|id, _| !ids.contains(id));
    }

    /// What exists at a revision.
    pub(crate) fn at(&self, revision: Revision) -> BTreeMap<Key, KeyValue> {
        let mut found = BTreeMap::new();
        for item in self.versions.iter().filter(|item| item.record.meta().modified <= revision) {
            match item.record.is_tombstone() {
                true => found.remove(&item.key),
                false => found.insert(item.key.clone(), item.clone()),
            };
        }
        found
    }

    fn now(&self) -> BTreeMap<Key, KeyValue> {
        self.at(Revision(u64::MAX))
    }

    fn append(&mut self, key: &Key, modified: Revision, record: impl FnOnce(u32) -> Record) {
        let sub = self.versions.iter().filter(|item| item.record.meta().modified == modified).count();
        self.versions.push(KeyValue { key: key.clone(), record: record(sub as u32) });
    }

    fn op(&mut self, before: &Oracle, op: &Op) -> Result<OpAnswer, Refusal> {
        match op {
            Op::Put(put) => self.put(before, put),
            Op::Delete(delete) => {
                let found = self.now().into_values().filter(|item| delete.range.contains(&item.key));
                let found: Vec<KeyValue> = found.collect();
                let next = before.revision.next();
                found.iter().for_each(|item| self.append(&item.key, next, |sub| Record::tombstone(next, sub)));
                let deleted = found.len() as u64;
                Ok(OpAnswer::Delete { deleted, previous: if delete.want_previous { found } else { vec![] } })
            }
            Op::Range(range) => {
                if let Some(at) = range.at.filter(|at| *at < Revision::FIRST) {
                    return Err(Refusal::Compacted { asked: at, oldest: self.compacted });
                }
                if let Some(at) = range.at {
                    before.check(at)?;
                }
                Ok(OpAnswer::Range(self.range(range)))
            }
            Op::Txn(txn) => {
                let succeeded = txn.compares.iter().all(|compare| before.holds(compare));
                let ops = if succeeded { &txn.success } else { &txn.failure };
                let answers = ops.iter().map(|op| self.op(before, op)).collect::<Result<_, _>>()?;
                Ok(OpAnswer::Txn { succeeded, answers })
            }
        }
    }

    fn put(&mut self, before: &Oracle, put: &PutOp) -> Result<OpAnswer, Refusal> {
        let old = self.now().get(&put.key).cloned();
        let lease = match (put.lease, &old) {
            (PutLease::Set(lease), _) if lease.0 != 0 && !self.leases.contains_key(&lease) => {
                return Err(Refusal::LeaseNotFound);
            }
            (PutLease::Set(lease), _) => lease,
            (PutLease::Keep, Some(old)) => old.record.meta().lease,
            (PutLease::Keep, None) => return Err(Refusal::KeyNotFound),
        };
        let value = match (&put.value, &old) {
            (PutValue::Set(value), _) => value.to_vec(),
            (PutValue::Keep, Some(old)) => old.record.value().to_vec(),
            (PutValue::Keep, None) => return Err(Refusal::KeyNotFound),
        };
        let modified = before.revision.next();
        let created = old.as_ref().map_or(modified, |old| old.record.meta().created);
        let version = old.as_ref().map_or(0, |old| old.record.meta().version) + 1;
        let meta = |sub| RecordMeta { created, modified, version, lease, sub };
        self.append(&put.key, modified, |sub| Record::new(meta(sub), &value));
        Ok(OpAnswer::Put { previous: old.filter(|_| put.want_previous) })
    }

    fn holds(&self, compare: &Compare) -> bool {
        let found: Vec<KeyValue> = self.now().into_values().filter(|item| compare.range.contains(&item.key)).collect();
        let one = |item: Option<&KeyValue>| {
            let zero = RecordMeta { version: 0, ..Record::tombstone(Revision(0), 0).meta() };
            let meta = item.map_or(zero, |item| item.record.meta());
            let ordering = match &compare.target {
                CompareTarget::Version(n) => (meta.version as i64).cmp(n),
                CompareTarget::Created(n) => (meta.created.0 as i64).cmp(n),
                CompareTarget::Modified(n) => (meta.modified.0 as i64).cmp(n),
                CompareTarget::Lease(n) => meta.lease.0.cmp(n),
                CompareTarget::Admits(_) => return false,
                CompareTarget::Value(value) => match item {
                    Some(item) => item.record.value().cmp(value),
                    None => return false,
                },
            };
            match compare.result {
                CompareResult::Equal => ordering.is_eq(),
                CompareResult::Greater => ordering.is_gt(),
                CompareResult::Less => ordering.is_lt(),
                CompareResult::NotEqual => ordering.is_ne(),
            }
        };
        if found.is_empty() { one(None) } else { found.iter().all(|item| one(Some(item))) }
    }

    pub(crate) fn check(&self, at: Revision) -> Result<(), Refusal> {
        match at {
            at if at < self.compacted => Err(Refusal::Compacted { asked: at, oldest: self.compacted }),
            at if at > self.revision => Err(Refusal::FutureRevision { asked: at, now: self.revision }),
            _ => Ok(()),
        }
    }

    pub(crate) fn range(&self, op: &RangeOp) -> RangeAnswer {
        let exists = self.at(op.at.unwrap_or(Revision(u64::MAX)));
        let all: Vec<KeyValue> = exists.into_values().filter(|item| op.range.contains(&item.key)).collect();
        let count = all.len() as u64;
        if op.projection == Projection::CountOnly {
            return RangeAnswer { items: vec![], count, more: false };
        }
        let up_to = |bound: u64| if bound == 0 { u64::MAX } else { bound };
        let mut items = all;
        items.retain(|item| {
            let (created, modified) = (item.record.meta().created.0, item.record.meta().modified.0);
            (op.bounds.modified_min..=up_to(op.bounds.modified_max)).contains(&modified)
                && (op.bounds.created_min..=up_to(op.bounds.created_max)).contains(&created)
        });
        if let Some(sort) = op.sort {
            // Equal ones stay in key order in both directions.
            let by_number = |items: &mut Vec<KeyValue>, number: fn(&RecordMeta) -> u64| {
                items.sort_by_key(|item| {
                    let number = number(&item.record.meta());
                    if sort.descending { u64::MAX - number } else { number }
                });
            };
            match sort.by {
                SortBy::Key if sort.descending => items.reverse(),
                SortBy::Key => {}
                SortBy::Version => by_number(&mut items, |meta| meta.version),
                SortBy::Created => by_number(&mut items, |meta| meta.created.0),
                SortBy::Modified => by_number(&mut items, |meta| meta.modified.0),
                SortBy::Value if sort.descending => items.sort_by(|a, b| b.record.value().cmp(a.record.value())),
                SortBy::Value => items.sort_by(|a, b| a.record.value().cmp(b.record.value())),
            }
        }
        let more = op.limit > 0 && items.len() as u64 > op.limit;
        if more {
            items.truncate(op.limit as usize);
        }
        if op.projection == Projection::KeysOnly {
            items.iter_mut().for_each(|item| item.record = Record::new(item.record.meta(), b""));
        }
        RangeAnswer { items, count, more }
    }

    /// All events of a range from a revision on.
    pub(crate) fn events(&self, range: &KeyRange, from: Revision) -> Vec<Event> {
        let changes = self.versions.iter().filter(|item| item.record.meta().modified >= from);
        let event = |item: &KeyValue| {
            let before = Revision(item.record.meta().modified.0 - 1);
            let previous = self.at(before).remove(&item.key).map(|item| item.record);
            Event {
                key: item.key.clone(),
                record: item.record.clone(),
                previous: previous.filter(|_| before >= self.compacted),
            }
        };
        changes.filter(|item| range.contains(&item.key)).map(event).collect()
    }

    /// Superseded versions and changes that must be held once sweeping is done.
    pub(crate) fn held(&self) -> (usize, usize) {
        let live = self.now();
        let mut past = 0;
        for (at, item) in self.versions.iter().enumerate() {
            let later = self.versions[at + 1..].iter().find(|later| later.key == item.key);
            let modified = item.record.meta().modified;
            let is_needed = modified >= self.compacted
                || (!item.record.is_tombstone()
                    && later.is_none_or(|later| later.record.meta().modified > self.compacted));
            let is_live = live.get(&item.key).is_some_and(|live| live.record.position() == item.record.position());
            past += usize::from(is_needed && !is_live);
        }
        let changes = self.versions.iter().filter(|item| item.record.meta().modified >= self.compacted).count();
        (past, changes)
    }
}
