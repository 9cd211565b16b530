//! Running a program for as long as something is held.
//!
//! The program has a process group of its own. When what is held is lost, the whole group gets SIGTERM, and SIGKILL when
//! the grace is over. Signals that ask this process to end are passed on, and what is held is kept until the program
//! has ended: it may be in the middle of a write. Ctrl-Z is not obeyed: a stopped process renews nothing.
//!
//! If this process itself is killed the hard way, the kernel kills the program, but not what the program started; the
//! token is all that keeps that from doing harm.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;
use tidelock_client::{Client, Error, Guard};

use super::native::{LOST, failure};
use super::program::Program;
use crate::failure::Failure;
use crate::signals::{Signals, end_by};

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
    let mut signals = Signals::listen_like_a_program()?;
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
    // It was granted, but that may be long ago: this process may have been stopped meanwhile.
    guard.check().map_err(|error| failure(&error))?;
    signals.hear_stops()?;
    let mut program = Program::start(guard, supervision.program)?;
    loop {
        tokio::select! {
            () = program.wait() => return program.finish().map(Ended::ByItself),
            error = guard.lost() => {
                program.end(supervision.grace).await;
                program.finish()?;
                return Ok(Ended::Lost(error));
            }
            signal = signals.next_number() => match Signal::from_named_raw(signal) {
                Some(Signal::TSTP) => eprintln!("not stopped: what is held would be lost; Ctrl-C ends the program"),
                // Fetched to the foreground, where the program may be waiting to be.
                Some(Signal::CONT) => program.give_terminal(),
                Some(signal) => program.pass_on(signal),
                None => {}
            },
        }
    }
}
