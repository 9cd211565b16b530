//! The seam for encryption: what turns a TCP connection into the stream the links talk over.
//!
//! Only plain TCP exists. An encrypting implementation does its own handshake in `secure`, within
//! the deadline of ours; to bind a node id to a certificate it would have to return the id as well.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::Awaiting;

/// Bytes both ways.
pub trait PeerStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> PeerStream for T {}

/// The outgoing side.
pub trait Connector: Send + Sync {
    /// Secures a connection just opened to `target`, the `host:port` as configured.
    fn secure<'a>(&'a self, target: &'a str, tcp: TcpStream) -> Awaiting<'a, io::Result<Box<dyn PeerStream>>>;
}

/// The accepting side.
pub trait Acceptor: Send + Sync {
    /// Secures a connection just accepted.
    fn secure(&self, tcp: TcpStream) -> Awaiting<'_, io::Result<Box<dyn PeerStream>>>;
}

/// TCP as it is, in both directions.
#[derive(Clone, Copy, Debug)]
pub struct PlainTcp;

impl Connector for PlainTcp {
    fn secure<'a>(&'a self, _target: &'a str, tcp: TcpStream) -> Awaiting<'a, io::Result<Box<dyn PeerStream>>> {
        Box::pin(async move { Ok(Box::new(tcp) as Box<dyn PeerStream>) })
    }
}

impl Acceptor for PlainTcp {
    fn secure(&self, tcp: TcpStream) -> Awaiting<'_, io::Result<Box<dyn PeerStream>>> {
        Box::pin(async move { Ok(Box::new(tcp) as Box<dyn PeerStream>) })
    }
}
