//! What this program does in children of its own, which it starts as itself with a first word that no user types.
//!
//! Two things must be done by another process than the one that holds a lock, and code between fork and exec would be
//! unsafe. So a child begins as this program, does the one thing, and goes on as the program that was asked for.
//!
//! - [`run_by`]: the kernel kills the program if the one that holds its lock dies without a word.
//! - [`take_terminal_back_by`]: a terminal that was given to the program's process group can be given back only by a
//!   member of that group; anybody else would be stopped for trying.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, getpgrp, getppid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::native::LOST;
use crate::failure::Failure;

const RUN: &str = "--run-under-lock";
const TAKE_TERMINAL_BACK: &str = "--take-terminal-back";
/// This very program, even if its file was replaced meanwhile.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// The program could not be started, or is not there: as shells have it.
pub(super) const NOT_STARTED: u8 = 126;
const NO_SUCH_PROGRAM: u8 = 127;

/// A command that runs `program` and dies with this process. To be started by the thread that ends last: the kernel
/// takes the end of the starting thread for that of the process.
pub(super) fn run_by(program: &[String]) -> Command {
    let mut command = Command::new(THIS_PROGRAM);
    command.arg0("tidelock").arg(RUN).arg(std::process::id().to_string()).args(program);
    command
}

/// A command that gives the terminal to the process group `to`. To be started in the group that has it.
pub(super) fn take_terminal_back_by(to: Pid) -> Command {
    let mut command = Command::new(THIS_PROGRAM);
    command.arg0("tidelock").arg(TAKE_TERMINAL_BACK).arg(to.as_raw_nonzero().to_string());
    command
}

/// Does what this process was started for, if it is one of these.
pub(crate) fn run_if_meant(mut words: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let word = words.next()?;
    let pid = |word: Option<OsString>| Pid::from_raw(word?.to_str()?.parse().ok()?);
    if word == RUN {
        let failure = become_program(pid(words.next()), words);
        eprintln!("{failure}");
        return Some(failure.exit_code());
    }
    if word == TAKE_TERMINAL_BACK {
        let taken = pid(words.next()).is_some_and(give_terminal);
        return Some(if taken { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    None
}

/// Returns only if it does not work.
fn become_program(parent: Option<Pid>, mut words: impl Iterator<Item = OsString>) -> Failure {
    let Some(program) = words.next() else { return Failure::usage("there is no program to run") };
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return Failure::new(format!("cannot tie the program to its lock: {error}")).code(NOT_STARTED);
    }
    // It may have died before it could be tied to.
    if getppid() != parent {
        return Failure::new("whoever holds the lock is gone").code(LOST);
    }
    let error = Command::new(&program).args(words).exec();
    let code = if error.kind() == std::io::ErrorKind::NotFound { NO_SUCH_PROGRAM } else { NOT_STARTED };
    Failure::new(format!("{} cannot be started: {error}", program.to_string_lossy())).code(code)
}

/// Gives the terminal away, if it is this process group's to give.
fn give_terminal(to: Pid) -> bool {
    std::fs::File::open("/dev/tty")
        .is_ok_and(|terminal| tcgetpgrp(&terminal) == Ok(getpgrp()) && tcsetpgrp(&terminal, to).is_ok())
}

/// Gives the terminal to another process group, if it is this one's to give. `false`: it is not, or there is none.
pub(super) fn give_terminal_to(group: Pid) -> bool {
    give_terminal(group)
}
