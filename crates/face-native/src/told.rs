//! A client that only listens: to what happens to one name, or to one session, over gRPC or as server-sent events.

use std::collections::{HashSet, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tidelock_model::{Caller, Kind, LeaseId, Name};
use tidelock_native_api::v1::error::Family;
use tidelock_native_api::v1::lost::Reason;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::Status;
use tonic::body::Body;

use crate::mailbox::{Format, Item, Mailbox};
use crate::problem::Problem;
use crate::router::Observation;
use crate::services::Services;

/// How long a stream of events may be silent: proxies cut what they take for dead.
const COMMENT_EVERY: Duration = Duration::from_secs(15);

/// What is listened to.
enum Subject {
    Name(Kind, Name, Arc<Observation>),
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
    /// What happens after this revision is told when that is done.
    after: u64,
    /// What happened since.
    later: Vec<Item>,
    comments: Option<Interval>,
    end: Option<Reason>,
    over: bool,
}

/// The body of such an answer; what happens from now on is in `mailbox` already.
fn told(
    services: Arc<Services>,
    mailbox: Arc<Mailbox>,
    subject: Subject,
    (after, catching_up): (u64, Option<CatchingUp>),
) -> Body {
    let comments = (mailbox.format == Format::Events).then(|| {
        let mut comments = interval(COMMENT_EVERY);
        comments.set_missed_tick_behavior(MissedTickBehavior::Delay);
        comments
    });
    let (items, later) = (VecDeque::new(), Vec::new());
    Body::new(Told { services, mailbox, subject, items, catching_up, after, later, comments, end: None, over: false })
}

/// Why there is no more, as an error of the call.
fn ended(reason: Reason) -> Problem {
    let family = match reason {
        Reason::TooSlow => Family::Bounded,
        Reason::NotAllowed => Family::Denied,
        _ => Family::Unavailable,
    };
    Problem::new(family, reason.as_str_name(), reason.as_str_name())
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

    /// Keeps back what happened since the client came, until it is told what happened before: who is cut off in between
    /// comes back with what it was told last, and would not be told the rest.
    fn keep_back(&mut self) {
        // What is out of order is the end of the session, and stays the last.
        let is_early = |item: &Item| (1..=self.after).contains(&item.revision);
        let (early, mut later): (Vec<Item>, Vec<Item>) = self.items.drain(..).partition(is_early);
        self.items = early.into();
        self.later.append(&mut later);
    }

    /// A session is told what it was granted before and what it is granted meanwhile side by side, and of what falls
    /// between twice.
    fn put_in_order(&mut self) {
        let mut items = Vec::from(std::mem::take(&mut self.items));
        items.append(&mut self.later);
        items.sort_by_key(|item| item.revision.wrapping_sub(1));
        let mut seen = HashSet::new();
        items.retain(|item| seen.insert((item.revision, item.payload.clone())));
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
                let ended = ended(reason).at(self.services.header_now());
                let _ = Status::from(ended).add_header(&mut trailers);
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
        // What happens to a name meanwhile is kept back by the router.
        if matches!(this.subject, Subject::Session(_)) {
            if this.catching_up.is_some() {
                this.keep_back();
            } else if caught_up {
                this.put_in_order();
            }
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
            Subject::Name(kind, name, observation) => router.stop_observing(*kind, name.as_str(), observation),
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
        let (mailbox, observation) = (self.router.mailbox(format), Arc::default());
        let whom = (&mailbox, &observation);
        let after = self.router.observe(&*self.coordinator, caller, (kind, &name), whom, told_revision).await?;
        let (services, of) = (Arc::clone(self), name.clone());
        let (to, by) = (Arc::clone(&mailbox), Arc::clone(&observation));
        let catching_up: Option<CatchingUp> = (told_revision > 0).then(|| {
            Box::pin(async move { services.catch_up((kind, &of), told_revision, after, (&to, &by)).await })
                as CatchingUp
        });
        Ok(told(Arc::clone(self), mailbox, Subject::Name(kind, name, observation), (after, catching_up)))
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
        let after = self.begin_attaching(&caller, session, &mailbox).await?.0.keep();
        let (services, to) = (Arc::clone(self), Arc::clone(&mailbox));
        let catching_up: Option<CatchingUp> = (told_revision > 0).then(|| {
            Box::pin(async move { services.tell_missed_grants(&caller, session, told_revision, &to).await })
                as CatchingUp
        });
        Ok(told(Arc::clone(self), mailbox, Subject::Session(session), (after, catching_up)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::{Encoded, missed_grant};
    use crate::test_double::{Double, grant};
    use crate::{FaceConfig, NativeFace};
    use futures_util::FutureExt;
    use http_body_util::BodyExt;
    use tidelock_model::{Data, Revision};
    use tidelock_native_api::v1;
    use tokio::sync::mpsc;

    const SESSION: LeaseId = LeaseId(7);

    /// Has the double tell of a grant, and waits until it was handed out.
    async fn granted(double: &Double, services: &Services, session: LeaseId, name: &str, token: u64) {
        double.happen(grant(name, session.0, 2, token));
        let handed_out = async {
            while services.router.routed() < token {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), handed_out).await.expect("handed out in time");
    }

    /// The same, as somebody is told who missed it.
    fn missed(services: &Services, name: &str, token: u64) -> Item {
        let member = v1::Member { place: 2, token, ..Default::default() };
        let notice = missed_grant(Kind::Lock, Name::new(name).unwrap(), SESSION, &member);
        Encoded::at(services.router.encoder(), notice, Revision(token), &Data::default()).item(Format::Events, None)
    }

    /// What the client reads now: of each event its id, if it has one, and the name it is about.
    async fn read(body: &mut Body) -> Vec<(u64, String)> {
        let mut text = String::new();
        // What woke the task is seen to first.
        for _ in 0..100 {
            tokio::task::yield_now().await;
            while let Some(Some(Ok(frame))) = body.frame().now_or_never() {
                text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
            }
        }
        let events = text.split("\n\n").filter(|event| event.contains("data: "));
        let event = |event: &str| {
            let field = |name| event.lines().find_map(|line| line.strip_prefix(name));
            let data: serde_json::Value = serde_json::from_str(field("data: ").unwrap()).unwrap();
            let id = field("id: ").map_or(0, |id| id.parse().unwrap());
            (id, data["granted"]["name"].as_str().unwrap().to_owned())
        };
        events.map(event).collect()
    }

    fn expected(events: &[(u64, &str)]) -> Vec<(u64, String)> {
        events.iter().map(|(id, name)| (*id, (*name).to_owned())).collect()
    }

    /// A client that comes back is told what it missed while new grants come in. Told out of order it would come back
    /// the next time with the number of a later one, and never hear of an earlier: it would hold a lock and not know.
    #[tokio::test]
    async fn what_a_session_missed_is_told_before_what_happens_meanwhile_and_nothing_twice() {
        let double = Arc::new(Double::default());
        let face = NativeFace::new(double.clone(), FaceConfig::default());
        let services = face.services();
        granted(&double, services, LeaseId(1), "somebody else's", 10).await;
        let mailbox = services.router.mailbox(Format::Events);
        let after = services.router.attach(SESSION, &mailbox).await.keep();
        let (tell, mut to_tell) = mpsc::channel(16);
        let to = Arc::clone(&mailbox);
        let catching_up: CatchingUp = Box::pin(async move {
            while let Some(item) = to_tell.recv().await {
                to.push(item);
            }
            Ok(())
        });
        let mut body = told(Arc::clone(services), mailbox, Subject::Session(SESSION), (after, Some(catching_up)));
        for (name, token) in [("new", 12), ("both", 13), ("both, too", 13)] {
            granted(&double, services, SESSION, name, token).await;
        }
        assert_eq!(read(&mut body).await, expected(&[]), "what was missed comes first");
        tell.send(missed(services, "old", 5)).await.unwrap();
        assert_eq!(read(&mut body).await, expected(&[]), "there may be more of that revision");
        tell.send(missed(services, "old, too", 5)).await.unwrap();
        tell.send(missed(services, "older than new", 8)).await.unwrap();
        assert_eq!(read(&mut body).await, expected(&[(0, "old"), (5, "old, too")]));
        for (name, token) in [("new", 12), ("both", 13), ("both, too", 13)] {
            tell.send(missed(services, name, token)).await.unwrap();
        }
        drop(tell);
        let rest = [(8, "older than new"), (12, "new"), (0, "both"), (13, "both, too")];
        assert_eq!(read(&mut body).await, expected(&rest));
        granted(&double, services, SESSION, "from now on", 14).await;
        assert_eq!(read(&mut body).await, expected(&[(14, "from now on")]));
    }
}
