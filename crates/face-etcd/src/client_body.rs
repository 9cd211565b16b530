//! The answers that go to a client's HTTP/2 connection: whatever tonic makes, and Watch streams, which are written as
//! the connection wants them (`watch.rs`).

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body as HttpBody, Frame};
use tidelock_http2::serve::Piece;
use tonic::Status;
use tonic::body::Body;

use crate::watch::WatchBody;

/// An answer.
pub(crate) enum ClientBody {
    /// A Watch stream.
    Watch(Box<WatchBody>),
    /// Anything else.
    Other(Body),
}

impl Default for ClientBody {
    fn default() -> ClientBody {
        ClientBody::Other(Body::default())
    }
}

impl HttpBody for ClientBody {
    type Data = Piece;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, Status>>> {
        match self.get_mut() {
            ClientBody::Watch(watch) => watch.poll_frame(cx),
            ClientBody::Other(body) => {
                let frame = Pin::new(body).poll_frame(cx);
                frame.map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(Piece::from))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ClientBody::Watch(_) => false,
            ClientBody::Other(body) => body.is_end_stream(),
        }
    }
}
