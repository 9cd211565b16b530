//! Streams over HTTP: JSON objects one after another in, one line with one `{"result":...}` each out.
//!
//! Nothing is collected: a message goes on as soon as its last byte is there, and an answer as soon as the
//! service gives it, at the pace at which the client reads.

use std::convert::Infallible;

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use futures_util::StreamExt;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::Frame;
use tidelock_client_port::{Shape, frame};
use tonic::Status;
use tonic::body::Body;

use super::call::Call;
use super::refusal::{JSON, error_line, refused, refused_stream};
use super::transcode::{Method, request_from_json, response_to_json};
use super::{GRPC_CONTENT_TYPE, too_large};
use crate::EtcdFace;

/// Finds JSON objects in bytes that come in pieces. It only looks for where an object ends; whether it is
/// one is for the reader of the whole to say.
pub(super) struct JsonObjects {
    unread: BytesMut,
    scanned: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
    bytes_max: usize,
}

impl JsonObjects {
    /// Objects of at most so many bytes.
    pub(super) fn new(bytes_max: usize) -> JsonObjects {
        JsonObjects { unread: BytesMut::new(), scanned: 0, depth: 0, in_string: false, escaped: false, bytes_max }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
    }

    /// The next whole object, if its end is there already.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Status> {
        if self.scanned == 0 {
            let blank = self.unread.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            let _ = self.unread.split_to(blank);
            if let Some(first) = self.unread.first().filter(|first| **first != b'{') {
                let text = format!("invalid character '{}' looking for beginning of value", first.escape_ascii());
                return Err(Status::invalid_argument(text));
            }
        }
        while let Some(byte) = self.unread.get(self.scanned) {
            self.scanned += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'{' if !self.in_string => self.depth += 1,
                b'}' if !self.in_string => self.depth -= 1,
                _ => {}
            }
            if self.depth == 0 {
                let object = self.unread.split_to(self.scanned).freeze();
                self.scanned = 0;
                return Ok(Some(object));
            }
        }
        if self.unread.len() > self.bytes_max {
            return Err(too_large(self.unread.len(), self.bytes_max));
        }
        Ok(None)
    }
}

/// The messages of a client that may send many.
struct Requests {
    body: BodyStream<Body>,
    objects: JsonObjects,
    shape: Shape,
}

impl Requests {
    /// The next one, framed; none when the client has no more to say.
    async fn next(&mut self) -> Option<Result<Bytes, Status>> {
        loop {
            match self.objects.next() {
                Ok(Some(object)) => {
                    let encoded = request_from_json(&self.shape, &object);
                    return Some(encoded.map(|encoded| frame(&encoded)));
                }
                Ok(None) => {}
                Err(status) => return Some(Err(status)),
            }
            // An error is the connection's: nobody is left to be told.
            if let Ok(data) = self.body.next().await?.ok()?.into_data() {
                self.objects.push(&data);
            }
        }
    }
}

/// Answers a request whose body is a stream of messages. One that cannot be understood is refused if it is
/// the first, and later on ends the client's half, as if it had no more to say.
pub(super) async fn answer_stream(
    face: EtcdFace,
    (method, shape): (&Method, &Shape),
    metadata: HeaderMap,
    body: Body,
    bytes_max: usize,
) -> Response<Body> {
    let objects = JsonObjects::new(bytes_max);
    let mut requests = Requests { body: BodyStream::new(body), objects, shape: shape.clone() };
    let first = match requests.next().await.transpose() {
        Ok(first) => first,
        Err(status) => return refused(&status),
    };
    let rest = futures_util::stream::unfold(requests, |mut requests| async {
        let framed = requests.next().await?.ok()?;
        Some((Ok::<_, Infallible>(Frame::data(framed)), requests))
    });
    let frames = futures_util::stream::iter(first.map(|framed| Ok(Frame::data(framed)))).chain(rest);
    let frames = Body::new(StreamBody::new(Box::pin(frames)));
    answer_lines(Call::new(face, method, metadata, frames), shape).await
}

/// Answers with a line for each message. Waits for the first, because until then the HTTP code is open.
pub(super) async fn answer_lines(mut call: Call, shape: &Shape) -> Response<Body> {
    let first = match call.next().await {
        Some(Err(status)) => return refused_stream(&status),
        Some(Ok(message)) => Some(result_line(shape, message)),
        None => None,
    };
    let mut response = Response::new(Body::new(StreamBody::new(Box::pin(lines(first, call, shape.clone())))));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    let (name, value) = GRPC_CONTENT_TYPE;
    response.headers_mut().insert(name, value);
    response
}

/// One message as a line: wrapped if it is one of many.
pub(super) fn result_line(shape: &Shape, message: Bytes) -> Bytes {
    let (before, after): (&[u8], &[u8]) = if shape.gives_stream { (br#"{"result":"#, b"}\n") } else { (b"", b"\n") };
    let mut line = before.to_vec();
    match response_to_json(shape, message, &mut line) {
        Ok(()) => {
            line.extend_from_slice(after);
            line.into()
        }
        Err(status) => error_line(&status),
    }
}

fn lines(first: Option<Bytes>, call: Call, shape: Shape) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
    futures_util::stream::unfold((first, call, shape), |(first, mut call, shape)| async {
        let line = match first {
            Some(first) => first,
            None => match call.next().await? {
                Ok(message) => result_line(&shape, message),
                Err(status) => error_line(&status),
            },
        };
        Some((Ok(Frame::data(line)), (None, call, shape)))
    })
}

/// Reads a whole body, or tells that it is too large. What is too much is read and thrown away up to a
/// bound: a client that is still sending does not read its answer.
pub(super) async fn read_whole(mut body: Body, bytes_max: usize) -> Result<Bytes, Status> {
    /// Up to where a client may go on; beyond, the connection is cut.
    const THROWN_AWAY_MAX: usize = 64 * 1024 * 1024;
    let (mut whole, mut length) = (BytesMut::new(), 0);
    while let Some(part) = body.frame().await {
        let Ok(data) = part?.into_data() else { continue };
        length += data.len();
        if length <= bytes_max {
            whole.extend_from_slice(&data);
        } else if length > THROWN_AWAY_MAX {
            break;
        }
    }
    if length > bytes_max { Err(too_large(length, bytes_max)) } else { Ok(whole.freeze()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn objects_in(pieces: &[&[u8]], bytes_max: usize) -> Result<Vec<String>, Status> {
        let mut objects = JsonObjects::new(bytes_max);
        let mut found = Vec::new();
        for piece in pieces {
            objects.push(piece);
            while let Some(object) = objects.next()? {
                found.push(String::from_utf8(object.to_vec()).unwrap());
            }
        }
        Ok(found)
    }

    #[test]
    fn objects_are_found_with_or_without_anything_between_them() {
        let text = br#" {"a":{"b":[{}]}}{"c":"}{\"\\"}
            {} "#;
        assert_eq!(objects_in(&[text], 1000).unwrap(), [r#"{"a":{"b":[{}]}}"#, r#"{"c":"}{\"\\"}"#, "{}"]);
    }

    #[test]
    fn what_is_no_object_is_refused_at_its_first_byte() {
        for text in ["junk", "[", "{}x", "}", "\u{e4}"] {
            assert!(objects_in(&[text.as_bytes()], 1000).is_err(), "{text}");
        }
    }

    /// A client that opens a brace and never closes it must not fill the memory.
    #[test]
    fn an_object_without_end_is_refused_at_the_limit() {
        let piece: &[u8] = &[b' '; 400];
        let status = objects_in(&[b"{", piece, piece, piece], 1000).unwrap_err();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    }

    proptest! {
        /// Where the network cuts the bytes must not matter.
        #[test]
        fn pieces_of_any_size_give_the_same_objects(values in proptest::collection::vec("[{}\"\\\\a ]{0,12}", 1..6), size in 1usize..9) {
            let written: Vec<String> = values.iter().map(|v| serde_json::json!({"v": v, "w": {"x": v}}).to_string()).collect();
            let text = written.join("\n");
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            prop_assert_eq!(objects_in(&pieces, 10_000).unwrap(), written);
        }
    }
}
