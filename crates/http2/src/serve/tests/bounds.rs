//! What one client can make us keep, and that it stops nothing else by it.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use tokio::io::WriteHalf;

use super::*;
use crate::serve::body::Count;
use crate::serve::requests::REQUEST_BYTES_MAX;

/// Windows so large that what is sent needs no answer first.
const WIDE: Keeping = Keeping {
    limits: Limits { stream_window: 2 << 20, connection_window: 4 << 20, head_bytes: 65_536, ..KEEPING.limits },
    ..KEEPING
};
const MEBIBYTE: usize = 1 << 20;

/// What came from the server, by stream.
#[derive(Default)]
struct Seen {
    data: HashMap<u32, usize>,
    ended: HashSet<u32>,
    resets: HashMap<u32, u32>,
    pongs: usize,
}

/// A client that reads whatever comes, all the time.
struct Reading {
    to: WriteHalf<DuplexStream>,
    seen: Arc<Mutex<Seen>>,
    begun: Arc<AtomicUsize>,
    pinned: Arc<AtomicUsize>,
    late: Arc<Notify>,
    next: u32,
}

impl Reading {
    fn of(client: Client) -> Reading {
        let (mut from, to) = tokio::io::split(client.io);
        let seen = Arc::new(Mutex::new(Seen::default()));
        let into = Arc::clone(&seen);
        tokio::spawn(async move {
            let mut input = client.input;
            while from.read_buf(&mut input).await.is_ok_and(|read| read > 0) {
                into.lock().unwrap().take_in(&mut input);
            }
        });
        Reading { to, seen, begun: client.begun, pinned: client.pinned, late: client.late, next: 1 }
    }

    async fn write(&mut self, out: &[u8]) {
        tokio::time::timeout(PATIENCE, self.to.write_all(out)).await.expect("it is read").unwrap();
    }

    /// Begins so many requests of a head: the first of them.
    async fn ask(&mut self, count: u32, flags: u8, head: &[u8]) -> u32 {
        let first = self.next;
        self.next += 2 * count;
        let mut out = BytesMut::new();
        (first..self.next).step_by(2).for_each(|stream| put(frame::HEADERS, flags, stream, head, &mut out));
        self.write(&out).await;
        first
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut out = BytesMut::new();
        put(kind, flags, stream, payload, &mut out);
        self.write(&out).await;
    }

    /// Sends so many times the same on each of so many streams, and waits until it was taken in.
    async fn send_to_each(&mut self, first: u32, streams: usize, times: usize, data: &[u8]) {
        for stream in (first..).step_by(2).take(streams) {
            let mut out = BytesMut::new();
            (0..times).for_each(|_| put(frame::DATA, 0, stream, data, &mut out));
            self.write(&out).await;
        }
        self.until_taken_in().await;
    }

    async fn open_window(&mut self, stream: u32, more: u32) {
        self.send(frame::WINDOW_UPDATE, 0, stream, &more.to_be_bytes()).await;
    }

    async fn until_seen(&self, what: impl Fn(&Seen) -> bool) {
        until(|| what(&self.seen.lock().unwrap())).await;
    }

    /// Waits until all that was sent was taken in.
    async fn until_taken_in(&mut self) {
        let pongs = self.seen.lock().unwrap().pongs;
        self.send(frame::PING, 0, 0, b"whatever").await;
        self.until_seen(|seen| seen.pongs > pongs).await;
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// How many requests were refused, all of them as too much.
    fn refused(&self) -> usize {
        let seen = self.seen.lock().unwrap();
        assert!(seen.resets.values().all(|code| *code == ErrorCode::EnhanceYourCalm as u32), "{:?}", seen.resets);
        seen.resets.len()
    }

    /// A small call goes through, with a window for its answer if none is open.
    async fn small_call_is_answered(&mut self) {
        let stream = self.ask(1, frame::END_HEADERS, &head("/c/echo")).await;
        self.open_window(stream, 100).await;
        self.send(frame::DATA, frame::END_STREAM, stream, b"hello").await;
        self.until_seen(|seen| seen.ended.contains(&stream)).await;
        assert_eq!(self.seen.lock().unwrap().data[&stream], 5);
    }
}

impl Seen {
    fn take_in(&mut self, input: &mut BytesMut) {
        while let Some(head) = input.first_chunk().map(Head::read)
            && input.len() >= HEAD_BYTES + head.length
        {
            input.advance(HEAD_BYTES);
            let mut payload = input.split_to(head.length);
            match head.kind {
                frame::DATA => *self.data.entry(head.stream).or_default() += payload.len(),
                frame::RST_STREAM => drop(self.resets.insert(head.stream, payload.get_u32())),
                frame::PING => self.pongs += 1,
                _ => {}
            }
            if matches!(head.kind, frame::DATA | frame::HEADERS) && head.flags & frame::END_STREAM != 0 {
                self.ended.insert(head.stream);
            }
        }
    }
}

/// The head of a POST that is gRPC.
fn grpc(path: &str) -> Vec<u8> {
    // Field 31 is content-type.
    [&head(path)[..], &[0x0f, 16, 16], b"application/grpc"].concat()
}

/// Waits until no more is made. That nothing happens can only be seen by looking for a while.
async fn stands_still_below(max: usize, made: &AtomicUsize) {
    let mut before = usize::MAX;
    let looking = async {
        while before != made.load(Ordering::SeqCst) {
            before = made.load(Ordering::SeqCst);
            assert!(before < max, "{before} were made for nobody");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.expect("it must end");
}

/// A client that does not read what it asks for must not fill our memory with answers.
#[tokio::test]
async fn nothing_is_made_for_a_client_that_does_not_read() {
    let client = Client::new(&[(frame::SETTING_WINDOW, (1 << 31) - 1)]).await;
    let begun = Arc::clone(&client.begun);
    let mut out = BytesMut::new();
    for stream in (1..20_001).step_by(2) {
        put(frame::HEADERS, END, stream, &head("/c/large"), &mut out);
    }
    // Not all of it is taken, since nothing is read while the answers are not.
    let (mut from, mut to) = tokio::io::split(client.io);
    let writing = tokio::spawn(async move { to.write_all(&out).await.map(|()| to) });
    until(|| begun.load(Ordering::SeqCst) > 0).await;
    stands_still_below(3000, &begun).await;
    // And goes on when it does.
    let mut all = 0;
    while all < 10_000 * 10_000 {
        let mut input = BytesMut::with_capacity(1 << 16);
        let reading = tokio::time::timeout(PATIENCE, from.read_buf(&mut input));
        all += reading.await.expect("more").unwrap();
    }
    assert_eq!(begun.load(Ordering::SeqCst), 10_000);
    drop(writing.await.unwrap().unwrap());
}

/// The same for a stream that is woken again and again: what happens meanwhile must not pile up for who does not read.
#[tokio::test]
async fn nothing_more_is_made_of_a_stream_that_is_not_read_however_often_it_is_woken() {
    let mut client = Client::new(&[]).await;
    client.send(frame::HEADERS, END, 1, &head("/s/pushed")).await;
    let begun = Arc::clone(&client.begun);
    until(|| begun.load(Ordering::SeqCst) > 3).await;
    stands_still_below(20, &begun).await;
}
/// Nor a client that reads, but has shut the window of every stream: pings go through, and answers lie. However many it
/// asks for at once, the bound is looked at for each of them.
#[tokio::test]
async fn little_is_made_for_a_client_that_shuts_its_windows() {
    const ASKED: u32 = 200;
    let mut client = Reading::of(Client::new(&[(frame::SETTING_WINDOW, 0)]).await);
    client.ask(ASKED, END, &head("/c/mebibyte")).await;
    until(|| client.begun.load(Ordering::SeqCst) > 20).await;
    stands_still_below(33, &client.begun).await;
    // And goes on when it opens them.
    let mut out = BytesMut::new();
    frame::put_settings(&[(frame::SETTING_WINDOW, (1 << 31) - 1)], &mut out);
    client.write(&out).await;
    client.until_seen(|seen| seen.ended.len() == ASKED as usize).await;
    assert!(client.seen.lock().unwrap().data.values().all(|bytes| *bytes == MEBIBYTE));
}

/// Many small answers that nobody takes are as much as a few large ones.
#[tokio::test]
async fn small_answers_that_are_not_taken_are_bounded_too() {
    let mut client = Reading::of(Client::new(&[(frame::SETTING_WINDOW, 0)]).await);
    client.ask(10_000, END, &head("/c/large")).await;
    until(|| client.begun.load(Ordering::SeqCst) > 3000).await;
    stands_still_below(4000, &client.begun).await;
}

/// A few large downloads, however slow, are what backups and listings look like: locks must be had meanwhile.
#[tokio::test]
async fn a_few_large_answers_that_are_not_taken_hold_up_no_small_ones() {
    let mut client = Reading::of(Client::new(&[]).await);
    client.ask(8, END, &head("/c/mebibytes")).await;
    until(|| client.begun() == 8).await;
    client.small_call_is_answered().await;
}

/// A client may watch in hundreds of streams, and write for each event that it reads: if it were not answered for what it
/// has not read yet, it would wait for itself.
#[tokio::test]
async fn streams_that_are_not_read_hold_up_neither_calls_nor_other_streams() {
    let mut client = Reading::of(Client::new(&[]).await);
    let read = client.ask(1, frame::END_HEADERS, &head("/s/echo")).await;
    until(|| client.begun() == 1).await;
    // Each has more to say than its window takes.
    client.ask(1000, END, &head("/s/pushed")).await;
    client.until_seen(|seen| seen.data.values().filter(|bytes| **bytes == 65_535).count() > 500).await;
    stands_still_below(4000, &client.begun).await;
    client.small_call_is_answered().await;
    client.send(frame::DATA, 0, read, b"hello").await;
    client.until_seen(|seen| seen.data.get(&read) == Some(&5)).await;
}

/// Keep-alives are such streams: whoever leaves answers lying would lose its locks.
#[tokio::test]
async fn streams_go_on_both_ways_while_whole_answers_are_not_taken() {
    let mut client = Reading::of(Client::new(&[(frame::SETTING_WINDOW, 0)]).await);
    let stream = client.ask(1, frame::END_HEADERS, &head("/s/echo")).await;
    client.ask(60, END, &head("/c/mebibyte")).await;
    stands_still_below(40, &client.begun).await;
    assert!(client.begun() > 20);
    // One that begins now goes on as well. More than fits the window that the server gave: it gives more.
    let late = client.ask(1, frame::END_HEADERS, &head("/s/echo")).await;
    for round in 1..=30 {
        for stream in [stream, late] {
            client.open_window(stream, 10_000).await;
            client.send(frame::DATA, 0, stream, &[1; 10_000]).await;
            client.until_seen(|seen| seen.data.get(&stream) == Some(&(round * 10_000))).await;
        }
    }
}

/// A client that never opens some windows waits for itself, but not for ever. One that takes its answer slowly gets it.
#[tokio::test]
async fn an_answer_of_which_nothing_is_taken_is_given_up_and_one_that_is_taken_slowly_is_not() {
    let period = Duration::from_millis(1500);
    let mut client = Reading::of(Client::stalling(&[(frame::SETTING_WINDOW, 0)], KEEPING, period).await);
    let slow = client.ask(60, END, &head("/c/mebibyte")).await;
    until(|| client.begun() > 20).await;
    let call = client.ask(1, END, &head("/c/mebibyte")).await;
    client.open_window(call, 2 << 20).await;
    let answered = async {
        while !client.seen.lock().unwrap().ended.contains(&call) {
            client.open_window(slow, 100).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, answered).await.expect("others make room");
    assert!(client.refused() > 30, "{}", client.refused());
    client.open_window(slow, 2 << 20).await;
    client.until_seen(|seen| seen.data.get(&slow) == Some(&MEBIBYTE)).await;
    assert!(!client.seen.lock().unwrap().resets.contains_key(&slow));
}

/// What is in parts is bounded by how many begin; those are given up for others, and not as long as nobody else waits: a
/// program may read its events as late as it likes.
#[tokio::test]
async fn streams_that_are_not_read_are_given_up_only_for_those_that_cannot_begin() {
    let period = Duration::from_millis(200);
    let mut client = Reading::of(Client::stalling(&[(frame::SETTING_WINDOW, 0)], KEEPING, period).await);
    client.ask(300, END, &head("/s/once")).await;
    until(|| client.begun() == 300).await;
    // A whole answer has it looked for what stalls, and is what is found.
    let stalls = client.ask(1, END, &head("/c/large")).await;
    client.until_seen(|seen| seen.resets.contains_key(&stalls)).await;
    tokio::time::sleep(3 * period).await;
    assert_eq!(client.refused(), 1);
    client.ask(100, END, &head("/s/once")).await;
    until(|| client.begun() == 401).await;
    assert!((100..=200).contains(&client.refused()), "{}: no more than it takes", client.refused());
}

/// Without a clock, for the bound itself: what waits in parts is 32 MiB, and then one part each.
#[tokio::test]
async fn no_more_streams_begin_when_much_of_others_is_not_read() {
    let mut client = Reading::of(Client::new(&[(frame::SETTING_WINDOW, 0)]).await);
    client.ask(600, END, &head("/s/once")).await;
    until(|| client.begun() > 300).await;
    stands_still_below(337, &client.begun).await;
    // Ahead of nobody: some streams get three parts, until half of it is there, and the others one.
    let mut client = Reading::of(Client::new(&[(frame::SETTING_WINDOW, 0)]).await);
    client.ask(250, END, &head("/s/pushed")).await;
    // Begun, and parts made.
    until(|| client.begun() > 250 + 330).await;
    stands_still_below(250 + 250 + 2 * 112 + 10, &client.begun).await;
}

/// Requests that are given up in the same breath must not be remembered while there is no room to look at them.
#[tokio::test]
async fn requests_given_up_at_once_leave_nothing_in_any_queue() {
    // Many of them are read at a time, and few.
    for bytes in [1 << 20, 512] {
        let longest = longest_queue_of_requests_given_up(bytes).await;
        assert!(longest <= 200, "{longest} places of 40 that are open");
    }
}

async fn longest_queue_of_requests_given_up(bytes_at_a_time: usize) -> usize {
    let (io, theirs) = tokio::io::duplex(bytes_at_a_time);
    let mut serving = Serving::new(theirs, BytesMut::new(), Arc::new(Answers::default()), KEEPING);
    let mut out = BytesMut::from(&PREFACE[..]);
    frame::put_settings(&[(frame::SETTING_WINDOW, 0)], &mut out);
    (1..81).step_by(2).for_each(|stream| put(frame::HEADERS, END, stream, &head("/c/mebibyte"), &mut out));
    for stream in (81..60_001).step_by(2) {
        let path = if stream % 4 == 1 { "/c/never" } else { "/s/never" };
        put(frame::HEADERS, END, stream, &head(path), &mut out);
        put(frame::RST_STREAM, 0, stream, &[0, 0, 0, 8], &mut out);
    }
    let (mut from, mut to) = tokio::io::split(io);
    let reading = tokio::spawn(async move { while from.read(&mut [0; 65_536]).await.is_ok_and(|read| read > 0) {} });
    let writing = tokio::spawn(async move { to.write_all(&out).await.map(|()| to) });
    let mut longest = 0;
    std::future::poll_fn(|cx| {
        assert!(Pin::new(&mut serving).poll(cx).is_pending());
        longest = longest.max(serving.calls.queued());
        let is_over = writing.is_finished() && serving.connection.open_streams() == 40;
        if !is_over {
            cx.waker().wake_by_ref();
        }
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    reading.abort();
    longest
}

/// Requests that never become whole must not fill our memory either: nobody was asked who sends them.
#[tokio::test]
async fn only_so_much_is_collected_of_requests_that_never_become_whole() {
    let mut client = Reading::of(Client::kept(&[], WIDE).await);
    let first = client.ask(80, frame::END_HEADERS, &head("/c/huge")).await;
    let fit = REQUEST_BYTES_MAX / (64 * 16_000);
    client.send_to_each(first, 80, 64, &[1; 16_000]).await;
    assert!((80 - fit - 1..=80 - fit).contains(&client.refused()), "{}", client.refused());
}

/// A request that was collected and then found too large is read as a stream: it is still as large.
#[tokio::test]
async fn requests_that_are_too_large_to_be_collected_are_counted_on() {
    let mut client = Reading::of(Client::kept(&[], WIDE).await);
    let first = client.ask(80, frame::END_HEADERS, &head("/c/huge")).await;
    let fit = REQUEST_BYTES_MAX / (70 * 16_000);
    client.send_to_each(first, 80, 70, &[1; 16_000]).await;
    assert_eq!(client.begun(), fit);
    assert!((80 - fit - 1..=80 - fit).contains(&client.refused()), "{}", client.refused());
}

/// Whoever reads a message as it comes can do nothing but keep it until it is whole: giving windows back for what was read
/// bounds nothing.
#[tokio::test]
async fn messages_that_never_become_whole_are_bounded_on_streams_too() {
    let mut client = Reading::of(Client::kept(&[], WIDE).await);
    let first = client.ask(80, frame::END_HEADERS, &grpc("/s/keeps")).await;
    client.send_to_each(first, 80, 1, &[0, 0, 0x20, 0, 0]).await;
    let fit = REQUEST_BYTES_MAX / (64 * 16_000);
    client.send_to_each(first, 80, 64, &[1; 16_000]).await;
    assert!((80 - fit - 1..=80 - fit).contains(&client.refused()), "{}", client.refused());
}

/// A stream may go on for years: what was said on it before is nothing that is kept. Unless nobody here knows what is.
#[tokio::test]
async fn messages_that_became_whole_do_not_count_and_what_is_no_message_does() {
    let mut message = vec![1; 16_000];
    message[..5].copy_from_slice(&[0, 0, 0, 0x3e, 0x7b]);
    for (head, refused) in [(grpc("/s/keeps"), 0), (head("/s/keeps"), 1)] {
        let mut client = Reading::of(Client::kept(&[], WIDE).await);
        let stream = client.ask(1, frame::END_HEADERS, &head).await;
        for _ in 0..50 {
            client.send_to_each(stream, 1, 100, &message).await;
        }
        assert_eq!(client.refused(), refused);
        client.small_call_is_answered().await;
    }
}

/// A field that was said before takes a byte to say again, and as much memory as before.
#[tokio::test]
async fn heads_are_counted_by_what_they_take_and_not_by_how_they_came() {
    let mut client = Reading::of(Client::kept(&[], WIDE).await);
    // Field 16 is "accept-encoding: gzip, deflate".
    let head = [&head("/c/echo")[..], &[0x90; 1000]].concat();
    client.ask(1200, frame::END_HEADERS, &head).await;
    client.until_taken_in().await;
    assert!((700..=850).contains(&client.refused()), "{}", client.refused());
}

/// A request of which nothing more comes is kept all the same, until it is answered.
#[test]
fn what_is_one_message_counts_until_it_is_answered() {
    let message = [&[0, 0, 0, 0, 3][..], b"abc"].concat();
    let counted = |parts: &[(&[u8], bool)]| {
        let mut count = Count::Messages(Default::default());
        parts.iter().map(|(part, end)| (count.take_in(part, *end), count.bytes()).1).collect::<Vec<_>>()
    };
    assert_eq!(counted(&[(&message[..2], false), (&message[2..6], false), (&message[6..], true)]), [2, 6, 8]);
    assert_eq!(counted(&[(&message, false), (b"", true)]), [0, 8]);
    assert_eq!(counted(&[(&message, false), (&message, false), (b"", true)]), [0, 0, 0]);
    assert_eq!(counted(&[(&message.repeat(3), false), (&message[..7], false), (b"", true)]), [0, 7, 7]);
}

proptest::proptest! {
    /// Messages come in frames that have nothing to do with them.
    #[test]
    fn messages_are_told_apart_however_they_are_cut(
        lengths in proptest::collection::vec(0..40_u8, 1..8), cuts in proptest::collection::vec(1..30_usize, 1..30),
    ) {
        let message = |length: &u8| [&[0, 0, 0, 0, *length][..], &vec![9; usize::from(*length)]].concat();
        let whole: Vec<Vec<u8>> = lengths.iter().map(message).collect();
        let (bytes, mut count, mut at) = (whole.concat(), Count::Messages(Default::default()), 0_usize);
        for cut in cuts.into_iter().chain([usize::MAX]) {
            let to = at.saturating_add(cut).min(bytes.len());
            count.take_in(&bytes[at..to], false);
            at = to;
            let before = whole.iter().map(Vec::len).scan(0, |all, one| { *all += one; Some(*all) });
            let begun = before.take_while(|all| *all <= at).last().unwrap_or(0);
            proptest::prop_assert_eq!(count.bytes(), at - begun);
        }
    }
}

/// Tiny pieces come in large reads: one that waits must not hold on to all that was read with it.
#[tokio::test]
async fn what_waits_does_not_hold_on_to_what_was_read_with_it() {
    struct Read(Vec<u8>, Arc<AtomicUsize>);
    impl AsRef<[u8]> for Read {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Read {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (ready, dropped) = (Arc::new(Ready::default()), Arc::new(AtomicUsize::new(0)));
    let (feed, body) = body::channel(1, &ready, false, Count::All(0));
    for number in 0..100 {
        feed.push(Bytes::from_owner(Read(vec![number; 32_768], Arc::clone(&dropped))).slice(..10), false);
    }
    assert_eq!(dropped.load(Ordering::SeqCst), 100);
    feed.push(vec![100; 16_384].into(), false);
    feed.push(vec![101; 10].into(), true);
    let parts = body.collect().await.unwrap().to_bytes();
    assert_eq!(parts.len(), 100 * 10 + 16_384 + 10);
    assert!(parts.is_sorted(), "in order");
}

/// The same for calls that wait, such as for a lock. One that is answered at once is not worth a copy.
#[tokio::test]
async fn a_call_that_may_wait_does_not_hold_on_to_what_was_read_with_it() {
    let mut client = Reading::of(Client::new(&[]).await);
    let stream = client.ask(1, frame::END_HEADERS, &head("/c/never")).await;
    client.send(frame::DATA, frame::END_STREAM, stream, b"a lock").await;
    until(|| client.begun() == 1).await;
    assert_eq!(client.pinned.load(Ordering::SeqCst), 0);
}

/// What was sent is read at last, though its stream has no more to say: it must not count against all the others for ever.
#[tokio::test]
async fn what_is_read_after_its_end_or_never_will_be_makes_room_for_others() {
    for path in ["/s/late", "/s/drops", "/s/drops-late"] {
        let mut client = Reading::of(Client::new(&[]).await);
        // More than the connection's window together, less than twice of it.
        let first = client.ask(15, frame::END_HEADERS, &head(path)).await;
        client.send_to_each(first, 15, 9, &[1; 10_000]).await;
        for stream in (first..).step_by(2).take(15) {
            client.send(frame::DATA, frame::END_STREAM, stream, b"end").await;
        }
        client.until_taken_in().await;
        client.late.notify_waiters();
        // Far more than is left of the window.
        let stream = client.ask(1, frame::END_HEADERS, &head("/s/keeps")).await;
        for _ in 0..30 {
            client.send_to_each(stream, 1, 5, &[1; 10_000]).await;
            // Windows come back before more is sent.
            tokio::time::sleep(Duration::from_millis(1)).await;
            client.until_taken_in().await;
        }
        assert_eq!(client.refused(), 0);
    }
}
