//! Elections: one leader at a time, and who it is.

use std::time::Duration;

use bytes::Bytes;
use tidelock_native_api::v1::{self, Kind, notice::Notice, request::Op};

use crate::client::Client;
use crate::error::Error;
use crate::guard::{Guard, Token};
use crate::handle::Observation;
use crate::lock::{Queue, queue_settings};

impl Client {
    /// An election. Whoever stands for it leads when all before it have gone.
    pub fn election(&self, name: &str) -> Election {
        Election { queue: Queue::new(self, name) }
    }
}

/// One leader at a time, whose token is its epoch. See [`Client::election`].
///
#[doc = concat!("```\n", include_str!("doc/election.rs"), "```")]
#[derive(Clone, Debug)]
#[must_use = "nothing is asked for before `campaign`"]
pub struct Election {
    queue: Queue,
}

queue_settings!(Election);

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Its session.
    pub session: i64,
    /// Its epoch.
    pub token: Token,
    /// What it shows.
    pub data: Bytes,
    place: u64,
}

impl Election {
    /// Waits until this candidate leads. Dropped, it stands for the election no more.
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        let campaign = v1::Campaign {
            name: self.queue.name.clone(),
            wait: self.queue.wire_wait(),
            data: self.queue.data.clone(),
            queue_max: self.queue.queue_max,
        };
        self.queue.stand(Kind::Election, Op::Campaign(campaign)).await.map(Leadership)
    }

    /// Who leads now; nobody may.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        self.look().await.map(|(leader, _)| leader)
    }

    async fn look(&self) -> Result<(Option<Leader>, Option<v1::Header>), Error> {
        let found = self.queue.client.describe_head(Kind::Election, &self.queue.name).await?;
        let first = found.members.into_iter().next().filter(|first| first.token != 0);
        let leader = |first: v1::Member| {
            let v1::Member { session, token, data, place, .. } = first;
            Leader { session, token: token.into(), data, place }
        };
        Ok((first.map(leader), found.header))
    }

    /// Tells who leads, now and whenever that or what it shows changes.
    pub async fn observe(&self) -> Result<LeaderChanges, Error> {
        let observation = self.queue.client.observe_now(Kind::Election, &self.queue.name).await?;
        Ok(LeaderChanges { election: self.clone(), observation: Some(observation), must_look: true, last: None })
    }
}

/// Who leads, change by change. From [`Election::observe`].
pub struct LeaderChanges {
    election: Election,
    /// None: something was missed, and it must begin anew.
    observation: Option<Observation>,
    /// What is told next says too little, or something was missed. Kept here, so that who drops the call before it has
    /// looked, or whose look fails, looks at the next call.
    must_look: bool,
    /// What was told last; outside: nothing yet.
    last: Option<Option<Leader>>,
}

impl LeaderChanges {
    /// Who leads, if that is news: at first who leads now. Changes that follow each other while nobody asks may be told
    /// as one, so the last one told is always the newest. May be dropped half way, and asked again after an error:
    /// nothing is missed by that.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        loop {
            let news = if self.must_look { self.look().await? } else { self.told().await };
            if let Some(news) = news
                && self.last.as_ref() != Some(&news)
            {
                self.last = Some(news.clone());
                return Ok(news);
            }
        }
    }

    async fn look(&mut self) -> Result<Option<Option<Leader>>, Error> {
        let observation = match &mut self.observation {
            Some(observation) => observation,
            none => {
                let (queue, client) = (&self.election.queue, &self.election.queue.client);
                none.insert(client.observe_now(Kind::Election, &queue.name).await?)
            }
        };
        let (leader, header) = self.election.look().await?;
        observation.looked(header.as_ref());
        self.must_look = false;
        Ok(Some(leader))
    }

    /// Who leads after the next thing that happens; `None`: nothing changed by it, or one must look.
    async fn told(&mut self) -> Option<Option<Leader>> {
        let notice = match &mut self.observation {
            Some(observation) => observation.next().await,
            None => None,
        };
        let Some(notice) = notice else {
            (self.observation, self.must_look) = (None, true);
            return None;
        };
        let last = self.last.as_ref().and_then(Option::as_ref);
        let token = last.map_or(0, |last| last.token.get());
        match notice.notice {
            Some(Notice::Granted(v1::Granted { session, token: new, data, place, .. })) if new > token => {
                Some(Some(Leader { session, token: new.into(), data, place }))
            }
            Some(Notice::Changed(v1::Changed { session, token: same, data, .. })) if same == token => {
                let place = last.map_or(0, |last| last.place);
                Some(Some(Leader { session, token: same.into(), data, place }))
            }
            Some(Notice::Gone(gone)) if last.is_some_and(|last| last.place == gone.place) => {
                self.must_look = true;
                None
            }
            _ => None,
        }
    }
}

/// The lead of an election; otherwise as [`Guard`]. Dropped, it is given up.
#[must_use = "the lead is given up when this is dropped"]
#[derive(Debug)]
pub struct Leadership(Guard);

impl std::ops::Deref for Leadership {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl AsRef<Guard> for Leadership {
    fn as_ref(&self) -> &Guard {
        &self.0
    }
}

impl Leadership {
    /// Shows something else to who observes.
    pub async fn proclaim(&self, data: impl Into<Bytes>) -> Result<(), Error> {
        let (name, token, data) = (self.0.name().to_owned(), self.0.token().get(), data.into());
        self.0.session().ask(Op::Proclaim(v1::Proclaim { name, token, data })).await.map(drop)
    }

    /// Leads no more. The next candidate follows.
    pub async fn resign(self) -> Result<(), Error> {
        self.0.release().await
    }

    /// Leads no more, and lets the candidate with that session follow, before all others. If there is none, the lead is
    /// given up and the call is refused as [`crate::Code::NoSuccessor`].
    pub async fn resign_to(self, successor: i64) -> Result<(), Error> {
        let (name, token) = (self.0.name().to_owned(), self.0.token().get());
        let resign = Op::Resign(v1::Resign { name, token, successor });
        self.0.into_possession().end_by(resign).await.map(drop)
    }

    /// The session that leads: what others name in [`Leadership::resign_to`].
    #[must_use]
    pub fn session(&self) -> i64 {
        self.0.session().id()
    }
}
