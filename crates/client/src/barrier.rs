//! Barriers: parties that meet.

use std::collections::BTreeMap;
use std::time::Duration;

use tidelock_native_api::v1::{self, Gate, Kind, answer::Answer, notice::Notice, request::Op};

use tokio::time::Instant;

use crate::client::Client;
use crate::error::{Code, Error, Loss, Refusal};
use crate::handle::{Answered, Observation, Possession, SessionHandle};
use crate::held::{may_be_lost, ttl_setting};

/// What becomes of the others when one that they count on dies or gives up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDeath {
    /// They go on without it.
    #[default]
    Shrink,
    /// All of them are told [`Loss::Broken`].
    Break,
}

impl OnDeath {
    pub(crate) fn to_wire(self) -> i32 {
        match self {
            OnDeath::Shrink => v1::OnDeath::Shrink.into(),
            OnDeath::Break => v1::OnDeath::Break.into(),
        }
    }
}

impl Client {
    /// A barrier that opens when so many parties are there.
    pub fn barrier(&self, name: &str, parties: u32) -> Barrier {
        Barrier { meeting: Meeting::new(self, name, parties, false) }
    }

    /// A barrier whose parties also wait for each other when they leave.
    pub fn double_barrier(&self, name: &str, parties: u32) -> DoubleBarrier {
        DoubleBarrier { meeting: Meeting::new(self, name, parties, true) }
    }
}

#[derive(Clone, Debug)]
struct Meeting {
    client: Client,
    name: String,
    parties: u32,
    double: bool,
    on_death: OnDeath,
    ttl: Option<Duration>,
    wait: Option<Duration>,
}

/// A party that has entered and may have to wait.
struct Entered {
    possession: Option<Possession>,
    generation: u64,
    missing: u32,
    observation: Observation,
}

impl Meeting {
    fn new(client: &Client, name: &str, parties: u32, double: bool) -> Meeting {
        let (client, name) = (client.clone(), name.to_owned());
        Meeting { client, name, parties, double, on_death: OnDeath::default(), ttl: None, wait: None }
    }

    async fn enter(&self) -> Result<Entered, Error> {
        let begun = Instant::now();
        // Before the request, so that nothing is missed.
        let observation = self.client.observe_within(self.wait, Kind::Barrier, &self.name).await?;
        let left = self.wait.map(|wait| wait.saturating_sub(begun.elapsed()));
        let (name, parties, double) = (self.name.clone(), self.parties, self.double);
        let enter = v1::Enter { name, parties, double, on_death: self.on_death.to_wire() };
        let Answered { answer, possession, .. } = self.client.ask(self.ttl, left, Op::Enter(enter)).await?;
        let Answer::Entered(v1::Entered { generation, missing, .. }) = answer else {
            return Err(Error::protocol("no arrival in answer to one"));
        };
        Ok(Entered { possession, generation, missing, observation })
    }

    /// Waits until the meeting came to something.
    async fn ends(
        &self,
        session: &SessionHandle,
        observation: Observation,
        generation: u64,
        wanted: Gate,
    ) -> Result<(), Error> {
        tokio::select! {
            gate = self.outcome(observation, generation, wanted) => match gate? {
                Gate::Broken => Err(Loss::Broken.into()),
                _ => Ok(()),
            },
            lost = session.lost() => Err(lost),
        }
    }

    /// The time is over: gives the place up. If there is none the meeting was over before that was heard of, and has come to
    /// something; the others may have gone on in the belief that all are there.
    async fn give_up(&self, place: Possession, ends: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        match place.give_back().await {
            Ok(_) => Err(self.not_in_time()),
            Err(error) if error.code() == Some(Code::NoSuchPlace) => {
                let waited = self.client.patience();
                tokio::time::timeout(waited, ends).await.unwrap_or(Err(Error::Unknown { waited }))
            }
            Err(error) => Err(error),
        }
    }

    fn not_in_time(&self) -> Error {
        let (parties, waited) = (self.parties, self.wait.unwrap_or_default());
        let message = format!("not all {parties} were there within {waited:?}");
        Error::Refused(Refusal { code: Code::TimedOut, message, numbers: BTreeMap::new() })
    }

    async fn outcome(&self, mut observation: Observation, generation: u64, wanted: Gate) -> Result<Gate, Error> {
        loop {
            match observation.next().await.map(|notice| notice.notice) {
                Some(Some(Notice::Barrier(barrier))) if barrier.generation == generation => {
                    // A double barrier that opens is no news to who leaves it.
                    if barrier.gate() == wanted || matches!(barrier.gate(), Gate::Left | Gate::Broken) {
                        return Ok(barrier.gate());
                    }
                }
                Some(_) => {}
                None => {
                    observation = self.client.observe_now(Kind::Barrier, &self.name).await?;
                    let found = self.client.describe_head(Kind::Barrier, &self.name).await?;
                    let is_same = found.created == generation;
                    match found.head {
                        Some(v1::describe_reply::Head::Barrier(head)) if is_same && head.gate() != wanted => {}
                        Some(v1::describe_reply::Head::Barrier(_)) if is_same => return Ok(wanted),
                        // It is over, and nobody knows any more how it ended.
                        _ => return Err(Error::Unknown { waited: Duration::ZERO }),
                    }
                }
            }
        }
    }
}

/// Opens when so many parties are there. See [`Client::barrier`].
///
#[doc = concat!("```\n", include_str!("doc/barrier.rs"), "```")]
#[derive(Clone, Debug)]
#[must_use = "nobody arrives before `enter`"]
pub struct Barrier {
    meeting: Meeting,
}

ttl_setting!(Barrier, meeting.ttl);
ttl_setting!(DoubleBarrier, meeting.ttl);

impl Barrier {
    /// What becomes of the others when a party dies or gives up. All parties must say the same.
    pub fn on_death(mut self, on_death: OnDeath) -> Barrier {
        self.meeting.on_death = on_death;
        self
    }

    /// How long to wait for the others at most; without an end unless told. Zero: go on if all others are there already.
    ///
    /// Who did not see all arrive in time gives up, and is refused as [`crate::Code::TimedOut`]; if all were there before
    /// that was heard of, it has met them. If not even the arrival was answered, since no node with a leader could be
    /// reached, that is said instead, after a second at the earliest.
    pub fn wait(mut self, wait: Duration) -> Barrier {
        self.meeting.wait = Some(wait);
        self
    }

    /// Arrives, and waits for the others. Dropped, the party gives up, which is for the others as if it had died.
    pub async fn enter(&self) -> Result<(), Error> {
        // A time without an end, if it is too long to be counted.
        let until = self.meeting.wait.and_then(|wait| Instant::now().checked_add(wait));
        let Entered { possession, generation, missing, observation } = self.meeting.enter().await?;
        if missing == 0 {
            possession.into_iter().for_each(Possession::forget_place);
            return Ok(());
        }
        let place = possession.ok_or_else(|| Error::protocol("no place in a barrier that waits for others"))?;
        let session = place.session().clone();
        // On the heap, as callers have it in futures of their own.
        let mut ends = Box::pin(self.meeting.ends(&session, observation, generation, Gate::Open));
        let met = match until {
            None => ends.await,
            Some(until) => match tokio::time::timeout_at(until, ends.as_mut()).await {
                Ok(met) => met,
                Err(_) => return Box::pin(self.meeting.give_up(place, ends)).await,
            },
        };
        // Once it is over the barrier knows no places any more. Otherwise the place is given up with the possession.
        if met.is_ok() {
            place.forget_place();
        }
        met
    }
}

/// Opens when so many parties are there, and ends when all have left. See [`Client::double_barrier`].
///
#[doc = concat!("```\n", include_str!("doc/double_barrier.rs"), "```")]
#[derive(Clone, Debug)]
#[must_use = "nobody arrives before `enter`"]
pub struct DoubleBarrier {
    meeting: Meeting,
}

impl DoubleBarrier {
    /// What becomes of the others when a party dies or gives up. All parties must say the same.
    pub fn on_death(mut self, on_death: OnDeath) -> DoubleBarrier {
        self.meeting.on_death = on_death;
        self
    }

    /// Arrives, and waits until all are there. Dropped, the party gives up.
    pub async fn enter(&self) -> Result<Inside, Error> {
        let Entered { possession, generation, missing, observation } = self.meeting.enter().await?;
        let possession = possession.ok_or_else(|| Error::protocol("no place in a double barrier"))?;
        if missing > 0 {
            self.meeting.ends(possession.session(), observation, generation, Gate::Open).await?;
        }
        Ok(Inside { meeting: self.meeting.clone(), possession, generation })
    }
}

/// A party inside a double barrier. Dropped, it leaves without waiting for the others.
#[must_use = "the party leaves when this is dropped"]
#[derive(Debug)]
pub struct Inside {
    meeting: Meeting,
    possession: Possession,
    generation: u64,
}

may_be_lost!(Inside);

impl Inside {
    /// Leaves, and waits until all have left.
    pub async fn leave(self) -> Result<(), Error> {
        let Inside { meeting, possession, generation } = self;
        let observation = meeting.client.observe_now(Kind::Barrier, &meeting.name).await?;
        let session = possession.session().clone();
        let place = possession.place().unwrap_or_default();
        let leave = Op::Leave(v1::Leave { name: meeting.name.clone(), place });
        let Answer::Leaving(leaving) = possession.end_by(leave).await?.answer else {
            return Err(Error::protocol("no leaving in answer to one"));
        };
        if leaving.inside == 0 {
            return Ok(());
        }
        meeting.ends(&session, observation, generation, Gate::Left).await
    }
}
