//! The reference model: the store at any revision, replayed from the ledger.
//!
//! It shares nothing with `crates/state`: every key has the list of what it became, and a look-up is a
//! search in that list. What the ledger says about creation, modification and version is worked out
//! again here, and every difference is a flaw that `revision.rs` reports.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use tidelock_model::Kind;
use tidelock_model::native_keys::Slot;
use tidelock_model::native_records::Stored;

use crate::history::{Change, Kv, Ledger, NativeValue};

/// The `end` that means "everything from `key` on", in etcd's spelling.
const FROM_KEY: &str = "\0";

/// The revision of an empty store; the first write gets the next one.
pub(crate) const EMPTY_STORE: i64 = 1;

/// Whether `key` lies in the range from `first` to before `end`.
pub(crate) fn contains(first: &str, end: Option<&str>, key: &str) -> bool {
    match end {
        None => key == first,
        Some(FROM_KEY) => key >= first,
        Some(end) => key >= first && key < end,
    }
}

/// One change of one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version<'a> {
    pub(crate) revision: i64,
    /// Its place among the changes of its revision.
    pub(crate) place: usize,
    pub(crate) key: &'a str,
    /// What it became; `None`: deleted.
    pub(crate) became: Option<&'a Kv>,
    /// What it was just before the revision.
    pub(crate) before: Option<&'a Kv>,
}

/// The store at any revision.
pub(crate) struct Replay<'a> {
    ledger: &'a Ledger,
    keys: BTreeMap<&'a str, Vec<Version<'a>>>,
    /// The changes of each revision, from [`EMPTY_STORE`] on, up to the first hole in the ledger.
    dense: Vec<Vec<Version<'a>>>,
    /// Every key each lease ever owned.
    owned: BTreeMap<i64, BTreeSet<&'a str>>,
    /// The last revision that put a key on each lease.
    attached: BTreeMap<i64, i64>,
    /// What every fence was raised to, and when.
    fences: BTreeMap<&'a str, Vec<(i64, u64)>>,
    /// Who held each token of a native queue, and when.
    holders: BTreeMap<&'a str, BTreeMap<(Kind, u64), Vec<Holder>>>,
    flaws: Vec<(i64, &'a str, &'static str)>,
}

impl<'a> Replay<'a> {
    pub(crate) fn new(ledger: &'a Ledger) -> Replay<'a> {
        let mut replay = Replay {
            ledger,
            keys: BTreeMap::new(),
            dense: vec![Vec::new()],
            owned: BTreeMap::new(),
            attached: BTreeMap::new(),
            fences: fences(ledger),
            holders: holders(ledger),
            flaws: Vec::new(),
        };
        for (revision, changes) in &ledger.changes {
            if place_of(*revision) == replay.dense.len() {
                replay.dense.push(Vec::with_capacity(changes.len()));
            }
            for (place, change) in changes.iter().enumerate() {
                replay.take(*revision, place, change);
            }
        }
        replay
    }

    fn take(&mut self, revision: i64, place: usize, change: &'a Change) {
        let versions = self.keys.entry(&change.key).or_default();
        let last = versions.last();
        if let Some(flaw) = flaw_of(revision, change, last.and_then(|version| version.became)) {
            self.flaws.push((revision, &change.key, flaw));
        }
        let before = last.and_then(|last| if last.revision == revision { last.before } else { last.became });
        let version = Version { revision, place, key: &change.key, became: change.became.as_ref(), before };
        versions.push(version);
        if let Some(dense) = self.dense.get_mut(place_of(revision)) {
            dense.push(version);
        }
        if let Some(lease) = change.became.as_ref().map(|kv| kv.lease).filter(|lease| *lease != 0) {
            self.owned.entry(lease).or_default().insert(&change.key);
            self.attached.insert(lease, revision);
        }
    }

    /// Where the ledger contradicts itself: revision, key and what is wrong.
    pub(crate) fn flaws(&self) -> &[(i64, &'a str, &'static str)] {
        &self.flaws
    }

    /// The last revision of the ledger.
    pub(crate) fn last(&self) -> i64 {
        self.ledger.changes.last_key_value().map_or(EMPTY_STORE, |(revision, _)| *revision)
    }

    /// What a revision changed; nothing if there is no such revision.
    pub(crate) fn changes_at(&self, revision: i64) -> &'a [Change] {
        self.ledger.changes.get(&revision).map_or(&[], Vec::as_slice)
    }

    /// What the key was just before a revision, found quickly if that revision changed it.
    pub(crate) fn before(&self, key: &str, revision: i64) -> Option<&'a Kv> {
        let change = self.dense.get(place_of(revision)).and_then(|all| all.iter().find(|change| change.key == key));
        change.map_or_else(|| self.get(key, revision - 1), |change| change.before)
    }

    /// A key as of a revision.
    pub(crate) fn get(&self, key: &str, at: i64) -> Option<&'a Kv> {
        self.keys.get(key).and_then(|versions| as_of(versions, at))
    }

    /// The keys of a range as of a revision, in order.
    pub(crate) fn range(&self, first: &str, end: Option<&str>, at: i64) -> Vec<&'a Kv> {
        self.within(first, end).filter_map(|versions| as_of(versions, at)).collect()
    }

    /// Every change in a range from revision `from` to `to`, in order.
    pub(crate) fn changes_in(&self, first: &str, end: Option<&str>, from: i64, to: i64) -> Vec<Version<'a>> {
        let mut found: Vec<Version<'a>> = Vec::new();
        for versions in self.within(first, end) {
            let begin = versions.partition_point(|version| version.revision < from);
            found.extend(versions[begin..].iter().take_while(|version| version.revision <= to));
        }
        found.sort_unstable_by_key(|version| (version.revision, version.place));
        found
    }

    /// The highest token that a native fence had let through by a revision; 0: none.
    pub(crate) fn fence(&self, name: &str, at: i64) -> u64 {
        let raised = self.fences.get(name).map_or(&[][..], Vec::as_slice);
        let count = raised.partition_point(|(revision, _)| *revision <= at);
        raised[..count].last().map_or(0, |(_, highest)| *highest)
    }

    /// Whether a session held the place of a token in a native queue as of a revision.
    pub(crate) fn is_held(&self, session: i64, kind: Kind, name: &str, token: u64, at: i64) -> bool {
        self.holders_of(kind, name, token).iter().any(|holder| holder.session == session && holder.is_there(at))
    }

    /// Who ever held a token of a native queue.
    pub(crate) fn holders_of(&self, kind: Kind, name: &str, token: u64) -> &[Holder] {
        self.holders.get(name).and_then(|tokens| tokens.get(&(kind, token))).map_or(&[], Vec::as_slice)
    }

    /// The keys a lease owned as of a revision, in order.
    pub(crate) fn owned_by(&self, lease: i64, at: i64) -> Vec<&'a Kv> {
        let keys = self.owned.get(&lease).into_iter().flatten();
        keys.filter_map(|key| self.get(key, at)).filter(|kv| kv.lease == lease).collect()
    }

    /// The last revision that put a key on a lease.
    pub(crate) fn last_attached(&self, lease: i64) -> Option<i64> {
        self.attached.get(&lease).copied()
    }

    /// Every key that starts with `prefix`, with everything it ever became.
    pub(crate) fn with_prefix(&self, prefix: &'static str) -> impl Iterator<Item = (&'a str, &[Version<'a>])> {
        let from = self.keys.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from.take_while(move |(key, _)| key.starts_with(prefix)).map(|(key, versions)| (*key, versions.as_slice()))
    }

    fn within(&self, first: &str, end: Option<&str>) -> impl Iterator<Item = &Vec<Version<'a>>> {
        let upper = match end {
            None => Bound::Included(first),
            Some(FROM_KEY) => Bound::Unbounded,
            // A range that ends before it begins holds nothing.
            Some(end) => Bound::Excluded(end.max(first)),
        };
        let empty = matches!(upper, Bound::Excluded(end) if end == first);
        let lower = Bound::Included(first);
        let upper = if empty { Bound::Included(first) } else { upper };
        self.keys.range::<str, _>((lower, upper)).filter(move |_| !empty).map(|(_, versions)| versions)
    }
}

/// One who held a token, from a revision on until before another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    pub(crate) session: i64,
    from: i64,
    until: i64,
}

impl Holder {
    pub(crate) fn is_there(&self, at: i64) -> bool {
        (self.from..self.until).contains(&at)
    }
}

/// What the ledger says of who held which token.
fn holders(ledger: &Ledger) -> BTreeMap<&str, BTreeMap<(Kind, u64), Vec<Holder>>> {
    let mut holders: BTreeMap<&str, BTreeMap<(Kind, u64), Vec<Holder>>> = BTreeMap::new();
    let mut tokens: BTreeMap<(Kind, &str, u64), u64> = BTreeMap::new();
    for (revision, at) in &ledger.native {
        for change in at.changes.iter().filter(|change| change.kind.is_queue()) {
            let Slot::Member { number, .. } = change.slot else { continue };
            let (kind, name) = (change.kind, change.name.as_str());
            let granted = change.became.as_ref().and_then(|record| match &record.value {
                NativeValue::Place(place) if place.is_granted() => Some((record.session, place.token)),
                _ => None,
            });
            let before = tokens.remove(&(kind, name, number));
            let of_name = holders.entry(name).or_default();
            if let Some(last) = before.and_then(|token| of_name.get_mut(&(kind, token))?.last_mut()) {
                last.until = *revision;
            }
            let Some((session, token)) = granted else { continue };
            tokens.insert((kind, name, number), token);
            let holder = Holder { session, from: *revision, until: i64::MAX };
            of_name.entry((kind, token)).or_default().push(holder);
        }
    }
    holders
}

/// What the ledger says that fences were raised to.
fn fences(ledger: &Ledger) -> BTreeMap<&str, Vec<(i64, u64)>> {
    let mut fences: BTreeMap<&str, Vec<(i64, u64)>> = BTreeMap::new();
    for (revision, at) in &ledger.native {
        for change in at.changes.iter().filter(|change| change.kind == Kind::Fence) {
            let highest = match change.became.as_ref().map(|record| &record.value) {
                Some(NativeValue::Stored(Stored::Fence { highest })) => *highest,
                _ => 0,
            };
            fences.entry(change.name.as_str()).or_default().push((*revision, highest));
        }
    }
    fences
}

fn place_of(revision: i64) -> usize {
    usize::try_from(revision - EMPTY_STORE).unwrap_or(usize::MAX)
}

fn as_of<'a>(versions: &[Version<'a>], at: i64) -> Option<&'a Kv> {
    let count = versions.partition_point(|version| version.revision <= at);
    versions[..count].last().and_then(|version| version.became)
}

fn flaw_of(revision: i64, change: &Change, before: Option<&Kv>) -> Option<&'static str> {
    let Some(became) = &change.became else {
        return before.is_none().then_some("a key that did not exist was deleted");
    };
    let (created, version) = before.map_or((revision, 1), |kv| (kv.created, kv.version + 1));
    if became.key != change.key {
        Some("the change is filed under another key")
    } else if became.modified != revision {
        Some("the modification revision is not the revision of the change")
    } else if became.created != created {
        Some("the creation revision is not that of its first put")
    } else if became.version != version {
        Some("the version does not count the puts since its creation")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::testing::Maker;

    /// Every other checker stands on this: the past must be the past, at every revision.
    #[test]
    fn the_store_is_known_at_every_revision() {
        let mut maker = Maker::new();
        maker.put(1, "a", "1");
        maker.put(1, "b", "2");
        maker.delete(1, "a", None);
        maker.put(1, "a", "3");
        let history = maker.done();
        let replay = Replay::new(&history.ledger);
        let values = |at| replay.range("a", Some("z"), at).iter().map(|kv| kv.value.clone()).collect::<Vec<_>>();
        assert!(values(1).is_empty());
        assert_eq!(values(2), ["1"]);
        assert_eq!(values(3), ["1", "2"]);
        assert_eq!(values(4), ["2"]);
        assert_eq!(values(99), ["3", "2"]);
        let again = replay.get("a", 5).unwrap();
        assert_eq!((again.created, again.modified, again.version), (5, 5, 1));
        assert!(replay.flaws().is_empty());
        assert_eq!(replay.changes_in("a", None, 3, 9).len(), 2);
        assert!(replay.range("z", Some("a"), 9).is_empty());
        assert_eq!(replay.range("b", Some("\0"), 9).len(), 1);
    }

    /// A store that counts versions or creations wrongly breaks every compare that clients rely on.
    #[test]
    fn a_ledger_that_contradicts_itself_is_noticed() {
        let mut maker = Maker::new();
        maker.put(1, "a", "1");
        maker.put(1, "a", "2");
        maker.delete(1, "a", None);
        let history = maker.done();
        let broken = |damage: fn(&mut Ledger)| {
            let mut ledger = history.ledger.clone();
            damage(&mut ledger);
            Replay::new(&ledger).flaws().len()
        };
        assert_eq!(broken(|_| ()), 0);
        assert_eq!(broken(|ledger| ledger.changes.get_mut(&3).unwrap()[0].became.as_mut().unwrap().version = 1), 1);
        assert_eq!(broken(|ledger| ledger.changes.get_mut(&3).unwrap()[0].became.as_mut().unwrap().created = 3), 1);
        assert_eq!(broken(|ledger| ledger.changes.get_mut(&3).unwrap()[0].became.as_mut().unwrap().modified = 2), 1);
        assert_eq!(broken(|ledger| ledger.changes.get_mut(&4).unwrap()[0].key = "b".to_owned()), 1);
    }
}
