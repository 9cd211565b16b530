//! One stream without a connection, polled step by step over a coordinator that answers when a test says: what is under
//! way when something else happens, and what is left when it is dropped.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use prost::Message;
use tidelock_client_port::{Credential, PREFIX_BYTES, framed};
use tidelock_model::NativeQuery;
use tidelock_native_api::v1;
use tidelock_native_api::v1::from_client::Message as FromClient;
use tidelock_native_api::v1::lost::Reason;
use tidelock_native_api::v1::to_client::Message as ToClient;
use tokio::sync::mpsc;
use tonic::body::Body;

use crate::callers::Proof;
use crate::connect::{OBSERVED_MAX, connect};
use crate::mailbox::MESSAGES_MAX;
use crate::services::Services;
use crate::test_double::{Double, Unanswered, Which, grant};
use crate::{FaceConfig, NativeFace};

/// A face, and one stream to it.
struct Stream {
    double: Arc<Double>,
    face: NativeFace,
    sender: mpsc::Sender<Bytes>,
    body: Body,
}

impl Stream {
    fn new() -> Stream {
        let double = Arc::new(Double::default());
        let face = NativeFace::new(double.clone(), FaceConfig::default());
        let (sender, received) = mpsc::channel::<Bytes>(16);
        let frames = futures_util::stream::unfold(received, |mut received| async {
            received.recv().await.map(|data| (Ok::<_, Infallible>(Frame::data(data)), received))
        });
        let proof = Proof::Shown(Credential::default());
        let body = connect(Arc::clone(face.services()), proof, Body::new(StreamBody::new(frames)));
        Stream { double, face, sender, body }
    }

    fn services(&self) -> &Services {
        self.face.services()
    }

    /// Sends messages so that all of them are there at once.
    fn send(&self, messages: impl IntoIterator<Item = FromClient>) {
        let mut all = BytesMut::new();
        for message in messages {
            all.extend_from_slice(&framed(&v1::FromClient { message: Some(message) }));
        }
        self.sender.try_send(all.freeze()).unwrap();
    }

    /// What it gives out, when all is done that can be done now.
    async fn read(&mut self) -> Vec<ToClient> {
        let mut out = BytesMut::new();
        // What woke other tasks is seen to first.
        for _ in 0..100 {
            tokio::task::yield_now().await;
            while let Some(Some(Ok(frame))) = self.body.frame().now_or_never() {
                frame.data_ref().into_iter().for_each(|data| out.extend_from_slice(data));
            }
        }
        let mut messages = Vec::new();
        while let Some([_, length @ ..]) = out.first_chunk::<PREFIX_BYTES>().copied() {
            out.advance(PREFIX_BYTES);
            let message = v1::ToClient::decode(out.split_to(u32::from_be_bytes(length) as usize)).unwrap();
            messages.extend(message.message);
        }
        messages
    }
}

fn observe(name: &str, told_revision: u64) -> FromClient {
    FromClient::Observe(v1::ObserveRequest { kind: v1::Kind::Lock.into(), name: name.into(), told_revision })
}

fn stop_observing(name: &str) -> FromClient {
    FromClient::StopObserving(v1::StopObserving { kind: v1::Kind::Lock.into(), name: name.into() })
}

/// Who drops an observation at once sends both in one piece. Observers that nobody stops would fill the memory, and each
/// of them would cost at every change of its name.
#[tokio::test]
async fn an_observation_that_is_stopped_before_it_began_leaves_nothing() {
    let mut stream = Stream::new();
    let answered = |messages: Vec<ToClient>| {
        let is_answer = |message: &ToClient| matches!(message, ToClient::Observing(one) if one.error.is_none());
        assert!(messages.iter().all(is_answer), "{messages:?}");
        messages.len()
    };
    stream.send([observe("a", 0), stop_observing("a")]);
    assert_eq!(answered(stream.read().await), 1, "every one is answered, once");
    assert_eq!(stream.services().router.registered(), (0, 0));
    // The last one counts, whatever came before.
    stream.send([observe("a", 0), stop_observing("a"), observe("a", 0), observe("a", 0)]);
    assert_eq!(answered(stream.read().await), 3);
    assert_eq!(stream.services().router.registered(), (0, 1));
    stream.send([observe("b", 0), observe("b", 0), stop_observing("b"), observe("c", 0)]);
    drop(stream.body);
    assert_eq!(stream.face.services().router.registered(), (0, 0));
}

/// Sessions that nobody takes out of the router would be told of their grants into a mailbox that nobody reads, and keep
/// its memory until they end.
#[tokio::test]
async fn a_session_is_attached_to_nothing_that_is_gone() {
    let attach = || FromClient::Attach(v1::Attach { session: 77, told_revision: 4 });
    let open = || FromClient::Open(v1::OpenRequest { ttl_ms: 60_000, client: 0 });
    let about_members: Which = |query| matches!(query, NativeQuery::Member { .. });
    // What it missed cannot be told.
    let mut stream = Stream::new();
    stream.double.hold("mine", 2, 5);
    stream.double.leave_unanswered(Unanswered::Refused, about_members);
    stream.send([attach()]);
    let told = stream.read().await;
    assert!(matches!(&told[..], [ToClient::Lost(lost)] if lost.session == 77), "{told:?}");
    assert_eq!(stream.services().router.registered(), (0, 0));
    // The stream goes while this is under way: when a session is attached, or when it is opened.
    for (asked, unanswered) in [(attach(), about_members), (open(), |_| true)] {
        let mut stream = Stream::new();
        stream.double.hold("mine", 2, 5);
        stream.double.leave_unanswered(Unanswered::Waits, unanswered);
        stream.send([asked]);
        assert!(stream.read().await.is_empty());
        assert_eq!(stream.services().router.registered(), (1, 0));
        drop(stream.body);
        assert_eq!(stream.face.services().router.registered(), (0, 0));
    }
}

/// A grant that waits for the reply that names its place keeps all behind it waiting. However long that takes, what is
/// kept for one client is bounded.
#[tokio::test]
async fn what_waits_behind_a_grant_that_waits_is_bounded() {
    let mut stream = Stream::new();
    stream.send([FromClient::Open(v1::OpenRequest { ttl_ms: 60_000, client: 0 }), observe("busy", 0)]);
    assert_eq!(stream.read().await.len(), 2);
    let acquire = v1::Acquire { name: "slow".into(), mode: v1::Mode::Exclusive.into(), ..Default::default() };
    let op = Some(v1::request::Op::Acquire(acquire));
    stream.send([FromClient::Request(v1::Request { session: 1, number: 1, acknowledged: 0, op })]);
    assert!(stream.read().await.is_empty());
    stream.double.happen(grant("slow", 1, 5, 7));
    let mut told = Vec::new();
    for token in (10..).take(2 * MESSAGES_MAX) {
        stream.double.happen(grant("busy", 99, 2, token));
        if token % 100 == 0 {
            told.append(&mut stream.read().await);
        }
    }
    assert!(matches!(&told[..], [ToClient::Lost(lost)] if lost.reason() == Reason::TooSlow), "{}", told.len());
}

fn keep_alive(session: i64) -> FromClient {
    FromClient::KeepAlive(v1::KeepAlive { sent: 1, session })
}

/// A client takes the time it is told for how long it holds its locks. Its session may have been given less meanwhile, by
/// itself or by another that holds something under it.
#[tokio::test]
async fn a_renewal_tells_the_time_to_live_that_the_session_has_now() {
    let mut stream = Stream::new();
    stream.send([FromClient::Open(v1::OpenRequest { ttl_ms: 60_000, client: 0 })]);
    assert_eq!(stream.read().await.len(), 1);
    for ttl_s in [60, 5, 30] {
        stream.double.live_for(ttl_s);
        stream.send([keep_alive(1), keep_alive(1)]);
        let told = stream.read().await;
        let is_kept = |message: &ToClient| matches!(message, ToClient::KeptAlive(kept) if kept.ttl_ms == ttl_s * 1000);
        assert!(told.len() == 2 && told.iter().all(is_kept), "{told:?}");
    }
}

/// A client that comes back says the last revision it was shown. Had an error shown one before what happened up to it was
/// told, a grant would be lost to the client if the connection is cut then.
#[tokio::test]
async fn an_error_comes_after_what_happened_up_to_the_revision_it_shows() {
    let mut stream = Stream::new();
    stream.send([FromClient::Open(v1::OpenRequest { ttl_ms: 60_000, client: 0 })]);
    assert_eq!(stream.read().await.len(), 1);
    stream.double.carry_out(9);
    let op = Some(v1::request::Op::Acquire(v1::Acquire::default()));
    stream.send([FromClient::Request(v1::Request { session: 1, number: 1, acknowledged: 0, op })]);
    assert!(stream.read().await.is_empty(), "what happened up to 9 was not handed out");
    stream.double.happen(grant("mine", 1, 5, 9));
    let told = stream.read().await;
    let [ToClient::Notice(notice), ToClient::Reply(reply)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((notice.revision, reply.header.map(|header| header.revision)), (9, Some(9)));
    assert!(matches!(&reply.result, Some(v1::reply::Result::Error(error)) if error.code == "BAD_MODE"), "{reply:?}");
}

/// A client that observes as many names as it may must be able to begin anew with each: it does so after a gap.
#[tokio::test]
async fn a_name_can_be_observed_anew_where_no_further_one_can() {
    let mut stream = Stream::new();
    stream.send((0..OBSERVED_MAX).map(|name| observe(&name.to_string(), 0)));
    assert_eq!(stream.read().await.len(), OBSERVED_MAX);
    stream.send([observe("7", 0), observe("one more", 0)]);
    let told = stream.read().await;
    let errors: Vec<(&str, &str)> = told
        .iter()
        .map(|message| match message {
            ToClient::Observing(one) => (one.name.as_str(), one.error.as_ref().map_or("", |error| &error.code)),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(errors.contains(&("7", "")) && errors.contains(&("one more", "TOO_MANY_OBSERVED")), "{errors:?}");
    assert_eq!(stream.services().router.registered(), (0, OBSERVED_MAX));
}

/// Every answer says as of when it is true, also one that nobody asked for: programs log it, and order by it.
#[tokio::test]
async fn who_may_not_observe_any_more_is_told_as_of_when() {
    let mut stream = Stream::new();
    stream.send([observe("n", 0)]);
    assert_eq!(stream.read().await.len(), 1);
    stream.double.happen(grant("n", 99, 2, 5));
    assert_eq!(stream.read().await.len(), 1);
    stream.double.shut_out_everybody();
    stream.double.happen(grant("n", 99, 2, 6));
    let told = stream.read().await;
    let [ToClient::Observing(v1::Observing { header: Some(header), error: Some(_), .. })] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((header.revision, header.term, header.node), (5, 3, 2));
}

/// What a session holds is read in parts. One that slips through between two of them is never told of: its session
/// holds it and does not know.
#[tokio::test]
async fn a_missed_grant_is_told_although_others_are_given_back_meanwhile() {
    let mut stream = Stream::new();
    (1..=2500).for_each(|place| stream.double.hold("mine", place, 10_000 + place));
    stream.double.give_back();
    stream.send([FromClient::Attach(v1::Attach { session: 77, told_revision: 4 })]);
    let told = stream.read().await;
    let Some((ToClient::Attached(_), notices)) = told.split_last() else { panic!("{:?}", told.last()) };
    let revision = |message: &ToClient| match message {
        ToClient::Notice(notice) => notice.revision,
        other => panic!("{other:?}"),
    };
    assert!(notices.iter().map(revision).eq(10_002..=12_500));
}
