//! Nothing is left behind: every child process and data directory is on a list while it exists.
//!
//! Guards end and remove them on every ordinary way out, Ctrl-C and errors included. A release build
//! aborts on panic and runs no guards, so a panic hook walks the list instead. Processes are ended by
//! id, and an id is off the list before the kernel can give it to somebody else.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::Result;

struct Left {
    pids: BTreeSet<u32>,
    directories: BTreeSet<PathBuf>,
}

static LEFT: Mutex<Left> = Mutex::new(Left { pids: BTreeSet::new(), directories: BTreeSet::new() });

fn with_left<T>(change: impl FnOnce(&mut Left) -> T) -> T {
    change(&mut LEFT.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Sets the panic hook; the usual message is printed first.
pub(crate) fn install() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        // A panic while the list is held must not wait for itself.
        if let Ok(mut left) = LEFT.try_lock() {
            remove_all(&mut left);
        }
    }));
}

fn remove_all(left: &mut Left) {
    for pid in std::mem::take(&mut left.pids) {
        let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            // It fails if the process is gone already, which is what is wanted.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    for directory in std::mem::take(&mut left.directories) {
        let _ = std::fs::remove_dir_all(directory);
    }
}

/// A child process exists.
pub(super) fn started(pid: u32) {
    with_left(|left| left.pids.insert(pid));
}

/// A child process has been waited for.
pub(super) fn ended(pid: u32) {
    with_left(|left| left.pids.remove(&pid));
}

/// A directory that is removed with everything in it when this is dropped.
pub(crate) struct DataDir(tempfile::TempDir);

impl DataDir {
    /// A new directory in `parent`, its name beginning with `prefix`.
    pub(crate) fn under(parent: &Path, prefix: &str) -> Result<DataDir> {
        let make = || {
            std::fs::create_dir_all(parent)?;
            tempfile::Builder::new().prefix(prefix).tempdir_in(parent)
        };
        let directory = make().map_err(|error| format!("making a directory in {}: {error}", parent.display()))?;
        with_left(|left| left.directories.insert(directory.path().to_path_buf()));
        Ok(DataDir(directory))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        with_left(|left| left.directories.remove(self.0.path()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a panic nobody else would end the servers: this is what the hook does.
    #[test]
    fn what_is_on_the_list_is_ended_and_removed() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("data");
        std::fs::create_dir_all(directory.join("inner")).unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let mut left = Left { pids: [child.id()].into(), directories: [directory.clone()].into() };
        remove_all(&mut left);
        assert!(!child.wait().unwrap().success());
        assert!(!directory.exists());
        assert!(left.pids.is_empty() && left.directories.is_empty());
    }
}
