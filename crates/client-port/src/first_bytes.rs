//! A connection tells by its first bytes which protocol it speaks. They are read here, and handed on with the rest.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tidelock_http2::PREFACE;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Reads until it is clear whether this is HTTP/2: whether, and what was read.
pub(crate) async fn speaks_http2(io: &mut (impl AsyncRead + Unpin)) -> io::Result<(bool, BytesMut)> {
    let mut read = BytesMut::with_capacity(1024);
    loop {
        let length = read.len().min(PREFACE.len());
        if read[..length] != PREFACE[..length] {
            return Ok((false, read));
        }
        if length == PREFACE.len() {
            return Ok((true, read));
        }
        if io.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// A connection whose first bytes were read already.
pub(crate) struct Resumed<IO> {
    pub(crate) read: BytesMut,
    pub(crate) io: IO,
}

impl<IO: AsyncRead + Unpin> AsyncRead for Resumed<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.read.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, out);
        }
        let count = self.read.len().min(out.remaining());
        out.put_slice(&self.read[..count]);
        self.read.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Resumed<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }
}
