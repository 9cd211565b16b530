//! The native API as clients use it: real nodes, one stream per client. JSON is in `native_http.rs`.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use support::native::{Stream, acquire, answer, calls, release};
use support::{Cluster, within};
use tidelock_native_api::v1;
use tidelock_native_api::v1::answer::Answer;
use tidelock_native_api::v1::error::Family;
use tidelock_native_api::v1::from_client::Message as FromClient;
use tidelock_native_api::v1::lost::Reason;
use tidelock_native_api::v1::request::Op;
use tidelock_native_api::v1::to_client::Message as ToClient;

const TTL_MS: u32 = 60_000;

fn observe(kind: v1::Kind, name: &str, told_revision: u64) -> FromClient {
    FromClient::Observe(v1::ObserveRequest { kind: kind.into(), name: name.into(), told_revision })
}

fn observing(message: &ToClient) -> Option<v1::Observing> {
    match message {
        ToClient::Observing(observing) => Some(observing.clone()),
        _ => None,
    }
}

fn counted(message: &ToClient) -> Option<(u64, i64)> {
    match message {
        ToClient::Notice(v1::Notice { revision, notice: Some(v1::notice::Notice::Counter(counter)) }) => {
            Some((*revision, counter.value))
        }
        _ => None,
    }
}

fn add(name: &str, delta: i64) -> Op {
    Op::Add(v1::Add { name: name.into(), delta, fencing: None })
}

/// K1, K2: the heart of it. Who waits is told of the grant without asking, in order, with a greater token.
#[tokio::test]
async fn a_lock_goes_from_hand_to_hand_and_each_is_told() {
    let (_cluster, ports) = Cluster::start_native(1);
    let (mut first, mut second) = (Stream::connect(ports[0]).await, Stream::connect(ports[0]).await);
    let (one, other) = (first.open(TTL_MS).await, second.open(TTL_MS).await);
    let token = first.lock(one, "billing").await;
    let waiting = second.place(other, "billing").await;
    assert_eq!((waiting.token, waiting.ahead), (0, 1));
    first.done(one, release("billing", token)).await;
    let granted = second.granted().await;
    assert_eq!((granted.place, granted.session, granted.name.as_str()), (waiting.place, other, "billing"));
    assert!(granted.token > token);
    let stale = first.refused(one, release("billing", token)).await;
    assert_eq!((stale.code.as_str(), stale.family()), ("STALE_TOKEN", Family::Lost));
    let stranger = first.refused(one, release("billing", granted.token)).await;
    assert_eq!((stranger.code.as_str(), stranger.numbers["token"]), ("NOT_HOLDER", granted.token as i64));
    second.done(other, release("billing", granted.token)).await;
}

/// H25: a client that lost its connection asks again; it must get what it got, and not a second place.
#[tokio::test]
async fn a_request_asked_again_on_another_stream_gets_the_first_answer() {
    let (_cluster, ports) = Cluster::start_native(1);
    let mut stream = Stream::connect(ports[0]).await;
    let session = stream.open(TTL_MS).await;
    let number = stream.ask(session, acquire("once")).await;
    let first = stream.reply(number).await;
    assert!(first.header.is_some_and(|header| header.term > 0 && header.revision > 0 && header.node > 0));
    drop(stream);
    let mut stream = Stream::connect(ports[0]).await;
    stream.ask_again(session, number, acquire("once")).await;
    let again = stream.reply(number).await;
    assert_eq!((answer(&again), again.header.unwrap().revision), (answer(&first), first.header.unwrap().revision));
    let request =
        v1::DescribeRequest { kind: v1::Kind::Lock.into(), name: "once".into(), limit: 10, ..Default::default() };
    let found = calls(ports[0]).await.describe(request).await.unwrap().into_inner();
    assert_eq!(found.count, 1);
    // Opening is asked again under the client's own number.
    let open = v1::OpenRequest { ttl_ms: TTL_MS, client: 42 };
    let (one, two) = (calls(ports[0]).await.open(open).await.unwrap(), calls(ports[0]).await.open(open).await.unwrap());
    assert_eq!(one.into_inner().session, two.into_inner().session);
}

/// Grants of one session go to one stream: the one that came last, with what it missed.
#[tokio::test]
async fn a_session_that_comes_back_is_told_what_it_was_granted_meanwhile() {
    let (_cluster, ports) = Cluster::start_native(1);
    let (mut first, mut second) = (Stream::connect(ports[0]).await, Stream::connect(ports[0]).await);
    let (one, other) = (first.open(TTL_MS).await, second.open(TTL_MS).await);
    let token = first.lock(one, "left").await;
    let waiting = second.place(other, "left").await;
    drop(second);
    let revision = answer_revision(&mut first, one, release("left", token)).await;
    let mut back = Stream::connect(ports[0]).await;
    back.send(FromClient::Attach(v1::Attach { session: other, told_revision: waiting.place })).await;
    let granted = back.granted().await;
    assert_eq!((granted.place, granted.token), (waiting.place, revision));
    // A third stream takes the session over; the second learns it.
    let third = Stream::connect(ports[0]).await;
    third.send(FromClient::Attach(v1::Attach { session: other, told_revision: 0 })).await;
    let lost = back.lost().await;
    assert_eq!((lost.session, lost.reason()), (other, Reason::NotAllowed));
}

async fn answer_revision(stream: &mut Stream, session: i64, op: Op) -> u64 {
    let number = stream.ask(session, op).await;
    stream.reply(number).await.header.unwrap().revision
}

/// A client that waits under a session that is over waits in vain, and must be told.
#[tokio::test]
async fn a_session_whose_time_ran_out_is_lost_and_its_lock_goes_on() {
    let (_cluster, ports) = Cluster::start_native(1);
    let (mut first, mut second) = (Stream::connect(ports[0]).await, Stream::connect(ports[0]).await);
    let short = first.open(1000).await;
    let kept = second.open(TTL_MS).await;
    let token = first.lock(short, "short").await;
    assert_eq!(second.place(kept, "short").await.token, 0);
    // The first does not renew.
    assert!(second.granted().await.token > token);
    let lost = first.lost().await;
    assert_eq!((lost.session, lost.reason()), (short, Reason::SessionEnded));
    assert_eq!(first.refused(short, acquire("short")).await.code, "UNKNOWN_SESSION");
    first.send(FromClient::Attach(v1::Attach { session: short, told_revision: 0 })).await;
    assert_eq!(first.lost().await.reason(), Reason::SessionEnded);
}

/// Who holds something under a session that is over must not go on for longer than the news takes: it comes with the entry
/// that ended the session, before anything that was asked afterwards is answered.
#[tokio::test]
async fn the_end_of_a_session_is_told_with_the_entry_that_ended_it() {
    let (_cluster, ports) = Cluster::start_native(1);
    let mut stream = Stream::connect(ports[0]).await;
    let (short, kept) = (stream.open(1000).await, stream.open(TTL_MS).await);
    stream.lock(short, "short").await;
    assert_eq!(stream.place(kept, "short").await.token, 0);
    // The entry that ends the one session grants the lock to the other.
    stream.granted().await;
    let number = stream.ask(kept, add("n", 1)).await;
    let first = stream.find("news", |message| match message {
        ToClient::Lost(lost) => Some((lost.session, lost.reason())),
        ToClient::Reply(reply) if reply.number == number => Some((0, Reason::Unspecified)),
        _ => None,
    });
    assert_eq!(first.await, (short, Reason::SessionEnded));
    stream.reply(number).await;
    // The same when somebody else closes it: by a call here, at whatever node the stream is.
    calls(ports[0]).await.close(v1::CloseRequest { session: kept }).await.unwrap();
    assert_eq!(stream.lost().await.session, kept);
}

/// Renewals keep a session for as long as they come, whatever its time to live is.
#[tokio::test]
async fn a_session_that_is_renewed_lives_on() {
    let (_cluster, ports) = Cluster::start_native(1);
    let mut stream = Stream::connect(ports[0]).await;
    let session = stream.open(1000).await;
    let token = stream.lock(session, "kept").await;
    for sent in 1..=12 {
        tokio::time::sleep(std::time::Duration::from_millis(250)).await;
        stream.send(FromClient::KeepAlive(v1::KeepAlive { sent, session })).await;
        let kept = stream.find("a renewal", |message| match message {
            ToClient::KeptAlive(kept) => Some(*kept),
            _ => None,
        });
        let kept = kept.await;
        assert_eq!((kept.sent, kept.ttl_ms, kept.session), (sent, 1000, session));
        assert!(kept.header.is_some_and(|header| header.term > 0), "{kept:?}");
    }
    stream.done(session, release("kept", token)).await;
}

/// A client believes in its lock for as long as it is told that its session lives. Whoever shortened that, the next renewal
/// must tell.
#[tokio::test]
async fn a_renewal_tells_a_time_to_live_that_was_changed_elsewhere() {
    let (_cluster, ports) = Cluster::start_native(1);
    let mut stream = Stream::connect(ports[0]).await;
    let session = stream.open(TTL_MS).await;
    let token = stream.lock(session, "kept").await;
    let renew = |ttl_ms| Op::Renew(v1::Renew { kind: v1::Kind::Lock.into(), name: "kept".into(), token, ttl_ms });
    for (number, ttl_ms) in [(100, 30_000), (101, 90_000)] {
        let request = v1::Request { session, number, acknowledged: 0, op: Some(renew(ttl_ms)) };
        calls(ports[0]).await.ask(request).await.unwrap();
        stream.send(FromClient::KeepAlive(v1::KeepAlive { sent: number, session })).await;
        let kept = stream.find("a renewal", |message| match message {
            ToClient::KeptAlive(kept) => Some((kept.sent, kept.ttl_ms)),
            _ => None,
        });
        assert_eq!(kept.await, (number, ttl_ms));
    }
}

/// Who observes a name is told all that happens to it, and after a break what happened meanwhile.
#[tokio::test]
async fn an_observer_is_told_everything_once_and_in_order() {
    let (_cluster, ports) = Cluster::start_native(1);
    let mut stream = Stream::connect(ports[0]).await;
    let session = stream.open(TTL_MS).await;
    stream.send(observe(v1::Kind::Counter, "n", 0)).await;
    // Sent on the same stream: it happens after the observer is there.
    for _ in 0..3 {
        stream.ask(session, add("n", 5)).await;
    }
    let mut told = Vec::new();
    for _ in 0..3 {
        told.push(stream.find("a change", counted).await);
    }
    assert_eq!(told.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [5, 10, 15]);
    let mut back = Stream::connect(ports[0]).await;
    back.send(observe(v1::Kind::Counter, "n", told[0].0)).await;
    assert_eq!(back.find("a change", counted).await, told[1]);
    assert_eq!(back.find("a change", counted).await, told[2]);
    assert_eq!(back.find("an answer", observing).await.error, None);
    stream.done(session, add("n", 1)).await;
    assert_eq!(back.find("a change", counted).await.1, 16);
    // The same as a call of its own.
    let request = v1::ObserveRequest { kind: v1::Kind::Counter.into(), name: "n".into(), told_revision: told[1].0 };
    let mut observed = calls(ports[0]).await.observe(request).await.unwrap().into_inner();
    let notice = within("a notice", observed.message()).await.unwrap().unwrap();
    assert_eq!(notice.revision, told[2].0);
}

/// Who was away for long missed more than a mailbox holds. It must be told all of it at its own pace: one that is cut for
/// being told too much at once comes back to the same.
#[tokio::test]
async fn an_observer_that_was_away_for_long_is_told_all_it_missed() {
    const CHANGES: i64 = 3000;
    let (_cluster, ports) = Cluster::start_native(1);
    let mut stream = Stream::connect(ports[0]).await;
    let session = stream.open(TTL_MS).await;
    let first = answer_revision(&mut stream, session, add("long", 1)).await;
    for _ in 0..CHANGES / 60 {
        let mut last = 0;
        for _ in 0..60 {
            last = stream.ask(session, add("long", 1)).await;
        }
        stream.reply(last).await;
    }
    let mut back = Stream::connect(ports[0]).await;
    back.send(observe(v1::Kind::Counter, "long", first)).await;
    let request = v1::ObserveRequest { kind: v1::Kind::Counter.into(), name: "long".into(), told_revision: first };
    let mut observed = calls(ports[0]).await.observe(request).await.unwrap().into_inner();
    for value in 2..=CHANGES + 1 {
        assert_eq!(back.find("a change", counted).await.1, value);
        let notice = within("a notice", observed.message()).await.unwrap().unwrap();
        assert!(matches!(notice.notice, Some(v1::notice::Notice::Counter(counter)) if counter.value == value));
    }
    stream.done(session, add("long", 1)).await;
    assert_eq!(back.find("a change", counted).await.1, CHANGES + 2);
}

/// Barriers, phasers and the rest come over the same stream; one of each kind, as far as they answer and tell.
#[tokio::test]
async fn every_kind_of_thing_can_be_used_over_a_stream() {
    let (_cluster, ports) = Cluster::start_native(1);
    let mut stream = Stream::connect(ports[0]).await;
    let session = stream.open(TTL_MS).await;
    let name = || "all".to_owned();
    let permits =
        v1::Acquire { name: name(), mode: v1::Mode::Permits.into(), permits: 3, weight: 2, ..Default::default() };
    assert!(matches!(stream.done(session, Op::Acquire(permits)).await, Answer::Place(place) if place.token > 0));
    let campaign = v1::Campaign { name: name(), data: "me".into(), ..Default::default() };
    assert!(matches!(stream.done(session, Op::Campaign(campaign)).await, Answer::Place(place) if place.token > 0));
    stream.send(observe(v1::Kind::Barrier, "all", 0)).await;
    let enter = v1::Enter { name: name(), parties: 1, ..Default::default() };
    assert!(matches!(stream.done(session, Op::Enter(enter)).await, Answer::Entered(entered) if entered.missing == 0));
    let set = v1::SetLatch { name: name(), count: 2, ..Default::default() };
    assert!(matches!(stream.done(session, Op::SetLatch(set)).await, Answer::Latch(latch) if latch.left == 2));
    let down = v1::CountDown { name: name(), by: 2, ..Default::default() };
    assert!(matches!(stream.done(session, Op::CountDown(down)).await, Answer::Latch(latch) if latch.left == 0));
    let register = v1::Register { name: name(), parties: 1, ..Default::default() };
    let Answer::Registered(registered) = stream.done(session, Op::Register(register)).await else {
        panic!("registered")
    };
    let arrive = v1::Arrive { name: name(), party: registered.party, ..Default::default() };
    assert!(matches!(stream.done(session, Op::Arrive(arrive)).await, Answer::Arrived(at) if at.now == at.phase + 1));
    let publish = v1::Publish { name: name(), data: "v1".into(), fencing: None };
    assert!(
        matches!(stream.done(session, Op::Publish(publish)).await, Answer::Version(version) if version.version > 0)
    );
    assert!(matches!(stream.done(session, Op::Protect(v1::Protect { name: name() })).await, Answer::Protected(_)));
    let retire = Op::Retire(v1::Retire { name: name() });
    assert!(matches!(stream.done(session, retire).await, Answer::Retired(retired) if !retired.clear));
    let token = stream.lock(session, "all").await;
    let admit = Op::Admit(v1::Admit { fence: name(), token });
    assert!(matches!(stream.done(session, admit).await, Answer::Done(_)));
    // What is told besides.
    let request = v1::SessionsRequest { session, remaining: true, ..Default::default() };
    let found = calls(ports[0]).await.sessions(request).await.unwrap().into_inner();
    assert_eq!((found.sessions.len(), found.sessions[0].session), (1, session));
    assert!(found.sessions[0].count >= 5 && found.sessions[0].remaining_ms > 0, "{found:?}");
    let request = v1::NamesRequest { kind: v1::Kind::Election.into(), ..Default::default() };
    let names = calls(ports[0]).await.names(request).await.unwrap().into_inner().names;
    assert_eq!(names, [v1::NameFound { name: name(), members: 1, first: vec![] }]);
}

/// Mistakes get an error that says what is wrong, and cost the client nothing else.
#[tokio::test]
async fn mistaken_requests_are_told_what_is_wrong_with_them() {
    let (_cluster, ports) = Cluster::start_native(1);
    let mut stream = Stream::connect(ports[0]).await;
    for ttl_ms in [0, 999, 365 * 24 * 3600 * 1000u64] {
        let open = v1::OpenRequest { ttl_ms: u32::try_from(ttl_ms).unwrap_or(u32::MAX), client: 0 };
        let status = calls(ports[0]).await.open(open).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        let trailer = status.metadata().get_bin(tidelock_native_api::ERROR_TRAILER).unwrap().to_bytes().unwrap();
        let error = <v1::Error as prost::Message>::decode(trailer).unwrap();
        assert_eq!((error.code.as_str(), error.family()), ("TTL_OUT_OF_RANGE", Family::Wrong));
    }
    let session = stream.open(TTL_MS).await;
    assert_eq!(stream.refused(session + 1, acquire("n")).await.code, "UNKNOWN_SESSION");
    assert_eq!(stream.refused(session, acquire("")).await.code, "BAD_NAME");
    assert_eq!(stream.refused(session, acquire(&"x".repeat(600))).await.code, "BAD_NAME");
    let unspecified = Op::Acquire(v1::Acquire { name: "n".into(), ..Default::default() });
    assert_eq!(stream.refused(session, unspecified).await.code, "BAD_MODE");
    assert_eq!(
        stream.refused(session, Op::Release(v1::Release { name: "n".into(), ..Default::default() })).await.code,
        "BAD_KIND"
    );
    stream.ask_again(session, 0, acquire("n")).await;
    let reply = stream.reply(0).await;
    assert!(matches!(reply.result, Some(v1::reply::Result::Error(error)) if error.code == "NUMBER_MISSING"));
    let forged = stream.refused(session, Op::Admit(v1::Admit { fence: "f".into(), token: u64::MAX })).await;
    assert_eq!((forged.code.as_str(), forged.numbers["token"]), ("FORGED_TOKEN", i64::MAX));
    // The stream goes on after all that.
    stream.lock(session, "n").await;
    // A name of a megabyte is more than a message may have: that is the end of the stream, said so.
    let number = stream.ask(session, acquire(&"x".repeat(1 << 20))).await;
    let lost = stream.lost().await;
    assert_eq!((lost.session, lost.reason()), (0, Reason::BadMessage), "{lost:?} to {number}");
    assert!(stream.next().await.is_none());
}

/// A client that never reads its grants must cost the server a bounded amount of memory, and learn why it was cut.
#[tokio::test]
async fn a_client_that_does_not_read_is_cut_and_its_session_lives_on() {
    let (cluster, ports) = Cluster::start_native(1);
    let (mut slow, mut busy) = (Stream::connect(ports[0]).await, Stream::connect(ports[0]).await);
    let (idle, session) = (slow.open(TTL_MS).await, busy.open(TTL_MS).await);
    // Long names: what is told is large, and the windows of a connection are full soon.
    let name = "x".repeat(500);
    slow.send(observe(v1::Kind::Counter, &name, 0)).await;
    slow.find("an answer", observing).await;
    let before = cluster.nodes[0].resident_bytes_max();
    let mut told = 0;
    // As many as two windows of a megabyte hold, several times over.
    for _ in 0..200 {
        let mut last = 0;
        for _ in 0..60 {
            last = busy.ask(session, add(&name, 1)).await;
            told += name.len();
        }
        busy.reply(last).await;
    }
    let grown = cluster.nodes[0].resident_bytes_max().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes for {told} told to nobody");
    let lost = slow.lost().await;
    assert_eq!((lost.session, lost.reason()), (0, Reason::TooSlow));
    assert!(slow.next_is_over().await);
    let mut back = Stream::connect(ports[0]).await;
    back.send(FromClient::Attach(v1::Attach { session: idle, told_revision: 0 })).await;
    back.find("its session", |message| matches!(message, ToClient::Attached(_)).then_some(())).await;
}

/// E1, K1: clients are connected to any node. Whoever waits at a follower is told there, and a change of leader neither
/// loses a place nor lets a token go back.
#[tokio::test]
async fn grants_come_at_followers_and_tokens_grow_over_a_change_of_leader() {
    let (mut cluster, ports) = Cluster::start_native(3);
    let leader = cluster.wait_for_leader();
    let (one, two) = ((leader + 1) % 3, (leader + 2) % 3);
    let (mut holder, mut waiter) = (Stream::connect(ports[one]).await, Stream::connect(ports[two]).await);
    let (held, waiting) = (holder.open(TTL_MS).await, waiter.open(TTL_MS).await);
    let mut token = holder.lock(held, "moving").await;
    assert_eq!(waiter.place(waiting, "moving").await.token, 0);
    cluster.nodes[leader].kill();
    // The first request may find nobody who leads: it is asked again with the same number until it is known.
    let number = holder.ask(held, release("moving", token)).await;
    loop {
        match holder.reply(number).await.result.unwrap() {
            v1::reply::Result::Answer(_) => break,
            v1::reply::Result::Error(error) => {
                assert!(matches!(error.family(), Family::Unknown | Family::Unavailable), "{error:?}");
                holder.ask_again(held, number, release("moving", token)).await;
            }
        }
    }
    for _ in 0..5 {
        let granted = waiter.granted().await;
        assert!(granted.token > token);
        token = granted.token;
        assert_eq!(holder.place(held, "moving").await.token, 0);
        waiter.done(waiting, release("moving", token)).await;
        let granted = holder.granted().await;
        assert!(granted.token > token);
        token = granted.token;
        assert_eq!(waiter.place(waiting, "moving").await.token, 0);
        holder.done(held, release("moving", token)).await;
    }
}

/// A1: what a caller may do is decided by users and roles, as everywhere; sessions are their openers'.
#[tokio::test]
async fn users_hold_what_they_may_and_nobody_elses_sessions() {
    use tonic::metadata::MetadataValue;
    let (cluster, ports) = Cluster::start_native(1);
    let url = cluster.nodes[0].client_url();
    support::users::add_user(&url, "ann", "a", "b").await;
    support::users::add_user(&url, "bob", "b", "c").await;
    support::users::guard(&url).await;
    let basic = |user: &str| {
        use base64::Engine as _;
        let pair = base64::engine::general_purpose::STANDARD.encode(format!("{user}:secret"));
        MetadataValue::try_from(format!("Basic {pair}")).unwrap()
    };
    let as_user = |user: &str, request: v1::Request| {
        let mut request = tonic::Request::new(request);
        request.metadata_mut().insert("authorization", basic(user));
        request
    };
    let mut client = calls(ports[0]).await;
    let open = v1::OpenRequest { ttl_ms: TTL_MS, client: 0 };
    assert_eq!(client.open(open).await.unwrap_err().code(), tonic::Code::Unauthenticated);
    let mut request = tonic::Request::new(open);
    request.metadata_mut().insert("authorization", basic("ann"));
    let session = client.open(request).await.unwrap().into_inner().session;
    let ask = |number, name: &str| v1::Request { session, number, acknowledged: 0, op: Some(acquire(name)) };
    client.ask(as_user("ann", ask(1, "a-lock"))).await.unwrap();
    let denied = client.ask(as_user("ann", ask(2, "b-lock"))).await.unwrap_err();
    assert_eq!(denied.code(), tonic::Code::PermissionDenied);
    let denied = client.ask(as_user("bob", ask(3, "b-lock"))).await.unwrap_err();
    assert_eq!(denied.code(), tonic::Code::PermissionDenied, "the session is ann's");
    let mut wrong = tonic::Request::new(ask(4, "a-lock"));
    wrong.metadata_mut().insert("authorization", "Basic YW5uOndyb25n".parse().unwrap());
    assert_eq!(client.ask(wrong).await.unwrap_err().code(), tonic::Code::Unauthenticated);
}
