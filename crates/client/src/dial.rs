//! Connections that the program makes itself, for `https://` endpoints whose TLS is its own.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::future::BoxFuture;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

/// Where `https://host` without a port leads.
const HTTPS_PORT: u16 = 443;

/// A connection, however it was made.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

type Dialed = BoxFuture<'static, io::Result<TokioIo<Box<dyn Wire>>>>;

/// Makes connections.
#[derive(Clone)]
pub(crate) struct Dialer(Arc<dyn Fn(String, u16) -> Dialed + Send + Sync>);

impl Dialer {
    pub(crate) fn new<F, W>(dial: impl Fn(String, u16) -> F + Send + Sync + 'static) -> Dialer
    where
        F: Future<Output = io::Result<W>> + Send + 'static,
        W: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Dialer(Arc::new(move |host, port| {
            let dialing = dial(host, port);
            Box::pin(async move { Ok(TokioIo::new(Box::new(dialing.await?) as Box<dyn Wire>)) })
        }))
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dialer")
    }
}

impl Service<Uri> for Dialer {
    type Response = TokioIo<Box<dyn Wire>>;
    type Error = io::Error;
    type Future = Dialed;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Dialed {
        (self.0)(uri.host().unwrap_or_default().to_owned(), uri.port_u16().unwrap_or(HTTPS_PORT))
    }
}
