//! What is known of every lease of a run. Ids are unique in a run, so a lease is granted and ends at
//! most once.

use std::collections::{BTreeMap, BTreeSet};

use tidelock_model::LeaseId;
use tidelock_model::native_keys::is_session;

use crate::history::{Answer, Content, History, Micros, Observation, Operation, Request, Stamp, Told, TreeChange};

/// Microseconds in a second.
pub(crate) const SECOND: Micros = 1_000_000;

/// One lease.
#[derive(Default)]
pub(crate) struct Lease<'a> {
    /// When it was first in the state of a node, and its time to live in seconds.
    pub(crate) granted: Option<(Stamp, i64)>,
    /// When it was first gone from the state of a node, and the revision right after.
    pub(crate) ended: Option<(Stamp, i64)>,
    pub(crate) grants: Vec<&'a Operation>,
    pub(crate) renewals: Vec<&'a Operation>,
    pub(crate) revokes: Vec<&'a Operation>,
}

/// Every lease of etcd's clients by its id. Those of ZooKeeper's sessions and of native ones are renewed in other ways;
/// see `session_kept` and `native_sessions`.
pub(crate) fn leases(history: &History) -> BTreeMap<i64, Lease<'_>> {
    let mut leases: BTreeMap<i64, Lease<'_>> = BTreeMap::new();
    for operation in &history.operations {
        match operation.request {
            Request::Grant { lease, .. } => leases.entry(lease).or_default().grants.push(operation),
            Request::Revoke { lease } => leases.entry(lease).or_default().revokes.push(operation),
            Request::KeepAlive { lease } => leases.entry(lease).or_default().renewals.push(operation),
            Request::Op(_) | Request::Txn { .. } | Request::Compact { .. } => {}
        }
    }
    let sessions: BTreeSet<i64> = session_ids(history).collect();
    for (stamp, observation) in &history.observations {
        match observation {
            Observation::LeaseGranted { lease, .. } | Observation::LeaseEnded { lease, .. }
                if sessions.contains(lease) || is_session(LeaseId(*lease)) => {}
            Observation::LeaseGranted { lease, ttl_s } => {
                leases.entry(*lease).or_default().granted.get_or_insert((*stamp, *ttl_s));
            }
            Observation::LeaseEnded { lease, revision } => {
                let revision = i64::try_from(revision.0).unwrap_or(i64::MAX);
                leases.entry(*lease).or_default().ended.get_or_insert((*stamp, revision));
            }
            _ => {}
        }
    }
    leases
}

/// The sessions of ZooKeeper's clients.
pub(crate) fn session_ids(history: &History) -> impl Iterator<Item = i64> {
    history.ledger.tree.values().flatten().filter_map(|change| match change {
        TreeChange::Session { id, .. } => Some(*id),
        _ => None,
    })
}

/// What a request was answered, if it was, and when.
pub(crate) fn answered(operation: &Operation) -> Option<(&Content, Stamp)> {
    match (&operation.result, operation.returned) {
        (Told::Answer(Answer { content, .. }), Some(returned)) => Some((content, returned)),
        _ => None,
    }
}

/// Whether a request certainly had no effect.
pub(crate) fn had_no_effect(operation: &Operation) -> bool {
    matches!(operation.result, Told::Error(_) | Told::Refused(_))
}

impl Lease<'_> {
    /// When the first grant that was answered was answered.
    pub(crate) fn grant_answered(&self) -> Option<Stamp> {
        self.grants.iter().filter_map(|grant| answered(grant)).map(|(_, returned)| returned).min()
    }
}
