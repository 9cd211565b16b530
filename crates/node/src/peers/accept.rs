//! The accepting side: takes connections, judges their handshake and reads messages from them.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::claims::Claim;
use super::enquiry;
use super::frame::{BrokenLink, FrameReader, FrameWriter};
use super::handshake::{HANDSHAKE_BYTES_MAX, HandshakeError, Hello, Purpose};
use super::link::{listen, pulses, pulsing};
use super::net::Shared;
use super::snapshot;
use super::stream::PeerStream;

/// Most connections whose handshake is not done. Later ones wait in the kernel's queue; each place is
/// free again after the handshake deadline at the latest.
const HANDSHAKES_MAX: usize = 64;
/// How long to wait after `accept` failed, which it does for as long as file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts until stopped.
pub(super) async fn run(shared: Arc<Shared>, listener: TcpListener) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&handshakes).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((tcp, from)) => shared.spawn(serve(Arc::clone(&shared), tcp, from, permit)),
            Err(error) => {
                if let Some(suppressed) = shared.gate.pass() {
                    tracing::warn!(%error, suppressed, "cannot accept peer connections; is the limit of open files too low?");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// One accepted connection, from its handshake to its end.
async fn serve(shared: Arc<Shared>, tcp: TcpStream, from: SocketAddr, permit: OwnedSemaphorePermit) {
    let (hello, stream, reader) = match timeout(shared.config.limits.handshake, shake_hands(&shared, tcp)).await {
        Ok(Ok(None)) => return,
        Ok(Ok(Some((hello, Ok(_version), stream, reader)))) => (hello, stream, reader),
        Ok(Ok(Some((hello, Err(reason), ..)))) => return shared.turn_away(from, Some(&hello), reason),
        Ok(Err(error)) => return shared.turn_away(from, None, error.to_string()),
        Err(_) => return shared.turn_away(from, None, "no handshake in time".into()),
    };
    drop(permit);
    Shared::learn(&shared, hello.from, &hello.advertise);
    let claim = Claim::new(&shared, hello.from, hello.purpose);
    let broken = match hello.purpose {
        Purpose::Messages => {
            shared.hurry(hello.from);
            read_messages(&shared, &claim, stream, reader).await.err()
        }
        Purpose::Snapshot => Box::pin(snapshot::receive(&shared, &claim, stream, reader)).await.err(),
    };
    drop(claim);
    match broken {
        Some(broken) if broken.is_garbage() => {
            if let Some(suppressed) = shared.gate.pass() {
                tracing::warn!(peer = %hello.from, %from, suppressed, "dropped a peer connection: {broken}");
            }
        }
        Some(broken) => {
            tracing::info!(peer = %hello.from, %from, purpose = ?hello.purpose, "peer connection ended: {broken}");
        }
        None => tracing::debug!(peer = %hello.from, %from, purpose = ?hello.purpose, "peer connection ended"),
    }
}

type Shaken = (Hello, Result<u32, String>, Box<dyn PeerStream>, FrameReader);

/// `None`: somebody only asked who is in the cluster, and was told.
async fn shake_hands(shared: &Shared, tcp: TcpStream) -> Result<Option<Shaken>, HandshakeError> {
    tcp.set_nodelay(true).map_err(BrokenLink::from)?;
    let mut stream = shared.config.acceptor.secure(tcp).await.map_err(BrokenLink::from)?;
    let mut reader = FrameReader::new(HANDSHAKE_BYTES_MAX);
    let mut writer = FrameWriter::new(shared.config.limits.handshake, HANDSHAKE_BYTES_MAX);
    let first = reader.read(&mut *stream).await?;
    if enquiry::is_question(&first) {
        let answer = enquiry::answer(shared.config.cluster, shared.config.node, &shared.inbound.members());
        let mut writer = FrameWriter::new(shared.config.limits.handshake, answer.len());
        writer.push(&[], answer)?;
        writer.flush(&mut *stream).await?;
        return Ok(None);
    }
    let admits = |node, disk| shared.inbound.admits(node, disk);
    let (hello, verdict) = shared.identity.answer(&mut *stream, &first, &mut writer, admits).await?;
    Ok(Some((hello, verdict, stream, reader)))
}

/// Reads and delivers until the connection breaks (an error) or no longer counts.
async fn read_messages(
    shared: &Shared,
    claim: &Claim,
    mut stream: Box<dyn PeerStream>,
    mut reader: FrameReader,
) -> Result<(), BrokenLink> {
    let limits = &shared.config.limits;
    reader.set_frame_max(limits.frame_bytes);
    let mut writer = FrameWriter::new(limits.write_stall, 0);
    let mut pulse = pulses(limits);
    let mut superseded = Box::pin(claim.superseded());
    let _turn = pulsing(&mut *stream, &mut writer, &mut pulse, claim.turn.lock()).await?;
    loop {
        let (frames, broken) = whole_frames(&mut reader);
        if !frames.is_empty() {
            let delivery = shared.inbound.deliver(claim.peer, frames);
            pulsing(&mut *stream, &mut writer, &mut pulse, delivery).await?;
        }
        // What came whole before the damage was delivered; nothing after it can be trusted.
        broken?;
        let heard = listen(&mut *stream, &mut reader, &mut writer, &mut pulse, limits.silence, &mut superseded).await?;
        if let ControlFlow::Break(()) = heard {
            return Ok(());
        }
    }
}

/// All frames that are there, pulses apart, and whether the bytes after them are still sound.
fn whole_frames(reader: &mut FrameReader) -> (Vec<bytes::Bytes>, Result<(), BrokenLink>) {
    let mut frames = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(frame)) if frame.is_empty() => {}
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => return (frames, Ok(())),
            Err(broken) => return (frames, Err(broken)),
        }
    }
}
