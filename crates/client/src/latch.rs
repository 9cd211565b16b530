//! Latches: a count that opens a gate at zero.

use std::time::Duration;

use tidelock_native_api::v1::{self, Gate, Kind, answer::Answer, describe_reply::Head, notice::Notice, request::Op};

use crate::barrier::OnDeath;
use crate::client::Client;
use crate::error::{Code, Error, Loss, Refusal};
use crate::handle::{Answered, Possession};
use crate::held::{may_be_lost, ttl_setting};

impl Client {
    /// A latch.
    pub fn latch(&self, name: &str) -> Latch {
        Latch { client: self.clone(), name: name.to_owned(), ttl: None }
    }
}

/// A count that opens a gate at zero. See [`Client::latch`].
///
#[doc = concat!("```\n", include_str!("doc/latch.rs"), "```")]
#[derive(Clone, Debug)]
pub struct Latch {
    client: Client,
    name: String,
    ttl: Option<Duration>,
}

ttl_setting!(Latch, ttl);

impl Latch {
    /// Makes it, or sets it again once it is open or broken. What to do when one dies who promised to count down is said
    /// here.
    pub async fn set(&self, count: u64, on_death: OnDeath) -> Result<(), Error> {
        let set = v1::SetLatch { name: self.name.clone(), count, on_death: on_death.to_wire() };
        self.client.ask(self.ttl, None, Op::SetLatch(set)).await.map(drop)
    }

    /// Promises to count down once. Who dies before it did breaks the latch, or counts down by that, as it was set.
    pub async fn pledge(&self) -> Result<Pledge, Error> {
        let pledge = Op::Pledge(v1::Pledge { name: self.name.clone() });
        let possession = self.client.ask(self.ttl, None, pledge).await?.possession;
        let possession = possession.ok_or_else(|| Error::protocol("no promise in answer to one"))?;
        Ok(Pledge { latch: self.clone(), possession })
    }

    /// Counts down, without a promise before. Tells how much is left.
    pub async fn count_down(&self, by: u64) -> Result<u64, Error> {
        let count_down = v1::CountDown { name: self.name.clone(), by, pledge: 0 };
        left_of(&self.client.ask(self.ttl, None, Op::CountDown(count_down)).await?)
    }

    /// Removes it; refused as [`Code::InUse`] while somebody has promised to count down. Who waits for it is told
    /// [`Code::NotFound`].
    pub async fn forget(&self) -> Result<(), Error> {
        self.client.forget(Kind::Latch, &self.name).await
    }

    /// Waits until it is open. Refused as [`Code::NotFound`] if there is none, or if it is removed meanwhile.
    pub async fn wait(&self) -> Result<(), Error> {
        loop {
            let mut observation = self.client.observe_now(Kind::Latch, &self.name).await?;
            let found = self.client.describe_head(Kind::Latch, &self.name).await?;
            observation.looked(found.header.as_ref());
            let Some(Head::Latch(head)) = found.head else { return Err(not_found(&self.name)) };
            let mut gate = head.gate();
            loop {
                match gate {
                    Gate::Open | Gate::Left => return Ok(()),
                    Gate::Broken => return Err(Loss::Broken.into()),
                    Gate::Shut | Gate::Unspecified => {}
                }
                match observation.next().await.map(|notice| notice.notice) {
                    Some(Some(Notice::Latch(latch))) => gate = latch.gate(),
                    // It was removed, and perhaps set again since.
                    Some(Some(Notice::Gone(gone))) if gone.place == 0 => break,
                    Some(_) => {}
                    None => break,
                }
            }
        }
    }
}

pub(crate) fn not_found(name: &str) -> Error {
    let message = format!("there is nothing named {name}");
    Error::Refused(Refusal { code: Code::NotFound, message, numbers: Default::default() })
}

fn left_of(answered: &Answered) -> Result<u64, Error> {
    match &answered.answer {
        Answer::Latch(latch) => Ok(latch.left),
        _ => Err(Error::protocol("no count in answer to a count-down")),
    }
}

/// A promise to count down. Dropped, it is broken: for the latch as if this process had died.
#[must_use = "the promise is broken when this is dropped"]
#[derive(Debug)]
pub struct Pledge {
    latch: Latch,
    possession: Possession,
}

may_be_lost!(Pledge);

impl Pledge {
    /// Keeps the promise. Tells how much is left.
    pub async fn count_down(self) -> Result<u64, Error> {
        let pledge = self.possession.place().unwrap_or_default();
        let count_down = v1::CountDown { name: self.latch.name.clone(), by: 1, pledge };
        left_of(&self.possession.end_by(Op::CountDown(count_down)).await?)
    }
}
