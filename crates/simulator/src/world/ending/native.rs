//! What a run reached of native primitives, counted from what really happened to their records.

use std::collections::{BTreeMap, BTreeSet};

use tidelock_model::native_keys::{Slot, is_session};
use tidelock_model::native_records::{Gate, HazardStage, Stored};
use tidelock_model::{Kind, LeaseId, LogIndex, Name, NativeCommand};

use crate::check::native_fenced::token_of;
use crate::coverage::{self, Coverage};
use crate::history::{History, NativeAsk, NativeRevision, NativeValue, Observation};

pub(super) fn count(coverage: &Coverage, history: &History) {
    let closed: BTreeSet<i64> = history.native.iter().filter_map(closes).collect();
    let mut ended_at: BTreeSet<i64> = BTreeSet::new();
    for (_, observation) in &history.observations {
        if let Observation::LeaseEnded { lease, revision } = observation
            && is_session(LeaseId(*lease))
        {
            coverage.add(coverage::NATIVE_SESSION_EXPIRED, u64::from(!closed.contains(lease)));
            ended_at.insert(i64::try_from(revision.0).unwrap_or(i64::MAX));
        }
    }
    count_unfenced(coverage, history);
    let mut grants_of: BTreeMap<(LogIndex, Kind, Name), u64> = BTreeMap::new();
    let mut of_parties: BTreeSet<Name> = BTreeSet::new();
    for (revision, at) in &history.ledger.native {
        count_gates(coverage, at, &mut of_parties);
        for change in &at.changes {
            let Some(NativeValue::Place(place)) = change.became.as_ref().map(|record| &record.value) else { continue };
            let Slot::Member { number, .. } = change.slot else { continue };
            if i64::try_from(place.token) == Ok(*revision) && number != place.token {
                coverage.add(coverage::NATIVE_DEATH_LET_IN, u64::from(ended_at.contains(revision)));
                *grants_of.entry((at.index, change.kind, change.name.clone())).or_default() += 1;
            }
        }
    }
    coverage.add(coverage::NATIVE_SEVERAL_LET_IN, grants_of.values().filter(|grants| **grants > 1).count() as u64);
}

/// How often one who had lost its lock wrote after the next holder did, where nobody asks for a token (K6).
fn count_unfenced(coverage: &Coverage, history: &History) {
    let mut highest: BTreeMap<&str, u64> = BTreeMap::new();
    for change in history.ledger.changes.values().flatten().filter(|change| change.key.starts_with("unfenced/")) {
        let Some(token) = change.became.as_ref().map(|kv| token_of(&kv.value)) else { continue };
        let highest = highest.entry(&change.key).or_default();
        coverage.add(coverage::NATIVE_UNFENCED_WENT_BACK, u64::from(token < *highest));
        *highest = token.max(*highest);
    }
}

fn closes(call: &crate::history::NativeCall) -> Option<i64> {
    match &call.ask {
        NativeAsk::Command(NativeCommand::Close { session }, _) => Some(session.0),
        _ => None,
    }
}

/// `of_parties`: phasers below a root that somebody arrived at since its last phase ended.
fn count_gates(coverage: &Coverage, at: &NativeRevision, of_parties: &mut BTreeSet<Name>) {
    let goes = at.changes.iter().any(|change| matches!(change.slot, Slot::Member { .. }) && change.became.is_none());
    for change in &at.changes {
        let Some(NativeValue::Stored(stored)) = change.became.as_ref().map(|record| &record.value) else { continue };
        match stored {
            Stored::Party { arrived, .. } if *arrived > 0 => {
                of_parties.insert(change.name.clone());
            }
            Stored::Barrier(barrier) if barrier.gate == Gate::Open => coverage.hit(coverage::NATIVE_BARRIER_OPENED),
            Stored::Barrier(barrier) if barrier.gate == Gate::Left => coverage.hit(coverage::NATIVE_BARRIER_LEFT),
            Stored::Barrier(barrier) if barrier.gate == Gate::Broken => coverage.hit(coverage::NATIVE_BARRIER_BROKE),
            Stored::Latch { gate: Gate::Open, .. } => coverage.hit(coverage::NATIVE_LATCH_OPENED),
            Stored::Latch { gate: Gate::Broken, .. } => coverage.hit(coverage::NATIVE_LATCH_BROKE),
            Stored::Phaser(phaser) if phaser.broken => coverage.hit(coverage::NATIVE_PHASER_BROKE),
            Stored::Phaser(phaser) if phaser.phase > 0 => {
                coverage.add(coverage::NATIVE_TREE_ADVANCED, u64::from(of_parties.len() > 1));
                of_parties.clear();
            }
            Stored::Rcu { .. } if goes => coverage.hit(coverage::NATIVE_VERSIONS_FREED),
            Stored::Hazard { stage: HazardStage::Retired, .. } if goes => coverage.hit(coverage::NATIVE_HAZARD_CLEARED),
            _ => {}
        }
    }
}
