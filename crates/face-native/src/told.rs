//! A client that only listens: to what happens to one name, or to one session, over gRPC or as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tidelock_model::{Kind, LeaseId, Name};
use tidelock_native_api::v1::lost::Reason;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::body::Body;
use tonic::{Code, Status};

use crate::mailbox::{Format, Item, Mailbox};
use crate::services::Services;

/// How long a stream of events may be silent: proxies cut what they take for dead.
const COMMENT_EVERY: Duration = Duration::from_secs(15);

/// What is listened to.
pub(crate) enum Subject {
    Name(Kind, Name),
    Session(LeaseId),
}

struct Told {
    services: Arc<Services>,
    mailbox: Arc<Mailbox>,
    subject: Subject,
    items: VecDeque<Item>,
    comments: Option<Interval>,
    end: Option<Reason>,
    over: bool,
}

/// The body of such an answer; `mailbox` was told of already.
pub(crate) fn told(services: Arc<Services>, mailbox: Arc<Mailbox>, subject: Subject) -> Body {
    let comments = (mailbox.format == Format::Events).then(|| {
        let mut comments = interval(COMMENT_EVERY);
        comments.set_missed_tick_behavior(MissedTickBehavior::Delay);
        comments
    });
    Body::new(Told { services, mailbox, subject, items: VecDeque::new(), comments, end: None, over: false })
}

fn status(reason: Reason) -> Status {
    let text = reason.as_str_name();
    match reason {
        Reason::TooSlow => Status::new(Code::ResourceExhausted, text),
        Reason::NotAllowed => Status::new(Code::PermissionDenied, text),
        _ => Status::new(Code::Unavailable, text),
    }
}

impl Told {
    /// The last words, in the format of the client.
    fn last(&mut self, reason: Reason) -> Frame<Bytes> {
        self.over = true;
        match self.mailbox.format {
            Format::Events => {
                Frame::data(format!("event: lost\ndata: {{\"reason\":\"{}\"}}\n\n", reason.as_str_name()).into())
            }
            Format::Notices | Format::Stream => {
                let mut trailers = http::HeaderMap::new();
                // Plain words fit into a header.
                let _ = status(reason).add_header(&mut trailers);
                Frame::trailers(trailers)
            }
        }
    }
}

impl http_body::Body for Told {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if this.over {
            return Poll::Ready(None);
        }
        this.mailbox.register(cx.waker());
        if this.end.is_none() {
            this.end = this.mailbox.take(&mut this.items);
        }
        let mut out = BytesMut::new();
        this.items.drain(..).for_each(|item| out.extend_from_slice(&item.payload));
        if let Some(comments) = &mut this.comments
            && comments.poll_tick(cx).is_ready()
            && out.is_empty()
        {
            out.extend_from_slice(b": still here\n\n");
            // Woken for the next one.
            let _ = comments.poll_tick(cx);
        }
        if !out.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(out.freeze()))));
        }
        match this.end {
            Some(reason) => Poll::Ready(Some(Ok(this.last(reason)))),
            None => Poll::Pending,
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let router = &self.services.router;
        match &self.subject {
            Subject::Name(kind, name) => router.stop_observing(*kind, name.as_str(), &self.mailbox),
            Subject::Session(session) => router.detach(std::iter::once(session.0), &self.mailbox),
        }
    }
}
