//! The Watch service: one stream is one subscription. What the messages mean is in `watch_stream.rs`;
//! here are its sources, its timers and how it is written.
//!
//! A stream is no task: the connection asks it for more when one of its sources has something, and writes what it gets. An
//! event that many watchers are told of is written down once (`Told`); each of them only adds the few bytes that are its
//! own.
//!
//! Nothing is buffered without bound towards a slow client: the connection asks for no more, so nothing is taken from
//! the subscription meanwhile, and the hub below marks it as lagging. When the client is gone the connection drops the
//! stream, and with it the subscription and all its watchers.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_core::Stream;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method as HttpMethod};
use hyper::body::Frame;
use prost::Message;
use tidelock_client_port::PREFIX_BYTES;
use tidelock_coordinator::Subscription;
use tidelock_etcd_api::etcdserverpb::{ResponseHeader, WatchRequest, WatchResponse};
use tidelock_http2::serve::Piece;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::BoxFuture;
use tonic::server::{Grpc, StreamingService};
use tonic::{Code, Request, Response, Status, Streaming};

use crate::EtcdFace;
use crate::call_counts::Counting;
use crate::callers::StreamCaller;
use crate::client_body::ClientBody;
use crate::config::PROGRESS_INTERVAL_MIN;
use crate::error_map::FaceError;
use crate::header::Headers;
use crate::leader_watch::requires_leader;
use crate::rarely::Rarely;
use crate::services::{Services, StreamEnd};
use crate::watch_stream::{Action, HeaderAt, Told, WatchStream};

/// The path of the only method there is.
pub(crate) const PATH: &str = "/etcdserverpb.Watch/Watch";

/// Whether a request is for a stream as nearly every client asks for it: one that can be served without the general
/// way, which also knows what else there may be.
pub(crate) fn is_plain<B>(request: &http::Request<B>) -> bool {
    let header = |name: &str| request.headers().get(name).map(HeaderValue::as_bytes);
    request.uri().path() == PATH
        && request.method() == HttpMethod::POST
        && matches!(header("content-type"), Some(b"application/grpc" | b"application/grpc+proto"))
        && matches!(header("grpc-encoding"), None | Some(b"identity"))
}

impl EtcdFace {
    /// Begins a stream on a client's own connection.
    pub(crate) fn watch(&self, request: http::Request<Body>) -> http::Response<ClientBody> {
        let Some(mut counting) = self.0.counts.begin(PATH) else {
            return Status::unimplemented("unknown method").into_http();
        };
        let is_without_leader = self.leader_is_missing(request.headers());
        let message_bytes = self.config().limits.message_bytes();
        let requests = |body| Streaming::new_request(WatchCodec, body, None, Some(message_bytes));
        let request = Request::from_http(counting.requested(request).map(requests));
        let answers = match is_without_leader {
            true => Err(FaceError::NoLeader.into()),
            false => self.services().watch(request),
        };
        match answers {
            Ok(answers) => {
                let body = ClientBody::Watch(Box::new(WatchBody { answers, counting }));
                let mut response = http::Response::new(body);
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
                response
            }
            Err(status) => {
                counting.finish(status.code());
                status.into_http()
            }
        }
    }
}

/// A stream as its connection takes it: message by message, what the client shares with others apart.
pub(crate) struct WatchBody {
    answers: Answers,
    counting: Counting,
}

impl WatchBody {
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, Status>>> {
        let status = match ready!(Pin::new(&mut self.answers).poll_next(cx)) {
            Some(Ok(answer)) => {
                let piece = answer.into_piece();
                self.counting.sent(piece.remaining());
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            Some(Err(status)) => status,
            None => Status::new(Code::Ok, ""),
        };
        self.counting.finish(status.code());
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
    }
}

/// Begins a stream on the general way, which the gateway takes.
pub(crate) async fn serve(services: Arc<Services>, request: http::Request<Body>) -> http::Response<Body> {
    let message_bytes = services.config.limits.message_bytes();
    // As with all streams, answers are not limited.
    let mut grpc = Grpc::new(WatchCodec).apply_max_message_size_config(Some(message_bytes), None);
    grpc.streaming(Method(services), request).await
}

struct Method(Arc<Services>);

impl StreamingService<WatchRequest> for Method {
    type Response = Answer;
    type ResponseStream = Answers;
    type Future = BoxFuture<Response<Answers>, Status>;

    fn call(&mut self, request: Request<Streaming<WatchRequest>>) -> Self::Future {
        let services = Arc::clone(&self.0);
        Box::pin(async move { Ok(Response::new(services.watch(request)?)) })
    }
}

impl Services {
    fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Result<Answers, Status> {
        self.refuse_on_learner()?;
        let required = requires_leader(request.metadata().as_ref());
        let interval = with_jitter(self.config.progress_interval.max(PROGRESS_INTERVAL_MIN));
        let mut intervals = tokio::time::interval_at(Instant::now() + interval, interval);
        intervals.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Answers {
            caller: self.caller_of_stream(&request),
            subscription: self.coordinator.subscribe(),
            stream: WatchStream::new(self.config.limits),
            actions: VecDeque::new(),
            headers: self.headers.clone(),
            rare: Rare { requests: Some(request.into_inner()), intervals, end: self.stream_end(required) },
            rarely: Rarely::default(),
            over: false,
        })
    }
}

/// Up to a tenth longer, so that the watchers of clients that started together do not all want notices
/// at once.
fn with_jitter(interval: Duration) -> Duration {
    interval + interval.mul_f64(rand::random_range(0.0..0.1))
}

/// One message to the client.
enum Answer {
    Events(ResponseHeader, Told),
    Other(WatchResponse),
}

impl Answer {
    /// With what stands before every message.
    fn into_piece(self) -> Piece {
        let (response, shared) = match self {
            Answer::Events(header, told) => (told.envelope(header), told.event_bytes().clone()),
            Answer::Other(response) => (response, Bytes::new()),
        };
        let bytes = response.encoded_len();
        let mut own = BytesMut::with_capacity(PREFIX_BYTES + bytes);
        own.put_u8(0);
        own.put_u32((bytes + shared.len()) as u32);
        response.encode_raw(&mut own);
        Piece { own: own.freeze(), shared }
    }
}

/// What is to be said on one stream.
struct Answers {
    caller: StreamCaller,
    subscription: Arc<dyn Subscription>,
    stream: WatchStream,
    actions: VecDeque<Action>,
    headers: Headers,
    rare: Rare,
    /// Whether one of the rare sources woke the stream.
    rarely: Rarely,
    over: bool,
}

/// What seldom has anything to say. It is only asked after it rang: events are many, and each of these would be asked in
/// vain for each of them.
struct Rare {
    /// Nothing, once the client will ask no more; it still listens then.
    requests: Option<Streaming<WatchRequest>>,
    intervals: Interval,
    end: StreamEnd,
}

/// Something that happened seldom.
enum Happened {
    Asked(WatchRequest),
    Gone,
    Passed,
    Ended(FaceError),
}

impl Rare {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Happened> {
        if let Poll::Ready(why) = self.end.as_mut().poll(cx) {
            return Poll::Ready(Happened::Ended(why));
        }
        if let Some(requests) = &mut self.requests {
            match Pin::new(requests).poll_next(cx) {
                Poll::Ready(Some(Ok(request))) => return Poll::Ready(Happened::Asked(request)),
                Poll::Ready(Some(Err(_gone))) => return Poll::Ready(Happened::Gone),
                Poll::Ready(None) => self.requests = None,
                Poll::Pending => {}
            }
        }
        self.intervals.poll_tick(cx).map(|_| Happened::Passed)
    }
}

impl Answers {
    /// What is to be said because of what was done, if anything.
    fn act(&mut self) -> Option<Answer> {
        while let Some(action) = self.actions.pop_front() {
            match action {
                Action::Tell(told) => return Some(Answer::Events(self.headers.at(told.revision), told)),
                Action::Reply(at, mut response) => {
                    response.header = Some(match at {
                        HeaderAt::Revision(revision) => self.headers.at(revision),
                        HeaderAt::Now => self.headers.now(),
                        HeaderAt::Nothing => self.headers.without_revision(),
                    });
                    return Some(Answer::Other(response));
                }
                Action::Open(request) => self.subscription.open(request),
                Action::Close(id) => self.subscription.close(id),
                Action::RequestProgress => self.subscription.request_progress(),
            }
        }
        None
    }

    fn fail(&mut self, error: FaceError) -> Poll<Option<Result<Answer, Status>>> {
        self.over = true;
        Poll::Ready(Some(Err(error.into())))
    }
}

impl Stream for Answers {
    type Item = Result<Answer, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if this.over {
                return Poll::Ready(None);
            }
            if let Some(answer) = this.act() {
                return Poll::Ready(Some(Ok(answer)));
            }
            match this.rarely.poll(cx, |cx| this.rare.poll(cx)) {
                Poll::Ready(Happened::Asked(request)) => {
                    this.stream.on_request(request, this.caller.now(), &mut this.actions);
                    continue;
                }
                Poll::Ready(Happened::Passed) => {
                    this.stream.on_interval(&mut this.actions);
                    continue;
                }
                Poll::Ready(Happened::Gone) => {
                    this.over = true;
                    continue;
                }
                Poll::Ready(Happened::Ended(why)) => return this.fail(why),
                Poll::Pending => {}
            }
            match this.subscription.poll_next(cx) {
                Poll::Ready(Some(told)) => this.stream.on_notice(told, &mut this.actions),
                Poll::Ready(None) => return this.fail(FaceError::Stopped),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// Reads requests as anywhere; writes events out of what was written of them before.
struct WatchCodec;

impl Codec for WatchCodec {
    type Encode = Answer;
    type Decode = WatchRequest;
    type Encoder = WatchCodec;
    type Decoder = WatchCodec;

    fn encoder(&mut self) -> WatchCodec {
        WatchCodec
    }

    fn decoder(&mut self) -> WatchCodec {
        WatchCodec
    }
}

impl Encoder for WatchCodec {
    type Item = Answer;
    type Error = Status;

    fn encode(&mut self, answer: Answer, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        match answer {
            Answer::Events(header, told) => told.write(header, out),
            Answer::Other(response) => response.encode_raw(out),
        }
        Ok(())
    }
}

impl Decoder for WatchCodec {
    type Item = WatchRequest;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<WatchRequest>, Status> {
        WatchRequest::decode(message).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
