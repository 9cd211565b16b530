//! A client that only listens: to what happens to one name, or to one session, over gRPC or as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tidelock_model::{Caller, Kind, LeaseId, Name};
use tidelock_native_api::v1::lost::Reason;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::body::Body;
use tonic::{Code, Status};

use crate::mailbox::{Format, Item, Mailbox};
use crate::problem::Problem;
use crate::services::Services;

/// How long a stream of events may be silent: proxies cut what they take for dead.
const COMMENT_EVERY: Duration = Duration::from_secs(15);

/// What is listened to.
enum Subject {
    Name(Kind, Name),
    Session(LeaseId),
}

/// Tells what happened before, and comes to nothing, or to why it could not.
type CatchingUp = Pin<Box<dyn Future<Output = Result<(), Problem>> + Send>>;

struct Told {
    services: Arc<Services>,
    mailbox: Arc<Mailbox>,
    subject: Subject,
    items: VecDeque<Item>,
    /// What happened before is being told.
    catching_up: Option<CatchingUp>,
    comments: Option<Interval>,
    end: Option<Reason>,
    over: bool,
}

/// The body of such an answer; what happens from now on is in `mailbox` already.
fn told(services: Arc<Services>, mailbox: Arc<Mailbox>, subject: Subject, catching_up: Option<CatchingUp>) -> Body {
    let comments = (mailbox.format == Format::Events).then(|| {
        let mut comments = interval(COMMENT_EVERY);
        comments.set_missed_tick_behavior(MissedTickBehavior::Delay);
        comments
    });
    let items = VecDeque::new();
    Body::new(Told { services, mailbox, subject, items, catching_up, comments, end: None, over: false })
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
    /// Puts out what there is. A server-sent event that is the last of its revision names it, and none goes out before
    /// it is known which one that is: a client that comes back with it has missed nothing, and hears nothing twice.
    fn put_out(&mut self, mut routed: u64, out: &mut BytesMut) {
        if self.mailbox.format != Format::Events {
            return self.items.drain(..).for_each(|item| out.extend_from_slice(&item.payload));
        }
        while let Some(revision) = self.items.front().map(|item| item.revision) {
            // Who is told what happened before may be in the middle of the last revision there is here.
            let is_under_way =
                self.catching_up.is_some() && revision > 0 && self.items.iter().all(|item| item.revision <= revision);
            if is_under_way {
                return;
            }
            if revision > routed && self.catching_up.is_none() {
                if !self.services.router.wake_at(revision, &self.mailbox) {
                    return;
                }
                // It was handed out a moment ago: then the rest of it is in the mailbox.
                routed = self.services.router.routed().max(revision);
                self.end = self.mailbox.take(&mut self.items).or(self.end);
            }
            let Some(item) = self.items.pop_front() else { return };
            let next = self.items.iter().map(|item| item.revision).find(|next| *next > 0);
            if revision > 0 && next != Some(revision) {
                out.extend_from_slice(format!("id: {revision}\n").as_bytes());
            }
            out.extend_from_slice(&item.payload);
        }
    }

    /// A session is told what it was granted before and what it is granted meanwhile side by side, and of what falls
    /// between twice.
    fn put_in_order(&mut self) {
        let items = self.items.make_contiguous();
        // What is out of order is the end of the session, and stays the last.
        items.sort_by_key(|item| item.revision.wrapping_sub(1));
        let mut items = Vec::from(std::mem::take(&mut self.items));
        items.dedup_by(|one, other| one.revision == other.revision && one.payload == other.payload);
        self.items = items.into();
    }

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
        let mut caught_up = false;
        if let Some(catching_up) = &mut this.catching_up
            && let Poll::Ready(done) = catching_up.as_mut().poll(cx)
        {
            (this.catching_up, caught_up) = (None, true);
            if let Err(problem) = done {
                let is_compacted = problem.code == "COMPACTED";
                this.mailbox.end(if is_compacted { Reason::Compacted } else { Reason::Unreachable });
            }
        }
        // Read before the mailbox is emptied: what was handed out up to here is in it.
        let routed = this.services.router.routed();
        if this.end.is_none() {
            this.end = this.mailbox.take(&mut this.items);
        }
        if caught_up && this.mailbox.format == Format::Events {
            this.put_in_order();
        }
        let mut out = BytesMut::new();
        this.put_out(routed, &mut out);
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

impl Services {
    /// Listens to a name, and first to what happened to it after the revision that was told last.
    pub(crate) async fn listen_to_name(
        self: &Arc<Services>,
        caller: Caller,
        (kind, name): (Kind, Name),
        told_revision: u64,
        format: Format,
    ) -> Result<Body, Problem> {
        self.check_told(told_revision).await?;
        let mailbox = self.router.mailbox(format);
        let after = self.router.observe(&*self.coordinator, caller, (kind, &name), &mailbox, told_revision).await?;
        let (services, of, to) = (Arc::clone(self), name.clone(), Arc::clone(&mailbox));
        let catching_up: Option<CatchingUp> = (told_revision > 0).then(|| {
            Box::pin(async move { services.catch_up((kind, &of), told_revision, after, &to).await }) as CatchingUp
        });
        Ok(told(Arc::clone(self), mailbox, Subject::Name(kind, name), catching_up))
    }

    /// Listens to a session, and first to what it was granted after the revision that was told last.
    pub(crate) async fn listen_to_session(
        self: &Arc<Services>,
        caller: Caller,
        session: LeaseId,
        told_revision: u64,
        format: Format,
    ) -> Result<Body, Problem> {
        let mailbox = self.router.mailbox(format);
        self.begin_attaching(&caller, session, &mailbox).await?;
        let (services, to) = (Arc::clone(self), Arc::clone(&mailbox));
        let catching_up: Option<CatchingUp> = (told_revision > 0).then(|| {
            Box::pin(async move { services.tell_missed_grants(&caller, session, told_revision, &to).await })
                as CatchingUp
        });
        Ok(told(Arc::clone(self), mailbox, Subject::Session(session), catching_up))
    }
}
