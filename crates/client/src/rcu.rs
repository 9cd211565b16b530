//! Read, copy, update: publish versions, and know when nobody reads the old ones any more.

use std::time::Duration;

use bytes::Bytes;
use tidelock_native_api::v1::{self, Kind, answer::Answer, describe_reply::Head, notice::Notice, request::Op};

use crate::client::Client;
use crate::error::{Error, Loss};
use crate::guard::Token;
use crate::handle::Possession;
use crate::held::{may_be_lost, ttl_setting};
use crate::latch::not_found;

impl Client {
    /// Versions of something.
    pub fn rcu(&self, name: &str) -> Rcu {
        Rcu { client: self.clone(), name: name.to_owned(), fencing: None, ttl: None }
    }
}

/// Versions of something, and who still reads old ones. See [`Client::rcu`].
///
#[doc = concat!("```\n", include_str!("doc/rcu.rs"), "```")]
#[derive(Clone, Debug)]
pub struct Rcu {
    client: Client,
    name: String,
    fencing: Option<v1::Fencing>,
    ttl: Option<Duration>,
}

ttl_setting!(Rcu, ttl);

impl Rcu {
    /// Publishes only if `fence` lets `token` through: who lost its lock replaces nothing any more.
    pub fn fenced(mut self, fence: &str, token: Token) -> Rcu {
        self.fencing = Some(v1::Fencing { fence: fence.to_owned(), token: token.get() });
        self
    }

    /// Publishes the next version: some bytes, at most 4,096, mostly a reference. Tells its number.
    pub async fn publish(&self, data: impl Into<Bytes>) -> Result<u64, Error> {
        let publish = v1::Publish { name: self.name.clone(), data: data.into(), fencing: self.fencing.clone() };
        match self.client.ask(self.ttl, None, Op::Publish(publish)).await?.answer {
            Answer::Version(version) => Ok(version.version),
            _ => Err(Error::protocol("no version in answer to a publication")),
        }
    }

    /// Begins to read. As long as the reader is there, its version and later ones stay.
    pub async fn read(&self) -> Result<RcuReader, Error> {
        let start = Op::StartReading(v1::StartReading { name: self.name.clone() });
        let answered = self.client.ask(self.ttl, None, start).await?;
        let possession = answered.possession.ok_or_else(|| Error::protocol("no reader in answer to one"))?;
        let (version, data) = self.current().await?;
        Ok(RcuReader { rcu: self.clone(), possession, version, data })
    }

    /// Waits until nobody reads anything older than `version`: all before it may go.
    pub async fn synchronize(&self, version: u64) -> Result<(), Error> {
        loop {
            let mut observation = self.client.observe_now(Kind::Rcu, &self.name).await?;
            let mut oldest = self.head().await?.oldest;
            loop {
                if oldest >= version {
                    return Ok(());
                }
                match observation.next().await.map(|notice| notice.notice) {
                    Some(Some(Notice::Rcu(rcu))) => oldest = rcu.oldest,
                    Some(_) => {}
                    None => break,
                }
            }
        }
    }

    /// Removes it with all its versions; refused as [`crate::Code::InUse`] while somebody reads. Published again, it has
    /// a version that it never had before.
    pub async fn forget(&self) -> Result<(), Error> {
        self.client.forget(Kind::Rcu, &self.name).await
    }

    async fn head(&self) -> Result<v1::RcuHead, Error> {
        match self.client.describe_head(Kind::Rcu, &self.name).await?.head {
            Some(Head::Rcu(head)) => Ok(head),
            _ => Err(not_found(&self.name)),
        }
    }

    async fn current(&self) -> Result<(u64, Bytes), Error> {
        self.head().await.map(|head| (head.version, head.data))
    }
}

/// Somebody who reads. Dropped, it reads no more.
#[must_use = "what is read may go when the reader is dropped"]
#[derive(Debug)]
pub struct RcuReader {
    rcu: Rcu,
    possession: Possession,
    version: u64,
    data: Bytes,
}

may_be_lost!(RcuReader);

impl RcuReader {
    /// The version that is read.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What was published as that version.
    #[must_use]
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// Goes on with the newest version, and lets older ones go.
    pub async fn refresh(&mut self) -> Result<(), Error> {
        let (version, data) = self.rcu.current().await?;
        let (name, reader) = (self.rcu.name.clone(), self.possession.place().unwrap_or_default());
        match self.possession.session().ask(Op::Report(v1::Report { name, reader, version })).await {
            Ok(_) => (self.version, self.data) = (version, data),
            // The place is gone: then so is the session's.
            Err(error) if error.code() == Some(crate::Code::NoSuchPlace) => return Err(Loss::SessionEnded.into()),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Reads no more, and waits until that is known.
    pub async fn finish(self) -> Result<(), Error> {
        self.possession.give_back().await.map(drop)
    }
}
