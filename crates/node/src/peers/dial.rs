//! Opens one connection to a peer: resolves its addresses, tries them in order, shakes hands.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use tidelock_model::NodeId;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::PeerConfig;
use super::frame::{FrameReader, FrameWriter};
use super::handshake::{HANDSHAKE_BYTES_MAX, HandshakeError, Identity, Purpose};
use super::stream::PeerStream;

/// Most addresses tried per name; a name with more is somebody's mistake.
const RESOLVED_MAX: usize = 8;

/// A connection whose handshake was accepted.
pub(super) struct Dialed {
    pub(super) stream: Box<dyn PeerStream>,
    /// The same connection, if what is written to it goes out as it is.
    pub(super) socket: Option<std::net::TcpStream>,
    pub(super) reader: FrameReader,
    pub(super) version: u32,
    pub(super) address: SocketAddr,
}

/// Why none of the addresses led to a link.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// Somebody answered and said no.
    #[error("refused by {address}: {reason}")]
    Refused { address: SocketAddr, reason: String },
    /// Nobody useful answered. `near`: every address is on this machine.
    #[error("{reason}")]
    Unreachable { reason: String, near: bool },
}

/// Tries each of `targets` (`host:port`) until one accepts. Names are resolved anew each time, so a
/// peer whose address changed behind its name is found again.
pub(super) async fn dial(
    config: &PeerConfig,
    identity: &Identity,
    peer: NodeId,
    targets: &[String],
    purpose: Purpose,
) -> Result<Dialed, DialError> {
    let mut refused = None;
    let mut problems = Vec::new();
    let mut near = true;
    for target in targets {
        let addresses = match timeout(config.limits.connect, lookup_host(target)).await {
            Ok(Ok(addresses)) => addresses.take(RESOLVED_MAX).collect::<Vec<_>>(),
            Ok(Err(error)) => {
                near = false;
                problems.push(format!("{target} cannot be resolved: {error}"));
                continue;
            }
            Err(_) => {
                near = false;
                problems.push(format!("{target} cannot be resolved in time"));
                continue;
            }
        };
        for address in addresses {
            near &= address.ip().is_loopback();
            match try_address(config, identity, peer, target, address, purpose).await {
                Ok(dialed) => return Ok(dialed),
                Err(HandshakeError::Refused(reason)) => refused = Some(DialError::Refused { address, reason }),
                Err(error) => problems.push(format!("{address}: {error}")),
            }
        }
    }
    // A refusal says more than a closed port on another address of the same peer.
    Err(refused.unwrap_or_else(|| {
        if problems.is_empty() {
            problems.push("no address to connect to".into());
            near = false;
        }
        DialError::Unreachable { reason: problems.join("; "), near }
    }))
}

async fn try_address(
    config: &PeerConfig,
    identity: &Identity,
    peer: NodeId,
    target: &str,
    address: SocketAddr,
    purpose: Purpose,
) -> Result<Dialed, HandshakeError> {
    let limits = &config.limits;
    let tcp = match timeout(limits.connect, TcpStream::connect(address)).await {
        Ok(connected) => connected.map_err(broken)?,
        Err(_) => return Err(broken(std::io::Error::other(format!("no connection within {:?}", limits.connect)))),
    };
    // Dialing a dead port of this machine can, by chance, get that very port as its own and meet
    // itself; holding on to it would keep the restarted peer from listening there.
    if tcp.local_addr().is_ok_and(|own| own == address) {
        return Err(broken(std::io::ErrorKind::ConnectionRefused.into()));
    }
    // Raft messages are small and answered: waiting to fill a packet would cost a round trip each.
    tcp.set_nodelay(true).map_err(broken)?;
    let handshake = async {
        let socket = config.connector.is_plain().then(|| duplicate(&tcp)).transpose().map_err(broken)?;
        let mut stream = config.connector.secure(target, tcp).await.map_err(broken)?;
        let mut reader = FrameReader::new(HANDSHAKE_BYTES_MAX);
        let mut writer = FrameWriter::new(limits.handshake, HANDSHAKE_BYTES_MAX);
        let version = identity.greet(&mut *stream, &mut reader, &mut writer, peer, purpose).await?;
        Ok(Dialed { stream, socket, reader, version, address })
    };
    match timeout(limits.handshake, handshake).await {
        Ok(done) => done,
        Err(_) => Err(broken(std::io::Error::other(format!("no handshake within {:?}", limits.handshake)))),
    }
}

fn duplicate(tcp: &TcpStream) -> std::io::Result<std::net::TcpStream> {
    Ok(tcp.as_fd().try_clone_to_owned()?.into())
}

fn broken(error: std::io::Error) -> HandshakeError {
    HandshakeError::Broken(error.into())
}
