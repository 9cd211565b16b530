//! The bytes of one connection, encrypted on their way or not.
//!
//! Nothing here waits: what the kernel does not take or have yet is said by [`ErrorKind::WouldBlock`], as of any socket.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

/// How connections are encrypted.
#[derive(Clone)]
pub struct Tls {
    /// Whom to believe, and what to show.
    pub config: Arc<ClientConfig>,
    /// The name that the certificate at each address must be for; the address itself where there is none.
    pub names: BTreeMap<SocketAddr, ServerName<'static>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("names", &self.names).finish_non_exhaustive()
    }
}

pub(crate) struct Socket {
    stream: TcpStream,
    session: Option<Box<ClientConnection>>,
}

impl Socket {
    pub(crate) fn open(address: SocketAddr, tls: Option<&Tls>) -> io::Result<Socket> {
        let session = tls.map(|tls| {
            let own = || ServerName::IpAddress(address.ip().into());
            let name = tls.names.get(&address).cloned().unwrap_or_else(own);
            ClientConnection::new(Arc::clone(&tls.config), name).map(Box::new).map_err(io::Error::other)
        });
        let session = session.transpose()?;
        Ok(Socket { stream: TcpStream::connect(address)?, session })
    }

    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Whether a read that fills less than its room has emptied the socket. What is encrypted comes record by record.
    pub(crate) fn tells_when_empty(&self) -> bool {
        self.session.is_none()
    }

    /// Whether there is something to send that was not handed to [`Socket::write`]: a handshake.
    pub(crate) fn wants_write(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.wants_write())
    }

    /// Reads; zero bytes are the end.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let Some(session) = &mut self.session else { return self.stream.read(out) };
        loop {
            match session.reader().read(out) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // Closed without TLS' own goodbye, as by who is killed.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            if session.read_tls(&mut self.stream)? == 0 {
                return Ok(0);
            }
            session.process_new_packets().map_err(io::Error::other)?;
        }
    }

    /// Takes bytes to be sent; how many. Some of them may not have left: [`Socket::push`] sees to that.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push()?;
        let Some(session) = &mut self.session else { return self.stream.write(bytes) };
        match session.writer().write(bytes)? {
            0 => Err(ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    /// Sends what was taken and has not left.
    pub(crate) fn push(&mut self) -> io::Result<()> {
        if let Some(session) = &mut self.session {
            while session.wants_write() {
                session.write_tls(&mut self.stream)?;
            }
        }
        Ok(())
    }
}
