//! Looking at what there is: names, their members, sessions. Nothing here changes anything but
//! [`Client::end_session`].

use std::sync::atomic::{AtomicU32, Ordering};

use tidelock_native_api::v1;

use crate::client::Client;
use crate::error::{Code, Error, Loss, Refusal, is_certainly_undone};
use crate::nodes::Calls;

pub use tidelock_native_api::v1::{Holding, Kind, Member, Mode, NameFound, Session};

/// How many are asked for at a time.
const PAGE: u32 = 1000;

impl Client {
    /// All names of one kind that begin like `prefix`, with how many members each has. For administrators, where
    /// there are users.
    pub async fn names(&self, kind: Kind, prefix: &str) -> Result<Vec<NameFound>, Error> {
        self.names_with_members(kind, prefix, 0).await
    }

    /// The same, each with so many of its members (`first`), up to a thousand: a few questions, however many names
    /// there are.
    pub async fn names_with_members(&self, kind: Kind, prefix: &str, members: u32) -> Result<Vec<NameFound>, Error> {
        let mut found: Vec<NameFound> = Vec::new();
        loop {
            let after = found.last().map(|last| last.name.clone()).unwrap_or_default();
            let (kind, prefix) = (kind.into(), prefix.to_owned());
            let request = v1::NamesRequest { kind, prefix, after, limit: PAGE, stale: false, members };
            let ask = |mut calls: Calls| {
                let request = request.clone();
                async move { calls.names(request).await }
            };
            let reply = self.question(ask).await?;
            let is_last = !reply.more || reply.names.is_empty();
            found.extend(reply.names);
            if is_last {
                return Ok(found);
            }
        }
    }

    /// The members of one name, the first in the queue first; at most so many. And how many there are in all.
    pub async fn members(&self, kind: Kind, name: &str, most: usize) -> Result<(Vec<Member>, u64), Error> {
        let mut found: Vec<Member> = Vec::new();
        loop {
            let limit = PAGE.min(u32::try_from(most - found.len()).unwrap_or(PAGE));
            let (kind, name, skip) = (kind.into(), name.to_owned(), found.len() as u64);
            let request = v1::DescribeRequest { kind, name, skip, limit, ..Default::default() };
            let reply = self.describe(request).await?;
            let is_last = reply.members.len() < limit as usize || limit < PAGE;
            found.extend(reply.members);
            if is_last || found.len() >= most {
                return Ok((found, reply.count));
            }
        }
    }

    /// All sessions with up to a thousand of the things they hold, and how long each has left. For administrators,
    /// where there are users.
    pub async fn sessions(&self) -> Result<Vec<Session>, Error> {
        let mut found: Vec<Session> = Vec::new();
        loop {
            let after = found.last().map(|last| last.session).unwrap_or_default();
            let request = v1::SessionsRequest { after, holdings: PAGE, remaining: true, ..Default::default() };
            let reply = self.ask_sessions(&request).await?;
            if reply.sessions.is_empty() {
                return Ok(found);
            }
            found.extend(reply.sessions);
        }
    }

    /// Those of these sessions that live, without what they hold, and how long each has left. For administrators, where
    /// there are users.
    pub async fn sessions_of(&self, ids: &[i64]) -> Result<Vec<Session>, Error> {
        let mut found: Vec<Session> = Vec::new();
        for some in ids.chunks(PAGE as usize) {
            let request = v1::SessionsRequest { only: some.to_vec(), remaining: true, ..Default::default() };
            found.extend(self.ask_sessions(&request).await?.sessions);
        }
        Ok(found)
    }

    async fn ask_sessions(&self, request: &v1::SessionsRequest) -> Result<v1::SessionsReply, Error> {
        let ask = |mut calls: Calls| {
            let request = request.clone();
            async move { calls.sessions(request).await }
        };
        self.question(ask).await
    }

    /// Ends a session, whoever's it is, with all that it holds. Its owner is told that it is lost. Refused as
    /// [`Code::NotFound`] if there was no such session.
    pub async fn end_session(&self, session: i64) -> Result<(), Error> {
        // Asked, and nobody said that nothing came of it.
        let in_doubt = AtomicU32::new(0);
        let close = |mut calls: Calls| {
            in_doubt.fetch_add(1, Ordering::Relaxed);
            let in_doubt = &in_doubt;
            async move {
                let answer = calls.close(v1::CloseRequest { session }).await;
                if answer.as_ref().is_err_and(is_certainly_undone) {
                    in_doubt.fetch_sub(1, Ordering::Relaxed);
                }
                answer
            }
        };
        let ended = self.question(close).await;
        let may_have_ended = in_doubt.load(Ordering::Relaxed) > 0;
        match ended {
            Ok(_) => Ok(()),
            // Asked before without an answer: it was that which ended it.
            Err(Error::Lost(Loss::SessionEnded)) if may_have_ended => Ok(()),
            // Whatever was answered to the last try says nothing of those before.
            Err(_) if may_have_ended => Err(Error::Unknown { waited: self.patience() }),
            // Nothing of the caller's is lost by that.
            Err(Error::Lost(Loss::SessionEnded)) => {
                let message = format!("there is no session {session:x}");
                Err(Error::Refused(Refusal { code: Code::NotFound, message, numbers: Default::default() }))
            }
            Err(error) => Err(error),
        }
    }
}
