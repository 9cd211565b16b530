//! What etcd calls things: its buckets, the keys in them, and how [`MemberState`] is spread over them.

use std::collections::BTreeMap;

use crate::contents::{Member, Role, User};
use crate::contents::{MemberState, RawEntry, Revision};
use crate::error::{ReadError, WriteError, hex};
use crate::messages;

/// The history: one entry per change.
pub(crate) const KEY: &str = "key";
/// One entry per lease.
pub(crate) const LEASE: &str = "lease";

const META: &str = "meta";
const CLUSTER: &str = "cluster";
const MEMBERS: &str = "members";
const MEMBERS_REMOVED: &str = "members_removed";
const ALARM: &str = "alarm";
const AUTH: &str = "auth";
const AUTH_USERS: &str = "authUsers";
const AUTH_ROLES: &str = "authRoles";

/// Buckets of [`MemberState`]. All are written, also when empty: some servers do not look before they read.
const STATE_BUCKETS: [&str; 8] = [META, CLUSTER, MEMBERS, MEMBERS_REMOVED, ALARM, AUTH, AUTH_USERS, AUTH_ROLES];

const CONSISTENT_INDEX: &str = "consistent_index";
const TERM: &str = "term";
const CONF_STATE: &str = "confState";
const STORAGE_VERSION: &str = "storageVersion";
const SCHEDULED_COMPACT: &str = "scheduledCompactRev";
const FINISHED_COMPACT: &str = "finishedCompactRev";
const CLUSTER_VERSION: &str = "clusterVersion";
const DOWNGRADE: &str = "downgrade";
const AUTH_ENABLED: &str = "authEnabled";
const AUTH_REVISION: &str = "authRevision";
/// The value of an entry whose key says it all.
const REMOVED: &[u8] = b"removed";

const REVISION_BYTES: usize = 17;
const TOMBSTONE: u8 = b't';

/// The key of a change: both numbers, large end first, so that keys sort as the changes happened.
pub(crate) fn encode_revision(revision: Revision, tombstone: bool) -> Vec<u8> {
    let mut key = Vec::with_capacity(REVISION_BYTES + 1);
    key.extend_from_slice(&revision.main.to_be_bytes());
    key.push(b'_');
    key.extend_from_slice(&revision.sub.to_be_bytes());
    if tombstone {
        key.push(TOMBSTONE);
    }
    key
}

/// The revision of a change, and whether it is a deletion.
pub(crate) fn decode_revision(key: &[u8]) -> Result<(Revision, bool), String> {
    let (revision, mark) = key.split_at_checked(REVISION_BYTES).ok_or("too short for a revision")?;
    let tombstone = match mark {
        [] => false,
        [TOMBSTONE] => true,
        _ => return Err("a revision with an unknown mark".to_owned()),
    };
    let (main, rest) = revision.split_first_chunk::<8>().ok_or("too short for a revision")?;
    let [b'_', sub @ ..] = rest else { return Err("a revision without its separator".to_owned()) };
    let sub = sub.first_chunk::<8>().ok_or("too short for a revision")?;
    let revision = Revision { main: i64::from_be_bytes(*main), sub: i64::from_be_bytes(*sub) };
    if revision.main < 0 || revision.sub < 0 {
        return Err("a negative revision".to_owned());
    }
    Ok((revision, tombstone))
}

/// The key of a lease.
pub(crate) fn encode_lease_id(id: i64) -> [u8; 8] {
    id.to_be_bytes()
}

/// The id in the key of a lease.
pub(crate) fn decode_lease_id(key: &[u8]) -> Result<i64, String> {
    Ok(i64::from_be_bytes(key.try_into().map_err(|_| format!("{} bytes instead of 8", key.len()))?))
}

/// Adds one entry, of any bucket but the history's and the leases', to the state.
pub(crate) fn collect(state: &mut MemberState, bucket: &[u8], key: &[u8], value: &[u8]) -> Result<(), ReadError> {
    let name = String::from_utf8_lossy(bucket);
    let bad = |what: String| ReadError::bad_entry(&name, key, what);
    match (name.as_ref(), key) {
        (MEMBERS, _) => state.members.push(Member { id: member_id(key).map_err(bad)?, json: value.to_vec() }),
        (MEMBERS_REMOVED, _) => state.removed_members.push(member_id(key).map_err(bad)?),
        (ALARM, _) => state.alarms.push(messages::decode_alarm(key).map_err(bad)?),
        (AUTH_USERS, _) => state.auth.users.push(user(key, value).map_err(bad)?),
        (AUTH_ROLES, _) => state.auth.roles.push(role(key, value).map_err(bad)?),
        _ => match collect_named(state, &name, key, value) {
            Some(result) => result.map_err(bad)?,
            None => {
                state.unrecognised.push(RawEntry { bucket: bucket.to_vec(), key: key.to_vec(), value: value.to_vec() });
            }
        },
    }
    Ok(())
}

/// Entries there is one of at most. None if the name means nothing to us.
fn collect_named(state: &mut MemberState, bucket: &str, key: &[u8], value: &[u8]) -> Option<Result<(), String>> {
    let key = str::from_utf8(key).ok()?;
    let done = match (bucket, key) {
        (META, CONSISTENT_INDEX) => number(value).map(|index| state.consistent_index = Some(index)),
        (META, TERM) => number(value).map(|term| state.term = Some(term)),
        (META, CONF_STATE) => raw(value).map(|json| state.conf_state_json = Some(json)),
        (META, STORAGE_VERSION) => text(value).map(|version| state.storage_version = Some(version)),
        (META, SCHEDULED_COMPACT) => {
            decode_revision(value).map(|(at, _)| state.scheduled_compact_revision = Some(at.main))
        }
        (META, FINISHED_COMPACT) => {
            decode_revision(value).map(|(at, _)| state.finished_compact_revision = Some(at.main))
        }
        (CLUSTER, CLUSTER_VERSION) => text(value).map(|version| state.cluster_version = Some(version)),
        (CLUSTER, DOWNGRADE) => raw(value).map(|json| state.downgrade_json = Some(json)),
        (AUTH, AUTH_ENABLED) => switch(value).map(|enabled| state.auth.enabled = Some(enabled)),
        (AUTH, AUTH_REVISION) => number(value).map(|revision| state.auth.revision = Some(revision)),
        _ => return None,
    };
    Some(done)
}

fn number(value: &[u8]) -> Result<u64, String> {
    Ok(u64::from_be_bytes(value.try_into().map_err(|_| format!("{} bytes instead of 8", value.len()))?))
}

fn raw(value: &[u8]) -> Result<Vec<u8>, String> {
    Ok(value.to_vec())
}

/// Whether auth is on decides who gets in, so nothing but etcd's two values will do.
fn switch(value: &[u8]) -> Result<bool, String> {
    match value {
        [0] => Ok(false),
        [1] => Ok(true),
        _ => Err("neither on nor off".to_owned()),
    }
}

fn text(value: &[u8]) -> Result<String, String> {
    String::from_utf8(value.to_vec()).map_err(|_| "not a text".to_owned())
}

fn member_id(key: &[u8]) -> Result<u64, String> {
    let digits = str::from_utf8(key).map_err(|_| "not a member's id")?;
    u64::from_str_radix(digits, 16).map_err(|error| format!("not a member's id: {error}"))
}

fn user(key: &[u8], value: &[u8]) -> Result<User, String> {
    let user = messages::decode_user(value)?;
    if user.name == key { Ok(user) } else { Err("a user under another's name".to_owned()) }
}

fn role(key: &[u8], value: &[u8]) -> Result<Role, String> {
    let role = messages::decode_role(value)?;
    if role.name == key { Ok(role) } else { Err("a role under another's name".to_owned()) }
}

/// Entries of several buckets, in the order the file wants them.
pub(crate) struct StateEntries(BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>);

impl StateEntries {
    /// Spreads the state over etcd's buckets.
    pub(crate) fn of(state: &MemberState) -> Result<StateEntries, WriteError> {
        let mut entries = StateEntries(BTreeMap::new());
        for bucket in STATE_BUCKETS {
            entries.0.insert(bucket.into(), BTreeMap::new());
        }
        entries.add_meta(state)?;
        for member in &state.members {
            entries.add(MEMBERS, format!("{:x}", member.id), member.json.clone())?;
        }
        for id in &state.removed_members {
            entries.add(MEMBERS_REMOVED, format!("{id:x}"), REMOVED.to_vec())?;
        }
        for alarm in &state.alarms {
            entries.add(ALARM, messages::encode_alarm(alarm), Vec::new())?;
        }
        for user in &state.auth.users {
            entries.add(AUTH_USERS, user.name.clone(), messages::encode_user(user))?;
        }
        for role in &state.auth.roles {
            entries.add(AUTH_ROLES, role.name.clone(), messages::encode_role(role))?;
        }
        for raw in &state.unrecognised {
            entries.add_raw(raw)?;
        }
        Ok(entries)
    }

    /// Buckets in order, each with its entries in order.
    pub(crate) fn into_buckets(self) -> BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.0
    }

    fn add_meta(&mut self, state: &MemberState) -> Result<(), WriteError> {
        let number = |number: Option<u64>| number.map(|number| number.to_be_bytes().to_vec());
        let text = |text: &Option<String>| text.as_ref().map(|text| text.clone().into_bytes());
        let named = [
            (META, CONSISTENT_INDEX, number(state.consistent_index)),
            (META, TERM, number(state.term)),
            (META, CONF_STATE, state.conf_state_json.clone()),
            (META, STORAGE_VERSION, text(&state.storage_version)),
            (META, SCHEDULED_COMPACT, compaction(state.scheduled_compact_revision)?),
            (META, FINISHED_COMPACT, compaction(state.finished_compact_revision)?),
            (CLUSTER, CLUSTER_VERSION, text(&state.cluster_version)),
            (CLUSTER, DOWNGRADE, state.downgrade_json.clone()),
            (AUTH, AUTH_ENABLED, state.auth.enabled.map(|enabled| vec![u8::from(enabled)])),
            (AUTH, AUTH_REVISION, number(state.auth.revision)),
        ];
        for (bucket, key, value) in named {
            if let Some(value) = value {
                self.add(bucket, key, value)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, bucket: &str, key: impl Into<Vec<u8>>, value: Vec<u8>) -> Result<(), WriteError> {
        self.add_raw(&RawEntry { bucket: bucket.into(), key: key.into(), value })
    }

    fn add_raw(&mut self, raw: &RawEntry) -> Result<(), WriteError> {
        let bad = |what: &str| {
            let entry = format!("the entry {} of bucket {}", hex(&raw.key), String::from_utf8_lossy(&raw.bucket));
            Err(WriteError::BadEntry { entry, what: what.to_owned() })
        };
        if raw.bucket.is_empty() || raw.key.is_empty() {
            return bad("it has no name");
        }
        if raw.bucket == KEY.as_bytes() || raw.bucket == LEASE.as_bytes() {
            return bad("changes and leases are pushed");
        }
        match self.0.entry(raw.bucket.clone()).or_default().insert(raw.key.clone(), raw.value.clone()) {
            None => Ok(()),
            Some(_) => bad("there are two of it"),
        }
    }
}

fn compaction(revision: Option<i64>) -> Result<Option<Vec<u8>>, WriteError> {
    match revision {
        Some(..0) => Err(WriteError::BadEntry { entry: "a compaction".to_owned(), what: "it is negative".to_owned() }),
        _ => Ok(revision.map(|main| encode_revision(Revision { main, sub: 0 }, false))),
    }
}
