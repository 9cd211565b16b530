//! What a native client may do wrong without hurting others, where it takes more than one request to see: queues that
//! never end, grants that nobody reads, requests that no node would read. Single mistakes are in `native_api.rs`.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use support::native::{Stream, acquire, release};
use support::{Cluster, within};
use tidelock_client::{Client, Code, Error};
use tidelock_native_api::v1;
use tidelock_native_api::v1::answer::Answer;
use tidelock_native_api::v1::error::Family;
use tidelock_native_api::v1::from_client::Message as FromClient;
use tidelock_native_api::v1::lost::Reason;
use tidelock_native_api::v1::request::Op;
use tidelock_native_api::v1::to_client::Message as ToClient;
use tokio::sync::Semaphore;

const TTL_MS: u32 = 600_000;
/// As in the model's limits: most places in one queue, those that hold included.
const QUEUE_MAX: u64 = 65_536;
/// Requests of one session that need no acknowledgement yet.
const EACH: u64 = 60;
/// Requests of one crowd on their way: a node refuses more than it can put into the log soon.
const UNDER_WAY: usize = 1000;

/// Sessions of a stream that ask without waiting for answers.
struct Crowd {
    stream: Stream,
    sessions: Vec<i64>,
}

/// How many got a place, and how many were refused since the queue is full.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    places: u64,
    full: u64,
}

impl Crowd {
    async fn gather(port: u16, count: usize) -> Crowd {
        let mut stream = Stream::connect(port).await;
        let mut sessions = Vec::new();
        while sessions.len() < count {
            let more = (count - sessions.len()).min(200);
            for _ in 0..more {
                stream.send(FromClient::Open(v1::OpenRequest { ttl_ms: TTL_MS, client: 0 })).await;
            }
            for _ in 0..more {
                let opened = stream.find("a session", |message| match message {
                    ToClient::Opened(opened) => Some(opened.session),
                    _ => None,
                });
                sessions.push(opened.await);
            }
        }
        Crowd { stream, sessions }
    }

    /// Every session asks for the lock [`EACH`] times.
    async fn ask_for(&mut self, name: &str) -> Tally {
        let (sender, sessions, name) = (self.stream.sender(), self.sessions.clone(), name.to_owned());
        let room = Arc::new(Semaphore::new(UNDER_WAY));
        let (taken, freed) = (Arc::clone(&room), room);
        let asking = tokio::spawn(async move {
            for session in sessions {
                for number in 1..=EACH {
                    taken.acquire().await.unwrap().forget();
                    let request = v1::Request { session, number, acknowledged: 0, op: Some(acquire(&name)) };
                    sender.send(v1::FromClient { message: Some(FromClient::Request(request)) }).await.unwrap();
                }
            }
        });
        let mut tally = Tally::default();
        for _ in 0..self.sessions.len() as u64 * EACH {
            let Some(ToClient::Reply(reply)) = self.stream.next().await else { panic!("no reply") };
            freed.add_permits(1);
            match reply.result.unwrap() {
                v1::reply::Result::Answer(v1::Answer { answer: Some(Answer::Place(_)) }) => tally.places += 1,
                v1::reply::Result::Error(error) => {
                    assert_eq!(error.code, "QUEUE_FULL");
                    assert_eq!(error.numbers["waiting"], QUEUE_MAX as i64);
                    assert!(error.message.contains("65536"), "{}", error.message);
                    tally.full += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        asking.await.unwrap();
        tally
    }
}

/// Requests on their way at a time, where each answer is waited for.
const AT_ONCE: usize = 30;

/// Asks for all of these, and gives the answers in their order.
async fn all_done(stream: &mut Stream, session: i64, asked: Vec<Op>) -> Vec<Answer> {
    let mut numbers = Vec::new();
    for op in asked {
        numbers.push(stream.ask(session, op).await);
    }
    let mut answers = Vec::new();
    for number in numbers {
        answers.push(support::native::answer(&stream.reply(number).await));
    }
    answers
}

/// What one session may have is bounded, and each bound is said by its own name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_session_may_have_is_bounded() {
    const HOLDINGS_MAX: usize = 10_000;
    const UNACKNOWLEDGED_MAX: u64 = 64;
    let (_cluster, ports) = Cluster::start_native(1);
    let mut stream = Stream::connect(ports[0]).await;
    let session = stream.open(TTL_MS).await;
    let data = v1::Acquire {
        name: "l".into(),
        mode: v1::Mode::Exclusive.into(),
        data: vec![0; 4097].into(),
        ..Default::default()
    };
    assert_eq!(stream.refused(session, Op::Acquire(data)).await.code, "DATA_TOO_LARGE");
    let locks: Vec<Op> = (0..HOLDINGS_MAX).map(|lock| acquire(&lock.to_string())).collect();
    for some in locks.chunks(AT_ONCE) {
        all_done(&mut stream, session, some.to_vec()).await;
    }
    let many = stream.refused(session, acquire("one more")).await;
    assert_eq!((many.code.as_str(), many.family()), ("TOO_MANY_HOLDINGS", Family::Bounded));

    let other = stream.open(TTL_MS).await;
    for number in 1..=UNACKNOWLEDGED_MAX + 1 {
        let request = v1::Request { session: other, number, acknowledged: 0, op: Some(acquire("u")) };
        stream.send(FromClient::Request(request)).await;
        let reply = stream.find("a reply", |message| match message {
            ToClient::Reply(reply) if reply.session == other => Some(reply.clone()),
            _ => None,
        });
        match reply.await.result.unwrap() {
            v1::reply::Result::Error(error) => {
                assert_eq!((number, error.code.as_str()), (UNACKNOWLEDGED_MAX + 1, "TOO_MANY_UNACKNOWLEDGED"));
            }
            v1::reply::Result::Answer(_) => assert!(number <= UNACKNOWLEDGED_MAX),
        }
    }
}

/// K5, L7: a queue that everybody stands in is bounded; who comes too late is told so and costs nothing, and the line
/// goes on one by one however long it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_waiters_are_bounded_and_those_too_many_are_told() {
    const SESSIONS: usize = 1_667;
    let (cluster, ports) = Cluster::start_native(1);
    let mut holder = Stream::connect(ports[0]).await;
    let session = holder.open(TTL_MS).await;
    let token = holder.lock(session, "wanted").await;
    let before = cluster.nodes[0].resident_bytes_max();
    let (mut one, mut other) =
        tokio::join!(Crowd::gather(ports[0], SESSIONS / 2), Crowd::gather(ports[0], SESSIONS - SESSIONS / 2));
    let (first, second) = tokio::join!(one.ask_for("wanted"), other.ask_for("wanted"));
    let asked = SESSIONS as u64 * EACH;
    assert!(asked >= 100_000);
    assert_eq!(first.places + second.places, QUEUE_MAX - 1, "{first:?} {second:?}");
    assert_eq!(first.full + second.full, asked - (QUEUE_MAX - 1));
    let grown = cluster.nodes[0].resident_bytes_max().saturating_sub(before);
    assert!(grown < 128 << 20, "{grown} bytes for {asked} requests");
    // The line goes on, by one.
    holder.done(session, release("wanted", token)).await;
    let granted = tokio::select! {
        granted = one.stream.granted() => granted,
        granted = other.stream.granted() => granted,
    };
    assert!(granted.token > token);
    // There is room for one more, and no more.
    assert_eq!(holder.place(session, "wanted").await.token, 0);
    assert_eq!(holder.refused(session, acquire("wanted")).await.code, "QUEUE_FULL");
}

/// A client that asks for thousands of locks and never reads that it has them must cost a bounded amount of memory. It
/// is cut, and keeps what it holds: whoever comes back finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_reads_its_grants_is_cut_and_holds_what_it_was_granted() {
    const LOCKS: usize = 8_000;
    let (cluster, ports) = Cluster::start_native(1);
    let (mut holder, mut deaf) = (Stream::connect(ports[0]).await, Stream::connect(ports[0]).await);
    let (held, waiting) = (holder.open(TTL_MS).await, deaf.open(TTL_MS).await);
    // Long names: a grant is as large as it gets.
    let name = |lock: usize| format!("{lock:05}{}", "x".repeat(490));
    let locks: Vec<String> = (0..LOCKS).map(name).collect();
    let mut releases = Vec::new();
    for some in locks.chunks(AT_ONCE) {
        let asked: Vec<_> = some.iter().map(|name| acquire(name)).collect();
        for (name, answer) in some.iter().zip(all_done(&mut holder, held, asked.clone()).await) {
            let Answer::Place(place) = answer else { panic!("no place") };
            releases.push(release(name, place.token));
        }
        all_done(&mut deaf, waiting, asked).await;
    }
    let before = cluster.nodes[0].resident_bytes_max();
    for some in releases.chunks(AT_ONCE) {
        all_done(&mut holder, held, some.to_vec()).await;
    }
    let grown = cluster.nodes[0].resident_bytes_max().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes for grants that nobody reads");
    // What it reads now is what was on its way, and the end.
    let lost = deaf.lost().await;
    assert_eq!((lost.session, lost.reason()), (0, Reason::TooSlow));
    let request = v1::SessionsRequest { session: waiting, ..Default::default() };
    let found = support::native::calls(ports[0]).await.sessions(request).await.unwrap().into_inner();
    assert_eq!(found.sessions[0].count, LOCKS as u64);
    assert!(found.sessions[0].holdings.iter().all(|holding| holding.token != 0));
}

/// A program that passes on what its users typed must get an error for it, and must not lose its other locks by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_of_a_program_are_refused_in_words_and_cost_it_nothing_else() {
    let (_cluster, ports) = Cluster::start_native(1);
    let url = format!("127.0.0.1:{}", ports[0]);
    let client = Client::connect([&url]).await.unwrap();
    let guard = within("the lock", client.lock("kept").acquire()).await.unwrap();
    let huge = "x".repeat(1 << 20);
    let long = "x".repeat(600);
    let mistakes: [Error; 6] = [
        within("a refusal", client.lock(&huge).acquire()).await.map(drop).unwrap_err(),
        within("a refusal", client.lock("l").data(huge.clone()).acquire()).await.map(drop).unwrap_err(),
        within("a refusal", client.barrier(&huge, 2).enter()).await.unwrap_err(),
        within("a refusal", client.counter(&huge).get()).await.map(drop).unwrap_err(),
        within("a refusal", client.lock(&long).acquire()).await.map(drop).unwrap_err(),
        within("a refusal", client.lock("").acquire()).await.map(drop).unwrap_err(),
    ];
    for mistake in mistakes {
        assert_eq!(mistake.code(), Some(Code::Mistaken), "{mistake:?}");
        assert!(mistake.to_string().contains("bytes"), "{mistake}");
    }
    for ttl in [Duration::ZERO, Duration::from_millis(1), Duration::from_secs(365 * 24 * 3600)] {
        let client = Client::options().ttl(ttl).connect([&url]).await.unwrap();
        let mistake = within("a refusal", client.lock("l").acquire()).await.map(drop).unwrap_err();
        assert_eq!(mistake.code(), Some(Code::Mistaken), "{mistake:?}");
        assert!(mistake.to_string().contains("time to live"), "{mistake}");
    }
    guard.check().unwrap();
    guard.confirm().await.unwrap();
    guard.release().await.unwrap();
}
