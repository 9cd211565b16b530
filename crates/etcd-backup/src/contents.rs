//! What a backup holds, in plain types. The words are etcd's; nothing here knows how they lie in the file.

/// Where in the history a change stands: the transaction, and the change's place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    /// The store's revision after the transaction.
    pub main: i64,
    /// Counts the changes of one transaction from zero.
    pub sub: i64,
}

/// One entry of the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// When it happened.
    pub revision: Revision,
    /// What happened.
    pub kind: ChangeKind,
}

/// What a change did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeKind {
    /// A key was written.
    Put(KeyRecord),
    /// A key was deleted.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
    /// No key was touched: the entry only says that the store's revision has come this far. etcd's
    /// restore leaves one when it is told to bump the revision.
    Mark,
}

/// A key as one write left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// Never empty.
    pub key: Vec<u8>,
    /// The revision that created the key.
    pub create_revision: i64,
    /// The revision of this write.
    pub mod_revision: i64,
    /// Writes since the key was created, this one included.
    pub version: i64,
    /// May be empty.
    pub value: Vec<u8>,
    /// The lease the key is attached to; zero if there is none.
    pub lease: i64,
}

/// A lease, as granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Its identity.
    pub id: i64,
    /// Granted time to live, in seconds.
    pub ttl_s: i64,
    /// What was left of it at the last checkpoint, in seconds; zero if no checkpoint was taken. A server
    /// that starts from the file gives the lease this long, or the whole time to live if it is zero.
    pub remaining_ttl_s: i64,
}

/// What a member keeps besides keys and leases.
///
/// Everything may be missing: older servers wrote less, and a restore replaces the position in the log
/// and the members in any case. An export for a restore can leave all of it at the default but the
/// compaction and the auth part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemberState {
    /// Index of the last log entry that is part of the data.
    pub consistent_index: Option<u64>,
    /// Term of that entry. Written since etcd 3.5.
    pub term: Option<u64>,
    /// Raft's configuration, as JSON. Written since etcd 3.5.
    pub conf_state_json: Option<Vec<u8>>,
    /// Version of the storage schema, such as "3.6.0". Written since etcd 3.6.
    pub storage_version: Option<String>,
    /// A compaction that was ordered; it may be unfinished if it is above the finished one.
    pub scheduled_compact_revision: Option<i64>,
    /// The last compaction that was carried out.
    pub finished_compact_revision: Option<i64>,
    /// The version all members of the cluster can speak, such as "3.5.0".
    pub cluster_version: Option<String>,
    /// A downgrade under way, as JSON. Written since etcd 3.5.
    pub downgrade_json: Option<Vec<u8>>,
    /// Members of the cluster, in the order of their ids in hexadecimal.
    pub members: Vec<Member>,
    /// Ids of members that were removed and may not come back, in the same order.
    pub removed_members: Vec<u64>,
    /// Alarms that were raised.
    pub alarms: Vec<Alarm>,
    /// Users, roles and whether they matter.
    pub auth: Auth,
    /// Entries of etcd's buckets that this crate has no name for, or whole buckets it does not know.
    /// Kept so that nothing is lost unseen.
    pub unrecognised: Vec<RawEntry>,
}

/// A member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its identity.
    pub id: u64,
    /// Name and addresses, as etcd's JSON.
    pub json: Vec<u8>,
}

/// An alarm that is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alarm {
    /// The member that raised it.
    pub member_id: u64,
    /// Why.
    pub kind: AlarmKind,
}

/// Why an alarm was raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlarmKind {
    /// The quota is used up.
    NoSpace,
    /// The data of members differ.
    Corrupt,
    /// A kind of a newer server.
    Other(i32),
}

/// Users and roles.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Auth {
    /// Whether requests are checked at all. None where the server never wrote it.
    pub enabled: Option<bool>,
    /// Counts changes of users and roles. None where the server never wrote it.
    pub revision: Option<u64>,
    /// In the order of their names.
    pub users: Vec<User>,
    /// In the order of their names.
    pub roles: Vec<Role>,
}

/// Someone who can log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Never empty.
    pub name: Vec<u8>,
    /// A bcrypt hash; empty for a user without a password.
    pub password_hash: Vec<u8>,
    /// Names of roles granted.
    pub roles: Vec<String>,
    /// Whether the user was made to log in by certificate only. None where the server wrote nothing of
    /// the kind (before etcd 3.4).
    pub no_password: Option<bool>,
}

/// A set of permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// Never empty.
    pub name: Vec<u8>,
    /// What it allows.
    pub permissions: Vec<Permission>,
}

/// What may be done with which keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permission {
    /// What.
    pub kind: PermissionKind,
    /// The first key.
    pub key: Vec<u8>,
    /// One past the last key; empty for a single key, one zero byte for all from `key` on.
    pub range_end: Vec<u8>,
}

/// What may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermissionKind {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Both.
    ReadWrite,
}

/// An entry as it is in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawEntry {
    /// The bucket it is in.
    pub bucket: Vec<u8>,
    /// Its key there. Never empty.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}
