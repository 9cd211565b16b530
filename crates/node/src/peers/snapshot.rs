//! Snapshots on the wire, on a connection of their own so that gigabytes never stand in the way of
//! a heartbeat.
//!
//! After the handshake: the sender's head; the receiver's go, or its refusal; the sender's chunks and
//! then the end, which states the total; the receiver's done, sent only after the sink has finished.
//! Each is one frame whose payload starts with a tag byte. The receiver sends pulses all along, so a
//! slow disk is not mistaken for a dead peer.
//!
//! Disk work runs on blocking threads, joined to the network by a channel of [`CHUNKS_AHEAD`] chunks.
//! The sink is finished on one path only: the end frame arrived and its total is right. Every other
//! path drops it.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncReadExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, Interval, timeout};

use super::claims::Claim;
use super::dial::{DialError, Dialed, dial};
use super::frame::{BrokenLink, FrameReader, FrameWriter};
use super::handshake::{Purpose, printable};
use super::link::{Link, listen, pulses, pulsing};
use super::net::Shared;
use super::stream::PeerStream;
use super::{SnapshotDone, SnapshotSendError, SnapshotSink, SnapshotSource};

/// Longest head of a snapshot.
pub const SNAPSHOT_HEAD_BYTES_MAX: usize = 1024 * 1024;

/// How much is read from disk and sent at a time.
const CHUNK_BYTES: usize = 256 * 1024;
/// Smallest chunk when the bandwidth is capped; smaller ones would be mostly headers.
const CHUNK_BYTES_MIN: usize = 4 * 1024;
/// Largest payload on a snapshot connection: a head and its tag.
const PAYLOAD_BYTES_MAX: usize = SNAPSHOT_HEAD_BYTES_MAX + 1;
/// Chunks between disk and network: one in work at each end and one in between.
const CHUNKS_AHEAD: usize = 2;
/// Longest reason in an answer.
const REASON_BYTES_MAX: usize = 1024;
/// How long a receiver that said no waits for the sender to hear it. Closing while bytes are on their
/// way here would reset the connection and could take the answer with it.
const LINGER: Duration = Duration::from_secs(1);

const HEAD: u8 = 1;
const CHUNK: u8 = 2;
const END: u8 = 3;
const GO: u8 = 4;
const DONE: u8 = 5;
const REFUSED: u8 = 6;
const FAILED: u8 = 7;

/// Runs one transfer and reports its end exactly once, even if the task is dropped half-way.
pub(super) async fn send(shared: Arc<Shared>, link: Arc<Link>, source: Box<dyn SnapshotSource>, done: SnapshotDone) {
    let mut report = Report { link: Arc::clone(&link), done: Some(done) };
    let mut addresses = link.addresses.subscribe();
    let outcome = tokio::select! {
        _ = addresses.wait_for(Option::is_none) => Err(SnapshotSendError::UnknownPeer(link.peer)),
        sent = transfer(&shared, &link, source) => sent,
    };
    if let Err(error) = &outcome {
        tracing::warn!(peer = %link.peer, "snapshot not sent: {error}");
    }
    report.finish(outcome);
}

struct Report {
    link: Arc<Link>,
    done: Option<SnapshotDone>,
}

impl Report {
    fn finish(&mut self, outcome: Result<(), SnapshotSendError>) {
        if let Some(done) = self.done.take() {
            // First, so that whoever is told may start the next transfer at once.
            self.link.snapshot_busy.store(false, Ordering::Release);
            done(outcome);
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.finish(Err(SnapshotSendError::Stopping));
    }
}

/// Takes the one place for a transfer to this peer.
pub(super) fn reserve(busy: &AtomicBool) -> bool {
    !busy.swap(true, Ordering::AcqRel)
}

impl From<BrokenLink> for SnapshotSendError {
    fn from(broken: BrokenLink) -> SnapshotSendError {
        SnapshotSendError::Interrupted(broken.to_string())
    }
}

async fn transfer(shared: &Shared, link: &Link, source: Box<dyn SnapshotSource>) -> Result<(), SnapshotSendError> {
    let targets = link.addresses.borrow().clone().ok_or(SnapshotSendError::UnknownPeer(link.peer))?;
    let dialed = dial(&shared.config, &shared.identity, link.peer, &targets, Purpose::Snapshot).await;
    let Dialed { stream, reader, .. } = dialed.map_err(|error| match error {
        DialError::Refused { reason, .. } => SnapshotSendError::Refused(reason),
        DialError::Unreachable { reason, .. } => SnapshotSendError::Interrupted(reason),
    })?;
    let limits = &shared.config.limits;
    let (answers, stream) = tokio::io::split(stream);
    let mut answers = Answers { stream: answers, reader, silence: limits.silence };
    answers.reader.set_frame_max(REASON_BYTES_MAX + 1);
    let mut writer = FrameWriter::new(limits.snapshot_stall, PAYLOAD_BYTES_MAX);
    let mut outgoing = Outgoing { stream, writer: &mut writer };

    let head = source.head();
    if head.len() > SNAPSHOT_HEAD_BYTES_MAX {
        return Err(SnapshotSendError::Source(io::Error::other("the head of the snapshot is too long")));
    }
    outgoing.say(HEAD, head).await?;
    answers.expect(GO).await?;

    let rate = limits.snapshot_bytes_per_second.map(std::num::NonZeroU64::get);
    let chunk_bytes = rate.map_or(CHUNK_BYTES, |rate| {
        usize::try_from(rate / 4).unwrap_or(CHUNK_BYTES).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES)
    });
    let chunks = read_ahead(shared, source, chunk_bytes);
    tokio::select! {
        // An answer before the end can only be bad news, and says more than the broken write it causes.
        biased;
        early = answers.next() => {
            early.and(Err(BrokenLink::Unexpected("answer before the end of the snapshot").into()))
        }
        sent = outgoing.stream_chunks(chunks, rate) => sent,
    }?;
    answers.expect(DONE).await
}

/// Reads the snapshot on a blocking thread, a few chunks ahead of the network.
fn read_ahead(
    shared: &Shared,
    mut source: Box<dyn SnapshotSource>,
    chunk_bytes: usize,
) -> mpsc::Receiver<io::Result<Bytes>> {
    let (chunks, receiver) = mpsc::channel(CHUNKS_AHEAD);
    shared.spawn_blocking(move || {
        while let Some(read) = source.read(chunk_bytes).transpose() {
            let read = match read {
                Ok(chunk) if chunk.is_empty() || chunk.len() > chunk_bytes => {
                    Err(io::Error::other("the snapshot source gave a chunk of the wrong size"))
                }
                other => other,
            };
            let last = read.is_err();
            // The transfer is over when nobody takes the chunks any more.
            if chunks.blocking_send(read).is_err() || last {
                return;
            }
        }
    });
    receiver
}

/// The sender's outgoing half.
struct Outgoing<'a> {
    stream: WriteHalf<Box<dyn PeerStream>>,
    writer: &'a mut FrameWriter,
}

impl Outgoing<'_> {
    async fn say(&mut self, tag: u8, payload: Bytes) -> Result<(), BrokenLink> {
        self.writer.push(&[tag], payload)?;
        self.writer.flush(&mut self.stream).await
    }

    async fn stream_chunks(
        &mut self,
        mut chunks: mpsc::Receiver<io::Result<Bytes>>,
        rate: Option<u64>,
    ) -> Result<(), SnapshotSendError> {
        let began = Instant::now();
        let mut total = 0u64;
        while let Some(chunk) = chunks.recv().await {
            let chunk = chunk.map_err(SnapshotSendError::Source)?;
            total += chunk.len() as u64;
            self.say(CHUNK, chunk).await?;
            if let Some(rate) = rate {
                let due = Duration::from_nanos((u128::from(total) * 1_000_000_000 / u128::from(rate)) as u64);
                tokio::time::sleep_until(began + due).await;
            }
        }
        self.say(END, Bytes::copy_from_slice(&total.to_le_bytes())).await?;
        Ok(())
    }
}

/// The sender's incoming half: what the receiver says.
struct Answers {
    stream: ReadHalf<Box<dyn PeerStream>>,
    reader: FrameReader,
    silence: Duration,
}

impl Answers {
    /// The next answer that is not a pulse; a refusal or failure is an error.
    async fn next(&mut self) -> Result<(u8, Bytes), SnapshotSendError> {
        loop {
            let silent = BrokenLink::Silent(self.silence);
            let frame = timeout(self.silence, self.reader.read(&mut self.stream)).await;
            let frame = frame.unwrap_or(Err(silent))?;
            let Some((tag, payload)) = untag(frame) else { continue };
            match tag {
                REFUSED => return Err(SnapshotSendError::Refused(reason(&payload))),
                FAILED => return Err(SnapshotSendError::ReceiverFailed(reason(&payload))),
                tag => return Ok((tag, payload)),
            }
        }
    }

    async fn expect(&mut self, wanted: u8) -> Result<(), SnapshotSendError> {
        match self.next().await? {
            (tag, _) if tag == wanted => Ok(()),
            _ => Err(BrokenLink::Unexpected("answer of the receiver").into()),
        }
    }
}

/// Tag and rest of a payload; `None` for a pulse.
fn untag(mut frame: Bytes) -> Option<(u8, Bytes)> {
    let tag = *frame.first()?;
    frame.advance(1);
    Some((tag, frame))
}

fn reason(payload: &[u8]) -> String {
    printable(&String::from_utf8_lossy(payload))
}

/// The receiving side of one transfer.
struct Incoming {
    stream: Box<dyn PeerStream>,
    reader: FrameReader,
    writer: FrameWriter,
    pulse: Interval,
    stall: Duration,
}

/// What the sink's thread is told.
enum SinkStep {
    Chunk(Bytes),
    Finish,
}

/// How reading the chunks ended.
enum Streamed {
    /// The whole snapshot is with the sink, which was told to finish.
    Whole,
    /// The sink stopped taking chunks; its thread knows why.
    SinkEnded,
    /// A newer connection took the place of this one, or the peer was removed.
    Superseded,
}

/// Receives one snapshot, from the head to the last answer.
pub(super) async fn receive(
    shared: &Arc<Shared>,
    claim: &Claim,
    stream: Box<dyn PeerStream>,
    mut reader: FrameReader,
) -> Result<(), BrokenLink> {
    let limits = &shared.config.limits;
    reader.set_frame_max(PAYLOAD_BYTES_MAX);
    let writer = FrameWriter::new(limits.write_stall, REASON_BYTES_MAX + 1);
    let mut incoming = Incoming { stream, reader, writer, pulse: pulses(limits), stall: limits.snapshot_stall };
    let _turn = incoming.pulsing(claim.turn.lock()).await?;
    let mut superseded = Box::pin(claim.superseded());

    let head = match incoming.next(&mut superseded).await? {
        ControlFlow::Continue((HEAD, head)) => head,
        ControlFlow::Continue(_) => return Err(BrokenLink::Unexpected("frame instead of a snapshot's head")),
        ControlFlow::Break(()) => return Ok(()),
    };
    let (inbound, from) = (Arc::clone(&shared.inbound), claim.peer);
    let opening = shared.spawn_blocking(move || inbound.receive_snapshot(from, head));
    let sink = match incoming.joining(opening).await? {
        Ok(Ok(sink)) => sink,
        Ok(Err(reason)) => {
            tracing::warn!(peer = %from, "refused a snapshot: {reason}");
            return incoming.decline(REFUSED, &reason).await;
        }
        Err(_panicked) => return incoming.decline(FAILED, "the receiver could not open a place for it").await,
    };
    incoming.say(GO, &[]).await?;

    let (steps, receiver) = mpsc::channel(CHUNKS_AHEAD);
    let writing = shared.spawn_blocking(move || fill_sink(sink, receiver));
    let streamed = incoming.stream_chunks(&steps, &mut superseded).await;
    // Without a finish step, hanging up tells the sink's thread to drop the sink.
    drop(steps);
    match streamed {
        Ok(Streamed::Whole | Streamed::SinkEnded) => incoming.confirm(from, writing).await,
        unfinished => {
            let _ = writing.await;
            unfinished.map(|_superseded| ())
        }
    }
}

/// Feeds the sink, and finishes it only if told to.
fn fill_sink(mut sink: Box<dyn SnapshotSink>, mut steps: mpsc::Receiver<SinkStep>) -> io::Result<()> {
    loop {
        match steps.blocking_recv() {
            Some(SinkStep::Chunk(chunk)) => sink.write(chunk)?,
            Some(SinkStep::Finish) => return sink.finish(),
            None => return Err(io::Error::other("the transfer was interrupted")),
        }
    }
}

impl Incoming {
    async fn pulsing<T>(&mut self, work: impl Future<Output = T>) -> Result<T, BrokenLink> {
        pulsing(&mut *self.stream, &mut self.writer, &mut self.pulse, work).await
    }

    /// Waits for disk work, even if the sender is gone meanwhile: the next transfer from this peer
    /// starts only when nothing of this one is left.
    async fn joining<T>(&mut self, mut work: JoinHandle<T>) -> Result<Result<T, JoinError>, BrokenLink> {
        let joined = self.pulsing(&mut work).await;
        if joined.is_err() {
            let _ = work.await;
        }
        joined
    }

    async fn say(&mut self, tag: u8, payload: &[u8]) -> Result<(), BrokenLink> {
        self.writer.push(&[tag], Bytes::copy_from_slice(payload))?;
        self.writer.flush(&mut *self.stream).await
    }

    /// The next frame that is not a pulse, or `Break` when this connection no longer counts.
    async fn next(
        &mut self,
        superseded: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<ControlFlow<(), (u8, Bytes)>, BrokenLink> {
        loop {
            match self.reader.next()?.map(untag) {
                Some(Some(tagged)) => return Ok(ControlFlow::Continue(tagged)),
                Some(None) => continue,
                None => {}
            }
            let heard = listen(
                &mut *self.stream,
                &mut self.reader,
                &mut self.writer,
                &mut self.pulse,
                self.stall,
                &mut *superseded,
            );
            if heard.await?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }

    async fn stream_chunks(
        &mut self,
        steps: &mpsc::Sender<SinkStep>,
        superseded: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<Streamed, BrokenLink> {
        let mut total = 0u64;
        loop {
            let (step, last) = match self.next(superseded).await? {
                ControlFlow::Break(()) => return Ok(Streamed::Superseded),
                ControlFlow::Continue((CHUNK, chunk)) => {
                    total += chunk.len() as u64;
                    (SinkStep::Chunk(chunk), false)
                }
                ControlFlow::Continue((END, stated)) if stated == total.to_le_bytes()[..] => (SinkStep::Finish, true),
                ControlFlow::Continue((END, _)) => {
                    return Err(BrokenLink::Unexpected("end of a snapshot: bytes are missing"));
                }
                ControlFlow::Continue(_) => return Err(BrokenLink::Unexpected("frame within a snapshot")),
            };
            match self.pulsing(steps.send(step)).await? {
                Ok(()) if last => return Ok(Streamed::Whole),
                Ok(()) => {}
                Err(_) => return Ok(Streamed::SinkEnded),
            }
        }
    }

    /// Waits for the sink and tells the sender how it went.
    async fn confirm(
        &mut self,
        from: tidelock_model::NodeId,
        writing: JoinHandle<io::Result<()>>,
    ) -> Result<(), BrokenLink> {
        let failure = match self.joining(writing).await? {
            Ok(Ok(())) => return self.say(DONE, &[]).await,
            Ok(Err(error)) => error.to_string(),
            Err(_panicked) => "the receiver broke while storing it".to_owned(),
        };
        tracing::warn!(peer = %from, "a snapshot could not be stored: {failure}");
        self.decline(FAILED, &failure).await
    }

    /// Says no, and waits a moment for the sender to hear it.
    async fn decline(&mut self, tag: u8, reason: &str) -> Result<(), BrokenLink> {
        self.say(tag, &reason.as_bytes()[..reason.len().min(REASON_BYTES_MAX)]).await?;
        let mut scratch = vec![0; CHUNK_BYTES_MIN];
        let hear_out = async { while self.stream.read(&mut scratch).await.is_ok_and(|count| count > 0) {} };
        // Running into the deadline is fine: the sender had its chance.
        let _ = timeout(LINGER, hear_out).await;
        Ok(())
    }
}
