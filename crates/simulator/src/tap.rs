//! Sees into the nodes: turns what each of them carries out into the ledger and the observations of the
//! history. It compares as it writes: two nodes that carry out different changes at one revision are found
//! here at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use tidelock_model::native_keys;
use tidelock_model::native_records::{Place, Stored};
use tidelock_model::{Auth, Event, LogIndex, Members, NodeId, Revision, Space, ZnodeEvent, znode_path};
use tidelock_replica::Observer;
use tidelock_state::{Effects, LeaseChange, State};

use crate::client::Recorder;
use crate::history::{
    Change, Kv, NativeChange, NativeRecord, NativeRevision, NativeValue, Observation, TreeChange, Znode,
};

/// One entry, or one snapshot, as a node carried it out.
pub(crate) struct Seen {
    pub(crate) index: LogIndex,
    pub(crate) revision: Revision,
    pub(crate) digest: u128,
    /// Proposals that were recognised as carried out before.
    pub(crate) duplicates: u64,
    events: Vec<Event>,
    leases: Vec<LeaseChange>,
    members: Option<Members>,
    auth: Arc<Auth>,
    pub(crate) installed: bool,
}

/// What one life of one node carried out and nobody has looked at yet.
#[derive(Clone, Default)]
pub(crate) struct Tap(Arc<Mutex<Vec<Seen>>>);

impl Tap {
    fn push(&self, seen: Seen) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
    }

    pub(crate) fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for Tap {
    fn applied(&mut self, state: &State, effects: Option<&Effects>) {
        self.push(Seen {
            index: state.applied(),
            revision: state.revision(),
            digest: state.digest(),
            duplicates: effects.map_or(0, |effects| effects.applied.iter().filter(|one| one.duplicate).count() as u64),
            events: effects.map(|effects| effects.events.clone()).unwrap_or_default(),
            leases: effects.map(|effects| effects.leases.clone()).unwrap_or_default(),
            // Only entries without commands change members.
            members: effects.is_none_or(|effects| effects.applied.is_empty()).then(|| state.members().clone()),
            auth: Arc::clone(state.auth()),
            installed: false,
        });
    }

    fn installed(&mut self, state: &State) {
        self.push(Seen {
            index: state.applied(),
            revision: state.revision(),
            digest: state.digest(),
            duplicates: 0,
            events: Vec::new(),
            leases: Vec::new(),
            members: Some(state.members().clone()),
            auth: Arc::clone(state.auth()),
            installed: true,
        });
    }
}

/// Writes down what was seen, in whichever node it was seen first.
pub(crate) struct Scribe {
    recorder: Recorder,
    granted: BTreeSet<i64>,
    ended: BTreeSet<i64>,
    /// The native sessions that entries ended, and up to where each node is.
    sessions_ended: BTreeMap<LogIndex, Vec<i64>>,
    reached: BTreeMap<NodeId, LogIndex>,
    /// The last entry that any node carried out, and users and roles then.
    newest: LogIndex,
    auth: Arc<Auth>,
}

impl Scribe {
    pub(crate) fn new(recorder: Recorder) -> Scribe {
        let (granted, ended, sessions_ended, reached, newest, auth) = Default::default();
        Scribe { recorder, granted, ended, sessions_ended, reached, newest, auth }
    }

    /// Writes one thing down. `Err`: it contradicts what another node, or an earlier life, did.
    pub(crate) fn write(&mut self, node: NodeId, boot: u64, seen: Seen) -> Result<(), String> {
        let Seen { index, revision, digest, events, leases, members, auth, installed, .. } = seen;
        self.recorder.observe(Observation::Applied { node, boot, index, digest, revision });
        self.write_auth(index, revision, &events, auth);
        if let Some(members) = members {
            let voter = |member: &&tidelock_model::Member| member.role == tidelock_model::MemberRole::Voter;
            let voters = members.by_id.values().filter(voter).map(|member| member.id).collect();
            self.recorder.observe(Observation::Members { node, index, voters, removed: members.removed });
        }
        self.write_sessions(node, index, &leases, installed);
        for change in leases {
            match change {
                LeaseChange::Granted { id, ttl_s, .. } if self.granted.insert(id.0) => {
                    self.recorder.observe(Observation::LeaseGranted { lease: id.0, ttl_s: i64::from(ttl_s) });
                }
                LeaseChange::Ended { id } if self.ended.insert(id.0) => {
                    // The revision of this very lease's end: several may end in one entry.
                    let owned = |event: &&Event| event.previous.as_ref().is_some_and(|was| was.meta().lease == id);
                    let own = events.iter().filter(owned).map(|event| event.record.meta().modified).max();
                    let revision = own.unwrap_or(revision);
                    self.recorder.observe(Observation::LeaseEnded { lease: id.0, revision });
                }
                LeaseChange::Granted { .. } | LeaseChange::Renewed { .. } | LeaseChange::Ended { .. } => {}
            }
        }
        self.write_changes(node, index, &events)
    }

    /// Which native sessions ended at this very node, by an entry or in a snapshot of another's.
    fn write_sessions(&mut self, node: NodeId, index: LogIndex, leases: &[LeaseChange], installed: bool) {
        let by_entry = leases.iter().filter_map(|change| match change {
            LeaseChange::Ended { id } if native_keys::is_session(*id) => Some(id.0),
            _ => None,
        });
        let mut ended: Vec<i64> = by_entry.collect();
        if !ended.is_empty() {
            self.sessions_ended.entry(index).or_insert_with(|| ended.clone());
        }
        let before = self.reached.insert(node, index).unwrap_or_default();
        if installed && before < index {
            ended.extend(self.sessions_ended.range(before.next()..=index).flat_map(|(_, ended)| ended));
        }
        for session in ended {
            self.recorder.observe(Observation::SessionEnded { node, session, in_snapshot: installed });
        }
    }

    /// Every entry is carried out for the first time by somebody, one after the other.
    fn write_auth(&mut self, index: LogIndex, revision: Revision, events: &[Event], auth: Arc<Auth>) {
        if index <= self.newest {
            return;
        }
        self.newest = index;
        if auth != self.auth {
            self.auth = Arc::clone(&auth);
            let before = events.first().map_or(revision, |event| Revision(event.record.meta().modified.0 - 1));
            self.recorder.observe(Observation::AuthChanged { index, before, revision, auth });
        }
    }

    fn write_changes(&self, node: NodeId, index: LogIndex, events: &[Event]) -> Result<(), String> {
        let mut rest = events;
        while let Some(first) = rest.first() {
            let revision = first.record.meta().modified;
            let count = rest.iter().take_while(|event| event.record.meta().modified == revision).count();
            let (same, after) = rest.split_at(count);
            let is_other = |event: &&Event| !is_of_the_tree(event) && native_keys::parse_borrowed(&event.key).is_none();
            let changes: Vec<Change> = same.iter().filter(is_other).map(change).collect();
            let tree: Vec<TreeChange> = same.iter().filter(|event| is_of_the_tree(event)).map(tree_change).collect();
            let native: Vec<NativeChange> = same.iter().filter_map(native_change).collect();
            let number = i64::try_from(revision.0).unwrap_or(i64::MAX);
            // Counted only where it is needed: the order of everything else is as it was.
            let seen = (!native.is_empty()).then(|| self.recorder.stamp());
            let differs = self.recorder.with(|history| {
                let known_tree = history.ledger.tree.get(&number).map_or(&[][..], Vec::as_slice);
                let known_native = history.ledger.native.get(&number).map_or(&[][..], |known| &known.changes);
                match history.ledger.changes.get(&number) {
                    Some(known) if *known != changes => Some(format!("{known:?}")),
                    Some(_) if known_tree != tree => Some(format!("{known_tree:?}")),
                    Some(_) if known_native != native => Some(format!("{known_native:?}")),
                    Some(_) => None,
                    None => {
                        history.ledger.changes.insert(number, changes.clone());
                        if !tree.is_empty() {
                            history.ledger.tree.insert(number, tree.clone());
                        }
                        if let Some(seen) = seen {
                            let changes = native.clone();
                            history.ledger.native.insert(number, NativeRevision { index, seen, changes });
                        }
                        None
                    }
                }
            });
            if let Some(known) = differs {
                return Err(format!(
                    "node {node} changed {changes:?} {tree:?} {native:?} at revision {number}, others {known}"
                ));
            }
            rest = after;
        }
        Ok(())
    }
}

fn is_of_the_tree(event: &Event) -> bool {
    event.key.space_byte() == Some(Space::Tree as u8)
}

/// What an event is to native primitives, if anything.
pub(crate) fn native_change(event: &Event) -> Option<NativeChange> {
    let (kind, name, slot) = native_keys::parse(&event.key)?;
    let is_place = kind.is_queue() && matches!(slot, native_keys::Slot::Member { .. });
    let (meta, value) = (event.record.meta(), event.record.value());
    let became = (!event.record.is_tombstone()).then(|| NativeRecord {
        session: meta.lease.0,
        created: meta.created.0,
        value: match (Place::read(value).filter(|_| is_place), Stored::read(value)) {
            (Some(place), _) => NativeValue::Place(place),
            (None, Some(stored)) if !value.is_empty() => NativeValue::Stored(stored),
            _ => NativeValue::Nothing,
        },
    });
    Some(NativeChange { kind, name, slot, became })
}

/// Bytes of a znode's value in front of its data: kind, two times, and a third if there is a time to live.
const BEFORE_DATA: usize = 1 + 2 * TIME;
const TIME: usize = 6;
/// The kinds that go by themselves, in the low bits of the first byte.
const KIND_MASK: u8 = 3;
const WITH_TTL: u8 = 2;

fn tree_change(event: &Event) -> TreeChange {
    let (meta, value) = (event.record.meta(), event.record.value());
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    if let Some(path) = znode_path(&event.key) {
        let kind = value.first().map_or(0, |first| first & KIND_MASK);
        let before = BEFORE_DATA + if kind == WITH_TTL { TIME } else { 0 };
        let became = (!event.record.is_tombstone()).then(|| Znode {
            data: String::from_utf8_lossy(value.get(before..).unwrap_or_default()).into_owned(),
            owner: meta.lease.0,
            goes_by_itself: kind != 0,
            created: signed(meta.created.0),
            modified: signed(meta.modified.0),
            version: signed(meta.version),
        });
        return TreeChange::Znode { path, became };
    }
    match ZnodeEvent::of(event) {
        Some(ZnodeEvent::SessionTaken { session, generation }) => {
            TreeChange::Session { id: session.0, generation: Some(generation) }
        }
        Some(ZnodeEvent::SessionEnded(session)) => TreeChange::Session { id: session.0, generation: None },
        _ => TreeChange::Aside {
            name: event.key.name().to_vec(),
            became: (!event.record.is_tombstone()).then(|| value.to_vec()),
        },
    }
}

pub(crate) fn change(event: &Event) -> Change {
    let key = String::from_utf8_lossy(event.key.name()).into_owned();
    let meta = event.record.meta();
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let became = (!event.record.is_tombstone()).then(|| Kv {
        key: key.clone(),
        value: String::from_utf8_lossy(event.record.value()).into_owned(),
        created: signed(meta.created.0),
        modified: signed(meta.modified.0),
        version: signed(meta.version),
        lease: meta.lease.0,
    });
    Change { key, became }
}
