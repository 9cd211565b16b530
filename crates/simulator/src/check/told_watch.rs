//! A watcher's log as the checkers look at it: where it began, what it was told, what it had to be told.

use std::fmt;

use super::prepared::At;
use super::replay::{Replay, Version};
use crate::history::{History, Notice, Stamp, WatchEvent, WatchLog};

/// One watcher.
pub(crate) struct ToldWatch<'a> {
    pub(crate) log: &'a WatchLog,
    /// The revision it was opened at, once it was told so.
    pub(crate) created: Option<i64>,
    /// The first revision it has to be told of; `None` while that is not decided: from now on, but not
    /// told yet what now is.
    pub(crate) from: Option<i64>,
    /// Whether the server ended it.
    pub(crate) canceled: bool,
    /// Every event, in order, with the moment it was told.
    pub(crate) events: Vec<(Stamp, &'a WatchEvent)>,
    /// The highest revision among events and progress; 0 if there was none.
    pub(crate) reached: i64,
    /// Everything it has to be told sooner or later, in order.
    due: Vec<Version<'a>>,
}

/// All watchers, in the order of opening.
pub(crate) fn told_watches<'a>(history: &'a History, replay: &Replay<'a>) -> Vec<ToldWatch<'a>> {
    history.watches.iter().map(|log| ToldWatch::new(log, replay)).collect()
}

impl<'a> ToldWatch<'a> {
    fn new(log: &'a WatchLog, replay: &Replay<'a>) -> ToldWatch<'a> {
        let (events, due) = (Vec::new(), Vec::new());
        let mut watch = ToldWatch { log, created: None, from: None, canceled: false, events, reached: 0, due };
        for (stamp, notice) in &log.notices {
            match notice {
                Notice::Created { revision } => drop(watch.created.get_or_insert(*revision)),
                Notice::Events { events, .. } => {
                    watch.events.extend(events.iter().map(|event| (*stamp, event)));
                    let highest = events.iter().map(|event| event.kv.modified).max();
                    watch.reached = watch.reached.max(highest.unwrap_or(0));
                }
                Notice::Progress { revision } => watch.reached = watch.reached.max(*revision),
                Notice::Canceled { .. } => watch.canceled = true,
            }
        }
        watch.from = if log.start > 0 { Some(log.start) } else { watch.created.map(|revision| revision + 1) };
        if let Some(from) = watch.from {
            watch.due = replay.changes_in(&log.key, log.end.as_deref(), from, replay.last());
            watch.due.retain(|change| if change.became.is_some() { !log.no_puts } else { !log.no_deletes });
        }
        watch
    }

    /// What it has to be told up to and including a revision, in order.
    pub(crate) fn due(&self, to: i64) -> &[Version<'a>] {
        &self.due[..self.due.partition_point(|change| change.revision <= to)]
    }
}

impl fmt::Display for ToldWatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WatchLog { client, node, key, end, start, called, .. } = self.log;
        write!(f, "the watcher of client {client} at node {node} on {key:?}")?;
        if let Some(end) = end {
            write!(f, "..{end:?}")?;
        }
        write!(f, " from revision {start}, opened at {}", At(*called))
    }
}
