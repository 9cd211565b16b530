//! Running a program for as long as something is held.
//!
//! The program has a process group of its own. When what is held is lost, the whole group gets SIGTERM, and SIGKILL when
//! the grace is over. Signals that ask this process to stop are passed on, and what is held is kept until the program
//! has ended: it may be in the middle of a write.
//!
//! If this process itself is killed the hard way, the program goes on alone, and the token is all that keeps it from
//! doing harm.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tidelock_client::{Client, Error, Guard};
use tokio::process::{Child, Command};

use super::native::{LOST, failure};
use crate::failure::Failure;
use crate::signals::{Signals, end_by};

/// The program could not be started, or is not there: as shells have it.
const NOT_STARTED: u8 = 126;
const NO_SUCH_PROGRAM: u8 = 127;
/// A program that was ended by signal N counts as having ended with this plus N: as shells have it.
const BY_SIGNAL: i32 = 128;

/// What is needed besides what is held.
pub(crate) struct Supervision<'a> {
    pub(crate) client: Client,
    pub(crate) program: &'a [String],
    pub(crate) grace: Duration,
}

/// How the program ended.
enum Ended {
    ByItself(ExitStatus),
    /// It was ended, since what it ran under is lost.
    Lost(Error),
}

/// Waits for a grant, and then runs the program under it. A signal that comes while waiting gives the place up.
pub(crate) async fn hold_and_run<G: AsRef<Guard>>(
    grant: impl Future<Output = Result<G, Error>>,
    supervision: Supervision<'_>,
) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let granted = tokio::select! {
        granted = grant => granted,
        signal = signals.next_number() => {
            supervision.client.close().await;
            end_by(signal);
            return Err(Failure::exit(BY_SIGNAL + signal));
        }
    };
    let guard = match granted {
        Ok(guard) => guard,
        Err(error) => {
            supervision.client.close().await;
            return Err(failure(&error));
        }
    };
    let ended = run(guard.as_ref(), &supervision, &mut signals).await;
    drop(guard);
    // Gives back what is held, and waits until that is done or the time for it is over.
    supervision.client.close().await;
    match ended? {
        Ended::ByItself(status) => {
            let code = status.code().unwrap_or_else(|| BY_SIGNAL + status.signal().unwrap_or_default());
            if code == 0 { Ok(()) } else { Err(Failure::exit(code)) }
        }
        Ended::Lost(error) => Err(Failure::new(format!("{error}; the program was ended")).code(LOST)),
    }
}

async fn run(guard: &Guard, supervision: &Supervision<'_>, signals: &mut Signals) -> Result<Ended, Failure> {
    let mut child = start(guard, supervision.program)?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    loop {
        tokio::select! {
            ended = child.wait() => return Ok(Ended::ByItself(waited(ended)?)),
            error = guard.lost() => {
                end(&mut child, group, supervision.grace).await?;
                return Ok(Ended::Lost(error));
            }
            signal = signals.next_number() => pass_on(group, signal),
        }
    }
}

fn start(guard: &Guard, program: &[String]) -> Result<Child, Failure> {
    let (name, arguments) = program.split_first().ok_or_else(|| Failure::usage("there is no program to run"))?;
    let mut command = Command::new(name);
    command.args(arguments).env("TIDELOCK_TOKEN", guard.token().to_string()).process_group(0);
    // It was granted, but that may be long ago: this process may have been stopped meanwhile.
    guard.check().map_err(|error| failure(&error))?;
    command.spawn().map_err(|error| {
        let code = if error.kind() == std::io::ErrorKind::NotFound { NO_SUCH_PROGRAM } else { NOT_STARTED };
        Failure::new(format!("{name} cannot be started: {error}")).code(code)
    })
}

async fn end(child: &mut Child, group: Option<Pid>, grace: Duration) -> Result<(), Failure> {
    send(group, Signal::TERM);
    if tokio::time::timeout(grace, child.wait()).await.is_err() {
        send(group, Signal::KILL);
        waited(child.wait().await)?;
    } else {
        // Its children may not have listened.
        send(group, Signal::KILL);
    }
    Ok(())
}

fn pass_on(group: Option<Pid>, signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        send(group, signal);
    }
}

fn send(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        // An error means that nobody is left in it.
        let _ = kill_process_group(group, signal);
    }
}

fn waited(ended: std::io::Result<ExitStatus>) -> Result<ExitStatus, Failure> {
    ended.map_err(|error| Failure::new(format!("cannot wait for the program: {error}")))
}
