//! What servers say, byte by byte: good answers, awkward ones and hostile ones.

use super::*;
use crate::lines::Access;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    head(&mut out, payload.len(), kind, flags, stream);
    out.extend_from_slice(payload);
    out
}

fn message(text: &[u8]) -> Vec<u8> {
    [&[0][..], &(text.len() as u32).to_be_bytes(), text].concat()
}

fn trailers(status: &str) -> Vec<u8> {
    [&[0x00, 11][..], b"grpc-status", &[status.len() as u8], status.as_bytes()].concat()
}

fn settled() -> Connection {
    let mut connection = Connection::new(RequestHeaders::new("host", &Access::default()), &mut Vec::new());
    let settings = frame(kind::SETTINGS, 0, 0, &[]);
    assert!(matches!(connection.step(&settings, &mut Vec::new()), Ok(Step::Opened { .. })));
    connection
}

/// Everything that `input` makes of a connection, until it is used up.
fn answers(connection: &mut Connection, input: &[u8]) -> Result<Vec<(Tag, Answer<'static>)>, Broken> {
    let (mut used, mut got, mut out) = (0, Vec::new(), Vec::new());
    loop {
        match connection.step(&input[used..], &mut out)? {
            Step::Incomplete => return Ok(got),
            Step::Taken { consumed } | Step::Opened { consumed } | Step::Event { consumed, .. } => used += consumed,
            Step::Answered { consumed, tag, answer } => {
                used += consumed;
                got.push((
                    tag,
                    match answer {
                        Answer::Message(message) => Answer::Message(Cow::Owned(message.into_owned())),
                        Answer::End(status) => Answer::End(status),
                        Answer::Reply { .. } | Answer::Value(_) => unreachable!("another protocol's"),
                    },
                ));
            }
        }
    }
}

fn said(text: &[u8]) -> Answer<'static> {
    Answer::Message(Cow::Owned(text.to_vec()))
}

/// The order that every answer has: headers, message, trailers; two calls at once, and one refused at once.
#[test]
fn answers_go_to_their_calls() {
    let (mut connection, mut out) = (settled(), Vec::new());
    connection.call(&mut out, 10, "/a", |out| out.push(1));
    connection.call(&mut out, 11, "/a", |out| out.push(2));
    connection.call(&mut out, 12, "/a", |out| out.push(3));
    let input = [
        frame(kind::HEADERS, END_HEADERS, 3, &[0x88]),
        frame(kind::HEADERS, END_HEADERS, 1, &[0x88]),
        frame(kind::DATA, 0, 3, &message(b"three")),
        frame(kind::HEADERS, END_HEADERS | END_STREAM, 3, &trailers("0")),
        frame(kind::HEADERS, END_HEADERS | END_STREAM, 5, &[&[0x88][..], &trailers("14")].concat()),
        frame(kind::DATA, 0, 1, &message(b"one")),
        frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &trailers("0")),
    ]
    .concat();
    let refused = Answer::End(Status { code: 14, message: String::new() });
    let fine = || Answer::End(Status::default());
    let expected = [(11, said(b"three")), (11, fine()), (12, refused), (10, said(b"one")), (10, fine())];
    assert_eq!(answers(&mut connection, &input).unwrap(), expected);
    assert!(connection.unanswered().is_empty());
}

/// Servers cut messages into frames, put several into one, and pad; what is read must be the same.
#[test]
fn messages_are_put_together_however_they_were_cut() {
    let (mut connection, mut out) = (settled(), Vec::new());
    let stream = connection.open(&mut out, 7, "/watch");
    connection.push(&mut out, stream, |out| out.push(9));
    let (long, short) = (message(b"first message"), message(b"2nd"));
    let padded = [&[3][..], &message(b"third"), &[0; 3]].concat();
    let input = [
        frame(kind::HEADERS, END_HEADERS, 1, &[0x88]),
        frame(kind::DATA, 0, 1, &long[..7]),
        frame(kind::DATA, 0, 1, &[&long[7..], &short[..]].concat()),
        frame(kind::DATA, PADDED, 1, &padded),
    ]
    .concat();
    let expected = [(7, said(b"first message")), (7, said(b"2nd")), (7, said(b"third"))];
    for cut in 0..input.len() {
        let (mut connection, mut out) = (settled(), Vec::new());
        connection.open(&mut out, 7, "/watch");
        // What the line does: what is incomplete stays, more is put behind it.
        let mut got = answers(&mut connection, &input[..cut]).unwrap();
        let (mut used, mut probe) = (0, settled());
        probe.open(&mut out, 7, "/watch");
        while let Ok(Step::Taken { consumed } | Step::Answered { consumed, .. }) =
            probe.step(&input[used..cut], &mut out)
        {
            used += consumed;
        }
        got.extend(answers(&mut connection, &input[used..]).unwrap());
        assert_eq!(got, expected, "cut at {cut}");
    }
}

/// A put of 100 KB must wait for the server's windows and not break them: servers end connections for that.
#[test]
fn a_large_request_keeps_to_the_servers_windows() {
    let (mut connection, mut out) = (settled(), Vec::new());
    connection.call(&mut out, 1, "/a", |out| out.resize(out.len() + 100_000, 7));
    connection.call(&mut out, 2, "/a", |out| out.push(1));
    let sent = |out: &[u8], stream: u32| {
        let (mut at, mut bytes, mut ended) = (0, 0, false);
        while at < out.len() {
            let length = usize::from(out[at + 1]) << 8 | usize::from(out[at + 2]);
            if out[at + 3] == kind::DATA && out[at + 8] == stream as u8 {
                assert!(length <= FRAME_BYTES_AT_FIRST);
                bytes += length;
                ended |= out[at + 4] & END_STREAM != 0;
            }
            at += FRAME_HEAD + length;
        }
        (bytes, ended)
    };
    assert_eq!(sent(&out, 1), (65_535, false));
    assert_eq!(sent(&out, 3), (0, false));
    for stream in [0, 1] {
        let more = frame(kind::WINDOW_UPDATE, 0, stream, &100_000u32.to_be_bytes());
        assert!(connection.step(&more, &mut out).is_ok());
    }
    assert_eq!((sent(&out, 1), sent(&out, 3)), ((100_005, true), (6, true)));
}

/// A server that allows two calls at once must not see a third before one has ended.
#[test]
fn calls_above_the_servers_limit_wait_for_one_to_end() {
    let (mut connection, mut out) = (settled(), Vec::new());
    let limit = frame(kind::SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 2]);
    assert!(connection.step(&limit, &mut out).is_ok());
    for tag in 0..3 {
        connection.call(&mut out, tag, "/a", |out| out.push(1));
    }
    assert_eq!((connection.streams.len(), connection.held.len()), (2, 1));
    let mut sorted = connection.unanswered();
    sorted.sort_unstable();
    assert_eq!(sorted, [0, 1, 2]);
    answers(&mut connection, &frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, 2])).unwrap();
    assert_eq!((connection.streams.len(), connection.held.len()), (2, 0));
}

/// Pings and settings that stay without an answer make a server close the connection.
#[test]
fn pings_and_settings_are_answered() {
    let (mut connection, mut out) = (settled(), Vec::new());
    let input = [frame(kind::PING, 0, 0, b"12345678"), frame(kind::PING, ACK, 0, b"12345678")].concat();
    assert!(connection.step(&input, &mut out).is_ok());
    assert_eq!(out, frame(kind::PING, ACK, 0, b"12345678"));
    out.clear();
    assert!(connection.step(&frame(kind::SETTINGS, 0, 0, &[0, 5, 0, 0, 64, 0]), &mut out).is_ok());
    assert_eq!(out, frame(kind::SETTINGS, ACK, 0, &[]));
}

/// What breaks the protocol ends the connection with words, and never the process.
#[test]
fn hostile_bytes_end_the_connection() {
    let many = vec![0; HEADER_BYTES_MAX + 1];
    for (what, input) in [
        ("too long a frame", frame(kind::DATA, 0, 1, &[])[..].iter().map(|_| 0xff).collect()),
        ("more padding than bytes", frame(kind::DATA, PADDED, 1, &[9, 1])),
        ("padding without bytes", frame(kind::HEADERS, PADDED | END_HEADERS, 1, &[])),
        ("a compressed message", frame(kind::DATA, 0, 1, &[1, 0, 0, 0, 0])),
        ("a message without end", frame(kind::DATA, 0, 1, &[0, 0xff, 0xff, 0xff, 0xff])),
        ("a continuation of nothing", frame(kind::CONTINUATION, 0, 1, &[])),
        ("headers cut by data", [frame(kind::HEADERS, 0, 1, &[]), frame(kind::DATA, 0, 1, &[])].concat()),
        ("headers without end", [frame(kind::HEADERS, 0, 1, &[]), frame(kind::CONTINUATION, 0, 1, &many)].concat()),
        ("headers into a table", frame(kind::HEADERS, END_HEADERS, 1, &[0xff, 0x00])),
        ("a cut window update", frame(kind::WINDOW_UPDATE, 0, 0, &[1])),
        ("a window above its size", frame(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])),
        ("a push", frame(kind::PUSH_PROMISE, END_HEADERS, 1, &[])),
        ("a goodbye", frame(kind::GOAWAY, 0, 0, &[0; 8])),
    ] {
        let (mut connection, mut out) = (settled(), Vec::new());
        connection.call(&mut out, 1, "/a", |out| out.push(1));
        assert!(answers(&mut connection, &input).is_err(), "{what}");
    }
}

/// An answer that ends without saying how it went is not a success.
#[test]
fn an_answer_without_a_status_has_failed() {
    let endings = [
        frame(kind::DATA, END_STREAM, 1, &message(b"x")),
        frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &[0x88]),
        frame(kind::HEADERS, END_HEADERS, 1, &[0x8e]),
    ];
    for ending in endings {
        let (mut connection, mut out) = (settled(), Vec::new());
        connection.call(&mut out, 1, "/a", |out| out.push(1));
        let got = answers(&mut connection, &ending).unwrap();
        assert!(matches!(got.last(), Some((1, Answer::End(status))) if status.code != 0), "{got:?}");
    }
}

proptest::proptest! {
    /// Whatever a server sends, the connection answers with a value: frames with random insides, and plain noise.
    #[test]
    fn no_bytes_make_the_connection_panic(
        frames: Vec<(u8, u8, u8, Vec<u8>)>,
        noise: Vec<u8>,
    ) {
        let (mut connection, mut out) = (settled(), Vec::new());
        connection.call(&mut out, 1, "/a", |out| out.push(1));
        connection.open(&mut out, 2, "/b");
        let mut input: Vec<u8> = Vec::new();
        for (kind, flags, stream, payload) in frames {
            input.extend(frame(kind % 10, flags, u32::from(stream % 5), &payload));
        }
        input.extend(noise);
        let _ = answers(&mut connection, &input);
    }
}
