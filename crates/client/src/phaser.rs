//! Phasers: parties that come and go, and end each phase together.

use std::time::Duration;

use tidelock_native_api::v1::{self, Kind, answer::Answer, describe_reply::Head, notice::Notice, request::Op};

use crate::barrier::OnDeath;
use crate::client::Client;
use crate::error::{Error, Loss};
use crate::handle::{Observation, Possession};
use crate::held::{may_be_lost, ttl_setting};
use crate::latch::not_found;

impl Client {
    /// A phaser, made when the first party registers.
    pub fn phaser(&self, name: &str) -> Phaser {
        let (client, name) = (self.clone(), name.to_owned());
        Phaser { client, name, parent: String::new(), on_death: OnDeath::default(), ttl: None }
    }
}

/// Parties that come and go, and end each phase together; part of a larger one, if it has a parent. See
/// [`Client::phaser`].
///
#[doc = concat!("```\n", include_str!("doc/phaser.rs"), "```")]
#[derive(Clone, Debug)]
pub struct Phaser {
    client: Client,
    name: String,
    parent: String,
    on_death: OnDeath,
    ttl: Option<Duration>,
}

ttl_setting!(Phaser, ttl);

impl Phaser {
    /// Makes it part of another phaser, which must exist: the parent's phase ends when all of its children's parties
    /// have arrived. All parties must say the same.
    pub fn parent(mut self, parent: &str) -> Phaser {
        self.parent = parent.to_owned();
        self
    }

    /// What becomes of the others when a party dies. All parties must say the same.
    pub fn on_death(mut self, on_death: OnDeath) -> Phaser {
        self.on_death = on_death;
        self
    }

    /// Adds so many parties, which this process speaks for.
    pub async fn register(&self, parties: u32) -> Result<Party, Error> {
        let (name, parent) = (self.name.clone(), self.parent.clone());
        let register = v1::Register { name, parties, parent, on_death: self.on_death.to_wire() };
        let answered = self.client.ask(self.ttl, None, Op::Register(register)).await?;
        let (Answer::Registered(registered), Some(possession)) = (answered.answer, answered.possession) else {
            return Err(Error::protocol("no parties in answer to a registration"));
        };
        Ok(Party { phaser: self.clone(), possession, phase: registered.phase, watch: None })
    }

    /// The phase it is in now.
    pub async fn phase(&self) -> Result<u64, Error> {
        PhaseWatch::begin(self).await.map(|watch| watch.phase)
    }

    /// Removes it; refused as [`crate::Code::InUse`] while it has parties, or is the parent of some. Who waits for it
    /// without taking part is told [`crate::Code::NotFound`].
    pub async fn forget(&self) -> Result<(), Error> {
        self.client.forget(Kind::Phaser, &self.name).await
    }

    /// Waits until `phase` is over, without taking part. Tells the phase that it is then.
    pub async fn await_advance(&self, phase: u64) -> Result<u64, Error> {
        PhaseWatch::begin(self).await?.wait_beyond(self, phase).await
    }
}

/// The phase of a whole tree, as it goes on.
#[derive(Debug)]
struct PhaseWatch {
    observation: Observation,
    phase: u64,
    broken: bool,
}

impl PhaseWatch {
    async fn begin(phaser: &Phaser) -> Result<PhaseWatch, Error> {
        let client = &phaser.client;
        let root = client.describe_head(Kind::Phaser, &phaser.name).await?.root;
        if root.is_empty() {
            return Err(not_found(&phaser.name));
        }
        let mut observation = client.observe_now(Kind::Phaser, &root).await?;
        let found = client.describe_head(Kind::Phaser, &root).await?;
        observation.looked(found.header.as_ref());
        let Some(Head::Phaser(head)) = found.head else { return Err(not_found(&root)) };
        Ok(PhaseWatch { observation, phase: head.phase, broken: head.broken })
    }

    async fn wait_beyond(&mut self, phaser: &Phaser, phase: u64) -> Result<u64, Error> {
        loop {
            if self.phase > phase {
                return Ok(self.phase);
            }
            if self.broken {
                return Err(Loss::Broken.into());
            }
            match self.observation.next().await.map(|notice| notice.notice) {
                Some(Some(Notice::Phase(now))) => {
                    self.phase = self.phase.max(now.phase);
                    self.broken |= now.broken;
                }
                // It was removed, and perhaps made anew since.
                Some(Some(Notice::Gone(gone))) if gone.place == 0 => *self = PhaseWatch::begin(phaser).await?,
                Some(_) => {}
                None => *self = PhaseWatch::begin(phaser).await?,
            }
        }
    }
}

/// Parties of a phaser that this process speaks for. Dropped, they are gone, and nobody waits for them.
#[must_use = "the parties are gone when this is dropped"]
#[derive(Debug)]
pub struct Party {
    phaser: Phaser,
    possession: Possession,
    phase: u64,
    watch: Option<PhaseWatch>,
}

may_be_lost!(Party);

impl Party {
    /// The phase that these parties take part in, as far as was told.
    #[must_use]
    pub fn phase(&self) -> u64 {
        self.phase
    }

    /// Says that all of these parties are done with this phase, without waiting for the others. Tells which phase.
    pub async fn arrive(&mut self) -> Result<u64, Error> {
        self.arrive_some(0).await
    }

    /// Says that so many of these parties are done with this phase.
    pub async fn arrive_some(&mut self, parties: u32) -> Result<u64, Error> {
        let arrived = self.possession.session().ask(self.arrival(parties, false)).await?;
        let Answer::Arrived(arrived) = arrived.answer else {
            return Err(Error::protocol("no arrival in answer to one"));
        };
        self.phase = arrived.now.max(arrived.phase);
        Ok(arrived.phase)
    }

    /// Says that all of these parties are done, and waits for the others. Tells the phase that begins. Dropped while it
    /// waits, the parties have arrived all the same.
    pub async fn arrive_and_await(&mut self) -> Result<u64, Error> {
        // Before the arrival, so that its end is not missed.
        if self.watch.is_none() {
            self.watch = Some(PhaseWatch::begin(&self.phaser).await?);
        }
        let arrived_in = self.arrive().await?;
        if self.phase == arrived_in
            && let Some(watch) = &mut self.watch
        {
            let session = self.possession.session();
            self.phase = tokio::select! {
                phase = watch.wait_beyond(&self.phaser, arrived_in) => phase?,
                lost = session.lost() => return Err(lost),
            };
        }
        Ok(self.phase)
    }

    /// Says that these parties are done with this phase and take part in no other. Does not wait.
    pub async fn arrive_and_deregister(self) -> Result<u64, Error> {
        let arrival = self.arrival(0, true);
        match self.possession.end_by(arrival).await?.answer {
            Answer::Arrived(arrived) => Ok(arrived.phase),
            _ => Err(Error::protocol("no arrival in answer to one")),
        }
    }

    fn arrival(&self, count: u32, deregister: bool) -> Op {
        let (name, party) = (self.phaser.name.clone(), self.possession.place().unwrap_or_default());
        Op::Arrive(v1::Arrive { name, party, count, deregister })
    }
}
