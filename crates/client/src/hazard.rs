//! Hazard leases: keep an object from going while somebody looks at it.

use std::time::Duration;

use tidelock_native_api::v1::{self, Kind, answer::Answer, describe_reply::Head, notice::Notice, request::Op};

use crate::client::Client;
use crate::error::{Error, Loss};
use crate::handle::Possession;
use crate::held::{may_be_lost, ttl_setting};

impl Client {
    /// An object that must not go while somebody looks at it.
    pub fn hazard(&self, name: &str) -> Hazard {
        Hazard { client: self.clone(), name: name.to_owned(), ttl: None }
    }
}

/// An object that must not go while somebody looks at it. See [`Client::hazard`].
///
/// A reader that is paused for longer than its session lives cannot keep anything. So a reader asks
/// [`Protection::confirm`] after reading, and throws away what it read if that fails.
///
/// A name is that of one object. Once retired it stays so, until [`Hazard::forget`] makes room for another of that name.
///
#[doc = concat!("```\n", include_str!("doc/hazard.rs"), "```")]
#[derive(Clone, Debug)]
pub struct Hazard {
    client: Client,
    name: String,
    ttl: Option<Duration>,
}

ttl_setting!(Hazard, ttl);

impl Hazard {
    /// Keeps the object from going; refused as [`crate::Code::Retiring`] if it is on its way out, or gone.
    pub async fn protect(&self) -> Result<Protection, Error> {
        let protect = Op::Protect(v1::Protect { name: self.name.clone() });
        let answered = self.client.ask(self.ttl, None, protect).await?;
        match (answered.answer, answered.possession) {
            (Answer::Protected(protected), Some(possession)) => {
                Ok(Protection { hazard: self.clone(), possession, epoch: protected.epoch })
            }
            _ => Err(Error::protocol("no protection in answer to one")),
        }
    }

    /// Lets nobody protect the object any more, and waits until nobody does: then it may go. Tells its last epoch, also
    /// if it was retired before. Dropped while it waits, the object is being retired all the same.
    pub async fn retire(&self) -> Result<u64, Error> {
        let mut observation = self.client.observe_now(Kind::Hazard, &self.name).await?;
        let retire = Op::Retire(v1::Retire { name: self.name.clone() });
        let Answer::Retired(retired) = self.client.ask(self.ttl, None, retire).await?.answer else {
            return Err(Error::protocol("no retirement in answer to one"));
        };
        let v1::Retired { epoch, mut clear } = retired;
        while !clear {
            match observation.next().await.map(|notice| notice.notice) {
                Some(Some(Notice::Hazard(hazard))) => clear = is_over(epoch, hazard.epoch, hazard.clear),
                Some(_) => {}
                None => {
                    observation = self.client.observe_now(Kind::Hazard, &self.name).await?;
                    // One that was forgotten had nobody to keep it.
                    clear = self.head().await?.is_none_or(|head| is_over(epoch, head.epoch, !head.retiring));
                }
            }
        }
        Ok(epoch)
    }

    /// Forgets the object, so that the name can be another's; refused as [`crate::Code::InUse`] while somebody protects
    /// it. For its owner, once it is deleted. The next one has an epoch that no earlier reader has.
    pub async fn forget(&self) -> Result<(), Error> {
        self.client.forget(Kind::Hazard, &self.name).await
    }

    async fn head(&self) -> Result<Option<v1::HazardHead>, Error> {
        match self.client.describe_head(Kind::Hazard, &self.name).await?.head {
            Some(Head::Hazard(head)) => Ok(Some(head)),
            _ => Ok(None),
        }
    }
}

/// Whether the retirement of `epoch` is over: it is clear, or another one followed.
fn is_over(epoch: u64, now: u64, clear: bool) -> bool {
    now > epoch || (now == epoch && clear)
}

/// Keeps an object from going. Dropped, it does so no more.
#[must_use = "the object may go when this is dropped"]
#[derive(Debug)]
pub struct Protection {
    hazard: Hazard,
    possession: Possession,
    epoch: u64,
}

may_be_lost!(Protection);

impl Protection {
    /// The object's epoch when it was protected.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Asks the cluster whether the object stayed all the while. What was read before is good only if it did.
    pub async fn confirm(&self) -> Result<(), Error> {
        // An epoch is one object's, from its first protection to its retirement.
        if self.hazard.head().await?.is_some_and(|head| head.epoch == self.epoch) {
            return Ok(());
        }
        // Being retired is fine as long as we are the ones it waits for.
        let place = self.possession.place().unwrap_or_default();
        let (kind, name) = (Kind::Hazard.into(), self.hazard.name.clone());
        let request = v1::DescribeRequest { kind, name, place, limit: 1, ..Default::default() };
        let found = self.hazard.client.describe(request).await?;
        let is_kept = found.members.iter().any(|member| member.place == place);
        if is_kept { Ok(()) } else { Err(Loss::SessionEnded.into()) }
    }

    /// Looks no more, and waits until that is known.
    pub async fn finish(self) -> Result<(), Error> {
        self.possession.give_back().await.map(drop)
    }
}
