//! What a session waits for and holds, by who does.
//!
//! A ticket has a place in a queue, or something that was given and is not handed over yet, or something that it holds;
//! never two of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidelock_native_api::v1::{answer::Answer, request::Op};

use super::Ticket;
use super::undo::{GrantKey, PlaceKey};
use crate::clock::Moment;
use crate::error::Error;

/// Somebody stands in a queue.
#[derive(Debug)]
struct Standing {
    key: PlaceKey,
    /// Until then, after having waited that long.
    until: Option<(Moment, Duration)>,
}

/// Something that was given.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) grant: Option<GrantKey>,
    pub(super) answer: Answer,
    pub(super) undo: Op,
}

#[derive(Debug, Default)]
pub(super) struct Places {
    waiting: BTreeMap<PlaceKey, Ticket>,
    standing: BTreeMap<Ticket, Standing>,
    /// Those among them who do not wait without an end.
    ends: BTreeSet<(Moment, Ticket)>,
    /// Given, but nobody knows whether the session outlived our absence: handed over once that is known.
    unconfirmed: BTreeMap<Ticket, Given>,
    /// Handed over and not given back, with the grant where it is one.
    held: BTreeMap<Ticket, Option<GrantKey>>,
    /// The grants of both.
    grants: BTreeSet<GrantKey>,
}

impl Places {
    /// Whether nobody waits, and nothing was given.
    pub(super) fn is_empty(&self) -> bool {
        self.standing.is_empty() && self.unconfirmed.is_empty() && self.held.is_empty()
    }

    /// Whether somebody relies on something.
    pub(super) fn holds_anything(&self) -> bool {
        !self.held.is_empty()
    }

    pub(super) fn has_grant(&self, grant: &GrantKey) -> bool {
        self.grants.contains(grant)
    }

    // ---- Standing in line

    pub(super) fn stand(&mut self, ticket: Ticket, key: PlaceKey, until: Option<(Moment, Duration)>) {
        self.ends.extend(until.map(|(until, _)| (until, ticket)));
        self.waiting.insert(key.clone(), ticket);
        self.standing.insert(ticket, Standing { key, until });
    }

    /// The place was granted, or is gone.
    pub(super) fn take(&mut self, key: &PlaceKey) -> Option<Ticket> {
        let ticket = self.waiting.get(key).copied()?;
        self.stop_standing(ticket);
        Some(ticket)
    }

    fn stop_standing(&mut self, ticket: Ticket) -> Option<PlaceKey> {
        let Standing { key, until } = self.standing.remove(&ticket)?;
        self.waiting.remove(&key);
        if let Some((until, _)) = until {
            self.ends.remove(&(until, ticket));
        }
        Some(key)
    }

    pub(super) fn waits_at(&self, key: &PlaceKey) -> bool {
        self.waiting.contains_key(key)
    }

    /// All places that are waited at.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &PlaceKey> {
        self.waiting.keys()
    }

    /// Who has waited as long as it wanted to, and what to tell it.
    pub(super) fn not_granted_in_time(&self, now: Moment) -> Vec<(Ticket, Error)> {
        let late = self.ends.iter().take_while(|(until, _)| now >= *until);
        let told = |(_, ticket): &(Moment, Ticket)| {
            let Standing { key, until } = self.standing.get(ticket)?;
            Some((*ticket, Error::timed_out(&key.name, until.map_or(Duration::ZERO, |(_, waited)| waited))))
        };
        late.filter_map(told).collect()
    }

    pub(super) fn wakes_at(&self) -> Option<Moment> {
        self.ends.first().map(|(until, _)| *until)
    }

    // ---- What was given

    /// Kept until it is known whether it may be relied on.
    pub(super) fn keep_back(&mut self, ticket: Ticket, given: Given) {
        self.grants.extend(given.grant.clone());
        self.unconfirmed.insert(ticket, given);
    }

    /// What is kept, to be handed over.
    pub(super) fn take_unconfirmed(&mut self) -> BTreeMap<Ticket, Given> {
        std::mem::take(&mut self.unconfirmed)
    }

    pub(super) fn hold(&mut self, ticket: Ticket, grant: Option<GrantKey>) {
        self.grants.extend(grant.clone());
        self.held.insert(ticket, grant);
    }

    /// A possession has ended.
    pub(super) fn forget(&mut self, ticket: Ticket) {
        if let Some(Some(grant)) = self.held.remove(&ticket) {
            self.grants.remove(&grant);
        }
    }

    /// Who waits does not want it any more: what gives back what it has.
    pub(super) fn leave(&mut self, ticket: Ticket) -> Option<Op> {
        if let Some(place) = self.stop_standing(ticket) {
            return Some(place.give_up());
        }
        let Given { grant, undo, .. } = self.unconfirmed.remove(&ticket)?;
        if let Some(grant) = grant {
            self.grants.remove(&grant);
        }
        Some(undo)
    }

    /// Everybody who waits for an answer that has a place or more already.
    pub(super) fn not_handed_over(&self) -> Vec<Ticket> {
        self.standing.keys().chain(self.unconfirmed.keys()).copied().collect()
    }
}
