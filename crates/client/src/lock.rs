//! Locks: one holder, or many that share.

use std::time::Duration;

use bytes::Bytes;
use tidelock_native_api::v1::{self, Kind, Mode, request::Op};

use crate::client::Client;
use crate::error::Error;
use crate::guard::Guard;

impl Client {
    /// A lock with one holder at a time, granted in the order of asking.
    pub fn lock(&self, name: &str) -> Lock {
        Lock { queue: Queue::new(self, name) }
    }

    /// A lock that many hold to read, or one to write.
    pub fn rw_lock(&self, name: &str) -> RwLock {
        RwLock { queue: Queue::new(self, name) }
    }
}

/// What locks, semaphores and elections have in common: how to stand in line.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) ttl: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) queue_max: u32,
    pub(crate) data: Bytes,
}

impl Queue {
    pub(crate) fn new(client: &Client, name: &str) -> Queue {
        let (client, name) = (client.clone(), name.to_owned());
        Queue { client, name, ttl: None, wait: None, queue_max: 0, data: Bytes::new() }
    }

    /// Who does not want to wait at all does not stand in line.
    pub(crate) fn wire_wait(&self) -> i32 {
        if self.wait == Some(Duration::ZERO) { v1::Wait::Try.into() } else { v1::Wait::Queue.into() }
    }

    /// Takes a place and waits for the grant. Dropped, or when the time is over, the place is given up.
    pub(crate) async fn stand(&self, kind: Kind, op: Op) -> Result<Guard, Error> {
        let session = self.client.session(self.ttl)?;
        let granted = session.ask(op);
        let answered = match self.wait.filter(|wait| !wait.is_zero()) {
            None => granted.await?,
            Some(wait) => {
                let in_time = tokio::time::timeout(wait, granted).await;
                in_time.map_err(|_| Error::timed_out(&self.name, wait))??
            }
        };
        Guard::of(kind, &self.name, answered)
    }

    async fn acquire(&self, mode: Mode) -> Result<Guard, Error> {
        let acquire = v1::Acquire {
            name: self.name.clone(),
            mode: mode.into(),
            wait: self.wire_wait(),
            data: self.data.clone(),
            queue_max: self.queue_max,
            ..Default::default()
        };
        self.stand(Kind::Lock, Op::Acquire(acquire)).await
    }

    fn trying(&self) -> Queue {
        Queue { wait: Some(Duration::ZERO), ..self.clone() }
    }
}

/// What can be said about standing in line, for each primitive that has one.
macro_rules! queue_settings {
    ($type:ty) => {
        impl $type {
            /// How long it outlives this process if that dies or is cut off; the client's unless told.
            pub fn ttl(mut self, ttl: Duration) -> Self {
                self.queue.ttl = Some(ttl);
                self
            }

            /// How long to wait for it at most; without an end unless told. Zero: have it at once or not at all.
            pub fn wait(mut self, wait: Duration) -> Self {
                self.queue.wait = Some(wait);
                self
            }

            /// Do not even wait if so many are before, holders included.
            pub fn queue_max(mut self, most: u32) -> Self {
                self.queue.queue_max = most;
                self
            }

            /// Some bytes, at most 4,096, that whoever looks is shown: who holds it, and where.
            pub fn data(mut self, data: impl Into<Bytes>) -> Self {
                self.queue.data = data.into();
                self
            }
        }
    };
}
pub(crate) use queue_settings;

/// A lock with one holder at a time. See [`Client::lock`].
///
#[doc = concat!("```\n", include_str!("doc/lock.rs"), "```")]
#[derive(Clone, Debug)]
#[must_use = "nothing is asked for before `acquire`"]
pub struct Lock {
    queue: Queue,
}

queue_settings!(Lock);
queue_settings!(RwLock);

impl Lock {
    /// Waits until it is granted. Dropped, it leaves the queue.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        self.queue.acquire(Mode::Exclusive).await
    }

    /// Takes it if it is free; otherwise refused as [`crate::Code::Busy`].
    pub async fn try_acquire(&self) -> Result<Guard, Error> {
        self.queue.trying().acquire(Mode::Exclusive).await
    }

    /// Holds the lock while `work` runs, and stops `work` where it is when the lock is lost.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T, Error> {
        let guard = self.acquire().await?;
        let done = tokio::select! {
            done = work(&guard) => done,
            lost = guard.lost() => return Err(lost),
        };
        match guard.release().await {
            // The work is done, and was done under a token that was current as far as anybody can tell.
            Ok(()) | Err(Error::Unknown { .. }) => Ok(done),
            Err(error) => Err(error),
        }
    }
}

/// A lock that many hold to read, or one to write. See [`Client::rw_lock`].
///
#[doc = concat!("```\n", include_str!("doc/rw_lock.rs"), "```")]
#[derive(Clone, Debug)]
#[must_use = "nothing is asked for before `read` or `write`"]
pub struct RwLock {
    queue: Queue,
}

impl RwLock {
    /// Waits until no writer is before it.
    pub async fn read(&self) -> Result<Guard, Error> {
        self.queue.acquire(Mode::Shared).await
    }

    /// Reads if no writer is before it; otherwise refused as [`crate::Code::Busy`].
    pub async fn try_read(&self) -> Result<Guard, Error> {
        self.queue.trying().acquire(Mode::Shared).await
    }

    /// Waits until nobody is before it.
    pub async fn write(&self) -> Result<WriteGuard, Error> {
        self.queue.acquire(Mode::Exclusive).await.map(WriteGuard)
    }

    /// Writes if nobody is before it; otherwise refused as [`crate::Code::Busy`].
    pub async fn try_write(&self) -> Result<WriteGuard, Error> {
        self.queue.trying().acquire(Mode::Exclusive).await.map(WriteGuard)
    }
}

/// A lock that is held to write; otherwise as [`Guard`].
#[must_use = "what is held is given back when the guard is dropped"]
#[derive(Debug)]
pub struct WriteGuard(Guard);

impl std::ops::Deref for WriteGuard {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl AsRef<Guard> for WriteGuard {
    fn as_ref(&self) -> &Guard {
        &self.0
    }
}

impl WriteGuard {
    /// Goes on reading, and lets others read that wait next in line. Nobody writes in between; the token stays.
    pub async fn downgrade(self) -> Result<Guard, Error> {
        let (name, token) = (self.0.name().to_owned(), self.0.token().get());
        self.0.session().ask(Op::Downgrade(v1::Downgrade { name, token })).await?;
        Ok(self.0)
    }

    /// Gives it back; see [`Guard::release`].
    pub async fn release(self) -> Result<(), Error> {
        self.0.release().await
    }
}
