//! Real connections to a face over a coordinator that answers when a test says: order, bounds, shutdown.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use prost::Message;
use tidelock_client_port::{Face, framed};
use tidelock_model::{Caller, Kind, LeaseId, Name, NativeAnswer};
use tidelock_native_api::v1::from_client::Message as FromClient;
use tidelock_native_api::v1::lost::Reason;
use tidelock_native_api::v1::native_client::NativeClient;
use tidelock_native_api::v1::to_client::Message as ToClient;
use tidelock_native_api::{ERROR_TRAILER, v1};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tonic::Streaming;
use tonic::body::Body;

use crate::mailbox::{Format, Mailbox};
use crate::router::Router;
use crate::test_double::{Double, grant, outcome};
use crate::{FaceConfig, NativeFace, serve};

const DEADLINE: Duration = Duration::from_secs(20);

struct Client {
    double: Arc<Double>,
    sender: mpsc::Sender<v1::FromClient>,
    receiver: Streaming<v1::ToClient>,
    stop: Option<oneshot::Sender<()>>,
}

async fn connected() -> Client {
    let double = Arc::new(Double::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let face = NativeFace::new(double.clone(), FaceConfig::default());
    let (stop, stopped) = oneshot::channel();
    tokio::spawn(serve(listener, face, None, async { drop(stopped.await) }));
    let channel =
        tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let (sender, requests) = mpsc::channel(64);
    let requests =
        futures_util::stream::unfold(requests, |mut all| async { all.recv().await.map(|request| (request, all)) });
    let receiver = NativeClient::new(channel).connect(requests).await.unwrap().into_inner();
    Client { double, sender, receiver, stop: Some(stop) }
}

impl Client {
    async fn send(&self, message: FromClient) {
        self.sender.send(v1::FromClient { message: Some(message) }).await.unwrap();
    }

    async fn next(&mut self) -> Option<ToClient> {
        let next = tokio::time::timeout(DEADLINE, self.receiver.message()).await;
        next.expect("a message in time").unwrap().and_then(|message| message.message)
    }

    async fn open(&mut self) -> i64 {
        self.send(FromClient::Open(v1::OpenRequest { ttl_ms: 60_000, client: 0 })).await;
        match self.next().await {
            Some(ToClient::Opened(opened)) => opened.session,
            other => panic!("{other:?}"),
        }
    }

    async fn acquire(&self, session: i64, number: u64, name: &str) {
        let acquire = v1::Acquire { name: name.into(), mode: v1::Mode::Exclusive.into(), ..Default::default() };
        let op = Some(v1::request::Op::Acquire(acquire));
        self.send(FromClient::Request(v1::Request { session, number, acknowledged: 0, op })).await;
    }
}

fn kind_of(message: &ToClient) -> (&'static str, u64) {
    match message {
        ToClient::Reply(reply) => ("reply", reply.number),
        ToClient::Notice(notice) => ("notice", notice.revision),
        ToClient::Attached(_) => ("attached", 0),
        ToClient::Observing(observing) if observing.error.is_none() => ("observing", 0),
        other => panic!("{other:?}"),
    }
}

/// A client that hears of the grant of a place it does not know of would have to remember it for later, and every client
/// would get that wrong once.
#[tokio::test]
async fn a_grant_waits_for_the_reply_that_names_its_place() {
    let mut client = connected().await;
    let session = client.open().await;
    client.acquire(session, 1, "slow").await;
    let (_, answer) = client.double.proposal().await;
    // The place 5 is granted at 7, and told, before the reply is there; so is one of another name.
    client.double.happen(grant("other", session, 4, 6));
    client.double.happen(grant("slow", session, 5, 7));
    assert_eq!(kind_of(&client.next().await.unwrap()), ("notice", 6));
    answer.send(outcome(5, NativeAnswer::Place { place: 5, token: 0, ahead: 1 })).unwrap();
    assert_eq!(kind_of(&client.next().await.unwrap()), ("reply", 1));
    assert_eq!(kind_of(&client.next().await.unwrap()), ("notice", 7));
}

/// A client that knows of a revision must have been told what happened up to it: it asks from there when it comes back.
#[tokio::test]
async fn a_reply_waits_for_what_happened_up_to_its_revision() {
    let mut client = connected().await;
    let session = client.open().await;
    client.acquire(session, 1, "late").await;
    let (_, answer) = client.double.proposal().await;
    answer.send(outcome(9, NativeAnswer::Place { place: 9, token: 9, ahead: 0 })).unwrap();
    // Nothing tells whether something happened before 9 until the subscription does.
    client.double.happen(grant("early", session, 4, 8));
    client.double.happen(grant("late", session, 9, 9));
    assert_eq!(kind_of(&client.next().await.unwrap()), ("notice", 8));
    assert_eq!(kind_of(&client.next().await.unwrap()), ("reply", 1), "its own grant is in the reply, and nowhere else");
    client.double.happen(grant("next", session, 4, 10));
    assert_eq!(kind_of(&client.next().await.unwrap()), ("notice", 10));
}

/// Who comes back is told what it missed, and then that this was all: until that word it must not take anything else it
/// hears for a sign that it was told all before.
#[tokio::test]
async fn that_a_session_is_attached_is_told_after_what_it_missed() {
    let mut client = connected().await;
    for (place, token) in [(2, 5), (3, 6)] {
        client.double.hold("mine", place, token);
    }
    client.send(FromClient::Attach(v1::Attach { session: 77, told_revision: 4 })).await;
    for told in [("notice", 5), ("notice", 6), ("attached", 0)] {
        assert_eq!(kind_of(&client.next().await.unwrap()), told);
    }
    client.double.happen(grant("next", 77, 4, 10));
    assert_eq!(kind_of(&client.next().await.unwrap()), ("notice", 10));
}

/// A node may be behind the one that an observer comes from. What it learns only now, the observer has heard already, and
/// would take for news: of two leaders, say, of which the first is long gone.
#[tokio::test]
async fn what_another_node_told_an_observer_is_not_told_again() {
    let mut client = connected().await;
    client.double.reach(20);
    let name = "watched".to_owned();
    let observe = v1::ObserveRequest { kind: v1::Kind::Lock.into(), name, told_revision: 10 };
    client.send(FromClient::Observe(observe)).await;
    assert_eq!(kind_of(&client.next().await.unwrap()), ("observing", 0));
    for token in 8..=12 {
        client.double.happen(grant("watched", 77, 2, token));
    }
    for news in [11, 12] {
        assert_eq!(kind_of(&client.next().await.unwrap()), ("notice", news));
    }
}

async fn until_handed_out(router: &Router, revision: u64) {
    let handed_out = async {
        while router.routed() < revision {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, handed_out).await.expect("handed out in time");
}

/// The revisions of what is in the mailbox.
fn taken(mailbox: &Mailbox) -> Vec<u64> {
    let mut items = VecDeque::new();
    assert_eq!(mailbox.take(&mut items), None);
    items.iter().map(|item| item.revision).collect()
}

/// A candidate comes back and is told what it missed of its election when it is granted the leadership. Were that held
/// back, something else would be told first; if the candidate is cut off then, or observes no more, nobody tells it
/// again, and there would be no leader for as long as the candidate lives.
#[tokio::test]
async fn a_grant_is_told_although_the_observer_of_its_name_goes_before_it_caught_up() {
    let double = Arc::new(Double::default());
    let face = NativeFace::new(double.clone(), FaceConfig::default());
    let router = &face.services().router;
    let (ours, theirs, name) = (LeaseId(7), LeaseId(8), Name::new("n").unwrap());
    let mailbox = router.mailbox(Format::Stream);
    router.attach(ours, &mailbox).await.keep();
    let observe = || async {
        let observation = Arc::default();
        let whom = (&mailbox, &observation);
        router.observe(&*double, Caller::Anonymous, (Kind::Lock, &name), whom, 1).await.unwrap();
        observation
    };
    let granted = |to: LeaseId, token| {
        double.happen(grant("n", to.0, 2, token));
        until_handed_out(router, token)
    };
    let why_no_more = 0;
    let first = observe().await;
    granted(theirs, 10).await;
    assert!(taken(&mailbox).is_empty(), "held back until it caught up");
    granted(ours, 11).await;
    assert_eq!(taken(&mailbox), [why_no_more, 11], "its own, and nothing that it did not catch up with");
    assert!(first.is_over());
    let second = observe().await;
    granted(theirs, 20).await;
    // What is left of the first is not about the second.
    router.caught_up(Kind::Lock, "n", &first);
    router.stop_observing(Kind::Lock, "n", &first);
    assert!(taken(&mailbox).is_empty());
    router.caught_up(Kind::Lock, "n", &second);
    granted(ours, 21).await;
    assert_eq!(taken(&mailbox), [20, 21], "once, although for two reasons");
    router.stop_observing(Kind::Lock, "n", &second);
    let third = observe().await;
    double.shut_out_everybody();
    granted(ours, 31).await;
    assert_eq!(taken(&mailbox), [why_no_more, 31]);
    assert!(third.is_over());
}

/// Grants are for their session alone: others must learn nothing of it, however much happens.
#[tokio::test]
async fn what_others_are_granted_is_not_told() {
    let mut client = connected().await;
    let session = client.open().await;
    for token in 10..200 {
        client.double.happen(grant("theirs", session + 1, 2, token));
    }
    client.double.happen(grant("ours", session, 2, 200));
    assert_eq!(kind_of(&client.next().await.unwrap()), ("notice", 200));
}

/// Who waits under a session that is over waits in vain: it is told as soon as the node knows, and nobody else is.
#[tokio::test]
async fn the_end_of_a_session_is_told_as_it_happens() {
    let mut client = connected().await;
    let (one, other) = (client.open().await, client.open().await);
    client.double.end(vec![LeaseId(one + 1000), LeaseId(one)]);
    match client.next().await {
        Some(ToClient::Lost(lost)) => assert_eq!((lost.session, lost.reason()), (one, Reason::SessionEnded)),
        message => panic!("{message:?}"),
    }
    // The other one goes on.
    client.double.happen(grant("ours", other, 2, 200));
    assert_eq!(kind_of(&client.next().await.unwrap()), ("notice", 200));
}

/// A node that jumped over a part of the log does not know which sessions ended in it: clients come anew, and ask.
#[tokio::test]
async fn streams_begin_anew_where_ends_of_sessions_may_have_been_missed() {
    let mut client = connected().await;
    client.open().await;
    client.double.miss_ended();
    match client.next().await {
        Some(ToClient::Lost(lost)) => assert_eq!((lost.session, lost.reason()), (0, Reason::Compacted)),
        message => panic!("{message:?}"),
    }
    assert!(client.next().await.is_none());
}

/// A million sessions that only wait must leave the node's processors alone: nothing is asked about them at intervals.
#[tokio::test]
async fn sessions_that_wait_cost_nothing() {
    const SESSIONS: i64 = 10_000;
    let mut client = connected().await;
    let mut last = 0;
    for _ in 0..SESSIONS / 50 {
        for _ in 0..50 {
            client.send(FromClient::Open(v1::OpenRequest { ttl_ms: 60_000, client: 0 })).await;
        }
        for _ in 0..50 {
            match client.next().await {
                Some(ToClient::Opened(opened)) => last = opened.session,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(last, SESSIONS);
    // That nothing happens can only be seen by looking for a while: several of the intervals at which sessions were once
    // looked at.
    let before = client.double.questions();
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(client.double.questions(), before);
    }
    // All of them are still there to be told.
    client.double.end(vec![LeaseId(last)]);
    match client.next().await {
        Some(ToClient::Lost(lost)) => assert_eq!(lost.session, last),
        other => panic!("{other:?}"),
    }
}

/// A node that stops says so: clients go elsewhere at once instead of waiting for a timeout.
#[tokio::test]
async fn streams_are_told_that_the_node_stops() {
    let mut client = connected().await;
    client.open().await;
    client.stop.take().unwrap().send(()).unwrap();
    match client.next().await {
        Some(ToClient::Lost(lost)) => assert_eq!((lost.session, lost.reason()), (0, Reason::ShuttingDown)),
        other => panic!("{other:?}"),
    }
    assert!(client.next().await.is_none());
}

/// The error and the code of a call that failed.
fn failed(headers: &http::HeaderMap) -> (v1::Error, tonic::Code) {
    let status = tonic::Status::from_header_map(headers).expect("a status");
    let trailer = status.metadata().get_bin(ERROR_TRAILER).expect("an error").to_bytes().unwrap();
    (v1::Error::decode(trailer).unwrap(), status.code())
}

/// Every answer says as of when it is true, and which member says so; those that fail are the ones that are asked about.
#[tokio::test]
async fn a_call_that_fails_says_as_of_when_whatever_it_fails_at() {
    let double = Arc::new(Double::default());
    let face = NativeFace::new(double.clone(), FaceConfig::default());
    let call = async |method: &str, authorization: &str, message: Bytes| {
        let request = http::Request::post(format!("/tidelock.v1.Native/{method}"));
        let request = request.header("content-type", "application/grpc").header("authorization", authorization);
        let response = face.clone().answer(request.body(Body::new(Full::new(message))).unwrap()).await;
        let (error, code) = failed(response.headers());
        let header = error.header.expect("a header");
        assert_eq!((header.revision, header.term, header.node), (1, 3, 2), "{method}");
        (error.code, code)
    };
    let empty = || framed(&v1::ObserveRequest::default());
    let wrong = tonic::Code::InvalidArgument;
    assert_eq!(call("Observe", "", empty()).await, ("BAD_KIND".into(), wrong));
    assert_eq!(call("Observe", "", Bytes::from_static(b"no")).await, ("BAD_MESSAGE".into(), wrong));
    assert_eq!(call("Describe", "", Bytes::from_static(b"no")).await, ("BAD_MESSAGE".into(), wrong));
    assert_eq!(call("Nothing", "", empty()).await, ("NO_SUCH_METHOD".into(), tonic::Code::Unimplemented));
    let denied = ("UNAUTHENTICATED".to_owned(), tonic::Code::Unauthenticated);
    assert_eq!(call("Describe", "Basic what", empty()).await, denied);
    double.shut_out_everybody();
    assert_eq!(call("Connect", "", Bytes::new()).await, denied);
    // One that was told things, and then no more.
    let (services, name) = (face.services(), Name::new("n").unwrap());
    let body = services.listen_to_name(Caller::Internal, (Kind::Lock, name), 0, Format::Notices).await.unwrap();
    services.router.stop();
    let all = tokio::time::timeout(DEADLINE, body.collect()).await.expect("an end in time").unwrap();
    let (error, code) = failed(all.trailers().expect("trailers"));
    assert_eq!((error.code.as_str(), code), ("SHUTTING_DOWN", tonic::Code::Unavailable));
    assert_eq!(error.header.map(|header| (header.revision, header.term)), Some((1, 3)));
}

/// What cannot be read ends the stream with a word about it, and nothing else.
#[tokio::test]
async fn keep_alives_of_sessions_that_are_not_attached_are_refused() {
    let mut client = connected().await;
    client.send(FromClient::KeepAlive(v1::KeepAlive { sent: 1, session: 77 })).await;
    match client.next().await {
        Some(ToClient::Lost(lost)) => assert_eq!((lost.session, lost.reason()), (77, Reason::NotAllowed)),
        other => panic!("{other:?}"),
    }
    let session = client.open().await;
    client.send(FromClient::KeepAlive(v1::KeepAlive { sent: 2, session })).await;
    match client.next().await {
        Some(ToClient::KeptAlive(v1::KeptAlive { sent: 2, ttl_ms: 60_000, session: kept, header: Some(header) })) => {
            assert_eq!((kept, header.revision, header.term), (session, 1, 3));
        }
        other => panic!("{other:?}"),
    }
}
