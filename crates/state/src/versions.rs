//! The versions of one key, back to the compaction horizon.
//!
//! What is told is decided by the compacted revision alone, never by how far sweeping has come: all replicas say the
//! same. The oldest version told is the one that could be read at the horizon itself; what that one replaced is
//! forgotten. A key with a million versions costs no more than the few that are asked for.

use bytes::Bytes;
use tidelock_model::limits::{HISTORY_BYTES_MAX, HISTORY_VERSIONS_MAX};
use tidelock_model::{History, HistoryOf, HistoryQuery, Key, KeyVersion, LeaseId, Record, Revision, VersionKind};

use crate::State;
use crate::keyspace::POSITION_END;
use crate::znodes::{self, WrittenZnode};

impl State {
    pub(crate) fn read_history(&self, query: &HistoryQuery) -> History {
        let key = match &query.of {
            HistoryOf::Key(key) => Some(key.clone()),
            // What cannot be a path has no versions.
            HistoryOf::Znode(path) => znodes::key_of(path),
        };
        let mut history = History { oldest: self.compacted, more: false, versions: Vec::new() };
        let Some(key) = key else { return history };
        let mut bytes = 0;
        for record in self.versions_of(&key, query.before) {
            let version = told(record, &query.of, query.data_bytes);
            bytes += version.data.len();
            let full = history.versions.len() >= query.max.clamp(1, HISTORY_VERSIONS_MAX) || bytes > HISTORY_BYTES_MAX;
            if full && !history.versions.is_empty() {
                history.more = true;
                break;
            }
            history.versions.push(version);
        }
        history
    }

    /// Newest first.
    fn versions_of<'a>(&'a self, key: &'a Key, before: Option<Revision>) -> impl Iterator<Item = &'a Record> {
        let bound = before.map_or(POSITION_END, |before| (before, 0));
        let (mut newer, horizon) = (None, self.compacted);
        self.keyspace.newest_first(key, bound).map_while(move |record| {
            let revision = record.meta().modified;
            // The oldest is what is readable at the horizon, unless something replaced it by then.
            let was_visible = newer.is_none_or(|newer| newer > horizon) && !record.is_tombstone();
            newer = Some(revision);
            (revision >= horizon || was_visible).then_some(record)
        })
    }
}

fn told(record: &Record, of: &HistoryOf, data_bytes: usize) -> KeyVersion {
    let meta = record.meta();
    let mut version = KeyVersion {
        revision: meta.modified,
        kind: if meta.version == 1 { VersionKind::Created } else { VersionKind::Changed },
        at_ms: None,
        version: i64::try_from(meta.version).ok(),
        lease: meta.lease,
        data_length: Some(record.value().len() as u64),
        data: record.value_bytes(),
    };
    if record.is_tombstone() {
        let nothing =
            KeyVersion { version: None, lease: LeaseId::NONE, data_length: None, data: Bytes::new(), ..version };
        return KeyVersion { kind: VersionKind::Deleted, ..nothing };
    }
    if matches!(of, HistoryOf::Znode(_)) {
        let WrittenZnode { version: shown, modified_ms, data } = znodes::written(record);
        version.version = Some(i64::from(shown));
        version.at_ms = Some(modified_ms);
        version.data_length = data.as_ref().map(|data| data.len() as u64);
        version.data = data.unwrap_or_default();
    }
    // A copy: a few bytes that are shown must not keep a whole value alive.
    version.data = Bytes::copy_from_slice(&version.data[..version.data.len().min(data_bytes)]);
    version
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, delete, key, put};
    use VersionKind::{Changed, Created, Deleted};
    use tidelock_model::{Query, QueryAnswer};

    fn history(machine: &Machine, before: Option<u64>, max: usize) -> History {
        let of = HistoryOf::Key(key("a"));
        let query = HistoryQuery { of, before: before.map(Revision), max, data_bytes: 2 };
        match machine.state.read(&Query::History(query)).unwrap() {
            QueryAnswer::History { history, .. } => history,
            other => panic!("{other:?}"),
        }
    }

    fn shown(history: &History) -> Vec<(u64, VersionKind)> {
        history.versions.iter().map(|version| (version.revision.0, version.kind)).collect()
    }

    /// Who looks for what went wrong needs every change, deletions among them, and nobody else's.
    #[test]
    fn every_version_is_told_newest_first_with_the_beginning_of_its_data() {
        let mut machine = Machine::new();
        for op in [put("a", "one"), put("b", "x"), put("a", "two"), delete("a"), put("a", "3")] {
            machine.done(op);
        }
        let all = history(&machine, None, 100);
        assert_eq!(shown(&all), [(6, Created), (5, Deleted), (4, Changed), (2, Created)]);
        assert_eq!((all.more, &all.versions[3].data[..], all.versions[3].data_length), (false, &b"on"[..], Some(3)));
        let newest = history(&machine, None, 2);
        assert_eq!((shown(&newest).len(), newest.more), (2, true));
        assert_eq!(shown(&history(&machine, Some(5), 100)), [(4, Changed), (2, Created)]);
        assert_eq!(shown(&history(&machine, Some(2), 100)), []);
    }

    /// The horizon must be where compaction says, before and after sweeping alike, or two nodes tell two stories.
    #[test]
    fn the_history_ends_at_the_horizon_whether_or_not_it_was_swept() {
        for horizon in 2..=7 {
            let mut machine = Machine::new();
            for op in [put("a", "1"), put("a", "2"), put("b", "x"), delete("a"), put("a", "3"), put("b", "y")] {
                machine.done(op);
            }
            machine.compact(horizon);
            let unswept = history(&machine, None, 100);
            machine.sweep_all();
            assert_eq!(history(&machine, None, 100), unswept, "compacted at {horizon}");
            let expected: &[u64] = match horizon {
                2 => &[6, 5, 3, 2],
                3 | 4 => &[6, 5, 3],
                5 => &[6, 5],
                _ => &[6],
            };
            assert_eq!(shown(&unswept).iter().map(|(revision, _)| *revision).collect::<Vec<_>>(), expected);
            assert_eq!(unswept.oldest, Revision(horizon));
        }
    }
}
