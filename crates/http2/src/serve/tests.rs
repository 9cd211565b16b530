//! Connections with a client that writes frames by hand: what it can do to us, and to its own calls. How much it can make
//! us keep is in `bounds`.

mod bounds;

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, BufMut};
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::sync::Notify;

use super::*;
use crate::frame::{self, HEAD_BYTES, Head};
use crate::{ErrorCode, PREFACE};

const KEEPING: Keeping = Keeping {
    limits: Limits { streams: 20_000, stream_window: 100_000, connection_window: 1_000_000, head_bytes: 4096 },
    ping_after: Duration::from_secs(3600),
    ping_timeout: Duration::from_secs(3600),
};
/// How long to wait for what must come.
const PATIENCE: Duration = Duration::from_secs(60);
const END: u8 = frame::END_HEADERS | frame::END_STREAM;

type TestBody = UnsyncBoxBody<Bytes, Cut>;

/// Answers by path.
#[derive(Default)]
struct Answers {
    begun: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
    /// Calls whose request holds on to what was read with it.
    pinned: Arc<AtomicUsize>,
    /// For those that read late.
    late: Arc<Notify>,
}

/// Counts that a call was dropped.
struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Service for Answers {
    type Body = TestBody;

    fn collects(&self, head: &RequestHead) -> Option<usize> {
        match &head.path[..] {
            b"/c/huge" => Some(1 << 20),
            path => path.starts_with(b"/c").then_some(1000),
        }
    }

    fn may_wait(&self, head: &RequestHead) -> bool {
        &head.path[..] == b"/c/never"
    }

    fn call(self: &Arc<Answers>, head: &RequestHead, body: Bytes) -> Answering<Reply<TestBody>> {
        let path = head.path.clone();
        self.pinned.fetch_add(usize::from(!body.is_unique()), Ordering::SeqCst);
        let (begun, guard) = (Arc::clone(&self.begun), Guard(Arc::clone(&self.dropped)));
        Box::pin(async move {
            let _guard = guard;
            begun.fetch_add(1, Ordering::SeqCst);
            match &path[..] {
                b"/c/never" => std::future::pending().await,
                b"/c/large" => Reply::Message(vec![7; 10_000].into()),
                b"/c/mebibyte" => Reply::Message(vec![7; 1 << 20].into()),
                b"/c/mebibytes" => Reply::Message(vec![7; 8 << 20].into()),
                _ => Reply::Message(body),
            }
        })
    }

    fn serve(&self, request: http::Request<Incoming>) -> Answering<http::Response<TestBody>> {
        let (begun, late) = (Arc::clone(&self.begun), Arc::clone(&self.late));
        Box::pin(async move {
            begun.fetch_add(1, Ordering::SeqCst);
            let body = match request.uri().path() {
                "/s/echo" => request.into_body().boxed_unsync(),
                "/s/large" => {
                    let part = || Ok(Frame::data(Bytes::from(vec![7; 50_000])));
                    StreamBody::new(futures_util::stream::iter((0..200).map(move |_| part()))).boxed_unsync()
                }
                "/s/pushed" => {
                    // Always something to say, and always woken for more, as by events that go on happening.
                    let made = Arc::clone(&begun);
                    let parts = futures_util::stream::poll_fn(move |cx| {
                        made.fetch_add(1, Ordering::SeqCst);
                        cx.waker().wake_by_ref();
                        Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![7; 50_000])))))
                    });
                    StreamBody::new(parts).boxed_unsync()
                }
                "/s/once" => {
                    let part = futures_util::stream::once(async { Ok(Frame::data(Bytes::from(vec![7; 100_000]))) });
                    let parts = futures_util::StreamExt::chain(part, futures_util::stream::pending());
                    StreamBody::new(parts).boxed_unsync()
                }
                "/s/keeps" | "/c/huge" => {
                    let _kept = request.into_body().collect().await;
                    std::future::pending().await
                }
                "/s/late" => {
                    late.notified().await;
                    let _read = request.into_body().collect().await;
                    std::future::pending().await
                }
                "/s/drops-late" => {
                    late.notified().await;
                    drop(request);
                    std::future::pending().await
                }
                "/s/drops" => {
                    drop(request);
                    std::future::pending().await
                }
                "/s/early" => Empty::new().map_err(|never| match never {}).boxed_unsync(),
                _ => {
                    let _unread = request.into_body();
                    std::future::pending().await
                }
            };
            http::Response::new(body)
        })
    }
}

struct Client {
    io: DuplexStream,
    input: BytesMut,
    begun: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
    pinned: Arc<AtomicUsize>,
    late: Arc<Notify>,
    serving: tokio::task::JoinHandle<io::Result<()>>,
}

impl Client {
    async fn new(settings: &[(u16, u32)]) -> Client {
        Client::kept(settings, KEEPING).await
    }

    async fn kept(settings: &[(u16, u32)], keeping: Keeping) -> Client {
        Client::stalling(settings, keeping, STALL_PERIOD).await
    }

    async fn stalling(settings: &[(u16, u32)], keeping: Keeping, stall_period: Duration) -> Client {
        let (io, theirs) = tokio::io::duplex(64 * 1024);
        let service = Arc::new(Answers::default());
        let (begun, dropped) = (Arc::clone(&service.begun), Arc::clone(&service.dropped));
        let (pinned, late) = (Arc::clone(&service.pinned), Arc::clone(&service.late));
        let mut serving = Serving::new(theirs, BytesMut::new(), service, keeping);
        serving.stall_period = stall_period;
        let serving = tokio::spawn(tokio::task::unconstrained(serving));
        let mut client = Client { io, input: BytesMut::new(), begun, dropped, pinned, late, serving };
        let mut out = BytesMut::from(&PREFACE[..]);
        frame::put_settings(settings, &mut out);
        frame::put_window(0, 1 << 30, &mut out);
        client.write(&out).await;
        client
    }

    async fn write(&mut self, bytes: &[u8]) {
        self.io.write_all(bytes).await.unwrap();
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut out = BytesMut::new();
        put(kind, flags, stream, payload, &mut out);
        self.write(&out).await;
    }

    /// The next frame of a stream: kind, flags, payload. Others are skipped.
    async fn next(&mut self, stream: u32) -> (u8, u8, Bytes) {
        loop {
            let (head, payload) = tokio::time::timeout(PATIENCE, self.next_frame()).await.expect("a frame").unwrap();
            if head.stream == stream && head.kind != frame::WINDOW_UPDATE {
                return (head.kind, head.flags, payload);
            }
        }
    }

    async fn next_frame(&mut self) -> Option<(Head, Bytes)> {
        loop {
            if let Some(head) = self.input.first_chunk().map(Head::read)
                && self.input.len() >= HEAD_BYTES + head.length
            {
                self.input.advance(HEAD_BYTES);
                return Some((head, self.input.split_to(head.length).freeze()));
            }
            if self.io.read_buf(&mut self.input).await.ok()? == 0 {
                return None;
            }
        }
    }

    /// The whole of an answer: its data.
    async fn answer(&mut self, stream: u32) -> Vec<u8> {
        let mut data = Vec::new();
        loop {
            let (kind, flags, payload) = self.next(stream).await;
            assert_ne!(kind, frame::RST_STREAM, "{payload:?}");
            if kind == frame::DATA {
                data.extend_from_slice(&payload);
            }
            if flags & frame::END_STREAM != 0 {
                return data;
            }
        }
    }
}

fn put(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut BytesMut) {
    frame::put_head(payload.len(), kind, flags, stream, out);
    out.put_slice(payload);
}

/// The head of a POST.
fn head(path: &str) -> Vec<u8> {
    [&[0x83, 0x86, 0x04, path.len() as u8], path.as_bytes()].concat()
}

async fn until(what: impl Fn() -> bool) {
    let waiting = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("it must happen");
}

/// Calls are answered as they are done: one that takes long holds up none of those after it.
#[tokio::test]
async fn a_slow_call_does_not_hold_up_the_next() {
    let mut client = Client::new(&[]).await;
    client.send(frame::HEADERS, END, 1, &head("/c/never")).await;
    for stream in (3..2003).step_by(2) {
        client.send(frame::HEADERS, frame::END_HEADERS, stream, &head("/c/echo")).await;
        client.send(frame::DATA, 0, stream, b"hel").await;
        client.send(frame::DATA, frame::END_STREAM, stream, b"lo").await;
        assert_eq!(client.answer(stream).await, b"hello");
    }
    assert_eq!(client.dropped.load(Ordering::SeqCst), 1000);
}

/// Whoever gave up does not go on costing anything.
#[tokio::test]
async fn a_call_that_is_given_up_is_dropped() {
    let mut client = Client::new(&[]).await;
    client.send(frame::HEADERS, END, 1, &head("/c/never")).await;
    until(|| client.begun.load(Ordering::SeqCst) == 1).await;
    client.send(frame::RST_STREAM, 0, 1, &[0, 0, 0, 8]).await;
    until(|| client.dropped.load(Ordering::SeqCst) == 1).await;
    // So does whoever goes without a word.
    client.send(frame::HEADERS, END, 3, &head("/c/never")).await;
    until(|| client.begun.load(Ordering::SeqCst) == 2).await;
    let dropped = Arc::clone(&client.dropped);
    drop(client);
    until(|| dropped.load(Ordering::SeqCst) == 2).await;
}

/// Requests that are given up in the same breath (CVE-2023-44487) must not cost what real ones do: they are never begun.
#[tokio::test]
async fn requests_given_up_at_once_are_never_begun() {
    let mut client = Client::new(&[]).await;
    let mut out = BytesMut::new();
    for stream in (1..1001).step_by(2) {
        put(frame::HEADERS, END, stream, &head("/c/never"), &mut out);
        put(frame::RST_STREAM, 0, stream, &[0, 0, 0, 8], &mut out);
    }
    put(frame::HEADERS, END, 1001, &head("/c/echo"), &mut out);
    client.write(&out).await;
    assert_eq!(client.answer(1001).await, b"");
    // A read may end between a request and its end; not between all of them.
    assert!(client.begun.load(Ordering::SeqCst) < 100, "{:?}", client.begun);
    until(|| client.dropped.load(Ordering::SeqCst) == 501).await;
}

/// A client may have windows so large that it never needs to say more: what is made for it must go on by itself.
#[tokio::test]
async fn a_large_answer_arrives_without_another_word() {
    let mut client = Client::new(&[(frame::SETTING_WINDOW, (1 << 31) - 1)]).await;
    client.send(frame::HEADERS, END, 1, &head("/s/large")).await;
    assert_eq!(client.answer(1).await.len(), 10_000_000);
}

/// Streams go both ways, for as long as both sides like: windows are given back as they are read.
#[tokio::test]
async fn a_stream_goes_both_ways() {
    let mut client = Client::new(&[]).await;
    client.send(frame::HEADERS, frame::END_HEADERS, 1, &head("/s/echo")).await;
    assert_eq!(client.next(1).await.0, frame::HEADERS);
    for round in 0..50_u8 {
        client.send(frame::DATA, 0, 1, &[round; 10_000]).await;
        let mut back = 0;
        while back < 10_000 {
            let (kind, _, payload) = client.next(1).await;
            assert_eq!((kind, payload[0]), (frame::DATA, round));
            back += payload.len();
        }
        client.send(frame::WINDOW_UPDATE, 0, 1, &10_000_u32.to_be_bytes()).await;
    }
    client.send(frame::DATA, frame::END_STREAM, 1, b"").await;
    assert_eq!(client.answer(1).await, b"");
}

/// A body that is larger than what is collected is served as a stream, from its beginning.
#[tokio::test]
async fn a_call_that_is_too_large_is_served_as_a_stream() {
    let mut client = Client::new(&[]).await;
    client.send(frame::HEADERS, frame::END_HEADERS, 1, &head("/c/large")).await;
    client.send(frame::DATA, 0, 1, &[1; 600]).await;
    client.send(frame::DATA, 0, 1, &[1; 600]).await;
    until(|| client.begun.load(Ordering::SeqCst) == 1).await;
    assert_eq!(client.dropped.load(Ordering::SeqCst), 0, "it was no call");
}

/// Requests that are answered before they are whole leave nothing behind, however many there are.
#[tokio::test]
async fn early_answers_leave_nothing_behind() {
    let (mut io, theirs) = tokio::io::duplex(1 << 20);
    let mut serving = Serving::new(theirs, BytesMut::new(), Arc::new(Answers::default()), KEEPING);
    let mut out = BytesMut::from(&PREFACE[..]);
    frame::put_settings(&[], &mut out);
    for stream in (1..201).step_by(2) {
        put(frame::HEADERS, frame::END_HEADERS, stream, &head("/s/early"), &mut out);
        put(frame::DATA, 0, stream, b"more", &mut out);
    }
    io.write_all(&out).await.unwrap();
    std::future::poll_fn(|cx| {
        assert!(Pin::new(&mut serving).poll(cx).is_pending());
        if serving.connection.open_streams() == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    assert_eq!((serving.open.len(), serving.held.len()), (0, 0));
}

/// Requests that nobody reads hold up neither calls nor other streams.
#[tokio::test]
async fn an_unread_request_does_not_hold_up_others() {
    let mut client = Client::new(&[]).await;
    client.send(frame::HEADERS, frame::END_HEADERS, 1, &head("/s/unread")).await;
    for _ in 0..9 {
        client.send(frame::DATA, 0, 1, &[0; 10_000]).await;
    }
    client.send(frame::HEADERS, frame::END_HEADERS, 3, &head("/c/echo")).await;
    client.send(frame::DATA, frame::END_STREAM, 3, b"hello").await;
    assert_eq!(client.answer(3).await, b"hello");
}

/// A client that is gone without a word is noticed; one that only has nothing to say is kept.
#[tokio::test]
async fn a_silent_client_is_asked_and_then_let_go() {
    let keeping =
        Keeping { ping_after: Duration::from_millis(20), ping_timeout: Duration::from_millis(200), ..KEEPING };
    let mut client = Client::kept(&[], keeping).await;
    for _ in 0..3 {
        let (kind, flags, payload) = client.next(0).await;
        if kind == frame::PING {
            assert_eq!(flags, 0);
            client.send(frame::PING, frame::ACK, 0, &payload).await;
        }
    }
    let ended = tokio::time::timeout(PATIENCE, client.serving).await.unwrap().unwrap();
    assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
}

/// What breaks the rules is told so before the connection ends.
#[tokio::test]
async fn a_broken_client_is_told_why() {
    let mut client = Client::new(&[]).await;
    client.send(frame::PUSH_PROMISE, 0, 1, &[0; 4]).await;
    let goaway = loop {
        let (kind, _, payload) = client.next(0).await;
        if kind == frame::GOAWAY {
            break payload;
        }
    };
    assert_eq!(goaway[4..8], (ErrorCode::Protocol as u32).to_be_bytes());
    assert!(client.next_frame().await.is_none(), "nothing comes after it");
    assert!(tokio::time::timeout(PATIENCE, client.serving).await.unwrap().unwrap().is_ok());
}

/// A body is over when its last part is taken.
#[test]
fn a_body_knows_its_end() {
    let ready = Arc::new(Ready::default());
    let (feed, body) = body::channel(1, &ready, false, body::Count::All(0));
    assert!(!body.is_end_stream());
    feed.push(Bytes::new(), true);
    assert!(body.is_end_stream());
}
