//! A program that runs under something that is held: started, watched, signalled, ended, and its terminal looked after.
//!
//! It has a process group of its own, so that all of it can be ended. A terminal obeys one group at a time, and that is
//! ours at first: a program that only prints leaves it to its neighbours in a pipeline. When the program asks for it the
//! kernel stops it; then it is given the terminal and goes on. Once it has ended the terminal is taken back.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpgrp, kill_process_group, waitid};
use tidelock_client::Guard;
use tokio::sync::{mpsc, oneshot};

use super::stand_in::{NOT_STARTED, give_terminal_to, run_by, take_terminal_back_by};
use crate::failure::Failure;

/// Most things seen of the program and not looked at yet: the thread that sees them waits.
const SEEN_MAX: usize = 8;

/// What is seen of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// By that signal.
    Stopped(Signal),
    /// It has ended, and is still there to be asked how.
    Ended,
}

pub(super) struct Program {
    child: Child,
    group: Pid,
    seen: mpsc::Receiver<Seen>,
    has_terminal: bool,
}

impl Program {
    pub(super) fn start(guard: &Guard, words: &[String]) -> Result<Program, Failure> {
        let mut command = run_by(words);
        command.env("TIDELOCK_TOKEN", guard.token().to_string()).process_group(0);
        let failed =
            |error: std::io::Error| Failure::new(format!("the program cannot be started: {error}")).code(NOT_STARTED);
        let (sender, seen) = mpsc::channel(SEEN_MAX);
        // Before the program: one that nobody can watch would run on without its lock.
        let (started, is_started) = oneshot::channel();
        let watching = move || {
            if let Ok(group) = is_started.blocking_recv() {
                watch(group, &sender);
            }
        };
        std::thread::Builder::new().name("program".into()).spawn(watching).map_err(failed)?;
        let child = command.spawn().map_err(failed)?;
        let group = Pid::from_child(&child);
        // It waits for that, and for nothing else.
        let _ = started.send(group);
        Ok(Program { child, group, seen, has_terminal: false })
    }

    /// Waits until it has ended. May be dropped half way, and asked again.
    pub(super) async fn wait(&mut self) {
        loop {
            match self.seen.recv().await {
                Some(Seen::Stopped(Signal::TTIN | Signal::TTOU)) => self.give_terminal(),
                // Ctrl-Z. A program that stands still would keep what it holds for as long as it stands.
                Some(Seen::Stopped(Signal::TSTP)) => self.send(Signal::CONT),
                Some(Seen::Stopped(_)) => {}
                Some(Seen::Ended) | None => return,
            }
        }
    }

    /// Gives it the terminal, if that is ours to give, and lets it go on.
    pub(super) fn give_terminal(&mut self) {
        if give_terminal_to(self.group) {
            self.has_terminal = true;
            self.send(Signal::CONT);
        }
    }

    /// Tells the whole group. Who is stopped would not hear it.
    pub(super) fn pass_on(&self, signal: Signal) {
        self.send(signal);
        self.send(Signal::CONT);
    }

    /// Ends the whole group: politely, and then not.
    pub(super) async fn end(&mut self, grace: Duration) {
        self.pass_on(Signal::TERM);
        let ended = tokio::time::timeout(grace, self.wait()).await.is_ok();
        // Even if it has ended: its children may not have listened.
        self.send(Signal::KILL);
        if !ended {
            self.wait().await;
        }
    }

    /// How it ended. Only once it has.
    pub(super) fn finish(mut self) -> Result<ExitStatus, Failure> {
        if self.has_terminal {
            // Nothing can be done about a terminal that is gone.
            let _ = take_terminal_back_by(getpgrp()).process_group(self.group.as_raw_nonzero().get()).status();
        }
        self.child.wait().map_err(|error| Failure::new(format!("cannot wait for the program: {error}")))
    }

    fn send(&self, signal: Signal) {
        // An error means that nobody is left in it.
        let _ = kill_process_group(self.group, signal);
    }
}

/// Tells what becomes of a child, and leaves it to be waited for: until then its number is nobody else's.
fn watch(child: Pid, seen: &mpsc::Sender<Seen>) {
    let leave = WaitIdOptions::NOWAIT;
    loop {
        let told = match waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::STOPPED | leave) {
            Err(Errno::INTR) => continue,
            Ok(Some(status)) if status.stopped() => {
                // Seen once is enough.
                let _ = waitid(WaitId::Pid(child), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
                status.stopping_signal().and_then(Signal::from_named_raw).map(Seen::Stopped)
            }
            Ok(_) | Err(_) => Some(Seen::Ended),
        };
        if told.is_some_and(|told| seen.blocking_send(told).is_err()) || told == Some(Seen::Ended) {
            return;
        }
    }
}
