//! Snapshot: the whole store as one file in etcd's own format, with its history since the compaction.
//!
//! `etcdctl snapshot save` keeps what it is sent, and etcd's tools and ours restore it. The file is written
//! to the scratch directory first, page by page while writes go on (`Coordinator::copy_state`), and then
//! sent at the client's pace: its database in blobs, and in the last one the checksum of all others. The
//! file has no name, so nothing is left behind however this ends.
//!
//! Refused: more than [`SNAPSHOTS_AT_ONCE_MAX`] at a time, and a scratch directory without room to spare:
//! it is the journal's disk as a rule.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_core::Stream;
use serde_json::json;
use tidelock_coordinator::{Coordinator, CopyError, CopyHead, StateCopy};
use tidelock_etcd_api::etcdserverpb::SnapshotResponse;
use tidelock_etcd_backup as backup;
use tidelock_model::{AlarmKind, Auth, Caller, KeyRange, KeyValue, Member, MemberRole, Permission, Role, Space, User};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tonic::{Response, Status};

use crate::auth::wire_permission;
use crate::error_map::FaceError;
use crate::header::{wire_number, wire_revision};
use crate::maintenance::ETCD_VERSION;
use crate::reply_stream::ReplyStream;
use crate::services::Services;

/// Snapshots under way at a time: each takes a thread now and then, and the room of a file.
pub(crate) const SNAPSHOTS_AT_ONCE_MAX: usize = 2;

/// Size of a blob. etcd sends half as much; clients take any.
const BLOB_BYTES: usize = 64 * 1024;
/// Blobs read from the file at a time.
const BLOBS_PER_READ: usize = 16;
/// Blobs waiting for the connection to take them.
const BLOBS_QUEUED: usize = 4;

/// Room that must stay on the scratch disk: twice what the node wants for its journal before it accepts
/// nothing that grows any more.
const FREE_BYTES_MIN: u64 = 128 << 20;
/// Bytes written between two looks at the room that is left.
const LOOK_EVERY_BYTES: u64 = 16 << 20;

/// The stream of a Snapshot call.
pub(crate) type Blobs = Pin<Box<dyn Stream<Item = Result<SnapshotResponse, Status>> + Send>>;

impl Services {
    pub(crate) fn stream_snapshot(&self, caller: Caller, requires_leader: bool) -> Result<Response<Blobs>, Status> {
        let permit = Arc::clone(&self.snapshots).try_acquire_owned().map_err(|_| FaceError::TooManyRequests)?;
        let (replies, stream) = mpsc::channel(BLOBS_QUEUED);
        let work = Work {
            coordinator: Arc::clone(&self.coordinator),
            caller,
            scratch_dir: self.config.scratch_dir.clone(),
            permit,
            abandoned: Abandoned::default(),
        };
        let end = self.stream_end(requires_leader);
        tokio::spawn(async move {
            tokio::select! {
                done = work.run(&replies) => if let Err(status) = done {
                    drop(replies.send(Err(status)).await);
                },
                why = end => drop(replies.send(Err(why.into())).await),
                () = replies.closed() => {}
            }
        });
        Ok(Response::new(Box::pin(ReplyStream(stream))))
    }
}

/// Tells the thread that writes that nobody waits for it any more.
#[derive(Default)]
struct Abandoned(Arc<AtomicBool>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A snapshot under way.
struct Work {
    coordinator: Arc<dyn Coordinator>,
    caller: Caller,
    scratch_dir: PathBuf,
    permit: OwnedSemaphorePermit,
    abandoned: Abandoned,
}

impl Work {
    async fn run(self, replies: &mpsc::Sender<Result<SnapshotResponse, Status>>) -> Result<(), Status> {
        let copy = self.coordinator.copy_state(self.caller).await.map_err(copy_status)?;
        let (flag, scratch_dir) = (Arc::clone(&self.abandoned.0), self.scratch_dir.clone());
        let permit = self.permit;
        // The permit goes along: the thread may outlive the stream by a page.
        let written =
            on_a_thread(move || write_file(copy, &scratch_dir, &flag).map(|(file, bytes)| (file, bytes, permit)));
        let (mut file, bytes, _permit) = written.await??;
        let mut seal = backup::Seal::default();
        let mut left = bytes;
        while left > 0 {
            let (read, piece) = on_a_thread(move || read_piece(file, left)).await?.map_err(scratch_status)?;
            file = read;
            seal.update(&piece);
            for start in (0..piece.len()).step_by(BLOB_BYTES) {
                let blob = piece.slice(start..piece.len().min(start + BLOB_BYTES));
                left -= blob.len() as u64;
                if replies.send(Ok(response(blob, left))).await.is_err() {
                    return Ok(());
                }
            }
        }
        drop(replies.send(Ok(response(Bytes::copy_from_slice(&seal.finish()), 0))).await);
        Ok(())
    }
}

async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    tokio::task::spawn_blocking(work).await.map_err(|_| FaceError::Stopped.into())
}

fn response(blob: Bytes, remaining_bytes: u64) -> SnapshotResponse {
    SnapshotResponse { header: None, remaining_bytes, blob, version: ETCD_VERSION.to_owned() }
}

/// The next bytes of the file, as many as are read at a time, and the file again.
fn read_piece(mut file: File, left: u64) -> std::io::Result<(File, Bytes)> {
    let most = BLOB_BYTES * BLOBS_PER_READ;
    let mut piece = vec![0; usize::try_from(left).map_or(most, |left| left.min(most))];
    file.read_exact(&mut piece)?;
    Ok((file, piece.into()))
}

fn copy_status(error: CopyError) -> Status {
    match error {
        CopyError::Replaced | CopyError::NothingYet => Status::unavailable(error.to_string()),
        CopyError::Refused(refusal) => FaceError::from(refusal).into(),
        CopyError::Stopping => FaceError::Stopped.into(),
    }
}

#[allow(clippy::needless_pass_by_value, reason = "as map_err wants it")]
fn scratch_status(error: std::io::Error) -> Status {
    Status::internal(format!("the snapshot cannot be written to the scratch directory: {error}"))
}

fn backup_status(error: backup::WriteError) -> Status {
    match error {
        backup::WriteError::Io(error) => scratch_status(error),
        other => Status::internal(other.to_string()),
    }
}

/// Writes everything of `copy` to a file without a name; gives it back, at its beginning, with its length.
fn write_file(mut copy: Box<dyn StateCopy>, dir: &Path, abandoned: &AtomicBool) -> Result<(File, u64), Status> {
    let file = tempfile::tempfile_in(dir).map_err(scratch_status)?;
    let mut writer = backup::BackupWriter::unnamed(file).map_err(backup_status)?;
    let mut looked_at = None;
    let mut last = copy.head().compacted;
    loop {
        if looked_at.is_none_or(|at| writer.bytes() - at >= LOOK_EVERY_BYTES) {
            check_room(dir)?;
            looked_at = Some(writer.bytes());
        }
        let page = copy.next_page().map_err(copy_status)?;
        if abandoned.load(Ordering::Relaxed) {
            return Err(FaceError::Stopped.into());
        }
        if page.is_empty() {
            break;
        }
        for item in page.iter().filter(|item| item.key.space_byte() == Some(Space::User as u8)) {
            writer.push(&change_of(item)).map_err(backup_status)?;
            last = last.max(item.record.meta().modified);
        }
    }
    if last < copy.head().revision {
        // The last revisions were not of etcd's keys. Without a mark they would be given out again.
        let revision = backup::Revision { main: wire_revision(copy.head().revision), sub: 0 };
        writer.push(&backup::Change { revision, kind: backup::ChangeKind::Mark }).map_err(backup_status)?;
    }
    for lease in leases_of(copy.head()) {
        writer.push_lease(&lease).map_err(backup_status)?;
    }
    let (file, written) = writer.finish_unsealed(&state_of(copy.head())).map_err(backup_status)?;
    Ok((file, written.bytes))
}

fn check_room(dir: &Path) -> Result<(), Status> {
    let found = rustix::fs::statvfs(dir).map_err(|error| scratch_status(error.into()))?;
    if found.f_bavail.saturating_mul(found.f_frsize) < FREE_BYTES_MIN {
        let text = format!("no room for a snapshot in {}: free some space there first", dir.display());
        return Err(Status::resource_exhausted(text));
    }
    Ok(())
}

fn change_of(item: &KeyValue) -> backup::Change {
    let meta = item.record.meta();
    let revision = backup::Revision { main: wire_revision(meta.modified), sub: i64::from(meta.sub) };
    let key = item.key.name().to_vec();
    if item.record.is_tombstone() {
        return backup::Change { revision, kind: backup::ChangeKind::Delete { key } };
    }
    let record = backup::KeyRecord {
        key,
        create_revision: wire_revision(meta.created),
        mod_revision: wire_revision(meta.modified),
        version: wire_number(meta.version),
        value: item.record.value().to_vec(),
        lease: meta.lease.0,
    };
    backup::Change { revision, kind: backup::ChangeKind::Put(record) }
}

/// The leases in the file's order, which takes ids as unsigned.
fn leases_of(head: &CopyHead) -> Vec<backup::Lease> {
    let lease = |(id, ttl_s): &(tidelock_model::LeaseId, u32)| backup::Lease {
        id: id.0,
        ttl_s: i64::from(*ttl_s),
        remaining_ttl_s: 0,
    };
    // Sessions are not in the file, nor what they held: without them their leases would be nobody's.
    let mut leases: Vec<backup::Lease> = head.leases.iter().map(lease).collect();
    leases.sort_by_key(|lease| lease.id as u64);
    leases
}

/// Everything but keys and leases. No position in a log and no version of the schema: a restore sets them,
/// and every version of etcd starts from a file without.
fn state_of(head: &CopyHead) -> backup::MemberState {
    let compacted = (head.compacted.0 > 0).then(|| wire_revision(head.compacted));
    backup::MemberState {
        scheduled_compact_revision: compacted,
        finished_compact_revision: compacted,
        members: head.members.iter().map(member_of).collect(),
        alarms: head.alarms.iter().filter_map(alarm_of).collect(),
        auth: auth_of(&head.auth),
        ..Default::default()
    }
}

/// Users with the hashes of their passwords, roles, and whether they are asked for. The secret that tokens
/// are made with stays here: etcd has no place for it, and backups travel.
fn auth_of(auth: &Auth) -> backup::Auth {
    if auth.is_untouched() {
        return backup::Auth::default();
    }
    let user = |(name, user): (&String, &User)| backup::User {
        name: name.clone().into_bytes(),
        password_hash: user.password_hash.clone().unwrap_or_default().into_bytes(),
        roles: user.roles.iter().cloned().collect(),
        no_password: Some(user.password_hash.is_none()),
    };
    let role = |(name, role): (&String, &Role)| backup::Role {
        name: name.clone().into_bytes(),
        permissions: role.permissions.iter().map(|(range, permission)| permission_of(range, *permission)).collect(),
    };
    backup::Auth {
        enabled: Some(auth.enabled),
        revision: Some(auth.revision),
        users: auth.users().iter().map(user).collect(),
        roles: auth.roles().iter().map(role).collect(),
    }
}

fn permission_of(range: &KeyRange, permission: Permission) -> backup::Permission {
    let wire = wire_permission(range, permission);
    let kind = match permission {
        Permission::Read => backup::PermissionKind::Read,
        Permission::Write => backup::PermissionKind::Write,
        Permission::ReadWrite => backup::PermissionKind::ReadWrite,
    };
    backup::Permission { kind, key: wire.key.to_vec(), range_end: wire.range_end.to_vec() }
}

fn member_of(member: &Member) -> backup::Member {
    let peers: Vec<String> = member.peer_addresses.iter().map(|address| format!("http://{address}")).collect();
    let mut json = json!({ "id": member.id.0, "peerURLs": peers, "name": member.name });
    if !member.client_urls.is_empty() {
        json["clientURLs"] = json!(member.client_urls);
    }
    if member.role == MemberRole::Learner {
        json["isLearner"] = json!(true);
    }
    backup::Member { id: member.id.0, json: json.to_string().into_bytes() }
}

/// An alarm about the data goes with the data. One about a member's disk stays: the restored cluster has
/// other members, and would refuse writes for want of space on a disk that it does not have.
fn alarm_of(alarm: &tidelock_model::Alarm) -> Option<backup::Alarm> {
    match alarm.kind {
        AlarmKind::Corrupt => Some(backup::Alarm { member_id: alarm.member.0, kind: backup::AlarmKind::Corrupt }),
        AlarmKind::NoSpace => None,
    }
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
