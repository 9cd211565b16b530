//! A connection inside TLS.
//!
//! An end without TLS' own goodbye counts as an end. Everything spoken inside (HTTP, our frames) tells by itself
//! whether a message is whole, and a process that is killed never says goodbye.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsStream;

use crate::refusal::explained;

/// Bytes in and out, encrypted on the way.
#[derive(Debug)]
pub struct SecureStream<IO>(TlsStream<IO>);

impl<IO> SecureStream<IO> {
    pub(crate) fn new(stream: impl Into<TlsStream<IO>>) -> SecureStream<IO> {
        SecureStream(stream.into())
    }

    /// The connection underneath.
    pub fn get_ref(&self) -> &IO {
        self.0.get_ref().0
    }

    /// What the other side showed, its own certificate first; verified as the settings say.
    #[must_use]
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        self.0.get_ref().1.peer_certificates().unwrap_or_default()
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for SecureStream<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, out).map(|read| match read {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            other => other.map_err(explained),
        })
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for SecureStream<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
