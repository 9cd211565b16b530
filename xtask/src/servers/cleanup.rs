//! Nothing is left behind: every child process and data directory is on a list while it exists.
//!
//! Guards end and remove them on every ordinary way out, errors included. A signal comes while a load keeps its thread busy,
//! and a release build aborts on panic and runs no guards: both walk the list instead. Processes are ended by
//! id, and an id is off the list before the kernel can give it to somebody else.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::Result;

struct Left {
    pids: BTreeSet<u32>,
    directories: BTreeSet<PathBuf>,
    system_directories: BTreeSet<PathBuf>,
}

static LEFT: Mutex<Left> =
    Mutex::new(Left { pids: BTreeSet::new(), directories: BTreeSet::new(), system_directories: BTreeSet::new() });

/// Tries to remove a directory of the system's, which stays as long as somebody reads a file in it, and pauses between.
const REMOVALS: usize = 40;
const REMOVAL_PAUSE: Duration = Duration::from_millis(50);

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

/// Ends and removes everything, then does the `last` thing, which is to end this process: nothing is started or made
/// meanwhile.
pub(crate) fn end_all(last: impl FnOnce()) {
    with_left(|left| {
        remove_all(left);
        last();
    });
}

fn remove_all(left: &mut Left) {
    let pid = |pid| i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let pids: Vec<_> = std::mem::take(&mut left.pids).into_iter().filter_map(pid).collect();
    for pid in &pids {
        // It fails if the process is gone already, which is what is wanted.
        let _ = rustix::process::kill_process(*pid, rustix::process::Signal::KILL);
    }
    for pid in pids {
        // One that still runs would write into what is removed next. It fails if somebody else has waited for it.
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    }
    for directory in std::mem::take(&mut left.directories) {
        let _ = std::fs::remove_dir_all(directory);
    }
    for directory in std::mem::take(&mut left.system_directories) {
        remove_whole(&directory);
    }
}

fn remove_whole(directory: &Path) {
    for _ in 0..REMOVALS {
        if std::fs::remove_dir(directory).is_ok() {
            return;
        }
        std::thread::sleep(REMOVAL_PAUSE);
    }
}

/// Starts a child process. Never between walking the list and the end of this process.
pub(super) fn start(spawn: impl FnOnce() -> std::io::Result<Child>) -> std::io::Result<Child> {
    with_left(|left| {
        let child = spawn()?;
        left.pids.insert(child.id());
        Ok(child)
    })
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
        let make = |left: &mut Left| {
            std::fs::create_dir_all(parent)?;
            let directory = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
            left.directories.insert(directory.path().to_path_buf());
            Ok(DataDir(directory))
        };
        with_left(make).map_err(|error: std::io::Error| format!("making a directory in {}: {error}", parent.display()))
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

/// A directory of the system's that is made and removed whole, such as an instance of its trace.
pub(crate) struct SystemDir(PathBuf);

impl SystemDir {
    /// Makes it.
    pub(crate) fn make(path: PathBuf) -> std::io::Result<SystemDir> {
        with_left(|left| {
            std::fs::create_dir(&path)?;
            left.system_directories.insert(path.clone());
            Ok(SystemDir(path))
        })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SystemDir {
    fn drop(&mut self) {
        with_left(|left| left.system_directories.remove(&self.0));
        remove_whole(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a panic or a signal nobody else would end the servers.
    #[test]
    fn what_is_on_the_list_is_ended_and_removed() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("data");
        std::fs::create_dir_all(directory.join("inner")).unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let whole = parent.path().join("whole");
        std::fs::create_dir(&whole).unwrap();
        let mut left = Left {
            pids: [child.id()].into(),
            directories: [directory.clone()].into(),
            system_directories: [whole.clone()].into(),
        };
        remove_all(&mut left);
        assert!(child.wait().is_err(), "it was ended and waited for");
        assert!(!directory.exists() && !whole.exists());
        assert!(left.pids.is_empty() && left.directories.is_empty());
    }
}
