//! `tidelock snapshot restore`: makes the data directory of one founder of a new cluster from a backup in
//! etcd's file format, whoever wrote it.
//!
//! The whole file is read and checked before anything is written. Every member of the new cluster is made by
//! the same command with its own name; the cluster's id follows from the token, the members *and* what was
//! read, so that members made from different files, which would silently differ, turn each other away.

use serde_json::json;
use tidelock_etcd_backup::{BackupReader, Change, ChangeKind, ChecksumRule, MemberState, ReadError};
use tidelock_model::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use tidelock_model::{Key, KeyValue, LeaseId, Record, RecordMeta, Revision, Space};
use tidelock_node::{RestoreError, Restored, StateImport, check_vacant};

use super::snapshot::{compacted_of, file_failure};
use super::snapshot_auth::auth_of;
use crate::cli::{Output, RestoreArgs};
use crate::config::{Config, Origin, PEER_LISTEN_DEFAULT};
use crate::failure::Failure;
use crate::identity::{Founder, Founding};
use crate::output::Printer;
use crate::progress;
use crate::settings::Settings;

/// Bytes of a change in the file besides key and value, about: for the progress bar.
const CHANGE_OVERHEAD_BYTES: usize = 60;
/// Changes between two moves of the progress bar.
const PROGRESS_EVERY: u64 = 4096;
/// What to do about anything that stops a restore.
const NOTHING_WRITTEN: &str = "nothing was written";

pub(super) fn restore(args: &RestoreArgs, printer: &Printer) -> Result<(), Failure> {
    let founders = founders(args)?;
    check_vacant(&args.data_dir).map_err(|error| restore_failure(&error))?;
    let rule = if args.skip_hash_check { ChecksumRule::Ignored } else { ChecksumRule::Required };
    let mut reader = BackupReader::open(&args.file, rule).map_err(|error| file_failure(&args.file, &error))?;
    let mut notes = notes(reader.state());
    let mut import = import(args, &mut reader)?;
    let token = token(args, &founders);
    let auth = auth_of(&reader.state().auth)
        .map_err(|what| Failure::new(format!("{}: {what}", args.file.display())).hint(NOTHING_WRITTEN))?;
    import.set_auth(auth);
    let founding = Founding::derive(&format!("restored {:032x} {token}", import.fingerprint()), &founders.all);
    let own =
        founding.member(&founders.own).ok_or_else(|| Failure::usage("--initial-cluster does not list this node"))?;
    let founder = tidelock_node::Founder { cluster: founding.cluster, node: own.id, members: founding.members.clone() };
    let spinner = progress::spinner("writing the data directory");
    let restored = tidelock_node::restore(&args.data_dir, &founder, import).map_err(|error| restore_failure(&error))?;
    spinner.finish_and_clear();
    if restored.without_lease > 0 {
        notes.push(format!("{} keys named a lease that does not exist, and have none now", restored.without_lease));
    }
    print(args, printer, &founding, &founders.own, &restored, &notes)
}

/// Who founds the new cluster, and which of them is made here.
struct Founders {
    all: Vec<Founder>,
    own: String,
}

/// Checked by the same rules as the flags of `serve`.
fn founders(args: &RestoreArgs) -> Result<Founders, Failure> {
    let settings = Settings {
        name: args.name.clone(),
        data_dir: Some(args.data_dir.clone()),
        initial_cluster: args.initial_cluster.clone(),
        peer_advertise: args.peer_advertise.clone(),
        // Nothing is listened on here: where this member will listen is for `serve` to check.
        peer_listen: Some("127.0.0.1:0".into()),
        ..Settings::default()
    };
    let config = Config::check(settings)?;
    let all = match config.origin {
        Origin::Founders(founders) => founders,
        Origin::Alone | Origin::Join(_) | Origin::Added { .. } => {
            let peer_address = config.peer_advertise.unwrap_or_else(|| PEER_LISTEN_DEFAULT.to_owned());
            vec![Founder { name: config.name.clone(), peer_address, ..Founder::default() }]
        }
    };
    Ok(Founders { all, own: config.name })
}

/// What tells this cluster from others restored from the same file by the same members.
fn token(args: &RestoreArgs, founders: &Founders) -> String {
    match &args.cluster_token {
        Some(token) => token.clone(),
        None if founders.all.len() == 1 => format!("{:032x}", rand::random::<u128>()),
        None => "restored".to_owned(),
    }
}

/// Reads the whole file.
fn import(args: &RestoreArgs, reader: &mut BackupReader) -> Result<StateImport, Failure> {
    let refused =
        |what: &dyn std::fmt::Display| Failure::new(format!("{}: {what}", args.file.display())).hint(NOTHING_WRITTEN);
    let unreadable = |error: ReadError| file_failure(&args.file, &error);
    let revision = u64::try_from(reader.revision()).unwrap_or(0).saturating_add(args.bump_revision);
    let compacted = match args.mark_compacted {
        true => revision,
        false => u64::try_from(compacted_of(reader.state())).unwrap_or(0),
    };
    let mut import = StateImport::new(Revision(revision), Revision(compacted)).map_err(|error| refused(&error))?;
    for lease in reader.leases() {
        let lease = lease.map_err(unreadable)?;
        // A lease that etcd could grant fits or lives for a century; it is never ended early.
        let ttl_s = u32::try_from(lease.ttl_s.max(1)).unwrap_or(u32::MAX);
        import.add_lease(LeaseId(lease.id), ttl_s).map_err(|error| refused(&error))?;
    }
    let bar = progress::spinner("reading");
    progress::measure(&bar, reader.bytes(), "reading");
    let (mut changes, mut bytes) = (0_u64, 0);
    for change in reader.changes() {
        let change = change.map_err(unreadable)?;
        changes += 1;
        if let Some(item) = item_of(&change).map_err(|what| refused(&what))? {
            bytes += (item.key.as_stored().len() + item.record.value().len() + CHANGE_OVERHEAD_BYTES) as u64;
            import.add_change(item).map_err(|error| refused(&error))?;
        }
        if changes.is_multiple_of(PROGRESS_EVERY) {
            bar.set_position(bytes);
        }
    }
    bar.finish_and_clear();
    Ok(import)
}

/// A change as our store keeps it; none if it touched no key.
fn item_of(change: &Change) -> Result<Option<KeyValue>, String> {
    let at = |what: &str| format!("the change at revision {}.{} {what}", change.revision.main, change.revision.sub);
    let number = |number: i64| u64::try_from(number).map_err(|_| at("has a negative number"));
    let sub = u32::try_from(change.revision.sub).map_err(|_| at("is in a transaction larger than any"))?;
    let modified = Revision(number(change.revision.main)?);
    let key = |name: &[u8]| match name.len() {
        0..=KEY_BYTES_MAX => Ok(Key::new(Space::User, name)),
        bytes => Err(at(&format!("has a key of {bytes} bytes; {KEY_BYTES_MAX} are allowed here"))),
    };
    Ok(match &change.kind {
        ChangeKind::Mark => None,
        ChangeKind::Delete { key: name } => {
            Some(KeyValue { key: key(name)?, record: Record::tombstone(modified, sub) })
        }
        ChangeKind::Put(put) => {
            if put.value.len() > VALUE_BYTES_MAX {
                let bytes = put.value.len();
                return Err(at(&format!("has a value of {bytes} bytes; {VALUE_BYTES_MAX} are allowed here")));
            }
            let (created, version) = (Revision(number(put.create_revision)?), number(put.version)?);
            let meta = RecordMeta { created, modified, version, lease: LeaseId(put.lease), sub };
            Some(KeyValue { key: key(&put.key)?, record: Record::new(meta, &put.value) })
        }
    })
}

/// What the person who restores should know.
fn notes(state: &MemberState) -> Vec<String> {
    let mut notes = Vec::new();
    for alarm in &state.alarms {
        notes.push(format!("the old cluster had raised an alarm ({:?}); it is not raised in the new one", alarm.kind));
    }
    if !state.unrecognised.is_empty() {
        let count = state.unrecognised.len();
        notes.push(format!("{count} entries of kinds that are not known here are left out"));
    }
    notes
}

fn restore_failure(error: &RestoreError) -> Failure {
    let failure = Failure::new(error.to_string());
    match error {
        RestoreError::NotEmpty(_) => {
            failure.hint("give a directory that does not exist yet; nothing is restored over data that is there")
        }
        RestoreError::Io { .. } | RestoreError::Write(_) => failure.hint(NOTHING_WRITTEN),
    }
}

fn print(
    args: &RestoreArgs,
    printer: &Printer,
    founding: &Founding,
    name: &str,
    restored: &Restored,
    notes: &[String],
) -> Result<(), Failure> {
    let (cluster, members) = (founding.cluster, &founding.members);
    let own = founding.member(name);
    let node = own.map(|member| member.id).unwrap_or_default();
    if printer.format == Output::Json {
        return Ok(printer.json(&json!({
            "data_dir": args.data_dir.display().to_string(),
            "cluster": format!("{cluster:x}"),
            "node": format!("{node:x}"),
            "members": members.len(),
            "revision": restored.revision.0,
            "compacted": restored.compacted.0,
            "keys": restored.keys,
            "leases": restored.leases,
            "digest": format!("{:032x}", restored.digest),
            "notes": notes,
        }))?);
    }
    let directory = args.data_dir.display();
    printer.line(&format!(
        "restored {directory}: keys {}, leases {}, at revision {}, history since {}",
        restored.keys,
        restored.leases,
        restored.revision,
        restored.compacted.max(Revision::FIRST)
    ))?;
    printer.line(&format!("member {node:x} of {} in the new cluster {cluster:x}", members.len()))?;
    printer.line(&format!("digest {:032x}: the same on all members", restored.digest))?;
    for note in notes {
        printer.line(&format!("note: {note}"))?;
    }
    let peer = own.and_then(|member| member.peer_addresses.first()).map_or("", String::as_str);
    printer
        .line(&format!("start it with: tidelock serve --name {name} --data-dir {directory} --peer-listen {peer}"))?;
    Ok(())
}
