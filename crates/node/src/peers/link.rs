//! The outgoing link to one peer: keeps a connection open and writes to it what its outbox holds.
//!
//! One task per peer. It never gives up; it pauses longer between tries, and cuts a pause short when
//! the peer shows that it lives by connecting to us, or when its addresses change.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tidelock_model::NodeId;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::PeerLimits;
use super::dial::{DialError, Dialed, dial};
use super::frame::{BrokenLink, FrameReader, FrameWriter};
use super::handshake::Purpose;
use super::log_gate::LogGate;
use super::net::Shared;
use super::outbox::{Outbox, TAKE_FRAMES};
use super::stream::PeerStream;

/// How long what was queued for a peer that is no longer one may take to be sent.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// A link that lived for this long is tried again at once when it ends, to learn whether the peer is still there. One
/// that ends sooner waits, so that two nodes that do not get along do not do so without pause.
const REDIAL_AT_ONCE_AFTER: Duration = Duration::from_secs(1);

/// Where a peer is reached; `None` once it was removed.
pub(super) type Addresses = Option<Arc<[String]>>;

pub(super) struct Link {
    pub(super) peer: NodeId,
    pub(super) outbox: Outbox,
    pub(super) addresses: watch::Sender<Addresses>,
    /// Whether a snapshot is on its way to this peer.
    pub(super) snapshot_busy: AtomicBool,
    /// Whether the peer ever accepted our greeting.
    pub(super) accepted: AtomicBool,
    /// The peer is known to be up: do not wait out the pause.
    pub(super) retry_now: Notify,
    contact: Mutex<Contact>,
    problem: Mutex<Option<String>>,
    gate: LogGate,
}

/// What dialing told about the peer, for whoever asks whether it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contact {
    /// There was none yet, or its loss was told.
    None,
    /// It accepted a connection, which may have ended since.
    Made,
    /// After that nobody answered.
    Lost,
}

impl Link {
    pub(super) fn new(peer: NodeId, addresses: Arc<[String]>, limits: &PeerLimits) -> Link {
        Link {
            peer,
            outbox: Outbox::new(limits.queue_frames, limits.queue_bytes),
            addresses: watch::Sender::new(Some(addresses)),
            snapshot_busy: AtomicBool::new(false),
            accepted: AtomicBool::new(false),
            retry_now: Notify::new(),
            contact: Mutex::new(Contact::None),
            problem: Mutex::new(None),
            gate: LogGate::default(),
        }
    }

    /// What went wrong last; forgotten when a link is established.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// Whether the peer was there and no longer answers; `true` once for each time.
    pub(super) fn take_loss(&self) -> bool {
        let mut contact = self.contact.lock();
        let lost = *contact == Contact::Lost;
        if lost {
            *contact = Contact::None;
        }
        lost
    }

    /// Nobody answered.
    fn lose_contact(&self) {
        let mut contact = self.contact.lock();
        if *contact == Contact::Made {
            *contact = Contact::Lost;
        }
    }

    /// Runs until the peer is removed.
    pub(super) async fn run(&self, shared: &Shared) {
        let mut addresses = self.addresses.subscribe();
        let mut pause = Pause::new(&shared.config.limits);
        loop {
            let targets = addresses.borrow_and_update().clone();
            let Some(targets) = targets else { return };
            let mut redial = false;
            let ended = {
                let mut pumping = std::pin::pin!(self.connect_and_pump(shared, &targets, &mut pause));
                tokio::select! {
                    // The sender lives in `self`, so a change is the only thing this can report.
                    _ = addresses.changed() => {
                        if addresses.borrow().is_none() {
                            // A member that was removed is to hear so.
                            let _ = tokio::time::timeout(LAST_WORDS, &mut pumping).await;
                        }
                        false
                    }
                    lived = &mut pumping => {
                        redial = lived >= REDIAL_AT_ONCE_AFTER;
                        true
                    }
                }
            };
            if !ended {
                pause.reset();
                continue;
            }
            if redial {
                continue;
            }
            tokio::select! {
                _ = addresses.changed() => pause.reset(),
                () = self.retry_now.notified() => pause.reset(),
                () = tokio::time::sleep(pause.next()) => {}
            }
        }
    }

    /// One connection, from dialing to its end. Says how long it was open.
    async fn connect_and_pump(&self, shared: &Shared, targets: &[String], pause: &mut Pause) -> Duration {
        let mut dialed = match dial(&shared.config, &shared.identity, self.peer, targets, Purpose::Messages).await {
            Ok(dialed) => dialed,
            Err(error) => {
                pause.near = matches!(error, DialError::Unreachable { near: true, .. });
                self.report(&error);
                if matches!(error, DialError::Unreachable { .. }) {
                    self.lose_contact();
                    shared.unanswered(self.peer);
                }
                return Duration::ZERO;
            }
        };
        let opened = Instant::now();
        *self.contact.lock() = Contact::Made;
        pause.reset();
        pause.near = dialed.address.ip().is_loopback();
        tracing::info!(peer = %self.peer, address = %dialed.address, version = dialed.version, "peer link established");
        *self.problem.lock() = None;
        self.accepted.store(true, Ordering::Relaxed);
        let _open = self.outbox.open(dialed.socket.take());
        // Being cut off by a change of addresses drops this future, and the guard closes the outbox.
        let Err(broken) = self.pump(dialed, &shared.config.limits).await;
        self.report(&broken);
        opened.elapsed()
    }

    fn report(&self, problem: &dyn std::fmt::Display) {
        let problem = problem.to_string();
        if let Some(suppressed) = self.gate.pass() {
            tracing::warn!(peer = %self.peer, suppressed, "no link to peer, will retry: {problem}");
        }
        *self.problem.lock() = Some(problem);
    }

    /// Writes until the connection breaks.
    async fn pump(&self, dialed: Dialed, limits: &PeerLimits) -> Result<std::convert::Infallible, BrokenLink> {
        let Dialed { mut stream, mut reader, .. } = dialed;
        // The other side only ever sends pulses here.
        reader.set_frame_max(0);
        let mut writer = FrameWriter::new(limits.write_stall, limits.frame_bytes);
        let mut batch = Vec::with_capacity(TAKE_FRAMES);
        let mut pulse = pulses(limits);
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                // Listening comes first: a node that itself was paused must not take its peers for silent.
                biased;
                arrived = reader.fill(&mut *stream) => {
                    arrived?;
                    while reader.next()?.is_some() {}
                    heard = Instant::now();
                }
                _ = pulse.tick() => {
                    check_heard(heard, limits)?;
                    self.write(&mut writer, &mut batch, &mut *stream, true).await?;
                }
                () = self.outbox.wait() => self.write(&mut writer, &mut batch, &mut *stream, false).await?,
            }
        }
    }

    /// Writes what is queued, and a pulse after it if one is due.
    async fn write(
        &self,
        writer: &mut FrameWriter,
        batch: &mut Vec<Bytes>,
        stream: &mut dyn PeerStream,
        pulse: bool,
    ) -> Result<(), BrokenLink> {
        writer.push_rest(self.outbox.take(batch));
        for frame in batch.drain(..) {
            writer.push(&[], frame)?;
        }
        if pulse {
            writer.push_pulse()?;
        }
        writer.flush(stream).await?;
        self.outbox.wrote();
        Ok(())
    }
}

/// Ticks when a pulse is due. After a pause of the whole process there is one tick, not a burst.
pub(super) fn pulses(limits: &PeerLimits) -> tokio::time::Interval {
    let mut pulses = interval(limits.pulse_every);
    pulses.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pulses
}

/// Ends a link on which nothing was heard for too long.
pub(super) fn check_heard(heard: Instant, limits: &PeerLimits) -> Result<(), BrokenLink> {
    if heard.elapsed() > limits.silence { Err(BrokenLink::Silent(limits.silence)) } else { Ok(()) }
}

/// Does `work` and meanwhile tells the other side that we are still there.
pub(super) async fn pulsing<T>(
    stream: &mut dyn PeerStream,
    writer: &mut FrameWriter,
    pulse: &mut tokio::time::Interval,
    work: impl Future<Output = T>,
) -> Result<T, BrokenLink> {
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            _ = pulse.tick() => {
                writer.push_pulse()?;
                writer.flush(stream).await?;
            }
        }
    }
}

/// Waits for bytes, and meanwhile tells the other side that we are still there. Ends with
/// `Flow::Break` when `until` completes first.
pub(super) async fn listen<T>(
    stream: &mut dyn PeerStream,
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
    pulse: &mut tokio::time::Interval,
    silence: Duration,
    mut until: impl Future<Output = T> + Unpin,
) -> Result<ControlFlow<T>, BrokenLink> {
    let began = Instant::now();
    loop {
        tokio::select! {
            biased;
            arrived = reader.fill(stream) => return arrived.map(ControlFlow::Continue),
            stopped = &mut until => return Ok(ControlFlow::Break(stopped)),
            _ = pulse.tick() => {
                if began.elapsed() > silence {
                    return Err(BrokenLink::Silent(silence));
                }
                writer.push_pulse()?;
                writer.flush(stream).await?;
            }
        }
    }
}

/// How long to wait before the next try: doubling, with jitter so that peers of a restarted node do
/// not all arrive at once.
struct Pause {
    near: bool,
    next: Duration,
    min: Duration,
    max: Duration,
    max_near: Duration,
}

impl Pause {
    fn new(limits: &PeerLimits) -> Pause {
        let (min, max, max_near) = (limits.retry_min, limits.retry_max, limits.retry_max_near);
        Pause { near: false, next: min, min, max, max_near }
    }

    fn reset(&mut self) {
        self.next = self.min;
    }

    fn next(&mut self) -> Duration {
        let max = if self.near { self.max_near } else { self.max };
        let now = self.next.min(max);
        self.next = (now * 2).min(max);
        // Between half and the whole, so that a pause never vanishes and never exceeds the bound.
        now.mul_f64(rand::random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Retrying without pause would burn a core for every dead peer; pausing for ever would keep a
    /// healed cluster apart.
    #[test]
    fn pauses_grow_to_the_bound_and_start_over_after_success() {
        let limits = PeerLimits::default();
        let mut pause = Pause::new(&limits);
        let pauses: Vec<_> = (0..12).map(|_| pause.next()).collect();
        assert!(pauses[0] <= limits.retry_min && pauses[0] >= limits.retry_min / 2);
        assert!(pauses[11] <= limits.retry_max && pauses[11] >= limits.retry_max / 2);
        pause.near = true;
        assert!(pause.next() <= limits.retry_max_near);
        pause.reset();
        assert!(pause.next() <= limits.retry_min);
    }
}
