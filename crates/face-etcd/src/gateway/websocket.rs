//! Calls over a websocket: each message of the client is part of the request, each line of the answer a
//! message. This is how browsers watch.
//!
//! A token travels in the list of protocols (`Sec-WebSocket-Protocol: Bearer, TOKEN`), since browsers cannot
//! set headers here, or in a cookie named `token`.

use std::collections::VecDeque;
use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::header::{
    AUTHORIZATION, CONNECTION, COOKIE, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tidelock_client_port::{Shape, frame};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tonic::Status;
use tonic::body::Body;

use super::call::{Call, metadata};
use super::refusal::{error_line, refused};
use super::stream::{JsonObjects, result_line};
use super::transcode::{Method, request_from_json};
use crate::EtcdFace;

/// Messages of the client on their way to the service; more wait unread in the connection.
const REQUESTS_QUEUED: usize = 16;

const BEARER: &str = "Bearer";

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Whether the client asks to go on as a websocket.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    names(headers, &CONNECTION, "upgrade") && names(headers, &UPGRADE, "websocket")
}

fn names(headers: &HeaderMap, header: &http::HeaderName, wanted: &str) -> bool {
    let values = headers.get_all(header).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|name| name.trim().eq_ignore_ascii_case(wanted))
}

/// Agrees, and carries the call out once the connection has changed over.
pub(super) fn answer(
    face: EtcdFace,
    (method, shape): (Method, Shape),
    mut request: Request<Body>,
    bytes_max: usize,
) -> Response<Body> {
    let headers = request.headers();
    let key = headers.get(SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()));
    let version = headers.get(SEC_WEBSOCKET_VERSION).is_some_and(|version| version == "13");
    let Some(Ok(accept)) = key.map(HeaderValue::try_from).filter(|_| version) else {
        return refused(&Status::invalid_argument("websocket: not a handshake of version 13"));
    };
    let protocol = headers.get(SEC_WEBSOCKET_PROTOCOL).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let speaks_bearer = protocol.starts_with(BEARER);
    let mut metadata = metadata(headers);
    if let Some(token) = token(protocol, headers) {
        metadata.insert(AUTHORIZATION, token);
    }
    let upgrading = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        // If it fails the client is gone.
        let Ok(upgraded) = upgrading.await else { return };
        let config = WebSocketConfig::default().max_message_size(Some(bytes_max)).max_frame_size(Some(bytes_max));
        let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
        let (requests, frames) = mpsc::channel(REQUESTS_QUEUED);
        let call = Call::new(face, &method, metadata, body_of(frames));
        Box::pin(Session { socket, call, shape, requests: Some(requests), waiting: VecDeque::new() }.run(bytes_max))
            .await;
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    if speaks_bearer {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(BEARER));
    }
    response
}

/// `Bearer TOKEN`, from the list of protocols or else from the cookie.
fn token(protocol: &str, headers: &HeaderMap) -> Option<HeaderValue> {
    let listed = protocol.split_once("Bearer,").map(|(_, token)| token.trim());
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut kept = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().strip_prefix("token="));
    let token = kept.next().or(listed)?;
    HeaderValue::try_from(format!("{BEARER} {token}")).ok()
}

fn body_of(frames: mpsc::Receiver<Bytes>) -> Body {
    let frames = futures_util::stream::unfold(frames, |mut frames| async {
        let framed = frames.recv().await?;
        Some((Ok::<_, Infallible>(Frame::data(framed)), frames))
    });
    Body::new(StreamBody::new(Box::pin(frames)))
}

/// One websocket with the call behind it.
struct Session {
    socket: Socket,
    call: Call,
    shape: Shape,
    /// None: the client has no more to say, or may say no more.
    requests: Option<mpsc::Sender<Bytes>>,
    /// Read from one message of the client and not queued yet. No further message is read meanwhile.
    waiting: VecDeque<Bytes>,
}

impl Session {
    async fn run(mut self, bytes_max: usize) {
        let mut objects = JsonObjects::new(bytes_max);
        loop {
            let sender = self.requests.clone();
            tokio::select! {
                reply = self.call.next() => {
                    let Some(reply) = reply else { break };
                    let last = reply.is_err();
                    if self.tell(reply).await.is_err() || last {
                        break;
                    }
                }
                permit = reserve(sender), if !self.waiting.is_empty() => {
                    match (permit, self.waiting.pop_front()) {
                        (Ok(permit), Some(framed)) => drop(permit.send(framed)),
                        // The service reads no more; what it has to say still comes.
                        _ => self.end_requests(),
                    }
                    if !self.shape.takes_stream {
                        self.end_requests();
                    }
                }
                said = self.socket.next(), if self.waiting.is_empty() => {
                    let Some(Ok(said)) = said else { return };
                    if let Err(status) = self.hear(&said, &mut objects) {
                        let _ = self.tell(Err(status)).await;
                        break;
                    }
                }
            }
        }
        // Nothing is lost if the client is gone already.
        let _ = self.socket.close(None).await;
    }

    fn end_requests(&mut self) {
        self.requests = None;
        self.waiting.clear();
    }

    /// Takes in what the client said.
    fn hear(&mut self, said: &Message, objects: &mut JsonObjects) -> Result<(), Status> {
        let bytes: &[u8] = match said {
            Message::Text(text) => text.as_ref(),
            Message::Binary(bytes) => bytes,
            // Answered below us, or followed by the end.
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_) => return Ok(()),
        };
        if self.requests.is_none() {
            return Ok(());
        }
        objects.push(bytes);
        objects.push(b"\n");
        while let Some(object) = objects.next()? {
            self.waiting.push_back(frame(&request_from_json(&self.shape, &object)?));
        }
        Ok(())
    }

    async fn tell(&mut self, reply: Result<Bytes, Status>) -> Result<(), tokio_tungstenite::tungstenite::Error> {
        let line = match reply {
            Ok(message) => result_line(&self.shape, message),
            Err(status) => error_line(&status),
        };
        // JSON without its end of line, which only separates lines.
        let text = Utf8Bytes::try_from(line.slice(..line.len() - 1)).expect("JSON is UTF-8");
        self.socket.send(Message::Text(text)).await
    }
}

/// A place in the queue. Fails when nobody reads it any more, or nobody may write.
async fn reserve(sender: Option<mpsc::Sender<Bytes>>) -> Result<mpsc::OwnedPermit<Bytes>, ()> {
    match sender {
        Some(sender) => sender.reserve_owned().await.map_err(drop),
        None => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token_of(protocol: &str, cookie: Option<&'static str>) -> Option<String> {
        let mut headers = HeaderMap::new();
        if let Some(cookie) = cookie {
            headers.insert(COOKIE, HeaderValue::from_static(cookie));
        }
        token(protocol, &headers).map(|token| token.to_str().unwrap().to_owned())
    }

    /// Browsers have no other way to say who they are.
    #[test]
    fn a_token_is_found_where_browsers_can_put_it() {
        assert_eq!(token_of("Bearer, abc.7", None).as_deref(), Some("Bearer abc.7"));
        assert_eq!(token_of("Bearer,abc.7", None).as_deref(), Some("Bearer abc.7"));
        assert_eq!(token_of("", Some("a=b; token=abc.7")).as_deref(), Some("Bearer abc.7"));
        assert_eq!(token_of("chat", Some("mytoken=x")), None);
        assert_eq!(token_of("Bearer", None), None);
    }
}
