//! The native records at every revision, as the ledger tells them, for the checkers that walk along it.

use std::collections::BTreeMap;

use tidelock_model::native_keys::Slot;
use tidelock_model::native_records::{Place, Stored};
use tidelock_model::{Kind, LeaseId, Name};

use crate::history::{History, NativeChange, NativeRecord, NativeValue, Observation, Stamp};

/// What kind of thing and which.
pub(crate) type Subject = (Kind, Name);

/// All there is under one name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Thing {
    pub(crate) head: Option<NativeRecord>,
    pub(crate) tally: Option<NativeRecord>,
    /// By number, and by version for readers.
    pub(crate) members: BTreeMap<(u64, u64), NativeRecord>,
}

/// All there is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Things(BTreeMap<Subject, Thing>);

impl Things {
    /// Carries out a change; gives what was there before.
    pub(crate) fn apply(&mut self, change: &NativeChange) -> Option<NativeRecord> {
        let thing = self.0.entry((change.kind, change.name.clone())).or_default();
        let became = change.became.clone();
        match change.slot {
            Slot::Head => std::mem::replace(&mut thing.head, became),
            Slot::Tally => std::mem::replace(&mut thing.tally, became),
            Slot::Member { number, version } => match became {
                Some(became) => thing.members.insert((number, version), became),
                None => thing.members.remove(&(number, version)),
            },
        }
    }

    pub(crate) fn get(&self, kind: Kind, name: &Name) -> Option<&Thing> {
        self.0.get(&(kind, name.clone()))
    }

    pub(crate) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&Name, &Thing)> {
        self.0.iter().filter(move |((of, _), _)| *of == kind).map(|((_, name), thing)| (name, thing))
    }
}

impl Thing {
    pub(crate) fn stored_head(&self) -> Option<&Stored> {
        self.head.as_ref().and_then(stored)
    }

    pub(crate) fn stored_tally(&self) -> Option<&Stored> {
        self.tally.as_ref().and_then(stored)
    }

    /// The places of a queue, the first one first.
    pub(crate) fn places(&self) -> impl Iterator<Item = (u64, i64, &Place)> {
        self.members.iter().filter_map(|((number, _), record)| Some((*number, record.session, place(record)?)))
    }
}

pub(crate) fn stored(record: &NativeRecord) -> Option<&Stored> {
    match &record.value {
        NativeValue::Stored(stored) => Some(stored),
        _ => None,
    }
}

pub(crate) fn place(record: &NativeRecord) -> Option<&Place> {
    match &record.value {
        NativeValue::Place(place) => Some(place),
        _ => None,
    }
}

/// When native sessions ended: when that was first seen, and the revision.
pub(crate) fn ends(history: &History) -> BTreeMap<i64, (Stamp, u64)> {
    let mut ends = BTreeMap::new();
    for (stamp, observation) in &history.observations {
        if let Observation::LeaseEnded { lease, revision } = observation
            && tidelock_model::native_keys::is_session(LeaseId(*lease))
        {
            ends.entry(*lease).or_insert((*stamp, revision.0));
        }
    }
    ends
}

/// A grant: a place that holds what it waited for, from this revision on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) kind: Kind,
    pub(crate) name: Name,
    pub(crate) number: u64,
    pub(crate) session: i64,
    pub(crate) place: Place,
    pub(crate) revision: u64,
    pub(crate) seen: Stamp,
}

/// All grants, in order.
pub(crate) fn grants(history: &History) -> Vec<Grant> {
    let (mut things, mut grants) = (Things::default(), Vec::new());
    for (revision, at) in &history.ledger.native {
        for change in &at.changes {
            let before = things.apply(change);
            let (Some(record), Slot::Member { number, .. }) = (&change.became, change.slot) else { continue };
            let Some(place) = place(record).filter(|place| place.is_granted()) else { continue };
            let token_before = before.as_ref().and_then(self::place).map_or(0, |before| before.token);
            if token_before != place.token {
                grants.push(Grant {
                    kind: change.kind,
                    name: change.name.clone(),
                    number,
                    session: record.session,
                    place: place.clone(),
                    revision: unsigned(*revision),
                    seen: at.seen,
                });
            }
        }
    }
    grants
}

/// Revisions are never negative.
pub(crate) fn unsigned(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}
