//! Semaphores: a number of permits.

use std::time::Duration;

use bytes::Bytes;
use tidelock_native_api::v1::{self, Kind, Mode, request::Op};

use crate::client::Client;
use crate::error::Error;
use crate::guard::Guard;
use crate::lock::{Queue, queue_settings};

impl Client {
    /// A semaphore of that many permits, which all that use it must name alike; zero: as many as it was made with.
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        Semaphore { queue: Queue::new(self, name), permits }
    }
}

/// A number of permits, taken in the order of asking. See [`Client::semaphore`].
///
#[doc = concat!("```\n", include_str!("doc/semaphore.rs"), "```")]
#[derive(Clone, Debug)]
#[must_use = "nothing is asked for before `acquire`"]
pub struct Semaphore {
    queue: Queue,
    permits: u32,
}

queue_settings!(Semaphore);

impl Semaphore {
    /// Waits for so many permits. Whoever asked before gets theirs first, even if it needs more.
    pub async fn acquire(&self, permits: u32) -> Result<Guard, Error> {
        let acquire = v1::Acquire {
            name: self.queue.name.clone(),
            mode: Mode::Permits.into(),
            permits: self.permits,
            wait: self.queue.wire_wait(),
            data: self.queue.data.clone(),
            weight: permits,
            queue_max: self.queue.queue_max,
        };
        self.queue.stand(Kind::Semaphore, Op::Acquire(acquire)).await
    }

    /// Takes so many permits if they are left; otherwise refused as [`crate::Code::Busy`].
    pub async fn try_acquire(&self, permits: u32) -> Result<Guard, Error> {
        self.clone().wait(Duration::ZERO).acquire(permits).await
    }

    /// Removes it, so that it can be made with another number; refused as [`crate::Code::InUse`] while somebody has a
    /// permit or waits for one.
    pub async fn forget(&self) -> Result<(), Error> {
        self.queue.client.forget(Kind::Semaphore, &self.queue.name).await
    }

    /// Changes how many permits there are. Those that are out stay out.
    pub async fn resize(&self, permits: u32) -> Result<(), Error> {
        let resize = Op::Resize(v1::Resize { name: self.queue.name.clone(), permits });
        self.queue.client.ask(self.queue.ttl, None, resize).await.map(drop)
    }
}
