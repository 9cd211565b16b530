//! One child process, ended when its guard is dropped.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::cleanup;
use crate::Result;

/// Lines of a server's log that are shown when it did not come up.
const LOG_LINES_SHOWN: usize = 20;

/// A running server.
pub(crate) struct Server {
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts it; what it says is appended to `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Server> {
        let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
        let file = OpenOptions::new().create(true).append(true).open(log);
        let file = file.map_err(|error| failed(&log.display().to_string(), error))?;
        let copy = file.try_clone().map_err(|error| failed("sharing the log file", error))?;
        // A group of its own: Ctrl-C is for us, and we end it in order.
        command.stdin(Stdio::null()).stdout(file).stderr(copy).process_group(0);
        let child = cleanup::start(|| command.spawn());
        let child = child.map_err(|error| failed(&command.get_program().to_string_lossy(), error))?;
        Ok(Server { child, log: log.to_path_buf() })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails with the end of its log if it has ended.
    pub(crate) fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                cleanup::ended(self.child.id());
                Err(format!("the server ended ({status}); its last words:\n{}", self.last_words()))
            }
            Err(error) => Err(format!("waiting for the server: {error}")),
        }
    }

    /// Ends it at once, as a crash would, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        // Both fail only if the process is gone already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
        cleanup::ended(self.child.id());
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.ok_or_else(|| "a process without a number".to_string())?;
        rustix::process::kill_process(pid, signal).map_err(|error| format!("signalling the server: {error}"))
    }

    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A benchmark that leaves servers behind spoils the next one, and the machine.
    #[test]
    fn a_dropped_server_is_gone() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut command = Command::new("sleep");
        command.arg("1000");
        let mut server = Server::start(command, log.path()).unwrap();
        let pid = server.pid();
        assert_eq!(server.check_alive(), Ok(()));
        assert!(crate::procfs::memory(pid).is_ok());
        drop(server);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    /// "It did not start" without the reason sends people hunting for a log in a removed directory.
    #[test]
    fn a_server_that_ended_says_why() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such flag >&2; exit 3"]);
        let mut server = Server::start(command, log.path()).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let error = loop {
            match server.check_alive() {
                Err(error) => break error,
                Ok(()) => assert!(std::time::Instant::now() < deadline),
            }
        };
        assert!(error.contains("no such flag"), "{error}");
    }
}
