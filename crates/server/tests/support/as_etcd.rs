//! The binary under test, started as `etcd` by a symbolic link, the way it takes etcd's place.

// Every test binary uses another part of this file.
#![allow(dead_code, unreachable_pub)]
// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use crate::support::{TIDELOCK, wait_for};

/// What tools wait for.
pub const READY: &str = "ready to serve client requests";

/// A command named `etcd`, with nothing inherited from the environment of the test.
pub fn etcd(dir: &Path) -> Command {
    let link = dir.join("etcd");
    if !link.exists() {
        std::os::unix::fs::symlink(TIDELOCK, &link).unwrap();
    }
    let mut command = Command::new(link);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("TIDELOCK_") || name.starts_with("ETCD_") {
            command.env_remove(name);
        }
    }
    command.current_dir(dir).stdin(Stdio::null());
    command
}

/// What it says and how it ends when it does not start.
pub fn output(command: &mut Command) -> (Output, String) {
    let output = command.output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output, text)
}

/// A running member.
pub struct Member {
    child: Child,
    log: PathBuf,
}

impl Member {
    /// Starts `command`, with its log in `dir`.
    pub fn start(mut command: Command, dir: &Path, name: &str) -> Member {
        let log = dir.join(format!("{name}.stderr"));
        let stderr = File::options().create(true).append(true).open(&log).unwrap();
        Member { child: command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap(), log }
    }

    /// What it said on standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits for the line that tools wait for.
    pub fn wait_until_ready(&mut self) {
        wait_for("the member to be ready", || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the member ended: {ended:?}\n{}", self.log());
            self.log().contains(READY).then_some(())
        });
    }

    /// Waits until it ends by itself.
    pub fn wait_until_ended(&mut self) -> ExitStatus {
        wait_for("the member to end", || self.child.try_wait().unwrap())
    }

    /// Asks it to stop; gives the signal it ended by.
    pub fn terminate(&mut self) -> Option<i32> {
        use rustix::process::{Pid, Signal, kill_process};
        kill_process(Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap(), Signal::TERM).unwrap();
        self.wait_until_ended().signal()
    }

    /// Ends it the hard way.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- log {}\n{}", self.log.display(), self.log());
        }
    }
}

pub fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}
