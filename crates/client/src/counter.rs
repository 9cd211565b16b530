//! Counters, and fences that let no old token through.

use std::ops::RangeInclusive;

use tidelock_native_api::v1::{self, Kind, answer::Answer, describe_reply::Head, request::Op};

use crate::client::Client;
use crate::error::{Code, Error, Refusal};
use crate::guard::Token;
use crate::handle::Answered;

impl Client {
    /// A counter; a new one is zero.
    pub fn counter(&self, name: &str) -> Counter {
        Counter { client: self.clone(), name: name.to_owned(), fencing: None }
    }

    /// A fence: the largest token that was let through so far.
    pub fn fence(&self, name: &str) -> Fence {
        Fence { client: self.clone(), name: name.to_owned() }
    }
}

/// A number that all share. See [`Client::counter`].
///
#[doc = concat!("```\n", include_str!("doc/counter.rs"), "```")]
#[derive(Clone, Debug)]
pub struct Counter {
    client: Client,
    name: String,
    fencing: Option<v1::Fencing>,
}

impl Counter {
    /// Changes it only if `fence` lets `token` through: who lost its lock counts no more.
    pub fn fenced(mut self, fence: &str, token: Token) -> Counter {
        self.fencing = Some(v1::Fencing { fence: fence.to_owned(), token: token.get() });
        self
    }

    /// What it is.
    pub async fn get(&self) -> Result<i64, Error> {
        match self.client.describe_head(Kind::Counter, &self.name).await?.head {
            Some(Head::Counter(head)) => Ok(head.value),
            _ => Ok(0),
        }
    }

    /// Adds to it, and tells what it is then. [`Error::Unknown`] means that it may have been added, once.
    pub async fn add(&self, delta: i64) -> Result<i64, Error> {
        let (name, fencing) = (self.name.clone(), self.fencing.clone());
        let answered = self.client.ask(None, None, Op::Add(v1::Add { name, delta, fencing })).await?;
        change_of(&answered).map(|change| change.after)
    }

    /// Takes the next `count` numbers: nobody else ever gets one of them, and numbers taken by who dies are never used.
    pub async fn next_block(&self, count: u32) -> Result<RangeInclusive<i64>, Error> {
        if count == 0 {
            let message = "a block has at least one number".to_owned();
            return Err(Error::Refused(Refusal { code: Code::Mistaken, message, numbers: Default::default() }));
        }
        let (name, delta, fencing) = (self.name.clone(), i64::from(count), self.fencing.clone());
        let answered = self.client.ask(None, None, Op::Add(v1::Add { name, delta, fencing })).await?;
        // It does not overflow: `after` is larger.
        change_of(&answered).map(|change| change.before + 1..=change.after)
    }

    /// Removes it: the next who looks finds zero. What [`Counter::next_block`] gave may be given again then.
    pub async fn forget(&self) -> Result<(), Error> {
        self.client.forget(Kind::Counter, &self.name).await
    }

    /// Sets it if it has the expected value; otherwise refused as [`Code::Mismatch`], with `actual` among the numbers.
    pub async fn compare_and_set(&self, expected: i64, value: i64) -> Result<(), Error> {
        let (name, fencing) = (self.name.clone(), self.fencing.clone());
        let set = v1::CompareAndSet { name, expected, value, fencing };
        self.client.ask(None, None, Op::CompareAndSet(set)).await.map(drop)
    }
}

fn change_of(answered: &Answered) -> Result<v1::CounterChange, Error> {
    match &answered.answer {
        Answer::Counter(change) => Ok(*change),
        _ => Err(Error::protocol("no number in answer to a count")),
    }
}

/// Lets no token through that is older than one it has let through. See [`Client::fence`].
///
#[doc = concat!("```\n", include_str!("doc/fence.rs"), "```")]
#[derive(Clone, Debug)]
pub struct Fence {
    client: Client,
    name: String,
}

impl Fence {
    /// Lets a token through, and none before it any more. [`Error::Lost`]: a later one was there first.
    pub async fn admit(&self, token: Token) -> Result<(), Error> {
        let admit = v1::Admit { fence: self.name.clone(), token: token.get() };
        self.client.ask(None, None, Op::Admit(admit)).await.map(drop)
    }

    /// The largest token that was let through; none yet: `None`.
    pub async fn highest(&self) -> Result<Option<Token>, Error> {
        match self.client.describe_head(Kind::Fence, &self.name).await?.head {
            Some(Head::Fence(head)) => Ok(Some(head.highest.into())),
            _ => Ok(None),
        }
    }
}
