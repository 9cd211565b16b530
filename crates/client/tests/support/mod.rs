//! A node that says what a test wants it to say, over a real connection.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use prost::Message as _;
use tidelock_client::Client;
use tidelock_native_api::ERROR_TRAILER;
use tidelock_native_api::v1::native_server::{Native, NativeServer};
use tidelock_native_api::v1::{self, answer::Answer, error::Family, from_client, request::Op, to_client};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

/// Nothing here takes that long.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// Messages on their way to a client.
const OUTGOING_MAX: usize = 1024;

/// Waits for something that must happen.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("{what} did not come"))
}

/// What a node says, and was asked.
#[derive(Default)]
pub struct Script {
    /// It finds no leader.
    pub has_no_leader: bool,
    pub opened: i64,
    pub closed: Vec<i64>,
    /// The answers to questions, the last one for ever; without one a question has no answer.
    pub described: VecDeque<Option<Result<v1::DescribeReply, v1::Error>>>,
    pub questions: u32,
    /// The answers to requests before it answers by itself; `None`: it says nothing.
    pub answers: VecDeque<Option<Result<Answer, v1::Error>>>,
    /// How many requests came.
    pub asked: u32,
    /// The answers to calls that end a session.
    pub closes: VecDeque<Result<(), v1::Error>>,
    /// Told to who begins to observe.
    pub notices: Vec<v1::Notice>,
    streams: Vec<mpsc::Sender<Result<v1::ToClient, Status>>>,
}

impl Script {
    /// Tells everybody.
    pub fn tell(&mut self, notice: &v1::Notice) {
        for stream in &self.streams {
            let _ = stream.try_send(Ok(to_client(to_client::Message::Notice(notice.clone()))));
        }
    }

    /// What follows from a message.
    fn answer(&mut self, message: from_client::Message) -> Vec<to_client::Message> {
        use from_client::Message as From;
        use to_client::Message as To;
        match message {
            From::Open(v1::OpenRequest { ttl_ms, client }) => {
                self.opened += 1;
                let error = self.has_no_leader.then(|| error("NO_LEADER", Family::Unavailable));
                vec![To::Opened(v1::OpenReply { header: None, session: self.opened, ttl_ms, client, error })]
            }
            From::Observe(v1::ObserveRequest { kind, name, .. }) => {
                let mut told = vec![To::Observing(v1::Observing { kind, name, ..Default::default() })];
                told.extend(self.notices.iter().cloned().map(To::Notice));
                told
            }
            From::KeepAlive(v1::KeepAlive { sent, session }) => {
                vec![To::KeptAlive(v1::KeptAlive { sent, session, ttl_ms: 10_000, header: None })]
            }
            From::Close(v1::CloseRequest { session }) => {
                self.closed.push(session);
                vec![To::Closed(v1::CloseReply { session, ..Default::default() })]
            }
            From::Request(v1::Request { session, number, op, .. }) => {
                self.asked += 1;
                let own = match op {
                    Some(Op::Acquire(_)) => Answer::Place(v1::Place { place: number, token: number, ahead: 0 }),
                    _ => Answer::Left(v1::Left { token: number }),
                };
                let Some(answer) = self.answers.pop_front().unwrap_or(Some(Ok(own))) else { return Vec::new() };
                let result = Some(match answer {
                    Ok(answer) => v1::reply::Result::Answer(v1::Answer { answer: Some(answer) }),
                    Err(error) => v1::reply::Result::Error(error),
                });
                vec![To::Reply(v1::Reply { session, number, result, header: None })]
            }
            _ => Vec::new(),
        }
    }
}

fn to_client(message: to_client::Message) -> v1::ToClient {
    v1::ToClient { message: Some(message) }
}

pub fn error(code: &str, family: Family) -> v1::Error {
    v1::Error { code: code.into(), family: family.into(), ..Default::default() }
}

pub fn header(revision: u64) -> Option<v1::Header> {
    Some(v1::Header { revision, ..Default::default() })
}

fn status(error: &v1::Error) -> Status {
    let mut status = Status::unavailable("as the script says");
    let value = tonic::metadata::MetadataValue::from_bytes(&error.encode_to_vec());
    status.metadata_mut().insert_bin(ERROR_TRAILER, value);
    status
}

/// One node of its own.
#[derive(Clone, Default)]
pub struct Node(Arc<Mutex<Script>>);

impl Node {
    /// Reads or changes what it says.
    pub fn script<T>(&self, with: impl FnOnce(&mut Script) -> T) -> T {
        with(&mut self.0.lock().unwrap())
    }

    /// Serves until the test ends.
    pub async fn start(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = TowerToHyperService::new(NativeServer::new(self.clone()));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = Builder::new(TokioExecutor::new()).http2_only();
                let service = service.clone();
                tokio::spawn(async move { serving.serve_connection(TokioIo::new(stream), service).await });
            }
        });
        address
    }

    pub async fn client(&self) -> Client {
        within("a client", Client::connect([self.start().await.to_string()])).await.unwrap()
    }
}

#[tonic::async_trait]
impl Native for Node {
    type ConnectStream = BoxStream<'static, Result<v1::ToClient, Status>>;
    type ObserveStream = Pin<Box<dyn futures_util::Stream<Item = Result<v1::Notice, Status>> + Send>>;

    async fn connect(
        &self,
        request: Request<Streaming<v1::FromClient>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let (outgoing, mut told) = mpsc::channel(OUTGOING_MAX);
        self.script(|script| script.streams.push(outgoing.clone()));
        let (node, mut incoming) = (self.clone(), request.into_inner());
        tokio::spawn(async move {
            while let Some(Ok(v1::FromClient { message: Some(message) })) = incoming.next().await {
                for answer in node.script(|script| script.answer(message)) {
                    let _ = outgoing.try_send(Ok(to_client(answer)));
                }
            }
        });
        Ok(Response::new(futures_util::stream::poll_fn(move |context| told.poll_recv(context)).boxed()))
    }

    async fn describe(&self, _: Request<v1::DescribeRequest>) -> Result<Response<v1::DescribeReply>, Status> {
        let next = self.script(|script| {
            script.questions += 1;
            let next = script.described.front().cloned().flatten();
            if script.described.len() > 1 {
                script.described.pop_front();
            }
            next
        });
        match next {
            Some(Ok(reply)) => Ok(Response::new(reply)),
            Some(Err(error)) => Err(status(&error)),
            None => std::future::pending().await,
        }
    }

    async fn close(&self, _: Request<v1::CloseRequest>) -> Result<Response<v1::CloseReply>, Status> {
        match self.script(|script| script.closes.pop_front()) {
            Some(Err(error)) => Err(status(&error)),
            _ => Ok(Response::new(v1::CloseReply::default())),
        }
    }

    async fn open(&self, _: Request<v1::OpenRequest>) -> Result<Response<v1::OpenReply>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn keep_alive(&self, _: Request<v1::KeepAlive>) -> Result<Response<v1::KeptAlive>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn ask(&self, _: Request<v1::Request>) -> Result<Response<v1::Reply>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn names(&self, _: Request<v1::NamesRequest>) -> Result<Response<v1::NamesReply>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn sessions(&self, _: Request<v1::SessionsRequest>) -> Result<Response<v1::SessionsReply>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn observe(&self, _: Request<v1::ObserveRequest>) -> Result<Response<Self::ObserveStream>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
}
