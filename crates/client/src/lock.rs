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
        let wait = self.wait.filter(|wait| !wait.is_zero());
        Guard::of(kind, &self.name, self.client.ask(self.ttl, wait, op).await?)
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
            ///
            /// Who was not granted it in time is refused as [`crate::Code::TimedOut`]. If not even a place in the queue
            /// was told, since no node with a leader could be reached, that is said instead, after a second at the
            /// earliest.
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

    /// Holds the lock while `work` runs, and stops `work` where it is when the lock is lost. [`Error::Lost`] may also come
    /// once it is done: then the lock was lost before it was given back.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T, Error> {
        let guard = self.acquire().await?;
        let done = tokio::select! {
            done = work(&guard) => done,
            lost = guard.lost() => return Err(lost),
        };
        after_work(done, guard.release().await)
    }
}

/// What to tell of work that was done. That the lock could not be given back yet, which goes on in the background, takes
/// nothing from it; that the lock was lost before may.
fn after_work<T>(done: T, released: Result<(), Error>) -> Result<T, Error> {
    match released {
        Err(error) if error.is_lost() => Err(error),
        _ => Ok(done),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Code, Failure, Loss, Refusal};

    /// What was done was done, and its result must not be thrown away since the lock cannot be given back right now. Who
    /// lost the lock before it was done must know that.
    #[test]
    fn the_result_of_work_is_told_although_the_lock_could_not_be_given_back() {
        let refusal = Refusal { code: Code::Denied, message: String::new(), numbers: Default::default() };
        let unknown = Error::Unknown { waited: Duration::from_secs(1) };
        for error in [unknown, Failure::Unreachable(String::new()).into(), Failure::Closed.into(), refusal.into()] {
            assert_eq!(after_work(7, Err(error)), Ok(7));
        }
        assert_eq!(after_work(7, Err(Loss::SessionEnded.into())), Err(Loss::SessionEnded.into()));
        assert_eq!(after_work(7, Ok(())), Ok(7));
    }
}
