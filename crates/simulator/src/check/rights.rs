//! A1: nobody reads or writes what it may not, under users and roles as they are at that moment.
//!
//! An entry of the log changes the store, users and roles, or both, so every set of users and roles was in effect
//! over a span of revisions. A change takes no revision itself: one that came while the store was at revision c
//! holds for the writes after c, and reads at c may have been answered before or after it. What is claimed:
//!
//! - a user's write, whatever its client was told of it, was allowed by users and roles in effect right before it,
//!   to someone whose proof was not older than those;
//! - a user's read, or a write that changed nothing, was allowed by some that were in effect at its revision, and,
//!   unless it was serializable, not by ones that were replaced by a change acknowledged before it was asked;
//! - a user's watcher was told an event only if the user could read that key at some time since the event, as
//!   far as was known when it was told.
//!
//! Where one entry changes users and roles more than once, those in between were never seen; requests that may have
//! met them are believed. Refusals are always believed: a proof may have aged on its way.
//!
//! Rights are worked out here from roles and permissions in the plainest way, not by the model's own rules.

use std::sync::Arc;

use tidelock_model::{Auth, LogIndex, Permission, ROOT, Revision};

use super::carry_out::{is_serializable, operations, wrote};
use super::claims::Claim;
use super::horizon::Horizon;
use super::told_watch::ToldWatch;
use super::{Findings, Prepared};
use crate::history::{Answer, Asker, Compare, History, Observation, Op, Operation, Request, Stamp, Told};

pub(crate) fn check(prepared: &Prepared<'_>, findings: &mut Findings) {
    let reigns = Reigns::new(prepared.history);
    check_writes(prepared, &reigns, findings);
    for (index, operation) in prepared.history.operations.iter().enumerate() {
        let (Some(asker), Told::Answer(Answer { revision, content, .. })) = (&operation.asker, &operation.result)
        else {
            continue;
        };
        if !wrote(content) && !reigns.explain_look(operation, asker, *revision) {
            let name = prepared.name(index);
            findings.add("A1", format_args!("this was allowed by no users and roles it could have met: {name}"));
        }
    }
    for watch in &prepared.watches {
        check_watch(&reigns, watch, findings);
    }
}

fn check_writes(prepared: &Prepared<'_>, reigns: &Reigns, findings: &mut Findings) {
    for (revision, changes) in &prepared.history.ledger.changes {
        let index = match prepared.claims.of(*revision) {
            Some(Claim::Answered(index)) => *index,
            // Whose deletion it was is a guess; whose value it was is not.
            Some(Claim::Unknown(index)) if changes.iter().any(|change| change.became.is_some()) => *index,
            _ => continue,
        };
        let Operation { asker: Some(asker), request, .. } = &prepared.history.operations[index] else { continue };
        if !reigns.explain_write(asker, request, *revision) {
            let name = prepared.name(index);
            findings.add(
                "A1",
                format_args!("users and roles right before revision {revision} did not allow this write: {name}"),
            );
        }
    }
}

fn check_watch(reigns: &Reigns, watch: &ToldWatch<'_>, findings: &mut Findings) {
    let Some(user) = &watch.log.user else { return };
    for (stamp, event) in &watch.events {
        let (key, revision) = (&event.kv.key, event.kv.modified);
        let explains = |(reign, end): (&Reign, i64)| {
            end >= revision && reign.is_known(*stamp) && (!reign.auth.enabled || may(&reign.auth, user, &read(key)))
        };
        if !reigns.with_ends().any(explains) {
            findings.add("A1", format_args!("{watch} for {user} was told of {key:?} at {revision}, without a right"));
        }
    }
}

/// Users and roles, and over which revisions they were in effect.
struct Reign {
    auth: Arc<Auth>,
    /// The entry that brought them.
    index: LogIndex,
    /// The store's revision before and after that entry.
    from: i64,
    to: i64,
    /// When they were first seen in a node; `None`: from the beginning.
    since: Option<Stamp>,
    /// Whether the same entry may have brought others before them that nobody saw, and that allowed more.
    hides_others: bool,
}

impl Reign {
    fn is_known(&self, at: Stamp) -> bool {
        self.since.is_none_or(|since| since.order < at.order)
    }

    /// Whether a request of a user was allowed under these.
    fn allows(&self, asker: &Asker, request: &Request) -> bool {
        !self.auth.enabled
            || (asker.auth_revision >= self.auth.revision
                && needs(request).iter().all(|need| may(&self.auth, &asker.user, need)))
    }
}

struct Reigns {
    /// In order; never empty.
    all: Vec<Reign>,
    /// The entry up to which everything was known to be carried out.
    acknowledged: Horizon,
}

impl Reigns {
    fn new(history: &History) -> Reigns {
        let (index, to) = (LogIndex(0), i64::MIN);
        let mut all = vec![Reign { auth: Arc::default(), index, from: to, to, since: None, hides_others: false }];
        let mut acknowledged = Vec::new();
        for (stamp, observation) in &history.observations {
            match observation {
                Observation::AuthChanged { index, before, revision, auth } => {
                    let hides_others = all.last().is_some_and(|last| may_hide_others(&last.auth, auth));
                    let (from, to, since) = (signed(*before), signed(*revision), Some(*stamp));
                    all.push(Reign { auth: Arc::clone(auth), index: *index, from, to, since, hides_others });
                }
                Observation::AuthAcknowledged { index } => acknowledged.push((*stamp, signed(Revision(index.0)))),
                _ => {}
            }
        }
        Reigns { all, acknowledged: Horizon::new(0, acknowledged) }
    }

    /// Each with the last revision at which it may still have been in effect.
    fn with_ends(&self) -> impl Iterator<Item = (&Reign, i64)> {
        let ends = self.all[1..].iter().map(|next| next.to).chain([i64::MAX]);
        self.all.iter().zip(ends)
    }

    fn explain_write(&self, asker: &Asker, request: &Request, revision: i64) -> bool {
        self.with_ends().any(|(reign, end)| {
            let unseen = reign.hides_others && revision <= reign.to;
            reign.from < revision && (unseen || (revision <= end && reign.allows(asker, request)))
        })
    }

    fn explain_look(&self, operation: &Operation, asker: &Asker, revision: i64) -> bool {
        let Operation { request, called, returned, .. } = operation;
        let acknowledged = if is_serializable(request) { 0 } else { self.acknowledged.before(*called) };
        let least = self.all.partition_point(|reign| signed(Revision(reign.index.0)) <= acknowledged).max(1) - 1;
        self.with_ends().skip(least).any(|(reign, end)| {
            let known = returned.is_none_or(|returned| reign.is_known(returned));
            let unseen = reign.hides_others && revision <= reign.to;
            known && reign.from <= revision && (unseen || (revision <= end && reign.allows(asker, request)))
        })
    }
}

fn signed(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

/// Whether one entry that made `new` of `old` may have made something else in between that allows more than
/// either. If one of them allows everything, nothing does; and a change counts as one, except turning checks on.
fn may_hide_others(old: &Auth, new: &Auth) -> bool {
    let is_one_change = new.revision == old.revision + 1 && (new.users() != old.users() || new.roles() != old.roles());
    old.enabled && new.enabled && !is_one_change
}

/// Keys that are read or written.
struct Need<'a> {
    writes: bool,
    first: &'a str,
    end: Option<&'a str>,
}

fn read(key: &str) -> Need<'_> {
    Need { writes: false, first: key, end: None }
}

/// What a request needs, whichever branch is taken. Writes tell what was before, so they read as well.
fn needs(request: &Request) -> Vec<Need<'_>> {
    let mut needs = Vec::new();
    if let Request::Txn { compares, .. } = request {
        needs.extend(compares.iter().filter_map(|compare| match compare {
            Compare::ValueIs(key, _) | Compare::ModifiedAt(key, _) | Compare::VersionIs(key, _) => Some(read(key)),
            // Users here hold no native locks.
            Compare::Admits(..) | Compare::Holds { .. } => None,
        }));
    }
    for op in operations(request) {
        let (writes, first, end) = match op {
            Op::Put { key, .. } => (true, key, None),
            Op::Delete { key, end } => (true, key, end.as_deref()),
            Op::Get { key, end, .. } => (false, key, end.as_deref()),
        };
        needs.push(Need { writes: false, first, end });
        if writes {
            needs.push(Need { writes, first, end });
        }
    }
    needs
}

/// Whether the permissions of a user's roles add up to what is needed.
fn may(auth: &Auth, user: &str, need: &Need<'_>) -> bool {
    let Some(user) = auth.users().get(user) else { return false };
    if user.roles.contains(ROOT) {
        return true;
    }
    let permissions = user.roles.iter().filter_map(|role| auth.roles().get(role)).flat_map(|role| &role.permissions);
    let lacks = if need.writes { Permission::Read } else { Permission::Write };
    let granted: Vec<(&[u8], &[u8])> = permissions
        .filter(|(_, permission)| **permission != lacks)
        .map(|(range, _)| (range.start.name(), range.end.name()))
        .collect();
    let beyond = need.end.map_or_else(|| [need.first.as_bytes(), &[0]].concat(), |end| end.as_bytes().to_vec());
    let mut reached = need.first.as_bytes();
    while reached < &beyond[..] {
        let further = granted.iter().filter(|(start, end)| *start <= reached && reached < *end);
        let Some((_, end)) = further.max_by_key(|(_, end)| *end) else { return false };
        reached = end;
    }
    true
}

#[cfg(test)]
#[path = "rights_tests.rs"]
mod tests;
