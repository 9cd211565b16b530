//! The way from the parts of a program to the client's task.
//!
//! New wishes are bounded ([`WISHES_MAX`]); what only gives back is always taken, since whoever drops something cannot
//! wait, and there is no more of it than was wished for. Closed from either end: when the last sender is gone the task
//! takes what is left and then nothing, and when the task is gone nobody can send any more.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use crate::error::{Error, Failure};
use crate::task::Command;

/// Most wishes that the task has not taken.
const WISHES_MAX: usize = 65_536;

#[derive(Default)]
struct Waiting {
    commands: VecDeque<Command>,
    no_sender: bool,
    no_receiver: bool,
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    news: Notify,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where commands are put. The task goes on as long as there is one.
#[derive(Clone)]
pub(crate) struct Sender(Arc<LastSender>);

struct LastSender(Arc<Shared>);

impl Drop for LastSender {
    fn drop(&mut self) {
        self.0.waiting().no_sender = true;
        self.0.news.notify_one();
    }
}

impl Sender {
    /// Puts in a wish, unless too many wait already.
    pub(crate) fn wish(&self, command: Command) -> Result<(), Error> {
        self.put(command, WISHES_MAX)
    }

    /// Puts in what gives back. If the task is gone, so is all that could be given back.
    pub(crate) fn give_back(&self, command: Command) {
        let _ = self.wish_back(command);
    }

    /// Puts in a wish that gives back: taken however many wait. Only fails if the task is gone.
    pub(crate) fn wish_back(&self, command: Command) -> Result<(), Error> {
        self.put(command, usize::MAX)
    }

    fn put(&self, command: Command, most: usize) -> Result<(), Error> {
        let mut waiting = self.0.0.waiting();
        if waiting.no_receiver {
            return Err(Failure::Closed.into());
        }
        if waiting.commands.len() >= most {
            return Err(Failure::Overloaded.into());
        }
        waiting.commands.push_back(command);
        drop(waiting);
        self.0.0.news.notify_one();
        Ok(())
    }

    /// A sender that does not keep the task going.
    pub(crate) fn downgrade(&self) -> WeakSender {
        WeakSender(Arc::downgrade(&self.0))
    }
}

/// A sender that does not keep the task going.
pub(crate) struct WeakSender(Weak<LastSender>);

impl WeakSender {
    /// A real one, if there is one still.
    pub(crate) fn upgrade(&self) -> Option<Sender> {
        self.0.upgrade().map(Sender)
    }
}

/// Where commands are taken.
pub(crate) struct Receiver(Arc<Shared>);

impl Receiver {
    /// The next command; none once there is no sender any more. May be dropped half way.
    pub(crate) async fn next(&mut self) -> Option<Command> {
        loop {
            let news = self.0.news.notified();
            {
                let mut waiting = self.0.waiting();
                if let Some(command) = waiting.commands.pop_front() {
                    return Some(command);
                }
                if waiting.no_sender || waiting.no_receiver {
                    return None;
                }
            }
            news.await;
        }
    }

    /// Takes nothing more in.
    pub(crate) fn close(&mut self) {
        self.0.waiting().no_receiver = true;
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let left = {
            let mut waiting = self.0.waiting();
            waiting.no_receiver = true;
            std::mem::take(&mut waiting.commands)
        };
        // Not while the lock is held: what is dropped may give back.
        drop(left);
    }
}

/// Both ends.
pub(crate) fn inbox() -> (Sender, Receiver) {
    let shared = Arc::new(Shared::default());
    (Sender(Arc::new(LastSender(Arc::clone(&shared)))), Receiver(shared))
}
