//! A history with everything several checkers need of it, worked out once.

use std::collections::BTreeMap;
use std::fmt;

use super::claims::Claims;
use super::horizon::Horizon;
use super::leases::{Lease, leases};
use super::replay::Replay;
use super::told_watch::{ToldWatch, told_watches};
use super::tree::Tree;
use crate::history::{Answer, Asker, History, Notice, Observation, Operation, Stamp, Step, Told};

/// A history, ready to be judged.
pub struct Prepared<'a> {
    pub(crate) history: &'a History,
    /// The store at every revision.
    pub(crate) replay: Replay<'a>,
    /// The highest revision that any client had been told of.
    pub(crate) told: Horizon,
    /// The highest revision that any client had been told of or any node had reached.
    pub(crate) seen: Horizon,
    pub(crate) leases: BTreeMap<i64, Lease<'a>>,
    pub(crate) claims: Claims<'a>,
    pub(crate) watches: Vec<ToldWatch<'a>>,
    pub(crate) tree: Tree<'a>,
    /// The highest zxid that any of ZooKeeper's clients had been told of.
    pub(crate) told_znodes: Horizon,
}

impl<'a> Prepared<'a> {
    /// Prepares a history.
    #[must_use]
    pub fn new(history: &'a History) -> Prepared<'a> {
        let replay = Replay::new(&history.ledger);
        let told = sightings_of_clients(history);
        let mut seen = told.clone();
        seen.extend(history.observations.iter().filter_map(|(stamp, observation)| match observation {
            Observation::Applied { revision, .. } => Some((*stamp, i64::try_from(revision.0).unwrap_or(i64::MAX))),
            _ => None,
        }));
        let (told, seen) = (Horizon::of_revisions(told), Horizon::of_revisions(seen));
        let leases = leases(history);
        let claims = Claims::new(history, &replay, &leases, &seen);
        let watches = told_watches(history, &replay);
        let zxids = history.znodes.iter().flat_map(|log| &log.steps).filter_map(|(stamp, step)| match step {
            Step::Replied { zxid, .. } => Some((*stamp, *zxid)),
            _ => None,
        });
        let told_znodes = Horizon::of_revisions(zxids.collect());
        let tree = Tree::new(history);
        Prepared { history, replay, told, seen, leases, claims, watches, tree, told_znodes }
    }

    /// Names a request, for messages.
    pub(crate) fn name(&self, index: usize) -> Named<'a> {
        Named(&self.history.operations[index])
    }
}

fn sightings_of_clients(history: &History) -> Vec<(Stamp, i64)> {
    let mut sightings = Vec::new();
    for operation in &history.operations {
        if let (Told::Answer(Answer { revision, .. }), Some(returned)) = (&operation.result, operation.returned) {
            sightings.push((returned, *revision));
        }
    }
    for (stamp, notice) in history.watches.iter().flat_map(|watch| &watch.notices) {
        match notice {
            Notice::Created { revision } | Notice::Events { revision, .. } | Notice::Progress { revision } => {
                sightings.push((*stamp, *revision));
            }
            Notice::Canceled { .. } => {}
        }
    }
    sightings
}

/// A request in a message: who asked what, where and when, and what was told.
pub(crate) struct Named<'a>(pub(crate) &'a Operation);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { client, node, called, returned, asker, request, result } = self.0;
        write!(f, "client {client} asked node {node} at {}", At(*called))?;
        if let Some(Asker { user, auth_revision }) = asker {
            write!(f, " as {user}, proved at {auth_revision},")?;
        }
        write!(f, " {request:?} and ")?;
        match returned {
            Some(returned) => write!(f, "was told at {} {result:?}", At(*returned)),
            None => write!(f, "was told nothing until the end"),
        }
    }
}

/// A moment in a message: seconds, and the place in the order of everything.
pub(crate) struct At(pub(crate) Stamp);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stamp { order, at } = self.0;
        write!(f, "{}.{:06}s #{order}", at / 1_000_000, at % 1_000_000)
    }
}
