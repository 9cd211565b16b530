//! Making a data directory out of a backup: one founder of a new cluster that begins with data.
//!
//! Every founder of the new cluster does the same with the same backup and gets the same state at the
//! founding index, byte for byte. From there the rules of founding hold: a founder promises nothing before it
//! has met all others, and its disk's number is drawn anew (H21, decision 0010).
//!
//! What holds:
//! - the directory appears as a whole, under its name, once everything in it is durable. A half-made one
//!   that a node starts from would found an empty cluster in place of the restored one;
//! - a directory with anything in it is refused and left as it is.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tidelock_journal::{JournalConfig, OsDisk};
use tidelock_model::{ClusterId, Member, NodeId, Revision};
use tidelock_replica::consensus::FOUNDING;
use tidelock_state::{Imported, StateImport};

use crate::config::NodeLimits;
use crate::founding::found_with;
use crate::identity::Identity;
use crate::node::StartError;

/// Ending of the directory's name while it is not complete.
const UNFINISHED: &str = "restoring";

/// Which founder of which cluster is made.
#[derive(Clone, Debug)]
pub struct Founder {
    /// The new cluster. It must be another one than the backup was taken from.
    pub cluster: ClusterId,
    /// This founder.
    pub node: NodeId,
    /// All founders, this one included.
    pub members: Vec<Member>,
}

/// A data directory that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The revision the cluster begins at.
    pub revision: Revision,
    /// The oldest revision that can be read; zero: all of them.
    pub compacted: Revision,
    /// Keys that exist.
    pub keys: u64,
    /// Leases that exist.
    pub leases: u64,
    /// Keys that named a lease that does not exist, and have none now.
    pub without_lease: u64,
    /// Fingerprint of the state: the same on all founders.
    pub digest: u128,
}

/// Why there is no data directory.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// There is something there.
    #[error("{} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// The system refused.
    #[error("{}: {error}", path.display())]
    Io {
        /// Which file or directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The state could not be written.
    #[error(transparent)]
    Write(#[from] StartError),
}

/// Whether a data directory can be made at `data_dir`: there must be nothing, or an empty directory.
pub fn check_vacant(data_dir: &Path) -> Result<(), RestoreError> {
    match fs::read_dir(data_dir) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(RestoreError::NotEmpty(data_dir.to_owned())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(RestoreError::Io { path: data_dir.to_owned(), error }),
    }
}

/// Makes the data directory of one founder. The node that is started from it later needs no founding
/// flags: the directory knows who it is.
pub fn restore(data_dir: &Path, founder: &Founder, import: StateImport) -> Result<Restored, RestoreError> {
    check_vacant(data_dir)?;
    let draft = Draft::beside(data_dir)?;
    let Imported { mut state, without_lease } = import.finish(founder.members.clone());
    state.apply_nothing(FOUNDING.0);
    let restored = Restored {
        revision: state.revision(),
        compacted: state.compacted(),
        keys: state.keys(),
        leases: state.lease_count(),
        without_lease,
        digest: state.digest(),
    };
    let disk = OsDisk::open(&draft.path).map_err(StartError::from)?;
    let limits = NodeLimits::default();
    let journal = JournalConfig {
        segment_bytes: limits.segment_bytes,
        free_floor_bytes: limits.free_floor_bytes,
        ..JournalConfig::default()
    };
    found_with(&disk, &journal, &state, &founder.members)?;
    let identity = Identity {
        cluster: founder.cluster,
        node: founder.node,
        disk: rand::random(),
        first_members: founder.members.clone(),
    };
    identity.write(&disk).map_err(StartError::from)?;
    drop(disk);
    draft.publish(data_dir)?;
    Ok(restored)
}

/// A directory under another name, removed again unless it is published.
struct Draft {
    path: PathBuf,
    published: bool,
}

impl Draft {
    fn beside(target: &Path) -> Result<Draft, RestoreError> {
        let failed = |path: &Path, error| RestoreError::Io { path: path.to_owned(), error };
        let name = target.file_name().ok_or_else(|| {
            failed(target, io::Error::new(io::ErrorKind::InvalidInput, "not the name of a directory"))
        })?;
        if let Some(parent) = parent(target) {
            fs::create_dir_all(parent).map_err(|error| failed(parent, error))?;
        }
        let mut draft = std::ffi::OsString::from(".");
        draft.push(name);
        draft.push(format!(".{UNFINISHED}-{:016x}", rand::random::<u64>()));
        Ok(Draft { path: target.with_file_name(draft), published: false })
    }

    fn publish(mut self, target: &Path) -> Result<(), RestoreError> {
        let failed = |path: &Path, error| RestoreError::Io { path: path.to_owned(), error };
        // Takes the place of an empty directory and of nothing else.
        fs::rename(&self.path, target).map_err(|error| failed(target, error))?;
        self.published = true;
        let parent = parent(target).unwrap_or(Path::new("."));
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(|error| failed(parent, error))
    }
}

fn parent(path: &Path) -> Option<&Path> {
    path.parent().filter(|parent| !parent.as_os_str().is_empty())
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.published {
            // Best effort, for the room it takes; nothing starts from it.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
