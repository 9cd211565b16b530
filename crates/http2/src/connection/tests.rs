//! Frames as a client sends them, against the rules. Whole conversations with real clients are in `tests/`.

use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;

use super::*;
use crate::hpack::Field;

const LIMITS: Limits = Limits { streams: 4, stream_window: 100_000, connection_window: 200_000, head_bytes: 4096 };
/// `POST http /a` in numbers and one text.
const CALL: &[u8] = &[0x83, 0x86, 0x04, 2, b'/', b'a'];

/// A client that writes frames by hand and reads what comes back.
struct Client {
    connection: Connection,
    events: Vec<Event>,
}

/// What the server sent: kind, flags, stream, payload.
type Frame = (u8, u8, u32, Vec<u8>);

impl Client {
    fn new() -> Client {
        Client::with_settings(&[])
    }

    fn with_settings(settings: &[(u16, u32)]) -> Client {
        let mut client = Client { connection: Connection::new(LIMITS), events: Vec::new() };
        let mut input = BytesMut::from(&PREFACE[..]);
        frame::put_settings(settings, &mut input);
        client.connection.receive(&mut input, &mut client.events).unwrap();
        client.sent();
        client
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Received {
        let mut input = BytesMut::new();
        frame::put_head(payload.len(), kind, flags, stream, &mut input);
        input.put_slice(payload);
        self.connection.receive(&mut input, &mut self.events)
    }

    fn call(&mut self, stream: u32) {
        self.send(frame::HEADERS, frame::END_HEADERS | frame::END_STREAM, stream, CALL).unwrap();
    }

    fn sent(&mut self) -> Vec<Frame> {
        let mut out = self.connection.out().split();
        let mut frames = Vec::new();
        while let Some(head) = out.first_chunk().map(Head::read) {
            let _ = out.split_to(HEAD_BYTES);
            frames.push((head.kind, head.flags, head.stream, out.split_to(head.length).to_vec()));
        }
        assert!(out.is_empty(), "half a frame was sent");
        frames
    }

    /// Bytes of data in what the server sent.
    fn data_sent(&mut self) -> usize {
        self.sent().iter().filter(|(kind, ..)| *kind == frame::DATA).map(|(.., payload)| payload.len()).sum()
    }

    fn grow_window(&mut self, stream: u32, more: u32) -> Received {
        self.send(frame::WINDOW_UPDATE, 0, stream, &more.to_be_bytes())
    }
}

fn reset(stream: u32, code: ErrorCode) -> Frame {
    (frame::RST_STREAM, 0, stream, (code as u32).to_be_bytes().to_vec())
}

/// The hot path: a call comes in, its answer goes out in three frames, nothing is left of it.
#[test]
fn a_call_is_answered_with_head_message_and_trailers() {
    let mut client = Client::new();
    client.send(frame::HEADERS, frame::END_HEADERS, 1, CALL).unwrap();
    client.send(frame::DATA, frame::END_STREAM, 1, b"question").unwrap();
    let [Event::Request { stream: 1, head, end: false }, Event::Data { stream: 1, data, end: true }] =
        &client.events[..]
    else {
        panic!("{:?}", client.events)
    };
    assert_eq!((&head.path[..], &data[..]), (&b"/a"[..], &b"question"[..]));
    client.connection.send_message(1, Bytes::from_static(b"answer"));
    let sent = client.sent();
    let shape: Vec<(u8, u8, u32)> = sent.iter().map(|(kind, flags, stream, _)| (*kind, *flags, *stream)).collect();
    let ended = frame::END_HEADERS | frame::END_STREAM;
    assert_eq!(shape, [(frame::HEADERS, frame::END_HEADERS, 1), (frame::DATA, 0, 1), (frame::HEADERS, ended, 1)]);
    assert_eq!(sent[1].3, b"answer");
    assert_eq!(client.connection.open_streams(), 0);
}

/// What hundreds of clients are told comes in two parts. Whoever has room for it gets it as one frame; whoever has not
/// gets the same bytes in the same order as its windows open, and nothing of it twice.
#[test]
fn what_is_shared_arrives_whole_whatever_the_window() {
    let (own, shared) = (Bytes::from_static(b"own"), Bytes::from(vec![7; 1000]));
    let whole = [&own[..], &shared[..]].concat();
    let mut client = Client::new();
    client.call(1);
    client.connection.send_head(1, 200, [], false);
    client.sent();
    client.connection.send_shared(1, own.clone(), shared.clone());
    client.connection.send_shared(1, own.clone(), shared.clone());
    assert_eq!(client.sent(), [(frame::DATA, 0, 1, whole.clone()), (frame::DATA, 0, 1, whole.clone())]);

    let mut client = Client::with_settings(&[(frame::SETTING_WINDOW, 1)]);
    client.call(1);
    client.connection.send_head(1, 200, [], false);
    client.connection.send_shared(1, own.clone(), shared.clone());
    client.connection.send_shared(1, own, shared);
    let mut arrived = Vec::new();
    for _ in 0..30 {
        let data = client.sent().into_iter().filter(|(kind, ..)| *kind == frame::DATA);
        arrived.extend(data.flat_map(|(.., payload)| payload));
        client.grow_window(1, 100).unwrap();
        client.connection.send_waiting();
    }
    assert_eq!(arrived, whole.repeat(2));
    assert_eq!(client.connection.waiting_bytes(1), 0);
}

/// A head that comes again is not read again, unless it means something else by now.
#[test]
fn the_same_bytes_are_read_anew_when_the_table_changed() {
    let mut client = Client::new();
    let ended = frame::END_HEADERS | frame::END_STREAM;
    // Puts ":path: /one" into the table, and names it by number.
    client.send(frame::HEADERS, ended, 1, &[0x83, 0x86, 0x44, 4, b'/', b'o', b'n', b'e']).unwrap();
    client.send(frame::HEADERS, ended, 3, &[0x83, 0x86, 0xbe]).unwrap();
    client.send(frame::HEADERS, ended, 5, &[0x83, 0x86, 0xbe]).unwrap();
    client.send(frame::HEADERS, ended, 7, &[0x83, 0x86, 0x44, 4, b'/', b't', b'w', b'o']).unwrap();
    client.connection.send_message(1, Bytes::from_static(b""));
    client.send(frame::HEADERS, ended, 9, &[0x83, 0x86, 0xbe]).unwrap();
    let path = |event: &Event| match event {
        Event::Request { head, .. } => String::from_utf8(head.path.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    };
    let paths: Vec<String> = client.events.iter().map(path).collect();
    assert_eq!(paths, ["/one", "/one", "/one", "/two", "/two"]);
}

/// A client says how much it takes; more would be an error that ends its connection.
#[test]
fn windows_of_the_client_are_kept_to() {
    let mut client = Client::with_settings(&[(frame::SETTING_WINDOW, 20_000)]);
    client.call(1);
    client.connection.send_message(1, vec![7; 50_000].into());
    assert_eq!(client.data_sent(), 20_000);
    client.grow_window(1, 10_000).unwrap();
    assert_eq!(client.data_sent(), 10_000);
    // All windows together shrink to less than nothing, and grow again.
    client.send(frame::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]).unwrap();
    client.grow_window(1, 20_000).unwrap();
    assert_eq!(client.data_sent(), 0);
    client.grow_window(1, 20_000).unwrap();
    let sent = client.sent();
    assert_eq!(sent.last().map(|(kind, flags, ..)| (*kind, *flags)), Some((frame::HEADERS, 5)), "trailers at the end");
    assert_eq!(client.connection.open_streams(), 0);
}

/// Two large answers share what the connection takes; a small one is not stuck behind them.
#[test]
fn answers_take_turns_in_the_window_of_the_connection() {
    let mut client = Client::with_settings(&[(frame::SETTING_WINDOW, 1_000_000)]);
    for stream in [1, 3, 5] {
        client.call(stream);
    }
    client.connection.send_message(1, vec![1; 100_000].into());
    client.connection.send_message(3, vec![3; 100_000].into());
    assert_eq!(client.data_sent(), 65_535);
    client.connection.send_message(5, vec![5; 10].into());
    assert_eq!(client.data_sent(), 0);
    client.grow_window(0, 50_000).unwrap();
    let streams: Vec<u32> =
        client.sent().iter().filter(|(kind, ..)| *kind == frame::DATA).map(|(_, _, stream, _)| *stream).collect();
    assert_eq!(streams[..3], [1, 3, 5]);
}

/// What a client keeps sending is bounded by the windows it was given; they grow as it is taken in.
#[test]
fn a_client_that_ignores_its_windows_is_ended() {
    let mut client = Client::new();
    client.send(frame::HEADERS, frame::END_HEADERS, 1, CALL).unwrap();
    for _ in 0..6 {
        client.send(frame::DATA, 0, 1, &[0; 16_000]).unwrap();
    }
    client.connection.release(1, 60_000);
    assert!(client.sent().contains(&(frame::WINDOW_UPDATE, 0, 1, 60_000_u32.to_be_bytes().to_vec())));
    for _ in 0..4 {
        client.send(frame::DATA, 0, 1, &[0; 16_000]).unwrap();
    }
    client.send(frame::DATA, 0, 1, &[0; 16_000]).unwrap();
    assert_eq!(client.sent().last(), Some(&reset(1, ErrorCode::FlowControl)));
    assert_eq!(client.events.last(), Some(&Event::Gone { stream: 1 }));
}

/// Requests above the limit can be tried again: nothing was done for them.
#[test]
fn more_requests_than_agreed_are_refused_one_by_one() {
    let mut client = Client::new();
    for stream in [1, 3, 5, 7, 9] {
        client.call(stream);
    }
    assert_eq!(client.sent(), [reset(9, ErrorCode::RefusedStream)]);
    client.connection.send_message(1, Bytes::from_static(b""));
    client.call(11);
    assert_eq!(client.connection.open_streams(), 4);
}

/// A client that gave up is told nothing more, and what its request held is let go.
#[test]
fn a_request_that_is_given_up_is_gone() {
    let mut client = Client::new();
    client.call(1);
    client.send(frame::RST_STREAM, 0, 1, &[0, 0, 0, 8]).unwrap();
    assert_eq!(client.events.last(), Some(&Event::Gone { stream: 1 }));
    client.connection.send_message(1, Bytes::from_static(b"too late"));
    client.connection.send_data(1, Bytes::from_static(b"x"), true);
    assert_eq!(client.sent(), []);
}

/// An answer may be whole before the request is: the client is told that the rest is not wanted.
#[test]
fn an_early_answer_stops_the_request() {
    let mut client = Client::new();
    client.send(frame::HEADERS, frame::END_HEADERS, 1, CALL).unwrap();
    client.connection.send_head(1, 200, [(&b"grpc-status"[..], &b"8"[..])], true);
    assert_eq!(client.sent().last(), Some(&reset(1, ErrorCode::NoError)));
    // What was on its way is for nobody, and no reason to end the connection.
    client.send(frame::DATA, 0, 1, b"more").unwrap();
    client.send(frame::HEADERS, frame::END_HEADERS | frame::END_STREAM, 1, &[]).unwrap();
    assert_eq!(client.sent(), []);
}

/// A number that was used is used up, and so are those below it: a proxy that mixes streams up must be told.
#[test]
fn numbers_of_requests_are_not_used_again() {
    let mut client = Client::new();
    client.call(5);
    client.connection.send_message(5, Bytes::new());
    let head = frame::END_HEADERS | frame::END_STREAM;
    assert_eq!(client.send(frame::HEADERS, head, 5, CALL).unwrap_err().code, ErrorCode::StreamClosed);
    let mut client = Client::new();
    client.call(5);
    assert_eq!(client.send(frame::HEADERS, head, 3, CALL).unwrap_err().code, ErrorCode::Protocol);
}

/// Bodies that are longer or shorter than announced are how one request is smuggled into another.
#[test]
fn bodies_must_be_as_long_as_announced() {
    let mut head = CALL.to_vec();
    // Field 28 is content-length: five bytes.
    head.extend([0x0f, 13, 1, b'5']);
    for (parts, whole) in [(&["hello"][..], true), (&["he", "llo"], true), (&["hel"], false), (&["he", "llo!"], false)]
    {
        let mut client = Client::new();
        client.send(frame::HEADERS, frame::END_HEADERS, 1, &head).unwrap();
        for (at, part) in parts.iter().enumerate() {
            let end = if at + 1 == parts.len() { frame::END_STREAM } else { 0 };
            client.send(frame::DATA, end, 1, part.as_bytes()).unwrap();
        }
        let expected = if whole { vec![] } else { vec![reset(1, ErrorCode::Protocol)] };
        assert_eq!(client.sent(), expected, "{parts:?}");
    }
    let mut client = Client::new();
    client.send(frame::HEADERS, frame::END_HEADERS | frame::END_STREAM, 1, &head).unwrap();
    assert_eq!(client.sent(), [reset(1, ErrorCode::Protocol)]);
    client.send(frame::HEADERS, frame::END_HEADERS, 3, &head).unwrap();
    client.send(frame::HEADERS, frame::END_HEADERS | frame::END_STREAM, 3, &[]).unwrap();
    assert_eq!(client.sent(), [reset(3, ErrorCode::Protocol)]);
}

/// A head that never ends costs its reader time and never counts as a request.
#[test]
fn heads_in_endless_pieces_end_the_connection() {
    let mut client = Client::new();
    client.send(frame::HEADERS, 0, 1, &[]).unwrap();
    let ended = (0..1000).find_map(|_| client.send(frame::CONTINUATION, 0, 1, &[]).err());
    assert_eq!(ended.map(|fatal| fatal.code), Some(ErrorCode::EnhanceYourCalm));
    let mut client = Client::new();
    client.send(frame::HEADERS, 0, 1, &[]).unwrap();
    let ended = (0..10).find_map(|_| client.send(frame::CONTINUATION, 0, 1, &[0x82; 1000]).err());
    assert_eq!(ended.map(|fatal| fatal.code), Some(ErrorCode::EnhanceYourCalm));
}

/// Each setting moves the windows of all streams: a client that does nothing else is ended, one that works is not.
#[test]
fn endless_settings_end_the_connection() {
    let mut client = Client::new();
    for stream in (1..1000).step_by(2) {
        client.send(frame::SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]).unwrap();
        client.call(stream);
        client.connection.send_message(stream, Bytes::new());
        client.sent();
    }
    let ended = (0..1000).find_map(|_| client.send(frame::SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]).err());
    assert_eq!(ended.map(|fatal| fatal.code), Some(ErrorCode::EnhanceYourCalm));
}

/// A client that downloads with windows as large as can be must still be heard: its pings, its other calls.
#[test]
fn a_large_download_does_not_stop_the_reading() {
    let mut client = Client::with_settings(&[(frame::SETTING_WINDOW, (1 << 31) - 1)]);
    client.grow_window(0, 1 << 30).unwrap();
    client.call(1);
    client.connection.send_message(1, vec![7; 10_000_000].into());
    assert!(!client.connection.is_congested());
    let mut data = 0;
    while client.connection.open_streams() > 0 {
        assert!(client.connection.out().len() < OUT_BYTES_DATA + SEND_FRAME_BYTES_MAX + 100);
        data += client.data_sent();
        client.connection.send_waiting();
        assert!(!client.connection.is_congested());
    }
    assert_eq!(data + client.data_sent(), 10_000_000);
}

/// One request that nobody reads leaves room for the others; many do not fill the memory.
#[test]
fn unread_requests_are_bounded_together() {
    let mut client = Client::new();
    let mut taken = 0;
    'all: for stream in [1, 3, 5, 7] {
        client.send(frame::HEADERS, frame::END_HEADERS, stream, CALL).unwrap();
        for _ in 0..9 {
            if client.send(frame::DATA, 0, stream, &[0; 10_000]).is_err() {
                break 'all;
            }
            taken += 10_000;
        }
    }
    assert!(taken > LIMITS.connection_window && taken <= 2 * LIMITS.connection_window, "{taken}");
    let mut client = Client::new();
    for stream in [1, 3, 5, 7] {
        client.send(frame::HEADERS, frame::END_HEADERS, stream, CALL).unwrap();
        for _ in 0..if stream == 7 { 4 } else { 9 } {
            client.send(frame::DATA, 0, stream, &[0; 10_000]).unwrap();
        }
    }
    let room = |client: &mut Client| {
        client.sent().iter().filter(|(kind, _, stream, _)| (*kind, *stream) == (frame::WINDOW_UPDATE, 0)).count()
    };
    assert_eq!(room(&mut client), 2, "no more of it when too much is unread");
    client.connection.release(7, 40_000);
    client.send(frame::RST_STREAM, 0, 1, &[0; 4]).unwrap();
    assert_eq!(room(&mut client), 1, "what was read or given up does not count any more");
}

/// A client cannot end its connection for others behind the same proxy by an answer nobody asked for.
#[test]
fn an_answer_to_no_ping_is_no_goodbye() {
    let mut client = Client::new();
    client.send(frame::PING, frame::ACK, 0, &LAST_CALL).unwrap();
    client.call(1);
    assert_eq!(client.connection.open_streams(), 1);
    assert_eq!(client.sent(), []);
}

/// Clients that are told to go finish what they began, and nothing is lost in between.
#[test]
fn a_goodbye_answers_what_came_before_it_was_heard() {
    let mut client = Client::new();
    client.call(1);
    client.connection.say_goodbye();
    let sent = client.sent();
    assert_eq!(sent[0].3[..4], [0x7f, 0xff, 0xff, 0xff]);
    client.call(3);
    client.send(frame::PING, frame::ACK, 0, &LAST_CALL).unwrap();
    assert_eq!(client.sent()[0].3[..4], [0, 0, 0, 3]);
    client.call(5);
    assert_eq!(client.connection.open_streams(), 2);
    for stream in [1, 3] {
        assert!(!client.connection.is_done());
        client.connection.send_message(stream, Bytes::from_static(b""));
    }
    assert!(client.connection.is_done());
}

/// A head in pieces, padded and with a priority, is the same head.
#[test]
fn heads_come_in_pieces() {
    let mut client = Client::new();
    let mut first = vec![3, 0, 0, 0, 0, 16];
    first.extend(&CALL[..2]);
    first.extend([0; 3]);
    client.send(frame::HEADERS, frame::PADDED | frame::WITH_PRIORITY | frame::END_STREAM, 1, &first).unwrap();
    client.send(frame::CONTINUATION, 0, 1, &CALL[2..4]).unwrap();
    client.send(frame::CONTINUATION, frame::END_HEADERS, 1, &CALL[4..]).unwrap();
    assert!(matches!(&client.events[..], [Event::Request { stream: 1, end: true, .. }]));
}

/// Long texts of errors take several frames.
#[test]
fn long_trailers_are_sent_in_pieces() {
    let mut client = Client::new();
    client.call(1);
    let message = Field { name: Bytes::from_static(b"grpc-message"), value: vec![b'x'; 40_000].into() };
    client.connection.send_trailers(1, vec![message]);
    let sent = client.sent();
    let kinds: Vec<(u8, u8)> = sent.iter().map(|(kind, flags, ..)| (*kind, *flags)).collect();
    assert_eq!(kinds, [(frame::HEADERS, 1), (frame::CONTINUATION, 0), (frame::CONTINUATION, frame::END_HEADERS)]);
}

/// What is no HTTP/2 ends the connection, with the reason in its own words.
#[test]
fn what_breaks_the_rules_ends_the_connection() {
    let refused = |kind, flags, stream, payload: &[u8]| {
        let mut client = Client::new();
        client.call(1);
        let fatal = client.send(kind, flags, stream, payload).unwrap_err();
        let (last, .., goaway) = client.sent().pop().unwrap();
        assert_eq!((last, &goaway[4..8]), (frame::GOAWAY, &(fatal.code as u32).to_be_bytes()[..]));
        fatal.code
    };
    use ErrorCode::{Compression, FlowControl, FrameSize, Protocol};
    assert_eq!(refused(frame::DATA, 0, 0, b""), Protocol);
    assert_eq!(refused(frame::DATA, 0, 3, b""), Protocol);
    assert_eq!(refused(frame::DATA, frame::PADDED, 1, &[4, 0]), Protocol);
    assert_eq!(refused(frame::HEADERS, frame::END_HEADERS, 2, CALL), Protocol);
    assert_eq!(refused(frame::HEADERS, frame::END_HEADERS, 3, &[0xff, 0xff]), Compression);
    assert_eq!(refused(frame::HEADERS, frame::WITH_PRIORITY, 3, &[0, 0]), FrameSize);
    assert_eq!(refused(frame::HEADERS, frame::WITH_PRIORITY, 3, &[0, 0, 0, 3, 1]), Protocol);
    assert_eq!(refused(frame::PRIORITY, 0, 1, &[0; 4]), FrameSize);
    assert_eq!(refused(frame::RST_STREAM, 0, 5, &[0; 4]), Protocol);
    assert_eq!(refused(frame::SETTINGS, 0, 0, &[0; 5]), FrameSize);
    assert_eq!(refused(frame::SETTINGS, frame::ACK, 0, &[0; 6]), FrameSize);
    assert_eq!(refused(frame::SETTINGS, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff]), FlowControl);
    assert_eq!(refused(frame::SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1]), Protocol);
    assert_eq!(refused(frame::SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2]), Protocol);
    assert_eq!(refused(frame::PUSH_PROMISE, 0, 1, &[0; 4]), Protocol);
    assert_eq!(refused(frame::PING, 0, 0, &[0; 7]), FrameSize);
    assert_eq!(refused(frame::PING, 0, 1, &[0; 8]), Protocol);
    assert_eq!(refused(frame::WINDOW_UPDATE, 0, 0, &[0; 4]), Protocol);
    assert_eq!(refused(frame::WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]), FlowControl);
    assert_eq!(refused(frame::CONTINUATION, 0, 1, &[]), Protocol);
    let mut connection = Connection::new(LIMITS);
    assert!(connection.receive(&mut BytesMut::from("GET / HTTP/1.1\r\n\r\n"), &mut Vec::new()).is_err());
    let mut client = Client::new();
    let mut input = BytesMut::from(&[0, 0x40, 1, 0, 0, 0, 0, 0, 1][..]);
    let fatal = client.connection.receive(&mut input, &mut client.events).unwrap_err();
    assert_eq!(fatal.code, ErrorCode::FrameSize, "too long a frame is refused before it is waited for");
}

/// Whoever takes an answer slowly is not who takes nothing, and what waits for the window of all answers may be the first
/// that is sent: neither is given up.
#[test]
fn only_an_answer_whose_own_window_stays_shut_stalls() {
    let mut client = Client::with_settings(&[(frame::SETTING_WINDOW, 60_000)]);
    [1, 3, 5, 7].into_iter().for_each(|stream| client.call(stream));
    client.connection.send_message(1, vec![7; 70_000].into());
    client.connection.send_message(3, vec![7; 70_000].into());
    client.connection.send_message(5, vec![7; 70_000].into());
    client.connection.send_head(7, 200, [], false);
    client.connection.send_data(7, vec![7; 80_000].into(), false);
    assert_eq!(client.connection.stalled(true), [], "they have just begun to wait");
    // 1 has had its window, and 3 waits for the rest of all windows.
    assert_eq!(client.connection.stalled(true), [1]);
    client.grow_window(0, 200_000).unwrap();
    client.sent();
    client.connection.send_waiting();
    assert_eq!(client.connection.stalled(true), [1]);
    assert_eq!(client.connection.stalled(false), [1, 3, 5]);
    assert_eq!(client.connection.stalled(true), [7, 1, 3, 5], "the largest come first");
    client.grow_window(3, 1).unwrap();
    assert_eq!(client.connection.stalled(false), [1, 5]);
    client.grow_window(1, 10_000).unwrap();
    assert_eq!(client.connection.stalled(false), [5, 3]);
}

/// What counts towards the bounds is what waits, and no more of one answer than its share. If it ever counted what does not
/// wait any more, a connection would go slower and slower, and then stand.
#[test]
fn each_answer_counts_up_to_its_share_as_long_as_it_waits() {
    const MANY: usize = 5 << 20;
    let mut client = Client::with_settings(&[(frame::SETTING_WINDOW, 0)]);
    [1, 3, 5, 7].into_iter().for_each(|stream| client.call(stream));
    client.connection.send_message(1, vec![7; MANY].into());
    client.connection.send_message(3, vec![7; 100].into());
    client.connection.send_head(5, 200, [], false);
    client.connection.send_data(5, vec![7; MANY].into(), false);
    client.connection.send_data(5, vec![7; 10].into(), false);
    client.connection.send_head(7, 200, [], false);
    client.connection.send_data(7, vec![7; 1000].into(), true);
    let counted = |client: &Client| (client.connection.waits.whole, client.connection.waits.parts);
    assert_eq!(counted(&client), (waiting::SHARE_BYTES_MAX + 100, waiting::SHARE_BYTES_MAX + 1000));
    client.send(frame::RST_STREAM, 0, 1, &[0, 0, 0, 8]).unwrap();
    client.grow_window(3, 40).unwrap();
    client.grow_window(7, 1000).unwrap();
    assert_eq!(counted(&client), (60, waiting::SHARE_BYTES_MAX));
    client.connection.reset(5, ErrorCode::Internal);
    client.grow_window(3, 60).unwrap();
    assert_eq!((counted(&client), client.connection.open_streams()), ((0, 0), 0));
}

/// A flood of frames that ask for answers is held back by not reading on.
#[test]
fn a_flood_of_pings_is_not_read_ahead() {
    let mut client = Client::new();
    let mut input = BytesMut::new();
    for _ in 0..100_000 {
        frame::put_ping([1; 8], 0, &mut input);
    }
    client.connection.receive(&mut input, &mut client.events).unwrap();
    assert!(client.connection.is_congested() && !input.is_empty());
    assert!(client.connection.out().len() < OUT_BYTES_HIGH + 100);
}

proptest! {
    /// Frames of a stranger, whatever is in them: no panic, whole frames out, bounded streams.
    #[test]
    fn any_frames_are_survived(
        frames in proptest::collection::vec(
            (0..11_u8, any::<u8>(), 0..8_u32, proptest::collection::vec(any::<u8>(), 0..40)), 1..60),
    ) {
        let mut client = Client::new();
        for (kind, flags, stream, payload) in frames {
            if client.send(kind, flags, stream, &payload).is_err() {
                break;
            }
            if let Some(Event::Request { stream, .. }) = client.events.last() {
                let stream = *stream;
                client.connection.send_message(stream, Bytes::from_static(b"x"));
            }
            prop_assert!(client.connection.open_streams() <= 4);
        }
        client.sent();
    }

    /// However the bytes are cut, the same comes out.
    #[test]
    fn it_does_not_matter_how_bytes_arrive(cuts in proptest::collection::vec(1..60_usize, 1..30)) {
        let mut bytes = BytesMut::from(&PREFACE[..]);
        frame::put_settings(&[], &mut bytes);
        for stream in [1, 3] {
            frame::put_head(CALL.len(), frame::HEADERS, frame::END_HEADERS, stream, &mut bytes);
            bytes.put_slice(CALL);
            frame::put_head(5, frame::DATA, frame::END_STREAM, stream, &mut bytes);
            bytes.put_slice(b"hello");
        }
        let mut connection = Connection::new(LIMITS);
        let (mut input, mut events) = (BytesMut::new(), Vec::new());
        for cut in cuts.into_iter().chain([bytes.len()]) {
            let part = bytes.split_to(cut.min(bytes.len()));
            input.put_slice(&part);
            prop_assert!(connection.receive(&mut input, &mut events).is_ok());
        }
        prop_assert_eq!(events.len(), 4);
        prop_assert!(input.is_empty());
    }
}
