//! etcd's protobuf messages inside the entries, and their translation. Field numbers are etcd's.

use prost::Message;

use crate::contents::{
    Alarm, AlarmKind, ChangeKind, KeyRecord, Lease, Permission, PermissionKind, Revision, Role, User,
};

#[derive(Clone, PartialEq, Message)]
struct WireKeyValue {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(int64, tag = "2")]
    create_revision: i64,
    #[prost(int64, tag = "3")]
    mod_revision: i64,
    #[prost(int64, tag = "4")]
    version: i64,
    #[prost(bytes = "vec", tag = "5")]
    value: Vec<u8>,
    #[prost(int64, tag = "6")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct WireLease {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(int64, tag = "2")]
    ttl: i64,
    #[prost(int64, tag = "3")]
    remaining_ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct WireAlarm {
    #[prost(uint64, tag = "1")]
    member_id: u64,
    #[prost(int32, tag = "2")]
    alarm: i32,
}

#[derive(Clone, PartialEq, Message)]
struct WireUserOptions {
    #[prost(bool, tag = "1")]
    no_password: bool,
}

#[derive(Clone, PartialEq, Message)]
struct WireUser {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    password: Vec<u8>,
    #[prost(string, repeated, tag = "3")]
    roles: Vec<String>,
    #[prost(message, optional, tag = "4")]
    options: Option<WireUserOptions>,
}

#[derive(Clone, PartialEq, Message)]
struct WirePermission {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct WireRole {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    permissions: Vec<WirePermission>,
}

const ALARM_NO_SPACE: i32 = 1;
const ALARM_CORRUPT: i32 = 2;

/// Makes sense of a message, or says what is wrong with it.
fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, String> {
    M::decode(bytes).map_err(|error| error.to_string())
}

/// The change that stands at `revision`.
pub(crate) fn decode_change(revision: Revision, tombstone: bool, bytes: &[u8]) -> Result<ChangeKind, String> {
    check_revision(revision)?;
    if bytes.is_empty() && !tombstone {
        return Ok(ChangeKind::Mark);
    }
    let wire: WireKeyValue = decode(bytes)?;
    if tombstone {
        return if wire.key.is_empty() {
            Err("a deletion without a key".to_owned())
        } else {
            Ok(ChangeKind::Delete { key: wire.key })
        };
    }
    let record = KeyRecord {
        key: wire.key,
        create_revision: wire.create_revision,
        mod_revision: wire.mod_revision,
        version: wire.version,
        value: wire.value,
        lease: wire.lease,
    };
    check_record(revision, &record)?;
    Ok(ChangeKind::Put(record))
}

/// Refuses a revision no change has. A server skips such changes when it starts, so they would be lost.
pub(crate) fn check_revision(revision: Revision) -> Result<(), String> {
    if revision.main < 1 || revision.sub < 0 {
        return Err(format!("revision {}.{} is below the first one", revision.main, revision.sub));
    }
    Ok(())
}

/// Refuses a record that cannot stand at `revision`.
pub(crate) fn check_record(revision: Revision, record: &KeyRecord) -> Result<(), String> {
    if record.key.is_empty() {
        return Err("a write without a key".to_owned());
    }
    if record.mod_revision != revision.main {
        return Err(format!("written at revision {} but says {}", revision.main, record.mod_revision));
    }
    if record.create_revision < 1 || record.create_revision > record.mod_revision {
        return Err(format!("created at {}, modified at {}", record.create_revision, record.mod_revision));
    }
    if record.version < 1 {
        return Err(format!("has version {}", record.version));
    }
    Ok(())
}

pub(crate) fn encode_change(kind: &ChangeKind) -> Vec<u8> {
    match kind {
        ChangeKind::Mark => Vec::new(),
        ChangeKind::Delete { key } => WireKeyValue { key: key.clone(), ..WireKeyValue::default() }.encode_to_vec(),
        ChangeKind::Put(record) => WireKeyValue {
            key: record.key.clone(),
            create_revision: record.create_revision,
            mod_revision: record.mod_revision,
            version: record.version,
            value: record.value.clone(),
            lease: record.lease,
        }
        .encode_to_vec(),
    }
}

pub(crate) fn decode_lease(bytes: &[u8]) -> Result<Lease, String> {
    let wire: WireLease = decode(bytes)?;
    Ok(Lease { id: wire.id, ttl_s: wire.ttl, remaining_ttl_s: wire.remaining_ttl })
}

pub(crate) fn encode_lease(lease: &Lease) -> Vec<u8> {
    WireLease { id: lease.id, ttl: lease.ttl_s, remaining_ttl: lease.remaining_ttl_s }.encode_to_vec()
}

pub(crate) fn decode_alarm(bytes: &[u8]) -> Result<Alarm, String> {
    let wire: WireAlarm = decode(bytes)?;
    let kind = match wire.alarm {
        ALARM_NO_SPACE => AlarmKind::NoSpace,
        ALARM_CORRUPT => AlarmKind::Corrupt,
        other => AlarmKind::Other(other),
    };
    Ok(Alarm { member_id: wire.member_id, kind })
}

pub(crate) fn encode_alarm(alarm: &Alarm) -> Vec<u8> {
    let kind = match alarm.kind {
        AlarmKind::NoSpace => ALARM_NO_SPACE,
        AlarmKind::Corrupt => ALARM_CORRUPT,
        AlarmKind::Other(other) => other,
    };
    WireAlarm { member_id: alarm.member_id, alarm: kind }.encode_to_vec()
}

pub(crate) fn decode_user(bytes: &[u8]) -> Result<User, String> {
    let wire: WireUser = decode(bytes)?;
    Ok(User {
        name: wire.name,
        password_hash: wire.password,
        roles: wire.roles,
        no_password: wire.options.map(|options| options.no_password),
    })
}

pub(crate) fn encode_user(user: &User) -> Vec<u8> {
    WireUser {
        name: user.name.clone(),
        password: user.password_hash.clone(),
        roles: user.roles.clone(),
        options: user.no_password.map(|no_password| WireUserOptions { no_password }),
    }
    .encode_to_vec()
}

pub(crate) fn decode_role(bytes: &[u8]) -> Result<Role, String> {
    let wire: WireRole = decode(bytes)?;
    let permissions = wire.permissions.into_iter().map(decode_permission).collect::<Result<_, _>>()?;
    Ok(Role { name: wire.name, permissions })
}

/// A kind we do not know is refused: guessing would let somebody in, or keep somebody out.
fn decode_permission(wire: WirePermission) -> Result<Permission, String> {
    let kind = match wire.kind {
        0 => PermissionKind::Read,
        1 => PermissionKind::Write,
        2 => PermissionKind::ReadWrite,
        other => return Err(format!("a permission of unknown kind {other}")),
    };
    Ok(Permission { kind, key: wire.key, range_end: wire.range_end })
}

pub(crate) fn encode_role(role: &Role) -> Vec<u8> {
    let permissions = role
        .permissions
        .iter()
        .map(|permission| WirePermission {
            kind: match permission.kind {
                PermissionKind::Read => 0,
                PermissionKind::Write => 1,
                PermissionKind::ReadWrite => 2,
            },
            key: permission.key.clone(),
            range_end: permission.range_end.clone(),
        })
        .collect();
    WireRole { name: role.name.clone(), permissions }.encode_to_vec()
}
