//! What the face takes from the machine it runs on: time, and chance.
//!
//! Nothing else that a simulated client meets looks at a clock or draws a number, so that a simulated machine can give
//! both ([`ZookeeperFace::on`](crate::ZookeeperFace::on)), and a run of the simulator depends on its seed alone. (The
//! figures for operators, SASL, TLS and the ids of read-only sessions and new members do.)

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The secret that passwords of sessions are made with.
pub type Secret = [u8; tidelock_model::TOKEN_SECRET_BYTES];

/// The machine around the face.
pub trait Outside: Send + Sync + 'static {
    /// Time since some moment in the past, by a clock that nobody sets.
    fn now(&self) -> Duration;

    /// Waits so long by that clock.
    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// A secret that nobody can guess.
    fn draw_secret(&self) -> Secret;
}

/// The machine this process runs on, with tokio's timers.
pub(crate) struct ThisMachine(Instant);

impl Default for ThisMachine {
    fn default() -> ThisMachine {
        ThisMachine(Instant::now())
    }
}

impl Outside for ThisMachine {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(tokio::time::sleep(time))
    }

    fn draw_secret(&self) -> Secret {
        rand::random()
    }
}

impl dyn Outside {
    /// What `call` gives, unless it takes longer than `time`: then it is dropped where it stands.
    pub(crate) async fn within<T>(&self, time: Duration, call: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            given = call => Some(given),
            () = self.sleep(time) => None,
        }
    }
}

/// Says when it is time again, for work that is done every so often. Work that took longer delays what follows.
pub(crate) struct Ticks {
    outside: Arc<dyn Outside>,
    every: Duration,
    due: Duration,
}

impl Ticks {
    /// The first is at once.
    pub(crate) fn new(outside: &Arc<dyn Outside>, every: Duration) -> Ticks {
        Ticks { outside: Arc::clone(outside), every, due: outside.now() }
    }

    pub(crate) async fn next(&mut self) {
        let now = self.outside.now();
        if now < self.due {
            self.outside.sleep(self.due - now).await;
        }
        self.due = self.due.max(self.outside.now()) + self.every;
    }
}
