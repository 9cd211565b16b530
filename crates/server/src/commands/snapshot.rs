//! `tidelock snapshot save|status`: backups in etcd's own file format. Restoring is in `snapshot_restore`.
//!
//! A saved file gets its name only when all of it is on disk, its checksum matches and every entry in it
//! was read back: a backup that cannot be restored is found now, not when it is needed.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::NamedTempFile;
use tidelock_etcd_api::etcdserverpb::SnapshotRequest;
use tidelock_etcd_api::etcdserverpb::maintenance_client::MaintenanceClient;
use tidelock_etcd_backup::{BackupReader, Checksum, ChecksumRule, MemberState, ReadError, Status};

use super::connection::{connect_for_streams, read_failure};
use super::snapshot_restore::restore;
use crate::cli::{ClientArgs, Output, SnapshotAction, SnapshotArgs};
use crate::failure::Failure;
use crate::output::{Printer, bytes_text, table};
use crate::progress;

/// Largest piece of a snapshot taken; servers send some ten kilobytes at a time.
const BLOB_BYTES_MAX: usize = 64 << 20;

pub(crate) async fn snapshot(args: &SnapshotArgs) -> Result<(), Failure> {
    let printer = Printer::new(args.client.output);
    match &args.action {
        SnapshotAction::Save { file } => save(file, &args.client, &printer).await,
        SnapshotAction::Status { file } => {
            let spinner = progress::spinner("checking the file");
            let report = look_into(file, ChecksumRule::IfPresent)?;
            spinner.finish_and_clear();
            print(&printer, "", &report)
        }
        SnapshotAction::Restore(args) => restore(args, &printer),
    }
}

async fn save(target: &Path, client: &ClientArgs, printer: &Printer) -> Result<(), Failure> {
    let directory = directory_of(target)?;
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Failure::new(format!("{}: {what}: {error}", target.display()))
            .hint("nothing was saved; what was there is untouched")
    };
    // Readable for its owner only, as everything in it may be secret; removed unless it gets its name.
    let mut draft = NamedTempFile::new_in(&directory).map_err(|error| failed("cannot write beside it", &error))?;
    download(client, draft.as_file_mut()).await.map_err(|failure| match failure {
        SaveFailure::Node(failure) => failure,
        SaveFailure::Disk(error) => failed("cannot be written", &error),
    })?;
    draft.as_file().sync_all().map_err(|error| failed("cannot be written", &error))?;
    let spinner = progress::spinner("checking the file");
    let report = look_into(draft.path(), ChecksumRule::Required)?;
    spinner.finish_and_clear();
    draft.persist(target).map_err(|error| failed("cannot be given its name", &error.error))?;
    File::open(&directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| failed("its directory", &error))?;
    print(printer, &format!("saved {}", target.display()), &FileReport { file: target.to_owned(), ..report })
}

enum SaveFailure {
    Node(Failure),
    Disk(std::io::Error),
}

async fn download(client: &ClientArgs, file: &mut File) -> Result<(), SaveFailure> {
    let channel = connect_for_streams(client).await.map_err(SaveFailure::Node)?;
    let mut maintenance = MaintenanceClient::new(channel).max_decoding_message_size(BLOB_BYTES_MAX);
    let bar = progress::spinner("the node puts the snapshot together");
    let refused = |status: tonic::Status| SaveFailure::Node(read_failure(&status));
    let mut blobs = maintenance.snapshot(SnapshotRequest {}).await.map_err(refused)?.into_inner();
    let mut received = 0;
    while let Some(part) = blobs.message().await.map_err(refused)? {
        if received == 0 {
            progress::measure(&bar, part.remaining_bytes.saturating_add(part.blob.len() as u64), "saving");
        }
        file.write_all(&part.blob).map_err(SaveFailure::Disk)?;
        received += part.blob.len() as u64;
        bar.set_position(received);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Where the file's name will be.
fn directory_of(target: &Path) -> Result<PathBuf, Failure> {
    let shown = target.display();
    if target.is_dir() || target.file_name().is_none() {
        return Err(Failure::usage(format!("{shown} is a directory")).hint("give the name of a file to save to"));
    }
    let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !directory.is_dir() {
        return Err(Failure::usage(format!("{shown}: there is no directory {}", directory.display()))
            .hint("make it first, or save to another place"));
    }
    Ok(directory.to_owned())
}

/// What is in a file.
pub(super) struct FileReport {
    file: PathBuf,
    status: Status,
    checksum: Checksum,
    revision: i64,
    compacted: i64,
    version: Option<String>,
}

/// Reads a whole file and says what is in it.
fn look_into(file: &Path, rule: ChecksumRule) -> Result<FileReport, Failure> {
    let unreadable = |error: ReadError| file_failure(file, &error);
    let mut reader = BackupReader::open(file, rule).map_err(unreadable)?;
    let status = reader.status().map_err(unreadable)?;
    let (checksum, revision) = (reader.checksum(), reader.revision());
    let (compacted, version) = (compacted_of(reader.state()), version_of(reader.state()));
    Ok(FileReport { file: file.to_owned(), status, checksum, revision, compacted, version })
}

/// Why a file cannot be read, by its name.
pub(super) fn file_failure(file: &Path, error: &ReadError) -> Failure {
    let failure = Failure::new(format!("{}: {error}", file.display()));
    match error {
        ReadError::ChecksumMissing => failure.hint(
            "if it is a copy of a member's member/snap/db, taken while that member was stopped, add --skip-hash-check",
        ),
        ReadError::NotABackup { .. } => failure
            .hint("give a file of `tidelock snapshot save`, `etcdctl snapshot save`, or a copy of member/snap/db"),
        _ => failure,
    }
}

/// The oldest revision that can be read in a file; zero: all of them.
pub(super) fn compacted_of(state: &MemberState) -> i64 {
    // One that was ordered and not finished may be half done: what it was to remove cannot be relied on.
    state.scheduled_compact_revision.max(state.finished_compact_revision).unwrap_or(0)
}

/// The version of etcd whose schema a file has. Servers before 3.6, and we, do not write it; what the
/// cluster could speak is the next best thing.
fn version_of(state: &MemberState) -> Option<String> {
    state.storage_version.clone().or_else(|| state.cluster_version.clone())
}

fn print(printer: &Printer, done: &str, report: &FileReport) -> Result<(), Failure> {
    let checksum = match report.checksum {
        Checksum::Matches => "matches",
        Checksum::Missing => "missing",
        Checksum::NotLookedAt => "not looked at",
    };
    if printer.format == Output::Json {
        return Ok(printer.json(&json!({
            "file": report.file.display().to_string(),
            "hash": report.status.hash,
            "revision": report.revision,
            "compacted": report.compacted,
            "keys": report.status.live_keys,
            "entries": report.status.entries,
            "bytes": report.status.bytes,
            "etcd_version": report.version,
            "checksum": checksum,
        }))?);
    }
    if !done.is_empty() {
        printer.line(done)?;
    }
    let heading = ["HASH", "REVISION", "COMPACTED", "KEYS", "ENTRIES", "SIZE", "ETCD VERSION", "CHECKSUM"];
    let row = vec![
        format!("{:x}", report.status.hash),
        report.revision.to_string(),
        report.compacted.to_string(),
        report.status.live_keys.to_string(),
        report.status.entries.to_string(),
        bytes_text(report.status.bytes),
        report.version.clone().unwrap_or_else(|| "not said".to_owned()),
        checksum.to_owned(),
    ];
    Ok(printer.line(&table(&[heading.map(str::to_owned).to_vec(), row]))?)
}
