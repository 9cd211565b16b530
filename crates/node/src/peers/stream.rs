//! The seam for encryption: what turns a TCP connection into the stream the links talk over.
//!
//! Plain TCP is the implementation here; the server brings the one with TLS, so that this crate need not know
//! of certificates. An encrypting one does its own handshake in `secure`, within the deadline of ours. Nothing
//! binds a node id to a certificate: whoever has one that is let in may say he is any member, as in etcd.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::Awaiting;

/// Bytes both ways.
pub trait PeerStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> PeerStream for T {}

/// The outgoing side.
pub trait Connector: Send + Sync {
    /// Whether it leaves connections as they are, so that what is written to the socket is what the peer reads.
    fn is_plain(&self) -> bool {
        false
    }

    /// Secures a connection just opened to `target`, the `host:port` as configured.
    fn secure<'a>(&'a self, target: &'a str, tcp: TcpStream) -> Awaiting<'a, io::Result<Box<dyn PeerStream>>>;
}

/// The accepting side.
pub trait Acceptor: Send + Sync {
    /// Secures a connection just accepted.
    fn secure(&self, tcp: TcpStream) -> Awaiting<'_, io::Result<Box<dyn PeerStream>>>;
}

/// How connections between members are secured, in both directions.
#[derive(Clone)]
pub struct PeerSecurity {
    /// Those this node opens.
    pub connector: Arc<dyn Connector>,
    /// Those it takes.
    pub acceptor: Arc<dyn Acceptor>,
}

impl PeerSecurity {
    /// Not at all.
    #[must_use]
    pub fn plain() -> PeerSecurity {
        PeerSecurity { connector: Arc::new(PlainTcp), acceptor: Arc::new(PlainTcp) }
    }
}

/// TCP as it is, in both directions.
#[derive(Clone, Copy, Debug)]
pub struct PlainTcp;

impl Connector for PlainTcp {
    fn is_plain(&self) -> bool {
        true
    }

    fn secure<'a>(&'a self, _target: &'a str, tcp: TcpStream) -> Awaiting<'a, io::Result<Box<dyn PeerStream>>> {
        Box::pin(async move { Ok(Box::new(tcp) as Box<dyn PeerStream>) })
    }
}

impl Acceptor for PlainTcp {
    fn secure(&self, tcp: TcpStream) -> Awaiting<'_, io::Result<Box<dyn PeerStream>>> {
        Box::pin(async move { Ok(Box::new(tcp) as Box<dyn PeerStream>) })
    }
}
