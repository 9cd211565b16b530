//! What is held under a token.

use std::fmt;

use tidelock_native_api::v1::{self, Kind, answer::Answer, request::Op};

use crate::error::Error;
use crate::handle::{Answered, Possession, SessionHandle};

/// Fences off whoever held the same before: larger than every token given for that name before it, for ever.
///
/// Send it along with every write, and let the resource refuse a token that is smaller than the largest it has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

impl From<u64> for Token {
    fn from(number: u64) -> Token {
        Token(number)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Something that is held: a lock, permits of a semaphore, the lead of an election.
///
/// It is renewed in the background. Dropped, it is given back in the background; [`Guard::release`] also waits until
/// that is done. Neither is needed for safety: a process that dies gives back with its session.
///
/// **What it does not do:** nothing on this side can stop a write that is already on its way when the guard is lost. Send
/// [`Guard::token`] along and let the resource refuse old ones.
#[must_use = "what is held is given back when the guard is dropped"]
#[derive(Debug)]
pub struct Guard {
    possession: Possession,
    kind: Kind,
    name: String,
    token: Token,
}

impl Guard {
    /// From the answer to a request for a place, once that is granted.
    pub(crate) fn of(kind: Kind, name: &str, answered: Answered) -> Result<Guard, Error> {
        match (answered.answer, answered.possession) {
            (Answer::Place(v1::Place { token, .. }), Some(possession)) if token != 0 => {
                Ok(Guard { possession, kind, name: name.to_owned(), token: Token(token) })
            }
            _ => Err(Error::protocol("no place in answer to a request for one")),
        }
    }

    /// The token to send along with everything that is done under this guard.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// The name of what is held.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether it may still be relied on, at this very moment. Asks nobody, so it is cheap enough before every write.
    ///
    /// Fails from 0.8 times the time to live after the **sending** of the last renewal that the cluster acknowledged,
    /// by a clock that goes on while the machine sleeps or the process is stopped. Once it failed it fails for ever.
    pub fn check(&self) -> Result<(), Error> {
        self.possession.session().check()
    }

    /// Waits until it is lost, and tells how. For `tokio::select!` beside the work.
    pub async fn lost(&self) -> Error {
        self.possession.session().lost().await
    }

    /// Gives it back, and waits until others can have it. [`Error::Lost`] says that they could before.
    pub async fn release(self) -> Result<(), Error> {
        self.possession.give_back().await.map(drop)
    }

    /// Asks the cluster, not only this machine's clock, whether the token is current. One entry of the log.
    pub async fn confirm(&self) -> Result<(), Error> {
        let (kind, name, token) = (self.kind.into(), self.name.clone(), self.token.0);
        self.session().ask(Op::Renew(v1::Renew { kind, name, token, ttl_ms: 0 })).await.map(drop)
    }

    pub(crate) fn session(&self) -> &SessionHandle {
        self.possession.session()
    }

    pub(crate) fn into_possession(self) -> Possession {
        self.possession
    }
}

impl AsRef<Guard> for Guard {
    fn as_ref(&self) -> &Guard {
        self
    }
}
