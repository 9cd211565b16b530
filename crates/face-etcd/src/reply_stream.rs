//! The answering half of a stream: a bounded queue, read by the connection at the client's pace.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::sync::mpsc;
use tonic::Status;

/// What a stream's task queued, as the connection takes it. Dropping it, as the connection does when
/// the client is gone, ends the task.
pub(crate) struct ReplyStream<T>(pub(crate) mpsc::Receiver<Result<T, Status>>);

impl<T> Stream for ReplyStream<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}
